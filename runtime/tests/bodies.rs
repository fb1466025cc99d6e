//! Kernels of the operators of ai.ampc against their bodies, run node by node: the same bits.

#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

use ampc_ir::DType;
use ampc_ir::bodies::{self, Form};
use ampc_ir::text::{NoData, PrintOptions, parse, print};
use ampc_ir::views::optimizer::AdamWMode;
use ampc_runtime::{Cpu, DataRef, HostTensor};
use half::{bf16, f16};

const GRADS: [DType; 3] = [DType::F16, DType::BF16, DType::F32];

/// What the operator gives for these operands, and what its function gives.
fn both(form: Form, operands: &[HostTensor], attrs: &str, threads: usize) -> [Vec<HostTensor>; 2] {
    let (name, overload) = (form.kind().name(), form.overload());
    ["", &overload].map(|overload| {
        let mut text = "module ir=10\nopset ai.onnx=21, ai.ampc=1\n\ngraph @main {\n".to_owned();
        for (i, operand) in operands.iter().enumerate() {
            text += &format!("  input %x{i} : {}{:?}\n", operand.dtype(), operand.dims());
        }
        let names = |prefix: &str, n| (0..n).map(|i| format!("%{prefix}{i}")).collect::<Vec<_>>();
        let (operands_text, results) = (names("x", operands.len()).join(", "), names("y", form.n_results()));
        let types = vec!["?"; results.len()].join(", ");
        let op = if overload.is_empty() { name.to_owned() } else { format!("{name}:\"{overload}\"") };
        text += &format!("  {} = ai.ampc::{op}({operands_text}) {{{attrs}}} : {types}\n", results.join(", "));
        results.iter().for_each(|result| text += &format!("  output {result}\n"));
        text += "}\n\n";
        if !overload.is_empty() {
            let (body, _) = bodies::function(form, 21).unwrap();
            let body = print(&body, &PrintOptions::default()).text;
            text += &body[body.find("function ").unwrap()..];
        }
        run(&text, operands, threads)
    })
}

fn run(text: &str, operands: &[HostTensor], threads: usize) -> Vec<HostTensor> {
    let mut module = parse(text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    ampc_ir::infer::infer_module(&mut module).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"));
    let mut executable = Cpu { threads, ..Cpu::default() }.prepare(&module).unwrap();
    let inputs: Vec<_> = operands.iter().map(|x| Some(DataRef::Tensor(x.view()))).collect();
    let outputs = executable.run(&inputs).unwrap_or_else(|error| panic!("{error}\n{text}"));
    outputs.iter().map(|output| output.tensor().unwrap().view().to_host().unwrap()).collect()
}

fn assert_same(node: &[HostTensor], body: &[HostTensor], what: &str) {
    assert_eq!(node.len(), body.len(), "{what}");
    for (j, (node, body)) in node.iter().zip(body).enumerate() {
        assert_eq!((node.dtype(), node.dims()), (body.dtype(), body.dims()), "{what}: result {j}");
        let (node, body) = (node.bytes().unwrap(), body.bytes().unwrap());
        assert!(node == body, "{what}: result {j}: {:?} and {:?}", numbers(node), numbers(body));
    }
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).take(8).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn tensor(dtype: DType, dims: &[u64], values: &[f32]) -> HostTensor {
    match dtype {
        DType::F16 => {
            HostTensor::from_slice(dims, &values.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>())
                .unwrap()
        }
        DType::BF16 => {
            HostTensor::from_slice(dims, &values.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>())
                .unwrap()
        }
        _ => HostTensor::from_slice(dims, values).unwrap(),
    }
}

fn scalar(x: f32) -> HostTensor {
    HostTensor::from_slice(&[], &[x]).unwrap()
}

/// Numbers of many magnitudes, the same every time.
fn some(seed: u32, n: usize, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from_bits(0x3f80_0000 | state >> 9) - 1.5
    };
    (0..n).map(|_| scale * next() * 10f32.powf(-8.0 * (next() + 0.5))).collect()
}

struct Case {
    form: Form,
    grad: DType,
    w_lo: DType,
    dims: Vec<u64>,
    bias_correction: u8,
    step: i64,
    found_inf: f32,
}

