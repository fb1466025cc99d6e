//! Lost updates: weight elements that keep their value although their gradient is not 0.
//!
//! If an update is smaller than half a unit in the last place of the weight, rounding gives the old weight again. For
//! fp16 the threshold is 2^-12 to 2^-11 of the weight, for bf16 2^-9 to 2^-8, for fp32 2^-25 to 2^-24. This is why
//! master weights are fp32 (Micikevicius et al., "Mixed Precision Training", arXiv 1710.03740, section 3.1).

use crate::error::Error;
use crate::execute::trainer::Trainer;
use crate::execute::training::histogram::for_each_number;
use ampc_ir::module::Def;
use ampc_ir::op::optimizers;
use ampc_ir::verify::name_of;
use ampc_ir::{Module, Node, Value};
use ampc_passes::step::{StateKind, states_of};
use ampc_runtime::session::NodeObserver;
use ampc_runtime::{DataRef, HostTensor, TensorRef};
use rustc_hash::FxHashMap;

/// Counts the updates of one step, and the lost updates.
///
/// [`begin`](Self::begin) copies the weights before a step, the step is observed, and [`end`](Self::end) compares.
/// Weights that a custom optimizer updates are not counted.
#[derive(Debug)]
pub struct LostUpdates {
    weights: Vec<Weight>,
    /// For each (node, result slot) that is a weight gradient: indices into `weights`.
    of_gradients: FxHashMap<(Node, usize), Vec<usize>>,
    /// The number of elements with a gradient that is not 0.
    pub updates: u64,
    /// The number of these elements that kept their value.
    pub lost: u64,
}

#[derive(Debug)]
struct Weight {
    /// The state input of the weight.
    name: String,
    before: Option<HostTensor>,
    /// For each element, true if its gradient is not 0.
    moves: Vec<bool>,
}

impl LostUpdates {
    /// Empty counts for the weights of a trainer's step.
    ///
    /// # Errors
    /// If the step does not declare its states.
    pub fn new(trainer: &Trainer) -> Result<LostUpdates, Error> {
        let step = trainer.module();
        let outputs = step.graph(step.main()).outputs();
        let makers: FxHashMap<String, Value> =
            outputs.iter().map(|output| (name_of(step, output.value), output.value)).collect();
        let mut found =
            LostUpdates { weights: Vec::new(), of_gradients: FxHashMap::default(), updates: 0, lost: 0 };
        let states = states_of(step).map_err(|error| Error::Pass(error.into()))?;
        for state in states.into_iter().filter(|state| state.kind == StateKind::Weight) {
            let next = makers.get(&state.output).copied();
            let Some(gradient) = next.and_then(|next| gradient_of(step, next)) else { continue };
            if let Def::Result { node, slot } = step.value(gradient).def {
                let at = found.weights.len();
                found.of_gradients.entry((node, slot as usize)).or_default().push(at);
                found.weights.push(Weight { name: state.input, before: None, moves: Vec::new() });
            }
        }
        Ok(found)
    }

    /// Copies the weights before a step.
    ///
    /// # Errors
    /// If the allocation of copies fails.
    pub fn begin(&mut self, trainer: &mut Trainer) -> Result<(), Error> {
        (self.updates, self.lost) = (0, 0);
        let views: FxHashMap<&str, TensorRef<'_>> = trainer.state_views()?.into_iter().collect();
        for weight in &mut self.weights {
            weight.moves.clear();
            let view = views.get(weight.name.as_str());
            let before = view.map(|view| view.to_host()).transpose();
            weight.before =
                before.map_err(|error| crate::execute::inputs::no_memory(&weight.name, &error))?;
        }
        Ok(())
    }

    /// Compares and counts after the step.
    ///
    /// # Errors
    /// If the state cannot be read from the device.
    pub fn end(&mut self, trainer: &mut Trainer) -> Result<(), Error> {
        let views: FxHashMap<&str, TensorRef<'_>> = trainer.state_views()?.into_iter().collect();
        for Weight { name, before, moves } in &mut self.weights {
            let (Some(before), Some(after)) = (before.take(), views.get(name.as_str())) else { continue };
            let (Some(old), Some(new)) = (before.view().bytes(), after.bytes()) else { continue };
            let size = old.len() / moves.len().max(1);
            let elements = old.chunks_exact(size.max(1)).zip(new.chunks_exact(size.max(1)));
            for ((old, new), _) in elements.zip(&*moves).filter(|(_, moves)| **moves) {
                self.updates += 1;
                self.lost += u64::from(old == new);
            }
        }
        Ok(())
    }
}

/// The gradient with which the optimizer updates the weight whose next value is `next`.
fn gradient_of(step: &Module, next: Value) -> Option<Value> {
    let (maker, _) = step.producer(next)?;
    let data = step.node(maker);
    data.operand(optimizers::optimizer_operand(data.schema()?, optimizers::GRADIENT)?)
}

impl NodeObserver for LostUpdates {
    fn value(&mut self, node: Node, slot: usize, data: DataRef<'_>) {
        let Some((of, gradient)) = self.of_gradients.get(&(node, slot)).zip(data.tensor()) else { return };
        for &at in of {
            let moves = &mut self.weights[at].moves;
            moves.clear();
            for_each_number(&gradient, |number| moves.push(number != 0.0));
        }
    }
}
