//! `recompute`: cheap activations are recomputed for the backward part instead of being kept (activation
//! recomputation, rematerialization).
//!
//! A step keeps an activation from the node that makes it to the gradient that reads it. If the node is cheap
//! (element-wise, a cast, a move, a dropout that draws from its state), a copy of it is put right before the
//! first reader of the backward part, and the readers there read the copy. The copy has the same operator,
//! attributes and operands, so it computes the same bits. The estimated peak is never higher than before; if it
//! would not be lower, nothing changes. A graph without a backward part is left unchanged.
//!
//! # Search (greedy rematerialization over live ranges)
//!
//! Input: live bytes per node (`liveness.rs`), with the scratch memory of its kernel if a [`MemoryPlanner`] knows it, in a
//! segment tree (`recompute/load.rs`).
//!
//! 1. For each cheap storage in program order: end its live range at its last forward reader, and give a copy a range that
//!    begins at its first backward reader. Operands of the copy that no longer live there are copied too, or live longer; at
//!    most 24 copies are made or moved per candidate.
//! 2. Keep the change if the peak does not rise and the sum over all nodes of live bytes falls; else undo it.
//! 3. The peak reached is F. Start again from the original graph with F as threshold: a candidate is tried only if some node
//!    between its last forward and first backward reader has more than F live bytes. This leaves out copies that do not
//!    lower the peak.
//! 4. Apply the copies; if the new graph does not take less memory, as the planner says or else by the estimate, remove them.
//!
//! Every value below is f32\[64, 64\], 16 KiB; the columns count how many live at a node, before and after.
//!
//! ```text
//! 0  %y  = MatMul(%x, %w)     1  1
//! 1  %g  = Gelu(%y)           2  2
//! 2  %z  = MatMul(%g, %v)     3  3     the last forward reader of %g
//! 3  %h  = Softmax(%z)        4  3
//! 4  %s  = MatMul(%h, %v)     5  4
//! 5  %t  = MatMul(%s, %z)     6  5     the peak: 96 KiB, then F = 80 KiB
//! 6  %dz = MatMul(%t, %h)     5  4     the backward part begins
//! 7  %dv = MatMul(%g, %dz)    4  4     the first backward reader of %g: %g.recomputed = Gelu(%y) goes before it
//! 8  %dw = MatMul(%y, %dv)    3  3
//! ```
//!
//! Only `%g` of the forward part is cheap. Its range 1 to 7 becomes 1 to 2, and 7 to 7 for the copy; `%y` lives
//! at 7 anyway. The second search tries `%g` again, since node 5, between 2 and 7, has more than F.
//!
//! Cost: O(log n) per changed range, plus the readers and operands of each candidate. Greedy, not optimal.

mod load;

use self::load::Load;
use crate::analysis::cost::BoundInputs;
use crate::analysis::liveness::{Liveness, MOST, estimated_peak, is_view};
use crate::graph::marks::{Mark, PHASE, Phase, Purpose, ROLE, phase_of};
use crate::pass::invariants::Invariants;
use crate::pass::options::Spelled;
use crate::pass::{Changed, Pass, PassCx, PassError};
use ampc_ir::edit::{NewNode, Position};
use ampc_ir::entity::SecondaryMap;
use ampc_ir::module::{Op, Provenance};
use ampc_ir::op::OpKind;
use ampc_ir::op::{is_deterministic, is_elementwise, moves};
use ampc_ir::{Module, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The memory of a graph, as a runtime plans it.
#[derive(Clone, Debug, Default)]
pub struct PlannedMemory {
    /// All bytes that a run takes.
    pub bytes: u64,
    /// The scratch memory of each node of the main graph.
    pub scratch: SecondaryMap<Node, u64>,
}

/// Plans the memory of a module for inputs of these types; `None` if they do not fit.
pub type MemoryPlanner = Arc<dyn Fn(&Module, &BoundInputs) -> Option<PlannedMemory> + Send + Sync>;

/// The pass.
#[derive(Clone, Default)]
pub struct Recompute {
    /// Numbers for open dims of the inputs, by name; other dims have the numbers of [`BoundInputs`].
    pub dims: BTreeMap<String, u64>,
    /// The runtime that the graph is for. Without it memory is estimated.
    pub planner: Option<MemoryPlanner>,
}

impl fmt::Debug for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recompute").field("dims", &self.dims).finish_non_exhaustive()
    }
}

impl Spelled for Recompute {
    const NAME: &'static str = "recompute";
    const ABOUT: &'static str = "recomputes cheap activations for gradients instead of keeping them";
    fn blank() -> Self {
        Recompute::default()
    }
}

