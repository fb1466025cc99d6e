//! Tensors as the placement of casts sees them: what makes a value, what reads it, and in which format either is
//! held.
//!
//! Casts that change no number are looked through: those that an earlier run inserted, and the author's from a
//! 16-bit format or from fp32 to fp32. What reads their result reads what is behind them.

pub use super::values::same_number;
use super::values::{is_capture, is_exact_in, is_plain, is_stored};
use crate::analysis::exact::composes;
use crate::analysis::fusions::Fusions;
use crate::graph::flow::{self, Reader, Var};
use crate::graph::sequences::{Group, Groups};
use crate::policy::KeepIo;
use ampc_ir::module::Def;
use ampc_ir::op::{Class, OpKind};
use ampc_ir::verify::name_of;
use ampc_ir::views::constant_of;
use ampc_ir::{DType, GraphId, Module, Node, Value};
use rustc_hash::FxHashSet;

/// What makes a tensor, or reads it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum End {
    /// A variable that is still free; of a group the first.
    Var(Var),
    /// An input of the model that need not keep its type, or what a cast of the author makes of what is no float: low
    /// if all that reads it is, for nothing.
    Source(Value),
    /// fp32, whatever is decided.
    Full,
    /// The format that is lowered to, whatever is decided.
    Low,
    /// Another float format.
    Other(DType),
}

/// What makes a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Producer {
    /// Something with a format.
    End(End),
    /// A constant, which is stored in every format that it is read in.
    Constant,
}

/// Where something reads a tensor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Reading {
    /// What reads it.
    pub end: End,
    /// The graph in which it does.
    pub graph: GraphId,
    /// The graph in which a cast to fp32 stands that it reads: the author's, or where it reads.
    pub widened: GraphId,
    /// Whether a cast for it serves nothing else: what a body hands out is made in it, not captured.
    pub own: bool,
    /// The node that reads it, if it does so in the kernel that makes it: it casts for itself alone.
    pub fused: Option<Node>,
}

/// A tensor.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The value where it is made.
    pub value: Value,
    /// What makes it.
    pub producer: Producer,
    /// What reads it; in order, each once.
    pub readers: Vec<Reading>,
    /// Casts of the author that serve nobody else: what each casts to, and where.
    pub casts: Vec<(DType, GraphId)>,
}

/// Looks at a module before casts are inserted.
#[derive(Debug)]
pub struct Tensors<'m> {
    /// The module.
    pub module: &'m Module,
    /// The format that is lowered to.
    pub to: DType,
    /// Sequences and optionals with what passes them through.
    pub groups: &'m Groups,
    /// Which inputs and outputs keep their types.
    pub keep_io: &'m KeepIo,
    /// What the target fuses.
    pub fusions: &'m Fusions,
    /// The first variables of the groups with a member that follows ([`follows`](Self::follows)).
    following: FxHashSet<Var>,
}

