//! `scale-loss`: the loss scale becomes an input, which is the gradient of the loss.
//!
//! The loss itself is not multiplied: the step returns the plain loss, and a large scale cannot make it
//! overflow. A [`Scaler`] defines how the scale changes; each preset follows the system that it is named after.

use super::spec::{Settings, SpecError};
use crate::graph::roles::SEED;
use crate::pass::options::{PassOption, Setting, Spelled, option, settings};
use crate::pass::{Changed, Pass, PassCx, PassError};
use crate::training::names::{public_name_or_warn, state_input};
use crate::training::parameters::add_role;
use ampc_ir::{Module, Payload, TensorData};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Effect of gradients that are not finite.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnOverflow {
    /// The step is skipped: only the scaler's state and the offset of dropouts change.
    Skip,
    /// SGD takes the step with gradients of 0, and running statistics move on; Adam, AdamW and custom optimizers skip it.
    ZeroGrad,
}

/// How scale times factor is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arith {
    /// The factor in f32, the product in f32.
    F32Product,
    /// The product in f64, rounded to f32.
    F64Product,
}

/// A loss scale that adapts: it grows after `interval` steps whose gradients were finite, and backs off where they were
/// not.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Dynamic {
    /// The scale in the beginning.
    pub init: f64,
    /// The factor by which the scale grows.
    pub growth: f64,
    /// The factor by which the scale backs off.
    pub backoff: f64,
    /// After how many finite steps it grows.
    pub interval: u32,
    /// After how many steps in a row that are not finite it backs off.
    pub backoff_every: u32,
    /// It never falls below.
    pub min: Option<f64>,
    /// It never grows beyond; without it, it grows while it is a finite f32.
    pub max: Option<f64>,
    /// True if a step that is not finite sets the count of finite ones back to 0.
    pub reset_good_on_overflow: bool,
    /// The effect of gradients that are not finite.
    pub on_overflow: OnOverflow,
    /// How products are computed.
    pub arith: Arith,
}

impl Default for Dynamic {
    /// The preset `ampc`.
    fn default() -> Self {
        Dynamic::preset("ampc").expect("it is a preset")
    }
}

/// A loss scaler.
#[derive(Clone, PartialEq, Debug)]
pub enum Scaler {
    /// No scale, no check.
    None,
    /// Always the same scale; steps that are not finite are skipped.
    Static(f64),
    /// One that adapts.
    Dynamic(Dynamic),
}

/// The presets by name.
pub const PRESETS: &[&str] =
    &["ampc", "torch", "paddle-fleet", "paddle-old", "paddle-new", "jmp", "fastai", "ort-trainer"];

impl Dynamic {
    /// The preset of a name.
    ///
    /// `torch` is torch.amp.GradScaler, `paddle-*` are Paddle's AMP configurations, `jmp` is jmp.DynamicLossScale, `fastai`
    /// fastai's MixedPrecision of version 1, `ort-trainer` that of ONNX Runtime training. `ampc` is torch's with a scale of
    /// at least 1, where torch's can fall to 0.
    pub fn preset(name: &str) -> Option<Dynamic> {
        let torch = Dynamic {
            init: 65536.0,
            growth: 2.0,
            backoff: 0.5,
            interval: 2000,
            backoff_every: 1,
            min: None,
            max: None,
            reset_good_on_overflow: true,
            on_overflow: OnOverflow::Skip,
            arith: Arith::F64Product,
        };
        let paddle = Dynamic {
            min: Some(1.0),
            on_overflow: OnOverflow::ZeroGrad,
            arith: Arith::F32Product,
            ..torch.clone()
        };
        Some(match name {
            "ampc" => Dynamic { min: Some(1.0), ..torch },
            "torch" => torch,
            "paddle-fleet" => Dynamic { init: 32768.0, interval: 1000, backoff_every: 2, ..paddle },
            "paddle-old" => {
                Dynamic { init: 32768.0, backoff: 0.8, interval: 1000, backoff_every: 2, ..paddle }
            }
            "paddle-new" => paddle,
            "jmp" => Dynamic { init: 32768.0, min: Some(1.0), ..torch },
            "fastai" => Dynamic { init: 16_777_216.0, interval: 500, reset_good_on_overflow: false, ..torch },
            "ort-trainer" => Dynamic { min: Some(1.0), max: Some(16_777_216.0), ..torch },
            _ => return None,
        })
    }

    /// A scaler as JSON has it: all fields by name.
    ///
    /// # Errors
    /// The problem of the text.
    pub fn from_json(text: &str) -> Result<Dynamic, String> {
        let dynamic: Dynamic = serde_json::from_str(text).map_err(|error| error.to_string())?;
        match dynamic.problem() {
            Some(problem) => Err(problem),
            None => Ok(dynamic),
        }
    }

