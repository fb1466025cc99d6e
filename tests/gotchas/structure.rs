//! Bodies, containers and the boundary of the graph: G31, G33, G34, G35.

use crate::proto::{
    bytes, declared, graph_attr, load_proto, model as proto_model, named, node, nodes_of, raw, some, typed,
    with_attr, written,
};
use crate::runtime::{Runs, bools, exec, exec_models, f32s, i64s};
use crate::support::{Ask, Decided, lower, lower_with, model, module_with, options, pin_f32, rewrite, text};
use ampc::ir::{DType, Type};
use ampc::onnx::proto::{GraphProto, ModelProto, NodeProto, ValueInfoProto};
use ampc::passes::insert_casts::KeepIo;
use ampc::{RewriteOptions, Rewritten};
use prost::Message;

fn body(nodes: Vec<NodeProto>, output: &str) -> GraphProto {
    GraphProto {
        name: some("body"),
        node: nodes,
        output: vec![typed(output, DType::F32, &[2, 2])],
        ..GraphProto::default()
    }
}

fn conditional(condition: &str, then: GraphProto, otherwise: GraphProto, output: &str) -> NodeProto {
    let new = named("if", node("If", &[condition], &[output]));
    with_attr(with_attr(new, graph_attr("then_branch", then)), graph_attr("else_branch", otherwise))
}

/// `t` is lowered outside and read two bodies deep, where a value has the name that its widened twin would get; both
/// branches have a value `inner`.
fn nested() -> ModelProto {
    let deep =
        body(vec![node("Add", &["t", "k"], &["t.f32"]), node("Neg", &["t.f32"], &["deepest"])], "deepest");
    let other = body(vec![node("Sigmoid", &["t"], &["inner"])], "inner");
    let then = body(vec![conditional("c2", deep, other, "inner_if")], "inner_if");
    let otherwise = body(vec![node("Sigmoid", &["t"], &["inner"])], "inner");
    let graph = GraphProto {
        name: some("g"),
        node: vec![
            node("MatMul", &["x", "w"], &["t"]),
            conditional("c1", then, otherwise, "chosen"),
            node("MatMul", &["t", "w"], &["y"]),
        ],
        initializer: vec![raw("w", &[2, 2], &[0.5, 1.0, -1.0, 0.25]), raw("k", &[2], &[0.5, -0.5])],
        input: vec![
            typed("x", DType::F32, &[2, 2]),
            typed("c1", DType::Bool, &[]),
            typed("c2", DType::Bool, &[]),
        ],
        output: vec![typed("chosen", DType::F32, &[2, 2]), typed("y", DType::F32, &[2, 2])],
        ..GraphProto::default()
    };
    proto_model(10, 17, graph)
}

fn attr_graph<'a>(node: &'a NodeProto, name: &str) -> &'a GraphProto {
    node.attribute.iter().find(|a| a.name() == name).unwrap().g.as_deref().unwrap()
}

/// G31: what a body reads two levels deep is widened where it is made, and the body reads the wide one by its name.
#[test]
fn g31_captures_two_levels_deep() {
    let done = rewrite(load_proto(&nested()), &options(DType::F16));
    assert_eq!((done.dtype("t"), done.precision("y")), (DType::F16, "fp16"));
    let out = written(&done);
    let widened: Vec<_> = nodes_of(&out, "Cast").into_iter().filter(|n| n.input[0] == "t").collect();
    assert_eq!(widened.len(), 1, "one cast for all bodies");
    let wide = &widened[0].output[0];
    assert_ne!(wide, "t.f32", "that name is taken, two levels deep");
    let outer = nodes_of(&out, "If")[0];
    let inner = &attr_graph(outer, "then_branch").node[0];
    assert_eq!(attr_graph(inner, "then_branch").node[0].input, [wide.as_str(), "k"]);
    assert_eq!(attr_graph(inner, "then_branch").node[1].input, ["t.f32"]);
    assert_eq!(attr_graph(inner, "else_branch").node[0].input, [wide.as_str()]);
    assert_eq!(attr_graph(outer, "else_branch").node[0].input, [wide.as_str()]);
    assert_eq!(nodes_of(&out, "MatMul")[1].input[0], "t", "the low reader reads the low value");
}

