//! Attribution: the share of each value's rounding in the error of a lowered model.
//!
//! To first order, an output changes by Σᵢ a[i] · ρ[i] if a value changes by ρ, with the adjoint a of the value
//! ([`adjoints`](ampc_passes::autodiff::adjoints)). One backward pass in fp32 gives the adjoints of all values; ρ is the
//! rounding of the value to the format, which is exact. So one run attributes the error of all roundings, as CHEF-FP
//! (Vassiliev et al., IPDPS 2023) and ADAPT (Menon et al., SC 2018) do for programs. The error of a value is
//!
//! ```text
//! e = √((Σᵢ a[i] · ρ[i])² + Σᵢ (a[i] · ρ[i])²)
//! ```
//!
//! The first term is the change on the data; the second is the change that independent roundings of the same sizes would
//! cause, which matters where the first is small by chance. A value that leaves the range of the format has an infinite error.
//! For example, with one element each, where both terms are equal and the error is √2 times the change:
//!
//! ```text
//! %h = Mul(%x, %c)     h = 0.77      rounding  2.0e-5    adjoint 2h = 1.54    change  3.0e-5    error 4.2e-5
//! %y = Mul(%h, %h)     y = 0.5929    rounding -1.3e-4    adjoint 1            change -1.3e-4    error 1.8e-4
//! ```
//!
//! Where no gradient passes (comparisons, rounding to integers, loops whose number of iterations is unknown), the backward
//! pass also starts at the operands of the operator: a relative error of such an operand counts like the same error of an
//! output. A value in a body gets the relative error of its own rounding only, since no adjoint exists for it.

mod recorder;

use self::recorder::{Recorder, relative_error};
use crate::error::Error;
use crate::execute::Inputs;
use crate::execute::session::{prepare, views};
use crate::run_errors::of_run;
use ampc_ir::edit::InlinedCalls;
use ampc_ir::entity::SecondaryMap;
use ampc_ir::infer::infer_module;
use ampc_ir::module::{Def, GraphOwner};
use ampc_ir::op::OpKind;
use ampc_ir::{DType, Module, Node, Value};
use ampc_passes::Pass;
use ampc_passes::autodiff::adjoints::{Adjoints, NoAdjoint, add_adjoints, read_without_gradient};
use ampc_passes::evaluate_constants::EvaluateConstants;
use ampc_passes::pipeline::Pipeline;
use ampc_passes::raise_opset::{RaiseOpset, Target};
use ampc_runtime::session::NodeObserver;
use ampc_runtime::{Data, DataRef, HostTensor, Runtime, Session};
use rustc_hash::{FxHashMap, FxHashSet};

/// Errors of values, or their squares, in the unit of the metric of the worst output.
pub(super) type Errors = SecondaryMap<Value, f64>;

/// The opset at which gradients can be inserted.
const OPSET: u16 = 18;

/// The maximal number of nodes and values that inlining of calls adds.
const INLINED: u64 = 1 << 22;

/// The maximal number of attempts; each leaves out one operator without a gradient.
const MOST_STOPS: usize = 64;

/// The model with its adjoints.
pub(super) struct Attribution {
    session: Session,
    to: DType,
    /// Maps a value of the differentiated module to its original in the decided module.
    original: FxHashMap<Value, Value>,
    adjoints: Adjoints,
    /// The values that start the backward pass.
    ends: Vec<End>,
    /// The decided module, for the values in its bodies and for the ends that are no outputs; `None` without such values.
    forward: Option<Forward>,
}

/// A value that starts the backward pass.
#[derive(Clone, Copy)]
struct End {
    value: Value,
    /// The index of the output; `None` if the value is an operand of an operator without a gradient.
    output: Option<usize>,
}

impl Attribution {
    /// Prepares the adjoints of a module, the model as `assign` receives it. With `decides`, operands of operators that turn
    /// floats into decisions are ends too.
    ///
    /// # Errors
    /// If the module cannot be prepared for a run.
    pub(super) fn new(
        decided: &Module,
        to: DType,
        decides: bool,
        runtime: &Runtime,
    ) -> Result<Attribution, Error> {
        let runtime = Runtime { fold: false, ..runtime.clone() };
        let mut found = differentiated(decided, decides);
        let session = prepare(&mut found.module, &runtime)?;
        let original = originals(decided, &found.module, &found.inlined);
        let is_body = |graph| matches!(decided.graph(graph).owner, GraphOwner::Body { .. });
        let is_needed = decided.graph_ids().any(is_body) || found.ends.iter().any(|end| end.output.is_none());
        let forward = if is_needed { Some(Forward::new(decided, &runtime)?) } else { None };
        let Differentiated { adjoints, ends, .. } = found;
        Ok(Attribution { session, to, original, adjoints, ends, forward })
    }

