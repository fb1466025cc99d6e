//! `recompute`: activations that are cheap to compute are computed again for the backward part instead of kept for it
//! (activation recomputation, rematerialisation).
//!
//! A step keeps an activation from the node that makes it to the gradient that reads it. Where the node is cheap (element
//! by element, a cast, a move, a dropout that draws from its state), a copy of it is put right before the first reader
//! of the backward part, and those readers read the copy. The copy has the same operator, attributes and operands, so it
//! computes the same bits. What it reads has to be there as well: values that live until then anyway, copies, or values
//! whose life becomes longer.
//!
//! ```text
//! %y = MatMul(%x, %w)                           %y is kept: the gradient of Gelu reads it
//! %g = Gelu(%y)                                 %g is kept: the gradient of the next product reads it
//! %z = MatMul(%g, %v)
//! ...                                           the peak is here, with %y and %g
//! %g.recomputed = Gelu(%y)                      %g ends at %z, and half as much is kept
//! %dv = MatMul(%g.recomputedᵀ, %dz)
//! %dy = ... %y ...
//! ```
//!
//! How it is decided, with the bytes that live at each node (`liveness.rs`, counted as runtimes plan) in a tree that
//! raises ranges and finds maxima in logarithmic time (`recompute/load.rs`):
//! 1. Candidates are gone through in program order. For each, the copy is tried: its bytes go between its last forward
//!    reader and its first backward reader, and what the copy reads is demanded at the copy's place: from what lives there,
//!    from a copy that is moved there, from another copy, or by a longer life. At most 24 copies are made
//!    or moved for one candidate.
//! 2. The trial stays if the peak is not above what it was and, summed over all nodes, fewer bytes live.
//! 3. That gives the lowest peak that is found, F. Everything is then done again, and candidates whose life crosses no
//!    node with more than F bytes are left alone: nothing is computed again that does not lower the peak.
//!
//! The estimated peak is never higher than before; where it would not be lower, nothing changes. A graph without a backward
//! part is left as it is.

mod load;

use self::load::Load;
use crate::invariants::Invariants;
use crate::liveness::{Liveness, estimated_peak, is_view};
use crate::marks::{Mark, PHASE, Phase, Purpose, ROLE, phase_of};
use crate::pass::{Changed, Pass, PassCx, PassError};
use crate::pipeline::Spelled;
use ampc_ir::edit::{NewNode, Position};
use ampc_ir::module::{Op, Provenance};
use ampc_ir::op::OpKind;
use ampc_ir::op::{is_deterministic, is_elementwise, moves};
use ampc_ir::{Module, Node, Value};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// The pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recompute;

impl Spelled for Recompute {
    const NAME: &'static str = "recompute";
    const ABOUT: &'static str = "cheap activations are computed again for gradients instead of kept";
    fn blank() -> Self {
        Recompute
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
        let peak = estimated_peak(module).bytes;
        let liveness = Liveness::of(module);
        let mut first = Search::new(module, &liveness, border);
        let before = first.load.peak();
        first.run(i64::MIN);
        let lowest = first.load.peak();
        if lowest >= before {
            return Ok(Changed::No);
        }
        let mut search = Search::new(module, &liveness, border);
        search.run(lowest);
        let copies = search.copies();
        let readers = search.readers();
        let (made, first) = (copy(module, &liveness, &copies, &readers), estimated_peak(module).bytes);
        if first < peak {
            return Ok(Changed::Yes);
        }
        // Copies that stand at one place may need more than one after the other.
        take_back(module, &made, &readers);
        Ok(Changed::No)
    }
}

/// So many copies are made or moved for one candidate at most.
const MOST_AT_ONCE: usize = 24;

/// How long a storage lives, and its copy, while the search goes on.
#[derive(Clone, Copy, Debug)]
struct Life {
    /// The last place where it is read itself.
    last: usize,
    /// The places of its copy and of the last reader of that.
    copy: Option<(usize, usize)>,
    /// Whether another copy, at the same place, is computed in the place of its copy.
    passes: bool,
}

/// A reader in the backward part: which value of a storage, and where.
#[derive(Clone, Copy, Debug)]
struct Reader {
    value: Value,
    node: Node,
    slot: u32,
}

/// What decides. See the [module documentation](self).
struct Search<'a> {
    module: &'a Module,
    liveness: &'a Liveness,
    /// The place of the first node of the backward part.
    border: usize,
    load: Load,
    lives: Vec<Life>,
    /// Storages whose backward readers read the copy.
    accepted: Vec<bool>,
    /// The forward values of each storage.
    values: Vec<Vec<Value>>,
    /// What a trial has changed, to be taken back.
    journal: Vec<(usize, Life)>,
    /// By how much bytes times places have grown in a trial.
    grown: i128,
}

