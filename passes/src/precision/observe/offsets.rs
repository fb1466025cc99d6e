//! Values that lie far from 0 on data and whose mean is subtracted.

use crate::analysis::numerics::{is_product, removes_mean};
use crate::graph::flow::{self, Var};
use crate::pass::observed::{Observed, made, offset_of, shortest};
use ampc_ir::verify::name_of;
use ampc_ir::{Module, Value};
use rustc_hash::{FxHashMap, FxHashSet};

impl Observed {
    /// Leaves out the values far from 0 whose mean is not subtracted: no decision depends on them.
    #[must_use]
    pub fn with_subtracted_means(mut self, module: &Module) -> Observed {
        let of = found(module, &self.offsets(module)).into_iter().map(|(_, value)| value).collect();
        self.retain_offsets(module, &of);
        self
    }
}

/// The variables that make or read a value far from 0 on the way to the subtraction of its mean, with the evidence.
pub(super) fn on_way_to_means(module: &Module, observed: &Observed) -> Vec<(Var, String)> {
    let offsets = observed.offsets(module);
    let sentence = |(var, value): (Var, Value)| {
        let (lo, hi) = offset_of(module, &offsets, value)?;
        let (name, lo, hi) = (name_of(module, value), shortest(lo), shortest(hi));
        Some((var, format!("`{name}` lies between {lo} and {hi} on data, and its mean is subtracted")))
    };
    found(module, &offsets).into_iter().filter_map(sentence).collect()
}

/// The values far from 0 whose mean is subtracted, each with a variable that makes or reads the value on the way to the
/// subtraction. One walk from the subtractions to the values that they are computed from:
///
/// ```text
/// offsets: %p and %s
/// %p = MatMul(%x, %w)                        makes %p; the walk ends at a product
/// %s = Add(%p, %f)                           makes %s
/// %n = LayerNormalization(%s)                reads %s
/// ```
fn found(module: &Module, offsets: &FxHashMap<Value, (f64, f64)>) -> Vec<(Var, Value)> {
    let mut found = Vec::new();
    if offsets.is_empty() {
        return found;
    }
    let far = |value: &Value| offset_of(module, offsets, *value).is_some();
    let mut work = Vec::new();
    for node in flow::nodes(module) {
        let operands = module.node(node).formal_operands().iter().enumerate();
        let operands = operands.filter_map(|(slot, &value)| Some((slot, value?)));
        for (_, value) in operands.filter(|(slot, value)| far(value) && removes_mean(module, node, *slot)) {
            found.extend(flow::vars(module, node).map(|var| (var, made(module, value))));
            work.push(value);
        }
    }
    let mut seen: FxHashSet<Var> = FxHashSet::default();
    while let Some(value) = work.pop() {
        let value = made(module, value);
        let Some(var) = flow::origin_var(module, value).filter(|&var| seen.insert(var)) else { continue };
        found.push((var, value));
        let is_made_by_product = module.node(var.node).schema().is_some_and(|schema| is_product(schema.kind));
        if !is_made_by_product {
            work.extend(flow::operands_of(module, var).map(|(_, value)| value).filter(far));
        }
    }
    found
}
