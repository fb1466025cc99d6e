//! Images with channels last: results compared with the CPU, and the transposes of plans.

use crate::cases::{Tolerance, compare, random};
use crate::elements::{Named, outputs, passing, refs};
use ampc_ir::op::OpKind;
use ampc_ir::text::{NoData, parse};
use ampc_ir::{DType, Module, Node, Value};
use ampc_runtime::cuda::Cuda;
use ampc_runtime::session::{NodeObserver, Watch};
use ampc_runtime::{Data, DataRef, HostTensor, Runtime};
use std::sync::Arc;

/// A graph of 16-bit tensors of type `T`, with an input `%x`, and the numbers of convolutions with channels last and
/// of transposes in its plan.
struct Net {
    name: &'static str,
    input: &'static [u64],
    body: &'static str,
    expected: [usize; 2],
}

/// Runs the cases whose names contain `filter`; returns the number of failures.
pub(crate) fn run(cuda: &Arc<Cuda>, filter: &str) -> usize {
    let mut cases: Vec<Named> = Vec::new();
    for net in NETS {
        for (dtype, t) in [(DType::F16, "f16"), (DType::BF16, "bf16")] {
            let cuda = cuda.clone();
            let text = text_of(net, t);
            let check = move || matches(&cuda, &text, &[random(dtype, net.input, 1)], net.expected);
            cases.push((format!("layouts: {} {t}", net.name), Box::new(check)));
        }
    }
    let f32 = cuda.clone();
    let check =
        move || matches(&f32, &text_of(&NETS[0], "f32"), &[random(DType::F32, NETS[0].input, 1)], [0, 0]);
    cases.push(("layouts: f32".into(), Box::new(check)));
    for (name, check) in CHECKS {
        let cuda = cuda.clone();
        cases.push(((*name).to_owned(), Box::new(move || check(&cuda))));
    }
    passing(&cases, filter)
}

type Check = fn(&Arc<Cuda>) -> Result<(), String>;

const CHECKS: &[(&str, Check)] = &[
    ("layouts: watched values", watched),
    ("layouts: other dims", other_dims),
    ("layouts: normalization of many elements", |cuda| normalization(cuda, 24, [297, 300])),
    ("layouts: normalization of many channels", |cuda| normalization(cuda, 32_792, [10, 13])),
];

/// A batch normalization whose threads compute several vectors: of the same channels, or of others where a thread cannot
/// keep its channels.
fn normalization(cuda: &Arc<Cuda>, channels: u64, [height, width]: [u64; 2]) -> Result<(), String> {
    let batch = if channels < 100 { 2 } else { 1 };
    let of = format!("f16[{batch}, {channels}, {height}, {width}]");
    let [rows, columns] = [height, width].map(|n| n.div_ceil(2));
    let text = format!(
        "module ir=10\nopset ai.onnx=22\n\ngraph @main {{
  input %x : f16[{batch}, 8, {height}, {width}]
  const %w : f16[{channels}, 8, 1, 1] = random(1, 0.1)
  const %v : f16[8, {channels}, 1, 1] = random(2, 0.01)
  const %s : f16[{channels}] = random(3, 0.5)
  const %b : f16[{channels}] = random(4, 0.5)
  %q = Exp(%b) : f16[{channels}]
  %a = Conv(%x, %w) : {of}
  %n = BatchNormalization(%a, %s, %b, %b, %q) : {of}
  %c = Conv(%n, %v) {{strides=[2, 2]}} : f16[{batch}, 8, {rows}, {columns}]
  output %c : f16[{batch}, 8, {rows}, {columns}]
}}
"
    );
    matches(cuda, &text, &[random(DType::F16, &[batch, 8, height, width], 1)], [2, 2])
}

