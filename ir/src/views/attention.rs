//! Attention and its relatives.

use super::node::{NodeView, OpError};
use crate::dtype::DType;

/// A head count; 0 and absence both mean no heads.
fn heads(view: &NodeView<'_>, name: &str) -> Result<Option<u64>, OpError> {
    let Some(n) = view.int(name).filter(|&n| n != 0) else { return Ok(None) };
    let n = u64::try_from(n).map_err(|_| OpError::attr(name, "a positive number", n.to_string()))?;
    Ok(Some(n))
}

/// A bound of the attention window; -1 and absence both mean no bound.
fn window(view: &NodeView<'_>, name: &str) -> Result<Option<u64>, OpError> {
    let Some(n) = view.int(name).filter(|&n| n != -1) else { return Ok(None) };
    let n = u64::try_from(n).map_err(|_| OpError::attr(name, "-1 or more", n.to_string()))?;
    Ok(Some(n))
}

/// Attention.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AttentionView {
    /// Heads of the query, where an attribute says it: operands of rank 3 need it.
    pub q_heads: Option<u64>,
    /// Heads of key and value.
    pub kv_heads: Option<u64>,
    /// True if later positions are masked.
    pub causal: bool,
    /// Factor of the scores; 1 / sqrt(head size) if absent.
    pub scale: Option<f32>,
    /// Bound of the scores, 0 for none.
    pub softcap: f32,
    /// The element type in which the softmax is computed, if the node sets it.
    pub softmax: Option<DType>,
    /// The content of the fourth result.
    pub scores: Scores,
    /// The number of earlier positions that a query attends to, if bounded.
    pub left_window: Option<u64>,
    /// The number of later positions that a query attends to, if bounded.
    pub right_window: Option<u64>,
    /// True if a mask that is shorter than the keys masks the remaining keys; in earlier versions, a mask of
    /// extent 1 is broadcast.
    pub short_masks: bool,
}

/// How far the scores are computed that Attention has as its fourth result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scores {
    /// Products of queries and keys, scaled.
    Raw,
    /// Bounded.
    Capped,
    /// Bounded and masked.
    Masked,
    /// Behind the softmax.
    Softmax,
}

impl AttentionView {
    /// Reads an Attention.
    ///
    /// # Errors
    /// If a head count is negative or the softmax's element type is invalid.
    pub fn read(view: &NodeView<'_>) -> Result<AttentionView, OpError> {
        Ok(AttentionView {
            q_heads: heads(view, "q_num_heads")?,
            kv_heads: heads(view, "kv_num_heads")?,
            causal: view.int("is_causal").unwrap_or(0) != 0,
            scale: view.float("scale"),
            softcap: view.float("softcap").unwrap_or(0.0),
            softmax: view.dtype_attr("softmax_precision")?,
            scores: match view.int("qk_matmul_output_mode").unwrap_or(0) {
                0 => Scores::Raw,
                1 => Scores::Capped,
                2 => Scores::Masked,
                3 => Scores::Softmax,
                other => {
                    return Err(OpError::attr("qk_matmul_output_mode", "0, 1, 2 or 3", other.to_string()));
                }
            },
            left_window: window(view, "left_window_size")?,
            right_window: window(view, "right_window_size")?,
            short_masks: view.since() >= 24,
        })
    }
}

/// RotaryEmbedding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RotaryView {
    /// Heads; operands of rank 3 need it.
    pub heads: Option<u64>,
    /// The number of rotated elements of a head; all if absent.
    pub dim: Option<u64>,
    /// True if pairs are neighbours instead of halves.
    pub interleaved: bool,
}

impl RotaryView {
    /// Reads a RotaryEmbedding.
    ///
    /// # Errors
    /// If a number is negative.
    pub fn read(view: &NodeView<'_>) -> Result<RotaryView, OpError> {
        Ok(RotaryView {
            heads: heads(view, "num_heads")?,
            dim: heads(view, "rotary_embedding_dim")?,
            interleaved: view.int("interleaved").unwrap_or(0) != 0,
        })
    }
}

/// The recurrence of LinearAttention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UpdateRule {
    /// True if the state decays.
    pub gated: bool,
    /// True if the prediction of the state is subtracted.
    pub delta: bool,
}

/// LinearAttention.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinearAttentionView {
    /// Heads of the query.
    pub q_heads: u64,
    /// Heads of key and value.
    pub kv_heads: u64,
    /// The recurrence.
    pub rule: UpdateRule,
    /// Factor of the result; 1 / sqrt(head size) if it is 0.
    pub scale: f32,
}

impl LinearAttentionView {
    /// Reads a LinearAttention.
    ///
    /// # Errors
    /// If a head count is missing or does not fit the other, or the recurrence is invalid.
    pub fn read(view: &NodeView<'_>) -> Result<LinearAttentionView, OpError> {
        let count =
            |name: &str| heads(view, name)?.ok_or_else(|| OpError::attr(name, "a positive number", "none"));
        let (q_heads, kv_heads) = (count("q_num_heads")?, count("kv_num_heads")?);
        if !q_heads.is_multiple_of(kv_heads) {
            return Err(OpError::attr(
                "q_num_heads",
                format!("a multiple of {kv_heads}, the number of key heads"),
                q_heads.to_string(),
            ));
        }
        let rule = match view.string("update_rule").unwrap_or("gated_delta") {
            "linear" => UpdateRule { gated: false, delta: false },
            "gated" => UpdateRule { gated: true, delta: false },
            "delta" => UpdateRule { gated: false, delta: true },
            "gated_delta" => UpdateRule { gated: true, delta: true },
            other => {
                return Err(OpError::attr("update_rule", "linear, gated, delta or gated_delta", other));
            }
        };
        Ok(LinearAttentionView { q_heads, kv_heads, rule, scale: view.float("scale").unwrap_or(0.0) })
    }
}

/// True if CausalConvWithState ends in a Swish.
///
/// # Errors
/// If its activation is invalid.
pub fn conv_ends_in_swish(view: &NodeView<'_>) -> Result<bool, OpError> {
    match view.string("activation").unwrap_or("none") {
        "none" => Ok(false),
        "silu" | "swish" => Ok(true),
        other => Err(OpError::attr("activation", "none, silu or swish", other)),
    }
}
