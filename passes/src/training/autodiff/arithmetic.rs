//! Gradients of operators whose operands broadcast.

use super::backward::{Backward, Build, Ruled};
use crate::pass::training_error::RuleError;
use ampc_ir::Value;
use ampc_ir::op::OpKind;

pub(super) fn add(b: &mut Backward<'_>) -> Ruled {
    let dy = b.dy0()?;
    b.add_unbroadcast(0, dy)?;
    b.add_unbroadcast(1, dy)
}

pub(super) fn sub(b: &mut Backward<'_>) -> Ruled {
    let dy = b.dy0()?;
    b.add_unbroadcast(0, dy)?;
    if b.needs(1) {
        let d = b.neg(dy)?;
        b.add_unbroadcast(1, d)?;
    }
    Ok(())
}

/// dy · b and dy · a: one rounding, like the product's own, unless a sum follows.
pub(super) fn mul(b: &mut Backward<'_>) -> Ruled {
    let (x, z, dy) = (b.x(0)?, b.x(1)?, b.dy0()?);
    for (i, other) in [(0, z), (1, x)] {
        if b.needs(i) {
            let d = b.times(dy, other)?;
            b.add_unbroadcast(i, d)?;
        }
    }
    Ok(())
}

/// dy / b and −dy · (a/b) / b
pub(super) fn div(b: &mut Backward<'_>) -> Ruled {
    let (divisor, dy) = (b.x(1)?, b.dy0()?);
    if b.needs(0) {
        let d = b.over(dy, divisor)?;
        b.add_unbroadcast(0, d)?;
    }
    if b.needs(1) {
        let (dy, y, divisor) = (b.wide(dy)?, b.y(0)?, b.wide(divisor)?);
        let y = b.wide(y)?;
        let product = b.times(dy, y)?;
        let quotient = b.over(product, divisor)?;
        let d = b.neg(quotient)?;
        b.add_unbroadcast(1, d)?;
    }
    Ok(())
}

/// dy · b · a^(b − 1) and dy · y · ln a, where a^(b − 1) counts as 0 if b is 0, and ln a as 0 if a is not positive.
pub(super) fn pow(b: &mut Backward<'_>) -> Ruled {
    let (base, exponent, dy) = (b.x(0)?, b.x(1)?, b.dy0()?);
    let (base, dy) = (b.wide(base)?, b.wide(dy)?);
    let dtype = b.dtype(base)?;
    if b.needs(0) {
        let slope = match b.constant_number(exponent) {
            Some(n) => slope_of_power(b, base, n)?,
            None => {
                let exponent = b.cast(exponent, dtype)?;
                let less = b.plus_number(exponent, -1.0)?;
                let power = b.op(OpKind::Pow, &[base, less], &[])?;
                let slope = b.times(exponent, power)?;
                let zero = b.number(0.0, dtype)?;
                let is_zero = b.op(OpKind::Equal, &[exponent, zero], &[])?;
                b.select(is_zero, zero, slope)?
            }
        };
        let d = b.times(dy, slope)?;
        b.add_unbroadcast(0, d)?;
    }
    if b.needs(1) {
        let y = b.y(0)?;
        let y = b.wide(y)?;
        let one = b.number(1.0, dtype)?;
        let positive = b.greater(base, 0.0)?;
        let safe = b.select(positive, base, one)?;
        let log = b.unary(OpKind::Log, safe)?;
        let slope = b.times(y, log)?;
        let d = b.times(dy, slope)?;
        b.add_unbroadcast(1, d)?;
    }
    Ok(())
}

/// n · a^(n − 1) of a constant n, without Pow where a product does.
fn slope_of_power(b: &mut Backward<'_>, base: Value, n: f64) -> Ruled<Value> {
    let power = if n == 0.0 {
        return b.number_like(0.0, base);
    } else if n == 1.0 {
        return b.number_like(1.0, base);
    } else if n == 2.0 {
        base
    } else if n == 3.0 {
        b.times(base, base)?
    } else {
        let less = b.number_like(n - 1.0, base)?;
        b.op(OpKind::Pow, &[base, less], &[])?
    };
    b.scaled(power, n)
}

/// Mod of floats (`fmod`): dy with respect to the dividend; the divisor is taken as constant.
pub(super) fn modulo(b: &mut Backward<'_>) -> Ruled {
    b.refuse(1)?;
    let dy = b.dy0()?;
    b.add_unbroadcast(0, dy)
}

/// Max and Min: dy where an operand is the result, in equal shares where several are.
pub(super) fn extreme(b: &mut Backward<'_>) -> Ruled {
    let (y, dy) = (b.y(0)?, b.dy0()?);
    let n = b.view()?.n_operands();
    if n == 1 {
        return b.add(0, dy);
    }
    let dy = b.wide(dy)?;
    let dtype = b.dtype(dy)?;
    let mut marks = Vec::with_capacity(n);
    for i in 0..n {
        let x = b.x(i)?;
        let is_result = b.op(OpKind::Equal, &[x, y], &[])?;
        marks.push(b.cast(is_result, dtype)?);
    }
    let count = b.sum(&marks)?;
    let share = b.over(dy, count)?;
    for (i, mark) in marks.into_iter().enumerate() {
        if b.needs(i) {
            let d = b.times(share, mark)?;
            b.add_unbroadcast(i, d)?;
        }
    }
    Ok(())
}

pub(super) fn sum(b: &mut Backward<'_>) -> Ruled {
    let dy = b.dy0()?;
    (0..b.view()?.n_operands()).try_for_each(|i| b.add_unbroadcast(i, dy))
}

pub(super) fn mean(b: &mut Backward<'_>) -> Ruled {
    let dy = b.dy0()?;
    let n = b.view()?.n_operands();
    let by = u32::try_from(n).map_err(|_| RuleError::Unsupported("it has too many operands".into()))?;
    let wide = b.wide(dy)?;
    let d = b.scaled(wide, 1.0 / f64::from(by))?;
    (0..n).try_for_each(|i| b.add_unbroadcast(i, d))
}

/// Where: dy on the side that was taken, 0 on the other. A gradient that is not finite stays on its side.
pub(super) fn select(b: &mut Backward<'_>) -> Ruled {
    let (condition, dy) = (b.x(0)?, b.dy0()?);
    let zero = b.number_like(0.0, dy)?;
    if b.needs(1) {
        let d = b.select(condition, dy, zero)?;
        b.add_unbroadcast(1, d)?;
    }
    if b.needs(2) {
        let d = b.select(condition, zero, dy)?;
        b.add_unbroadcast(2, d)?;
    }
    Ok(())
}
