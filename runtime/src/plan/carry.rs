//! Values of pairs of groups, which are stored in another form.

use ampc_ir::{DType, Value};

/// A value that one group produces and one other group reads, stored in another form or not at all. The two groups
/// are a *pair*: the session prepares both or neither.
///
/// An attention and its gradient are a pair: the gradient recomputes the attention probabilities from the statistics of
/// their rows.
///
/// ```text
/// probabilities: f32[b, h, s, t]    stored: f32[b, h, s, 1]    instead: query, key, bias, result
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Carry {
    /// The value.
    pub value: Value,
    /// The element type and dims that are stored instead of the value. `None` if nothing is stored: the value is then
    /// neither an operand nor a result of the pair's kernels.
    pub stored: Option<(DType, Vec<u64>)>,
    /// Operands and results of the producing group that the other group reads too. They replace the value among the
    /// operands of the other group, or follow it if something is stored.
    pub instead: Vec<Value>,
}
