//! What constants a variable works with: those it reads, those that nodes before it only moved, and those in its
//! own attributes.

use super::{ConstantStats, Cx};
use crate::flow::{self, Var};
use crate::pass::PassError;
use ampc_ir::op::OpKind;
use ampc_ir::tensor::TensorError;
use ampc_ir::views::broadcast::{Bound, ClipView};
use ampc_ir::views::{NodeView, PadView, constant_of};
use ampc_ir::{AttrValue, DType, Node, TensorData, Value};
use std::sync::Arc;

/// Where a number comes from.
#[derive(Clone, Copy)]
pub(super) enum Origin {
    /// An initializer or a Constant node.
    Constant(Value),
    /// The fill of a ConstantOfShape.
    Fill(Value),
    /// An attribute of the operator that reads it.
    Attr(&'static str),
}

impl Origin {
    /// The origin of an epsilon in words.
    pub(super) fn of_epsilon(self, cx: &Cx<'_>) -> String {
        match self {
            Origin::Constant(value) => format!("`{}`", cx.name(value)),
            Origin::Fill(_) | Origin::Attr(_) => self.name(cx),
        }
    }

    /// The origin in words.
    pub(super) fn name(self, cx: &Cx<'_>) -> String {
        match self {
            Origin::Constant(value) => format!("constant `{}`", cx.name(value)),
            Origin::Fill(value) => format!("fill `{}`", cx.name(value)),
            Origin::Attr(name) => format!("attribute `{name}`"),
        }
    }
}

/// What is known of the numbers in something constant.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) stats: Arc<ConstantStats>,
    /// Where the greatest magnitude comes from.
    pub(super) largest: Origin,
    /// Where the least magnitude other than 0 comes from.
    pub(super) smallest: Origin,
    /// The value that holds them, if they are in one.
    pub(super) value: Option<Value>,
}

impl Known {
    fn new(stats: Arc<ConstantStats>, origin: Origin, value: Option<Value>) -> Known {
        Known { stats, largest: origin, smallest: origin, value }
    }

    /// What holds the numbers of both.
    fn and(self, other: Known) -> Known {
        let (a, b) = (&*self.stats, &*other.stats);
        Known {
            largest: if b.max_abs > a.max_abs { other.largest } else { self.largest },
            smallest: if b.min_abs < a.min_abs { other.smallest } else { self.smallest },
            stats: Arc::new(ConstantStats {
                count: a.count.saturating_add(b.count),
                overflow: a.overflow.saturating_add(b.overflow),
                underflow: a.underflow.saturating_add(b.underflow),
                nonzero: a.nonzero.saturating_add(b.nonzero),
                max_abs: a.max_abs.max(b.max_abs),
                min_abs: a.min_abs.min(b.min_abs),
                min: a.min.min(b.min),
                max: a.max.max(b.max),
            }),
            value: None,
        }
    }
}

/// The operands whose elements, and no others, are in the result of an operator that only moves.
fn moves(kind: OpKind, n: usize) -> std::ops::Range<usize> {
    match kind {
        OpKind::Where => 1..n,
        OpKind::Concat => 0..n,
        OpKind::Gather | OpKind::Expand | OpKind::Tile | OpKind::Slice | OpKind::Transpose => 0..1,
        OpKind::Reshape | OpKind::Squeeze | OpKind::Unsqueeze | OpKind::Flatten => 0..1,
        OpKind::Identity | OpKind::Cast => 0..1,
        _ => 0..0,
    }
}

/// More elements than this of another element type than f32 are not looked at.
const FEW_OTHERS: u64 = 1024;

