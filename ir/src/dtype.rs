//! Element types: all of ONNX's, with its numbering.

use std::fmt;
use std::str::FromStr;

macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $bits:literal, $text:literal, $onnx:literal;)*) => {
        /// An element type of ONNX's `TensorProto.DataType`.
        ///
        /// A number that this version does not know is kept as [`DType::Other`], so that untouched parts
        /// survive; the verifier refuses it as the type of a value.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum DType {
            $($(#[$doc])* $variant,)*
            /// A number that is not in the enumeration of the pinned onnx.
            Other(i32),
        }

        impl DType {
            /// Every known element type, in ONNX's numbering.
            pub const ALL: &[DType] = &[$(DType::$variant),*];

            /// The number ONNX gives this type.
            pub fn number(self) -> i32 {
                match self { $(DType::$variant => $number,)* DType::Other(n) => n }
            }

            /// The type with ONNX's number `n`; `None` for 0 (UNDEFINED).
            pub fn from_number(n: i32) -> Option<DType> {
                match n { 0 => None, $($number => Some(DType::$variant),)* other => Some(DType::Other(other)) }
            }

            /// Bits per element as stored, `None` for strings and unknown types.
            pub fn bits(self) -> Option<u32> {
                match self { $(DType::$variant => if $bits == 0 { None } else { Some($bits) },)* DType::Other(_) => None }
            }

            /// The spelling inside ONNX's type strings: `float16` in `tensor(float16)`.
            pub fn onnx_name(self) -> &'static str {
                match self { $(DType::$variant => $onnx,)* DType::Other(_) => "unknown" }
            }

            /// The type with ONNX's spelling `name`.
            pub fn from_onnx_name(name: &str) -> Option<DType> {
                match name { $($onnx => Some(DType::$variant),)* _ => None }
            }
        }

        impl fmt::Display for DType {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(DType::$variant => f.write_str($text),)* DType::Other(n) => write!(f, "dtype{n}") }
            }
        }

        impl FromStr for DType {
            type Err = UnknownDType;
            fn from_str(s: &str) -> Result<Self, UnknownDType> {
                match s {
                    $($text => Ok(DType::$variant),)*
                    _ => s.strip_prefix("dtype")
                        .and_then(|n| n.parse().ok())
                        .and_then(DType::from_number)
                        .ok_or_else(|| UnknownDType(s.to_owned())),
                }
            }
        }
    };
}

dtypes! {
    /// IEEE binary32.
    F32 = 1, 32, "f32", "float";
    /// Unsigned 8-bit integer.
    U8 = 2, 8, "u8", "uint8";
    /// Signed 8-bit integer.
    I8 = 3, 8, "i8", "int8";
    /// Unsigned 16-bit integer.
    U16 = 4, 16, "u16", "uint16";
    /// Signed 16-bit integer.
    I16 = 5, 16, "i16", "int16";
    /// Signed 32-bit integer.
    I32 = 6, 32, "i32", "int32";
    /// Signed 64-bit integer.
    I64 = 7, 64, "i64", "int64";
    /// A string of bytes.
    String = 8, 0, "string", "string";
    /// One byte, 0 or 1.
    Bool = 9, 8, "bool", "bool";
    /// IEEE binary16.
    F16 = 10, 16, "f16", "float16";
    /// IEEE binary64.
    F64 = 11, 64, "f64", "double";
    /// Unsigned 32-bit integer.
    U32 = 12, 32, "u32", "uint32";
    /// Unsigned 64-bit integer.
    U64 = 13, 64, "u64", "uint64";
    /// Two binary32.
    Complex64 = 14, 64, "complex64", "complex64";
    /// Two binary64.
    Complex128 = 15, 128, "complex128", "complex128";
    /// The upper half of binary32.
    BF16 = 16, 16, "bf16", "bfloat16";
    /// 4 exponent, 3 mantissa bits, no infinity.
    F8E4M3FN = 17, 8, "float8e4m3fn", "float8e4m3fn";
    /// 4 exponent, 3 mantissa bits, no infinity, no negative zero.
    F8E4M3FNUZ = 18, 8, "float8e4m3fnuz", "float8e4m3fnuz";
    /// 5 exponent, 2 mantissa bits.
    F8E5M2 = 19, 8, "float8e5m2", "float8e5m2";
    /// 5 exponent, 2 mantissa bits, no infinity, no negative zero.
    F8E5M2FNUZ = 20, 8, "float8e5m2fnuz", "float8e5m2fnuz";
    /// Unsigned 4-bit integer, two per byte, low nibble first.
    U4 = 21, 4, "uint4", "uint4";
    /// Signed 4-bit integer, two per byte, low nibble first.
    I4 = 22, 4, "int4", "int4";
    /// 2 exponent, 1 mantissa bit, two per byte.
    F4E2M1 = 23, 4, "float4e2m1", "float4e2m1";
    /// 8 exponent bits: a power of two.
    F8E8M0 = 24, 8, "float8e8m0", "float8e8m0";
    /// Unsigned 2-bit integer, four per byte.
    U2 = 25, 2, "uint2", "uint2";
    /// Signed 2-bit integer, four per byte.
    I2 = 26, 2, "int2", "int2";
    /// 2 exponent, 3 mantissa bits, four in three bytes, low bits first.
    F6E2M3 = 27, 6, "float6e2m3", "float6e2m3";
    /// 3 exponent, 2 mantissa bits, four in three bytes, low bits first.
    F6E3M2 = 28, 6, "float6e3m2", "float6e3m2";
}

