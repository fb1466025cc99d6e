//! Attention in 16 bits with its explicit gradient, as in training steps: a pair of graphs of cuDNN.
//!
//! The reference computes in f32 on the CPU, from the same operands. cuDNN rounds probabilities, the result and
//! gradients of scores to 16 bits before products, so a gradient differs by a few such roundings of the largest
//! elements.

use crate::cases::{module, random, tensor};
use ampc_ir::DType;
use ampc_runtime::cuda::{Cuda, CudaError, CudaOptions};
use ampc_runtime::{Data, DataRef, HostTensor, Runtime};
use half::{bf16, f16};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The permitted error of a gradient in roundings of the largest element.
const ROUNDINGS: f64 = 4.0;

/// The mask that hides keys.
#[derive(Clone)]
enum Mask {
    None,
    /// Added to the scores.
    Added(HostTensor),
    /// Scores are −∞ where it is true.
    Where(HostTensor),
}

/// Attentions of 2 batches and 3 heads.
#[derive(Clone)]
struct Gradient {
    name: &'static str,
    lengths: [u64; 2],
    /// The head sizes of query and value.
    sizes: [u64; 2],
    mask: Mask,
    /// Additional nodes and outputs.
    end: &'static str,
    /// True if cuDNN computes the gradient.
    is_fused: bool,
    /// True if the gradient repeats the cast of the probabilities.
    recomputes: bool,
}

fn case(name: &'static str, lengths: [u64; 2], sizes: [u64; 2], mask: Mask) -> Gradient {
    Gradient { name, lengths, sizes, mask, end: "", is_fused: true, recomputes: false }
}

/// A number for each query and key.
pub(crate) fn per_score([rows, keys]: [u64; 2], of: impl Fn(u64, u64) -> f32) -> HostTensor {
    let numbers: Vec<f32> = (0..rows * keys).map(|i| of(i / keys, i % keys)).collect();
    tensor(DType::F32, &[1, 1, rows, keys], &numbers)
}

fn cases() -> Vec<Gradient> {
    let causal = |n: u64| {
        let bytes: Vec<u8> = (0..n * n).map(|i| u8::from(i % n > i / n)).collect();
        HostTensor::from_bytes(DType::Bool, &[1, 1, n, n], &bytes).unwrap()
    };
    let keys = |n: u64| {
        let hidden = |i: u64| if i % 5 == 3 { f32::MIN } else { 0.0 };
        tensor(DType::F32, &[2, 1, 1, n], &(0..2 * n).map(hidden).collect::<Vec<_>>())
    };
    // Mask rows that absorb scores, rows without exact statistics, and ordinary rows.
    let least = per_score([9, 12], |row, key| match row {
        2 => f32::MIN,
        4 if key < 7 => f32::MIN,
        4 => -1e9,
        6 => -20_000.0,
        _ => 0.25,
    });
    let none = per_score([9, 12], |row, key| if row == 3 || key == 5 { f32::NEG_INFINITY } else { 0.0 });
    // Every third row of more rows, keys and columns than a tile has.
    let many = per_score([46, 150], |row, key| match row % 3 {
        1 => f32::MIN,
        2 if key % 2 == 0 => -1e9,
        _ => 0.5,
    });
    let per_score = random(DType::F32, &[2, 3, 13, 21], 9);
    let plain = case("plain", [13, 21], [8, 16], Mask::None);
    vec![
        plain.clone(),
        case("padded", [17, 17], [16, 16], Mask::Added(keys(17))),
        case("bias per score", [13, 21], [8, 8], Mask::Added(per_score)),
        case("where", [17, 17], [8, 8], Mask::Where(causal(17))),
        case("128 positions", [128, 128], [32, 32], Mask::Where(causal(128))),
        case("333 positions", [333, 333], [8, 8], Mask::None),
        case("heads of 128", [16, 9], [128, 128], Mask::None),
        case("rows of least numbers", [9, 12], [8, 8], Mask::Added(least)),
        case("many rows of least numbers", [46, 150], [72, 88], Mask::Added(many)),
        case("masked row", [9, 12], [8, 8], Mask::Added(none)),
        case("one query", [1, 12], [8, 8], Mask::None),
        Gradient { recomputes: true, ..case("casts again", [13, 21], [8, 16], Mask::None) },
        Gradient { is_fused: false, ..case("heads of 256", [5, 6], [256, 8], Mask::None) },
        Gradient { is_fused: false, ..case("odd heads", [5, 6], [6, 8], Mask::None) },
        Gradient { name: "weights as output", end: "  output %p\n", is_fused: false, ..plain.clone() },
        Gradient {
            name: "weights read elsewhere",
            end: "  %most = ReduceMax(%p) : f32[1, 1, 1, 1]\n  output %most\n",
            is_fused: false,
            ..plain.clone()
        },
        Gradient { name: "gradient of scores as output", end: "  output %ds\n", is_fused: false, ..plain },
    ]
}

