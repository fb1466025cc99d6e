//! Element-wise operators of integers, which compute in their own type and wrap, and of floats without an expression:
//! Pow, Mod.

use super::Maker;
use super::movement::identity;
use super::pointwise::{Operand, computed, operands};
use crate::cuda::text::{Elem, TO_ODD, f64_text};
use crate::kernel::{Prepared, Result, Site};
use ampc_ir::op::OpKind;
use ampc_ir::views::broadcast::{Bound, ClipView, Shift};

/// `to_bits64`: truncates a float to a 64-bit integer. NaN becomes 0; numbers above the signed range have the bits of
/// the unsigned integer; numbers beyond both ranges saturate.
pub(super) const TO_BITS: &str = r"
template <class T> __device__ __forceinline__ i64 to_bits64(T x) {
  if (x != x) return 0;
  if (x >= (T)18446744073709551616.0) return -1;
  if (x >= (T)9223372036854775808.0) return (i64)(u64)x;
  return x < (T)-9223372036854775808.0 ? (i64)(1ull << 63) : (i64)x;
}
";

/// `power`: x to an integer power, wrapped. Negative powers are 0, except of 1 and −1.
const POWER: &str = r"
template <class T> __device__ T power(T x, i64 n) {
  bool is_unit = x == (T)1 || x == (T)-1 && (T)-1 < (T)0;
  if (n < 0 && !is_unit) return 0;
  u64 rest = n < 0 ? 0ull - (u64)n : (u64)n, square = (u64)x, y = 1;
  for (; rest; rest >>= 1, square *= square) if (rest & 1) y *= square;
  return (T)y;
}
";

/// `saturated`: an f64 truncated to an integer type, with saturation; NaN becomes 0.
const SATURATED: &str = r"
template <class T> __device__ T saturated(double x) {
  const bool is_signed = (T)-1 < (T)0;
  const T most = is_signed ? (T)(((u64)1 << (sizeof(T) * 8 - 1)) - 1) : (T)-1, least = is_signed ? (T)(-(i64)most - 1) : (T)0;
  if (x != x) return 0;
  return x >= (double)most ? most : x <= (double)least ? least : (T)x;
}
";

/// The remainder of floats, with the sign of the divisor.
const FLOOR_MOD: &str = r"
__device__ __forceinline__ float remainder_of(float a, float b) {
  float rest = fmodf(a, b);
  if (rest == 0.0f) return copysignf(rest, b);
  return (rest < 0.0f) != (b < 0.0f) ? rest + b : rest;
}
__device__ __forceinline__ double remainder_of(double a, double b) {
  double rest = fmod(a, b);
  if (rest == 0.0) return copysign(rest, b);
  return (rest < 0.0) != (b < 0.0) ? rest + b : rest;
}
";

/// The unsigned type in which integers wrap.
fn unsigned(elem: Elem) -> &'static str {
    if elem.bytes() == 8 { "u64" } else { "u32" }
}

/// A formula of `a0`, `a1`, …, the numbers of the first operands.
pub(super) struct Formula {
    /// The number of operands.
    pub(super) n: usize,
    /// The element type of the result.
    pub(super) to: Elem,
    /// Device functions that the formula calls.
    pub(super) functions: Vec<&'static str>,
    pub(super) text: String,
}

impl Formula {
    /// The kernel of a node that computes the formula.
    pub(super) fn prepare(&self, maker: &Maker<'_>) -> Result<Prepared> {
        computed(maker, &operands(maker, self.n)?, self.to, &self.functions.concat(), &self.text)
    }
}

