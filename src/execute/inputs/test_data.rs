//! Folders of test data, as in ONNX's own tests: a file per input and output.

use super::{Named, io_error, no_memory, regular};
use crate::bytes::SourceBytes;
use crate::error::Error;
use crate::error::run::InputProblem;
use crate::interface::{describe, output_names, output_types};
use crate::onnx::data::{self, DataError};
use ampc_ir::{Module, Type};
use ampc_passes::suggest::listed;
use ampc_runtime::Data;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One data set of a test-data folder.
#[derive(Debug)]
pub struct TestData {
    /// The inputs, in order; `None` for an input that uses its default.
    pub inputs: Vec<Option<Data>>,
    /// The outputs, in order.
    pub outputs: Vec<Data>,
}

/// Reads `input_0.pb` … like [`Inputs::read`](super::Inputs::read), and `output_0.pb` … in the order of the
/// model.
///
/// # Errors
/// If a file cannot be read or is not a value of the declared type, or if files are missing or belong to no input or
/// output. All such files are listed.
pub fn read_test_data(folder: &Path, module: &Module, most: u64) -> Result<TestData, Error> {
    let mut named = Named::of(module);
    named.read_folder(folder, most)?;
    let (outputs, of_outputs) = read_outputs(folder, module, most)?;
    let mut problems = named.problems();
    problems.extend(of_outputs);
    if problems.is_empty() {
        Ok(TestData { inputs: named.values, outputs })
    } else {
        Err(Error::Inputs(problems))
    }
}

/// The stored outputs, and their problems.
fn read_outputs(folder: &Path, module: &Module, most: u64) -> Result<(Vec<Data>, Vec<InputProblem>), Error> {
    let (types, numbers) =
        (output_types(module), numbered(folder, "output").map_err(|e| io_error(folder, e))?);
    let mut problems = Vec::new();
    let mut problem = |code, number: usize, message: String| {
        // The help is given once.
        let help = problems.is_empty().then(|| {
            let names = output_names(module);
            format!("its outputs are {}", listed(names.iter().map(String::as_str)))
        });
        let name = format!("output_{number}.pb");
        problems.push(InputProblem { code, kind: "output", name, message, help });
    };
    for &extra in numbers.iter().filter(|&&number| number >= types.len()) {
        problem("unknown", extra, "the model has no such output".into());
    }
    let mut outputs = Vec::with_capacity(types.len());
    for (number, ty) in types.iter().enumerate() {
        if numbers.binary_search(&number).is_ok() {
            outputs.push(DataFile::open(folder, "output", number)?.read(ty, most)?);
        } else {
            problem("missing", number, format!("expected {}, found no such file", describe(module, ty)));
        }
    }
    Ok((outputs, problems))
}

/// The numbers `i` of the files `PREFIX_i.pb` of a folder, in order.
pub(in crate::execute) fn numbered(folder: &Path, prefix: &str) -> io::Result<Vec<usize>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        let text = name.to_str().and_then(|n| n.strip_prefix(prefix)?.strip_prefix('_')?.strip_suffix(".pb"));
        let number = text.and_then(|text| text.parse::<usize>().ok().filter(|n| n.to_string() == text));
        numbers.extend(number);
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// A file of a folder of test data.
pub(in crate::execute) struct DataFile {
    path: PathBuf,
    pub(in crate::execute) bytes: Arc<SourceBytes>,
}

impl DataFile {
    pub(in crate::execute) fn open(folder: &Path, prefix: &str, number: usize) -> Result<DataFile, Error> {
        let path = folder.join(format!("{prefix}_{number}.pb"));
        regular(&path)?;
        let bytes = SourceBytes::open(&path).map_err(|e| io_error(&path, e))?;
        Ok(DataFile { path, bytes: Arc::new(bytes) })
    }

    pub(in crate::execute) fn read(&self, ty: &Type, most: u64) -> Result<Data, Error> {
        let value = data::read_data(self.bytes.clone(), ty, most);
        value.map_err(|e| match &e {
            DataError::Host(refused) if refused.is_no_memory() => {
                no_memory(&self.path.display().to_string(), refused)
            }
            DataError::Wire(_)
            | DataError::Tensor(_)
            | DataError::Host(_)
            | DataError::Unsupported(_)
            | DataError::TooLarge { .. }
            | DataError::Depth => Error::Data { path: self.path.clone(), reason: e.to_string() },
        })
    }
}
