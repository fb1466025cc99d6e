//! Forms of the operators of ai.ampc: for each form of a node its overload, its numbers of operands and results, and the
//! template of its body.

use super::{BITS_SINCE, DOMAIN, MIN_OPSET};
use crate::attr::{Attr, AttrValue};
use crate::dtype::DType;
use crate::entity::Node;
use crate::module::Module;
use crate::op::{Arity, AttrSchema, OpKind};
use crate::views::loss_scale::{Arith, is_count};
use crate::views::optimizer::{AdamWMode, Momentum, OnOverflow};

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
    pub(super) fn all(kind: OpKind) -> Vec<Form> {
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
        self.properties().kind
    }

    /// The overload of its function.
    pub fn overload(self) -> String {
        let FormProperties { name, marks, .. } = self.properties();
        let marks = marks.iter().filter(|(_, is_there)| *is_there);
        marks.fold(name, |text, (mark, _)| format!("{text}_{mark}"))
    }

    /// The oldest opset of ai.onnx that its body is written for.
    pub fn min_opset(self) -> u16 {
        self.properties().min_opset
    }

    /// The number of operands of its function.
    pub fn n_operands(self) -> usize {
        self.properties().n_operands
    }

    /// The number of results of its function: a node in a file has a place for each.
    pub fn n_results(self) -> usize {
        self.properties().n_results
    }

    /// True if a node may have result `i`. The place of an absent result stays empty.
    pub fn has_result(self, i: usize) -> bool {
        let FormProperties { n_results, absent, .. } = self.properties();
        i < n_results && absent != Some(i)
    }

    /// The file of its operator, the number of iterations of its loops, and its flags.
    pub(super) fn template(self) -> (&'static str, usize, Vec<&'static str>) {
        let FormProperties { template, repeats, flags, marks, .. } = self.properties();
        let marks = marks.iter().filter(|(_, is_there)| *is_there).map(|(mark, _)| *mark);
        (template, repeats, flags.into_iter().chain(marks).collect())
    }

    fn properties(self) -> FormProperties {
        match self {
            Form::Adam { lo } => FormProperties {
                marks: vec![("lo", lo)],
                ..FormProperties::new(OpKind::Adam, "torch", include_str!("adam.ir"), 8, 3 + usize::from(lo))
            },
            Form::AdamW { mode, lo } => FormProperties {
                marks: vec![("lo", lo)],
                flags: vec![mode.as_str()],
                ..FormProperties::new(
                    OpKind::AdamW,
                    mode.as_str(),
                    include_str!("adam_w.ir"),
                    8,
                    3 + usize::from(lo),
                )
            },
            Form::ClipCoef => {
                FormProperties::new(OpKind::ClipCoef, "norm", include_str!("clip_coef.ir"), 2, 2)
            }
            Form::GradCheck { n } => FormProperties {
                repeats: n,
                ..FormProperties::new(
                    OpKind::GradCheck,
                    &n.to_string(),
                    include_str!("grad_check.ir"),
                    n + 1,
                    2,
                )
            },
            Form::PhiloxDropout => FormProperties {
                repeats: ROUNDS,
                min_opset: BITS_SINCE,
                ..FormProperties::new(
                    OpKind::PhiloxDropout,
                    "philox4x32_10",
                    include_str!("philox_dropout.ir"),
                    4,
                    1,
                )
            },
            Form::Sgd { direction, on_overflow, lo } => {
                let has_v = direction != Momentum::Plain;
                let zero_grad = on_overflow == OnOverflow::ZeroGrad;
                let n_results = if lo { 3 } else { 1 + usize::from(has_v) };
                let n_operands = 6 + usize::from(has_v);
                let mut flags = vec![direction.as_str()];
                flags.extend((!zero_grad).then_some(on_overflow.as_str()));
                flags.extend(has_v.then_some("buffer"));
                FormProperties {
                    marks: vec![(OnOverflow::ZeroGrad.as_str(), zero_grad), ("lo", lo)],
                    flags,
                    absent: (!has_v).then_some(1),
                    ..FormProperties::new(
                        OpKind::SGD,
                        direction.as_str(),
                        include_str!("sgd.ir"),
                        n_operands,
                        n_results,
                    )
                }
            }
            Form::UpdateLossScale { arith, min, max, bad } => {
                let mut flags = vec![arith.as_str()];
                let absent = [("no_min", min), ("no_max", max), ("no_bad", bad)];
                flags.extend(absent.iter().filter(|(_, is_there)| !is_there).map(|(flag, _)| *flag));
                FormProperties {
                    marks: vec![("min", min), ("max", max), ("bad", bad)],
                    flags,
                    ..FormProperties::new(
                        OpKind::UpdateLossScale,
                        arith.as_str(),
                        include_str!("update_loss_scale.ir"),
                        3 + usize::from(bad),
                        2 + usize::from(bad),
                    )
                }
            }
        }
    }
}

/// The properties of a form.
struct FormProperties {
    /// The operator.
    kind: OpKind,
    /// The overload without marks.
    name: String,
    /// Parts of the overload, in order, and whether the form has each. The marks of a form are flags of its template too.
    marks: Vec<(&'static str, bool)>,
    /// The file of the operator.
    template: &'static str,
    /// The other flags of the template.
    flags: Vec<&'static str>,
    /// The number of iterations of loops in the template.
    repeats: usize,
    /// The numbers of operands and results of the function.
    n_operands: usize,
    n_results: usize,
    /// The result that a node of the form does not have.
    absent: Option<usize>,
    /// The oldest opset of ai.onnx that the body is written for.
    min_opset: u16,
}

impl FormProperties {
    /// The properties of a form without marks, flags and loops.
    fn new(
        kind: OpKind,
        name: &str,
        template: &'static str,
        n_operands: usize,
        n_results: usize,
    ) -> FormProperties {
        FormProperties {
            kind,
            name: name.to_owned(),
            marks: Vec::new(),
            template,
            flags: Vec::new(),
            repeats: 0,
            n_operands,
            n_results,
            absent: None,
            min_opset: MIN_OPSET,
        }
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
    kind.domain() == DOMAIN
}
