//! The writer on changed modules.

#![allow(clippy::unwrap_used, reason = "a test fails and tells by panicking and printing")]

#[path = "onnx_write/files.rs"]
mod files;

#[path = "onnx_write/support.rs"]
mod support;

use ampc::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeDeviceConfigurationProto, NodeProto, OperatorSetIdProto,
    ShardingSpecProto, StringStringEntryProto, TensorAnnotation, TensorProto, ValueInfoProto, type_proto,
};
use ampc::onnx::{ReadOptions, Warning, read_bytes, to_bytes};
use ampc_ir::module::Provenance;
use ampc_ir::text::{NoData, parse};
use ampc_ir::{DType, Module, Op, Type};
use prost::Message;
use support::{
    UNKNOWN, adder, branch, cast, count, field, load, lower, model, named, node, text, typed, weight,
    with_bodies, with_unknown, written,
};

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

/// The writer refuses models that readers refuse.
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
