//! Nodes whose parameters are huge, under a small limit: an error or a result, never an allocation beyond the limit.
//!
//! The nodes are those that inference is tested with: of every operator a few, each with one integer of an attribute or
//! of an operand made huge, known before the graph runs or only then.

#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

use ampc_ir::infer::infer_module;
use ampc_ir::module::Provenance;
use ampc_ir::op::{Lookup, OpSchema, lookup};
use ampc_ir::text::{NoData, parse};
use ampc_ir::{AttrValue, DType, Module, NewNode, Op, Payload, Position, Shape, TensorData, Type};
use ampc_runtime::data::Sequence;
use ampc_runtime::session::PrepareError;
use ampc_runtime::{Cpu, Data, DataRef, HostTensor, Limits, Runtime};
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The limit of a run.
const LIMIT: usize = 1 << 20;

/// The test that watches allocations runs alone.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The limit, and what crates take beside it whatever the operands are: products have a workspace for each thread.
const MOST: usize = LIMIT + (1 << 20);

/// Refuses what is far beyond the limit, and keeps the largest size that was asked for.
struct Watching;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is left to the system's allocator, or refused.
#[expect(unsafe_code, reason = "allocators are unsafe")]
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        if layout.size() > 1 << 30 {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are the system's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the system's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// One node, as the tables of cases spell it.
#[derive(Clone, Debug)]
struct Case {
    schema: &'static OpSchema,
    operands: Vec<String>,
    attrs: Vec<String>,
    results: usize,
}

/// `name domain op opset operands attrs results`; the other table has `op version attrs operands results`, and `"` for
/// what is in the row above.
fn cases() -> Vec<Case> {
    let split = |text: &str| text.split(';').filter(|t| !t.is_empty()).map(str::to_owned).collect();
    let mut cases = Vec::new();
    for table in [
        include_str!("../../ir/tests/data/cases_backend.tsv"),
        include_str!("../../ir/tests/data/cases_compute.tsv"),
    ] {
        for row in table.lines().filter(|l| !l.starts_with('#')) {
            let f: Vec<&str> = row.split('\t').collect();
            let Lookup::Found(schema) = lookup(f[1], f[2], f[3].parse().unwrap()) else { continue };
            let (operands, attrs) = (split(f[4]), split(f[5]));
            cases.push(Case { schema, operands, attrs, results: f[6].parse().unwrap() });
        }
    }
    let mut above: Vec<&str> = Vec::new();
    for row in include_str!("../../ir/tests/data/movement_cases.tsv").lines().filter(|l| !l.starts_with('#'))
    {
        let fields = row.split('\t').enumerate();
        let f: Vec<&str> = fields.map(|(i, f)| if f == "\"" { above[i] } else { f }).collect();
        let (domain, op) = f[0].rsplit_once('.').unwrap_or(("", f[0]));
        if let Lookup::Found(schema) = lookup(domain, op, f[1].parse().unwrap()) {
            let (attrs, operands) = (split(f[2]), split(f[3]));
            cases.push(Case { schema, operands, attrs, results: f[4].parse().unwrap_or(1) });
        }
        above = f;
    }
    cases
}

fn parse_type(text: &str) -> Option<Type> {
    let inside = |prefix: &str| text.strip_prefix(prefix)?.strip_suffix(')');
    if let Some(element) = inside("seq(") {
        return Some(Type::Sequence(Box::new(parse_type(element)?)));
    }
    let (dtype, dims) = text.strip_suffix(']')?.split_once('[')?;
    // A dim that has no number is 3; a shape that nobody knows has two of them.
    let dims = if dims == "*" { "3,3" } else { dims };
    let dims: Vec<u64> = dims.split(',').filter(|d| !d.is_empty()).map(|d| d.parse().unwrap_or(3)).collect();
    let count = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d))?;
    (count < 1 << 16).then(|| Type::tensor(dtype.parse().unwrap(), Shape::known(&dims)))
}

