//! Input is checked, used or not, and messages about it are short and safe for a terminal.

use super::support::{Dir, MLP, snapshot};
use ampc::onnx::proto::tensor_shape_proto::{Dimension, dimension};
use ampc::onnx::proto::{
    AttributeProto, DeviceConfigurationProto, GraphProto, ModelProto, NodeDeviceConfigurationProto,
    NodeProto, OperatorSetIdProto, SparseTensorProto, StringStringEntryProto, TensorAnnotation, TensorProto,
    TensorShapeProto, TrainingInfoProto, TypeProto, ValueInfoProto, type_proto,
};
use prost::Message;

pub(super) fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

pub(super) fn typed(name: &str, dtype: i32, dims: &[i64]) -> ValueInfoProto {
    let dim = |&d: &i64| Dimension { denotation: None, value: Some(dimension::Value::DimValue(d)) };
    let shape = Some(TensorShapeProto { dim: dims.iter().map(dim).collect() });
    let value = Some(type_proto::Value::TensorType(type_proto::Tensor { elem_type: Some(dtype), shape }));
    let ty = TypeProto { value, denotation: None };
    ValueInfoProto { name: some(name), r#type: Some(ty), ..ValueInfoProto::default() }
}

pub(super) fn node(op: &str, name: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: some(op),
        name: some(name),
        input: inputs.iter().map(|s| (*s).to_owned()).collect(),
        output: outputs.iter().map(|s| (*s).to_owned()).collect(),
        ..NodeProto::default()
    }
}

/// x f32[2, 4] times w f32[4, 4] is y, declared with these dims.
pub(super) fn matmul(declared: &[i64]) -> GraphProto {
    GraphProto {
        name: some("g"),
        node: vec![node("MatMul", "mm", &["x", "w"], &["y"])],
        input: vec![typed("x", 1, &[2, 4])],
        output: vec![typed("y", 1, declared)],
        initializer: vec![TensorProto {
            name: some("w"),
            dims: vec![4, 4],
            data_type: Some(1),
            float_data: vec![1.0; 16],
            ..TensorProto::default()
        }],
        ..GraphProto::default()
    }
}

pub(super) fn model(opset: i64, graph: GraphProto) -> ModelProto {
    ModelProto {
        ir_version: Some(if opset < 9 { 3 } else { 8 }),
        opset_import: vec![OperatorSetIdProto { domain: some(""), version: Some(opset) }],
        graph: Some(graph),
        ..ModelProto::default()
    }
}

pub(super) fn write(dir: &Dir, name: &str, model: &ModelProto) {
    dir.write(name, model.encode_to_vec());
}

/// The bytes of a model with `GOOD` where it has text, and the same made bad.
fn spoiled(model: &ModelProto) -> (Vec<u8>, Vec<u8>) {
    let good = model.encode_to_vec();
    let mut bad = good.clone();
    let at = good.windows(4).position(|part| part == b"GOOD").unwrap();
    bad[at] = 0xff;
    (good, bad)
}

