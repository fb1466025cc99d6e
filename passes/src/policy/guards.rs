//! Guards by name: what policies and pipelines switch off. The pass `guard` has their functions.

/// Subject that a guard judges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judges {
    /// The fit of constants into the format.
    Fit,
    /// Constants and integers that fit, and computations with them.
    Numbers,
    /// Operators, and the number of terms that they sum, which lists of operators cover as well.
    Operators,
}

impl Judges {
    /// All of them.
    pub const ALL: [Judges; 3] = [Judges::Fit, Judges::Numbers, Judges::Operators];

    /// The word that stands for all such guards where guards are left out.
    pub fn group(self) -> &'static str {
        match self {
            Judges::Fit => "@fit",
            Judges::Numbers => "@numbers",
            Judges::Operators => "@operators",
        }
    }
}

/// A guard.
#[derive(Clone, Copy, Debug)]
pub struct GuardDef {
    /// Its name, for `--disable-guard` and as the rule `guard.<name>`.
    pub name: &'static str,
    /// The subject that the guard judges, by which policies switch guards off together.
    pub judges: Judges,
    /// The pattern that the guard looks for.
    pub about: &'static str,
    /// The function that the pass runs.
    pub kind: GuardKind,
}

impl GuardDef {
    /// The guard of a name.
    pub fn of(name: &str) -> Option<&'static GuardDef> {
        GUARDS.iter().find(|guard| guard.name == name)
    }
}

/// A guard by its function. The pass `guard` matches on it, so that the compiler finds a row without a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "a row of `GUARDS` says what the guard looks for")]
pub enum GuardKind {
    Range,
    Mask,
    Eps,
    Underflow,
    Stash,
    Norm,
    Depth,
    Integers,
    Square,
    Cancellation,
    Offset,
    Saturation,
    Recurrence,
    Scores,
    Position,
    Choice,
}

/// All guards, in the order in which they run.
pub const GUARDS: &[GuardDef] = &[
    GuardDef {
        name: "range",
        judges: Judges::Fit,
        about: "constants, and inputs of a given range, with finite values beyond the range of the format",
        kind: GuardKind::Range,
    },
    GuardDef {
        name: "mask",
        judges: Judges::Numbers,
        about: "constants beyond half the range in sums: the sum leaves the range",
        kind: GuardKind::Mask,
    },
    GuardDef {
        name: "eps",
        judges: Judges::Numbers,
        about: "constants below the normal range added before a division, root, logarithm or power",
        kind: GuardKind::Eps,
    },
    GuardDef {
        name: "underflow",
        judges: Judges::Numbers,
        about: "constants of few values that would all round to 0, factors and divisors that lose digits",
        kind: GuardKind::Underflow,
    },
    GuardDef {
        name: "stash",
        judges: Judges::Numbers,
        about: "norms with another internal precision than f32",
        kind: GuardKind::Stash,
    },
    GuardDef {
        name: "norm",
        judges: Judges::Operators,
        about: "decomposed norms: squares that are summed, also by products, means that are subtracted",
        kind: GuardKind::Norm,
    },
    GuardDef {
        name: "depth",
        judges: Judges::Operators,
        about: "reductions over more than 4096 elements, products of as many terms or of 256 of one sign",
        kind: GuardKind::Depth,
    },
    GuardDef {
        name: "int",
        judges: Judges::Numbers,
        about: "integers carried in floats: shape arithmetic, positions, lengths, indices",
        kind: GuardKind::Integers,
    },
    GuardDef {
        name: "square",
        judges: Judges::Operators,
        about: "squares on the way to a root, a logarithm or a divisor, and spectra",
        kind: GuardKind::Square,
    },
    GuardDef {
        name: "cancellation",
        judges: Judges::Operators,
        about: "differences of nearly equal numbers: variances, distances, neighbours, removed offsets",
        kind: GuardKind::Cancellation,
    },
    GuardDef {
        name: "offset",
        judges: Judges::Operators,
        about: "inputs that may lie far from 0 on the way to the subtraction of a mean",
        kind: GuardKind::Offset,
    },
    GuardDef {
        name: "saturation",
        judges: Judges::Operators,
        about: "numbers near 0 or 1 that round to it where their distance from it counts",
        kind: GuardKind::Saturation,
    },
    GuardDef {
        name: "recurrence",
        judges: Judges::Operators,
        about: "states multiplied by factors near 1 at every step, powers and inverses of matrices by iteration",
        kind: GuardKind::Recurrence,
    },
    GuardDef {
        name: "scores",
        judges: Judges::Operators,
        about: "numbers of unknown range added on the way to an exponent: masks, positions",
        kind: GuardKind::Scores,
    },
    GuardDef {
        name: "position",
        judges: Judges::Operators,
        about: "angles and coordinates, and their computation from the last product on",
        kind: GuardKind::Position,
    },
    GuardDef {
        name: "choice",
        judges: Judges::Operators,
        about: "functions with bounds before TopK, ArgMax, ArgMin or NonMaxSuppression: equal rounding makes ties",
        kind: GuardKind::Choice,
    },
];
