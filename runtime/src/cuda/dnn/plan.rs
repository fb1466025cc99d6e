//! The choice of an engine by cuDNN's heuristics, never by timing.
//!
//! Engine configurations are tried in the order of the heuristics (mode A, then the fallback). The plan is the first
//! that rounds as the backend promises, finalizes, and respects the workspace limit. So the plan depends only on the
//! graph, the device and the version of cuDNN.

use super::DnnError;
use super::descriptor::{Attribute as A, Descriptor, Kind};
use super::graph::Graph;
use super::problem::Problem;
use ampc_ir::DType;
use cudarc::cudnn::sys;
use std::fmt;

/// The maximum workspace of a plan in bytes.
pub const MOST_WORKSPACE: usize = 256 << 20;

/// The maximum number of configurations to request in each mode.
const MOST_CONFIGURATIONS: usize = 64;

/// Numerical notes of an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notes(u64);

/// Names of the notes by their numbers, which NVIDIA documents as `CUDNN_NUMERICAL_NOTE_…`.
const NOTES: [&str; 10] = [
    "tensor cores",
    "inputs converted down",
    "reduced-precision reduction",
    "FFT",
    "nondeterministic",
    "Winograd",
    "Winograd 4x4",
    "Winograd 6x6",
    "Winograd 13x13",
    "strict NaN propagation",
];

const TENSOR_CORE: u32 = 0;

/// Numerical notes for which an engine is rejected, each with the reason.
const REFUSED: [(u32, &str); 8] = [
    (1, "converts inputs down"),
    (2, "reduces in low precision"),
    // A NaN or infinity spreads over the tile of a transform, and errors are relative to the whole tile.
    (3, "computes by FFT"),
    (4, "is nondeterministic"),
    (5, "computes by Winograd"),
    (6, "computes by Winograd"),
    (7, "computes by Winograd"),
    (8, "computes by Winograd"),
];

impl Notes {
    fn of(engine: &Descriptor) -> Result<Notes, DnnError> {
        let bit = |note: &i32| u32::try_from(*note).ok().and_then(|note| 1u64.checked_shl(note));
        Ok(Notes(engine.numerical_notes()?.iter().filter_map(bit).fold(0, |all, bit| all | bit)))
    }

    fn has(self, note: u32) -> bool {
        self.0 >> note & 1 == 1
    }

    /// True if the engine uses tensor cores.
    pub fn has_tensor_cores(self) -> bool {
        self.has(TENSOR_CORE)
    }

    /// The reason to reject an engine with these notes for operands of `dtype`; `None` if it computes as the backend
    /// promises.
    pub fn refusal(self, dtype: DType, tf32: bool) -> Option<&'static str> {
        let is_tf32 = dtype == DType::F32 && self.has_tensor_cores();
        if is_tf32 && !tf32 {
            return Some("computes in TF32");
        }
        REFUSED.iter().find(|&&(note, _)| self.has(note)).map(|&(_, reason)| reason)
    }
}

impl fmt::Display for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = (0u32..).zip(NOTES).filter(|&(note, _)| self.has(note)).map(|(_, name)| name);
        let names: Vec<&str> = names.collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(", "))
    }
}

/// The device of a plan.
#[derive(Clone, Copy)]
pub(super) enum Target<'a> {
    /// A device that is present.
    Handle(sys::cudnnHandle_t),
    /// A described device.
    Properties(&'a Descriptor),
}

impl Target<'_> {
    fn handle(self) -> Option<sys::cudnnHandle_t> {
        match self {
            Target::Handle(handle) => Some(handle),
            Target::Properties(_) => None,
        }
    }
}

/// The engine of a plan, or a rejected engine.
#[derive(Clone, Debug)]
pub struct Engine {
    /// The index of the engine among those for the graph.
    pub index: i64,
    /// Its numerical notes.
    pub notes: Notes,
}

/// A finalized plan.
pub(super) struct Choice {
    pub(super) plan: Descriptor,
    pub(super) workspace: usize,
    pub(super) engine: Engine,
    /// Engines that the heuristics prefer but that are rejected, each with the reason.
    pub(super) refused: Vec<(Engine, String)>,
    /// The number of configurations tried, including that of the plan.
    pub(super) seen: usize,
    /// The descriptors that the plan refers to; `None` if the plan was deserialized.
    _parts: Option<(Graph, Descriptor)>,
}

impl Choice {
    /// A description of the algorithm: the engine, its notes and its workspace, which depends on the values of its
    /// knobs.
    pub(super) fn algorithm(&self) -> String {
        let Choice { engine: Engine { index, notes }, workspace, .. } = self;
        format!("engine {index}, notes {notes}, workspace {workspace}")
    }

    /// Serializes the plan after its numbers, for [`restored`](Choice::restored). `None` if cuDNN cannot serialize
    /// plans of the engine.
    pub(super) fn saved(&self) -> Option<Vec<u8>> {
        let json = self.plan.text(A::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION).ok()?;
        let Engine { index, notes } = &self.engine;
        let numbers = [
            index.cast_unsigned(),
            notes.0,
            u64::try_from(self.workspace).ok()?,
            u64::try_from(self.seen).ok()?,
        ];
        let numbers = numbers.iter().flat_map(|number| number.to_le_bytes());
        Some(numbers.chain(json).collect())
    }

