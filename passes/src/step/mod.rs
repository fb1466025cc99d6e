//! A training step: what stands around a forward graph and its gradients.
//!
//! A step takes data and state and gives the loss and the next state; nothing is kept anywhere else. The passes in their
//! order, of which those of a rewrite between the second and the third are left out for a step in fp32:
//!
//! 1. [`parameters`](crate::parameters) says what is trained;
//! 2. [`loss`] adds a loss to an output, unless an output is one, and [`stable-loss`](stable) has it stay finite;
//! 3. [`expose-parameters`](crate::parameters::ExposeParameters): weights become inputs;
//! 4. [`scale-loss`](loss_scale): the loss scale becomes an input, and the gradient of the loss;
//! 5. [`autodiff`](crate::autodiff): the gradients;
//! 6. [`update`]: one look at all gradients, then the optimizer, parameter by parameter, and the next loss scale.

pub mod custom;
pub mod loss;
pub mod loss_scale;
pub mod stable;
pub mod update;

pub use self::custom::{CustomLoss, CustomOptimizer};
pub use self::loss::{Loss, LossKind};
pub use self::loss_scale::{Dynamic, OnOverflow, Scaler};
pub use self::stable::StableLoss;
pub use self::update::{Optimizer, OptimizerKind, Update};

use ampc_ir::{Module, Node};

/// The key of the node metadata that says what a node is for.
pub const ROLE: &str = "ampc.role";

/// Whether a node computes a loss, which stays in fp32.
pub(crate) fn is_loss(module: &Module, node: Node) -> bool {
    let metadata = &module.node(node).metadata;
    !metadata.is_empty()
        && metadata.iter().any(|&(key, value)| module.text(key) == ROLE && module.text(value) == LOSS_ROLE)
}

/// The role of nodes that compute a loss.
pub(crate) const LOSS_ROLE: &str = "loss";

/// Gives a node its phase (`bwd`, `opt`) and role, which text, drawings and files show.
pub(crate) fn mark(module: &mut Module, node: Node, phase: &str, role: &str) {
    for (key, value) in [(crate::autodiff::PHASE, phase), (ROLE, role)] {
        let entry = (module.intern(key), module.intern(value));
        module.node_mut(node).metadata.push(entry);
    }
}
