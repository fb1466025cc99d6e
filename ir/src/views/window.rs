//! Sliding windows: convolutions and pools.

use super::node::{NodeView, OpError};
use crate::op::OpKind;
use crate::ty::{Dim, Dims};
use crate::views::size::extent;

/// The padding of the input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Padding {
    /// So much before and after each axis.
    Explicit(Vec<(u64, u64)>),
    /// As much as makes `output = ceil(input / stride)`.
    Same {
        /// True if an odd element of padding goes to the end.
        upper: bool,
    },
}

/// The window of a convolution or pool, one entry per spatial axis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WindowView {
    /// Extents of the window; unknown where only the weights say it and their shape is not known.
    pub kernel: Vec<Dim>,
    /// Steps.
    pub strides: Vec<u64>,
    /// Distances between elements of the window.
    pub dilations: Vec<u64>,
    /// Padding; `auto_pad` other than NOTSET wins over `pads`.
    pub padding: Padding,
    /// `pads` given beside another `auto_pad` than NOTSET, which readers of models understand differently.
    pub other_pads: Option<Vec<(u64, u64)>>,
    /// True if a window that ends behind the input counts.
    pub ceil_mode: bool,
    /// True if the operator's version says that a window which starts behind the input does not count.
    pub clips: bool,
    /// True if the node is about to run. Then an extent on which runtimes differ is computed as in most of
    /// them, and in ONNX Runtime.
    pub decided: bool,
}

impl WindowView {
    /// Reads the window over `n` spatial axes; `weights` are the spatial dims of the weights, if there are any.
    ///
    /// # Errors
    /// If attributes have the wrong number of entries or values out of range.
    pub fn read(view: &NodeView<'_>, n: usize, weights: Option<&[Dim]>) -> Result<WindowView, OpError> {
        Ok(WindowView {
            kernel: kernel(view, n, weights)?,
            strides: positive(view, "strides", n)?.unwrap_or_else(|| vec![1; n]),
            dilations: positive(view, "dilations", n)?.unwrap_or_else(|| vec![1; n]),
            padding: padding(view, n)?,
            other_pads: other_pads(view, n)?,
            ceil_mode: view.int("ceil_mode").unwrap_or(0) != 0,
            clips: view.since() >= 22,
            decided: view.is_running(),
        })
    }

    /// The number of spatial axes as the attributes have it, for where no shape is known.
    pub fn rank_by_attributes(view: &NodeView<'_>) -> Option<usize> {
        ["kernel_shape", "strides", "dilations"].iter().find_map(|name| view.int_list(name)).map(<[i64]>::len)
    }

    /// Extent of the dilated window on an axis.
    pub fn reach(&self, axis: usize) -> Option<i128> {
        let kernel = i128::from(self.kernel[axis].known()?);
        Some((kernel - 1) * i128::from(self.dilations[axis]) + 1)
    }

    /// The output extent on an axis; unknown where readers of models differ about it.
    ///
    /// # Errors
    /// If the window is larger than the padded input.
    pub fn output(&self, axis: usize, input: Dim) -> Result<Dim, OpError> {
        let Some(other) = self.other_pads.as_ref().filter(|_| !self.decided) else {
            return self.output_padded(axis, input, &self.padding);
        };
        let one = self.output_padded(axis, input, &self.padding);
        let two = self.output_padded(axis, input, &Padding::Explicit(other.clone()));
        Ok(if one == two { one? } else { Dim::Unknown })
    }

    /// Padding before and after an axis of these extents.
    pub fn pads(&self, axis: usize, input: u64, output: u64) -> (u64, u64) {
        match &self.padding {
            Padding::Explicit(pads) => pads[axis],
            Padding::Same { upper } => {
                let steps = i128::from(output.saturating_sub(1)) * i128::from(self.strides[axis]);
                let total = steps + self.reach(axis).unwrap_or(1) - i128::from(input);
                halves(total, *upper)
            }
        }
    }

    fn output_padded(&self, axis: usize, input: Dim, padding: &Padding) -> Result<Dim, OpError> {
        let stride = i128::from(self.strides[axis]);
        let (before, after) = match padding {
            Padding::Same { .. } => {
                return Ok(match input {
                    Dim::Known(n) => Dim::Known(n.div_ceil(self.strides[axis])),
                    same if stride == 1 => same,
                    Dim::Sym(_) | Dim::Unknown => Dim::Unknown,
                });
            }
            Padding::Explicit(pads) => pads[axis],
        };
        let Some(reach) = self.reach(axis) else { return Ok(Dim::Unknown) };
        let around = i128::from(before) + i128::from(after);
        let Dim::Known(input_extent) = input else {
            return Ok(if stride == 1 && around == reach - 1 { input } else { Dim::Unknown });
        };
        let input_extent = i128::from(input_extent);
        let room = input_extent + around - reach;
        let floor = room.div_euclid(stride) + 1;
        if floor < 0 {
            return Err(OpError::node(
                format!("a window of at most {} on spatial axis {axis}", input_extent + around),
                reach.to_string(),
            ));
        }
        let mut steps = floor;
        if self.ceil_mode && room.rem_euclid(stride) != 0 {
            steps += 1;
            if (steps - 1) * stride >= input_extent + i128::from(before) {
                if !self.clips && !self.decided {
                    // Below 22 the operator's text counts such a window and implementations do not.
                    return Ok(Dim::Unknown);
                }
                steps -= 1;
            }
        }
        Ok(extent(steps))
    }
}

