//! `loss`: adds a loss to an output of the model, which it compares with an input of targets.
//!
//! | kind | what it computes | target |
//! |---|---|---|
//! | `cross-entropy` | mean of −w\[t\] · log softmax(p)\[t\], over the sum of all w\[t\] | class numbers, i64, p's shape without the axis of classes |
//! | `mse` | mean of (p − t)² | p's type and shape |
//! | `l1` | mean of abs(p − t) | p's type and shape |
//! | `bce-with-logits` | mean of t · softplus(−p) + (1 − t) · softplus(p) | p's type and shape, within \[0, 1\] |
//!
//! With label smoothing ε, cross-entropy is (1 − ε) times the above plus ε/C times the same mean of the sum over all C
//! classes (Szegedy et al., arXiv 1512.00567, as torch.nn.CrossEntropyLoss has it). Everything is computed in fp32: the
//! pass pins its nodes.

use super::custom::CustomLoss;
use super::{LOSS_ROLE, ROLE, inference, public_name};
use crate::autodiff::{LOSS, PHASE, RuleError, check_loss};
use crate::build::{Build, Nodes, Ruled};
use crate::invariants::Invariants;
use crate::parameters::{ParameterError, add_role, output_named};
use crate::pass::{Changed, Pass, PassCx, PassError};
use crate::pipeline::{PassOption, Setting, Spelled, Words, option, settings};
use ampc_ir::op::{OpKind, Sign, moves};
use ampc_ir::{AttrValue, DType, Dim, Module, Node, NodeSpec, Shape, Type, Value};
use rustc_hash::FxHashSet;
use std::fmt;
use std::str::FromStr;

/// Which loss.
#[derive(Clone, Debug, PartialEq)]
pub enum LossKind {
    /// Of class scores.
    CrossEntropy {
        /// The label that counts for nothing.
        ignore_index: Option<i64>,
        /// ε, within \[0, 1\].
        label_smoothing: f64,
        /// The input of class weights, if there are any.
        weights: Option<String>,
        /// The axis of classes; `None` for the last of up to three axes, and axis 1 of more.
        axis: Option<i64>,
    },
    /// Mean squared error.
    Mse,
    /// Mean absolute error.
    L1,
    /// Binary cross-entropy of scores before the sigmoid.
    BceWithLogits,
    /// An output is the loss.
    Output(String),
    /// A function of the user builds it.
    Custom(CustomLoss),
}

impl LossKind {
    /// What it is called.
    fn name(&self) -> &str {
        match self {
            LossKind::Output(_) => "output",
            LossKind::Custom(custom) => custom.name(),
            LossKind::Mse => "mse",
            LossKind::L1 => "l1",
            LossKind::BceWithLogits => "bce-with-logits",
            LossKind::CrossEntropy { .. } => "cross-entropy",
        }
    }
}

/// A loss, mostly as it is spelled: `cross-entropy:ignore_index=-100,label_smoothing=0.1,of=logits`.
#[derive(Clone, Debug, PartialEq)]
pub struct LossSpec {
    /// Which.
    pub kind: LossKind,
    /// The output that it is the loss of: the first one without it.
    pub of: Option<String>,
}

impl From<CustomLoss> for LossSpec {
    fn from(custom: CustomLoss) -> LossSpec {
        LossSpec { kind: LossKind::Custom(custom), of: None }
    }
}

/// Why a text is no loss.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, found `{found}`")]
pub struct SpecError {
    /// What would be right.
    pub expected: String,
    /// What is there.
    pub found: String,
}

/// The settings behind the first `:` of a text, which all have to be taken.
pub(super) struct Settings<'a> {
    kind: &'a str,
    rest: Vec<(&'a str, &'a str)>,
}

