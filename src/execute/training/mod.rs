//! Training: runs a step over samples in an order that depends on a seed, with a learning-rate schedule and
//! checkpoints for resumption.
//!
//! A [`Training`] is a [`Trainer`] with a [`Dataset`], [`Batches`] and a [`Schedule`]. Its next step depends only on
//! these and on the number of steps taken. A training that was saved ([`Training::save`]) and resumed
//! ([`Checkpoint`]) is bit-equal to an uninterrupted run.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ampc::execute::Trainer;
//! use ampc::execute::training::{Checkpoint, Dataset, Training, TrainingOptions};
//!
//! let checkpoint = Checkpoint::read("state.safetensors".as_ref())?;
//! let trainer = Trainer::new(ampc::load("step.onnx")?, &checkpoint.state, &ampc::runtime::Runtime::default())?;
//! let data = Dataset::of_batches("data.npz".as_ref(), &trainer, u64::MAX)?;
//! let options = TrainingOptions { steps: 1000, schedule: "cosine:lr=1e-3".parse()?, ..TrainingOptions::default() };
//! let mut training = Training::new(trainer, data, options)?;
//! while let Some(step) = training.step()? {
//!     println!("{} {:?}", step.number, step.result.loss);
//! }
//! training.save("trained.safetensors".as_ref(), true)?;
//! # Ok(())
//! # }
//! ```

mod ahead;
mod arrays;
mod batches;
mod checkpoint;
mod dataset;
mod divergence;
mod evaluation;
mod finite;
mod fit;
mod histogram;
mod reader;
mod schedule;
mod updates;

pub use batches::{Batches, Incomplete};
pub use checkpoint::{Algorithms, Checkpoint, Position};
pub use dataset::{Batch, Dataset};
pub use divergence::{Divergence, Symptom};
pub use evaluation::{Evaluated, Evaluation};
pub use histogram::{GradientHistograms, Log2Histogram};
pub use schedule::{Schedule, ScheduleKind};
pub use updates::LostUpdates;

use super::trainer::{StepResult, Trainer};
use crate::error::Error;
use ahead::Ahead;
use ampc_runtime::session::NodeObserver;
use ampc_runtime::{DataRef, HostTensor};
use checkpoint::Taken;
use divergence::WatchedStep;
use finite::StepWatch;
use reader::BatchReader;
use smallvec::SmallVec;
use std::path::Path;

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

/// The error message for a step that only computes gradients.
pub const NO_OPTIMIZER: &str =
    "the step has no optimizer, so its weights are not states: make it with one, such as `--optimizer adamw`";

/// The default batch size.
pub const BATCH: u64 = 32;

/// The default number of consecutive steps without finite gradients after which a training has diverged. A scaler
/// that halves its scale reaches 1 from 2^16 in 16 steps.
pub const MAX_SKIPPED: u64 = 50;

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

/// A training in progress.
#[derive(Debug)]
pub struct Training {
    trainer: Trainer,
    reader: BatchReader,
    options: TrainingOptions,
    taken: Taken,
    watch: StepWatch,
    divergence: Option<Divergence>,
    ahead: Ahead,
    /// The learning rate, and its input.
    lr: HostTensor,
    lr_input: String,
    /// The hash of the initial state of the training.
    begun: String,
    /// The identity of the resumed run, which may be unknown; `None` for a new run.
    resumed: Option<Option<String>>,
}

/// The record of one step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StepRecord {
    /// The number of the step, counted from 1.
    pub number: u64,
    /// The number of the epoch, from 0.
    pub epoch: u64,
    /// The number of samples.
    pub samples: u64,
    /// The learning rate.
    pub lr: f64,
    /// The scalars that the step returned about itself.
    pub result: StepResult,
}

/// Sets the learning rate of the next step.
fn set_rate(lr: &mut HostTensor, rate: f64) {
    #[expect(clippy::cast_possible_truncation, reason = "the step takes rates in f32")]
    if let Some(bytes) = lr.bytes_mut() {
        bytes.copy_from_slice(&(rate as f32).to_le_bytes());
    }
}

