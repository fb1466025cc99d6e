//! Sessions of one model: constants and plans in memory once, and runs in any number of threads.

#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::text::{NoData, parse};
use ampc_runtime::backend::{Backend, KernelError, Prepared, RunHint, Site};
use ampc_runtime::session::{Executable, ExecuteError, NodeObserver};
use ampc_runtime::{Cpu, Data, DataRef, HostTensor, Runtime, Session};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;

const MODEL: &str = "\
module ir=10
opset ai.onnx=21

graph @main {
  input %x : f32[n, 64]
  const %w : f32[64, 64] = random(1)
  const %b : f32[64] = random(2)
  %p = MatMul(%x, %w) : f32[n, 64]
  %s = Add(%p, %b) : f32[n, 64]
  %t = Tanh(%s) : f32[n, 64]
  %y = Softmax(%t) : f32[n, 64]
  output %y : f32[n, 64]
}
";

/// A loop that ends only if it is stopped.
const ENDLESS: &str = "\
module ir=10
opset ai.onnx=21

graph @main {
  input %go : bool
  input %x : f32[4]
  %y = Loop(_, %go, %x) {
    body: graph @body {
      input %i : i64
      input %c : bool
      input %before : f32[4]
      %d = Identity(%c) : bool
      %after = Sin(%before) : f32[4]
      output %d : bool
      output %after : f32[4]
    }
  } : f32[4]
  output %y : f32[4]
}
";

fn executable(text: &str, threads: usize) -> Arc<Executable> {
    let module = parse(text, &NoData).unwrap_or_else(|errors| panic!("{errors}"));
    Arc::new(Executable::new(&module, &Runtime::from(Cpu::new(threads))).unwrap())
}

fn rows(n: u64, seed: u64) -> HostTensor {
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let elements: Vec<f32> = (0..n * 64).map(|i| ((i * 37 + seed * 11) % 97) as f32 / 97.0 - 0.5).collect();
    HostTensor::from_slice(&[n, 64], &elements).unwrap()
}

fn flag(is_set: bool) -> HostTensor {
    HostTensor::from_bytes(DType::Bool, &[], &[u8::from(is_set)]).unwrap()
}

fn bytes(session: &mut Session, x: &HostTensor) -> Vec<u8> {
    let outputs = session.run(&[Some(DataRef::Tensor(x.view()))]).unwrap();
    outputs[0].tensor().unwrap().bytes().unwrap().to_vec()
}

/// Eight sessions in eight threads compute what one session computes, of different rows and in different orders.
#[test]
fn sessions_in_threads_compute_the_same_bytes() {
    let executable = executable(MODEL, 2);
    let mut alone = Session::new(executable.clone()).unwrap();
    let inputs: Vec<HostTensor> = (1..=3).map(|n| rows(n * 5, n)).collect();
    let want: Vec<Vec<u8>> = inputs.iter().map(|x| bytes(&mut alone, x)).collect();
    thread::scope(|scope| {
        for first in 0..8 {
            let (executable, inputs, want) = (executable.clone(), &inputs, &want);
            scope.spawn(move || {
                let mut session = Session::new(executable).unwrap();
                for turn in 0..12 {
                    let at = (first + turn) % inputs.len();
                    assert_eq!(bytes(&mut session, &inputs[at]), want[at], "input {at}");
                }
            });
        }
    });
    assert_eq!(executable.programs_made(), 3);
}

/// Three kinds of dims in turn are planned three times in all, by one session or by several.
#[test]
fn plans_are_kept_by_dims() {
    let executable = executable(MODEL, 1);
    let mut sessions = [Session::new(executable.clone()).unwrap(), Session::new(executable.clone()).unwrap()];
    for turn in 0..9 {
        let x = rows(1 + turn % 3, turn);
        bytes(&mut sessions[usize::from(turn % 2 == 1)], &x);
    }
    assert_eq!(executable.programs_made(), 3);
    // A fifth kind replaces the one that was used longest ago.
    (4..=6).for_each(|n| drop(bytes(&mut sessions[0], &rows(n, n))));
    assert_eq!(executable.programs_made(), 6);
    bytes(&mut sessions[1], &rows(6, 0));
    assert_eq!(executable.programs_made(), 6);
    bytes(&mut sessions[1], &rows(1, 0));
    assert_eq!(executable.programs_made(), 7);
}

