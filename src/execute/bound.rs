//! How far off a value may be: a share of its largest element, and what rounding alone makes of it.
//!
//! ```text
//! bound(v)  =  of_max · max|v|  +  noise(v)
//! noise(v)  =  u · max|v|  +  s  +  carried(v)
//! ```
//!
//! with `u` the unit roundoff of the element type of `v` and `s` its least spacing: one rounding of `v` itself (2^-24
//! and 1.4e-45 for fp32). *Carried* is what operands bring whose own rounding does not shrink with them: the sum of
//! their noise for Add, Sub and Sum, the largest for what keeps every element (Reshape, Transpose, Concat, Cast …), and
//! 0 for everything else. Inputs and constants are what they are and have none.
//!
//! So it is nearly nothing beside a share of the largest element, but where a sum cancels: what is left of two numbers
//! of magnitude 100 is known to 2 · 6e-6, however small it is, and if it is 0, nothing else may be asked of it. Errors
//! are left out wherever a product, a function or a choice is between, so that this is at most what fp32 makes of a
//! value, and never a number that dwarfs a small output.

use crate::execute::scope::is_nested;
use ampc_ir::module::Op;
use ampc_ir::op::{OpKind, adds};
use ampc_ir::{DType, Module, Node, Value};
use ampc_runtime::compare::largest_magnitude;
use ampc_runtime::cpu::NodeObserver;
use ampc_runtime::float::Format;
use ampc_runtime::{Data, DataRef, Tolerance};
use rustc_hash::FxHashMap;

/// What a node makes of the noise of its operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Carries {
    /// It adds up.
    Sum,
    /// Every element is there in the result.
    Largest,
    Nothing,
}

fn carries(module: &Module, node: Node) -> Carries {
    if is_nested(module, node) || matches!(module.node(node).op, Op::Custom { .. }) {
        return Carries::Nothing;
    }
    match module.node(node).schema().map(|schema| schema.kind) {
        Some(kind) if adds(kind) => Carries::Sum,
        Some(
            OpKind::Cast
            | OpKind::CastLike
            | OpKind::Concat
            | OpKind::DepthToSpace
            | OpKind::Expand
            | OpKind::Flatten
            | OpKind::Identity
            | OpKind::Neg
            | OpKind::Reshape
            | OpKind::ReverseSequence
            | OpKind::SpaceToDepth
            | OpKind::Squeeze
            | OpKind::Tile
            | OpKind::Transpose
            | OpKind::Unsqueeze,
        ) => Carries::Largest,
        _ => Carries::Nothing,
    }
}

/// What the results of a node carry, from the noise of its operands.
pub(super) fn carried(module: &Module, node: Node, noise_of: impl Fn(Value) -> f64) -> f64 {
    let operands = module.node(node).operands().iter().flatten().map(|&value| noise_of(value));
    match carries(module, node) {
        Carries::Sum => operands.sum(),
        Carries::Largest => operands.fold(0.0, f64::max),
        Carries::Nothing => 0.0,
    }
}

/// What one rounding to an element type is: the share of the largest element, and what is left of one that is 0.
fn rounding(dtype: DType) -> (f64, f64) {
    Format::of(dtype).map_or((0.0, 0.0), |format| (format.unit_roundoff(), format.least_spacing()))
}

fn dtype_of(value: &Data) -> Option<DType> {
    match value {
        Data::Tensor(tensor) => Some(tensor.dtype()),
        Data::Sequence(list) => list.items.first().and_then(dtype_of),
        Data::Optional(maybe) => maybe.value.as_deref().and_then(dtype_of),
    }
}

/// Whether the noise of a value counts: where a share of the largest element is allowed. Who allows none, or a share of
/// each element, gets what was asked for.
fn counts_noise(tolerance: &Tolerance) -> bool {
    tolerance.of_max > 0.0
}

/// The tolerance for a value that carries this much.
pub(super) fn of_value(tolerance: &Tolerance, want: &Data, carried: f64) -> Tolerance {
    let Some(dtype) = dtype_of(want).filter(|_| counts_noise(tolerance)) else { return *tolerance };
    let (roundoff, least) = rounding(dtype);
    Tolerance {
        abs: tolerance.abs + least + carried,
        of_max: tolerance.of_max + roundoff,
        rel: tolerance.rel,
    }
}

/// The noise of a value of which the largest magnitude is known.
pub(super) fn noise(want: &Data, max_want: f64, carried: f64) -> f64 {
    let (roundoff, least) = dtype_of(want).map_or((0.0, 0.0), rounding);
    let noise = roundoff * max_want + least + carried;
    if noise.is_finite() { noise } else { f64::MAX }
}

/// The largest magnitude of a value.
pub(super) fn magnitude(value: &Data) -> f64 {
    match value {
        Data::Tensor(tensor) => largest_magnitude(tensor),
        Data::Sequence(list) => list.items.iter().map(magnitude).fold(0.0, f64::max),
        Data::Optional(maybe) => maybe.value.as_deref().map_or(0.0, magnitude),
    }
}

/// Measures what the outputs of a run carry.
pub(super) struct Meter<'m> {
    module: &'m Module,
    /// The noise of values that an output may carry, as far as they are computed.
    noises: FxHashMap<Value, Option<f64>>,
}

impl<'m> Meter<'m> {
    pub(super) fn new(module: &'m Module) -> Meter<'m> {
        let mut noises = FxHashMap::default();
        let mut work: Vec<Value> = module.graph(module.main()).outputs().iter().map(|o| o.value).collect();
        while let Some(value) = work.pop() {
            let Some((node, _)) = module.producer(value) else { continue };
            if carries(module, node) == Carries::Nothing {
                continue;
            }
            let operands = module.node(node).operands().iter().copied().flatten();
            work.extend(operands.filter(|&operand| noises.insert(operand, None).is_none()));
        }
        Meter { module, noises }
    }

    fn carried(&self, node: Node) -> f64 {
        carried(self.module, node, |value| self.noises.get(&value).copied().flatten().unwrap_or(0.0))
    }

    /// What each output carries.
    pub(super) fn outputs(&self) -> Vec<f64> {
        let outputs = self.module.graph(self.module.main()).outputs().iter();
        outputs.map(|o| self.module.producer(o.value).map_or(0.0, |(node, _)| self.carried(node))).collect()
    }
}

impl NodeObserver for Meter<'_> {
    fn value(&mut self, node: Node, slot: usize, data: DataRef<'_>) {
        let Some(value) = self.module.node(node).result(slot) else { return };
        if !self.noises.contains_key(&value) {
            return;
        }
        // Where there is no memory to look at it, it has no noise.
        let noise = data.to_data().ok().map(|data| noise(&data, magnitude(&data), self.carried(node)));
        self.noises.insert(value, noise);
    }
}
