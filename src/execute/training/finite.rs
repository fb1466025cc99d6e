//! Numbers that are not finite: the training step in which they first appear, and the node that produces the first of
//! them.

use crate::error::Error;
use crate::execute::trainer::Trainer;
use ampc_ir::module::Def;
use ampc_ir::op::OpKind;
use ampc_ir::verify::name_of;
use ampc_ir::{GraphId, Module, Node, Payload, TensorData, Value};
use ampc_passes::Paths;
use ampc_passes::step::inference::forward_of;
use ampc_passes::step::{Phase, StateKind, phase_of, states_of};
use ampc_runtime::session::{NodeObserver, Watch};
use ampc_runtime::{DataRef, HostTensor, TensorRef};
use half::{bf16, f16};
use rustc_hash::{FxHashMap, FxHashSet};
use std::time::Duration;

/// True if a tensor has an infinity or a NaN. Tensors of integers have none.
pub(super) fn has_non_finite(tensor: &TensorRef<'_>) -> bool {
    if let Ok(numbers) = tensor.as_slice::<f32>() {
        return is_any(numbers, |number| number.to_bits() & 0x7f80_0000 == 0x7f80_0000);
    }
    if let Ok(numbers) = tensor.as_slice::<f16>() {
        return is_any(numbers, |number| number.to_bits() & 0x7c00 == 0x7c00);
    }
    if let Ok(numbers) = tensor.as_slice::<bf16>() {
        return is_any(numbers, |number| number.to_bits() & 0x7f80 == 0x7f80);
    }
    tensor.dtype().is_float()
        && tensor.f64s().is_ok_and(|mut numbers| numbers.any(|number| !number.is_finite()))
}

/// True if `is` holds for a number. Blocks are checked without branches, several numbers at a time.
fn is_any<T: Copy>(numbers: &[T], is: impl Fn(T) -> bool) -> bool {
    const BLOCK: usize = 1024;
    numbers.chunks(BLOCK).any(|block| block.iter().fold(false, |found, &number| found | is(number)))
}

/// The largest magnitude of a tensor's elements, ignoring NaN; 0 without elements.
fn largest(tensor: &TensorRef<'_>) -> f64 {
    match (tensor.as_slice::<f32>(), tensor.f64s()) {
        (Ok(numbers), _) => f64::from(numbers.iter().fold(0f32, |most, number| most.max(number.abs()))),
        (_, Ok(numbers)) => numbers.fold(0f64, |most, number| most.max(number.abs())),
        _ => 0.0,
    }
}

/// The weight with the element of the largest magnitude, and that magnitude.
pub(super) fn largest_weight(trainer: &mut Trainer) -> Result<Option<(String, f64)>, Error> {
    let weights = weights_of(trainer.module());
    let views = trainer.state_views()?.into_iter().filter(|(name, _)| weights.contains_key(*name));
    let sized = views.map(|(name, view)| (name.to_owned(), largest(&view)));
    Ok(sized.max_by(|a, b| a.1.total_cmp(&b.1)))
}

/// The names of a step's weights, by the names of the outputs with their next values.
fn weights_of(step: &Module) -> FxHashMap<String, String> {
    let states = states_of(step).unwrap_or_default().into_iter();
    states.filter(|state| state.kind == StateKind::Weight).map(|state| (state.input, state.output)).collect()
}

/// Observes the loss, the gradients of weights and the next weights in every step, and stops a step before its first
/// update if the loss is NaN and the step would be taken.
#[derive(Debug)]
pub(super) struct StepWatch {
    loss: Option<(Node, usize)>,
    found: Option<(Node, usize)>,
    gradients: FxHashSet<(Node, usize)>,
    /// The name of the weight whose next value is a result.
    weights: FxHashMap<(Node, usize), String>,
    watch: Watch,
    seen: Seen,
}

