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

use crate::attr::{Attr, AttrValue};
use crate::dtype::DType;
use crate::entity::{FunctionId, Node};
use crate::module::Module;
use crate::op::{Arity, AttrSchema, OpKind};
use crate::text::{NoData, parse};
use crate::views::loss_scale::{Arith, is_count};
use crate::views::optimizer::{AdamWMode, Momentum, OnOverflow};

#[cfg(test)]
mod tests;

/// The domain of these operators.
pub const DOMAIN: &str = "ai.ampc";

/// The oldest opset of ai.onnx for which bodies are written; some need a newer opset ([`Form::min_opset`]).
pub const MIN_OPSET: u16 = 17;

/// The opset in which ai.onnx has operators on bits.
pub const BITS_SINCE: u16 = 18;

/// The number of rounds of the generator of PhiloxDropout.
const ROUNDS: usize = 10;

/// The most gradients that a GradCheck takes: as many operands as a schema can ask for, without the scale.
const MAX_GRADIENTS: usize = i32::MAX as usize - 1;

/// An operator of ai.ampc in the form of a node, which the overload names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Form {
    /// Adam; the overload is `torch`, with `_lo` behind it if there is a low copy.
    Adam {
        /// True if it makes a low copy.
        lo: bool,
    },
    /// AdamW; the overload is `torch` or `hf`, with `_lo` behind it if there is a low copy.
    AdamW {
        /// The variant of AdamW.
        mode: AdamWMode,
        /// True if it makes a low copy.
        lo: bool,
    },
    /// ClipCoef; the overload is `norm`.
    ClipCoef,
    /// GradCheck of so many gradients; the overload is the number.
    GradCheck {
        /// The number of gradients, at least 1.
        n: usize,
    },
    /// PhiloxDropout; the overload is `philox4x32_10`.
    PhiloxDropout,
    /// SGD; the overload is `plain`, `momentum` or `nesterov`, with `_zero_grad` behind it for steps that an overflow
    /// does not skip, and `_lo` if there is a low copy.
    Sgd {
        /// The direction in which the weights move.
        direction: Momentum,
        /// The effect of a gradient that is not finite.
        on_overflow: OnOverflow,
        /// True if it makes a low copy.
        lo: bool,
    },
    /// UpdateLossScale; the overload is `f32_product` or `f64_product`, followed by `_min`, `_max` and `_bad`
    /// for present operands.
    UpdateLossScale {
        /// In which type products are computed.
        arith: Arith,
        /// True if there is a least scale.
        min: bool,
        /// True if there is a greatest scale.
        max: bool,
        /// True if overflows in a row are counted.
        bad: bool,
    },
}

const EITHER: [bool; 2] = [false, true];

impl Form {
    /// All forms of an operator, except GradCheck, which has a form for every number of gradients.
    fn all(kind: OpKind) -> Vec<Form> {
        let mut forms = Vec::new();
        match kind {
            OpKind::Adam => forms.extend(EITHER.map(|lo| Form::Adam { lo })),
            OpKind::AdamW => {
                for mode in [AdamWMode::Torch, AdamWMode::Hf] {
                    forms.extend(EITHER.map(|lo| Form::AdamW { mode, lo }));
                }
            }
            OpKind::ClipCoef => forms.push(Form::ClipCoef),
            OpKind::PhiloxDropout => forms.push(Form::PhiloxDropout),
            OpKind::SGD => {
                for direction in [Momentum::Plain, Momentum::Momentum, Momentum::Nesterov] {
                    for on_overflow in [OnOverflow::Skip, OnOverflow::ZeroGrad] {
                        forms.extend(EITHER.map(|lo| Form::Sgd { direction, on_overflow, lo }));
                    }
                }
            }
            OpKind::UpdateLossScale => {
                for arith in [Arith::F32Product, Arith::F64Product] {
                    for (min, max) in [(false, false), (false, true), (true, false), (true, true)] {
                        forms.extend(EITHER.map(|bad| Form::UpdateLossScale { arith, min, max, bad }));
                    }
                }
            }
            _ => {}
        }
        forms
    }

    /// The form that an overload of an operator names.
    pub fn named(kind: OpKind, overload: &str) -> Option<Form> {
        // One spelling for each: not `02`.
        let is_spelled = |form: &Form| form.overload() == overload;
        if kind == OpKind::GradCheck {
            let n = overload.parse().ok().filter(|n| (1..=MAX_GRADIENTS).contains(n))?;
            return Some(Form::GradCheck { n }).filter(is_spelled);
        }
        Form::all(kind).into_iter().find(is_spelled)
    }

