//! Keys of the model metadata that ampc writes.

/// The key of the model metadata that lists the states of a step, as JSON: `[{"in", "out", "kind"}, …]`, with `of` for
/// states that belong to a weight.
pub const METADATA: &str = "ampc.state";
/// The key of the model metadata that identifies a step and the states that belong to it: a hash of the step. Files of
/// states have the hash under the same key.
pub const IDENTITY: &str = "ampc.step";
/// The key of the model metadata that names the loss scaler of a step.
pub const SCALER_METADATA: &str = "ampc.loss_scale";
/// The key of the model metadata that describes the forward model of a step, as JSON:
/// [`Forward`](crate::step::inference::Forward).
pub const FORWARD: &str = "ampc.forward";
/// The key of the metadata in which a copy names the function that it was copied from.
pub(crate) const INSTANCE_OF: &str = "ampc.instance_of";
