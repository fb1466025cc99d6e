//! The presets: policies as files of this crate, in the format of those that users write.
//!
//! Those that follow another system are made of its own lists (`presets/sources/`) through a table of what its names
//! are called in ONNX (`presets/mappings/`); `scripts/diff_presets.py` says where the three differ, and a test here
//! fails if they do. One is no file but a family: `jmp:POLICY`.

use super::{Policy, PolicyError, jmp};
use crate::suggest::{did_you_mean, nearest};

/// A policy with a name.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The name; of a family, with what stands behind it in capitals.
    pub name: &'static str,
    /// A line about it.
    pub about: &'static str,
    /// The policy file; of a family, none.
    file: Option<&'static str>,
}

macro_rules! preset {
    ($name:literal, $about:literal) => {
        Preset { name: $name, about: $about, file: Some(include_str!(concat!("presets/", $name, ".json"))) }
    };
}

/// All presets.
pub const PRESETS: &[Preset] = &[
    preset!("safe", "the operator table's classes and all guards: the default"),
    preset!(
        "all",
        "everything the schemas admit, without numeric lists and guards but for constants that do not fit"
    ),
    preset!("perf", "as safe, but also low what kernels sum in fp32 inside and whose results stay in range"),
    preset!("zero-risk", "nothing is narrowed: only what moves values that are 16-bit already stays so"),
    preset!("torch", "the lists of PyTorch's autocast on CUDA; what they leave out is inferred"),
    preset!("tf", "the lists of TensorFlow's auto_mixed_precision on CUDA; what they leave out stays fp32"),
    preset!("paddle-o1", "the lists of Paddle's static AMP at level O1; what they leave out stays fp32"),
    preset!("paddle-o2", "Paddle's level O2: everything the schemas admit but its extra black list"),
    preset!("nvidia", "NVIDIA's recipe: products low, reductions and powers fp32, the rest inferred"),
    preset!("fastai", "fastai's model in half precision: everything but batch normalization and losses"),
    Preset {
        name: "jmp:POLICY",
        about: "everything in the compute type of a policy of jmp, such as jmp:p=f32,c=f16,o=f32",
        file: None,
    },
];

impl Policy {
    /// The preset with this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn preset(name: &str) -> Result<Policy, PolicyError> {
        if let Some(text) = name.strip_prefix(jmp::PREFIX) {
            return jmp::policy(text);
        }
        let preset = PRESETS.iter().find_map(|p| p.file.filter(|_| p.name == name));
        match preset {
            Some(text) => Policy::from_preset(name, text),
            None => Err(unknown(name)),
        }
    }
}

fn unknown(name: &str) -> PolicyError {
    let names = PRESETS.iter().map(|p| p.name);
    // Of a family, what is before the colon is what one can get nearly right.
    let family = name.split_once(':').map_or(name, |(family, _)| family);
    let is_family = |p: &&Preset| p.file.is_none();
    let families = PRESETS.iter().filter(is_family).filter_map(|p| Some((p.name, p.name.split_once(':')?.0)));
    let near_family = || families.clone().find(|&(_, f)| nearest(family, [f]).is_some()).map(|(p, _)| p);
    PolicyError::UnknownPreset {
        found: name.to_owned(),
        hint: did_you_mean(nearest(name, names.clone()).or_else(near_family)),
        presets: names.collect::<Vec<_>>().join(", "),
    }
}