impl Training {
    /// A training from the current state of the trainer.
    ///
    /// # Errors
    /// If the step has no optimizer, or the data or the options do not fit it.
    pub fn new(mut trainer: Trainer, data: Dataset, mut options: TrainingOptions) -> Result<Training, Error> {
        let Some(lr_input) = trainer.lr_input().map(str::to_owned) else {
            return Err(Error::Usage(NO_OPTIMIZER.into()));
        };
        let (fixed, samples) = (data.batch(), data.samples());
        let size = match (options.batch, fixed) {
            (Some(asked), Some(fixed)) if asked != fixed => {
                let message = format!("expected a batch of {fixed}, which the step takes, found {asked}");
                return Err(Error::Usage(message));
            }
            (Some(asked), None) if asked == 0 || asked > samples => {
                let message = format!(
                    "expected a batch of at most {samples} samples, as the data has no more, found {asked} (`--batch`, or \
                     the batch of the checkpoint)"
                );
                return Err(Error::Usage(message));
            }
            (Some(asked), _) => asked,
            (None, Some(fixed)) => fixed,
            (None, None) => BATCH.min(samples),
        };
        options.batch = Some(size);
        let incomplete = match (options.incomplete, fixed) {
            (Some(Incomplete::Kept), Some(fixed)) if !samples.is_multiple_of(fixed) => {
                let message = format!(
                    "the step takes {fixed} samples at once: the last {} of an epoch cannot be a batch",
                    samples % fixed
                );
                return Err(Error::Usage(message));
            }
            (Some(incomplete), _) => incomplete,
            (None, Some(_)) => Incomplete::Dropped,
            (None, None) => Incomplete::Kept,
        };
        options.incomplete = Some(incomplete);
        let batches = Batches::new(samples, size, incomplete);
        let batches = if options.shuffles { batches.shuffled(options.seed) } else { batches };
        let watch = StepWatch::new(&mut trainer)?;
        let lr = HostTensor::from_slice(&[], &[0.0f32]).map_err(|e| super::inputs::no_memory("lr", &e))?;
        let begun = checkpoint::hash_of_state(&mut trainer)?;
        Ok(Training {
            trainer,
            reader: BatchReader::new(data, batches, size),
            options,
            taken: Taken::default(),
            watch,
            divergence: None,
            ahead: Ahead::default(),
            lr,
            lr_input,
            begun,
            resumed: None,
        })
    }

    /// Continues after the steps of a checkpoint, whose state the trainer has.
    ///
    /// # Errors
    /// If the checkpoint has taken more steps than the training has.
    pub fn resume(&mut self, position: &Position) -> Result<(), Error> {
        let (taken, steps) = (position.step, self.options.steps);
        if taken > steps {
            let message =
                format!("expected at least {taken} steps, which the checkpoint has taken, found {steps}");
            return Err(Error::Usage(message));
        }
        let Position { skipped, failed_in_a_row, .. } = *position;
        self.taken = Taken { steps: taken, skipped, failed_in_a_row };
        self.resumed = Some(position.run.clone());
        Ok(())
    }

    /// Sets the total number of epochs, instead of a number of steps.
    pub fn set_epochs(&mut self, epochs: u64) {
        self.options.steps = epochs.saturating_mul(self.batches().per_epoch());
    }

    /// The options, with defaults filled in.
    pub fn options(&self) -> &TrainingOptions {
        &self.options
    }

    /// The samples.
    pub fn data(&self) -> &Dataset {
        self.reader.data()
    }

    /// The batches.
    pub fn batches(&self) -> &Batches {
        self.reader.batches()
    }

    /// The step and its state.
    pub fn trainer(&self) -> &Trainer {
        &self.trainer
    }

