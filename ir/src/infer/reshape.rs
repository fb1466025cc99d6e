//! Operators that read or change the shape and leave the elements in order: Shape, Size, Reshape, Flatten,
//! Squeeze, Unsqueeze, Transpose, Expand, Tile.
//!
//! A symbolic dim in the target of a Reshape counts as an extent that is not 0: a target that names the extent
//! of another axis means that extent, although a 0 there would copy one instead.

use super::extents::{list_len, product, same_ints, shape_of_ints, shape_of_rank, times};
use super::inferred::Inferred;
use crate::int::Int;
use crate::ty::{Dim, Dims, Shape, show};
use crate::views::size::shape_error;
use crate::views::{
    Axes, FlattenView, NodeView, OpError, Part, ReshapeView, ShapeView, TileView, TransposeView, broadcast,
    distinct_axes, normalize_axis,
};

/// Shape.
pub(super) fn infer_shape(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let Some(dims) = view.dims(0) else {
        out.shape(0, Shape::of_rank(1));
        return Ok(());
    };
    let (start, end) = ShapeView::read(view, dims.len()).range;
    let dims = &dims[start..end];
    out.shape(0, Shape::known(&[dims.len() as u64]));
    out.ints = Some(dims.iter().map(|&d| Int::from(d)).collect());
    Ok(())
}

/// Size.
pub(super) fn infer_size(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    out.shape(0, Shape::scalar());
    out.ints = view.dims(0).map(|dims| vec![Int::from(product(dims))]);
    Ok(())
}

/// Reshape.
pub(super) fn infer_reshape(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let reshape = ReshapeView::read(view);
    let data = view.dims(0);
    let Some(target) = &reshape.target else {
        if reshape.part == Part::Operand(1) {
            let rank = list_len(view, 1)?;
            if rank == Dim::Known(0) {
                reshaped(data, &[], reshape.allow_zero, &reshape.part)?;
            }
            out.shape(0, shape_of_rank(rank));
        }
        return Ok(());
    };
    if reshape.part == Part::Operand(1) {
        list_len(view, 1)?;
    }
    let dims = reshaped(data, target, reshape.allow_zero, &reshape.part)?;
    if dims.len() <= 1 {
        same_ints(view, out, 0);
    }
    out.shape(0, Shape(Some(dims)));
    Ok(())
}

/// Shape that the target of a Reshape asks for, independent of the data.
struct Asked {
    dims: Dims,
    /// Axes that are copied from the data.
    copied: Vec<usize>,
    /// The axis with the remaining elements.
    rest: Option<usize>,
}

fn asked(data: Option<&[Dim]>, target: &[Int], allow_zero: bool, part: &Part) -> Result<Asked, OpError> {
    let error = |expected: String, found: String| OpError { part: part.clone(), expected, found };
    let (mut rest, mut copied) = (None, Vec::new());
    let mut dims = Dims::new();
    for (i, n) in target.iter().enumerate() {
        dims.push(match n {
            Int::Known(0) if !allow_zero => {
                copied.push(i);
                match data {
                    None => Dim::Unknown,
                    Some(data) => *data.get(i).ok_or_else(|| {
                        let found = format!("a tensor of rank {}", data.len());
                        error(format!("an axis {i} to copy with 0"), found)
                    })?,
                }
            }
            Int::Known(-1) => {
                if rest.replace(i).is_some() {
                    return Err(error("-1 at most once".into(), "it twice".into()));
                }
                Dim::Unknown
            }
            Int::Known(n) if *n < 0 => return Err(error("extents, 0 or -1".into(), n.to_string())),
            n => n.dim(),
        });
    }
    Ok(Asked { dims, copied, rest })
}

/// The dims of the result of a Reshape.
fn reshaped(data: Option<&[Dim]>, target: &[Int], allow_zero: bool, part: &Part) -> Result<Dims, OpError> {
    let error = |expected: String, found: String| OpError { part: part.clone(), expected, found };
    let Asked { mut dims, copied, rest } = asked(data, target, allow_zero, part)?;
    if allow_zero && rest.is_some() && target.contains(&Int::Known(0)) {
        return Err(error("no -1 beside an extent of 0".into(), show(&dims)));
    }
    let Some(data) = data else { return Ok(dims) };
    // An element that is not seen may be a 0 or the -1; it is what is left all the same.
    let mut blind = (0..dims.len()).filter(|&i| target[i] == Int::Unknown);
    let hole = match (rest, blind.next(), blind.next()) {
        (Some(i), ..) | (None, Some(i), None) => Some(i),
        (None, None, _) => None,
        (None, Some(_), Some(_)) => return Ok(dims),
    };
    // What is copied is on both sides, whatever it is.
    let others = |dims: &[Dim], keep_all: bool| -> Dims {
        let kept = |i: &usize| Some(*i) != hole && (keep_all || !copied.contains(i));
        (0..dims.len()).filter(kept).map(|i| dims[i]).collect()
    };
    if let Some(i) = hole {
        if product(&others(&dims, true)) == Dim::Known(0) {
            let found = show(&dims);
            return match rest {
                Some(_) => Err(error("no -1 beside an extent of 0".into(), found)),
                None => Ok(dims),
            };
        }
        let from: Dims = (0..data.len()).filter(|i| !copied.contains(i)).map(|i| data[i]).collect();
        dims[i] = quotient(&from, &others(&dims, false)).ok_or_else(|| {
            error(format!("a shape with the elements of {}", show(data)), show_ints(target))
        })?;
    } else if let (Dim::Known(a), Dim::Known(b)) = (product(data), product(&dims))
        && a != b
    {
        let expected = format!("a shape with the elements of {}", show(data));
        return Err(error(expected, show_ints(target)));
    }
    Ok(dims)
}

