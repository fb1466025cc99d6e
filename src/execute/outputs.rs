//! The outputs of a run: statistics and files.

use super::inputs::test_data::numbered;
use super::inputs::{Inputs, io_error};
use crate::batch::Batch;
use crate::bytes::SourceBytes;
use crate::error::Error;
use crate::onnx::layout::Layout;
use crate::onnx::target::TargetError;
use crate::onnx::{ExportError, data, target};
use crate::safetensors;
use crate::temporary::TemporaryFolder;
use ampc_ir::TensorData;
use ampc_runtime::{Data, HostTensor, npy, npz};
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Statistics of the elements of a tensor of numbers. A boolean is 0 or 1; a complex element is two numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics {
    /// The number of elements.
    pub count: u64,
    /// The number of NaN elements.
    pub nan: u64,
    /// The number of infinite elements.
    pub inf: u64,
    /// The smallest element that is not NaN; NaN without such elements.
    pub min: f64,
    /// The largest element that is not NaN; NaN without such elements.
    pub max: f64,
    /// The mean of the finite elements; NaN without finite elements.
    pub mean: f64,
}

/// Statistics of a tensor; `None` for strings.
pub fn statistics(tensor: &HostTensor) -> Option<Statistics> {
    let numbers: Box<dyn Iterator<Item = f64>> = match (tensor.f64s(), tensor.ints()) {
        (Ok(floats), _) => floats,
        #[expect(clippy::cast_precision_loss, reason = "shown with a few digits")]
        (_, Some(ints)) => Box::new(ints.map(|i| i as f64)),
        _ => return None,
    };
    let mut found = Statistics { count: 0, nan: 0, inf: 0, min: f64::NAN, max: f64::NAN, mean: f64::NAN };
    // A running mean: no sum can overflow.
    let (mut mean, mut finite) = (0.0, 0.0);
    for number in numbers {
        found.count += 1;
        if number.is_nan() {
            found.nan += 1;
            continue;
        }
        // `min` and `max` pass over NaN.
        found.min = found.min.min(number);
        found.max = found.max.max(number);
        if number.is_finite() {
            finite += 1.0;
            mean += number / finite - mean / finite;
        } else {
            found.inf += 1;
        }
    }
    if finite > 0.0 {
        found.mean = mean;
    }
    Some(found)
}

/// The file format of outputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutputForm {
    /// NumPy's archive of arrays, with the names of outputs.
    Npz,
    /// Safetensors, with the names of outputs.
    Safetensors,
    /// A folder of `input_0.pb` … and `output_0.pb` …, for `ampc verify --test-data`.
    TestData,
}

impl OutputForm {
    /// Chooses the format by the path: `.npz`, `.safetensors`, or a folder whose name ends in `/`.
    ///
    /// # Errors
    /// If the extension is unknown, or a folder lacks the slash.
    pub fn of(path: &Path) -> Result<OutputForm, Error> {
        let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
        let is_folder =
            path.as_os_str().as_encoded_bytes().last().is_some_and(|&b| std::path::is_separator(b.into()));
        match ending.as_str() {
            _ if is_folder => Ok(OutputForm::TestData),
            _ if path.is_dir() => Err(Error::Usage(format!(
                "`{0}` is a folder: expected the name of a file, or, to write test data into the folder, a `/` at the \
                 end (`{0}/`)",
                path.display()
            ))),
            "npz" => Ok(OutputForm::Npz),
            "safetensors" => Ok(OutputForm::Safetensors),
            _ => Err(Error::Usage(format!(
                "`{}`: expected a name that ends in .npz, .safetensors, or in / for a folder of test data",
                path.display()
            ))),
        }
    }
}

/// Inputs and outputs of a run, for writing.
#[derive(Clone, Copy, Debug)]
pub struct Results<'a> {
    /// The inputs.
    pub inputs: &'a Inputs,
    /// The names of the inputs.
    pub input_names: &'a [String],
    /// The outputs.
    pub outputs: &'a [Data],
    /// The names of the outputs.
    pub output_names: &'a [String],
}

