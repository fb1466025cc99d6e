//! Sequences and optionals.
//!
//! The type of a sequence is the least upper bound of its elements. An empty sequence has no shape, so the
//! first inserted element sets it: inference cannot tell how many are inserted, and forgets the shape.

use super::extents::{product, with_dim};
use super::inferred::Inferred;
use crate::attr::AttrValue;
use crate::dtype::DType;
use crate::ty::{Dim, Dims, Shape, Type, describe, show};
use crate::views::size::shape_error;
use crate::views::{NodeView, OpError, Part, normalize_axis};

fn sequence_of(element: Type) -> Type {
    Type::Sequence(Box::new(element))
}

fn join(a: &Type, b: &Type, operand: usize) -> Result<Type, OpError> {
    a.join(b).ok_or_else(|| {
        OpError::operand(operand, format!("an element like the others, {}", describe(a)), describe(b))
    })
}

/// Element type of the sequence that is operand `i`.
fn element<'a>(view: &NodeView<'a>, i: usize) -> Option<&'a Type> {
    match view.operand_type(i)? {
        Type::Sequence(element) => Some(element),
        Type::Unknown
        | Type::Tensor(_)
        | Type::Sparse(_)
        | Type::Optional(_)
        | Type::Map { .. }
        | Type::Opaque { .. } => None,
    }
}

fn scalar_operand(view: &NodeView<'_>, i: usize) -> Result<(), OpError> {
    match view.dims(i) {
        None | Some([] | [Dim::Known(1) | Dim::Sym(_) | Dim::Unknown]) => Ok(()),
        Some(dims) => Err(shape_error(i, "a number", dims)),
    }
}

/// SequenceEmpty.
pub(super) fn infer_empty(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let dtype = view.dtype_attr("dtype")?.unwrap_or(DType::F32);
    out.ty(0, sequence_of(Type::tensor(dtype, Shape::unknown())));
    Ok(())
}

/// SequenceConstruct.
pub(super) fn infer_construct(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let mut element: Option<Type> = None;
    for i in 0..view.n_operands() {
        let Some(ty) = view.operand_type(i) else { continue };
        element = Some(match &element {
            Some(element) => join(element, ty, i)?,
            None => ty.clone(),
        });
    }
    if let Some(element) = element {
        out.ty(0, sequence_of(element));
    }
    Ok(())
}

/// SequenceInsert.
pub(super) fn infer_insert(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    scalar_operand(view, 2)?;
    if let (Some(element), Some(tensor)) = (element(view, 0), view.operand_type(1)) {
        out.ty(0, sequence_of(join(element, tensor, 1)?));
    }
    Ok(())
}

/// SequenceErase.
pub(super) fn infer_erase(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    scalar_operand(view, 1)?;
    if let Some(element) = element(view, 0) {
        out.ty(0, sequence_of(element.clone()));
    }
    Ok(())
}

/// SequenceAt.
pub(super) fn infer_at(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    scalar_operand(view, 1)?;
    if let Some(element) = element(view, 0) {
        out.ty(0, element.clone());
    }
    Ok(())
}

/// SequenceLength, OptionalHasElement.
pub(super) fn infer_scalar(_: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    out.shape(0, Shape::scalar());
    Ok(())
}

/// ConcatFromSequence.
pub(super) fn infer_concat(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let stack = match view.int("new_axis").unwrap_or(0) {
        0 => false,
        1 => true,
        other => return Err(OpError::attr("new_axis", "0 or 1", other.to_string())),
    };
    let Some(Type::Tensor(tensor)) = element(view, 0) else { return Ok(()) };
    let shape = match (tensor.shape.dims(), view.int("axis")) {
        (Some(dims), Some(axis)) => {
            let rank = dims.len() + usize::from(stack);
            let axis = normalize_axis(axis, rank, Part::Attr("axis".into()))?;
            if stack {
                let mut dims = Dims::from_slice(dims);
                dims.insert(axis, Dim::Unknown);
                Shape(Some(dims))
            } else {
                with_dim(dims, axis, if dims[axis] == Dim::Known(0) { dims[axis] } else { Dim::Unknown })
            }
        }
        _ => Shape::unknown(),
    };
    out.tensor(0, tensor.dtype, shape);
    Ok(())
}

