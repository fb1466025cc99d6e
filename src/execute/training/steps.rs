//! The steps of a training, one after the other.

mod ahead;

use self::ahead::Ahead;
use super::batches::{Batches, Incomplete};
use super::checkpoint::{self, Position, Taken};
use super::dataset::Dataset;
use super::divergence::WatchedStep;
use super::finite::{self, StepWatch};
use super::options::{BATCH, NO_OPTIMIZER, TrainingOptions};
use super::reader::BatchReader;
use crate::error::Error;
use crate::error::run::Divergence;
use crate::execute::inputs::no_memory;
use crate::execute::trainer::{StepResult, Trainer};
use ampc_runtime::session::NodeObserver;
use ampc_runtime::{DataRef, HostTensor};
use smallvec::SmallVec;
use std::path::Path;

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
        let lr = HostTensor::from_slice(&[], &[0.0f32]).map_err(|e| no_memory("lr", &e))?;
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

    /// Like [`step`](Self::step); `observer`, such as [`GradientHistograms`](super::GradientHistograms) or
    /// [`LostUpdates`](super::LostUpdates), sees every computed value, and `visit` sees each output of the step, with
    /// its name.
    ///
    /// # Errors
    /// As [`step`](Self::step).
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
            .map_err(|failed| read.data.with_sample(*failed.error, failed.row.as_deref(), read.samples))?;
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
