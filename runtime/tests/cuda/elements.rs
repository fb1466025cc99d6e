//! Element-wise operators compared with the CPU: floats with NaN, infinities and subnormal numbers, integers of every
//! width, casts between all types, random numbers.

use crate::cases::{Tolerance, compare};
use crate::random::{HEAD, ONE, Random, TWO, bits, elements};
use ampc_ir::DType;
use ampc_ir::text::{NoData, parse};
use ampc_runtime::cuda::Cuda;
use ampc_runtime::{Data, DataRef, HostTensor, Runtime};
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Runs the cases whose names contain `filter`; returns the number of failures.
pub(crate) fn run(cuda: &Arc<Cuda>, filter: &str) -> usize {
    let mut cases: Vec<Named> = Vec::new();
    for (name, text, inputs, tolerance) in
        floats().into_iter().chain(integers()).chain(casts()).chain(randoms())
    {
        let cuda = cuda.clone();
        cases.push((name, Box::new(move || matches_cpu(&cuda, &text, &inputs, tolerance))));
    }
    let wrong = cuda.clone();
    cases.push(("Dropout: wrong ratio".to_owned(), Box::new(move || wrong_ratio(&wrong))));
    passing(&cases, filter)
}

/// A name and a check.
pub(crate) type Named = (String, Box<dyn Fn() -> Result<(), String>>);

/// Runs the checks whose names contain `filter`; returns the number of failures.
pub(crate) fn passing(cases: &[Named], filter: &str) -> usize {
    let (mut passed, mut failed) = (0, 0);
    for (name, check) in cases.iter().filter(|(name, _)| name.contains(filter)) {
        let result = catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|_| Err("panicked".into()));
        match result {
            Ok(()) => passed += 1,
            Err(error) => {
                failed += 1;
                println!("FAIL  {name:40} {error}");
            }
        }
    }
    println!("element-wise: {passed} passed, {failed} failed");
    failed
}

/// The name of a case, the text of its graph, its inputs, and the tolerance.
type Case = (String, String, Vec<HostTensor>, Tolerance);

const FLOATS: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];

const INTS: [DType; 8] =
    [DType::I64, DType::I32, DType::I16, DType::I8, DType::U64, DType::U32, DType::U16, DType::U8];

pub(crate) fn refs(inputs: &[HostTensor]) -> Vec<Option<DataRef<'_>>> {
    inputs.iter().map(|x| Some(DataRef::Tensor(x.view()))).collect()
}

pub(crate) fn outputs(runtime: &Runtime, text: &str, inputs: &[HostTensor]) -> Result<Vec<Data>, String> {
    let module = parse(text, &NoData).map_err(|errors| format!("{errors}\n{text}"))?;
    let mut session = runtime.prepare(&module).map_err(|error| format!("{error}\n{text}"))?;
    let refs = refs(inputs);
    session.run(&refs).map_err(|error| format!("{error}\n{text}"))?;
    session.run(&refs).map_err(|error| format!("{error}\n{text}"))
}

pub(crate) fn matches_cpu(
    cuda: &Arc<Cuda>,
    text: &str,
    inputs: &[HostTensor],
    tolerance: Tolerance,
) -> Result<(), String> {
    let want = outputs(&Runtime::default(), text, inputs).map_err(|error| format!("CPU: {error}"))?;
    let got = outputs(&Runtime::new(cuda.clone()), text, inputs)?;
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        let error = |error| format!("output {i}: {error}\n{text}");
        if matches!(tolerance, Tolerance::Exact) {
            same_bits(got, want).map_err(error)?;
        } else {
            compare(got, want, None, tolerance).map_err(error)?;
        }
    }
    Ok(())
}

/// Checks that bits are equal; NaNs may have different bits.
pub(crate) fn same_bits(got: &Data, want: &Data) -> Result<(), String> {
    let (Data::Tensor(got), Data::Tensor(want)) = (got, want) else { return Err("no tensors".into()) };
    if got.dtype() != want.dtype() || got.dims() != want.dims() {
        return Err(format!("{}{:?} and {}{:?}", got.dtype(), got.dims(), want.dtype(), want.dims()));
    }
    let size = usize::try_from(want.dtype().bits().unwrap() / 8).unwrap();
    let is_wide = !want.dtype().is_float() || want.dtype() == DType::F64;
    let (got, want) = if is_wide { (raw(got, size), raw(want, size)) } else { (bits(got), bits(want)) };
    match got.iter().zip(&want).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => Err(format!("element {at}: bits {:#x} instead of {:#x}", got[at], want[at])),
    }
}

