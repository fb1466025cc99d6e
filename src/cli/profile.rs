//! `--profile`: the time of each step, beside the least time that a target allows.

use super::args::ProfileArgs;
use super::plan::{LowerBounds, operators, ratio};
use super::problem::Failure;
use super::settings;
use super::table::{Table, duration, elapsed, number};
use ampc::Error;
use ampc::execute::{Plans, StepTimes};
use ampc::ir::{Module, Node};
use ampc::onnx::bytes::SourceBytes;
use ampc::passes::{Paths, Profile};
use serde_json::json;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Steps shown that take the most time.
const SLOWEST: usize = 10;

/// The target and the file of a profile, checked before any work is done.
pub(crate) struct ProfileOutput<'a> {
    args: &'a ProfileArgs,
    target: Option<Profile>,
}

impl<'a> ProfileOutput<'a> {
    /// Reads the target, and checks that the file may be written.
    ///
    /// # Errors
    /// If there is no such target, or the file exists.
    pub(crate) fn of(
        args: &'a ProfileArgs,
        force: bool,
        read: &[Arc<SourceBytes>],
    ) -> Result<ProfileOutput<'a>, Failure> {
        let target = args.target.as_deref().map(settings::read_target).transpose()?;
        if let Some(path) = &args.profile_json {
            if path.extension().is_none_or(|ending| ending != "json") && !ampc::files::is_stream(path) {
                let message =
                    format!("`--profile-json {}`: expected a name that ends in .json", path.display());
                return Err(Failure::usage("profile_json", message));
            }
            ampc::files::check(path, force, read).map_err(|e| super::diagnose::failure(&e, None))?;
        }
        Ok(ProfileOutput { args, target })
    }

    /// The tables of a profile; writes the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn report(
        &self,
        measured: &Measured<'_>,
        device: &str,
        force: bool,
        read: &[Arc<SourceBytes>],
    ) -> Result<String, Failure> {
        let bounds =
            measured.plans.map(|plans| LowerBounds::of(measured.module, plans, self.target.as_ref()));
        if let (Some(path), Some(bounds)) = (&self.args.profile_json, &bounds) {
            let mut document = bounds.json(device, &|step| measured.of(&step.nodes));
            document["runs"] = json!(measured.runs);
            let text = format!("{document:#}\n");
            let written = ampc::files::write(path, text.as_bytes(), force, read);
            written.map_err(|error: Error| super::diagnose::failure(&error, None))?;
        }
        Ok(measured.tables(bounds.as_ref().filter(|_| self.target.is_some())))
    }
}

/// The times of the steps of a model over some runs.
pub(crate) struct Measured<'a> {
    pub(crate) module: &'a Module,
    pub(crate) times: &'a StepTimes,
    pub(crate) runs: u32,
    /// The plans that ran.
    pub(crate) plans: Option<&'a Plans>,
}

impl Measured<'_> {
    /// The mean picoseconds of one execution of a step.
    fn of(&self, nodes: &[Node]) -> Option<u64> {
        let (_, time, count) = self.times.steps().find(|(of, ..)| *of == nodes)?;
        let picoseconds = time.as_nanos().saturating_mul(1000) / u128::from(count.max(1));
        u64::try_from(picoseconds).ok()
    }

    /// The share of each operator and each kind of group, and the steps that take the most time.
    fn tables(&self, bounds: Option<&LowerBounds<'_>>) -> String {
        let paths = Paths::of(self.module);
        let names = |nodes: &[Node]| {
            let names: Vec<String> =
                nodes.iter().map(|&node| self.module.op_name(node).1.to_owned()).collect();
            operators(&names)
        };
        let mut steps: Vec<(&[Node], Duration, u64)> = self.times.steps().collect();
        let mut kinds: BTreeMap<String, (u64, Duration)> = BTreeMap::new();
        for &(nodes, time, _) in &steps {
            let (count, sum) = kinds.entry(names(nodes)).or_default();
            *count += 1;
            *sum += time;
        }
        let whole = steps.iter().map(|(_, time, _)| time.as_secs_f64()).sum::<f64>().max(f64::MIN_POSITIVE);
        let columns = |time: Duration| {
            let seconds = time.as_secs_f64();
            [elapsed(time / self.runs), format!("{:.1} %", seconds / whole * 100.0)]
        };
        let mut kinds: Vec<_> = kinds.into_iter().collect();
        kinds.sort_by_cached_key(|(name, (_, time))| (Reverse(*time), name.clone()));
        let mut table = Table::new(0, &[false, true, true, true]);
        table.row(["operator", "steps", "time", "share"]);
        for (name, (count, time)) in kinds {
            table.row([name, number(count)].into_iter().chain(columns(time)));
        }
        steps.sort_by_key(|&(nodes, time, _)| (Reverse(time), nodes));
        let mut slowest = Table::new(0, &[false, false, true, true, true, true]);
        let heading = ["last node", "operator", "time", "share"];
        slowest
            .row(heading.into_iter().chain(bounds.map(|_| ["least", "time / least"]).into_iter().flatten()));
        for (nodes, time, count) in steps.into_iter().take(SLOWEST) {
            let name = nodes.last().map_or_else(String::new, |&node| paths.path(node).to_owned());
            let least = bounds.map(|bounds| self.least(bounds, nodes, time, count));
            slowest.row(
                [name, names(nodes)].into_iter().chain(columns(time)).chain(least.into_iter().flatten()),
            );
        }
        format!("\n{table}\n{slowest}{}", bounds.map_or_else(String::new, |bounds| self.sum(bounds)))
    }

    /// The least time of the executions of a step in one run, and the ratio of its time to it.
    fn least(&self, bounds: &LowerBounds<'_>, nodes: &[Node], time: Duration, count: u64) -> [String; 2] {
        let Some(load) = bounds.roofline.load_of(nodes) else { return ["-".into(), "-".into()] };
        let least = load.least.saturating_mul(count) / u64::from(self.runs);
        [duration(least), ratio(self.per_run(time), least)]
    }

    /// A line with the time of all steps beside the least time of the plan.
    fn sum(&self, bounds: &LowerBounds<'_>) -> String {
        let time = self.times.steps().map(|(_, time, _)| time).sum::<Duration>();
        let (time, least) = (self.per_run(time), bounds.roofline.total.least);
        format!(
            "\nall steps  {}, {} the least time {}\n",
            duration(time),
            ratio(time, least),
            duration(least)
        )
    }

    /// The picoseconds of one run.
    fn per_run(&self, time: Duration) -> u64 {
        u64::try_from((time / self.runs).as_nanos().saturating_mul(1000)).unwrap_or(u64::MAX)
    }
}
