//! Models in and out: ONNX or text form, by the end of the name.

use crate::error::Error;
use crate::onnx::{self, ReadOptions, Source};
use crate::text_files;
use ampc_ir::Module;
use std::path::Path;

/// A model and where it came from.
#[derive(Debug)]
pub struct Model {
    /// The graph.
    pub module: Module,
    /// The file it was read from; `None` for one that was built or read from text.
    pub source: Option<Source>,
    /// What was odd about the file and repaired.
    pub warnings: Vec<onnx::Warning>,
}

impl From<Module> for Model {
    fn from(module: Module) -> Model {
        Model { module, source: None, warnings: Vec::new() }
    }
}

/// How to write.
pub type SaveOptions = onnx::WriteOptions;

/// Reads a model: `.ir` as text form, everything else as ONNX.
///
/// # Errors
/// If the file cannot be read or is no valid model.
pub fn load(path: impl AsRef<Path>) -> Result<Model, Error> {
    let path = path.as_ref();
    if path.extension().is_some_and(|e| e == "ir") {
        return Ok(text_files::load(path)?.into());
    }
    let (module, source, warnings) = onnx::read(path, &ReadOptions::default())?;
    Ok(Model { module, source: Some(source), warnings })
}

/// Writes a model as ONNX: through a temporary file in the target's folder, which then takes its name.
///
/// # Errors
/// If the target exists and may not be replaced, is the source, or cannot be written.
pub fn save(
    model: &Model,
    path: impl AsRef<Path>,
    options: &SaveOptions,
) -> Result<onnx::WriteReport, Error> {
    Ok(onnx::write(&model.module, model.source.as_ref(), path.as_ref(), options)?)
}
