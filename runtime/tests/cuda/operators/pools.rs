//! Pooling.

use super::{count, node};
use crate::cases::{Case, LOW, Tolerance, random};
use ampc_ir::DType;

pub(super) fn add(cases: &mut Vec<Case>) {
    for (dtype, t) in LOW {
        let x = |dims: &[u64]| random(dtype, dims, 71);
        let windows: [(&[u64], &str, &str); 6] = [
            (&[2, 3, 7, 9], "kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]", "[2, 3, 4, 9]"),
            (&[1, 2, 10], "kernel_shape=[3], strides=[2], ceil_mode=1", "[1, 2, 5]"),
            (&[1, 2, 11], "kernel_shape=[3], dilations=[3], pads=[2, 2]", "[1, 2, 9]"),
            (&[1, 2, 4, 5, 3], "kernel_shape=[2, 3, 3], auto_pad=\"SAME_UPPER\"", "[1, 2, 4, 5, 3]"),
            (&[1, 1, 5, 5], "kernel_shape=[2, 2], strides=[3, 3], auto_pad=\"SAME_LOWER\"", "[1, 1, 2, 2]"),
            (&[1, 1, 6, 5], "kernel_shape=[3, 2], strides=[2, 2], auto_pad=\"VALID\"", "[1, 1, 2, 2]"),
        ];
        for (dims, window, y) in windows {
            let y = format!("{t}{y}");
            let call = format!("opset=22\nMaxPool(%a) {{{window}}}");
            cases.push(node(&format!("MaxPool {window}"), Tolerance::Exact, &call, &[&y], vec![x(dims)]));
            for counts in [0, 1] {
                let call = format!("opset=22\nAveragePool(%a) {{{window}, count_include_pad={counts}}}");
                cases.push(node(
                    &format!("AveragePool {counts} {window}"),
                    Tolerance::Sums,
                    &call,
                    &[&y],
                    vec![x(dims)],
                ));
            }
            let call = format!("opset=22\nLpPool(%a) {{{window}, p=3}}");
            cases.push(node(&format!("LpPool {window}"), Tolerance::Rows, &call, &[&y], vec![x(dims)]));
        }
        for (op, tolerance) in [
            ("GlobalAveragePool", Tolerance::Sums),
            ("GlobalMaxPool", Tolerance::Exact),
            ("GlobalLpPool", Tolerance::Rows),
        ] {
            let call = format!("opset=22\n{op}(%a)");
            cases.push(node(op, tolerance, &call, &[&format!("{t}[2, 3, 1, 1]")], vec![x(&[2, 3, 14, 13])]));
            cases.push(node(op, tolerance, &call, &[&format!("{t}[1, 3, 1]")], vec![x(&[1, 3, 5])]));
        }
    }
    for order in [0, 1] {
        let call = format!(
            "MaxPool(%a) {{kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], storage_order={order}}}"
        );
        cases.push(node(
            &call,
            Tolerance::Exact,
            &call,
            &["f32[2, 2, 4, 3]", "i64[2, 2, 4, 3]"],
            vec![random(DType::F32, &[2, 2, 7, 6], 72)],
        ));
    }
    for (dtype, t) in [(DType::I8, "i8"), (DType::U8, "u8"), (DType::F64, "f64")] {
        let call = "MaxPool(%a) {kernel_shape=[3]}";
        cases.push(node(
            call,
            Tolerance::Exact,
            call,
            &[&format!("{t}[1, 2, 6]")],
            vec![count(dtype, &[1, 2, 8])],
        ));
    }
}
