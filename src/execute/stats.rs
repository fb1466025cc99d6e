//! Statistics of every tensor of a model on data: its range, and the effect of rounding it to lower formats.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ampc::execute::Inputs;
//! use ampc::execute::stats::Collector;
//! use ampc::ir::DType;
//!
//! let mut model = ampc::load("testdata/mlp.onnx")?;
//! let batch = Inputs::random(&model.module, 1, &Default::default(), u64::MAX)?;
//! let mut collector = Collector::new(&mut model.module, &ampc::runtime::Runtime::default())?;
//! collector.add(&batch)?;
//! let found = collector.finish();
//! let logits = found.tensors.iter().find(|tensor| tensor.name == "logits").unwrap();
//! assert_eq!(logits.numbers.count, 10);
//! assert_eq!(logits.numbers.rounded_to(DType::F16).unwrap().overflow, 0);
//! # Ok(())
//! # }
//! ```
//!
//! Each batch is one run of the model. A tensor is read when it is computed, so all activations are never in memory at
//! once. Statistics of several batches, iterations and calls merge exactly (see [`Numbers::merge`]).

mod batches;
mod observed;
mod report;

pub use self::batches::batches;
pub use self::observed::{SavedStats, StatsError};
pub use self::report::{SCHEMA, csv, json};
pub use ampc_runtime::statistics::{FORMATS, Rounded, Statistics as Numbers};

use self::observed::Observation;
use super::Inputs;
use super::inputs::no_memory;
use super::scope::{inner_path, is_edited_sequence, is_nested};
use super::session::{bind_observed, prepare, views};
use crate::error::Error;
use crate::interface::input_names;
use crate::run_errors::of_run;
use ampc_ir::module::{Def, GraphOwner, Payload};
use ampc_ir::{DType, GraphId, Module, Node, Value};
use ampc_passes::Paths;
use ampc_passes::observed::Observed;
use ampc_runtime::backend::RunHint;
use ampc_runtime::session::NodeObserver;
use ampc_runtime::{Backend, DataRef, HostError, HostTensor, Runtime, Session};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The origin of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// An input of the model.
    Input,
    /// A constant, or the default of an input.
    Constant,
    /// A result of a node.
    Node,
}

impl Origin {
    /// The name of the origin in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Origin::Input => "input",
            Origin::Constant => "constant",
            Origin::Node => "node",
        }
    }
}

/// A tensor with its statistics over all batches, iterations and calls.
#[derive(Clone, Debug)]
pub struct TensorStats {
    /// The name of the value.
    pub name: String,
    /// The origin of the tensor.
    pub origin: Origin,
    /// The path of the node that computes it, or of the body or function that has the constant; empty for inputs and
    /// for constants of the main graph.
    pub path: String,
    /// The operator that computes it.
    pub op: Option<String>,
    /// The index of the result of the node; 0 for inputs and constants.
    pub slot: u32,
    /// The element type.
    pub dtype: DType,
    /// The dims, `None` for those that differ between runs; `None` if ranks differ, and for sequences and optionals.
    pub dims: Option<Vec<Option<u64>>>,
    /// The number of times that it was computed or, for an input, given, with numbers; 1 for a constant.
    pub runs: u64,
    /// The statistics.
    pub numbers: Numbers,
}

/// The statistics of a model.
#[derive(Clone, Debug, Default)]
pub struct ModelStats {
    /// The number of batches.
    pub batches: u64,
    /// All tensors of numbers: inputs, constants (defaults of inputs among them), and results of nodes in the order of
    /// their first computation.
    pub tensors: Vec<TensorStats>,
}