#[test]
fn a_field_that_is_not_used_is_read_all_the_same() {
    let dir = Dir::new();
    let good = || some("GOOD");
    let entry = || StringStringEntryProto { key: good(), value: None };
    let cases: Vec<(&str, ModelProto)> = vec![
        ("value_info", {
            let mut m = model(17, matmul(&[2, 4]));
            m.graph.as_mut().unwrap().value_info =
                vec![ValueInfoProto { doc_string: good(), ..typed("y", 1, &[2, 4]) }];
            m
        }),
        (
            "configuration",
            ModelProto {
                configuration: vec![DeviceConfigurationProto { name: good(), ..Default::default() }],
                ..model(17, matmul(&[2, 4]))
            },
        ),
        ("device_configurations", {
            let mut m = model(17, matmul(&[2, 4]));
            m.graph.as_mut().unwrap().node[0].device_configurations =
                vec![NodeDeviceConfigurationProto { configuration_id: good(), ..Default::default() }];
            m
        }),
        ("quantization_annotation", {
            let mut m = model(17, matmul(&[2, 4]));
            m.graph.as_mut().unwrap().quantization_annotation =
                vec![TensorAnnotation { tensor_name: good(), ..Default::default() }];
            m
        }),
        (
            "training_info",
            ModelProto {
                training_info: vec![TrainingInfoProto {
                    update_binding: vec![entry()],
                    ..Default::default()
                }],
                ..model(17, matmul(&[2, 4]))
            },
        ),
        ("metadata_props", {
            let mut m = model(17, matmul(&[2, 4]));
            m.graph.as_mut().unwrap().metadata_props = vec![entry()];
            m
        }),
        ("doc_string", {
            let mut m = model(17, matmul(&[2, 4]));
            m.graph.as_mut().unwrap().node[0].doc_string = good();
            m
        }),
    ];
    for (name, model) in cases {
        let (good, bad) = spoiled(&model);
        dir.write("m.onnx", good);
        assert_eq!(dir.run(&["check", "m.onnx"]).code, 0, "{name}");
        dir.write("m.onnx", bad);
        for args in [&["check", "m.onnx"][..], &["rewrite", "m.onnx", "-o", "out.onnx"]] {
            let run = dir.run(args);
            assert_eq!(run.code, 3, "{name}: {run}");
            let said = format!("{}{}", run.stdout, run.stderr);
            assert!(said.contains("ampc::import::utf8") && said.contains(name), "{name}: {said}");
        }
        assert_eq!(dir.files(), ["m.onnx"]);
    }
}

#[test]
fn what_is_declared_and_does_not_hold_is_warned_of() {
    let dir = Dir::new();
    write(&dir, "dims.onnx", &model(17, matmul(&[2, 5])));
    let mut unnamed = model(17, matmul(&[2, 4]));
    unnamed.graph.as_mut().unwrap().name = None;
    unnamed.graph.as_mut().unwrap().value_info = vec![typed("y", 1, &[3, 4])];
    unnamed.graph.as_mut().unwrap().node.push(node("Relu", "r", &["y"], &["z"]));
    unnamed.graph.as_mut().unwrap().output = vec![typed("z", 1, &[2, 4])];
    write(&dir, "unnamed.onnx", &unnamed);
    snapshot("declared_dims_check", &dir.run(&["check", "dims.onnx"]));
    snapshot("declared_dims_rewrite", &dir.run(&["rewrite", "dims.onnx", "-o", "out.onnx"]));
    snapshot("unnamed_graph_check", &dir.run(&["check", "unnamed.onnx"]));
    let branch = GraphProto {
        node: vec![node("Relu", "", &["x"], &["t"])],
        output: vec![typed("t", 1, &[2, 7])],
        ..GraphProto::default()
    };
    let mut body = model(17, matmul(&[2, 4]));
    let graph = body.graph.as_mut().unwrap();
    graph.input.push(typed("c", 9, &[]));
    graph.output.push(typed("b", 1, &[2, 4]));
    let attr = |name: &str, graph: &GraphProto| AttributeProto {
        name: some(name),
        r#type: Some(5),
        g: Some(Box::new(graph.clone())),
        ..AttributeProto::default()
    };
    let mut owner = node("If", "iff", &["c"], &["b"]);
    owner.attribute = vec![attr("then_branch", &branch), attr("else_branch", &branch)];
    graph.node.push(owner);
    write(&dir, "body.onnx", &body);
    snapshot("declared_dims_body", &dir.run(&["check", "body.onnx"]));
}

