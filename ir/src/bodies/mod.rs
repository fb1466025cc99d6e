//! Bodies of the operators of ai.ampc in standard ONNX.
//!
//! A node of such an operator is one node for passes and kernels. In a file it is a call of a model-local function, so
//! that every runtime has it: the writer adds the function, the reader recognises it. A function has a fixed number of
//! operands, and no attribute can choose between two formulas in it, so an operator has a function for each form that
//! a node can have: the overload names the form ([`Form`]).
//!
//! The functions of an operator are expanded from one template, a file in the text form beside this one. Lines that
//! begin with `// for`, `// if` and `// end` direct the expansion:
//!
//! ```text
//! // for i in 0..N     the lines down to the end, for every i from 0 to N - 1
//! // if lo             the lines down to the end, if the form has the flag lo
//! // if lo and skip    if it has both
//! // end
//! ```
//!
//! `{i}`, `{i+1}`, `{N}`, `{opset}` and `{overload}` stand for their values, and `%x{0..N}` for `%x0, %x1, …` up to N - 1.
//! Blocks do not nest. The form `GradCheck:2` begins:
//!
//! ```text
//! // for i in 0..N         input %g0 : ?
//! input %g{i} : ?          input %g1 : ?
//! // end
//! ```

mod form;
#[cfg(test)]
mod tests;

pub use self::form::{Form, has_body};
pub use crate::op::optimizers::DOMAIN;

use crate::entity::FunctionId;
use crate::module::Module;
use crate::text::{NoData, parse};

/// The oldest opset of ai.onnx for which bodies are written; some need a newer opset ([`Form::min_opset`]).
pub const MIN_OPSET: u16 = 17;

/// The opset in which ai.onnx has operators on bits.
pub const BITS_SINCE: u16 = 18;

/// A module of opset `opset` of ai.onnx with nothing in it but the function of a form.
///
/// The body is the same at every opset from [`Form::min_opset`] on; `None` for older ones. At an opset that the operator table
/// does not know yet it is that of the newest one.
pub fn function(form: Form, opset: u16) -> Option<(Module, FunctionId)> {
    if opset < form.min_opset() {
        return None;
    }
    // Templates are ours, and tests expand them.
    let module = parse(&text(form, opset), &NoData);
    let module = module.unwrap_or_else(|errors| panic!("the body of {form:?} does not parse: {errors}"));
    let function = module.functions().next().map(|(id, _)| id);
    let function = function.expect("a template has a function");
    Some((module, function))
}

/// The text of that module.
fn text(form: Form, opset: u16) -> String {
    let (template, n, flags) = form.template();
    let (n_text, opset, overload) = (n.to_string(), opset.to_string(), form.overload());
    let mut out = format!("module ir=10\nopset ai.onnx={opset}\n\ngraph @main {{\n}}\n\n");
    let mut add = |line: &str, i: usize| {
        let (i, next) = (i.to_string(), (i + 1).to_string());
        let line = listed(line, n).replace("{i}", &i).replace("{i+1}", &next).replace("{N}", &n_text);
        out += &line.replace("{opset}", &opset).replace("{overload}", &overload);
        out.push('\n');
    };
    let mut lines = template.lines();
    while let Some(line) = lines.next() {
        let mut block = || lines.by_ref().take_while(|line| line.trim() != "// end").collect::<Vec<_>>();
        match line.trim().strip_prefix("// ") {
            Some("for i in 0..N") => {
                let block = block();
                (0..n).for_each(|i| block.iter().for_each(|line| add(line, i)));
            }
            Some(words) if words.starts_with("if ") => {
                let block = block();
                if words[3..].split(" and ").all(|flag| flags.contains(&flag)) {
                    block.iter().for_each(|line| add(line, 0));
                }
            }
            _ => add(line, 0),
        }
    }
    out
}

/// The line with `%x{0..N}` written out.
fn listed(line: &str, n: usize) -> String {
    let Some((before, after)) = line.split_once("{0..N}") else { return line.to_owned() };
    let start = before.rfind('%').unwrap_or(before.len());
    let (before, name) = before.split_at(start);
    let names: Vec<String> = (0..n).map(|i| format!("{name}{i}")).collect();
    format!("{before}{}{after}", names.join(", "))
}
