//! The elements of a group, a block at a time.

use super::program::{Form, Operand, Operation, Program};
use super::roundings::Step;
use super::{MOST_OPERANDS, MOST_RESULTS, blocks};
use crate::cpu::kernels::broadcast::gather;
use crate::cpu::kernels::elements::of_bytes;
use crate::cpu::kernels::parallel::{PIECE, both};
use crate::kernel::{Io, Result, elements_mut};
use ampc_ir::DType;
use half::{bf16, f16};
use smallvec::SmallVec;
use std::ops::Range;

/// Elements per block: the slots of a group stay in the first-level cache.
const BLOCK: usize = 512;

/// The fewest elements per block in memory that is given.
const LEAST_BLOCK: usize = 64;

/// The most slots of a group.
pub(super) const MOST_SLOTS: usize = 24;

/// The most elements of all slots of a group.
const MOST_ROOM: usize = MOST_SLOTS * BLOCK;

/// Where an operand is.
pub(super) enum Source<'a> {
    /// In memory of its own.
    Memory(&'a [u8]),
    /// In the place of a result.
    Taken(usize),
}

/// The operands.
pub(super) type Sources<'a> = SmallVec<[Source<'a>; MOST_OPERANDS]>;

/// The results, or as many elements of each.
pub(super) type Places<'a> = SmallVec<[&'a mut [u8]; MOST_RESULTS]>;

/// Bytes of an element.
pub(super) fn size_of_element(dtype: DType) -> usize {
    match dtype {
        DType::Bool => 1,
        DType::F32 => 4,
        _ => 2,
    }
}

