//! Attention in 16 bits as one graph of cuDNN: the operator, and products with a softmax between them.
//!
//! The reference computes in f32 on the CPU, from the same operands. cuDNN rounds the attention probabilities to 16
//! bits, so a result differs by the largest value times half the spacing of numbers below one, and by its own
//! rounding.

use crate::cases::{Case, Tolerance, bools, module, numbers, on, random, tensor};
use ampc_ir::DType;
use ampc_runtime::cuda::Cuda;
use ampc_runtime::{Data, HostTensor, Runtime};
use half::{bf16, f16};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The body of a graph for an element type, by its name in the text form and its number in ONNX.
type Body = Box<dyn Fn(&str, u8) -> String>;

struct Attention {
    name: &'static str,
    body: Body,
    inputs: Vec<Operand>,
    /// True if cuDNN computes the attention.
    is_fused: bool,
}

/// An input. Inputs of the element type under test are rounded to it.
enum Operand {
    Low(Vec<u64>, u64),
    /// Like `Low`, with −∞ at every multiple of a number.
    Hidden(Vec<u64>, u64, usize),
    Same(HostTensor),
}

fn low(dims: &[u64], seed: u64) -> Operand {
    Operand::Low(dims.into(), seed)
}

impl Operand {
    fn tensor(&self, dtype: DType) -> HostTensor {
        match self {
            Operand::Low(dims, seed) => random(dtype, dims, *seed),
            Operand::Hidden(dims, seed, step) => {
                let mut numbers = numbers(dims.iter().product(), *seed);
                numbers.iter_mut().step_by(*step).for_each(|number| *number = f32::NEG_INFINITY);
                tensor(dtype, dims, &numbers)
            }
            Operand::Same(tensor) => tensor.clone(),
        }
    }
}

/// Masks of 13 rows of 21 keys; every fourth row hides all keys.
fn masks() -> HostTensor {
    let hides = |row: usize, key: usize| row % 4 == 1 || (row + key).is_multiple_of(3);
    let mask = |i: usize| if hides(i / 21, i % 21) { f32::NEG_INFINITY } else { 0.5 };
    HostTensor::from_slice(&[13, 21], &(0..13 * 21).map(mask).collect::<Vec<_>>()).unwrap()
}

