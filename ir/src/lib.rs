//! The graph IR of ampc.

mod dtype;
mod entity;
pub mod op;
mod ty;

pub use dtype::{DType, UnknownDType};
pub use entity::*;
pub use ty::{Dim, Dims, Shape, TensorType, Type};
