//! Gradients of functions of one element.
//!
//! Formulas in terms of the result are preferred, such as y(1 − y) for Sigmoid. At a point where a function has
//! no derivative, the rule takes PyTorch's: 0 for Relu, Abs and outside of and at the bounds of Clip.

use super::backward::{Backward, Build, Ruled};
use super::reads::NeedsSlot;
use ampc_ir::Value;
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::views::broadcast::{Bound, ClipView};
use std::f64::consts::{FRAC_2_SQRT_PI, PI};

/// dy · slope(x), computed in f32 or wider.
fn by_x(b: &mut Backward<'_>, slope: impl FnOnce(&mut Backward<'_>, Value) -> Ruled<Value>) -> Ruled {
    let (x, dy) = (b.x(0)?, b.dy0()?);
    let (x, dy) = (b.wide(x)?, b.wide(dy)?);
    let slope = slope(b, x)?;
    let dx = b.times(dy, slope)?;
    b.add(0, dx)
}

/// dy · slope(y), computed in f32 or wider.
fn by_y(b: &mut Backward<'_>, slope: impl FnOnce(&mut Backward<'_>, Value) -> Ruled<Value>) -> Ruled {
    let (y, dy) = (b.y(0)?, b.dy0()?);
    let (y, dy) = (b.wide(y)?, b.wide(dy)?);
    let slope = slope(b, y)?;
    let dx = b.times(dy, slope)?;
    b.add(0, dx)
}

/// A float attribute of the node.
fn float(b: &Backward<'_>, name: &str, default: f32) -> Ruled<f64> {
    Ok(f64::from(b.view()?.float(name).unwrap_or(default)))
}

pub(super) fn abs(b: &mut Backward<'_>) -> Ruled {
    by_x(b, |b, x| b.unary(OpKind::Sign, x))
}

/// −1 / √(1 − x²)
pub(super) fn acos(b: &mut Backward<'_>) -> Ruled {
    by_x(b, |b, x| {
        let slope = one_over_root_of_one_minus_square(b, x)?;
        b.neg(slope)
    })
}

/// 1 / √(x² − 1)
pub(super) fn acosh(b: &mut Backward<'_>) -> Ruled {
    by_x(b, |b, x| {
        let square = b.times(x, x)?;
        let rest = b.plus_number(square, -1.0)?;
        one_over_root(b, rest)
    })
}

pub(super) fn asin(b: &mut Backward<'_>) -> Ruled {
    by_x(b, one_over_root_of_one_minus_square)
}

/// 1 / √(x² + 1)
pub(super) fn asinh(b: &mut Backward<'_>) -> Ruled {
    by_x(b, |b, x| {
        let square = b.times(x, x)?;
        let sum = b.plus_number(square, 1.0)?;
        one_over_root(b, sum)
    })
}

/// 1 / (1 + x²)
pub(super) fn atan(b: &mut Backward<'_>) -> Ruled {
    by_x(b, |b, x| {
        let square = b.times(x, x)?;
        let sum = b.plus_number(square, 1.0)?;
        b.unary(OpKind::Reciprocal, sum)
    })
}

/// 1 / (1 − x²)
pub(super) fn atanh(b: &mut Backward<'_>) -> Ruled {
    by_x(b, |b, x| {
        let square = b.times(x, x)?;
        let rest = b.number_minus(1.0, square)?;
        b.unary(OpKind::Reciprocal, rest)
    })
}

fn one_over_root_of_one_minus_square(b: &mut Backward<'_>, x: Value) -> Ruled<Value> {
    let square = b.times(x, x)?;
    let rest = b.number_minus(1.0, square)?;
    one_over_root(b, rest)
}

fn one_over_root(b: &mut Backward<'_>, a: Value) -> Ruled<Value> {
    let root = b.unary(OpKind::Sqrt, a)?;
    b.unary(OpKind::Reciprocal, root)
}

/// 1 where x > 0, else e^(x/α)
pub(super) fn celu(b: &mut Backward<'_>) -> Ruled {
    let alpha = float(b, "alpha", 1.0)?;
    by_x(b, |b, x| {
        let scaled = b.scaled(x, 1.0 / alpha)?;
        let low = exp_of_negative(b, scaled)?;
        let one = b.number_like(1.0, x)?;
        let positive = b.greater(x, 0.0)?;
        b.select(positive, one, low)
    })
}