impl<'a> Settings<'a> {
    pub(super) fn of(text: &'a str) -> Result<Settings<'a>, SpecError> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let pair = |entry: &'a str| {
            let pair = entry.split_once('=').map(|(key, value)| (key.trim(), value.trim()));
            pair.ok_or_else(|| SpecError {
                expected: "settings like `key=value`".into(),
                found: entry.into(),
            })
        };
        let entries = rest.split(',').filter(|entry| !entry.trim().is_empty());
        let rest: Vec<_> = entries.map(pair).collect::<Result<_, _>>()?;
        let twice =
            rest.iter().enumerate().find(|(i, (key, _))| rest[..*i].iter().any(|(other, _)| other == key));
        if let Some((_, (key, _))) = twice {
            return Err(SpecError { expected: "every setting once".into(), found: (*key).into() });
        }
        Ok(Settings { kind, rest })
    }

    pub(super) fn kind(&self) -> &'a str {
        self.kind
    }

    /// The value of a setting, which is taken.
    pub(super) fn word(&mut self, key: &str) -> Option<&'a str> {
        let at = self.rest.iter().position(|(found, _)| *found == key)?;
        Some(self.rest.remove(at).1)
    }

    pub(super) fn number<T: FromStr>(&mut self, key: &str, expected: &str) -> Result<Option<T>, SpecError> {
        let Some(text) = self.word(key) else { return Ok(None) };
        let wrong = || SpecError { expected: format!("{expected} for `{key}`"), found: text.into() };
        text.parse().map(Some).map_err(|_| wrong())
    }

    /// A number of an interval.
    pub(super) fn within(&mut self, key: &str, lo: f64, hi: f64) -> Result<Option<f64>, SpecError> {
        let text = self.rest.iter().find(|(found, _)| *found == key).map(|(_, text)| (*text).to_owned());
        let expected = format!("a number from {lo} to {hi}");
        match self.number::<f64>(key, &expected)? {
            Some(number) if !(lo..=hi).contains(&number) => Err(SpecError {
                expected: format!("{expected} for `{key}`"),
                found: text.unwrap_or_default(),
            }),
            number => Ok(number),
        }
    }

    /// A number from 0 on, which 1 is too much for.
    pub(super) fn share(&mut self, key: &str) -> Result<Option<f64>, SpecError> {
        let text = self.rest.iter().find(|(found, _)| *found == key).map(|(_, text)| (*text).to_owned());
        let expected = "a number of at least 0 and less than 1";
        match self.number::<f64>(key, expected)? {
            Some(number) if !(0.0..1.0).contains(&number) => Err(SpecError {
                expected: format!("{expected} for `{key}`"),
                found: text.unwrap_or_default(),
            }),
            number => Ok(number),
        }
    }

    pub(super) fn flag(&mut self, key: &str) -> Result<bool, SpecError> {
        match self.word(key) {
            None | Some("0" | "false") => Ok(false),
            Some("1" | "true") => Ok(true),
            Some(other) => Err(SpecError { expected: format!("0 or 1 for `{key}`"), found: other.into() }),
        }
    }

    /// What is left is known to nobody.
    pub(super) fn finish(self, known: &str) -> Result<(), SpecError> {
        match self.rest.first() {
            None => Ok(()),
            Some((key, _)) => {
                let expected = format!("settings of `{}`: {known}", self.kind);
                Err(SpecError { expected, found: (*key).into() })
            }
        }
    }
}

impl FromStr for LossSpec {
    type Err = SpecError;
    fn from_str(text: &str) -> Result<LossSpec, SpecError> {
        if let Some(name) = text.strip_prefix("output:") {
            return Ok(LossSpec { kind: LossKind::Output(name.to_owned()), of: None });
        }
        let mut given = Settings::of(text)?;
        let (kind, known) = match given.kind() {
            "cross-entropy" => {
                let kind = LossKind::CrossEntropy {
                    ignore_index: given.number("ignore_index", "an integer")?,
                    label_smoothing: given.within("label_smoothing", 0.0, 1.0)?.unwrap_or(0.0),
                    weights: given.word("weights").map(str::to_owned),
                    axis: given.number("axis", "an axis")?,
                };
                (kind, "of, ignore_index, label_smoothing, weights, axis")
            }
            "mse" => (LossKind::Mse, "of"),
            "l1" => (LossKind::L1, "of"),
            "bce-with-logits" => (LossKind::BceWithLogits, "of"),
            other => {
                let expected = "cross-entropy, mse, l1, bce-with-logits or output:NAME".into();
                return Err(SpecError { expected, found: other.into() });
            }
        };
        let of = given.word("of").map(str::to_owned);
        given.finish(known)?;
        Ok(LossSpec { kind, of })
    }
}