impl Program {
    /// Computes the results of a group.
    pub(super) fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let mut sources: Sources<'_> = SmallVec::new();
        for i in 0..self.operands.len() {
            let taken = io.taken.iter().find(|&&(_, operand)| operand == i);
            sources.push(match taken {
                Some(&(result, _)) => Source::Taken(result),
                None => Source::Memory(io.bytes(i)?),
            });
        }
        let mut places = Places::new();
        for j in 0..self.results.len() {
            places.push(io.out_bytes(j)?);
        }
        self.all(&sources, places, &[]);
        Ok(())
    }

    /// Computes all elements. `given` is the result of the product, not yet rounded; if it is empty, the product is in the
    /// place of the result.
    pub(super) fn all(&self, sources: &[Source<'_>], places: Places<'_>, given: &[f32]) {
        if self.count > 0 {
            self.split(sources, 0, self.count, places, given);
        }
    }

    /// Computes `n` elements from `start` on, in parallel if there are many. Pieces depend on the number of elements alone.
    fn split(&self, sources: &[Source<'_>], start: usize, n: usize, mut places: Places<'_>, given: &[f32]) {
        if n <= PIECE {
            return self.piece(sources, start..start + n, &mut places, given);
        }
        let first = (n / 2).next_multiple_of(PIECE);
        let mut rest = Places::new();
        for (place, &dtype) in places.iter_mut().zip(&self.results) {
            let (before, after) = std::mem::take(place).split_at_mut(first * size_of_element(dtype));
            *place = before;
            rest.push(after);
        }
        let (given, given_rest) = given.split_at(first.min(given.len()));
        let (mut places, mut rest) = (Some(places), Some(rest));
        both(
            &mut || self.split(sources, start, first, places.take().unwrap_or_default(), given),
            &mut || {
                self.split(sources, start + first, n - first, rest.take().unwrap_or_default(), given_rest)
            },
        );
    }

    /// Computes the elements of the only result of the group that begin at `start` into the bytes `to`. `given` is the same
    /// elements of the product, not yet rounded. Overwrites `free`.
    pub(super) fn finish(
        &self,
        sources: &[Source<'_>],
        start: usize,
        given: &[f32],
        to: &mut [u8],
        free: &mut [f32],
    ) {
        let mut places = Places::new();
        places.push(to);
        let range = start..start + given.len();
        let block = (free.len() / self.n_slots.max(1)).min(BLOCK).min(given.len());
        if block < LEAST_BLOCK.min(given.len()) {
            return self.piece(sources, range, &mut places, given);
        }
        self.blocks(sources, range, &mut places, given, (free, block));
    }

    /// Computes a range of elements in slots of this call: no larger than they need to be, since they begin as zeros.
    fn piece(&self, sources: &[Source<'_>], range: Range<usize>, places: &mut Places<'_>, given: &[f32]) {
        let block = range.len().next_multiple_of(LEAST_BLOCK).min(BLOCK);
        let room = self.n_slots * block;
        let mut blocks = |room: &mut [f32]| self.blocks(sources, range.clone(), places, given, (room, block));
        match room {
            0..=512 => blocks(&mut [0.0; 512]),
            513..=1024 => blocks(&mut [0.0; 1024]),
            1025..=2048 => blocks(&mut [0.0; 2048]),
            2049..=4096 => blocks(&mut [0.0; 4096]),
            4097..=6144 => blocks(&mut [0.0; 6144]),
            6145..=MOST_ROOM => blocks(&mut [0.0; MOST_ROOM]),
            _ => blocks(&mut vec![0.0; room]),
        }
    }

    /// Computes a range of elements, `most` at a time, in slots of `most` elements.
    fn blocks(
        &self,
        sources: &[Source<'_>],
        range: Range<usize>,
        places: &mut Places<'_>,
        given: &[f32],
        (slots, most): (&mut [f32], usize),
    ) {
        for start in range.clone().step_by(most.max(1)) {
            let (at, n) = (start - range.start, most.min(range.end - start));
            let given = if given.is_empty() { given } else { &given[at..at + n] };
            let block = Block { program: self, sources, start, at, n, most, given };
            for number in 0..self.steps.len() {
                block.operation(number, places, slots);
            }
        }
    }
}

/// A block of a piece.
struct Block<'a> {
    program: &'a Program,
    sources: &'a [Source<'a>],
    /// Its first element, in the group and in the piece.
    start: usize,
    at: usize,
    n: usize,
    /// Elements of a slot.
    most: usize,
    /// These elements of the product, not yet rounded; empty if they are in the place of the result.
    given: &'a [f32],
}

/// The slots without the slot that is written.
struct Others<'a> {
    before: &'a [f32],
    after: &'a [f32],
}

impl Block<'_> {
    fn operation(&self, number: usize, places: &mut Places<'_>, slots: &mut [f32]) {
        let Step { operation, rounds_to, slot } = self.program.steps[number];
        if operation.stored().is_some() {
            let others = Others { before: slots, after: &[] };
            return self.store(operation, places, &others);
        }
        if operation == Operation::Given && !self.given.is_empty() {
            return;
        }
        if let Operation::Load(operand, form) = operation
            && self.in_memory(operand, form).is_some()
        {
            return;
        }
        let (before, rest) = slots.split_at_mut(slot * self.most);
        let (to, after) = rest.split_at_mut(self.most);
        let others = Others { before, after };
        match operation {
            Operation::Load(operand, form) => self.load(operand, form, places, to),
            Operation::Number(number) => to[..self.n].fill(number),
            Operation::Apply(function, x) => blocks::apply(function, self.wide(x, &others), self.cells(to)),
            Operation::Combine(operation, a, b) => {
                blocks::combine(operation, self.wide(a, &others), self.wide(b, &others), self.cells(to));
            }
            Operation::CombineWith(operation, a, number) => {
                blocks::combine_with(operation, self.wide(a, &others), number, self.cells(to));
            }
            Operation::CombineOf(operation, number, b) => {
                blocks::combine_of(operation, number, self.wide(b, &others), self.cells(to));
            }
            Operation::Compare(order, a, b) => {
                blocks::compare(order, self.wide(a, &others), self.wide(b, &others), self.cells(to));
            }
            Operation::Join(logic, a, b) => {
                blocks::join(logic, self.truths(a, &others), self.truths(b, &others), self.cells(to));
            }
            Operation::Not(a) => blocks::not(self.truths(a, &others), self.cells(to)),
            Operation::Choose(form, [condition, x, y]) => {
                let condition = self.truths(condition, &others);
                match form {
                    Form::Bits => {
                        let (x, y) = (self.bits(x, &others), self.bits(y, &others));
                        blocks::choose(condition, x, y, self.cells(to));
                    }
                    Form::Wide | Form::Truths => {
                        let (x, y) = (self.wide(x, &others), self.wide(y, &others));
                        blocks::choose(condition, x, y, self.cells(to));
                    }
                }
            }
            Operation::AtLeast(least, x) => blocks::at_least(least, self.wide(x, &others), self.cells(to)),
            Operation::AtMost(most, x) => blocks::at_most(most, self.wide(x, &others), self.cells(to)),
            Operation::Round(dtype, x) => blocks::round(dtype, self.wide(x, &others), self.cells(to)),
            Operation::Narrow(dtype, x) => blocks::narrow(dtype, self.wide(x, &others), self.cells(to)),
            Operation::Widen(dtype, x) => blocks::widen(dtype, self.bits(x, &others), self.cells(to)),
            // The numbers are where the result will be.
            Operation::Given => {
                let place = &places[0][self.at * size_of::<f32>()..][..self.n * size_of::<f32>()];
                self.cells::<f32>(to).copy_from_slice(of_bytes(place));
            }
            Operation::Store(..) | Operation::StoreNarrow(..) => {}
        }
        if let Some(dtype) = rounds_to {
            blocks::round_in_place(dtype, self.cells(to));
        }
    }

    /// As many elements of a slot as the block has.
    fn cells<'s, T: bytemuck::Pod>(&self, slot: &'s mut [f32]) -> &'s mut [T] {
        &mut bytemuck::cast_slice_mut(slot)[..self.n]
    }

    /// The elements of an operand, if the operations can read them where they are.
    fn in_memory(&self, operand: usize, form: Form) -> Option<&[u8]> {
        let Operand { dtype, walk } = &self.program.operands[operand];
        let Source::Memory(bytes) = &self.sources[operand] else { return None };
        let is_same = match form {
            Form::Wide => *dtype == DType::F32,
            Form::Bits => dtype.is_low(),
            Form::Truths => *dtype == DType::Bool,
        };
        let size = size_of_element(*dtype);
        (is_same && walk.is_whole(0)).then(|| &bytes[self.start * size..(self.start + self.n) * size])
    }

    /// The elements that an operation has made.
    fn made<'s, T: bytemuck::Pod>(&'s self, number: usize, others: &Others<'s>) -> &'s [T] {
        let Step { operation, slot, .. } = self.program.steps[number];
        if let Operation::Load(operand, form) = operation
            && let Some(bytes) = self.in_memory(operand, form)
        {
            return of_bytes(bytes);
        }
        if operation == Operation::Given && !self.given.is_empty() {
            return bytemuck::cast_slice(self.given);
        }
        let start = slot * self.most;
        let slot = match start.checked_sub(others.before.len()) {
            None => &others.before[start..start + self.most],
            Some(start) => &others.after[start - self.most..start],
        };
        &bytemuck::cast_slice(slot)[..self.n]
    }

    fn wide<'s>(&'s self, number: usize, others: &Others<'s>) -> &'s [f32] {
        self.made(number, others)
    }

    fn bits<'s>(&'s self, number: usize, others: &Others<'s>) -> &'s [u16] {
        self.made(number, others)
    }

    fn truths<'s>(&'s self, number: usize, others: &Others<'s>) -> &'s [u8] {
        self.made(number, others)
    }

    /// Elements of an operand that is broadcast, widened, or in the place of a result.
    fn load(&self, operand: usize, form: Form, places: &Places<'_>, to: &mut [f32]) {
        let Operand { dtype, walk } = &self.program.operands[operand];
        let (bytes, start): (&[u8], usize) = match self.sources[operand] {
            Source::Memory(bytes) => (bytes, self.start),
            Source::Taken(result) => (places[result], self.at),
        };
        // In the place of a result are all elements, of which the piece has its part.
        let is_taken = matches!(self.sources[operand], Source::Taken(_));
        let step = if walk.dims.len() == 1 && walk.dims[0] == 1 { 0 } else { walk.row_stride(0) };
        let mut row = |at: usize, n: usize, from: usize, step: usize| match (form, *dtype) {
            (Form::Wide, DType::F16) => {
                gather::<f16>(of_bytes(bytes), from, step, &mut self.cells::<f32>(to)[at..at + n]);
            }
            (Form::Wide, DType::BF16) => {
                gather::<bf16>(of_bytes(bytes), from, step, &mut self.cells::<f32>(to)[at..at + n]);
            }
            (Form::Wide, _) => {
                gather::<f32>(of_bytes(bytes), from, step, &mut self.cells::<f32>(to)[at..at + n]);
            }
            (Form::Bits, _) => copy::<u16>(of_bytes(bytes), from, step, &mut self.cells(to)[at..at + n]),
            (Form::Truths, _) => copy::<u8>(bytes, from, step, &mut self.cells(to)[at..at + n]),
        };
        if is_taken || walk.is_whole(0) {
            row(0, self.n, start, usize::from(self.program.count > 1));
        } else {
            walk.rows(start, start + self.n, |at, n, from| row(at - start, n, from[0], step));
        }
    }

    /// Writes the elements of a result.
    fn store(&self, operation: Operation, places: &mut Places<'_>, others: &Others<'_>) {
        let (Operation::Store(result, from) | Operation::StoreNarrow(result, _, from)) = operation else {
            return;
        };
        let dtype = self.program.results[result];
        let size = size_of_element(dtype);
        let place = &mut places[result][self.at * size..(self.at + self.n) * size];
        if let Operation::StoreNarrow(_, dtype, _) = operation {
            return blocks::narrow(dtype, self.wide(from, others), elements_mut(place));
        }
        match dtype {
            DType::Bool => elements_mut::<u8>(place).copy_from_slice(self.truths(from, others)),
            DType::F32 => elements_mut::<f32>(place).copy_from_slice(self.wide(from, others)),
            _ => elements_mut::<u16>(place).copy_from_slice(self.bits(from, others)),
        }
    }
}

/// Elements `step` apart.
fn copy<T: Copy>(from: &[T], at: usize, step: usize, to: &mut [T]) {
    match step {
        1 => to.copy_from_slice(&from[at..at + to.len()]),
        0 => to.fill(from[at]),
        _ => to.iter_mut().enumerate().for_each(|(i, y)| *y = from[at + i * step]),
    }
}
