//! `assign`: chooses the element type of every type variable that is still free.
//!
//! The choice is the cheapest for an objective and a target, found by a minimum cut (`cut.rs`).

mod alternative;
mod constants;
mod cut;
mod found;
mod free_results;
mod margins;
mod negligible;
mod optimum;
mod other;
mod predicted;
pub(super) mod prices;
mod sums;
mod unrounded;

pub use self::alternative::{Alternative, NOTICEABLE, is_left_full};
pub(crate) use self::free_results::settle_free_results;
pub use self::negligible::TOGETHER;
pub use self::optimum::{Elsewhere, Optimum};
pub use self::predicted::{Predicted, time_as_it_stands};

use self::constants::Constants;
use self::cut::Choice;
use self::found::Found;
use self::negligible::negligible;
use self::other::{OtherFormats, other_formats};
use self::prices::Prices;
use self::sums::{Unrolled, sums, unrolled};
use self::unrounded::unrounded;
use crate::analysis::cost::{CostModel, Objective};
use crate::analysis::placement::Placement;
use crate::analysis::tensors::{Formats, Tensors};
use crate::graph::flow::{self, Var};
use crate::graph::sequences::Groups;
use crate::graph::var_map::VarMap;
use crate::pass::invariants::Invariants;
use crate::pass::options::{
    FORMAT, KEEP_IO, OBJECTIVE, PassOption, Setting, Spelled, TARGET, Words, option, print_keep_io, settings,
};
use crate::pass::statistics::Statistics;
use crate::pass::{Changed, Pass, PassCx, PassError};
use crate::policy::KeepIo;
use crate::precision::classify::quantized::hold_quantized;
use crate::spelling::words::quoted;
use crate::target::{Profile, read_dims};
use ampc_ir::infer::Facts;
use ampc_ir::module::reason::Why;
use ampc_ir::module::{Reason, Rule};
use ampc_ir::op::{Class, Legality, OpKind};
use ampc_ir::{DType, Module, Type};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// The operators that are lowered although nothing is gained.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Gain {
    /// Products are low whether or not they gain by it, but for those that are [negligible](Assign::negligible).
    #[default]
    Any,
    /// A minimum cut may leave every product fp32, unless it is pinned.
    Needed,
    /// Nothing is lowered: nothing gains.
    None,
}

