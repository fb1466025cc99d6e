//! One direction of one group of sequences, from its first step to its last one.

use super::cell::{Cell, Kind, Units};
use super::cut::{Cut, Memory, Part};
use super::panels::{Panels, Place, Rows};
use super::weights::{Matrix, Weights};
use super::{Operands, STEP_WORK, WORK, each};
use crate::cpu::kernels::lanes::{Real, Wide};
use std::ops::Range;

/// One direction of one group of sequences.
pub(super) struct Task<'a, W> {
    pub(super) cut: &'a Cut,
    pub(super) cell: Cell<W>,
    pub(super) weights: Weights<'a, W>,
    pub(super) has_peepholes: bool,
    pub(super) x: &'a [W],
    pub(super) lengths: Option<&'a [usize]>,
    pub(super) sequences: Range<usize>,
    pub(super) is_backward: bool,
}

impl<W: Panels> Task<'_, W> {
    /// Loads the initial states.
    pub(super) fn load<T: Real<Wide = W>>(
        &self,
        d: usize,
        operands: &Operands<'_, T>,
        memory: &mut Memory<'_, W>,
    ) {
        let (cut, it) = (self.cut, &self.cut.it);
        for (i, b) in self.sequences.clone().enumerate() {
            load(operands.initial_h, it.state(d, b), &mut memory.states[i * it.hidden..][..it.hidden]);
        }
        for (p, room) in memory.parts.chunks_mut(cut.part_room()).enumerate() {
            let (units, real) = (cut.units(p), cut.real_units(p));
            let part = Part::new(cut, room);
            for (states, initial) in [(part.hidden, operands.initial_h), (part.cell, operands.initial_c)] {
                for (b, state) in self.sequences.clone().zip(states.chunks_exact_mut(units)) {
                    load(initial, it.state(d, b) + p * cut.part, &mut state[..real]);
                    state[real..].fill(W::zero());
                }
            }
        }
    }

    /// All steps.
    pub(super) fn run(&self, memory: &mut Memory<'_, W>) {
        let (cut, it) = (self.cut, &self.cut.it);
        for first in (0..it.steps).step_by(cut.chunk.max(1)) {
            let n = cut.chunk.min(it.steps - first);
            let earliest = if self.is_backward { it.steps - first - n } else { first };
            self.multiply_input(earliest, n, memory);
            for s in first..first + n {
                let t = if self.is_backward { it.steps - 1 - s } else { s };
                self.step(s, t, t - earliest, memory);
            }
        }
    }

    /// The products of some steps of X with W, and the biases.
    fn multiply_input(&self, first: usize, n: usize, memory: &mut Memory<'_, W>) {
        let (cut, it) = (self.cut, &self.cut.it);
        let (outer_step, inner_step) =
            if it.batch_first { (it.input, it.steps * it.input) } else { (it.batch * it.input, it.input) };
        let start = first * outer_step + self.sequences.start * inner_step;
        let inner = self.sequences.len();
        let elements = self.x.get(start..).unwrap_or_default();
        let rows = Rows { elements, len: it.input, n: n * inner, inner, outer_step, inner_step };
        let work = (rows.n * cut.part * it.gates).saturating_mul(it.input);
        each(memory.parts, cut.part_room(), (work, WORK), |p, room| {
            let to = Part::new(cut, room).gates;
            self.multiply(self.weights.w, p, 0..it.gates, rows, Some(self.weights.bias(cut, p)), to);
        });
    }

    /// Step `s` of the computation at time `t`, which is time `i` of those whose products with W are there.
    fn step(&self, s: usize, t: usize, i: usize, memory: &mut Memory<'_, W>) {
        let (cut, it) = (self.cut, &self.cut.it);
        let state = cut.group * it.hidden;
        let (before, after) = neighbors(memory.states, state, cut.slot(s), cut.slot(s + 1));
        let is_over = |lengths: &[usize]| lengths[self.sequences.clone()].iter().all(|&n| t >= n);
        if self.lengths.is_some_and(is_over) {
            after.copy_from_slice(before);
            return;
        }
        let first = self.cell.first_gates();
        let work = |gates: usize| (self.sequences.len() * cut.part * gates).saturating_mul(it.hidden);
        each(memory.parts, cut.part_room(), (work(first), STEP_WORK), |p, room| {
            let mut part = Part::new(cut, room);
            if self.cell.kind == Kind::Gru(true) {
                self.multiply_state(p, i, before, 0..2, &mut part);
                self.multiply_hidden(p, before, &mut part);
            } else {
                self.multiply_state(p, i, before, 0..first, &mut part);
            }
            self.each_run(t, |rows| self.cell.step(&mut self.units(p, i, rows, &mut part)));
        });
        if cut.has_reset {
            self.gather(memory.parts, memory.reset, |part| part.reset);
            let reset = &*memory.reset;
            each(memory.parts, cut.part_room(), (work(1), STEP_WORK), |p, room| {
                let mut part = Part::new(cut, room);
                self.multiply_state(p, i, reset, 2..3, &mut part);
                self.each_run(t, |rows| self.cell.finish(&mut self.units(p, i, rows, &mut part)));
            });
        }
        self.gather(memory.parts, after, |part| part.hidden);
    }

    /// Adds the products of states with some gates of R in part `p` to the arguments of the gates at time `i`.
    fn multiply_state(&self, p: usize, i: usize, states: &[W], gates: Range<usize>, part: &mut Part<'_, W>) {
        let (cut, it) = (self.cut, &self.cut.it);
        let (n, units) = (self.sequences.len(), cut.units(p));
        let to = &mut part.gates[(i * it.gates + gates.start) * n * units..];
        self.multiply(self.weights.r, p, gates, Rows::contiguous(states, it.hidden, n), None, to);
    }

    /// The products of states with the hidden gate of R in part `p`, and its bias.
    fn multiply_hidden(&self, p: usize, states: &[W], part: &mut Part<'_, W>) {
        let (cut, it) = (self.cut, &self.cut.it);
        let (n, units) = (self.sequences.len(), cut.units(p));
        let bias = &self.weights.r_bias[p * cut.part..][..units];
        let to = &mut part.values[2 * n * units..];
        self.multiply(self.weights.r, p, 2..3, Rows::contiguous(states, it.hidden, n), Some(bias), to);
    }

    /// The products of rows with some gates of part `p` of a matrix.
    fn multiply(
        &self,
        matrix: Matrix<'_, W>,
        p: usize,
        gates: Range<usize>,
        rows: Rows<'_, W>,
        start: Option<&[W]>,
        to: &mut [W],
    ) {
        let (cut, it, k) = (self.cut, &self.cut.it, rows.len);
        let to = Place { elements: to, groups: gates.len(), columns: cut.units(p) };
        match matrix {
            Matrix::Packed(panels) => {
                let first = (it.gates * p * cut.part + gates.start * to.columns) * k;
                W::multiply(rows, &panels[first..][..gates.len() * to.columns * k], start, to);
            }
            Matrix::Unpacked(elements) => {
                let first = (gates.start * it.hidden + p * cut.part) * k;
                let weights = Rows {
                    elements: elements.get(first..).unwrap_or_default(),
                    len: k,
                    n: gates.len() * cut.real_units(p),
                    inner: cut.real_units(p),
                    outer_step: it.hidden * k,
                    inner_step: k,
                };
                W::multiply_unpacked(rows, weights, start, to);
            }
        }
    }

    /// The units of part `p` of some sequences at time `i` of those whose products with W are there.
    fn units<'m>(&self, p: usize, i: usize, rows: Range<usize>, part: &'m mut Part<'_, W>) -> Units<'m, W>
    where
        Self: 'm,
    {
        let (cut, it) = (self.cut, &self.cut.it);
        let (n, all) = (cut.units(p), self.sequences.len());
        let size = it.gates * all * n;
        let peepholes =
            if self.has_peepholes { &self.weights.peepholes[3 * p * cut.part..][..3 * n] } else { &[] };
        Units {
            n,
            all,
            rows,
            gates: &mut part.gates[i * size..][..size],
            values: &mut part.values[..size],
            peepholes,
            hidden: &mut part.hidden[..all * n],
            cell: &mut part.cell[..all * n],
            reset: part.reset,
        }
    }

    /// Calls `work` with sequences that are not over at time `t`, as many neighbors at once as there are.
    fn each_run(&self, t: usize, mut work: impl FnMut(Range<usize>)) {
        let n = self.sequences.len();
        let Some(lengths) = self.lengths else { return work(0..n) };
        let lengths = &lengths[self.sequences.clone()];
        let mut rows = 0..0;
        while rows.end < n {
            let is_on = t < lengths[rows.end];
            rows = rows.end..(rows.end..n).find(|&b| (t < lengths[b]) != is_on).unwrap_or(n);
            if is_on {
                work(rows.clone());
            }
        }
    }

    /// Copies states from all parts to rows.
    fn gather(&self, parts: &mut [W], to: &mut [W], states: impl Fn(Part<'_, W>) -> &mut [W]) {
        let (cut, it) = (self.cut, &self.cut.it);
        for (p, room) in parts.chunks_mut(cut.part_room()).enumerate() {
            let (units, real) = (cut.units(p), cut.real_units(p));
            let rows = states(Part::new(cut, room)).chunks_exact(units).take(self.sequences.len());
            for (from, to) in rows.zip(to.chunks_exact_mut(it.hidden)) {
                to[p * cut.part..][..real].copy_from_slice(&from[..real]);
            }
        }
    }
}

/// Two different slots of `n` elements each, the second one to be written.
fn neighbors<W>(slots: &mut [W], n: usize, first: usize, second: usize) -> (&[W], &mut [W]) {
    let (low, high) = slots.split_at_mut(first.max(second) * n);
    if first < second {
        (&low[first * n..][..n], &mut high[..n])
    } else {
        (&high[..n], &mut low[second * n..][..n])
    }
}

/// An initial state, zeros if there is none.
fn load<T: Real>(from: Option<&[T]>, at: usize, to: &mut [T::Wide]) {
    match from {
        Some(from) => T::widen(&from[at..at + to.len()], to),
        None => to.fill(T::Wide::of(0.0)),
    }
}
