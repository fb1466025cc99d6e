//! Observer of a run that multiplies the rounding of each value by its adjoint.

use ampc_ir::module::Payload;
use ampc_ir::{DType, Module, Node, Value};
use ampc_passes::autodiff::adjoints::Adjoints;
use ampc_runtime::host::TensorRef;
use ampc_runtime::session::{NodeObserver, Watch};
use ampc_runtime::{DataRef, HostTensor};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rustc_hash::FxHashMap;

/// Sums rounding times adjoint for each value of a run. The roundings of a value are held from its computation until its
/// adjoint is computed.
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
        let Ok(numbers) = tensor.as_slice::<f32>() else { return };
        if let Some(&adjoint) = self.wanted.get(&value) {
            let rounding = roundings(numbers, self.to);
            match self.early.get(&adjoint) {
                Some(early) => self.squares.push((value, square(early, &rounding))),
                None => {
                    self.roundings.insert(value, rounding);
                }
            }
        }
        let Some(values) = self.of_adjoint.remove(&value) else { return };
        let mut is_early = false;
        for value in values {
            let rounding = self.roundings.remove(&value).or_else(|| self.of_constant(value));
            match rounding {
                Some(rounding) => self.squares.push((value, square(numbers, &rounding))),
                None => is_early = true,
            }
        }
        if is_early {
            self.early.insert(value, numbers.to_vec());
        }
    }

    fn of_constant(&self, value: Value) -> Option<Vec<f32>> {
        let Payload::Dense(data) = self.module.constant(value)? else { return None };
        let tensor = HostTensor::from_data(data).ok()?;
        tensor.as_slice::<f32>().ok().map(|numbers| roundings(numbers, self.to))
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

/// The number of elements that are rounded at a time.
const BLOCK: usize = 1024;

/// The nearest numbers of a format, in blocks.
fn rounded(numbers: &[f32], to: DType, mut each: impl FnMut(&[f32], &[f32])) {
    let mut wide = [0.0f32; BLOCK];
    let (mut halves, mut brains) = ([f16::ZERO; BLOCK], [bf16::ZERO; BLOCK]);
    for block in numbers.chunks(BLOCK) {
        let wide = &mut wide[..block.len()];
        if to == DType::BF16 {
            let low = &mut brains[..block.len()];
            low.convert_from_f32_slice(block);
            low.convert_to_f32_slice(wide);
        } else {
            let low = &mut halves[..block.len()];
            low.convert_from_f32_slice(block);
            low.convert_to_f32_slice(wide);
        }
        each(block, wide);
    }
}

/// The changes of numbers by rounding; infinite where a number leaves the range of the format, and 0 where it is not finite.
fn roundings(numbers: &[f32], to: DType) -> Vec<f32> {
    let mut changes = Vec::with_capacity(numbers.len());
    rounded(numbers, to, |block, rounded| {
        let change = |(&x, &low): (&f32, &f32)| if x.is_finite() { low - x } else { 0.0 };
        changes.extend(block.iter().zip(rounded).map(change));
    });
    changes
}

/// The number of partial sums.
const LANES: usize = 8;

/// The square of the error that roundings cause by these adjoints.
fn square(adjoint: &[f32], roundings: &[f32]) -> f64 {
    let (mut sums, mut squares) = ([0.0f64; LANES], [0.0f64; LANES]);
    let mut add = |lane: usize, a: f32, rounding: f32| {
        // 0 times an infinite rounding is no error.
        let is_none = a == 0.0 || rounding == 0.0;
        let term = if is_none { 0.0 } else { f64::from(a) * f64::from(rounding) };
        sums[lane] += term;
        squares[lane] += term * term;
    };
    let (blocks, rest) = adjoint.as_chunks::<LANES>();
    let (of_blocks, of_rest) = roundings.as_chunks::<LANES>();
    for (a, rounding) in blocks.iter().zip(of_blocks) {
        (0..LANES).for_each(|lane| add(lane, a[lane], rounding[lane]));
    }
    for (lane, (&a, &rounding)) in rest.iter().zip(of_rest).enumerate() {
        add(lane, a, rounding);
    }
    let sum: f64 = sums.iter().sum();
    let square = sum * sum + squares.iter().sum::<f64>();
    if square.is_nan() { f64::INFINITY } else { square }
}

/// The relative error of a whole tensor by rounding, by the 2-norm.
pub(super) fn relative_error(tensor: TensorRef<'_>, to: DType) -> f64 {
    let (mut errors, mut all) = (0.0, 0.0);
    rounded(tensor.as_slice::<f32>().unwrap_or_default(), to, |block, rounded| {
        for (&x, &low) in block.iter().zip(rounded).filter(|(x, _)| x.is_finite()) {
            let (rounding, x) = (f64::from(low - x), f64::from(x));
            errors += rounding * rounding;
            all += x * x;
        }
    });
    if all > 0.0 { (errors / all).sqrt() } else { 0.0 }
}
