//! Weights of another run: a state begins with the weights of a file whose names and dims match its own.

use super::{State, states_of, values};
use crate::error::Error;
use crate::{safetensors, state_hash};
use ampc_ir::convert::Conversion;
use ampc_ir::verify::name_of;
use ampc_ir::{Module, TensorData};
use ampc_passes::step::StateKind;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// The tensors that a state took of a file, and the others.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Initialized {
    /// The weights and running statistics that were taken, by name.
    pub taken: Vec<String>,
    /// The weights and running statistics of the step that the file lacks.
    pub missing: Vec<String>,
    /// Weights that the file has with other dims or elements that are not floats: in words.
    pub unfit: Vec<String>,
    /// Constants of the step that the file has with the same dims and other values: they are frozen, so they keep the values
    /// of the model that the step was made of.
    pub frozen: Vec<String>,
    /// Other tensors of the file that are neither weights nor running statistics of the step, such as states of its
    /// optimizer.
    pub left: Vec<String>,
}

/// Takes the weights and running statistics of a safetensors file whose names and dims match those of a step,
/// converted to the step's element types; low copies are rounded anew. All other tensors of the state stay
/// unchanged.
///
/// # Errors
/// If the model is not a step, the file cannot be read or was damaged, it has no weight of the step, or a weight has a NaN.
pub fn init_state(step: &Module, state: &mut State, path: &Path) -> Result<Initialized, Error> {
    let bad = |reason: String| Error::Data { path: path.to_owned(), reason };
    let entries = states_of(step).map_err(|error| Error::Pass(error.into()))?;
    let (tensors, _) = safetensors::Tensors::open(path)?.ok_or_else(|| safetensors::not_found(path))?;
    state_hash::check(&tensors, path)?;
    let places: BTreeMap<String, usize> =
        state.iter().enumerate().map(|(at, (name, _))| (name.clone(), at)).collect();
    let (mut found, mut wanted) = (Initialized::default(), BTreeSet::new());
    let is_kept = |kind: StateKind| matches!(kind, StateKind::Weight | StateKind::Buffer);
    for entry in entries.iter().filter(|entry| is_kept(entry.kind)) {
        let name = &entry.input;
        wanted.insert(name.as_str());
        let Some(&at) = places.get(name) else { continue };
        let Some(stored) = tensors.get(name) else {
            found.missing.push(name.clone());
            continue;
        };
        let own = state[at].1.clone();
        let data = stored.read().filter(|data| data.dtype().is_float() && data.dims() == own.dims());
        match data {
            Some(data) => {
                let has_nan = values::has_nan(&data);
                if has_nan.map_err(|error| bad(format!("`{name}` cannot be read: {error}")))? {
                    return Err(bad(format!("`{name}`: expected numbers, found {}", values::NAN)));
                }
                state[at].1 = Arc::new(as_type_of(data, &own));
                found.taken.push(name.clone());
            }
            None => {
                let expected = ampc_ir::infer::describe(&ampc_ir::Type::tensor(own.dtype(), own.shape()));
                found.unfit.push(format!("`{name}` is {}, here {expected}", stored.describe()));
            }
        }
    }
    if found.taken.is_empty() {
        return Err(bad("expected weights of the step by their names and dims, found none".into()));
    }
    let taken: BTreeSet<&String> = found.taken.iter().collect();
    for entry in entries.iter().filter(|entry| entry.kind == StateKind::Low) {
        let weight = entry.of.as_ref().filter(|of| taken.contains(of)).and_then(|of| places.get(of));
        if let Some((&at, &of)) = places.get(&entry.input).zip(weight) {
            state[at].1 = Arc::new(as_type_of((*state[of].1).clone(), &state[at].1));
        }
    }
    let constants = constants_by_name(step);
    for (name, stored) in tensors.iter().filter(|(name, _)| !wanted.contains(name)) {
        let data = stored.read().filter(|data| data.dtype().is_float());
        let pair = data.zip(constants.get(name)).filter(|(data, own)| data.dims() == own.dims());
        let bytes = |data: &TensorData| data.to_bytes().ok();
        match pair.map(|(data, own)| bytes(&as_type_of(data, own)) == bytes(own)) {
            Some(true) => {}
            Some(false) => found.frozen.push(name.to_owned()),
            None => found.left.push(name.to_owned()),
        }
    }
    Ok(found)
}

/// The float constants of the main graph.
fn constants_by_name(step: &Module) -> FxHashMap<String, Arc<TensorData>> {
    let constants = step.graph(step.main()).constants().iter();
    let floats = constants.filter_map(|&value| {
        let data = step.constant(value)?.dense().filter(|data| data.dtype().is_float())?;
        Some((name_of(step, value), data.clone()))
    });
    floats.collect()
}

/// A tensor with the element type of another one.
fn as_type_of(data: TensorData, other: &TensorData) -> TensorData {
    match data.dtype() == other.dtype() {
        true => data,
        false => data.converted(Conversion { to: other.dtype(), clamp: false }),
    }
}
