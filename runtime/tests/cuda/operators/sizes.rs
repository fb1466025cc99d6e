//! Moves, scatters and positions of sizes on both sides of the limits at which kernels distribute work differently:
//! vectors, blocks, parts.

use super::{count, node};
use crate::cases::{Case, LOW, Tolerance, ints, numbers, random, tensor};
use ampc_ir::DType;
use ampc_runtime::HostTensor;

pub(super) fn add(cases: &mut Vec<Case>) {
    scatters(cases);
    moves(cases);
    positions(cases);
}

/// Indices below `rows`: every third selects the same row, and some count from the end.
fn indices(dims: &[u64], rows: i64) -> HostTensor {
    let some = numbers(dims.iter().product(), 7);
    let index = |(i, x): (usize, &f32)| {
        #[expect(clippy::cast_possible_truncation, reason = "an index")]
        let at = ((f64::from(*x) + 2.0) / 4.0 * rows as f64) as i64;
        let at = if i % 3 == 0 { rows / 2 } else { at.min(rows - 1) };
        if i % 5 == 0 { at - rows } else { at }
    };
    ints(dims, &some.iter().enumerate().map(index).collect::<Vec<_>>())
}

fn scatters(cases: &mut Vec<Case>) {
    // One block sorts up to 2048 updates; lists of more than 256 are reduced in parts; rows are a multiple of vectors
    // or not.
    for (rows, inner, n) in [(50u64, 24u64, 3000u64), (5, 7, 2500), (3, 1, 257), (400, 16, 40), (1, 8, 2049)]
    {
        for (dtype, t) in LOW {
            let call = "ScatterND(%a, %b, %c) {reduction=\"add\"}";
            // Sums stay in the range of f16.
            let some: Vec<f32> = numbers(n * inner, 43).iter().map(|x| x / 8.0).collect();
            let inputs = vec![
                random(dtype, &[rows, inner], 41),
                indices(&[n, 1], rows.cast_signed()),
                tensor(dtype, &[n, inner], &some),
            ];
            cases.push(node(
                "sizes ScatterND",
                Tolerance::Sums,
                call,
                &[&format!("{t}[{rows}, {inner}]")],
                inputs,
            ));
        }
    }
    for (reduction, dtype, t) in [
        ("add", DType::I64, "i64"),
        ("mul", DType::I32, "i32"),
        ("max", DType::F64, "f64"),
        ("min", DType::I8, "i8"),
        ("add", DType::Bool, "bool"),
        ("none", DType::F64, "f64"),
    ] {
        let call = format!("ScatterND(%a, %b, %c) {{reduction=\"{reduction}\"}}");
        let inputs = vec![count(dtype, &[9, 6]), indices(&[2100, 1], 9), count(dtype, &[2100, 6])];
        cases.push(node(
            &format!("sizes ScatterND {reduction}"),
            Tolerance::Exact,
            &call,
            &[&format!("{t}[9, 6]")],
            inputs,
        ));
    }
    // Three digits of 8 bits.
    for n in [70u64, 5000] {
        let call = "ScatterElements(%a, %b, %c) {axis=0, reduction=\"add\"}";
        let inputs =
            vec![random(DType::F32, &[70_000], 41), indices(&[n], 70_000), random(DType::F32, &[n], 42)];
        cases.push(node("sizes ScatterElements", Tolerance::Sums, call, &["f32[70000]"], inputs));
    }
}

