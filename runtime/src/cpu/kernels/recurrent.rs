//! RNN, GRU and LSTM.
//!
//! With `·` for products of matrices, `∘` for those of elements and b for the sum of both biases (ONNX operator text):
//!
//! - RNN: `H = f(X·Wᵀ + H·Rᵀ + b)`
//! - GRU: `z = f(X·Wzᵀ + H·Rzᵀ + bz)`, r alike, `h = g(X·Whᵀ + (r ∘ H)·Rhᵀ + bh)`, or with `linear_before_reset`
//!   `h = g(X·Whᵀ + r ∘ (H·Rhᵀ + Rbh) + Wbh)`; `H = (1 - z) ∘ h + z ∘ H`
//! - LSTM: `i = f(X·Wiᵀ + H·Riᵀ + Pi ∘ C + bi)`, f alike or `1 - i` with `input_forget`, `c = g(X·Wcᵀ + H·Rcᵀ + bc)`,
//!   `C = f ∘ C + i ∘ c`, `o = f(X·Woᵀ + H·Roᵀ + Po ∘ C + bo)`, `H = o ∘ h(C)`
//!
//! The arguments of f, g and h are bounded by `clip`. States stay in f32 (f64 for f64) from step to step;
//! results are rounded once. A sequence that is shorter than the others has zeros in Y behind its end, and its
//! last state in Y_h.
//!
//! W and R are packed ([`panels`]) unless few rows are multiplied with them: in each run, or in the first run if they are
//! constants and runs are short ([`weights`]). The units of a direction are cut into parts, and the sequences of a batch
//! into groups ([`cut`]). A task is one direction of one group ([`task`]); tasks share nothing that changes, and run in
//! parallel. A task computes the products with W of some steps at once, and then the product with R and the gates
//! ([`cell`]) step by step. In both, the parts run in parallel if they are large. All cuts depend on sizes alone.

mod cell;
mod cut;
mod panels;
mod task;
#[cfg(test)]
mod tests;
mod weights;

use self::cell::{Cell, Kind};
use self::cut::{Cut, Extents, Memory, Options, VECTOR};
use self::panels::Panels;
use self::task::Task;
use self::weights::{Kept, Weights, write_matrices, write_vectors};
use super::lanes::{Real, Wide, for_real, widened};
use super::parallel::{PIECE, numbered_pieces, pieces};
use crate::kernel::{Io, KernelError, Prepare, Prepared, Result, Site};
use crate::room::Room;
use ampc_ir::op::OpKind;
use ampc_ir::views::recurrent::{Activation, Direction, RecurrentView};
use bytemuck::Pod;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::RNN | OpKind::GRU | OpKind::LSTM => recurrent,
        _ => return None,
    })
}

/// A node for operands of some dims.
struct Recurrent {
    kind: Kind,
    cut: Cut,
    view: RecurrentView,
    /// The functions of all directions.
    functions: Vec<Activation>,
    /// Elements of X.
    input: usize,
}

fn recurrent(site: &Site<'_>) -> Result<Prepared> {
    let view = RecurrentView::read(&site.view)?;
    let (x, r) = (site.dims(0)?, site.dims(2)?);
    let (steps, batch) = if view.batch_first { (x[1], x[0]) } else { (x[0], x[1]) };
    let gates = usize::try_from(view.gates).unwrap_or(usize::MAX);
    let directions = if view.direction == Direction::Bidirectional { 2 } else { 1 };
    let it =
        Extents { steps, batch, input: x[2], hidden: r[2], directions, gates, batch_first: view.batch_first };
    let functions = view.activations(&site.view)?;
    let kind = match site.kind() {
        OpKind::LSTM => Kind::Lstm,
        OpKind::GRU => Kind::Gru(view.linear_before_reset),
        _ => Kind::Rnn,
    };
    let is_constant = |i: usize| !site.view.is_running() && site.view.constant(i).is_some();
    let options = Options {
        has_reset: kind == Kind::Gru(false),
        wants_y: site.wants(0),
        is_constant: is_constant(1) && is_constant(2),
    };
    let cut = Cut::new(it, options);
    let node = Recurrent { kind, cut, view, functions, input: x.iter().product() };
    Ok(for_real!(site.dtype(0)?, site, T => node.prepared::<T, <T as Real>::Wide>()))
}

