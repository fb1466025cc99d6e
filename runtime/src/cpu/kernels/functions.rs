//! exp, tanh, erf, the logistic function and functions made from them, as kernels compute them.
//!
//! In f64 they are the functions of the system and of `libm`. In f32 they are polynomials without branches or
//! tables, so that a loop over them is vectorised: an argument is reduced (exp) or one of two polynomials is
//! chosen (tanh, erf). The coefficients are fits of least greatest error, made in f64; the tests hold each
//! function to 2.5 units in the last place, the products to 7.
//!
//! No sum cancels. `x · Φ(x)` (Gelu) is not `x/2 · (1 + erf(x/√2))`, which has no digits left below −5, but
//! `x · Q(−x)` below 0 and `x · (1 − Q(x))` above with the upper tail of the normal distribution
//! `Q(t) = erfc(t/√2) / 2 = exp(−t²/2) · R(t)`; `R` is smooth, and a quotient of polynomials whose terms are all
//! positive (W. J. Cody, "Rational Chebyshev Approximations for the Error Function", 1969). Its form with a tanh is
//! `x · σ(2u)`, which is `x/2 · (1 + tanh u)`. An exponent is given to exp in two parts, for an error of it is one of the
//! result, as many times larger as the exponent is. `x · tanh(ln(1 + eˣ))` (Mish) is `x · s / (s + 2)` with
//! `s = eˣ · (eˣ + 2)`.

use super::lanes::Wide;

/// Functions of one number.
pub(crate) trait Elementary: Sized {
    /// e to the power of `x`.
    fn exp_of(x: Self) -> Self;
    /// The hyperbolic tangent of `x`.
    fn tanh_of(x: Self) -> Self;
    /// The error function of `x`.
    fn erf_of(x: Self) -> Self;
    /// 1 / (1 + exp(−x)).
    fn sigmoid_of(x: Self) -> Self;
    /// x · Φ(x) with the distribution function Φ of the standard normal distribution.
    fn gelu_of(x: Self) -> Self;
    /// x · σ(2u) with u = √(2/π) · (x + 0.044715 · x³).
    fn gelu_tanh_of(x: Self) -> Self;
    /// x · tanh(ln(1 + exp(x))).
    fn mish_of(x: Self) -> Self;
}

/// e to the power of `x`.
#[inline]
pub(crate) fn exp<W: Elementary>(x: W) -> W {
    W::exp_of(x)
}

/// The hyperbolic tangent of `x`.
#[inline]
pub(crate) fn tanh<W: Elementary>(x: W) -> W {
    W::tanh_of(x)
}

/// The error function of `x`.
#[inline]
pub(crate) fn erf<W: Elementary>(x: W) -> W {
    W::erf_of(x)
}

/// The logistic function of `x`: 1 / (1 + exp(−x)).
#[inline]
pub(crate) fn sigmoid<W: Elementary>(x: W) -> W {
    W::sigmoid_of(x)
}

/// x · Φ(x) with the distribution function Φ of the standard normal distribution.
#[inline]
pub(crate) fn gelu<W: Elementary>(x: W) -> W {
    W::gelu_of(x)
}

/// `x · Φ(x)`, approximated by a tanh: `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))`.
#[inline]
pub(crate) fn gelu_tanh<W: Elementary>(x: W) -> W {
    W::gelu_tanh_of(x)
}

/// x · tanh(ln(1 + exp(x))).
#[inline]
pub(crate) fn mish<W: Elementary>(x: W) -> W {
    W::mish_of(x)
}

/// Twice √(2/π), and that times 0.044715.
const TWO_U: [f64; 2] = [1.595_769_121_605_730_8, 0.071_354_816_272_600_25];

/// From here on tanh(ln(1 + exp(x))) is 1.
const MISH_END: f64 = 20.0;

/// 1.5 · 2^23: a number added to it is rounded to a whole number, which is in the low bits.
const WHOLE: f32 = 12_582_912.0;

/// The terms of a polynomial from the highest power down, at `x`.
#[inline]
fn polynomial<const N: usize>(x: f32, terms: [f32; N]) -> f32 {
    terms.into_iter().reduce(|sum, term| sum * x + term).unwrap_or(0.0)
}

/// 2^n of a normal result; anything for other `n`.
#[inline]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23).cast_unsigned())
}

