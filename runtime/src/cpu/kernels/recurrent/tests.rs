//! RNN, GRU and LSTM against loops that follow the text of the operators in f64.

use crate::cpu::kernels::tests::run_with;
use crate::{Cpu, DataRef, HostTensor, Runtime};
use ampc_ir::DType;
use ampc_ir::text::{NoData, parse};
use half::{bf16, f16};

/// A node, and the operands it has besides X, W and R.
#[derive(Clone)]
struct Case {
    op: &'static str,
    steps: usize,
    batch: usize,
    input: usize,
    hidden: usize,
    direction: &'static str,
    batch_first: bool,
    clip: Option<f64>,
    /// `input_forget` of an LSTM, `linear_before_reset` of a GRU.
    flag: bool,
    /// B, lengths, the initial states, P.
    has: [bool; 4],
    /// For each direction; empty for the defaults.
    activations: &'static [&'static str],
}

impl Case {
    fn new(op: &'static str, [steps, batch, input, hidden]: [usize; 4]) -> Case {
        let has = [true, false, true, op == "LSTM"];
        Case {
            op,
            steps,
            batch,
            input,
            hidden,
            direction: "forward",
            batch_first: false,
            clip: None,
            flag: false,
            has,
            activations: &[],
        }
    }

    fn gates(&self) -> usize {
        match self.op {
            "LSTM" => 4,
            "GRU" => 3,
            _ => 1,
        }
    }

    fn directions(&self) -> usize {
        if self.direction == "bidirectional" { 2 } else { 1 }
    }

    fn x_dims(&self) -> [usize; 3] {
        let (outer, inner) =
            if self.batch_first { (self.batch, self.steps) } else { (self.steps, self.batch) };
        [outer, inner, self.input]
    }

    fn state_dims(&self) -> [usize; 3] {
        let (d, b) = (self.directions(), self.batch);
        if self.batch_first { [b, d, self.hidden] } else { [d, b, self.hidden] }
    }

    fn lengths(&self) -> Vec<usize> {
        (0..self.batch)
            .map(|b| if self.has[1] { (b * 7 + 2) % (self.steps + 1) } else { self.steps })
            .collect()
    }

    /// The numbers of X, W, R, B, the initial states and P. The weights are so small that steps amplify no errors.
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    fn numbers(&self) -> [Vec<f64>; 7] {
        let (d, row) = (self.directions(), self.gates() * self.hidden);
        let states = self.state_dims().iter().product();
        let sizes = [
            self.x_dims().iter().product(),
            d * row * self.input,
            d * row * self.hidden,
            d * 2 * row,
            states,
            states,
            d * 3 * self.hidden,
        ];
        let mut small = 1.0;
        while small * small * self.hidden as f64 > 1.0 {
            small /= 2.0;
        }
        let mut seed = 1u32;
        let mut numbers = sizes.map(|n| {
            let mut next = || {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // 8 bits are exact in all float types.
                (f64::from(seed >> 25) - 63.0) / 128.0
            };
            (0..n).map(|_| next()).collect::<Vec<f64>>()
        });
        numbers[1..=2].iter_mut().flatten().for_each(|x| *x *= small);
        numbers
    }

    fn node(&self) -> String {
        let lists =
            [(3, self.has[0]), (4, self.has[1]), (5, self.has[2]), (6, self.has[2]), (7, self.has[3])];
        let lists = &lists[..if self.op == "LSTM" { 5 } else { 3 }];
        let mut next = 3;
        let mut node = format!("{}(%0, %1, %2", self.op);
        for &(_, is_there) in lists {
            node += &if is_there { format!(", %{next}") } else { ", _".into() };
            next += usize::from(is_there);
        }
        node += &format!(") {{hidden_size={}, direction={:?}", self.hidden, self.direction);
        node += if self.batch_first { ", layout=1" } else { "" };
        node += &self.clip.map_or(String::new(), |clip| format!(", clip={clip:?}"));
        let flag = if self.op == "LSTM" { "input_forget" } else { "linear_before_reset" };
        node += &if self.flag { format!(", {flag}=1") } else { String::new() };
        if !self.activations.is_empty() {
            node += &format!(", activations={:?}", self.activations.repeat(self.directions()));
        }
        node + "}"
    }

