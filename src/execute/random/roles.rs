//! Roles of inputs, inferred from their names and from the graph.

use crate::interface::input_names;
use ampc_ir::attr::AttrValue;
use ampc_ir::module::Op;
use ampc_ir::op::OpKind;
use ampc_ir::{DType, Module, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// The role of an input, which determines its random values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Unknown use: any float; for integers a flag or a pixel value.
    Any,
    /// A mask with 1 for visible and 0 for hidden: its name contains `mask`, or it selects the scores of a Softmax.
    Mask,
    /// An addend of scores before a Softmax: 0 for visible elements, a large negative number for hidden elements.
    Additive,
    /// Positions 0, 1, 2 …, below this extent: its name contains `position`.
    Position(u64),
    /// Indices or class numbers below this extent.
    Index(u64),
    /// Lengths of sequences: from 1 to this extent.
    Length(u64),
    /// Trip count of a loop: from 1 to 4.
    Trips,
    /// A shape or a number of elements: 1.
    Extent,
}

impl Role {
    /// The minimum integer, and the number of integers.
    pub(super) fn range(self) -> (u64, u64) {
        match self {
            Role::Any | Role::Mask | Role::Additive => (0, 2),
            Role::Extent => (1, 1),
            Role::Index(extent) | Role::Position(extent) => (0, extent.max(1)),
            Role::Length(extent) => (1, extent.max(1)),
            Role::Trips => (1, 4),
        }
    }
}

/// The role of each input, in a module with inferred types.
pub(crate) fn roles(module: &Module) -> Vec<Role> {
    let inputs = module.graph(module.main()).inputs();
    let names = input_names(module);
    let mut uses = Uses::new(module);
    inputs.iter().zip(&names).map(|(&input, name)| uses.role(input, name)).collect()
}

/// The known facts of values.
type Known<T> = FxHashMap<Value, T>;

/// A value whose uses are being visited: the facts of its own uses, and the values to follow.
struct Open<T> {
    value: Value,
    own: T,
    followed: Vec<Value>,
}

/// The facts of all uses of a value, and of the values that have its elements. `visit` returns the facts of a use,
/// and optionally a further value to follow. The facts of every visited value are cached, so all calls together visit
/// every use once.
fn of_uses<T: Copy + Default>(
    module: &Module,
    known: &mut Known<T>,
    value: Value,
    join: impl Fn(T, T) -> T,
    mut visit: impl FnMut(Node, u32) -> (T, Option<Value>),
) -> T {
    let mut open = |value: Value| {
        let (mut own, mut followed) = (T::default(), Vec::new());
        for (node, slot) in module.uses(value) {
            let (facts, next) = visit(node, slot);
            own = join(own, facts);
            followed.extend(next);
            follow(module, node, slot, &mut followed);
        }
        Open { value, own, followed }
    };
    let mut seen: FxHashSet<Value> = FxHashSet::default();
    let mut stack = Vec::new();
    if !known.contains_key(&value) {
        seen.insert(value);
        stack.push((open(value), 0));
    }
    while let Some((top, at)) = stack.last_mut() {
        if let Some(&next) = top.followed.get(*at) {
            *at += 1;
            if !known.contains_key(&next) && seen.insert(next) {
                stack.push((open(next), 0));
            }
            continue;
        }
        let of_followed = top.followed.iter().filter_map(|value| known.get(value)).copied();
        let facts = of_followed.fold(top.own, &join);
        known.insert(top.value, facts);
        stack.pop();
    }
    known.get(&value).copied().unwrap_or_default()
}

/// The paths from a float to the scores of a Softmax.
#[derive(Clone, Copy, Default)]
struct Scores {
    /// True if an operator takes the float as the mask of scores.
    is_given: bool,
    /// True if a use neither moves the float nor adds it to computed values.
    is_elsewhere: bool,
    /// True if a sum with computed values reaches a Softmax.
    reaches: bool,
    /// True if a sum with computed values does not reach a Softmax.
    misses: bool,
}

impl Scores {
    fn join(self, other: Scores) -> Scores {
        Scores {
            is_given: self.is_given || other.is_given,
            is_elsewhere: self.is_elsewhere || other.is_elsewhere,
            reaches: self.reaches || other.reaches,
            misses: self.misses || other.misses,
        }
    }
}

/// The uses of values; each is visited once for all inputs.
struct Uses<'m> {
    module: &'m Module,
    roles: Known<Option<Role>>,
    scores: Known<Scores>,
    chosen: Known<bool>,
    softmax: Known<bool>,
    /// The number of computed operands of a sum.
    computed: FxHashMap<Node, usize>,
}

