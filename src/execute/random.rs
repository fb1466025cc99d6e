//! Random values for inputs, reproducible from the seed on every machine.
//!
//! A *draw* has values for all inputs. A model runs on the first draw. Models are compared on several draws, because
//! overflow, cancellation and underflow in 16 bits depend on the magnitude ([`Draw`]).
//!
//! Element `i` of input `k` (counted from 0 in the order of the model) of draw `d` (from 0) is computed from word
//! `i mod 4` of Philox4x32-10 ([`ampc_ir::random`]) with the seed as key and the counter `(i div 4, k, 1 + d)`: two
//! 32-bit words for `i`, and one word for each of the others. Streams of constants end in 0 instead, so no input
//! shares numbers with a constant. The value of a word `w` is
//!
//! - a float of the draw's range, in the first [−1, 1) as in constants, rounded once to the element type; a complex
//!   element is two floats;
//! - `true` if its highest bit is set;
//! - the integer `low + (w · count) div 2^32` for a [`Role`] that the graph gives to integers;
//! - one of the strings "0" and "1".
//!
//! For masks, there is one word per row, that is, for the elements along the last axis. It determines how many
//! elements at the end or at the beginning are hidden ([`Rows`]).

mod masks;
mod roles;

pub(super) use self::roles::{Role, roles};

use self::masks::Rows;
use crate::error::Error;
use crate::execute::dims::{BoundDim, Dims};
use crate::interface::input_names;
use ampc_ir::convert::{Conversion, can_convert, convert};
use ampc_ir::module::Def;
use ampc_ir::random::{philox4x32, unit};
use ampc_ir::{DType, Dim, Module, Type};
use ampc_passes::suggest::{did_you_mean, listed, nearest};
use ampc_runtime::data::{Data, Maybe, Sequence};
use ampc_runtime::{HostError, HostTensor};
use rustc_hash::FxHashSet;

/// A set of values for the inputs of a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Draw {
    seed: u64,
    number: u32,
}

/// The ranges of floats and of integers of unknown use, by draw: unit range, pixels (or unnormalized features), and
/// small values.
const RANGES: [&str; 3] =
    ["floats in [-1, 1)", "pixels in [0, 255), other floats in [-8, 8)", "floats in [-1/256, 1/256)"];

/// The bound of features in the second draw: a few standard deviations, as after a normalization.
const FEATURE: f32 = 8.0;

/// The bound of floats in the last draw: all their squares are subnormal in f16.
const TINY: f32 = 1.0 / 256.0;

/// The maximum number of channels of images, and of coordinates of points, boxes and colors; features have more.
const MAX_CHANNELS: u64 = 4;

/// True if floats of these dims may be raw data that networks read unscaled, such as pixels, points, boxes or step
/// counts: few channels along axis 1 of images, few elements along the last axis ([`MAX_CHANNELS`]), or at most one
/// axis.
fn is_raw(dims: &[u64]) -> bool {
    let few = |n: u64| n <= MAX_CHANNELS;
    dims.len() < 2 || dims.last().is_some_and(|&n| few(n)) || (dims.len() > 3 && few(dims[1]))
}

impl Draw {
    /// The first draw, on which a model runs.
    pub(super) fn first(seed: u64) -> Draw {
        Draw { seed, number: 0 }
    }

    /// The draws on which inputs of these types and roles differ in more than the individual numbers.
    pub(super) fn all(seed: u64, inputs: &[(DType, Role)]) -> Vec<Draw> {
        let of = |&(dtype, role): &(DType, Role)| match role {
            Role::Any if dtype.is_float() => 3,
            Role::Any if dtype.is_integer() => 2,
            Role::Additive => 3,
            Role::Mask => 2,
            Role::Any | Role::Position(_) | Role::Index(_) | Role::Length(_) | Role::Trips | Role::Extent => {
                1
            }
        };
        let count = inputs.iter().map(of).max().unwrap_or(1);
        (0..count).map(|number| Draw { seed, number }).collect()
    }

    /// A one-line description of the drawn values.
    pub(super) fn about(self) -> &'static str {
        RANGES[self.number as usize]
    }

    /// The float value of a word.
    fn float(self, word: u32, is_raw: bool) -> f32 {
        match self.number {
            0 => unit(word),
            1 if is_raw => (unit(word) + 1.0) * 127.5,
            1 => unit(word) * FEATURE,
            _ => unit(word) * TINY,
        }
    }

    /// The minimum integer for inputs of unknown use, and the number of integers.
    fn integers(self) -> (u64, u64) {
        if self.number == 1 { (0, 255) } else { Role::Any.range() }
    }
}

/// The number of elements of a sequence.
const ITEMS: u64 = 2;

