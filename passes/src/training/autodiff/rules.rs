//! The gradient of each operator.

use super::{
    arithmetic, attention, backward::Backward, einsum, grid_sample, indexing, linear, loss, movement, norm,
    pointwise, pool, reads::Operands, reads::Reads, reduce, resize, scatter, softmax, window,
};
use crate::pass::training_error::RuleError;
use ampc_ir::module::Op;
use ampc_ir::op::OpKind;
use ampc_ir::{Module, Node};

/// The rule of an operator: it adds the gradients of the operands of a node.
pub type GradientFn = fn(&mut Backward<'_>) -> Result<(), RuleError>;

/// The differentiation of an operator.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    /// The gradient function, the operands that it differentiates, and the type in which it reads gradients; the other
    /// operands are parameters.
    Gradient(GradientFn, Operands, Reads),
    /// Not at all: its results are constant but for jumps, or no floats.
    Stop,
    /// A gradient exists but is not implemented; the text gives the reason and the remedy.
    None(&'static str),
    /// By a function of the user.
    Custom,
}

impl Rule {
    /// The operands on which results depend in a way that can be differentiated; `None` if on none.
    pub(super) fn operands(self) -> Option<Operands> {
        match self {
            Rule::Gradient(_, operands, _) => Some(operands),
            Rule::None(_) | Rule::Custom => Some(Operands::All),
            Rule::Stop => None,
        }
    }

    /// True if results depend on an operand in a way that can be differentiated.
    pub(super) fn depends_on(self, slot: usize) -> bool {
        self.operands().is_some_and(|operands| operands.contains(slot))
    }

    /// The type in which the rule reads the gradients of results.
    pub(super) fn reads(self) -> Reads {
        match self {
            Rule::Gradient(_, _, reads) => reads,
            Rule::Custom => Reads::Own,
            Rule::Stop | Rule::None(_) => Reads::Wide,
        }
    }
}

/// True if nodes of an operator have a gradient, or need none.
pub fn is_differentiable(kind: OpKind) -> bool {
    !matches!(rule(kind), Rule::None(_))
}

/// True if nodes of an operator pass gradients on.
pub fn has_gradient(kind: OpKind) -> bool {
    matches!(rule(kind), Rule::Gradient(..))
}

/// The rule of a node.
pub(super) fn of(module: &Module, node: Node) -> Rule {
    match module.node(node).schema() {
        Some(schema) => rule(schema.kind),
        None if is_call(module, node) => {
            Rule::None("calls of functions are not differentiated: inline them first")
        }
        None => Rule::None("unknown operator: give its gradient through the library"),
    }
}

const CONTROL_FLOW: &str =
    "control flow is not differentiated yet: unroll the loop or take the branch when the model is exported";
const RECURRENT: &str = "recurrent operators are not differentiated yet: freeze the parameters before them, or export cells \
                         as elementary operators";
const QUANTIZED: &str = "it computes with integers: use the model before quantisation";
const SEQUENCES: &str = "sequences and optionals are not differentiated: export with tensors";
const RARE: &str = "freeze the parameters before it, or give its gradient through the library";
const FUSED: &str =
    "it is an operator that an optimizer of ONNX Runtime has fused: use the model before that optimization";
const OLD: &str = "it is an operator of old opsets: raise the opset first (`--opset 18`)";
const STEP: &str = "it belongs to a training step: use the model from which the step was made";

fn rule(kind: OpKind) -> Rule {
    use Operands::{All, First, FirstAndThird, From};
    use Reads::{Any, AnyIf, Broadcast, Own, OwnFor, Wide};
    use Rule::{Gradient, None, Stop};
    match kind {
        // Element by element.
        OpKind::Abs => Gradient(pointwise::abs, All, Wide),
        OpKind::Acos => Gradient(pointwise::acos, All, Wide),
        OpKind::Acosh => Gradient(pointwise::acosh, All, Wide),
        OpKind::Asin => Gradient(pointwise::asin, All, Wide),
        OpKind::Asinh => Gradient(pointwise::asinh, All, Wide),
        OpKind::Atan => Gradient(pointwise::atan, All, Wide),
        OpKind::Atanh => Gradient(pointwise::atanh, All, Wide),
        OpKind::Celu => Gradient(pointwise::celu, All, Wide),
        OpKind::Clip => Gradient(pointwise::clip, All, AnyIf(pointwise::clip_passes)),
        OpKind::Cos => Gradient(pointwise::cos, All, Wide),
        OpKind::Cosh => Gradient(pointwise::cosh, All, Wide),
        OpKind::Elu => Gradient(pointwise::elu, All, Wide),
        OpKind::Erf => Gradient(pointwise::erf, All, Wide),
        OpKind::Exp => Gradient(pointwise::exp, All, Wide),
        OpKind::Gelu => Gradient(pointwise::gelu, All, Wide),
        OpKind::HardSigmoid => Gradient(pointwise::hard_sigmoid, All, Wide),
        OpKind::HardSwish => Gradient(pointwise::hard_swish, All, Wide),
        OpKind::LeakyRelu => Gradient(pointwise::leaky_relu, All, Wide),
        OpKind::Log => Gradient(pointwise::log, All, Own),
        OpKind::Mish => Gradient(pointwise::mish, All, Wide),
        OpKind::Neg => Gradient(pointwise::neg, All, Any),
        OpKind::PRelu => Gradient(pointwise::prelu, All, Wide),
        OpKind::Reciprocal => Gradient(pointwise::reciprocal, All, Wide),
        OpKind::Relu => Gradient(pointwise::relu, All, Any),
        OpKind::Selu => Gradient(pointwise::selu, All, Wide),
        OpKind::Shrink => Gradient(pointwise::shrink, All, Any),
        OpKind::Sigmoid => Gradient(pointwise::sigmoid, All, Wide),
        OpKind::Sin => Gradient(pointwise::sin, All, Wide),
        OpKind::Sinh => Gradient(pointwise::sinh, All, Wide),
        OpKind::Softplus => Gradient(pointwise::softplus, All, Wide),
        OpKind::Softsign => Gradient(pointwise::softsign, All, Wide),
        OpKind::Sqrt => Gradient(pointwise::sqrt, All, Wide),
        OpKind::SwiGLU => Gradient(pointwise::swi_glu, All, Wide),
        OpKind::Swish => Gradient(pointwise::swish, All, Wide),
        OpKind::Tan => Gradient(pointwise::tan, All, Wide),
        OpKind::Tanh => Gradient(pointwise::tanh, All, Wide),
        OpKind::ThresholdedRelu => Gradient(pointwise::thresholded_relu, All, Any),
        // Two or more operands that broadcast.
        OpKind::Add => Gradient(arithmetic::add, All, Broadcast),
        OpKind::Div => Gradient(arithmetic::div, All, OwnFor(1)),
        OpKind::Max | OpKind::Min => Gradient(arithmetic::extreme, All, Wide),
        OpKind::Mean => Gradient(arithmetic::mean, All, Wide),
        OpKind::Mod => Gradient(arithmetic::modulo, All, Broadcast),
        OpKind::Mul => Gradient(arithmetic::mul, All, Own),
        OpKind::Pow => Gradient(arithmetic::pow, All, Wide),
        OpKind::Sub => Gradient(arithmetic::sub, All, Broadcast),
        OpKind::Sum => Gradient(arithmetic::sum, All, Broadcast),
        OpKind::Where => Gradient(arithmetic::select, From(1), Broadcast),
        // Products.
        OpKind::Einsum => Gradient(einsum::einsum, All, Own),
        OpKind::Gemm => Gradient(linear::gemm, All, OwnFor(2)),
        OpKind::MatMul => Gradient(linear::matmul, All, Own),
        OpKind::Conv => Gradient(window::conv, All, OwnFor(2)),
        OpKind::ConvTranspose => Gradient(window::conv_transpose, All, OwnFor(2)),
        // Windows.
        OpKind::AveragePool => Gradient(pool::average, All, Wide),
        OpKind::GlobalAveragePool => Gradient(pool::global_average, All, Wide),
        OpKind::GlobalLpPool => Gradient(pool::global_lp, All, Wide),
        OpKind::LpPool => Gradient(pool::lp, All, Wide),
        OpKind::GlobalMaxPool => Gradient(pool::global_max, All, Wide),
        OpKind::MaxPool => Gradient(pool::max, All, Wide),
        OpKind::Resize => Gradient(resize::resize, First(1), Wide),
        OpKind::GridSample => Gradient(grid_sample::grid_sample, All, Wide),
        // Norms.
        OpKind::BatchNormalization => Gradient(norm::batch, First(3), Wide),
        OpKind::GroupNormalization => Gradient(norm::group, All, Wide),
        OpKind::InstanceNormalization => Gradient(norm::instance, All, Wide),
        OpKind::LayerNormalization => Gradient(norm::layer, All, Wide),
        OpKind::RMSNormalization | OpKind::SimplifiedLayerNormalization => Gradient(norm::rms, All, Wide),
        OpKind::LRN => Gradient(norm::local_response, All, Wide),
        OpKind::LpNormalization => Gradient(norm::lp, All, Wide),
        OpKind::MeanVarianceNormalization => Gradient(norm::mean_variance, All, Wide),
        // Softmax and losses.
        OpKind::LogSoftmax => Gradient(softmax::log_softmax, All, Wide),
        OpKind::Softmax => Gradient(softmax::softmax, All, Wide),
        OpKind::NegativeLogLikelihoodLoss => Gradient(loss::negative_log_likelihood, First(1), Wide),
        OpKind::SoftmaxCrossEntropyLoss => Gradient(loss::cross_entropy, First(1), Wide),
        OpKind::Attention => Gradient(attention::attention, First(6), Own),
        OpKind::RotaryEmbedding => Gradient(attention::rotary, First(3), Own),
        // Reductions.
        OpKind::ReduceL1 => Gradient(reduce::l1, First(1), Wide),
        OpKind::ReduceL2 => Gradient(reduce::l2, First(1), Wide),
        OpKind::ReduceLogSum => Gradient(reduce::log_sum, First(1), Wide),
        OpKind::ReduceLogSumExp => Gradient(reduce::log_sum_exp, First(1), Wide),
        OpKind::ReduceMax | OpKind::ReduceMin => Gradient(reduce::extreme, First(1), Wide),
        OpKind::ReduceMean => Gradient(reduce::mean, First(1), Wide),
        OpKind::ReduceProd => Gradient(reduce::prod, First(1), Wide),
        OpKind::ReduceSum => Gradient(reduce::sum, First(1), Any),
        OpKind::ReduceSumSquare => Gradient(reduce::sum_square, First(1), Wide),
        OpKind::CumSum => Gradient(reduce::cum_sum, First(1), Any),
        OpKind::CumProd => Gradient(reduce::cum_prod, First(1), Wide),
        // Movement.
        OpKind::Cast | OpKind::CastLike => Gradient(movement::cast, First(1), Any),
        OpKind::CenterCropPad => Gradient(movement::center_crop_pad, First(1), Any),
        OpKind::Concat => Gradient(movement::concat, All, Any),
        OpKind::DepthToSpace => Gradient(movement::depth_to_space, All, Any),
        OpKind::Dropout => Gradient(movement::dropout, First(1), AnyIf(movement::dropout_passes)),
        OpKind::Expand => Gradient(movement::expand, First(1), Broadcast),
        OpKind::Flatten | OpKind::Reshape | OpKind::Squeeze | OpKind::Unsqueeze => {
            Gradient(movement::reshape, First(1), Any)
        }
        OpKind::Identity => Gradient(movement::identity, All, Any),
        OpKind::PhiloxDropout => Gradient(movement::philox_dropout, First(1), Any),
        OpKind::Pad => Gradient(movement::pad, FirstAndThird, AnyIf(movement::pad_passes)),
        OpKind::Slice => Gradient(movement::slice, First(1), AnyIf(movement::slice_passes)),
        OpKind::SpaceToDepth => Gradient(movement::space_to_depth, All, Any),
        OpKind::Split => Gradient(movement::split, First(1), Any),
        OpKind::Tile => Gradient(movement::tile, First(1), Wide),
        OpKind::Transpose => Gradient(movement::transpose, All, Any),
        OpKind::Trilu => Gradient(movement::trilu, First(1), Any),
        // Indexing.
        OpKind::Compress => Gradient(indexing::compress, First(1), Wide),
        OpKind::OneHot => Gradient(indexing::one_hot, From(2), Wide),
        OpKind::ReverseSequence => Gradient(indexing::reverse_sequence, First(1), Any),
        OpKind::Gather => Gradient(indexing::gather, First(1), AnyIf(indexing::gather_passes)),
        OpKind::GatherElements => Gradient(indexing::gather_elements, First(1), Wide),
        OpKind::GatherND => Gradient(indexing::gather_nd, First(1), Wide),
        OpKind::ScatterElements => Gradient(scatter::scatter_elements, FirstAndThird, AnyIf(scatter::passes)),
        OpKind::ScatterND => Gradient(scatter::scatter_nd, FirstAndThird, AnyIf(scatter::passes)),
        OpKind::TopK => Gradient(indexing::top_k, First(1), Wide),
        // What its successor is differentiated by is newer.
        OpKind::Scatter | OpKind::Upsample => None(OLD),
        // Constant but for jumps, integers, booleans, strings, random numbers, and what makes something of nothing.
        OpKind::And
        | OpKind::ArgMax
        | OpKind::ArgMin
        | OpKind::Bernoulli
        | OpKind::BitCast
        | OpKind::BitShift
        | OpKind::BitwiseAnd
        | OpKind::BitwiseNot
        | OpKind::BitwiseOr
        | OpKind::BitwiseXor
        | OpKind::BlackmanWindow
        | OpKind::Ceil
        | OpKind::Constant
        | OpKind::ConstantOfShape
        | OpKind::Equal
        | OpKind::EyeLike
        | OpKind::Floor
        | OpKind::Greater
        | OpKind::GreaterOrEqual
        | OpKind::HammingWindow
        | OpKind::HannWindow
        | OpKind::Hardmax
        | OpKind::ImageDecoder
        | OpKind::IsInf
        | OpKind::IsNaN
        | OpKind::Less
        | OpKind::LessOrEqual
        | OpKind::MelWeightMatrix
        | OpKind::Multinomial
        | OpKind::NonMaxSuppression
        | OpKind::NonZero
        | OpKind::Not
        | OpKind::OptionalHasElement
        | OpKind::Or
        | OpKind::RandomNormal
        | OpKind::RandomNormalLike
        | OpKind::RandomUniform
        | OpKind::RandomUniformLike
        | OpKind::Range
        | OpKind::RegexFullMatch
        | OpKind::Round
        | OpKind::SequenceLength
        | OpKind::Shape
        | OpKind::Sign
        | OpKind::Size
        | OpKind::StringConcat
        | OpKind::StringNormalizer
        | OpKind::StringSplit
        | OpKind::TfIdfVectorizer
        | OpKind::Unique
        | OpKind::Xor => Stop,
        OpKind::If | OpKind::Loop | OpKind::Scan | OpKind::SequenceMap => None(CONTROL_FLOW),
        OpKind::GRU | OpKind::LSTM | OpKind::RNN | OpKind::CausalConvWithState | OpKind::LinearAttention => {
            None(RECURRENT)
        }
        OpKind::ConvInteger
        | OpKind::DequantizeLinear
        | OpKind::DynamicQuantizeLinear
        | OpKind::MatMulInteger
        | OpKind::QLinearConv
        | OpKind::QLinearMatMul
        | OpKind::QuantizeLinear => None(QUANTIZED),
        OpKind::ConcatFromSequence
        | OpKind::Optional
        | OpKind::OptionalGetElement
        | OpKind::SequenceAt
        | OpKind::SequenceConstruct
        | OpKind::SequenceEmpty
        | OpKind::SequenceErase
        | OpKind::SequenceInsert
        | OpKind::SplitToSequence => None(SEQUENCES),
        OpKind::AffineGrid
        | OpKind::Col2Im
        | OpKind::DFT
        | OpKind::DeformConv
        | OpKind::Det
        | OpKind::ImageScaler
        | OpKind::MaxRoiPool
        | OpKind::MaxUnpool
        | OpKind::RoiAlign
        | OpKind::STFT
        | OpKind::TensorScatter
        | OpKind::PreviewFlexAttention
        | OpKind::Declared => None(RARE),
        OpKind::Adam
        | OpKind::AdamW
        | OpKind::ClipCoef
        | OpKind::GradCheck
        | OpKind::SGD
        | OpKind::UpdateLossScale
        | OpKind::TrainingAdagrad
        | OpKind::TrainingAdam
        | OpKind::TrainingGradient
        | OpKind::TrainingMomentum => None(STEP),
        OpKind::MlArrayFeatureExtractor
        | OpKind::MlBinarizer
        | OpKind::MlCastMap
        | OpKind::MlCategoryMapper
        | OpKind::MlDictVectorizer
        | OpKind::MlFeatureVectorizer
        | OpKind::MlImputer
        | OpKind::MlLabelEncoder
        | OpKind::MlLinearClassifier
        | OpKind::MlLinearRegressor
        | OpKind::MlNormalizer
        | OpKind::MlOneHotEncoder
        | OpKind::MlSVMClassifier
        | OpKind::MlSVMRegressor
        | OpKind::MlScaler
        | OpKind::MlTreeEnsemble
        | OpKind::MlTreeEnsembleClassifier
        | OpKind::MlTreeEnsembleRegressor
        | OpKind::MlZipMap => None(RARE),
        OpKind::ContribAttention
        | OpKind::ContribBiasAdd
        | OpKind::ContribBiasGelu
        | OpKind::ContribBiasSoftmax
        | OpKind::ContribBiasSplitGelu
        | OpKind::ContribDecoderMaskedMultiHeadAttention
        | OpKind::ContribDequantizeLinear
        | OpKind::ContribDynamicQuantizeMatMul
        | OpKind::ContribEmbedLayerNormalization
        | OpKind::ContribFastGelu
        | OpKind::ContribFusedConv
        | OpKind::ContribFusedGemm
        | OpKind::ContribFusedMatMul
        | OpKind::ContribGelu
        | OpKind::ContribGemmFastGelu
        | OpKind::ContribGroupNorm
        | OpKind::ContribGroupQueryAttention
        | OpKind::ContribInverse
        | OpKind::ContribIrfft
        | OpKind::ContribMatMulInteger16
        | OpKind::ContribMatMulIntegerToFloat
        | OpKind::ContribMatMulNBits
        | OpKind::ContribMultiHeadAttention
        | OpKind::ContribNhwcConv
        | OpKind::ContribPackedMultiHeadAttention
        | OpKind::ContribQAttention
        | OpKind::ContribQLinearAdd
        | OpKind::ContribQLinearMul
        | OpKind::ContribQuantizeLinear
        | OpKind::ContribQuickGelu
        | OpKind::ContribRfft
        | OpKind::ContribRotaryEmbedding
        | OpKind::ContribSkipGroupNorm
        | OpKind::ContribSkipLayerNormalization
        | OpKind::ContribSkipSimplifiedLayerNormalization
        | OpKind::ContribTransposeMatMul => None(FUSED),
    }
}

/// True if a node is a call of a function of the model.
fn is_call(module: &Module, node: Node) -> bool {
    matches!(module.node(node).op, Op::Call(_))
}
