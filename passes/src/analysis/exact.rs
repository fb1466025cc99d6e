//! Exactness of casts, and composition of two casts.
//!
//! A format is described by its values: the number of significant bits, the least power of two, the greatest
//! number, and the presence of zero, negative zero, negative numbers, infinities and NaN. A cast is exact if
//! the target can represent every value of the source. Neither of f16 and bf16 includes the other, and no
//! integer type has NaN.
//!
//! Example: f16 → f32 is exact. i16 → f32 is exact, because f32 has 24 significant bits; i32 → f32 is not. So i16 → f32
//! → bf16 equals i16 → bf16, but i64 → f32 → bf16 rounds twice and does not compose.

use ampc_ir::DType;

/// Precision and range of a float format.
#[derive(Clone, Copy, Debug)]
struct Float {
    /// Significant bits, the implicit one included.
    digits: i32,
    /// The exponent of the smallest positive number, which is a power of two.
    least: i32,
    /// The exponent of the greatest number, and the number of its significant bits.
    greatest: (i32, i32),
    has: Special,
}

/// The special values of a float format.
#[derive(Clone, Copy, Debug)]
struct Special {
    zero: bool,
    negative: bool,
    negative_zero: bool,
    infinity: bool,
    nan: bool,
}

/// All special values, as in IEEE 754.
const IEEE: Special = Special { zero: true, negative: true, negative_zero: true, infinity: true, nan: true };

impl Float {
    fn of(dtype: DType) -> Option<Float> {
        let float = |digits, least, greatest, has| Some(Float { digits, least, greatest, has });
        let finite = Special { infinity: false, ..IEEE };
        let unsigned_zero = Special { negative_zero: false, ..finite };
        let numbers = Special { nan: false, ..finite };
        match dtype {
            DType::F64 => float(53, -1074, (1023, 53), IEEE),
            DType::F32 => float(24, -149, (127, 24), IEEE),
            DType::BF16 => float(8, -133, (127, 8), IEEE),
            DType::F16 => float(11, -24, (15, 11), IEEE),
            DType::F8E5M2 => float(3, -16, (15, 3), IEEE),
            DType::F8E5M2FNUZ => float(3, -17, (15, 3), unsigned_zero),
            // 448 is 1.75 x 2^8.
            DType::F8E4M3FN => float(4, -9, (8, 3), finite),
            DType::F8E4M3FNUZ => float(4, -10, (7, 4), unsigned_zero),
            DType::F6E3M2 => float(3, -4, (4, 3), numbers),
            DType::F6E2M3 => float(4, -3, (2, 4), numbers),
            DType::F4E2M1 => float(2, -1, (2, 2), numbers),
            DType::F8E8M0 => {
                let has = Special {
                    zero: false,
                    negative: false,
                    negative_zero: false,
                    infinity: false,
                    nan: true,
                };
                float(1, -127, (127, 1), has)
            }
            _ => None,
        }
    }

    /// True if the format has every number with at most `digits` significant bits that is a multiple of the power of
    /// two `least` and at most `greatest`.
    fn holds(&self, digits: i32, least: i32, greatest: (i32, i32)) -> bool {
        digits <= self.digits && least >= self.least && greatest <= self.greatest
    }
}

/// The least and greatest number of an integer type.
fn range(dtype: DType) -> Option<(i128, i128)> {
    Some(match dtype {
        DType::Bool => (0, 1),
        DType::U2 => (0, 3),
        DType::I2 => (-2, 1),
        DType::U4 => (0, 15),
        DType::I4 => (-8, 7),
        DType::U8 => (0, u8::MAX.into()),
        DType::I8 => (i8::MIN.into(), i8::MAX.into()),
        DType::U16 => (0, u16::MAX.into()),
        DType::I16 => (i16::MIN.into(), i16::MAX.into()),
        DType::U32 => (0, u32::MAX.into()),
        DType::I32 => (i32::MIN.into(), i32::MAX.into()),
        DType::U64 => (0, u64::MAX.into()),
        DType::I64 => (i64::MIN.into(), i64::MAX.into()),
        _ => return None,
    })
}

