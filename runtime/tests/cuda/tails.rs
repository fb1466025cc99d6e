//! The tail of training steps: checks of many gradients, and optimizers that share a launch.

use crate::cases::{Tolerance, numbers, tensor};
use crate::chains::same;
use crate::elements::{Named, matches_cpu, outputs, passing, refs};
use crate::steps::{STEPS, inputs, loss_alone};
use ampc_ir::DType;
use ampc_ir::text::{NoData, parse};
use ampc_runtime::cuda::Cuda;
use ampc_runtime::{Data, HostTensor, Runtime};
use std::fmt::Write;
use std::sync::Arc;

type Check = fn(&Arc<Cuda>) -> Result<(), String>;

const CHECKS: &[(&str, Check)] = &[
    ("tail: gradients of all types", gradients),
    ("tail: Adam", |cuda| updated(cuda, &ADAM)),
    ("tail: AdamW", |cuda| updated(cuda, &ADAMW)),
    ("tail: AdamW of transformers", |cuda| updated(cuda, &HF)),
    ("tail: SGD", |cuda| updated(cuda, &SGD)),
    ("tail: SGD with momentum", |cuda| updated(cuda, &MOMENTUM)),
    ("tail: more tensors than a launch has", many),
    ("tail: two updates of a weight", twice),
    ("tail: two updates from one weight", shared),
    ("tail: scalars of two kinds", scalars),
    ("tail: selections", selections),
    ("tail: steps", steps),
];

/// Runs the cases whose names contain `filter`; returns the number of failures.
pub(crate) fn run(cuda: &Arc<Cuda>, filter: &str) -> usize {
    let mut cases: Vec<Named> = Vec::new();
    for (name, check) in CHECKS {
        let cuda = cuda.clone();
        cases.push(((*name).to_owned(), Box::new(move || check(&cuda))));
    }
    passing(&cases, filter)
}

/// A graph written line by line.
struct Graph {
    text: String,
    inputs: Vec<HostTensor>,
}

impl Graph {
    fn new() -> Graph {
        Graph {
            text: "module ir=10\nopset ai.onnx=17, ai.ampc=1\n\ngraph @main {\n".into(),
            inputs: Vec::new(),
        }
    }

    fn input(&mut self, name: &str, input: HostTensor) {
        let _ = writeln!(self.text, "  input %{name} : {}", ty(input.dtype(), input.dims()));
        self.inputs.push(input);
    }

    /// The scalars of optimizers: rate, multiplier, step count, and the flag of a gradient that is not finite.
    fn scalars(&mut self, found: f32) {
        self.input("rate", tensor(DType::F32, &[], &[0.01]));
        self.input("mult", tensor(DType::F32, &[], &[0.25]));
        self.input("count", HostTensor::from_slice(&[], &[3i64]).unwrap());
        self.input("found", tensor(DType::F32, &[], &[found]));
    }

    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "  {line}");
    }

    fn end(mut self) -> (String, Vec<HostTensor>) {
        self.text.push_str("}\n");
        (self.text, self.inputs)
    }
}

fn ty(dtype: DType, dims: &[u64]) -> String {
    if dims.is_empty() { dtype.to_string() } else { format!("{dtype}{dims:?}") }
}

fn random(dtype: DType, dims: &[u64], seed: u64) -> HostTensor {
    tensor(dtype, dims, &numbers(dims.iter().product(), seed))
}

/// Numbers from 0 to 2.
fn positive(dims: &[u64], seed: u64) -> HostTensor {
    let numbers: Vec<f32> = numbers(dims.iter().product(), seed).iter().map(|x| x.abs()).collect();
    tensor(DType::F32, dims, &numbers)
}

/// An optimizer: its name and attributes, and the number of states besides the weights.
struct Optimizer {
    call: &'static str,
    attributes: &'static str,
    states: usize,
}

