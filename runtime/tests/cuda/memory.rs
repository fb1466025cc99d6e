//! The device memory of sessions: allocations equal the prediction, and a module that exceeds the limit is rejected
//! before anything is allocated. The simulated device counts allocations.

use crate::cases::{module, random};
use crate::elements::{Named, passing};
use crate::random::Blind;
use crate::steps::{STEPS, inputs, loss_alone};
use ampc_ir::text::{NoData, parse};
use ampc_ir::{DType, Module};
use ampc_runtime::cuda::Cuda;
use ampc_runtime::session::{Certainty, ExecuteError};
use ampc_runtime::{DataRef, HostTensor, Runtime, Session};
use libloading::os::unix::{Library, Symbol};
use std::sync::Arc;

/// The device memory of a queue: its failure words.
const QUEUE: u64 = 16;

/// Runs the cases whose names contain `filter`; returns the number of failures.
pub(crate) fn run(cuda: &Arc<Cuda>, filter: &str) -> usize {
    let Some(counter) = Counter::new() else {
        println!("skipped: the peak of device memory, which the simulated device counts");
        return 0;
    };
    let counter = Arc::new(counter);
    let mut cases: Vec<Named> = Vec::new();
    let mut add = |name: String, module: Module, inputs: Vec<HostTensor>| {
        for in_flight in [false, true] {
            let (cuda, counter, module, inputs) =
                (cuda.clone(), counter.clone(), module.clone(), inputs.clone());
            let name = format!("memory: {name}{}", if in_flight { ", in flight" } else { "" });
            cases.push((name, Box::new(move || predicted(&cuda, &counter, &module, &inputs, in_flight))));
        }
        let (cuda, counter) = (cuda.clone(), counter.clone());
        let check = move || limited(&cuda, &counter, &module, &inputs);
        cases.push((format!("memory: limit of {name}"), Box::new(check)));
    };
    for (name, body, inputs) in graphs() {
        add(name.into(), module(body, &inputs), inputs);
    }
    for (name, text, _) in STEPS {
        let module = parse(&loss_alone(text), &NoData).unwrap();
        let inputs = inputs(&module);
        add(format!("step {name}"), module, inputs);
    }
    for (name, text, inputs, beyond) in bodies() {
        let (cuda, counter) = (cuda.clone(), counter.clone());
        let check = move || bounded(&cuda, &counter, &parse(&text, &NoData).unwrap(), &inputs, beyond);
        cases.push((format!("memory: {name}"), Box::new(check)));
    }
    let cuda = cuda.clone();
    cases.push(("memory: calls".into(), Box::new(move || called(&cuda, &counter))));
    passing(&cases, filter)
}

/// Graphs with bodies and a call, the inputs of some runs, and the number of bytes by which the predicted bound
/// exceeds the allocations of these runs.
fn bodies() -> Vec<(&'static str, String, Vec<Vec<HostTensor>>, u64)> {
    const HEAD: &str = "module ir=10\nopset ai.onnx=22\n\n";
    let flag = |flag: bool| HostTensor::from_bytes(DType::Bool, &[], &[u8::from(flag)]).unwrap();
    let x = || random(DType::F32, &[6, 40], 1);
    let branches = format!(
        "{HEAD}graph @main {{\n  input %c : bool\n  input %x : f32[6, 40]\n  const %w : f32[40, 40] = random(1)\n  \
         %y = If(%c; %x, %w) {{\n    then_branch: graph @then(%x, %w) {{\n      %p = MatMul(%x, %w) : f32[6, 40]\n      \
         %q = Softmax(%p) : f32[6, 40]\n      output %q : f32[6, 40]\n    }},\n    else_branch: graph @else(%x) {{\n      \
         %s = Softmax(%x) : f32[6, 40]\n      %t = Add(%s, %x) : f32[6, 40]\n      output %t : f32[6, 40]\n    }}\n  }} : f32[6, 40]\n  \
         %z = Neg(%y) : f32[6, 40]\n  output %z\n}}\n"
    );
    let iterations = format!(
        "{HEAD}graph @main {{\n  input %x : f32[6, 40]\n  const %n : i64 = 5\n  const %go : bool = true\n  \
         %last, %all = Loop(%n, %go, %x) {{\n    body: graph @body {{\n      input %i : i64\n      input %c : bool\n      \
         input %s : f32[6, 40]\n      %t = Softmax(%s) : f32[6, 40]\n      %u = Neg(%t) : f32[6, 40]\n      \
         output %c : bool\n      output %u : f32[6, 40]\n      output %t : f32[6, 40]\n    }}\n  }} : f32[6, 40], f32[5, 6, 40]\n  \
         output %last\n  output %all\n}}\n"
    );
    let rows = format!(
        "{HEAD}graph @main {{\n  input %x : f32[6, 40]\n  const %h : f32[40] = random(1)\n  \
         %last, %all = Scan(%h, %x) {{\n    body: graph @body {{\n      input %s : f32[40]\n      input %r : f32[40]\n      \
         %t = Softmax(%s) : f32[40]\n      %u = Add(%t, %r) : f32[40]\n      output %u : f32[40]\n      output %t : f32[40]\n    \
         }},\n    num_scan_inputs: 1\n  }} : f32[40], f32[6, 40]\n  output %last\n  output %all\n}}\n"
    );
    let branch_runs = [true, false].map(|taken| vec![flag(taken), x()]).to_vec();
    vec![
        ("branches", branches, branch_runs, 0),
        ("iterations", iterations, vec![vec![x()]], 0),
        ("rows", rows, vec![vec![x()]], 0),
    ]
}

