//! Rows and channels of sizes on both sides of the limits at which kernels distribute work differently: a warp, a
//! block, a block that reads a row twice, parts of a channel.

use super::node;
use crate::cases::{Case, LOW, Tolerance, ints, module, numbers, on, random, tensor};
use ampc_ir::DType;
use ampc_runtime::cuda::Cuda;
use ampc_runtime::{HostTensor, Runtime};
use std::sync::Arc;

pub(super) fn add(cases: &mut Vec<Case>) {
    rows(cases);
    moments(cases);
    losses(cases);
}

/// Rows with infinities and NaN.
fn special(n: u64) -> HostTensor {
    let mut some = numbers(6 * n, 35);
    let n = usize::try_from(n).unwrap();
    let last = n - 1;
    some[..n].fill(f32::NEG_INFINITY);
    some[n] = f32::NEG_INFINITY;
    some[2 * n + last] = f32::INFINITY;
    some[3 * n + last / 2] = f32::NAN;
    some[4 * n..4 * n + last].fill(f32::NEG_INFINITY);
    // Large, but not so large that the tolerance, a share of the largest result, covers every other error.
    some[5 * n + last] = 3e4;
    HostTensor::from_slice(&[6, n as u64], &some).unwrap()
}

fn rows(cases: &mut Vec<Case>) {
    for op in ["Softmax", "LogSoftmax"] {
        for n in [1u64, 5, 8, 256, 257, 1023, 1024, 1025, 2056, 8192, 9001, 9008] {
            for (dtype, t) in LOW {
                let call = format!("{op}(%a) {{axis=-1}}");
                let ty = format!("{t}[9, {n}]");
                cases.push(node(
                    &format!("sizes {op}"),
                    Tolerance::Rows,
                    &call,
                    &[&ty],
                    vec![random(dtype, &[9, n], 34)],
                ));
            }
            let ty = format!("f32[6, {n}]");
            cases.push(node(
                &format!("sizes {op} special"),
                Tolerance::Rows,
                &format!("{op}(%a) {{axis=-1}}"),
                &[&ty],
                vec![special(n)],
            ));
        }
        let columns = format!(
            "const %d : i64[3] = [1, 9, 6]\n%t = Transpose(%a) {{perm=[1, 0]}} : f32[9, 6]\n%r = Reshape(%t, %d) : f32[1, 9, 6]\n{op}(%r) {{axis=1}}"
        );
        cases.push(node(
            &format!("sizes {op} special columns"),
            Tolerance::Rows,
            &columns,
            &["f32[1, 9, 6]"],
            vec![special(9)],
        ));
        for dims in [[3u64, 70, 2], [2, 9, 33], [1, 300, 64]] {
            let call = format!("{op}(%a) {{axis=1}}");
            let some = random(DType::F16, &dims, 34);
            cases.push(node(
                &format!("sizes {call}"),
                Tolerance::Rows,
                &call,
                &[&format!("f16{dims:?}")],
                vec![some],
            ));
        }
    }
    for n in [1u64, 7, 256, 260, 1000, 1025, 2056, 8192, 9001] {
        for (dtype, t) in LOW {
            let call = "LayerNormalization(%a, %b, %c) {axis=-1}";
            let inputs = vec![random(dtype, &[9, n], 36), random(dtype, &[n], 37), random(dtype, &[n], 38)];
            let tolerance = Tolerance::Rows;
            // The mean is much larger than the deviation.
            let far: Vec<f32> = numbers(9 * n, 36).iter().map(|x| x + 100.0).collect();
            cases.push(node(
                "sizes LayerNormalization",
                tolerance,
                call,
                &[&format!("{t}[9, {n}]")],
                inputs.clone(),
            ));
            if dtype == DType::F32 {
                let inputs = vec![tensor(dtype, &[9, n], &far), inputs[1].clone(), inputs[2].clone()];
                let name = "sizes LayerNormalization far";
                let types = [&*format!("{t}[9, {n}]"), "f32[9, 1]", "f32[9, 1]"];
                if n > 1 {
                    cases.push(node(name, tolerance, call, &types, inputs));
                }
            }
            let call = "opset=23\nRMSNormalization(%a, %b) {axis=-1}";
            let inputs = vec![random(dtype, &[9, n], 36), random(dtype, &[n], 37)];
            cases.push(node("sizes RMSNormalization", tolerance, call, &[&format!("{t}[9, {n}]")], inputs));
        }
    }
    // Coefficients that are broadcast along a row.
    let call = "LayerNormalization(%a, %b, %c) {axis=1}";
    let inputs = vec![
        random(DType::F16, &[5, 6, 40], 36),
        random(DType::F16, &[40], 37),
        random(DType::F16, &[6, 1], 38),
    ];
    cases.push(node("sizes LayerNormalization", Tolerance::Rows, call, &["f16[5, 6, 40]"], inputs));
    for op in ["ReduceSum", "ReduceMax", "ReduceL2", "ReduceLogSumExp"] {
        let tolerance = match op {
            "ReduceMax" => Tolerance::Exact,
            "ReduceSum" => Tolerance::Sums,
            _ => Tolerance::Rows,
        };
        for n in [1u64, 8, 9, 31, 32, 100, 1024, 1025, 20_001] {
            for (dtype, t) in LOW {
                let call = format!("const %x : i64[1] = [-1]\n{op}(%a, %x)");
                let some: Vec<f32> = numbers(3 * n, 51).iter().map(|x| x / 4.0).collect();
                let inputs = vec![tensor(dtype, &[3, n], &some)];
                cases.push(node(&format!("sizes {op}"), tolerance, &call, &[&format!("{t}[3, 1]")], inputs));
            }
        }
    }
}