    /// The results of the kernel, in so many threads.
    fn run(&self, dtype: DType, threads: usize) -> Vec<HostTensor> {
        let [x, w, r, b, h, c, p] = self.numbers();
        let (d, row) = (self.directions(), self.gates() * self.hidden);
        let mut operands = vec![
            tensor(dtype, &self.x_dims(), &x),
            tensor(dtype, &[d, row, self.input], &w),
            tensor(dtype, &[d, row, self.hidden], &r),
        ];
        if self.has[0] {
            operands.push(tensor(dtype, &[d, 2 * row], &b));
        }
        if self.has[1] {
            let lengths: Vec<i32> = self.lengths().iter().map(|&n| i32::try_from(n).unwrap()).collect();
            operands.push(HostTensor::from_slice(&[self.batch as u64], &lengths).unwrap());
        }
        if self.has[2] {
            operands.push(tensor(dtype, &self.state_dims(), &h));
            if self.op == "LSTM" {
                operands.push(tensor(dtype, &self.state_dims(), &c));
            }
        }
        if self.has[3] && self.op == "LSTM" {
            operands.push(tensor(dtype, &[d, 3 * self.hidden], &p));
        }
        let name = dtype.to_string();
        let results = vec![&*name; if self.op == "LSTM" { 3 } else { 2 }];
        let runtime = Runtime::from(Cpu::new(threads));
        run_with(&runtime, &self.node(), &results, &operands)
            .unwrap_or_else(|e| panic!("{}: {e}", self.node()))
    }

    /// Y, Y_h and Y_c by the text of the operator.
    fn reference(&self) -> [Vec<f64>; 3] {
        let [x, w, r, b, h, c, p] = self.numbers();
        let (steps, n, hidden, d) = (self.steps, self.batch, self.hidden, self.directions());
        let row = self.gates() * hidden;
        let state =
            |i: usize, seq: usize| (if self.batch_first { seq * d + i } else { i * n + seq }) * hidden;
        let mut y = vec![0.0; steps * n * d * hidden];
        let mut last = [vec![0.0; n * d * hidden], vec![0.0; n * d * hidden]];
        for (i, seq) in (0..d).flat_map(|i| (0..n).map(move |seq| (i, seq))) {
            let initial = |from: &[f64]| match self.has[2] {
                true => from[state(i, seq)..][..hidden].to_vec(),
                false => vec![0.0; hidden],
            };
            let mut states = [initial(&h), initial(&c)];
            let length = self.lengths()[seq];
            for s in 0..length {
                let t = if i == 1 || self.direction == "reverse" { length - 1 - s } else { s };
                let at = if self.batch_first { seq * steps + t } else { t * n + seq } * self.input;
                let weights = Weights {
                    w: &w[i * row * self.input..][..row * self.input],
                    r: &r[i * row * hidden..][..row * hidden],
                    b: if self.has[0] { &b[i * 2 * row..][..2 * row] } else { &vec![0.0; 2 * row] },
                    p: if self.has[3] { &p[i * 3 * hidden..][..3 * hidden] } else { &vec![0.0; 3 * hidden] },
                };
                self.step(&weights, &x[at..][..self.input], &mut states);
                let at = if self.batch_first { (seq * steps + t) * d + i } else { (t * d + i) * n + seq };
                y[at * hidden..][..hidden].copy_from_slice(&states[0]);
            }
            for (last, state_of) in last.iter_mut().zip(&states) {
                last[state(i, seq)..][..hidden].copy_from_slice(state_of);
            }
        }
        let [y_h, y_c] = last;
        [y, y_h, y_c]
    }

