//! Streams of output: standard output for requested results, standard error for everything else.

use super::problem::Failure;
use super::shown;
pub(crate) use super::stream::{Stream, Ui};
use std::io::{self, Write};

/// Writes text for people to standard output.
///
/// # Errors
/// As [`print`].
pub(crate) fn show(text: &str) -> Result<(), Failure> {
    print(&shown::guarded(text))
}

/// Writes machine-readable output to standard output, unchanged.
///
/// # Errors
/// If it cannot be written. A reader that has seen enough (`| head`) is not an error, but ends the program.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|e| match e.kind() {
        io::ErrorKind::BrokenPipe => Failure::nobody_reads(),
        _ => Failure::io("standard output", &e),
    })
}