fn raw(tensor: &HostTensor, size: usize) -> Vec<u64> {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
    let words = tensor.bytes().unwrap().chunks(size).map(word);
    let is_nan = |word: u64| tensor.dtype() == DType::F64 && f64::from_bits(word).is_nan();
    words.map(|word| if is_nan(word) { u64::MAX } else { word }).collect()
}

/// Random elements; some f64 elements are not representable in f32.
fn some(random: &mut Random, dtype: DType, dims: &[u64]) -> HostTensor {
    if dtype != DType::F64 {
        return elements(random, dtype, dims);
    }
    let narrow = elements(random, DType::F32, dims);
    let numbers: Vec<f64> = narrow.f64s().unwrap().map(|x| x * 1.000_000_001).collect();
    HostTensor::from_slice(dims, &numbers).unwrap()
}

/// Integers converted to an element type, wrapped.
fn ints(dtype: DType, numbers: &[i128]) -> HostTensor {
    let size = usize::try_from(dtype.bits().unwrap() / 8).unwrap();
    let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()[..size].to_vec()).collect();
    HostTensor::from_bytes(dtype, &[numbers.len() as u64], &bytes).unwrap()
}

/// Every operator of floats that has an expression, with broadcast operands.
fn floats() -> Vec<Case> {
    let mut random = Random::new(11);
    let one = ONE.iter().filter(|form| **form != "Identity(@)").map(|form| form.replace('@', "%x"));
    let two = TWO.iter().map(|op| format!("{op}(%x, %y){}", if *op == "Mod" { " {fmod=1}" } else { "" }));
    let others = [
        "Clip(%x, %s, %t)",
        "Clip(%x, %s)",
        "Sum(%x, %y, %x)",
        "Mean(%x, %y, %x)",
        "Max(%x)",
        "Where(%c, %x, %y)",
        "Pow(%x, %y)",
        "Pow(%x, %t)",
        "Pow(%x, %n)",
        "Mod(%x, %y)",
        "IsNaN(%x)",
        "IsInf(%x) {detect_negative=0}",
        "Less(%x, %y)",
        "Equal(%x, %x)",
        "com.microsoft::FastGelu(%x, %y)",
        "com.microsoft::Gelu(%x)",
    ];
    let mut cases = Vec::new();
    for call in one.chain(two).chain(others.map(str::to_owned)) {
        for dtype in FLOATS {
            let is_f32_alone =
                ["Celu", "QuickGelu", "microsoft::Gelu"].iter().any(|part| call.contains(part));
            let is_no_bf16 = ["Shrink", "BiasGelu"].iter().any(|part| call.contains(part));
            let is_no_f64 = call.contains("FastGelu") || call.contains("BiasGelu");
            if dtype != DType::F32 && is_f32_alone
                || dtype == DType::BF16 && is_no_bf16
                || dtype == DType::F64 && is_no_f64
            {
                continue;
            }
            let is_test = ["IsNaN", "IsInf", "Less", "Equal"].iter().any(|part| call.contains(part));
            let made = if is_test { DType::Bool } else { dtype };
            let text = format!(
                "{HEAD}graph @main {{\n  input %x : {dtype}[5, 37]\n  input %y : {dtype}[37]\n  input %s : {dtype}\n  \
                 input %t : {dtype}\n  input %c : bool[5, 1]\n  input %n : i32[5, 1]\n  const %two : f32 = 2.0\n  \
                 %r = {call} : {made}[5, 37]\n  output %r\n}}\n"
            );
            let number = |x: f64| -> HostTensor {
                if dtype == DType::F64 {
                    return HostTensor::from_slice(&[], &[x]).unwrap();
                }
                #[expect(clippy::cast_possible_truncation, reason = "a small number")]
                crate::cases::tensor(dtype, &[], &[x as f32])
            };
            let powers: Vec<u8> = [2i32, -1, 0, 3, 5].iter().flat_map(|n| n.to_le_bytes()).collect();
            let inputs = vec![
                some(&mut random, dtype, &[5, 37]),
                some(&mut random, dtype, &[37]),
                number(-0.5),
                number(3.0),
                elements(&mut random, DType::Bool, &[5, 1]),
                HostTensor::from_bytes(DType::I32, &[5, 1], &powers).unwrap(),
            ];
            cases.push((format!("{call} {dtype}"), text, inputs, Tolerance::Elements));
        }
    }
    cases
}

