//! Comparisons, truth values, bits, and selection: Equal, And, BitShift, IsNaN, Where and the like.

use super::broadcast::{Walk, pairs, zip_parts};
use super::elements::{Text, copies, of_bytes, texts_of};
use super::lane::{BLOCK, Lane, bits_of};
use super::lanes::{for_int, for_real, map_cells};
use super::parallel::{PIECE, pieces};
use super::pointwise::{walk_of, zipped_int};
use crate::host::Element;
use crate::kernel::{Io, KernelError, Prepare, Prepared, Result, Site, elements_mut};
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::broadcast::Shift;
use bytemuck::Pod;
use num_traits::ToPrimitive;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::And => |s| truth(s, |a, b| a & b),
        OpKind::BitShift => bit_shift,
        OpKind::BitwiseAnd => {
            |s| Ok(for_int!(s.dtype(0)?, s, T => zipped_int::<T>(walk_of(s, 2)?, |a, b| a & b)))
        }
        OpKind::BitwiseNot => {
            |s| Ok(for_int!(s.dtype(0)?, s, T => super::activation::mapped_int::<T>(|x| !x)))
        }
        OpKind::BitwiseOr => {
            |s| Ok(for_int!(s.dtype(0)?, s, T => zipped_int::<T>(walk_of(s, 2)?, |a, b| a | b)))
        }
        OpKind::BitwiseXor => {
            |s| Ok(for_int!(s.dtype(0)?, s, T => zipped_int::<T>(walk_of(s, 2)?, |a, b| a ^ b)))
        }
        OpKind::Equal => equal,
        OpKind::Greater => |s| compare(s, Order::Greater),
        OpKind::GreaterOrEqual => |s| compare(s, Order::GreaterOrEqual),
        OpKind::IsInf => is_inf,
        OpKind::IsNaN => |s| test(s, f32::is_nan, f64::is_nan),
        OpKind::Less => |s| compare(s, Order::Less),
        OpKind::LessOrEqual => |s| compare(s, Order::LessOrEqual),
        OpKind::Not => not,
        OpKind::Or => |s| truth(s, |a, b| a | b),
        OpKind::Where => select,
        OpKind::Xor => |s| truth(s, |a, b| a ^ b),
        _ => return None,
    })
}

/// And, Or, Xor.
fn truth(site: &Site<'_>, f: impl Fn(bool, bool) -> bool + Copy + Send + Sync + 'static) -> Result<Prepared> {
    let walk = walk_of(site, 2)?;
    let f = move |a: u8, b: u8| u8::from(f(a != 0, b != 0));
    Ok(Prepared::new(move |io| {
        let operand = |i: usize| if io.in_place == Some(i) { Ok(None) } else { io.bytes(i).map(Some) };
        zip_parts(&walk, (0, operand(0)?), (1, operand(1)?), io.out_bytes(0)?, &pairs(f));
        Ok(())
    })
    .in_place(&[0, 1]))
}

fn not(_: &Site<'_>) -> Result<Prepared> {
    Ok(Prepared::new(|io| {
        let from = if io.in_place.is_some() { None } else { Some(io.bytes(0)?) };
        map_cells(from, io.out_bytes(0)?, &|from, to: &mut [u8]| {
            to.iter_mut().zip(from).for_each(|(y, &x)| *y = u8::from(x == 0));
        });
        Ok(())
    })
    .in_place(&[0]))
}

