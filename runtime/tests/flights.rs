//! Runs that the host does not wait for, on the reference backend: in flight at the same time, recorded and replayed,
//! and on several queues.

#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

#[path = "reference/mod.rs"]
mod reference;

use ampc_ir::text::{NoData, parse};
use ampc_ir::{DType, Node, Value};
use ampc_runtime::device::{Device, Span};
use ampc_runtime::session::{ExecuteError, NodeObserver, Watch};
use ampc_runtime::{Cpu, Data, DataRef, HostTensor, Runtime, Session};
use reference::Reference;
use std::sync::Arc;

/// A state that each run adds to, in place, and an entry of a table, which not every index has.
const MODEL: &str = "\
module ir=10
opset ai.onnx=21

graph @main {
  input %x : f32[4]
  input %at : i64
  input %total : f32[4]
  state %total -> %next
  const %table : f32[3] = [5, 6, 7]
  %square = Mul(%x, %x) : f32[4]
  %root = Tanh(%x) : f32[4]
  %sum = Add(%square, %root) : f32[4]
  %next = Add(%total, %sum) : f32[4]
  %scaled = Mul(%next, %root) : f32[4]
  %entry = Gather(%table, %at) : f32
  output %scaled : f32[4]
  output %entry : f32
  output %next : f32[4]
}
";

fn input(run: u16) -> HostTensor {
    let elements: Vec<f32> = (0..4).map(|i| f32::from(run * 4 + i) / 16.0 - 0.5).collect();
    HostTensor::from_slice(&[4], &elements).unwrap()
}

fn number(n: i64) -> HostTensor {
    HostTensor::from_slice(&[], &[n]).unwrap()
}

fn session(runtime: &Runtime) -> Session {
    let mut session = runtime.prepare(&parse(MODEL, &NoData).unwrap_or_else(|e| panic!("{e}"))).unwrap();
    session
        .set_states(|_, bytes| {
            bytes.fill(0);
            Ok::<_, ampc_runtime::HostError>(())
        })
        .unwrap();
    session
}

fn bytes(data: &Data) -> Vec<u8> {
    data.tensor().unwrap().bytes().unwrap().to_vec()
}

/// The outputs of runs one by one, and the state after each.
fn one_by_one(n: u16) -> Vec<(Vec<Vec<u8>>, Vec<u8>)> {
    let mut session = session(&Runtime::from(Cpu::new(1)));
    let run = |run: u16| {
        let (x, two) = (input(run), number(2));
        let outputs =
            session.run(&[Some(DataRef::Tensor(x.view())), Some(DataRef::Tensor(two.view())), None]);
        let outputs = outputs.unwrap().iter().map(bytes).collect();
        (outputs, bytes(&session.states().unwrap()[0].1))
    };
    (0..n).map(run).collect()
}

fn begin(session: &mut Session, run: u16, at: i64) -> Result<(), ExecuteError> {
    // The inputs may change as soon as a run has begun.
    let (x, at) = (input(run), number(at));
    session.begin_run(&[Some(DataRef::Tensor(x.view())), Some(DataRef::Tensor(at.view())), None], &[0, 1])
}

