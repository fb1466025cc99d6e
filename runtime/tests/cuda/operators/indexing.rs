//! Elements at indices, and positions along an axis.

use super::{count, node};
use crate::cases::{Case, LOW, Tolerance, ints, random};
use ampc_ir::DType;
use ampc_runtime::HostTensor;

pub(super) fn add(cases: &mut Vec<Case>) {
    for (dtype, t) in LOW {
        let x = |dims: &[u64]| random(dtype, dims, 41);
        let call = "GatherElements(%a, %b) {axis=-2}";
        let index = ints(&[2, 3, 2], &[0, -1, 1, 2, -3, 0, 1, 1, 2, 2, 0, -2]);
        cases.push(node(
            "GatherElements",
            Tolerance::Exact,
            call,
            &[&format!("{t}[2, 3, 2]")],
            vec![x(&[2, 3, 4]), index],
        ));
        for (batch, data, dims, index, y) in [
            (0, &[3u64, 4, 5][..], &[2u64, 2][..], &[0i64, -1, 2, 3][..], "[2, 5]"),
            (1, &[2, 4, 3], &[2, 3, 1], &[0, -1, 2, 3, 1, 1], "[2, 3, 3]"),
            (0, &[3, 4], &[3, 2], &[0, 1, 2, 3, -3, -4], "[3]"),
        ] {
            let call = format!("GatherND(%a, %b) {{batch_dims={batch}}}");
            cases.push(node(
                &call,
                Tolerance::Exact,
                &call,
                &[&format!("{t}{y}")],
                vec![x(data), ints(dims, index)],
            ));
        }
        for reduction in ["none", "add", "mul", "max", "min"] {
            let tolerance = if reduction == "add" { Tolerance::Sums } else { Tolerance::Elements };
            let call = format!("ScatterElements(%a, %b, %c) {{axis=1, reduction=\"{reduction}\"}}");
            let index = ints(&[3, 4], &[0, 0, -1, 0, 1, 2, 1, 1, -5, 4, 4, 4]);
            cases.push(node(
                &call,
                tolerance,
                &call,
                &[&format!("{t}[3, 5]")],
                vec![x(&[3, 5]), index, random(dtype, &[3, 4], 42)],
            ));
            let call = format!("ScatterND(%a, %b, %c) {{reduction=\"{reduction}\"}}");
            let index = ints(&[5, 1], &[1, -1, 1, 1, 0]);
            cases.push(node(
                &call,
                tolerance,
                &call,
                &[&format!("{t}[4, 300]")],
                vec![x(&[4, 300]), index, random(dtype, &[5, 300], 43)],
            ));
            let many: Vec<i64> = (0..700).map(|i| i * 13 % 7).collect();
            // Additions are in the order of the updates.
            cases.push(node(
                &call,
                Tolerance::Exact,
                &call,
                &[&format!("{t}[7]")],
                vec![x(&[7]), ints(&[700, 1], &many), random(dtype, &[700], 46)],
            ));
        }
        for attributes in ["axis=0", "axis=-1", "axis=1, keepdims=0", "axis=-1, select_last_index=1"] {
            let y = match attributes {
                "axis=0" => "[1, 9, 70]",
                "axis=1, keepdims=0" => "[3, 70]",
                _ => "[3, 9, 1]",
            };
            for op in ["ArgMax", "ArgMin"] {
                let call = format!("{op}(%a) {{{attributes}}}");
                let some = random(dtype, &[3, 9, 70], 44);
                cases.push(node(&call, Tolerance::Exact, &call, &[&format!("i64{y}")], vec![some]));
            }
        }
        for (axis, largest, k, y) in [(-1, 1, 5, "[3, 5]"), (0, 0, 2, "[2, 70]"), (-1, 0, 70, "[3, 70]")] {
            let call = format!(
                "opset=24\nconst %k : i64[1] = [{k}]\nTopK(%a, %k) {{axis={axis}, largest={largest}, sorted=1}}"
            );
            let name = format!("TopK {axis} {largest} {k}");
            cases.push(node(
                &name,
                Tolerance::Exact,
                &call,
                &[&format!("{t}{y}"), &format!("i64{y}")],
                vec![x(&[3, 70])],
            ));
        }
        let call = "Hardmax(%a) {axis=1}";
        cases.push(node(call, Tolerance::Exact, call, &[&format!("{t}[3, 40, 2]")], vec![x(&[3, 40, 2])]));
    }
    let call = "opset=9\nScatter(%a, %b, %c) {axis=1}";
    let inputs =
        vec![random(DType::F32, &[1, 5], 45), ints(&[1, 2], &[1, 3]), random(DType::F32, &[1, 2], 46)];
    cases.push(node("Scatter-9", Tolerance::Exact, call, &["f32[1, 5]"], inputs));
    // Equal elements, and NaN.
    let some = [1.0f32, f32::NAN, 3.0, 3.0, f32::NAN, -0.0, 0.0, f32::NEG_INFINITY];
    let x = HostTensor::from_slice(&[8], &some).unwrap();
    for op in ["ArgMax", "ArgMin"] {
        for last in [0, 1] {
            let call = format!("{op}(%a) {{select_last_index={last}}}");
            cases.push(node(&format!("{call} NaN"), Tolerance::Exact, &call, &["i64[1]"], vec![x.clone()]));
        }
    }
    for largest in [0, 1] {
        let call = format!("const %k : i64[1] = [7]\nTopK(%a, %k) {{largest={largest}}}");
        let name = format!("TopK {largest} NaN");
        cases.push(node(&name, Tolerance::Exact, &call, &["f32[7]", "i64[7]"], vec![x.clone()]));
    }
    for (dtype, t) in [(DType::I64, "i64"), (DType::I32, "i32"), (DType::I8, "i8"), (DType::U8, "u8")] {
        let call = "ArgMax(%a) {axis=0}";
        cases.push(node(call, Tolerance::Exact, call, &["i64[1, 3]"], vec![count(dtype, &[50, 3])]));
        let call = "ScatterND(%a, %b, %c) {reduction=\"mul\"}";
        let index = ints(&[3, 2], &[0, 1, -1, 0, 0, 1]);
        cases.push(node(
            call,
            Tolerance::Exact,
            call,
            &[&format!("{t}[2, 3]")],
            vec![count(dtype, &[2, 3]), index, count(dtype, &[3])],
        ));
    }
    let call = "const %k : i64[1] = [4]\nTopK(%a, %k)";
    cases.push(node("TopK", Tolerance::Exact, call, &["i64[4]", "i64[4]"], vec![count(DType::I64, &[60])]));
    let call = "ScatterElements(%a, %b, %c) {reduction=\"add\"}";
    let flags = |dims: &[u64]| count(DType::Bool, dims);
    cases.push(node(
        call,
        Tolerance::Exact,
        call,
        &["bool[4]"],
        vec![flags(&[4]), ints(&[3], &[3, 0, -1]), flags(&[3])],
    ));
}
