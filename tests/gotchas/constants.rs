//! Conversion of weights: G13 to G17.

use crate::proto::{
    initializer, load_proto, model as proto_model, node, nodes_of, raw, some, typed, with_attr, written,
};
use crate::runtime::{exec_models, f32s};
use crate::support::{Ask, Decided, lower, lower_with, model, module_at, options, pin_f32, policy, rewrite};
use ampc::ir::{Builder, DType, TensorData};
use ampc::onnx::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto};
use ampc::passes::guard::OutOfRange;
use half::f16;
use prost::Message;

const TOO_LARGE: &str = "input %x : f32[1, 4]
     const %w : f32[4, 1] = [1e9, -3.0, -2e9, 0.5]
     %y = MatMul(%x, %w) : ?
     output %y : f32[1, 1]";

/// G13: values beyond the range keep their reader in fp32, are clamped, or are an error; always with numbers.
#[test]
fn g13_modes_for_values_beyond_the_range() {
    let keep = lower(TOO_LARGE);
    assert_eq!((keep.precision("y"), keep.rule("y"), keep.dtype("w")), ("fp32", "guard.range", DType::F32));
    let evidence = &keep.report.node("y").unwrap().vars[0].evidence;
    assert_eq!(evidence, "constant `w`: 2 of 4 values beyond f16, -2e9 to 1e9");

    let clamp = lower_with(TOO_LARGE, |o| o.out_of_range = OutOfRange::Clamp);
    assert_eq!((clamp.precision("y"), clamp.dtype("w")), ("fp16", DType::F16));
    assert_eq!(clamp.floats("w"), [65504.0, -3.0, -65504.0, 0.5]);
    let [converted] = &clamp.report.constants.converted[..] else { panic!("{:?}", clamp.report.constants) };
    let loss = converted.loss.as_ref().unwrap();
    assert_eq!((converted.name.as_str(), converted.count, loss.overflow), ("w", 4, 2));
    assert_eq!((loss.min, loss.max), (-2e9, 1e9));
    let mut warnings = clamp.report.warnings.iter();
    let warning = warnings.find(|warning| warning.code == "constant.overflow").unwrap();
    assert_eq!(warning.message, "constant `w`: 2 of 4 values, -2e9 to 1e9, were clamped in f16");

    let error = ampc::rewrite(model(TOO_LARGE), &{
        let mut options = options(DType::F16);
        options.out_of_range = OutOfRange::Error;
        options
    });
    let message = error.unwrap_err().to_string();
    assert!(message.contains("`w` has 2 finite values beyond the range of f16 (-2e9 to 1e9)"), "{message}");
}

/// Checks the error for a constant that does not fit, described as `what`, in a graph of operator set 10.
#[track_caller]
fn is_an_error(what: &str, remedy: &str, graph: &str) {
    let source = || ampc::Model::from(module_at(10, graph));
    assert!(ampc::rewrite(source(), &options(DType::F16)).is_ok(), "{what}: kept by default");
    let mut options = options(DType::F16);
    options.out_of_range = OutOfRange::Error;
    let error = ampc::rewrite(source(), &options).unwrap_err();
    assert_eq!(error.kind(), ampc::ErrorKind::InvalidInput, "{what}");
    let expected = format!("{what} has 1 finite value beyond the range of f16 (-1e9 to -1e9): {remedy}");
    assert!(error.to_string().contains(&expected), "{error}");
}