/// Runs in flight compute what runs one by one compute, for any number of runs in flight, and the state is that after the
/// last run that was begun. Graphs on a device that records are replayed from the third run on.
#[test]
fn runs_in_flight_are_runs_one_by_one() {
    let want = one_by_one(12);
    for seed in 0..12 {
        for most in 1..5 {
            let backend = Reference::plain(seed);
            let device = backend.shared_device();
            let mut session = session(&Runtime::new(Arc::new(backend)));
            let mut ended = Vec::new();
            for run in 0..12 {
                begin(&mut session, run, 2).unwrap();
                if session.runs_begun() > most {
                    ended.extend(session.end_run().unwrap());
                }
                if run == 6 {
                    let (_, state) = &session.states().unwrap()[0];
                    assert_eq!(bytes(state), want[6].1, "seed {seed}, {most} in flight");
                }
            }
            while let Some(outputs) = session.end_run().unwrap() {
                ended.push(outputs);
            }
            let ended: Vec<Vec<Vec<u8>>> =
                ended.iter().map(|outputs| outputs.iter().map(bytes).collect()).collect();
            let wanted: Vec<Vec<Vec<u8>>> = want.iter().map(|(outputs, _)| outputs[..2].to_vec()).collect();
            assert_eq!(ended, wanted, "seed {seed}, {most} in flight");
            let replayed = if device.can_record() { 10 } else { 0 };
            assert_eq!(device.replays(), replayed, "seed {seed}");
            let allocations = device.allocations();
            begin(&mut session, 1, 2).unwrap();
            session.end_run().unwrap();
            assert_eq!(device.allocations(), allocations, "memory is taken once");
            drop(session);
            assert_eq!(device.live_bytes(), 0, "seed {seed}: memory is left");
        }
    }
}

