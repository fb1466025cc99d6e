//! Files other than models: written completely or not at all, like models, and read up to a limit.

use crate::error::Error;
use crate::onnx::bytes::SourceBytes;
use crate::onnx::{ExportError, target};
use ampc_ir::tensor::{ByteSource, CHUNK_BYTES};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3Default;

pub use crate::batch::Batch;
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

/// The digest of a file: the xxh3-128 of its bytes, as 32 hexadecimal digits. A report has the digest of its model.
///
/// # Errors
/// If the file cannot be read.
pub fn digest(file: &SourceBytes) -> io::Result<String> {
    let (mut hash, mut at) = (Hash::default(), 0);
    let mut buffer = vec![0; CHUNK_BYTES];
    while at < file.len() {
        let n = usize::try_from(file.len() - at).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES));
        file.read_exact_at(&mut buffer[..n], at)?;
        hash.0.update(&buffer[..n]);
        at += n as u64;
    }
    Ok(hash.digits())
}

/// Computes a [`digest`] of what is written to it.
#[derive(Default)]
pub(crate) struct Hash(Xxh3Default);

impl Hash {
    /// The digits of the digest.
    pub(crate) fn digits(&self) -> String {
        format!("{:032x}", self.0.digest128())
    }
}

impl io::Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// True if a path leads to a pipe or device, which has no place for a second file beside it.
pub fn is_stream(path: &Path) -> bool {
    target::is_stream(path)
}

/// The file that is written for a path: the target of its symbolic links, which need not exist.
pub fn behind_links(path: &Path) -> PathBuf {
    target::behind_links(path)
}
