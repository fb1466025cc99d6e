//! Operators that compute in fp32 internally and may be low between low neighbours.
//!
//! Softmax, sums, means and some functions are denied because 16-bit arithmetic would lose digits or overflow
//! internally. If a kernel of the target reads 16-bit operands, computes in fp32 and rounds each result once
//! ([`Profile::rounds_once`](crate::target::Profile::rounds_once)), that reason does not apply, under one condition:
//!
//! *If all float operands of an operator `f` are low, and all readers of its results read low, then `f` in 16 bits
//! computes the same as a cast to fp32, `f` in fp32 and a cast to 16 bits, up to the order of sums in fp32.*
//!
//! So the variable of `f` is free with the class infer and the rule [`Rule::Kernel`]. The cut gets the condition as
//! implications, so that its choice stays a minimum (`assign/cut/between.rs`). For example, with MatMul low:
//!
//! ```text
//! a = MatMul(x, w)     low
//! s = Softmax(a)       free: low, because its operand and its reader are low; no cast is left
//! y = MatMul(s, v)     low
//! t = Softmax(b)       fp32 if b is an input that keeps its type, or if an output reads t
//! ```
//!
//! A denied operator also taints its readers, because its result may be large. The result of a
//! [bounded](Growth::Bounded) operator is not larger than its operands or 1, so its taint becomes a condition too: a
//! marked reader may be low only if the operator is low. An [unbounded](Growth::Unbounded) operator taints as before,
//! so it is low only where products and operators that move numbers read it.

use ampc_ir::module::{Decision, Rule};
use ampc_ir::op::OpKind;

/// The growth of magnitudes from operands to results, for an operator whose arithmetic must not be low.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Growth {
    /// The magnitude of results is at most the largest magnitude of the operands, or 1.
    Bounded,
    /// The magnitude of results may be larger.
    Unbounded,
}

/// The growth of an operator that is denied because of its arithmetic; `None` if another reason denies it.
pub(crate) fn growth(kind: OpKind) -> Option<Growth> {
    match kind {
        OpKind::Softmax
        | OpKind::ContribBiasSoftmax
        | OpKind::GlobalAveragePool
        | OpKind::ReduceMean
        | OpKind::LpNormalization
        | OpKind::Mish => Some(Growth::Bounded),
        OpKind::Exp
        | OpKind::InstanceNormalization
        | OpKind::Log
        | OpKind::LogSoftmax
        | OpKind::Pow
        | OpKind::Reciprocal
        | OpKind::ReduceL1
        | OpKind::ReduceL2
        | OpKind::ReduceLogSumExp
        | OpKind::ReduceSum
        | OpKind::ReduceSumSquare
        | OpKind::Softplus => Some(Growth::Unbounded),
        _ => None,
    }
}

/// True if a variable is free because a kernel of the target removes the reason for fp32.
pub(crate) fn is_between(decision: &Decision) -> bool {
    decision.precision.is_none() && matches!(decision.reason.rule(), Rule::Kernel { .. })
}
