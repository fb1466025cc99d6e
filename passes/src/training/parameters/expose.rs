//! `expose-parameters`: parameters become inputs.

use crate::graph::roles::{PARAMETER, with_role};
use crate::pass::invariants::Invariants;
use crate::pass::options::Spelled;
use crate::pass::training_error::ParameterError;
use crate::pass::{Changed, Pass, PassCx, PassError};
use crate::training::inputs::expose;
use ampc_ir::{Module, Value};

/// The pass that makes parameters inputs, whose values are those inputs' defaults.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExposeParameters;

impl Spelled for ExposeParameters {
    const NAME: &'static str = "expose-parameters";
    const ABOUT: &'static str = "turns parameters into inputs, in fp32";
    fn blank() -> Self {
        ExposeParameters
    }
}

impl Pass for ExposeParameters {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn requires(&self) -> Invariants {
        Invariants::CORE
    }
    fn run(&self, module: &mut Module, _cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let parameters = with_role(module, PARAMETER);
        let constants: Vec<Value> = parameters.filter(|&value| module.constant(value).is_some()).collect();
        expose(module, &constants, true).map_err(ParameterError::from)?;
        Ok(Changed::when(!constants.is_empty()))
    }
}
