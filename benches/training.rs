//! ampc's half of `training.py`: trains a forward model with a [`Trainer`] on the CPU.
//!
//! `training MODEL LOSS PRECISION BATCH THREADS STEPS` makes a training step with AdamW of a model, takes so many steps
//! with the batch of an `.npz` file, and prints a line of JSON: the median time of a step, the peak memory above what the
//! process begins with (VmHWM of Linux), what the plan predicts of it, and the losses. PRECISION is `fp32`, `fp16` or `bf16`.
//! Without arguments, as in a test, it does nothing.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and fails by panicking")]

use ampc::RewriteOptions;
use ampc::execute::Trainer;
use ampc::ir::DType;
use ampc::options::Opset;
use ampc::passes::step::Update;
use ampc::runtime::npz::{Archive, plain_name};
use ampc::runtime::{Cpu, HostTensor, Runtime};
use ampc::train::{TrainOptions, train_step};
use std::fs::File;
use std::io::BufReader;
use std::time::Instant;

/// Steps that are not counted: the first one plans, and takes its memory.
const WARM_UP: usize = 2;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let [model, loss, precision, batch, threads, steps] = &arguments[..] else { return };
    let before = memory("VmRSS:");
    let step = train_step(ampc::load(model).unwrap(), &options(loss, precision)).unwrap();
    let batch = read(batch);
    let batch: Vec<(&str, &HostTensor)> =
        batch.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let cpu = Runtime::from(Cpu::new(threads.parse().unwrap()));
    let mut trainer = Trainer::new(step.model, &step.state, &cpu).unwrap();
    drop(step.state);
    let (mut times, mut losses) = (Vec::new(), Vec::new());
    for _ in 0..WARM_UP + steps.parse::<usize>().unwrap() {
        let start = Instant::now();
        losses.push(trainer.step(&batch).unwrap().loss.unwrap());
        times.push(start.elapsed().as_secs_f64());
    }
    let times = &mut times[WARM_UP..];
    times.sort_by(f64::total_cmp);
    let peak = memory("VmHWM:").saturating_sub(before);
    let (seconds, predicted) = (times[times.len() / 2], trainer.peak().map_or(0, |peak| peak.bytes));
    println!(
        "{{\"seconds\": {seconds}, \"peak\": {peak}, \"predicted\": {predicted}, \"losses\": {losses:?}}}"
    );
}

/// The arrays of an `.npz` file, by name.
fn read(path: &str) -> Vec<(String, HostTensor)> {
    let mut archive = Archive::open(BufReader::new(File::open(path).unwrap())).unwrap();
    let names = archive.names().to_vec();
    let arrays = names.iter().enumerate();
    arrays.map(|(i, name)| (plain_name(name).to_owned(), archive.read(i, u64::MAX).unwrap())).collect()
}

fn options(loss: &str, precision: &str) -> TrainOptions {
    // Convolutions take bf16 from an opset on that the models are below.
    let rewrite = |to| Some(RewriteOptions { to, opset: Opset::Auto, ..RewriteOptions::default() });
    let (precision, scaler) = match precision {
        "fp16" => (rewrite(DType::F16), "ampc"),
        "bf16" => (rewrite(DType::BF16), "none"),
        _ => (None, "none"),
    };
    TrainOptions {
        precision,
        loss: loss.parse().unwrap(),
        update: Update { scaler: scaler.parse().unwrap(), ..Update::default() },
        ..TrainOptions::default()
    }
}

/// A line of /proc/self/status, in bytes.
fn memory(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let found = status.lines().find_map(|l| l.strip_prefix(line));
    found.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}
