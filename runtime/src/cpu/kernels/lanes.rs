//! Floats as kernels compute with them: a block at a time is widened, computed in the wide type, and rounded once.

mod halves;

use self::halves::Halves;
use super::functions::Elementary;
use super::linear::HasProduct;
use super::parallel::{PIECE, pieces};
use super::vector::widest;
use crate::host::Element;
use crate::kernel::{Io, Result};
use ampc_ir::convert::round_to_odd;
use bytemuck::Pod;
use half::{bf16, f16};

/// A type that is computed in: f32 or f64.
pub(crate) trait Wide:
    Element + Elementary + HasProduct + num_traits::Float + Send + Sync + std::iter::Sum
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
    /// As [`rounded`](Self::rounded), in place.
    fn round_in_place(numbers: &mut [Self::Wide]);
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
            fn round_in_place(_: &mut [$ty]) {}
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
            fn round_in_place(numbers: &mut [f32]) {
                <Self as Halves>::round_in_place(numbers);
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

/// A function of the elements of one operand; both slices have the same length.
pub(crate) type OfOne<'f, A, T> = dyn Fn(&[A], &mut [T]) + Sync + 'f;

/// `to = f(from)`, computed wide and rounded once. Without `from`, `f` is computed of what `to` holds.
pub(crate) fn map<T: Real>(from: Option<&[T]>, to: &mut [T], f: &OfOne<'_, T::Wide, T::Wide>) {
    pieces(to, PIECE, |at, to| {
        let from = from.map(|from| &from[at..at + to.len()]);
        if let (Some(from), true) = (from.and_then(T::as_wide), T::IS_WIDE) {
            if let Some(to) = T::as_wide_mut(to) {
                f(from, to);
            }
            return;
        }
        let zero = <T::Wide as num_traits::Zero>::zero();
        let (mut block, mut made) = ([zero; BLOCK], [zero; BLOCK]);
        for (i, to) in to.chunks_mut(BLOCK).enumerate() {
            let (block, made) = (&mut block[..to.len()], &mut made[..to.len()]);
            T::widen(from.map_or(&*to, |from| &from[i * BLOCK..][..to.len()]), block);
            if let Some(to) = T::as_wide_mut(to) {
                f(block, to);
                continue;
            }
            f(block, made);
            T::narrow(made, to);
        }
    });
}

/// As [`map`], of elements that are computed with as they are.
pub(crate) fn map_cells<T: Pod + Sync>(from: Option<&[T]>, to: &mut [T], f: &OfOne<'_, T, T>) {
    pieces(to, PIECE, |at, to| match from {
        Some(from) => f(&from[at..at + to.len()], to),
        None => {
            let mut block = [T::zeroed(); BLOCK];
            for to in to.chunks_mut(BLOCK) {
                let block = &mut block[..to.len()];
                block.copy_from_slice(to);
                f(block, to);
            }
        }
    });
}

/// `to[i] = f(from[i])`. Not in place: of an element that may stay what it is the compiler makes a masked store, which
/// is slow on some processors.
pub(crate) fn apply<W: Wide>(from: &[W], to: &mut [W], f: impl Fn(W) -> W) {
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

/// As [`widened`], by the calling thread alone: for a task of parallel work.
pub(crate) fn widened_by_task<'a, T: Real>(from: &'a [T], room: &'a mut [T::Wide]) -> &'a [T::Wide] {
    if let Some(wide) = T::as_wide(from) {
        return wide;
    }
    let room = &mut room[..from.len()];
    T::widen(from, room);
    room
}

/// The elements of the first operand; `None` if the result is computed in its place.
pub(super) fn operand_of_result<'a, T: Element>(io: &Io<'a>) -> Result<Option<&'a [T]>> {
    if io.in_place.is_some() { Ok(None) } else { io.slice(0).map(Some) }
}

/// NaN stays NaN.
pub(super) fn clamp<T: PartialOrd>(x: T, low: T, high: T) -> T {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
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

/// As `for_int` and `for_real`, for all of them.
macro_rules! for_number {
    ($dtype:expr, $site:expr, $T:ident => $work:expr) => {
        if $dtype.is_integer() { for_int!($dtype, $site, $T => $work) } else { for_real!($dtype, $site, $T => $work) }
    };
}

pub(crate) use {for_int, for_number, for_real};
