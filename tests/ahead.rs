//! Steps of a training on a device, begun before the results of earlier steps are there.

#![cfg(feature = "run")]
#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

#[path = "../runtime/tests/reference/mod.rs"]
mod reference;

use ampc::Model;
use ampc::execute::Trainer;
use ampc::execute::training::{Dataset, StepRecord, Symptom, Training, TrainingOptions};
use ampc::ir::text::{NoData, parse};
use ampc::passes::step::Update;
use ampc::runtime::{Cpu, HostTensor, Runtime};
use ampc::train::{TrainOptions, train_step};
use reference::Reference;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

const MODEL: &str = "\
module ir=10
opset ai.onnx=21

graph @main {
  input %x : f32[N, 6]
  const %w : f32[6, 8] = random(1)
  const %v : f32[8, 4] = random(2)
  %h = MatMul(%x, %w) : f32[N, 8]
  %r = Relu(%h) : f32[N, 8]
  %y = MatMul(%r, %v) : f32[N, 4]
  output %y
}
";

const SAMPLES: u16 = 30;

/// A training of 24 steps on batches of 8 samples, and of 6 at the end of an epoch. Samples `bad` have infinities.
fn training(runtime: &Runtime, bad: Range<u16>, scaler: &str) -> Training {
    training_with(runtime, bad, scaler, |i| i64::from(i % 4))
}

/// A training with a label for each sample.
fn training_with(runtime: &Runtime, bad: Range<u16>, scaler: &str, label: impl Fn(u16) -> i64) -> Training {
    let options = TrainOptions {
        loss: "cross-entropy".parse().unwrap(),
        update: Update { scaler: scaler.parse().unwrap(), ..Update::default() },
        ..TrainOptions::default()
    };
    let step = train_step(Model::from(parse(MODEL, &NoData).unwrap()), &options).unwrap();
    let trainer = Trainer::new(step.model, &step.state, runtime).unwrap();
    let element = |i: u16| match i {
        i if bad.contains(&(i / 6)) => f32::INFINITY,
        i => f32::from(i * 7 % 11) / 5.0 - 1.0,
    };
    let x: Vec<f32> = (0..SAMPLES * 6).map(element).collect();
    let labels: Vec<i64> = (0..SAMPLES).map(label).collect();
    let rows = u64::from(SAMPLES);
    let tensors = vec![
        ("x".to_owned(), HostTensor::from_slice(&[rows, 6], &x).unwrap()),
        ("target".to_owned(), HostTensor::from_slice(&[rows], &labels).unwrap()),
    ];
    let data = Dataset::of_tensors(tensors, &trainer).unwrap();
    let schedule = "cosine:lr=1e-2".parse().unwrap();
    let options = TrainingOptions {
        steps: 24,
        batch: Some(8),
        schedule,
        seed: 5,
        max_skipped: 4,
        ..TrainingOptions::default()
    };
    Training::new(trainer, data, options).unwrap()
}

fn saved(training: &mut Training, name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("ahead");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    training.save(&path, true).unwrap();
    std::fs::read(path).unwrap()
}

/// The records of a training, and the checkpoint after step 10 and after the last.
fn whole(training: &mut Training, name: &str, ahead: u64) -> (Vec<StepRecord>, [Vec<u8>; 2]) {
    let mut records = Vec::new();
    let mut middle = Vec::new();
    loop {
        let last = if records.len() < 10 { 10 } else { u64::MAX };
        let Some(record) = training.step_ahead(ahead, last).unwrap() else { break };
        records.push(record);
        if records.len() == 10 {
            middle = saved(training, name);
        }
    }
    (records, [middle, saved(training, name)])
}

const SCALER: &str = "ampc:init=8192,interval=3";

