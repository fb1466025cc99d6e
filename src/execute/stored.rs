//! Comparison of the outputs of a model with stored outputs.
//!
//! By default, the tolerance of an element is `1e-3 · |want| + abs`, as in ONNX's backend tests, with an `abs` of
//! 1e-7 for outputs of similar magnitude. For small outputs, `abs` is at most 1e-3 of the largest element, and at
//! most the fp32 noise that is propagated to the output ([`bound`](super::bound)). So an output whose elements are
//! all near 1e-14 is compared meaningfully, and stored zeros must be zeros.

use super::TestData;
use super::agree::{Agreement, agree_in_type};
use super::bound::{self, Meter};
use super::verify::{Compared, of_outputs};
use crate::error::Error;
use crate::execute::session::views;
use crate::run_errors::of_run;
use ampc_ir::Module;
use ampc_runtime::{Data, Session, Tolerance};

/// The tolerance for stored outputs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StoredTolerance {
    /// The tolerance.
    pub tolerance: Tolerance,
    /// True if the absolute part applies as given; otherwise it is limited for each output.
    pub abs_is_asked: bool,
}

impl Default for StoredTolerance {
    fn default() -> StoredTolerance {
        StoredTolerance { tolerance: Tolerance { abs: 1e-7, rel: SHARE, of_max: 0.0 }, abs_is_asked: false }
    }
}

/// The maximum absolute part relative to the largest element, and the relative tolerance of each element.
const SHARE: f64 = 1e-3;

impl StoredTolerance {
    /// The tolerance for an output with this much propagated noise.
    fn for_output(&self, want: &Data, propagated: f64) -> Tolerance {
        if self.abs_is_asked || self.tolerance.of_max > 0.0 {
            return bound::of_value(&self.tolerance, want, propagated);
        }
        let most = SHARE * bound::magnitude(want) + bound::noise(want, 0.0, propagated);
        Tolerance { abs: self.tolerance.abs.min(most), ..self.tolerance }
    }
}

/// Runs a model on stored inputs, and compares its outputs, in order, with the stored outputs.
///
/// # Errors
/// If a node cannot be computed, inputs do not fit or a limit is reached; the error has the path of the node.
pub fn verify_stored(
    module: &Module,
    session: &mut Session,
    data: &TestData,
    tolerance: &StoredTolerance,
) -> Result<Vec<Compared>, Error> {
    let mut meter = Meter::new(module);
    let outputs = session.run_observed(&views(&data.inputs), Some(&mut meter));
    let outputs = outputs.map_err(|error| of_run(module, &error))?;
    let rows = outputs.iter().zip(&data.outputs).zip(meter.outputs());
    let found: Vec<(Agreement, f64)> = rows
        .map(|((got, want), propagated)| {
            let agreement = agree_in_type(got, want, &tolerance.for_output(want, propagated));
            let noise = bound::noise(want, agreement.found.max_want, propagated);
            (agreement, noise)
        })
        .collect();
    Ok(of_outputs(module, found))
}
