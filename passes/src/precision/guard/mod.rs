//! `guard`: finds patterns and ranges that make a node riskier than its class.
//!
//! A guard looks at free variables (f32, not pinned, not fixed). If the format would make the values of a variable
//! wrong, the guard makes the variable deny, with the evidence. A guarded variable taints like any deny variable: a
//! mask of −3.4e38 that must stay fp32 must not be narrowed one operator later. Each guard has a name, can be disabled,
//! and has a test that fails without it.

mod amplifiers;
mod constants;
mod integers;
mod masks;
mod near_one;
mod norms;
mod offsets;
mod ranges;
mod recurrences;

pub use crate::pass::statistics::{ConstantStats, Statistics};
pub use crate::policy::guards::{GUARDS, GuardDef, GuardKind, Judges};

use crate::analysis::numerics::Numerics;
use crate::graph::flow::{self, Var};
use crate::pass::input_ranges::InputRanges;
use crate::pass::invariants::Invariants;
use crate::pass::observed::{Observed, number_of, shortest};
use crate::pass::options::{
    FORMAT, PassOption, RANGES, Setting, Spelled, TRUSTED, option, print_ranges, settings,
};
use crate::pass::{Changed, Pass, PassCx, PassError};
use crate::policy::Policy;
use crate::spelling::words::quoted;
use ampc_ir::convert::{Conversion, can_convert, convert, max_finite};
use ampc_ir::module::{Def, Payload, Rule};
use ampc_ir::op::{Class, OpKind};
use ampc_ir::{DType, Module, Node, TensorData, Value};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Handling of constants with finite values beyond the range of the format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OutOfRange {
    /// The constant stays fp32, and so do its readers.
    #[default]
    Keep,
    /// The values become the largest finite value.
    Clamp,
    /// The rewrite fails.
    Error,
}

impl OutOfRange {
    /// All variants.
    pub const ALL: [OutOfRange; 3] = [OutOfRange::Keep, OutOfRange::Clamp, OutOfRange::Error];

    /// Returns the variant that a word names.
    pub fn of(word: &str) -> Option<OutOfRange> {
        OutOfRange::ALL.into_iter().find(|action| action.as_str() == word)
    }

    /// The word that names the variant.
    pub const fn as_str(self) -> &'static str {
        match self {
            OutOfRange::Keep => "keep",
            OutOfRange::Clamp => "clamp",
            OutOfRange::Error => "error",
        }
    }
}

/// The pass `guard`.
#[derive(Clone, Debug)]
pub struct Guard {
    /// The format to lower to: f16 or bf16.
    pub to: DType,
    /// The names of the guards that do not run.
    pub disabled: BTreeSet<String>,
    /// The handling of constants that do not fit.
    pub out_of_range: OutOfRange,
    /// The ranges of inputs.
    pub ranges: InputRanges,
    /// Results of products that stay within the range of the format on data, with a margin. No guard keeps these products in
    /// fp32 because they might leave the range.
    pub trusted: Observed,
}

impl Spelled for Guard {
    const NAME: &'static str = "guard";
    const ABOUT: &'static str = "finds patterns and ranges that make a node riskier than its class";
    const OPTIONS: &'static [PassOption<Self>] = &[
        PassOption {
            def: FORMAT,
            print: |pass| Some(Setting::word(pass.to)),
            read: |pass, given| given.format().map(|to| pass.to = to),
        },
        PassOption {
            def: option("disable", "guards or groups of them with `+` between them", Some("")),
            print: |pass| {
                let names: Vec<String> = pass.disabled.iter().map(|name| quoted(name)).collect();
                (!names.is_empty()).then(|| Setting::Text(names.join("+")))
            },
            read: |pass, given| {
                let mut probe = Policy::default();
                given.list()?.iter().try_for_each(|name| probe.disable_guard(name))?;
                pass.disabled.clone_from(probe.disabled_guards());
                Ok(())
            },
        },
        PassOption {
            def: option("out-of-range", "keep, clamp or error", Some(OutOfRange::Keep.as_str())),
            print: |pass| {
                (pass.out_of_range != OutOfRange::Keep).then(|| Setting::word(pass.out_of_range.as_str()))
            },
            read: |pass, given| {
                pass.out_of_range = given.read(OutOfRange::of)?;
                Ok(())
            },
        },
        PassOption {
            def: RANGES,
            print: |pass| print_ranges(&pass.ranges),
            read: |pass, given| given.ranges().map(|ranges| pass.ranges = ranges),
        },
        PassOption {
            def: TRUSTED,
            print: |pass| (!pass.trusted.is_empty()).then(|| Setting::Text(pass.trusted.to_string())),
            read: |pass, given| given.observed().map(|trusted| pass.trusted = trusted),
        },
    ];
    fn blank() -> Self {
        Guard {
            to: DType::F16,
            disabled: BTreeSet::new(),
            out_of_range: OutOfRange::Keep,
            ranges: InputRanges::default(),
            trusted: Observed::default(),
        }
    }
}

