//! Guards catch these graphs, and leaving a guard out lets its graph through: G13, G14, G21, G24 and the depth
//! of sums.

use crate::proto::{bytes, load};
use crate::runtime::{Runs, exec, f32s, i64s, uniform};
use crate::support::{Ask, Decided, guarded, guarded_given, lower, lower_to, lower_with, policy};
use ampc::RewriteOptions;
use ampc::ir::DType;
use ampc::ir::op::Class;
use ampc::passes::guard::GUARDS;
use ampc::passes::policy::{Base, ListedBy};

/// Every guard has a test here that fails without it.
#[test]
fn every_guard_is_tested_below() {
    let tested = [
        "range",
        "mask",
        "eps",
        "underflow",
        "stash",
        "norm",
        "depth",
        "int",
        "square",
        "cancellation",
        "offset",
        "saturation",
        "recurrence",
        "scores",
        "position",
        "choice",
    ];
    assert_eq!(GUARDS.iter().map(|g| g.name).collect::<Vec<_>>(), tested);
}

/// A sum with an input that may lie far from 0 keeps its digits before a norm.
#[test]
fn offset_of_an_input_before_a_norm() {
    let graph = "input %x : f32[8, 16]
         const %w : f32[16, 16] = random(1)
         const %g : f32[16] = random(2)
         %f = MatMul(%x, %w) : ?
         %s = Add(%x, %f) : ?
         %n = LayerNormalization(%s, %g) : ?
         %y = MatMul(%n, %w) : ?
         output %y : f32[8, 16]";
    guarded(DType::F16, "offset", "s", graph);
    guarded(DType::BF16, "offset", "n", graph);
}

fn without(options: &mut RewriteOptions, guards: &[&str]) {
    for guard in guards {
        policy(options).disable_guard(guard).unwrap();
    }
}

/// A policy for runtimes with fp32 sums inside Softmax.
fn softmax_allowed(options: &mut RewriteOptions) {
    policy(options).set_class("Softmax", Class::Infer, ListedBy::Options).unwrap();
}

/// Attention scores of about −40 and a mask that is added to them; `%mask` is one row of 4.
fn attention(mask: &str) -> String {
    format!(
        "input %q : f32[1, 4, 4]
         const %k : f32[4, 4] = [-10.0, -10.0, -10.0, -10.0, -10.0, -10.0, -10.0, -10.0, -10.0, -10.0, -10.0, -10.0,
             -10.0, -10.0, -10.0, -10.0]
         const %v : f32[4, 2] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
         {mask}
         %scores = MatMul(%q, %k) : ?
         %masked = Add(%scores, %mask) : ?
         %p = Softmax(%masked) : ?
         %y = MatMul(%p, %v) : ?
         output %y : f32[1, 4, 2]"
    )
    .replace(",\n             ", ", ")
}

fn padded_rows_are_uniform(runs: &Runs) {
    for run in runs.lowered() {
        // The means of the columns of %v; a quarter and they are exact in f16.
        assert!(run[0].values.chunks(2).all(|y| y == [4.0, 5.0]), "{:?}", run[0]);
    }
}

const ONES: [f32; 16] = [1.0; 16];

/// G13: the least number of f32 in a mask is beyond f16: it stays, and so does the sum.
#[test]
fn g13_range_a_mask_of_finfo_min_stays_fp32() {
    let graph =
        attention("const %mask : f32[4] = [-3.4028235e38, -3.4028235e38, -3.4028235e38, -3.4028235e38]");
    guarded_given(DType::F16, "range", "masked", &graph, |o| {
        softmax_allowed(o);
        without(o, &["mask"]);
    });
    let feeds = [f32s("q", &[1, 4, 4], &ONES)];
    let (done, runs) = exec(DType::F16, &graph, &feeds, softmax_allowed);
    assert_eq!(done.precision("masked"), "fp32");
    if let Some(runs) = runs {
        padded_rows_are_uniform(&runs);
    }
    let (_, runs) = exec(DType::F16, &graph, &feeds, |o| {
        softmax_allowed(o);
        without(o, &["mask", "range"]);
    });
    if let Some(runs) = runs {
        assert!(runs.emulated[0].values.iter().all(|y| y.is_nan()), "an infinite row has no softmax");
    }
}

