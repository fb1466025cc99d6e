//! Ranges of element-wise functions and arithmetic.

use super::range::{LARGEST_EXPONENT, MOST, Range, count, gamma};
use super::{At, producer};
use ampc_ir::DType;
use ampc_ir::op::OpKind as K;
use ampc_ir::views::broadcast::{Bound, ClipView};
use ampc_ir::views::reduce::ReduceView;
use ampc_ir::views::resolve_captures;
use std::f64::consts::{FRAC_PI_2, PI};

/// The relative error of a quotient or root on a device that does not round it correctly.
const FEW_BITS: f64 = 1.0 / (1 << 21) as f64;
/// The relative error of a function on a device, with much room.
const LOOSE: f64 = 1.0 / (1 << 16) as f64;
/// The error of a function near 0.
const TINY: f64 = 1.0 / (1 << 20) as f64;
/// The relative error of a power, which may be computed as an exponential of a product.
const LOOSER: f64 = 1.0 / (1 << 12) as f64;

/// The bounds of an operator for all operands, on any device.
pub(super) fn bounds(kind: K) -> Option<Range> {
    match kind {
        K::Sigmoid | K::HardSigmoid | K::Softmax | K::Hardmax => Some(Range::UNIT),
        K::Tanh | K::Erf | K::Sin | K::Cos | K::Softsign | K::Sign => Some(Range::SIGNED_UNIT),
        K::Abs | K::Exp | K::Sqrt | K::Relu | K::Softplus => Some(Range::between(0.0, f64::INFINITY)),
        K::ReduceL1 | K::ReduceL2 | K::ReduceSumSquare => Some(Range::between(0.0, f64::INFINITY)),
        K::LogSoftmax => Some(Range::between(f64::NEG_INFINITY, 0.0)),
        _ => None,
    }
}

/// The range of a function of one element.
pub(super) fn of_function(at: &At<'_>) -> Option<Range> {
    let x = at.get(0)?;
    let above = || x.grown(|x| x.max(0.0));
    let below = || x.grown(|x| x.min(0.0));
    let quarter = Range::SIGNED_UNIT.scaled(FRAC_PI_2 + TINY);
    Some(match at.view.kind() {
        K::Cast | K::CastLike => cast(at, x),
        K::Relu if x.may_be_nan() => above().hull(Range::ZERO),
        K::Relu => above(),
        K::Clip => clipped(at, x)?,
        K::Abs => x.magnitudes(),
        K::Sign if x.may_be_nan() => Range::SIGNED_UNIT.or_nan(true),
        K::Sign => x.grown(|x| if x == 0.0 { 0.0 } else { x.signum() }),
        K::Floor => x.grown(f64::floor),
        K::Ceil => x.grown(f64::ceil),
        K::Round => x.grown(f64::round_ties_even),
        K::Sqrt => positive(x)?.grown(f64::sqrt).loosened(FEW_BITS, 0.0),
        K::Reciprocal => Range::between(1.0, 1.0).over(x).loosened(FEW_BITS, 0.0),
        K::Exp => x.grown(f64::exp).loosened(LOOSE, 0.0),
        K::Log => positive(x)?.grown(f64::ln).loosened(LOOSE, LOOSE),
        K::Sigmoid => x.grown(|x| 1.0 / (1.0 + (-x).exp())).loosened(LOOSE, 0.0),
        K::Tanh => x.grown(f64::tanh).loosened(LOOSE, TINY).signed_as(x),
        K::Erf => Range::SIGNED_UNIT.signed_as(x).or_nan(x.may_be_nan()),
        K::Softsign => Range::SIGNED_UNIT.signed_as(x).or_nan(x.may_be_nan() || x.has_infinity()),
        K::Sin | K::Cos => Range::SIGNED_UNIT.or_nan(x.may_be_nan() || x.has_infinity()),
        K::Atan => quarter.signed_as(x).or_nan(x.may_be_nan()),
        K::Asin => quarter.or_nan(!x.is_finite() || x.magnitude() > 1.0),
        K::Acos => Range::between(-TINY, PI + TINY).or_nan(!x.is_finite() || x.magnitude() > 1.0),
        K::HardSigmoid => Range::UNIT.or_nan(!x.is_finite()),
        // The exponential may be infinite on the way.
        K::Softplus if x.hi() > LARGEST_EXPONENT => Range::between(0.0, f64::INFINITY).or_nan(x.may_be_nan()),
        K::Softplus => x.grown(|x| x.exp().ln_1p()).loosened(LOOSE, LOOSE),
        K::Gelu => gated(x, -0.17),
        K::Swish => gated(x, -0.2785 / at.positive("alpha", 1.0)?),
        K::Mish => gated(x, -0.309),
        K::HardSwish => gated(x, -0.375),
        K::LeakyRelu => above().hull(below().scaled(at.float("alpha", 0.01))),
        K::PRelu => above().hull(below().times(at.get(1)?)),
        K::ThresholdedRelu => x.hull(Range::ZERO),
        K::Shrink => x.plus(Range::SIGNED_UNIT.scaled(at.float("bias", 0.0))).hull(Range::ZERO),
        K::Elu => exponential(x, at.float("alpha", 1.0)),
        K::Celu => exponential(x, at.positive("alpha", 1.0)?),
        K::Selu => exponential(x, at.float("alpha", 1.673_263_2)).scaled(at.float("gamma", 1.050_701)),
        _ => return None,
    })
}