/// The memory of a random value of this type in bytes, if it fits 64 bits; 0 for a type without random values.
pub(super) fn bytes(ty: &Type) -> Option<u64> {
    match ty {
        Type::Tensor(tensor) if tensor.dtype == DType::String => {
            let count = tensor.shape.to_known()?.iter().try_fold(1u64, |n, &d| n.checked_mul(d))?;
            // Each string is one digit.
            count.checked_mul(size_of::<Box<[u8]>>() as u64 + 1)
        }
        Type::Tensor(tensor) => tensor.storage_bytes(),
        Type::Sequence(element) => bytes(element)?.checked_mul(ITEMS),
        Type::Optional(element) => bytes(element),
        Type::Unknown | Type::Sparse(_) | Type::Map { .. } | Type::Opaque { .. } => Some(0),
    }
}

/// A random value of this type for input `k`.
pub(super) fn value(draw: Draw, k: u32, ty: &Type, role: Role) -> Result<Data, Refused> {
    match ty {
        Type::Tensor(tensor) => {
            let dims = tensor.shape.to_known().unwrap_or_default();
            Stream { draw, k, next: 0 }.tensor(tensor.dtype, &dims, role).map(Data::Tensor)
        }
        Type::Sequence(element) => {
            let mut stream = Stream { draw, k, next: 0 };
            let items = (0..ITEMS).map(|_| stream.item(element, role)).collect::<Result<_, _>>()?;
            Ok(Data::Sequence(Sequence::new((**element).clone(), items)))
        }
        Type::Optional(element) => {
            let value = value(draw, k, element, role)?;
            Ok(Data::Optional(Maybe { element: (**element).clone(), value: Some(Box::new(value)) }))
        }
        Type::Unknown | Type::Sparse(_) | Type::Map { .. } | Type::Opaque { .. } => {
            Err(Refused::Kind("values of this type"))
        }
    }
}

/// The reason why there is no random value.
pub(super) enum Refused {
    Kind(&'static str),
    DType(DType),
    Host(HostError),
}

impl From<HostError> for Refused {
    fn from(error: HostError) -> Refused {
        Refused::Host(error)
    }
}

/// The random words of one input.
struct Stream {
    draw: Draw,
    k: u32,
    next: u64,
}

impl Stream {
    fn word(&mut self) -> u32 {
        let index = self.next;
        self.next += 1;
        let [lo, hi] = words(index / 4);
        philox4x32([lo, hi, self.k, 1 + self.draw.number], words(self.draw.seed))[(index % 4) as usize]
    }

    fn item(&mut self, ty: &Type, role: Role) -> Result<Data, Refused> {
        let Type::Tensor(tensor) = ty else { return Err(Refused::Kind("lists of lists")) };
        let dims = tensor.shape.to_known().unwrap_or_default();
        self.tensor(tensor.dtype, &dims, role).map(Data::Tensor)
    }

    fn tensor(&mut self, dtype: DType, dims: &[u64], role: Role) -> Result<HostTensor, Refused> {
        if dtype == DType::String {
            let count = HostTensor::zeros(dtype, dims)?.element_count();
            let digit = |s: &mut Stream| -> Box<[u8]> { Box::new([b'0' + (s.word() >> 31) as u8]) };
            let strings = (0..count).map(|_| digit(self)).collect();
            return Ok(HostTensor::from_strings(dims, strings)?);
        }
        let rows = Rows { dims, draw: self.draw.number };
        HostTensor::filled(dtype, dims, |bytes| self.fill(dtype, role, rows, bytes))
    }

    fn fill(&mut self, dtype: DType, role: Role, rows: Rows<'_>, bytes: &mut [u8]) -> Result<(), Refused> {
        let part = match dtype {
            DType::Complex64 => DType::F32,
            DType::Complex128 => DType::F64,
            other => other,
        };
        if can_convert(DType::F32, part) {
            match role {
                Role::Additive => rounded(part, bytes, rows.additive(part, || self.word())),
                Role::Mask => {
                    rounded(part, bytes, rows.seen(|| self.word()).map(|seen| f32::from(u8::from(seen))))
                }
                _ => {
                    let is_raw = is_raw(rows.dims);
                    let next = || self.draw.float(self.word(), is_raw);
                    rounded(part, bytes, std::iter::repeat_with(next));
                }
            }
            return Ok(());
        }
        match dtype {
            DType::Bool if role == Role::Mask => {
                bytes.iter_mut().zip(rows.seen(|| self.word())).for_each(|(b, seen)| *b = u8::from(seen));
            }
            DType::Bool => bytes.iter_mut().for_each(|b| *b = (self.word() >> 31) as u8),
            DType::I64
            | DType::U64
            | DType::I32
            | DType::U32
            | DType::I16
            | DType::U16
            | DType::I8
            | DType::U8 => {
                let size = (dtype.bits().unwrap_or(8) / 8) as usize;
                // The maximum is limited by the type.
                let most = u64::MAX >> (65 - 8 * size);
                let elements = bytes.chunks_exact_mut(size).zip(self.integers(role, rows, most));
                elements.for_each(|(e, number)| e.copy_from_slice(&number.to_le_bytes()[..size]));
            }
            // Packed integers of 2 or 4 bits are 0 or 1.
            DType::I4 | DType::U4 => bytes.iter_mut().for_each(|b| *b = (self.word() >> 24) as u8 & 0x11),
            DType::I2 | DType::U2 => bytes.iter_mut().for_each(|b| *b = (self.word() >> 24) as u8 & 0x55),
            _ => return Err(Refused::DType(dtype)),
        }
        Ok(())
    }

