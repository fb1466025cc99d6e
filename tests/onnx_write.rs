//! What the writer does with changed modules.

#![allow(clippy::unwrap_used, reason = "a test fails and tells by panicking and printing")]

use ampc::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeDeviceConfigurationProto, NodeProto, OperatorSetIdProto,
    ShardingSpecProto, StringStringEntryProto, TensorAnnotation, TensorProto, TypeProto, ValueInfoProto,
    type_proto,
};
use ampc::onnx::{
    ExportError, ExternalData, ReadOptions, Source, Warning, WriteOptions, read, read_bytes, to_bytes, write,
};
use ampc_ir::convert::Conversion;
use ampc_ir::edit::{NewNode, Position};
use ampc_ir::module::Provenance;
use ampc_ir::text::{NoData, parse};
use ampc_ir::{AttrValue, DType, Module, Op, Payload, Type, Value};
use prost::Message;
use std::fs;
use std::sync::Arc;

fn text(s: &str) -> Option<String> {
    Some(s.to_owned())
}

fn typed(name: &str, dtype: i32) -> ValueInfoProto {
    let tensor = type_proto::Tensor { elem_type: Some(dtype), shape: None };
    let ty = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), denotation: None };
    ValueInfoProto { name: text(name), r#type: Some(ty), ..ValueInfoProto::default() }
}

fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: text(op),
        input: inputs.iter().map(|s| (*s).to_owned()).collect(),
        output: outputs.iter().map(|s| (*s).to_owned()).collect(),
        ..NodeProto::default()
    }
}

fn weight(name: &str, n: u16) -> TensorProto {
    let raw = (0..n).flat_map(|i| f32::from(i).to_le_bytes()).collect();
    TensorProto {
        name: text(name),
        dims: vec![i64::from(n)],
        data_type: Some(1),
        raw_data: Some(raw),
        doc_string: text("kept"),
        ..TensorProto::default()
    }
}

fn model(ir_version: i64, graph: GraphProto) -> ModelProto {
    ModelProto {
        ir_version: Some(ir_version),
        opset_import: vec![OperatorSetIdProto { domain: text(""), version: Some(17) }],
        graph: Some(graph),
        ..ModelProto::default()
    }
}

fn adder() -> GraphProto {
    GraphProto {
        name: text("g"),
        node: vec![node("Add", &["x", "w"], &["h"]), node("Relu", &["h"], &["y"])],
        initializer: vec![weight("w", 600)],
        input: vec![typed("x", 1)],
        output: vec![typed("y", 1)],
        value_info: vec![typed("h", 1), typed("gone", 1)],
        ..GraphProto::default()
    }
}

fn load(model: &ModelProto) -> (Module, Source) {
    let (module, source, _) = read_bytes("test", model.encode_to_vec(), &ReadOptions::default()).unwrap();
    (module, source)
}

fn written(module: &Module, source: &Source) -> ModelProto {
    ModelProto::decode(&*to_bytes(module, Some(source)).unwrap().0).unwrap()
}

fn named(module: &Module, name: &str) -> Value {
    let symbol = module.symbol(name).unwrap();
    let graph = module.graph(module.main());
    let results =
        module.nodes(module.main()).flat_map(|n| module.node(n).results().iter().flatten().copied());
    let sources = graph.inputs().iter().chain(graph.constants()).copied();
    sources.chain(results).find(|&v| module.value(v).name == Some(symbol)).unwrap()
}

fn lower(module: &mut Module, name: &str) {
    let value = named(module, name);
    let Some(Payload::Dense(data)) = module.constant(value) else { panic!("{name} is a dense constant") };
    let low = data.converted(Conversion { to: DType::F16, clamp: false });
    module.set_constant(value, Payload::Dense(Arc::new(low)));
}

/// Puts a cast to f16 after a value of the main graph, read by the first node that reads it.
fn cast(module: &mut Module, name: &str) -> ampc_ir::Node {
    let value = named(module, name);
    let (reader, slot) = module.uses(value).last().unwrap();
    let ampc_ir::op::Lookup::Found(schema) = ampc_ir::op::lookup("", "Cast", 17) else {
        panic!("Cast exists")
    };
    let to = module.intern("to");
    let result = module.fresh_name(&format!("{name}_f16"));
    let ty = module.value(value).ty.with_element_dtype(DType::F16);
    let new = NewNode {
        op: Op::Schema(schema),
        name: None,
        operands: [Some(value)].into_iter().collect(),
        attrs: vec![(to, AttrValue::Int(10))],
        results: vec![Some((result, ty))],
        provenance: Provenance::Inserted,
    };
    let cast = module.add_node(module.main(), Position::Before(reader), new);
    let low = module.node(cast).result(0);
    module.set_operand(reader, slot as usize, low);
    cast
}

