//! The casts that follow from a choice of formats: where each of them stands, and which readers read it.
//!
//! A placement is computed from the [tensors](super::tensors) of a module and their formats. A tensor that is read in another
//! format than it is made in has one cast to that format, shared by its readers, in the cheapest [scopes](Scopes). `assign`
//! compares the cost of the placement with the cost of its choice, and `insert-casts` carries the placement out. For example,
//! with MatMul low and Softmax fp32:
//!
//! ```text
//! the choice                                    the placement
//! a  fp32, read low by b and c, fp32 by d       cast a to f16 in @main: operand 0 of b, operand 0 of c
//! b  low, read fp32 by d                        cast b to f32 in @main: operand 1 of d
//! w  constant, read low by b                    cast w to f16 in @main: operand 1 of b (w is converted in the end)
//! ```
//!
//! A reader that reads the right format already is not part of the placement. A reader that reads the result of a superfluous
//! cast of an earlier run reads the tensor itself ([`Read::Tensor`]).

mod check;
mod cost;
mod scopes;
mod text;

pub use self::cost::standing_cost;
pub use self::scopes::{Scope, Scopes};

use self::cost::Charge;
use super::cost::{CostModel, Executions, Objective, Sizes};
use super::fusions::Fusions;
use super::tensors::{End, Formats, Producer, Reading, Tensor, Tensors, is_capture};
use crate::graph::flow::{self, Reader};
use crate::graph::sequences::Groups;
use crate::graph::var_map::VarMap;
use crate::policy::KeepIo;
use ampc_ir::module::GraphOwner;
use ampc_ir::{DType, GraphId, Module, Value};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// Where casts stand.
#[derive(Clone, Debug)]
pub struct Placement {
    /// The casts, in program order of their tensors. Each has a reader.
    casts: Vec<PlacedCast>,
    /// The readers that read something else than they do now.
    reads: FxHashMap<Reader, Read>,
    /// The formats of inputs of the model that need not keep their types, where all readers read the same 16-bit format.
    inputs: FxHashMap<Value, DType>,
    charges: Vec<Charge>,
    /// The tensors, formats and graphs of casts of an earlier run that stay.
    kept: BTreeSet<(Value, DType, GraphId)>,
    is_shared: bool,
    tensors: usize,
    options: (KeepIo, Objective),
}

/// A cast of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlacedCast {
    /// The value where the tensor is made.
    pub tensor: Value,
    /// The format that the cast makes.
    pub to: DType,
    /// The graph in which the cast stands.
    pub graph: GraphId,
}

/// A value that is read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Read {
    /// A tensor as it is made.
    Tensor(Value),
    /// The result of a cast, by its index.
    Cast(usize),
}

/// The places for the readers of one tensor in one format.
struct Places {
    scopes: Scopes,
    /// The scope of each reader.
    of_readers: Vec<usize>,
    chosen: Vec<usize>,
}

impl Placement {
    /// The placement for tensors whose formats are all known.
    ///
    /// `executions` is the number of executions of a graph; for [`Objective::Casts`] every graph counts once, so that as few
    /// casts as possible stand.
    pub fn new(
        tensors: &Tensors<'_>,
        objective: Objective,
        executions: impl Fn(GraphId) -> i64,
    ) -> Placement {
        let mut placement = Placement {
            casts: Vec::new(),
            reads: FxHashMap::default(),
            inputs: FxHashMap::default(),
            charges: Vec::new(),
            kept: BTreeSet::new(),
            is_shared: false,
            tensors: 0,
            options: (tensors.keep_io.clone(), objective),
        };
        let executions = |graph| if objective == Objective::Casts { 1 } else { executions(graph) };
        tensors.each(|tensor| placement.add(tensors, tensor, &executions));
        placement
    }

    /// The placement for a module in which every format is decided.
    pub fn of_decided(module: &Module, keep_io: &KeepIo, objective: Objective) -> Placement {
        let (groups, fusions) = (Groups::new(module), Fusions::default());
        // Of the 16-bit formats either may be the format of the choice: nothing but costs depends on it.
        let tensors = Tensors::new(module, DType::F16, keep_io, &groups, &fusions);
        let chosen = VarMap::default();
        let executions = Executions::count(module, &Sizes::default());
        let tensors = tensors.in_formats(Formats::Chosen(&chosen));
        Placement::new(&tensors, objective, |graph| executions.of(graph))
    }