/// e^min(x, 0): where x > 0 the other branch is taken, and the branch not taken must not overflow.
fn exp_of_negative(b: &mut Backward<'_>, x: Value) -> Ruled<Value> {
    let zero = b.number_like(0.0, x)?;
    let low = b.op(OpKind::Min, &[x, zero], &[])?;
    b.unary(OpKind::Exp, low)
}

/// True if no bound of a Clip needs a gradient, so that dy is kept or left out.
pub(super) fn clip_passes(_: &NodeView<'_>, needs: &NeedsSlot<'_>) -> bool {
    !needs(1) && !needs(2)
}

/// 1 strictly inside the bounds, else 0. Between bounds of which one depends on a parameter, every operand that is the
/// result has its share, as PyTorch shares.
pub(super) fn clip(b: &mut Backward<'_>) -> Ruled {
    if b.needs(1) || b.needs(2) {
        return clip_shared(b);
    }
    let (x, dy) = (b.x(0)?, b.dy0()?);
    let view = ClipView::read(&b.view()?);
    let mut inside = None;
    for (bound, strictly) in [(view.min, OpKind::Greater), (view.max, OpKind::Less)] {
        let limit = match bound {
            Bound::None => continue,
            Bound::Number(number) => b.number_like(f64::from(number), x)?,
            Bound::Operand(i) => b.x(i)?,
        };
        let within = b.op(strictly, &[x, limit], &[])?;
        inside = Some(match inside {
            None => within,
            Some(other) => b.op(OpKind::And, &[other, within], &[])?,
        });
    }
    let dx = match inside {
        None => dy,
        Some(inside) => b.masked(inside, dy)?,
    };
    b.add(0, dx)
}

/// A bound gets dy where x is beyond it, and half of it where x is at it. The operand gets dy inside, half of it at one
/// bound, and all of it where both bounds and x are the same. Where the lower bound is greater, the result is the upper
/// one, which gets everything.
fn clip_shared(b: &mut Backward<'_>) -> Ruled {
    let (x, dy) = (b.x(0)?, b.dy0()?);
    let dy = b.wide(dy)?;
    let (low, high) = (b.operand(1), b.operand(2));
    let half = b.scaled(dy, 0.5)?;
    let both = low.zip(high);
    let is_less = both.map(|(low, high)| b.op(OpKind::Less, &[low, high], &[])).transpose()?;
    let is_greater = both.map(|(low, high)| b.op(OpKind::Greater, &[low, high], &[])).transpose()?;
    let mut dx = dy;
    for (limit, beyond, slot) in [(low, OpKind::Less, 1), (high, OpKind::Greater, 2)] {
        let Some(limit) = limit else { continue };
        let mut is_beyond = b.op(beyond, &[x, limit], &[])?;
        let mut is_at = b.op(OpKind::Equal, &[x, limit], &[])?;
        if let Some(is_less) = is_less {
            is_at = b.op(OpKind::And, &[is_at, is_less], &[])?;
        }
        if let Some(is_greater) = is_greater {
            is_beyond = if slot == 1 {
                let is_ordered = b.unary(OpKind::Not, is_greater)?;
                b.op(OpKind::And, &[is_beyond, is_ordered], &[])?
            } else {
                b.op(OpKind::Or, &[is_beyond, is_greater], &[])?
            };
        }
        if b.needs(slot) {
            let share = b.masked(is_at, half)?;
            let d = b.select(is_beyond, dy, share)?;
            b.add_unbroadcast(slot, d)?;
        }
        let inner = b.select(is_at, half, dx)?;
        let zero = b.number_like(0.0, dy)?;
        dx = b.select(is_beyond, zero, inner)?;
    }
    b.add(0, dx)
}

pub(super) fn cos(b: &mut Backward<'_>) -> Ruled {
    by_x(b, |b, x| {
        let sin = b.unary(OpKind::Sin, x)?;
        b.neg(sin)
    })
}

pub(super) fn cosh(b: &mut Backward<'_>) -> Ruled {
    by_x(b, |b, x| b.unary(OpKind::Sinh, x))
}