/// A field of number 1000 with three bytes: nothing that this version knows.
const UNKNOWN: [u8; 6] = [0xc2, 0x3e, 3, b'n', b'e', b'w'];

fn with_unknown(message: &impl Message) -> Vec<u8> {
    [message.encode_to_vec(), UNKNOWN.to_vec()].concat()
}

fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    prost::encoding::encode_varint(content.len() as u64, &mut out);
    out.extend_from_slice(content);
    out
}

fn count(haystack: &[u8], needle: &[u8]) -> usize {
    haystack.windows(needle.len()).filter(|w| *w == needle).count()
}

/// Functions are found by where they are in the source: one that is erased leaves the next ones what they are.
#[test]
fn an_erased_function_takes_no_other_with_it() {
    let text = "\
module ir=10
opset ai.onnx=17, my=1

graph @main {
  input %x : f32[2]
  %a = my::A(%x) : f32[2]
  %b = my::B(%x) : f32[2]
  output %a
  output %b
}

function my::A {
  opset ai.onnx=17
  input %x : f32[2]
  %y = Neg(%x) : f32[2]
  output %y
}

function my::B {
  opset ai.onnx=17
  input %x : f32[2]
  %y = Abs(%x) : f32[2]
  output %y
}
";
    let bytes = to_bytes(&parse(text, &NoData).unwrap(), None).unwrap().0;
    let before = ModelProto::decode(&*bytes).unwrap();
    let (mut module, source) = load(&before);
    let nodes: Vec<_> = module.nodes(module.main()).collect();
    let Op::Call(first) = module.node(nodes[0]).op else { panic!("a call") };
    let other = module.node(nodes[1]).result(0).unwrap();
    module.set_output(module.main(), 0, other);
    module.erase_node(nodes[0]);
    module.erase_function(first);
    assert_eq!(written(&module, &source).functions, before.functions[1..]);
}

#[test]
fn unknown_fields_survive_wherever_something_changes() {
    let attr =
        AttributeProto { name: text("alpha"), r#type: Some(1), f: Some(0.5), ..AttributeProto::default() };
    let mut elu = with_unknown(&node("Elu", &["x"], &["h"]));
    elu.extend(field(5, &with_unknown(&attr)));
    let mut graph = field(1, &elu);
    graph.extend(field(1, &with_unknown(&node("Add", &["h", "w"], &["y"]))));
    graph.extend(field(5, &with_unknown(&weight("w", 4))));
    graph.extend(field(11, &with_unknown(&typed("x", 1))));
    graph.extend(field(12, &with_unknown(&typed("y", 1))));
    graph.extend(field(13, &with_unknown(&typed("h", 1))));
    graph.extend(UNKNOWN);
    let mut head = ModelProto { graph: None, ..model(10, GraphProto::default()) }.encode_to_vec();
    head.extend(field(7, &graph));
    head.extend(UNKNOWN);
    let (mut module, source, _) = read_bytes("test", head.clone(), &ReadOptions::default()).unwrap();
    assert_eq!(to_bytes(&module, Some(&source)).unwrap().0, head);
    // Change the first node, the constant, and the types of everything.
    let (a, b) = (module.nodes(module.main()).next().unwrap(), module.nodes(module.main()).last().unwrap());
    lower(&mut module, "w");
    cast(&mut module, "x");
    let f16 = Type::tensor(DType::F16, ampc_ir::Shape::unknown());
    for value in ["x", "h", "y"] {
        let value = named(&module, value);
        module.set_type(value, f16.clone());
    }
    module.set_output_type(module.main(), 0, f16);
    assert!(module.node(a).dirty.operands && !module.node(b).dirty.any());
    let (changed, report) = to_bytes(&module, Some(&source)).unwrap();
    assert!(!report.identical);
    assert_eq!(count(&changed, &UNKNOWN), count(&head, &UNKNOWN));
    let decoded = ModelProto::decode(&*changed).unwrap().graph.unwrap();
    let elem = |v: &ValueInfoProto| match &v.r#type.as_ref().unwrap().value {
        Some(type_proto::Value::TensorType(t)) => t.elem_type,
        _ => None,
    };
    let infos = decoded.input.iter().chain(&decoded.output).chain(&decoded.value_info);
    assert!(infos.map(elem).all(|e| e == Some(10)), "all types follow");
    assert_eq!(decoded.initializer[0].doc_string, text("kept"));
}