/// G13: −65504 fits, and −65504 − 40 does not: a mask beyond half the range is not added in f16.
#[test]
fn g13_mask_half_the_range_is_the_limit_of_a_sum() {
    let graph = attention("const %mask : f32[4] = [-65504.0, -65504.0, -65504.0, -65504.0]");
    guarded_given(DType::F16, "mask", "masked", &graph, softmax_allowed);
    let feeds = [f32s("q", &[1, 4, 4], &ONES)];
    if let (_, Some(runs)) = exec(DType::F16, &graph, &feeds, softmax_allowed) {
        padded_rows_are_uniform(&runs);
    }
    let unguarded = |o: &mut RewriteOptions| {
        softmax_allowed(o);
        without(o, &["mask"]);
    };
    if let (_, Some(runs)) = exec(DType::F16, &graph, &feeds, unguarded) {
        assert!(runs.emulated[0].values.iter().all(|y| y.is_nan()), "−inf in every column");
    }
    let moderate = attention("const %mask : f32[4] = [-10000.0, -10000.0, -10000.0, -10000.0]");
    let done = lower_with(&moderate, softmax_allowed);
    assert_eq!(done.precision("masked"), "fp16", "a moderate mask is no reason to stay");
    assert_eq!(lower_to(DType::BF16, &attention_at_finfo_min(), |_| ()).precision("masked"), "fp32");
}

fn attention_at_finfo_min() -> String {
    attention("const %mask : f32[4] = [-3.4028235e38, -3.4028235e38, -3.4028235e38, -3.4028235e38]")
}

/// Scores masked where they are computed, to which a bias of −40 is added.
const MASKED_IN_PLACE: &str = "input %q : f32[1, 4, 4]
     const %k : f32[4, 4] = random(1, 1.0)
     const %v : f32[4, 2] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
     const %attended : bool[4] = [false, false, false, false]
     const %least : f32 = -65504.0
     const %bias : f32[4] = [-40.0, -40.0, -40.0, -40.0]
     %scores = MatMul(%q, %k) : ?
     %where = Where(%attended, %scores, %least) : ?
     %back = Transpose(%where) {perm=[0, 1, 2]} : ?
     %masked = Add(%back, %bias) : ?
     %p = Softmax(%masked) : ?
     %y = MatMul(%p, %v) : ?
     output %y : f32[1, 4, 2]";

/// G13: a mask that Where puts among scores is one, though the other branch is computed.
#[test]
fn g13_mask_in_one_branch_of_where() {
    guarded_given(DType::F16, "mask", "masked", MASKED_IN_PLACE, softmax_allowed);
    let feeds = [f32s("q", &[1, 4, 4], &ONES)];
    let (done, runs) = exec(DType::F16, MASKED_IN_PLACE, &feeds, softmax_allowed);
    assert_eq!(["where", "masked"].map(|n| done.precision(n)), ["fp16", "fp32"]);
    if let Some(runs) = runs {
        padded_rows_are_uniform(&runs);
    }
    let unguarded = |o: &mut RewriteOptions| {
        softmax_allowed(o);
        without(o, &["mask"]);
    };
    if let (_, Some(runs)) = exec(DType::F16, MASKED_IN_PLACE, &feeds, unguarded) {
        assert!(runs.emulated[0].values.iter().all(|y| y.is_nan()), "−inf in every column");
    }
    let mut options = crate::support::options(DType::F16);
    softmax_allowed(&mut options);
    let twice = crate::support::rewrite(load(bytes(&done.model)), &options);
    assert_eq!(twice.inserted().len(), done.inserted().len(), "a second run sees the mask that is fp16 now");
    assert_eq!(twice.precision("masked"), "fp32");
}

/// A division by a sum that may be nothing but the epsilon; `%t` is 0 where `%x` is.
fn division(eps: &str) -> String {
    format!(
        "input %x : f32[2, 2]
         const %w : f32[2, 2] = [1.0, 0.0, 0.0, 1.0]
         const %eps : f32 = {eps}
         %t = MatMul(%x, %w) : ?
         %d = Add(%t, %eps) : ?
         %q = Div(%t, %d) : ?
         %y = MatMul(%q, %w) : ?
         output %y : f32[2, 2]"
    )
}

