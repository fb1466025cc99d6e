//! The operations of groups on blocks of elements: numbers as f32, 16-bit floats as their bits, truth values as bytes.
//!
//! Each computes what the kernel of a single node computes of the same elements, by the same functions.

use crate::cpu::kernels::functions::{erf, exp, gelu, gelu_tanh, mish, sigmoid, tanh};
use crate::cpu::kernels::lanes::Real;
use crate::cpu::kernels::pointwise::{maximum, minimum};
use crate::cpu::kernels::vector::widest;
use ampc_ir::DType;
use ampc_ir::views::expression::{Arithmetic, Function, Logic, Order};
use half::{bf16, f16};

/// `to[i] = f(from[i])`.
fn each<A: Copy, T>(from: &[A], to: &mut [T], f: impl Fn(A) -> T) {
    widest(|| to.iter_mut().zip(from).for_each(|(y, &x)| *y = f(x)));
}

/// `to[i] = f(a[i], b[i])`.
fn pairs<A: Copy, T>(a: &[A], b: &[A], to: &mut [T], f: impl Fn(A, A) -> T) {
    widest(|| to.iter_mut().zip(a).zip(b).for_each(|((y, &a), &b)| *y = f(a, b)));
}

/// A function of every number.
pub(super) fn apply(function: Function, x: &[f32], to: &mut [f32]) {
    match function {
        Function::Abs => each(x, to, f32::abs),
        Function::Acos => each(x, to, f32::acos),
        Function::Acosh => each(x, to, |x| if x < 1.0 { f32::NAN } else { libm::acoshf(x) }),
        Function::Asin => each(x, to, f32::asin),
        Function::Asinh => each(x, to, libm::asinhf),
        Function::Atan => each(x, to, f32::atan),
        Function::Atanh => each(x, to, libm::atanhf),
        Function::Ceil => each(x, to, f32::ceil),
        Function::Cos => each(x, to, f32::cos),
        Function::Cosh => each(x, to, f32::cosh),
        Function::Erf => each(x, to, erf),
        Function::Exp => each(x, to, exp),
        Function::ExpM1 => each(x, to, f32::exp_m1),
        Function::Floor => each(x, to, f32::floor),
        Function::Gelu => each(x, to, gelu),
        Function::GeluTanh => each(x, to, gelu_tanh),
        Function::Ln => each(x, to, f32::ln),
        Function::Ln1p => each(x, to, f32::ln_1p),
        Function::Mish => each(x, to, mish),
        Function::Neg => each(x, to, |x| -x),
        Function::Round => each(x, to, f32::round_ties_even),
        Function::Sigmoid => each(x, to, sigmoid),
        Function::Sin => each(x, to, f32::sin),
        Function::Sinh => each(x, to, f32::sinh),
        Function::Sqrt => each(x, to, f32::sqrt),
        Function::Tan => each(x, to, f32::tan),
        Function::Tanh => each(x, to, tanh),
    }
}

/// Numbers that are no less.
pub(super) fn at_least(least: f32, x: &[f32], to: &mut [f32]) {
    each(x, to, |x| if x < least { least } else { x });
}

/// Numbers that are no greater.
pub(super) fn at_most(most: f32, x: &[f32], to: &mut [f32]) {
    each(x, to, |x| if x > most { most } else { x });
}

/// A number from each pair.
pub(super) fn combine(operation: Arithmetic, a: &[f32], b: &[f32], to: &mut [f32]) {
    match operation {
        Arithmetic::Add => pairs(a, b, to, |a, b| a + b),
        Arithmetic::Sub => pairs(a, b, to, |a, b| a - b),
        Arithmetic::Mul => pairs(a, b, to, |a, b| a * b),
        Arithmetic::Div => pairs(a, b, to, |a, b| a / b),
        Arithmetic::Max => pairs(a, b, to, maximum),
        Arithmetic::Min => pairs(a, b, to, minimum),
    }
}