#[test]
fn only_what_changed_differs() {
    let model = model(10, adder());
    let (mut module, source) = load(&model);
    cast(&mut module, "h");
    let out = written(&module, &source).graph.unwrap();
    let before = model.graph.unwrap();
    assert_eq!(out.node.iter().map(|n| n.op_type()).collect::<Vec<_>>(), ["Add", "Cast", "Relu"]);
    assert_eq!((&out.node[0], &out.node[2].output), (&before.node[0], &before.node[1].output));
    assert_eq!(
        (out.node[1].output.clone(), &out.node[2].input),
        (vec!["h_f16".to_owned()], &out.node[1].output)
    );
    assert_eq!(out.initializer, before.initializer);
    assert_eq!(out.value_info, before.value_info[..1], "what is declared of nothing is left out");
}

#[test]
fn what_names_values_follows_them() {
    let mut graph = adder();
    let sharding =
        |name: &str| ShardingSpecProto { tensor_name: text(name), device: vec![0, 1], ..Default::default() };
    let device = |names: &[&str]| NodeDeviceConfigurationProto {
        configuration_id: text("h"),
        sharding_spec: names.iter().map(|n| sharding(n)).collect(),
        ..Default::default()
    };
    let annotation = |tensor: &str, scale: &str| TensorAnnotation {
        tensor_name: text(tensor),
        quant_parameter_tensor_names: vec![StringStringEntryProto { key: text("h"), value: text(scale) }],
    };
    graph.node[0].device_configurations = vec![device(&["x", "h", "none"])];
    graph.node[1].device_configurations = vec![device(&["h", "y"])];
    graph.quantization_annotation = vec![annotation("h", "w"), annotation("x", "none")];
    let model = model(11, graph);
    let (mut module, source) = load(&model);
    assert!(to_bytes(&module, Some(&source)).unwrap().1.identical);
    cast(&mut module, "h");
    for (then, now) in [("h", "hidden"), ("w", "weight")] {
        let (value, now) = (named(&module, then), module.intern(now));
        module.set_value_name(value, now);
    }
    let out = written(&module, &source).graph.unwrap();
    assert_eq!(out.node.iter().map(|n| n.op_type()).collect::<Vec<_>>(), ["Add", "Cast", "Relu"]);
    assert_eq!(out.node[0].device_configurations, [device(&["x", "hidden", "none"])]);
    assert_eq!(out.node[2].device_configurations, [device(&["h_f16", "y"])], "it reads the cast now");
    assert_eq!(out.quantization_annotation, [annotation("hidden", "weight"), annotation("x", "none")]);
}

#[test]
fn constants_are_converted_on_the_way() {
    let (mut module, source) = load(&model(10, adder()));
    lower(&mut module, "w");
    let out = written(&module, &source).graph.unwrap();
    let expected: Vec<u8> =
        (0..600u16).flat_map(|i| half::f16::from_f32(f32::from(i)).to_le_bytes()).collect();
    assert_eq!((out.initializer[0].data_type, &out.initializer[0].raw_data), (Some(10), &Some(expected)));
    assert_eq!(out.initializer[0].dims, [600]);
}

#[test]
fn provenance_is_kept_by_nodes_or_by_the_model() {
    for (ir_version, in_node) in [(10, true), (9, false)] {
        let (mut module, source) = load(&model(ir_version, adder()));
        module.header.metadata.push(("author".into(), "me".into()));
        let before = cast(&mut module, "h");
        assert_eq!(module.node(before).provenance, Provenance::Inserted);
        let out = written(&module, &source);
        let entry = |key: &str, value: &str| StringStringEntryProto { key: text(key), value: text(value) };
        let on_node = &out.graph.as_ref().unwrap().node[1].metadata_props;
        assert_eq!(on_node.contains(&entry("ampc.cast", "inserted")), in_node);
        assert_eq!(out.metadata_props.contains(&entry("ampc.provenance", "h_f16")), !in_node);
        let (again, source) = load(&out);
        let inserted: Vec<bool> = again
            .nodes(again.main())
            .map(|n| again.node(n).provenance == Provenance::Inserted && again.node(n).metadata.is_empty())
            .collect();
        assert_eq!(inserted, [false, true, false]);
        assert_eq!(again.header.metadata, [("author".to_owned(), "me".to_owned())]);
        assert!(to_bytes(&again, Some(&source)).unwrap().1.identical);
    }
}

