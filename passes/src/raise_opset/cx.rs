//! What adapters work with: the module, the opset they lead to, and how to add nodes and constants.

use ampc_ir::attr::AttrValue;
use ampc_ir::infer::Facts;
use ampc_ir::module::{GraphOwner, Op, Provenance};
use ampc_ir::op::{AttrDefault, AttrKind, Lookup, OpKind, lookup};
use ampc_ir::views::NodeView;
use ampc_ir::{DType, Dim, Module, NewNode, Node, Payload, Position, TensorData, Type, Value};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Why a node cannot be brought into its next form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused(pub(super) String);

/// A refusal.
pub(super) fn refuse<T>(why: impl Into<String>) -> Result<T, Refused> {
    Err(Refused(why.into()))
}

/// The module while it is raised by one opset.
pub(super) struct Cx<'a> {
    pub(super) module: &'a mut Module,
    /// What inference knew of the module before.
    facts: &'a Facts,
    /// The opset that this step leads to: that of new nodes.
    opset: u16,
    constants: FxHashMap<(ampc_ir::GraphId, DType, Vec<u64>, Vec<u8>), Value>,
}

/// Where a new node stands, and what its result is called after.
#[derive(Clone, Copy)]
pub(super) enum At {
    /// Before this node.
    Before(Node),
    /// Behind this node.
    After(Node),
}

impl At {
    fn node(self) -> Node {
        match self {
            At::Before(node) | At::After(node) => node,
        }
    }
}

