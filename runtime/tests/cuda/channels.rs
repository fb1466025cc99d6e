//! Channel groups: batch normalization and its gradient with adjacent nodes, compared with the CPU.

use crate::cases::{Tolerance, numbers, tensor};
use crate::elements::{Named, matches_cpu, outputs, passing, refs};
use crate::records::Records;
use ampc_ir::DType;
use ampc_ir::text::{NoData, parse};
use ampc_runtime::cuda::Cuda;
use ampc_runtime::{Data, HostTensor, Runtime};
use std::fmt::Write;
use std::sync::Arc;

const LOW: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Runs the cases whose names contain `filter`; returns the number of failures.
pub(crate) fn run(cuda: &Arc<Cuda>, filter: &str) -> usize {
    let mut cases: Vec<Named> = Vec::new();
    for dtype in LOW {
        for dims in DIMS {
            let (backward, forward) = (gradient(dtype, dims, 0.0), normalization(dtype, dims, 0.0));
            let kinds = ["ReduceMean", "ReduceSum"];
            let device = cuda.clone();
            cases.push((
                format!("channels: gradient {dtype}{dims:?}"),
                Box::new(move || backward.matches(&device, &kinds)),
            ));
            let device = cuda.clone();
            cases.push((
                format!("channels: normalization {dtype}{dims:?}"),
                Box::new(move || forward.matches(&device, &[])),
            ));
        }
    }
    for (name, check) in CHECKS {
        let cuda = cuda.clone();
        cases.push(((*name).to_owned(), Box::new(move || check(&cuda))));
    }
    passing(&cases, filter)
}

/// Batch, channels, and the following dims.
const DIMS: &[&[u64]] = &[
    &[8, 64, 4, 4],
    &[3, 3, 7, 5],
    &[1, 5, 9, 11],
    &[2, 1, 6, 6],
    &[40, 33],
    &[2, 3, 2, 3, 5],
    &[4, 20, 1, 1],
    &[64, 2, 40, 8],
    // Channels in several parts: 3 and 36 of neighbouring channels, and 11 of others.
    &[300, 33],
    &[4500, 17],
    &[35, 3, 33, 37],
    &[0, 4, 2, 2],
];

type Check = fn(&Arc<Cuda>) -> Result<(), String>;

const CHECKS: &[(&str, Check)] = &[
    ("channels: gradient of large means", |cuda| large_means(cuda, gradient)),
    ("channels: normalization of large means", |cuda| large_means(cuda, normalization)),
    ("channels: launches", launches),
    ("channels: values that are not finite", not_finite),
    ("channels: values in the middle", middle),
    ("channels: two normalizations", two),
    ("channels: results in place of operands", in_place),
    ("channels: kept axes of a batch", instances),
];

/// A graph with inputs.
struct Graph {
    text: String,
    inputs: Vec<HostTensor>,
    seed: u64,
}

fn ty(dtype: DType, dims: &[u64]) -> String {
    if dims.is_empty() { dtype.to_string() } else { format!("{dtype}{dims:?}") }
}

impl Graph {
    fn new() -> Graph {
        Graph {
            text: "module ir=10\nopset ai.onnx=17\n\ngraph @main {\n".into(),
            inputs: Vec::new(),
            seed: 7,
        }
    }

    /// An input of random numbers around `mean`.
    fn input(&mut self, name: &str, dtype: DType, dims: &[u64], mean: f32) {
        self.seed += 1;
        let numbers: Vec<f32> = numbers(dims.iter().product(), self.seed).iter().map(|x| x + mean).collect();
        let _ = writeln!(self.text, "  input %{name} : {}", ty(dtype, dims));
        self.inputs.push(tensor(dtype, dims, &numbers));
    }

    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "  {line}");
    }

    fn output(mut self, names: &[&str]) -> Graph {
        names.iter().for_each(|name| self.line(&format!("output %{name}")));
        self.text += "}\n";
        self
    }

    /// Checks that the results are close to those of the CPU, and that none of these operators has a separate kernel.
    fn matches(&self, cuda: &Arc<Cuda>, grouped: &[&str]) -> Result<(), String> {
        matches_cpu(cuda, &self.text, &self.inputs, Tolerance::Rows)?;
        let plan = self.plan(cuda)?;
        let is_alone = |line: &&str| grouped.iter().any(|kind| line.contains(&format!(" = {kind} ")));
        match plan.lines().find(is_alone) {
            Some(line) if !self.inputs[0].dims().contains(&0) => Err(format!("no group: {line}\n{plan}")),
            _ => Ok(()),
        }
    }

    fn plan(&self, cuda: &Arc<Cuda>) -> Result<String, String> {
        let module = parse(&self.text, &NoData).map_err(|errors| format!("{errors}\n{}", self.text))?;
        let mut session = Runtime::new(cuda.clone()).prepare(&module).map_err(|error| error.to_string())?;
        session.bind(&refs(&self.inputs)).map_err(|error| error.to_string())?;
        Ok(session.plan_text())
    }
}

