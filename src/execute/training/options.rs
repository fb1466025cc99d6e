//! Options of a training.

use super::batches::Incomplete;
use super::schedule::Schedule;

/// The error message for a step that only computes gradients.
pub const NO_OPTIMIZER: &str =
    "the step has no optimizer, so its weights are not states: make it with one, such as `--optimizer adamw`";

/// The default batch size.
pub const BATCH: u64 = 32;

/// The default number of consecutive steps without finite gradients after which a training has diverged. A scaler
/// that halves its scale reaches 1 from 2^16 in 16 steps.
pub const MAX_SKIPPED: u64 = 50;

/// Options of a training.
#[derive(Clone, PartialEq, Debug)]
pub struct TrainingOptions {
    /// The total number of steps, including those before a checkpoint.
    pub steps: u64,
    /// The batch size; by default that of the step, or 32 if the step accepts any size.
    pub batch: Option<u64>,
    /// The learning rate of each step.
    pub schedule: Schedule,
    /// The seed of the order of samples.
    pub seed: u64,
    /// True if samples are shuffled, in another order in every epoch.
    pub shuffles: bool,
    /// The handling of the last samples of an epoch if they do not fill a batch; by default they are kept if the step
    /// accepts any batch size.
    pub incomplete: Option<Incomplete>,
    /// The number of consecutive steps without finite gradients or a finite loss after which the training has
    /// [diverged](Training::divergence).
    pub max_skipped: u64,
}

impl Default for TrainingOptions {
    fn default() -> TrainingOptions {
        TrainingOptions {
            steps: 0,
            batch: None,
            schedule: Schedule::constant(1e-3),
            seed: 0,
            shuffles: true,
            incomplete: None,
            max_skipped: MAX_SKIPPED,
        }
    }
}
