//! Results that passes of a run leave beside the module: one entry of each type, and warnings.
//!
//! Decisions of a pass are in the IR. Facts that a pass has found *about* the module, such as the cost of the
//! chosen formats, go here: for a later pass that adds to it, and for observers of the run. An entry describes
//! the module at the time when it was stored: [`get`](Results::get) returns it always,
//! [`current`](Results::current) only if no later pass has changed the module. A change by a pass counts after
//! the end of that pass.

use crate::pass::{Changed, Warning};
use rustc_hash::FxHashMap;
use std::any::{Any, TypeId};

/// Results of the passes of a run so far.
#[derive(Debug, Default)]
pub struct Results {
    found: FxHashMap<TypeId, Entry>,
    warnings: Vec<Warning>,
    /// The number of passes that have begun.
    passes: usize,
    /// The number, from 1, of the pass that changed the module last.
    changed: usize,
}

#[derive(Debug)]
struct Entry {
    /// The number of passes that had begun when the entry was put.
    since: usize,
    value: Box<dyn Any + Send>,
}

impl Results {
    /// Stores an entry, replacing the previous entry of its type.
    pub fn put<T: Any + Send>(&mut self, value: T) {
        self.found.insert(TypeId::of::<T>(), Entry { since: self.passes, value: Box::new(value) });
    }

    /// Removes the entry of a type.
    pub fn remove<T: Any + Send>(&mut self) {
        self.found.remove(&TypeId::of::<T>());
    }

    /// The latest entry of a type, even if the module has changed since.
    pub fn get<T: Any + Send>(&self) -> Option<&T> {
        self.found.get(&TypeId::of::<T>())?.value.downcast_ref()
    }

    /// The latest entry of a type, if no later pass has changed the module.
    pub fn current<T: Any + Send>(&mut self) -> Option<&mut T> {
        let entry = self.found.get_mut(&TypeId::of::<T>())?;
        if entry.since < self.changed { None } else { entry.value.downcast_mut() }
    }

    pub(crate) fn warn(&mut self, warning: Warning) {
        self.warnings.push(warning);
    }

    /// Removes the warnings that a pass has made untrue.
    pub(crate) fn withdraw(&mut self, is_untrue: impl Fn(&Warning) -> bool) {
        self.warnings.retain(|warning| !is_untrue(warning));
    }

    /// The warnings of the passes.
    pub fn into_warnings(self) -> Vec<Warning> {
        self.warnings
    }

    /// Notes that a pass begins.
    pub fn begin_pass(&mut self) {
        self.passes += 1;
    }

    /// Notes that a pass is over. Its entries describe the module as the pass left it.
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
