//! Written files decode to the model that was read, with prost and with an independent decoder.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails and tells by panicking and printing"
)]

#[path = "../../common/corpus.rs"]
mod corpus;

use ampc::onnx::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto};
use ampc::onnx::{ReadOptions, Source, Warning, read, read_bytes, to_bytes};
use ampc_ir::module::{Dirty, GraphOwner};
use ampc_ir::{Module, Payload};
use prost::Message;
use protobuf::Message as _;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

fn models() -> Vec<PathBuf> {
    #[expect(clippy::disallowed_methods, reason = "tests are told where the corpora are")]
    let Ok(root) = std::env::var("AMPC_CORPUS") else {
        let _ = writeln!(std::io::stderr(), "skipped: AMPC_CORPUS is not set");
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = ["small", "train", "tricky", "ort"]
        .iter()
        .flat_map(|f| corpus::models(&Path::new(&root).join(f)))
        .collect();
    found.sort();
    found
}

/// Models that are read without repair, with what is made of them.
fn readable() -> impl Iterator<Item = (PathBuf, Module, Source)> {
    models().into_iter().filter_map(|path| {
        let (module, source, warnings) = read(&path, &ReadOptions::default()).ok()?;
        let repaired =
            warnings.iter().any(|w| matches!(w, Warning::Unsorted { .. } | Warning::MissingOpset { .. }));
        (!repaired).then_some((path, module, source))
    })
}

fn all_nodes(module: &Module) -> Vec<ampc_ir::Node> {
    module.graph_ids().flat_map(|g| module.nodes(g)).collect()
}

/// Every message is walked and put together again; nothing may be lost or moved to another place.
#[test]
fn patching_everything_changes_nothing() {
    let mut count = 0;
    for (path, mut module, source) in readable() {
        for node in all_nodes(&module) {
            *module.node_mut(node).dirty =
                Dirty { operands: true, results: true, attrs: true, header: true, callee: false };
        }
        let (bytes, report) = to_bytes(&module, Some(&source)).unwrap();
        let original = fs::read(&path).unwrap();
        assert!(!report.identical || original.len() < 200, "{}", path.display());
        let (mut then, now) = (ModelProto::decode(&*original).unwrap(), ModelProto::decode(&*bytes).unwrap());
        then.graph.iter_mut().for_each(drop_stale);
        same(&then, &now, &path);
        let then = onnx_protobuf::ModelProto::parse_from_bytes(&then.encode_to_vec()).unwrap();
        let now = onnx_protobuf::ModelProto::parse_from_bytes(&bytes).unwrap();
        assert!(then.write_to_bytes().unwrap() == now.write_to_bytes().unwrap(), "{}", path.display());
        count += 1;
    }
    println!("{count} models");
}

/// The independent decoder and prost see the same message in what is encoded afresh.
#[test]
fn fresh_messages_decode_alike() {
    for (path, module, _source) in readable() {
        let (bytes, _) = to_bytes(&module, None).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let by_prost = ModelProto::decode(&*bytes).unwrap();
        let direct = onnx_protobuf::ModelProto::parse_from_bytes(&bytes).unwrap();
        let through = onnx_protobuf::ModelProto::parse_from_bytes(&by_prost.encode_to_vec()).unwrap();
        assert!(direct.write_to_bytes().unwrap() == through.write_to_bytes().unwrap(), "{}", path.display());
    }
}

/// A module without its file has everything that counts.
#[test]
fn fresh_messages_mean_what_the_source_means() {
    for (path, module, source) in readable() {
        let original = ModelProto::decode(&*fs::read(&path).unwrap()).unwrap();
        if !original.training_info.is_empty() || !original.configuration.is_empty() {
            continue;
        }
        let (bytes, _) = to_bytes(&module, None).unwrap();
        let mut fresh = ModelProto::decode(&*bytes).unwrap();
        let mut original = original;
        let external = !source.files().is_empty() && source.files().len() > 1;
        if external {
            continue;
        }
        normalise(&mut original);
        normalise(&mut fresh);
        same(&original, &fresh, &path);
        // Encoding afresh what was encoded afresh is a fixed point.
        let (again, _, _) = read_bytes("fresh", bytes.clone(), &ReadOptions::default()).unwrap();
        let (twice, _) = to_bytes(&again, None).unwrap();
        assert!(bytes == twice, "{}", path.display());
    }
}

/// Types declared for values that do not exist are left out when a graph is written.
fn drop_stale(graph: &mut GraphProto) {
    let mut names: BTreeSet<String> = graph.node.iter().flat_map(|n| n.output.iter().cloned()).collect();
    names.extend(graph.input.iter().filter_map(|i| i.name.clone()));
    names.extend(graph.initializer.iter().filter_map(|t| t.name.clone()));
    graph.value_info.retain(|v| v.name.as_ref().is_some_and(|n| names.contains(n)));
    let attrs = graph.node.iter_mut().flat_map(|n| &mut n.attribute);
    attrs.flat_map(|a| a.g.iter_mut()).for_each(|g| drop_stale(g));
}

/// Compares two messages and shows where they part.
fn same(expected: &ModelProto, found: &ModelProto, path: &Path) {
    // Bytes, because a NaN is not equal to itself.
    if expected.encode_to_vec() == found.encode_to_vec() {
        return;
    }
    let (expected, found) = (format!("{expected:#?}"), format!("{found:#?}"));
    let lines: Vec<_> = expected.lines().zip(found.lines()).collect();
    let at = lines.iter().position(|(a, b)| a != b).unwrap_or(lines.len());
    let around = &lines[at.saturating_sub(8)..lines.len().min(at + 8)];
    panic!("{}: expected and found part at line {at}: {around:#?}", path.display());
}

/// Leaves out what a module does not keep (documentation of parts, declared types in between) and spells tensors
/// in one way.
fn normalise(model: &mut ModelProto) {
    for text in
        [&mut model.producer_name, &mut model.producer_version, &mut model.domain, &mut model.doc_string]
    {
        none_if_empty(text);
    }
    if model.model_version == Some(0) {
        model.model_version = None;
    }
    model.opset_import.iter_mut().for_each(|o| o.domain = Some(o.domain.take().unwrap_or_default()));
    model.metadata_props.iter_mut().for_each(|e| e.value = Some(e.value.take().unwrap_or_default()));
    model.graph.iter_mut().for_each(normalise_graph);
    for function in &mut model.functions {
        none_if_empty(&mut function.doc_string);
        none_if_empty(&mut function.domain);
        none_if_empty(&mut function.overload);
        function.value_info.clear();
        function.opset_import.iter_mut().for_each(|o| o.domain = Some(o.domain.take().unwrap_or_default()));
        function.node.iter_mut().for_each(normalise_node);
        function.attribute_proto.iter_mut().for_each(normalise_attr);
    }
}

fn none_if_empty(text: &mut Option<String>) {
    if text.as_deref() == Some("") {
        *text = None;
    }
}

fn normalise_graph(graph: &mut GraphProto) {
    graph.doc_string = None;
    graph.value_info.clear();
    graph.quantization_annotation.clear();
    graph.metadata_props.clear();
    if graph.name.as_deref().unwrap_or_default().is_empty() {
        graph.name = Some("graph".into());
    }
    for info in graph.input.iter_mut().chain(&mut graph.output) {
        info.doc_string = None;
        info.metadata_props.clear();
        if let Some(ty) = &mut info.r#type {
            normalise_type(ty);
        }
        info.r#type.take_if(|t| t.value.is_none());
    }
    // Inputs' defaults come before constants.
    let is_input = |t: &TensorProto| graph.input.iter().any(|i| i.name == t.name);
    let (mut defaults, constants): (Vec<_>, Vec<_>) = graph.initializer.drain(..).partition(is_input);
    if !constants.is_empty() || defaults.len() != graph.input.len() {
        let place = |t: &TensorProto| graph.input.iter().position(|i| i.name == t.name);
        defaults.sort_by_key(place);
    }
    defaults.extend(constants);
    graph.initializer = defaults;
    graph.initializer.sort_by(|a, b| a.name.cmp(&b.name));
    graph.input.sort_by(|a, b| a.name.cmp(&b.name));
    graph.initializer.iter_mut().for_each(normalise_tensor);
    graph.sparse_initializer.iter_mut().for_each(normalise_sparse);
    graph.node.iter_mut().for_each(normalise_node);
}

