//! `observe`: operators with values that come near an end of the range of the format on data stay fp32.
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
//! downstream that comes near an end has an observation of its own, so nothing downstream is tainted. The exception are
//! operators that a kernel of the target frees (the rule `kernel`): their results no longer fit the
//! condition under which their readers are free, so they taint as a denied operator does.
//!
//! A mask is no large number of the data: a value whose number of largest magnitude is negative and fits the format stays
//! free if only softmaxes read it, perhaps through additions and operators that move numbers.

use crate::graph::flow::{self, Var};
use crate::graph::sequences::Groups;
use crate::pass::input_ranges::InputRanges;
use crate::pass::invariants::Invariants;
use crate::pass::observed::{Observed, number_of};
use crate::pass::options::{FORMAT, OBSERVED, PassOption, Setting, Spelled, settings};
use crate::pass::{Changed, Pass, PassCx, PassError, Warning};
use crate::precision::between::is_between;
use crate::precision::guard::LARGE_WEIGHTS;
use crate::precision::taint::{deny, marks};
use ampc_ir::convert::{max_finite, min_normal};
use ampc_ir::module::Rule;
use ampc_ir::op::{self, Class, OpKind, Sign};
use ampc_ir::verify::name_of;
use ampc_ir::{DType, Module, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// The pass `observe`.
#[derive(Clone, Debug)]
pub struct Observe {
    /// The format that the model is lowered to: f16 or bf16.
    pub to: DType,
    /// The values that came near an end of the range on data.
    pub observed: Observed,
}

impl Spelled for Observe {
    const NAME: &'static str = "observe";
    const ABOUT: &'static str = "keeps operators in fp32 whose values come near an end of the range on data";
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
        let observed = self.observed.values(module);
        if observed.is_empty() {
            return Ok(Changed::No);
        }
        let (mut denied, mut bound) = (FxHashSet::default(), Vec::new());
        let vars: Vec<Var> =
            flow::nodes(module).into_iter().flat_map(|node| flow::vars(module, node)).collect();
        for var in vars {
            let Some(evidence) = self.evidence(module, &observed, var) else { continue };
            let decision = &mut module.node_mut(var.node).decisions[usize::from(var.var)];
            if is_between(decision) {
                bound.push(var);
            }
            decision.class = Class::Deny;
            decision.reason = Arc::new(Rule::Observed { evidence }.into());
            denied.insert(var.node);
        }
        if !bound.is_empty() {
            let tainted = marks(module, &Groups::new(module), &bound, &InputRanges::default(), |_, _| {});
            deny(module, &tainted);
        }
        let is_untrue = |warning: &Warning| {
            warning.code == LARGE_WEIGHTS && warning.node.is_some_and(|node| denied.contains(&node))
        };
        cx.results.withdraw(is_untrue);
        Ok(Changed::when(!denied.is_empty()))
    }
}

impl Observe {
    /// The evidence that a variable reads or makes a value near an end of the range; `None` for variables that are
    /// decided, and that have no such value.
    fn evidence(&self, module: &Module, observed: &FxHashMap<Value, f64>, var: Var) -> Option<String> {
        if !flow::is_free(module, var) {
            return None;
        }
        let values = flow::operands_of(module, var).chain(flow::results_of(module, var));
        let near = |value: Value| {
            let number =
                number_of(module, observed, value).filter(|number| !self.is_mask(module, value, *number))?;
            Some((value, number))
        };
        let (value, number) = values.map(|(_, value)| value).find_map(near)?;
        Some(self.sentence(&name_of(module, flow::behind_casts(module, value)), number))
    }

    /// True if a number is low enough for a mask, fits, and only softmaxes read the value.
    fn is_mask(&self, module: &Module, value: Value, number: f64) -> bool {
        number <= -1.0 && number >= -self.most() && ends_in_softmax(module, value)
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

/// The maximal number of values between a mask and its softmaxes.
const MAX_VALUES: usize = 64;

/// True if softmaxes are the only readers of a value, through additions and operators that move numbers.
fn ends_in_softmax(module: &Module, value: Value) -> bool {
    let mut seen: FxHashSet<Value> = FxHashSet::from_iter([value]);
    let mut work = vec![value];
    while let Some(value) = work.pop() {
        let readers = flow::readers(module, value);
        if module.is_output(value) || readers.is_empty() || seen.len() > MAX_VALUES {
            return false;
        }
        for reader in readers {
            let Some((node, slot)) = reader.operand() else { return false };
            let Some(kind) = module.node(node).schema().map(|schema| schema.kind) else { return false };
            let passes_on = kind == OpKind::Add || op::moves(kind, slot as usize) == Some(Sign::Kept);
            match module.node(node).result(0) {
                _ if matches!(kind, OpKind::Softmax | OpKind::LogSoftmax) => {}
                Some(result) if passes_on => work.extend(seen.insert(result).then_some(result)),
                _ => return false,
            }
        }
    }
    true
}
