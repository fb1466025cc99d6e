//! Chains of element-wise nodes: a group gives the same bits as its separate nodes, and groups of other sizes share a
//! kernel.

use crate::cases::Tolerance;
use crate::elements::{Named, matches_cpu, outputs, passing, refs, same_bits};
use crate::random::{Blind, HEAD, Random, elements, graph};
use ampc_ir::DType;
use ampc_ir::text::{NoData, parse};
use ampc_runtime::cuda::Cuda;
use ampc_runtime::device::{DeviceTensor, Span};
use ampc_runtime::{Backend, DataRef, HostTensor, Runtime};
use std::sync::Arc;

/// Runs the cases whose names contain `filter`; returns the number of failures.
pub(crate) fn run(cuda: &Arc<Cuda>, filter: &str) -> usize {
    let mut cases: Vec<Named> = Vec::new();
    for seed in 1..9 {
        let cuda = cuda.clone();
        cases.push((format!("group: random {seed}"), Box::new(move || random_groups(&cuda, seed))));
    }
    for (name, check) in CHECKS {
        let cuda = cuda.clone();
        cases.push(((*name).to_owned(), Box::new(move || check(&cuda))));
    }
    passing(&cases, filter)
}

type Check = fn(&Arc<Cuda>) -> Result<(), String>;

const CHECKS: &[(&str, Check)] = &[
    ("group: gated product", gated),
    ("group: one kernel for a chain", one_kernel),
    ("group: shapes share kernels", shared_kernels),
    ("group: unaligned operands", unaligned),
];

/// Runs with and without groups are bit-equal, also when recorded and replayed.
pub(crate) fn same(cuda: &Arc<Cuda>, text: &str, inputs: &[HostTensor]) -> Result<String, String> {
    let module = parse(text, &NoData).map_err(|errors| format!("{errors}\n{text}"))?;
    let refs = refs(inputs);
    let mut session =
        Runtime::new(cuda.clone()).prepare(&module).map_err(|error| format!("{error}\n{text}"))?;
    let want = session.run_observed(&refs, Some(&mut Blind)).map_err(|error| format!("{error}\n{text}"))?;
    for _ in 0..3 {
        let got = session.run(&refs).map_err(|error| format!("{error}\n{text}"))?;
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            same_bits(got, want)
                .map_err(|error| format!("output {i}: {error}\n{}\n{text}", session.plan_text()))?;
        }
    }
    Ok(session.plan_text())
}

/// The number of groups of several nodes.
fn groups(plan: &str) -> usize {
    plan.lines().filter(|line| line.contains('+') && line.contains(" = ")).count()
}

fn random_groups(cuda: &Arc<Cuda>, seed: u64) -> Result<(), String> {
    let mut found = 0;
    for seed in seed * 3..seed * 3 + 3 {
        let mut random = Random::new(seed);
        let n_nodes = 3 + random.below(20);
        let dims = random.of(&[[3, 5, 7], [1, 1, 1], [2, 9, 24], [1, 4, 1], [2, 0, 3], [4, 3, 16]]);
        let (text, inputs) = graph(&mut random, n_nodes, dims);
        found += groups(&same(cuda, &text, &inputs)?);
    }
    if found > 0 { Ok(()) } else { Err("no group".into()) }
}

/// The product between the nodes of a group precedes the group.
fn gated(cuda: &Arc<Cuda>) -> Result<(), String> {
    let mut random = Random::new(2);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let text = format!(
            "{HEAD}graph @main {{\n  input %x : {dtype}[6, 16]\n  input %v : {dtype}[16, 24]\n  input %w : {dtype}[16, 24]\n  \
             %g = MatMul(%x, %v) : {dtype}[6, 24]\n  %s = Sigmoid(%g) : {dtype}[6, 24]\n  %m = Mul(%g, %s) : {dtype}[6, 24]\n  \
             %u = MatMul(%x, %w) : {dtype}[6, 24]\n  %y = Mul(%m, %u) : {dtype}[6, 24]\n  output %y\n}}\n"
        );
        let inputs: Vec<HostTensor> =
            [[6, 16], [16, 24], [16, 24]].iter().map(|dims| elements(&mut random, dtype, dims)).collect();
        let plan = same(cuda, &text, &inputs)?;
        if !plan.contains("Sigmoid+Mul+Mul") {
            return Err(format!("other groups\n{plan}"));
        }
    }
    Ok(())
}

