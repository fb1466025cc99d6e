//! Decisions: the passes that choose the element type of every type variable, and the minimum cut that they use.

pub mod assign;
pub(crate) mod between;
pub mod choices;
pub mod classify;
pub mod cut;
pub mod guard;
pub mod observe;
pub mod saturate_masks;
pub mod taint;
