//! Training steps compared with the records of the simulated device: launches, copies, waits of the host, memory, and
//! the order of streams.

use crate::cases::random;
use crate::steps::{STEPS, Trained, loss, refs, sized, states_differ, train};
use ampc_ir::text::{NoData, parse};
use ampc_ir::{DType, Module};
use ampc_runtime::cuda::{Cuda, CudaOptions};
use ampc_runtime::{Backend, Cpu, Data, DataRef, HostTensor, Runtime, Session};
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Batch, features and width of the steps in this file.
const SIZES: [u64; 3] = [2, 4, 8];

/// Handles and blocks: the counter of creations and the counter of releases.
const PAIRS: [(&str, &str); 5] =
    [("allocations", "frees"), ("pinned", "unpinned"), ("streams", ""), ("events", ""), ("graphs", "")];

/// The records of the simulated device, through functions that its library exports.
pub(crate) struct Records {
    count: unsafe extern "C" fn(*const c_char) -> u64,
    set: unsafe extern "C" fn(*const c_char, u64),
    fail: unsafe extern "C" fn(*const c_char),
}

impl Records {
    /// The records, if the driver is the simulated one.
    #[expect(unsafe_code, reason = "functions of a library")]
    pub(crate) fn find() -> Option<Records> {
        // SAFETY: the driver is loaded, and its functions have these types if they are there. It is never unloaded.
        unsafe {
            let driver = libloading::Library::new("libcuda.so.1").ok()?;
            let (count, set) = (*driver.get(b"sim_count").ok()?, *driver.get(b"sim_set").ok()?);
            let fail = *driver.get(b"sim_fail").ok()?;
            std::mem::forget(driver);
            Some(Records { count, set, fail })
        }
    }

    #[expect(unsafe_code, reason = "a function of a library")]
    pub(crate) fn count(&self, counter: &str) -> u64 {
        let name = CString::new(counter).unwrap();
        // SAFETY: the name is NUL-terminated.
        unsafe { (self.count)(name.as_ptr()) }
    }

    #[expect(unsafe_code, reason = "a function of a library")]
    pub(crate) fn set(&self, setting: &CStr, value: u64) {
        // SAFETY: the name is NUL-terminated.
        unsafe { (self.set)(setting.as_ptr(), value) };
    }

    /// Runs `work` while the next call of a function returns an error code.
    #[expect(unsafe_code, reason = "a function of a library")]
    fn failing<R>(&self, function: &str, code: u32, work: impl FnOnce() -> R) -> R {
        let fail = |fault: String| {
            let fault = CString::new(fault).unwrap();
            // SAFETY: the text is NUL-terminated.
            unsafe { (self.fail)(fault.as_ptr()) };
        };
        fail(format!("{function}:1:{code}"));
        let done = work();
        fail(String::new());
        done
    }

    /// The amounts that `work` adds to the counters.
    fn during<R>(&self, counters: &[&str], work: impl FnOnce() -> R) -> (R, Vec<u64>) {
        let before: Vec<u64> = counters.iter().map(|counter| self.count(counter)).collect();
        let done = work();
        let added = counters.iter().zip(before).map(|(counter, before)| self.count(counter) - before);
        (done, added.collect())
    }

    /// The numbers of live blocks and handles.
    fn alive(&self) -> Vec<u64> {
        PAIRS.iter().map(|(made, released)| self.count(made) - self.count(released)).collect()
    }
}

/// The seed from the environment.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var_os("AMPC_SIM_SEED");
    seed.and_then(|seed| seed.to_str().and_then(|seed| seed.parse().ok())).unwrap_or(0)
}

fn module(text: &str) -> Module {
    parse(&sized(text, SIZES), &NoData).unwrap_or_else(|errors| panic!("{errors}"))
}

/// Runs steps, two of them in flight; returns their losses.
fn steps(trained: &mut Trained, steps: usize) -> Vec<f64> {
    let mut losses = Vec::new();
    for step in 0..steps {
        trained.session.begin_run(&refs(&trained.data), &[0]).unwrap();
        if step > 0 {
            losses.extend(trained.session.end_run().unwrap().map(|outputs| loss(&outputs)));
        }
    }
    losses.extend(trained.session.end_run().unwrap().map(|outputs| loss(&outputs)));
    losses
}

