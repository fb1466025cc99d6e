//! Inference of ampc compared with inference of onnx for operators that move data: thousands of single nodes
//! over all versions, written by `scripts/generate_inference_cases_data.py`.
//!
//! The law: ampc says at least as much as onnx, and rejects what onnx rejects. Where the two differ on purpose,
//! [`explained`] says why.

#![expect(clippy::unwrap_used, reason = "a case that cannot be read fails the test")]

use ampc_ir::attr::AttrValue;
use ampc_ir::infer::infer_module;
use ampc_ir::op::{Lookup, lookup};
use ampc_ir::{
    DType, Dim, Module, NewNode, Op, Payload, Position, Shape, TensorData, Type, edit::payload_type,
};
use std::collections::BTreeSet;
use std::sync::Arc;

struct Case<'a> {
    op: &'a str,
    version: u16,
    attrs: &'a str,
    operands: &'a str,
    n_results: usize,
    expected: &'a str,
}

fn dims(module: &mut Module, text: &str) -> Shape {
    if text == "*" {
        return Shape::unknown();
    }
    Shape::of(text.split(',').filter(|d| !d.is_empty()).map(|d| match d.parse() {
        Ok(n) => Dim::Known(n),
        Err(_) if d == "?" => Dim::Unknown,
        Err(_) => Dim::Sym(module.intern(d)),
    }))
}

fn parse_type(module: &mut Module, text: &str) -> Type {
    if let Some(inner) = text.strip_prefix("seq(").and_then(|t| t.strip_suffix(')')) {
        return Type::Sequence(Box::new(parse_type(module, inner)));
    }
    if let Some(inner) = text.strip_prefix("opt(").and_then(|t| t.strip_suffix(')')) {
        return Type::Optional(Box::new(parse_type(module, inner)));
    }
    if text == "?" {
        return Type::Unknown;
    }
    let (dtype, rest) = text.split_once('[').unwrap();
    let shape = dims(module, rest.strip_suffix(']').unwrap());
    Type::tensor(dtype.parse().unwrap(), shape)
}

/// `i64[2]={1,-1}`.
fn parse_constant(module: &mut Module, ty: &str, elements: &str) -> TensorData {
    let ty = parse_type(module, ty);
    let (dtype, shape) = (ty.dtype().unwrap(), ty.shape().unwrap().to_known().unwrap());
    let items = elements.trim_matches(['{', '}']).split(',').filter(|e| !e.is_empty());
    let bytes: Vec<u8> = match dtype {
        DType::I64 => items.flat_map(|e| e.parse::<i64>().unwrap().to_le_bytes()).collect(),
        DType::I32 => items.flat_map(|e| e.parse::<i32>().unwrap().to_le_bytes()).collect(),
        DType::F32 => items.flat_map(|e| e.parse::<f32>().unwrap().to_le_bytes()).collect(),
        DType::F16 => items.flat_map(|_| [0, 0]).collect(),
        DType::Bool => items.map(|e| e.parse::<u8>().unwrap()).collect(),
        other => panic!("no constants of {other} in the cases"),
    };
    TensorData::from_bytes(dtype, &shape, bytes).unwrap()
}

fn parse_attr(module: &mut Module, text: &str) -> AttrValue {
    let (kind, text) = text.split_once(':').unwrap();
    let items = || text.split(',').filter(|e| !e.is_empty());
    let bytes = |s: &str| s.as_bytes().to_vec().into_boxed_slice();
    match kind {
        "i" => AttrValue::Int(text.parse().unwrap()),
        "f" => AttrValue::Float(text.parse().unwrap()),
        "s" => AttrValue::String(bytes(text)),
        "is" => AttrValue::Ints(items().map(|e| e.parse().unwrap()).collect()),
        "fs" => AttrValue::Floats(items().map(|e| e.parse().unwrap()).collect()),
        "ss" => AttrValue::Strings(items().map(bytes).collect()),
        "type" => AttrValue::Type(parse_type(module, text)),
        "t" => {
            let (ty, elements) = text.split_once('=').unwrap();
            AttrValue::Tensor(Arc::new(parse_constant(module, ty, elements)))
        }
        other => panic!("no attribute kind {other}"),
    }
}

