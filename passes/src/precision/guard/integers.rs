//! Integers carried in floats. f16 holds integers exactly up to 2048, bf16 up to 256.
//!
//! Two walks over the float variables:
//!
//! - *forward* from the places where integers of more than 8 bits become floats (Cast, Range, and values computed from
//!   them), through arithmetic and movement and at most one product: finds the values that may hold such an integer;
//! - *backward* from the places where floats become integers again (Cast to an integer type) or turn into an angle
//!   (Sin, Cos and similar, where the error of a large argument is absolute): finds the values that must be exact.
//!
//! Variables in both sets stay fp32, allow operators included (`inv_freq @ positions`). On a path into a cast to an
//! integer, every operator after the last allow operator stays fp32 too, whatever its operands: `floor(size · scale)`.
//! The last allow operator itself stays fp32 if it is a product that leads nowhere else and the integer has more than 8
//! bits. If such a product multiplies rounded or compared values (digits by the powers of a base), the producers of its
//! operands stay fp32 too.
//!
//! ```text
//! %p = Cast(%ids) {to=f32}         %ids is i64: %p holds an integer of more than 8 bits
//! %f = MatMul(%p, %freq)           fp32: holds such an integer, behind one product, and leads into an angle
//! %c = Cos(%f)                     an angle
//!
//! %n = Mul(%size, %scale)          fp32: leads into a cast to an integer without a product in between
//! %i = Cast(%n) {to=i64}
//! ```

