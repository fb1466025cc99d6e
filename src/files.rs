//! Files other than models: written completely or not at all, like models, and read up to a limit.

use crate::bytes::SourceBytes;
use crate::error::Error;
use crate::onnx::{ExportError, target};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use crate::batch::Batch;
pub use crate::digest::digest;
pub use crate::onnx::references::SparedFile;
pub use crate::temporary::{Discarded, discard_all, discard_soon};

/// The most bytes of a text or policy that are read: a million nodes fit.
pub const MAX_TEXT: u64 = 1 << 30;

/// Reads a text file, or a pipe to its end.
///
/// # Errors
/// If it cannot be read, has more than [`MAX_TEXT`] bytes, or is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let bytes = SourceBytes::open_most(path, MAX_TEXT)?.to_vec(MAX_TEXT)?;
    String::from_utf8(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.utf8_error()))
}

/// Writes a file through a temporary file in its folder. The files in `read`, which [`Model::files`] knows, are
/// never replaced.
///
/// # Errors
/// If the file exists and `force` is not set, is one of `read`, or cannot be written.
///
/// [`Model::files`]: crate::Model::files
pub fn write(path: &Path, bytes: &[u8], force: bool, read: &[Arc<SourceBytes>]) -> Result<(), Error> {
    let mut batch = Batch::new();
    batch.add(path, bytes, force, read)?;
    batch.commit()?;
    Ok(())
}

/// Checks that a file may be written, before any work is done for it.
///
/// # Errors
/// If the file exists and `force` is not set, is a folder, or is one of `read`.
pub fn check(path: &Path, force: bool, read: &[Arc<SourceBytes>]) -> Result<(), Error> {
    Ok(target::check(path, force, read).map_err(ExportError::from)?)
}

/// Checks that files are as they were when they were opened. Otherwise the output may be a mixture of old and
/// new content.
///
/// # Errors
/// If one of them has changed.
pub fn unchanged(read: &[Arc<SourceBytes>]) -> Result<(), Error> {
    let mut batch = Batch::new();
    batch.reads(read);
    batch.check()
}

/// True if a path leads to a pipe or device, which has no place for a second file beside it.
pub fn is_stream(path: &Path) -> bool {
    target::is_stream(path)
}

/// The file that is written for a path: the target of its symbolic links, which need not exist.
pub fn behind_links(path: &Path) -> PathBuf {
    target::behind_links(path)
}
