//! Checkpoints: the state of a step in a safetensors file, with the position of the training.
//!
//! The tensors have the names of the step's inputs, as in the state that `train-step` writes. The position of the
//! training is JSON text in the metadata, under [`POSITION`]; other readers of the file ignore it. A
//! [hash](crate::state_hash) of both reveals a damaged or edited file.

use super::dataset::Dataset;
use crate::batch::Batch;
use crate::error::Error;
use crate::execute::inputs::regular;
use crate::execute::trainer::Trainer;
use crate::execute::training::batches::Incomplete;
use crate::execute::training::options::TrainingOptions;
use crate::execute::training::schedule::Schedule;
use crate::onnx::ExportError;
use crate::safetensors::{self, Tensors};
use crate::state_hash::{self, HASH, POSITION};
use crate::train::State;
use ampc_passes::step::state::IDENTITY;
use ampc_runtime::TensorRef;
use ampc_runtime::backend::Choices;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_128;

/// The position of a training, and its options.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Position {
    /// The number of steps taken.
    pub step: u64,
    /// The number of steps that were skipped because a gradient was not finite.
    pub skipped: u64,
    /// The number of most recent consecutive steps without finite gradients or a finite loss.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed_in_a_row: u64,
    /// The total number of steps.
    pub steps: u64,
    /// The spelling of the learning-rate schedule.
    pub lr: String,
    /// The batch size.
    pub batch: u64,
    /// The number of samples.
    pub samples: u64,
    /// The seed of the sample order; `None` for the order of the data.
    pub seed: Option<u64>,
    /// True if an epoch drops samples that do not fill a batch.
    pub drops_incomplete: bool,
    /// The identity of the run, which is also in its log: a hash of its initial conditions. Resumed runs keep it.
    /// `None` in checkpoints of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Counts of the steps taken.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Taken {
    pub(super) steps: u64,
    /// The number of skipped steps.
    pub(super) skipped: u64,
    /// The number of most recent consecutive steps that were skipped or had an infinite loss.
    pub(super) failed_in_a_row: u64,
}

impl Position {
    pub(super) fn of(options: &TrainingOptions, data: &Dataset, taken: &Taken) -> Position {
        Position {
            step: taken.steps,
            skipped: taken.skipped,
            failed_in_a_row: taken.failed_in_a_row,
            steps: options.steps,
            lr: options.schedule.to_string(),
            batch: options.batch.unwrap_or_else(|| data.samples()),
            samples: data.samples(),
            seed: options.shuffles.then_some(options.seed),
            drops_incomplete: options.incomplete == Some(Incomplete::Dropped),
            run: None,
        }
    }

    /// The identity of a run that begins with a state of this hash. Two runs with the same identity and the same
    /// samples take the same steps.
    pub(super) fn identity(&self, step: Option<&str>, state: &str, schedule: &Schedule) -> String {
        let Position { steps, batch, samples, seed, drops_incomplete, .. } = self;
        let mut schedule = schedule.clone();
        if schedule.depends_on_steps() {
            schedule.steps = Some(*steps);
        }
        let text = format!("{step:?} {state} {schedule} {batch} {samples} {seed:?} {drops_incomplete}");
        format!("{:032x}", xxh3_128(text.as_bytes()))
    }

    /// A contradiction within the position of an edited or damaged file: expected and found.
    fn contradiction(&self) -> Option<String> {
        let Position { step, skipped, steps, batch, samples, .. } = self;
        if step > steps {
            return Some(format!(
                "expected at most {steps} steps, the total (`steps`), found {step} (`step`)"
            ));
        }
        if skipped > step {
            return Some(format!("expected at most {step} skipped steps (`skipped`), found {skipped}"));
        }
        if self.failed_in_a_row > *step {
            let found = self.failed_in_a_row;
            return Some(format!(
                "expected at most {step} steps in a row without finite gradients (`failed_in_a_row`), found {found}"
            ));
        }
        if *batch == 0 || batch > samples {
            return Some(format!("expected a batch of 1 to {samples} samples (`batch`), found {batch}"));
        }
        let lr = self.lr.parse::<Schedule>().err()?;
        Some(format!("`lr`: {lr}"))
    }

    /// The options that differ in another position and affect the continued training: the name of each, its value
    /// here, and its value there.
    pub fn differences(&self, other: &Position) -> Vec<(&'static str, String, String)> {
        let mut found = Vec::new();
        let mut compare = |name, a: String, b: String| {
            if a != b {
                found.push((name, a, b));
            }
        };
        let order = |seed: Option<u64>| seed.map_or_else(|| "none".into(), |seed| seed.to_string());
        compare("steps", self.steps.to_string(), other.steps.to_string());
        compare("lr", self.lr.clone(), other.lr.clone());
        compare("batch", self.batch.to_string(), other.batch.to_string());
        compare("samples", self.samples.to_string(), other.samples.to_string());
        compare("seed", order(self.seed), order(other.seed));
        let last = |drops: bool| if drops { "drop" } else { "keep" }.to_owned();
        compare("last", last(self.drops_incomplete), last(other.drops_incomplete));
        found
    }
}

/// The metadata key of a checkpoint's [`Algorithms`].
const ALGORITHMS: &str = "ampc.algorithms";

/// The device that wrote a checkpoint, and the algorithms that its libraries chose. Other devices and algorithms use
/// another order of additions, so a resumed run differs in its last bits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Algorithms {
    /// The name of the device, the versions of its libraries, and the options that change results.
    pub device: BTreeMap<String, String>,
    /// The algorithm of each operation.
    pub algorithms: BTreeMap<String, String>,
    /// A hash of the algorithms.
    pub digest: String,
}

