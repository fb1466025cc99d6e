//! Ranges of values: sound intervals, and proofs that values are finite.
//!
//! An abstract interpretation of the fp32 graph with intervals (Cousot and Cousot 1977; Moore 1966), by
//! [`dataflow`](crate::dataflow). [`Ranges`] has for every value a [`Range`]: every element of the value that is
//! a number lies in it, infinities included, and no element is NaN unless the range says so. For example:
//!
//! ```text
//! input %ids : i32             [-2147483648, 2147483647]    its type
//! %e = Gather(%table, %ids)    [-0.31, 0.29]                elements of a constant
//! %n = LayerNormalization(%e)  [-14, 14]                    √n · |scale| + |bias|, n = 196
//! %h = MatMul(%n, %w)          [-52.1, 49.8]                the largest sum of |w| of a column
//! %s = Softmax(%h)             [0, 1], no NaN               %h is finite
//! %l = Log(%s)                 [-inf, 0]                    no lower bound: a result may be 0
//! ```
//!
//! # What a range holds for
//!
//! - Every input within its given range, or within its type; without a range, a float input may be anything.
//! - Every device that rounds sums and products as IEEE 754 does, in any order and with fused multiply-add, matrices
//!   with 11 bits at least (TF32), approximates quotients and functions within the errors of `elementwise.rs`, flushes
//!   subnormal numbers or not, and keeps the bounds of functions that have them by definition. Sums of many terms are
//!   added in blocks: at most 2^20 roundings follow each other.
//! - Variances that are computed from differences from the mean, as ONNX defines them.
//! - Reductions over at least one element, and indices within their tensors.
//!
//! Overflow makes an end infinite, and a NaN may come from infinities, zeros and negative numbers as IEEE 754 has it.
//! Products, sums and means are followed in fp32 and f64 only.

mod constants;
mod elementwise;
mod norms;
mod products;
mod range;
mod reductions;

pub use self::range::Range;

use self::constants::Constants;
use crate::analysis::dataflow::{Analysis, Direction, Facts, solve};
use crate::pass::input_ranges::InputRanges;
use crate::pass::statistics::Statistics;
use ampc_ir::convert::unit_roundoff;
use ampc_ir::module::{Def, Payload};
use ampc_ir::op::{self, OpKind as K, Sign};
use ampc_ir::ports::Ports;
use ampc_ir::verify::name_of;
use ampc_ir::views::broadcast::DropoutView;
use ampc_ir::views::{NodeView, constant_node_data, resolve_captures};
use ampc_ir::{AttrValue, DType, Module, Node, Value};

/// The ranges of all values of a module.
#[derive(Clone, Debug)]
pub struct Ranges(Facts<Range>);

impl Ranges {
    /// Finds the ranges of all values. Constants that cannot be read have every value.
    pub fn of(module: &Module, inputs: &InputRanges, statistics: &mut Statistics) -> Ranges {
        let mut analysis = Intervals { inputs, constants: Constants::new(statistics) };
        Ranges(solve(module, &mut analysis))
    }

    /// The range of a value; of a value that is never computed, and of a constant that no node reads, every value.
    pub fn range(&self, module: &Module, value: Value) -> Range {
        let range = *self.0.of(module, value);
        if range == Range::EMPTY { Range::UNKNOWN } else { range }
    }
}

struct Intervals<'a> {
    inputs: &'a InputRanges,
    constants: Constants<'a>,
}

