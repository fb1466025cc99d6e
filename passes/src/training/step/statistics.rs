//! Running statistics: the means and variances that BatchNormalization uses in inference, and updates as it trains.
//!
//! ```text
//! %y, %mean_new, %var_new = BatchNormalization(%x, %scale, %bias, %mean, %var) {training_mode=1}
//! ```
//!
//! `%mean` and `%var` are states, and `%mean_new` and `%var_new` their next values, if they are constants of
//! the main graph that no other node updates. Statistics that cannot be states stay unchanged during training,
//! with a warning: the model would be wrong in inference.

use ampc_ir::op::OpKind;
use ampc_ir::verify::name_of;
use ampc_ir::views::NodeView;
use ampc_ir::views::norm::BatchNormView;
use ampc_ir::{Module, Node, Value};
use rustc_hash::FxHashSet;

/// The operands of BatchNormalization that are running statistics, each with the result that is its next value.
pub(super) const STATISTICS: [(usize, usize); 2] = [(3, 1), (4, 2)];

/// The running statistics of a model.
#[derive(Default)]
pub(super) struct Statistics {
    /// Constants of the main graph, each with its next value, of the same shape, in program order.
    pub(super) updated: Vec<(Value, Value)>,
    /// BatchNormalization nodes with a running statistic that training cannot update, and why, as `NAME is …`.
    pub(super) unchanged: Vec<(Node, String)>,
}

impl Statistics {
    /// The statistics of the nodes of the main graph that train.
    pub(super) fn of(module: &Module) -> Statistics {
        let mut found = Statistics::default();
        let mut taken: FxHashSet<Value> = FxHashSet::default();
        for node in module.nodes(module.main()) {
            let Some(view) = NodeView::new(module, node) else { continue };
            if view.kind() != OpKind::BatchNormalization || !BatchNormView::read(&view).training {
                continue;
            }
            let mut why = Vec::new();
            for (operand, result) in STATISTICS {
                let Some(now) = view.operand(operand) else { continue };
                match module.node(node).result(result) {
                    None => {
                        why.push(format!("`{}` has no next value among its results", name_of(module, now)))
                    }
                    Some(_) if module.constant(now).is_none() => {
                        why.push(format!("`{}` is not a constant of the model", name_of(module, now)));
                    }
                    Some(_) if !taken.insert(now) => {
                        why.push(format!(
                            "`{}` belongs to another node, which updates it",
                            name_of(module, now)
                        ));
                    }
                    Some(next) => found.updated.push((now, next)),
                }
            }
            if !why.is_empty() {
                found.unchanged.push((node, why.join(", and ")));
            }
        }
        found
    }
}
