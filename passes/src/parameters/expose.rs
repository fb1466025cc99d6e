//! `expose-parameters`: parameters become inputs, and inputs constants again.

use super::ParameterError;
use crate::autodiff::{self, PARAMETER};
use crate::invariants::Invariants;
use crate::pass::{Changed, Pass, PassCx, PassError};
use crate::pipeline::Spelled;
use ampc_ir::edit::Position;
use ampc_ir::inserter::InsertError;
use ampc_ir::module::{Def, Provenance};
use ampc_ir::op::OpKind;
use ampc_ir::{AttrValue, DType, Inserter, Module, Node, NodeSpec, Payload, Value};
use std::sync::Arc;

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
        let parameters: Vec<Value> = autodiff::with_role(module, PARAMETER).collect();
        let mut changed = false;
        for value in parameters {
            if module.constant(value).is_some() {
                expose(module, value, true).map_err(ParameterError::from)?;
                changed = true;
            }
        }
        Ok(Changed::when(changed))
    }
}

/// Makes a constant of the main graph an input of its name, on request in fp32 if it is stored in 16 bits.
///
/// # Errors
/// If the cast that its readers then need cannot be inserted.
pub(crate) fn expose(module: &mut Module, value: Value, widens: bool) -> Result<Value, InsertError> {
    let Some(payload) = module.constant(value).cloned() else { return Ok(value) };
    let main = module.main();
    let low = payload.dense().map(|data| data.dtype()).filter(|dtype| widens && dtype.is_low());
    let payload = match (low, payload) {
        (Some(_), Payload::Dense(data)) => {
            let to = ampc_ir::convert::Conversion { to: DType::F32, clamp: false };
            Payload::Dense(Arc::new(data.converted(to)))
        }
        (_, payload) => payload,
    };
    let name = ampc_ir::verify::name_of(module, value);
    let fresh = module.fresh_name(&name);
    let input = module.add_input(main, fresh, payload.ty(), Some(payload));
    let metadata = module.value(value).metadata.clone();
    module.set_value_metadata(input, metadata);
    let (kept, leaves) = (module.value(value).name, module.is_output(value));
    for role in module.graph_roles_mut(main).0.iter_mut() {
        role.values.iter_mut().filter(|v| **v == value).for_each(|v| *v = input);
    }
    let read = match low {
        Some(low) => narrowed(module, input, &name, low)?,
        None => input,
    };
    module.replace_value(value, read);
    module.erase_constant(value);
    if let Some(name) = kept {
        // What leaves the model keeps its name: of a weight that is stored low, that is the cast.
        module.set_value_name(if leaves { read } else { input }, name);
    }
    debug_assert!(matches!(module.value(input).def, Def::Input { .. }));
    Ok(input)
}

/// Makes an input of the main graph that has a value a constant of its name, which keeps the input's roles. On request, what
/// an inserted cast to 16 bits makes of it for all of its readers becomes that constant.
pub(crate) fn conceal(module: &mut Module, input: Value, narrows: bool) -> Value {
    let Def::Input { default: Some(payload), .. } = &module.value(input).def else { return input };
    let (main, mut payload) = (module.main(), payload.clone());
    let (name, mut read) = (ampc_ir::verify::name_of(module, input), input);
    if let (true, Some((cast, to)), Payload::Dense(data)) = (narrows, only_cast(module, input), &payload) {
        payload = Payload::Dense(Arc::new(data.converted(ampc_ir::convert::Conversion { to, clamp: false })));
        read = module.node(cast).result(0).unwrap_or(input);
    }
    let fresh = module.fresh_name(&name);
    let constant = module.add_constant(main, fresh, payload);
    let metadata = module.value(input).metadata.clone();
    module.set_value_metadata(constant, metadata);
    for role in module.graph_roles_mut(main).0.iter_mut() {
        role.values.iter_mut().filter(|v| **v == input).for_each(|v| *v = constant);
    }
    module.replace_value(read, constant);
    if let Some((cast, _)) = module.producer(read) {
        module.erase_node(cast);
    }
    let kept = module.value(input).name;
    module.erase_input(input);
    if let Some(name) = kept {
        module.set_value_name(constant, name);
    }
    constant
}

/// The inserted cast to 16 bits that alone reads a value, and what to.
pub(crate) fn only_cast(module: &Module, value: Value) -> Option<(Node, DType)> {
    let mut readers = module.uses(value).map(|(node, _)| node);
    let (Some(node), None) = (readers.next(), readers.next()) else { return None };
    let data = module.node(node);
    let is_inserted = data.provenance == Provenance::Inserted
        && data.schema().is_some_and(|schema| schema.kind == OpKind::Cast);
    let to = data.result(0).filter(|&result| !module.is_output(result))?;
    let to = module.value(to).ty.dtype().filter(|dtype| dtype.is_low())?;
    (is_inserted && !module.is_output(value)).then_some((node, to))
}

/// The value for readers of a weight that a file stores low: a cast of the fp32 weight, which is exact at
/// first.
fn narrowed(module: &mut Module, weight: Value, name: &str, low: DType) -> Result<Value, InsertError> {
    let (main, result) = (module.main(), module.fresh_name(&format!("{name}.{low}")));
    let mut inserter = Inserter::new(module, main, Position::First);
    inserter.provenance = Provenance::Inserted;
    let spec = NodeSpec::new(OpKind::Cast, &[weight]).result_name(result);
    let [read] = inserter.insert(spec.attr("to", AttrValue::Int(i64::from(low.number()))))?;
    Ok(read)
}