/// Checks that runs allocate `beyond` bytes less than the session predicts.
fn bounded(
    cuda: &Arc<Cuda>,
    counter: &Counter,
    module: &Module,
    runs: &[Vec<HostTensor>],
    beyond: u64,
) -> Result<(), String> {
    let mut session = Runtime::new(cuda.clone()).prepare(module).map_err(|error| error.to_string())?;
    counter.peak();
    let before = counter.peak();
    for inputs in runs.iter().chain(runs) {
        session.run(&refs(inputs)).map_err(text)?;
    }
    let bytes = session.device_bytes().ok_or("no prediction")?;
    let allocated = counter.peak() - before;
    match bytes.total().checked_sub(allocated) {
        Some(found) if found == beyond && bytes.certainty == Certainty::AtMost => Ok(()),
        _ => Err(format!("allocated {allocated}, expected {} less {beyond}: {bytes:?}", bytes.total())),
    }
}

/// A function that is called, not inlined, because an observer sees every node.
fn called(cuda: &Arc<Cuda>, counter: &Counter) -> Result<(), String> {
    let module = parse(
        "module ir=10\nopset ai.onnx=22, local=1\n\nfunction local::F {\n  opset ai.onnx=22\n  input %a : f32[*]\n  \
         %s = Softmax(%a) : f32[6, 40]\n  %t = Add(%s, %a) : f32[6, 40]\n  output %t\n}\n\ngraph @main {\n  \
         input %x : f32[6, 40]\n  %p = local::F(%x) : f32[6, 40]\n  %q = local::F(%p) : f32[6, 40]\n  output %q\n}\n",
        &NoData,
    )
    .unwrap();
    let inputs = [random(DType::F32, &[6, 40], 1)];
    let mut session = Runtime::new(cuda.clone()).prepare(&module).map_err(|error| error.to_string())?;
    counter.peak();
    let before = counter.peak();
    for _ in 0..2 {
        session.run_observed(&refs(&inputs), Some(&mut Blind)).map_err(text)?;
    }
    let bytes = session.device_bytes().ok_or("no prediction")?;
    match counter.peak() - before {
        allocated if allocated == bytes.total() && bytes.arenas > 0 && bytes.heap > 0 => Ok(()),
        allocated => Err(format!("allocated {allocated}, expected {bytes:?}")),
    }
}

fn graphs() -> Vec<(&'static str, &'static str, Vec<HostTensor>)> {
    let product = "  const %w : f16[40, 24] = random(1)\n  const %b : f32[24] = random(2)\n  \
         %p = MatMul(%a, %w) : f16[33, 24]\n  %q = Cast(%p) {to=1} : f32[33, 24]\n  %r = Add(%q, %b) : f32[33, 24]\n  \
         %s = Softmax(%r) {axis=-1} : f32[33, 24]\n  %t = ReduceSum(%s) : f32[1, 1]\n  output %s\n  output %t\n";
    let convolution = "  const %w : f32[6, 3, 3, 3] = random(1)\n  const %b : f32[6] = random(2)\n  \
         %c = Conv(%a, %w, %b) {pads=[1, 1, 1, 1]} : f32[2, 6, 9, 9]\n  %r = Relu(%c) : f32[2, 6, 9, 9]\n  \
         %p = MaxPool(%r) {kernel_shape=[3, 3]} : f32[2, 6, 7, 7]\n  output %p\n";
    vec![
        ("product", product, vec![random(DType::F16, &[33, 40], 1)]),
        ("convolution", convolution, vec![random(DType::F32, &[2, 3, 9, 9], 1)]),
    ]
}

/// The allocation counter of the simulated device.
struct Counter {
    peak: Symbol<unsafe extern "C" fn() -> usize>,
    _library: Library,
}