impl fmt::Display for LossSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut settings: Vec<String> = self.of.iter().map(|of| format!("of={of}")).collect();
        match &self.kind {
            LossKind::Output(name) => return write!(f, "output:{name}"),
            LossKind::CrossEntropy { ignore_index, label_smoothing, weights, axis } => {
                settings.extend(ignore_index.map(|n| format!("ignore_index={n}")));
                if *label_smoothing != 0.0 {
                    settings.push(format!("label_smoothing={label_smoothing}"));
                }
                settings.extend(weights.iter().map(|name| format!("weights={name}")));
                settings.extend(axis.map(|axis| format!("axis={axis}")));
            }
            LossKind::Mse | LossKind::L1 | LossKind::BceWithLogits | LossKind::Custom(_) => {}
        }
        f.write_str(self.kind.name())?;
        if settings.is_empty() { Ok(()) } else { write!(f, ":{}", settings.join(",")) }
    }
}

/// The pass.
#[derive(Clone, Debug)]
pub struct Loss {
    /// Which loss, of which output.
    pub spec: LossSpec,
    /// The input of targets: one of the model's, or a new one.
    pub target: String,
    /// Whether it is computed in fp32 whatever the policy says.
    pub keeps_fp32: bool,
}

/// The words of the option `precision`.
const PRECISION: Words = Words { no: "low", yes: "fp32" };

impl Spelled for Loss {
    const NAME: &'static str = "loss";
    const ABOUT: &'static str = "a loss is added to an output";
    const OPTIONS: &'static [PassOption<Self>] = &[
        PassOption {
            def: option("kind", "a loss as `train-step --loss` has it", Some("mse")),
            print: |pass| Some(Setting::word(&pass.spec)),
            read: |pass, given| given.read(|word| word.parse().ok()).map(|spec| pass.spec = spec),
        },
        PassOption {
            def: option("target", "the name of an input", Some("target")),
            print: |pass| (pass.target != "target").then(|| Setting::word(&pass.target)),
            read: |pass, given| given.word().map(|target| pass.target = target),
        },
        PassOption {
            def: option("precision", "fp32 or low", Some(PRECISION.yes)),
            print: |pass| (!pass.keeps_fp32).then(|| Setting::word(PRECISION.no)),
            read: |pass, given| given.either(PRECISION).map(|keeps| pass.keeps_fp32 = keeps),
        },
    ];
    fn blank() -> Self {
        let kind = LossKind::Mse;
        Loss { spec: LossSpec { kind, of: None }, target: "target".into(), keeps_fp32: true }
    }
}

/// Why a loss does not fit a model.
#[derive(Debug, thiserror::Error)]
pub enum LossError {
    /// The output is none that a loss is computed of.
    #[error("the loss {kind} of `{of}`: expected {expected}, found {found}; name another output (`of=NAME`)")]
    Prediction {
        /// The loss.
        kind: String,
        /// The output.
        of: String,
        /// What it takes.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// The input of targets is of another type.
    #[error(
        "the loss {kind} reads the input `{target}`: expected {expected}, found {found}; name another input, or one that \
         the model has not and that is made"
    )]
    Target {
        /// The loss.
        kind: String,
        /// The input.
        target: String,
        /// What it takes.
        expected: String,
        /// What it is.
        found: String,
    },
    /// The input that is to be made has no name.
    #[error("the loss {kind} reads an input that it makes, and its name is empty")]
    Unnamed {
        /// The loss.
        kind: String,
    },
    /// What is added does not fit.
    #[error("the loss cannot be added: {0}")]
    Build(#[from] RuleError),
    /// The function of a custom loss says that it cannot build it, or returns something else.
    #[error("the loss {kind}: {what}")]
    Custom {
        /// The loss.
        kind: String,
        /// What is wrong.
        what: String,
    },
}

