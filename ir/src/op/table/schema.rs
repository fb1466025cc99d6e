//! Schema of an operator at one version: the types of the generated table.
//!
//! The table itself is `generated.rs`, written by `scripts/generate_op_table.py` from the schemas of the pinned
//! `onnx` package; nothing in it is written by hand.

use super::super::class::Class;
use super::generated::OpKind;
use crate::dtype::DType;
use crate::ty::Type;

/// A set of types that a formal or a type variable admits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TypeSet {
    /// Element types admitted as `tensor(T)`: bit `n` is ONNX's number `n`.
    pub tensor: u32,
    /// Element types admitted as `seq(tensor(T))`.
    pub sequence: u32,
    /// Element types admitted as `optional(tensor(T))`.
    pub optional: u32,
    /// Element types admitted as `optional(seq(tensor(T)))`.
    pub optional_sequence: u32,
    /// All other admitted types in ONNX's spelling, such as `seq(map(int64, float))` or `sparse_tensor(float)`.
    pub other: &'static [&'static str],
}

impl TypeSet {
    /// The set that admits nothing.
    pub const EMPTY: TypeSet =
        TypeSet { tensor: 0, sequence: 0, optional: 0, optional_sequence: 0, other: &[] };

    /// True if the set admits a dense tensor of this element type.
    pub fn has_tensor(&self, dtype: DType) -> bool {
        bit(self.tensor, dtype)
    }

    /// True if the set admits this element type inside a sequence or optional.
    pub fn has_contained(&self, dtype: DType) -> bool {
        bit(self.sequence | self.optional | self.optional_sequence, dtype)
    }

    /// True if the set admits `ty`; shapes do not matter and an unknown type is admitted wherever it stands.
    pub fn admits(&self, ty: &Type) -> bool {
        let by_mask = match ty {
            Type::Unknown => true,
            Type::Tensor(t) => bit(self.tensor, t.dtype),
            Type::Sequence(t) => element_in(self.sequence, t),
            Type::Optional(t) => match &**t {
                Type::Sequence(t) => element_in(self.optional_sequence, t),
                Type::Unknown => self.optional != 0 || self.optional_sequence != 0,
                Type::Tensor(t) => bit(self.optional, t.dtype),
                Type::Optional(_) | Type::Sparse(_) | Type::Map { .. } | Type::Opaque { .. } => false,
            },
            Type::Sparse(_) | Type::Map { .. } | Type::Opaque { .. } => false,
        };
        by_mask || self.other.iter().any(|text| spells(text, ty))
    }

    /// The element types admitted as dense tensors, in ONNX's numbering.
    pub fn tensor_dtypes(&self) -> impl Iterator<Item = DType> + use<> {
        let bits = self.tensor;
        DType::ALL.iter().copied().filter(move |&d| bit(bits, d))
    }
}

fn bit(set: u32, dtype: DType) -> bool {
    u32::try_from(dtype.number()).is_ok_and(|n| n < 32 && set & (1 << n) != 0)
}

/// A type variable of a schema: formals that name it have the same type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TypeVar {
    /// ONNX's name, such as `T` or `T1`.
    pub name: &'static str,
    /// The types it may stand for.
    pub allowed: TypeSet,
}

/// The type of a formal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FormalType {
    /// The type variable with this index in [`OpSchema::type_vars`].
    Var(u8),
    /// One of these types, bound to nothing else.
    Is(TypeSet),
}

/// The number of actuals of a formal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arity {
    /// Exactly one.
    Single,
    /// At most one.
    Optional,
    /// Any number, at least the given one; always the last formal.
    Variadic {
        /// Least number of actuals.
        min: u8,
        /// True if all actuals have the same type.
        homogeneous: bool,
    },
}

/// A formal operand or result of a schema.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Formal {
    /// ONNX's name, such as `X` or `scale`.
    pub name: &'static str,
    /// Its type.
    pub ty: FormalType,
    /// The number of actuals.
    pub arity: Arity,
}

/// The kind of an attribute's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names of ONNX's AttributeProto.AttributeType")]
pub enum AttrKind {
    Float,
    Int,
    String,
    Tensor,
    Graph,
    SparseTensor,
    Type,
    Floats,
    Ints,
    Strings,
    Tensors,
    Graphs,
    SparseTensors,
    Types,
}

