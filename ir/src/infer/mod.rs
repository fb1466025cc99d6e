//! Type and shape inference.
//!
//! [`infer`] finds the type of every value and changes nothing, [`infer_module`] stores the types in the
//! module. Both start from the graph inputs and constants alone: `value_info` of a file is never read. Element
//! types follow from the schemas: a result whose formal names a type variable has the type its operands bind to
//! it. Shapes, and element types that an attribute names, come from one function per family of operators. An
//! operator without a family function is inferred by its schema, with unknown shapes; [`is_inferred`] is false
//! for it.
//!
//! Shapes are often computed inside the graph (Shape → Gather → Concat → Reshape), so small integer values are
//! followed too: [`Facts`] has, per value, its elements as far as they are known, as numbers or symbolic dims
//! ([`Int`]).

mod arithmetic;
mod attention;
mod calls;
mod cast;
mod contrib;
mod control;
mod declared;
mod dispatch;
mod driver;
mod elementwise;
mod extents;
mod gather;
mod image;
mod int;
mod join;
mod linear;
mod ml;
mod norm;
mod optimizer;
mod quantize;
mod recurrent;
mod reduce;
mod reshape;
mod sequence;
mod signal;
pub(crate) mod size;
mod source;
#[cfg(test)]
mod tests;
mod window;

pub use calls::{CallAttrs, Defaults};
pub use dispatch::is_inferred;
pub(crate) use driver::check_new;
pub use driver::describe;
pub use driver::{InferError, check_node, infer, infer_actual, infer_module, misfit};
pub use int::Int;

use crate::entity::SecondaryMap;
use crate::views::{NodeView, OpError, Part};
use crate::{DType, Dim, Module, Shape, Type, Value};
use smallvec::SmallVec;
use std::sync::Arc;

/// Facts of inference besides types: the elements of small integer tensors of rank 0 or 1.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    ints: SecondaryMap<Value, Option<Arc<[Int]>>>,
    /// The attributes of the call whose function body is being inferred; `None` outside functions.
    call_attrs: Option<CallAttrs>,
}

impl Facts {
    /// The elements of a value as far as known.
    pub fn ints(&self, value: Value) -> Option<&[Int]> {
        // A reference into the map: `SecondaryMap` hands out the default for what was never written.
        self.ints[value].as_deref()
    }
    /// Remembers the elements of a value.
    pub fn set_ints(&mut self, value: Value, ints: Vec<Int>) {
        self.ints[value] = Some(ints.into());
    }
    /// The attributes of the call whose function body is being inferred; `None` outside functions.
    pub fn call_attrs(&self) -> Option<&CallAttrs> {
        self.call_attrs.as_ref()
    }
    /// True if the body of a function is being inferred for a call.
    pub fn in_call(&self) -> bool {
        self.call_attrs.is_some()
    }
}

/// The inferred types, beside the types in the module.
#[derive(Clone, Debug, Default)]
pub struct Types(SecondaryMap<Value, Option<Type>>);

impl Types {
    /// No types yet, with room for all values of a module.
    fn with_room_for(module: &Module) -> Types {
        Types(SecondaryMap::with_capacity(module.n_values()))
    }
    /// The type of a value: the inferred type, or the type in the module for constants, inputs of the model,
    /// and results of unknown operators.
    pub fn of<'a>(&'a self, module: &'a Module, value: Value) -> &'a Type {
        self.0[value].as_ref().unwrap_or(&module.value(value).ty)
    }
    /// True if inference has reached a value.
    pub fn has(&self, value: Value) -> bool {
        self.0[value].is_some()
    }
    fn set(&mut self, value: Value, ty: Type) {
        self.0[value] = Some(ty);
    }
    /// Stores the inferred types in the module.
    pub fn apply(self, module: &mut Module) {
        for (value, ty) in self.0.into_entries() {
            if let Some(ty) = ty {
                module.set_type(value, ty);
            }
        }
    }
}

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

/// The error of an operand whose shape does not fit.
pub(crate) fn shape_error(operand: usize, expected: impl Into<String>, found: &[Dim]) -> OpError {
    OpError {
        part: Part::Operand(operand),
        expected: expected.into(),
        found: format!("shape {}", show(found)),
    }
}

/// Dims for a message: `[2, ?, 3]`; symbolic dims show as `?` here, messages have no symbol table.
pub(crate) fn show(dims: &[Dim]) -> String {
    /// Dims that are shown before the rest is counted.
    const SHOWN: usize = 16;
    let known = |d: &Dim| d.known().map_or("?".into(), |n| n.to_string());
    let mut items: Vec<String> = dims.iter().take(SHOWN).map(known).collect();
    if dims.len() > SHOWN {
        items.push(format!("… and {} more", dims.len() - SHOWN));
    }
    format!("[{}]", items.join(", "))
}
