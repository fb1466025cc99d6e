//! The steps that change the form of a node, grouped by the kind of change.

pub(super) mod channels;
pub(super) mod forms;
pub(super) mod layouts;
pub(super) mod resizes;
pub(super) mod shapes;
