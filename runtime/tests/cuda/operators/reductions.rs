//! Reductions of all element types and sizes.

use super::{count, node};
use crate::cases::{Case, LOW, Tolerance, numbers, random, tensor};
use ampc_ir::DType;

const ALL: [&str; 10] = [
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
];

pub(super) fn add(cases: &mut Vec<Case>) {
    for op in ALL {
        for (dtype, t) in LOW {
            let tolerance = match op {
                "ReduceMax" | "ReduceMin" => Tolerance::Exact,
                "ReduceLogSumExp" | "ReduceLogSum" | "ReduceProd" => Tolerance::Rows,
                _ => Tolerance::Sums,
            };
            for (dims, axes, y) in [
                (&[5u64, 7, 9][..], "[-1]", "[5, 7, 1]"),
                (&[3, 400], "[1]", "[3, 1]"),
                (&[300, 40], "[0]", "[1, 40]"),
                (&[3, 20, 33], "[0, 1]", "[1, 1, 33]"),
            ] {
                let n = axes.matches(',').count() + 1;
                let call = format!("const %x : i64[{n}] = {axes}\n{op}(%a, %x)");
                // Products and sums stay in the range of f16.
                let some: Vec<f32> = numbers(dims.iter().product(), 51)
                    .iter()
                    .map(|x| if op == "ReduceProd" { 1.0 + x / 100.0 } else { x.abs() / 4.0 + 0.01 })
                    .collect();
                let name = format!("{op} {axes}");
                cases.push(node(
                    &name,
                    tolerance,
                    &call,
                    &[&format!("{t}{y}")],
                    vec![tensor(dtype, dims, &some)],
                ));
            }
        }
        let call = format!("const %x : i64[1] = [0]\n{op}(%a, %x) {{keepdims=0}}");
        cases.push(node(op, Tolerance::Rows, &call, &["f32[3]"], vec![random(DType::F32, &[0, 3], 52)]));
        let call = format!("const %x : i64[1] = [1]\n{op}(%a, %x)");
        let doubles = count(DType::F64, &[3, 100]);
        cases.push(node(op, Tolerance::Rows, &call, &["f64[3, 1]"], vec![doubles]));
        if op != "ReduceMean" {
            cases.push(node(op, Tolerance::Exact, &call, &["i64[3, 1]"], vec![count(DType::I64, &[3, 100])]));
        }
        cases.push(node(op, Tolerance::Exact, &call, &["i32[3, 1]"], vec![count(DType::I32, &[3, 9])]));
        let call = format!("{op}(%a) {{keepdims=0}}");
        cases.push(node(op, Tolerance::Rows, &call, &["f32"], vec![random(DType::F32, &[], 53)]));
        let call = format!("{op}(%a) {{noop_with_empty_axes=1}}");
        cases.push(node(op, Tolerance::Rows, &call, &["f32[4, 2]"], vec![random(DType::F32, &[4, 2], 54)]));
        cases.push(node(
            op,
            Tolerance::Rows,
            &format!("opset=11\n{op}(%a) {{axes=[-2]}}"),
            &["f32[1, 2]"],
            vec![random(DType::F32, &[4, 2], 55)],
        ));
    }
    for op in ["ReduceMax", "ReduceMin"] {
        for (dtype, t) in [(DType::Bool, "bool"), (DType::I8, "i8"), (DType::U8, "u8")] {
            let call = format!("const %x : i64[1] = [0]\n{op}(%a, %x) {{keepdims=0}}");
            cases.push(node(
                op,
                Tolerance::Exact,
                &call,
                &[&format!("{t}[5]")],
                vec![count(dtype, &[90, 5])],
            ));
            cases.push(node(op, Tolerance::Exact, &call, &[&format!("{t}[2]")], vec![count(dtype, &[0, 2])]));
        }
        let some: Vec<f32> =
            numbers(600, 56).iter().enumerate().map(|(i, &x)| if i == 301 { f32::NAN } else { x }).collect();
        let call = format!("const %x : i64[1] = [1]\n{op}(%a, %x)");
        cases.push(node(
            &format!("{op} NaN"),
            Tolerance::Exact,
            &call,
            &["f32[2, 1]"],
            vec![tensor(DType::F32, &[2, 300], &some)],
        ));
    }
    // Few results of many elements: two launches.
    for op in ["ReduceSum", "ReduceMean", "ReduceL2", "ReduceMax"] {
        for (dims, axes, y) in [
            (&[2u64, 20_000][..], "[1]", "[2, 1]"),
            (&[3000, 20], "[0]", "[1, 20]"),
            (&[30, 3, 300], "[0, 2]", "[1, 3, 1]"),
        ] {
            let n = axes.matches(',').count() + 1;
            let call = format!("const %x : i64[{n}] = {axes}\n{op}(%a, %x)");
            let some = random(DType::F32, dims, 57);
            cases.push(node(
                &format!("{op} {axes}"),
                Tolerance::Sums,
                &call,
                &[&format!("f32{y}")],
                vec![some],
            ));
        }
    }
}
