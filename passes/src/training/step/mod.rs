//! A training step: a function from data and state to the loss and the next state.
//!
//! `ampc train-step` runs these passes (passes of a precision rewrite run between 3 and 4, unless `--fp32`):
//!
//! 1. [`parameters`](crate::training::parameters) decides which constants are trained;
//! 2. [`loss`] adds a loss to an output, unless an output is the loss, and [`stable-loss`](stable) rewrites logarithms that
//!    could become -inf;
//! 3. [`philox-dropout`](dropout) makes dropouts draw from a generator whose state is part of the step's;
//! 4. [`expose-parameters`](crate::training::parameters::ExposeParameters) makes the parameters inputs;
//! 5. [`scale-loss`](loss_scale) makes the loss scale an input, and the gradient of the loss;
//! 6. [`autodiff`](crate::training::autodiff) adds the gradients;
//! 7. [`update`] adds the gradient check, the optimizers and the next loss scale;
//! 8. [`avoid-fusions`](avoid_fusions) rewrites nodes that an optimizer of ONNX Runtime would compute wrong;
//! 9. [`dce`](crate::casts::dce), then [`recompute`](crate::training::recompute), which recomputes cheap activations in the backward part
//!    where that lowers peak memory.
//!
//! [`inference`] extracts the forward model from a step. [`accuracy`] extends the model that evaluates the loss: it counts
//! how often the class of the label has the largest score.

pub mod accuracy;
pub mod avoid_fusions;
mod claims;
pub mod custom;
pub mod dropout;
mod entry;
mod forward;
pub mod inference;
pub mod loss;
pub mod loss_scale;
pub mod optimizer;
pub mod spec;
pub mod stable;
pub mod state;
mod statistics;
pub mod update;

pub use self::avoid_fusions::AvoidFusions;
pub use self::custom::{CustomLoss, CustomOptimizer};
pub use self::dropout::PhiloxDropout;
pub use self::inference::Inference;
pub use self::loss::{Loss, LossKind};
pub use self::loss_scale::{Dynamic, OnOverflow, Scaler};
pub use self::optimizer::{Optimizer, OptimizerKind};
pub use self::spec::SpecError;
pub use self::stable::StableLoss;
pub use self::state::{StateEntry, StateKind, restore_states, states_of};
pub use self::update::Update;

pub use crate::graph::marks::{PHASE, Phase, Purpose, ROLE, phase_of, role_of};
