//! Nodes with bodies, and calls: the inputs of a body, and its outputs.
//!
//! A body reads captures directly from the memory of the enclosing graph. Its inputs and outputs are passed as
//! values.

mod flex;
mod loops;
mod rows;

pub(super) use flex::Parts;

use super::ExecuteError;
use super::frame::{Frame, Given, Scope};
use super::walk::{Run, run_graph};
use crate::data::{Data, DataRef};
use crate::kernel::KernelError;
use ampc_ir::attr::AttrValue;
use ampc_ir::infer::CallAttrs;
use ampc_ir::module::Op;
use ampc_ir::op::OpKind;
use ampc_ir::views::{NodeView, OpError};
use ampc_ir::{GraphId, Node};
use rustc_hash::FxHashMap;

/// True if nodes of this operator have bodies.
pub(super) fn is_control(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::If | OpKind::Loop | OpKind::Scan | OpKind::SequenceMap | OpKind::PreviewFlexAttention
    )
}

type Frames = FxHashMap<GraphId, Box<Frame>>;
type Operands<'a> = [Option<DataRef<'a>>];

/// Runs a node with bodies or a call, and returns its results.
pub(super) fn run(
    run: &mut Run<'_>,
    node: Node,
    frames: &mut Frames,
    operands: &Operands<'_>,
    attrs: Option<&CallAttrs>,
) -> Result<Vec<Option<Data>>, ExecuteError> {
    let program = run.program;
    let data = program.module.node(node);
    let at_node = |error: KernelError| ExecuteError::of_kernel(node, error);
    match data.op {
        Op::Call(function) => {
            let attrs = CallAttrs::new(&program.module, node, program.defaults(function), attrs);
            let graph = program.module.function(function).graph;
            let given = Given { inputs: operands, operands: &[], attrs: Some(&attrs) };
            body(run, frames, graph, given, Vec::new(), node).map_err(|error| error.in_call(node))
        }
        Op::Schema(schema) => {
            let mut call = Call { run, node, frames, operands, attrs };
            match schema.kind {
                OpKind::If => call.run_if(),
                OpKind::Loop => call.run_loop(),
                OpKind::Scan => call.scan(),
                OpKind::SequenceMap => call.sequence_map(),
                OpKind::PreviewFlexAttention => call.flex_attention(),
                _ => Err(at_node(KernelError::unsupported(format!("bodies of {}", schema.name)))),
            }
        }
        Op::Custom { .. } => Err(at_node(KernelError::unsupported("unknown operators"))),
    }
}

/// Runs a graph and takes its outputs.
fn body(
    run: &mut Run<'_>,
    frames: &mut Frames,
    graph: GraphId,
    given: Given<'_>,
    owned: Vec<(u32, Data)>,
    node: Node,
) -> Result<Vec<Option<Data>>, ExecuteError> {
    let frame = frames.entry(graph).or_default();
    // An observer that sees a function also sees its calls.
    let is_seen = run.program.source(node) == node;
    if let Some(observer) = run.observer.as_mut().filter(|_| is_seen) {
        observer.enter(node, graph)?;
    }
    run_graph(run, graph, frame, given, owned).map_err(|error| named(error, node))?;
    if let Some(observer) = run.observer.as_mut().filter(|_| is_seen) {
        observer.leave(node)?;
    }
    let plan = run.program.plan(graph);
    let scope = Scope { program: run.program, plan, given };
    let outputs = 0..plan.outputs.len();
    let taken = outputs.map(|i| frame.take_output(run.space, scope, i));
    taken.collect::<Result<_, KernelError>>().map_err(|error| ExecuteError::of_kernel(node, error))
}

/// Adds the node with the body to an error that names no node.
fn named(error: ExecuteError, owner: Node) -> ExecuteError {
    match error {
        ExecuteError::Time { node: None, calls, limit } => {
            ExecuteError::Time { node: Some(owner), calls, limit }
        }
        ExecuteError::Memory { node: None, calls, bytes, limit } => {
            ExecuteError::Memory { node: Some(owner), calls, bytes, limit }
        }
        ExecuteError::NoMemory { node: None, calls, bytes, on_device } => {
            ExecuteError::NoMemory { node: Some(owner), calls, bytes, on_device }
        }
        other => other,
    }
}

struct Call<'c, 'r, 'a> {
    run: &'c mut Run<'r>,
    node: Node,
    frames: &'c mut Frames,
    operands: &'c Operands<'a>,
    attrs: Option<&'c CallAttrs>,
}

impl<'a> Call<'_, '_, 'a> {
    fn error(&self, error: impl Into<KernelError>) -> ExecuteError {
        ExecuteError::of_kernel(self.node, error.into())
    }

    fn n_formal(&self) -> usize {
        self.run.program.module.node(self.node).n_formal()
    }

    fn operand(&self, i: usize) -> Option<DataRef<'a>> {
        self.operands[..self.n_formal()].get(i).copied().flatten()
    }

    fn graph(&self, name: &str) -> Result<GraphId, ExecuteError> {
        let module = &self.run.program.module;
        let attrs = module.node(self.node).attrs();
        match attrs.iter().find(|a| module.text(a.name) == name).map(|a| &a.value) {
            Some(AttrValue::Graph(graph)) => Ok(*graph),
            _ => Err(self.error(OpError::attr(name, "a body", "none"))),
        }
    }

    fn body(&mut self, graph: GraphId, inputs: &Operands<'_>) -> Result<Vec<Option<Data>>, ExecuteError> {
        let given = Given { inputs, operands: self.operands, attrs: self.attrs };
        body(self.run, self.frames, graph, given, Vec::new(), self.node)
    }

    fn run_if(&mut self) -> Result<Vec<Option<Data>>, ExecuteError> {
        let condition = self.operand(0);
        let taken = self.flag(condition)?.ok_or_else(|| self.no_flag(0))?;
        let graph = self.graph(if taken { "then_branch" } else { "else_branch" })?;
        self.body(graph, &[])
    }

    /// The element of a boolean tensor with one element.
    fn flag(&mut self, data: Option<DataRef<'_>>) -> Result<Option<bool>, ExecuteError> {
        let Some(data) = data.filter(|data| is_one(*data)) else { return Ok(None) };
        let read = self.run.space.on_host(data, flag);
        read.map_err(|error| self.error(error))
    }

    /// An owned copy of a value in the memory of the session.
    fn own(&mut self, data: DataRef<'_>) -> Result<Data, ExecuteError> {
        self.run.space.bring(data).map_err(|error| self.error(error))
    }

    fn no_flag(&self, operand: usize) -> ExecuteError {
        self.error(OpError::operand(operand, "a condition, one boolean", "something else"))
    }
}

/// True if the value is a tensor with one element.
fn is_one(data: DataRef<'_>) -> bool {
    data.shape().is_some_and(|(_, dims)| dims.iter().all(|&d| d == 1))
}

fn flag(data: DataRef<'_>) -> Option<bool> {
    let bytes = data.tensor()?.bytes()?;
    let [flag] = bytes else { return None };
    Some(*flag != 0)
}
