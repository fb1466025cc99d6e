//! Differences of elements of one tensor: of neighbours, of points by index, from the minimum or maximum.
//!
//! A tensor may have an offset that is large beside the differences of its elements, such as the distance of a body from
//! the origin. The differences lose the digits that the offset displaces:
//!
//! ```text
//! %v = Add(%h, %template)     vertices, up to 2000
//! %a = Gather(%v, %from)
//! %b = Gather(%v, %to)
//! %e = Sub(%a, %b)            edges, of size 1: in f16, vertices have a spacing of 1
//! ```
//!
//! A tensor that a norm has centered has no such offset, and vectors of features have none either.

use super::back::{MAX_STEPS, behind, behind_movement, moves_first, operand, producer};
use super::differences::subtracts_mean;
use super::facts::Numerics;
use super::operators::{is_constant, is_product, kind};
use super::properties::Properties;
use super::weights::Weights;
use crate::graph::flow;
use ampc_ir::op::OpKind;
use ampc_ir::views::{NodeView, SliceView};
use ampc_ir::{Dim, Module, Node, Shape, Value};
use std::collections::BTreeSet;

/// The number of taps of the largest kernel that is a stencil: 3×3×3, or 5×5. Larger kernels whose taps add up to 0 are
/// standardised weights.
const MAX_TAPS: usize = 32;

/// The largest sum of taps that are meant to add up to 0, relative to the sum of their magnitudes.
const ROUNDED: f64 = 1e-5;

/// The maximal number of distinct weights in a stencil of a computed value. Trained weights that were standardised have
/// more.
const MAX_NUMBERS: usize = 8;

/// The least number of channels of a tensor of features. Coordinates, fields and angles have fewer.
const FEATURES: u64 = 16;

fn dims(module: &Module, value: Value) -> Option<&[Dim]> {
    module.value(value).ty.shape().and_then(Shape::dims)
}

/// True if a node subtracts elements of a tensor from other elements of the same tensor: neighbours by Slice, an anchor by
/// Gather, the minimum or the maximum. Tensors that a norm has centered, and features, do not count.
pub(super) fn is_difference_of_elements(module: &Module, node: Node) -> bool {
    let (Some(a), Some(b)) = (operand(module, node, 0), operand(module, node, 1)) else { return false };
    if kind(module, node) != Some(OpKind::Sub) {
        return false;
    }
    let (of_a, of_b) = (behind_selection(module, a), behind_selection(module, b));
    // The same elements less themselves are 0, and no difference.
    let is_selected = |value: Value, of: Value| flow::behind_casts(module, value) != of;
    let of_itself = of_a == of_b && (is_selected(a, of_a) || is_selected(b, of_b));
    of_itself
        && !is_constant(module, of_a)
        && !is_centered(module, of_a)
        && !has_features(module, of_a, [a, b])
}

/// Looks through operators that move one operand alone, and through minimums and maximums, but not into parts that are
/// vectors of features.
fn behind_selection(module: &Module, value: Value) -> Value {
    let chooses = |kind: OpKind| {
        matches!(
            kind,
            OpKind::ReduceMax | OpKind::ReduceMin | OpKind::MaxPool | OpKind::GlobalMaxPool | OpKind::TopK
        )
    };
    behind(module, value, |node, kind, part| {
        (moves_first(module, node, kind) || chooses(kind)) && !are_features(module, node, kind, part)
    })
}

/// True if a tensor has the channels of a layer, and elements of different channels are not subtracted: the selected parts
/// keep all [`FEATURES`] channels or more. The channels are the second axis behind Conv, and the last axis behind a product
/// with constant weights.
fn has_features(module: &Module, value: Value, parts: [Value; 2]) -> bool {
    let mut layer = value;
    for _ in 0..MAX_STEPS {
        let Some((node, kind)) = producer(module, layer) else { return false };
        if is_product(kind) {
            let by_channel = matches!(kind, OpKind::Conv | OpKind::ConvTranspose);
            let is_layer = operand(module, node, 1).is_some_and(|weights| is_constant(module, weights));
            let last = dims(module, layer).map_or(0, <[Dim]>::len).saturating_sub(1);
            let axis_from_end = if by_channel { last.saturating_sub(1) } else { 0 };
            let channels = |value: Value| {
                let dims = dims(module, value)?;
                dims.len().checked_sub(1 + axis_from_end).and_then(|axis| dims.get(axis)?.known())
            };
            let n = channels(layer).filter(|&n| is_layer && n >= FEATURES);
            let are_features = n.is_some() && parts.iter().all(|&part| channels(part) == n);
            // The first axis of images counts samples.
            let samples =
                |value: Value| dims(module, value).filter(|dims| dims.len() == 4).map(|dims| &dims[1..]);
            let are_samples = by_channel
                && samples(layer).is_some()
                && parts.iter().all(|&part| samples(part) == samples(layer));
            return are_features || are_samples;
        }
        let keeps_shape =
            |of: &Value| dims(module, *of).is_some() && dims(module, *of) == dims(module, layer);
        let Some(of) = operand(module, node, 0).filter(|of| {
            keeps_shape(of) || kind == OpKind::GlobalAveragePool || moves_first(module, node, kind)
        }) else {
            return false;
        };
        layer = flow::behind_casts(module, of);
    }
    false
}