impl Pass for Recompute {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn revokes(&self) -> Invariants {
        Invariants::DECISIONS
    }
    fn run(&self, module: &mut Module, _cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let is_backward = |node: Node| phase_of(module, node) == Some(Phase::Backward);
        let Some(border) = module.nodes(module.main()).position(is_backward) else {
            return Ok(Changed::No);
        };
        let inputs = BoundInputs::new(module, &self.dims)?;
        let old = self.memory(module, &inputs);
        let liveness = Liveness::of(module, &inputs.infer(module).0);
        let mut unrestricted = Search::new(module, &liveness, border, &old.scratch);
        let before = unrestricted.load.peak();
        unrestricted.run(i64::MIN);
        let threshold = unrestricted.load.peak();
        if threshold >= before {
            return Ok(Changed::No);
        }
        let mut search = Search::new(module, &liveness, border, &old.scratch);
        search.run(threshold);
        let copies = search.copies();
        let readers = search.readers();
        let made = copy(module, &liveness, &copies, &readers);
        if self.memory(module, &inputs).bytes < old.bytes {
            return Ok(Changed::Yes);
        }
        // The search counts all copies before one node at that node's index, and no gaps between buffers. As nodes of their
        // own they may need more memory.
        take_back(module, &made, &readers);
        Ok(Changed::No)
    }
}

impl Recompute {
    /// The memory of the main graph: as the runtime plans it, or estimated.
    fn memory(&self, module: &Module, inputs: &BoundInputs) -> PlannedMemory {
        let planned = self.planner.as_ref().and_then(|plan| plan(module, inputs));
        planned.unwrap_or_else(|| PlannedMemory {
            bytes: estimated_peak(module, inputs).bytes,
            scratch: SecondaryMap::default(),
        })
    }
}

/// The largest number of copies made or moved per candidate.
const MOST_AT_ONCE: usize = 24;

/// Live ranges of a storage and its copy during the search, as indices in program order.
#[derive(Clone, Copy, Debug)]
struct LiveRange {
    /// The last index where the storage itself is read; its range begins at its producer.
    last: usize,
    copy: Option<CopyRange>,
}

/// The live range of a copy.
#[derive(Clone, Copy, Debug)]
struct CopyRange {
    start: usize,
    last: usize,
    /// True if the element-wise copy that reads it reuses its buffer, so that it adds no bytes.
    is_overwritten: bool,
}

/// A reader in the backward part: the value of a storage that it reads, and in which operand.
#[derive(Clone, Copy, Debug)]
struct Reader {
    value: Value,
    node: Node,
    slot: u32,
}

/// The greedy search of the [module documentation](self).
struct Search<'a> {
    module: &'a Module,
    liveness: &'a Liveness,
    /// The index of the first node of the backward part.
    border: usize,
    load: Load,
    ranges: Vec<LiveRange>,
    /// Storages whose backward readers read the copy.
    accepted: Vec<bool>,
    /// The forward values of each storage.
    values: Vec<Vec<Value>>,
    /// The ranges that a trial has changed, as they were before.
    journal: Vec<(usize, LiveRange)>,
    /// By how much a trial has changed the sum over all nodes of live bytes.
    live_bytes_change: i128,
}

