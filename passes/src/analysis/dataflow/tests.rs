//! Tests of the solver with two small analyses: intervals of scalars, and the outputs that a value reaches.

use super::{Analysis, Direction, Facts, Lattice, solve};
use ampc_ir::module::{Def, Payload};
use ampc_ir::op::OpKind;
use ampc_ir::ports::Ports;
use ampc_ir::text::{NoData, parse};
use ampc_ir::verify::name_of;
use ampc_ir::{Module, Node, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The least and greatest number of a value; `None` if it is not reached.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Numbers(Option<(f64, f64)>);

const ALL: Numbers = Numbers(Some((f64::NEG_INFINITY, f64::INFINITY)));

impl Lattice for Numbers {
    fn bottom() -> Self {
        Numbers(None)
    }
    fn join(&self, other: &Self) -> Self {
        match (self.0, other.0) {
            (Some((a, b)), Some((c, d))) => Numbers(Some((a.min(c), b.max(d)))),
            (a, b) => Numbers(a.or(b)),
        }
    }
    fn widen(&self, wider: &Self) -> Self {
        let (Some((a, b)), Some((c, d))) = (self.0, wider.0) else { return *wider };
        Numbers(Some((if c < a { f64::NEG_INFINITY } else { c }, if d > b { f64::INFINITY } else { d })))
    }
}

#[derive(Default)]
struct Intervals {
    visits: BTreeMap<Node, usize>,
}

impl Analysis for Intervals {
    type Fact = Numbers;
    const DIRECTION: Direction = Direction::Forward;
    fn entry(&mut self, module: &Module, value: Value) -> Numbers {
        let Def::Constant(Payload::Dense(data)) = &module.value(value).def else { return ALL };
        let number = data.small_floats(1).unwrap()[0];
        Numbers(Some((number, number)))
    }
    fn transfer(&mut self, module: &Module, node: Node, slot: usize, facts: &Facts<Numbers>) -> Numbers {
        assert_eq!(slot, 0);
        *self.visits.entry(node).or_default() += 1;
        let data = module.node(node);
        let at = |i: usize| facts.of(module, data.operand(i).unwrap()).0;
        Numbers(match data.schema().unwrap().kind {
            OpKind::Add => at(0).zip(at(1)).map(|((a, b), (c, d))| (a + c, b + d)),
            OpKind::Neg => at(0).map(|(a, b)| (-b, -a)),
            OpKind::Relu => at(0).map(|(a, b)| (a.max(0.0), b.max(0.0))),
            OpKind::Min => at(0).zip(at(1)).map(|((a, b), (c, d))| (a.min(c), b.min(d))),
            _ => return ALL,
        })
    }
}

/// The names of the outputs that a value reaches.
#[derive(Clone, PartialEq, Debug, Default)]
struct Reached(BTreeSet<String>);

impl Lattice for Reached {
    fn bottom() -> Self {
        Reached::default()
    }
    fn join(&self, other: &Self) -> Self {
        Reached(self.0.union(&other.0).cloned().collect())
    }
}

struct Liveness;

impl Analysis for Liveness {
    type Fact = Reached;
    const DIRECTION: Direction = Direction::Backward;
    fn entry(&mut self, module: &Module, value: Value) -> Reached {
        Reached([name_of(module, value)].into())
    }
    fn transfer(&mut self, module: &Module, node: Node, _: usize, facts: &Facts<Reached>) -> Reached {
        let results = module.node(node).results().iter().flatten();
        results.fold(Reached::default(), |all, &result| all.join(facts.of(module, result)))
    }
}

fn module(lines: &str, functions: &str) -> Module {
    let text = format!("module ir=10\nopset ai.onnx=21, local=1\n\ngraph {{\n{lines}}}\n{functions}");
    parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

fn value(module: &Module, name: &str) -> Value {
    let mut values = module.program_graphs().iter().flat_map(|&graph| module.defined(graph));
    values.find(|&value| name_of(module, value) == name).unwrap()
}

/// Compares the interval of each named value.
fn check(module: &Module, expected: &[(&str, f64, f64)]) -> Intervals {
    let mut analysis = Intervals::default();
    let facts = solve(module, &mut analysis);
    for &(name, lo, hi) in expected {
        assert_eq!(facts.of(module, value(module, name)).0, Some((lo, hi)), "{name}");
    }
    analysis
}

fn check_reached(module: &Module, expected: &[(&str, &[&str])]) {
    let facts = solve(module, &mut Liveness);
    for &(name, outputs) in expected {
        let reached: Vec<&str> = facts.of(module, value(module, name)).0.iter().map(String::as_str).collect();
        assert_eq!(reached, outputs, "{name}");
    }
}

const INF: f64 = f64::INFINITY;

#[test]
fn nodes_without_loops_are_visited_once() {
    let module = module(
        "  input %x : f32\n  const %one : f32 = 1.0\n  %a = Relu(%x) : f32\n  %b = Add(%a, %one) : f32
  %c = Neg(%b) : f32\n  %d = Add(%b, %c) : f32\n  output %d\n",
        "",
    );
    let analysis = check(&module, &[("a", 0.0, INF), ("b", 1.0, INF), ("c", -INF, -1.0), ("d", -INF, INF)]);
    assert!(analysis.visits.values().all(|&n| n == 1), "{:?}", analysis.visits);
    assert_eq!(analysis.visits.len(), 4);
    check_reached(&module, &[("x", &["d"]), ("one", &["d"])]);
}

/// A branch captures a value of two graphs around it, and an output of a branch may be a capture.
const BRANCHES: &str = "  input %c : bool
  const %one : f32 = 1.0
  const %two : f32 = 2.0
  %y = If(%c; %c, %one, %two) {
    then_branch: graph (%c, %one, %two) {
      %z = If(%c; %one, %two) {
        then_branch: graph (%one, %two) {\n          %a = Add(%one, %two) : f32\n          output %a\n        },
        else_branch: graph (%one) {\n          output %one\n        }
      } : f32
      output %z
    },
    else_branch: graph (%two) {\n      %n = Neg(%two) : f32\n      output %n\n    }
  } : f32
  %r = Relu(%y) : f32
  output %r
";

#[test]
fn branches_join() {
    let module = module(BRANCHES, "");
    let expected = [("a", 3.0, 3.0), ("z", 1.0, 3.0), ("n", -2.0, -2.0), ("y", -2.0, 3.0), ("r", 0.0, 3.0)];
    let analysis = check(&module, &expected);
    assert!(analysis.visits.values().all(|&n| n == 1), "{:?}", analysis.visits);
    // The condition is no port.
    check_reached(&module, &[("c", &["r"]), ("one", &["r"]), ("a", &["r"])]);
}

fn in_loop(body: &str, captures: &str) -> Module {
    module(
        &format!(
            "  input %n : i64\n  const %one : f32 = 1.0\n  const %ten : f32 = 10.0
  %last, %all = Loop(%n, _, %one; {captures}) {{
    body: graph ({captures}) {{
      input %i : i64\n      input %c : bool\n      input %s : f32\n{body}      output %c\n      output %b\n      output %s
    }}
  }} : f32, f32[?]\n  %y = Neg(%last) : f32\n  output %y\n  output %all\n"
        ),
        "",
    )
}

#[test]
fn states_reach_a_fixed_point() {
    let counts = in_loop("      %b = Add(%s, %one) : f32\n", "%one");
    let expected =
        [("s", 1.0, INF), ("b", 2.0, INF), ("last", 1.0, INF), ("y", -INF, -1.0), ("all", 1.0, INF)];
    let analysis = check(&counts, &expected);
    assert!(analysis.visits.values().all(|&n| n <= 16), "{:?}", analysis.visits);
    // The state is what it was, so that the body is visited once.
    let keeps = in_loop("      %b = Relu(%s) : f32\n", "%one");
    let analysis = check(&keeps, &[("s", 1.0, 1.0), ("last", 1.0, 1.0), ("y", -1.0, -1.0)]);
    assert!(analysis.visits.values().all(|&n| n == 1), "{:?}", analysis.visits);
    // Facts are not narrowed after widening, but what bounds them in the body does.
    let bounded = in_loop("      %a = Add(%s, %one) : f32\n      %b = Min(%a, %ten) : f32\n", "%one, %ten");
    check(&bounded, &[("b", 2.0, 10.0), ("last", 1.0, 10.0), ("all", 1.0, INF)]);
    check_reached(&bounded, &[("s", &["all", "y"]), ("ten", &["all", "y"]), ("i", &[]), ("c", &["c"])]);
}

const FUNCTIONS: &str = "
function local::Outer {
  opset ai.onnx=21, local=1
  input %p : f32
  %o = local::Inner(%p) : f32
  output %o
}

function local::Inner {
  opset ai.onnx=21
  input %q : f32
  input %left_out : f32
  %v = Neg(%q) : f32
  %w = Neg(%left_out) : f32
  output %v
  output %w
}

function local::Unused {
  opset ai.onnx=21
  input %u : f32
  %unused = Relu(%u) : f32
  output %unused
}
";

#[test]
fn functions_join_their_calls() {
    let module = module(
        "  const %one : f32 = 1.0\n  const %two : f32 = 2.0\n  %a = local::Outer(%one) : f32
  %b = local::Inner(%two, %one) : f32\n  %d = Relu(%b) : f32\n  output %a\n  output %d\n",
        FUNCTIONS,
    );
    check(
        &module,
        &[
            ("p", 1.0, 1.0),
            ("q", 1.0, 2.0),
            ("v", -2.0, -1.0),
            // One call leaves the operand out.
            ("left_out", -INF, INF),
            ("a", -2.0, -1.0),
            ("b", -2.0, -1.0),
            ("d", 0.0, 0.0),
            ("u", -INF, INF),
            ("unused", 0.0, INF),
        ],
    );
    check_reached(
        &module,
        &[("one", &["a", "d"]), ("q", &["a", "d"]), ("u", &["unused"]), ("left_out", &[])],
    );
}

/// A function that calls itself through the operands of a later call grows, and is widened.
#[test]
fn calls_in_a_row_are_widened() {
    let mut lines = String::from("  const %one : f32 = 1.0\n  %v0 = Neg(%one) : f32\n");
    for i in 0..40 {
        lines += &format!("  %v{} = local::Next(%v{i}, %one) : f32\n", i + 1);
    }
    lines += "  output %v40\n";
    let function = "
function local::Next {
  opset ai.onnx=21
  input %p : f32
  input %k : f32
  %o = Add(%p, %k) : f32
  output %o
}
";
    let module = module(&lines, function);
    let analysis = check(&module, &[("p", -1.0, INF), ("v40", 0.0, INF)]);
    assert!(analysis.visits.values().all(|&n| n <= 16), "{:?}", analysis.visits);
}

/// An analysis that forgets at states.
struct Forgets(Intervals);

impl Analysis for Forgets {
    type Fact = Numbers;
    const DIRECTION: Direction = Direction::Forward;
    fn entry(&mut self, module: &Module, value: Value) -> Numbers {
        self.0.entry(module, value)
    }
    fn transfer(&mut self, module: &Module, node: Node, slot: usize, facts: &Facts<Numbers>) -> Numbers {
        self.0.transfer(module, node, slot, facts)
    }
    fn cross(&self, _: &Module, ports: &Ports, port: usize, fact: Numbers) -> Numbers {
        if ports.is_state(port) { ALL } else { fact }
    }
}

#[test]
fn ports_change_what_crosses_them() {
    let module = in_loop("      %b = Relu(%s) : f32\n", "%one");
    let facts = solve(&module, &mut Forgets(Intervals::default()));
    assert_eq!(*facts.of(&module, value(&module, "s")), ALL);
    assert_eq!(*facts.of(&module, value(&module, "b")), Numbers(Some((0.0, INF))));
}
