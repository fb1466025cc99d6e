//! Properties of values: facts about their numbers that matter for rounding, derived from the computation of the
//! values.
//!
//! A forward walk over the graph, from the inputs of the model on. For example:
//!
//! ```text
//! input %x                     unknown range
//! %h = MatMul(%x, %w)          product: a sum over many elements is of the size that the model was trained for
//! %s = Mul(%h, %h)             squares
//! %n = ReduceSum(%s)           squares, summed squares
//! %r = Sqrt(%n)                norms
//! ```
//!
//! A property says that a value *may* have it. An operator that no match below names gives its results no properties;
//! guards then find less.

mod products;

pub(crate) use self::products::{normalizes_contraction, terms};

use super::operators::{is_constant, is_product, kind, scalar};
use super::squares::{squares, sums};
use crate::analysis::cost::{Extents, Sizes};
use crate::analysis::dataflow::{Analysis, Direction, Facts, Lattice, solve};
use crate::graph::flow;
use ampc_ir::module::Def;
use ampc_ir::op::{self, OpKind, reads_only_dims};
use ampc_ir::ports::Ports;
use ampc_ir::views::NodeView;
use ampc_ir::{DType, Module, Node, Type, Value};
use std::ops::{BitOr, BitOrAssign};

/// The number of terms above which a sum is long, if all its terms may have one sign: 4,096 terms of magnitude 16 add
/// up to 65,536, which is beyond f16. Products with a constant are not long, because weights have either sign.
pub(crate) const MAX_TERMS: u64 = 4096;

/// The number of terms above which a product of a value with itself is long: its diagonal is a sum of squares, and 256
/// squares of 16 are 65,536.
pub(crate) const MAX_SQUARES: u64 = 256;

/// The assumed extent of an unknown dim in the search for long sums: there may be thousands of tokens or pixels.
const UNKNOWN_EXTENT: u64 = 2 * MAX_TERMS;

/// The least divisor that makes a mean of a long sum. A sum that is scaled by less (by the root of the size of a head,
/// 8 or 11) stays long.
const MIN_COUNT: f64 = 64.0;

/// The maximal number of terms of a product that computes coordinates (a 4×4 projection, a time step with a frequency).
/// Products of more terms compute features, which a network was trained to have rounded.
pub(crate) const FEW_TERMS: u64 = 16;

/// A set of properties of a value.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Properties(u32);

impl Properties {
    pub(crate) const NOTHING: Properties = Properties(0);
    /// Numbers of unknown range: inputs of the model, and values computed from them before a product, a norm or a
    /// function with bounds.
    pub(crate) const UNKNOWN_RANGE: Properties = Properties(1);
    /// Squares, or sums or means of them.
    pub(crate) const SQUARES: Properties = Properties(1 << 1);
    /// Sums or means of squares over an axis.
    pub(crate) const SUMMED_SQUARES: Properties = Properties(1 << 2);
    /// A product of matrices, scaled or not.
    pub(crate) const PRODUCT: Properties = Properties(1 << 3);
    /// Sines or cosines.
    pub(crate) const SINUSOIDS: Properties = Properties(1 << 4);
    /// Sums of more than [`MAX_TERMS`] computed numbers, or products of such sums.
    pub(crate) const LONG_SUM: Properties = Properties(1 << 5);
    /// Probability distributions along an axis, which add up to 1: results of Softmax.
    pub(crate) const DISTRIBUTION: Properties = Properties(1 << 6);
    /// Constants, or values computed from constants alone.
    pub(crate) const CONSTANT: Properties = Properties(1 << 7);
    /// Norms: roots of sums of squares.
    pub(crate) const NORMS: Properties = Properties(1 << 8);
    /// Products of two norms.
    pub(crate) const PRODUCTS_OF_NORMS: Properties = Properties(1 << 9);
    /// Sums of products of integers, as integers or in floats: up to millions.
    pub(crate) const ACCUMULATOR: Properties = Properties(1 << 10);
    /// Integers in floats, as quantization makes them: results of Round and Floor.
    pub(crate) const INTEGERS: Properties = Properties(1 << 11);
    /// Inputs of the model, at most moved, scaled or shifted by constants: numbers as they were measured.
    pub(crate) const RAW: Properties = Properties(1 << 12);
    /// Arithmetic of inputs and constants alone: sums, differences, quotients and products, of matrices too. No
    /// function or norm was applied, as a network would do after its first layer.
    pub(crate) const ARITHMETIC: Properties = Properties(1 << 13);
    /// The computation contains a product of matrices.
    pub(crate) const OF_PRODUCT: Properties = Properties(1 << 14);
    /// The computation contains a product that may be a layer: a product with constants and more than [`FEW_TERMS`]
    /// terms.
    pub(crate) const OF_LAYER: Properties = Properties(1 << 15);
    /// The properties of arithmetic: a result has them only if all operands are constants or arithmetic.
    const OF_ARITHMETIC: Properties = Properties(
        Properties::RAW.0 | Properties::ARITHMETIC.0 | Properties::OF_PRODUCT.0 | Properties::OF_LAYER.0,
    );