fn cases() -> Vec<Attention> {
    let mut cases = Vec::new();
    let mut add = |name, inputs: Vec<Operand>, is_fused, body: Body| {
        cases.push(Attention { name, body, inputs, is_fused });
    };
    let mut operator = |name, attributes: &'static str, inputs: Vec<Operand>, y: &'static str, is_fused| {
        let operands = ["%a, %b, %c", "%a, %b, %c, %d"][inputs.len() - 3];
        let body = move |t: &str, _| {
            format!(
                "opset=23\n  %y = Attention({operands}) {{{attributes}}} : {t}{y}\n  output %y : {t}{y}\n"
            )
        };
        add(name, inputs, is_fused, Box::new(body));
    };
    let heads = |q: [u64; 3], k: [u64; 3], of_value: u64| {
        let [heads, rows, size] = q;
        let [few, keys, _] = k;
        let dims = [[2, heads, rows, size], [2, few, keys, size], [2, few, keys, of_value]];
        vec![low(&dims[0], 1), low(&dims[1], 2), low(&dims[2], 3)]
    };
    let with = |mut inputs: Vec<Operand>, mask| {
        inputs.push(mask);
        inputs
    };
    operator("operator", "", heads([4, 5, 8], [4, 7, 8], 16), "[2, 4, 5, 16]", true);
    operator("operator causal", "is_causal=1", heads([4, 9, 8], [4, 7, 8], 8), "[2, 4, 9, 8]", true);
    operator("operator groups", "scale=0.3", heads([4, 6, 16], [2, 7, 16], 8), "[2, 4, 6, 8]", true);
    let bool_mask = with(heads([4, 3, 8], [2, 5, 8], 8), Operand::Same(bools(&[2, 1, 3, 5], 4)));
    operator("operator bools", "is_causal=1", bool_mask, "[2, 4, 3, 8]", true);
    let none = HostTensor::from_bytes(DType::Bool, &[2, 4], &[1, 1, 0, 1, 0, 0, 0, 0]).unwrap();
    let none = with(heads([2, 2, 8], [2, 4, 8], 8), Operand::Same(none));
    operator("operator masked row", "", none, "[2, 2, 2, 8]", true);
    let causal = HostTensor::from_bytes(DType::Bool, &[3], &[0, 1, 1]).unwrap();
    let causal = with(heads([2, 3, 8], [2, 3, 8], 8), Operand::Same(causal));
    operator("operator masked row, causal", "is_causal=1", causal, "[2, 2, 3, 8]", true);
    let added = with(heads([2, 4, 8], [2, 6, 8], 8), Operand::Hidden(vec![2, 4, 6], 5, 3));
    operator("operator added", "", added, "[2, 2, 4, 8]", true);
    let packed = vec![low(&[2, 3, 32], 6), low(&[2, 6, 16], 7), low(&[2, 6, 32], 8), low(&[2, 1, 3, 6], 9)];
    operator("operator packed", "q_num_heads=4, kv_num_heads=2", packed, "[2, 3, 64]", true);
    operator("operator odd head", "", heads([2, 5, 6], [2, 7, 6], 8), "[2, 2, 5, 8]", false);
    operator("operator bounded", "softcap=2.0", heads([2, 5, 8], [2, 7, 8], 8), "[2, 2, 5, 8]", false);

    // Transposes on all sides, a factor, casts, and two masks.
    let body = |t: &str, n: u8| {
        format!(
            "  const %s : {t} = 0.375
  %qt = Transpose(%a) {{perm=[0, 2, 1, 3]}} : {t}[2, 4, 13, 8]
  %kt = Transpose(%b) {{perm=[0, 2, 3, 1]}} : {t}[2, 4, 8, 21]
  %vt = Transpose(%c) {{perm=[0, 2, 1, 3]}} : {t}[2, 4, 21, 8]
  %x = MatMul(%qt, %kt) : {t}[2, 4, 13, 21]
  %m = Mul(%x, %s) : {t}[2, 4, 13, 21]
  %l = Add(%m, %d) : {t}[2, 4, 13, 21]
  %w = Cast(%l) {{to=1}} : f32[2, 4, 13, 21]
  %z = Add(%e, %w) : f32[2, 4, 13, 21]
  %p = Softmax(%z) {{axis=-1}} : f32[2, 4, 13, 21]
  %r = Cast(%p) {{to={n}}} : {t}[2, 4, 13, 21]
  %o = MatMul(%r, %vt) : {t}[2, 4, 13, 8]
  %y = Transpose(%o) {{perm=[0, 2, 1, 3]}} : {t}[2, 13, 4, 8]
  output %y : {t}[2, 13, 4, 8]
"
        )
    };
    let inputs = || vec![low(&[2, 13, 4, 8], 11), low(&[2, 21, 4, 8], 12), low(&[2, 21, 4, 8], 13)];
    let both = |mask| {
        let mut inputs = inputs();
        inputs.extend([low(&[1, 4, 13, 21], 14), mask]);
        inputs
    };
    add("pattern", both(Operand::Same(random(DType::F32, &[2, 1, 13, 21], 15))), true, Box::new(body));
    add("pattern masked row", both(Operand::Same(masks())), true, Box::new(body));
    let least = masks();
    let finite = least.as_slice::<f32>().unwrap().iter().enumerate();
    let finite: Vec<f32> = finite.map(|(i, x)| if i % 4 == 1 { x.max(f32::MIN) } else { *x }).collect();
    let least = HostTensor::from_slice(&[13, 21], &finite).unwrap();
    add("pattern row of least numbers", both(Operand::Same(least)), true, Box::new(body));
    // The transposed keys are an output too.
    let body = move |t: &str, n| body(t, n) + &format!("  output %kt : {t}[2, 4, 8, 21]\n");
    add("pattern with keys read", both(Operand::Same(masks())), false, Box::new(body));
    // A Where with −∞, and no transposes after the product.
    for (name, operands) in [("pattern where hidden", "%d, %i, %m"), ("pattern where kept", "%d, %m, %i")] {
        let mask = || {
            let bytes: Vec<u8> = (0..13 * 21).map(|i| u8::from(i % 5 == 0 || i / 21 == 3)).collect();
            HostTensor::from_bytes(DType::Bool, &[1, 1, 13, 21], &bytes).unwrap()
        };
        let inputs = vec![
            low(&[2, 4, 13, 8], 21),
            low(&[2, 4, 21, 8], 22),
            low(&[2, 4, 21, 16], 23),
            Operand::Same(mask()),
        ];
        let body = move |t: &str, n: u8| {
            format!(
                "  const %s : {t}[1] = [2.5]
  const %i : {t} = -inf
  %kt = Transpose(%b) {{perm=[0, 1, 3, 2]}} : {t}[2, 4, 8, 21]
  %x = MatMul(%a, %kt) : {t}[2, 4, 13, 21]
  %m = Div(%x, %s) : {t}[2, 4, 13, 21]
  %h = Where({operands}) : {t}[2, 4, 13, 21]
  %w = Cast(%h) {{to=1}} : f32[2, 4, 13, 21]
  %p = Softmax(%w) {{axis=3}} : f32[2, 4, 13, 21]
  %r = Cast(%p) {{to={n}}} : {t}[2, 4, 13, 21]
  %y = MatMul(%r, %c) : {t}[2, 4, 13, 16]
  output %y : {t}[2, 4, 13, 16]
"
            )
        };
        add(name, inputs, true, Box::new(body));
    }
    // Factors on queries and keys, which are transposed as matrices.
    let body = |t: &str, n: u8| {
        format!(
            "  const %s : {t}[1] = [0.5]
  const %f : i64[4] = [2, 3, 11, 8]
  const %g : i64[3] = [6, 11, 8]
  const %h : i64[4] = [2, 3, 8, 11]
  %at = Transpose(%a) {{perm=[1, 0, 2]}} : {t}[6, 11, 8]
  %q = Reshape(%at, %f) : {t}[2, 3, 11, 8]
  %qs = Mul(%q, %s) : {t}[2, 3, 11, 8]
  %bt = Transpose(%b) {{perm=[1, 0, 2]}} : {t}[6, 11, 8]
  %k = Reshape(%bt, %f) : {t}[2, 3, 11, 8]
  %kr = Reshape(%k, %g) : {t}[6, 11, 8]
  %kt = Transpose(%kr) {{perm=[0, 2, 1]}} : {t}[6, 8, 11]
  %ks = Reshape(%kt, %h) : {t}[2, 3, 8, 11]
  %km = Mul(%s, %ks) : {t}[2, 3, 8, 11]
  %x = MatMul(%qs, %km) : {t}[2, 3, 11, 11]
  %w = Cast(%x) {{to=1}} : f32[2, 3, 11, 11]
  %p = Softmax(%w) {{axis=-1}} : f32[2, 3, 11, 11]
  %r = Cast(%p) {{to={n}}} : {t}[2, 3, 11, 11]
  %ct = Transpose(%c) {{perm=[1, 0, 2]}} : {t}[6, 11, 8]
  %v = Reshape(%ct, %f) : {t}[2, 3, 11, 8]
  %o = MatMul(%r, %v) : {t}[2, 3, 11, 8]
  %y = Transpose(%o) {{perm=[2, 0, 1, 3]}} : {t}[11, 2, 3, 8]
  output %y : {t}[11, 2, 3, 8]
"
        )
    };
    let inputs = || vec![low(&[11, 6, 8], 31), low(&[11, 6, 8], 32), low(&[11, 6, 8], 33)];
    add("pattern positions first", inputs(), true, Box::new(body));
    let body = move |t: &str, n| body(t, n) + "  output %p : f32[2, 3, 11, 11]\n";
    add("pattern with weights read", inputs(), false, Box::new(body));
    // Repeated heads of keys and values.
    let body = |t: &str, _| {
        format!(
            "  const %u : i64[1] = [2]
  const %f : i64[5] = [2, 2, 3, 14, 8]
  const %g : i64[4] = [2, 6, 14, 8]
  %ku = Unsqueeze(%b, %u) : {t}[2, 2, 1, 14, 8]
  %ke = Expand(%ku, %f) : {t}[2, 2, 3, 14, 8]
  %k = Reshape(%ke, %g) : {t}[2, 6, 14, 8]
  %kt = Transpose(%k) {{perm=[0, 1, 3, 2]}} : {t}[2, 6, 8, 14]
  %vt = Transpose(%c) {{perm=[0, 2, 1, 3]}} : {t}[2, 2, 14, 8]
  %vu = Unsqueeze(%vt, %u) : {t}[2, 2, 1, 14, 8]
  %ve = Expand(%vu, %f) : {t}[2, 2, 3, 14, 8]
  %v = Reshape(%ve, %g) : {t}[2, 6, 14, 8]
  %x = MatMul(%a, %kt) : {t}[2, 6, 13, 14]
  %p = Softmax(%x) {{axis=-1}} : {t}[2, 6, 13, 14]
  %y = MatMul(%p, %v) : {t}[2, 6, 13, 8]
  output %y : {t}[2, 6, 13, 8]
"
        )
    };
    let inputs = vec![low(&[2, 6, 13, 8], 51), low(&[2, 2, 14, 8], 52), low(&[2, 14, 2, 8], 53)];
    add("pattern repeated heads", inputs, true, Box::new(body));
    // Heads as batches, and a mask per batch.
    let body = |t: &str, _| {
        format!(
            "  %kt = Transpose(%b) {{perm=[0, 2, 1]}} : {t}[3, 24, 18]
  %x = MatMul(%a, %kt) : {t}[3, 17, 18]
  %m = Add(%x, %d) : {t}[3, 17, 18]
  %p = Softmax(%m) {{axis=-1}} : {t}[3, 17, 18]
  %y = MatMul(%p, %c) : {t}[3, 17, 8]
  output %y : {t}[3, 17, 8]
"
        )
    };
    let inputs =
        vec![low(&[3, 17, 24], 41), low(&[3, 18, 24], 42), low(&[3, 18, 8], 43), low(&[3, 1, 18], 44)];
    add("pattern of rank 3", inputs, true, Box::new(body));
    cases
}

