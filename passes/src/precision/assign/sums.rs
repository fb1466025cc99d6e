//! Sums that loops keep: `h + x` as the next `h`, and gated sums, `f·c + i·g` as the next `c`. In 16 bits every
//! iteration would round the sum again, and a large sum would lose small addends. So such sums are worth more than the
//! casts that they cost.

use crate::graph::flow::{self, Var};
use crate::precision::classify::quantized::is_unasked;
use ampc_ir::module::Op;
use ampc_ir::op::{self, Class, OpKind};
use ampc_ir::ports::Ports;
use ampc_ir::{Module, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// Returns the infer variables of additions and subtractions that make the next state of a loop from the state, the
/// variables of the products by which they scale the state, and the ports of those states.
pub(super) fn sums(module: &Module) -> FxHashSet<Var> {
    let mut sums = FxHashSet::default();
    for node in flow::nodes(module) {
        let is_loop =
            matches!(module.node(node).op, Op::Schema(s) if matches!(s.kind, OpKind::Loop | OpKind::Scan));
        let Some(ports) = Ports::of(module, node).filter(|_| is_loop) else { continue };
        for port in (0..ports.len()).filter(|&port| ports.is_state(port)) {
            let states: Vec<Value> = ports.body_inputs(module, port).collect();
            let next = ports.body_outputs(module, port);
            let next =
                next.filter_map(|(graph, slot)| module.graph(graph).outputs().get(slot).map(|o| o.value));
            let found: Vec<Var> = next.flat_map(|next| sum_of(module, next, &states)).collect();
            if !found.is_empty() {
                sums.extend(found);
                sums.extend(u16::try_from(port).map(|var| Var { node, var }));
            }
        }
    }
    sums
}

/// The maximal depth of sums of sums. The product of two complex numbers is a sum of products.
const MAX_NESTED: usize = 4;

/// Returns the variables by which a value is a sum of the states `of` a loop: the variables of the addition that makes
/// the value, of the additions whose results it adds up, and of the products, of matrices too, by which the additions
/// scale a state. Empty if no addition leads to a state. For example, with the states `re` and `im`:
///
/// ```text
/// %a = Mul(%re, %cos)       %b = Mul(%im, %sin)
/// %turned = Sub(%a, %b)     %next_re = Add(%turned, %x)
///
/// of %next_re: Add, Sub and both Mul, since %next_re = re · cos − im · sin + x
/// ```
fn sum_of(module: &Module, value: Value, of: &[Value]) -> Vec<Var> {
    let mut found = Vec::new();
    // A value, with the sums of which it is a term.
    let mut work = vec![(value, Vec::new())];
    while let Some((value, mut sums)) = work.pop() {
        let Some((node, var)) = infer_producer(module, value, op::adds) else { continue };
        sums.push(var);
        for &operand in module.node(node).formal_operands().iter().flatten() {
            if of.contains(&flow::behind_inserted(module, operand)) {
                found.extend(&sums);
            } else if let Some((product, scales)) = scaling_producer(module, operand)
                && reads(module, product, of)
            {
                found.extend(sums.iter().copied().chain([scales]));
            } else if sums.len() < MAX_NESTED {
                work.push((operand, sums.clone()));
            }
        }
    }
    found
}

/// Returns the product that makes a value, element by element or of matrices, with its variable. A product of matrices
/// that the user requested to be low does not count.
fn scaling_producer(module: &Module, value: Value) -> Option<(Node, Var)> {
    let elementwise = infer_producer(module, value, |kind| kind == OpKind::Mul);
    elementwise.or_else(|| {
        let (node, var) = producer_of(module, value, op::is_single_product, Class::Allow)?;
        is_unasked(flow::decision(module, var)?.reason.rule()).then_some((node, var))
    })
}

/// Returns the node that makes a value, with its variable, if the variable is infer and `is` accepts the operator.
fn infer_producer(module: &Module, value: Value, is: impl Fn(OpKind) -> bool) -> Option<(Node, Var)> {
    producer_of(module, value, is, Class::Infer)
}

fn producer_of(
    module: &Module,
    value: Value,
    is: impl Fn(OpKind) -> bool,
    class: Class,
) -> Option<(Node, Var)> {
    let (node, _) = module.producer(flow::behind_inserted(module, value))?;
    let kind = module.node(node).schema()?.kind;
    let var = flow::vars(module, node).next().filter(|_| is(kind))?;
    (flow::decision(module, var)?.class == class).then_some((node, var))
}

fn reads(module: &Module, node: Node, values: &[Value]) -> bool {
    let operands = module.node(node).formal_operands();
    operands.iter().flatten().any(|&value| values.contains(&flow::behind_inserted(module, value)))
}

/// A gated state that was unrolled: a chain of sums, each of which scales the sum before it, `c' = f·c + i·g`.
pub(super) struct Unrolled {
    /// The sums, first to last.
    pub(super) steps: Vec<Node>,
    /// The infer variables of the sums, and of the products by which a sum scales the sum before it.
    pub(super) vars: Vec<Var>,
}

/// The least number of steps of a state that is kept in fp32. The rounding errors of a shorter state are no larger than
/// those of as many operators in a row.
const MIN_STEPS: usize = 8;

/// Returns the gated states that were unrolled into [`MIN_STEPS`] or more steps, in program order of their first sums.
///
/// For example, with `s1` to `s3` the steps of one chain:
///
/// ```text
/// m1 = Mul(f1, c0)    s1 = Add(m1, g1)
/// m2 = Mul(f2, s1)    s2 = Add(m2, g2)
/// m3 = Mul(f3, s2)    s3 = Add(m3, g3)
/// ```
///
/// Where two sums scale the same sum, as in a tree, the chain goes on with the first of the two.
pub(super) fn unrolled(module: &Module) -> Vec<Unrolled> {
    let mut chain_of: FxHashMap<Node, usize> = FxHashMap::default();
    let mut chains: Vec<Unrolled> = Vec::new();
    for node in flow::nodes(module) {
        let Some(sum) = module.node(node).result(0) else { continue };
        let Some((_, var)) = infer_producer(module, sum, op::adds) else { continue };
        let scaled = module.node(node).formal_operands().iter().flatten().find_map(|&operand| {
            let (product, scales) = infer_producer(module, operand, |kind| kind == OpKind::Mul)?;
            let states = module.node(product).formal_operands().iter().flatten();
            let mut before =
                states.filter_map(|&state| Some(module.producer(flow::behind_casts(module, state))?.0));
            let last = before.find(|state| chain_of.contains_key(state));
            Some((scales, last))
        });
        let Some((scales, before)) = scaled else { continue };
        let continued = before
            .and_then(|before| chain_of.get(&before).copied())
            .filter(|&chain| chains[chain].steps.last() == before.as_ref());
        let chain = continued.unwrap_or_else(|| {
            chains.push(Unrolled { steps: Vec::new(), vars: Vec::new() });
            chains.len() - 1
        });
        chains[chain].steps.push(node);
        chains[chain].vars.extend([scales, var]);
        chain_of.insert(node, chain);
    }
    chains.retain(|chain| chain.steps.len() >= MIN_STEPS);
    chains
}

#[cfg(test)]
mod tests {
    use crate::graph::flow;
    use crate::pass::Pass;
    use crate::pass::invariants::Invariants;
    use crate::pipeline::Pipeline;
    use crate::precision::assign::Assign;
    use ampc_ir::infer::infer_module;
    use ampc_ir::text::{NoData, parse};
    use ampc_ir::{DType, Node};

    /// Returns the number of fp32 sums and the number of states that are reported as rounded, for a gated state with
    /// this number of steps. Its gates come from one product, or from a product in each step.
    fn fp32_sums(steps: usize, product_each: bool) -> (usize, usize) {
        let mut lines = vec![
            "  input %x : f32[1, 64]".to_owned(),
            "  const %w : f32[64, 64] = random(1, 1.0)".to_owned(),
            "  %p = MatMul(%x, %w) : ? class=allow why=table".to_owned(),
            "  %s0 = Relu(%p) : ? class=clear why=table".to_owned(),
        ];
        for i in 0..steps {
            let j = i + 1;
            let gate = if product_each { format!("%g{j}") } else { "%p".to_owned() };
            if product_each {
                lines.push(format!("  %q{j} = MatMul(%s{i}, %w) : ? class=allow why=table"));
                lines.push(format!("  {gate} = Sigmoid(%q{j}) : ? class=infer why=table"));
            }
            lines.push(format!("  %m{j} = Mul({gate}, %s{i}) : ? class=infer why=table"));
            lines.push(format!("  %s{j} = Add(%m{j}, {gate}) : ? class=infer why=table"));
        }
        lines.push(format!("  %y = MatMul(%s{steps}, %w) : ? class=allow why=table"));
        let text = format!(
            "module ir=10\nopset ai.onnx=20\n\ngraph @main {{\n{}\n  output %y\n}}\n",
            lines.join("\n")
        );
        let mut module = parse(&text, &NoData).unwrap_or_else(|e| panic!("{e}\n{text}"));
        infer_module(&mut module).unwrap();
        let assign = Assign { negligible: 0, ..Assign::new(DType::F16) };
        let known = Invariants::CORE.with(Invariants::CLASSIFIED);
        let pipeline = Pipeline::on(known, vec![Box::new(assign) as Box<dyn Pass>]).unwrap();
        let warnings = pipeline.run(&mut module, true, &mut ()).unwrap();
        let warned = warnings.iter().filter(|warning| warning.code == "state.rounded").count();
        let is_sum = |node: &Node| module.op_name(*node).1 == "Add";
        let sums = flow::nodes(&module).into_iter().filter(is_sum);
        let full = sums.filter(|&n| module.node(n).decisions[0].precision == Some(DType::F32)).count();
        (full, warned)
    }

    /// A state whose gates are widened once stays fp32. A state that is narrowed in each step for a product is reported
    /// as rounded. A state of few steps is not kept in fp32.
    #[test]
    fn unrolled_states() {
        assert_eq!(fp32_sums(20, false), (20, 0));
        assert_eq!(fp32_sums(20, true), (0, 1));
        assert_eq!(fp32_sums(4, false), (0, 0));
    }
}
