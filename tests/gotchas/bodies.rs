//! Bodies and functions: branches, loops, scans, calls (G29, G30, G32), executed every way through.

use crate::runtime::{Feed, bools, exec_models, f32s, i64s};
use crate::support::{module_with, options, pin_f32};
use ampc::ir::module::{GraphOwner, Provenance};
use ampc::ir::op::OpKind;
use ampc::ir::views::resolve_captures;
use ampc::ir::{DType, GraphId, Module, Node, Value};
use ampc::passes::policy::Pin;
use ampc::{RewriteOptions, Rewritten};
use std::collections::{BTreeMap, BTreeSet};

const X: [f32; 4] = [0.5, 1.25, -2.0, 0.75];

fn opsets() -> &'static str {
    "ai.onnx=21, local=1"
}

/// Rewrites a model, runs it with each of the feeds, and hands the rewritten one on.
///
/// Everything is of a few digits, so that products are exact in f16 and 2^-8 apart in bf16; what is wrong in a
/// body is wrong by a type, a missing rounding or another value, and shows at 2 %.
#[track_caller]
fn runs(to: DType, graph: &str, feeds: &[Vec<Feed>], change: impl Fn(&mut RewriteOptions)) -> Rewritten {
    let mut options = options(to);
    change(&mut options);
    let source = || ampc::Model::from(module_with(opsets(), graph));
    let mut last = None;
    for feeds in feeds {
        let (done, runs) = exec_models(source(), source(), &options, feeds);
        if let Some(runs) = runs {
            runs.are_within(if to == DType::F16 { 1e-3 } else { 0.02 });
        }
        last = Some(done);
    }
    last.expect("there are feeds")
}

fn nodes(module: &Module, kind: OpKind) -> Vec<Node> {
    let all = module.graph_ids().flat_map(|graph| module.nodes(graph));
    all.filter(|&n| module.node(n).schema().is_some_and(|s| s.kind == kind)).collect()
}

/// The element types that products are computed in, wherever they are.
fn products(module: &Module) -> Vec<DType> {
    let results = nodes(module, OpKind::MatMul).into_iter().map(|n| module.node(n).result(0).unwrap());
    results.map(|v| module.value(v).ty.dtype().unwrap()).collect()
}

/// The graphs that inserted casts stand in.
fn cast_in(module: &Module) -> Vec<GraphId> {
    let casts = nodes(module, OpKind::Cast);
    let inserted = casts.into_iter().filter(|&n| module.node(n).provenance == Provenance::Inserted);
    inserted.map(|n| module.node(n).graph).collect()
}

const IF: &str = "input %c : bool
  input %x : f32[2, 2]
  const %w : f32[2, 2] = [0.5, 1.0, -1.0, 0.25]
  %y = If(%c; %x, %w) {
    then_branch: graph (%x, %w) {
      %a = MatMul(%x, %w) : f32[2, 2]
      output %a
    },
    else_branch: graph (%x) {
      %k = Constant() {value_float=0.5} : f32
      %b = Mul(%x, %k) : f32[2, 2]
      output %b
    }
  } : f32[2, 2]
  output %y : f32[2, 2]";

fn both(names: &[&str]) -> Vec<Vec<Feed>> {
    let of = |c: bool| names.iter().map(|n| bools(n, &[], &[c])).chain([f32s("x", &[2, 2], &X)]).collect();
    vec![of(true), of(false)]
}

/// G29: both branches make one type; what one branch reads low is cast there, and runs only if it is taken.
#[test]
fn g29_branches_agree() {
    for to in [DType::F16, DType::BF16] {
        let done = runs(to, IF, &both(&["c"]), |_| ());
        let module = &done.model.module;
        assert_eq!(products(module), [to]);
        let main = module.main();
        assert!(!cast_in(module).contains(&main), "casts are where they are needed");
        // The branch that stays fp32 is as it was: its constant is, too.
        assert_eq!(cast_in(module).len(), 2);
    }
}

/// G29: a branch output that is pinned low is low in the other branch as well, and widened for the public output.
#[test]
fn g29_results_pinned_low() {
    let done = runs(DType::F16, IF, &both(&["c"]), |options| {
        let policy = crate::support::policy(options);
        policy.pin("y#out0", Pin::To(DType::F16)).unwrap();
    });
    let module = &done.model.module;
    for body in module.graph_ids().filter(|&g| module.owner(g).is_some()) {
        let output = module.graph(body).outputs()[0].value;
        assert_eq!(module.value(output).ty.dtype(), Some(DType::F16));
    }
    let public = module.graph(module.main()).outputs()[0].value;
    assert_eq!(module.value(public).ty.dtype(), Some(DType::F32));
}

