//! Failures of a device: a failure is told by the run whose work failed, whichever call meets it first, and no run that
//! failed is taken for a run that succeeded.

#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

#[path = "reference/mod.rs"]
mod reference;

use ampc_ir::Module;
use ampc_ir::text::{NoData, parse};
use ampc_runtime::backend::KernelError;
use ampc_runtime::device::{Device, DeviceError};
use ampc_runtime::session::{Executable, ExecuteError};
use ampc_runtime::{Cpu, Data, DataRef, HostTensor, Runtime, Session};
use reference::Reference;
use reference::device::Fault;
use std::sync::Arc;

/// A state that each run adds to in place, a value whose dims change, a constant that is folded, and a function that fails
/// for an index that the table lacks.
const MODEL: &str = "\
module ir=10
opset ai.onnx=21, my=1

graph @main {
  input %x : f32[4]
  input %at : i64
  input %list : f32[n]
  input %total : f32[4]
  state %total -> %next
  const %two : f32[1] = [2]
  %four = Mul(%two, %two) : f32[1]
  %square = Mul(%x, %x) : f32[4]
  %next = Add(%total, %square) : f32[4]
  %entry = my::Look(%at) : f32 @look
  %longer = Mul(%list, %four) : f32[n]
  output %next : f32[4]
  output %entry : f32
  output %longer : f32[n]
}

function my::Look {
  opset ai.onnx=21
  input %at : ?
  const %table : f32[3] = [5, 6, 7]
  %entry = Gather(%table, %at) : ? @gather
  output %entry
}
";

fn floats(n: u64, first: u16) -> HostTensor {
    let elements: Vec<f32> = (0..n).map(|i| f32::from(first) / 4.0 + i as f32 / 8.0).collect();
    HostTensor::from_slice(&[n], &elements).unwrap()
}

fn session(runtime: &Runtime) -> Session {
    let mut session = runtime.prepare(&parse(MODEL, &NoData).unwrap_or_else(|e| panic!("{e}"))).unwrap();
    reset(&mut session);
    session
}

fn reset(session: &mut Session) {
    session
        .set_states(|_, bytes| {
            bytes.fill(0);
            Ok::<_, ampc_runtime::HostError>(())
        })
        .unwrap();
}

fn bytes(data: &Data) -> Vec<u8> {
    data.tensor().unwrap().bytes().unwrap().to_vec()
}

/// The inputs of a run.
struct Batch {
    x: HostTensor,
    at: HostTensor,
    list: HostTensor,
}

impl Batch {
    fn of(run: u16, at: i64, n: u64) -> Batch {
        Batch { x: floats(4, run), at: HostTensor::from_slice(&[], &[at]).unwrap(), list: floats(n, run) }
    }

    fn refs(&self) -> [Option<DataRef<'_>>; 4] {
        let [x, at, list] =
            [&self.x, &self.at, &self.list].map(|tensor| Some(DataRef::Tensor(tensor.view())));
        [x, at, list, None]
    }
}

/// The outputs of a run.
type Outputs = Vec<Vec<u8>>;

/// The outputs of runs that all succeed, and the state after each.
fn wanted(lists: &[u64]) -> Vec<(Outputs, Vec<u8>)> {
    let mut session = session(&Runtime::from(Cpu::new(1)));
    let runs = lists.iter().zip(0..);
    runs.map(|(&n, run)| {
        let outputs = session.run(&Batch::of(run, 2, n).refs()).unwrap().iter().map(bytes).collect();
        (outputs, bytes(&session.states().unwrap()[0].1))
    })
    .collect()
}

/// The operation between the beginning and the end of runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Between {
    /// A run with inputs of other dims is begun.
    Rebind,
    /// A value of an earlier run is copied.
    Fetch,
    /// Another run is begun.
    Bring,
    /// The states are copied.
    States,
}

/// An error names nodes of the module that was given.
fn check_place(session: &Session, error: &ExecuteError) {
    let Some((node, calls)) = error.place() else { return };
    let module = session.module();
    let name = |node| module.node(node).name.map_or("", |name| module.text(name));
    if module.op_name(node).1 == "Gather" {
        assert_eq!(
            (name(node), calls.iter().map(|&call| name(call)).collect::<Vec<_>>()),
            ("gather", vec!["look"])
        );
    }
}