/// True if every value of `from`, infinities and NaN included, is a value of `to`.
pub fn is_exact(from: DType, to: DType) -> bool {
    if from == to {
        return true;
    }
    match (Float::of(from), range(from), Float::of(to), range(to)) {
        (Some(from), _, Some(to), _) => {
            let lacks = |has: bool, can: bool| has && !can;
            to.holds(from.digits, from.least, from.greatest)
                && !lacks(from.has.zero, to.has.zero)
                && !lacks(from.has.negative, to.has.negative)
                && !lacks(from.has.negative_zero, to.has.negative_zero)
                && !lacks(from.has.infinity, to.has.infinity)
                && !lacks(from.has.nan, to.has.nan)
        }
        (_, Some((least, greatest)), Some(to), _) => {
            // The least number of a signed type is a power of two: it needs range, but no further digits.
            let bits = |number: i128| i32::try_from(i128::BITS - number.leading_zeros()).unwrap_or(i32::MAX);
            let (below, digits) = (bits(-least), bits(greatest));
            let signed = least == 0 || to.has.negative && (below - 1, 1) <= to.greatest;
            signed && to.has.zero && to.holds(digits, 0, (digits - 1, digits))
        }
        // A truth value does not distinguish numbers other than 0 and 1.
        (_, Some(from), _, Some(range)) => to != DType::Bool && range.0 <= from.0 && from.1 <= range.1,
        _ => (from, to) == (DType::Complex64, DType::Complex128),
    }
}

/// True if a → b → c equals a → c for every value of a.
///
/// This holds if every value of a is exact in b, with two exceptions: strings (the shortest digits that tell a number
/// from its neighbours depend on the format), and integers that come back as smaller integers (integers wrap, floats do
/// not). It also holds for any integers on the way to f16 through f32: f32 has the integers below 2^24, and all others
/// are infinite in f16.
pub fn composes(a: DType, b: DType, c: DType) -> bool {
    let integer = |dtype| range(dtype).is_some();
    let wraps = integer(a) && !integer(b) && integer(c) && !is_exact(a, c);
    is_exact(a, b) && c != DType::String && !wraps
        || integer(a) && (b, c) == (DType::F32, DType::F16)
        || a == b
}

#[cfg(test)]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "rounding is what is tested"
)]
mod tests {
    use super::*;
    use ampc_ir::convert::round_to_odd;
    use half::{bf16, f16};
    use rustc_hash::FxHashSet;

    /// A key of a number: distinguishes the sign of zero; all NaN are equal.
    fn key(number: f64) -> u64 {
        if number.is_nan() { u64::MAX } else { number.to_bits() }
    }

    /// An 8-bit or smaller float, by the layout that the standards give: sign, exponent, fraction.
    fn small(dtype: DType, bits: u16) -> f64 {
        let (exponent_bits, fraction_bits, bias) = match dtype {
            DType::F8E5M2 => (5, 2, 15),
            DType::F8E5M2FNUZ => (5, 2, 16),
            DType::F8E4M3FN => (4, 3, 7),
            DType::F8E4M3FNUZ => (4, 3, 8),
            DType::F6E3M2 => (3, 2, 3),
            DType::F6E2M3 => (2, 3, 1),
            DType::F4E2M1 => (2, 1, 1),
            other => unreachable!("{other}"),
        };
        let fraction = i32::from(bits & ((1 << fraction_bits) - 1));
        let exponent = i32::from(bits >> fraction_bits & ((1 << exponent_bits) - 1));
        let negative = bits >> (fraction_bits + exponent_bits) & 1 == 1;
        let (top_exponent, top_fraction) = ((1 << exponent_bits) - 1, (1 << fraction_bits) - 1);
        let special = match dtype {
            DType::F8E5M2 if exponent == top_exponent && fraction == 0 => Some(f64::INFINITY),
            DType::F8E5M2 if exponent == top_exponent => Some(f64::NAN),
            DType::F8E4M3FN if exponent == top_exponent && fraction == top_fraction => Some(f64::NAN),
            DType::F8E5M2FNUZ | DType::F8E4M3FNUZ if negative && exponent == 0 && fraction == 0 => {
                Some(f64::NAN)
            }
            _ => None,
        };
        let scaled =
            |significand: i32, exponent: i32| f64::from(significand) * 2f64.powi(exponent - fraction_bits);
        let size = special.unwrap_or_else(|| match exponent {
            0 => scaled(fraction, 1 - bias),
            _ => scaled(fraction + (1 << fraction_bits), exponent - bias),
        });
        if negative { -size } else { size }
    }