impl Pass for Loss {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn options(&self) -> Vec<(&'static str, Setting)> {
        settings(self)
    }
    fn revokes(&self) -> Invariants {
        Invariants::DECISIONS
    }
    fn renews_facts(&self) -> bool {
        true
    }
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        inference::note_forward(module);
        if let LossKind::Output(name) = &self.spec.kind {
            let loss = output_named(module, name)?;
            add_role(module, LOSS, vec![loss]);
            if self.keeps_fp32 {
                mark_downstream(module, &self.target, loss);
                // Its gradient is the loss scale, which may be more than 16 bits can hold.
                let maker = module.producer(loss).map(|(node, _)| node);
                if let Some(node) = maker.filter(|&node| !super::is_loss(module, node)) {
                    super::mark(module, node, "fwd", LOSS_ROLE);
                }
            }
            return Ok(Changed::Yes);
        }
        let loss = if let LossKind::Custom(custom) = &self.spec.kind {
            custom.add(self, module)?
        } else {
            let prediction = self.prediction(module)?;
            if let Some((node, message)) = self.takes_probabilities(module, prediction) {
                cx.warn("loss.probabilities", Some(node), message);
            }
            self.add(module, prediction)?
        };
        let name = public_name(module, "loss");
        module.set_value_name(loss, name);
        check_loss(module, loss)?;
        let declared = module.value(loss).ty.clone();
        module.add_output(module.main(), loss, declared);
        add_role(module, LOSS, vec![loss]);
        Ok(Changed::Yes)
    }
}

/// Marks the nodes of a loss that the model has: those of the main graph that compute with the targets on the way to it.
fn mark_downstream(module: &mut Module, target: &str, loss: Value) {
    let inputs = module.graph(module.main()).inputs();
    let named = |&&input: &&Value| ampc_ir::verify::name_of(module, input) == target;
    let Some(&target) = inputs.iter().find(named) else { return };
    let nodes: Vec<Node> = module.nodes(module.main()).collect();
    let mut of_target: FxHashSet<Value> = std::iter::once(target).collect();
    for &node in &nodes {
        let data = module.node(node);
        if data.operands().iter().flatten().any(|value| of_target.contains(value)) {
            of_target.extend(data.results().iter().flatten());
        }
    }
    let mut to_loss: FxHashSet<Value> = std::iter::once(loss).collect();
    for &node in nodes.iter().rev() {
        let data = module.node(node);
        if data.results().iter().flatten().any(|value| to_loss.contains(value)) {
            to_loss.extend(data.operands().iter().flatten());
            if data.results().iter().flatten().any(|value| of_target.contains(value)) {
                super::mark(module, node, "fwd", LOSS_ROLE);
            }
        }
    }
}

impl Loss {
    /// The output that the loss is of.
    pub(super) fn prediction(&self, module: &Module) -> Result<Value, ParameterError> {
        let outputs = module.graph(module.main()).outputs();
        match (&self.spec.of, outputs.first()) {
            (Some(name), _) => output_named(module, name),
            (None, Some(first)) => Ok(first.value),
            (None, None) => {
                let (name, outputs) = ("loss".to_owned(), "none".to_owned());
                Err(ParameterError::NoSuchLoss { name, outputs })
            }
        }
    }