/// G14: an epsilon that is subnormal in f16 keeps the sum and the division in fp32.
#[test]
fn g14_eps_keeps_the_way_to_the_division() {
    guarded(DType::F16, "eps", "d", &division("1e-6"));
    guarded(DType::F16, "eps", "q", &division("1e-6"));
    let done = lower(&division("0.001"));
    assert_eq!((done.precision("d"), done.precision("q")), ("fp16", "fp16"), "0.001 is a normal number");
    assert_eq!(lower_to(DType::BF16, &division("1e-12"), |_| ()).precision("d"), "bf16");
}

/// G14: 0 / (0 + 1e-12) is 0, and not 0 / 0.
#[test]
fn g14_eps_of_1e_12_does_not_become_zero() {
    let feeds = [f32s("x", &[2, 2], &[0.0, 2.0, 0.0, 4.0])];
    let graph = division("1e-12");
    let (done, runs) = exec(DType::F16, &graph, &feeds, |_| ());
    assert_eq!(done.rule("d"), "guard.eps");
    if let Some(runs) = runs {
        // All values are 0, 1 or exact powers of two.
        runs.are_within(1e-6);
    }
    let (_, runs) = exec(DType::F16, &graph, &feeds, |o| without(o, &["eps", "underflow"]));
    if let Some(runs) = runs {
        assert!(runs.emulated[0].values.iter().any(|v| v.is_nan()), "{:?}", runs.emulated);
    }
}

/// G14: constants all of which would be 0 keep their reader in fp32.
#[test]
fn g14_underflow_of_a_whole_constant() {
    let graph = |c: &str| {
        format!(
            "input %x : f32[2, 2]
             const %w : f32[2, 2] = [1.0, 0.0, 0.0, 1.0]
             const %c : f32[2] = {c}
             %t = MatMul(%x, %w) : ?
             %s = Mul(%t, %c) : ?
             %y = MatMul(%s, %w) : ?
             output %y : f32[2, 2]"
        )
    };
    guarded(DType::F16, "underflow", "s", &graph("[1e-9, 0.0]"));
    assert_eq!(lower(&graph("[1e-9, 0.5]")).precision("s"), "fp16", "one small weight is no reason");
}

/// G21: norms that ask for another precision inside stay as they are.
#[test]
fn g21_stash_type_other_than_float_is_not_lowered() {
    let graph = |attrs: &str| {
        format!(
            "input %x : f32[2, 4]
             const %w : f32[4, 4] = random(1, 1.0)
             const %g : f32[4] = [1.0, 1.0, 1.0, 1.0]
             %t = MatMul(%x, %w) : ?
             %n = LayerNormalization(%t, %g) {attrs} : ?
             %y = MatMul(%n, %w) : ?
             output %y : f32[2, 4]"
        )
    };
    guarded(DType::F16, "stash", "n", &graph("{stash_type=10}"));
    assert_eq!(lower(&graph("{stash_type=1}")).precision("n"), "fp16");
    assert_eq!(lower(&graph("{}")).precision("n"), "fp16", "float is the default");
}

/// G21: activations of 400, whose squares f16 does not hold, pass a norm that sums in fp32 inside.
#[test]
fn g21_norms_of_activations_of_400() {
    let graph = "input %x : f32[2, 8]
         const %w : f32[8, 8] = random(1, 1.0)
         const %g : f32[8] = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
         %t = MatMul(%x, %w) : ?
         %n = LayerNormalization(%t, %g) {stash_type=1} : ?
         %y = MatMul(%n, %w) : ?
         output %y : f32[2, 8]";
    let (done, runs) = exec(DType::F16, graph, &[f32s("x", &[2, 8], &uniform(3, 16, 400.0))], |_| ());
    assert_eq!(done.precision("n"), "fp16");
    if let Some(runs) = runs {
        // Five roundings to f16 (x, w, t, n, y) and sums of 8: about 16 units of 2^-11.
        runs.are_within(0.008);
    }
}

/// A root mean square written out: x · x overflows f16 from 256 on, and loses digits in bf16.
const RMS: &str = "input %x : f32[2, 8]
     const %w : f32[8, 8] = random(1, 1.0)
     const %eps : f32 = 1e-5
     const %axis : i64[1] = [1]
     %t = MatMul(%x, %w) : ?
     %sq = Mul(%t, %t) : ?
     %ms = ReduceMean(%sq, %axis) : ?
     %var = Add(%ms, %eps) : ?
     %r = Sqrt(%var) : ?
     %n = Div(%t, %r) : ?
     %y = MatMul(%n, %w) : ?
     output %y : f32[2, 8]";