    /// The form of a node with this number of operands and these attributes; `None` if the operator is not of
    /// ai.ampc or does not have an attribute.
    pub fn of<'a>(
        kind: OpKind,
        n_operands: usize,
        attr: impl Fn(&str) -> Option<&'a AttrValue>,
    ) -> Option<Form> {
        let attrs = Attrs(&attr);
        match kind {
            OpKind::Adam => {
                let fits = attrs.is_flag("bias_correction")
                    && attrs.are_scalars(&["beta1", "beta2", "epsilon", "weight_decay"]);
                fits.then_some(Form::Adam { lo: attrs.lo()? })
            }
            OpKind::AdamW => {
                let mode = AdamWMode::from_name(attrs.word("mode")?)?;
                let fits = attrs.is_flag("bias_correction")
                    && attrs.are_scalars(&["beta1", "beta2", "epsilon", "weight_decay"]);
                fits.then_some(Form::AdamW { mode, lo: attrs.lo()? })
            }
            OpKind::ClipCoef => attrs.are_scalars(&["max_norm", "epsilon"]).then_some(Form::ClipCoef),
            OpKind::GradCheck => Some(Form::GradCheck { n: n_operands.checked_sub(1).filter(|&n| n > 0)? }),
            OpKind::PhiloxDropout => {
                let fits = attrs.int("stream").is_none_or(|stream| u32::try_from(stream).is_ok());
                fits.then_some(Form::PhiloxDropout)
            }
            OpKind::SGD => {
                let direction = match (n_operands, attrs.flag("nesterov")?) {
                    (6, false) if attrs.number("momentum")? == 0.0 => Momentum::Plain,
                    (7, false) => Momentum::Momentum,
                    (7, true) => Momentum::Nesterov,
                    _ => return None,
                };
                let on_overflow = OnOverflow::from_name(attrs.word("on_overflow")?)?;
                let fits = attrs.are_scalars(&["dampening", "momentum", "weight_decay"]);
                fits.then_some(Form::Sgd { direction, on_overflow, lo: attrs.lo()? })
            }
            OpKind::UpdateLossScale => {
                let arith = Arith::from_name(attrs.word("arith")?)?;
                let (min, max, bad) = (attr("min").is_some(), attr("max").is_some(), n_operands == 4);
                let counts = [attrs.int("interval"), attrs.int("backoff_every")];
                let fits = attrs.are_scalars(&["growth", "backoff", "min", "max"])
                    && attrs.is_flag("reset_good")
                    && counts.into_iter().flatten().all(is_count)
                    && (bad || counts[1].is_none_or(|every| every == 1));
                fits.then_some(Form::UpdateLossScale { arith, min, max, bad })
            }
            _ => None,
        }
    }

    /// The form of a node; `None` as for [`Form::of`], and if operands, results or attributes do not fit the
    /// operator.
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
        let n = data.results().len().max(form.n_results());
        let makes = (0..n).all(|i| match data.result(i) {
            Some(_) => form.has_result(i),
            None => !is_needed(i),
        });
        (reads && makes).then_some(form)
    }

    /// The operator.
    pub fn kind(self) -> OpKind {
        match self {
            Form::Adam { .. } => OpKind::Adam,
            Form::AdamW { .. } => OpKind::AdamW,
            Form::ClipCoef => OpKind::ClipCoef,
            Form::GradCheck { .. } => OpKind::GradCheck,
            Form::PhiloxDropout => OpKind::PhiloxDropout,
            Form::Sgd { .. } => OpKind::SGD,
            Form::UpdateLossScale { .. } => OpKind::UpdateLossScale,
        }
    }

    /// The overload of its function.
    pub fn overload(self) -> String {
        let marked = |start: &str, marks: &[(&str, bool)]| {
            let mut text = start.to_owned();
            marks.iter().filter(|(_, there)| *there).for_each(|(mark, _)| text = format!("{text}_{mark}"));
            text
        };
        match self {
            Form::Adam { lo } => marked("torch", &[("lo", lo)]),
            Form::AdamW { mode, lo } => marked(mode.as_str(), &[("lo", lo)]),
            Form::ClipCoef => "norm".to_owned(),
            Form::GradCheck { n } => n.to_string(),
            Form::PhiloxDropout => "philox4x32_10".to_owned(),
            Form::Sgd { direction, on_overflow, lo } => {
                let zero_grad = (on_overflow.as_str(), on_overflow == OnOverflow::ZeroGrad);
                marked(direction.as_str(), &[zero_grad, ("lo", lo)])
            }
            Form::UpdateLossScale { arith, min, max, bad } => {
                marked(arith.as_str(), &[("min", min), ("max", max), ("bad", bad)])
            }
        }
    }

    /// The oldest opset of ai.onnx that its body is written for.
    pub fn min_opset(self) -> u16 {
        match self {
            Form::PhiloxDropout => BITS_SINCE,
            Form::Adam { .. }
            | Form::AdamW { .. }
            | Form::ClipCoef
            | Form::GradCheck { .. }
            | Form::Sgd { .. }
            | Form::UpdateLossScale { .. } => MIN_OPSET,
        }
    }

    /// The number of operands of its function.
    pub fn n_operands(self) -> usize {
        match self {
            Form::Adam { .. } | Form::AdamW { .. } => 8,
            Form::ClipCoef => 2,
            Form::GradCheck { n } => n + 1,
            Form::PhiloxDropout => 4,
            Form::Sgd { direction, .. } => 6 + usize::from(direction != Momentum::Plain),
            Form::UpdateLossScale { bad, .. } => 3 + usize::from(bad),
        }
    }

    /// The number of results of its function: a node in a file has a place for each.
    pub fn n_results(self) -> usize {
        match self {
            Form::Adam { lo } | Form::AdamW { lo, .. } => 3 + usize::from(lo),
            Form::ClipCoef | Form::GradCheck { .. } => 2,
            Form::PhiloxDropout => 1,
            Form::Sgd { lo: true, .. } => 3,
            Form::Sgd { direction, lo: false, .. } => 1 + usize::from(direction != Momentum::Plain),
            Form::UpdateLossScale { bad, .. } => 2 + usize::from(bad),
        }
    }

    /// True if a node may have result `i`: the place of an absent one stays empty.
    pub fn has_result(self, i: usize) -> bool {
        let is_absent = matches!(self, Form::Sgd { direction: Momentum::Plain, .. }) && i == 1;
        i < self.n_results() && !is_absent
    }

    /// The file of its operator, how often its loops run, and its flags.
    fn template(self) -> (&'static str, usize, Vec<&'static str>) {
        let mut flags = Vec::new();
        let text = match self {
            Form::Adam { lo } => {
                flags.extend(lo.then_some("lo"));
                include_str!("adam.ir")
            }
            Form::AdamW { mode, lo } => {
                flags.push(mode.as_str());
                flags.extend(lo.then_some("lo"));
                include_str!("adam_w.ir")
            }
            Form::ClipCoef => include_str!("clip_coef.ir"),
            Form::GradCheck { n } => return (include_str!("grad_check.ir"), n, flags),
            Form::PhiloxDropout => return (include_str!("philox_dropout.ir"), ROUNDS, flags),
            Form::Sgd { direction, on_overflow, lo } => {
                flags.extend([direction.as_str(), on_overflow.as_str()]);
                flags.extend((direction != Momentum::Plain).then_some("buffer"));
                flags.extend(lo.then_some("lo"));
                include_str!("sgd.ir")
            }
            Form::UpdateLossScale { arith, min, max, bad } => {
                flags.push(arith.as_str());
                flags.push(if min { "min" } else { "no_min" });
                flags.push(if max { "max" } else { "no_max" });
                flags.push(if bad { "bad" } else { "no_bad" });
                include_str!("update_loss_scale.ir")
            }
        };
        (text, 0, flags)
    }
}

