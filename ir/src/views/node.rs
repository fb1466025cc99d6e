//! A node as views read it: attributes, types and known elements of its operands.

use crate::attr::{Attr, AttrValue};
use crate::dtype::DType;
use crate::entity::{Node, Value};
use crate::facts::{CallAttrs, Facts, Types};
use crate::int::Int;
use crate::module::{Def, Module, NodeData, Payload};
use crate::op::{AttrDefault, OpKind, OpSchema};
use crate::tensor::TensorData;
use crate::ty::{Dim, Dims, Shape, TensorType, Type};
use std::borrow::Cow;
use std::sync::Arc;

/// The part of a node that an [`OpError`] is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The node as a whole.
    Node,
    /// An operand, by index; the name comes from the schema.
    Operand(usize),
    /// A result, by index.
    Result(usize),
    /// An attribute.
    Attr(String),
}

/// A node that its operator does not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}expected {expected}, found {found}", place(.part))]
pub struct OpError {
    /// The wrong part of the node.
    pub part: Part,
    /// The value that the operator requires.
    pub expected: String,
    /// The value found.
    pub found: String,
}

fn place(part: &Part) -> String {
    match part {
        Part::Node => String::new(),
        Part::Operand(i) => format!("operand {i}: "),
        Part::Result(i) => format!("result {i}: "),
        Part::Attr(name) => format!("attribute `{name}`: "),
    }
}

impl OpError {
    /// An error about the node as a whole.
    pub fn node(expected: impl Into<String>, found: impl Into<String>) -> OpError {
        OpError { part: Part::Node, expected: expected.into(), found: found.into() }
    }
    /// An error about an operand.
    pub fn operand(i: usize, expected: impl Into<String>, found: impl Into<String>) -> OpError {
        OpError { part: Part::Operand(i), expected: expected.into(), found: found.into() }
    }
    /// An error about an attribute.
    pub fn attr(name: &str, expected: impl Into<String>, found: impl Into<String>) -> OpError {
        OpError { part: Part::Attr(name.to_owned()), expected: expected.into(), found: found.into() }
    }
}

/// A node of the operator table with everything a view reads.
#[derive(Clone, Copy, Debug)]
pub struct NodeView<'a> {
    /// The module.
    pub module: &'a Module,
    /// The node.
    pub node: Node,
    /// Its schema.
    pub schema: &'static OpSchema,
    facts: Option<&'a Facts>,
    /// The types that inference has found so far; without them the types of the module count.
    types: Option<&'a Types>,
    actual: Option<Actual<'a>>,
}

/// The operands of a node at run time: a view then reads these operands instead of inferred elements.
#[derive(Clone, Copy, Debug)]
pub struct Actual<'a> {
    /// The type of each formal operand with all its dims; `None` if it is absent.
    pub types: &'a [Option<Type>],
    /// The elements of small operands that may determine the meaning of the node.
    pub values: &'a [Option<Arc<TensorData>>],
    /// The attributes of the call whose function the node is in; `None` outside functions.
    pub call_attrs: Option<&'a CallAttrs>,
}

impl<'a> NodeView<'a> {
    /// The view of a node, `None` for calls and custom operators.
    pub fn new(module: &'a Module, node: Node) -> Option<NodeView<'a>> {
        Some(NodeView {
            module,
            node,
            schema: module.node(node).schema()?,
            facts: None,
            types: None,
            actual: None,
        })
    }

    /// The view of a node that is about to run.
    pub fn with_actual(module: &'a Module, node: Node, actual: Actual<'a>) -> Option<NodeView<'a>> {
        Some(NodeView { actual: Some(actual), ..NodeView::new(module, node)? })
    }

