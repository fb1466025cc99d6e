//! Kernels that only move elements: elements of any type are bits of some size, or strings.
//!
//! Elements of less than a byte are moved one to a byte: unpacked before and packed afterwards. Strings are
//! moved as numbers of strings, so that the memory of the result is known before any string is copied.

use super::parallel::{PIECE, all_pieces, pieces};
use crate::host::{HostError, HostTensor, TensorRef, copy_of_string, pack};
use crate::kernel::{Dims, Io, KernelError, Prepared, Result, Site, elements_mut};
use ampc_ir::DType;
use ampc_ir::views::OpError;
use bytemuck::Pod;
use num_traits::{PrimInt, SaturatingMul};
use smallvec::SmallVec;

/// An element that is moved: bits of a size.
pub(super) trait Cell: Pod + Default + Send + Sync {}

impl Cell for u8 {}
impl Cell for u16 {}
impl Cell for u32 {}
impl Cell for u64 {}
impl Cell for u128 {}

/// Where the elements of results come from.
pub(super) trait Movement: Send + Sync + 'static {
    /// True if the first result may be in the place of the first operand, whose elements then are none.
    const IN_PLACE: bool = false;

    /// Writes all elements of results; a result that is not requested has no elements.
    fn run<T: Cell>(&self, io: &Io<'_>, from: &[&[T]], to: &mut [&mut [T]]) -> Result<()>;
}

/// The number of elements of a tensor of these dims, if it is representable.
pub(super) fn count(dims: &[usize]) -> Result<usize> {
    let product = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    product.ok_or_else(|| KernelError::Limit {
        limit: "2^64 elements".into(),
        found: format!("a tensor of dims {dims:?}"),
    })
}

/// The product of some extents of a tensor; where it does not fit, another extent is 0.
pub(super) fn size(dims: &[usize]) -> usize {
    dims.iter().fold(1, |n, &d| n.saturating_mul(d))
}

/// A number of elements as a float: exact up to 2^53, which no extent in memory is beyond.
#[expect(clippy::cast_precision_loss, reason = "what is in memory has fewer than 2^53 elements")]
pub(super) fn to_f64(n: usize) -> f64 {
    n as f64
}

/// Extents before an axis, at it and behind it as one each.
pub(super) fn around(dims: &[usize], axis: usize) -> (usize, usize, usize) {
    (size(&dims[..axis]), dims[axis], size(&dims[axis + 1..]))
}

/// Elements from one element of an axis to the next, in order of axes.
pub(super) fn strides<T: PrimInt + SaturatingMul>(dims: &[T]) -> SmallVec<[T; 6]> {
    let mut strides: SmallVec<[T; 6]> = SmallVec::from_elem(T::one(), dims.len());
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(&dims[axis]);
    }
    strides
}

/// Calls `f` with parts of the rows of `inner` elements that `to` consists of: the row, the first column, the part.
pub(super) fn rows<T: Pod>(to: &mut [T], inner: usize, f: impl Fn(usize, usize, &mut [T]) + Send + Sync) {
    pieces(to, PIECE, |at, mut to| {
        let (mut row, mut column) = (at / inner, at % inner);
        while !to.is_empty() {
            let (part, rest) = to.split_at_mut((inner - column).min(to.len()));
            f(row, column, part);
            (row, column, to) = (row + 1, 0, rest);
        }
    });
}

/// The `count` elements of operand `i`.
fn operand<'a>(io: &Io<'a>, i: usize, count: usize) -> Result<TensorRef<'a>> {
    let tensor = io.tensor(i)?;
    if usize::try_from(tensor.element_count()) == Ok(count) {
        return Ok(tensor);
    }
    Err(OpError::operand(i, format!("{count} elements"), format!("dims {:?}", tensor.dims())).into())
}

/// The elements of a tensor of numbers as bits.
pub(super) fn cells<'a, T: Pod>(tensor: &TensorRef<'a>) -> Result<&'a [T]> {
    let bytes = tensor.bytes().ok_or(HostError::View { view: "bits", found: tensor.dtype() })?;
    Ok(of_bytes(bytes))
}