impl Analysis for Intervals<'_> {
    type Fact = Range;
    const DIRECTION: Direction = Direction::Forward;

    fn entry(&mut self, module: &Module, value: Value) -> Range {
        let data = module.value(value);
        let by_type = Range::of_type(data.ty.element_dtype());
        match &data.def {
            Def::Constant(Payload::Dense(tensor)) => self.constants.range(tensor),
            Def::Input { .. } if data.graph == module.main() => {
                let given = self.inputs.get(&name_of(module, value));
                let given = given.map(|(lo, hi)| Range::between(lo, hi).within(by_type));
                given.map_or(by_type, |given| given.flushed(data.ty.element_dtype().unwrap_or(DType::F32)))
            }
            _ => by_type,
        }
    }

    fn transfer(&mut self, module: &Module, node: Node, slot: usize, facts: &Facts<Range>) -> Range {
        let data = module.node(node);
        let dtype = data.result(slot).and_then(|result| module.value(result).ty.element_dtype());
        let by_type = Range::of_type(dtype);
        let Some(view) = NodeView::new(module, node).filter(|view| !view.lacks_attributes()) else {
            return by_type;
        };
        let at = At { view, facts, dtype, slot };
        if at.is_unreached() {
            return Range::EMPTY;
        }
        if let Some(moved) = at.moved() {
            return moved;
        }
        let computed = match slot {
            0 => self.computed(&at),
            _ => products::of_recurrent(&at),
        };
        // Functions in 16 bits are off by a few units in the last place.
        let unit = dtype.filter(|dtype| dtype.is_low()).and_then(unit_roundoff).unwrap_or(0.0);
        let stored = computed.map_or(by_type, |range| range.loosened(4.0 * unit, 0.0).stored(dtype));
        // Magnitudes of integers wrap.
        let is_noop = view.int("noop_with_empty_axes") == Some(1);
        let has_bounds = slot == 0 && !is_noop && !dtype.is_some_and(DType::is_integer);
        let bounds = elementwise::bounds(view.kind()).filter(|_| has_bounds);
        bounds.map_or(stored, |bounds| stored.within(bounds))
    }

    fn cross(&self, module: &Module, ports: &Ports, _port: usize, fact: Range) -> Range {
        // Scan 8 fills the results of short sequences.
        let is_padded = module.node(ports.node()).schema().is_some_and(|s| s.kind == K::Scan && s.since < 9);
        if is_padded { Range::UNKNOWN } else { fact }
    }
}

impl Intervals<'_> {
    /// The range of the first result of a node before it is stored; `None` if it may have every value of its type.
    fn computed(&mut self, at: &At<'_>) -> Option<Range> {
        match at.view.kind() {
            K::Constant => Some(self.constants.range(&constant_node_data(&at.view)?)),
            K::ConstantOfShape => match at.view.attr("value") {
                Some(AttrValue::Tensor(data)) => Some(self.constants.range(data)),
                _ => Some(Range::ZERO),
            },
            K::MatMul | K::Gemm | K::Conv | K::ConvTranspose => products::of_product(at, &mut self.constants),
            kind => elementwise::of_function(at)
                .or_else(|| elementwise::of_arithmetic(at))
                .or_else(|| reductions::of_reduction(at))
                .or_else(|| norms::of_norm(at))
                .or_else(|| products::of_recurrent(at))
                .or_else(|| other(at, kind)),
        }
    }
}

/// A node with the ranges of its operands.
struct At<'a> {
    view: NodeView<'a>,
    facts: &'a Facts<Range>,
    /// The element type of the result.
    dtype: Option<DType>,
    /// The result.
    slot: usize,
}