impl Gain {
    const WORDS: [(Gain, &'static str); 3] =
        [(Gain::Any, "any"), (Gain::Needed, "needed"), (Gain::None, "none")];

    fn word(self) -> &'static str {
        Gain::WORDS.iter().find(|(gain, _)| *gain == self).map_or("any", |(_, word)| word)
    }
}

/// The pass.
#[derive(Clone, Debug)]
pub struct Assign {
    /// The format to lower to: f16 or bf16.
    pub to: DType,
    /// Which outputs of the graph keep their types.
    pub keep_io: KeepIo,
    /// The quantity to minimize.
    pub objective: Objective,
    /// The profile that predicts costs.
    pub target: Arc<Profile>,
    /// A share of the work of all products that may be low, in percent: the cut may leave products fp32 whose work is below
    /// it, if all these products together are below [`TOGETHER`] times the share. 0: none. Products that the user requests are
    /// low all the same.
    pub negligible: u8,
    /// The operators that are lowered although nothing is gained.
    pub gain: Gain,
    /// True if operators between DequantizeLinear and QuantizeLinear, which compute in integers, stay fp32.
    pub keeps_quantized: bool,
    /// A policy that the report compares with: the nodes that it would leave fp32. No decision depends on it.
    pub alternative: Option<Alternative>,
}

/// The share of the work below which a product may stay fp32, in percent: for one such product the model is slower by no more
/// than that.
const NEGLIGIBLE: u8 = 1;
/// The most that may be asked for: [`TOGETHER`] times more than this would be all of the work.
const MAX_NEGLIGIBLE: u8 = 100 / TOGETHER;
/// The words for integer computations that are lowered, or stay as they are.
const QUANTIZED: Words = Words { no: "lower", yes: "keep" };

impl Assign {
    /// The pass with its defaults: a minimum cut of the time that is predicted for the profile `generic`, inputs and
    /// outputs as they are.
    pub fn new(to: DType) -> Assign {
        Assign {
            to,
            keep_io: KeepIo::All,
            objective: Objective::default(),
            target: Arc::default(),
            negligible: NEGLIGIBLE,
            gain: Gain::Any,
            keeps_quantized: true,
            alternative: None,
        }
    }
}

impl Spelled for Assign {
    const NAME: &'static str = "assign";
    const ABOUT: &'static str = "chooses the element type of every type variable that is free";
    const OPTIONS: &'static [PassOption<Self>] = &[
        PassOption {
            def: OBJECTIVE,
            print: |pass| Some(Setting::word(pass.objective)),
            read: |pass, given| given.read(|word| word.parse().ok()).map(|read| pass.objective = read),
        },
        PassOption {
            def: TARGET,
            print: |pass| Some(Setting::Target(pass.target.clone())),
            read: |pass, given| {
                let read = given.target()?;
                let dims = pass.target.dims.clone();
                pass.target =
                    if dims.is_empty() { read } else { Arc::new(Profile { dims, ..(*read).clone() }) };
                Ok(())
            },
        },
        PassOption {
            def: option("dim", "extents of dims, NAME=N with `+` between them", Some("")),
            print: |pass| {
                let dims = Some(&pass.target.dims).filter(|dims| !dims.is_empty())?;
                let parts = dims.iter().map(|(name, extent)| quoted(&format!("{name}={extent}")));
                Some(Setting::Text(parts.collect::<Vec<_>>().join("+")))
            },
            read: |pass, given| {
                let dims = given.listed(|parts| read_dims(&parts.join(",")))?;
                Arc::make_mut(&mut pass.target).dims = dims;
                Ok(())
            },
        },
        PassOption {
            def: FORMAT,
            print: |pass| Some(Setting::word(pass.to)),
            read: |pass, given| given.format().map(|to| pass.to = to),
        },
        PassOption {
            def: KEEP_IO,
            print: |pass| print_keep_io(&pass.keep_io),
            read: |pass, given| given.keep_io().map(|keep_io| pass.keep_io = keep_io),
        },
        PassOption {
            def: option("negligible", "percent from 0 to 6", Some("1")),
            print: |pass| (pass.negligible != NEGLIGIBLE).then(|| Setting::word(pass.negligible)),
            read: |pass, given| {
                let read = |word: &str| word.parse().ok().filter(|&percent| percent <= MAX_NEGLIGIBLE);
                pass.negligible = given.read(read)?;
                Ok(())
            },
        },
        PassOption {
            def: option("gain", "any, needed or none", Some(Gain::WORDS[0].1)),
            print: |pass| (pass.gain != Gain::Any).then(|| Setting::word(pass.gain.word())),
            read: |pass, given| {
                let of =
                    |word: &str| Gain::WORDS.iter().find(|(_, known)| *known == word).map(|(gain, _)| *gain);
                given.read(of).map(|gain| pass.gain = gain)
            },
        },
        PassOption {
            def: option("quantized", "keep or lower", Some(QUANTIZED.yes)),
            print: |pass| (!pass.keeps_quantized).then(|| Setting::word(QUANTIZED.no)),
            read: |pass, given| given.either(QUANTIZED).map(|keeps| pass.keeps_quantized = keeps),
        },
    ];
    fn blank() -> Self {
        Assign::new(DType::F16)
    }
}