#[derive(Clone, Copy)]
enum Order {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

fn compare(site: &Site<'_>, order: Order) -> Result<Prepared> {
    let walk = walk_of(site, 2)?;
    if site.dtype(0)?.is_integer() {
        return Ok(for_int!(site.dtype(0)?, site, T => compared::<T>(walk, order)));
    }
    Ok(for_real!(site.dtype(0)?, site, T => compared::<T>(walk, order)))
}

fn compared<T: Element + PartialOrd + Send + Sync>(walk: Walk, order: Order) -> Prepared {
    match order {
        Order::Less => related::<T>(walk, |a, b| a < b),
        Order::LessOrEqual => related::<T>(walk, |a, b| a <= b),
        Order::Greater => related::<T>(walk, |a, b| a > b),
        Order::GreaterOrEqual => related::<T>(walk, |a, b| a >= b),
    }
}

/// A kernel that says whether `f` holds of the elements of two operands.
fn related<T: Element + Send + Sync>(
    walk: Walk,
    f: impl Fn(T, T) -> bool + Copy + Send + Sync + 'static,
) -> Prepared {
    Prepared::new(move |io| {
        let (a, b) = (io.slice::<T>(0)?, io.slice::<T>(1)?);
        zip_parts(&walk, (0, Some(a)), (1, Some(b)), io.out_bytes(0)?, &pairs(|a, b| u8::from(f(a, b))));
        Ok(())
    })
}

fn equal(site: &Site<'_>) -> Result<Prepared> {
    let walk = walk_of(site, 2)?;
    match site.dtype(0)? {
        DType::Bool => truth(site, |a, b| a == b),
        DType::String => Ok(Prepared::new(move |io| {
            let (a, b) = (texts_of(io, 0)?, texts_of(io, 1)?);
            let to = io.out_bytes(0)?;
            let (sa, sb) = (walk.row_stride(0), walk.row_stride(1));
            walk.rows(0, to.len(), |at, n, from| {
                for (i, y) in to[at..at + n].iter_mut().enumerate() {
                    *y = u8::from(a[from[0] + i * sa] == b[from[1] + i * sb]);
                }
            });
            Ok(())
        })),
        dtype if dtype.is_integer() => Ok(for_int!(dtype, site, T => related::<T>(walk, |a, b| a == b))),
        dtype => Ok(for_real!(dtype, site, T => related::<T>(walk, |a, b| a == b))),
    }
}

fn bit_shift(site: &Site<'_>) -> Result<Prepared> {
    let (walk, shift) = (walk_of(site, 2)?, Shift::read(&site.view)?);
    #[allow(
        unused_comparisons,
        clippy::absurd_extreme_comparisons,
        reason = "unsigned types are instances too"
    )]
    let kernel = for_int!(site.dtype(0)?, site, T => {
        let count = |by: T| by.to_u32().filter(|&by| by < T::BITS);
        match shift {
            Shift::Left => zipped_int::<T>(walk, move |x: T, by| count(by).map_or(0, |by| x << by)),
            // What is shifted in are copies of the sign.
            Shift::Right => zipped_int::<T>(walk, move |x: T, by| {
                count(by).map_or(if x < 0 { !0 } else { 0 }, |by| x >> by)
            }),
        }
    });
    Ok(kernel)
}

/// Element-wise tests that only floats can satisfy.
fn test(site: &Site<'_>, narrow: fn(f32) -> bool, wide: fn(f64) -> bool) -> Result<Prepared> {
    match site.dtype(0)? {
        DType::F64 => tested::<f64>(site, wide),
        dtype if dtype.is_float() => tested::<f32>(site, narrow),
        _ => Err(site.no_kernel()),
    }
}

fn is_inf(site: &Site<'_>) -> Result<Prepared> {
    let flag = |name| site.view.int(name).is_none_or(|v| v != 0);
    match (flag("detect_negative"), flag("detect_positive")) {
        (true, true) => test(site, f32::is_infinite, f64::is_infinite),
        (true, false) => test(site, |x| x == f32::NEG_INFINITY, |x| x == f64::NEG_INFINITY),
        (false, true) => test(site, |x| x == f32::INFINITY, |x| x == f64::INFINITY),
        (false, false) => test(site, |_| false, |_| false),
    }
}

fn tested<L: Lane>(site: &Site<'_>, f: fn(L) -> bool) -> Result<Prepared> {
    let dtype = site.dtype(0)?;
    let bits = bits_of(dtype)?;
    // What a small float cannot be read as is an error here, not in every block.
    L::decode(dtype, &[], &mut [])?;
    Ok(Prepared::new(move |io| {
        let from = io.bytes(0)?;
        pieces(io.out_bytes(0)?, PIECE, |at, to| {
            let mut block = [L::zeroed(); BLOCK];
            for (i, to) in to.chunks_mut(BLOCK).enumerate() {
                let block = &mut block[..to.len()];
                let start = (at + i * BLOCK) * bits / 8;
                if L::decode(dtype, &from[start..], block).is_ok() {
                    to.iter_mut().zip(&*block).for_each(|(y, &x)| *y = u8::from(f(x)));
                }
            }
        });
        Ok(())
    }))
}