/// Operators of integers, at the limits of their ranges.
fn integers() -> Vec<Case> {
    let calls = [
        "Add(%a, %b)",
        "Sub(%a, %b)",
        "Mul(%a, %b)",
        "Div(%a, %b)",
        "Mod(%a, %b)",
        "Mod(%a, %b) {fmod=1}",
        "Max(%a, %b, %o)",
        "Min(%a, %b, %o)",
        "Abs(%a)",
        "Neg(%a)",
        "Sign(%a)",
        "Relu(%a)",
        "Clip(%a, %s, %t)",
        "Clip(%a, _, %t)",
        "PRelu(%a, %b)",
        "Shrink(%a) {bias=2.0, lambd=3.5}",
        "Shrink(%a) {bias=0.5, lambd=1.5}",
        "BitwiseAnd(%a, %b)",
        "BitwiseOr(%a, %b)",
        "BitwiseXor(%a, %b)",
        "BitwiseNot(%a)",
        "BitShift(%a, %b) {direction=\"LEFT\"}",
        "BitShift(%a, %b) {direction=\"RIGHT\"}",
        "Where(%c, %a, %b)",
        "Pow(%a, %b)",
        "Pow(%a, %f)",
        "Equal(%a, %b)",
        "Less(%a, %b)",
        "LessOrEqual(%a, %b)",
        "Greater(%a, %o)",
        "GreaterOrEqual(%a, %b)",
    ];
    let mut cases = Vec::new();
    for dtype in INTS {
        let top = dtype.bits().unwrap() - 1;
        let (half, whole) = (1i128 << top, 2i128 << top);
        let a = [0, 7, -7, half, half - 1, whole - 1, 5, 100, -100, 3, half + 1];
        let b = [0, 3, 3, -1, -1, whole - 1, 0, half, 7, 64, -3];
        let signed = !matches!(dtype, DType::U64 | DType::U32 | DType::U16 | DType::U8);
        for call in calls {
            let is_wide = dtype.bits() >= Some(32);
            let is_typed = match call.split('(').next() {
                Some("Neg" | "Relu") => signed,
                Some("BitShift") => !signed,
                Some("PRelu") => is_wide,
                Some("Pow") => signed && is_wide,
                _ => true,
            };
            if !is_typed {
                continue;
            }
            let is_test = ["Equal", "Less", "Greater"].iter().any(|part| call.starts_with(part));
            let made = if is_test { DType::Bool } else { dtype };
            let text = format!(
                "{HEAD}graph @main {{\n  input %a : {dtype}[11]\n  input %b : {dtype}[11]\n  input %o : {dtype}[1]\n  \
                 input %s : {dtype}\n  input %t : {dtype}\n  input %c : bool[11]\n  input %f : f32[11]\n  \
                 %r = {call} : {made}[11]\n  output %r\n}}\n"
            );
            let scalar = |n| {
                let one = ints(dtype, &[n]);
                HostTensor::from_bytes(dtype, &[], one.bytes().unwrap()).unwrap()
            };
            let powers: [f32; 11] = [0.0, 2.0, 3.0, 0.5, -1.0, 1e9, -2.0, 2.5, 1.0, f32::NAN, f32::INFINITY];
            let inputs = vec![
                ints(dtype, &a),
                ints(dtype, &b),
                ints(dtype, &[4]),
                scalar(2),
                scalar(90),
                elements(&mut Random::new(3), DType::Bool, &[11]),
                HostTensor::from_slice(&[11], &powers).unwrap(),
            ];
            cases.push((format!("{call} {dtype}"), text, inputs, Tolerance::Exact));
        }
    }
    cases
}

/// Casts of numbers that are exact, between two representable numbers, and out of range.
fn casts() -> Vec<Case> {
    let all: Vec<DType> = FLOATS.iter().chain(&INTS).chain(&[DType::Bool]).copied().collect();
    let middle = (1i128 << 62) + (1 << 54);
    let whole =
        [0, 1, -1, 2049, 2051, 65519, 65520, 16_777_217, -16_777_217, middle, middle + 1, -middle - 1];
    let ends =
        [i128::from(i64::MIN), i64::MAX.into(), u64::MAX.into(), (1 << 53) + 1, (1 << 61) + (1 << 37) + 1];
    let whole: Vec<i128> = whole.into_iter().chain(ends).collect();
    let numbers = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        0.0,
        -0.0,
        0.5,
        -0.999,
        255.9,
        -128.7,
        300.2,
        1e10,
        -1e10,
        9.3e18,
        -9.3e18,
        1.9e19,
        65519.99,
        65520.0,
        1e-41,
        5.96e-8,
        2.98e-8,
        1.000_488_281_250_1,
        1.003_906_250_000_1,
        3.4e38,
        1e300,
    ];
    let mut cases = Vec::new();
    for &from in &all {
        let x = match from {
            DType::Bool => elements(&mut Random::new(5), DType::Bool, &[9]),
            DType::F64 => HostTensor::from_slice(&[numbers.len() as u64], &numbers).unwrap(),
            _ if from.is_float() => {
                #[expect(clippy::cast_possible_truncation, reason = "rounding")]
                let narrow: Vec<f32> = numbers.iter().map(|&x| x as f32).collect();
                crate::cases::tensor(from, &[narrow.len() as u64], &narrow)
            }
            _ => ints(from, &whole),
        };
        let n = x.dims()[0];
        let mut text = format!("{HEAD}graph @main {{\n  input %x : {from}[{n}]\n");
        for to in &all {
            writeln!(text, "  %to_{to} = Cast(%x) {{to={}}} : {to}[{n}]", to.number()).unwrap();
        }
        for to in &all {
            writeln!(text, "  output %to_{to}").unwrap();
        }
        text.push_str("}\n");
        cases.push((format!("Cast from {from}"), text, vec![x], Tolerance::Exact));
    }
    cases
}

