//! Kernels of the operators of ai.ampc against their bodies, run node by node: the same bits.

#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

use ampc_ir::DType;
use ampc_ir::bodies::{self, Form};
use ampc_ir::random::philox4x32;
use ampc_ir::text::{NoData, PrintOptions, parse, print};
use ampc_ir::views::loss_scale::Arith;
use ampc_ir::views::optimizer::{AdamWMode, Momentum, OnOverflow};
use ampc_runtime::{Cpu, DataRef, HostTensor, Runtime};
use half::{bf16, f16};

const GRADS: [DType; 3] = [DType::F16, DType::BF16, DType::F32];

/// The results of the operator and of its function for these operands.
fn both(form: Form, operands: &[HostTensor], attrs: &str, threads: usize) -> [Vec<HostTensor>; 2] {
    let (name, overload) = (form.kind().name(), form.overload());
    ["", &overload].map(|overload| {
        let mut text = "module ir=10\nopset ai.onnx=21, ai.ampc=1\n\ngraph @main {\n".to_owned();
        for (i, operand) in operands.iter().enumerate() {
            text += &format!("  input %x{i} : {}{:?}\n", operand.dtype(), operand.dims());
        }
        let names = |prefix: &str, n| (0..n).map(|i| format!("%{prefix}{i}")).collect::<Vec<_>>();
        let (operands_text, mut results) =
            (names("x", operands.len()).join(", "), names("y", form.n_results()));
        let mut types = vec!["?"; results.len()];
        for j in (0..results.len()).filter(|&j| !form.has_result(j)) {
            (results[j], types[j]) = ("_".to_owned(), "_");
        }
        let types = types.join(", ");
        let op = if overload.is_empty() { name.to_owned() } else { format!("{name}:\"{overload}\"") };
        text += &format!("  {} = ai.ampc::{op}({operands_text}) {{{attrs}}} : {types}\n", results.join(", "));
        let named = results.iter().filter(|result| *result != "_");
        named.for_each(|result| text += &format!("  output {result}\n"));
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
    let mut session = Runtime::from(Cpu::new(threads)).prepare(&module).unwrap();
    let inputs: Vec<_> = operands.iter().map(|x| Some(DataRef::Tensor(x.view()))).collect();
    let outputs = session.run(&inputs).unwrap_or_else(|error| panic!("{error}\n{text}"));
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
        let (mode, lo) = match self.form {
            Form::Adam { lo } => (String::new(), lo),
            Form::AdamW { mode, lo } => (format!(", mode=\"{}\"", mode.as_str()), lo),
            _ => unreachable!("Adam and AdamW only"),
        };
        let w_lo = if lo { format!(", w_lo_dtype={}", self.w_lo.number()) } else { String::new() };
        let attrs = format!(
            "beta1=tensor(f64 = 0.9), beta2=tensor(f64 = 0.999), bias_correction={}, \
             epsilon=tensor(f64 = 1e-08){mode}{w_lo}, weight_decay=tensor(f64 = 0.01)",
            self.bias_correction
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
fn adam_and_adam_w_are_their_bodies() {
    let mut n = 0;
    for mode in [None, Some(AdamWMode::Torch), Some(AdamWMode::Hf)] {
        for grad in GRADS {
            for (lo, w_lo) in [(false, DType::F16), (true, DType::F16), (true, DType::BF16)] {
                let dims = [vec![], vec![0, 3], vec![7, 409], vec![70_001]][n % 4].clone();
                let (bias_correction, step) = (u8::from(n % 3 > 0), [0, 1, 2, 999, -5, i64::MAX][n % 6]);
                n += 1;
                let form = mode.map_or(Form::Adam { lo }, |mode| Form::AdamW { mode, lo });
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

fn int(n: i32) -> HostTensor {
    HostTensor::from_slice(&[], &[n]).unwrap()
}

/// Every form, over more elements than a block, a piece and two have, in first and later steps.
#[test]
fn sgd_is_its_body() {
    let mut n = 0;
    for direction in [Momentum::Plain, Momentum::Momentum, Momentum::Nesterov] {
        for on_overflow in [OnOverflow::Skip, OnOverflow::ZeroGrad] {
            for (grad, lo) in [(DType::F16, Some(16)), (DType::BF16, Some(10)), (DType::F32, None)] {
                let form = Form::Sgd { direction, on_overflow, lo: lo.is_some() };
                let dims = [vec![], vec![0, 3], vec![7, 409], vec![70_001]][n % 4].clone();
                n += 1;
                for (step, found_inf) in [(0, 0.0f32), (1, 0.0), (-1, 1.0), (7, f32::NAN), (7, 2.0)] {
                    sgd(form, grad, lo, &dims, step, found_inf);
                }
            }
        }
    }
}

fn sgd(form: Form, grad: DType, lo: Option<i32>, dims: &[u64], step: i64, found_inf: f32) {
    let Form::Sgd { direction, on_overflow, .. } = form else { unreachable!("SGD only") };
    let n = usize::try_from(dims.iter().product::<u64>()).unwrap();
    let mut g = some(2, n, 500.0);
    if let Some(first) = g.first_mut().filter(|_| found_inf != 0.0) {
        *first = f32::NAN;
    }
    let has_momentum = direction != Momentum::Plain;
    let [w, v] = [(1, 2.0), (3, 0.1)].map(|(seed, scale)| tensor(DType::F32, dims, &some(seed, n, scale)));
    let step_count = HostTensor::from_slice(&[], &[step]).unwrap();
    let mut operands =
        vec![w, tensor(grad, dims, &g), scalar(1e-3), scalar(1.0 / 1024.0), step_count, scalar(found_inf)];
    operands.extend(has_momentum.then_some(v));
    let attrs = format!(
        "dampening=tensor(f64 = 0.3), momentum=tensor(f64 = {:?}), nesterov={}, on_overflow=\"{}\"{}, \
         weight_decay=tensor(f64 = 0.01)",
        if has_momentum { 0.9 } else { 0.0 },
        u8::from(direction == Momentum::Nesterov),
        on_overflow.as_str(),
        lo.map_or_else(String::new, |lo| format!(", w_lo_dtype={lo}"))
    );
    let [node, body] = both(form, &operands, &attrs, 2);
    let what = format!("{form:?} {grad} {dims:?} {step} {found_inf}");
    assert_same(&node, &body, &what);
    let changes = node[0].bytes() != operands[0].bytes();
    assert_eq!(changes, n > 0 && (found_inf == 0.0 || on_overflow == OnOverflow::ZeroGrad), "{what}");
    if found_inf != 0.0 {
        assert!(node[0].as_slice::<f32>().unwrap().iter().all(|w| w.is_finite()), "{what}");
    }
}

/// The momentum of the first step is its gradient, whatever the state holds and however the gradient is dampened.
#[test]
fn the_first_step_has_no_momentum_before_it() {
    let form = Form::Sgd { direction: Momentum::Momentum, on_overflow: OnOverflow::Skip, lo: false };
    let attrs = "dampening=tensor(f64 = 0.5), momentum=tensor(f64 = 0.5), nesterov=0, on_overflow=\"skip\", \
                 weight_decay=tensor(f64 = 0.5)";
    let one = |x: f32| HostTensor::from_slice(&[1], &[x]).unwrap();
    let mut found = Vec::new();
    for step in [0i64, 1] {
        let step = HostTensor::from_slice(&[], &[step]).unwrap();
        let operands = [one(2.0), one(8.0), scalar(0.5), scalar(0.25), step, scalar(0.0), one(4.0)];
        let [node, body] = both(form, &operands, attrs, 1);
        assert_same(&node, &body, "first");
        found.push([&node[0], &node[1]].map(|t| t.as_slice::<f32>().unwrap()[0]));
    }
    // The gradient is 8 / 4 + 2 / 2.
    assert_eq!(found, [[0.5, 3.0], [0.25, 3.5]]);
}

/// The next scale and counts, of the operator and of its body.
fn update(form: Form, attrs: &str, scale: f32, good: i32, found_inf: f32, bad: i32) -> (f32, i32, i32) {
    let Form::UpdateLossScale { bad: counts, .. } = form else { unreachable!("UpdateLossScale only") };
    let mut operands = vec![scalar(scale), int(good), scalar(found_inf)];
    operands.extend(counts.then(|| int(bad)));
    let [node, body] = both(form, &operands, attrs, 1);
    assert_same(&node, &body, &format!("{form:?} {attrs} {scale} {good} {found_inf} {bad}"));
    let count = |j: usize| node.get(j).map_or(0, |t| t.as_slice::<i32>().unwrap()[0]);
    (node[0].as_slice::<f32>().unwrap()[0], count(1), count(2))
}

#[test]
fn update_loss_scale_is_its_body() {
    let scales = [
        65536.0,
        3.0,
        1.0,
        f32::MAX,
        2f32.powi(127),
        3e38,
        1e-45,
        0.0,
        f32::INFINITY,
        1e4 / 3.0,
        2f32.powi(-126),
    ];
    let mut n = 0;
    for arith in [Arith::F32Product, Arith::F64Product] {
        for (min, max) in [(None, None), (Some(1.0), None), (None, Some(3000.0)), (Some(0.5), Some(65536.0))]
        {
            for bad in [false, true] {
                let form = Form::UpdateLossScale { arith, min: min.is_some(), max: max.is_some(), bad };
                for scale in scales {
                    for found_inf in [0.0, 1.0, f32::NAN] {
                        n += 1;
                        let bound = |name: &str, bound: Option<f64>| {
                            bound.map_or_else(String::new, |x| format!("{name}=tensor(f64 = {x:?}), "))
                        };
                        let (growth, backoff) = [("2.0", "0.5"), ("1.1", "0.8"), ("1.5", "0.7")][n % 3];
                        let attrs = format!(
                            "arith=\"{}\", backoff=tensor(f64 = {backoff}), backoff_every={}, \
                             growth=tensor(f64 = {growth}), interval={}, {}{}reset_good={}",
                            arith.as_str(),
                            if bad { 1 + n % 3 } else { 1 },
                            [1, 5, i32::MAX][n % 3],
                            bound("max", max),
                            bound("min", min),
                            n % 2
                        );
                        let good = [0, 4, 3, i32::MAX, i32::MAX - 1, -1, 7][n % 7];
                        update(form, &attrs, scale, good, found_inf, [0, 1, 2, i32::MAX][n % 4]);
                    }
                }
            }
        }
    }
}

/// The rule of PyTorch, at the places where it is easy to be wrong.
#[test]
fn update_loss_scale_follows_pytorch() {
    let form = Form::UpdateLossScale { arith: Arith::F64Product, min: false, max: false, bad: false };
    let attrs = "arith=\"f64_product\", backoff=tensor(f64 = 0.5), backoff_every=1, growth=tensor(f64 = 2.0), \
                 interval=2000, reset_good=1";
    let huge = 2f32.powi(127);
    for (scale, good, found_inf, expected) in [
        (65536.0, 1999, 0.0, (131_072.0, 0)),
        (65536.0, 1998, 0.0, (65536.0, 1999)),
        (65536.0, 1500, 1.0, (32768.0, 0)),
        (65536.0, 1500, f32::NAN, (32768.0, 0)),
        (huge, 1999, 0.0, (huge, 0)),
        (65536.0, i32::MAX, 0.0, (131_072.0, 0)),
    ] {
        let (scale_next, good_next, _) = update(form, attrs, scale, good, found_inf, 0);
        assert_eq!((scale_next, good_next), expected, "{scale} {good} {found_inf}");
    }
}

#[test]
fn clip_coef_is_its_body() {
    let sums = [0.0f32, 1.0, 4.0, 1e-30, 3e38, f32::INFINITY, f32::NAN, -1.0, 0.25];
    for (sumsq, inv_scale) in
        sums.into_iter().flat_map(|s| [1.0, 1.0 / 3.0, f32::INFINITY, 0.0].map(|i| (s, i)))
    {
        for (max_norm, epsilon) in [(1.0, 1e-6), (0.3, 0.0), (f64::INFINITY, 1e-6), (0.0, 0.0)] {
            let attrs = format!("epsilon=tensor(f64 = {epsilon:?}), max_norm=tensor(f64 = {max_norm:?})");
            let [node, body] = both(Form::ClipCoef, &[scalar(sumsq), scalar(inv_scale)], &attrs, 1);
            let what = format!("{sumsq} {inv_scale} {attrs}");
            for j in 0..2 {
                let [found, want] = [&node, &body].map(|r| r[j].as_slice::<f32>().unwrap()[0]);
                let same = found.to_bits() == want.to_bits() || found.is_nan() && want.is_nan();
                assert!(same, "{what}: result {j}: {found} {want}");
            }
            let (norm, root) = (node[1].as_slice::<f32>().unwrap()[0], sumsq.sqrt());
            assert!(norm.to_bits() == root.to_bits() || norm.is_nan() && root.is_nan(), "{what}: {norm}");
        }
    }
    let attrs = "epsilon=tensor(f64 = 0.0), max_norm=tensor(f64 = 1.0)";
    let mult = |sumsq| {
        both(Form::ClipCoef, &[scalar(sumsq), scalar(0.5)], attrs, 1)[0][0].as_slice::<f32>().unwrap()[0]
    };
    assert_eq!([mult(16.0), mult(0.5), mult(1.0), mult(f32::INFINITY)], [0.125, 0.5, 0.5, 0.0]);
}

/// Dropped elements are those that the body drops and the definition names: the same elements for every type.
#[test]
fn philox_dropout_is_its_body() {
    let word = |n: u64| HostTensor::from_slice(&[], &[n]).unwrap();
    let mut n = 0;
    for dtype in GRADS {
        for dims in [vec![], vec![0, 3], vec![5], vec![7, 409], vec![70_001]] {
            for ratio in [0.0, 0.1, 0.5, 1.0, -1.0, f32::NAN] {
                let seed = [0, 1, 0x0123_4567_89ab_cdef, u64::MAX][n % 4];
                let offset = [0, 7, 1 << 32, u64::MAX][n / 4 % 4];
                let stream = [0, 3, u32::MAX][n % 3];
                n += 1;
                let count = usize::try_from(dims.iter().product::<u64>()).unwrap();
                let x = tensor(dtype, &dims, &some(5, count, 100.0));
                let operands = [x, word(seed), word(offset), scalar(ratio)];
                let [node, body] = both(Form::PhiloxDropout, &operands, &format!("stream={stream}"), 2);
                let what = format!("{dtype} {dims:?} {ratio} {seed} {offset} {stream}");
                assert_same(&node, &body, &what);
                if ratio == 0.0 {
                    assert_eq!(node[0].bytes(), operands[0].bytes(), "{what}");
                }
                let halves = |n: u64| [n & u64::from(u32::MAX), n >> 32].map(|n| u32::try_from(n).unwrap());
                let [low, high] = halves(offset);
                let expected: Vec<f32> = (0u32..)
                    .zip(widened(&operands[0]))
                    .map(|(i, x)| {
                        let words = philox4x32([i / 4, stream, low, high], halves(seed));
                        let uniform = (words[i as usize % 4] >> 8) as f32 / 16_777_216.0;
                        if uniform >= ratio { x / (1.0 - ratio) } else { 0.0 }
                    })
                    .collect();
                assert_eq!(node[0].bytes(), tensor(dtype, &dims, &expected).bytes(), "{what}");
            }
        }
    }
}

/// The formulas in f64, three steps from w = 1 with gradients 0.5, -0.25, 2 that are scaled by 8.
#[test]
fn adam_and_adam_w_take_the_steps_of_the_formula() {
    let reference = |mode: Option<AdamWMode>| {
        let (b1, b2, eps, lr, wd) = (0.9f64, 0.999f64, 1e-8, 1e-2, 0.1);
        let (mut w, mut m, mut v) = (1.0f64, 0.0f64, 0.0f64);
        for (t, g) in [(1, 0.5f64), (2, -0.25), (3, 2.0)] {
            let g = if mode.is_none() { g + wd * w } else { g };
            m = b1 * m + (1.0 - b1) * g;
            v = b2 * v + (1.0 - b2) * g * g;
            let (c1, c2) = (1.0 - b1.powi(t), 1.0 - b2.powi(t));
            if mode == Some(AdamWMode::Hf) {
                w -= lr * c2.sqrt() / c1 * m / (v.sqrt() + eps);
                w -= lr * wd * w;
            } else {
                w *= if mode.is_some() { 1.0 - lr * wd } else { 1.0 };
                w -= lr / c1 * m / (v.sqrt() / c2.sqrt() + eps);
            }
        }
        [w, m, v]
    };
    for mode in [None, Some(AdamWMode::Torch), Some(AdamWMode::Hf)] {
        let form = mode.map_or(Form::Adam { lo: false }, |mode| Form::AdamW { mode, lo: false });
        let attrs = format!(
            "beta1=tensor(f64 = 0.9), beta2=tensor(f64 = 0.999), bias_correction=1, epsilon=tensor(f64 = 1e-08), \
             {}weight_decay=tensor(f64 = 0.1)",
            mode.map_or_else(String::new, |mode| format!("mode=\"{}\", ", mode.as_str()))
        );
        let mut states = [1.0f32, 0.0, 0.0].map(|x| HostTensor::from_slice(&[1], &[x]).unwrap());
        for (step, g) in [(0i64, 0.5f32), (1, -0.25), (2, 2.0)] {
            let [w, m, v] = states;
            let g = HostTensor::from_slice(&[1], &[g * 8.0]).unwrap();
            let step = HostTensor::from_slice(&[], &[step]).unwrap();
            let operands = [w, g, m, v, scalar(1e-2), scalar(0.125), step, scalar(0.0)];
            let [node, _] = both(form, &operands, &attrs, 1);
            states = node.try_into().unwrap();
        }
        for (state, want) in states.iter().zip(reference(mode)) {
            let found = f64::from(state.as_slice::<f32>().unwrap()[0]);
            assert!((found - want).abs() <= 4e-7 * want.abs(), "{mode:?}: {found} is not {want}");
        }
    }
}

/// The first result of a GradCheck without the second.
fn found_alone(operands: &[HostTensor]) -> HostTensor {
    let names: Vec<String> = (0..operands.len()).map(|i| format!("%x{i}")).collect();
    let mut text = "module ir=10\nopset ai.onnx=21, ai.ampc=1\n\ngraph @main {\n".to_owned();
    for (name, operand) in names.iter().zip(operands) {
        text += &format!("  input {name} : {}{:?}\n", operand.dtype(), operand.dims());
    }
    text += &format!("  %y = ai.ampc::GradCheck({}) : f32\n  output %y\n}}\n", names.join(", "));
    run(&text, operands, 2).remove(0)
}

/// Elements that are not finite, before or after the product, at any place of any gradient.
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
                assert_same(&[found_alone(&operands)], &body[..1], &what);
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