/// Findings of one step.
#[derive(Clone, Default, Debug)]
pub(super) struct Seen {
    loss_is_nan: bool,
    /// True if the gradient check found a number that is not finite; `None` before it has run.
    is_skipped: Option<bool>,
    /// The node that produced the first gradient that is not finite.
    pub(super) gradient: Option<Node>,
    /// The first weight whose next value is not finite, and the node that produced it.
    pub(super) weight: Option<(Node, String)>,
    /// True if the step was stopped before its first update.
    pub(super) is_stopped: bool,
}

impl StepWatch {
    pub(super) fn new(trainer: &mut Trainer) -> Result<StepWatch, Error> {
        let executable = trainer.executable().clone();
        let step = executable.module();
        let main = step.main();
        let maker = |value: Value| match step.value(value).def {
            Def::Result { node, slot } => Some((node, slot as usize)),
            _ => None,
        };
        let outputs: FxHashMap<String, Value> = step
            .graph(main)
            .outputs()
            .iter()
            .map(|output| (name_of(step, output.value), output.value))
            .collect();
        let of_output = |name: &str| outputs.get(name).and_then(|&value| maker(value));
        let loss = forward_of(step).ok().and_then(|forward| forward.loss);
        let is_check =
            |&node: &Node| step.node(node).schema().is_some_and(|schema| schema.kind == OpKind::GradCheck);
        let found = step.nodes(main).find(is_check).map(|node| (node, 0));
        let mut gradients = FxHashSet::default();
        // The gradient check covers the gradients itself.
        let updates = step.nodes(main).filter(|&node| phase_of(step, node) == Some(Phase::Update));
        for node in updates.filter(|_| found.is_none()) {
            let read = step.node(node).operands().iter().flatten().filter_map(|&value| maker(value));
            gradients.extend(read.filter(|&(node, _)| phase_of(step, node) == Some(Phase::Backward)));
        }
        // A weight with an infinity in the initial state, such as a mask, may keep it.
        let views: FxHashMap<&str, TensorRef<'_>> = trainer.state_views()?.into_iter().collect();
        let is_finite = |name: &str| views.get(name).is_none_or(|view| !has_non_finite(view));
        let weights = weights_of(step).into_iter().filter(|(name, _)| is_finite(name));
        let weights: FxHashMap<(Node, usize), String> =
            weights.filter_map(|(name, next)| Some((of_output(&next)?, name))).collect();
        let loss = loss.and_then(|name| of_output(&name));
        let makers = loss.iter().chain(&found).chain(&gradients).chain(weights.keys());
        let value = |&(node, slot): &(Node, usize)| step.node(node).results().get(slot).copied().flatten();
        let watch = Watch::values(makers.filter_map(value));
        Ok(StepWatch { loss, found, gradients, weights, watch, seen: Seen::default() })
    }

    /// Begins another step.
    pub(super) fn begin(&mut self) {
        self.seen = Seen::default();
    }

    pub(super) fn seen(&self) -> &Seen {
        &self.seen
    }
}

impl NodeObserver for StepWatch {
    fn watch(&self) -> Watch {
        self.watch.clone()
    }

    fn value(&mut self, node: Node, slot: usize, data: DataRef<'_>) {
        let Some(tensor) = data.tensor() else { return };
        let at = (node, slot);
        if self.loss == Some(at) {
            self.seen.loss_is_nan = tensor.first_f64().is_some_and(f64::is_nan);
        }
        if self.found == Some(at) {
            self.seen.is_skipped = tensor.first_f64().map(|found| found != 0.0);
        }
        if self.seen.gradient.is_none() && self.gradients.contains(&at) && has_non_finite(&tensor) {
            self.seen.gradient = Some(node);
        }
        if self.seen.weight.is_none()
            && let Some(name) = self.weights.get(&at)
            && has_non_finite(&tensor)
        {
            self.seen.weight = Some((node, name.clone()));
        }
    }

    fn permits_updates(&mut self) -> bool {
        let is_taken = self.found.is_none() || self.seen.is_skipped == Some(false);
        self.seen.is_stopped |= self.seen.loss_is_nan && is_taken;
        !self.seen.is_stopped
    }
}

