//! `loss`: adds a loss to an output of the model, which it compares with an input of targets.
//!
//! | kind | what it computes | target |
//! |---|---|---|
//! | `cross-entropy` | mean of −w\[t\] · log softmax(p)\[t\], over the sum of all w\[t\] | class numbers, i64 or i32, p's shape without the axis of classes |
//! | `mse` | mean of (p − t)² | p's type and shape |
//! | `l1` | mean of abs(p − t) | p's type and shape |
//! | `bce-with-logits` | mean of t · softplus(−p) + (1 − t) · softplus(p) | p's type and shape, within \[0, 1\] |
//!
//! With label smoothing ε, cross-entropy is (1 − ε) times the above plus ε/C times the same mean of the sum
//! over all C classes (Szegedy et al., arXiv 1512.00567, as in torch.nn.CrossEntropyLoss). The nodes get the
//! role `loss`, which keeps them in fp32 under every policy (not with `precision=low`). A prediction in f64 is
//! computed in f64.

pub(super) mod custom;
mod formulas;

use self::custom::CustomLoss;
use self::formulas::CrossEntropy;
use super::forward;
use super::spec::{Settings, SpecError, setting};
use crate::graph::marks::{self, Mark};
use crate::graph::roles::LOSS;
use crate::pass::invariants::Invariants;
use crate::pass::options::{PassOption, Setting, Spelled, Words, option, settings};
pub use crate::pass::training_error::LossError;
use crate::pass::training_error::ParameterError;
use crate::pass::{Changed, Pass, PassCx, PassError};
use crate::training::autodiff::check_loss;
use crate::training::build::{Build, Nodes};
use crate::training::names::{free_name, public_name_or_warn};
use crate::training::parameters::{add_role, output_named};
use ampc_ir::op::{OpKind, Sign, moves};
use ampc_ir::{AttrValue, DType, Dim, Module, Node, Shape, Type, Value};
use rustc_hash::FxHashSet;
use std::fmt;
use std::str::FromStr;

/// Which loss.
#[derive(Clone, Debug, PartialEq)]
pub enum LossKind {
    /// Cross entropy of class scores.
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
    /// The name of the loss.
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
    /// The formula, or the output of the model that is the loss.
    pub kind: LossKind,
    /// The output that the loss is of; by default the first output.
    pub of: Option<String>,
}

impl From<CustomLoss> for LossSpec {
    fn from(custom: CustomLoss) -> LossSpec {
        LossSpec { kind: LossKind::Custom(custom), of: None }
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
                    weights: given.word("weights"),
                    axis: given.number("axis", "an axis")?,
                };
                (kind, "of, ignore_index, label_smoothing, weights, axis")
            }
            "mse" => (LossKind::Mse, "of"),
            "l1" => (LossKind::L1, "of"),
            "bce-with-logits" => (LossKind::BceWithLogits, "of"),
            other => {
                let expected = "cross-entropy, mse, l1, bce-with-logits or output:NAME";
                let words = ["cross-entropy", "mse", "l1", "bce-with-logits"];
                return Err(SpecError::new(expected, other).with_words(words));
            }
        };
        let of = given.word("of");
        given.finish(known)?;
        Ok(LossSpec { kind, of })
    }
}

impl fmt::Display for LossSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut settings: Vec<String> = self.of.iter().map(|of| setting("of", of)).collect();
        match &self.kind {
            LossKind::Output(name) => return write!(f, "output:{name}"),
            LossKind::CrossEntropy { ignore_index, label_smoothing, weights, axis } => {
                settings.extend(ignore_index.map(|n| format!("ignore_index={n}")));
                if *label_smoothing != 0.0 {
                    settings.push(format!("label_smoothing={label_smoothing}"));
                }
                settings.extend(weights.iter().map(|name| setting("weights", name)));
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
    /// The loss, and its output.
    pub spec: LossSpec,
    /// The input of targets: an input of the model, or a new input.
    pub target: String,
    /// True if the loss is computed in fp32 under every policy.
    pub keeps_fp32: bool,
}

/// The words of the option `precision`.
const PRECISION: Words = Words { no: "low", yes: "fp32" };

impl Spelled for Loss {
    const NAME: &'static str = "loss";
    const ABOUT: &'static str = "adds a loss to an output";
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
        let mut forward = forward::forward_interface(module);
        if let LossKind::Output(name) = &self.spec.kind {
            let loss = output_named(module, name)?;
            add_role(module, LOSS, vec![loss]);
            forward.iter_mut().for_each(|forward| forward.loss = Some(name.clone()));
            forward::note_forward(module, forward);
            if self.keeps_fp32 {
                mark_downstream(module, &self.target, loss);
                // Its gradient is the loss scale, which may be more than 16 bits can hold.
                let maker = module.producer(loss).map(|(node, _)| node);
                if let Some(node) = maker.filter(|&node| !marks::is_loss(module, node)) {
                    Mark::LOSS.put(module, node);
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
        let name = public_name_or_warn(module, "loss", cx);
        module.set_value_name(loss, name);
        check_loss(module, loss)?;
        let declared = module.value(loss).ty.clone();
        module.add_output(module.main(), loss, declared);
        add_role(module, LOSS, vec![loss]);
        let name = ampc_ir::verify::name_of(module, loss);
        forward.iter_mut().for_each(|forward| forward.loss = Some(name.clone()));
        forward::note_forward(module, forward);
        Ok(Changed::Yes)
    }
}

/// Marks the nodes of a loss within the model: nodes of the main graph that compute with the targets on the way
/// to it.
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
                Mark::LOSS.put(module, node);
            }
        }
    }
}

