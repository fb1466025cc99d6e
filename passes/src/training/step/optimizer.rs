//! Optimizers and their spelling: `adamw:beta2=0.95,weight_decay=0.1`.

pub(super) mod custom;
pub(super) mod function;

use self::custom::CustomOptimizer;
use super::entry::StateKind;
use super::spec::{Settings, SpecError};
use ampc_ir::op::OpKind;
use ampc_ir::views::optimizer::{AdamWMode, OnOverflow};
use ampc_ir::{AttrValue, DType, TensorData};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Which optimizer, with its numbers.
#[derive(Clone, PartialEq, Debug)]
pub enum OptimizerKind {
    /// None: gradients are outputs, for an optimizer outside of the step.
    None,
    /// torch.optim.SGD.
    Sgd {
        /// mu in v = mu*v + (1 - dampening)*g; 0: no momentum state.
        momentum: f64,
        /// The gradient enters v with the factor 1 - dampening, from 0 to 1.
        dampening: f64,
        /// Nesterov momentum: the update is g + mu*v instead of v.
        nesterov: bool,
    },
    /// torch.optim.Adam: decay is added to gradients.
    Adam {
        /// Decay rate of the moving average of gradients, in \[0, 1).
        beta1: f64,
        /// Decay rate of the moving average of squared gradients, in \[0, 1).
        beta2: f64,
        /// Added to sqrt(v) in the denominator.
        epsilon: f64,
    },
    /// torch.optim.AdamW, or that of Hugging Face's transformers: decay goes to weights.
    AdamW {
        /// Decay rate of the moving average of gradients, in \[0, 1).
        beta1: f64,
        /// Decay rate of the moving average of squared gradients, in \[0, 1).
        beta2: f64,
        /// Added to sqrt(v) in the denominator.
        epsilon: f64,
        /// Use the formula of Hugging Face transformers' AdamW (`mode=hf`) instead of torch's.
        hf: bool,
    },
    /// A function of the user builds it.
    Custom(CustomOptimizer),
}

/// An optimizer, mostly as it is spelled: `adamw:beta2=0.95,weight_decay=0.1`.
#[derive(Clone, PartialEq, Debug)]
pub struct Optimizer {
    /// The formula, with its numbers.
    pub kind: OptimizerKind,
    /// Weight decay of parameters that no `--decay` pattern matches.
    pub weight_decay: f64,
}

impl From<CustomOptimizer> for Optimizer {
    fn from(custom: CustomOptimizer) -> Optimizer {
        Optimizer { kind: OptimizerKind::Custom(custom), weight_decay: 0.0 }
    }
}

/// The operator, attributes and states of an optimizer node.
pub(super) struct OptimizerTemplate {
    /// The operator.
    pub(super) kind: OpKind,
    /// The attributes, except `weight_decay` and `w_lo_dtype`.
    pub(super) attrs: Vec<(&'static str, AttrValue)>,
    /// The operands that are states: their names, and their kinds.
    pub(super) states: &'static [(&'static str, StateKind)],
}

impl OptimizerKind {
    /// Returns no template for `none` and for custom optimizers. `skips` is true if gradients that are
    /// not finite skip the step.
    pub(super) fn template(&self, skips: bool) -> Option<OptimizerTemplate> {
        let adam = |kind, [beta1, beta2, epsilon]: [f64; 3]| OptimizerTemplate {
            kind,
            attrs: vec![
                ("beta1", double(beta1)),
                ("beta2", double(beta2)),
                ("epsilon", double(epsilon)),
                ("bias_correction", AttrValue::Int(1)),
            ],
            states: &[("m", StateKind::M), ("v", StateKind::V)],
        };
        match *self {
            OptimizerKind::None | OptimizerKind::Custom(_) => None,
            OptimizerKind::Sgd { momentum, dampening, nesterov } => {
                let on_overflow = if skips { OnOverflow::Skip } else { OnOverflow::ZeroGrad };
                Some(OptimizerTemplate {
                    kind: OpKind::SGD,
                    attrs: vec![
                        ("momentum", double(momentum)),
                        ("dampening", double(dampening)),
                        ("on_overflow", word(on_overflow.as_str())),
                        ("nesterov", AttrValue::Int(i64::from(nesterov))),
                    ],
                    states: if momentum == 0.0 { &[] } else { &[("v", StateKind::V)] },
                })
            }
            OptimizerKind::Adam { beta1, beta2, epsilon } => {
                Some(adam(OpKind::Adam, [beta1, beta2, epsilon]))
            }
            OptimizerKind::AdamW { beta1, beta2, epsilon, hf } => {
                let mode = if hf { AdamWMode::Hf } else { AdamWMode::Torch };
                let mut template = adam(OpKind::AdamW, [beta1, beta2, epsilon]);
                template.attrs.push(("mode", word(mode.as_str())));
                Some(template)
            }
        }
    }
}