/// G21: a square that is summed is not computed in the low format, nor a mean that is subtracted.
#[test]
fn g21_norm_written_out() {
    guarded_given(DType::BF16, "norm", "sq", RMS, |o| without(o, &["square", "eps"]));
    let mean = "input %x : f32[2, 8]
         const %w : f32[8, 8] = random(1, 1.0)
         const %axis : i64[1] = [1]
         %t = MatMul(%x, %w) : ?
         %m = ReduceMean(%t, %axis) : ?
         %d = Sub(%t, %m) : ?
         %y = MatMul(%d, %w) : ?
         output %y : f32[2, 8]";
    guarded(DType::BF16, "norm", "m", mean);
    guarded(DType::BF16, "norm", "d", mean);
}

/// G21: with the guard activations of 400 survive, without it f16 overflows.
#[test]
fn g21_norm_written_out_of_activations_of_400() {
    let sums_allowed = |o: &mut RewriteOptions| {
        policy(o).set_class("ReduceMean", Class::Infer, ListedBy::Options).unwrap();
        without(o, &["eps", "square"]);
    };
    let feeds = [f32s("x", &[2, 8], &uniform(3, 16, 400.0))];
    if let (_, Some(runs)) = exec(DType::F16, RMS, &feeds, sums_allowed) {
        runs.are_within(0.008);
    }
    let unguarded = |o: &mut RewriteOptions| {
        sums_allowed(o);
        without(o, &["norm"]);
    };
    let (done, runs) = exec(DType::F16, RMS, &feeds, unguarded);
    assert_eq!(done.precision("sq"), "fp16");
    if let Some(runs) = runs {
        // Infinite squares make every quotient 0.
        assert!(runs.emulated[0].values.iter().all(|&v| v == 0.0), "{:?}", runs.emulated);
    }
}

/// Long sums leave the range or lose the addends: beyond 4096 elements they stay fp32.
#[test]
fn g21_depth_of_a_reduction() {
    let pool = |k: u32| {
        format!(
            "input %x : f32[1, 1, 80, 80]
             const %w : f32[1, 1, 1, 1] = [1.0]
             %t = Conv(%x, %w) : ?
             %p = AveragePool(%t) {{kernel_shape=[{k}, {k}]}} : ?
             %y = Conv(%p, %w) : ?
             output %y"
        )
    };
    guarded(DType::F16, "depth", "p", &pool(65));
    assert_eq!(lower(&pool(64)).precision("p"), "fp16");
    let mean = "input %x : f32[2, 8]
         const %w : f32[8, 4100] = random(1, 1.0)
         const %v : f32[1, 4] = [1.0, 2.0, 3.0, 4.0]
         const %axis : i64[1] = [1]
         %t = MatMul(%x, %w) : ?
         %m = ReduceMean(%t, %axis) : ?
         %y = MatMul(%m, %v) : ?
         output %y : f32[2, 4]";
    guarded(DType::BF16, "depth", "m", mean);
}

/// Half the width of an image, computed as exporters do: through a float.
const HALF: &str = "input %x : f32[1, W]
     const %one : i64 = 1
     const %half : f32 = 0.5
     const %start : i64[1] = [0]
     const %axes : i64[1] = [1]
     const %shape1 : i64[1] = [1]
     %shape = Shape(%x) : ?
     %w = Gather(%shape, %one) : ?
     %wf = Cast(%w) {to=1} : ?
     %hf = Mul(%wf, %half) : ?
     %hi = Cast(%hf) {to=7} : ?
     %end = Reshape(%hi, %shape1) : ?
     %y = Slice(%x, %start, %end, %axes) : ?
     output %y : f32[1, M]";

/// Lowers whatever a schema admits, as converters do, with the guards.
fn everything(options: &mut RewriteOptions) {
    policy(options).base = Base::Schema;
}

