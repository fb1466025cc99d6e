//! The search for the cheapest choice of formats whose measured error is within a tolerance.
//!
//! The policy decides which nodes may be low. The search adds fp32 nodes, as few and as cheap as it finds. The method is
//! Lagrangian relaxation: a price for error, the multiplier, makes the constraint a term of the minimum cut, and the price is
//! bisected.
//!
//! 1. *Measure* the rewrite by the policy on the data. If its error is within the tolerance, it is the result. Measure the
//!    rewrite with all nodes in fp32: if its error is beyond the tolerance, there is no result.
//! 2. *Attribute* the error: one backward pass gives every value the share of its rounding in it (`attribution.rs`).
//! 3. *Choose* with a price for error: the minimum cut finds the least predicted time plus price times error
//!    ([`Choices::low_at_price`](ampc_passes::choices::Choices::low_at_price)). Nodes that are low by the policy, and fp32 in
//!    this choice, are pinned to fp32.
//! 4. *Bisect* the price, to find the least price at which the measured error is within the tolerance.
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
//! Every choice is measured by a run with true rounding, so the attribution, which holds to first order, proposes choices and
//! never accepts a choice. The number of choices is bounded. With several batches, the last batch is held out: the result is
//! measured on it at the end. If the result fails there, the other choices within the tolerance are measured on all batches,
//! the cheapest first, and if all of them fail, the search begins again on all batches.

mod attribution;
mod measure;
mod metric;
mod space;

pub use self::measure::Point;
pub use self::metric::{CustomMetric, Metric, UnknownMetric};

use self::attribution::{Attribution, Errors};
use self::measure::{Measurer, Trial};
use self::space::Space;
use super::Inputs;
use super::shrink::shrink;
use crate::error::Error;
use crate::loaded::Model;
use crate::options::RewriteOptions;
use crate::rewrite::raised_for_casts;
use ampc_ir::DType;
use ampc_passes::flow::Var;
use ampc_runtime::Runtime;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;

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
    /// The tolerances of outputs by name for each batch, which override `tolerances`; empty if they are equal on all batches.
    pub batch_tolerances: Vec<BTreeMap<String, f64>>,
    /// The maximal number of choices that are measured.
    pub choices: usize,
    /// True to hold out the last of several batches: the result is measured on it.
    pub holds_out: bool,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Found {
    /// The nodes to pin to fp32, in the order of the model. With them, the outputs are within the tolerance if
    /// [`point`](Self::point) is; otherwise, these are the pins of the choice with the least error.
    pub pins: Vec<String>,
    /// The choice on the search batches.
    pub point: Point,
    /// The choice on the held-out batch; `None` if no batch is held out.
    pub held_out: Option<Point>,
    /// The first result on the held-out batch, if it failed there and the search went on with all batches.
    pub failed: Option<Point>,
    /// The choices that were measured on the same batches as the result, in order.
    pub points: Vec<Point>,
    /// The number of all choices that were measured.
    pub measured: usize,
    /// True if the caller or the number of choices ended the search.
    pub is_partial: bool,
    /// True if roundings could not be attributed, since a backward pass was beyond a limit of memory or time, or since an output
    /// has no weights, so that the choices were found without their shares.
    pub is_unattributed: bool,
    /// The evidence of the outputs of the model.
    pub evidence: Evidence,
}

/// The evidence that the outputs of a model give about a choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// An element is a number other than 0.
    Numbers,
    /// All finite elements are 0.
    Zeros,
    /// No element is a finite number.
    Nothing,
}

impl Found {
    /// True if all outputs are within their tolerances, on the held-out batch as well.
    pub fn passed(&self) -> bool {
        self.point.passed() && self.held_out.as_ref().is_none_or(Point::passed)
    }

    /// The choices such that no cheaper choice has as little error, by ascending [`Point::ratio`].
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

/// Searches for the cheapest choice of formats for `model` that is within the tolerance on batches of inputs. `on_choice`
/// receives each choice that was measured, and returns false to stop the search.
///
/// # Errors
/// If there is no batch, the model cannot be rewritten or run, or an output of `tolerances` does not exist.
pub fn search(
    model: &Model,
    options: &RewriteOptions,
    batches: &[Inputs],
    search: &SearchOptions,
    on_choice: &mut dyn FnMut(&Point) -> bool,
) -> Result<Found, Error> {
    let mut search = Search::new(model, options, batches, search, on_choice)?;
    search.run()
}

struct Search<'a> {
    measurer: Measurer<'a>,
    space: Space,
    batches: &'a [Inputs],
    options: &'a SearchOptions,
    /// The format of low values.
    to: DType,
    on_choice: &'a mut dyn FnMut(&Point) -> bool,
    is_stopped: bool,
    /// The batches that choices are measured on.
    search_batches: Vec<usize>,
    /// The choices that were measured on the search batches.
    points: Vec<Point>,
    /// The number of choices that were measured on any batches.
    measured: usize,
    /// The number of measured choices at which the search ends.
    limit: usize,
    /// True if the search on the search batches came to its end.
    is_finished: bool,
    /// True if roundings could not be attributed.
    is_unattributed: bool,
    /// The measured choices by their pins.
    known: FxHashMap<Vec<Var>, Point>,
    best: Option<(Vec<Var>, Point)>,
}

