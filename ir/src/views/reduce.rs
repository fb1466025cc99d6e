//! Reductions: the reduced axes, from an attribute or operand.

use super::node::{NodeView, OpError, Part, normalize_axis};

/// Axes of a tensor of known rank, counted from the front, in order, each once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Axes(Vec<usize>);

impl Axes {
    /// Axes that may be counted from the back.
    ///
    /// # Errors
    /// If an axis is outside the rank or occurs twice.
    pub fn of(axes: &[i64], rank: usize) -> Result<Axes, OpError> {
        let part = || Part::Attr("axes".into());
        let mut found =
            axes.iter().map(|&a| normalize_axis(a, rank, part())).collect::<Result<Vec<_>, _>>()?;
        found.sort_unstable();
        if found.windows(2).any(|w| w[0] == w[1]) {
            return Err(OpError {
                part: part(),
                expected: "every axis once".into(),
                found: format!("{axes:?}"),
            });
        }
        Ok(Axes(found))
    }
    /// All axes.
    pub fn all(rank: usize) -> Axes {
        Axes((0..rank).collect())
    }
    /// The axes.
    pub fn as_slice(&self) -> &[usize] {
        &self.0
    }
    /// True if an axis is among them.
    pub fn has(&self, axis: usize) -> bool {
        self.0.binary_search(&axis).is_ok()
    }
}

/// A Reduce operator at its version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReduceView {
    /// The axes that go; `None` if the rank or the operand that says it is not known.
    pub axes: Option<Axes>,
    /// The number of reduced axes, if only the number is known.
    pub n_axes: Option<usize>,
    /// True if they stay with extent 1.
    pub keep: bool,
}

impl ReduceView {
    /// Reads a Reduce operator.
    ///
    /// # Errors
    /// If an axis is not an axis of the operand.
    pub fn read(view: &NodeView<'_>) -> Result<ReduceView, OpError> {
        let keep = view.int("keepdims").unwrap_or(1) != 0;
        let by_operand = view.schema.attr("axes").is_none();
        let unknown = ReduceView { axes: None, n_axes: None, keep };
        let rank = view.rank(0);
        let listed = if by_operand && view.has(1) {
            match (view.known_ints(1), view.dims(1)) {
                (Some(axes), _) => axes,
                // Only the number of axes is known; an empty list means something else.
                (None, Some([n])) => {
                    let n_axes = n.known().and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
                    return Ok(ReduceView { n_axes, ..unknown });
                }
                (None, _) => return Ok(unknown),
            }
        } else {
            view.int_list("axes").unwrap_or(&[]).to_vec()
        };
        let Some(rank) = rank else { return Ok(unknown) };
        let axes = if !listed.is_empty() {
            reduced_axes(&listed, rank)?
        } else if view.int("noop_with_empty_axes").unwrap_or(0) != 0 {
            Axes::of(&[], rank)?
        } else {
            Axes::all(rank)
        };
        Ok(ReduceView { n_axes: Some(axes.as_slice().len()), axes: Some(axes), keep })
    }
}

/// Axes to reduce: an axis named twice is reduced once.
fn reduced_axes(axes: &[i64], rank: usize) -> Result<Axes, OpError> {
    let part = || Part::Attr("axes".into());
    let mut found = axes.iter().map(|&a| normalize_axis(a, rank, part())).collect::<Result<Vec<_>, _>>()?;
    found.sort_unstable();
    found.dedup();
    Ok(Axes(found))
}

/// ArgMax and ArgMin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArgReduceView {
    /// The axis, if the rank is known.
    pub axis: Option<usize>,
    /// True if it stays with extent 1.
    pub keep: bool,
    /// True if the last of equal elements counts.
    pub last: bool,
}

impl ArgReduceView {
    /// Reads an ArgMax or ArgMin.
    ///
    /// # Errors
    /// If the axis is not an axis of the operand.
    pub fn read(view: &NodeView<'_>) -> Result<ArgReduceView, OpError> {
        Ok(ArgReduceView {
            axis: super::norm::axis(view, "axis", 0)?,
            keep: view.int("keepdims").unwrap_or(1) != 0,
            last: view.int("select_last_index").unwrap_or(0) != 0,
        })
    }
}

/// TopK at its versions: the number of elements, the end, and the axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TopKView {
    /// The axis, if the rank is known.
    pub axis: Option<usize>,
    /// The number of elements, if known.
    pub k: Option<u64>,
    /// True if the largest elements are taken.
    pub largest: bool,
    /// True if they come in order.
    pub sorted: bool,
    /// The origin of the number.
    k_by_operand: bool,
}

impl TopKView {
    /// Reads a TopK.
    ///
    /// # Errors
    /// If the axis is not an axis of the operand or the number is negative or missing.
    pub fn read(view: &NodeView<'_>) -> Result<TopKView, OpError> {
        let k_by_operand = view.since() >= 10;
        let k = if k_by_operand {
            if let Some(dims) = view.dims(1).filter(|d| d.len() != 1 || d[0].known().is_some_and(|n| n != 1))
            {
                return Err(super::size::shape_error(1, "a vector of one number", dims));
            }
            view.known_ints(1).and_then(|v| v.first().copied())
        } else {
            let k = view.int("k");
            Some(k.ok_or_else(|| OpError::attr("k", "a number of elements", "none"))?)
        };
        let mut top = TopKView {
            axis: super::norm::axis(view, "axis", -1)?,
            k: None,
            largest: view.int("largest").unwrap_or(1) != 0,
            sorted: view.int("sorted").unwrap_or(1) != 0,
            k_by_operand,
        };
        if let Some(k) = k {
            top.k = Some(u64::try_from(k).map_err(|_| top.k_error("0 elements or more", k))?);
        }
        Ok(top)
    }

    /// The error of a number of elements that does not do.
    pub fn k_error(&self, expected: impl Into<String>, k: impl ToString) -> OpError {
        if self.k_by_operand {
            OpError::operand(1, expected, k.to_string())
        } else {
            OpError::attr("k", expected, k.to_string())
        }
    }
}

/// CumSum and CumProd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CumulativeView {
    /// The axis, if it and the rank are known.
    pub axis: Option<usize>,
    /// True if an element does not count for its own result.
    pub exclusive: bool,
    /// True if it goes from the end.
    pub reverse: bool,
}

impl CumulativeView {
    /// Reads a CumSum or CumProd.
    ///
    /// # Errors
    /// If the axis is not a single number or not an axis of the operand.
    pub fn read(view: &NodeView<'_>) -> Result<CumulativeView, OpError> {
        let axis = match (super::size::known_scalar(view, 1)?, view.rank(0)) {
            (Some(axis), Some(rank)) => Some(normalize_axis(axis, rank, Part::Operand(1))?),
            _ => None,
        };
        Ok(CumulativeView {
            axis,
            exclusive: view.int("exclusive").unwrap_or(0) != 0,
            reverse: view.int("reverse").unwrap_or(0) != 0,
        })
    }
}
