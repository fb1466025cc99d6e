//! Graphs with one operator or a few.

use ampc_ir::text::{NoData, parse};
use ampc_ir::{DType, Module};
use ampc_runtime::cuda::Cuda;
use ampc_runtime::session::ExecuteError;
use ampc_runtime::{Data, DataRef, HostTensor, Runtime, Session};
use half::{bf16, f16};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The permitted error: relative to the result or to the sum of magnitudes, and in units in the last place.
#[derive(Clone, Copy)]
pub(crate) enum Tolerance {
    /// Element-wise results.
    Elements,
    /// Sums and products.
    Sums,
    /// Normalized rows: relative to the largest element.
    Rows,
    /// Several operators in 16 bits, each of which may round to a neighbor.
    Model,
    /// Equal bits.
    Exact,
}

/// A graph of a few nodes. If the body begins with a line `opset=N`, that is its opset.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) body: String,
    pub(crate) inputs: Vec<HostTensor>,
    pub(crate) tolerance: Tolerance,
}

/// Pseudorandom numbers between -2 and 2.
pub(crate) fn numbers(n: u64, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        #[expect(clippy::cast_precision_loss, reason = "a random number")]
        let unit = (state >> 40) as f32 / (1u64 << 24) as f32;
        unit * 4.0 - 2.0
    };
    (0..n).map(|_| next()).collect()
}

/// Numbers as a tensor, rounded to the element type.
pub(crate) fn tensor(dtype: DType, dims: &[u64], numbers: &[f32]) -> HostTensor {
    match dtype {
        DType::F16 => {
            HostTensor::from_slice(dims, &numbers.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>())
        }
        DType::BF16 => {
            HostTensor::from_slice(dims, &numbers.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>())
        }
        DType::F64 => {
            HostTensor::from_slice(dims, &numbers.iter().map(|&x| f64::from(x)).collect::<Vec<_>>())
        }
        _ => HostTensor::from_slice(dims, numbers),
    }
    .unwrap()
}

pub(crate) fn random(dtype: DType, dims: &[u64], seed: u64) -> HostTensor {
    tensor(dtype, dims, &numbers(dims.iter().product(), seed))
}

pub(crate) fn ints(dims: &[u64], numbers: &[i64]) -> HostTensor {
    HostTensor::from_slice(dims, numbers).unwrap()
}

pub(crate) fn bools(dims: &[u64], seed: u64) -> HostTensor {
    let bytes: Vec<u8> = numbers(dims.iter().product(), seed).iter().map(|&x| u8::from(x > 0.0)).collect();
    HostTensor::from_bytes(DType::Bool, dims, &bytes).unwrap()
}

/// A graph whose inputs are `a`, `b`, `c` with the types of the tensors.
pub(crate) fn module(body: &str, inputs: &[HostTensor]) -> Module {
    let (opset, body) = match body.strip_prefix("opset=").and_then(|rest| rest.split_once('\n')) {
        Some((opset, body)) => (opset, body),
        None => ("22", body),
    };
    let mut text = format!("module ir=10\nopset ai.onnx={opset}\n\ngraph @main {{\n");
    for (input, name) in inputs.iter().zip(["a", "b", "c", "d", "e", "f", "g", "h"]) {
        text += &format!("  input %{name} : {}{}\n", input.dtype(), dims_text(input.dims()));
    }
    text += body;
    text += "}\n";
    parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

fn dims_text(dims: &[u64]) -> String {
    if dims.is_empty() { String::new() } else { format!("{dims:?}") }
}

pub(crate) fn on(
    runtime: &Runtime,
    module: &Module,
    inputs: &[HostTensor],
) -> Result<Vec<Data>, ExecuteError> {
    results(runtime.prepare(module).unwrap_or_else(|error| panic!("{error}")), inputs)
}

fn refs(inputs: &[HostTensor]) -> Vec<Option<DataRef<'_>>> {
    inputs.iter().map(|x| Some(DataRef::Tensor(x.view()))).collect()
}

/// The results of a session.
fn results(mut session: Session, inputs: &[HostTensor]) -> Result<Vec<Data>, ExecuteError> {
    let refs = refs(inputs);
    // If the device can record, the second run is recorded, and the third run replays it.
    session.run(&refs)?;
    session.run(&refs)?;
    session.run(&refs)
}

