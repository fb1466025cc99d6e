//! The gotchas of precision rewriting, each with a test that is named after it (`g01_…`): what converters are known
//! to get wrong, kept from coming back.
//!
//! Tests of structure build a module from text or from ONNX messages, rewrite it, and look at the result. Numeric
//! ones also write the source, the rewritten model and its emulated export and run all three in ONNX Runtime, with
//! the Python that `AMPC_PYTHON` names; without it they say that the numeric part was skipped.
//!
//! `MUTATIONS.md` proves that tests cover the rules that no guard switches off: it lists a change of the code
//! and the test that the change breaks.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails and tells by panicking and printing"
)]

mod bodies;
mod constants;
mod contrib;
mod decisions;
mod emulated;
mod guards;
mod names;
mod order;
mod proto;
mod random;
mod runtime;
mod signatures;
mod structure;
mod support;
mod typing;
