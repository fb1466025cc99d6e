//! The search for the cheapest choice of formats whose measured error is within a tolerance.
//!
//! The policy decides which nodes may be low. The search adds fp32 nodes, as few and as cheap as it finds:
//!
//! 1. *Measure* the rewrite by the policy on the data. If its error is within the tolerance, it is the result. Measure the
//!    rewrite with all nodes in fp32: if its error is beyond the tolerance, there is no result.
//! 2. *Attribute* the error: one backward pass gives every value the share of its rounding in it (`attribution.rs`).
//! 3. *Choose* with a price for error: the minimum cut finds the least predicted time plus price times error
//!    ([`Choices::low_at_price`]). Nodes that are low by the policy, and fp32 in this choice, are pinned to fp32.
//! 4. *Bisect* the price: the least price at which the measured error is within the tolerance.
//! 5. Attribute the error of the best choice beyond the tolerance, whose error is caused by other roundings, and bisect again.
//! 6. *Remove* pins in halves, quarters and so on, as long as the error stays within the tolerance.
//!
//! ```text
//! price      0      pins 0     error 3.1e-1
//! price      ∞      pins 28    error 0         within 2e-3
//! price  4·10³      pins 9     error 1.4e-3    within
//! price  1·10³      pins 4     error 2.6e-3
//! price  2·10³      pins 6     error 1.7e-3    within
//! without 3 pins    pins 3     error 1.8e-3    within: the result
//! ```
//!
//! Every choice is measured by a run with true rounding, so that the attribution, which holds to first order, decides only the
//! order in which choices are tried. The number of runs is bounded. With several batches, the last is measured at the end only:
//! if the result fails there, the other choices within the tolerance are measured on all batches, the cheapest first.

mod attribution;
mod metric;

pub use self::metric::{CustomMetric, Metric, UnknownMetric};

use self::attribution::{Attribution, Errors};
use self::metric::Numbered;
use super::pins::with_pins;
use super::session::{prepare, run};
use super::{Inputs, output_names};
use crate::error::Error;
use crate::loaded::Model;
use crate::options::RewriteOptions;
use crate::report::Report;
use crate::rewrite::{before_pass, raised_for_casts};
use ampc_ir::op::{Class, moves};
use ampc_ir::{DType, Module, Value};
use ampc_passes::Paths;
use ampc_passes::assign::Assign;
use ampc_passes::choices::Choices;
use ampc_passes::flow::{self, Var};
use ampc_runtime::{HostTensor, Runtime};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Options of a search.
#[derive(Clone, Debug)]
pub struct SearchOptions {
    /// The backend and its limits.
    pub runtime: Runtime,
    /// The error of an output.
    pub metric: Metric,
    /// The largest error of an output, in the unit of the metric.
    pub tolerance: f64,
    /// The largest errors of outputs with a tolerance of their own, by name.
    pub tolerances: BTreeMap<String, f64>,
    /// The maximal number of choices that are measured.
    pub choices: usize,
}

/// A choice that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The number of nodes that are pinned to fp32 beside those of the policy.
    pub pins: usize,
    /// The number of nodes with floats that are fp32.
    pub full: u64,
    /// The number of low nodes.
    pub low: u64,
    /// The number of inserted casts.
    pub casts: u64,
    /// The bytes of all constants.
    pub bytes: u64,
    /// The predicted time as a share of that of the source; `None` if it is not predicted.
    pub time: Option<f64>,
    /// The cost by which choices are compared ([`Choices::cost_with`]): predicted time, in which an fp32 product counts the
    /// casts around it, as a share of the cost of the policy's choice.
    pub cost: f64,
    /// The largest error of an output on the data, up to the first batch on which an output is beyond its tolerance; infinite if
    /// an output is not finite where that of the source is.
    #[serde(serialize_with = "super::number::number")]
    pub error: f64,
    /// The output with the largest error in relation to its tolerance.
    pub output: String,
    /// The error in relation to the tolerance: within it up to 1.
    #[serde(serialize_with = "super::number::number")]
    pub ratio: f64,
}

impl Point {
    /// True if all outputs are within their tolerances.
    pub fn passed(&self) -> bool {
        self.ratio <= 1.0
    }

    fn is_cheaper(&self, other: &Point) -> bool {
        self.order(other).is_lt()
    }

