//! Optimizers of a user.

use super::function::{Function, FunctionError};
use crate::graph::marks::{Mark, Purpose};
use crate::pass::training_error::RuleError;
use crate::training::build::{Build, Nodes};
use crate::training::names::{Renamed, name_or_note, state_input};
use crate::training::step::state::zeros_like;
use ampc_ir::infer::describe;
use ampc_ir::module::Def;
use ampc_ir::op::OpKind;
use ampc_ir::verify::name_of;
use ampc_ir::{Module, TensorData, Value};
use std::fmt;
use std::sync::Arc;

/// Builds the update of a weight: the next weight.
type BuildUpdate = dyn Fn(&mut UpdateNodes<'_>) -> Result<Value, RuleError> + Send + Sync;

/// An optimizer of a user: a function that builds, for each parameter, the next weight and the next states.
///
/// ```
/// use ampc_passes::build::Build;
/// use ampc_passes::step::CustomOptimizer;
/// use ampc_ir::op::OpKind;
///
/// // Lion (Chen et al., arXiv 2302.06675): the sign of a mixture of gradient and momentum.
/// let lion = CustomOptimizer::new("lion", |b| {
///     let (w, g, lr) = (b.weight(), b.gradient(), b.rate());
///     let m = b.state("m")?;
///     let (kept, new) = (b.scaled(m, 0.9)?, b.scaled(g, 0.1)?);
///     let direction = b.plus(kept, new)?;
///     let sign = b.unary(OpKind::Sign, direction)?;
///     let (kept, new) = (b.scaled(m, 0.99)?, b.scaled(g, 0.01)?);
///     let next = b.plus(kept, new)?;
///     b.next(m, next)?;
///     let change = b.times(lr, sign)?;
///     b.minus(w, change)
/// });
/// ```
#[derive(Clone)]
pub struct CustomOptimizer {
    name: Arc<str>,
    build: Arc<BuildUpdate>,
}

impl CustomOptimizer {
    /// An optimizer of this name, by which messages call it.
    pub fn new(
        name: &str,
        build: impl Fn(&mut UpdateNodes<'_>) -> Result<Value, RuleError> + Send + Sync + 'static,
    ) -> CustomOptimizer {
        CustomOptimizer { name: name.into(), build: Arc::new(build) }
    }

    /// An optimizer that is the main graph of a module, such as a text: its inputs are the weight, the
    /// gradient, the learning rate, the number of steps and then states, its outputs the next weight and the
    /// next states in the same order. A state whose type is a number begins with the input's default or 0;
    /// other states have the weight's shape and begin with zeros. Types of values are inferred separately for
    /// each weight.
    ///
    /// ```
    /// use ampc_ir::text::{NoData, parse};
    /// use ampc_passes::step::CustomOptimizer;
    ///
    /// let text = "opset ai.onnx=21\n\ngraph @momentum {\n  input %w : f32[*]\n  input %g : f32[*]\n  \
    ///             input %lr : f32\n  input %step : i64\n  input %v : f32[*]\n  const %mu : f32 = 0.9\n  \
    ///             %kept = Mul(%v, %mu) : f32[*]\n  %v_next = Add(%kept, %g) : f32[*]\n  \
    ///             %change = Mul(%v_next, %lr) : f32[*]\n  %w_next = Sub(%w, %change) : f32[*]\n  \
    ///             output %w_next\n  output %v_next\n}\n";
    /// let momentum = CustomOptimizer::of_function(parse(text, &NoData)?)?;
    /// assert_eq!(momentum.name(), "momentum");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the graph has other inputs or outputs, or nodes with bodies, calls or unknown operators.
    pub fn of_function(module: Module) -> Result<CustomOptimizer, FunctionError> {
        let function = Function::of(module)?;
        let name = function.name().to_owned();
        Ok(CustomOptimizer::new(&name, move |b| function.build(b)))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds the nodes for one parameter: the next weight, and the states.
    pub(in crate::training::step) fn add(&self, b: &mut UpdateNodes<'_>) -> Result<Updated, RuleError> {
        let next = (self.build)(b)?;
        let weight = b.settle(b.weight, next)?;
        let mut states = Vec::new();
        for Asked { kind, input, next } in std::mem::take(&mut b.states) {
            let Some(next) = next else {
                let what = format!("state `{kind}` gets no next value");
                return Err(RuleError::Unsupported(what));
            };
            states.push(Next { input, next: b.settle(input, next)? });
        }
        Ok(Updated { next: weight, states })
    }
}

impl PartialEq for CustomOptimizer {
    fn eq(&self, other: &CustomOptimizer) -> bool {
        self.name == other.name && std::ptr::addr_eq(Arc::as_ptr(&self.build), Arc::as_ptr(&other.build))
    }
}

impl fmt::Debug for CustomOptimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CustomOptimizer").field(&self.name).finish()
    }
}

/// Result of updating a parameter.
pub(in crate::training::step) struct Updated {
    /// The next weight, in fp32.
    pub(in crate::training::step) next: Value,
    pub(in crate::training::step) states: Vec<Next>,
}

/// A state and its next value, which is the old one where the step is skipped.
pub(in crate::training::step) struct Next {
    pub(in crate::training::step) input: Value,
    pub(in crate::training::step) next: Value,
}

/// Values that all parameters share.
#[derive(Clone, Copy, Debug)]
pub(in crate::training::step) struct Shared {
    /// The learning rate.
    pub(in crate::training::step) rate: Value,
    /// The number of steps.
    pub(in crate::training::step) step: Value,
    /// The factor of gradients, if they are scaled or clipped.
    pub(in crate::training::step) mult: Option<Value>,
    /// The condition for taking the step, if it may be skipped.
    pub(in crate::training::step) proceeds: Option<Value>,
}

/// A requested state.
#[derive(Debug)]
struct Asked {
    kind: String,
    input: Value,
    next: Option<Value>,
}

/// Arguments of the function of a [`CustomOptimizer`]: a weight, its gradient, states, and [`Build`].
///
/// All that it gets and returns is in fp32. The results are used only if the step is not skipped.
#[derive(Debug)]
pub struct UpdateNodes<'m> {
    nodes: Nodes<'m>,
    shared: Shared,
    name: String,
    weight: Value,
    gradient: Value,
    decay: f64,
    states: Vec<Asked>,
    /// Values that are the next of something already.
    taken: Vec<Value>,
    /// States of all parameters whose names were not free.
    renamed: Vec<Renamed>,
}