/// `i64[2]={1,-1}`.
fn parse_constant(text: &str) -> Option<TensorData> {
    let (ty, elements) = text.split_once('=')?;
    let ty = parse_type(ty)?;
    let dtype = ty.dtype()?;
    let items = elements.trim_matches(['{', '}']).split(',').filter(|e| !e.is_empty());
    let size = usize::try_from(dtype.bits()?).unwrap() / 8;
    let bytes = |item: &str| -> Option<Vec<u8>> {
        Some(match dtype {
            DType::F32 => item.parse::<f32>().ok()?.to_le_bytes().to_vec(),
            DType::F64 => item.parse::<f64>().ok()?.to_le_bytes().to_vec(),
            DType::F16 | DType::BF16 => vec![0; 2],
            _ => item.parse::<i64>().ok()?.to_le_bytes()[..size].to_vec(),
        })
    };
    let bytes: Vec<u8> = items.map(bytes).collect::<Option<Vec<_>>>()?.concat();
    TensorData::from_bytes(dtype, &ty.shape()?.to_known()?, bytes).ok()
}

fn parse_attr(text: &str) -> Option<AttrValue> {
    let (kind, text) = text.split_once(':')?;
    let items = || text.split(',').filter(|e| !e.is_empty());
    Some(match kind {
        "i" => AttrValue::Int(text.parse().ok()?),
        "f" => AttrValue::Float(text.parse().ok()?),
        "s" => AttrValue::String(text.as_bytes().into()),
        "is" => AttrValue::Ints(items().map(|e| e.parse().ok()).collect::<Option<_>>()?),
        "fs" => AttrValue::Floats(items().map(|e| e.parse().ok()).collect::<Option<_>>()?),
        "ss" => AttrValue::Strings(items().map(|s| s.as_bytes().into()).collect()),
        "type" => AttrValue::Type(parse_type(text)?),
        "t" => AttrValue::Tensor(Arc::new(parse_constant(text)?)),
        _ => return None,
    })
}

/// Something for an input of this type.
fn value(ty: &Type) -> Option<Data> {
    if let Type::Sequence(element) = ty {
        let item = value(element)?;
        return Some(Data::Sequence(Sequence::new((**element).clone(), vec![item.clone(), item])));
    }
    let (dtype, dims) = (ty.dtype()?, ty.shape()?.to_known()?);
    if dtype == DType::String {
        let count = usize::try_from(dims.iter().product::<u64>()).unwrap();
        return HostTensor::from_strings(&dims, vec![b"a b".as_slice().into(); count]).ok().map(Data::from);
    }
    let mut tensor = HostTensor::zeros(dtype, &dims).ok()?;
    if dtype.is_integer() && dtype.bits() >= Some(8) {
        let size = usize::try_from(dtype.bits()?).unwrap() / 8;
        let bytes: Vec<u8> =
            std::iter::repeat_n(1u64.to_le_bytes()[..size].to_vec(), tensor.bytes()?.len() / size)
                .flatten()
                .collect();
        tensor = HostTensor::from_bytes(dtype, &dims, &bytes).ok()?;
    }
    Some(tensor.into())
}

/// The model of a node, and values for its inputs. Constants are inputs if they are to be known late.
fn model(case: &Case, known_late: bool) -> Option<(Module, Vec<Option<Data>>)> {
    let mut module = Module::new();
    let main = module.main();
    let mut inputs = Vec::new();
    let mut operands = smallvec::SmallVec::new();
    for (i, text) in case.operands.iter().enumerate() {
        let name = module.intern(&format!("x{i}"));
        operands.push(if text == "_" {
            None
        } else if let Some((ty, _)) = text.split_once('=') {
            let data = parse_constant(text)?;
            Some(if known_late {
                inputs.push(Some(HostTensor::from_data(&data).ok()?.into()));
                module.add_input(main, name, parse_type(ty)?, None)
            } else {
                module.add_constant(main, name, Payload::Dense(Arc::new(data)))
            })
        } else {
            let ty = parse_type(text)?;
            inputs.push(Some(value(&ty)?));
            Some(module.add_input(main, name, ty, None))
        });
    }
    let mut attrs = Vec::new();
    for text in &case.attrs {
        let (name, value) = text.split_once('=')?;
        attrs.push((module.intern(name), parse_attr(value)?));
    }
    let results = (0..case.results).map(|i| Some((module.intern(&format!("y{i}")), Type::Unknown))).collect();
    let op = Op::Schema(case.schema);
    let new = NewNode { op, name: None, operands, attrs, results, provenance: Provenance::User };
    let node = module.add_node(main, Position::Last, new);
    let results: Vec<_> = module.node(node).results().iter().flatten().copied().collect();
    results.into_iter().for_each(|value| module.add_output(main, value, Type::Unknown));
    Some((module, inputs))
}

