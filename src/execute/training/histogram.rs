//! Histograms of the exponents of gradient elements.
//!
//! The fraction of gradient elements below 2⁻²⁴, the smallest fp16 number, shows if fp16 can represent the
//! gradients of a model, and with which loss scale (Micikevicius et al., "Mixed Precision Training", arXiv
//! 1710.03740, figure 3); elements of at most 2⁻²⁵ are rounded to 0.

use crate::execute::trainer::Trainer;
use ampc_ir::module::Def;
use ampc_ir::{Node, Type, Value};
use ampc_passes::step::{Phase, Purpose, phase_of, role_of};
use ampc_runtime::session::NodeObserver;
use ampc_runtime::{DataRef, TensorRef};
use rustc_hash::{FxHashMap, FxHashSet};

/// Numbers of elements by ⌊log₂ |x|⌋.
#[derive(Clone, Debug)]
pub struct Log2Histogram {
    counts: Vec<u64>,
    /// Elements that are 0.
    pub zero: u64,
    /// Infinite elements.
    pub inf: u64,
    /// Elements that are NaN.
    pub nan: u64,
}

/// The minimum exponent of an element, that of f64's smallest number, and the number of exponents.
const LEAST: i32 = -1074;
const EXPONENTS: usize = 1024 + 1074;

impl Default for Log2Histogram {
    fn default() -> Log2Histogram {
        Log2Histogram { counts: vec![0; EXPONENTS], zero: 0, inf: 0, nan: 0 }
    }
}

impl Log2Histogram {
    /// Counts a number.
    pub fn add(&mut self, number: f64) {
        if number == 0.0 {
            self.zero += 1;
        } else if number.is_nan() {
            self.nan += 1;
        } else if number.is_infinite() {
            self.inf += 1;
        } else {
            let place = exponent(number) - LEAST;
            self.counts[usize::try_from(place).unwrap_or(0)] += 1;
        }
    }

    /// The exponents that occur, in order, with their counts.
    pub fn counts(&self) -> impl Iterator<Item = (i32, u64)> {
        let counts = (LEAST..).zip(&self.counts);
        counts.filter(|(_, count)| **count > 0).map(|(exponent, count)| (exponent, *count))
    }

    /// The number of counted elements.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum::<u64>() + self.zero + self.inf + self.nan
    }

    fn clear(&mut self) {
        self.counts.fill(0);
        (self.zero, self.inf, self.nan) = (0, 0, 0);
    }

    fn add_all(&mut self, tensor: &TensorRef<'_>) {
        for_each_number(tensor, |number| self.add(number));
    }
}

/// Calls `visit` with every element of a tensor of floats.
pub(super) fn for_each_number(tensor: &TensorRef<'_>, mut visit: impl FnMut(f64)) {
    match (tensor.as_slice::<f32>(), tensor.f64s()) {
        (Ok(numbers), _) => numbers.iter().for_each(|&number| visit(f64::from(number))),
        (_, Ok(numbers)) => numbers.for_each(visit),
        _ => {}
    }
}

/// ⌊log₂ |x|⌋ of a finite number that is not 0.
fn exponent(number: f64) -> i32 {
    const MANTISSA: u32 = 52;
    let bits = number.to_bits() & !(1 << 63);
    let biased = i32::try_from(bits >> MANTISSA).unwrap_or(0);
    if biased > 0 {
        return biased - 1023;
    }
    let highest = i32::try_from(63 - bits.leading_zeros()).unwrap_or(0);
    highest + LEAST
}

/// The kind of gradients that a value belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Weight,
    Activation,
}

/// Counts the gradients of one step as the graph computes them, that is, still multiplied by the loss scale.
///
/// `weights`: backward results that a node of the update phase reads. `activations`: all other float results of the
/// backward phase that depend on the loss scale, including intermediate values of gradient formulas. A step without a
/// loss scale cannot be traced: there, all float results of the backward phase count, except recomputed activations.
/// Tensors without axes are not counted.
#[derive(Debug)]
pub struct GradientHistograms {
    kinds: FxHashMap<(Node, usize), Kind>,
    /// Histogram of the gradients of weights.
    pub weights: Log2Histogram,
    /// Histogram of the gradients of activations.
    pub activations: Log2Histogram,
}

impl GradientHistograms {
    /// Empty histograms for the gradients of a trainer's step.
    pub fn new(trainer: &Trainer) -> GradientHistograms {
        let step = trainer.module();
        let main = step.main();
        // The loss scale is an input, or the constant of a static scale.
        let is_unscale = |&node: &Node| role_of(step, node) == Some(Purpose::Unscale.spelling());
        let unscale = step.nodes(main).find(is_unscale);
        let scale = unscale.and_then(|node| step.node(node).operand(0));
        let is_float = |value: Value| {
            let Type::Tensor(tensor) = &step.value(value).ty else { return false };
            tensor.dtype.is_float() && tensor.shape.dims().is_none_or(|dims| !dims.is_empty())
        };
        let updates = |node: Node| phase_of(step, node) == Some(Phase::Update);
        let mut of_loss: FxHashSet<Value> = scale.into_iter().collect();
        let mut kinds = FxHashMap::default();
        for node in step.nodes(main) {
            if updates(node) {
                for &value in step.node(node).operands().iter().flatten() {
                    let Def::Result { node: maker, slot } = step.value(value).def else { continue };
                    if phase_of(step, maker) == Some(Phase::Backward) && is_float(value) {
                        kinds.insert((maker, slot as usize), Kind::Weight);
                    }
                }
                continue;
            }
            let is_recomputed = role_of(step, node) == Some(Purpose::Recompute.spelling());
            if phase_of(step, node) != Some(Phase::Backward) || is_recomputed {
                continue;
            }
            let reads = step.node(node).operands().iter().flatten().any(|value| of_loss.contains(value));
            if !reads && scale.is_some() {
                continue;
            }
            for (slot, &value) in step.node(node).results().iter().enumerate() {
                let Some(value) = value else { continue };
                of_loss.insert(value);
                if is_float(value) {
                    kinds.entry((node, slot)).or_insert(Kind::Activation);
                }
            }
        }
        GradientHistograms { kinds, weights: Log2Histogram::default(), activations: Log2Histogram::default() }
    }

    /// Clears the counts for another step.
    pub fn clear(&mut self) {
        self.weights.clear();
        self.activations.clear();
    }
}

impl NodeObserver for GradientHistograms {
    fn value(&mut self, node: Node, slot: usize, data: DataRef<'_>) {
        let Some(tensor) = data.tensor() else { return };
        match self.kinds.get(&(node, slot)) {
            Some(Kind::Weight) => self.weights.add_all(&tensor),
            Some(Kind::Activation) => self.activations.add_all(&tensor),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_counted_by_exponent() {
        let mut histogram = Log2Histogram::default();
        for number in [
            1.0,
            -1.5,
            0.5,
            0.499_999,
            2f64.powi(-24),
            -0.0,
            f64::NAN,
            f64::NEG_INFINITY,
            f64::from_bits(1),
            f64::from_bits(3),
            f64::MIN_POSITIVE,
            f64::MAX,
        ] {
            histogram.add(number);
        }
        let expected = [(-1074, 1), (-1073, 1), (-1022, 1), (-24, 1), (-2, 1), (-1, 1), (0, 2), (1023, 1)];
        assert_eq!(histogram.counts().collect::<Vec<_>>(), expected);
        assert_eq!((histogram.zero, histogram.nan, histogram.inf, histogram.total()), (1, 1, 1, 12));
    }
}
