//! Normalisations and softmaxes.

use super::elementwise::into;
use super::inferred::Inferred;
use crate::ty::{Dim, Shape};
use crate::views::norm::{BatchNormView, ChannelNormView, LayerNormView, SoftmaxView, lp_normalization};
use crate::views::reduce::Axes;
use crate::views::size::{agree, at_least, part, ranked, shape_error};
use crate::views::{NodeView, OpError};

/// Softmax, LogSoftmax, Hardmax: the shape of the operand.
pub(super) fn infer_softmax(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    SoftmaxView::read(view)?;
    out.shape(0, view.shape(0));
    Ok(())
}

/// BatchNormalization: the shape of the operand, and of the statistics the number of channels.
pub(super) fn infer_batch_norm(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let norm = BatchNormView::read(view);
    let (least, most) = norm.n_results;
    if !(least..=most).contains(&view.n_results()) {
        return Err(OpError::node(
            format!("{least} to {most} results in this mode"),
            view.n_results().to_string(),
        ));
    }
    out.shape(0, view.shape(0));
    if !norm.spatial {
        let each = view.dims(0).map_or_else(Shape::unknown, |x| Shape::of(x.iter().skip(1).copied()));
        for result in 1..view.n_results() {
            out.shape(result, each.clone());
        }
        return Ok(());
    }
    let mut channels = match at_least(view, 0, 1)? {
        Some([_, channels, ..]) => *channels,
        // A vector is a batch with one channel.
        Some(_) => Dim::Known(1),
        None => Dim::Unknown,
    };
    for operand in 1..5 {
        if ranked(view, operand, 1)?.is_some() {
            agree(view, operand, 0, &mut channels, "number of channels")?;
        }
    }
    for result in 1..view.n_results() {
        out.shape(result, Shape::of([channels]));
    }
    Ok(())
}

/// InstanceNormalization and GroupNormalization: one scale and bias per channel, or per group.
pub(super) fn infer_channel_norm(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let norm = ChannelNormView::read(view)?;
    let groups = norm.groups;
    let mut channels = Dim::Unknown;
    if let Some(x) = at_least(view, 0, 2)? {
        channels = x[1];
        if groups.is_some_and(|g| part(channels, g).is_none()) {
            return Err(shape_error(0, format!("channels in {} groups (axis 1)", groups.unwrap_or(0)), x));
        }
    }
    let (mut each, what) = match groups.filter(|_| norm.per_group) {
        Some(groups) => (Dim::Known(groups), "number of groups"),
        None => (channels, "number of channels"),
    };
    for operand in 1..3 {
        if ranked(view, operand, 1)?.is_some() {
            agree(view, operand, 0, &mut each, what)?;
        }
    }
    out.shape(0, view.shape(0));
    Ok(())
}

/// LayerNormalization and RMSNormalization: statistics have the element type of the stash.
pub(super) fn infer_layer_norm(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let norm = LayerNormView::read(view)?;
    for operand in 1..view.n_operands() {
        into(view, operand, &view.shape(0), "the shape of operand 0")?;
    }
    out.shape(0, view.shape(0));
    let statistics = match (view.dims(0), norm.axis) {
        (Some(x), Some(axis)) => {
            let kept = x.iter().enumerate().map(|(i, &d)| if i < axis { d } else { Dim::Known(1) });
            Shape::of(kept)
        }
        _ => Shape::unknown(),
    };
    for result in 1..view.n_results() {
        out.tensor(result, norm.stash, statistics.clone());
    }
    Ok(())
}

/// LpNormalization.
pub(super) fn infer_lp_norm(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    lp_normalization(view)?;
    out.shape(0, view.shape(0));
    Ok(())
}

/// LRN: over neighbouring channels, so there are some.
pub(super) fn infer_lrn(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    at_least(view, 0, 2)?;
    match view.int("size") {
        Some(size) if size > 0 => {}
        size => {
            let found = size.map_or_else(|| "none".into(), |s| s.to_string());
            return Err(OpError::attr("size", "a positive number of channels", found));
        }
    }
    out.shape(0, view.shape(0));
    Ok(())
}

/// MeanVarianceNormalization: over axes that must be there.
pub(super) fn infer_mean_variance_norm(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    if let Some(rank) = view.rank(0) {
        Axes::of(view.int_list("axes").unwrap_or(&[0, 2, 3]), rank)?;
    }
    out.shape(0, view.shape(0));
    Ok(())
}
