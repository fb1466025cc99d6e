//! Views: the meaning of a node, read in one place.
//!
//! Operators change between opsets: axes move from an attribute to an operand, a default changes, Softmax below
//! 13 flattens. A *view* (`SoftmaxView`, `ReduceView`, `ResizeView` …) reads a node at any version and gives
//! its meaning once; inference, guards, kernels and gradients use views and never ask for the version.
//!
//! A view is read from a [`NodeView`]: the node with its attributes (schema defaults filled in, references to a
//! function's attributes resolved), the types of its operands, and known elements of small integer operands.

pub mod attention;
mod axes;
pub mod broadcast;
pub mod control;
pub mod expression;
pub mod image;
mod layout;
pub mod linear;
pub mod loss_scale;
mod node;
pub mod norm;
pub mod optimizer;
mod quantize;
pub mod recurrent;
pub mod reduce;
pub mod resize;
pub mod signal;
pub(crate) mod size;
pub mod window;

pub use axes::{Axes, distinct_axes};
pub use layout::{
    CastView, ConcatView, FlattenView, PadView, Parts, ReshapeView, ShapeView, SliceView, SplitView,
    TileView, TransposeView, slice_range, whole,
};
pub(crate) use node::ints_of;
pub use node::{
    Actual, MAX_INTS, NodeView, OpError, Part, broadcast, constant_node_data, constant_of, normalize_axis,
    resolve_captures,
};
pub use quantize::{Granularity, QuantizeView};