/// The number of fraction bits.
fn digits(dtype: DType) -> i32 {
    match dtype {
        DType::F16 => 10,
        DType::BF16 => 7,
        _ => 23,
    }
}

/// The spacing of an element type at a number.
fn ulp(x: f64, dtype: DType) -> f64 {
    let least = if dtype == DType::F16 { -14 } else { -126 };
    #[expect(clippy::cast_possible_truncation, reason = "an exponent")]
    let exponent = if x == 0.0 { least } else { x.abs().log2().floor().max(f64::from(least)) as i32 };
    2f64.powi(exponent - digits(dtype))
}

fn magnitudes(input: &HostTensor) -> HostTensor {
    if !input.dtype().is_float() {
        return input.clone();
    }
    #[expect(clippy::cast_possible_truncation, reason = "rounding")]
    let numbers: Vec<f32> = input.f64s().unwrap().map(|x| x.abs() as f32).collect();
    tensor(input.dtype(), input.dims(), &numbers)
}

/// The largest error as a fraction of the tolerance, or a failure.
pub(crate) fn compare(
    got: &Data,
    want: &Data,
    sums: Option<&Data>,
    tolerance: Tolerance,
) -> Result<f64, String> {
    let (Data::Tensor(got), Data::Tensor(want)) = (got, want) else { return Err("no tensors".into()) };
    if got.dtype() != want.dtype() || got.dims() != want.dims() {
        return Err(format!("{}{:?} and {}{:?}", got.dtype(), got.dims(), want.dtype(), want.dims()));
    }
    if !want.dtype().is_float() || matches!(tolerance, Tolerance::Exact) {
        return if got.bytes() == want.bytes() { Ok(0.0) } else { Err("other bits".into()) };
    }
    let dtype = want.dtype();
    let sums: Vec<f64> = match sums {
        Some(Data::Tensor(sums)) => sums.f64s().unwrap().collect(),
        _ => Vec::new(),
    };
    let greatest = want.f64s().unwrap().map(f64::abs).filter(|x| x.is_finite()).fold(0.0, f64::max);
    let mut most = 0.0;
    for (i, (got, want)) in got.f64s().unwrap().zip(want.f64s().unwrap()).enumerate() {
        if got == want || (got.is_nan() && want.is_nan()) {
            continue;
        }
        let permitted = match tolerance {
            Tolerance::Elements if dtype == DType::F32 => 1e-5 * want.abs() + f64::from(f32::from_bits(1)),
            Tolerance::Elements if dtype == DType::F64 => 1e-12 * want.abs(),
            Tolerance::Elements => 2.0 * ulp(want, dtype),
            Tolerance::Sums if dtype == DType::F64 => {
                1e-13 * sums.get(i).copied().unwrap_or(want.abs()).abs()
            }
            Tolerance::Rows if dtype == DType::F64 => 1e-12 * greatest,
            Tolerance::Sums => 1e-5 * sums.get(i).copied().unwrap_or(want.abs()).abs() + ulp(want, dtype),
            // A mean of numbers of both signs is far smaller than its terms, so its error is many units in its last place.
            Tolerance::Rows | Tolerance::Model if dtype == DType::F32 => 1e-5 * greatest,
            Tolerance::Model => 4.0 * ulp(greatest, dtype),
            Tolerance::Rows => 2.0 * ulp(want, dtype) + 1e-5 * greatest,
            Tolerance::Exact => 0.0,
        };
        let share = (got - want).abs() / permitted;
        if share > 1.0 || share.is_nan() {
            return Err(format!(
                "element {i}: {got} instead of {want}, {share:.2} of the permitted distance"
            ));
        }
        most = f64::max(most, share);
    }
    Ok(most)
}

/// The session of a case, whose kernels are being compiled; `None` if binding fails.
fn bound(cuda: &Arc<Cuda>, case: &Case) -> Option<Session> {
    let bind = || {
        let mut session = Runtime::new(cuda.clone()).prepare(&module(&case.body, &case.inputs)).ok()?;
        session.bind(&refs(&case.inputs)).ok()?;
        Some(session)
    };
    catch_unwind(AssertUnwindSafe(bind)).ok().flatten()
}