fn normalise_type(ty: &mut ampc::onnx::proto::TypeProto) {
    use ampc::onnx::proto::type_proto::Value;
    ty.denotation = None;
    let shape = match &mut ty.value {
        Some(Value::TensorType(t)) if t.elem_type.unwrap_or(0) == 0 => {
            ty.value = None;
            return;
        }
        Some(Value::TensorType(t)) => &mut t.shape,
        Some(Value::SparseTensorType(t)) => &mut t.shape,
        Some(Value::SequenceType(s)) => return s.elem_type.iter_mut().for_each(|t| normalise_type(t)),
        Some(Value::OptionalType(s)) => return s.elem_type.iter_mut().for_each(|t| normalise_type(t)),
        Some(Value::MapType(m)) => return m.value_type.iter_mut().for_each(|t| normalise_type(t)),
        Some(Value::OpaqueType(_)) | None => return,
    };
    use ampc::onnx::proto::tensor_shape_proto::dimension::Value as Dim;
    for dim in shape.iter_mut().flat_map(|s| &mut s.dim) {
        dim.denotation = None;
        match &dim.value {
            Some(Dim::DimParam(name)) if name.is_empty() => dim.value = None,
            Some(Dim::DimValue(n)) if *n < 0 => dim.value = None,
            _ => {}
        }
    }
}