/// G24: the end of a slice, 16390 / 2, is exact in every format.
#[test]
fn g24_int_slice_end() {
    for to in [DType::F16, DType::BF16] {
        guarded_given(to, "int", "hf", HALF, everything);
        let feeds = [f32s("x", &[1, 16390], &vec![1.0; 16390])];
        let widths = |runs: &Runs| runs.lowered().map(|r| r[0].dims[1]).collect::<Vec<_>>();
        for options in [everything, |_: &mut RewriteOptions| ()] {
            if let (_, Some(runs)) = exec(to, HALF, &feeds, options) {
                assert!(widths(&runs).iter().all(|&w| w == 8195), "{to}: {:?}", widths(&runs));
            }
        }
        let (_, runs) = exec(to, HALF, &feeds, |o| {
            everything(o);
            without(o, &["int"]);
        });
        if let Some(runs) = runs {
            assert_ne!(runs.emulated[0].dims[1], 8195, "{to} does not hold 16390 / 2");
        }
    }
}

/// Rotary positions: position · frequency goes through a product, then into a sine.
const ROTARY: &str = "input %ids : i64[P]
     const %last : i64[1] = [1]
     const %freq : f32[1, 4] = [1.0, 0.1, 0.01, 0.001]
     %pos = Cast(%ids) {to=1} : ?
     %col = Unsqueeze(%pos, %last) : ?
     %angle = MatMul(%col, %freq) : ?
     %sin = Sin(%angle) : ?
     output %sin : f32[P, 4]";

/// G24: positions up to 5000 keep their sines, though a MatMul lies between.
#[test]
fn g24_int_positions_to_5000() {
    for to in [DType::F16, DType::BF16] {
        guarded_given(to, "int", "angle", ROTARY, |o| without(o, &["position"]));
        let ids: Vec<i64> = (0..5000).step_by(7).chain([4999]).collect();
        let feeds = [i64s("ids", &[ids.len()], &ids)];
        let (done, runs) = exec(to, ROTARY, &feeds, |_| ());
        assert!(done.inserted().is_empty());
        if let Some(runs) = runs {
            // Nothing is lowered: the same operators in the same precision.
            runs.are_within(1e-6);
        }
        let (_, runs) = exec(to, ROTARY, &feeds, |o| without(o, &["int", "position"]));
        if let Some(runs) = runs {
            let off = runs.emulated[0].values.iter().zip(&runs.source[0].values).map(|(a, b)| (a - b).abs());
            assert!(off.fold(0.0, f64::max) > 0.5, "{to} moves an angle of 5000 by a whole radian");
        }
    }
}

/// G24: lengths: Range and floor(size · scale) stay as well.
#[test]
fn g24_int_ranges_and_sizes() {
    let range = "input %n : f32
         const %zero : f32 = 0.0
         const %one : f32 = 1.0
         const %last : i64[1] = [1]
         const %freq : f32[1, 4] = [1.0, 0.1, 0.01, 0.001]
         %pos = Range(%zero, %n, %one) : ?
         %col = Unsqueeze(%pos, %last) : ?
         %angle = MatMul(%col, %freq) : ?
         %cos = Cos(%angle) : ?
         output %cos";
    guarded_given(DType::BF16, "int", "angle", range, |o| without(o, &["position"]));
    let size = "input %s : f32[1, 2]
         const %w : f32[2, 2] = [0.5, 1.0, -1.0, 0.25]
         const %two : f32 = 2.0
         %t = MatMul(%s, %w) : ?
         %scaled = Mul(%t, %two) : ?
         %whole = Floor(%scaled) : ?
         %n = Cast(%whole) {to=7} : ?
         %y = MatMul(%scaled, %w) : ?
         output %n : i64[1, 2]
         output %y : f32[1, 2]";
    guarded(DType::F16, "int", "scaled", size);
}

/// Looking through casts of the author takes time linear in the length of their chain.
#[test]
fn g24_a_long_chain_of_casts_ends() {
    let mut graph = String::from("input %x : f32[2, 2]\n%v0 = Relu(%x) : f32[2, 2]\n");
    let n = 20_000;
    for i in 0..n {
        let (to, ty) = if i % 2 == 0 { (11, "f64") } else { (1, "f32") };
        graph += &format!("%v{} = Cast(%v{i}) {{to={to}}} : {ty}[2, 2]\n", i + 1);
    }
    graph += &format!("%y = MatMul(%v{n}, %v{n}) : f32[2, 2]\noutput %y : f32[2, 2]");
    let mut options = crate::support::options(DType::F16);
    options.verify_each = false;
    let done = crate::support::rewrite(crate::support::model(&graph), &options);
    assert_eq!(done.precision("y"), "fp16");
}