    /// An endless iterator of integers up to `most`.
    fn integers<'a>(
        &'a mut self,
        role: Role,
        rows: Rows<'a>,
        most: u64,
    ) -> Box<dyn Iterator<Item = u64> + 'a> {
        let width = rows.width().max(1);
        match role {
            Role::Mask => Box::new(rows.seen(|| self.word()).map(u64::from)),
            Role::Position(extent) => {
                let extent = extent.clamp(1, most);
                Box::new((0u64..).map(move |at| at % width % extent))
            }
            _ => {
                let (low, count) = if role == Role::Any { self.draw.integers() } else { role.range() };
                let count = count.min(most - low + 1);
                let drawn = move |w: u32| (u128::from(w) * u128::from(count)) >> 32;
                Box::new(std::iter::repeat_with(move || u64::try_from(drawn(self.word())).unwrap_or(0) + low))
            }
        }
    }
}

/// Fills a tensor with numbers, each rounded once to the element type.
fn rounded(dtype: DType, bytes: &mut [u8], mut numbers: impl Iterator<Item = f32>) {
    const BLOCK: usize = 1 << 14;
    let size = (dtype.bits().unwrap_or(8) / 8) as usize;
    let (mut wide, mut narrow) = (Vec::new(), Vec::new());
    for block in bytes.chunks_mut(BLOCK * size) {
        wide.clear();
        narrow.clear();
        let block_numbers = numbers.by_ref().take(block.len() / size);
        block_numbers.for_each(|number| wide.extend_from_slice(&number.to_le_bytes()));
        convert(DType::F32, Conversion { to: dtype, clamp: false }, &wide, &mut narrow);
        block.copy_from_slice(&narrow);
    }
}

/// The low and the high word.
fn words(n: u64) -> [u32; 2] {
    let b = n.to_le_bytes();
    [u32::from_le_bytes([b[0], b[1], b[2], b[3]]), u32::from_le_bytes([b[4], b[5], b[6], b[7]])]
}

/// The open dims that got a size, each once.
#[derive(Default)]
struct Bound {
    dims: Vec<BoundDim>,
    names: FxHashSet<String>,
}

/// Sets every open dim of the tensors in a type to a size.
fn bind(module: &Module, ty: &mut Type, name: &str, asked: &Dims, bound: &mut Bound) {
    let tensor = match ty {
        Type::Tensor(tensor) => tensor,
        Type::Sequence(element) | Type::Optional(element) => {
            return bind(module, element, name, asked, bound);
        }
        Type::Unknown | Type::Sparse(_) | Type::Map { .. } | Type::Opaque { .. } => return,
    };
    let dims = tensor.shape.dims().unwrap_or_default().to_vec();
    let mut known = Vec::with_capacity(dims.len());
    for (axis, dim) in dims.into_iter().enumerate() {
        let dim_name = match dim {
            Dim::Known(n) => {
                known.push(n);
                continue;
            }
            Dim::Sym(symbol) => module.text(symbol).to_owned(),
            Dim::Unknown => format!("{name}[{axis}]"),
        };
        let size = asked.get(&dim_name).copied();
        known.push(size.unwrap_or(1));
        if bound.names.insert(dim_name.clone()) {
            bound.dims.push(BoundDim { name: dim_name, size: size.unwrap_or(1), asked: size.is_some() });
        }
    }
    tensor.shape = ampc_ir::Shape::known(&known);
}

/// The types of the inputs with a size for every dim, and the names and places of the sized dims.
pub(super) fn with_dims(module: &Module, asked: &Dims) -> Result<(Vec<Option<Type>>, Vec<BoundDim>), Error> {
    let graph = module.graph(module.main());
    let mut bound = Bound::default();
    let mut types = Vec::new();
    for (&value, name) in graph.inputs().iter().zip(input_names(module)) {
        let data = module.value(value);
        if matches!(data.def, Def::Input { default: Some(_), .. }) {
            types.push(None);
            continue;
        }
        let mut ty = data.ty.clone();
        bind(module, &mut ty, &name, asked, &mut bound);
        types.push(Some(ty));
    }
    if let Some(unknown) = asked.keys().find(|name| !bound.names.contains(*name)) {
        let names: Vec<&str> = bound.dims.iter().map(|b| b.name.as_str()).collect();
        // A dim with an explicit size cannot be the intended dim of an unknown name.
        let near = nearest(unknown, names.iter().copied().filter(|&name| !asked.contains_key(name)));
        let option = |name: &str| format!("{name}={}", asked[unknown]);
        let hint = did_you_mean(near.map(option).as_deref());
        let known = if names.is_empty() {
            "no input has a dim that is not a number".to_owned()
        } else {
            format!("the open dims are {}", listed(names))
        };
        let given = option(unknown);
        return Err(Error::Usage(format!("`--dim {given}`: no input has a dim `{unknown}`; {known}{hint}")));
    }
    Ok((types, bound.dims))
}

#[cfg(test)]
mod tests;
