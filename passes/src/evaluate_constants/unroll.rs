//! Unrolling of a Loop with a known trip count.

use super::Walk;
use ampc_ir::edit::Position;
use ampc_ir::infer::Int;
use ampc_ir::module::{Def, Payload, Provenance};
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::{AttrValue, GraphId, Inserter, Module, NewNode, Node, NodeSpec, TensorData, Value};
use ampc_ir::{DType, InsertError};
use rustc_hash::FxHashMap;

/// The number of iterations that a Loop may have.
const MAX_ITERATIONS: u64 = 64;

/// The number of nodes that Loops may become in all.
pub(super) const MAX_NODES: usize = 1 << 14;

/// A Loop that can be unrolled.
pub(super) struct Unrolled {
    body: GraphId,
    iterations: i64,
}

/// Reads a Loop: how often it runs is known, nothing ends it before, and its body has no bodies.
pub(super) fn read(walk: &Walk<'_>, node: Node) -> Option<Unrolled> {
    let view = NodeView::with_facts(walk.module, node, &walk.facts)?;
    if view.kind() != OpKind::Loop {
        return None;
    }
    let &[iterations] = view.known_ints(0)?.as_slice() else { return None };
    let body = view.data().bodies().next()?;
    if !(2..view.n_operands()).all(|i| view.has(i)) {
        return None;
    }
    let starts = !view.has(1) || view.known_ints(1)? == [1];
    let nodes: Vec<Node> = walk.module.nodes(body).collect();
    let has_bodies = nodes.iter().any(|&inner| walk.module.node(inner).bodies().next().is_some());
    let few = u64::try_from(iterations).is_ok_and(|n| (1..=MAX_ITERATIONS).contains(&n));
    let n = usize::try_from(iterations).ok()?.checked_mul(nodes.len() + 4)?;
    let fits = few && walk.unrolled.checked_add(n)? <= MAX_NODES;
    (starts && !has_bodies && fits && goes_on(&view, body)).then_some(Unrolled { body, iterations })
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
    let mut state: Vec<Option<Value>> = data.operands()[2..2 + n_state].to_vec();
    let results: Vec<Option<Value>> = data.results().to_vec();
    let mut stacks: Vec<Vec<Value>> = vec![Vec::new(); results.len() - n_state];
    let mut made = Vec::new();
    for iteration in 0..of.iterations {
        let outputs = copy(module, node, of.body, (iteration, &state), &mut made);
        state = outputs[1..=n_state].to_vec();
        for (stack, output) in stacks.iter_mut().zip(&outputs[1 + n_state..]) {
            stack.extend(*output);
        }
    }
    for (i, result) in results.into_iter().enumerate() {
        let Some(result) = result else { continue };
        let name = module.value(result).name.expect("results have names");
        let mut inserter = Inserter::before(module, node);
        let value = if i < n_state {
            let operands = state[i].into_iter().collect::<Vec<_>>();
            let [value] = inserter.insert(NodeSpec::new(OpKind::Identity, &operands).result_name(name))?;
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
fn stacked(
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

/// Copies the nodes of a body before the Loop, for one iteration, and returns the values of its outputs.
fn copy(
    module: &mut Module,
    node: Node,
    body: GraphId,
    (iteration, state): (i64, &[Option<Value>]),
    made: &mut Vec<Node>,
) -> Vec<Option<Value>> {
    let mut copies: FxHashMap<Value, Option<Value>> = FxHashMap::default();
    for capture in module.graph(body).captures().to_vec() {
        if let Def::Capture { slot } = module.value(capture).def {
            copies.insert(capture, module.node(node).operands()[slot as usize]);
        }
    }
    let inputs = module.graph(body).inputs().to_vec();
    let mut inserter = Inserter::before(module, node);
    let number = TensorData::from_i64(&[], &[iteration]).expect("one element");
    let truth = TensorData::from_bytes(DType::Bool, &[], vec![1u8]).expect("one element");
    for (input, (suffix, data)) in inputs.iter().zip([("iteration", number), ("goes_on", truth)]) {
        copies.insert(*input, Some(inserter.constant(suffix, data)));
    }
    for (input, state) in inputs.iter().skip(2).zip(state) {
        copies.insert(*input, *state);
    }
    let graph = module.node(node).graph;
    let mapped = |copies: &FxHashMap<Value, Option<Value>>, value: Option<Value>| {
        value.and_then(|value| copies.get(&value).copied().flatten())
    };
    for inner in module.nodes(body).collect::<Vec<_>>() {
        let data = module.node(inner).clone();
        let operands = data.operands().iter().map(|&operand| mapped(&copies, operand)).collect();
        let mut results = Vec::with_capacity(data.results().len());
        for result in data.results() {
            results.push(result.map(|result| {
                let ty = module.value(result).ty.clone();
                (module_name(module, result), ty)
            }));
        }
        let new = NewNode {
            op: data.op,
            name: None,
            operands,
            attrs: data.attrs().iter().map(|attr| (attr.name, attr.value.clone())).collect(),
            results,
            provenance: Provenance::User,
        };
        let copied = module.add_node(graph, Position::Before(node), new);
        *module.node_mut(copied).metadata = data.metadata.clone();
        for (from, to) in data.results().iter().zip(module.node(copied).results()) {
            copies.extend(from.map(|from| (from, *to)));
        }
        made.push(copied);
    }
    let outputs: Vec<Value> = module.graph(body).outputs().iter().map(|output| output.value).collect();
    outputs.into_iter().map(|output| mapped(&copies, Some(output))).collect()
}