fn normalise_node(node: &mut NodeProto) {
    node.doc_string = None;
    none_if_empty(&mut node.name);
    none_if_empty(&mut node.domain);
    none_if_empty(&mut node.overload);
    node.domain.take_if(|d| d == "ai.onnx");
    node.device_configurations.clear();
    node.attribute.iter_mut().for_each(normalise_attr);
}

fn normalise_attr(attr: &mut AttributeProto) {
    attr.doc_string = None;
    none_if_empty(&mut attr.ref_attr_name);
    let by_field = [
        (attr.f.is_some(), 1),
        (attr.i.is_some(), 2),
        (attr.s.is_some(), 3),
        (attr.t.is_some(), 4),
        (attr.g.is_some(), 5),
        (!attr.floats.is_empty(), 6),
        (!attr.ints.is_empty(), 7),
        (!attr.strings.is_empty(), 8),
    ];
    if attr.r#type.unwrap_or(0) == 0 {
        attr.r#type = by_field.iter().find(|(there, _)| *there).map(|&(_, kind)| kind);
    }
    if attr.ref_attr_name.is_none() {
        match attr.r#type {
            Some(1) => attr.f = Some(attr.f.unwrap_or_default()),
            Some(2) => attr.i = Some(attr.i.unwrap_or_default()),
            Some(3) => attr.s = Some(attr.s.take().unwrap_or_default()),
            _ => {}
        }
    }
    // Only the field of the kind counts.
    if attr.r#type != Some(2) {
        attr.i = None;
    }
    if attr.r#type != Some(1) {
        attr.f = None;
    }
    if attr.r#type != Some(3) {
        attr.s = None;
    }
    attr.t.iter_mut().for_each(|t| {
        normalise_tensor(t);
        t.name = None;
    });
    attr.tensors.iter_mut().for_each(|t| {
        normalise_tensor(t);
        t.name = None;
    });
    attr.g.iter_mut().for_each(|g| normalise_graph(g));
    attr.graphs.iter_mut().for_each(normalise_graph);
    attr.sparse_tensor.iter_mut().for_each(|s| {
        normalise_sparse(s);
        s.values.iter_mut().for_each(|v| v.name = None);
    });
    attr.tp.iter_mut().for_each(|t| normalise_type(t));
}

fn normalise_sparse(sparse: &mut SparseTensorProto) {
    sparse.values.iter_mut().for_each(normalise_tensor);
    sparse.indices.iter_mut().for_each(|t| {
        normalise_tensor(t);
        t.name = None;
    });
}

/// Elements as `raw_data`, by a second implementation of ONNX's rules.
fn normalise_tensor(tensor: &mut TensorProto) {
    tensor.doc_string = None;
    tensor.metadata_props.clear();
    none_if_empty(&mut tensor.name);
    tensor.data_location.take_if(|l| *l == 0);
    if tensor.data_type == Some(8) {
        return;
    }
    let width = match tensor.data_type.unwrap_or(0) {
        4 | 5 | 10 | 16 => 2,
        6 => 4,
        _ => 1,
    };
    let mut raw = tensor.raw_data.take().unwrap_or_default();
    raw.extend(std::mem::take(&mut tensor.float_data).iter().flat_map(|v| v.to_le_bytes()));
    raw.extend(std::mem::take(&mut tensor.double_data).iter().flat_map(|v| v.to_le_bytes()));
    raw.extend(std::mem::take(&mut tensor.int64_data).iter().flat_map(|v| v.to_le_bytes()));
    let wide = if tensor.data_type == Some(12) { 4 } else { 8 };
    raw.extend(
        std::mem::take(&mut tensor.uint64_data).iter().flat_map(|v| v.to_le_bytes().into_iter().take(wide)),
    );
    raw.extend(
        std::mem::take(&mut tensor.int32_data).iter().flat_map(|v| v.to_le_bytes().into_iter().take(width)),
    );
    tensor.raw_data = Some(raw);
}