/// 1 where x > 0, else αeˣ
pub(super) fn elu(b: &mut Backward<'_>) -> Ruled {
    let alpha = float(b, "alpha", 1.0)?;
    by_x(b, |b, x| scaled_elu(b, x, alpha, 1.0))
}

/// γ where x > 0, else γαeˣ
pub(super) fn selu(b: &mut Backward<'_>) -> Ruled {
    let (alpha, gamma) = (float(b, "alpha", 1.673_263_2)?, float(b, "gamma", 1.050_701)?);
    by_x(b, |b, x| scaled_elu(b, x, alpha * gamma, gamma))
}

fn scaled_elu(b: &mut Backward<'_>, x: Value, low: f64, high: f64) -> Ruled<Value> {
    let exp = exp_of_negative(b, x)?;
    let low = b.scaled(exp, low)?;
    let high = b.number_like(high, x)?;
    let positive = b.greater(x, 0.0)?;
    b.select(positive, high, low)
}

/// 2/√π · e^(−x²)
pub(super) fn erf(b: &mut Backward<'_>) -> Ruled {
    by_x(b, |b, x| {
        let square = b.times(x, x)?;
        let negated = b.neg(square)?;
        let exp = b.unary(OpKind::Exp, negated)?;
        b.scaled(exp, FRAC_2_SQRT_PI)
    })
}

pub(super) fn exp(b: &mut Backward<'_>) -> Ruled {
    by_y(b, |_, y| Ok(y))
}

/// Derivative of x·Φ(x): Φ(x) + x·φ(x). The derivative of its approximation by tanh, with u = √(2/π)(x +
/// 0.044715x³) and t = tanh u, is ½(1 + t) + ½x(1 − t²)·√(2/π)(1 + 3·0.044715x²).
pub(super) fn gelu(b: &mut Backward<'_>) -> Ruled {
    let by_tanh = b.view()?.string("approximate") == Some("tanh");
    by_x(b, |b, x| if by_tanh { gelu_by_tanh(b, x) } else { gelu_by_erf(b, x) })
}

fn gelu_by_erf(b: &mut Backward<'_>, x: Value) -> Ruled<Value> {
    let scaled = b.scaled(x, std::f64::consts::FRAC_1_SQRT_2)?;
    let erf = b.unary(OpKind::Erf, scaled)?;
    let half = b.scaled(erf, 0.5)?;
    let cumulative = b.plus_number(half, 0.5)?;
    let square = b.times(x, x)?;
    let exponent = b.scaled(square, -0.5)?;
    let exp = b.unary(OpKind::Exp, exponent)?;
    let density = b.scaled(exp, 1.0 / (2.0 * PI).sqrt())?;
    let second = b.times(x, density)?;
    b.plus(cumulative, second)
}

fn gelu_by_tanh(b: &mut Backward<'_>, x: Value) -> Ruled<Value> {
    const CUBIC: f64 = 0.044_715;
    let root = (2.0 / PI).sqrt();
    let square = b.times(x, x)?;
    let cubic = b.scaled(square, CUBIC)?;
    let cubic = b.plus_number(cubic, 1.0)?;
    let inner = b.times(x, cubic)?;
    let inner = b.scaled(inner, root)?;
    let tanh = b.unary(OpKind::Tanh, inner)?;
    let half = b.scaled(tanh, 0.5)?;
    let first = b.plus_number(half, 0.5)?;
    let tanh_square = b.times(tanh, tanh)?;
    let outer = b.number_minus(1.0, tanh_square)?;
    let slope = b.scaled(square, 3.0 * CUBIC)?;
    let slope = b.plus_number(slope, 1.0)?;
    let slope = b.scaled(slope, 0.5 * root)?;
    let second = b.times(x, outer)?;
    let second = b.times(second, slope)?;
    b.plus(first, second)
}

/// α where 0 < αx + β < 1, else 0
pub(super) fn hard_sigmoid(b: &mut Backward<'_>) -> Ruled {
    let (alpha, beta) = (float(b, "alpha", 0.2)?, float(b, "beta", 0.5)?);
    by_x(b, |b, x| {
        let line = b.scaled(x, alpha)?;
        let line = b.plus_number(line, beta)?;
        let inside = strictly_between(b, line, 0.0, 1.0)?;
        let alpha = b.number_like(alpha, x)?;
        b.masked(inside, alpha)
    })
}

