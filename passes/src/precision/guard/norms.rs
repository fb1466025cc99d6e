//! Guards on norms and reductions.

use super::Cx;
use super::amplifiers::SMALL;
use crate::analysis::cost::Sizes;
use crate::analysis::numerics::{
    MAX_SQUARES, MAX_TERMS, Properties, Sink, adds_up_squares, normalizes_contraction, squares,
    subtracts_mean, sums, terms, weights,
};
use crate::graph::flow::{self, Reader, Var};
use crate::pass::PassError;
use crate::precision::between::is_between;
use ampc_ir::op::{self, OpKind};
use ampc_ir::views::NodeView;
use ampc_ir::{DType, Dim, Node, Shape, Value};

/// A reduction over more elements than this stays fp32.
const MAX_DEPTH: u64 = MAX_TERMS;

/// Denies variables of operators whose `stash_type` is not float: such an operator would compute in the low format
/// internally.
pub(super) fn stash(cx: &mut Cx<'_>) -> Result<(), PassError> {
    for var in cx.free_vars() {
        let Some(view) = NodeView::new(cx.module, var.node) else { continue };
        if let Some(stash) = view.schema.attr("stash_type").and_then(|_| view.int("stash_type"))
            && stash != i64::from(DType::F32.number())
        {
            cx.deny(var, || format!("stash_type is {stash}, not 1 (float)"));
        }
    }
    Ok(())
}

/// Returns the nodes that read the results of a variable. Outputs of the model are not part of a pattern.
fn readers(cx: &Cx<'_>, var: Var) -> Vec<Node> {
    let mut nodes: Vec<Node> = flow::results_of(cx.module, var)
        .flat_map(|(_, value)| flow::readers_beyond_casts(cx.module, value))
        .filter_map(Reader::operand)
        .map(|(node, _)| node)
        .collect();
    nodes.sort_unstable();
    nodes
}

/// Denies the parts of norms that are written out in operators: x·x before a sum overflows (400² is beyond f16), and
/// x − mean(x) cancels.
///
/// The operators in this function are the pattern in which exporters write a norm.
pub(super) fn norm(cx: &mut Cx<'_>) -> Result<(), PassError> {
    for var in cx.free_vars() {
        let square = match cx.kind(var.node) {
            Some(OpKind::Mul) => squares(cx.module, var.node),
            Some(OpKind::Pow) => true,
            _ => false,
        };
        if square && let Some(sum) = readers(cx, var).into_iter().find(|&n| cx.kind(n).is_some_and(op::sums))
        {
            let op = cx.module.op_name(sum).1.to_owned();
            cx.deny(var, || format!("a square that {op} sums"));
        } else if square && cx.sinks(var).some.any(Sink::SUM) {
            cx.deny(var, || "a square that is summed".into());
        }
        if cx.is_product(var) && adds_up_squares(cx.module, var.node) {
            cx.deny(var, || "a sum of squares, written as a product".into());
        } else if cx.is_product(var) && sums(cx.module, var.node) {
            cx.deny(var, || "a sum, written as an Einsum".into());
        } else if subtracts_mean(cx.module, var.node)
            .is_some_and(|mean| sums(cx.module, mean) && cx.kind(mean) == Some(OpKind::Einsum))
        {
            cx.deny(var, || "subtracts the mean: cancellation".into());
        }
        if is_shifted(cx, var) {
            cx.deny(var, || "adds a large constant, which a mean that is subtracted takes away".into());
        }
        if cx.kind(var.node) == Some(OpKind::ReduceMean) {
            let x = cx.module.node(var.node).operand(0).map(|v| flow::behind_casts(cx.module, v));
            let subtracts = readers(cx, var).into_iter().find(|&n| {
                let from = cx.module.node(n).operand(0).map(|v| flow::behind_casts(cx.module, v));
                cx.kind(n) == Some(OpKind::Sub) && from == x
            });
            if let Some(sub) = subtracts {
                cx.deny(var, || "a mean that is subtracted from its operand".into());
                if let Some(sub) = flow::reader_var(cx.module, sub, 0) {
                    cx.deny(sub, || "subtracts the mean: cancellation".into());
                }
            }
        }
    }
    Ok(())
}

/// True if a variable adds a large constant to a value whose mean is then subtracted. The constant cancels, but the
/// digits that it displaced are lost.
fn is_shifted(cx: &Cx<'_>, var: Var) -> bool {
    let large = |value| cx.numerics.interval(cx.module, value).is_some_and(|i| i.magnitude() > SMALL);
    let constant = |&(_, value): &(usize, Value)| cx.numerics.is_constant(cx.module, value) && large(value);
    let shifts = cx.kind(var.node).is_some_and(op::adds)
        && flow::operands_of(cx.module, var).any(|operand| constant(&operand));
    let reads = |kind| readers(cx, var).into_iter().any(|node| cx.kind(node) == Some(kind));
    shifts && reads(OpKind::ReduceMean) && reads(OpKind::Sub)
}

