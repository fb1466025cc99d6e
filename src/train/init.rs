//! Weights of another run: a state begins with the weights of a file whose names and dims match its own.

use super::{State, states_of, values};
use crate::error::Error;
use crate::{safetensors, state_hash};
use ampc_ir::convert::Conversion;
use ampc_ir::verify::name_of;
use ampc_ir::{Module, TensorData, Value};
use ampc_passes::parameters::{is_changed, is_transposed, origin_of};
use ampc_passes::step::StateKind;
use ampc_passes::step::state::IDENTITY;
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
    /// Weights that were not taken because the file has another tensor for each: its name in PyTorch, and its dims do not fit.
    pub renamed: Vec<(String, String)>,
    /// Weights that were not taken because the exporter has folded other parameters into them, and the file has the tensors of
    /// PyTorch.
    pub changed: Vec<String>,
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
/// unchanged. A weight that PyTorch's exporter has renamed is also found under its name in PyTorch, and transposed if the
/// exporter has transposed it.
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
    let formals = step.graph(step.main()).inputs().iter();
    let inputs: FxHashMap<String, Value> = formals.map(|&value| (name_of(step, value), value)).collect();
    let is_foreign = tensors.metadata(IDENTITY).is_none();
    let is_kept = |kind: StateKind| matches!(kind, StateKind::Weight | StateKind::Buffer);
    for entry in entries.iter().filter(|entry| is_kept(entry.kind)) {
        let name = &entry.input;
        wanted.insert(name.as_str());
        let Some(&at) = places.get(name) else { continue };
        let own = state[at].1.clone();
        let Some(stored) = tensors.get(name) else {
            let origin = inputs.get(name).and_then(|&value| Some((value, origin_of(step, value)?)));
            let Some((value, origin)) = origin.filter(|(_, origin)| tensors.get(origin).is_some()) else {
                found.missing.push(name.clone());
                continue;
            };
            let data = tensors.get(origin).and_then(|stored| stored.read());
            let data = data.filter(|data| data.dtype().is_float());
            let moved = match is_transposed(step, value) {
                true => data.and_then(|data| transposed(&data)),
                false => data.and_then(|data| with_dims(data, own.dims())),
            };
            match moved.filter(|data| data.dims() == own.dims()) {
                Some(data) => {
                    state[at].1 = Arc::new(as_type_of(data, &own));
                    found.taken.push(name.clone());
                    wanted.insert(origin);
                }
                None => {
                    found.missing.push(name.clone());
                    found.renamed.push((name.clone(), origin.to_owned()));
                }
            }
            continue;
        };
        if is_foreign && inputs.get(name).is_some_and(|&value| is_changed(step, value)) {
            found.changed.push(name.clone());
            continue;
        }
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

/// A tensor with other dims, if these differ in ones alone.
fn with_dims(data: TensorData, dims: &[u64]) -> Option<TensorData> {
    let larger = |dims: &[u64]| dims.iter().copied().filter(|&dim| dim != 1).collect::<Vec<u64>>();
    if data.dims() == dims {
        return Some(data);
    }
    let bytes = data.to_bytes().ok().filter(|_| larger(data.dims()) == larger(dims))?;
    TensorData::from_bytes(data.dtype(), dims, bytes).ok()
}

/// The transpose of a matrix.
fn transposed(data: &TensorData) -> Option<TensorData> {
    let &[rows, columns] = data.dims() else { return None };
    let (rows, columns) = (usize::try_from(rows).ok()?, usize::try_from(columns).ok()?);
    let bytes = data.to_bytes().ok()?;
    let size = bytes.len().checked_div(rows * columns).unwrap_or(0);
    let mut moved = Vec::with_capacity(bytes.len());
    for column in 0..columns {
        for row in 0..rows {
            moved.extend_from_slice(&bytes[(row * columns + column) * size..][..size]);
        }
    }
    TensorData::from_bytes(data.dtype(), &[columns as u64, rows as u64], moved).ok()
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