impl ModelStats {
    /// The inputs and results that come near an end of the range of a format, or leave it: `margin` times their largest
    /// magnitude is beyond the largest finite number, or their largest magnitude is below `margin` times the smallest
    /// normal number. The margin is at least that of the rounding of operands, 1 + 4u with the unit roundoff u; in bf16,
    /// which has the range of fp32, it is just that. Constants are not among them, since guards read all elements of
    /// constants.
    ///
    /// The result also has the inputs and results that lie far from 0, with their least and greatest numbers.
    pub fn observed(&self, format: DType, margin: f64) -> Observed {
        let floats = self.tensors.iter().filter(|tensor| tensor.dtype.is_float());
        observed::observed(floats.map(TensorStats::observation), format, margin)
    }

    /// The inputs and results of nodes whose elements are finite and whose largest magnitude is within the range of a
    /// format, with the margin of [`observed`](Self::observed), a factor of at least 1, before both ends.
    pub fn within(&self, format: DType, margin: f64) -> Observed {
        let floats = self.tensors.iter().filter(|tensor| tensor.dtype.is_float());
        observed::within(floats.map(TensorStats::observation), format, margin)
    }

    /// True if no input or result of floats has elements.
    pub fn is_empty(&self) -> bool {
        let observed = self.tensors.iter().filter(|tensor| tensor.origin != Origin::Constant);
        observed.filter(|tensor| tensor.dtype.is_float()).all(|tensor| tensor.numbers.count == 0)
    }

    /// The names of the tensors of floats with NaN.
    pub fn with_nan(&self) -> Vec<&str> {
        let tensors = self.tensors.iter().filter(|tensor| tensor.numbers.nan > 0 && tensor.dtype.is_float());
        tensors.map(|tensor| tensor.name.as_str()).collect()
    }
}

impl TensorStats {
    fn observation(&self) -> Observation<'_> {
        Observation {
            origin: self.origin,
            name: &self.name,
            path: &self.path,
            slot: self.slot,
            min: self.numbers.min,
            max: self.numbers.max,
            max_abs: self.numbers.max_abs,
            is_finite: self.numbers.nan == 0 && self.numbers.infinite == 0,
        }
    }
}

/// Collects the statistics of a model, batch by batch.
pub struct Collector<'m> {
    module: &'m Module,
    session: Session,
    backend: Arc<dyn Backend>,
    seen: Seen<'m>,
    batches: u64,
}

