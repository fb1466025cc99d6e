//! LSTM, GRU and RNN.

use super::{NodeView, OpError};
use crate::op::OpKind;

/// Which way a recurrent operator walks along its input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the first step to the last.
    Forward,
    /// From the last step to the first.
    Reverse,
    /// Both, with their own weights.
    Bidirectional,
}

/// A recurrent operator at its version.
#[derive(Clone, PartialEq, Debug)]
pub struct RecurrentView {
    /// Its direction.
    pub direction: Direction,
    /// Size of the hidden state, where the attribute is there.
    pub hidden: Option<u64>,
    /// Weight matrices per direction, stacked in one operand: 4 for LSTM, 3 for GRU, 1 for RNN.
    pub gates: u64,
    /// Whether the batch is the first axis instead of the second.
    pub batch_first: bool,
    /// Bound of what goes into the activations, if any.
    pub clip: Option<f32>,
    /// Whether LSTM has one gate for input and forgetting.
    pub input_forget: bool,
    /// Whether GRU applies the reset gate behind the product.
    pub linear_before_reset: bool,
    /// Whether all outputs are there: version 1 has an attribute that says so.
    pub outputs_sequence: bool,
}

impl RecurrentView {
    /// Reads an LSTM, GRU or RNN.
    ///
    /// # Errors
    /// If the direction is none or the hidden size is not positive.
    pub fn read(view: &NodeView<'_>) -> Result<RecurrentView, OpError> {
        let direction = match view.string("direction").unwrap_or("forward") {
            // The default of GRU 1 is spelled like this.
            "forward" | "foward" => Direction::Forward,
            "reverse" => Direction::Reverse,
            "bidirectional" => Direction::Bidirectional,
            other => return Err(OpError::attr("direction", "forward, reverse or bidirectional", other)),
        };
        let hidden = view.int("hidden_size").map(|h| {
            u64::try_from(h)
                .ok()
                .filter(|&h| h > 0)
                .ok_or_else(|| OpError::attr("hidden_size", "a positive number", h.to_string()))
        });
        Ok(RecurrentView {
            direction,
            hidden: hidden.transpose()?,
            gates: if view.kind() == OpKind::LSTM {
                4
            } else if view.kind() == OpKind::GRU {
                3
            } else {
                1
            },
            batch_first: view.int("layout").unwrap_or(0) != 0,
            clip: view.float("clip"),
            input_forget: view.int("input_forget").unwrap_or(0) != 0,
            linear_before_reset: view.int("linear_before_reset").unwrap_or(0) != 0,
            outputs_sequence: view.schema.attr("output_sequence").is_none()
                || view.int("output_sequence").unwrap_or(0) != 0,
        })
    }

    /// Number of directions.
    pub fn n_directions(&self) -> u64 {
        match self.direction {
            Direction::Forward | Direction::Reverse => 1,
            Direction::Bidirectional => 2,
        }
    }
}
