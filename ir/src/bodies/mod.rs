//! The bodies of the operators of ai.ampc: what each means, in standard ONNX.
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
//! // end
//! ```
//!
//! `{i}`, `{N}`, `{opset}` and `{overload}` stand for their values, and `%x{0..N}` for `%x0, %x1, …` up to N - 1.
//! Blocks do not nest. The form `GradCheck:2` begins:
//!
//! ```text
//! // for i in 0..N         input %g0 : ?
//! input %g{i} : ?          input %g1 : ?
//! // end
//! ```

use crate::attr::{Attr, AttrValue};
use crate::op::{Arity, AttrSchema, OpKind};
use crate::text::{NoData, parse};
use crate::views::optimizer::AdamWMode;
use crate::{DType, FunctionId, Module, Node};

#[cfg(test)]
mod tests;

/// The domain of these operators.
pub const DOMAIN: &str = "ai.ampc";

/// The oldest opset of ai.onnx that bodies are written for.
pub const MIN_OPSET: u16 = 17;

/// The most gradients that a GradCheck takes: as many operands as a schema can ask for, without the scale.
const MAX_GRADIENTS: usize = i32::MAX as usize - 1;

/// An operator of ai.ampc in the form that a node has: what its overload says.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Form {
    /// GradCheck of so many gradients; the overload is the number.
    GradCheck {
        /// How many, at least 1.
        n: usize,
    },
    /// AdamW; the overload is `torch` or `hf`, with `_lo` behind it if there is a low copy.
    AdamW {
        /// Whose formula it is.
        mode: AdamWMode,
        /// Whether it makes a low copy.
        lo: bool,
    },
}

impl Form {
    /// The form that an overload of an operator names.
    pub fn named(kind: OpKind, overload: &str) -> Option<Form> {
        let form = match kind {
            OpKind::GradCheck => {
                Form::GradCheck { n: overload.parse().ok().filter(|n| (1..=MAX_GRADIENTS).contains(n))? }
            }
            OpKind::AdamW => {
                let (mode, lo) = match overload.strip_suffix("_lo") {
                    Some(mode) => (mode, true),
                    None => (overload, false),
                };
                Form::AdamW { mode: AdamWMode::from_name(mode)?, lo }
            }
            _ => return None,
        };
        // One spelling for each: not `02`.
        (form.overload() == overload).then_some(form)
    }