    /// True if the set has all of the other properties.
    pub(crate) fn has(self, other: Properties) -> bool {
        self.0 & other.0 == other.0
    }
    /// The properties that both sets have.
    fn among(self, other: Properties) -> Properties {
        Properties(self.0 & other.0)
    }
    /// The properties that the other set does not have.
    fn without(self, other: Properties) -> Properties {
        Properties(self.0 & !other.0)
    }
}

/// The properties if a condition holds, else nothing.
fn when(holds: bool, properties: Properties) -> Properties {
    if holds { properties } else { Properties::NOTHING }
}

impl BitOr for Properties {
    type Output = Properties;
    fn bitor(self, other: Properties) -> Properties {
        Properties(self.0 | other.0)
    }
}

impl BitOrAssign for Properties {
    fn bitor_assign(&mut self, other: Properties) {
        self.0 |= other.0;
    }
}

impl Lattice for Properties {
    fn bottom() -> Self {
        Properties::NOTHING
    }
    fn join(&self, other: &Self) -> Self {
        *self | *other
    }
}

/// Finds the properties of all values.
pub(super) fn find_properties(module: &Module) -> Facts<Properties> {
    solve(module, &mut Forward)
}

struct Forward;

impl Analysis for Forward {
    type Fact = Properties;
    const DIRECTION: Direction = Direction::Forward;

    fn entry(&mut self, module: &Module, value: Value) -> Properties {
        let data = module.value(value);
        let is_input = matches!(data.def, Def::Input { .. }) && data.graph == module.main();
        if is_input && data.ty.element_dtype() != Some(DType::Bool) {
            return Properties::UNKNOWN_RANGE | Properties::RAW | Properties::ARITHMETIC;
        }
        when(is_constant(module, value), Properties::CONSTANT)
    }

    fn transfer(
        &mut self,
        module: &Module,
        node: Node,
        slot: usize,
        facts: &Facts<Properties>,
    ) -> Properties {
        let Some(view) = NodeView::new(module, node) else { return Properties::NOTHING };
        // Indices are positions, whatever the operator searches for.
        if slot == 1 && matches!(view.kind(), OpKind::TopK | OpKind::MaxPool) {
            return Properties::UNKNOWN_RANGE;
        }
        Known { module, facts }.of_results(&view)
    }

    fn cross(&self, _: &Module, _: &Ports, _: usize, properties: Properties) -> Properties {
        properties.without(Properties::CONSTANT | Properties::OF_ARITHMETIC)
    }
}

/// The known properties of the values of a module.
struct Known<'a> {
    module: &'a Module,
    facts: &'a Facts<Properties>,
}

