//! Purpose of a node of a training step: two entries of its metadata, which texts, drawings and files show.
//!
//! ```text
//! %found_inf, %sumsq = ai.ampc::GradCheck(…) : f32, f32 meta {ampc.phase="opt", ampc.role="grad-check"}
//! ```

use ampc_ir::{Module, Node, Value};

/// The key of the metadata that says to which phase of a step a node belongs.
pub const PHASE: &str = "ampc.phase";

/// The key of the metadata with the purpose of a node.
pub const ROLE: &str = "ampc.role";

/// A phase of a training step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// The forward pass and the loss. Most of its nodes have no entry.
    Forward,
    /// The gradients.
    Backward,
    /// The nodes behind the gradients: their check, the optimizer, and the next state.
    Update,
}

impl Phase {
    /// All, in the order in which they run.
    pub const ALL: [Phase; 3] = [Phase::Forward, Phase::Backward, Phase::Update];

    /// Its spelling in metadata.
    pub const fn spelling(self) -> &'static str {
        match self {
            Phase::Forward => "fwd",
            Phase::Backward => "bwd",
            Phase::Update => "opt",
        }
    }
}

/// Purpose of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// It computes the loss, in fp32.
    Loss,
    /// It makes the factor that undoes the loss scale.
    Unscale,
    /// It finds whether all gradients are finite, so that the step is taken.
    GradCheck,
    /// It makes the factor that clips gradients.
    Clip,
    /// It computes the next value of a weight and of its states.
    MasterWeight,
    /// It makes the next running statistics.
    RunningStatistics,
    /// It counts steps.
    Step,
    /// It makes the next loss scale.
    LossScale,
    /// It makes the next seed of dropouts.
    DropoutSeed,
    /// It makes the next offset of dropouts.
    DropoutOffset,
    /// It computes an activation again, for gradients.
    Recompute,
}

impl Purpose {
    /// Its spelling in metadata.
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

/// Mark that a pass puts on its nodes.
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

/// The purpose of a node in its metadata, unknown words included.
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
