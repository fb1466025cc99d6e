//! Random models, as ONNX messages: shapes of 4 × 4, a few operators of every class, bodies, casts of the author,
//! names that clash with those that passes would choose.

use crate::proto::{cast, graph_attr, model, node, raw, typed, with_attr};
use ampc::ir::DType;
use ampc::onnx::proto::{GraphProto, ModelProto, NodeProto};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// The same cases in every run.
pub(crate) fn config() -> ProptestConfig {
    let rng_seed = proptest::test_runner::RngSeed::Fixed(0);
    ProptestConfig { cases: 192, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

/// How values and nodes are called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Names {
    /// Every node has a name of its own.
    Unique,
    /// Values have names like those that passes choose, nodes have none.
    Awkward,
    /// As well, and nodes are called like values, or twice the same. ONNX Runtime refuses that.
    Hostile,
}

/// A model that prints as a list of nodes.
#[derive(Clone)]
pub(crate) struct Made(pub(crate) ModelProto);

impl std::fmt::Debug for Made {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let graph = self.0.graph.as_ref().expect("a model has a graph");
        for node in &graph.node {
            write!(f, "\n  {:?} = {}{:?} @{}", node.output, node.op_type(), node.input, node.name())?;
        }
        write!(f, "\n  outputs {:?}", graph.output.iter().map(|o| o.name()).collect::<Vec<_>>())
    }
}

/// Numbers that decide what comes next; zeros when they run out.
struct Choices<'a> {
    numbers: &'a [u32],
    next: usize,
}

impl Choices<'_> {
    fn below(&mut self, n: usize) -> usize {
        self.next += 1;
        self.numbers.get(self.next - 1).map_or(0, |&v| v as usize) % n.max(1)
    }
    fn of<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }
}

const UNARY: [&str; 10] =
    ["Relu", "Exp", "Sigmoid", "Transpose", "Identity", "Neg", "Softmax", "Tanh", "Floor", "Sqrt"];
const BINARY: [&str; 7] = ["MatMul", "MatMul", "Add", "Mul", "Sub", "Max", "Div"];
const SUFFIXES: [&str; 9] = [
    "",
    "_cast_fp16",
    ".f16",
    ".f16.cast",
    ".f32",
    ".f16.2",
    ".f32.cast",
    ".f16.f32",
    "_cast_fp16_cast_fp16",
];

struct Maker<'a> {
    choices: Choices<'a>,
    names: Names,
    taken: BTreeSet<String>,
    count: usize,
}

impl Maker<'_> {
    fn value_name(&mut self) -> String {
        self.count += 1;
        let mut name = match self.names {
            Names::Unique => format!("v{}", self.count),
            Names::Awkward | Names::Hostile => {
                format!("v{}{}", self.choices.below(3), self.choices.of(&SUFFIXES))
            }
        };
        while !self.taken.insert(name.clone()) {
            name.push('_');
        }
        name
    }
    fn name(&mut self, mut node: NodeProto) -> NodeProto {
        node.name = match self.names {
            Names::Unique => Some(format!("n{}", node.output[0])),
            Names::Awkward => None,
            Names::Hostile if self.choices.below(2) == 0 => None,
            Names::Hostile => Some(format!("v{}{}", self.choices.below(3), self.choices.of(&SUFFIXES))),
        };
        node
    }
    fn body(&mut self, reads: &str) -> GraphProto {
        let out = self.value_name();
        let inner = node(self.choices.of(&["Relu", "Neg", "Exp"]), &[reads], &[&out]);
        GraphProto {
            name: Some("body".into()),
            node: vec![self.name(inner)],
            output: vec![typed(&out, DType::F32, &[4, 4])],
            ..GraphProto::default()
        }
    }
    fn step(&mut self, known: &[String], nodes: &mut Vec<NodeProto>) -> String {
        let (a, b) = (self.choices.of(known), self.choices.of(known));
        let out = self.value_name();
        let new = match self.choices.below(8) {
            0..=2 => node(self.choices.of(&UNARY), &[&a], &[&out]),
            3..=5 => node(self.choices.of(&BINARY), &[&a, &b], &[&out]),
            6 => {
                let low = self.value_name();
                let narrow = cast(&a, DType::F16, &low);
                nodes.push(self.name(narrow));
                cast(&low, DType::F32, &out)
            }
            _ => {
                let (then, otherwise) = (self.body(&a), self.body(&b));
                let new = with_attr(node("If", &["cond"], &[&out]), graph_attr("then_branch", then));
                with_attr(new, graph_attr("else_branch", otherwise))
            }
        };
        nodes.push(self.name(new));
        out
    }
}

/// A model, IR version 10 and opset 17, from a stream of choices.
pub(crate) fn make(numbers: &[u32], names: Names) -> ModelProto {
    let mut maker = Maker {
        choices: Choices { numbers, next: 0 },
        names,
        taken: BTreeSet::from(["cond".into()]),
        count: 0,
    };
    let inputs: Vec<String> = (0..2).map(|_| maker.value_name()).collect();
    let weights: Vec<String> = (0..2).map(|_| maker.value_name()).collect();
    let mut known: Vec<String> = inputs.iter().chain(&weights).cloned().collect();
    let mut nodes = Vec::new();
    for _ in 0..2 + maker.choices.below(14) {
        let out = maker.step(&known, &mut nodes);
        known.push(out);
    }
    let made = &known[4..];
    let mut outputs = vec![made.last().unwrap().clone()];
    for _ in 0..maker.choices.below(3) {
        let more = maker.choices.of(made);
        if !outputs.contains(&more) {
            outputs.push(more);
        }
    }
    let values = [0.5, -0.25, 1.5, 0.125, -1.0, 0.75, 0.1, 0.2, 0.3, -0.4, 0.6, 0.7, -0.8, 0.9, 0.05, 1.0];
    let mut input = vec![typed("cond", DType::Bool, &[])];
    input.extend(inputs.iter().map(|n| typed(n, DType::F32, &[4, 4])));
    let graph = GraphProto {
        name: Some("g".into()),
        node: nodes,
        initializer: weights.iter().map(|n| raw(n, &[4, 4], &values)).collect(),
        input,
        output: outputs.iter().map(|n| typed(n, DType::F32, &[4, 4])).collect(),
        ..GraphProto::default()
    };
    model(10, 17, graph)
}

/// Random models.
pub(crate) fn models(names: Names) -> impl Strategy<Value = Made> {
    vec(any::<u32>(), 0..160).prop_map(move |numbers| Made(make(&numbers, names)))
}

/// The operands of a node, including captures of its bodies.
pub(crate) fn reads(node: &NodeProto) -> BTreeSet<String> {
    let bodies = node.attribute.iter().filter_map(|a| a.g.as_deref());
    let inner = bodies.flat_map(|g| &g.node).flat_map(reads);
    node.input.iter().cloned().chain(inner).filter(|n| !n.is_empty()).collect()
}

/// The same model with its nodes in another topological order.
pub(crate) fn shuffled(model: &ModelProto, numbers: &[u32]) -> ModelProto {
    let mut choices = Choices { numbers, next: 0 };
    let mut model = model.clone();
    let graph = model.graph.as_mut().unwrap();
    let mut left = std::mem::take(&mut graph.node);
    while !left.is_empty() {
        let pending: BTreeSet<String> = left.iter().flat_map(|n| n.output.iter().cloned()).collect();
        let ready: Vec<usize> = (0..left.len()).filter(|&i| reads(&left[i]).is_disjoint(&pending)).collect();
        let next = choices.of(&ready);
        graph.node.push(left.remove(next));
    }
    model
}
