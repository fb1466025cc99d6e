//! QuantizeLinear and DequantizeLinear: the granularity of scales.

use super::node::{NodeView, OpError, Part, normalize_axis};
use crate::dtype::DType;
use crate::ty::Dim;

/// The number of elements that share a scale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Granularity {
    /// All.
    Tensor,
    /// All at one index of this axis.
    Axis(usize),
    /// So many neighbours along this axis.
    Blocks {
        /// The axis.
        axis: usize,
        /// Elements per block.
        size: u64,
    },
    /// It depends on shapes that are not known.
    Unknown,
}

/// QuantizeLinear (which makes integers) or DequantizeLinear (which makes floats).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuantizeView {
    /// The element type of the result, if known.
    pub output: Option<DType>,
    /// The element type of the division or multiplication, if known.
    pub compute: Option<DType>,
    /// The number of elements that share a scale.
    pub granularity: Granularity,
    /// True if values beyond the range of a float8 result become its greatest value.
    pub saturate: bool,
}

impl QuantizeView {
    /// Reads a QuantizeLinear.
    ///
    /// # Errors
    /// If axis, block size or element types do not fit.
    pub fn quantize(view: &NodeView<'_>) -> Result<QuantizeView, OpError> {
        let declared = view.dtype_attr("output_dtype")?;
        let output = match (declared, view.has(2)) {
            (Some(declared), true) => match view.dtype(2) {
                Some(found) if found != declared => {
                    let expected = format!("{found}, the type of the zero point");
                    return Err(OpError::attr("output_dtype", expected, declared.to_string()));
                }
                _ => Some(declared),
            },
            (Some(declared), false) => Some(declared),
            (None, true) => view.dtype(2),
            (None, false) => Some(DType::U8),
        };
        Ok(QuantizeView {
            output,
            compute: view.dtype_attr("precision")?.or_else(|| view.dtype(1)),
            granularity: granularity(view)?,
            saturate: view.int("saturate").is_none_or(|v| v != 0),
        })
    }

    /// Reads a DequantizeLinear.
    ///
    /// # Errors
    /// If axis, block size or element types do not fit.
    pub fn dequantize(view: &NodeView<'_>) -> Result<QuantizeView, OpError> {
        let output = view.dtype_attr("output_dtype")?.or_else(|| view.dtype(1));
        Ok(QuantizeView { output, compute: output, granularity: granularity(view)?, saturate: true })
    }
}

fn granularity(view: &NodeView<'_>) -> Result<Granularity, OpError> {
    let block = view.int("block_size").unwrap_or(0);
    let size = u64::try_from(block)
        .map_err(|_| OpError::attr("block_size", "a number of elements", block.to_string()))?;
    let (Some(x), Some(scale)) = (view.dims(0), view.dims(1)) else { return Ok(Granularity::Unknown) };
    match scale {
        [] | [Dim::Known(1)] => return Ok(Granularity::Tensor),
        [_] if x.len() == 1 && size == 0 => return Ok(Granularity::Axis(0)),
        _ => {}
    }
    let blocks = view.schema.attr("block_size").is_some();
    if scale.len() > 1 && (!blocks || scale.len() != x.len()) {
        let expected = match blocks {
            true => format!("a number, a list, or rank {} as operand 0 has", x.len()),
            false => "a number or a list".into(),
        };
        return Err(OpError::operand(1, expected, format!("rank {}", scale.len())));
    }
    let axis = view.int("axis").unwrap_or(1);
    if let (&[scale], Err(_)) = (scale, normalize_axis(axis, x.len(), Part::Node))
        && scale.known().is_none()
    {
        // It may be a list of one, which needs no axis.
        return Ok(Granularity::Unknown);
    }
    let axis = normalize_axis(axis, x.len(), Part::Attr("axis".into()))?;
    if scale.len() == 1 && (size == 0 || x.len() != 1) {
        return Ok(Granularity::Axis(axis));
    }
    // Without a block size it is what the extents say; it is at least 1.
    let size = match (size, x[axis].known(), scale[axis].known()) {
        (0, Some(n), Some(m)) if m > 0 => n.div_ceil(m).max(1),
        (0, ..) => return Ok(Granularity::Unknown),
        (size, ..) => size,
    };
    Ok(Granularity::Blocks { axis, size })
}
