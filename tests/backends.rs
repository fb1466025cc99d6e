//! The same verdicts on the CPU and on the reference backend, which has a memory of its own, runs its work late and in
//! another order, and poisons memory that nothing has written.
//!
//! `AMPC_CONFORMANCE` names the folder of ONNX's backend tests that `tests/judge/conformance.py` writes, and `AMPC_CORPUS` a
//! larger corpus; without them only the models of the project are run.

#![cfg(feature = "run")]
#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

#[path = "common/corpus.rs"]
mod corpus;
#[allow(dead_code, reason = "models are made by other tests")]
#[path = "common/random_graphs.rs"]
mod random_graphs;
#[path = "../runtime/tests/reference/mod.rs"]
mod reference;

use ampc::execute::{
    Inputs, StepResult, StoredTolerance, Trainer, memory_needs, prepare, read_test_data, run, verify_stored,
};
use ampc::ir::Module;
use ampc::ir::text::{NoData, parse};
use ampc::passes::cost::BoundInputs;
use ampc::passes::policy::Policy;
use ampc::passes::step::Update;
use ampc::runtime::npz::{Archive, plain_name};
use ampc::runtime::{Cpu, Data, HostTensor, Runtime};
use ampc::train::{TrainOptions, TrainStep, train_step};
use ampc::{Error, Model, RewriteOptions};
use corpus::{files, models};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use random_graphs::{Graph, text_of};
use reference::Reference;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fs};

const MOST_BYTES: u64 = 1 << 30;

/// The most bytes of the arena and the constants of a model that is run: the reference backend computes in f64 with one
/// thread, and marks every byte that is written.
const MOST_MEMORY: u64 = 16 << 20;

/// The verdict on a model with stored data.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Passes,
    Differs,
    /// The kind of the error.
    Fails(&'static str),
}

fn stored(case: &Path, runtime: &Runtime) -> Verdict {
    let Ok(mut model) = ampc::load(case.join("model.onnx")) else { return Verdict::Fails("load") };
    let mut session = match prepare(&mut model.module, runtime) {
        Ok(session) => session,
        Err(error) => return failed(&error),
    };
    let Ok(data) = read_test_data(&case.join("test_data_set_0"), &model.module, MOST_BYTES) else {
        return Verdict::Fails("data");
    };
    match verify_stored(&model.module, &mut session, &data, &StoredTolerance::default()) {
        Ok(outputs) if outputs.iter().all(|output| output.agreement.passed()) => Verdict::Passes,
        Ok(_) => Verdict::Differs,
        Err(error) => failed(&error),
    }
}

fn failed(error: &Error) -> Verdict {
    Verdict::Fails(match error {
        Error::Unsupported(_) => "unsupported",
        Error::Run(_) => "run",
        Error::Usage(_) => "usage",
        Error::Invalid(_) => "invalid",
        _ => "other",
    })
}

fn runtimes() -> [Runtime; 4] {
    let reference = |seed| Runtime::new(Arc::new(Reference::new(seed)));
    [Cpu::new(1).into(), reference(0), reference(1), reference(2)]
}

/// A third of ONNX's backend tests have the same verdict on both backends.
#[test]
fn conformance_on_both_backends() {
    let Some(folder) = env::var_os("AMPC_CONFORMANCE").map(PathBuf::from) else {
        println!("skipped: AMPC_CONFORMANCE names no folder of ONNX's backend tests");
        return;
    };
    let cases: Vec<PathBuf> = models(&folder).iter().filter_map(|m| m.parent().map(Path::to_owned)).collect();
    assert!(cases.len() > 1000, "{} cases in {}", cases.len(), folder.display());
    let (mut differ, mut counts) = (Vec::new(), BTreeMap::new());
    // The cases of an operator follow each other, and differ in their attributes.
    for (at, case) in cases.iter().step_by(3).enumerate() {
        let [cpu, others @ ..] = runtimes();
        let want = stored(case, &cpu);
        // A seed for each case, and for a tenth of them all.
        let seeds = if at % 10 == 0 { 0..3 } else { at % 3..at % 3 + 1 };
        for seed in seeds {
            let got = stored(case, &others[seed]);
            if got != want {
                differ.push(format!("{}: {want:?} on the CPU, {got:?} with seed {seed}", case.display()));
            }
        }
        *counts.entry(format!("{want:?}")).or_insert(0) += 1;
    }
    println!("{counts:?}");
    assert!(differ.is_empty(), "{} cases differ:\n{}", differ.len(), differ.join("\n"));
}