/// G17: one unit per way of storing elements, read through the whole importer.
#[test]
fn g17_every_storage_gives_the_same_elements() {
    let tensor = |dtype: i32, dims: &[i64]| TensorProto {
        data_type: Some(dtype),
        dims: dims.to_vec(),
        name: Some("w".into()),
        ..TensorProto::default()
    };
    let f32s: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let cases: Vec<(TensorProto, Vec<u8>)> = vec![
        (TensorProto { raw_data: Some(f32s.clone()), ..tensor(1, &[2]) }, f32s.clone()),
        (TensorProto { float_data: vec![1.5, -2.0], ..tensor(1, &[2]) }, f32s.clone()),
        (TensorProto { float_data: vec![1.5, -2.0], ..tensor(14, &[1]) }, f32s),
        (TensorProto { double_data: vec![1.5], ..tensor(11, &[]) }, 1.5f64.to_le_bytes().to_vec()),
        (TensorProto { int32_data: vec![-1, 2], ..tensor(6, &[2]) }, vec![255, 255, 255, 255, 2, 0, 0, 0]),
        (TensorProto { int32_data: vec![-1, 2], ..tensor(3, &[2]) }, vec![255, 2]),
        (TensorProto { int32_data: vec![200, 2], ..tensor(2, &[2]) }, vec![200, 2]),
        (TensorProto { int32_data: vec![-2, 2], ..tensor(5, &[2]) }, vec![254, 255, 2, 0]),
        (TensorProto { int32_data: vec![0x3c00, 0xfc00], ..tensor(10, &[2]) }, vec![0, 0x3c, 0, 0xfc]),
        (TensorProto { int32_data: vec![0x3f80], ..tensor(16, &[1]) }, vec![0x80, 0x3f]),
        (TensorProto { int32_data: vec![1, 0], ..tensor(9, &[2]) }, vec![1, 0]),
        (TensorProto { int32_data: vec![0x21, 0x03], ..tensor(21, &[3]) }, vec![0x21, 0x03]),
        (TensorProto { int32_data: vec![0x7e], ..tensor(17, &[1]) }, vec![0x7e]),
        (TensorProto { int64_data: vec![-3], ..tensor(7, &[1]) }, (-3i64).to_le_bytes().to_vec()),
        (TensorProto { uint64_data: vec![7], ..tensor(12, &[1]) }, vec![7, 0, 0, 0]),
        (TensorProto { uint64_data: vec![u64::MAX], ..tensor(13, &[1]) }, vec![255; 8]),
        (tensor(1, &[0, 4]), vec![]),
    ];
    for (tensor, expected) in cases {
        let message = format!("{tensor:?}");
        let (module, _, _) = read_bytes("case", model_with(tensor), &ReadOptions::default()).unwrap();
        let value = module.graph(module.main()).constants()[0];
        let Some(Payload::Dense(data)) = module.constant(value) else { panic!("{message}") };
        assert_eq!(data.to_bytes().unwrap(), expected, "{message}");
        // Encoded afresh it has the same elements.
        let (bytes, _) = to_bytes(&module, None).unwrap();
        let fresh = ModelProto::decode(&*bytes).unwrap().graph.unwrap().initializer.remove(0);
        assert_eq!(fresh.raw_data, Some(expected), "{message}");
    }
}

/// Elements in the wrong field, too few or too many of them, are refused.
#[test]
fn g17_wrong_storage_is_refused() {
    let wrong = [
        (TensorProto { float_data: vec![1.0], ..TensorProto::default() }, 7, "is not for i64"),
        (TensorProto { float_data: vec![1.0; 3], ..TensorProto::default() }, 1, "needs 8 bytes, found 12"),
        (TensorProto { int32_data: vec![1; 1000], ..TensorProto::default() }, 6, "needs 8 bytes, found 4000"),
        (TensorProto { int64_data: vec![1], ..TensorProto::default() }, 7, "needs 16 bytes, found 8"),
        (
            TensorProto { int64_data: vec![1, 2], raw_data: Some(vec![0; 16]), ..TensorProto::default() },
            7,
            "expected one of them",
        ),
        (TensorProto { string_data: vec![vec![1]], ..TensorProto::default() }, 8, "needs 2 strings, found 1"),
    ];
    for (tensor, dtype, expected) in wrong {
        let tensor = TensorProto { dims: vec![2], data_type: Some(dtype), name: Some("w".into()), ..tensor };
        let error = read_bytes("case", model_with(tensor), &ReadOptions::default()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

fn model_with(tensor: TensorProto) -> Vec<u8> {
    let graph = GraphProto { name: Some("g".into()), initializer: vec![tensor], ..GraphProto::default() };
    let model = ModelProto { ir_version: Some(10), graph: Some(graph), ..ModelProto::default() };
    model.encode_to_vec()
}

/// Bodies can be told from the main graph (a sanity check of the corpus itself).
#[test]
fn the_corpus_has_bodies_and_functions() {
    let mut kinds = [0; 2];
    for (_, module, _) in readable() {
        for graph in module.graph_ids() {
            match module.graph(graph).owner {
                GraphOwner::Body { .. } => kinds[0] += 1,
                GraphOwner::Function(_) => kinds[1] += 1,
                GraphOwner::Main | GraphOwner::Erased => {}
            }
        }
    }
    assert!(models().is_empty() || kinds.iter().all(|&n| n > 0), "{kinds:?}");
}