    /// True if the placement is that for these options: bytes and time place casts in the same scopes.
    pub fn is_for(&self, keep_io: &KeepIo, objective: Objective) -> bool {
        let fewest = |objective| objective == Objective::Casts;
        self.options.0 == *keep_io && fewest(self.options.1) == fewest(objective)
    }

    /// The casts.
    pub fn casts(&self) -> &[PlacedCast] {
        &self.casts
    }

    /// The value that a reader reads, if it is another value than now.
    pub fn read(&self, reader: Reader) -> Option<Read> {
        self.reads.get(&reader).copied()
    }

    /// True if a body hands out a tensor as it is made, instead of a cast of it: the tensor has to be made in the body.
    pub fn hands_out(&self, module: &Module, tensor: Value) -> bool {
        let graph = module.value(tensor).graph;
        let slots = (0u32..).zip(module.graph(graph).outputs()).map(|(slot, _)| Reader::Output(graph, slot));
        graph != module.main() && slots.into_iter().any(|site| self.read(site) == Some(Read::Tensor(tensor)))
    }

    /// The 16-bit format that an input of the model gets.
    pub fn format_of_input(&self, input: Value) -> Option<DType> {
        self.inputs.get(&input).copied()
    }

    /// The cost of the casts and of constants in two formats.
    pub fn cost(&self, costs: &CostModel<'_>) -> i64 {
        self.charges.iter().map(|charge| charge.cost(costs)).fold(0, i64::saturating_add)
    }

    /// The cost of the casts to a 16-bit format that is not the format that the module is lowered to. A choice does not count
    /// them.
    pub fn cost_of_others(&self, costs: &CostModel<'_>, to: DType) -> i64 {
        let placed = self.casts.iter().map(|cast| (cast.tensor, cast.to, cast.graph));
        let others =
            placed.chain(self.kept.iter().copied()).filter(|&(_, other, _)| other.is_low() && other != to);
        let cost = |(tensor, other, graph)| costs.cast_cost(tensor, graph, DType::F32, other);
        others.map(cost).fold(0, i64::saturating_add)
    }

    /// True if readers share a cast that the choice counts for each of them: outputs of bodies.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// The number of tensors, fewer than the choice counted if casts of the author have become identities.
    pub fn tensors(&self) -> usize {
        self.tensors
    }

    /// Adds the casts and reads of a tensor.
    fn add(&mut self, tensors: &Tensors<'_>, tensor: &Tensor, executions: &impl Fn(GraphId) -> i64) {
        let module = tensors.module;
        self.tensors += 1;
        for &(site, value) in &tensor.takers {
            self.read_behind_inserted(module, site, value);
        }
        let made = self.made(tensors, tensor);
        let is_read_as_made = |reading: &Reading| {
            reading.value == tensor.value && !reading.stands && format(tensors, reading.end) == made
        };
        if tensor.casts.is_empty() && tensor.readers.iter().all(is_read_as_made) {
            return;
        }
        self.charge(tensors, tensor, made, executions);
        let (outputs, others): (Vec<&Reading>, Vec<&Reading>) =
            tensor.readers.iter().partition(|reading| reading.own);
        // The casts of the tensor by graph and format.
        let mut casts: FxHashMap<(GraphId, DType), usize> = FxHashMap::default();
        for to in formats(tensors, &others) {
            let readers: Vec<&Reading> =
                others.iter().filter(|reading| format(tensors, reading.end) == to).copied().collect();
            if to == made {
                self.read_as_made(module, tensor.value, &readers, made);
            } else {
                let places = Places::new(module, tensor, to, &readers, executions);
                self.add_casts(module, tensor.value, &readers, to, &places, &mut casts);
            }
        }
        for reading in outputs {
            self.add_output_of_capture(tensors, tensor, reading, made, &mut casts);
        }
    }