impl Gradient {
    fn body(&self, t: &str, n: u8) -> String {
        let ([s, k], [d, v]) = (self.lengths, self.sizes);
        let scores = format!("[2, 3, {s}, {k}]");
        let [masks, hides] = match self.mask {
            Mask::None => [format!("  %z = Cast(%m) {{to=1}} : f32{scores}\n"), String::new()],
            Mask::Added(_) => [
                format!("  %w = Cast(%m) {{to=1}} : f32{scores}\n  %z = Add(%w, %e) : f32{scores}\n"),
                String::new(),
            ],
            Mask::Where(_) => [
                format!("  %w = Where(%e, %inf, %m) : {t}{scores}\n  %z = Cast(%w) {{to=1}} : f32{scores}\n"),
                format!("  %eh = Where(%e, %zero, %el) : {t}{scores}\n"),
            ],
        };
        let hidden = if hides.is_empty() { "%el" } else { "%eh" };
        let (again, back) = match self.recomputes {
            true => (format!("  %again = Cast(%p) {{to={n}}} : {t}{scores}\n"), "%again"),
            false => (String::new(), "%l"),
        };
        let end = self.end;
        format!(
            "  const %s : {t} = 0.375
  const %inf : {t} = -inf
  const %zero : {t} = 0.0
  const %ratio : f32 = 0.0
  const %training : bool = true
  const %axes : i64[1] = [3]
  %qt = Transpose(%a) {{perm=[0, 2, 1, 3]}} : {t}[2, 3, {s}, {d}]
  %kt = Transpose(%b) {{perm=[0, 2, 3, 1]}} : {t}[2, 3, {d}, {k}]
  %vt = Transpose(%c) {{perm=[0, 2, 1, 3]}} : {t}[2, 3, {k}, {v}]
  %x = MatMul(%qt, %kt) : {t}{scores}
  %m = Mul(%x, %s) : {t}{scores}
{masks}  %p = Softmax(%z) {{axis=-1}} : f32{scores}
  %r = Cast(%p) {{to={n}}} : {t}{scores}
  %l, %lm = Dropout(%r, %ratio, %training) : {t}{scores}, bool{scores}
  %o = MatMul(%l, %vt) : {t}[2, 3, {s}, {v}]
  %y = Transpose(%o) {{perm=[0, 2, 1, 3]}} : {t}[2, {s}, 3, {v}]
  %g = Transpose(%d) {{perm=[0, 2, 1, 3]}} : {t}[2, 3, {s}, {v}]
  %vm = Transpose(%vt) {{perm=[0, 1, 3, 2]}} : {t}[2, 3, {v}, {k}]
  %dp = MatMul(%g, %vm) : {t}{scores}
{again}  %lt = Transpose({back}) {{perm=[0, 1, 3, 2]}} : {t}[2, 3, {k}, {s}]
  %dv = MatMul(%lt, %g) : {t}[2, 3, {k}, {v}]
  %dw = Cast(%dp) {{to=1}} : f32{scores}
  %pm = Mul(%dw, %p) : f32{scores}
  %sum = ReduceSum(%pm, %axes) {{keepdims=1}} : f32[2, 3, {s}, 1]
  %ce = Sub(%dw, %sum) : f32{scores}
  %ds = Mul(%p, %ce) : f32{scores}
  %el = Cast(%ds) {{to={n}}} : {t}{scores}
{hides}  %es = Mul({hidden}, %s) : {t}{scores}
  %km = Transpose(%kt) {{perm=[0, 1, 3, 2]}} : {t}[2, 3, {k}, {d}]
  %dq = MatMul(%es, %km) : {t}[2, 3, {s}, {d}]
  %qm = Transpose(%qt) {{perm=[0, 1, 3, 2]}} : {t}[2, 3, {d}, {s}]
  %dk = MatMul(%qm, %es) : {t}[2, 3, {d}, {k}]
  %dqt = Transpose(%dq) {{perm=[0, 2, 1, 3]}} : {t}[2, {s}, 3, {d}]
  %dkt = Transpose(%dk) {{perm=[0, 3, 1, 2]}} : {t}[2, {k}, 3, {d}]
  %dvt = Transpose(%dv) {{perm=[0, 2, 1, 3]}} : {t}[2, {k}, 3, {v}]
  output %y
  output %dqt
  output %dkt
  output %dvt
{end}"
        )
    }