/// The types ampc gives the results of the node, or why it does not.
fn infer(module: &mut Module, case: &Case<'_>) -> Result<Vec<Type>, String> {
    let graph = module.main();
    let mut operands = smallvec::SmallVec::new();
    for (i, text) in case.operands.split(';').filter(|t| !t.is_empty()).enumerate() {
        let name = module.intern(&format!("x{i}"));
        operands.push(if text == "_" {
            None
        } else if let Some((ty, elements)) = text.split_once('=') {
            let payload = Payload::Dense(Arc::new(parse_constant(module, ty, elements)));
            assert_eq!(payload_type(&payload), parse_type(module, ty));
            Some(module.add_constant(graph, name, payload))
        } else {
            let ty = parse_type(module, text);
            Some(module.add_input(graph, name, ty, None))
        });
    }
    let mut attrs = Vec::new();
    for text in case.attrs.split(';').filter(|t| !t.is_empty()) {
        let (name, value) = text.split_once('=').unwrap();
        attrs.push((module.intern(name), parse_attr(module, value)));
    }
    let (domain, name) = case.op.rsplit_once('.').unwrap_or(("", case.op));
    let Lookup::Found(schema) = lookup(domain, name, case.version) else { panic!("no {}", case.op) };
    assert_eq!(schema.since, case.version);
    let results =
        (0..case.n_results).map(|i| Some((module.intern(&format!("y{i}")), Type::Unknown))).collect();
    let new = NewNode {
        op: Op::Schema(schema),
        name: None,
        operands,
        attrs,
        results,
        provenance: ampc_ir::module::Provenance::User,
    };
    let node = module.add_node(graph, Position::Last, new);
    infer_module(module).map_err(|errors| errors[0].to_string())?;
    let data = module.node(node);
    Ok(data.results().iter().map(|r| module.value(r.unwrap()).ty.clone()).collect())
}

/// True if `ours` says all that `theirs` does, and nothing that contradicts it.
fn at_least(ours: &Type, theirs: &Type) -> bool {
    match (ours, theirs) {
        (_, Type::Unknown) => true,
        (Type::Tensor(a), Type::Tensor(b)) => {
            a.dtype == b.dtype
                && match (a.shape.dims(), b.shape.dims()) {
                    (_, None) => true,
                    (None, Some(_)) => false,
                    (Some(a), Some(b)) => {
                        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| dim_at_least(*a, *b))
                    }
                }
        }
        (Type::Sequence(a), Type::Sequence(b)) | (Type::Optional(a), Type::Optional(b)) => at_least(a, b),
        _ => false,
    }
}

fn dim_at_least(ours: Dim, theirs: Dim) -> bool {
    match (ours, theirs) {
        (_, Dim::Unknown) => true,
        (Dim::Known(a), Dim::Known(b)) => a == b,
        // A number says more than a name.
        (Dim::Known(_), Dim::Sym(_)) => true,
        (a, b) => a == b,
    }
}

