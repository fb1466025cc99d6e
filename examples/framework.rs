//! A framework that is not ONNX asks ampc what to compute in 16 bits, without any file.
//!
//! It builds its graph with [`ir::Builder`], has it rewritten, and reads the result from the module: the decision of
//! every node, and the casts to be run. `cargo run --example framework` prints them.

#![allow(clippy::print_stdout, reason = "an example shows what it finds")]

use ampc::ir::module::Provenance;
use ampc::ir::{AttrValue, Builder, DType, Module, TensorData, Type};
use ampc::{Model, RewriteOptions};

/// What a framework has to know of a node.
#[derive(Debug)]
struct Step {
    path: String,
    op: String,
    /// The element type of its first result.
    computes_in: Option<DType>,
    /// Why: rule and evidence of its first type variable.
    rule: String,
    /// Whether it is a cast that ampc put there.
    inserted: bool,
}

/// A layer with a normalization: what may be low, and what must not.
fn build() -> Result<Module, Box<dyn std::error::Error>> {
    let mut b = Builder::new("block", 21);
    let x = b.input("x", DType::F32, ["N", "64"]);
    // A weight can be bytes of the framework's own; they are neither copied nor read until they are written.
    let weight = vec![0.01f32; 64 * 64];
    let w = b.constant("w", TensorData::from_f32(&[64, 64], &weight)?);
    let scale = b.constant("scale", TensorData::from_f32(&[64], &[1.0; 64])?);
    let h = b.op("MatMul", &[x, w])?;
    let a = b.op("Relu", &[h])?;
    // `op` is for one result and no attributes, `node` for the rest: absent operands, attributes, several results.
    let norm = b.node(
        "",
        "LayerNormalization",
        &[Some(a), Some(scale), None],
        &[("axis", AttrValue::Int(-1)), ("epsilon", AttrValue::Float(1e-5))],
        1,
    )?;
    let y = b.results(norm)[0];
    b.output("y", y)?;
    Ok(b.finish()?)
}

/// Rewrites a module and lists what is to be run, in order.
fn plan(module: Module) -> Result<Vec<Step>, ampc::Error> {
    let options = RewriteOptions { to: DType::BF16, ..RewriteOptions::default() };
    let rewritten = ampc::rewrite(Model::from(module), &options)?;
    let module = &rewritten.model.module;
    let paths = ampc::passes::Paths::of(module);
    let step = |node| {
        let data = module.node(node);
        let result = data.result(0).map(|value| &module.value(value).ty);
        Step {
            path: paths.path(node).to_owned(),
            op: module.op_name(node).1.to_owned(),
            computes_in: match result {
                Some(Type::Tensor(tensor)) => Some(tensor.dtype),
                _ => None,
            },
            rule: data.decisions.first().map(|d| d.reason.rule.clone()).unwrap_or_default(),
            inserted: data.provenance == Provenance::Inserted,
        }
    };
    Ok(module.nodes(module.main()).map(step).collect())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for step in plan(build()?)? {
        let dtype = step.computes_in.map(|d| d.to_string()).unwrap_or_default();
        let what = if step.inserted { "inserted" } else { &step.rule };
        println!("{:<20} {:<20} {dtype:<5} {what}", step.path, step.op);
    }
    Ok(())
}

#[test]
fn decisions_and_casts_are_in_the_module() {
    let steps = plan(build().unwrap()).unwrap();
    let found: Vec<(&str, Option<DType>, bool)> =
        steps.iter().map(|s| (s.op.as_str(), s.computes_in, s.inserted)).collect();
    let (low, full) = (Some(DType::BF16), Some(DType::F32));
    assert_eq!(found[..3], [("Cast", low, true), ("MatMul", low, false), ("Relu", low, false)]);
    assert!(found[3..].contains(&("LayerNormalization", full, false)), "{steps:?}");
    assert_eq!(steps[1].rule, "table");
}
