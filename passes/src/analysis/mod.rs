//! Analyses: facts about the numbers, tensors and costs of a module. They change nothing.

pub mod cost;
pub mod dataflow;
pub(crate) mod evaluate;
pub mod exact;
pub mod fusions;
pub mod liveness;
pub(crate) mod numerics;
pub mod placement;
pub mod ranges;
pub mod tensors;
pub mod units;
pub(crate) mod values;