/// All attentions in f16, as cases whose results are not compared.
pub(crate) fn in_f16() -> Vec<Case> {
    let case = |case: Attention| Case {
        name: format!("attention {}", case.name),
        body: (case.body)("f16", 10),
        inputs: case.inputs.iter().map(|input| input.tensor(DType::F16)).collect(),
        tolerance: Tolerance::Model,
    };
    cases().into_iter().map(case).collect()
}

fn low_f64s(data: &Data) -> Vec<f64> {
    let Data::Tensor(tensor) = data else { panic!("a tensor") };
    tensor.f64s().unwrap().collect()
}

/// The largest error as a fraction of the tolerance, or a failure.
fn passes(cuda: &Arc<Cuda>, case: &Attention, (dtype, t, number): (DType, &str, u8)) -> Result<f64, String> {
    let inputs: Vec<HostTensor> = case.inputs.iter().map(|input| input.tensor(dtype)).collect();
    // The same numbers in f32.
    let widen = |x: &HostTensor| match x.dtype() {
        DType::F16 | DType::BF16 => {
            #[expect(clippy::cast_possible_truncation, reason = "a number of 16 bits")]
            let numbers: Vec<f32> = x.f64s().unwrap().map(|x| x as f32).collect();
            tensor(DType::F32, x.dims(), &numbers)
        }
        _ => x.clone(),
    };
    let wide: Vec<HostTensor> = inputs.iter().map(widen).collect();
    let want = on(&Runtime::default(), &module(&(case.body)("f32", 1), &wide), &wide);
    let want = want.map_err(|error| format!("CPU: {error}"))?;
    let before = cuda.attentions_launched();
    let got = on(&Runtime::new(cuda.clone()), &module(&(case.body)(t, number), &inputs), &inputs);
    let got = got.map_err(|error| error.to_string())?;
    if (cuda.attentions_launched() > before) != case.is_fused {
        return Err(format!("{} by cuDNN", if case.is_fused { "not" } else { "computed" }));
    }
    let epsilon = if dtype == DType::F16 { f16::EPSILON.to_f64() } else { bf16::EPSILON.to_f64() };
    let mut most = 0.0;
    for (got, want) in got.iter().zip(&want) {
        let (got, want) = (low_f64s(got), low_f64s(want));
        // Values are at most 2. Without cuDNN, each node rounds.
        let weights = if case.is_fused { epsilon } else { 16.0 * epsilon };
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let permitted = weights + 1e-4 + epsilon * want.abs();
            let share = (got - want).abs() / permitted;
            if got.is_nan() != want.is_nan() || share > 1.0 {
                return Err(format!(
                    "element {i}: {got} instead of {want}, {share:.2} of the permitted distance"
                ));
            }
            most = f64::max(most, share);
        }
    }
    Ok(most)
}

