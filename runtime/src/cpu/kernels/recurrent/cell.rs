//! One step of some units of some sequences: from the arguments of the gates to the new states.

use super::Activation;
use crate::cpu::kernels::functions::{sigmoid, tanh};
use crate::cpu::kernels::lanes::Wide;
use crate::cpu::kernels::vector::widest_512;
use std::ops::Range;

/// The kind of a cell.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Rnn,
    /// With the flag `linear_before_reset`.
    Gru(bool),
    Lstm,
}

/// Computation of one direction at each step.
pub(super) struct Cell<W> {
    pub(super) kind: Kind,
    /// f, g and h in the order of the operator's text.
    pub(super) functions: [Activation; 3],
    /// The bound of the arguments of functions; infinite if there is none.
    pub(super) clip: W,
    pub(super) input_forget: bool,
}

/// Some units of all sequences at one step. Lists are by gate, sequence and unit.
pub(super) struct Units<'a, W> {
    /// The number of units.
    pub(super) n: usize,
    /// The number of sequences.
    pub(super) all: usize,
    /// The sequences that are computed.
    pub(super) rows: Range<usize>,
    /// The arguments of the gates.
    pub(super) gates: &'a mut [W],
    /// The values of the gates; before that, in a GRU with `linear_before_reset`, the product of the hidden gate with R.
    pub(super) values: &'a mut [W],
    /// The peepholes of the gates i, o and f; empty if absent.
    pub(super) peepholes: &'a [W],
    /// The states.
    pub(super) hidden: &'a mut [W],
    pub(super) cell: &'a mut [W],
    /// The states times the reset gate, in a GRU without `linear_before_reset`.
    pub(super) reset: &'a mut [W],
}

impl<W: Wide> Units<'_, W> {
    /// The elements of a gate.
    fn of(&self, gate: usize) -> Range<usize> {
        let first = (gate * self.all + self.rows.start) * self.n;
        first..first + self.rows.len() * self.n
    }

    /// `x += p ∘ C` for the argument of a gate.
    fn peep(&mut self, gate: usize) {
        let (of, states) = (self.of(gate), self.of(0));
        if let Some(p) = self.peepholes.get(gate * self.n..(gate + 1) * self.n) {
            let rows = self.gates[of].chunks_exact_mut(self.n).zip(self.cell[states].chunks_exact(self.n));
            for (x, c) in rows {
                widest_512(|| x.iter_mut().zip(p).zip(c).for_each(|((x, &p), &c)| *x = *x + p * c));
            }
        }
    }
}

impl<W: Wide> Cell<W> {
    /// The number of gates whose products with the state come first; those of the others come after the reset gate.
    pub(super) fn first_gates(&self) -> usize {
        match self.kind {
            Kind::Rnn => 1,
            Kind::Gru(false) => 2,
            Kind::Gru(true) => 3,
            Kind::Lstm => 4,
        }
    }

    /// The step, or its first part if there is a second one.
    pub(super) fn step(&self, units: &mut Units<'_, W>) {
        let one = units.of(0);
        match self.kind {
            Kind::Rnn => self.activate(0, &units.gates[one.clone()], &mut units.hidden[one]),
            Kind::Gru(linear_before_reset) => {
                self.gates(0, 0..2, units);
                let r = &units.values[units.of(1)];
                if linear_before_reset {
                    let of = units.of(2);
                    let (r, hidden) = units.values.split_at(of.start);
                    let r = &r[(units.all + units.rows.start) * units.n..][..one.len()];
                    let (x, p) = (&mut units.gates[of], &hidden[..one.len()]);
                    widest_512(|| x.iter_mut().zip(r).zip(p).for_each(|((x, &r), &p)| *x = *x + r * p));
                    self.finish(units);
                } else {
                    let (to, h) = (&mut units.reset[one.clone()], &units.hidden[one]);
                    widest_512(|| to.iter_mut().zip(r).zip(h).for_each(|((y, &r), &h)| *y = r * h));
                }
            }
            Kind::Lstm => self.lstm(units),
        }
    }

    /// The second part of the step of a GRU: the state from the gate z and the argument of the hidden gate.
    pub(super) fn finish(&self, units: &mut Units<'_, W>) {
        self.gates(1, 2..3, units);
        let (z, new) = (&units.values[units.of(0)], &units.values[units.of(2)]);
        let of = units.of(0);
        let h = &mut units.hidden[of];
        widest_512(|| {
            for ((h, &z), &new) in h.iter_mut().zip(z).zip(new) {
                *h = (W::one() - z) * new + z * *h;
            }
        });
    }