impl<'m> Build<'m> for UpdateNodes<'m> {
    fn nodes(&self) -> &Nodes<'m> {
        &self.nodes
    }
    fn nodes_mut(&mut self) -> &mut Nodes<'m> {
        &mut self.nodes
    }
}

impl<'m> UpdateNodes<'m> {
    pub(in crate::training::step) fn new(module: &'m mut Module, shared: Shared) -> UpdateNodes<'m> {
        let nodes = Nodes::new(module, None, "in_update", Some(Mark::update(Purpose::MasterWeight)));
        let (name, weight, gradient) = (String::new(), shared.rate, shared.rate);
        let (states, taken, renamed) = (Vec::new(), Vec::new(), Vec::new());
        UpdateNodes { nodes, shared, name, weight, gradient, decay: 0.0, states, taken, renamed }
    }

    /// The names of states that were not free.
    pub(in crate::training::step) fn into_renamed(self) -> Vec<Renamed> {
        self.renamed
    }

    /// Goes to a parameter, whose value in fp32 is `weight`.
    pub(in crate::training::step) fn enter(
        &mut self,
        parameter: Value,
        weight: Value,
        gradient: Value,
        decay: f64,
    ) -> Result<(), RuleError> {
        self.name = name_of(self.module(), parameter);
        (self.weight, self.decay) = (weight, decay);
        self.states.clear();
        self.gradient = self.cast(gradient, self.dtype(weight)?)?;
        if let Some(mult) = self.shared.mult {
            let mult = self.cast(mult, self.dtype(weight)?)?;
            self.gradient = self.times(self.gradient, mult)?;
        }
        Ok(())
    }

    /// The next value of a state: of its type, the old one if the step is skipped, and a value of its own.
    fn settle(&mut self, old: Value, next: Value) -> Result<Value, RuleError> {
        let data = self.module().value(next);
        let what = name_of(self.module(), old);
        if data.graph != self.module().main() || matches!(data.def, Def::Erased) {
            return Err(RuleError::Unsupported(format!(
                "the next value of `{what}` is not a value of the main graph"
            )));
        }
        let (want, found) = (self.ty(old), self.ty(next));
        let fits = want.dtype() == found.dtype() && known(want) == known(found);
        if !fits {
            let (want, found) = (describe(want), describe(found));
            return Err(RuleError::Unsupported(format!(
                "the next value of `{what}` is {found}: expected {want}, as it is now"
            )));
        }
        let next = match self.shared.proceeds {
            Some(proceeds) => self.select(proceeds, next, old)?,
            None => {
                let is_made = self.module().producer(next).is_some() && !self.module().is_output(next);
                if is_made && !self.taken.contains(&next) {
                    next
                } else {
                    self.unary(OpKind::Identity, next)?
                }
            }
        };
        self.taken.push(next);
        Ok(next)
    }

    fn ask(&mut self, kind: &str, data: TensorData) -> Result<Value, RuleError> {
        if kind.is_empty() || self.states.iter().any(|state| state.kind == kind) {
            let why = if kind.is_empty() { "has no name" } else { "is asked for twice" };
            return Err(RuleError::Unsupported(format!("state `{kind}` {why}")));
        }
        let wanted = format!("{kind}.{}", self.name);
        let module = &mut *self.nodes.inserter.module;
        let name = name_or_note(module, &wanted, &mut self.renamed);
        let input = state_input(module, name, data);
        self.states.push(Asked { kind: kind.to_owned(), input, next: None });
        Ok(input)
    }
}

/// The dims of a type as far as they have to be the same.
fn known(ty: &ampc_ir::Type) -> Option<Vec<u64>> {
    ty.shape()?.to_known().map(|dims| dims.to_vec())
}

impl UpdateNodes<'_> {
    /// The name of the parameter.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The weight.
    pub fn weight(&self) -> Value {
        self.weight
    }

