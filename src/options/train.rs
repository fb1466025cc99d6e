//! Options of making a training step.

use super::RewriteOptions;
use ampc_passes::autodiff::CustomGradients;
use ampc_passes::step::loss::LossSpec;
use ampc_passes::step::{LossKind, Update};
use std::collections::BTreeMap;

/// Options of making a training step.
#[derive(Clone, Debug)]
pub struct TrainOptions {
    /// Options of the precision decisions; `None` leaves everything in fp32.
    pub precision: Option<RewriteOptions>,
    /// The loss.
    pub loss: LossSpec,
    /// The input of targets: an input of the model, or a new input.
    pub target: String,
    /// True if the loss is computed in fp32 under every policy.
    pub keeps_loss_fp32: bool,
    /// The optimizer, the loss scaler, and their settings.
    pub update: Update,
    /// Names or globs of constants that are parameters in any case.
    pub train: Vec<String>,
    /// Names or globs of constants that are not parameters.
    pub freeze: Vec<String>,
    /// Names or globs of values through which no gradient passes.
    pub stop_gradient: Vec<String>,
    /// True if parameters that the loss does not depend on are left out, instead of being an error.
    pub freezes_unreached: bool,
    /// True if cheap activations are computed again for gradients where that lowers the peak of memory; the bits of all
    /// outputs are the same.
    pub recomputes: bool,
    /// Numbers for open dims of the inputs, by name, for which memory is planned.
    pub dims: BTreeMap<String, u64>,
    /// The seed of dropouts in the state that the step begins with.
    pub dropout_seed: u64,
    /// Gradients of operators for which ampc has none, or that replace ampc's.
    pub gradients: CustomGradients,
    /// True if every pass is verified.
    pub verify_each: bool,
}

impl Default for TrainOptions {
    /// Mean squared errors, AdamW, and fp16 by the default policy with the default scaler.
    fn default() -> Self {
        TrainOptions {
            precision: Some(RewriteOptions::default()),
            loss: LossSpec { kind: LossKind::Mse, of: None },
            target: "target".into(),
            keeps_loss_fp32: true,
            update: Update::default(),
            train: Vec::new(),
            freeze: Vec::new(),
            stop_gradient: Vec::new(),
            freezes_unreached: false,
            recomputes: true,
            dims: BTreeMap::new(),
            dropout_seed: 0,
            gradients: CustomGradients::default(),
            verify_each: cfg!(debug_assertions),
        }
    }
}