/// One call of the device fails, or the work of one call, or an index is wrong, or two of these; with outputs on the way or
/// without, and with another operation in between. Every run that succeeds has the right outputs, the failure of a run is
/// told by the run, states that are not torn are those after the last run that succeeded, and the session can be used again.
#[test]
fn every_failure_is_told_by_its_run() {
    let faults = [Fault::Lost, Fault::Refused, Fault::NoMemory, Fault::Late];
    let between = [Between::Rebind, Between::Fetch, Between::Bring, Between::States];
    let mut told = [0; 4];
    for between in between {
        let want = wanted(&[3, 3, 3, if between == Between::Rebind { 5 } else { 3 }]);
        let calls = (0..6).flat_map(|seed| (0..30).map(move |call| (seed, call)));
        for (seed, call) in calls.filter(|(seed, call)| (seed + call) % 5 == 0) {
            for (at, fault) in faults.into_iter().enumerate() {
                for (is_wrong, wants) in [(false, false), (false, true), (true, false), (true, true)] {
                    let about =
                        format!("{between:?}, seed {seed}, call {call}, {fault:?}, {is_wrong}, {wants}");
                    if call == 0 && at > 0 {
                        continue;
                    }
                    told[at] +=
                        u32::from(one_case(between, &want, (seed, call), fault, is_wrong, wants, &about));
                }
            }
        }
    }
    assert!(told.iter().all(|&told| told > 20), "{told:?}");
}

/// One case. True if the fault was met.
fn one_case(
    between: Between,
    want: &[(Outputs, Vec<u8>)],
    (seed, call): (u64, u64),
    fault: Fault,
    is_wrong: bool,
    wants: bool,
    about: &str,
) -> bool {
    let outputs: &[usize] = if wants { &[0, 1, 2] } else { &[] };
    let backend = Reference::plain(seed);
    let device = backend.shared_device();
    let mut session = session(&Runtime::new(Arc::new(backend)));
    let made = session.run_in_place(&Batch::of(0, 2, 3).refs()).unwrap();
    session.begin_run(&Batch::of(1, 2, 3).refs(), outputs).unwrap_or_else(|e| panic!("{about}: {e}"));
    let first = device.calls() + call;
    device.fail_with(if call > 0 { first } else { 0 }, fault);
    let mut errors = Vec::new();
    // The number of runs that were begun after the first, and the last state that is known.
    let mut begun = vec![1];
    match session.begin_run(&Batch::of(2, if is_wrong { 7 } else { 2 }, 3).refs(), outputs) {
        Ok(()) => begun.push(2),
        Err(error) => errors.push(error),
    }
    let is_begun = begun.len() == 2;
    match between {
        Between::Fetch => match session.fetch(made[0].view()) {
            Ok(data) => assert_eq!(bytes(&data), want[0].0[0], "{about}"),
            Err(error) => {
                assert!(call > 0, "{about}: {error}");
                errors.push(error);
            }
        },
        Between::States => {
            if let Err(error) = session.states() {
                assert!(call > 0, "{about}: {error}");
                errors.push(error);
            }
        }
        Between::Rebind | Between::Bring if is_begun => {
            let n = if between == Between::Rebind { 5 } else { 3 };
            match session.begin_run(&Batch::of(3, 2, n).refs(), outputs) {
                Ok(()) => begun.push(3),
                Err(error) => {
                    // Runs in flight end before a session is bound anew.
                    let is_own = matches!(error, ExecuteError::TornStates);
                    assert!(is_own || call > 0 || between == Between::Bring, "{about}: {error}");
                    errors.push(error);
                }
            }
        }
        Between::Rebind | Between::Bring => {}
    }
    let mut state = 0;
    for run in begun {
        match session.end_run() {
            Ok(Some(found)) => {
                let found: Outputs = found.iter().map(bytes).collect();
                assert_eq!(found, if wants { want[run].0.clone() } else { Vec::new() }, "{about}: run {run}");
                assert!(!(is_wrong && run >= 2), "{about}: run {run} succeeds");
                state = run;
            }
            Ok(None) => break,
            Err(error) => {
                check_place(&session, &error);
                errors.push(error);
            }
        }
    }
    errors.iter().for_each(|error| check_place(&session, error));
    if fault == Fault::Refused {
        let is_lost = |error: &ExecuteError| matches!(error, ExecuteError::Device(DeviceError::Lost(_)));
        assert!(!errors.iter().any(is_lost), "{about}: {errors:?}");
    }
    assert!(session.end_run().unwrap().is_none(), "{about}");
    let met = call > 0 && device.calls() >= first;
    let is_late = fault == Fault::Late;
    let fails = if is_late { device.late_faults() > 0 } else { met };
    device.fail_at(0);
    assert!(!(is_wrong && is_begun && errors.is_empty()), "{about}: a failure is lost");
    // A refused recording runs its kernels one by one; constants that cannot be folded are computed in each run.
    let may_go_on = fault == Fault::Refused || is_late && between == Between::Rebind;
    assert!(!fails || may_go_on || !errors.is_empty(), "{about}: the fault is lost");
    if !session.has_torn_states() {
        assert_eq!(bytes(&session.states().unwrap()[0].1), want[state].1, "{about}: {errors:?}");
    }
    reset(&mut session);
    session.begin_run(&Batch::of(0, 2, 3).refs(), &[0, 1, 2]).unwrap_or_else(|e| panic!("{about}: {e}"));
    let again = session.end_run().unwrap_or_else(|e| panic!("{about}: {e}")).unwrap();
    assert_eq!(again.iter().map(bytes).collect::<Outputs>(), want[0].0, "{about}");
    met
}