/// exp(a + b) as y · 2^n, where `b` is small and a + b is in [−250, 89]: a + b = n · ln 2 + r, |r| ≤ ln 2 / 2.
#[inline]
fn exp_parts(a: f32, b: f32) -> (f32, i32) {
    let shifted = (a + b) * std::f32::consts::LOG2_E + WHOLE;
    let n = shifted.to_bits().wrapping_sub(WHOLE.to_bits()).cast_signed();
    let whole = shifted - WHOLE;
    // ln 2 in two parts, of which the first has so few digits that its product is exact.
    let r = (a - whole * 0.693_359_4) - whole * -2.121_944_4e-4 + b;
    let p = polynomial(r, [0.001_381_446_5, 0.008_368_781, 0.041_668_393, 0.166_665_2, 0.499_999_94]);
    (1.0 + (r + r * r * p), n)
}

/// Two powers of two that are normal numbers, whose product is 2^n.
#[inline]
fn powers_of_two(n: i32) -> (f32, f32) {
    let half = n >> 1;
    (power_of_two(half), power_of_two(n.wrapping_sub(half)))
}

impl Elementary for f32 {
    #[inline]
    fn exp_of(x: f32) -> f32 {
        // Beyond these the result is 0 or infinite; NaN stays.
        let x = if x > 89.0 { 89.0 } else { x };
        let x = if x < -104.0 { -104.0 } else { x };
        let (y, n) = exp_parts(x, 0.0);
        let (first, second) = powers_of_two(n);
        y * first * second
    }

    #[inline]
    fn tanh_of(x: f32) -> f32 {
        let size = x.abs();
        let s = x * x;
        let p = polynomial(s, [-0.005_717_048_4, 0.020_650_592, -0.053_743_5, 0.133_314_91, -0.333_332_84]);
        // The sign is for −0.
        let near = (x + x * (s * p)).copysign(x);
        let far = (1.0 - 2.0 / (f32::exp_of(2.0 * size) + 1.0)).copysign(x);
        if size < 0.625 { near } else { far }
    }

    /// x · p(x²) below 0.9375, 1 − exp(−x · q(x)) above.
    #[inline]
    fn erf_of(x: f32) -> f32 {
        let size = x.abs();
        let s = x * x;
        let p =
            polynomial(s, [-0.000_594_328_57, 0.004_984_413_3, -0.026_761_137, 0.112_816_83, -0.376_124_83]);
        // 2/√π − 1, so that most of the product is exact.
        let near = x + x * (0.128_379_15 + s * p);
        // It is 1 from 4 on; NaN stays.
        let t = if size > 4.0 { 4.0 } else { size };
        let q = polynomial(
            t,
            [
                1.189_057_4e-5,
                -0.000_329_422_82,
                0.003_669_461_2,
                -0.023_819_378,
                0.106_303_68,
                0.635_110_74,
                0.128_658_52,
            ],
        );
        let far = (1.0 - f32::exp_of(-t - t * q)).copysign(x);
        if size < 0.9375 { near } else { far }
    }

    #[inline]
    fn sigmoid_of(x: f32) -> f32 {
        // It overflows nowhere, and small results keep their digits.
        let e = f32::exp_of(-x.abs());
        let above = if x < 0.0 { e } else { 1.0 };
        above / (1.0 + e)
    }

    #[inline]
    fn gelu_of(x: f32) -> f32 {
        let size = x.abs();
        // From here on Q is 0; NaN stays.
        let t = if size > 15.0 { 15.0 } else { size };
        // t² is high² and the rest; high has half of the digits, so that its square is exact.
        let high = f32::from_bits(t.to_bits() & 0xffff_f000);
        let (y, n) = exp_parts(-0.5 * high * high, -0.5 * (t - high) * (t + high));
        let above = polynomial(t, [0.004_093_019, 0.040_491_9, 0.182_838_87, 0.437_795_97, 0.5]);
        let below = polynomial(t, [0.010_259_556, 0.101_504_64, 0.468_417_55, 1.200_915_1, 1.673_476_8, 1.0]);
        let (first, second) = powers_of_two(n);
        let tail = y * (above / below) * first;
        // −∞ · 0 is NaN, as in the formula. The last product alone may be no normal number.
        let negative = if size > 15.0 { x * 0.0 } else { x * tail * second };
        if x < 0.0 { negative } else { x * (1.0 - tail * second) }
    }

    #[inline]
    fn gelu_tanh_of(x: f32) -> f32 {
        let size = f64::from(x.abs());
        let exponent = size * (TWO_U[0] + TWO_U[1] * size * size);
        // From here on the result is 0 or x; NaN stays.
        let exponent = if exponent > 125.0 { 125.0 } else { exponent };
        let a = f32::of(-exponent);
        let (y, n) = exp_parts(a, f32::of(-exponent - f64::from(a)));
        let (first, second) = powers_of_two(n);
        let e = y * first;
        let below = 1.0 + e * second;
        let negative = if exponent >= 125.0 { x * 0.0 } else { x * (e / below) * second };
        if x < 0.0 { negative } else { x / below }
    }