    /// The format in which a tensor is made; an input that all readers read in a 16-bit format gets the format.
    fn made(&mut self, tensors: &Tensors<'_>, tensor: &Tensor) -> DType {
        match tensor.producer {
            Producer::End(End::Source(source)) if tensors.module.producer(source).is_none() => {
                let agreed = agreed(tensors, tensor);
                if let Some(format) = agreed {
                    self.inputs.insert(source, format);
                }
                agreed.unwrap_or(DType::F32)
            }
            Producer::End(end) => format(tensors, end),
            Producer::Constant => tensors.module.value(tensor.value).ty.dtype().unwrap_or(DType::F32),
        }
    }

    /// Adds the reads of readers in the format in which the tensor is made.
    fn read_as_made(&mut self, module: &Module, tensor: Value, readers: &[&Reading], made: DType) {
        for reading in readers {
            if reading.stands {
                self.read_behind_inserted(module, reading.site, reading.value);
            } else if !is_read_so(module, tensor, reading, made, None) {
                let read = self.read_of_tensor(module, tensor, reading, made);
                self.reads.extend(read.map(|read| (reading.site, read)));
            }
        }
    }

    /// Adds the casts of a tensor to a format, with their reads.
    fn add_casts(
        &mut self,
        module: &Module,
        tensor: Value,
        readers: &[&Reading],
        to: DType,
        places: &Places,
        casts: &mut FxHashMap<(GraphId, DType), usize>,
    ) {
        for (reading, &scope) in readers.iter().zip(&places.of_readers) {
            if reading.stands {
                self.read_behind_inserted(module, reading.site, reading.value);
                continue;
            }
            let Some(at) = places.scopes.around(scope, &places.chosen) else { continue };
            let graph = places.scopes.all()[at].graph;
            if is_read_so(module, tensor, reading, to, Some(graph)) {
                if is_inserted(module, flow::resolve_captures(module, reading.value)) {
                    self.kept.insert((tensor, to, graph));
                }
            } else {
                let cast = *casts.entry((graph, to)).or_insert_with(|| {
                    self.casts.push(PlacedCast { tensor, to, graph });
                    self.casts.len() - 1
                });
                self.reads.insert(reading.site, Read::Cast(cast));
            }
        }
    }

    /// A tensor as it is made. A function hands out no value that it is handed, which ONNX Runtime refuses: a cast stands
    /// between them. `None` if an earlier run has inserted the cast, which stays with its name.
    fn read_of_tensor(
        &mut self,
        module: &Module,
        tensor: Value,
        reading: &Reading,
        made: DType,
    ) -> Option<Read> {
        let of_function = matches!(reading.site, Reader::Output(graph, _)
            if matches!(module.graph(graph).owner, GraphOwner::Function(_)));
        let between = module.producer(reading.value).filter(|_| module.producer(tensor).is_none());
        let Some((cast, _)) = between.filter(|_| of_function) else { return Some(Read::Tensor(tensor)) };
        let is_made = module.value(reading.value).ty.dtype() == Some(made);
        if is_made && is_inserted(module, reading.value) && module.node(cast).operand(0) == Some(tensor) {
            return None;
        }
        self.casts.push(PlacedCast { tensor: reading.value, to: made, graph: reading.graph });
        Some(Read::Cast(self.casts.len() - 1))
    }

    /// An output of a body that is a value of around the body: a cast in the body makes it, also to its own format.
    fn add_output_of_capture(
        &mut self,
        tensors: &Tensors<'_>,
        tensor: &Tensor,
        reading: &Reading,
        made: DType,
        casts: &mut FxHashMap<(GraphId, DType), usize>,
    ) {
        let (module, to) = (tensors.module, format(tensors, reading.end));
        let read = flow::resolve_captures(module, reading.value);
        let is = if read == tensor.value { Some(made) } else { module.value(read).ty.dtype() };
        let is_stale = is_capture(module, reading.value) && is_inserted(module, read);
        if is == Some(to) && !is_stale {
            return;
        }
        let known = casts.entry((reading.graph, to)).and_modify(|_| self.is_shared = true);
        let cast = known.or_insert_with(|| {
            self.casts.push(PlacedCast { tensor: tensor.value, to, graph: reading.graph });
            self.casts.len() - 1
        });
        self.reads.insert(reading.site, Read::Cast(*cast));
    }