    /// The gradient, without the loss scale, and clipped.
    pub fn gradient(&self) -> Value {
        self.gradient
    }

    /// The learning rate, a number.
    pub fn rate(&self) -> Value {
        self.shared.rate
    }

    /// The number of steps taken before this step, as i64.
    pub fn step(&self) -> Value {
        self.shared.step
    }

    /// The decay of the parameter, from the options.
    pub fn decay(&self) -> f64 {
        self.decay
    }

    /// A state of the weight's type, which begins with zeros. It is called `KIND.weight`.
    ///
    /// # Errors
    /// If the parameter has one already.
    pub fn state(&mut self, kind: &str) -> Result<Value, RuleError> {
        let zeros = zeros_like(self.ty(self.weight)).expect("its extents are known");
        self.ask(kind, zeros)
    }

    /// A state that is an f32 number, and its initial value. It is called `KIND.weight`.
    ///
    /// # Errors
    /// If the parameter has one already.
    pub fn number_state(&mut self, kind: &str, initial: f32) -> Result<Value, RuleError> {
        self.ask(kind, TensorData::from_f32(&[], &[initial]).expect("one element"))
    }

    /// Gives a state its next value, which is of the same type.
    ///
    /// # Errors
    /// If it is not a state of this parameter, or has a next value.
    pub fn next(&mut self, state: Value, next: Value) -> Result<(), RuleError> {
        let found = self.states.iter_mut().find(|asked| asked.input == state);
        let wrong = match found {
            Some(asked) if asked.next.is_none() => {
                asked.next = Some(next);
                return Ok(());
            }
            Some(asked) => format!("state `{}` gets a next value twice", asked.kind),
            None => format!("`{}` is not a state of `{}`", name_of(self.module(), state), self.name),
        };
        Err(RuleError::Unsupported(wrong))
    }
}
