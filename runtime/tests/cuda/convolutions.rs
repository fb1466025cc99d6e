//! Conv and ConvTranspose.

use crate::cases::{Case, LOW, Tolerance, module, on, random, run_all};
use ampc_ir::DType;
use ampc_runtime::Runtime;
use ampc_runtime::cuda::Cuda;
use ampc_runtime::cuda::dnn::{Convolution, Direction, Layout};
use std::sync::Arc;

/// Operator, name, dims of input, filter and result, attributes.
type Shape = (&'static str, &'static str, &'static [u64], &'static [u64], &'static [u64], &'static str);

const SHAPES: &[Shape] = &[
    ("Conv", "2-D", &[2, 3, 7, 6], &[5, 3, 3, 3], &[2, 5, 7, 6], "pads=[1, 1, 1, 1]"),
    ("Conv", "valid", &[2, 3, 7, 6], &[5, 3, 3, 2], &[2, 5, 5, 5], ""),
    ("Conv", "1x1", &[2, 8, 5, 5], &[4, 8, 1, 1], &[2, 4, 5, 5], ""),
    ("Conv", "stride 2", &[1, 4, 9, 8], &[6, 4, 3, 3], &[1, 6, 5, 4], "pads=[1, 1, 1, 1], strides=[2, 2]"),
    ("Conv", "asymmetric", &[1, 4, 8, 8], &[6, 4, 3, 3], &[1, 6, 4, 5], "pads=[0, 2, 1, 1], strides=[2, 2]"),
    ("Conv", "wide padding", &[1, 2, 4, 4], &[3, 2, 2, 2], &[1, 3, 9, 11], "pads=[3, 4, 3, 4]"),
    (
        "Conv",
        "same upper",
        &[1, 2, 8, 7],
        &[3, 2, 3, 2],
        &[1, 3, 4, 4],
        "auto_pad=\"SAME_UPPER\", strides=[2, 2]",
    ),
    ("Conv", "same lower", &[1, 2, 8, 7], &[3, 2, 2, 4], &[1, 3, 8, 7], "auto_pad=\"SAME_LOWER\""),
    ("Conv", "dilated", &[1, 2, 9, 9], &[3, 2, 3, 2], &[1, 3, 5, 6], "dilations=[2, 3]"),
    ("Conv", "groups", &[2, 6, 5, 5], &[4, 3, 3, 3], &[2, 4, 5, 5], "group=2, pads=[1, 1, 1, 1]"),
    ("Conv", "depthwise", &[2, 5, 6, 6], &[5, 1, 3, 3], &[2, 5, 6, 6], "group=5, pads=[1, 1, 1, 1]"),
    ("Conv", "multiplied", &[1, 3, 6, 6], &[6, 1, 3, 3], &[1, 6, 4, 4], "group=3"),
    ("Conv", "1-D", &[2, 4, 20], &[6, 4, 5], &[2, 6, 10], "pads=[2, 2], strides=[2]"),
    (
        "Conv",
        "3-D",
        &[1, 2, 4, 5, 6],
        &[3, 2, 3, 2, 3],
        &[1, 3, 4, 4, 3],
        "pads=[1, 0, 1, 1, 0, 0], strides=[1, 1, 2]",
    ),
    ("Conv", "without channels", &[2, 0, 4, 4], &[3, 0, 3, 3], &[2, 3, 2, 2], ""),
    ("Conv", "of an empty image", &[2, 3, 0, 4], &[3, 3, 2, 2], &[2, 3, 1, 3], "pads=[1, 0, 1, 0]"),
    ("Conv", "empty batch", &[0, 3, 4, 4], &[3, 3, 2, 2], &[0, 3, 3, 3], ""),
    ("ConvTranspose", "2-D", &[2, 3, 5, 4], &[3, 4, 3, 3], &[2, 4, 5, 4], "pads=[1, 1, 1, 1]"),
    ("ConvTranspose", "odd sizes", &[2, 40, 5, 7], &[40, 72, 3, 3], &[2, 72, 5, 7], "pads=[1, 1, 1, 1]"),
    ("ConvTranspose", "up 2x2", &[2, 3, 5, 4], &[3, 4, 2, 2], &[2, 4, 10, 8], "strides=[2, 2]"),
    (
        "ConvTranspose",
        "output padding",
        &[1, 3, 5, 4],
        &[3, 4, 3, 3],
        &[1, 4, 10, 8],
        "pads=[1, 1, 1, 1], strides=[2, 2], output_padding=[1, 1]",
    ),
    (
        "ConvTranspose",
        "output padding behind all positions",
        &[1, 3, 3, 4],
        &[3, 4, 2, 1],
        &[1, 4, 9, 11],
        "strides=[3, 3], output_padding=[1, 1], dilations=[1, 2]",
    ),
    (
        "ConvTranspose",
        "output shape",
        &[1, 2, 3, 3],
        &[2, 2, 3, 3],
        &[1, 2, 10, 8],
        "strides=[3, 2], output_shape=[10, 8]",
    ),
    (
        "ConvTranspose",
        "output shape behind all positions",
        &[1, 2, 3, 3],
        &[2, 3, 2, 2],
        &[1, 3, 12, 9],
        "strides=[3, 2], output_shape=[12, 9]",
    ),
    (
        "ConvTranspose",
        "same",
        &[1, 2, 4, 3],
        &[2, 3, 3, 4],
        &[1, 3, 8, 6],
        "strides=[2, 2], auto_pad=\"SAME_UPPER\"",
    ),
    ("ConvTranspose", "cropped", &[1, 2, 4, 4], &[2, 3, 3, 3], &[1, 3, 3, 4], "pads=[0, 2, 3, 0]"),
    ("ConvTranspose", "groups", &[2, 6, 4, 4], &[6, 2, 3, 3], &[2, 6, 6, 6], "group=3"),
    ("ConvTranspose", "1-D", &[2, 3, 6], &[3, 4, 3], &[2, 4, 13], "strides=[2]"),
    ("ConvTranspose", "3-D", &[1, 2, 2, 3, 2], &[2, 3, 2, 2, 3], &[1, 3, 4, 4, 4], "strides=[2, 1, 1]"),
    ("ConvTranspose", "without channels", &[1, 0, 3, 3], &[0, 2, 2, 2], &[1, 2, 4, 4], ""),
];

