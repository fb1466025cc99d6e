//! Operators of the user's own: what the signatures of a policy say of them holds in the file that is written.

use crate::proto::{bytes, load, nodes_of, some, written};
use crate::runtime::{exec_models, f32s, uniform};
use crate::support::{Ask, Decided, module_with, options, policy, rewrite};
use ampc::ir::op::{Class, Count, Signature, SignatureFormal};
use ampc::ir::{DType, Module};
use ampc::passes::Policy;
use ampc::passes::policy::ListedBy;
use std::sync::Arc;

/// The policy that `docs/policy.md` shows.
fn documented() -> Policy {
    let text = include_str!("../../docs/policy.md");
    let mut examples = text.split("```json\n").skip(1).filter_map(|t| t.split("```").next());
    let example = examples.find(|t| t.contains("\"signatures\"")).unwrap();
    Policy::from_json(example).unwrap()
}

fn module() -> Module {
    module_with(
        "ai.onnx=21, acme.ai=3",
        "input %x : f32[2, 8]
         const %w : f32[8, 8] = random(1, 0.5)
         const %s : f32 = 0.5
         %h = MatMul(%x, %w) : ? @before
         %y, %n = acme.ai::FusedNorm(%h, %s, %x) {mode=\"fast\"} : ?, ? @norm
         %z = MatMul(%y, %w) : ? @after
         %k = Neg(%n) : ? @count
         output %z : f32[2, 8]
         output %k : i64",
    )
}

#[test]
fn signature_of_the_document_lowers_its_operator() {
    let mut options = options(DType::F16);
    // Without it, the operator holds back what is around it.
    let source = load(bytes(&module().into()));
    let done = rewrite(source, &options);
    assert_eq!((done.rule("after"), done.dtype("h")), ("type.unknown", DType::F16));
    assert_eq!(done.operand_dtypes("FusedNorm")[0], Some(DType::F32));
    options.policy = Arc::new(documented());
    let source = bytes(&module().into());
    let done = rewrite(load(source), &options);
    assert_eq!((done.precision("norm"), done.precision("after")), ("fp16", "fp16"));
    let [x, scale, rest] = done.operand_dtypes("FusedNorm")[..] else { panic!() };
    assert_eq!([x, scale, rest], [Some(DType::F16), Some(DType::F32), Some(DType::F16)]);
    assert_eq!((done.dtype("y"), done.dtype("n")), (DType::F16, DType::I64));
    let file = written(&done);
    assert_eq!(nodes_of(&file, "FusedNorm")[0].domain, some("acme.ai"));
    assert_eq!(nodes_of(&file, "FusedNorm")[0].attribute.len(), 1);

    // Again: no byte changes, whether by the policy or by the report.
    let once = bytes(&done.model);
    assert!(bytes(&rewrite(load(once.clone()), &options).model) == once);
    options.policy = Arc::new(Policy::from_json(&serde_json::to_string(&done.report).unwrap()).unwrap());
    let repeated = rewrite(load(bytes(&module().into())), &options);
    assert!(bytes(&repeated.model) == once);
    assert_eq!(repeated.report.signatures, done.report.signatures);
}

/// A node that is not lowered is written unchanged, even if more is known about it now.
#[test]
fn signature_alone_changes_no_byte() {
    let source = module_with("acme.ai=1", "input %x : f32[2]\n%y = acme.ai::FusedNorm(%x) : ?\noutput %y");
    let source = bytes(&source.into());
    let mut options = options(DType::F16);
    options.policy = Arc::new(documented());
    let done = rewrite(load(source.clone()), &options);
    assert_eq!(done.dtype("y"), DType::F32);
    assert!(bytes(&done.model) == source);
}

/// Lists and pins of the command line go by the name and before the signature.
#[test]
fn signature_gives_way_to_lists_and_pins() {
    let mut options = options(DType::F16);
    options.policy = Arc::new(documented());
    policy(&mut options).set_class("acme.ai::FusedNorm", Class::Deny, ListedBy::Options).unwrap();
    let done = rewrite(module().into(), &options);
    assert_eq!((done.precision("norm"), done.rule("norm")), ("fp32", "list.deny"));
    policy(&mut options).pin("norm#T", "fp16".parse().unwrap()).unwrap();
    let done = rewrite(module().into(), &options);
    assert_eq!((done.precision("norm"), done.rule("norm")), ("fp16", "pin:norm#T"));
}

/// An operator of ONNX Runtime that is in no table: with a signature from the library, it is lowered and runs.
#[test]
fn signature_of_a_real_operator_runs() {
    let formal = |name: &str, ty: &str| SignatureFormal {
        name: name.into(),
        ty: ty.into(),
        count: Count::One,
        class: None,
        shape: None,
    };
    let signature = Signature {
        domain: "com.microsoft".into(),
        name: "ExpandDims".into(),
        inputs: vec![formal("X", "T"), formal("axis", "i32")],
        outputs: vec![formal("Y", "T")],
        types: vec![("T".into(), vec![DType::F32, DType::F16])],
        class: Class::Clear,
    };
    let graph = "input %x : f32[2, 8]
         const %w : f32[8, 8] = random(1, 0.5)
         const %axis : i32 = 0
         %h = MatMul(%x, %w) : ?
         %e = com.microsoft::ExpandDims(%h, %axis) : ? @expand
         %y = MatMul(%e, %w) : ? @after
         output %y : f32[1, 2, 8]";
    let mut options = options(DType::F16);
    policy(&mut options).add_signature(&signature).unwrap();
    let module = || module_with("ai.onnx=21, com.microsoft=1", graph).into();
    let feeds = [f32s("x", &[2, 8], &uniform(7, 16, 1.0))];
    let (done, runs) = exec_models(module(), module(), &options, &feeds);
    assert_eq!((done.precision("expand"), done.precision("after")), ("fp16", "fp16"));
    if let Some(runs) = runs {
        println!("ExpandDims: {}", if runs.low.is_some() { "ran" } else { "no kernel for fp16" });
        runs.are_within(1e-2);
    }
}
