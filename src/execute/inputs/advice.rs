//! Advice for values that do not fit the inputs of a model.

use ampc_ir::{DType, Type};
use ampc_runtime::npz;

/// The NumPy form of elements of a type that it lacks.
pub(super) fn help_of_bits(name: &str, dtype: DType, bits: DType) -> String {
    let unsigned = if bits == DType::U16 { "uint16" } else { "uint8" };
    format!("store the bits as {unsigned} under the name `{name}__{dtype}`")
}

/// Advice for a value whose type differs from the declared type.
pub(in crate::execute) fn help_of_type(name: &str, declared: &Type, given: &Type, in_npz: bool) -> String {
    match (declared, given) {
        (Type::Tensor(_), Type::Tensor(_)) => {}
        (Type::Sequence(_) | Type::Optional(_), Type::Tensor(_)) => {
            return "give it in a folder of test data, which holds sequences and optionals".into();
        }
        _ => return "give it a value of the type that the model declares".into(),
    }
    const DIMS: &str = "give it the dims that the model declares";
    let (Some(want), Some(got)) = (declared.element_dtype(), given.element_dtype()) else {
        return DIMS.into();
    };
    if are_scores_of_classes(declared, given) {
        return "give one class number per sample, such as `labels.argmax(axis)` of one-hot rows".into();
    }
    if want == got {
        return DIMS.into();
    }
    let convert = match npz::stored_as(want) {
        Some(bits) if in_npz => help_of_bits(name, want, bits),
        _ => format!("convert it to {want}"),
    };
    let dims = |ty: &Type| ty.as_tensor().map(|tensor| tensor.shape.clone());
    let converted = Type::tensor(want, dims(given).unwrap_or_default());
    if ampc_runtime::session::admits(declared, &converted) {
        convert
    } else {
        format!("{convert}, and {DIMS}")
    }
}

/// True if a value has one axis more than the declared integers, with a row per integer, like one-hot labels.
fn are_scores_of_classes(declared: &Type, given: &Type) -> bool {
    let rank = |ty: &Type| Some(ty.shape()?.dims()?.len());
    let (Some(want), Some(got)) = (rank(declared), rank(given)) else { return false };
    declared.element_dtype().is_some_and(DType::is_integer) && want > 0 && got == want + 1
}