    /// Every value of a type of at most 16 bits.
    fn values(dtype: DType) -> Option<Vec<f64>> {
        let bits = dtype.bits().filter(|&bits| bits <= 16)?;
        let patterns = 0..=u16::try_from((1u32 << bits) - 1).unwrap();
        if let Some((least, greatest)) = range(dtype) {
            return Some((least..=greatest).map(|number| number as f64).collect());
        }
        Some(match dtype {
            DType::F16 => patterns.map(|p| f16::from_bits(p).to_f64()).collect(),
            DType::BF16 => patterns.map(|p| bf16::from_bits(p).to_f64()).collect(),
            DType::F8E8M0 => {
                let power = |p: u16| if p == 255 { f64::NAN } else { 2f64.powi(i32::from(p) - 127) };
                patterns.map(power).collect()
            }
            _ => patterns.map(|p| small(dtype, p)).collect(),
        })
    }

    /// Numbers of a type of 32 or 64 bits that other types lack.
    fn boundary(dtype: DType) -> Option<Vec<f64>> {
        let both = |numbers: Vec<f64>| numbers.iter().flat_map(|&n| [n, -n]).collect::<Vec<_>>();
        let special = [0.0, 1.0, f64::INFINITY, f64::NAN];
        match dtype {
            DType::F32 => {
                let own = [f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1), 1.0 + f32::EPSILON, 16_777_215.0];
                Some(both(own.map(f64::from).into_iter().chain(special).collect()))
            }
            DType::F64 => {
                let own = [
                    f64::MAX,
                    f64::MIN_POSITIVE,
                    f64::from_bits(1),
                    1.0 + f64::EPSILON,
                    9_007_199_254_740_991.0,
                ];
                Some(both(own.into_iter().chain(special).collect()))
            }
            _ => None,
        }
    }

    /// True if a type has a number among its values.
    fn has(to: DType, known: &Option<FxHashSet<u64>>, number: f64) -> bool {
        match (known, to) {
            (Some(known), _) => known.contains(&key(number)),
            (None, DType::F64) => true,
            (None, DType::F32) => number.is_nan() || key(f64::from(number as f32)) == key(number),
            (None, _) => {
                let whole = number.fract() == 0.0 && !(number == 0.0 && number.is_sign_negative());
                range(to).is_some_and(|(least, greatest)| {
                    whole && number.abs() < 1e38 && (least..=greatest).contains(&(number as i128))
                })
            }
        }
    }

    /// Checks every pair of types, with every value of the types of at most 16 bits and the boundaries of f32 and f64.
    /// A truth value is 0 or 1, and a cast to it does not distinguish other numbers.
    #[test]
    fn exact_means_that_every_value_is_there() {
        let mut pairs = 0;
        for &to in DType::ALL {
            let known = values(to).map(|values| values.into_iter().map(key).collect::<FxHashSet<u64>>());
            let numeric = Float::of(to).is_some() || range(to).is_some();
            for &from in DType::ALL {
                let Some(numbers) = values(from).or_else(|| boundary(from)).filter(|_| numeric) else {
                    continue;
                };
                let there = from == to || to != DType::Bool && numbers.iter().all(|&n| has(to, &known, n));
                assert_eq!(is_exact(from, to), there, "{from} in {to}");
                pairs += 1;
            }
        }
        // 19 types of at most 16 bits and two wider floats, in 25.
        assert_eq!(pairs, 21 * 25);
    }

    /// Integers of 32 and 64 bits, whose values are too many to list.
    #[test]
    fn wide_integers() {
        use DType::{BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U32, U64};
        let exact = [(I32, F64), (U32, F64), (I32, I64), (U32, I64), (U32, U64), (Bool, I64), (Bool, F16)];
        assert!(exact.iter().all(|&(from, to)| is_exact(from, to)));
        let lossy =
            [(I32, F32), (U32, F32), (I64, F64), (U64, F64), (U64, I64), (I64, U64), (I32, U32), (I64, Bool)];
        assert!(!lossy.iter().any(|&(from, to)| is_exact(from, to)));
        // 2^24 + 1, and 2^53 + 1.
        assert_ne!(16_777_217i32 as f32 as i32, 16_777_217);
        assert_ne!(9_007_199_254_740_993i64 as f64 as i64, 9_007_199_254_740_993);
        // G9: never there and back, nor to a truth value, nor around a sign.
        assert!(!composes(I64, F32, I64) && !composes(F32, I32, F32) && !composes(F32, I64, Bool));
        assert!(!composes(I16, F32, I8) && composes(I8, F32, I16) && composes(I8, I32, I16));
        assert!(!composes(I64, F32, BF16) && composes(I16, F32, BF16));
    }

    /// G8: neither 16-bit format holds the other.
    #[test]
    fn g8_f16_and_bf16_are_incomparable() {
        assert!(!is_exact(DType::F16, DType::BF16) && !is_exact(DType::BF16, DType::F16));
        assert!(is_exact(DType::BF16, DType::F32) && !is_exact(DType::F32, DType::F16));
    }

    /// G6: casts of every value of the narrow type, through the wide type, to all floats of 16 bits and more.
    #[test]
    fn g6_exact_casts_compose() {
        let narrow = |number: f64, to: DType| match to {
            DType::F16 => f16::from_f32(round_to_odd(number)).to_f64(),
            DType::BF16 => bf16::from_f32(round_to_odd(number)).to_f64(),
            DType::F32 => f64::from(number as f32),
            _ => number,
        };
        let wide = [DType::F16, DType::BF16, DType::F32, DType::F64];
        for &a in DType::ALL {
            let Some(numbers) = values(a) else { continue };
            for (b, c) in
                wide.into_iter().flat_map(|b| wide.map(|c| (b, c))).filter(|&(b, c)| composes(a, b, c))
            {
                for &number in &numbers {
                    assert_eq!(
                        key(narrow(narrow(number, b), c)),
                        key(narrow(number, c)),
                        "{number} {a} {b} {c}"
                    );
                }
            }
        }
    }

    /// G7: f64 → f32 → f16 rounds twice.
    #[test]
    fn g7_narrowing_twice_is_not_narrowing_once() {
        let number = 1.0 + 2f64.powi(-11) + 2f64.powi(-30);
        assert_ne!(f16::from_f32(number as f32), f16::from_f32(round_to_odd(number)));
        assert!(!composes(DType::F64, DType::F32, DType::F16));
    }

    /// Integers reach f16 through f32 as they do directly: all integers that f16 has, the first that it lacks, and
    /// powers of two beyond with their neighbours.
    #[test]
    fn integers_reach_f16_through_f32() {
        assert!(composes(DType::I64, DType::F32, DType::F16) && composes(DType::U64, DType::F32, DType::F16));
        let powers = (17..63).flat_map(|n| [(1i64 << n) - 1, 1 << n, (1 << n) + 1]);
        for number in (-70_000..70_000).chain(powers).chain([i64::MAX, i64::MIN]) {
            // Below 2^53 an f64 is the integer itself; beyond it is infinite in f16 either way.
            let direct = f16::from_f64_const(number as f64);
            assert_eq!(f16::from_f32(number as f32), direct, "{number}");
        }
    }
}