impl Pass for Assign {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn options(&self) -> Vec<(&'static str, Setting)> {
        settings(self)
    }
    fn requires(&self) -> Invariants {
        Invariants::CORE.with(Invariants::CLASSIFIED)
    }
    fn ensures(&self) -> Invariants {
        Invariants::CORE.with(Invariants::CLASSIFIED).with(Invariants::ASSIGNED)
    }
    fn revokes(&self) -> Invariants {
        Invariants::LOWERED
    }
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let (changed, mut optimum, placement) = self.choose(module, cx.statistics, cx.facts, true)?;
        for (node, steps) in std::mem::take(&mut optimum.rounded) {
            let message = format!(
                "a state that is summed up in {steps} steps is rounded in each: pin it to fp32 if its value matters, for as many casts"
            );
            cx.warn("state.rounded", Some(node), message);
        }
        let facts = cx.facts;
        let choose = |module: &mut Module, statistics: &mut Statistics| {
            // The time of the alternative is not reported.
            self.choose(module, statistics, facts, false).map(|_| ())
        };
        optimum.elsewhere = self
            .alternative
            .as_ref()
            .and_then(|other| other.decide(module, (self.to, &self.target), cx, choose));
        cx.results.put(optimum);
        if let Some(placement) = placement {
            cx.results.put(placement);
        }
        Ok(Changed::when(changed))
    }
}

impl Assign {
    /// Decides every free variable. Returns true if there was any, and the optimum; if `reports`, with predicted times and with
    /// the placement of casts.
    fn choose(
        &self,
        module: &mut Module,
        statistics: &mut Statistics,
        facts: &Facts,
        reports: bool,
    ) -> Result<(bool, Optimum, Option<Placement>), PassError> {
        let mut changed = self.keeps_quantized && hold_quantized(module);
        if self.gain == Gain::None {
            changed |= hold_all(module);
        }
        free_casts(module, self.to);
        let (found, mut optimum, mut placement) = self.cut(module, statistics, reports, None)?;
        let mut reasons: FxHashMap<Rule, Arc<Reason>> = FxHashMap::default();
        for (var, precision) in decisions(module, &found.low) {
            changed = true;
            let decision = &mut module.node_mut(var.node).decisions[usize::from(var.var)];
            if let Some(&why) = found.why.get(&var) {
                let rule = Rule::Placement { class: decision.class, why };
                let shared = reasons.entry(rule).or_insert_with_key(|rule| Arc::new(rule.clone().into()));
                decision.reason = shared.clone();
            }
            decision.precision = Some(precision);
        }
        if reports && settle_free_results(module, facts) {
            // The choice did not know of these results.
            optimum.optimal = false;
            placement = Some(Placement::of_decided(module, &self.keep_io, self.objective));
        }
        Ok((changed, optimum, placement))
    }

    /// The low variables of the choice of least cost, and its cost.
    pub(super) fn low_vars(
        &self,
        module: &Module,
        statistics: &mut Statistics,
        prices: Option<&Prices<'_>>,
    ) -> Result<(FxHashSet<Var>, i64), PassError> {
        let (found, optimum, _) = self.cut(module, statistics, false, prices)?;
        Ok((found.low.iter().map(|(var, _)| var).collect(), optimum.cost))
    }

