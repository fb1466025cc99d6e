//! The loss on samples that are not trained on.

use super::batches::{Batches, Incomplete};
use super::dataset::{Batch, Dataset};
use crate::error::Error;
use crate::execute::trainer::Trainer;
use crate::execute::{input_names, of_run, prepare};
use crate::model::Model;
use crate::train::loss_model;
use ampc_runtime::{Cpu, DataRef, Executable};
use rustc_hash::FxHashMap;
use std::path::Path;

/// What evaluates the loss of a step, with the weights of a [`Trainer`] where they are, BatchNormalization with running
/// statistics, and no dropout.
pub struct Evaluation {
    executable: Executable,
    /// The names of its inputs.
    inputs: Vec<String>,
    data: Dataset,
    batches: Batches,
    buffers: [Option<Batch>; 2],
    size: u64,
}

impl std::fmt::Debug for Evaluation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evaluation")
            .field("inputs", &self.inputs)
            .field("data", &self.data)
            .finish_non_exhaustive()
    }
}

/// The loss on the samples of an evaluation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Evaluated {
    /// The mean of the losses of batches, each counted with its samples.
    pub loss: f64,
    /// How many samples it is of.
    pub samples: u64,
}

impl Evaluation {
    /// Evaluates the step of a trainer on the samples at `path`, in batches of `batch` samples.
    ///
    /// # Errors
    /// If the step does not say what its loss is, or the samples do not fit it.
    pub fn new(trainer: &Trainer, path: &Path, batch: u64, cpu: &Cpu) -> Result<Evaluation, Error> {
        let mut model = loss_model(Model::from(trainer.module().clone()))?;
        let executable = prepare(&mut model.module, cpu)?;
        let inputs = input_names(&model.module);
        let of_data = inputs.iter().filter(|name| !trainer.has_state(name));
        let wanted: Vec<String> = of_data.cloned().collect();
        let data = Dataset::open(path, &model.module, &wanted, cpu.max_bytes)?;
        let size = data.batch().unwrap_or(batch.min(data.samples()));
        let incomplete = if data.batch().is_some() { Incomplete::Dropped } else { Incomplete::Kept };
        let batches = Batches::new(data.samples(), size, incomplete);
        Ok(Evaluation { executable, inputs, data, batches, buffers: [None, None], size })
    }

    /// The samples.
    pub fn data(&self) -> &Dataset {
        &self.data
    }

    /// The batches.
    pub fn batches(&self) -> &Batches {
        &self.batches
    }

    /// Computes the loss with the state that the trainer has now.
    ///
    /// # Errors
    /// If samples cannot be read or a node cannot be computed.
    #[expect(clippy::cast_precision_loss, reason = "samples are counted, and far fewer than 2^53")]
    pub fn run(&mut self, trainer: &Trainer) -> Result<Evaluated, Error> {
        let states: FxHashMap<&str, DataRef<'_>> =
            trainer.state_views().into_iter().map(|(name, view)| (name, DataRef::Tensor(view))).collect();
        let (mut sum, mut samples) = (0.0, 0);
        for step in 0..self.batches.per_epoch() {
            let list = self.batches.samples(step);
            let rows = list.len() as u64;
            let buffer = &mut self.buffers[usize::from(rows < self.size)];
            let batch = match buffer {
                Some(batch) => batch,
                None => buffer.insert(self.data.buffer(rows)?),
            };
            self.data.read(list, batch)?;
            let given: FxHashMap<&str, DataRef<'_>> =
                self.data.named(batch).map(|(name, tensor)| (name, DataRef::Tensor(tensor.view()))).collect();
            let value =
                |name: &String| given.get(name.as_str()).or_else(|| states.get(name.as_str())).copied();
            let values: Vec<Option<DataRef<'_>>> = self.inputs.iter().map(value).collect();
            let mut loss = f64::NAN;
            let ran = self.executable.run_to(&values, |_, data| {
                let number = data.tensor().and_then(|tensor| tensor.f64s().ok()?.next());
                loss = number.unwrap_or(f64::NAN);
            });
            ran.map_err(|error| of_run(self.executable.module(), &error))?;
            sum += loss * rows as f64;
            samples += rows;
        }
        Ok(Evaluated { loss: sum / (samples.max(1) as f64), samples })
    }
}