#[test]
fn raising_the_ir_version_moves_what_depends_on_it() {
    let mut graph = adder();
    graph.input.push(typed("w", 1));
    let (mut module, source) = load(&model(3, graph));
    cast(&mut module, "h");
    let (mut module, source) = load(&written(&module, &source));
    module.header.ir_version = 10;
    let out = written(&module, &source);
    let graph = out.graph.unwrap();
    assert_eq!(graph.input, [typed("x", 1), typed("w", 1)], "inputs are public, whatever the version");
    assert_eq!((graph.node[1].metadata_props[0].key(), out.metadata_props.len()), ("ampc.cast", 0));
}

fn branch(op: &str, inputs: &[&str], output: &str) -> GraphProto {
    GraphProto {
        name: text(output),
        node: vec![node(op, inputs, &[output])],
        output: vec![typed(output, 1)],
        ..GraphProto::default()
    }
}

fn with_bodies() -> ModelProto {
    let attr = |name: &str, g: GraphProto| AttributeProto {
        name: text(name),
        r#type: Some(5),
        g: Some(Box::new(g)),
        doc_string: text("kept"),
        ..AttributeProto::default()
    };
    let mut branches = node("If", &["c"], &["y"]);
    branches.attribute = vec![
        attr("then_branch", branch("Add", &["h", "w"], "t")),
        attr("else_branch", branch("Neg", &["x"], "e")),
    ];
    let graph = GraphProto {
        name: text("g"),
        node: vec![node("Relu", &["x"], &["h"]), branches],
        initializer: vec![weight("w", 3)],
        input: vec![typed("x", 1), typed("c", 9)],
        output: vec![typed("y", 1)],
        ..GraphProto::default()
    };
    model(10, graph)
}

#[test]
fn captures_are_operands_inside_and_names_outside() {
    let model = with_bodies();
    let (mut module, source) = load(&model);
    let owner = module.nodes(module.main()).last().unwrap();
    let operands: Vec<String> = module.node(owner).operands()[1..]
        .iter()
        .map(|v| module.text(module.value_name(v.unwrap()).unwrap()).to_owned())
        .collect();
    assert_eq!((module.node(owner).n_formal(), operands), (1, ["h", "w", "x"].map(str::to_owned).to_vec()));
    // Casting what a body captures changes the body's spelling and nothing else.
    cast(&mut module, "h");
    let out = written(&module, &source).graph.unwrap();
    let before = model.graph.unwrap();
    let mut then_branch = before.node[1].attribute[0].clone();
    then_branch.g.as_mut().unwrap().node[0].input[0] = "h_f16".to_owned();
    assert_eq!(out.node[2].attribute, [then_branch, before.node[1].attribute[1].clone()]);
    assert_eq!((&out.node[0], &out.node[2].input), (&before.node[0], &before.node[1].input));
}

