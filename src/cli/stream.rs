//! The streams that people read, and how output to them looks.

use super::args::{Global, When};
use super::shown;
use std::io::{self, IsTerminal, Write};

/// One of the two streams that people read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stream {
    Out,
    Err,
}

/// The verbosity and the colors of output.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ui {
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
    color: When,
}

/// Text is folded at this many columns if the width of the terminal is unknown.
const WIDTH: usize = 100;

impl Ui {
    pub(crate) fn new(global: &Global) -> Ui {
        Ui { quiet: global.quiet, verbose: global.verbose, color: global.color }
    }

    /// True if a stream is a terminal.
    pub(crate) fn is_terminal(stream: Stream) -> bool {
        match stream {
            Stream::Out => io::stdout().is_terminal(),
            Stream::Err => io::stderr().is_terminal(),
        }
    }

    /// True if output to a stream is colored.
    pub(crate) fn colors(self, stream: Stream) -> bool {
        match self.color {
            When::Always => true,
            When::Never => false,
            When::Auto => {
                let set = |name| std::env::var_os(name).is_some_and(|v| !v.is_empty());
                let dumb = std::env::var_os("TERM").is_some_and(|t| t == "dumb");
                Ui::is_terminal(stream) && !set("NO_COLOR") && !dumb
            }
        }
    }

    /// The width of text to a stream.
    pub(crate) fn width(self, stream: Stream) -> usize {
        let size = match stream {
            Stream::Out => terminal_size::terminal_size_of(io::stdout()),
            Stream::Err => terminal_size::terminal_size_of(io::stderr()),
        };
        size.map_or(WIDTH, |(columns, _)| usize::from(columns.0).clamp(40, WIDTH))
    }

    /// Prints a line on standard error, unless `-q` was given. Failures to write are ignored.
    pub(crate) fn say(self, text: &str) {
        if !self.quiet {
            self.complain(text);
        }
    }

    /// Prints a text on standard error, even with `-q`, unless it is empty.
    pub(crate) fn complain_if_any(self, text: &str) {
        if !text.is_empty() {
            self.complain(text);
        }
    }

    /// Prints a line on standard error, even with `-q`.
    pub(crate) fn complain(self, text: &str) {
        let _ = writeln!(io::stderr().lock(), "{}", shown::guarded(text.trim_end_matches('\n')));
    }
}
