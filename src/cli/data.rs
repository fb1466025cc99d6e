//! The data of a run: values for the inputs, and limits.

use super::args::{DataArgs, DeviceArgs, LimitArgs, RoundingArgs};
use super::diagnose;
use super::problem::{Failure, Problem};
use super::settings::ReadFile;
use super::shown;
use super::table::count;
use super::ui::{Stream, Ui};
use ampc::Error;
use ampc::device::{self, BackendOptions, Device};
use ampc::execute::Inputs;
use ampc::execute::inputs::{BoundDim, Dims, bound_dims};
use ampc::ir::Module;
use ampc::passes::cost::{BoundInputs, OpenDim, SizeSource, Sizes};
use ampc::runtime::{Backend, Runtime};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, slice};

/// The requested settings of a backend.
pub(crate) fn backend_options(threads: Option<u32>) -> BackendOptions {
    let threads = threads.map_or(0, |threads| usize::try_from(threads).unwrap_or(0));
    let folders = device::standard_folders(&variable);
    BackendOptions { threads, folders, ..BackendOptions::default() }
}

/// A variable of the environment, which the library does not read itself.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The folder of compiled kernels: `kernels` in the folder of ampc in the user's cache.
fn cache_folder() -> Option<PathBuf> {
    let of_home = || Some(PathBuf::from(variable("HOME")?).join(".cache"));
    // A relative path is no cache, as the XDG Base Directory Specification says.
    let of_user = variable("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    Some(of_user.or_else(of_home)?.join("ampc/kernels"))
}

/// Warns if the folder of compiled kernels cannot be written.
fn warn_of_read_only(folder: &Path, ui: Ui) {
    if let Err(error) = tempfile::tempfile_in(folder) {
        let message = format!("`{}` cannot be written: {error}", folder.display());
        let help = "kernels are compiled again in each run; `XDG_CACHE_HOME` names another folder";
        let problem = Problem::warning("device.cache", message).with_help(help);
        ui.say(problem.draw(ui, Stream::Err).trim_start_matches('\n'));
    }
}

/// The backend of a device.
///
/// # Errors
/// If the name is no device, the device cannot be used, or kernels cannot be written to the folder.
pub(crate) fn backend(args: &DeviceArgs, threads: Option<u32>, ui: Ui) -> Result<Arc<dyn Backend>, Failure> {
    let DeviceArgs { device: name, rounding: RoundingArgs { tf32, exact_rounding }, dump_kernels, .. } = args;
    let device: Device = name.parse().map_err(|error: Error| Failure::usage("device", error.to_string()))?;
    let of_gpus = [
        ("tf32", *tf32, "the CPU backend computes fp32 products in fp32"),
        ("exact-rounding", *exact_rounding, "the CPU backend always rounds after every operator"),
        ("dump-kernels", dump_kernels.is_some(), "the CPU backend generates no kernels"),
        ("max-device-bytes", args.max_device_bytes.is_some(), "the CPU backend computes in host memory"),
    ];
    let refused = of_gpus.iter().find(|(_, is_given, _)| *is_given && device == Device::default());
    if let Some((flag, _, reason)) = refused {
        let message = format!("`--{flag}` needs `--device cuda`: {reason}");
        return Err(Failure::usage("device.option", message));
    }
    if let Some(folder) = dump_kernels {
        let written = fs::create_dir_all(folder).and_then(|()| tempfile::tempfile_in(folder));
        written.map_err(|error| Failure::io(&folder.display().to_string(), &error))?;
    }
    let cache = if device == Device::default() { None } else { cache_folder() };
    let options = BackendOptions {
        cache,
        tf32: *tf32,
        exact_rounding: *exact_rounding,
        dump: dump_kernels.clone(),
        ..backend_options(threads)
    };
    let backend = device.backend(&options).map_err(|error| diagnose::failure(&error, None))?;
    // The device has created the folder, if that is possible.
    options.cache.iter().for_each(|folder| warn_of_read_only(folder, ui));
    Ok(backend)
}

/// The runtime of the CPU with the requested limits.
///
/// # Errors
/// If the threads cannot be started.
pub(crate) fn default_runtime(threads: Option<u32>, limits: &LimitArgs, ui: Ui) -> Result<Runtime, Failure> {
    let args = DeviceArgs::of(Device::default().to_string(), RoundingArgs::default());
    Ok(runtime(backend(&args, threads, ui)?, limits))
}

/// A runtime with the requested limits.
pub(crate) fn runtime(backend: Arc<dyn Backend>, limits: &LimitArgs) -> Runtime {
    let mut runtime = Runtime::new(backend);
    runtime.limits.max_iterations = limits.max_iterations.unwrap_or(runtime.limits.max_iterations);
    runtime.limits.time_limit = limits.time_limit;
    runtime
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
    args.inputs.iter().flat_map(|path| files_at(path, "the inputs")).collect()
}

/// The files of a batch: the file, or the files of the folder.
pub(crate) fn files_at(path: &Path, what: &'static str) -> Vec<ReadFile> {
    let of = |path: PathBuf| ReadFile { what, path };
    match fs::read_dir(path) {
        Ok(entries) => {
            let names = entries.flatten().map(|entry| path.join(entry.file_name()));
            names.filter(|file| file.extension().is_some_and(|e| e == "pb")).map(of).collect()
        }
        Err(_) => vec![of(path.to_owned())],
    }
}

/// The requested values to run a model on. Dims that neither the model nor the command line gives a size get
/// 1, or the first of [`SIZES`] that fits the model. Values that were chosen because no argument gives them are
/// reported on standard error.
///
/// # Errors
/// If they cannot be read, or do not fit the model.
pub(crate) fn inputs(args: &DataArgs, module: &Module, runtime: &Runtime, ui: Ui) -> Result<Inputs, Failure> {
    let one = |dims: &Dims, seed| Ok(vec![Inputs::random(module, seed, dims, runtime.limits.max_bytes)?]);
    let mut drawn = drawn(args, module, runtime, ONE, ui, one)?;
    drawn.pop().ok_or_else(|| Failure::usage("inputs", "expected values for the inputs, found none"))
}

/// The requested values to compare models on: in several draws if they are random. Dims that neither the
/// model nor the command line gives a size get [`SOME`], or the first of [`SIZES`] that fits the model.
///
/// # Errors
/// If they cannot be read, or do not fit the model.
pub(crate) fn draws(
    args: &DataArgs,
    module: &Module,
    runtime: &Runtime,
    ui: Ui,
) -> Result<Vec<Inputs>, Failure> {
    drawn(args, module, runtime, SOME, ui, |dims, seed| {
        Inputs::draws(module, seed, dims, runtime.limits.max_bytes)
    })
}

/// Refuses sizes of dims beside data, which has sizes of its own. A rewrite takes them for its predicted time.
///
/// # Errors
/// If both were given.
pub(crate) fn refuse_dims_of_data(args: &DataArgs) -> Result<(), Failure> {
    match args.inputs.is_some() && !args.dim.is_empty() {
        true => Err(Failure::usage(
            "dim",
            "`--dim` has no meaning with `--inputs`: the data has the sizes of its dims",
        )),
        false => Ok(()),
    }
}

/// The sizes of `--dim` by name.
///
/// # Errors
/// If a dim has two.
pub(crate) fn dims(asked: &[(String, u64)]) -> Result<Dims, Failure> {
    let mut dims = Dims::default();
    for (name, size) in asked {
        if let Some(before) = dims.insert(name.clone(), *size).filter(|before| before != size) {
            let name = shown::message(name);
            return Err(Failure::usage(
                "dim",
                format!("`--dim`: `{name}` has two sizes, {before} and {size}"),
            ));
        }
    }
    Ok(dims)
}

/// Draws inputs with sizes for all dims without a number: the first size of `otherwise` and [`SIZES`] that fits the model.
///
/// Example: a U-Net with the input `f32[N, 3, H, W]` halves H and W three times and concatenates the halves, so that it takes
/// no image of 1 x 1. `verify` tries N = H = W = 8, which fits. `run` tries 1, then N = 1 and H = W = 8.
///
/// # Errors
/// The error for the size `otherwise` if no size fits, with the sizes of the open dims.
fn first_that_fits(
    module: &Module,
    asked: &Dims,
    otherwise: u64,
    draw: impl Fn(&Dims) -> Result<Vec<Inputs>, Error>,
) -> Result<Vec<Inputs>, Box<(Error, Vec<BoundDim>)>> {
    let drawn = bound_dims(module, asked).map_err(|error| Box::new((error, Vec::new())))?;
    let mut open = BoundInputs::new(module, asked).map_or_else(|_| Vec::new(), |bound| bound.dims);
    let drawn: BTreeSet<String> = drawn.into_iter().map(|dim| dim.name).collect();
    open.retain(|dim| drawn.contains(&dim.name));
    let size_of = |dim: &OpenDim, size: u64| match dim.source {
        SizeSource::Given => dim.size,
        // A batch that is asked for is the batch of all inputs.
        SizeSource::Batch if dim.size != Sizes::default().batch => dim.size,
        SizeSource::Batch => size.min(otherwise),
        SizeSource::Assumed => size,
    };
    let sized = |size: u64| open.iter().map(|dim| (dim.name.clone(), size_of(dim, size))).collect::<Dims>();
    let failed = |error: Error| {
        let mut sizes = bound_dims(module, &sized(otherwise)).unwrap_or_default();
        sizes.iter_mut().for_each(|dim| dim.asked = asked.contains_key(&dim.name));
        Box::new((error, sizes))
    };
    let first = draw(&sized(otherwise));
    let others = SIZES.into_iter().filter(|&size| size != otherwise);
    let mut found = match (first, open.iter().all(|dim| dim.source == SizeSource::Given)) {
        (Err(error), false) => {
            others.map(|size| draw(&sized(size))).find_map(Result::ok).ok_or_else(|| failed(error))?
        }
        (first, _) => first.map_err(failed)?,
    };
    for inputs in &mut found {
        inputs.dims.iter_mut().for_each(|dim| dim.asked = asked.contains_key(&dim.name));
    }
    Ok(found)
}

/// The sizes of the open dims in draws, which all have the same sizes.
pub(crate) fn sizes(draws: &[Inputs]) -> &[BoundDim] {
    draws.first().map_or(&[], |inputs| &inputs.dims)
}

/// Open dims that a message names.
const DIMS: usize = 8;

/// The sizes of open dims that do not fit a model, and the options that give other sizes, as words; `None` if all sizes fit.
pub(crate) fn misfits(bound: &BoundInputs, module: &Module) -> Option<(String, String)> {
    let misfits = bound.misfits(module);
    if misfits.is_empty() {
        return None;
    }
    let sizes = some_of(&misfits, ", ", |dim| format!("{} = {}", dim.name, dim.size));
    let options = some_of(&misfits, " ", |dim| format!("--dim {}=N", dim.name));
    Some((
        shown::message(&format!("{sizes} {} not fit this model", one_or_more(&misfits, "does", "do"))),
        shown::message(&format!(
            "`{options}` gives {}",
            one_or_more(&misfits, "another size", "other sizes")
        )),
    ))
}

/// The form in which a failure shows nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shows {
    /// The text of the nodes.
    Nodes,
    /// Messages only: the nodes may be those of another model.
    Messages,
}

