//! RNN, GRU and LSTM.
//!
//! The products of all steps with W are one product; that with R is one per step. With `·` for products of matrices,
//! `∘` for those of elements and b for the sum of both biases (ONNX operator text):
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

use super::functions::{sigmoid, tanh};
use super::lanes::{PIECE, Real, Wide, for_real, widened};
use super::linear::{Matrix, multiply};
use crate::kernel::{Io, KernelError, Prepare, Prepared, Result, Site};
use crate::room::Room;
use ampc_ir::op::OpKind;
use ampc_ir::views::recurrent::{Activation, Direction, RecurrentView};
use rayon::prelude::*;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::RNN | OpKind::GRU | OpKind::LSTM => recurrent,
        _ => return None,
    })
}

/// `x = f(x)`, bounded before.
fn activate<W: Wide>(f: Activation, clip: Option<W>, x: &mut [W]) {
    if let Some(clip) = clip {
        x.iter_mut().for_each(|x| {
            *x = if *x > clip {
                clip
            } else if *x < -clip {
                -clip
            } else {
                *x
            }
        });
    }
    let (zero, one) = (W::zero(), W::one());
    let of = |parameter: f32| W::of(f64::from(parameter));
    let mut each = |f: &dyn Fn(W) -> W| x.iter_mut().for_each(|x| *x = f(*x));
    match f {
        Activation::Relu => each(&|x| if x < zero { zero } else { x }),
        Activation::Tanh => x.iter_mut().for_each(|x| *x = tanh(*x)),
        Activation::Sigmoid => x.iter_mut().for_each(|x| *x = sigmoid(*x)),
        Activation::Affine(alpha, beta) => each(&|x| of(alpha) * x + of(beta)),
        Activation::LeakyRelu(alpha) => each(&|x| if x < zero { of(alpha) * x } else { x }),
        Activation::ThresholdedRelu(alpha) => each(&|x| if x < of(alpha) { zero } else { x }),
        Activation::ScaledTanh(alpha, beta) => {
            x.iter_mut().for_each(|x| *x = of(alpha) * tanh(of(beta) * *x))
        }
        Activation::HardSigmoid(alpha, beta) => {
            each(&|x| {
                let y = of(alpha) * x + of(beta);
                if y < zero {
                    zero
                } else if y > one {
                    one
                } else {
                    y
                }
            });
        }
        Activation::Elu(alpha) => each(&|x| if x < zero { of(alpha) * x.exp_m1() } else { x }),
        Activation::Softsign => each(&|x| x / (one + x.abs())),
        Activation::Softplus => each(&|x| (if x < zero { zero } else { x }) + (-x.abs()).exp().ln_1p()),
    }
}

/// Extents that operands and results share.
#[derive(Clone, Copy)]
struct Extents {
    steps: usize,
    batch: usize,
    input: usize,
    hidden: usize,
    directions: usize,
    /// Weight matrices, stacked in one operand.
    gates: usize,
    batch_first: bool,
}

impl Extents {
    /// All gates of one sequence.
    fn row(&self) -> usize {
        self.gates * self.hidden
    }

    /// Where the state of a sequence is in Y_h and the like.
    fn state(&self, direction: usize, batch: usize) -> usize {
        let i = if self.batch_first {
            batch * self.directions + direction
        } else {
            direction * self.batch + batch
        };
        i * self.hidden
    }

    /// Where the result of a step is in Y.
    fn result(&self, direction: usize, batch: usize, step: usize) -> usize {
        let i = if self.batch_first {
            (batch * self.steps + step) * self.directions + direction
        } else {
            (step * self.directions + direction) * self.batch + batch
        };
        i * self.hidden
    }
}

/// Computation of one direction at each step.
struct Cell<W> {
    kind: OpKind,
    functions: [Activation; 3],
    clip: Option<W>,
    input_forget: bool,
    linear_before_reset: bool,
}