/// The range of arithmetic on elements of several operands.
pub(super) fn of_arithmetic(at: &At<'_>) -> Option<Range> {
    let is_integer = at.dtype.is_some_and(DType::is_integer);
    let (a, b) = (at.get(0)?, at.get(1));
    let all = || (0..at.view.n_operands()).filter_map(|i| at.get(i));
    let sum = || sum(&all().collect::<Vec<_>>());
    Some(match at.view.kind() {
        K::Add => a.plus(b?),
        K::Sub if reduces_first_operand(at, K::ReduceMax) => a.minus(b?).grown(|x| x.min(0.0)),
        K::Sub => a.minus(b?),
        K::Mul if is_square(at) => a.magnitudes().times(a.magnitudes()),
        K::Mul => a.times(b?),
        K::Div if is_integer => a.over(b?).grown(f64::trunc),
        K::Div if a.lo() >= 0.0 && reduces_first_operand(at, K::ReduceSum) => {
            // 0/0 and ∞/∞ are NaN.
            let nan = a.may_be_nan() || a.has_zero() || b?.has_infinity();
            Range::UNIT.loosened(FEW_BITS, 0.0).or_nan(nan)
        }
        K::Div => a.over(b?).loosened(FEW_BITS, 0.0),
        K::Pow => power(a, b?)?.loosened(LOOSER, 0.0),
        K::Mod => modulus(a, b?, is_integer),
        K::Max => all().reduce(|a, b| chosen(a, b, f64::max))?,
        K::Min => all().reduce(|a, b| chosen(a, b, f64::min))?,
        K::Sum => sum()?,
        K::Mean => sum()?.scaled(1.0 / count(all().count() as u64)).loosened(FEW_BITS, 0.0),
        _ => return None,
    })
}

/// The range of a sum, whose terms are added in any order.
fn sum(terms: &[Range]) -> Option<Range> {
    let sum = terms.iter().copied().reduce(Range::plus)?;
    let hull = terms.iter().copied().reduce(Range::hull)?;
    let total: f64 = terms.iter().map(|term| term.magnitude()).sum();
    let slack = gamma(Some(terms.len() as u64)) * total;
    match () {
        () if !hull.is_finite() => Some(sum),
        () if total + slack < MOST => Some(sum.loosened(0.0, slack).signed_as(hull)),
        () => None,
    }
}

/// The operands of a root or logarithm for which it is a number; `None` if there are none.
fn positive(x: Range) -> Option<Range> {
    (x.hi() >= 0.0).then(|| Range::between(x.lo().max(0.0), x.hi()).or_nan(x.may_be_nan() || x.lo() < 0.0))
}

/// The range of x · g(x), where g goes from 0 to 1 with x and the product is never below `least`.
fn gated(x: Range, least: f64) -> Range {
    let lo = if x.lo() < 0.0 { least } else { 0.0 };
    // −∞ · 0 is NaN.
    let nan = x.may_be_nan() || x.lo() == f64::NEG_INFINITY;
    Range::between(lo, x.hi().max(0.0)).loosened(LOOSER, TINY).or_nan(nan)
}