/// The failure of a model that cannot be computed on inputs of these sizes. If the model has open dims, the sizes are the
/// problem, so the failure names the sizes, says which of them were chosen and which were given, and names the options for
/// the sizes that do not fit. If sizes were chosen, the failure is one problem, however many nodes do not take the sizes.
pub(crate) fn failure_on(sizes: &[BoundDim], error: &Error, module: &Module, shows: Shows) -> Failure {
    let findings = match error {
        Error::Invalid(findings) => &findings[..],
        Error::Run(finding) if finding.node.is_some() && finding.code == "node" => slice::from_ref(finding),
        _ => &[],
    };
    let (Some(first), false) = (findings.first(), sizes.is_empty()) else {
        return diagnose::failure(error, (shows == Shows::Nodes).then_some(module));
    };
    let asked: Dims = sizes.iter().map(|dim| (dim.name.clone(), dim.size)).collect();
    let bound = BoundInputs::new(module, &asked).unwrap_or_default();
    let misfits: BTreeSet<&str> = bound.misfits(module).into_iter().map(|dim| dim.name.as_str()).collect();
    let (chosen, given): (Vec<&BoundDim>, Vec<_>) = sizes.iter().partition(|dim| !dim.asked);
    let all: Vec<&BoundDim> = chosen.iter().chain(&given).copied().collect();
    let mut to_blame: Vec<&BoundDim> = all.iter().copied().filter(|d| misfits.contains(&*d.name)).collect();
    if to_blame.is_empty() {
        to_blame.clone_from(&all);
    }
    let options = some_of(&to_blame, " ", |dim| format!("--dim {}=SIZE", dim.name));
    let others = format!(
        "`{options}` or `--inputs FILE` gives {}",
        one_or_more(&to_blame, "another size", "other sizes")
    );
    let blamed = some_of(&to_blame, ", ", |dim| format!("{} = {}", dim.name, dim.size));
    let help = if to_blame.len() == all.len() {
        others
    } else {
        format!("{blamed} {} not fit the model: {others}", one_or_more(&to_blame, "does", "do"))
    };
    if chosen.is_empty() {
        let failure = diagnose::failure(error, (shows == Shows::Nodes).then_some(module));
        // An error of a node may be about the values.
        return if misfits.is_empty() { failure } else { failure.with_help(help) };
    }
    let more = match findings.len() - 1 {
        0 => String::new(),
        more => format!(", and {}", count(more as u64, "more problem")),
    };
    let with = if given.is_empty() {
        "the sizes that were chosen for its open dims"
    } else {
        "these sizes of its open dims"
    };
    let origin = |dim: &BoundDim| match (given.is_empty(), dim.asked) {
        (true, _) => "",
        (false, true) => " given",
        (false, false) => " chosen",
    };
    let listed = some_of(&all, ", ", |dim| format!("{} = {}{}", dim.name, dim.size, origin(dim)));
    let message = format!("the model cannot be computed with {with} ({listed}): {first}{more}");
    Failure::of(error.kind(), Problem::new("ampc::inputs::sizes", message)).with_help(help)
}