/// G13: whatever holds a number that does not fit, an error is an error.
#[test]
fn g13_error_for_constants_fills_and_attributes() {
    let graph = |maker: &str, op: &str| {
        format!(
            "input %x : f32[2, 2]
             const %w : f32[2, 2] = [1.0, 0.0, 0.0, 1.0]
             {maker}
             %t = MatMul(%x, %w) : ?
             %a = {op} : ?
             %y = MatMul(%a, %w) : ?
             output %y"
        )
    };
    let any = "pin its readers to fp32, or use `--out-of-range keep` or `clamp`";
    let add = "Add(%t, %c)";
    is_an_error("constant `c`", any, &graph("const %c : f32 = -1e9", add));
    is_an_error("constant `c`", any, &graph("%c = Constant() {value=tensor(f32 = -1e9)} : f32", add));
    let fill = "const %shape : i64[1] = [1]
             %c = ConstantOfShape(%shape) {value=tensor(f32[1] = [-1e9])} : ?";
    is_an_error("fill `c`", any, &graph(fill, add));
    let node = "pin the node to fp32, or use `--out-of-range keep`";
    let pad = "Pad(%t) {mode=\"constant\", pads=[0, 0, 0, 0], value=-1e9}";
    is_an_error("attribute `value` of Pad", node, &graph("", pad));
    is_an_error("attribute `max` of Clip", node, &graph("", "Clip(%t) {max=-1e9}"));
}

/// G13: what the user asked for with a disabled guard is done, but not in silence.
#[test]
fn g13_overflow_that_was_asked_for_is_reported() {
    let done = lower_with(TOO_LARGE, |o| policy(o).disable_guard("range").unwrap());
    assert_eq!(done.floats("w"), [f64::INFINITY, -3.0, f64::NEG_INFINITY, 0.5]);
    assert_eq!(done.report.warnings[0].code, "constant.overflow");
}

/// G14: infinities, NaN and signs stay, subnormals are rounded and not flushed.
#[test]
fn g14_special_values_of_constants() {
    let values =
        [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -0.0, 6e-8, -1e-9, 2f32.powi(-25) * 1.5, -3e-5, 1.0];
    let mut b = Builder::new("g", 17);
    let x = b.input("x", DType::F32, ["1", "9"]);
    let w = b.constant("w", TensorData::from_f32(&[9, 1], &values).unwrap());
    let y = b.op("MatMul", &[x, w]).unwrap();
    b.output("y", y).unwrap();
    let done = rewrite(b.finish().unwrap().into(), &options(DType::F16));
    let out = written(&done);
    let bits = low_bits(initializer(&out, "w"));
    assert!(f16::from_bits(bits[2]).is_nan(), "{:#x}", bits[2]);
    let others = [&bits[..2], &bits[3..]].concat();
    assert_eq!(others, [0x7c00, 0xfc00, 0x8000, 0x0001, 0x8000, 0x0001, 0x81f7, 0x3c00]);
    let loss = done.report.constants.converted[0].loss.as_ref().unwrap();
    assert_eq!((loss.overflow, loss.flushed), (0, 1), "1e-9 alone is lost");
}

fn low_bits(tensor: &TensorProto) -> Vec<u16> {
    assert!(tensor.data_type == Some(10) || tensor.data_type == Some(16), "{:?}", tensor.data_type);
    let bytes = tensor.raw_data.as_ref().expect("converted elements are raw");
    bytes.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect()
}

/// Rounding to nearest even, from the bits: the upper half, one more if the lower is beyond the middle, or in it
/// and the upper odd.
fn reference_bf16(v: f32) -> u16 {
    let upper = u16::try_from(v.to_bits() >> 16).unwrap();
    let lower = v.to_bits() & 0xffff;
    upper + u16::from(lower > 0x8000 || (lower == 0x8000 && upper % 2 == 1))
}

/// Rounding to nearest even by search: of the finite f16 and infinity, the nearest in exact arithmetic.
fn reference_f16(v: f32) -> u16 {
    let a = f64::from(v.abs());
    // Beyond the range the next number would be 65536, which stands for infinity.
    let value = |bits: u16| if bits == 0x7c00 { 65536.0 } else { f64::from(f16::from_bits(bits)) };
    let above = (0..0x7c00u16).collect::<Vec<_>>().partition_point(|&b| value(b) < a);
    let above = u16::try_from(above).unwrap();
    let best = [above.saturating_sub(1), above]
        .into_iter()
        .min_by(|&p, &q| {
            let off = |b: u16| (value(b) - a).abs();
            off(p).total_cmp(&off(q)).then((p % 2).cmp(&(q % 2)))
        })
        .unwrap();
    best | if v.is_sign_negative() { 0x8000 } else { 0 }
}