/// Bytes as elements; no bytes may be anywhere.
pub(crate) fn of_bytes<T: Pod>(bytes: &[u8]) -> &[T] {
    if bytes.is_empty() { &[] } else { bytemuck::cast_slice(bytes) }
}

/// Operands and results of a move: operands with their numbers of elements, and the dims of results.
struct Moved<M> {
    dtype: DType,
    operands: Vec<(usize, usize)>,
    results: Vec<Option<Dims>>,
    movement: M,
}

/// A kernel that moves elements of operands, all of one type, to the results.
pub(super) fn moved<M: Movement>(site: &Site<'_>, operands: &[usize], movement: M) -> Result<Prepared> {
    let dtype = operands.first().map_or(Err(KernelError::NotYet), |&i| site.dtype(i))?;
    for &i in operands {
        if site.dtype(i)? != dtype {
            return Err(OpError::operand(i, dtype.to_string(), site.dtype(i)?.to_string()).into());
        }
    }
    let operands = operands.iter().map(|&i| Ok((i, count(&site.dims(i)?)?)));
    let results = (0..site.results.len()).map(|j| site.wants(j).then(|| site.result_dims(j)).transpose());
    let moved = Moved {
        dtype,
        operands: operands.collect::<Result<_>>()?,
        results: results.collect::<Result<_>>()?,
        movement,
    };
    match dtype.bits() {
        Some(8) => Ok(moved.whole::<u8>()),
        Some(16) => Ok(moved.whole::<u16>()),
        Some(32) => Ok(moved.whole::<u32>()),
        Some(64) => Ok(moved.whole::<u64>()),
        Some(128) => Ok(moved.whole::<u128>()),
        Some(bits @ 1..8) => moved.packed(bits),
        None if dtype == DType::String => moved.strings(),
        _ => Err(site.no_kernel()),
    }
}

impl<M: Movement> Moved<M> {
    fn whole<T: Cell>(self) -> Prepared {
        let prepared = Prepared::new(move |io| {
            let mut from: SmallVec<[&[T]; 16]> = SmallVec::new();
            for &(i, count) in &self.operands {
                from.push(if io.in_place == Some(i) { &[] } else { cells(&operand(io, i, count)?)? });
            }
            let mut to: SmallVec<[&mut [T]; 16]> = SmallVec::new();
            for j in 0..self.results.len() {
                to.push(if io.wants(j) { elements_mut(io.out_bytes(j)?) } else { &mut [] });
            }
            self.movement.run(io, &from, &mut to)
        });
        if M::IN_PLACE { prepared.in_place(&[0]) } else { prepared }
    }

