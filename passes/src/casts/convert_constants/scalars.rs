//! Small floats that are computed from constants and known extents.
//!
//! Exporters write the scale of attention as arithmetic on the extent of a head. The scale multiplies 16-bit values, so a cast
//! of it is inserted in each block. The number is known, so the cast becomes a constant:
//!
//! ```text
//! %x : f16[?, 12, ?, 64]
//! %d = Shape(%x) {start=3}     [64], known without the other extents
//! %f = Cast(%d) {to=1}         64.0
//! %r = Sqrt(%f)                8.0
//! %c = Cast(%r) {to=10}        becomes the constant 8.0
//! %q = Div(%x, %c)
//! ```
//!
//! The numbers are those of a runtime, bit by bit ([`evaluate`]). The nodes that compute them stay, as all nodes of the author do.

use crate::analysis::evaluate::{Small, evaluate, known_ints};
use ampc_ir::infer::Facts;
use ampc_ir::module::Provenance;
use ampc_ir::op::OpKind;
use ampc_ir::views::{NodeView, constant_of};
use ampc_ir::{DType, Module, TensorData, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// The number of elements of the largest tensor that is computed.
const MAX_ELEMENTS: u64 = 16;

/// The small values of the main graph that are known before a run.
pub(super) struct Scalars {
    floats: FxHashMap<Value, Arc<TensorData>>,
}

impl Scalars {
    /// Finds the values. The values that are `trained` change between runs, so nothing that is computed from them is known.
    pub(super) fn of(module: &Module, facts: &Facts, trained: &FxHashSet<Value>) -> Scalars {
        let mut values: FxHashMap<Value, Small> = FxHashMap::default();
        let mut floats = FxHashMap::default();
        for node in module.nodes(module.main()) {
            let Some(view) = NodeView::with_facts(module, node, facts) else { continue };
            let &[Some(result)] = module.node(node).results() else { continue };
            if module.node(node).provenance == Provenance::Inserted {
                continue;
            }
            let is_evaluated = view.kind() != OpKind::Constant && !view.lacks_attributes();
            if !is_evaluated || module.node(node).bodies().next().is_some() {
                continue;
            }
            let operand = |i: usize| {
                let value = view.operand(i).filter(|value| !trained.contains(value))?;
                values.get(&value).cloned().or_else(|| Small::read(&*constant_of(module, value)?))
            };
            // A float is rounded to its type before the next operator reads it.
            let found = known_ints(module, facts, result)
                .or_else(|| evaluate(&view, &operand)?.into_iter().next())
                .and_then(|found| found.to_data());
            let Some(data) = found.filter(|data| data.element_count() <= MAX_ELEMENTS) else { continue };
            let Some(small) = Small::read(&data) else { continue };
            values.insert(result, small);
            if data.dtype() == DType::F32 {
                floats.insert(result, Arc::new(data));
            }
        }
        Scalars { floats }
    }

    /// The elements of a float that is known.
    pub(super) fn get(&self, value: Value) -> Option<&Arc<TensorData>> {
        self.floats.get(&value)
    }
}
