//! Losses and optimizers of a user: functions in Rust that build nodes, as
//! [`CustomGradients`](crate::training::autodiff::CustomGradients) are for gradients.
//!
//! A function computes the formula; the rest is as for the losses and optimizers of ampc: nodes have their
//! phase and role, a loss stays in fp32, a step whose gradients are not finite changes no state of an
//! optimizer, and low copies of weights, names of states and metadata are made for it. The text of a pipeline
//! has only the name of a custom loss or optimizer, so it cannot be parsed again.

pub use super::loss::custom::{CustomLoss, LossNodes};
pub use super::optimizer::custom::{CustomOptimizer, UpdateNodes};
pub use super::optimizer::function::FunctionError;
