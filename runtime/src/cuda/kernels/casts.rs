//! Cast and CastLike with integers, and BitCast. Casts between floats and bools are expressions.
//!
//! A cast from a float to an integer truncates; out of range, it takes the low bits of the 64-bit integer, like casts
//! of integers. A cast from an integer to a float rounds to nearest even, once.

use super::Maker;
use super::integers::{Formula, TO_BITS};
use super::movement::identity;
use super::pointwise::{computed, operands};
use crate::cuda::text::{Elem, TO_ODD};
use crate::kernel::{Prepared, Result, Site};
use ampc_ir::op::OpKind;

/// `sticky`: converts an integer to an f64 that rounds to 24 bits or fewer like the integer itself.
const STICKY: &str = r"
__device__ __forceinline__ double sticky(u64 size) {
  return size >> 53 ? (double)((size >> 11) | ((size & 0x7ff) != 0)) * 2048.0 : (double)size;
}
__device__ __forceinline__ double sticky(i64 x) { return x < 0 ? -sticky(0ull - (u64)x) : sticky((u64)x); }
";

/// The kernel of a cast without an expression.
pub(super) fn prepare(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let (from, to) = (site.dtype(0)?, site.result_dtype(0)?);
    if from == to {
        return identity(maker);
    }
    if site.kind() == OpKind::BitCast {
        let raw = [from, to].map(Elem::raw);
        return match raw {
            [Some(a), Some(b)] if a == b => {
                let mut all = operands(maker, 1)?;
                all[0].elem = a;
                computed(maker, &all, b, "", "a0")
            }
            _ => Err(site.no_kernel()),
        };
    }
    formula(site).ok_or_else(|| site.no_kernel())?.prepare(maker)
}

/// The formula of a Cast or CastLike between different types of numbers or bools.
pub(super) fn formula(site: &Site<'_>) -> Option<Formula> {
    let [from, to] = [site.dtype(0).ok()?, site.result_dtype(0).ok()?].map(Elem::number);
    let (from, to) = (from?, to?);
    if from == to || !matches!(site.kind(), OpKind::Cast | OpKind::CastLike) {
        return None;
    }
    let (functions, text) = match (from, to) {
        (_, Elem::Bool) => (vec![], "a0 != 0"),
        (from, to) if from.is_float() && to.is_integer() => (vec![TO_BITS], "to_bits64(a0)"),
        (Elem::I64 | Elem::U64, Elem::F16 | Elem::BF16) => (vec![TO_ODD, STICKY], "to_odd(sticky(a0))"),
        (Elem::I32 | Elem::U32, Elem::F16 | Elem::BF16) => (vec![TO_ODD], "to_odd((double)a0)"),
        (_, Elem::F16 | Elem::BF16) => (vec![], "(float)a0"),
        _ => (vec![], "a0"),
    };
    Some(Formula { n: 1, to, functions, text: text.to_owned() })
}
