//! The data of a run: values for the inputs, and limits.

use super::args::{DataArgs, LimitArgs};
use super::diagnose;
use super::problem::Failure;
use super::settings::ReadFile;
use super::shown;
use super::ui::Ui;
use ampc::execute::Inputs;
use ampc::execute::inputs::Dims;
use ampc::ir::Module;
use ampc::runtime::Cpu;
use std::fs;
use std::path::PathBuf;

/// The backend with the limits that were asked for.
pub(crate) fn cpu(threads: Option<u32>, limits: &LimitArgs) -> Cpu {
    let default = Cpu::default();
    Cpu {
        threads: threads.map_or(0, |threads| usize::try_from(threads).unwrap_or(0)),
        max_iterations: limits.max_iterations.unwrap_or(default.max_iterations),
        time_limit: limits.time_limit,
        ..default
    }
}

/// The size of dims that have none when a model is run.
pub(crate) const ONE: u64 = 1;
/// The size of dims that have none when models are compared: with one, recurrences, attention and reductions would
/// have nothing to do.
pub(crate) const SOME: u64 = 8;

/// The files that [`inputs`] reads: one, or those of a folder of test data.
pub(crate) fn files(args: &DataArgs) -> Vec<ReadFile> {
    let Some(path) = &args.inputs else { return Vec::new() };
    let of = |path: PathBuf| ReadFile { what: "the inputs", path };
    match fs::read_dir(path) {
        Ok(entries) => {
            let names = entries.flatten().map(|entry| path.join(entry.file_name()));
            names.filter(|file| file.extension().is_some_and(|e| e == "pb")).map(of).collect()
        }
        Err(_) => vec![of(path.clone())],
    }
}

/// The values that were asked for, to run a model on. Dims that neither the model nor the command line gives a size get
/// 1. Values that were chosen because no argument gives them are reported on standard error.
///
/// # Errors
/// If they cannot be read, or do not fit the model.
pub(crate) fn inputs(args: &DataArgs, module: &Module, cpu: &Cpu, ui: Ui) -> Result<Inputs, Failure> {
    let one = |dims: &Dims, seed| Ok(vec![Inputs::random(module, seed, dims, cpu.max_bytes)?]);
    let mut drawn = drawn(args, module, cpu, ONE, ui, one)?;
    drawn.pop().ok_or_else(|| Failure::usage("inputs", "expected values for the inputs, found none"))
}

/// The values that were asked for, to compare models on: in several draws if they are random. Dims that neither the
/// model nor the command line gives a size get [`SOME`], or 1 if the model does not fit that.
///
/// # Errors
/// If they cannot be read, or do not fit the model.
pub(crate) fn draws(args: &DataArgs, module: &Module, cpu: &Cpu, ui: Ui) -> Result<Vec<Inputs>, Failure> {
    drawn(args, module, cpu, SOME, ui, |dims, seed| Inputs::draws(module, seed, dims, cpu.max_bytes))
}

/// The sizes of dims that were asked for.
///
/// # Errors
/// If one dim has two.
pub(crate) fn dims(args: &DataArgs) -> Result<Dims, Failure> {
    let dims: Dims = args.dim.iter().cloned().collect();
    if dims.len() < args.dim.len() {
        return Err(Failure::usage("dim", "`--dim`: one dim has two sizes"));
    }
    Ok(dims)
}

fn drawn(
    args: &DataArgs,
    module: &Module,
    cpu: &Cpu,
    otherwise: u64,
    ui: Ui,
    draw: impl Fn(&Dims, u64) -> Result<Vec<Inputs>, ampc::Error>,
) -> Result<Vec<Inputs>, Failure> {
    let fail = |error: ampc::Error| diagnose::failure(&error, Some(module));
    if let Some(path) = &args.inputs {
        return Ok(vec![Inputs::read(path, module, cpu.max_bytes).map_err(fail)?]);
    }
    let dims = dims(args)?;
    let seed = args.random.unwrap_or(0);
    let mut drawn = draw(&dims, seed).map_err(fail)?;
    let bound = drawn.first().map_or_else(Vec::new, |inputs| inputs.dims.clone());
    if otherwise != ONE && bound.iter().any(|dim| !dim.asked) {
        let sizes = bound.iter().map(|dim| (dim.name.clone(), if dim.asked { dim.size } else { otherwise }));
        if let Ok(mut larger) = draw(&sizes.collect(), seed) {
            for inputs in &mut larger {
                inputs.dims.iter_mut().zip(&bound).for_each(|(dim, bound)| dim.asked = bound.asked);
            }
            drawn = larger;
        }
    }
    let Some(inputs) = drawn.first() else { return Ok(drawn) };
    if args.random.is_none() && inputs.values.iter().any(Option::is_some) {
        let draws: Vec<&str> = drawn.iter().map(|inputs| inputs.about.as_str()).collect();
        let several = if draws.len() > 1 {
            format!(", in {} draws: {}", draws.len(), draws.join(", then "))
        } else {
            String::new()
        };
        ui.say(&format!("inputs are random, of seed {seed}{several}; `--inputs DATA` gives others"));
    }
    let chosen: Vec<String> = inputs
        .dims
        .iter()
        .filter(|dim| !dim.asked)
        .map(|dim| format!("{} = {}", dim.name, dim.size))
        .collect();
    if !chosen.is_empty() {
        let said = format!("dims without a number: {}; `--dim NAME=N` gives others", chosen.join(", "));
        ui.say(&shown::message(&said));
    }
    if !inputs.scalars.is_empty() {
        let names = inputs.scalars.join(", ");
        let said =
            format!("inputs without a number of dims, which got none: {names}; `--inputs DATA` gives others");
        ui.say(&shown::message(&said));
    }
    Ok(drawn)
}
