use super::*;
use crate::HostTensor;
use crate::cpu::pool::Pool;
use proptest::prelude::*;

/// Statistics by the path of single numbers.
fn one_by_one(numbers: &[f32]) -> Statistics {
    let mut found = Statistics::default();
    numbers.iter().for_each(|&number| found.float(number.into()));
    found
}

fn of(numbers: &[f32]) -> Statistics {
    Statistics::of(&HostTensor::from_slice(&[numbers.len() as u64], numbers).unwrap().view()).unwrap()
}

#[test]
fn every_measure_by_hand() {
    let found = of(&[0.5, -3.0, 1e-6, 0.0, 65510.0, 1e5, 2.0f32.powi(-25), f32::NAN, f32::NEG_INFINITY]);
    assert_eq!((found.count, found.zeros, found.nan, found.infinite), (9, 1, 1, 1));
    assert_eq!((found.min, found.max), (f64::NEG_INFINITY, 1e5));
    assert_eq!((found.max_abs, found.min_abs), (1e5, 2.0f64.powi(-25)));
    let exponents: Vec<_> = found.exponents.clone().into_iter().collect();
    assert_eq!(exponents, [(-25, 1), (-20, 1), (-1, 1), (1, 1), (15, 1), (16, 1)]);
    let f16 = found.rounded_to(DType::F16).unwrap();
    assert_eq!((f16.beyond, f16.overflow), (2, 1));
    assert_eq!((f16.below_normal, f16.below_subnormal, f16.flushed), (2, 1, 1));
    // 1e-6 is nearest to 17 units of 2^-24.
    let error = (17.0 * 2.0f64.powi(-24) - f64::from(1e-6f32)).abs() / f64::from(1e-6f32);
    assert!((f64::from(f16.max_relative_error) - error).abs() < 1e-8);
}

#[test]
fn middles_are_rounded_to_even() {
    let rounded = |number: f32, format| *of(&[number]).rounded_to(format).unwrap();
    let ends = [
        (DType::F16, 65504.0, 65520.0),
        (DType::BF16, f32::from_bits(0x7f7f_0000), f32::from_bits(0x7f7f_8000)),
        (DType::F8E5M2, 57344.0, 61440.0),
    ];
    for (format, largest, middle) in ends {
        let below = f32::from_bits(middle.to_bits() - 1);
        assert_eq!((rounded(largest, format).beyond, rounded(below, format).beyond), (0, 1));
        assert_eq!((rounded(below, format).overflow, rounded(middle, format).overflow), (0, 1));
    }
    let above = f32::from_bits(464.0f32.to_bits() + 1);
    let wide = HostTensor::from_slice(&[1], &[464.000_01f64]).unwrap();
    let wide = Statistics::of(&wide.view()).unwrap();
    assert_eq!(wide.rounded_to(DType::F8E4M3FN).unwrap().overflow, 1);
    let of_fp8 = |number| rounded(number, DType::F8E4M3FN);
    assert_eq!((of_fp8(464.0).beyond, of_fp8(464.0).overflow, of_fp8(above).overflow), (1, 0, 1));
    for (format, limits) in FORMATS.into_iter().zip(&LIMITS) {
        let above = f32::from_bits(limits.flush.to_bits() + 1);
        assert_eq!((rounded(limits.flush, format).flushed, rounded(above, format).flushed), (1, 0));
        assert_eq!(rounded(limits.subnormal, format).below_subnormal, 0);
        assert_eq!(
            (rounded(limits.normal, format).below_normal, rounded(above, format).below_normal),
            (0, 1)
        );
    }
}

#[test]
fn errors_below_the_normal_range_of_products_are_exact() {
    let block = |first: u32| [&[f32::from_bits(first)], &[1.0; BLOCK - 1][..]].concat();
    let blocks = [block(0x3f80_8007), block(0x0080_7ff9)];
    for order in [[0, 1], [1, 0]] {
        let numbers = order.map(|at| blocks[at].clone()).concat();
        assert_eq!(text(&of(&numbers)), text(&one_by_one(&numbers)));
    }
    assert_eq!(text(&of(&[0.0, -0.0])), text(&of(&[-0.0, 0.0])));
}

/// The limits are those of the conversions that models are computed with.
#[test]
fn limits_are_those_of_the_formats() {
    for (dtype, limits) in FORMATS.into_iter().zip(&LIMITS) {
        let format = Format::of(dtype).unwrap();
        assert_eq!((format.precision, format.min_exponent), (limits.precision, limits.least_exponent));
        assert_eq!(format.least_spacing(), limits.subnormal.into());
    }
    assert_eq!((LIMITS[0].largest, LIMITS[1].largest), (f16::MAX.to_f32(), bf16::MAX.to_f32()));
    for (limits, convert) in [
        (&LIMITS[0], (|x| f16::from_f32(x).to_f32()) as fn(f32) -> f32),
        (&LIMITS[1], |x| bf16::from_f32(x).to_f32()),
    ] {
        let below = |x: f32| f32::from_bits(x.to_bits() - 1);
        assert!(convert(limits.overflow).is_infinite() && convert(below(limits.overflow)).is_finite());
        let above = f32::from_bits(limits.flush.to_bits() + 1);
        assert_eq!((convert(limits.flush), convert(above)), (0.0, limits.subnormal));
    }
}