#[test]
fn a_model_below_opset_6_is_raised_if_it_needs_casts() {
    let dir = Dir::new();
    for opset in 1..=5 {
        let mut old = model(opset, matmul(&[2, 4]));
        let w = typed("w", 1, &[4, 4]);
        old.graph.as_mut().unwrap().input.push(w);
        write(&dir, "old.onnx", &old);
        let run = dir.run(&["rewrite", "old.onnx", "-o", "new.onnx", "--report", "r.json", "--force"]);
        assert_eq!(run.code, 0, "{run}");
        assert!(run.stderr.contains("ampc::warning::opset.raised"), "{run}");
        let new = std::fs::read(dir.path("new.onnx")).unwrap();
        let written = ModelProto::decode(&*new).unwrap();
        assert_eq!(written.opset_import[0].version, Some(6));
        let casts = written.graph.unwrap().node.into_iter().filter(|n| n.op_type() == "Cast");
        assert!(casts.flat_map(|n| n.attribute).all(|a| a.i.is_some() && a.s.is_none()));
        // What the report repeats, and a second rewrite, are the same bytes.
        assert_eq!(
            dir.run(&["rewrite", "old.onnx", "-o", "again.onnx", "--policy", "r.json", "--force"]).code,
            0
        );
        assert_eq!(std::fs::read(dir.path("again.onnx")).unwrap(), new);
        assert_eq!(dir.run(&["rewrite", "new.onnx", "-o", "twice.onnx", "--force"]).code, 0);
        assert_eq!(std::fs::read(dir.path("twice.onnx")).unwrap(), new);
        // Without anything to lower the model stays as it is.
        let run = dir.run(&["rewrite", "old.onnx", "-o", "kept.onnx", "--pin", "mm=fp32", "--force"]);
        assert!(run.code == 0 && !run.stderr.contains("opset.raised"), "{run}");
        assert_eq!(std::fs::read(dir.path("kept.onnx")).unwrap(), old.encode_to_vec());
    }
}

/// A Loop hands values of one type into its body, whatever the body declares.
#[test]
fn declared_inputs_of_bodies_that_do_not_hold_are_warned_of() {
    let dir = Dir::new();
    let looped = |dtype: i32, dims: &[i64]| {
        let body = GraphProto {
            name: some("b"),
            node: vec![node("Identity", "", &["c"], &["c2"]), node("Relu", "", &["s"], &["s2"])],
            input: vec![typed("i", 7, &[]), typed("c", 9, &[]), typed("s", dtype, dims)],
            output: vec![typed("c2", 9, &[]), typed("s2", 1, &[2, 4])],
            ..GraphProto::default()
        };
        let mut looped = model(17, matmul(&[2, 4]));
        let graph = looped.graph.as_mut().unwrap();
        graph.input.push(typed("n", 7, &[]));
        let mut owner = node("Loop", "loop", &["n", "", "y"], &["z"]);
        owner.attribute = vec![AttributeProto {
            name: some("body"),
            r#type: Some(5),
            g: Some(Box::new(body)),
            ..AttributeProto::default()
        }];
        graph.node.push(owner);
        graph.output.push(typed("z", 1, &[2, 4]));
        looped
    };
    for (dtype, dims, warned) in [(1, [2, 4], false), (1, [2, 7], true), (10, [2, 4], true)] {
        write(&dir, "m.onnx", &looped(dtype, &dims));
        let check = dir.run(&["check", "m.onnx"]);
        let rewrite = dir.run(&["rewrite", "m.onnx", "-o", "out.onnx", "--force"]);
        for said in [&check.stdout, &rewrite.stderr] {
            let is_said = said.contains("types.declared-input") && said.contains("`s` of body `body`");
            assert_eq!(is_said, warned, "{dtype} {dims:?}: {said}");
        }
        assert_eq!((check.code, rewrite.code), (0, 0), "{check}{rewrite}");
    }
}

/// A run reports how the model was read, and no warnings about rewriting it.
#[test]
fn runs_warn_of_how_a_model_is_read() {
    let dir = Dir::new();
    let mut found = model(17, matmul(&[2, 4]));
    found.opset_import.clear();
    found.graph.as_mut().unwrap().name = None;
    write(&dir, "m.onnx", &found);
    for args in [&["run", "m.onnx", "--random", "1"][..], &["verify", "m.onnx", "m.onnx", "--random", "1"]] {
        let run = dir.run(args);
        assert_eq!(run.code, 0, "{run}");
        assert!(run.stderr.contains("ampc::warning::onnx.missing-opset"), "{run}");
        assert!(!run.stderr.contains("onnx.unnamed-graph"), "{run}");
        assert_eq!(run.stderr.contains("`m.onnx`: domain"), args[0] == "verify", "{run}");
        let quiet = dir.run(&[args, &["-q"]].concat());
        assert!(quiet.code == 0 && quiet.stderr.is_empty(), "{quiet}");
    }
}