/// Means of 1000 with deviations of 1 lose no accuracy: results are close to those of the CPU in f64.
fn large_means(cuda: &Arc<Cuda>, graph: fn(DType, &[u64], f32) -> Graph) -> Result<(), String> {
    let dims = [4, 3, 16, 16];
    let [exact, graph] = [DType::F64, DType::F32].map(|dtype| graph(dtype, &dims, 1000.0));
    let want = outputs(&Runtime::default(), &exact.text, &exact.inputs)?;
    let got = outputs(&Runtime::new(cuda.clone()), &graph.text, &graph.inputs)?;
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        let (got, want) = (floats(got), floats(want));
        let greatest = want.iter().copied().map(f64::abs).fold(0.0, f64::max);
        for (at, (got, want)) in got.iter().zip(&want).enumerate() {
            // The spacing of f32 at 1000.
            let away = (got - want).abs();
            if away.is_nan() || away > 6.1e-5 * greatest {
                return Err(format!("output {i}, element {at}: {got} instead of {want}\n{}", graph.text));
            }
        }
    }
    Ok(())
}

fn floats(data: &Data) -> Vec<f64> {
    data.tensor().unwrap().f64s().unwrap().collect()
}

/// The axes that a batch normalization reduces.
fn reduced(dims: &[u64]) -> String {
    let axes: Vec<String> = (0..dims.len()).filter(|&axis| axis != 1).map(|axis| axis.to_string()).collect();
    format!("[{}]", axes.join(", "))
}

