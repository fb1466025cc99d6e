//! What a body captures, in order and by operand slot of the owning node.

use crate::Value;
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

    /// Those of an operand slot, in order.
    pub(crate) fn of(&self, slot: u32) -> &[Value] {
        self.by_slot.get(&slot).map_or(&[], |values| values)
    }

    /// Adds one at the end.
    pub(crate) fn push(&mut self, slot: u32, value: Value) {
        self.values.push(value);
        self.by_slot.entry(slot).or_default().push(value);
    }
}
