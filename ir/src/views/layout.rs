//! Operators that move data and compute nothing: Cast, Concat, Flatten, Reshape, Slice, Split, Tile, Transpose.

use super::axes::Axes;
use super::broadcast::Bound;
use super::node::{MAX_INTS, NodeView, OpError, Part};
use crate::attr::AttrValue;
use crate::dtype::DType;
use crate::int::Int;
use std::borrow::Cow;

fn written<'a>(list: &[i64]) -> Cow<'a, [Int]> {
    list.iter().copied().map(Int::Known).collect::<Vec<_>>().into()
}

/// Cast: below 6 the type is a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CastView {
    /// The element type to cast to; `None` where the attribute is not known.
    pub to: Option<DType>,
}

impl CastView {
    /// Reads a Cast.
    ///
    /// # Errors
    /// If `to` names no element type.
    pub fn read(view: &NodeView<'_>) -> Result<CastView, OpError> {
        let to = match view.attr("to") {
            Some(AttrValue::String(name)) if view.since() < 6 => {
                let name = String::from_utf8_lossy(name).to_ascii_lowercase();
                let dtype = DType::from_onnx_name(&name);
                Some(dtype.ok_or_else(|| OpError::attr("to", "the name of an element type", name))?)
            }
            _ => view.dtype_attr("to")?,
        };
        if to.is_none() && view.attr("to").is_some() {
            return Err(OpError::attr("to", "the number of an element type", "0"));
        }
        Ok(CastView { to })
    }
}

/// Shape: which of the dims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShapeView {
    /// The first axis, and the one behind the last, both within the rank.
    pub range: (usize, usize),
}

impl ShapeView {
    /// Reads a Shape of a tensor of this rank.
    pub fn read(view: &NodeView<'_>, rank: usize) -> ShapeView {
        let rank = i64::try_from(rank).unwrap_or(i64::MAX);
        let clamp = |i: i64| {
            let front = if i < 0 { i.saturating_add(rank) } else { i };
            usize::try_from(front.clamp(0, rank)).unwrap_or(0)
        };
        let start = clamp(view.int("start").unwrap_or(0));
        let end = clamp(view.int("end").unwrap_or(rank)).max(start);
        ShapeView { range: (start, end) }
    }
}

/// Concat: below 4 the axis may be left off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConcatView {
    /// The axis, as written.
    pub axis: i64,
}

impl ConcatView {
    /// Reads a Concat.
    ///
    /// # Errors
    /// If it has no axis and must have one.
    pub fn read(view: &NodeView<'_>) -> Result<ConcatView, OpError> {
        match view.int("axis") {
            Some(axis) => Ok(ConcatView { axis }),
            None if view.since() < 4 => Ok(ConcatView { axis: 1 }),
            None => Err(OpError::attr("axis", "an axis", "none")),
        }
    }
}

/// Flatten: below 11 the axis counts from the front only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlattenView {
    /// The axis, as written.
    pub axis: i64,
    /// True if it may count from the back.
    pub negative: bool,
}

impl FlattenView {
    /// Reads a Flatten.
    pub fn read(view: &NodeView<'_>) -> FlattenView {
        FlattenView { axis: view.int("axis").unwrap_or(1), negative: view.since() >= 11 }
    }

    /// The number of leading axes that form the first axis of the result.
    ///
    /// # Errors
    /// If the axis is outside the range of a tensor of this rank.
    pub fn split(&self, rank: usize) -> Result<usize, OpError> {
        let r = i64::try_from(rank).unwrap_or(i64::MAX);
        let front = if self.axis < 0 && self.negative { self.axis.saturating_add(r) } else { self.axis };
        usize::try_from(front).ok().filter(|&a| a <= rank).ok_or_else(|| {
            let least = if self.negative { -r } else { 0 };
            OpError::attr("axis", format!("an axis in [{least}, {r}]"), self.axis.to_string())
        })
    }
}

/// Reshape: below 5 the target is an attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReshapeView<'a> {
    /// The target as far as known: 0 copies an extent (unless `allow_zero`), -1 is the remaining extent.
    pub target: Option<Cow<'a, [Int]>>,
    /// The place of the target.
    pub part: Part,
    /// True if 0 means an extent of 0.
    pub allow_zero: bool,
}

