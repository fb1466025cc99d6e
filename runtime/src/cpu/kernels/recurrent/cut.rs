//! How the work of a recurrent operator is cut into tasks and parts, and where their memory is.

use std::ops::Range;

/// Extents that operands and results share.
#[derive(Clone, Copy)]
pub(super) struct Extents {
    pub(super) steps: usize,
    pub(super) batch: usize,
    pub(super) input: usize,
    pub(super) hidden: usize,
    pub(super) directions: usize,
    /// Weight matrices, stacked in one operand.
    pub(super) gates: usize,
    pub(super) batch_first: bool,
}

impl Extents {
    /// All gates of one sequence.
    pub(super) fn row(&self) -> usize {
        self.gates * self.hidden
    }

    /// Where the state of a sequence is in Y_h and the like.
    pub(super) fn state(&self, direction: usize, batch: usize) -> usize {
        let i = if self.batch_first {
            batch * self.directions + direction
        } else {
            direction * self.batch + batch
        };
        i * self.hidden
    }

    /// The step, direction and sequence of row `i` of Y.
    pub(super) fn result(&self, i: usize) -> (usize, usize, usize) {
        if self.batch_first {
            let outer = i / self.directions;
            (outer % self.steps, i % self.directions, outer / self.steps)
        } else {
            let outer = i / self.batch;
            (outer / self.directions, outer % self.directions, i % self.batch)
        }
    }
}

/// Units are computed in whole vectors of any processor.
pub(super) const VECTOR: usize = 16;

/// The most units of a part.
const PART: usize = 64;

/// The least number of rows that a matrix is multiplied with for which the matrix is packed.
const PACKED_ROWS: usize = 12;

/// The least number of rows that a matrix is multiplied with for which it is packed in each run although it is a constant:
/// packing is then little of the work, and not worth the memory.
const KEPT_ROWS: usize = 256;

/// Rows whose products with W are computed at once.
const INPUT_ROWS: usize = 64;

/// Facts about the node that the cut depends on.
pub(super) struct Options {
    /// True if a step has a second part.
    pub(super) has_reset: bool,
    /// True if there is a result Y.
    pub(super) wants_y: bool,
    /// True if W and R are the same in each run.
    pub(super) is_constant: bool,
}

/// How the work is cut, and where its memory is.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    pub(super) it: Extents,
    /// The units of all parts, in whole vectors.
    pub(super) padded: usize,
    /// The units of each part but the last one.
    pub(super) part: usize,
    pub(super) parts: usize,
    /// Sequences of each group but the last one.
    pub(super) group: usize,
    pub(super) groups: usize,
    /// Steps whose products with W are computed at once.
    pub(super) chunk: usize,
    /// States that are kept: all if there is a result Y, else the last two.
    pub(super) slots: usize,
    /// True if a step has a second part.
    pub(super) has_reset: bool,
    /// True if the packed W and R are kept from run to run.
    pub(super) is_kept: bool,
    /// True for each of W and R if the matrix is not packed, because too few rows are multiplied with it.
    pub(super) is_unpacked: [bool; 2],
}

impl Cut {
    pub(super) fn new(it: Extents, options: Options) -> Cut {
        let padded = it.hidden.next_multiple_of(VECTOR);
        let part = it.hidden.div_ceil(it.hidden.div_ceil(PART).max(1)).next_multiple_of(VECTOR);
        // The larger R, the more sequences have to share that it is read.
        let most = match it.gates.saturating_mul(it.hidden).saturating_mul(it.hidden) {
            0..=0x1_0000 => 4,
            0x1_0001..=0x4_0000 => 8,
            _ => 32,
        };
        let groups = it.batch.div_ceil(most);
        let group = it.batch.div_ceil(groups.max(1));
        let rows_of = |batch: usize| it.steps.saturating_mul(batch);
        Cut {
            it,
            padded,
            part,
            parts: it.hidden.div_ceil(part.max(1)),
            group,
            groups,
            chunk: INPUT_ROWS.div_ceil(group.max(1)).min(it.steps),
            slots: if options.wants_y { it.steps.saturating_add(1) } else { 2 },
            has_reset: options.has_reset,
            is_kept: options.is_constant && rows_of(it.batch) < KEPT_ROWS,
            is_unpacked: [it.batch, group].map(|batch| rows_of(batch) < PACKED_ROWS),
        }
    }

