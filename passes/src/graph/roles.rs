//! Roles of values of the main graph in training: parameters, the loss, and their gradients.

use ampc_ir::{Module, Value};

/// The role of values that need a gradient.
pub const PARAMETER: &str = "parameter";
/// The role of the loss.
pub const LOSS: &str = "loss";
/// The role of a value through which no gradient passes.
pub const STOP: &str = "stop";
/// The role of the gradient of the loss.
pub const SEED: &str = "seed";
/// The role of a parameter and its gradient.
pub const GRAD: &str = "grad";

/// The values of a role of the main graph, in order.
pub fn with_role<'m>(module: &'m Module, role: &'m str) -> impl Iterator<Item = Value> + 'm {
    let roles = &module.graph(module.main()).roles;
    roles.iter().filter(move |r| module.text(r.name) == role).flat_map(|r| r.values.iter().copied())
}
