//! Constant expressions are evaluated before gradients are made; gradients of stored weights, and types of labels.

use super::{number, options, step_of, tensor};
use ampc::ir::op::OpKind;
use ampc::ir::{DType, Module};
use ampc::runtime::HostTensor;

fn ops(module: &Module, kind: OpKind) -> usize {
    let kinds = module.nodes(module.main()).map(|node| module.node(node).schema().map(|schema| schema.kind));
    kinds.filter(|found| *found == Some(kind)).count()
}

/// A branch that is taken for certain trains, by shape or by a constant.
#[test]
fn an_if_whose_condition_is_known_trains() {
    for condition in [
        "  %c = Constant() {value=tensor(bool = true)} : ?\n",
        "  %n = Shape(%x) {start=1} : ?\n  const %three : i64[1] = [3]\n  %c = Equal(%n, %three) : ?\n",
        "  %r = Shape(%x) : ?\n  const %one : i64 = 1\n  %n = Gather(%r, %one) : ?\n  const %three : i64 = 3\n  \
         %no = Less(%n, %three) : ?\n  %c = Not(%no) : ?\n",
    ] {
        let text = format!(
            "opset ai.onnx=18\n\ngraph @main {{\n  input %x : f32[4, 3]\n  const %w : f32[3, 2] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]\n\
             {condition}  %y = If(%c; %x, %w) {{\n    then_branch: graph @t (%x, %w) {{\n      %a = MatMul(%x, %w) : ?\n      \
             output %a\n    }},\n    else_branch: graph @e (%x, %w) {{\n      %k = MatMul(%x, %w) : ?\n      %b = Neg(%k) : ?\n      \
             output %b\n    }}\n  }} : ?\n  output %y\n}}\n"
        );
        let step = step_of(&text, &options("mse", "sgd", "none", false));
        assert_eq!(ops(&step.model.module, OpKind::If), 0);
        let mut training = super::Training::of(step);
        let data = [
            ("x", tensor(&[4, 3], &[1.0; 12])),
            ("target", tensor(&[4, 2], &[0.0; 8])),
            ("lr", tensor(&[], &[0.1])),
        ];
        let first = number(&training.step(&data)["loss"]);
        assert!(number(&training.step(&data)["loss"]) < first);
    }
}

/// Scales and pads that are computed of constants train, with what follows from their extents; what was computed is gone
/// from the step.
#[test]
fn computed_pads_and_scales_train() {
    let text = "opset ai.onnx=18\n\ngraph @main {\n  input %x : f32[1, 1, 4, 4]\n  const %w : f32[2, 1, 3, 3] = random(1)\n  \
                %c = Conv(%x, %w) : ?\n  %ones = Constant() {value=tensor(f32[2] = [1.0, 1.0])} : ?\n  \
                %twos = Constant() {value=tensor(f32[2] = [2.0, 2.0])} : ?\n  %s = Concat(%ones, %twos) {axis=0} : ?\n  \
                %r = Resize(%c, _, %s) {mode=\"linear\"} : ?\n  const %p : i64[2] = [1, 0]\n  const %n : i64[1] = [6]\n  \
                %z = ConstantOfShape(%n) {value=tensor(i64[1] = [0])} : ?\n  %all = Concat(%z, %p) {axis=0} : ?\n  \
                %y = Pad(%r, %all) : ?\n  %q = AveragePool(%y) {kernel_shape=[2, 2], strides=[2, 2]} : ?\n  output %q\n}\n";
    let step = step_of(text, &options("mse", "sgd", "none", false));
    assert_eq!(ops(&step.model.module, OpKind::ConstantOfShape), 0);
    let mut training = super::Training::of(step);
    let found = training.step(&[
        ("x", tensor(&[1, 1, 4, 4], &[1.0; 16])),
        ("target", tensor(&[1, 2, 2, 2], &[0.5; 8])),
        ("lr", tensor(&[], &[0.1])),
    ]);
    assert!(number(&found["loss"]).is_finite());
}

/// A weight that is stored in 16 bits and computed with in fp32 has its gradient in fp32: nothing is rounded to 0 between,
/// whatever moves the weight while it is low.
#[test]
fn the_gradient_of_a_weight_stored_low_is_not_rounded_low() {
    for moves in [
        "  %f = Cast(%w) {to=1} : ?\n",
        "  %t = Transpose(%w) : ?\n  %u = Transpose(%t) : ?\n  %f = Cast(%u) {to=1} : ?\n",
        "  const %s : i64[2] = [2, 2]\n  %t = Reshape(%w, %s) : ?\n  %f = Cast(%t) {to=1} : ?\n",
    ] {
        let text = format!(
            "opset ai.onnx=18\n\ngraph @main {{\n  input %x : f32[1, 2]\n  const %w : f16[2, 2] = [1.0, 2.0, 3.0, 4.0]\n\
             {moves}  %y = MatMul(%x, %f) : ?\n  %tiny = Constant() {{value=tensor(f32 = 1e-9)}} : ?\n  \
             %z = Mul(%y, %tiny) : ?\n  %loss = ReduceSum(%z) {{keepdims=0}} : ?\n  output %loss\n}}\n"
        );
        let mut training =
            super::Training::of(step_of(&text, &options("output:loss", "none", "none", false)));
        let found = training.step(&[("x", tensor(&[1, 2], &[1.0, 2.0]))]);
        let gradient: &HostTensor = found.iter().find(|(name, _)| name.ends_with(".grad")).unwrap().1;
        assert_eq!(gradient.dtype(), DType::F32, "{moves}");
        let numbers: Vec<f64> = gradient.f64s().unwrap().collect();
        assert!(numbers.iter().all(|&n| (5e-10..3e-9).contains(&n)), "{moves}: {numbers:?}");
    }
}

/// ONNX Runtime has OneHot for few types of integers: labels of i32 are cast for it.
#[test]
fn labels_of_i32_are_read_as_i64() {
    for extra in ["", " {ignore_index=-100}", " {reduction=\"sum\"}"] {
        let text = format!(
            "opset ai.onnx=18\n\ngraph @main {{\n  input %x : f32[6, 4]\n  input %t : i32[6]\n  \
             const %w : f32[4, 5] = random(1)\n  %y = MatMul(%x, %w) : ?\n  \
             %loss = SoftmaxCrossEntropyLoss(%y, %t){extra} : ?\n  output %loss\n}}\n"
        );
        let step = step_of(&text, &options("output:loss", "sgd", "none", false));
        let module = &step.model.module;
        for node in module.nodes(module.main()) {
            let data = module.node(node);
            if data.schema().is_some_and(|schema| matches!(schema.kind, OpKind::OneHot | OpKind::Gather)) {
                let labels =
                    data.operand(usize::from(data.schema().unwrap().kind == OpKind::Gather)).unwrap();
                assert_eq!(module.value(labels).ty.dtype(), Some(DType::I64), "{extra}");
            }
        }
    }
}