fn strictly_between(b: &mut Backward<'_>, a: Value, low: f64, high: f64) -> Ruled<Value> {
    let above = b.greater(a, low)?;
    let below = b.less(a, high)?;
    b.op(OpKind::And, &[above, below], &[])
}

/// 0 where x ≤ −3, 1 where x ≥ 3, else x/3 + ½
pub(super) fn hard_swish(b: &mut Backward<'_>) -> Ruled {
    by_x(b, |b, x| {
        let line = b.scaled(x, 1.0 / 3.0)?;
        let line = b.plus_number(line, 0.5)?;
        let one = b.number_like(1.0, x)?;
        let below = b.less(x, 3.0)?;
        let slope = b.select(below, line, one)?;
        let above = b.greater(x, -3.0)?;
        b.masked(above, slope)
    })
}

/// 1 where x > 0, else α
pub(super) fn leaky_relu(b: &mut Backward<'_>) -> Ruled {
    let alpha = float(b, "alpha", 0.01)?;
    by_x(b, |b, x| {
        let (one, alpha) = (b.number_like(1.0, x)?, b.number_like(alpha, x)?);
        let positive = b.greater(x, 0.0)?;
        b.select(positive, one, alpha)
    })
}

/// dy / x
pub(super) fn log(b: &mut Backward<'_>) -> Ruled {
    let (x, dy) = (b.x(0)?, b.dy0()?);
    let dx = b.over(dy, x)?;
    b.add(0, dx)
}

/// Derivative of x · t with t = tanh(softplus(x)): t + x(1 − t²)σ(x)
pub(super) fn mish(b: &mut Backward<'_>) -> Ruled {
    by_x(b, |b, x| {
        let softplus = b.unary(OpKind::Softplus, x)?;
        let tanh = b.unary(OpKind::Tanh, softplus)?;
        let square = b.times(tanh, tanh)?;
        let rest = b.number_minus(1.0, square)?;
        let sigmoid = b.unary(OpKind::Sigmoid, x)?;
        let second = b.times(x, rest)?;
        let second = b.times(second, sigmoid)?;
        b.plus(tanh, second)
    })
}

pub(super) fn neg(b: &mut Backward<'_>) -> Ruled {
    let dy = b.dy0()?;
    let dx = b.neg(dy)?;
    b.add(0, dx)
}

/// With respect to x: 1 where x > 0, else the slope; to the slope: x where x < 0, else 0.
pub(super) fn prelu(b: &mut Backward<'_>) -> Ruled {
    let (x, slope, dy) = (b.x(0)?, b.x(1)?, b.dy0()?);
    let (x, slope, dy) = (b.wide(x)?, b.wide(slope)?, b.wide(dy)?);
    let positive = b.greater(x, 0.0)?;
    if b.needs(0) {
        let low = b.times(dy, slope)?;
        let dx = b.select(positive, dy, low)?;
        b.add(0, dx)?;
    }
    if b.needs(1) {
        let product = b.times(dy, x)?;
        let zero = b.number_like(0.0, x)?;
        let d = b.select(positive, zero, product)?;
        b.add_unbroadcast(1, d)?;
    }
    Ok(())
}

/// −y²
pub(super) fn reciprocal(b: &mut Backward<'_>) -> Ruled {
    by_y(b, |b, y| {
        let square = b.times(y, y)?;
        b.neg(square)
    })
}

/// dy where y > 0, else 0: exact in any precision.
pub(super) fn relu(b: &mut Backward<'_>) -> Ruled {
    let (y, dy) = (b.y(0)?, b.dy0()?);
    let positive = b.greater(y, 0.0)?;
    let dx = b.masked(positive, dy)?;
    b.add(0, dx)
}

/// 1 beyond λ on either side, else 0
pub(super) fn shrink(b: &mut Backward<'_>) -> Ruled {
    let lambd = float(b, "lambd", 0.5)?;
    let (x, dy) = (b.x(0)?, b.dy0()?);
    let above = b.greater(x, lambd)?;
    let below = b.less(x, -lambd)?;
    let beyond = b.op(OpKind::Or, &[above, below], &[])?;
    let dx = b.masked(beyond, dy)?;
    b.add(0, dx)
}