impl Known<'_> {
    fn of(&self, value: Value) -> Properties {
        *self.facts.of(self.module, value)
    }

    /// The properties of the results of a node: the transfer function of the walk.
    fn of_results(&self, view: &NodeView<'_>) -> Properties {
        let module = self.module;
        let kind = view.kind();
        let operand = |i: usize| view.operand(i).map_or(Properties::NOTHING, |v| self.of(v));
        let operands = || (0..view.n_operands()).filter(|&i| view.has(i));
        let constant =
            operands().next().is_some() && operands().all(|i| operand(i).has(Properties::CONSTANT));
        let by = |properties: Properties| {
            if constant {
                properties | Properties::CONSTANT
            } else {
                properties.without(Properties::CONSTANT)
            }
        };
        let all = operands().fold(Properties::NOTHING, |properties, i| properties | operand(i));
        let properties = match kind {
            kind if reads_only_dims(kind) => return Properties::NOTHING,
            OpKind::Constant | OpKind::ConstantOfShape | OpKind::EyeLike => return Properties::CONSTANT,
            OpKind::Range | OpKind::NonZero | OpKind::ArgMax | OpKind::ArgMin => {
                return by(Properties::UNKNOWN_RANGE);
            }
            _ if is_product(kind) && squares(module, view.node) => {
                operand(0).among(Properties::UNKNOWN_RANGE) | Properties::SQUARES | Properties::SUMMED_SQUARES
            }
            _ if is_product(kind) => self.of_product(view),
            _ if squares(module, view.node) => {
                let summed = when(kind == OpKind::ReduceSumSquare, Properties::SUMMED_SQUARES);
                operand(0).among(Properties::UNKNOWN_RANGE | Properties::LONG_SUM)
                    | Properties::SQUARES
                    | summed
            }
            OpKind::Sub if is_mask(module, view) => Properties::NOTHING,
            _ if op::adds(kind) => all,
            OpKind::Mul => {
                let scaled = operands().any(|i| operand(i).has(Properties::CONSTANT));
                let all =
                    all.without(Properties::ACCUMULATOR | Properties::INTEGERS | by_count(module, view));
                let norms = when(
                    operands().all(|i| operand(i).has(Properties::NORMS)),
                    Properties::PRODUCTS_OF_NORMS,
                );
                norms | if scaled { all } else { all.without(Properties::PRODUCT | Properties::DISTRIBUTION) }
            }
            OpKind::Div if operand(1).has(Properties::CONSTANT) => all.without(by_count(module, view)),
            // A quotient with a computed divisor has another scale than the dividend.
            OpKind::Div => operand(0).among(Properties::SINUSOIDS) | all.among(Properties::UNKNOWN_RANGE),
            OpKind::ReduceL2 => {
                all.among(Properties::UNKNOWN_RANGE | Properties::LONG_SUM) | Properties::NORMS
            }
            OpKind::Sqrt | OpKind::Pow => {
                let norms = when(operand(0).has(Properties::SUMMED_SQUARES), Properties::NORMS);
                all.among(Properties::UNKNOWN_RANGE | Properties::LONG_SUM) | norms
            }
            OpKind::MatMulInteger | OpKind::ConvInteger => Properties::ACCUMULATOR,
            OpKind::Softmax | OpKind::Hardmax => Properties::DISTRIBUTION,
            OpKind::Sin | OpKind::Cos => Properties::SINUSOIDS,
            OpKind::ReduceLogSum | OpKind::ReduceLogSumExp => Properties::NOTHING,
            _ if op::sums(kind) => {
                let squares = when(operand(0).has(Properties::SQUARES), Properties::SUMMED_SQUARES);
                let is_long = kind == OpKind::ReduceSum && summed(module, view) > MAX_TERMS;
                operand(0).without(Properties::DISTRIBUTION) | squares | when(is_long, Properties::LONG_SUM)
            }
            OpKind::Abs | OpKind::Relu | OpKind::Clip | OpKind::Max | OpKind::Min | OpKind::Dropout => all,
            OpKind::ReduceMax
            | OpKind::ReduceMin
            | OpKind::MaxPool
            | OpKind::GlobalMaxPool
            | OpKind::TopK
            | OpKind::CumSum
            | OpKind::PhiloxDropout
            | OpKind::Ceil
            | OpKind::Mod => operand(0),
            OpKind::Round | OpKind::Floor => operand(0) | Properties::INTEGERS,
            _ => operands()
                .filter(|&i| op::moves(kind, i).is_some())
                .fold(Properties::NOTHING, |h, i| h | operand(i)),
        };
        by(properties.without(Properties::OF_ARITHMETIC) | self.of_arithmetic(view))
    }

    /// The properties of arithmetic that the results of a node have.
    fn of_arithmetic(&self, view: &NodeView<'_>) -> Properties {
        let module = self.module;
        let kind = view.kind();
        let operands = || (0..view.n_operands()).filter_map(|i| Some((i, self.of(view.operand(i)?))));
        let is_fixed = |properties: Properties| properties.has(Properties::CONSTANT);
        // Operands that say where elements are moved to take no part in the arithmetic, and neither do weights that add
        // up to 1.
        let read = || {
            operands().filter(|&(i, p)| {
                (op::moves(kind, 0).is_none() || op::moves(kind, i).is_some())
                    && !(is_product(kind) && p.has(Properties::DISTRIBUTION))
            })
        };
        let all = read().filter(|&(_, p)| !is_fixed(p)).map(|(_, p)| p);
        if !read().all(|(_, p)| is_fixed(p) || p.has(Properties::ARITHMETIC)) {
            return Properties::NOTHING;
        }
        let Some(all) = all.reduce(|a, b| a | b) else { return Properties::NOTHING };
        let all = all.among(Properties::OF_ARITHMETIC);
        let computed = read().filter(|&(_, p)| !is_fixed(p));
        let is_raw = computed.map(|(_, p)| p).all(|p| p.has(Properties::RAW));
        let shifts = op::adds(kind) || matches!(kind, OpKind::Mul | OpKind::Div);
        let is_scaled = shifts
            && read().filter(|&(_, p)| !is_fixed(p)).count() == 1
            && !is_fixed(operands().next().map_or(all, |(_, p)| p));
        if op::moves(kind, 0).is_some() || is_scaled {
            return if is_raw { all } else { all.without(Properties::RAW) };
        }
        let all = all.without(Properties::RAW);
        if op::is_single_product(kind) {
            let factors = self.factors(view);
            let is_layer =
                factors.into_iter().any(is_fixed) && terms(module, view, Sizes::default().other) > FEW_TERMS;
            return all | Properties::OF_PRODUCT | when(is_layer, Properties::OF_LAYER);
        }
        let is_bound = matches!(kind, OpKind::Clip | OpKind::Max | OpKind::Min);
        let adds_up = match kind {
            OpKind::ReduceSum | OpKind::ReduceMean | OpKind::AveragePool | OpKind::GlobalAveragePool => true,
            OpKind::Einsum => sums(module, view.node),
            _ => false,
        };
        when(shifts || is_bound || adds_up || squares(module, view.node), all)
    }
}