    /// Adds the squares of the errors of values on a batch. `weights` has the weights of the elements of each float output of
    /// the model; `relative` is the weight of the relative error of the other ends, and of values in bodies. Returns false, and
    /// adds no square of the backward pass, if an end has no weights.
    ///
    /// # Errors
    /// If the model cannot be run.
    pub(super) fn add(
        &mut self,
        inputs: &Inputs,
        weights: &[Option<HostTensor>],
        relative: f64,
        squares: &mut Errors,
    ) -> Result<bool, Error> {
        let found = match &mut self.forward {
            Some(forward) => forward.run(inputs, self.to)?,
            None => Ranges::default(),
        };
        for (value, error) in found.inner.iter() {
            squares[value] += relative * relative * error;
        }
        let executable = self.session.executable().clone();
        let module = executable.module();
        let mut values: Vec<Option<Data>> = inputs.values.clone();
        for &End { value, output } in &self.ends {
            let tensor = match output {
                Some(output) => weights[output].clone(),
                None => {
                    let computed = self.original.get(&value).and_then(|value| found.ends.get(value));
                    computed.and_then(|scale| scale.weights(relative))
                }
            };
            // An output without weights, or an operand that was not computed on this batch.
            let Some(tensor) = tensor else { return Ok(false) };
            values.push(Some(Data::Tensor(tensor)));
        }
        let mut recorder = Recorder::new(module, self.to, &self.adjoints);
        for (&formal, value) in module.graph(module.main()).inputs().iter().zip(&values) {
            if let Some(Data::Tensor(tensor)) = value {
                recorder.see(formal, tensor.view());
            }
        }
        let ran = self.session.run_to_observed(&views(&values), Some(&mut recorder), |_, _| {});
        ran.map_err(|error| of_run(self.session.module(), &error))?;
        for (value, square) in recorder.finish() {
            if let Some(&value) = self.original.get(&value) {
                squares[value] += square;
            }
        }
        Ok(true)
    }
}

/// A module with adjoints.
struct Differentiated {
    module: Module,
    inlined: InlinedCalls,
    adjoints: Adjoints,
    ends: Vec<End>,
}

/// Adds the adjoints to a copy of a module. An operator without a gradient stops the backward pass. The copy has no adjoints
/// if no attempt succeeds.
fn differentiated(decided: &Module, decides: bool) -> Differentiated {
    let mut module = decided.clone();
    let inlined = module.inline_calls(INLINED);
    let mut passes: Vec<Box<dyn Pass>> = Vec::new();
    if module.opset(module.main(), "").is_some_and(|opset| opset < OPSET) {
        passes.push(Box::new(RaiseOpset { to: Target::Opset(OPSET) }));
    }
    passes.push(Box::new(EvaluateConstants));
    let mut raised = module.clone();
    let ran = Pipeline::new(passes).is_ok_and(|pipeline| pipeline.run(&mut raised, false, &mut ()).is_ok());
    if ran {
        module = raised;
    }
    let none = |module: Module, inlined| Differentiated {
        module,
        inlined,
        adjoints: Adjoints::default(),
        ends: Vec::new(),
    };
    let Ok(facts) = infer_module(&mut module) else { return none(decided.clone(), InlinedCalls::default()) };
    let (mut stops, mut fixed): (FxHashSet<Value>, FxHashSet<OpKind>) = Default::default();
    for _ in 0..MOST_STOPS {
        let ends = ends(&module, &stops, decides);
        let values: Vec<Value> = ends.iter().map(|end| end.value).collect();
        let mut with_adjoints = module.clone();
        match add_adjoints(&mut with_adjoints, &facts, &sources(&module, &fixed), &values, &stops) {
            Ok(adjoints) => return Differentiated { module: with_adjoints, inlined, adjoints, ends },
            Err(NoAdjoint { node: Some(node), .. }) => {
                // Perhaps only the gradient with respect to a constant is missing.
                let kind = module.node(node).schema().map(|schema| schema.kind);
                if !kind.is_some_and(|kind| fixed.insert(kind)) {
                    stops.extend(module.node(node).results().iter().flatten());
                }
            }
            Err(NoAdjoint { node: None, .. }) => break,
        }
    }
    none(module, inlined)
}

