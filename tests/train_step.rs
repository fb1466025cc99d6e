//! Training steps by the library, run by the CPU runtime.

#![cfg(feature = "run")]
#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

use ampc::Model;
use ampc::ir::text::{NoData, parse};
use ampc::ir::{DType, Module, Value};
use ampc::passes::autodiff::GRAD;
use ampc::passes::policy::Policy;
use ampc::passes::step::{self, Update};
use ampc::runtime::{Data, HostTensor, Runtime};
use ampc::train::{TrainOptions, TrainStep, train_step};
use ampc::{ErrorKind, RewriteOptions};
use std::collections::BTreeMap;

#[path = "train_step/constants.rs"]
mod constants;
#[path = "train_step/custom.rs"]
mod custom;
#[path = "train_step/masters.rs"]
mod masters;
#[path = "train_step/recompute.rs"]
mod recompute;
#[path = "train_step/stable.rs"]
mod stable;
#[path = "train_step/ties.rs"]
mod ties;

/// Options by the spelling of the command line.
fn options(loss: &str, optimizer: &str, scaler: &str, low: bool) -> TrainOptions {
    TrainOptions {
        precision: low.then(|| RewriteOptions::of(Policy::preset("all").unwrap())),
        loss: loss.parse().unwrap(),
        update: Update {
            optimizer: optimizer.parse().unwrap(),
            scaler: scaler.parse().unwrap(),
            ..Update::default()
        },
        dropout_seed: 7,
        verify_each: true,
        ..TrainOptions::default()
    }
}