/// The properties that a value loses when it is divided by a count, or multiplied by the reciprocal of a count: a long
/// sum becomes a mean.
fn by_count(module: &Module, view: &NodeView<'_>) -> Properties {
    let constant = |i| view.operand(i).and_then(|value| scalar(module, value)).map(f64::abs);
    let by = match view.kind() {
        OpKind::Div => constant(1).map(f64::recip),
        _ => constant(0).or(constant(1)),
    };
    when(by.is_some_and(|by| by <= MIN_COUNT.recip()), Properties::LONG_SUM)
}

/// The number of elements that a reduction combines into one.
fn summed(module: &Module, view: &NodeView<'_>) -> u64 {
    let sizes = Sizes { other: UNKNOWN_EXTENT, ..Sizes::default() };
    let extents = Extents { module, sizes: &sizes };
    let elements = |value: Option<Value>| value.map_or(0, |value| extents.elements(value));
    elements(view.operand(0)).checked_div(elements(view.data().result(0))).unwrap_or(0)
}

/// True if a node makes a mask of integers that are 0 and 1: 1 − m, where m was an integer.
fn is_mask(module: &Module, view: &NodeView<'_>) -> bool {
    let is_one = view.operand(0).and_then(|value| scalar(module, value)) == Some(1.0);
    let was_integer = |value: Value| {
        let (node, _) = module.producer(flow::behind_casts(module, value))?;
        let from = module.node(node).operand(0).map(|v| &module.value(v).ty);
        let is_cast = kind(module, node) == Some(OpKind::Cast);
        Some(is_cast && from.and_then(Type::dtype).is_some_and(|d| d.is_integer() || d == DType::Bool))
    };
    is_one && view.operand(1).and_then(was_integer) == Some(true)
}
