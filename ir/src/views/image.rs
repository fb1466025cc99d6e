//! Operators on images and their regions.

use super::node::{NodeView, OpError, Part, normalize_axis};
use super::reduce::Axes;
use super::window::{pads, positive};

/// An attribute that is a positive number.
///
/// # Errors
/// If it is not.
pub fn positive_int(view: &NodeView<'_>, name: &str, default: i64) -> Result<u64, OpError> {
    let n = view.int(name).unwrap_or(default);
    u64::try_from(n)
        .ok()
        .filter(|&n| n > 0)
        .ok_or_else(|| OpError::attr(name, "a positive number", n.to_string()))
}

/// ImageScaler: `scale · x + bias` of images as batch, channels, height and width.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ImageScalerView<'a> {
    /// The factor of every element.
    pub scale: f32,
    /// The summand for each channel.
    pub bias: &'a [f32],
}

impl<'a> ImageScalerView<'a> {
    /// Reads an ImageScaler. As in ONNX Runtime, the bias has no default.
    ///
    /// # Errors
    /// If the operand is known not to have four axes, or the number of biases differs from the number of
    /// channels.
    pub fn read(view: &NodeView<'a>) -> Result<ImageScalerView<'a>, OpError> {
        let scale = view.float("scale").unwrap_or(1.0);
        let channels = match view.dims(0) {
            Some([_, channels, _, _]) => channels.known(),
            Some(dims) => {
                let found = format!("one of rank {}", dims.len());
                return Err(OpError::operand(0, "a tensor of rank 4", found));
            }
            None => None,
        };
        let bias = match view.float_list("bias") {
            Some(bias) => bias,
            None if view.is_unresolved("bias") => return Ok(ImageScalerView { scale, bias: &[] }),
            None => return Err(OpError::attr("bias", "a number for each channel", "none")),
        };
        if let Some(channels) = channels.filter(|&channels| channels != bias.len() as u64) {
            let found = bias.len().to_string();
            return Err(OpError::attr("bias", format!("{channels} numbers, one for each channel"), found));
        }
        Ok(ImageScalerView { scale, bias })
    }
}

/// Height and width that MaxRoiPool or RoiAlign makes of a region.
///
/// # Errors
/// If a size is not positive.
pub fn pooled_shape(view: &NodeView<'_>) -> Result<[u64; 2], OpError> {
    if view.schema.attr("pooled_shape").is_none() {
        return Ok([positive_int(view, "output_height", 1)?, positive_int(view, "output_width", 1)?]);
    }
    match positive(view, "pooled_shape", 2)?.as_deref() {
        Some(&[h, w]) => Ok([h, w]),
        _ => Err(OpError::attr("pooled_shape", "height and width", "none")),
    }
}

/// Elements per region: a MaxRoiPool's has a batch index before its corners.
pub fn region_len(view: &NodeView<'_>) -> u64 {
    if view.schema.attr("pooled_shape").is_some() { 5 } else { 4 }
}

/// The axes of CenterCropPad's `shape`, in its order.
///
/// # Errors
/// If an axis is not an axis of the operand or occurs twice.
pub fn crop_axes(view: &NodeView<'_>, rank: usize) -> Result<Vec<usize>, OpError> {
    let Some(axes) = view.int_list("axes").filter(|a| !a.is_empty()) else { return Ok((0..rank).collect()) };
    Axes::of(axes, rank)?;
    axes.iter().map(|&a| normalize_axis(a, rank, Part::Attr("axes".into()))).collect()
}

/// Checks the window attributes of a Col2Im over `n` spatial axes.
///
/// # Errors
/// If they have the wrong number of entries or values out of range.
pub fn col2im_window(view: &NodeView<'_>, n: usize) -> Result<Col2ImView, OpError> {
    Ok(Col2ImView {
        strides: positive(view, "strides", n)?.unwrap_or_else(|| vec![1; n]),
        dilations: positive(view, "dilations", n)?.unwrap_or_else(|| vec![1; n]),
        pads: pads(view, n)?,
    })
}

/// The window of a Col2Im, one entry per spatial axis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Col2ImView {
    /// Steps.
    pub strides: Vec<u64>,
    /// Distances between elements of a block.
    pub dilations: Vec<u64>,
    /// Padding before and after each axis.
    pub pads: Vec<(u64, u64)>,
}
