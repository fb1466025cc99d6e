//! The committed messages are what the generator makes of the committed `onnx-ml.proto`.

#![allow(clippy::unwrap_used, reason = "a test fails and tells by panicking and printing")]

use std::fs;
use std::path::Path;

/// Regenerates and compares. When they differ the file is rewritten and the test fails once: running it again
/// passes, and the difference shows in the diff under review.
#[test]
fn committed_messages_are_fresh() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src/onnx");
    let descriptors = protox::compile(["onnx-ml.proto"], [&folder]).unwrap();
    let mut config = prost_build::Config::new();
    config.disable_comments(["."]);
    for field in ["t", "g", "sparse_tensor", "tp"] {
        config.boxed(format!(".onnx.AttributeProto.{field}"));
    }
    let request = descriptors
        .file
        .into_iter()
        .map(|file| (prost_build::Module::from_protobuf_package_name("onnx"), file));
    let modules = config.generate(request.collect()).unwrap();
    let fresh = modules.into_values().next().expect("one package");
    let path = folder.join("onnx.generated.rs");
    if fs::read_to_string(&path).unwrap_or_default() != fresh {
        fs::write(&path, fresh).unwrap();
        panic!("`src/onnx/onnx.generated.rs` was not what the generator makes; it has been rewritten");
    }
}