/// The operands as they are read.
struct Operands<'a, T: Real> {
    x: &'a [T::Wide],
    /// W and R.
    matrices: [&'a [T]; 2],
    b: Option<&'a [T]>,
    peepholes: Option<&'a [T]>,
    initial_h: Option<&'a [T]>,
    initial_c: Option<&'a [T]>,
    lengths: Option<Vec<usize>>,
}

impl Recurrent {
    fn prepared<T: Real<Wide = W>, W: Panels>(self) -> Prepared {
        let (cut, d) = (self.cut, self.cut.it.directions);
        let copied = if T::IS_WIDE { 0 } else { self.input.next_multiple_of(VECTOR) };
        let vectors = cut.vectors_room().saturating_mul(d);
        let matrices = cut.matrices_room(T::IS_WIDE).saturating_mul(d);
        let tasks = cut.task_room().saturating_mul(cut.groups).saturating_mul(d);
        let own = if cut.is_kept { 0 } else { matrices };
        let words = [copied, vectors, own, tasks].into_iter().fold(0, usize::saturating_add);
        let kept = Kept::default();
        Prepared::new(move |io| {
            let (wide, room) = io.scratch::<W>().split_at_mut(copied);
            if self.cut.it.input == 0 {
                // X has no elements, however many steps there are. The limit is that of the arguments of all gates.
                let it = &self.cut.it;
                io.room().check::<W>(it.steps.saturating_mul(it.batch).saturating_mul(it.row()))?;
            }
            let operands = self.operands::<T>(io, wide)?;
            if self.cut.it.hidden == 0 || self.cut.it.batch == 0 {
                return Ok(());
            }
            let (vectors, room) = room.split_at_mut(vectors);
            let (own, room) = room.split_at_mut(own);
            write_vectors(&self.cut, &operands, self.kind == Kind::Gru(true), vectors);
            let write = |to: &mut [W]| write_matrices(&self.cut, &operands, to);
            let matrices = if self.cut.is_kept {
                kept.get(matrices, io.room(), write)?
            } else {
                write(own);
                own
            };
            let room = &mut room[..tasks];
            self.compute(&operands, matrices, vectors, room);
            self.write::<T>(io, operands.lengths.as_deref(), room)
        })
        .scratch(words.saturating_mul(size_of::<W>()))
    }

    /// The operands; X is widened in `room`.
    fn operands<'a, T: Real>(&self, io: &Io<'a>, room: &'a mut [T::Wide]) -> Result<Operands<'a, T>> {
        let given = |i: usize| if io.has(i) { io.slice::<T>(i).map(Some) } else { Ok(None) };
        let is_lstm = self.kind == Kind::Lstm;
        Ok(Operands {
            x: widened(io.slice::<T>(0)?, room),
            matrices: [io.slice::<T>(1)?, io.slice::<T>(2)?],
            b: given(3)?,
            lengths: if io.has(4) {
                Some(lengths(&self.cut.it, io.slice::<i32>(4)?, io.room())?)
            } else {
                None
            },
            initial_h: given(5)?,
            initial_c: if is_lstm { given(6)? } else { None },
            peepholes: if is_lstm { given(7)? } else { None },
        })
    }

    /// The computation of direction `d` at each step.
    fn cell<W: Wide>(&self, d: usize) -> Cell<W> {
        let n = self.functions.len() / self.cut.it.directions;
        let functions = &self.functions[d * n..(d + 1) * n];
        Cell {
            kind: self.kind,
            functions: std::array::from_fn(|i| functions[i.min(n - 1)]),
            clip: self.view.clip.map_or(W::infinity(), |clip| W::of(f64::from(clip))),
            input_forget: self.view.input_forget,
        }
    }