/// Elements for a message.
fn show_ints(ints: &[Int]) -> String {
    let items: Vec<String> = ints.iter().map(|n| n.known().map_or("?".into(), |n| n.to_string())).collect();
    format!("[{}]", items.join(", "))
}

/// The extent by which `part` has to be multiplied to have as many elements as `whole`; `None` if there is no
/// such extent. Symbols on both sides cancel.
fn quotient(whole: &[Dim], part: &[Dim]) -> Option<Dim> {
    let mut whole = Dims::from_slice(whole);
    let mut left = Dims::new();
    for dim in part {
        match whole.iter().position(|d| d == dim && *d != Dim::Unknown) {
            Some(i) if *dim != Dim::Known(0) => {
                whole.swap_remove(i);
            }
            _ => left.push(*dim),
        }
    }
    Some(match (product(&whole), product(&left)) {
        (Dim::Known(_), Dim::Known(0)) => Dim::Unknown,
        (Dim::Known(a), Dim::Known(b)) if a % b == 0 => Dim::Known(a / b),
        (Dim::Known(_), Dim::Known(_)) => return None,
        (dim, Dim::Known(1)) => dim,
        (Dim::Sym(_) | Dim::Unknown, Dim::Known(b)) => divide_symbolic(&whole, b),
        (_, Dim::Sym(_) | Dim::Unknown) => Dim::Unknown,
    })
}

/// Divides a product with a symbol by `b`; returns the rest if the numbers cancel.
fn divide_symbolic(whole: &[Dim], b: u64) -> Dim {
    let (known, rest): (Dims, Dims) = whole.iter().copied().partition(|d| d.known().is_some());
    match (product(&known), b) {
        (Dim::Known(a), b) if b > 0 && a % b == 0 => times(product(&rest), a / b),
        _ => Dim::Unknown,
    }
}

/// Flatten.
pub(super) fn infer_flatten(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let flatten = FlattenView::read(view);
    let Some(dims) = view.dims(0) else {
        out.shape(0, Shape::of_rank(2));
        return Ok(());
    };
    let (outer, inner) = dims.split_at(flatten.split(dims.len())?);
    out.shape(0, Shape::of([product(outer), product(inner)]));
    Ok(())
}

/// Squeeze.
pub(super) fn infer_squeeze(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let ints = view.ints(0);
    let axes = Axes::read(view, 1);
    let Some(dims) = view.dims(0) else { return Ok(()) };
    let shape = match axes {
        Axes::Absent if dims.iter().all(|d| d.known().is_some()) => {
            Shape::of(dims.iter().copied().filter(|&d| d != Dim::Known(1)))
        }
        Axes::Unknown(Some(1)) if !dims.is_empty() => Shape::of_rank(dims.len() - 1),
        Axes::Absent | Axes::Unknown(_) => Shape::unknown(),
        Axes::Known(axes) => {
            let mut gone = vec![false; dims.len()];
            for axis in axes {
                let axis = normalize_axis(axis, dims.len(), Axes::part(view, 1))?;
                if dims[axis].known().is_some_and(|n| n != 1) {
                    return Err(shape_error(0, format!("an extent of 1 at axis {axis}"), dims));
                }
                gone[axis] = true;
            }
            Shape::of(dims.iter().zip(gone).filter(|(_, gone)| !gone).map(|(d, _)| *d))
        }
    };
    if shape.rank().is_some_and(|r| r <= 1) {
        out.ints = ints.map(std::borrow::Cow::into_owned);
    }
    out.shape(0, shape);
    Ok(())
}

