//! RNN, GRU and LSTM.

use super::node;
use crate::cases::{Case, Tolerance, numbers, tensor};
use ampc_ir::DType;
use ampc_runtime::HostTensor;

pub(super) fn add(cases: &mut Vec<Case>) {
    for (dtype, t) in [(DType::F32, "f32"), (DType::F16, "f16")] {
        let x = |dims: &[u64], seed| {
            let some: Vec<f32> = numbers(dims.iter().product(), seed).iter().map(|x| x / 4.0).collect();
            tensor(dtype, dims, &some)
        };
        for (op, gates, attributes) in [
            ("LSTM", 4, ""),
            ("LSTM", 4, ", input_forget=1, clip=0.3"),
            ("GRU", 3, ""),
            ("GRU", 3, ", linear_before_reset=1"),
            ("RNN", 1, ""),
            (
                "RNN",
                1,
                ", activations=[\"Elu\", \"Affine\"], activation_alpha=[0.5, 0.7], activation_beta=[0.1]",
            ),
        ] {
            for (direction, d) in [("forward", 1), ("reverse", 1), ("bidirectional", 2)] {
                if attributes.contains("Affine") && d == 1 {
                    continue;
                }
                let (steps, batch, input, hidden) = (4, 3, 5, 6);
                let call = format!(
                    "{op}(%a, %b, %c, %d, %e, %f{}) {{hidden_size={hidden}, direction=\"{direction}\"{attributes}}}",
                    if op == "LSTM" { ", %g, %h" } else { "" }
                );
                let mut inputs = vec![
                    x(&[steps, batch, input], 91),
                    x(&[d, gates * hidden, input], 92),
                    x(&[d, gates * hidden, hidden], 93),
                    x(&[d, 2 * gates * hidden], 94),
                    HostTensor::from_slice(&[batch], &[4i32, 0, 2]).unwrap(),
                    x(&[d, batch, hidden], 95),
                ];
                let y = format!("{t}[{steps}, {d}, {batch}, {hidden}]");
                let last = format!("{t}[{d}, {batch}, {hidden}]");
                let mut results = vec![y.as_str(), &last];
                if op == "LSTM" {
                    inputs.extend([x(&[d, batch, hidden], 96), x(&[d, 3 * hidden], 97)]);
                    results.push(&last);
                }
                let name = format!("{op} {direction}{attributes}");
                cases.push(node(&name, Tolerance::Rows, &call, &results, inputs));
            }
        }
        // The batch is the first axis, and all optional operands are absent.
        for (op, gates) in [("LSTM", 4), ("GRU", 3), ("RNN", 1)] {
            let call = format!("{op}(%a, %b, %c) {{hidden_size=3, layout=1, direction=\"bidirectional\"}}");
            let inputs = vec![x(&[2, 5, 4], 98), x(&[2, gates * 3, 4], 99), x(&[2, gates * 3, 3], 100)];
            let results = [format!("{t}[2, 5, 2, 3]"), format!("{t}[2, 2, 3]")];
            let results: Vec<&str> = results.iter().map(String::as_str).collect();
            cases.push(node(&format!("{op} layout"), Tolerance::Rows, &call, &results, inputs));
        }
    }
}
