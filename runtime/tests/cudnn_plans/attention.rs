//! Scaled dot-product attention of models: heads, lengths, layouts, biases.

use ampc_ir::DType;
use ampc_runtime::cuda::dnn::{Attention, AttentionGradient, Described, DnnError, Properties, Strided};
use std::time::Instant;

/// The order of a tensor's dims in memory.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    /// Batch, heads, positions.
    Heads,
    /// Batch, positions, heads.
    Positions,
    /// Positions, batch, heads.
    First,
    /// Batch, positions, and the heads of query, key and value side by side.
    Packed,
}

struct Shape {
    name: &'static str,
    batch: i64,
    /// The heads of query and key.
    heads: [i64; 2],
    lengths: [i64; 2],
    /// The elements of a head of query and key, and of value.
    sizes: [i64; 2],
    order: Order,
    /// The dims of what is added to the scores.
    bias: Option<[bool; 3]>,
    is_causal: bool,
}

const fn shape(name: &'static str, heads: i64, length: i64, size: i64) -> Shape {
    let (heads, lengths, sizes) = ([heads; 2], [length; 2], [size; 2]);
    Shape { name, batch: 8, heads, lengths, sizes, order: Order::Positions, bias: None, is_causal: false }
}

const SHAPES: &[Shape] = &[
    shape("vit_b_16", 12, 197, 64),
    Shape { order: Order::First, ..shape("vit_b_16 positions first", 12, 197, 64) },
    Shape { order: Order::Packed, ..shape("packed", 12, 128, 64) },
    Shape { order: Order::Heads, ..shape("heads first", 12, 128, 64) },
    // Which of batch, heads and queries the bias varies over.
    Shape { bias: Some([true, false, true]), ..shape("bert-base", 12, 128, 64) },
    Shape { bias: Some([true, false, false]), ..shape("bert-base keys", 12, 128, 64) },
    Shape { bias: Some([false, true, true]), ..shape("t5", 8, 64, 64) },
    Shape { bias: Some([true, true, true]), ..shape("bias per score", 8, 64, 64) },
    Shape { bias: Some([false, false, true]), ..shape("nanogpt", 6, 256, 64) },
    Shape { is_causal: true, ..shape("gpt2", 12, 1024, 64) },
    Shape { bias: Some([false, false, true]), ..shape("gpt2 as nodes", 12, 1024, 64) },
    Shape { is_causal: true, bias: Some([true, false, true]), ..shape("gpt2 padded", 12, 1024, 64) },
    Shape { heads: [32, 8], is_causal: true, ..shape("llama", 32, 512, 128) },
    Shape { heads: [32, 8], bias: Some([false, false, true]), ..shape("llama as nodes", 32, 512, 128) },
    Shape { heads: [8, 2], ..shape("groups", 8, 64, 64) },
    Shape { lengths: [1, 512], ..shape("one query", 12, 512, 64) },
    Shape { lengths: [7, 33], bias: Some([true, false, true]), ..shape("odd lengths", 4, 33, 8) },
    Shape { lengths: [1, 1], ..shape("one position", 4, 1, 8) },
    Shape { sizes: [64, 32], ..shape("other values", 4, 64, 64) },
    shape("heads of 8", 4, 16, 8),
    shape("heads of 256", 4, 64, 256),
    Shape { is_causal: true, lengths: [40, 24], ..shape("causal, more queries", 4, 40, 64) },
];

impl Shape {
    fn tensor(&self, heads: i64, length: i64, size: i64) -> Strided {
        let (batch, row) = (self.batch, heads * size);
        let dims = [batch, heads, length, size];
        let strides = match self.order {
            Order::Heads => return Strided::dense(dims),
            Order::Positions => [row * length, size, row, 1],
            Order::First => [row, size, row * batch, 1],
            Order::Packed => [3 * row * length, size, 3 * row, 1],
        };
        Strided { dims, strides }
    }

    fn attention(&self, dtype: DType, bias_dtype: DType) -> Attention {
        let ([q, k], [rows, columns], [size, of_value]) = (self.heads, self.lengths, self.sizes);
        let extent = |varies: bool, n: i64| if varies { n } else { 1 };
        let bias = self.bias.map(|[batch, heads, queries]| {
            Strided::dense([extent(batch, self.batch), extent(heads, q), extent(queries, rows), columns])
        });
        let result_order = if self.order == Order::Packed { Order::Positions } else { self.order };
        Attention {
            dtype,
            query: self.tensor(q, rows, size),
            key: self.tensor(k, columns, size),
            value: self.tensor(k, columns, of_value),
            result: Shape { order: result_order, ..*self }.tensor(q, rows, of_value),
            bias: bias.map(|bias| (bias_dtype, bias)),
            is_causal: self.is_causal,
            has_statistics: false,
        }
    }
}

impl Shape {
    /// The gradient; `None` without one.
    fn gradient(&self, attention: &Attention) -> Option<AttentionGradient> {
        let [q, _] = self.heads;
        let ([rows, columns], [size, of_value]) = (self.lengths, self.sizes);
        let has_gradient = self.lengths != [1, 1];
        // Gradients of packed operands are tensors of their own.
        let order = if self.order == Order::Packed { Order::Positions } else { self.order };
        let own = Shape { order, ..*self };
        has_gradient.then(|| AttentionGradient {
            of: Attention { has_statistics: true, ..attention.clone() },
            result: own.tensor(q, rows, of_value),
            gradients: [
                own.tensor(q, rows, size),
                own.tensor(q, columns, size),
                own.tensor(q, columns, of_value),
            ],
        })
    }
}

/// Makes the plans whose names contain `filter`; returns how many were made, and how many could not be.
pub(crate) fn run(device: &Properties, filter: &str) -> [usize; 2] {
    let mut counts = [0, 0];
    for shape in SHAPES {
        for dtype in [DType::F16, DType::BF16] {
            // A bias has the type of the operands, or f32. Both types are planned for the shapes of BERT.
            let types = match (shape.name, dtype) {
                ("bert-base" | "bert-base keys", _) => &[dtype, DType::F32][..],
                (_, DType::BF16) => &[DType::F32],
                _ => &[DType::F16],
            };
            for &of_bias in types {
                let end = if shape.bias.is_some() { format!(", bias {of_bias}") } else { String::new() };
                let name = format!("attention {} {dtype}{end}", shape.name);
                let attention = shape.attention(dtype, of_bias);
                if name.contains(filter) {
                    let is_made = made(&name, || device.plan_attention(&attention));
                    counts[usize::from(!is_made)] += 1;
                }
                let name = format!("{name}, gradient");
                if let Some(gradient) = shape.gradient(&attention).filter(|_| name.contains(filter)) {
                    let of = Attention { has_statistics: true, ..attention };
                    let is_made = made(&format!("{name} in front"), || device.plan_attention(&of))
                        && made(&name, || device.plan_attention_gradient(&gradient));
                    counts[usize::from(!is_made)] += 1;
                }
            }
        }
    }
    counts
}

fn made(name: &str, plan: impl FnOnce() -> Result<Described, DnnError>) -> bool {
    let start = Instant::now();
    let made = plan();
    let ms = start.elapsed().as_millis();
    match made {
        Ok(plan) => {
            println!(
                "{name:60} engine {:3} after {:2} refused, {:9} bytes of workspace, {ms:4} ms, notes: {}",
                plan.engine.index,
                plan.refused.len(),
                plan.workspace,
                plan.engine.notes
            );
            plan.engine.notes.has_tensor_cores()
        }
        Err(error) => {
            println!("{name:60} FAILED: {error}");
            false
        }
    }
}
