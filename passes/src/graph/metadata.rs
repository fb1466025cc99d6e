//! Keys of the model metadata that ampc writes.

/// The key of the model metadata that lists the states of a step, as JSON: `[{"in", "out", "kind"}, …]`, with `of` for
/// states that belong to a weight.
pub const METADATA: &str = "ampc.state";
/// The key of the model metadata by which a step and its states know each other: a hash of the step. Files of states have it
/// under the same key.
pub const IDENTITY: &str = "ampc.step";
/// The key of the model metadata that says which loss scaler a step has.
pub const SCALER_METADATA: &str = "ampc.loss_scale";
/// The key of the model metadata that describes the forward model of a step, as JSON: [`Forward`](crate::step::inference::Forward).
pub const FORWARD: &str = "ampc.forward";
/// The metadata by which a copy names the function that it was made of.
pub(crate) const INSTANCE_OF: &str = "ampc.instance_of";
