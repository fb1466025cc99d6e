//! States as the metadata of a step lists them.

use serde::{Deserialize, Serialize};

/// Kind of a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StateKind {
    /// A parameter: fp32, or f16 or bf16 without master weights.
    Weight,
    /// The low copy of a parameter.
    Low,
    /// The moving average of gradients, of Adam and AdamW.
    M,
    /// The moving average of squared gradients, of Adam and AdamW; the momentum of SGD.
    V,
    /// A state of an optimizer of a user.
    State,
    /// Running statistics.
    Buffer,
    /// The number of steps that were taken.
    Step,
    /// The loss scale.
    LossScale,
    /// Steps with finite gradients since the loss scale last grew, or since the last overflow if the scaler resets there.
    Good,
    /// Overflows in a row since the last finite step or the last backoff.
    Bad,
    /// The seed of dropouts.
    DropoutSeed,
    /// The number of steps that have drawn random numbers for dropouts.
    DropoutOffset,
}

/// A state as the metadata [`METADATA`](super::state::METADATA) of a step lists it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StateEntry {
    /// The name of the input.
    #[serde(rename = "in")]
    pub input: String,
    /// The name of the output that is the input next.
    #[serde(rename = "out")]
    pub output: String,
    /// The role of the state in the step.
    pub kind: StateKind,
    /// The name of the weight that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
}
