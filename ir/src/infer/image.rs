//! Operators on images and their regions.

use super::inferred::Inferred;
use crate::ty::{Dim, Dims, Shape, show};
use crate::views::image::{ImageScalerView, col2im_window, crop_axes, pooled_shape, region_len};
use crate::views::resize::ResizeView;
use crate::views::size::{agree, agree_all, at_least, one_element, part, product, ranked, shape_error};
use crate::views::{NodeView, OpError};

/// Resize and Upsample.
pub(super) fn infer_resize(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let Some(dims) = view.dims(0) else { return Ok(()) };
    let resize = ResizeView::read(view, dims.len())?;
    out.shape(0, Shape(Some(resize.output(dims))));
    Ok(())
}

/// ImageScaler: the shape of the image.
pub(super) fn infer_image_scaler(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    ImageScalerView::read(view)?;
    out.shape(0, view.shape(0));
    Ok(())
}

/// GridSample: the channels of the input at the positions of the grid.
pub(super) fn infer_grid_sample(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let (x, grid) = (at_least(view, 0, 3)?, at_least(view, 1, 3)?);
    let Some(rank) = x.or(grid).map(<[Dim]>::len) else { return Ok(()) };
    ranked(view, 0, rank)?;
    ranked(view, 1, rank)?;
    let (mut batch, mut channels) = (Dim::Unknown, Dim::Unknown);
    agree(view, 0, 0, &mut batch, "batch size")?;
    agree(view, 0, 1, &mut channels, "number of channels")?;
    agree(view, 1, 0, &mut batch, "batch size")?;
    let coordinates = u64::try_from(rank - 2).map_or(Dim::Unknown, Dim::Known);
    agree(view, 1, rank - 1, &mut { coordinates }, "number of coordinates")?;
    let mut dims: Dims = smallvec::smallvec![batch, channels];
    match grid {
        Some(grid) => dims.extend(grid[1..rank - 1].iter().copied()),
        None => dims.resize(rank, Dim::Unknown),
    }
    out.shape(0, Shape(Some(dims)));
    Ok(())
}

/// AffineGrid: a coordinate pair or triple per position of the size.
pub(super) fn infer_affine_grid(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    ranked(view, 1, 1)?;
    let mut batch = Dim::Unknown;
    let mut n = Dim::Unknown;
    if let Some(theta) = ranked(view, 0, 3)? {
        agree(view, 0, 0, &mut batch, "batch size")?;
        n = theta[1];
        let columns = n.known().and_then(|n| n.checked_add(1));
        if n.known().is_some_and(|n| !(2..=3).contains(&n)) {
            return Err(shape_error(0, "2 × 3 or 3 × 4 matrices", theta));
        }
        agree(view, 0, 2, &mut columns.map_or(Dim::Unknown, Dim::Known), "matrix columns")?;
    }
    let Some(size) = view.extents(1) else {
        let len = view.dims(1).and_then(|d| d[0].known()).and_then(|n| usize::try_from(n).ok());
        if let Some(len) = len.filter(|len| (4..=5).contains(len)) {
            let unknown = std::iter::repeat_n(Dim::Unknown, len - 2);
            let coordinates = u64::try_from(len - 2).map_or(Dim::Unknown, Dim::Known);
            out.shape(0, Shape::of([batch].into_iter().chain(unknown).chain([coordinates])));
        }
        return Ok(());
    };
    if !(4..=5).contains(&size.len()) {
        return Err(OpError::operand(1, "4 or 5 extents", size.len().to_string()));
    }
    let coordinates = u64::try_from(size.len() - 2).map_or(Dim::Unknown, Dim::Known);
    if n.meet(coordinates).is_none() {
        return Err(OpError::operand(
            1,
            "as many spatial extents as the matrices have rows",
            size.len().to_string(),
        ));
    }
    batch = batch
        .meet(size[0])
        .ok_or_else(|| OpError::operand(1, "the number of matrices as the first extent", show(&size[..1])))?;
    let dims = [batch].into_iter().chain(size[2..].iter().copied()).chain([coordinates]);
    out.shape(0, Shape::of(dims));
    Ok(())
}