/// The float outputs, and the values that are read without a gradient: with `decides` by any operator, else by operators whose
/// results are in `stops`.
fn ends(module: &Module, stops: &FxHashSet<Value>, decides: bool) -> Vec<End> {
    let mut seen: FxHashSet<Value> = FxHashSet::default();
    let outputs = module.graph(module.main()).outputs().iter().enumerate();
    let outputs = outputs.map(|(at, output)| End { value: output.value, output: Some(at) });
    let is_float = |end: &End| module.value(end.value).ty.dtype() == Some(DType::F32);
    let is_computed = |end: &End| module.producer(end.value).is_some();
    let mut ends: Vec<End> = outputs.filter(is_float).filter(is_computed).collect();
    let read = read_without_gradient(module, stops, decides).into_iter();
    ends.extend(read.map(|value| End { value, output: None }).filter(is_computed));
    ends.retain(|end| seen.insert(end.value));
    ends
}

/// The float inputs and the float constants of the main graph, except constants that operators in `fixed` read.
fn sources(module: &Module, fixed: &FxHashSet<OpKind>) -> Vec<Value> {
    let is_float = |value: &Value| module.value(*value).ty.dtype() == Some(DType::F32);
    let is_free = |value: &Value| {
        let mut kinds =
            module.uses(*value).map(|(node, _)| module.node(node).schema().map(|schema| schema.kind));
        kinds.all(|kind| !kind.is_some_and(|kind| fixed.contains(&kind)))
    };
    let graph = module.graph(module.main());
    let is_constant = |value: &Value| matches!(module.value(*value).def, Def::Constant(_));
    let values = graph.inputs().iter().chain(graph.constants()).copied().filter(is_float);
    values.filter(|value| !is_constant(value) || is_free(value)).collect()
}

/// Maps the values of a differentiated module to the values of the decided module that they are, or were copied from.
fn originals(decided: &Module, module: &Module, inlined: &InlinedCalls) -> FxHashMap<Value, Value> {
    let of_decided: FxHashSet<Value> = decided.graph_ids().flat_map(|graph| decided.defined(graph)).collect();
    let main = module.main();
    let mut found: FxHashMap<Value, Value> = inlined.constants.iter().copied().collect();
    for value in module.defined(main) {
        if of_decided.contains(&value) {
            found.insert(value, value);
        } else if let Some((node, slot)) = module.producer(value) {
            let source = inlined.source(node);
            let copied = (source != node).then(|| decided.node(source).result(slot as usize)).flatten();
            found.extend(copied.map(|copied| (value, copied)));
        }
    }
    found
}

/// The decided module, run for values without an adjoint.
struct Forward {
    session: Session,
}

impl Forward {
    fn new(decided: &Module, runtime: &Runtime) -> Result<Forward, Error> {
        let mut module = decided.clone();
        Ok(Forward { session: prepare(&mut module, runtime)? })
    }

    fn run(&mut self, inputs: &Inputs, to: DType) -> Result<Ranges, Error> {
        let executable = self.session.executable().clone();
        let mut seen = Seen { module: executable.module(), to, depth: 0, found: Ranges::default() };
        let ran = self.session.run_to_observed(&views(&inputs.values), Some(&mut seen), |_, _| {});
        ran.map_err(|error| of_run(self.session.module(), &error))?;
        Ok(seen.found)
    }
}

/// The values of a run of the decided module.
#[derive(Default)]
struct Ranges {
    /// The values of the main graph.
    ends: FxHashMap<Value, Scale>,
    /// The sums of the squares of the relative errors of values in bodies.
    inner: Errors,
}

/// The dims of a tensor, and the magnitude of its largest finite element.
struct Scale {
    dims: Vec<u64>,
    largest: f64,
}

