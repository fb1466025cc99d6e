//! A pass that builds nodes, in every kind of graph.

use ampc_ir::op::OpKind;
use ampc_ir::text::{NoData, PrintOptions, parse, print};
use ampc_ir::{GraphId, InsertError, Inserter, Module, Node, NodeSpec, Position};
use ampc_passes::pipeline::Pipeline;
use ampc_passes::{Changed, Pass, PassCx, PassError, sound};

/// `Softplus(x)` becomes `Log(1 + Exp(x))`.
#[derive(Debug)]
struct DecomposeSoftplus;

impl Pass for DecomposeSoftplus {
    fn name(&self) -> &'static str {
        "decompose-softplus"
    }

    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let graphs: Vec<GraphId> = module.graph_ids().collect();
        let nodes: Vec<Node> = graphs.iter().flat_map(|&graph| module.nodes(graph)).collect();
        let main = module.main();
        let mut inserter = Inserter::new(module, main, Position::Last).with_facts(cx.facts);
        let mut changed = false;
        for node in nodes {
            changed |= sound(decompose(&mut inserter, node));
        }
        Ok(Changed::when(changed))
    }
}

/// True if the node was a Softplus.
fn decompose(inserter: &mut Inserter<'_>, node: Node) -> Result<bool, InsertError> {
    let data = inserter.module.node(node);
    if data.schema().is_none_or(|schema| schema.kind != OpKind::Softplus) {
        return Ok(false);
    }
    let (Some(x), Some(y)) = (data.operand(0), data.result(0)) else { return Ok(false) };
    // In a function whose calls differ the element type is not known.
    let Some(dtype) = inserter.module.value(x).ty.dtype() else { return Ok(false) };
    let name = data.name;
    inserter.move_before(node);
    let one = inserter.scalar("one", dtype, 1.0)?;
    let exp = inserter.op(OpKind::Exp, &[x], &[])?;
    let sum = inserter.op(OpKind::Add, &[exp, one], &[])?;
    // The logarithm stands in place of the node: it has its name, by which users pin it, and its result that of y.
    let [log] = inserter.insert(NodeSpec::new(OpKind::Log, &[sum]).node_name(name))?;
    let result = inserter.module.value(y).name.expect("results have names");
    inserter.module.replace_value(y, log);
    inserter.module.erase_node(node);
    inserter.module.set_value_name(log, result);
    Ok(true)
}

const MODEL: &str = "\
module ir=10
opset ai.onnx=21, local=1

graph @main {
  input %c : bool
  input %x : f16[2, N]
  %a = Softplus(%x) : f16[2, N] @outer
  %b = Softplus(%a) : f16[2, N]
  %y = If(%c; %b) {
    then_branch: graph @then(%b) {
      %t = Softplus(%b) : f16[2, N]
      output %t : f16[2, N]
    },
    else_branch: graph @else(%b) {
      %e = local::F(%b) : f16[2, N]
      output %e : f16[2, N]
    }
  } : f16[2, N]
  output %y : f16[2, N]
  output %a : f16[2, N]
}

function local::F {
  opset ai.onnx=17
  input %v : f16[2, N]
  %r = Softplus(%v) : f16[2, N]
  output %r
}
";

const EXPECTED: &str = "\
module ir=10
opset ai.onnx=21, local=1

graph @main {
  input %c : bool
  input %x : f16[2, N]
  const %a.one : f16 = 1.0
  %a.Exp = Exp(%x) : f16[2, N]
  %a.Add = Add(%a.Exp, %a.one) : f16[2, N]
  %a = Log(%a.Add) : f16[2, N] @outer
  %b.Exp = Exp(%a) : f16[2, N]
  %b.Add = Add(%b.Exp, %a.one) : f16[2, N]
  %b = Log(%b.Add) : f16[2, N]
  %y = If(%c; %b) {
    then_branch: graph @then(%b) {
      const %t.one : f16 = 1.0
      %t.Exp = Exp(%b) : f16[2, N]
      %t.Add = Add(%t.Exp, %t.one) : f16[2, N]
      %t = Log(%t.Add) : f16[2, N]
      output %t : f16[2, N]
    },
    else_branch: graph @else(%b) {
      %e = local::F(%b) : f16[2, N]
      output %e : f16[2, N]
    }
  } : f16[2, N]
  output %y : f16[2, N]
  output %a : f16[2, N]
}

function local::F {
  opset ai.onnx=17
  input %v : f16[2, N]
  const %r.one : f16 = 1.0
  %r.Exp = Exp(%v) : f16[2, N]
  %r.Add = Add(%r.Exp, %r.one) : f16[2, N]
  %r = Log(%r.Add) : f16[2, N]
  output %r
}
";

#[test]
fn a_pass_builds_nodes_in_main_bodies_and_functions() {
    for verify_each in [false, true] {
        let mut module = parse(MODEL, &NoData).unwrap_or_else(|errors| panic!("{errors}"));
        let pipeline = Pipeline::new(vec![Box::new(DecomposeSoftplus)]).expect("an order");
        pipeline.run(&mut module, verify_each, &mut ()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(print(&module, &PrintOptions::default()).text, EXPECTED);
    }
}