/// G15: what is written is rounded to nearest even, over all exponents, and NaN stay NaN whatever their payload.
#[test]
fn g15_written_constants_are_rounded_to_nearest_even() {
    let mut values = Vec::new();
    for exponent in 0..=255u32 {
        for mantissa in
            [0, 1, 0x0fff, 0x1000, 0x1001, 0x3000, 0x7fff, 0x8000, 0x8001, 0x1_8000, 0x55_5555, 0x7f_ffff]
        {
            let v = f32::from_bits(exponent << 23 | mantissa);
            values.extend([v, -v]);
        }
    }
    let n = i64::try_from(values.len()).unwrap();
    for to in [DType::F16, DType::BF16] {
        let graph = GraphProto {
            name: some("g"),
            node: vec![node("MatMul", &["x", "w"], &["y"])],
            initializer: vec![raw("w", &[n, 1], &values)],
            input: vec![typed("x", DType::F32, &[1, n])],
            output: vec![typed("y", DType::F32, &[1, 1])],
            ..GraphProto::default()
        };
        let mut options = options(to);
        policy(&mut options).disable_guard("range").unwrap();
        let out = written(&rewrite(load_proto(&proto_model(10, 17, graph)), &options));
        for (v, bits) in values.iter().zip(low_bits(initializer(&out, "w"))) {
            if v.is_nan() {
                let (exponent, payload) = if to == DType::F16 { (0x7c00, 0x3ff) } else { (0x7f80, 0x7f) };
                assert!(bits & exponent == exponent && bits & payload != 0, "{:#x} in {to}", v.to_bits());
            } else {
                let expected = if to == DType::F16 { reference_f16(*v) } else { reference_bf16(*v) };
                assert_eq!(bits, expected, "{v:e} ({:#x}) in {to}", v.to_bits());
            }
        }
    }
}

/// An embedding whose table is the head's weight as well.
fn tied(more: &str) -> String {
    format!(
        "input %ids : i64[3]
         const %e : f32[8, 4] = random(1, 1.0)
         const %w : f32[4, 4] = random(2, 1.0)
         %h = Gather(%e, %ids) : ?
         %t = MatMul(%h, %w) : ?
         %y = Gemm(%t, %e) {{transB=1}} : ?
         {more}
         output %y : f32[3, 8]"
    )
}

/// G16: tied weights are converted once and stay tied.
#[test]
fn g16_tied_weights_are_converted_once() {
    let done = lower(&tied(""));
    assert_eq!(
        done.report.constants.converted.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(),
        ["e", "w"]
    );
    assert_eq!(done.report.constants.bytes_after * 2, done.report.constants.bytes_before);
    let out = written(&done);
    assert_eq!(out.graph.as_ref().unwrap().initializer.len(), 2);
    assert_eq!(nodes_of(&out, "Gather")[0].input[0], nodes_of(&out, "Gemm")[0].input[1]);
}

/// G16: a weight read in both types is there in both, each once.
#[test]
fn g16_weights_read_in_both_types_are_stored_twice_and_not_more() {
    let done = lower_with(
        &tied("%a = Exp(%e) : ?\n%b = Log(%a) : ?\n%c = Mul(%b, %e) : ?\noutput %c : f32[8, 4]"),
        |o| pin_f32(o, "c"),
    );
    assert_eq!((done.precision("y"), done.precision("a")), ("fp16", "fp32"));
    let out = written(&done);
    let tables: Vec<_> =
        out.graph.as_ref().unwrap().initializer.iter().filter(|t| t.dims == [8, 4]).collect();
    let types: Vec<_> = tables.iter().map(|t| t.data_type()).collect();
    assert_eq!(types, [1, 10]);
    assert_eq!(nodes_of(&out, "Gather")[0].input[0], nodes_of(&out, "Gemm")[0].input[1]);
    assert!(done.report.constants.converted.iter().find(|c| c.name != "w").unwrap().duplicated);
    let both = 8 * 4 * (4 + 2) + 4 * 4 * 2;
    assert_eq!(done.report.constants.bytes_after, both);
}

