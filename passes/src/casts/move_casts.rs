//! `move-casts`: the author's casts move to where they have least to do, before anything is decided.
//!
//! A cast commutes, bit by bit, with what only moves numbers (Slice, Gather, Expand, Transpose …):
//!
//! - it moves along a chain of such operators, each read by the next alone, to where the bytes that the cast and the
//!   operators read and write are fewest, if that is fewer than where it stands. Casts from and to 16-bit formats do
//!   not: what is 16-bit stays so, and around that formats are chosen, by the same measure if time or bytes are to be
//!   few;
//! - a cast of what the body of a loop does not change moves out of the loop, unless it is of strings: what a loop that
//!   is never run would read need be no number;
//! - a cast of a cast, a → b → c, is a → c if that makes the same of every value of a ([`exact`](crate::analysis::exact)), one
//!   to the type that is there goes, two casts of one value to one type are one, and one that nobody reads goes, but
//!   in functions, which may have nothing else in them.
//!
//! With `excess-precision=allow` a cast between f64, f32, f16 and bf16 reads what is behind other such casts, so that
//! digits are kept that the author rounded away.
//!
//! In a training step, casts of weights to 16 bits move before transpositions of the weights (`hoist_weight_casts`).
//!
//! Casts stay that a pin, or a list that denies Cast, speaks of, and pass nothing that a pin speaks of.

use crate::analysis::cost::{Extents, Sizes};
use crate::analysis::exact::composes;
use crate::casts::simplify_casts::{erase_unread, leave_out_wide, simplify_inserted};
use crate::graph::{flow, names};
use crate::pass::invariants::Invariants;
use crate::pass::options::{POLICY, PassOption, Setting, Spelled, Words, option, settings};
use crate::pass::{Changed, Pass, PassCx, PassError, sound};
use crate::policy::Policy;
use crate::policy::pinned::pin_of_node;
use crate::precision::classify::pinned_nodes;
use ampc_ir::edit::Position;
use ampc_ir::module::{Def, Provenance};
use ampc_ir::op::{Formal, OpKind};
use ampc_ir::views::NodeView;
use ampc_ir::{DType, GraphId, Inserter, Module, Node, NodeSpec, Type, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The name of the pass.
pub const NAME: &str = "move-casts";
/// The words of the option `excess-precision`.
pub const EXCESS_PRECISION: Words = Words { no: "forbid", yes: "allow" };

/// The pass.
#[derive(Clone, Debug)]
pub struct MoveCasts {
    /// What the user wants.
    pub policy: Arc<Policy>,
    /// Whether floats may keep digits that casts of the author round away.
    pub excess_precision: bool,
}

impl Spelled for MoveCasts {
    const NAME: &'static str = NAME;
    const ABOUT: &'static str = "moves casts of the author to the smallest tensors";
    const OPTIONS: &'static [PassOption<Self>] = &[
        PassOption {
            def: POLICY,
            print: |pass| Some(Setting::Policy(pass.policy.clone())),
            read: |pass, given| given.policy().map(|policy| pass.policy = policy),
        },
        PassOption {
            def: option("excess-precision", "forbid or allow", Some(EXCESS_PRECISION.no)),
            print: |pass| pass.excess_precision.then(|| Setting::word(EXCESS_PRECISION.yes)),
            read: |pass, given| given.either(EXCESS_PRECISION).map(|allow| pass.excess_precision = allow),
        },
    ];
    fn blank() -> Self {
        MoveCasts { policy: Arc::default(), excess_precision: false }
    }
}

impl Pass for MoveCasts {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn options(&self) -> Vec<(&'static str, Setting)> {
        settings(self)
    }
    fn renews_facts(&self) -> bool {
        true
    }
    fn revokes(&self) -> Invariants {
        Invariants::DECISIONS
    }
    fn run(&self, module: &mut Module, _: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let pinned = pinned_nodes(module, &self.policy);
        let mut changed = false;
        for _ in 0..MAX_ROUNDS {
            if !round(module, self.excess_precision, &pinned) {
                break;
            }
            changed = true;
        }
        if changed {
            names::part_all(module);
        }
        Ok(Changed::when(changed))
    }
}

/// Rounds that are worth it: two are usual, and more than this takes models made to be slow.
const MAX_ROUNDS: usize = 16;