    /// The form of a node with so many operands and these attributes; `None` if it is of no operator of ai.ampc, or an
    /// attribute that the form depends on is none that the operator has.
    pub fn of<'a>(
        kind: OpKind,
        n_operands: usize,
        attr: impl Fn(&str) -> Option<&'a AttrValue>,
    ) -> Option<Form> {
        match kind {
            OpKind::GradCheck => Some(Form::GradCheck { n: n_operands.checked_sub(1).filter(|&n| n > 0)? }),
            OpKind::AdamW => {
                let Some(AttrValue::String(mode)) = attr("mode") else { return None };
                let mode = AdamWMode::from_name(std::str::from_utf8(mode).ok()?)?;
                let lo = match attr("w_lo_dtype") {
                    None => false,
                    Some(AttrValue::Int(10 | 16)) => true,
                    Some(_) => return None,
                };
                let corrects = matches!(attr("bias_correction"), None | Some(AttrValue::Int(0 | 1)));
                let numbers = ["beta1", "beta2", "epsilon", "weight_decay"].into_iter().filter_map(attr);
                let is_scalar = |value: &AttrValue| matches!(value, AttrValue::Tensor(t) if t.dtype() == DType::F64 && t.dims().is_empty());
                (corrects && numbers.into_iter().all(is_scalar)).then_some(Form::AdamW { mode, lo })
            }
            _ => None,
        }
    }

    /// The form of a node; `None` as for [`Form::of`], and where operands, results or attributes
    /// are not those of its operator.
    pub fn of_node(module: &Module, node: Node) -> Option<Form> {
        let data = module.node(node);
        let schema = data.schema().filter(|s| has_body(s.kind))?;
        let attr = |name: &str| data.attrs().iter().find(|a| module.text(a.name) == name).map(|a| &a.value);
        let is_known =
            |a: &Attr| schema.attr(module.text(a.name)).is_some_and(|known| known.kind == a.value.kind());
        let is_there = |known: &AttrSchema| !known.required || attr(known.name).is_some();
        if !data.attrs().iter().all(is_known) || !schema.attrs.iter().all(is_there) {
            return None;
        }
        let form = Form::of(schema.kind, data.n_formal(), attr)?;
        let is_needed = |i: usize| schema.output(i).is_some_and(|formal| formal.arity == Arity::Single);
        let reads =
            data.n_formal() == form.n_operands() && data.formal_operands().iter().all(Option::is_some);
        let n = data.results().len();
        let makes =
            n <= form.n_results() && (0..form.n_results()).all(|i| !is_needed(i) || data.result(i).is_some());
        (reads && makes).then_some(form)
    }

    /// The operator.
    pub fn kind(self) -> OpKind {
        match self {
            Form::GradCheck { .. } => OpKind::GradCheck,
            Form::AdamW { .. } => OpKind::AdamW,
        }
    }

    /// The overload of its function.
    pub fn overload(self) -> String {
        match self {
            Form::GradCheck { n } => n.to_string(),
            Form::AdamW { mode, lo } => format!("{}{}", mode.as_str(), if lo { "_lo" } else { "" }),
        }
    }

    /// The number of operands of its function.
    pub fn n_operands(self) -> usize {
        match self {
            Form::GradCheck { n } => n + 1,
            Form::AdamW { .. } => 8,
        }
    }

    /// The number of results of its function: a node in a file names them all.
    pub fn n_results(self) -> usize {
        match self {
            Form::GradCheck { .. } => 2,
            Form::AdamW { lo, .. } => 3 + usize::from(lo),
        }
    }

    /// The file of its operator, how often its loops run, and its flags.
    fn template(self) -> (&'static str, usize, Vec<&'static str>) {
        match self {
            Form::GradCheck { n } => (include_str!("grad_check.ir"), n, Vec::new()),
            Form::AdamW { mode, lo } => {
                let mut flags = vec![mode.as_str()];
                flags.extend(lo.then_some("lo"));
                (include_str!("adam_w.ir"), 0, flags)
            }
        }
    }
}

/// Whether a kind is an operator of ai.ampc, whose nodes are calls of functions in files.
pub fn has_body(kind: OpKind) -> bool {
    matches!(kind, OpKind::AdamW | OpKind::GradCheck)
}

/// A module of opset `opset` of ai.onnx with nothing in it but the function of a form.
///
/// The body is the same at every opset from [`MIN_OPSET`] on; `None` for older ones. At an opset that the operator table
/// does not know yet it is that of the newest one.
pub fn function(form: Form, opset: u16) -> Option<(Module, FunctionId)> {
    if opset < MIN_OPSET {
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
    let mut add = |line: &str, i: &str| {
        let line = listed(line, n).replace("{i}", i).replace("{N}", &n_text);
        out += &line.replace("{opset}", &opset).replace("{overload}", &overload);
        out.push('\n');
    };
    let mut lines = template.lines();
    while let Some(line) = lines.next() {
        let mut block = || lines.by_ref().take_while(|line| line.trim() != "// end").collect::<Vec<_>>();
        match line.trim().strip_prefix("// ") {
            Some("for i in 0..N") => {
                let block = block();
                (0..n).for_each(|i| block.iter().for_each(|line| add(line, &i.to_string())));
            }
            Some(words) if words.starts_with("if ") => {
                let block = block();
                if flags.contains(&&words[3..]) {
                    block.iter().for_each(|line| add(line, ""));
                }
            }
            _ => add(line, ""),
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
