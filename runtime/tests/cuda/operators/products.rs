//! Matrix products.

use super::{count, node};
use crate::cases::{Case, LOW, Tolerance, random};
use ampc_ir::DType;

pub(super) fn add(cases: &mut Vec<Case>) {
    for (dtype, t) in LOW {
        for (a, b, y) in [
            (&[2u64, 1, 5, 7][..], &[3u64, 7, 4][..], "[2, 3, 5, 4]"),
            (&[2, 1, 3, 5, 7], &[4, 1, 7, 3], "[2, 4, 3, 5, 3]"),
            (&[1, 3, 2, 9], &[2, 1, 9, 2], "[2, 3, 2, 2]"),
            (&[3, 7], &[2, 2, 7, 5], "[2, 2, 3, 5]"),
            (&[4, 0], &[0, 3], "[4, 3]"),
            (&[0, 4], &[4, 3], "[0, 3]"),
            (&[2, 3, 0], &[2, 0, 5], "[2, 3, 5]"),
        ] {
            let inputs = vec![random(dtype, a, 81), random(dtype, b, 82)];
            cases.push(node("MatMul", Tolerance::Sums, "MatMul(%a, %b)", &[&format!("{t}{y}")], inputs));
        }
        let call = "Gemm(%a, %b, %c) {beta=0.5, transB=1}";
        let inputs = vec![random(dtype, &[4, 0], 83), random(dtype, &[3, 0], 84), random(dtype, &[3], 85)];
        cases.push(node("Gemm nothing", Tolerance::Sums, call, &[&format!("{t}[4, 3]")], inputs));
    }
    for (dtype, t) in [(DType::F64, "f64"), (DType::I64, "i64"), (DType::I32, "i32")] {
        for (a, b, y) in [
            (&[19u64, 33][..], &[33u64, 18][..], "[19, 18]"),
            (&[2, 1, 5, 7], &[3, 7, 4], "[2, 3, 5, 4]"),
            (&[6], &[6], ""),
        ] {
            let inputs = vec![count(dtype, a), count(dtype, b)];
            cases.push(node("MatMul", Tolerance::Sums, "MatMul(%a, %b)", &[&format!("{t}{y}")], inputs));
        }
    }
    for (a, b, y) in [(&[5u64, 7][..], &[7u64, 4][..], "[5, 4]"), (&[2, 1, 3, 7], &[4, 7, 2], "[2, 4, 3, 2]")]
    {
        for (operands, has_zeros) in [("%a, %b", false), ("%a, %b, %c, %d", true)] {
            if has_zeros && a.len() > 2 {
                continue;
            }
            let mut inputs = vec![count(DType::U8, a), count(DType::I8, b)];
            if has_zeros {
                inputs.extend([count(DType::U8, &[5]), count(DType::I8, &[])]);
            }
            let call = format!("MatMulInteger({operands})");
            cases.push(node(&call, Tolerance::Exact, &call, &[&format!("i32{y}")], inputs));
        }
    }
    for (ta, tb) in [(0, 1), (1, 0)] {
        let call = format!("Gemm(%a, %b, %c) {{alpha=0.75, beta=2.0, transA={ta}, transB={tb}}}");
        let a: &[u64] = if ta == 0 { &[20, 21] } else { &[21, 20] };
        let b: &[u64] = if tb == 0 { &[21, 3] } else { &[3, 21] };
        let inputs = vec![count(DType::F64, a), count(DType::F64, b), count(DType::F64, &[20, 1])];
        cases.push(node(&call, Tolerance::Rows, &call, &["f64[20, 3]"], inputs));
    }
    for (dtype, t) in [(DType::F32, "f32"), (DType::F16, "f16"), (DType::F64, "f64")] {
        let of = |dims: &[u64], seed| match dtype {
            DType::F64 => count(dtype, dims),
            _ => random(dtype, dims, seed),
        };
        for (equation, dims, y) in [
            ("bij,bjk->bik", &[&[3u64, 4, 5][..], &[3, 5, 6]][..], "[3, 4, 6]"),
            ("ij,kj->ki", &[&[4, 5], &[6, 5]], "[6, 4]"),
            ("bhid,bhjd->bijh", &[&[2, 3, 4, 5], &[2, 3, 6, 5]], "[2, 4, 6, 3]"),
            ("...ij,...jk->...ik", &[&[2, 1, 3, 4], &[5, 4, 2]], "[2, 5, 3, 2]"),
            ("ij->j", &[&[7, 5]], "[5]"),
            ("ii->i", &[&[6, 6]], "[6]"),
            ("ii", &[&[6, 6]], ""),
            ("ij->ji", &[&[2, 3]], "[3, 2]"),
            ("i,j->ij", &[&[4], &[3]], "[4, 3]"),
            ("abc,cd->ad", &[&[2, 3, 4], &[4, 5]], "[2, 5]"),
            ("ij,jk,kl->il", &[&[3, 4], &[4, 5], &[5, 2]], "[3, 2]"),
            ("abcd,cb->ad", &[&[2, 3, 4, 5], &[4, 3]], "[2, 5]"),
            ("i,i,i->", &[&[9], &[9], &[9]], ""),
        ] {
            let names = ["%a", "%b", "%c"][..dims.len()].join(", ");
            let call = format!("Einsum({names}) {{equation=\"{equation}\"}}");
            let inputs = dims.iter().zip(86..).map(|(dims, seed)| of(dims, seed)).collect();
            cases.push(node(&call, Tolerance::Sums, &call, &[&format!("{t}{y}")], inputs));
        }
    }
}
