//! The graph as JSON, for frameworks that are not ONNX tools (schema `ampc-graph/1`, `docs/json-graph.md`).
//!
//! Same content as the text form: header, graphs, functions, nodes with operands and results by name, types,
//! attributes, decisions. A constant of more than 16 elements is named with element type, shape and content
//! hash; its bytes are in a safetensors file beside the graph, which is read by range. Two laws hold, as for
//! the text form: `parse(print(m)) == m` in the sense of [`same_module`](ampc_ir::eq::same_module), and the
//! output of [`print()`] prints to itself.
//!
//! Frameworks may omit types of results, hashes, paths and versions; missing types are inferred.

mod attrs;
mod elements;
mod files;
mod graphs;
mod reader;
mod tape;
mod tensors;
mod value_writer;
mod writer;

pub use files::{data_path, load, save, stage};
pub use writer::{Printed, print};

use ampc_ir::Module;
use ampc_ir::text::{DataResolver, ParseErrors, ParseOptions};

/// The version of the schema that is written and read.
pub const SCHEMA: &str = "ampc-graph/1";

/// Reads a module.
///
/// # Errors
/// Problems of the text: the first error of its syntax, or else all problems, in its order.
pub fn parse(text: &str, resolver: &dyn DataResolver, options: &ParseOptions) -> Result<Module, ParseErrors> {
    reader::parse(text, resolver, options)
}

#[cfg(test)]
mod tests;