/// The gradient of a batch normalization after the gradients of a Relu and a sum, as training steps have it. `d` is
/// the gradient of `relu(bn(x) + …)`, whose result is `y`; `p` is the prefix of the names.
fn backward(graph: &mut Graph, p: &str, dtype: DType, dims: &[u64], [x, g]: [&str; 2]) {
    let is_double = dtype == DType::F64;
    let acc = if is_double { DType::F64 } else { DType::F32 };
    let wide = ty(acc, dims);
    let channels = dims[1];
    let mut few = vec![1; dims.len()];
    few[1] = channels;
    let ones = ty(acc, &few);
    let rest: Vec<u64> = few[1..].to_vec();
    let axes = reduced(dims);
    let behind: Vec<String> = (1..dims.len() - 1).map(|axis| axis.to_string()).collect();
    let n = behind.len();
    let of_sum = reduced(dims);
    let mean = |to: &str, from: &str| {
        format!("%{p}{to} = ReduceMean(%{p}{from}) {{keepdims=1, axes={axes}}} : {ones}")
    };
    let lines = [
        format!("const %{p}back : i64[{n}] = [{}]", behind.join(", ")),
        format!("const %{p}eps : {acc} = 1e-5"),
        format!("const %{p}axes : i64[{}] = {of_sum}", dims.len() - 1),
    ];
    for line in if n == 0 { &lines[1..] } else { &lines[..] } {
        graph.line(line);
    }
    if dtype != acc {
        graph.line(&format!("%{p}x = Cast(%{x}) {{to=1}} : {wide}"));
        graph.line(&format!("%{p}g = Cast(%{g}) {{to=1}} : {wide}"));
    }
    // Without casts, the nodes read the tensors directly.
    let named = |line: String| match dtype == acc {
        true => [(x, 'x', ')'), (x, 'x', ','), (g, 'g', ')'), (g, 'g', ',')]
            .iter()
            .fold(line, |line, (of, name, end)| {
                line.replace(&format!("%{p}{name}{end}"), &format!("%{of}{end}"))
            }),
        false => line,
    };
    match n {
        0 => graph.line(&format!("%{p}w = Identity(%{p}weight) : {acc}[{channels}]")),
        _ => graph.line(&format!("%{p}w = Unsqueeze(%{p}weight, %{p}back) : {}", ty(acc, &rest))),
    }
    for line in [
        mean("m", "x"),
        format!("%{p}d = Sub(%{p}x, %{p}m) : {wide}"),
        format!("%{p}dd = Mul(%{p}d, %{p}d) : {wide}"),
        mean("v", "dd"),
        format!("%{p}ve = Add(%{p}v, %{p}eps) : {ones}"),
        format!("%{p}s = Sqrt(%{p}ve) : {ones}"),
        format!("%{p}r = Reciprocal(%{p}s) : {ones}"),
        format!("%{p}n = Mul(%{p}d, %{p}r) : {wide}"),
        format!("%{p}wg = Mul(%{p}g, %{p}w) : {wide}"),
        format!("%{p}wgn = Mul(%{p}wg, %{p}n) : {wide}"),
        mean("a", "wgn"),
        format!("%{p}na = Mul(%{p}n, %{p}a) : {wide}"),
        mean("b", "wg"),
        format!("%{p}c = Sub(%{p}wg, %{p}b) : {wide}"),
        format!("%{p}e = Sub(%{p}c, %{p}na) : {wide}"),
        format!("%{p}f = Mul(%{p}r, %{p}e) : {wide}"),
    ] {
        graph.line(&named(line));
    }
    let number = match dtype {
        DType::F16 => 10,
        DType::BF16 => 16,
        _ => 1,
    };
    match dtype {
        DType::F32 | DType::F64 => graph.line(&format!("%{p}dx = Neg(%{p}f) : {wide}")),
        _ => graph.line(&format!("%{p}dx = Cast(%{p}f) {{to={number}}} : {}", ty(dtype, dims))),
    }
    graph.line(&named(format!("%{p}gn = Mul(%{p}g, %{p}n) : {wide}")));
    graph.line(&format!("%{p}dw = ReduceSum(%{p}gn, %{p}axes) {{keepdims=0}} : {acc}[{channels}]"));
    graph.line(&named(format!("%{p}db = ReduceSum(%{p}g, %{p}axes) {{keepdims=0}} : {acc}[{channels}]")));
}

/// The gradient of a Relu after the sum of two gradients.
fn masked(graph: &mut Graph, dtype: DType, dims: &[u64]) {
    let of = ty(dtype, dims);
    graph.line(&format!("const %zero : {dtype} = 0.0"));
    graph.line(&format!("%sum = Add(%d1, %d2) : {of}"));
    graph.line(&format!("%mask = Greater(%y, %zero) : {}", ty(DType::Bool, dims)));
    graph.line(&format!("%g = Where(%mask, %sum, %zero) : {of}"));
}

fn gradient(dtype: DType, dims: &[u64], mean: f32) -> Graph {
    let mut graph = Graph::new();
    graph.input("x", dtype, dims, mean);
    for name in ["y", "d1", "d2"] {
        graph.input(name, dtype, dims, 0.0);
    }
    let of_weight = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    graph.input("bn_weight", of_weight, &dims[1..2], 1.0);
    masked(&mut graph, dtype, dims);
    backward(&mut graph, "bn_", dtype, dims, ["x", "g"]);
    // The other branch also reads the gradient.
    graph.output(&["bn_dx", "bn_dw", "bn_db", "g"])
}

