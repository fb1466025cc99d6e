//! Live ranges of buffers in the main graph, and the peak of live bytes as the CPU runtime's planner would reach it.
//!
//! A *storage* is a buffer that one value and its views (Reshape, Flatten, Squeeze, Unsqueeze, Identity) share. It
//! lives from the index of its producer to the index of its last reader. An element-wise node writes into the buffer of
//! an operand of the same byte size if the node is the last reader of the operand. Some other nodes, such as Softmax,
//! write into the buffer of operand 0. The next value of a state is written into the buffer of the state. Inputs,
//! states and constants do not count. Every storage ends on a multiple of 64 bytes. Types come from inference with
//! numbers for the open dims of the inputs ([`BoundInputs`]), so gradients, whose shapes are computed from the shapes
//! of activations, have their real sizes. A dim that depends on data counts as in [`Sizes::default`]. Time O(n).
//!
//! ```text
//! 0  %y = MatMul(%x, %w)          %y lives from 0 to 1
//! 1  %e = Exp(%y)                 %e lives from 1 to 3, in the buffer of %y, which counts no bytes from 1 on
//! 2  %r = Reshape(%e, %shape)     a view: the storage of %e
//! 3  %z = MatMul(%r, %v)          two storages live: %e and %z
//! ```

use crate::analysis::cost::{BoundInputs, Extents, Sizes};
use ampc_ir::entity::SecondaryMap;
use ampc_ir::infer::Types;
use ampc_ir::module::Def;
use ampc_ir::op::OpKind;
use ampc_ir::op::is_elementwise;
use ampc_ir::{DType, Module, Node, Value};
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;

/// Storages begin on multiples of this many bytes.
const ALIGNMENT: u64 = 64;

/// The largest number of bytes that counts for one storage, so that sums never overflow.
pub(crate) const MOST: u64 = 1 << 44;

/// A buffer that several values share while they live.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Storage {
    /// The value that is computed; all other values are views of it.
    pub(crate) value: Value,
    pub(crate) bytes: i64,
    /// The index of the node that makes the storage, and of the last node that reads it; the number of nodes if it
    /// leaves the graph.
    pub(crate) first: usize,
    pub(crate) last: usize,
}

/// The nodes of the main graph in order, and the storages of their results.
#[derive(Debug)]
pub(crate) struct Liveness {
    pub(crate) nodes: Vec<Node>,
    /// The index of each node.
    pub(crate) index_of: SecondaryMap<Node, usize>,
    pub(crate) storages: Vec<Storage>,
    /// The storage of a value as its index plus 1; 0 for a value that lives outside.
    of: SecondaryMap<Value, usize>,
    /// The storage into whose buffer each node writes its result.
    reused: Vec<Option<usize>>,
}

/// The largest number of bytes that live at once, estimated before there is a plan.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EstimatedPeak {
    /// Live bytes at the peak.
    pub bytes: u64,
    /// The node that runs at the peak; `None` of an empty graph.
    pub node: Option<Node>,
    /// Live bytes at the peak by element type; their sum is `bytes`.
    pub by_dtype: BTreeMap<DType, u64>,
}

/// Estimates the peak of the main graph for inputs of some dims, without inputs, states and constants, and without
/// scratch memory of kernels.
pub fn estimated_peak(module: &Module, inputs: &BoundInputs) -> EstimatedPeak {
    let liveness = Liveness::of(module, &inputs.infer(module).0);
    let ends = |storage: usize| liveness.end(storage, liveness.storages[storage].last);
    let mut change = vec![0i64; liveness.nodes.len() + 1];
    for (i, storage) in liveness.storages.iter().enumerate() {
        change[storage.first] += storage.bytes;
        change[ends(i) + 1] -= storage.bytes;
    }
    let (mut now, mut most, mut at) = (0, 0, 0);
    for (index, change) in change.iter().enumerate() {
        now += change;
        if now > most {
            (most, at) = (now, index);
        }
    }
    let mut by_dtype: BTreeMap<DType, u64> = BTreeMap::new();
    for (i, storage) in liveness.storages.iter().enumerate() {
        let alive = storage.first <= at && at <= ends(i);
        if let (true, Some(dtype)) = (alive, module.value(storage.value).ty.dtype()) {
            *by_dtype.entry(dtype).or_default() += storage.bytes.unsigned_abs();
        }
    }
    EstimatedPeak { bytes: most.unsigned_abs(), node: liveness.nodes.get(at).copied(), by_dtype }
}