fn text_of(net: &Net, t: &str) -> String {
    let dims = format!("{:?}", net.input);
    let head = format!("module ir=10\nopset ai.onnx=22\n\ngraph @main {{\n  input %x : {t}{dims}\n");
    let body: Vec<String> = net
        .body
        .lines()
        .map(|line| format!("  {}\n", line.trim().replace(": T", &format!(": {t}"))))
        .collect();
    head + &body.concat() + "}\n"
}

/// The numbers of convolutions whose results have channels last, and of transposes of the main graph.
fn counts(module: &Module, given: &Module, nodes: impl Iterator<Item = (Node, usize)>) -> [usize; 2] {
    let mut counts = [0; 2];
    for (node, together) in nodes {
        let data = module.node(node);
        let ty = |module: &Module, value: Value| module.value(value).ty.clone();
        match data.schema().map(|schema| schema.kind) {
            Some(OpKind::Conv | OpKind::ConvTranspose) => {
                let result = data.result(0).unwrap();
                counts[0] += usize::from(ty(module, result) != ty(given, result));
            }
            Some(OpKind::Transpose) => counts[1] += usize::from(together == 1),
            _ => {}
        }
    }
    counts
}

fn found(runtime: &Runtime, given: &Module, inputs: &[HostTensor]) -> Result<[usize; 2], String> {
    let mut session = runtime.prepare(given).map_err(|error| error.to_string())?;
    session.bind(&refs(inputs)).map_err(|error| error.to_string())?;
    let plans = session.plans().ok_or("no plans")?;
    let nodes = plans.plans()[0]
        .steps
        .iter()
        .flat_map(|step| step.nodes.iter().map(|&node| (node, step.nodes.len())));
    let bound = counts(plans.module(), given, nodes);
    let predicted = runtime.plans(given, &[]).map_err(|error| error.to_string())?;
    let nodes = predicted.plans()[0]
        .steps
        .iter()
        .flat_map(|step| step.nodes.iter().map(|&node| (node, step.nodes.len())));
    match counts(predicted.module(), given, nodes) == bound {
        true => Ok(bound),
        false => Err("the predicted plan is another".into()),
    }
}

fn matches(cuda: &Arc<Cuda>, text: &str, inputs: &[HostTensor], expected: [usize; 2]) -> Result<(), String> {
    let want = outputs(&Runtime::default(), text, inputs)?;
    let runtime = Runtime::new(cuda.clone());
    for (got, want) in outputs(&runtime, text, inputs)?.iter().zip(&want) {
        compare(got, want, None, Tolerance::Model)?;
    }
    let module = parse(text, &NoData).map_err(|errors| errors.to_string())?;
    let found = found(&runtime, &module, inputs)?;
    match found == expected {
        true => Ok(()),
        false => Err(format!("{found:?} convolutions and transposes instead of {expected:?}")),
    }
}

