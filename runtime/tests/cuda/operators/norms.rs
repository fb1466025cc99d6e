//! Normalization with statistics of channels, groups and axes.

use super::{count, node};
use crate::cases::{Case, LOW, Tolerance, numbers, random, tensor};
use ampc_ir::DType;

pub(super) fn add(cases: &mut Vec<Case>) {
    for (dtype, t) in LOW {
        let x = |dims: &[u64]| random(dtype, dims, 61);
        let vector = |n: u64, seed| {
            let some: Vec<f32> = numbers(n, seed).iter().map(|x| x.abs() + 0.1).collect();
            tensor(dtype, &[n], &some)
        };
        let parameters = |n: u64| (62..66).map(move |seed| vector(n, seed));
        for dims in [&[2u64, 5, 3, 4][..], &[6, 5], &[1, 5, 1]] {
            let inputs = || std::iter::once(x(dims)).chain(parameters(5)).collect::<Vec<_>>();
            let call = "BatchNormalization(%a, %b, %c, %d, %e) {epsilon=0.01}";
            let y = format!("{t}{dims:?}");
            cases.push(node("BatchNormalization", Tolerance::Rows, call, &[&y], inputs()));
            let call = "BatchNormalization(%a, %b, %c, %d, %e) {training_mode=1, momentum=0.7}";
            let v = format!("{t}[5]");
            cases.push(node("BatchNormalization training", Tolerance::Rows, call, &[&y, &v, &v], inputs()));
        }
        let call = "opset=22\nInstanceNormalization(%a, %b, %c) {epsilon=0.001}";
        cases.push(node(
            "InstanceNormalization",
            Tolerance::Rows,
            call,
            &[&format!("{t}[2, 3, 70]")],
            vec![x(&[2, 3, 70]), vector(3, 66), vector(3, 67)],
        ));
        let call = "GroupNormalization(%a, %b, %c) {num_groups=2}";
        cases.push(node(
            "GroupNormalization",
            Tolerance::Rows,
            call,
            &[&format!("{t}[2, 6, 5, 4]")],
            vec![x(&[2, 6, 5, 4]), vector(6, 66), vector(6, 67)],
        ));
        for (p, axis) in [(1, 0), (2, -1), (2, 1)] {
            let call = format!("opset=22\nLpNormalization(%a) {{p={p}, axis={axis}}}");
            cases.push(node(
                &format!("LpNormalization {p} {axis}"),
                Tolerance::Rows,
                &call,
                &[&format!("{t}[4, 90, 3]")],
                vec![x(&[4, 90, 3])],
            ));
        }
        let call = "MeanVarianceNormalization(%a) {axes=[0, 2, 3]}";
        cases.push(node(call, Tolerance::Rows, call, &[&format!("{t}[2, 3, 5, 4]")], vec![x(&[2, 3, 5, 4])]));
        let call = "LRN(%a) {size=4, alpha=0.3, beta=0.6, bias=1.5}";
        cases.push(node(call, Tolerance::Rows, call, &[&format!("{t}[2, 7, 3]")], vec![x(&[2, 7, 3])]));
    }
    let x = || random(DType::F32, &[2, 4, 3], 68);
    let vector = |seed| {
        let some: Vec<f32> = numbers(4, seed).iter().map(|x| x.abs() + 0.1).collect();
        tensor(DType::F32, &[4], &some)
    };
    let inputs = || vec![x(), vector(1), vector(2), vector(3), vector(4)];
    let v = "f32[4]";
    let call = "opset=7\nBatchNormalization(%a, %b, %c, %d, %e)";
    cases.push(node("BatchNormalization-7", Tolerance::Rows, call, &["f32[2, 4, 3]"], inputs()));
    cases.push(node("BatchNormalization-7", Tolerance::Rows, call, &["f32[2, 4, 3]", v, v, v, v], inputs()));
    let call = "BatchNormalization(%a, %b, %c, %d, %e)";
    let doubles = |dims: &[u64]| count(DType::F64, dims);
    let positive = || ampc_runtime::HostTensor::from_slice(&[4], &[0.5f64, 1.0, 2.0, 0.25]).unwrap();
    cases.push(node(
        "BatchNormalization",
        Tolerance::Rows,
        call,
        &["f64[3, 4]"],
        vec![doubles(&[3, 4]), positive(), positive(), positive(), positive()],
    ));
    // Mixed element types of the statistics.
    let call = "BatchNormalization(%a, %b, %c, %d, %e) {training_mode=1}";
    cases.push(node(
        "BatchNormalization mixed",
        Tolerance::Rows,
        call,
        &["f16[2, 4, 3]", v, v],
        vec![random(DType::F16, &[2, 4, 3], 69), vector(1), vector(2), vector(3), vector(4)],
    ));
    // Statistics that take two launches.
    cases.push(node(
        "BatchNormalization large",
        Tolerance::Rows,
        call,
        &["f32[3, 4, 5000]", v, v],
        vec![random(DType::F32, &[3, 4, 5000], 70), vector(1), vector(2), vector(3), vector(4)],
    ));
}