/// The bytes of the outputs of a model, or the error.
fn outputs(module: &mut Module, runtime: &Runtime, inputs: &[Option<Data>]) -> Result<Vec<Vec<u8>>, String> {
    fn bytes(data: &Data, into: &mut Vec<u8>) {
        match data {
            Data::Tensor(tensor) => {
                into.extend(format!("{}{:?}", tensor.dtype(), tensor.dims()).bytes());
                into.extend(tensor.bytes().unwrap_or_default());
                into.extend(tensor.strings().unwrap_or_default().iter().flat_map(|string| string.iter()));
            }
            Data::Sequence(sequence) => sequence.items().iter().for_each(|item| bytes(item, into)),
            Data::Optional(maybe) => maybe.value.iter().for_each(|value| bytes(value, into)),
            Data::Device(_) => panic!("an output on the device"),
        }
    }
    let mut session = prepare(module, runtime).map_err(|error| error.to_string())?;
    let made = run(&mut session, inputs).map_err(|error| error.to_string())?;
    let of = |data: &Data| {
        let mut all = Vec::new();
        bytes(data, &mut all);
        all
    };
    Ok(made.iter().map(of).collect())
}

/// The reference backend with the kernels of the CPU.
fn plain(seed: u64) -> Runtime {
    Runtime::new(Arc::new(Reference::plain(seed)))
}

