//! No cast of a training step can be left out: a gradient is rounded only where an operation in 16 bits reads it, and no
//! value is cast to one type twice in one phase.
//!
//! A rounding can be left out if, behind operators that only move or select elements, nothing but casts to fp32, gradient
//! checks and optimizers reads the rounded value; a widening, if nothing but casts to 16 bits reads the wide value.

#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

use ampc::ir::op::OpKind;
use ampc::ir::text::{NoData, parse};
use ampc::ir::{DType, Module, Node, Value};
use ampc::passes::pipeline::Opset;
use ampc::passes::policy::Policy;
use ampc::train::{TrainOptions, train_step};
use ampc::{Model, RewriteOptions};
use std::collections::BTreeMap;
use std::path::PathBuf;

fn kind(module: &Module, node: Node) -> Option<OpKind> {
    module.node(node).schema().map(|schema| schema.kind)
}

fn dtype(module: &Module, value: Value) -> Option<DType> {
    module.value(value).ty.dtype()
}

fn entry<'m>(module: &'m Module, node: Node, key: &str) -> &'m str {
    let mut entries = module.node(node).metadata.iter();
    entries.find(|&&(name, _)| module.text(name) == key).map_or("", |&(_, text)| module.text(text))
}

fn is_backward(module: &Module, node: Node) -> bool {
    entry(module, node, "ampc.phase") == "bwd"
}

/// A cast of a float to another float type: the node, its operand and its result.
#[derive(Clone, Copy)]
struct FloatCast {
    node: Node,
    from: Value,
    to: Value,
}

impl FloatCast {
    fn read(module: &Module, node: Node) -> Option<FloatCast> {
        if kind(module, node) != Some(OpKind::Cast) {
            return None;
        }
        let data = module.node(node);
        let (from, to) = (data.operand(0)?, data.result(0)?);
        let is_float = |value| dtype(module, value).is_some_and(DType::is_float);
        (is_float(from) && is_float(to)).then_some(FloatCast { node, from, to })
    }
}

fn casts(module: &Module) -> Vec<FloatCast> {
    module.nodes(module.main()).filter_map(|node| FloatCast::read(module, node)).collect()
}

/// True if an operator moves, selects or negates elements and gives them in the type of operand 0.
fn moves(module: &Module, node: Node) -> bool {
    use OpKind::{
        Concat, DepthToSpace, Expand, Flatten, Identity, Neg, Pad, Reshape, Slice, SpaceToDepth, Split,
        Squeeze, Transpose, Trilu, Unsqueeze, Where,
    };
    matches!(
        kind(module, node),
        Some(
            Concat
                | DepthToSpace
                | Expand
                | Flatten
                | Identity
                | Neg
                | Pad
                | Reshape
                | Slice
                | SpaceToDepth
                | Split
                | Squeeze
                | Transpose
                | Trilu
                | Unsqueeze
                | Where
        )
    )
}

/// True if every reader of a value, behind moves, is a cast for which `is_back` is true or takes any float type, and
/// there is such a cast.
fn only_feeds(module: &Module, value: Value, is_back: &dyn Fn(DType) -> bool) -> bool {
    let (mut waiting, mut found) = (vec![value], false);
    while let Some(value) = waiting.pop() {
        if module.is_output(value) {
            return false;
        }
        for (node, _) in module.uses(value) {
            match (FloatCast::read(module, node), kind(module, node)) {
                (Some(cast), _) if dtype(module, cast.to).is_some_and(is_back) => found = true,
                (None, Some(OpKind::GradCheck | OpKind::SGD | OpKind::Adam | OpKind::AdamW)) => found = true,
                (None, _) if is_backward(module, node) && moves(module, node) => {
                    waiting.extend(module.node(node).results().iter().flatten());
                }
                _ => return false,
            }
        }
    }
    found
}