/// Finds the first node, in program order, with a result that is not finite although its operands are finite.
#[derive(Debug)]
pub(super) struct FirstNonFinite {
    module: Module,
    /// The values that are not finite.
    bad: FxHashSet<Value>,
    /// For each nested running graph, true if it received a value that is not finite.
    inside: Vec<bool>,
    found: Option<(Node, Value)>,
    permits_updates: bool,
}

impl FirstNonFinite {
    /// Observes a step of a trainer on a batch, with or without its updates.
    pub(super) fn new(
        trainer: &mut Trainer,
        batch: &[(&str, &HostTensor)],
        permits_updates: bool,
    ) -> Result<FirstNonFinite, Error> {
        let module = trainer.module().clone();
        let inputs: FxHashMap<String, Value> = module
            .graph(module.main())
            .inputs()
            .iter()
            .map(|&value| (name_of(&module, value), value))
            .collect();
        let states = trainer.state_views()?.into_iter();
        let given = batch.iter().map(|(name, tensor)| (*name, tensor.view()));
        let bad = states.chain(given).filter(|(_, view)| has_non_finite(view));
        let bad = bad.filter_map(|(name, _)| inputs.get(name).copied()).collect();
        Ok(FirstNonFinite { module, bad, inside: Vec::new(), found: None, permits_updates })
    }

    /// True if a value, which may be a constant, is not finite.
    fn is_bad(&self, value: Value) -> bool {
        let has_bad = |payload: &Payload| payload.dense().is_some_and(|data| constant_has_non_finite(data));
        self.bad.contains(&value)
            || match &self.module.value(value).def {
                Def::Input { default: Some(payload), .. } => has_bad(payload),
                _ => self.module.constant(value).is_some_and(has_bad),
            }
    }

    fn reads_bad(&self, node: Node) -> bool {
        self.module.node(node).operands().iter().flatten().any(|&value| self.is_bad(value))
    }

    /// A description of the node, with its path and the value, if it belongs to the forward or backward part;
    /// otherwise of the step's inputs that are not finite, with the node that produces the first of them.
    pub(super) fn told(&self) -> Option<String> {
        let module = &self.module;
        let is_update = |&(node, _): &(Node, Value)| phase_of(module, node) == Some(Phase::Update);
        match self.found.filter(|found| !is_update(found)) {
            Some(found) => Some(self.told_of(found)),
            None => self.told_of_inputs().or_else(|| self.found.map(|found| self.told_of(found))),
        }
    }

    fn told_of(&self, (node, value): (Node, Value)) -> String {
        format!(
            "{} is the first node whose result (`{}`) is not finite though its operands are",
            node_in_words(&self.module, node),
            name_of(&self.module, value)
        )
    }

    fn told_of_inputs(&self) -> Option<String> {
        let module = &self.module;
        let inputs = module.graph(module.main()).inputs().iter().filter(|value| self.bad.contains(value));
        let names: Vec<String> = inputs.map(|&value| name_of(module, value)).collect();
        let first = names.first()?;
        let states = states_of(module).unwrap_or_default();
        let outputs = module.graph(module.main()).outputs().iter().map(|output| output.value);
        let next = states
            .iter()
            .find(|state| state.input == *first)
            .and_then(|state| outputs.into_iter().find(|&output| name_of(module, output) == state.output));
        let maker = next.and_then(|next| module.producer(next)).map_or_else(String::new, |(node, _)| {
            format!("; {} makes the next value of `{first}`", node_in_words(module, node))
        });
        let more = if names.len() > 1 { format!(" and {} more", names.len() - 1) } else { String::new() };
        Some(format!("`{first}`{more} had numbers that are not finite before the first node{maker}"))
    }
}

/// The operator and path of a node.
pub(super) fn node_in_words(module: &Module, node: Node) -> String {
    format!("{} `{}`", crate::error::findings::op_of(module, node), Paths::of(module).path(node))
}