    #[inline]
    fn mish_of(x: f32) -> f32 {
        let t = if x > f32::of(MISH_END) { f32::of(MISH_END) } else { x };
        let t = if t < -125.0 { -125.0 } else { t };
        let (y, n) = exp_parts(t, 0.0);
        let (first, second) = powers_of_two(n);
        let e = y * first * second;
        let above = if x < -125.0 { 0.0 } else { y * first };
        x * (above * ((e + 2.0) / (e * (e + 2.0) + 2.0))) * second
    }
}

impl Elementary for f64 {
    fn exp_of(x: f64) -> f64 {
        x.exp()
    }
    fn tanh_of(x: f64) -> f64 {
        x.tanh()
    }
    fn erf_of(x: f64) -> f64 {
        libm::erf(x)
    }
    fn sigmoid_of(x: f64) -> f64 {
        let e = (-x.abs()).exp();
        let above = if x < 0.0 { e } else { 1.0 };
        above / (1.0 + e)
    }
    fn gelu_of(x: f64) -> f64 {
        0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
    }
    fn gelu_tanh_of(x: f64) -> f64 {
        x * f64::sigmoid_of(x * (TWO_U[0] + TWO_U[1] * x * x))
    }
    fn mish_of(x: f64) -> f64 {
        let e = if x > MISH_END { MISH_END } else { x }.exp();
        let s = e * (e + 2.0);
        x * (s / (s + 2.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::float::Format;
    use ampc_ir::DType;

    /// The greatest error over many numbers of both signs, in units in the last place.
    fn worst(f: fn(f32) -> f32, reference: fn(f64) -> f64) -> (f64, f32) {
        let format = Format::of(DType::F32).unwrap();
        let numbers = (0..0x42f0_0000u32).step_by(997).map(f32::from_bits).flat_map(|x| [x, -x]);
        let error = |x: f32| {
            let exact = reference(f64::from(x));
            if exact.abs() > f64::from(f32::MAX) {
                assert!(f(x).is_infinite() || exact < 3.402_823_6e38, "{x}");
                return 0.0;
            }
            (f64::from(f(x)) - exact).abs() / format.spacing(exact)
        };
        numbers.map(|x| (error(x), x)).fold((0.0, 0.0), |worst, e| if e.0 > worst.0 { e } else { worst })
    }

    #[test]
    fn errors_are_small() {
        let sigmoid_exactly = |x: f64| 1.0 / (1.0 + (-x).exp());
        type Pair = (fn(f32) -> f32, fn(f64) -> f64);
        let functions: [Pair; 4] =
            [(exp, f64::exp), (tanh, f64::tanh), (erf, libm::erf), (sigmoid, sigmoid_exactly)];
        for (i, (f, reference)) in functions.into_iter().enumerate() {
            let (error, at) = worst(f, reference);
            assert!(error < 2.5, "function {i} is off by {error} units at {at}");
        }
        let products: [Pair; 3] = [(gelu, gelu), (gelu_tanh, gelu_tanh), (mish, mish)];
        for (i, (f, reference)) in products.into_iter().enumerate() {
            let (error, at) = worst(f, reference);
            assert!(error < 7.0, "product {i} is off by {error} units at {at}");
        }
    }

    #[test]
    fn limits_are_exact() {
        let inf = f32::INFINITY;
        assert_eq!([exp(inf), exp(-inf), exp(0.0), exp(-0.0)], [inf, 0.0, 1.0, 1.0]);
        assert_eq!([tanh(inf), tanh(-inf), erf(inf), erf(-inf)], [1.0, -1.0, 1.0, -1.0]);
        assert_eq!([sigmoid(inf), sigmoid(-inf), sigmoid(0.0)], [1.0, 0.0, 0.5]);
        assert!([exp(f32::NAN), tanh(f32::NAN), erf(f32::NAN), sigmoid(f32::NAN)].iter().all(|y| y.is_nan()));
        assert!(tanh(-0.0f32).is_sign_negative() && erf(-0.0f32).is_sign_negative());
        for f in [gelu::<f32>, gelu_tanh, mish] {
            // −∞ · 0, as in the formulas.
            assert!(f(-inf).is_nan() && f(f32::NAN).is_nan());
            assert_eq!([f(inf), f(f32::MAX), f(0.0), f(f32::MIN)], [inf, f32::MAX, 0.0, 0.0]);
            assert!(f(-0.0).is_sign_negative() && f(-1e30).is_sign_negative());
        }
    }
}
