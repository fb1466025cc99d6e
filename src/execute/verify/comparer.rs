//! Values of two models, compared as they are computed.

use super::{Compared, is_worse, of_outputs};
use crate::error::findings::op_of;
use crate::execute::agree::{agree, slice_vanishes};
use crate::execute::bound;
use crate::execute::scope::{Closed, Event, Scope, Side, is_nested};
use ampc_ir::module::{Def, GraphOwner};
use ampc_ir::{GraphId, Node, Value};
use ampc_runtime::{Data, HostError, Tolerance};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// Compares values as they arrive, in the order of the model.
pub(super) struct Comparer<'a> {
    side: &'a Side<'a>,
    tolerance: Tolerance,
    /// The current draw of inputs.
    draw: usize,
    /// True if outputs are searched for vanished slices.
    excuses: bool,
    pub(super) values: Vec<Compared>,
    pub(super) first: Option<Compared>,
    /// The index in `values` of a value by path.
    index: FxHashMap<(Arc<str>, Value), usize>,
    /// The error of each value in its last computation.
    errors: FxHashMap<Value, f64>,
    /// The noise of each value in its last computation.
    noises: FxHashMap<Value, f64>,
    /// The call of each running function.
    calls: FxHashMap<GraphId, Node>,
    /// Values of the other model that arrived early, by scope and name.
    pub(super) waiting: BTreeMap<(Arc<str>, Arc<str>), Result<Data, HostError>>,
    /// Values that the other model did not compute at the same place.
    missed: FxHashSet<Value>,
    /// Scopes that this model has finished and the other has not.
    pub(super) done: Closed,
    /// Scopes that the other model has finished and this model has not.
    pub(super) closed: Closed,
}

