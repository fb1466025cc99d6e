//! A model and the files that it was read from.

use crate::bytes::SourceBytes;
use crate::onnx::{self, Source};
use ampc_ir::Module;
use std::sync::Arc;

/// A model and where it came from.
#[derive(Debug)]
pub struct Model {
    /// The graph.
    pub module: Module,
    /// The file that the model was read from; `None` for a model that was built or read from text or JSON.
    pub source: Option<Source>,
    /// The text or JSON it was read from and its file of large constants, if it was read from one.
    pub text_files: Vec<Arc<SourceBytes>>,
    /// Irregularities of the file that were repaired.
    pub warnings: Vec<onnx::Warning>,
}

impl From<Module> for Model {
    fn from(module: Module) -> Model {
        Model { module, source: None, text_files: Vec::new(), warnings: Vec::new() }
    }
}

impl Model {
    /// All files that it was read from, its data files included. No writer of the model or of a report replaces
    /// one of these files.
    pub fn files(&self) -> Vec<Arc<SourceBytes>> {
        let onnx = self.source.as_ref().map(Source::files).unwrap_or_default();
        onnx.into_iter().chain(self.text_files.iter().cloned()).collect()
    }
}