/// Checks, before results are computed, that they may be written for these inputs and this number of outputs.
///
/// # Errors
/// If a file exists and `force` is not set, a file belongs to the model or the inputs, or its folder does not exist
/// or is not writable.
pub fn check(
    path: &Path,
    inputs: &Inputs,
    n_outputs: usize,
    force: bool,
    model: &[Arc<SourceBytes>],
) -> Result<(), Error> {
    let read = all_read(inputs, model);
    let check = |path: &Path| -> Result<(), Error> {
        target::check(path, force, &read).map_err(|error| refused(error, inputs))
    };
    match OutputForm::of(path)? {
        OutputForm::Npz | OutputForm::Safetensors => check(path),
        OutputForm::TestData if path.is_dir() => {
            let others = others_in(path, &inputs.values, n_outputs)?;
            files_of(path, &inputs.values, n_outputs).chain(others).try_for_each(|file| check(&file))
        }
        OutputForm::TestData => {
            // Without a slash, the name may be that of a new folder or an existing file.
            let folder: PathBuf = path.components().collect();
            if folder.exists() {
                let message = "expected the name of a folder, found a file of that name; choose another name";
                return Err(Error::Usage(format!("`{}`: {message}", path.display())));
            }
            check(&folder)
        }
    }
}

fn all_read(inputs: &Inputs, model: &[Arc<SourceBytes>]) -> Vec<Arc<SourceBytes>> {
    model.iter().chain(&inputs.files).cloned().collect()
}

/// The error of an output path that leads to a file of the model or the inputs.
fn refused(error: TargetError, inputs: &Inputs) -> Error {
    let TargetError::IsSource { path, read } = error else { return ExportError::from(error).into() };
    let is_input = |file: &Arc<SourceBytes>| file.path().is_some_and(|p| p.display().to_string() == read);
    let what = if inputs.files.iter().any(is_input) { "the inputs are" } else { "the model is" };
    Error::Usage(format!("`{path}` is the file `{read}` that {what} read from; choose another name"))
}

/// The files of a test-data folder: one for each input with a value, then one for each output.
fn files_of(folder: &Path, inputs: &[Option<Data>], n_outputs: usize) -> impl Iterator<Item = PathBuf> {
    let n_inputs = inputs.iter().flatten().count();
    let name = |prefix, i| folder.join(format!("{prefix}_{i}.pb"));
    let inputs = (0..n_inputs).map(move |i| name("input", i));
    inputs.chain((0..n_outputs).map(move |i| name("output", i)))
}

/// The files in a test-data folder that belong to another run with more inputs or outputs. Next to the files of this
/// run, they would be read as part of the same data set.
fn others_in(folder: &Path, inputs: &[Option<Data>], n_outputs: usize) -> Result<Vec<PathBuf>, Error> {
    let mut others = Vec::new();
    for (prefix, own) in [("input", inputs.iter().flatten().count()), ("output", n_outputs)] {
        let numbers = numbered(folder, prefix).map_err(|e| io_error(folder, e))?;
        let more = numbers.into_iter().filter(|&number| number >= own);
        others.extend(more.map(|number| folder.join(format!("{prefix}_{number}.pb"))));
    }
    Ok(others)
}

/// True if a test-data file is an output.
fn is_output(file: &Path) -> bool {
    file.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with("output_"))
}

