//! The messages of `onnx-ml.proto` (onnx 1.23.2, IR version 14), generated and committed so that building needs no
//! protobuf compiler. `tests/decoder` regenerates them and compares. `onnx-ml.proto` is ONNX's, copyright its
//! contributors, under the Apache License 2.0.
//!
//! Only small messages are decoded with these (types, properties, annotations) and only new ones encoded; nodes,
//! tensors and graphs are walked by [`wire`](super::wire), which has no recursion and reads no weights.

#![allow(missing_docs, reason = "generated; the documentation is in onnx-ml.proto")]
#![allow(clippy::all, reason = "generated")]

include!("onnx.generated.rs");
