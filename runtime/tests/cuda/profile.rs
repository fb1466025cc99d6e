//! Times of steps on the device: each step that launches a kernel has a time, and the results are those of any other
//! run.

use crate::cases::{numbers, tensor};
use ampc_ir::text::{NoData, parse};
use ampc_ir::{DType, Node};
use ampc_runtime::cuda::Cuda;
use ampc_runtime::session::{NodeObserver, Watch};
use ampc_runtime::{Data, DataRef, Runtime};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The steps that ran, and the times that the device reported.
#[derive(Default)]
struct Times {
    ran: BTreeMap<Vec<Node>, u32>,
    took: BTreeMap<Vec<Node>, (u32, Duration)>,
}

impl NodeObserver for Times {
    fn watch(&self) -> Watch {
        Watch::nothing()
    }
    fn value(&mut self, _: Node, _: usize, _: DataRef<'_>) {}
    fn ran(&mut self, nodes: &[Node]) {
        *self.ran.entry(nodes.to_vec()).or_default() += 1;
    }
    fn wants_times(&self) -> bool {
        true
    }
    fn took(&mut self, nodes: &[Node], time: Duration) {
        let (count, sum) = self.took.entry(nodes.to_vec()).or_default();
        *count += 1;
        *sum += time;
    }
}

const TEXT: &str = "module ir=10\nopset ai.onnx=21\n\ngraph @main {\n  input %x : f32[64, 48]\n  input %w : f32[48, 32]\n  \
                    const %s : i64[2] = [32, 64]\n  const %n : i64 = 3\n  const %go : bool = true\n  \
                    %h = MatMul(%x, %w) : f32[64, 32]\n  %r = Relu(%h) : f32[64, 32]\n  %e = Exp(%r) : f32[64, 32]\n  \
                    %v = Reshape(%e, %s) : f32[32, 64]\n  %m = Softmax(%v) : f32[32, 64]\n  \
                    %y = Loop(%n, %go, %m) {\n    body: graph @body() {\n      input %i : i64\n      input %c : bool\n      \
                    input %a : f32[32, 64]\n      %d = Identity(%c) : bool\n      %b = Neg(%a) : f32[32, 64]\n      \
                    output %d : bool\n      output %b : f32[32, 64]\n    }\n  } : f32[32, 64]\n  output %y : f32[32, 64]\n}\n";

fn profiled(cuda: &Arc<Cuda>) -> Result<String, String> {
    let module = parse(TEXT, &NoData).map_err(|errors| errors.to_string())?;
    let mut session = Runtime::new(cuda.clone()).prepare(&module).map_err(|error| error.to_string())?;
    let x = tensor(DType::F32, &[64, 48], &numbers(64 * 48, 1));
    let w = tensor(DType::F32, &[48, 32], &numbers(48 * 32, 2));
    let inputs = [Some(DataRef::Tensor(x.view())), Some(DataRef::Tensor(w.view()))];
    let bytes = |outputs: Vec<Data>| match &outputs[0] {
        Data::Tensor(tensor) => tensor.bytes().map(<[u8]>::to_vec),
        _ => None,
    };
    let plain = bytes(session.run(&inputs).map_err(|error| error.to_string())?);
    let mut times = Times::default();
    let start = Instant::now();
    for _ in 0..2 {
        let made = session.run_observed(&inputs, Some(&mut times)).map_err(|error| error.to_string())?;
        if plain.is_none() || bytes(made) != plain {
            return Err("a profiled run has other results".into());
        }
    }
    let whole = start.elapsed();
    let op = |nodes: &[Node]| nodes.iter().map(|&node| module.op_name(node).1).collect::<Vec<_>>().join("+");
    for (nodes, &ran) in &times.ran {
        let has_kernel = !["Reshape", "Loop", "Identity"].contains(&&*op(nodes));
        let told = times.took.get(nodes).map_or(0, |&(count, _)| count);
        if has_kernel && told != ran {
            return Err(format!("{} ran {ran} times, and has {told} times", op(nodes)));
        }
    }
    let product = times.took.iter().find(|(nodes, _)| op(nodes).contains("MatMul"));
    let Some((_, &(2, product))) = product else { return Err("expected 2 times of MatMul".into()) };
    let neg = times.took.iter().find(|(nodes, _)| op(nodes) == "Neg").map(|(_, &(count, _))| count);
    let sum: Duration = times.took.values().map(|&(_, time)| time).sum();
    match neg == Some(6) && product > Duration::ZERO && sum <= whole * 3 {
        true => Ok(format!("{} steps, {sum:?} of {whole:?}", times.took.len())),
        false => Err(format!("Neg has {neg:?} times, MatMul takes {product:?}, all {sum:?} of {whole:?}")),
    }
}

/// Runs the checks whose names contain `filter`; returns the number of failures.
pub(crate) fn run(backends: &[Arc<Cuda>; 3], filter: &str) -> usize {
    let mut failed = 0;
    for (name, cuda) in ["profile", "profile, launched", "profile, 3 queues"].iter().zip(backends) {
        if !name.contains(filter) {
            continue;
        }
        let done = profiled(cuda);
        println!(
            "{}  {name}: {}",
            if done.is_ok() { "ok  " } else { "FAIL" },
            done.as_ref().unwrap_or_else(|e| e)
        );
        failed += usize::from(done.is_err());
    }
    failed
}
