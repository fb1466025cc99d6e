//! Elements of any type in blocks of one of four types that each is exact in: f32, f64, i64, u64. From there they are
//! rounded once to any other.
//!
//! Floats become integers without their fraction; out of range, they take the low bits of the 64-bit integer,
//! as integers do. Integers become floats rounded to nearest even, and booleans by whether they differ from 0.

use super::lanes::Real;
use crate::float::Format;
use crate::kernel::{KernelError, Result};
use ampc_ir::DType;
use ampc_ir::convert::round_to_odd;
use bytemuck::Pod;
use half::{bf16, f16};
use std::sync::OnceLock;

/// How a number that is not exact becomes a power of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RoundMode {
    Up,
    Down,
    Nearest,
}

/// Kind and parameters of an encoding.
#[derive(Clone, Copy, Debug)]
pub(super) struct Encoding {
    pub(super) to: DType,
    /// True if values beyond the range of a small float saturate to its greatest number.
    pub(super) saturate: bool,
    /// For float8e8m0.
    pub(super) round_mode: RoundMode,
}

impl Encoding {
    pub(super) fn new(to: DType) -> Encoding {
        Encoding { to, saturate: true, round_mode: RoundMode::Up }
    }
}

/// Elements per block.
pub(super) use super::lanes::BLOCK;

/// Bytes of a block of elements of so many bits: whole ones.
pub(super) fn block_bytes(bits: usize) -> usize {
    BLOCK * bits / 8
}

/// Bits of an element that is a number.
pub(super) fn bits_of(dtype: DType) -> Result<usize> {
    let bits = dtype.bits().and_then(|bits| usize::try_from(bits).ok());
    bits.ok_or_else(|| KernelError::unsupported(format!("{dtype} as a number")))
}

/// One of the types that elements are taken to.
pub(super) trait Lane: Pod + Send + Sync {
    /// The first elements of `bytes` as this type. Exact, or rounded once.
    fn decode(from: DType, bytes: &[u8], to: &mut [Self]) -> Result<()>;
    /// The nearest f32.
    fn to_f32(self) -> f32;
    /// The nearest f64.
    fn to_f64(self) -> f64;
    /// An f64 that rounds to any format of at most 24 digits as the number itself does.
    fn to_odd_f64(self) -> f64;
    /// An f32 that rounds to f16 and bf16 as the number itself does.
    fn to_odd_f32(self) -> f32 {
        round_to_odd(self.to_odd_f64())
    }
    /// The number without its fraction in 64 bits of two's complement.
    fn to_bits64(self) -> i64;
    /// True if it is not 0.
    fn is_true(self) -> bool;
    /// Elements as f32, if they have this type.
    fn as_f32(_: &[Self]) -> Option<&[f32]> {
        None
    }
}

macro_rules! decode {
    ($lane:ident) => {
        #[allow(clippy::cast_possible_truncation, reason = "rounded or wrapped, as the module says")]
        #[allow(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "the same")]
        #[allow(clippy::cast_lossless, clippy::cast_possible_wrap, reason = "one form for all types")]
        #[allow(clippy::unnecessary_cast, reason = "one form for all types")]
        fn decode(from: DType, bytes: &[u8], to: &mut [$lane]) -> Result<()> {
            fn each<T: Pod>(bytes: &[u8], to: &mut [$lane], f: impl Fn(T) -> $lane) {
                if !to.is_empty() {
                    let from: &[T] = bytemuck::cast_slice(&bytes[..to.len() * size_of::<T>()]);
                    to.iter_mut().zip(from).for_each(|(y, &x)| *y = f(x));
                }
            }
            match from {
                DType::F64 => each::<f64>(bytes, to, |x| x as $lane),
                DType::F32 => each::<f32>(bytes, to, |x| x as $lane),
                DType::F16 => halves::<f16, $lane>(bytes, to, |x| x as $lane),
                DType::BF16 => halves::<bf16, $lane>(bytes, to, |x| x as $lane),
                DType::I64 => each::<i64>(bytes, to, |x| x as $lane),
                DType::I32 => each::<i32>(bytes, to, |x| x as $lane),
                DType::I16 => each::<i16>(bytes, to, |x| x as $lane),
                DType::I8 => each::<i8>(bytes, to, |x| x as $lane),
                DType::U64 => each::<u64>(bytes, to, |x| x as $lane),
                DType::U32 => each::<u32>(bytes, to, |x| x as $lane),
                DType::U16 => each::<u16>(bytes, to, |x| x as $lane),
                DType::U8 => each::<u8>(bytes, to, |x| x as $lane),
                DType::Bool => each::<u8>(bytes, to, |x| u8::from(x != 0) as $lane),
                DType::U4 => unpack(4, bytes, to, |x| x as $lane),
                DType::I4 => unpack(4, bytes, to, |x| ((x << 4) as i8 >> 4) as $lane),
                DType::U2 => unpack(2, bytes, to, |x| x as $lane),
                DType::I2 => unpack(2, bytes, to, |x| ((x << 6) as i8 >> 6) as $lane),
                _ => {
                    let table = table(from)?;
                    unpack(bits_of(from)?, bytes, to, |x| table[usize::from(x)] as $lane);
                }
            }
            Ok(())
        }
    };
}