impl<'m> Tensors<'m> {
    /// What tensors are in a module that is to be lowered `to` a format.
    pub fn new(
        module: &'m Module,
        to: DType,
        keep_io: &'m KeepIo,
        groups: &'m Groups,
        fusions: &'m Fusions,
    ) -> Tensors<'m> {
        let follows =
            |group: &&Group| group.members.iter().any(|&member| is_of_following_class(module, member));
        let following = groups.iter().filter(follows).filter_map(|group| group.members.first().copied());
        let following = following.collect();
        Tensors { module, to, keep_io, groups, fusions, following }
    }

    /// All tensors of fp32 and of 16-bit formats, in program order.
    pub fn all(&self) -> Vec<Tensor> {
        let mut tensors = Vec::new();
        for graph in flow::graphs(self.module) {
            for value in self.module.defined(graph) {
                let dtype = self.module.value(value).ty.dtype();
                if dtype.is_some_and(|d| d == DType::F32 || d.is_low())
                    && behind(self.module, value).is_none()
                {
                    let (readers, casts) = self.readers(value);
                    if !readers.is_empty() || !casts.is_empty() {
                        tensors.push(Tensor { value, producer: self.producer(value), readers, casts });
                    }
                }
            }
        }
        tensors
    }

    /// The end that a variable is: free, or held by what was decided for it, or by the type of a value of it.
    pub fn end_of(&self, var: Var, present: Option<DType>) -> End {
        let decision = flow::decision(self.module, var);
        let decided = decision.and_then(|d| d.precision).filter(|d| d.is_float());
        match (decided, decision) {
            (Some(decided), _) => self.held(Some(decided)),
            (None, Some(_)) if flow::is_free(self.module, var) && self.is_castable(var) => {
                End::Var(self.groups.leader(var))
            }
            (None, _) => self.held(present),
        }
    }

    /// Whether casts on the way in make a variable another type.
    fn is_castable(&self, var: Var) -> bool {
        self.groups.get(var).is_some() || flow::operands_of(self.module, var).next().is_some()
    }

    fn held(&self, dtype: Option<DType>) -> End {
        match dtype {
            Some(dtype) if dtype == self.to => End::Low,
            Some(dtype) if dtype.is_low() => End::Other(dtype),
            _ => End::Full,
        }
    }

    /// What makes a value, behind casts that an earlier run inserted.
    pub fn producer_of(&self, value: Value) -> Producer {
        self.producer(flow::behind_inserted(self.module, flow::resolve_captures(self.module, value)))
    }

    /// Whether a variable is what a cast reads of which nothing is decided: any format will do.
    pub fn takes_any(&self, var: Var) -> bool {
        let data = self.module.node(var.node);
        data.schema().is_some_and(|s| s.kind == OpKind::Cast)
            && flow::decision(self.module, var).is_some_and(|d| d.precision.is_none())
    }

    fn producer(&self, value: Value) -> Producer {
        let module = self.module;
        let data = module.value(value);
        if is_stored(module, value) {
            return Producer::Constant;
        }
        if self.may_be_recast(value) {
            return Producer::End(End::Source(value));
        }
        if let Some(var) = flow::producer_var(module, value) {
            return Producer::End(self.end_of(var, data.ty.dtype()));
        }
        let is_free = matches!(data.def, Def::Input { default: None, .. })
            && data.graph == module.main()
            && data.ty.dtype() == Some(DType::F32)
            && !self.keep_io.keeps(&name_of(module, value))
            && !leaves(module, value);
        Producer::End(if is_free { End::Source(value) } else { self.held(data.ty.dtype()) })
    }

    /// True if a value is the result of a cast of the author from integers or booleans, and the cast can make the format just
    /// as well: all readers are variables of operators, and none takes any element type, because its result would be rounded.
    fn may_be_recast(&self, root: Value) -> bool {
        let module = self.module;
        if !is_recast(module, root, self.to) || module.is_output(root) {
            return false;
        }
        let mut work = vec![root];
        while let Some(value) = work.pop() {
            for (node, slot) in module.uses(value) {
                let reader = module.node(node);
                let is_cast = reader.schema().is_some_and(|s| s.kind == OpKind::Cast);
                if slot as usize >= reader.n_formal() {
                    return false;
                } else if let Some(result) = flow::inserted_result(module, node) {
                    work.push(result);
                } else if is_cast {
                    return false;
                } else {
                    match self.reader(node, slot, module.value(value).ty.dtype()) {
                        Some(End::Var(var)) if self.follows(var) => return false,
                        Some(_) => {}
                        None => return false,
                    }
                }
            }
        }
        true
    }

    fn readers(&self, root: Value) -> (Vec<Reading>, Vec<(DType, GraphId)>) {
        let module = self.module;
        let home = module.value(root).graph;
        // One that leaves the graph keeps its type.
        let is_constant = self.producer(root) == Producer::Constant;
        let reading = |end, graph, at: Option<GraphId>| Reading {
            end,
            graph,
            widened: at.unwrap_or(graph),
            own: false,
            fused: None,
        };
        let (mut readers, mut casts, mut work) = (Vec::new(), Vec::new(), vec![(root, None)]);
        // With the graph in which a cast of the author stands that they read.
        while let Some((value, at)) = work.pop() {
            let data = module.value(value);
            let present = data.ty.dtype();
            for slot in module.output_slots(value) {
                let port = flow::var_of_reader(module, Reader::Output(data.graph, slot));
                if let Some(port) = port {
                    let own = data.graph != home;
                    readers.push(Reading { own, ..reading(self.end_of(port, present), data.graph, at) });
                } else if value != root
                    || is_constant
                    || data.graph != module.main()
                    || self.keep_io.keeps(&name_of(module, value))
                {
                    readers.push(reading(self.held(present), data.graph, at));
                }
            }
            for (node, slot) in module.uses(value) {
                let reader = module.node(node);
                if slot as usize >= reader.n_formal() {
                    let bodies = reader.bodies();
                    let captures = bodies.flat_map(|body| module.graph(body).captures_of(slot));
                    work.extend(captures.map(|&value| (value, at)));
                } else if let Some(result) = same_number(module, node) {
                    let inserted = flow::inserted_result(module, node).is_some();
                    work.push((result, if inserted { at } else { at.or(Some(reader.graph)) }));
                } else if let Some(to) = self.serves_itself(node) {
                    casts.push((to, reader.graph));
                } else {
                    let end = self.reader(node, slot, present);
                    let fused = self.fusions.reads(node, slot).then_some(node);
                    readers.extend(end.map(|end| Reading { fused, ..reading(end, reader.graph, at) }));
                }
            }
        }
        readers.sort_unstable();
        readers.dedup();
        casts.sort_unstable();
        (readers, casts)
    }

    /// The type that a cast of the author makes, if it is fp32 or the format and no other reader needs the cast: the cast takes
    /// any element type, and its operand is a capture.
    pub fn serves_itself(&self, node: Node) -> Option<DType> {
        let data = self.module.node(node);
        let (operand, result) = (data.operand(0)?, data.result(0)?);
        let to = self.module.value(result).ty.dtype()?;
        let takes_any = flow::vars(self.module, node).next().is_some_and(|var| self.takes_any(var));
        let inserted = flow::inserted_result(self.module, node).is_some();
        let only = is_capture(self.module, operand);
        (takes_any && !inserted && only && (to == DType::F32 || to == self.to)).then_some(to)
    }

    /// What an operand is to what reads it; `None` if the reader takes any format.
    fn reader(&self, node: Node, slot: u32, present: Option<DType>) -> Option<End> {
        let var = flow::reader_var(self.module, node, slot);
        let decided = var.and_then(|var| flow::decision(self.module, var)?.precision);
        let data = self.module.node(node);
        if decided.is_none() && data.schema().is_some_and(|s| s.kind == OpKind::Cast) {
            // What a cast reads follows what it casts to.
            let to = data.result(0).and_then(|result| self.module.value(result).ty.dtype());
            return to.filter(|to| to.is_low()).map(|to| self.held(Some(to)));
        }
        Some(match var {
            Some(var) => self.end_of(var, present),
            None => self.held(present),
        })
    }

    /// Whether every number of a constant is one of the format that is lowered to. Large ones are not looked at.
    pub fn is_exact(&self, value: Value) -> bool {
        constant_of(self.module, value).is_some_and(|data| is_exact_in(&data, self.to))
    }

    /// True if a variable takes the element type of its operands and never causes a cast to 16 bits.
    pub fn follows(&self, var: Var) -> bool {
        match self.groups.get(var) {
            Some(_) => self.following.contains(&self.groups.leader(var)),
            None => is_of_following_class(self.module, var),
        }
    }
}