fn moves(cases: &mut Vec<Case>) {
    for (dtype, t) in [(DType::F32, "f32"), (DType::F16, "f16"), (DType::I64, "i64"), (DType::U8, "u8")] {
        for (dims, perm) in [
            (&[37u64, 53][..], &[1usize, 0][..]),
            (&[64, 32], &[1, 0]),
            (&[3, 40, 33], &[0, 2, 1]),
            (&[3, 40, 33], &[2, 1, 0]),
            (&[5, 40, 3, 33], &[3, 0, 2, 1]),
            (&[2, 12, 5, 16], &[0, 2, 1, 3]),
            (&[2, 12, 5, 7], &[0, 2, 1, 3]),
            (&[2, 3, 1, 50], &[0, 3, 2, 1]),
            (&[4, 2, 3, 2, 5, 2, 3, 13], &[7, 5, 0, 3, 2, 6, 1, 4]),
            (&[6, 0, 3], &[2, 0, 1]),
            (&[13], &[0]),
        ] {
            let call = format!("Transpose(%a) {{perm={perm:?}}}");
            let to: Vec<u64> = perm.iter().map(|&axis| dims[axis]).collect();
            let n = dims.iter().product();
            let some = match dtype {
                DType::F32 | DType::F16 => random(dtype, dims, 31),
                DType::I64 => ints(dims, &(0..n).map(u64::cast_signed).collect::<Vec<_>>()),
                _ => {
                    let bytes: Vec<u8> = (0..n).map(|i| u8::try_from(i % 251).unwrap()).collect();
                    HostTensor::from_bytes(dtype, dims, &bytes).unwrap()
                }
            };
            cases.push(node(
                &format!("sizes {call}"),
                Tolerance::Exact,
                &call,
                &[&format!("{t}{to:?}")],
                vec![some],
            ));
        }
        for (start, end, step, y) in
            [(1, 9, 1, "[4, 8, 16]"), (-1, -8, -2, "[4, 4, 16]"), (3, 4, 1, "[4, 1, 16]")]
        {
            let call = format!(
                "const %s : i64[1] = [{start}]\nconst %e : i64[1] = [{end}]\nconst %x : i64[1] = [1]\nconst %p : i64[1] = [{step}]\nSlice(%a, %s, %e, %x, %p)"
            );
            if dtype == DType::F16 || dtype == DType::F32 {
                cases.push(node(
                    &format!("sizes Slice {start} {end} {step}"),
                    Tolerance::Exact,
                    &call,
                    &[&format!("{t}{y}")],
                    vec![random(dtype, &[4, 10, 16], 32)],
                ));
            }
        }
    }
    for (dtype, t) in LOW {
        for (dims, axis, y) in [
            (&[40u64, 24][..], 0, "[30, 24]"),
            (&[40, 7], 0, "[30, 7]"),
            (&[3, 40, 8], 1, "[3, 30, 8]"),
            (&[3, 40], 1, "[3, 30]"),
        ] {
            let call = format!("Gather(%a, %b) {{axis={axis}}}");
            let inputs = vec![random(dtype, dims, 33), indices(&[30], 40)];
            cases.push(node(
                &format!("sizes {call}"),
                Tolerance::Exact,
                &call,
                &[&format!("{t}{y}")],
                inputs,
            ));
        }
    }
}

