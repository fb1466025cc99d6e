//! Laws of every preset: its output is valid, a fixed point of rewriting, and reproducible from the report.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ampc::onnx::to_bytes;
use ampc::{Model, RewriteOptions, Rewritten, rewrite};
use ampc_ir::text::{NoData, parse};
use ampc_ir::{DType, Module};
use ampc_passes::Policy;
use ampc_passes::policy::PRESETS;
use std::path::Path;

/// The blocks of the tables, by name.
fn blocks() -> Vec<(String, Module)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/presets");
    let files = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path());
    let mut files: Vec<_> = files.filter(|f| f.extension().is_some_and(|e| e == "ir")).collect();
    files.sort();
    let read = |file: &Path| parse(&std::fs::read_to_string(file).unwrap(), &NoData).unwrap();
    files.iter().map(|f| (f.display().to_string(), read(f))).collect()
}

/// All presets, of families some.
fn presets() -> impl Iterator<Item = String> {
    let families = ["p=f32,c=f16,o=f32", "c=f16", "full"];
    let of = move |name: &str| {
        let examples = if name.contains("POLICY") { &families[..] } else { &[""] };
        examples.iter().map(|e| name.replace("POLICY", e)).collect::<Vec<_>>()
    };
    PRESETS.iter().flat_map(move |p| of(p.name))
}

fn rewritten(module: &Module, options: &RewriteOptions) -> Rewritten {
    rewrite(Model::from(module.clone()), options).unwrap_or_else(|e| panic!("{}: {e}", options.policy.name))
}

fn bytes(module: &Module) -> Vec<u8> {
    to_bytes(module, None).unwrap().0
}

#[test]
fn presets_are_repeated_and_stay() {
    for (block, module) in blocks() {
        for name in presets() {
            let options = RewriteOptions::of(Policy::preset(&name).unwrap());
            let done = rewritten(&module, &options);
            let once = bytes(&done.model.module);
            assert!(
                once == bytes(&rewritten(&done.model.module, &options).model.module),
                "{block}: {name}: again"
            );
            let report = serde_json::to_string(&done.report).unwrap();
            let policy = Policy::from_json(&report).unwrap().into();
            let replay = RewriteOptions { policy, ..options };
            assert!(
                once == bytes(&rewritten(&module, &replay).model.module),
                "{block}: {name}: from the report"
            );
        }
    }
}

/// A model that is fp32 throughout is left as it is where nothing may be narrowed.
#[test]
fn without_risk_nothing_changes() {
    for (block, module) in blocks() {
        for name in ["zero-risk", "jmp:full"] {
            let options = RewriteOptions::of(Policy::preset(name).unwrap());
            assert!(bytes(&rewritten(&module, &options).model.module) == bytes(&module), "{block}: {name}");
        }
    }
}

#[test]
fn a_policy_is_one_for_its_format() {
    let (_, module) = blocks().remove(0);
    let policy = Policy::preset("jmp:c=bf16").unwrap();
    let options = RewriteOptions { to: DType::F16, ..RewriteOptions::of(policy) };
    let error = rewrite(Model::from(module), &options).unwrap_err();
    assert!(error.to_string().contains("computes in bf16"), "{error}");
}

/// PyTorch adds an fp32 mask in fp32; in the preset an operator in no list follows the products around it, as
/// docs/policy.md says, and `promote` is what PyTorch does.
#[test]
fn torch_rounds_a_mask_that_is_an_input() {
    let text = "module ir=10\nopset ai.onnx=21\n\ngraph @main {\n  input %x : f32[4, 8]\n  input %mask : f32[4, 4]\n  \
                const %w : f32[8, 4] = random(1)\n  const %v : f32[4, 2] = random(2)\n  \
                %s = MatMul(%x, %w) : f32[4, 4] @scores\n  %m = Add(%s, %mask) : f32[4, 4] @masked\n  \
                %y = MatMul(%m, %v) : f32[4, 2] @values\n  output %y : f32[4, 2]\n}\n";
    let masked = |policy: Policy| {
        let model = Model::from(parse(text, &NoData).unwrap());
        let report = rewrite(model, &RewriteOptions::of(policy)).unwrap().report;
        let narrowed = report.casts.list.iter().any(|cast| cast.tensor == "mask" && cast.to == "fp16");
        (report.node("masked").unwrap().precision.clone().unwrap(), narrowed)
    };
    assert_eq!(masked(Policy::preset("torch").unwrap()), ("fp16".into(), true));
    let promoted = r#"{"schema": "ampc-policy/1", "base": "torch", "ops": {"promote": ["Add"]}}"#;
    assert_eq!(masked(Policy::from_json(promoted).unwrap()), ("fp32".into(), false));
}
