//! Ranges of small graphs. `tests/ranges.rs` compares ranges with runs of random graphs.

use super::{Range, Ranges};
use crate::pass::input_ranges::InputRanges;
use crate::pass::statistics::Statistics;
use ampc_ir::infer::infer_module;
use ampc_ir::text::{NoData, parse};
use ampc_ir::verify::name_of;

const INF: f64 = f64::INFINITY;

/// The ranges of the values of a graph by name, with its inputs `%x` and `%y` from −2 to 4.
fn ranges(lines: &str) -> impl Fn(&str) -> Range {
    let head = "module ir=10\nopset ai.onnx=23\n\ngraph {\n  input %x : f32[2, 4]\n  input %y : f32[2, 4]\n";
    let text = format!("{head}  input %u : f32[2, 4]\n  input %ids : u8[3]\n{lines}}}\n");
    let mut module = parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    infer_module(&mut module).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"));
    let inputs: InputRanges = ["x", "y"].map(|name| (name.to_owned(), (-2.0, 4.0))).into_iter().collect();
    let ranges = Ranges::of(&module, &inputs, &mut Statistics::default());
    move |name| {
        let mut values = module.program_graphs().iter().flat_map(|&graph| module.defined(graph));
        let value = values.find(|&value| name_of(&module, value) == name);
        ranges.range(&module, value.unwrap_or_else(|| panic!("no value {name}")))
    }
}

/// The range of the value `%v` of some nodes.
fn range(lines: &str) -> Range {
    ranges(&format!("{lines}\n  output %v\n"))("v")
}

fn about(range: Range, lo: f64, hi: f64) -> bool {
    let near = |a: f64, b: f64| a == b || (a - b).abs() <= 1e-2 * b.abs().max(1.0);
    near(range.lo(), lo) && near(range.hi(), hi)
}

#[track_caller]
fn check(lines: &str, lo: f64, hi: f64, is_finite: bool) {
    let found = range(lines);
    assert!(about(found, lo, hi) && found.is_finite() == is_finite, "{lines}: {found:?}");
}

#[test]
fn functions_and_arithmetic() {
    check("  %v = Add(%x, %y) : ?", -4.0, 8.0, true);
    check("  %v = Sub(%x, %y) : ?", -6.0, 6.0, true);
    check("  %v = Mul(%x, %y) : ?", -8.0, 16.0, true);
    check("  %v = Mul(%x, %x) : ?", 0.0, 16.0, true);
    check("  %v = Div(%x, %y) : ?", -INF, INF, false);
    check("  %v = Relu(%x) : ?", 0.0, 4.0, true);
    check("  %v = Exp(%x) : ?", 0.1353, 54.598, true);
    check("  %v = Sqrt(%x) : ?", 0.0, 2.0, false);
    check("  %v = Neg(%x) : ?", -4.0, 2.0, true);
    check("  const %c : f32 = 3.0\n  %v = Pow(%x, %c) : ?", -8.0, 64.0, true);
    check("  const %c : f32 = 2.0\n  %v = Pow(%x, %c) : ?", 0.0, 16.0, true);
    check("  const %c : f32 = 0.5\n  %v = Pow(%x, %c) : ?", 0.0, 2.0, false);
    // −∞ to the power of 0.5 is ∞, and it is among the results of the logarithm.
    check(
        "  const %c : f32 = 0.5\n  %a = Sqrt(%x) : ?\n  %b = Log(%a) : ?\n  %v = Pow(%b, %c) : ?",
        0.0,
        INF,
        false,
    );
    check("  const %c : f32 = 1.0\n  %v = Min(%x, %c) : ?", -2.0, 1.0, true);
    check("  const %c : f32 = 1e38\n  %v = Mul(%x, %c) : ?", -2e38, INF, false);
    check("  const %c : f32[2] = [1.0, -3.0]\n  %v = Concat(%c, %c) {axis=0} : ?", -3.0, 1.0, true);
    check("  %v = Cast(%ids) {to=1} : ?", 0.0, 255.0, true);
    check("  %v = Cast(%x) {to=6} : ?", -2.0, 4.0, true);
    check("  %v = Greater(%x, %y) : ?", 0.0, 1.0, true);
}

/// Inputs without a range may be anything, but functions with bounds keep them.
#[test]
fn bounds_hold_for_unknown_inputs() {
    check("  %v = Identity(%u) : ?", -INF, INF, false);
    check("  %v = Sigmoid(%u) : ?", 0.0, 1.0, false);
    check("  %v = Softmax(%u) : ?", 0.0, 1.0, false);
    check("  %v = Softmax(%x) : ?", 0.0, 1.0, true);
    check("  %v = Tanh(%u) : ?", -1.0, 1.0, false);
    check("  %v = Relu(%u) : ?", 0.0, INF, false);
    check("  const %c : f32 = 1.0\n  %a = Sigmoid(%u) : ?\n  %v = Sub(%c, %a) : ?", 0.0, 1.0, false);
}