/// The range of x above 0, and alpha · (eˣ − 1) below.
fn exponential(x: Range, alpha: f64) -> Range {
    let above = x.grown(|x| x.max(0.0));
    let below = if x.lo() < 0.0 { Range::between(-1.0, 0.0).scaled(alpha) } else { above };
    above.hull(below).loosened(LOOSE, TINY)
}

fn cast(at: &At<'_>, x: Range) -> Range {
    match at.dtype {
        Some(DType::Bool) => Range::UNIT,
        // Numbers that are no integers of the type are cast differently by each device.
        Some(to) if to.is_integer() && !x.is_finite() => Range::of_type(at.dtype),
        Some(to) if to.is_integer() => x.grown(f64::trunc),
        Some(_) | None => x,
    }
}

/// The range of a Clip: NaN may become a bound.
fn clipped(at: &At<'_>, x: Range) -> Option<Range> {
    let clip = ClipView::read(&at.view);
    let bound = |bound: Bound, none: f64| match bound {
        Bound::Number(number) => Some(Range::between(number.into(), number.into())),
        Bound::Operand(i) => at.get(i),
        Bound::None => Some(Range::between(none, none)),
    };
    let (min, max) = (bound(clip.min, f64::NEG_INFINITY)?, bound(clip.max, f64::INFINITY)?);
    let found = chosen(chosen(x, min, f64::max), max, f64::min);
    Some(if x.may_be_nan() { found.hull(min).hull(max) } else { found })
}

/// The range of the greater or smaller of two elements: of NaN and a number, either.
fn chosen(a: Range, b: Range, choose: fn(f64, f64) -> f64) -> Range {
    let nan = a.may_be_nan() || b.may_be_nan();
    if nan { a.hull(b) } else { Range::between(choose(a.lo(), b.lo()), choose(a.hi(), b.hi())) }
}

fn power(base: Range, exponent: Range) -> Option<Range> {
    let by = exponent.number()?;
    let (is_whole, is_even) = (by.fract() == 0.0, by % 2.0 == 0.0);
    let of = |x: f64| x.powf(by);
    // −∞ counts as ∞ for exponents that are not whole.
    let minus_infinity = base.lo() == f64::NEG_INFINITY;
    let signless =
        if minus_infinity { base.hull(Range::between(f64::INFINITY, f64::INFINITY)) } else { base };
    match () {
        () if by == 0.0 => Some(Range::between(1.0, 1.0)),
        () if is_even && by > 0.0 => Some(base.magnitudes().grown(of)),
        () if is_even => Some(base.magnitudes().negated().grown(of)),
        () if is_whole && by > 0.0 => Some(base.grown(of)),
        () if is_whole && base.has_zero() => None,
        () if is_whole => Some(base.negated().grown(|x| of(-x))),
        () if by > 0.0 => Some(positive(signless)?.grown(of)),
        () => Some(positive(signless)?.negated().grown(|x| of(-x))),
    }
}

fn modulus(a: Range, b: Range, is_integer: bool) -> Range {
    let most = b.magnitude();
    // The sign is that of an operand.
    let found = Range::between(-most, most);
    let found = if a.lo() >= 0.0 && b.lo() >= 0.0 { found.grown(|x| x.max(0.0)) } else { found };
    let is_defined = a.is_finite() && !b.may_be_nan() && !b.has_zero();
    if is_integer && b.has_zero() { Range::UNKNOWN } else { found.or_nan(!is_defined) }
}

/// True if the operands are one value.
fn is_square(at: &At<'_>) -> bool {
    let [a, b] = [0, 1].map(|i| Some(resolve_captures(at.view.module, at.view.operand(i)?)));
    a == b
}

/// True if the second operand is a reduction of the first, broadcast along the axes that were reduced.
fn reduces_first_operand(at: &At<'_>, reduction: K) -> bool {
    let reduced = at.view.operand(1).and_then(|value| producer(at.view.module, value));
    // Below 7, operands are aligned by an attribute.
    let reduced = reduced.filter(|reduced| reduced.kind() == reduction && at.view.since() >= 7);
    reduced.is_some_and(|reduced| {
        let module = at.view.module;
        let [a, b] = [&at.view, &reduced].map(|view| Some(resolve_captures(module, view.operand(0)?)));
        a == b && ReduceView::read(&reduced).is_ok_and(|reduce| reduce.keep)
    })
}
