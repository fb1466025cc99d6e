//! LSTM, GRU and RNN.

use super::node::{NodeView, OpError};
use crate::attr::AttrValue;
use crate::op::OpKind;

/// The direction in which a recurrent operator walks along its input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the first step to the last.
    Forward,
    /// From the last step to the first.
    Reverse,
    /// Both, with their own weights.
    Bidirectional,
}

/// A function in a recurrent operator, with its parameters.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Activation {
    /// max(0, x).
    Relu,
    /// tanh(x).
    Tanh,
    /// 1 / (1 + exp(-x)).
    Sigmoid,
    /// alpha · x + beta.
    Affine(f32, f32),
    /// x, or alpha · x below 0.
    LeakyRelu(f32),
    /// x from alpha on, 0 below.
    ThresholdedRelu(f32),
    /// alpha · tanh(beta · x).
    ScaledTanh(f32, f32),
    /// alpha · x + beta between 0 and 1.
    HardSigmoid(f32, f32),
    /// x, or alpha · (exp(x) - 1) below 0.
    Elu(f32),
    /// x / (1 + |x|).
    Softsign,
    /// log(1 + exp(x)).
    Softplus,
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
    /// True if the batch is the first axis instead of the second.
    pub batch_first: bool,
    /// Bound of the arguments of the activations, if any.
    pub clip: Option<f32>,
    /// True if LSTM has one gate for input and forgetting.
    pub input_forget: bool,
    /// True if GRU applies the reset gate behind the product.
    pub linear_before_reset: bool,
    /// True if all outputs are there: version 1 has an attribute that says so.
    pub outputs_sequence: bool,
}

impl RecurrentView {
    /// Reads an LSTM, GRU or RNN.
    ///
    /// # Errors
    /// If the direction is invalid or the hidden size is not positive.
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

    /// The functions of all directions, as many for each: f, g and h in the order of the operator's text.
    ///
    /// # Errors
    /// If there are too few activations, or an activation is invalid.
    pub fn activations(&self, view: &NodeView<'_>) -> Result<Vec<Activation>, OpError> {
        let defaults: &[&str] = match view.kind() {
            OpKind::LSTM => &["sigmoid", "tanh", "tanh"],
            OpKind::GRU => &["sigmoid", "tanh"],
            _ => &["tanh"],
        };
        let n_directions = usize::from(self.direction == Direction::Bidirectional) + 1;
        let n = defaults.len() * n_directions;
        let names: Vec<String> = match view.attr("activations") {
            Some(AttrValue::Strings(names)) if !names.is_empty() => {
                names.iter().map(|name| String::from_utf8_lossy(name).to_lowercase()).collect()
            }
            _ => defaults.iter().cycle().take(n).map(|&name| name.to_owned()).collect(),
        };
        if names.len() < n {
            return Err(OpError::attr("activations", format!("{n} functions"), names.len().to_string()));
        }
        // Each function takes as many parameters off the lists as it has.
        let mut alphas = view.float_list("activation_alpha").unwrap_or_default().iter();
        let mut betas = view.float_list("activation_beta").unwrap_or_default().iter();
        let mut alpha = |default: f32| alphas.next().copied().unwrap_or(default);
        let mut beta = |default: f32| betas.next().copied().unwrap_or(default);
        let mut read = |name: &String| {
            Ok(match &**name {
                "relu" => Activation::Relu,
                "tanh" => Activation::Tanh,
                "sigmoid" => Activation::Sigmoid,
                "affine" => Activation::Affine(alpha(1.0), beta(0.0)),
                "leakyrelu" => Activation::LeakyRelu(alpha(0.01)),
                "thresholdedrelu" => Activation::ThresholdedRelu(alpha(1.0)),
                "scaledtanh" => Activation::ScaledTanh(alpha(1.0), beta(1.0)),
                "hardsigmoid" => Activation::HardSigmoid(alpha(0.2), beta(0.5)),
                "elu" => Activation::Elu(alpha(1.0)),
                "softsign" => Activation::Softsign,
                "softplus" => Activation::Softplus,
                other => return Err(OpError::attr("activations", "functions of the operator's text", other)),
            })
        };
        names[..n].iter().map(&mut read).collect()
    }

    /// Number of directions.
    pub fn n_directions(&self) -> u64 {
        match self.direction {
            Direction::Forward | Direction::Reverse => 1,
            Direction::Bidirectional => 2,
        }
    }
}