/// Which constants are not converted is said where nothing else is.
#[test]
fn quiet_runs_say_what_is_not_converted() {
    let dir = Dir::new();
    let mut found = model(17, matmul(&[2, 4]));
    let graph = found.graph.as_mut().unwrap();
    graph.input.push(typed("w", 1, &[4, 4]));
    write(&dir, "m.onnx", &found);
    let run = dir.run(&["rewrite", "m.onnx", "-o", "out.onnx", "-q"]);
    assert!(run.code == 0 && run.stderr.contains("onnx.overridable-initializers"), "{run}");
}

/// A text without the file of its constants can be looked at, and that is all.
#[test]
fn texts_without_their_data_are_warned_of() {
    let dir = Dir::new();
    dir.copy(super::support::MLP, "m.onnx");
    assert_eq!(dir.run(&["rewrite", "m.onnx", "-o", "m.ir"]).code, 0);
    assert!(!dir.run(&["check", "m.ir"]).stdout.contains("text.missing-data"));
    std::fs::remove_file(dir.path("m.ir.safetensors")).unwrap();
    let check = dir.run(&["check", "m.ir"]);
    assert!(check.code == 0 && check.stdout.contains("text.missing-data"), "{check}");
    assert_eq!(dir.run(&["run", "m.ir"]).code, 3);
}

/// One warning names the first of many domains that are not imported, and counts the others.
#[test]
fn what_is_there_many_times_is_warned_of_once() {
    let dir = Dir::new();
    let mut found = model(17, matmul(&[2, 4]));
    let graph = found.graph.as_mut().unwrap();
    for i in 0..1000 {
        let domain = some(&format!("d{i}"));
        let result = format!("o{i}");
        graph.node.push(NodeProto { domain, ..node("Op", "", &["y"], &[&result]) });
        graph.input.push(typed(&format!("i{i}"), 1, &[-2]));
    }
    write(&dir, "m.onnx", &found);
    let run = dir.run(&["check", "m.onnx"]);
    assert!(run.code == 0 && run.stdout.contains("2 warnings"), "{run}");
    let said = run.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("999 more") && said.contains("`d0`") && said.contains("`i0`"), "{run}");
}

/// `rewrite` raises such a model; passes do what they were asked for, and nothing that runtimes refuse.
#[test]
fn passes_write_no_cast_that_names_its_type_in_text() {
    let dir = Dir::new();
    let passes = "classify, guard, taint, assign, insert-casts, simplify-casts, convert-constants, dce";
    let raised = format!("raise-opset{{to=6}}, {passes}");
    for opset in [1, 5] {
        let mut old = model(opset, matmul(&[2, 4]));
        old.graph.as_mut().unwrap().input.push(typed("w", 1, &[4, 4]));
        write(&dir, "old.onnx", &old);
        for emit in ["onnx", "text"] {
            let opt = |passes: &str| {
                dir.run(&["opt", "old.onnx", "--passes", passes, "--emit", emit, "-o", "new", "--force"])
            };
            let run = opt(passes);
            assert_eq!(run.code, 4, "{run}");
            assert!(run.stderr.contains("raise-opset{to=6}") && !dir.path("new").exists(), "{run}");
            let run = opt(&raised);
            assert_eq!(run.code, 0, "{run}");
            std::fs::remove_file(dir.path("new")).unwrap();
        }
        let to = opset.to_string();
        let run = dir.run(&["rewrite", "old.onnx", "-o", "new", "--emit", "onnx", "--opset", &to]);
        assert!(run.code == 4 && run.stderr.contains("--opset 6"), "{run}");
    }
}