    /// The reason why a configuration is invalid.
    pub fn problem(&self) -> Option<String> {
        #[expect(clippy::cast_possible_truncation, reason = "factors may be rounded to f32")]
        let factor = |number: f64| number as f32;
        let counts = |n: u32| (1..=i32::MAX.unsigned_abs()).contains(&n);
        let ordered =
            |name: &str, ok: bool, expected: &str| (!ok).then(|| format!("`{name}` has to be {expected}"));
        ordered("init", is_scale(self.init), SCALES)
            .or_else(|| {
                ordered("growth", factor(self.growth) > 1.0 && factor(self.growth).is_finite(), GROWTHS)
            })
            .or_else(|| {
                ordered("backoff", factor(self.backoff) > 0.0 && factor(self.backoff) < 1.0, BACKOFFS)
            })
            .or_else(|| ordered("interval", counts(self.interval), COUNTS))
            .or_else(|| ordered("backoff_every", counts(self.backoff_every), COUNTS))
            .or_else(|| {
                ordered("min", self.min.is_none_or(|min| min >= 0.0 && min <= self.init), "from 0 to `init`")
            })
            .or_else(|| {
                let is_bound = |max: f64| max >= self.init && max <= f64::from(f32::MAX);
                ordered("max", self.max.is_none_or(is_bound), "from `init` to the largest number of f32")
            })
    }
}

/// The numbers that can be factors and counts of a dynamic scaler.
const GROWTHS: &str = "greater than 1, and finite in f32";
const BACKOFFS: &str = "between 0 and 1 in f32";
const COUNTS: &str = "from 1 to 2147483647";

/// The numbers that can be loss scales.
pub const SCALES: &str = "a positive number that f32 holds and whose reciprocal is finite in f32";

/// True if a number is a loss scale. Gradients are multiplied with its reciprocal in f32, which is infinite for numbers
/// below 2.94e-39: every step would be skipped.
pub fn is_scale(scale: f64) -> bool {
    #[expect(clippy::cast_possible_truncation, reason = "a loss scale is an f32")]
    let reciprocal = (scale as f32).recip();
    scale > 0.0 && scale <= f64::from(f32::MAX) && reciprocal.is_finite()
}

impl Scaler {
    /// True if a step whose gradients are not finite is skipped as a whole; otherwise SGD and running
    /// statistics are updated.
    pub(super) fn skips(&self) -> bool {
        match self {
            Scaler::None | Scaler::Static(_) => true,
            Scaler::Dynamic(dynamic) => dynamic.on_overflow == OnOverflow::Skip,
        }
    }
}

impl FromStr for Scaler {
    type Err = SpecError;
    /// `none`, `static:1024`, the name of a preset, with settings after it or without: `torch:init=1024,interval=50`; or
    /// JSON.
    fn from_str(text: &str) -> Result<Scaler, SpecError> {
        if text == "none" {
            return Ok(Scaler::None);
        }
        if let Some(number) = text.strip_prefix("static:") {
            let scale = number.parse().ok().filter(|&scale| is_scale(scale));
            let wrong = || SpecError::new(format!("{SCALES} after `static:`"), number);
            return scale.map(Scaler::Static).ok_or_else(wrong);
        }
        if text.starts_with('{') {
            let read = Dynamic::from_json(text);
            return read.map(Scaler::Dynamic).map_err(|problem| SpecError::new("a scaler", problem));
        }
        let mut given = Settings::of(text)?;
        let Some(mut dynamic) = Dynamic::preset(given.kind()) else {
            let expected = format!("none, static:N, a JSON file or one of {}", PRESETS.join(", "));
            return Err(SpecError::new(expected, given.kind()).with_words(PRESETS.iter().copied()));
        };
        let number = "a number";
        let fields =
            [("init", &mut dynamic.init), ("growth", &mut dynamic.growth), ("backoff", &mut dynamic.backoff)];
        for (key, field) in fields {
            *field = given.number(key, number)?.unwrap_or(*field);
        }
        dynamic.interval = given.number("interval", number)?.unwrap_or(dynamic.interval);
        dynamic.backoff_every = given.number("backoff_every", number)?.unwrap_or(dynamic.backoff_every);
        dynamic.min = given.number("min", number)?.or(dynamic.min);
        dynamic.max = given.number("max", number)?.or(dynamic.max);
        given.finish("init, growth, backoff, interval, backoff_every, min, max")?;
        match dynamic.problem() {
            Some(problem) => Err(SpecError::new(problem.replace(" has to be ", " to be "), text)),
            None => Ok(Scaler::Dynamic(dynamic)),
        }
    }
}

