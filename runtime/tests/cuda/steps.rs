//! Training steps of an MLP, on the CPU and on the device, from the same state and data.
//!
//! The modules were written by `ampc train-step shared/data/train/mlp/mlp.train.onnx --loss output:loss`, with
//! `--fp32`, with `--to bf16`, and without a format.

use crate::cases::{numbers, tensor};
use ampc_ir::text::{NoData, parse};
use ampc_ir::{DType, Module};
use ampc_runtime::cuda::Cuda;
use ampc_runtime::{Data, DataRef, HostTensor, Runtime, Session};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A step, and the permitted relative error of its loss.
pub(crate) const STEPS: [(&str, &str, f64); 3] = [
    ("f32", include_str!("step_fp32.ir"), 1e-4),
    ("bf16", include_str!("step_bf16.ir"), 0.01),
    ("f16", include_str!("step_fp16.ir"), 0.01),
];

/// A step of a layer with the operator `Attention`: causal, packed, and with heads that share keys and values. It was
/// written by `ampc train-step --loss mse --to bf16`.
pub(crate) const ATTENTION_STEP: &str = include_str!("step_attention.ir");

const TAKEN: usize = 20;

/// The text with the loss as the only output.
pub(crate) fn loss_alone(text: &str) -> String {
    let is_other = |line: &&str| line.starts_with("  output %") && !line.starts_with("  output %loss ");
    text.lines().filter(|line| !is_other(line)).map(|line| format!("{line}\n")).collect()
}

/// The text with other sizes for the batch, the features and the width, and with the loss as the only output.
pub(crate) fn sized(text: &str, sizes: [u64; 3]) -> String {
    resized(&loss_alone(text), sizes)
}

/// The text with other sizes for the batch, the features and the width.
fn resized(text: &str, [batch, features, width]: [u64; 3]) -> String {
    let mut sized = String::new();
    for line in text.lines() {
        for (i, part) in line.split('[').enumerate() {
            let (inside, rest) = part.split_once(']').unwrap_or((part, ""));
            let is_dims = i > 0 && inside.chars().all(|c| c.is_ascii_digit() || c == ',' || c == ' ');
            if i > 0 {
                sized.push('[');
            }
            if is_dims && part.contains(']') {
                let dims = inside.split(", ").map(|n| match n {
                    "16" => batch.to_string(),
                    "20" => features.to_string(),
                    "64" => width.to_string(),
                    other => other.to_owned(),
                });
                sized += &dims.collect::<Vec<_>>().join(", ");
                sized.push(']');
                sized += rest;
            } else {
                sized += part;
            }
        }
        sized.push('\n');
    }
    sized
}

/// The inputs of the first step: data, and states by name.
pub(crate) fn inputs(module: &Module) -> Vec<HostTensor> {
    let formals = module.graph(module.main()).inputs();
    let mut inputs = Vec::new();
    for &value in formals {
        let name = module.value_name(value).map(|name| module.text(name).to_owned()).unwrap_or_default();
        let ty = module.value(value).ty.as_tensor().unwrap();
        let dims = ty.shape.to_known().unwrap();
        let n: u64 = dims.iter().product();
        let of = name.strip_prefix("lo.").unwrap_or(&name);
        let seed = of.bytes().fold(7u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let scaled = |by: f32| numbers(n, seed).iter().map(|x| x * by).collect::<Vec<f32>>();
        inputs.push(match (ty.dtype, of) {
            (DType::I64, "target") => {
                #[expect(clippy::cast_possible_truncation, reason = "a class below 5")]
                let classes: Vec<i64> = numbers(n, 3).iter().map(|x| ((x + 2.0) * 1.2) as i64).collect();
                HostTensor::from_slice(&dims, &classes).unwrap()
            }
            (DType::I64 | DType::I32, _) => HostTensor::zeros(ty.dtype, &dims).unwrap(),
            (dtype, "x") => tensor(dtype, &dims, &scaled(0.5)),
            (dtype, "lr") => tensor(dtype, &dims, &[1e-3]),
            (dtype, "loss_scale") => tensor(dtype, &dims, &[1024.0]),
            (dtype, of) if of.starts_with("m.") || of.starts_with("v.") => {
                HostTensor::zeros(dtype, &dims).unwrap()
            }
            (dtype, "net.4.weight") => tensor(dtype, &dims, &vec![1.0; usize::try_from(n).unwrap()]),
            (dtype, _) => {
                #[expect(clippy::cast_precision_loss, reason = "an extent")]
                let fan = dims.last().copied().unwrap_or(1) as f32;
                tensor(dtype, &dims, &scaled(0.7 / fan.sqrt()))
            }
        });
    }
    inputs
}

pub(crate) struct Trained {
    pub(crate) session: Session,
    pub(crate) losses: Vec<f64>,
    first: Duration,
    each: Duration,
    pub(crate) data: Vec<Option<HostTensor>>,
}

pub(crate) fn refs(data: &[Option<HostTensor>]) -> Vec<Option<DataRef<'_>>> {
    data.iter().map(|x| x.as_ref().map(|x| DataRef::Tensor(x.view()))).collect()
}