/// MatMul, a product with `c`, MatMul: everything low. `c` is what the arguments say.
fn scaled(initializers: Vec<TensorProto>, constant: Option<NodeProto>) -> GraphProto {
    let mut nodes: Vec<NodeProto> = constant.into_iter().collect();
    nodes.extend([
        node("MatMul", &["x", "w"], &["t"]),
        node("Mul", &["t", "c"], &["s"]),
        node("MatMul", &["s", "w"], &["y"]),
    ]);
    let mut initializer = vec![raw("w", &[2, 2], &[0.5, 1.0, -1.0, 0.25])];
    initializer.extend(initializers);
    GraphProto {
        name: some("g"),
        node: nodes,
        initializer,
        input: vec![typed("x", DType::F32, &[2, 2])],
        output: vec![typed("y", DType::F32, &[2, 2])],
        ..GraphProto::default()
    }
}

/// 0.1 and −3 in f16.
const EXPECTED: [u16; 2] = [0x2e66, 0xc200];

fn tensor(name: &str) -> TensorProto {
    TensorProto { name: some(name), dims: vec![2], data_type: Some(1), ..TensorProto::default() }
}

/// G17: elements in `raw_data` and in `float_data`.
#[test]
fn g17_initializers_of_both_storage_kinds() {
    let float_data = TensorProto { float_data: vec![0.1, -3.0], ..tensor("c") };
    for c in [raw("c", &[2], &[0.1, -3.0]), float_data] {
        let done = rewrite(load_proto(&proto_model(8, 17, scaled(vec![c], None))), &options(DType::F16));
        assert_eq!(done.precision("s"), "fp16");
        let out = written(&done);
        assert_eq!(low_bits(initializer(&out, "c")), EXPECTED);
        assert!(initializer(&out, "c").float_data.is_empty());
    }
}

/// G17: f16 elements in `int32_data`, one a number.
#[test]
fn g17_low_elements_in_int32_data() {
    let c = TensorProto { data_type: Some(10), raw_data: None, ..tensor("c") };
    let mut c = TensorProto { ..c };
    c.int32_data = EXPECTED.map(i32::from).to_vec();
    let mut graph = scaled(vec![c], None);
    graph.initializer[0] = TensorProto {
        data_type: Some(10),
        raw_data: Some([0x3800u16, 0x3c00, 0xbc00, 0x3400].iter().flat_map(|b| b.to_le_bytes()).collect()),
        ..graph.initializer[0].clone()
    };
    graph.input = vec![typed("x", DType::F16, &[2, 2])];
    graph.output = vec![typed("y", DType::F16, &[2, 2])];
    let source = proto_model(8, 17, graph);
    // Nothing to lower; the emulated export converts to f32 and reads the numbers for that.
    let done = rewrite(load_proto(&source), &options(DType::F16));
    assert_eq!(written(&done).encode_to_vec(), source.encode_to_vec());
    let (wide, _) = ampc::emulate(done.model).unwrap();
    assert_eq!(wide.module.dtype("c"), DType::F32);
    assert_eq!(wide.module.floats("c"), [f64::from(f16::from_f32(0.1)), -3.0]);
}

