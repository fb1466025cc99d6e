//! The inference function of each operator.

use super::inferred::InferFn;
use super::{
    attention, cast, contrib, control, declared, elementwise, gather, image, join, linear, ml, norm,
    optimizer, quantize, recurrent, reduce, reshape, sequence, signal, source, window,
};
use crate::op::OpKind;

/// True if shapes of the operator's results are inferred; element types always are, as far as the schema goes.
pub fn is_inferred(kind: OpKind) -> bool {
    infer_fn(kind).is_some()
}

/// The family function of an operator; `None` where the schema alone has to do.
///
/// One flat table, so that the compiler says which operator has no function yet.
pub(super) fn infer_fn(kind: OpKind) -> Option<InferFn> {
    Some(match kind {
        OpKind::BitCast => cast::infer_bit_cast,
        OpKind::Cast => cast::infer_cast,
        OpKind::CastLike => cast::infer_cast_like,
        OpKind::Identity => cast::infer_identity,
        OpKind::Declared => declared::infer_declared,
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

        // attention.rs
        OpKind::Attention => attention::infer_attention,
        OpKind::CausalConvWithState => attention::infer_causal_conv,
        OpKind::PreviewFlexAttention => attention::infer_flex_attention,
        OpKind::LinearAttention => attention::infer_linear_attention,
        OpKind::RotaryEmbedding => attention::infer_rotary,

        // contrib.rs
        OpKind::ContribAttention => contrib::infer_attention,
        OpKind::ContribBiasAdd
        | OpKind::ContribBiasGelu
        | OpKind::ContribBiasSoftmax
        | OpKind::ContribFastGelu
        | OpKind::ContribGelu
        | OpKind::ContribGroupNorm
        | OpKind::ContribInverse
        | OpKind::ContribQuickGelu
        | OpKind::ContribRotaryEmbedding
        | OpKind::ContribSkipGroupNorm => contrib::infer_like_first,
        OpKind::ContribBiasSplitGelu => contrib::infer_split_gelu,
        OpKind::ContribEmbedLayerNormalization => contrib::infer_embed_layer_norm,
        OpKind::ContribFusedConv => window::infer_conv,
        OpKind::ContribFusedGemm => linear::infer_gemm,
        OpKind::ContribFusedMatMul | OpKind::ContribTransposeMatMul => contrib::infer_fused_matmul,
        OpKind::ContribDynamicQuantizeMatMul
        | OpKind::ContribGemmFastGelu
        | OpKind::ContribMatMulIntegerToFloat => linear::infer_matmul,
        OpKind::ContribDequantizeLinear => contrib::infer_like_first,
        OpKind::ContribQLinearAdd | OpKind::ContribQLinearMul => contrib::infer_qlinear_binary,
        OpKind::ContribQuantizeLinear => contrib::infer_quantize,
        OpKind::ContribGroupQueryAttention => contrib::infer_group_query_attention,
        OpKind::ContribMatMulNBits => contrib::infer_matmul_n_bits,
        OpKind::ContribMultiHeadAttention => contrib::infer_multi_head_attention,
        OpKind::ContribSkipLayerNormalization | OpKind::ContribSkipSimplifiedLayerNormalization => {
            contrib::infer_skip_norm
        }
        OpKind::ContribDecoderMaskedMultiHeadAttention
        | OpKind::ContribIrfft
        | OpKind::ContribMatMulInteger16
        | OpKind::ContribNhwcConv
        | OpKind::ContribPackedMultiHeadAttention
        | OpKind::ContribQAttention
        | OpKind::ContribRfft => return None,

        // elementwise.rs
        OpKind::BitShift => elementwise::infer_bit_shift,
        OpKind::Add
        | OpKind::And
        | OpKind::BitwiseAnd
        | OpKind::BitwiseOr
        | OpKind::BitwiseXor
        | OpKind::Div
        | OpKind::Equal
        | OpKind::Greater
        | OpKind::GreaterOrEqual
        | OpKind::Less
        | OpKind::LessOrEqual
        | OpKind::Max
        | OpKind::Mean
        | OpKind::Min
        | OpKind::Mod
        | OpKind::Mul
        | OpKind::Or
        | OpKind::PRelu
        | OpKind::Pow
        | OpKind::Sub
        | OpKind::Sum
        | OpKind::SwiGLU
        | OpKind::Where
        | OpKind::Xor => elementwise::infer_broadcast,
        OpKind::Clip => elementwise::infer_clip,
        OpKind::Det => elementwise::infer_det,
        OpKind::Dropout => elementwise::infer_dropout,
        OpKind::PhiloxDropout => elementwise::infer_philox_dropout,
        OpKind::ImageDecoder => elementwise::infer_image_decoder,
        OpKind::Abs
        | OpKind::Acos
        | OpKind::Acosh
        | OpKind::Asin
        | OpKind::Asinh
        | OpKind::Atan
        | OpKind::Atanh
        | OpKind::BitwiseNot
        | OpKind::Ceil
        | OpKind::Celu
        | OpKind::Cos
        | OpKind::Cosh
        | OpKind::Elu
        | OpKind::Erf
        | OpKind::Exp
        | OpKind::Floor
        | OpKind::Gelu
        | OpKind::HardSigmoid
        | OpKind::HardSwish
        | OpKind::IsInf
        | OpKind::IsNaN
        | OpKind::LeakyRelu
        | OpKind::Log
        | OpKind::Mish
        | OpKind::Neg
        | OpKind::Not
        | OpKind::Reciprocal
        | OpKind::Relu
        | OpKind::Round
        | OpKind::Selu
        | OpKind::Shrink
        | OpKind::Sigmoid
        | OpKind::Sign
        | OpKind::Sin
        | OpKind::Sinh
        | OpKind::Softplus
        | OpKind::Softsign
        | OpKind::Sqrt
        | OpKind::Swish
        | OpKind::Tan
        | OpKind::Tanh
        | OpKind::ThresholdedRelu => elementwise::infer_like_first,
        OpKind::Trilu => elementwise::infer_trilu,

        // image.rs
        OpKind::AffineGrid => image::infer_affine_grid,
        OpKind::CenterCropPad => image::infer_center_crop_pad,
        OpKind::Col2Im => image::infer_col2im,
        OpKind::GridSample => image::infer_grid_sample,
        OpKind::ImageScaler => image::infer_image_scaler,
        OpKind::NonMaxSuppression => image::infer_non_max_suppression,
        OpKind::Resize | OpKind::Upsample => image::infer_resize,
        OpKind::MaxRoiPool | OpKind::RoiAlign => image::infer_roi,

        // linear.rs
        OpKind::Einsum => linear::infer_einsum,
        OpKind::Gemm => linear::infer_gemm,
        OpKind::MatMul => linear::infer_matmul,
        OpKind::MatMulInteger => linear::infer_matmul_integer,
        OpKind::QLinearMatMul => linear::infer_qlinear_matmul,

        // norm.rs
        OpKind::BatchNormalization => norm::infer_batch_norm,
        OpKind::GroupNormalization | OpKind::InstanceNormalization => norm::infer_channel_norm,
        OpKind::LayerNormalization | OpKind::RMSNormalization | OpKind::SimplifiedLayerNormalization => {
            norm::infer_layer_norm
        }
        OpKind::LpNormalization => norm::infer_lp_norm,
        OpKind::LRN => norm::infer_lrn,
        OpKind::MeanVarianceNormalization => norm::infer_mean_variance_norm,
        OpKind::Hardmax | OpKind::LogSoftmax | OpKind::Softmax => norm::infer_softmax,

        // optimizer.rs
        OpKind::Adam | OpKind::AdamW | OpKind::SGD => optimizer::infer_optimizer,
        OpKind::ClipCoef => optimizer::infer_clip_coef,
        OpKind::GradCheck => optimizer::infer_grad_check,
        OpKind::UpdateLossScale => optimizer::infer_update_loss_scale,

        // recurrent.rs
        OpKind::GRU | OpKind::LSTM | OpKind::RNN => recurrent::infer_recurrent,

        // reduce.rs
        OpKind::ArgMax | OpKind::ArgMin => reduce::infer_arg_reduce,
        OpKind::SoftmaxCrossEntropyLoss => reduce::infer_cross_entropy,
        OpKind::CumProd | OpKind::CumSum => reduce::infer_cumulative,
        OpKind::TrainingGradient => reduce::infer_gradient,
        OpKind::NegativeLogLikelihoodLoss => reduce::infer_nll_loss,
        OpKind::TrainingAdagrad | OpKind::TrainingAdam | OpKind::TrainingMomentum => reduce::infer_optimizer,
        OpKind::ReduceL1
        | OpKind::ReduceL2
        | OpKind::ReduceLogSum
        | OpKind::ReduceLogSumExp
        | OpKind::ReduceMax
        | OpKind::ReduceMean
        | OpKind::ReduceMin
        | OpKind::ReduceProd
        | OpKind::ReduceSum
        | OpKind::ReduceSumSquare => reduce::infer_reduce,
        OpKind::TopK => reduce::infer_top_k,

        // signal.rs
        OpKind::DFT => signal::infer_dft,
        OpKind::MelWeightMatrix => signal::infer_mel_weights,
        OpKind::STFT => signal::infer_stft,
        OpKind::BlackmanWindow | OpKind::HammingWindow | OpKind::HannWindow => signal::infer_window_function,

        // window.rs
        OpKind::Conv | OpKind::ConvInteger | OpKind::DeformConv | OpKind::QLinearConv => window::infer_conv,
        OpKind::ConvTranspose => window::infer_conv_transpose,
        OpKind::GlobalAveragePool | OpKind::GlobalLpPool | OpKind::GlobalMaxPool => window::infer_global_pool,
        OpKind::MaxUnpool => window::infer_max_unpool,
        OpKind::AveragePool | OpKind::LpPool | OpKind::MaxPool => window::infer_pool,
    })
}
