//! The nodes after the gradients, in the order that the documentation of [`update`](super) shows.

use super::weights::Weight;
use super::{RATE, Update};
use crate::graph::marks::{Mark, Phase, Purpose, role_of};
use crate::graph::roles::with_role;
use crate::pass::training_error::{RuleError, UpdateError};
use crate::training::build::Build;
use crate::training::inputs::expose;
use crate::training::names::{Renamed, give_gradient, name_or_note, state_input};
use crate::training::step::dropout;
use crate::training::step::entry::StateKind;
use crate::training::step::loss_scale::{Arith, Scaler};
use crate::training::step::optimizer::custom::{CustomOptimizer, Shared, UpdateNodes, Updated};
use crate::training::step::optimizer::{OptimizerKind, OptimizerTemplate, double};
use crate::training::step::state::{State, zeros_like};
use crate::training::step::statistics::{STATISTICS, Statistics};
use ampc_ir::edit::Position;
use ampc_ir::inserter::InsertError;
use ampc_ir::op::{OpKind, optimizers};
use ampc_ir::{AttrValue, DType, Inserter, Module, Node, NodeSpec, Shape, Symbol, TensorData, Type, Value};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Builds the update part of a training step: gradient check, optimizers, next states.
pub(super) struct UpdateBuilder<'a, 'm> {
    pub(super) update: &'a Update,
    pub(super) inserter: Inserter<'m>,
    states: Vec<State>,
    renamed: Vec<Renamed>,
    /// The result of [`proceeds`](Self::proceeds).
    proceeds: Option<Value>,
}

/// A parameter that is updated.
#[derive(Clone, Copy)]
pub(super) struct Trained {
    pub(super) parameter: Value,
    /// Its gradient, of its shape, times the loss scale.
    pub(super) gradient: Value,
    pub(super) decay: f64,
}

/// Factors that apply to all gradients, and the flag for gradients that are not finite.
#[derive(Clone, Copy)]
struct GradientScaling {
    /// 1 / loss scale, or 1: a scalar of f32.
    inverse: Value,
    /// The factor of gradients: [`inverse`](Self::inverse) times the factor that clips them.
    mult: Value,
    /// 1.0 if any gradient is infinite or NaN, else 0.0: a scalar of f32. `None` without a loss scale, even if gradients
    /// are checked in order to be clipped.
    found: Option<Value>,
}

/// The scalars that the operators of optimizers take, in their order.
struct Scalars {
    rate: Value,
    mult: Value,
    step_count: Value,
    found: Value,
}

/// A node of an optimizer without `weight_decay`, and the states that its results from 1 on update.
struct OptimizerNode {
    spec: NodeSpec,
    states: Vec<(Value, StateKind)>,
    /// Which result is the low copy: the one after all states that the operator can have.
    low_slot: usize,
}

impl<'a, 'm> UpdateBuilder<'a, 'm> {
    pub(super) fn new(update: &'a Update, module: &'m mut Module) -> UpdateBuilder<'a, 'm> {
        let main = module.main();
        UpdateBuilder {
            update,
            inserter: Inserter::new(module, main, Position::Last),
            states: Vec::new(),
            renamed: Vec::new(),
            proceeds: None,
        }
    }

    /// Adds all nodes. Returns the states of the step, in the order of their outputs, and the names that were not free.
    pub(super) fn build(
        mut self,
        trained: &[Trained],
        scale: Option<Value>,
    ) -> Result<(Vec<State>, Vec<Renamed>), UpdateError> {
        let scaling = self.check(trained, scale)?;
        if self.update.optimizer.kind == OptimizerKind::None {
            for trained in trained {
                give_gradient(self.inserter.module, trained.parameter, trained.gradient)?;
            }
        } else {
            self.optimize_all(trained, scaling)?;
        }
        self.erase_unread(scaling.inverse);
        self.running_statistics(scaling.found)?;
        self.random_numbers()?;
        self.next_scale(scale, scaling.found)?;
        if !self.update.checks_gradients(scale) {
            self.move_optimizers_early();
        }
        Ok((self.states, self.renamed))
    }