/// Nodes that ampc rejects and onnx accepts: operator (or `*`), a part of the message, and the words of the
/// specification. None of these nodes can run.
const STRICTER: &[(&str, &str, &str)] = &[
    ("*", "expected an axis in [", "axes are in [-r, r - 1]; older versions of onnx check that rarely"),
    ("*", "attribute `axes`: expected every axis at most once", "axes are distinct"),
    ("Cast", "expected a type that `output`", "the schema of version 1 admits neither strings nor bf16"),
    ("Compress", "operand 1: expected a list", "the condition is of rank 1"),
    ("Concat", "expected an extent at axis", "all extents but the joined one agree"),
    ("Concat", "expected rank", "all operands have one rank"),
    ("ConcatFromSequence", "attribute `new_axis`: expected 0 or 1", "it is a flag"),
    ("ConstantOfShape", "attribute `value`: expected one element", "the value is one element"),
    ("DepthToSpace", "divides", "blocks divide the channels"),
    ("DequantizeLinear", "operand 1: expected", "scales are a number, one per index or one per block"),
    ("Expand", "expected extents of 0 or more", "the target is a shape"),
    ("GatherElements", "expected rank", "operands have one rank"),
    ("GatherND", "operand 1: expected a last extent in", "indices name 1 to r - b axes"),
    ("GatherND", "expected rank", "b < min(q, r)"),
    ("Pad", "that lasts for the pads", "no more elements can be removed than there are"),
    ("Pad", "pads, two per axis", "there are two pads per axis"),
    ("QuantizeLinear", "operand 1: expected", "scales are a number, one per index or one per block"),
    ("Range", "expected a number", "start, limit and delta are numbers"),
    ("Range", "expected a step other than 0", "the number of elements is divided by the step"),
    ("Reshape", "expected a list", "the target is a list"),
    ("Reshape", "expected a shape with the elements of", "a reshape keeps the number of elements"),
    ("ReverseSequence", "attribute `time_axis`", "batch and time are different axes"),
    ("ReverseSequence", "operand 1: expected a list", "there is a length per sequence"),
    ("ReverseSequence", "operand 0: expected rank 2 or more", "r >= 2"),
    ("ScatterND", "operand 1: expected a last extent", "indices name at most r axes"),
    ("ScatterND", "operand 2: expected shape", "updates have the shape of what they replace"),
    ("Slice", "starts for at most", "there is at most one start per axis"),
    ("Slice", "expected steps other than 0", "steps are not 0"),
    ("SpaceToDepth", "divides", "blocks divide height and width"),
    ("Split", "sizes, one per result", "there is a size per result"),
    ("Split", "expected sizes", "sizes are not negative and cover the axis"),
    ("Split", "parts divide", "below 18 parts are equal; at 18 onnx gives the last one a negative extent"),
    ("Split", "the results, found", "`num_outputs` is the number of results"),
    ("Squeeze", "expected an extent of 1", "only extents of 1 can go"),
    ("TensorScatter", "what fits into", "the update fits into the cache"),
    ("Tile", "repeats, one per axis", "there is a repeat per axis"),
    ("Transpose", "expected a permutation", "the permutation names every axis once"),
    ("ai.onnx.ml.LinearRegressor", "expected rank 1 or 2", "rows are of rank 1, so operands of rank 1 or 2"),
    ("ai.onnx.ml.SVMClassifier", "expected rank 1 or 2", "rows are of rank 1, so operands of rank 1 or 2"),
    ("ai.onnx.ml.SVMRegressor", "expected rank 1 or 2", "rows are of rank 1, so operands of rank 1 or 2"),
    (
        "ai.onnx.ml.TreeEnsembleClassifier",
        "expected rank 1 or 2",
        "rows are of rank 1, so operands of rank 1 or 2",
    ),
    (
        "ai.onnx.ml.TreeEnsembleRegressor",
        "expected rank 1 or 2",
        "rows are of rank 1, so operands of rank 1 or 2",
    ),
];

