//! Syntax tree of the lines of a text, before names are resolved.

use super::lexer::Span;
use crate::attr::{Attr, AttrValue};
use crate::dtype::DType;
use crate::entity::{GraphId, Symbol};
use crate::module::{Payload, Provenance};
use crate::op::Class;
use crate::ty::Type;
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

/// A name and where it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name {
    pub(super) symbol: Symbol,
    pub(super) span: Span,
}

/// A captured value: its name in the body, the capture operand it stands for if the name does not say it, and
/// its type if it is not that of the operand.
#[derive(Debug)]
pub(super) struct CaptureAst {
    pub(super) name: Name,
    pub(super) slot: Option<u32>,
    pub(super) ty: Option<Type>,
}

/// An input or constant.
#[derive(Debug)]
pub(super) struct SourceAst {
    pub(super) name: Name,
    pub(super) ty: Type,
    pub(super) payload: Option<Payload>,
    pub(super) metadata: Vec<(Symbol, Symbol)>,
}

/// One entry of `class=`, `prec=` or `why=`: for a variable, or for all.
#[derive(Debug)]
pub(super) struct Decided<T> {
    pub(super) var: Option<Symbol>,
    pub(super) what: T,
    pub(super) span: Span,
}

/// The part of a node line behind the types, without the name.
#[derive(Debug, Default)]
pub(super) struct Tail {
    pub(super) class: Vec<Decided<Class>>,
    pub(super) prec: Vec<Decided<DType>>,
    pub(super) why: Vec<Decided<(String, String)>>,
    pub(super) provenance: Provenance,
    pub(super) metadata: Vec<(Symbol, Symbol)>,
}

/// A node. Its bodies are among its attributes: graphs whose lines stand elsewhere.
#[derive(Debug)]
pub(super) struct NodeAst {
    pub(super) span: Span,
    pub(super) results: SmallVec<[Option<Name>; 2]>,
    pub(super) domain: Symbol,
    pub(super) op: Symbol,
    pub(super) overload: Symbol,
    pub(super) operands: SmallVec<[Option<Name>; 4]>,
    pub(super) captures: Vec<Option<Name>>,
    pub(super) attrs: Vec<(Symbol, AttrValue)>,
    pub(super) types: SmallVec<[Option<Type>; 1]>,
    pub(super) name: Option<Symbol>,
    pub(super) tail: Option<Box<Tail>>,
}

/// The lines of a graph.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pub(super) metadata: Vec<(Symbol, Symbol)>,
    pub(super) captures: Vec<CaptureAst>,
    pub(super) inputs: Vec<SourceAst>,
    pub(super) constants: Vec<SourceAst>,
    pub(super) nodes: Vec<NodeAst>,
    pub(super) outputs: Vec<(Name, Type)>,
    pub(super) states: Vec<(Name, Name)>,
    pub(super) roles: Vec<(Symbol, Vec<Name>)>,
    /// Values that broken lines define.
    pub(super) lost: Vec<Name>,
    /// True if a broken line does not say what it defines.
    pub(super) lost_unknown: bool,
}

/// A function.
#[derive(Debug)]
pub(super) struct FunctionAst {
    pub(super) span: Span,
    pub(super) domain: Symbol,
    pub(super) name: Symbol,
    pub(super) overload: Symbol,
    pub(super) graph: GraphId,
    pub(super) opsets: Vec<(Symbol, u16)>,
    pub(super) attrs: Vec<Symbol>,
    pub(super) attr_defaults: Vec<Attr>,
    /// The names of `attrs` and `attr_defaults`.
    pub(super) known_attrs: FxHashSet<Symbol>,
    pub(super) doc_string: Option<String>,
    pub(super) metadata: Vec<(Symbol, Symbol)>,
}

/// A node whose body is being read.
pub(super) struct Open {
    pub(super) node: NodeAst,
    /// The graph the node is in.
    pub(super) graph: GraphId,
    pub(super) attr: Symbol,
    /// The bodies so far, of an attribute that holds a list of them.
    pub(super) list: Option<Vec<GraphId>>,
    pub(super) body: GraphId,
    /// Braces open before the node.
    pub(super) start_depth: u32,
}

/// How far a node was read.
#[expect(clippy::large_enum_variant, reason = "almost all nodes are done at once, and moved into a list")]
pub(super) enum Step {
    /// To its end.
    Done(NodeAst),
    /// To the `{` of a body.
    Body(Box<Open>),
}
