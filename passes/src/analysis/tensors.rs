//! Tensors: values with all their readers, and the formats in which they are made and read.
//!
//! A tensor is a value with everything that is the same number: its captures in bodies, and the results of casts that
//! are *looked through*. These are the casts that an earlier run inserted, and those of the author that change no number,
//! to the format of their operand or from a 16-bit format to fp32. A reader of such a result reads the tensor.
//!
//! The formats are those known before a choice, those of a choice, or those in which the module is now (`Formats`). For
//! example, where `a` is fp32 and `b` is chosen to be low:
//!
//! ```text
//! a = Softmax(x)
//! b = MatMul(a, w)          tensor a: made in fp32, read low by b
//! h = Cast(b) to f16        tensor b before the choice: read low by the cast; tensor h: made low, read in fp32 by d
//! c = Cast(h) to f32
//! d = Softmax(c)            tensor b after the choice: made low, read in fp32 by d through h and c
//! ```

mod sources;

pub(crate) use self::sources::kept_outputs;
pub(crate) use super::values::is_capture;
use super::values::{is_exact_in, is_stored, looked_through};
use crate::analysis::fusions::Fusions;
use crate::graph::flow::{self, Reader, Var};
use crate::graph::sequences::{Group, Groups};
use crate::graph::var_map::VarMap;
use crate::policy::KeepIo;
use ampc_ir::op::{Class, OpKind};
use ampc_ir::verify::name_of;
use ampc_ir::views::constant_of;
use ampc_ir::{DType, GraphId, Module, Node, Type, Value};
use rustc_hash::FxHashSet;

/// The format of the producer or of a reader of a tensor, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum End {
    /// The format of a free variable, of a group of variables that of the first.
    Var(Var),
    /// The format of an input of the model that need not keep its type, or of the result of a cast of the author from
    /// integers or booleans: low at no cost if all readers are low.
    Source(Value),
    /// fp32.
    Full,
    /// The format that the model is lowered to.
    Low,
    /// Another float format.
    Other(DType),
}

/// The producer of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Producer {
    /// A node or an input of a graph, with the format of the tensor.
    End(End),
    /// A constant, which is stored in every format in which it is read.
    Constant,
}

/// The formats of variables.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Formats<'m> {
    /// The formats that are decided so far; other variables are free.
    Decided,
    /// The formats that are decided, and of other variables those of a choice: fp32, or the format in the map.
    Chosen(&'m VarMap<DType>),
    /// The formats that values have now, whatever is decided.
    Present,
}

/// A reader of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Reading {
    /// The format that the reader asks for.
    pub end: End,
    /// The graph of the reader.
    pub graph: GraphId,
    /// The graph of the cast of the author to fp32 through which the reader reads; without such a cast the graph of the
    /// reader.
    pub widened: GraphId,
    /// True for an output of a body whose tensor is made around the body: a body hands out no value that it captures, so a
    /// cast for the output serves no other reader.
    pub own: bool,
    /// The reading node, if it is [fused](crate::fusions) with the producer of the tensor: it casts in their kernel, for itself
    /// alone.
    pub fused: Option<Node>,
    /// The operand or output that the reader is.
    pub site: Reader,
    /// The value that the reader reads.
    pub value: Value,
    /// True if the reader is a cast of the author that takes any format, and makes the format that it asks for.
    pub stands: bool,
}

/// A tensor.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The value where the tensor is made.
    pub value: Value,
    /// The producer.
    pub producer: Producer,
    /// The readers that ask for a format, in order.
    pub readers: Vec<Reading>,
    /// The formats and graphs of casts of the author that serve no other reader ([`serves_itself`](Tensors::serves_itself)).
    pub casts: Vec<(DType, GraphId)>,
    /// Operands that take any format.
    pub takers: Vec<(Reader, Value)>,
}

impl Tensor {
    /// A value without readers.
    fn of(value: Value) -> Tensor {
        let (producer, readers) = (Producer::Constant, Vec::new());
        Tensor { value, producer, readers, casts: Vec::new(), takers: Vec::new() }
    }
}