/// Optional.
pub(super) fn infer_optional(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let declared = match view.attr("type") {
        Some(AttrValue::Type(ty)) => Some(ty),
        _ => None,
    };
    let element = match (view.operand_type(0), declared) {
        (Some(ty), Some(declared)) if !ty.same_kind(declared) => {
            return Err(OpError::operand(0, describe(declared), describe(ty)));
        }
        (Some(ty), _) | (None, Some(ty)) => ty.clone(),
        (None, None) if view.is_unresolved("type") => Type::Unknown,
        (None, None) => return Err(OpError::attr("type", "a type where operand 0 is absent", "none")),
    };
    out.ty(0, Type::Optional(Box::new(element)));
    Ok(())
}

/// OptionalGetElement: an operand that is not an optional passes through.
pub(super) fn infer_get_element(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    match view.operand_type(0) {
        Some(Type::Optional(element)) => out.ty(0, (**element).clone()),
        Some(ty) => {
            out.ty(0, ty.clone());
            out.ints = view.ints(0).map(std::borrow::Cow::into_owned);
        }
        None => {}
    }
    Ok(())
}

/// StringNormalizer: stop words are removed; if all elements are, one empty string is left.
pub(super) fn infer_string_normalizer(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let stops = matches!(view.attr("stopwords"), Some(AttrValue::Strings(words)) if !words.is_empty());
    let list = |dim: Dim| match dim {
        Dim::Known(1) => dim,
        Dim::Known(0) => Dim::Unknown,
        dim if stops => {
            if dim == Dim::Known(1) {
                dim
            } else {
                Dim::Unknown
            }
        }
        dim => dim,
    };
    let shape = match view.dims(0) {
        None => Shape::unknown(),
        Some([c]) => Shape::of([list(*c)]),
        Some([one @ (Dim::Known(1) | Dim::Sym(_) | Dim::Unknown), c]) => {
            Shape::of([one.meet(Dim::Known(1)).unwrap_or(Dim::Known(1)), list(*c)])
        }
        Some(dims) => return Err(shape_error(0, "a list, or one in a row", dims)),
    };
    out.shape(0, shape);
    Ok(())
}

/// StringConcat.
pub(super) fn infer_string_concat(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let (Some(x), Some(y)) = (view.dims(0), view.dims(1)) else { return Ok(()) };
    let dims = crate::views::broadcast(x, y)
        .map_err(|_| shape_error(1, format!("a shape that {} broadcasts with", show(x)), y))?;
    out.shape(0, Shape(Some(dims)));
    Ok(())
}

/// StringSplit: one more axis, as long as the most pieces that a string has.
pub(super) fn infer_string_split(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    out.shape(1, view.shape(0));
    if let Some(dims) = view.dims(0) {
        out.shape(0, Shape::of(dims.iter().copied().chain([Dim::Unknown])));
    }
    Ok(())
}

/// RegexFullMatch.
pub(super) fn infer_regex(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    out.shape(0, view.shape(0));
    Ok(())
}

/// TfIdfVectorizer.
pub(super) fn infer_tf_idf(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let extent = match view.int_list("ngram_indexes").and_then(|indexes| indexes.iter().max()) {
        None => Dim::Unknown,
        Some(most) => {
            u64::try_from(*most).ok().and_then(|n| n.checked_add(1)).map_or(Dim::Unknown, Dim::Known)
        }
    };
    let shape = match view.dims(0) {
        None => Shape::unknown(),
        Some([_]) => Shape::of([extent]),
        Some([n, _]) => Shape::of([*n, extent]),
        Some(dims) => return Err(shape_error(0, "rank 1 or 2", dims)),
    };
    out.shape(0, shape);
    Ok(())
}

/// ArrayFeatureExtractor of ai.onnx.ml: the columns that operand 1 names.
pub(super) fn infer_feature_extractor(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let Some(x) = view.dims(0) else { return Ok(()) };
    let columns = view.dims(1).map_or(Dim::Unknown, product);
    out.shape(
        0,
        match x.split_last() {
            None => return Err(shape_error(0, "rank 1 or more", x)),
            Some((_, [])) => Shape::of([Dim::Known(1), columns]),
            Some((_, rows)) => Shape::of(rows.iter().copied().chain([columns])),
        },
    );
    Ok(())
}
