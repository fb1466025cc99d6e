//! Weights as inputs with a default, and as constants again.

use ampc_ir::edit::Position;
use ampc_ir::inserter::InsertError;
use ampc_ir::module::{Def, Provenance};
use ampc_ir::op::OpKind;
use ampc_ir::{AttrValue, DType, Inserter, Module, Node, NodeSpec, Payload, Value};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Makes constants of the main graph inputs of their names, with `widens` in fp32 if they are stored in 16 bits. Returns
/// the inputs in the order of the constants; a value that is no constant stands for itself.
///
/// # Errors
/// If the cast that the readers of a widened constant need cannot be inserted.
pub(crate) fn expose(module: &mut Module, values: &[Value], widens: bool) -> Result<Vec<Value>, InsertError> {
    let mut names = Vec::new();
    let mut input_of: FxHashMap<Value, Value> = FxHashMap::default();
    for &value in values {
        let Some(payload) = module.constant(value).cloned().filter(|_| !input_of.contains_key(&value)) else {
            continue;
        };
        let leaves = module.is_output(value);
        let (input, read) = exposed(module, value, payload, widens)?;
        // An output keeps its name: the cast is the output if the weight is stored in 16 bits.
        names.extend(module.value(value).name.map(|name| (if leaves { read } else { input }, name)));
        input_of.insert(value, input);
    }
    module.erase_constants(module.main(), &input_of.keys().copied().collect());
    for (value, name) in names {
        module.set_value_name(value, name);
    }
    Ok(values.iter().map(|value| input_of.get(value).copied().unwrap_or(*value)).collect())
}

/// Adds an input for a constant. Returns the input, and the value that the readers of the constant now read.
fn exposed(
    module: &mut Module,
    value: Value,
    payload: Payload,
    widens: bool,
) -> Result<(Value, Value), InsertError> {
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
    module.move_roles(value, input);
    let read = match low {
        Some(low) => narrowed(module, input, &name, low)?,
        None => input,
    };
    module.replace_value(value, read);
    Ok((input, read))
}

/// Makes inputs of the main graph that have a default constants of their names and roles. With `narrows`, the result of an
/// inserted cast to 16 bits that is the only reader of an input becomes the constant. Returns the constants in the order
/// of the inputs; any other value is returned unchanged.
pub(crate) fn conceal(module: &mut Module, inputs: &[Value], narrows: bool) -> Vec<Value> {
    let mut names = Vec::new();
    let mut constant_of: FxHashMap<Value, Value> = FxHashMap::default();
    for &input in inputs {
        let Def::Input { default: Some(payload), .. } = &module.value(input).def else { continue };
        if constant_of.contains_key(&input) {
            continue;
        }
        let payload = payload.clone();
        let constant = concealed(module, input, payload, narrows);
        names.extend(module.value(input).name.map(|name| (constant, name)));
        constant_of.insert(input, constant);
    }
    module.erase_inputs(module.main(), &constant_of.keys().copied().collect());
    for (constant, name) in names {
        module.set_value_name(constant, name);
    }
    inputs.iter().map(|input| constant_of.get(input).copied().unwrap_or(*input)).collect()
}

/// Adds a constant for an input, which the readers of the input read from now on.
fn concealed(module: &mut Module, input: Value, mut payload: Payload, narrows: bool) -> Value {
    let main = module.main();
    let (name, mut read) = (ampc_ir::verify::name_of(module, input), input);
    if let (true, Some((cast, to)), Payload::Dense(data)) = (narrows, only_cast(module, input), &payload) {
        payload = Payload::Dense(Arc::new(data.converted(ampc_ir::convert::Conversion { to, clamp: false })));
        read = module.node(cast).result(0).unwrap_or(input);
    }
    let fresh = module.fresh_name(&name);
    let constant = module.add_constant(main, fresh, payload);
    let metadata = module.value(input).metadata.clone();
    module.set_value_metadata(constant, metadata);
    module.move_roles(input, constant);
    module.replace_value(read, constant);
    if let Some((cast, _)) = module.producer(read) {
        module.erase_node(cast);
    }
    constant
}

/// The inserted cast to 16 bits that is the only reader of a value, and its format.
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