impl<'a> Search<'a> {
    fn new(
        module: &'a Module,
        liveness: &'a Liveness,
        border: usize,
        scratch: &SecondaryMap<Node, u64>,
    ) -> Search<'a> {
        let mut values = vec![Vec::new(); liveness.storages.len()];
        for &node in &liveness.nodes[..border] {
            for &value in module.node(node).results().iter().flatten() {
                if let Some(storage) = liveness.storage(value) {
                    values[storage].push(value);
                }
            }
        }
        let ranges = liveness.storages.iter().map(|s| LiveRange { last: s.last, copy: None }).collect();
        let mut load = Load::new(liveness.nodes.len());
        for (i, storage) in liveness.storages.iter().enumerate() {
            load.add(storage.first..=liveness.end(i, storage.last), storage.bytes);
        }
        for (index, &node) in liveness.nodes.iter().enumerate() {
            // As for storages, sums never overflow.
            load.add(index..=index, scratch[node].min(MOST).cast_signed());
        }
        let accepted = vec![false; liveness.storages.len()];
        Search {
            module,
            liveness,
            border,
            load,
            ranges,
            accepted,
            values,
            journal: Vec::new(),
            live_bytes_change: 0,
        }
    }

    /// Tries every cheap storage of the forward part where some index between its last forward and its first backward reader
    /// has more than `threshold` live bytes.
    fn run(&mut self, threshold: i64) {
        for storage in 0..self.ranges.len() {
            if self.liveness.storages[storage].first >= self.border {
                break;
            }
            if self.is_cheap(storage) {
                self.try_candidate(storage, threshold);
            }
        }
    }

    /// Tries to compute a storage again, and keeps that if it saves memory.
    fn try_candidate(&mut self, storage: usize, threshold: i64) {
        let Some((early, late)) = self.gap(storage) else { return };
        if early + 1 >= late || self.load.max(early + 1..=late - 1) <= threshold {
            return;
        }
        let before = self.load.peak();
        self.journal.clear();
        self.live_bytes_change = 0;
        let copy = CopyRange { start: late, last: self.ranges[storage].last, is_overwritten: false };
        self.set(storage, LiveRange { last: early, copy: Some(copy) });
        let mut budget = MOST_AT_ONCE;
        let fits = self.keep_operands_alive(storage, late, &mut budget);
        if fits && self.load.peak() <= before && self.live_bytes_change < 0 {
            self.accepted[storage] = true;
            return;
        }
        while let Some((storage, range)) = self.journal.pop() {
            self.put(storage, range);
        }
    }

    /// Index of the last forward reader (or of the producer without such a reader) and of the first backward
    /// reader. `None` without a backward reader, if a value of the storage is a graph output, or if a backward
    /// reader needs a view that cannot be rebuilt.
    fn gap(&self, storage: usize) -> Option<(usize, usize)> {
        let (mut early, mut late) = (self.liveness.storages[storage].first, None);
        for &value in &self.values[storage] {
            if self.module.is_output(value) {
                return None;
            }
            for (node, _) in self.module.uses(value) {
                let index = self.liveness.index_of[node];
                if index < self.border {
                    early = early.max(index);
                } else {
                    self.views_of(value)?;
                    late = Some(late.map_or(index, |late: usize| late.min(index)));
                }
            }
        }
        Some((early, late?))
    }

    /// The chain of views (Reshape and the like) from `value` back to the value that owns its storage, the last view first;
    /// empty if `value` owns it. `None` if a view has a second operand that is computed (a shape, say), since a copy would
    /// have to keep that live too.
    fn views_of(&self, mut value: Value) -> Option<Vec<(Node, Value)>> {
        let root = self.liveness.storages[self.liveness.storage(value)?].value;
        let mut views = Vec::new();
        while value != root {
            let (node, _) = self.module.producer(value)?;
            let mut others = self.module.node(node).operands().iter().skip(1).flatten();
            if others.any(|&other| self.liveness.storage(other).is_some()) {
                return None;
            }
            views.push((node, value));
            value = self.module.node(node).operand(0)?;
        }
        Some(views)
    }

    /// True if the node that makes a storage is cheap, and computes the same bits from the same operands.
    fn is_cheap(&self, storage: usize) -> bool {
        let found = self.liveness.storages[storage];
        let Some((node, slot)) = self.module.producer(found.value) else { return false };
        let data = self.module.node(node);
        let Some(schema) = data.schema() else { return false };
        let kind = schema.kind;
        let alone = data.results().iter().flatten().count() == 1 || kind == OpKind::PhiloxDropout;
        let cheap = is_elementwise(kind)
            || moves(kind, 0).is_some()
            || matches!(kind, OpKind::ConstantOfShape | OpKind::PhiloxDropout);
        found.bytes > 0
            && found.first < self.border
            && slot == 0
            && alone
            && cheap
            && is_deterministic(kind)
            && data.bodies().next().is_none()
    }

    /// Makes every operand of the copy of `storage` live at `index`: as it is, by moving an existing copy to an earlier
    /// index, by a new copy of a cheap operand, or by a longer live range; recursively for the operands of those copies.
    /// Returns `false` if `budget` runs out, or if an operand is a view that cannot be rebuilt. The caller then rolls back.
    fn keep_operands_alive(&mut self, storage: usize, index: usize, budget: &mut usize) -> bool {
        let mut work = vec![storage];
        while let Some(storage) = work.pop() {
            let root = self.liveness.storages[storage].value;
            let Some((node, _)) = self.module.producer(root) else { return false };
            let data = self.module.node(node);
            let mut in_place = data.schema().is_some_and(|schema| is_elementwise(schema.kind));
            for &operand in data.operands().iter().flatten() {
                let Some(needed) = self.liveness.storage(operand) else { continue };
                let range = self.ranges[needed];
                if index <= range.last {
                    continue;
                }
                match range.copy {
                    Some(_) if self.views_of(operand).is_none() => return false,
                    Some(CopyRange { start, last, .. }) => {
                        let (first, last) = (start.min(index), last.max(index));
                        let copy = CopyRange { start: first, last, is_overwritten: false };
                        self.set(needed, LiveRange { copy: Some(copy), ..range });
                        if start <= index {
                            continue;
                        }
                    }
                    None if self.is_cheap(needed) && self.views_of(operand).is_some() && *budget > 0 => {
                        let bytes = |storage: usize| self.liveness.storages[storage].bytes;
                        let is_overwritten = in_place && bytes(needed) == bytes(storage);
                        in_place &= !is_overwritten;
                        let copy = CopyRange { start: index, last: index, is_overwritten };
                        self.set(needed, LiveRange { copy: Some(copy), ..range });
                    }
                    None => {
                        self.set(needed, LiveRange { last: index, ..range });
                        continue;
                    }
                }
                if *budget == 0 {
                    return false;
                }
                *budget -= 1;
                work.push(needed);
            }
        }
        true
    }

    /// Changes the live range of a storage and its copy, and records the old range in the journal.
    fn set(&mut self, storage: usize, range: LiveRange) {
        self.journal.push((storage, self.ranges[storage]));
        self.put(storage, range);
    }

    fn put(&mut self, storage: usize, range: LiveRange) {
        let bytes = self.liveness.storages[storage].bytes;
        for (range, sign) in [(self.ranges[storage], -1), (range, 1)] {
            let own = self.liveness.storages[storage].first..=self.liveness.end(storage, range.last);
            // A copy ends where the original would, whose buffer its last reader may overwrite.
            let copy = range.copy.filter(|copy| !copy.is_overwritten);
            let copy = copy.map(|copy| copy.start..=self.liveness.end(storage, copy.last).max(copy.start));
            for indices in std::iter::once(own).chain(copy) {
                let count = indices.end() + 1 - indices.start();
                self.live_bytes_change += i128::from(sign * bytes) * count as i128;
                self.load.add(indices, sign * bytes);
            }
        }
        self.ranges[storage] = range;
    }

    /// The readers in the backward part that read copies.
    fn readers(&self) -> Vec<Reader> {
        let accepted = (0..self.ranges.len()).filter(|&storage| self.accepted[storage]);
        let mut readers = Vec::new();
        for &value in accepted.flat_map(|storage| &self.values[storage]) {
            let uses = self.module.uses(value);
            let late = uses.filter(|(node, _)| self.liveness.index_of[*node] >= self.border);
            readers.extend(late.map(|(node, slot)| Reader { value, node, slot }));
        }
        readers.sort_unstable_by_key(|reader| (self.liveness.index_of[reader.node], reader.slot));
        readers
    }

    /// The copies to insert, as (index of the node before which each goes, value copied), sorted so that operands come first.
    fn copies(&self) -> Copies {
        let mut indices: BTreeMap<Value, usize> = BTreeMap::new();
        let mut ask = |value: Value, index: usize| {
            for (_, view) in self.views_of(value).unwrap_or_default() {
                indices.entry(view).and_modify(|found| *found = index.min(*found)).or_insert(index);
            }
        };
        for reader in self.readers() {
            ask(reader.value, self.liveness.index_of[reader.node]);
        }
        let mut reads = FxHashSet::default();
        for (range, storage) in self.ranges.iter().zip(&self.liveness.storages) {
            let (Some(copy), Some((node, _))) = (range.copy, self.module.producer(storage.value)) else {
                continue;
            };
            for &operand in self.module.node(node).operands().iter().flatten() {
                let Some(needed) = self.liveness.storage(operand) else { continue };
                if copy.start > self.ranges[needed].last {
                    ask(operand, copy.start);
                    reads.insert((storage.value, operand));
                }
            }
        }
        let roots = self.ranges.iter().zip(&self.liveness.storages);
        indices.extend(roots.filter_map(|(range, storage)| Some((storage.value, range.copy?.start))));
        let order = |value: Value| self.module.producer(value).map(|(node, _)| self.liveness.index_of[node]);
        let mut list: Vec<(usize, Value)> = indices.iter().map(|(&value, &index)| (index, value)).collect();
        list.sort_by_key(|&(index, value)| (index, order(value)));
        Copies { list, reads }
    }
}