/// The casts of the backward pass that could be left out.
fn avoidable(module: &Module) -> Vec<String> {
    let mut found = Vec::new();
    for cast in casts(module).into_iter().filter(|cast| is_backward(module, cast.node)) {
        let (from, to) = (dtype(module, cast.from).unwrap(), dtype(module, cast.to).unwrap());
        let name = ampc::ir::verify::name_of(module, cast.to);
        if from == DType::F32 && to.is_low() && only_feeds(module, cast.to, &|back| back == DType::F32) {
            found.push(format!("`{name}` is rounded to {to}, and nothing in 16 bits reads it"));
        }
        let source = module.producer(cast.from).is_none_or(|(node, _)| is_backward(module, node));
        if source && from.is_low() && to == DType::F32 && only_feeds(module, cast.to, &|back| back == from) {
            found.push(format!("`{name}` is widened from {from}, and only casts back read it"));
        }
    }
    found
}

/// The values that are cast to one type more than once in a phase; values that are computed again do not count.
fn repeated(module: &Module) -> Vec<String> {
    let mut made: BTreeMap<(Value, u32, &str), usize> = BTreeMap::new();
    for cast in casts(module).iter().filter(|cast| entry(module, cast.node, "ampc.role") != "recompute") {
        let to = dtype(module, cast.to).unwrap();
        *made
            .entry((cast.from, to.number().unsigned_abs(), entry(module, cast.node, "ampc.phase")))
            .or_default() += 1;
    }
    let several = made.iter().filter(|&(_, &n)| n > 1);
    several
        .map(|((value, ..), n)| format!("`{}` is cast {n} times", ampc::ir::verify::name_of(module, *value)))
        .collect()
}

/// Policies that leave more or fewer operators in fp32.
const POLICIES: [&str; 5] = ["safe", "torch", "perf", "paddle-o2", "all"];

