//! Large constants on their way into sums and products.
//!
//! A mask holds a number near the end of the range in some places of a tensor, so that Softmax gives those places no
//! weight. The mask need not be a separate constant: it may be one branch of a Where, whose other branch is computed,
//! or the factor of a computed 0 or 1. In f16 −65504 − 40 rounds to −∞, and a row of −∞ has no Softmax.
//!
//! One walk in program order (more walks only if there are bodies) finds the values that may *hold* a constant beyond
//! half the range, whatever their other elements: constants, results of operators that move constants, and products. A
//! sum of such a value stays fp32, and so does a product of a constant that does not even fit. A product that leaves
//! the range because of another constant stays fp32 too. Operators that choose by value (Max, Clip, MaxPool) do not
//! pass a mask on, because a bound may never be used. Any other operator ends the walk, as does a quotient by a
//! computed value, which is usually a square root of a width. Linear; reads only the constants that are operands of
//! moving, adding, multiplying and dividing operators.
//!
//! ```text
//! const %m : f32 = -3.4e38
//! %w = Where(%keep, %zero, %m)     moves its branches, so %w holds the constant
//! %s = Add(%scores, %w)            fp32: a sum of a value that holds the constant
//! %p = Softmax(%s)                 does not move its operand: the walk ends
//! ```

use super::constants::{Known, Origin};
use super::{Cx, OutOfRange};
use crate::graph::flow::{self, Var};
use crate::pass::PassError;
use ampc_ir::op::{self, Class, OpKind};
use ampc_ir::views::resolve_captures;
use ampc_ir::{Node, Value};
use rustc_hash::FxHashMap;

/// A large constant that a value may hold.
#[derive(Clone, Copy)]
struct LargeConstant {
    /// The magnitude of the constant in the format, scaled by the factors on the way.
    magnitude: f64,
    /// The origin of the constant.
    from: Origin,
    /// The magnitude of the constant at its origin.
    max_abs: f32,
}

impl LargeConstant {
    /// True if the constant does not fit and no operator on the way scaled it down.
    fn is_beyond(&self, cx: &Cx<'_>) -> bool {
        // An earlier run may have clamped the constant to the largest number of the format.
        let max_abs = f64::from(self.max_abs);
        let exceeds = max_abs > cx.most() || cx.out_of_range == OutOfRange::Clamp && max_abs == cx.most();
        exceeds && self.magnitude >= cx.most()
    }
}

/// The effect of a node on the large constants that it reads.
enum Effect {
    /// The results hold this constant.
    Holds(LargeConstant),
    /// A sum with this constant leaves the range.
    Sum(LargeConstant),
    /// The product of this constant and this factor leaves the range.
    Product(LargeConstant, f64),
}

/// The guard.
pub(super) fn mask(cx: &mut Cx<'_>) -> Result<(), PassError> {
    let mut held: FxHashMap<Value, LargeConstant> = FxHashMap::default();
    for _ in 0..super::MAX_WALKS {
        let before = held.len();
        walk(cx, &mut held)?;
        if !cx.has_bodies() || held.len() == before {
            break;
        }
    }
    Ok(())
}

fn walk(cx: &mut Cx<'_>, held: &mut FxHashMap<Value, LargeConstant>) -> Result<(), PassError> {
    for node in flow::nodes(cx.module) {
        for port in
            flow::vars(cx.module, node).filter(|&var| flow::is_port(cx.module, var)).collect::<Vec<_>>()
        {
            let operands: Vec<Value> = flow::operands_of(cx.module, port).map(|(_, v)| v).collect();
            if let Some(what) = largest(cx, held, &operands, Some(port))? {
                held.extend(flow::results_of(cx.module, port).map(|(_, result)| (result, what)));
            }
        }
        multiplied(cx, held, node);
        let Some(kind) = cx.kind(node) else { continue };
        let (effect, to) = (effect(cx, held, node, kind)?, cx.to);
        // Operands of sums and products share the variable of the result.
        let var = flow::reader_var(cx.module, node, 0);
        match (effect, var) {
            (Some(Effect::Holds(what)), _) => {
                let results: Vec<Value> = cx.float_results(node).collect();
                held.extend(results.into_iter().map(|result| (result, what)));
            }
            (Some(Effect::Sum(what)), Some(var)) => {
                let (name, most) = (what.from.name(cx), what.max_abs);
                cx.deny(var, || format!("{name} up to {most:e} in a sum: beyond half the range of {to}"));
                if what.is_beyond(cx) {
                    let results: Vec<Value> = cx.float_results(node).collect();
                    held.extend(results.into_iter().map(|result| (result, what)));
                }
            }
            (Some(Effect::Product(what, by)), Some(var)) => {
                let (name, most) = (what.from.name(cx), what.max_abs);
                cx.deny(var, || format!("{name} up to {most:e} scaled by up to {by:e}: beyond {to}"));
            }
            (Some(Effect::Sum(_) | Effect::Product(..)) | None, _) => {}
        }
    }
    Ok(())
}

