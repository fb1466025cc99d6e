//! Training steps by the library, run by the CPU runtime.

#![cfg(feature = "run")]
#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

use ampc::Model;
use ampc::ir::text::{NoData, parse};
use ampc::ir::{DType, Module};
use ampc::passes::autodiff::CustomGradients;
use ampc::passes::policy::Policy;
use ampc::runtime::{Cpu, Data, HostTensor};
use ampc::train::{TrainOptions, TrainStep, train_step};
use ampc::{ErrorKind, RewriteOptions};
use std::collections::BTreeMap;

#[path = "train_step/custom.rs"]
mod custom;
#[path = "train_step/stable.rs"]
mod stable;

/// Options by the spelling of the command line.
fn options(loss: &str, optimizer: &str, scaler: &str, low: bool) -> TrainOptions {
    TrainOptions {
        precision: low.then(|| RewriteOptions::of(Policy::preset("all").unwrap())),
        loss: loss.parse().unwrap(),
        target: "target".into(),
        keeps_loss_fp32: true,
        optimizer: optimizer.parse().unwrap(),
        scaler: scaler.parse().unwrap(),
        clip_norm: None,
        decay: Vec::new(),
        train: Vec::new(),
        freeze: Vec::new(),
        freezes_unreached: false,
        writes_low_copies: true,
        gradients: CustomGradients::default(),
        verify_each: true,
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
        let mut executable = ampc::execute::prepare(&mut self.module, &Cpu::default()).unwrap();
        let names = ampc::execute::input_names(&self.module);
        let given = |name: &String| {
            let own = data.iter().find(|(given, _)| given == name).map(|(_, tensor)| tensor);
            own.or_else(|| self.state.get(name)).unwrap_or_else(|| panic!("no value for {name}")).clone()
        };
        let inputs: Vec<Option<Data>> = names.iter().map(|name| Some(Data::Tensor(given(name)))).collect();
        let outputs = ampc::execute::run(&mut executable, &inputs).unwrap();
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
    assert!(error.to_string().contains("a training step already"), "{error}");
}
