//! Numbers that are folded.

use bytemuck::Pod;

/// Numbers that are folded: floats, and integers that wrap.
pub(crate) trait Number: Pod + Default + PartialOrd + Send + Sync + 'static {
    /// One.
    const ONE: Self;
    /// The sum.
    fn plus(self, other: Self) -> Self;
    /// The difference.
    fn minus(self, other: Self) -> Self;
    /// The product.
    fn times(self, other: Self) -> Self;
    /// The absolute value.
    fn magnitude(self) -> Self;
    /// True if it is not a number.
    fn is_no_number(self) -> bool;
}

macro_rules! float_numbers {
    ($($ty:ident),*) => {$(
        impl Number for $ty {
            const ONE: Self = 1.0;
            #[inline]
            fn plus(self, other: Self) -> Self {
                self + other
            }
            #[inline]
            fn minus(self, other: Self) -> Self {
                self - other
            }
            #[inline]
            fn times(self, other: Self) -> Self {
                self * other
            }
            #[inline]
            fn magnitude(self) -> Self {
                self.abs()
            }
            #[inline]
            fn is_no_number(self) -> bool {
                self.is_nan()
            }
        }
    )*};
}

macro_rules! integer_numbers {
    ($($ty:ident: $magnitude:expr),*) => {$(
        impl Number for $ty {
            const ONE: Self = 1;
            #[inline]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline]
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline]
            fn magnitude(self) -> Self {
                let magnitude: fn($ty) -> $ty = $magnitude;
                magnitude(self)
            }
            #[inline]
            fn is_no_number(self) -> bool {
                false
            }
        }
    )*};
}

float_numbers!(f32, f64);
integer_numbers!(
    i128: i128::wrapping_abs, i64: i64::wrapping_abs, i32: i32::wrapping_abs, i16: i16::wrapping_abs,
    i8: i8::wrapping_abs, u64: |x| x, u32: |x| x, u16: |x| x, u8: |x| x
);