impl<'a> ReshapeView<'a> {
    /// Reads a Reshape.
    pub fn read(view: &NodeView<'a>) -> ReshapeView<'a> {
        if view.since() < 5 {
            let target = view.int_list("shape").map(written);
            return ReshapeView { target, part: Part::Attr("shape".into()), allow_zero: false };
        }
        ReshapeView {
            target: view.ints(1),
            part: Part::Operand(1),
            allow_zero: view.int("allowzero").is_some_and(|v| v != 0),
        }
    }
}

/// Slice: below 10 everything is an attribute and all steps are 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SliceView<'a> {
    /// First index per axis; negative ones count from the back.
    pub starts: Option<Cow<'a, [Int]>>,
    /// The index behind the last per axis; negative ones count from the back.
    pub ends: Option<Cow<'a, [Int]>>,
    /// The axes; absent means the first ones.
    pub axes: Axes,
    /// The steps, if they are known; `None` inside means 1 everywhere.
    pub steps: Option<Option<Cow<'a, [Int]>>>,
}

impl<'a> SliceView<'a> {
    /// Reads a Slice.
    pub fn read(view: &NodeView<'a>) -> SliceView<'a> {
        let axes = Axes::read(view, 3);
        if view.since() < 10 {
            let list = |name| view.int_list(name).map(written);
            return SliceView { starts: list("starts"), ends: list("ends"), axes, steps: Some(None) };
        }
        let steps = if view.has(4) { view.ints(4).map(Some) } else { Some(None) };
        SliceView { starts: view.ints(1), ends: view.ints(2), axes, steps }
    }
}

/// First index and number of indices of a slice of an axis of extent `n`; the step is not 0.
pub fn slice_range(n: u64, start: i64, end: i64, step: i64) -> (i128, i128) {
    let (n, step) = (i128::from(n), i128::from(step));
    let front = |i: i64| if i < 0 { i128::from(i) + n } else { i128::from(i) };
    let (least, most) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let (start, end) =
        (front(start).clamp(least.max(0), most.max(0)), front(end).clamp(least, most.max(least)));
    let count = if n == 0 { 0 } else { ((end - start) + step - step.signum()) / step };
    (start, count.max(0))
}

/// Parts of a Split.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Parts<'a> {
    /// Equal ones.
    Equal,
    /// Equal parts, of which the last may be smaller.
    Ceil,
    /// These.
    Sizes(Cow<'a, [Int]>),
    /// Ones that are not known.
    Unknown,
}

/// Split: sizes are an attribute below 13, an operand since; since 18 the number of parts may be given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SplitView<'a> {
    /// The axis, as written.
    pub axis: i64,
    /// The parts.
    pub parts: Parts<'a>,
    /// The place of the sizes.
    pub part: Part,
}

impl<'a> SplitView<'a> {
    /// Reads a Split.
    ///
    /// # Errors
    /// If the number of parts is given in two ways, or is not the number of results.
    pub fn read(view: &NodeView<'a>) -> Result<SplitView<'a>, OpError> {
        let axis = view.int("axis").unwrap_or(0);
        let from_operand = view.has(1);
        let part = if from_operand { Part::Operand(1) } else { Part::Attr("split".into()) };
        let parts = if from_operand {
            view.ints(1).map_or(Parts::Unknown, Parts::Sizes)
        } else if let Some(sizes) = view.int_list("split").filter(|s| !s.is_empty()) {
            Parts::Sizes(written(sizes))
        } else if view.since() >= 18 {
            Parts::Ceil
        } else {
            Parts::Equal
        };
        if parts == Parts::Ceil && view.int("num_outputs").is_none() && !view.is_unresolved("num_outputs") {
            return Err(OpError::node("operand 1 or attribute `num_outputs`", "neither"));
        }
        if let Some(n) = view.int("num_outputs") {
            if from_operand {
                return Err(OpError::attr("num_outputs", "none where operand 1 is given", n.to_string()));
            }
            if usize::try_from(n).ok() != Some(view.n_results()) {
                let found = n.to_string();
                return Err(OpError::attr(
                    "num_outputs",
                    format!("{}, the results", view.n_results()),
                    found,
                ));
            }
        }
        Ok(SplitView { axis, parts, part })
    }
}

/// Pad: pads are an attribute below 11; since 18 they may be for some axes only.
#[derive(Clone, PartialEq, Debug)]
pub struct PadView<'a> {
    /// Elements before every axis, then elements behind every axis; negative ones remove.
    pub pads: Option<Cow<'a, [Int]>>,
    /// The place of the pads.
    pub part: Part,
    /// The axes; absent means all.
    pub axes: Axes,
    /// The padding mode: `constant`, `reflect`, `edge` or `wrap`.
    pub mode: &'a str,
    /// The padding value of mode `constant`; absent means 0.
    pub value: Bound,
}

