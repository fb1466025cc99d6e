//! Names and provenance: G1, G2, G10.

use crate::proto::{
    bytes, cast, entry, graphs, load, load_proto, named, node, nodes_of, raw, typed, written,
};
use crate::random::{Made, Names, config, models};
use crate::support::{Ask, lower_with, options, pin_f32, policy, rewrite};
use ampc::RewriteOptions;
use ampc::ir::DType;
use ampc::ir::op::Class;
use ampc::onnx::proto::{FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto};
use ampc::passes::policy::ListedBy;
use proptest::prelude::*;
use prost::Message;
use std::collections::BTreeSet;

/// G1: one cast per value and type, however many readers and slots want it.
#[test]
fn g01_six_blocked_readers_and_one_that_reads_twice_share_one_cast() {
    let readers: String =
        (0..6).map(|i| format!("%e{i} = Exp(%t) : ?\noutput %e{i} : f32[2, 2]\n")).collect();
    let graph = format!(
        "input %x : f32[2, 2]
         const %w : f32[2, 2] = [0.5, 1.0, -1.0, 0.25]
         %t = MatMul(%x, %w) : ?
         %twice = Mul(%t, %t) : ?
         output %twice : f32[2, 2]
         {readers}"
    );
    let done = lower_with(&graph, |o| pin_f32(o, "twice"));
    let casts = done.inserted();
    assert_eq!(
        casts,
        [("x".into(), DType::F32, DType::F16), ("t".into(), DType::F16, DType::F32)],
        "one down for MatMul, one up for seven readers"
    );
    let names: Vec<String> =
        done.values().iter().map(|&v| ampc::ir::verify::name_of(done.module(), v)).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
}

/// Names of values by graph: a body sees the names around it.
fn check_scopes(graph: &GraphProto, outer: &BTreeSet<&str>) {
    let mut seen = outer.clone();
    let mut define = |name| assert!(seen.insert(name), "`{name}` is defined twice, or hides another one");
    graph.input.iter().for_each(|i| define(i.name()));
    graph.initializer.iter().for_each(|t| define(t.name()));
    for node in &graph.node {
        node.output.iter().filter(|o| !o.is_empty()).for_each(|o| define(o));
    }
    for body in graph.node.iter().flat_map(|n| &n.attribute).filter_map(|a| a.g.as_deref()) {
        check_scopes(body, &seen);
    }
}

fn names(model: &ModelProto) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for graph in graphs(model.graph.as_ref().unwrap()) {
        names.extend(graph.input.iter().map(|i| i.name().to_owned()));
        names.extend(graph.initializer.iter().map(|t| t.name().to_owned()));
        names.extend(graph.node.iter().flat_map(|n| n.output.clone()));
        names.extend(graph.node.iter().map(|n| n.name().to_owned()));
    }
    names
}

proptest! {
    #![proptest_config(config())]

    /// G2: new names avoid all names of all scopes, of nodes and of values, also those that look like ours.
    #[test]
    fn g02_hostile_names_stay_single_assignment(Made(source) in models(Names::Hostile), bf16 in any::<bool>()) {
        let to = if bf16 { DType::BF16 } else { DType::F16 };
        let done = rewrite(load_proto(&source), &options(to));
        let out = written(&done);
        check_scopes(out.graph.as_ref().unwrap(), &BTreeSet::new());
        let before = names(&source);
        let main = out.graph.as_ref().unwrap();
        for cast in main.node.iter().filter(|n| n.metadata_props.contains(&entry("ampc.cast", "inserted"))) {
            prop_assert!(!before.contains(cast.name()), "node {}", cast.name());
        }
        load(out.encode_to_vec());
    }
}

/// G2: nodes without a name are called by their first result, two of one name are told apart.
#[test]
fn g02_nodes_without_or_with_the_same_name_can_be_pinned() {
    let graph = GraphProto {
        name: Some("g".into()),
        node: vec![
            named("fc", node("MatMul", &["x", "w"], &["a_cast_fp16"])),
            named("fc", node("MatMul", &["a_cast_fp16", "w"], &["b"])),
            node("MatMul", &["b", "w"], &["y"]),
        ],
        initializer: vec![raw("w", &[2, 2], &[0.5; 4])],
        input: vec![typed("x", DType::F32, &[2, 2])],
        output: vec![typed("y", DType::F32, &[2, 2])],
        ..GraphProto::default()
    };
    let source = crate::proto::model(8, 17, graph);
    for (pin, expected) in [
        ("fc", ["fp32", "fp16", "fp16"]),
        ("fc~2", ["fp16", "fp32", "fp16"]),
        ("y", ["fp16", "fp16", "fp32"]),
    ] {
        let mut options = options(DType::F16);
        pin_f32(&mut options, pin);
        let done = rewrite(load_proto(&source), &options);
        let now: Vec<_> = done.report.nodes.iter().map(|n| n.precision.clone().unwrap()).collect();
        assert_eq!(now, expected, "{pin}");
    }
}