/// No element type has this spelling.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not an element type; expected one such as `f32`, `f16`, `bf16`, `i64`, `bool`, `float8e4m3fn`"
)]
pub struct UnknownDType(pub String);

impl DType {
    /// Bytes that `count` elements take, rounded up to whole bytes; `None` for strings, unknown types and
    /// on overflow.
    pub fn storage_bytes(self, count: u64) -> Option<u64> {
        Some(count.checked_mul(u64::from(self.bits()?))?.checked_add(7)? / 8)
    }

    /// Bytes that a tensor of these dims takes; `None` where [`storage_bytes`](Self::storage_bytes) has no number.
    pub fn tensor_bytes(self, dims: &[u64]) -> Option<u64> {
        self.storage_bytes(dims.iter().try_fold(1u64, |count, &dim| count.checked_mul(dim))?)
    }

    /// True if this is a real floating-point type of any width.
    pub fn is_float(self) -> bool {
        use DType::{
            BF16, F4E2M1, F6E2M3, F6E3M2, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0, F16, F32, F64,
        };
        matches!(
            self,
            F32 | F64
                | F16
                | BF16
                | F8E4M3FN
                | F8E4M3FNUZ
                | F8E5M2
                | F8E5M2FNUZ
                | F8E8M0
                | F6E2M3
                | F6E3M2
                | F4E2M1
        )
    }

    /// True if this is a 16-bit float, the formats that models are lowered to.
    pub fn is_low(self) -> bool {
        matches!(self, DType::F16 | DType::BF16)
    }

    /// True if this is an integer type (booleans excluded).
    pub fn is_integer(self) -> bool {
        use DType::{I2, I4, I8, I16, I32, I64, U2, U4, U8, U16, U32, U64};
        matches!(self, I2 | I4 | I8 | I16 | I32 | I64 | U2 | U4 | U8 | U16 | U32 | U64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_and_numbers_round_trip() {
        for &dtype in DType::ALL {
            assert_eq!(dtype.to_string().parse(), Ok(dtype));
            assert_eq!(DType::from_number(dtype.number()), Some(dtype));
            assert_eq!(DType::from_onnx_name(dtype.onnx_name()), Some(dtype));
        }
        assert_eq!(DType::ALL.len(), 28);
        assert_eq!("dtype77".parse(), Ok(DType::Other(77)));
        assert!("float".parse::<DType>().is_err());
    }

    #[test]
    fn packed_types_round_up() {
        assert_eq!(DType::I4.storage_bytes(3), Some(2));
        assert_eq!(DType::U2.storage_bytes(5), Some(2));
        assert_eq!([4, 5, 6].map(|n| DType::F6E2M3.storage_bytes(n)), [Some(3), Some(4), Some(5)]);
        assert_eq!(DType::F32.storage_bytes(u64::MAX / 2), None);
        assert_eq!(DType::String.storage_bytes(1), None);
    }
}
