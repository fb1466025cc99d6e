//! Operators that move elements, and operators that make tensors from sizes.

use super::{count, node};
use crate::cases::{Case, Tolerance, bools, ints, random};
use ampc_ir::DType;
use ampc_runtime::HostTensor;

pub(super) fn add(cases: &mut Vec<Case>) {
    let mut exact = |name: &str, call: &str, results: &[&str], inputs: Vec<HostTensor>| {
        cases.push(node(name, Tolerance::Exact, call, results, inputs));
    };
    let x = |dims: &[u64]| random(DType::F32, dims, 31);
    for (starts, ends, axes, steps, y) in [
        ("[1, -3]", "[9, -1]", "[0, 2]", "[1, 1]", "[4, 6, 2]"),
        ("[-1, 5]", "[-99, 0]", "[0, 1]", "[-2, -3]", "[3, 2, 7]"),
        ("[0, 6]", "[5, 6]", "[-1, 1]", "[4611686018427387904, 1]", "[5, 0, 1]"),
        ("[0, 9223372036854775807]", "[3, -9223372036854775808]", "[1, 2]", "[2, -1]", "[5, 2, 7]"),
    ] {
        let call = format!(
            "const %s : i64[2] = {starts}\nconst %e : i64[2] = {ends}\nconst %x : i64[2] = {axes}\nconst %t : i64[2] = {steps}\nSlice(%a, %s, %e, %x, %t)"
        );
        exact(&format!("Slice {starts} {steps}"), &call, &[&format!("f32{y}")], vec![x(&[5, 6, 7])]);
        let y = format!("f16{y}");
        exact(&format!("Slice {starts} {steps}"), &call, &[&y], vec![random(DType::F16, &[5, 6, 7], 32)]);
    }
    let call = "opset=1\nSlice(%a) {starts=[1, -2], ends=[4, 2147483647], axes=[0, 1]}";
    exact("Slice-1", call, &["f32[3, 2]"], vec![x(&[5, 4])]);
    exact(
        "Split equal",
        "Split(%a) {axis=-1, num_outputs=3}",
        &["f32[4, 3]", "f32[4, 3]", "f32[4, 1]"],
        vec![x(&[4, 7])],
    );
    let call = "const %n : i64[3] = [2, 0, 3]\nSplit(%a, %n) {axis=0}";
    exact("Split sizes", call, &["f32[2, 3]", "f32[0, 3]", "f32[3, 3]"], vec![x(&[5, 3])]);
    exact(
        "Split-2",
        "opset=11\nSplit(%a) {axis=1, split=[1, 2]}",
        &["f32[2, 1]", "f32[2, 2]"],
        vec![x(&[2, 3])],
    );
    exact("Split i64", "Split(%a) {num_outputs=2}", &["i64[2]", "i64[2]"], vec![ints(&[4], &[1, -2, 3, 4])]);
    for mode in ["constant", "edge", "reflect", "wrap"] {
        for (pads, y) in [
            ("[1, 0, 2, 3, 0, 4]", "[6, 3, 10]"),
            ("[-1, 1, 9, 0, -1, 9]", "[1, 3, 22]"),
            ("[0, 0, 0, 0, 0, 1]", "[2, 3, 5]"),
        ] {
            let call = format!(
                "const %p : i64[6] = {pads}\nconst %v : f32 = -1.5\nPad(%a, %p, %v) {{mode=\"{mode}\"}}"
            );
            exact(&format!("Pad {mode} {pads}"), &call, &[&format!("f32{y}")], vec![x(&[2, 3, 4])]);
        }
        let call = format!(
            "const %p : i64[2] = [2, 1]\nconst %x : i64[1] = [-1]\nPad(%a, %p, _, %x) {{mode=\"{mode}\"}}"
        );
        exact(&format!("Pad {mode}"), &call, &["i64[2, 6]"], vec![count(DType::I64, &[2, 3])]);
    }
    exact(
        "Pad-2",
        "opset=10\nPad(%a) {pads=[1, 2], value=0.75}",
        &["f16[7]"],
        vec![random(DType::F16, &[4], 33)],
    );
    let call = "const %p : i64[4] = [1, 0, 0, 2]\nPad(%a, %p)";
    exact("Pad nothing", call, &["f32[1, 5]"], vec![x(&[0, 3])]);
    let call = "const %s : i64[2] = [5, 2]\nCenterCropPad(%a, %s)";
    exact("CenterCropPad", call, &["f32[5, 2]"], vec![x(&[2, 5])]);
    for (mode, first) in [("linear", 3), ("circular", 4)] {
        let call = format!("opset=24\nTensorScatter(%a, %b, %c) {{mode=\"{mode}\"}}");
        let inputs = vec![x(&[2, 3, 6, 2]), random(DType::F32, &[2, 3, 3, 2], 37), ints(&[2], &[0, first])];
        exact(&format!("TensorScatter {mode}"), &call, &["f32[2, 3, 6, 2]"], inputs);
    }
    let call = "const %r : i64[3] = [2, 1, 3]\nTile(%a, %r)";
    exact("Tile", call, &["f32[4, 3, 6]"], vec![x(&[2, 3, 2])]);
    exact("Tile", call, &["bool[2, 3, 6]"], vec![bools(&[1, 3, 2], 34)]);
    exact("Tile none", "const %r : i64[1] = [0]\nTile(%a, %r)", &["f32[0]"], vec![x(&[3])]);
    for mode in ["DCR", "CRD"] {
        let call = format!("DepthToSpace(%a) {{blocksize=2, mode=\"{mode}\"}}");
        exact(&call, &call, &["f32[2, 3, 6, 10]"], vec![x(&[2, 12, 3, 5])]);
    }
    exact("SpaceToDepth", "SpaceToDepth(%a) {blocksize=3}", &["f32[2, 18, 2, 1]"], vec![x(&[2, 2, 6, 3])]);
    for upper in [0, 1] {
        for k in ["0", "-2", "3", "9223372036854775807"] {
            let call = format!("const %k : i64 = {k}\nTrilu(%a, %k) {{upper={upper}}}");
            exact(&format!("Trilu {upper} {k}"), &call, &["f32[2, 4, 5]"], vec![x(&[2, 4, 5])]);
        }
    }
    exact(
        "Concat negative axis",
        "Concat(%a, %b, %c) {axis=-2}",
        &["f32[2, 7, 3]"],
        vec![x(&[2, 3, 3]), x(&[2, 0, 3]), x(&[2, 4, 3])],
    );
    for (dtype, t) in [(DType::I64, "i64"), (DType::I8, "i8"), (DType::F64, "f64"), (DType::Bool, "bool")] {
        let call = "const %s : i64[3] = [2, 1, 4]\nExpand(%a, %s)";
        exact("Expand", call, &[&format!("{t}[2, 3, 4]")], vec![count(dtype, &[3, 1])]);
    }
    let call = "ReverseSequence(%a, %b) {time_axis=1, batch_axis=0}";
    exact("ReverseSequence", call, &["f32[3, 4, 2]"], vec![x(&[3, 4, 2]), ints(&[3], &[0, 4, 3])]);
    let call = "ReverseSequence(%a, %b) {time_axis=0, batch_axis=1}";
    exact("ReverseSequence", call, &["f32[4, 2]"], vec![x(&[4, 2]), ints(&[2], &[3, 1])]);
    // The sizes are known only when the graph runs.
    for (value, t) in [("f32[1] = [0.25]", "f32"), ("i64[1] = [-7]", "i64"), ("f16[1] = [2.0]", "f16")] {
        let call = format!("%s = Shape(%a) : i64[2]\nConstantOfShape(%s) {{value=tensor({value})}}");
        exact("ConstantOfShape", &call, &[&format!("{t}[3, 4]")], vec![x(&[3, 4])]);
    }
    exact("EyeLike", "EyeLike(%a) {k=-1, dtype=1}", &["f32[4, 3]"], vec![count(DType::I64, &[4, 3])]);
    exact("EyeLike", "EyeLike(%a) {k=2}", &["f16[2, 5]"], vec![random(DType::F16, &[2, 5], 35)]);
    exact(
        "Range",
        "Range(%a, %b, %c)",
        &["i64[_]"],
        vec![ints(&[], &[10]), ints(&[], &[-3]), ints(&[], &[-4])],
    );
    let number = |x: f32| HostTensor::from_slice(&[], &[x]).unwrap();
    exact("Range", "Range(%a, %b, %c)", &["f32[_]"], vec![number(0.1), number(9.0), number(0.7)]);
    exact("Size", "Size(%a)", &["i64"], vec![x(&[3, 0, 4])]);
    exact("Size", "Size(%a)", &["i64"], vec![x(&[3, 5, 4])]);
    for attributes in ["", "{exclusive=1}", "{reverse=1}", "{exclusive=1, reverse=1}"] {
        let call = format!("const %x : i64 = -2\nCumSum(%a, %x) {attributes}");
        exact(&format!("CumSum {attributes}"), &call, &["f32[3, 9, 4]"], vec![x(&[3, 9, 4])]);
        exact(&format!("CumSum {attributes}"), &call, &["f64[3, 2]"], vec![count(DType::F64, &[3, 2])]);
    }
    exact("CumSum", "const %x : i64[1] = [0]\nCumSum(%a, %x)", &["i64[20]"], vec![count(DType::I64, &[20])]);
}