/// Where: elements of X where the condition holds, of Y elsewhere.
fn select(site: &Site<'_>) -> Result<Prepared> {
    let walk = walk_of(site, 3)?;
    let dtype = site.dtype(1)?;
    if dtype == DType::String {
        let dims: Vec<u64> = site.result_dims(0)?.iter().map(|&d| d as u64).collect();
        return Ok(Prepared::new(move |io| select_strings(io, &walk, &dims)));
    }
    Ok(match dtype.bits() {
        Some(8) => selected::<u8>(walk),
        Some(16) => selected::<u16>(walk),
        Some(32) => selected::<u32>(walk),
        Some(64) => selected::<u64>(walk),
        Some(128) => selected::<[u64; 2]>(walk),
        _ => return Err(site.no_kernel()),
    })
}

fn select_strings(io: &mut Io<'_>, walk: &Walk, dims: &[u64]) -> Result<()> {
    let (condition, x, y) = (io.bytes(0)?, texts_of(io, 1)?, texts_of(io, 2)?);
    let count = walk.len();
    let mut chosen: Vec<&Text> = io.room().list(count)?;
    let steps = [0, 1, 2].map(|i| walk.row_stride(i));
    walk.rows(0, count, |_, n, from| {
        let at = |operand: usize, i: usize| from[operand] + i * steps[operand];
        chosen.extend((0..n).map(|i| match condition[at(0, i)] {
            0 => &y[at(2, i)],
            _ => &x[at(1, i)],
        }));
    });
    let made = copies(io, dims, chosen.into_iter())?;
    io.emit(0, made)
}

fn selected<T: Pod + Send + Sync>(walk: Walk) -> Prepared {
    Prepared::new(move |io| {
        let condition = io.bytes(0)?;
        let operand = |i: usize| {
            if io.in_place == Some(i) {
                Ok::<_, KernelError>(None)
            } else {
                Ok(Some(of_bytes::<T>(io.bytes(i)?)))
            }
        };
        let (x, y) = (operand(1)?, operand(2)?);
        choose(&walk, condition, x, y, elements_mut::<T>(io.out_bytes(0)?));
        Ok(())
    })
    .in_place(&[1, 2])
}

/// `to = condition ? x : y`. `None` stands for the content of `to`.
fn choose<T: Pod + Send + Sync>(
    walk: &Walk,
    condition: &[u8],
    x: Option<&[T]>,
    y: Option<&[T]>,
    to: &mut [T],
) {
    let steps = [0, 1, 2].map(|i| walk.row_stride(i));
    pieces(to, PIECE, |start, to| {
        walk.rows(start, start + to.len(), |at, n, from| {
            let to = &mut to[at - start..at - start + n];
            // A row that has one condition is all X or all Y.
            if steps[0] == 0 {
                let chosen = if condition[from[0]] != 0 { (x, 1) } else { (y, 2) };
                if let (Some(operand), i) = chosen {
                    fill(&operand[from[i]..], steps[i], to);
                }
                return;
            }
            let [x, y] = [(x, 1), (y, 2)].map(|(operand, i)| Side::of(operand, from[i], steps[i], n));
            if steps[0] == 1 {
                choose_row(&condition[from[0]..from[0] + n], x, y, to);
            } else {
                for (i, to) in to.iter_mut().enumerate() {
                    *to = if condition[from[0] + i * steps[0]] != 0 { x.at(i, *to) } else { y.at(i, *to) };
                }
            }
        });
    });
}

