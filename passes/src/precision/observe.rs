//! `observe`: operators with values near an end of the range of the format, or far from 0 before a mean is subtracted, on data
//! stay fp32.
//!
//! A value is near an end of the range if its observed number of largest magnitude is near or beyond the largest finite
//! number of the format, or near or below its smallest normal number; the options have only such values. The operator
//! that makes such a value is denied, and so are its readers:
//!
//! ```text
//! options: @big:0=1e5, to=f16
//! %h = MatMul(%x, %w) @reads_x     low
//! %b = Mul(%h, %s)    @big         fp32: it makes %b
//! %c = Mul(%b, %t)    @reads_big   fp32: it reads %b
//! %d = Add(%c, %h)    @behind      low: its operands and its result are small
//! ```
//!
//! The pass runs after `taint`, so it adds operators to those that stay fp32 without data and frees none. A value
//! downstream that comes near an end has an observation of its own, so nothing downstream is tainted. Exception: an
//! operator with the rule `kernel` left its readers free on condition that it is low itself. Once it is denied, it taints
//! its readers as any denied operator does.
//!
//! If a mean is subtracted from a value that lies far from 0 on data, the subtraction stays fp32, and so do the operators that
//! make the value and the values far from 0 from which it is computed, back to a product:
//!
//! ```text
//! options: observed=%x=140:160+@sum:0=139:162
//! %f = MatMul(%x, %w)             low
//! %s = Add(%x, %f) @sum           fp32: it makes %s, in f16 with a spacing of 1/8
//! %n = LayerNormalization(%s)     fp32: it subtracts the mean of %s
//! ```
//!
//! Masks are exempt: a value whose number of largest magnitude is negative, with room for scores in front of the end of the
//! range, stays free if only softmaxes read it, perhaps through additions and operators that move numbers.

mod offsets;

pub use self::offsets::before_means;

use crate::graph::flow::{self, Reader, Var};
use crate::graph::sequences::Groups;
use crate::pass::input_ranges::InputRanges;
use crate::pass::invariants::Invariants;
use crate::pass::observed::{Observed, danger, number_of};
use crate::pass::options::{FORMAT, OBSERVED, PassOption, Setting, Spelled, settings};
use crate::pass::{Changed, Pass, PassCx, PassError, Warning};
use crate::precision::between::is_between;
use crate::precision::guard::LARGE_WEIGHTS;
use crate::precision::taint::{deny, marks};
use ampc_ir::convert::{max_finite, min_normal};
use ampc_ir::module::Rule;
use ampc_ir::op::{self, Class, OpKind, Sign};
use ampc_ir::verify::name_of;
use ampc_ir::{DType, Module, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// The pass `observe`.
#[derive(Clone, Debug)]
pub struct Observe {
    /// The format that the model is lowered to: f16 or bf16.
    pub to: DType,
    /// The observations on data.
    pub observed: Observed,
}

impl Spelled for Observe {
    const NAME: &'static str = "observe";
    const ABOUT: &'static str = "keeps operators in fp32 whose values on data are large, tiny or far from 0";
    const OPTIONS: &'static [PassOption<Self>] = &[
        PassOption {
            def: FORMAT,
            print: |pass| Some(Setting::word(pass.to)),
            read: |pass, given| given.format().map(|to| pass.to = to),
        },
        PassOption {
            def: OBSERVED,
            print: |pass| (!pass.observed.is_empty()).then(|| Setting::Text(pass.observed.to_string())),
            read: |pass, given| given.observed().map(|observed| pass.observed = observed),
        },
    ];
    fn blank() -> Self {
        Observe { to: DType::F16, observed: Observed::default() }
    }
}

impl Pass for Observe {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn options(&self) -> Vec<(&'static str, Setting)> {
        settings(self)
    }
    fn requires(&self) -> Invariants {
        Invariants::CORE.with(Invariants::CLASSIFIED)
    }
    fn revokes(&self) -> Invariants {
        Invariants::ASSIGNED.with(Invariants::LOWERED)
    }
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        if let [first, others @ ..] = &self.observed.unknown_in(module)[..] {
            let others =
                if others.is_empty() { String::new() } else { format!(" and {} others", others.len()) };
            cx.warn(
                "observe.unknown",
                None,
                format!("`{first}`{others}: no such value, so its range is not used"),
            );
        }
        if self.observed.is_empty() {
            return Ok(Changed::No);
        }
        let offsets = offsets::on_way_to_means(module, &self.observed);
        let found = Found { of: self, masks: masks(module), observed: self.observed.values(module) };
        let vars = flow::nodes(module).into_iter().flat_map(|node| flow::vars(module, node));
        let mut near: Vec<(Var, String)> =
            vars.filter_map(|var| Some((var, found.evidence(module, var)?))).collect();
        near.extend(offsets.into_iter().filter(|&(var, _)| flow::is_free(module, var)));
        // Before they are denied, because a denied variable stops the marks of others.
        let is_bound = |var: &Var| flow::decision(module, *var).is_some_and(is_between);
        let bound: Vec<Var> = near.iter().map(|&(var, _)| var).filter(is_bound).collect();
        let mut tainted = match bound.is_empty() {
            true => Vec::new(),
            false => marks(module, &Groups::new(module), &bound, &InputRanges::default(), |_, _| {}),
        };
        let mut denied: FxHashSet<Var> = FxHashSet::default();
        for (var, evidence) in near {
            if !denied.insert(var) {
                continue;
            }
            let decision = &mut module.node_mut(var.node).decisions[usize::from(var.var)];
            decision.class = Class::Deny;
            decision.reason = Arc::new(Rule::Observed { evidence }.into());
        }
        tainted.retain(|&(var, _)| denied.insert(var));
        deny(module, &tainted);
        let denied: FxHashSet<Node> = denied.into_iter().map(|var| var.node).collect();
        let is_untrue = |warning: &Warning| {
            warning.code == LARGE_WEIGHTS && warning.node.is_some_and(|node| denied.contains(&node))
        };
        cx.results.withdraw(is_untrue);
        Ok(Changed::when(!denied.is_empty()))
    }
}