/// Random numbers with the same words as on the CPU.
fn randoms() -> Vec<Case> {
    let mut random = Random::new(6);
    let mut cases = Vec::new();
    for dtype in FLOATS {
        let is_grad = dtype != DType::F64;
        let calls = [
            ("Dropout(%x, %h, %yes) {seed=3}", Tolerance::Exact),
            ("Dropout(%x, %r, %yes)", Tolerance::Exact),
            ("Dropout(%x, %r, %c) {seed=5}", Tolerance::Exact),
            ("Dropout(%x, %z, %yes)", Tolerance::Exact),
            ("ai.ampc::PhiloxDropout(%x, %key, %key, %r) {stream=7}", Tolerance::Exact),
            ("ai.ampc::PhiloxDropout(%x, %key, %one, %z) {stream=7}", Tolerance::Exact),
            ("Bernoulli(%p) {seed=2}", Tolerance::Exact),
            ("RandomUniform() {high=3.0, low=-1.0, seed=2, shape=[5, 9, 16], @}", Tolerance::Exact),
            ("RandomUniformLike(%x) {@}", Tolerance::Exact),
            ("RandomNormalLike(%x) {mean=0.25, scale=2.0, seed=8, @}", Tolerance::Elements),
        ];
        for (call, tolerance) in calls {
            if call.contains("PhiloxDropout") && !is_grad {
                continue;
            }
            let call = call.replace('@', &format!("dtype={}", dtype.number()));
            let is_masked = call.starts_with("Dropout");
            let [results, types, output] = match is_masked {
                true => ["%y, %m", ", bool[5, 9, 16]", "  output %m\n"],
                false => ["%y", "", ""],
            };
            let text = format!(
                "module ir=10\nopset ai.onnx=22, ai.ampc=1\n\ngraph @main {{\n  input %x : {dtype}[5, 9, 16]\n  input %p : {dtype}[5, 9, 16]\n  \
                 input %r : f32\n  input %z : f32\n  input %key : u64\n  input %one : u64\n  input %c : bool\n  const %h : f32 = 0.25\n  \
                 const %yes : bool = true\n  {results} = {call} : {dtype}[5, 9, 16]{types}\n  output %y\n{output}}}\n"
            );
            let scalar = |x: f32| HostTensor::from_slice(&[], &[x]).unwrap();
            let inputs = vec![
                some(&mut random, dtype, &[5, 9, 16]),
                some(&mut random, dtype, &[5, 9, 16]),
                scalar(0.375),
                scalar(0.0),
                HostTensor::from_slice(&[], &[0x1234_5678_9abc_def0u64]).unwrap(),
                HostTensor::from_slice(&[], &[1u64 << 40]).unwrap(),
                HostTensor::from_bytes(DType::Bool, &[], &[1]).unwrap(),
            ];
            cases.push((format!("{call} {dtype}"), text, inputs, tolerance));
        }
    }
    cases
}

/// An invalid ratio is reported as an error of the node.
fn wrong_ratio(cuda: &Arc<Cuda>) -> Result<(), String> {
    let text = format!(
        "{HEAD}graph @main {{\n  input %x : f32[40]\n  input %r : f32\n  const %yes : bool = true\n  \
         %y = Dropout(%x, %r, %yes) : f32[40]\n  output %y\n}}\n"
    );
    for ratio in [1.0f32, -0.5, f32::NAN, 0.5] {
        let inputs = [
            elements(&mut Random::new(1), DType::F32, &[40]),
            HostTensor::from_slice(&[], &[ratio]).unwrap(),
        ];
        let found = outputs(&Runtime::new(cuda.clone()), &text, &inputs);
        let is_right = match &found {
            Ok(_) => ratio == 0.5,
            Err(error) => ratio != 0.5 && error.contains("a ratio in [0, 1)"),
        };
        if !is_right {
            return Err(format!("ratio {ratio}: {:?}", found.map(|_| ())));
        }
    }
    Ok(())
}