    fn packed(self, bits: u32) -> Result<Prepared> {
        let sizes: Vec<usize> = self
            .results
            .iter()
            .map(|dims| dims.as_ref().map_or(Ok(0), |d| count(d)))
            .collect::<Result<_>>()?;
        let scratch = self.operands.iter().map(|o| o.1).chain(sizes.iter().copied());
        let scratch = scratch.fold(0, usize::saturating_add);
        let kernel = move |io: &mut Io<'_>| {
            let mut room = io.scratch::<u8>();
            let mut from: Vec<&[u8]> = Vec::with_capacity(self.operands.len());
            for &(i, count) in &self.operands {
                let (part, rest) = room.split_at_mut(count);
                operand(io, i, count)?.unpack(part);
                from.push(part);
                room = rest;
            }
            let mut to: Vec<&mut [u8]> = Vec::with_capacity(self.results.len());
            for (j, &size) in sizes.iter().enumerate() {
                let (part, rest) = room.split_at_mut(if io.wants(j) { size } else { 0 });
                to.push(part);
                room = rest;
            }
            self.movement.run(io, &from, &mut to)?;
            for (j, part) in to.iter().enumerate() {
                if io.wants(j) {
                    pack(bits, part, io.out_bytes(j)?);
                }
            }
            Ok(())
        };
        Ok(Prepared::new(kernel).scratch(scratch))
    }

    fn strings(self) -> Result<Prepared> {
        let sizes: Vec<usize> = self
            .results
            .iter()
            .map(|dims| dims.as_ref().map_or(Ok(0), |d| count(d)))
            .collect::<Result<_>>()?;
        Ok(Prepared::new(move |io| {
            let mut from: Vec<&[Text]> = Vec::with_capacity(self.operands.len());
            for &(i, count) in &self.operands {
                from.push(texts(&operand(io, i, count)?)?);
            }
            let sizes = sizes.iter().enumerate().map(|(j, &size)| if io.wants(j) { size } else { 0 });
            let numbers = moved_numbers(io, &from, &sizes.collect::<Vec<_>>(), &self.movement)?;
            for (j, (numbers, dims)) in numbers.iter().zip(&self.results).enumerate() {
                if let (true, Some(dims)) = (io.wants(j), dims) {
                    let dims: Vec<u64> = dims.iter().map(|&d| d as u64).collect();
                    io.emit(j, numbered(io, &dims, &from, numbers)?)?;
                }
            }
            debug_assert_eq!(self.dtype, DType::String);
            Ok(())
        }))
    }
}

/// The numbers of the strings that results of these sizes have: those of all operands are counted from 1 on, 0 is an
/// empty one.
fn moved_numbers(
    io: &Io<'_>,
    from: &[&[Text]],
    sizes: &[usize],
    movement: &impl Movement,
) -> Result<Vec<Vec<u64>>> {
    let count = sizes.iter().fold(0, |sum: usize, &size| sum.saturating_add(size));
    io.check_size((count as u64).saturating_mul((size_of::<u64>() + size_of::<Text>()) as u64))?;
    let mut next = 1u64..;
    let numbers = from.iter().map(|texts| io.room().gathered(next.by_ref().take(texts.len())));
    let numbers = numbers.collect::<Result<Vec<Vec<u64>>>>()?;
    let numbers: Vec<&[u64]> = numbers.iter().map(Vec::as_slice).collect();
    let to = sizes.iter().map(|&size| io.room().filled(size, 0));
    let mut to = to.collect::<Result<Vec<Vec<u64>>>>()?;
    movement.run(io, &numbers, &mut to.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>())?;
    Ok(to)
}

/// A tensor of the strings with these numbers.
fn numbered(io: &Io<'_>, dims: &[u64], from: &[&[Text]], numbers: &[u64]) -> Result<HostTensor> {
    let empty = Text::default();
    let all = io.room().gathered(std::iter::once(&empty).chain(from.iter().copied().flatten()))?;
    let chosen =
        numbers.iter().map(|&n| usize::try_from(n).ok().and_then(|n| all.get(n)).map_or(&empty, |t| *t));
    copies(io, dims, chosen)
}

/// A tensor of copies of these strings, if there may be so many bytes.
pub(super) fn copies<'a>(
    io: &Io<'_>,
    dims: &[u64],
    chosen: impl Iterator<Item = &'a Text> + Clone,
) -> Result<HostTensor> {
    let bytes = chosen.clone().map(|text| (text.len() + size_of::<Text>()) as u64);
    io.check_size(bytes.fold(0, u64::saturating_add))?;
    let copies = chosen.map(|text| Ok(copy_of_string(text)?));
    Ok(HostTensor::from_strings(dims, io.room().try_gathered(copies)?)?)
}

/// A string of a tensor.
pub(super) type Text = Box<[u8]>;

/// The strings of a tensor.
pub(super) fn texts<'a>(tensor: &TensorRef<'a>) -> Result<&'a [Text]> {
    tensor.strings().ok_or_else(|| HostError::View { view: "strings", found: tensor.dtype() }.into())
}

/// The strings of operand `i`.
pub(super) fn texts_of<'a>(io: &Io<'a>, i: usize) -> Result<&'a [Text]> {
    texts(&io.tensor(i)?)
}

