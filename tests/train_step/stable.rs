//! Losses that are written out in the model, of scores that saturate.

use super::{Training, options, step_of, tensor};
use ampc::ir::DType;
use ampc::ir::op::OpKind;

/// Scores x · w with x = 1, binary cross-entropy as its formula stands in books, with what is between sigmoid and
/// logarithm.
fn model(bound: &str, of: &str) -> String {
    format!(
        "module ir=10\nopset ai.onnx=21\n\ngraph @main {{\n  input %x : f32[1, 1]\n  input %target : f32[1, 8]\n  \
         const %w : f32[1, 8] = [-100.0, 100.0, -100.0, 100.0, -20.0, 20.0, 0.5, -2.0]\n  const %one : f32 = 1.0\n  \
         const %least : f32 = 1e-7\n  const %most : f32 = 0.9999999\n  \
         %z = MatMul(%x, %w) : f32[1, 8] @product\n  %p = Sigmoid(%z) : f32[1, 8]\n{bound}  \
         %yes = Log({of}) : f32[1, 8]\n  %rest = Sub(%one, {of}) : f32[1, 8]\n  %no = Log(%rest) : f32[1, 8]\n  \
         %u = Sub(%one, %target) : f32[1, 8]\n  %a = Mul(%target, %yes) : f32[1, 8]\n  \
         %b = Mul(%u, %no) : f32[1, 8]\n  %c = Add(%a, %b) : f32[1, 8]\n  %d = Neg(%c) : f32[1, 8]\n  \
         %loss = ReduceMean(%d) {{keepdims=0}} : f32\n  output %loss\n  output %z\n}}\n"
    )
}

const SCORES: [f64; 8] = [-100.0, 100.0, -100.0, 100.0, -20.0, 20.0, 0.5, -2.0];
const TARGETS: [f32; 8] = [1.0, 0.0, 0.0, 1.0, 1.0, 0.25, 1.0, 0.0];

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

#[test]
fn a_binary_cross_entropy_that_is_written_out_stays_finite() {
    for low in [false, true] {
        let mut training =
            Training::of(step_of(&model("", "%p"), &options("output:loss", "none", "none", low)));
        let target = tensor(&[1, 8], &TARGETS);
        let found = training.step(&[("x", tensor(&[1, 1], &[1.0])), ("target", target)]);
        let each = SCORES.iter().zip(TARGETS).map(|(&z, t)| {
            let t = f64::from(t);
            t * softplus(-z) + (1.0 - t) * softplus(z)
        });
        let want = each.sum::<f64>() / 8.0;
        let loss = super::number(&found["loss"]);
        // All of it in fp32, of scores that fp16 has.
        assert!((loss - want).abs() < 1e-5 * want, "low {low}: {loss} instead of {want}");
        let gradients: Vec<f64> = found["w.grad"].f64s().unwrap().collect();
        for ((found, &z), t) in gradients.into_iter().zip(&SCORES).zip(TARGETS) {
            let want = (1.0 / (1.0 + (-z).exp()) - f64::from(t)) / 8.0;
            // fp16 rounds the gradient of a score, and is 0 below 2^-25.
            let tolerance = if low { want.abs() / 1024.0 + 6e-8 } else { want.abs() * 1e-5 + 1e-9 };
            assert!((found - want).abs() <= tolerance, "low {low}, score {z}: {found} instead of {want}");
        }
    }
}

/// Bounds of an author are smaller than an ulp of fp16 beside 1.
#[test]
fn bounds_are_kept_in_fp32() {
    let bound = "  %clipped = Clip(%p, %least, %most) : f32[1, 8]\n";
    let step = step_of(&model(bound, "%clipped"), &options("output:loss", "none", "none", true));
    let module = &step.model.module;
    for node in module.nodes(module.main()) {
        let Some(schema) = module.node(node).schema() else { continue };
        if matches!(schema.kind, OpKind::Sigmoid | OpKind::Clip | OpKind::Log) {
            let dtype = module.node(node).result(0).and_then(|value| module.value(value).ty.dtype());
            assert_eq!(dtype, Some(DType::F32), "{}", schema.name);
        }
    }
    let mut training = Training::of(step);
    let target = tensor(&[1, 8], &TARGETS);
    let found = training.step(&[("x", tensor(&[1, 1], &[1.0])), ("target", target)]);
    let gradients: Vec<f64> = found["w.grad"].f64s().unwrap().collect();
    assert!(
        super::number(&found["loss"]).is_finite() && gradients.iter().all(|g| g.is_finite()),
        "{gradients:?}"
    );
}

#[test]
fn scores_that_are_probabilities_are_told() {
    let text = super::LINEAR.replace("  output %y\n", "  %p = Sigmoid(%y) : f32[4, 2]\n  output %p\n");
    let step = step_of(&text, &options("bce-with-logits", "sgd", "none", false));
    let codes: Vec<&str> = step.warnings.iter().map(|warning| warning.code).collect();
    assert_eq!(codes, ["loss.probabilities"]);
    assert!(step.warnings[0].message.contains("bce-with-logits:of=y"), "{}", step.warnings[0].message);
}
