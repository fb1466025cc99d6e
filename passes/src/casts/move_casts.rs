//! `move-casts`: moves the author's casts to the places where they have least to do, before anything is decided.
//!
//! A cast commutes, bit by bit, with operators that only move numbers (Slice, Gather, Expand, Transpose …):
//!
//! - A cast moves along a chain of such operators, each read by the next alone, to the place where the cast and the
//!   operators read and write the fewest bytes, if these are fewer than at its present place. Casts from and to 16-bit
//!   formats do not move: a 16-bit tensor stays 16-bit, and formats around it are chosen, by the same measure if the
//!   objective is time or bytes.
//! - A cast of a value that the body of a loop does not change moves out of the loop, unless it casts strings: a string
//!   that a loop without iterations would read need not be a number.
//! - A cast of a cast, a → b → c, becomes a → c if the two are equal for every value of a ([`exact`](crate::exact)). A
//!   cast to the type of its operand is removed, two casts of one value to one type become one, and a cast without
//!   readers is removed, except in functions, which may contain nothing else.
//!
//! ```text
//! %c = Cast(%x) {to=i64}            %g = Gather(%x, %i)
//! %g = Gather(%c, %i)               %c = Cast(%g) {to=i64}      %g is smaller than %x
//! ```
//!
//! With `excess-precision=allow`, a cast between f64, f32, f16 and bf16 reads the value behind other such casts, which
//! keeps digits that the author rounded away.
//!
//! In a training step, casts of weights to 16 bits move before transpositions of the weights (`hoist_weight_casts`).
//!
//! Casts that a pin, or a list that denies Cast, names stay. No cast moves past a node that a pin names.

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
use ampc_ir::op::{self, Formal, OpKind, Sign};
use ampc_ir::views::NodeView;
use ampc_ir::{DType, GraphId, Inserter, Module, Node, NodeSpec, Type, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The name of the pass.
pub const NAME: &str = "move-casts";
/// The words of the option `excess-precision`.
pub const EXCESS_PRECISION: Words = Words { no: "forbid", yes: "allow" };

/// The pass `move-casts`.
#[derive(Clone, Debug)]
pub struct MoveCasts {
    /// The policy of the user.
    pub policy: Arc<Policy>,
    /// True if floats may keep digits that casts of the author round away.
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

/// The maximal number of rounds. Two rounds are usual; only models that are constructed to be slow need more than this.
const MAX_ROUNDS: usize = 16;

/// Applies every rewrite once. Returns true if the module changed.
fn round(module: &mut Module, keep_digits: bool, pinned: &FxHashSet<Node>) -> bool {
    // First, because casts marked as inserted would hide the author's casts from one another.
    let mut changed = simplify_inserted(module, &|_, node| pinned.contains(&node));
    // An unread cast must not count as the twin of another cast.
    changed |= erase_unread(module, |_, node| pinned.contains(&node));
    // Program order, so that the inner cast of a cast has been rewritten already.
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
    // A cast that is in the way of another moving cast moves first.
    for node in casts(module, pinned).into_iter().rev() {
        changed |= slide(module, node, pinned);
    }
    for node in casts(module, pinned) {
        changed |= slide(module, node, pinned);
    }
    changed
}

/// The author's casts that no pin or list names, in program order.
fn casts(module: &Module, pinned: &FxHashSet<Node>) -> Vec<Node> {
    let mut nodes = flow::nodes(module);
    nodes.retain(|&node| !pinned.contains(&node) && Cast::of_author(module, node).is_some());
    nodes
}

/// A cast whose types are both known.
#[derive(Clone, Copy)]
struct Cast {
    operand: Value,
    result: Value,
    from: DType,
    to: DType,
}

impl Cast {
    /// The cast at a node, if it is a cast of the author.
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

    /// True if the cast only rounds.
    fn is_of_floats(&self) -> bool {
        let is_float = |dtype: DType| dtype.is_low() || matches!(dtype, DType::F32 | DType::F64);
        is_float(self.from) && is_float(self.to)
    }
}

/// Makes a cast read the operand of the cast before it, if the result is the same, or nearly the same where digits may
/// be kept. A captured value stays behind its cast, because a body cannot return a captured value.
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

/// Merges a cast with an earlier cast that does the same. Returns true if there is such a cast. The choice of the cast
/// that stays does not depend on the order of the two.
fn merge(module: &mut Module, node: Node, first: &mut FxHashMap<(Value, DType), Node>) -> bool {
    // Other attributes say how a cast rounds.
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

/// True if a cast of a cast equals one cast. Casts of integers are not duplicated: other readers of the inner cast may
/// be cast to the format as well, by one cast.
fn is_one(module: &Module, inner: &Cast, outer: &Cast) -> bool {
    let is_counted = inner.from == DType::F32 || inner.from.is_low();
    let only = || module.uses(inner.result).count() == 1 && !module.is_output(inner.result);
    composes(inner.from, inner.to, outer.to) && (is_counted || only())
}

fn is_capture(module: &Module, value: Value) -> bool {
    matches!(module.value(value).def, Def::Capture { .. })
}

/// Removes captures that are no longer read from the bodies that contain these graphs.
fn prune(module: &mut Module, graphs: BTreeSet<GraphId>) {
    let mut owners: Vec<Node> = Vec::new();
    for mut graph in graphs {
        while let Some(owner) = module.owner(graph) {
            owners.push(owner);
            graph = module.node(owner).graph;
        }
    }
    // Inner bodies first.
    let order: FxHashMap<Node, usize> =
        flow::nodes(module).into_iter().enumerate().map(|(at, node)| (node, at)).collect();
    owners.sort_unstable_by_key(|owner| std::cmp::Reverse(order[owner]));
    owners.dedup();
    for owner in owners {
        module.prune_captures(owner);
    }
}

/// Hoists a cast out of the loops that do not change its operand. Returns the graph that the cast left. Casts of
/// strings stay: a hoisted cast would read a string that is not a number even if the loop has no iterations.
fn hoist(module: &mut Module, node: Node) -> Option<GraphId> {
    let cast = Cast::of_author(module, node).filter(|cast| cast.from != DType::String)?;
    let home = module.node(node).graph;
    let (mut operand, mut out_of) = (cast.operand, None);
    while let Some((outer, owner)) = around_loop(module, operand) {
        (operand, out_of) = (outer, Some(owner));
    }
    // A body cannot output a value that it captures, so the cast of an output stays.
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

/// For a capture in the body of a loop: returns the captured value in the graph around the loop, and the loop.
fn around_loop(module: &Module, value: Value) -> Option<(Value, Node)> {
    let Def::Capture { slot, .. } = module.value(value).def else { return None };
    let owner = module.owner(module.value(value).graph)?;
    let kind = module.node(owner).schema()?.kind;
    let repeats = matches!(kind, OpKind::Loop | OpKind::Scan | OpKind::SequenceMap);
    Some((module.node(owner).operands()[slot as usize].filter(|_| repeats)?, owner))
}

/// Moves a cast along operators that only move numbers. Returns true if there is a better place.
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
    // The first cast of each weight to each type, and its position.
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

/// A cast among operators that only move numbers, each read by the next alone. The cast may stand before any of them,
/// or after the last.
struct Chain {
    cast: Cast,
    /// The operators in order, each with the value that it reads and the value that it makes.
    movers: Vec<Mover>,
    /// The number of operators before the cast.
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
            // The value may be a shape or indices instead.
            && mover.reads == value
            // An operator that makes an output keeps its type.
            && !module.is_output(mover.makes)
        {
            movers.push(mover);
            value = mover.makes;
        }
        Chain { cast, movers, at }
    }

    /// Returns the number of operators before the cast at the best place; the present place if no other place is
    /// better.
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
        // Operators before the cast move elements of its source type, operators after it elements of its target type.
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

    /// The value between the operators at a place; it has the size of the operand that a cast at that place would read.
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

/// True if every moving operator accepts the type and runtimes have kernels for it.
fn is_wide(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64 | DType::I32 | DType::I64 | DType::Bool)
}

/// True if the only reader of a value is a single operand.
fn is_read_once(module: &Module, value: Value) -> bool {
    let mut uses = module.uses(value);
    let reader = uses.next().filter(|&(node, slot)| (slot as usize) < module.node(node).n_formal());
    reader.is_some() && uses.next().is_none() && !module.is_output(value)
}

/// Returns the mover at a node, if the node only moves the elements of its first operand and accepts the type. Zeros
/// that Trilu and CenterCropPad add are zeros in every type.
fn mover(module: &Module, node: Node, dtype: DType) -> Option<Mover> {
    let view = NodeView::new(module, node).filter(|view| view.schema.domain.is_empty())?;
    let kind = view.kind();
    let moves_only_first = op::moves(kind, 0) == Some(Sign::Kept)
        && (1..view.n_operands()).all(|i| op::moves(kind, i).is_none())
        && !matches!(kind, OpKind::Cast | OpKind::CastLike);
    // In Tile below version 6, the other operands have the type of the first.
    let is_apart = |first: &Formal| view.schema.inputs[1..].iter().all(|other| other.ty != first.ty);
    let formal = view.schema.input(0).filter(|formal| {
        moves_only_first && is_apart(formal) && view.schema.types_of(formal).has_tensor(dtype)
    });
    let ([Some(makes)], Some(reads), Some(_)) = (view.data().results(), view.data().operand(0), formal)
    else {
        return None;
    };
    let is_tensor = |value: Value| matches!(module.value(value).ty, Type::Tensor(_));
    let alone = !view.data().formal_operands()[1..].contains(&Some(reads));
    (is_tensor(reads) && is_tensor(*makes) && alone).then_some(Mover { node, reads, makes: *makes })
}

/// True if a node only changes the shape.
fn is_view(module: &Module, node: Node) -> bool {
    let kind = module.node(node).schema().map(|schema| schema.kind);
    let views = [OpKind::Flatten, OpKind::Identity, OpKind::Reshape, OpKind::Squeeze, OpKind::Unsqueeze];
    kind.is_some_and(|kind| views.contains(&kind))
}