#[test]
fn a_model_below_opset_6_that_cannot_be_raised_is_refused() {
    let dir = Dir::new();
    let mut old = model(5, matmul(&[2, 4]));
    let graph = old.graph.as_mut().unwrap();
    graph.input.push(typed("w", 1, &[4, 4]));
    // Of unknown rank: the form of opset 6 has a number for each axis.
    let any = type_proto::Tensor { elem_type: Some(1), shape: None };
    let mut free = typed("q", 1, &[]);
    free.r#type.as_mut().unwrap().value = Some(type_proto::Value::TensorType(any));
    graph.input.extend([free, typed("n", 1, &[1]), typed("a", 1, &[1])]);
    graph.node.push(node("Tile", "tile", &["q", "n", "a"], &["z"]));
    graph.output.push(ValueInfoProto { name: some("z"), ..ValueInfoProto::default() });
    write(&dir, "old.onnx", &old);
    let run = dir.run(&["rewrite", "old.onnx", "-o", "new.onnx"]);
    assert_eq!(run.code, 4, "{run}");
    snapshot("opset_not_raised", &run);
    assert_eq!(dir.files(), ["old.onnx"]);
}

/// A matrix of 4 × 4 with 2 at (0, 1) and 3 at (3, 2).
fn sparse(indices: &[i64], shape: &[i64]) -> SparseTensorProto {
    let tensor = TensorProto { name: some("w"), dims: vec![2], data_type: Some(1), ..TensorProto::default() };
    let indices = TensorProto {
        dims: shape.to_vec(),
        data_type: Some(7),
        int64_data: indices.to_vec(),
        ..TensorProto::default()
    };
    SparseTensorProto {
        values: Some(TensorProto { float_data: vec![2.0, 3.0], ..tensor }),
        indices: Some(indices),
        dims: vec![4, 4],
    }
}

#[test]
fn sparse_initializers_are_read_as_dense_ones() {
    let dir = Dir::new();
    let with = |sparse: SparseTensorProto| {
        let mut m = model(17, matmul(&[2, 4]));
        m.graph.as_mut().unwrap().initializer.clear();
        m.graph.as_mut().unwrap().sparse_initializer = vec![sparse];
        m
    };
    let mut dense = model(17, matmul(&[2, 4]));
    let values = &mut dense.graph.as_mut().unwrap().initializer[0].float_data;
    values.fill(0.0);
    (values[1], values[14]) = (2.0, 3.0);
    write(&dir, "dense.onnx", &dense);
    let expected = dir.run(&["run", "dense.onnx", "--random", "1"]);
    for sparse in [sparse(&[1, 14], &[2]), sparse(&[0, 1, 3, 2], &[2, 2])] {
        let model = with(sparse);
        write(&dir, "m.onnx", &model);
        let run = dir.run(&["run", "m.onnx", "--random", "1"]);
        assert_eq!((run.code, &run.stdout), (0, &expected.stdout), "{run}");
        assert!(dir.run(&["check", "m.onnx"]).stdout.contains("onnx.sparse-initializers"));
        // Untouched it stays as it is, lowered it is an initializer as others.
        dir.run(&["rewrite", "m.onnx", "-o", "kept.onnx", "--force", "--pin", "*=fp32"]);
        assert_eq!(std::fs::read(dir.path("kept.onnx")).unwrap(), model.encode_to_vec());
        assert_eq!(dir.run(&["rewrite", "m.onnx", "-o", "low.onnx", "--force"]).code, 0);
        let low = ModelProto::decode(&*std::fs::read(dir.path("low.onnx")).unwrap()).unwrap().graph.unwrap();
        assert_eq!((low.sparse_initializer.len(), low.initializer.len()), (0, 1));
        assert_eq!(dir.run(&["verify", "m.onnx", "low.onnx", "--random", "1"]).code, 0);
    }
    let huge = SparseTensorProto { dims: vec![1 << 20, 1 << 20], ..sparse(&[1, 14], &[2]) };
    for (wrong, code) in [
        (sparse(&[14, 1], &[2]), "tensor_sparse_order"),
        (sparse(&[1, 16], &[2]), "tensor_sparse_range"),
        (sparse(&[1, 2, 3], &[3]), "tensor_sparse_indices"),
        (huge, "tensor_sparse_too_large"),
    ] {
        write(&dir, "m.onnx", &with(wrong));
        let run = dir.run(&["check", "m.onnx"]);
        assert!(run.code == 3 && run.stdout.contains(code), "{run}");
    }
    // The indices have no name: what is wrong with them is said of the tensor.
    let short = TensorProto { int64_data: vec![1], ..sparse(&[1, 14], &[2]).indices.unwrap() };
    for indices in [None, Some(short)] {
        write(&dir, "m.onnx", &with(SparseTensorProto { indices, ..sparse(&[1, 14], &[2]) }));
        let run = dir.run(&["check", "m.onnx"]);
        assert!(run.code == 3 && run.stdout.contains("tensor `w`"), "{run}");
    }
}

