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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::cost::Objective;
    use crate::policy::KeepIo;
    use ampc_ir::text::{NoData, parse};

    /// A module in which casts are still to be inserted does not agree with its placement.
    #[test]
    fn a_reader_of_another_value_is_named() {
        let text = "opset ai.onnx=20\n\ngraph @main {\n  input %x : f32[4, 4]\n  \
                    %y = MatMul(%x, %x) : f32[4, 4] class=allow prec=f16 why=table\n  output %y\n}\n";
        let module = parse(text, &NoData).unwrap();
        let placement = Placement::of_decided(&module, &KeepIo::All, Objective::Time);
        let text = placement.to_text(&module);
        assert_eq!(
            text,
            "cast %x to f16 in @main: operand 0 of %y, operand 1 of %y\ncast %y to f32 in @main: output 0 of @main\n"
        );
        let error = placement.check(&module, |value| value).unwrap_err().to_string();
        assert_eq!(
            error,
            "operand 0 of %y reads %x, but the placement of casts says cast %x to f16 in @main"
        );
    }
}