/// Source of a choice along a row.
#[derive(Clone, Copy)]
enum Side<'a, T> {
    /// The present content of the result.
    Kept,
    One(T),
    Each(&'a [T]),
    /// Elements so far apart.
    Apart(&'a [T], usize),
}

impl<'a, T: Copy> Side<'a, T> {
    fn of(operand: Option<&'a [T]>, first: usize, step: usize, n: usize) -> Side<'a, T> {
        match (operand, step) {
            (None, _) => Side::Kept,
            (Some(operand), 0) => Side::One(operand[first]),
            (Some(operand), 1) => Side::Each(&operand[first..first + n]),
            (Some(operand), step) => Side::Apart(&operand[first..], step),
        }
    }

    fn at(&self, i: usize, kept: T) -> T {
        match *self {
            Side::Kept => kept,
            Side::One(x) => x,
            Side::Each(list) => list[i],
            Side::Apart(list, step) => list[i * step],
        }
    }
}

/// A row with a condition for each element.
fn choose_row<T: Copy>(condition: &[u8], x: Side<'_, T>, y: Side<'_, T>, to: &mut [T]) {
    // Without a branch, so that several are chosen at once.
    let of = |&c: &u8, x: T, y: T| std::hint::select_unpredictable(c != 0, x, y);
    let cells = to.iter_mut().zip(condition);
    match (x, y) {
        (Side::Each(x), Side::Each(y)) => {
            cells.zip(x.iter().zip(y)).for_each(|((to, c), (&x, &y))| *to = of(c, x, y));
        }
        (Side::Each(x), Side::One(y)) => cells.zip(x).for_each(|((to, c), &x)| *to = of(c, x, y)),
        (Side::One(x), Side::Each(y)) => cells.zip(y).for_each(|((to, c), &y)| *to = of(c, x, y)),
        (Side::One(x), Side::One(y)) => cells.for_each(|(to, c)| *to = of(c, x, y)),
        (Side::Each(x), Side::Kept) => cells.zip(x).for_each(|((to, c), &x)| *to = of(c, x, *to)),
        (Side::Kept, Side::Each(y)) => cells.zip(y).for_each(|((to, c), &y)| *to = of(c, *to, y)),
        (Side::One(x), Side::Kept) => cells.for_each(|(to, c)| *to = of(c, x, *to)),
        (Side::Kept, Side::One(y)) => cells.for_each(|(to, c)| *to = of(c, *to, y)),
        (Side::Kept, Side::Kept) => {}
        (x, y) => {
            cells.enumerate().for_each(|(i, (to, c))| *to = of(c, x.at(i, *to), y.at(i, *to)));
        }
    }
}

/// Elements `step` apart.
fn fill<T: Copy>(from: &[T], step: usize, to: &mut [T]) {
    match step {
        1 => to.copy_from_slice(&from[..to.len()]),
        0 => to.fill(from[0]),
        _ => to.iter_mut().enumerate().for_each(|(i, y)| *y = from[i * step]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selection_walks_all_ways() {
        let condition = [1, 0, 1, 0, 1, 0];
        let (x, y) = ([1u8, 2, 3], [10u8, 20]);
        let walk = Walk::new(&[2, 3], &[&[2, 3], &[3], &[2, 1]]);
        let mut to = [0; 6];
        choose(&walk, &condition, Some(&x), Some(&y), &mut to);
        assert_eq!(to, [1, 10, 3, 20, 2, 20]);
        let walk = Walk::new(&[2, 3], &[&[2, 1], &[2, 3], &[3]]);
        choose(&walk, &[0, 1], None, Some(&x), &mut to);
        assert_eq!(to, [1, 2, 3, 20, 2, 20]);
    }

    /// Every way in which the three operands may be broadcast, and in place of each of the two.
    #[test]
    fn all_steps_choose_alike() {
        let shapes: [&[usize]; 4] = [&[5, 7], &[7], &[5, 1], &[]];
        let dims = [5, 7];
        let condition: Vec<u8> = (0..35u8).map(|i| i * 7 % 5 % 2 * 3).collect();
        let (x, y): (Vec<u32>, Vec<u32>) = ((100..135).collect(), (200..235).collect());
        for i in 0..64 {
            let [c, a, b] = [shapes[i % 4], shapes[i / 4 % 4], shapes[i / 16]];
            let walk = Walk::new(&dims, &[c, a, b]);
            let want: Vec<u32> = (0..35)
                .map(|i| walk.at(i))
                .map(|at| if condition[at[0]] != 0 { x[at[1]] } else { y[at[2]] })
                .collect();
            let mut to = vec![0; 35];
            choose(&walk, &condition, Some(&x), Some(&y), &mut to);
            assert_eq!(to, want, "{c:?} {a:?} {b:?}");
            if a.len() == 2 && a[1] == 7 {
                to.copy_from_slice(&x);
                choose(&walk, &condition, None, Some(&y), &mut to);
                assert_eq!(to, want, "{c:?} in place, {b:?}");
            }
            if b.len() == 2 && b[1] == 7 {
                to.copy_from_slice(&y);
                choose(&walk, &condition, Some(&x), None, &mut to);
                assert_eq!(to, want, "{c:?} {a:?} in place");
            }
        }
    }
}