/// As deep as reading allows, on the small stack of a test's thread.
#[test]
fn a_change_deep_inside_is_written() {
    let leaf = branch("Neg", &["x"], "r0");
    let mut body = leaf.encode_to_vec();
    for depth in 1..=256 {
        let result = format!("r{depth}");
        let attr = |name: &str, graph: &[u8]| {
            let head = AttributeProto { name: text(name), r#type: Some(5), ..AttributeProto::default() };
            field(5, &[head.encode_to_vec(), field(6, graph)].concat())
        };
        let head = node("If", &["c"], &[&result]).encode_to_vec();
        let other = branch("Neg", &["x"], &format!("e{depth}")).encode_to_vec();
        let owner = [head, attr("then_branch", &body), attr("else_branch", &other)].concat();
        let shell = GraphProto { name: text("g"), output: vec![typed(&result, 1)], ..GraphProto::default() };
        let inputs = GraphProto { input: vec![typed("x", 1), typed("c", 9)], ..GraphProto::default() };
        body = [field(1, &owner), shell.encode_to_vec()].concat();
        if depth == 256 {
            body.extend(inputs.encode_to_vec());
        }
    }
    let head = ModelProto { graph: None, ..model(10, GraphProto::default()) }.encode_to_vec();
    let bytes = [head, field(7, &body)].concat();
    let (mut module, source, _) = read_bytes("deep", bytes.clone(), &ReadOptions::default()).unwrap();
    let deepest = module.graph_ids().max_by_key(|&g| depth_of(&module, g)).unwrap();
    let neg = module.nodes(deepest).next().unwrap();
    let name = module.intern("renamed");
    module.set_node_name(neg, Some(name));
    let (changed, _) = to_bytes(&module, Some(&source)).unwrap();
    assert_eq!((count(&changed, b"renamed"), count(&bytes, b"renamed")), (1, 0));
    let (again, _, _) = read_bytes("changed", changed, &ReadOptions::default()).unwrap();
    assert!(ampc_ir::eq::same_module(&module, &again).is_ok());
}

fn depth_of(module: &Module, mut graph: ampc_ir::GraphId) -> usize {
    let mut depth = 0;
    while let ampc_ir::module::GraphOwner::Body { node, .. } = module.graph(graph).owner {
        graph = module.node(node).graph;
        depth += 1;
    }
    depth
}

/// Below IR version 10 the model says which casts were inserted: only what is a Cast can be one, and what is not there
/// is no longer said.
#[test]
fn stale_provenance_is_brought_up_to_date() {
    let mut model = with_bodies();
    model.ir_version = Some(8);
    let result = model.graph.as_ref().unwrap().node[0].output[0].clone();
    let value = Some(format!("{result}\nnowhere"));
    model.metadata_props.push(StringStringEntryProto { key: text("ampc.provenance"), value });
    let (module, source, warnings) =
        read_bytes("test", model.encode_to_vec(), &ReadOptions::default()).unwrap();
    let said: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings[0].code(), "onnx.stale-provenance");
    assert!(said[0].contains("(and 1 more)"), "{said:?}");
    let mut nodes = module.graph_ids().flat_map(|graph| module.nodes(graph));
    assert!(nodes.all(|node| module.node(node).provenance == Provenance::User));
    assert_eq!(written(&module, &source).metadata_props, []);
}

#[test]
fn unsorted_nodes_and_missing_imports_are_repaired() {
    let mut unsorted = with_bodies();
    let graph = unsorted.graph.as_mut().unwrap();
    graph.node.reverse();
    graph.node.push(NodeProto { domain: text("com.microsoft"), ..node("FastGelu", &["y"], &["z"]) });
    let (module, source, warnings) =
        read_bytes("test", unsorted.encode_to_vec(), &ReadOptions::default()).unwrap();
    let codes: Vec<_> = warnings.iter().map(Warning::code).collect();
    assert_eq!(codes, ["onnx.missing-opset", "onnx.unsorted"]);
    let out = written(&module, &source);
    let ops: Vec<_> = out.graph.as_ref().unwrap().node.iter().map(|n| n.op_type().to_owned()).collect();
    assert_eq!(ops, ["Relu", "If", "FastGelu"]);
    assert_eq!(out.opset_import[1], OperatorSetIdProto { domain: text("com.microsoft"), version: Some(1) });
}

#[test]
fn initializers_that_are_inputs() {
    let mut graph = adder();
    graph.input.push(typed("w", 1));
    // A caller may replace it, whether the IR version asks for the listing or not: its type is public.
    for (version, code) in [(3, "onnx.listed-initializers"), (10, "onnx.overridable-initializers")] {
        let (module, source, warnings) =
            read_bytes("test", model(version, graph.clone()).encode_to_vec(), &ReadOptions::default())
                .unwrap();
        assert_eq!(warnings.iter().map(Warning::code).collect::<Vec<_>>(), [code]);
        assert_eq!(module.graph(module.main()).inputs().len(), 2);
        assert!(module.graph(module.main()).constants().is_empty());
        assert!(to_bytes(&module, Some(&source)).unwrap().1.identical);
    }
}