impl AttrKind {
    /// Its spelling in the text form and in JSON graphs.
    pub fn as_str(self) -> &'static str {
        match self {
            AttrKind::Float => "float",
            AttrKind::Int => "int",
            AttrKind::String => "string",
            AttrKind::Tensor => "tensor",
            AttrKind::Graph => "graph",
            AttrKind::SparseTensor => "sparse_tensor",
            AttrKind::Type => "type",
            AttrKind::Floats => "floats",
            AttrKind::Ints => "ints",
            AttrKind::Strings => "strings",
            AttrKind::Tensors => "tensors",
            AttrKind::Graphs => "graphs",
            AttrKind::SparseTensors => "sparse_tensors",
            AttrKind::Types => "types",
        }
    }
}

/// The value an absent attribute has.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum AttrDefault {
    /// No default: absent means absent.
    None,
    /// An integer.
    Int(i64),
    /// A float.
    Float(f32),
    /// A string.
    String(&'static str),
    /// Integers.
    Ints(&'static [i64]),
    /// Floats.
    Floats(&'static [f32]),
    /// Strings.
    Strings(&'static [&'static str]),
}

/// An attribute of a schema.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AttrSchema {
    /// Its name.
    pub name: &'static str,
    /// The kind of its value.
    pub kind: AttrKind,
    /// True if it must be present.
    pub required: bool,
    /// The meaning of an absent attribute.
    pub default: AttrDefault,
}

/// One operator at one version.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OpSchema {
    /// The operator, the same for all its versions.
    pub kind: OpKind,
    /// Its domain; empty for ai.onnx.
    pub domain: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The opset that introduced this version.
    pub since: u16,
    /// True if this version is deprecated: the operator is gone, or a later version has another meaning
    /// ([`OpSchema::is_gone`] tells which).
    pub deprecated: bool,
    /// True if only ONNX Runtime has this version in a domain of ONNX's.
    pub beside_onnx: bool,
    /// Type variables, in ONNX's order.
    pub type_vars: &'static [TypeVar],
    /// Formal operands.
    pub inputs: &'static [Formal],
    /// Formal results.
    pub outputs: &'static [Formal],
    /// Least and greatest number of operands; trailing ones may be left off down to the least. No limit is
    /// `u32::MAX`.
    pub n_inputs: (u32, u32),
    /// Least and greatest number of results.
    pub n_outputs: (u32, u32),
    /// Attributes, sorted by name.
    pub attrs: &'static [AttrSchema],
    /// True if ONNX defines the operator by a function body as well.
    pub is_function: bool,
    /// The declaration by the user, if the operator is in no table ([`Signature`](crate::op::Signature)).
    pub declared: Option<&'static Declared>,
}

impl OpSchema {
    /// True if the operator does not exist from this version on. GroupNormalization 18 is deprecated and not gone:
    /// version 21 replaced it by another meaning, and runtimes compute it as it was.
    pub fn is_gone(&self) -> bool {
        self.deprecated && self.kind.newest().deprecated
    }
    /// True if a model with this version is valid for ONNX Runtime only: ONNX does not have the version, or
    /// deprecates it.
    pub fn is_runtime_only(&self) -> bool {
        self.beside_onnx || self.deprecated && !self.is_gone()
    }
    /// The formal of operand `i`, a variadic one repeated.
    pub fn input(&self, i: usize) -> Option<&'static Formal> {
        formal(self.inputs, i)
    }
    /// The formal of result `i`, a variadic one repeated.
    pub fn output(&self, i: usize) -> Option<&'static Formal> {
        formal(self.outputs, i)
    }
    /// The attribute called `name`.
    pub fn attr(&self, name: &str) -> Option<&'static AttrSchema> {
        self.attrs.binary_search_by(|a| a.name.cmp(name)).ok().map(|i| &self.attrs[i])
    }
    /// The types the formal admits, whether through a variable or directly.
    pub fn types_of(&self, formal: &Formal) -> TypeSet {
        match formal.ty {
            FormalType::Var(v) => self.type_vars[usize::from(v)].allowed,
            FormalType::Is(set) => set,
        }
    }
}

/// True if a mask of element types admits a tensor of type `ty`.
fn element_in(set: u32, ty: &Type) -> bool {
    match ty {
        Type::Tensor(t) => bit(set, t.dtype),
        Type::Unknown => set != 0,
        Type::Sparse(_) | Type::Sequence(_) | Type::Optional(_) | Type::Map { .. } | Type::Opaque { .. } => {
            false
        }
    }
}