impl<'a> Cx<'a> {
    pub(super) fn new(module: &'a mut Module, facts: &'a Facts, opset: u16) -> Cx<'a> {
        Cx { module, facts, opset, constants: FxHashMap::default() }
    }

    /// The node at the version it has before the step.
    pub(super) fn view(&self, node: Node) -> NodeView<'_> {
        NodeView::with_facts(self.module, node, self.facts)
            .expect("adapters are called for nodes of the table")
    }

    /// Whether a node is in a function, where types are those of some call and not of all.
    fn in_function(&self, node: Node) -> bool {
        let root = self.module.root(self.module.node(node).graph);
        matches!(self.module.graph(root).owner, GraphOwner::Function(_))
    }

    /// The dims of operand `i`, if its rank is known for every use of the node.
    pub(super) fn dims(&self, node: Node, i: usize) -> Option<Vec<Dim>> {
        let known = self.view(node).dims(i).map(<[Dim]>::to_vec);
        known.filter(|_| !self.in_function(node))
    }

    /// The element type of operand `i`, if it is known for every use of the node.
    pub(super) fn dtype(&self, node: Node, i: usize) -> Option<DType> {
        self.view(node).dtype(i).filter(|_| !self.in_function(node))
    }

    /// Whether anybody reads a value, or it leaves its graph.
    pub(super) fn is_used(&self, value: Value) -> bool {
        self.module.uses(value).next().is_some() || self.module.is_output(value)
    }

    /// The attribute as written.
    pub(super) fn attr(&self, node: Node, name: &str) -> Option<AttrValue> {
        let name = self.module.symbol(name)?;
        self.module.node(node).attr(name).map(|a| a.value.clone())
    }

    pub(super) fn set(&mut self, node: Node, name: &str, value: AttrValue) {
        let name = self.module.intern(name);
        self.module.set_attr(node, name, value);
    }

    pub(super) fn remove(&mut self, node: Node, name: &str) {
        let name = self.module.intern(name);
        self.module.remove_attr(node, name);
    }

    /// Writes an attribute where it is absent.
    pub(super) fn write(&mut self, node: Node, name: &str, default: AttrDefault) {
        if self.attr(node, name).is_none() {
            self.set(node, name, value_of(default));
        }
    }

    /// Sets operand `slot` of a node, which may have fewer so far.
    pub(super) fn set_operand(&mut self, node: Node, slot: usize, value: Option<Value>) {
        let mut operands = self.module.node(node).formal_operands().to_vec();
        operands.resize(operands.len().max(slot + 1), None);
        operands[slot] = value;
        self.module.set_formal_operands(node, &operands);
    }

    /// A constant in the graph of a node; one that is there already from this step is shared.
    pub(super) fn constant(&mut self, node: Node, what: &str, data: TensorData) -> Value {
        let graph = self.module.node(node).graph;
        let bytes = data.to_bytes().expect("adapters make their constants in memory");
        let key = (graph, data.dtype(), data.dims().to_vec(), bytes);
        if let Some(&known) = self.constants.get(&key) {
            return known;
        }
        let name = self.name(node, what);
        let value = self.module.add_constant(graph, name, Payload::Dense(Arc::new(data)));
        self.constants.insert(key, value);
        value
    }

    /// A constant list of integers.
    pub(super) fn ints(&mut self, node: Node, what: &str, list: &[i64]) -> Value {
        let n = list.len() as u64;
        self.constant(node, what, TensorData::from_i64(&[n], list).expect("as many values as elements"))
    }

    /// A constant list of floats.
    pub(super) fn floats(&mut self, node: Node, what: &str, list: &[f32]) -> Value {
        let n = list.len() as u64;
        self.constant(node, what, TensorData::from_f32(&[n], list).expect("as many values as elements"))
    }

    /// A constant float of this element type.
    pub(super) fn scalar(&mut self, node: Node, what: &str, dtype: DType, x: f32) -> Result<Value, Refused> {
        let bytes = match dtype {
            DType::F32 => x.to_le_bytes().to_vec(),
            DType::F64 => f64::from(x).to_le_bytes().to_vec(),
            DType::F16 => half::f16::from_f32(x).to_le_bytes().to_vec(),
            DType::BF16 => half::bf16::from_f32(x).to_le_bytes().to_vec(),
            other => return refuse(format!("`{what}` of element type {other}")),
        };
        let data = TensorData::from_bytes(dtype, &[], bytes).expect("one element");
        Ok(self.constant(node, what, data))
    }

    /// A list attribute as an operand. In a function it may be the function's own attribute, which a Constant node
    /// makes an operand.
    pub(super) fn list(&mut self, node: Node, what: &str, value: AttrValue) -> Result<Value, Refused> {
        match value {
            AttrValue::Ints(list) => Ok(self.ints(node, what, &list)),
            AttrValue::Int(x) => Ok(self.ints(node, what, &[x])),
            AttrValue::Floats(list) => Ok(self.floats(node, what, &list)),
            AttrValue::Reference { kind: AttrKind::Ints, name } if self.opset >= 12 => {
                let attrs = [("value_ints", AttrValue::Reference { kind: AttrKind::Ints, name })];
                Ok(self.add(At::Before(node), OpKind::Constant, &[], &attrs, what))
            }
            other => refuse(format!("`{what}` as an operand: {:?}", other.kind())),
        }
    }

    /// A name for something that is made for a node.
    fn name(&mut self, node: Node, what: &str) -> ampc_ir::Symbol {
        let data = self.module.node(node);
        let result = data.results().iter().flatten().find_map(|&v| self.module.value_name(v));
        let base = result.or(data.name).map_or("value", |s| self.module.text(s));
        let base = format!("{base}.{what}");
        self.module.fresh_name(&base)
    }

    /// A new node with one result, of the opset that the step leads to.
    pub(super) fn add(
        &mut self,
        at: At,
        kind: OpKind,
        operands: &[Value],
        attrs: &[(&str, AttrValue)],
        what: &str,
    ) -> Value {
        let Lookup::Found(schema) = lookup(kind.domain(), kind.name(), self.opset) else {
            panic!("{} is not in opset {}", kind.name(), self.opset);
        };
        let node = at.node();
        let graph = self.module.node(node).graph;
        let name = self.name(node, what);
        let new = NewNode {
            op: Op::Schema(schema),
            name: None,
            operands: operands.iter().copied().map(Some).collect(),
            attrs: attrs.iter().map(|(name, value)| (self.module.intern(name), value.clone())).collect(),
            results: vec![Some((name, Type::Unknown))],
            provenance: Provenance::User,
        };
        let position = match at {
            At::Before(node) => Position::Before(node),
            At::After(node) => Position::After(node),
        };
        let made = self.module.add_node(graph, position, new);
        self.module.node(made).result(0).expect("it was made with one")
    }

    /// Lets a node be of an operator that took over from its own.
    pub(super) fn rename(&mut self, node: Node, kind: OpKind) {
        let Lookup::Found(schema) = lookup(kind.domain(), kind.name(), self.opset) else {
            panic!("{} is not in opset {}", kind.name(), self.opset);
        };
        self.module.set_op(node, Op::Schema(schema));
    }

    /// Whoever read `old` reads `new` from now on, outside and in, except for the node that makes `new` from it. The
    /// name goes with the readers, so that outputs keep theirs; the node of `old` gets it if its path was that name.
    pub(super) fn take_over(&mut self, old: Value, new: Value, what: &str) {
        let maker = self.module.producer(new).map(|(n, _)| n);
        self.module.replace_uses(old, new, |n, _| Some(n) != maker);
        let graph = self.module.value(old).graph;
        for index in 0..self.module.graph(graph).outputs().len() {
            if self.module.graph(graph).outputs()[index].value == old {
                self.module.set_output(graph, index, new);
            }
        }
        let ty = self.module.value(old).ty.clone();
        self.module.set_type(new, ty);
        self.module.set_type(old, Type::Unknown);
        let Some(name) = self.module.value(old).name else { return };
        let inner = format!("{}.{what}", self.module.text(name));
        let inner = self.module.fresh_name(&inner);
        if let Some((node, 0)) = self.module.producer(old)
            && self.module.node(node).name.is_none()
        {
            self.module.set_node_name(node, Some(name));
        }
        self.module.set_value_name(old, inner);
        self.module.set_value_name(new, name);
    }
}

/// The attribute value that a default stands for.
fn value_of(default: AttrDefault) -> AttrValue {
    match default {
        AttrDefault::Int(x) => AttrValue::Int(x),
        AttrDefault::Float(x) => AttrValue::Float(x),
        AttrDefault::String(x) => AttrValue::String(x.as_bytes().into()),
        AttrDefault::Ints(x) => AttrValue::Ints(x.to_vec()),
        AttrDefault::Floats(x) => AttrValue::Floats(x.to_vec()),
        AttrDefault::Strings(x) => AttrValue::Strings(x.iter().map(|s| s.as_bytes().into()).collect()),
        AttrDefault::None => unreachable!("the table writes values"),
    }
}