impl<'m> Uses<'m> {
    fn new(module: &'m Module) -> Uses<'m> {
        Uses {
            module,
            roles: Known::default(),
            scores: Known::default(),
            chosen: Known::default(),
            softmax: Known::default(),
            computed: FxHashMap::default(),
        }
    }

    fn role(&mut self, input: Value, name: &str) -> Role {
        let name = name.to_ascii_lowercase();
        let dtype = self.module.value(input).ty.element_dtype();
        if dtype.is_some_and(DType::is_float) {
            let is_named = name.contains("mask");
            return match self.is_added_to_scores(input, is_named) {
                true => Role::Additive,
                false if is_named => Role::Mask,
                false => Role::Any,
            };
        }
        let found = self.role_by_use(input);
        if name.contains("position") && dtype.is_some_and(DType::is_integer) {
            match found {
                None => return Role::Position(u64::MAX),
                Some(Role::Index(extent)) => return Role::Position(extent),
                Some(_) => {}
            }
        }
        let is_mask = found.is_none() && (name.contains("mask") || self.chooses_scores(input));
        found.unwrap_or(if is_mask { Role::Mask } else { Role::Any })
    }

    /// The role of an input, from the nodes that read its elements unchanged.
    fn role_by_use(&mut self, input: Value) -> Option<Role> {
        let module = self.module;
        of_uses(module, &mut self.roles, input, stricter, |node, slot| (role_at(module, node, slot), None))
    }

    /// True if an input is only added to computed values on the way to a Softmax; the sum may be scaled, clamped and
    /// moved. If its name says mask, part of this evidence suffices.
    fn is_added_to_scores(&mut self, input: Value, is_named: bool) -> bool {
        let Uses { module, scores, softmax, computed, .. } = self;
        let module = *module;
        let is_computed = |v: Value| module.producer(v).is_some();
        let elsewhere = Scores { is_elsewhere: true, ..Scores::default() };
        let found = of_uses(module, scores, input, Scores::join, |node, slot| {
            let data = module.node(node);
            let facts = match data.schema().map(|schema| schema.kind) {
                Some(OpKind::Add | OpKind::Sum) => {
                    let operands = || data.operands().iter().flatten().filter(|&&v| is_computed(v));
                    let all = *computed.entry(node).or_insert_with(|| operands().count());
                    let own = data.operand(slot as usize).is_some_and(is_computed);
                    match (all > usize::from(own), data.result(0)) {
                        (true, Some(sum)) => {
                            let reaches = reaches_softmax(module, softmax, sum);
                            Scores { reaches, misses: !reaches, ..Scores::default() }
                        }
                        (true, None) => Scores::default(),
                        (false, _) => elsewhere,
                    }
                }
                Some(OpKind::Attention) if slot == 3 => Scores { is_given: true, ..Scores::default() },
                Some(OpKind::ContribAttention | OpKind::ContribMultiHeadAttention) if slot == 5 => {
                    Scores { is_given: true, ..Scores::default() }
                }
                Some(kind) if moves_whole(kind, slot) => Scores::default(),
                _ if data.bodies().next().is_none() && !matches!(data.op, Op::Call(_)) => elsewhere,
                _ => Scores::default(),
            };
            (facts, None)
        });
        let to_scores = found.is_given || found.reaches;
        to_scores && (is_named || !found.is_elsewhere && !found.misses)
    }

    /// True if flags or integers select the scores of a Softmax: as the condition of a Where, or converted to an
    /// additive mask.
    fn chooses_scores(&mut self, input: Value) -> bool {
        let Uses { module, chosen, softmax, .. } = self;
        let module = *module;
        let is_flag = module.value(input).ty.element_dtype() == Some(DType::Bool);
        is_flag
            && of_uses(
                module,
                chosen,
                input,
                |a, b| a || b,
                |node, slot| {
                    let data = module.node(node);
                    match data.schema().map(|schema| schema.kind) {
                        Some(OpKind::Where) if slot == 0 => {
                            let result = data.result(0);
                            (result.is_some_and(|value| reaches_softmax(module, softmax, value)), None)
                        }
                        Some(OpKind::Attention) if slot == 3 => (data.result(0).is_some(), None),
                        Some(OpKind::Not | OpKind::And | OpKind::Or) => (false, data.result(0)),
                        _ => (false, None),
                    }
                },
            )
    }
}

/// True if a value reaches a Softmax through sums, scales, clamps and moves only.
fn reaches_softmax(module: &Module, known: &mut Known<bool>, value: Value) -> bool {
    of_uses(
        module,
        known,
        value,
        |a, b| a || b,
        |node, slot| {
            let data = module.node(node);
            match data.schema().map(|schema| schema.kind) {
                Some(OpKind::Softmax | OpKind::LogSoftmax) => (true, None),
                Some(OpKind::Add | OpKind::Sum | OpKind::Max | OpKind::Min | OpKind::Clip) => {
                    (false, data.result(0))
                }
                Some(OpKind::Mul | OpKind::Div) => {
                    let by = data.operand(usize::from(slot == 0));
                    let is_scale = by.is_some_and(|v| module.constant(v).is_some());
                    (false, data.result(0).filter(|_| is_scale))
                }
                _ => (false, None),
            }
        },
    )
}

/// True if an operator only moves the elements of an operand.
fn moves_whole(kind: OpKind, slot: u32) -> bool {
    ampc_ir::op::moves(kind, slot as usize).is_some()
}

/// The more restrictive role.
fn stricter(old: Option<Role>, new: Option<Role>) -> Option<Role> {
    let size = |role: Role| (role.range().0.saturating_add(role.range().1), role.range().1);
    match (old, new) {
        (Some(old), Some(new)) if size(new) < size(old) => Some(new),
        _ => old.or(new),
    }
}

/// The role that a node gives to an operand.
fn role_at(module: &Module, node: Node, slot: u32) -> Option<Role> {
    let data = module.node(node);
    let kind = data.schema()?.kind;
    let extent = |operand: usize, axis: i64| -> Option<u64> {
        let dims = module.value(data.operand(operand)?).ty.shape()?.dims()?;
        let rank = i64::try_from(dims.len()).ok()?;
        let axis = usize::try_from(if axis < 0 { axis + rank } else { axis }).ok()?;
        dims.get(axis)?.known()
    };
    let axis = |otherwise: i64| match module.symbol("axis").and_then(|s| data.attr(s)).map(|a| &a.value) {
        Some(AttrValue::Int(axis)) => *axis,
        _ => otherwise,
    };
    match (kind, slot) {
        (OpKind::Gather, 1) => extent(0, axis(0)).map(Role::Index),
        (OpKind::GatherElements | OpKind::ScatterElements, 1) => extent(0, axis(0)).map(Role::Index),
        (OpKind::GatherND | OpKind::ScatterND, 1) => least_indexed(module, node).map(Role::Index),
        (OpKind::SoftmaxCrossEntropyLoss | OpKind::NegativeLogLikelihoodLoss, 1) => {
            extent(0, 1).map(Role::Index)
        }
        (OpKind::LSTM | OpKind::GRU | OpKind::RNN, 4) => extent(0, 0).map(Role::Length),
        (OpKind::ReverseSequence, 1) => extent(0, 0).map(Role::Length),
        (OpKind::Loop, 0) => Some(Role::Trips),
        (OpKind::Reshape | OpKind::Expand | OpKind::Tile | OpKind::TopK, 1) => Some(Role::Extent),
        (OpKind::ConstantOfShape, 0) => Some(Role::Extent),
        _ => None,
    }
}

/// The minimum extent of the axes indexed by GatherND and ScatterND: the axes from `batch_dims` on, as many as an
/// index row is long.
fn least_indexed(module: &Module, node: Node) -> Option<u64> {
    let data = module.node(node);
    let dims = |operand: usize| module.value(data.operand(operand)?).ty.shape()?.dims();
    let batch = match module.symbol("batch_dims").and_then(|s| data.attr(s)).map(|a| &a.value) {
        Some(AttrValue::Int(batch)) => usize::try_from(*batch).ok()?,
        _ => 0,
    };
    let row = usize::try_from(dims(1)?.last()?.known()?).ok()?;
    let extents = dims(0)?.get(batch..batch.checked_add(row)?)?;
    let known: Option<Vec<u64>> = extents.iter().map(|dim| dim.known()).collect();
    known?.into_iter().min()
}

/// The results that have the elements of an operand unchanged.
fn follow(module: &Module, node: Node, slot: u32, work: &mut Vec<Value>) {
    let data = module.node(node);
    let slot = slot as usize;
    if slot >= data.n_formal() {
        for body in data.bodies() {
            let captures = u32::try_from(slot).map_or(&[][..], |slot| module.graph(body).captures_of(slot));
            work.extend(captures);
        }
        return;
    }
    if let Op::Call(function) = data.op {
        work.extend(module.graph(module.function(function).graph).inputs().get(slot));
        return;
    }
    let Some(schema) = data.schema() else { return };
    let carries = match schema.kind {
        OpKind::Cast
        | OpKind::Identity
        | OpKind::Reshape
        | OpKind::Flatten
        | OpKind::Squeeze
        | OpKind::Unsqueeze
        | OpKind::Transpose
        | OpKind::Slice
        | OpKind::Split
        | OpKind::Expand
        | OpKind::Tile => slot == 0,
        OpKind::Concat => true,
        OpKind::Where => slot > 0,
        _ => false,
    };
    if carries {
        work.extend(data.results().iter().flatten());
    }
}
