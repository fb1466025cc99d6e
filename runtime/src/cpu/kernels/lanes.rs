//! Floats as kernels compute with them: a block at a time is widened, computed in the wide type, and rounded once.

mod halves;

use self::halves::Halves;
use super::functions::Elementary;
use super::vector::widest;
use crate::host::Element;
use ampc_ir::convert::round_to_odd;
use half::{bf16, f16};
use rayon::prelude::*;

/// A type that is computed in: f32 or f64.
pub(crate) trait Wide:
    Element + Elementary + num_traits::Float + Send + Sync + std::iter::Sum
{
    /// The nearest number to an f64.
    fn of(number: f64) -> Self;
    /// The number as f64, which holds it exactly.
    fn to(self) -> f64;
}

impl Wide for f32 {
    #[expect(clippy::cast_possible_truncation, reason = "rounding is what it is for")]
    fn of(number: f64) -> f32 {
        number as f32
    }
    fn to(self) -> f64 {
        f64::from(self)
    }
}

impl Wide for f64 {
    fn of(number: f64) -> f64 {
        number
    }
    fn to(self) -> f64 {
        self
    }
}

/// A float element type, and the type that operators compute in on it.
pub(crate) trait Real: Element + Send + Sync {
    /// f64 for f64, f32 for all others.
    type Wide: Wide;
    /// True if elements are stored in the type of the computation.
    const IS_WIDE: bool;

    /// The exact values of elements.
    fn widen(from: &[Self], to: &mut [Self::Wide]);
    /// Values rounded to nearest even, once.
    fn narrow(from: &[Self::Wide], to: &mut [Self]);
    /// Values as they are after [`narrow`](Self::narrow) and [`widen`](Self::widen).
    fn rounded(from: &[Self::Wide], to: &mut [Self::Wide]);
    /// The exact value of one element.
    fn wide(self) -> Self::Wide;
    /// One value, rounded.
    fn round(value: Self::Wide) -> Self;
    /// An f64, rounded to nearest even, once.
    fn round_f64(value: f64) -> Self;
    /// Elements in the type of the computation, if they have this type.
    fn as_wide(from: &[Self]) -> Option<&[Self::Wide]>;
    /// Elements in the type of the computation, if they have this type.
    fn as_wide_mut(from: &mut [Self]) -> Option<&mut [Self::Wide]>;
}

macro_rules! wide {
    ($($ty:ident),*) => {$(
        impl Real for $ty {
            type Wide = $ty;
            const IS_WIDE: bool = true;
            fn widen(from: &[Self], to: &mut [$ty]) {
                to.copy_from_slice(from);
            }
            fn narrow(from: &[$ty], to: &mut [Self]) {
                to.copy_from_slice(from);
            }
            fn rounded(from: &[$ty], to: &mut [$ty]) {
                to.copy_from_slice(from);
            }
            fn wide(self) -> $ty {
                self
            }
            fn round(value: $ty) -> Self {
                value
            }
            fn round_f64(value: f64) -> Self {
                <$ty as Wide>::of(value)
            }
            fn as_wide(from: &[Self]) -> Option<&[$ty]> {
                Some(from)
            }
            fn as_wide_mut(from: &mut [Self]) -> Option<&mut [$ty]> {
                Some(from)
            }
        }
    )*};
}

macro_rules! low {
    ($($ty:ident),*) => {$(
        impl Real for $ty {
            type Wide = f32;
            const IS_WIDE: bool = false;
            fn widen(from: &[Self], to: &mut [f32]) {
                Halves::widen(from, to);
            }
            fn narrow(from: &[f32], to: &mut [Self]) {
                Halves::narrow(from, to);
            }
            fn rounded(from: &[f32], to: &mut [f32]) {
                <Self as Halves>::rounded(from, to);
            }
            fn wide(self) -> f32 {
                self.widened()
            }
            fn round(value: f32) -> Self {
                Self::narrowed(value)
            }
            fn round_f64(value: f64) -> Self {
                $ty::from_f32(round_to_odd(value))
            }
            fn as_wide(_: &[Self]) -> Option<&[f32]> {
                None
            }
            fn as_wide_mut(_: &mut [Self]) -> Option<&mut [f32]> {
                None
            }
        }
    )*};
}

wide!(f32, f64);
low!(f16, bf16);

/// Elements per block: a widened block stays in the first-level cache.
pub(crate) const BLOCK: usize = 1024;

/// Elements per piece of work that one thread takes; pieces do not depend on the number of threads.
pub(crate) const PIECE: usize = 1 << 15;

