//! Sequences and optionals.
//!
//! Elements of a sequence are tensors of one element type; their dims may differ, so its type names none.

use super::elements::{count, from_front, made};
use super::movement::{Cut, Joined};
use super::shape::same;
use crate::data::{Data, DataRef, ELEMENT_BYTES, Maybe, Sequence, tensor_type};
use crate::host::{HostTensor, TensorRef};
use crate::kernel::{Io, KernelError, Prepare, Prepared, Result, Site};
use ampc_ir::attr::AttrValue;
use ampc_ir::op::OpKind;
use ampc_ir::views::{OpError, Part, normalize_axis};
use ampc_ir::{DType, Type};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::ConcatFromSequence => concat_from_sequence,
        OpKind::Optional => optional,
        OpKind::OptionalGetElement => get_element,
        OpKind::OptionalHasElement => has_element,
        OpKind::SequenceAt => at,
        OpKind::SequenceConstruct => construct,
        OpKind::SequenceEmpty => empty,
        OpKind::SequenceErase => erase,
        OpKind::SequenceInsert => insert,
        OpKind::SequenceLength => length,
        OpKind::SplitToSequence => split_to_sequence,
        _ => return None,
    })
}

/// The type of elements like this one.
fn like(data: DataRef<'_>) -> Type {
    match data {
        DataRef::Tensor(tensor) => tensor_type(tensor.dtype()),
        other => other.ty(),
    }
}

/// Operand `i`, a sequence.
fn sequence<'a>(io: &Io<'a>, i: usize) -> Result<&'a Sequence> {
    match io.data(i)? {
        DataRef::Sequence(sequence) => Ok(sequence),
        other => Err(OpError::operand(i, "a sequence", format!("{other:?}")).into()),
    }
}

/// The element of operand `i`, one integer; `None` if it is absent.
fn position(io: &Io<'_>, i: usize) -> Result<Option<i64>> {
    if !io.has(i) {
        return Ok(None);
    }
    let mut ints = io.tensor(i)?.i64s()?;
    match (ints.next(), ints.next()) {
        (Some(position), None) => Ok(Some(position)),
        _ => Err(OpError::operand(i, "one position", format!("{:?}", io.tensor(i)?)).into()),
    }
}

/// The position of an element, the last one if none is given.
fn element_at(io: &Io<'_>, i: usize, n: usize) -> Result<usize> {
    let position = position(io, i)?.unwrap_or(-1);
    let found = from_front(position, n);
    found
        .ok_or_else(|| OpError::operand(i, format!("a position in [-{n}, {n})"), position.to_string()).into())
}

/// Makes a sequence result 0, if it may have the bytes it has.
fn emit(io: &mut Io<'_>, element: Type, items: Vec<Data>) -> Result<()> {
    let sequence = Data::Sequence(Sequence::new(element, items));
    io.check_size(sequence.view().byte_count())?;
    io.emit(0, sequence)
}

fn construct(site: &Site<'_>) -> Result<Prepared> {
    let n = site.view.n_operands();
    Ok(Prepared::new(move |io| {
        let element = like(io.data(0)?);
        let mut items = io.room().list(n)?;
        for i in 0..n {
            let data = io.data(i)?;
            if like(data) != element {
                return Err(OpError::operand(i, format!("{element:?}"), format!("{:?}", data.ty())).into());
            }
            items.push(data.to_data()?);
        }
        emit(io, element, items)
    }))
}

fn empty(site: &Site<'_>) -> Result<Prepared> {
    let dtype = site.view.dtype_attr("dtype")?.unwrap_or(DType::F32);
    Ok(Prepared::new(move |io| emit(io, tensor_type(dtype), Vec::new())))
}

/// Operand 0 as a sequence that the kernel may change: moved if the node is its last reader, else copied.
fn owned(io: &mut Io<'_>) -> Result<Sequence> {
    match io.moved() {
        Some(Data::Sequence(sequence)) => Ok(sequence),
        Some(other) => Err(OpError::operand(0, "a sequence", format!("{:?}", other.view().ty())).into()),
        None => Ok(sequence(io, 0)?.to_sequence()?),
    }
}

