//! What holds for all gradients: every operator that has one has a case.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ampc_ir::op::OpKind;
use ampc_ir::text::{NoData, parse};
use ampc_passes::autodiff::has_gradient;
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