impl Algorithms {
    /// The device of a trainer and the algorithms of its plans; `None` if no result depends on them.
    pub fn of(trainer: &Trainer) -> Option<Algorithms> {
        let Choices { device, algorithms } = trainer.choices();
        let algorithms: BTreeMap<String, String> = algorithms.into_iter().collect();
        let digest = format!("{:032x}", xxh3_128(format!("{algorithms:?}").as_bytes()));
        let device: BTreeMap<String, String> = device.into_iter().collect();
        (!device.is_empty()).then_some(Algorithms { device, algorithms, digest })
    }

    /// The entries that differ in another record: the name of each, its value here, and its value there. Algorithms
    /// are compared only between equal devices with equal libraries, and only for operations that both have.
    pub fn differences(&self, other: &Algorithms) -> Vec<(String, String, String)> {
        let of_device = differing(&self.device, &other.device);
        if of_device.is_empty() && self.digest != other.digest {
            return differing(&self.algorithms, &other.algorithms);
        }
        of_device
    }
}

/// The values that differ under keys that both have.
fn differing(a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) -> Vec<(String, String, String)> {
    let both = a.iter().filter_map(|(key, value)| Some((key, value, b.get(key)?)));
    both.filter(|(_, a, b)| a != b).map(|(key, a, b)| (key.clone(), a.clone(), b.clone())).collect()
}

/// The state of a file, and the position of the training that wrote it.
#[derive(Debug)]
pub struct Checkpoint {
    /// The tensors, by the names of the step's inputs.
    pub state: State,
    /// The position of the training; `None` for an initial state.
    pub position: Option<Position>,
    /// The [identity](crate::train::identity_of) of the step of the state, if the file has it.
    pub identity: Option<String>,
    /// The device that wrote the file; `None` if no result depends on it, or if an older version of ampc wrote the
    /// file.
    pub algorithms: Option<Algorithms>,
}

impl Checkpoint {
    /// Opens a safetensors file. Tensors are ranges of the file until they are read.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged, or has an impossible position.
    pub fn read(path: &Path) -> Result<Checkpoint, Error> {
        let bad = |reason: String| Error::Data { path: path.to_owned(), reason };
        regular(path)?;
        let (tensors, _) = Tensors::open(path)?.ok_or_else(|| safetensors::not_found(path))?;
        let mut state = State::new();
        for (name, entry) in tensors.iter() {
            let data = entry.read();
            state.push((name.to_owned(), Arc::new(data.ok_or_else(|| bad(entry.unsupported(name)))?)));
        }
        state_hash::check(&tensors, path)?;
        let position = tensors.metadata(POSITION).map(serde_json::from_str::<Position>).transpose();
        let position = position.map_err(|e| bad(format!("its metadata `{POSITION}` cannot be read: {e}")))?;
        if let Some(what) = position.as_ref().and_then(Position::contradiction) {
            return Err(bad(format!("its metadata `{POSITION}` contradicts itself: {what}")));
        }
        let identity = tensors.metadata(IDENTITY).map(str::to_owned);
        // An unreadable record of another version of ampc is not an error.
        let algorithms = tensors.metadata(ALGORITHMS).and_then(|text| serde_json::from_str(text).ok());
        Ok(Checkpoint { state, position, identity, algorithms })
    }
}

/// The hash of the state of a trainer.
///
/// # Errors
/// If the state cannot be read from the device.
pub(super) fn hash_of_state(trainer: &mut Trainer) -> Result<String, Error> {
    Ok(hash_of(&trainer.state_views()?, ""))
}

fn hash_of(views: &[(&str, TensorRef<'_>)], position: &str) -> String {
    let hashed = views
        .iter()
        .filter_map(|(name, view)| Some((*name, view.dtype(), view.dims(), xxh3_128(view.bytes()?))));
    state_hash::hash_of(hashed, position)
}

/// Writes the state of a trainer and the position of the training to a file atomically. An existing file is replaced
/// if `force` is set. Returns the size of the file in bytes.
pub(super) fn save(
    trainer: &mut Trainer,
    position: &Position,
    path: &Path,
    force: bool,
) -> Result<u64, Error> {
    trainer.refuse_unusable()?;
    let identity = trainer.identity().map(str::to_owned);
    let algorithms = Algorithms::of(trainer).map(|found| serde_json::to_string(&found).expect("text"));
    let views = trainer.state_views()?;
    let text = serde_json::to_string(position).expect("numbers and text");
    let tensors: u64 = views.iter().filter_map(|(_, view)| view.bytes()).map(|b| b.len() as u64).sum();
    let hash = hash_of(&views, &text);
    let mut written = 0;
    let mut batch = Batch::new();
    let staged = batch.stage_with(path, tensors, force, &[], |file| {
        let mut out = BufWriter::with_capacity(1 << 16, &mut *file);
        let identity = identity.as_deref().map(|identity| (IDENTITY, identity));
        let algorithms = algorithms.as_deref().map(|algorithms| (ALGORITHMS, algorithms));
        let told: Vec<(&str, &str)> =
            [(POSITION, &*text), (HASH, &*hash)].into_iter().chain(identity).chain(algorithms).collect();
        safetensors::write(&mut out, &views, &told)?;
        out.flush()?;
        drop(out);
        written = file.metadata()?.len();
        Ok(())
    });
    staged.map_err(ExportError::from)?;
    batch.commit()?;
    Ok(written)
}
