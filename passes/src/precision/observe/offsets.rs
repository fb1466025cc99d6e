//! Values that lie far from 0 on data and whose mean is subtracted.

use crate::analysis::numerics::{is_product, removes_mean};
use crate::graph::flow::{self, Var};
use crate::pass::observed::{Observed, made, offset_of, shortest};
use ampc_ir::verify::name_of;
use ampc_ir::{Module, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// Removes values far from 0 whose mean is not subtracted: no decision depends on them.
pub fn before_means(mut observed: Observed, module: &Module) -> Observed {
    let values = OnWay::of(module, &observed.offsets(module)).values;
    observed.retain_offsets(module, &values);
    observed
}

/// The variables that make or read a value far from 0 on the way to the subtraction of its mean, with the evidence.
pub(super) fn on_way_to_means(module: &Module, observed: &Observed) -> Vec<(Var, String)> {
    let offsets = observed.offsets(module);
    let sentence = |(var, value): (Var, Value)| {
        let (lo, hi) = offset_of(module, &offsets, value)?;
        let (name, lo, hi) = (name_of(module, value), shortest(lo), shortest(hi));
        let evidence =
            format!("`{name}` lies between {lo} and {hi} on data, on the way to the subtraction of a mean");
        Some((var, evidence))
    };
    OnWay::of(module, &offsets).vars.into_iter().filter_map(sentence).collect()
}

/// The values far from 0 whose mean is subtracted, and the values far from 0 that they are computed from. One walk from the
/// subtractions back:
///
/// ```text
/// offsets: %p and %s
/// %p = MatMul(%x, %w)                        makes %p; the walk ends at a product
/// %s = Add(%p, %f)                           makes %s
/// %n = LayerNormalization(%s)                reads %s
/// ```
#[derive(Default)]
struct OnWay {
    values: FxHashSet<Value>,
    /// The variables that make or read such a value, each with the value.
    vars: Vec<(Var, Value)>,
}

impl OnWay {
    fn of(module: &Module, offsets: &FxHashMap<Value, (f64, f64)>) -> OnWay {
        let mut way = OnWay::default();
        if offsets.is_empty() {
            return way;
        }
        let made = |value: Value| flow::behind_casts(module, made(module, value));
        let far = |value: &Value| offset_of(module, offsets, *value).is_some();
        let mut work = Vec::new();
        for node in flow::nodes(module) {
            let operands = module.node(node).formal_operands().iter().enumerate();
            let operands = operands.filter_map(|(slot, &value)| Some((slot, value?)));
            for (slot, value) in
                operands.filter(|(slot, value)| far(value) && removes_mean(module, node, *slot))
            {
                let var = u32::try_from(slot).ok().and_then(|slot| flow::reader_var(module, node, slot));
                way.vars.extend(var.map(|var| (var, made(value))));
                work.push(value);
            }
        }
        while let Some(value) = work.pop() {
            let value = made(value);
            let Some(var) = flow::origin_var(module, value).filter(|_| way.values.insert(value)) else {
                way.values.insert(value);
                continue;
            };
            way.vars.push((var, value));
            let is_made_by_product =
                module.node(var.node).schema().is_some_and(|schema| is_product(schema.kind));
            if !is_made_by_product {
                work.extend(flow::operands_of(module, var).map(|(_, value)| value).filter(far));
            }
        }
        way
    }
}
