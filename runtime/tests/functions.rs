//! Functions in place of their calls: the same results as calls that run one by one.

#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

#[path = "reference/mod.rs"]
mod reference;

use ampc_ir::text::{NoData, parse};
use ampc_ir::{DType, GraphId, Module, Node};
use ampc_runtime::session::{ExecuteError, NodeObserver, Watch};
use ampc_runtime::{Data, DataRef, HostTensor, Runtime, Session, Tolerance, compare};
use reference::Reference;
use std::sync::Arc;
use std::time::{Duration, Instant};

const HEAD: &str = "module ir=10\nopset ai.onnx=21, my=1\n\n";

fn parsed(text: &str) -> Module {
    let mut module = parse(text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    ampc_ir::infer::infer_module(&mut module).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"));
    module
}

/// Sees nothing: with an observer, calls run one by one.
struct Nothing;

impl NodeObserver for Nothing {
    fn value(&mut self, _: Node, _: usize, _: DataRef<'_>) {}
}

fn views(inputs: &[HostTensor]) -> Vec<Option<DataRef<'_>>> {
    inputs.iter().map(|x| Some(DataRef::Tensor(x.view()))).collect()
}

fn bytes(data: &[Data]) -> Vec<Vec<u8>> {
    data.iter().map(|data| data.tensor().unwrap().bytes().unwrap().to_vec()).collect()
}

/// The plan of a model whose results are the same bits with and without functions in place of their calls.
fn same(text: &str, inputs: &[HostTensor]) -> String {
    let module = parsed(text);
    let mut plan = String::new();
    for runtime in [Runtime::default(), Runtime::new(Arc::new(Reference::new(0)))] {
        let mut session = runtime.prepare(&module).unwrap();
        let want = session.run_observed(&views(inputs), Some(&mut Nothing)).unwrap();
        for _ in 0..2 {
            let got = session.run(&views(inputs)).unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert_eq!(bytes(&got), bytes(&want), "{text}");
        }
        plan = session.plan_text();
        let types: Vec<_> = inputs.iter().map(|x| Some(DataRef::Tensor(x.view()).ty())).collect();
        let needs = runtime.memory_needs(&module, &types).unwrap();
        assert_eq!(needs.constants, session.constant_bytes());
        let arena = session.plan(module.main()).unwrap().arena;
        assert!(needs.arenas >= arena as u64 && needs.peak.is_none_or(|peak| peak.bytes == arena));
    }
    plan
}

fn floats(values: &[f32]) -> HostTensor {
    HostTensor::from_slice(&[values.len() as u64], values).unwrap()
}

fn flag(on: bool) -> HostTensor {
    HostTensor::from_bytes(DType::Bool, &[], &[u8::from(on)]).unwrap()
}

/// Nested functions, calls in branches and loops, attributes with defaults, operands that are left out, results that are
/// operands, and bodies that capture.
#[test]
fn results_are_those_of_calls() {
    let text = include_str!("../../ir/tests/data/calls.ir");
    for on in [false, true] {
        let count = HostTensor::from_slice(&[], &[3i64]).unwrap();
        let plan = same(text, &[floats(&[0.5, -1.5]), flag(on), count]);
        assert!(["Outer", "Inner", "Pass", "Guarded"].iter().all(|name| !plan.contains(name)), "{plan}");
    }
}

/// Random numbers depend on the name that a result has in its function.
#[test]
fn random_numbers_are_those_of_calls() {
    let plan = same(
        &format!(
            "{HEAD}graph @main {{\n  input %x : f32[16]\n  %a = my::Noisy(%x) : ?\n  %b = my::Noisy(%a) : ?\n  \
             output %a\n  output %b\n}}\n\nfunction my::Noisy {{\n  opset ai.onnx=21\n  input %x : ?\n  \
             const %ratio : f32 = 0.5\n  const %on : bool = true\n  %noise = RandomNormalLike(%x) : ?\n  \
             %sum = Add(%x, %noise) : ?\n  %y = Dropout(%sum, %ratio, %on) : ?\n  output %y\n}}\n"
        ),
        &[floats(&[1.0; 16])],
    );
    assert!(!plan.contains("Noisy"), "{plan}");
}

/// A function may import another version than the model, in which an operator has other operands.
#[test]
fn a_function_keeps_its_versions() {
    let plan = same(
        "module ir=10\nopset ai.onnx=21, my=1\n\ngraph @main {\n  input %x : f32[4]\n  const %axes : i64[1] = [0]\n  \
         %a = my::Old(%x) : ?\n  %y = Unsqueeze(%a, %axes) : ?\n  output %y\n}\n\nfunction my::Old {\n  \
         opset ai.onnx=11\n  input %x : ?\n  %u = Unsqueeze(%x) {axes=[0]} : ?\n  %y = Softmax(%u) {axis=0} : ?\n  \
         output %y\n}\n",
        &[floats(&[1.0, 2.0, 3.0, 4.0])],
    );
    assert!(!plan.contains("Old"), "{plan}");
}

/// A call that leaves out an operand that the function needs stays, and fails only if it runs.
#[test]
fn a_call_that_cannot_run_is_an_error_only_if_it_runs() {
    let text = format!(
        "{HEAD}graph @main {{\n  input %c : bool\n  input %x : f32[2]\n  %y = If(%c; %x) {{\n    \
         then_branch: graph @t (%x) {{\n      %a = my::Sum(%x, %x) : ?\n      output %a\n    }},\n    \
         else_branch: graph @e (%x) {{\n      %b = my::Sum(%x) : ? @lacking\n      output %b\n    }}\n  }} : ?\n  \
         output %y\n}}\n\nfunction my::Sum {{\n  opset ai.onnx=21\n  input %x : ?\n  input %y : ?\n  \
         %z = Add(%x, %y) : ? @sum\n  output %z\n}}\n"
    );
    let plan = same(&text, &[flag(true), floats(&[1.0, 2.0])]);
    assert!(plan.contains("Sum"), "{plan}");
    let mut session = Runtime::default().prepare(&parsed(&text)).unwrap();
    let error = session.run(&views(&[flag(false), floats(&[1.0, 2.0])])).unwrap_err();
    assert_eq!(named(&session, &error), ["lacking", "sum"]);
}

/// The names of the calls that an error is in, and of its node.
/// A function that is called nowhere may have operators without a kernel. A function in a branch that is not taken may not.
#[test]
fn functions_that_are_called_nowhere_need_no_kernels() {
    let text = |node: &str| {
        format!(
            "{HEAD}graph @main {{\n  input %c : bool\n  input %x : f32[2]\n  %y = If(%c; %x) {{\n    \
             then_branch: graph @t (%x) {{\n      %a = Relu(%x) : ?\n      output %a\n    }},\n    \
             else_branch: graph @e (%x) {{\n      %b = {node}(%x) : ?\n      output %b\n    }}\n  }} : ?\n  \
             output %y\n}}\n\nfunction my::Odd {{\n  opset ai.onnx=21, my=1\n  input %x : ?\n  \
             %z = my::NotKnown(%x) : ?\n  output %z\n}}\n"
        )
    };
    let mut session = Runtime::default().prepare(&parsed(&text("Neg"))).unwrap();
    let got = session.run(&views(&[flag(true), floats(&[-1.0, 2.0])])).unwrap();
    assert_eq!(bytes(&got), [[0f32, 2.0].map(f32::to_le_bytes).concat()]);
    let error = Runtime::default().prepare(&parsed(&text("my::Odd"))).map(drop).unwrap_err();
    assert!(error.to_string().contains("my::NotKnown"), "{error}");
}

fn named(session: &Session, error: &ExecuteError) -> Vec<String> {
    let module = session.module();
    let (node, calls) = error.place().unwrap_or_else(|| panic!("{error}"));
    let name = |&node: &Node| module.text(module.node(node).name.unwrap()).to_owned();
    calls.iter().chain([&node]).map(name).collect()
}

/// An error names the nodes of the module that was given: the calls, then the node of the function.
#[test]
fn an_error_names_the_calls_that_it_is_in() {
    let text = format!(
        "{HEAD}graph @main {{\n  input %at : i64[1]\n  input %c : bool\n  %y = If(%c; %at) {{\n    \
         then_branch: graph @t (%at) {{\n      %a = my::Outer(%at) : ? @outer\n      output %a\n    }},\n    \
         else_branch: graph @e {{\n      const %z : f32[1] = [0.0]\n      output %z\n    }}\n  }} : ?\n  output %y\n}}\n\n\
         function my::Outer {{\n  opset ai.onnx=21, my=1\n  input %at : ?\n  %a = my::Inner(%at) : ? @inner\n  \
         output %a\n}}\n\nfunction my::Inner {{\n  opset ai.onnx=21\n  input %at : ?\n  \
         const %table : f32[2] = [1.0, 2.0]\n  %a = Gather(%table, %at) : ? @look_up\n  output %a\n}}\n"
    );
    let module = parsed(&text);
    for seed in [None, Some(0), Some(1)] {
        let runtime = match seed {
            Some(seed) => Runtime::new(Arc::new(Reference::new(seed))),
            None => Runtime::default(),
        };
        let mut session = runtime.prepare(&module).unwrap();
        let inputs = [HostTensor::from_slice(&[1], &[7i64]).unwrap(), flag(true)];
        let found = session.run(&views(&inputs)).unwrap_err();
        assert_eq!(named(&session, &found), ["outer", "inner", "look_up"], "{seed:?}");
        let observed = session.run_observed(&views(&inputs), Some(&mut Nothing)).unwrap_err();
        assert_eq!(found.to_string(), observed.to_string());
        if seed.is_none() {
            assert_eq!(named(&session, &observed), ["outer", "inner", "look_up"]);
        }
    }
}

/// Records the names of nodes, with their depth.
struct Names<'m>(&'m Module, usize, Vec<String>);

