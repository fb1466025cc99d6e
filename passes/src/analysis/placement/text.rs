//! The text of a placement: a line for each cast, and for each reader that reads a tensor instead of a cast.

use super::{Placement, Read};
use crate::graph::flow::Reader;
use ampc_ir::module::GraphOwner;
use ampc_ir::{GraphId, Module, Value};
use std::fmt::Write as _;

impl Placement {
    /// The casts with their readers, a line for each, and the readers that read a tensor instead of a cast of an earlier run.
    ///
    /// ```text
    /// cast %a to f16 in @main: operand 0 of %b, operand 0 of %c
    /// ```
    pub fn to_text(&self, module: &Module) -> String {
        let mut readers: Vec<(Reader, Read)> =
            self.reads.iter().map(|(&reader, &read)| (reader, read)).collect();
        readers.sort_unstable();
        let of = |read: Read| {
            let readers = readers.iter().filter(move |(_, known)| *known == read);
            readers.map(|&(reader, _)| self.name_of_reader(module, reader)).collect::<Vec<_>>().join(", ")
        };
        let mut text = String::new();
        for cast in 0..self.casts.len() {
            let read = Read::Cast(cast);
            let _ = writeln!(text, "{}: {}", self.text_of_read(module, read), of(read));
        }
        for &(reader, read) in readers.iter().filter(|(_, read)| matches!(read, Read::Tensor(_))) {
            let reader = self.name_of_reader(module, reader);
            let _ = writeln!(text, "{}: {reader}", self.text_of_read(module, read));
        }
        text
    }

    pub(super) fn text_of_read(&self, module: &Module, read: Read) -> String {
        match read {
            Read::Tensor(tensor) => format!("{} as it is", value(module, tensor)),
            Read::Cast(cast) => {
                let cast = &self.casts[cast];
                let (tensor, graph) = (value(module, cast.tensor), graph(module, cast.graph));
                format!("cast {tensor} to {} in {graph}", cast.to)
            }
        }
    }

    pub(super) fn name_of_reader(&self, module: &Module, reader: Reader) -> String {
        match reader {
            Reader::Operand(node, slot) => {
                let result = module.node(node).result(0).map(|result| value(module, result));
                format!("operand {slot} of {}", result.unwrap_or_else(|| node.to_string()))
            }
            Reader::Output(of, slot) => format!("output {slot} of {}", graph(module, of)),
        }
    }
}

/// A value in the text form.
pub(super) fn value(module: &Module, value: Value) -> String {
    module.value_name(value).map_or_else(|| value.to_string(), |name| format!("%{}", module.text(name)))
}

/// A graph: `@main`, the name of a function, or a body as the attribute of its node.
fn graph(module: &Module, graph: GraphId) -> String {
    match module.graph(graph).owner {
        GraphOwner::Main => "@main".to_owned(),
        GraphOwner::Body { node, attr } => {
            let result = module.node(node).result(0).map(|result| value(module, result));
            format!("{} of {}", module.text(attr), result.unwrap_or_else(|| node.to_string()))
        }
        GraphOwner::Function(_) | GraphOwner::Erased => graph.to_string(),
    }
}
