//! CUDA C source text: element types, constants, and index expressions.

use crate::kernel::Dims;
use ampc_ir::DType;
use std::fmt::Write;

/// An element type as kernels load and store it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Elem {
    F64,
    F32,
    F16,
    BF16,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
    /// Elements of 1, 2, 4 or 8 bytes that are moved without conversion.
    Raw(usize),
}

impl Elem {
    /// The element type for arithmetic kernels; `None` if they do not support it.
    pub(super) fn number(dtype: DType) -> Option<Elem> {
        Some(match dtype {
            DType::F64 => Elem::F64,
            DType::F32 => Elem::F32,
            DType::F16 => Elem::F16,
            DType::BF16 => Elem::BF16,
            DType::I64 => Elem::I64,
            DType::I32 => Elem::I32,
            DType::I16 => Elem::I16,
            DType::I8 => Elem::I8,
            DType::U64 => Elem::U64,
            DType::U32 => Elem::U32,
            DType::U16 => Elem::U16,
            DType::U8 => Elem::U8,
            DType::Bool => Elem::Bool,
            _ => return None,
        })
    }

    /// The element type for kernels that compute in f32; `None` for other types.
    pub(super) fn float(dtype: DType) -> Option<Elem> {
        Elem::number(dtype).filter(|elem| matches!(elem, Elem::F32 | Elem::F16 | Elem::BF16))
    }

    /// The element type for kernels that only move elements.
    pub(super) fn raw(dtype: DType) -> Option<Elem> {
        let bytes = dtype.bits()? / 8;
        matches!(bytes, 1 | 2 | 4 | 8).then_some(Elem::Raw(bytes as usize))
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Elem::F64 | Elem::I64 | Elem::U64 => 8,
            Elem::F32 | Elem::I32 | Elem::U32 => 4,
            Elem::F16 | Elem::BF16 | Elem::I16 | Elem::U16 => 2,
            Elem::I8 | Elem::U8 | Elem::Bool => 1,
            Elem::Raw(bytes) => bytes,
        }
    }

    pub(super) fn is_float(self) -> bool {
        matches!(self, Elem::F64 | Elem::F32 | Elem::F16 | Elem::BF16)
    }

    pub(super) fn is_integer(self) -> bool {
        !self.is_float() && !matches!(self, Elem::Bool | Elem::Raw(_))
    }

    /// True if the type is a signed integer.
    pub(super) fn is_signed(self) -> bool {
        matches!(self, Elem::I64 | Elem::I32 | Elem::I16 | Elem::I8)
    }

    /// The C type in memory.
    pub(super) fn stored(self) -> &'static str {
        match self {
            Elem::F64 => "double",
            Elem::F32 => "float",
            Elem::F16 | Elem::BF16 | Elem::U16 | Elem::Raw(2) => "u16",
            Elem::I64 => "i64",
            Elem::I32 => "int",
            Elem::I16 => "short",
            Elem::I8 => "signed char",
            Elem::Bool | Elem::U8 | Elem::Raw(1) => "u8",
            Elem::U32 | Elem::Raw(4) => "u32",
            Elem::U64 | Elem::Raw(_) => "u64",
        }
    }

    /// The C type of computations.
    pub(super) fn wide(self) -> &'static str {
        match self {
            Elem::F16 | Elem::BF16 => "float",
            Elem::Bool => "bool",
            _ => self.stored(),
        }
    }

    /// An expression that loads a stored element and widens it.
    pub(super) fn load(self, from: &str) -> String {
        match self {
            Elem::F16 => format!("from_f16({from})"),
            Elem::BF16 => format!("from_bf16({from})"),
            Elem::Bool => format!("({from} != 0)"),
            _ => from.to_owned(),
        }
    }

    /// An expression that narrows a number to its stored type, rounding once.
    pub(super) fn store(self, number: &str) -> String {
        match self {
            Elem::F16 => format!("to_f16({number})"),
            Elem::BF16 => format!("to_bf16({number})"),
            Elem::Bool => format!("(u8)(({number}) ? 1 : 0)"),
            _ => format!("({})({number})", self.stored()),
        }
    }
}