/// Unsqueeze.
pub(super) fn infer_unsqueeze(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let part = Axes::part(view, 1);
    let Some(dims) = view.dims(0) else { return Ok(()) };
    let shape = match Axes::read(view, 1) {
        Axes::Absent => return Err(OpError { part, expected: "axes".into(), found: "none".into() }),
        Axes::Unknown(n) => {
            let rank = n.and_then(|n| n.checked_add(dims.len() as u64));
            shape_of_rank(rank.map_or(Dim::Unknown, Dim::Known))
        }
        Axes::Known(axes) => {
            let rank = dims.len() + axes.len();
            let new = distinct_axes(&axes, rank, &part)?;
            let mut old = dims.iter();
            Shape::of((0..rank).map(|i| match new.contains(&i) {
                true => Dim::Known(1),
                false => old.next().copied().unwrap_or(Dim::Unknown),
            }))
        }
    };
    if shape.rank().is_some_and(|r| r <= 1) {
        same_ints(view, out, 0);
    }
    out.shape(0, shape);
    Ok(())
}

/// Transpose.
pub(super) fn infer_transpose(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let transpose = TransposeView::read(view);
    let Some(dims) = view.dims(0) else {
        if let Some(rank) = transpose.rank() {
            transpose.perm(rank)?;
            out.shape(0, Shape::of_rank(rank));
        }
        return Ok(());
    };
    let perm = transpose.perm(dims.len())?;
    if dims.len() <= 1 {
        same_ints(view, out, 0);
    }
    out.shape(0, Shape::of(perm.into_iter().map(|axis| dims[axis])));
    Ok(())
}

/// Expand.
pub(super) fn infer_expand(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let len = list_len(view, 1)?;
    let target = match view.ints(1) {
        Some(target) => shape_of_ints(&target, &Part::Operand(1))?,
        None => shape_of_rank(len),
    };
    let (Some(data), Some(target)) = (view.dims(0), target.dims()) else { return Ok(()) };
    let dims = broadcast(data, target).map_err(|_| {
        OpError::operand(1, format!("a shape that {} broadcasts with", show(data)), show(target))
    })?;
    if let (Some(ints), [Dim::Known(n)]) = (view.ints(0), dims.as_slice()) {
        out.ints = match (ints.as_ref(), usize::try_from(*n)) {
            (&[one], Ok(n)) if n as u64 <= crate::views::MAX_INTS => Some(vec![one; n]),
            (ints, Ok(n)) if ints.len() == n => Some(ints.to_vec()),
            _ => None,
        };
    }
    out.shape(0, Shape(Some(dims)));
    Ok(())
}

/// Tile.
pub(super) fn infer_tile(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    match TileView::read(view) {
        TileView::All(repeats) => tile_all(view, out, repeats.as_deref()),
        TileView::One { tiles, axis } => {
            let Some(dims) = view.dims(0) else { return Ok(()) };
            out.shape(0, Shape::of_rank(dims.len()));
            if let Some(axis) = axis {
                let axis = normalize_axis(axis, dims.len(), Part::Operand(2))?;
                let dim = match tiles {
                    Some(n) => times(dims[axis], unsigned(n, 1)?),
                    None => Dim::Unknown,
                };
                out.shape(0, super::extents::with_dim(dims, axis, dim));
            }
            Ok(())
        }
    }
}

fn unsigned(n: i64, operand: usize) -> Result<u64, OpError> {
    u64::try_from(n).map_err(|_| OpError::operand(operand, "repeats of 0 or more", n.to_string()))
}

fn tile_all(view: &NodeView<'_>, out: &mut Inferred, repeats: Option<&[Int]>) -> Result<(), OpError> {
    let len = list_len(view, 1)?;
    let Some(dims) = view.dims(0) else {
        out.shape(0, shape_of_rank(len));
        return Ok(());
    };
    let n = repeats.map_or(len, |r| Dim::Known(r.len() as u64));
    if n.known().is_some_and(|n| n != dims.len() as u64) {
        return Err(OpError::operand(1, format!("{} repeats, one per axis", dims.len()), show(&[n])));
    }
    let Some(repeats) = repeats else {
        out.shape(0, Shape::of_rank(dims.len()));
        return Ok(());
    };
    let mut tiled = Dims::new();
    for (dim, repeat) in dims.iter().zip(repeats) {
        tiled.push(match (*dim, *repeat) {
            (dim, Int::Known(n)) => times(dim, unsigned(n, 1)?),
            (Dim::Known(1), repeat) => repeat.dim(),
            (Dim::Known(0), _) => Dim::Known(0),
            _ => Dim::Unknown,
        });
    }
    if let (Some(ints), [Int::Known(n @ 0..=64)]) = (view.ints(0), repeats)
        && ints.len() <= 64
    {
        out.ints = usize::try_from(*n).ok().map(|n| ints.repeat(n));
    }
    out.shape(0, Shape(Some(tiled)));
    Ok(())
}