/// Calls `work` with every piece of `out` and its first index, in parallel if there are many.
pub(crate) fn pieces<T: Send>(out: &mut [T], piece: usize, work: impl Fn(usize, &mut [T]) + Send + Sync) {
    pieces_of(out, piece, &work);
}

/// The code that starts threads is compiled once for every element type and not for every kernel.
fn pieces_of<T: Send>(out: &mut [T], piece: usize, work: &(dyn Fn(usize, &mut [T]) + Send + Sync)) {
    if out.len() <= piece {
        if !out.is_empty() {
            work(0, out);
        }
        return;
    }
    out.par_chunks_mut(piece).enumerate().for_each(|(i, chunk)| work(i * piece, chunk));
}

/// `to[i] = f(from[i])`, computed wide and rounded once.
pub(crate) fn map<T: Real>(from: &[T], to: &mut [T], f: impl Fn(T::Wide) -> T::Wide + Send + Sync) {
    pieces(to, PIECE, |at, to| {
        let from = &from[at..at + to.len()];
        if let (Some(from), Some(_)) = (T::as_wide(from), T::as_wide(to)) {
            if let Some(to) = T::as_wide_mut(to) {
                apply(from, to, &f);
            }
            return;
        }
        let zero = <T::Wide as num_traits::Zero>::zero();
        let (mut block, mut made) = ([zero; BLOCK], [zero; BLOCK]);
        for (from, to) in from.chunks(BLOCK).zip(to.chunks_mut(BLOCK)) {
            let (block, made) = (&mut block[..from.len()], &mut made[..from.len()]);
            T::widen(from, block);
            apply(block, made, &f);
            T::narrow(made, to);
        }
    });
}

/// `to[i] = f(to[i])`, computed wide and rounded once.
pub(crate) fn map_in_place<T: Real>(to: &mut [T], f: impl Fn(T::Wide) -> T::Wide + Send + Sync) {
    pieces(to, PIECE, |_, to| {
        let zero = <T::Wide as num_traits::Zero>::zero();
        let (mut block, mut made) = ([zero; BLOCK], [zero; BLOCK]);
        for to in to.chunks_mut(BLOCK) {
            let (block, made) = (&mut block[..to.len()], &mut made[..to.len()]);
            T::widen(to, block);
            if let Some(to) = T::as_wide_mut(to) {
                apply(block, to, &f);
                continue;
            }
            apply(block, made, &f);
            T::narrow(made, to);
        }
    });
}

/// `to[i] = f(from[i])`. Not in place: of an element that may stay what it is the compiler makes a masked store, which
/// is slow on some processors.
fn apply<W: Wide>(from: &[W], to: &mut [W], f: &impl Fn(W) -> W) {
    widest(|| to.iter_mut().zip(from).for_each(|(y, &x)| *y = f(x)));
}

/// All elements as f32 or f64: as they are, or widened into `room`.
pub(crate) fn widened<'a, T: Real>(from: &'a [T], room: &'a mut [T::Wide]) -> &'a [T::Wide] {
    if let Some(wide) = T::as_wide(from) {
        return wide;
    }
    let room = &mut room[..from.len()];
    pieces(room, PIECE, |at, room| T::widen(&from[at..at + room.len()], room));
    room
}

/// Calls a generic function or expression with `T` bound to the Rust type of a float element type.
macro_rules! for_real {
    ($dtype:expr, $site:expr, $T:ident => $work:expr) => {
        match $dtype {
            ampc_ir::DType::F32 => {
                type $T = f32;
                $work
            }
            ampc_ir::DType::F64 => {
                type $T = f64;
                $work
            }
            ampc_ir::DType::F16 => {
                type $T = half::f16;
                $work
            }
            ampc_ir::DType::BF16 => {
                type $T = half::bf16;
                $work
            }
            _ => return Err($site.no_kernel()),
        }
    };
}

/// As `for_real`, for integer element types of whole bytes.
macro_rules! for_int {
    ($dtype:expr, $site:expr, $T:ident => $work:expr) => {
        match $dtype {
            ampc_ir::DType::I64 => {
                type $T = i64;
                $work
            }
            ampc_ir::DType::I32 => {
                type $T = i32;
                $work
            }
            ampc_ir::DType::I16 => {
                type $T = i16;
                $work
            }
            ampc_ir::DType::I8 => {
                type $T = i8;
                $work
            }
            ampc_ir::DType::U64 => {
                type $T = u64;
                $work
            }
            ampc_ir::DType::U32 => {
                type $T = u32;
                $work
            }
            ampc_ir::DType::U16 => {
                type $T = u16;
                $work
            }
            ampc_ir::DType::U8 => {
                type $T = u8;
                $work
            }
            _ => return Err($site.no_kernel()),
        }
    };
}

pub(crate) use {for_int, for_real};