const LOOP: &str = "input %n : i64
  input %x : f32[2, 2]
  const %w : f32[2, 2] = [0.5, 0.5, -0.5, 0.25]
  %s, %p, %all = Loop(%n, _, %x, %w; %w, %x) {
    body: graph (%w, %x) {
      input %i : i64
      input %go : bool
      input %sum : f32[2, 2]
      input %prod : f32[2, 2]
      %a = MatMul(%prod, %w) : f32[2, 2]
      %m = MatMul(%x, %w) : f32[2, 2]
      %b = Add(%sum, %m) : f32[2, 2]
      %keep = Identity(%go) : bool
      output %keep
      output %b
      output %a
      output %m
    }
  } : f32[2, 2], f32[2, 2], f32[?, 2, 2]
  output %s : f32[2, 2]
  output %p : f32[2, 2]
  output %all : f32[?, 2, 2]";

fn trips() -> Vec<Vec<Feed>> {
    [0, 1, 3].map(|n| vec![i64s("n", &[], &[n]), f32s("x", &[2, 2], &X)]).into()
}

/// G30: state is of one type all the way round, scan outputs by themselves; casts of what does not change stand
/// outside.
#[test]
fn g30_loops_run_0_1_3_times() {
    for to in [DType::F16, DType::BF16] {
        let done = runs(to, LOOP, &trips(), |_| ());
        let module = &done.model.module;
        assert_eq!(products(module), [to; 2]);
        let body = module.graph_ids().find(|&g| module.owner(g).is_some()).unwrap();
        let types: Vec<DType> =
            module.graph(body).inputs()[2..].iter().map(|&v| module.value(v).ty.dtype().unwrap()).collect();
        assert_eq!(types, [DType::F32, to], "the sum stays fp32, the product alone is low");
        let captured: Vec<DType> =
            module.graph(body).captures().iter().filter_map(|&v| module.value(v).ty.dtype()).collect();
        assert_eq!(captured, [to; 2], "what the loop reads is cast before it");
    }
}

/// G30: state that is pinned goes round in the format that it was pinned to.
#[test]
fn g30_state_pinned_low() {
    let done = runs(DType::F16, LOOP, &trips(), |options| {
        crate::support::policy(options).pin("s#state0", Pin::To(DType::F16)).unwrap();
    });
    let module = &done.model.module;
    let body = module.graph_ids().find(|&g| module.owner(g).is_some()).unwrap();
    assert_eq!(module.value(module.graph(body).inputs()[2]).ty.dtype(), Some(DType::F16));
}

/// G30: what only the body of a loop reads low is cast once, before the loop.
#[test]
fn g30_what_a_loop_reads_is_cast_before_it() {
    let graph = "input %n : i64
  input %x : f32[2, 2]
  input %first : f32[2, 2]
  const %w : f32[2, 2] = [0.5, 0.5, -0.5, 0.25]
  %s = Loop(%n, _, %first; %w, %x) {
    body: graph (%w, %x) {
      input %i : i64
      input %go : bool
      input %sum : f32[2, 2]
      %m = MatMul(%x, %w) : f32[2, 2]
      %b = Add(%sum, %m) : f32[2, 2]
      %keep = Identity(%go) : bool
      output %keep
      output %b
    }
  } : f32[2, 2]
  output %s : f32[2, 2]";
    let feeds = trips().into_iter().map(|mut feeds| {
        feeds.push(f32s("first", &[2, 2], &[0.5, -0.25, 1.0, 2.0]));
        feeds
    });
    let feeds: Vec<Vec<Feed>> = feeds.collect();
    for to in [DType::F16, DType::BF16] {
        let done = runs(to, graph, &feeds, |_| ());
        let module = &done.model.module;
        assert_eq!(products(module), [to]);
        let x = module.graph(module.main()).inputs()[1];
        let readers: Vec<OpKind> =
            module.uses(x).map(|(node, _)| module.node(node).schema().unwrap().kind).collect();
        assert_eq!(readers, [OpKind::Cast], "the loop reads `x` as the cast makes it");
    }
}

