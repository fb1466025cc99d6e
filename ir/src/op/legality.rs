//! Legality of lowering by schemas: if a type variable or formal may have a 16-bit format, and from which
//! operator set on.

use super::table::OpKind as K;
use super::table::{OpSchema, Side, TypeSet, counterpart, formals, formals_of};
use crate::dtype::DType;
use crate::ty::Type;

/// Legality of lowering a type variable or formal to a 16-bit format.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Legality {
    /// It admits f32 and the format.
    Legal,
    /// It never is f32, so there is nothing to lower.
    NotFloat,
    /// It admits f32 and not the format.
    NoSuchFormat {
        /// The first later operator set whose version of the operator admits both; `None` if there is none.
        first_opset_with_it: Option<u16>,
    },
}

/// The legality of `format` for a type variable that is f32.
///
/// Judged by the tensor types the variable admits; a variable that admits containers only, by their elements.
pub fn legality(schema: &'static OpSchema, var: u8, format: DType) -> Legality {
    let Some(variable) = schema.type_vars.get(usize::from(var)) else { return Legality::NotFloat };
    verdict(schema, &variable.allowed, format, |later| {
        let mut counterparts = formals_of(schema, var)
            .filter_map(|(side, i, formal)| counterpart(later, side, i, formal))
            .peekable();
        counterparts.peek().is_some() && counterparts.all(|formal| is_legal(&later.types_of(formal), format))
    })
}

/// The same for an operator of a model that imports this opset.
///
/// Some operators are defined by others, as runtimes without a kernel expand them, and their schema says less than
/// that definition: Clip is a Where, which has bf16 from opset 16 on, SoftmaxCrossEntropyLoss a
/// NegativeLogLikelihoodLoss, which has it from 22 on, and MeanVarianceNormalization adds f32 constants.
pub fn legality_at(schema: &'static OpSchema, var: u8, format: DType, opset: u16) -> Legality {
    let legality = legality(schema, var, format);
    let defined_from = match (schema.kind, format) {
        (K::Clip, DType::BF16) => Some(16),
        (K::SoftmaxCrossEntropyLoss, DType::BF16) => Some(22),
        (K::MeanVarianceNormalization, _) => None,
        _ => return legality,
    };
    match legality {
        Legality::Legal if defined_from.is_some_and(|first| first <= opset) => legality,
        Legality::Legal => Legality::NoSuchFormat { first_opset_with_it: defined_from },
        Legality::NoSuchFormat { first_opset_with_it } => {
            let later =
                first_opset_with_it.zip(defined_from).map(|(admitted, defined)| admitted.max(defined));
            Legality::NoSuchFormat { first_opset_with_it: later }
        }
        Legality::NotFloat => legality,
    }
}

/// The legality of `format` for a formal that is f32, as far as its own type goes.
pub fn formal_legality(schema: &'static OpSchema, side: Side, index: usize, format: DType) -> Legality {
    let Some(formal) = formals(schema, side).get(index) else { return Legality::NotFloat };
    verdict(schema, &schema.types_of(formal), format, |later| {
        counterpart(later, side, index, formal)
            .is_some_and(|formal| is_legal(&later.types_of(formal), format))
    })
}

/// The legality of the format for a formal of this type with f32 elements. For sequences and optionals, which a
/// type variable may admit with fewer element types than tensors.
pub fn type_legality(
    schema: &'static OpSchema,
    side: Side,
    index: usize,
    ty: &Type,
    format: DType,
) -> Legality {
    let Some(formal) = formals(schema, side).get(index) else { return Legality::NotFloat };
    let (f32, low) = (ty.with_element_dtype(DType::F32), ty.with_element_dtype(format));
    let types = schema.types_of(formal);
    if !types.admits(&f32) {
        return Legality::NotFloat;
    }
    if types.admits(&low) {
        return Legality::Legal;
    }
    let legal = |later: &'static OpSchema| {
        counterpart(later, side, index, formal).is_some_and(|formal| {
            let types = later.types_of(formal);
            types.admits(&f32) && types.admits(&low)
        })
    };
    let mut later = schema.kind.versions().iter().filter(|s| s.since > schema.since && !s.is_gone());
    Legality::NoSuchFormat { first_opset_with_it: later.find(|s| legal(s)).map(|s| s.since) }
}