impl<'a> PadView<'a> {
    /// Reads a Pad.
    ///
    /// # Errors
    /// If the version does not have the mode.
    pub fn read(view: &NodeView<'a>) -> Result<PadView<'a>, OpError> {
        let mode = view.string("mode").unwrap_or("constant");
        let wrap = view.since() >= 19;
        if !(matches!(mode, "constant" | "reflect" | "edge") || wrap && mode == "wrap") {
            let expected = if wrap { "constant, reflect, edge or wrap" } else { "constant, reflect or edge" };
            return Err(OpError::attr("mode", expected, mode));
        }
        let (pads, part) = match view.since() {
            0..2 => (view.int_list("paddings").map(written), Part::Attr("paddings".into())),
            2..11 => (view.int_list("pads").map(written), Part::Attr("pads".into())),
            _ => (view.ints(1), Part::Operand(1)),
        };
        let axes = if view.since() < 18 { Axes::Absent } else { Axes::read(view, 3) };
        let value = match view.since() {
            0..11 => view.float("value").map_or(Bound::None, Bound::Number),
            _ if view.has(2) => Bound::Operand(2),
            _ => Bound::None,
        };
        Ok(PadView { pads, part, axes, mode, value })
    }
}

/// Tile: at 1 one axis is repeated, and both axis and number are operands; since 6 there is a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TileView<'a> {
    /// The number of repetitions of each axis, as far as known.
    All(Option<Cow<'a, [Int]>>),
    /// The numbers of repetitions and their axes, as far as known.
    One {
        /// The number of repeats.
        tiles: Option<i64>,
        /// The axis.
        axis: Option<i64>,
    },
}

impl<'a> TileView<'a> {
    /// Reads a Tile.
    pub fn read(view: &NodeView<'a>) -> TileView<'a> {
        if view.since() >= 6 {
            return TileView::All(view.ints(1));
        }
        let number = |i: usize| match view.known_ints(i).as_deref() {
            Some(&[n]) => Some(n),
            _ => whole(view.constant(i)?.small_floats(MAX_INTS)?.first().copied()?),
        };
        TileView::One { tiles: number(1), axis: number(2) }
    }
}

/// The integer that a small float is, if it is one.
pub fn whole(value: f64) -> Option<i64> {
    const LIMIT: f64 = 9_007_199_254_740_992.0;
    if value.trunc() != value || value.abs() > LIMIT {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, reason = "it is whole and below 2^53")]
    Some(value as i64)
}

/// Transpose: without a permutation it reverses the axes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransposeView<'a> {
    perm: Option<&'a [i64]>,
}

impl<'a> TransposeView<'a> {
    /// Reads a Transpose.
    pub fn read(view: &NodeView<'a>) -> TransposeView<'a> {
        TransposeView { perm: view.int_list("perm") }
    }

    /// The rank that a written permutation asks for.
    pub fn rank(&self) -> Option<usize> {
        self.perm.map(<[i64]>::len)
    }

    /// The axis of the operand for every axis of the result.
    ///
    /// # Errors
    /// If the attribute is not a permutation of the axes of a tensor of this rank.
    pub fn perm(&self, rank: usize) -> Result<Vec<usize>, OpError> {
        let Some(written) = self.perm else { return Ok((0..rank).rev().collect()) };
        let mut seen = vec![false; rank];
        let axes: Option<Vec<usize>> = written
            .iter()
            .map(|&axis| {
                let axis = usize::try_from(axis).ok().filter(|&a| a < rank)?;
                (!std::mem::replace(&mut seen[axis], true)).then_some(axis)
            })
            .collect();
        axes.filter(|axes| axes.len() == rank).ok_or_else(|| {
            OpError::attr("perm", format!("a permutation of the {rank} axes"), format!("{written:?}"))
        })
    }
}