/// So many empty strings, if there may be.
pub(super) fn no_texts(io: &Io<'_>, count: usize) -> Result<Vec<Text>> {
    io.check_size((count as u64).saturating_mul(size_of::<Text>() as u64))?;
    io.room().filled(count, Text::default())
}

/// A tensor of the elements of others, all of one type, whose dims are known only now.
pub(super) fn made(
    io: &Io<'_>,
    from: &[TensorRef<'_>],
    dims: &[u64],
    movement: &impl Movement,
) -> Result<HostTensor> {
    let Some(dtype) = from.first().map(TensorRef::dtype) else {
        return Err(KernelError::value("a tensor", "none"));
    };
    if let Some(other) = from.iter().find(|t| t.dtype() != dtype) {
        return Err(KernelError::value(format!("tensors of {dtype}"), other.dtype()));
    }
    let count = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
    let bits = dtype.bits().unwrap_or(128);
    let bytes = count.and_then(|n| n.checked_mul(u64::from(bits))).map_or(u64::MAX, |n| n.div_ceil(8));
    io.check_size(bytes)?;
    let count = usize::try_from(count.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    match bits {
        8 => made_whole::<u8>(io, from, dims, movement),
        16 => made_whole::<u16>(io, from, dims, movement),
        32 => made_whole::<u32>(io, from, dims, movement),
        64 => made_whole::<u64>(io, from, dims, movement),
        128 if dtype == DType::String => {
            let from = from.iter().map(texts).collect::<Result<Vec<_>>>()?;
            let numbers = moved_numbers(io, &from, &[count], movement)?;
            numbered(io, dims, &from, &numbers[0])
        }
        128 => made_whole::<u128>(io, from, dims, movement),
        bits => {
            let loose = |tensor: &TensorRef<'_>| {
                let mut loose = io.room().filled(usize::try_from(tensor.element_count()).unwrap_or(0), 0)?;
                tensor.unpack(&mut loose);
                Ok(loose)
            };
            let from = from.iter().map(loose).collect::<Result<Vec<Vec<u8>>>>()?;
            let from: Vec<&[u8]> = from.iter().map(Vec::as_slice).collect();
            let mut to = io.room().filled(count, 0)?;
            movement.run(io, &from, &mut [&mut to])?;
            HostTensor::filled(dtype, dims, |bytes| {
                pack(bits, &to, bytes);
                Ok(())
            })
        }
    }
}

fn made_whole<T: Cell>(
    io: &Io<'_>,
    from: &[TensorRef<'_>],
    dims: &[u64],
    movement: &impl Movement,
) -> Result<HostTensor> {
    let dtype = from[0].dtype();
    let from = from.iter().map(cells::<T>).collect::<Result<Vec<_>>>()?;
    HostTensor::filled(dtype, dims, |bytes| movement.run(io, &from, &mut [elements_mut(bytes)]))
}

/// Indices that are data.
#[derive(Clone, Copy)]
pub(super) enum Indices<'a> {
    Short(&'a [i32]),
    Long(&'a [i64]),
}

impl<'a> Indices<'a> {
    /// The `count` indices in operand `i`.
    pub(super) fn of(io: &Io<'a>, i: usize, count: usize) -> Result<Indices<'a>> {
        let tensor = operand(io, i, count)?;
        match tensor.dtype() {
            DType::I32 => Ok(Indices::Short(tensor.as_slice()?)),
            _ => Ok(Indices::Long(tensor.as_slice()?)),
        }
    }

    pub(super) fn len(self) -> usize {
        match self {
            Indices::Short(list) => list.len(),
            Indices::Long(list) => list.len(),
        }
    }

    /// Index `i` as it is.
    pub(super) fn get(self, i: usize) -> i64 {
        match self {
            Indices::Short(list) => i64::from(list[i]),
            Indices::Long(list) => list[i],
        }
    }

    /// Index `i` of an axis of extent `n`, counted from the front; one that is checked.
    pub(super) fn at(self, i: usize, n: usize) -> usize {
        from_front(self.get(i), n).unwrap_or(0)
    }

    /// An error unless all are indices of an axis of extent `n`.
    pub(super) fn check(self, n: usize) -> Result<()> {
        let all_inside = match self {
            Indices::Short(list) => all_inside(list, n),
            Indices::Long(list) => all_inside(list, n),
        };
        if all_inside {
            return Ok(());
        }
        match (0..self.len()).map(|i| self.get(i)).find(|&i| from_front(i, n).is_none()) {
            None => Ok(()),
            Some(found) => Err(out_of_range(n, found)),
        }
    }
}

fn all_inside<I: Copy + Into<i64> + Sync>(list: &[I], n: usize) -> bool {
    let end = i64::try_from(n).unwrap_or(i64::MAX);
    let inside = |index: i64| (-end <= index) & (index < end);
    all_pieces(list, PIECE, &|part| part.iter().fold(true, |all, &index| all & inside(index.into())))
}

/// An index counted from the front, if there is such an element.
pub(super) fn from_front(index: i64, n: usize) -> Option<usize> {
    let front = if index < 0 {
        n.checked_sub(usize::try_from(index.unsigned_abs()).ok()?)?
    } else {
        usize::try_from(index).ok()?
    };
    (front < n).then_some(front)
}

pub(super) fn out_of_range(n: usize, found: i64) -> KernelError {
    KernelError::value(format!("an index in [-{n}, {n})"), found)
}

#[cfg(test)]
mod tests {
    use crate::cpu::kernels::tests::{ints, run_with, strings};
    use crate::{Cpu, Limits, Runtime};

    /// A string of 1000 bytes, copied a thousand times or not, where there may be 100 kB.
    #[test]
    fn copies_of_strings_are_counted() {
        let long = "x".repeat(1000);
        let texts = || strings(&[2], &["y", &long]);
        let small = || strings(&[1], &["z"]);
        let flags =
            |flag: u8| crate::HostTensor::from_bytes(ampc_ir::DType::Bool, &[1000], &[flag; 1000]).unwrap();
        let cpu = Runtime {
            limits: Limits { max_bytes: 100_000, ..Limits::default() },
            fold: false,
            ..Cpu::new(1).into()
        };
        let nearest = "Resize(%0, _, _, %1) {mode=\"nearest\"}";
        let label = "ai.onnx.ml::LabelEncoder(%0) {keys_int64s=[0], values_strings=[\"LONG\"]}";
        let label = label.replace("LONG", &long);
        let extract = "ai.onnx.ml::ArrayFeatureExtractor(%0, %1)";
        // The last operand says whether the result has many copies of the long string.
        for many in [true, false] {
            let which = i64::from(many);
            let at = || ints(&[1000], &[which; 1000]);
            let cases = [
                ("Tile(%0, %1)", vec![texts(), ints(&[1], &[if many { 1000 } else { 20 }])]),
                ("Gather(%0, %1)", vec![texts(), at()]),
                ("Where(%0, %1, %2)", vec![flags(u8::from(many)), strings(&[1], &[&long]), small()]),
                (nearest, vec![texts(), ints(&[1], &[if many { 1000 } else { 20 }])]),
                (extract, vec![strings(&[1, 2], &["y", &long]), at()]),
                (&label, vec![ints(&[1000], &[1 - which; 1000])]),
                (
                    "Compress(%0, %1)",
                    vec![strings(&[1000], &vec![if many { &long } else { "y" }; 1000]), flags(1)],
                ),
            ];
            for (node, inputs) in cases {
                let found = run_with(&cpu, node, &["string"], &inputs);
                let refused = found.as_ref().is_err_and(|error| error.contains("at most 100000 bytes"));
                assert_eq!(refused, many, "{node}: {:?}", found.map(|y| y[0].dims().to_vec()));
            }
        }
    }
}