/// A batch normalization followed by a sum and a Relu.
fn normalization(dtype: DType, dims: &[u64], mean: f32) -> Graph {
    let acc = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let (of, few) = (ty(dtype, dims), ty(acc, &dims[1..2]));
    let mut graph = Graph::new();
    graph.input("x", dtype, dims, mean);
    graph.input("residual", dtype, dims, 0.0);
    for name in ["weight", "bias", "mean"] {
        graph.input(name, acc, &dims[1..2], 0.5);
    }
    graph.input("variance", acc, &dims[1..2], 3.0);
    graph.line(&format!(
        "%n, %m, %v = BatchNormalization(%x, %weight, %bias, %mean, %variance) {{epsilon=1e-5, momentum=0.75, training_mode=1}} : {of}, {few}, {few}"
    ));
    graph.line(&format!("%s = Add(%n, %residual) : {of}"));
    graph.line(&format!("%y = Relu(%s) : {of}"));
    graph.output(&["y", "m", "v"])
}

/// A gradient is a pass, a launch for the numbers of channels, and a loop.
fn launches(cuda: &Arc<Cuda>) -> Result<(), String> {
    let Some(records) = Records::find() else { return Ok(()) };
    for (graph, expected) in
        [(gradient(DType::F16, &[8, 64, 4, 4], 0.0), 3), (normalization(DType::F16, &[8, 64, 4, 4], 0.0), 3)]
    {
        let module = parse(&graph.text, &NoData).map_err(|errors| errors.to_string())?;
        let mut session = Runtime::new(cuda.clone()).prepare(&module).map_err(|error| error.to_string())?;
        let refs = refs(&graph.inputs);
        session.run(&refs).map_err(|error| error.to_string())?;
        let before = records.count("launches.generated");
        session.run(&refs).map_err(|error| error.to_string())?;
        let found = records.count("launches.generated") - before;
        if found != expected {
            return Err(format!("{found} launches instead of {expected}\n{}", session.plan_text()));
        }
    }
    Ok(())
}