/// Nodes to copy, and the operands of copies that are copies as well.
struct Copies {
    /// The index of the node before which each copy goes, and the value copied; operands come first.
    list: Vec<(usize, Value)>,
    /// Pairs of a copied value and an operand of its node that the copy reads as a copy.
    reads: FxHashSet<(Value, Value)>,
}

/// Inserts the copies into the graph and redirects the readers to them. Returns the copies, in order.
fn copy(module: &mut Module, liveness: &Liveness, copies: &Copies, readers: &[Reader]) -> Vec<Node> {
    let mut made: FxHashMap<Value, Value> = FxHashMap::default();
    let mut nodes = Vec::new();
    for &(index, value) in &copies.list {
        let Some((node, _)) = module.producer(value) else { continue };
        let data = module.node(node);
        let view = is_view(module, node);
        let of_copy = |operand: Value, slot: usize| {
            let copied = (view && slot == 0) || copies.reads.contains(&(value, operand));
            made.get(&operand).copied().filter(|_| copied).unwrap_or(operand)
        };
        let operands = data.operands().iter().enumerate();
        let operands = operands.map(|(slot, operand)| operand.map(|operand| of_copy(operand, slot)));
        let operands = operands.collect();
        let attrs = data.attrs().iter().map(|attr| (attr.name, attr.value.clone())).collect();
        let (op, ty): (Op, _) = (data.op, module.value(value).ty.clone());
        let mut metadata = data.metadata.clone();
        metadata.retain(|&(key, _)| ![PHASE, ROLE].contains(&module.text(key)));
        let name = format!("{}.recomputed", ampc_ir::verify::name_of(module, value));
        let name = module.fresh_name(&name);
        let new = NewNode {
            op,
            name: None,
            operands,
            attrs,
            results: vec![Some((name, ty))],
            provenance: Provenance::User,
        };
        let copy = module.add_node(module.main(), Position::Before(liveness.nodes[index]), new);
        *module.node_mut(copy).metadata = metadata;
        Mark { phase: Phase::Backward, purpose: Some(Purpose::Recompute) }.put(module, copy);
        nodes.push(copy);
        made.extend(module.node(copy).result(0).map(|result| (value, result)));
    }
    let edits = readers.iter().filter_map(|reader| {
        let copy = made.get(&reader.value).copied()?;
        Some((reader.node, reader.slot as usize, Some(copy)))
    });
    module.set_operands(edits.collect());
    nodes
}

