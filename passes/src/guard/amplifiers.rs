//! Guards on what makes small errors large: what is rounded on the way there, and how it comes about.
//!
//! Each asks what a variable holds and what it leads to ([`numerics`](crate::numerics)).

use super::Cx;
use crate::cost::Sizes;
use crate::flow::{self, Var};
use crate::numerics::{Held, Lead, Leads, is_plain_product, squares, subtracts, terms};
use crate::pass::PassError;
use ampc_ir::op::{self, Class, OpKind};
use ampc_ir::views::NodeView;
use ampc_ir::{Node, Value};

/// Numbers of a range that is known to be smaller than this are no farther off than scores of ordinary size are.
pub(super) const SMALL: f64 = 16.0;

impl Cx<'_> {
    /// What the results of a variable hold.
    pub(super) fn held(&self, var: Var) -> Held {
        let results = flow::results_of(self.module, var);
        results.fold(Held::NOTHING, |held, (_, value)| held | self.numerics.held(self.module, value))
    }

    /// What the results of a variable lead to.
    pub(super) fn leads(&self, var: Var) -> Leads {
        let read = flow::results_of(self.module, var).filter(|&(_, value)| {
            self.module.uses(value).next().is_some() || self.module.output_slots(value).next().is_some()
        });
        read.map(|(_, value)| self.numerics.leads(self.module, value)).reduce(Leads::and).unwrap_or_default()
    }

    fn class(&self, var: Var) -> Option<Class> {
        flow::decision(self.module, var).map(|decision| decision.class)
    }

    /// Whether a variable is that of a product of its operands.
    pub(super) fn is_product(&self, var: Var) -> bool {
        self.class(var) == Some(Class::Allow) && self.kind(var.node).is_some_and(is_plain_product)
    }

    /// Whether a variable may be denied for what it leads to: what is between products.
    fn is_between(&self, var: Var) -> bool {
        matches!(self.class(var), Some(Class::Infer | Class::Clear))
    }

    /// Whether the range of a value is unknown, and nothing says that it is small.
    fn is_unknown(&self, value: Value) -> bool {
        let small = self.numerics.interval(self.module, value).is_some_and(|i| i.magnitude() <= SMALL);
        self.numerics.held(self.module, value).has(Held::UNKNOWN) && !small
    }

    /// Whether a constant has large numbers of several magnitudes: a table of distances, not a mask.
    fn is_spread(&mut self, value: Value) -> Result<bool, PassError> {
        let stats = self.known(value)?.map(|known| known.stats);
        Ok(stats.is_some_and(|stats| f64::from(stats.max_abs) > SMALL && stats.min_abs < stats.max_abs / 2.0))
    }

    fn operand(&self, node: Node, slot: usize) -> Option<Value> {
        self.module.node(node).operand(slot)
    }
}

/// Where a way ends, in words.
fn end(leads: Leads) -> &'static str {
    leads.amplifier().map_or("what makes small errors large", |row| row.why)
}

/// Sums with numbers of unknown range that lead to an exponent: a mask that is an input, a slope times a position; and
/// with a table of such.
///
/// Such a number may be as large as it likes, and what is added to it keeps the digits that are left; in f16 a mask of
/// −1e9 is −∞ besides, and a row of those has no Softmax.
pub(super) fn scores(cx: &mut Cx<'_>) -> Result<(), PassError> {
    for var in cx.free_vars() {
        let leads = cx.leads(var);
        let unknown = match cx.kind(var.node) {
            Some(kind) if op::adds(kind) && leads.some.any(Lead::EXPONENT) => {
                let operands: Vec<Value> =
                    flow::operands_of(cx.module, var).map(|(_, value)| value).collect();
                let mut unknown = None;
                for value in operands {
                    // 1 − m is a mask, whatever m was.
                    let stays = cx.held(var).has(Held::UNKNOWN);
                    if stays && cx.is_unknown(value) || cx.is_spread(value)? {
                        unknown = unknown.or(Some(value));
                    }
                }
                unknown
            }
            // The mask is added inside.
            Some(OpKind::Attention) if flow::reader_var(cx.module, var.node, MASK) == Some(var) => {
                cx.operand(var.node, MASK as usize).filter(|&mask| cx.is_unknown(mask))
            }
            _ => None,
        };
        if let Some(value) = unknown {
            let name = cx.name(value);
            let to = leads.amplifier().map_or("the scores of Attention", |row| row.why);
            cx.deny(var, || format!("adds `{name}`, which may be large, on the way to {to}"));
        }
    }
    Ok(())
}

/// The mask of Attention.
const MASK: u32 = 3;