fn module(text: &str) -> Model {
    Model::from(parse(text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}")))
}

fn step_of(text: &str, options: &TrainOptions) -> TrainStep {
    train_step(module(text), options).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Runs a step from state to state.
struct Training {
    module: Module,
    state: BTreeMap<String, HostTensor>,
}

impl Training {
    fn of(step: TrainStep) -> Training {
        let state =
            step.state.iter().map(|(name, data)| (name.clone(), HostTensor::from_data(data).unwrap()));
        Training { state: state.collect(), module: step.model.module }
    }

    /// One step on these inputs: all outputs by name; the state is the next one after it.
    fn step(&mut self, data: &[(&str, HostTensor)]) -> BTreeMap<String, HostTensor> {
        let mut session = ampc::execute::prepare(&mut self.module, &Runtime::default()).unwrap();
        let names = ampc::execute::input_names(&self.module);
        let given = |name: &String| {
            let own = data.iter().find(|(given, _)| given == name).map(|(_, tensor)| tensor);
            own.or_else(|| self.state.get(name)).unwrap_or_else(|| panic!("no value for {name}")).clone()
        };
        let inputs: Vec<Option<Data>> = names.iter().map(|name| Some(Data::Tensor(given(name)))).collect();
        let outputs = ampc::execute::run(&mut session, &inputs).unwrap();
        let outputs = outputs.into_iter().map(|output| output.tensor().unwrap().clone());
        let found: BTreeMap<String, HostTensor> =
            ampc::execute::output_names(&self.module).into_iter().zip(outputs).collect();
        for (name, value) in &mut self.state {
            // Without an optimizer, parameters stay as they are.
            if let Some(next) = found.get(&format!("{name}_next")) {
                *value = next.clone();
            }
        }
        found
    }
}

fn tensor(dims: &[u64], values: &[f32]) -> HostTensor {
    HostTensor::from_slice(dims, values).unwrap()
}

fn number(tensor: &HostTensor) -> f64 {
    match tensor.dtype() {
        DType::F32 => tensor.f64s().unwrap().next().unwrap(),
        _ => i32::try_from(tensor.ints().unwrap().next().unwrap()).unwrap().into(),
    }
}

/// A linear model of a number of features.
const LINEAR: &str = "module ir=10\nopset ai.onnx=21\n\ngraph @main {\n  input %x : f32[4, 3]\n  \
                      const %w : f32[3, 2] = random(1)\n  const %b : f32[2] = random(2)\n  \
                      %h = MatMul(%x, %w) : f32[4, 2] @product\n  %y = Add(%h, %b) : f32[4, 2] @sum\n  output %y\n}\n";

/// The columns of x are orthogonal to each other and to 1, and of length 2: the gradient of the mean of 8 squares is then
/// the distance of each weight from its best value, so that a rate of 1/2 halves the distances, and a step divides the loss
/// by 4.
#[test]
fn a_loss_falls_in_both_precisions() {
    let x = tensor(&[4, 3], &[1.0, 1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, -1.0, -1.0, -1.0, 1.0]);
    let target = tensor(&[4, 2], &[3.0, 0.0, 0.0, 2.0, 0.5, -2.5, -1.0, 4.0]);
    // In fp16 weights are off by 2^-11 of themselves, which is more and more of the distance that is left.
    for (low, scaler, tolerance) in [(false, "none", 1e-4), (true, "ampc:init=1024", 0.05)] {
        let mut training = Training::of(step_of(LINEAR, &options("mse", "sgd", scaler, low)));
        let mut losses = Vec::new();
        for _ in 0..4 {
            let lr = tensor(&[], &[0.5]);
            let found = training.step(&[("x", x.clone()), ("target", target.clone()), ("lr", lr)]);
            losses.push(number(&found["loss"]));
        }
        assert!(losses[0] > 1.0, "{losses:?}");
        for pair in losses.windows(2) {
            assert!((4.0 * pair[1] / pair[0] - 1.0).abs() < tolerance, "low {low}: {losses:?}");
        }
        assert_eq!(number(&training.state["step"]), 4.0, "low {low}");
        let is_low = training.state.values().any(|tensor| tensor.dtype() == DType::F16);
        assert_eq!(is_low, low, "low copies are states");
    }
}

#[test]
fn a_step_that_overflows_changes_nothing_but_the_scaler() {
    let mut training =
        Training::of(step_of(LINEAR, &options("mse", "sgd:momentum=0.9", "torch:init=1024", true)));
    let target = tensor(&[4, 2], &[0.0; 8]);
    let lr = || tensor(&[], &[0.1]);
    training.step(&[("x", tensor(&[4, 3], &[0.5; 12])), ("target", target.clone()), ("lr", lr())]);
    let before = training.state.clone();
    let mut x = [0.5; 12];
    x[5] = f32::INFINITY;
    let found = training.step(&[("x", tensor(&[4, 3], &x)), ("target", target), ("lr", lr())]);
    assert_eq!(number(&found["found_inf"]), 1.0);
    for (name, value) in &training.state {
        match name.as_str() {
            "loss_scale" => assert_eq!(number(value), 512.0),
            "good_steps" => assert_eq!(number(value), 0.0),
            _ => assert_eq!(value.bytes().unwrap(), before[name].bytes().unwrap(), "{name}"),
        }
    }
}

/// 1,000 steps of 1e-4 from 1: in fp16 alone each would be lost beside the 1.
#[test]
fn small_updates_are_kept_in_fp32_weights() {
    let text = "module ir=10\nopset ai.onnx=21\n\ngraph @main {\n  input %x : f32[1, 1]\n  \
                const %w : f32[1, 1] = [1.0]\n  %y = MatMul(%x, %w) : f32[1, 1] @product\n  \
                %loss = ReduceSum(%y) {keepdims=0} : f32\n  output %loss\n}\n";
    let mut training = Training::of(step_of(text, &options("output:loss", "sgd", "static:128", true)));
    for _ in 0..1000 {
        training.step(&[("x", tensor(&[1, 1], &[1.0])), ("lr", tensor(&[], &[1e-4]))]);
    }
    // The sum of 1,000 roundings of f32 is at most 1,000 times half an ulp of 1.
    assert!((number(&training.state["w"]) - 0.9).abs() < 6e-5, "{}", number(&training.state["w"]));
}

#[test]
fn a_step_is_no_forward_model() {
    let step = step_of(LINEAR, &options("mse", "sgd", "none", false));
    let error = train_step(step.model, &options("mse", "sgd", "none", false)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("already is a training step"), "{error}");
}

/// Two features that are normalized by their batch, with running statistics.
const NORMALIZED: &str = "module ir=10\nopset ai.onnx=21\n\ngraph @main {\n  input %x : f32[4, 3]\n  \
                          const %w : f32[3, 2] = random(1)\n  const %scale : f32[2] = [1.0, 2.0]\n  \
                          const %bias : f32[2] = [0.5, 0.25]\n  const %mean : f32[2] = [0.0, 0.0]\n  \
                          const %var : f32[2] = [1.0, 1.0]\n  %h = MatMul(%x, %w) : f32[4, 2] @product\n  \
                          %n, %m, %v = BatchNormalization(%h, %scale, %bias, %mean, %var) {training_mode=1} : \
                          f32[4, 2], f32[2], f32[2] @norm\n  %y = Add(%n, %bias) : f32[4, 2] @sum\n  \
                          output %y\n}\n";

fn data(x: f32) -> [(&'static str, HostTensor); 3] {
    let x = [0.5, -1.0, 0.25, 1.0, 0.75, -0.5, x, 0.125, 1.5, -0.75, 0.5, 1.0];
    let target = [0.25, 3.0, -1.0, 0.5, 2.0, -2.0, 1.0, 0.0];
    [("x", tensor(&[4, 3], &x)), ("target", tensor(&[4, 2], &target)), ("lr", tensor(&[], &[0.125]))]
}

/// The states of a scaler, which are all that a step that is skipped changes.
const OF_SCALER: [&str; 3] = ["loss_scale", "good_steps", "bad_steps"];

fn assert_same_but_scaler(
    before: &BTreeMap<String, HostTensor>,
    after: &BTreeMap<String, HostTensor>,
    what: &str,
) {
    for (name, value) in after.iter().filter(|(name, _)| !OF_SCALER.contains(&name.as_str())) {
        assert_eq!(value.bytes().unwrap(), before[name].bytes().unwrap(), "{what}: {name}");
    }
}

/// In the middle of training and in the first step, whose states are all 0, with an infinity in the data, which reaches
/// running statistics too, and with one in gradients alone.
#[test]
fn a_step_that_is_skipped_keeps_every_bit_of_weights_optimizer_and_running_statistics() {
    for optimizer in ["sgd:momentum=0.9,weight_decay=0.1", "adam", "adamw:weight_decay=0.1", "adamw:mode=hf"]
    {
        for scaler in
            ["torch:init=1024", "ampc:init=1024", "static:1024", "fastai:init=1024", "jmp:init=1e38"]
        {
            let mut options = options("mse", optimizer, scaler, true);
            options.update.clip_norm = Some(1.0);
            let mut training = Training::of(step_of(NORMALIZED, &options));
            let what = format!("{optimizer} {scaler}");
            let stats = [
                "mean",
                "var",
                "w",
                "lo.w",
                "step",
                if optimizer.starts_with("sgd") { "v.w" } else { "m.w" },
            ];
            for state in stats {
                assert!(training.state.contains_key(state), "{what}: {state}");
            }
            let norm = training
                .module
                .nodes(training.module.main())
                .find(|&node| training.module.op_name(node).1 == "BatchNormalization");
            let norm = training.module.node(norm.unwrap()).operand(0).unwrap();
            assert_eq!(training.module.value(norm).ty.dtype(), Some(DType::F16), "it normalizes in fp16");
            for x in [f32::INFINITY, 2.0, 2.0, f32::INFINITY, f32::NAN, 2.0] {
                let before = training.state.clone();
                let found = training.step(&data(x));
                // A scale of 1e38 makes gradients overflow whatever the data are.
                let overflows = !x.is_finite() || scaler.ends_with("1e38");
                assert_eq!(number(&found["found_inf"]), f64::from(u8::from(overflows)), "{what}");
                if overflows {
                    assert_same_but_scaler(&before, &training.state, &what);
                } else {
                    for state in stats {
                        let same = training.state[state].bytes().unwrap() == before[state].bytes().unwrap();
                        assert!(!same, "{what}: {state} has not moved");
                    }
                }
            }
        }
    }
}

/// The behaviour of scalers after Paddle's in docs/training.md.
#[test]
fn with_zero_gradients_sgd_takes_the_step_and_adam_skips_it() {
    for (optimizer, skips) in [("sgd:momentum=0.5", false), ("adam", true), ("adamw", true)] {
        let scalers = ["paddle-new:init=1024", "paddle-fleet:init=1024", "paddle-old:init=1024"];
        for (scaler, clip_norm) in
            scalers.into_iter().flat_map(|scaler| [(scaler, None), (scaler, Some(1.0))])
        {
            let mut options = options("mse", optimizer, scaler, true);
            // The norm is infinite, or no number.
            options.update.clip_norm = clip_norm;
            let mut training = Training::of(step_of(NORMALIZED, &options));
            training.step(&data(2.0));
            let scale = training.state.get_mut("loss_scale").unwrap();
            *scale = tensor(&[], &[1e38]);
            let before = training.state.clone();
            let found = training.step(&data(2.0));
            assert_eq!(number(&found["found_inf"]), 1.0);
            let what = format!("{optimizer} {scaler} {clip_norm:?}");
            let floats = |tensor: &HostTensor| tensor.f64s().unwrap().collect::<Vec<_>>();
            // The forward pass was finite, and its statistics are kept.
            for name in ["mean", "var"] {
                let (old, new) = (floats(&before[name]), floats(&training.state[name]));
                assert!(old != new && new.iter().all(|x| x.is_finite()), "{what}: {name} {old:?} {new:?}");
            }
            let mut after = training.state.clone();
            for name in ["mean", "var"] {
                after.insert(name.to_owned(), before[name].clone());
            }
            if skips {
                assert_same_but_scaler(&before, &after, &what);
                continue;
            }
            // Half the momentum, and a step along it: exact, since 0.5 and 0.125 are powers of 2.
            let (w, v) = (floats(&before["w"]), floats(&before["v.w"]));
            assert!(v.iter().all(|&v| v != 0.0), "{what}: {v:?}");
            for (i, (w, v)) in w.iter().zip(&v).enumerate() {
                #[expect(clippy::cast_possible_truncation, reason = "rounded as the step rounds")]
                let moved = (w - 0.125 * (v / 2.0)) as f32;
                assert_eq!(floats(&after["v.w"])[i], v / 2.0, "{what}");
                assert_eq!(floats(&after["w"])[i], f64::from(moved), "{what}");
                let (moved, low) = (f64::from(moved), floats(&after["lo.w"])[i]);
                assert!((low - moved).abs() <= moved.abs() / 2048.0, "{what}: a copy {low} of {moved}");
            }
        }
    }
}

/// The formats in which a node of the update may compute: all formats but those of 16 bits. Gradients come as
/// they are, and low copies are written.
#[test]
fn nothing_behind_the_gradients_computes_low() {
    let optimizers =
        ["sgd", "sgd:momentum=0.9,nesterov=1", "adam:weight_decay=0.1", "adamw", "adamw:mode=hf"];
    let scalers = ["none", "static:1024", "torch", "paddle-fleet", "ort-trainer", "fastai"];
    let mut low_copies = 0;
    for (text, clip_norm) in
        [(LINEAR, None), (LINEAR, Some(1.0)), (NORMALIZED, None), (NORMALIZED, Some(0.5))]
    {
        for (optimizer, scaler) in optimizers.iter().flat_map(|o| scalers.map(|s| (o, s))) {
            let mut options = options("mse", optimizer, scaler, true);
            options.update.clip_norm = clip_norm;
            let module = step_of(text, &options).model.module;
            let roles = &module.graph(module.main()).roles;
            let gradients: Vec<Value> = roles
                .iter()
                .filter(|role| module.text(role.name) == GRAD)
                .map(|role| role.values[1])
                .collect();
            let is_low = |value: Value| module.value(value).ty.dtype().is_some_and(DType::is_low);
            let tail = module
                .nodes(module.main())
                .filter(|&node| step::phase_of(&module, node) == Some(step::Phase::Update));
            for node in tail {
                let what = format!("{optimizer} {scaler} {}", module.op_name(node).1);
                let reads =
                    ["grad-check", "master-weight"].contains(&step::role_of(&module, node).expect(&what));
                for &operand in module.node(node).operands().iter().flatten().filter(|&&value| is_low(value))
                {
                    assert!(reads && gradients.contains(&operand), "{what} reads a low operand");
                }
                let low =
                    module.node(node).results().iter().flatten().filter(|&&value| is_low(value)).count();
                let writes = step::role_of(&module, node) == Some("master-weight");
                assert!(low <= usize::from(writes), "{what} has a low result");
                low_copies += low;
            }
        }
    }
    assert!(low_copies > 0, "low copies are written");
}

/// Numbers without a pattern, from −2 to 2.
fn scores(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + 11) % 41) as f32 / 10.25 - 2.0).collect()
}

