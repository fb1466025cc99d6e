//! Every kind of violation, planted into a valid module where no edit verb would put it.

use super::{Problem, verify_module};
use crate::attr::AttrValue;
use crate::dtype::DType;
use crate::entity::{GraphId, Node, Value};
use crate::module::{Def, GraphOwner, Module};
use crate::text::{NoData, parse};
use crate::ty::{Shape, Type};

const MODEL: &str = "\
module ir=10
opset ai.onnx=21, local=1, other=1

graph @main {
  input %x : f32[4]
  input %c : bool
  const %w : f32[4] = [1.0, 2.0, 3.0, 4.0]
  %a = Add(%x, %w) : f32[4] @add
  %b = local::F(%a) : f32[4] @call
  %p = Transpose(%b) {perm=[0]} : f32[4] @turn
  %k = Cast(%p) {to=1} : f32[4] @cast
  %y = If(%c; %k) {
    then_branch: graph @then(%k) {
      %t = Relu(%k) : f32[4]
      %u = Abs(%t) : f32[4]
      output %u : f32[4]
    },
    else_branch: graph @else(%k) {
      %e = Neg(%k) : f32[4]
      output %e : f32[4]
    }
  } : f32[4] @choice
  %z = other::Op(%x) {
    body: graph @own {
      input %i : f32[4]
      %o = Abs(%i) : f32[4]
      %n = Neg(%o) : f32[4]
      output %n : f32[4]
    }
  } : f32[4]
  output %y : f32[4]
}

function local::F {
  opset ai.onnx=21
  input %v : f32[4]
  %r = Relu(%v) : f32[4]
  output %r
}
";

fn module() -> Module {
    parse(MODEL, &NoData).unwrap_or_else(|errors| panic!("{errors}"))
}

fn value(module: &Module, name: &str) -> Value {
    let mut values = module.values.iter().map(|(value, _)| value);
    values.find(|&value| module.value_name(value).is_some_and(|n| module.text(n) == name)).unwrap()
}

fn node(module: &Module, name: &str) -> Node {
    let mut nodes = module.nodes.iter().map(|(node, _)| node);
    nodes.find(|&node| module.node(node).name.is_some_and(|n| module.text(n) == name)).unwrap()
}

fn graph(module: &Module, name: &str) -> GraphId {
    module.graph_ids().find(|&graph| module.text(module.graph(graph).name) == name).unwrap()
}

/// The number of a kind. A new one needs a number here, and then a case.
fn kind(problem: &Problem) -> usize {
    match problem {
        Problem::Dangling { .. } => 0,
        Problem::ReadBeforeDefined { .. } => 1,
        Problem::UsesDisagree { .. } => 2,
        Problem::DuplicateName { .. } => 3,
        Problem::Shadowed { .. } => 4,
        Problem::Attribute { .. } => 5,
        Problem::UnknownAttribute { .. } => 6,
        Problem::Body { .. } => 7,
        Problem::RecursiveFunction { .. } => 8,
        Problem::Operator(_) => 9,
        Problem::UnknownDType { .. } => 10,
        Problem::TypeDisagrees { .. } => 11,
        Problem::BoundaryDisagrees { .. } => 12,
        Problem::Untyped { .. } => 13,
        Problem::IrVersion { .. } => 14,
        Problem::OpsetVersion { .. } => 15,
        Problem::DuplicateOpset { .. } => 16,
        Problem::NotImported { .. } => 17,
    }
}

const KINDS: usize = 18;

type Plant = fn(&mut Module);