/// Restores the operands of the readers, and erases the copies.
fn take_back(module: &mut Module, copies: &[Node], readers: &[Reader]) {
    let edits = readers.iter().map(|reader| (reader.node, reader.slot as usize, Some(reader.value)));
    module.set_operands(edits.collect());
    for &copy in copies.iter().rev() {
        module.erase_node(copy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ampc_ir::text::{NoData, parse};

    /// The example of the module documentation.
    const GELU: &str = "opset ai.onnx=21

graph @main {
  input %x : f32[64, 8]
  input %w : f32[8, 64]
  input %v : f32[64, 64]
  %y = MatMul(%x, %w) : f32[64, 64]
  %g = Gelu(%y) : f32[64, 64]
  %z = MatMul(%g, %v) : f32[64, 64]
  %h = Softmax(%z) : f32[64, 64]
  %s = MatMul(%h, %v) : f32[64, 64]
  %t = MatMul(%s, %z) : f32[64, 64]
  %dz = MatMul(%t, %h) : f32[64, 64] meta {ampc.phase=\"bwd\"}
  %dv = MatMul(%g, %dz) : f32[64, 64] meta {ampc.phase=\"bwd\"}
  %dw = MatMul(%y, %dv) : f32[64, 64] meta {ampc.phase=\"bwd\"}
  output %dw
}
";

    #[test]
    fn the_example_has_the_loads_of_the_documentation() {
        let module = parse(GELU, &NoData).unwrap();
        let types = BoundInputs::default().infer(&module).0;
        let liveness = Liveness::of(&module, &types);
        let loads = |search: &Search<'_>| -> Vec<i64> {
            (0..liveness.nodes.len()).map(|index| search.load.max(index..=index) / (16 << 10)).collect()
        };
        let mut search = Search::new(&module, &liveness, 6, &SecondaryMap::default());
        assert_eq!(loads(&search), [1, 2, 3, 4, 5, 6, 5, 4, 3]);
        search.run(i64::MIN);
        assert_eq!(loads(&search), [1, 2, 3, 3, 4, 5, 4, 4, 3]);
        assert_eq!(search.load.peak(), 80 << 10);
        let mut again = Search::new(&module, &liveness, 6, &SecondaryMap::default());
        again.run(search.load.peak());
        assert_eq!(loads(&again), loads(&search));
        let mut none = Search::new(&module, &liveness, 6, &SecondaryMap::default());
        none.run(96 << 10);
        assert_eq!(none.load.peak(), 96 << 10);
    }
}