/// True if a node divides an axis into large parts without gaps: Split, and Slice of at most half of an axis. The
/// elements of such parts are computed by different weights. Neighbours are slices of nearly a whole axis, or of every
/// second element. Rows that Gather selects are features if they are long.
fn are_features(module: &Module, node: Node, kind: OpKind, part: Value) -> bool {
    let has_gaps = |view: &SliceView<'_>| match &view.steps {
        Some(steps) => steps.iter().flat_map(|steps| steps.iter()).any(|step| step.known() != Some(1)),
        None => true,
    };
    let divides = match kind {
        OpKind::Split => true,
        OpKind::Slice => NodeView::new(module, node).is_some_and(|view| !has_gaps(&SliceView::read(&view))),
        _ => false,
    };
    let whole = operand(module, node, 0).and_then(|of| dims(module, of));
    let (Some(whole), Some(part)) = (whole, dims(module, part)) else { return false };
    if matches!(kind, OpKind::Gather | OpKind::GatherND | OpKind::GatherElements) {
        let axis = NodeView::new(module, node).and_then(|view| view.int("axis")).unwrap_or(0);
        let is_last = axis == -1 || usize::try_from(axis).is_ok_and(|axis| axis + 1 == whole.len());
        return !is_last && matches!(part.last(), Some(Dim::Known(n)) if *n >= FEATURES);
    }
    let is_large = |(whole, part): (&Dim, &Dim)| match (whole, part) {
        (Dim::Known(whole), Dim::Known(part)) => *part >= FEATURES && part.saturating_mul(2) <= *whole,
        _ => false,
    };
    divides && whole.iter().zip(part).any(is_large)
}

/// True if the producer of a value is a norm, the last operator of a norm that is written out, or a bounded function.
fn is_centered(module: &Module, value: Value) -> bool {
    let Some((node, of)) = producer(module, value) else { return false };
    match of {
        OpKind::LayerNormalization
        | OpKind::RMSNormalization
        | OpKind::SimplifiedLayerNormalization
        | OpKind::ContribSkipLayerNormalization
        | OpKind::ContribSkipSimplifiedLayerNormalization
        | OpKind::InstanceNormalization
        | OpKind::GroupNormalization
        | OpKind::ContribGroupNorm
        | OpKind::ContribSkipGroupNorm
        | OpKind::BatchNormalization
        | OpKind::MeanVarianceNormalization
        | OpKind::LpNormalization
        | OpKind::Softmax
        | OpKind::Sigmoid
        | OpKind::Tanh => true,
        OpKind::Relu => operand(module, node, 0).is_some_and(|of| is_centered(module, of)),
        OpKind::Add | OpKind::Mul | OpKind::Div => is_norm_written_out(module, node),
        _ => false,
    }
}

/// True if a node scales or shifts the difference of a value and its mean by constants, or divides it.
fn is_norm_written_out(module: &Module, node: Node) -> bool {
    let mut node = node;
    for _ in 0..MAX_STEPS {
        let mut operands = module.node(node).formal_operands().iter().flatten().copied();
        let Some(of) = operands.find(|&of| !is_constant(module, flow::behind_casts(module, of))) else {
            return false;
        };
        let Some((before, of)) = producer(module, behind_movement(module, of)) else { return false };
        match of {
            OpKind::Sub => return subtracts_mean(module, before).is_some(),
            OpKind::Add | OpKind::Mul | OpKind::Div => node = before,
            _ => return false,
        }
    }
    false
}

/// True if weights make differences: each line has a few taps that add up to 0. The second result is true if there are only
/// a few different numbers.
pub(super) fn make_differences(weights: &Weights) -> (bool, bool) {
    let n_taps = weights.numbers.iter().filter(|&&tap| tap != 0.0).count();
    let is_difference = |i: usize| {
        let line = || weights.line(i);
        let size: f64 = line().map(f64::abs).sum();
        size.is_finite()
            && line().filter(|&tap| tap != 0.0).count() <= MAX_TAPS
            && line().sum::<f64>().abs() <= ROUNDED * size
    };
    let n = weights.n_lines();
    let are_differences = n_taps > 0 && n_taps <= MAX_TAPS * n && (0..n).all(is_difference);
    let few = || weights.numbers.iter().map(|number| number.to_bits()).collect::<BTreeSet<u64>>().len();
    (are_differences, are_differences && few() <= MAX_NUMBERS)
}

impl Numerics {
    /// True if a product with weights that make differences computes differences of neighbours: of an input, or by a few
    /// different numbers, of a value that no norm has centered.
    pub(super) fn is_stencil_of(&self, module: &Module, data: Value, has_few_numbers: bool) -> bool {
        (has_few_numbers || self.properties(module, data).has(Properties::RAW))
            && !is_centered(module, behind_selection(module, data))
    }
}
