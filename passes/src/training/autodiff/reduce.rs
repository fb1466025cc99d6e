//! Gradients of reductions: every element gets the gradient of the result that it went into, times a slope.

use super::backward::{Backward, Build, Ruled};
use ampc_ir::op::OpKind;
use ampc_ir::views::reduce::{CumulativeView, ReduceView};
use ampc_ir::{AttrValue, DType, NodeSpec, Value};

/// The axes that a reduction adds up over, if they are known, and whether they stay.
fn axes(b: &Backward<'_>) -> Ruled<(Option<Vec<usize>>, bool)> {
    let view = ReduceView::read(&b.view()?)?;
    Ok((view.axes.map(|axes| axes.as_slice().to_vec()), view.keep))
}

/// A value of the shape of the result, with the axes that went put in again.
fn kept(b: &mut Backward<'_>, value: Value) -> Ruled<Value> {
    match axes(b)? {
        (_, true) => Ok(value),
        (Some(axes), false) => b.unsqueeze(value, &axes),
        (None, false) => {
            // The shape that it has where axes stay.
            let x = b.x(0)?;
            let sums = reduced(b, OpKind::ReduceSum, x)?;
            b.reshape_as(value, sums)
        }
    }
}

/// Another reduction of the operand's shape over the same axes, which stay with extent 1.
fn reduced(b: &mut Backward<'_>, kind: OpKind, a: Value) -> Ruled<Value> {
    if let (Some(axes), _) = axes(b)? {
        return b.reduce(kind, a, &axes, true);
    }
    let spec = NodeSpec::new(kind, &[a, b.x(1)?]).attr("keepdims", AttrValue::Int(1));
    let noop = b.view()?.int("noop_with_empty_axes").unwrap_or(0);
    let [reduced] = b.insert(spec.attr("noop_with_empty_axes", AttrValue::Int(noop)))?;
    Ok(reduced)
}

/// The gradient of the result, with the axes that went put in again, in f32 or wider.
fn wide_dy(b: &mut Backward<'_>) -> Ruled<Value> {
    let dy = b.dy0()?;
    let dy = kept(b, dy)?;
    b.wide(dy)
}

fn wide_x(b: &mut Backward<'_>) -> Ruled<Value> {
    let x = b.x(0)?;
    b.wide(x)
}

/// The result, with the axes that went put in again, in f32 or wider.
fn wide_y(b: &mut Backward<'_>) -> Ruled<Value> {
    let y = b.y(0)?;
    let y = kept(b, y)?;
    b.wide(y)
}

pub(super) fn sum(b: &mut Backward<'_>) -> Ruled {
    let (x, dy) = (b.x(0)?, b.dy0()?);
    let dy = kept(b, dy)?;
    let dx = b.expand_as(dy, x)?;
    b.add(0, dx)
}

/// dy / n
pub(super) fn mean(b: &mut Backward<'_>) -> Ruled {
    let x = b.x(0)?;
    let dy = wide_dy(b)?;
    let dtype = b.dtype(dy)?;
    let n = match axes(b)? {
        (Some(axes), _) => count(b, x, &axes, dtype)?,
        (None, _) => {
            let (all, left) = (b.unary(OpKind::Size, x)?, b.unary(OpKind::Size, dy)?);
            let (all, left) = (b.cast(all, dtype)?, b.cast(left, dtype)?);
            b.over(all, left)?
        }
    };
    let share = b.over(dy, n)?;
    let dx = b.expand_as(share, x)?;
    b.add(0, dx)
}

/// The product of the extents of axes, as a number of a float type.
pub(super) fn count(b: &mut Backward<'_>, x: Value, axes: &[usize], dtype: DType) -> Ruled<Value> {
    let dims = b.shape(x)?;
    let known: Option<Vec<u64>> = axes.iter().map(|&axis| dims.get(axis)?.known()).collect();
    if let Some(known) = known {
        #[expect(clippy::cast_precision_loss, reason = "a number of elements, rounded to a float")]
        return b.number(known.iter().product::<u64>() as f64, dtype);
    }
    let shape = b.shape_of(x)?;
    let list: Vec<i64> = axes.iter().map(|&axis| super::backward::signed(axis)).collect();
    let at = b.ints(&list);
    let extents = b.op(OpKind::Gather, &[shape, at], &[])?;
    let n = b.reduce(OpKind::ReduceProd, extents, &[0], false)?;
    b.cast(n, dtype)
}

/// dy, shared equally by the elements that are the result
pub(super) fn extreme(b: &mut Backward<'_>) -> Ruled {
    let (x, y) = (b.x(0)?, b.y(0)?);
    let y = kept(b, y)?;
    let dy = wide_dy(b)?;
    let dtype = b.dtype(dy)?;
    let is_result = b.op(OpKind::Equal, &[x, y], &[])?;
    let mark = b.cast(is_result, dtype)?;
    let n = reduced(b, OpKind::ReduceSum, mark)?;
    let share = b.over(dy, n)?;
    let dx = b.times(mark, share)?;
    b.add(0, dx)
}

/// dy · sign(x)
pub(super) fn l1(b: &mut Backward<'_>) -> Ruled {
    let (x, dy) = (wide_x(b)?, wide_dy(b)?);
    let sign = b.unary(OpKind::Sign, x)?;
    let dx = b.times(dy, sign)?;
    b.add(0, dx)
}

