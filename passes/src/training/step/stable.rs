//! `stable-loss`: logarithms of Sigmoid and Softmax on the way to the loss become forms in which nothing is rounded to 0
//! before its logarithm is taken.
//!
//! | what is there | what it becomes |
//! |---|---|
//! | Log(Sigmoid(x)) | −Softplus(−x) |
//! | Log(1 − Sigmoid(x)) | −Softplus(x) |
//! | Log(Softmax(x)) | LogSoftmax(x), of the same axis |
//!
//! Identity nodes in between are ignored. From x = 17.4 on in fp32 and x = 8.4 on in fp16, sigmoid(x) is
//! rounded to 1. Log(1 - sigmoid(x)) is then -inf, and its gradient 0 * inf = NaN. The forms are finite
//! wherever x is, and so are their gradients: (1 − σ(x))·dy and −σ(x)·dy. New nodes have the role of a loss, so
//! that they stay in fp32, and take the name of the logarithm; nodes that are no longer read are erased.
//!
//! The author may have put a bound between them, as in Log(Clip(Sigmoid(x), ε, 1 − ε)) or Log(Sigmoid(x) + ε).
//! Such a bound limits the loss of a confident wrong prediction; a rewrite would remove that limit, so the
//! graph stays unchanged. In fp16 the bound itself would be rounded away, so these nodes get the role too.
//!
//! Only nodes of the main graph that the loss depends on are considered.

use crate::graph::marks::{self, Mark};
use crate::graph::roles::{LOSS, with_role};
use crate::pass::invariants::Invariants;
use crate::pass::options::Spelled;
use crate::pass::training_error::{LossError, RuleError};
use crate::pass::{Changed, Pass, PassCx, PassError};
use ampc_ir::inserter::InsertError;
use ampc_ir::op::OpKind;
use ampc_ir::views::constant_of;
use ampc_ir::{AttrValue, DType, Inserter, Module, Node, NodeSpec, Shape, Value};
use rustc_hash::FxHashSet;

/// The pass.
#[derive(Clone, Copy, Debug)]
pub struct StableLoss {
    /// True if the new nodes are computed in fp32 under every policy.
    pub keeps_fp32: bool,
}

impl Spelled for StableLoss {
    const NAME: &'static str = "stable-loss";
    const ABOUT: &'static str = "rewrites logarithms of Sigmoid and Softmax in the loss to stay finite";
    fn blank() -> Self {
        StableLoss { keeps_fp32: true }
    }
}

impl Pass for StableLoss {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn revokes(&self) -> Invariants {
        Invariants::DECISIONS
    }
    fn renews_facts(&self) -> bool {
        true
    }
    fn run(&self, module: &mut Module, _cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut changed = false;
        for log in logarithms(module) {
            match Form::of(module, log) {
                Some(form) => {
                    let made = form.write(module, log).map_err(|e| LossError::Build(RuleError::Insert(e)))?;
                    made.into_iter().for_each(|node| self.mark(module, node));
                    changed = true;
                }
                None => {
                    for node in bounded(module, log) {
                        self.mark(module, node);
                        changed |= self.keeps_fp32;
                    }
                }
            }
        }
        Ok(Changed::when(changed))
    }
}

impl StableLoss {
    fn mark(self, module: &mut Module, node: Node) {
        if self.keeps_fp32 && !marks::is_loss(module, node) {
            Mark::LOSS.put(module, node);
        }
    }
}

/// The logarithms of the main graph that the loss depends on, in order.
fn logarithms(module: &Module) -> Vec<Node> {
    let mut work: Vec<Value> = with_role(module, LOSS).collect();
    let mut cone: FxHashSet<Node> = FxHashSet::default();
    while let Some(value) = work.pop() {
        let Some((node, _)) = module.producer(value) else { continue };
        if cone.insert(node) {
            work.extend(module.node(node).operands().iter().flatten());
        }
    }
    let logs = module.nodes(module.main());
    logs.filter(|&node| cone.contains(&node) && is(module, node, OpKind::Log)).collect()
}

fn is(module: &Module, node: Node, kind: OpKind) -> bool {
    module.node(node).schema().is_some_and(|schema| schema.kind == kind)
}

/// Stable form of a logarithm.
enum Form {
    /// −Softplus(−x)
    Sigmoid(Value),
    /// −Softplus(x)
    OneMinusSigmoid(Value),
    /// LogSoftmax(x)
    Softmax(Value, Option<AttrValue>),
}

impl Form {
    fn of(module: &Module, log: Node) -> Option<Form> {
        let (node, _) = maker(module, module.node(log).operand(0)?)?;
        let data = module.node(node);
        match data.schema()?.kind {
            OpKind::Sigmoid => Some(Form::Sigmoid(data.operand(0)?)),
            OpKind::Softmax => {
                let axis = data.attrs().iter().find(|attr| module.text(attr.name) == "axis");
                Some(Form::Softmax(data.operand(0)?, axis.map(|attr| attr.value.clone())))
            }
            OpKind::Sub => {
                let (one, rest) = (data.operand(0)?, data.operand(1)?);
                let (sigmoid, value) = maker(module, rest)?;
                let fits = is(module, sigmoid, OpKind::Sigmoid) && are_ones(module, one, value);
                fits.then(|| module.node(sigmoid).operand(0).map(Form::OneMinusSigmoid))?
            }
            _ => None,
        }
    }