/// The weights of one direction.
struct Weights<'a, W> {
    w: &'a [W],
    r: &'a [W],
    /// Both biases, added; of the hidden gate of a GRU with `linear_before_reset` only that of W.
    bias: &'a [W],
    /// The bias of R.
    r_bias: &'a [W],
    peepholes: Option<&'a [W]>,
}

/// The memory of one direction.
struct Memory<'a, W> {
    /// The arguments of the gates, for all steps.
    gates: &'a mut [W],
    /// The product of the state with R.
    product: &'a mut [W],
    /// The state after the reset gate.
    reset: &'a mut [W],
    hidden: &'a mut [W],
    cell: &'a mut [W],
}

impl<'a, W> Memory<'a, W> {
    fn new(it: &Extents, room: &'a mut [W]) -> Memory<'a, W> {
        let state = it.batch * it.hidden;
        let (gates, room) = room.split_at_mut(it.steps * it.batch * it.row());
        let (product, room) = room.split_at_mut(it.batch * it.row());
        let (reset, room) = room.split_at_mut(state);
        let (hidden, room) = room.split_at_mut(state);
        Memory { gates, product, reset, hidden, cell: &mut room[..state] }
    }

    fn room(it: &Extents) -> usize {
        (it.steps + 1) * it.batch * it.row() + 3 * it.batch * it.hidden
    }
}

/// A state times the transpose of rows of R.
fn recur<W: Wide>(rows: usize, state: &[W], r: &[W], hidden: usize, to: &mut [W]) {
    let state_of = Matrix { elements: state, row: hidden, column: 1 };
    let r = Matrix { elements: r, row: 1, column: hidden };
    multiply((state.len() / hidden, rows, hidden), state_of, r, to, None);
}

impl<W: Wide> Cell<W> {
    /// One step of all sequences that are not over: gates to states.
    fn step(
        &self,
        it: &Extents,
        weights: &Weights<'_, W>,
        memory: &mut Memory<'_, W>,
        t: usize,
        is_on: &(impl Fn(usize) -> bool + Sync),
    ) {
        let (hidden, row) = (it.hidden, it.row());
        let gates = &mut memory.gates[t * it.batch * row..][..it.batch * row];
        let rows = if self.kind == OpKind::GRU && !self.linear_before_reset { 2 * hidden } else { row };
        let product = &mut memory.product[..it.batch * rows];
        recur(rows, memory.hidden, &weights.r[..rows * hidden], hidden, product);
        let least = PIECE / 4 / row + 1;
        let all = gates
            .par_chunks_mut(row)
            .zip(product.par_chunks(rows))
            .zip(memory.hidden.par_chunks_mut(hidden))
            .zip(memory.cell.par_chunks_mut(hidden).zip(memory.reset.par_chunks_mut(hidden)))
            .enumerate()
            .with_min_len(least)
            .filter(|(i, _)| is_on(*i));
        all.for_each(|(_, (((gates, product), h), (c, reset)))| match self.kind {
            OpKind::LSTM => self.lstm(weights, gates, product, h, c),
            OpKind::GRU => self.reset(weights, gates, product, h, reset),
            _ => {
                add(gates, product, weights.bias);
                activate(self.functions[0], self.clip, gates);
                h.copy_from_slice(gates);
            }
        });
        if self.kind != OpKind::GRU {
            return;
        }
        let product = &mut memory.product[..it.batch * hidden];
        if !self.linear_before_reset {
            recur(hidden, memory.reset, &weights.r[2 * hidden * hidden..], hidden, product);
        }
        let rest = gates
            .par_chunks_mut(row)
            .zip(product.par_chunks(hidden))
            .zip(memory.hidden.par_chunks_mut(hidden))
            .enumerate()
            .with_min_len(least)
            .filter(|(i, _)| is_on(*i));
        rest.for_each(|(_, ((gates, product), h))| {
            let (zr, hidden_gate) = gates.split_at_mut(2 * hidden);
            if !self.linear_before_reset {
                add(hidden_gate, product, &weights.bias[2 * hidden..]);
            }
            activate(self.functions[1], self.clip, hidden_gate);
            for ((h, &new), &z) in h.iter_mut().zip(&*hidden_gate).zip(&*zr) {
                *h = (W::one() - z) * new + z * *h;
            }
        });
    }

