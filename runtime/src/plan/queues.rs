//! The order of steps on different queues of a device.
//!
//! Steps of one queue run in order. A step has to wait for an earlier step of another queue if one of the two writes bytes
//! that the other reads or writes. That is so for values, and also for memory that several values have one after the
//! other. In this plan, `%q` takes the memory of `%a`, which nothing reads after step 1:
//!
//! ```text
//! step   queue   reads   writes       waits for
//! 0      0       %x      %a: 0..64
//! 1      1       %a      %b: 64..128  step 0, which makes %a
//! 2      0       %x      %q: 0..64    step 1, which reads the bytes that step 2 writes
//! 3      1       %q %b   %y: 128..192 step 2, which makes %q; step 1 is earlier on the same queue
//! ```
//!
//! A step that waits for another knows everything that the other knew: with `%b` on a third queue, step 3 would not wait
//! for step 1, for which step 2 has waited. A barrier waits for everything before it, and everything after waits for it.

use super::{Place, Planned, Step};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// The last step on each queue that is known to be done, plus 1; 0 for none.
type Clock = SmallVec<[u32; 4]>;

/// Steps that have touched some bytes: the last writer, and its readers since, the last on each queue. All are one more
/// than their number; 0 for none.
#[derive(Clone, Default)]
struct Touched {
    writer: u32,
    readers: Clock,
}

/// Bytes that steps read and write: of the arena by their range, other values by their index.
struct Memory {
    /// The ranges of the arena by their beginning, each up to the next; they cover it.
    arena: BTreeMap<usize, Touched>,
    others: BTreeMap<u32, Touched>,
}

/// Bytes that a step reads or writes.
enum Bytes {
    Arena(usize, usize),
    Other(u32),
}

/// Sets the steps that each step waits for. `arena` is the number of its bytes.
pub(super) fn order(values: &[Planned], steps: &mut [Step], arena: usize) {
    let n_queues = steps.iter().map(|step| step.queue + 1).max().unwrap_or(0);
    if n_queues < 2 {
        return;
    }
    let queues: Vec<usize> = steps.iter().map(|step| step.queue).collect();
    let nothing = || Memory {
        arena: BTreeMap::from([(0, Touched::default()), (arena, Touched::default())]),
        others: BTreeMap::new(),
    };
    let mut memory = nothing();
    // For each queue the steps that it knows to be done, and for each step the steps that were done before it ended.
    let mut known: Vec<Clock> = vec![Clock::from_elem(0, n_queues); n_queues];
    let mut known_at: Vec<Clock> = Vec::with_capacity(steps.len());
    for at in 0..steps.len() {
        let number = u32::try_from(at + 1).expect("fewer than 2^32 steps");
        let queue = queues[at];
        if steps[at].is_barrier {
            memory = nothing();
            known.iter_mut().flatten().for_each(|done| *done = number);
            known_at.push(known[queue].clone());
            continue;
        }
        let (reads, writes) = touched_by(values, &steps[at]);
        let mut before = Clock::from_elem(0, n_queues);
        let mut need = |step: u32| {
            if step > 0 {
                let last = &mut before[queues[step as usize - 1]];
                *last = (*last).max(step);
            }
        };
        for bytes in &reads {
            memory.visit(bytes, |touched| {
                need(touched.writer);
                touched.readers.resize(n_queues, 0);
                touched.readers[queue] = number;
            });
        }
        for bytes in &writes {
            memory.visit(bytes, |touched| {
                need(touched.writer);
                touched.readers.iter().filter(|&&reader| reader != number).for_each(|&reader| need(reader));
                *touched = Touched { writer: number, readers: Clock::new() };
            });
        }
        // A later step knows more, so that it is waited for first.
        let mut before: Vec<(usize, u32)> = before.into_iter().enumerate().collect();
        before.sort_unstable_by_key(|&(_, step)| std::cmp::Reverse(step));
        for (other, step) in before {
            if other == queue || step <= known[queue][other] {
                continue;
            }
            let earlier = step as usize - 1;
            steps[at].waits.push(step - 1);
            steps[earlier].is_awaited = true;
            for (mine, theirs) in known[queue].iter_mut().zip(&known_at[earlier]) {
                *mine = (*mine).max(*theirs);
            }
        }
        known[queue][queue] = number;
        known_at.push(known[queue].clone());
    }
}