/// Does all there is to do once; returns whether there was anything.
fn round(module: &mut Module, keep_digits: bool, pinned: &FxHashSet<Node>) -> bool {
    // First: casts marked as inserted would hide the author's from one another.
    let mut changed = simplify_inserted(module, &|_, node| pinned.contains(&node));
    // What nobody reads is no twin of anything.
    changed |= erase_unread(module, |_, node| pinned.contains(&node));
    // A cast of a cast goes where that went, so in program order.
    let mut first: FxHashMap<(Value, DType), Node> = FxHashMap::default();
    for node in casts(module, pinned) {
        changed |= leave_out_wide(module, node);
        changed |= read_around(module, node, keep_digits, pinned);
        changed |= merge(module, node, &mut first);
    }
    let mut left = BTreeSet::new();
    for node in casts(module, pinned) {
        left.extend(hoist(module, node));
    }
    changed |= !left.is_empty();
    prune(module, left);
    // What is in the way of a cast that moves goes first.
    for node in casts(module, pinned).into_iter().rev() {
        changed |= slide(module, node, pinned);
    }
    for node in casts(module, pinned) {
        changed |= slide(module, node, pinned);
    }
    changed
}

/// The author's casts of which nobody says more, in program order.
fn casts(module: &Module, pinned: &FxHashSet<Node>) -> Vec<Node> {
    let mut nodes = flow::nodes(module);
    nodes.retain(|&node| !pinned.contains(&node) && Cast::of_author(module, node).is_some());
    nodes
}

/// A cast of the author of which both types are known.
#[derive(Clone, Copy)]
struct Cast {
    operand: Value,
    result: Value,
    from: DType,
    to: DType,
}

impl Cast {
    /// A cast of the author.
    fn of_author(module: &Module, node: Node) -> Option<Cast> {
        let is_inserted = module.node(node).provenance == Provenance::Inserted;
        if is_inserted { None } else { Cast::of(module, node) }
    }

    fn of(module: &Module, node: Node) -> Option<Cast> {
        let data = module.node(node);
        if data.schema()?.kind != OpKind::Cast {
            return None;
        }
        let (operand, result) = (data.operand(0)?, data.result(0)?);
        let dtype = |value: Value| module.value(value).ty.dtype();
        Some(Cast { operand, result, from: dtype(operand)?, to: dtype(result)? })
    }

    /// Whether it does no more than to round.
    fn is_of_floats(&self) -> bool {
        let is_float = |dtype: DType| dtype.is_low() || matches!(dtype, DType::F32 | DType::F64);
        is_float(self.from) && is_float(self.to)
    }
}

/// Lets a cast read what is behind another if it makes the same of that, or nearly so where digits may be kept. What a
/// body captures is left: it cannot be what the body hands out.
fn read_around(module: &mut Module, node: Node, keep_digits: bool, pinned: &FxHashSet<Node>) -> bool {
    let mut changed = false;
    while let Some(outer) = Cast::of_author(module, node)
        && let Some((before, _)) = module.producer(outer.operand)
        && let Some(inner) = Cast::of_author(module, before).filter(|_| !pinned.contains(&before))
        && outer.from != outer.to
        && !is_capture(module, inner.operand)
        && (is_one(module, &inner, &outer) || keep_digits && inner.is_of_floats() && outer.is_of_floats())
    {
        module.set_operand(node, 0, Some(inner.operand));
        let is_read = module.uses(inner.result).next().is_some();
        if !is_read && !module.is_output(inner.result) && !module.has_role(inner.result) {
            module.erase_node(before);
        }
        changed = true;
    }
    changed
}

/// Makes one of a cast and one before it that does the same; returns whether there is one. Which of the two stays does
/// not depend on their order.
fn merge(module: &mut Module, node: Node, first: &mut FxHashMap<(Value, DType), Node>) -> bool {
    // Attributes say how a cast rounds.
    let is_plain = module.node(node).is_alive() && module.node(node).attrs().len() == 1;
    let Some(cast) = Cast::of_author(module, node).filter(|_| is_plain) else { return false };
    let twin = *first.entry((cast.operand, cast.to)).or_insert(node);
    let Some(before) = Cast::of_author(module, twin).filter(|_| twin != node) else { return false };
    let rank = |node: Node, cast: &Cast| {
        let names = [module.node(node).name, module.value(cast.result).name];
        (!module.is_output(cast.result), names.map(|name| name.map(|name| module.text(name).to_owned())))
    };
    let swaps = rank(node, &cast) < rank(twin, &before);
    let (goes, stays) = if swaps { (before, cast) } else { (cast, before) };
    if module.is_output(goes.result) {
        return false;
    }
    if swaps {
        module.move_node(node, Position::Before(twin));
        first.insert((cast.operand, cast.to), node);
    }
    module.replace_uses(goes.result, stays.result, |_, _| true);
    module.erase_node(if swaps { twin } else { node });
    true
}

