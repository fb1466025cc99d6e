//! Source of a module: the file, and the place of every message in it.
//!
//! A node or value of the module knows its message by a number, its `origin`, which is an index into the table
//! here. The writer copies messages of unchanged parts and patches messages of changed parts.

use super::external::ExternalFiles;
use super::scan::Located;
use crate::bytes::SourceBytes;
use ampc_ir::bodies::Form;
use ampc_ir::module::{Header, Output};
use ampc_ir::tensor::ByteSource;
use ampc_ir::{GraphId, Node, Type, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// The file behind a module.
#[derive(Debug)]
pub struct Source {
    pub(crate) bytes: Arc<SourceBytes>,
    /// The same, as constants refer to it.
    pub(crate) shared: Arc<dyn ByteSource>,
    pub(crate) external: ExternalFiles,
    /// All nodes, initializers, inputs and functions; `origin` is an index into this.
    pub(crate) messages: Vec<Located>,
    pub(crate) graphs: FxHashMap<GraphId, GraphSource>,
    /// The header as the file has it, before repairs.
    pub(crate) header: Header,
    /// Values whose elements are in an external file.
    pub(crate) external_values: FxHashSet<Value>,
    /// Nodes with attributes whose elements are in an external file.
    pub(crate) external_nodes: FxHashSet<Node>,
    /// Values that are initializers and inputs at once: the message of the initializer. Their origin is the input.
    pub(crate) initializers: FxHashMap<Value, Located>,
    /// The functions that are operators of ai.ampc.
    pub(crate) bodies: Vec<BodySource>,
    /// The opset of ai.onnx that the main graph imports.
    pub(crate) opset: Option<u16>,
}

/// A function that is an operator of ai.ampc.
#[derive(Debug)]
pub(crate) struct BodySource {
    /// The operator, and its form.
    pub(crate) form: Form,
    /// The message.
    pub(crate) at: Located,
    /// True if the function has calls. A function that is not called stays at its place if nothing changes.
    pub(crate) called: bool,
}

/// A graph as the file has it.
#[derive(Debug)]
pub(crate) struct GraphSource {
    /// The graph or function message.
    pub(crate) at: Located,
    /// Nodes in program order; they have consecutive ids.
    pub(crate) nodes: Vec<Node>,
    /// True if program order is the order of the file.
    pub(crate) sorted: bool,
    pub(crate) inputs: Vec<(Value, Type)>,
    pub(crate) constants: Vec<Value>,
    pub(crate) outputs: Vec<Output>,
}

impl Source {
    /// The file.
    pub fn bytes(&self) -> &Arc<SourceBytes> {
        &self.bytes
    }

    /// The file and its external data files.
    pub fn files(&self) -> Vec<Arc<SourceBytes>> {
        let external = self.external.opened().iter().map(|f| f.bytes.clone());
        std::iter::once(self.bytes.clone()).chain(external).collect()
    }

    pub(crate) fn message(&self, origin: Option<u32>) -> Option<Located> {
        self.messages.get(usize::try_from(origin?).ok()?).copied()
    }
}
