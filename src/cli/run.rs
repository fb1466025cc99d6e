//! `ampc run`: compute the outputs of a model.

use super::args::RunArgs;
use super::data::{self, Shows};
use super::diagnose;
use super::pipeline::{load, warn_of_reading};
use super::problem::Failure;
use super::profile::{Measured, ProfileOutput};
use super::progress::Progress;
use super::table::{Table, bytes, elapsed, number};
use super::ui::{self, Ui};
use ampc::execute::outputs::{self, OutputForm, Results};
use ampc::execute::{self, Inputs, StepTimes, input_names, output_names, statistics};
use ampc::runtime::session::{Certainty, DeviceBytes};
use ampc::runtime::{Data, HostTensor, Session};
use ampc::{Error, Model};
use std::time::{Duration, Instant};

pub(crate) fn run(args: &RunArgs, threads: Option<u32>, ui: Ui) -> Result<(), Failure> {
    data::refuse_dims_of_data(&args.data)?;
    let backend = data::backend(&args.device, threads, ui)?;
    if let Some(path) = &args.outputs {
        OutputForm::of(path).map_err(|e| diagnose::failure(&e, None))?;
    }
    let progress = Progress::start(ui);
    progress.stage("reading");
    let mut model = load(&args.model, ui)?;
    progress.suspend(|| warn_of_reading(&model, None, ui));
    let mut runtime = data::runtime(backend, &args.limits);
    runtime.limits.max_device_bytes = args.device.max_device_bytes;
    let mut session = {
        let prepared = execute::prepare(&mut model.module, &runtime);
        prepared.map_err(|e| diagnose::failure(&e, Some(&model.module)))?
    };
    let fail = |error: Error| diagnose::failure(&error, Some(&model.module));
    let inputs = progress.suspend(|| data::inputs(&args.data, &model.module, &runtime, ui))?;
    let names = output_names(&model.module);
    if let Some(path) = &args.outputs {
        outputs::check(path, &inputs, names.len(), args.force, &model.files()).map_err(fail)?;
    }
    let wanted = ProfileOutput::of(&args.profiling, args.force, &model.files())?;
    progress.stage("planning");
    let fail_on = |error: Error| data::failure_on(&inputs.dims, &error, &model.module, Shows::Nodes);
    execute::bind(&mut session, &inputs.values).map_err(fail_on)?;
    if args.print_plan {
        let mut plan = session.plan_text();
        if let Some(bytes) = session.device_bytes() {
            plan += &device_memory(&bytes);
        }
        progress.suspend(|| ui::show(&plan))?;
    }
    progress.stage("running");
    let made = execute::run(&mut session, &inputs.values).map_err(fail_on)?;
    if let Some(path) = &args.outputs {
        progress.stage("writing");
        let input_names = input_names(&model.module);
        let results =
            Results { inputs: &inputs, input_names: &input_names, outputs: &made, output_names: &names };
        outputs::save(path, &results, args.force, &model.files()).map_err(|e| diagnose::failure(&e, None))?;
    }
    let mut text = table(&names, &made);
    if let Some(n) = args.bench {
        progress.stage("measuring");
        text.push_str(&bench(&mut session, &inputs, n, &model)?);
        if args.profile {
            text.push_str(&profile(&mut session, &inputs, n, &model, &wanted, args)?);
        }
    }
    drop(progress);
    ampc::files::unchanged(&model.files()).map_err(|e| diagnose::failure(&e, None))?;
    ui::show(&text)
}

/// A line on the memory of a device.
fn device_memory(bytes: &DeviceBytes) -> String {
    let DeviceBytes { constants, inputs, states, arenas, heap, certainty } = *bytes;
    let bound = match certainty {
        Certainty::Exact => "",
        Certainty::AtMost => "at most ",
        Certainty::AtLeast => "at least ",
    };
    let heap = if heap > 0 { format!(", {heap} of values outside of arenas") } else { String::new() };
    format!(
        "device memory {bound}{} bytes: {constants} of constants, {inputs} of inputs, {states} of states, {arenas} of arenas{heap}; \
         `--max-device-bytes {}` permits it, with a second set of inputs for runs in flight\n",
        bytes.total(),
        bytes.total_in_flight()
    )
}

/// A line per output: its type, and statistics of its elements.
fn table(names: &[String], outputs: &[Data]) -> String {
    let mut table = Table::new(0, &[false, false, true, true, true, true, true]);
    table.row(["output", "type", "min", "max", "mean", "NaN", "inf"]);
    for (name, output) in names.iter().zip(outputs) {
        rows(&mut table, name, output);
    }
    if names.is_empty() { String::new() } else { table.to_string() }
}