    /// The view of a node during inference, with the small integer values inferred so far.
    pub fn with_facts(module: &'a Module, node: Node, facts: &'a Facts) -> Option<NodeView<'a>> {
        Some(NodeView { facts: Some(facts), ..NodeView::new(module, node)? })
    }

    /// The view of a node during inference, with the types that were inferred so far instead of the module's.
    pub(crate) fn with_types(
        module: &'a Module,
        node: Node,
        facts: &'a Facts,
        types: &'a Types,
    ) -> Option<NodeView<'a>> {
        Some(NodeView { types: Some(types), ..NodeView::with_facts(module, node, facts)? })
    }

    /// The same view with the operands of `actual`, and no known elements of other values.
    pub(crate) fn with_operands(self, actual: Actual<'a>) -> NodeView<'a> {
        NodeView { actual: Some(actual), facts: None, ..self }
    }

    /// True if the node is about to run: questions on which runtimes differ are then decided.
    pub fn is_running(&self) -> bool {
        self.actual.is_some()
    }

    /// The attributes of the call whose function the node is in, of a node that is about to run.
    pub fn call_attrs(&self) -> Option<&'a CallAttrs> {
        self.actual.and_then(|actual| actual.call_attrs)
    }

    /// The operator.
    pub fn kind(&self) -> OpKind {
        self.schema.kind
    }
    /// The version of the operator: the opset that introduced it. For views only.
    pub fn since(&self) -> u16 {
        self.schema.since
    }
    /// The node's data.
    pub fn data(&self) -> &'a NodeData {
        self.module.node(self.node)
    }

    /// Number of formal operands, absent ones included.
    pub fn n_operands(&self) -> usize {
        self.data().n_formal()
    }
    /// Number of results, absent ones included.
    pub fn n_results(&self) -> usize {
        self.data().results().len()
    }
    /// True if operand `i` is present.
    pub fn has(&self, i: usize) -> bool {
        match self.actual {
            Some(actual) => actual.types.get(i).is_some_and(Option::is_some),
            None => self.data().operand(i).is_some(),
        }
    }
    /// Operand `i`, if present.
    pub fn operand(&self, i: usize) -> Option<Value> {
        self.data().operand(i)
    }
    /// The type of operand `i`, if present.
    pub fn operand_type(&self, i: usize) -> Option<&'a Type> {
        match self.actual {
            Some(actual) => actual.types.get(i)?.as_ref(),
            None => Some(self.type_of(self.operand(i)?)),
        }
    }
    /// The type of a value of this graph or of a body of the node: the type inferred so far, or the type in the
    /// module.
    pub fn type_of(&self, value: Value) -> &'a Type {
        match self.types {
            Some(types) => types.of(self.module, value),
            None => &self.module.value(value).ty,
        }
    }
    /// The tensor type of operand `i`; `None` if absent, of unknown type, or no tensor.
    pub fn tensor(&self, i: usize) -> Option<&'a TensorType> {
        self.operand_type(i)?.as_tensor()
    }
    /// The element type of operand `i`.
    pub fn dtype(&self, i: usize) -> Option<DType> {
        self.tensor(i).map(|t| t.dtype)
    }
    /// The shape of operand `i`; unknown if it is absent, of unknown type, or no tensor.
    pub fn shape(&self, i: usize) -> Shape {
        self.tensor(i).map_or_else(Shape::unknown, |t| t.shape.clone())
    }
    /// The dims of operand `i`, if its rank is known.
    pub fn dims(&self, i: usize) -> Option<&'a [Dim]> {
        self.tensor(i)?.shape.dims()
    }
    /// The rank of operand `i`, if known.
    pub fn rank(&self, i: usize) -> Option<usize> {
        self.dims(i).map(<[Dim]>::len)
    }

    /// The constant that operand `i` is: an initializer or the result of a Constant node with a dense tensor,
    /// in this graph or captured from one around it.
    pub fn constant(&self, i: usize) -> Option<Arc<TensorData>> {
        match self.actual {
            Some(actual) => actual.values.get(i)?.clone(),
            None => constant_of(self.module, self.operand(i)?),
        }
    }

    /// The elements of operand `i` as a list of integers, from constants and from inferred shapes. A scalar is
    /// a list of one. `None` if not even the length is known.
    pub fn ints(&self, i: usize) -> Option<Cow<'a, [Int]>> {
        match self.actual {
            Some(actual) => ints_in(actual.values.get(i)?.as_ref()?),
            None => ints_of(self.module, self.facts, self.operand(i)?),
        }
    }

    /// Operand `i` as extents: its known elements as a list of integers, where negative elements are unknown.
    pub fn extents(&self, i: usize) -> Option<Vec<Dim>> {
        Some(self.ints(i)?.iter().map(|n| n.dim()).collect())
    }

    /// Operand `i` as numbers, if all are known; they may be negative.
    pub fn known_ints(&self, i: usize) -> Option<Vec<i64>> {
        if let Some(data) = self.constant(i) {
            return data.small_ints(MAX_INTS);
        }
        self.ints(i)?.iter().map(|n| n.known()).collect()
    }

    /// The attribute as written, a reference to a function's attribute resolved.
    pub fn attr(&self, name: &str) -> Option<&'a AttrValue> {
        let written = find(self.module, self.data().attrs(), name)?;
        match written {
            AttrValue::Reference { name, .. } => {
                let given = match self.actual {
                    Some(actual) => actual.call_attrs,
                    None => self.facts?.call_attrs(),
                };
                given?.get(*name)
            }
            value => Some(value),
        }
    }
    /// True if the attribute is a reference that cannot be resolved here: the body of a function seen alone.
    pub fn is_unresolved(&self, name: &str) -> bool {
        matches!(find(self.module, self.data().attrs(), name), Some(AttrValue::Reference { .. }))
            && self.attr(name).is_none()
    }
    /// True if the node is in the body of a function seen alone and refers to attributes that only a call has.
    pub fn lacks_attributes(&self) -> bool {
        let in_call = self.facts.is_some_and(Facts::in_call)
            || self.actual.is_some_and(|actual| actual.call_attrs.is_some());
        !in_call && self.data().attrs().iter().any(|a| matches!(a.value, AttrValue::Reference { .. }))
    }
    /// The elements of a value of this graph or of a body of the node, like [`ints`](Self::ints) for an
    /// operand.
    pub fn ints_of(&self, value: Value) -> Option<Cow<'a, [Int]>> {
        ints_of(self.module, self.facts, value)
    }
    /// The integer attribute, or the schema's default.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.attr(name) {
            Some(AttrValue::Int(v)) => Some(*v),
            _ => match self.schema.attr(name)?.default {
                AttrDefault::Int(v) => Some(v),
                _ => None,
            },
        }
    }
    /// The float attribute, or the schema's default.
    pub fn float(&self, name: &str) -> Option<f32> {
        match self.attr(name) {
            Some(AttrValue::Float(v)) => Some(*v),
            _ => match self.schema.attr(name)?.default {
                AttrDefault::Float(v) => Some(v),
                _ => None,
            },
        }
    }
    /// The string attribute, or the schema's default; `None` also if it is not UTF-8.
    pub fn string(&self, name: &str) -> Option<&'a str> {
        match self.attr(name) {
            Some(AttrValue::String(v)) => std::str::from_utf8(v).ok(),
            _ => match self.schema.attr(name)?.default {
                AttrDefault::String(v) => Some(v),
                _ => None,
            },
        }
    }
    /// The integers attribute, or the schema's default.
    pub fn int_list(&self, name: &str) -> Option<&'a [i64]> {
        match self.attr(name) {
            Some(AttrValue::Ints(v)) => Some(v),
            _ => match self.schema.attr(name)?.default {
                AttrDefault::Ints(v) => Some(v),
                _ => None,
            },
        }
    }
    /// The floats attribute, or the schema's default.
    pub fn float_list(&self, name: &str) -> Option<&'a [f32]> {
        match self.attr(name) {
            Some(AttrValue::Floats(v)) => Some(v),
            _ => match self.schema.attr(name)?.default {
                AttrDefault::Floats(v) => Some(v),
                _ => None,
            },
        }
    }
    /// The element type an integer attribute (`to`, `dtype`) names.
    ///
    /// # Errors
    /// If the number is not an element type.
    pub fn dtype_attr(&self, name: &str) -> Result<Option<DType>, OpError> {
        let Some(number) = self.int(name) else { return Ok(None) };
        match i32::try_from(number).ok().and_then(DType::from_number) {
            None if number == 0 => Ok(None),
            None | Some(DType::Other(_)) => {
                Err(OpError::attr(name, "the number of an element type", number.to_string()))
            }
            known => Ok(known),
        }
    }

    /// `axis` counted from the front.
    ///
    /// # Errors
    /// If it is outside [-rank, rank).
    pub fn axis(&self, axis: i64, rank: usize, part: Part) -> Result<usize, OpError> {
        normalize_axis(axis, rank, part)
    }
}