    /// The units of part `p`, in whole vectors.
    pub(super) fn units(&self, p: usize) -> usize {
        self.part.min(self.padded - p * self.part)
    }

    /// The units of part `p`.
    pub(super) fn real_units(&self, p: usize) -> usize {
        self.part.min(self.it.hidden - p * self.part)
    }

    /// The sequences of group `g`.
    pub(super) fn sequences(&self, g: usize) -> Range<usize> {
        g * self.group..((g + 1) * self.group).min(self.it.batch)
    }

    /// The elements in a row of W or R.
    pub(super) fn depth(&self, which: usize) -> usize {
        [self.it.input, self.it.hidden][which]
    }

    /// Elements of the memory of one of the matrices W and R of a direction.
    pub(super) fn matrix_room(&self, which: usize, is_wide: bool) -> usize {
        let k = self.depth(which);
        match (self.is_unpacked[which], is_wide) {
            (true, true) => 0,
            (true, false) => self.it.row().saturating_mul(k).next_multiple_of(VECTOR),
            (false, _) => self.it.gates.saturating_mul(self.padded).saturating_mul(k),
        }
    }

    /// Elements of the memory of the vectors of one direction.
    pub(super) fn vectors_room(&self) -> usize {
        (self.it.gates + 4).saturating_mul(self.padded)
    }

    /// Elements of the memory of a part of a task.
    pub(super) fn part_room(&self) -> usize {
        let states = 2 + usize::from(self.has_reset);
        let rows = self.chunk.saturating_add(1).saturating_mul(self.it.gates).saturating_add(states);
        rows.saturating_mul(self.group).saturating_mul(self.part)
    }

    /// Elements of the memory of W and R of one direction.
    pub(super) fn matrices_room(&self, is_wide: bool) -> usize {
        self.matrix_room(0, is_wide).saturating_add(self.matrix_room(1, is_wide))
    }

    /// Elements of the states of a task.
    pub(super) fn states_room(&self) -> usize {
        let slots = self.slots.saturating_add(usize::from(self.has_reset));
        slots.saturating_mul(self.group).saturating_mul(self.it.hidden).next_multiple_of(VECTOR)
    }

    pub(super) fn task_room(&self) -> usize {
        self.parts.saturating_mul(self.part_room()).saturating_add(self.states_room())
    }

    /// The slot of the state before step `s`.
    pub(super) fn slot(&self, s: usize) -> usize {
        s % self.slots
    }
}

/// The memory of a task.
pub(super) struct Memory<'a, W> {
    /// States: slot, sequence, unit.
    pub(super) states: &'a mut [W],
    /// The states times the reset gate.
    pub(super) reset: &'a mut [W],
    /// That of all parts.
    pub(super) parts: &'a mut [W],
}

impl<'a, W> Memory<'a, W> {
    pub(super) fn new(cut: &Cut, room: &'a mut [W]) -> Memory<'a, W> {
        let (states, parts) = room.split_at_mut(cut.states_room());
        let (states, reset) = states.split_at_mut(cut.slots * cut.group * cut.it.hidden);
        Memory { states, reset, parts }
    }
}

/// The memory of a part of a task.
pub(super) struct Part<'a, W> {
    /// The states: sequence, unit.
    pub(super) hidden: &'a mut [W],
    pub(super) cell: &'a mut [W],
    /// The states times the reset gate.
    pub(super) reset: &'a mut [W],
    /// The values of the gates: gate, sequence, unit.
    pub(super) values: &'a mut [W],
    /// The arguments of the gates: gate, step, sequence, unit.
    pub(super) gates: &'a mut [W],
}

impl<'a, W> Part<'a, W> {
    pub(super) fn new(cut: &Cut, room: &'a mut [W]) -> Part<'a, W> {
        let state = cut.group * cut.part;
        let (hidden, room) = room.split_at_mut(state);
        let (cell, room) = room.split_at_mut(state);
        let (reset, room) = room.split_at_mut(usize::from(cut.has_reset) * state);
        let (values, gates) = room.split_at_mut(cut.it.gates * state);
        Part { hidden, cell, reset, values, gates }
    }
}