/// Denies allow variables of which an operand holds a constant that does not fit: the cast of the operand would make
/// the constant infinite.
fn multiplied(cx: &mut Cx<'_>, held: &FxHashMap<Value, LargeConstant>, node: Node) {
    for var in flow::vars(cx.module, node).collect::<Vec<_>>() {
        if flow::decision(cx.module, var).is_none_or(|d| d.class != Class::Allow) {
            continue;
        }
        let found = flow::operands_of(cx.module, var)
            .filter_map(|(_, v)| held.get(&resolve_captures(cx.module, v)).copied())
            .find(|what| what.is_beyond(cx));
        if let Some(what) = found {
            let (name, most, to) = (what.from.name(cx), what.max_abs, cx.to);
            cx.deny(var, || format!("{name} up to {most:e} in an operand: beyond the range of {to}"));
        }
    }
}

fn effect(
    cx: &mut Cx<'_>,
    held: &FxHashMap<Value, LargeConstant>,
    node: Node,
    kind: OpKind,
) -> Result<Option<Effect>, PassError> {
    let result = cx.float_results(node).next();
    let var = result.and_then(|result| flow::producer_var(cx.module, result));
    if op::adds(kind) {
        let operands: Vec<Value> = cx.module.node(node).formal_operands().iter().copied().flatten().collect();
        return Ok(largest(cx, held, &operands, var)?.map(Effect::Sum));
    }
    // Only these two operators multiply magnitudes; it is not a property of operators.
    if matches!(kind, OpKind::Mul | OpKind::Div) {
        return scaled(cx, held, node, var, kind == OpKind::Div);
    }
    let moved: Vec<Value> = cx.moved_operands(node).into_iter().map(|(value, _)| value).collect();
    if moved.is_empty() {
        return Ok(None);
    }
    let among_operands = largest(cx, held, &moved, var)?;
    let in_attributes = cx.moved_numbers(node).iter().find_map(|known| large(cx, known));
    Ok(among_operands.or(in_attributes).map(Effect::Holds))
}

/// Returns the largest of the large constants that the values hold for a variable that reads them.
fn largest(
    cx: &mut Cx<'_>,
    held: &FxHashMap<Value, LargeConstant>,
    values: &[Value],
    reader: Option<Var>,
) -> Result<Option<LargeConstant>, PassError> {
    let mut largest: Option<LargeConstant> = None;
    for &value in values {
        let Some(here) = held_by(cx, held, value, reader)? else { continue };
        if largest.is_none_or(|l| l.magnitude < here.magnitude) {
            largest = Some(here);
        }
    }
    Ok(largest)
}

/// Returns the large constant that a value holds for its reader. If the reader is low already, or pinned low, a
/// constant that does not fit is stored with infinities for that reader, unless it is clamped; such a constant does not
/// count.
fn held_by(
    cx: &mut Cx<'_>,
    held: &FxHashMap<Value, LargeConstant>,
    value: Value,
    reader: Option<Var>,
) -> Result<Option<LargeConstant>, PassError> {
    let value = resolve_captures(cx.module, value);
    if let Some(&held) = held.get(&value) {
        return Ok(Some(held));
    }
    let is_low = reader.is_some_and(|var| cx.is_infinite_beyond(var));
    let what = cx.known(value)?.and_then(|known| large(cx, &known));
    Ok(what.filter(|what| !(is_low && what.is_beyond(cx))))
}

/// Returns the largest known number, if it is large.
fn large(cx: &Cx<'_>, known: &Known) -> Option<LargeConstant> {
    // The stored magnitude is compared, so that a run on the rewritten model finds the same constant.
    let magnitude = cx.stored(known.stats.max_abs);
    let large = magnitude > cx.most() / 2.0;
    large.then_some(LargeConstant { magnitude, from: known.largest, max_abs: known.stats.max_abs })
}

/// Returns the effect of a product or quotient of a large constant.
fn scaled(
    cx: &mut Cx<'_>,
    held: &FxHashMap<Value, LargeConstant>,
    node: Node,
    var: Option<Var>,
    divides: bool,
) -> Result<Option<Effect>, PassError> {
    let data = cx.module.node(node);
    let (Some(a), Some(b)) = (data.operand(0), data.operand(1)) else { return Ok(None) };
    let (what, by) = match (held_by(cx, held, a, var)?, held_by(cx, held, b, var)?) {
        (Some(what), _) => (what, b),
        (None, Some(what)) if !divides => (what, a),
        (None, _) => return Ok(None),
    };
    let factor = match cx.known(by)? {
        Some(known) if divides => cx.stored(known.stats.min_abs).recip(),
        Some(known) => cx.stored(known.stats.max_abs),
        None if divides => return Ok(None),
        // A large constant times a value that holds a large constant leaves the range. A large constant times any other
        // computed value is treated as a mask times 0 or 1.
        None => held.get(&by).map_or(1.0, |other| other.magnitude),
    };
    let magnitude = what.magnitude * factor;
    Ok(if magnitude > cx.most() {
        Some(Effect::Product(what, factor))
    } else {
        (magnitude > cx.most() / 2.0).then_some(Effect::Holds(LargeConstant { magnitude, ..what }))
    })
}