fn constant_has_non_finite(data: &TensorData) -> bool {
    data.dtype().is_float() && HostTensor::from_data(data).is_ok_and(|tensor| has_non_finite(&tensor.view()))
}

impl NodeObserver for FirstNonFinite {
    fn value(&mut self, node: Node, slot: usize, data: DataRef<'_>) {
        let Some(&Some(value)) = self.module.node(node).results().get(slot) else { return };
        if !data.tensor().is_some_and(|tensor| has_non_finite(&tensor)) {
            self.bad.remove(&value);
            return;
        }
        if self.found.is_none() && !self.inside.contains(&true) && !self.reads_bad(node) {
            self.found = Some((node, value));
        }
        self.bad.insert(value);
    }

    fn enter(&mut self, node: Node, _: GraphId) {
        let is_bad = self.reads_bad(node);
        self.inside.push(is_bad);
    }

    fn leave(&mut self) {
        self.inside.pop();
    }

    fn permits_updates(&mut self) -> bool {
        self.permits_updates
    }
}

/// Combines the observers of a step.
pub(super) struct Observers<'a, 'o> {
    pub(super) watch: &'a mut StepWatch,
    pub(super) first: Option<&'a mut FirstNonFinite>,
    pub(super) other: Option<&'o mut (dyn NodeObserver + Send)>,
}

impl Observers<'_, '_> {
    /// The observers of every value.
    fn others(&mut self) -> impl Iterator<Item = &mut dyn NodeObserver> {
        let first = self.first.as_deref_mut().map(|first| first as &mut dyn NodeObserver);
        let other = self.other.as_deref_mut().map(|other| other as &mut dyn NodeObserver);
        first.into_iter().chain(other)
    }
}

impl NodeObserver for Observers<'_, '_> {
    fn watch(&self) -> Watch {
        let first = self.first.as_deref().map(NodeObserver::watch);
        let other = self.other.as_deref().map(NodeObserver::watch);
        first.into_iter().chain(other).fold(self.watch.watch(), Watch::and)
    }
    fn value(&mut self, node: Node, slot: usize, data: DataRef<'_>) {
        self.watch.value(node, slot, data);
        self.others().for_each(|observer| observer.value(node, slot, data));
    }
    fn ran(&mut self, nodes: &[Node]) {
        self.others().for_each(|observer| observer.ran(nodes));
    }
    fn wants_times(&self) -> bool {
        self.other.as_deref().is_some_and(NodeObserver::wants_times)
    }
    fn took(&mut self, nodes: &[Node], time: Duration) {
        self.others().for_each(|observer| observer.took(nodes, time));
    }
    fn enter(&mut self, node: Node, graph: GraphId) {
        self.others().for_each(|observer| observer.enter(node, graph));
    }
    fn leave(&mut self) {
        self.others().for_each(NodeObserver::leave);
    }
    fn permits_updates(&mut self) -> bool {
        self.watch.permits_updates() && self.others().all(NodeObserver::permits_updates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ampc_ir::DType;

    /// One infinity or NaN among numbers that fill more than a block, in every float type.
    #[test]
    fn infinities_and_nans_are_found() {
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            let has = |numbers: &[f32]| {
                let data =
                    TensorData::from_f32(&[numbers.len() as u64], numbers).expect("as many as the shape has");
                let data = data.converted(ampc_ir::convert::Conversion { to: dtype, clamp: false });
                has_non_finite(&HostTensor::from_data(&data).expect("it is small").view())
            };
            let finite = vec![-60000.0; 3000];
            assert!(!has(&finite), "{dtype}");
            for (at, wrong) in [(0, f32::NAN), (1500, f32::INFINITY), (2999, f32::NEG_INFINITY)] {
                let mut numbers = finite.clone();
                numbers[at] = wrong;
                assert!(has(&numbers), "{dtype} {at}");
            }
        }
    }
}
