//! Lowered nodes and nodes that stay: G18, G22, G23, G36.

use crate::runtime::{exec, f32s};
use crate::support::{Ask, Decided, lower, lower_to, lower_with, policy};
use ampc::Rewritten;
use ampc::ir::DType;
use ampc::ir::op::Class;
use ampc::passes::policy::ListedBy;
use std::fmt::Write;

/// G18: a constant that only fp32 readers read keeps its type and its bytes.
#[test]
fn g18_constants_of_fp32_readers_stay() {
    let done = lower(
        "input %x : f32[2, 2]
         const %w : f32[2, 2] = [0.5, 1.0, -1.0, 0.25]
         const %c : f32[2] = [0.1, 0.2]
         %t = MatMul(%x, %w) : ?
         %e = Exp(%t) : ?
         %s = Add(%e, %c) : ?
         output %s : f32[2, 2]",
    );
    assert_eq!((done.precision("e"), done.precision("s")), ("fp32", "fp32"));
    assert_eq!((done.dtype("w"), done.dtype("c")), (DType::F16, DType::F32));
    assert_eq!(done.floats("c"), [f64::from(0.1f32), f64::from(0.2f32)]);
    assert_eq!(done.report.constants.converted.len(), 1);
}

const SOFTMAX: &str = "input %x : f32[2, 4]
     const %w : f32[4, 4] = random(1, 1.0)
     %t = MatMul(%x, %w) : ?
     %p = Softmax(%t) : ?
     %y = MatMul(%p, %w) : ?
     output %y : f32[2, 4]";

/// G22: no Softmax reads f16 and makes f32: casts stand on both sides, or on none.
#[test]
fn g22_softmax_is_cast_as_a_region() {
    let done = lower(SOFTMAX);
    assert_eq!(done.operand_dtypes("Softmax"), [Some(DType::F32)]);
    let around: Vec<_> = done.inserted().into_iter().filter(|(v, ..)| v == "t" || v == "p").collect();
    assert_eq!(around, [("t".into(), DType::F16, DType::F32), ("p".into(), DType::F32, DType::F16)]);
    assert_eq!(done.dtype("p"), DType::F32);

    let low =
        lower_with(SOFTMAX, |o| policy(o).set_class("Softmax", Class::Infer, ListedBy::Options).unwrap());
    assert_eq!(low.operand_dtypes("Softmax"), [Some(DType::F16)]);
    assert_eq!((low.dtype("p"), low.inserted().len()), (DType::F16, 2));
    // bf16 has the exponents of fp32.
    assert_eq!(lower_to(DType::BF16, SOFTMAX, |_| ()).dtype("p"), DType::BF16);
}

/// G23: what makes decisions of floats takes what is there; nothing is narrowed for it.
#[test]
fn g23_no_narrowing_for_decisions() {
    let done = lower(
        "input %x : f32[2, 4]
         const %w : f32[4, 4] = random(1, 1.0)
         const %k : i64[1] = [2]
         %t = MatMul(%x, %w) : ?
         %best_of_x = ArgMax(%x) {axis=1} : ?
         %best_of_t = ArgMax(%t) {axis=1} : ?
         %top, %at = TopK(%x, %k) : ?, ?
         %y = MatMul(%top, %w2) : ?
         %nz = NonZero(%x) : ?
         %gt = Greater(%t, %x) : ?
         output %best_of_x : i64[1, 4]
         output %best_of_t : i64[2, 1]
         output %at : i64[2, 2]
         output %y : f32[2, 2]
         output %nz : i64[2, N]
         output %gt : bool[2, 4]"
            .replace("%k : i64[1] = [2]", "%k : i64[1] = [2]\n const %w2 : f32[2, 2] = [1.0, 2.0, 3.0, 4.0]")
            .replace("output %best_of_x : i64[1, 4]", "output %best_of_x : i64[2, 1]")
            .as_str(),
    );
    assert_eq!((done.precision("best_of_x"), done.precision("best_of_t")), ("fp32", "fp16"));
    assert_eq!(done.operand_dtypes("TopK")[0], Some(DType::F32));
    assert_eq!(done.operand_dtypes("NonZero"), [Some(DType::F32)]);
    // One of the two operands is wide: the other is widened, not the reverse.
    assert_eq!(done.operand_dtypes("Greater"), [Some(DType::F32), Some(DType::F32)]);
    let narrowed: Vec<String> =
        done.inserted().into_iter().filter(|(_, _, to)| *to == DType::F16).map(|(v, ..)| v).collect();
    assert_eq!(narrowed, ["x", "top"], "for the two MatMuls only");
}

/// G23: a near tie is decided as in fp32.
#[test]
fn g23_near_ties_do_not_flip() {
    let graph = "input %x : f32[1, 4]
         const %w : f32[4, 4] = random(1, 1.0)
         const %k : i64[1] = [1]
         %t = MatMul(%x, %w) : ?
         %best = ArgMax(%x) {axis=1} : ?
         %top, %at = TopK(%x, %k) : ?, ?
         output %best : i64[1, 1]
         output %at : i64[1, 1]
         output %t : f32[1, 4]";
    for to in [DType::F16, DType::BF16] {
        // 1 + 2^-20 is 1 in both formats, and the tie would go to the first.
        let x = [1.0, 0.5, 1.0 + 2f32.powi(-20), 0.25];
        if let (_, Some(runs)) = exec(to, graph, &[f32s("x", &[1, 4], &x)], |_| ()) {
            for run in runs.lowered() {
                assert_eq!((&run[0].values[..], &run[1].values[..]), (&[2.0][..], &[2.0][..]), "{to}");
            }
        }
    }
}