    /// The step and its state, which can be read from the device.
    pub fn trainer_mut(&mut self) -> &mut Trainer {
        &mut self.trainer
    }

    /// The position of the training.
    pub fn position(&self) -> Position {
        let position = Position::of(&self.options, self.data(), &self.taken);
        let run = self.resumed.clone().unwrap_or_else(|| {
            let step = self.trainer.identity();
            Some(position.identity(step, &self.begun, &self.options.schedule))
        });
        Position { run, ..position }
    }

    /// Takes the next step; `None` after the last step.
    ///
    /// # Errors
    /// If samples cannot be read or do not fit the step, the training has [diverged](Self::divergence) in an earlier
    /// step, or [`Trainer::step`] fails.
    pub fn step(&mut self) -> Result<Option<StepRecord>, Error> {
        self.step_observed(None, |_, _| {})
    }

    /// Like [`step`](Self::step); `observer`, such as [`GradientHistograms`] or [`LostUpdates`], sees every computed
    /// value, and `visit` sees each output of the step, with its name.
    ///
    /// # Errors
    /// Like [`step`](Self::step).
    pub fn step_observed(
        &mut self,
        observer: Option<&mut (dyn NodeObserver + Send)>,
        visit: impl FnMut(&str, DataRef<'_>) + Send,
    ) -> Result<Option<StepRecord>, Error> {
        // Steps in flight end first.
        if let Some(record) = self.end_begun()? {
            return Ok(Some(record));
        }
        if let Some(divergence) = &self.divergence {
            return Err(divergence.clone().into());
        }
        if self.taken.steps >= self.options.steps {
            return Ok(None);
        }
        let steps = self.taken.steps;
        let record = self.record_of(steps);
        let read = self.reader.read(steps)?;
        set_rate(&mut self.lr, record.lr);
        let lr = [(self.lr_input.as_str(), &self.lr)];
        let given: SmallVec<[(&str, &HostTensor); 8]> = read.data.named(read.batch).chain(lr).collect();
        let mut step = WatchedStep {
            trainer: &mut self.trainer,
            watch: &mut self.watch,
            taken: &mut self.taken,
            max_skipped: self.options.max_skipped,
            is_final: steps + 1 == self.options.steps,
        };
        let (result, divergence) = step
            .run(&given, observer, visit)
            .map_err(|failed| read.data.with_sample(failed.error, failed.row.as_deref(), read.samples))?;
        self.divergence = divergence;
        Ok(Some(StepRecord { samples: read.samples.len() as u64, result, ..record }))
    }

    /// The record of a step, without its samples and results.
    fn record_of(&self, steps: u64) -> StepRecord {
        let epoch = steps / self.batches().per_epoch();
        let lr = self.options.schedule.rate_of(steps, self.options.steps);
        StepRecord { number: steps + 1, epoch, samples: 0, lr, result: StepResult::default() }
    }

    /// The divergence of the training, if there is one: no further step is then taken. A step whose loss became NaN
    /// was stopped before its first update, and does not count as taken.
    pub fn divergence(&self) -> Option<&Divergence> {
        self.divergence.as_ref()
    }

    /// The weight with the element of the largest magnitude, and that magnitude.
    ///
    /// # Errors
    /// If the state cannot be read from the device.
    pub fn largest_weight(&mut self) -> Result<Option<(String, f64)>, Error> {
        finite::largest_weight(&mut self.trainer)
    }

    /// Writes the state and the position to a safetensors file atomically. An existing file is replaced if `force` is
    /// set. Returns the size of the file in bytes.
    ///
    /// # Errors
    /// If the file exists and `force` is not set, it cannot be written, or the state is
    /// [torn](Trainer::has_torn_state) or has a NaN, which would make every later loss NaN. An existing file is then
    /// unchanged.
    pub fn save(&mut self, path: &Path, force: bool) -> Result<u64, Error> {
        self.end_all()?;
        let position = self.position();
        checkpoint::save(&mut self.trainer, &position, path, force)
    }
}