    /// The states of all steps, in the memory of the tasks.
    fn compute<T: Real<Wide = W>, W: Panels>(
        &self,
        operands: &Operands<'_, T>,
        matrices: &[W],
        vectors: &[W],
        room: &mut [W],
    ) {
        let (cut, it) = (&self.cut, &self.cut.it);
        let work = (it.steps * cut.group).saturating_mul(it.row()).saturating_mul(it.input + it.hidden);
        each(room, cut.task_room(), (work, WORK), |i, room| {
            let (d, g) = (i / cut.groups, i % cut.groups);
            let task = Task {
                cut,
                cell: self.cell(d),
                weights: Weights::new(cut, d, operands, matrices, vectors),
                has_peepholes: operands.peepholes.is_some(),
                x: operands.x,
                lengths: operands.lengths.as_deref(),
                sequences: cut.sequences(g),
                is_backward: self.is_backward(d),
            };
            let mut memory = Memory::new(cut, room);
            task.load(d, operands, &mut memory);
            task.run(&mut memory);
        });
    }

    fn is_backward(&self, d: usize) -> bool {
        self.view.direction == Direction::Reverse || d == 1
    }

    /// Rounds the states to the results.
    fn write<T: Real>(&self, io: &mut Io<'_>, lengths: Option<&[usize]>, room: &[T::Wide]) -> Result<()> {
        let (cut, it) = (&self.cut, &self.cut.it);
        let task = |d: usize, b: usize| &room[(d * cut.groups + b / cut.group) * cut.task_room()..];
        let state = |d: usize, b: usize, s: usize| {
            &task(d, b)[(cut.slot(s) * cut.group + b % cut.group) * it.hidden..][..it.hidden]
        };
        if io.wants(0) {
            let rows = (PIECE / it.hidden).max(1);
            pieces(io.out::<T>(0)?, rows * it.hidden, |start, y| {
                for (i, y) in y.chunks_exact_mut(it.hidden).enumerate() {
                    let (t, d, b) = it.result(start / it.hidden + i);
                    if lengths.is_some_and(|lengths| t >= lengths[b]) {
                        y.fill(T::zeroed());
                    } else {
                        let s = if self.is_backward(d) { it.steps - 1 - t } else { t };
                        T::narrow(state(d, b, s + 1), y);
                    }
                }
            });
        }
        let all = || (0..it.directions).flat_map(|d| (0..it.batch).map(move |b| (d, b)));
        if io.wants(1) {
            let y_h = io.out::<T>(1)?;
            all()
                .for_each(|(d, b)| T::narrow(state(d, b, it.steps), &mut y_h[it.state(d, b)..][..it.hidden]));
        }
        if self.kind == Kind::Lstm && io.wants(2) {
            let y_c = io.out::<T>(2)?;
            for ((d, b), p) in all().flat_map(|at| (0..cut.parts).map(move |p| (at, p))) {
                // The cell states are behind the states.
                let part = &task(d, b)[cut.states_room() + p * cut.part_room() + cut.group * cut.part..];
                let (n, at) = (cut.real_units(p), b % cut.group * cut.units(p));
                T::narrow(&part[at..at + n], &mut y_c[it.state(d, b) + p * cut.part..][..n]);
            }
        }
        Ok(())
    }
}

fn lengths(it: &Extents, lengths: &[i32], room: Room) -> Result<Vec<usize>> {
    let length = |&n: &i32| {
        let found = usize::try_from(n).ok().filter(|&n| n <= it.steps);
        found.ok_or_else(|| KernelError::value(format!("lengths in [0, {}]", it.steps), n))
    };
    room.try_gathered(lengths.iter().map(length))
}

/// The least number of multiplications for a thread.
const WORK: usize = 1 << 18;

/// The least number of multiplications for a thread within a step: threads are still awake from the step before.
const STEP_WORK: usize = 1 << 16;

/// Calls `work` with every piece of `room` and its index. The pieces are in parallel if the work is enough for more than
/// one thread.
fn each<W: Pod>(
    room: &mut [W],
    piece: usize,
    (work_of_piece, least_work): (usize, usize),
    work: impl Fn(usize, &mut [W]) + Sync,
) {
    numbered_pieces(room, piece, least_work.div_ceil(work_of_piece.max(1)), work);
}