impl Counter {
    fn new() -> Option<Counter> {
        // SAFETY: the library is loaded, and the function takes no arguments.
        #[expect(unsafe_code, reason = "a function of a library")]
        unsafe {
            let library = Library::new("libcuda.so.1").ok()?;
            let peak = library.get::<unsafe extern "C" fn() -> usize>(b"sim_peak_bytes\0").ok()?;
            Some(Counter { peak, _library: library })
        }
    }

    /// The peak of allocated bytes since the last call.
    fn peak(&self) -> u64 {
        // SAFETY: as above.
        #[expect(unsafe_code, reason = "a function of a library")]
        unsafe {
            (*self.peak)() as u64
        }
    }
}

fn refs(inputs: &[HostTensor]) -> Vec<Option<DataRef<'_>>> {
    inputs.iter().map(|x| Some(DataRef::Tensor(x.view()))).collect()
}

/// The inputs without those that the session keeps.
fn later<'a>(session: &Session, all: &[Option<DataRef<'a>>]) -> Vec<Option<DataRef<'a>>> {
    let states = session.placed_states();
    all.iter().enumerate().map(|(at, input)| input.filter(|_| !states.contains(&at))).collect()
}

fn text(error: ExecuteError) -> String {
    error.to_string()
}

/// Checks that a session allocates the number of bytes that it predicts during binding.
fn predicted(
    cuda: &Arc<Cuda>,
    counter: &Counter,
    module: &Module,
    inputs: &[HostTensor],
    in_flight: bool,
) -> Result<(), String> {
    let mut session = Runtime::new(cuda.clone()).prepare(module).map_err(|error| error.to_string())?;
    counter.peak();
    let before = counter.peak();
    let all = refs(inputs);
    if in_flight {
        session.begin_run(&all, &[0]).map_err(text)?;
        let later = later(&session, &all);
        for _ in 0..3 {
            session.begin_run(&later, &[0]).map_err(text)?;
            session.end_run().map_err(text)?;
        }
        session.end_run().map_err(text)?;
    } else {
        session.run(&all).map_err(text)?;
        let later = later(&session, &all);
        for _ in 0..3 {
            session.run(&later).map_err(text)?;
        }
    }
    let bytes = session.device_bytes().ok_or("no prediction")?;
    let expected = if in_flight { bytes.total_in_flight() + QUEUE } else { bytes.total() };
    match counter.peak() - before {
        allocated if allocated == expected && bytes.certainty == Certainty::Exact => Ok(()),
        allocated => Err(format!("allocated {allocated}, expected {expected}: {bytes:?}")),
    }
}

/// Checks that a session runs within the predicted limit, and allocates nothing under a lower limit.
fn limited(
    cuda: &Arc<Cuda>,
    counter: &Counter,
    module: &Module,
    inputs: &[HostTensor],
) -> Result<(), String> {
    let mut runtime = Runtime::new(cuda.clone());
    let mut session = runtime.prepare(module).map_err(|error| error.to_string())?;
    session.bind(&refs(inputs)).map_err(text)?;
    let needed = session.device_bytes().ok_or("no prediction")?.total_in_flight();
    drop(session);
    for (limit, fits) in [(needed, true), (needed - 1, false)] {
        runtime.limits.max_device_bytes = Some(limit);
        let mut session = runtime.prepare(module).map_err(|error| error.to_string())?;
        counter.peak();
        let before = counter.peak();
        let types = refs(inputs).into_iter().map(|input| input.map(DataRef::ty)).collect();
        match session.plan_for(types) {
            Ok(bytes) if fits && bytes.total_in_flight() == needed => {}
            Err(ExecuteError::DeviceMemory { .. }) if !fits => {}
            planned => return Err(format!("planned {planned:?} within {limit} bytes")),
        }
        let ran = session.run(&refs(inputs));
        let allocated = counter.peak() - before;
        match ran {
            Ok(_) if fits => {}
            Err(ExecuteError::DeviceMemory { bytes, reserved: 0, limit: of, largest })
                if !fits && (bytes, of, allocated) == (needed, limit, 0) && !largest.is_empty() => {}
            Ok(_) => return Err(format!("runs within {limit} bytes")),
            Err(error) => return Err(format!("within {limit} bytes, after {allocated}: {error}")),
        }
    }
    // The memory of other sessions counts against the limit.
    runtime.limits.max_device_bytes = Some(needed + 7);
    let mut session = runtime.prepare(module).map_err(|error| error.to_string())?;
    session.reserve_device_bytes(8);
    match session.run(&refs(inputs)) {
        Err(ExecuteError::DeviceMemory { bytes, reserved: 8, .. }) if bytes == needed => {}
        ran => return Err(format!("with 8 bytes reserved: {:?}", ran.map(|outputs| outputs.len()))),
    }
    session.reserve_device_bytes(7);
    session.run(&refs(inputs)).map(|_| ()).map_err(text)
}
