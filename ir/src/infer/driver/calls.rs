//! Calls of functions.
//!
//! The body of a function is inferred once for every signature it is called with: types and integer elements of
//! the operands, and attributes. Its values get the types that hold in all calls. Nested calls may multiply
//! signatures without bound, so a function with very many signatures is inferred for less precise signatures:
//! first without elements, then without shapes, finally not at all.

use super::Driver;
use crate::attr::{Attr, AttrValue};
use crate::entity::{FunctionId, GraphId, Node, Value};
use crate::facts::{CallAttrs, Defaults};
use crate::infer::control;
use crate::infer::inferred::Inferred;
use crate::int::Int;
use crate::module::Module;
use crate::ty::Type;
use crate::views::{OpError, ints_of};
use rustc_hash::FxHashMap;
use std::fmt::Write;
use std::sync::Arc;

/// From so many signatures of one function on, elements of operands no longer count.
const MANY: usize = 16;
/// From so many on, shapes no longer count.
const VERY_MANY: usize = 64;
/// The largest number of signatures.
const MOST: usize = 256;

/// Inferred types of calls so far.
#[derive(Default)]
pub(in crate::infer) struct Calls {
    known: FxHashMap<Signature, Arc<Inferred>>,
    n_signatures: FxHashMap<FunctionId, usize>,
    defaults: FxHashMap<FunctionId, Defaults>,
    /// Functions that the walk is in.
    active: Vec<FunctionId>,
    /// For every value of a function, the facts that hold in all its calls so far.
    joined: FxHashMap<Value, Type>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Signature {
    function: FunctionId,
    /// The types of the operands up to the last that is present: a call may have fewer operands than its function.
    types: Vec<Type>,
    ints: Vec<Option<Arc<[Int]>>>,
    attrs: String,
}

impl Driver<'_> {
    /// The results of a call.
    pub(in crate::infer) fn call(&mut self, node: Node, function: FunctionId) -> Result<Inferred, OpError> {
        self.check_call(node, function)?;
        let n = self.module.node(node).results().len();
        let (attrs, signature) = self.signature(node, function);
        let mut inferred = match self.calls.known.get(&signature) {
            Some(known) => {
                Inferred { types: known.types.iter().take(n).cloned().collect(), ints: known.ints.clone() }
            }
            None if self.calls.n_signatures.get(&function) >= Some(&MOST) => return Ok(unknown(n)),
            None => self.enter(attrs, signature),
        };
        inferred.types.truncate(n);
        Ok(inferred)
    }

    fn check_call(&self, node: Node, function: FunctionId) -> Result<(), OpError> {
        let data = self.module.node(node);
        let callee = self.module.function(function);
        let graph = self.module.graph(callee.graph);
        let name = self.module.text(callee.name);
        if data.n_formal() > graph.inputs.len() {
            let expected = format!("at most {} operands in a call of `{name}`", graph.inputs.len());
            return Err(OpError::node(expected, data.n_formal().to_string()));
        }
        if data.results().len() > graph.outputs.len() {
            let expected = format!("at most {} results of `{name}`", graph.outputs.len());
            return Err(OpError::node(expected, data.results().len().to_string()));
        }
        if self.calls.active.contains(&function) {
            return Err(OpError::node(format!("that `{name}` does not call itself"), "a recursive call"));
        }
        Ok(())
    }

    /// The attributes and the signature of a call, as precise as the number of signatures permits.
    fn signature(&mut self, node: Node, function: FunctionId) -> (CallAttrs, Signature) {
        let data = self.module.node(node);
        let n = self.calls.n_signatures.get(&function).copied().unwrap_or(0);
        let present = data.formal_operands().iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        let operands = data.formal_operands()[..present].iter().copied();
        let mut types: Vec<Type> =
            operands.clone().map(|v| v.map_or(Type::Unknown, |v| self.ty(v).clone())).collect();
        let ints = operands
            .map(|v| ints_of(self.module, Some(&self.facts), v?).filter(|_| n < MANY).map(Into::into))
            .collect();
        if n >= VERY_MANY {
            control::widen(&mut types, 0);
        }
        let defaults = self.calls.defaults.entry(function);
        let defaults = defaults.or_insert_with(|| Defaults::of(self.module, function)).clone();
        let attrs = CallAttrs::new(self.module, node, defaults, self.facts.call_attrs.as_ref());
        let mut text = String::new();
        // All calls have the same defaults.
        for attr in &attrs.given {
            spell(self.module, attr, &mut text);
        }
        (attrs, Signature { function, types, ints, attrs: text })
    }