/// The attributes of a node, as far as its form depends on them.
struct Attrs<'f, F>(&'f F);

impl<'a, F: Fn(&str) -> Option<&'a AttrValue>> Attrs<'_, F> {
    fn word(&self, name: &str) -> Option<&'a str> {
        let Some(AttrValue::String(text)) = (self.0)(name) else { return None };
        std::str::from_utf8(text).ok()
    }

    fn int(&self, name: &str) -> Option<i64> {
        let Some(&AttrValue::Int(n)) = (self.0)(name) else { return None };
        Some(n)
    }

    fn flag(&self, name: &str) -> Option<bool> {
        self.int(name).filter(|n| (0..2).contains(n)).map(|n| n == 1)
    }

    /// True if it is 0 or 1, if it is there.
    fn is_flag(&self, name: &str) -> bool {
        (self.0)(name).is_none() || self.flag(name).is_some()
    }

    /// The number that is a scalar of f64.
    fn number(&self, name: &str) -> Option<f64> {
        let Some(AttrValue::Tensor(tensor)) = (self.0)(name) else { return None };
        tensor.small_floats(1).and_then(|numbers| numbers.first().copied())
    }

    /// True if these are scalars of f64, as far as they are there.
    fn are_scalars(&self, names: &[&str]) -> bool {
        let is_scalar = |value: &AttrValue| matches!(value, AttrValue::Tensor(t) if t.dtype() == DType::F64 && t.dims().is_empty());
        names.iter().filter_map(|name| (self.0)(name)).all(is_scalar)
    }

    /// True if there is a low copy.
    fn lo(&self) -> Option<bool> {
        match (self.0)("w_lo_dtype") {
            None => Some(false),
            Some(AttrValue::Int(10 | 16)) => Some(true),
            Some(_) => None,
        }
    }
}

/// True if a kind is an operator of ai.ampc, whose nodes are calls of functions in files.
pub fn has_body(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Adam
            | OpKind::AdamW
            | OpKind::ClipCoef
            | OpKind::GradCheck
            | OpKind::PhiloxDropout
            | OpKind::SGD
            | OpKind::UpdateLossScale
    )
}

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
