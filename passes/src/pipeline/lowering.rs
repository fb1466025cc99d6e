//! The passes of a rewrite, by its configuration.

use super::Pipeline;
use crate::analysis::cost::Objective;
use crate::casts::convert_constants::ConvertConstants;
use crate::casts::dce::Dce;
use crate::casts::insert_casts::InsertCasts;
use crate::casts::move_casts::MoveCasts;
use crate::casts::simplify_casts::SimplifyCasts;
use crate::functions::bind_signatures::BindSignatures;
use crate::functions::share_functions::ShareFunctions;
use crate::functions::specialize_functions::SpecializeFunctions;
use crate::opset::raise_opset::{RaiseOpset, Target};
use crate::opset::raise_units::Families;
use crate::opset::raise_units::RaiseUnits;
use crate::pass::Pass;
use crate::pass::input_ranges::InputRanges;
use crate::pass::observed::Observed;
use crate::policy::{KeepIo, Policy};
use crate::precision::assign::{Alternative, Assign, Gain};
use crate::precision::classify::Classify;
use crate::precision::guard::{Guard, OutOfRange};
use crate::precision::observe::Observe;
use crate::precision::saturate_masks::SaturateMasks;
use crate::precision::taint::Taint;
use crate::target::Profile;
use ampc_ir::DType;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Configuration of a rewrite, from which its passes are made.
#[derive(Clone, Debug)]
pub struct Lowering {
    /// The format: f16 or bf16.
    pub to: DType,
    /// The policy.
    pub policy: Arc<Policy>,
    /// The handling of constants that do not fit.
    pub out_of_range: OutOfRange,
    /// The ranges of inputs.
    pub ranges: InputRanges,
    /// The values that came near an end of the range on data; `None` without data.
    pub observed: Option<Observed>,
    /// The results of products that stay within the range on data ([`Guard::trusted`]).
    pub trusted: Observed,
    /// The inputs and outputs that keep their types.
    pub keep_io: KeepIo,
    /// The opset of the output.
    pub opset: Opset,
    /// The operators written out that ONNX's operators replace.
    pub raise: Families,
    /// True if masks in front of a softmax get numbers that fit the format.
    pub saturate_masks: bool,
    /// The quantity that the choice of formats minimizes.
    pub objective: Objective,
    /// The profile that predicts costs.
    pub target: Arc<Profile>,
    /// True if floats may keep digits that casts of the author round away.
    pub excess_precision: bool,
    /// A policy whose fp32 nodes the report counts as an alternative.
    pub alternative: Option<Arc<Policy>>,
    /// The extent of lowering among variables that may be low.
    pub gain: Gain,
}

/// Handling of the opset of ai.onnx in a rewrite.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Opset {
    /// It stays.
    #[default]
    Keep,
    /// The lowest, not below the model's own, at which every node that the policy lowers has the format.
    Auto,
    /// This one.
    To(u16),
}

impl fmt::Display for Opset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Opset::Keep => f.write_str("keep"),
            Opset::Auto => f.write_str("auto"),
            Opset::To(opset) => write!(f, "{opset}"),
        }
    }
}

/// A text that says nothing about the opset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("expected keep, auto or the number of an opset")]
pub struct UnknownOpset;

impl FromStr for Opset {
    type Err = UnknownOpset;
    fn from_str(text: &str) -> Result<Opset, UnknownOpset> {
        match text {
            "keep" => Ok(Opset::Keep),
            "auto" => Ok(Opset::Auto),
            number => number.parse().ok().filter(|&opset| opset > 0).map(Opset::To).ok_or(UnknownOpset),
        }
    }
}

impl Pipeline {
    /// The passes of a rewrite.
    pub fn lowering(options: &Lowering) -> Pipeline {
        let Lowering { to, policy, out_of_range, ranges, observed, trusted, keep_io, opset, raise, .. } =
            options;
        let alternative = options.alternative.as_ref();
        let alternative = alternative.map(|policy| Alternative {
            policy: policy.clone(),
            out_of_range: *out_of_range,
            ranges: ranges.clone(),
            observed: observed.clone(),
            trusted: trusted.clone(),
        });
        let target = match *opset {
            Opset::Keep => None,
            Opset::Auto => Some(Target::Auto { format: *to, policy: policy.clone(), units: raise.clone() }),
            Opset::To(opset) => Some(Target::Opset(opset)),
        };
        let mut passes: Vec<Box<dyn Pass>> = Vec::new();
        // First: all others go by what operators are.
        if policy.signatures().next().is_some() {
            passes.push(Box::new(BindSignatures { policy: policy.clone() }));
        }
        // Then: which formats an operator has depends on its version.
        passes.extend(target.map(|to| Box::new(RaiseOpset { to }) as Box<dyn Pass>));
        // At the opset of the output, which may be the first that has the operators.
        if !raise.is_empty() {
            passes.push(Box::new(RaiseUnits { units: raise.clone() }));
        }
        // Before guards look at masks.
        if options.saturate_masks {
            passes.push(Box::new(SaturateMasks { to: *to }));
        }
        let decisions: [Box<dyn Pass>; 5] = [
            // Before anything is decided.
            Box::new(MoveCasts { policy: policy.clone(), excess_precision: options.excess_precision }),
            // Before anything is decided, so that it is decided per call.
            Box::new(SpecializeFunctions),
            Box::new(Classify { to: *to, policy: policy.clone(), target: options.target.clone() }),
            // Before taint, which carries what guards find downstream.
            Box::new(Guard {
                to: *to,
                disabled: policy.disabled_guards().clone(),
                out_of_range: *out_of_range,
                ranges: ranges.clone(),
                trusted: trusted.clone(),
            }),
            Box::new(Taint { ranges: ranges.clone() }),
        ];
        passes.extend(decisions);
        passes.extend(
            observed.clone().map(|observed| Box::new(Observe { to: *to, observed }) as Box<dyn Pass>),
        );
        let placement: [Box<dyn Pass>; 6] = [
            Box::new(Assign {
                keep_io: keep_io.clone(),
                objective: options.objective,
                target: options.target.clone(),
                alternative,
                gain: options.gain,
                ..Assign::new(*to)
            }),
            Box::new(InsertCasts { keep_io: keep_io.clone(), objective: options.objective }),
            // Before constants, so that a constant cast twice is converted once.
            Box::new(SimplifyCasts { to: *to }),
            Box::new(ConvertConstants { clamp: *out_of_range == OutOfRange::Clamp }),
            Box::new(Dce),
            // Last: functions are the same only once everything in them is as it will be.
            Box::new(ShareFunctions),
        ];
        passes.extend(placement);
        Pipeline { passes }
    }
}