use super::Cx;
use crate::analysis::cost::Sizes;
use crate::analysis::numerics::{Properties, terms, weights};
use crate::graph::flow::{self, Var};
use crate::pass::PassError;
use ampc_ir::convert::unit_roundoff;
use ampc_ir::op::{self, Amplified, Class, OpKind, amplifier};
use ampc_ir::views::{NodeView, constant_of};
use ampc_ir::{DType, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// True for integer types whose values an f16 may not hold.
fn is_wide_integer(dtype: DType) -> bool {
    dtype.is_integer() && dtype.bits().is_some_and(|b| b > 8)
}

fn dtype_of_operand(cx: &Cx<'_>, node: Node, i: usize) -> Option<DType> {
    cx.module.value(cx.module.node(node).operand(i)?).ty.dtype()
}

fn dtype_of_result(cx: &Cx<'_>, node: Node) -> Option<DType> {
    cx.module.value(cx.module.node(node).result(0)?).ty.dtype()
}

/// True if a node turns integers into floats: it converts them, or counts (Range).
fn enters(cx: &Cx<'_>, node: Node) -> bool {
    let Some(kind) = cx.kind(node) else { return false };
    let counts = kind == OpKind::Range;
    let converts = op::moves(kind, 0).is_some() && dtype_of_operand(cx, node, 0).is_some_and(is_wide_integer);
    (counts || converts) && dtype_of_result(cx, node).is_some_and(DType::is_float)
}

/// True if a node makes small integers: the 0 and 1 of a comparison, a sign, or rounded values.
fn makes_digits(cx: &Cx<'_>, node: Node) -> bool {
    let of_bool = || dtype_of_operand(cx, node, 0) == Some(DType::Bool);
    match cx.kind(node) {
        Some(OpKind::Round | OpKind::Floor | OpKind::Ceil | OpKind::Sign) => true,
        Some(OpKind::Cast) => of_bool() && dtype_of_result(cx, node).is_some_and(DType::is_float),
        _ => false,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sink {
    Integer,
    Angle,
}

/// Returns the kind of the values that must be exact, if a node turns floats into such values.
fn leaves(cx: &Cx<'_>, node: Node) -> Option<Sink> {
    let kind = cx.kind(node)?;
    if op::is_periodic(kind) {
        return Some(Sink::Angle);
    }
    let from = dtype_of_operand(cx, node, 0)?;
    let to = dtype_of_result(cx, node)?;
    (op::moves(kind, 0).is_some() && from.is_float() && to.is_integer()).then_some(Sink::Integer)
}

/// True if the variable has a decision, so that numbers pass through it.
fn carries(cx: &Cx<'_>, var: Var) -> bool {
    flow::decision(cx.module, var).is_some()
}

pub(super) fn integers(cx: &mut Cx<'_>) -> Result<(), PassError> {
    let nodes = flow::nodes(cx.module);
    let digits = forward(cx, &nodes, makes_digits);
    let forward = forward(cx, &nodes, enters);
    let Backward { exact, near, only } = backward(cx, &nodes, &digits);
    for &var in exact.intersection(&forward).collect::<std::collections::BTreeSet<_>>() {
        cx.deny(var, || "integers carried in floats on the way to an integer or an angle".into());
    }
    accumulators(cx)?;
    for &var in near.iter().collect::<std::collections::BTreeSet<_>>() {
        let last = cx.is_product(var);
        if !last {
            cx.deny(var, || "on the way to a cast to an integer".into());
        } else if only.contains(&var) {
            cx.deny(var, || "the last product before a cast to an integer".into());
        }
    }
    Ok(())
}

/// Denies sums of a product of integers before the sum is scaled, and products of integers in floats whose sums may be
/// as large.
fn accumulators(cx: &mut Cx<'_>) -> Result<(), PassError> {
    for var in cx.free_vars() {
        let mut properties = Properties::NOTHING;
        for (_, value) in flow::operands_of(cx.module, var) {
            properties |= cx.numerics.properties(cx.module, value);
        }
        if properties.has(Properties::ACCUMULATOR) {
            cx.deny(var, || "the accumulator of a product of integers, up to millions".into());
        } else if adds_up_integers(cx, var, properties.has(Properties::INTEGERS))? {
            cx.deny(var, || "a product of integers in floats, up to millions".into());
        } else if makes_codes(cx, var) {
            for node in to_comparisons(cx, var.node) {
                cx.deny_node(node, "integers in floats on the way to a comparison");
            }
        }
    }
    Ok(())
}

/// True if a variable belongs to a product of a constant and integers of 8 bits in floats that may leave the range.
///
/// The factor counts as such integers if `integers` is true, by its computation, or if the constant is a quantized
/// weight: many integers, some of them larger than handwritten integers. For example, 512 terms of 255 · 127 are up to
/// 16 million, and 733,000 if their signs are random: both beyond the 65,504 of f16.
fn adds_up_integers(cx: &mut Cx<'_>, var: Var, integers: bool) -> Result<bool, PassError> {
    if !cx.is_product(var) {
        return Ok(false);
    }
    let factors = [0, 1].map(|slot| cx.module.node(var.node).operand(slot));
    let constant = factors.into_iter().flatten().find(|&v| constant_of(cx.module, v).is_some());
    let Some(weights) = constant.map_or(Ok(None), |value| cx.stats(value))? else { return Ok(false) };
    let largest = f64::from(weights.max_abs);
    let is_quantized =
        (MIN_QUANTIZED..=MAX_QUANTIZED).contains(&largest) && weights.count > FEW && weights.integers;
    let view = NodeView::new(cx.module, var.node).filter(|_| integers || is_quantized);
    // A sum of terms of either sign grows with the square root of the number of terms.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let reaches = |view: NodeView<'_>| {
        MAX_QUANTIZED * largest * (terms(cx.module, &view, Sizes::default().other) as f64).sqrt()
    };
    Ok(view.is_some_and(|view| reaches(view) > cx.most()))
}

/// True if a variable belongs to a product of small integers and constant integers that the format does not hold exactly
/// when they are added up, such as bits times powers of two.
fn makes_codes(cx: &Cx<'_>, var: Var) -> bool {
    let digits = |value: Value| {
        let producer = cx.module.producer(flow::behind_inserted(cx.module, value));
        producer.is_some_and(|(node, _)| makes_digits(cx, node))
    };
    if !cx.is_product(var) || !(0..2).filter_map(|i| cx.operand(var.node, i)).any(digits) {
        return false;
    }
    let Some(weights) = weights(cx.module, var.node) else { return false };
    let exact = 1.0 / unit_roundoff(cx.to).unwrap_or(1.0);
    let is_integer = |weight: f64| weight.fract() == 0.0;
    let is_code = |line: &mut dyn Iterator<Item = f64>| {
        let (sum, most) = line
            .fold((0.0, 0.0), |(sum, most): (f64, f64), weight| (sum + weight.abs(), most.max(weight.abs())));
        sum > exact && most > 1.0
    };
    cx.operand(var.node, weights.of).is_some_and(digits)
        && weights.lines().all(|mut line| line.all(is_integer))
        && weights.lines().any(|mut line| is_code(&mut line))
}

/// The maximal number of nodes that move codes on the way to comparisons.
const MAX_MOVED: usize = 256;

/// The nodes from a node to the comparisons of its result, both ends included, through movement; none if nothing
/// compares the result.
fn to_comparisons(cx: &Cx<'_>, node: Node) -> Vec<Node> {
    let mut known = FxHashMap::default();
    let mut path = Vec::new();
    if leads_to_comparison(cx, node, &mut known, &mut path) { path } else { Vec::new() }
}

/// True if a comparison reads the result of a node, moved or not. Appends the nodes on the way to `path`.
fn leads_to_comparison(
    cx: &Cx<'_>,
    node: Node,
    known: &mut FxHashMap<Node, bool>,
    path: &mut Vec<Node>,
) -> bool {
    if let Some(&leads) = known.get(&node) {
        return leads;
    }
    if known.len() >= MAX_MOVED {
        return false;
    }
    known.insert(node, false);
    let mut leads = false;
    for value in cx.module.node(node).results().iter().flatten() {
        for (reader, slot) in cx.module.uses(*value).collect::<Vec<_>>() {
            let Some(kind) = cx.kind(reader) else { continue };
            let is_choice = amplifier(kind, slot as usize).is_some_and(|row| row.what == Amplified::Choice);
            if op::compares(kind) || is_choice {
                leads = true;
                path.push(reader);
            } else if op::moves(kind, slot as usize).is_some() {
                leads |= leads_to_comparison(cx, reader, known, path);
            }
        }
    }
    known.insert(node, leads);
    if leads {
        path.push(node);
    }
    leads
}

/// The least maximum of quantized integer weights. Smaller integer weights are written by hand (filters of images go up
/// to 16), and the values that they multiply need not be integers.
const MIN_QUANTIZED: f64 = 17.0;

/// The largest integer of 8 bits: larger weights are not quantized to 8 bits.
const MAX_QUANTIZED: f64 = 255.0;

/// The maximal number of weights that count as written by hand, whatever their size.
const FEW: u64 = 16;

/// Returns how an operator passes on an integer of an operand; `None` if it does not.
///
/// The list belongs to this guard and is not a property of operators: it is the arithmetic that computes sizes and
/// positions. Not every operator of the list makes integers from integers. Mean and Abs would qualify as well, but are
/// used for features.
fn passes_on(cx: &Cx<'_>, var: Var) -> Option<Crossing> {
    let class = flow::decision(cx.module, var)?.class;
    match cx.kind(var.node)? {
        OpKind::Add | OpKind::Sub | OpKind::Mul | OpKind::Div | OpKind::Mod | OpKind::Pow | OpKind::Sqrt => {}
        OpKind::Sum | OpKind::Floor | OpKind::Ceil | OpKind::Round | OpKind::CumSum => {}
        OpKind::ReduceSum | OpKind::ReduceProd | OpKind::ReduceMax | OpKind::ReduceMin => {}
        _ if class == Class::Clear => {}
        _ if class == Class::Allow => return Some(Crossing::Product),
        _ => return None,
    }
    Some(Crossing::Plain)
}

/// The kind of operators that a mark has crossed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Crossing {
    /// Arithmetic and movement.
    Plain,
    /// One product: positions times frequencies. After a second product, a value is no longer a position.
    Product,
}

/// Returns the variables that may hold an integer. Program order is topological, so one walk suffices unless there are
/// bodies.
fn forward(cx: &Cx<'_>, nodes: &[Node], enters: fn(&Cx<'_>, Node) -> bool) -> FxHashSet<Var> {
    let mut marked: FxHashMap<Var, Crossing> = FxHashMap::default();
    for _ in 0..super::MAX_WALKS {
        let before = marked.clone();
        walk_forward(cx, nodes, enters, &mut marked);
        if !cx.has_bodies() || marked == before {
            break;
        }
    }
    marked.into_keys().collect()
}

