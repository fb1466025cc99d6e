//! Operators with more operands than fit into the parameters of a kernel.

use crate::cases::{Case, Tolerance, ints, random};
use ampc_ir::DType;

pub(super) fn add(cases: &mut Vec<Case>) {
    for dtype in [DType::F32, DType::F16] {
        for (op, count) in [("Sum", 600), ("Mean", 131), ("Max", 129), ("Min", 129)] {
            let (values, names) = operands(count, &dtype.to_string());
            let body = format!("{values}  %y = {op}({names}) : {dtype}[2, 3]\n  output %y : {dtype}[2, 3]\n");
            let inputs = vec![random(dtype, &[2, 3], 1), random(dtype, &[3], 2), random(dtype, &[2, 1], 3)];
            let tolerance = if matches!(op, "Max" | "Min") { Tolerance::Exact } else { Tolerance::Sums };
            cases.push(Case { name: format!("{op} of {count} {dtype}"), body, inputs, tolerance });
        }
    }
    // Operands that are broadcast along every other of many axes have many parameters each.
    let (whole, even, odd) = ([2u64; 12], [2u64, 1].repeat(6), [1u64, 2].repeat(6));
    for op in ["Sum", "Max"] {
        let mut values = String::new();
        for i in 0..129 {
            values += &format!("  %v{i} = Identity(%a) : f32{whole:?}\n");
        }
        let names: Vec<String> = (0..129).map(|i| format!("%v{i}")).collect();
        let names = names.join(", ");
        let body = format!("{values}  %y = {op}(%b, %c, {names}) : f32{whole:?}\n  output %y\n");
        let inputs =
            vec![random(DType::F32, &whole, 1), random(DType::F32, &even, 2), random(DType::F32, &odd, 3)];
        let tolerance = if op == "Max" { Tolerance::Exact } else { Tolerance::Sums };
        cases.push(Case { name: format!("{op} of 131 of 12 axes"), body, inputs, tolerance });
    }
    let names = ["%a", "%b"].repeat(65).join(", ");
    let body = format!("  %y = Max({names}) : i64[4]\n  output %y : i64[4]\n");
    let inputs = vec![ints(&[4], &[1, i64::MIN, 7, 0]), ints(&[1], &[0])];
    cases.push(Case { name: "Max of 130 i64".into(), body, inputs, tolerance: Tolerance::Exact });
    let body = format!(
        "  %y = Concat({}) {{axis=0}} : f32[{}, 3]\n  output %y : f32[{}, 3]\n",
        vec!["%a"; 600].join(", "),
        1200,
        1200
    );
    cases.push(Case {
        name: "Concat of 600".into(),
        body,
        inputs: vec![random(DType::F32, &[2, 3], 4)],
        tolerance: Tolerance::Exact,
    });
}

/// Values with the dims of `a`, `b` and `c` in turn, and their names. Equal values would be one operand of a kernel.
fn operands(count: usize, dtype: &str) -> (String, String) {
    let mut values = String::new();
    for i in 0..count {
        let (from, dims) = [("a", "[2, 3]"), ("b", "[3]"), ("c", "[2, 1]")][i % 3];
        values += &format!("  %v{i} = Identity(%{from}) : {dtype}{dims}\n");
    }
    let names: Vec<String> = (0..count).map(|i| format!("%v{i}")).collect();
    (values, names.join(", "))
}
