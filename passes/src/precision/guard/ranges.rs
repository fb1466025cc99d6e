//! Guards on the values of constants.

use super::constants::{Known, Origin};
use super::{Cx, OutOfRange};
use crate::analysis::numerics::{Interval, is_product, worst_rounding_error};
use crate::graph::flow::{self, Reader, Var};
use crate::pass::PassError;
use ampc_ir::convert::{min_normal, unit_roundoff};
use ampc_ir::op::{self, Class, OpKind};
use ampc_ir::{DType, Value};
use rustc_hash::FxHashSet;

/// The maximal number of values of a constant that counts as written by hand, not as a trained weight.
pub(super) const FEW: u64 = 16;

/// Denies the readers of constants with finite values beyond the range, or fails.
pub(super) fn range(cx: &mut Cx<'_>) -> Result<(), PassError> {
    for var in cx.free_vars() {
        // A variable without operands only makes a constant. It is no error: the constant stays fp32 if no reader can
        // be lowered.
        let reads = flow::operands_of(cx.module, var).next().is_some();
        for known in cx.constants_at(var)? {
            let stats = &known.stats;
            if stats.overflow == 0 {
                continue;
            }
            match (known.largest, cx.out_of_range) {
                (_, OutOfRange::Error) if reads => return Err(out_of_range(cx, var, &known)),
                // A number in an attribute of an operator is not converted, so nothing clamps it.
                (Origin::Constant(_) | Origin::Fill(_), OutOfRange::Clamp) => continue,
                (_, OutOfRange::Keep | OutOfRange::Error)
                | (Origin::Attr(..) | Origin::Computed(_), OutOfRange::Clamp) => {}
            }
            let (name, to) = (known.largest.name(cx), cx.to);
            cx.deny(var, || {
                format!(
                    "{name}: {} of {} values beyond {to}, {:e} to {:e}",
                    stats.overflow, stats.count, stats.min, stats.max
                )
            });
        }
    }
    Ok(())
}

/// Denies variables with an operand or result that leaves the format, by the ranges of inputs that the user gives. For
/// example, with `x` from 0 to 1e6 in f16:
///
/// ```text
/// %s = Mul(%x, %millionth)     fp32: %x goes up to 1e6
/// %y = MatMul(%s, %w)          low: %s goes up to 1
/// ```
pub(super) fn input_ranges(cx: &mut Cx<'_>) {
    for var in cx.free_vars() {
        if let Some((value, Interval { lo, hi })) = value_beyond_format(cx, var) {
            let (name, to) = (cx.name(value), cx.to);
            cx.deny(var, || {
                format!("`{name}` ranges from {lo:e} to {hi:e} for the given input ranges, beyond {to}")
            });
        }
    }
}

/// The first operand or result of a variable that leaves the format by the ranges of inputs, with its interval.
fn value_beyond_format(cx: &Cx<'_>, var: Var) -> Option<(Value, Interval)> {
    let mut values = flow::operands_of(cx.module, var).chain(flow::results_of(cx.module, var));
    values.find_map(|(_, value)| {
        let interval = cx.numerics.interval_of_inputs(cx.module, value)?;
        // An infinite end means that nothing is known.
        let (most, magnitude) = (cx.most(), interval.magnitude());
        let leaves = magnitude.is_finite() && magnitude > most || interval.lo > most || interval.hi < -most;
        leaves.then_some((value, interval))
    })
}

/// The error for a constant that a variable reads or has in an attribute.
fn out_of_range(cx: &Cx<'_>, var: Var, known: &Known) -> PassError {
    let (remedy, node, value) = match known.largest {
        Origin::Constant(value) | Origin::Fill(value) | Origin::Computed(value) => {
            ("pin its readers to fp32, or use `--out-of-range keep` or `clamp`", var.node, Some(value))
        }
        // Attributes are not converted, so nothing clamps them.
        Origin::Attr(node, _) => ("pin the node to fp32, or use `--out-of-range keep`", node, None),
    };
    let data = cx.module.node(node);
    let beside = || data.formal_operands().iter().chain(data.results()).copied().flatten().next();
    PassError::OutOfRange {
        what: known.largest.name(cx),
        format: cx.to,
        count: known.stats.overflow,
        min: f64::from(known.stats.min),
        max: f64::from(known.stats.max),
        remedy,
        node,
        value: value.or_else(beside).expect("a node with a variable has an operand or a result"),
    }
}

/// Returns a warning for each allow variable whose constants alone bring results near the end of the range: a product
/// or a bias of an eighth of the range. These variables stay low, because the size of the other operand is unknown.
pub(super) fn large_weights(cx: &mut Cx<'_>) -> Result<Vec<(Var, String)>, PassError> {
    let limit = cx.most() / 8.0;
    let advice = if cx.to == DType::BF16 {
        "no 16-bit format has more: pin the node and its readers to fp32"
    } else {
        "bf16 has it, or pin the node and its readers to fp32"
    };
    let mut found = Vec::new();
    for var in cx.free_vars() {
        if flow::decision(cx.module, var).map(|d| d.class) != Some(Class::Allow) {
            continue;
        }
        for known in cx.constants_at(var)? {
            let stats = &known.stats;
            // Values beyond the range are reported when the constant is converted.
            if stats.overflow == 0 && f64::from(stats.max_abs) > limit {
                let (mut name, to) = (known.largest.name(cx), cx.to);
                if !matches!(known.largest, Origin::Attr(..)) {
                    name = format!("{name} of {}", cx.module.op_name(var.node).1);
                }
                found.push((
                    var,
                    format!(
                        "{name} goes up to {:e}: results may leave the range of {to}; {advice}",
                        stats.max_abs
                    ),
                ));
            }
        }
    }
    Ok(found)
}