impl<'a> Search<'a> {
    fn new(module: &'a Module, liveness: &'a Liveness, border: usize) -> Search<'a> {
        let mut values = vec![Vec::new(); liveness.storages.len()];
        for &node in &liveness.nodes[..border] {
            for &value in module.node(node).results().iter().flatten() {
                if let Some(storage) = liveness.storage(value) {
                    values[storage].push(value);
                }
            }
        }
        let lives =
            liveness.storages.iter().map(|s| Life { last: s.last, copy: None, passes: false }).collect();
        let mut load = Load::new(liveness.nodes.len());
        for (i, storage) in liveness.storages.iter().enumerate() {
            load.add(storage.first..=liveness.end(i, storage.last), storage.bytes);
        }
        let accepted = vec![false; liveness.storages.len()];
        Search { module, liveness, border, load, lives, accepted, values, journal: Vec::new(), grown: 0 }
    }

    /// Tries every candidate whose life crosses a place with a load above `lowest`.
    fn run(&mut self, lowest: i64) {
        for storage in 0..self.lives.len() {
            if self.liveness.storages[storage].first >= self.border {
                break;
            }
            if self.is_cheap(storage) {
                self.consider(storage, lowest);
            }
        }
    }

    /// Tries to compute a storage again.
    fn consider(&mut self, storage: usize, lowest: i64) {
        let Some((early, late)) = self.gap(storage) else { return };
        if early + 1 >= late || self.load.max(early + 1..=late - 1) <= lowest {
            return;
        }
        let before = self.load.peak();
        self.journal.clear();
        self.grown = 0;
        let last = self.lives[storage].last;
        self.set(storage, Life { last: early, copy: Some((late, last)), passes: false });
        let mut budget = MOST_AT_ONCE;
        let fits = self.demand_operands(storage, late, &mut budget);
        if fits && self.load.peak() <= before && self.grown < 0 {
            self.accepted[storage] = true;
            return;
        }
        while let Some((storage, life)) = self.journal.pop() {
            self.put(storage, life);
        }
    }

    /// The last forward and the first backward place where a storage is read; `None` if it cannot be computed again there,
    /// or nobody reads it there.
    fn gap(&self, storage: usize) -> Option<(usize, usize)> {
        let (mut early, mut late) = (self.liveness.storages[storage].first, None);
        for &value in &self.values[storage] {
            if self.module.is_output(value) {
                return None;
            }
            for (node, _) in self.module.uses(value) {
                let place = self.liveness.places[node];
                if place < self.border {
                    early = early.max(place);
                } else {
                    self.views_of(value)?;
                    late = Some(late.map_or(place, |late: usize| late.min(place)));
                }
            }
        }
        Some((early, late?))
    }

    /// The views by which a value is made of what its storage is; `None` if one of them reads more than is there anyway.
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

    /// Whether the node that makes a storage is cheap, and computes the same bits from the same operands.
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

    /// Sees to it that what a copy at `place` reads is there. `false` if that takes too many copies.
    fn demand_operands(&mut self, storage: usize, place: usize, budget: &mut usize) -> bool {
        let mut work = vec![storage];
        while let Some(storage) = work.pop() {
            let root = self.liveness.storages[storage].value;
            let Some((node, _)) = self.module.producer(root) else { return false };
            let data = self.module.node(node);
            let mut in_place = data.schema().is_some_and(|schema| is_elementwise(schema.kind));
            for &operand in data.operands().iter().flatten() {
                let Some(needed) = self.liveness.storage(operand) else { continue };
                let life = self.lives[needed];
                if place <= life.last {
                    continue;
                }
                match life.copy {
                    Some(_) if self.views_of(operand).is_none() => return false,
                    Some((start, last)) => {
                        let copy = Some((start.min(place), last.max(place)));
                        self.set(needed, Life { copy, passes: false, ..life });
                        if start <= place {
                            continue;
                        }
                    }
                    None if self.is_cheap(needed) && self.views_of(operand).is_some() && *budget > 0 => {
                        let bytes = |storage: usize| self.liveness.storages[storage].bytes;
                        let passes = in_place && bytes(needed) == bytes(storage);
                        in_place &= !passes;
                        self.set(needed, Life { copy: Some((place, place)), passes, ..life });
                    }
                    None => {
                        self.set(needed, Life { last: place, ..life });
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

    /// Changes how long a storage and its copy live, and notes how long they did.
    fn set(&mut self, storage: usize, life: Life) {
        self.journal.push((storage, self.lives[storage]));
        self.put(storage, life);
    }

    fn put(&mut self, storage: usize, life: Life) {
        let bytes = self.liveness.storages[storage].bytes;
        for (life, sign) in [(self.lives[storage], -1), (life, 1)] {
            let own = self.liveness.storages[storage].first..=self.liveness.end(storage, life.last);
            // A copy ends where the original would, in whose place a node may compute.
            let copy = life.copy.filter(|_| !life.passes);
            let copy = copy.map(|(start, last)| start..=self.liveness.end(storage, last).max(start));
            for range in std::iter::once(own).chain(copy) {
                let places = range.end() + 1 - range.start();
                self.grown += i128::from(sign * bytes) * places as i128;
                self.load.add(range, sign * bytes);
            }
        }
        self.lives[storage] = life;
    }

    /// The readers in the backward part that read copies.
    fn readers(&self) -> Vec<Reader> {
        let accepted = (0..self.lives.len()).filter(|&storage| self.accepted[storage]);
        let mut readers = Vec::new();
        for &value in accepted.flat_map(|storage| &self.values[storage]) {
            let uses = self.module.uses(value);
            let late = uses.filter(|(node, _)| self.liveness.places[*node] >= self.border);
            readers.extend(late.map(|(node, slot)| Reader { value, node, slot }));
        }
        readers.sort_unstable_by_key(|reader| (self.liveness.places[reader.node], reader.slot));
        readers
    }

    /// What is copied: the node that makes each value, and the place before which the copy goes, in the order of places and
    /// then of the originals.
    fn copies(&self) -> Copies {
        let mut places: BTreeMap<Value, usize> = BTreeMap::new();
        let mut ask = |value: Value, place: usize| {
            for (_, view) in self.views_of(value).unwrap_or_default() {
                places.entry(view).and_modify(|found| *found = place.min(*found)).or_insert(place);
            }
        };
        for reader in self.readers() {
            ask(reader.value, self.liveness.places[reader.node]);
        }
        let mut reads = FxHashMap::default();
        for (life, storage) in self.lives.iter().zip(&self.liveness.storages) {
            let (Some((place, _)), Some((node, _))) = (life.copy, self.module.producer(storage.value)) else {
                continue;
            };
            for &operand in self.module.node(node).operands().iter().flatten() {
                let Some(needed) = self.liveness.storage(operand) else { continue };
                if place > self.lives[needed].last {
                    ask(operand, place);
                    reads.insert((storage.value, operand), ());
                }
            }
        }
        let roots = self.lives.iter().zip(&self.liveness.storages);
        places.extend(roots.filter_map(|(life, storage)| Some((storage.value, life.copy?.0))));
        let order = |value: Value| self.module.producer(value).map(|(node, _)| self.liveness.places[node]);
        let mut list: Vec<(usize, Value)> = places.iter().map(|(&value, &place)| (place, value)).collect();
        list.sort_by_key(|&(place, value)| (place, order(value)));
        Copies { list, reads }
    }
}

/// What is copied, and which operands of copies are copies as well.
struct Copies {
    /// The place before which a copy goes, and the value that it is of.
    list: Vec<(usize, Value)>,
    /// Pairs of a value and an operand of its node.
    reads: FxHashMap<(Value, Value), ()>,
}

/// Puts the copies into the graph and has the readers read them. Returns the copies, in order.
fn copy(module: &mut Module, liveness: &Liveness, copies: &Copies, readers: &[Reader]) -> Vec<Node> {
    let mut made: FxHashMap<Value, Value> = FxHashMap::default();
    let mut nodes = Vec::new();
    for &(place, value) in &copies.list {
        let Some((node, _)) = module.producer(value) else { continue };
        let data = module.node(node);
        let view = is_view(module, node);
        let of_copy = |operand: Value, slot: usize| {
            let copied = (view && slot == 0) || copies.reads.contains_key(&(value, operand));
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
        let copy = module.add_node(module.main(), Position::Before(liveness.nodes[place]), new);
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

/// Has the readers read what they read before, and erases the copies.
fn take_back(module: &mut Module, copies: &[Node], readers: &[Reader]) {
    let edits = readers.iter().map(|reader| (reader.node, reader.slot as usize, Some(reader.value)));
    module.set_operands(edits.collect());
    for &copy in copies.iter().rev() {
        module.erase_node(copy);
    }
}