/// Padding cut in two, where an odd element goes to the end if `upper`.
fn halves(total: i128, upper: bool) -> (u64, u64) {
    let total = u64::try_from(total).unwrap_or(0);
    let (less, more) = (total / 2, total - total / 2);
    if upper { (less, more) } else { (more, less) }
}

fn kernel(view: &NodeView<'_>, n: usize, weights: Option<&[Dim]>) -> Result<Vec<Dim>, OpError> {
    let by_attr = positive(view, "kernel_shape", n)?;
    match (by_attr, weights) {
        (None, None) if view.schema.attr("kernel_shape").is_some_and(|a| a.required) => {
            Err(OpError::attr("kernel_shape", format!("{n} extents"), "none"))
        }
        (None, None) => Ok(vec![Dim::Unknown; n]),
        (Some(kernel), None) => Ok(kernel.into_iter().map(Dim::Known).collect()),
        (None, Some(weights)) => Ok(weights.to_vec()),
        (Some(kernel), Some(weights)) => kernel
            .iter()
            .zip(weights)
            .map(|(&k, w)| Dim::Known(k).meet(*w))
            .collect::<Option<_>>()
            .ok_or_else(|| {
                let expected = format!("the extents of the weights, {}", crate::ty::show(weights));
                OpError::attr("kernel_shape", expected, format!("{kernel:?}"))
            }),
    }
}

/// A list attribute with `n` entries, all at least 1.
pub(super) fn positive(view: &NodeView<'_>, name: &str, n: usize) -> Result<Option<Vec<u64>>, OpError> {
    list(view, name, n, 1)
}

/// A list attribute with `n` entries, all at least `least`.
pub(super) fn list(
    view: &NodeView<'_>,
    name: &str,
    n: usize,
    least: u64,
) -> Result<Option<Vec<u64>>, OpError> {
    let Some(values) = view.int_list(name).filter(|v| !v.is_empty() || n == 0) else { return Ok(None) };
    let checked: Option<Vec<u64>> =
        values.iter().map(|&v| u64::try_from(v).ok().filter(|&v| v >= least)).collect();
    match checked {
        Some(checked) if checked.len() == n => Ok(Some(checked)),
        _ => Err(OpError::attr(name, format!("{n} numbers, all at least {least}"), format!("{values:?}"))),
    }
}

fn padding(view: &NodeView<'_>, n: usize) -> Result<Padding, OpError> {
    let pads = pads(view, n)?;
    match view.string("auto_pad").unwrap_or("NOTSET") {
        "NOTSET" | "" => Ok(Padding::Explicit(pads)),
        "VALID" => Ok(Padding::Explicit(vec![(0, 0); n])),
        "SAME_UPPER" => Ok(Padding::Same { upper: true }),
        "SAME_LOWER" => Ok(Padding::Same { upper: false }),
        other => Err(OpError::attr("auto_pad", "NOTSET, VALID, SAME_UPPER or SAME_LOWER", other)),
    }
}

fn other_pads(view: &NodeView<'_>, n: usize) -> Result<Option<Vec<(u64, u64)>>, OpError> {
    let automatic = !matches!(view.string("auto_pad"), None | Some("NOTSET" | ""));
    Ok(if automatic && view.int_list("pads").is_some_and(|p| !p.is_empty()) {
        Some(pads(view, n)?)
    } else {
        None
    })
}

/// The attribute `pads` as (before, after) per axis; zeros if it is absent.
pub(super) fn pads(view: &NodeView<'_>, n: usize) -> Result<Vec<(u64, u64)>, OpError> {
    let pads = match list(view, "pads", n.saturating_mul(2), 0)? {
        Some(flat) => (0..n).map(|i| (flat[i], flat[i + n])).collect(),
        None => vec![(0, 0); n],
    };
    Ok(pads)
}

/// A convolution: operands, groups and window.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConvView {
    /// Number of groups.
    pub group: u64,
    /// The operand with the weights.
    pub weights: usize,
    /// The operand with the bias, if the operator has one.
    pub bias: Option<usize>,
}

