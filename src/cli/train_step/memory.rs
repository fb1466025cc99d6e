//! The memory that a training step takes, for its summary.

use crate::cli::problem::Failure;
use crate::cli::{data, shown, table};
use ampc::Error;
use ampc::execute::inputs::Dims;
use ampc::execute::training::BATCH;
use ampc::execute::{MemoryNeeds, memory_needs};
use ampc::ir::{DType, Module, Value};
use ampc::passes::cost::{BoundInputs, SizeSource};
use std::collections::BTreeMap;

/// The most names that a list has.
const MOST_NAMES: usize = 5;

/// The activations that are computed again for gradients, and the memory of a step as the runtime plans it, of which `kept`
/// bytes are weights and states. Without an optimizer weights are inputs and not in the plan.
pub(super) fn summary(module: &Module, dims: &Dims, kept: u64) -> Result<String, Failure> {
    let failure = |error: ampc::passes::cost::UnknownDim| Failure::usage("dim", error.to_string());
    let inputs = BoundInputs::new(module, dims).map_err(failure)?;
    let (nodes, bytes) = ampc::report::recomputed(module, &inputs);
    let again = format!("recomputed  {}, {}\n", table::count(nodes as u64, "node"), table::bytes(bytes));
    let mut notes = notes(&inputs);
    let needs = match memory_needs(module, &inputs) {
        Ok(needs) => needs,
        // Dims that are assumed need not fit the model.
        Err(error) => {
            let why = match &error {
                Error::Invalid(findings) => findings.first().map(ToString::to_string),
                _ => None,
            };
            let why = why.unwrap_or_else(|| error.to_string().lines().next().unwrap_or_default().to_owned());
            let said = match data::misfits(&inputs, module) {
                Some((sizes, options)) => format!("{sizes} ({why}); {options}"),
                None => format!("the step cannot be planned: {why}"),
            };
            return Ok(format!("{again}peak        unknown: {}\n", shown::message(&said)));
        }
    };
    notes.extend(unsized_values(module, &needs.unsized_values));
    let (states, rest) = (needs.states.max(kept), needs.arenas.saturating_sub(needs.states));
    let total = table::bytes(states.saturating_add(rest).saturating_add(needs.constants));
    let (states, constants, rest) = (table::bytes(states), table::bytes(needs.constants), table::bytes(rest));
    notes.insert(0, parts(module, &needs).join(", "));
    notes.retain(|note| !note.is_empty());
    let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
    Ok(format!(
        "{again}peak        {total}: {states} of weights and states, {constants} of constants, about {rest} of activations and \
         gradients{notes}\n"
    ))
}

/// The parts of the memory beside states, in bytes by their use.
fn parts(module: &Module, needs: &MemoryNeeds) -> Vec<String> {
    let Some(peak) = &needs.peak else { return Vec::new() };
    let mut states: BTreeMap<DType, u64> = BTreeMap::new();
    for &(state, _) in &module.graph(module.main()).states {
        let tensor = module.value(state).ty.as_tensor();
        if let Some((dtype, bytes)) = tensor.and_then(|tensor| Some((tensor.dtype, tensor.storage_bytes()?)))
        {
            *states.entry(dtype).or_default() += bytes;
        }
    }
    let mut formats = [("fp32", 0), ("fp16", 0), ("bf16", 0), ("other", 0)];
    for (&dtype, &bytes) in &peak.by_dtype {
        let at = match dtype {
            DType::F32 => 0,
            DType::F16 => 1,
            DType::BF16 => 2,
            _ => 3,
        };
        formats[at].1 += (bytes as u64).saturating_sub(states.get(&dtype).copied().unwrap_or(0));
    }
    let formats = formats.into_iter().map(|(format, bytes)| (bytes, format!("of {format}")));
    let others =
        [(peak.scratch as u64, "of scratch memory".to_owned()), (peak.unused as u64, "unused".to_owned())];
    let parts = formats.chain(others).filter(|&(bytes, _)| bytes > 0);
    parts.map(|(bytes, what)| format!("{} {what}", table::bytes(bytes))).collect()
}

/// The sizes of open dims, by name: the batch, the given sizes, and the assumed sizes.
fn notes(inputs: &BoundInputs) -> Vec<String> {
    let named = |source: SizeSource| inputs.dims.iter().filter(move |dim| dim.source == source);
    let mut notes = Vec::new();
    if let Some(batch) = named(SizeSource::Batch).next() {
        let names: Vec<String> = named(SizeSource::Batch).map(|dim| format!("`{}`", dim.name)).collect();
        let names = list(&names);
        notes.push(shown::message(&match batch.size {
            1 => format!("batch 1 ({names}): `--dim {}={BATCH}` for your batch", batch.name),
            size => format!("batch {size} ({names})"),
        }));
    }
    let given: Vec<String> =
        named(SizeSource::Given).map(|dim| format!("`{}` = {}", dim.name, dim.size)).collect();
    if !given.is_empty() {
        notes.push(shown::message(&list(&given)));
    }
    let assumed: Vec<String> = named(SizeSource::Assumed).map(|dim| format!("`{}`", dim.name)).collect();
    if let Some(first) = named(SizeSource::Assumed).next() {
        let (names, size) = (assumed.join(", "), first.size);
        notes.push(shown::message(&format!(
            "{names} taken as {size}: `--dim {}=N` gives another size",
            first.name
        )));
    }
    notes
}

/// The values whose sizes are not known before they are computed.
fn unsized_values(module: &Module, values: &[Value]) -> Option<String> {
    let names: Vec<String> =
        values.iter().map(|&value| format!("`{}`", ampc::ir::verify::name_of(module, value))).collect();
    (!names.is_empty()).then(|| {
        shown::message(&format!("without {}, whose memory is allocated as they are computed", list(&names)))
    })
}

/// Names in a list that is not too long.
fn list(names: &[String]) -> String {
    let more = names.len().saturating_sub(MOST_NAMES);
    let first = names[..names.len() - more].join(", ");
    if more > 0 { format!("{first} and {more} more") } else { first }
}