/// MatMul, Softmax, MatMul, and a pair of casts by the author with the names that ours would have.
fn with_user_casts(ir_version: i64) -> ModelProto {
    let graph = GraphProto {
        name: Some("g".into()),
        node: vec![
            named("x.f16.cast", cast("x", DType::F16, "x.f16")),
            named("x.f16.f32.cast", cast("x.f16", DType::F32, "rounded")),
            named("scores", node("MatMul", &["rounded", "w"], &["t"])),
            named("softmax", node("Softmax", &["t"], &["p"])),
            named("head", node("MatMul", &["p", "w"], &["y"])),
        ],
        initializer: vec![raw("w", &[2, 2], &[0.5, 1.0, -1.0, 0.25])],
        input: vec![typed("x", DType::F32, &[2, 2])],
        output: vec![typed("y", DType::F32, &[2, 2])],
        ..GraphProto::default()
    };
    crate::proto::model(ir_version, 17, graph)
}

/// Options that leave all casts of the author where they are.
fn casts_denied() -> RewriteOptions {
    let mut options = options(DType::F16);
    policy(&mut options).set_class("Cast", Class::Deny, ListedBy::Options).unwrap();
    options
}

/// G10: which casts are ours is written in the metadata of the nodes, or below IR version 10 in the model's.
#[test]
fn g10_provenance_is_in_the_file() {
    for ir_version in [8, 9, 10, 11] {
        let out = written(&rewrite(load_proto(&with_user_casts(ir_version)), &casts_denied()));
        let ours = |n: &&&ampc::onnx::proto::NodeProto| n.metadata_props == [entry("ampc.cast", "inserted")];
        let casts = nodes_of(&out, "Cast");
        let marked = casts.iter().filter(ours).count();
        let listed = out.metadata_props.iter().find(|e| e.key() == "ampc.provenance");
        let users = casts.iter().filter(|n| n.name().starts_with("x.f16")).count();
        assert_eq!(users, 2);
        if ir_version >= 10 {
            assert_eq!((marked, listed), (casts.len() - users, None));
        } else {
            let names: BTreeSet<&str> = listed.unwrap().value().lines().collect();
            let results = casts.iter().map(|n| n.output[0].as_str());
            let expected: BTreeSet<&str> = results.filter(|o| *o != "x.f16" && *o != "rounded").collect();
            assert_eq!((marked, names), (0, expected));
        }
    }
}

fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: Some(domain.into()), version: Some(version) }
}

/// G10: a cast of ours in the main graph says nothing of the author's in a function, which has names of its own.
#[test]
fn g10_provenance_of_functions_is_their_own() {
    let rounding = FunctionProto {
        name: Some("Round".into()),
        domain: Some("local".into()),
        input: vec!["x".into()],
        output: vec!["y".into()],
        node: vec![cast("x", DType::F16, "h"), cast("h", DType::F32, "y")],
        opset_import: vec![opset("", 17)],
        ..FunctionProto::default()
    };
    let graph = GraphProto {
        name: Some("g".into()),
        node: vec![
            NodeProto { domain: Some("local".into()), ..node("Round", &["x"], &["rounded"]) },
            node("MatMul", &["rounded", "w"], &["y"]),
        ],
        initializer: vec![raw("w", &[2, 2], &[0.5, 1.0, -1.0, 0.25])],
        input: vec![typed("x", DType::F32, &[2, 2])],
        output: vec![typed("y", DType::F32, &[2, 2])],
        ..GraphProto::default()
    };
    for ir_version in [8, 10] {
        let mut source = crate::proto::model(ir_version, 17, graph.clone());
        source.opset_import.push(opset("local", 1));
        source.functions.push(rounding.clone());
        let first = rewrite(load_proto(&source), &casts_denied());
        let first = bytes(&first.model);
        let second = rewrite(load(first.clone()), &casts_denied());
        let out = written(&second);
        assert_eq!(out.graph.as_ref().unwrap().node.last().unwrap().op_type(), "Cast");
        assert_eq!(out.functions[0].node[..2], rounding.node[..], "IR version {ir_version}");
        assert!(bytes(&second.model) == first, "IR version {ir_version}");
    }
}

/// G10: another rewrite with another policy takes back casts of ours and none of the author's.
#[test]
fn g10_only_inserted_casts_are_reconsidered() {
    for ir_version in [8, 10] {
        let first = written(&rewrite(load_proto(&with_user_casts(ir_version)), &casts_denied()));
        let count = |m: &ModelProto| nodes_of(m, "Cast").len();
        let mut perf = casts_denied();
        policy(&mut perf).set_class("Softmax", Class::Allow, ListedBy::Options).unwrap();
        let second = written(&rewrite(load_proto(&first), &perf));
        assert_eq!(count(&second), count(&first) - 2, "the two around Softmax are gone");
        for name in ["x.f16.cast", "x.f16.f32.cast"] {
            assert!(nodes_of(&second, "Cast").iter().any(|n| n.name() == name), "{name} is the author's");
        }
        // And back: the same casts as at first.
        let third = written(&rewrite(load_proto(&first), &casts_denied()));
        assert_eq!(third.encode_to_vec(), first.encode_to_vec());
    }
}
