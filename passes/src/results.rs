//! What passes of a run hand on beside the module: one thing of each type, and warnings.
//!
//! What a pass decides is in the IR. What it has found out *about* the module, such as what the choice of formats costs,
//! goes here: for a later pass that adds to it, and for whoever watches the run. It is about the module as it was then,
//! so a pass that needs that to be as it still is asks for what is [up to date](Results::current).

use crate::pass::{Changed, Warning};
use rustc_hash::FxHashMap;
use std::any::{Any, TypeId};

/// What the passes of a run have handed on so far.
#[derive(Debug, Default)]
pub struct Results {
    found: FxHashMap<TypeId, Entry>,
    warnings: Vec<Warning>,
    /// How many passes have run.
    passes: usize,
    /// The number of passes that had run when the module last changed.
    changed: usize,
}

#[derive(Debug)]
struct Entry {
    /// The number of passes that had run when it was handed on.
    since: usize,
    value: Box<dyn Any + Send>,
}

impl Results {
    /// Hands something on, in place of what was of its type.
    pub fn put<T: Any + Send>(&mut self, value: T) {
        self.found.insert(TypeId::of::<T>(), Entry { since: self.passes, value: Box::new(value) });
    }

    /// Forgets what was handed on of a type.
    pub fn remove<T: Any + Send>(&mut self) {
        self.found.remove(&TypeId::of::<T>());
    }

    /// What was handed on last of a type, whatever has changed since.
    pub fn get<T: Any + Send>(&self) -> Option<&T> {
        self.found.get(&TypeId::of::<T>())?.value.downcast_ref()
    }

    /// What was handed on last of a type, if no pass after that one has changed the module.
    pub fn current<T: Any + Send>(&mut self) -> Option<&mut T> {
        let entry = self.found.get_mut(&TypeId::of::<T>())?;
        if entry.since < self.changed { None } else { entry.value.downcast_mut() }
    }

    pub(crate) fn warn(&mut self, warning: Warning) {
        self.warnings.push(warning);
    }

    pub(crate) fn into_warnings(self) -> Vec<Warning> {
        self.warnings
    }

    /// Notes that a pass is over. What it has handed on is about the module that it left.
    pub(crate) fn end_pass(&mut self, changed: Changed) {
        if changed == Changed::Yes {
            self.changed = self.passes;
        }
        self.passes += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_current_until_a_later_pass_changes_the_module() {
        let mut results = Results::default();
        results.end_pass(Changed::Yes);
        results.put(1u8);
        results.end_pass(Changed::Yes);
        assert_eq!(results.current::<u8>(), Some(&mut 1), "its own pass made what it is about");
        results.end_pass(Changed::No);
        *results.current::<u8>().unwrap() += 1;
        results.end_pass(Changed::Yes);
        assert_eq!(results.current::<u8>(), None);
        assert_eq!(results.get::<u8>(), Some(&2));
        results.put(3u8);
        assert_eq!(results.current::<u8>(), Some(&mut 3));
        assert_eq!(results.get::<u16>(), None);
    }
}
