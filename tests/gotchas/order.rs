//! Order, determinism, declared types, and doing nothing: G3, G4, G5, G38.

use crate::proto::{bytes, declared, load, load_proto, nodes_of, typed, written};
use crate::random::{Made, Names, config, make, models, reads, shuffled};
use crate::support::{Ask, options, pin_f32, policy, rewrite, text};
use ampc::ir::DType;
use ampc::ir::op::Class;
use ampc::onnx::Warning;
use ampc::onnx::proto::{GraphProto, ModelProto};
use ampc::passes::policy::ListedBy;
use ampc::{RewriteOptions, Rewritten};
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;
use std::collections::BTreeSet;

fn format(bf16: bool) -> DType {
    if bf16 { DType::BF16 } else { DType::F16 }
}

/// A node and its type variables.
type Node = (String, Vec<String>);

/// The decision for every node, by name, and the number of inserted casts by types.
fn decisions(done: &Rewritten) -> (Vec<Node>, Vec<(DType, DType)>) {
    let mut nodes: Vec<Node> = done
        .report
        .nodes
        .iter()
        .map(|n| (n.path.clone(), n.vars.iter().map(|v| format!("{}={}", v.var, v.precision)).collect()))
        .collect();
    nodes.sort();
    let mut casts: Vec<(DType, DType)> =
        done.inserted().into_iter().map(|(_, from, to)| (from, to)).collect();
    casts.sort_unstable();
    (nodes, casts)
}

/// Every graph defines what its nodes read before they read it.
fn assert_sorted(graph: &GraphProto, outer: &BTreeSet<String>) {
    let mut known = outer.clone();
    known.extend(graph.input.iter().map(|i| i.name().to_owned()));
    known.extend(graph.initializer.iter().map(|t| t.name().to_owned()));
    for node in &graph.node {
        for body in node.attribute.iter().filter_map(|a| a.g.as_deref()) {
            assert_sorted(body, &known);
        }
        for name in node.input.iter().filter(|n| !n.is_empty()) {
            assert!(known.contains(name), "`{name}` is read by {} before it is defined", node.op_type());
        }
        known.extend(node.output.iter().cloned());
    }
    for output in &graph.output {
        assert!(known.contains(output.name()), "output `{}` is defined nowhere", output.name());
    }
}

proptest! {
    #![proptest_config(config())]

    /// G3: rewriting what was rewritten changes no byte.
    #[test]
    fn g03_rewriting_twice_is_rewriting_once(Made(source) in models(Names::Hostile), bf16 in any::<bool>()) {
        let options = options(format(bf16));
        let once = bytes(&rewrite(load_proto(&source), &options).model);
        let twice = rewrite(load(once.clone()), &options);
        let again = bytes(&twice.model);
        let shown = |bytes: &Vec<u8>| text(&load(bytes.clone()).module);
        prop_assert!(again == once, "{}\nand then\n{}", shown(&once), shown(&again));
        prop_assert_eq!(twice.report.casts.inserted, 0);
    }

    /// G3: the order of nodes decides names and order, but no decision and no number of casts.
    #[test]
    fn g03_any_order_of_nodes_gives_the_same_decisions(
        Made(source) in models(Names::Unique),
        numbers in vec(any::<u32>(), 24),
        bf16 in any::<bool>(),
    ) {
        let options = options(format(bf16));
        let there = rewrite(load_proto(&source), &options);
        let here = rewrite(load_proto(&shuffled(&source, &numbers)), &options);
        prop_assert_eq!(decisions(&here), decisions(&there));
    }

    /// G4: what is written is sorted, in bodies too, and no inserted cast is without a reader.
    #[test]
    fn g04_topological_and_without_dangling_casts(Made(source) in models(Names::Hostile), bf16 in any::<bool>()) {
        let out = written(&rewrite(load_proto(&source), &options(format(bf16))));
        let graph = out.graph.as_ref().unwrap();
        assert_sorted(graph, &BTreeSet::new());
        let mut read: BTreeSet<String> = graph.node.iter().flat_map(reads).collect();
        read.extend(graph.output.iter().map(|o| o.name().to_owned()));
        for cast in nodes_of(&out, "Cast").iter().filter(|n| !n.metadata_props.is_empty()) {
            prop_assert!(read.contains(&cast.output[0]), "nobody reads `{}`", cast.output[0]);
        }
    }

    /// G38: with every node blocked, the file comes back byte for byte.
    #[test]
    fn g38_blocking_every_node_changes_nothing(Made(source) in models(Names::Hostile), bf16 in any::<bool>()) {
        let source = source.encode_to_vec();
        for block in [|o: &mut RewriteOptions| pin_f32(o, "*"), deny_every_operator] {
            let mut options = options(format(bf16));
            block(&mut options);
            let done = rewrite(load(source.clone()), &options);
            prop_assert_eq!(done.report.casts.inserted, 0);
            prop_assert_eq!(bytes(&done.model), source.clone());
        }
    }
}