impl<'a> Comparer<'a> {
    pub(super) fn new(side: &'a Side<'a>, tolerance: Tolerance) -> Comparer<'a> {
        Comparer {
            side,
            tolerance,
            draw: 0,
            excuses: false,
            values: Vec::new(),
            first: None,
            index: FxHashMap::default(),
            errors: FxHashMap::default(),
            noises: FxHashMap::default(),
            calls: FxHashMap::default(),
            waiting: BTreeMap::new(),
            missed: FxHashSet::default(),
            done: Closed::default(),
            closed: Closed::default(),
        }
    }

    /// Starts another draw of inputs: held values of the previous draw are dropped, findings are kept. Outputs are searched for
    /// vanished slices if `excuses`.
    pub(super) fn begin(&mut self, draw: usize, excuses: bool) {
        self.draw = draw;
        self.excuses = excuses;
        self.first = None;
        self.calls.clear();
        self.waiting.clear();
        (self.done, self.closed) = (Closed::default(), Closed::default());
    }

    /// True if a value was computed, but never by the other model.
    pub(super) fn is_lone(&self, value: Value) -> bool {
        self.missed.contains(&value) && !self.errors.contains_key(&value)
    }

    pub(super) fn compare(
        &mut self,
        wanted: &Receiver<Event>,
        found: &Receiver<Event>,
    ) -> Result<(), HostError> {
        for event in wanted {
            self.event(event, found)?;
        }
        // Drops the values without a counterpart.
        found.iter().for_each(drop);
        Ok(())
    }

    /// Handles an event of the model.
    pub(super) fn event(&mut self, event: Event, found: &Receiver<Event>) -> Result<(), HostError> {
        match event {
            Event::Enter { node, graph } => {
                self.calls.insert(graph, node);
            }
            Event::Done { prefix } => self.leave(prefix),
            Event::Value { scope, node, value, name, data } => {
                if let Some(got) = self.find(&scope, &name, found) {
                    self.value(&scope, (node, value), &name, &got?, &data?);
                } else {
                    self.missed.insert(value);
                    let want = data?;
                    let noise = bound::noise(&want, bound::magnitude(&want), self.propagated(node));
                    self.noises.insert(value, noise);
                }
            }
        }
        Ok(())
    }

    /// Closes a scope: the model has finished all keys with this prefix, so they are not needed any more.
    fn leave(&mut self, prefix: Arc<str>) {
        let inside = |(scope, _): &(Arc<str>, Arc<str>)| scope.starts_with(&*prefix);
        let first = (prefix.clone(), "".into());
        let keys: Vec<_> =
            self.waiting.range(first..).map(|(key, _)| key).take_while(|k| inside(k)).collect();
        for key in keys.into_iter().cloned().collect::<Vec<_>>() {
            self.waiting.remove(&key);
        }
        // If the other model has finished the scope too, no later value must be dropped.
        if !self.closed.forget(&prefix) {
            self.done.close(prefix);
        }
    }

    /// The value of this name in the other model, if it computes one.
    fn find(
        &mut self,
        scope: &Scope,
        name: &Arc<str>,
        found: &Receiver<Event>,
    ) -> Option<Result<Data, HostError>> {
        if let Some(data) = self.waiting.remove(&(scope.key.clone(), name.clone())) {
            return Some(data);
        }
        while !self.closed.has(&scope.key) {
            match found.recv().ok()? {
                Event::Enter { .. } => {}
                Event::Done { prefix } => {
                    if !self.done.forget(&prefix) {
                        self.closed.close(prefix);
                    }
                }
                Event::Value { scope: s, name: n, data, .. } if s.key == scope.key && n == *name => {
                    return Some(data);
                }
                Event::Value { scope, .. } if self.done.has(&scope.key) => {}
                Event::Value { scope, name, data, .. } => {
                    self.waiting.insert((scope.key.clone(), name), data);
                }
            }
        }
        None
    }

    fn value(&mut self, scope: &Scope, (node, value): (Node, Value), name: &str, got: &Data, want: &Data) {
        let module = self.side.module;
        let propagated = self.propagated(node);
        let agreement = agree(got, want, &bound::of_value(&self.tolerance, want, propagated));
        let error = agreement.error();
        self.errors.insert(value, error);
        let noise = bound::noise(want, agreement.found.max_want, propagated);
        self.noises.insert(value, noise);
        let compared = Compared {
            value: name.to_owned(),
            node: Some(node),
            path: self.side.path(scope, node),
            op: op_of(module, node),
            iterations: scope.iterations.clone(),
            draw: self.draw,
            adds: self.read_error(node).map(|read| if error > read { error - read } else { 0.0 }),
            agreement,
            noise,
        };
        if self.first.is_none() && !compared.agreement.passed() {
            self.first = Some(compared.clone());
        }
        let next = self.values.len();
        let at = *self.index.entry((scope.path.clone(), value)).or_insert(next);
        match self.values.get_mut(at) {
            None => self.values.push(compared),
            Some(old) if is_worse(&compared.agreement, &old.agreement) => *old = compared,
            Some(_) => {}
        }
    }

    /// The largest error of a node's operands.
    fn read_error(&self, node: Node) -> Option<f64> {
        if is_nested(self.side.module, node) {
            return None;
        }
        let operands = self.side.module.node(node).operands().iter().flatten();
        operands.map(|&v| self.error_of(v)).try_fold(0.0, |most: f64, error| Some(most.max(error?)))
    }

    fn error_of(&self, value: Value) -> Option<f64> {
        match self.origin(value)? {
            Origin::Given => Some(0.0),
            Origin::Result(value) => self.errors.get(&value).copied(),
        }
    }

    /// The noise that a node propagates to its results.
    fn propagated(&self, node: Node) -> f64 {
        let noise_of = |value| match self.origin(value) {
            Some(Origin::Result(value)) => self.noises.get(&value).copied().unwrap_or(0.0),
            Some(Origin::Given) | None => 0.0,
        };
        bound::propagated(self.side.module, node, noise_of)
    }

    /// The origin of a value, through captures and calls; `None` for values that a node passes into its bodies.
    fn origin(&self, mut value: Value) -> Option<Origin> {
        let module = self.side.module;
        loop {
            let data = module.value(value);
            let owner = module.graph(data.graph).owner;
            let (node, slot) = match (&data.def, owner) {
                (Def::Constant(_), _) | (Def::Input { .. }, GraphOwner::Main) => return Some(Origin::Given),
                (Def::Result { .. }, _) => return Some(Origin::Result(value)),
                (Def::Input { slot, .. }, GraphOwner::Function(_)) => (*self.calls.get(&data.graph)?, *slot),
                (Def::Capture { slot }, GraphOwner::Body { node, .. }) => (node, *slot),
                _ => return None,
            };
            value = module.node(node).operand(slot as usize)?;
        }
    }

    pub(super) fn outputs(&self, wanted: &[Data], found: &[Data], pairs: &[usize]) -> Vec<Compared> {
        let module = self.side.module;
        let outputs = module.graph(module.main()).outputs().iter();
        let propagated =
            outputs.map(|o| module.producer(o.value).map_or(0.0, |(node, _)| self.propagated(node)));
        let rows = wanted.iter().zip(pairs).zip(propagated);
        let agreements = rows.filter_map(|((want, &at), propagated)| {
            let got = found.get(at)?;
            let mut agreement = agree(got, want, &bound::of_value(&self.tolerance, want, propagated));
            agreement.has_vanished_slice = self.excuses && slice_vanishes(got, want);
            let noise = bound::noise(want, agreement.found.max_want, propagated);
            Some((agreement, noise))
        });
        let mut outputs = of_outputs(module, agreements);
        outputs.iter_mut().for_each(|output| output.draw = self.draw);
        outputs
    }
}

/// The origin of a value.
enum Origin {
    /// An input of the model or a constant.
    Given,
    /// A node computes it.
    Result(Value),
}
