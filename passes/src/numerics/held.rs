//! What values hold: where their numbers come from, as far as rounding is concerned.

use super::{Numerics, is_constant, is_plain_product, is_product, kind, repeat, scalar, squares};
use crate::cost::{Extents, Sizes, amount};
use crate::flow;
use ampc_ir::op::{self, OpKind};
use ampc_ir::views::{NodeView, resolve_captures};
use ampc_ir::{DType, Module, Node, Type, Value};
use std::ops::{BitOr, BitOrAssign};

/// A product that sums more terms than this, of which none is a constant, adds up what may all have one sign.
pub(crate) const MAX_TERMS: u64 = 4096;

/// A set of properties of a value.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Held(u16);

impl Held {
    pub(crate) const NOTHING: Held = Held(0);
    /// Numbers of unknown range: those of an input of the model, and what is computed of them before a product, a norm or a
    /// function with bounds.
    pub(crate) const UNKNOWN: Held = Held(1);
    /// Squares, or sums or means of them.
    pub(crate) const SQUARES: Held = Held(1 << 1);
    /// Sums of squares over an axis.
    pub(crate) const SUMMED_SQUARES: Held = Held(1 << 2);
    /// A product of matrices, scaled or not.
    pub(crate) const PRODUCT: Held = Held(1 << 3);
    /// Sines or cosines.
    pub(crate) const WAVES: Held = Held(1 << 4);
    /// Sums of more than [`MAX_TERMS`] computed numbers or products of such.
    pub(crate) const LONG_SUM: Held = Held(1 << 5);
    /// Weights that add up to 1: what a Softmax makes.
    pub(crate) const SHARES: Held = Held(1 << 6);
    /// Nothing but constants, or what is computed of them.
    pub(crate) const CONSTANT: Held = Held(1 << 7);
    /// Norms: roots of sums of squares.
    pub(crate) const NORMS: Held = Held(1 << 8);
    /// Products of two norms.
    pub(crate) const PRODUCTS_OF_NORMS: Held = Held(1 << 11);
    /// What an integer product adds up, in floats: up to millions.
    pub(crate) const ACCUMULATOR: Held = Held(1 << 9);
    /// Integers in floats: codes of a quantisation.
    pub(crate) const CODES: Held = Held(1 << 10);

    /// Whether all of some properties are there.
    pub(crate) fn has(self, other: Held) -> bool {
        self.0 & other.0 == other.0
    }
    /// The properties that are among others too.
    pub(crate) fn among(self, other: Held) -> Held {
        Held(self.0 & other.0)
    }
    /// The properties without others.
    pub(crate) fn without(self, other: Held) -> Held {
        Held(self.0 & !other.0)
    }
}

impl BitOr for Held {
    type Output = Held;
    fn bitor(self, other: Held) -> Held {
        Held(self.0 | other.0)
    }
}

impl BitOrAssign for Held {
    fn bitor_assign(&mut self, other: Held) {
        self.0 |= other.0;
    }
}

impl Numerics {
    /// Finds what values hold: program order is topological.
    pub(super) fn find_held(&mut self, module: &Module, nodes: &[Node]) {
        for &input in module.graph(module.main()).inputs() {
            if module.value(input).ty.element_dtype() != Some(DType::Bool) {
                self.held[input] = Held::UNKNOWN;
            }
        }
        repeat(module, || {
            let mut found = false;
            for &node in nodes {
                found |= self.held_at_ports(module, node);
                let Some(view) = NodeView::new(module, node) else { continue };
                let held = self.made(module, &view);
                for (at, &result) in module.node(node).results().iter().enumerate() {
                    let Some(result) = result else { continue };
                    // Indices are positions.
                    let indices = at == 1 && matches!(view.kind(), OpKind::TopK | OpKind::MaxPool);
                    let all = self.held[result] | if indices { Held::UNKNOWN } else { held };
                    found |= all != self.held[result];
                    self.held[result] = all;
                }
            }
            found
        });
    }

    fn held_at_ports(&mut self, module: &Module, node: Node) -> bool {
        let mut found = false;
        for port in flow::vars(module, node).filter(|&var| flow::is_port(module, var)).collect::<Vec<_>>() {
            let held = flow::operands_of(module, port).map(|(_, value)| self.held_or_constant(module, value));
            let held = held.reduce(|a, b| a | b).unwrap_or_default().without(Held::CONSTANT);
            for (_, result) in flow::results_of(module, port) {
                let all = self.held[result] | held;
                found |= all != self.held[result];
                self.held[result] = all;
            }
        }
        found
    }