fn deny_every_operator(options: &mut RewriteOptions) {
    let names: BTreeSet<&str> =
        ampc::ir::op::all().iter().filter(|s| s.domain.is_empty()).map(|s| s.name).collect();
    for name in names {
        policy(options).set_class(name, Class::Deny, ListedBy::Options).unwrap();
    }
}

/// G38: the same for the models beside these tests, through the messages they are written as.
#[test]
fn g38_stored_models_come_back_byte_for_byte() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let mut n = 0;
    for file in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
        let source = match file.extension().and_then(|e| e.to_str()) {
            Some("onnx") => std::fs::read(&file).unwrap(),
            Some("ir") => bytes(&ampc::load(&file).unwrap()),
            _ => continue,
        };
        let mut options = options(DType::F16);
        pin_f32(&mut options, "*");
        let done = rewrite(load(source.clone()), &options);
        assert_eq!(done.n_casts() as u64, done.report.casts.kept, "{}", file.display());
        assert_eq!(bytes(&done.model), source, "{}", file.display());
        n += 1;
    }
    assert!(n > 0, "no models to test with");
}

/// A stream of choices that makes a model of some size.
fn numbers(seed: u32) -> Vec<u32> {
    (0..160u32).map(|i| (i + 1).wrapping_mul(seed.wrapping_mul(2_654_435_761) | 1) >> 7).collect()
}

/// G3: the same bytes for the same bytes, on any thread.
#[test]
fn g03_threads_make_no_difference() {
    let source = make(&numbers(7), Names::Hostile).encode_to_vec();
    let one = || bytes(&rewrite(load(source.clone()), &options(DType::F16)).model);
    let expected = one();
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
        for run in runs {
            assert_eq!(run.join().unwrap(), expected);
        }
    });
}

/// G4: nodes in the wrong order are read, and written in the right one.
#[test]
fn g04_an_unsorted_source_is_written_sorted() {
    let sorted = make(&numbers(3), Names::Unique);
    let mut source = sorted.clone();
    source.graph.as_mut().unwrap().node.reverse();
    let there = rewrite(load_proto(&sorted), &options(DType::F16));
    let here = rewrite(load_proto(&source), &options(DType::F16));
    assert!(here.report.warnings.iter().any(|w| w.code.contains("unsorted") || w.message.contains("order")));
    assert_eq!(decisions(&here), decisions(&there));
    assert_sorted(written(&here).graph.as_ref().unwrap(), &BTreeSet::new());
}

/// G4: onnx.checker with full check and ONNX Runtime accept what becomes of random models.
#[test]
fn g04_random_models_are_accepted_by_the_judges() {
    let folder = tempfile::tempdir().unwrap();
    let mut paths = Vec::new();
    let mut feeds: Vec<crate::runtime::Feed> = vec![crate::runtime::bools("cond", &[], &[true])];
    for seed in 1..=12 {
        let source = make(&numbers(seed), Names::Awkward);
        let inputs = source.graph.as_ref().unwrap().input.iter().skip(1);
        feeds.extend(
            inputs.map(|i| crate::runtime::f32s(i.name(), &[4, 4], &crate::runtime::uniform(1, 16, 1.0))),
        );
        let done = rewrite(load_proto(&source), &options(DType::F16));
        paths.push(folder.path().join(format!("{seed}.onnx")));
        ampc::save(&done.model, paths.last().unwrap(), &ampc::SaveOptions::default()).unwrap();
    }
    if let Some(runs) = crate::runtime::run(folder.path(), &feeds, &paths) {
        assert_eq!(runs.len(), paths.len());
    }
}