/// A captured step is one launch of a graph. The host waits for the loss, and for nothing else.
fn captured(records: &Records, cuda: &Arc<Cuda>, text: &str) -> Result<String, String> {
    const STEPS: u64 = 20;
    let mut trained = train(&Runtime::new(cuda.clone()), &module(text), 4);
    steps(&mut trained, 4);
    let expected = [
        ("call.cuGraphLaunch", STEPS),
        ("synchronisations", STEPS),
        ("call.cuEventSynchronize", STEPS),
        ("copies.pageable", 0),
        ("call.cuLaunchKernel", 0),
        ("call.cublasLtMatmul", 0),
        ("call.cudnnBackendExecute", 0),
        ("call.cuStreamBeginCapture_v2", 0),
        ("call.cuGraphInstantiateWithFlags", 0),
        ("call.cuMemAlloc_v2", 0),
        ("call.cuMemFree_v2", 0),
        ("call.cuMemHostAlloc", 0),
        ("call.cuMemFreeHost", 0),
    ];
    let counters = [&expected.map(|(counter, _)| counter)[..], &["launches.generated", "copies.h2d.bytes"]];
    // One step stays in flight: the host waits for all work when the last step ends.
    trained.session.begin_run(&refs(&trained.data), &[0]).unwrap();
    let (_, added) = records.during(&counters.concat(), || {
        for _ in 0..STEPS {
            trained.session.begin_run(&refs(&trained.data), &[0]).unwrap();
            assert!(trained.session.end_run().unwrap().is_some());
        }
    });
    trained.session.end_run().unwrap();
    for ((counter, expected), added) in expected.iter().zip(&added) {
        if added != expected {
            return Err(format!("{STEPS} steps: expected {expected} of {counter}, found {added}"));
        }
    }
    let [.., launches, bytes] = added[..] else { return Err("no counters".into()) };
    // In a random order, work of a step may run after another step has begun.
    if launches == 0 || (seed() == 0 && launches % STEPS != 0) {
        return Err(format!("{launches} kernels in {STEPS} steps"));
    }
    Ok(format!("1 graph of {} generated kernels, {} bytes to the device", launches / STEPS, bytes / STEPS))
}

/// Batches larger than a block of pinned memory are copied while the host continues.
fn large_batches(records: &Records, cuda: &Arc<Cuda>) -> Result<String, String> {
    const RUNS: u64 = 6;
    const N: usize = 3 << 18;
    let text = format!(
        "module ir=10\nopset ai.onnx=21\n\ngraph @main {{\n  input %x : f32[{N}]\n  input %w : f32[{N}]\n  \
         %m = Mul(%x, %w) : f32[{N}]\n  %y = ReduceMax(%m) {{keepdims=0}} : f32\n  output %y : f32\n}}\n"
    );
    let module = parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}"));
    let mut session = Runtime::new(cuda.clone()).prepare(&module).unwrap();
    let begin = |session: &mut Session, run: u64| {
        let mut x = vec![0.0f32; N];
        x[usize::try_from(run).unwrap() * 1000] = run as f32;
        let batch = [x, vec![2.0; N]].map(|elements| HostTensor::from_slice(&[N as u64], &elements).unwrap());
        let refs = batch.each_ref().map(|tensor| Some(DataRef::Tensor(tensor.view())));
        session.begin_run(&refs, &[0]).unwrap();
    };
    let end = |session: &mut Session, run: u64| {
        let outputs = session.end_run().unwrap().unwrap();
        let Some(Data::Tensor(y)) = outputs.first() else { return Err("no output".to_owned()) };
        match y.f64s().unwrap().next() == Some(2.0 * run as f64) {
            true => Ok(()),
            false => Err(format!("run {run} has another result")),
        }
    };
    // Allocates blocks, and records the plan.
    for run in 0..4 {
        begin(&mut session, run);
        end(&mut session, run)?;
    }
    begin(&mut session, 0);
    let (done, added) = records.during(&["synchronisations", "copies.pageable"], || {
        for run in 1..=RUNS {
            begin(&mut session, run);
            end(&mut session, run - 1)?;
        }
        Ok::<_, String>(())
    });
    done?;
    end(&mut session, RUNS)?;
    match added == [RUNS, 0] {
        true => Ok(format!("{} MB for each run, {} waits in {RUNS} runs", (8 * N) >> 20, added[0])),
        false => {
            Err(format!("{RUNS} runs: expected as many waits, and no copy that is not pinned: {added:?}"))
        }
    }
}