    /// Writes it in place of a logarithm: the new nodes.
    fn write(self, module: &mut Module, log: Node) -> Result<Vec<Node>, InsertError> {
        let (Some(old), Some(read)) = (module.node(log).result(0), module.node(log).operand(0)) else {
            return Ok(Vec::new());
        };
        let dtype = module.value(old).ty.dtype();
        let (name, node_name) = (module.value(old).name, module.node(log).name);
        let mut inserter = Inserter::before(module, log);
        let mut made = Vec::new();
        let x = match self {
            Form::Sigmoid(x) | Form::OneMinusSigmoid(x) | Form::Softmax(x, _) => x,
        };
        let narrow = dtype.filter(|dtype| dtype.is_low());
        let cast =
            |to: DType| NodeSpec::new(OpKind::Cast, &[]).attr("to", AttrValue::Int(to.number().into()));
        let mut add = |spec: NodeSpec| -> Result<Value, InsertError> {
            let [value] = inserter.insert(spec)?;
            made.extend(inserter.module.producer(value).map(|(node, _)| node));
            Ok(value)
        };
        let wide = match narrow {
            Some(_) => add(cast(DType::F32).operands(&[Some(x)]))?,
            None => x,
        };
        let mut last = match &self {
            Form::Sigmoid(_) => {
                let negated = add(NodeSpec::new(OpKind::Neg, &[wide]))?;
                let soft = add(NodeSpec::new(OpKind::Softplus, &[negated]))?;
                NodeSpec::new(OpKind::Neg, &[soft])
            }
            Form::OneMinusSigmoid(_) => {
                let soft = add(NodeSpec::new(OpKind::Softplus, &[wide]))?;
                NodeSpec::new(OpKind::Neg, &[soft])
            }
            Form::Softmax(_, axis) => {
                let spec = NodeSpec::new(OpKind::LogSoftmax, &[wide]);
                axis.iter().fold(spec, |spec, axis| spec.attr("axis", axis.clone()))
            }
        };
        if let Some(to) = narrow {
            let value = add(last)?;
            last = cast(to).operands(&[Some(value)]);
        }
        let last = name.into_iter().fold(last.node_name(node_name), NodeSpec::result_name);
        let new = add(last)?;
        module.move_roles(old, new);
        module.replace_value(old, new);
        module.erase_node(log);
        erase_unread(module, read);
        Ok(made)
    }
}

/// The node that makes a value, and the value that it makes; looks through Identity.
fn maker(module: &Module, mut value: Value) -> Option<(Node, Value)> {
    loop {
        let (node, _) = module.producer(value)?;
        if !is(module, node, OpKind::Identity) {
            return Some((node, value));
        }
        value = module.node(node).operand(0)?;
    }
}

/// More ones than this are not read.
const MOST_ONES: u64 = 1 << 20;

/// True if a value is the constant 1 and does not widen the shape that it is broadcast with.
fn are_ones(module: &Module, value: Value, beside: Value) -> bool {
    let Some(data) = constant_through_identity(module, value) else { return false };
    let shape = module.value(beside).ty.shape();
    let keeps_shape = match shape.and_then(Shape::rank) {
        Some(rank) if data.element_count() == 1 => data.dims().len() <= rank,
        _ => shape.and_then(Shape::to_known).is_some_and(|dims| dims == data.dims()),
    };
    keeps_shape
        && data.small_floats(MOST_ONES).is_some_and(|numbers| numbers.iter().all(|&number| number == 1.0))
}

/// The constant that a value is; an Identity is looked through.
fn constant_through_identity(
    module: &Module,
    mut value: Value,
) -> Option<std::sync::Arc<ampc_ir::TensorData>> {
    while let Some((node, _)) = module.producer(value).filter(|&(node, _)| is(module, node, OpKind::Identity))
    {
        value = module.node(node).operand(0)?;
    }
    constant_of(module, value)
}

/// The nodes of a chain Sigmoid or Softmax -> (Identity, Clip, or Add, Sub, Max, Min with one constant)* -> `log`, from `log`
/// on; empty if the operand of `log` is no such chain. They are kept in fp32, since a bound of 1e-7 vanishes in fp16.
fn bounded(module: &Module, log: Node) -> Vec<Node> {
    let mut chain = vec![log];
    let mut value = module.node(log).operand(0);
    while let Some((node, _)) = value.and_then(|value| module.producer(value)) {
        let data = module.node(node);
        let Some(schema) = data.schema() else { return Vec::new() };
        chain.push(node);
        value = match schema.kind {
            OpKind::Sigmoid | OpKind::Softmax => return chain,
            OpKind::Identity | OpKind::Clip => data.operand(0),
            OpKind::Add | OpKind::Sub | OpKind::Max | OpKind::Min => {
                let mut computed = data.operands().iter().flatten();
                let mut computed =
                    computed.by_ref().filter(|&&value| constant_through_identity(module, value).is_none());
                match (computed.next(), computed.next()) {
                    (Some(&one), None) => Some(one),
                    _ => None,
                }
            }
            _ => return Vec::new(),
        };
    }
    Vec::new()
}

/// Erases the producers of a value that have no readers any more.
fn erase_unread(module: &mut Module, value: Value) {
    let mut work = vec![value];
    while let Some(value) = work.pop() {
        let Some((node, _)) = module.producer(value) else { continue };
        let kinds = [OpKind::Identity, OpKind::Sub, OpKind::Sigmoid, OpKind::Softmax];
        let unread = |&value: &Value| !module.is_output(value) && module.uses(value).next().is_none();
        let data = module.node(node);
        let is_ours = kinds.iter().any(|&kind| is(module, node, kind));
        if is_ours && data.results().iter().flatten().all(unread) {
            work.extend(data.operands().iter().flatten());
            module.erase_node(node);
        }
    }
}