/// An attribute that is a scalar of f64.
pub(super) fn double(number: f64) -> AttrValue {
    let data = TensorData::from_bytes(DType::F64, &[], number.to_le_bytes().to_vec());
    AttrValue::Tensor(Arc::new(data.expect("one element")))
}

/// An attribute that is a word.
fn word(text: &str) -> AttrValue {
    AttrValue::String(text.as_bytes().into())
}

impl Optimizer {
    /// The words of the built-in optimizers.
    pub const WORDS: [&str; 4] = ["sgd", "adam", "adamw", "none"];

    /// The spelling of optimizers, for messages.
    pub const SPELLING: &str = "sgd[:momentum=X,dampening=X,nesterov=1], adam or adamw[:beta1=X,beta2=X,eps=X,mode=hf], each with \
         `weight_decay=X`; or none, for which gradients are outputs";
}

impl FromStr for Optimizer {
    type Err = SpecError;
    fn from_str(text: &str) -> Result<Optimizer, SpecError> {
        let mut given = Settings::of(text)?;
        let most = f64::from(f32::MAX);
        let (kind, decay, known) = match given.kind() {
            "none" => (OptimizerKind::None, 0.0, "none"),
            "sgd" => {
                let momentum = given.within("momentum", 0.0, most)?.unwrap_or(0.0);
                let dampening = given.within("dampening", 0.0, 1.0)?.unwrap_or(0.0);
                let nesterov = given.flag("nesterov")?;
                if nesterov && (momentum == 0.0 || dampening != 0.0) {
                    let expected = "a momentum and no dampening beside `nesterov`";
                    return Err(SpecError::new(expected, text));
                }
                (
                    OptimizerKind::Sgd { momentum, dampening, nesterov },
                    0.0,
                    "momentum, dampening, nesterov, weight_decay",
                )
            }
            kind @ ("adam" | "adamw") => {
                let beta1 = given.share("beta1")?.unwrap_or(0.9);
                let beta2 = given.share("beta2")?.unwrap_or(0.999);
                let epsilon = given.within("eps", 0.0, most)?.unwrap_or(1e-8);
                if kind == "adam" {
                    (OptimizerKind::Adam { beta1, beta2, epsilon }, 0.0, "beta1, beta2, eps, weight_decay")
                } else {
                    let hf = match given.word("mode").as_deref() {
                        None | Some("torch") => false,
                        Some("hf") => true,
                        Some(other) => {
                            let expected = "torch or hf for `mode`";
                            return Err(SpecError::new(expected, other));
                        }
                    };
                    let kind = OptimizerKind::AdamW { beta1, beta2, epsilon, hf };
                    (kind, 0.01, "beta1, beta2, eps, weight_decay, mode")
                }
            }
            other => {
                let expected = "sgd, adam, adamw or none, with `:key=value`";
                return Err(SpecError::new(expected, other).with_words(Optimizer::WORDS));
            }
        };
        let weight_decay = given.within("weight_decay", 0.0, most)?.unwrap_or(decay);
        given.finish(known)?;
        Ok(Optimizer { kind, weight_decay })
    }
}

impl fmt::Display for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decay = self.weight_decay;
        match &self.kind {
            OptimizerKind::None => f.write_str("none"),
            OptimizerKind::Custom(custom) => f.write_str(custom.name()),
            OptimizerKind::Sgd { momentum, dampening, nesterov } => {
                let nesterov = u8::from(*nesterov);
                write!(
                    f,
                    "sgd:momentum={momentum},dampening={dampening},nesterov={nesterov},weight_decay={decay}"
                )
            }
            OptimizerKind::Adam { beta1, beta2, epsilon } => {
                write!(f, "adam:beta1={beta1},beta2={beta2},eps={epsilon:e},weight_decay={decay}")
            }
            OptimizerKind::AdamW { beta1, beta2, epsilon, hf } => {
                let mode = if *hf { "hf" } else { "torch" };
                write!(
                    f,
                    "adamw:beta1={beta1},beta2={beta2},eps={epsilon:e},weight_decay={decay},mode={mode}"
                )
            }
        }
    }
}