#[test]
fn false_value_info_is_left_out_with_a_warning() {
    let mut graph = adder();
    let Some(type_proto::Value::TensorType(t)) = &mut graph.value_info[0].r#type.as_mut().unwrap().value
    else {
        panic!("a tensor")
    };
    t.shape = Some(ampc::onnx::proto::TensorShapeProto { dim: vec![Default::default(); 3] });
    let (mut module, source) = load(&model(10, graph));
    let h = named(&module, "h");
    module.set_type(h, Type::tensor(DType::F32, ampc_ir::Shape::known(&[600])));
    cast(&mut module, "h");
    let (bytes, report) = to_bytes(&module, Some(&source)).unwrap();
    assert!(ModelProto::decode(&*bytes).unwrap().graph.unwrap().value_info.is_empty());
    assert_eq!(report.warnings.iter().map(Warning::code).collect::<Vec<_>>(), ["onnx.false-value-info"]);
    // The type that is named is the source's, whatever the value has become since.
    let low = module.value(h).ty.with_element_dtype(DType::F16);
    module.set_type(h, low);
    let message = to_bytes(&module, Some(&source)).unwrap().1.warnings[0].to_string();
    assert!(message.contains("says f32[?, ?, ?] of `h`, which is f32[600]"), "{message}");
}

/// The layouts are those of `onnx.helper.make_tensor` and `onnx.numpy_helper.from_array`.
#[test]
fn floats_of_six_bits_are_packed() {
    // 1, -2, 0.5, 3 and 4.
    let cases = [(27, [8, 48, 4, 20, 24], [8, 76, 80, 24]), (28, [12, 48, 8, 18, 20], [12, 140, 72, 20])];
    for (data_type, entries, packed) in cases {
        let tensor = |dims: i64, entries: &[i32], raw: Option<&[u8]>| TensorProto {
            name: text("w"),
            dims: vec![dims],
            data_type: Some(data_type),
            int32_data: entries.to_vec(),
            raw_data: raw.map(<[u8]>::to_vec),
            ..TensorProto::default()
        };
        let model_of = |w: TensorProto| {
            let graph = GraphProto { initializer: vec![w], output: vec![typed("w", data_type)], ..adder() };
            model(10, GraphProto { node: Vec::new(), ..graph })
        };
        let raw = tensor(5, &[], Some(&packed));
        for w in [tensor(5, &entries, None), raw.clone()] {
            let (module, source) = load(&model_of(w));
            assert!(to_bytes(&module, Some(&source)).unwrap().1.identical);
            let data = module.constant(named(&module, "w")).unwrap().dense().unwrap().clone();
            assert_eq!((data.to_bytes().unwrap(), data.byte_len()), (packed.to_vec(), 4));
            let fresh = ModelProto::decode(&*to_bytes(&module, None).unwrap().0).unwrap();
            assert_eq!(fresh.graph.unwrap().initializer, std::slice::from_ref(&raw));
            let printed = module.to_text().unwrap();
            let again = ampc_ir::text::parse(&printed, &ampc_ir::text::NoData).unwrap();
            ampc_ir::eq::same_module(&module, &again).unwrap();
        }
        // Three and four elements take three bytes; entries are counted one by one.
        for (dims, n) in [(4, 3), (3, 4), (5, 4), (4, 5)] {
            let bytes = model_of(tensor(dims, &entries[..n], None)).encode_to_vec();
            let error = read_bytes("test", bytes, &ReadOptions::default()).unwrap_err().to_string();
            assert!(error.contains(&format!("needs {dims} elements, found {n}")), "{error}");
        }
    }
}

/// A model with one large constant in an external file.
fn external_model(folder: &std::path::Path) -> std::path::PathBuf {
    let (module, _) = load(&model(10, adder()));
    let path = folder.join("m.onnx");
    let options = WriteOptions { external_data: ExternalData::Always, ..WriteOptions::default() };
    let report = write(&module, None, &path, &options).unwrap();
    assert_eq!(report.data_file, Some((data_of(folder, "m.onnx"), 2400)));
    path
}

/// The one data file of a model: it has the name of the model and a hash in its own.
fn data_of(folder: &std::path::Path, model: &str) -> std::path::PathBuf {
    let files = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let name = |p: &std::path::PathBuf| p.file_name().unwrap().to_str().unwrap().to_owned();
    let mut files = files.filter(|p| name(p).starts_with(model) && name(p).ends_with(".data"));
    let file = files.next().unwrap();
    assert!(files.next().is_none(), "{model} has one data file");
    assert_eq!(name(&file).len(), model.len() + ".0123456789abcdef.data".len());
    let hash = xxhash_rust::xxh3::xxh3_64(&fs::read(&file).unwrap());
    assert_eq!(name(&file), format!("{model}.{hash:016x}.data"));
    file
}