impl Lane for f32 {
    decode!(f32);
    fn to_f32(self) -> f32 {
        self
    }
    fn to_f64(self) -> f64 {
        self.into()
    }
    fn to_odd_f64(self) -> f64 {
        self.into()
    }
    fn to_odd_f32(self) -> f32 {
        self
    }
    fn to_bits64(self) -> i64 {
        f64::from(self).to_bits64()
    }
    fn is_true(self) -> bool {
        self != 0.0
    }
    fn as_f32(elements: &[f32]) -> Option<&[f32]> {
        Some(elements)
    }
}

impl Lane for f64 {
    decode!(f64);
    #[expect(clippy::cast_possible_truncation, reason = "rounding is what it is for")]
    fn to_f32(self) -> f32 {
        self as f32
    }
    fn to_f64(self) -> f64 {
        self
    }
    fn to_odd_f64(self) -> f64 {
        self
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the fraction goes")]
    fn to_bits64(self) -> i64 {
        // What is above the signed range is in the unsigned one.
        if self >= 9_223_372_036_854_775_808.0 { (self as u64).cast_signed() } else { self as i64 }
    }
    fn is_true(self) -> bool {
        self != 0.0
    }
}

/// A number of which the digits that an f64 has no room for are one, which says whether there are any.
#[expect(clippy::cast_precision_loss, reason = "what is left of the digits fits")]
fn sticky(size: u64) -> f64 {
    if size >> 53 == 0 {
        return size as f64;
    }
    let rest = u64::from(size & 0x7ff != 0);
    (((size >> 11) | rest) as f64) * 2048.0
}

impl Lane for i64 {
    decode!(i64);
    #[expect(clippy::cast_precision_loss, reason = "rounding is what it is for")]
    fn to_f32(self) -> f32 {
        self as f32
    }
    #[expect(clippy::cast_precision_loss, reason = "rounding is what it is for")]
    fn to_f64(self) -> f64 {
        self as f64
    }
    fn to_odd_f64(self) -> f64 {
        let size = sticky(self.unsigned_abs());
        if self < 0 { -size } else { size }
    }
    fn to_bits64(self) -> i64 {
        self
    }
    fn is_true(self) -> bool {
        self != 0
    }
}

impl Lane for u64 {
    decode!(u64);
    #[expect(clippy::cast_precision_loss, reason = "rounding is what it is for")]
    fn to_f32(self) -> f32 {
        self as f32
    }
    #[expect(clippy::cast_precision_loss, reason = "rounding is what it is for")]
    fn to_f64(self) -> f64 {
        self as f64
    }
    fn to_odd_f64(self) -> f64 {
        sticky(self)
    }
    fn to_bits64(self) -> i64 {
        self.cast_signed()
    }
    fn is_true(self) -> bool {
        self != 0
    }
}

/// Elements of 16 bits, a block at a time as f32.
fn halves<T: Real<Wide = f32>, L>(bytes: &[u8], to: &mut [L], f: impl Fn(f32) -> L) {
    if to.is_empty() {
        return;
    }
    let from: &[T] = bytemuck::cast_slice(&bytes[..to.len() * 2]);
    let mut block = [0f32; BLOCK];
    for (from, to) in from.chunks(BLOCK).zip(to.chunks_mut(BLOCK)) {
        let block = &mut block[..from.len()];
        T::widen(from, block);
        to.iter_mut().zip(&*block).for_each(|(y, &x)| *y = f(x));
    }
}

/// Elements of at most 8 bits, low bits first.
fn unpack<L>(bits: usize, bytes: &[u8], to: &mut [L], f: impl Fn(u8) -> L) {
    if bits == 8 {
        to.iter_mut().zip(bytes).for_each(|(y, &x)| *y = f(x));
        return;
    }
    let mask = u8::MAX >> (8 - bits);
    for (i, y) in to.iter_mut().enumerate() {
        let (byte, shift) = (i * bits / 8, i * bits % 8);
        let high = if shift + bits > 8 { bytes[byte + 1] } else { 0 };
        let [low, _] = (u16::from_le_bytes([bytes[byte], high]) >> shift).to_le_bytes();
        *y = f(low & mask);
    }
}

/// Writes elements of at most 8 bits, low bits first.
fn pack<L: Copy>(bits: usize, from: &[L], bytes: &mut [u8], f: impl Fn(L) -> u8) {
    if bits == 8 {
        bytes.iter_mut().zip(from).for_each(|(y, &x)| *y = f(x));
        return;
    }
    bytes.fill(0);
    let mask = u8::MAX >> (8 - bits);
    for (i, &x) in from.iter().enumerate() {
        let (byte, shift) = (i * bits / 8, i * bits % 8);
        let [low, high] = (u16::from(f(x) & mask) << shift).to_le_bytes();
        bytes[byte] |= low;
        if high != 0 {
            bytes[byte + 1] |= high;
        }
    }
}

/// The numbers of a float format of at most 8 bits; all are exact in f32.
fn table(dtype: DType) -> Result<&'static [f32; 256]> {
    static TABLES: [OnceLock<[f32; 256]>; 8] = [const { OnceLock::new() }; 8];
    let at = match dtype {
        DType::F8E4M3FN => 0,
        DType::F8E4M3FNUZ => 1,
        DType::F8E5M2 => 2,
        DType::F8E5M2FNUZ => 3,
        DType::F8E8M0 => 4,
        DType::F6E2M3 => 5,
        DType::F6E3M2 => 6,
        DType::F4E2M1 => 7,
        _ => return Err(KernelError::unsupported(format!("{dtype} as a number"))),
    };
    let format = format_of(dtype)?;
    Ok(TABLES[at].get_or_init(|| {
        let mut numbers = [0.0; 256];
        for (number, bits) in numbers.iter_mut().zip(0..=u8::MAX) {
            *number = format.decode_byte(bits).to_f32();
        }
        numbers
    }))
}

