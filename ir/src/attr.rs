//! Attributes of nodes, stored as data, so that unknown attributes survive.

use crate::dtype::DType;
use crate::entity::{GraphId, Symbol};
use crate::op::AttrKind;
use crate::tensor::{SparseData, TensorData};
use crate::ty::Type;
use std::sync::Arc;

/// The value of an attribute.
#[derive(Clone, Debug)]
pub enum AttrValue {
    /// A float.
    Float(f32),
    /// An integer.
    Int(i64),
    /// A string of bytes, UTF-8 by convention.
    String(Box<[u8]>),
    /// A tensor.
    Tensor(Arc<TensorData>),
    /// A body.
    Graph(GraphId),
    /// A sparse tensor.
    SparseTensor(Arc<SparseData>),
    /// A type.
    Type(Type),
    /// Floats.
    Floats(Vec<f32>),
    /// Integers.
    Ints(Vec<i64>),
    /// Strings.
    Strings(Vec<Box<[u8]>>),
    /// Tensors.
    Tensors(Vec<Arc<TensorData>>),
    /// Bodies.
    Graphs(Vec<GraphId>),
    /// Sparse tensors.
    SparseTensors(Vec<Arc<SparseData>>),
    /// Types.
    Types(Vec<Type>),
    /// Inside a function body: the value of the function's attribute of this name.
    Reference {
        /// The kind of the value.
        kind: AttrKind,
        /// The function's attribute.
        name: Symbol,
    },
}

impl AttrValue {
    /// The kind of this value.
    pub fn kind(&self) -> AttrKind {
        match self {
            AttrValue::Float(_) => AttrKind::Float,
            AttrValue::Int(_) => AttrKind::Int,
            AttrValue::String(_) => AttrKind::String,
            AttrValue::Tensor(_) => AttrKind::Tensor,
            AttrValue::Graph(_) => AttrKind::Graph,
            AttrValue::SparseTensor(_) => AttrKind::SparseTensor,
            AttrValue::Type(_) => AttrKind::Type,
            AttrValue::Floats(_) => AttrKind::Floats,
            AttrValue::Ints(_) => AttrKind::Ints,
            AttrValue::Strings(_) => AttrKind::Strings,
            AttrValue::Tensors(_) => AttrKind::Tensors,
            AttrValue::Graphs(_) => AttrKind::Graphs,
            AttrValue::SparseTensors(_) => AttrKind::SparseTensors,
            AttrValue::Types(_) => AttrKind::Types,
            AttrValue::Reference { kind, .. } => *kind,
        }
    }

    /// The bodies in this value.
    pub fn graphs(&self) -> &[GraphId] {
        match self {
            AttrValue::Graph(g) => std::slice::from_ref(g),
            AttrValue::Graphs(gs) => gs,
            _ => &[],
        }
    }
}

impl From<i64> for AttrValue {
    fn from(value: i64) -> AttrValue {
        AttrValue::Int(value)
    }
}

impl From<f32> for AttrValue {
    fn from(value: f32) -> AttrValue {
        AttrValue::Float(value)
    }
}

impl From<&str> for AttrValue {
    fn from(value: &str) -> AttrValue {
        AttrValue::String(value.as_bytes().into())
    }
}

impl From<Vec<i64>> for AttrValue {
    fn from(list: Vec<i64>) -> AttrValue {
        AttrValue::Ints(list)
    }
}

impl From<Vec<f32>> for AttrValue {
    fn from(list: Vec<f32>) -> AttrValue {
        AttrValue::Floats(list)
    }
}

impl From<Arc<TensorData>> for AttrValue {
    fn from(data: Arc<TensorData>) -> AttrValue {
        AttrValue::Tensor(data)
    }
}

/// The number of the element type, as `to` of Cast has it.
impl From<DType> for AttrValue {
    fn from(dtype: DType) -> AttrValue {
        AttrValue::Int(i64::from(dtype.number()))
    }
}

/// An attribute of a node.
#[derive(Clone, Debug)]
pub struct Attr {
    /// Its name.
    pub name: Symbol,
    /// Its value.
    pub value: AttrValue,
    /// True if an edit verb changed it since it was read.
    pub dirty: bool,
}
