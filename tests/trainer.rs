//! Training with a state that stays in the runtime.

#![cfg(feature = "run")]
#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

use ampc::Model;
use ampc::execute::Trainer;
use ampc::ir::op::OpKind;
use ampc::ir::text::{NoData, parse};
use ampc::ir::{Node, TensorData};
use ampc::passes::step::Update;
use ampc::runtime::session::NodeObserver;
use ampc::runtime::{Cpu, DataRef, HostTensor, Limits, Runtime};
use ampc::train::{State, TrainOptions, TrainStep, train_step};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const MODEL: &str = "module ir=10\nopset ai.onnx=21\n\ngraph @main {\n  input %x : f32[N, 6]\n  \
                     const %w : f32[6, 16] = random(1)\n  const %b : f32[16] = random(2)\n  \
                     const %v : f32[16, 4] = random(3)\n  %h = MatMul(%x, %w) : f32[N, 16] @first\n  \
                     %a = Add(%h, %b) : f32[N, 16] @bias\n  %r = Relu(%a) : f32[N, 16] @relu\n  \
                     %y = MatMul(%r, %v) : f32[N, 4] @last\n  output %y\n}\n";

fn step() -> TrainStep {
    let options = TrainOptions {
        loss: "cross-entropy".parse().unwrap(),
        update: Update {
            scaler: "ampc:init=256,interval=3".parse().unwrap(),
            clip_norm: Some(1.0),
            ..Update::default()
        },
        ..TrainOptions::default()
    };
    let model = Model::from(parse(MODEL, &NoData).unwrap());
    train_step(model, &options).unwrap_or_else(|error| panic!("{error}"))
}

fn trainer(threads: usize) -> Trainer {
    let step = step();
    Trainer::new(step.model, &step.state, &Runtime::from(Cpu::new(threads))).unwrap()
}

/// Batch number `i`, of 8 rows or, every third time, of 5.
fn batch(i: u16) -> [(&'static str, HostTensor); 3] {
    let rows = if i % 3 == 2 { 5 } else { 8 };
    let x: Vec<f32> = (0..rows * 6).map(|j| f32::from((j * 7 + i * 13) % 11) / 5.0 - 1.0).collect();
    let labels: Vec<i64> = (0..rows).map(|j| i64::from((j + i) % 4)).collect();
    let rows = u64::from(rows);
    [
        ("x", HostTensor::from_slice(&[rows, 6], &x).unwrap()),
        ("target", HostTensor::from_slice(&[rows], &labels).unwrap()),
        ("lr", HostTensor::from_slice(&[], &[1e-2f32]).unwrap()),
    ]
}

fn run(trainer: &mut Trainer, i: u16) -> ampc::execute::StepResult {
    let batch = batch(i);
    let given: Vec<(&str, &HostTensor)> = batch.iter().map(|(name, tensor)| (*name, tensor)).collect();
    trainer.step(&given).unwrap_or_else(|error| panic!("{error}"))
}

/// The state as files have it.
fn state(trainer: &mut Trainer) -> State {
    let data = |tensor: &HostTensor| {
        TensorData::from_bytes(tensor.dtype(), tensor.dims(), tensor.bytes().unwrap().to_vec()).unwrap()
    };
    trainer.state().unwrap().into_iter().map(|(name, tensor)| (name, Arc::new(data(&tensor)))).collect()
}

fn bytes(trainer: &mut Trainer) -> Vec<(String, Vec<u8>)> {
    let tensors = trainer.state().unwrap().into_iter();
    tensors.map(|(name, tensor)| (name, tensor.bytes().unwrap().to_vec())).collect()
}

#[test]
fn what_is_stopped_goes_on_bit_for_bit_with_any_number_of_threads() {
    let mut whole = trainer(1);
    let losses: Vec<f64> = (0..12).map(|i| run(&mut whole, i).loss.unwrap()).collect();
    assert!(losses[9] < losses[0] && losses[10] < losses[1], "{losses:?}");
    let mut first = trainer(2);
    (0..5).for_each(|i| assert_eq!(run(&mut first, i).loss, Some(losses[usize::from(i)])));
    let mut second = Trainer::new(step().model, &state(&mut first), &Runtime::from(Cpu::new(2))).unwrap();
    (5..12).for_each(|i| assert_eq!(run(&mut second, i).loss, Some(losses[usize::from(i)])));
    assert_eq!(bytes(&mut second), bytes(&mut whole));
    // Another state takes the place of the one that is there.
    second.set_state(&state(&mut first)).unwrap();
    assert_eq!(bytes(&mut second), bytes(&mut first));
    (5..12).for_each(|i| assert_eq!(run(&mut second, i).loss, Some(losses[usize::from(i)])));
}

#[test]
fn a_step_says_that_it_was_skipped() {
    let mut trainer = trainer(1);
    assert_eq!(run(&mut trainer, 0).loss_scale, Some(256.0));
    let before = bytes(&mut trainer);
    let mut given = batch(1);
    given[0].1 = HostTensor::from_slice(&[8, 6], &[f32::INFINITY; 48]).unwrap();
    let given: Vec<(&str, &HostTensor)> = given.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let stepped = trainer.step(&given).unwrap();
    assert!(stepped.skipped && stepped.loss_scale == Some(128.0), "{stepped:?}");
    for (before, after) in before.iter().zip(bytes(&mut trainer)) {
        assert!(*before == after || ["loss_scale", "good_steps"].contains(&after.0.as_str()), "{}", after.0);
    }
}

/// Stops a run as soon as an optimizer has written a weight.
struct StopsAtUpdate<'a> {
    updates: Vec<Node>,
    stop: &'a AtomicBool,
}