pub(crate) fn loss(outputs: &[Data]) -> f64 {
    match &outputs[0] {
        Data::Tensor(loss) => loss.f64s().unwrap().next().unwrap(),
        _ => f64::NAN,
    }
}

pub(crate) fn train(runtime: &Runtime, module: &Module, steps: usize) -> Trained {
    let all: Vec<Option<HostTensor>> = inputs(module).into_iter().map(Some).collect();
    let mut session = runtime.prepare(module).unwrap_or_else(|error| panic!("{error}"));
    let start = Instant::now();
    let mut losses = vec![loss(&session.run(&refs(&all)).unwrap_or_else(|error| panic!("{error}")))];
    let first = start.elapsed();
    // The session keeps the states.
    let states: Vec<usize> = session.placed_states();
    let data: Vec<Option<HostTensor>> =
        all.into_iter().enumerate().map(|(at, x)| x.filter(|_| !states.contains(&at))).collect();
    let start = Instant::now();
    for _ in 1..steps {
        losses.push(loss(&session.run(&refs(&data)).unwrap_or_else(|error| panic!("{error}"))));
    }
    let each = start.elapsed() / u32::try_from(steps - 1).unwrap();
    Trained { session, losses, first, each, data }
}

/// The largest difference of the states, relative to the largest element of each state.
pub(crate) fn states_differ(a: &mut Session, b: &mut Session) -> f64 {
    let (a, b) = (a.states().unwrap(), b.states().unwrap());
    let mut most = 0.0;
    for ((_, a), (_, b)) in a.iter().zip(&b) {
        let (Data::Tensor(a), Data::Tensor(b)) = (a, b) else { continue };
        if !a.dtype().is_float() {
            most = f64::max(most, f64::from(u8::from(a.bytes() != b.bytes())));
            continue;
        }
        let greatest = b.f64s().unwrap().map(f64::abs).fold(1e-30, f64::max);
        let far = a.f64s().unwrap().zip(b.f64s().unwrap()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        most = f64::max(most, far / greatest);
    }
    most
}

fn step(
    cuda: &Arc<Cuda>,
    text: &str,
    permitted: f64,
    sizes: [u64; 3],
    steps: usize,
) -> Result<String, String> {
    let module = parse(&sized(text, sizes), &NoData).map_err(|errors| errors.to_string())?;
    let mut cpu = train(&Runtime::default(), &module, steps);
    let mut gpu = train(&Runtime::new(cuda.clone()), &module, steps);
    let again = train(&Runtime::new(cuda.clone()), &module, steps);
    let off = cpu.losses.iter().zip(&gpu.losses).map(|(a, b)| (a - b).abs() / a.abs()).fold(0.0, f64::max);
    let apart = states_differ(&mut gpu.session, &mut cpu.session);
    let report = format!(
        "losses {:.6} to {:.6} (CPU {:.6}), off by {off:.1e}, states by {apart:.1e}; first run {:?}, again {:?}, step {:?}, CPU {:?}",
        gpu.losses[0],
        gpu.losses[steps - 1],
        cpu.losses[steps - 1],
        gpu.first,
        again.first,
        gpu.each,
        cpu.each
    );
    if gpu.losses != again.losses {
        return Err(format!("{report}; a second training differs"));
    }
    if off.is_nan() || off > permitted {
        return Err(report);
    }
    Ok(report)
}

/// A step whose attention and its gradient are three graphs of cuDNN in each run.
fn attention_step(unrecorded: &Arc<Cuda>) -> Result<String, String> {
    let before = unrecorded.attentions_launched();
    let report = step(unrecorded, ATTENTION_STEP, 0.01, [16, 20, 64], TAKEN)?;
    let launched = unrecorded.attentions_launched() - before;
    // Two trainings.
    if launched != 3 * 2 * TAKEN as u64 {
        return Err(format!("{report}; {launched} graphs of cuDNN"));
    }
    Ok(report)
}

/// Steps recorded as CUDA graphs are bit-equal to steps whose kernels are launched each time, both in sequence and in
/// flight.
fn recorded(
    [cuda, unrecorded, queues]: &[Arc<Cuda>; 3],
    text: &str,
    sizes: [u64; 3],
    steps: usize,
    fold: bool,
) -> Result<String, String> {
    let module = parse(&sized(text, sizes), &NoData).map_err(|errors| errors.to_string())?;
    let runtime = |cuda: &Arc<Cuda>| Runtime { fold, ..Runtime::new(cuda.clone()) };
    let mut plain = train(&runtime(unrecorded), &module, steps);
    let mut graph = train(&runtime(cuda), &module, steps);
    let mut apart = states_differ(&mut graph.session, &mut plain.session);
    let (flying, flying_each) = in_flight(&runtime(cuda), &module, steps)?;
    let several = train(&runtime(queues), &module, steps);
    let (several_flying, several_each) = in_flight(&runtime(queues), &module, steps)?;
    let (_, launched_each) = in_flight(&runtime(unrecorded), &module, steps)?;
    if [&graph.losses, &flying, &several.losses, &several_flying]
        .iter()
        .any(|&losses| *losses != plain.losses)
    {
        apart = f64::NAN;
    }
    let report = format!(
        "states differ by {apart:.1e}; a step launched {:?}, replayed {:?}, on 3 queues {:?}; in flight {launched_each:?}, {flying_each:?}, {several_each:?}",
        plain.each, graph.each, several.each
    );
    if apart == 0.0 { Ok(report) } else { Err(report) }
}

/// The losses of steps, two of them in flight, and the time of each step.
fn in_flight(runtime: &Runtime, module: &Module, steps: usize) -> Result<(Vec<f64>, Duration), String> {
    let mut first = train(runtime, module, 2);
    let mut losses = first.losses;
    let start = Instant::now();
    let session = &mut first.session;
    for _ in 2..steps {
        session.begin_run(&refs(&first.data), &[0]).map_err(|error| error.to_string())?;
        if session.runs_begun() > 2 {
            losses
                .extend(session.end_run().map_err(|error| error.to_string())?.map(|outputs| loss(&outputs)));
        }
    }
    while let Some(outputs) = session.end_run().map_err(|error| error.to_string())? {
        losses.push(loss(&outputs));
    }
    Ok((losses, start.elapsed() / u32::try_from(steps - 2).unwrap()))
}

/// Another session immediately reads a tensor that stays on the device.
fn handed_over(cuda: &Arc<Cuda>) -> Result<String, String> {
    let text = "module ir=10\nopset ai.onnx=21\n\ngraph @main {\n  input %a : f32[4096, 4096]\n  %b = Neg(%a) : f32[4096, 4096]\n  output %b : f32[4096, 4096]\n}\n";
    let module = parse(text, &NoData).map_err(|errors| errors.to_string())?;
    let runtime = Runtime::new(cuda.clone());
    let mut sessions = [runtime.prepare(&module).unwrap(), runtime.prepare(&module).unwrap()];
    for seed in 0..10 {
        let a = tensor(DType::F32, &[4096, 4096], &numbers(4096 * 4096, seed));
        let [first, second] = &mut sessions;
        let made =
            first.run_in_place(&[Some(DataRef::Tensor(a.view()))]).map_err(|error| error.to_string())?;
        let back = second.run(&[Some(made[0].view())]).map_err(|error| error.to_string())?;
        let Data::Tensor(back) = &back[0] else { return Err("no tensor".into()) };
        if back.bytes() != a.bytes() {
            return Err(format!("run {seed}: the second session has read other elements"));
        }
    }
    Ok("10 tensors".into())
}

/// The time of a run that also copies every next state to the host, compared with runs that copy only the loss.
fn outputs(cuda: &Arc<Cuda>, text: &str, sizes: [u64; 3]) -> Result<String, String> {
    let mut times = Vec::new();
    for text in [loss_alone(text), text.to_owned()] {
        let module = parse(&resized(&text, sizes), &NoData).map_err(|errors| errors.to_string())?;
        times.push(train(&Runtime::new(cuda.clone()), &module, 100).each);
    }
    let module = parse(&resized(text, sizes), &NoData).map_err(|errors| errors.to_string())?;
    let mut trained = train(&Runtime::new(cuda.clone()), &module, 3);
    let start = Instant::now();
    for _ in 0..100 {
        trained.session.run_to(&refs(&trained.data), |_, _| ()).map_err(|error| error.to_string())?;
    }
    let visited = start.elapsed() / 100;
    let (_, wanted) = in_flight(&Runtime::new(cuda.clone()), &module, 100)?;
    Ok(format!(
        "with the loss as output {:?}, with all outputs {:?}, all visited {visited:?}, in flight with the loss wanted of all outputs {wanted:?}",
        times[0], times[1]
    ))
}

/// Sessions of one backend in several threads have the same results as a session alone.
fn threads(cuda: &Arc<Cuda>, text: &str) -> Result<String, String> {
    let module = parse(&loss_alone(text), &NoData).map_err(|errors| errors.to_string())?;
    let runtime = Runtime::new(cuda.clone());
    let want = train(&runtime, &module, TAKEN).losses;
    let all = std::thread::scope(|scope| {
        let train = || train(&runtime, &module, TAKEN).losses;
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(train)).collect();
        threads.into_iter().all(|thread| thread.join().is_ok_and(|losses| losses == want))
    });
    if all { Ok("4 sessions have equal losses".into()) } else { Err("a session has other losses".into()) }
}

