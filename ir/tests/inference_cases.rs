//! Inference against onnx's own: every row of `data/cases_*.tsv` is one node and what onnx says of its results
//! (`scripts/generate_inference_cases.py` writes and documents the files).
//!
//! Ours must say the same or more, reject what onnx rejects, and accept what onnx accepts. Where it differs on
//! purpose, the row matches an entry of `data/differences_*.tsv`, which says why; an entry without a differing row is
//! an error too.

use ampc_ir::infer::infer_module;
use ampc_ir::module::Provenance;
use ampc_ir::op::{Lookup, lookup};
use ampc_ir::tensor::Storage;
use ampc_ir::{
    AttrValue, DType, Dim, Module, NewNode, Op, Payload, Position, Shape, TensorData, TensorType, Type, Value,
};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

struct Case<'a> {
    name: &'a str,
    domain: &'a str,
    op: &'a str,
    opset: u16,
    operands: &'a str,
    attrs: &'a str,
    results: usize,
    expected: &'a str,
}

/// A difference on purpose: operator, least and greatest opset, a text in operands or attributes, the reason.
struct Difference<'a> {
    op: &'a str,
    opsets: std::ops::RangeInclusive<u16>,
    text: &'a str,
    reason: &'a str,
}

impl Difference<'_> {
    fn covers(&self, case: &Case<'_>) -> bool {
        let text = format!("{}|{}|{}", case.operands, case.attrs, case.expected);
        self.op.split(' ').any(|op| op == case.op)
            && self.opsets.contains(&case.opset)
            && text.contains(self.text)
    }
}

#[test]
fn ours_says_what_onnx_says_or_more() {
    let mut problems = String::new();
    let mut n = 0;
    for file in files("cases_") {
        let text = std::fs::read_to_string(&file).unwrap();
        let differences = std::fs::read_to_string(sibling(&file)).unwrap_or_default();
        let differences: Vec<Difference<'_>> = rows(&differences).map(|r| difference(&r)).collect();
        let mut used = vec![false; differences.len()];
        for row in rows(&text) {
            let case = case(&row);
            n += 1;
            let Err(problem) = check(&case) else { continue };
            let known: Vec<usize> =
                (0..differences.len()).filter(|&i| differences[i].covers(&case)).collect();
            for &i in &known {
                used[i] = true;
            }
            if known.is_empty() {
                writeln!(
                    problems,
                    "{}: {}-{} {} {{{}}}\n  {problem}",
                    case.name, case.op, case.opset, case.operands, case.attrs
                )
                .unwrap();
            }
        }
        for (difference, _) in differences.iter().zip(used).filter(|(_, used)| !used) {
            writeln!(problems, "no row differs for {}: {}", difference.op, difference.reason).unwrap();
        }
    }
    assert!(n > 1000, "only {n} cases");
    assert!(problems.is_empty(), "{problems}");
}

fn files(prefix: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.file_name().unwrap().to_str().unwrap().starts_with(prefix));
    files.sort();
    files
}

fn sibling(file: &Path) -> PathBuf {
    let name = file.file_name().unwrap().to_str().unwrap();
    file.with_file_name(name.replace("cases_", "differences_"))
}

fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().filter(|l| !l.starts_with('#') && !l.is_empty()).map(|l| l.split('\t').collect())
}

fn case<'a>(row: &[&'a str]) -> Case<'a> {
    let [name, domain, op, opset, operands, attrs, results, expected] = row[..] else { panic!("{row:?}") };
    let (opset, results) = (opset.parse().unwrap(), results.parse().unwrap());
    Case { name, domain, op, opset, operands, attrs, results, expected }
}

fn difference<'a>(row: &[&'a str]) -> Difference<'a> {
    let [op, opsets, text, reason] = row[..] else { panic!("{row:?}") };
    let (first, last) = opsets.split_once('-').unwrap_or((opsets, opsets));
    Difference { op, opsets: first.parse().unwrap()..=last.parse().unwrap(), text, reason }
}

fn check(case: &Case<'_>) -> Result<(), String> {
    let found = infer(case);
    match (found, case.expected) {
        (Err(_), "error") => Ok(()),
        (Err(error), expected) => Err(format!("onnx says {expected}, ours says: {error}")),
        (Ok((module, types)), "error") => {
            Err(format!("onnx refuses, ours says {}", spell_all(&module, &types)))
        }
        (Ok((mut module, types)), expected) => {
            let fits = split(expected)
                .iter()
                .zip(&types)
                .all(|(e, t)| e == "?" || says_as_much(t, &parse_type(&mut module, e)));
            let spelled = spell_all(&module, &types);
            if fits && split(expected).len() == types.len() {
                Ok(())
            } else {
                Err(format!("onnx says {expected}, ours says {spelled}"))
            }
        }
    }
}

fn says_as_much(ours: &Type, onnx: &Type) -> bool {
    match (ours, onnx) {
        (_, Type::Unknown) => true,
        (Type::Tensor(a), Type::Tensor(b)) => a.dtype == b.dtype && shape_says_as_much(&a.shape, &b.shape),
        (Type::Sequence(a), Type::Sequence(b)) | (Type::Optional(a), Type::Optional(b)) => says_as_much(a, b),
        _ => false,
    }
}

fn shape_says_as_much(ours: &Shape, onnx: &Shape) -> bool {
    match (ours.dims(), onnx.dims()) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(a), Some(b)) => {
            a.len() == b.len()
                && a.iter().zip(b).all(|(a, b)| match b {
                    Dim::Unknown => true,
                    Dim::Sym(_) => a == b || a.known().is_some(),
                    Dim::Known(_) => a == b,
                })
        }
    }
}

