//! The interface of a step: names of its inputs and outputs, states and gradients among them.

use crate::graph::flow;
use crate::graph::marks::Mark;
use crate::pass::PassCx;
use ampc_ir::edit::Position;
use ampc_ir::inserter::InsertError;
use ampc_ir::op::OpKind;
use ampc_ir::verify::name_of;
use ampc_ir::{Inserter, Module, NodeSpec, Payload, Symbol, TensorData, Value};
use std::sync::Arc;

/// Adds a state to the step: an input whose default is the value that the state begins with.
pub(crate) fn state_input(module: &mut Module, name: Symbol, data: TensorData) -> Value {
    let (main, payload) = (module.main(), Payload::Dense(Arc::new(data)));
    module.add_input(main, name, payload.ty(), Some(payload))
}

/// Imports the operators of ampc into the main graph, unless the model does.
pub(crate) fn import_ampc(module: &mut Module) {
    let main = module.main();
    if module.opset(main, ampc_ir::bodies::DOMAIN).is_none() {
        module.import_opset(main, ampc_ir::bodies::DOMAIN, 1);
    }
}

/// Lets the gradient of a parameter leave the main graph as `NAME.grad`. A value that has to keep its name
/// leaves as an Identity of it: an input, a constant, or the gradient of two parameters, such as that of `a`
/// and `b` in `a + b`.
pub(crate) fn give_gradient(
    module: &mut Module,
    parameter: Value,
    gradient: Value,
) -> Result<(), InsertError> {
    let main = module.main();
    let wanted = format!("{}.grad", name_of(module, parameter));
    let has_name = name_of(module, gradient) == wanted;
    let given = if module.producer(gradient).is_none() || module.is_output(gradient) {
        if has_name {
            return Ok(());
        }
        let mut inserter = Inserter::new(module, main, Position::Last);
        let [copy] = inserter.insert(NodeSpec::new(OpKind::Identity, &[gradient]))?;
        Mark::GRADIENT.put_on_maker(module, &[copy]);
        copy
    } else {
        gradient
    };
    if given != gradient || !has_name {
        let name = public_name(module, &wanted);
        module.set_value_name(given, name);
    }
    let declared = module.value(given).ty.clone();
    module.add_output(main, given, declared);
    Ok(())
}

/// The name for an input or output of the step: `wanted` if [`free_name`] can make it available, else a fresh one.
pub(crate) fn public_name(module: &mut Module, wanted: &str) -> Symbol {
    free_name(module, wanted).unwrap_or_else(|other| other)
}

/// The same, with a warning if it is a fresh name.
pub(crate) fn public_name_or_warn(module: &mut Module, wanted: &str, cx: &mut PassCx<'_>) -> Symbol {
    free_name(module, wanted).unwrap_or_else(|other| {
        warn_of_name(wanted, module.text(other), cx);
        other
    })
}

/// The intended name of an input or output of the step, and its actual name.
pub(crate) type Renamed = (String, String);

/// The same, with a fresh name noted in `renamed`, for passes to warn of.
pub(crate) fn name_or_note(module: &mut Module, wanted: &str, renamed: &mut Vec<Renamed>) -> Symbol {
    free_name(module, wanted).unwrap_or_else(|other| {
        renamed.push((wanted.to_owned(), module.text(other).to_owned()));
        other
    })
}

/// Warns that an input or output of the step has another name than the documentation says.
pub(crate) fn warn_of_name(wanted: &str, found: &str, cx: &mut PassCx<'_>) {
    let message = format!(
        "the step's `{wanted}` is named `{found}`, because the model already has an input, output or constant `{wanted}`"
    );
    cx.warn("step.name", None, message);
}

/// Makes `wanted` available as the name of an input or output of the step: an inner value that has it is renamed. If an
/// input, output or constant of the model has it, a fresh name is returned, as an error.
pub(crate) fn free_name(module: &mut Module, wanted: &str) -> Result<Symbol, Symbol> {
    let Some(symbol) = module.symbol(wanted) else { return Ok(module.fresh_name(wanted)) };
    let main = module.graph(module.main());
    // A constant may be a parameter, whose name is that of a state.
    let public = main.inputs().iter().chain(main.constants()).copied();
    let public = public.chain(main.outputs().iter().map(|output| output.value));
    if public.into_iter().any(|value| module.value(value).name == Some(symbol)) {
        return Err(module.fresh_name(wanted));
    }
    let mut inside = Vec::new();
    for graph in flow::graphs(module) {
        let data = module.graph(graph);
        let sources = data.inputs().iter().chain(data.constants()).copied();
        let results =
            module.nodes(graph).flat_map(|node| module.node(node).results().iter().copied().flatten());
        inside.extend(sources.chain(results).filter(|&value| module.value(value).name == Some(symbol)));
    }
    for value in inside {
        let other = module.fresh_name(wanted);
        module.set_value_name(value, other);
    }
    Ok(symbol)
}