/// Tensors with more elements are never read as integers.
pub const MAX_INTS: u64 = 1024;

/// `axis` counted from the front.
///
/// # Errors
/// If it is outside [-rank, rank).
pub fn normalize_axis(axis: i64, rank: usize, part: Part) -> Result<usize, OpError> {
    let r = i64::try_from(rank).unwrap_or(i64::MAX);
    let front = if axis < 0 { axis + r } else { axis };
    usize::try_from(front).ok().filter(|&a| a < rank).ok_or_else(|| OpError {
        part,
        expected: format!("an axis in [-{rank}, {rank}) of a tensor of rank {rank}"),
        found: axis.to_string(),
    })
}

fn find<'a>(module: &Module, attrs: &'a [Attr], name: &str) -> Option<&'a AttrValue> {
    attrs.iter().find(|a| module.text(a.name) == name).map(|a| &a.value)
}

/// The constant a value is: see [`NodeView::constant`].
pub fn constant_of(module: &Module, value: Value) -> Option<Arc<TensorData>> {
    let value = resolve_captures(module, value);
    match &module.value(value).def {
        Def::Constant(Payload::Dense(data)) => Some(data.clone()),
        Def::Result { node, .. } => {
            let view = NodeView::new(module, *node)?;
            if view.kind() != OpKind::Constant {
                return None;
            }
            constant_node_data(&view)
        }
        Def::Constant(Payload::Sparse(_)) | Def::Input { .. } | Def::Capture { .. } | Def::Erased => None,
    }
}

