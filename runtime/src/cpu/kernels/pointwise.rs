//! Arithmetic on two operands or more, element by element: Add, Pow, Mod, Max, Clip and the like.
//!
//! Operands are broadcast by the rule of the operator's version ([`Broadcast`]). Integers wrap; a division of
//! integers by 0 gives 0.

use super::broadcast::{Walk, fold_real, pairs, zip, zip_in_place, zip_parts, zip_real};
use super::lane::Lane;
use super::lanes::{Real, Wide, apply, clamp, for_int, for_real, map, map_cells, operand_of_result};
use super::shape::same;
use crate::elementwise::aligned;
use crate::host::Element;
use crate::kernel::{Io, Prepare, Prepared, Result, Site};
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use ampc_ir::views::broadcast::{Bound, ClipView};
use num_traits::{Float, PrimInt, Zero};
use smallvec::SmallVec;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Add => |s| binary(s, Binary::Add),
        OpKind::Clip => clip,
        OpKind::Div => |s| binary(s, Binary::Div),
        OpKind::Max => |s| fold(s, Fold::Max),
        OpKind::Mean => |s| fold(s, Fold::Mean),
        OpKind::Min => |s| fold(s, Fold::Min),
        OpKind::Mod => modulo,
        OpKind::Mul => |s| binary(s, Binary::Mul),
        OpKind::PRelu => p_relu,
        OpKind::Pow => pow,
        OpKind::Sub => |s| binary(s, Binary::Sub),
        OpKind::Sum => |s| fold(s, Fold::Sum),
        _ => return None,
    })
}

/// How the first `n` operands are walked along the first result.
pub(super) fn walk_of(site: &Site<'_>, n: usize) -> Result<Walk> {
    let (result, operands) = aligned(site, n)?;
    let operands: Vec<&[usize]> = operands.iter().map(|d| &d[..]).collect();
    Ok(Walk::new(&result, &operands))
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
        Binary::Add => arithmetic::<T>(walk, |a, b| a + b),
        Binary::Sub => arithmetic::<T>(walk, |a, b| a - b),
        Binary::Mul => arithmetic::<T>(walk, |a, b| a * b),
        Binary::Div => arithmetic::<T>(walk, |a, b| a / b),
    }))
}

/// A kernel that computes `f` of the elements of two operands.
pub(super) fn zipped<T: Real>(
    walk: Walk,
    f: impl Fn(T::Wide, T::Wide) -> T::Wide + Copy + Send + Sync + 'static,
) -> Prepared {
    Prepared::new(move |io| {
        let [a, b] = two_operands::<T>(io)?;
        zip_real::<T>(&walk, a, b, io.out(0)?, &pairs(f));
        Ok(())
    })
    .in_place(&[0, 1])
}

/// As [`zipped`], for the functions that most models compute: without copies of elements that are computed with as they
/// are.
fn arithmetic<T: Real>(
    walk: Walk,
    f: impl Fn(T::Wide, T::Wide) -> T::Wide + Copy + Send + Sync + 'static,
) -> Prepared {
    if !const { T::IS_WIDE } {
        return zipped::<T>(walk, f);
    }
    Prepared::new(move |io| {
        let wide = |operand: Option<_>| operand.and_then(T::as_wide);
        let [a, b] = two_operands::<T>(io)?.map(wide);
        let Some(to) = T::as_wide_mut(io.out(0)?) else { return Ok(()) };
        match (a, b) {
            (Some(a), Some(b)) => zip(&walk, a, b, to, f),
            (None, Some(b)) => zip_in_place(&walk, 1, b, to, f),
            (Some(a), None) => zip_in_place(&walk, 0, a, to, |y, a| f(a, y)),
            (None, None) => {}
        }
        Ok(())
    })
    .in_place(&[0, 1])
}

/// The elements of two operands; `None` for the operand in whose place the result is computed.
fn two_operands<'a, T: Element>(io: &Io<'a>) -> Result<[Option<&'a [T]>; 2]> {
    let operand = |i: usize| if io.in_place == Some(i) { Ok(None) } else { io.slice(i).map(Some) };
    Ok([operand(0)?, operand(1)?])
}