/// The prelude of every kernel: types and conversions. Kernels are compiled without CUDA's headers.
pub(super) const HEAD: &str = r#"
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
__device__ __forceinline__ float from_f16(u16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
__device__ __forceinline__ u16 to_f16(float x) { u16 y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
__device__ __forceinline__ float from_bf16(u16 x) { return __uint_as_float((u32)x << 16); }
__device__ __forceinline__ u16 to_bf16(float x) { u16 y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) <= 3.402823466e38f; }
__device__ __forceinline__ u64 first() { return blockIdx.x * (u64)blockDim.x + threadIdx.x; }
__device__ __forceinline__ u64 step() { return gridDim.x * (u64)blockDim.x; }
"#;

/// `to_odd`: rounds an f64 to an f32 so that a later rounding to 16 bits gives the correctly rounded f64 (round to
/// odd, Boldo & Melquiond 2008).
pub(super) const TO_ODD: &str = r"
__device__ __forceinline__ float to_odd(double x) {
  float y = (float)x;
  if (x != x || (double)y == x) return y;
  u32 bits = __float_as_uint(y);
  return __uint_as_float((fabs((double)y) > fabs(x) ? bits - 1 : bits) | 1);
}
";

/// Reductions to sums and maxima over the threads of a block, in a fixed order; every thread gets the result.
pub(super) const FOLDS: &str = r"
#define FOLD(name, join) \
__device__ float name(float x) { \
  __shared__ float part[32]; \
  for (int o = 16; o; o >>= 1) { float y = __shfl_xor_sync(0xffffffffu, x, o); x = join; } \
  __syncthreads(); \
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = x; \
  __syncthreads(); \
  x = part[0]; \
  for (u32 w = 1; w < blockDim.x >> 5; w++) { float y = part[w]; x = join; } \
  return x; \
}
FOLD(block_sum, x + y)
FOLD(block_max, (x != x || x > y) ? x : y)
FOLD(block_min, (x != x || x < y) ? x : y)
";

/// The failure of a kernel: names the first kernel that fails, with the largest offending number.
pub(super) const FAIL: &str = r"
__device__ void fail(u64* failure, u64 name, i64 found) {
  u64 before = atomicCAS(failure, 0ull, name);
  if (before == 0 || before == name) atomicMax((i64*)failure + 1, found);
}
";

/// An f32 literal.
pub(super) fn f32_text(x: f32) -> String {
    format!("__int_as_float(0x{:08x})", x.to_bits())
}

/// An f64 literal.
pub(super) fn f64_text(x: f64) -> String {
    format!("__longlong_as_double(0x{:016x}ll)", x.to_bits())
}

/// The iteration space of a result with its operands: the extents, and for each operand its strides and first
/// element.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    pub(super) dims: Dims,
    pub(super) operands: Vec<Steps>,
}

/// The strides of a tensor in elements, and its first element.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Steps {
    pub(super) first: i64,
    pub(super) steps: Vec<i64>,
}

impl Steps {
    /// A tensor broadcast to `dims`; `None` if the dims are incompatible.
    pub(super) fn broadcast(of: &[usize], dims: &[usize]) -> Option<Steps> {
        let leading = dims.len().checked_sub(of.len())?;
        let mut steps = vec![0; dims.len()];
        let mut step = 1i64;
        for axis in (0..of.len()).rev() {
            match of[axis] {
                1 => {}
                n if n == dims[leading + axis] => steps[leading + axis] = step,
                _ => return None,
            }
            step *= i64::try_from(of[axis]).ok()?;
        }
        Some(Steps { first: 0, steps })
    }
}

impl Walk {
    /// Merges axes that are contiguous in all operands, and drops axes with one element.
    pub(super) fn new(dims: &[usize], operands: Vec<Steps>) -> Walk {
        let mut joined = Dims::new();
        let mut steps: Vec<Vec<i64>> = vec![Vec::new(); operands.len()];
        for (axis, &n) in dims.iter().enumerate() {
            if n == 1 {
                continue;
            }
            #[expect(clippy::cast_possible_wrap, reason = "an extent of a tensor")]
            let follows = |(before, operand): (&Vec<i64>, &Steps)| {
                before.last() == Some(&(operand.steps[axis] * n as i64))
            };
            if !joined.is_empty() && steps.iter().zip(&operands).all(follows) {
                *joined.last_mut().expect("an axis was there") *= n;
                for (steps, operand) in steps.iter_mut().zip(&operands) {
                    *steps.last_mut().expect("an axis was there") = operand.steps[axis];
                }
            } else {
                joined.push(n);
                for (steps, operand) in steps.iter_mut().zip(&operands) {
                    steps.push(operand.steps[axis]);
                }
            }
        }
        let with = |(operand, steps): (Steps, Vec<i64>)| Steps { first: operand.first, steps };
        Walk { dims: joined, operands: operands.into_iter().zip(steps).map(with).collect() }
    }

    pub(super) fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// True if operand `i` is contiguous, from its first element.
    pub(super) fn is_plain(&self, i: usize) -> bool {
        let Steps { first, steps } = &self.operands[i];
        *first == 0 && (steps.is_empty() || steps[..] == [1])
    }

    /// The offset in operand `i` for the flat index `at` of the result, an expression.
    pub(super) fn index(&self, i: usize, at: &str) -> String {
        index_of(&self.dims, &self.operands[i], at)
    }
}

/// The offset for the flat index `at`, an expression, of a tensor of `dims`.
pub(super) fn index_of(dims: &[usize], Steps { first, steps }: &Steps, at: &str) -> String {
    let mut text = first.to_string();
    let mut below = 1usize;
    for axis in (0..dims.len()).rev() {
        if steps[axis] != 0 {
            let quotient = if below == 1 { at.to_owned() } else { format!("{at} / {below}u") };
            let rest = if axis == 0 { quotient } else { format!("({quotient}) % {}u", dims[axis]) };
            let _ = write!(text, " + (i64)({rest}) * {}", steps[axis]);
        }
        below *= dims[axis];
    }
    format!("({text})")
}

/// The type of indices below `n`: 32-bit divisions are faster.
pub(super) fn index_type(n: usize) -> &'static str {
    if n < 1 << 31 { "u32" } else { "u64" }
}