impl Case {
    fn operands(&self) -> Vec<HostTensor> {
        let n = usize::try_from(self.dims.iter().product::<u64>()).unwrap();
        let state = |seed, scale| tensor(DType::F32, &self.dims, &some(seed, n, scale));
        let v: Vec<f32> = some(4, n, 0.1).iter().map(|x| x * x).collect();
        vec![
            state(1, 2.0),
            tensor(self.grad, &self.dims, &some(2, n, 500.0)),
            state(3, 0.1),
            tensor(DType::F32, &self.dims, &v),
            scalar(1e-3),
            scalar(1.0 / 1024.0),
            HostTensor::from_slice(&[], &[self.step]).unwrap(),
            scalar(self.found_inf),
        ]
    }

    fn check(&self) -> Vec<HostTensor> {
        let Form::AdamW { mode, lo } = self.form else { unreachable!("AdamW only") };
        let w_lo = if lo { format!(", w_lo_dtype={}", self.w_lo.number()) } else { String::new() };
        let attrs = format!(
            "beta1=tensor(f64 = 0.9), beta2=tensor(f64 = 0.999), bias_correction={}, \
             epsilon=tensor(f64 = 1e-08), mode=\"{}\"{w_lo}, weight_decay=tensor(f64 = 0.01)",
            self.bias_correction,
            mode.as_str()
        );
        let [node, body] = both(self.form, &self.operands(), &attrs, 2);
        let Case { form, grad, w_lo, dims, bias_correction, step, found_inf } = self;
        let what = format!("{form:?} {grad} {w_lo} {dims:?} {bias_correction} {step} {found_inf}");
        assert_same(&node, &body, &what);
        node
    }
}

/// Every form with every type of gradients, over more elements than a block, a piece and two have.
#[test]
fn adam_w_is_its_body() {
    let mut n = 0;
    for mode in [AdamWMode::Torch, AdamWMode::Hf] {
        for grad in GRADS {
            for (lo, w_lo) in [(false, DType::F16), (true, DType::F16), (true, DType::BF16)] {
                let dims = [vec![], vec![0, 3], vec![7, 409], vec![70_001]][n % 4].clone();
                let (bias_correction, step) = (u8::from(n % 3 > 0), [0, 1, 2, 999, -5, i64::MAX][n % 6]);
                n += 1;
                let form = Form::AdamW { mode, lo };
                let case = Case { form, grad, w_lo, dims, bias_correction, step, found_inf: 0.0 };
                case.check();
                // Sums over devices may be 2, and a check that failed is none that passed.
                for found_inf in [1.0, 2.0, f32::NAN] {
                    let skipped = Case { found_inf, dims: case.dims.clone(), ..case };
                    let (operands, results) = (skipped.operands(), skipped.check());
                    for (operand, result) in [0, 2, 3].into_iter().zip(&results) {
                        assert_eq!(operands[operand].bytes(), result.bytes(), "{form:?} changes a state");
                    }
                }
            }
        }
    }
}

#[test]
fn a_skipped_step_does_not_let_a_gradient_through() {
    let form = Form::AdamW { mode: AdamWMode::Torch, lo: true };
    let dims = vec![2];
    let case =
        Case { form, grad: DType::F16, w_lo: DType::F16, dims, bias_correction: 1, step: 3, found_inf: 1.0 };
    let mut operands = case.operands();
    operands[1] = tensor(DType::F16, &[2], &[f32::INFINITY, f32::NAN]);
    let attrs = "beta1=tensor(f64 = 0.9), beta2=tensor(f64 = 0.999), bias_correction=1, epsilon=tensor(f64 = 0.0), \
                 mode=\"torch\", w_lo_dtype=10, weight_decay=tensor(f64 = 0.0)";
    let [node, body] = both(form, &operands, attrs, 1);
    assert_same(&node, &body, "skipped");
    assert_eq!(node[0].bytes(), operands[0].bytes());
    let low: Vec<f16> = operands[0].as_slice::<f32>().unwrap().iter().map(|&w| f16::from_f32(w)).collect();
    assert_eq!(node[3].as_slice::<f16>().unwrap(), low);
}

