//! Gradients where operands are equal, and at the ends of bounds: those of PyTorch 2.15, on which the numbers were computed.

use super::{number, options, step_of, tensor};
use ampc::runtime::HostTensor;
use std::collections::BTreeMap;

/// The gradients of the sum of what a graph makes, by name of the parameter.
fn gradients(body: &str) -> BTreeMap<String, Vec<f64>> {
    let text = format!(
        "opset ai.onnx=22\n\ngraph @main {{\n  input %u : f32[1]\n{body}\n  %v = Mul(%y, %u) : ?\n  \
         %loss = ReduceSum(%v) {{keepdims=0}} : ?\n  output %loss\n}}\n"
    );
    let mut options = options("output:loss", "none", "none", false);
    options.train = vec!["p*".into()];
    let mut training = super::Training::of(step_of(&text, &options));
    let found = training.step(&[("u", tensor(&[1], &[1.0]))]);
    assert!(number(&found["loss"]).is_finite());
    let list = |tensor: &HostTensor| tensor.f64s().unwrap().collect();
    let of =
        |(name, tensor): (&String, &HostTensor)| Some((name.strip_suffix(".grad")?.to_owned(), list(tensor)));
    found.iter().filter_map(of).collect()
}

fn check(body: &str, expected: &[(&str, &[f64])]) {
    let found = gradients(body);
    for (name, expected) in expected {
        assert_eq!(found.get(*name).map(Vec::as_slice), Some(*expected), "{name} of {body}: {found:?}");
    }
}

/// `torch.clamp` with tensors as bounds: at a bound, half goes to it.
#[test]
fn trained_bounds_of_clip_share_at_equality() {
    check(
        "  const %p : f32[3] = [-2.0, -1.0, 0.0]\n  const %plo : f32 = -1.0\n  %y = Clip(%p, %plo) : ?",
        &[("p", &[0.0, 0.5, 1.0]), ("plo", &[1.5])],
    );
    let both = |lo: &str, hi: &str| {
        format!(
            "  const %p : f32[5] = [-2.0, -1.0, 0.0, 1.0, 2.0]\n  const %plo : f32 = {lo}\n  \
             const %phi : f32 = {hi}\n  %y = Clip(%p, %plo, %phi) : ?"
        )
    };
    check(&both("-1.0", "1.0"), &[("p", &[0.0, 0.5, 1.0, 0.5, 0.0]), ("plo", &[1.5]), ("phi", &[1.5])]);
    check(&both("1.0", "1.0"), &[("p", &[0.0, 0.0, 0.0, 1.0, 0.0]), ("plo", &[3.0]), ("phi", &[1.0])]);
    check(&both("1.0", "-1.0"), &[("p", &[0.0; 5]), ("plo", &[0.0]), ("phi", &[5.0])]);
}

/// `torch.clamp` with numbers, `hardtanh` and `relu6`: nothing at a bound.
#[test]
fn bounds_that_are_numbers_leave_nothing_at_equality() {
    check(
        "  const %p : f32[5] = [-2.0, -1.0, 0.0, 1.0, 2.0]\n  const %lo : f32 = -1.0\n  const %hi : f32 = 1.0\n  \
         %y = Clip(%p, %lo, %hi) : ?",
        &[("p", &[0.0, 0.0, 1.0, 0.0, 0.0])],
    );
}

/// `torch.maximum`, `amax`, and pools, of which the first maximum gets everything.
#[test]
fn equal_maxima_share_or_the_first_has_all() {
    check(
        "  const %p : f32[2] = [1.0, 2.0]\n  const %q : f32[2] = [1.0, 1.0]\n  %y = Max(%p, %q) : ?",
        &[("p", &[0.5, 1.0])],
    );
    check("  const %p : f32[3] = [1.0, 1.0, 0.0]\n  %y = ReduceMax(%p) : ?", &[("p", &[0.5, 0.5, 0.0])]);
    for pool in ["GlobalMaxPool(%p)", "MaxPool(%p) {kernel_shape=[2, 2]}"] {
        check(
            &format!("  const %p : f32[1, 1, 2, 2] = [1.0, 1.0, 1.0, 0.0]\n  %y = {pool} : ?"),
            &[("p", &[1.0, 0.0, 0.0, 0.0])],
        );
    }
}

/// Points where a function of one element has no derivative.
#[test]
fn kinks_have_the_slope_of_one_side() {
    for (op, at, slope) in [
        ("Relu(%p)", "0.0", 0.0),
        ("Abs(%p)", "0.0", 0.0),
        ("LeakyRelu(%p) {alpha=0.25}", "0.0", 0.25),
        ("Elu(%p) {alpha=2.0}", "0.0", 2.0),
        ("Celu(%p) {alpha=2.0}", "0.0", 1.0),
        ("HardSigmoid(%p) {alpha=0.5, beta=0.5}", "1.0", 0.0),
        ("HardSwish(%p)", "-3.0", 0.0),
        ("HardSwish(%p)", "3.0", 1.0),
        ("ThresholdedRelu(%p) {alpha=1.0}", "1.0", 0.0),
        ("Softsign(%p)", "0.0", 1.0),
        ("ReduceL2(%p)", "0.0", 0.0),
    ] {
        check(&format!("  const %p : f32[1] = [{at}]\n  %y = {op} : ?"), &[("p", &[slope])]);
    }
    check(
        "  const %p : f32[2] = [0.0, -1.0]\n  const %pw : f32[1] = [0.25]\n  %y = PRelu(%p, %pw) : ?",
        &[("p", &[0.25, 0.25]), ("pw", &[-1.0])],
    );
}

/// `scatter_reduce` with `amax` and `prod`: equal elements share, and a product without a factor that is 0.
#[test]
fn equal_elements_of_a_scatter_share() {
    let scatter = |reduction: &str| {
        format!(
            "  const %p : f32[4] = [3.0, 2.0, 0.0, 5.0]\n  const %pu : f32[5] = [3.0, 3.0, 1.0, 0.0, 0.0]\n  \
             const %i : i64[5] = [0, 0, 1, 2, 2]\n  %y = ScatterElements(%p, %i, %pu) {{reduction=\"{reduction}\"}} : ?"
        )
    };
    let third = f64::from(1.0f32 / 3.0);
    check(&scatter("max"), &[("p", &[third, 1.0, third, 1.0]), ("pu", &[third, third, 0.0, third, third])]);
    check(&scatter("min"), &[("p", &[third, 0.0, third, 1.0]), ("pu", &[third, third, 1.0, third, third])]);
    check(&scatter("mul"), &[("p", &[9.0, 1.0, 0.0, 1.0]), ("pu", &[9.0, 9.0, 2.0, 0.0, 0.0])]);
}
