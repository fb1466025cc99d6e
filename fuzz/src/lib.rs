//! Fuzz targets: what holds for every input, however odd.
//!
//! A target is a function of bytes that panics where a law is broken. `scripts/fuzz` runs them under libFuzzer, which
//! keeps inputs that reach new code and changes those further; `tests/replay.rs` runs them on their [`seeds`] and on
//! the inputs that once found something (`regressions/TARGET/`), without libFuzzer.
//!
//! The fuzzer is guided by coverage, which stable Rust can measure (`-Cpasses=sancov-module`). There is no
//! address sanitizer, which needs a nightly toolchain and finds little in a program without unsafe code;
//! panics, overflows, inputs that take long and memory that an input has no right to are found without.

#![allow(clippy::unwrap_used, reason = "a target fails by panicking")]

mod laws;
mod pipeline;
mod policy;
#[expect(dead_code, reason = "tests ask for more")]
#[path = "../../tests/common/random_graphs.rs"]
mod random_graphs;
#[path = "../../tests/common/random_options.rs"]
mod random_options;
mod readers;
mod rewrite;
mod seeds;

pub use pipeline::pipeline;
pub use policy::policy;
pub use readers::{importer, json, text};
pub use rewrite::{CASTS, rewrite};
pub use seeds::{seeds, write_seeds};

#[cfg(fuzzing)]
pub use libfuzzer_sys;

/// A target: panics if the input breaks a law.
pub type Target = fn(&[u8]);

/// All targets.
pub const TARGETS: &[(&str, Target)] = &[
    ("importer", importer),
    ("text", text),
    ("json", json),
    ("policy", policy),
    ("pipeline", pipeline),
    ("rewrite", rewrite),
];

/// The entry of a program that libFuzzer drives; without libFuzzer, one that says so.
#[cfg(fuzzing)]
#[macro_export]
macro_rules! fuzz_target {
    ($target:ident) => {
        $crate::libfuzzer_sys::fuzz_target!(
            init: $crate::write_seeds(stringify!($target)).expect("seeds can be written"),
            |bytes: &[u8]| $crate::$target(bytes)
        );
    };
}

/// The entry of a program that libFuzzer drives; without libFuzzer, one that runs the target on files.
#[cfg(not(fuzzing))]
#[macro_export]
macro_rules! fuzz_target {
    ($target:ident) => {
        fn main() -> std::io::Result<()> {
            std::env::args_os().skip(1).try_for_each(|path| Ok($crate::$target(&std::fs::read(path)?)))
        }
    };
}
