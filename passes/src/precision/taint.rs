//! `taint`: results of a dangerous operator stay fp32 until an operator that is always safe consumes them.
//!
//! A mark runs forward from every result of a deny variable, through infer and clear variables. A marked infer variable
//! becomes deny. A clear variable only passes the mark on, and so do casts from float to float, including casts of the
//! author, and sequences, from the elements put in to the elements taken out. Allow, discrete and fixed variables stop
//! the mark. This is the rule of TensorFlow's `auto_mixed_precision` (its deny set), without its clear tails.
//!
//! A variable that may be low between low neighbours marks its readers like a deny variable if its result is unbounded.
//! If its result is bounded, its readers stay free, and the mark becomes a condition of the cut (`marks`).
//! A norm that the guard `offset` denies marks nothing, because its results are of the size of its scale.
//!
//! Values between −1 and 1 (results of Softmax, Sigmoid, Sin, Cos, and values moved from them) are not dangerous by
//! their size: they mark a reader only on a path to an operator that amplifies errors (`numerics`). So a gate does not
//! keep its experts in fp32, and rotary tables do not keep queries and keys in fp32. One walk, linear.
//!
//! ```text
//! %e = Exp(%x)                 deny: a mark begins at its result
//! %r = Reshape(%e, %shape)     clear: passes the mark on
//! %s = Add(%r, %b)             infer: the mark makes it deny, with the rule `taint`
//! %y = MatMul(%s, %w)          allow: stops the mark
//! %z = Add(%y, %c)             infer: stays free
//! ```

use crate::analysis::numerics::{Interval, Numerics, Sink};
use crate::graph::flow::{self, Reader, Var};
use crate::graph::keys::node_key;
use crate::graph::paths::Paths;
use crate::graph::sequences::Groups;
use crate::pass::input_ranges::InputRanges;
use crate::pass::invariants::Invariants;
use crate::pass::options::{PassOption, RANGES, Setting, Spelled, print_ranges, settings};
use crate::pass::{Changed, Pass, PassCx, PassError};
use crate::policy::guards::{GuardDef, GuardKind};
use crate::precision::between::{self, Growth, is_between};
use ampc_ir::module::{Decision, Reason, Rule};
use ampc_ir::op::{self, Class};
use ampc_ir::{DType, Module, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::sync::Arc;

/// The pass `taint`.
#[derive(Clone, Debug, Default)]
pub struct Taint {
    /// The ranges of inputs.
    pub ranges: InputRanges,
}

impl Spelled for Taint {
    const NAME: &'static str = "taint";
    const ABOUT: &'static str = "keeps operators downstream of a denied operator in fp32";
    const OPTIONS: &'static [PassOption<Self>] = &[PassOption {
        def: RANGES,
        print: |pass| print_ranges(&pass.ranges),
        read: |pass, given| given.ranges().map(|ranges| pass.ranges = ranges),
    }];
    fn blank() -> Self {
        Taint::default()
    }
}

impl Pass for Taint {
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
    fn run(&self, module: &mut Module, _cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        self.ranges.check(module)?;
        let is_origin = |var: &Var| flow::decision(module, *var).is_some_and(|d| taints(module, *var, d));
        let vars = flow::nodes(module).into_iter().flat_map(|node| flow::vars(module, node));
        let origins: Vec<Var> = vars.filter(is_origin).collect();
        let tainted = marks(module, &Groups::new(module), &origins, &self.ranges, |_, _| {});
        deny(module, &tainted);
        Ok(Changed::when(!tainted.is_empty()))
    }
}

/// True if a variable marks its readers whatever the cut chooses.
fn taints(module: &Module, var: Var, decision: &Decision) -> bool {
    let kind = module.node(var.node).schema().map(|s| s.kind);
    let is_unbounded = || kind.and_then(between::growth) == Some(Growth::Unbounded);
    // The results of a norm are of the size of its scale, whatever it removes.
    let is_norm = kind.is_some_and(|kind| op::subtracts_mean(kind, 0));
    let by_offset = matches!(decision.reason.rule(), Rule::Guard { name, .. } if is_offset(name));
    decision.class == Class::Deny && !(is_norm && by_offset) || is_between(decision) && is_unbounded()
}