    fn step(&self, weights: &Weights<'_>, x: &[f64], [h, c]: &mut [Vec<f64>; 2]) {
        let (n, row) = (self.hidden, self.gates() * self.hidden);
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let of_x = |j: usize| dot(&weights.w[j * self.input..][..self.input], x) + weights.b[j];
        let of = |state: &[f64], j: usize| dot(&weights.r[j * n..][..n], state) + weights.b[row + j];
        let f = |which: usize, x: f64| {
            let defaults: &[&str] = if self.op == "RNN" { &["tanh"] } else { &["sigmoid", "tanh", "tanh"] };
            let names = if self.activations.is_empty() { defaults } else { self.activations };
            activation(names[which], self.clip.map_or(x, |clip| x.clamp(-clip, clip)))
        };
        let before = h.clone();
        match self.op {
            "RNN" => (0..n).for_each(|j| h[j] = f(0, of_x(j) + of(&before, j))),
            "GRU" => {
                let gate = |gate: usize, j: usize| f(0, of_x(gate * n + j) + of(&before, gate * n + j));
                let reset: Vec<f64> = (0..n).map(|j| gate(1, j) * before[j]).collect();
                for j in 0..n {
                    let product =
                        if self.flag { gate(1, j) * of(&before, 2 * n + j) } else { of(&reset, 2 * n + j) };
                    let (z, new) = (gate(0, j), f(1, of_x(2 * n + j) + product));
                    h[j] = (1.0 - z) * new + z * before[j];
                }
            }
            _ => {
                for j in 0..n {
                    let argument = |gate: usize| of_x(gate * n + j) + of(&before, gate * n + j);
                    let p = |gate: usize| weights.p[gate * n + j];
                    let i = f(0, argument(0) + p(0) * c[j]);
                    let forget = if self.flag { 1.0 - i } else { f(0, argument(2) + p(2) * c[j]) };
                    c[j] = forget * c[j] + i * f(1, argument(3));
                    let o = f(0, argument(1) + p(1) * c[j]);
                    h[j] = o * f(2, c[j]);
                }
            }
        }
    }

    /// Compares the results with the reference: numbers of size 1, of sums of a hundred products.
    fn check(&self) {
        let found = self.run(DType::F32, 2);
        for (found, want) in found.iter().zip(self.reference()) {
            let found = found.as_slice::<f32>().unwrap();
            assert_eq!(found.len(), want.len());
            for (i, (&found, &want)) in found.iter().zip(&want).enumerate() {
                let error = (f64::from(found) - want).abs();
                assert!(
                    error <= 4e-6 * want.abs().max(1.0),
                    "{}: element {i}: {found}, not {want}",
                    self.name()
                );
            }
        }
    }

    fn name(&self) -> String {
        format!("{} of {:?}, {} steps, {} sequences", self.node(), self.x_dims(), self.steps, self.batch)
    }
}

/// The weights of one direction.
struct Weights<'a> {
    w: &'a [f64],
    r: &'a [f64],
    b: &'a [f64],
    p: &'a [f64],
}

fn activation(name: &str, x: f64) -> f64 {
    match name {
        "relu" => x.max(0.0),
        "tanh" => x.tanh(),
        "sigmoid" => 1.0 / (1.0 + (-x).exp()),
        "affine" => x,
        "leakyrelu" => x.max(0.01 * x),
        "thresholdedrelu" => {
            if x > 1.0 {
                x
            } else {
                0.0
            }
        }
        "scaledtanh" => x.tanh(),
        "hardsigmoid" => (0.2 * x + 0.5).clamp(0.0, 1.0),
        "elu" => {
            if x < 0.0 {
                x.exp() - 1.0
            } else {
                x
            }
        }
        "softsign" => x / (1.0 + x.abs()),
        "softplus" => x.exp().ln_1p(),
        other => panic!("{other}"),
    }
}

fn tensor(dtype: DType, dims: &[usize], numbers: &[f64]) -> HostTensor {
    let dims: Vec<u64> = dims.iter().map(|&d| d as u64).collect();
    #[expect(clippy::cast_possible_truncation, reason = "the numbers are exact in all float types")]
    let singles: Vec<f32> = numbers.iter().map(|&x| x as f32).collect();
    match dtype {
        DType::F64 => HostTensor::from_slice(&dims, numbers),
        DType::F16 => {
            HostTensor::from_slice(&dims, &singles.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>())
        }
        DType::BF16 => {
            HostTensor::from_slice(&dims, &singles.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>())
        }
        _ => HostTensor::from_slice(&dims, &singles),
    }
    .unwrap()
}

