//! The steps that change a form, by what changes.

pub(super) mod channels;
pub(super) mod forms;
pub(super) mod layouts;
pub(super) mod resizes;
pub(super) mod shapes;