    /// Moves every optimizer to right after its gradient, or after the last reader of its weight if that comes later. Only
    /// without a gradient check: no gradient then has to live until all are computed.
    fn move_optimizers_early(&mut self) {
        let module = &mut *self.inserter.module;
        let nodes: Vec<Node> = module.nodes(module.main()).collect();
        let places: FxHashMap<Node, usize> = nodes.iter().copied().zip(0..).collect();
        let mut written: BTreeMap<Node, Vec<Value>> = BTreeMap::new();
        for state in &self.states {
            let maker = module.producer(state.next).map(|(node, _)| node);
            let is_optimizer =
                |&node: &Node| module.node(node).schema().is_some_and(optimizers::is_optimizer);
            if let Some(node) = maker.filter(is_optimizer) {
                written.entry(node).or_default().push(state.input);
            }
        }
        // The last optimizer that was moved to after a node: the next one goes after that.
        let mut after: FxHashMap<Node, Node> = FxHashMap::default();
        for (node, inputs) in written {
            let makers = module.node(node).operands().iter().flatten();
            let makers = makers.filter_map(|&value| module.producer(value)).map(|(maker, _)| maker);
            let makers: Vec<Node> = makers.collect();
            let readers = inputs.iter().flat_map(|&input| module.uses(input)).map(|(reader, _)| reader);
            // A weight that is stored low: its cast goes with the optimizer.
            let cast = makers.iter().copied().find(|&maker| widens(module, maker));
            let before = makers.iter().copied().chain(readers);
            let before = before.filter(|&other| other != node && Some(other) != cast);
            let Some(last) = before.max_by_key(|other| places[other]) else { continue };
            let at = after.insert(last, node).unwrap_or(last);
            module.move_node(node, Position::After(at));
            if let Some(cast) = cast {
                module.move_node(cast, Position::Before(node));
            }
        }
    }

    /// Adds the gradient check, and the factor that clips gradients.
    fn check(&mut self, trained: &[Trained], scale: Option<Value>) -> Result<GradientScaling, InsertError> {
        let inverse = match scale {
            Some(scale) => self.op(OpKind::Reciprocal, &[scale], Purpose::Unscale)?,
            None => self.inserter.scalar("inv_scale", DType::F32, 1.0)?,
        };
        let mut scaling = GradientScaling { inverse, mult: inverse, found: None };
        if !self.update.checks_gradients(scale) {
            return Ok(scaling);
        }
        let gradients = trained.iter().map(|trained| trained.gradient);
        let operands: Vec<Value> = std::iter::once(inverse).chain(gradients).collect();
        let spec = NodeSpec::new(OpKind::GradCheck, &operands);
        let found = if let Some(max_norm) = self.update.clip_norm {
            let [found, squares] = self.insert(spec, Purpose::GradCheck)?;
            let spec = NodeSpec::new(OpKind::ClipCoef, &[squares, inverse])
                .attr("max_norm", double(max_norm))
                .attr("epsilon", double(1e-6));
            let [clipped, norm] = self.insert(spec, Purpose::Clip)?;
            scaling.mult = clipped;
            self.output("grad_norm", norm);
            found
        } else {
            let [found] = self.insert(spec, Purpose::GradCheck)?;
            found
        };
        if scale.is_some() {
            scaling.found = Some(found);
            self.output("found_inf", found);
        }
        Ok(scaling)
    }