fn passes(cuda: &Arc<Cuda>, case: &Case, session: Option<Session>) -> Result<f64, String> {
    let module = module(&case.body, &case.inputs);
    let want = on(&Runtime::default(), &module, &case.inputs).map_err(|error| format!("CPU: {error}"))?;
    let sums = match case.tolerance {
        Tolerance::Sums => {
            let inputs: Vec<HostTensor> = case.inputs.iter().map(magnitudes).collect();
            on(&Runtime::default(), &module, &inputs).map_err(|error| format!("CPU: {error}"))?
        }
        _ => Vec::new(),
    };
    let got = match session {
        Some(session) => results(session, &case.inputs),
        None => on(&Runtime::new(cuda.clone()), &module, &case.inputs),
    };
    let got = got.map_err(|error| error.to_string())?;
    let mut most = 0.0;
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        most = f64::max(most, compare(got, want, sums.get(i), case.tolerance)?);
    }
    Ok(most)
}

/// Runs the cases whose names contain `filter`; returns the number of failures.
pub(crate) fn run(cuda: &Arc<Cuda>, filter: &str) -> usize {
    run_all(cuda, &cases(), filter) + failures(cuda, filter)
}

/// The divisor of the number of cases to run, from `AMPC_CUDA_SHARE`.
#[expect(clippy::disallowed_methods, reason = "a test reads its settings")]
fn share() -> usize {
    let set = std::env::var("AMPC_CUDA_SHARE").ok();
    set.and_then(|share| share.parse().ok()).unwrap_or(1).max(1)
}

/// The number of cases that are compiled while an earlier case runs.
const AHEAD: usize = 6;

/// Runs the cases whose names contain `filter`; returns the number of failures.
pub(crate) fn run_all(cuda: &Arc<Cuda>, cases: &[Case], filter: &str) -> usize {
    let (mut passed, mut failed) = (0, 0);
    let chosen: Vec<&Case> =
        cases.iter().filter(|case| case.name.contains(filter)).step_by(share()).collect();
    let mut rest = chosen.iter();
    let mut ahead: VecDeque<Option<Session>> = VecDeque::new();
    for case in &chosen {
        ahead.extend(rest.by_ref().take(AHEAD - ahead.len()).map(|next| bound(cuda, next)));
        let session = ahead.pop_front().flatten();
        let result = catch_unwind(AssertUnwindSafe(|| passes(cuda, case, session)));
        match result.unwrap_or_else(|_| Err("panicked".into())) {
            Ok(share) => {
                passed += 1;
                println!("ok    {:40} {share:.3} of the tolerance", case.name);
            }
            Err(error) => {
                failed += 1;
                println!("FAIL  {:40} {error}", case.name);
            }
        }
    }
    println!("operators: {passed} passed, {failed} failed");
    failed
}

/// Errors that depend on data are reported with the node, and the session continues.
fn failures(cuda: &Arc<Cuda>, filter: &str) -> usize {
    if !"failure".contains(filter) {
        return 0;
    }
    let x = random(DType::F32, &[4, 3], 1);
    let (good, bad) = (ints(&[2], &[-1, 3]), ints(&[2], &[1, 4]));
    let module =
        module("  %y = Gather(%a, %b) : f32[2, 3]\n  output %y : f32[2, 3]\n", &[x.clone(), good.clone()]);
    let mut session = Runtime::new(cuda.clone()).prepare(&module).unwrap();
    let view = |x| Some(DataRef::Tensor(HostTensor::view(x)));
    let mut failed = 0;
    for (index, is_good) in [(&good, true), (&bad, false), (&good, true), (&bad, false), (&good, true)] {
        let done = session.run(&[view(&x), view(index)]);
        let text = done.as_ref().map_or_else(ToString::to_string, |_| "no error".into());
        let is_right = if is_good { done.is_ok() } else { text.contains("found 4") };
        println!("{}  failure: {text}", if is_right { "ok  " } else { "FAIL" });
        failed += usize::from(!is_right);
    }
    failed
}