/// Kernels on several queues that copy host constants are recorded, and their copies keep their bytes.
fn constants(records: &Records, cuda: &Arc<Cuda>) -> Result<String, String> {
    const CONSTANTS: u64 = 24;
    // Each list is the result of a node, and nodes are assigned to the queues in turn.
    let mut text = "module ir=10\nopset ai.onnx=21\n\ngraph @main {\n  input %x : f32[4]\n".to_owned();
    let mut sum = "%x".to_owned();
    for i in 0..CONSTANTS {
        text += &format!("  %c{i} = Constant() {{value_floats=[{i}.0, 1.0, 2.0, 3.0]}} : f32[4]\n");
        text += &format!("  %n{i} = Abs(%c{i}) : f32[4]\n  %s{i} = Mul({sum}, %n{i}) : f32[4]\n");
        text += &format!("  %t{i} = Add(%s{i}, %n{i}) : f32[4]\n");
        sum = format!("%t{i}");
    }
    text += &format!("  output {sum} : f32[4]\n}}\n");
    let module = parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}"));
    let mut runtime = Runtime::new(cuda.clone());
    // Nodes of constants stay in the plan.
    runtime.fold = false;
    let mut session = runtime.prepare(&module).unwrap();
    let mut host = Runtime::default().prepare(&module).unwrap();
    let counters = ["pinned", "call.cuGraphLaunch"];
    let before = counters.map(|counter| records.count(counter));
    for run in 0..4 {
        let x = HostTensor::from_slice(&[4], &[run as f32, 2.0, 3.0, 4.0]).unwrap();
        let x = [Some(DataRef::Tensor(x.view()))];
        let numbers = |session: &mut Session| match session.run(&x).map(|outputs| outputs.into_iter().next())
        {
            Ok(Some(Data::Tensor(y))) => Ok(y.f64s().unwrap().collect::<Vec<f64>>()),
            other => Err(format!("run {run}: {other:?}")),
        };
        let (got, want) = (numbers(&mut session)?, numbers(&mut host)?);
        if got != want {
            return Err(format!("run {run}: {got:?} instead of {want:?}"));
        }
    }
    let [pinned, graphs] = counters.map(|counter| records.count(counter));
    let [pinned, graphs] = [pinned - before[0], graphs - before[1]];
    // Each copy in the graph has its own pinned memory.
    match pinned >= CONSTANTS && graphs == 3 {
        true => Ok("4 runs".into()),
        false => Err(format!("{pinned} blocks of pinned memory, {graphs} graphs")),
    }
}

/// The available memory excludes a reserve for implicit allocations.
fn reserve(records: &Records, cuda: &Arc<Cuda>) -> Result<String, String> {
    const TOTAL: u64 = 8 << 30;
    let device = cuda.device().ok_or("no device")?;
    let free = TOTAL - records.count("allocations.bytes") + records.count("frees.bytes");
    match device.available_memory().map(|available| free - available) {
        Some(reserved) if reserved == 256 << 20 => Ok("256 MiB".into()),
        reserved => Err(format!("{reserved:?} bytes are reserved")),
    }
}

/// Calls that fail because memory is exhausted, with their error codes.
const REFUSALS: [(&str, u32); 9] = [
    ("cuMemAlloc_v2", 2),
    ("cuMemHostAlloc", 2),
    ("cuStreamCreate", 2),
    ("cuEventCreate", 2),
    ("cuModuleLoadData", 2),
    ("cuLaunchKernel", 2),
    ("cublasLtMatmulAlgoGetHeuristic", 3),
    ("cublasLtMatmul", 3),
    ("cudnnBackendExecute", 4004),
];