impl Scale {
    /// Weights by which a relative error of the whole tensor counts: ± `relative` / (largest · √n), with signs that alternate
    /// at random. 0 if all elements are 0; `None` if the elements are too many for a tensor.
    fn weights(&self, relative: f64) -> Option<HostTensor> {
        let n: u64 = self.dims.iter().product();
        #[expect(clippy::cast_precision_loss, reason = "a weight need not be exact")]
        let size = relative / (self.largest * (n as f64).sqrt());
        #[expect(clippy::cast_possible_truncation, reason = "weights are of fp32 values")]
        let size = Some(size as f32).filter(|size| size.is_finite()).unwrap_or(0.0);
        // The sign of an element is a hash of its index, so that it is the same in every run.
        let sign = |at: u64| if (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 63) == 0 { size } else { -size };
        HostTensor::from_slice(&self.dims, &(0..n).map(sign).collect::<Vec<f32>>()).ok()
    }
}

struct Seen<'m> {
    module: &'m Module,
    to: DType,
    /// The number of bodies and functions around the running graph.
    depth: usize,
    found: Ranges,
}

impl NodeObserver for Seen<'_> {
    fn value(&mut self, node: Node, slot: usize, data: DataRef<'_>) {
        let (Some(value), Some(tensor)) = (self.module.node(node).result(slot), data.tensor()) else {
            return;
        };
        if tensor.dtype() != DType::F32 {
            return;
        }
        if self.depth > 0 {
            self.found.inner[value] += relative_error(tensor, self.to).powi(2);
            return;
        }
        let finite = tensor.f32s().into_iter().flatten().filter(|x| x.is_finite());
        let largest = finite.fold(0.0, |most: f32, x| most.max(x.abs()));
        let scale = Scale { dims: tensor.dims().to_vec(), largest: f64::from(largest) };
        self.found.ends.insert(value, scale);
    }

    fn enter(&mut self, _node: Node, _graph: ampc_ir::GraphId) {
        self.depth += 1;
    }

    fn leave(&mut self) {
        self.depth -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ampc_ir::text::{NoData, parse};
    use half::f16;

    /// The errors of values of a model with one element each are those of the chain rule.
    #[test]
    fn errors_follow_from_the_chain_rule() {
        let text = "module ir=10\nopset ai.onnx=20\n\ngraph @main {\n  input %x : f32[1]\n  const %c : f32[1] = [0.7]\n  \
                    %h = Mul(%x, %c) : f32[1] @h\n  %t = Tanh(%h) : f32[1] @t\n  %y = Mul(%t, %t) : f32[1] @y\n  \
                    output %y\n}\n";
        let decided = parse(text, &NoData).unwrap();
        let x = 1.1f32;
        let input = HostTensor::from_slice(&[1], &[x]).unwrap();
        let inputs = Inputs { values: vec![Some(Data::Tensor(input))], ..Inputs::default() };
        let weight = HostTensor::from_slice(&[1], &[3.0f32]).unwrap();
        let mut attribution = Attribution::new(&decided, DType::F16, false, &Runtime::default()).unwrap();
        let mut squares = Errors::default();
        attribution.add(&inputs, &[Some(weight)], 1.0, &mut squares).unwrap();

        let (h, c) = (x * 0.7, 0.7f32);
        let t = h.tanh();
        let rounding = |x: f32| f64::from(f16::from_f32(x).to_f32() - x);
        let slope = f64::from(1.0 - t * t);
        let (dy, dt) = (3.0, 6.0 * f64::from(t));
        let expected = [
            ("y", dy * rounding(t * t)),
            ("t", dt * rounding(t)),
            ("h", dt * slope * rounding(h)),
            ("x", dt * slope * f64::from(c) * rounding(x)),
            ("c", dt * slope * f64::from(x) * rounding(c)),
        ];
        for (name, change) in expected {
            let mut values = decided.defined(decided.main());
            let value = values.find(|&value| ampc_ir::verify::name_of(&decided, value) == name).unwrap();
            // Of one element, the change on the data and that of independent roundings are the same.
            let (error, wanted) = (squares[value].sqrt(), change.abs() * 2f64.sqrt());
            // A rounding to fp16 is about 2⁻¹³: an ulp of fp32, 2⁻²⁴, by which another tanh may differ, changes it by 2⁻¹⁰.
            assert!((error - wanted).abs() <= 1e-2 * wanted, "{name}: {error:e}, expected {wanted:e}");
        }
    }
}