/// True if the result has the bytes of the first operand.
pub(crate) fn is_view(module: &Module, node: Node) -> bool {
    module.node(node).schema().is_some_and(|schema| {
        matches!(
            schema.kind,
            OpKind::Reshape | OpKind::Flatten | OpKind::Squeeze | OpKind::Unsqueeze | OpKind::Identity
        )
    })
}

impl Liveness {
    /// Returns the live ranges of values of these types.
    pub(crate) fn of(module: &Module, types: &Types) -> Liveness {
        let main = module.main();
        let nodes: Vec<Node> = module.nodes(main).collect();
        let next: FxHashSet<Value> = module.graph(main).states.iter().map(|&(_, next)| next).collect();
        let mut index_of = SecondaryMap::default();
        nodes.iter().enumerate().for_each(|(index, &node)| index_of[node] = index);
        let reused = vec![None; nodes.len()];
        let mut found =
            Liveness { nodes, index_of, storages: Vec::new(), of: SecondaryMap::default(), reused };
        for index in 0..found.nodes.len() {
            let node = found.nodes[index];
            let view = is_view(module, node);
            let data = module.node(node);
            for &value in data.results().iter().flatten() {
                let last = found.last(module, value, index);
                let operand = data.operand(0).filter(|_| view);
                match operand.map(|operand| found.of[operand]) {
                    Some(0) => {}
                    Some(storage) => {
                        found.of[value] = storage;
                        let storage = &mut found.storages[storage - 1];
                        storage.last = storage.last.max(last);
                    }
                    None => {
                        let bytes = if next.contains(&value) { 0 } else { bytes(module, types, value) };
                        found.storages.push(Storage { value, bytes, first: index, last });
                        found.of[value] = found.storages.len();
                    }
                }
            }
        }
        found.reuse_buffers(module);
        found
    }

    /// The index of the last node that reads a value.
    fn last(&self, module: &Module, value: Value, made: usize) -> usize {
        if module.is_output(value) {
            return self.nodes.len();
        }
        module.uses(value).map(|(node, _)| self.index_of[node]).max().unwrap_or(made)
    }

    /// Finds the results that are written into the buffer of an operand.
    fn reuse_buffers(&mut self, module: &Module) {
        for index in 0..self.nodes.len() {
            let data = module.node(self.nodes[index]);
            let candidates = match data.schema().map(|schema| schema.kind) {
                Some(kind) if is_elementwise(kind) => data.operands(),
                Some(kind) if OVERWRITES_FIRST.contains(&kind) => &data.operands()[..1],
                _ => continue,
            };
            let Some(result) = data.result(0).and_then(|value| self.storage(value)) else { continue };
            let bytes = self.storages[result].bytes;
            let ends = |&storage: &usize| {
                let found = self.storages[storage];
                storage != result && found.last == index && found.bytes == bytes
            };
            self.reused[index] = candidates.iter().flatten().filter_map(|&v| self.storage(v)).find(ends);
        }
    }

    /// The storage of a value; `None` for inputs and constants, and views of them.
    pub(crate) fn storage(&self, value: Value) -> Option<usize> {
        self.of[value].checked_sub(1)
    }

    /// The index of the last node at which a storage takes bytes of its own, if the node `last` is its last reader.
    pub(crate) fn end(&self, storage: usize, last: usize) -> usize {
        match self.reused.get(last) {
            Some(&reused) if reused == Some(storage) && last > self.storages[storage].first => last - 1,
            Some(_) => last,
            None => self.nodes.len().saturating_sub(1),
        }
    }
}

/// Operators that are not element-wise, and compute their result in the buffer of operand 0 if it has no later reader.
const OVERWRITES_FIRST: [OpKind; 6] = [
    OpKind::BatchNormalization,
    OpKind::LogSoftmax,
    OpKind::LpNormalization,
    OpKind::ScatterElements,
    OpKind::ScatterND,
    OpKind::Softmax,
];

/// The size of a tensor, at most [`MOST`]; 0 for other values.
fn bytes(module: &Module, types: &Types, value: Value) -> i64 {
    let is_source = matches!(module.value(value).def, Def::Constant(_) | Def::Input { .. });
    let tensor = types.of(module, value).as_tensor().filter(|_| !is_source);
    let bytes = tensor.map_or(Some(0), |tensor| {
        let elements = Extents { module, sizes: &Sizes::default() }.of_shape(&tensor.shape);
        tensor.dtype.storage_bytes(elements)
    });
    let bytes = bytes.unwrap_or(MOST).min(MOST).next_multiple_of(ALIGNMENT);
    i64::try_from(bytes).unwrap_or(0)
}