/// A run that fails late ends with its node, and the runs after it with it. The state is torn until it is set.
#[test]
fn a_failure_in_flight_has_its_node() {
    // A device of seed 4 does work early, so that a run may not begin.
    for seed in (0..8).filter(|&seed| seed != 4) {
        let mut session = session(&Runtime::new(Arc::new(Reference::plain(seed))));
        for run in 0..6 {
            begin(&mut session, run, if run == 3 { 7 } else { 2 })
                .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
        for _ in 0..3 {
            session.end_run().unwrap();
        }
        let error = session.end_run().unwrap_err();
        let ExecuteError::Node { node, .. } = &error else { panic!("seed {seed}: {error}") };
        assert_eq!(session.module().op_name(*node).1, "Gather");
        assert!(session.end_run().unwrap().is_none());
        assert!(session.has_torn_states());
        assert!(matches!(begin(&mut session, 0, 2), Err(ExecuteError::TornStates)), "seed {seed}");
        session
            .set_states(|_, bytes| {
                bytes.fill(0);
                Ok::<_, ampc_runtime::HostError>(())
            })
            .unwrap();
        begin(&mut session, 0, 2).unwrap();
        let outputs = session.end_run().unwrap().unwrap();
        assert_eq!(outputs.iter().map(bytes).collect::<Vec<_>>(), one_by_one(1)[0].0[..2]);
    }
}

/// A run that fails late is not taken for a run that succeeded because the next run cannot begin.
#[test]
fn a_run_that_cannot_begin_hides_no_failure() {
    let mut refused = 0;
    for (seed, call) in (0..4).flat_map(|seed| (1..16).map(move |call| (seed, call))) {
        let backend = Reference::plain(seed);
        let device = backend.shared_device();
        let mut session = session(&Runtime::new(Arc::new(backend)));
        begin(&mut session, 0, 2).unwrap();
        begin(&mut session, 1, 7).unwrap();
        device.fail_at(device.calls() + call);
        refused += u32::from(begin(&mut session, 2, 2).is_err());
        device.fail_at(0);
        let is_told = session.end_run().is_err() || session.end_run().is_err();
        assert!(is_told, "seed {seed}, call {call}: the failure is lost");
    }
    assert!(refused > 10, "{refused} runs could not begin");
}

/// On the host, a run that was begun has ended.
#[test]
fn runs_on_the_host_are_never_in_flight() {
    let mut session = session(&Runtime::from(Cpu::new(1)));
    begin(&mut session, 0, 2).unwrap();
    assert!(begin(&mut session, 1, 7).is_err());
    assert_eq!(session.runs_begun(), 1);
    let outputs = session.end_run().unwrap().unwrap();
    assert_eq!(outputs.iter().map(bytes).collect::<Vec<_>>(), one_by_one(1)[0].0[..2]);
}

/// Sees the values that it asks for.
struct Watcher {
    values: Vec<Value>,
    seen: Vec<(Node, usize, Vec<u8>)>,
}

impl NodeObserver for Watcher {
    fn watch(&self) -> Watch {
        Watch::values(self.values.iter().copied())
    }
    fn value(&mut self, node: Node, slot: usize, data: DataRef<'_>) {
        self.seen.push((node, slot, data.tensor().unwrap().bytes().unwrap().to_vec()));
    }
}

/// An observer sees the values that it watches and no others, also where the backend joins nodes.
#[test]
fn values_are_watched_by_name() {
    let module = parse(MODEL, &NoData).unwrap();
    let named = |name: &str| {
        let results = module.nodes(module.main()).flat_map(|node| module.node(node).results().to_vec());
        let mut values = results.flatten();
        values.find(|&value| module.value_name(value).is_some_and(|s| module.text(s) == name)).unwrap()
    };
    let values = vec![named("square"), named("next")];
    let (x, two, zeros) = (input(3), number(2), HostTensor::zeros(DType::F32, &[4]).unwrap());
    let inputs = [&x, &two, &zeros].map(|tensor| Some(DataRef::Tensor(tensor.view())));
    let watched = |runtime: Runtime| {
        let mut watcher = Watcher { values: values.clone(), seen: Vec::new() };
        let mut session = runtime.prepare(&module).unwrap();
        session.run(&inputs).unwrap();
        session.run_observed(&inputs, Some(&mut watcher)).unwrap();
        watcher.seen.sort();
        watcher.seen
    };
    let want = watched(Runtime::from(Cpu::new(1)));
    assert_eq!(want.len(), 2);
    for seed in 0..12 {
        assert_eq!(watched(Runtime::new(Arc::new(Reference::plain(seed)))), want, "seed {seed}");
    }
}

/// Results of one group that nothing reads after it have memory of their own, although the operand of the group ends there.
#[test]
fn watched_results_of_a_group_have_their_own_memory() {
    let text = "module ir=10\nopset ai.onnx=20\n\ngraph @main {\n  input %x : f32[4, 4]\n  const %c : f32 = 0.5\n  \
                %h = Softmax(%x) : f32[4, 4]\n  %a = Tanh(%h) : f32[4, 4]\n  %b = Mul(%a, %c) : f32[4, 4]\n  \
                %d = Add(%b, %c) : f32[4, 4]\n  %e = Mul(%d, %c) : f32[4, 4]\n  %y = Softmax(%e) : f32[4, 4]\n  \
                output %y : f32[4, 4]\n}\n";
    let module = parse(text, &NoData).unwrap();
    let values: Vec<Value> =
        module.nodes(module.main()).filter_map(|node| module.node(node).result(0)).collect();
    let numbers: Vec<f32> = (0u8..16).map(|i| f32::from(i) / 8.0 - 1.0).collect();
    let x = HostTensor::from_slice(&[4, 4], &numbers).unwrap();
    let inputs = [Some(DataRef::Tensor(x.view()))];
    let seen = |values: &[Value]| {
        let mut watcher = Watcher { values: values.to_vec(), seen: Vec::new() };
        let mut session = Runtime::from(Cpu::new(1)).prepare(&module).unwrap();
        session.run_observed(&inputs, Some(&mut watcher)).unwrap();
        watcher.seen
    };
    // A value that is watched alone is that of another group.
    let alone: Vec<_> = values.iter().flat_map(|&value| seen(&[value])).collect();
    assert_eq!((seen(&values), alone.len()), (alone.clone(), 6));
}

/// The reference backend finds work of two queues without an order.
#[test]
fn a_race_is_found() {
    let device = Reference::new(1).shared_device();
    let memory = device.allocate(8).unwrap();
    let span = Span { memory: &memory, offset: 0, len: 8 };
    let (mut first, mut second) = (device.queue().unwrap(), device.queue().unwrap());
    first.upload(&[1; 8], span).unwrap();
    let event = first.signal().unwrap();
    let mut bytes = [0; 8];
    second.wait(&event).unwrap();
    second.download(span, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 8]);
    first.upload(&[2; 8], span).unwrap();
    assert!(second.download(span, &mut bytes).is_err());
}
