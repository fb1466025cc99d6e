//! The functions of scalar expressions in CUDA C, in f32 and in f64.
//!
//! CUDA's own functions are used where they exist. The others are overloaded for both types. None of their sums
//! cancels, and their limits are those of the other backends: `x · Φ(x)` (Gelu), its tanh approximation, and
//! `x · tanh(ln(1 + eˣ))` (Mish) are NaN for −∞ and NaN, and keep their relative accuracy far below 0.

use ampc_ir::views::expression::Function;

/// 1 / (1 + e⁻ˣ), without overflow.
const SIGMOID: &str = r"
__device__ __forceinline__ float sigmoid(float x) { float e = expf(-fabsf(x)); return (x < 0.0f ? e : 1.0f) / (1.0f + e); }
__device__ __forceinline__ double sigmoid(double x) { double e = exp(-fabs(x)); return (x < 0.0 ? e : 1.0) / (1.0 + e); }
";

/// x / 2 · erfc(−x / √2). erfc amplifies the rounding error of the quotient by a factor of about the quotient,
/// so the f32 version adds a first-order correction.
const GELU: &str = r"
__device__ __forceinline__ float gelu(float x) {
  float t = x * -0.707106769f, y = erfcf(t);
  if (t > 0.5f && t < 11.0f) y -= y * (2.0f * t * (fmaf(x, -0.707106769f, -t) + x * -1.21016175e-8f));
  return 0.5f * x * y;
}
__device__ __forceinline__ double gelu(double x) { return 0.5 * x * erfc(-x * 0.70710678118654752); }
";

/// x · σ(2u) with u = √(2/π) · (x + 0.044715 · x³). The f32 version computes the exponent in f64 and splits
/// it in two.
const GELU_TANH: &str = r"
__device__ __forceinline__ float gelu_tanh(float x) {
  double size = fabsf(x), exponent = size * (1.5957691216057308 + 0.07135481627260025 * size * size);
  if (exponent >= 125.0) return x < 0.0f ? x * 0.0f : x;
  float high = (float)-exponent, low = (float)(-exponent - (double)high), e = expf(high);
  e += e * low;
  return x * ((x < 0.0f ? e : 1.0f) / (1.0f + e));
}
__device__ __forceinline__ double gelu_tanh(double x) {
  double e = exp(-fabs(x * (1.5957691216057308 + 0.07135481627260025 * x * x)));
  return x * ((x < 0.0 ? e : 1.0) / (1.0 + e));
}
";

/// x · s / (s + 2) with s = eˣ · (eˣ + 2).
const MISH: &str = r"
__device__ __forceinline__ float mish(float x) { float e = expf(x > 20.0f ? 20.0f : x), s = e * (e + 2.0f); return x * (s / (s + 2.0f)); }
__device__ __forceinline__ double mish(double x) { double e = exp(x > 20.0 ? 20.0 : x), s = e * (e + 2.0); return x * (s / (s + 2.0)); }
";

/// A function in CUDA C.
pub(super) struct Printed {
    /// The names of the f32 and f64 functions.
    pub(super) names: [&'static str; 2],
    /// The definition of both; empty for functions of CUDA.
    pub(super) definition: &'static str,
}

/// The CUDA C form of a function.
pub(super) fn printed(function: Function) -> Printed {
    let cuda = |narrow, wide| Printed { names: [narrow, wide], definition: "" };
    let own = |name, definition| Printed { names: [name, name], definition };
    match function {
        Function::Abs => cuda("fabsf", "fabs"),
        Function::Acos => cuda("acosf", "acos"),
        Function::Acosh => cuda("acoshf", "acosh"),
        Function::Asin => cuda("asinf", "asin"),
        Function::Asinh => cuda("asinhf", "asinh"),
        Function::Atan => cuda("atanf", "atan"),
        Function::Atanh => cuda("atanhf", "atanh"),
        Function::Ceil => cuda("ceilf", "ceil"),
        Function::Cos => cuda("cosf", "cos"),
        Function::Cosh => cuda("coshf", "cosh"),
        Function::Erf => cuda("erff", "erf"),
        Function::Exp => cuda("expf", "exp"),
        Function::ExpM1 => cuda("expm1f", "expm1"),
        Function::Floor => cuda("floorf", "floor"),
        Function::Gelu => own("gelu", GELU),
        Function::GeluTanh => own("gelu_tanh", GELU_TANH),
        Function::Ln => cuda("logf", "log"),
        Function::Ln1p => cuda("log1pf", "log1p"),
        Function::Mish => own("mish", MISH),
        Function::Neg => cuda("-", "-"),
        Function::Round => cuda("rintf", "rint"),
        Function::Sigmoid => own("sigmoid", SIGMOID),
        Function::Sin => cuda("sinf", "sin"),
        Function::Sinh => cuda("sinhf", "sinh"),
        Function::Sqrt => cuda("sqrtf", "sqrt"),
        Function::Tan => cuda("tanf", "tan"),
        Function::Tanh => cuda("tanhf", "tanh"),
    }
}
