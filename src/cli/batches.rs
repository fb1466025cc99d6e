//! Batches of data on which statistics are collected.

use super::args::DataArgs;
use super::problem::Failure;
use super::progress::Progress;
use super::ui::Ui;
use super::{data, diagnose, interrupt, shown};
use ampc::Error;
use ampc::execute::Inputs;
use ampc::execute::stats::{Collector, batches};
use ampc::ir::Module;
use ampc::runtime::Runtime;
use std::path::{Path, PathBuf};

/// The batches that arguments name, in order.
///
/// # Errors
/// If a path cannot be read, or has no batch.
pub(crate) fn named(arguments: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for argument in arguments {
        paths.extend(batches(argument).map_err(|error| diagnose::failure(&error, None))?);
    }
    Ok(paths)
}

/// A run over batches.
pub(crate) struct Batches<'a, 'm> {
    pub(crate) module: &'a Module,
    pub(crate) collector: Collector<'m>,
    pub(crate) progress: &'a Progress,
}

impl Batches<'_, '_> {
    /// Adds a batch of random values.
    pub(crate) fn add_random(&mut self, inputs: &Inputs) -> Result<(), Failure> {
        self.progress.stage("running");
        let added = self.collector.add(inputs);
        added.map_err(|error| data::failure_on(&inputs.dims, &error, self.module, data::Shows::Nodes))
    }

    /// Reads and adds batches, until a signal asks for the end. Only one batch is in memory, and only its files are open;
    /// `check` is asked about them before the batch is run.
    pub(crate) fn add_all(
        &mut self,
        paths: &[PathBuf],
        most_bytes: u64,
        check: impl Fn(&Inputs) -> Result<(), Error>,
    ) -> Result<(), Failure> {
        for (at, path) in paths.iter().enumerate() {
            if interrupt::requested().is_some() {
                return Ok(());
            }
            self.progress.stage(format!("batch {} of {}", at + 1, paths.len()));
            let added = self.add(path, most_bytes, &check);
            added.map_err(|error| failure_of(path, &error, self.module))?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        path: &Path,
        most_bytes: u64,
        check: impl Fn(&Inputs) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let inputs = Inputs::read(path, self.module, most_bytes)?;
        check(&inputs)?;
        self.collector.add(&inputs)?;
        ampc::files::unchanged(&inputs.files)
    }
}

/// Reads all batches.
///
/// # Errors
/// If a batch cannot be read, or does not fit the model.
pub(crate) fn read(paths: &[PathBuf], module: &Module, most_bytes: u64) -> Result<Vec<Inputs>, Failure> {
    let batches = paths
        .iter()
        .map(|path| Inputs::read(path, module, most_bytes).map_err(|error| failure_of(path, &error, module)));
    batches.collect()
}

/// The requested values to compare models on: the batches of a path, or several draws of random values.
///
/// # Errors
/// If they cannot be read, or do not fit the model.
pub(crate) fn draws(
    args: &DataArgs,
    module: &Module,
    runtime: &Runtime,
    ui: Ui,
) -> Result<Vec<Inputs>, Failure> {
    let Some(path) = &args.inputs else { return data::draws(args, module, runtime, ui) };
    let paths = named(std::slice::from_ref(path))?;
    let mut read = read(&paths, module, runtime.limits.max_bytes)?;
    if read.len() > 1 {
        for (inputs, path) in read.iter_mut().zip(&paths) {
            inputs.about = shown::name(&path.file_name().unwrap_or_default().to_string_lossy());
        }
    }
    Ok(read)
}

/// The failure of a batch, which names the batch.
fn failure_of(path: &Path, error: &Error, module: &Module) -> Failure {
    let name = path.display().to_string();
    diagnose::failure(error, Some(module)).retold(|message| match message.contains(&name) {
        true => message.to_owned(),
        false => format!("batch `{name}`: {message}"),
    })
}
