//! Cast and CastLike with integers, and BitCast. Casts between floats and truth values are expressions.
//!
//! Floats become integers without their fraction; out of range, they take the low bits of the 64-bit integer, as integers
//! do. Integers become floats rounded to nearest even, once.

use super::Maker;
use super::integers::TO_BITS;
use super::movement::same;
use super::pointwise::{computed, operands};
use crate::cuda::text::{Elem, TO_ODD};
use crate::kernel::{Prepared, Result};
use ampc_ir::op::OpKind;

/// `sticky`: an integer as an f64 that rounds to 24 digits or fewer as the integer does.
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
        return same(maker);
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
    let (from, to) = (maker.number(0)?, Elem::number(to).ok_or_else(|| site.no_kernel())?);
    let (functions, formula) = match (from, to) {
        (_, Elem::Bool) => (String::new(), "a0 != 0".to_owned()),
        (from, to) if from.is_float() && to.is_integer() => (TO_BITS.to_owned(), "to_bits64(a0)".to_owned()),
        (Elem::I64 | Elem::U64, Elem::F16 | Elem::BF16) => {
            (format!("{TO_ODD}{STICKY}"), "to_odd(sticky(a0))".to_owned())
        }
        (Elem::I32 | Elem::U32, Elem::F16 | Elem::BF16) => {
            (TO_ODD.to_owned(), "to_odd((double)a0)".to_owned())
        }
        (_, Elem::F16 | Elem::BF16) => (String::new(), "(float)a0".to_owned()),
        _ => (String::new(), "a0".to_owned()),
    };
    computed(maker, &operands(maker, 1)?, to, &functions, &formula)
}