fn insert(_: &Site<'_>) -> Result<Prepared> {
    Ok(Prepared::new(|io| {
        let (mut sequence, item) = (owned(io)?, io.data(1)?);
        if !like(item).same_kind(&sequence.element) {
            return Err(
                OpError::operand(1, format!("{:?}", sequence.element), format!("{:?}", item.ty())).into()
            );
        }
        let n = sequence.items().len();
        // One place more than there are elements: behind the last.
        let at = match position(io, 2)? {
            None => n,
            Some(position) => {
                let front =
                    if usize::try_from(position) == Ok(n) { Some(n) } else { from_front(position, n) };
                let expected =
                    || OpError::operand(2, format!("a position in [-{n}, {n}]"), position.to_string());
                front.ok_or_else(expected)?
            }
        };
        sequence.insert(at, item.to_data()?)?;
        io.check_size(DataRef::Sequence(&sequence).byte_count())?;
        io.emit(0, Data::Sequence(sequence))
    })
    .moves())
}

fn erase(_: &Site<'_>) -> Result<Prepared> {
    Ok(Prepared::new(|io| {
        let mut sequence = owned(io)?;
        let at = element_at(io, 1, sequence.items().len())?;
        sequence.remove(at);
        io.emit(0, Data::Sequence(sequence))
    })
    .moves())
}

fn at(_: &Site<'_>) -> Result<Prepared> {
    Ok(Prepared::new(|io| {
        let sequence = sequence(io, 0)?;
        let at = element_at(io, 1, sequence.items().len())?;
        io.emit(0, sequence.items()[at].view().to_data()?)
    }))
}

fn length(_: &Site<'_>) -> Result<Prepared> {
    Ok(Prepared::new(|io| {
        let n = i64::try_from(sequence(io, 0)?.items().len()).unwrap_or(i64::MAX);
        io.out::<i64>(0)?.fill(n);
        Ok(())
    }))
}

fn split_to_sequence(site: &Site<'_>) -> Result<Prepared> {
    let dims = site.dims(0)?;
    count(&dims)?;
    let axis = normalize_axis(site.view.int("axis").unwrap_or(0), dims.len(), Part::Attr("axis".into()))?;
    let keeps = site.has(1) || site.view.int("keepdims").unwrap_or(1) != 0;
    let extent = dims[axis];
    Ok(Prepared::new(move |io| {
        let tensor = io.tensor(0)?;
        let sizes = if io.has(1) { sizes(io, extent)? } else { equal(io, extent, 1)? };
        let mut items = list_of_parts(io, &sizes, tensor)?;
        let mut first = 0;
        for &size in &sizes {
            let mut part = tensor.dims().to_vec();
            part[axis] = size as u64;
            // What is before and what is behind belongs to other elements.
            let cut = Cut::new(&dims, axis, &[first, size])?.last();
            if !keeps {
                part.remove(axis);
            }
            items.push(made(io, &[tensor], &part, &cut)?.into());
            first += size;
        }
        emit(io, tensor_type(tensor.dtype()), items)
    }))
}

/// The sizes of parts of an axis: all the same if a scalar says so.
fn sizes(io: &Io<'_>, extent: usize) -> Result<Vec<usize>> {
    let given = io.tensor(1)?;
    let size = |n: i64| {
        let size = usize::try_from(n);
        size.map_err(|_| KernelError::from(OpError::operand(1, "sizes of 0 or more", n.to_string())))
    };
    let sizes = io.room().try_gathered(given.i64s()?.map(size))?;
    match (given.dims(), &sizes[..]) {
        ([], [0]) => return Err(OpError::operand(1, "a size of 1 or more", "0").into()),
        ([], &[n]) => return equal(io, extent, n),
        _ => {}
    }
    if sizes.iter().try_fold(0usize, |sum, &n| sum.checked_add(n)) != Some(extent) {
        return Err(OpError::operand(1, format!("sizes with the sum {extent}"), format!("{sizes:?}")).into());
    }
    Ok(sizes)
}

/// Parts of one size, of which the last may be smaller.
fn equal(io: &Io<'_>, extent: usize, size: usize) -> Result<Vec<usize>> {
    check_parts(io, extent.div_ceil(size), 0)?;
    io.room().gathered((0..extent).step_by(size).map(|first| size.min(extent - first)))
}