/// Looks at the steps of a model in both formats, by all policies. Returns their number: 0 if the model has no gradient.
fn check(name: &str, loss: &str, load: impl Fn() -> Model) -> usize {
    let mut problems = Vec::new();
    let mut steps = 0;
    for (policy, to) in POLICIES.into_iter().flat_map(|policy| [(policy, DType::F16), (policy, DType::BF16)])
    {
        let mut precision = RewriteOptions::of(Policy::preset(policy).unwrap());
        (precision.to, precision.opset) = (to, Opset::Auto);
        let options = TrainOptions {
            precision: Some(precision),
            loss: loss.parse().unwrap(),
            freezes_unreached: true,
            verify_each: false,
            ..TrainOptions::default()
        };
        let Ok(step) = train_step(load(), &options) else { return 0 };
        let module = &step.model.module;
        let found = avoidable(module).into_iter().chain(repeated(module));
        problems.extend(found.map(|problem| format!("{name}, {policy}, {to}: {problem}")));
        steps += 1;
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    steps
}

#[test]
fn steps_of_corpora_have_no_cast_that_could_be_left_out() {
    let larger = std::env::var_os("AMPC_CORPUS").map(PathBuf::from);
    let mut steps = 0;
    for folder in std::iter::once(PathBuf::from("testdata/corpus")).chain(larger) {
        let Ok(entries) = std::fs::read_dir(folder.join("train")) else { continue };
        let mut folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        folders.sort();
        for folder in folders {
            let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
            let path = folder.join(format!("{name}.train.onnx"));
            steps += check(&name, "output:loss", || ampc::load(&path).unwrap());
        }
    }
    assert!(steps > 0, "no step was looked at");
}

/// Models whose gradients pass between formulas, products and operators that move elements.
const MODELS: [(&str, &str); 4] = [
    (
        "embedding",
        "  input %ids : i64[2, 8]
  const %table : f32[50, 16] = random(1)
  const %places : f32[8, 16] = random(2)
  const %scale : f32[16] = random(3)
  const %up : f32[16, 64] = random(4)
  const %down : f32[64, 16] = random(5)
  const %bias : f32[16] = random(6)
  const %flat : i64[2] = [16, 16]
  const %deep : i64[3] = [2, 8, 16]
  %tokens = Gather(%table, %ids) : f32[2, 8, 16]
  %x = Add(%tokens, %places) : f32[2, 8, 16]
  %r = Reshape(%x, %flat) : f32[16, 16]
  %n = LayerNormalization(%r, %scale) : f32[16, 16]
  %h = MatMul(%n, %up) : f32[16, 64]
  %g = Gelu(%h) : f32[16, 64]
  %d = MatMul(%g, %down) : f32[16, 16]
  %b = Add(%d, %bias) : f32[16, 16]
  %s = Add(%r, %b) : f32[16, 16]
  %m = LayerNormalization(%s, %scale) : f32[16, 16]
  %y = Reshape(%m, %deep) : f32[2, 8, 16]
  output %y : f32[2, 8, 16]
",
    ),
    (
        "channels",
        "  input %x : f32[2, 3, 8, 8]
  const %w : f32[8, 3, 3, 3] = random(1)
  const %scale : f32[8] = random(2)
  const %shift : f32[8] = random(3)
  const %mean : f32[8] = random(4)
  const %variance : f32[8] = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
  const %squeeze : f32[8, 8, 1, 1] = random(5)
  const %head : f32[8, 4] = random(6)
  %c = Conv(%x, %w) {pads=[1, 1, 1, 1]} : f32[2, 8, 8, 8]
  %n, %new_mean, %new_variance = BatchNormalization(%c, %scale, %shift, %mean, %variance) {training_mode=1} : f32[2, 8, 8, 8], f32[8], f32[8]
  %h = HardSwish(%n) : f32[2, 8, 8, 8]
  %p = GlobalAveragePool(%h) : f32[2, 8, 1, 1]
  %q = Conv(%p, %squeeze) : f32[2, 8, 1, 1]
  %e = HardSigmoid(%q) : f32[2, 8, 1, 1]
  %z = Mul(%h, %e) : f32[2, 8, 8, 8]
  %a = HardSwish(%z) : f32[2, 8, 8, 8]
  %k = GlobalAveragePool(%a) : f32[2, 8, 1, 1]
  %f = Flatten(%k) : f32[2, 8]
  %y = MatMul(%f, %head) : f32[2, 4]
  output %y : f32[2, 4]
",
    ),
    (
        "norm of elementary operators",
        "  input %x : f32[4, 16]
  const %w : f32[16, 16] = random(1)
  const %scale : f32[16] = random(2)
  const %shift : f32[16] = random(3)
  const %out : f32[16, 4] = random(4)
  const %two : f32 = 2.0
  const %epsilon : f32 = 0.001
  const %last : i64[1] = [1]
  %h = MatMul(%x, %w) : f32[4, 16]
  %mean = ReduceMean(%h, %last) : f32[4, 1]
  %centered = Sub(%h, %mean) : f32[4, 16]
  %square = Pow(%centered, %two) : f32[4, 16]
  %variance = ReduceMean(%square, %last) : f32[4, 1]
  %sum = Add(%variance, %epsilon) : f32[4, 1]
  %root = Sqrt(%sum) : f32[4, 1]
  %n = Div(%centered, %root) : f32[4, 16]
  %scaled = Mul(%n, %scale) : f32[4, 16]
  %shifted = Add(%scaled, %shift) : f32[4, 16]
  %y = MatMul(%shifted, %out) : f32[4, 4]
  output %y : f32[4, 4]
",
    ),
    (
        "sections",
        "  input %x : f32[4, 16]
  const %w : f32[16, 32] = random(1)
  const %sizes : i64[2] = [16, 16]
  const %out : f32[16, 4] = random(2)
  %h = MatMul(%x, %w) : f32[4, 32]
  %t = Transpose(%h) {perm=[1, 0]} : f32[32, 4]
  %u = Transpose(%t) {perm=[1, 0]} : f32[4, 32]
  %a, %b = Split(%u, %sizes) {axis=1} : f32[4, 16], f32[4, 16]
  %s = Sigmoid(%a) : f32[4, 16]
  %g = Tanh(%b) : f32[4, 16]
  %m = Mul(%s, %g) : f32[4, 16]
  %y = MatMul(%m, %out) : f32[4, 4]
  output %y : f32[4, 4]
",
    ),
];

#[test]
fn steps_of_written_models_have_no_cast_that_could_be_left_out() {
    for (name, body) in MODELS {
        let text = format!("module ir=10\nopset ai.onnx=21\n\ngraph @main {{\n{body}}}\n");
        let load = || Model::from(parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}")));
        assert_eq!(check(name, "mse", load), 2 * POLICIES.len(), "{name}");
    }
}