    /// The gates z and r of a GRU, and the state or its product times r.
    fn reset(&self, weights: &Weights<'_, W>, gates: &mut [W], product: &[W], h: &[W], reset: &mut [W]) {
        let n = h.len();
        let (zr, hidden_gate) = gates.split_at_mut(2 * n);
        add(zr, product, weights.bias);
        activate(self.functions[0], self.clip, zr);
        let r = &zr[n..];
        if self.linear_before_reset {
            let of_r = product[2 * n..].iter().zip(&weights.r_bias[2 * n..]);
            for (((x, &r), (&p, &rb)), &wb) in
                hidden_gate.iter_mut().zip(r).zip(of_r).zip(&weights.bias[2 * n..])
            {
                *x = *x + r * (p + rb) + wb;
            }
        } else {
            reset.iter_mut().zip(r).zip(h).for_each(|((y, &r), &h)| *y = r * h);
        }
    }

    fn lstm(&self, weights: &Weights<'_, W>, gates: &mut [W], product: &[W], h: &mut [W], c: &mut [W]) {
        let n = h.len();
        let [f, g, of_cell] = self.functions;
        add(gates, product, weights.bias);
        let (i, rest) = gates.split_at_mut(n);
        let (o, rest) = rest.split_at_mut(n);
        let (forget, new) = rest.split_at_mut(n);
        let peep = |x: &mut [W], which: usize, c: &[W]| {
            if let Some(p) = weights.peepholes {
                x.iter_mut().zip(&p[which * n..]).zip(c).for_each(|((x, &p), &c)| *x = *x + p * c);
            }
        };
        peep(i, 0, c);
        activate(f, self.clip, i);
        if self.input_forget {
            forget.iter_mut().zip(&*i).for_each(|(f, &i)| *f = W::one() - i);
        } else {
            peep(forget, 2, c);
            activate(f, self.clip, forget);
        }
        activate(g, self.clip, new);
        for (((c, &f), &i), &new) in c.iter_mut().zip(&*forget).zip(&*i).zip(&*new) {
            *c = f * *c + i * new;
        }
        peep(o, 1, c);
        activate(f, self.clip, o);
        h.copy_from_slice(c);
        activate(of_cell, self.clip, h);
        h.iter_mut().zip(&*o).for_each(|(h, &o)| *h = o * *h);
    }
}

/// `x += a + b`.
fn add<W: Wide>(x: &mut [W], a: &[W], b: &[W]) {
    x.iter_mut().zip(a).zip(b).for_each(|((x, &a), &b)| *x = *x + a + b);
}

/// Operands that are widened as a whole: X, W, R, B, P.
const WIDENED: [usize; 5] = [0, 1, 2, 3, 7];

/// A node for operands of some dims.
struct Recurrent {
    kind: OpKind,
    it: Extents,
    view: RecurrentView,
    /// The functions of all directions.
    functions: Vec<Activation>,
    /// Elements of the widened operands; 0 for an absent operand.
    sizes: [usize; 5],
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
    let mut sizes = [0; 5];
    for (size, operand) in sizes.iter_mut().zip(WIDENED) {
        let is_there = site.has(operand) && (operand != 7 || site.kind() == OpKind::LSTM);
        *size = if is_there { site.dims(operand)?.iter().product() } else { 0 };
    }
    let node = Recurrent { kind: site.kind(), it, view, functions, sizes };
    Ok(for_real!(site.dtype(0)?, site, T => node.prepared::<T>()))
}

/// The operands as they are read.
struct Operands<'a, T: Real> {
    /// X, W, R, B, P; empty if absent.
    wide: [&'a [T::Wide]; 5],
    initial_h: Option<&'a [T]>,
    initial_c: Option<&'a [T]>,
    lengths: Option<Vec<usize>>,
}

/// The results that are asked for.
struct Results<'a, T> {
    y: Option<&'a mut [T]>,
    y_h: Option<&'a mut [T]>,
    y_c: Option<&'a mut [T]>,
}