/// y(1 − y)
pub(super) fn sigmoid(b: &mut Backward<'_>) -> Ruled {
    by_y(b, |b, y| {
        let rest = b.number_minus(1.0, y)?;
        b.times(y, rest)
    })
}

pub(super) fn sin(b: &mut Backward<'_>) -> Ruled {
    by_x(b, |b, x| b.unary(OpKind::Cos, x))
}

pub(super) fn sinh(b: &mut Backward<'_>) -> Ruled {
    by_x(b, |b, x| b.unary(OpKind::Cosh, x))
}

/// σ(x)
pub(super) fn softplus(b: &mut Backward<'_>) -> Ruled {
    by_x(b, |b, x| b.unary(OpKind::Sigmoid, x))
}

/// 1 / (1 + |x|)²
pub(super) fn softsign(b: &mut Backward<'_>) -> Ruled {
    by_x(b, |b, x| {
        let size = b.unary(OpKind::Abs, x)?;
        let sum = b.plus_number(size, 1.0)?;
        let square = b.times(sum, sum)?;
        b.unary(OpKind::Reciprocal, square)
    })
}

/// 1 / (2y)
pub(super) fn sqrt(b: &mut Backward<'_>) -> Ruled {
    let (y, dy) = (b.y(0)?, b.dy0()?);
    let (y, dy) = (b.wide(y)?, b.wide(dy)?);
    let half = b.scaled(dy, 0.5)?;
    let dx = b.over(half, y)?;
    b.add(0, dx)
}

/// Derivative of x·s with s = σ(αx): s(1 + αx(1 − s))
pub(super) fn swish(b: &mut Backward<'_>) -> Ruled {
    let alpha = float(b, "alpha", 1.0)?;
    by_x(b, |b, x| {
        let scaled = b.scaled(x, alpha)?;
        let sigmoid = b.unary(OpKind::Sigmoid, scaled)?;
        let rest = b.number_minus(1.0, sigmoid)?;
        let second = b.times(scaled, rest)?;
        let sum = b.plus_number(second, 1.0)?;
        b.times(sigmoid, sum)
    })
}

/// Gradients of a·s·b with s = σ(αa): dy · b · s(1 + αa(1 − s)) and dy · a·s
pub(super) fn swi_glu(b: &mut Backward<'_>) -> Ruled {
    let alpha = float(b, "alpha", 1.0)?;
    let (gate, value, dy) = (b.x(0)?, b.x(1)?, b.dy0()?);
    let (gate, value, dy) = (b.wide(gate)?, b.wide(value)?, b.wide(dy)?);
    let scaled = b.scaled(gate, alpha)?;
    let sigmoid = b.unary(OpKind::Sigmoid, scaled)?;
    if b.needs(0) {
        let rest = b.number_minus(1.0, sigmoid)?;
        let second = b.times(scaled, rest)?;
        let sum = b.plus_number(second, 1.0)?;
        let slope = b.times(sigmoid, sum)?;
        let share = b.times(dy, value)?;
        let d = b.times(share, slope)?;
        b.add(0, d)?;
    }
    if b.needs(1) {
        let swish = b.times(gate, sigmoid)?;
        let d = b.times(dy, swish)?;
        b.add(1, d)?;
    }
    Ok(())
}

/// 1 + y²
pub(super) fn tan(b: &mut Backward<'_>) -> Ruled {
    by_y(b, |b, y| {
        let square = b.times(y, y)?;
        b.plus_number(square, 1.0)
    })
}

/// 1 − y²
pub(super) fn tanh(b: &mut Backward<'_>) -> Ruled {
    by_y(b, |b, y| {
        let square = b.times(y, y)?;
        b.number_minus(1.0, square)
    })
}

/// 1 where x > α, else 0
pub(super) fn thresholded_relu(b: &mut Backward<'_>) -> Ruled {
    let alpha = float(b, "alpha", 1.0)?;
    let (x, dy) = (b.x(0)?, b.dy0()?);
    let above = b.greater(x, alpha)?;
    let dx = b.masked(above, dy)?;
    b.add(0, dx)
}