fn verdict(
    schema: &'static OpSchema,
    types: &TypeSet,
    format: DType,
    is_legal_in: impl Fn(&'static OpSchema) -> bool,
) -> Legality {
    if !has_element(types, DType::F32) {
        return Legality::NotFloat;
    }
    if has_element(types, format) {
        return Legality::Legal;
    }
    let mut later = schema.kind.versions().iter().filter(|s| s.since > schema.since && !s.is_gone());
    Legality::NoSuchFormat { first_opset_with_it: later.find(|s| is_legal_in(s)).map(|s| s.since) }
}

fn is_legal(types: &TypeSet, format: DType) -> bool {
    has_element(types, DType::F32) && has_element(types, format)
}

pub(super) fn has_element(types: &TypeSet, dtype: DType) -> bool {
    if types.tensor != 0 { types.has_tensor(dtype) } else { types.has_contained(dtype) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::lookup::{Lookup, lookup};

    fn schema(name: &str, opset: u16) -> &'static OpSchema {
        let Lookup::Found(schema) = lookup("", name, opset) else { panic!("{name} at {opset}") };
        schema
    }

    #[test]
    fn legality_names_the_opset_that_helps() {
        let missing = |first_opset_with_it| Legality::NoSuchFormat { first_opset_with_it };
        assert_eq!(legality(schema("Conv", 11), 0, DType::F16), Legality::Legal);
        assert_eq!(legality(schema("Conv", 11), 0, DType::BF16), missing(Some(22)));
        assert_eq!(legality(schema("TopK", 11), 0, DType::BF16), missing(Some(24)));
        assert_eq!(legality(schema("CumSum", 11), 0, DType::F16), missing(Some(14)));
        assert_eq!(legality(schema("Range", 11), 0, DType::F16), missing(Some(27)));
        assert_eq!(legality(schema("Shrink", 9), 0, DType::BF16), missing(None));
        assert_eq!(legality(schema("LayerNormalization", 17), 1, DType::F16), missing(None));
        assert_eq!(legality(schema("Gather", 13), 1, DType::F16), Legality::NotFloat);
        assert_eq!(legality(schema("Gather", 13), 200, DType::F16), Legality::NotFloat);
        // A variable waits for all of its formals, which later versions rename and separate.
        assert_eq!(legality(schema("BatchNormalization", 9), 0, DType::BF16), missing(Some(14)));
        // A formal without a variable may get one.
        let scale = formal_legality(schema("DequantizeLinear", 10), Side::Operand, 1, DType::F16);
        assert_eq!(scale, missing(Some(19)));
        assert_eq!(formal_legality(schema("Resize", 19), Side::Operand, 2, DType::F16), missing(None));
        // What an operator is defined by must have the format too.
        let at = |name, format, opset| legality_at(schema(name, opset), 0, format, opset);
        assert_eq!(at("Clip", DType::BF16, 12), missing(Some(16)));
        assert_eq!(at("Clip", DType::BF16, 13), missing(Some(16)));
        assert_eq!(at("Clip", DType::BF16, 16), Legality::Legal);
        assert_eq!(at("Clip", DType::F16, 13), Legality::Legal);
        assert_eq!(at("SoftmaxCrossEntropyLoss", DType::BF16, 21), missing(Some(22)));
        assert_eq!(at("MeanVarianceNormalization", DType::F16, 13), missing(None));
        assert_eq!(at("MeanVarianceNormalization", DType::BF16, 9), missing(None));
        // Containers are judged by what they contain.
        assert_eq!(legality(schema("SequenceAt", 11), 0, DType::F16), Legality::Legal);
    }
}
