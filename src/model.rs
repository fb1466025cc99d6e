//! Models in and out: ONNX, text form or JSON, by the end of the name.

use crate::batch::Batch;
use crate::error::Error;
pub use crate::loaded::Model;
use crate::onnx::{self, ReadOptions};
use crate::{json, text_files};
use std::path::{Path, PathBuf};

/// Options of writing.
pub type SaveOptions = onnx::WriteOptions;

/// Reads a model: `.ir` as text form, `.json` as JSON, everything else as ONNX.
///
/// # Errors
/// If the file cannot be read or is not a valid model.
pub fn load(path: impl AsRef<Path>) -> Result<Model, Error> {
    let path = path.as_ref();
    match path.extension().and_then(|e| e.to_str()) {
        Some("ir") => return text_files::load(path),
        Some("json") => return json::load(path),
        _ => {}
    }
    let (module, source, warnings) = onnx::read(path, &ReadOptions::default())?;
    Ok(Model { module, source: Some(source), text_files: Vec::new(), warnings })
}

/// The file of large constants that belongs to a model in text form or JSON.
pub fn data_path(path: &Path) -> PathBuf {
    let json = path.extension().is_some_and(|e| e == "json");
    if json { json::data_path(path) } else { text_files::data_path(path) }
}

/// Writes a model as ONNX: through a temporary file in the target's folder, which then takes its name.
///
/// # Errors
/// If the target exists and may not be replaced, the model was read from it, or it cannot be written.
pub fn save(
    model: &Model,
    path: impl AsRef<Path>,
    options: &SaveOptions,
) -> Result<onnx::WriteReport, Error> {
    let mut batch = Batch::new();
    let report = stage(model, path, options, &mut batch)?;
    batch.commit()?;
    Ok(report)
}

/// Like [`save`], but a batch gives the files their names: all files of the batch appear together, or none.
///
/// # Errors
/// Errors as for [`save`].
pub fn stage(
    model: &Model,
    path: impl AsRef<Path>,
    options: &SaveOptions,
    batch: &mut Batch,
) -> Result<onnx::WriteReport, Error> {
    let files = model.files();
    Ok(onnx::stage(&model.module, model.source.as_ref(), &files, path.as_ref(), options, batch)?)
}
