//! The amount of computation of a node: multiplications and additions of products of matrices, and operations on
//! elements.
//!
//! Formulas count a multiplication and an addition as two operations. Computations of an operator besides its product
//! (biases, activations) are left out, except for the softmax of attention. A node that does not fit its operator has
//! no product.
//!
//! Example: MatMul of `f32[2, 3, 4]` and `f32[2, 4, 5]` has 2·3·5 results of 4 products each, which count as 2·30·4 = 240
//! operations.

use super::extents::Extents;
use ampc_ir::op::{OpKind, Work, work};
use ampc_ir::views::NodeView;
use ampc_ir::views::attention::LinearAttentionView;
use ampc_ir::views::linear::{Equation, GemmView, Label};
use ampc_ir::views::window::WindowView;
use ampc_ir::{Dim, Value};
use std::collections::BTreeMap;

/// The work of one execution of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Amount {
    /// The number of multiplications and additions of products of matrices.
    pub product: u64,
    /// The number of operations on elements.
    pub elementwise: u64,
}

/// The number of operations of a softmax per score.
const SOFTMAX: u64 = 8;

/// The amount of computation of a node.
pub fn amount(view: &NodeView<'_>, extents: Extents<'_>) -> Amount {
    let node = Operands { view, extents };
    match work(view.kind()) {
        Work::Move => Amount::default(),
        Work::Elementwise { per_element } => Amount {
            product: 0,
            elementwise: node.largest().saturating_mul(node.window()).saturating_mul(per_element.into()),
        },
        Work::Product => node.product().unwrap_or_default(),
    }
}

/// A node, with the sizes of its operands and results.
struct Operands<'a> {
    view: &'a NodeView<'a>,
    extents: Extents<'a>,
}