    /// Deserializes a plan that was saved for the device of the handle. `None` if cuDNN rejects it.
    pub(super) fn restored(handle: sys::cudnnHandle_t, saved: &[u8]) -> Option<Choice> {
        let (numbers, json) = saved.split_at_checked(32)?;
        let (numbers, _) = numbers.as_chunks::<8>();
        let number = |at: usize| numbers.get(at).copied().map(u64::from_le_bytes);
        let plan = Descriptor::new(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
            .and_then(|plan| plan.set(A::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, &[handle]))
            .and_then(|plan| plan.set(A::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, json))
            .and_then(Descriptor::finalized)
            .ok()?;
        let workspace = usize::try_from(number(2)?).ok()?;
        let needed = plan.int(A::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE).ok()?;
        (usize::try_from(needed) == Ok(workspace)).then_some(Choice {
            plan,
            workspace,
            engine: Engine { index: number(0)?.cast_signed(), notes: Notes(number(1)?) },
            refused: Vec::new(),
            seen: usize::try_from(number(3)?).ok()?,
            _parts: None,
        })
    }
}

/// The conditions of a choice.
#[derive(Clone, Copy)]
pub(super) struct Conditions {
    /// True if f32 convolutions may use TF32.
    pub(super) tf32: bool,
    /// The alignment in bytes of the tensors.
    pub(super) alignment: u32,
    /// The maximum workspace in bytes.
    pub(super) workspace: usize,
    /// The number of configurations to skip, from the first on.
    pub(super) skipped: usize,
}

/// Chooses the plan of a problem; an error lists the refused engines.
///
/// # Errors
/// If cuDNN rejects the graph, or has no engine that computes it as the backend promises.
pub(super) fn choose(
    target: Target<'_>,
    problem: &Problem,
    conditions: Conditions,
) -> Result<Choice, DnnError> {
    type Mode = sys::cudnnBackendHeurMode_t;
    let graph = problem.graph(target.handle(), conditions.alignment)?;
    let (mut refused, mut seen, mut failure) = (Vec::new(), 0, None);
    for mode in [Mode::CUDNN_HEUR_MODE_A, Mode::CUDNN_HEUR_MODE_FALLBACK] {
        let configurations = match configurations(target, &graph.descriptor, mode) {
            Ok(configurations) => configurations,
            // The mode has no engines for the graph.
            Err(DnnError::Call { is_unsupported: true, .. }) => continue,
            Err(error) => return Err(error),
        };
        for configuration in configurations {
            seen += 1;
            if seen <= conditions.skipped {
                continue;
            }
            let engine = engine_of(&configuration)?;
            if let Some(reason) = engine.notes.refusal(problem.dtype(), conditions.tf32) {
                refused.push((engine, reason.to_owned()));
                continue;
            }
            match finalized(target, &configuration) {
                Ok((plan, workspace)) if workspace <= conditions.workspace => {
                    let _parts = Some((graph, configuration));
                    return Ok(Choice { plan, workspace, engine, refused, seen, _parts });
                }
                Ok((_, workspace)) => refused.push((engine, format!("{workspace} bytes of workspace"))),
                Err(error) if error.is_of_engine() => {
                    refused.push((engine, error.to_string()));
                    // If cuDNN claims to support an engine that fails, the device may be the cause.
                    if !error.is_unsupported() {
                        failure.get_or_insert(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
    Err(failure.unwrap_or(DnnError::NoEngine { refused }))
}

fn configurations(
    target: Target<'_>,
    graph: &Descriptor,
    mode: sys::cudnnBackendHeurMode_t,
) -> Result<Vec<Descriptor>, DnnError> {
    let mut heuristics = Descriptor::new(Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?
        .set_descriptors(A::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[graph])?
        .set(A::CUDNN_ATTR_ENGINEHEUR_MODE, &[mode])?;
    if let Target::Properties(properties) = target {
        heuristics = heuristics.set_descriptors(A::CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, &[properties])?;
    }
    heuristics.finalized()?.descriptors(
        A::CUDNN_ATTR_ENGINEHEUR_RESULTS,
        Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
        MOST_CONFIGURATIONS,
    )
}

fn engine_of(configuration: &Descriptor) -> Result<Engine, DnnError> {
    let engines = configuration.descriptors(
        A::CUDNN_ATTR_ENGINECFG_ENGINE,
        Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR,
        1,
    )?;
    let engine = engines.first().ok_or(DnnError::NoEngine { refused: Vec::new() })?;
    Ok(Engine { index: engine.int(A::CUDNN_ATTR_ENGINE_GLOBAL_INDEX)?, notes: Notes::of(engine)? })
}

fn finalized(target: Target<'_>, configuration: &Descriptor) -> Result<(Descriptor, usize), DnnError> {
    let plan = Descriptor::new(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?
        .set_descriptors(A::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[configuration])?;
    let plan = match target {
        Target::Handle(handle) => plan.set(A::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, &[handle])?,
        Target::Properties(properties) => {
            plan.set_descriptors(A::CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, &[properties])?
        }
    };
    let plan = plan.finalized()?;
    let workspace = plan.int(A::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?;
    Ok((plan, usize::try_from(workspace).unwrap_or(usize::MAX)))
}

#[cfg(test)]
mod tests {
    use super::Notes;
    use ampc_ir::DType;

    #[test]
    fn engines_that_round_otherwise_are_refused() {
        let refusals = |bits: u64| [DType::F32, DType::F16].map(|dtype| Notes(bits).refusal(dtype, false));
        assert_eq!(Notes(1).refusal(DType::F32, true), None);
        assert_eq!(refusals(0), [None, None]);
        assert_eq!(refusals(1), [Some("computes in TF32"), None]);
        assert_eq!(refusals(1 << 9), [None, None]);
        for note in 1..=8 {
            assert!(refusals(1 << note).iter().all(Option::is_some), "note {note}");
        }
        assert_eq!(Notes(0b10001).to_string(), "tensor cores, nondeterministic");
    }
}
