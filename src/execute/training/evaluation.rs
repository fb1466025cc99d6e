//! The loss, and the accuracy of a classifier, on samples that are not trained on.

use super::batches::{Batches, Incomplete};
use super::dataset::Dataset;
use super::reader::BatchReader;
use crate::error::Error;
use crate::execute::batch_row::BatchRow;
use crate::execute::session::prepare;
use crate::execute::trainer::Trainer;
use crate::interface::input_names;
use crate::loaded::Model;
use crate::run_errors::of_run;
use crate::train::loss_model;
use ampc_ir::Module;
use ampc_passes::step::accuracy::add_classes;
use ampc_runtime::{DataRef, HostTensor, Runtime, Session};
use rustc_hash::FxHashMap;
use std::path::Path;

/// Evaluates the loss of a step with the current weights of a [`Trainer`], with running statistics in
/// BatchNormalization, and without dropout.
pub struct Evaluation {
    session: Session,
    /// The names of its inputs.
    inputs: Vec<String>,
    reader: BatchReader,
    /// True if predicted classes and label classes are outputs after the loss.
    has_classes: bool,
    /// The label that is ignored.
    ignored: Option<i64>,
}

impl std::fmt::Debug for Evaluation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evaluation")
            .field("inputs", &self.inputs)
            .field("data", self.data())
            .finish_non_exhaustive()
    }
}

/// The loss on the samples of an evaluation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Evaluated {
    /// The mean loss of batches, weighted by their samples, or by labels that are not ignored if some are ignored.
    pub loss: f64,
    /// The fraction of labels whose class has the largest score; `None` if the loss is not a classification loss, or
    /// all labels are ignored.
    pub accuracy: Option<f64>,
    /// The number of samples.
    pub samples: u64,
}

impl Evaluation {
    /// Evaluates the step of a trainer on the samples at `path`, in batches of `batch` samples.
    ///
    /// # Errors
    /// If the step does not name its loss, or the samples do not fit it.
    pub fn new(trainer: &Trainer, path: &Path, batch: u64, runtime: &Runtime) -> Result<Evaluation, Error> {
        let mut model = loss_model(Model::from(trainer.module().clone()))?;
        let classes = model.module.graph(model.module.main()).outputs().first().map(|output| output.value);
        let classes = classes.and_then(|loss| add_classes(&mut model.module, loss));
        let session = prepare(&mut model.module, runtime)?;
        let inputs = input_names(&model.module);
        let of_data = inputs.iter().filter(|name| !trainer.has_state(name));
        let wanted: Vec<String> = of_data.cloned().collect();
        let data = Dataset::open(path, &model.module, &wanted, runtime.limits.max_bytes)?;
        let size = data.batch().unwrap_or(batch.min(data.samples()));
        let incomplete = if data.batch().is_some() { Incomplete::Dropped } else { Incomplete::Kept };
        let batches = Batches::new(data.samples(), size, incomplete);
        Ok(Evaluation {
            session,
            inputs,
            reader: BatchReader::new(data, batches, size),
            has_classes: classes.is_some(),
            ignored: classes.and_then(|classes| classes.ignored),
        })
    }

    /// The samples.
    pub fn data(&self) -> &Dataset {
        self.reader.data()
    }

    /// The batches.
    pub fn batches(&self) -> &Batches {
        self.reader.batches()
    }

    /// Bytes of the memory in which the last batch was computed.
    pub fn allocated_bytes(&self) -> u64 {
        self.session.allocated_bytes() as u64
    }

    /// Computes the loss with the trainer's current state. `goes_on` is called before each batch: if it returns
    /// false, the evaluation ends without a result.
    ///
    /// # Errors
    /// If samples cannot be read or a node cannot be computed, or if the device memory of the step and of the
    /// evaluation exceeds the limit.
    pub fn run(
        &mut self,
        trainer: &mut Trainer,
        goes_on: impl Fn() -> bool,
    ) -> Result<Option<Evaluated>, Error> {
        self.session.reserve_device_bytes(trainer.device_bytes());
        let evaluated = self.evaluate(trainer, goes_on);
        // The memory of the session stays, for the next evaluation.
        let held = self.session.device_bytes().map_or(0, |bytes| bytes.total_in_flight());
        trainer.reserve_device_bytes(held);
        evaluated
    }

    #[expect(clippy::cast_precision_loss, reason = "samples and labels are counted, and far fewer than 2^53")]
    fn evaluate(
        &mut self,
        trainer: &mut Trainer,
        goes_on: impl Fn() -> bool,
    ) -> Result<Option<Evaluated>, Error> {
        let states: FxHashMap<&str, DataRef<'_>> =
            trainer.state_views()?.into_iter().map(|(name, view)| (name, DataRef::Tensor(view))).collect();
        let (mut sum, mut counted, mut samples, mut hits) = (0.0, 0, 0, Hits::default());
        for step in 0..self.batches().per_epoch() {
            if !goes_on() {
                return Ok(None);
            }
            let before = hits.labels;
            let (loss, rows) = self.batch(step, &states, &mut hits)?;
            let of_batch = if self.ignored.is_some() { hits.labels - before } else { rows };
            // The mean over no label is NaN, and has weight 0.
            if of_batch > 0 {
                sum += loss * of_batch as f64;
            }
            counted += of_batch;
            samples += rows;
        }
        let accuracy = (hits.labels > 0).then(|| hits.right as f64 / hits.labels as f64);
        Ok(Some(Evaluated { loss: sum / counted as f64, accuracy, samples }))
    }

    /// Computes the loss of a batch, counts its labels, and returns its number of samples.
    fn batch(
        &mut self,
        step: u64,
        states: &FxHashMap<&str, DataRef<'_>>,
        hits: &mut Hits,
    ) -> Result<(f64, u64), Error> {
        let read = self.reader.read(step)?;
        let named: Vec<(&str, &HostTensor)> = read.data.named(read.batch).collect();
        let given: FxHashMap<&str, DataRef<'_>> =
            named.iter().map(|(name, tensor)| (*name, DataRef::Tensor(tensor.view()))).collect();
        let value = |name: &String| given.get(name.as_str()).or_else(|| states.get(name.as_str())).copied();
        let values: Vec<Option<DataRef<'_>>> = self.inputs.iter().map(value).collect();
        let (mut loss, mut chosen) = (f64::NAN, Vec::new());
        let (has_classes, ignored) = (self.has_classes, self.ignored);
        let ran = self.session.run_to(&values, |output, data| {
            let Some(tensor) = data.tensor() else { return };
            match output {
                0 => loss = tensor.f64s().ok().and_then(|mut numbers| numbers.next()).unwrap_or(f64::NAN),
                1 if has_classes => chosen.extend(tensor.i64s().into_iter().flatten()),
                _ if has_classes => hits.count(&chosen, tensor.i64s().into_iter().flatten(), ignored),
                _ => {}
            }
        });
        ran.map_err(|error| {
            let module: &Module = self.session.module();
            let row = BatchRow::of(module, &error, &named);
            read.data.with_sample(of_run(module, &error), row.as_ref(), read.samples)
        })?;
        Ok((loss, read.samples.len() as u64))
    }
}

/// The number of labels, and the number of labels with the largest score.
#[derive(Default)]
struct Hits {
    right: u64,
    labels: u64,
}

impl Hits {
    fn count(&mut self, chosen: &[i64], labels: impl Iterator<Item = i64>, ignored: Option<i64>) {
        for (chosen, label) in chosen.iter().zip(labels) {
            if ignored != Some(label) {
                self.labels += 1;
                self.right += u64::from(*chosen == label);
            }
        }
    }
}
