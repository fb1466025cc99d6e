//! Files other than models: written completely or not at all, like models.

use crate::error::Error;
use crate::onnx::layout::Layout;
use crate::onnx::{ExportError, Source, target};
use std::path::Path;

pub use crate::temporary::{Discarded, discard_all};

/// Writes a file through a temporary one in its folder. What `source` was read from is never replaced.
///
/// # Errors
/// If the file exists and `force` is not set, or cannot be written.
pub fn write(path: &Path, bytes: &[u8], force: bool, source: Option<&Source>) -> Result<(), Error> {
    let mut layout = Layout::new();
    layout.bytes(bytes);
    let known = source.map(Source::files).unwrap_or_default();
    let staged = target::stage(&layout, path, force, &known).map_err(ExportError::from)?;
    Ok(target::commit(staged).map_err(ExportError::from)?)
}

/// Checks that a file may be written, before any work is done for it.
///
/// # Errors
/// If the file exists and `force` is not set, is a folder, or is what `source` was read from.
pub fn check(path: &Path, force: bool, source: Option<&Source>) -> Result<(), Error> {
    let known = source.map(Source::files).unwrap_or_default();
    Ok(target::check(path, force, &known).map_err(ExportError::from)?)
}