    /// The optimizers of all parameters, and the number of steps.
    fn optimize_all(&mut self, trained: &[Trained], scaling: GradientScaling) -> Result<(), UpdateError> {
        let name = self.name(RATE);
        let module = &mut *self.inserter.module;
        let main = module.main();
        let rate = module.add_input(main, name, Type::tensor(DType::F32, Shape::scalar()), None);
        let step_count = self.state("step", integer(DType::I64, 0));
        if let OptimizerKind::Custom(custom) = &self.update.optimizer.kind {
            let proceeds = self.proceeds(scaling.found)?;
            let is_scaled = scaling.found.is_some() || self.update.clip_norm.is_some();
            let mult = is_scaled.then_some(scaling.mult);
            let shared = Shared { rate, step: step_count, mult, proceeds };
            self.customize(custom, trained, shared)?;
        } else {
            let found = match scaling.found {
                Some(found) => found,
                None => self.inserter.scalar("found_inf", DType::F32, 0.0)?,
            };
            let scalars = Scalars { rate, mult: scaling.mult, step_count, found };
            for &trained in trained {
                self.optimize_one(trained, &scalars)?;
            }
        }
        let next = self.next_step(step_count, scaling.found)?;
        self.states.push(State::new(step_count, next, StateKind::Step));
        Ok(())
    }

    pub(super) fn insert<const N: usize>(
        &mut self,
        spec: NodeSpec,
        purpose: Purpose,
    ) -> Result<[Value; N], InsertError> {
        let results = self.inserter.insert(spec)?;
        Mark::update(purpose).put_on_maker(self.inserter.module, &results);
        Ok(results)
    }

    fn insert_n(&mut self, spec: NodeSpec, n: usize, purpose: Purpose) -> Result<Vec<Value>, InsertError> {
        let results = self.inserter.insert_n(spec, n)?;
        Mark::update(purpose).put_on_maker(self.inserter.module, &results);
        Ok(results)
    }

    fn op(&mut self, kind: OpKind, operands: &[Value], purpose: Purpose) -> Result<Value, InsertError> {
        let [value] = self.insert(NodeSpec::new(kind, operands), purpose)?;
        Ok(value)
    }

    /// A name for an input or output.
    fn name(&mut self, wanted: &str) -> Symbol {
        name_or_note(self.inserter.module, wanted, &mut self.renamed)
    }

    /// A new input with a value to begin with.
    pub(super) fn state(&mut self, name: &str, data: TensorData) -> Value {
        let name = self.name(name);
        state_input(self.inserter.module, name, data)
    }

    fn output(&mut self, name: &str, value: Value) {
        let name = self.name(name);
        let module = &mut *self.inserter.module;
        let main = module.main();
        module.set_value_name(value, name);
        let declared = module.value(value).ty.clone();
        module.add_output(main, value, declared);
    }

    /// Erases a constant that turned out not to be needed.
    fn erase_unread(&mut self, value: Value) {
        let module = &mut *self.inserter.module;
        if module.constant(value).is_some() && module.uses(value).next().is_none() {
            module.erase_constant(value);
        }
    }

    /// A scalar of bool: true if all gradients are finite, so that the step is taken. `None` without a loss scale.
    fn proceeds(&mut self, found: Option<Value>) -> Result<Option<Value>, InsertError> {
        if let (Some(found), None) = (found, self.proceeds) {
            let zero = self.inserter.scalar("zero", DType::F32, 0.0)?;
            self.proceeds = Some(self.op(OpKind::Equal, &[found, zero], Purpose::GradCheck)?);
        }
        Ok(self.proceeds)
    }

    /// Adds the states of a parameter: the weight, the states of the optimizer, and the low copy if it exists.
    /// `low` is the next weight rounded to 16 bits: the next low copy, or the next value of the parameter
    /// itself if that is stored low.
    fn push_weight_states(
        &mut self,
        (parameter, weight): (Value, Weight),
        (next, low): (Value, Option<Value>),
        states: impl IntoIterator<Item = (Value, Value, StateKind)>,
    ) {
        let (next, copy) = if weight.is_stored_low() { (low.unwrap_or(next), None) } else { (next, low) };
        self.states.push(State::new(parameter, next, StateKind::Weight));
        let states = states.into_iter();
        self.states.extend(states.map(|(input, next, kind)| State::of(parameter, input, next, kind)));
        let copy = weight.low.zip(copy);
        self.states.extend(copy.map(|(input, next)| State::of(parameter, input, next, StateKind::Low)));
    }