/// The loss that the first step of `y = x + b`, where b is 0, gives for inputs.
fn first_loss(loss: &str, dims: &[u64], inputs: &[(&str, HostTensor)]) -> f64 {
    let list = dims.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let text = format!(
        "module ir=10\nopset ai.onnx=21\n\ngraph @main {{\n  input %x : f32[{list}]\n  const %b : f32[1] = [0.0]\n  \
         %y = Add(%x, %b) : f32[{list}]\n  output %y\n}}\n"
    );
    let mut training = Training::of(step_of(&text, &options(loss, "sgd", "none", false)));
    let given = [inputs, &[("lr", tensor(&[], &[0.1]))]].concat();
    number(&training.step(&given)["loss"])
}

fn elements(dims: &[u64]) -> usize {
    usize::try_from(dims.iter().product::<u64>()).unwrap()
}

/// The formula of docs/training.md, with classes along any axis.
fn cross_entropy(
    dims: &[u64],
    axis: usize,
    x: &[f32],
    t: &[i64],
    w: &[f32],
    ignored: Option<i64>,
    smoothing: f64,
) -> f64 {
    let (classes, inner) = (elements(&dims[axis..=axis]), elements(&dims[axis + 1..]));
    let (mut hard, mut soft, mut total) = (0.0, 0.0, 0.0);
    for (at, &label) in t.iter().enumerate().filter(|&(_, &label)| Some(label) != ignored) {
        let (outer, inside) = (at / inner, at % inner);
        let score = |class: usize| f64::from(x[(outer * classes + class) * inner + inside]);
        let log_sum = (0..classes).map(|class| score(class).exp()).sum::<f64>().ln();
        let cost = |class: usize| f64::from(w[class]) * (log_sum - score(class));
        let label = usize::try_from(label).unwrap();
        hard += cost(label);
        soft += (0..classes).map(cost).sum::<f64>() / classes as f64;
        total += f64::from(w[label]);
    }
    ((1.0 - smoothing) * hard + smoothing * soft) / total
}