pub(crate) const LOW: [(DType, &str); 3] = [(DType::F32, "f32"), (DType::F16, "f16"), (DType::BF16, "bf16")];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: String, tolerance, body: String, inputs: Vec<HostTensor>| {
        cases.push(Case { name, body, inputs, tolerance });
    };
    // In 16 bits, the group rounds once; `library.rs` has those cases.
    for &(dtype, t) in &LOW[..1] {
        let body = format!(
            "  %p = MatMul(%a, %b) : {t}[5, 9]\n  %s = Add(%p, %c) : {t}[5, 9]\n  %r = Relu(%s) : {t}[5, 9]\n  output %r : {t}[5, 9]\n"
        );
        let inputs = vec![random(dtype, &[5, 7], 1), random(dtype, &[7, 9], 2), random(dtype, &[9], 3)];
        add(format!("first line {t}"), Tolerance::Sums, body, inputs);
    }
    for (dtype, t) in LOW {
        let unary = ["Abs", "Neg", "Relu", "Exp", "Reciprocal", "Sigmoid", "Tanh", "Erf", "Floor", "Ceil"];
        for op in unary.iter().chain(&["Sin", "Cos", "Round"]) {
            let body = format!("  %y = {op}(%a) : {t}[3, 50]\n  output %y : {t}[3, 50]\n");
            add(format!("{op} {t}"), Tolerance::Elements, body, vec![random(dtype, &[3, 50], 4)]);
        }
        for op in ["Sqrt", "Log"] {
            let body = format!("  %y = {op}(%a) : {t}[150]\n  output %y : {t}[150]\n");
            let positive: Vec<f32> = numbers(150, 5).iter().map(|x| x.abs() + 0.01).collect();
            add(format!("{op} {t}"), Tolerance::Elements, body, vec![tensor(dtype, &[150], &positive)]);
        }
        for op in ["Add", "Sub", "Mul", "Div"] {
            for (a, b, y) in [
                (&[4u64, 6][..], &[4u64, 6][..], "[4, 6]"),
                (&[4, 6], &[6], "[4, 6]"),
                (&[4, 1], &[1, 6], "[4, 6]"),
                (&[2, 3, 4], &[3, 1], "[2, 3, 4]"),
                (&[5], &[], "[5]"),
            ] {
                let body = format!("  %y = {op}(%a, %b) : {t}{y}\n  output %y : {t}{y}\n");
                let inputs = vec![random(dtype, a, 6), random(dtype, b, 7)];
                add(format!("{op} {t} {a:?} {b:?}"), Tolerance::Elements, body, inputs);
            }
        }
        for op in ["Greater", "Less", "Equal", "GreaterOrEqual", "LessOrEqual"] {
            let body = format!("  %y = {op}(%a, %b) : bool[4, 6]\n  output %y : bool[4, 6]\n");
            add(
                format!("{op} {t}"),
                Tolerance::Exact,
                body,
                vec![random(dtype, &[4, 6], 8), random(dtype, &[6], 8)],
            );
        }
        let body = format!("  %y = Where(%a, %b, %c) : {t}[4, 6]\n  output %y : {t}[4, 6]\n");
        let inputs = vec![bools(&[4, 1], 9), random(dtype, &[4, 6], 10), random(dtype, &[], 11)];
        add(format!("Where {t}"), Tolerance::Exact, body, inputs);
        for (to, number) in [("f32", 1), ("f16", 10), ("bf16", 16), ("bool", 9)] {
            let body = format!("  %y = Cast(%a) {{to={number}}} : {to}[6]\n  output %y : {to}[6]\n");
            let some = tensor(dtype, &[6], &[0.0, 1.5, -2.001, 1e-6, 70000.0, -3.25]);
            add(format!("Cast {t} to {to}"), Tolerance::Exact, body, vec![some]);
        }
        let body =
            format!("  %y = Transpose(%a) {{perm=[2, 0, 1]}} : {t}[4, 2, 3]\n  output %y : {t}[4, 2, 3]\n");
        add(format!("Transpose {t}"), Tolerance::Exact, body, vec![random(dtype, &[2, 3, 4], 12)]);
        let body = format!(
            "  const %s : i64[2] = [-1, 4]\n  %z = Neg(%a) : {t}[2, 3, 4]\n  %y = Reshape(%z, %s) : {t}[6, 4]\n  output %y : {t}[6, 4]\n  output %z : {t}[2, 3, 4]\n"
        );
        add(format!("Reshape {t}"), Tolerance::Exact, body, vec![random(dtype, &[2, 3, 4], 13)]);
        let body = format!("  %y = Gather(%a, %b) {{axis=1}} : {t}[3, 2, 4]\n  output %y : {t}[3, 2, 4]\n");
        add(
            format!("Gather {t}"),
            Tolerance::Exact,
            body,
            vec![random(dtype, &[3, 5, 4], 14), ints(&[2], &[-1, 2])],
        );
        let body = format!("  %y = Concat(%a, %b) {{axis=1}} : {t}[3, 5]\n  output %y : {t}[3, 5]\n");
        add(
            format!("Concat {t}"),
            Tolerance::Exact,
            body,
            vec![random(dtype, &[3, 2], 14), random(dtype, &[3, 3], 15)],
        );
        for op in
            ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceL1", "ReduceL2"]
        {
            let kind =
                if matches!(op, "ReduceMax" | "ReduceMin") { Tolerance::Exact } else { Tolerance::Sums };
            for (dims, axes, y) in [
                (&[4u64, 300][..], "[1]", "[4]"),
                (&[300, 4], "[0]", "[4]"),
                (&[5, 7, 9], "[0, 2]", "[7]"),
                (&[3, 5, 1000], "[1, 2]", "[3]"),
                (&[20, 3], "[0, 1]", ""),
            ] {
                let n = axes.matches(',').count() + 1;
                let body = format!(
                    "  const %x : i64[{n}] = {axes}\n  %y = {op}(%a, %x) {{keepdims=0}} : {t}{y}\n  output %y : {t}{y}\n"
                );
                // Sums stay in the range of f16.
                let some: Vec<f32> = numbers(dims.iter().product(), 16).iter().map(|x| x / 2.0).collect();
                add(format!("{op} {t} {dims:?} {axes}"), kind, body, vec![tensor(dtype, dims, &some)]);
            }
        }
        for op in ["Softmax", "LogSoftmax"] {
            for (dims, axis) in [(&[6u64, 40][..], -1), (&[3, 17, 5], 1), (&[2, 3000], 1)] {
                let body =
                    format!("  %y = {op}(%a) {{axis={axis}}} : {t}{dims:?}\n  output %y : {t}{dims:?}\n");
                add(
                    format!("{op} {t} {dims:?} {axis}"),
                    Tolerance::Rows,
                    body,
                    vec![random(dtype, dims, 17)],
                );
            }
        }
        let body = format!(
            "  %y = LayerNormalization(%a, %b, %c) {{axis=-1, epsilon=1e-5}} : {t}[6, 70]\n  output %y : {t}[6, 70]\n"
        );
        let inputs = vec![random(dtype, &[6, 70], 18), random(dtype, &[70], 19), random(dtype, &[70], 20)];
        add(format!("LayerNormalization {t}"), Tolerance::Rows, body, inputs);
        for (a, b, y) in [
            (&[33u64, 70][..], &[70u64, 20][..], "[33, 20]"),
            (&[2, 3, 8, 16], &[16, 5], "[2, 3, 8, 5]"),
            (&[6, 8, 16], &[6, 16, 10], "[6, 8, 10]"),
            (&[8, 16], &[6, 16, 10], "[6, 8, 10]"),
            (&[16], &[16, 10], "[10]"),
            (&[4, 16], &[16], "[4]"),
        ] {
            let body = format!("  %y = MatMul(%a, %b) : {t}{y}\n  output %y : {t}{y}\n");
            add(
                format!("MatMul {t} {a:?} {b:?}"),
                Tolerance::Sums,
                body,
                vec![random(dtype, a, 21), random(dtype, b, 22)],
            );
        }
        for (ta, tb) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            for (c, beta) in [("", 1.0), ("[24]", 1.0), ("[12, 24]", 0.5), ("[12, 1]", 1.0)] {
                let a: &[u64] = if ta == 0 { &[12, 40] } else { &[40, 12] };
                let b: &[u64] = if tb == 0 { &[40, 24] } else { &[24, 40] };
                let mut inputs = vec![random(dtype, a, 23), random(dtype, b, 24)];
                let mut operands = "%a, %b";
                if !c.is_empty() {
                    let dims: Vec<u64> =
                        c.trim_matches(['[', ']']).split(", ").map(|n| n.parse().unwrap()).collect();
                    inputs.push(random(dtype, &dims, 25));
                    operands = "%a, %b, %c";
                }
                let body = format!(
                    "  %y = Gemm({operands}) {{alpha=0.75, beta={beta:?}, transA={ta}, transB={tb}}} : {t}[12, 24]\n  output %y : {t}[12, 24]\n"
                );
                add(format!("Gemm {t} {ta}{tb} {c}"), Tolerance::Sums, body, inputs);
            }
        }
    }
    for op in ["Add", "Sub", "Mul", "Div"] {
        let body = format!("  %y = {op}(%a, %b) : i64[5]\n  output %y : i64[5]\n");
        let inputs = vec![ints(&[5], &[7, -7, i64::MIN, 5, 3]), ints(&[5], &[2, 2, -1, 0, -9])];
        add(format!("{op} i64"), Tolerance::Exact, body, inputs);
    }
    let body = "  %e = Equal(%a, %b) : bool[5]\n  %y = Cast(%e) {to=7} : i64[5]\n  %z = Cast(%a) {to=1} : f32[5]\n  output %y : i64[5]\n  output %z : f32[5]\n";
    add(
        "Equal and Cast i64".into(),
        Tolerance::Exact,
        body.into(),
        vec![ints(&[5], &[7, -7, 1 << 40, 5, 3]), ints(&[5], &[7, 2, 1 << 40, 0, 3])],
    );
    let body = "  const %depth : i64[1] = [5]\n  const %v : f32[2] = [0.25, 1.0]\n  %y = OneHot(%a, %depth, %v) {axis=1} : f32[4, 5]\n  output %y : f32[4, 5]\n";
    add("OneHot".into(), Tolerance::Exact, body.into(), vec![ints(&[4], &[0, -1, 7, 3])]);
    for (reduction, y) in [("mean", ""), ("sum", ""), ("none", "[6, 3]")] {
        let body = format!(
            "  %y, %p = SoftmaxCrossEntropyLoss(%a, %b, %c) {{ignore_index=2, reduction=\"{reduction}\"}} : f32{y}, f32[6, 5, 3]\n  output %y : f32{y}\n  output %p : f32[6, 5, 3]\n"
        );
        let weights: Vec<f32> = numbers(5, 27).iter().map(|x| x.abs()).collect();
        let classes: Vec<i64> = (0..18).map(|i| i * 7 % 5).collect();
        let inputs = vec![
            random(DType::F32, &[6, 5, 3], 26),
            ints(&[6, 3], &classes),
            tensor(DType::F32, &[5], &weights),
        ];
        add(format!("SoftmaxCrossEntropyLoss {reduction}"), Tolerance::Rows, body, inputs);
    }
    for (dtype, t) in LOW {
        let w = |name: &str, dims: &str, seed: u32| format!("  const %{name} : {t}{dims} = random({seed})\n");
        let mut body: String = [
            ("w1", "[64, 20]", 1),
            ("b1", "[64]", 2),
            ("g", "[64]", 3),
            ("h", "[64]", 4),
            ("w2", "[5, 64]", 5),
            ("b2", "[5]", 6),
        ]
        .iter()
        .map(|&(name, dims, seed)| w(name, dims, seed))
        .collect();
        body += &format!(
            "  const %half : {t} = 0.5\n  const %root : {t} = 1.4140625\n  const %one : {t} = 1.0
  %p = Gemm(%a, %w1, %b1) {{transB=1}} : {t}[16, 64]
  %r = Relu(%p) : {t}[16, 64]\n  %d = Div(%r, %root) : {t}[16, 64]\n  %e = Erf(%d) : {t}[16, 64]
  %f = Add(%e, %one) : {t}[16, 64]\n  %m = Mul(%r, %f) : {t}[16, 64]\n  %n = Mul(%m, %half) : {t}[16, 64]
  %l = LayerNormalization(%n, %g, %h) : {t}[16, 64]
  %o = Gemm(%l, %w2, %b2) {{transB=1}} : {t}[16, 5]\n  %y = LogSoftmax(%o) : {t}[16, 5]\n  output %y : {t}[16, 5]\n"
        );
        let tolerance = if dtype == DType::F32 { Tolerance::Rows } else { Tolerance::Model };
        add(format!("MLP {t}"), tolerance, body, vec![random(dtype, &[16, 20], 28)]);
    }
    cases
}