const OPS: [&str; 3] = ["RNN", "GRU", "LSTM"];

/// Dims with few and many rows, of whole vectors and not, with groups of sequences and parts of units, and without
/// elements.
const DIMS: [[usize; 4]; 10] = [
    [0, 2, 3, 5],
    [3, 0, 3, 5],
    [3, 2, 0, 5],
    [1, 1, 1, 1],
    [4, 3, 5, 17],
    [25, 1, 9, 33],
    [23, 7, 6, 16],
    [70, 1, 3, 4],
    [21, 9, 5, 70],
    [3, 10, 2, 130],
];

/// All operators with all dims and options.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (op, dims) in OPS.iter().flat_map(|op| DIMS.map(|dims| (*op, dims))) {
        let case = Case::new(op, dims);
        cases.push(case.clone());
        cases.push(Case {
            flag: true,
            has: [true, true, false, false],
            direction: "reverse",
            ..case.clone()
        });
        cases.push(Case {
            direction: "bidirectional",
            batch_first: true,
            clip: Some(0.25),
            has: [false, true, true, true],
            ..case
        });
    }
    cases
}

#[test]
fn results_are_those_of_the_text() {
    cases().iter().for_each(Case::check);
}

#[test]
fn all_activations() {
    let names = [
        "relu",
        "affine",
        "leakyrelu",
        "thresholdedrelu",
        "scaledtanh",
        "hardsigmoid",
        "elu",
        "softsign",
        "softplus",
    ];
    for name in names {
        let activations: &'static [&'static str] = Box::leak(Box::new([name, "tanh", name]));
        for op in OPS {
            let n = match op {
                "RNN" => 1,
                "GRU" => 2,
                _ => 3,
            };
            let case = Case { activations: &activations[..n], ..Case::new(op, [3, 2, 4, 18]) };
            case.check();
            Case { direction: "bidirectional", ..case }.check();
        }
    }
}

/// Also where work is in parallel within a step: the last two.
#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let mut cases = cases();
    for op in OPS {
        cases.push(Case::new(op, [2, 3, 8, 260]));
        cases.push(Case { direction: "bidirectional", ..Case::new(op, [21, 1, 8, 300]) });
    }
    for case in cases {
        for dtype in [DType::F32, DType::F16] {
            let bytes = |threads: usize| -> Vec<Vec<u8>> {
                case.run(dtype, threads).iter().map(|y| y.bytes().unwrap().to_vec()).collect()
            };
            let one = bytes(1);
            assert!([2, 3].into_iter().all(|threads| bytes(threads) == one), "{}", case.name());
        }
    }
}

/// States stay in f32, and results are rounded once: results in f16 and bf16 are those in f32, rounded.
#[test]
fn results_are_rounded_once() {
    for case in cases() {
        let wide = case.run(DType::F32, 1);
        let (half, brain) = (case.run(DType::F16, 1), case.run(DType::BF16, 1));
        for ((wide, half), brain) in wide.iter().zip(&half).zip(&brain) {
            let wide = wide.as_slice::<f32>().unwrap();
            let want: Vec<f16> = wide.iter().map(|&x| f16::from_f32(x)).collect();
            assert!(half.as_slice::<f16>().unwrap() == want, "{}", case.name());
            let want: Vec<bf16> = wide.iter().map(|&x| bf16::from_f32(x)).collect();
            assert!(brain.as_slice::<bf16>().unwrap() == want, "{}", case.name());
        }
    }
}

#[test]
fn doubles_are_computed_in_f64() {
    for case in cases() {
        for (found, want) in case.run(DType::F64, 2).iter().zip(case.reference()) {
            let found = found.as_slice::<f64>().unwrap();
            let is_near = |(found, want): (&f64, &f64)| (found - want).abs() <= 1e-13 * want.abs().max(1.0);
            assert!(found.iter().zip(&want).all(is_near), "{}", case.name());
        }
    }
}

