//! What passes of a run hand on beside the module: one thing of each type, and warnings.
//!
//! What a pass decides is in the IR. What it has found out *about* the module, such as what the choice of formats costs,
//! goes here: for a later pass that adds to it, and for whoever watches the run. An entry describes the module as it was
//! when it was put: [`get`](Results::get) returns it always, [`current`](Results::current) only if no later pass has
//! changed the module. What a pass changes counts once that pass is over.

use crate::pass::{Changed, Warning};
use rustc_hash::FxHashMap;
use std::any::{Any, TypeId};

/// What the passes of a run have handed on so far.
#[derive(Debug, Default)]
pub struct Results {
    found: FxHashMap<TypeId, Entry>,
    warnings: Vec<Warning>,
    /// How many passes have begun.
    passes: usize,
    /// Which of them, counted from 1, has changed the module last.
    changed: usize,
}

#[derive(Debug)]
struct Entry {
    /// How many passes had begun when it was handed on.
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

    /// What passes have told the user.
    pub fn into_warnings(self) -> Vec<Warning> {
        self.warnings
    }

    /// Notes that a pass begins.
    pub fn begin_pass(&mut self) {
        self.passes += 1;
    }

    /// Notes that a pass is over. What it has handed on is about the module that it left.
    pub fn end_pass(&mut self, changed: Changed) {
        if changed == Changed::Yes {
            self.changed = self.passes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_current_until_a_later_pass_changes_the_module() {
        let mut results = Results::default();
        let end_pass = |results: &mut Results, changed| {
            results.end_pass(changed);
            results.begin_pass();
        };
        results.put(0u8);
        results.begin_pass();
        end_pass(&mut results, Changed::Yes);
        assert_eq!(results.current::<u8>(), None);
        results.put(1u8);
        end_pass(&mut results, Changed::Yes);
        assert_eq!(results.current::<u8>(), Some(&mut 1), "its own pass made what it is about");
        end_pass(&mut results, Changed::No);
        *results.current::<u8>().unwrap() += 1;
        end_pass(&mut results, Changed::Yes);
        assert_eq!(results.current::<u8>(), None);
        assert_eq!(results.get::<u8>(), Some(&2));
        results.put(3u8);
        assert_eq!(results.current::<u8>(), Some(&mut 3));
        assert_eq!(results.get::<u16>(), None);
    }
}