/// The tensor that a Constant node makes, whichever attribute it is in; `None` for sparse ones and strings lists.
pub fn constant_node_data(view: &NodeView<'_>) -> Option<Arc<TensorData>> {
    let list = |n: usize| [u64::try_from(n).unwrap_or(u64::MAX)];
    if let Some(AttrValue::Tensor(data)) = view.attr("value") {
        return Some(data.clone());
    }
    let data = match (
        view.attr("value_float"),
        view.attr("value_floats"),
        view.attr("value_int"),
        view.attr("value_ints"),
    ) {
        (Some(AttrValue::Float(v)), ..) => TensorData::from_f32(&[], &[*v]),
        (_, Some(AttrValue::Floats(v)), ..) => TensorData::from_f32(&list(v.len()), v),
        (_, _, Some(AttrValue::Int(v)), _) => TensorData::from_i64(&[], &[*v]),
        (_, _, _, Some(AttrValue::Ints(v))) => TensorData::from_i64(&list(v.len()), v),
        _ => return None,
    };
    data.ok().map(Arc::new)
}

/// The value that a capture stands for, through any number of bodies; other values are themselves.
pub fn resolve_captures(module: &Module, mut value: Value) -> Value {
    while let Def::Capture { slot } = module.value(value).def {
        let graph = module.value(value).graph;
        let crate::module::GraphOwner::Body { node, .. } = module.graph(graph).owner else { break };
        match module.node(node).operands().get(slot as usize).copied().flatten() {
            Some(outer) => value = outer,
            None => break,
        }
    }
    value
}

pub(crate) fn ints_of<'a>(module: &Module, facts: Option<&'a Facts>, value: Value) -> Option<Cow<'a, [Int]>> {
    let value = resolve_captures(module, value);
    if let Some(known) = facts.and_then(|f| f.ints(value)) {
        return Some(Cow::Borrowed(known));
    }
    let data = constant_of(module, value)?;
    ints_in(&data)
}

fn ints_in(data: &TensorData) -> Option<Cow<'static, [Int]>> {
    if data.dims().len() > 1 {
        return None;
    }
    Some(data.small_ints(MAX_INTS)?.into_iter().map(Int::Known).collect::<Vec<_>>().into())
}

/// The result of NumPy broadcasting of two shapes, axis by axis from the back.
///
/// # Errors
/// With the two dims that do not fit.
pub fn broadcast(a: &[Dim], b: &[Dim]) -> Result<Dims, (Dim, Dim)> {
    let rank = a.len().max(b.len());
    let at = |dims: &[Dim], i: usize| (i + dims.len()).checked_sub(rank).map_or(Dim::Known(1), |j| dims[j]);
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (Dim::Known(1), d) | (d, Dim::Known(1)) => Ok(d),
            (Dim::Known(x), Dim::Known(y)) if x == y => Ok(Dim::Known(x)),
            (x @ Dim::Known(_), y @ Dim::Known(_)) => Err((x, y)),
            (x @ Dim::Known(_), _) | (_, x @ Dim::Known(_)) => Ok(x),
            (x, y) if x == y => Ok(x),
            _ => Ok(Dim::Unknown),
        })
        .collect()
}
