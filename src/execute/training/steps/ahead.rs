//! Steps that begin before the results of earlier steps are available.
//!
//! A device works while the host prepares the next steps. The loss of a step, and whether it was skipped, arrive up
//! to `ahead` steps later, and so does the detection of a divergence. The state is that after the last step that was
//! begun. A caller that saves the state after step N begins no later step before the record of N is available.

use super::super::divergence::WatchedStep;
use super::{StepRecord, Training, set_rate};
use crate::error::Error;
use crate::error::run::{Divergence, Symptom};
use ampc_runtime::HostTensor;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// The steps in flight, and the records of ended steps that were not returned yet.
#[derive(Default, Debug)]
pub(super) struct Ahead {
    begun: VecDeque<StepRecord>,
    ended: VecDeque<StepRecord>,
}

impl Training {
    /// Takes the next step like [`step`](Self::step). On a device, up to `ahead` further steps are begun before the
    /// results of this step are available, as long as their numbers are at most `last`. Then
    /// [`state`](crate::execute::Trainer::state) and [`save`](Self::save) use the state after the last step that was
    /// begun; with the record of step `last`, that is the state after step `last`.
    ///
    /// A divergence is detected up to `ahead` steps late, and a step whose loss is NaN is not stopped before its
    /// first update.
    ///
    /// # Errors
    /// Like [`step`](Self::step). If a node cannot be computed, the steps that were begun later have failed too.
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
        // A step after the last is taken separately.
        self.step()
    }

    /// True if records of begun steps were not returned yet.
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
            // An earlier step in flight may have failed and torn the state.
            self.end_all()?;
            return Err(error);
        }
        self.ahead.begun.push_back(StepRecord { samples, ..record });
        Ok(())
    }

    /// The record of the oldest step in flight; `None` if there is none.
    pub(super) fn end_begun(&mut self) -> Result<Option<StepRecord>, Error> {
        match self.ahead.ended.pop_front() {
            Some(record) => Ok(Some(record)),
            None => self.end_oldest(),
        }
    }

    /// Ends all steps in flight. Their records stay for [`step`](Self::step).
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

    /// The step with this number, and the counts before it.
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

    /// Adds the cause to a divergence that the results of a step have shown, by running the step again without its
    /// updates.
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