fn positions(cases: &mut Vec<Case>) {
    for op in ["CumSum", "CumProd"] {
        for (dims, axis) in [
            (&[3u64, 33][..], 1),
            (&[2, 1000], 1),
            (&[300, 3], 0),
            (&[40, 4100], 0),
            (&[2, 77, 50], 1),
            (&[2, 0], 1),
        ] {
            for attributes in ["exclusive=0", "exclusive=1", "reverse=1", "exclusive=1, reverse=1"] {
                let opset = if op == "CumProd" { "opset=26\n" } else { "" };
                let call = format!("{opset}const %x : i64 = {axis}\n{op}(%a, %x) {{{attributes}}}");
                let name = format!("sizes {op} {attributes}");
                let some: Vec<f32> = numbers(dims.iter().product(), 61)
                    .iter()
                    .map(|x| if op == "CumSum" { *x } else { 1.0 + x / 1000.0 })
                    .collect();
                let ty = |t: &str| format!("{t}{dims:?}");
                cases.push(node(
                    &name,
                    Tolerance::Sums,
                    &call,
                    &[&ty("f32")],
                    vec![tensor(DType::F32, dims, &some)],
                ));
                cases.push(node(
                    &name,
                    Tolerance::Rows,
                    &call,
                    &[&ty("f64")],
                    vec![tensor(DType::F64, dims, &some)],
                ));
                cases.push(node(
                    &name,
                    Tolerance::Exact,
                    &call,
                    &[&ty("i64")],
                    vec![count(DType::I64, dims)],
                ));
                cases.push(node(
                    &name,
                    Tolerance::Exact,
                    &call,
                    &[&ty("i32")],
                    vec![count(DType::I32, dims)],
                ));
            }
        }
    }
    for op in ["ArgMax", "ArgMin"] {
        for (dims, axis, y) in
            [([3u64, 19, 70], 1, "[3, 1, 70]"), ([2, 1, 3], 1, "[2, 1, 3]"), ([900, 2, 2], 0, "[1, 2, 2]")]
        {
            for last in [0, 1] {
                let call = format!("{op}(%a) {{axis={axis}, select_last_index={last}}}");
                let name = format!("sizes {call}");
                cases.push(node(
                    &name,
                    Tolerance::Exact,
                    &call,
                    &[&format!("i64{y}")],
                    vec![count(DType::I32, &dims)],
                ));
                let mut some = numbers(dims.iter().product(), 62);
                some[1] = f32::NAN;
                let inputs = vec![tensor(DType::F32, &dims, &some)];
                cases.push(node(&name, Tolerance::Exact, &call, &[&format!("i64{y}")], inputs));
            }
        }
    }
    let n = (1u64 << 20) + 77;
    cases.push(node(
        "sizes TopK of a long row",
        Tolerance::Exact,
        "opset=24\nconst %k : i64[1] = [1100]\nTopK(%a, %k)",
        &["f32[1100]", "i64[1100]"],
        vec![tensor(DType::F32, &[n], &numbers(n, 64).iter().map(|x| (x * 3e4).round()).collect::<Vec<_>>())],
    ));
    // A block sorts few elements, and all blocks sort more. Rows of which few elements are results are selected
    // first.
    for (dims, axis, k) in [
        ([2u64, 700, 1], 1, 0u64),
        ([2, 700, 1], 1, 300),
        ([1, 3000, 2], 1, 1500),
        ([2, 5000, 1], 1, 5000),
        ([4, 5, 3], 0, 3),
    ] {
        for largest in [0, 1] {
            let mut to = dims;
            to[axis] = k;
            let call = format!(
                "opset=24\nconst %k : i64[1] = [{k}]\nTopK(%a, %k) {{axis={axis}, largest={largest}}}"
            );
            let mut some = numbers(dims.iter().product(), 63);
            for (i, x) in some.iter_mut().enumerate() {
                *x = match i % 9 {
                    0 => 0.0,
                    1 => -0.0,
                    2 if i % 4 == 0 => f32::NAN,
                    3 if i % 7 == 0 => f32::NEG_INFINITY,
                    _ => *x,
                };
            }
            for (dtype, t) in
                [(DType::F32, "f32"), (DType::F16, "f16"), (DType::BF16, "bf16"), (DType::F64, "f64")]
            {
                cases.push(node(
                    &format!("sizes TopK {k} {largest}"),
                    Tolerance::Exact,
                    &call,
                    &[&format!("{t}{to:?}"), &format!("i64{to:?}")],
                    vec![tensor(dtype, &dims, &some)],
                ));
            }
            for (dtype, t) in [(DType::I64, "i64"), (DType::I32, "i32"), (DType::I8, "i8"), (DType::U8, "u8")]
            {
                cases.push(node(
                    &format!("sizes TopK {k} {largest}"),
                    Tolerance::Exact,
                    &call,
                    &[&format!("{t}{to:?}"), &format!("i64{to:?}")],
                    vec![count(dtype, &dims)],
                ));
            }
        }
    }
}