/// The failure of a node is not taken for that of a constant of a later node: FlexAttention computes its scale.
#[test]
fn constants_that_are_computed_hide_no_failure() {
    let text = "\
module ir=10
opset ai.onnx=24, ai.onnx.preview=1

graph @main {
  input %x : f32[1, 2, 4, 8]
  input %at : i64
  const %table : f32[3] = [5, 6, 7]
  %entry = Gather(%table, %at) : f32
  %y = ai.onnx.preview::FlexAttention(%x, %x, %x) : f32[1, 2, 4, 8]
  output %y : f32[1, 2, 4, 8]
  output %entry : f32
}
";
    let module = parse(text, &NoData).unwrap_or_else(|e| panic!("{e}"));
    let x = HostTensor::zeros(ampc_ir::DType::F32, &[1, 2, 4, 8]).unwrap();
    for seed in 0..8 {
        let backend = Reference::plain(seed);
        let device = backend.shared_device();
        let mut session = Runtime::new(Arc::new(backend)).prepare(&module).unwrap();
        let mut run = |at: i64| {
            let at = HostTensor::from_slice(&[], &[at]).unwrap();
            session.run(&[&x, &at].map(|tensor| Some(DataRef::Tensor(tensor.view())))).map(|_| ())
        };
        let error = run(7).unwrap_err();
        let (node, _) = error.place().unwrap_or_else(|| panic!("seed {seed}: {error}"));
        assert_eq!(module.op_name(node).1, "Gather", "seed {seed}: {error}");
        run(2).unwrap();
        let uploaded = device.uploaded();
        run(2).unwrap();
        // The programs of the parts stay, with their constants: only the inputs are copied.
        assert!(device.uploaded() <= uploaded + 300, "seed {seed}");
        for call in 1..60 {
            for fault in [Fault::NoMemory, Fault::Refused, Fault::Lost, Fault::Late] {
                device.fail_with(device.calls() + call, fault);
                match run(2) {
                    Err(ExecuteError::Node { node, error, .. }) => {
                        assert!(["Gather", "FlexAttention"].contains(&module.op_name(node).1));
                        assert!(!matches!(error, KernelError::Unsupported(_)), "{error}");
                    }
                    Err(ExecuteError::NoMemory { node: Some(node), .. }) => {
                        assert!(["Gather", "FlexAttention"].contains(&module.op_name(node).1));
                    }
                    Err(ExecuteError::NoMemory { .. } | ExecuteError::Device(_)) | Ok(()) => {}
                    Err(error) => panic!("seed {seed}, call {call}, {fault:?}: {error:?}"),
                }
                device.fail_at(0);
            }
        }
    }
}

