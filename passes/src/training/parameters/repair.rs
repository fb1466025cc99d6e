//! Undoes changes of an exporter to parameters, where that is certain: tensors that it merged because they were
//! equal are separated by the metadata of their readers, and a parameter that it folded into a second constant
//! replaces that constant.

use super::origin::{ORIGIN, Origin, Origins, is_made_to_read, readers};
use super::signature::InputKind;
use crate::pass::PassError;
use crate::pass::training_error::ParameterError;
use ampc_ir::edit::Position;
use ampc_ir::op::OpKind;
use ampc_ir::verify::name_of;
use ampc_ir::views::NodeView;
use ampc_ir::{AttrValue, Inserter, Module, Node, NodeSpec, Payload, Shape, TensorData, Type, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Writes beside a value which parameter it is.
pub(super) fn note_origin(module: &mut Module, value: Value, name: &str) {
    let entry = (module.intern(ORIGIN), module.intern(name));
    let mut metadata = module.value(value).metadata.clone();
    metadata.retain(|&(key, _)| key != entry.0);
    metadata.push(entry);
    module.set_value_metadata(value, metadata);
}

/// Restores constants for tensors that were merged into an equal constant.
pub(super) fn split(module: &mut Module, origins: &Origins, missing: &[String]) {
    if missing.is_empty() {
        return;
    }
    let constants: Vec<Value> = super::initializers(module).into_iter().map(|(value, _)| value).collect();
    for value in constants {
        let origin = origins.of(module, value);
        if origins.is_rewritten(module, value) && matches!(origin, Origin::Tensor(..)) {
            continue;
        }
        let (Origin::Tensor(_, own) | Origin::Moved(own)) = &origin else { continue };
        let mut apart: BTreeMap<String, Vec<(Node, u32)>> = BTreeMap::new();
        for (node, slots) in readers(module, value) {
            let n_formal = module.node(node).n_formal();
            for slot in slots.into_iter().filter(|&slot| (slot as usize) < n_formal) {
                let is_own = is_made_to_read(module, node, &name_of(module, value));
                let meant = if is_own { None } else { meant(module, origins, node, slot, own) };
                if let Some(name) = meant.filter(|name| missing.contains(name)) {
                    apart.entry(name).or_default().push((node, slot));
                }
            }
        }
        for (name, uses) in apart {
            separate(module, value, &origin, &name, origins, &uses);
        }
    }
}

/// The tensor that a node was made to read in a slot where it reads `own`, if that is another one.
fn meant(module: &Module, origins: &Origins, node: Node, slot: u32, own: &str) -> Option<String> {
    let operands = origins.operands(module, node);
    let is_norm = module.node(node).schema().is_some_and(|schema| schema.kind == OpKind::BatchNormalization);
    if let (true, Some(statistic)) =
        (is_norm, ["running_mean", "running_var"].get((slot as usize).wrapping_sub(3)))
    {
        let of_module = own.rsplit_once('.').map_or(String::new(), |(module, _)| format!("{module}."));
        let named = operands.iter().find(|name| name.ends_with(statistic));
        return Some(named.cloned().unwrap_or_else(|| format!("{of_module}{statistic}")))
            .filter(|name| name != own);
    }
    if operands.iter().any(|operand| operand == own) {
        return None;
    }
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    match &operands[..] {
        [] => None,
        [only] => Some(only.clone()),
        _ => {
            let mut alike = operands.iter().filter(|name| last(name) == last(own));
            alike.next().filter(|_| alike.next().is_none()).cloned()
        }
    }
}

/// Restores biases that the exporter left out because they are zeros. Every layer that PyTorch gives a bias reads the one
/// constant of this bias: a layer that is called twice has two nodes, and the exporter may leave the bias out of one only.
pub(super) fn restore_biases(
    module: &mut Module,
    origins: &Origins,
    missing: &[String],
    carriers: &BTreeMap<String, Vec<Value>>,
) {
    let first = |(name, values): (&String, &Vec<Value>)| Some((name.clone(), *values.first()?));
    let mut bias_of: FxHashMap<String, Value> = carriers.iter().filter_map(first).collect();
    let missing: FxHashSet<&String> = missing.iter().collect();
    let named: FxHashSet<String> =
        module.graph(module.main()).constants().iter().map(|&value| name_of(module, value)).collect();
    for node in module.nodes(module.main()).collect::<Vec<_>>() {
        let Some(count) = outputs_of_layer(module, node) else { continue };
        let operands = origins.operands(module, node);
        let is_bias = |name: &&String| {
            name.rsplit('.').next() == Some("bias") && (missing.contains(name) || bias_of.contains_key(*name))
        };
        let mut biases = operands.iter().filter(is_bias);
        let (Some(name), None) = (biases.next(), biases.next()) else { continue };
        let read: Vec<Option<Value>> = module.node(node).operands().to_vec();
        let dtype = read.get(1).copied().flatten().and_then(|weight| module.value(weight).ty.dtype());
        if let Some(&bias) = bias_of.get(name) {
            let ty = dtype.map(|dtype| Type::tensor(dtype, Shape::known(&[count])));
            if ty.as_ref() == Some(&module.value(bias).ty) && is_of_zeros(module, bias) {
                module.set_formal_operands(node, &[read[0], read[1], Some(bias)]);
            }
            continue;
        }
        let data = dtype.and_then(|dtype| TensorData::zeros(dtype, &[count]).ok());
        let Some(data) = data.filter(|_| !named.contains(name)) else { continue };
        let (main, fresh) = (module.main(), module.fresh_name(name));
        let is_renamed = module.text(fresh) != name;
        let bias = module.add_constant(main, fresh, Payload::Dense(Arc::new(data)));
        let metadata = origins.of_merged(module, InputKind::Parameter);
        module.set_value_metadata(bias, metadata);
        if is_renamed {
            note_origin(module, bias, name);
        }
        module.set_formal_operands(node, &[read[0], read[1], Some(bias)]);
        bias_of.insert(name.clone(), bias);
    }
}

/// True if all elements of a constant are 0.
fn is_of_zeros(module: &Module, value: Value) -> bool {
    dense(module, value)
        .and_then(|data| data.to_bytes().ok())
        .is_some_and(|bytes| bytes.iter().all(|&b| b == 0))
}

/// The number of outputs of a layer without bias that could have one.
fn outputs_of_layer(module: &Module, node: Node) -> Option<u64> {
    let view = NodeView::new(module, node)?;
    let weight = view.operand(1).filter(|_| view.operand(2).is_none() && view.operand(0).is_some())?;
    let dims = module.value(weight).ty.shape()?.to_known()?;
    let int = |name: &str, default: i64| match view.attr(name) {
        Some(AttrValue::Int(n)) => *n,
        _ => default,
    };
    match view.kind() {
        OpKind::Conv => dims.first().copied(),
        OpKind::ConvTranspose => dims.get(1)?.checked_mul(u64::try_from(int("group", 1)).ok()?),
        OpKind::Gemm => dims.get(usize::from(int("transB", 0) == 0)).copied(),
        _ => None,
    }
}

/// Makes a constant of the same elements for some of the readers.
fn separate(
    module: &mut Module,
    value: Value,
    origin: &Origin,
    name: &str,
    origins: &Origins,
    uses: &[(Node, u32)],
) {
    let Some(payload) = module.constant(value).cloned() else { return };
    let kind = origins.signature.get(name).map_or(InputKind::Other, |spec| spec.kind);
    let main = module.main();
    let wanted = match origin {
        Origin::Moved(_) => format!("{}.{name}", name_of(module, value)),
        _ => name.to_owned(),
    };
    let fresh = module.fresh_name(&wanted);
    let is_renamed = module.text(fresh) != name;
    let constant = module.add_constant(main, fresh, payload);
    let metadata = origins.of_merged(module, kind);
    module.set_value_metadata(constant, metadata);
    if is_renamed {
        note_origin(module, constant, name);
    }
    for &(node, slot) in uses {
        module.set_operand(node, slot as usize, Some(constant));
    }
}

/// Redirects the readers of a parameter's second constant to the first constant, moved as the exporter had
/// moved it. Returns the parameters, each with a constant, for which no move is found.
pub(super) fn tie(
    module: &mut Module,
    carriers: &BTreeMap<String, Vec<Value>>,
) -> Result<Vec<(String, String)>, PassError> {
    let mut untied = Vec::new();
    for (name, values) in carriers {
        let [first, rest @ ..] = &values[..] else { continue };
        for &other in rest {
            let constant = name_of(module, other);
            let pair = dense(module, *first).zip(dense(module, other)).filter(|_| !module.is_output(other));
            let moved = match pair {
                Some((from, to)) => Move::between(&from, &to, &name_of(module, *first))?,
                None => None,
            };
            match moved {
                Some(moved) => {
                    let read = moved.insert(module, *first).map_err(ParameterError::from)?;
                    module.replace_value(other, read);
                    module.erase_constant(other);
                }
                None => untied.push((name.clone(), constant)),
            }
        }
    }
    Ok(untied)
}

fn dense(module: &Module, value: Value) -> Option<Arc<TensorData>> {
    module.constant(value).and_then(Payload::dense).cloned()
}

/// The way in which an exporter moves the elements of a weight.
enum Move {
    Same,
    Transpose(Vec<i64>),
    Reshape(Vec<i64>),
}

impl Move {
    /// The move that makes one tensor of another; none if no move does, or several do.
    fn between(from: &TensorData, to: &TensorData, name: &str) -> Result<Option<Move>, PassError> {
        // Exporters fold small constants only.
        const MOST_ELEMENTS: u64 = 1 << 24;
        let is_small = from.element_count() == to.element_count() && from.element_count() <= MOST_ELEMENTS;
        if !is_small || from.dtype() != to.dtype() {
            return Ok(None);
        }
        let read = |data: &TensorData| {
            data.to_bytes().map_err(|source| PassError::Constant { name: name.to_owned(), source })
        };
        let (old, new) = (read(from)?, read(to)?);
        let dims: Vec<i64> = to.dims().iter().map(|&dim| dim.cast_signed()).collect();
        if from.dims().len() != to.dims().len() {
            return Ok((old == new).then_some(Move::Reshape(dims)));
        }
        let fits = |perm: &Vec<usize>| is_transposed(&old, from.dims(), &new, to.dims(), perm);
        let mut found = permutations(from.dims().len()).into_iter().filter(fits);
        let first = found.next();
        // A matrix that looks the same either way was transposed: nothing else is folded.
        let is_certain = from.dims().len() <= 2 || found.next().is_none();
        let perm = first
            .filter(|_| is_certain)
            .map(|perm| perm.iter().map(|&axis| axis.cast_signed() as i64).collect());
        Ok(match perm {
            Some(perm) => Some(Move::Transpose(perm)),
            None if old == new => {
                Some(if from.dims() == to.dims() { Move::Same } else { Move::Reshape(dims) })
            }
            None => None,
        })
    }

    fn insert(self, module: &mut Module, from: Value) -> Result<Value, ampc_ir::inserter::InsertError> {
        let main = module.main();
        let mut inserter = Inserter::new(module, main, Position::First);
        let spec = match self {
            Move::Same => return Ok(from),
            Move::Transpose(perm) => {
                NodeSpec::new(OpKind::Transpose, &[from]).attr("perm", AttrValue::Ints(perm))
            }
            Move::Reshape(dims) => {
                let shape = inserter.ints("shape", &dims);
                NodeSpec::new(OpKind::Reshape, &[from, shape])
            }
        };
        let [moved] = inserter.insert(spec)?;
        Ok(moved)
    }
}

/// All permutations of up to four axes that move one.
fn permutations(rank: usize) -> Vec<Vec<usize>> {
    const MOST_AXES: usize = 4;
    if rank > MOST_AXES {
        return Vec::new();
    }
    let mut all: Vec<Vec<usize>> = vec![Vec::new()];
    for _ in 0..rank {
        let longer = |perm: &Vec<usize>| {
            let free = (0..rank).filter(|axis| !perm.contains(axis)).collect::<Vec<_>>();
            let perm = perm.clone();
            free.into_iter().map(move |axis| [&perm[..], &[axis]].concat())
        };
        all = all.iter().flat_map(longer).collect();
    }
    all.retain(|perm| perm.iter().enumerate().any(|(i, &axis)| i != axis));
    all
}

/// True if `new` is `old` with permuted axes.
fn is_transposed(old: &[u8], from: &[u64], new: &[u8], to: &[u64], perm: &[usize]) -> bool {
    if perm.iter().zip(to).any(|(&axis, &dim)| from[axis] != dim) {
        return false;
    }
    let of =
        |dims: &[u64]| -> Option<Vec<usize>> { dims.iter().map(|&dim| usize::try_from(dim).ok()).collect() };
    let (Some(from), Some(to)) = (of(from), of(to)) else { return false };
    let n: usize = to.iter().product();
    if n == 0 {
        return true;
    }
    let size = old.len() / n;
    let mut strides = vec![1; from.len()];
    for axis in (1..from.len()).rev() {
        strides[axis - 1] = strides[axis] * from[axis];
    }
    let mut index = vec![0; to.len()];
    for element in new.chunks(size.max(1)) {
        let at: usize = perm.iter().zip(&index).map(|(&axis, &i)| strides[axis] * i).sum();
        if old.get(at * size..(at + 1) * size) != Some(element) {
            return false;
        }
        for axis in (0..to.len()).rev() {
            index[axis] += 1;
            if index[axis] < to[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(dims: &[u64], values: &[f32]) -> TensorData {
        TensorData::from_f32(dims, values).unwrap()
    }

    #[test]
    fn moves_are_found_from_elements() {
        let from = floats(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let transposed = floats(&[3, 2], &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        let reshaped = floats(&[6, 1, 1], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let other = floats(&[3, 2], &[1.0, 4.0, 2.0, 5.0, 3.0, 7.0]);
        let between = |to| Move::between(&from, to, "w").unwrap();
        assert!(matches!(between(&transposed), Some(Move::Transpose(perm)) if perm == [1, 0]));
        assert!(matches!(between(&reshaped), Some(Move::Reshape(dims)) if dims == [6, 1, 1]));
        assert!(between(&other).is_none());
        // All elements the same: of a matrix the transpose, of more axes anything.
        let zeros = floats(&[2, 2], &[0.0; 4]);
        assert!(matches!(Move::between(&zeros, &zeros, "w").unwrap(), Some(Move::Transpose(_))));
        let zeros = floats(&[2, 2, 2], &[0.0; 8]);
        assert!(matches!(Move::between(&zeros, &zeros, "w").unwrap(), Some(Move::Same)));
    }
}
