//! Files that belong together, with the errors of the library.

use crate::bytes::SourceBytes;
use crate::error::Error;
use crate::onnx::ExportError;
pub use crate::onnx::batch::Batch;
use crate::onnx::layout::Layout;
use crate::onnx::references::SparedFile;
use std::path::Path;
use std::sync::Arc;

impl Batch {
    /// Adds a file of these bytes. Files in `read` that [`Model::files`] lists are never replaced.
    ///
    /// # Errors
    /// If the file exists and `force` is not set, is in `read` or was added before, or cannot be written.
    ///
    /// [`Model::files`]: crate::Model::files
    pub fn add(
        &mut self,
        path: &Path,
        bytes: &[u8],
        force: bool,
        read: &[Arc<SourceBytes>],
    ) -> Result<(), Error> {
        let mut layout = Layout::new();
        layout.bytes(bytes);
        Ok(self.stage(layout, path, force, read).map_err(ExportError::from)?)
    }

    /// The [`digest`](crate::files::digest) of the model that was added, by which a report says which model it is about;
    /// `None` without a model.
    ///
    /// # Errors
    /// If the model cannot be read again.
    pub fn model_digest(&mut self) -> Result<Option<String>, Error> {
        Ok(self.digest().map_err(ExportError::from)?)
    }

    /// Checks that the files that the results are made of are as they were when they were read.
    ///
    /// # Errors
    /// If any of them has changed.
    pub fn check(&self) -> Result<(), Error> {
        Ok(self.check_all().map_err(ExportError::from)?)
    }

    /// Writes the output to pipes and devices, and gives the files their names. Returns the data files of a
    /// replaced model that stay because another model of the folder refers to them, or may.
    ///
    /// # Errors
    /// If something that was read has changed since then, a pipe or device takes no more, or a name cannot be given.
    /// No file is there then that was not before.
    pub fn commit(self) -> Result<Vec<SparedFile>, Error> {
        Ok(self.commit_all().map_err(ExportError::from)?)
    }
}