/// Writes results completely or not at all. A test-data folder is created if it does not exist, and also gets the
/// given inputs. Test data of an earlier run is removed; other files are kept.
///
/// # Errors
/// If a file exists and `force` is not set, a file belongs to the model or the inputs or cannot be written, or the
/// format cannot represent an output.
pub fn save(
    path: &Path,
    results: &Results<'_>,
    force: bool,
    model: &[Arc<SourceBytes>],
) -> Result<(), Error> {
    let read = all_read(results.inputs, model);
    let fail = |error| refused(error, results.inputs);
    let mut batch = Batch::new();
    match OutputForm::of(path)? {
        OutputForm::Npz => {
            let tensors = named_tensors(path, results)?;
            let mut entries: BTreeMap<String, &str> = BTreeMap::new();
            for &(name, tensor) in &tensors {
                let entry = npz::entry_name(name, tensor.dtype());
                if entry.len() > npz::LONGEST_NAME || entry.contains('\0') {
                    return Err(cannot_hold(path, name, "a name that no entry of a zip archive can have"));
                }
                if let Some(other) = entries.insert(entry, name) {
                    let what = format!("because the entry of `{other}` has the same name");
                    return Err(cannot_hold(path, name, &what));
                }
                npy::check(tensor).map_err(|error| cannot_hold(path, name, &error.to_string()))?;
            }
            let bytes = tensors.iter().filter_map(|(_, tensor)| tensor.bytes()).map(|b| b.len() as u64).sum();
            let staged = batch
                .stage_with(path, bytes, force, &read, |file| Ok(npz::write(file, tensors.iter().copied())?));
            staged.map_err(fail)?;
        }
        OutputForm::Safetensors => {
            let tensors = named_tensors(path, results)?;
            let tensors = tensors.into_iter().map(|(name, tensor)| constant(path, name, tensor));
            let layout = safetensors::layout(tensors.collect::<Result<_, _>>()?)?;
            batch.stage(layout, path, force, &read).map_err(fail)?;
        }
        OutputForm::TestData => return save_folder(path, results, force, &read),
    }
    batch.commit_all().map_err(fail)?;
    Ok(())
}

/// Writes test data. If that fails, a folder created for it is removed.
fn save_folder(
    path: &Path,
    results: &Results<'_>,
    force: bool,
    read: &[Arc<SourceBytes>],
) -> Result<(), Error> {
    let is_new = !path.is_dir();
    if force && !is_new && replace_folder(path, results, read)? {
        return Ok(());
    }
    if is_new {
        let failed = |source| TargetError::Write { path: path.display().to_string(), source };
        std::fs::create_dir(path).map_err(|e| ExportError::from(failed(e)))?;
    }
    let others = others_in(path, &results.inputs.values, results.outputs.len())?;
    for other in &others {
        target::check(other, force, read).map_err(|error| refused(error, results.inputs))?;
    }
    let staged = stage_folder(path, path, results, force, read).map(|mut batch| {
        // Outputs are removed before inputs and written after them, so that the present outputs always belong to the
        // present inputs.
        let own = files_of(path, &results.inputs.values, results.outputs.len()).filter(|_| force);
        let (own, others): (Vec<PathBuf>, _) =
            (own.collect(), others.iter().filter(|other| !other.is_symlink()));
        let mut files: Vec<&PathBuf> = own.iter().rev().chain(others).collect();
        files.sort_by_key(|file| !is_output(file));
        files.into_iter().for_each(|file| batch.withdraw(file));
        batch
    });
    let saved = staged.and_then(|batch| batch.commit_all().map_err(|e| refused(e, results.inputs)));
    if saved.is_ok() {
        // A link is removed, but not its target.
        let mut links = others.iter().filter(|other| other.is_symlink());
        links.try_for_each(|link| std::fs::remove_file(link).map_err(|e| io_error(link, e)))?;
    }
    if is_new && saved.is_err() {
        // A folder that is not empty is kept.
        std::fs::remove_dir(path).ok();
    }
    saved.map(drop)
}

/// Replaces the test data of an earlier run atomically: at any moment all files of the folder belong to one run.
/// Returns false if the system does not support that.
fn replace_folder(path: &Path, results: &Results<'_>, read: &[Arc<SourceBytes>]) -> Result<bool, Error> {
    let files = files_of(path, &results.inputs.values, results.outputs.len());
    let others = others_in(path, &results.inputs.values, results.outputs.len())?;
    let files: Vec<PathBuf> = files.chain(others).collect();
    for file in &files {
        target::check(file, true, read).map_err(|error| refused(error, results.inputs))?;
    }
    let names = files.iter().filter_map(|file| file.file_name().map(OsStr::to_owned)).collect();
    let Some(folder) = TemporaryFolder::beside(path, &names) else { return Ok(false) };
    let batch = stage_folder(folder.path(), path, results, false, read)?;
    batch.commit_all().map_err(|error| refused(error, results.inputs))?;
    Ok(folder.replace(&names).is_ok())
}