/// dy · x / y, 0 where y is 0
pub(super) fn l2(b: &mut Backward<'_>) -> Ruled {
    let (x, y, dy) = (wide_x(b)?, wide_y(b)?, wide_dy(b)?);
    let (zero, one) = (b.number_like(0.0, y)?, b.number_like(1.0, y)?);
    let is_zero = b.op(OpKind::Equal, &[y, zero], &[])?;
    let divisor = b.select(is_zero, one, y)?;
    let share = b.over(dy, divisor)?;
    // x is 0 wherever y is.
    let dx = b.times(share, x)?;
    b.add(0, dx)
}

/// dy / Σx = dy / eʸ
pub(super) fn log_sum(b: &mut Backward<'_>) -> Ruled {
    let x = b.x(0)?;
    let (y, dy) = (wide_y(b)?, wide_dy(b)?);
    let sum = b.unary(OpKind::Exp, y)?;
    let share = b.over(dy, sum)?;
    let dx = b.expand_as(share, x)?;
    b.add(0, dx)
}

/// dy · e^(x − y)
pub(super) fn log_sum_exp(b: &mut Backward<'_>) -> Ruled {
    let (x, y, dy) = (wide_x(b)?, wide_y(b)?, wide_dy(b)?);
    let difference = b.minus(x, y)?;
    let share = b.unary(OpKind::Exp, difference)?;
    let dx = b.times(dy, share)?;
    b.add(0, dx)
}

/// dy times the product of all other elements: y/x, and where there are zeros, the product of the others, which is 0
/// but for the element that is the only zero.
pub(super) fn prod(b: &mut Backward<'_>) -> Ruled {
    let (x, dy) = (wide_x(b)?, wide_dy(b)?);
    let dtype = b.dtype(x)?;
    let (zero, one) = (b.number(0.0, dtype)?, b.number(1.0, dtype)?);
    let is_zero = b.op(OpKind::Equal, &[x, zero], &[])?;
    let mark = b.cast(is_zero, dtype)?;
    let zeros = reduced(b, OpKind::ReduceSum, mark)?;
    // The product of the elements that are not 0.
    let safe = b.select(is_zero, one, x)?;
    let product = reduced(b, OpKind::ReduceProd, safe)?;
    let others = b.over(product, safe)?;
    // How many zeros there are beside the element itself.
    let beside = b.minus(zeros, mark)?;
    let none = b.op(OpKind::Equal, &[beside, zero], &[])?;
    let others = b.select(none, others, zero)?;
    let dx = b.times(dy, others)?;
    b.add(0, dx)
}

/// 2 · dy · x
pub(super) fn sum_square(b: &mut Backward<'_>) -> Ruled {
    let (x, dy) = (wide_x(b)?, wide_dy(b)?);
    let double = b.scaled(dy, 2.0)?;
    let dx = b.times(double, x)?;
    b.add(0, dx)
}

/// The cumulative sum of dy the other way round.
pub(super) fn cum_sum(b: &mut Backward<'_>) -> Ruled {
    let view = CumulativeView::read(&b.view()?)?;
    let (axis, dy) = (b.x(1)?, super::movement::dy_of_y(b)?);
    let spec = NodeSpec::new(OpKind::CumSum, &[dy, axis])
        .attr("exclusive", AttrValue::Int(i64::from(view.exclusive)))
        .attr("reverse", AttrValue::Int(i64::from(!view.reverse)));
    let [dx] = b.insert(spec)?;
    b.add(0, dx)
}

/// The gradient of an element of the products of later elements: Σ dy·y / x over these. Behind a zero the
/// products are 0; the first zero itself gets Σ dy times the products without it.
pub(super) fn cum_prod(b: &mut Backward<'_>) -> Ruled {
    let view = CumulativeView::read(&b.view()?)?;
    let (x, axis, y, dy) = (b.x(0)?, b.x(1)?, b.y(0)?, b.dy0()?);
    let (x, y, dy) = (b.wide(x)?, b.wide(y)?, b.wide(dy)?);
    let flag = |flag: bool| AttrValue::Int(i64::from(flag));
    let cumulative = |b: &mut Backward<'_>, kind, a, exclusive: bool, reverse: bool| {
        b.op(kind, &[a, axis], &[("exclusive", flag(exclusive)), ("reverse", flag(reverse))])
    };
    let dtype = b.dtype(x)?;
    let (zero, one) = (b.number(0.0, dtype)?, b.number(1.0, dtype)?);
    let is_zero = b.op(OpKind::Equal, &[x, zero], &[])?;
    let mark = b.cast(is_zero, dtype)?;
    let zeros = cumulative(b, OpKind::CumSum, mark, false, view.reverse)?;
    let is_before = b.op(OpKind::Equal, &[zeros, zero], &[])?;
    let counts_one = b.op(OpKind::Equal, &[zeros, one], &[])?;
    let is_first = b.op(OpKind::And, &[is_zero, counts_one], &[])?;
    // Elements before the first zero.
    let product = b.times(dy, y)?;
    let sums = cumulative(b, OpKind::CumSum, product, view.exclusive, !view.reverse)?;
    let safe = b.select(is_zero, one, x)?;
    let before = b.over(sums, safe)?;
    // The first zero.
    let without = b.select(is_first, one, x)?;
    let products = cumulative(b, OpKind::CumProd, without, view.exclusive, view.reverse)?;
    let product = b.times(dy, products)?;
    let sums = cumulative(b, OpKind::CumSum, product, view.exclusive, !view.reverse)?;
    let rest = b.select(is_first, sums, zero)?;
    let dx = b.select(is_before, before, rest)?;
    b.add(0, dx)
}