/// Whether a cast of a cast makes what one cast makes. Casts of integers are not multiplied: what else reads the first
/// may be cast to the format as well, once.
fn is_one(module: &Module, inner: &Cast, outer: &Cast) -> bool {
    let is_counted = inner.from == DType::F32 || inner.from.is_low();
    let only = || module.uses(inner.result).count() == 1 && !module.is_output(inner.result);
    composes(inner.from, inner.to, outer.to) && (is_counted || only())
}

fn is_capture(module: &Module, value: Value) -> bool {
    matches!(module.value(value).def, Def::Capture { .. })
}

/// Lets the bodies that graphs are in capture no more than they read.
fn prune(module: &mut Module, graphs: BTreeSet<GraphId>) {
    let mut owners: Vec<Node> = Vec::new();
    for mut graph in graphs {
        while let Some(owner) = module.owner(graph) {
            owners.push(owner);
            graph = module.node(owner).graph;
        }
    }
    // From the inside out.
    let order: FxHashMap<Node, usize> =
        flow::nodes(module).into_iter().enumerate().map(|(at, node)| (node, at)).collect();
    owners.sort_unstable_by_key(|owner| std::cmp::Reverse(order[owner]));
    owners.dedup();
    for owner in owners {
        module.prune_captures(owner);
    }
}

/// Moves a cast out of the loops that do not change what it casts; returns the graph that it left. Casts of strings
/// stay: a loop that is never run reads none that is no number.
fn hoist(module: &mut Module, node: Node) -> Option<GraphId> {
    let cast = Cast::of_author(module, node).filter(|cast| cast.from != DType::String)?;
    let home = module.node(node).graph;
    let (mut operand, mut out_of) = (cast.operand, None);
    while let Some((outer, owner)) = around_loop(module, operand) {
        (operand, out_of) = (outer, Some(owner));
    }
    // What a body captures is nothing that it makes, so it cannot be its output.
    let owner = out_of.filter(|_| !module.is_output(cast.result))?;
    let data = module.node(node);
    let mut spec = NodeSpec::new(data.schema()?.kind, &[operand]).node_name(data.name);
    for attr in data.attrs() {
        spec = spec.attr(module.text(attr.name).to_owned(), attr.value.clone());
    }
    let base = module.value_name(cast.result).map_or_else(String::new, |name| module.text(name).to_owned());
    let spec = spec.result_name(module.fresh_name(&base));
    let mut inserter = Inserter::before(module, owner);
    inserter.set_origin(Some(node));
    inserter.copies_metadata = true;
    let [result] = sound(inserter.insert(spec));
    let captured = module.capture_into(home, result);
    module.replace_uses(cast.result, captured, |_, _| true);
    module.erase_node(node);
    Some(home)
}

/// What the body of a loop captures as a value, where it is made or captured, and the loop.
fn around_loop(module: &Module, value: Value) -> Option<(Value, Node)> {
    let Def::Capture { slot, .. } = module.value(value).def else { return None };
    let owner = module.owner(module.value(value).graph)?;
    let kind = module.node(owner).schema()?.kind;
    let repeats = matches!(kind, OpKind::Loop | OpKind::Scan | OpKind::SequenceMap);
    Some((module.node(owner).operands()[slot as usize].filter(|_| repeats)?, owner))
}

/// Moves a cast along what only moves numbers; returns whether there is a better place.
fn slide(module: &mut Module, node: Node, pinned: &FxHashSet<Node>) -> bool {
    let cast = Cast::of_author(module, node)
        .filter(|cast| is_wide(cast.from) && is_wide(cast.to) && cast.from != cast.to);
    let Some(cast) = cast else { return false };
    let chain = Chain::around(module, cast, pinned);
    let best = chain.best(module);
    let changed = best != chain.at;
    if changed {
        chain.place(module, node, best);
    }
    changed
}