/// The observed values of a module.
struct Found<'a> {
    of: &'a Observe,
    observed: FxHashMap<Value, f64>,
    /// The values that only softmaxes read.
    masks: FxHashSet<Value>,
}

impl Found<'_> {
    /// The evidence that a variable reads or makes a value near an end of the range; `None` for variables that are
    /// decided, and that have no such value.
    fn evidence(&self, module: &Module, var: Var) -> Option<String> {
        if !flow::is_free(module, var) {
            return None;
        }
        let values = flow::operands_of(module, var).chain(flow::results_of(module, var));
        let near = values.filter_map(|(_, value)| {
            let number = number_of(module, &self.observed, value)?;
            let is_mask = number >= self.of.lowest_mask() && number <= -1.0 && self.masks.contains(&value);
            (!is_mask).then_some((value, number))
        });
        let danger = |number| danger(number, self.of.to);
        let (value, number) = near.reduce(|a, b| if danger(b.1) > danger(a.1) { b } else { a })?;
        Some(self.of.sentence(&name_of(module, flow::behind_casts(module, value)), number))
    }
}

impl Observe {
    /// The lowest number of a mask: scores of up to a quarter of the range may be added to it.
    fn lowest_mask(&self) -> f64 {
        -0.75 * self.most()
    }

    fn most(&self) -> f64 {
        max_finite(self.to).unwrap_or(f64::INFINITY)
    }

    fn sentence(&self, name: &str, number: f64) -> String {
        let (to, magnitude) = (self.to, number.abs());
        let least = min_normal(self.to).unwrap_or(0.0);
        #[expect(clippy::cast_possible_truncation, reason = "magnitudes of f32 values")]
        let shown = number as f32;
        let reaches = if number < 0.0 { "goes down to" } else { "goes up to" };
        match magnitude < 1.0 {
            false if magnitude > self.most() => format!("`{name}` {reaches} {shown:e} on data, beyond {to}"),
            false => {
                let factor = self.most() / magnitude;
                format!(
                    "`{name}` {reaches} {shown:e} on data, a factor of {factor:.1} from the end of the range of {to}"
                )
            }
            true if magnitude < least => {
                format!(
                    "`{name}` has magnitudes up to {:e} on data, below the normal range of {to}",
                    shown.abs()
                )
            }
            true => {
                let factor = magnitude / least;
                format!(
                    "`{name}` has magnitudes up to {:e} on data, a factor of {factor:.1} from the end of the normal range of {to}",
                    shown.abs()
                )
            }
        }
    }
}

/// The values that softmaxes alone read, through additions and operators that move numbers. One walk from readers to the
/// values that they read.
fn masks(module: &Module) -> FxHashSet<Value> {
    let mut found: FxHashSet<Value> = FxHashSet::default();
    let inputs = module.graph(module.main()).inputs().iter().copied();
    let results = flow::nodes(module)
        .into_iter()
        .rev()
        .flat_map(|node| module.node(node).results().iter().flatten().copied().collect::<Vec<_>>());
    for value in results.chain(inputs) {
        let readers = flow::readers(module, value);
        let ends = |reader: &Reader| {
            let Some((node, slot)) = reader.operand() else { return false };
            let Some(kind) = module.node(node).schema().map(|schema| schema.kind) else { return false };
            let is_softmax = matches!(kind, OpKind::Softmax | OpKind::LogSoftmax)
                || kind == OpKind::Attention && slot == 3;
            let passes_on = kind == OpKind::Add || op::moves(kind, slot as usize) == Some(Sign::Kept);
            let mut results = module.node(node).results().iter().flatten();
            is_softmax || passes_on && results.all(|result| found.contains(result))
        };
        if !readers.is_empty() && !module.is_output(value) && readers.iter().all(ends) {
            found.insert(value);
        }
    }
    found
}
