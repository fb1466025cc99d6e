//! Arithmetic element by element: Add, Relu, Erf and the like.

use super::broadcast::{Walk, zip, zip_in_place, zip_real};
use super::lanes::{Real, Wide, for_int, for_real, map, map_in_place};
use crate::cpu::kernel::{Prepare, Prepared, Result, Site};
use ampc_ir::op::OpKind;
use num_traits::{Float, Zero};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Add => |s| binary(s, Binary::Add),
        OpKind::Sub => |s| binary(s, Binary::Sub),
        OpKind::Mul => |s| binary(s, Binary::Mul),
        OpKind::Div => |s| binary(s, Binary::Div),
        OpKind::Relu => relu,
        OpKind::Neg => neg,
        OpKind::Abs => abs,
        OpKind::Erf => erf,
        OpKind::Exp => |s| unary(s, Unary(|x| x.exp(), |x| x.exp())),
        OpKind::Log => |s| unary(s, Unary(|x| x.ln(), |x| x.ln())),
        OpKind::Sqrt => |s| unary(s, Unary(|x| x.sqrt(), |x| x.sqrt())),
        OpKind::Reciprocal => |s| unary(s, Unary(|x| x.recip(), |x| x.recip())),
        OpKind::Tanh => |s| unary(s, Unary(|x| x.tanh(), |x| x.tanh())),
        OpKind::Sigmoid => |s| unary(s, Unary(sigmoid, sigmoid)),
        OpKind::LeakyRelu => leaky_relu,
        _ => return None,
    })
}

/// A function of one number, in both types that are computed in.
#[derive(Clone, Copy)]
struct Unary(fn(f32) -> f32, fn(f64) -> f64);

/// A function of one float without parameters.
fn unary(site: &Site<'_>, f: Unary) -> Result<Prepared> {
    Ok(match site.dtype(0)? {
        ampc_ir::DType::F64 => mapped::<f64>(f.1),
        dtype => for_real!(dtype, site, T => mapped_f32::<T>(f.0)),
    })
}

/// As [`mapped`], for types that are computed in f32; f64 does not come here.
fn mapped_f32<T: Real>(f: fn(f32) -> f32) -> Prepared {
    mapped::<T>(move |x| T::Wide::of(f64::from(f(narrow(x)))))
}

#[expect(clippy::cast_possible_truncation, reason = "it was an f32")]
fn narrow<W: Wide>(x: W) -> f32 {
    x.to() as f32
}

/// A kernel that computes `f` of every element.
pub(super) fn mapped<T: Real>(f: impl Fn(T::Wide) -> T::Wide + Copy + Send + Sync + 'static) -> Prepared {
    Prepared::new(move |io| {
        if io.in_place.is_some() {
            map_in_place::<T>(io.out(0)?, f);
        } else {
            map::<T>(io.slice(0)?, io.out(0)?, f);
        }
        Ok(())
    })
    .in_place(&[0])
}

fn sigmoid<W: Float>(x: W) -> W {
    // Neither branch overflows.
    if x < W::zero() {
        let e = x.exp();
        e / (W::one() + e)
    } else {
        W::one() / (W::one() + (-x).exp())
    }
}

fn relu(site: &Site<'_>) -> Result<Prepared> {
    if site.dtype(0)?.is_integer() {
        return Ok(for_int!(site.dtype(0)?, site, T => mapped_int::<T>(|x| x.max(T::zero()))));
    }
    // NaN stays NaN.
    Ok(for_real!(site.dtype(0)?, site, T => mapped::<T>(|x| if x < Zero::zero() { Zero::zero() } else { x })))
}

fn neg(site: &Site<'_>) -> Result<Prepared> {
    if site.dtype(0)?.is_integer() {
        return Ok(for_int!(site.dtype(0)?, site, T => mapped_int::<T>(|x| (T::zero()).wrapping_sub(x))));
    }
    Ok(for_real!(site.dtype(0)?, site, T => mapped::<T>(|x| -x)))
}

fn abs(site: &Site<'_>) -> Result<Prepared> {
    if site.dtype(0)?.is_integer() {
        #[allow(unused_comparisons, reason = "unsigned types are instances too")]
        let kernel = for_int!(site.dtype(0)?, site, T => mapped_int::<T>(|x| if x < T::zero() { T::zero().wrapping_sub(x) } else { x }));
        return Ok(kernel);
    }
    Ok(for_real!(site.dtype(0)?, site, T => mapped::<T>(Float::abs)))
}