/// Nodes for which ampc infers more than onnx or another type: operator, version (0 for all), a part of
/// operands and attributes, and the reason.
const OTHERWISE: &[(&str, u16, &str, &str)] = &[
    ("Constant", 1, "t:i64", "the schema lists floats; exporters wrote all types, which runtimes take"),
    ("Range", 0, "-9223372036854775808", "onnx wraps around and says 0 elements"),
    ("Slice", 10, "f32[N,4]", "onnx keeps a symbolic extent although the slice ends before it"),
    (
        "Squeeze",
        1,
        "axes=is:-",
        "version 1 speaks of non-negative axes; runtimes count from the back, onnx gives up",
    ),
    ("StringNormalizer", 10, "string[?,3]", "the first extent is not known, and may be the 1 it has to be"),
    (
        "Unsqueeze",
        1,
        "axes=is:-",
        "version 1 speaks of non-negative axes; runtimes count from the back, onnx gives up",
    ),
    ("ai.onnx.ml.LinearClassifier", 1, "", "onnx says 0 classes whatever the labels"),
    ("ai.onnx.ml.TreeEnsembleClassifier", 3, "f32[5]", "runtimes take a list for one row"),
    ("ai.onnx.ml.TreeEnsembleRegressor", 3, "f32[5]", "runtimes take a list for one row"),
];

/// The entry of the tables above that explains a difference: its index, the second table after the first.
fn explained(case: &Case<'_>, found: &Result<Vec<Type>, String>) -> Option<usize> {
    match found {
        Err(_) if case.expected == "error" => None,
        Err(message) => {
            STRICTER.iter().position(|&(op, part, _)| (op == case.op || op == "*") && message.contains(part))
        }
        Ok(_) => OTHERWISE
            .iter()
            .position(|&(op, version, part, _)| {
                let here = part.is_empty() || case.operands.contains(part) || case.attrs.contains(part);
                op == case.op && (version == 0 || version == case.version) && here
            })
            .map(|i| STRICTER.len() + i),
    }
}

#[test]
fn ampc_infers_at_least_what_onnx_does() {
    let text = include_str!("data/movement_cases.tsv");
    let mut previous: Vec<&str> = Vec::new();
    let (mut failures, mut used, mut n) = (Vec::new(), BTreeSet::<usize>::new(), 0);
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let fields: Vec<&str> =
            line.split('\t').enumerate().map(|(i, f)| if f == "\"" { previous[i] } else { f }).collect();
        previous.clone_from(&fields);
        let &[op, version, attrs, operands, n_results, expected] = fields.as_slice() else {
            panic!("six fields: {line}")
        };
        let case = Case {
            op,
            version: version.parse().unwrap(),
            attrs,
            operands,
            n_results: n_results.parse().unwrap(),
            expected,
        };
        n += 1;
        let mut module = Module::new();
        let found = infer(&mut module, &case);
        let right = match &found {
            Err(_) => case.expected == "error",
            Ok(types) => {
                case.expected != "error"
                    && types
                        .iter()
                        .zip(case.expected.split(';'))
                        .all(|(ours, theirs)| at_least(ours, &parse_type(&mut module, theirs)))
            }
        };
        let reason = if right { None } else { explained(&case, &found) };
        used.extend(reason);
        if !right && reason.is_none() {
            failures
                .push(format!("{op} {version} ({operands}) {{{attrs}}}: onnx {expected}, ampc {found:?}"));
        }
    }
    assert!(n > 5000, "{n} cases");
    assert!(failures.is_empty(), "{} of {n} cases:\n{}", failures.len(), failures.join("\n"));
    let all = 0..STRICTER.len() + OTHERWISE.len();
    let unused: Vec<usize> = all.filter(|i| !used.contains(i)).collect();
    assert!(unused.is_empty(), "explanations that explain nothing: {unused:?}");
}

/// A type as the cases spell it.
fn show(module: &Module, ty: &Type) -> String {
    let dim = |d: &Dim| match d {
        Dim::Known(n) => n.to_string(),
        Dim::Sym(s) => module.text(*s).to_owned(),
        Dim::Unknown => "?".into(),
    };
    match ty {
        Type::Tensor(t) => match t.shape.dims() {
            Some(dims) => format!("{}[{}]", t.dtype, dims.iter().map(dim).collect::<Vec<_>>().join(",")),
            None => format!("{}[*]", t.dtype),
        },
        Type::Sequence(t) => format!("seq({})", show(module, t)),
        Type::Optional(t) => format!("opt({})", show(module, t)),
        Type::Map { key, value } => format!("map({key},{})", show(module, value)),
        Type::Unknown => "?".into(),
        Type::Sparse(_) | Type::Opaque { .. } => format!("{ty:?}"),
    }
}

