//! Options of a rewrite.

mod table;
pub(crate) mod train;

pub(crate) use self::table::record;
pub use self::table::{OPTIONS, OptionError, Recorded, RecordedOption};

use ampc_ir::DType;
use ampc_passes::Policy;
pub use ampc_passes::cost::{Objective, UnknownObjective};
use ampc_passes::guard::OutOfRange;
use ampc_passes::input_ranges::InputRanges;
use ampc_passes::insert_casts::KeepIo;
use ampc_passes::observed::Observed;
pub use ampc_passes::pipeline::Opset;
pub use ampc_passes::raise_units::{Families, Family};
pub use ampc_passes::target::Profile;
use std::sync::Arc;

/// Options of [`rewrite`](crate::rewrite()).
#[derive(Clone, Debug)]
pub struct RewriteOptions {
    /// The format to lower to: f16 or bf16.
    pub to: DType,
    /// Classes, pins and guards.
    pub policy: Arc<Policy>,
    /// Handling of constants with finite values beyond the range of the format.
    pub out_of_range: OutOfRange,
    /// The ranges of inputs, by which guards judge.
    pub ranges: InputRanges,
    /// The values that came near an end of the range of the format on data; `None` without data.
    pub observed: Option<Observed>,
    /// Results of products that stay within the range of the format on data ([`ampc_passes::guard::Guard::trusted`]).
    pub trusted: Observed,
    /// The inputs and outputs that keep their types.
    pub keep_io: KeepIo,
    /// Opset of the output: that of the source, or a newer opset.
    pub opset: Opset,
    /// Operators written out, such as norms and GELU, that ONNX's operators replace before anything is decided; none by
    /// default.
    pub raise: Families,
    /// True to give masks in front of a softmax numbers that fit the format
    /// ([`saturate_masks`](ampc_passes::saturate_masks)), before anything is decided.
    pub saturate_masks: bool,
    /// The quantity that the choice of formats minimizes.
    pub objective: Objective,
    /// The profile that predicts costs.
    pub target: Arc<Profile>,
    /// True if floats may keep digits that casts of the author round away.
    pub excess_precision: bool,
    /// True to lower only operators that make the model faster, by the time that is predicted for the target: a
    /// product may stay fp32, and the whole model stays fp32 if the rewrite would not be faster.
    pub only_if_faster: bool,
    /// Paths of nodes for which the cost of the other format is found
    /// ([`OptimumReport::forced`](crate::report::OptimumReport::forced)), by one more rewrite for each type
    /// variable; no decision depends on it.
    pub explain: Vec<String>,
    /// A policy for which the report is to say how many nodes it would leave fp32
    /// ([`Fp32Report::elsewhere`](crate::report::Fp32Report::elsewhere)).
    pub alternative: Option<Arc<Policy>>,
    /// Verify after every pass instead of only at the end.
    pub verify_each: bool,
    /// True if the report says how many values of each converted constant overflow or vanish; the constants are
    /// read once more for it.
    pub constant_statistics: bool,
}

impl RewriteOptions {
    /// Options that a policy contains: the format and the inputs and outputs that keep their types; all other
    /// options are defaults.
    pub fn of(policy: Policy) -> RewriteOptions {
        let default = RewriteOptions::default();
        RewriteOptions {
            to: policy.wants().to.unwrap_or(default.to),
            keep_io: policy.wants().keep_io.clone().unwrap_or(default.keep_io),
            policy: Arc::new(policy),
            ..default
        }
    }
}

impl Default for RewriteOptions {
    fn default() -> Self {
        RewriteOptions {
            to: DType::F16,
            policy: Arc::new(Policy::preset("safe").expect("the default policy exists")),
            out_of_range: OutOfRange::Keep,
            ranges: InputRanges::default(),
            observed: None,
            trusted: Observed::default(),
            keep_io: KeepIo::All,
            opset: Opset::Keep,
            raise: Families::default(),
            saturate_masks: false,
            objective: Objective::default(),
            target: Arc::default(),
            excess_precision: false,
            only_if_faster: false,
            explain: Vec::new(),
            alternative: None,
            verify_each: cfg!(debug_assertions),
            constant_statistics: false,
        }
    }
}

/// Form of the output.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Emit {
    /// An ONNX model.
    #[default]
    Onnx,
    /// The text form, with `X.ir.safetensors` beside it for large constants.
    Text,
    /// The graph as JSON.
    Json,
    /// A drawing for Graphviz.
    Dot,
    /// An fp32-typed ONNX model that rounds as the low-precision model would.
    Emulated,
}