/// True if a variable by itself takes the precision that arrives.
fn is_of_following_class(module: &Module, var: Var) -> bool {
    let class = flow::decision(module, var).map(|d| d.class);
    matches!(class, Some(Class::Discrete | Class::Promote))
}

/// The outputs of a model that keep their types, and what an earlier run cast to one.
pub(crate) fn kept_outputs(module: &Module, keep_io: &KeepIo) -> FxHashSet<Value> {
    let outputs = module.graph(module.main()).outputs().iter().map(|output| output.value);
    let mut kept: FxHashSet<Value> = outputs.filter(|&v| keep_io.keeps(&name_of(module, v))).collect();
    let made = kept.iter().filter_map(|&output| module.producer(output));
    let inserted = made.filter(|&(node, _)| flow::inserted_result(module, node).is_some());
    let cast: Vec<Value> = inserted.filter_map(|(node, _)| module.node(node).operand(0)).collect();
    kept.extend(cast);
    kept
}

/// Whether a value is an output, as it is or as an earlier run cast it.
fn leaves(module: &Module, value: Value) -> bool {
    let mut work = vec![value];
    while let Some(value) = work.pop() {
        if module.is_output(value) {
            return true;
        }
        work.extend(module.uses(value).filter_map(|(node, _)| flow::inserted_result(module, node)));
    }
    false
}

/// Whether a cast of the author makes a value of what is no float, and one that follows it, to a 16-bit format, becomes
/// one with it wherever nothing else reads the value.
fn is_recast(module: &Module, value: Value, to: DType) -> bool {
    let Some((node, _)) = module.producer(value) else { return false };
    let dtype = |value: Value| module.value(value).ty.dtype();
    let from = module.node(node).operand(0).and_then(dtype).filter(|from| !from.is_float());
    let joins = from.is_some_and(|from| composes(from, DType::F32, to));
    let is_cast = module.node(node).schema().is_some_and(|s| s.kind == OpKind::Cast);
    let of_author = flow::inserted_result(module, node).is_none();
    is_cast && joins && of_author && dtype(value) == Some(DType::F32) && is_plain(module, node, to)
}

/// What a value is the same number as, one cast behind it.
fn behind(module: &Module, value: Value) -> Option<Value> {
    let (node, _) = module.producer(value)?;
    same_number(module, node)?;
    module.node(node).operand(0)
}