    /// The order by cost; of equal costs by fp32 nodes, then by casts.
    fn order(&self, other: &Point) -> Ordering {
        let ties = self.full.cmp(&other.full).then(self.casts.cmp(&other.casts));
        self.cost.total_cmp(&other.cost).then(ties)
    }
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Found {
    /// The nodes to pin to fp32, in the order of the model. With them, the outputs are within the tolerance if
    /// [`point`](Self::point) is; otherwise, these are the pins of the choice with the least error.
    pub pins: Vec<String>,
    /// The choice on the data of the search.
    pub point: Point,
    /// The choice on the batch that the search did not use; `None` with a single batch.
    pub unseen: Option<Point>,
    /// Every choice that was measured, in order.
    pub points: Vec<Point>,
    /// True if the caller or the number of choices ended the search.
    pub is_partial: bool,
}

impl Found {
    /// True if all outputs are within their tolerances, on the batch that the search did not use as well.
    pub fn passed(&self) -> bool {
        self.point.passed() && self.unseen.as_ref().is_none_or(Point::passed)
    }

    /// The choices such that no cheaper choice has as little error; by ascending error.
    pub fn pareto(&self) -> Vec<&Point> {
        let mut points: Vec<&Point> = self.points.iter().collect();
        points.sort_by(|a, b| a.ratio.total_cmp(&b.ratio).then(a.order(b)));
        let mut best: Vec<&Point> = Vec::new();
        for point in points {
            if best.last().is_none_or(|last| point.is_cheaper(last)) {
                best.push(point);
            }
        }
        best
    }
}

/// Searches for the cheapest choice of formats for `model` that is within the tolerance on batches of inputs. `tell` receives
/// each choice that was measured, and returns false to stop the search.
///
/// # Errors
/// If there is no batch, the model cannot be rewritten or run, or an output of `tolerances` does not exist.
pub fn search(
    model: &Model,
    options: &RewriteOptions,
    batches: &[Inputs],
    search: &SearchOptions,
    tell: &mut dyn FnMut(&Point) -> bool,
) -> Result<Found, Error> {
    let mut search = Search::new(model, options, batches, search, tell)?;
    search.run()
}

/// The outputs of a model.
type Numbers = Vec<Numbered>;

/// A measured choice.
struct Trial {
    point: Point,
    /// The output with the largest error in relation to its tolerance.
    output: usize,
    /// The batch with the largest error, and the outputs on it.
    worst: (usize, Numbers),
}

/// The output with the largest error in relation to its tolerance.
struct Worst {
    output: String,
    error: f64,
    ratio: f64,
}

struct Search<'a> {
    source: &'a Module,
    options: RewriteOptions,
    batches: &'a [Inputs],
    search: &'a SearchOptions,
    tell: &'a mut dyn FnMut(&Point) -> bool,
    is_stopped: bool,
    /// The model as `assign` receives it.
    decided: Module,
    paths: Arc<Paths>,
    choices: Choices,
    /// The variables of products that may be low.
    products: Vec<Var>,
    /// The outputs of the source on each batch.
    wanted: Vec<Numbers>,
    names: Vec<String>,
    tolerances: Vec<f64>,
    /// The batches that choices are measured on.
    seen: Vec<usize>,
    /// The choices that were measured on the batches that are seen.
    points: Vec<Point>,
    /// The number of choices that were measured on any batches.
    measured: usize,
    /// The number at which the search ends.
    limit: usize,
    /// True if the search on the batches that are seen came to its end.
    is_finished: bool,
    /// The measured choices by their pins.
    known: FxHashMap<Vec<Var>, Point>,
    best: Option<(Vec<Var>, Point)>,
}

/// A step of the price.
const STEP: f64 = 4.0;

/// The prices that are tried: powers of [`STEP`] around the price at which the whole time equals the whole error.
const EXPONENTS: std::ops::Range<i32> = -12..24;

/// One of so many choices is reserved for the case that the result fails on the batch that the search did not use.
const RESERVED: usize = 4;

/// The number of times that errors are attributed anew.
const ROUNDS: usize = 3;