/// Casts, broadcast operands, a condition, and two results.
fn one_kernel(cuda: &Arc<Cuda>) -> Result<(), String> {
    let text = format!(
        "{HEAD}graph @main {{\n  input %x : f16[4, 9, 16]\n  input %b : f32[9, 1]\n  input %s : f32\n  input %c : bool[4, 1, 16]\n  \
         %w = Cast(%x) {{to=1}} : f32[4, 9, 16]\n  %p = Mul(%w, %b) : f32[4, 9, 16]\n  %q = Add(%p, %s) : f32[4, 9, 16]\n  \
         %g = Gelu(%q) : f32[4, 9, 16]\n  %z = Where(%c, %g, %w) : f32[4, 9, 16]\n  %h = Cast(%z) {{to=16}} : bf16[4, 9, 16]\n  \
         %d = Less(%z, %s) : bool[4, 9, 16]\n  output %h\n  output %d\n  output %q\n}}\n"
    );
    let mut random = Random::new(9);
    let inputs = vec![
        elements(&mut random, DType::F16, &[4, 9, 16]),
        elements(&mut random, DType::F32, &[9, 1]),
        elements(&mut random, DType::F32, &[]),
        elements(&mut random, DType::Bool, &[4, 1, 16]),
    ];
    let plan = same(cuda, &text, &inputs)?;
    if groups(&plan) != 1 || !plan.contains("Cast+Mul+Add+Gelu+Where+Cast+Less") {
        return Err(format!("other groups\n{plan}"));
    }
    matches_cpu(cuda, &text, &inputs, Tolerance::Elements)
}

/// Extents are arguments of kernels.
fn shared_kernels(cuda: &Arc<Cuda>) -> Result<(), String> {
    let mut random = Random::new(4);
    let mut compiled = Vec::new();
    for [a, b, c] in [[3u64, 4, 5], [7, 2, 8], [2, 33, 64]] {
        let text = format!(
            "{HEAD}graph @main {{\n  input %x : f32[{a}, {b}, {c}]\n  input %y : f32[{b}, 1]\n  %s = Add(%x, %y) : f32[{a}, {b}, {c}]\n  \
             %e = HardSigmoid(%s) {{alpha=0.375}} : f32[{a}, {b}, {c}]\n  output %e\n}}\n"
        );
        let inputs =
            [elements(&mut random, DType::F32, &[a, b, c]), elements(&mut random, DType::F32, &[b, 1])];
        same(cuda, &text, &inputs)?;
        matches_cpu(cuda, &text, &inputs, Tolerance::Elements)?;
        compiled.push(cuda.kernels_compiled());
    }
    match compiled[..] {
        [first, second, third] if first == second && second == third => Ok(()),
        _ => Err(format!("{compiled:?} kernels after each shape")),
    }
}

/// Operands in device memory whose addresses are not multiples of 16 bytes.
fn unaligned(cuda: &Arc<Cuda>) -> Result<(), String> {
    let device = cuda.device().ok_or("no device")?;
    for (dtype, offset) in
        [(DType::F32, 4), (DType::F16, 2), (DType::BF16, 22), (DType::F32, 32), (DType::F16, 0)]
    {
        let text = format!(
            "{HEAD}graph @main {{\n  input %x : {dtype}[5, 64]\n  input %y : {dtype}[64]\n  %s = Add(%x, %y) : {dtype}[5, 64]\n  \
             %t = Tanh(%s) : {dtype}[5, 64]\n  output %t\n}}\n"
        );
        let mut random = Random::new(8);
        let inputs = [elements(&mut random, dtype, &[5, 64]), elements(&mut random, dtype, &[64])];
        let want = outputs(&Runtime::new(cuda.clone()), &text, &inputs)?;
        let mut queue = device.queue().map_err(|error| error.to_string())?;
        let mut moved = Vec::new();
        for input in &inputs {
            let bytes = input.bytes().unwrap();
            let memory = device.allocate(bytes.len() + offset).map_err(|error| error.to_string())?;
            let span = Span { memory: &memory, offset, len: bytes.len() };
            queue.upload(bytes, span).map_err(|error| error.to_string())?;
            moved.push(DeviceTensor::of(dtype, input.dims().to_vec(), span));
        }
        queue.finish().map_err(|error| error.to_string())?;
        let module = parse(&text, &NoData).map_err(|errors| errors.to_string())?;
        let mut session = Runtime::new(cuda.clone()).prepare(&module).map_err(|error| error.to_string())?;
        let refs: Vec<_> = moved.iter().map(|x| Some(DataRef::Device(x.view()))).collect();
        for _ in 0..3 {
            let got = session.run(&refs).map_err(|error| error.to_string())?;
            same_bits(&got[0], &want[0]).map_err(|error| format!("{dtype} at {offset}: {error}"))?;
        }
    }
    Ok(())
}
