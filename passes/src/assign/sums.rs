//! Sums that loops keep: `h + x` that is the next `h`. In 16 bits every round would round the sum again, and from some
//! size on what is added is lost, so they are worth more than the casts they cost.

use crate::flow::{self, Var};
use ampc_ir::module::Op;
use ampc_ir::op::{self, Class, OpKind};
use ampc_ir::ports::Ports;
use ampc_ir::{Module, Node, Value};
use rustc_hash::FxHashSet;

/// The infer variables of additions and subtractions that make the next state of a loop from the state, and those
/// states.
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
            let found: Vec<Var> = next.filter_map(|next| sum_of(module, next, &states)).collect();
            if !found.is_empty() {
                sums.extend(found);
                sums.extend(u16::try_from(port).map(|var| Var { node, var }));
            }
        }
    }
    sums
}

/// The variable of the addition that makes a value from one of these.
fn sum_of(module: &Module, value: Value, of: &[Value]) -> Option<Var> {
    let (node, _) = module.producer(flow::behind_inserted(module, value))?;
    let kind = module.node(node).schema()?.kind;
    let var = flow::vars(module, node).next().filter(|_| op::adds(kind))?;
    let infers = flow::decision(module, var)?.class == Class::Infer;
    (infers && reads(module, node, of)).then_some(var)
}

fn reads(module: &Module, node: Node, values: &[Value]) -> bool {
    let operands = module.node(node).formal_operands();
    operands.iter().flatten().any(|&value| values.contains(&flow::behind_inserted(module, value)))
}
