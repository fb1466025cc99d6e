//! Losses of a user.

use super::Loss;
use crate::pass::training_error::{LossError, RuleError};
use crate::training::build::{Build, Nodes};
use crate::training::parameters::output_named;
use ampc_ir::entity::EntityRef;
use ampc_ir::module::Def;
use ampc_ir::op::OpKind;
use ampc_ir::{Module, Type, Value};
use std::fmt;
use std::sync::Arc;

/// Builds a loss: a float with one element.
type BuildLoss = dyn Fn(&mut LossNodes<'_>) -> Result<Value, RuleError> + Send + Sync;

/// A loss of a user: a function that builds it of the outputs of a model and inputs of targets.
///
/// ```
/// use ampc_passes::build::Build;
/// use ampc_passes::step::CustomLoss;
///
/// // The mean of log(cosh(p − t)), as |d| + softplus(−2|d|) − log 2.
/// let log_cosh = CustomLoss::new("log-cosh", |b| {
///     let p = b.prediction()?;
///     let t = b.target(p)?;
///     let d = b.minus(p, t)?;
///     let size = b.unary(ampc_ir::op::OpKind::Abs, d)?;
///     let twice = b.scaled(size, -2.0)?;
///     let rest = b.unary(ampc_ir::op::OpKind::Softplus, twice)?;
///     let sum = b.plus(size, rest)?;
///     let each = b.plus_number(sum, -std::f64::consts::LN_2)?;
///     b.mean(each)
/// });
/// ```
#[derive(Clone)]
pub struct CustomLoss {
    name: Arc<str>,
    build: Arc<BuildLoss>,
}

impl CustomLoss {
    /// A loss of this name, by which messages call it.
    pub fn new(
        name: &str,
        build: impl Fn(&mut LossNodes<'_>) -> Result<Value, RuleError> + Send + Sync + 'static,
    ) -> CustomLoss {
        CustomLoss { name: name.into(), build: Arc::new(build) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds its nodes.
    pub(in crate::training::step) fn add(
        &self,
        loss: &Loss,
        module: &mut Module,
    ) -> Result<Value, LossError> {
        let before = module.n_nodes();
        let nodes = loss.nodes(module);
        let mut b = LossNodes { loss, nodes };
        let wrong =
            |error: RuleError| LossError::Custom { kind: self.name().into(), what: error.to_string() };
        let value = (self.build)(&mut b).map_err(wrong)?;
        let module = b.module();
        let data = module.value(value);
        if data.graph != module.main() || matches!(data.def, Def::Erased) {
            let what = "its result is not a value of the main graph".into();
            return Err(LossError::Custom { kind: self.name().into(), what });
        }
        let value = b.wide(value).map_err(wrong)?;
        // What has a name already keeps it.
        let is_new = b.module().producer(value).is_some_and(|(node, _)| node.index() >= before);
        let is_free = is_new && !b.module().is_output(value);
        if is_free { Ok(value) } else { b.unary(OpKind::Identity, value).map_err(wrong) }
    }
}

impl PartialEq for CustomLoss {
    fn eq(&self, other: &CustomLoss) -> bool {
        self.name == other.name && std::ptr::addr_eq(Arc::as_ptr(&self.build), Arc::as_ptr(&other.build))
    }
}

impl fmt::Debug for CustomLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CustomLoss").field(&self.name).finish()
    }
}

/// Arguments of the function of a [`CustomLoss`]: the outputs of the model, its targets, and [`Build`].
#[derive(Debug)]
pub struct LossNodes<'m> {
    loss: &'m Loss,
    nodes: Nodes<'m>,
}

impl<'m> Build<'m> for LossNodes<'m> {
    fn nodes(&self) -> &Nodes<'m> {
        &self.nodes
    }
    fn nodes_mut(&mut self) -> &mut Nodes<'m> {
        &mut self.nodes
    }
}

impl LossNodes<'_> {
    /// The output that the loss is of: the first output, or the named output (`of`). In f32 or wider.
    ///
    /// # Errors
    /// If the model has none.
    pub fn prediction(&mut self) -> Result<Value, RuleError> {
        let value = self.loss.prediction(self.module()).map_err(unsupported)?;
        self.wide(value)
    }

    /// An output of the model, in f32 or wider.
    ///
    /// # Errors
    /// If it has no output of the name.
    pub fn output(&mut self, name: &str) -> Result<Value, RuleError> {
        let value = output_named(self.module(), name).map_err(unsupported)?;
        self.wide(value)
    }

    /// The input of targets, as the options name it, which has the type of another value.
    ///
    /// # Errors
    /// If the model has an input of that name that is something else.
    pub fn target(&mut self, like: Value) -> Result<Value, RuleError> {
        let (name, ty) = (self.loss.target.clone(), self.ty(like).clone());
        self.input(&name, &ty)
    }

    /// An input of any name and type, which is made if the model has none.
    ///
    /// # Errors
    /// If the model has an input of that name that is something else.
    pub fn input(&mut self, name: &str, ty: &Type) -> Result<Value, RuleError> {
        let loss = self.loss;
        loss.input(&mut self.nodes, name, ty).map_err(unsupported)
    }
}

fn unsupported(error: impl fmt::Display) -> RuleError {
    RuleError::Unsupported(error.to_string())
}