/// Runs the steps whose names contain `filter`; returns the number of failures.
pub(crate) fn run(backends: &[Arc<Cuda>; 3], filter: &str) -> usize {
    let [cuda, ..] = backends;
    // Large products take minutes on the simulated device.
    let is_simulated = cuda.device_name() == "simulated device";
    let steps = if is_simulated { 10 } else { 200 };
    let mut failed = 0;
    let mut check = |name: &str, work: &dyn Fn() -> Result<String, String>| {
        if name.contains(filter) {
            let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("panicked".into()));
            println!(
                "{}  {name}: {}",
                if done.is_ok() { "ok  " } else { "FAIL" },
                done.as_ref().unwrap_or_else(|e| e)
            );
            failed += usize::from(done.is_err());
        }
    };
    check("tensors handed over", &|| handed_over(cuda));
    check("step of an attention bf16", &|| attention_step(&backends[1]));
    check("graph of an attention bf16", &|| recorded(backends, ATTENTION_STEP, [16, 20, 64], steps, true));
    for (name, text, permitted) in STEPS {
        check(&format!("step {name}"), &|| step(cuda, text, permitted, [16, 20, 64], TAKEN));
        check(&format!("graph {name}"), &|| recorded(backends, text, [16, 20, 64], steps, true));
        check(&format!("unfolded graph {name}"), &|| recorded(backends, text, [16, 20, 64], steps, false));
        check(&format!("threads {name}"), &|| threads(cuda, text));
        if is_simulated {
            continue;
        }
        check(&format!("large step {name}"), &|| step(cuda, text, permitted, [1024, 1024, 2048], 3));
        check(&format!("outputs {name}"), &|| outputs(cuda, text, [1024, 1024, 2048]));
        check(&format!("large graph {name}"), &|| recorded(backends, text, [1024, 1024, 2048], steps, true));
    }
    if is_simulated {
        println!("skipped: large steps, on a simulated device");
    }
    failed
}