/// Hoists casts of weights to 16 bits above transpositions and views of the weights, where that moves fewer bytes:
///
/// ```text
/// %t = Transpose(%w)                      %w.f16 = Cast(%w) {to=f16}
/// %t.f16 = Cast(%t) {to=f16}              %t = Transpose(%w.f16)
/// ```
///
/// A gradient then reads `%w.f16`, and `%t` need not be kept for it. Nodes that a pin names stay.
pub(crate) fn hoist_weight_casts(module: &mut Module, weights: &[Value]) {
    let weights: FxHashSet<Value> = weights.iter().copied().collect();
    let nodes: Vec<Node> = module.nodes(module.main()).collect();
    let position: FxHashMap<Node, usize> = nodes.iter().enumerate().map(|(at, &node)| (node, at)).collect();
    // The first cast of each weight to each type, and where it stands.
    let mut first: FxHashMap<(Value, DType), (Value, usize)> = FxHashMap::default();
    for &node in &nodes {
        let Some(cast) = Cast::of(module, node).filter(|c| c.from == DType::F32 && c.to.is_low()) else {
            continue;
        };
        if weights.contains(&cast.operand) {
            first.entry((cast.operand, cast.to)).or_insert((cast.result, position[&node]));
            continue;
        }
        let chain = Chain::around(module, cast, &FxHashSet::default());
        let before = &chain.movers[..chain.at];
        let Some(weight) = before.first().map(|first| first.reads).filter(|read| weights.contains(read))
        else {
            continue;
        };
        let is_kept = |mover: &Mover| {
            let is_transpose =
                module.node(mover.node).schema().is_some_and(|schema| schema.kind == OpKind::Transpose);
            (is_transpose || is_view(module, mover.node)) && pin_of_node(module, mover.node).is_none()
        };
        let is_pinned = pin_of_node(module, node).is_some();
        if is_pinned || !before.iter().all(is_kept) || chain.best(module) != 0 {
            continue;
        }
        let place = position[&before[0].node];
        chain.place(module, node, 0);
        match first.get(&(weight, cast.to)) {
            Some(&(twin, at)) if at <= place => {
                module.replace_uses(cast.result, twin, |_, _| true);
                module.erase_node(node);
            }
            _ => {
                if module.node(node).provenance == Provenance::Inserted {
                    let base = module.value_name(weight).map_or("", |name| module.text(name));
                    let name = format!("{base}.{}", cast.to);
                    let name = module.fresh_name(&name);
                    module.set_value_name(cast.result, name);
                }
                first.insert((weight, cast.to), (cast.result, place));
            }
        }
    }
}

/// A cast among operators that only move numbers, each read by the next alone. It may stand before any of them, or
/// behind the last.
struct Chain {
    cast: Cast,
    /// What each operator reads and makes, in order.
    movers: Vec<Mover>,
    /// How many of them are before the cast.
    at: usize,
}

#[derive(Clone, Copy)]
struct Mover {
    node: Node,
    reads: Value,
    makes: Value,
}

impl Chain {
    fn around(module: &Module, cast: Cast, pinned: &FxHashSet<Node>) -> Chain {
        let mover = |node: Node, dtype| mover(module, node, dtype).filter(|_| !pinned.contains(&node));
        let (mut movers, is_output) = (Vec::new(), module.is_output(cast.result));
        let mut value = cast.operand;
        while !is_output
            && is_read_once(module, value)
            && let Some(mover) = module.producer(value).and_then(|(node, _)| mover(node, cast.to))
        {
            movers.push(mover);
            value = mover.reads;
        }
        movers.reverse();
        let at = movers.len();
        let mut value = cast.result;
        while is_read_once(module, value)
            && let Some(mover) = module.uses(value).next().and_then(|(node, _)| mover(node, cast.from))
            // It may be a shape or indices.
            && mover.reads == value
            // What makes an output makes it of the type that it has.
            && !module.is_output(mover.makes)
        {
            movers.push(mover);
            value = mover.makes;
        }
        Chain { cast, movers, at }
    }