/// An error unless a sequence of so many tensors with so many bytes may be made.
fn check_parts(io: &Io<'_>, parts: usize, bytes: u64) -> Result<()> {
    io.check_size((parts as u64).saturating_mul(ELEMENT_BYTES).saturating_add(bytes))
}

/// An empty list for tensors that are parts of one.
fn list_of_parts(io: &Io<'_>, sizes: &[usize], tensor: TensorRef<'_>) -> Result<Vec<Data>> {
    check_parts(io, sizes.len(), DataRef::Tensor(tensor).byte_count())?;
    io.room().list(sizes.len())
}

fn concat_from_sequence(site: &Site<'_>) -> Result<Prepared> {
    let axis = site.view.int("axis").ok_or_else(|| OpError::attr("axis", "an axis", "none"))?;
    let stack = site.view.int("new_axis").unwrap_or(0) != 0;
    Ok(Prepared::new(move |io| {
        let items = sequence(io, 0)?.items();
        let none = || KernelError::from(OpError::operand(0, "one tensor or more", "none"));
        let tensors = items.iter().map(|i| i.tensor().map(HostTensor::view).ok_or_else(none));
        let tensors = io.room().try_gathered(tensors)?;
        if tensors.is_empty() {
            return Err(none());
        }
        let mut dims = tensors[0].dims().to_vec();
        let axis = normalize_axis(axis, dims.len() + usize::from(stack), Part::Attr("axis".into()))?;
        let alike = |t: &TensorRef<'_>| {
            let differs = |(i, (a, b)): (usize, (&u64, &u64))| a != b && (stack || i != axis);
            t.dims().len() == dims.len() && !t.dims().iter().zip(&dims).enumerate().any(differs)
        };
        if let Some(other) = tensors.iter().find(|t| !alike(t)) {
            let place = if stack { String::new() } else { format!(" but at axis {axis}") };
            let expected = format!("elements of the extents {dims:?}{place}");
            return Err(OpError::operand(0, expected, format!("{:?}", other.dims())).into());
        }
        let row = |t: &TensorRef<'_>| {
            let extents = t.dims()[axis..].iter().map(|&d| usize::try_from(d).unwrap_or(usize::MAX));
            extents.fold(1, usize::saturating_mul)
        };
        let joined = Joined::new(io.room().gathered(tensors.iter().map(row))?);
        if stack {
            dims.insert(axis, tensors.len() as u64);
        } else {
            dims[axis] = tensors.iter().fold(0, |sum, t| t.dims()[axis].saturating_add(sum));
        }
        let made = made(io, &tensors, &dims, &joined)?;
        io.emit(0, made)
    }))
}

fn optional(site: &Site<'_>) -> Result<Prepared> {
    let declared = match site.view.attr("type") {
        Some(AttrValue::Type(ty)) => Some(ty.clone()),
        _ => None,
    };
    Ok(Prepared::new(move |io| {
        let given = if io.has(0) { Some(io.data(0)?) } else { None };
        let element = given.map(like).or_else(|| declared.clone()).unwrap_or_default();
        let value = given.map(DataRef::to_data).transpose()?.map(Box::new);
        io.emit(0, Data::Optional(Maybe { element, value }))
    }))
}

fn get_element(site: &Site<'_>) -> Result<Prepared> {
    // What is not an optional passes.
    if !matches!(site.view.operand_type(0), Some(Type::Optional(_))) {
        return same(site);
    }
    Ok(Prepared::new(|io| {
        let data = match io.data(0)? {
            DataRef::Optional(maybe) => {
                maybe.value.as_deref().map(|data| data.view().to_data()).transpose()?
            }
            other => Some(other.to_data()?),
        };
        let data = data.ok_or_else(|| OpError::operand(0, "an optional with a value", "one without"))?;
        io.emit(0, data)
    }))
}

fn has_element(_: &Site<'_>) -> Result<Prepared> {
    Ok(Prepared::new(|io| {
        let has = match io.operands.first().copied().flatten() {
            None => false,
            Some(DataRef::Optional(maybe)) => maybe.value.is_some(),
            Some(DataRef::Tensor(_) | DataRef::Device(_) | DataRef::Sequence(_)) => true,
        };
        io.out_bytes(0)?.fill(u8::from(has));
        Ok(())
    }))
}