const ADAM: Optimizer = Optimizer {
    call: "ai.ampc::Adam",
    attributes: "beta1=tensor(f64 = 0.9), beta2=tensor(f64 = 0.999), epsilon=tensor(f64 = 1e-8), bias_correction=1, weight_decay=tensor(f64 = 0.01)",
    states: 2,
};
const ADAMW: Optimizer = Optimizer {
    call: "ai.ampc::AdamW",
    attributes: "beta1=tensor(f64 = 0.9), beta2=tensor(f64 = 0.999), epsilon=tensor(f64 = 1e-8), bias_correction=1, mode=\"torch\", weight_decay=tensor(f64 = 0.01)",
    states: 2,
};
const HF: Optimizer = Optimizer {
    call: "ai.ampc::AdamW",
    attributes: "beta1=tensor(f64 = 0.9), beta2=tensor(f64 = 0.99), epsilon=tensor(f64 = 1e-6), bias_correction=0, mode=\"hf\", weight_decay=tensor(f64 = 0.1)",
    states: 2,
};
const SGD: Optimizer = Optimizer {
    call: "ai.ampc::SGD",
    attributes: "momentum=tensor(f64 = 0.0), dampening=tensor(f64 = 0.0), weight_decay=tensor(f64 = 0.01), nesterov=0, on_overflow=\"skip\"",
    states: 0,
};
const MOMENTUM: Optimizer = Optimizer {
    call: "ai.ampc::SGD",
    attributes: "momentum=tensor(f64 = 0.9), dampening=tensor(f64 = 0.0), weight_decay=tensor(f64 = 0.01), nesterov=1, on_overflow=\"zero_grad\"",
    states: 1,
};

impl Optimizer {
    /// The node of weights `%w{i}` with the gradient `%g{i}` and the states `%m{i}` and `%v{i}`; the names of results
    /// have the suffix `_`.
    fn node(&self, i: usize, dims: &[u64], low: Option<DType>) -> String {
        let (f32s, scalars) = (ty(DType::F32, dims), "%rate, %mult, %count, %found");
        let (mut results, mut types) = (format!("%w{i}_"), f32s.clone());
        let operands = match self.states {
            2 => format!("%w{i}, %g{i}, %m{i}, %v{i}, {scalars}"),
            1 => format!("%w{i}, %g{i}, {scalars}, %v{i}"),
            _ => format!("%w{i}, %g{i}, {scalars}"),
        };
        let states = match self.states {
            2 => &["m", "v"][..],
            1 => &["v"],
            // There is no momentum, and a low copy is the third result.
            _ => &[],
        };
        for state in states {
            results += &format!(", %{state}{i}_");
            types += &format!(", {f32s}");
        }
        let mut attributes = self.attributes.to_owned();
        if let Some(low) = low {
            if states.is_empty() {
                results += ", _";
                types += ", _";
            }
            results += &format!(", %lo{i}_");
            types += &format!(", {}", ty(low, dims));
            attributes += if low == DType::F16 { ", w_lo_dtype=10" } else { ", w_lo_dtype=16" };
        }
        format!("{results} = {}({operands}) {{{attributes}}} : {types}", self.call)
    }

    /// The outputs of a node.
    fn outputs(&self, i: usize, has_low: bool) -> Vec<String> {
        let states = [&["m", "v"][..], &["v"], &[]][2 - self.states];
        let names = ["w"].iter().chain(states).map(|name| format!("output %{name}{i}_"));
        names.chain(has_low.then(|| format!("output %lo{i}_"))).collect()
    }

    fn inputs(&self, graph: &mut Graph, i: usize, dims: &[u64], gradient: DType) {
        let seed = i as u64 * 5;
        graph.input(&format!("w{i}"), random(DType::F32, dims, seed + 1));
        graph.input(&format!("g{i}"), random(gradient, dims, seed + 2));
        if self.states == 2 {
            graph.input(&format!("m{i}"), random(DType::F32, dims, seed + 3));
        }
        if self.states > 0 {
            graph.input(&format!("v{i}"), positive(dims, seed + 4));
        }
    }
}

/// The steps of a plan that run an optimizer.
fn launched(plan: &str, optimizer: &str) -> usize {
    plan.lines().filter(|line| line.contains(" = ") && line.contains(optimizer)).count()
}

/// Optimizers of tensors of all sizes: groups give the same bits as single nodes, which are close to those of the
/// CPU; a skipped step changes nothing.
fn updated(cuda: &Arc<Cuda>, optimizer: &Optimizer) -> Result<(), String> {
    let dims: [&[u64]; 9] = [&[7], &[3, 5], &[0], &[], &[4096], &[2049], &[3, 2047], &[1], &[64, 3]];
    for found in [0.0, 1.0] {
        let mut graph = Graph::new();
        graph.scalars(found);
        let gradient = |i: usize| [DType::F32, DType::F16][i % 2];
        let low = |i: usize| (i % 2 == 1).then_some(DType::F16);
        for (i, dims) in dims.iter().enumerate() {
            optimizer.inputs(&mut graph, i, dims, gradient(i));
        }
        for (i, dims) in dims.iter().enumerate() {
            graph.line(&optimizer.node(i, dims, low(i)));
        }
        for i in 0..dims.len() {
            optimizer.outputs(i, low(i).is_some()).iter().for_each(|line| graph.line(line));
        }
        let (text, inputs) = graph.end();
        let plan = same(cuda, &text, &inputs)?;
        let name = optimizer.call.trim_start_matches("ai.ampc::");
        // Gradients of two types, and low copies for one of them.
        if launched(&plan, name) != 2 {
            return Err(format!("other groups\n{plan}"));
        }
        matches_cpu(cuda, &text, &inputs, Tolerance::Elements)?;
        if found != 0.0 && optimizer.attributes.contains("skip") {
            let made = outputs(&Runtime::new(cuda.clone()), &text, &inputs)?;
            let Data::Tensor(first) = &made[0] else { return Err("no tensor".into()) };
            if first.bytes() != inputs[4].bytes() {
                return Err("a skipped step changes weights".into());
            }
        }
    }
    Ok(())
}