/// A session that is stopped ends. Others run while it does, although each run has one thread.
#[test]
fn one_session_is_stopped_alone() {
    let executable = executable(ENDLESS, 1);
    let x = HostTensor::from_slice(&[4], &[0.1f32, 0.2, 0.3, 0.4]).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (begun, begins) = mpsc::channel();
    let (ended, ends) = mpsc::channel();
    thread::scope(|scope| {
        let endless = scope.spawn({
            let (executable, stop, x, go) = (executable.clone(), stop.clone(), x.clone(), flag(true));
            move || {
                let mut session = Session::new(executable).unwrap();
                session.set_stop(stop);
                let inputs = [go.view(), x.view()].map(|tensor| Some(DataRef::Tensor(tensor)));
                session.run_observed(&inputs, Some(&mut Begun(Some(begun)))).unwrap_err()
            }
        });
        begins.recv().unwrap();
        scope.spawn(|| {
            let mut other = Session::new(executable.clone()).unwrap();
            let go = flag(false);
            let inputs = [go.view(), x.view()].map(|tensor| Some(DataRef::Tensor(tensor)));
            let outputs: Vec<_> = (0..20).map(|_| other.run(&inputs).unwrap()).collect();
            let bytes = |outputs: &Vec<Data>| outputs[0].tensor().unwrap().bytes() == x.bytes();
            ended.send(outputs.iter().all(bytes)).unwrap();
        });
        // Stopped in any case, so that a failure is no hang.
        let others = ends.recv_timeout(Duration::from_secs(60));
        stop.store(true, Ordering::Relaxed);
        assert_eq!(others, Ok(true), "the other session waits for the endless one");
        assert!(matches!(endless.join().unwrap(), ExecuteError::Stopped));
    });
}

/// Says once that a run computes values.
struct Begun(Option<mpsc::Sender<()>>);

impl NodeObserver for Begun {
    fn value(&mut self, _: ampc_ir::Node, _: usize, _: DataRef<'_>) {
        if let Some(begun) = self.0.take() {
            begun.send(()).unwrap();
        }
    }
}

/// A backend of one operator: the session does everything else.
#[derive(Debug)]
struct Negator;

impl Backend for Negator {
    fn name(&self) -> &'static str {
        "example"
    }
    fn has_kernel(&self, kind: OpKind) -> bool {
        kind == OpKind::Neg
    }
    fn prepare(&self, site: &Site<'_>) -> Result<Prepared, KernelError> {
        if site.kind() != OpKind::Neg || site.dtype(0)? != DType::F32 {
            return Err(site.no_kernel());
        }
        Ok(Prepared::new(|io| {
            let (operand, result) = (io.slice::<f32>(0)?, io.out::<f32>(0)?);
            result.iter_mut().zip(operand).for_each(|(to, from)| *to = -from);
            Ok(())
        }))
    }
}

#[test]
fn a_backend_of_one_operator_runs_graphs_of_it_and_names_all_other_operators() {
    let runtime = Runtime::new(Arc::new(Negator));
    let body = |op: &str| {
        let text = format!(
            "\
module ir=10
opset ai.onnx=21

graph @main {{
  input %c : bool
  input %x : f32[2]
  %y = Neg(%x) : f32[2]
  %z = If(%c; %y) {{
    then_branch: graph @then (%y) {{
      %a = {op}(%y) : f32[2]
      output %a : f32[2]
    }},
    else_branch: graph @else (%y) {{
      %b = Neg(%y) : f32[2]
      %d = Neg(%b) : f32[2]
      output %d : f32[2]
    }}
  }} : f32[2]
  output %z : f32[2]
}}
"
        );
        parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
    };
    let module = body("Neg");
    let mut session = runtime.prepare(&module).unwrap();
    let x = HostTensor::from_slice(&[2], &[1.0f32, -2.0]).unwrap();
    for (condition, want) in [(true, [1.0f32, -2.0]), (false, [-1.0, 2.0])] {
        let condition = flag(condition);
        let inputs = [condition.view(), x.view()].map(|tensor| Some(DataRef::Tensor(tensor)));
        let outputs = session.run(&inputs).unwrap();
        assert_eq!(outputs[0].tensor().unwrap().as_slice::<f32>().unwrap(), want);
    }
    let error = runtime.prepare(&body("Abs")).err().unwrap();
    assert_eq!(error.to_string(), "the example backend lacks 1 of the operators in use, the first is Abs");
}

/// A backend of one operator whose host backend computes constants.
#[derive(Debug)]
struct Hosted {
    host: Cpu,
    /// The kernels that have become part of a plan.
    planned: Arc<AtomicUsize>,
}