fn format_of(dtype: DType) -> Result<Format> {
    Format::of(dtype).ok_or_else(|| KernelError::unsupported(format!("{dtype} as a float")))
}

/// Writes elements to the bytes of as many elements of another type.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "integers wrap")]
pub(super) fn encode<L: Lane>(from: &[L], encoding: Encoding, bytes: &mut [u8]) -> Result<()> {
    fn each<L: Copy, T: Pod>(from: &[L], bytes: &mut [u8], f: impl Fn(L) -> T) {
        if !from.is_empty() {
            let to: &mut [T] = bytemuck::cast_slice_mut(bytes);
            to.iter_mut().zip(from).for_each(|(y, &x)| *y = f(x));
        }
    }
    let Encoding { to, saturate, round_mode } = encoding;
    match to {
        DType::F64 => each::<L, f64>(from, bytes, L::to_f64),
        DType::F32 => each::<L, f32>(from, bytes, L::to_f32),
        DType::F16 => narrow::<f16, L>(from, bytes),
        DType::BF16 => narrow::<bf16, L>(from, bytes),
        DType::I64 => each::<L, i64>(from, bytes, L::to_bits64),
        DType::I32 => each::<L, i32>(from, bytes, |x| x.to_bits64() as i32),
        DType::I16 => each::<L, i16>(from, bytes, |x| x.to_bits64() as i16),
        DType::I8 => each::<L, i8>(from, bytes, |x| x.to_bits64() as i8),
        DType::U64 => each::<L, u64>(from, bytes, |x| x.to_bits64().cast_unsigned()),
        DType::U32 => each::<L, u32>(from, bytes, |x| x.to_bits64() as u32),
        DType::U16 => each::<L, u16>(from, bytes, |x| x.to_bits64() as u16),
        DType::U8 => each::<L, u8>(from, bytes, |x| x.to_bits64() as u8),
        DType::Bool => each::<L, u8>(from, bytes, |x| x.is_true().into()),
        DType::U4 | DType::I4 => pack(4, from, bytes, |x| x.to_bits64() as u8),
        DType::U2 | DType::I2 => pack(2, from, bytes, |x| x.to_bits64() as u8),
        DType::F8E8M0 => {
            pack(8, from, bytes, |x| encode_scale(x.to_odd_f64(), saturate, round_mode));
        }
        _ => {
            let (format, bits) = (format_of(to)?, bits_of(to)?);
            pack(bits, from, bytes, |x| format.encode_byte(x.to_odd_f64(), saturate));
        }
    }
    Ok(())
}