impl Operands<'_> {
    fn elements(&self, operand: usize) -> u64 {
        self.view.operand(operand).map_or(0, |value| self.extents.elements(value))
    }
    fn result(&self) -> u64 {
        self.view.data().result(0).map_or(0, |value| self.extents.elements(value))
    }
    /// The extent of an axis of an operand, counted from the back, from 1.
    fn back(&self, operand: usize, axis: usize) -> Option<u64> {
        let dims = self.view.dims(operand)?;
        Some(self.extents.dim(dims[dims.len().checked_sub(axis)?]))
    }

    /// The number of elements of the largest operand, or of all results if that is larger.
    fn largest(&self) -> u64 {
        let of = |value: &Option<Value>| value.map_or(0, |value| self.extents.elements(value));
        let data = self.view.data();
        let results = data.results().iter().map(of).fold(0, u64::saturating_add);
        data.formal_operands().iter().map(of).max().unwrap_or(0).max(results)
    }

    /// The number of operand elements that an element of the result reads, beyond the ratio of their sizes: the
    /// window of a pool whose steps are smaller than the window.
    fn window(&self) -> u64 {
        let pools = [OpKind::AveragePool, OpKind::LpPool, OpKind::MaxPool];
        if !pools.contains(&self.view.kind()) {
            return 1;
        }
        let axes = self.view.rank(0).map_or(0, |rank| rank.saturating_sub(2));
        let Ok(window) = WindowView::read(self.view, axes, None) else { return 1 };
        let around = self.extents.product(&window.kernel);
        let steps = window.strides.iter().fold(1, |n: u64, &step| n.saturating_mul(step));
        around.div_ceil(steps.max(1)).max(1)
    }

    fn product(&self) -> Option<Amount> {
        let products = match self.view.kind() {
            OpKind::MatMul | OpKind::ContribGemmFastGelu => self.result().saturating_mul(self.back(0, 1)?),
            OpKind::ContribFusedMatMul | OpKind::ContribTransposeMatMul => {
                let transposed = self.view.int("transA").unwrap_or(0) != 0;
                self.result().saturating_mul(self.back(0, if transposed { 2 } else { 1 })?)
            }
            OpKind::Gemm | OpKind::ContribFusedGemm => {
                let transposed = GemmView::read(self.view).trans_a;
                self.result().saturating_mul(self.back(0, if transposed { 2 } else { 1 })?)
            }
            OpKind::ContribMatMulNBits => {
                self.result().saturating_mul(u64::try_from(self.view.int("K")?).ok()?)
            }
            OpKind::Conv
            | OpKind::CausalConvWithState
            | OpKind::ContribFusedConv
            | OpKind::ContribNhwcConv
            | OpKind::DeformConv => self.result().saturating_mul(self.window_of_weights()?),
            OpKind::ConvTranspose => self.elements(0).saturating_mul(self.window_of_weights()?),
            OpKind::Einsum => self.einsum()?,
            OpKind::GRU | OpKind::LSTM | OpKind::RNN => self.recurrent()?,
            OpKind::LinearAttention => self.linear_attention()?,
            OpKind::Attention
            | OpKind::ContribAttention
            | OpKind::ContribGroupQueryAttention
            | OpKind::ContribMultiHeadAttention
            | OpKind::ContribPackedMultiHeadAttention
            | OpKind::PreviewFlexAttention => return Some(self.attention()),
            _ => return None,
        };
        Some(Amount { product: products.saturating_mul(2), elementwise: 0 })
    }

    /// The number of elements of the weights for one channel; the channels are the first axis of the weights.
    fn window_of_weights(&self) -> Option<u64> {
        Some(self.extents.product(self.view.dims(1)?.get(1..)?))
    }

    /// The product of the extents of all indices, times the number of multiplications for each: the number of operands
    /// less one.
    fn einsum(&self) -> Option<u64> {
        let equation = Equation::read(self.view).ok()?;
        let mut letters: BTreeMap<Label, u64> = BTreeMap::new();
        for (operand, labels) in equation.operands.iter().enumerate() {
            let dims = self.view.dims(operand)?;
            let letter_count = labels.iter().filter(|&&label| label != Label::Ellipsis).count();
            let around = dims.len().checked_sub(letter_count)?;
            let mut axes = dims;
            for &label in labels {
                let (of_label, rest) =
                    axes.split_at_checked(if label == Label::Ellipsis { around } else { 1 })?;
                let extent = letters.entry(label).or_insert(1);
                // Broadcasting takes the larger extent.
                *extent = (*extent).max(self.extents.product(of_label));
                axes = rest;
            }
        }
        let all = letters.values().fold(1, |n: u64, &extent| n.saturating_mul(extent));
        let products = u64::try_from(equation.operands.len()).ok()?.saturating_sub(1);
        Some(all.saturating_mul(products.max(1)))
    }

    /// The number of elements of both weights, for every step of every sequence.
    fn recurrent(&self) -> Option<u64> {
        let [time, batch] = [3, 2].map(|axis| self.back(0, axis));
        let weights = self.elements(1).saturating_add(self.elements(2));
        Some(time?.saturating_mul(batch?).saturating_mul(weights))
    }

    /// Two products, for each element of the query, with a state of head size by head size.
    fn linear_attention(&self) -> Option<u64> {
        let heads = LinearAttentionView::read(self.view).ok()?.kv_heads.max(1);
        let head = self.back(2, 1)? / if self.view.rank(2) == Some(3) { heads } else { 1 };
        Some(self.elements(0).saturating_mul(head).saturating_mul(2))
    }

    /// The products of queries and keys and of scores and values, and the softmax between them; for ONNX Runtime's
    /// Attention also the projections.
    fn attention(&self) -> Amount {
        let whole = self.view.kind() == OpKind::ContribAttention;
        let (keys, past) = match self.view.kind() {
            OpKind::ContribGroupQueryAttention => (1, 3),
            OpKind::ContribMultiHeadAttention => (1, 6),
            OpKind::Attention => (1, 4),
            _ => (if whole { 0 } else { 1 }, usize::MAX),
        };
        let keys = if self.view.has(keys) { keys } else { 0 };
        let length = self.back(keys, 2).unwrap_or(1);
        let length = length.saturating_add(self.back(past, 2).unwrap_or(0));
        let (query, result) =
            if whole { (self.result(), self.result()) } else { (self.elements(0), self.result()) };
        let products = query.saturating_add(result).saturating_mul(length);
        let projections = match self.view.dims(1) {
            Some(&[_, hidden]) if whole => self.elements(0).saturating_mul(self.extents.dim(hidden)),
            _ => 0,
        };
        let head = self.head(query).max(1);
        let scores = (query / head).saturating_mul(length);
        Amount {
            product: products.saturating_add(projections).saturating_mul(2),
            elementwise: scores.saturating_mul(SOFTMAX),
        }
    }

    /// The number of elements of the query that make one score.
    fn head(&self, query: u64) -> u64 {
        if let Some(&[.., size]) = self.view.dims(0).filter(|dims: &&[Dim]| dims.len() == 4) {
            return self.extents.dim(size);
        }
        let heads = ["q_num_heads", "num_heads"].iter().find_map(|name| self.view.int(name)).unwrap_or(1);
        let hidden = self.back(0, 1).unwrap_or(query);
        hidden / u64::try_from(heads).unwrap_or(1).max(1)
    }
}