fn walk_forward(
    cx: &Cx<'_>,
    nodes: &[Node],
    enters: fn(&Cx<'_>, Node) -> bool,
    marked: &mut FxHashMap<Var, Crossing>,
) {
    let mut sources: FxHashSet<Node> = FxHashSet::default();
    for &node in nodes {
        if enters(cx, node) {
            sources.insert(node);
            continue;
        }
        for var in flow::vars(cx.module, node).filter(|&v| carries(cx, v)) {
            let held = flow::operands_of(cx.module, var)
                .filter_map(|(_, value)| {
                    let value = flow::behind_casts(cx.module, value);
                    let (producer, _) = cx.module.producer(value)?;
                    if sources.contains(&producer) {
                        return Some(Crossing::Plain);
                    }
                    marked.get(&flow::producer_var(cx.module, value)?).copied()
                })
                .min();
            let mark = match (held, passes_on(cx, var)) {
                (Some(held), Some(Crossing::Plain)) => Some(held),
                (Some(Crossing::Plain), Some(Crossing::Product)) => Some(Crossing::Product),
                (None, _) | (_, None) | (Some(Crossing::Product), Some(Crossing::Product)) => None,
            };
            if let Some(mark) = mark {
                marked.insert(var, mark);
            }
        }
    }
}

/// The result of the backward walk.
#[derive(Clone, PartialEq, Eq, Default)]
struct Backward {
    /// The variables that lead into a value that must be exact, through any operators.
    exact: FxHashSet<Var>,
    /// The variables that lead into a cast to an integer without crossing an allow variable, and the products
    /// at which these paths end.
    near: FxHashSet<Var>,
    /// The variables that lead into a cast to an integer of more than 8 bits and nowhere else.
    only: FxHashSet<Var>,
}

fn backward(cx: &Cx<'_>, nodes: &[Node], digits: &FxHashSet<Var>) -> Backward {
    let mut found = Backward::default();
    for _ in 0..super::MAX_WALKS {
        let before = found.clone();
        walk_backward(cx, nodes, digits, &mut found);
        if !cx.has_bodies() || found == before {
            break;
        }
    }
    found
}

fn walk_backward(cx: &Cx<'_>, nodes: &[Node], digits: &FxHashSet<Var>, found: &mut Backward) {
    for &node in nodes.iter().rev() {
        for var in flow::vars(cx.module, node).filter(|&v| carries(cx, v)) {
            let (mut to_exact, mut to_near, mut to_only) = (false, false, true);
            for (_, value) in flow::results_of(cx.module, var) {
                for reader in flow::readers_beyond_casts(cx.module, value) {
                    // An output of the model is a number, not an index.
                    let Some((reader, slot)) = reader.operand() else {
                        to_only = false;
                        continue;
                    };
                    let sink = leaves(cx, reader);
                    to_exact |= sink.is_some();
                    to_near |= sink == Some(Sink::Integer);
                    let mut leads = sink == Some(Sink::Integer)
                        && dtype_of_result(cx, reader).is_some_and(is_wide_integer);
                    if let Some(reader) = flow::reader_var(cx.module, reader, slot) {
                        to_exact |= found.exact.contains(&reader);
                        // A path continues before a product only if the product multiplies digits.
                        let near = found.near.contains(&reader)
                            && (!cx.is_product(reader)
                                || found.only.contains(&reader) && digits.contains(&reader));
                        to_near |= near;
                        leads |= near && found.only.contains(&reader);
                    }
                    if let Some(near) = outcome(cx, reader, found) {
                        to_near |= near;
                        leads |= near;
                    }
                    to_only &= leads || is_remainder(cx, reader);
                }
            }
            if to_exact {
                found.exact.insert(var);
            }
            let allow = flow::decision(cx.module, var).is_none_or(|d| d.class == Class::Allow);
            if to_near && (!allow || cx.is_product(var)) {
                found.near.insert(var);
                if to_only {
                    found.only.insert(var);
                }
            }
        }
    }
}

/// Returns true if the outcome of a comparison leads into casts to integers and nowhere else; `None` if the node does
/// not compare.
fn outcome(cx: &Cx<'_>, node: Node, found: &Backward) -> Option<bool> {
    cx.kind(node).filter(|&kind| op::compares(kind))?;
    let outcome = cx.module.node(node).result(0)?;
    let mut readers = flow::readers(cx.module, outcome).into_iter();
    let leads = |node| flow::vars(cx.module, node).any(|var| found.only.contains(&var));
    Some(readers.all(|reader| reader.operand().is_some_and(|(node, _)| leads(node))))
}

/// True if a node subtracts the integer part of a value from the value: the result is a position within a cell.
fn is_remainder(cx: &Cx<'_>, node: Node) -> bool {
    let data = cx.module.node(node);
    let whole = data.operand(1).and_then(|value| cx.module.producer(flow::behind_casts(cx.module, value)));
    let behind = |node| cx.operand(node, 0).map(|of| flow::behind_casts(cx.module, of));
    let behind_self = behind(node);
    let is_whole = |(node, _): (Node, u32)| {
        matches!(cx.kind(node), Some(OpKind::Floor | OpKind::Round | OpKind::Ceil))
            && behind(node) == behind_self
    };
    cx.kind(node) == Some(OpKind::Sub) && whole.is_some_and(is_whole)
}
