//! Versions of operators: raising a model to a newer opset, and forms of old opsets that runtimes refuse.

pub mod declared;
pub mod raise_opset;
pub mod raise_units;
pub mod text_casts;