impl NodeObserver for StopsAtUpdate<'_> {
    fn value(&mut self, node: Node, _: usize, _: DataRef<'_>) {
        self.stop.fetch_or(self.updates.contains(&node), Ordering::Relaxed);
    }
}

/// Without a loss scale and clipping, weights are updated as soon as their gradient is there: a run that is stopped then leaves
/// some that are new and some that are old, with which nothing goes on.
#[test]
fn a_state_of_which_some_was_updated_is_not_used() {
    let stop = Arc::new(AtomicBool::new(false));
    let options = TrainOptions { loss: "cross-entropy".parse().unwrap(), ..TrainOptions::default() };
    let step = train_step(Model::from(parse(MODEL, &NoData).unwrap()), &options).unwrap();
    let cpu =
        Runtime { limits: Limits { stop: Some(stop.clone()), ..Limits::default() }, ..Runtime::default() };
    let mut trainer = Trainer::new(step.model, &step.state, &cpu).unwrap();
    run(&mut trainer, 0);
    let (before, kept) = (state(&mut trainer), bytes(&mut trainer));
    let module = trainer.module();
    let is_update = |node: &Node| module.node(*node).schema().is_some_and(|s| s.kind == OpKind::AdamW);
    let updates: Vec<Node> = module.nodes(module.main()).filter(is_update).collect();
    assert!(updates.len() > 1);
    let batch = batch(1);
    let given: Vec<(&str, &HostTensor)> = batch.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let mut observer = StopsAtUpdate { updates, stop: &stop };
    let stopped = trainer.step_observed(&given, Some(&mut observer), |_, _| {}).unwrap_err().to_string();
    assert!(stopped.contains("stopped"), "{stopped}");
    assert!(trainer.has_torn_state());
    stop.store(false, Ordering::Relaxed);
    for error in [trainer.state().unwrap_err(), trainer.step(&given).unwrap_err()] {
        assert!(error.to_string().contains("updated only some of the states"), "{error}");
    }
    trainer.set_state(&before).unwrap();
    assert!(!trainer.has_torn_state() && bytes(&mut trainer) == kept);
    run(&mut trainer, 1);
    // A run that is stopped before loses nothing.
    let before = bytes(&mut trainer);
    stop.store(true, Ordering::Relaxed);
    trainer.step(&given).unwrap_err();
    assert!(!trainer.has_torn_state() && bytes(&mut trainer) == before);
}