/// A declared map type may omit the values that ONNX's operator makes, or contradict them.
#[test]
fn a_map_is_declared_by_its_values() {
    let dir = Dir::new();
    for (shape, contradicts) in [("[*]", false), ("", false), ("[1]", true), ("[N]", true)] {
        let text = format!(
            "module ir=8\nopset ai.onnx=17, ai.onnx.ml=3\n\ngraph @g {{\n  input %x : f32[2, 3]\n  \
             %z = ai.onnx.ml::ZipMap(%x) {{classlabels_int64s=[0, 1, 2]}} : ?\n  \
             output %z : seq(map(i64, f32{shape}))\n}}\n"
        );
        dir.write("m.ir", &text);
        let run = dir.run(&["check", "m.ir"]);
        assert_eq!(
            (run.code, run.stdout.contains("types.declared-output")),
            (0, contradicts),
            "{shape}: {run}"
        );
    }
}

#[test]
fn a_missing_data_file_is_one_problem() {
    let dir = Dir::new();
    let mut m = model(17, matmul(&[2, 4]));
    let graph = m.graph.as_mut().unwrap();
    let entry = |key: &str, value: &str| StringStringEntryProto { key: some(key), value: some(value) };
    let outside = |i: usize, file: &str| TensorProto {
        name: Some(format!("w{i}")),
        dims: vec![4],
        data_type: Some(1),
        data_location: Some(1),
        external_data: vec![entry("location", file), entry("offset", &(16 * i).to_string())],
        ..TensorProto::default()
    };
    graph.initializer.extend((0..50).map(|i| outside(i, "weights.bin")));
    graph.initializer.push(outside(50, "other.bin"));
    write(&dir, "m.onnx", &m);
    snapshot("import_missing_data", &dir.run(&["check", "m.onnx"]));
}