fn named_tensors<'a>(path: &Path, results: &Results<'a>) -> Result<Vec<(&'a str, &'a HostTensor)>, Error> {
    let mut tensors: Vec<(&str, &HostTensor)> = Vec::new();
    let mut known = FxHashSet::default();
    for (name, output) in results.output_names.iter().zip(results.outputs) {
        let Some(tensor) = output.tensor() else {
            return Err(cannot_hold(path, name, "an output that is not a tensor"));
        };
        // Several outputs may be the same value.
        if known.insert(name) {
            tensors.push((name, tensor));
        }
    }
    Ok(tensors)
}

fn cannot_hold(path: &Path, name: &str, what: &str) -> Error {
    Error::Usage(format!(
        "`{}` cannot hold `{name}`, {what}: write a folder of test data instead (a name that ends in /)",
        path.display()
    ))
}

fn constant(path: &Path, name: &str, tensor: &HostTensor) -> Result<(String, Arc<TensorData>), Error> {
    let what = || format!("a tensor of {}", tensor.dtype());
    let bytes = tensor.bytes().filter(|_| safetensors::stored_as(tensor.dtype()).is_some());
    let bytes = bytes.ok_or_else(|| cannot_hold(path, name, &what()))?;
    let data = TensorData::from_bytes(tensor.dtype(), tensor.dims(), bytes.to_vec());
    Ok((name.to_owned(), Arc::new(data.map_err(|_| cannot_hold(path, name, &what()))?)))
}

/// Stages test data in a folder; a file gets the permissions of the file with the same name in `like`.
fn stage_folder(
    folder: &Path,
    like: &Path,
    results: &Results<'_>,
    force: bool,
    read: &[Arc<SourceBytes>],
) -> Result<Batch, Error> {
    let inputs = results.inputs.values.iter().zip(results.input_names);
    let inputs = inputs.filter_map(|(value, name)| Some((value.as_ref()?, name)));
    let values = inputs.chain(results.outputs.iter().zip(results.output_names));
    let files = files_of(folder, &results.inputs.values, results.outputs.len());
    let mut batch = Batch::new();
    for ((value, name), path) in values.zip(files) {
        let message: Layout = data::message(value, name)
            .ok_or_else(|| Error::Unsupported(format!("`{name}` cannot be written as test data")))?;
        let owner = path.file_name().map_or_else(|| path.clone(), |name| like.join(name));
        batch.stage_beside(message, &path, &owner, force, read).map_err(|e| refused(e, results.inputs))?;
    }
    Ok(batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_pass_over_what_is_no_number() {
        let tensor = HostTensor::from_slice(&[5], &[1.0f32, f32::NAN, f32::NEG_INFINITY, 3.0, -1.0]).unwrap();
        let found = statistics(&tensor).unwrap();
        assert_eq!((found.count, found.nan, found.inf), (5, 1, 1));
        assert_eq!((found.min, found.max, found.mean), (f64::NEG_INFINITY, 3.0, 1.0));
        let large = HostTensor::from_slice(&[2], &[f64::MAX, f64::MAX]).unwrap();
        assert_eq!(statistics(&large).unwrap().mean, f64::MAX);
        let none = HostTensor::from_slice::<f32>(&[0], &[]).unwrap();
        assert!(statistics(&none).unwrap().mean.is_nan());
        let flags = HostTensor::from_bytes(ampc_ir::DType::Bool, &[4], &[1, 0, 1, 1]).unwrap();
        assert_eq!(statistics(&flags).unwrap().mean, 0.75);
    }
}
