//! Unrolling of a Loop with a known number of iterations.

use super::{Walk, trips};
use ampc_ir::edit::Position;
use ampc_ir::infer::Int;
use ampc_ir::module::Payload;
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::{AttrValue, GraphId, Inserter, Module, Node, NodeSpec, TensorData, Value};
use ampc_ir::{DType, InsertError};

/// The number of iterations that a Loop may have.
const MAX_ITERATIONS: u64 = 1024;

/// The number of nodes that Loops may become in all.
pub(super) const MAX_NODES: usize = 1 << 14;

/// A Loop that can be unrolled.
pub(super) struct Unrolled {
    body: GraphId,
    iterations: i64,
}

/// Reads a Loop whose number of iterations is known.
pub(super) fn read(walk: &Walk<'_>, node: Node) -> Option<Unrolled> {
    let view = NodeView::with_facts(walk.module, node, &walk.facts)?;
    if view.kind() != OpKind::Loop {
        return None;
    }
    let body = view.data().bodies().next()?;
    if !(2..view.n_operands()).all(|i| view.has(i)) {
        return None;
    }
    let iterations = iterations(walk, &view, body)?;
    let few = u64::try_from(iterations).is_ok_and(|n| (1..=MAX_ITERATIONS).contains(&n));
    let n = usize::try_from(iterations).ok()?.checked_mul(nodes_within(walk.module, body) + 4)?;
    let fits = few && walk.unrolled.checked_add(n)? <= MAX_NODES;
    fits.then_some(Unrolled { body, iterations })
}

/// The number of nodes of a graph and of the bodies within it.
fn nodes_within(module: &Module, graph: GraphId) -> usize {
    let (mut count, mut work) = (0, vec![graph]);
    while let Some(graph) = work.pop() {
        for node in module.nodes(graph) {
            count += 1;
            work.extend(module.node(node).bodies());
        }
    }
    count
}

/// The number of iterations: the trip count, or the number after which a condition that is computed of known values ends it.
fn iterations(walk: &Walk<'_>, view: &NodeView<'_>, body: GraphId) -> Option<i64> {
    let trips = match view.has(0) {
        true => Some(*view.known_ints(0)?.first()?),
        false => None,
    };
    let starts = !view.has(1) || view.known_ints(1)? == [1];
    match trips {
        Some(trips) if starts && goes_on(view, body) => Some(trips),
        _ => trips::count(walk, view, body, trips, MAX_ITERATIONS),
    }
}

/// True if the condition that a body gives is true as long as the one it gets is.
fn goes_on(view: &NodeView<'_>, body: GraphId) -> bool {
    let graph = view.module.graph(body);
    let Some(mut value) = graph.outputs().first().map(|output| output.value) else { return false };
    loop {
        let is_true = view.ints_of(value).is_some_and(|c| *c == [Int::Known(1)]);
        if graph.inputs().get(1) == Some(&value) || is_true {
            return true;
        }
        let Some((node, _)) = view.module.producer(value) else { return false };
        let data = view.module.node(node);
        match (data.schema().map(|s| s.kind), data.operand(0)) {
            (Some(OpKind::Identity | OpKind::Cast), Some(operand)) => value = operand,
            _ => return false,
        }
    }
}

/// Float constants of bodies are not weights: they become Constant nodes before they are part of the main graph.
pub(super) fn constants_as_nodes(module: &mut Module, body: GraphId) {
    for constant in module.graph(body).constants().to_vec() {
        let Some(Payload::Dense(data)) = module.constant(constant).cloned() else { continue };
        let mut inserter = Inserter::new(module, body, Position::First);
        let name = module_name(inserter.module, constant);
        let spec = NodeSpec::new(OpKind::Constant, &[]).result_name(name);
        let Ok([made]) = inserter.insert(spec.attr("value", AttrValue::Tensor(data))) else { continue };
        module.replace_value(constant, made);
        module.erase_constant(constant);
    }
}

fn module_name(module: &mut Module, value: Value) -> ampc_ir::Symbol {
    let name = ampc_ir::verify::name_of(module, value);
    module.fresh_name(&name)
}

/// Replaces a Loop by its iterations. Returns the nodes that took its place, in order.
pub(super) fn unroll(module: &mut Module, node: Node, of: &Unrolled) -> Result<Vec<Node>, InsertError> {
    constants_as_nodes(module, of.body);
    let data = module.node(node);
    let n_state = data.n_formal().saturating_sub(2);
    let operands = data.operands()[2..2 + n_state].iter();
    let mut state: Vec<Value> =
        operands.map(|operand| operand.expect("a Loop that is read has states")).collect();
    let results: Vec<Option<Value>> = data.results().to_vec();
    let mut stacks: Vec<Vec<Value>> = vec![Vec::new(); results.len() - n_state];
    let mut made = Vec::new();
    for iteration in 0..of.iterations {
        let mut inserter = Inserter::before(module, node);
        let number = TensorData::from_i64(&[], &[iteration]).expect("one element");
        let truth = TensorData::from_bytes(DType::Bool, &[], vec![1u8]).expect("one element");
        let mut inputs = vec![inserter.constant("iteration", number), inserter.constant("goes_on", truth)];
        inputs.append(&mut state);
        let (outputs, copied) = module.copy_body(node, of.body, &inputs);
        made.extend(copied);
        state = outputs[1..=n_state].to_vec();
        for (stack, output) in stacks.iter_mut().zip(&outputs[1 + n_state..]) {
            stack.push(*output);
        }
    }
    for (i, result) in results.into_iter().enumerate() {
        let Some(result) = result else { continue };
        let name = module.value(result).name.expect("results have names");
        let mut inserter = Inserter::before(module, node);
        let value = if i < n_state {
            let [value] = inserter.insert(NodeSpec::new(OpKind::Identity, &[state[i]]).result_name(name))?;
            value
        } else {
            stacked(&mut inserter, &stacks[i - n_state], name, &mut made)?
        };
        made.extend(module.producer(value).map(|(node, _)| node));
        module.replace_value(result, value);
    }
    module.erase_node(node);
    Ok(made)
}

/// Values one behind the other along a new first axis.
pub(super) fn stacked(
    inserter: &mut Inserter<'_>,
    parts: &[Value],
    name: ampc_ir::Symbol,
    made: &mut Vec<Node>,
) -> Result<Value, InsertError> {
    let by_operand = inserter.schema(OpKind::Unsqueeze)?.attr("axes").is_none();
    let axes = by_operand.then(|| inserter.ints("axes", &[0]));
    let mut rows = Vec::with_capacity(parts.len());
    for &part in parts {
        let spec = match axes {
            Some(axes) => NodeSpec::new(OpKind::Unsqueeze, &[part, axes]),
            None => NodeSpec::new(OpKind::Unsqueeze, &[part]).attr("axes", AttrValue::Ints(vec![0])),
        };
        let [row] = inserter.insert(spec)?;
        made.extend(inserter.module.producer(row).map(|(node, _)| node));
        rows.push(row);
    }
    let spec = NodeSpec::new(OpKind::Concat, &rows).attr("axis", AttrValue::Int(0));
    let [stacked] = inserter.insert(spec.result_name(name))?;
    Ok(stacked)
}