    /// All parameters, by an optimizer of the user.
    fn customize(
        &mut self,
        custom: &CustomOptimizer,
        trained: &[Trained],
        shared: Shared,
    ) -> Result<(), UpdateError> {
        let mut weights = Vec::with_capacity(trained.len());
        for trained in trained {
            weights.push(self.weight_of(trained.parameter)?);
        }
        let mut updates = Vec::with_capacity(trained.len());
        let mut b = UpdateNodes::new(self.inserter.module, shared);
        for (&Trained { parameter, gradient, decay }, weight) in trained.iter().zip(weights) {
            let wrong = |module: &Module, error: &RuleError| UpdateError::Custom {
                name: custom.name().to_owned(),
                parameter: ampc_ir::verify::name_of(module, parameter),
                what: error.to_string(),
            };
            let updated = b.enter(parameter, weight.wide, gradient, decay).and_then(|()| custom.add(&mut b));
            let Updated { next, states } = updated.map_err(|error| wrong(b.module(), &error))?;
            let mut low = None;
            if let Some(copy) = weight.low {
                let to = b.dtype(copy).unwrap_or(DType::F32);
                low = Some(b.cast(next, to).map_err(|error| wrong(b.module(), &error))?);
            }
            updates.push(((parameter, weight), (next, low), states));
        }
        self.renamed.extend(b.into_renamed());
        for (weight, next, states) in updates {
            let states = states.into_iter().map(|own| (own.input, own.next, StateKind::State));
            self.push_weight_states(weight, next, states);
        }
        Ok(())
    }

    /// One parameter: its optimizer, its states, and its low copy.
    fn optimize_one(&mut self, trained: Trained, scalars: &Scalars) -> Result<(), InsertError> {
        let parameter = trained.parameter;
        let weight = self.weight_of(parameter)?;
        let trained = Trained { parameter: weight.wide, ..trained };
        let name = ampc_ir::verify::name_of(self.inserter.module, parameter);
        let Some(template) = self.update.optimizer.kind.template(self.update.scaler.skips()) else {
            return Ok(());
        };
        let node = self.optimizer_node(&template, &name, trained, scalars)?;
        let spec = node.spec.attr("weight_decay", double(trained.decay));
        let results = self.insert_n(spec, 1 + node.states.len(), Purpose::MasterWeight)?;
        let low = weight.low.map(|low| self.write_low(results[0], low, node.low_slot));
        let states = node.states.into_iter().zip(&results[1..]);
        let states = states.map(|((input, kind), &next)| (input, next, kind));
        self.push_weight_states((parameter, weight), (results[0], low), states);
        Ok(())
    }

    /// The node of an optimizer for the parameter `name`, with its states. Its operands are those of the schema.
    fn optimizer_node(
        &mut self,
        template: &OptimizerTemplate,
        name: &str,
        trained: Trained,
        scalars: &Scalars,
    ) -> Result<OptimizerNode, InsertError> {
        let schema = self.inserter.schema(template.kind)?;
        let mut states = Vec::new();
        let mut operands = Vec::with_capacity(schema.inputs.len());
        for formal in schema.inputs {
            let state = template.states.iter().find(|(state, _)| *state == formal.name);
            operands.push(match formal.name {
                optimizers::WEIGHT => Some(trained.parameter),
                optimizers::GRADIENT => Some(trained.gradient),
                optimizers::RATE => Some(scalars.rate),
                optimizers::MULT => Some(scalars.mult),
                optimizers::STEP => Some(scalars.step_count),
                optimizers::FOUND_INF => Some(scalars.found),
                _ => state.map(|&(prefix, kind)| {
                    let value = self.zeros(prefix, name, trained.parameter);
                    states.push((value, kind));
                    value
                }),
            });
        }
        while operands.last() == Some(&None) {
            operands.pop();
        }
        let spec = NodeSpec::new(template.kind, &[]).operands(&operands);
        let spec = template.attrs.iter().fold(spec, |spec, (name, value)| spec.attr(*name, value.clone()));
        let low_slot = optimizers::low_copy(schema).expect("an optimizer can write a low copy");
        Ok(OptimizerNode { spec, states, low_slot })
    }