/// A kernel that computes `f` of the integers of two operands.
pub(super) fn zipped_int<T: Element + Send + Sync>(
    walk: Walk,
    f: impl Fn(T, T) -> T + Copy + Send + Sync + 'static,
) -> Prepared {
    Prepared::new(move |io| {
        let [a, b] = two_operands::<T>(io)?;
        zip_parts(&walk, (0, a), (1, b), io.out::<T>(0)?, &pairs(f));
        Ok(())
    })
    .in_place(&[0, 1])
}

/// How any number of operands become one.
#[derive(Clone, Copy)]
enum Fold {
    Max,
    Min,
    Sum,
    Mean,
}

fn fold(site: &Site<'_>, op: Fold) -> Result<Prepared> {
    let n = site.view.n_operands();
    if n == 1 {
        return same(site);
    }
    let walk = walk_of(site, n)?;
    if site.dtype(0)?.is_integer() {
        return Ok(for_int!(site.dtype(0)?, site, T => match op {
            Fold::Max => folded_int::<T>(walk, n, T::max),
            Fold::Min => folded_int::<T>(walk, n, T::min),
            Fold::Sum | Fold::Mean => return Err(site.no_kernel()),
        }));
    }
    #[expect(clippy::cast_precision_loss, reason = "nodes have few operands")]
    let share = n as f64;
    Ok(for_real!(site.dtype(0)?, site, T => match op {
        Fold::Max => folded::<T>(walk, n, maximum, |y| y),
        Fold::Min => folded::<T>(walk, n, minimum, |y| y),
        Fold::Sum => folded::<T>(walk, n, |a, b| a + b, |y| y),
        Fold::Mean => {
            let share = <T as Real>::Wide::of(share);
            folded::<T>(walk, n, |a, b| a + b, move |y| y / share)
        }
    }))
}

/// The greater of two, NaN if one is.
pub(crate) fn maximum<W: Float>(a: W, b: W) -> W {
    if a > b || a.is_nan() { a } else { b }
}

/// The smaller of two, NaN if one is.
pub(crate) fn minimum<W: Float>(a: W, b: W) -> W {
    if a < b || a.is_nan() { a } else { b }
}

fn folded<T: Real>(
    walk: Walk,
    n: usize,
    f: impl Fn(T::Wide, T::Wide) -> T::Wide + Copy + Send + Sync + 'static,
    last: impl Fn(T::Wide) -> T::Wide + Copy + Send + Sync + 'static,
) -> Prepared {
    if n == 2 {
        return zipped::<T>(walk, move |a, b| last(f(a, b)));
    }
    Prepared::new(move |io| {
        let operands = (0..n).map(|i| io.slice::<T>(i)).collect::<Result<SmallVec<[_; 16]>>>()?;
        fold_real::<T>(&walk, &operands, io.out(0)?, f, last);
        Ok(())
    })
}

fn folded_int<T: Element + Send + Sync>(
    walk: Walk,
    n: usize,
    f: impl Fn(T, T) -> T + Copy + Send + Sync + 'static,
) -> Prepared {
    if n == 2 {
        return zipped_int::<T>(walk, f);
    }
    Prepared::new(move |io| {
        let to = io.out::<T>(0)?;
        let f = pairs(f);
        zip_parts(&walk, (0, Some(io.slice::<T>(0)?)), (1, Some(io.slice::<T>(1)?)), to, &f);
        for i in 2..n {
            zip_parts(&walk, (i, None), (i, Some(io.slice::<T>(i)?)), to, &f);
        }
        Ok(())
    })
}