/// Elements of a sequence shown.
const ITEMS: usize = 16;

fn rows(table: &mut Table, name: &str, output: &Data) {
    match output {
        Data::Tensor(tensor) => table.row(row(name, tensor)),
        Data::Device(_) => table.row([name, "on a device"]),
        Data::Sequence(sequence) => {
            table.row([name.to_owned(), format!("sequence of {}", sequence.items().len())]);
            for (i, item) in sequence.items().iter().take(ITEMS).enumerate() {
                rows(table, &format!("{name}[{i}]"), item);
            }
        }
        Data::Optional(maybe) => match &maybe.value {
            Some(value) => rows(table, name, value),
            None => table.row([name, "none"]),
        },
    }
}

fn row(name: &str, tensor: &HostTensor) -> Vec<String> {
    let dims: Vec<String> = tensor.dims().iter().map(u64::to_string).collect();
    let mut cells = vec![name.to_owned(), format!("{}[{}]", tensor.dtype(), dims.join(", "))];
    if let Some(found) = statistics(tensor) {
        let shown = |x: f64| if x.is_nan() { "-".to_owned() } else { digits(x) };
        cells.extend([shown(found.min), shown(found.max), shown(found.mean)]);
        cells.extend([number(found.nan), number(found.inf)]);
    }
    cells
}

/// A number with six digits.
pub(crate) fn digits(x: f64) -> String {
    if x == 0.0 || (x.abs() >= 1e-3 && x.abs() < 1e6) {
        let text = format!("{x:.6}");
        let short = text.trim_end_matches('0').trim_end_matches('.');
        return if short == "-0" { "0".into() } else { short.into() };
    }
    if x.is_finite() { format!("{x:.5e}") } else { x.to_string() }
}

/// The number of runs before the clock starts, beside the run that made the outputs.
const WARM_UP: u32 = 1;

fn bench(session: &mut Session, inputs: &Inputs, n: u32, model: &Model) -> Result<String, Failure> {
    let views = execute::views(&inputs.values);
    let mut once = || -> Result<Duration, Failure> {
        let start = Instant::now();
        let ran = session.run_to(&views, |_, _| {});
        let time = start.elapsed();
        ran.map_err(|e| diagnose::failure(&execute::of_run(&model.module, &e), Some(&model.module)))?;
        Ok(time)
    };
    for _ in 0..WARM_UP {
        once()?;
    }
    let mut times = (0..n).map(|_| once()).collect::<Result<Vec<Duration>, Failure>>()?;
    times.sort_unstable();
    let mean = times.iter().sum::<Duration>() / n;
    let mut table = Table::new(0, &[]);
    table.row(["runs".to_owned(), number(u64::from(n))]);
    table.row(["min".to_owned(), elapsed(times[0])]);
    table.row(["median".to_owned(), elapsed(median(&times))]);
    table.row(["mean".to_owned(), elapsed(mean)]);
    table.row(["arenas".to_owned(), bytes(session.allocated_bytes() as u64)]);
    table.row(["constants".to_owned(), bytes(session.constant_bytes())]);
    Ok(format!("\n{table}"))
}

/// The profile of `n` runs.
fn profile(
    session: &mut Session,
    inputs: &Inputs,
    n: u32,
    model: &Model,
    wanted: &ProfileOutput<'_>,
    args: &RunArgs,
) -> Result<String, Failure> {
    let views = execute::views(&inputs.values);
    let mut times = StepTimes::new();
    for _ in 0..n {
        times.restart();
        let ran = session.run_to_observed(&views, Some(&mut times), |_, _| {});
        ran.map_err(|e| diagnose::failure(&execute::of_run(&model.module, &e), Some(&model.module)))?;
    }
    let plans = session.plans();
    let measured = Measured { module: session.module(), times: &times, runs: n, plans: plans.as_ref() };
    wanted.report(&measured, &args.device.device, args.force, &model.files())
}

/// The median of sorted times, of which there is at least one.
fn median(times: &[Duration]) -> Duration {
    let middle = times.len() / 2;
    if times.len().is_multiple_of(2) { (times[middle - 1] + times[middle]) / 2 } else { times[middle] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_six_digits() {
        let shown: Vec<String> =
            [0.0, 1.0, -0.25, 1e-7, 65504.0, 1e9, f64::INFINITY, -0.0].map(digits).into();
        assert_eq!(shown, ["0", "1", "-0.25", "1.00000e-7", "65504", "1.00000e9", "inf", "0"]);
    }
}