/// A graph with an input `%x` of 4 rows of 8, its product `%t` with a weight, and a product `%y` of `%z` behind it.
fn between(inner: &str) -> String {
    format!(
        "input %x : f32[4, 8]
         const %w : f32[8, 8] = random(1, 0.5)
         const %one : f32 = 1.0
         const %axis : i64[1] = [1]
         %t = MatMul(%x, %w) : ?
         {inner}
         %y = MatMul(%z, %w) : ?
         output %y : f32[4, 8]"
    )
}

/// A value of unknown range may be large: its sum stays fp32 before an exponent, and nowhere else.
#[test]
fn scores_of_a_mask_that_is_an_input() {
    let graph = |after: &str| {
        format!("input %mask : f32[4, 8]\n{}", between(&format!("%s = Add(%t, %mask) : ?\n{after}(%s) : ?")))
    };
    guarded_given(DType::F16, "scores", "s", &graph("%z = Softmax"), softmax_allowed);
    assert_eq!(lower(&graph("%z = Relu")).precision("s"), "fp16");
    let feeds = [f32s("mask", &[4, 8], &[-1e9; 32]), f32s("x", &[4, 8], &uniform(3, 32, 2.0))];
    if let (_, Some(runs)) = exec(DType::F16, &graph("%z = Softmax"), &feeds, |_| ()) {
        runs.are_within(0.004);
    }
}

/// A value that is only used as an angle is not rounded, the product included; without the guard it is.
#[test]
fn position_of_an_angle() {
    let graph = between("%z = Sin(%t) : ?");
    guarded(DType::F16, "position", "t", &graph);
    let feeds = [f32s("x", &[4, 8], &uniform(3, 32, 1000.0))];
    if let (_, Some(runs)) = exec(DType::F16, &graph, &feeds, |_| ()) {
        // Sines are rounded once, and sums of eight of them.
        runs.are_within(0.004);
    }
}

/// Probabilities by which something is chosen are not rounded: all experts of a row might be tied. The values that are
/// chosen are numbers like others.
#[test]
fn choice_of_experts_by_probability() {
    let graph = |after: &str| between(&format!("const %k : i64[1] = [8]\n%p = Softmax(%t) : ?\n{after}"));
    let chosen = graph("%z, %i = TopK(%p, %k) : ?, ?");
    guarded(DType::BF16, "choice", "p", &chosen);
    let mixed = graph("%z = MatMul(%p, %w) : ?");
    assert_eq!(lower_to(DType::BF16, &mixed, |_| ()).precision("p"), "bf16");
}

/// Squares before a root stay fp32: those of gradients of 400 would be infinite.
#[test]
fn square_before_a_root() {
    let graph = between(
        "%u = Mul(%x, %one) : ?
         %v = MatMul(%u, %w) : ?
         %tt = Mul(%t, %t) : ?
         %vv = Mul(%v, %v) : ?
         %s = Add(%tt, %vv) : ?
         %z = Sqrt(%s) : ?",
    );
    for path in ["tt", "vv", "s"] {
        guarded(DType::F16, "square", path, &graph);
    }
    let feeds = [f32s("x", &[4, 8], &uniform(3, 32, 400.0))];
    if let (_, Some(runs)) = exec(DType::F16, &graph, &feeds, |_| ()) {
        runs.are_within(0.004);
    }
    assert_eq!(lower(&between("%r = Relu(%t) : ?\n%z = Mul(%r, %r) : ?")).precision("z"), "fp16");
}

/// Differences of nearly equal numbers keep their digits.
#[test]
fn cancellation_of_nearly_equal_numbers() {
    let divided = "%u = MatMul(%t, %w) : ?\n%d = Sub(%t, %u) : ?\n%z = Div(%x, %d) : ?";
    guarded(DType::F16, "cancellation", "d", &between(divided));
    let feature = "%u = MatMul(%t, %w) : ?\n%z = Sub(%t, %u) : ?";
    assert_eq!(lower(&between(feature)).precision("z"), "fp16");
    let variance = "%m = ReduceMean(%t, %axis) : ?
         %mm = Mul(%m, %m) : ?
         %tt = Mul(%t, %t) : ?
         %e = ReduceMean(%tt, %axis) : ?
         %v = Sub(%e, %mm) : ?
         %z = Add(%t, %v) : ?";
    for path in ["v", "mm", "m"] {
        guarded_given(DType::BF16, "cancellation", path, &between(variance), |o| without(o, &["norm"]));
    }
    let distance = "%n = ReduceSumSquare(%t, %axis) : ?
         %tr = Transpose(%t) {perm=[1, 0]} : ?
         %p = MatMul(%t, %tr) : ?
         %d = Sub(%n, %p) : ?
         %z = MatMul(%d, %t) : ?";
    guarded(DType::F16, "cancellation", "p", &between(distance));
}