    fn cut(
        &self,
        module: &Module,
        statistics: &mut Statistics,
        reports: bool,
        prices: Option<&Prices<'_>>,
    ) -> Result<(Found, Optimum, Option<Placement>), PassError> {
        let (to, keep_io, target) = (self.to, &self.keep_io, &self.target);
        let groups = Groups::new(module);
        let constants = Constants::new(module, to, keep_io, &groups, statistics);
        let other: OtherFormats = other_formats(module, to, &groups);
        let costs = CostModel::new(module, target, to, self.objective);
        let tensors = Tensors::new(module, to, keep_io, &groups, costs.fusions());
        let mut negligible = negligible(module, to, &costs, (self.negligible, self.gain == Gain::Needed));
        if prices.is_some() {
            negligible.extend(every_product(module));
        }
        let choose = |unprofitable: &FxHashSet<Var>, kept: FxHashSet<Var>| {
            let held = (&constants, &other, prices);
            let choice = Choice::new(&tensors, &costs, held, negligible.clone(), (kept, unprofitable));
            choice.expect("costs are bounded").solve().expect("held vertices do not contradict each other")
        };
        let (unprofitable, found, mut optimum) = match prices {
            Some(_) => {
                let none = FxHashSet::default();
                let (found, optimum) = keeping_states(module, |kept| choose(&none, kept));
                (none, found, optimum)
            }
            None => cut_to_fixpoint(&tensors, &costs, |unprofitable| {
                keeping_states(module, |kept| choose(unprofitable, kept))
            }),
        };
        if !reports {
            return Ok((found, optimum, None));
        }
        let chosen = tensors.in_formats(Formats::Chosen(&found.low));
        let placement = Placement::new(&chosen, self.objective, |graph| costs.executions(graph));
        optimum.compare(&placement, &costs, &found)?;
        let predicted = match self.objective {
            Objective::Time => {
                optimum.timed.retain(|(var, _)| !unprofitable.contains(var));
                Predicted::new(&tensors, &costs, &optimum.timed, &found.low, &placement)
            }
            Objective::Casts | Objective::Bytes => {
                let costs = CostModel::new(module, target, to, Objective::Time);
                let tensors = Tensors::new(module, to, keep_io, &groups, costs.fusions());
                let chosen = tensors.in_formats(Formats::Chosen(&found.low));
                let placement = Placement::new(&chosen, self.objective, |graph| costs.executions(graph));
                Predicted::new(&tensors, &costs, &[], &found.low, &placement)
            }
        };
        optimum.predicted = Some(predicted);
        Ok((found, optimum, Some(placement)))
    }
}

/// All variables of class allow, as products that may be fp32 even if they are requested to be low.
fn every_product(module: &Module) -> impl Iterator<Item = (Var, Why)> + '_ {
    let vars = flow::nodes(module).into_iter().flat_map(|node| flow::vars(module, node).collect::<Vec<_>>());
    let is_allow = |var: &Var| flow::decision(module, *var).is_some_and(|d| d.class == Class::Allow);
    vars.filter(is_allow).map(|var| (var, Why::CheapestFull))
}

/// Repeats the cut until the variables of [arithmetic on unrounded values](unrounded) are a fixpoint, and returns them with the
/// choice. A low variable rounds its results, which changes the set. After [`MAX_ITERATIONS`] cuts without a fixpoint, the
/// choice ignores unrounded values.
fn cut_to_fixpoint(
    tensors: &Tensors<'_>,
    costs: &CostModel<'_>,
    choose: impl Fn(&FxHashSet<Var>) -> (Found, Optimum),
) -> (FxHashSet<Var>, Found, Optimum) {
    let mut unprofitable = unrounded(tensors, costs, &VarMap::default());
    for _ in 0..MAX_ITERATIONS {
        let (found, optimum) = choose(&unprofitable);
        let next = match unprofitable.is_empty() {
            true => FxHashSet::default(),
            false => unrounded(tensors, costs, &found.low),
        };
        if next == unprofitable {
            return (unprofitable, found, optimum);
        }
        unprofitable = next;
    }
    let none = FxHashSet::default();
    let (found, optimum) = choose(&none);
    (none, found, optimum)
}

/// The maximal number of cuts until the variables of arithmetic on unrounded values are a fixpoint.
const MAX_ITERATIONS: usize = 4;

/// Keeps fp32 all that could be low; whether there was any.
fn hold_all(module: &mut Module) -> bool {
    let mut changed = false;
    for node in flow::nodes(module) {
        for var in flow::vars(module, node).collect::<Vec<_>>() {
            let is_full = flow::bound_type(module, var).and_then(Type::dtype) == Some(DType::F32);
            let Some(decision) = flow::decision(module, var).filter(|_| is_full) else { continue };
            if decision.class == Class::Fixed || decision.precision == Some(DType::F32) {
                continue;
            }
            let reason = Arc::new(Reason::new(Rule::NoGain(decision.class)));
            let decision = &mut module.node_mut(node).decisions[usize::from(var.var)];
            (decision.precision, decision.reason) = (Some(DType::F32), reason);
            changed = true;
        }
    }
    changed
}