    /// Before how many of the operators the cast has least to do, where it stands if that is no better.
    fn best(&self, module: &Module) -> usize {
        let sizes = Sizes::default();
        let extents = Extents { module, sizes: &sizes };
        let bytes = |dtype: DType| u64::from(dtype.bits().unwrap_or(8).div_ceil(8));
        let casting =
            |value| extents.elements(value).saturating_mul(bytes(self.cast.from) + bytes(self.cast.to));
        let moving = |mover: &Mover, dtype| {
            let (reads, makes) = (extents.elements(mover.reads), extents.elements(mover.makes));
            let moved = if is_view(module, mover.node) { 0 } else { reads.min(makes).saturating_add(makes) };
            moved.saturating_mul(bytes(dtype))
        };
        // What is before the cast moves what it reads, what is behind it what it makes.
        let mut moved: u64 =
            self.movers.iter().fold(0, |sum, mover| sum.saturating_add(moving(mover, self.cast.to)));
        let mut totals = vec![moved.saturating_add(casting(self.boundary(0)))];
        for (at, mover) in (1..).zip(&self.movers) {
            moved = moved
                .saturating_sub(moving(mover, self.cast.to))
                .saturating_add(moving(mover, self.cast.from));
            totals.push(moved.saturating_add(casting(self.boundary(at))));
        }
        let least = totals.iter().zip(0..).min();
        least.filter(|&(&total, _)| total < totals[self.at]).map_or(self.at, |(_, at)| at)
    }

    /// What is between the operators, of the size of what the cast would read there.
    fn boundary(&self, at: usize) -> Value {
        match at.checked_sub(1) {
            None => self.movers.first().map_or(self.cast.operand, |first| first.reads),
            Some(before) => self.movers[before].makes,
        }
    }

    /// Moves the cast to another place.
    fn place(&self, module: &mut Module, node: Node, to: usize) {
        let Cast { operand, result, .. } = self.cast;
        let between = &self.movers[self.at.min(to)..self.at.max(to)];
        let (Some(&first), Some(&last)) = (between.first(), between.last()) else { return };
        let (dtype, reads) = if to > self.at {
            module.replace_uses(last.makes, result, |_, _| true);
            module.set_operand(first.node, 0, Some(operand));
            module.move_node(node, Position::After(last.node));
            (self.cast.from, last.makes)
        } else {
            module.replace_uses(result, operand, |_, _| true);
            module.set_operand(first.node, 0, Some(result));
            module.move_node(node, Position::Before(first.node));
            (self.cast.to, first.reads)
        };
        module.set_operand(node, 0, Some(reads));
        for mover in between {
            let ty = module.value(mover.makes).ty.with_element_dtype(dtype);
            module.set_type(mover.makes, ty);
        }
        let ty = module.value(reads).ty.with_element_dtype(self.cast.to);
        module.set_type(result, ty);
    }
}

/// Whether every operator that moves has the type, and runtimes have kernels.
fn is_wide(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64 | DType::I32 | DType::I64 | DType::Bool)
}

/// Whether a single operand reads a value, and nothing else.
fn is_read_once(module: &Module, value: Value) -> bool {
    let mut uses = module.uses(value);
    let reader = uses.next().filter(|&(node, slot)| (slot as usize) < module.node(node).n_formal());
    reader.is_some() && uses.next().is_none() && !module.is_output(value)
}

/// A node that only moves what its first operand is, and may be of a type.
fn mover(module: &Module, node: Node, dtype: DType) -> Option<Mover> {
    let view = NodeView::new(module, node).filter(|view| view.schema.domain.is_empty())?;
    let moves = is_view(module, node)
        || matches!(
            view.kind(),
            OpKind::Compress
                | OpKind::Expand
                | OpKind::Gather
                | OpKind::GatherElements
                | OpKind::GatherND
                | OpKind::Slice
                | OpKind::Tile
                | OpKind::Transpose
        );
    // Tile below 6 has numbers of its type as well.
    let is_apart = |first: &Formal| view.schema.inputs[1..].iter().all(|other| other.ty != first.ty);
    let formal = view
        .schema
        .input(0)
        .filter(|formal| moves && is_apart(formal) && view.schema.types_of(formal).has_tensor(dtype));
    let ([Some(makes)], Some(reads), Some(_)) = (view.data().results(), view.data().operand(0), formal)
    else {
        return None;
    };
    let is_tensor = |value: Value| matches!(module.value(value).ty, Type::Tensor(_));
    let alone = !view.data().formal_operands()[1..].contains(&Some(reads));
    (is_tensor(reads) && is_tensor(*makes) && alone).then_some(Mover { node, reads, makes: *makes })
}

/// Whether a node only says another shape.
fn is_view(module: &Module, node: Node) -> bool {
    let kind = module.node(node).schema().map(|schema| schema.kind);
    let views = [OpKind::Flatten, OpKind::Identity, OpKind::Reshape, OpKind::Squeeze, OpKind::Unsqueeze];
    kind.is_some_and(|kind| views.contains(&kind))
}