#[test]
fn sums_of_weights_bound_products() {
    let weights = "  const %w : f32[4, 2] = [1.0, 0.5, -2.0, 0.5, 3.0, 0.5, 0.0, 0.5]\n";
    // Columns have weights 1, −2, 3, 0 and four times 0.5.
    check(&format!("{weights}  %v = MatMul(%x, %w) : ?"), -16.0, 20.0, true);
    check(&format!("{weights}  %v = Gemm(%x, %w) {{alpha=2.0}} : ?"), -32.0, 40.0, true);
    // Rows have weights 1 and 0.5, −2 and 0.5, 3 and 0.5, 0 and 0.5.
    check(&format!("{weights}  %v = MatMul(%w, %x) : ?"), -9.0, 14.0, true);
    check("  %a = Transpose(%y) : ?\n  %v = MatMul(%x, %a) : ?", -32.0, 64.0, true);
    check("  %a = Transpose(%y) : ?\n  %p = Softmax(%x) : ?\n  %v = MatMul(%p, %a) : ?", -2.0, 4.0, true);
    let image = "  const %i : f32[1, 1, 2, 4] = [1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, -1.0]\n";
    let kernel = "  const %k : f32[1, 1, 1, 2] = [2.0, -1.0]\n  const %b : f32[1] = [10.0]\n";
    check(&format!("{image}{kernel}  %v = Conv(%i, %k, %b) : ?"), 4.0, 19.0, true);
}

#[test]
fn reductions_and_norms() {
    check("  %v = ReduceMean(%x) : ?", -2.0, 4.0, true);
    check("  %v = ReduceSum(%x) : ?", -16.0, 32.0, true);
    check("  %v = ReduceL2(%x) : ?", 0.0, 128f64.sqrt(), true);
    let norm = "  const %s : f32[4] = [1.0, -2.0, 0.5, 1.0]\n  const %b : f32[4] = [0.0, 0.5, 0.0, 0.0]\n";
    check(&format!("{norm}  %v = LayerNormalization(%x, %s, %b) : ?"), -4.0, 4.5, true);
    check(&format!("{norm}  %v = LayerNormalization(%u, %s, %b) : ?"), -4.0, 4.5, false);
    check(&format!("{norm}  %v = RMSNormalization(%x, %s) : ?"), -4.0, 4.0, true);
}

/// A softmax that is written out.
#[test]
fn a_difference_from_the_maximum_is_not_positive() {
    let found = ranges(
        "  const %axis : i64[1] = [1]\n  %m = ReduceMax(%x, %axis) : ?\n  %d = Sub(%x, %m) : ?
  %e = Exp(%d) : ?\n  %s = ReduceSum(%e, %axis) : ?\n  %v = Div(%e, %s) : ?\n  output %v\n",
    );
    assert!(about(found("d"), -6.0, 0.0) && about(found("e"), 0.0025, 1.0));
    assert!(about(found("v"), 0.0, 1.0) && found("v").is_finite());
    // Without the axis, the maximum of another row is subtracted.
    let square = "  const %axis : i64[1] = [0]\n  %a = Transpose(%x) : ?\n  %q = MatMul(%a, %x) : ?
  %m = ReduceMax(%q, %axis) {keepdims=0} : ?\n  %v = Sub(%q, %m) : ?";
    assert!(range(square).hi() > 1.0);
}

/// A counter that is bounded in the body, and a state that grows.
#[test]
fn loops_reach_a_fixed_point() {
    let found = ranges(
        "  const %n : i64 = 5\n  const %one : f32 = 1.0\n  const %ten : f32 = 10.0
  %last, %grown = Loop(%n, _, %one, %one; %one, %ten) {
    body: graph (%one, %ten) {
      input %i : i64\n      input %c : bool\n      input %s : f32\n      input %g : f32
      %a = Add(%s, %one) : f32\n      %b = Min(%a, %ten) : f32\n      %d = Add(%g, %one) : f32
      output %c\n      output %b\n      output %d
    }
  } : f32, f32\n  output %last\n  output %grown\n",
    );
    assert_eq!(found("last"), Range::between(1.0, 10.0));
    // The largest number of f32 plus 1 is itself.
    assert_eq!(found("grown"), Range::between(1.0, f32::MAX.into()));
    assert_eq!(found("c"), Range::between(0.0, 1.0));
}