/// G31: every way through the bodies computes what it computed.
#[test]
fn g31_nested_bodies_run() {
    for (c1, c2) in [(true, true), (true, false), (false, true)] {
        let feeds =
            [f32s("x", &[2, 2], &[0.5, 1.25, -2.0, 0.75]), bools("c1", &[], &[c1]), bools("c2", &[], &[c2])];
        let (_, runs) =
            exec_models(load_proto(&nested()), load_proto(&nested()), &options(DType::F16), &feeds);
        if let Some(runs) = runs {
            // All products are exact in f16; Sigmoid is computed in fp32.
            runs.are_within(1e-6);
        }
    }
}

/// Every inserted cast is one of a tensor.
#[track_caller]
fn only_tensors_are_cast(done: &Rewritten) {
    for (value, ..) in done.inserted() {
        let ty = &done.module().value(done.value(&value)).ty;
        assert!(matches!(ty, Type::Tensor(_)), "{value} is {ty:?}");
    }
}

/// G33: what sequences and optionals hold has one type from where it goes in to where it comes out. There is no
/// bf16 for them, so casts stand before and after.
#[test]
fn g33_sequences_and_optionals() {
    let graph = "input %x : f32[2, 2]
         const %w : f32[2, 2] = [0.5, 1.0, -1.0, 0.25]
         const %i : i64 = 1
         %t = MatMul(%x, %w) : ?
         %u = MatMul(%t, %w) : ?
         %seq = SequenceConstruct(%t, %u) : ?
         %at = SequenceAt(%seq, %i) : ?
         %opt = Optional(%at) : ?
         %got = OptionalGetElement(%opt) : ?
         %y = MatMul(%got, %w) : ?
         %all = ConcatFromSequence(%seq) {axis=0} : ?
         output %y : f32[2, 2]
         output %all : f32[4, 2]";
    for to in [DType::F16, DType::BF16] {
        let (done, runs) = exec(to, graph, &[f32s("x", &[2, 2], &[0.5, 1.25, -2.0, 0.75])], |_| ());
        assert_eq!(["t", "u", "w"].map(|v| done.dtype(v)), [to; 3]);
        let inside = if to == DType::F16 { to } else { DType::F32 };
        assert_eq!(["seq", "at", "opt", "got"].map(|v| done.dtype(v)), [inside; 4]);
        assert_eq!(done.dtype("all"), DType::F32);
        assert_eq!(done.operand_dtypes("SequenceConstruct"), [Some(inside); 2]);
        only_tensors_are_cast(&done);
        if let Some(runs) = runs {
            // Products of few digits: exact in f16, two roundings of 2^-8 in bf16 at most.
            runs.are_within(if to == DType::F16 { 0.0 } else { 0.02 });
        }
    }
}

/// G33: a sequence that a loop fills and a branch hands on is low all the way, by the attribute of the empty one too.
#[test]
fn g33_sequences_in_bodies() {
    let graph = "input %x : f32[2, 2]
         input %n : i64
         input %c : bool
         const %w : f32[2, 2] = [0.5, 1.0, -1.0, 0.25]
         const %i : i64 = -1
         %t = MatMul(%x, %w) : ?
         %empty = SequenceEmpty() : ?
         %one = SequenceInsert(%empty, %t) : ?
         %filled = Loop(%n, _, %one; %w) {
           body: graph (%w) {
             input %k : i64
             input %go : bool
             input %before : seq(f32[*])
             const %last : i64 = -1
             %top = SequenceAt(%before, %last) : ?
             %next = MatMul(%top, %w) : ?
             %after = SequenceInsert(%before, %next) : ?
             %again = Identity(%go) : ?
             output %again
             output %after
           }
         } : ?
         %either = If(%c; %filled, %t) {
           then_branch: graph (%filled) {
             %same = Identity(%filled) : ?
             output %same
           },
           else_branch: graph (%t) {
             %two = SequenceConstruct(%t, %t) : ?
             output %two
           }
         } : ?
         %at = SequenceAt(%either, %i) : ?
         %y = MatMul(%at, %w) : ?
         %all = ConcatFromSequence(%either) {axis=0} : ?
         output %y : f32[2, 2]
         output %all : f32[?, 2]";
    for (n, c) in [(0, true), (3, true), (1, false)] {
        let feeds =
            [f32s("x", &[2, 2], &[0.5, 1.25, -2.0, 0.75]), i64s("n", &[], &[n]), bools("c", &[], &[c])];
        let (done, runs) = exec(DType::F16, graph, &feeds, |_| ());
        let low = ["empty", "one", "filled", "either", "at"];
        assert_eq!(low.map(|v| done.dtype(v)), [DType::F16; 5]);
        only_tensors_are_cast(&done);
        if let Some(runs) = runs {
            // Products of few digits: the last ones round.
            runs.are_within(0.01);
        }
        let (done, _) = exec(DType::F16, graph, &feeds, |options| pin_f32(options, "either/else_branch/two"));
        assert_eq!(low.map(|v| done.dtype(v)), [DType::F32; 5]);
    }
}

