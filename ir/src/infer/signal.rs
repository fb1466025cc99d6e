//! Fourier transforms and windows.

use super::inferred::Inferred;
use crate::dtype::DType;
use crate::ty::{Dim, Dims, Shape};
use crate::views::signal::{DftView, positive_operand};
use crate::views::size::{agree, at_least, ranked, shape_error};
use crate::views::{NodeView, OpError};

/// Bins of a one-sided spectrum.
fn half(n: u64) -> Dim {
    Dim::Known(n / 2 + 1)
}

/// DFT.
pub(super) fn infer_dft(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let Some(x) = at_least(view, 0, 2)? else { return Ok(()) };
    let dft = DftView::read(view, x.len())?;
    let parts = x[x.len() - 1].known();
    let expected = match (dft.one_sided, dft.inverse) {
        (true, true) => Some(2),
        (true, false) => Some(1),
        (false, _) => None,
    };
    if let (Some(parts), Some(expected)) = (parts, expected)
        && parts != expected
    {
        return Err(shape_error(0, format!("{expected} as the last extent of this one-sided transform"), x));
    }
    if parts.is_some_and(|p| !(1..=2).contains(&p)) {
        return Err(shape_error(0, "1 or 2 as the last extent", x));
    }
    let mut dims: Dims = x.iter().copied().collect();
    match dft.axis {
        Some(axis) => dims[axis] = signal_extent(&dft, x[axis]),
        None if dft.has_length || dft.one_sided => dims = smallvec::smallvec![Dim::Unknown; x.len()],
        None => {}
    }
    let last = dims.len() - 1;
    dims[last] = Dim::Known(if dft.one_sided && dft.inverse { 1 } else { 2 });
    out.shape(0, Shape(Some(dims)));
    Ok(())
}

fn signal_extent(dft: &DftView, input: Dim) -> Dim {
    let length = match (dft.has_length, dft.length) {
        (true, Some(n)) => Dim::Known(n),
        (true, None) => Dim::Unknown,
        (false, _) => input,
    };
    match (dft.one_sided, dft.inverse, length) {
        (false, ..) => length,
        (true, false, Dim::Known(n)) => half(n),
        (true, true, Dim::Known(n)) if !dft.has_length => {
            n.checked_sub(1).and_then(|n| n.checked_mul(2)).map_or(Dim::Unknown, Dim::Known)
        }
        (true, true, _) if dft.has_length => length,
        (true, ..) => Dim::Unknown,
    }
}

/// STFT: frames and bins of every signal of the batch.
pub(super) fn infer_stft(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let signal = at_least(view, 0, 2)?;
    if let Some(x) = signal.filter(|x| x.len() > 3) {
        return Err(shape_error(0, "a tensor of rank 2 or 3", x));
    }
    let step = positive_operand(view, 1)?;
    let mut frame = Dim::Unknown;
    if let Some(length) = positive_operand(view, 3)? {
        frame = Dim::Known(length);
    }
    if ranked(view, 2, 1)?.is_some() {
        agree(view, 2, 0, &mut frame, "frame length")?;
    }
    let samples = signal.map_or(Dim::Unknown, |x| x[1]);
    if !view.has(2) && !view.has(3) {
        frame = samples;
    }
    let frames = match (samples, frame, step) {
        (Dim::Known(n), Dim::Known(frame), Some(step)) => {
            let left = n.checked_sub(frame).ok_or_else(|| {
                let what = format!("signals of {frame} samples or more on axis 1");
                shape_error(0, what, signal.unwrap_or(&[]))
            })?;
            Dim::Known(left / step + 1)
        }
        _ => Dim::Unknown,
    };
    let bins = match (frame, view.int("onesided").unwrap_or(1) != 0) {
        (Dim::Known(n), true) => half(n),
        (Dim::Sym(_) | Dim::Unknown, true) => Dim::Unknown,
        (frame, false) => frame,
    };
    let batch = signal.map_or(Dim::Unknown, |x| x[0]);
    out.shape(0, Shape::of([batch, frames, bins, Dim::Known(2)]));
    Ok(())
}

/// BlackmanWindow, HammingWindow, HannWindow.
pub(super) fn infer_window_function(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let n = positive_operand(view, 0)?;
    let dtype = view.dtype_attr("output_datatype")?.unwrap_or(DType::F32);
    let size = match (n, view.extents(0).as_deref()) {
        (Some(n), _) => Dim::Known(n),
        (None, Some([size])) => *size,
        (None, _) => Dim::Unknown,
    };
    out.tensor(0, dtype, Shape::of([size]));
    Ok(())
}

/// MelWeightMatrix.
pub(super) fn infer_mel_weights(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let bins = positive_operand(view, 0)?;
    let length = positive_operand(view, 1)?;
    let dtype = view.dtype_attr("output_datatype")?.unwrap_or(DType::F32);
    let shape = Shape::of([length.map_or(Dim::Unknown, half), bins.map_or(Dim::Unknown, Dim::Known)]);
    out.tensor(0, dtype, shape);
    Ok(())
}