#[test]
fn a_file_that_is_no_model_is_called_by_its_name() {
    let dir = Dir::new();
    let safetensors = [&9u64.to_le_bytes()[..], b"{\"a\":{}}    "].concat();
    let cases: &[(&[u8], &str)] = &[
        (b"PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00\x00\x00\x00\x00archive/data.pklFB", "PyTorch"),
        (b"PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00\x00\x00\x00\x00model.onnx", "zip archive"),
        (b"PK\x03\x04\x14\x00\x00\x00\x00\x00\x00\x00\x21\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00x.npy\x93NUMPY", "archive of NumPy's arrays"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.", "pickle"),
        (b"\x89HDF\r\n\x1a\n\x00\x00\x00", "HDF5"),
        (&safetensors, "safetensors"),
        (b"\x1c\x00\x00\x00TFL3\x14\x00 \x00", "TensorFlow Lite"),
        (b"\x0a\x15\x0a\x01x\x12\x0bPlaceholder\x1a\x03abc", "TensorFlow graph"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "compressed"),
        (b"This is a note about a model.\n", "text"),
        (b"{\"nodes\": []}", "JSON"),
        (b"module ir=10\nopset ai.onnx=21\n", "`.ir`"),
        (b"<html><body>404</body></html>", "web page"),
        (b"\x93NUMPY\x01\x00v\x00{'descr'", "NumPy"),
    ];
    for (bytes, said) in cases {
        dir.write("m.onnx", bytes);
        let run = dir.run(&["rewrite", "m.onnx", "-o", "out.onnx"]);
        assert!(run.code == 3 && run.stderr.contains(said), "{said}: {run}");
        assert!(!run.stderr.contains("wire") && run.stderr.contains("ampc::import::not_a_model"), "{run}");
    }
    let cut = &std::fs::read(MLP).unwrap()[..2000];
    dir.write("m.onnx", cut);
    assert!(dir.run(&["check", "m.onnx"]).stdout.contains("truncated"));
}

#[test]
fn a_policy_or_target_that_is_not_utf8_is_wrong_usage() {
    let dir = Dir::new();
    dir.copy(MLP, "mlp.onnx");
    dir.write("p.json", b"{\"schema\": \"\xff\"}");
    for args in [
        &["policy", "check", "p.json"][..],
        &["target", "check", "p.json"],
        &["rewrite", "mlp.onnx", "--policy", "p.json"],
        &["rewrite", "mlp.onnx", "--target", "p.json"],
    ] {
        let run = dir.run(args);
        assert!(
            run.code == 2 && run.stderr.contains("expected UTF-8") && run.stderr.contains("byte at 12"),
            "{run}"
        );
    }
    assert_eq!(dir.files(), ["mlp.onnx", "p.json"]);
}

#[test]
fn a_node_may_have_many_attributes() {
    let dir = Dir::new();
    let mut m = model(17, matmul(&[2, 4]));
    let graph = m.graph.as_mut().unwrap();
    let attr = |i: usize| AttributeProto {
        name: Some(format!("a{i}")),
        r#type: Some(2),
        i: Some(1),
        ..AttributeProto::default()
    };
    let mut large = node("Op", "large", &["y"], &["z"]);
    large.domain = some("my");
    large.attribute = (0..100_000).map(attr).collect();
    graph.node.push(large);
    write(&dir, "m.onnx", &m);
    // With a step per pair of attributes this would take minutes; the judge of damaged files bounds the time.
    assert_eq!(dir.run(&["rewrite", "m.onnx", "-o", "out.onnx"]).code, 0);
}

/// Nodes that raising the opset inserts are decided like other nodes, and a report repeats the decisions.
#[test]
fn a_report_repeats_what_was_decided_about_a_raised_opset() {
    let dir = Dir::new();
    let text = "module ir=8\nopset ai.onnx=7\n\ngraph @g {\n  input %x : f32[1, 3, 4, 4]\n  \
                %y = ImageScaler(%x) {bias=[1.0, 2.0, 3.0], scale=0.5} : ? @is\n  output %y : f32[*]\n}\n";
    dir.write("m.ir", text);
    let rewrite = |args: &str| dir.run(&args.split(' ').collect::<Vec<_>>());
    let first = rewrite("rewrite m.ir -o a.onnx --opset 21 --policy all --report r.json");
    assert_eq!(first.code, 0, "{first}");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path("r.json")).unwrap()).unwrap();
    let nodes: Vec<(&str, &str)> = report["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| (node["op"].as_str().unwrap(), node["precision"].as_str().unwrap()))
        .collect();
    assert_eq!(nodes, [("Add", "fp16"), ("Mul", "fp16")]);
    assert_eq!(report["summary"]["nodes"], 1);
    assert_eq!(rewrite("rewrite m.ir -o b.onnx --policy r.json").code, 0);
    assert!(std::fs::read(dir.path("a.onnx")).unwrap() == std::fs::read(dir.path("b.onnx")).unwrap());
}