/// Channels with NaN or infinities are not finite where those of the CPU are not finite; other channels are
/// unaffected.
fn not_finite(cuda: &Arc<Cuda>) -> Result<(), String> {
    let dims = [2, 6, 4, 4];
    for graph in [gradient(DType::F32, &dims, 0.0), normalization(DType::F32, &dims, 0.0)] {
        for (input, number) in [(0, f32::NAN), (0, f32::INFINITY), (1, f32::NEG_INFINITY), (2, f32::INFINITY)]
        {
            if graph.inputs[input].dims() != dims {
                continue;
            }
            let mut inputs = graph.inputs.clone();
            for at in [16, 37] {
                let mut elements: Vec<f32> = inputs[input].as_slice::<f32>().unwrap().to_vec();
                elements[at] = number;
                inputs[input] = HostTensor::from_slice(&dims, &elements).unwrap();
            }
            let want = outputs(&Runtime::default(), &graph.text, &inputs)?;
            let got = outputs(&Runtime::new(cuda.clone()), &graph.text, &inputs)?;
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                for (at, (got, want)) in floats(got).iter().zip(floats(want)).enumerate() {
                    let is_right = match want.is_finite() {
                        true => (got - want).abs() < 1e-4,
                        false => !got.is_finite(),
                    };
                    if !is_right {
                        return Err(format!(
                            "output {i}, element {at} with {number}: {got} instead of {want}"
                        ));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Intermediate values of a group can be results.
fn middle(cuda: &Arc<Cuda>) -> Result<(), String> {
    for dtype in LOW {
        let dims = [3, 16, 5, 4];
        let mut graph = gradient(dtype, &dims, 0.0);
        graph.text.truncate(graph.text.len() - 2);
        for name in ["sum", "bn_n", "bn_r", "bn_m", "bn_wgn", "mask"] {
            graph.line(&format!("output %{name}"));
        }
        graph.text += "}\n";
        graph.matches(cuda, &["ReduceSum", "ReduceMean"])?;
    }
    Ok(())
}

/// The gradients of two normalizations with an activated sum.
fn two(cuda: &Arc<Cuda>) -> Result<(), String> {
    for dtype in LOW {
        let dims = [4, 12, 6, 6];
        let mut graph = Graph::new();
        for name in ["x", "z", "y", "d1", "d2"] {
            graph.input(name, dtype, &dims, 0.0);
        }
        for name in ["a_weight", "b_weight"] {
            graph.input(name, DType::F32, &dims[1..2], 1.0);
        }
        masked(&mut graph, dtype, &dims);
        backward(&mut graph, "a_", dtype, &dims, ["x", "g"]);
        // The reader of the first gradient precedes the nodes of the second.
        graph.line(&format!("%t = Transpose(%a_dx) {{perm=[1, 0, 2, 3]}} : {}", ty(dtype, &[12, 4, 6, 6])));
        backward(&mut graph, "b_", dtype, &dims, ["z", "g"]);
        let graph = graph.output(&["t", "a_dw", "a_db", "b_dx", "b_dw", "b_db"]);
        graph.matches(cuda, &["ReduceSum", "ReduceMean"])?;
        let plan = graph.plan(cuda)?;
        if plan.lines().filter(|line| line.contains(" = ") && line.contains("ReduceMean")).count() != 1 {
            return Err(format!("several groups\n{plan}"));
        }
    }
    Ok(())
}

/// Operands without other readers are overwritten: one by the values that depend on no sum, one by the values after
/// the sums.
fn in_place(cuda: &Arc<Cuda>) -> Result<(), String> {
    // In f32, the arena of separate nodes is as small.
    for dtype in [DType::F16, DType::BF16] {
        let dims = [4, 12, 6, 6];
        let mut graph = Graph::new();
        for name in ["x", "y", "d1", "d2"] {
            graph.input(&format!("{name}_input"), dtype, &dims, 0.0);
        }
        graph.input("bn_weight", DType::F32, &dims[1..2], 1.0);
        for name in ["x", "y", "d1", "d2"] {
            graph.line(&format!(
                "%{name} = Transpose(%{name}_input) {{perm=[0, 1, 3, 2]}} : {}",
                ty(dtype, &dims)
            ));
        }
        masked(&mut graph, dtype, &dims);
        backward(&mut graph, "bn_", dtype, &dims, ["x", "g"]);
        graph.line(&format!("%h = Transpose(%g) {{perm=[1, 0, 2, 3]}} : {}", ty(dtype, &[12, 4, 6, 6])));
        graph.line(&format!("%dx = Transpose(%bn_dx) {{perm=[1, 0, 2, 3]}} : {}", ty(dtype, &[12, 4, 6, 6])));
        let graph = graph.output(&["dx", "bn_dw", "bn_db", "h"]);
        graph.matches(cuda, &["ReduceSum", "ReduceMean"])?;
        let plan = graph.plan(cuda)?;
        let line = plan.lines().find(|line| line.contains("ReduceMean")).unwrap_or_default();
        if !line.split("in place of ").nth(1).is_some_and(|replaced| replaced.contains(", %")) {
            return Err(format!("not in place\n{plan}"));
        }
    }
    Ok(())
}

/// Sums that keep two adjacent axes, and operands that are broadcast along other axes.
fn instances(cuda: &Arc<Cuda>) -> Result<(), String> {
    let mut graph = Graph::new();
    graph.input("x", DType::F16, &[6, 2, 3, 8], 0.0);
    graph.input("row", DType::F32, &[6, 1, 1, 8], 0.0);
    graph.input("column", DType::F32, &[3, 1], 0.0);
    graph.input("channel", DType::F32, &[2, 3, 1], 0.0);
    graph.input("batch", DType::F32, &[6, 1, 3, 1], 0.0);
    for line in [
        "%w = Cast(%x) {to=1} : f32[6, 2, 3, 8]",
        "%u = Sub(%w, %channel) : f32[6, 2, 3, 8]",
        "%v = Sub(%u, %batch) : f32[6, 2, 3, 8]",
        "%p = Mul(%v, %row) : f32[6, 2, 3, 8]",
        "%m = ReduceMean(%p) {keepdims=1, axes=[0, 3]} : f32[1, 2, 3, 1]",
        "%s = Mul(%m, %column) : f32[1, 2, 3, 1]",
        "%d = Sub(%p, %m) : f32[6, 2, 3, 8]",
        "%q = Mul(%d, %row) : f32[6, 2, 3, 8]",
        "%h = Cast(%q) {to=10} : f16[6, 2, 3, 8]",
    ] {
        graph.line(line);
    }
    graph.output(&["h", "s"]).matches(cuda, &["ReduceMean"])
}