impl<'a> Search<'a> {
    fn new(
        model: &'a Model,
        options: &RewriteOptions,
        batches: &'a [Inputs],
        search: &'a SearchOptions,
        tell: &'a mut dyn FnMut(&Point) -> bool,
    ) -> Result<Search<'a>, Error> {
        let source = &model.module;
        let names = output_names(source);
        if let Some(name) = search.tolerances.keys().find(|name| !names.contains(name)) {
            return Err(Error::Usage(format!("`{name}` has a tolerance, but is no output of the model")));
        }
        let tolerances = names
            .iter()
            .map(|name| search.tolerances.get(name).copied().unwrap_or(search.tolerance))
            .collect();
        let raised = raised_for_casts(model, options)?;
        let options = raised.map_or_else(|| options.clone(), |(options, _)| options);
        let decided = before_pass(model, &options, "assign")?;
        let assign = Assign {
            keep_io: options.keep_io.clone(),
            target: options.target.clone(),
            ..Assign::new(options.to)
        };
        let vars = flow::nodes(&decided).into_iter().flat_map(|node| flow::vars(&decided, node));
        let is_product = |&var: &Var| {
            flow::decision(&decided, var).is_some_and(|d| d.class == Class::Allow && d.precision.is_none())
        };
        let products = vars.filter(is_product).collect();
        let choices = Choices::new(assign, &decided).map_err(Error::Pass)?;
        let seen = if batches.len() > 1 { 0..batches.len() - 1 } else { 0..batches.len() };
        let mut reference = source.clone();
        let mut session = prepare(&mut reference, &search.runtime)?;
        let mut wanted = Vec::with_capacity(batches.len());
        for batch in batches {
            wanted.push(run(&mut session, &batch.values)?.iter().map(Numbered::of).collect());
        }
        Ok(Search {
            source,
            options,
            batches,
            search,
            tell,
            is_stopped: false,
            paths: Paths::of(&decided),
            decided,
            choices,
            products,
            wanted,
            names,
            tolerances,
            seen: seen.collect(),
            points: Vec::new(),
            measured: 0,
            limit: 0,
            is_finished: false,
            known: FxHashMap::default(),
            best: None,
        })
    }

    fn run(&mut self) -> Result<Found, Error> {
        if self.batches.is_empty() {
            return Err(Error::Usage("there is no data to search on".into()));
        }
        let held: Option<usize> = (0..self.batches.len()).find(|batch| !self.seen.contains(batch));
        self.limit = self.search.choices;
        if held.is_some() {
            self.limit -= self.search.choices / RESERVED;
        }
        self.search()?;
        self.limit = self.search.choices;
        let mut unseen = None;
        if let (Some(held), Some((pins, point))) = (held, self.best.clone())
            && point.passed()
        {
            let trial = self.measure_on(&pins, &[held])?;
            match trial.point.passed() {
                true => unseen = Some(trial.point),
                false => self.search_again(held)?,
            }
        }
        let (pins, point) = self.best.clone().expect("the first choice was measured");
        let pins = self.texts(&pins);
        let is_partial = !self.is_finished;
        Ok(Found { pins, point, unseen, points: std::mem::take(&mut self.points), is_partial })
    }

    /// Searches on all batches after the result failed on the last: among the choices within the tolerance on the others,
    /// cheapest first, or anew if there is no other such choice.
    fn search_again(&mut self, held: usize) -> Result<(), Error> {
        let failed = self.best.take().map(|(pins, _)| pins).unwrap_or_default();
        let known = std::mem::take(&mut self.known).into_iter();
        let mut others: Vec<(Vec<Var>, Point)> =
            known.filter(|(pins, point)| point.passed() && *pins != failed).collect();
        others.sort_by(|(x, a), (y, b)| a.order(b).then_with(|| x.cmp(y)));
        self.seen.push(held);
        // Errors on fewer batches do not compare with those to come.
        self.points.clear();
        if others.is_empty() {
            return self.search();
        }
        for (pins, _) in others {
            if self.measure(&pins)?.point.passed() || self.is_over() {
                break;
            }
        }
        Ok(())
    }

    /// True if no further choice may be measured.
    fn is_over(&self) -> bool {
        self.is_stopped || self.measured >= self.limit
    }

    /// Searches on the batches that are seen.
    fn search(&mut self) -> Result<(), Error> {
        self.is_finished = false;
        let mut failing = self.measure(&[])?;
        if failing.point.passed() {
            self.is_finished = true;
            return Ok(());
        }
        if self.is_over() {
            return Ok(());
        }
        // All in fp32: beyond the tolerance, no choice is within it.
        let mut all: Vec<Var> = self.choices.low().iter().chain(&self.products).copied().collect();
        all.sort_unstable();
        all.dedup();
        if !self.measure(&all)?.point.passed() {
            self.is_finished = true;
            return Ok(());
        }
        let mut squares = Errors::default();
        let mut errors = Errors::default();
        for round in 0..ROUNDS {
            if self.is_over() {
                return Ok(());
            }
            self.attribute(&failing, round > 0, &mut squares)?;
            errors = roots(&squares);
            match self.bisect(&errors)? {
                Some(trial) => failing = trial,
                None => break,
            }
        }
        self.remove(&errors)
    }

    /// Adds the squares of the errors of values in the error of a choice.
    fn attribute(&mut self, trial: &Trial, decides: bool, squares: &mut Errors) -> Result<(), Error> {
        let (batch, found) = &trial.worst;
        let wanted = &self.wanted[*batch];
        // Without a float output beyond its tolerance, only decisions before the outputs can be differentiated.
        let is_beyond = |at: usize| self.is_float(at) && self.ratio(at, wanted, found) > 1.0;
        let has_floats = (0..self.names.len()).any(is_beyond);
        let weights = (0..wanted.len()).map(|at| {
            let (wanted_of, found_of) = (&wanted[at], &found[at]);
            // An output counts by how near its error is to its tolerance, in units of the tolerance of the worst output.
            let share = (self.ratio(at, wanted, found) / trial.point.ratio).min(1.0);
            let unit = self.tolerances[trial.output] / self.tolerances[at];
            let share = if share.is_nan() { 1.0 } else { share } * if unit.is_finite() { unit } else { 1.0 };
            #[expect(clippy::cast_possible_truncation, reason = "weights are of fp32 values")]
            let share = share as f32;
            let weights = self.search.metric.weights(&wanted_of.numbers, &found_of.numbers);
            HostTensor::from_slice(&wanted_of.dims, &weights.iter().map(|w| w * share).collect::<Vec<f32>>())
                .ok()
        });
        let weights: Vec<Option<HostTensor>> = weights.collect();
        let decides = decides || !has_floats;
        let mut attribution =
            Attribution::new(&self.decided, self.options.to, decides, &self.search.runtime)?;
        let mut found: Errors = Errors::default();
        attribution.add(&self.batches[*batch], &weights, 1.0, &mut found)?;
        share_through_ports(&self.decided, &mut found);
        for (value, square) in found.iter() {
            squares[value] = squares[value].max(*square);
        }
        Ok(())
    }

    fn is_float(&self, output: usize) -> bool {
        let value = self.source.graph(self.source.main()).outputs()[output].value;
        self.source.value(value).ty.dtype().is_some_and(DType::is_float)
    }

    /// Bisects the price, and returns the choice with the least error beyond the tolerance; `None` if no choice is beyond it
    /// or all prices have been measured.
    fn bisect(&mut self, errors: &Errors) -> Result<Option<Trial>, Error> {
        let unit = self.unit(errors);
        let mut failing: Option<Trial> = None;
        // At the first exponent the choice fails, at the last it passes if any does.
        let (mut low, mut high) = (f64::from(EXPONENTS.start), f64::from(EXPONENTS.end));
        let mut width = 1.0;
        while high - low > 0.25 && !self.is_over() {
            let middle = if width == 1.0 { high } else { f64::midpoint(low, high) };
            width = high - low;
            let pins = self.pins(errors, unit * STEP.powf(middle))?;
            let passed = match self.known.get(&pins) {
                Some(point) => point.passed(),
                None => {
                    let trial = self.measure(&pins)?;
                    let passed = trial.point.passed();
                    let is_better = failing.as_ref().is_none_or(|last| trial.point.ratio < last.point.ratio);
                    if !passed && is_better {
                        failing = Some(trial);
                    }
                    passed
                }
            };
            if passed {
                high = middle;
            } else if middle == high {
                // Not even the highest price suffices: other roundings matter.
                break;
            } else {
                low = middle;
            }
        }
        Ok(failing)
    }

    /// The price at which the whole error costs as much as the whole model.
    fn unit(&self, errors: &Errors) -> f64 {
        let sum: f64 = errors.iter().map(|(_, error)| *error).filter(|error| error.is_finite()).sum();
        #[expect(clippy::cast_precision_loss, reason = "a price need not be exact")]
        let cost = self.choices.cost().max(1) as f64;
        cost / sum.max(f64::MIN_POSITIVE)
    }

    /// The variables that are low by the policy, and fp32 if error has this price.
    fn pins(&mut self, errors: &Errors, price: f64) -> Result<Vec<Var>, Error> {
        let low = self.choices.low_at_price(errors, price).map_err(Error::Pass)?;
        let mut pins: Vec<Var> = self.choices.low().difference(&low).copied().collect();
        if !pins.is_empty() {
            // Products that the policy leaves fp32 because others do nearly all of the work.
            let is_left = |var: &&Var| !low.contains(var) && !self.choices.low().contains(var);
            pins.extend(self.products.iter().filter(is_left));
        }
        pins.retain(|&var| self.is_pinned(var));
        pins.sort_unstable();
        Ok(pins)
    }

    /// True for a variable that is worth a pin. A node that only moves values follows its neighbours, unless it is low
    /// whatever its neighbours are, or reads a constant.
    fn is_pinned(&self, var: Var) -> bool {
        let data = self.decided.node(var.node);
        let is_move = data.schema().is_some_and(|schema| moves(schema.kind, 0).is_some());
        let is_allow =
            flow::decision(&self.decided, var).is_some_and(|decision| decision.class == Class::Allow);
        let reads_constant =
            || data.operands().iter().flatten().any(|&value| self.decided.constant(value).is_some());
        !is_move || is_allow || reads_constant()
    }

    /// The texts of pins, in the order of the model: the path of a node of which all low variables are pinned, else the path
    /// with the name of the variable.
    fn texts(&self, pins: &[Var]) -> Vec<String> {
        let pinned: FxHashSet<Var> = pins.iter().copied().collect();
        let mut texts = Vec::new();
        for &node in self.paths.nodes() {
            let vars = || flow::vars(&self.decided, node);
            if !vars().any(|var| pinned.contains(&var)) {
                continue;
            }
            let path = self.paths.path(node);
            if vars().all(|var| pinned.contains(&var) || !self.choices.low().contains(&var)) {
                texts.push(path.to_owned());
                continue;
            }
            let names = self.decided.var_names(node);
            let of_vars = vars().zip(names).filter(|(var, _)| pinned.contains(var));
            texts.extend(of_vars.map(|(_, name)| format!("{path}#{name}")));
        }
        texts
    }

    /// Removes pins as long as the error stays within the tolerance, the least errors first.
    fn remove(&mut self, errors: &Errors) -> Result<(), Error> {
        let Some((mut pins, point)) = self.best.clone() else { return Ok(()) };
        if !point.passed() {
            self.is_finished = !self.is_over();
            return Ok(());
        }
        let error = |var: &Var| self.error(errors, *var);
        let mut by_error: Vec<(f64, Var)> = pins.iter().map(|var| (error(var), *var)).collect();
        by_error.sort_by(|(a, x), (b, y)| b.total_cmp(a).then(x.cmp(y)));
        pins = by_error.into_iter().map(|(_, var)| var).collect();
        let mut part = pins.len().div_ceil(2);
        while pins.len() > 1 && !self.is_over() {
            let before = pins.len();
            let mut end = pins.len();
            while end > 0 && !self.is_over() {
                let start = end.saturating_sub(part);
                let without: Vec<Var> = pins[..start].iter().chain(&pins[end..]).copied().collect();
                let mut sorted = without.clone();
                sorted.sort_unstable();
                let passed = match self.known.get(&sorted) {
                    Some(point) => point.passed(),
                    None => self.measure(&sorted)?.point.passed(),
                };
                if passed {
                    pins = without;
                }
                end = start;
            }
            if part == 1 && pins.len() == before {
                break;
            }
            part = part.min(pins.len()).div_ceil(2);
        }
        self.is_finished = !self.is_over();
        Ok(())
    }

    /// The largest error of a value that a variable makes, or of a constant that it reads.
    fn error(&self, errors: &Errors, var: Var) -> f64 {
        let module = &self.decided;
        let constants = flow::operands_of(module, var).map(|(_, value)| value);
        let constants = constants.filter(|&value| module.constant(value).is_some());
        let values = flow::results_of(module, var).map(|(_, value)| value).chain(constants);
        values.fold(0.0, |most: f64, value| most.max(errors[value]))
    }

    /// Measures a choice on the batches that are seen.
    fn measure(&mut self, pins: &[Var]) -> Result<Trial, Error> {
        let seen = self.seen.clone();
        let trial = self.measure_on(pins, &seen)?;
        self.known.insert(pins.to_vec(), trial.point.clone());
        self.points.push(trial.point.clone());
        self.measured += 1;
        self.is_stopped |= !(self.tell)(&trial.point);
        let is_better =
            self.best.as_ref().is_none_or(|(_, best)| match (trial.point.passed(), best.passed()) {
                (true, true) => trial.point.is_cheaper(best),
                (false, false) => trial.point.ratio < best.ratio,
                (passed, _) => passed,
            });
        if is_better {
            self.best = Some((pins.to_vec(), trial.point.clone()));
        }
        Ok(trial)
    }

    fn measure_on(&mut self, pins: &[Var], batches: &[usize]) -> Result<Trial, Error> {
        let texts = self.texts(pins);
        let (mut module, report) =
            with_pins(self.source, &self.options, texts.iter().map(String::as_str), &[])?;
        let mut session = prepare(&mut module, &self.search.runtime)?;
        let mut worst: Option<(f64, usize, usize, Numbers)> = None;
        for &batch in batches {
            // One batch suffices to reject a choice.
            if worst.as_ref().is_some_and(|(ratio, ..)| *ratio > 1.0) {
                break;
            }
            let inputs = self.batches[batch].for_other(self.source, session.module())?;
            let found: Numbers = run(&mut session, &inputs.values)?.iter().map(Numbered::of).collect();
            let ratios = (0..found.len()).map(|at| (self.ratio(at, &self.wanted[batch], &found), at));
            let most = ratios.max_by(|(a, _), (b, _)| a.total_cmp(b)).unwrap_or_default();
            if worst.as_ref().is_none_or(|(ratio, ..)| most.0 > *ratio) {
                worst = Some((most.0, most.1, batch, found));
            }
        }
        let (ratio, output, batch, found) = worst.unwrap_or_default();
        let cost = self.choices.cost_with(pins.iter().copied().collect()).map_err(Error::Pass)?;
        let error = if found.is_empty() { 0.0 } else { self.error_of(output, &self.wanted[batch], &found) };
        let worst = Worst { output: self.names.get(output).cloned().unwrap_or_default(), error, ratio };
        let point = self.point(texts.len(), &report, cost, worst);
        Ok(Trial { point, output, worst: (batch, found) })
    }

    /// The error of an output.
    fn error_of(&self, output: usize, wanted: &Numbers, found: &Numbers) -> f64 {
        self.search.metric.error_of(&wanted[output], &found[output])
    }

    /// The error of an output in relation to its tolerance.
    fn ratio(&self, output: usize, wanted: &Numbers, found: &Numbers) -> f64 {
        let error = self.error_of(output, wanted, found);
        if error == 0.0 { 0.0 } else { error / self.tolerances[output] }
    }

    fn point(&self, pins: usize, report: &Report, cost: i64, worst: Worst) -> Point {
        let time = report.time.as_ref().filter(|time| time.source > 0);
        #[expect(clippy::cast_precision_loss, reason = "a ratio with a few digits")]
        let time = time.map(|time| time.rewritten as f64 / time.source as f64);
        #[expect(clippy::cast_precision_loss, reason = "a ratio with a few digits")]
        let cost = cost as f64 / self.choices.cost().max(1) as f64;
        Point {
            pins,
            full: report.summary.full,
            low: report.summary.low,
            casts: report.casts.inserted,
            bytes: report.constants.bytes_after,
            time,
            cost,
            error: worst.error,
            output: worst.output,
            ratio: worst.ratio,
        }
    }
}

/// Gives values that are bound to each other through a port of a body or call, which are the same numbers, the largest of their
/// errors.
fn share_through_ports(module: &Module, errors: &mut Errors) {
    let vars = flow::nodes(module).into_iter().flat_map(|node| flow::vars(module, node));
    let ports: Vec<Var> = vars.filter(|&var| flow::is_port(module, var)).collect();
    // In each round, errors pass one level of bodies and calls.
    let mut has_changed = true;
    while has_changed {
        has_changed = false;
        for &port in &ports {
            let operands = flow::operands_of(module, port).map(|(_, value)| value);
            let values: Vec<Value> =
                operands.chain(flow::results_of(module, port).map(|(_, value)| value)).collect();
            let most = values.iter().fold(0.0, |most: f64, &value| most.max(errors[value]));
            for value in values {
                has_changed |= errors[value] < most;
                errors[value] = most;
            }
        }
    }
}

/// Errors from their squares.
fn roots(squares: &Errors) -> Errors {
    let mut errors = Errors::default();
    for (value, square) in squares.iter() {
        errors[value] = square.sqrt();
    }
    errors
}
