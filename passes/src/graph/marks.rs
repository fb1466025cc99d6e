//! The purpose of a node of a training step: two metadata entries, which texts, drawings and files show.
//!
//! ```text
//! %found_inf, %sumsq = ai.ampc::GradCheck(…) : f32, f32 meta {ampc.phase="opt", ampc.role="grad-check"}
//! ```

use ampc_ir::{Module, Node, Value};

/// The metadata key of the phase of a step to which a node belongs.
pub const PHASE: &str = "ampc.phase";

/// The metadata key of the purpose of a node.
pub const ROLE: &str = "ampc.role";

/// A phase of a training step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// The forward pass and the loss. Most of its nodes have no entry.
    Forward,
    /// The gradients.
    Backward,
    /// The nodes after the gradients: their check, the optimizer, and the next state.
    Update,
}

impl Phase {
    /// All phases, in the order in which they run.
    pub const ALL: [Phase; 3] = [Phase::Forward, Phase::Backward, Phase::Update];

    /// The spelling of the phase in metadata.
    pub const fn spelling(self) -> &'static str {
        match self {
            Phase::Forward => "fwd",
            Phase::Backward => "bwd",
            Phase::Update => "opt",
        }
    }
}

/// The purpose of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Computes the loss, in fp32.
    Loss,
    /// Makes the factor that undoes the loss scale.
    Unscale,
    /// Checks that all gradients are finite, as a condition of the step.
    GradCheck,
    /// Makes the factor that clips gradients.
    Clip,
    /// Computes the next value of a weight and of its states.
    MasterWeight,
    /// Makes the next running statistics.
    RunningStatistics,
    /// Counts steps.
    Step,
    /// Makes the next loss scale.
    LossScale,
    /// Makes the next seed of dropouts.
    DropoutSeed,
    /// Makes the next offset of dropouts.
    DropoutOffset,
    /// Computes an activation again, for gradients.
    Recompute,
}

impl Purpose {
    /// The spelling of the purpose in metadata.
    pub const fn spelling(self) -> &'static str {
        match self {
            Purpose::Loss => "loss",
            Purpose::Unscale => "unscale",
            Purpose::GradCheck => "grad-check",
            Purpose::Clip => "clip",
            Purpose::MasterWeight => "master-weight",
            Purpose::RunningStatistics => "running-statistics",
            Purpose::Step => "step",
            Purpose::LossScale => "loss-scale",
            Purpose::DropoutSeed => "dropout-seed",
            Purpose::DropoutOffset => "dropout-offset",
            Purpose::Recompute => "recompute",
        }
    }
}

/// The mark that a pass puts on its nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    pub(crate) phase: Phase,
    pub(crate) purpose: Option<Purpose>,
}

impl Mark {
    /// The mark of nodes that compute a loss.
    pub(crate) const LOSS: Mark = Mark { phase: Phase::Forward, purpose: Some(Purpose::Loss) };

    /// The mark of gradients.
    pub(crate) const GRADIENT: Mark = Mark { phase: Phase::Backward, purpose: None };

    /// The mark of a node after the gradients.
    pub(crate) const fn update(purpose: Purpose) -> Mark {
        Mark { phase: Phase::Update, purpose: Some(purpose) }
    }

    /// Marks a node.
    pub(crate) fn put(self, module: &mut Module, node: Node) {
        let purpose = self.purpose.map(|purpose| (ROLE, purpose.spelling()));
        for (key, text) in std::iter::once((PHASE, self.phase.spelling())).chain(purpose) {
            let entry = (module.intern(key), module.intern(text));
            module.node_mut(node).metadata.push(entry);
        }
    }

    /// Marks the node that made these results.
    pub(crate) fn put_on_maker(self, module: &mut Module, results: &[Value]) {
        if let Some((node, _)) = results.first().and_then(|&value| module.producer(value)) {
            self.put(module, node);
        }
    }
}

/// The text of the purpose in the metadata of a node, including unknown words.
pub fn role_of(module: &Module, node: Node) -> Option<&str> {
    entry(module, node, ROLE)
}

/// The phase of a node; `None` if it has no entry, as most nodes of the forward pass.
pub fn phase_of(module: &Module, node: Node) -> Option<Phase> {
    let text = entry(module, node, PHASE)?;
    Phase::ALL.into_iter().find(|phase| phase.spelling() == text)
}

/// True if a node computes a loss, which stays in fp32.
pub(crate) fn is_loss(module: &Module, node: Node) -> bool {
    role_of(module, node) == Some(Purpose::Loss.spelling())
}

fn entry<'m>(module: &'m Module, node: Node, wanted: &str) -> Option<&'m str> {
    let mut entries = module.node(node).metadata.iter();
    entries.find(|&&(key, _)| module.text(key) == wanted).map(|&(_, value)| module.text(value))
}