fn name_of(path: &std::path::Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}

fn location(path: &std::path::Path) -> Option<String> {
    let model = ModelProto::decode(&*fs::read(path).unwrap()).unwrap();
    let tensor = model.graph.unwrap().initializer.remove(0);
    tensor.external_data.iter().find(|e| e.key() == "location").map(|e| e.value().to_owned())
}

#[test]
fn external_data_stays_moves_or_comes_in() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = external_model(folder.path());
    let (mut module, source, _) = read(&path, &ReadOptions::default()).unwrap();
    let options = WriteOptions::default();
    // Into the same folder: the reference stays.
    let beside = folder.path().join("beside.onnx");
    assert!(write(&module, Some(&source), &beside, &options).unwrap().identical);
    assert_eq!(location(&beside), name_of(&data_of(folder.path(), "m.onnx")));
    // Into another one: the data goes along.
    let away = other.path().join("away.onnx");
    let report = write(&module, Some(&source), &away, &options).unwrap();
    let moved = data_of(other.path(), "away.onnx");
    assert_eq!(report.data_file, Some((moved.clone(), 2400)));
    assert_eq!(location(&away), name_of(&moved));
    assert_eq!(fs::read(moved).unwrap(), fs::read(data_of(folder.path(), "m.onnx")).unwrap());
    // Told so: into the model.
    let inline = other.path().join("inline.onnx");
    let never = WriteOptions { external_data: ExternalData::Never, ..options.clone() };
    assert_eq!(write(&module, Some(&source), &inline, &never).unwrap().data_file, None);
    assert_eq!(location(&inline), None);
    // Changed: into a file of its own, half the size.
    lower(&mut module, "w");
    let low = folder.path().join("low.onnx");
    let report = write(&module, Some(&source), &low, &options).unwrap();
    assert_eq!(report.data_file, Some((data_of(folder.path(), "low.onnx"), 1200)));
    for path in [&beside, &away, &inline, &low] {
        let (module, _, _) = read(path, &ReadOptions::default()).unwrap();
        let Some(Payload::Dense(data)) = module.constant(named(&module, "w")) else { panic!("dense") };
        let values = data.small_floats(600).unwrap();
        assert!(values.iter().enumerate().all(|(i, v)| *v == i as f64), "{}", path.display());
    }
}

#[test]
fn the_source_and_its_data_are_never_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = external_model(folder.path());
    let (module, source, _) = read(&path, &ReadOptions::default()).unwrap();
    let force = WriteOptions { force: true, external_data: ExternalData::Always };
    let data = data_of(folder.path(), "m.onnx");
    let data_name = name_of(&data).unwrap();
    for target in ["m.onnx", &data_name, "m"] {
        let before = fs::read(&data).unwrap();
        let refused = write(&module, Some(&source), &folder.path().join(target), &force);
        match target {
            // `m` has a data file of its own.
            "m" => assert!(refused.is_ok()),
            _ => assert!(refused.unwrap_err().to_string().contains("is read from"), "{target}"),
        }
        assert_eq!(fs::read(&data).unwrap(), before);
    }
}

/// Names in a folder, sorted.
fn names(folder: &std::path::Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_data_file_of_a_replaced_model_goes_when_nobody_needs_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = external_model(folder.path());
    let old = name_of(&data_of(folder.path(), "m.onnx")).unwrap();
    // Names that others may have given.
    for name in ["m.onnx.data", "m.onnx.0123456789abcdef.data", "n.onnx.0123456789abcdef.data"] {
        fs::write(folder.path().join(name), b"theirs").unwrap();
    }
    let (mut module, _, _) = read(&path, &ReadOptions::default()).unwrap();
    lower(&mut module, "w");
    let force = WriteOptions { force: true, external_data: ExternalData::Always };
    let report = write(&module, None, &path, &force).unwrap();
    let new = name_of(&report.data_file.unwrap().0).unwrap();
    assert_ne!(old, new);
    let mut expected = vec![
        "m.onnx".to_owned(),
        "m.onnx.0123456789abcdef.data".into(),
        "m.onnx.data".into(),
        "n.onnx.0123456789abcdef.data".into(),
        new.clone(),
    ];
    expected.sort();
    assert_eq!(names(folder.path()), expected);
    // The same again: the file that is there is the new one.
    write(&module, None, &path, &force).unwrap();
    assert_eq!(names(folder.path()), expected);
    read(&path, &ReadOptions::default()).unwrap();
    // Into the model: no data file is left of it.
    let inline = WriteOptions { external_data: ExternalData::Never, ..force };
    write(&module, None, &path, &inline).unwrap();
    expected.retain(|name| *name != new);
    assert_eq!(names(folder.path()), expected);
}