/// G33: sequences that come in or leave keep their type, whatever is asked to be kept.
#[test]
fn g33_public_sequences() {
    let graph = "input %x : f32[2, 2]
         const %w : f32[2, 2] = [0.5, 1.0, -1.0, 0.25]
         const %i : i64 = 0
         %t = MatMul(%x, %w) : ?
         %seq = SequenceConstruct(%t) : ?
         %at = SequenceAt(%seq, %i) : ?
         %y = MatMul(%at, %w) : ?
         output %y : f32[2, 2]
         output %seq : seq(f32[2, 2])";
    for keep in [KeepIo::All, KeepIo::None] {
        let feeds = [f32s("x", &[2, 2], &[0.5, 1.25, -2.0, 0.75])];
        let (done, runs) = exec(DType::F16, graph, &feeds, |options| options.keep_io = keep.clone());
        assert_eq!(["t", "seq", "at"].map(|v| done.dtype(v)), [DType::F16, DType::F32, DType::F32]);
        if let Some(runs) = runs.filter(|_| keep == KeepIo::All) {
            runs.are_within(0.0);
        }
    }
}

/// G33: what is handed to the body of a SequenceMap is of the type of the sequence. ONNX Runtime 1.31.1 compiles the
/// operator wrongly in f16, so only the numbers of what emulates it count.
#[test]
fn g33_sequence_map() {
    let graph = "input %x : f32[2, 2]
         const %w : f32[2, 2] = [0.5, 1.0, -1.0, 0.25]
         const %i : i64 = 0
         %t = MatMul(%x, %w) : ?
         %seq = SequenceConstruct(%t, %t) : ?
         %map = SequenceMap(%seq; %w) {
           body: graph (%w) {
             input %e : f32[2, 2]
             %f = MatMul(%e, %w) : ?
             output %f
           }
         } : ?
         %at = SequenceAt(%map, %i) : ?
         %y = MatMul(%at, %w) : ?
         output %y";
    let feeds = [f32s("x", &[2, 2], &[0.5, 1.25, -2.0, 0.75])];
    let (done, runs) = exec(DType::F16, graph, &feeds, |_| ());
    assert_eq!(["seq", "map", "at"].map(|v| done.dtype(v)), [DType::F16; 3]);
    assert!(text(done.module()).contains("input %e : f16"));
    only_tensors_are_cast(&done);
    if let Some(runs) = runs {
        // Exact in f16.
        Runs { low: None, ..runs }.are_within(0.0);
    }
    let (emulated, _) = ampc::emulate(done.model).unwrap();
    assert!(!text(&emulated.module).contains("seq(f16"));
}

/// G33: maps are of the operators that make them.
#[test]
fn g33_maps() {
    let graph = "input %x : f32[2, 2]
         const %w : f32[2, 2] = [0.5, 1.0, -1.0, 0.25]
         %t = MatMul(%x, %w) : ?
         %map = ai.onnx.ml::ZipMap(%t) {classlabels_int64s=[3, 5]} : ?
         output %map : seq(map(i64, f32))";
    let source = || ampc::Model::from(module_with("ai.onnx=17, ai.onnx.ml=3", graph));
    let feeds = [f32s("x", &[2, 2], &[0.5, 1.25, -2.0, 0.75])];
    let (done, runs) = exec_models(source(), source(), &options(DType::F16), &feeds);
    assert_eq!(done.operand_dtypes("ZipMap"), [Some(DType::F32)]);
    assert_eq!(done.precision("t"), "fp16");
    if let Some(runs) = runs {
        // Exact in f16. The order of entries is that of the labels.
        assert_eq!(runs.low.as_ref().unwrap()[0].values, runs.source[0].values);
    }
}