    /// A state `PREFIX.NAME`, which begins with zeros of the type of a weight.
    fn zeros(&mut self, prefix: &str, name: &str, weight: Value) -> Value {
        let data = zeros_like(&self.inserter.module.value(weight).ty).expect("its extents are known");
        self.state(&format!("{prefix}.{name}"), data)
    }

    /// The number of steps taken: grows by one, unless the step is skipped.
    fn next_step(&mut self, step_count: Value, found: Option<Value>) -> Result<Value, InsertError> {
        let taken = match self.proceeds(found)? {
            None => self.inserter.constant("one", integer(DType::I64, 1)),
            Some(proceeds) => {
                let spec = NodeSpec::new(OpKind::Cast, &[proceeds])
                    .attr("to", AttrValue::Int(i64::from(DType::I64.number())));
                let [taken] = self.insert(spec, Purpose::Step)?;
                taken
            }
        };
        self.op(OpKind::Add, &[step_count, taken], Purpose::Step)
    }

    /// Running statistics of BatchNormalization while it trains: states, which a step that is skipped leaves alone.
    fn running_statistics(&mut self, found: Option<Value>) -> Result<(), InsertError> {
        let skips = self.update.scaler.skips();
        let updated = Statistics::of(self.inserter.module).updated;
        let old: Vec<Value> = updated.iter().map(|&(old, _)| old).collect();
        let inputs = expose(self.inserter.module, &old, false)?;
        for (input, (_, new)) in inputs.into_iter().zip(updated) {
            let proceeds = if skips { self.proceeds(found)? } else { None };
            // The statistic is read after a node has read it: to keep it if the step is skipped, or by another node.
            if proceeds.is_some() || self.norms_of(input).len() > 1 {
                self.copy_statistic_for_norms(input)?;
            }
            let next = match proceeds {
                None => self.op(OpKind::Identity, &[new], Purpose::RunningStatistics)?,
                Some(proceeds) => {
                    self.op(OpKind::Where, &[proceeds, new, input], Purpose::RunningStatistics)?
                }
            };
            self.states.push(State::new(input, next, StateKind::Buffer));
        }
        Ok(())
    }

    /// The nodes that normalize with a running statistic, each with the slot that reads it.
    fn norms_of(&self, statistic: Value) -> Vec<(Node, u32)> {
        let module = &*self.inserter.module;
        let is_norm =
            |node: Node| module.node(node).schema().is_some_and(|s| s.kind == OpKind::BatchNormalization);
        let is_statistic = |slot: u32| STATISTICS.iter().any(|&(operand, _)| operand == slot as usize);
        module.uses(statistic).filter(|&(node, slot)| is_norm(node) && is_statistic(slot)).collect()
    }

    /// Makes BatchNormalization read a copy of `statistic`. ONNX Runtime writes the next running statistic into the buffer
    /// of the one it reads, even if that is a graph input; a skipped step would then have lost the old value. The copy is
    /// Max with one operand, which ONNX Runtime's graph optimizers do not remove (unlike Identity). The copy for the second
    /// node that reads the statistic is Max with two operands, and so on: the optimizers would make one of equal nodes.
    fn copy_statistic_for_norms(&mut self, statistic: Value) -> Result<(), InsertError> {
        for (i, (node, slot)) in self.norms_of(statistic).into_iter().enumerate() {
            self.inserter.move_before(node);
            let copy = self.inserter.op(OpKind::Max, &vec![statistic; i + 1], &[]);
            let main = self.inserter.module.main();
            self.inserter.move_to(main, Position::Last);
            self.inserter.set_origin(None);
            let copy = copy?;
            let mark = Mark { phase: Phase::Forward, purpose: Some(Purpose::RunningStatistics) };
            mark.put_on_maker(self.inserter.module, &[copy]);
            self.inserter.module.set_operand(node, slot as usize, Some(copy));
        }
        Ok(())
    }