    /// What the nodes of the loss are built with.
    pub(super) fn nodes<'m>(&self, module: &'m mut Module) -> Nodes<'m> {
        let marks: &[_] = if self.keeps_fp32 { &[(PHASE, "fwd"), (ROLE, LOSS_ROLE)] } else { &[] };
        Nodes::new(module, None, "in_loss", marks)
    }

    /// What to say if a loss that takes scores is to be one of probabilities, and the node that makes these.
    fn takes_probabilities(&self, module: &Module, prediction: Value) -> Option<(Node, String)> {
        let maker = made_by(module, prediction)?;
        let kind = module.node(maker).schema()?.kind;
        let (of, loss) = (ampc_ir::verify::name_of(module, prediction), self.spec.kind.name());
        let scores = module.node(maker).operand(0).map(|value| ampc_ir::verify::name_of(module, value));
        let scores = scores.unwrap_or_default();
        let is_output = module.node(maker).operand(0).is_some_and(|value| module.is_output(value));
        let remedy = if is_output {
            format!("name the scores before it (`{loss}:of={scores}`), or take another loss")
        } else {
            format!(
                "make the scores before it (`{scores}`) an output and name them (`{loss}:of={scores}`), or take \
                 another loss"
            )
        };
        let message = match (&self.spec.kind, kind) {
            (LossKind::BceWithLogits, OpKind::Sigmoid) => format!(
                "the loss {loss} takes scores, and `{of}` is made of them by Sigmoid, which the loss applies once more: \
                 {remedy}"
            ),
            (LossKind::CrossEntropy { .. }, OpKind::Softmax) => format!(
                "the loss {loss} takes scores, and `{of}` is made of them by Softmax, which the loss applies once more: \
                 {remedy}"
            ),
            (LossKind::CrossEntropy { .. }, OpKind::LogSoftmax) => format!(
                "the loss {loss} takes scores, and `{of}` is made of them by LogSoftmax, which the loss applies once \
                 more; of the same axis it changes nothing and costs time: {remedy}"
            ),
            _ => return None,
        };
        Some((maker, message))
    }

    /// Adds the nodes of the loss of a prediction.
    fn add(&self, module: &mut Module, prediction: Value) -> Result<Value, LossError> {
        let of = ampc_ir::verify::name_of(module, prediction);
        let describe = |module: &Module, value| ampc_ir::infer::describe(&module.value(value).ty);
        let kind = self.spec.to_string();
        let ty = module.value(prediction).ty.clone();
        let (Some(dtype), Some(dims)) =
            (ty.dtype().filter(|d| d.is_float()), ty.shape().and_then(Shape::dims))
        else {
            let expected = "a float tensor whose number of axes is known";
            return Err(LossError::Prediction { kind, of, expected, found: describe(module, prediction) });
        };
        let b = &mut self.nodes(module);
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let mut p = b.cast(prediction, wide)?;
        let LossKind::CrossEntropy { ignore_index, label_smoothing, weights, axis } = &self.spec.kind else {
            let t = self.target(b, &Type::tensor(wide, Shape::of(dims.iter().copied())))?;
            let per_element = match self.spec.kind {
                LossKind::Mse => {
                    let difference = b.minus(p, t)?;
                    b.times(difference, difference)?
                }
                LossKind::L1 => {
                    let difference = b.minus(p, t)?;
                    b.unary(OpKind::Abs, difference)?
                }
                _ => binary_cross_entropy(b, p, t)?,
            };
            return Ok(b.mean(per_element)?);
        };
        let rank = i64::try_from(dims.len()).unwrap_or(i64::MAX);
        let axis = axis.unwrap_or(if rank <= 3 { rank - 1 } else { 1 });
        let axis = if axis < 0 { axis + rank } else { axis };
        let Some(classes) = usize::try_from(axis).ok().filter(|&axis| rank >= 2 && axis < dims.len()) else {
            let expected = "an axis of classes and another one before it";
            return Err(LossError::Prediction {
                kind,
                of,
                expected,
                found: describe(b.module(), prediction),
            });
        };
        let mut label_dims: Vec<Dim> = dims.to_vec();
        let n_classes = label_dims.remove(classes);
        let labels = Type::tensor(DType::I64, Shape::of(label_dims.iter().copied()));
        let mut t = self.target(b, &labels)?;
        if classes + 1 == dims.len() && classes != 1 {
            // Classes last: rows of scores.
            p = b.op(OpKind::Flatten, &[p], &[("axis", AttrValue::Int(axis))])?;
            t = b.reshape(t, &[-1])?;
        } else if classes != 1 {
            // The operator has its classes in the second place.
            let mut order: Vec<usize> = (0..dims.len()).filter(|&other| other != classes).collect();
            order.insert(1, classes);
            p = b.transpose(p, &order)?;
        }
        let w = match weights {
            Some(name) => {
                let ty = Type::tensor(wide, Shape::of([n_classes]));
                Some(self.input(b, name, &ty)?)
            }
            None => None,
        };
        Ok(cross_entropy(b, p, t, w, *ignore_index, *label_smoothing)?)
    }

    fn target(&self, b: &mut Nodes<'_>, ty: &Type) -> Result<Value, LossError> {
        self.input(b, &self.target, ty)
    }

    /// The input of a name, which is made if there is none.
    pub(super) fn input(&self, b: &mut Nodes<'_>, name: &str, ty: &Type) -> Result<Value, LossError> {
        let module = &mut *b.inserter.module;
        let main = module.main();
        let inputs = module.graph(main).inputs();
        let Some(&found) = inputs.iter().find(|&&input| ampc_ir::verify::name_of(module, input) == name)
        else {
            if name.is_empty() {
                return Err(LossError::Unnamed { kind: self.spec.to_string() });
            }
            let name = public_name(module, name);
            return Ok(module.add_input(main, name, ty.clone(), None));
        };
        let has = &module.value(found).ty;
        let fits = match (has.dtype(), ty.dtype()) {
            (Some(DType::I32), Some(DType::I64)) => true,
            (a, b) => a == b,
        };
        // Operands of another shape would broadcast, which no loss means.
        let differ = |(a, b): (&Dim, &Dim)| matches!((a.known(), b.known()), (Some(a), Some(b)) if a != b);
        let fits = fits
            && match (has.shape().and_then(Shape::dims), ty.shape().and_then(Shape::dims)) {
                (Some(a), Some(b)) => a.len() == b.len() && !a.iter().zip(b).any(differ),
                (a, b) => a.is_none() && b.is_none(),
            };
        if fits {
            return Ok(found);
        }
        let (expected, found) = (ampc_ir::infer::describe(ty), ampc_ir::infer::describe(has));
        Err(LossError::Target { kind: self.spec.to_string(), target: name.to_owned(), expected, found })
    }
}