impl Loss {
    /// The output that the loss is of.
    pub(super) fn prediction(&self, module: &Module) -> Result<Value, ParameterError> {
        let outputs = module.graph(module.main()).outputs();
        match (&self.spec.of, outputs.first()) {
            (Some(name), _) => output_named(module, name).or_else(|error| {
                // What the model computes on the way may be a prediction as well: the scores before a Softmax.
                let results = module.nodes(module.main()).flat_map(|node| module.node(node).results());
                let named = |value: &Value| ampc_ir::verify::name_of(module, *value) == *name;
                results.flatten().copied().find(named).ok_or(error)
            }),
            (None, Some(first)) => Ok(first.value),
            (None, None) => {
                let (name, outputs) = ("loss".to_owned(), "none".to_owned());
                Err(ParameterError::NoSuchLoss { name, outputs })
            }
        }
    }

    /// The builder of the nodes of the loss.
    pub(super) fn nodes<'m>(&self, module: &'m mut Module) -> Nodes<'m> {
        Nodes::new(module, None, "in_loss", self.keeps_fp32.then_some(Mark::LOSS))
    }

    /// The warning if a loss of scores is given probabilities, and the node that makes the probabilities.
    fn takes_probabilities(&self, module: &Module, prediction: Value) -> Option<(Node, String)> {
        let maker = made_by(module, prediction)?;
        let kind = module.node(maker).schema()?.kind;
        let (of, loss) = (ampc_ir::verify::name_of(module, prediction), self.spec.kind.name());
        let scores = module.node(maker).operand(0).map(|value| ampc_ir::verify::name_of(module, value));
        let scores = scores.unwrap_or_default();
        let remedy = format!("name the scores before it (`{loss}:of={scores}`), or take another loss");
        let message = match (&self.spec.kind, kind) {
            (LossKind::BceWithLogits, OpKind::Sigmoid) => format!(
                "the loss {loss} takes scores, but `{of}` is the result of Sigmoid, which the loss applies again: \
                 {remedy}"
            ),
            (LossKind::CrossEntropy { .. }, OpKind::Softmax) => format!(
                "the loss {loss} takes scores, but `{of}` is the result of Softmax, which the loss applies again: \
                 {remedy}"
            ),
            (LossKind::CrossEntropy { .. }, OpKind::LogSoftmax) => format!(
                "the loss {loss} takes scores, but `{of}` is the result of LogSoftmax, which the loss applies \
                 again; along the same axis this changes nothing and costs time: {remedy}"
            ),
            _ => return None,
        };
        Some((maker, message))
    }

    /// Adds the nodes of the loss of a prediction.
    fn add(&self, module: &mut Module, prediction: Value) -> Result<Value, LossError> {
        let ty = module.value(prediction).ty.clone();
        let (Some(dtype), Some(dims)) =
            (ty.dtype().filter(|d| d.is_float()), ty.shape().and_then(Shape::dims))
        else {
            let expected = "a float tensor whose number of axes is known";
            return Err(self.no_prediction(module, prediction, expected));
        };
        let b = &mut self.nodes(module);
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let p = b.cast(prediction, wide)?;
        let formula = match self.spec.kind {
            LossKind::Mse => formulas::squared_error,
            LossKind::L1 => formulas::absolute_error,
            LossKind::BceWithLogits => formulas::binary_cross_entropy,
            LossKind::CrossEntropy { .. } => return self.add_cross_entropy(b, prediction, p),
            // These are not formulas of a prediction, and have been added before.
            LossKind::Output(_) | LossKind::Custom(_) => return Ok(prediction),
        };
        let t = self.target(b, &Type::tensor(wide, Shape::of(dims.iter().copied())))?;
        Ok(formula(b, p, t)?)
    }

    /// Adds cross-entropy of `p`, which is the prediction in fp32 or wider. The operator takes classes as axis 1.
    fn add_cross_entropy(
        &self,
        b: &mut Nodes<'_>,
        prediction: Value,
        mut p: Value,
    ) -> Result<Value, LossError> {
        let LossKind::CrossEntropy { ignore_index, label_smoothing, weights, axis } = &self.spec.kind else {
            return Ok(p);
        };
        let (dims, wide) = (b.shape(p)?, b.dtype(p)?);
        let rank = i64::try_from(dims.len()).unwrap_or(i64::MAX);
        let axis = axis.unwrap_or(if rank <= 3 { rank - 1 } else { 1 });
        let axis = if axis < 0 { axis + rank } else { axis };
        let Some(classes) = usize::try_from(axis).ok().filter(|&axis| rank >= 2 && axis < dims.len()) else {
            return Err(self.no_prediction(
                b.module(),
                prediction,
                "an axis of classes and another one beside it",
            ));
        };
        let mut label_dims: Vec<Dim> = dims.clone();
        let n_classes = label_dims.remove(classes);
        let labels = Type::tensor(DType::I64, Shape::of(label_dims));
        let mut t = self.target(b, &labels)?;
        if classes + 1 == dims.len() && classes != 1 {
            // Classes last: rows of scores.
            p = b.op(OpKind::Flatten, &[p], &[("axis", AttrValue::Int(axis))])?;
            t = b.reshape(t, &[-1])?;
        } else if classes != 1 {
            let mut order: Vec<usize> = (0..dims.len()).filter(|&other| other != classes).collect();
            order.insert(1, classes);
            p = b.transpose(p, &order)?;
        }
        let weights = match weights {
            Some(name) => Some(self.input(b, name, &Type::tensor(wide, Shape::of([n_classes])))?),
            None => None,
        };
        let (ignore_index, smoothing) = (*ignore_index, *label_smoothing);
        Ok(CrossEntropy { p, t, weights, ignore_index, smoothing }.write(b)?)
    }

    fn no_prediction(&self, module: &Module, prediction: Value, expected: &'static str) -> LossError {
        let of = ampc_ir::verify::name_of(module, prediction);
        let found = ampc_ir::infer::describe(&module.value(prediction).ty);
        LossError::Prediction { kind: self.spec.to_string(), of, expected, found }
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
            return match free_name(module, name) {
                Ok(name) => Ok(module.add_input(main, name, ty.clone(), None)),
                Err(_) => {
                    let (kind, expected) = (self.spec.to_string(), ampc_ir::infer::describe(ty));
                    let found = "an output or constant of that name".to_owned();
                    Err(LossError::Target { kind, target: name.to_owned(), expected, found })
                }
            };
        };
        let has = &module.value(found).ty;
        let is_element_type = match (has.dtype(), ty.dtype()) {
            (Some(DType::I32), Some(DType::I64)) => true,
            (a, b) => a == b,
        };
        if is_element_type && may_be_one_shape(has.shape(), ty.shape()) {
            return Ok(found);
        }
        let (expected, found) = (ampc_ir::infer::describe(ty), ampc_ir::infer::describe(has));
        Err(LossError::Target { kind: self.spec.to_string(), target: name.to_owned(), expected, found })
    }
}