impl ConvView {
    /// Reads Conv, ConvTranspose, ConvInteger, QLinearConv or DeformConv, all but the window.
    ///
    /// # Errors
    /// If there is no group.
    pub fn read(view: &NodeView<'_>) -> Result<ConvView, OpError> {
        let group = view.int("group").unwrap_or(1);
        let group = u64::try_from(group)
            .ok()
            .filter(|&g| g > 0)
            .ok_or_else(|| OpError::attr("group", "a positive number of groups", group.to_string()))?;
        let kind = view.kind();
        let (weights, bias) = if kind == OpKind::QLinearConv {
            (3, Some(8))
        } else if kind == OpKind::ConvInteger {
            (1, None)
        } else {
            (1, Some(if kind == OpKind::DeformConv { 3 } else { 2 }))
        };
        Ok(ConvView { group, weights, bias })
    }
}

/// Attributes of ConvTranspose besides the window.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransposedView {
    /// Elements added at the end of each axis.
    pub output_padding: Vec<u64>,
    /// The output extents, where given; then padding follows from them.
    pub output_shape: Option<Vec<u64>>,
}

impl TransposedView {
    /// Reads the attributes for `n` spatial axes.
    ///
    /// # Errors
    /// If attributes have the wrong number of entries or values out of range.
    pub fn read(view: &NodeView<'_>, n: usize) -> Result<TransposedView, OpError> {
        Ok(TransposedView {
            output_padding: list(view, "output_padding", n, 0)?.unwrap_or_else(|| vec![0; n]),
            output_shape: list(view, "output_shape", n, 0)?,
        })
    }

    /// The output extent on an axis.
    ///
    /// # Errors
    /// If it is negative.
    pub fn output(&self, window: &WindowView, axis: usize, input: Dim) -> Result<Dim, OpError> {
        if let Some(shape) = &self.output_shape {
            return Ok(Dim::Known(shape[axis]));
        }
        let (Some(reach), Dim::Known(n)) = (window.reach(axis), input) else { return Ok(Dim::Unknown) };
        let stride = i128::from(window.strides[axis]);
        let end = i128::from(self.output_padding[axis]);
        let full = stride * (i128::from(n) - 1) + end + reach;
        let output = match &window.padding {
            // The text says input · stride; the formula with padding at least 0 agrees where the window is not
            // smaller than the stride and nothing is added at the end.
            Padding::Same { .. } if reach >= stride && end == 0 => i128::from(n) * stride,
            // Nothing is added where the windows do not make as much.
            Padding::Same { .. } if window.decided => full.min(i128::from(n) * stride),
            Padding::Same { .. } => return Ok(Dim::Unknown),
            Padding::Explicit(pads) => full - i128::from(pads[axis].0) - i128::from(pads[axis].1),
        };
        if output < 0 && n > 0 {
            return Err(OpError::attr("pads", format!("at most {full} on spatial axis {axis}"), "more"));
        }
        Ok(extent(output))
    }

    /// Padding before an axis of these extents.
    pub fn before(&self, window: &WindowView, axis: usize, input: u64, output: u64) -> u64 {
        let upper = match (&window.padding, &self.output_shape) {
            (Padding::Explicit(pads), None) => return pads[axis].0,
            (padding, _) => matches!(padding, Padding::Same { upper: true }),
        };
        let steps = (i128::from(input) - 1) * i128::from(window.strides[axis]);
        let full = steps + i128::from(self.output_padding[axis]) + window.reach(axis).unwrap_or(1);
        halves(full - i128::from(output), upper).0
    }
}

/// MaxUnpool: the output extents; `output_shape` as an operand takes precedence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnpoolView {
    /// Extents of the window.
    pub kernel: Vec<u64>,
    /// Steps.
    pub strides: Vec<u64>,
    /// Padding before and after each axis.
    pub pads: Vec<(u64, u64)>,
    /// The shape of the result, where an operand says it and is known.
    pub output_shape: Option<Dims>,
}

impl UnpoolView {
    /// Reads a MaxUnpool over `n` spatial axes.
    ///
    /// # Errors
    /// If attributes have the wrong number of entries or values out of range.
    pub fn read(view: &NodeView<'_>, n: usize) -> Result<UnpoolView, OpError> {
        let kernel = positive(view, "kernel_shape", n)?
            .ok_or_else(|| OpError::attr("kernel_shape", format!("{n} extents"), "none"))?;
        let output_shape = view.extents(2).map(|dims| dims.iter().copied().collect::<Dims>());
        let given = view.dims(2).and_then(|d| d.first()?.known());
        if let Some(given) = given.filter(|&g| u64::try_from(n + 2) != Ok(g)) {
            return Err(OpError::operand(2, format!("{} numbers, a whole shape", n + 2), given.to_string()));
        }
        Ok(UnpoolView {
            kernel,
            strides: positive(view, "strides", n)?.unwrap_or_else(|| vec![1; n]),
            pads: pads(view, n)?,
            output_shape,
        })
    }
}
