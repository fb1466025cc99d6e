//! Errors of runs and trainings.

use std::fmt;

/// A problem with the values for one input, or with a stored output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InputProblem {
    /// A stable identifier of the problem: `missing`, `unknown`, `twice`, `type`, `dims`, `size`, `samples`, `nan`,
    /// `range`, `unreadable`.
    pub code: &'static str,
    /// `input`, `output` or `state`.
    pub kind: &'static str,
    /// The name of the value in the data.
    pub name: String,
    /// The problem: expected and found.
    pub message: String,
    /// Advice for the user.
    pub help: Option<String>,
}

impl fmt::Display for InputProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`: {}", self.kind, self.name, self.message)
    }
}

/// A training that cannot continue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Divergence {
    /// The first faulty step, counted from 1.
    pub began: u64,
    /// The kind of divergence.
    pub symptom: Symptom,
    /// A description of the first node that produced a number that is not finite from finite numbers, if known.
    pub cause: Option<String>,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the training diverged: {}", self.symptom)?;
        if let Some(cause) = &self.cause {
            write!(f, "; {cause}")?;
        }
        Ok(())
    }
}

/// Kinds of divergence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Symptom {
    /// Consecutive steps were skipped or had an infinite loss.
    Skipped {
        /// The first of these steps.
        from: u64,
        /// The last of these steps, which was observed.
        to: u64,
    },
    /// The loss is NaN. The step was stopped before it updated a weight.
    Loss {
        /// The step.
        step: u64,
    },
    /// A finite weight became infinite or NaN.
    Weight {
        /// The step that updated the weight.
        step: u64,
        /// The name of the weight.
        name: String,
    },
}

impl fmt::Display for Symptom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Symptom::Skipped { from, to } => write!(
                f,
                "from step {from} to step {to}, {} in a row, no step had finite gradients and a finite loss",
                to - from + 1
            ),
            Symptom::Loss { step } => write!(f, "step {step}: expected a number as the loss, found a NaN"),
            Symptom::Weight { step, name } => {
                write!(
                    f,
                    "step {step}: expected finite numbers as the next value of weight `{name}`, found infinities or NaN"
                )
            }
        }
    }
}