    /// What a value holds, constants included.
    fn held_or_constant(&self, module: &Module, value: Value) -> Held {
        let value = resolve_captures(module, value);
        if self.held[value] == Held::NOTHING && is_constant(module, value) {
            return Held::CONSTANT;
        }
        self.held[value]
    }

    /// Whether a value is a constant, or made of constants alone.
    pub(crate) fn is_constant(&self, module: &Module, value: Value) -> bool {
        self.held_or_constant(module, value).has(Held::CONSTANT)
    }

    /// What a node makes.
    fn made(&self, module: &Module, view: &NodeView<'_>) -> Held {
        let kind = view.kind();
        let operand = |i: usize| view.operand(i).map_or(Held::NOTHING, |v| self.held_or_constant(module, v));
        let operands = || (0..view.n_operands()).filter(|&i| view.has(i));
        let constant = operands().next().is_some() && operands().all(|i| operand(i).has(Held::CONSTANT));
        let by = |held: Held| if constant { held | Held::CONSTANT } else { held.without(Held::CONSTANT) };
        let all = operands().fold(Held::NOTHING, |held, i| held | operand(i));
        let held = match kind {
            OpKind::Shape | OpKind::Size => return Held::NOTHING,
            OpKind::Constant | OpKind::ConstantOfShape | OpKind::EyeLike => return Held::CONSTANT,
            OpKind::Range | OpKind::NonZero | OpKind::ArgMax | OpKind::ArgMin => return by(Held::UNKNOWN),
            _ if is_product(kind) => self.of_product(module, view),
            _ if squares(module, view.node) => {
                let summed =
                    if kind == OpKind::ReduceSumSquare { Held::SUMMED_SQUARES } else { Held::NOTHING };
                operand(0).among(Held::UNKNOWN | Held::LONG_SUM) | Held::SQUARES | summed
            }
            OpKind::Sub if is_mask(module, view) => Held::NOTHING,
            _ if op::adds(kind) => all,
            OpKind::Mul => {
                let scaled = operands().any(|i| operand(i).has(Held::CONSTANT));
                let all = all.without(Held::ACCUMULATOR | Held::CODES | by_count(module, view));
                let norms = if operands().all(|i| operand(i).has(Held::NORMS)) {
                    Held::PRODUCTS_OF_NORMS
                } else {
                    Held::NOTHING
                };
                norms | if scaled { all } else { all.without(Held::PRODUCT | Held::SHARES) }
            }
            OpKind::Div if operand(1).has(Held::CONSTANT) => all.without(by_count(module, view)),
            // What is divided by something computed is of another scale.
            OpKind::Div => operand(0).among(Held::WAVES) | all.among(Held::UNKNOWN),
            OpKind::ReduceL2 => all.among(Held::UNKNOWN | Held::LONG_SUM) | Held::NORMS,
            OpKind::Sqrt | OpKind::Pow => {
                let norms = if operand(0).has(Held::SUMMED_SQUARES) { Held::NORMS } else { Held::NOTHING };
                all.among(Held::UNKNOWN | Held::LONG_SUM) | norms
            }
            OpKind::MatMulInteger | OpKind::ConvInteger => Held::ACCUMULATOR,
            OpKind::Softmax | OpKind::Hardmax => Held::SHARES,
            OpKind::Sin | OpKind::Cos => Held::WAVES,
            OpKind::ReduceLogSum | OpKind::ReduceLogSumExp => Held::NOTHING,
            _ if op::sums(kind) => {
                let squares =
                    if operand(0).has(Held::SQUARES) { Held::SUMMED_SQUARES } else { Held::NOTHING };
                let long = kind == OpKind::ReduceSum && summed(module, view) > MAX_TERMS;
                operand(0).without(Held::SHARES) | squares | if long { Held::LONG_SUM } else { Held::NOTHING }
            }
            OpKind::Abs | OpKind::Relu | OpKind::Clip | OpKind::Max | OpKind::Min | OpKind::Dropout => all,
            OpKind::ReduceMax
            | OpKind::ReduceMin
            | OpKind::MaxPool
            | OpKind::GlobalMaxPool
            | OpKind::CumSum
            | OpKind::PhiloxDropout => operand(0),
            OpKind::Round | OpKind::Floor => operand(0) | Held::CODES,
            OpKind::Ceil | OpKind::Mod | OpKind::TopK => operand(0),
            _ => operands()
                .filter(|&i| op::moves(kind, i).is_some())
                .fold(Held::NOTHING, |h, i| h | operand(i)),
        };
        by(held)
    }