/// Min(max, Max(input, min)), where a bound that is absent does not bound.
fn clip(site: &Site<'_>) -> Result<Prepared> {
    let view = ClipView::read(&site.view);
    if site.dtype(0)?.is_integer() {
        return Ok(for_int!(site.dtype(0)?, site, T => Prepared::new(move |io| {
            let low = int_bound::<T>(io, view.min)?.unwrap_or(T::MIN);
            let high = int_bound::<T>(io, view.max)?.unwrap_or(T::MAX);
            map_cells(operand_of_result::<T>(io)?, io.out(0)?, &|from, to| {
                to.iter_mut().zip(from).for_each(|(y, &x)| *y = clamp(x, low, high));
            });
            Ok(())
        })
        .in_place(&[0])));
    }
    Ok(for_real!(site.dtype(0)?, site, T => Prepared::new(move |io| {
        let low = real_bound::<T>(io, view.min)?.unwrap_or(<T as Real>::Wide::neg_infinity());
        let high = real_bound::<T>(io, view.max)?.unwrap_or(<T as Real>::Wide::infinity());
        map::<T>(operand_of_result(io)?, io.out(0)?, &|from, to| apply(from, to, |x| clamp(x, low, high)));
        Ok(())
    })
    .in_place(&[0])))
}

/// The one element of an operand.
fn one_element<T: Element>(io: &Io<'_>, i: usize) -> Result<T> {
    match io.slice::<T>(i)? {
        [element] => Ok(*element),
        others => Err(OpError::operand(i, "one element", others.len().to_string()).into()),
    }
}

fn int_bound<T: Element>(io: &Io<'_>, bound: Bound) -> Result<Option<T>> {
    match bound {
        Bound::Operand(i) => one_element::<T>(io, i).map(Some),
        Bound::None | Bound::Number(_) => Ok(None),
    }
}

fn real_bound<T: Real>(io: &Io<'_>, bound: Bound) -> Result<Option<T::Wide>> {
    Ok(match bound {
        Bound::Operand(i) => Some(one_element::<T>(io, i)?.wide()),
        Bound::Number(number) => Some(T::Wide::of(f64::from(number))),
        Bound::None => None,
    })
}

/// x where it is not negative, slope · x elsewhere.
fn p_relu(site: &Site<'_>) -> Result<Prepared> {
    let walk = walk_of(site, 2)?;
    if site.dtype(0)?.is_integer() {
        #[allow(
            unused_comparisons,
            clippy::absurd_extreme_comparisons,
            reason = "unsigned types are instances too"
        )]
        let kernel = for_int!(site.dtype(0)?, site, T => {
            zipped_int::<T>(walk, |x: T, slope| if x < T::zero() { x.wrapping_mul(slope) } else { x })
        });
        return Ok(kernel);
    }
    Ok(for_real!(site.dtype(0)?, site, T => {
        zipped::<T>(walk, |x, slope| if x < Zero::zero() { x * slope } else { x })
    }))
}

/// Mod: the remainder has the sign of the divisor, or with `fmod` that of the dividend.
fn modulo(site: &Site<'_>) -> Result<Prepared> {
    let walk = walk_of(site, 2)?;
    let truncates = site.view.int("fmod").unwrap_or(0) != 0;
    if site.dtype(0)?.is_integer() {
        #[allow(
            unused_comparisons,
            clippy::absurd_extreme_comparisons,
            reason = "unsigned types are instances too"
        )]
        let kernel = for_int!(site.dtype(0)?, site, T => zipped_int::<T>(walk, move |a: T, b: T| {
            let rest = if b == 0 { 0 } else { a.wrapping_rem(b) };
            let turns = !truncates && rest != 0 && (rest < 0) != (b < 0);
            if turns { rest.wrapping_add(b) } else { rest }
        }));
        return Ok(kernel);
    }
    Ok(for_real!(site.dtype(0)?, site, T => match truncates {
        true => zipped::<T>(walk, |a, b| a % b),
        false => zipped::<T>(walk, floor_mod),
    }))
}

/// a − ⌊a / b⌋ · b.
fn floor_mod<W: Float>(a: W, b: W) -> W {
    let rest = a % b;
    if rest == W::zero() {
        rest.copysign(b)
    } else if (rest < W::zero()) != (b < W::zero()) {
        rest + b
    } else {
        rest
    }
}