/// With the same kernels, random graphs have the same bytes on both backends: in any order of the work, with any groups,
/// in branches, functions and sequences.
#[test]
fn random_graphs_on_both_backends() {
    let steps = prop::collection::vec((any::<u8>(), any::<u16>(), any::<u16>()), 1..24);
    let graphs = (steps, prop::collection::vec(any::<u16>(), 1..4));
    let config = ProptestConfig {
        cases: 200,
        rng_seed: RngSeed::Fixed(7),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let ran = std::cell::Cell::new(0);
    let law = |(steps, wanted): (Vec<random_graphs::Step>, Vec<u16>)| {
        let mut module = Graph::new(&steps, &wanted).module();
        let Ok(inputs) = Inputs::random(&module, 1, &Default::default(), MOST_BYTES) else { return Ok(()) };
        let want = outputs(&mut module, &Cpu::new(1).into(), &inputs.values);
        for seed in 0..3 {
            let got = outputs(&mut module, &plain(seed), &inputs.values);
            if got.is_err() && want.is_err() {
                return Ok(());
            }
            prop_assert!(got == want, "seed {seed}: {:?}, {:?}\n{}", got.err(), want.err(), text_of(&module));
        }
        ran.set(ran.get() + 1);
        Ok(())
    };
    TestRunner::new(config).run(&graphs, law).unwrap_or_else(|error| panic!("{error}"));
    let ran = ran.get();
    assert!(ran > 50, "{ran} graphs ran");
}

/// The corpus of the project and, if `AMPC_CORPUS` names one, a larger corpus.
fn corpora() -> Vec<PathBuf> {
    let larger = env::var_os("AMPC_CORPUS").map(PathBuf::from);
    [PathBuf::from("testdata/corpus")].into_iter().chain(larger).collect()
}

/// Models on random inputs have the same bytes on both backends.
#[test]
fn models_on_both_backends() {
    let sets = ["small", "tricky", "adversarial", "adversarial2"];
    let folders: Vec<PathBuf> =
        corpora().iter().flat_map(|corpus| sets.map(|name| corpus.join(name))).collect();
    let (mut problems, mut ran, mut large) = (Vec::new(), 0, 0);
    for path in folders.iter().filter(|folder| folder.is_dir()).flat_map(|folder| models(folder)) {
        let Ok(mut model) = ampc::load(&path) else { continue };
        let Ok(inputs) = Inputs::random(&model.module, 1, &Default::default(), MOST_BYTES) else { continue };
        let types = inputs.values.iter().map(|value| value.as_ref().map(|value| value.view().ty())).collect();
        let bound = BoundInputs { types, ..BoundInputs::default() };
        let needs = memory_needs(&model.module, &bound);
        if needs.is_ok_and(|needs| needs.arenas + needs.constants > MOST_MEMORY) {
            large += 1;
            continue;
        }
        let want = outputs(&mut model.module, &Cpu::new(1).into(), &inputs.values);
        let got = outputs(&mut model.module, &plain(ran % 3), &inputs.values);
        match (want, got) {
            (Ok(want), Ok(got)) => {
                if let Some(at) = got.iter().zip(&want).position(|(got, want)| got != want) {
                    problems.push(format!("{}: output {at}", path.display()));
                }
                ran += 1;
            }
            (Err(_), Err(_)) => {}
            (want, got) => problems.push(format!("{}: {:?}, {:?}", path.display(), want.err(), got.err())),
        }
    }
    println!("{ran} models ran, {large} are too large");
    assert!(ran > 0 && problems.is_empty(), "{} differ:\n{}", problems.len(), problems.join("\n"));
}

const MODEL: &str = "\
module ir=10
opset ai.onnx=21

graph @main {
  input %x : f32[N, 6]
  const %w : f32[6, 16] = random(1)
  const %b : f32[16] = random(2)
  const %v : f32[16, 4] = random(3)
  %h = MatMul(%x, %w) : f32[N, 16]
  %a = Add(%h, %b) : f32[N, 16]
  %r = Relu(%a) : f32[N, 16]
  %y = MatMul(%r, %v) : f32[N, 4]
  output %y
}
";

/// A training step in mixed precision, with a loss scale that grows until steps are skipped.
fn step() -> TrainStep {
    let options = TrainOptions {
        loss: "cross-entropy".parse().unwrap(),
        update: Update {
            scaler: "ampc:init=8192,interval=3".parse().unwrap(),
            clip_norm: Some(1.0),
            ..Update::default()
        },
        ..TrainOptions::default()
    };
    let model = Model::from(parse(MODEL, &NoData).unwrap());
    train_step(model, &options).unwrap_or_else(|error| panic!("{error}"))
}

fn trainer(runtime: &Runtime) -> Result<Trainer, Error> {
    let step = step();
    Trainer::new(step.model, &step.state, runtime)
}

/// Batch number `i`, of 8 rows or, every third time, of 5.
fn batch(i: u16) -> [(&'static str, HostTensor); 3] {
    let rows = if i % 3 == 2 { 5 } else { 8 };
    let x: Vec<f32> = (0..rows * 6).map(|j| f32::from((j * 7 + i % 100 * 13) % 11) / 5.0 - 1.0).collect();
    let labels: Vec<i64> = (0..rows).map(|j| i64::from((j + i) % 4)).collect();
    let rows = u64::from(rows);
    [
        ("x", HostTensor::from_slice(&[rows, 6], &x).unwrap()),
        ("target", HostTensor::from_slice(&[rows], &labels).unwrap()),
        ("lr", HostTensor::from_slice(&[], &[1e-2f32]).unwrap()),
    ]
}

fn take(trainer: &mut Trainer, i: u16) -> Result<StepResult, Error> {
    let batch = batch(i);
    let given: Vec<(&str, &HostTensor)> = batch.iter().map(|(name, tensor)| (*name, tensor)).collect();
    trainer.step(&given)
}

fn bytes(trainer: &mut Trainer) -> Vec<(String, Vec<u8>)> {
    let tensors = trainer.state().unwrap().into_iter();
    tensors.map(|(name, tensor)| (name, tensor.bytes().unwrap().to_vec())).collect()
}

/// The losses of 20 steps differ by at most 1e-2 of the first loss: weights are fp16 in the forward part, and the
/// backends round sums in another order. The scales, and so the skipped steps, are the same.
#[test]
fn training_on_both_backends() {
    let curve = |runtime: &Runtime| {
        let mut trainer = trainer(runtime).unwrap();
        let results: Vec<StepResult> = (0..20).map(|i| take(&mut trainer, i).unwrap()).collect();
        (results, bytes(&mut trainer))
    };
    let [cpu, others @ ..] = runtimes();
    let (want, _) = curve(&cpu);
    assert!(want.iter().any(|result| result.skipped), "no step was skipped");
    let first = want[0].loss.unwrap();
    let mut states = Vec::new();
    for other in &others {
        let (got, state) = curve(other);
        for (at, (got, want)) in got.iter().zip(&want).enumerate() {
            let apart = (got.loss.unwrap() - want.loss.unwrap()).abs();
            assert!(apart <= 1e-2 * first, "step {at}: {got:?} and {want:?}");
            assert_eq!((got.skipped, got.loss_scale), (want.skipped, want.loss_scale), "step {at}");
        }
        states.push(state);
    }
    assert!(states.iter().all(|state| *state == states[0]), "the order of the work changes the state");
}

/// With the same kernels, 20 steps of each training model of the corpus in fp16 have the same losses, scales and states on
/// both backends.
#[test]
fn training_models_on_both_backends() {
    let options = TrainOptions {
        precision: Some(RewriteOptions::of(Policy::preset("all").unwrap())),
        loss: "output:loss".parse().unwrap(),
        update: Update { scaler: "ampc:init=65536,interval=5".parse().unwrap(), ..Update::default() },
        ..TrainOptions::default()
    };
    let (mut problems, mut ran) = (Vec::new(), Vec::new());
    for path in corpora().iter().map(|corpus| corpus.join("train")).flat_map(|folder| models(&folder)) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        // Recurrent operators have no gradient.
        let made = || train_step(ampc::load(&path).unwrap(), &options);
        if made().is_err() {
            continue;
        }
        let mut archive = Archive::open(fs::File::open(path.with_file_name("oracle.npz")).unwrap()).unwrap();
        let mut batch = vec![("lr".to_owned(), HostTensor::from_slice(&[], &[1e-2f32]).unwrap())];
        for (at, entry) in archive.names().to_vec().iter().enumerate() {
            if let Some(input) = plain_name(entry).strip_prefix("in_") {
                batch.push((input.to_owned(), archive.read(at, MOST_BYTES).unwrap()));
            }
        }
        let curve = |runtime: &Runtime| -> Result<_, Error> {
            let step = made()?;
            let mut trainer = Trainer::new(step.model, &step.state, runtime)?;
            let batch: Vec<(&str, &HostTensor)> =
                batch.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
            let results: Vec<_> = (0..20).map(|_| trainer.step(&batch)).collect::<Result<_, _>>()?;
            let seen = |r: &StepResult| (r.loss.map(f64::to_bits), r.skipped, r.loss_scale.map(f64::to_bits));
            Ok((results.iter().map(seen).collect::<Vec<_>>(), bytes(&mut trainer)))
        };
        let seed = ran.len() as u64 % 3;
        match (curve(&Cpu::new(1).into()), curve(&plain(seed))) {
            (Ok(want), Ok(got)) if want == got => ran.push(name),
            (Ok((want, _)), Ok((got, _))) => {
                let at = got.iter().zip(&want).position(|(got, want)| got != want);
                problems.push(format!("{name}: step {at:?}, or the state at the end"));
            }
            (want, got) => problems.push(format!("{name}: {:?}, {:?}", want.err(), got.err())),
        }
    }
    println!("20 steps of {}: {}", ran.len(), ran.join(", "));
    assert!(!ran.is_empty() && problems.is_empty(), "{} differ:\n{}", problems.len(), problems.join("\n"));
}

/// The memory after 1,000 steps is that after 24, and none is left when the trainer is gone.
#[test]
fn no_memory_leaks_over_many_steps() {
    let backend = Reference::new(1);
    let device = backend.shared_device();
    let mut trainer = trainer(&Runtime::new(Arc::new(backend))).unwrap();
    // The inputs of two steps are in memory, and every third batch is smaller.
    (0..24).for_each(|i| _ = take(&mut trainer, i).unwrap());
    let (live, allocations) = (device.live_bytes(), device.allocations());
    (24..1002).for_each(|i| _ = take(&mut trainer, i).unwrap());
    assert_eq!(device.live_bytes(), live);
    // Batches of two sizes take turns: the arena of the larger batch stays.
    println!("{} blocks in 978 steps", device.allocations() - allocations);
    drop(trainer);
    assert_eq!(device.live_bytes(), 0);
}

/// Every call of the device that fails once, in its turn, is an error of the device, or changes nothing: a plan that cannot
/// be recorded is launched. After an error the state is what it was, or torn, and training goes on once the state is set
/// again.
#[test]
fn every_call_that_fails_loses_nothing() {
    let [cpu, ..] = runtimes();
    let mut whole = trainer(&cpu).unwrap();
    take(&mut whole, 0).unwrap();
    let mut failures = 0;
    // The seed decides about queues, groups and recordings.
    let state_of = |seed: u64| {
        let mut trainer = self::trainer(&Runtime::new(Arc::new(Reference::new(seed)))).unwrap();
        (0..3).for_each(|i| _ = take(&mut trainer, i).unwrap());
        bytes(&mut trainer)
    };
    let states: BTreeMap<u64, _> = (0..12).map(|seed| (seed, state_of(seed))).collect();
    for call in 1.. {
        let backend = Reference::new(call % 12);
        let device = backend.shared_device();
        device.fail_at(call);
        let runtime = Runtime::new(Arc::new(backend));
        let mut trainer = match trainer(&runtime) {
            Ok(trainer) => trainer,
            Err(error) => {
                assert!(is_of_device(&error), "call {call}: {error:?}");
                failures += 1;
                continue;
            }
        };
        let ran = (0..3).try_for_each(|i| take(&mut trainer, i).map(drop));
        let Err(error) = ran else {
            if device.calls() < call {
                break;
            }
            assert_eq!(bytes(&mut trainer), states[&(call % 12)], "call {call}");
            continue;
        };
        failures += 1;
        assert!(is_of_device(&error), "call {call}: {error:?}");
        let fresh = step().state;
        trainer.set_state(&fresh).unwrap_or_else(|error| panic!("call {call}: {error}"));
        (0..3).for_each(|i| _ = take(&mut trainer, i).unwrap_or_else(|error| panic!("call {call}: {error}")));
        drop((trainer, runtime));
        assert_eq!(device.live_bytes(), 0, "call {call}");
    }
    assert!(failures > 50, "{failures} calls");
}

/// True if an error is a failure of the device, which is no fault of the model.
fn is_of_device(error: &Error) -> bool {
    matches!(error, Error::NoMemory(_))
}

/// Outside of its own folder and the declaration of the crate, nothing names the CPU backend but the module that
/// chooses a backend.
#[test]
fn one_module_chooses_the_backend() {
    let names = |text: &str, words: &[&str]| {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        text.split(|c| !is_word(c)).any(|word| words.contains(&word))
    };
    let own = ["runtime/src/cpu/", "runtime/src/lib.rs", "src/device.rs"];
    let mut found = Vec::new();
    for (folder, words) in [("runtime/src", &["Cpu", "cpu", "CPU"][..]), ("src", &["Cpu"])] {
        for path in files(Path::new(folder), "rs") {
            let shown = path.display().to_string();
            if !own.iter().any(|own| shown.starts_with(own))
                && names(&fs::read_to_string(&path).unwrap(), words)
            {
                found.push(shown);
            }
        }
    }
    assert!(found.is_empty(), "{found:?}");
}
