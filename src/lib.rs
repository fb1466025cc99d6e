//! A mixed-precision compiler for computation graphs.
//!
//! ampc reads an ONNX model into a graph IR, decides the precision of every operator, places casts where
//! precisions meet, and writes the model back: always a valid model, with a reason for every decision.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let out = dir.path().join("mlp.fp16.onnx");
//! let model = ampc::load("testdata/mlp.onnx")?;
//! let rewritten = ampc::rewrite(model, &ampc::RewriteOptions::default())?;
//! println!("{} casts inserted", rewritten.report.casts.inserted);
//! ampc::save(&rewritten.model, &out, &ampc::SaveOptions::default())?;
//! # assert_eq!(rewritten.report.casts.inserted, 2);
//! # Ok(())
//! # }
//! ```
//!
//! A framework that is not ONNX builds a module with [`ir::Builder`] and rewrites it the same way
//! (`examples/framework.rs`), or writes its graph as [`json`]. Modules: [`ir`] (the graph), [`passes`] (the
//! decisions), [`onnx`] (the file format), and with the feature `run` `execute` and `runtime` (running and
//! comparing models).
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `run` (default) | modules `execute`, `runtime` and `onnx::data`: running models, and comparing two of them |
//! | `cuda` (default) | the CUDA backend of the runtime, on Linux x86-64; its libraries are loaded when a device is opened |
//! | `cli` (default) | the binary, whose commands `run` and `verify` need the feature `run` |
//!
//! Without default features ampc loads, rewrites, checks, emulates and saves.

pub use ampc_ir as ir;
pub use ampc_passes as passes;
#[cfg(feature = "run")]
pub use ampc_runtime as runtime;

mod batch;
mod bytes;
#[cfg(feature = "run")]
pub mod device;
mod digest;
pub mod dot;
pub mod error;
#[cfg(feature = "run")]
pub mod execute;
pub mod files;
mod foreign;
mod identity;
#[cfg(feature = "run")]
mod interface;
pub mod json;
mod loaded;
#[cfg(feature = "run")]
mod memory;
pub mod model;
pub mod onnx;
pub mod options;
pub mod report;
pub mod rewrite;
#[cfg(feature = "run")]
mod run_errors;
mod safetensors;
mod state_hash;
mod temporary;
pub mod text_files;
pub mod train;

/// The programs in documents, which are compiled as programs of users are.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[cfg(feature = "run")]
    #[doc = include_str!("../docs/run.md")]
    mod run {}
    #[doc = include_str!("../docs/training.md")]
    mod training {}
}

pub use error::{Error, ErrorKind};
pub use model::{Model, SaveOptions, load, save};
pub use options::{Emit, RewriteOptions};
pub use report::Report;
pub use rewrite::{Rewritten, check, emulate, rewrite};
