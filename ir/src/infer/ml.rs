//! The operators of ai.onnx.ml: element types where attributes decide them, and the simple shapes.

use super::extents::sum;
use super::inferred::Inferred;
use crate::attr::AttrValue;
use crate::dtype::DType;
use crate::op::OpKind;
use crate::ty::{Dim, Shape, Type};
use crate::views::size::shape_error;
use crate::views::{NodeView, OpError};

/// Binarizer, Imputer, Normalizer, Scaler: the shape of the operand.
pub(super) fn infer_same_shape(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    out.shape(0, view.shape(0));
    Ok(())
}

/// CastMap.
pub(super) fn infer_cast_map(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let dtype = match view.string("cast_to").unwrap_or("TO_FLOAT") {
        "TO_FLOAT" => DType::F32,
        "TO_STRING" => DType::String,
        "TO_INT64" => DType::I64,
        other => return Err(OpError::attr("cast_to", "TO_FLOAT, TO_STRING or TO_INT64", other)),
    };
    out.tensor(0, dtype, Shape::unknown());
    Ok(())
}

/// CategoryMapper: strings become integers, integers strings.
pub(super) fn infer_category_mapper(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    match view.dtype(0) {
        Some(DType::String) => out.tensor(0, DType::I64, view.shape(0)),
        Some(_) => out.tensor(0, DType::String, view.shape(0)),
        None => {}
    }
    Ok(())
}

/// DictVectorizer: the values of the map.
pub(super) fn infer_dict_vectorizer(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    if let Some(Type::Map { value, .. }) = view.operand_type(0)
        && let Type::Tensor(value) = &**value
    {
        out.tensor(0, value.dtype, Shape::unknown());
    }
    Ok(())
}

/// FeatureVectorizer: the features of all operands side by side.
pub(super) fn infer_feature_vectorizer(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let sizes = view.int_list("inputdimensions").unwrap_or_default();
    let features = match sizes.len() == view.n_operands() {
        true => sum(sizes.iter().map(|&n| super::Int::Known(n).dim())),
        false => Dim::Unknown,
    };
    out.shape(0, Shape::of([rows(view)?, features]));
    Ok(())
}

/// LabelEncoder: the type of the values, which any of several attributes holds.
pub(super) fn infer_label_encoder(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let values = ["values_tensor", "values_strings", "values_int64s", "values_floats"];
    let mut dtypes = values.iter().filter_map(|name| match view.attr(name)? {
        AttrValue::Tensor(data) => Some(data.dtype()),
        AttrValue::Strings(_) => Some(DType::String),
        AttrValue::Ints(_) => Some(DType::I64),
        AttrValue::Floats(_) => Some(DType::F32),
        _ => None,
    });
    // At 1 there is one list of strings, and the positions in it are the other side.
    let only_strings = view.schema.attr("values_strings").is_none();
    match (dtypes.next(), view.dtype(0)) {
        (Some(dtype), _) => out.tensor(0, dtype, view.shape(0)),
        (None, Some(DType::String)) if only_strings => out.tensor(0, DType::I64, view.shape(0)),
        (None, Some(_)) if only_strings => out.tensor(0, DType::String, view.shape(0)),
        (None, _) => {}
    }
    if dtypes.next().is_some() {
        return Err(OpError::node("values in one attribute", "values in two"));
    }
    Ok(())
}

/// The number of rows: a list is one row.
fn rows(view: &NodeView<'_>) -> Result<Dim, OpError> {
    match view.dims(0) {
        None => Ok(Dim::Unknown),
        Some([_]) => Ok(Dim::Known(1)),
        Some([n, _]) => Ok(*n),
        Some(dims) => Err(shape_error(0, "rank 1 or 2", dims)),
    }
}

/// LinearClassifier, SVMClassifier, TreeEnsembleClassifier: a label and a score per class for every row.
pub(super) fn infer_classifier(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let strings = match view.attr("classlabels_strings") {
        Some(AttrValue::Strings(labels)) => labels.len(),
        _ => 0,
    };
    let ints = ["classlabels_ints", "classlabels_int64s"];
    let ints = ints.iter().find_map(|name| view.int_list(name)).map_or(0, <[i64]>::len);
    let dtype = if strings > 0 { DType::String } else { DType::I64 };
    let rows = rows(view)?;
    out.tensor(0, dtype, Shape::of([rows]));
    // Of two classes there may be one score or two; a support vector machine may give one per pair of classes.
    let classes = strings.max(ints);
    let plain = classes > 2 && view.kind() != OpKind::MlSVMClassifier;
    let scores = if plain { Dim::Known(classes as u64) } else { Dim::Unknown };
    out.shape(1, Shape::of([rows, scores]));
    Ok(())
}

/// LinearRegressor, SVMRegressor, TreeEnsembleRegressor, TreeEnsemble: some numbers for every row.
pub(super) fn infer_regressor(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let named = ["targets", "n_targets"].iter().find_map(|name| view.int(name));
    let targets = match named {
        Some(n) => u64::try_from(n).map_or(Dim::Unknown, Dim::Known),
        None if view.schema.attr("n_targets").is_some() => Dim::Unknown,
        None => Dim::Known(1),
    };
    out.shape(0, Shape::of([rows(view)?, targets]));
    Ok(())
}

/// OneHotEncoder: one more axis, as long as there are categories.
pub(super) fn infer_one_hot_encoder(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let strings = match view.attr("cats_strings") {
        Some(AttrValue::Strings(labels)) => Some(labels.len()),
        _ => None,
    };
    let n = match (view.int_list("cats_int64s"), strings) {
        (Some(_), Some(_)) => return Err(OpError::node("categories in one attribute", "categories in two")),
        (Some(ints), None) => Dim::Known(ints.len() as u64),
        (None, Some(n)) => Dim::Known(n as u64),
        (None, None) => Dim::Unknown,
    };
    if let Some(dims) = view.dims(0) {
        out.shape(0, Shape::of(dims.iter().copied().chain([n])));
    }
    Ok(())
}

/// ZipMap: a map from labels to scores per row.
pub(super) fn infer_zip_map(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let key = match (view.attr("classlabels_strings"), view.attr("classlabels_int64s")) {
        (Some(AttrValue::Strings(labels)), _) if !labels.is_empty() => DType::String,
        (_, Some(_)) => DType::I64,
        _ => return Ok(()),
    };
    let value = Box::new(Type::tensor(DType::F32, Shape::scalar()));
    out.ty(0, Type::Sequence(Box::new(Type::Map { key, value })));
    Ok(())
}