/// Every decision, a node a line, and every cast.
fn decisions(done: &Rewritten) -> String {
    let mut out = String::new();
    for node in &done.report.nodes {
        let precision = node.precision.as_deref().unwrap_or("-");
        writeln!(out, "{:<14} {:<20} {precision:<5} {}", node.path, node.op, node.rule).unwrap();
    }
    for (value, from, to) in done.inserted() {
        writeln!(out, "cast {value}: {from} to {to}").unwrap();
    }
    out
}

/// A block of a transformer: attention with a mask, a GELU written out, two norms.
const BLOCK: &str = "input %x : f32[N, 8, 16]
     input %mask : f32[N, 1, 1, 8]
     const %wq : f32[16, 16] = random(1, 0.2)
     const %wk : f32[16, 16] = random(2, 0.2)
     const %wv : f32[16, 16] = random(3, 0.2)
     const %wo : f32[16, 16] = random(4, 0.2)
     const %w1 : f32[16, 64] = random(5, 0.2)
     const %b1 : f32[64] = random(6, 0.2)
     const %w2 : f32[64, 16] = random(7, 0.2)
     const %g : f32[16] = random(8, 1.0)
     const %heads : i64[4] = [0, 8, 4, 4]
     const %joined : i64[3] = [0, 8, 16]
     const %scale : f32 = 2.0
     const %sqrt2 : f32 = 1.4142135
     const %one : f32 = 1.0
     const %half : f32 = 0.5
     %ln1 = LayerNormalization(%x, %g) : ?
     %q = MatMul(%ln1, %wq) : ?
     %k = MatMul(%ln1, %wk) : ?
     %v = MatMul(%ln1, %wv) : ?
     %q4 = Reshape(%q, %heads) : ?
     %k4 = Reshape(%k, %heads) : ?
     %v4 = Reshape(%v, %heads) : ?
     %qt = Transpose(%q4) {perm=[0, 2, 1, 3]} : ?
     %kt = Transpose(%k4) {perm=[0, 2, 3, 1]} : ?
     %vt = Transpose(%v4) {perm=[0, 2, 1, 3]} : ?
     %scores = MatMul(%qt, %kt) : ?
     %scaled = Div(%scores, %scale) : ?
     %masked = Add(%scaled, %mask) : ?
     %p = Softmax(%masked) : ?
     %ctx = MatMul(%p, %vt) : ?
     %ctx_t = Transpose(%ctx) {perm=[0, 2, 1, 3]} : ?
     %ctx3 = Reshape(%ctx_t, %joined) : ?
     %attn = MatMul(%ctx3, %wo) : ?
     %res1 = Add(%x, %attn) : ?
     %ln2 = LayerNormalization(%res1, %g) : ?
     %up = MatMul(%ln2, %w1) : ?
     %h = Add(%up, %b1) : ?
     %h_div = Div(%h, %sqrt2) : ?
     %erf = Erf(%h_div) : ?
     %erf1 = Add(%erf, %one) : ?
     %h_erf = Mul(%h, %erf1) : ?
     %gelu = Mul(%h_erf, %half) : ?
     %down = MatMul(%gelu, %w2) : ?
     %res2 = Add(%res1, %down) : ?
     output %res2 : f32[N, 8, 16]";

/// G36: taint ends at the next operator that is safe in any case; one Softmax does not widen a block.
#[test]
fn g36_transformer_block() {
    insta::assert_snapshot!("transformer_block_fp16", decisions(&lower(BLOCK)));
    insta::assert_snapshot!("transformer_block_bf16", decisions(&lower_to(DType::BF16, BLOCK, |_| ())));
}

/// G36: an Exp at the start of a chain widens what follows up to the first MatMul and nothing behind it.
#[test]
fn g36_taint_stops_at_allow_operators() {
    let done = lower(
        "input %x : f32[2, 2]
         const %w : f32[2, 2] = [0.5, 1.0, -1.0, 0.25]
         %t = MatMul(%x, %w) : ?
         %e = Exp(%t) : ?
         %moved = Transpose(%e) : ?
         %s = Add(%moved, %t) : ?
         %u = MatMul(%s, %w) : ?
         %a = Add(%u, %u) : ?
         %b = Sigmoid(%a) : ?
         %y = MatMul(%b, %w) : ?
         output %y : f32[2, 2]",
    );
    let precision = |path| done.precision(path);
    assert_eq!(["t", "u", "a", "b", "y"].map(precision), ["fp16"; 5]);
    assert_eq!(["e", "moved", "s"].map(precision), ["fp32"; 3]);
    assert_eq!(done.rule("s"), "taint:e");
}