/// The third run of a product and a convolution with a LeakyRelu of a width. A failure is its text, with true if it says that
/// memory is exhausted.
fn run_of_width(runtime: &Runtime, width: usize) -> Result<Vec<Data>, (bool, String)> {
    let text = format!(
        "module ir=10\nopset ai.onnx=21\n\ngraph @main {{
  input %a : f32[4, 3]
  const %s : i64[3] = [4, 1, {width}]
  const %w : f32[3, {width}] = random(1)
  const %f : f32[2, 1, 3] = random(2)
  %p = MatMul(%a, %w) : f32[4, {width}]
  %r = Reshape(%p, %s) : f32[4, 1, {width}]
  %c = Conv(%r, %f) : f32[4, 2, {shorter}]
  %y = LeakyRelu(%c) {{alpha=0.{width}}} : f32[4, 2, {shorter}]
  output %y
}}
",
        shorter = width - 2
    );
    let module = parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    let x = random(DType::F32, &[4, 3], 1);
    let x = [Some(DataRef::Tensor(x.view()))];
    let prepared = runtime.prepare(&module);
    let mut session = prepared.map_err(|error| (error.is_no_memory(), error.to_string()))?;
    let mut run = || session.run(&x).map_err(|error| (error.is_no_memory(), error.to_string()));
    run()?;
    run()?;
    run()
}

/// A refused call ends with an error that says that memory is exhausted; a refused graph is replaced by single launches.
fn refused_memory(records: &Records, cuda: &Arc<Cuda>, options: &CudaOptions) -> Result<String, String> {
    let refused = |runtime: &Runtime, (function, code): (&str, u32), width: usize| match records.failing(
        function,
        code,
        || run_of_width(runtime, width),
    ) {
        Err((true, text)) if text.contains("out of") && text.contains("memory") => Ok(()),
        Err((_, text)) => Err(format!("{function}: {text}")),
        Ok(_) => Err(format!("{function}: no error")),
    };
    // A backend of its own has compiled no kernel, and no other backend is compiling: all kernels of earlier runs have run.
    let fresh = Cuda::open(options, Arc::new(Cpu::new(1))).map_err(|error| error.to_string())?;
    refused(&Runtime::new(Arc::new(fresh)), ("nvrtcCompileProgram", 1), 19)?;
    let runtime = Runtime::new(cuda.clone());
    for (at, call) in REFUSALS.into_iter().enumerate() {
        refused(&runtime, call, 20 + at)?;
    }
    let graphs = || records.count("call.cuGraphLaunch");
    let before = graphs();
    records
        .failing("cuGraphInstantiateWithFlags", 2, || run_of_width(&runtime, 40))
        .map_err(|(_, text)| format!("cuGraphInstantiateWithFlags: {text}"))?;
    match graphs() == before {
        true => Ok(format!("{} calls", REFUSALS.len() + 2)),
        false => Err("a graph was launched that the driver had refused".into()),
    }
}

/// The numbers of live blocks and handles stay constant.
fn no_leak(records: &Records, cuda: &Arc<Cuda>, text: &str) -> Result<String, String> {
    // Random orders take longer.
    let count = if seed() == 0 { 1000 } else { 100 };
    let mut trained = train(&Runtime::new(cuda.clone()), &module(text), 4);
    steps(&mut trained, 6);
    let before = records.alive();
    let losses = steps(&mut trained, count);
    let after = records.alive();
    if before != after {
        return Err(format!("{PAIRS:?}: {before:?} were alive, and {after:?} after {count} steps"));
    }
    match losses.iter().all(|loss| loss.is_finite()) {
        true => Ok(format!("{count} steps, alive {after:?}")),
        false => Err("a loss is not finite".into()),
    }
}

/// Losses and states, as bits.
fn bits(cuda: &Arc<Cuda>, module: &Module, count: usize) -> Result<(Vec<u64>, Trained), String> {
    let runtime = Runtime::new(cuda.clone());
    let trained = catch_unwind(AssertUnwindSafe(|| train(&runtime, module, count)));
    let mut trained = trained.map_err(|_| "a step fails".to_owned())?;
    let flying = catch_unwind(AssertUnwindSafe(|| steps(&mut trained, 3)));
    let flying = flying.map_err(|_| "a step in flight fails".to_owned())?;
    Ok((trained.losses.iter().chain(&flying).map(|loss| loss.to_bits()).collect(), trained))
}

