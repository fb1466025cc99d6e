//! Training steps: parameters, gradients, optimizer and loss scale, added to a forward graph.

pub mod autodiff;
pub mod build;
pub mod evaluate_constants;
pub(crate) mod inputs;
pub(crate) mod names;
pub mod parameters;
pub mod recompute;
pub mod step;