/// The bytes that a step reads, and those that it writes.
fn touched_by(values: &[Planned], step: &Step) -> (Vec<Bytes>, Vec<Bytes>) {
    let bytes_of = |index: u32| match values[index as usize].place {
        Place::Arena { len: 0, .. } | Place::Input(_) | Place::Capture(_) | Place::Constant => None,
        Place::View(_) | Place::Unused => None,
        Place::Arena { offset, len } => Some(Bytes::Arena(offset, len)),
        Place::Heap => Some(Bytes::Other(index)),
    };
    if step.view {
        return (Vec::new(), Vec::new());
    }
    let reads = step.operands.iter().flatten().filter_map(|&index| bytes_of(index)).collect();
    let mut writes: Vec<Bytes> = step.results.iter().flatten().filter_map(|&index| bytes_of(index)).collect();
    let (offset, len) = step.scratch;
    if len > 0 {
        writes.push(Bytes::Arena(offset, len));
    }
    // An operand on the heap that is moved is written, too.
    let moved = step.in_place.iter().filter_map(|&(_, operand)| step.operands[operand]);
    writes.extend(moved.filter(|&index| values[index as usize].place == Place::Heap).map(Bytes::Other));
    (reads, writes)
}

impl Memory {
    fn visit(&mut self, bytes: &Bytes, mut visit: impl FnMut(&mut Touched)) {
        match *bytes {
            Bytes::Other(index) => visit(self.others.entry(index).or_default()),
            Bytes::Arena(offset, len) => {
                let end = offset.saturating_add(len);
                self.cut(offset);
                self.cut(end);
                self.arena.range_mut(offset..end).for_each(|(_, touched)| visit(touched));
            }
        }
    }

    /// Begins a range at an offset.
    fn cut(&mut self, offset: usize) {
        if !self.arena.contains_key(&offset) {
            let around = self.arena.range(..offset).next_back().map(|(_, touched)| touched.clone());
            self.arena.insert(offset, around.unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use smallvec::smallvec;

    const BLOCK: usize = 16;

    /// A step that reads and writes blocks of the arena.
    fn step((queue, is_barrier, reads, writes): &(usize, bool, Vec<u32>, Vec<u32>)) -> Step {
        Step {
            nodes: SmallVec::new(),
            operands: reads.iter().copied().map(Some).collect(),
            n_formal: reads.len(),
            results: writes.iter().copied().map(Some).collect(),
            in_place: SmallVec::new(),
            view: false,
            scratch: (0, 0),
            ends: SmallVec::new(),
            queue: *queue,
            is_barrier: *is_barrier,
            waits: smallvec![],
            is_awaited: false,
            ranges: Default::default(),
        }
    }

    /// For each step the earlier steps that are done before it, by queues, waits and barriers.
    fn done_before(steps: &[Step], without: Option<(usize, usize)>) -> Vec<Vec<bool>> {
        let mut done: Vec<Vec<bool>> = Vec::new();
        for (at, step) in steps.iter().enumerate() {
            let mut before = vec![false; steps.len()];
            for earlier in 0..at {
                let same = steps[earlier].queue == step.queue;
                let waits = step.waits.iter().enumerate();
                let mut waits = waits.filter(|&(wait, _)| without != Some((at, wait)));
                let waits = waits.any(|(_, &waited)| waited as usize == earlier);
                if same || waits || steps[earlier].is_barrier || step.is_barrier {
                    before[earlier] = true;
                    let inherited = done[earlier].clone();
                    before.iter_mut().zip(inherited).for_each(|(mine, theirs)| *mine |= theirs);
                }
            }
            done.push(before);
        }
        done
    }

    fn is_ordered(steps: &[Step], without: Option<(usize, usize)>) -> bool {
        let done = done_before(steps, without);
        let touches = |a: &[Option<u32>], b: &[Option<u32>]| a.iter().any(|value| b.contains(value));
        (0..steps.len()).all(|at| {
            (0..at).all(|earlier| {
                let (a, b) = (&steps[earlier], &steps[at]);
                let conflicts = touches(&a.results, &b.results)
                    || touches(&a.results, &b.operands)
                    || touches(&a.operands, &b.results);
                !conflicts || done[at][earlier]
            })
        })
    }

    proptest! {
        /// Every pair of steps of which one writes bytes of the other is in order, and no wait is superfluous.
        #[test]
        fn conflicts_are_in_order(
            list in proptest::collection::vec(
                (0usize..3, prop::bool::weighted(0.1), prop::collection::vec(0u32..6, 0..3), prop::collection::vec(0u32..6, 0..3)),
                1..24,
            )
        ) {
            let mut ids = ampc_ir::entity::PrimaryMap::<ampc_ir::Value, ()>::default();
            let values: Vec<Planned> = (0..6)
                .map(|i| Planned {
                    value: ids.push(()),
                    place: Place::Arena { offset: i * BLOCK, len: BLOCK },
                    tensor: None,
                })
                .collect();
            let mut steps: Vec<Step> = list.iter().map(step).collect();
            order(&values, &mut steps, 6 * BLOCK);
            prop_assert!(is_ordered(&steps, None));
            for at in 0..steps.len() {
                for wait in 0..steps[at].waits.len() {
                    prop_assert!(!is_ordered(&steps, Some((at, wait))), "step {} need not wait", at);
                }
            }
        }
    }
}
