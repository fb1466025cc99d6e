//! The kinds of sinks, and the sinks that a value reaches.

use ampc_ir::op::{AMPLIFIERS, Amplified, Amplifier};
use std::ops::{BitOr, BitOrAssign};

/// A set of kinds of sinks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Sink(u32);

impl Sink {
    pub(crate) const NOTHING: Sink = Sink(0);
    /// [`Amplified::Exponent`].
    pub(crate) const EXPONENT: Sink = Sink(1);
    /// [`Amplified::Angle`] or [`Amplified::Position`]: a coordinate on a circle or on a grid.
    pub(crate) const POSITION: Sink = Sink(1 << 1);
    /// [`Amplified::Zero`].
    pub(crate) const ZERO: Sink = Sink(1 << 2);
    /// [`Amplified::One`], or a difference from a constant that reaches [`Amplified::Zero`]: log(1 − p).
    pub(crate) const ONE: Sink = Sink(1 << 3);
    /// A term of a difference of nearly equal numbers, or a dividend whose divisor is tiny.
    pub(crate) const CANCELLATION: Sink = Sink(1 << 4);
    /// The product in a distance, ‖a‖² + ‖b‖² − 2ab, or in a cosine, ab / (‖a‖·‖b‖).
    pub(crate) const DISTANCE: Sink = Sink(1 << 5);
    /// A sum or mean over an axis.
    pub(crate) const SUM: Sink = Sink(1 << 6);
    /// A logarithm, or a small power.
    pub(crate) const LOG: Sink = Sink(1 << 7);
    /// A value whose small elements count as much as its large ones, as in a spectrum: it is squared before a logarithm or
    /// a small power, or divided by its own magnitude or a local mean.
    pub(crate) const SPECTRUM: Sink = Sink(1 << 8);
    /// A multiplication by [`MAGNIFIED`] or more.
    pub(crate) const MAGNIFIED: Sink = Sink(1 << 9);
    /// [`Amplified::Choice`].
    pub(crate) const CHOICE: Sink = Sink(1 << 10);
    /// The difference of an input and the result of arithmetic on inputs: a residual.
    pub(crate) const RESIDUAL: Sink = Sink(1 << 11);
    /// A term of a difference that is magnified, or the dividend of a cosine.
    pub(crate) const ENLARGED: Sink = Sink(1 << 12);
    /// A comparison with a threshold that makes spikes: numbers 0 and 1 that are counted.
    pub(crate) const THRESHOLD: Sink = Sink(1 << 13);
    /// A coordinate or angle that is a linear function of the value, made by moves, sums, scaling and products of at
    /// most [`FEW_PARTS`] terms. Control points are such parts of the points of a spline, and bones of a skin.
    pub(crate) const PART_OF_POSITION: Sink = Sink(1 << 14);
    /// A state that is multiplied by a factor near 1 at every step.
    pub(crate) const STATE: Sink = Sink(1 << 15);

    /// A square root, or a power below 1.
    pub(crate) const ROOT: Sink = Sink(1 << 16);

    /// All kinds that amplify errors. The other kinds give details.
    pub(crate) const AMPLIFIERS: Sink = Sink(
        Sink::EXPONENT.0
            | Sink::POSITION.0
            | Sink::ZERO.0
            | Sink::ONE.0
            | Sink::CANCELLATION.0
            | Sink::DISTANCE.0
            | Sink::CHOICE.0
            | Sink::RESIDUAL.0
            | Sink::ENLARGED.0
            | Sink::THRESHOLD.0
            | Sink::PART_OF_POSITION.0
            | Sink::STATE.0,
    );

    /// All kinds, those that give details too.
    pub(super) const EVERYTHING: Sink = Sink(u32::MAX);

    /// True if the set has one of the other kinds.
    pub(crate) fn any(self, others: Sink) -> bool {
        self.0 & others.0 != 0
    }
    pub(super) fn among(self, others: Sink) -> Sink {
        Sink(self.0 & others.0)
    }
    pub(super) fn without(self, others: Sink) -> Sink {
        Sink(self.0 & !others.0)
    }
}

impl BitOr for Sink {
    type Output = Sink;
    fn bitor(self, other: Sink) -> Sink {
        Sink(self.0 | other.0)
    }
}

impl BitOrAssign for Sink {
    fn bitor_assign(&mut self, other: Sink) {
        self.0 |= other.0;
    }
}

/// The sinks that a value reaches.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Sinks {
    /// The kinds that are reached through some reader.
    pub(crate) some: Sink,
    /// The kinds that are reached through every reader, so that the value has no other use.
    pub(crate) all: Sink,
    /// The index of the first row of [`AMPLIFIERS`] that was found, if a row is reached.
    pub(super) row: Option<u8>,
}

impl Sinks {
    /// An amplifier that the value reaches, for the evidence of a decision.
    pub(crate) fn amplifier(self) -> Option<&'static Amplifier> {
        AMPLIFIERS.get(usize::from(self.row?))
    }

    /// The sinks of a value with two readers.
    pub(crate) fn and(self, other: Sinks) -> Sinks {
        Sinks { some: self.some | other.some, all: self.all.among(other.all), row: self.row.or(other.row) }
    }

    /// The sinks of some kinds.
    pub(super) fn among(self, kinds: Sink) -> Sinks {
        let some = self.some.among(kinds);
        Sinks { some, all: self.all.among(kinds), row: self.row.filter(|_| some.any(Sink::AMPLIFIERS)) }
    }

    pub(super) fn with(mut self, sink: Sink) -> Sinks {
        self.some |= sink;
        self.all |= sink;
        self
    }
}

/// The sink of a row of the table of amplifiers.
pub(super) fn sink_of(what: Amplified) -> Sink {
    match what {
        Amplified::Exponent => Sink::EXPONENT,
        Amplified::Angle | Amplified::Position => Sink::POSITION | Sink::PART_OF_POSITION,
        Amplified::Zero => Sink::ZERO,
        Amplified::One => Sink::ONE,
        Amplified::Choice => Sink::CHOICE,
    }
}

/// The kinds if a condition holds, else nothing.
pub(super) fn when(holds: bool, sink: Sink) -> Sink {
    if holds { sink } else { Sink::NOTHING }
}