/// One or more ways to get each kind, by its number.
const CASES: &[(usize, Plant)] = &[
    (0, |m| {
        let inner = value(m, "t");
        m.graphs[m.main].outputs[0].value = inner;
    }),
    (0, |m| {
        let x = value(m, "x");
        m.values[x].def = Def::Erased;
    }),
    (1, |m| {
        let (call, add) = (node(m, "call"), node(m, "add"));
        m.move_node(call, crate::edit::Position::Before(add));
    }),
    (2, |m| {
        let (add, w) = (node(m, "add"), value(m, "w"));
        m.nodes[add].operands[0] = Some(w);
    }),
    (3, |m| {
        let (a, name) = (value(m, "a"), m.intern("x"));
        m.values[a].name = Some(name);
    }),
    (4, |m| {
        let (t, name) = (value(m, "t"), m.intern("k"));
        m.values[t].name = Some(name);
    }),
    (5, |m| {
        let (cast, to) = (node(m, "cast"), m.intern("to"));
        m.set_attr(cast, to, AttrValue::Float(1.0));
    }),
    (5, |m| {
        let (cast, to) = (node(m, "cast"), m.intern("to"));
        m.remove_attr(cast, to);
    }),
    (6, |m| {
        let (add, name) = (node(m, "add"), m.intern("nothing"));
        m.set_attr(add, name, AttrValue::Int(1));
    }),
    (7, |m| {
        let (then, other) = (graph(m, "then"), m.intern("else_branch"));
        let GraphOwner::Body { node, .. } = m.graph(then).owner else { panic!() };
        m.graphs[then].owner = GraphOwner::Body { node, attr: other };
    }),
    (8, |m| {
        let function = m.functions().next().map(|(id, _)| id).unwrap();
        let inner = m.nodes(m.function(function).graph).next().unwrap();
        m.set_op(inner, crate::Op::Call(function));
    }),
    (9, |m| {
        let add = node(m, "add");
        m.set_formal_operands(add, &[None, None]);
    }),
    (10, |m| {
        let x = value(m, "x");
        m.set_type(x, Type::tensor(DType::Other(99), Shape::known(&[4])));
    }),
    // In the main graph, a body, a function, and a body that inference does not enter.
    (11, |m| wrong(m, "a")),
    (11, |m| wrong(m, "t")),
    (11, |m| wrong(m, "r")),
    (11, |m| wrong(m, "v")),
    (11, |m| wrong(m, "o")),
    (12, |m| {
        let w = value(m, "w");
        m.set_type(w, Type::tensor(DType::F16, Shape::known(&[4])));
    }),
    (12, |m| {
        let captured = m.graph(graph(m, "then")).captures()[0];
        m.set_type(captured, Type::tensor(DType::F16, Shape::known(&[4])));
    }),
    (13, |m| {
        let x = value(m, "x");
        m.set_type(x, Type::Unknown);
    }),
    (14, |m| m.header.ir_version = 99),
    (15, |m| m.header.opsets[0].1 = 999),
    (16, |m| {
        let domain = m.intern("");
        m.header.opsets.push((domain, 20));
    }),
    (17, |m| m.header.opsets.retain(|(_, version)| *version == 21)),
];

/// Makes integers of a value that is f32.
fn wrong(module: &mut Module, name: &str) {
    let value = value(module, name);
    module.set_type(value, Type::tensor(DType::I64, Shape::known(&[4])));
}

#[test]
fn every_kind_of_violation_is_found() {
    verify_module(&module()).unwrap();
    for (case, (expected, plant)) in CASES.iter().enumerate() {
        let mut module = module();
        plant(&mut module);
        let found = verify_module(&module).expect_err("a violation");
        let kinds: Vec<usize> = found.iter().map(|v| kind(&v.problem)).collect();
        assert!(kinds.contains(expected), "case {case}: {found:?}");
    }
    let missing: Vec<usize> =
        (0..KINDS).filter(|kind| !CASES.iter().any(|(expected, _)| expected == kind)).collect();
    assert!(missing.is_empty(), "kinds without a case: {missing:?}");
}

/// Shapes may be known to one side only, and then they do not disagree; two that contradict each other do.
#[test]
fn types_may_say_less_than_inference() {
    let typed = |shape: Shape| {
        let mut module = module();
        let a = value(&module, "a");
        module.set_type(a, Type::tensor(DType::F32, shape));
        verify_module(&module)
    };
    assert!(typed(Shape::unknown()).is_ok());
    let found = typed(Shape::known(&[5])).unwrap_err();
    assert!(found.iter().any(|v| kind(&v.problem) == 11), "{found:?}");
}