/// A constant that could not be copied to the device is copied again for the next session.
#[test]
fn constants_are_uploaded_when_the_copies_are_done() {
    let module = parse(MODEL, &NoData).unwrap();
    let (batch, zeros) = (Batch::of(0, 2, 3), floats(4, 0));
    let faults = [Fault::Lost, Fault::Late];
    for (seed, call, fault) in (0..6)
        .flat_map(|seed| (1..20).map(move |call| (seed, call)))
        .flat_map(|(seed, call)| faults.map(|fault| (seed, call, fault)))
    {
        let backend = Reference::plain(seed);
        let device = backend.shared_device();
        let executable = Arc::new(Executable::new(&module, &Runtime::new(Arc::new(backend))).unwrap());
        let [mut first, mut second] = [(); 2].map(|()| Session::new(executable.clone()).unwrap());
        let mut inputs = batch.refs();
        inputs[3] = Some(DataRef::Tensor(zeros.view()));
        device.fail_with(device.calls() + call, fault);
        first.bind(&inputs).ok();
        device.fail_at(0);
        second.run(&inputs).unwrap_or_else(|error| panic!("seed {seed}, call {call}, {fault:?}: {error}"));
    }
}

/// States that trade places, so that both are copied.
const TRADE: &str = "\
module ir=10
opset ai.onnx=21

graph @main {
  input %a : f32[4]
  input %b : f32[4]
  input %c : f32[4]
  state %a -> %b
  state %b -> %a
  state %c -> %d
  %d = Add(%c, %a) : f32[4]
  output %d : f32[4]
}
";

/// States that trade places, and nothing else.
const TRADE_ALONE: &str = "\
module ir=10
opset ai.onnx=21

graph @main {
  input %a : f32[4]
  input %b : f32[4]
  input %c : f32[4]
  state %a -> %b
  state %b -> %a
  state %c -> %a
  %d = Add(%c, %a) : f32[4]
  output %d : f32[4]
}
";

/// If a run fails, its states are those before the run or torn, whatever call of the device fails. While kernels are
/// recorded nothing changes.
#[test]
fn states_are_whole_or_torn() {
    for text in [TRADE, TRADE_ALONE] {
        whole_or_torn(&parse(text, &NoData).unwrap());
    }
}

fn whole_or_torn(module: &Module) {
    let first = [1, 2, 3].map(|i| floats(4, i));
    let other = [4, 5, 6].map(|i| floats(4, i));
    let states = |session: &mut Session| -> Vec<Vec<u8>> {
        session.states().unwrap().iter().map(|(_, data)| bytes(data)).collect()
    };
    let (mut whole, mut torn) = (0, 0);
    // The runs before the fault, and whether the run that fails is given states.
    for (runs, gives) in [(0, false), (1, false), (2, false), (1, true)] {
        for (seed, call) in (0..6).flat_map(|seed| (1..40).map(move |call| (seed, call))) {
            for fault in [Fault::Lost, Fault::Refused, Fault::NoMemory, Fault::Late] {
                let backend = Reference::plain(seed);
                let device = backend.shared_device();
                let mut session = Runtime::new(Arc::new(backend)).prepare(module).unwrap();
                let given = first.each_ref().map(|tensor| Some(DataRef::Tensor(tensor.view())));
                session.bind(&given).unwrap();
                for _ in 0..runs {
                    session.run(&[None, None, None]).unwrap();
                }
                let (before, replays) = (states(&mut session), device.replays());
                let given = other.each_ref().map(|tensor| Some(DataRef::Tensor(tensor.view())));
                device.fail_with(device.calls() + call, fault);
                let failed = session.run(if gives { &given } else { &[None, None, None] }).is_err();
                device.fail_at(0);
                let about = format!("{runs}, {gives}, seed {seed}, call {call}, {fault:?}");
                if failed && !session.has_torn_states() {
                    let is_given = gives
                        && states(&mut session) == other.each_ref().map(|t| t.bytes().unwrap().to_vec());
                    assert!(is_given || states(&mut session) == before, "{about}");
                    whole += 1;
                } else if failed {
                    torn += 1;
                    let has_started = !device.can_record() || runs < 1 || device.replays() > replays;
                    assert!(gives || has_started, "{about}: nothing has run");
                }
            }
        }
    }
    assert!(whole > 50 && torn > 50, "{whole}, {torn}");
}

/// A device that refuses to record runs kernels one by one. Any other failure while it records is that of the run.
#[test]
fn failures_of_recordings_are_told() {
    let mut refused = 0;
    for (seed, call) in (0..6).flat_map(|seed| (1..40).map(move |call| (seed, call))) {
        for fault in [Fault::Lost, Fault::Refused] {
            let backend = Reference::plain(seed);
            let device = backend.shared_device();
            let mut session = session(&Runtime::new(Arc::new(backend)));
            session.run(&Batch::of(0, 2, 3).refs()).unwrap();
            let first = device.calls() + call;
            device.fail_with(first, fault);
            let ran = session.run(&Batch::of(1, 2, 3).refs());
            let met = device.calls() >= first;
            device.fail_at(0);
            assert!(ran.is_err() || !met || fault == Fault::Refused, "seed {seed}, call {call}");
            refused += u32::from(ran.is_ok() && met);
        }
    }
    assert!(refused > 5, "{refused}");
}