impl<'m> Collector<'m> {
    /// Prepares a model, and reads its constants. Nodes that depend on constants alone are computed in each run, as
    /// every other node.
    ///
    /// # Errors
    /// If the model is invalid, has operators that the backend lacks, or a constant cannot be read.
    pub fn new(module: &'m mut Module, runtime: &Runtime) -> Result<Collector<'m>, Error> {
        let runtime = Runtime { fold: false, ..runtime.clone() };
        let session = prepare(module, &runtime)?;
        let module: &'m Module = module;
        let mut collector = Collector {
            module,
            session,
            backend: runtime.backend,
            seen: Seen::new(module, Paths::of(module)),
            batches: 0,
        };
        collector.constants()?;
        Ok(collector)
    }

    /// Runs a batch, and adds the statistics of its inputs and of every value that it computes. A training step starts
    /// each batch from the states that the batch or the model gives.
    ///
    /// # Errors
    /// If the inputs do not fit, and then nothing is added; if a node cannot be computed, or a limit is reached. The
    /// statistics of an incomplete run are part of the result of [`finish`](Self::finish).
    pub fn add(&mut self, inputs: &Inputs) -> Result<(), Error> {
        let module = self.module;
        let states = self.session.states().map_err(|error| of_run(module, &error))?;
        if !states.is_empty() {
            let session = Session::new(self.session.executable().clone());
            self.session = session.map_err(|error| Error::Device(error.to_string()))?;
        }
        bind_observed(&mut self.session, &inputs.values)?;
        let formals = module.graph(module.main()).inputs();
        let names = input_names(module);
        let seen = &mut self.seen;
        installed(&*self.backend, &mut || {
            for ((&value, name), data) in formals.iter().zip(&names).zip(&inputs.values) {
                if let Some(data) = data {
                    seen.add(Key { scope: INPUTS, value }, data.view(), |_| Source {
                        name: name.clone(),
                        origin: Origin::Input,
                        path: String::new(),
                        op: None,
                        slot: 0,
                    });
                }
            }
        });
        let ran = self.session.run_to_observed(&views(&inputs.values), Some(seen), |_, _| {});
        seen.scopes.truncate(1);
        ran.map_err(|error| of_run(self.session.module(), &error))?;
        self.batches += 1;
        Ok(())
    }

    /// The statistics of all batches.
    pub fn finish(self) -> ModelStats {
        let mut tensors = self.seen.tensors;
        tensors.sort_by_key(|tensor| tensor.origin);
        ModelStats { batches: self.batches, tensors }
    }

    /// The number of batches so far.
    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// Adds the constants and defaults of the main graph, and of bodies and functions. Beside the constants of the
    /// session, one constant of a function that is never called is in memory at a time.
    fn constants(&mut self) -> Result<(), Error> {
        let module = self.module;
        for graph in module.graph_ids().collect::<Vec<_>>() {
            for value in module.graph(graph).inputs().iter().chain(module.graph(graph).constants()).copied() {
                if let Def::Constant(payload) | Def::Input { default: Some(payload), .. } =
                    &module.value(value).def
                {
                    self.constant(graph, value, payload)?;
                }
            }
        }
        Ok(())
    }

    fn constant(&mut self, graph: GraphId, value: Value, payload: &Payload) -> Result<(), Error> {
        let module = self.module;
        let name = ampc_ir::verify::name_of(module, value);
        let executable = self.session.executable().clone();
        let read = match (executable.constant(value), payload) {
            (Some(_), _) => None,
            (None, Payload::Dense(data)) => Some(HostTensor::from_data(data)),
            (None, Payload::Sparse(data)) => Some(HostTensor::from_sparse(data)),
        };
        let read = read.transpose().map_err(|error| of_constant(&name, &error))?;
        let Some(tensor) = read.as_ref().or_else(|| executable.constant(value)) else { return Ok(()) };
        let path = place_of(module, &self.seen.paths, graph);
        let seen = &mut self.seen;
        installed(&*self.backend, &mut || {
            let source = |_: &Module| Source {
                name: name.clone(),
                origin: Origin::Constant,
                path: path.clone(),
                op: None,
                slot: 0,
            };
            seen.add(Key { scope: CONSTANTS, value }, DataRef::Tensor(tensor.view()), source);
        });
        Ok(())
    }
}

/// Runs `work` in the threads of a backend.
fn installed(backend: &dyn Backend, work: &mut (dyn FnMut() + Send)) {
    backend.install(RunHint::Parallel, work);
}

/// A value of a scope: the number of the running graph, [`INPUTS`] or [`CONSTANTS`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    scope: usize,
    value: Value,
}

/// The scope of given inputs, which may have a default as well.
const INPUTS: usize = usize::MAX;

/// The scope of constants.
const CONSTANTS: usize = usize::MAX - 1;

/// The description of a tensor, beside its statistics.
struct Source {
    name: String,
    origin: Origin,
    path: String,
    op: Option<String>,
    slot: u32,
}

/// The tensors that have been seen.
struct Seen<'m> {
    module: &'m Module,
    paths: Arc<Paths>,
    tensors: Vec<TensorStats>,
    /// The index of a tensor.
    indices: FxHashMap<Key, usize>,
    /// The paths of scopes, by number. The first scope is the main graph.
    scope_paths: Vec<Arc<str>>,
    scope_ids: FxHashMap<Arc<str>, usize>,
    /// The running graphs, the main graph first.
    scopes: Vec<usize>,
}