/// G17: elements in an external file.
#[test]
fn g17_initializers_in_external_files() {
    use crate::proto::entry;
    let folder = tempfile::tempdir().unwrap();
    let mut data = vec![7u8; 64];
    data.extend([0.1f32, -3.0].iter().flat_map(|v| v.to_le_bytes()));
    std::fs::write(folder.path().join("weights.bin"), data).unwrap();
    let c = TensorProto {
        data_location: Some(1),
        external_data: vec![entry("location", "weights.bin"), entry("offset", "64"), entry("length", "8")],
        ..tensor("c")
    };
    let path = folder.path().join("m.onnx");
    std::fs::write(&path, proto_model(8, 17, scaled(vec![c], None)).encode_to_vec()).unwrap();
    let done = rewrite(ampc::load(&path).unwrap(), &options(DType::F16));
    let out = folder.path().join("m.fp16.onnx");
    ampc::save(&done.model, &out, &ampc::SaveOptions::default()).unwrap();
    let again = ampc::load(&out).unwrap();
    assert_eq!(again.module.dtype("c"), DType::F16);
    assert_eq!(again.module.floats("c"), [f64::from(f16::from_bits(EXPECTED[0])), -3.0]);
    let inline = ampc::onnx::to_bytes(&done.model.module, done.model.source.as_ref()).unwrap().0;
    assert_eq!(low_bits(initializer(&ModelProto::decode(&*inline).unwrap(), "c")), EXPECTED);
}

/// G17: the three attributes of Constant that hold floats.
#[test]
fn g17_constant_attributes() {
    let attr =
        |name: &str, kind: i32| AttributeProto { name: some(name), r#type: Some(kind), ..Default::default() };
    let tensor_of = TensorProto { float_data: vec![0.1, -3.0], ..tensor("") };
    let cases = [
        (AttributeProto { t: Some(Box::new(tensor_of)), ..attr("value", 4) }, &EXPECTED[..]),
        (AttributeProto { floats: vec![0.1, -3.0], ..attr("value_floats", 6) }, &EXPECTED[..]),
        (AttributeProto { f: Some(0.1), ..attr("value_float", 1) }, &EXPECTED[..1]),
    ];
    for (attribute, expected) in cases {
        let constant = with_attr(node("Constant", &[], &["c"]), attribute.clone());
        let source = proto_model(8, 17, scaled(vec![], Some(constant)));
        let done = rewrite(load_proto(&source), &options(DType::F16));
        let out = written(&done);
        let [value] = &nodes_of(&out, "Constant")[0].attribute[..] else { panic!("{}", attribute.name()) };
        assert_eq!(value.name(), "value", "the result has the type of the tensor");
        assert_eq!(low_bits(value.t.as_ref().unwrap()), expected);
        assert!(nodes_of(&out, "Cast").iter().all(|n| n.input[0] != "c"), "no cast at run time");
    }
}

/// Element 1 of 2 is −3, in sparse form.
fn sparse() -> SparseTensorProto {
    SparseTensorProto {
        values: Some(TensorProto { dims: vec![1], float_data: vec![-3.0], ..tensor("c") }),
        indices: Some(TensorProto {
            name: some("c_indices"),
            dims: vec![1],
            data_type: Some(7),
            int64_data: vec![1],
            ..TensorProto::default()
        }),
        dims: vec![2],
    }
}

/// G17: a sparse constant stays as it is, and is cast where it is read.
#[test]
fn g17_sparse_constants() {
    let value = AttributeProto {
        name: some("sparse_value"),
        r#type: Some(11),
        sparse_tensor: Some(Box::new(sparse())),
        ..AttributeProto::default()
    };
    let constant = with_attr(node("Constant", &[], &["c"]), value);
    let mut graph = scaled(vec![], Some(constant.clone()));
    // One that nobody reads: operators do not take sparse tensors.
    let unread = SparseTensorProto {
        values: Some(TensorProto { name: some("d"), ..sparse().values.unwrap() }),
        ..sparse()
    };
    graph.sparse_initializer = vec![unread.clone()];
    let source = proto_model(10, 17, graph);
    let feeds = [f32s("x", &[2, 2], &[1.0, 0.5, -0.25, 2.0])];
    let (done, runs) = exec_models(load_proto(&source), load_proto(&source), &options(DType::F16), &feeds);
    let out = written(&done);
    assert_eq!(out.graph.as_ref().unwrap().sparse_initializer, [unread]);
    assert_eq!(nodes_of(&out, "Constant"), [&constant]);
    assert_eq!((done.precision("s"), done.dtype("c")), ("fp16", DType::F32));
    if let Some(runs) = runs {
        // All values are exact in f16.
        runs.are_within(0.0);
    }
}