impl Cx<'_> {
    /// Finds what is made of constants alone. Program order is topological: one walk, each operand once.
    pub(super) fn find_moved(&mut self) -> Result<(), PassError> {
        let nodes: Vec<Node> = self.module.nodes(self.module.main()).collect();
        for node in nodes {
            let Some(kind) = self.kind(node) else { continue };
            let Some(result) = self.module.node(node).result(0) else { continue };
            if !self.module.value(result).ty.dtype().is_some_and(DType::is_float) {
                continue;
            }
            let known = if kind == OpKind::ConstantOfShape {
                self.fill(node, result)?
            } else {
                self.moved_by(node, kind)?
            };
            if let Some(known) = known {
                self.moved.insert(result, Known { value: Some(result), ..known });
            }
        }
        Ok(())
    }

    fn moved_by(&mut self, node: Node, kind: OpKind) -> Result<Option<Known>, PassError> {
        let mut all: Option<Known> = None;
        for i in moves(kind, self.module.node(node).n_formal()) {
            let Some(operand) = self.module.node(node).operand(i) else { return Ok(None) };
            let Some(known) = self.known(operand)? else { return Ok(None) };
            all = Some(match all {
                Some(before) => before.and(known),
                None => known,
            });
        }
        Ok(all)
    }

    fn fill(&self, node: Node, result: Value) -> Result<Option<Known>, PassError> {
        let Some(view) = NodeView::new(self.module, node) else { return Ok(None) };
        let Some(AttrValue::Tensor(data)) = view.attr("value") else { return Ok(None) };
        self.few(data, result, Origin::Fill(result))
    }

    /// What a constant of another element type than f32 says, or a fill.
    fn few(&self, data: &TensorData, value: Value, origin: Origin) -> Result<Option<Known>, PassError> {
        let floats = data.dtype().is_float().then(|| data.small_floats(FEW_OTHERS)).flatten();
        let Some(floats) = floats else { return Ok(None) };
        #[expect(clippy::cast_possible_truncation, reason = "as the cast that follows")]
        let floats: Vec<f32> = floats.into_iter().map(|v| v as f32).collect();
        let stats =
            self.numbers(&floats).map_err(|source| PassError::Constant { name: self.name(value), source })?;
        Ok(Some(Known::new(stats, origin, Some(value))))
    }

    fn numbers(&self, values: &[f32]) -> Result<Arc<ConstantStats>, TensorError> {
        let n = u64::try_from(values.len()).unwrap_or(u64::MAX);
        Ok(Arc::new(ConstantStats::of(&TensorData::from_f32(&[n], values)?, self.to)?))
    }

    /// What is known of a value that is constant or made of constants alone.
    fn known(&mut self, value: Value) -> Result<Option<Known>, PassError> {
        if let Some(known) = self.moved.get(&value) {
            return Ok(Some(known.clone()));
        }
        if let Some(stats) = self.stats(value)? {
            return Ok(Some(Known::new(stats, Origin::Constant(value), Some(value))));
        }
        match constant_of(self.module, value) {
            Some(data) if data.dtype() != DType::F32 => self.few(&data, value, Origin::Constant(value)),
            _ => Ok(None),
        }
    }

    /// The constants that a variable reads or makes, each once.
    pub(super) fn constants_at(&mut self, var: Var) -> Result<Vec<Known>, PassError> {
        let mut values: Vec<Value> = flow::operands_of(self.module, var).map(|(_, v)| v).collect();
        if matches!(self.kind(var.node), Some(OpKind::Constant | OpKind::ConstantOfShape)) {
            values.extend(flow::results_of(self.module, var).map(|(_, v)| v));
        }
        values.sort_unstable();
        values.dedup();
        let mut found = Vec::new();
        for value in values {
            found.extend(self.known(value)?);
        }
        for (name, number) in self.in_attributes(var) {
            if let Ok(stats) = self.numbers(&[number]) {
                found.push(Known::new(stats, Origin::Attr(name), None));
            }
        }
        Ok(found)
    }

    /// Numbers in attributes that take part in the element type of the variable.
    fn in_attributes(&self, var: Var) -> Vec<(&'static str, f32)> {
        let Some(view) = NodeView::new(self.module, var.node) else { return Vec::new() };
        let mut found = Vec::new();
        match view.kind() {
            OpKind::Clip => {
                let clip = ClipView::read(&view);
                // A bound beyond the range on its own side bounds nothing, rounded to infinity or not: what
                // exporters write for a Clip with one bound, and the default.
                let most = self.most();
                found.extend(number(clip.min).filter(|&v| f64::from(v) >= -most).map(|v| ("min", v)));
                found.extend(number(clip.max).filter(|&v| f64::from(v) <= most).map(|v| ("max", v)));
            }
            OpKind::Pad if flow::results_of(self.module, var).next().is_some() => {
                let pad = PadView::read(&view).ok().filter(|p| p.mode == "constant");
                found.extend(pad.and_then(|p| number(p.value)).map(|v| ("value", v)));
            }
            _ => {}
        }
        found
    }

    /// Makes the nodes deny that moved constants into a value.
    pub(super) fn deny_movers(&mut self, value: Option<Value>, evidence: impl Fn() -> String) {
        let mut work: Vec<Value> = value.into_iter().collect();
        while let Some(value) = work.pop() {
            if !self.moved.contains_key(&value) {
                continue;
            }
            // What is not free has been here, or is decided otherwise: each node is visited once.
            let Some(var) = flow::producer_var(self.module, value) else { continue };
            if flow::is_free(self.module, var) {
                self.deny(var, &evidence);
                work.extend(self.module.node(var.node).formal_operands().iter().flatten());
            }
        }
    }
}

fn number(bound: Bound) -> Option<f32> {
    match bound {
        Bound::Number(v) => Some(v),
        Bound::None | Bound::Operand(_) => None,
    }
}
