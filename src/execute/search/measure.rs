//! Measuring choices: the rewrite of a choice runs on the data, and its outputs are compared with those of the source.

use super::metric::Numbered;
use super::{Evidence, SearchOptions};
use crate::error::Error;
use crate::execute::Inputs;
use crate::execute::loops::limits_of_rewrites;
use crate::execute::pinned::with_pins;
use crate::execute::session::{prepare, run};
use crate::interface::output_names;
use crate::options::RewriteOptions;
use crate::report::Report;
use ampc_ir::{DType, Module};
use ampc_passes::guard::Statistics;
use ampc_runtime::{HostTensor, Runtime};
use serde::Serialize;
use std::cmp::Ordering;
use std::sync::Arc;

/// A choice that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The number of pins that the search adds to the policy.
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
    /// The cost by which choices are compared: predicted time, in which an fp32 product also costs casts of its operands and
    /// results ([`cost_with`](ampc_passes::choices::Choices::cost_with)), as a share of the cost of the choice without pins.
    pub cost: f64,
    /// The largest error of an output on the data, up to the first batch on which an output is beyond its tolerance; infinite if
    /// an output is not finite where that of the source is, or the rewrite cannot be computed.
    #[serde(serialize_with = "crate::execute::number::number")]
    pub error: f64,
    /// The output with the largest error in relation to its tolerance.
    pub output: String,
    /// The error divided by the tolerance; the output is within the tolerance up to 1.
    #[serde(serialize_with = "crate::execute::number::number")]
    pub ratio: f64,
}

impl Point {
    /// True if all outputs are within their tolerances.
    pub fn passed(&self) -> bool {
        self.ratio <= 1.0
    }

    pub(super) fn is_cheaper(&self, other: &Point) -> bool {
        self.order(other).is_lt()
    }

    /// The order by cost; of equal costs by fp32 nodes, casts, error and pins.
    pub(super) fn order(&self, other: &Point) -> Ordering {
        let counts = self.full.cmp(&other.full).then(self.casts.cmp(&other.casts));
        let errors = self.ratio.total_cmp(&other.ratio).then(self.pins.cmp(&other.pins));
        self.cost.total_cmp(&other.cost).then(counts).then(errors)
    }
}

/// The outputs of a model.
type Numbers = Vec<Numbered>;

/// A measured choice.
pub(super) struct Trial {
    pub(super) point: Point,
    /// The output with the largest error in relation to its tolerance.
    output: usize,
    /// The batch with the largest error, and the outputs on it.
    worst: (usize, Numbers),
}

impl Trial {
    /// The batch with the largest error.
    pub(super) fn batch(&self) -> usize {
        self.worst.0
    }
}

/// Measures choices: holds the outputs of the source on each batch.
pub(super) struct Measurer<'a> {
    source: &'a Module,
    options: RewriteOptions,
    batches: &'a [Inputs],
    search: &'a SearchOptions,
    runtime: Runtime,
    /// The outputs of the source on each batch.
    wanted: Vec<Numbers>,
    names: Vec<String>,
    /// The tolerances of the outputs on each batch.
    tolerances: Vec<Vec<f64>>,
    /// The statistics of the constants of the source, which all rewrites share.
    statistics: Statistics,
}