/// Denies long reductions, whose sum leaves the range or loses small addends, and sums by weights of unknown range that
/// are divided by the sum of the weights. Denies long products too, unless a factor is a constant, whose signs differ,
/// or sums to 1, like results of Softmax; and denies products with such a long sum.
pub(super) fn depth(cx: &mut Cx<'_>) -> Result<(), PassError> {
    for node in flow::nodes(cx.module) {
        if let Some(product) = cx.numerics.weighted_mean(cx.module, node) {
            for var in flow::vars(cx.module, product) {
                cx.deny_for_range(var, || {
                    "a sum by weights of unknown range that is divided by the sum of the weights".to_owned()
                });
            }
        }
    }
    for var in cx.free_vars() {
        if cx.is_product(var) && cx.properties(var).has(Properties::LONG_SUM) {
            cx.deny_for_range(var, || {
                format!("a sum of more than {MAX_TERMS} computed products, or a product with such a sum")
            });
        }
        if let Some(why) = one_sided_sum(cx, var) {
            cx.deny_for_range(var, || why);
        }
        // A kernel that sums in fp32 removes the risk of a deep sum.
        let is_answered = flow::decision(cx.module, var).is_some_and(is_between);
        if is_answered || !cx.kind(var.node).is_some_and(op::sums) {
            continue;
        }
        let Some(view) = NodeView::new(cx.module, var.node) else { continue };
        let depth = if view.schema.attr("kernel_shape").is_some() {
            view.int_list("kernel_shape")
                .and_then(|k| k.iter().try_fold(1u64, |n, &d| n.checked_mul(u64::try_from(d).ok()?)))
        } else {
            let from = view.shape(0).element_count();
            let to = cx
                .module
                .node(var.node)
                .result(0)
                .and_then(|v| cx.module.value(v).ty.shape()?.element_count());
            from.zip(to).and_then(|(from, to)| from.checked_div(to))
        };
        if let Some(depth) = depth.filter(|&d| d > MAX_DEPTH) {
            cx.deny(var, || format!("reduces {depth} elements to one"));
        }
    }
    Ok(())
}

/// The evidence, if a product may leave the range because its terms have one sign, or because the weights of a constant
/// factor may add up beyond the range.
fn one_sided_sum(cx: &Cx<'_>, var: Var) -> Option<String> {
    let view = NodeView::new(cx.module, var.node).filter(|_| cx.is_product(var))?;
    let [a, b] = [view.operand(0)?, view.operand(1)?];
    let constant = |value: Value| cx.numerics.is_constant(cx.module, value);
    let interval = |value: Value| cx.numerics.interval(cx.module, value);
    if constant(a) || constant(b) {
        let of = if constant(a) { b } else { a };
        let positive = interval(of).filter(|interval| interval.lo >= 0.0 && interval.hi.is_finite())?;
        let bound = largest_sum(cx, var.node)? * positive.hi;
        return (bound > cx.most())
            .then(|| format!("a sum of up to {bound:.1e}, whose terms may have one sign"));
    }
    let properties = |value: Value| cx.numerics.properties(cx.module, value);
    let is_positive = |value: Value| interval(value).is_some_and(|interval| interval.lo >= 0.0);
    // An input of rank 2 is taken for a weight, or for an adjacency matrix whose rows were normalised; an Einsum says more.
    let rank = |value: Value| cx.module.value(value).ty.shape().and_then(Shape::dims).map_or(0, <[Dim]>::len);
    let is_raw = |value: Value| {
        properties(value).has(Properties::RAW)
            && interval(value).is_none_or(|i| i.magnitude() > SMALL)
            && (view.kind() == OpKind::Einsum || rank(value) > 2)
    };
    if !matches!(view.kind(), OpKind::MatMul | OpKind::Einsum) {
        return None;
    }
    let is_mean = (0..2).any(|i| {
        view.operand(i).is_some_and(|v| properties(v).has(Properties::DISTRIBUTION))
            && normalizes_contraction(&view, i)
    });
    let one_sided = is_positive(a) && is_raw(b) || is_positive(b) && is_raw(a);
    let n = terms(cx.module, &view, Sizes::default().other);
    (one_sided && !is_mean && n > MAX_SQUARES && cx.most() < f64::from(f32::MAX) / 2.0)
        .then(|| format!("a sum of {n} products that may all have one sign"))
}

/// The largest sum of the positive weights, or of the negative weights, that make one element of a result of a product
/// with a constant.
fn largest_sum(cx: &Cx<'_>, node: Node) -> Option<f64> {
    let weights = weights(cx.module, node)?;
    let largest = weights.lines().map(|line| {
        let sum = |sign: f64| line.clone().map(|weight| (sign * weight).max(0.0)).sum::<f64>();
        f64::max(sum(1.0), sum(-1.0))
    });
    largest.reduce(f64::max)
}
