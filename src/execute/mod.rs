//! Runs models: values for their inputs, the runtime, their outputs, and the comparison of two models.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ampc::execute::{Inputs, prepare, run};
//!
//! let mut model = ampc::load("testdata/mlp.onnx")?;
//! let inputs = Inputs::random(&model.module, 1, &Default::default(), u64::MAX)?;
//! let mut session = prepare(&mut model.module, &ampc::runtime::Runtime::default())?;
//! let outputs = run(&mut session, &inputs.values)?;
//! assert_eq!(outputs[0].tensor().map(|t| t.dims()), Some(&[1, 10][..]));
//! # Ok(())
//! # }
//! ```
//!
//! [`verify`](verify::verify) runs two models on the same inputs and finds the first value in which they differ.
//! [`stats`] collects the range of every tensor on data.
//! [`judge`] gives the verdict on them and the errors of low products alone, and [`find_pins`] searches for nodes of
//! a rewritten model that must stay fp32.

/// The memory that a run takes, and its plans, before a constant is read.
pub mod memory {
    pub use crate::memory::{MemoryNeeds, Plans, memory_needs, plans};
}

pub mod agree;
mod batch_row;
mod bound;
mod dims;
pub mod inputs;
pub mod loops;
mod low_products;
mod number;
pub mod outputs;
pub mod pinned;
mod pins;
mod profile;
mod random;
pub mod report;
pub mod roofline;
mod scope;
pub mod search;
mod session;
mod shrink;
pub mod stats;
mod stored;
pub mod trainer;
pub mod training;
pub mod verify;

pub use self::memory::{MemoryNeeds, Plans, memory_needs, plans};
pub use crate::interface::{input_names, input_types, output_names, output_types};
pub use crate::run_errors::of_run;
pub use agree::{Agreement, agree, agree_in_type};
pub use inputs::{Inputs, TestData, read_test_data};
pub use low_products::{Excused, Judgement, judge};
pub use outputs::{Statistics, statistics};
pub use pins::{PinSearch, Pinned, find_pins};
pub use profile::StepTimes;
pub use report::VerifyReport;
pub use session::{bind, prepare, run, views};
pub use stored::{StoredTolerance, verify_stored};
pub use trainer::{StepResult, Trainer};
pub use verify::{Verification, VerifyOptions, of_outputs, verify, verify_draws};