impl Backend for Hosted {
    fn name(&self) -> &'static str {
        "example"
    }
    fn has_kernel(&self, kind: OpKind) -> bool {
        self.host.has_kernel(kind)
    }
    fn has_own_kernel(&self, kind: OpKind) -> bool {
        kind == OpKind::Neg
    }
    fn prepare(&self, site: &Site<'_>) -> Result<Prepared, KernelError> {
        let planned = self.planned.clone();
        Ok(Negator.prepare(site)?.when_planned(move || {
            planned.fetch_add(1, Ordering::Relaxed);
        }))
    }
    fn host(&self) -> Option<&dyn Backend> {
        Some(&self.host)
    }
}

#[test]
fn the_host_backend_computes_constants_and_all_nodes_without_kernels_are_named() {
    let planned = Arc::new(AtomicUsize::new(0));
    let runtime = Runtime::new(Arc::new(Hosted { host: Cpu::new(1), planned: planned.clone() }));
    let module = |last: &str| {
        let text = format!(
            "\
module ir=10
opset ai.onnx=21

graph @main {{
  input %x : f32[2]
  const %two : f32[2] = [2, 2]
  %four = Mul(%two, %two) : f32[2]
  %dims = Shape(%x) : i64[1]
  %z = Cast(%dims) {{to=1}} : f32[1]
  %y = Neg(%x) : f32[2]
{last}
  output %y : f32[2]
  output %four : f32[2]
  output %z : f32[1]
}}
"
        );
        parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
    };
    let x = HostTensor::from_slice(&[2], &[1.0f32, -2.0]).unwrap();
    let inputs = [Some(DataRef::Tensor(x.view()))];
    let mut session = runtime.prepare(&module("")).unwrap();
    let outputs = session.run(&inputs).unwrap();
    let wanted: [&[f32]; 3] = [&[-1.0, 2.0], &[4.0, 4.0], &[2.0]];
    for (output, wanted) in outputs.iter().zip(wanted) {
        assert_eq!(output.tensor().unwrap().as_slice::<f32>().unwrap(), wanted);
    }
    // Kernels of the host backend are no part of a plan.
    assert_eq!(planned.load(Ordering::Relaxed), 1);

    // The dims of NonZero depend on data, so it cannot be prepared before the graph runs.
    let lines = "  %a = Abs(%y) : f32[2]\n  %e = Exp(%a) : f32[2]\n  %n = NonZero(%y) : i64[1, ?]\n  \
                 output %e : f32[2]\n  output %n : i64[1, ?]";
    let ran = runtime.prepare(&module(lines)).unwrap().run(&inputs).err().unwrap();
    let planned = runtime.plans(&module(lines), &[None]).unwrap_err();
    for error in [ran, planned] {
        let ExecuteError::Unsupported { backend: "example", nodes } = &error else { panic!("{error}") };
        let named: Vec<&str> = nodes.iter().map(|(_, what)| what.as_str()).collect();
        assert_eq!(named, ["Abs of f32", "Exp of f32", "NonZero"]);
    }
}

/// The CPU with a kernel of Neg that notes the thread that it runs in.
#[derive(Debug)]
struct Traced {
    cpu: Cpu,
    threads: Arc<Mutex<Vec<ThreadId>>>,
}

impl Backend for Traced {
    fn name(&self) -> &'static str {
        "example"
    }
    fn has_kernel(&self, kind: OpKind) -> bool {
        self.cpu.has_kernel(kind)
    }
    fn prepare(&self, site: &Site<'_>) -> Result<Prepared, KernelError> {
        if site.kind() != OpKind::Neg {
            return self.cpu.prepare(site);
        }
        let threads = self.threads.clone();
        Ok(Prepared::new(move |io| {
            threads.lock().unwrap().push(thread::current().id());
            io.out_bytes(0)?.copy_from_slice(io.bytes(0)?);
            Ok(())
        }))
    }
    fn install(&self, hint: RunHint, work: &mut (dyn FnMut() + Send)) -> bool {
        self.cpu.install(hint, work)
    }
}

