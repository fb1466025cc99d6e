//! Inferred types of the results of a node, and the functions that infer them.

use crate::dtype::DType;
use crate::facts::{Facts, Types};
use crate::int::Int;
use crate::ty::{Shape, Type};
use crate::views::{NodeView, OpError};
use smallvec::SmallVec;

/// Result of inferring a module.
#[derive(Clone, Debug, Default)]
pub struct Inference {
    /// The type of every value.
    pub types: Types,
    /// The known elements.
    pub facts: Facts,
}

/// Inferred types of the results of a node. It starts with the element types of the schema and unknown shapes;
/// a family function only adds facts.
#[derive(Clone, Debug)]
pub struct Inferred {
    /// One type per result, absent ones included.
    pub types: SmallVec<[Type; 2]>,
    /// Elements of result 0, if it is an integer tensor of rank 0 or 1 and something is known of them.
    pub ints: Option<Vec<Int>>,
}

impl Inferred {
    /// Sets the shape of a result, if it is there; its element type stays.
    pub fn shape(&mut self, i: usize, shape: Shape) {
        if let Some(Type::Tensor(t)) = self.types.get_mut(i) {
            t.shape = shape;
        }
    }
    /// Sets element type and shape of a result, if it is there.
    pub fn tensor(&mut self, i: usize, dtype: DType, shape: Shape) {
        self.ty(i, Type::tensor(dtype, shape));
    }
    /// Sets the element type of a tensor result, if it is there; its shape stays.
    pub fn dtype(&mut self, i: usize, dtype: DType) {
        let shape = self.types.get(i).and_then(Type::shape).cloned().unwrap_or_default();
        self.tensor(i, dtype, shape);
    }
    /// Sets the type of a result, if it is there.
    pub fn ty(&mut self, i: usize, ty: Type) {
        if let Some(slot) = self.types.get_mut(i) {
            *slot = ty;
        }
    }
}

/// A family function: infers the results of the operators of a family.
pub(crate) type InferFn = fn(&NodeView<'_>, &mut Inferred) -> Result<(), OpError>;
