//! The graph IR of ampc.
//!
//! A [`Module`] holds a model: its main graph, the bodies of control-flow nodes and the model-local functions,
//! as data in one arena (read [`module`] first, then [`edit`], then [`verify`]). Passes build nodes through
//! [`inserter`]. The schemas of ONNX are the table [`op`]; [`views`] read the meaning of an operator at its
//! version; [`infer`] gives every value its type; [`text`] prints a module and reads it back.
//!
//! This crate does no I/O, knows no file format but its own text, and runs no kernel.

pub mod attr;
pub mod bodies;
pub mod builder;
pub mod convert;
pub mod dtype;
pub mod edit;
pub mod entity;
pub mod eq;
mod facts;
pub mod infer;
pub mod inserter;
mod int;
pub mod module;
pub mod op;
pub mod ports;
pub mod random;
pub mod symbols;
pub mod tensor;
pub mod text;
pub mod ty;
pub mod verify;
pub mod views;

pub use attr::{Attr, AttrValue};
pub use builder::Builder;
pub use dtype::DType;
pub use edit::{NewNode, Position};
pub use entity::{FunctionId, GraphId, Node, Symbol, Value};
pub use inserter::{InsertError, Inserter, NodeSpec};
pub use module::{Captured, Module, Op, Payload};
pub use tensor::TensorData;
pub use ty::{Dim, Dims, Shape, TensorType, Type};