impl Pass for Guard {
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
    fn run(&self, module: &mut Module, pass: &mut PassCx<'_>) -> Result<Changed, PassError> {
        self.ranges.check(module)?;
        let trusted = self.trusted.values(module);
        let mut cx = Cx {
            module,
            to: self.to,
            out_of_range: self.out_of_range,
            trusted,
            stats: pass.statistics,
            free: Vec::new(),
            moved: FxHashMap::default(),
            numerics: Numerics::default(),
            changed: false,
            guard: "",
        };
        let vars = |node| flow::vars(cx.module, node);
        cx.free = flow::nodes(cx.module).into_iter().flat_map(vars).collect();
        cx.free.retain(|&var| flow::is_free(cx.module, var));
        // Without free variables, no constant needs to be read.
        if cx.free.is_empty() {
            return Ok(Changed::No);
        }
        cx.find_moved()?;
        // The largest magnitude of the constants that intervals read.
        let most = if self.out_of_range == OutOfRange::Clamp { cx.most() } else { f64::INFINITY };
        cx.numerics = Numerics::of(cx.module, cx.to, &self.ranges, most);
        for guard in GUARDS.iter().filter(|g| !self.disabled.contains(g.name)) {
            cx.guard = guard.name;
            run(guard.kind, &mut cx)?;
        }
        let changed = cx.changed;
        for (var, message) in ranges::large_weights(&mut cx)? {
            pass.warn(LARGE_WEIGHTS, Some(var.node), message);
        }
        Ok(Changed::when(changed))
    }
}

/// Runs a guard.
fn run(kind: GuardKind, cx: &mut Cx<'_>) -> Result<(), PassError> {
    match kind {
        GuardKind::Range => {
            ranges::range(cx)?;
            ranges::input_ranges(cx);
            Ok(())
        }
        GuardKind::Mask => masks::mask(cx),
        GuardKind::Eps => ranges::eps(cx),
        GuardKind::Underflow => ranges::underflow(cx),
        GuardKind::Stash => norms::stash(cx),
        GuardKind::Norm => norms::norm(cx),
        GuardKind::Depth => norms::depth(cx),
        GuardKind::Integers => integers::integers(cx),
        GuardKind::Square => amplifiers::square(cx),
        GuardKind::Cancellation => amplifiers::cancellation(cx),
        GuardKind::Offset => {
            offsets::offset(cx);
            Ok(())
        }
        GuardKind::Saturation => near_one::saturation(cx),
        GuardKind::Recurrence => recurrences::recurrence(cx),
        GuardKind::Scores => amplifiers::scores(cx),
        GuardKind::Position => amplifiers::position(cx),
        GuardKind::Choice => amplifiers::choice(cx),
    }
}

/// The code of the warning that constants alone may bring the result of an operator out of the range.
pub(crate) const LARGE_WEIGHTS: &str = "range.constants";

/// The maximal number of walks if there are bodies: a value that leaves a body, or is loop-carried, is seen in the next
/// walk.
const MAX_WALKS: usize = 16;

/// State of the guards.
struct Cx<'a> {
    module: &'a mut Module,
    to: DType,
    out_of_range: OutOfRange,
    /// The numbers of largest magnitude of results that stay within the range on data.
    trusted: FxHashMap<Value, f64>,
    stats: &'a mut Statistics,
    /// The variables that were free before the first guard, in program order, a graph before its bodies.
    free: Vec<Var>,
    /// The ranges of values that are computed from constants alone.
    moved: FxHashMap<Value, constants::Known>,
    /// The facts about the numbers of the module.
    numerics: Numerics,
    changed: bool,
    /// The name of the guard that runs.
    guard: &'static str,
}