    /// The seed of dropouts stays; the offset changes in every step, even in a skipped step.
    fn random_numbers(&mut self) -> Result<(), InsertError> {
        if let [seed] = with_role(self.inserter.module, dropout::SEED).collect::<Vec<_>>()[..] {
            let next = self.op(OpKind::Identity, &[seed], Purpose::DropoutSeed)?;
            self.states.push(State::new(seed, next, StateKind::DropoutSeed));
        }
        if let [offset] = with_role(self.inserter.module, dropout::OFFSET).collect::<Vec<_>>()[..] {
            let one = TensorData::from_bytes(DType::U64, &[], 1u64.to_le_bytes().to_vec());
            let one = self.inserter.constant("one", one.expect("one element"));
            let next = self.op(OpKind::Add, &[offset, one], Purpose::DropoutOffset)?;
            self.states.push(State::new(offset, next, StateKind::DropoutOffset));
        }
        Ok(())
    }

    /// The next loss scale.
    fn next_scale(&mut self, scale: Option<Value>, found: Option<Value>) -> Result<(), InsertError> {
        let (Some(scale), Some(found), Scaler::Dynamic(dynamic)) = (scale, found, &self.update.scaler) else {
            return Ok(());
        };
        let good = self.state("good_steps", integer(DType::I32, 0));
        let bad = (dynamic.backoff_every > 1).then(|| self.state("bad_steps", integer(DType::I32, 0)));
        let mut operands = vec![scale, good, found];
        operands.extend(bad);
        let arith: &[u8] = match dynamic.arith {
            Arith::F32Product => b"f32_product",
            Arith::F64Product => b"f64_product",
        };
        let mut spec = NodeSpec::new(OpKind::UpdateLossScale, &operands)
            .attr("growth", double(dynamic.growth))
            .attr("backoff", double(dynamic.backoff))
            .attr("interval", AttrValue::Int(i64::from(dynamic.interval)))
            .attr("backoff_every", AttrValue::Int(i64::from(dynamic.backoff_every)))
            .attr("reset_good", AttrValue::Int(i64::from(dynamic.reset_good_on_overflow)))
            .attr("arith", AttrValue::String(arith.into()));
        for (key, bound) in [("min", dynamic.min), ("max", dynamic.max)] {
            if let Some(bound) = bound {
                spec = spec.attr(key, double(bound));
            }
        }
        let results = self.insert_n(spec, operands.len() - 1, Purpose::LossScale)?;
        let kinds = [StateKind::LossScale, StateKind::Good, StateKind::Bad];
        let inputs = [Some(scale), Some(good), bad].into_iter().flatten();
        let states = inputs.zip(results).zip(kinds);
        self.states.extend(states.map(|((input, next), kind)| State::new(input, next, kind)));
        Ok(())
    }
}

/// True if a node of the update casts a weight that is stored low.
fn widens(module: &Module, node: Node) -> bool {
    let is_cast = module.node(node).schema().is_some_and(|s| s.kind == OpKind::Cast);
    is_cast && role_of(module, node) == Some(Purpose::MasterWeight.spelling())
}

/// A scalar integer.
fn integer(dtype: DType, number: i32) -> TensorData {
    let bytes = if dtype == DType::I32 {
        number.to_le_bytes().to_vec()
    } else {
        i64::from(number).to_le_bytes().to_vec()
    };
    TensorData::from_bytes(dtype, &[], bytes).expect("one element")
}