/// A state beyond the limit is refused as such, not as if there were no memory.
#[test]
fn a_state_beyond_the_limit_says_the_limit() {
    let step = step();
    let error = Trainer::new(
        step.model,
        &step.state,
        &Runtime { limits: Limits { max_bytes: 1000, ..Limits::default() }, ..Runtime::default() },
    )
    .unwrap_err();
    assert!(error.to_string().contains("at most 1000 bytes, found"), "{error}");
}

#[test]
fn what_does_not_fit_is_said_and_nothing_is_lost() {
    let mut trainer = trainer(1);
    run(&mut trainer, 0);
    let before = bytes(&mut trainer);
    let [x, _, lr] = batch(1);
    let mut refused = |batch: &[(&str, &HostTensor)], expected: &str| {
        let error = trainer.step(batch).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    refused(&[("x", &x.1), ("lr", &lr.1)], "the batch has no `target`");
    refused(&[("x", &x.1), ("w", &x.1)], "the step takes x, target, lr in a batch, found `w`");
    let labels = HostTensor::from_slice(&[8], &[7i64; 8]).unwrap();
    refused(&[("x", &x.1), ("target", &labels), ("lr", &lr.1)], "7");
    let few = HostTensor::from_slice(&[3], &[1i64; 3]).unwrap();
    refused(&[("x", &x.1), ("target", &few), ("lr", &lr.1)], "3");
    let mut other = state(&mut trainer);
    other.retain(|(name, _)| name != "m.b");
    other[0].1 = Arc::new(TensorData::from_f32(&[2], &[1.0, 2.0]).unwrap());
    other.push(("nobody".into(), other[0].1.clone()));
    let error = trainer.set_state(&other).unwrap_err().to_string();
    for name in ["m.b", "nobody", &other[0].0] {
        assert!(error.contains(name), "{error}");
    }
    assert_eq!(bytes(&mut trainer), before);
    assert_eq!(trainer.batch_inputs().collect::<Vec<_>>(), ["x", "target", "lr"]);
    run(&mut trainer, 1);
}

/// A step that is written and read again is the same step, whatever the format: the states are states of its graph, and
/// training gives the same bytes.
#[test]
fn a_step_of_any_format_is_the_same_step() {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("formats");
    std::fs::create_dir_all(&folder).unwrap();
    let TrainStep { model, state: begun, .. } = step();
    let names = |model: &Model| -> Vec<(String, String)> {
        let name = |value| ampc::ir::verify::name_of(&model.module, value);
        let states = &model.module.graph(model.module.main()).states;
        states.iter().map(|&(input, next)| (name(input), name(next))).collect()
    };
    let want = names(&model);
    assert!(want.len() > 4, "{want:?}");
    let [onnx, text, json] = ["step.onnx", "step.ir", "step.json"].map(|name| folder.join(name));
    ampc::save(&model, &onnx, &ampc::SaveOptions { force: true, ..Default::default() }).unwrap();
    ampc::text_files::save(&model, &text, true).unwrap();
    ampc::json::save(&model, &json, true).unwrap();
    let trained = |model: Model| {
        let mut trainer = Trainer::new(model, &begun, &Cpu::new(1).into()).unwrap();
        (0..6).for_each(|i| _ = run(&mut trainer, i));
        let tensors = trainer.state().unwrap().into_iter();
        tensors.map(|(name, tensor)| (name, tensor.bytes().unwrap().to_vec())).collect::<Vec<_>>()
    };
    let states = trained(model);
    for path in [&onnx, &text, &json] {
        let read = ampc::load(path).unwrap();
        assert_eq!(names(&read), want, "{}", path.display());
        assert!(trained(read) == states, "{}: another training", path.display());
    }
}