/// True if ONNX's spelling of a type, such as `seq(map(int64, float))`, is that of `ty`.
fn spells(text: &str, ty: &Type) -> bool {
    let inside = |prefix: &str| text.strip_prefix(prefix)?.strip_suffix(')');
    match ty {
        Type::Unknown => true,
        Type::Tensor(t) => inside("tensor(").unwrap_or(text) == t.dtype.onnx_name(),
        Type::Sparse(t) => inside("sparse_tensor(") == Some(t.dtype.onnx_name()),
        Type::Sequence(t) => inside("seq(").is_some_and(|text| spells(text, t)),
        Type::Optional(t) => inside("optional(").is_some_and(|text| spells(text, t)),
        Type::Map { key, value } => inside("map(")
            .and_then(|text| text.split_once(", "))
            .is_some_and(|(k, v)| k == key.onnx_name() && spells(v, value)),
        Type::Opaque { .. } => false,
    }
}

fn formal(formals: &'static [Formal], i: usize) -> Option<&'static Formal> {
    formals.get(i).or_else(|| formals.last().filter(|f| matches!(f.arity, Arity::Variadic { .. })))
}

/// The side of an operator that a formal is on: ONNX uses a name once per side.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Side {
    /// A formal operand.
    Operand,
    /// A formal result.
    Result,
}

pub(in crate::op) fn formals(schema: &'static OpSchema, side: Side) -> &'static [Formal] {
    match side {
        Side::Operand => schema.inputs,
        Side::Result => schema.outputs,
    }
}

/// The formals that name a type variable, with their side and index.
pub(in crate::op) fn formals_of(
    schema: &'static OpSchema,
    var: u8,
) -> impl Iterator<Item = (Side, usize, &'static Formal)> {
    [Side::Operand, Side::Result]
        .into_iter()
        .flat_map(move |side| formals(schema, side).iter().enumerate().map(move |(i, f)| (side, i, f)))
        .filter(move |(_, _, formal)| formal.ty == FormalType::Var(var))
}

/// The formal of another version of the operator that has this formal's meaning: that of the same name, or, as
/// versions rename formals, that in the same place.
pub(in crate::op) fn counterpart(
    other: &'static OpSchema,
    side: Side,
    index: usize,
    formal: &Formal,
) -> Option<&'static Formal> {
    let formals = formals(other, side);
    formals.iter().find(|f| f.name == formal.name).or_else(|| formals.get(index))
}

/// Additional facts of a schema that comes from a signature.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Declared {
    /// The class of the operator.
    pub class: Class,
    /// The classes of formal operands with their own class.
    pub inputs: &'static [Option<Class>],
    /// The classes of formal results with their own class.
    pub outputs: &'static [Option<Class>],
    /// For each formal result the formal operand whose shape it has.
    pub shapes: &'static [Option<u8>],
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::lookup::{Lookup, lookup};
    use crate::ty::Shape;

    fn tensor(dtype: DType) -> Type {
        Type::tensor(dtype, Shape::unknown())
    }

    fn sequence(of: Type) -> Type {
        Type::Sequence(Box::new(of))
    }

    fn optional(of: Type) -> Type {
        Type::Optional(Box::new(of))
    }

    fn input_types(domain: &str, name: &str, opset: u16) -> TypeSet {
        let Lookup::Found(schema) = lookup(domain, name, opset) else { panic!("{name} at {opset}") };
        schema.types_of(&schema.inputs[0])
    }

    #[test]
    fn containers_are_told_apart() {
        let identity = input_types("", "Identity", 16);
        assert!(identity.admits(&tensor(DType::BF16)));
        assert!(identity.admits(&sequence(tensor(DType::F16))));
        assert!(!identity.admits(&sequence(tensor(DType::BF16))));
        assert!(identity.admits(&optional(sequence(tensor(DType::F32)))));
        assert!(identity.admits(&optional(Type::Unknown)) && identity.admits(&sequence(Type::Unknown)));
        assert!(!identity.admits(&sequence(sequence(tensor(DType::F32)))));
        assert!(!identity.admits(&Type::Sparse(crate::TensorType::new(DType::F32, Shape::unknown()))));
        let relu = input_types("", "Relu", 14);
        assert!(!relu.admits(&sequence(tensor(DType::F32))) && !relu.admits(&sequence(Type::Unknown)));
    }

    #[test]
    fn maps_are_compared_by_key_and_value() {
        let map = |key, value| Type::Map { key, value: Box::new(tensor(value)) };
        let cast_map = input_types("ai.onnx.ml", "CastMap", 1);
        assert!(
            cast_map.admits(&map(DType::I64, DType::F32)) && cast_map.admits(&map(DType::I64, DType::String))
        );
        assert!(!cast_map.admits(&map(DType::String, DType::F32)));
        assert!(!cast_map.admits(&sequence(map(DType::I64, DType::F32))));
    }
}