const NETS: &[Net] = &[
    Net {
        name: "chain",
        input: &[2, 8, 6, 5],
        body: "const %w : T[16, 8, 3, 3] = random(1, 0.1)
               const %v : T[8, 16, 3, 3] = random(2, 0.1)
               %a = Conv(%x, %w) {pads=[1, 1, 1, 1]} : T[2, 16, 6, 5]
               %b = Relu(%a) : T[2, 16, 6, 5]
               %c = Conv(%b, %v) {pads=[1, 0, 1, 2], strides=[2, 1]} : T[2, 8, 3, 5]
               output %c : T[2, 8, 3, 5]",
        expected: [2, 2],
    },
    Net {
        name: "bias",
        input: &[2, 8, 6, 5],
        body: "const %w : T[16, 8, 3, 3] = random(1, 0.1)
               const %v : T[8, 16, 1, 1] = random(2, 0.1)
               const %b : T[16] = random(3, 1)
               %a = Conv(%x, %w, %b) : T[2, 16, 4, 3]
               %r = Relu(%a) : T[2, 16, 4, 3]
               %c = Conv(%r, %v) : T[2, 8, 4, 3]
               output %c : T[2, 8, 4, 3]",
        expected: [2, 2],
    },
    Net {
        name: "residual blocks",
        input: &[2, 3, 12, 12],
        body: "const %w0 : T[8, 3, 3, 3] = random(1, 0.1)
               const %w1 : T[8, 8, 3, 3] = random(2, 0.1)
               const %w2 : T[16, 8, 3, 3] = random(3, 0.1)
               const %w3 : T[16, 8, 1, 1] = random(4, 0.1)
               const %w4 : T[16, 16, 3, 3] = random(5, 0.1)
               const %s : T[8] = random(6, 0.5)
               const %m : T[8] = random(7, 0.5)
               const %v : T[8] = [1, 2, 3, 1, 2, 3, 1, 2]
               %a = Conv(%x, %w0) {pads=[1, 1, 1, 1]} : T[2, 8, 12, 12]
               %n = BatchNormalization(%a, %s, %m, %m, %v) : T[2, 8, 12, 12]
               %r = Relu(%n) : T[2, 8, 12, 12]
               %p = MaxPool(%r) {kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]} : T[2, 8, 6, 6]
               %b = Conv(%p, %w1) {pads=[1, 1, 1, 1]} : T[2, 8, 6, 6]
               %n1 = BatchNormalization(%b, %s, %m, %m, %v) : T[2, 8, 6, 6]
               %c = Add(%n1, %p) : T[2, 8, 6, 6]
               %d = Relu(%c) : T[2, 8, 6, 6]
               %e = Conv(%d, %w2) {pads=[1, 1, 1, 1], strides=[2, 2]} : T[2, 16, 3, 3]
               %f = Conv(%d, %w3) {strides=[2, 2]} : T[2, 16, 3, 3]
               %g = Add(%e, %f) : T[2, 16, 3, 3]
               %h = Relu(%g) : T[2, 16, 3, 3]
               %i = Conv(%h, %w4) {pads=[1, 1, 1, 1]} : T[2, 16, 3, 3]
               %j = Add(%i, %h) : T[2, 16, 3, 3]
               %k = Relu(%j) : T[2, 16, 3, 3]
               %q = GlobalAveragePool(%k) : T[2, 16, 1, 1]
               %y = Flatten(%q) : T[2, 16]
               output %y : T[2, 16]",
        expected: [5, 1],
    },
    Net {
        name: "residual blocks without pooling at the end",
        input: &[2, 8, 6, 6],
        body: "const %w1 : T[8, 8, 3, 3] = random(2, 0.1)
               const %w2 : T[8, 8, 3, 3] = random(3, 0.1)
               const %w3 : T[8, 8, 3, 3] = random(4, 0.1)
               %a = Conv(%x, %w1) {pads=[1, 1, 1, 1]} : T[2, 8, 6, 6]
               %b = Add(%a, %x) : T[2, 8, 6, 6]
               %c = Relu(%b) : T[2, 8, 6, 6]
               %d = Conv(%c, %w2) {pads=[1, 1, 1, 1]} : T[2, 8, 6, 6]
               %e = Add(%d, %c) : T[2, 8, 6, 6]
               %f = Relu(%e) : T[2, 8, 6, 6]
               %g = Conv(%f, %w3) {pads=[1, 1, 1, 1]} : T[2, 8, 6, 6]
               %h = Add(%g, %f) : T[2, 8, 6, 6]
               %i = Relu(%h) : T[2, 8, 6, 6]
               output %i : T[2, 8, 6, 6]",
        expected: [3, 2],
    },
    Net {
        name: "operands per channel",
        input: &[2, 8, 6, 5],
        body: "const %w : T[16, 8, 3, 3] = random(1, 0.1)
               const %v : T[8, 16, 3, 3] = random(2, 0.1)
               const %s : T[16, 1, 1] = random(3, 1)
               const %b : T[1, 16, 1, 1] = random(4, 1)
               const %two : T = 2
               const %low : T = -1
               %a = Conv(%x, %w) {pads=[1, 1, 1, 1]} : T[2, 16, 6, 5]
               %c = Mul(%a, %s) : T[2, 16, 6, 5]
               %d = Add(%b, %c) : T[2, 16, 6, 5]
               %e = PRelu(%d, %s) : T[2, 16, 6, 5]
               %f = Div(%e, %two) : T[2, 16, 6, 5]
               %g = Clip(%f, %low) : T[2, 16, 6, 5]
               %h = Conv(%g, %v) : T[2, 8, 4, 3]
               output %h : T[2, 8, 4, 3]",
        expected: [2, 2],
    },
    Net {
        name: "squeeze and excitation",
        input: &[2, 8, 6, 5],
        body: "const %w : T[16, 8, 3, 3] = random(1, 0.1)
               const %v : T[8, 16, 1, 1] = random(2, 0.1)
               const %u : T[16, 8, 1, 1] = random(3, 0.1)
               const %z : T[8, 16, 3, 3] = random(4, 0.1)
               %a = Conv(%x, %w) {pads=[1, 1, 1, 1]} : T[2, 16, 6, 5]
               %g = GlobalAveragePool(%a) : T[2, 16, 1, 1]
               %h = Conv(%g, %v) : T[2, 8, 1, 1]
               %i = Relu(%h) : T[2, 8, 1, 1]
               %j = Conv(%i, %u) : T[2, 16, 1, 1]
               %k = Sigmoid(%j) : T[2, 16, 1, 1]
               %m = Mul(%a, %k) : T[2, 16, 6, 5]
               %y = Conv(%m, %z) {pads=[1, 1, 1, 1]} : T[2, 8, 6, 5]
               output %y : T[2, 8, 6, 5]",
        expected: [4, 2],
    },
    Net {
        name: "concat of channels and rows",
        input: &[2, 8, 6, 5],
        body: "const %w : T[8, 8, 3, 3] = random(1, 0.1)
               const %v : T[8, 16, 3, 3] = random(2, 0.1)
               %a = Conv(%x, %w) {pads=[1, 1, 1, 1]} : T[2, 8, 6, 5]
               %b = Tanh(%a) : T[2, 8, 6, 5]
               %c = Concat(%a, %b) {axis=1} : T[2, 16, 6, 5]
               %d = Concat(%c, %c) {axis=-2} : T[2, 16, 12, 5]
               %e = Conv(%d, %v) : T[2, 8, 10, 3]
               output %e : T[2, 8, 10, 3]",
        expected: [2, 2],
    },
    Net {
        name: "pools",
        input: &[2, 8, 9, 7],
        body: "const %w : T[8, 8, 3, 3] = random(1, 0.1)
               const %v : T[8, 8, 1, 1] = random(2, 0.1)
               %a = Conv(%x, %w) {pads=[1, 1, 1, 1]} : T[2, 8, 9, 7]
               %b = MaxPool(%a) {kernel_shape=[3, 2], pads=[1, 0, 0, 1], dilations=[2, 1]} : T[2, 8, 6, 7]
               %c = AveragePool(%b) {kernel_shape=[2, 3], pads=[0, 1, 1, 1], strides=[1, 2]} : T[2, 8, 6, 4]
               %d = AveragePool(%c) {kernel_shape=[2, 2], pads=[1, 0, 0, 0], count_include_pad=1} : T[2, 8, 6, 3]
               %e = LpPool(%d) {kernel_shape=[2, 2]} : T[2, 8, 5, 2]
               %f = Conv(%e, %v) : T[2, 8, 5, 2]
               %g = GlobalMaxPool(%f) : T[2, 8, 1, 1]
               output %g : T[2, 8, 1, 1]",
        expected: [2, 1],
    },
    Net {
        name: "groups and dilations",
        input: &[2, 16, 9, 8],
        body: "const %w : T[16, 8, 3, 3] = random(1, 0.1)
               const %v : T[8, 16, 3, 2] = random(2, 0.1)
               %a = Conv(%x, %w) {group=2, pads=[1, 1, 1, 1]} : T[2, 16, 9, 8]
               %b = Relu(%a) : T[2, 16, 9, 8]
               %c = Conv(%b, %v) {dilations=[2, 3], pads=[0, 2, 1, 0]} : T[2, 8, 6, 7]
               output %c : T[2, 8, 6, 7]",
        expected: [2, 2],
    },
    Net {
        name: "three dims",
        input: &[1, 8, 4, 5, 6],
        body: "const %w : T[8, 8, 3, 2, 3] = random(1, 0.1)
               const %v : T[16, 8, 1, 1, 1] = random(2, 0.1)
               const %b : T[8, 1, 1, 1] = random(3, 1)
               %a = Conv(%x, %w) {pads=[1, 0, 1, 1, 0, 0], strides=[1, 1, 2]} : T[1, 8, 4, 4, 3]
               %c = Add(%a, %b) : T[1, 8, 4, 4, 3]
               %d = MaxPool(%c) {kernel_shape=[2, 1, 2]} : T[1, 8, 3, 4, 2]
               %e = Conv(%d, %v) : T[1, 16, 3, 4, 2]
               output %e : T[1, 16, 3, 4, 2]",
        expected: [2, 2],
    },
    Net {
        name: "one dim",
        input: &[2, 8, 9],
        body: "const %w : T[8, 8, 3] = random(1, 0.1)
               const %v : T[8, 8, 3] = random(2, 0.1)
               %a = Conv(%x, %w) : T[2, 8, 7]
               %b = Relu(%a) : T[2, 8, 7]
               %c = Conv(%b, %v) : T[2, 8, 5]
               output %c : T[2, 8, 5]",
        expected: [0, 0],
    },
    Net {
        name: "extents of one",
        input: &[1, 8, 1, 5],
        body: "const %w : T[8, 8, 1, 3] = random(1, 0.1)
               const %v : T[8, 8, 1, 3] = random(2, 0.1)
               %a = Conv(%x, %w) : T[1, 8, 1, 3]
               %b = Relu(%a) : T[1, 8, 1, 3]
               %c = Conv(%b, %v) : T[1, 8, 1, 1]
               output %c : T[1, 8, 1, 1]",
        expected: [2, 1],
    },
    Net {
        name: "values read in both layouts",
        input: &[2, 8, 6, 5],
        body: "const %w : T[8, 8, 3, 3] = random(1, 0.1)
               const %v : T[8, 8, 3, 3] = random(2, 0.1)
               const %n : i64[2] = [2, 240]
               %a = Conv(%x, %w) {pads=[1, 1, 1, 1]} : T[2, 8, 6, 5]
               %b = Relu(%a) : T[2, 8, 6, 5]
               %c = Conv(%b, %v) {pads=[1, 1, 1, 1]} : T[2, 8, 6, 5]
               %d = Reshape(%b, %n) : T[2, 240]
               %s = Shape(%b) : i64[4]
               output %c : T[2, 8, 6, 5]
               output %d : T[2, 240]
               output %b : T[2, 8, 6, 5]
               output %s : i64[4]",
        expected: [2, 3],
    },
    Net {
        name: "transposed convolution",
        input: &[2, 8, 5, 4],
        body: "const %w : T[8, 16, 2, 2] = random(1, 0.1)
               const %v : T[8, 16, 3, 3] = random(2, 0.1)
               %a = ConvTranspose(%x, %w) {strides=[2, 2]} : T[2, 16, 10, 8]
               %b = Relu(%a) : T[2, 16, 10, 8]
               %c = Conv(%b, %v) {pads=[1, 1, 1, 1]} : T[2, 8, 10, 8]
               output %c : T[2, 8, 10, 8]",
        expected: [2, 2],
    },
    Net {
        name: "casts",
        input: &[2, 8, 6, 5],
        body: "const %w : T[8, 8, 3, 3] = random(1, 0.1)
               const %v : T[8, 8, 3, 3] = random(2, 0.1)
               %a = Conv(%x, %w) {pads=[1, 1, 1, 1]} : T[2, 8, 6, 5]
               %b = Cast(%a) {to=1} : f32[2, 8, 6, 5]
               %c = Exp(%b) : f32[2, 8, 6, 5]
               %d = CastLike(%c, %x) : T[2, 8, 6, 5]
               %e = Conv(%d, %v) {pads=[1, 1, 1, 1]} : T[2, 8, 6, 5]
               output %e : T[2, 8, 6, 5]",
        expected: [2, 2],
    },
    Net {
        name: "reductions",
        input: &[2, 8, 6, 5],
        body: "const %w : T[8, 8, 3, 3] = random(1, 0.1)
               const %v : T[8, 8, 3, 3] = random(2, 0.1)
               const %all : i64[3] = [0, 2, -1]
               const %one : i64[1] = [1]
               const %rows : i64[2] = [2, 3]
               const %to : i64[4] = [2, 8, 6, 5]
               %a = Conv(%x, %w) {pads=[1, 1, 1, 1]} : T[2, 8, 6, 5]
               %m = ReduceMean(%a, %all) : T[1, 8, 1, 1]
               %b = Sub(%a, %m) : T[2, 8, 6, 5]
               %s = ReduceSum(%b, %all) {keepdims=0} : T[8]
               %c = ReduceMax(%b, %one) : T[2, 1, 6, 5]
               %d = ReduceMin(%b, %rows) : T[2, 8, 1, 1]
               %r = ReduceMean(%b, %rows) {keepdims=0} : T[2, 8]
               %e = Expand(%d, %to) : T[2, 8, 6, 5]
               %f = Add(%c, %e) : T[2, 8, 6, 5]
               %p = Greater(%f, %b) : bool[2, 8, 6, 5]
               %g = Where(%p, %f, %b) : T[2, 8, 6, 5]
               %y = Conv(%g, %v) {pads=[1, 1, 1, 1]} : T[2, 8, 6, 5]
               output %y : T[2, 8, 6, 5]
               output %r : T[2, 8]
               output %s : T[8]",
        expected: [2, 2],
    },
    Net {
        name: "weight gradient",
        input: &[2, 8, 12, 15],
        body: "const %w : T[16, 8, 3, 3] = random(1, 0.1)
               const %v : T[8, 16, 3, 3] = random(2, 0.1)
               %a = Conv(%x, %w) {pads=[1, 1, 1, 1]} : T[2, 16, 12, 15]
               %b = Relu(%a) : T[2, 16, 12, 15]
               %c = Conv(%b, %v) {pads=[1, 1, 1, 1]} : T[2, 8, 12, 15]
               %d = Tanh(%c) : T[2, 8, 12, 15]
               %e = Transpose(%b) {perm=[1, 0, 2, 3]} : T[16, 2, 12, 15]
               %f = Transpose(%d) {perm=[1, 0, 2, 3]} : T[8, 2, 12, 15]
               %g = Conv(%e, %f) {pads=[1, 1, 1, 1]} : T[16, 8, 3, 3]
               %h = Transpose(%g) {perm=[1, 0, 2, 3]} : T[8, 16, 3, 3]
               %i = ConvTranspose(%d, %v) {pads=[1, 1, 1, 1]} : T[2, 16, 12, 15]
               %j = Mul(%i, %b) : T[2, 16, 12, 15]
               %k = Transpose(%x) {perm=[1, 0, 2, 3]} : T[8, 2, 12, 15]
               %l = Transpose(%j) {perm=[1, 0, 2, 3]} : T[16, 2, 12, 15]
               %m = Conv(%k, %l) {pads=[1, 1, 1, 1]} : T[8, 16, 3, 3]
               %n = Transpose(%m) {perm=[1, 0, 2, 3]} : T[16, 8, 3, 3]
               output %h : T[8, 16, 3, 3]
               output %n : T[16, 8, 3, 3]",
        expected: [3, 1],
    },
    Net {
        name: "loop",
        input: &[1, 8, 4, 4],
        body: "const %n : i64 = 2
               const %go : bool = true
               const %w : T[8, 8, 3, 3] = random(1, 0.1)
               %y = Loop(%n, %go, %x; %w) {
                 body: graph @body(%w) {
                   input %i : i64
                   input %c : bool
                   input %a : T[1, 8, 4, 4]
                   %d = Identity(%c) : bool
                   %p = Conv(%a, %w) {pads=[1, 1, 1, 1]} : T[1, 8, 4, 4]
                   %q = Relu(%p) : T[1, 8, 4, 4]
                   %b = Conv(%q, %w) {pads=[1, 1, 1, 1]} : T[1, 8, 4, 4]
                   output %d : bool
                   output %b : T[1, 8, 4, 4]
                 }
               } : T[1, 8, 4, 4]
               output %y : T[1, 8, 4, 4]",
        expected: [0, 0],
    },
];