/// The tensors of a module before casts are inserted.
#[derive(Clone, Debug)]
pub struct Tensors<'m> {
    /// The module.
    pub module: &'m Module,
    /// The format that is lowered to.
    pub to: DType,
    /// Groups of variables that have one format, because sequences or optionals pass through them.
    pub groups: &'m Groups,
    /// The inputs and outputs that keep their types.
    pub keep_io: &'m KeepIo,
    /// The operators that the target fuses.
    pub fusions: &'m Fusions,
    /// The formats of variables.
    formats: Formats<'m>,
    /// The first variables of the groups with a member that follows ([`follows`](Self::follows)).
    following: FxHashSet<Var>,
}

impl<'m> Tensors<'m> {
    /// The tensors of a module that is to be lowered `to` a format.
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
        Tensors { module, to, keep_io, groups, fusions, formats: Formats::Decided, following }
    }

    /// The tensors of the module in other formats.
    #[must_use]
    pub(crate) fn in_formats(&self, formats: Formats<'m>) -> Tensors<'m> {
        Tensors { formats, ..self.clone() }
    }

    /// The float format of a variable, if it is known.
    pub fn decided(&self, var: Var) -> Option<DType> {
        let decision = flow::decision(self.module, var);
        let format = match self.formats {
            Formats::Present => flow::bound_type(self.module, var).and_then(Type::dtype),
            Formats::Decided => decision?.precision,
            Formats::Chosen(chosen) => {
                let decision = decision?;
                let chosen = || chosen.get(&var).copied().unwrap_or(DType::F32);
                decision.precision.or_else(|| (decision.class != Class::Fixed).then(chosen))
            }
        };
        format.filter(|format| format.is_float())
    }

    /// The float format in which a value is made.
    fn made(&self, value: Value) -> Option<DType> {
        let present = self.module.value(value).ty.dtype().filter(|dtype| dtype.is_float())?;
        Some(flow::producer_var(self.module, value).and_then(|var| self.decided(var)).unwrap_or(present))
    }

    /// The result of a cast that is looked through: its readers might as well read its operand.
    pub fn looked_through(&self, node: Node) -> Option<Value> {
        looked_through(self.module, node, |value| self.made(value), |var| self.decided(var))
    }

    /// True if a value is the result of a cast that is looked through.
    fn is_looked_through(&self, value: Value) -> bool {
        self.module.producer(value).is_some_and(|(node, _)| self.looked_through(node).is_some())
    }

    /// All tensors of fp32 and of 16-bit formats, in program order.
    pub fn all(&self) -> Vec<Tensor> {
        let mut tensors = Vec::new();
        self.each(|tensor| tensors.push(tensor.clone()));
        tensors
    }

    /// Visits all tensors, as [`all`](Self::all) lists them, in the memory of one.
    pub fn each(&self, mut visit: impl FnMut(&Tensor)) {
        let (mut tensor, mut work) = (None::<Tensor>, Vec::new());
        for graph in flow::graphs(self.module) {
            for value in self.module.defined(graph) {
                let dtype = self.module.value(value).ty.dtype();
                if dtype.is_some_and(|d| d == DType::F32 || d.is_low()) && !self.is_looked_through(value) {
                    let tensor = tensor.get_or_insert_with(|| Tensor::of(value));
                    self.read(value, tensor, &mut work);
                    if !(tensor.readers.is_empty() && tensor.casts.is_empty() && tensor.takers.is_empty()) {
                        visit(tensor);
                    }
                }
            }
        }
    }

    /// The end that a variable is: free, or held by what was decided for it, or by the type of a value of it.
    pub fn end_of(&self, var: Var, present: Option<DType>) -> End {
        match self.decided(var) {
            Some(decided) => self.held(Some(decided)),
            None if flow::is_free(self.module, var) && self.is_castable(var) => {
                End::Var(self.groups.leader(var))
            }
            None => self.held(present),
        }
    }

    /// True if casts of its operands give a variable another type.
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

    /// The producer of a value, behind casts that an earlier run inserted.
    pub fn producer_of(&self, value: Value) -> Producer {
        self.producer(flow::behind_inserted(self.module, flow::resolve_captures(self.module, value)))
    }

    /// True if a variable is the operand of a cast that takes any format: nothing is decided for the cast, or it reads the
    /// format of a value that was fp32.
    pub fn takes_any(&self, var: Var) -> bool {
        let data = self.module.node(var.node);
        let was_full = || flow::bound_type(self.module, var).and_then(Type::dtype) == Some(DType::F32);
        data.schema().is_some_and(|s| s.kind == OpKind::Cast)
            && flow::decision(self.module, var)
                .is_some_and(|d| d.precision.is_none() || d.class == Class::Discrete && was_full())
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
        Producer::End(if self.is_free_input(value) { End::Source(value) } else { self.held(data.ty.dtype()) })
    }

    /// Makes `tensor` a value with all its readers. Each value on the way is in `work` with the graph in which the first cast
    /// of the author to fp32 between the tensor and the value stands.
    fn read(&self, root: Value, tensor: &mut Tensor, work: &mut Vec<(Value, Option<GraphId>)>) {
        let module = self.module;
        (tensor.value, tensor.producer) = (root, self.producer(root));
        tensor.readers.clear();
        tensor.casts.clear();
        tensor.takers.clear();
        work.push((root, None));
        while let Some((value, at)) = work.pop() {
            self.add_outputs(tensor, value, at);
            for (node, slot) in module.uses(value) {
                let reader = module.node(node);
                if slot as usize >= reader.n_formal() {
                    let bodies = reader.bodies();
                    let captures = bodies.flat_map(|body| module.graph(body).captures_of(slot));
                    work.extend(captures.map(|&value| (value, at)));
                } else if let Some(result) = self.looked_through(node) {
                    let widens = flow::inserted_result(module, node).is_none()
                        && module.value(result).ty.dtype() == Some(DType::F32);
                    work.push((result, if widens { at.or(Some(reader.graph)) } else { at }));
                } else if let Some(to) = self.serves_itself(node) {
                    tensor.casts.push((to, reader.graph));
                    tensor.takers.push((Reader::Operand(node, slot), value));
                } else {
                    self.add_operand(tensor, value, (node, slot), at);
                }
            }
        }
        tensor.readers.sort_unstable();
        tensor.casts.sort_unstable();
    }

    /// Adds the outputs of graphs that a value of a tensor is. An output of the model that need not keep its type reads
    /// nothing, unless a cast or a constant makes it.
    fn add_outputs(&self, tensor: &mut Tensor, value: Value, at: Option<GraphId>) {
        let module = self.module;
        let data = module.value(value);
        let present = data.ty.dtype();
        for slot in module.output_slots(value) {
            let site = Reader::Output(data.graph, slot);
            let port = flow::var_of_reader(module, site);
            let keeps = || {
                value != tensor.value
                    || tensor.producer == Producer::Constant
                    || data.graph != module.main()
                    || self.keep_io.keeps(&name_of(module, value))
            };
            let (end, own) = match port {
                Some(port) => (self.end_of(port, present), data.graph != module.value(tensor.value).graph),
                None if keeps() => (self.held(present), false),
                None => continue,
            };
            let (graph, widened) = (data.graph, at.unwrap_or(data.graph));
            tensor.readers.push(Reading {
                end,
                graph,
                widened,
                own,
                fused: None,
                site,
                value,
                stands: false,
            });
        }
    }

    /// Adds an operand that a value of a tensor is.
    fn add_operand(&self, tensor: &mut Tensor, value: Value, (node, slot): (Node, u32), at: Option<GraphId>) {
        let site = Reader::Operand(node, slot);
        let Some((end, stands)) = self.reader(node, slot, self.module.value(value).ty.dtype()) else {
            tensor.takers.push((site, value));
            return;
        };
        let graph = self.module.node(node).graph;
        let fused = self.fusions.reads(node, slot).then_some(node);
        let widened = at.unwrap_or(graph);
        tensor.readers.push(Reading { end, graph, widened, own: false, fused, site, value, stands });
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

    /// The format that a reader asks of an operand, and whether the reader is a cast that makes it itself; `None` if the
    /// reader takes any format.
    fn reader(&self, node: Node, slot: u32, present: Option<DType>) -> Option<(End, bool)> {
        let var = flow::reader_var(self.module, node, slot);
        if var.is_some_and(|var| self.takes_any(var)) {
            let to = self.module.node(node).result(0).and_then(|result| self.module.value(result).ty.dtype());
            return to.filter(|to| to.is_low()).map(|to| (self.held(Some(to)), true));
        }
        let end = match var {
            Some(var) => self.end_of(var, present),
            None => self.held(present),
        };
        Some((end, false))
    }

    /// True if the format that the model is lowered to holds every number of a constant. Large ones are not looked at.
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