/// A graph for each way in which an output can be fed.
const OUTPUTS: &[(&str, &str)] = &[
    (
        "read internally",
        "%t = MatMul(%x, %w) : ?
         %e = Neg(%t) : ?
         %y = MatMul(%e, %w) : ?
         output %t : f32[2, 2]
         output %y : f32[2, 2]",
    ),
    (
        "fed by an input",
        "%y = MatMul(%x, %w) : ?
         output %x : f32[2, 2]
         output %y : f32[2, 2]",
    ),
    (
        "fed by an initializer",
        "%y = MatMul(%x, %w) : ?
         output %w : f32[2, 2]
         output %y : f32[2, 2]",
    ),
    (
        "fed by a cast to a low type",
        "%t = MatMul(%x, %w) : ?
         %y = Cast(%t) {to=10} : ?
         output %y : f16[2, 2]",
    ),
    (
        "fed by a cast to f32",
        "%a = Cast(%x) {to=11} : ?
         %y = Cast(%a) {to=1} : ?
         %z = MatMul(%y, %w) : ?
         output %y : f32[2, 2]
         output %z : f32[2, 2]",
    ),
    (
        "fed by a node that stays fp32",
        "%t = MatMul(%x, %w) : ?
         %y = Sin(%t) : ?
         %z = MatMul(%y, %w) : ?
         output %y : f32[2, 2]
         output %z : f32[2, 2]",
    ),
    (
        "unused inputs",
        "input %unused : f32[2, 2]
         input %idle : i64[1]
         %y = MatMul(%x, %w) : ?
         output %y : f32[2, 2]",
    ),
];

fn boundary(infos: &[ValueInfoProto]) -> Vec<(String, DType)> {
    infos.iter().map(|i| (i.name().to_owned(), declared(i))).collect()
}

fn documented(graph: &str) -> ModelProto {
    let text = format!("input %x : f32[2, 2]\nconst %w : f32[2, 2] = [0.5, 1.0, -1.0, 0.25]\n{graph}");
    let mut source = ModelProto::decode(&*bytes(&model(&text))).unwrap();
    let graph = source.graph.as_mut().unwrap();
    for info in graph.input.iter_mut().chain(&mut graph.output) {
        info.doc_string = some(&format!("about {}", info.name()));
    }
    source
}

/// G34: names, order, shapes and documentation of inputs and outputs stay, whatever feeds them; their types as well,
/// unless they are given up, and then only to the low type.
#[test]
fn g34_inputs_and_outputs() {
    let keeps = [
        KeepIo::All,
        KeepIo::None,
        KeepIo::Names(["y".into()].into()),
        KeepIo::Names(["x".into(), "t".into()].into()),
    ];
    for (case, graph) in OUTPUTS {
        let source = documented(graph);
        let before = source.graph.as_ref().unwrap();
        for keep in &keeps {
            let context = format!("{case}, {keep:?}");
            let options = RewriteOptions { keep_io: keep.clone(), ..options(DType::F16) };
            let feeds = [
                f32s("x", &[2, 2], &[0.5, 1.25, -2.0, 0.75]),
                f32s("unused", &[2, 2], &[0.0; 4]),
                crate::runtime::i64s("idle", &[1], &[0]),
            ];
            let (done, runs) = exec_models(load_proto(&source), load_proto(&source), &options, &feeds);
            let out = written(&done).graph.unwrap();
            for (then, now) in [(&before.input, &out.input), (&before.output, &out.output)] {
                for ((name, dtype), (now, ty)) in boundary(then).iter().zip(boundary(now)) {
                    assert_eq!(*name, now, "{context}");
                    let may_change = !keep.keeps(name) && *dtype == DType::F32 && ty == DType::F16;
                    assert!(ty == *dtype || may_change, "{context}: {name} is {ty}");
                }
                for (then, now) in then.iter().zip(now) {
                    assert_eq!(then.doc_string, now.doc_string, "{context}");
                    let retyped = typed(then.name(), declared(now), &dims(then));
                    assert_eq!(now.r#type, retyped.r#type, "{context}: shapes stay");
                }
            }
            assert_eq!((before.input.len(), before.output.len()), (out.input.len(), out.output.len()));
            if let Some(runs) = runs {
                // Exact in f16, but for a product of sines: three roundings of 2^-11.
                runs.are_within(2e-3);
            }
        }
    }
}

fn dims(info: &ValueInfoProto) -> Vec<i64> {
    use ampc::onnx::proto::tensor_shape_proto::dimension::Value;
    use ampc::onnx::proto::type_proto;
    let Some(type_proto::Value::TensorType(t)) = &info.r#type.as_ref().unwrap().value else {
        panic!("{info:?}")
    };
    let dim = |d: &ampc::onnx::proto::tensor_shape_proto::Dimension| match d.value {
        Some(Value::DimValue(n)) => n,
        _ => panic!("{info:?}"),
    };
    t.shape.as_ref().unwrap().dim.iter().map(dim).collect()
}