impl Recurrent {
    fn prepared<T: Real>(self) -> Prepared {
        // The steps of X have to be apart from each other; else what is wide already is read where it is.
        let mut copied = if T::IS_WIDE { [0; 5] } else { self.sizes };
        if self.it.batch_first {
            copied[0] = self.sizes[0];
        }
        let words = copied.iter().sum::<usize>() + 2 * self.it.row() + Memory::<T::Wide>::room(&self.it);
        Prepared::new(move |io| {
            let (own, room) = io.scratch::<T::Wide>().split_at_mut(copied.iter().sum());
            let operands = self.operands::<T>(io, copied, own)?;
            let mut results = self.results::<T>(io)?;
            if self.it.hidden > 0 {
                for direction in 0..self.it.directions {
                    self.direction(direction, &operands, room, &mut results);
                }
            }
            Ok(())
        })
        .scratch(words * size_of::<T::Wide>())
    }

    /// The operands, those that are copied in `room`.
    fn operands<'a, T: Real>(
        &self,
        io: &Io<'a>,
        copied: [usize; 5],
        mut room: &'a mut [T::Wide],
    ) -> Result<Operands<'a, T>> {
        let mut wide: [&[T::Wide]; 5] = [&[]; 5];
        for (i, operand) in WIDENED.into_iter().enumerate().filter(|&(i, _)| self.sizes[i] > 0) {
            let (part, rest) = std::mem::take(&mut room).split_at_mut(copied[i]);
            room = rest;
            let from = io.slice::<T>(operand)?;
            let turns = i == 0 && self.it.batch_first;
            wide[i] = if turns { steps_first(&self.it, from, part) } else { widened(from, part) };
        }
        let given = |i: usize| if io.has(i) { io.slice::<T>(i).map(Some) } else { Ok(None) };
        Ok(Operands {
            wide,
            initial_h: given(5)?,
            initial_c: if self.kind == OpKind::LSTM { given(6)? } else { None },
            lengths: if io.has(4) { Some(lengths(&self.it, io.slice::<i32>(4)?, io.room())?) } else { None },
        })
    }

    fn results<'a, T: Real>(&self, io: &mut Io<'a>) -> Result<Results<'a, T>> {
        let mut result = |j: usize| if io.wants(j) { io.out::<T>(j).map(Some) } else { Ok(None) };
        let (y, y_h) = (result(0)?, result(1)?);
        Ok(Results { y, y_h, y_c: if self.kind == OpKind::LSTM { result(2)? } else { None } })
    }

    /// The computation of direction `d` at each step.
    fn cell<W: Wide>(&self, d: usize) -> Cell<W> {
        let n = self.functions.len() / self.it.directions;
        let functions = &self.functions[d * n..(d + 1) * n];
        Cell {
            kind: self.kind,
            functions: std::array::from_fn(|i| functions[i.min(n - 1)]),
            clip: self.view.clip.map(|clip| W::of(f64::from(clip))),
            input_forget: self.view.input_forget,
            linear_before_reset: self.view.linear_before_reset,
        }
    }

    /// All steps of direction `d`.
    fn direction<T: Real>(
        &self,
        d: usize,
        operands: &Operands<'_, T>,
        room: &mut [T::Wide],
        results: &mut Results<'_, T>,
    ) {
        let (it, cell) = (&self.it, self.cell::<T::Wide>(d));
        let row = it.row();
        let [x, w, r, b, p] = operands.wide;
        let (biases, room) = room.split_at_mut(2 * row);
        let (bias, r_bias) = biases.split_at_mut(row);
        let given = if b.is_empty() { None } else { Some(&b[d * 2 * row..][..2 * row]) };
        add_biases(it, &cell, given, bias, r_bias);
        let weights = Weights {
            w: &w[d * row * it.input..][..row * it.input],
            r: &r[d * row * it.hidden..][..row * it.hidden],
            bias,
            r_bias,
            peepholes: if p.is_empty() { None } else { Some(&p[d * 3 * it.hidden..][..3 * it.hidden]) },
        };
        let mut memory = Memory::new(it, room);
        for b in 0..it.batch {
            let of = b * it.hidden..(b + 1) * it.hidden;
            load(operands.initial_h, it.state(d, b), &mut memory.hidden[of.clone()]);
            load(operands.initial_c, it.state(d, b), &mut memory.cell[of]);
        }
        let x = Matrix { elements: x, row: it.input, column: 1 };
        let w = Matrix { elements: weights.w, row: 1, column: it.input };
        multiply((it.steps * it.batch, row, it.input), x, w, memory.gates, None);
        let is_backward = self.view.direction == Direction::Reverse || d == 1;
        for step in 0..it.steps {
            let t = if is_backward { it.steps - 1 - step } else { step };
            let is_on = |b: usize| operands.lengths.as_ref().is_none_or(|lengths| t < lengths[b]);
            cell.step(it, &weights, &mut memory, t, &is_on);
            let Some(y) = &mut results.y else { continue };
            for b in 0..it.batch {
                let to = &mut y[it.result(d, b, t)..][..it.hidden];
                if is_on(b) {
                    T::narrow(&memory.hidden[b * it.hidden..][..it.hidden], to);
                } else {
                    to.fill(T::zeroed());
                }
            }
        }
        for b in 0..it.batch {
            let of = b * it.hidden..(b + 1) * it.hidden;
            if let Some(y_h) = &mut results.y_h {
                T::narrow(&memory.hidden[of.clone()], &mut y_h[it.state(d, b)..][..it.hidden]);
            }
            if let Some(y_c) = &mut results.y_c {
                T::narrow(&memory.cell[of], &mut y_c[it.state(d, b)..][..it.hidden]);
            }
        }
    }
}