/// Tensors that take two or more launches.
fn many(cuda: &Arc<Cuda>) -> Result<(), String> {
    let mut graph = Graph::new();
    graph.scalars(0.0);
    let dims = |i: usize| [1 + i as u64 % 37];
    (0..115).for_each(|i| ADAMW.inputs(&mut graph, i, &dims(i), DType::BF16));
    (0..115).for_each(|i| graph.line(&ADAMW.node(i, &dims(i), Some(DType::BF16))));
    for i in 0..115 {
        // Some states have no reader.
        let lines = ADAMW.outputs(i, true);
        let lines = if i % 5 == 0 { &lines[..1] } else { &lines[..] };
        lines.iter().for_each(|line| graph.line(line));
    }
    let (text, inputs) = graph.end();
    let plan = same(cuda, &text, &inputs)?;
    if launched(&plan, "AdamW") != 1 {
        return Err(format!("other groups\n{plan}"));
    }
    matches_cpu(cuda, &text, &inputs, Tolerance::Elements)
}

/// An update that depends on another update is not in its group, even if nodes of one group stand between them.
fn twice(cuda: &Arc<Cuda>) -> Result<(), String> {
    let mut graph = Graph::new();
    graph.scalars(0.0);
    (0..4).for_each(|i| ADAMW.inputs(&mut graph, i, &[33], DType::F32));
    graph.line(&ADAMW.node(0, &[33], None));
    graph.line(&ADAMW.node(1, &[33], None));
    // The gradient of the third update depends on the first, and is in a group with a node that the fourth does not
    // read.
    graph.line("%a = Neg(%w0_) : f32[33]");
    graph.line("%b = Mul(%a, %g2) : f32[33]");
    graph.line("%c = Add(%b, %a) : f32[33]");
    graph.line(&ADAMW.node(2, &[33], None).replace("%g2,", "%c,"));
    graph.line(&ADAMW.node(3, &[33], None));
    for i in 0..4 {
        ADAMW.outputs(i, false).iter().for_each(|line| graph.line(line));
    }
    let (text, inputs) = graph.end();
    let plan = same(cuda, &text, &inputs)?;
    if !plan.contains("AdamW+AdamW") || plan.contains("AdamW+AdamW+AdamW+AdamW") {
        return Err(format!("other groups\n{plan}"));
    }
    matches_cpu(cuda, &text, &inputs, Tolerance::Elements)
}

/// Two optimizers of a group read the same weights, which neither may overwrite.
fn shared(cuda: &Arc<Cuda>) -> Result<(), String> {
    let mut graph = Graph::new();
    graph.scalars(0.0);
    (0..2).for_each(|i| ADAMW.inputs(&mut graph, i, &[5000], DType::F32));
    graph.line("%w = Neg(%w0) : f32[5000]");
    (0..2).for_each(|i| graph.line(&ADAMW.node(i, &[5000], None).replace(&format!("(%w{i},"), "(%w,")));
    graph.line("output %w0_");
    graph.line("output %w1_");
    let (text, inputs) = graph.end();
    let plan = same(cuda, &text, &inputs)?;
    if launched(&plan, "AdamW") != 1 {
        return Err(format!("other groups\n{plan}"));
    }
    matches_cpu(cuda, &text, &inputs, Tolerance::Elements)
}

/// Optimizers with two rates form two groups.
fn scalars(cuda: &Arc<Cuda>) -> Result<(), String> {
    let mut graph = Graph::new();
    graph.scalars(0.0);
    graph.input("other", tensor(DType::F32, &[], &[0.5]));
    (0..4).for_each(|i| SGD.inputs(&mut graph, i, &[40], DType::F32));
    for i in 0..4 {
        let node = SGD.node(i, &[40], None);
        graph.line(&if i % 2 == 0 { node } else { node.replace("%rate", "%other") });
    }
    (0..4).for_each(|i| graph.line(&format!("output %w{i}_")));
    let (text, inputs) = graph.end();
    let plan = same(cuda, &text, &inputs)?;
    if launched(&plan, "SGD") != 2 {
        return Err(format!("other groups\n{plan}"));
    }
    matches_cpu(cuda, &text, &inputs, Tolerance::Elements)
}

