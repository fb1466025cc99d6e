//! The text form as files: `X.ir`, and `X.ir.safetensors` beside it for large constants.
use crate::error::Error;
use ampc_ir::Module;
use ampc_ir::text::{NoData, parse};
use std::path::Path;

/// Reads a module in text form.
///
/// # Errors
/// If the file cannot be read, or its text is no module.
pub fn load(path: &Path) -> Result<Module, Error> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    parse(&text, &NoData).map_err(|e| Error::Unsupported(e.to_string()))
}