/// Operator, version, attributes, operands, exactly what ampc says, where onnx says less or nothing.
const PRECISE: &[(&str, u16, &str, &str, &str)] = &[
    // Extents that are not known cancel.
    ("Reshape", 14, "", "f32[N,3,4];i64[2]={-1,12}", "f32[N,12]"),
    ("Reshape", 14, "", "f32[N,3,4];i64[2]={-1,6}", "f32[?,6]"),
    ("Reshape", 14, "", "f32[N,12];i64[4]={0,3,2,-1}", "f32[N,3,2,2]"),
    ("Reshape", 14, "", "f32[?,12];i64[3]={0,-1,4}", "f32[?,3,4]"),
    ("Reshape", 14, "", "f32[0,3];i64[2]={0,5}", "f32[0,5]"),
    ("Reshape", 14, "", "f32[*];i64[2]={0,-1}", "f32[?,?]"),
    ("Reshape", 1, "shape=is:2,-1", "f32[4,N]", "f32[2,?]"),
    ("Reshape", 14, "allowzero=i:1", "f32[0,3];i64[2]={5,0}", "f32[5,0]"),
    ("Reshape", 14, "", "f32[99999999999,99999999999,99999999999];i64[1]={-1}", "f32[?]"),
    ("Flatten", 13, "", "f32[18446744073709551615,2,N]", "f32[18446744073709551615,?]"),
    ("Flatten", 13, "axis=i:-1", "f32[N,1,3]", "f32[N,3]"),
    ("Flatten", 13, "axis=i:2", "f32[N,0,3]", "f32[0,3]"),
    ("Squeeze", 13, "", "f32[1,3,1]", "f32[3]"),
    ("Squeeze", 13, "", "f32[1,3,?]", "f32[*]"),
    ("Squeeze", 13, "", "f32[1,N,?];i64[1]", "f32[?,?]"),
    ("Unsqueeze", 13, "", "f32[2,3];i64[1000000000000]", "f32[*]"),
    ("Unsqueeze", 13, "", "f32[2,3];i64[2]", "f32[?,?,?,?]"),
    ("Expand", 13, "", "f32[N,1];i64[3]={2,1,7}", "f32[2,N,7]"),
    ("Expand", 13, "", "f32[2,3];i64[4]", "f32[?,?,2,3]"),
    ("Tile", 13, "", "f32[N,3];i64[2]={1,2}", "f32[N,6]"),
    ("Tile", 13, "", "f32[4611686018427387904];i64[1]={9223372036854775807}", "f32[?]"),
    ("Tile", 1, "", "f32[2,3];f32[]={2};f32[]={1}", "f32[2,6]"),
    ("Transpose", 13, "perm=is:1,0", "f32[*]", "f32[?,?]"),
    ("Shape", 15, "start=i:-2", "f32[N,3,4]", "i64[2]"),
    ("Concat", 13, "axis=i:0", "f32[N,3];f32[0,?]", "f32[N,3]"),
    ("Concat", 13, "axis=i:0", "f32[N,?];f32[2,3]", "f32[?,3]"),
    ("Split", 13, "", "f32[N];i64[1]={4}", "f32[4]"),
    ("Split", 13, "", "f32[N];i64[1]", "f32[N]"),
    ("Slice", 13, "", "f32[N,4];i64[1]={0};i64[1]={9223372036854775807};i64[1]={0}", "f32[N,4]"),
    (
        "Slice",
        13,
        "",
        "f32[N,4];i64[1]={-1};i64[1]={-9223372036854775808};i64[1]={0};i64[1]={-1}",
        "f32[N,4]",
    ),
    ("Slice", 13, "", "f32[N,4];i64[1]={3};i64[1]={3};i64[1]={0}", "f32[0,4]"),
    ("Slice", 13, "", "f32[N,4];i64[1];i64[1];i64[1]={1}", "f32[N,?]"),
    ("Slice", 13, "", "f32[N,4];i64[1];i64[1]", "f32[?,4]"),
    ("Slice", 13, "", "f32[9];i64[1]={8};i64[1]={0};i64[1]={0};i64[1]={-3}", "f32[3]"),
    ("Slice", 1, "starts=is:1;ends=is:-1", "f32[5,N]", "f32[3,N]"),
    ("Pad", 18, "", "f32[N,4];i64[2]={1,2};_;i64[1]={1}", "f32[N,7]"),
    ("Pad", 18, "", "f32[N,4];i64[2];_;i64[1]={1}", "f32[N,?]"),
    ("Pad", 13, "", "f32[*];i64[6]={0,0,0,0,0,0}", "f32[?,?,?]"),
    ("Gather", 13, "axis=i:1", "f32[N,4,5];i64[2,M]", "f32[N,2,M,5]"),
    ("GatherElements", 13, "", "f32[5,4];i64[*]", "f32[?,?]"),
    ("Compress", 11, "axis=i:0", "f32[5,4];bool[3]={1,0,1}", "f32[2,4]"),
    ("Compress", 11, "axis=i:0", "f32[2,4];bool[3]={1,0,1}", "f32[?,4]"),
    ("OneHot", 11, "", "i64[N];f32[]={5.0};f32[2]", "f32[N,5]"),
    ("Unique", 11, "", "f32[2,3]", "f32[?];i64[?];i64[6];i64[?]"),
    ("NonZero", 13, "", "f32[2,3]", "i64[2,?]"),
    ("ConstantOfShape", 9, "", "i64[2]={3,0}", "f32[3,0]"),
    ("Range", 11, "", "f32[]={0};f32[]={1};f32[]={0.25}", "f32[4]"),
    ("SequenceInsert", 11, "", "seq(f32[2,3]);f32[2,5]", "seq(f32[2,?])"),
    ("SplitToSequence", 11, "", "f32[6,4];i64[]={3}", "seq(f32[3,4])"),
    ("SplitToSequence", 11, "", "f32[6,4];i64[]={4}", "seq(f32[?,4])"),
    ("SplitToSequence", 11, "keepdims=i:0", "f32[6,4]", "seq(f32[4])"),
    ("ConcatFromSequence", 11, "axis=i:-1;new_axis=i:1", "seq(f32[2,N])", "f32[2,N,?]"),
    ("DequantizeLinear", 23, "output_dtype=i:10", "i8[2];f32[]", "f16[2]"),
    ("QuantizeLinear", 21, "output_dtype=i:22", "f32[2,N];f32[]", "int4[2,N]"),
    ("StringNormalizer", 10, "", "string[3]", "string[3]"),
    ("StringNormalizer", 10, "stopwords=ss:a", "string[3]", "string[?]"),
    ("ai.onnx.ml.ZipMap", 1, "classlabels_strings=ss:a,b", "f32[N,2]", "seq(map(string,f32[]))"),
    ("ai.onnx.ml.FeatureVectorizer", 1, "inputdimensions=is:2,3", "f32[N,2];f32[N,3]", "f32[N,5]"),
    ("ai.onnx.ml.CastMap", 1, "cast_to=s:TO_INT64", "?", "i64[*]"),
];