/// A probability rounds to 1 before its distance from 1 is taken the logarithm of.
#[test]
fn saturation_before_a_logarithm() {
    let graph = |after: &str| {
        between(&format!(
            "%p = Sigmoid(%t) : ?
             %v = MatMul(%p, %w) : ?
             %q = Sub(%one, %p) : ?
             %l = {after}(%q) : ?
             %z = Add(%l, %v) : ?"
        ))
    };
    guarded_given(DType::F16, "saturation", "p", &graph("Log"), |o| without(o, &["cancellation"]));
    assert_eq!(lower(&graph("Relu")).precision("p"), "fp16");
    let tanh = "%c = Tanh(%t) : ?\n%v = MatMul(%c, %w) : ?\n%a = Atanh(%c) : ?\n%z = Add(%a, %v) : ?";
    guarded(DType::F16, "saturation", "c", &between(tanh));
}

/// A memory that forgets half a percent at every step: the factor loses digits of its distance from 1.
#[test]
fn recurrence_of_a_leaky_memory() {
    let step = |i: usize| format!("%k{i} = Mul(%m{}, %keep) : ?\n%m{i} = Add(%k{i}, %m0) : ?", i - 1);
    let graph = |keep: &str| {
        format!(
            "input %x : f32[8, 16]
             const %w : f32[16, 16] = random(1)
             const %keep : f32 = {keep}
             %m0 = MatMul(%x, %w) : ?
             {}
             %y = MatMul(%m10, %w) : ?
             output %y",
            (1..=10).map(step).collect::<Vec<_>>().join("\n")
        )
    };
    guarded(DType::F16, "recurrence", "k10", &graph("0.995"));
    assert_eq!(lower(&graph("0.5")).precision("k10"), "fp16");
}

/// A product over thousands of computed terms leaves the range, unless its weights add up to 1.
#[test]
fn depth_of_a_product() {
    let graph = |weights: &str| {
        format!(
            "input %k : f32[8, 5000]
             input %v : f32[5000, 8]
             %p = {weights}(%k) : ?
             %s = MatMul(%p, %v) : ?
             %y = MatMul(%s, %v) {{}} : ?
             output %y"
        )
        .replace("%y = MatMul(%s, %v) {}", "%y = MatMul(%s, %s)")
    };
    guarded(DType::F16, "depth", "s", &graph("Relu"));
    assert_eq!(lower(&graph("Softmax")).precision("s"), "fp16");
}

/// Factors below the normal range lose their digits, and so do divisors of which one is there.
#[test]
fn underflow_of_factors_and_divisors() {
    let factor = |number: &str| between(&format!("const %c : f32 = {number}\n%z = Mul(%t, %c) : ?"));
    guarded(DType::F16, "underflow", "z", &factor("2e-7"));
    assert_eq!(lower(&factor("2e-3")).precision("z"), "fp16");
    assert_eq!(
        lower(&factor("2e-7").replace("= Mul(", "= Add(")).precision("z"),
        "fp16",
        "what is added may be small"
    );
    let divisor =
        between("const %c : f32[8] = [1e-8, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]\n%z = Div(%t, %c) : ?");
    guarded(DType::F16, "underflow", "z", &divisor);
}

/// Values computed from constants count with their range: 30000 · 4 is beyond f16.
#[test]
fn range_of_what_is_computed_of_constants() {
    let graph = between(
        "const %k : f32[8, 8] = random(2, 4.0)
         const %c : f32 = 30000.0
         %tr = Transpose(%k) {perm=[1, 0]} : ?
         %l = Mul(%tr, %c) : ?
         %z = MatMul(%t, %l) : ?",
    );
    guarded(DType::F16, "range", "z", &graph);
    assert_eq!(lower(&graph.replace("30000.0", "3.0")).precision("z"), "fp16");
}