/// True for the name of the guard on offsets.
fn is_offset(name: &str) -> bool {
    GuardDef::of(name).is_some_and(|guard| guard.kind == GuardKind::Offset)
}

/// Returns the free infer variables that are marked, each with the variable where the first mark began. Calls `step`
/// for every step of a mark, from a variable to an infer or clear variable, each time that the step is taken.
pub(crate) fn marks(
    module: &Module,
    groups: &Groups,
    origins: &[Var],
    ranges: &InputRanges,
    mut step: impl FnMut(Var, Var),
) -> Vec<(Var, Var)> {
    let mut work: VecDeque<(Var, Var)> = origins.iter().map(|&var| (var, var)).collect();
    let harmless = Harmless::of(module, &work, ranges);
    let mut seen: FxHashSet<Var> = FxHashSet::default();
    let mut tainted: Vec<(Var, Var)> = Vec::new();
    while let Some((var, origin)) = work.pop_front() {
        // Elements taken out of a sequence are as dangerous as the elements put in.
        for &member in groups.get(var).map_or(&[][..], |group| &group.members) {
            let infers = |d: &Decision| d.class == Class::Infer && d.precision.is_none();
            if flow::decision(module, member).is_some_and(infers) && seen.insert(member) {
                tainted.push((member, origin));
            }
        }
        for value in groups.results(module, var) {
            // An output of the model has no variable to taint.
            let mut readers: Vec<Var> = flow::readers_beyond_casts(module, value)
                .into_iter()
                .filter(|&reader| !harmless.marks_nothing(module, value, reader))
                .filter_map(|reader| flow::var_of_reader(module, reader))
                .collect();
            readers.sort_unstable();
            for reader in readers {
                let Some(decision) = flow::decision(module, reader) else { continue };
                if matches!(decision.class, Class::Infer | Class::Clear) {
                    step(var, reader);
                }
                match decision.class {
                    Class::Infer if seen.insert(reader) => {
                        if decision.precision.is_none() {
                            tainted.push((reader, origin));
                            work.push_back((reader, origin));
                        }
                    }
                    Class::Clear if seen.insert(groups.leader(reader)) => work.push_back((reader, origin)),
                    Class::Infer
                    | Class::Clear
                    | Class::Allow
                    | Class::Promote
                    | Class::Discrete
                    | Class::Deny
                    | Class::Fixed => {}
                }
            }
        }
    }
    tainted
}

/// A test for values that need not mark their readers: values between −1 and 1 that reach no amplifier.
struct Harmless {
    /// `None` if nothing is denied, because then the numbers are not needed.
    numerics: Option<Numerics>,
}

impl Harmless {
    fn of(module: &Module, denied: &VecDeque<(Var, Var)>, ranges: &InputRanges) -> Harmless {
        // The set of divisors that vanish depends on the format. f16 has the smaller range, so none is missed.
        Harmless {
            numerics: (!denied.is_empty()).then(|| Numerics::of(module, DType::F16, ranges, f64::INFINITY)),
        }
    }

    /// True if a read of a value marks nothing: the value is small, and through this reader it reaches no amplifier.
    fn marks_nothing(&self, module: &Module, value: Value, reader: Reader) -> bool {
        let (Some(numerics), Reader::Operand(node, slot)) = (&self.numerics, reader) else { return false };
        let small = numerics.interval(module, value).is_some_and(Interval::is_within_one);
        small && !numerics.through(module, node, slot, DType::F16).some.any(Sink::AMPLIFIERS)
    }
}

/// Makes the first variable of each pair deny, with the second variable as the reason.
pub(super) fn deny(module: &mut Module, tainted: &[(Var, Var)]) {
    if tainted.is_empty() {
        return;
    }
    let paths = Paths::of(module);
    let mut reasons: FxHashMap<Node, Arc<Reason>> = FxHashMap::default();
    for (var, origin) in tainted {
        let reason = reasons.entry(origin.node).or_insert_with(|| {
            let op = node_key(module, origin.node);
            Arc::new(Reason::new(Rule::Taint { node: paths.path(origin.node).to_owned(), op }))
        });
        let reason = reason.clone();
        let decision = &mut module.node_mut(var.node).decisions[usize::from(var.var)];
        decision.class = Class::Deny;
        decision.reason = reason;
    }
}