    fn inputs(&self, dtype: DType) -> Vec<HostTensor> {
        let ([s, k], [d, v]) = (self.lengths, self.sizes);
        let dims = [[2, s, 3, d], [2, k, 3, d], [2, k, 3, v], [2, s, 3, v]];
        let mut inputs: Vec<HostTensor> =
            dims.iter().zip(1..).map(|(dims, seed)| random(dtype, dims, seed)).collect();
        match &self.mask {
            Mask::None => {}
            Mask::Added(mask) | Mask::Where(mask) => inputs.push(mask.clone()),
        }
        inputs
    }
}

fn f64s(data: &Data) -> Vec<f64> {
    let Data::Tensor(tensor) = data else { panic!("a tensor") };
    tensor.f64s().unwrap().collect()
}

/// A graph whose results on the device are compared with those of the CPU.
pub(crate) struct Compared<'a> {
    /// The text in an element type, which has this name in text and this number in ONNX.
    pub(crate) body: &'a dyn Fn(&str, u8) -> String,
    pub(crate) inputs: Vec<HostTensor>,
    /// The number of cuDNN graphs that run.
    pub(crate) launches: u64,
    /// True if cuDNN computes the gradient.
    pub(crate) is_fused: bool,
    /// The size in bytes that the arena stays below.
    pub(crate) bound: Option<u64>,
}

fn passes(cuda: &Arc<Cuda>, case: &Gradient, low: (DType, &str, u8)) -> Result<f64, String> {
    let [s, k] = case.lengths;
    // The probabilities in f32 and 16 bits. The workspace has a 16-bit matrix while the gradient is computed.
    let probabilities = 6 * s * k * (4 + 2);
    let compared = Compared {
        body: &|t, n| case.body(t, n),
        inputs: case.inputs(low.0),
        launches: if case.is_fused { 2 } else { 0 },
        is_fused: case.is_fused,
        bound: (case.is_fused && s * k > 10_000).then_some(probabilities),
    };
    compared.passes(cuda, low)
}

