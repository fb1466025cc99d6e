//! Plans for described devices, without a GPU or a driver.

use super::descriptor::{Attribute as A, Descriptor, Kind};
use super::graph::ALIGNMENT;
use super::plan::{self, Choice, Conditions, Target};
use super::problem::Problem;
use super::{Attention, AttentionGradient, Convolution, DnnError, Engine, loaded_version};
use crate::cuda::presence;
use std::path::PathBuf;

/// A described device, for which plans can be created but not run.
pub struct Properties {
    descriptor: Descriptor,
    version: usize,
}

/// A plan as cuDNN describes it.
#[derive(Clone, Debug)]
pub struct Described {
    /// The engine chosen.
    pub engine: Engine,
    /// Bytes of workspace.
    pub workspace: usize,
    /// Engines that the heuristics prefer but that are rejected, each with the reason.
    pub refused: Vec<(Engine, String)>,
    /// The size of the serialized plan in the disk cache; `None` if cuDNN cannot serialize it.
    pub kept: Option<usize>,
}

impl Choice {
    pub(super) fn described(&self) -> Described {
        let Choice { engine, workspace, refused, .. } = self;
        let kept = self.saved().map(|saved| saved.len());
        Described { engine: engine.clone(), workspace: *workspace, refused: refused.clone(), kept }
    }
}

impl Properties {
    /// Parses a device description in the JSON format of `CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION`.
    ///
    /// # Errors
    /// If cuDNN is absent or too old, or rejects the text.
    pub fn from_json(json: &str, folders: &[PathBuf]) -> Result<Properties, DnnError> {
        presence::load_dnn(folders, None)?;
        let version = loaded_version();
        let descriptor = Descriptor::new(Kind::CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)?
            .set(A::CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, json.as_bytes())?
            .finalized()?;
        Ok(Properties { descriptor, version })
    }

    /// The version of cuDNN, in NVIDIA's numbering.
    pub fn version(&self) -> usize {
        self.version
    }

    /// Creates the plan of a convolution for the device. With `tf32`, engines may round f32 operands to TF32.
    ///
    /// # Errors
    /// If cuDNN rejects the graph or has no engine for it.
    pub fn plan(&self, convolution: &Convolution, tf32: bool) -> Result<Described, DnnError> {
        self.plan_problem(&Problem::Convolution(Box::new(convolution.clone())), tf32)
    }

    /// Creates the plan of an attention for the device.
    ///
    /// # Errors
    /// If cuDNN rejects the graph or has no engine for it.
    pub fn plan_attention(&self, attention: &Attention) -> Result<Described, DnnError> {
        self.plan_problem(&Problem::Attention(Box::new(attention.clone())), false)
    }

    /// Creates the plan of the gradients of an attention for the device.
    ///
    /// # Errors
    /// If cuDNN rejects the graph or has no engine for it.
    pub fn plan_attention_gradient(&self, gradient: &AttentionGradient) -> Result<Described, DnnError> {
        self.plan_problem(&Problem::Gradient(Box::new(gradient.clone())), false)
    }

    fn plan_problem(&self, problem: &Problem, tf32: bool) -> Result<Described, DnnError> {
        let (alignment, workspace) = (ALIGNMENT, problem.workspace());
        let conditions = Conditions { tf32, alignment, workspace, skipped: 0 };
        let choice = plan::choose(Target::Properties(&self.descriptor), problem, conditions)?;
        Ok(choice.described())
    }
}