/// Results do not depend on the contents of fresh memory.
fn poisoned(records: &Records, cuda: &Arc<Cuda>, text: &str) -> Result<String, String> {
    let module = module(text);
    let (want, mut first) = bits(cuda, &module, 4)?;
    for byte in [0x00, 0x3c] {
        records.set(c"poison", byte);
        let other = bits(cuda, &module, 4);
        records.set(c"poison", 0xff);
        let (got, mut other) = other?;
        if got != want || states_differ(&mut other.session, &mut first.session) != 0.0 {
            return Err(format!("fresh memory of bytes {byte:#x} changes the step"));
        }
    }
    Ok("fresh memory of 3 kinds".into())
}

/// Results are bit-equal under three orders of streams, blocks, warps and lanes.
fn reordered(records: &Records, cuda: &Arc<Cuda>, text: &str) -> Result<String, String> {
    let module = module(text);
    let (want, mut first) = bits(cuda, &module, 4)?;
    for other in [11, 12, 13] {
        records.set(c"seed", other);
        let got = bits(cuda, &module, 4);
        records.set(c"seed", seed());
        let (got, mut other_trained) = got?;
        if got != want || states_differ(&mut other_trained.session, &mut first.session) != 0.0 {
            return Err(format!("seed {other} changes the step"));
        }
    }
    Ok("3 seeds".into())
}

/// Without a wait for an event, a seed changes the step: reordering reveals missing waits.
fn missing_wait(records: &Records, cuda: &Arc<Cuda>, text: &str) -> Result<String, String> {
    let module = module(text);
    let (want, mut first) = bits(cuda, &module, 3)?;
    let mut tried = 0;
    for wait in 1..=48 {
        for other in [21, 22] {
            let ignored = records.count("waits.ignored");
            records.set(c"seed", other);
            records.set(c"ignore_wait", wait);
            let got = bits(cuda, &module, 3);
            records.set(c"ignore_wait", 0);
            records.set(c"seed", seed());
            if records.count("waits.ignored") == ignored {
                return Err(format!("there is no wait {wait}"));
            }
            tried += 1;
            let is_equal = |(got, mut other): (Vec<u64>, Trained)| {
                got == want && states_differ(&mut other.session, &mut first.session) == 0.0
            };
            if !got.is_ok_and(is_equal) {
                return Ok(format!("found without wait {wait}, in try {tried}"));
            }
        }
    }
    Err(format!("{tried} runs without a wait have the same losses and states"))
}

/// Runs the checks whose names contain `filter`; returns the number of failures.
pub(crate) fn run([cuda, _, queues]: &[Arc<Cuda>; 3], options: &CudaOptions, filter: &str) -> usize {
    let Some(records) = Records::find() else {
        println!("skipped: records, which the simulated device has");
        return 0;
    };
    let mut failed = 0;
    let mut check = |name: &str, work: &dyn Fn() -> Result<String, String>| {
        if name.contains(filter) {
            let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("panicked".into()));
            let (mark, text) = match &done {
                Ok(text) => ("ok  ", text),
                Err(text) => ("FAIL", text),
            };
            println!("{mark}  {name}: {text}");
            failed += usize::from(done.is_err());
        }
    };
    let ((_, f32_step, _), (name, low_step, _)) = (STEPS[0], STEPS[2]);
    for (name, text, _) in STEPS {
        check(&format!("record of a step {name}"), &|| captured(&records, cuda, text));
    }
    check("record of large batches", &|| large_batches(&records, cuda));
    check("record of constants", &|| constants(&records, cuda));
    check("record of constants, 3 queues", &|| constants(&records, queues));
    check("record of constants, 3 queues in turn", &|| {
        let options = CudaOptions { queues: 3, waits_for_kernels: true, ..options.clone() };
        let cuda = Cuda::open(&options, Arc::new(Cpu::new(1))).map_err(|error| error.to_string())?;
        constants(&records, &Arc::new(cuda))
    });
    check("record of the reserve", &|| reserve(&records, cuda));
    check("record of refused memory", &|| refused_memory(&records, cuda, options));
    check("record of many steps", &|| no_leak(&records, cuda, f32_step));
    check(&format!("record of poisoned memory {name}"), &|| poisoned(&records, cuda, low_step));
    check(&format!("record of three orders {name}"), &|| reordered(&records, queues, low_step));
    check("record without a wait", &|| missing_wait(&records, queues, f32_step));
    failed
}
