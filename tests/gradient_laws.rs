//! Laws of all gradients: every operator with a gradient has a case, and gradients of random graphs agree with
//! finite differences. `AMPC_GRADIENT_GRAPHS=1000` looks at so many graphs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "low precision is a matter of cases")]
#[path = "common/finite_differences.rs"]
mod finite_differences;
#[path = "common/random_gradients.rs"]
mod random_gradients;

use ampc_ir::op::OpKind;
use ampc_ir::text::{NoData, parse};
use ampc_passes::autodiff::has_gradient;
use finite_differences::{Differentiated, Unreached};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestCaseError, TestRunner};
use std::collections::BTreeSet;

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