fn erf(site: &Site<'_>) -> Result<Prepared> {
    unary(site, Unary(libm::erff, libm::erf))
}

fn leaky_relu(site: &Site<'_>) -> Result<Prepared> {
    let alpha = f64::from(site.view.float("alpha").unwrap_or(0.01));
    Ok(for_real!(site.dtype(0)?, site, T => {
        let alpha = <T as Real>::Wide::of(alpha);
        mapped::<T>(move |x| if x < Zero::zero() { x * alpha } else { x })
    }))
}

/// A kernel that computes `f` of every integer.
pub(super) fn mapped_int<T: crate::host::Element + Send + Sync>(
    f: impl Fn(T) -> T + Copy + Send + Sync + 'static,
) -> Prepared {
    use super::lanes::{PIECE, pieces};
    Prepared::new(move |io| {
        if io.in_place.is_some() {
            pieces(io.out::<T>(0)?, PIECE, |_, to| to.iter_mut().for_each(|x| *x = f(*x)));
        } else {
            let from = io.slice::<T>(0)?;
            pieces(io.out::<T>(0)?, PIECE, |at, to| {
                let from = &from[at..at + to.len()];
                to.iter_mut().zip(from).for_each(|(y, &x)| *y = f(x));
            });
        }
        Ok(())
    })
    .in_place(&[0])
}

#[derive(Clone, Copy)]
enum Binary {
    Add,
    Sub,
    Mul,
    Div,
}

fn binary(site: &Site<'_>, op: Binary) -> Result<Prepared> {
    let walk = walk_of(site, 2)?;
    if site.dtype(0)?.is_integer() {
        return Ok(for_int!(site.dtype(0)?, site, T => match op {
            Binary::Add => zipped_int::<T>(walk, T::wrapping_add),
            Binary::Sub => zipped_int::<T>(walk, T::wrapping_sub),
            Binary::Mul => zipped_int::<T>(walk, T::wrapping_mul),
            Binary::Div => zipped_int::<T>(walk, |a: T, b: T| if b == T::zero() { b } else { a.wrapping_div(b) }),
        }));
    }
    Ok(for_real!(site.dtype(0)?, site, T => match op {
        Binary::Add => zipped::<T>(walk, |a, b| a + b),
        Binary::Sub => zipped::<T>(walk, |a, b| a - b),
        Binary::Mul => zipped::<T>(walk, |a, b| a * b),
        Binary::Div => zipped::<T>(walk, |a, b| a / b),
    }))
}

/// How the first `n` operands are walked along the first result.
pub(super) fn walk_of(site: &Site<'_>, n: usize) -> Result<Walk> {
    let operands = (0..n).map(|i| site.dims(i)).collect::<Result<Vec<_>>>()?;
    let operands: Vec<&[usize]> = operands.iter().map(|d| &d[..]).collect();
    Ok(Walk::new(&site.result_dims(0)?, &operands))
}

/// A kernel that computes `f` of the elements of two operands.
pub(super) fn zipped<T: Real>(
    walk: Walk,
    f: impl Fn(T::Wide, T::Wide) -> T::Wide + Copy + Send + Sync + 'static,
) -> Prepared {
    Prepared::new(move |io| {
        let operand = |i: usize| if io.in_place == Some(i) { Ok(None) } else { io.slice::<T>(i).map(Some) };
        let (a, b) = (operand(0)?, operand(1)?);
        zip_real::<T>(&walk, a, b, io.out(0)?, f);
        Ok(())
    })
    .in_place(&[0, 1])
}

/// A kernel that computes `f` of the integers of two operands.
pub(super) fn zipped_int<T: crate::host::Element + Send + Sync>(
    walk: Walk,
    f: impl Fn(T, T) -> T + Copy + Send + Sync + 'static,
) -> Prepared {
    Prepared::new(move |io| {
        match io.in_place {
            None => zip(&walk, io.slice::<T>(0)?, io.slice::<T>(1)?, io.out::<T>(0)?, f),
            Some(0) => zip_in_place(&walk, 1, io.slice::<T>(1)?, io.out(0)?, f),
            Some(_) => zip_in_place(&walk, 0, io.slice::<T>(0)?, io.out(0)?, |y, a| f(a, y)),
        }
        Ok(())
    })
    .in_place(&[0, 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sigmoid_overflows_nowhere() {
        for x in [-200.0f32, -1.0, 0.0, 1.0, 200.0] {
            let y = sigmoid(x);
            assert!((0.0..=1.0).contains(&y) && (y + sigmoid(-x) - 1.0).abs() < 1e-6);
        }
    }
}