/// The ways to make one number of a text huge: `name=is:1,2`, `name=i:1`, `i64[2]={1,2}`, `f32[1]={2.0}`.
fn huge(text: &str) -> Vec<String> {
    let attr =
        text.split_once(':').filter(|(head, _)| ["=i", "=is", "=f", "=fs"].iter().any(|k| head.ends_with(k)));
    let (head, numbers, tail) = match (attr, text.split_once("={")) {
        (Some((head, numbers)), _) => (format!("{head}:"), numbers, ""),
        (None, Some((head, numbers))) => (format!("{head}={{"), numbers.trim_end_matches('}'), "}"),
        (None, None) => return Vec::new(),
    };
    let numbers: Vec<&str> = numbers.split(',').filter(|n| !n.is_empty()).collect();
    let is_float = head.contains("=f") || head.starts_with('f');
    let values: &[&str] = if is_float {
        &["262144", "1e9", "1e12", "1e-12", "inf", "nan"]
    } else {
        &["262144", "67108864", "2147483648", "68719476736", "9223372036854775807", "-9223372036854775808"]
    };
    let mut made = Vec::new();
    for value in values {
        // At most three of a list are tried, and all at once.
        for at in (0..numbers.len().min(3)).map(Some).chain((numbers.len() > 1).then_some(None)) {
            let each = numbers.iter().enumerate();
            let each = each.map(|(i, n)| if at.is_none_or(|at| at == i) { *value } else { *n });
            made.push(format!("{head}{}{tail}", each.collect::<Vec<_>>().join(",")));
        }
    }
    made
}

/// Cases with something huge in them.
fn variants(case: &Case) -> Vec<Case> {
    let mut made = Vec::new();
    for i in 0..case.operands.len() {
        made.extend(huge(&case.operands[i]).into_iter().map(|text| {
            let mut case = case.clone();
            case.operands[i] = text;
            case
        }));
    }
    for i in 0..case.attrs.len() {
        made.extend(huge(&case.attrs[i]).into_iter().map(|text| {
            let mut case = case.clone();
            case.attrs[i] = text;
            case
        }));
    }
    // Attributes that are absent.
    let names = case
        .schema
        .attrs
        .iter()
        .filter(|a| !case.attrs.iter().any(|t| t.starts_with(&format!("{}=", a.name))));
    for attr in names.filter(|a| a.kind == ampc_ir::op::AttrKind::Int) {
        made.extend(huge(&format!("{}=i:1", attr.name)).into_iter().map(|text| {
            let mut case = case.clone();
            case.attrs.push(text);
            case
        }));
    }
    made
}

/// How a run went.
#[derive(PartialEq, Eq, Debug)]
enum End {
    Invalid,
    NoKernel,
    Refused,
    Made,
}

fn run(case: &Case, known_late: bool, faults: &mut Vec<String>) -> Option<End> {
    let (module, inputs) = model(case, known_late)?;
    let name = format!("{} {} {:?} {:?}", case.schema.name, case.schema.since, case.operands, case.attrs);
    let mut fault = |what: String| faults.push(format!("{name}, known late: {known_late}: {what}"));
    LARGEST.store(0, Ordering::Relaxed);
    let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| end_of(module, &inputs)));
    if end.is_err() {
        fault("a panic".to_owned());
    }
    match LARGEST.load(Ordering::Relaxed) {
        largest if largest > MOST => fault(format!("{largest} bytes at once")),
        _ => {}
    }
    end.ok()
}

fn end_of(mut module: Module, inputs: &[Option<Data>]) -> End {
    if infer_module(&mut module).is_err() {
        return End::Invalid;
    }
    let mut session = match runtime(LIMIT as u64).prepare(&module) {
        Ok(session) => session,
        Err(PrepareError::Unsupported { .. }) => return End::NoKernel,
        Err(_) => return End::Refused,
    };
    let inputs: Vec<Option<DataRef<'_>>> = inputs.iter().map(|i| i.as_ref().map(Data::view)).collect();
    match session.run(&inputs) {
        Ok(_) => End::Made,
        Err(error) => {
            let message = error.to_string();
            assert!(!message.is_empty());
            // A sum that has reached the end of its type is no size.
            assert!(!message.contains(&u64::MAX.to_string()), "{message}");
            End::Refused
        }
    }
}