/// The choice that keeps fp32 what loops add up, and those gated states of unrolled loops that cost few casts by it: at
/// most one for each [`STEPS_PER_CAST`] steps. The others, which are rounded in every step, are listed in the optimum.
fn keeping_states(
    module: &Module,
    choose: impl Fn(FxHashSet<Var>) -> (Found, Optimum, usize),
) -> (Found, Optimum) {
    let of_loops = sums(module);
    let (found, mut optimum, casts) = choose(of_loops.clone());
    let is_low = |var: &Var| found.low.contains_key(var);
    let chains: Vec<Unrolled> =
        unrolled(module).into_iter().filter(|chain| chain.vars.iter().any(is_low)).collect();
    if chains.is_empty() {
        return (found, optimum);
    }
    let with = |chains: &[&Unrolled]| {
        let vars = chains.iter().flat_map(|chain| chain.vars.iter().copied());
        choose(of_loops.iter().copied().chain(vars).collect())
    };
    let budget =
        |chains: &[&Unrolled]| chains.iter().map(|chain| chain.steps.len() / STEPS_PER_CAST).sum::<usize>();
    let pays = |chains: &[&Unrolled]| with(chains).2 <= casts + budget(chains);
    let all: Vec<&Unrolled> = chains.iter().collect();
    // Together they may share casts; if they do not pay so, each is looked at alone.
    let kept = if pays(&all) {
        all
    } else if all.len() <= MAX_CHAINS {
        all.into_iter().filter(|chain| pays(&[chain])).collect()
    } else {
        Vec::new()
    };
    let is_kept = |chain: &Unrolled| kept.iter().any(|kept| kept.steps == chain.steps);
    let left = chains.iter().filter(|chain| !is_kept(chain));
    let rounded = left.filter_map(|chain| Some((*chain.steps.last()?, chain.steps.len()))).collect();
    if kept.is_empty() {
        optimum.rounded = rounded;
        return (found, optimum);
    }
    let (found, mut optimum, _) = with(&kept);
    optimum.rounded = rounded;
    (found, optimum)
}

/// An unrolled state that is kept fp32 may cost a cast for so many of its steps: its gates come from one product, then,
/// or from a few. One whose gates are computed in each step costs two casts a step, and is left low with a warning.
const STEPS_PER_CAST: usize = 10;

/// More unrolled states than this are kept all or none: to look at each alone takes another choice.
const MAX_CHAINS: usize = 16;

/// Makes casts take what arrives, unless they were to read a 16-bit format: from a narrower format than they were to
/// read they make the same number.
pub(super) fn free_casts(module: &mut Module, to: DType) {
    for node in flow::nodes(module) {
        let is_cast = module.node(node).schema().is_some_and(|s| s.kind == OpKind::Cast);
        let Some(var) = flow::vars(module, node).next().filter(|_| is_cast) else { continue };
        let Some(decision) = flow::decision(module, var) else { continue };
        let full = decision.precision.is_none_or(|precision| precision == DType::F32);
        let reads_f32 = flow::bound_type(module, var).and_then(Type::dtype) == Some(DType::F32);
        let may_be_low = flow::legality(module, var, to) == Legality::Legal;
        if decision.class != Class::Allow && full && reads_f32 && may_be_low {
            let decision = &mut module.node_mut(node).decisions[usize::from(var.var)];
            (decision.class, decision.precision) = (Class::Discrete, None);
        }
    }
}

/// Element types of all variables without one, in program order.
fn decisions(module: &Module, low: &VarMap<DType>) -> Vec<(Var, DType)> {
    let mut order = Vec::new();
    for node in flow::nodes(module) {
        for var in flow::vars(module, node) {
            if flow::decision(module, var).is_some_and(|d| d.precision.is_none() && d.class != Class::Fixed) {
                order.push((var, low.get(&var).copied().unwrap_or(DType::F32)));
            }
        }
    }
    order
}
