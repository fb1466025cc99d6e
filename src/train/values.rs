//! Values of a state with which no step can compute: NaNs, and scalars out of their range.

use ampc_ir::convert::{Conversion, can_convert};
use ampc_ir::tensor::TensorError;
use ampc_ir::{DType, TensorData};
use ampc_passes::step::StateKind;
use ampc_passes::step::loss_scale::{SCALES, is_scale};
use std::ops::ControlFlow;

/// The problem of the value of a state: expected and found.
///
/// # Errors
/// If the value cannot be read.
pub(crate) fn problem_of(kind: Option<StateKind>, data: &TensorData) -> Result<Option<String>, TensorError> {
    if has_nan(data)? {
        return Ok(Some(format!("expected numbers, found {NAN}")));
    }
    kind.map_or(Ok(None), |kind| range_problem(kind, data))
}

/// Description of a state that contains a NaN.
pub(crate) const NAN: &str = "a NaN, which would make every loss NaN";

/// The largest number of steps. A training counts up from there without an overflow.
const MOST_STEPS: i64 = 1 << 62;

/// The problem of a scalar that a step has once: expected and found. Other states may have any number.
///
/// # Errors
/// If the value cannot be read.
pub(crate) fn range_problem(kind: StateKind, data: &TensorData) -> Result<Option<String>, TensorError> {
    if data.element_count() != 1 {
        return Ok(None);
    }
    let most = match kind {
        StateKind::Step => MOST_STEPS,
        StateKind::Good | StateKind::Bad => i64::from(i32::MAX) - 1,
        StateKind::LossScale => {
            let found = float_of(data)?.filter(|&scale| !is_scale(scale));
            return Ok(found.map(|found| format!("expected {SCALES}, found {found:?}")));
        }
        StateKind::Weight
        | StateKind::Low
        | StateKind::M
        | StateKind::V
        | StateKind::State
        | StateKind::Buffer
        | StateKind::DropoutSeed
        | StateKind::DropoutOffset => return Ok(None),
    };
    let found = integer_of(data)?.filter(|found| !(0..=most).contains(found));
    Ok(found.map(|found| format!("expected a number of steps from 0 to {most}, found {found}")))
}

fn integer_of(data: &TensorData) -> Result<Option<i64>, TensorError> {
    let bytes = data.to_bytes()?;
    Ok(match data.dtype() {
        DType::I64 => bytes.try_into().ok().map(i64::from_le_bytes),
        DType::I32 => bytes.try_into().ok().map(|bytes| i32::from_le_bytes(bytes).into()),
        _ => None,
    })
}

fn float_of(data: &TensorData) -> Result<Option<f64>, TensorError> {
    if !can_convert(data.dtype(), DType::F64) {
        return Ok(None);
    }
    let bytes = data.clone().converted(Conversion { to: DType::F64, clamp: false }).to_bytes()?;
    Ok(bytes.try_into().ok().map(f64::from_le_bytes))
}

/// True if a tensor of floats has a NaN.
///
/// # Errors
/// If the tensor cannot be read.
pub(crate) fn has_nan(data: &TensorData) -> Result<bool, TensorError> {
    let is_nan: fn(&[u8]) -> bool = match data.dtype() {
        DType::F16 => |bytes| bytes.as_chunks().0.iter().any(|c| u16::from_le_bytes(*c) & 0x7fff > 0x7c00),
        DType::BF16 => |bytes| bytes.as_chunks().0.iter().any(|c| u16::from_le_bytes(*c) & 0x7fff > 0x7f80),
        DType::F32 => |bytes| bytes.as_chunks().0.iter().any(|c| f32::from_le_bytes(*c).is_nan()),
        DType::F64 => |bytes| bytes.as_chunks().0.iter().any(|c| f64::from_le_bytes(*c).is_nan()),
        _ => return Ok(false),
    };
    let mut found = false;
    data.visit_converted(|chunk| {
        found = is_nan(chunk);
        if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(kind: StateKind, dtype: DType, bytes: &[u8]) -> Option<String> {
        let data = TensorData::from_bytes(dtype, &[], bytes.to_vec()).unwrap();
        problem_of(Some(kind), &data).unwrap()
    }

    #[test]
    fn scalars_have_a_range() {
        use StateKind::{Bad, DropoutSeed, Good, LossScale, Step, Weight};
        for (number, is_valid) in [
            (1.0, true),
            (65536.0, true),
            (3e-39, true),
            (f32::MAX, true),
            (0.0, false),
            (-0.0, false),
            (-1.0, false),
            (1e-45, false),
            (f32::INFINITY, false),
            (f32::NAN, false),
        ] {
            let found = problem(LossScale, DType::F32, &number.to_le_bytes());
            assert_eq!(found.is_none(), is_valid, "{number}: {found:?}");
            let found = problem(Weight, DType::F32, &number.to_le_bytes());
            assert_eq!(found.is_none(), !number.is_nan(), "{number}: {found:?}");
        }
        for (number, is_valid) in
            [(0, true), (1 << 62, true), (-1, false), (i64::MAX, false), (i64::MIN, false)]
        {
            let found = problem(Step, DType::I64, &i64::to_le_bytes(number));
            assert_eq!(found.is_none(), is_valid, "{number}: {found:?}");
            assert!(problem(DropoutSeed, DType::U64, &i64::to_le_bytes(number)).is_none());
        }
        for (number, is_valid) in [(0, true), (i32::MAX - 1, true), (-1, false), (i32::MAX, false)] {
            for kind in [Good, Bad] {
                let found = problem(kind, DType::I32, &i32::to_le_bytes(number));
                assert_eq!(found.is_none(), is_valid, "{number}: {found:?}");
            }
        }
    }

    #[test]
    fn a_nan_is_found_in_every_float() {
        let bits: [(DType, &[u8], &[u8]); 4] = [
            (DType::F16, &[0, 0x7c], &[1, 0xfc]),
            (DType::BF16, &[0x80, 0x7f], &[0x81, 0xff]),
            (DType::F32, &[0, 0, 0x80, 0x7f], &[1, 0, 0x80, 0xff]),
            (DType::F64, &[0, 0, 0, 0, 0, 0, 0xf0, 0x7f], &[1, 0, 0, 0, 0, 0, 0xf0, 0xff]),
        ];
        for (dtype, infinity, nan) in bits {
            let data =
                |bytes: &[u8]| TensorData::from_bytes(dtype, &[2], [infinity, bytes].concat()).unwrap();
            assert!(!has_nan(&data(infinity)).unwrap(), "{dtype}");
            assert!(has_nan(&data(nan)).unwrap(), "{dtype}");
        }
    }
}