impl<'m> Seen<'m> {
    fn new(module: &'m Module, paths: Arc<Paths>) -> Seen<'m> {
        let main: Arc<str> = "".into();
        Seen {
            module,
            paths,
            tensors: Vec::new(),
            indices: FxHashMap::default(),
            scope_paths: vec![main.clone()],
            scope_ids: FxHashMap::from_iter([(main, 0)]),
            scopes: vec![0],
        }
    }

    /// The running graph.
    fn scope(&self) -> usize {
        self.scopes.last().copied().unwrap_or(0)
    }

    /// Adds a value. `source` describes it when it is seen first.
    fn add(&mut self, key: Key, data: DataRef<'_>, source: impl FnOnce(&Module) -> Source) {
        // A string has no numbers; an empty sequence may have numbers in the next run.
        let Some(numbers) = Numbers::of_data(data) else { return };
        let dims = match data {
            DataRef::Tensor(tensor) => Some(tensor.dims().iter().copied().map(Some).collect::<Vec<_>>()),
            DataRef::Device(_) | DataRef::Sequence(_) | DataRef::Optional(_) => None,
        };
        let Some(&index) = self.indices.get(&key) else {
            let Some(dtype) = data.ty().element_dtype() else { return };
            let Source { name, origin, path, op, slot } = source(self.module);
            self.indices.insert(key, self.tensors.len());
            self.tensors.push(TensorStats { name, origin, path, op, slot, dtype, dims, runs: 1, numbers });
            return;
        };
        let tensor = &mut self.tensors[index];
        tensor.numbers.merge(&numbers);
        tensor.runs += 1;
        tensor.dims = match (tensor.dims.take(), dims) {
            (Some(mut known), Some(dims)) if known.len() == dims.len() => {
                known.iter_mut().zip(&dims).filter(|(a, b)| **a != **b).for_each(|(known, _)| *known = None);
                Some(known)
            }
            _ => None,
        };
    }
}

impl NodeObserver for Seen<'_> {
    fn value(&mut self, node: Node, slot: usize, data: DataRef<'_>) {
        let module = self.module;
        let Some(value) = module.node(node).result(slot) else { return };
        // The elements of a sequence are counted where they are computed.
        if is_edited_sequence(module, value) {
            return;
        }
        let scope = self.scope();
        let path = self.scope_paths[scope].clone();
        let paths = self.paths.clone();
        self.add(Key { scope, value }, data, |module| Source {
            name: ampc_ir::verify::name_of(module, value),
            origin: Origin::Node,
            path: format!("{path}{}", paths.local(node)),
            op: Some(module.op_name(node).1.to_owned()),
            slot: u32::try_from(slot).unwrap_or(u32::MAX),
        });
    }

    fn enter(&mut self, node: Node, graph: GraphId) {
        debug_assert!(is_nested(self.module, node));
        let outer = &self.scope_paths[self.scope()];
        let path: Arc<str> = inner_path(self.module, &self.paths, outer, node, graph).into();
        let id = match self.scope_ids.get(&path) {
            Some(&id) => id,
            None => {
                self.scope_paths.push(path.clone());
                self.scope_ids.insert(path, self.scope_paths.len() - 1);
                self.scope_paths.len() - 1
            }
        };
        self.scopes.push(id);
    }

    fn leave(&mut self) {
        self.scopes.pop();
    }
}

/// The path of a body, or the name of a function; empty for the main graph.
fn place_of(module: &Module, paths: &Paths, graph: GraphId) -> String {
    match module.graph(graph).owner {
        GraphOwner::Body { node, attr } => format!("{}/{}", paths.path(node), module.text(attr)),
        GraphOwner::Function(function) => module.text(module.function(function).name).to_owned(),
        GraphOwner::Main | GraphOwner::Erased => String::new(),
    }
}

/// The error of a constant that cannot be read.
fn of_constant(name: &str, error: &HostError) -> Error {
    match error.is_no_memory() {
        true => no_memory(name, error),
        false => Error::Unsupported(format!("constant `{name}`: {error}")),
    }
}