/// X by step and batch, wide, from X by batch and step.
fn steps_first<'a, T: Real>(it: &Extents, from: &[T], to: &'a mut [T::Wide]) -> &'a [T::Wide] {
    for (i, to) in to.chunks_exact_mut(it.input).enumerate() {
        let (t, b) = (i / it.batch, i % it.batch);
        T::widen(&from[(b * it.steps + t) * it.input..][..it.input], to);
    }
    to
}

fn lengths(it: &Extents, lengths: &[i32], room: Room) -> Result<Vec<usize>> {
    let length = |&n: &i32| {
        let found = usize::try_from(n).ok().filter(|&n| n <= it.steps);
        found.ok_or_else(|| KernelError::value(format!("lengths in [0, {}]", it.steps), n))
    };
    room.try_gathered(lengths.iter().map(length))
}

/// The biases as the gates take them.
fn add_biases<W: Wide>(it: &Extents, cell: &Cell<W>, from: Option<&[W]>, bias: &mut [W], r_bias: &mut [W]) {
    let Some(from) = from else {
        bias.fill(W::zero());
        r_bias.fill(W::zero());
        return;
    };
    let (of_w, of_r) = from.split_at(it.row());
    r_bias.copy_from_slice(of_r);
    let apart = if cell.kind == OpKind::GRU && cell.linear_before_reset { it.hidden } else { 0 };
    let together = it.row() - apart;
    bias.copy_from_slice(of_w);
    bias[..together].iter_mut().zip(of_r).for_each(|(b, &r)| *b = *b + r);
}

/// An initial state, zeros if there is none.
fn load<T: Real>(from: Option<&[T]>, at: usize, to: &mut [T::Wide]) {
    match from {
        Some(from) => T::widen(&from[at..at + to.len()], to),
        None => to.fill(T::Wide::of(0.0)),
    }
}