/// Without cuDNN, kernels of the backend compute the attention.
fn without(cuda: &Arc<Cuda>) -> usize {
    let mut failed = 0;
    for mut case in cases().into_iter().filter(|case| ["operator", "pattern"].contains(&case.name)) {
        case.is_fused = false;
        let done = passes(cuda, &case, (DType::F16, "f16", 10));
        println!(
            "{}  attention {} without cuDNN: {done:?}",
            if done.is_ok() { "ok  " } else { "FAIL" },
            case.name
        );
        failed += usize::from(done.is_err());
    }
    failed
}

/// Runs the cases whose names contain `filter`; returns the number of failures.
#[expect(clippy::disallowed_methods, reason = "a test reads its settings")]
pub(crate) fn run(cuda: &Arc<Cuda>, filter: &str) -> usize {
    if let Ok(error) = std::env::var("AMPC_CUDNN_ERROR") {
        // A cuDNN that fails is an error.
        return if error.contains("STATUS") { 0 } else { without(cuda) };
    }
    let (mut passed, mut failed) = (0, 0);
    for case in cases() {
        for low in [(DType::F16, "f16", 10), (DType::BF16, "bf16", 16)] {
            let name = format!("attention {} {}", case.name, low.1);
            if !name.contains(filter) {
                continue;
            }
            let result = catch_unwind(AssertUnwindSafe(|| passes(cuda, &case, low)));
            match result.unwrap_or_else(|_| Err("panicked".into())) {
                Ok(share) => {
                    passed += 1;
                    println!("ok    {name:40} {share:.3} of the tolerance");
                }
                Err(error) => {
                    failed += 1;
                    println!("FAIL  {name:40} {error}");
                }
            }
        }
    }
    println!("attention: {passed} passed, {failed} failed");
    failed
}
