//! Type and shape inference.
//!
//! [`infer`] finds the type of every value and changes nothing, [`infer_module`] stores the types in the
//! module. Both start from the graph inputs and constants alone: `value_info` of a file is never read. Element
//! types follow from the schemas: a result whose formal names a type variable has the type its operands bind to
//! it. Shapes, and element types that an attribute names, come from one function per family of operators. An
//! operator without a family function is inferred by its schema, with unknown shapes; [`is_inferred`] is false
//! for it.
//!
//! Shapes are often computed inside the graph (Shape → Gather → Concat → Reshape), so small integer values are
//! followed too: [`Facts`] has, per value, its elements as far as they are known, as numbers or symbolic dims
//! ([`Int`]).

mod arithmetic;
mod attention;
mod cast;
mod contrib;
mod control;
mod declared;
mod dispatch;
mod driver;
mod elementwise;
mod extents;
mod gather;
mod image;
mod inferred;
mod join;
mod linear;
mod ml;
mod norm;
mod optimizer;
mod quantize;
mod recurrent;
mod reduce;
mod reshape;
mod sequence;
mod signal;
mod source;
#[cfg(test)]
mod tests;
mod window;

pub use crate::facts::{CallAttrs, Defaults, Facts, Types};
pub use crate::int::Int;
pub use crate::ty::describe;
pub use dispatch::is_inferred;
pub(crate) use driver::check_new;
pub use driver::{InferError, check_node, infer, infer_actual, infer_module, misfit};
pub use inferred::{Inference, Inferred};