/// To elements of 16 bits, a block at a time.
fn narrow<T: Real<Wide = f32>, L: Lane>(from: &[L], bytes: &mut [u8]) {
    if from.is_empty() {
        return;
    }
    let to: &mut [T] = bytemuck::cast_slice_mut(bytes);
    if let Some(from) = L::as_f32(from) {
        T::narrow(from, to);
        return;
    }
    let mut block = [0f32; BLOCK];
    for (from, to) in from.chunks(BLOCK).zip(to.chunks_mut(BLOCK)) {
        let block = &mut block[..from.len()];
        block.iter_mut().zip(from).for_each(|(y, &x)| *y = x.to_odd_f32());
        T::narrow(block, to);
    }
}

/// The bits of a power of two in float8e8m0. The sign is not looked at.
fn encode_scale(number: f64, saturate: bool, round_mode: RoundMode) -> u8 {
    let size = number.abs();
    if size.is_nan() {
        return u8::MAX;
    }
    // Numbers of which f64 has no normal form are far below the range.
    let exponent = if size.is_infinite() { 1024 } else { i64::from(exponent_field(size)) - 1023 };
    let fraction = size / 2f64.powi(exponent.clamp(-1022, 1023).try_into().unwrap_or(0)) - 1.0;
    let goes_up = match round_mode {
        RoundMode::Up => fraction > 0.0,
        RoundMode::Down => false,
        RoundMode::Nearest => fraction >= 0.5,
    };
    match u8::try_from(exponent + i64::from(goes_up) + 127) {
        Ok(bits) if bits < u8::MAX => bits,
        _ if !saturate => u8::MAX,
        _ if exponent < 0 => 0,
        _ => u8::MAX - 1,
    }
}

fn exponent_field(number: f64) -> u16 {
    u16::try_from((number.to_bits() >> 52) & 0x7ff).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded<L: Lane>(from: &[L], to: DType) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(to.storage_bytes(from.len() as u64).unwrap()).unwrap()];
        encode(from, Encoding::new(to), &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn integers_are_rounded_once() {
        // A little above the middle of two f16 and of two bf16.
        let above = (1i64 << 62) + (1 << 54) + 1;
        assert_eq!(encoded(&[above], DType::BF16), bf16::from_bits(0x5e81).to_le_bytes());
        assert_eq!(encoded(&[above - 1], DType::BF16), bf16::from_bits(0x5e80).to_le_bytes());
        assert_eq!(encoded(&[-above], DType::BF16), bf16::from_bits(0xde81).to_le_bytes());
        assert_eq!(encoded(&[u64::MAX], DType::F16), f16::INFINITY.to_le_bytes());
        assert_eq!(encoded(&[2049i64, 2051], DType::F16), [0x00, 0x68, 0x02, 0x68]);
    }

    #[test]
    fn small_elements_are_packed() {
        assert_eq!(encoded(&[1i64, -1, 10], DType::I4), [0xf1, 0x0a]);
        assert_eq!(encoded(&[0i64, 1, 2, 3, 5], DType::U2), [0b11_10_01_00, 1]);
        assert_eq!(encoded(&[1f32, -2.0, 0.5, 3.0, 4.0], DType::F6E2M3), [8, 76, 80, 24]);
        let mut back = [0f32; 5];
        f32::decode(DType::F6E2M3, &[8, 76, 80, 24], &mut back).unwrap();
        assert_eq!(back, [1.0, -2.0, 0.5, 3.0, 4.0]);
        let mut back = [0i64; 3];
        i64::decode(DType::I4, &[0xf1, 0x0a], &mut back).unwrap();
        assert_eq!(back, [1, -1, -6]);
    }

    #[test]
    fn floats_become_integers_by_their_low_bits() {
        assert_eq!(encoded(&[-1.5f32, 300.0, f32::NAN], DType::U8), [255, 44, 0]);
        assert_eq!(encoded(&[1.8e19f64], DType::U64), 18_000_000_000_000_000_000u64.to_le_bytes());
    }

    /// The table of ONNX's text for Cast.
    #[test]
    fn powers_of_two() {
        use RoundMode::{Down, Nearest, Up};
        let max = 2f64.powi(127);
        let up = |x| encode_scale(x, true, Up);
        assert_eq!([up(0.0), up(f64::INFINITY), up(max * 1.5), up(1e-300)], [0, 254, 254, 0]);
        assert_eq!([up(f64::NAN), up(1.0), up(1.1), up(0.124)], [255, 127, 128, 124]);
        let nearest = |x| encode_scale(x, false, Nearest);
        assert_eq!([nearest(0.0), nearest(f64::INFINITY), nearest(max * 1.5), nearest(1e-300)], [255; 4]);
        assert_eq!([nearest(1.4), nearest(1.5), encode_scale(1.9, true, Down)], [127, 128, 127]);
    }
}
