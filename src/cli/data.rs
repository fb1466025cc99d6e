//! The data of a run: values for the inputs, and limits.

use super::args::{DataArgs, LimitArgs};
use super::diagnose;
use super::problem::Failure;
use super::settings::ReadFile;
use super::shown;
use super::ui::Ui;
use ampc::execute::Inputs;
use ampc::execute::inputs::{Dims, bound_dims};
use ampc::ir::Module;
use ampc::passes::cost::{BoundInputs, OpenDim, SizeSource, Sizes};
use ampc::runtime::Cpu;
use std::fs;
use std::path::PathBuf;

/// The backend with the requested limits.
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
/// Sizes for such dims if the model does not fit the preferred size: with strides, windows and lengths that are baked in.
const SIZES: [u64; 7] = [1, 8, 16, 32, 64, 128, 224];

/// The files that [`inputs`] reads: a single file, or the files of a folder of test data.
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

/// The requested values to run a model on. Dims that neither the model nor the command line gives a size get
/// 1, or the first of [`SIZES`] that fits the model. Values that were chosen because no argument gives them are
/// reported on standard error.
///
/// # Errors
/// If they cannot be read, or do not fit the model.
pub(crate) fn inputs(args: &DataArgs, module: &Module, cpu: &Cpu, ui: Ui) -> Result<Inputs, Failure> {
    let one = |dims: &Dims, seed| Ok(vec![Inputs::random(module, seed, dims, cpu.max_bytes)?]);
    let mut drawn = drawn(args, module, cpu, ONE, ui, one)?;
    drawn.pop().ok_or_else(|| Failure::usage("inputs", "expected values for the inputs, found none"))
}

/// The requested values to compare models on: in several draws if they are random. Dims that neither the
/// model nor the command line gives a size get [`SOME`], or the first of [`SIZES`] that fits the model.
///
/// # Errors
/// If they cannot be read, or do not fit the model.
pub(crate) fn draws(args: &DataArgs, module: &Module, cpu: &Cpu, ui: Ui) -> Result<Vec<Inputs>, Failure> {
    drawn(args, module, cpu, SOME, ui, |dims, seed| Inputs::draws(module, seed, dims, cpu.max_bytes))
}

/// The sizes of `--dim` by name.
///
/// # Errors
/// If one dim has two.
pub(crate) fn dims(asked: &[(String, u64)]) -> Result<Dims, Failure> {
    let dims: Dims = asked.iter().cloned().collect();
    if dims.len() < asked.len() {
        return Err(Failure::usage("dim", "`--dim`: one dim has two sizes"));
    }
    Ok(dims)
}

/// Draws inputs with sizes for all dims without a number: the first size of `otherwise` and [`SIZES`] that fits the model.
///
/// Example: a U-Net with the input `f32[N, 3, H, W]` halves H and W three times and concatenates the halves, so that it takes
/// no image of 1 x 1. `verify` tries N = H = W = 8, which fits. `run` tries 1, then N = 1 and H = W = 8.
///
/// # Errors
/// The error for the size `otherwise` if no size fits.
fn first_that_fits(
    module: &Module,
    asked: &Dims,
    otherwise: u64,
    draw: impl Fn(&Dims) -> Result<Vec<Inputs>, ampc::Error>,
) -> Result<Vec<Inputs>, ampc::Error> {
    let drawn = bound_dims(module, asked)?;
    let mut open = BoundInputs::new(module, asked).map_or_else(|_| Vec::new(), |bound| bound.dims);
    open.retain(|dim| drawn.iter().any(|drawn| drawn.name == dim.name));
    let size_of = |dim: &OpenDim, size: u64| match dim.source {
        SizeSource::Given => dim.size,
        // A batch that is asked for is the batch of all inputs.
        SizeSource::Batch if dim.size != Sizes::default().batch => dim.size,
        SizeSource::Batch => size.min(otherwise),
        SizeSource::Assumed => size,
    };
    let sized = |size: u64| open.iter().map(|dim| (dim.name.clone(), size_of(dim, size))).collect::<Dims>();
    let first = draw(&sized(otherwise));
    let others = SIZES.into_iter().filter(|&size| size != otherwise);
    let mut found = match (first, open.iter().all(|dim| dim.source == SizeSource::Given)) {
        (Err(error), false) => others.map(|size| draw(&sized(size))).find_map(Result::ok).ok_or(error)?,
        (first, _) => first?,
    };
    for inputs in &mut found {
        inputs.dims.iter_mut().for_each(|dim| dim.asked = asked.contains_key(&dim.name));
    }
    Ok(found)
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
    let dims = dims(&args.dim)?;
    let seed = args.random.unwrap_or(0);
    let drawn = first_that_fits(module, &dims, otherwise, |dims| draw(dims, seed)).map_err(fail)?;
    let Some(inputs) = drawn.first() else { return Ok(drawn) };
    if args.random.is_none() && inputs.values.iter().any(Option::is_some) {
        let draws: Vec<&str> = drawn.iter().map(|inputs| inputs.about.as_str()).collect();
        let several = if draws.len() > 1 {
            format!(", in {} draws: {}", draws.len(), draws.join(", then "))
        } else {
            String::new()
        };
        ui.say(&format!("inputs are random, with seed {seed}{several}; `--inputs DATA` replaces them"));
    }
    let chosen: Vec<String> = inputs
        .dims
        .iter()
        .filter(|dim| !dim.asked)
        .map(|dim| format!("{} = {}", dim.name, dim.size))
        .collect();
    if !chosen.is_empty() {
        let said = format!("assumed sizes of open dims: {}; `--dim NAME=N` sets them", chosen.join(", "));
        ui.say(&shown::message(&said));
    }
    if !inputs.scalars.is_empty() {
        let names = inputs.scalars.join(", ");
        let said =
            format!("inputs of unknown rank, taken as scalars: {names}; `--inputs DATA` replaces them");
        ui.say(&shown::message(&said));
    }
    Ok(drawn)
}