/// G30: a Scan hands in slices of what was cast as a whole, outside.
#[test]
fn g30_scans() {
    let graph = "input %x : f32[3, 2, 2]
  const %w : f32[2, 2] = [0.5, 0.5, -0.5, 0.25]
  %last, %all = Scan(%w, %x; %w) {
    body: graph (%w) {
      input %h : f32[2, 2]
      input %e : f32[2, 2]
      %a = MatMul(%e, %w) : f32[2, 2]
      %b = Add(%a, %h) : f32[2, 2]
      output %b
      output %a
    },
    num_scan_inputs=1
  } : f32[2, 2], f32[3, 2, 2]
  output %last : f32[2, 2]
  output %all : f32[3, 2, 2]";
    let x: Vec<f32> = X.iter().chain(&X).chain(&X).copied().collect();
    for to in [DType::F16, DType::BF16] {
        let done = runs(to, graph, &[vec![f32s("x", &[3, 2, 2], &x)]], |_| ());
        let module = &done.model.module;
        let body = module.graph_ids().find(|&g| module.owner(g).is_some()).unwrap();
        let element = module.graph(body).inputs()[1];
        assert_eq!((products(module), module.value(element).ty.dtype()), (vec![to], Some(to)));
    }
}

/// G29, G30: a branch in a loop in a branch.
#[test]
fn g30_bodies_in_bodies() {
    let graph = "input %c : bool
  input %d : bool
  input %x : f32[2, 2]
  const %n : i64 = 2
  const %w : f32[2, 2] = [0.5, 0.5, -0.5, 0.25]
  %y = If(%c; %d, %n, %x, %w) {
    then_branch: graph (%d, %n, %x, %w) {
      %l = Loop(%n, _, %x; %d, %x, %w) {
        body: graph (%d, %x, %w) {
          input %i : i64
          input %go : bool
          input %h : f32[2, 2]
          %z = If(%d; %h, %x, %w) {
            then_branch: graph (%h, %x, %w) {
              %a = MatMul(%h, %w) : f32[2, 2]
              %u = MatMul(%x, %w) : f32[2, 2]
              %t = Add(%a, %u) : f32[2, 2]
              output %t
            },
            else_branch: graph (%h) {
              %g = Identity(%h) : f32[2, 2]
              output %g
            }
          } : f32[2, 2]
          %keep = Identity(%go) : bool
          output %keep
          output %z
        }
      } : f32[2, 2]
      output %l
    },
    else_branch: graph (%x) {
      %o = Identity(%x) : f32[2, 2]
      output %o
    }
  } : f32[2, 2]
  output %y : f32[2, 2]";
    let feeds: Vec<Vec<Feed>> = [(true, true), (true, false), (false, true)]
        .map(|(c, d)| vec![bools("c", &[], &[c]), bools("d", &[], &[d]), f32s("x", &[2, 2], &X)])
        .into();
    for to in [DType::F16, DType::BF16] {
        let done = runs(to, graph, &feeds, |_| ());
        let module = &done.model.module;
        assert_eq!(products(module), [to; 2]);
        let in_loop = |mut graph: GraphId| {
            while let Some(owner) = module.owner(graph) {
                if module.node(owner).schema().unwrap().kind == OpKind::Loop {
                    return true;
                }
                graph = module.node(owner).graph;
            }
            false
        };
        let twice: Vec<Value> = nodes(module, OpKind::Cast)
            .into_iter()
            .filter(|&n| in_loop(module.node(n).graph))
            .map(|n| resolve_captures(module, module.node(n).operand(0).unwrap()))
            .filter(|&v| !in_loop(module.value(v).graph))
            .collect();
        assert_eq!(twice, [], "cast again in every iteration");
    }
}

const CALLS: &str = "input %c : bool
  input %x : f32[2, 2]
  const %w : f32[2, 2] = [0.5, 0.5, -0.5, 0.25]
  %a = local::Outer(%x, %w) : f32[2, 2]
  %y = If(%c; %a, %w) {
    then_branch: graph (%a, %w) {
      %b = local::Inner(%a, %w) : f32[2, 2]
      output %b
    },
    else_branch: graph (%a) {
      %o = Identity(%a) : f32[2, 2]
      output %o
    }
  } : f32[2, 2]
  output %y : f32[2, 2]
}

function local::Outer {
  opset ai.onnx=21, local=1
  input %v : ?
  input %k : ?
  %r = local::Inner(%v, %k) : ?
  %half = Constant() {value_float=0.5} : f32
  %s = Mul(%r, %half) : ?
  %t = MatMul(%s, %k) : ?
  output %t
}