/// Denies the readers of constants of few values that would all become 0, and of factors and divisors below the normal
/// range that rounding changes by more than the unit roundoff. For example, a factor of 2e-7 is 1.8e-7 in f16: 11 %
/// off, where normal numbers are off by 0.05 %.
pub(super) fn underflow(cx: &mut Cx<'_>) -> Result<(), PassError> {
    let smallest = min_normal(cx.to).unwrap_or(0.0);
    let roundoff = unit_roundoff(cx.to).unwrap_or(1.0);
    for var in cx.free_vars() {
        for known in cx.constants_at(var)? {
            let (stats, to) = (&known.stats, cx.to);
            if stats.count <= FEW && stats.nonzero > 0 && stats.underflow == stats.nonzero {
                let name = known.largest.name(cx);
                cx.deny(var, || format!("{name} ({:e}) is 0 in {to}", stats.max_abs));
                continue;
            }
            if stats.nonzero == 0 || f64::from(stats.min_abs) >= smallest {
                continue;
            }
            let Some(use_of) = multiplied_by(cx, var, &known) else { continue };
            // Elements near 0 do not matter beside larger ones, unless something is divided by them.
            let (worst, name) = match use_of {
                Use::Divisor => (stats.min_abs, known.smallest.name(cx)),
                Use::Factor => (stats.max_abs, known.largest.name(cx)),
            };
            let lost = worst_rounding_error(&cx.numbers_of(&known, worst.into()), cx.to);
            if f64::from(worst) < smallest && lost > roundoff {
                let what = if matches!(use_of, Use::Divisor) { "divides by" } else { "multiplies by" };
                cx.deny(var, || format!("{what} {name}: {worst:e} has few digits in {to}, or none"));
            }
        }
    }
    Ok(())
}

/// Use of a constant by an operator.
#[derive(Clone, Copy)]
enum Use {
    Factor,
    Divisor,
}

/// Returns the use of a constant by which a variable multiplies or divides, if it does.
fn multiplied_by(cx: &Cx<'_>, var: Var, known: &Known) -> Option<Use> {
    let value = known.value?;
    let data = cx.module.node(var.node);
    let is_at =
        |slot: usize| data.operand(slot).is_some_and(|v| flow::resolve_captures(cx.module, v) == value);
    match cx.kind(var.node)? {
        OpKind::Div if is_at(1) => Some(Use::Divisor),
        OpKind::Div | OpKind::Mul => Some(Use::Factor),
        kind if is_product(kind) && (is_at(0) || is_at(1)) => Some(Use::Factor),
        _ => None,
    }
}

/// Denies the operators of an epsilon and the operators that it protects. An epsilon is a small constant that is added
/// to a divisor or to the operand of a root, power or logarithm, or that bounds the divisor or operand from below.
pub(super) fn eps(cx: &mut Cx<'_>) -> Result<(), PassError> {
    let smallest = min_normal(cx.to).unwrap_or(0.0);
    for var in cx.free_vars() {
        let Some(kind) = cx.kind(var.node) else { continue };
        // There are two ways to write an epsilon: an addition and a bound from below.
        if !op::adds(kind) && !matches!(kind, OpKind::Max | OpKind::Clip) {
            continue;
        }
        for known in cx.constants_at(var)? {
            let stats = &known.stats;
            if stats.count > FEW || stats.nonzero == 0 || f64::from(stats.min_abs) >= smallest {
                continue;
            }
            let Some(way) = way_to_sensitive(cx, var) else { continue };
            let (name, to) = (known.smallest.of_epsilon(cx), cx.to);
            for var in way {
                cx.deny(var, || {
                    format!("epsilon {name} = {:e} is below the normal range of {to}", stats.min_abs)
                });
            }
            // Operators that move the epsilon to its use must not round it either.
            cx.deny_movers(known.value, || format!("moves the epsilon {name}"));
        }
    }
    Ok(())
}

/// The maximal number of operators between an epsilon and the operator that it protects.
const MAX_STEPS: usize = 8;

/// Returns `start` and all variables of operators that are sensitive to a 0, if any such operator is reached through
/// infer and clear variables.
fn way_to_sensitive(cx: &Cx<'_>, start: Var) -> Option<Vec<Var>> {
    let mut sensitive_ones = Vec::new();
    let mut seen: FxHashSet<Var> = FxHashSet::default();
    let mut frontier = vec![start];
    for _ in 0..=MAX_STEPS {
        let mut next = Vec::new();
        for &var in &frontier {
            for (_, value) in flow::results_of(cx.module, var) {
                let readers = flow::readers_beyond_casts(cx.module, value).into_iter();
                // An output of the model is not sensitive to a 0.
                for (node, slot) in readers.filter_map(Reader::operand) {
                    let Some(reader) = flow::reader_var(cx.module, node, slot) else { continue };
                    let sensitive = cx.kind(node).is_some_and(|k| op::singular_at_zero(k, slot as usize));
                    let class = flow::decision(cx.module, reader).map(|d| d.class);
                    let on = matches!(class, Some(Class::Infer | Class::Clear));
                    if sensitive {
                        sensitive_ones.push(reader);
                    }
                    if (sensitive || on) && seen.insert(reader) {
                        next.push(reader);
                    }
                }
            }
        }
        frontier = next;
    }
    // Only the sensitive variables and the start are denied; the taint of the start covers the variables between.
    (!sensitive_ones.is_empty()).then(|| {
        sensitive_ones.push(start);
        sensitive_ones.sort_unstable();
        sensitive_ones.dedup();
        sensitive_ones
    })
}