impl At<'_> {
    /// The range of an operand, if it is present.
    fn get(&self, i: usize) -> Option<Range> {
        Some(*self.facts.of(self.view.module, self.view.operand(i)?))
    }
    /// A float attribute.
    fn float(&self, name: &str, default: f64) -> f64 {
        self.view.float(name).map_or(default, f64::from)
    }
    /// A float attribute, if it is positive.
    fn positive(&self, name: &str, default: f64) -> Option<f64> {
        Some(self.float(name, default)).filter(|&number| number > 0.0)
    }
    /// The number of elements of axes of the first operand, if they are known.
    fn count(&self, axes: impl IntoIterator<Item = usize>) -> Option<u64> {
        let dims = self.view.dims(0)?;
        axes.into_iter().try_fold(1u64, |n, axis| n.checked_mul(dims.get(axis)?.known()?))
    }
    /// True if products and sums are computed in fp32 at least.
    fn is_wide(&self) -> bool {
        matches!(self.dtype, Some(DType::F32 | DType::F64))
    }
    /// True if an operand has no value yet.
    fn is_unreached(&self) -> bool {
        (0..self.view.n_operands()).any(|i| self.get(i) == Some(Range::EMPTY))
    }

    /// The range of elements that are moved and not changed; `None` if the node computes.
    fn moved(&self) -> Option<Range> {
        let (view, kind) = (&self.view, self.view.kind());
        let from_sequences = match kind {
            K::SequenceConstruct => 0..view.n_operands(),
            K::SequenceInsert => 0..2,
            K::SequenceAt | K::SequenceErase | K::ConcatFromSequence | K::SplitToSequence => 0..1,
            K::Optional | K::OptionalGetElement | K::SequenceEmpty => 0..1,
            _ => 0..0,
        };
        if !from_sequences.is_empty() {
            let elements = from_sequences.filter_map(|i| self.get(i)).reduce(Range::hull);
            return Some(elements.unwrap_or(Range::ZERO));
        }
        let is_first = self.slot == 0 || kind == K::Split;
        let reduces = op::may_reduce(view.schema) && !matches!(view.string("reduction"), None | Some("none"));
        if matches!(kind, K::Cast | K::CastLike) || !is_first || reduces {
            return None;
        }
        let moved = (0..view.n_operands()).filter_map(|i| match op::moves(kind, i)? {
            Sign::Kept => self.get(i),
            Sign::Flipped => Some(self.get(i)?.negated().stored(self.dtype)),
        });
        let moved = moved.reduce(Range::hull)?;
        let value = self.float("value", 0.0);
        Some(match kind {
            K::Trilu | K::MaxUnpool | K::CenterCropPad => moved.hull(Range::ZERO),
            K::Pad if !view.has(2) => moved.hull(Range::between(value, value)),
            _ => moved,
        })
    }
}

/// The ranges of operators that make numbers of something else.
fn other(at: &At<'_>, kind: K) -> Option<Range> {
    match kind {
        K::Shape | K::Size | K::NonZero | K::ArgMax | K::ArgMin | K::SequenceLength => {
            Some(Range::between(0.0, f64::INFINITY).within(Range::of_type(at.dtype)))
        }
        K::EyeLike | K::Bernoulli => Some(Range::UNIT),
        K::Range => {
            let ends = at.get(0)?.hull(at.get(1)?);
            let slack = ends.magnitude() * 2f64.powi(-20);
            let is_known = ends.is_finite() && at.get(2)?.is_finite();
            is_known.then(|| if at.dtype == Some(DType::F32) { ends.loosened(0.0, slack) } else { ends })
        }
        K::DequantizeLinear | K::ContribDequantizeLinear => {
            let zero = at.get(2).unwrap_or(Range::ZERO);
            Some(at.get(0)?.minus(zero).times(at.get(1)?))
        }
        K::Resize | K::Upsample => resized(at),
        K::Dropout => {
            let is_identity = DropoutView::read(&at.view).training == Some(false);
            at.get(0).filter(|_| is_identity)
        }
        K::Attention => {
            let past = at.get(5).unwrap_or(Range::ZERO);
            let values = at.get(2)?.hull(past).hull(Range::ZERO);
            at.is_wide().then(|| values.averaged(None).or_nan(true))
        }
        _ => None,
    }
}

fn resized(at: &At<'_>) -> Option<Range> {
    let crops = at.view.string("coordinate_transformation_mode") == Some("tf_crop_and_resize");
    let x = at.get(0).filter(|_| !crops)?;
    match at.view.string("mode") {
        Some("nearest") => Some(x),
        Some("linear" | "bilinear") if at.is_wide() => Some(x.averaged(Some(1 << 10)).hull(x)),
        _ => None,
    }
}

/// The node of which a value is the first result, if its attributes are known.
fn producer(module: &Module, value: Value) -> Option<NodeView<'_>> {
    let (node, slot) = module.producer(resolve_captures(module, value))?;
    NodeView::new(module, node).filter(|view| slot == 0 && !view.lacks_attributes())
}

#[cfg(test)]
mod tests;