function local::Inner {
  opset ai.onnx=21
  input %p : ?
  input %q : ?
  %m = MatMul(%p, %q) : ?
  %n = Relu(%m) : ?
  output %n";

/// G32: a function is lowered for all its calls, in bodies and functions too; constants in it follow.
#[test]
fn g32_functions() {
    for to in [DType::F16, DType::BF16] {
        let done = runs(to, CALLS, &both(&["c"]), |_| ());
        let module = &done.model.module;
        assert_eq!(products(module), [to; 2]);
        assert_eq!(module.functions().count(), 2);
        for (_, function) in module.functions() {
            let inputs = module.graph(function.graph).inputs();
            assert!(
                inputs.iter().all(|&v| module.value(v).ty.dtype() == Some(to)),
                "what calls hand in is low"
            );
        }
        let in_function = |g: GraphId| matches!(module.graph(module.root(g)).owner, GraphOwner::Function(_));
        assert!(!cast_in(module).into_iter().any(in_function), "the constant was converted");
    }
}

/// G32: a function may be the body of an operator of ONNX; judges type its calls by the operator's schema.
#[test]
fn g32_functions_of_the_name_of_an_operator() {
    for to in [DType::F16, DType::BF16] {
        let done = runs(to, OPERATOR, &[vec![f32s("x", &[2, 2], &X)]], |_| ());
        assert_eq!(products(&done.model.module), [to; 2]);
        let call = done.report.node("g").unwrap();
        assert_eq!((call.precision.as_deref(), call.rule.as_str()), (Some("fp32"), "schema"));
    }
}

const OPERATOR: &str = "
  input %x : f32[2, 2]
  const %w : f32[2, 2] = [0.5, 0.5, -0.5, 0.25]
  %a = MatMul(%x, %w) : f32[2, 2]
  %g = Gelu(%a) : f32[2, 2] @g
  %y = MatMul(%g, %w) : f32[2, 2]
  output %y : f32[2, 2]
}

function Gelu {
  opset ai.onnx=21
  input %X : ?
  %half = Constant() {value_float=0.5} : f32
  %one = Constant() {value_float=1.0} : f32
  %root = Constant() {value_float=0.70710677} : f32
  %s = Mul(%X, %root) : ?
  %e = Erf(%s) : ?
  %p = Add(%e, %one) : ?
  %h = Mul(%X, %half) : ?
  %Y = Mul(%h, %p) : ?
  output %Y";

/// The functions of a module by name, with the element types of the products in each.
fn products_of_functions(module: &Module) -> BTreeMap<String, Vec<DType>> {
    let name = |node: Node| match module.graph(module.root(module.node(node).graph)).owner {
        GraphOwner::Function(function) => module.text(module.function(function).name).to_owned(),
        GraphOwner::Main | GraphOwner::Body { .. } | GraphOwner::Erased => String::new(),
    };
    let mut found: BTreeMap<String, Vec<DType>> = BTreeMap::new();
    for node in nodes(module, OpKind::MatMul) {
        let dtype = module.value(module.node(node).result(0).unwrap()).ty.dtype().unwrap();
        found.entry(name(node)).or_default().push(dtype);
    }
    found
}

/// G32: a node of a function is pinned by its path, for all calls.
#[test]
fn g32_pins_in_functions() {
    let done = runs(DType::F16, CALLS, &both(&["c"]), |options| pin_f32(options, "Inner/m"));
    let found = products_of_functions(&done.model.module);
    let (inner, outer): (Vec<_>, Vec<_>) = found.iter().partition(|(name, _)| name.starts_with("Inner"));
    assert!(inner.iter().all(|(_, products)| **products == [DType::F32]), "{found:?}");
    assert!(outer.iter().all(|(_, products)| **products == [DType::F16]), "{found:?}");
}

/// G32: a call that needs fp32 has a function of its own; the others stay low and share one.
#[test]
fn g32_functions_per_signature() {
    let done = runs(DType::F16, CALLS, &both(&["c"]), |options| pin_f32(options, "y/then_branch/b/m"));
    let found = products_of_functions(&done.model.module);
    let expected = [("Inner", DType::F32), ("Inner__f16", DType::F16), ("Outer", DType::F16)];
    assert_eq!(found, expected.map(|(name, dtype)| (name.to_owned(), vec![dtype])).into());
    let pinned = done.report.node("y/then_branch/b/m").expect("a call that differs is in the report");
    assert_eq!(pinned.precision.as_deref(), Some("fp32"));
    let other = done.report.node("a/r/m").expect("so is what it differs from");
    assert_eq!(other.precision.as_deref(), Some("fp16"));
    // Calls are those of the source, and each is counted as what it is.
    let called: BTreeSet<&str> =
        done.report.nodes.iter().filter(|n| n.domain == "local").map(|n| &*n.op).collect();
    assert_eq!(called, ["Inner", "Outer"].into());
    let other = done.report.nodes.iter().filter(|n| n.vars.is_empty()).count() as u64;
    assert_eq!(done.report.summary.other, other);
}
