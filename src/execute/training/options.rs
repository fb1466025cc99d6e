//! Options of a training.

use super::batches::Incomplete;
use super::schedule::Schedule;

/// Error message for a step that only computes gradients.
pub const NO_OPTIMIZER: &str = "the step has no optimizer, so that its weights are no state: make it with one, such as `--optimizer adamw`";

/// Default number of samples of a batch.
pub const BATCH: u64 = 32;

/// Steps without finite gradients, one after the other, after which a training has diverged. A scaler that halves its scale
/// comes from 2^16 to 1 in 16.
pub const MAX_SKIPPED: u64 = 50;

/// Options of a training.
#[derive(Clone, PartialEq, Debug)]
pub struct TrainingOptions {
    /// The total number of steps, including those before a checkpoint.
    pub steps: u64,
    /// Samples of a batch; by default as many as the step takes, and 32 if it takes any number.
    pub batch: Option<u64>,
    /// The learning rate of each step.
    pub schedule: Schedule,
    /// The seed of the order of samples.
    pub seed: u64,
    /// True if samples are shuffled, in another order in every epoch.
    pub shuffles: bool,
    /// Handling of the last samples of an epoch if they do not fill a batch; by default they are kept if the
    /// step takes any batch size.
    pub incomplete: Option<Incomplete>,
    /// The number of steps in a row without finite gradients or without a finite loss after which the training has
    /// [diverged](super::Training::divergence).
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