/// An observer of one value.
struct Watching {
    value: Value,
    seen: Option<Data>,
}

impl NodeObserver for Watching {
    fn watch(&self) -> Watch {
        Watch::values([self.value])
    }
    fn value(&mut self, _: Node, _: usize, data: DataRef<'_>) {
        self.seen = data
            .tensor()
            .map(|x| HostTensor::from_bytes(x.dtype(), x.dims(), x.bytes().unwrap()).unwrap().into());
    }
}

/// An observer sees values with the dims of the model.
fn watched(cuda: &Arc<Cuda>) -> Result<(), String> {
    let text = text_of(&NETS[0], "f16");
    let inputs = [random(DType::F16, NETS[0].input, 1)];
    let module = parse(&text, &NoData).map_err(|errors| errors.to_string())?;
    let value = module.nodes(module.main()).nth(1).and_then(|node| module.node(node).result(0)).unwrap();
    let seen = |runtime: Runtime| {
        let mut watching = Watching { value, seen: None };
        let mut session = runtime.prepare(&module).map_err(|error| error.to_string())?;
        session.run_observed(&refs(&inputs), Some(&mut watching)).map_err(|error| error.to_string())?;
        watching.seen.ok_or_else(|| "no value".to_owned())
    };
    let want = seen(Runtime::default())?;
    compare(&seen(Runtime::new(cuda.clone()))?, &want, None, Tolerance::Model).map(|_| ())
}

/// Programs for other dims share the filters of the first program, and have other transposes.
fn other_dims(cuda: &Arc<Cuda>) -> Result<(), String> {
    let text =
        text_of(&NETS[2], "f16").replace("input %x : f16[2, 3, 12, 12]", "input %x : f16[n, 3, h, 12]");
    let text: String = text
        .lines()
        .map(|line| match (line.split_once(" : f16["), line.contains("const")) {
            (Some((start, _)), false) if !line.contains("input") => format!("{start} : ?\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let module = parse(&text, &NoData).map_err(|errors| errors.to_string())?;
    let [cpu, gpu] = [Runtime::default(), Runtime::new(cuda.clone())];
    let mut sessions = [&cpu, &gpu].map(|runtime| runtime.prepare(&module).unwrap());
    for dims in [[2, 3, 12, 12], [1, 3, 1, 12], [3, 3, 24, 12], [2, 3, 12, 12]] {
        let input = [random(DType::F16, &dims, 5)];
        let [want, got] = sessions.each_mut().map(|session| session.run(&refs(&input)));
        let (want, got) = (want.map_err(|error| error.to_string())?, got.map_err(|error| error.to_string())?);
        compare(&got[0], &want[0], None, Tolerance::Model)?;
    }
    Ok(())
}