    fn lstm(&self, units: &mut Units<'_, W>) {
        units.peep(0);
        if self.input_forget {
            self.gates(0, 0..1, units);
            let (i, forget) = units.values.split_at_mut(2 * units.all * units.n);
            forget.iter_mut().zip(&*i).for_each(|(f, &i)| *f = W::one() - i);
        } else {
            units.peep(2);
            // The gate o waits for the new cell state if there are peepholes.
            if units.peepholes.is_empty() {
                self.gates(0, 0..3, units);
            } else {
                self.gates(0, 0..1, units);
                self.gates(0, 2..3, units);
            }
        }
        self.gates(1, 3..4, units);
        let [i, o, forget, new] = std::array::from_fn(|gate| units.of(gate));
        let one = i.clone();
        let (i, forget, new) = (&units.values[i], &units.values[forget], &units.values[new]);
        let c = &mut units.cell[one.clone()];
        widest_512(|| {
            for (((c, &f), &i), &new) in c.iter_mut().zip(forget).zip(i).zip(new) {
                *c = f * *c + i * new;
            }
        });
        if self.input_forget || !units.peepholes.is_empty() {
            units.peep(1);
            self.gates(0, 1..2, units);
        }
        let (h, o) = (&mut units.hidden[one.clone()], &units.values[o]);
        self.activate(2, &units.cell[one], h);
        widest_512(|| h.iter_mut().zip(o).for_each(|(h, &o)| *h = o * *h));
    }

    /// The values of gates from their arguments, with function `which`.
    fn gates(&self, which: usize, gates: Range<usize>, units: &mut Units<'_, W>) {
        if units.rows.len() == units.all {
            let of = units.of(gates.start).start..units.of(gates.end - 1).end;
            self.activate(which, &units.gates[of.clone()], &mut units.values[of]);
            return;
        }
        for gate in gates {
            let of = units.of(gate);
            self.activate(which, &units.gates[of.clone()], &mut units.values[of]);
        }
    }

    /// `to = f(from)` with function `which`, its arguments bounded.
    fn activate(&self, which: usize, from: &[W], to: &mut [W]) {
        let (zero, one) = (W::zero(), W::one());
        let of = |parameter: f32| W::of(f64::from(parameter));
        let clip = self.clip;
        match self.functions[which] {
            Activation::Relu => each(clip, from, to, |x| if x < zero { zero } else { x }),
            Activation::Tanh => each(clip, from, to, tanh),
            Activation::Sigmoid => each(clip, from, to, sigmoid),
            Activation::Affine(alpha, beta) => {
                let (alpha, beta) = (of(alpha), of(beta));
                each(clip, from, to, |x| alpha * x + beta);
            }
            Activation::LeakyRelu(alpha) => {
                let alpha = of(alpha);
                each(clip, from, to, |x| if x < zero { alpha * x } else { x });
            }
            Activation::ThresholdedRelu(alpha) => {
                let alpha = of(alpha);
                each(clip, from, to, |x| if x < alpha { zero } else { x });
            }
            Activation::ScaledTanh(alpha, beta) => {
                let (alpha, beta) = (of(alpha), of(beta));
                each(clip, from, to, |x| alpha * tanh(beta * x));
            }
            Activation::HardSigmoid(alpha, beta) => {
                let (alpha, beta) = (of(alpha), of(beta));
                each(clip, from, to, |x| {
                    let y = alpha * x + beta;
                    let y = if y < zero { zero } else { y };
                    if y > one { one } else { y }
                });
            }
            Activation::Elu(alpha) => {
                let alpha = of(alpha);
                each(clip, from, to, |x| if x < zero { alpha * x.exp_m1() } else { x });
            }
            Activation::Softsign => each(clip, from, to, |x| x / (one + x.abs())),
            Activation::Softplus => {
                each(clip, from, to, |x| (if x < zero { zero } else { x }) + (-x.abs()).exp().ln_1p());
            }
        }
    }
}

/// `to = f(from)`, bounded before.
fn each<W: Wide>(clip: W, from: &[W], to: &mut [W], f: impl Fn(W) -> W) {
    widest_512(|| {
        for (y, &x) in to.iter_mut().zip(from) {
            let bounded = if x < -clip { -clip } else { x };
            *y = f(if x > clip { clip } else { bounded });
        }
    });
}