impl fmt::Display for Scaler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dynamic = match self {
            Scaler::None => return f.write_str("none"),
            Scaler::Static(scale) => return write!(f, "static:{scale}"),
            Scaler::Dynamic(dynamic) => dynamic,
        };
        // The preset that it differs from least, and in what.
        let differences = |name: &str| {
            let preset = Dynamic::preset(name)?;
            let mut list = Vec::new();
            for (key, a, b) in [
                ("init", preset.init, dynamic.init),
                ("growth", preset.growth, dynamic.growth),
                ("backoff", preset.backoff, dynamic.backoff),
                ("interval", preset.interval.into(), dynamic.interval.into()),
                ("backoff_every", preset.backoff_every.into(), dynamic.backoff_every.into()),
            ] {
                if a != b {
                    list.push(format!("{key}={b}"));
                }
            }
            for (key, a, b) in [("min", preset.min, dynamic.min), ("max", preset.max, dynamic.max)] {
                match b {
                    _ if a == b => {}
                    Some(b) => list.push(format!("{key}={b}")),
                    None => return None,
                }
            }
            let same = preset.reset_good_on_overflow == dynamic.reset_good_on_overflow
                && preset.on_overflow == dynamic.on_overflow
                && preset.arith == dynamic.arith;
            same.then_some((list, name.to_owned()))
        };
        let best = PRESETS.iter().filter_map(|name| differences(name)).min_by_key(|(list, _)| list.len());
        match best {
            Some((list, name)) if list.is_empty() => f.write_str(&name),
            Some((list, name)) => write!(f, "{name}:{}", list.join(",")),
            None => f.write_str(&serde_json::to_string(dynamic).map_err(|_| fmt::Error)?),
        }
    }
}

/// The pass.
#[derive(Clone, Debug)]
pub struct ScaleLoss {
    /// The scaler.
    pub scaler: Scaler,
}

impl Spelled for ScaleLoss {
    const NAME: &'static str = "scale-loss";
    const ABOUT: &'static str = "turns the loss scale into an input, as the gradient of the loss";
    const OPTIONS: &'static [PassOption<Self>] = &[PassOption {
        def: option("scaler", "as `train-step --scaler`", Some("ampc")),
        print: |pass| Some(Setting::word(&pass.scaler)),
        read: |pass, given| given.read(|word| word.parse().ok()).map(|scaler| pass.scaler = scaler),
    }];
    fn blank() -> Self {
        ScaleLoss { scaler: Scaler::Dynamic(Dynamic::preset("ampc").expect("it is a preset")) }
    }
}

/// The name of the input that is the loss scale.
pub const SCALE: &str = "loss_scale";

impl Pass for ScaleLoss {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn options(&self) -> Vec<(&'static str, Setting)> {
        settings(self)
    }
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let scale = match &self.scaler {
            Scaler::None => return Ok(Changed::No),
            Scaler::Static(scale) => *scale,
            Scaler::Dynamic(dynamic) => dynamic.init,
        };
        #[expect(clippy::cast_possible_truncation, reason = "a loss scale is an f32")]
        let data = TensorData::from_f32(&[], &[scale as f32]).expect("one element");
        let name = public_name_or_warn(module, SCALE, cx);
        let seed = match self.scaler {
            Scaler::Dynamic(_) => state_input(module, name, data),
            Scaler::Static(_) | Scaler::None => {
                module.add_constant(module.main(), name, Payload::Dense(Arc::new(data)))
            }
        };
        add_role(module, SEED, vec![seed]);
        Ok(Changed::Yes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalers_are_read_as_they_are_spelled() {
        let torch = Dynamic::preset("torch").unwrap();
        let own = Dynamic { min: None, on_overflow: OnOverflow::ZeroGrad, ..torch.clone() };
        let dynamic = PRESETS.iter().map(|name| Dynamic::preset(name).unwrap());
        let settings = Dynamic { interval: 7, backoff: 0.25, max: Some(131_072.0), ..torch };
        let mut all: Vec<Scaler> = dynamic.chain([settings, own]).map(Scaler::Dynamic).collect();
        all.extend([Scaler::None, Scaler::Static(0.5)]);
        for scaler in all {
            let text = scaler.to_string();
            assert_eq!(text.parse().as_ref(), Ok(&scaler), "{text}");
        }
    }

    #[test]
    fn scales_have_finite_reciprocals() {
        for number in ["0", "-1", "1e-46", "1e-40", "2.9e-39", "1e39", "inf", "nan"] {
            for text in [format!("static:{number}"), format!("torch:init={number}")] {
                let error = text.parse::<Scaler>().unwrap_err().to_string();
                assert!(error.contains("whose reciprocal is finite"), "{text}: {error}");
            }
        }
        for number in ["3e-39", "1", "3.4028234663852886e38"] {
            assert!(format!("static:{number}").parse::<Scaler>().is_ok(), "{number}");
        }
    }
}