fn moments(cases: &mut Vec<Case>) {
    for dims in [&[3u64, 5, 7, 9][..], &[70, 20], &[2, 3, 90, 101], &[1, 40, 3], &[9000, 2]] {
        let channels = dims[1];
        for far in [0.0f32, 1000.0] {
            for (dtype, t) in LOW {
                if far > 0.0 && dtype != DType::F32 {
                    continue;
                }
                let some: Vec<f32> = numbers(dims.iter().product(), 71).iter().map(|x| x + far).collect();
                let vector = |seed| random(dtype, &[channels], seed);
                let positive: Vec<f32> = numbers(channels, 72).iter().map(|x| x.abs() + 0.1).collect();
                let inputs = vec![
                    tensor(dtype, dims, &some),
                    vector(73),
                    vector(74),
                    vector(75),
                    tensor(dtype, &[channels], &positive),
                ];
                let call = "BatchNormalization(%a, %b, %c, %d, %e) {training_mode=1}";
                let types = [format!("{t}{dims:?}"), format!("{t}[{channels}]"), format!("{t}[{channels}]")];
                let types: Vec<&str> = types.iter().map(String::as_str).collect();
                cases.push(node(
                    &format!("sizes BatchNormalization {far}"),
                    Tolerance::Rows,
                    call,
                    &types,
                    inputs,
                ));
            }
        }
    }
    let some = random(DType::F32, &[2, 6, 50, 90], 76);
    let inputs = vec![some, random(DType::F32, &[6], 77), random(DType::F32, &[6], 78)];
    let call = "GroupNormalization(%a, %b, %c) {num_groups=2}";
    cases.push(node("sizes GroupNormalization", Tolerance::Rows, call, &["f32[2, 6, 50, 90]"], inputs));
}

fn losses(cases: &mut Vec<Case>) {
    for (dims, classes) in [
        (&[9000u64, 3][..], &[9000u64][..]),
        (&[7, 50], &[7]),
        (&[3, 1300], &[3]),
        (&[2, 40, 5], &[2, 5]),
        (&[2, 40, 5, 7], &[2, 5, 7]),
    ] {
        let n = classes.iter().product::<u64>();
        let some: Vec<i64> = (0..n).map(|i| (i * 7 % dims[1]).cast_signed()).collect();
        for (reduction, y) in
            [("mean", String::new()), ("sum", String::new()), ("none", format!("{classes:?}"))]
        {
            for (dtype, t) in [(DType::F32, "f32"), (DType::F16, "f16")] {
                if dtype == DType::F16 && reduction == "sum" {
                    continue;
                }
                let call =
                    format!("SoftmaxCrossEntropyLoss(%a, %b) {{ignore_index=2, reduction=\"{reduction}\"}}");
                let types = [format!("{t}{y}"), format!("{t}{dims:?}")];
                let types: Vec<&str> = types.iter().map(String::as_str).collect();
                let inputs = vec![random(dtype, dims, 81), ints(classes, &some)];
                cases.push(node(&format!("sizes loss {reduction}"), Tolerance::Rows, &call, &types, inputs));
            }
        }
    }
}

/// Runs a graph with `rows` and `n` on the device.
fn run(cuda: &Arc<Cuda>, rows: u64, n: u64) {
    let body = format!(
        "  const %last : i64[1] = [-1]
  const %axis : i64 = 1
  const %k : i64[1] = [3]
  %g = Gather(%a, %b) : f32[{rows}, {n}]
  %s = Softmax(%g) : f32[{rows}, {n}]
  %l = LayerNormalization(%s, %c, %c) : f32[{rows}, {n}]
  %t = Transpose(%l) {{perm=[1, 0]}} : f32[{n}, {rows}]
  %m = Softmax(%t) {{axis=0}} : f32[{n}, {rows}]
  %r = ReduceSum(%l, %last) : f32[{rows}, 1]
  %x = ArgMax(%t) {{axis=0}} : i64[1, {rows}]
  %z = CumSum(%l, %axis) : f32[{rows}, {n}]
  %v, %i = TopK(%z, %k) : f32[{rows}, 3], i64[{rows}, 3]
  %w = ScatterND(%a, %d, %l) {{reduction=\"add\"}} : f32[50, {n}]
  output %m : f32[{n}, {rows}]
  output %r : f32[{rows}, 1]
  output %x : i64[1, {rows}]
  output %v : f32[{rows}, 3]
  output %w : f32[50, {n}]
"
    );
    let index: Vec<i64> = (0..rows.cast_signed()).map(|i| i * 7 % 50).collect();
    let inputs = vec![
        random(DType::F32, &[50, n], 91),
        ints(&[rows], &index),
        random(DType::F32, &[n], 92),
        ints(&[rows, 1], &index),
    ];
    on(&Runtime::new(cuda.clone()), &module(&body, &inputs), &inputs).unwrap();
}

/// Tensors of other dims share their kernels. Returns the number of failures.
pub(crate) fn shared_kernels(cuda: &Arc<Cuda>, filter: &str) -> usize {
    if !"sizes share kernels".contains(filter) {
        return 0;
    }
    run(cuda, 20, 36);
    let before = cuda.kernels_compiled();
    run(cuda, 28, 100);
    let after = cuda.kernels_compiled();
    let is_right = before == after;
    println!(
        "{}  sizes share kernels: {before}, {after} after other dims",
        if is_right { "ok  " } else { "FAIL" }
    );
    usize::from(!is_right)
}