/// Records and checkpoints are those of steps that are taken one by one, bit for bit.
#[test]
fn steps_ahead_are_steps_one_by_one() {
    let (want, states) = whole(&mut training(&Cpu::new(1).into(), 0..0, SCALER), "cpu", 0);
    assert_eq!(want.len(), 24);
    assert!(want.iter().any(|record| record.result.skipped), "no step was skipped");
    for seed in 0..4 {
        for ahead in [0, 1, 3] {
            let runtime = Runtime::new(Arc::new(Reference::plain(seed)));
            let mut training = training(&runtime, 0..0, SCALER);
            let (records, got) = whole(&mut training, &format!("{seed}-{ahead}"), ahead);
            assert_eq!(records, want, "seed {seed}, {ahead} ahead");
            assert!(got == states, "seed {seed}, {ahead} ahead: the checkpoints differ");
        }
    }
}

/// A checkpoint that is saved while steps are in flight has the state after the last of them, and says so.
#[test]
fn a_checkpoint_in_flight_is_that_of_its_step() {
    let mut one_by_one = training(&Cpu::new(1).into(), 0..0, SCALER);
    let mut ahead = training(&Runtime::new(Arc::new(Reference::plain(1))), 0..0, SCALER);
    for number in 1..=5 {
        assert_eq!(ahead.step_ahead(3, u64::MAX).unwrap().unwrap().number, number);
    }
    let got = saved(&mut ahead, "in-flight");
    let steps = ahead.position().step;
    assert_eq!(steps, 8);
    for _ in 0..steps {
        one_by_one.step().unwrap();
    }
    assert!(got == saved(&mut one_by_one, "one-by-one"));
    // The records of all steps are there, in order.
    let rest: Vec<u64> =
        std::iter::from_fn(|| ahead.step_ahead(3, u64::MAX).unwrap()).map(|record| record.number).collect();
    assert_eq!(rest, (6..=24).collect::<Vec<u64>>());
}

/// Steps that are skipped one after the other end the training, with the first node at fault, and so does a loss that is a
/// NaN.
#[test]
fn a_divergence_shows_late() {
    for (scaler, bad) in [(SCALER, 0..SAMPLES), ("none", 3..4)] {
        let symptom = |runtime: &Runtime, ahead: u64| {
            let mut training = training(runtime, bad.clone(), scaler);
            let mut records = 0;
            let error = loop {
                match training.step_ahead(ahead, u64::MAX) {
                    Ok(Some(_)) => records += 1,
                    Ok(None) => panic!("{scaler}: the training ends"),
                    Err(error) => break error,
                }
            };
            let divergence = training.divergence().unwrap().clone();
            assert!(error.to_string().contains("diverged"), "{error}");
            (records, divergence)
        };
        let (_, want) = symptom(&Cpu::new(1).into(), 0);
        for seed in 0..3 {
            let (records, got) = symptom(&Runtime::new(Arc::new(Reference::plain(seed))), 3);
            let step = |symptom: &Symptom| match symptom {
                Symptom::Skipped { to, .. } => *to,
                Symptom::Loss { step } | Symptom::Weight { step, .. } => *step,
            };
            let (found, first) = (step(&got.symptom), step(&want.symptom));
            assert!((first..=first + 1).contains(&found), "{scaler}: {got} and {want}");
            assert!(records <= found + 4, "{scaler}: {records} steps");
            assert!(got.cause.is_some(), "{scaler}: {got}");
        }
    }
}

/// A step that fails tells its own error, also if a step with a smaller batch could not begin behind it.
#[test]
fn a_step_that_fails_tells_why() {
    for wrong in 0..SAMPLES {
        let label = |i: u16| if i == wrong { 9 } else { i64::from(i % 4) };
        let runtime = Runtime::new(Arc::new(Reference::plain(u64::from(wrong % 4))));
        let mut training = training_with(&runtime, 0..0, SCALER, label);
        let error = loop {
            match training.step_ahead(3, u64::MAX) {
                Ok(record) => assert!(record.is_some(), "sample {wrong}: no step fails"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("found 9"), "sample {wrong}: {error}");
    }
}