/// Pow: the exponent may be of another type than the base, which is that of the result.
fn pow(site: &Site<'_>) -> Result<Prepared> {
    let (base, exponent, walk) = (site.dtype(0)?, site.dtype(1)?, walk_of(site, 2)?);
    let count = site.dims(1)?.iter().product::<usize>();
    if base.is_integer() && exponent.is_integer() {
        return Ok(for_int!(base, site, T => {
            powers::<T, i64>(walk, exponent, count, |x, n| int_power(x, n, T::wrapping_mul))
        }));
    }
    if base.is_integer() {
        #[expect(clippy::cast_possible_truncation, clippy::allow_attributes, reason = "as NumPy casts")]
        #[allow(clippy::cast_precision_loss, reason = "narrow types are instances too")]
        let kernel = for_int!(base, site, T => powers::<T, f64>(walk, exponent, count, |x, y| (x as f64).powf(y) as T));
        return Ok(kernel);
    }
    let is_scalar = count == 1;
    Ok(for_real!(base, site, T => {
        let general = match base == exponent {
            true => zipped::<T>(walk.clone(), |x, y| x.powf(y)),
            false => powers::<T, f64>(walk.clone(), exponent, count, |x, y| T::round_f64(x.wide().to().powf(y))),
        };
        if is_scalar { squared::<T>(exponent, general) } else { general }
    }))
}

/// Pow with one exponent: 2 and 3, which are common, are products.
fn squared<T: Real>(exponent: DType, general: Prepared) -> Prepared {
    let Prepared { mut needs, run, .. } = general;
    // The exponent is read first.
    needs.in_place.retain(|i| *i == 0);
    let kernel = Prepared::new(move |io| {
        let mut number = [0f64];
        f64::decode(exponent, io.bytes(1)?, &mut number)?;
        let base = if io.in_place == Some(0) { None } else { Some(io.slice::<T>(0)?) };
        // The second operand is not looked at.
        match number {
            [2.0] => map::<T>(base, io.out(0)?, &|from, to| apply(from, to, |x| x * x)),
            [3.0] => map::<T>(base, io.out(0)?, &|from, to| {
                apply(from, to, |x| {
                    let x = x.to();
                    T::Wide::of(x * x * x)
                });
            }),
            _ => run(io)?,
        }
        Ok(())
    });
    Prepared { needs, ..kernel }
}

/// Pow whose exponents are of another type: as `E`s first.
fn powers<T: Element + Send + Sync, E: Lane>(
    walk: Walk,
    exponent: DType,
    count: usize,
    f: impl Fn(T, E) -> T + Copy + Send + Sync + 'static,
) -> Prepared {
    Prepared::new(move |io| {
        let exponents = &mut io.scratch::<E>()[..count];
        E::decode(exponent, io.bytes(1)?, exponents)?;
        zip_parts(&walk, (0, Some(io.slice::<T>(0)?)), (1, Some(&*exponents)), io.out(0)?, &pairs(f));
        Ok(())
    })
    .scratch(count * size_of::<E>())
}

/// x to the power of n; the whole part for a negative power, and 0 if infinite.
fn int_power<T: PrimInt>(x: T, n: i64, times: impl Fn(T, T) -> T) -> T {
    let (mut rest, mut square, mut y) = (n.unsigned_abs(), x, T::one());
    let is_unit = x == T::one() || x < T::zero() && x + T::one() == T::zero();
    if n < 0 && !is_unit {
        return T::zero();
    }
    while rest > 0 {
        if rest & 1 == 1 {
            y = times(y, square);
        }
        square = times(square, square);
        rest >>= 1;
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_integers() {
        let power = |x: i32, n| int_power(x, n, i32::wrapping_mul);
        assert_eq!([power(3, 4), power(-2, 3), power(0, 0), power(7, 0)], [81, -8, 1, 1]);
        assert_eq!([power(2, -1), power(-1, -3), power(1, -9), power(0, -1)], [0, -1, 1, 0]);
        assert_eq!(power(3, 21), 3i32.wrapping_pow(21));
    }

    #[test]
    fn remainders_have_the_sign_of_the_divisor() {
        assert_eq!([floor_mod(-5.0, 3.0), floor_mod(5.0, -3.0), floor_mod(4.5, 1.5)], [1.0, -1.0, 0.0]);
        assert_eq!([floor_mod(1.0, f32::INFINITY), floor_mod(-1.0, f32::INFINITY)], [1.0, f32::INFINITY]);
        assert!(floor_mod(3.0, -3.0f32).is_sign_negative() && floor_mod(1.0, 0.0f32).is_nan());
    }
}