/// Outputs that are the inputs of the next run are in other memory each time: such runs are not recorded, and no memory
/// stays with them.
#[test]
fn runs_on_fresh_inputs_are_not_recorded() {
    let module = parse(MODEL, &NoData).unwrap();
    for seed in 0..6 {
        let backend = Reference::plain(seed);
        let device = backend.shared_device();
        let mut session = Runtime::new(Arc::new(backend)).prepare(&module).unwrap();
        let (batch, zeros) = (Batch::of(1, 2, 3), floats(4, 0));
        let mut inputs = batch.refs();
        inputs[3] = Some(DataRef::Tensor(zeros.view()));
        let mut made = session.run_in_place(&inputs).unwrap();
        let mut live = Vec::new();
        for _ in 0..6 {
            let mut inputs = batch.refs();
            inputs[0] = Some(made[0].view());
            made = session.run_in_place(&inputs).unwrap();
            live.push(device.live_bytes());
        }
        assert_eq!(device.recordings(), 0, "seed {seed}");
        assert!(live.iter().all(|&bytes| bytes == live[0]), "seed {seed}: {live:?}");
        // Inputs that the session copies are where they were.
        session.run(&batch.refs()).unwrap();
        session.run(&batch.refs()).unwrap();
        assert_eq!(device.recordings() > 0, device.can_record(), "seed {seed}");
    }
}

/// A run without outputs ends when its work is done, and with its own failure, while later runs are in flight.
#[test]
fn a_run_without_outputs_ends_with_its_failure() {
    for seed in (0..8).filter(|&seed| seed != 4) {
        let backend = Reference::plain(seed);
        let mut session = session(&Runtime::new(Arc::new(backend)));
        for (run, at) in [(0, 2), (1, 7), (2, 2)] {
            session.begin_run(&Batch::of(run, at, 3).refs(), &[]).unwrap();
        }
        assert!(session.end_run().unwrap().is_some());
        let error = session.end_run().unwrap_err();
        check_place(&session, &error);
        let (node, _) = error.place().unwrap();
        assert_eq!(session.module().op_name(node).1, "Gather", "seed {seed}");
        assert!(session.end_run().unwrap().is_none());
        assert!(session.has_torn_states());
    }
}

/// A run whose output is lost has failed, although its work is done: the states have moved on, and so have later runs.
#[test]
fn a_run_without_memory_for_its_outputs_has_failed() {
    for seed in 0..6 {
        let backend = Reference::plain(seed);
        let device = backend.shared_device();
        let mut session = session(&Runtime::new(Arc::new(backend)));
        for run in 0..2 {
            session.begin_run(&Batch::of(run, 2, 3).refs(), &[0, 1, 2]).unwrap();
        }
        device.fail_with(device.calls() + 1, Fault::NoMemory);
        assert!(session.end_run().unwrap_err().is_no_memory());
        assert!(session.has_torn_states());
        assert!(session.end_run().unwrap().is_none());
    }
}

/// States that cannot be set stay as they were.
#[test]
fn states_are_set_as_a_whole() {
    let mut refused = 0;
    for (seed, call) in (0..6).flat_map(|seed| (1..8).map(move |call| (seed, call))) {
        for fault in [Fault::Lost, Fault::Refused, Fault::NoMemory, Fault::Late] {
            let backend = Reference::plain(seed);
            let device = backend.shared_device();
            let mut session = session(&Runtime::new(Arc::new(backend)));
            device.fail_with(device.calls() + call, fault);
            let set = session.set_states(|_, bytes| {
                bytes.fill(1);
                Ok::<_, ampc_runtime::HostError>(())
            });
            device.fail_at(0);
            let want = if set.is_ok() { [1; 16] } else { [0; 16] };
            assert_eq!(bytes(&session.states().unwrap()[0].1), want, "seed {seed}, call {call}, {fault:?}");
            refused += u32::from(set.is_err());
        }
    }
    assert!(refused > 20, "{refused}");
}
