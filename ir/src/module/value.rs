//! Values, and where they come from.

use crate::entity::{GraphId, Node, Symbol};
use crate::tensor::{SparseData, TensorData};
use crate::ty::{Shape, TensorType, Type};
use petgraph::stable_graph::NodeIndex;
use std::sync::Arc;

/// The origin of a value.
#[derive(Clone, Debug)]
pub enum Def {
    /// A result of a node.
    Result {
        /// The node.
        node: Node,
        /// The number of the result.
        slot: u32,
    },
    /// A formal input of its graph.
    Input {
        /// The number of the input.
        slot: u32,
        /// The default value: an IR 3 initializer that is listed as input.
        default: Option<Payload>,
    },
    /// An operand of the node that owns the graph.
    Capture {
        /// The operand slot, at least [`NodeData::n_formal`](super::NodeData::n_formal).
        slot: u32,
    },
    /// A constant of its graph.
    Constant(Payload),
    /// Nowhere: it was erased.
    Erased,
}

/// The payload of a constant.
#[derive(Clone, Debug)]
pub enum Payload {
    /// A dense tensor.
    Dense(Arc<TensorData>),
    /// A sparse tensor.
    Sparse(Arc<SparseData>),
}

impl Payload {
    /// The dense payload, if it is one.
    pub fn dense(&self) -> Option<&Arc<TensorData>> {
        match self {
            Payload::Dense(data) => Some(data),
            Payload::Sparse(_) => None,
        }
    }
    /// The type of a value that it is all of.
    pub fn ty(&self) -> Type {
        match self {
            Payload::Dense(data) => Type::Tensor(TensorType { dtype: data.dtype(), shape: data.shape() }),
            Payload::Sparse(data) => {
                Type::Sparse(TensorType { dtype: data.values.dtype(), shape: Shape::known(&data.dims) })
            }
        }
    }
}

/// One value.
#[derive(Clone, Debug)]
pub struct ValueData {
    /// Its type.
    pub ty: Type,
    /// The origin of the value.
    pub def: Def,
    /// The name of the value; captures take the name of the captured value.
    pub name: Option<Symbol>,
    /// The graph it is in.
    pub graph: GraphId,
    /// Its vertex in the use graph, but for the first result of a node, whose vertex is the node's.
    pub(crate) vertex: Option<NodeIndex>,
    /// Metadata of an input or constant (`metadata_props` of its `value_info`), in source order.
    pub metadata: Vec<(Symbol, Symbol)>,
    /// The message of the source file that it came from (an initializer, an input); the reader has the table.
    pub origin: Option<u32>,
    /// True if name, type or payload changed since.
    pub dirty: bool,
    /// True if an edit took a reader from it. An unused constant that lost no reader is the author's.
    pub lost_reader: bool,
}