/// The formula of an operator with one or two integer operands of the same type.
pub(super) fn formula(site: &Site<'_>) -> Option<Formula> {
    let elem = Elem::number(site.dtype(0).ok()?).filter(|elem| elem.is_integer())?;
    let (ty, wide, is_signed) = (elem.stored(), unsigned(elem), elem.is_signed());
    let wrapped = |sign: &str| format!("({ty})(({wide})a0 {sign} ({wide})a1)");
    let negated = format!("({ty})(({wide})0 - ({wide})a0)");
    let of = |n, to, text: &str| Some(Formula { n, to, functions: Vec::new(), text: text.to_owned() });
    let (one, two) = (|text: &str| of(1, elem, text), |text: &str| of(2, elem, text));
    let compared = |text: &str| of(2, Elem::Bool, text);
    match site.kind() {
        OpKind::Abs if is_signed => one(&format!("a0 < 0 ? {negated} : a0")),
        OpKind::Abs => one("a0"),
        OpKind::Neg => one(&negated),
        OpKind::Relu => one("a0 > 0 ? a0 : 0"),
        OpKind::Sign => one("a0 > 0 ? 1 : a0 == 0 ? 0 : -1"),
        OpKind::BitwiseNot => one("~a0"),
        OpKind::Add => two(&wrapped("+")),
        OpKind::Sub => two(&wrapped("-")),
        OpKind::Mul => two(&wrapped("*")),
        OpKind::PRelu if is_signed => two(&format!("a0 < 0 ? {} : a0", wrapped("*"))),
        OpKind::PRelu => two("a0"),
        // A division by 0 gives 0, and the minimum integer divided by -1 gives itself.
        OpKind::Div if is_signed => two(&format!("a1 == 0 ? 0 : a1 == -1 ? {negated} : a0 / a1")),
        OpKind::Div => two("a1 == 0 ? 0 : a0 / a1"),
        OpKind::Mod => {
            let truncates = !is_signed || site.view.int("fmod").unwrap_or(0) != 0;
            let rest = if is_signed { "a1 == 0 || a1 == -1 ? 0 : a0 % a1" } else { "a1 == 0 ? 0 : a0 % a1" };
            match truncates {
                true => two(rest),
                // The remainder has the sign of the divisor.
                false => two(
                    "a1 == 0 || a1 == -1 ? 0 : a0 % a1 + (a0 % a1 != 0 && (a0 % a1 < 0) != (a1 < 0) ? a1 : 0)",
                ),
            }
        }
        OpKind::BitwiseAnd => two("a0 & a1"),
        OpKind::BitwiseOr => two("a0 | a1"),
        OpKind::BitwiseXor => two("a0 ^ a1"),
        OpKind::Equal => compared("a0 == a1"),
        OpKind::Greater => compared("a0 > a1"),
        OpKind::GreaterOrEqual => compared("a0 >= a1"),
        OpKind::Less => compared("a0 < a1"),
        OpKind::LessOrEqual => compared("a0 <= a1"),
        _ => None,
    }
}

/// The kernel of a node without an expression.
pub(super) fn prepare(maker: &Maker<'_>) -> Result<Prepared> {
    let (site, kind) = (maker.site, maker.site.kind());
    match kind {
        OpKind::Pow => return pow(maker),
        OpKind::Mod if site.dtype(0)?.is_float() => return float_mod(maker),
        OpKind::Max | OpKind::Min | OpKind::Sum | OpKind::Mean if site.view.n_operands() == 1 => {
            return identity(maker);
        }
        _ => {}
    }
    if let Some(formula) = formula(site) {
        return formula.prepare(maker);
    }
    let elem = Elem::number(site.dtype(0)?).filter(|elem| elem.is_integer());
    let elem = elem.ok_or_else(|| site.no_kernel())?;
    let (ty, wide) = (elem.stored(), unsigned(elem));
    match kind {
        OpKind::Shrink => shrink(maker, elem),
        OpKind::Clip => clip(maker, elem),
        OpKind::Max | OpKind::Min => extreme(maker, elem),
        OpKind::BitShift => {
            let is_in = format!("(u64)a1 < {}", elem.bytes() * 8);
            let text = match Shift::read(&site.view)? {
                Shift::Left => format!("{is_in} ? ({ty})(({wide})a0 << (int)a1) : 0"),
                Shift::Right => format!("{is_in} ? a0 >> (int)a1 : a0 < 0 ? -1 : 0"),
            };
            computed(maker, &operands(maker, 2)?, elem, "", &text)
        }
        _ => Err(site.no_kernel()),
    }
}

/// The maximum or minimum of the integers of all operands.
fn extreme(maker: &Maker<'_>, elem: Elem) -> Result<Prepared> {
    let n = maker.site.view.n_operands();
    let sign = if maker.site.kind() == OpKind::Max { ">" } else { "<" };
    let formula = (1..n).fold("a0".to_owned(), |best, i| format!("best({best}, a{i})"));
    let ty = elem.stored();
    let best =
        format!("__device__ __forceinline__ {ty} best({ty} a, {ty} b) {{ return a {sign} b ? a : b; }}\n");
    computed(maker, &operands(maker, n)?, elem, &best, &formula)
}