/// Col2Im: from columns of blocks back to the image.
pub(super) fn infer_col2im(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let columns = ranked(view, 0, 3)?;
    let mut n = Dim::Unknown;
    for operand in 1..3 {
        if ranked(view, operand, 1)?.is_some() {
            agree(view, operand, 0, &mut n, "number of spatial axes")?;
        }
    }
    let (image, block) = (view.extents(1), view.extents(2));
    let Some(n) = n.known().and_then(|n| usize::try_from(n).ok()).filter(|&n| n <= 64) else { return Ok(()) };
    col2im_window(view, n)?;
    let mut dims: Dims = smallvec::smallvec![Dim::Unknown, Dim::Unknown];
    if let Some(columns) = columns {
        dims[0] = columns[0];
        if view.known_ints(2).is_some_and(|b| b.iter().any(|&b| b <= 0)) {
            return Err(OpError::operand(2, "positive extents", show(block.as_deref().unwrap_or(&[]))));
        }
        if let Some(cells) = block.as_deref().and_then(product) {
            dims[1] = part(columns[1], cells).ok_or_else(|| {
                shape_error(0, format!("a multiple of {cells}, the block, on axis 1"), columns)
            })?;
        }
    }
    match image {
        Some(image) if image.len() == n => dims.extend(image.iter().copied()),
        _ => dims.resize(n + 2, Dim::Unknown),
    }
    out.shape(0, Shape(Some(dims)));
    Ok(())
}

/// CenterCropPad: the given extents on the given axes.
pub(super) fn infer_center_crop_pad(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    ranked(view, 1, 1)?;
    let Some(dims) = view.dims(0) else { return Ok(()) };
    let axes = crop_axes(view, dims.len())?;
    let given = view.dims(1).and_then(|d| d[0].known());
    if let Some(found) = given.filter(|&n| u64::try_from(axes.len()) != Ok(n)) {
        return Err(OpError::operand(1, format!("{} extents", axes.len()), found.to_string()));
    }
    if view.known_ints(1).is_some_and(|s| s.iter().any(|&s| s < 0)) {
        return Err(OpError::operand(1, "extents", "a negative number"));
    }
    let target = view.extents(1);
    let mut output: Dims = dims.iter().copied().collect();
    for (i, &axis) in axes.iter().enumerate() {
        output[axis] = target.as_ref().and_then(|t| t.get(i).copied()).unwrap_or(Dim::Unknown);
    }
    out.shape(0, Shape(Some(output)));
    Ok(())
}

/// MaxRoiPool and RoiAlign: an image of fixed size per region.
pub(super) fn infer_roi(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let [height, width] = pooled_shape(view)?;
    let (mut channels, mut regions) = (Dim::Unknown, Dim::Unknown);
    if ranked(view, 0, 4)?.is_some() {
        agree(view, 0, 1, &mut channels, "number of channels")?;
    }
    let mut corners = Dim::Known(region_len(view));
    agree_all(view, 1, &mut [&mut regions, &mut corners], &["number of regions", "numbers per region"])?;
    agree_all(view, 2, &mut [&mut regions], &["number of regions"])?;
    out.shape(0, Shape::of([regions, channels, Dim::Known(height), Dim::Known(width)]));
    Ok(())
}

/// NonMaxSuppression: so many selected (batch, class, box) triples.
pub(super) fn infer_non_max_suppression(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let [mut batch, mut boxes, mut classes] = [Dim::Unknown; 3];
    let names = ["batch size", "number of boxes", "numbers per box"];
    agree_all(view, 0, &mut [&mut batch, &mut boxes, &mut Dim::Known(4)], &names)?;
    let names = ["batch size", "number of classes", "number of boxes"];
    agree_all(view, 1, &mut [&mut batch, &mut classes, &mut boxes], &names)?;
    for operand in 2..5 {
        one_element(view, operand)?;
    }
    out.shape(0, Shape::of([Dim::Unknown, Dim::Known(3)]));
    Ok(())
}