/// The first dims of a list, each in a form, with a mark if there are more.
fn some_of<D>(dims: &[&D], between: &str, form: impl Fn(&D) -> String) -> String {
    let some: Vec<String> = dims.iter().take(DIMS).map(|&dim| form(dim)).collect();
    format!("{}{}", some.join(between), if dims.len() > DIMS { " …" } else { "" })
}

/// The word for one dim or the word for several.
fn one_or_more<'a, D>(dims: &[&D], one: &'a str, several: &'a str) -> &'a str {
    if dims.len() == 1 { one } else { several }
}

fn drawn(
    args: &DataArgs,
    module: &Module,
    runtime: &Runtime,
    otherwise: u64,
    ui: Ui,
    draw: impl Fn(&Dims, u64) -> Result<Vec<Inputs>, ampc::Error>,
) -> Result<Vec<Inputs>, Failure> {
    if let Some(path) = &args.inputs {
        let read = Inputs::read(path, module, runtime.limits.max_bytes);
        return Ok(vec![read.map_err(|error| diagnose::failure(&error, Some(module)))?]);
    }
    let dims = dims(&args.dim)?;
    let seed = args.random.unwrap_or(0);
    let drawn = first_that_fits(module, &dims, otherwise, |dims| draw(dims, seed))
        .map_err(|failed| failure_on(&failed.1, &failed.0, module, Shows::Nodes))?;
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
