//! Divergence of a training: the step and the node at which it began.

use super::checkpoint::Taken;
use super::finite::{FirstNonFinite, Observers, StepWatch, node_in_words};
use crate::error::Error;
pub use crate::error::run::{Divergence, Symptom};
use crate::execute::trainer::{StepError, StepResult, Trainer};
use ampc_runtime::session::NodeObserver;
use ampc_runtime::{DataRef, HostTensor};

/// The next step of a training, with the counts that reveal a divergence.
pub(super) struct WatchedStep<'a> {
    pub(super) trainer: &'a mut Trainer,
    pub(super) watch: &'a mut StepWatch,
    pub(super) taken: &'a mut Taken,
    pub(super) max_skipped: u64,
    /// True if it is the last step.
    pub(super) is_final: bool,
}

impl WatchedStep<'_> {
    /// Takes the step and counts it, unless it is stopped because its loss is NaN.
    pub(super) fn run(
        &mut self,
        batch: &[(&str, &HostTensor)],
        observer: Option<&mut (dyn NodeObserver + Send)>,
        visit: impl FnMut(&str, DataRef<'_>) + Send,
    ) -> Result<(StepResult, Option<Divergence>), StepError> {
        self.watch.begin();
        // Only a step that may complete a divergence is observed as a whole, because that takes another plan and
        // perhaps more memory.
        let failed = self.taken.failed_in_a_row;
        let may_end = failed + 1 >= self.max_skipped || self.is_final && failed > 0;
        let mut first = match may_end {
            true => Some(FirstNonFinite::new(self.trainer, batch, true)?),
            false => None,
        };
        let mut observers = Observers { watch: &mut *self.watch, first: first.as_mut(), other: observer };
        let ran = self.trainer.try_step(batch, Some(&mut observers), visit);
        if self.watch.seen().is_stopped {
            let result = StepResult { loss: Some(f64::NAN), ..StepResult::default() };
            let cause = self.cause_of_nan(batch);
            return Ok((result, Some(self.nan_loss(self.taken.steps + 1, cause))));
        }
        let result = ran?;
        self.count(&result);
        let mut divergence = self.divergence_of(&result, first.as_ref());
        if let (None, Some(Divergence { cause: cause @ None, .. })) = (&first, &mut divergence) {
            let step = self.taken.steps;
            *cause = self.cause_of_nan(batch).map(|told| format!("in step {step}, {told}"));
        }
        Ok((result, divergence))
    }

    /// The divergence that a taken or skipped step reveals.
    pub(super) fn divergence_of(
        &self,
        result: &StepResult,
        first: Option<&FirstNonFinite>,
    ) -> Option<Divergence> {
        let step = self.taken.steps;
        if let Some((maker, name)) = &self.watch.seen().weight {
            let cause = self.cause_of_weight(*maker);
            let symptom = Symptom::Weight { step, name: name.clone() };
            return Some(Divergence { began: self.began(step), symptom, cause: Some(cause) });
        }
        if result.loss.is_some_and(f64::is_nan) && !result.skipped {
            return Some(self.nan_loss(step, None));
        }
        // A run must not end with a loss that is not finite, even after few such steps.
        let ends_failing = self.is_final && result.loss.is_some_and(|loss| !loss.is_finite());
        if self.taken.failed_in_a_row < self.max_skipped && !ends_failing {
            return None;
        }
        let from = self.began(step);
        let cause = first.and_then(FirstNonFinite::told).map(|told| format!("in step {step}, {told}"));
        Some(Divergence { began: from, symptom: Symptom::Skipped { from, to: step }, cause })
    }

    fn nan_loss(&self, step: u64, cause: Option<String>) -> Divergence {
        Divergence { began: self.began(step), symptom: Symptom::Loss { step }, cause }
    }

    fn cause_of_weight(&self, maker: ampc_ir::Node) -> String {
        let module = self.trainer.module();
        match self.watch.seen().gradient {
            Some(node) => {
                format!(
                    "{} made the first gradient of a weight that is not finite",
                    node_in_words(module, node)
                )
            }
            None => format!("{} made it from finite gradients", node_in_words(module, maker)),
        }
    }

    /// The first of the consecutive steps without finite gradients or loss up to step `number`.
    fn began(&self, number: u64) -> u64 {
        (self.taken.steps - self.taken.failed_in_a_row + 1).min(number)
    }

    pub(super) fn count(&mut self, result: &StepResult) {
        self.taken.steps += 1;
        self.taken.skipped += u64::from(result.skipped);
        let failed = result.skipped || result.loss.is_some_and(f64::is_infinite);
        self.taken.failed_in_a_row = if failed { self.taken.failed_in_a_row + 1 } else { 0 };
    }

    /// Runs the step again, up to its first update, with an observer.
    pub(super) fn cause_of_nan(&mut self, batch: &[(&str, &HostTensor)]) -> Option<String> {
        self.trainer.accept_torn_state().ok()?;
        let mut first = FirstNonFinite::new(self.trainer, batch, false).ok()?;
        // The observer stops the step before the first update, which is an error.
        self.trainer.try_step(batch, Some(&mut first), |_, _| {}).err()?;
        first.told()
    }
}

impl From<Divergence> for Error {
    fn from(divergence: Divergence) -> Error {
        Error::Diverged(divergence)
    }
}