    /// Infers the body of a function for a signature that is new.
    fn enter(&mut self, attrs: CallAttrs, signature: Signature) -> Inferred {
        let function = signature.function;
        let graph = self.module.function(function).graph;
        let formals = self.module.graph(graph).inputs.clone();
        for (slot, value) in formals.into_iter().enumerate() {
            self.types.set(value, signature.types.get(slot).cloned().unwrap_or_default());
            self.facts.ints[value] = signature.ints.get(slot).cloned().flatten();
        }
        self.calls.active.push(function);
        let outer = self.facts.call_attrs.replace(attrs);
        self.graph(graph);
        self.facts.call_attrs = outer;
        self.calls.active.pop();
        let outputs = &self.module.graph(graph).outputs;
        let types = outputs.iter().map(|o| self.ty(o.value).clone()).collect();
        let first = outputs.first().and_then(|o| ints_of(self.module, Some(&self.facts), o.value));
        let inferred = Inferred { types, ints: first.map(std::borrow::Cow::into_owned) };
        for value in values_of(self.module, graph) {
            let ty = self.ty(value).clone();
            let joined = match self.calls.joined.get(&value) {
                Some(before) => before.join(&ty).unwrap_or_default(),
                None => ty,
            };
            self.calls.joined.insert(value, joined);
        }
        *self.calls.n_signatures.entry(function).or_default() += 1;
        self.calls.known.insert(signature, Arc::new(inferred.clone()));
        inferred
    }

    /// Gives the values of functions the types that hold in all calls.
    pub(in crate::infer) fn join_calls(&mut self) {
        let called: Vec<(GraphId, usize)> = self
            .module
            .functions()
            .map(|(id, f)| (f.graph, self.calls.n_signatures.get(&id).copied().unwrap_or(0)))
            .collect();
        for (graph, n) in called {
            for value in values_of(self.module, graph) {
                match self.calls.joined.get(&value) {
                    // What nothing calls may once have been called.
                    _ if n == 0 => self.types.set(value, Type::Unknown),
                    Some(joined) if n > 1 => self.types.set(value, joined.clone()),
                    _ => {}
                }
                // Elements are those of the last call.
                if n != 1 {
                    self.facts.ints[value] = None;
                }
            }
        }
    }
}

fn unknown(n: usize) -> Inferred {
    Inferred { types: (0..n).map(|_| Type::Unknown).collect(), ints: None }
}

/// Everything in a graph and its bodies that inference gives a type: constants excepted.
fn values_of(module: &Module, graph: GraphId) -> Vec<Value> {
    let mut values = Vec::new();
    let mut work = vec![graph];
    while let Some(graph) = work.pop() {
        let data = module.graph(graph);
        values.extend(data.inputs.iter().chain(data.captures()));
        for node in module.nodes(graph) {
            values.extend(module.node(node).results().iter().flatten());
            work.extend(module.node(node).bodies());
        }
    }
    values
}

/// Spells an attribute so that equal spellings mean equal values. Tensors are spelled by their address: the same
/// payload is the same value.
fn spell(module: &Module, attr: &Attr, text: &mut String) {
    let name = module.text(attr.name);
    let written = match &attr.value {
        AttrValue::Tensor(data) => write!(text, "{name}={:p};", Arc::as_ptr(data)),
        AttrValue::SparseTensor(data) => write!(text, "{name}={:p};", Arc::as_ptr(data)),
        AttrValue::Tensors(list) => {
            write!(text, "{name}={:?};", list.iter().map(Arc::as_ptr).collect::<Vec<_>>())
        }
        AttrValue::SparseTensors(list) => {
            write!(text, "{name}={:?};", list.iter().map(Arc::as_ptr).collect::<Vec<_>>())
        }
        value => write!(text, "{name}={value:?};"),
    };
    // Writing into a string cannot fail.
    debug_assert!(written.is_ok());
}