/// What leads to an angle or a coordinate, from the last product on; the product too, if it leads nowhere else, or is
/// one of numbers of unknown range.
///
/// A position of 300 is off by 1/8 in f16 and by 1 in bf16. A product of what Sin and Cos make is a layer of a network
/// of waves and no position: it stays as it is.
pub(super) fn place(cx: &mut Cx<'_>) -> Result<(), PassError> {
    for var in cx.free_vars() {
        let leads = cx.leads(var);
        if cx.is_between(var) && leads.some.any(Lead::PLACE) {
            cx.deny(var, || format!("on the way to {}", end(leads)));
        } else if cx.is_product(var)
            && leads.some.any(Lead::PLACE)
            && !cx.held(var).has(Held::WAVES)
            && (leads.all.any(Lead::PLACE) || multiplies_positions(cx, var))
        {
            cx.deny(var, || format!("the last product before {}", end(leads)));
        }
    }
    Ok(())
}

/// Whether a product is one of a few numbers of unknown range each: of a time, or of coordinates.
fn multiplies_positions(cx: &Cx<'_>, var: Var) -> bool {
    let unknown = flow::operands_of(cx.module, var).any(|(_, value)| cx.is_unknown(value));
    let view = NodeView::new(cx.module, var.node).filter(|_| unknown);
    view.is_some_and(|view| terms(cx.module, &view, Sizes::default().other) <= MAX_COORDINATES)
}

/// A product of more numbers than this is one of features.
const MAX_COORDINATES: u64 = 16;

/// Squares and sums of them on the way to a root, a logarithm or a divisor, and the products that are squared before a
/// logarithm.
///
/// The square of 256 is beyond f16 and that of 2e-4 is 0 in it, while the root of the sum is of ordinary size. What is
/// squared before a logarithm is small where others are large: a spectrum, of which the logarithm shows every digit.
pub(super) fn square(cx: &mut Cx<'_>) -> Result<(), PassError> {
    for var in cx.free_vars() {
        let (held, leads) = (cx.held(var), cx.leads(var));
        let (between, product) = (cx.is_between(var), cx.is_product(var));
        // What is summed is what the guard `norm` looks at.
        let summed = squares(cx.module, var.node) && leads.some.any(Lead::SUM);
        if (between || product) && held.has(Held::SQUARES) && leads.some.any(Lead::ZERO) && !summed {
            cx.deny(var, || format!("squares on the way to {}", end(leads)));
        } else if between && leads.some.any(Lead::LOG_OF_SQUARES) {
            cx.deny(var, || "is squared before a logarithm".into());
        } else if product && leads.all.any(Lead::LOG_OF_SQUARES) {
            cx.deny(var, || "a product that is squared before a logarithm".into());
        }
    }
    Ok(())
}

/// Differences of nearly equal numbers: E[x²] − E[x]², ‖a‖² + ‖b‖² − 2ab, an image less its blur, those that are scaled
/// up, and those that are divided by, rooted or taken the logarithm of. So are products that are divided by norms.
pub(super) fn difference(cx: &mut Cx<'_>) -> Result<(), PassError> {
    for var in cx.free_vars() {
        let leads = cx.leads(var);
        let (between, product) = (cx.is_between(var), cx.is_product(var));
        let node = var.node;
        if between && cx.numerics.is_difference_of_squares(cx.module, node) {
            cx.deny(var, || "a difference of squares".into());
        } else if between && cx.numerics.is_distance(cx.module, node) {
            cx.deny(var, || "a distance: sums of squares and a product".into());
        } else if product && (leads.some.any(Lead::DISTANCE) || adds_norms(cx, node)) {
            cx.deny(var, || "a product of which a difference or a quotient is of another size".into());
        } else if between && leads.some.any(Lead::DIFFERENCE) {
            cx.deny(var, || "on the way to a difference of nearly equal numbers".into());
        } else if between && subtracts(cx.module, node) && leads.some.any(Lead::ZERO) {
            cx.deny(var, || format!("a difference on the way to {}", end(leads)));
        }
    }
    Ok(())
}

/// Whether what a product adds are sums of squares.
fn adds_norms(cx: &Cx<'_>, node: Node) -> bool {
    let third = cx.operand(node, 2).filter(|_| cx.kind(node) != Some(OpKind::Einsum));
    third.is_some_and(|value| cx.numerics.held(cx.module, value).has(Held::SUMMED_SQUARES))
}

/// What rounds to 1 or to 0 before its distance from there counts: probabilities before 1 − p, logarithms, divisions.
pub(super) fn bound(cx: &mut Cx<'_>) -> Result<(), PassError> {
    for var in cx.free_vars() {
        let leads = cx.leads(var);
        if cx.is_product(var) && leads.all.any(Lead::ONE) {
            cx.deny(var, || format!("the last product before {}", end(leads)));
        }
        if !cx.is_between(var) {
            continue;
        }
        let to_zero = leads.some.any(Lead::ZERO) && is_probability(cx, var);
        if leads.some.any(Lead::ONE) || to_zero {
            let limit = if to_zero { "0 or 1" } else { "1" };
            cx.deny(var, || format!("may round to {limit} on the way to {}", end(leads)));
        }
    }
    Ok(())
}

/// Whether a variable makes what is between 0 and 1 and never either.
fn is_probability(cx: &Cx<'_>, var: Var) -> bool {
    matches!(cx.kind(var.node), Some(OpKind::Sigmoid | OpKind::Softmax))
}