/// True if two shapes have the same rank, and no extents that are known to differ: a target [N, 1] of a
/// prediction [N, 2] would be broadcast, which is never intended.
fn may_be_one_shape(a: Option<&Shape>, b: Option<&Shape>) -> bool {
    let differ = |(a, b): (&Dim, &Dim)| matches!((a.known(), b.known()), (Some(a), Some(b)) if a != b);
    match (a.and_then(Shape::dims), b.and_then(Shape::dims)) {
        (Some(a), Some(b)) => a.len() == b.len() && !a.iter().zip(b).any(differ),
        (a, b) => a.is_none() && b.is_none(),
    }
}

/// The node that computed the elements of a value; nodes that only move them are looked through.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_read_as_they_are_spelled() {
        let names = ["y", "a,b", "a,\"b\"", "a=b", "\\,", "a b"];
        for (of, weights) in names.iter().flat_map(|of| names.map(|weights| (*of, weights))) {
            let kind = LossKind::CrossEntropy {
                ignore_index: Some(-100),
                label_smoothing: 0.5,
                weights: Some(weights.into()),
                axis: None,
            };
            for kind in [kind, LossKind::Mse] {
                let spec = LossSpec { kind, of: Some(of.into()) };
                let text = spec.to_string();
                assert_eq!(text.parse().as_ref(), Ok(&spec), "{text}");
            }
        }
        assert_eq!("mse:\"of=a,b\"".parse::<LossSpec>().unwrap().of.as_deref(), Some("a,b"));
        assert!("mse:\"of=a,b".parse::<LossSpec>().is_err());
    }
}