impl<'a> Measurer<'a> {
    /// Runs the source on all batches.
    ///
    /// # Errors
    /// If the source cannot be run, or lacks an output that has a tolerance of its own.
    pub(super) fn new(
        source: &'a Module,
        options: RewriteOptions,
        batches: &'a [Inputs],
        search: &'a SearchOptions,
    ) -> Result<Measurer<'a>, Error> {
        let names = output_names(source);
        if let Some(name) = search.tolerances.keys().find(|name| !names.contains(name)) {
            return Err(Error::Usage(format!("`{name}` has a tolerance, but is no output of the model")));
        }
        let of_batch = |batch: usize| -> Vec<f64> {
            let own = search.batch_tolerances.get(batch);
            let own =
                |name: &String| own.and_then(|own| own.get(name)).or_else(|| search.tolerances.get(name));
            names.iter().map(|name| own(name).copied().unwrap_or(search.tolerance)).collect()
        };
        let tolerances = (0..batches.len()).map(of_batch).collect();
        let mut reference = source.clone();
        // The rewrites share their constants, whatever their formats.
        let runtime = Runtime { shared: Some(Arc::default()), ..search.runtime.clone() };
        let mut session = prepare(&mut reference, &runtime)?;
        let mut wanted = Vec::with_capacity(batches.len());
        for batch in batches {
            wanted.push(run(&mut session, &batch.values)?.iter().map(Numbered::of).collect());
        }
        let limits = limits_of_rewrites(&mut session, batches, &runtime.limits)?;
        let runtime = Runtime { limits, ..runtime };
        let statistics = Statistics::default();
        Ok(Measurer { source, options, batches, search, runtime, wanted, names, tolerances, statistics })
    }

    /// Measures the rewrite with these pins on batches, up to the first batch on which an output is beyond its tolerance.
    /// `cost` is the cost of the choice ([`Point::cost`]).
    ///
    /// # Errors
    /// If the rewrite fails, or its run is beyond a limit of memory or time.
    pub(super) fn trial(&mut self, pins: &[String], batches: &[usize], cost: f64) -> Result<Trial, Error> {
        let paths = pins.iter().map(String::as_str);
        let (mut module, report) = with_pins(self.source, &self.options, paths, &[], &mut self.statistics)?;
        let mut session = prepare(&mut module, &self.runtime)?;
        let mut worst: Option<(f64, usize, usize, Numbers)> = None;
        for &batch in batches {
            // One batch suffices to reject a choice.
            if worst.as_ref().is_some_and(|(ratio, ..)| *ratio > 1.0) {
                break;
            }
            let inputs = self.batches[batch].for_other(self.source, session.module())?;
            let found: Numbers = match run(&mut session, &inputs.values) {
                Ok(outputs) => outputs.iter().map(Numbered::of).collect(),
                // Rounded values may be indices out of range, or keep a loop from ending. The source ended within the limit
                // of time.
                Err(Error::Run(finding)) if finding.is_of_values() || finding.code == "time" => {
                    self.wanted[batch].iter().map(Numbered::not_computed).collect()
                }
                Err(error) => return Err(error),
            };
            let ratios = (0..found.len()).map(|at| (self.ratio(at, batch, &found), at));
            let most = ratios.max_by(|(a, _), (b, _)| a.total_cmp(b)).unwrap_or_default();
            if worst.as_ref().is_none_or(|(ratio, ..)| most.0 > *ratio) {
                worst = Some((most.0, most.1, batch, found));
            }
        }
        let (ratio, output, batch, found) = worst.unwrap_or_default();
        let error = if found.is_empty() { 0.0 } else { self.error_of(output, &self.wanted[batch], &found) };
        let name = self.names.get(output).cloned().unwrap_or_default();
        let point = point(pins.len(), &report, cost, (name, error, ratio));
        Ok(Trial { point, output, worst: (batch, found) })
    }

    /// True if a float output is beyond its tolerance.
    pub(super) fn has_float_beyond(&self, trial: &Trial) -> bool {
        let (batch, found) = &trial.worst;
        let is_beyond = |at: usize| self.is_float(at) && self.ratio(at, *batch, found) > 1.0;
        (0..self.names.len()).any(is_beyond)
    }

    /// The weights of the elements of each output in the error of a choice, in the unit of the metric of its worst output:
    /// weights of other outputs are scaled by the ratio of the tolerances. `None` if there are no weights for an output.
    pub(super) fn weights(&self, trial: &Trial) -> Vec<Option<HostTensor>> {
        let (batch, found) = &trial.worst;
        let wanted = &self.wanted[*batch];
        let weights = (0..wanted.len()).map(|at| {
            let (wanted_of, found_of) = (&wanted[at], &found[at]);
            // An output counts by how near its error is to its tolerance.
            let share = (self.ratio(at, *batch, found) / trial.point.ratio).min(1.0);
            let share = if share.is_nan() { 1.0 } else { share };
            let unit = self.tolerances[*batch][trial.output] / self.tolerances[*batch][at];
            let unit = if unit.is_finite() { unit } else { 1.0 };
            #[expect(clippy::cast_possible_truncation, reason = "weights are of fp32 values")]
            let scale = (share * unit) as f32;
            let weights = self.search.metric.weights(&wanted_of.numbers, &found_of.numbers);
            let weights: Vec<f32> = weights.iter().map(|weight| weight * scale).collect();
            HostTensor::from_slice(&wanted_of.dims, &weights).ok()
        });
        weights.collect()
    }

    /// The runtime of the rewrites.
    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The evidence of the outputs of the source.
    pub(super) fn evidence(&self) -> Evidence {
        let numbers = self.wanted.iter().flatten().flat_map(|output| &output.numbers);
        let largest = numbers.filter(|number| number.is_finite()).map(|number| number.abs()).reduce(f64::max);
        match largest {
            None => Evidence::Nothing,
            Some(0.0) => Evidence::Zeros,
            Some(_) => Evidence::Numbers,
        }
    }

    fn is_float(&self, output: usize) -> bool {
        let value = self.source.graph(self.source.main()).outputs()[output].value;
        self.source.value(value).ty.dtype().is_some_and(DType::is_float)
    }

    /// The error of an output; infinite if the metric gives NaN.
    fn error_of(&self, output: usize, wanted: &Numbers, found: &Numbers) -> f64 {
        let error = self.search.metric.error_of(&wanted[output], &found[output]);
        if error.is_nan() { f64::INFINITY } else { error }
    }

    /// The error of an output on a batch in relation to its tolerance.
    fn ratio(&self, output: usize, batch: usize, found: &Numbers) -> f64 {
        let error = self.error_of(output, &self.wanted[batch], found);
        if error == 0.0 { 0.0 } else { error / self.tolerances[batch][output] }
    }
}

fn point(pins: usize, report: &Report, cost: f64, (output, error, ratio): (String, f64, f64)) -> Point {
    let time = report.time.as_ref().filter(|time| time.source > 0);
    #[expect(clippy::cast_precision_loss, reason = "a ratio with a few digits")]
    let time = time.map(|time| time.rewritten as f64 / time.source as f64);
    Point {
        pins,
        full: report.summary.full,
        low: report.summary.low,
        casts: report.casts.inserted,
        bytes: report.constants.bytes_after,
        time,
        cost,
        error,
        output,
        ratio,
    }
}