impl Compared<'_> {
    /// The largest error as a fraction of the tolerance, or a failure.
    pub(crate) fn passes(
        &self,
        cuda: &Arc<Cuda>,
        (dtype, t, number): (DType, &str, u8),
    ) -> Result<f64, String> {
        let (case, inputs) = (self, &self.inputs);
        #[expect(clippy::cast_possible_truncation, reason = "a number of 16 bits")]
        let widen = |x: &HostTensor| match x.dtype() {
            DType::F16 | DType::BF16 => {
                tensor(DType::F32, x.dims(), &x.f64s().unwrap().map(|x| x as f32).collect::<Vec<_>>())
            }
            _ => x.clone(),
        };
        let wide: Vec<HostTensor> = inputs.iter().map(widen).collect();
        let run = |runtime: &Runtime, body: &str, inputs: &[HostTensor], times: usize| {
            let refs: Vec<_> = inputs.iter().map(|x| Some(DataRef::Tensor(x.view()))).collect();
            let mut session = runtime.prepare(&module(body, inputs)).map_err(|error| error.to_string())?;
            let mut all = Vec::new();
            for _ in 0..times {
                all.push(session.run(&refs).map_err(|error| error.to_string())?);
            }
            Ok::<_, String>((all, session.arena_bytes()))
        };
        let (want, _) = run(&Runtime::default(), &(case.body)("f32", 1), &wide, 1)?;
        let before = cuda.attentions_launched();
        let (got, arena) = run(&Runtime::new(cuda.clone()), &(case.body)(t, number), inputs, 1)?;
        let launched = cuda.attentions_launched() - before;
        if launched != case.launches {
            return Err(format!("{launched} graphs of cuDNN"));
        }
        if let Some(bound) = case.bound.filter(|&bound| arena as u64 >= bound) {
            return Err(format!("{arena} bytes of memory, of less than {bound}"));
        }
        // Recorded runs are bit-equal.
        let (again, _) = run(&Runtime::new(cuda.clone()), &(case.body)(t, number), inputs, 3)?;
        for results in &again {
            let same = |(a, b): (&Data, &Data)| match (a, b) {
                (Data::Tensor(a), Data::Tensor(b)) => a.bytes() == b.bytes(),
                _ => false,
            };
            if !results.iter().zip(&got[0]).all(same) {
                return Err("another run has other bits".into());
            }
        }
        let epsilon = if dtype == DType::F16 { f16::EPSILON.to_f64() } else { bf16::EPSILON.to_f64() };
        let mut most = 0.0;
        for (output, (got, want)) in got[0].iter().zip(&want[0]).enumerate() {
            let (got, want) = (f64s(got), f64s(want));
            let largest = want.iter().filter(|x| x.is_finite()).fold(0.0, |most, x| f64::max(most, x.abs()));
            // Without cuDNN, each node rounds.
            let roundings = if case.is_fused { ROUNDINGS } else { 8.0 * ROUNDINGS };
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                let permitted = roundings * epsilon * largest + epsilon * want.abs() + 1e-5;
                let share = (got - want).abs() / permitted;
                if got.is_nan() != want.is_nan() || share > 1.0 {
                    return Err(format!(
                        "output {output}, element {i}: {got} instead of {want}, {share:.2} of the permitted distance"
                    ));
                }
                most = f64::max(most, share);
            }
        }
        Ok(most)
    }
}

/// Runs the cases whose names contain `filter`; returns the number of failures.
pub(crate) fn run(
    cuda: &Arc<Cuda>,
    opened: &dyn Fn(&CudaOptions) -> Result<Arc<Cuda>, CudaError>,
    options: &CudaOptions,
    filter: &str,
) -> usize {
    if std::env::var_os("AMPC_CUDNN_ERROR").is_some() {
        return 0;
    }
    let exact = opened(&CudaOptions { exact_rounding: true, ..options.clone() }).unwrap();
    let mut cases: Vec<(Gradient, &Arc<Cuda>)> = cases().into_iter().map(|case| (case, cuda)).collect();
    let split = Gradient { name: "exact rounding", is_fused: false, ..cases[0].0.clone() };
    cases.push((split, &exact));
    let (mut passed, mut failed) = (0, 0);
    for (case, cuda) in cases {
        for low in [(DType::F16, "f16", 10), (DType::BF16, "bf16", 16)] {
            let name = format!("attention gradient {} {}", case.name, low.1);
            if !name.contains(filter) {
                continue;
            }
            let result = catch_unwind(AssertUnwindSafe(|| passes(cuda, &case, low)));
            match result.unwrap_or_else(|_| Err("panicked".into())) {
                Ok(share) => {
                    passed += 1;
                    println!("ok    {name:50} {share:.3} of the tolerance");
                }
                Err(error) => {
                    failed += 1;
                    println!("FAIL  {name:50} {error}");
                }
            }
        }
    }
    println!("attention gradients: {passed} passed, {failed} failed");
    failed
}
