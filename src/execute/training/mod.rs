//! Training: runs a step over samples in an order that depends on a seed, with a learning-rate schedule and
//! checkpoints for resumption.
//!
//! A [`Training`] is a [`Trainer`](super::Trainer) with a [`Dataset`], [`Batches`] and a [`Schedule`]. Its next step
//! depends only on these and on the number of steps taken. A training that was saved ([`Training::save`]) and resumed
//! ([`Checkpoint`]) is bit-equal to an uninterrupted run.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ampc::execute::Trainer;
//! use ampc::execute::training::{Checkpoint, Dataset, Training, TrainingOptions};
//!
//! let checkpoint = Checkpoint::read("state.safetensors".as_ref())?;
//! let trainer = Trainer::new(ampc::load("step.onnx")?, &checkpoint.state, &ampc::runtime::Runtime::default())?;
//! let data = Dataset::of_batches("data.npz".as_ref(), &trainer, u64::MAX)?;
//! let options = TrainingOptions { steps: 1000, schedule: "cosine:lr=1e-3".parse()?, ..TrainingOptions::default() };
//! let mut training = Training::new(trainer, data, options)?;
//! while let Some(step) = training.step()? {
//!     println!("{} {:?}", step.number, step.result.loss);
//! }
//! training.save("trained.safetensors".as_ref(), true)?;
//! # Ok(())
//! # }
//! ```

mod arrays;
mod batches;
mod checkpoint;
mod dataset;
mod divergence;
mod evaluation;
mod finite;
mod histogram;
mod options;
mod reader;
mod schedule;
mod steps;
mod updates;

pub(in crate::execute) use arrays::{is_array_file, is_set, natural, refuse_mixture};
pub use batches::{Batches, Incomplete};
pub use checkpoint::{Algorithms, Checkpoint, Position};
pub use dataset::{Batch, Dataset};
pub use divergence::{Divergence, Symptom};
pub use evaluation::{Evaluated, Evaluation};
pub use histogram::{GradientHistograms, Log2Histogram};
pub use options::{BATCH, MAX_SKIPPED, NO_OPTIMIZER, TrainingOptions};
pub use schedule::{Schedule, ScheduleKind};
pub use steps::{StepRecord, Training};
pub use updates::LostUpdates;
