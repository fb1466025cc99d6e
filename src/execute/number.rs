//! Numbers in reports.

use serde::Serializer;

/// Serializes a number; a number that is not finite becomes a string.
pub(super) fn number<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    match *number {
        number if number.is_finite() => serializer.serialize_f64(number),
        number if number.is_nan() => serializer.serialize_str("nan"),
        number => serializer.serialize_str(if number > 0.0 { "inf" } else { "-inf" }),
    }
}