impl Cx<'_> {
    /// Free variables in program order, a graph before its bodies.
    fn free_vars(&self) -> Vec<Var> {
        self.free.iter().copied().filter(|&var| flow::is_free(self.module, var)).collect()
    }

    /// True if some node has a body, so that walks must be repeated.
    fn has_bodies(&self) -> bool {
        flow::graphs(self.module).len() > 1
    }

    /// Makes a variable deny, if it is still free.
    fn deny(&mut self, var: Var, evidence: impl FnOnce() -> String) {
        if !flow::is_free(self.module, var) {
            return;
        }
        let rule = Rule::Guard { name: self.guard.into(), evidence: evidence() };
        let decision = &mut self.module.node_mut(var.node).decisions[usize::from(var.var)];
        decision.class = Class::Deny;
        decision.reason = Arc::new(rule.into());
        self.changed = true;
    }

    /// Makes the free variables of a node deny.
    fn deny_node(&mut self, node: Node, evidence: &str) {
        for var in flow::vars(self.module, node) {
            self.deny(var, || evidence.to_owned());
        }
    }

    /// Makes a variable deny because its results may leave the range, unless data shows that they stay within it: then the
    /// variable keeps its class, and the reason gives the data.
    fn deny_for_range(&mut self, var: Var, evidence: impl FnOnce() -> String) {
        let results: Vec<Value> = flow::results_of(self.module, var).map(|(_, value)| value).collect();
        let numbers = results.iter().map(|&value| number_of(self.module, &self.trusted, value));
        let Some(numbers) = numbers.collect::<Option<Vec<f64>>>().filter(|numbers| !numbers.is_empty())
        else {
            return self.deny(var, evidence);
        };
        if !flow::is_free(self.module, var) {
            return;
        }
        let largest = numbers.iter().fold(0.0, |most: f64, number| most.max(number.abs()));
        let evidence = format!("{}: magnitudes up to {} on data", evidence(), shortest(largest));
        let decision = &mut self.module.node_mut(var.node).decisions[usize::from(var.var)];
        decision.reason = Arc::new(Rule::Trusted { evidence }.into());
        self.changed = true;
    }

    /// Returns the statistics of a value that is a constant.
    fn stats(&mut self, value: Value) -> Result<Option<Arc<ConstantStats>>, PassError> {
        let value = flow::resolve_captures(self.module, flow::behind_inserted(self.module, value));
        // The default value of an overridable input says as much about ranges as a constant.
        let data = match &self.module.value(value).def {
            Def::Input { default: Some(Payload::Dense(data)), .. } => Some(data.clone()),
            _ => ampc_ir::views::constant_of(self.module, value),
        };
        data.map_or(Ok(None), |data| self.stats_of(&data, value))
    }

    /// Returns the statistics of a tensor that is, or fills, a value; `None` if the tensor does not hold f32, f64 or
    /// 16-bit floats.
    fn stats_of(
        &mut self,
        data: &Arc<TensorData>,
        value: Value,
    ) -> Result<Option<Arc<ConstantStats>>, PassError> {
        let stats = self.stats.of(data, self.to);
        stats.map_err(|source| PassError::Constant { name: self.name(value), source })
    }

    /// The largest finite value of the format; infinity if the format has no largest value.
    fn most(&self) -> f64 {
        max_finite(self.to).unwrap_or(f64::INFINITY)
    }

    /// Returns the magnitude of a number as the format stores it; the largest finite magnitude if the number is beyond
    /// the range.
    fn stored(&self, number: f32) -> f64 {
        if !can_convert(DType::F32, self.to) || !number.is_finite() {
            return f64::from(number.abs());
        }
        let (mut low, mut wide) = (Vec::new(), Vec::new());
        let magnitude = number.abs().to_le_bytes();
        convert(DType::F32, Conversion { to: self.to, clamp: true }, &magnitude, &mut low);
        convert(self.to, Conversion { to: DType::F64, clamp: false }, &low, &mut wide);
        wide.as_chunks::<8>().0.first().map_or(f64::NAN, |&bytes| f64::from_le_bytes(bytes))
    }

    /// Returns the operator of a node, if it is in the table.
    fn kind(&self, node: Node) -> Option<OpKind> {
        self.module.node(node).schema().map(|s| s.kind)
    }

    fn name(&self, value: Value) -> String {
        ampc_ir::verify::name_of(self.module, value)
    }
}