/// Constant weights are packed in the first run and kept. The results are those with weights that are not known before
/// the run, in each run.
#[test]
fn constant_weights_are_kept_from_run_to_run() {
    for (op, rows) in [("LSTM", 4 * 33), ("GRU", 3 * 33), ("RNN", 33)] {
        for dtype in [DType::F32, DType::F16] {
            for steps in [1, 30] {
                let x_dims = [steps, 2, 7];
                let text = format!(
                    "module ir=10
opset ai.onnx=22

graph @main {{
  input %x : {dtype}{x_dims:?}
  input %zero : {dtype}[1]
  const %w : {dtype}[1, {rows}, 7] = random(1)
  const %r : {dtype}[1, {rows}, 33] = random(2)
  %v = Add(%w, %zero) : {dtype}[1, {rows}, 7]
  %s = Add(%r, %zero) : {dtype}[1, {rows}, 33]
  %y = {op}(%x, %w, %r) {{hidden_size=33}} : {dtype}[{steps}, 1, 2, 33]
  %z = {op}(%x, %v, %s) {{hidden_size=33}} : {dtype}[{steps}, 1, 2, 33]
  output %y
  output %z
}}
"
                );
                let module = parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}"));
                let mut session = Runtime::from(Cpu::new(2)).prepare(&module).unwrap();
                let zero = tensor(dtype, &[1], &[0.0]);
                for run in 1..4 {
                    let x: Vec<f64> = (0..steps * 14).map(|i| ((i * run) % 31) as f64 / 32.0).collect();
                    let x = tensor(dtype, &x_dims, &x);
                    let inputs = [&x, &zero].map(|input| Some(DataRef::Tensor(input.view())));
                    let outputs = session.run(&inputs).unwrap();
                    let [y, z] = [0, 1].map(|i| outputs[i].tensor().unwrap().bytes().unwrap().to_vec());
                    assert!(y == z && y.iter().any(|&byte| byte != 0), "{op} of {dtype}, run {run}");
                }
            }
        }
    }
}

/// An input without elements may have any number of steps: the work is bounded like the memory.
#[test]
fn too_many_steps_without_elements_are_refused() {
    let text = "module ir=10
opset ai.onnx=22

graph @main {
  input %x : f32[n, 1, 0]
  input %w : f32[1, 1, 0]
  input %r : f32[1, 1, 1]
  _, %h = RNN(%x, %w, %r) {hidden_size=1} : _, f32[1, 1, 1]
  output %h
}
";
    let module = parse(text, &NoData).unwrap_or_else(|errors| panic!("{errors}"));
    let mut session = Runtime::from(Cpu::new(1)).prepare(&module).unwrap();
    let mut run = |steps: u64| {
        let x = HostTensor::from_slice::<f32>(&[steps, 1, 0], &[]).unwrap();
        let w = HostTensor::from_slice::<f32>(&[1, 1, 0], &[]).unwrap();
        let r = HostTensor::from_slice(&[1, 1, 1], &[0.5f32]).unwrap();
        let inputs = [&x, &w, &r].map(|input| Some(DataRef::Tensor(input.view())));
        session.run(&inputs).map(|outputs| outputs.len()).map_err(|error| error.to_string())
    };
    assert_eq!(run(5), Ok(1));
    assert!(run(1 << 60).is_err());
}

#[test]
fn lengths_out_of_range_are_refused() {
    let x = tensor(DType::F32, &[2, 1, 1], &[0.5; 2]);
    let w = tensor(DType::F32, &[1, 1, 1], &[0.5]);
    let lengths = HostTensor::from_slice(&[1], &[3i32]).unwrap();
    let inputs = [x, w.clone(), w, lengths];
    let runtime = Runtime::from(Cpu::new(1));
    let error = run_with(&runtime, "RNN(%0, %1, %2, _, %3) {hidden_size=1}", &["f32", "f32"], &inputs);
    assert!(error.unwrap_err().contains("lengths in [0, 2]"));
}
