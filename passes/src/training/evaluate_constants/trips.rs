//! The number of iterations of a Loop whose condition is computed of known numbers, found by computing it.
//!
//! PyTorch's default exporter writes the bags of an EmbeddingBag as such a Loop:
//!
//! ```text
//! %n, %rows = Loop(_, true, 0, %none; 1, 4) {
//!   body: graph (%one, %four) {
//!     input %i : i64
//!     input %goes_on : bool
//!     input %n : i64
//!     input %rows : seq(f32[*])
//!     %next = Add(%n, %one) : i64            1, 2, 3, 4
//!     %more = Less(%next, %four) : bool      true, true, true, false: 4 iterations
//!     …
//! ```

use super::Walk;
use crate::analysis::evaluate::{Small, evaluate};
use ampc_ir::views::NodeView;
use ampc_ir::{DType, GraphId, Value};
use rustc_hash::FxHashMap;

/// The number of iterations, at most `trips` if that is given; `None` if a condition is not known, or after `most`.
pub(super) fn count(
    walk: &Walk<'_>,
    view: &NodeView<'_>,
    body: GraphId,
    trips: Option<i64>,
    most: u64,
) -> Option<i64> {
    let truth = Small::ints(DType::Bool, Vec::new(), vec![1]);
    let mut goes_on = if view.has(1) { walk.operand(view, 1)? } else { truth };
    let inputs = walk.module.graph(body).inputs();
    let mut states: Vec<Option<Small>> = (2..inputs.len()).map(|i| walk.operand(view, i)).collect();
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    for iteration in 0..=most {
        if trips == Some(iteration) || goes_on.as_ints()?.first() == Some(&0) {
            return Some(iteration);
        }
        let number = Small::ints(DType::I64, Vec::new(), vec![iteration]);
        let given = [Some(number), Some(goes_on)].into_iter().chain(states);
        let known = inputs.iter().zip(given).filter_map(|(&input, small)| Some((input, small?))).collect();
        let mut outputs = computed(walk, body, known).into_iter();
        goes_on = outputs.next()??;
        states = outputs.collect();
    }
    None
}

/// The outputs of a body for these inputs, as far as they are known.
fn computed(walk: &Walk<'_>, body: GraphId, mut known: FxHashMap<Value, Small>) -> Vec<Option<Small>> {
    let module = &*walk.module;
    for node in module.nodes(body) {
        let view = NodeView::with_facts(module, node, &walk.facts);
        let Some(view) = view.filter(|view| view.data().bodies().next().is_none()) else { continue };
        let operand = |i: usize| match known.get(&view.operand(i)?) {
            Some(small) => Some(small.clone()),
            None => walk.operand(&view, i),
        };
        let Some(results) = evaluate(&view, &operand) else { continue };
        for (result, small) in view.data().results().iter().zip(results) {
            known.extend(result.map(|result| (result, small)));
        }
    }
    let outputs = module.graph(body).outputs().iter();
    outputs.map(|output| known.get(&output.value).cloned().or_else(|| walk.constant(output.value))).collect()
}