fn infer(case: &Case<'_>) -> Result<(Module, Vec<Type>), String> {
    let schema = match lookup(case.domain, case.op, case.opset) {
        Lookup::Found(schema) => schema,
        other => return Err(format!("{other:?}")),
    };
    let mut module = Module::new();
    let main = module.main();
    let mut operands = smallvec::SmallVec::new();
    for (i, text) in split(case.operands).iter().enumerate() {
        operands.push((text != "_").then(|| operand(&mut module, i, text)));
    }
    let attrs = split(case.attrs).iter().map(|text| attr(&mut module, text)).collect();
    let results = (0..case.results).map(|i| Some((module.intern(&format!("y{i}")), Type::Unknown))).collect();
    let new = NewNode {
        op: Op::Schema(schema),
        name: None,
        operands,
        attrs,
        results,
        provenance: Provenance::default(),
    };
    let node = module.add_node(main, Position::Last, new);
    infer_module(&mut module).map_err(|errors| errors[0].to_string())?;
    let types = module.node(node).results().iter().map(|r| module.value(r.unwrap()).ty.clone()).collect();
    Ok((module, types))
}

/// Splits at `;` outside of braces and brackets.
fn split(text: &str) -> Vec<String> {
    if text.is_empty() { Vec::new() } else { text.split(';').map(str::to_owned).collect() }
}

fn operand(module: &mut Module, i: usize, text: &str) -> Value {
    let main = module.main();
    let name = module.intern(&format!("x{i}"));
    let Some((ty, values)) = text.split_once('=') else {
        let ty = parse_type(module, text);
        return module.add_input(main, name, ty, None);
    };
    let Type::Tensor(TensorType { dtype, shape }) = parse_type(module, ty) else { panic!("{text}") };
    let values = values.trim_matches(['{', '}']);
    let bytes: Vec<u8> = values.split(',').filter(|v| !v.is_empty()).flat_map(|v| encode(dtype, v)).collect();
    let data = TensorData::new(dtype, shape.to_known().unwrap(), Storage::Bytes(bytes.into())).unwrap();
    module.add_constant(main, name, Payload::Dense(Arc::new(data)))
}

fn encode(dtype: DType, value: &str) -> Vec<u8> {
    match dtype {
        DType::F32 => value.parse::<f32>().unwrap().to_le_bytes().to_vec(),
        DType::F64 => value.parse::<f64>().unwrap().to_le_bytes().to_vec(),
        DType::I64 => value.parse::<i64>().unwrap().to_le_bytes().to_vec(),
        DType::I32 => value.parse::<i32>().unwrap().to_le_bytes().to_vec(),
        DType::U8 | DType::Bool => value.parse::<u8>().unwrap().to_le_bytes().to_vec(),
        other => panic!("constants of {other} are not needed so far"),
    }
}

fn attr(module: &mut Module, text: &str) -> (ampc_ir::Symbol, AttrValue) {
    let (name, value) = text.split_once('=').unwrap();
    let (kind, value) = value.split_once(':').unwrap();
    let items = || value.split(',').filter(|v| !v.is_empty());
    let value = match kind {
        "i" => AttrValue::Int(value.parse().unwrap()),
        "f" => AttrValue::Float(value.parse().unwrap()),
        "s" => AttrValue::String(value.as_bytes().into()),
        "is" => AttrValue::Ints(items().map(|v| v.parse().unwrap()).collect()),
        "fs" => AttrValue::Floats(items().map(|v| v.parse().unwrap()).collect()),
        other => panic!("attribute kind {other}"),
    };
    (module.intern(name), value)
}

fn parse_type(module: &mut Module, text: &str) -> Type {
    if text == "?" {
        return Type::Unknown;
    }
    let inside = |prefix: &str| text.strip_prefix(prefix)?.strip_suffix(')');
    if let Some(element) = inside("seq(") {
        return Type::Sequence(Box::new(parse_type(module, element)));
    }
    if let Some(element) = inside("optional(") {
        return Type::Optional(Box::new(parse_type(module, element)));
    }
    let (dtype, dims) = text.strip_suffix(']').unwrap().split_once('[').unwrap();
    let dtype = dtype.parse().unwrap();
    if dims == "*" {
        return Type::tensor(dtype, Shape::unknown());
    }
    let dims = dims.split(',').filter(|d| !d.is_empty()).map(|d| match d.parse::<i64>() {
        Ok(n) => u64::try_from(n).map_or(Dim::Unknown, Dim::Known),
        Err(_) if d == "?" => Dim::Unknown,
        Err(_) => Dim::Sym(module.intern(d)),
    });
    let shape = Shape::of(dims);
    Type::tensor(dtype, shape)
}

fn spell_all(module: &Module, types: &[Type]) -> String {
    types.iter().map(|t| spell(module, t)).collect::<Vec<_>>().join(";")
}

fn spell(module: &Module, ty: &Type) -> String {
    match ty {
        Type::Tensor(t) => match t.shape.dims() {
            None => format!("{}[*]", t.dtype),
            Some(dims) => {
                let dims: Vec<String> = dims
                    .iter()
                    .map(|d| match d {
                        Dim::Known(n) => n.to_string(),
                        Dim::Sym(s) => module.text(*s).to_owned(),
                        Dim::Unknown => "?".to_owned(),
                    })
                    .collect();
                format!("{}[{}]", t.dtype, dims.join(","))
            }
        },
        Type::Sequence(t) => format!("seq({})", spell(module, t)),
        Type::Optional(t) => format!("optional({})", spell(module, t)),
        Type::Unknown | Type::Sparse(_) | Type::Map { .. } | Type::Opaque { .. } => "?".to_owned(),
    }
}
