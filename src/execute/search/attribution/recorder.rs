//! The roundings of values and their adjoints, met as a run computes them.

use ampc_ir::module::Payload;
use ampc_ir::{DType, Module, Node, Value};
use ampc_passes::autodiff::adjoints::Adjoints;
use ampc_runtime::host::TensorRef;
use ampc_runtime::session::{NodeObserver, Watch};
use ampc_runtime::{DataRef, HostTensor};
use half::{bf16, f16};
use rustc_hash::FxHashMap;

/// Sees the values and adjoints of a run, and sums their products up. A rounding is in memory from the computation of its
/// value to that of the adjoint.
pub(super) struct Recorder<'m> {
    module: &'m Module,
    to: DType,
    /// The values of each adjoint.
    of_adjoint: FxHashMap<Value, Vec<Value>>,
    /// The roundings of values whose adjoint has not been seen.
    roundings: FxHashMap<Value, Vec<f32>>,
    /// The values with an adjoint.
    wanted: FxHashMap<Value, Value>,
    squares: Vec<(Value, f64)>,
    /// Adjoints that are inputs, which are seen before the values.
    early: FxHashMap<Value, Vec<f32>>,
}

impl<'m> Recorder<'m> {
    pub(super) fn new(module: &'m Module, to: DType, adjoints: &Adjoints) -> Recorder<'m> {
        let mut of_adjoint: FxHashMap<Value, Vec<Value>> = FxHashMap::default();
        for &(value, adjoint) in &adjoints.of {
            of_adjoint.entry(adjoint).or_default().push(value);
        }
        let wanted = adjoints.of.iter().copied().collect();
        let (roundings, early) = Default::default();
        Recorder { module, to, of_adjoint, roundings, wanted, squares: Vec::new(), early }
    }

    /// Sees a value: an input, or a result of a node.
    pub(super) fn see(&mut self, value: Value, tensor: TensorRef<'_>) {
        if tensor.dtype() != DType::F32 {
            return;
        }
        if let Some(&adjoint) = self.wanted.get(&value) {
            let rounding = roundings(tensor, self.to);
            match self.early.get(&adjoint) {
                Some(early) => self.squares.push((value, square(early, &rounding))),
                None => {
                    self.roundings.insert(value, rounding);
                }
            }
        }
        let Some(values) = self.of_adjoint.remove(&value) else { return };
        let adjoint: Vec<f32> = tensor.f32s().into_iter().flatten().collect();
        let mut is_early = false;
        for value in values {
            let rounding = self.roundings.remove(&value).or_else(|| self.of_constant(value));
            match rounding {
                Some(rounding) => self.squares.push((value, square(&adjoint, &rounding))),
                None => is_early = true,
            }
        }
        if is_early {
            self.early.insert(value, adjoint);
        }
    }

    fn of_constant(&self, value: Value) -> Option<Vec<f32>> {
        let Payload::Dense(data) = self.module.constant(value)? else { return None };
        let tensor = HostTensor::from_data(data).ok()?;
        (tensor.dtype() == DType::F32).then(|| roundings(tensor.view(), self.to))
    }

    /// The squares of the errors of values.
    pub(super) fn finish(self) -> Vec<(Value, f64)> {
        self.squares
    }
}

impl NodeObserver for Recorder<'_> {
    fn watch(&self) -> Watch {
        Watch::values(self.wanted.iter().flat_map(|(&value, &adjoint)| [value, adjoint]))
    }

    fn value(&mut self, node: Node, slot: usize, data: DataRef<'_>) {
        if let (Some(value), Some(tensor)) = (self.module.node(node).result(slot), data.tensor()) {
            self.see(value, tensor);
        }
    }
}

/// The nearest number of a format.
fn rounded(number: f32, to: DType) -> f32 {
    match to {
        DType::BF16 => bf16::from_f32(number).to_f32(),
        _ => f16::from_f32(number).to_f32(),
    }
}

/// The changes of the elements by rounding; infinite where an element leaves the range of the format, and 0 where it is not
/// finite.
fn roundings(tensor: TensorRef<'_>, to: DType) -> Vec<f32> {
    let rounding = |x: f32| if x.is_finite() { rounded(x, to) - x } else { 0.0 };
    tensor.f32s().into_iter().flatten().map(rounding).collect()
}

/// The square of the error that roundings cause by these adjoints.
fn square(adjoint: &[f32], roundings: &[f32]) -> f64 {
    let terms = adjoint.iter().zip(roundings).filter(|(a, _)| **a != 0.0);
    let terms = terms.map(|(&a, &rounding)| f64::from(a) * f64::from(rounding)).filter(|term| *term != 0.0);
    let (sum, squares) = terms.fold((0.0, 0.0), |(sum, squares), term| (sum + term, squares + term * term));
    let square = sum * sum + squares;
    if square.is_nan() { f64::INFINITY } else { square }
}

/// The relative error of a whole tensor by rounding, by the 2-norm.
pub(super) fn relative_error(tensor: TensorRef<'_>, to: DType) -> f64 {
    let numbers = tensor.f32s().into_iter().flatten().filter(|x| x.is_finite());
    let (errors, all) = numbers.fold((0.0, 0.0), |(errors, all), x| {
        let (rounding, x) = (f64::from(rounded(x, to) - x), f64::from(x));
        (errors + rounding * rounding, all + x * x)
    });
    if all > 0.0 { (errors / all).sqrt() } else { 0.0 }
}