impl NodeObserver for Names<'_> {
    fn value(&mut self, node: Node, _: usize, _: DataRef<'_>) {
        let name = self.0.node(node).name.map_or("", |name| self.0.text(name));
        self.2.push(format!("{} {name}", self.1));
    }
    fn enter(&mut self, _: Node, _: GraphId) {
        self.1 += 1;
    }
    fn leave(&mut self) {
        self.1 -= 1;
    }
}

const TWICE: &str = "graph @main {
  input %x : f32[8]
  %t = Tanh(%x) : ? @tanh
  %a = my::Step(%t) : ? @first
  %b = my::Step(%a) : ? @second
  %y = Neg(%b) : ? @neg
  output %y
}

function my::Step {
  opset ai.onnx=21
  input %x : ?
  %e = Exp(%x) : ? @exp
  %s = Sigmoid(%e) : ? @sigmoid
  output %s
}
";

/// Observers see calls and the nodes of functions, also after a run without an observer.
#[test]
fn observers_see_the_calls_of_the_module() {
    let module = parsed(&format!("{HEAD}{TWICE}"));
    let x = [floats(&[0.5; 8])];
    let mut session = Runtime::default().prepare(&module).unwrap();
    for _ in 0..2 {
        session.run(&views(&x)).unwrap();
        let mut names = Names(&module, 0, Vec::new());
        session.run_observed(&views(&x), Some(&mut names)).unwrap();
        let want = ["0 tanh", "1 exp", "1 sigmoid", "0 first", "1 exp", "1 sigmoid", "0 second", "0 neg"];
        assert_eq!(names.2, want);
    }
    assert_eq!(session.executable().programs_made(), 2);
}

