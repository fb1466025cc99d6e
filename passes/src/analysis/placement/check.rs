//! The comparison of a module with the placement of its casts, reader by reader.

use super::{Placement, Read};
use crate::graph::flow::{self, Reader};
use crate::pass::PassError;
use ampc_ir::op::OpKind;
use ampc_ir::{Module, Value};

impl Placement {
    /// Compares the readers of a module in which casts have been inserted with the placement. `now` is a value as it is
    /// called now: the operand of a cast of the author that was left out instead of its result.
    ///
    /// # Errors
    /// The first reader that reads another value.
    pub fn check(&self, module: &Module, now: impl Fn(Value) -> Value) -> Result<(), PassError> {
        let mut readers: Vec<(&Reader, &Read)> = self.reads.iter().collect();
        readers.sort_unstable_by_key(|(reader, _)| **reader);
        for (&reader, &read) in readers {
            let Some(value) = value_of(module, reader) else { continue };
            let found = flow::resolve_captures(module, value);
            let is_right = match read {
                Read::Tensor(tensor) => found == flow::resolve_captures(module, now(tensor)),
                Read::Cast(cast) => {
                    let cast = self.casts[cast];
                    let tensor = flow::resolve_captures(module, now(cast.tensor));
                    let to = module.value(found).ty.dtype();
                    let operand = module.producer(found).filter(|&(node, _)| {
                        let data = module.node(node);
                        data.graph == cast.graph
                            && data.schema().is_some_and(|schema| schema.kind == OpKind::Cast)
                    });
                    let operand = operand.and_then(|(node, _)| module.node(node).operand(0));
                    let operand = operand.map(|operand| flow::resolve_captures(module, operand));
                    to == Some(cast.to) && operand == Some(tensor)
                }
            };
            if !is_right {
                let reader = self.name_of_reader(module, reader);
                let found = super::text::value(module, found);
                let expected = self.text_of_read(module, read);
                return Err(PassError::Misplaced { reader, expected, found });
            }
        }
        Ok(())
    }
}

/// The value that a reader reads; `None` if its node was left out.
fn value_of(module: &Module, reader: Reader) -> Option<Value> {
    match reader {
        Reader::Operand(node, slot) => module.node(node).operand(slot as usize),
        Reader::Output(graph, slot) => {
            module.graph(graph).outputs().get(slot as usize).map(|output| output.value)
        }
    }
}