#[test]
fn a_data_file_of_the_source_stays_when_what_named_it_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let first = external_model(folder.path());
    let (module, source, _) = read(&first, &ReadOptions::default()).unwrap();
    // `second` refers to the data of `m.onnx`, which is then replaced by what is made of `second`.
    let second = folder.path().join("second.onnx");
    write(&module, Some(&source), &second, &WriteOptions::default()).unwrap();
    drop(source);
    let (mut module, source, _) = read(&second, &ReadOptions::default()).unwrap();
    lower(&mut module, "w");
    let force = WriteOptions { force: true, external_data: ExternalData::Auto };
    write(&module, Some(&source), &first, &force).unwrap();
    for path in [&first, &second] {
        read(path, &ReadOptions::default()).unwrap();
    }
    assert_eq!(names(folder.path()).len(), 4);
}

/// What is under the name of a data file has to be what the name says.
#[test]
fn a_file_that_has_the_name_of_the_data_file_is_replaced_only_when_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = external_model(folder.path());
    let data = data_of(folder.path(), "m.onnx");
    let right = fs::read(&data).unwrap();
    let (module, _) = load(&model(10, adder()));
    let options = |force| WriteOptions { force, external_data: ExternalData::Always };
    for wrong in [b"short".to_vec(), vec![7; right.len()]] {
        fs::remove_file(&path).unwrap();
        fs::write(&data, wrong).unwrap();
        let error = write(&module, None, &path, &options(false)).unwrap_err().to_string();
        assert!(error.contains("exists"), "{error}");
        write(&module, None, &path, &options(true)).unwrap();
        assert_eq!(fs::read(&data).unwrap(), right);
    }
    // The right bytes are as good as new ones, as a run leaves that is killed before it writes the model.
    fs::remove_file(&path).unwrap();
    write(&module, None, &path, &options(false)).unwrap();
    assert_eq!(fs::read(&data).unwrap(), right);
}

#[test]
fn what_readers_refuse_is_not_written() {
    let mut module = Module::new();
    for i in 0..3u64 {
        let data = ampc_ir::TensorData::new(
            DType::F32,
            [1 << 28],
            ampc_ir::tensor::Storage::Random { seed: i, amplitude: 1.0 },
        );
        let name = module.intern(&format!("w{i}"));
        module.add_constant(module.main(), name, Payload::Dense(Arc::new(data.unwrap())));
    }
    let error = to_bytes(&module, None).unwrap_err();
    assert!(matches!(error, ExportError::TooLarge { bytes, .. } if bytes > 3 << 30), "{error}");
}

/// What readers refuse is not written.
#[test]
fn sparse_constants_with_an_index_twice_are_refused() {
    let text = |indices: &str| {
        format!(
            "module ir=10\nopset ai.onnx=21, com.example=1\n\ngraph @main {{\n  const %few : sparse(f32[3, 4]) = \
             sparse([3, 4], tensor(f32[2] = [1.0, 2.0]), tensor(i64[2] = {indices}))\n  \
             %y = com.example::Use(%few) : ?\n  output %y\n}}\n"
        )
    };
    let write = |indices: &str| to_bytes(&parse(&text(indices), &NoData).unwrap(), None);
    assert!(write("[0, 11]").is_ok());
    for (indices, said) in [("[5, 5]", "ascending"), ("[5, 12]", "12"), ("[-1, 5]", "-1")] {
        let error = write(indices).unwrap_err();
        assert!(error.to_string().contains("constant `few`") && error.to_string().contains(said), "{error}");
        assert_eq!(error.blame().exit_code(), 3);
    }
}