    /// A reader that takes any format reads the value behind casts of an earlier run.
    fn read_behind_inserted(&mut self, module: &Module, site: Reader, value: Value) {
        let behind = flow::behind_inserted(module, value);
        if behind != value && is_inserted(module, flow::resolve_captures(module, value)) {
            self.reads.insert(site, Read::Tensor(behind));
        }
    }
}

impl Places {
    fn new(
        module: &Module,
        tensor: &Tensor,
        to: DType,
        readers: &[&Reading],
        executions: &impl Fn(GraphId) -> i64,
    ) -> Places {
        let home = module.value(tensor.value).graph;
        let mut scopes = Scopes::new(home);
        // Constants are converted where they are.
        let is_constant = tensor.producer == Producer::Constant;
        let of = |reading: &&Reading| {
            let graph = if to == DType::F32 { reading.widened } else { reading.graph };
            if is_constant || graph == home { 0 } else { scopes.of(module, graph) }
        };
        let of_readers: Vec<usize> = readers.iter().map(of).collect();
        let mut needed = of_readers.clone();
        needed.sort_unstable();
        needed.dedup();
        let chosen = scopes.cheapest(&needed, executions);
        Places { scopes, of_readers, chosen }
    }
}

/// The formats that readers read, in order.
fn formats(tensors: &Tensors<'_>, readers: &[&Reading]) -> impl Iterator<Item = DType> + use<> {
    let mut formats: Vec<DType> = readers.iter().map(|reading| format(tensors, reading.end)).collect();
    formats.sort_unstable();
    formats.dedup();
    formats.into_iter()
}

/// The format of an end.
fn format(tensors: &Tensors<'_>, end: End) -> DType {
    match end {
        End::Low => tensors.to,
        End::Other(format) => format,
        End::Full | End::Var(_) | End::Source(_) => DType::F32,
    }
}

/// The 16-bit format in which all readers read, if it is the same. A cast of the author that takes any format reads the
/// format that the choice expects to arrive.
fn agreed(tensors: &Tensors<'_>, tensor: &Tensor) -> Option<DType> {
    let decided = |site| flow::var_of_reader(tensors.module, site).and_then(|var| tensors.decided(var));
    let of_takers = tensor.takers.iter().map(|&(site, _)| decided(site));
    let of_readers = tensor.readers.iter().map(|reading| match reading.stands {
        true => decided(reading.site),
        false => Some(format(tensors, reading.end)),
    });
    let mut formats = of_readers.chain(of_takers);
    let first = formats.next()??;
    (first.is_low() && formats.all(|format| format == Some(first))).then_some(first)
}

/// True if a reader reads its format already: as the tensor is made, from a cast of the author, or from a cast of the tensor
/// that an earlier run inserted in the right graph.
fn is_read_so(module: &Module, tensor: Value, reading: &Reading, to: DType, graph: Option<GraphId>) -> bool {
    let read = flow::resolve_captures(module, reading.value);
    if read == tensor {
        return graph.is_none();
    }
    // An output of the model that a cast makes stays.
    let is_of_main =
        matches!(reading.site, Reader::Output(output, _) if module.graph(output).owner == GraphOwner::Main);
    let Some((cast, _)) = module.producer(read).filter(|_| module.value(read).ty.dtype() == Some(to)) else {
        return is_of_main;
    };
    if !is_inserted(module, read) || is_of_main {
        return true;
    }
    let of = module.node(cast).operand(0).map(|operand| flow::resolve_captures(module, operand));
    of == Some(tensor) && graph == Some(module.node(cast).graph)
}

/// True if a value is the result of a cast that an earlier run inserted.
fn is_inserted(module: &Module, value: Value) -> bool {
    module.producer(value).is_some_and(|(node, _)| flow::inserted_result(module, node).is_some())
}
