//! The bound on the error of a value: relative to its largest element, plus the rounding noise of the model itself.
//!
//! ```text
//! bound(v)  =  of_max · max|v|  +  noise(v)
//! noise(v)  =  u · max|v|  +  s  +  propagated(v)
//! ```
//!
//! with `u` the unit roundoff of the element type of `v` and `s` its least spacing (2^-24 and 1.4e-45 for fp32): one
//! rounding of `v` itself. *Propagated* is the noise of its operands: their sum for Add, Sub and Sum, the maximum for
//! operators that move every element (Reshape, Transpose, Concat, Cast …), and 0 for all other operators. Inputs
//! and constants have no noise.
//!
//! Relative to the largest element, noise is negligible except where a sum cancels. For example, in fp32:
//!
//! ```text
//! %a = Add(%x, %y)        at most 100: noise 6e-6
//! %b = Add(%x, %z)        at most 100: noise 6e-6
//! %d = Sub(%a, %b)        at most 1e-5: noise 1.2e-5, all of it propagated
//! ```
//!
//! so `%d` cannot be accurate. Errors that propagate through products, functions or choices are ignored, so noise is
//! at most the fp32 rounding error of a value, and never much larger than a small output.

use crate::execute::scope::is_nested;
use ampc_ir::module::Op;
use ampc_ir::op::{adds, moves_all};
use ampc_ir::{DType, Module, Node, Value};
use ampc_runtime::compare::largest_magnitude;
use ampc_runtime::float::Format;
use ampc_runtime::session::NodeObserver;
use ampc_runtime::{Data, DataRef, Tolerance};
use rustc_hash::FxHashMap;

/// The propagation of the noise of operands by a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Propagation {
    /// The noises of operands add up.
    Sum,
    /// The result has every element, and therefore the largest noise.
    Largest,
    /// The noise is ignored.
    Nothing,
}

fn propagation(module: &Module, node: Node) -> Propagation {
    if is_nested(module, node) || matches!(module.node(node).op, Op::Custom { .. }) {
        return Propagation::Nothing;
    }
    match module.node(node).schema().map(|schema| schema.kind) {
        Some(kind) if adds(kind) => Propagation::Sum,
        Some(kind) if moves_all(kind) => Propagation::Largest,
        Some(_) | None => Propagation::Nothing,
    }
}

/// The noise that a node propagates to its results, from that of its operands.
pub(super) fn propagated(module: &Module, node: Node, noise_of: impl Fn(Value) -> f64) -> f64 {
    let operands = module.node(node).operands().iter().flatten().map(|&value| noise_of(value));
    match propagation(module, node) {
        Propagation::Sum => operands.sum(),
        Propagation::Largest => operands.fold(0.0, f64::max),
        Propagation::Nothing => 0.0,
    }
}

/// The error of one rounding to an element type: a part relative to the largest element, and an absolute part.
fn rounding(dtype: DType) -> (f64, f64) {
    Format::of(dtype).map_or((0.0, 0.0), |format| (format.unit_roundoff(), format.least_spacing()))
}

fn dtype_of(value: &Data) -> Option<DType> {
    match value {
        Data::Tensor(tensor) => Some(tensor.dtype()),
        Data::Device(tensor) => Some(tensor.view().dtype),
        Data::Sequence(list) => list.items().first().and_then(dtype_of),
        Data::Optional(maybe) => maybe.value.as_deref().and_then(dtype_of),
    }
}

/// True if the tolerance allows for noise: if it has a part relative to the largest element. Other tolerances are
/// exact.
fn counts_noise(tolerance: &Tolerance) -> bool {
    tolerance.of_max > 0.0
}

/// The tolerance for a value with this much propagated noise.
pub(super) fn of_value(tolerance: &Tolerance, want: &Data, propagated: f64) -> Tolerance {
    let Some(dtype) = dtype_of(want).filter(|_| counts_noise(tolerance)) else { return *tolerance };
    let (roundoff, least) = rounding(dtype);
    Tolerance {
        abs: tolerance.abs + least + propagated,
        of_max: tolerance.of_max + roundoff,
        rel: tolerance.rel,
    }
}

/// The noise of a value whose largest magnitude is known.
pub(super) fn noise(want: &Data, max_want: f64, propagated: f64) -> f64 {
    let (roundoff, least) = dtype_of(want).map_or((0.0, 0.0), rounding);
    let noise = roundoff * max_want + least + propagated;
    if noise.is_finite() { noise } else { f64::MAX }
}

/// The largest magnitude of a value in host memory; 0 for a tensor on a device, so that the bound is strict.
pub(super) fn magnitude(value: &Data) -> f64 {
    match value {
        Data::Tensor(tensor) => largest_magnitude(tensor),
        Data::Device(_) => 0.0,
        Data::Sequence(list) => list.items().iter().map(magnitude).fold(0.0, f64::max),
        Data::Optional(maybe) => maybe.value.as_deref().map_or(0.0, magnitude),
    }
}

/// Measures the noise that is propagated to the outputs in a run.
pub(super) struct Meter<'m> {
    module: &'m Module,
    /// The known noises of the values from which noise propagates to an output.
    noises: FxHashMap<Value, Option<f64>>,
}

impl<'m> Meter<'m> {
    pub(super) fn new(module: &'m Module) -> Meter<'m> {
        let mut noises = FxHashMap::default();
        let mut work: Vec<Value> = module.graph(module.main()).outputs().iter().map(|o| o.value).collect();
        while let Some(value) = work.pop() {
            let Some((node, _)) = module.producer(value) else { continue };
            if propagation(module, node) == Propagation::Nothing {
                continue;
            }
            let operands = module.node(node).operands().iter().copied().flatten();
            work.extend(operands.filter(|&operand| noises.insert(operand, None).is_none()));
        }
        Meter { module, noises }
    }

    fn propagated(&self, node: Node) -> f64 {
        propagated(self.module, node, |value| self.noises.get(&value).copied().flatten().unwrap_or(0.0))
    }

    /// The noise propagated to each output.
    pub(super) fn outputs(&self) -> Vec<f64> {
        let outputs = self.module.graph(self.module.main()).outputs().iter();
        outputs
            .map(|o| self.module.producer(o.value).map_or(0.0, |(node, _)| self.propagated(node)))
            .collect()
    }
}

impl NodeObserver for Meter<'_> {
    fn value(&mut self, node: Node, slot: usize, data: DataRef<'_>) {
        let Some(value) = self.module.node(node).result(slot) else { return };
        if !self.noises.contains_key(&value) {
            return;
        }
        // If the allocation of a copy fails, the value counts as free of noise.
        let noise = data.to_data().ok().map(|data| noise(&data, magnitude(&data), self.propagated(node)));
        self.noises.insert(value, noise);
    }
}
