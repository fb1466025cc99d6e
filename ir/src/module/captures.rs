//! Captures of a body, in order and by operand slot of the owning node.

use super::{Def, GraphOwner, Module};
use crate::entity::{GraphId, Value};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// The captures of a body. They say which slot each stands for, [`Def::Capture`](crate::module::Def::Capture) says
/// it again, and the verifier compares (I3).
#[derive(Clone, Debug, Default)]
pub(crate) struct Captures {
    values: Vec<Value>,
    /// Mostly one per slot. Looked up, never gone through.
    by_slot: FxHashMap<u32, SmallVec<[Value; 1]>>,
}

impl Captures {
    /// All of them, in order.
    pub(crate) fn values(&self) -> &[Value] {
        &self.values
    }

    /// The captures of an operand slot, in order.
    pub(crate) fn of(&self, slot: u32) -> &[Value] {
        self.by_slot.get(&slot).map_or(&[], |values| values)
    }

    /// Adds one at the end.
    pub(crate) fn push(&mut self, slot: u32, value: Value) {
        self.values.push(value);
        self.by_slot.entry(slot).or_default().push(value);
    }
}

/// A capture as a writer lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Captured {
    /// The value of the body.
    pub capture: Value,
    /// The number of its operand among the owner's capture operands, from 0.
    pub slot: usize,
    /// That operand.
    pub outer: Option<Value>,
    /// True if the operand is the first of its value, so that the value's name says which one it is.
    pub is_named: bool,
    /// True if its type differs from the type of the operand, or the operand has none, so that it has to be
    /// written.
    pub is_typed: bool,
}

impl Module {
    /// The captures of a body, in order, as writers list them.
    pub fn captured(&self, body: GraphId) -> Vec<Captured> {
        let GraphOwner::Body { node, .. } = self.graph(body).owner else { return Vec::new() };
        let owner = self.node(node);
        let operands = &owner.operands()[owner.n_formal()..];
        let mut first: FxHashMap<Value, usize> = FxHashMap::default();
        for (slot, operand) in operands.iter().enumerate().rev() {
            first.extend(operand.map(|value| (value, slot)));
        }
        let captures = self.graph(body).captures().iter().filter_map(|&capture| {
            let Def::Capture { slot } = self.value(capture).def else { return None };
            let slot = (slot as usize).saturating_sub(owner.n_formal());
            let outer = operands.get(slot).copied().flatten();
            let is_named = outer.is_some_and(|outer| first.get(&outer) == Some(&slot));
            let is_typed = outer.is_none_or(|outer| self.value(outer).ty != self.value(capture).ty);
            Some(Captured { capture, slot, outer, is_named, is_typed })
        });
        captures.collect()
    }
}