/// Convolutions of every kind in each float type, with a bias and without.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for &(op, name, x, w, y, attributes) in SHAPES {
        for (dtype, t) in LOW {
            for has_bias in [false, true] {
                let mut inputs = vec![random(dtype, x, 31), random(dtype, w, 32)];
                let mut operands = "%a, %b";
                if has_bias {
                    inputs.push(random(dtype, &y[1..2], 33));
                    operands = "%a, %b, %c";
                }
                let body =
                    format!("  %y = {op}({operands}) {{{attributes}}} : {t}{y:?}\n  output %y : {t}{y:?}\n");
                let body = body.replace(" {}", "");
                let end = if has_bias { " bias" } else { "" };
                let name = format!("{op} {name} {t}{end}");
                cases.push(Case { name, body, inputs, tolerance: Tolerance::Sums });
            }
        }
    }
    cases
}

/// Runs the cases whose names contain `filter`; returns the number of failures. With `AMPC_CUDNN_ERROR`, a Conv must
/// fail with this text, while the nodes before it are prepared.
pub(crate) fn run(cuda: &Arc<Cuda>, filter: &str) -> usize {
    if let Some(expected) = std::env::var_os("AMPC_CUDNN_ERROR") {
        return fails(cuda, &expected.to_string_lossy());
    }
    run_all(cuda, &cases(), filter) + plans(cuda, filter)
}

fn report(name: &str, is_right: bool, found: &str) -> usize {
    println!("{}  {name}: {found}", if is_right { "ok  " } else { "FAIL" });
    usize::from(!is_right)
}

/// A Conv without cuDNN is an error, and other operators need no cuDNN.
fn fails(cuda: &Arc<Cuda>, expected: &str) -> usize {
    let runtime = Runtime::new(cuda.clone());
    let inputs = [random(DType::F32, &[1, 2, 4, 4], 1), random(DType::F32, &[3, 2, 3, 3], 2)];
    let relu = module("  %y = Relu(%a) : f32[1, 2, 4, 4]\n  output %y : f32[1, 2, 4, 4]\n", &inputs[..1]);
    let conv = module("  %y = Conv(%a, %b) : f32[1, 3, 2, 2]\n  output %y : f32[1, 3, 2, 2]\n", &inputs);
    let text = |done: Result<_, ampc_runtime::session::ExecuteError>| {
        done.map_or_else(|error| error.to_string(), |_: Vec<ampc_runtime::Data>| "no error".into())
    };
    let found = text(on(&runtime, &relu, &inputs[..1]));
    let failed = report("Relu without cuDNN", found == "no error", &found);
    let found = text(on(&runtime, &conv, &inputs));
    failed + report("Conv without cuDNN", found.contains(expected), &found)
}

/// Plans of each direction. The simulated device lists engines first that the backend rejects.
fn plans(cuda: &Arc<Cuda>, filter: &str) -> usize {
    if !"Conv plans".contains(filter) {
        return 0;
    }
    let mut failed = 0;
    for direction in [Direction::Forward, Direction::DataGradient, Direction::FilterGradient] {
        for (dtype, _) in LOW {
            let convolution = Convolution {
                direction,
                dtype,
                result: dtype,
                image: vec![2, 4, 6, 5],
                filter: vec![8, 4, 3, 3],
                grid: vec![2, 8, 6, 5],
                before: vec![1, 1],
                after: vec![1, 1],
                strides: vec![1, 1],
                dilations: vec![1, 1],
                has_bias: false,
                has_relu: false,
                layout: Layout::ChannelsFirst,
            };
            let name = format!("Conv plans {direction:?} {dtype}");
            failed += match cuda.plan_convolution(&convolution) {
                Ok(plan) => {
                    let reasons: Vec<&str> = plan.refused.iter().map(|(_, reason)| &**reason).collect();
                    let first =
                        if dtype == DType::F32 { "computes in TF32" } else { "reduces in low precision" };
                    let is_simulated = cuda.device_name() == "simulated device";
                    let refused =
                        reasons.starts_with(&[first, "computes by Winograd", "is nondeterministic"]);
                    let is_right =
                        plan.engine.notes.refusal(dtype, false).is_none() && (refused || !is_simulated);
                    report(&name, is_right, &format!("engine {} after {reasons:?}", plan.engine.index))
                }
                Err(error) => report(&name, false, &error.to_string()),
            };
        }
    }
    failed
}