/// The node whose elements a value has, behind nodes that only move them.
fn made_by(module: &Module, mut value: Value) -> Option<Node> {
    loop {
        let (node, _) = module.producer(value)?;
        let kind = module.node(node).schema()?.kind;
        if moves(kind, 0) != Some(Sign::Kept) || moves(kind, 1).is_some() {
            return Some(node);
        }
        value = module.node(node).operand(0)?;
    }
}

/// t · softplus(−p) + (1 − t) · softplus(p): no logarithm of something that has been rounded to 0.
fn binary_cross_entropy(b: &mut Nodes<'_>, p: Value, t: Value) -> Ruled<Value> {
    let negated = b.op(OpKind::Neg, &[p], &[])?;
    let positive = b.op(OpKind::Softplus, &[negated], &[])?;
    let negative = b.op(OpKind::Softplus, &[p], &[])?;
    let one = b.number_like(1.0, p)?;
    let rest = b.op(OpKind::Sub, &[one, t], &[])?;
    let first = b.op(OpKind::Mul, &[t, positive], &[])?;
    let second = b.op(OpKind::Mul, &[rest, negative], &[])?;
    b.op(OpKind::Add, &[first, second], &[])
}

fn cross_entropy(
    b: &mut Nodes<'_>,
    p: Value,
    t: Value,
    weights: Option<Value>,
    ignore_index: Option<i64>,
    smoothing: f64,
) -> Ruled<Value> {
    let mut operands = vec![p, t];
    operands.extend(weights);
    let spec = NodeSpec::new(OpKind::SoftmaxCrossEntropyLoss, &operands);
    let mut spec = spec.attr("reduction", AttrValue::String(b"mean".as_slice().into()));
    if let Some(ignored) = ignore_index {
        spec = spec.attr("ignore_index", AttrValue::Int(ignored));
    }
    let [hard, log_prob] = b.insert(spec)?;
    if smoothing == 0.0 {
        return Ok(hard);
    }
    // The mean over the same elements with the same weights, of the sum over all classes.
    let mut per_class = b.op(OpKind::Neg, &[log_prob], &[])?;
    let rank = b.module().value(p).ty.shape().and_then(Shape::rank).unwrap_or(2);
    let (mut label_weight, dtype) = (None, b.module().value(p).ty.dtype().unwrap_or(DType::F32));
    let (mut safe, mut ignored) = (t, None);
    if let Some(index) = ignore_index {
        let integers = b.module().value(t).ty.dtype().unwrap_or(DType::I64);
        let index = b.ints(&[index]);
        let index = b.cast(index, integers)?;
        let is_ignored = b.op(OpKind::Equal, &[t, index], &[])?;
        let zero = b.ints(&[0]);
        let zero = b.cast(zero, integers)?;
        safe = b.op(OpKind::Where, &[is_ignored, zero, t], &[])?;
        ignored = Some(is_ignored);
    }
    if let Some(weights) = weights {
        label_weight = Some(b.op(OpKind::Gather, &[weights, safe], &[])?);
        let mut shape = vec![1i64; rank];
        shape[1] = -1;
        let per_axis = b.reshape(weights, &shape)?;
        per_class = b.op(OpKind::Mul, &[per_class, per_axis], &[])?;
    }
    let axes = b.ints(&[1]);
    let mut spread = b.op(OpKind::ReduceSum, &[per_class, axes], &[("keepdims", AttrValue::Int(0))])?;
    let mean = if label_weight.is_none() && ignored.is_none() {
        b.mean(spread)?
    } else {
        let mut weight = match label_weight {
            Some(weight) => weight,
            None => b.number(1.0, dtype)?,
        };
        if let Some(ignored) = ignored {
            let zero = b.number(0.0, dtype)?;
            weight = b.op(OpKind::Where, &[ignored, zero, weight], &[])?;
            spread = b.op(OpKind::Where, &[ignored, zero, spread], &[])?;
        }
        let (total, weight) = (b.total(spread)?, b.total(weight)?);
        b.op(OpKind::Div, &[total, weight], &[])?
    };
    let classes = match b.module().value(p).ty.shape().and_then(Shape::dims).and_then(|d| d[1].known()) {
        #[expect(clippy::cast_precision_loss, reason = "a number of classes")]
        Some(n) => b.number(n as f64, dtype)?,
        None => {
            let spec = NodeSpec::new(OpKind::Shape, &[p]);
            let spec = spec.attr("start", AttrValue::Int(1)).attr("end", AttrValue::Int(2));
            let [n] = b.insert(spec)?;
            let n = b.reshape(n, &[])?;
            b.cast(n, dtype)?
        }
    };
    let soft = b.op(OpKind::Div, &[mean, classes], &[])?;
    let (hard_share, soft_share) = (b.number(1.0 - smoothing, dtype)?, b.number(smoothing, dtype)?);
    let hard = b.op(OpKind::Mul, &[hard, hard_share], &[])?;
    let soft = b.op(OpKind::Mul, &[soft, soft_share], &[])?;
    b.op(OpKind::Add, &[hard, soft], &[])
}
