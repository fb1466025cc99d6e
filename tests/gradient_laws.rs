//! Laws of all gradients: every operator with a gradient has a case, and gradients of random graphs agree with
//! finite differences. `AMPC_GRADIENT_GRAPHS=1000` looks at so many graphs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/duals.rs"]
mod duals;
#[allow(dead_code, reason = "low precision is a matter of cases")]
#[path = "common/finite_differences.rs"]
mod finite_differences;
#[path = "common/random_gradients.rs"]
mod random_gradients;

use ampc_ir::op::OpKind;
use ampc_ir::text::{NoData, parse};
use ampc_ir::views::NodeView;
use ampc_ir::views::expression::Expression;
use ampc_passes::autodiff::has_gradient;
use finite_differences::{Differentiated, Exact, Unreached};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestCaseError, TestRunner};
use std::collections::BTreeSet;
use std::fmt::Write as _;

#[test]
fn every_operator_with_a_gradient_has_a_case() {
    let mut met = BTreeSet::new();
    for entry in std::fs::read_dir("tests/cases/gradient").unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let module = parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
        let kinds = module.nodes(module.main()).filter_map(|node| module.node(node).schema());
        met.extend(kinds.map(|schema| schema.kind.name()));
    }
    let with_gradient = OpKind::ALL.iter().filter(|&&kind| has_gradient(kind)).map(|kind| kind.name());
    let without_case: Vec<&str> = with_gradient.filter(|name| !met.contains(name)).collect();
    assert!(without_case.is_empty(), "no case in tests/cases/gradient: {without_case:?}");
}

#[test]
fn gradients_of_random_graphs_agree_with_differences() {
    #[expect(clippy::disallowed_methods, reason = "the gate looks at fewer graphs than a release")]
    let cases = std::env::var("AMPC_GRADIENT_GRAPHS").map_or(100, |n| n.parse().unwrap());
    let config = ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let steps = prop::collection::vec((any::<u8>(), any::<u16>(), any::<u16>()), 1..10);
    let law = |steps: Vec<random_gradients::Step>| {
        let text = random_gradients::graph(&steps);
        let made = Differentiated::new(&text, Unreached::Freeze);
        let compared = made.and_then(|mut made| made.compare());
        compared.map_err(|error| TestCaseError::fail(format!("{error}\n\n{text}")))
    };
    TestRunner::new(config).run(&steps, law).unwrap_or_else(|error| panic!("{error}"));
}

/// Numbers on both sides of 0 and of the bounds that operators have, none of them a kink.
const POINTS: [f64; 10] = [-2.5, -1.75, -0.875, -0.625, -0.25, 0.1875, 0.375, 0.75, 1.25, 2.25];

/// A node of an operator at [`POINTS`], its operands being these numbers in different orders.
fn node_at_points(kind: OpKind, n: usize, attributes: &str) -> (String, Vec<Vec<f64>>) {
    let operands: Vec<Vec<f64>> = (0..n)
        .map(|i| (0..POINTS.len()).map(|j| POINTS[(j * (2 * i + 1) + 3 * i) % POINTS.len()]).collect())
        .collect();
    let mut text = "opset ai.onnx=28\n\ngraph @main {\n".to_owned();
    for (i, points) in operands.iter().enumerate() {
        writeln!(text, "  const %x{i} : f64[{}] = {points:?}", points.len()).unwrap();
    }
    let names: Vec<String> = (0..n).map(|i| format!("%x{i}")).collect();
    writeln!(text, "  %y = {}({}){attributes} : ?\n  output %y\n}}", kind.name(), names.join(", ")).unwrap();
    (text, operands)
}

/// The expression of the only node of a graph.
fn expression_of(text: &str) -> Option<Expression> {
    let mut module = parse(text, &NoData).ok()?;
    ampc_ir::infer::infer_module(&mut module).ok()?;
    let node = module.nodes(module.main()).next()?;
    Expression::read(&NodeView::new(&module, node)?)
}

/// The gradient of an element-wise operator is the derivative of its [`Expression`], by which backends compute it. Both are computed in f64, in different
/// forms: 10⁻⁹ of the larger one is room for what cancels in either.
#[test]
fn gradients_are_derivatives_of_expressions() {
    let attributes = [
        "",
        " {alpha=0.75}",
        " {alpha=0.5, beta=0.25}",
        " {approximate=\"tanh\"}",
        " {bias=0.25, lambd=0.5}",
    ];
    let mut met = BTreeSet::new();
    let mut wrong = Vec::new();
    for &kind in OpKind::ALL.iter().filter(|&&kind| has_gradient(kind)) {
        for (n, attributes) in (1..=3).flat_map(|n| attributes.map(|attributes| (n, attributes))) {
            let (text, operands) = node_at_points(kind, n, attributes);
            let Some(expression) = expression_of(&text) else { continue };
            // An operator that is computed in f32 alone has no gradient in f64.
            let Ok(mut made) = Differentiated::new(&text, Unreached::Freeze) else { continue };
            let Exact { gradients, weights } = made.exact().unwrap();
            for (j, weight) in weights.iter().enumerate() {
                let at: Vec<f64> = operands.iter().map(|points| points[j]).collect();
                let dual = duals::evaluate(&expression, &at);
                // Outside of the domain; or equal operands, where Max and Min have a kink.
                let has_kink = at.iter().enumerate().any(|(i, x)| at[..i].contains(x));
                if !dual.value.is_finite() || has_kink {
                    continue;
                }
                for (name, gradient) in &gradients {
                    let operand: usize = name.trim_start_matches('x').parse().unwrap();
                    let (want, found) = (weight * dual.derivatives[operand], gradient[j]);
                    if (want - found).abs() > 1e-9 * want.abs().max(1.0) {
                        wrong.push(format!(
                            "{}{attributes} at {at:?}, %{name}: {found} instead of {want}",
                            kind.name()
                        ));
                    }
                }
            }
            met.insert(kind.name());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    insta::assert_snapshot!(met.into_iter().collect::<Vec<_>>().join(" "), @"Abs Acos Acosh Add Asin Asinh Atan Atanh CastLike Celu Clip Cos Cosh Div Elu Erf Exp Gelu HardSigmoid HardSwish LeakyRelu Log Max Mean Min Mish Mul Neg PRelu Reciprocal Relu Selu Shrink Sigmoid Sin Sinh Softplus Softsign Sqrt Sub Sum SwiGLU Swish Tan Tanh ThresholdedRelu");
}