/// A step of the price.
const STEP: f64 = 4.0;

/// The prices that are tried: powers of [`STEP`] times the price at which the sum of all errors costs as much as the model.
const EXPONENTS: Range<f64> = -12.0..24.0;

/// The bisection ends when the bounds of the price differ by a factor of √2.
const RESOLUTION: f64 = 0.25;

/// 1 / `RESERVED` of the choices is reserved for another search if the result fails on the held-out batch.
const RESERVED: usize = 4;

/// The maximal number of attributions.
const ROUNDS: usize = 3;

impl<'a> Search<'a> {
    fn new(
        model: &'a Model,
        options: &RewriteOptions,
        batches: &'a [Inputs],
        search: &'a SearchOptions,
        on_choice: &'a mut dyn FnMut(&Point) -> bool,
    ) -> Result<Search<'a>, Error> {
        let raised = raised_for_casts(model, options)?;
        let options = raised.map_or_else(|| options.clone(), |(options, _)| options);
        let space = Space::new(model, &options)?;
        let n_held_out = usize::from(search.holds_out && batches.len() > 1);
        Ok(Search {
            space,
            batches,
            options: search,
            to: options.to,
            measurer: Measurer::new(&model.module, options, batches, search)?,
            on_choice,
            is_stopped: false,
            search_batches: (0..batches.len() - n_held_out).collect(),
            points: Vec::new(),
            measured: 0,
            limit: 0,
            is_finished: false,
            is_unattributed: false,
            known: FxHashMap::default(),
            best: None,
        })
    }

    fn run(&mut self) -> Result<Found, Error> {
        let last = match self.batches.len() {
            0 => return Err(Error::Usage("there is no data to search on".into())),
            n => n - 1,
        };
        let holds_out = !self.search_batches.contains(&last);
        let reserved = if holds_out { self.options.choices / RESERVED } else { 0 };
        self.limit = self.options.choices - reserved;
        self.search()?;
        self.limit = self.options.choices;
        let (mut held_out, mut failed) = (None, None);
        if let (true, Some((pins, point))) = (holds_out, &self.best)
            && point.passed()
        {
            let pins = pins.clone();
            let trial = self.measure_on(&pins, &[last])?;
            if trial.point.passed() || self.is_over() {
                self.is_finished &= trial.point.passed();
                held_out = Some(trial.point);
            } else {
                failed = Some(trial.point);
                self.search_all(last)?;
            }
        }
        let (pins, point) = self.best.clone().expect("the first choice was measured");
        Ok(Found {
            pins: self.space.texts(&pins),
            point,
            held_out,
            failed,
            points: std::mem::take(&mut self.points),
            measured: self.measured,
            is_partial: !self.is_finished,
            is_unattributed: self.is_unattributed,
            evidence: self.measurer.evidence(),
        })
    }

    /// Searches on all batches after the result failed on the held-out batch: among the choices within the tolerance on the
    /// others, the cheapest first, and anew if all of them fail.
    fn search_all(&mut self, held_out: usize) -> Result<(), Error> {
        let failed = self.best.take().map(|(pins, _)| pins).unwrap_or_default();
        let all = self.space.all();
        let is_other = |pins: &[Var], point: &Point| point.passed() && pins != failed && pins != all;
        let known = std::mem::take(&mut self.known).into_iter();
        let mut others: Vec<(Vec<Var>, Point)> =
            known.filter(|(pins, point)| is_other(pins, point)).collect();
        others.sort_by(|(x, a), (y, b)| a.order(b).then_with(|| x.cmp(y)));
        self.search_batches.push(held_out);
        // Errors on fewer batches do not compare with those to come.
        self.points.clear();
        self.is_finished = false;
        for (pins, _) in others {
            if self.is_over() {
                return Ok(());
            }
            if self.measure(&pins)?.point.passed() {
                self.is_finished = true;
                return Ok(());
            }
        }
        if self.is_over() { Ok(()) } else { self.search() }
    }

    /// True if no further choice may be measured.
    fn is_over(&self) -> bool {
        self.is_stopped || self.measured >= self.limit
    }

    /// Searches on the search batches.
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
        let all = self.space.all();
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

    /// Attributes the error of a choice, and raises the square of the error of each value to the new square if that is larger.
    fn attribute(&mut self, trial: &Trial, decides: bool, squares: &mut Errors) -> Result<(), Error> {
        // Without a float output beyond its tolerance, only decisions before the outputs can be differentiated.
        let decides = decides || !self.measurer.has_float_beyond(trial);
        let mut found: Errors = Errors::default();
        let weights = self.measurer.weights(trial);
        let attribution = Attribution::new(&self.space.module, self.to, decides, self.measurer.runtime());
        let added =
            attribution.and_then(|mut all| all.add(&self.batches[trial.batch()], &weights, 1.0, &mut found));
        match added {
            Ok(true) => {}
            Ok(false) => {
                self.is_unattributed = true;
                return Ok(());
            }
            // A backward pass needs more memory and time than a run. Beyond a limit, the search only removes pins.
            Err(Error::Run(_) | Error::NoMemory(_)) => {
                self.is_unattributed = true;
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        self.space.share_through_ports(&mut found);
        for (value, square) in found.iter() {
            squares[value] = squares[value].max(*square);
        }
        Ok(())
    }

    /// Bisects the price, and returns the choice with the least error beyond the tolerance; `None` if no choice is beyond it,
    /// or all prices have been measured.
    fn bisect(&mut self, errors: &Errors) -> Result<Option<Trial>, Error> {
        let unit = self.space.unit(errors);
        let mut failing: Option<Trial> = None;
        // At the lowest price the choice fails, at the highest it passes if any does.
        let Range { start: mut low, end: mut high } = EXPONENTS;
        if !self.passes_at(errors, unit * STEP.powf(high), &mut failing)? {
            // Other roundings matter.
            return Ok(failing);
        }
        while high - low > RESOLUTION && !self.is_over() {
            let middle = f64::midpoint(low, high);
            match self.passes_at(errors, unit * STEP.powf(middle), &mut failing)? {
                true => high = middle,
                false => low = middle,
            }
        }
        Ok(failing)
    }

    /// True if the choice at a price is within the tolerance. A choice beyond it that is measured for the first time replaces
    /// `failing` if its error is less.
    fn passes_at(&mut self, errors: &Errors, price: f64, failing: &mut Option<Trial>) -> Result<bool, Error> {
        let pins = self.space.pins(errors, price)?;
        if let Some(point) = self.known.get(&pins) {
            return Ok(point.passed());
        }
        let trial = self.measure(&pins)?;
        let passed = trial.point.passed();
        if !passed && failing.as_ref().is_none_or(|last| trial.point.ratio < last.point.ratio) {
            *failing = Some(trial);
        }
        Ok(passed)
    }

    /// Removes pins as long as the error stays within the tolerance, the least errors first.
    fn remove(&mut self, errors: &Errors) -> Result<(), Error> {
        let Some((pins, point)) = self.best.clone() else { return Ok(()) };
        if point.passed() {
            let mut by_error: Vec<(f64, Var)> =
                pins.iter().map(|&var| (self.space.error(errors, var), var)).collect();
            by_error.sort_by(|(a, x), (b, y)| b.total_cmp(a).then(x.cmp(y)));
            let pins = by_error.into_iter().map(|(_, var)| var).collect();
            shrink(pins, 1, |rest: &[Var]| self.passes(rest))?;
        }
        self.is_finished = !self.is_over();
        Ok(())
    }

    /// True if a choice is within the tolerance; `None` if the search is over.
    fn passes(&mut self, pins: &[Var]) -> Result<Option<bool>, Error> {
        let mut pins = pins.to_vec();
        pins.sort_unstable();
        match self.known.get(&pins) {
            Some(point) => Ok(Some(point.passed())),
            None if self.is_over() => Ok(None),
            None => Ok(Some(self.measure(&pins)?.point.passed())),
        }
    }

    /// Measures a choice on the search batches.
    fn measure(&mut self, pins: &[Var]) -> Result<Trial, Error> {
        let batches = self.search_batches.clone();
        let trial = self.measure_on(pins, &batches)?;
        self.known.insert(pins.to_vec(), trial.point.clone());
        self.points.push(trial.point.clone());
        self.measured += 1;
        self.is_stopped |= !(self.on_choice)(&trial.point);
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
        let cost = self.space.cost(pins)?;
        self.measurer.trial(&self.space.texts(pins), batches, cost)
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
