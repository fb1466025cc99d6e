//! Instances: functions that are copies of another function for one call.

use super::metadata::INSTANCE_OF;
use ampc_ir::module::FunctionData;
use ampc_ir::{FunctionId, Module};
use rustc_hash::FxHashMap;

/// The maximal nesting depth of calls. Functions that are called at a greater depth keep one body for all calls.
pub const MAX_DEPTH: u32 = 64;

/// Domain, name and overload in one text, for metadata.
pub(crate) fn spelling(module: &Module, function: &FunctionData) -> String {
    let [domain, name, overload] =
        [function.domain, function.name, function.overload].map(|symbol| module.text(symbol));
    format!("{domain}::{name}:{overload}")
}

/// The spelling of the function that a function was copied from, if it is a copy.
pub(crate) fn original<'m>(module: &'m Module, function: &FunctionData) -> Option<&'m str> {
    let key = module.symbol(INSTANCE_OF)?;
    let entry = function.metadata.iter().find(|&&(k, _)| k == key)?;
    Some(module.text(entry.1))
}

/// Returns the functions that have a single call, each with the function that it was copied from.
pub fn instances(module: &Module) -> FxHashMap<FunctionId, FunctionId> {
    let copies = module.functions().filter(|&(id, _)| module.calls(id).len() == 1);
    let copies: Vec<(FunctionId, &str)> =
        copies.filter_map(|(id, f)| Some((id, original(module, f)?))).collect();
    if copies.is_empty() {
        return FxHashMap::default();
    }
    let sources: FxHashMap<String, FunctionId> =
        module.functions().map(|(id, f)| (spelling(module, f), id)).collect();
    let sourced = copies.into_iter().filter_map(|(copy, of)| Some((copy, *sources.get(of)?)));
    // The metadata comes from a file and may name the function itself.
    sourced.filter(|(copy, source)| copy != source).collect()
}
