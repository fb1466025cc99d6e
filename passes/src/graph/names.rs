//! Renames values in bodies whose names checkers would confuse with names of outer values.

use crate::graph::flow;
use ampc_ir::{DType, GraphId, Module, Symbol, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// Renames a value in a body that has the name but not the type of an outer value, if either of the two was changed. A
/// name refers to the innermost value, but checkers use the type of the outer value.
pub(crate) fn part(module: &mut Module, touched: impl Fn(&Module, Value) -> bool) {
    rename(module, |module, value, around| {
        module.value(around).ty != module.value(value).ty
            && (touched(module, value) || touched(module, around))
    });
}

/// Renames values in bodies that have the name of an outer value. A pass that makes the outer value earlier would
/// otherwise find its name taken.
pub(crate) fn part_all(module: &mut Module) {
    rename(module, |_, _, _| true);
}

/// Renames values in bodies that have the name of an outer value, for the pairs that `test` accepts. Inputs and outputs
/// of the bodies of unknown operators keep their names, because such operators may identify them by name.
fn rename(module: &mut Module, test: impl Fn(&Module, Value, Value) -> bool) {
    let graphs = flow::graphs(module);
    if graphs.iter().all(|&graph| module.owner(graph).is_none()) {
        return;
    }
    let mut named: FxHashMap<(GraphId, Symbol), Value> = FxHashMap::default();
    let mut clashes = Vec::new();
    for &graph in &graphs {
        let foreign = module.owner(graph).is_some_and(|owner| module.node(owner).schema().is_none());
        let inputs: FxHashSet<Value> = if foreign {
            module.graph(graph).inputs().iter().copied().collect()
        } else {
            FxHashSet::default()
        };
        for value in module.defined(graph) {
            let Some(name) = module.value(value).name else { continue };
            named.insert((graph, name), value);
            if foreign && (inputs.contains(&value) || module.is_output(value)) {
                continue;
            }
            let mut around = graph;
            while let Some(owner) = module.owner(around) {
                around = module.node(owner).graph;
                if named.get(&(around, name)).is_some_and(|&other| test(module, value, other)) {
                    clashes.push((value, name));
                    break;
                }
            }
        }
    }
    for (value, name) in clashes {
        let dtype = module.value(value).ty.dtype().unwrap_or(DType::F32);
        let name = module.fresh_name(&format!("{}.{dtype}", module.text(name)));
        module.set_value_name(value, name);
    }
}