    /// What a product of matrices makes.
    fn of_product(&self, module: &Module, view: &NodeView<'_>) -> Held {
        let factors = self.factors(module, view);
        let computed: Vec<Held> = factors.iter().copied().filter(|held| !held.has(Held::CONSTANT)).collect();
        let any = computed.iter().fold(Held::NOTHING, |all, &held| all | held);
        let mut made = Held::PRODUCT | any.among(Held::WAVES | Held::LONG_SUM);
        if !computed.is_empty() && computed.iter().all(|held| held.has(Held::NORMS)) {
            made |= Held::PRODUCTS_OF_NORMS;
        }
        if let [one] = computed[..]
            && one.has(Held::SQUARES)
        {
            made |= Held::SQUARES | Held::SUMMED_SQUARES;
        }
        if computed.len() > 1
            && is_plain_product(view.kind())
            && !any.has(Held::SHARES)
            && self.terms_of(module, view, any) > if is_gram(module, view) { MAX_SQUARES } else { MAX_TERMS }
        {
            made |= Held::LONG_SUM;
        }
        made
    }

    /// How many terms a product of computed factors sums: of an axis of unknown extent many, unless a factor is an input
    /// of the model, about which nothing is known at all.
    fn terms_of(&self, module: &Module, view: &NodeView<'_>, factors: Held) -> u64 {
        let unknown = if factors.has(Held::UNKNOWN) { Sizes::default().other } else { UNKNOWN_EXTENT };
        terms(module, view, unknown)
    }

    /// What the factors of a product hold.
    fn factors(&self, module: &Module, view: &NodeView<'_>) -> Vec<Held> {
        let n = if view.kind() == OpKind::Einsum { view.n_operands() } else { 2 };
        (0..n).filter_map(|i| view.operand(i)).map(|v| self.held_or_constant(module, v)).collect()
    }
}

/// Of products of a value with itself, the diagonal is a sum of squares: more of these leave the range.
const MAX_SQUARES: u64 = 256;

/// The extent of a dim that is unknown: the number of tokens or pixels, which may be thousands.
const UNKNOWN_EXTENT: u64 = 2 * MAX_TERMS;

/// The properties that end where a value is divided by a count, or multiplied by its reciprocal (1/64 or less): a long
/// sum becomes a mean.
fn by_count(module: &Module, view: &NodeView<'_>) -> Held {
    let constant = |i| view.operand(i).and_then(|value| scalar(module, value)).map(f64::abs);
    let by = match view.kind() {
        OpKind::Div => constant(1).map(f64::recip),
        _ => constant(0).or(constant(1)),
    };
    if by.is_some_and(|by| by <= 1.0 / 64.0) { Held::LONG_SUM } else { Held::NOTHING }
}

/// Whether a product is one of a value with itself, but for axes that are exchanged: a Gram matrix.
fn is_gram(module: &Module, view: &NodeView<'_>) -> bool {
    let origin = |i: usize| {
        let mut value = flow::behind_casts(module, view.operand(i)?);
        while let Some((node, _)) = module.producer(value)
            && matches!(kind(module, node), Some(OpKind::Transpose | OpKind::Reshape | OpKind::Identity))
        {
            value = flow::behind_casts(module, module.node(node).operand(0)?);
        }
        Some(value)
    };
    origin(0).is_some() && origin(0) == origin(1)
}

/// How many products an element of a product of matrices sums up, if axes of unknown extent have so many elements.
pub(crate) fn terms(module: &Module, view: &NodeView<'_>, unknown: u64) -> u64 {
    let sizes = Sizes { other: unknown, ..Sizes::default() };
    let extents = Extents { module, sizes: &sizes };
    let results = view.data().result(0).map_or(0, |value| extents.elements(value));
    (amount(view, extents).product / 2).checked_div(results).unwrap_or(0)
}

/// How many elements a reduction makes one of.
fn summed(module: &Module, view: &NodeView<'_>) -> u64 {
    let sizes = Sizes { other: UNKNOWN_EXTENT, ..Sizes::default() };
    let extents = Extents { module, sizes: &sizes };
    let elements = |value: Option<Value>| value.map_or(0, |value| extents.elements(value));
    elements(view.operand(0)).checked_div(elements(view.data().result(0))).unwrap_or(0)
}

/// Whether a node makes a mask of integers that are 0 and 1: 1 − m, where m was an integer.
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