/// The optimizers of a step form one group for each gradient type, and update their states in place. The steps in f32
/// and bf16 have no check that waits for all gradients, and their groups are split so that gradients die early.
fn steps(cuda: &Arc<Cuda>) -> Result<(), String> {
    for (name, text, _) in STEPS {
        let module = parse(&loss_alone(text), &NoData).map_err(|errors| errors.to_string())?;
        let inputs = inputs(&module);
        let mut session = Runtime::new(cuda.clone()).prepare(&module).map_err(|error| error.to_string())?;
        session.bind(&refs(&inputs)).map_err(|error| error.to_string())?;
        let plan = session.plan_text();
        let groups: Vec<&str> = plan.lines().filter(|line| line.contains("= AdamW")).collect();
        let taken = ["net.0.weight", "m.net.2.weight", "v.net.5.bias"];
        let is_taken = |name: &&str| {
            groups
                .iter()
                .any(|line| line.split_once("in place of").is_some_and(|(_, taken)| taken.contains(*name)))
        };
        // Without a check of all gradients, larger groups would keep gradients in the arena.
        let most = if name == "f16" { 2 } else { 4 };
        if groups.is_empty() || groups.len() > most || !taken.iter().all(is_taken) {
            return Err(format!("{name}\n{plan}"));
        }
    }
    Ok(())
}

/// Values of several lengths that a skipped step keeps are selected by one launch; a chain of two is a separate
/// kernel.
fn selections(cuda: &Arc<Cuda>) -> Result<(), String> {
    for skipped in [false, true] {
        let mut graph = Graph::new();
        graph.input("skipped", HostTensor::from_bytes(DType::Bool, &[], &[u8::from(skipped)]).unwrap());
        for (i, n) in [3u64, 64, 4099, 1, 2048].into_iter().enumerate() {
            graph.input(&format!("old{i}"), random(DType::F32, &[n], i as u64));
            graph.input(&format!("new{i}"), random(DType::F32, &[n], 20 + i as u64));
            graph.line(&format!("%s{i} = Where(%skipped, %old{i}, %new{i}) : f32[{n}]"));
            graph.line(&format!("output %s{i}"));
        }
        graph.line("%a = Where(%skipped, %old1, %new1) : f32[64]");
        graph.line("%b = Where(%skipped, %a, %old1) : f32[64]");
        graph.line("output %a");
        graph.line("output %b");
        let (text, inputs) = graph.end();
        matches_cpu(cuda, &text, &inputs, Tolerance::Exact)?;
        let module = parse(&text, &NoData).map_err(|errors| errors.to_string())?;
        let mut session = Runtime::new(cuda.clone()).prepare(&module).map_err(|error| error.to_string())?;
        session.bind(&refs(&inputs)).map_err(|error| error.to_string())?;
        let plan = session.plan_text();
        if !plan.contains("Where+Where+Where+Where(") {
            return Err(plan);
        }
    }
    Ok(())
}

/// Gradients of three types and all sizes, in two launches, with one element that may be infinite.
fn gradients(cuda: &Arc<Cuda>) -> Result<(), String> {
    let types = [DType::F32, DType::F16, DType::BF16];
    for (n, wrong) in [(1, None), (8, Some(f32::NAN)), (140, None), (140, Some(f32::INFINITY))] {
        let mut graph = Graph::new();
        graph.input("inverse", tensor(DType::F32, &[], &[0.5]));
        for i in 0..n {
            let dims = [[5, 7], [0, 3], [1, 2051], [2, 1], [3, 4099]][i % 5];
            let mut elements = numbers(dims.iter().product(), i as u64);
            if let (Some(wrong), true) = (wrong, i == n - 1) {
                *elements.last_mut().ok_or("no element")? = wrong;
            }
            graph.input(&format!("g{i}"), tensor(types[i % 3], &dims, &elements));
        }
        let list: String = (0..n).map(|i| format!(", %g{i}")).collect();
        graph.line(&format!("%found, %square = ai.ampc::GradCheck(%inverse{list}) : f32, f32"));
        graph.line("output %found");
        if wrong.is_none() {
            graph.line("output %square");
        }
        let (text, inputs) = graph.end();
        same(cuda, &text, &inputs)?;
        matches_cpu(cuda, &text, &inputs, Tolerance::Elements).map_err(|error| format!("{n}: {error}"))?;
    }
    Ok(())
}
