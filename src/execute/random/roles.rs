//! Roles of inputs, inferred from their names and from the graph.

use crate::execute::input_names;
use ampc_ir::attr::AttrValue;
use ampc_ir::module::Op;
use ampc_ir::op::OpKind;
use ampc_ir::{DType, Module, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// The role of an input, which determines its numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Unknown use: any float; for integers a flag, or the value of a pixel.
    Any,
    /// Mask with 1 for visible and 0 for hidden: its name contains `mask`, or it selects the scores of a
    /// Softmax.
    Mask,
    /// Added to scores before a Softmax: 0 for visible elements, a large negative number for hidden ones.
    Additive,
    /// `position` is in its name: 0, 1, 2 …, below this extent.
    Position(u64),
    /// Indices or class numbers: below this extent.
    Index(u64),
    /// Lengths of sequences: from 1 to this extent.
    Length(u64),
    /// Trip count of a loop: from 1 to 4.
    Trips,
    /// A shape, or a number of elements: 1.
    Extent,
}

impl Role {
    /// The least integer and how many there are.
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

/// The role of each input, in a module whose values have their types.
pub(crate) fn roles(module: &Module) -> Vec<Role> {
    let inputs = module.graph(module.main()).inputs();
    let names = input_names(module);
    inputs.iter().zip(&names).map(|(&input, name)| role(module, input, name)).collect()
}

fn role(module: &Module, input: Value, name: &str) -> Role {
    let name = name.to_ascii_lowercase();
    let dtype = module.value(input).ty.element_dtype();
    if dtype.is_some_and(DType::is_float) {
        let is_named = name.contains("mask");
        return match is_added_to_scores(module, input, is_named) {
            true => Role::Additive,
            false if is_named => Role::Mask,
            false => Role::Any,
        };
    }
    let found = role_by_use(module, input);
    if name.contains("position") && dtype.is_some_and(DType::is_integer) {
        match found {
            None => return Role::Position(u64::MAX),
            Some(Role::Index(extent)) => return Role::Position(extent),
            Some(_) => {}
        }
    }
    let masked = || (name.contains("mask") || chooses_scores(module, input)).then_some(Role::Mask);
    found.or_else(masked).unwrap_or(Role::Any)
}

/// The role of an input by the nodes that read its elements unchanged.
fn role_by_use(module: &Module, input: Value) -> Option<Role> {
    let mut found: Option<Role> = None;
    each_use(module, vec![input], |node, slot| {
        if let Some(role) = role_at(module, node, slot) {
            found = Some(stricter(found, role));
        }
        None
    });
    found
}

/// Visits all uses of values, and of values that have their elements. Values that `visit` returns are followed
/// as well.
fn each_use(module: &Module, mut work: Vec<Value>, mut visit: impl FnMut(Node, u32) -> Option<Value>) {
    let mut seen: FxHashSet<Value> = FxHashSet::default();
    while let Some(value) = work.pop() {
        if !seen.insert(value) {
            continue;
        }
        for (node, slot) in module.uses(value) {
            work.extend(visit(node, slot));
            follow(module, node, slot, &mut work);
        }
    }
}

/// True if an input is only added to computed values on the way to a Softmax: once the sum is made, it may be
/// scaled, bounded and moved. An input that is a mask by its name needs only a part of this evidence.
fn is_added_to_scores(module: &Module, input: Value, is_named: bool) -> bool {
    let mut sums: Vec<Value> = Vec::new();
    let (mut is_given, mut elsewhere) = (false, false);
    // How many operands of a sum are computed; one sum may read the input, or what it moves, many times.
    let mut computed: FxHashMap<Node, usize> = FxHashMap::default();
    let is_computed = |v: Value| module.producer(v).is_some();
    each_use(module, vec![input], |node, slot| {
        let data = module.node(node);
        match data.schema().map(|schema| schema.kind) {
            Some(OpKind::Add | OpKind::Sum) => {
                let operands = || data.operands().iter().flatten().filter(|&&v| is_computed(v));
                let all = *computed.entry(node).or_insert_with(|| operands().count());
                let own = data.operand(slot as usize).is_some_and(is_computed);
                match all > usize::from(own) {
                    true => sums.extend(data.result(0)),
                    false => elsewhere = true,
                }
            }
            Some(OpKind::Attention) if slot == 3 => is_given = true,
            Some(OpKind::ContribAttention | OpKind::ContribMultiHeadAttention) if slot == 5 => {
                is_given = true
            }
            Some(kind) if moves_whole(kind, slot) => {}
            _ => elsewhere = elsewhere || data.bodies().next().is_none() && !matches!(data.op, Op::Call(_)),
        }
        None
    });
    let is_alone = !elsewhere || is_named;
    let (mut to_scores, mut all) = (is_given, true);
    sums.dedup();
    for sum in sums {
        let reaches = reaches_softmax(module, sum);
        to_scores |= reaches;
        all &= reaches;
    }
    to_scores && is_alone && (all || is_named)
}

/// True if flags or integers select the scores of a Softmax: as the condition of a Where, or converted into an
/// additive mask.
fn chooses_scores(module: &Module, input: Value) -> bool {
    let mut chosen: Vec<Value> = Vec::new();
    let is_flag = module.value(input).ty.element_dtype() == Some(DType::Bool);
    each_use(module, vec![input], |node, slot| {
        let data = module.node(node);
        match data.schema().map(|schema| schema.kind)? {
            OpKind::Where if slot == 0 => chosen.extend(data.result(0)),
            OpKind::Attention if slot == 3 => chosen.extend(data.result(0)),
            OpKind::Not | OpKind::And | OpKind::Or if is_flag => return data.result(0),
            _ => {}
        }
        None
    });
    let given = |v: Value| {
        module.producer(v).is_some_and(|(node, _)| {
            module.node(node).schema().is_some_and(|schema| schema.kind == OpKind::Attention)
        })
    };
    is_flag && chosen.into_iter().any(|value| given(value) || reaches_softmax(module, value))
}

/// True if a value goes into a Softmax after nothing but sums, scales, bounds and moves.
fn reaches_softmax(module: &Module, value: Value) -> bool {
    let mut reaches = false;
    each_use(module, vec![value], |node, slot| {
        let data = module.node(node);
        match data.schema().map(|schema| schema.kind)? {
            OpKind::Softmax | OpKind::LogSoftmax => {
                reaches = true;
                None
            }
            OpKind::Add | OpKind::Sum | OpKind::Max | OpKind::Min | OpKind::Clip => data.result(0),
            OpKind::Mul | OpKind::Div => {
                let by = data.operand(usize::from(slot == 0));
                let is_scale = by.is_some_and(|v| module.constant(v).is_some());
                is_scale.then(|| data.result(0)).flatten()
            }
            _ => None,
        }
    });
    reaches
}

/// True if all that an operator does with an operand is to move it.
fn moves_whole(kind: OpKind, slot: u32) -> bool {
    ampc_ir::op::moves(kind, slot as usize).is_some()
}

/// The role that leaves less.
fn stricter(old: Option<Role>, new: Role) -> Role {
    let largest = |role: Role| role.range().0 + role.range().1;
    match old {
        Some(old) if largest(old) <= largest(new) => old,
        _ => new,
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

/// The least extent of the axes that rows of indices of GatherND and ScatterND are for: as many as a row is long, from
/// `batch_dims` on.
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

/// The results to which the elements of an operand pass unchanged.
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