#[test]
fn cross_entropy_is_what_the_formula_says_along_every_axis_with_every_setting() {
    let cases: &[(&[u64], &str, usize)] = &[
        (&[4, 3], "", 1),
        (&[2, 4, 3], "", 2),
        (&[2, 3, 4, 2], "", 1),
        (&[3, 4], ",axis=0", 0),
        (&[3, 2, 4], ",axis=-3", 0),
        (&[2, 3, 4], ",axis=1", 1),
        (&[2, 4, 3, 2], ",axis=2", 2),
        (&[2, 2, 2, 3], ",axis=-1", 3),
    ];
    for &(dims, axis, at) in cases {
        let (x, labels) = (scores(elements(dims)), elements(dims) / 3);
        let t: Vec<i64> = (0..labels).map(|i| (i * 5 + i / 3) as i64 % 3).collect();
        let label_dims: Vec<u64> =
            dims.iter().enumerate().filter(|&(i, _)| i != at).map(|(_, &dim)| dim).collect();
        for ignored in [None, Some(1), Some(-100)] {
            let mut t = t.clone();
            if ignored == Some(-100) {
                t[labels / 2] = -100;
            }
            for (smoothing, w) in
                [(0.0, None), (0.1, None), (0.0, Some([0.5, 2.0, 1.5])), (0.3, Some([0.5, 2.0, 1.5]))]
            {
                let mut loss = format!("cross-entropy:label_smoothing={smoothing}{axis}");
                let mut inputs = vec![
                    ("x", tensor(dims, &x)),
                    ("target", HostTensor::from_slice(&label_dims, &t).unwrap()),
                ];
                if let Some(index) = ignored {
                    loss += &format!(",ignore_index={index}");
                }
                if let Some(w) = w {
                    loss += ",weights=w";
                    inputs.push(("w", tensor(&[3], &w)));
                }
                let found = first_loss(&loss, dims, &inputs);
                let want = cross_entropy(dims, at, &x, &t, &w.unwrap_or([1.0; 3]), ignored, smoothing);
                // A sum of at most 48 terms in f32.
                assert!((found - want).abs() < 1e-5 * want, "{loss} of {dims:?}: {found}, not {want}");
            }
        }
    }
}

#[test]
fn losses_of_pairs_are_what_their_formulas_say() {
    let x = scores(12);
    let t: Vec<f32> = (0..12).map(|i| ((i * 7) % 12) as f32 / 11.0).collect();
    let softplus = |x: f64| x.exp().ln_1p();
    let cross = |p: f64, t: f64| t * softplus(-p) + (1.0 - t) * softplus(p);
    for loss in ["mse", "l1", "bce-with-logits"] {
        let formula = |p: f64, t: f64| match loss {
            "mse" => (p - t) * (p - t),
            "l1" => (p - t).abs(),
            _ => cross(p, t),
        };
        let found = first_loss(loss, &[3, 4], &[("x", tensor(&[3, 4], &x)), ("target", tensor(&[3, 4], &t))]);
        let want = x.iter().zip(&t).map(|(&p, &t)| formula(p.into(), t.into())).sum::<f64>() / 12.0;
        assert!((found - want).abs() < 1e-5 * want, "{loss}: {found}, not {want}");
    }
}