/// An integer clamped to bounds, which are operands with one element.
fn clip(maker: &Maker<'_>, elem: Elem) -> Result<Prepared> {
    let ClipView { min, max } = ClipView::read(&maker.site.view);
    let mut all = operands(maker, 1)?;
    let mut formula = "a0".to_owned();
    let mut bounded = |bound, name: &str| -> Result<()> {
        if let Bound::Operand(i) = bound {
            if maker.site.dims(i)?.iter().product::<usize>() != 1 || maker.number(i)? != elem {
                return Err(maker.site.no_kernel());
            }
            formula = format!("{name}({formula}, a{})", all.len());
            all.push(Operand::single(i, elem));
        }
        Ok(())
    };
    bounded(min, "at_least")?;
    bounded(max, "at_most")?;
    let ty = elem.stored();
    let functions = format!(
        "__device__ __forceinline__ {ty} at_least({ty} x, {ty} low) {{ return x < low ? low : x; }}
__device__ __forceinline__ {ty} at_most({ty} x, {ty} high) {{ return x > high ? high : x; }}
"
    );
    computed(maker, &all, elem, &functions, &formula)
}

/// x + bias below −lambd, x − bias above lambd, 0 otherwise.
fn shrink(maker: &Maker<'_>, elem: Elem) -> Result<Prepared> {
    let attr = |name: &str, default: f32| f64::from(maker.site.view.float(name).unwrap_or(default));
    let (bias, lambd, ty) = (attr("bias", 0.0), attr("lambd", 0.5), elem.stored());
    // An integral bias is added to the integer exactly.
    let moved = |by: f64| match by.fract() == 0.0 {
        true => format!("({ty})((u64)a0 + (u64)saturated<i64>({}))", f64_text(by)),
        false => format!("({ty})saturated<i64>((double)a0 + {})", f64_text(by)),
    };
    let formula = format!(
        "(double)a0 < {} ? {} : (double)a0 > {} ? {} : ({ty})0",
        f64_text(-lambd),
        moved(bias),
        f64_text(lambd),
        moved(-bias)
    );
    computed(maker, &operands(maker, 1)?, elem, SATURATED, &formula)
}

fn float_mod(maker: &Maker<'_>) -> Result<Prepared> {
    let elem = maker.number(0)?;
    let truncates = maker.site.view.int("fmod").unwrap_or(0) != 0;
    let (functions, formula) = match (truncates, elem) {
        (true, Elem::F64) => ("", "fmod(a0, a1)"),
        (true, _) => ("", "fmodf(a0, a1)"),
        (false, _) => (FLOOR_MOD, "remainder_of(a0, a1)"),
    };
    computed(maker, &operands(maker, 2)?, elem, functions, formula)
}

/// Pow. If the exponent's type differs from that of a float base, the power is computed in f64. If the exponent has one
/// element, the kernel tests it for 2 and 3, which are multiplications.
fn pow(maker: &Maker<'_>) -> Result<Prepared> {
    let (base, exponent) = (maker.number(0)?, maker.number(1)?);
    let ty = base.stored();
    let all = operands(maker, 2)?;
    if base.is_integer() {
        return match exponent.is_float() {
            true => {
                let formula = format!("saturated<{ty}>(pow((double)a0, (double)a1))");
                computed(maker, &all, base, SATURATED, &formula)
            }
            false => computed(maker, &all, base, POWER, &format!("power<{ty}>(a0, (i64)a1)")),
        };
    }
    if !base.is_float() {
        return Err(maker.site.no_kernel());
    }
    let general = match (base == exponent, base) {
        (true, Elem::F64) | (false, Elem::F64) => "pow((double)a0, (double)a1)",
        (true, _) => "powf(a0, a1)",
        (false, Elem::F32) => "(float)pow((double)a0, (double)a1)",
        (false, _) => "to_odd(pow((double)a0, (double)a1))",
    };
    let formula = match maker.site.dims(1)?.iter().product::<usize>() {
        1 => {
            let wide = base.wide();
            format!("a1 == 2 ? a0 * a0 : a1 == 3 ? ({wide})((double)a0 * a0 * a0) : ({wide}){general}")
        }
        _ => general.to_owned(),
    };
    computed(maker, &all, base, TO_ODD, &formula)
}