/// A group may have nodes of several calls and of the graph around them.
#[test]
fn groups_span_calls() {
    let module = parsed(&format!("{HEAD}{TWICE}"));
    let x = [floats(&[0.5; 8])];
    let want = Runtime::default().prepare(&module).unwrap().run(&views(&x)).unwrap();
    let tolerance = Tolerance { abs: 1e-6, rel: 1e-5, of_max: 0.0 };
    let mut is_spanning = false;
    for seed in 1..20 {
        let mut session = Runtime::new(Arc::new(Reference::new(seed))).prepare(&module).unwrap();
        let got = session.run(&views(&x)).unwrap();
        // The kernels of groups are the backend's own.
        let found = compare(got[0].tensor().unwrap(), want[0].tensor().unwrap(), &tolerance).unwrap();
        assert_eq!(found.mismatches, 0, "seed {seed}: {found:?}");
        is_spanning |=
            session.plan_text().contains("Sigmoid+Exp") || session.plan_text().contains("Tanh+Exp");
    }
    assert!(is_spanning);
}

/// Every function calls the next one twice. The module is not made larger than its limit, and the other calls run as calls.
#[test]
fn functions_that_call_functions_twice_take_bounded_memory() {
    let nest = |depth: usize| {
        let mut text = format!(
            "{HEAD}graph @main {{\n  input %c : bool\n  input %x : f32[2]\n  %y = If(%c; %x) {{\n    \
             then_branch: graph @t (%x) {{\n      %a = my::F0(%x) : ?\n      output %a\n    }},\n    \
             else_branch: graph @e (%x) {{\n      output %x\n    }}\n  }} : ?\n  output %y\n}}\n"
        );
        for level in 0..depth {
            let next = level + 1;
            text += &format!(
                "\nfunction my::F{level} {{\n  opset ai.onnx=21, my=1\n  input %x : ?\n  \
                 %a = my::F{next}(%x) : ?\n  %b = my::F{next}(%a) : ?\n  output %b\n}}\n"
            );
        }
        text + &format!(
            "\nfunction my::F{depth} {{\n  opset ai.onnx=21\n  input %x : ?\n  %a = Neg(%x) : ?\n  output %a\n}}\n"
        )
    };
    let start = Instant::now();
    // Too deep to run in the life of a machine, but the branch is not taken.
    let mut session = Runtime::default().prepare(&parsed(&nest(60))).unwrap();
    let x = floats(&[1.0, 2.0]);
    let got = session.run(&views(&[flag(false), x])).unwrap();
    assert_eq!(bytes(&got), bytes(&[Data::Tensor(floats(&[1.0, 2.0]))]));
    same(&nest(6), &[flag(true), floats(&[1.0, 2.0])]);
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

/// Keeps the bytes of the values that it watches.
struct One(Watch, Vec<(Node, Vec<u8>)>);

impl NodeObserver for One {
    fn watch(&self) -> Watch {
        self.0.clone()
    }
    fn value(&mut self, node: Node, _: usize, data: DataRef<'_>) {
        let bytes = data.tensor().and_then(|tensor| Some(tensor.bytes()?.to_vec()));
        self.1.push((node, bytes.unwrap()));
    }
}

/// An observer of some values sees them by their nodes in the module that was given, results of calls as well.
#[test]
fn an_observer_of_some_values_sees_results_of_calls() {
    let module = parsed(&format!("{HEAD}{TWICE}"));
    let x = [floats(&[0.5; 8])];
    let nodes: Vec<Node> = module.nodes(module.main()).collect();
    for (at, has_calls) in [(0, false), (1, true), (2, true), (3, false)] {
        for runtime in [Runtime::default(), Runtime::new(Arc::new(Reference::new(0)))] {
            let mut session = runtime.prepare(&module).unwrap();
            let seen = [Watch::All, Watch::values(module.node(nodes[at]).result(0))].map(|watch| {
                let mut one = One(watch, Vec::new());
                session.run_observed(&views(&x), Some(&mut one)).unwrap();
                one.1.retain(|(node, _)| *node == nodes[at]);
                one.1
            });
            assert_eq!(session.plan_text().contains("Step"), has_calls);
            assert_eq!(seen[0].len(), 1);
            assert_eq!(seen[0], seen[1]);
        }
    }
}