/// A run without parallel work stays on the calling thread, once that is known of its dims; with one thread it is known
/// from the beginning. Deeply nested bodies need the stack of another thread.
#[test]
fn small_runs_wake_no_thread() {
    let line = "  %t = Tanh(%x) : f32[n]\n  %y = Neg(%t) : f32[n]\n  output %y : f32[n]\n";
    let flat = format!("module ir=10\nopset ai.onnx=21\n\ngraph @main {{\n  input %x : f32[n]\n{line}}}\n");
    let (small, large) = (1 << 8, 1 << 17);
    for (threads, text, n, expected) in [
        (1, &flat, small, [true; 3]),
        (1, &flat, large, [true; 3]),
        (2, &flat, small, [false, true, true]),
        (2, &flat, large, [false; 3]),
        (2, &nested(4), small, [false, true, true]),
        (2, &nested(5), small, [false; 3]),
        (1, &nested(20), small, [false; 3]),
    ] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let backend = Traced { cpu: Cpu::new(threads), threads: seen.clone() };
        let module = parse(text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
        let mut session = Runtime::new(Arc::new(backend)).prepare(&module).unwrap();
        let x = HostTensor::from_slice(&[n], &vec![0.5f32; usize::try_from(n).unwrap()]).unwrap();
        let yes = flag(true);
        let inputs = [x.view(), yes.view()].map(|tensor| Some(DataRef::Tensor(tensor)));
        let inputs = &inputs[..module.graph(module.main()).inputs().len()];
        (0..3).for_each(|_| drop(session.run(inputs).unwrap()));
        let is_here: Vec<bool> =
            seen.lock().unwrap().iter().map(|&id| id == thread::current().id()).collect();
        assert_eq!(is_here, expected, "{threads} threads, {n} elements\n{text}");
    }
}

/// A branch within so many branches.
fn nested(depth: usize) -> String {
    let mut body = "%y0 = Neg(%x) : f32[n]\n  output %y0 : f32[n]\n".to_owned();
    for i in 1..=depth {
        let branch = |name: &str| {
            // Names are unique in a module.
            let body = if name == "a" {
                body.clone()
            } else {
                format!("%z{i} = Abs(%x) : f32[n]\n  output %z{i} : f32[n]\n")
            };
            format!(
                "{}: graph @{name}{i} (%x, %go) {{\n  {body}}}",
                if name == "a" { "then_branch" } else { "else_branch" }
            )
        };
        body = format!(
            "%y{i} = If(%go; %x, %go) {{\n{},\n{}\n}} : f32[n]\n  output %y{i} : f32[n]\n",
            branch("a"),
            branch("b")
        );
    }
    format!(
        "module ir=10\nopset ai.onnx=21\n\ngraph @main {{\n  input %x : f32[n]\n  input %go : bool\n  {body}}}\n"
    )
}

/// A run that fails says nothing about the next run, and a model that has had parallel work once is not sequential again.
#[test]
fn one_run_does_not_decide_for_all() {
    let text = "\
module ir=10
opset ai.onnx=21

graph @main {
  input %x : f32[n]
  input %at : i64
  const %zero : i64[1] = [0]
  const %one : i64[1] = [1]
  const %big : f32 = 1
  %y = Neg(%x) : f32[n]
  %n = Gather(%x, %at) {axis=0} : f32
  %count = Cast(%n) {to=7} : i64
  %shape = Unsqueeze(%count, %zero) : i64[1]
  %rows = Expand(%big, %shape) : f32[m]
  %t = Tanh(%rows) : f32[m]
  output %y : f32[n]
  output %t : f32[m]
}
";
    let seen = Arc::new(Mutex::new(Vec::new()));
    let backend = Traced { cpu: Cpu::new(2), threads: seen.clone() };
    let module = parse(text, &NoData).unwrap_or_else(|errors| panic!("{errors}"));
    let mut session = Runtime::new(Arc::new(backend)).prepare(&module).unwrap();
    let x = HostTensor::from_slice(&[3], &[8.0f32, 300_000.0, 5.0]).unwrap();
    let mut is_here = |at: i64| {
        let at = HostTensor::from_slice(&[], &[at]).unwrap();
        let inputs = [x.view(), at.view()].map(|tensor| Some(DataRef::Tensor(tensor)));
        let ran = session.run(&inputs).map(drop);
        (ran.is_ok(), seen.lock().unwrap().pop().unwrap() == thread::current().id())
    };
    // The index 7 is out of range.
    assert_eq!(is_here(7), (false, false));
    assert_eq!(is_here(0), (true, false));
    assert_eq!(is_here(2), (true, true));
    assert_eq!(is_here(1), (true, true));
    assert_eq!([is_here(0), is_here(2)], [(true, false); 2]);
}
