//! A mixed-precision compiler for ONNX graphs.

pub mod onnx;
