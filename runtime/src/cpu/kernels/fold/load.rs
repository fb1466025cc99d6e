//! Elements as they are read for a fold, in the type that it is computed in.

use super::number::Number;
use crate::cpu::kernels::lanes::{Real, Wide};
use crate::host::Element;
use half::{bf16, f16};

/// Elements that are folded as `A`s.
pub(crate) trait Load<A>: Element + Send + Sync {
    /// Elements as `A`s.
    fn load(from: &[Self], to: &mut [A]);
    /// Elements as `A`s, if they have this type.
    fn same(from: &[Self]) -> Option<&[A]>;
    /// Elements as `A`s, if they have this type.
    fn same_mut(from: &mut [Self]) -> Option<&mut [A]>;
    /// `A`s as elements: floats rounded once, fractions of integers cut off.
    fn store(from: &[A], to: &mut [Self]);
}

impl<A: Number + Element> Load<A> for A {
    fn load(from: &[A], to: &mut [A]) {
        to.copy_from_slice(from);
    }
    fn same(from: &[A]) -> Option<&[A]> {
        Some(from)
    }
    fn same_mut(from: &mut [A]) -> Option<&mut [A]> {
        Some(from)
    }
    fn store(from: &[A], to: &mut [A]) {
        to.copy_from_slice(from);
    }
}

macro_rules! load_low {
    ($($ty:ident),*) => {$(
        impl Load<f32> for $ty {
            fn load(from: &[$ty], to: &mut [f32]) {
                $ty::widen(from, to);
            }
            fn same(_: &[$ty]) -> Option<&[f32]> {
                None
            }
            fn same_mut(_: &mut [$ty]) -> Option<&mut [f32]> {
                None
            }
            fn store(from: &[f32], to: &mut [$ty]) {
                $ty::narrow(from, to);
            }
        }
    )*};
}

macro_rules! load_each {
    ($($ty:ident as $wide:ident: $load:expr, $store:expr;)*) => {$(
        impl Load<$wide> for $ty {
            fn load(from: &[$ty], to: &mut [$wide]) {
                let load: fn($ty) -> $wide = $load;
                to.iter_mut().zip(from).for_each(|(y, &x)| *y = load(x));
            }
            fn same(_: &[$ty]) -> Option<&[$wide]> {
                None
            }
            fn same_mut(_: &mut [$ty]) -> Option<&mut [$wide]> {
                None
            }
            fn store(from: &[$wide], to: &mut [$ty]) {
                let store: fn($wide) -> $ty = $store;
                to.iter_mut().zip(from).for_each(|(y, &x)| *y = store(x));
            }
        }
    )*};
}

macro_rules! load_integers {
    ($($ty:ident),*) => {
        load_each!($(
            $ty as i128: i128::from, {
                #[expect(clippy::cast_possible_truncation, reason = "what does not fit is cut off")]
                |x| x as $ty
            };
        )*);
        load_each!($(
            $ty as f64: |x| x as f64, {
                #[expect(clippy::cast_possible_truncation, reason = "what does not fit is cut off")]
                |x| x as $ty
            };
        )*);
    };
}

load_low!(f16, bf16);
load_each!(
    f32 as f64: f64::from, f32::of;
    f16 as f64: f16::to_f64, f16::round_f64;
    bf16 as f64: bf16::to_f64, bf16::round_f64;
);
load_integers!(i64, i32, u64, u32);
