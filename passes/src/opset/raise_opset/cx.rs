//! Context of adapters: the module, the opset they lead to, and functions that add nodes and constants.

use ampc_ir::attr::AttrValue;
use ampc_ir::infer::Facts;
use ampc_ir::module::{GraphOwner, Op};
use ampc_ir::op::{AttrDefault, AttrKind, OpKind};
use ampc_ir::views::NodeView;
use ampc_ir::{DType, Dim, InsertError, Inserter, Module, Node, NodeSpec, Position, TensorData, Type, Value};

/// Reason why a node has no next form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused(pub(super) String);

/// A refusal.
pub(super) fn refuse<T>(why: impl Into<String>) -> Result<T, Refused> {
    Err(Refused(why.into()))
}

/// An inserted node does not fit at its place.
impl From<InsertError> for Refused {
    fn from(error: InsertError) -> Refused {
        Refused(format!("{} cannot stand beside it: {}", error.op.name(), error.kind))
    }
}

/// The module while it is raised by one opset.
pub(super) struct Cx<'a> {
    /// The inserter of nodes and constants, at the opset of this step; it has the module.
    pub(super) inserter: Inserter<'a>,
    /// The inferred facts about the module before the step.
    facts: &'a Facts,
    /// The opset that this step leads to.
    opset: u16,
}

/// The place of a new node, and the base of the name of its result.
#[derive(Clone, Copy)]
pub(super) enum At {
    /// Before this node.
    Before(Node),
    /// Behind this node.
    After(Node),
}

impl<'a> Cx<'a> {
    pub(super) fn new(module: &'a mut Module, facts: &'a Facts, opset: u16) -> Cx<'a> {
        let main = module.main();
        let inserter = Inserter::new(module, main, Position::Last).with_facts(facts).with_opset("", opset);
        Cx { inserter, facts, opset }
    }

    /// The node at the version it has before the step.
    pub(super) fn view(&self, node: Node) -> NodeView<'_> {
        NodeView::with_facts(self.inserter.module, node, self.facts)
            .expect("adapters are called for nodes of the table")
    }

    /// True if a node is in a function, where types hold for some call and not for all.
    fn in_function(&self, node: Node) -> bool {
        let root = self.inserter.module.root(self.inserter.module.node(node).graph);
        matches!(self.inserter.module.graph(root).owner, GraphOwner::Function(_))
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

    /// True if a value has readers, or leaves its graph.
    pub(super) fn is_used(&self, value: Value) -> bool {
        self.inserter.module.uses(value).next().is_some() || self.inserter.module.is_output(value)
    }

    /// The attribute as written.
    pub(super) fn attr(&self, node: Node, name: &str) -> Option<AttrValue> {
        let name = self.inserter.module.symbol(name)?;
        self.inserter.module.node(node).attr(name).map(|a| a.value.clone())
    }

    pub(super) fn set(&mut self, node: Node, name: &str, value: AttrValue) {
        let name = self.inserter.module.intern(name);
        self.inserter.module.set_attr(node, name, value);
    }

    pub(super) fn remove(&mut self, node: Node, name: &str) {
        let name = self.inserter.module.intern(name);
        self.inserter.module.remove_attr(node, name);
    }

    /// Writes an attribute where it is absent.
    pub(super) fn write(&mut self, node: Node, name: &str, default: AttrDefault) {
        if self.attr(node, name).is_none() {
            self.set(node, name, value_of(default));
        }
    }

    /// Sets operand `slot` of a node, which may have fewer so far.
    pub(super) fn set_operand(&mut self, node: Node, slot: usize, value: Option<Value>) {
        let mut operands = self.inserter.module.node(node).formal_operands().to_vec();
        operands.resize(operands.len().max(slot + 1), None);
        operands[slot] = value;
        self.inserter.module.set_formal_operands(node, &operands);
    }

    /// A constant in the graph of a node; an equal constant of this step is shared.
    pub(super) fn constant(&mut self, node: Node, what: &str, data: TensorData) -> Value {
        self.inserter.move_before(node);
        self.inserter.constant(what, data)
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
        if !matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16) {
            return refuse(format!("`{what}` of element type {dtype}"));
        }
        self.inserter.move_before(node);
        Ok(self.inserter.scalar(what, dtype, f64::from(x))?)
    }

    /// A list attribute as an operand. In a function it may be the function's own attribute, which a Constant node
    /// makes an operand.
    pub(super) fn list(
        &mut self,
        node: Node,
        what: &'static str,
        value: AttrValue,
    ) -> Result<Value, Refused> {
        match value {
            AttrValue::Ints(list) => Ok(self.ints(node, what, &list)),
            AttrValue::Int(x) => Ok(self.ints(node, what, &[x])),
            AttrValue::Floats(list) => Ok(self.floats(node, what, &list)),
            AttrValue::Reference { kind: AttrKind::Ints, name } if self.opset >= 12 => {
                let attrs = [("value_ints", AttrValue::Reference { kind: AttrKind::Ints, name })];
                self.add(At::Before(node), OpKind::Constant, &[], &attrs, what)
            }
            other => refuse(format!("`{what}` as an operand: {:?}", other.kind())),
        }
    }

    /// A new node with one result, of the opset that the step leads to.
    pub(super) fn add(
        &mut self,
        at: At,
        kind: OpKind,
        operands: &[Value],
        attrs: &[(&'static str, AttrValue)],
        what: &'static str,
    ) -> Result<Value, Refused> {
        match at {
            At::Before(node) => self.inserter.move_before(node),
            At::After(node) => self.inserter.move_after(node),
        }
        let spec = NodeSpec::new(kind, operands).suffix(what);
        let spec = attrs.iter().fold(spec, |spec, (name, value)| spec.attr(*name, value.clone()));
        let [value] = self.inserter.insert(spec)?;
        Ok(value)
    }

    /// Changes a node to the operator that replaced its own.
    pub(super) fn rename(&mut self, node: Node, kind: OpKind) -> Result<(), Refused> {
        self.inserter.move_before(node);
        let schema = self.inserter.schema(kind)?;
        self.inserter.module.set_op(node, Op::Schema(schema));
        Ok(())
    }

    /// Redirects the readers of `old` to `new`, in the graph and outside, except the node that makes `new` from
    /// it. The name goes with the readers, so that outputs keep theirs; the node of `old` gets it if its path
    /// was that name.
    pub(super) fn take_over(&mut self, old: Value, new: Value, what: &str) {
        self.inserter.module.replace_value(old, new);
        let ty = self.inserter.module.value(old).ty.clone();
        self.inserter.module.set_type(new, ty);
        self.inserter.module.set_type(old, Type::Unknown);
        let Some(name) = self.inserter.module.value(old).name else { return };
        let inner = format!("{}.{what}", self.inserter.module.text(name));
        let inner = self.inserter.module.fresh_name(&inner);
        if let Some((node, 0)) = self.inserter.module.producer(old)
            && self.inserter.module.node(node).name.is_none()
        {
            self.inserter.module.set_node_name(node, Some(name));
        }
        self.inserter.module.set_value_name(old, inner);
        self.inserter.module.set_value_name(new, name);
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
