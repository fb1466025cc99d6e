//! Attention, RotaryEmbedding, and norms of rows.

use super::node;
use crate::cases::{Case, LOW, Tolerance, bools, ints, random};

pub(super) fn add(cases: &mut Vec<Case>) {
    for (dtype, t) in LOW {
        let x = |dims: &[u64], seed| random(dtype, dims, seed);
        for (more, inputs, y) in [
            ("", vec![x(&[2, 4, 5, 8], 1), x(&[2, 4, 7, 8], 2), x(&[2, 4, 7, 6], 3)], "[2, 4, 5, 6]"),
            (
                "is_causal=1, softcap=2.0",
                vec![x(&[2, 4, 5, 8], 4), x(&[2, 2, 7, 8], 5), x(&[2, 2, 7, 8], 6), bools(&[5, 7], 7)],
                "[2, 4, 5, 8]",
            ),
            (
                "q_num_heads=4, kv_num_heads=2, scale=0.3",
                vec![x(&[2, 3, 32], 8), x(&[2, 6, 16], 9), x(&[2, 6, 10], 10), x(&[2, 1, 3, 6], 11)],
                "[2, 3, 20]",
            ),
        ] {
            let operands = ["%a, %b, %c", "%a, %b, %c, %d"][inputs.len() - 3];
            let call = format!("opset=23\nAttention({operands}) {{{more}}}");
            cases.push(node(
                &format!("Attention {more}"),
                Tolerance::Rows,
                &call,
                &[&format!("{t}{y}")],
                inputs,
            ));
        }
        let call = "opset=23\nAttention(%a, %b, %c, _, %d, %e) {is_causal=1}";
        let inputs = vec![
            x(&[1, 2, 3, 4], 12),
            x(&[1, 2, 3, 4], 13),
            x(&[1, 2, 3, 5], 14),
            x(&[1, 2, 2, 4], 15),
            x(&[1, 2, 2, 5], 16),
        ];
        let results = [format!("{t}[1, 2, 3, 5]"), format!("{t}[1, 2, 5, 4]"), format!("{t}[1, 2, 5, 5]")];
        let results: Vec<&str> = results.iter().map(String::as_str).collect();
        cases.push(node("Attention past", Tolerance::Rows, call, &results, inputs));
        for interleaved in [0, 1] {
            let call = format!("opset=23\nRotaryEmbedding(%a, %b, %c, %d) {{interleaved={interleaved}}}");
            let inputs = vec![
                x(&[2, 3, 4, 6], 17),
                x(&[9, 3], 18),
                x(&[9, 3], 19),
                ints(&[2, 4], &[0, 3, 8, 1, 2, 2, 7, 5]),
            ];
            let y = format!("{t}[2, 3, 4, 6]");
            cases.push(node(
                &format!("RotaryEmbedding {interleaved}"),
                Tolerance::Rows,
                &call,
                &[&y],
                inputs,
            ));
            let call = format!(
                "opset=23\nRotaryEmbedding(%a, %b, %c) {{interleaved={interleaved}, num_heads=3, rotary_embedding_dim=4}}"
            );
            let inputs = vec![x(&[2, 4, 18], 20), x(&[2, 4, 2], 21), x(&[2, 4, 2], 22)];
            let y = format!("{t}[2, 4, 18]");
            cases.push(node(
                &format!("RotaryEmbedding {interleaved}"),
                Tolerance::Rows,
                &call,
                &[&y],
                inputs,
            ));
        }
        for (scale, axis) in [(&[70u64][..], -1), (&[1], -1), (&[5, 1], 1)] {
            let call = format!("opset=23\nRMSNormalization(%a, %b) {{axis={axis}}}");
            let inputs = vec![x(&[4, 5, 70], 23), x(scale, 24)];
            let name = format!("RMSNormalization {axis}");
            cases.push(node(&name, Tolerance::Rows, &call, &[&format!("{t}[4, 5, 70]")], inputs));
            let call = format!("LayerNormalization(%a, %b, %c) {{axis={axis}}}");
            let inputs = vec![x(&[4, 5, 70], 23), x(scale, 24), x(&[70], 25)];
            let name = format!("LayerNormalization {axis}");
            cases.push(node(&name, Tolerance::Rows, &call, &[&format!("{t}[4, 5, 70]")], inputs));
        }
    }
}