#[test]
fn symbolic_extents_and_elements_are_followed() {
    let mut failures = Vec::new();
    for &(op, version, attrs, operands, expected) in PRECISE {
        let n_results = expected.split(';').count();
        let case = Case { op, version, attrs, operands, n_results, expected };
        let mut module = Module::new();
        let found = infer(&mut module, &case);
        let found = found.map(|types| types.iter().map(|ty| show(&module, ty)).collect::<Vec<_>>().join(";"));
        if found.as_deref() != Ok(expected) {
            failures.push(format!("{op} {version} ({operands}) {{{attrs}}}: {found:?}, expected {expected}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Operator, version, attributes, operands, and what ampc says against it.
const WRONG: &[(&str, u16, &str, &str, &str)] = &[
    ("Transpose", 13, "perm=is:0,0", "f32[2,3]", "expected a permutation of the 2 axes, found [0, 0]"),
    (
        "Concat",
        13,
        "axis=i:2",
        "f32[2,3];f32[2,3]",
        "expected an axis in [-2, 2) of a tensor of rank 2, found 2",
    ),
    (
        "Split",
        13,
        "",
        "f32[6];i64[1]={5}",
        "operand 1: expected sizes with the sum 6, the extent at axis 0, found 5",
    ),
    ("Split", 2, "split=is:5", "f32[6]", "attribute `split`: expected sizes with the sum 6"),
    ("OneHot", 11, "", "i64[2];i64[]={-3};f32[2]", "operand 1: expected a depth of 0 or more, found -3"),
    (
        "Reshape",
        14,
        "",
        "f32[2,3];i64[2]={4,-1}",
        "expected a shape with the elements of [2, 3], found [4, -1]",
    ),
    (
        "Reshape",
        14,
        "",
        "f32[2];i64[3]={0,0,1}",
        "expected an axis 1 to copy with 0, found a tensor of rank 1",
    ),
    ("Reshape", 14, "", "f32[2];i64[1]={-7}", "operand 1: expected extents, 0 or -1, found -7"),
    ("Squeeze", 13, "", "f32[2];i64[1]={0}", "operand 0: expected an extent of 1 at axis 0, found shape [2]"),
    ("Unsqueeze", 13, "", "f32[2];i64[2]={0,-3}", "expected every axis at most once, found axis 0 twice"),
    (
        "Slice",
        13,
        "",
        "f32[4];i64[1]={0};i64[1]={1};i64[1]={0};i64[1]={0}",
        "expected steps other than 0, found 0",
    ),
    ("Cast", 13, "to=i:77", "f32[2]", "attribute `to`: expected the number of an element type, found 77"),
    (
        "Cast",
        1,
        "to=s:FLOAT7",
        "f32[2]",
        "attribute `to`: expected the name of an element type, found float7",
    ),
    (
        "BitCast",
        26,
        "to=i:10",
        "f32[2]",
        "attribute `to`: expected an element type as wide as f32, found f16",
    ),
    (
        "Pad",
        13,
        "mode=s:wrap",
        "f32[2];i64[2]={1,1}",
        "attribute `mode`: expected constant, reflect or edge, found wrap",
    ),
    ("Range", 11, "", "i64[]={0};i64[]={4};i64[]={0}", "operand 2: expected a step other than 0, found 0"),
    ("Constant", 13, "", "", "expected one attribute with the value, found 0"),
    ("SequenceInsert", 11, "", "seq(f32[2]);f16[2]", "f16"),
    ("QuantizeLinear", 13, "", "f32[2,3];f32[4]", "expected the extent at axis 1 of [2, 3], found shape [4]"),
    ("TensorScatter", 24, "axis=i:0", "f32[2,4];f32[2,1]", "expected an axis other than the batch axis 0"),
];

#[test]
fn what_cannot_be_is_said() {
    let mut failures = Vec::new();
    for &(op, version, attrs, operands, expected) in WRONG {
        let case = Case { op, version, attrs, operands, n_results: 1, expected };
        let found = infer(&mut Module::new(), &case);
        if !matches!(&found, Err(message) if message.contains(expected)) {
            failures.push(format!("{op} {version} ({operands}) {{{attrs}}}: {found:?}, expected {expected}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