/// For every operator, the cases with the most parameters, of as many versions as there are.
fn chosen() -> BTreeMap<(&'static str, &'static str), Vec<Case>> {
    const EACH: usize = 4;
    let mut by_op: BTreeMap<_, Vec<Case>> = BTreeMap::new();
    for case in cases() {
        by_op.entry((case.schema.domain, case.schema.name)).or_default().push(case);
    }
    for cases in by_op.values_mut() {
        let parameters = |c: &Case| c.attrs.len() + c.operands.iter().filter(|o| o.contains('=')).count();
        cases.sort_by_key(|c| std::cmp::Reverse(parameters(c)));
        let mut seen = BTreeSet::new();
        let (first, others): (Vec<Case>, Vec<Case>) =
            cases.drain(..).partition(|c| seen.insert(c.schema.since));
        *cases = first.into_iter().rev().chain(others).take(EACH).collect();
    }
    by_op
}

#[test]
fn huge_parameters_take_no_more_than_the_limit() {
    let _guard = ONE_AT_A_TIME.lock();
    let (mut refused, mut made) = (0, 0);
    let mut faults = Vec::new();
    let mut never: BTreeSet<&str> = BTreeSet::new();
    for ((_, name), cases) in chosen() {
        let mut ran = cases.iter().all(|case| run(case, false, &mut faults) == Some(End::NoKernel));
        for case in cases.iter().flat_map(variants) {
            for known_late in [false, true] {
                let end = run(&case, known_late, &mut faults);
                ran |= matches!(end, Some(End::Refused | End::Made));
                refused += u32::from(end == Some(End::Refused));
                made += u32::from(end == Some(End::Made));
            }
        }
        if !ran {
            never.insert(name);
        }
    }
    println!("{refused} refused, {made} made; no parameter: {never:?}");
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert!(refused > 1000 && made > 1000, "{refused} refused, {made} made");
}

/// The error of a run of a node with this text, with inputs of these types and `limit` bytes.
fn runtime(max_bytes: u64) -> Runtime {
    let limits = Limits { max_bytes, time_limit: Some(Duration::from_secs(10)), ..Limits::default() };
    Runtime { limits, ..Cpu::new(1).into() }
}

fn error_of(inputs: &[&str], node: &str, limit: u64) -> String {
    let _guard = ONE_AT_A_TIME.lock();
    let mut text = String::from("module ir=10\nopset ai.onnx=21\n\ngraph @main {\n");
    inputs.iter().enumerate().for_each(|(i, ty)| text += &format!("  input %x{i} : {ty}\n"));
    text += &format!("  {node}\n  output %y\n}}\n");
    let module = parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    let mut session = runtime(limit).prepare(&module).unwrap();
    let values: Vec<Data> = inputs.iter().map(|ty| value(&parse_type(ty).unwrap()).unwrap()).collect();
    let values: Vec<Option<DataRef<'_>>> = values.iter().map(|v| Some(v.view())).collect();
    session.run(&values).unwrap_err().to_string()
}

#[test]
fn a_resize_to_2_to_the_36_is_refused() {
    for mode in ["nearest", "linear", "cubic"] {
        let sizes = format!(
            "const %n : i64[1] = [68719476736]\n  %y = Resize(%x0, _, _, %n) {{mode=\"{mode}\"}} : f32[?]"
        );
        let error = error_of(&["f32[4]"], &sizes, 1 << 34);
        assert!(error.contains("expected at most 17179869184 bytes"), "{mode}: {error}");
    }
}

#[test]
fn a_resize_by_2_to_the_31_is_refused() {
    for mode in ["nearest", "linear", "cubic"] {
        let node = format!(
            "const %s : f32[1] = [2147483648.0]\n  %y = Resize(%x0, _, %s) {{mode=\"{mode}\"}} : f32[?]"
        );
        let error = error_of(&["f32[4]"], &node, 1 << 33);
        assert!(error.contains("expected at most 8589934592 bytes"), "{mode}: {error}");
    }
}

#[test]
fn a_sequence_of_many_elements_is_refused() {
    // The list of sizes and what the elements take besides their own bytes count.
    let error = error_of(&["u8[65535]"], "%y = SplitToSequence(%x0) : seq(u8[1])", 1 << 23);
    assert!(error.contains("expected at most 8388608 bytes, found 16776960 bytes"), "{error}");
}