fn types(done: &Rewritten) -> (Vec<DType>, Vec<DType>) {
    let graph = done.module().graph(done.module().main());
    let dtype = |v: ampc::ir::Value| done.module().value(v).ty.dtype().unwrap();
    (
        graph.inputs().iter().map(|&v| dtype(v)).collect(),
        graph.outputs().iter().map(|o| dtype(o.value)).collect(),
    )
}

/// G34: the types at the boundary, as asked for.
#[test]
fn g34_types_at_the_boundary() {
    let graph = "input %x : f32[2, 2]
         const %w : f32[2, 2] = [0.5, 1.0, -1.0, 0.25]
         %t = MatMul(%x, %w) : ?
         %y = MatMul(%t, %w) : ?
         output %t : f32[2, 2]
         output %y : f32[2, 2]";
    let with = |keep: KeepIo| {
        let done = lower_with(graph, |o| o.keep_io = keep);
        (types(&done), done.inserted().len())
    };
    let (low, full) = (DType::F16, DType::F32);
    assert_eq!(with(KeepIo::All), ((vec![full], vec![full, full]), 3));
    assert_eq!(with(KeepIo::None), ((vec![low], vec![low, low]), 0));
    assert_eq!(with(KeepIo::Names(["t".into()].into())), ((vec![low], vec![full, low]), 1));
    assert_eq!(with(KeepIo::Names(["x".into()].into())), ((vec![full], vec![low, low]), 1));
}

/// G34: one value that leaves twice is widened once.
#[test]
fn g34_one_value_as_two_outputs() {
    let graph = "input %x : f32[2, 2]
         const %w : f32[2, 2] = [0.5, 1.0, -1.0, 0.25]
         %y = MatMul(%x, %w) : ?
         output %y : f32[2, 2]
         output %y : f32[2, 2]";
    let done = lower(graph);
    let outputs = done.module().graph(done.module().main()).outputs();
    assert_eq!(outputs[0].value, outputs[1].value);
    assert_eq!(done.inserted().len(), 2);
    let out = written(&done).graph.unwrap();
    assert_eq!(boundary(&out.output), [("y".into(), DType::F32), ("y".into(), DType::F32)]);
}

/// A product with a weight that is listed as an input: a caller may give another weight.
fn overridable(ir_version: i64) -> ModelProto {
    let graph = GraphProto {
        name: some("g"),
        node: vec![node("MatMul", &["x", "w"], &["y"])],
        initializer: vec![raw("w", &[2, 2], &[0.5, 1.0, -1.0, 0.25])],
        input: vec![typed("x", DType::F32, &[2, 2]), typed("w", DType::F32, &[2, 2])],
        output: vec![typed("y", DType::F32, &[2, 2])],
        ..GraphProto::default()
    };
    proto_model(ir_version, 9, graph)
}

/// G35: the type of an initializer that can be overridden is public: it stays, and its cast is not folded.
#[test]
fn g35_overridable_initializers_keep_their_type() {
    for ir_version in [3, 8] {
        for keep in [KeepIo::All, KeepIo::None] {
            let options = RewriteOptions { keep_io: keep.clone(), ..options(DType::F16) };
            let done = rewrite(load_proto(&overridable(ir_version)), &options);
            assert_eq!((done.precision("y"), done.dtype("w")), ("fp16", DType::F32));
            assert!(done.inserted().contains(&("w".into(), DType::F32, DType::F16)));
            let out = written(&done).graph.unwrap();
            assert_eq!(out.initializer, overridable(ir_version).graph.unwrap().initializer);
            assert_eq!(boundary(&out.input)[1], ("w".into(), DType::F32));
        }
    }
}

/// G35: another weight that is given is used. Below IR version 4 ONNX Runtime takes none.
#[test]
fn g35_overriding_works() {
    let source = || load_proto(&overridable(8));
    let x = [0.5, 1.25, -2.0, 0.75];
    for feeds in [
        vec![f32s("x", &[2, 2], &x)],
        vec![f32s("x", &[2, 2], &x), f32s("w", &[2, 2], &[2.0, 0.0, 0.0, 2.0])],
    ] {
        let (_, runs) = exec_models(source(), source(), &options(DType::F16), &feeds);
        if let Some(runs) = runs {
            // Exact in f16.
            runs.are_within(0.0);
            if feeds.len() == 2 {
                assert_eq!(runs.source[0].values, x.map(|v| 2.0 * f64::from(v)));
            }
        }
    }
}