fn infos(model: &ModelProto) -> &[ampc::onnx::proto::ValueInfoProto] {
    &model.graph.as_ref().unwrap().value_info
}

/// G5: declared types decide nothing; true ones follow what changed, false ones are dropped with a warning.
#[test]
fn g05_value_info_may_be_missing_or_wrong() {
    let bare = with_infos(&[]);
    let right: Vec<(&str, DType, &[i64])> =
        vec![("t", DType::F32, &[2, 4]), ("e", DType::F32, &[2, 4]), ("s", DType::F32, &[2, 4])];
    let wrong: Vec<(&str, DType, &[i64])> = vec![
        ("t", DType::F32, &[7, 4]),
        ("e", DType::I64, &[2, 4]),
        ("s", DType::F32, &[2, 4, 1]),
        ("nobody", DType::F32, &[2]),
    ];
    let nodes_and_constants = |done: &Rewritten| {
        let graph = written(done).graph.unwrap();
        (graph.node, graph.initializer, graph.input, graph.output)
    };
    let plain = rewrite(load_proto(&bare), &options(DType::F16));
    assert!(infos(&written(&plain)).is_empty());

    let told = rewrite(load_proto(&with_infos(&right)), &options(DType::F16));
    assert_eq!(nodes_and_constants(&told), nodes_and_constants(&plain));
    let now: Vec<_> = infos(&written(&told)).iter().map(|i| (i.name().to_owned(), declared(i))).collect();
    assert_eq!(now, [("t".into(), DType::F16), ("e".into(), DType::F32), ("s".into(), DType::F32)]);
    let shape = |m: &ModelProto| infos(m).iter().map(|i| i.r#type.clone()).collect::<Vec<_>>();
    let t = typed("t", DType::F16, &[2, 4]).r#type;
    assert_eq!(shape(&written(&told))[0], t, "the shape stays");

    let lied = rewrite(load_proto(&with_infos(&wrong)), &options(DType::F16));
    assert_eq!(nodes_and_constants(&lied), nodes_and_constants(&plain));
    let (out, report) = ampc::onnx::to_bytes(&lied.model.module, lied.model.source.as_ref()).unwrap();
    let out = ModelProto::decode(&*out).unwrap();
    let now: Vec<_> = infos(&out).iter().map(|i| (i.name(), declared(i))).collect();
    assert_eq!(now, [("e", DType::F32)], "a wrong element type is corrected, a wrong shape dropped");
    let dropped: Vec<&str> = report
        .warnings
        .iter()
        .filter_map(
            |w| if let Warning::FalseValueInfo { value, .. } = w { Some(value.as_str()) } else { None },
        )
        .collect();
    assert_eq!(dropped, ["t", "s"]);
}

fn with_infos(infos: &[(&str, DType, &[i64])]) -> ModelProto {
    use crate::proto::{model, node, raw};
    let graph = GraphProto {
        name: Some("g".into()),
        node: vec![
            node("MatMul", &["x", "w"], &["t"]),
            node("Exp", &["t"], &["e"]),
            node("Softmax", &["e"], &["s"]),
            node("MatMul", &["s", "v"], &["y"]),
        ],
        initializer: vec![raw("w", &[3, 4], &[0.5; 12]), raw("v", &[4, 2], &[0.25; 8])],
        input: vec![typed("x", DType::F32, &[2, 3])],
        output: vec![typed("y", DType::F32, &[2, 2])],
        value_info: infos.iter().map(|(name, dtype, dims)| typed(name, *dtype, dims)).collect(),
        ..GraphProto::default()
    };
    model(8, 17, graph)
}
