//! Nodes, with facts and decisions about them.

use super::reason::Reason;
use crate::attr::Attr;
use crate::dtype::DType;
use crate::entity::{FunctionId, GraphId, Node, Symbol, Value};
use crate::op::{Class, OpSchema};
use petgraph::stable_graph::NodeIndex;
use smallvec::SmallVec;
use std::sync::Arc;

/// A vertex of the use graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vertex {
    /// A formal input, capture or constant, or a result other than the first, so that the readers of each
    /// result are found without visiting the readers of other results.
    Source(Value),
    /// A node, and its first result.
    Node(Node),
}

/// An edge of the use graph: which result is read as which operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Use {
    /// Slot of the value among its producer's results; 0 for sources.
    pub result: u32,
    /// Slot among the reader's operands.
    pub operand: u32,
}

/// Operator of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// An operator of the table, at the version the opset selects.
    Schema(&'static OpSchema),
    /// A call of a model-local function.
    Call(FunctionId),
    /// An unknown operator: preserved, its results of unknown type.
    Custom {
        /// Its domain.
        domain: Symbol,
        /// Its name.
        name: Symbol,
        /// Its overload, mostly empty.
        overload: Symbol,
    },
}

/// Origin of a cast.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Provenance {
    /// The author of the model: the node is part of the program.
    #[default]
    User,
    /// A precision pass, now or in an earlier run: may be reconsidered.
    Inserted,
}

/// Decision for one type variable of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The precision class.
    pub class: Class,
    /// The element type chosen for the variable; `None` before `assign`.
    pub precision: Option<DType>,
    /// The rule that decided, with its evidence. Decisions share reasons.
    pub reason: Arc<Reason>,
}

/// Parts of a node that changed since its message was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dirty {
    /// Operands, or names of operands.
    pub operands: bool,
    /// Results, or names of results.
    pub results: bool,
    /// Attributes (which ones: [`Attr::dirty`](crate::attr::Attr::dirty)).
    pub attrs: bool,
    /// Name, operator or metadata.
    pub header: bool,
    /// The function it calls, or the name of that.
    pub callee: bool,
}

impl Dirty {
    /// True if anything changed.
    pub fn any(self) -> bool {
        self.operands || self.results || self.attrs || self.header || self.callee
    }
}

/// One node.
#[derive(Clone, Debug)]
pub struct NodeData {
    /// The operator.
    pub op: Op,
    /// Its name, if it has one.
    pub name: Option<Symbol>,
    /// The graph it is in.
    pub graph: GraphId,
    pub(crate) operands: SmallVec<[Option<Value>; 4]>,
    /// Operands from this slot on are the captures of the node's bodies.
    pub(crate) n_formal: u32,
    pub(crate) results: SmallVec<[Option<Value>; 2]>,
    pub(crate) attrs: Vec<Attr>,
    /// One per type variable of the schema once classified; empty before, and for calls and custom operators.
    pub decisions: SmallVec<[Decision; 1]>,
    /// The origin.
    pub provenance: Provenance,
    /// Metadata (`metadata_props`), in source order.
    pub metadata: Vec<(Symbol, Symbol)>,
    /// The message of the source file that it came from; the reader has the table.
    pub origin: Option<u32>,
    /// The parts that changed since the message was read.
    pub dirty: Dirty,
    pub(crate) vertex: NodeIndex,
    pub(crate) prev: Option<Node>,
    pub(crate) next: Option<Node>,
    pub(crate) alive: bool,
}

impl NodeData {
    /// All operands: the formal operands, then the captures of the bodies. `None` is an absent optional
    /// operand.
    #[inline]
    pub fn operands(&self) -> &[Option<Value>] {
        &self.operands
    }
    /// The operands that the operator itself has.
    #[inline]
    pub fn formal_operands(&self) -> &[Option<Value>] {
        &self.operands[..self.n_formal as usize]
    }
    /// The number of operands of the operator itself; the rest are captures.
    #[inline]
    pub fn n_formal(&self) -> usize {
        self.n_formal as usize
    }
    /// Operand `i`, if present and formal.
    #[inline]
    pub fn operand(&self, i: usize) -> Option<Value> {
        self.formal_operands().get(i).copied().flatten()
    }
    /// Results; `None` is an absent optional result.
    #[inline]
    pub fn results(&self) -> &[Option<Value>] {
        &self.results
    }
    /// Result `i`, if present.
    #[inline]
    pub fn result(&self, i: usize) -> Option<Value> {
        self.results.get(i).copied().flatten()
    }
    /// Attributes, in source order.
    #[inline]
    pub fn attrs(&self) -> &[Attr] {
        &self.attrs
    }
    /// The attribute called `name`.
    pub fn attr(&self, name: Symbol) -> Option<&Attr> {
        self.attrs.iter().find(|a| a.name == name)
    }
    /// The schema, unless it is a call or a custom operator.
    #[inline]
    pub fn schema(&self) -> Option<&'static OpSchema> {
        match self.op {
            Op::Schema(s) => Some(s),
            Op::Call(_) | Op::Custom { .. } => None,
        }
    }
    /// The bodies, in order of the attributes.
    pub fn bodies(&self) -> impl Iterator<Item = GraphId> + '_ {
        self.attrs.iter().flat_map(|a| a.value.graphs().iter().copied())
    }
    /// True if the node is still in its graph.
    #[inline]
    pub fn is_alive(&self) -> bool {
        self.alive
    }
    /// The node after it in program order.
    #[inline]
    pub fn next(&self) -> Option<Node> {
        self.next
    }
}
