//! The predicted time in a report.

use crate::options::Objective;
use ampc_passes::assign::Optimum;
use serde::Serialize;

/// The time that is predicted for the whole model: all nodes, all casts.
#[derive(Clone, Debug, Serialize)]
pub struct TimeReport {
    /// The unit of times: `ps` (picoseconds).
    pub unit: &'static str,
    /// The number of runs of the model that the times cover, so that branches that are taken every other time count as whole runs.
    pub scale: i64,
    /// The source as it was read.
    pub source: i64,
    /// The time of the written model.
    pub rewritten: i64,
    /// Assumptions about facts that the model leaves open.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub assumptions: Vec<String>,
}

impl TimeReport {
    /// True if the rewrite is predicted to take less time than the source.
    pub fn is_faster(&self) -> bool {
        self.rewritten < self.source
    }

    /// True if the rewrite is predicted to take more time than the source.
    pub fn is_slower(&self) -> bool {
        self.rewritten > self.source
    }

    /// The predicted speed of the rewrite as a multiple of the source's, with two digits; never 1.00 for a
    /// slower rewrite. `None` of one that takes no time.
    pub fn ratio(&self) -> Option<String> {
        let (source, rewritten) = (u128::try_from(self.source).ok()?, u128::try_from(self.rewritten).ok()?);
        let half = if self.is_slower() { 0 } else { rewritten / 2 };
        let hundredths = source.checked_mul(100)?.checked_add(half)?.checked_div(rewritten)?;
        Some(format!("{}.{:02}", hundredths / 100, hundredths % 100))
    }

    /// The times, if passes before any decision have saved so much of the source's.
    pub(super) fn of(optimum: &Optimum, saved: i64) -> Option<TimeReport> {
        let predicted = optimum.predicted.as_ref()?;
        Some(TimeReport {
            unit: Objective::Time.unit(),
            scale: predicted.scale,
            source: predicted.source.saturating_add(saved),
            rewritten: predicted.rewritten,
            assumptions: predicted.assumptions.iter().map(ToString::to_string).collect(),
        })
    }
}