/// `to[i]` from `a[i]` and the right operand `b`.
pub(super) fn combine_with(operation: Arithmetic, a: &[f32], b: f32, to: &mut [f32]) {
    match operation {
        Arithmetic::Add => each(a, to, |a| a + b),
        Arithmetic::Sub => each(a, to, |a| a - b),
        Arithmetic::Mul => each(a, to, |a| a * b),
        Arithmetic::Div => each(a, to, |a| a / b),
        Arithmetic::Max => each(a, to, |a| maximum(a, b)),
        Arithmetic::Min => each(a, to, |a| minimum(a, b)),
    }
}

/// `to[i]` from the left operand `a` and `b[i]`.
pub(super) fn combine_of(operation: Arithmetic, a: f32, b: &[f32], to: &mut [f32]) {
    match operation {
        Arithmetic::Add => each(b, to, |b| a + b),
        Arithmetic::Sub => each(b, to, |b| a - b),
        Arithmetic::Mul => each(b, to, |b| a * b),
        Arithmetic::Div => each(b, to, |b| a / b),
        Arithmetic::Max => each(b, to, |b| maximum(a, b)),
        Arithmetic::Min => each(b, to, |b| minimum(a, b)),
    }
}

/// A truth value from each pair of numbers.
pub(super) fn compare(order: Order, a: &[f32], b: &[f32], to: &mut [u8]) {
    match order {
        Order::Equal => pairs(a, b, to, |a, b| u8::from(a == b)),
        Order::Unequal => pairs(a, b, to, |a, b| u8::from(a != b)),
        Order::Less => pairs(a, b, to, |a, b| u8::from(a < b)),
        Order::LessOrEqual => pairs(a, b, to, |a, b| u8::from(a <= b)),
        Order::Greater => pairs(a, b, to, |a, b| u8::from(a > b)),
        Order::GreaterOrEqual => pairs(a, b, to, |a, b| u8::from(a >= b)),
    }
}

/// A truth value from each pair. A byte that is not 0 is true.
pub(super) fn join(logic: Logic, a: &[u8], b: &[u8], to: &mut [u8]) {
    match logic {
        Logic::And => pairs(a, b, to, |a, b| u8::from((a != 0) & (b != 0))),
        Logic::Or => pairs(a, b, to, |a, b| u8::from((a != 0) | (b != 0))),
        Logic::Xor => pairs(a, b, to, |a, b| u8::from((a != 0) != (b != 0))),
        Logic::Same => pairs(a, b, to, |a, b| u8::from((a != 0) == (b != 0))),
    }
}

/// The opposite of every truth value.
pub(super) fn not(a: &[u8], to: &mut [u8]) {
    each(a, to, |a| u8::from(a == 0));
}

/// Elements of `x` where the condition is true, of `y` elsewhere.
pub(super) fn choose<T: Copy>(condition: &[u8], x: &[T], y: &[T], to: &mut [T]) {
    // Without a branch, so that several are chosen at once.
    let cells = to.iter_mut().zip(condition).zip(x.iter().zip(y));
    widest(|| cells.for_each(|((to, &c), (&x, &y))| *to = std::hint::select_unpredictable(c != 0, x, y)));
}

/// Numbers of a 16-bit float from their bits.
pub(super) fn widen(dtype: DType, bits: &[u16], to: &mut [f32]) {
    match dtype {
        DType::F16 => f16::widen(bytemuck::cast_slice(bits), to),
        _ => bf16::widen(bytemuck::cast_slice(bits), to),
    }
}

/// The bits of numbers that are rounded to a 16-bit float.
pub(super) fn narrow(dtype: DType, numbers: &[f32], to: &mut [u16]) {
    match dtype {
        DType::F16 => f16::narrow(numbers, bytemuck::cast_slice_mut(to)),
        _ => bf16::narrow(numbers, bytemuck::cast_slice_mut(to)),
    }
}

/// Numbers rounded to a 16-bit float.
pub(super) fn round(dtype: DType, numbers: &[f32], to: &mut [f32]) {
    match dtype {
        DType::F16 => f16::rounded(numbers, to),
        _ => bf16::rounded(numbers, to),
    }
}

/// Rounds numbers to a 16-bit float.
pub(super) fn round_in_place(dtype: DType, numbers: &mut [f32]) {
    match dtype {
        DType::F16 => f16::round_in_place(numbers),
        _ => bf16::round_in_place(numbers),
    }
}
