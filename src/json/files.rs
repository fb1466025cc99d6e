//! The graph as files: `X.json`, and `X.safetensors` beside it for large constants.

use super::{parse, print};
use crate::batch::Batch;
use crate::error::Error;
use crate::loaded::Model;
use crate::safetensors::Tensors;
use crate::text_files::{self, TextReport};
use ampc_ir::text::ParseOptions;
use std::path::{Path, PathBuf};

/// The file of large constants that belongs to a graph: `.json` becomes `.safetensors`, another name gets it added.
pub fn data_path(path: &Path) -> PathBuf {
    if path.extension().is_some_and(|e| e == "json") {
        return path.with_extension("safetensors");
    }
    text_files::data_path(path)
}

/// Reads a graph as JSON, its large constants as ranges of the safetensors file. Without that file they have
/// type and hash, and reading their bytes fails.
///
/// # Errors
/// If a file cannot be read, the text is not a graph, or the constants do not match it.
pub fn load(path: &Path) -> Result<Model, Error> {
    let (text, file) = text_files::read(path)?;
    let (tensors, data) = Tensors::open(&data_path(path))?.unzip();
    let options = ParseOptions { allow_missing_data: tensors.is_none(), ..ParseOptions::default() };
    let mut module = parse(&text, &tensors.unwrap_or_default(), &options)
        .map_err(|errors| Error::Text { path: path.to_owned(), errors })?;
    ampc_passes::step::restore_states(&mut module);
    Ok(Model { text_files: std::iter::once(file).chain(data).collect(), ..Model::from(module) })
}

/// Writes a model as JSON, its large constants to a safetensors file beside it.
///
/// # Errors
/// If a file exists and `force` is not set, the model was read from it, it has tensors that the replaced text
/// does not refer to, or it cannot be written.
pub fn save(model: &Model, path: &Path, force: bool) -> Result<TextReport, Error> {
    let mut batch = Batch::new();
    let report = stage(model, path, force, &mut batch)?;
    batch.commit()?;
    Ok(report)
}

/// [`save`] that leaves it to a batch to give the files their names.
///
/// # Errors
/// Errors as for [`save`].
pub fn stage(model: &Model, path: &Path, force: bool, batch: &mut Batch) -> Result<TextReport, Error> {
    text_files::stage_as(model, path, &data_path, force, batch, || {
        let mut printed = print(&model.module);
        match printed.errors.pop() {
            Some(error) => Err(error),
            None => Ok((printed.text, printed.large)),
        }
    })
}
