//! A training step: what stands around a forward graph and its gradients.
//!
//! A step takes data and state and gives the loss and the next state; nothing is kept anywhere else. The passes in their
//! order, of which those of a rewrite between the third and the fourth are left out for a step in fp32:
//!
//! 1. [`parameters`](crate::parameters) says what is trained;
//! 2. [`loss`] adds a loss to an output, unless an output is one, and [`stable-loss`](stable) has it stay finite;
//! 3. [`philox-dropout`](dropout): dropouts draw from a generator whose state the step carries;
//! 4. [`expose-parameters`](crate::parameters::ExposeParameters): weights become inputs;
//! 5. [`scale-loss`](loss_scale): the loss scale becomes an input, and the gradient of the loss;
//! 6. [`autodiff`](crate::autodiff): the gradients;
//! 7. [`update`]: one look at all gradients, then the optimizer, parameter by parameter, and the next loss scale.
//!
//! [`inference`] goes the other way: of a step the forward model stays. [`accuracy`] adds to what evaluates a loss how often
//! the class of the label is chosen.

pub mod accuracy;
pub mod custom;
pub mod dropout;
pub mod inference;
pub mod loss;
pub mod loss_scale;
pub mod optimizer;
pub mod spec;
pub mod stable;
pub mod state;
mod statistics;
pub mod update;

pub use self::custom::{CustomLoss, CustomOptimizer};
pub use self::dropout::PhiloxDropout;
pub use self::inference::Inference;
pub use self::loss::{Loss, LossKind};
pub use self::loss_scale::{Dynamic, OnOverflow, Scaler};
pub use self::optimizer::{Optimizer, OptimizerKind};
pub use self::spec::SpecError;
pub use self::stable::StableLoss;
pub use self::state::{StateEntry, StateKind, states_of};
pub use self::update::Update;

pub use crate::marks::{PHASE, Phase, Purpose, ROLE, phase_of, role_of};

use crate::flow;
use crate::marks::Mark;
use crate::pass::PassCx;
use ampc_ir::edit::Position;
use ampc_ir::inserter::InsertError;
use ampc_ir::op::OpKind;
use ampc_ir::verify::name_of;
use ampc_ir::{Inserter, Module, NodeSpec, Symbol, Value};

/// Lets the gradient of a parameter leave the main graph as `NAME.grad`. What has to keep its name leaves as an Identity of
/// it: an input, a constant, or the gradient of two parameters, such as that of `a` and `b` in `a + b`.
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

/// The name for an input or output of the step: the one that is wanted, which values inside of the model that have it give
/// up, or another one if an input, output or constant of the model has it.
pub(crate) fn public_name(module: &mut Module, wanted: &str) -> Symbol {
    free_name(module, wanted).unwrap_or_else(|other| other)
}

/// The same, with a warning if it is another name.
pub(crate) fn public_name_or_warn(module: &mut Module, wanted: &str, cx: &mut PassCx<'_>) -> Symbol {
    free_name(module, wanted).unwrap_or_else(|other| {
        warn_of_name(wanted, module.text(other), cx);
        other
    })
}

/// Tells the user that something of a step has another name than steps promise.
fn warn_of_name(wanted: &str, found: &str, cx: &mut PassCx<'_>) {
    let message = format!(
        "what steps call `{wanted}` is called `{found}` in this one: the model has an input, output or constant `{wanted}`"
    );
    cx.warn("step.name", None, message);
}

/// The name that is wanted, or another one as an error.
fn free_name(module: &mut Module, wanted: &str) -> Result<Symbol, Symbol> {
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
