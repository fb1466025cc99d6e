//! Constructors of the rows of the generated table.
//!
//! They reduce a row to the facts that differ: the domain and name follow from the kind, the least and greatest
//! number of actuals from the formals (the generator refuses to write a table for which they do not).

use super::generated::OpKind;
use super::schema::{
    Arity, AttrDefault, AttrKind, AttrSchema, Formal, FormalType, OpSchema, TypeSet, TypeVar,
};

/// An operator that ONNX defines in prose only.
pub(super) const fn op(
    kind: OpKind,
    since: u16,
    type_vars: &'static [TypeVar],
    inputs: &'static [Formal],
    outputs: &'static [Formal],
    attrs: &'static [AttrSchema],
) -> OpSchema {
    OpSchema {
        kind,
        domain: kind.domain(),
        name: kind.name(),
        since,
        deprecated: false,
        beside_onnx: false,
        type_vars,
        inputs,
        outputs,
        n_inputs: limits(inputs),
        n_outputs: limits(outputs),
        attrs,
        is_function: false,
        declared: None,
    }
}

/// An operator that ONNX defines by a function body as well.
pub(super) const fn function(
    kind: OpKind,
    since: u16,
    type_vars: &'static [TypeVar],
    inputs: &'static [Formal],
    outputs: &'static [Formal],
    attrs: &'static [AttrSchema],
) -> OpSchema {
    let mut schema = op(kind, since, type_vars, inputs, outputs, attrs);
    schema.is_function = true;
    schema
}

/// A version that is marked as deprecated by ONNX, or by ONNX Runtime if only that has it.
pub(super) const fn deprecated(mut schema: OpSchema) -> OpSchema {
    schema.deprecated = true;
    schema
}

/// A version in ONNX's domain that ONNX Runtime has and ONNX does not.
pub(super) const fn beside(mut schema: OpSchema) -> OpSchema {
    schema.beside_onnx = true;
    schema
}

const fn limits(formals: &[Formal]) -> (u32, u32) {
    let (mut least, mut greatest) = (0, 0);
    let mut i = 0;
    while i < formals.len() {
        match formals[i].arity {
            Arity::Single => {
                greatest += 1;
                least = greatest;
            }
            Arity::Optional => greatest += 1,
            Arity::Variadic { min, .. } => {
                least = greatest + min as u32;
                greatest = u32::MAX;
            }
        }
        i += 1;
    }
    (least, greatest)
}

/// The set of dense tensors whose element types are in the mask.
pub(super) const fn tensors(mask: u32) -> TypeSet {
    TypeSet { tensor: mask, ..TypeSet::EMPTY }
}

/// A type variable.
pub(super) const fn var(name: &'static str, allowed: TypeSet) -> TypeVar {
    TypeVar { name, allowed }
}

/// A formal that takes exactly one actual.
pub(super) const fn one(name: &'static str, var: u8) -> Formal {
    Formal { name, ty: FormalType::Var(var), arity: Arity::Single }
}

/// A formal that takes exactly one actual, of a type bound to no variable.
pub(super) const fn one_is(name: &'static str, types: TypeSet) -> Formal {
    Formal { name, ty: FormalType::Is(types), arity: Arity::Single }
}

/// A formal that may be left out.
pub(super) const fn opt(name: &'static str, var: u8) -> Formal {
    Formal { name, ty: FormalType::Var(var), arity: Arity::Optional }
}

/// A formal that may be left out, of a type bound to no variable.
pub(super) const fn opt_is(name: &'static str, types: TypeSet) -> Formal {
    Formal { name, ty: FormalType::Is(types), arity: Arity::Optional }
}

/// A formal that takes `min` or more actuals of one type.
pub(super) const fn many(name: &'static str, var: u8, min: u8) -> Formal {
    Formal { name, ty: FormalType::Var(var), arity: Arity::Variadic { min, homogeneous: true } }
}

/// A formal that takes `min` or more actuals, each of a type of its own.
pub(super) const fn mixed(name: &'static str, var: u8, min: u8) -> Formal {
    Formal { name, ty: FormalType::Var(var), arity: Arity::Variadic { min, homogeneous: false } }
}

/// An attribute that must be present.
pub(super) const fn required(name: &'static str, kind: AttrKind) -> AttrSchema {
    AttrSchema { name, kind, required: true, default: AttrDefault::None }
}

/// An attribute whose absence has a meaning of its own.
pub(super) const fn absent(name: &'static str, kind: AttrKind) -> AttrSchema {
    AttrSchema { name, kind, required: false, default: AttrDefault::None }
}

/// An integer with a default.
pub(super) const fn int(name: &'static str, value: i64) -> AttrSchema {
    AttrSchema { name, kind: AttrKind::Int, required: false, default: AttrDefault::Int(value) }
}

/// A float with a default.
pub(super) const fn float(name: &'static str, value: f32) -> AttrSchema {
    AttrSchema { name, kind: AttrKind::Float, required: false, default: AttrDefault::Float(value) }
}

/// A string with a default.
pub(super) const fn string(name: &'static str, value: &'static str) -> AttrSchema {
    AttrSchema { name, kind: AttrKind::String, required: false, default: AttrDefault::String(value) }
}

/// Integers with a default.
pub(super) const fn ints(name: &'static str, value: &'static [i64]) -> AttrSchema {
    AttrSchema { name, kind: AttrKind::Ints, required: false, default: AttrDefault::Ints(value) }
}

/// Strings with a default.
pub(super) const fn strings(name: &'static str, value: &'static [&'static str]) -> AttrSchema {
    AttrSchema { name, kind: AttrKind::Strings, required: false, default: AttrDefault::Strings(value) }
}
