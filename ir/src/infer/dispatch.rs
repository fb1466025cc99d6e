//! Which function infers which operator.

use super::{InferFn, cast, control, gather, join, ml, quantize, reshape, sequence, source};
use crate::op::OpKind;

/// Whether shapes of the operator's results are inferred; element types always are, as far as the schema goes.
pub fn is_inferred(kind: OpKind) -> bool {
    infer_fn(kind).is_some()
}

/// The family function of an operator; `None` where the schema alone has to do.
pub(super) fn infer_fn(kind: OpKind) -> Option<InferFn> {
    Some(match kind {
        OpKind::BitCast => cast::infer_bit_cast,
        OpKind::Cast => cast::infer_cast,
        OpKind::CastLike => cast::infer_cast_like,
        OpKind::Identity => cast::infer_identity,
        OpKind::If => control::infer_if,
        OpKind::Loop => control::infer_loop,
        OpKind::Scan => control::infer_scan,
        OpKind::SequenceMap => control::infer_sequence_map,
        OpKind::Expand => reshape::infer_expand,
        OpKind::Flatten => reshape::infer_flatten,
        OpKind::Reshape => reshape::infer_reshape,
        OpKind::Shape => reshape::infer_shape,
        OpKind::Size => reshape::infer_size,
        OpKind::Squeeze => reshape::infer_squeeze,
        OpKind::Tile => reshape::infer_tile,
        OpKind::Transpose => reshape::infer_transpose,
        OpKind::Unsqueeze => reshape::infer_unsqueeze,
        OpKind::Compress => gather::infer_compress,
        OpKind::DepthToSpace => gather::infer_depth_to_space,
        OpKind::Gather => gather::infer_gather,
        OpKind::GatherElements => gather::infer_gather_elements,
        OpKind::GatherND => gather::infer_gather_nd,
        OpKind::NonZero => gather::infer_non_zero,
        OpKind::OneHot => gather::infer_one_hot,
        OpKind::ReverseSequence => gather::infer_reverse_sequence,
        OpKind::Scatter | OpKind::ScatterElements => gather::infer_scatter_elements,
        OpKind::ScatterND => gather::infer_scatter_nd,
        OpKind::SpaceToDepth => gather::infer_space_to_depth,
        OpKind::TensorScatter => gather::infer_tensor_scatter,
        OpKind::Unique => gather::infer_unique,
        OpKind::Concat => join::infer_concat,
        OpKind::Pad => join::infer_pad,
        OpKind::Slice => join::infer_slice,
        OpKind::Split => join::infer_split,
        OpKind::SplitToSequence => join::infer_split_to_sequence,
        OpKind::MlBinarizer | OpKind::MlImputer | OpKind::MlNormalizer | OpKind::MlScaler => {
            ml::infer_same_shape
        }
        OpKind::MlCastMap => ml::infer_cast_map,
        OpKind::MlCategoryMapper => ml::infer_category_mapper,
        OpKind::MlDictVectorizer => ml::infer_dict_vectorizer,
        OpKind::MlFeatureVectorizer => ml::infer_feature_vectorizer,
        OpKind::MlLabelEncoder => ml::infer_label_encoder,
        OpKind::MlLinearClassifier | OpKind::MlSVMClassifier | OpKind::MlTreeEnsembleClassifier => {
            ml::infer_classifier
        }
        OpKind::MlLinearRegressor
        | OpKind::MlSVMRegressor
        | OpKind::MlTreeEnsemble
        | OpKind::MlTreeEnsembleRegressor => ml::infer_regressor,
        OpKind::MlOneHotEncoder => ml::infer_one_hot_encoder,
        OpKind::MlZipMap => ml::infer_zip_map,
        OpKind::DequantizeLinear => quantize::infer_dequantize,
        OpKind::QuantizeLinear => quantize::infer_quantize,
        OpKind::ConcatFromSequence => sequence::infer_concat,
        OpKind::MlArrayFeatureExtractor => sequence::infer_feature_extractor,
        OpKind::Optional => sequence::infer_optional,
        OpKind::OptionalGetElement => sequence::infer_get_element,
        OpKind::OptionalHasElement | OpKind::SequenceLength => sequence::infer_scalar,
        OpKind::RegexFullMatch => sequence::infer_regex,
        OpKind::SequenceAt => sequence::infer_at,
        OpKind::SequenceConstruct => sequence::infer_construct,
        OpKind::SequenceEmpty => sequence::infer_empty,
        OpKind::SequenceErase => sequence::infer_erase,
        OpKind::SequenceInsert => sequence::infer_insert,
        OpKind::StringConcat => sequence::infer_string_concat,
        OpKind::StringNormalizer => sequence::infer_string_normalizer,
        OpKind::StringSplit => sequence::infer_string_split,
        OpKind::TfIdfVectorizer => sequence::infer_tf_idf,
        OpKind::Bernoulli | OpKind::RandomNormalLike | OpKind::RandomUniformLike => source::infer_random_like,
        OpKind::Constant => source::infer_constant,
        OpKind::ConstantOfShape => source::infer_constant_of_shape,
        OpKind::DynamicQuantizeLinear => source::infer_dynamic_quantize,
        OpKind::EyeLike => source::infer_eye_like,
        OpKind::Multinomial => source::infer_multinomial,
        OpKind::RandomNormal | OpKind::RandomUniform => source::infer_random,
        OpKind::Range => source::infer_range,
        _ => return None,
    })
}
