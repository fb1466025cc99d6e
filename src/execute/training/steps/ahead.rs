//! Steps that are begun before the results of earlier steps are there.
//!
//! A device works while the host prepares the next steps. The loss of a step and the sign that it was skipped arrive up to
//! `ahead` steps later, and so does the finding that the training has diverged. The state is that after the last step that
//! was begun: a caller that saves the state after step N lets no step after N begin before the record of N is there.

use super::super::divergence::WatchedStep;
use super::{StepRecord, Training, set_rate};
use crate::error::Error;
use crate::error::run::{Divergence, Symptom};
use ampc_runtime::HostTensor;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// The steps that were begun, and the records of ended steps that were not returned.
#[derive(Default, Debug)]
pub(super) struct Ahead {
    begun: VecDeque<StepRecord>,
    ended: VecDeque<StepRecord>,
}

impl Training {
    /// Takes the next step like [`step`](Self::step). On a device, up to `ahead` further steps are begun before the results of
    /// this step are there, as long as their numbers are at most `last`. Then
    /// [`state`](crate::execute::Trainer::state) and [`save`](Self::save) have the state after the last step that was begun; with the record of step `last` it is the state
    /// after step `last`.
    ///
    /// A divergence shows up to `ahead` steps late, and nothing stops a step whose loss is a NaN before its first update.
    ///
    /// # Errors
    /// As [`step`](Self::step). If a node cannot be computed, the steps that were begun after it have failed with it.
    pub fn step_ahead(&mut self, ahead: u64, last: u64) -> Result<Option<StepRecord>, Error> {
        if ahead == 0 || !self.trainer.is_on_device() {
            return self.step();
        }
        while self.divergence.is_none() && self.ahead.ended.is_empty() {
            let next = self.taken.steps + self.ahead.begun.len() as u64;
            if next >= self.options.steps.min(last) || self.ahead.begun.len() as u64 > ahead {
                break;
            }
            self.begin(next)?;
        }
        // A step after the last is taken alone.
        self.step()
    }

    /// True if steps were begun whose records were not returned.
    pub fn is_ahead(&self) -> bool {
        !self.ahead.begun.is_empty() || !self.ahead.ended.is_empty()
    }

    /// Begins step number `next`, counted from 0.
    fn begin(&mut self, next: u64) -> Result<(), Error> {
        let record = self.record_of(next);
        let read = self.reader.read(next)?;
        set_rate(&mut self.lr, record.lr);
        let lr = [(self.lr_input.as_str(), &self.lr)];
        let given: SmallVec<[(&str, &HostTensor); 8]> = read.data.named(read.batch).chain(lr).collect();
        let begun = self.trainer.begin_step(&given);
        let samples = read.samples.len() as u64;
        drop(given);
        if let Err(error) = begun {
            // A step in flight may have failed before, and torn the state.
            self.end_all()?;
            return Err(error);
        }
        self.ahead.begun.push_back(StepRecord { samples, ..record });
        Ok(())
    }

    /// The record of the oldest step that was begun; `None` if there is none.
    pub(super) fn end_begun(&mut self) -> Result<Option<StepRecord>, Error> {
        match self.ahead.ended.pop_front() {
            Some(record) => Ok(Some(record)),
            None => self.end_oldest(),
        }
    }

    /// Ends all steps that were begun. Their records stay for [`step`](Self::step).
    pub(super) fn end_all(&mut self) -> Result<(), Error> {
        while let Some(record) = self.end_oldest()? {
            self.ahead.ended.push_back(record);
        }
        Ok(())
    }

    fn end_oldest(&mut self) -> Result<Option<StepRecord>, Error> {
        let Some(record) = self.ahead.begun.pop_front() else { return Ok(None) };
        let ended = self.trainer.end_step();
        if ended.is_err() {
            self.ahead.begun.clear();
        }
        let Some(result) = ended? else { return Ok(None) };
        let record = StepRecord { result, ..record };
        if self.divergence.is_none() {
            let mut step = self.watched(record.number);
            step.count(&result);
            self.divergence = step.divergence_of(&result, None);
            self.find_cause(record.number - 1)?;
        } else {
            self.watched(record.number).count(&result);
        }
        Ok(Some(record))
    }

    /// The step of this number, with the counts before it.
    fn watched(&mut self, number: u64) -> WatchedStep<'_> {
        self.watch.begin();
        WatchedStep {
            is_final: number == self.options.steps,
            trainer: &mut self.trainer,
            watch: &mut self.watch,
            taken: &mut self.taken,
            max_skipped: self.options.max_skipped,
        }
    }

    /// Adds the cause to a divergence that the results of a step have shown: the step is run again, without its updates.
    fn find_cause(&mut self, step: u64) -> Result<(), Error> {
        if self.divergence.is_none() {
            return Ok(());
        }
        self.end_all()?;
        let read = self.reader.read(step)?;
        let lr = [(self.lr_input.as_str(), &self.lr)];
        let given: SmallVec<[(&str, &HostTensor); 8]> = read.data.named(read.batch).chain(lr).collect();
        let mut watched = WatchedStep {
            trainer: &mut self.trainer,
            watch: &mut self.watch,
            taken: &mut self.taken,
            max_skipped: self.options.max_skipped,
            is_final: false,
        };
        let told = watched.cause_of_nan(&given);
        if let (Some(told), Some(Divergence { symptom, cause, .. })) = (told, &mut self.divergence) {
            *cause = Some(match symptom {
                Symptom::Skipped { to, .. } => format!("in step {to}, {told}"),
                Symptom::Loss { .. } | Symptom::Weight { .. } => told,
            });
        }
        Ok(())
    }
}