#[test]
fn any_number_of_threads_gives_the_same_statistics() {
    // Every hundredth number may be any f32, the others are between 2^-63 and 2^65.
    let numbers = (0..300_000u32).map(|i| match (i.is_multiple_of(100), i.wrapping_mul(0x9e37_79b9)) {
        (true, bits) => f32::from_bits(bits),
        (false, bits) => f32::from_bits((bits & 0xbfff_ffff) + 0x2000_0000),
    });
    let numbers: Vec<f32> = numbers.collect();
    let expected = one_by_one(&numbers);
    let tensor = HostTensor::from_slice(&[300, 1000], &numbers).unwrap();
    for threads in [1, 2, 3] {
        let pool = Pool::new(threads);
        assert_eq!(pool.install(|| Statistics::of(&tensor.view())), Some(expected.clone()), "{threads}");
    }
}

#[test]
fn every_type_has_statistics() {
    for &dtype in DType::ALL {
        let zeros = HostTensor::zeros(dtype, &[3]).unwrap();
        let found = Statistics::of(&zeros.view());
        let expected = match dtype {
            DType::String => None,
            DType::Complex64 | DType::Complex128 => Some((6, 6)),
            // The scale format has no zero.
            DType::F8E8M0 => Some((3, 0)),
            _ => Some((3, 3)),
        };
        assert_eq!(found.map(|found| (found.count, found.zeros)), expected, "{dtype}");
    }
    let ints = HostTensor::from_slice(&[3], &[-70000i64, 0, 3]).unwrap();
    let found = Statistics::of(&ints.view()).unwrap();
    assert_eq!((found.min, found.max, found.min_abs, found.zeros), (-70000.0, 3.0, 3.0, 1));
    assert_eq!(found.rounded, <[Rounded; FORMATS.len()]>::default());
}

#[test]
fn no_numbers_have_no_range() {
    let empty = of(&[]);
    assert_eq!(empty, Statistics::default());
    assert!(empty.min > empty.max);
    let nan = of(&[f32::NAN; 3]);
    assert_eq!((nan.count, nan.nan, nan.finite(), nan.max_abs), (3, 3, 0, 0.0));
}

proptest! {
    /// Blocks have the statistics of their numbers, however the numbers are divided between tensors.
    #[test]
    fn blocks_are_exact(
        bits in prop::collection::vec(any::<u32>(), 0..1500),
        plain in prop::collection::vec((any::<bool>(), exponents(), 0..1u32 << 23), 0..3000),
        at in any::<prop::sample::Index>(),
    ) {
        let plain = plain.iter().map(|&(is_negative, exponent, mantissa)| {
            let sign = u32::from(is_negative) << 31;
            f32::from_bits(sign | exponent.map_or(0, |exponent| pow2(exponent).to_bits() | mantissa))
        });
        for numbers in [bits.iter().map(|&bits| f32::from_bits(bits)).collect::<Vec<_>>(), plain.collect()] {
            let whole = of(&numbers);
            prop_assert_eq!(text(&whole), text(&one_by_one(&numbers)));
            let (first, second) = numbers.split_at(at.index(numbers.len() + 1));
            let mut merged = of(second);
            merged.merge(&of(first));
            prop_assert_eq!(text(&merged), text(&whole));
        }
    }

    /// The effects on a number are those of its conversion.
    #[test]
    fn effects_are_those_of_conversions(exponent in -20..20i32, mantissa in 0..1u32 << 23) {
        let number = f32::from_bits(pow2(exponent).to_bits() | mantissa);
        let found = of(&[number]);
        let fp8 = |dtype| {
            let format = Format::of(dtype).unwrap();
            format.decode_byte(format.encode_byte(number.into(), false))
        };
        for (dtype, converted) in [
            (DType::F16, f16::from_f32(number).to_f64()),
            (DType::BF16, bf16::from_f32(number).to_f64()),
            (DType::F8E4M3FN, fp8(DType::F8E4M3FN)),
            (DType::F8E5M2, fp8(DType::F8E5M2)),
        ] {
            let rounded = found.rounded_to(dtype).unwrap();
            let (is_finite, is_zero) = (converted.is_finite(), converted == 0.0);
            prop_assert_eq!((rounded.overflow, rounded.flushed), (u64::from(!is_finite), u64::from(is_zero)));
            #[expect(clippy::cast_possible_truncation, reason = "an error is given as f32")]
            let error = ((converted - f64::from(number)).abs() / f64::from(number)) as f32;
            let expected = if is_finite && !is_zero { error } else { 0.0 };
            prop_assert_eq!(rounded.max_relative_error, expected, "{}", dtype);
        }
    }
}

/// Exponents around the limits of the formats, or none for zero.
fn exponents() -> impl Strategy<Value = Option<i32>> {
    let exponents = prop_oneof![-126..-110, -30..20, 120..128];
    prop_oneof![Just(None), exponents.prop_map(Some)]
}

/// All bits of statistics, the signs of zeros among them.
fn text(found: &Statistics) -> String {
    format!("{found:?}")
}