/// The formulas in f64, three steps from w = 1 with gradients 0.5, -0.25, 2 that are scaled by 8.
#[test]
fn adam_w_takes_the_steps_of_the_formula() {
    let reference = |hf: bool| {
        let (b1, b2, eps, lr, wd) = (0.9f64, 0.999f64, 1e-8, 1e-2, 0.1);
        let (mut w, mut m, mut v) = (1.0f64, 0.0f64, 0.0f64);
        for (t, g) in [(1, 0.5f64), (2, -0.25), (3, 2.0)] {
            m = b1 * m + (1.0 - b1) * g;
            v = b2 * v + (1.0 - b2) * g * g;
            let (c1, c2) = (1.0 - b1.powi(t), 1.0 - b2.powi(t));
            if hf {
                w -= lr * c2.sqrt() / c1 * m / (v.sqrt() + eps);
                w -= lr * wd * w;
            } else {
                w *= 1.0 - lr * wd;
                w -= lr / c1 * m / (v.sqrt() / c2.sqrt() + eps);
            }
        }
        [w, m, v]
    };
    for mode in [AdamWMode::Torch, AdamWMode::Hf] {
        let attrs = format!(
            "beta1=tensor(f64 = 0.9), beta2=tensor(f64 = 0.999), bias_correction=1, epsilon=tensor(f64 = 1e-08), \
             mode=\"{}\", weight_decay=tensor(f64 = 0.1)",
            mode.as_str()
        );
        let mut states = [1.0f32, 0.0, 0.0].map(|x| HostTensor::from_slice(&[1], &[x]).unwrap());
        for (step, g) in [(0i64, 0.5f32), (1, -0.25), (2, 2.0)] {
            let [w, m, v] = states;
            let g = HostTensor::from_slice(&[1], &[g * 8.0]).unwrap();
            let step = HostTensor::from_slice(&[], &[step]).unwrap();
            let operands = [w, g, m, v, scalar(1e-2), scalar(0.125), step, scalar(0.0)];
            let [node, _] = both(Form::AdamW { mode, lo: false }, &operands, &attrs, 1);
            states = node.try_into().unwrap();
        }
        for (state, want) in states.iter().zip(reference(mode == AdamWMode::Hf)) {
            let found = f64::from(state.as_slice::<f32>().unwrap()[0]);
            assert!((found - want).abs() <= 4e-7 * want.abs(), "{mode:?}: {found} is not {want}");
        }
    }
}

/// What is not finite, before or after the product, at any place of any gradient.
#[test]
fn grad_check_is_its_body() {
    let wrong = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    for n in [1, 2, 5] {
        for (round, factor) in [1.0 / 1024.0, 1.0, 0.0, f32::INFINITY, f32::NAN, 1e30].into_iter().enumerate()
        {
            for at in [None, Some(0), Some(n - 1)] {
                let mut grads: Vec<Vec<f32>> =
                    (0..n).map(|i| some(7, [3, 0, 2049, 1, 70_001][i], 100.0)).collect();
                if let Some(at) = at {
                    grads[at].push(wrong[round % 3]);
                }
                let mut operands = vec![scalar(factor)];
                operands.extend(
                    grads.iter().zip(GRADS.iter().cycle()).map(|(g, &d)| tensor(d, &[g.len() as u64], g)),
                );
                let [node, body] = both(Form::GradCheck { n }, &operands, "", 2);
                let what = format!("{n} gradients, {factor}, {at:?}");
                // NaNs have many bits.
                let [sum, other] = [&node, &body].map(|r| r[1].as_slice::<f32>().unwrap()[0]);
                assert!(
                    sum.to_bits() == other.to_bits() || sum.is_nan() && other.is_nan(),
                    "{what}: {sum} {other}"
                );
                assert_same(&node[..1], &body[..1], &what);
                let all = grads.iter().zip(GRADS.iter().cycle()).flat_map(|(g, &d)| {
                    let g = tensor(d, &[g.len() as u64], g);
                    widened(&g)
                });
                let expected = all.into_iter().any(|g| !(g * factor).is_finite() || !g.is_finite());
                let found = node[0].as_slice::<f32>().unwrap()[0];
                assert_eq!(found, f32::from(u8::from(expected)), "{what}");
            }
        }
    }
}

fn widened(g: &HostTensor) -> Vec<f32> {
    match g.dtype() {
        DType::F16 => g.as_slice::<f16>().unwrap().iter().map(|x| x.to_f32()).collect(),
        DType::BF16 => g.as_slice::<bf16>().unwrap().iter().map(|x| x.to_f32()).collect(),
        _ => g.as_slice::<f32>().unwrap().to_vec(),
    }
}

/// A sum of finite squares may be infinite, and nothing is wrong then.
#[test]
fn an_overflow_of_the_sum_is_no_overflow_of_a_gradient() {
    let operands = [scalar(1.0), HostTensor::from_slice(&[2], &[3e38f32, 1.0]).unwrap()];
    let [node, body] = both(Form::GradCheck { n: 1 }, &operands, "", 1);
    assert_same(&node, &body, "overflow");
    let values: Vec<f32> = node.iter().map(|t| t.as_slice::<f32>().unwrap()[0]).collect();
    assert_eq!(values, [0.0, f32::INFINITY]);
}
