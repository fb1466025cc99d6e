//! Reads anything as what a user may want.

use crate::laws;
use ampc::onnx::to_bytes;
use ampc::{ErrorKind, Model, RewriteOptions};
use ampc_ir::op::Class;
use ampc_ir::{DType, Module};
use ampc_passes::Policy;
use ampc_passes::pipeline::Pipeline;
use ampc_passes::policy::{ListedBy, Pin};
use std::sync::{Arc, LazyLock};

/// Something to apply policies to, of which regular names and odd ones match patterns.
static MODEL: LazyLock<Module> =
    LazyLock::new(|| laws::parse_text(include_str!("../../testdata/if_captures.ir")).unwrap());

/// The first line says what the rest is: a policy file, a pipeline, or lines of pins, classes and guards. Every
/// policy that parses can be used.
pub fn policy(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (kind, rest) = text.split_once('\n').unwrap_or(("", text));
    match kind {
        "pipeline" => pipeline(rest),
        "lines" => {
            let mut policy = Policy::preset("safe").unwrap();
            for line in rest.lines() {
                say(&mut policy, line);
            }
            apply(policy);
        }
        _ => {
            if let Ok(policy) = Policy::from_json(text) {
                apply(policy);
            }
        }
    }
}

/// A word that says what the rest of the line is.
fn say(policy: &mut Policy, line: &str) {
    let Some((word, rest)) = line.split_once(' ') else { return };
    let _ = match word {
        "fp32" | "fp16" | "bf16" | "auto" => policy.pin(rest, word.parse::<Pin>().unwrap()),
        "value" => policy.pin_value(rest, Pin::To(DType::F32)),
        "guard" => policy.disable_guard(rest),
        word => {
            if let Ok(class) = word.parse::<Class>() {
                for op in rest.split(',') {
                    let _ = policy.set_class(op, class, ListedBy::Policy);
                }
            }
            return;
        }
    };
}

fn apply(policy: Policy) {
    let options = RewriteOptions { policy: Arc::new(policy), ..RewriteOptions::default() };
    match ampc::rewrite(Model::from(MODEL.clone()), &options) {
        Ok(rewritten) => {
            let report = serde_json::to_string(&rewritten.report).unwrap();
            let replayed = Arc::new(Policy::from_json(&report).unwrap());
            let options = RewriteOptions { policy: replayed, ..RewriteOptions::default() };
            let again = ampc::rewrite(Model::from(MODEL.clone()), &options).unwrap().model;
            let [one, two] = [&rewritten.model, &again].map(|m| to_bytes(&m.module, None).unwrap().0);
            assert!(one == two, "{}\n{}", laws::show(&rewritten.model.module), laws::show(&again.module));
        }
        Err(error) => assert!(error.kind() == ErrorKind::Usage, "{error}"),
    }
}

/// A spelling that is read spells the same pipeline, which can be run.
fn pipeline(text: &str) {
    let Ok(pipeline) = Pipeline::parse(text, &Policy::preset) else { return };
    let spelled = pipeline.to_string();
    let again = Pipeline::parse(&spelled, &Policy::preset).unwrap_or_else(|e| panic!("{e}: {spelled}"));
    assert_eq!(spelled, again.to_string());
    let mut model = Model::from(MODEL.clone());
    if let Err(error) = ampc::rewrite::run_pipeline(&mut model, &pipeline, true, &mut ()) {
        assert!(error.kind() != ErrorKind::Bug, "{error}: {spelled}");
    }
}
