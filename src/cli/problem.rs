//! Diagnostics: the problem, its place, and the remedy, drawn over the text in question if there is one.

use super::help::MORE_MEMORY;
use super::shown;
use super::stream::{Stream, Ui};
use ampc::ErrorKind;
use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, Severity, SourceCode,
};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Problems drawn in full before they are only counted.
pub(crate) const DRAWN: usize = 10;

/// Problems that have a line each before they are only counted.
pub(crate) const LINES: usize = 1000;

/// A text that problems are shown in.
pub(crate) type Shown = Arc<NamedSource<String>>;

/// One problem.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    /// Stable, such as `ampc::import::undefined`.
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) help: Option<String>,
    /// Lines below the message, such as commands to copy, which are neither cut nor folded.
    pub(crate) lines: Vec<String>,
    pub(crate) shown: Option<Shown>,
    /// Ranges of the text with a label for each; the first is the place of the problem.
    pub(crate) labels: Vec<(Range<usize>, String)>,
    pub(crate) warning: bool,
}

impl Problem {
    pub(crate) fn new(code: impl Into<String>, message: impl Into<String>) -> Problem {
        let (code, message) = (code.into(), shown::message(&message.into()));
        let help = super::help::help(&code).map(str::to_owned);
        let (lines, labels) = (Vec::new(), Vec::new());
        Problem { code, message, help, lines, shown: None, labels, warning: false }
    }

    pub(crate) fn warning(code: impl fmt::Display, message: impl Into<String>) -> Problem {
        Problem { warning: true, ..Problem::new(format!("ampc::warning::{code}"), message) }
    }

    /// The problem with other words, made of those it has.
    pub(crate) fn retold(mut self, words: impl FnOnce(&str) -> String) -> Problem {
        self.message = shown::message(&words(&self.message));
        self
    }

    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Problem {
        self.help = Some(shown::message(&help.into()));
        self
    }

    pub(crate) fn with_lines(mut self, lines: Vec<String>) -> Problem {
        self.lines = lines;
        self
    }

    pub(crate) fn with_label(
        mut self,
        shown: &Shown,
        range: Range<usize>,
        label: impl Into<String>,
    ) -> Problem {
        self.shown = Some(shown.clone());
        self.labels.push((range, shown::message(&label.into())));
        self
    }

    /// The problem as one line.
    pub(crate) fn line(&self) -> String {
        format!("{}: {}\n", self.code, self.message)
    }

    /// The problem as people read it.
    pub(crate) fn draw(&self, ui: Ui, stream: Stream) -> String {
        let theme = if ui.colors(stream) { GraphicalTheme::unicode() } else { GraphicalTheme::none() };
        let handler = GraphicalReportHandler::new_themed(theme)
            .with_width(ui.width(stream))
            .with_links(false)
            .with_break_words(false)
            .with_word_separator(textwrap::WordSeparator::AsciiSpace)
            .with_word_splitter(textwrap::WordSplitter::NoHyphenation)
            .with_context_lines(1);
        let mut text = String::new();
        if let Err(fmt::Error) = handler.render_report(&mut text, self) {
            text = self.line();
        }
        for line in &self.lines {
            text.push_str(&format!("    {line}\n"));
        }
        text
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}

impl Diagnostic for Problem {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(&self.code))
    }
    fn severity(&self) -> Option<Severity> {
        Some(if self.warning { Severity::Warning } else { Severity::Error })
    }
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|h| Box::new(h) as Box<dyn fmt::Display>)
    }
    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.shown.as_ref().map(|s| s as &dyn SourceCode)
    }
    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = |(i, (range, label)): (usize, &(Range<usize>, String))| {
            let (label, range) = (Some(label.clone()), range.clone());
            if i == 0 {
                LabeledSpan::new_primary_with_span(label, range)
            } else {
                LabeledSpan::new_with_span(label, range)
            }
        };
        self.shown.as_ref()?;
        Some(Box::new(self.labels.iter().enumerate().map(span)))
    }
}

/// Failure that ends a command.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// The exit code; 0 if the reader has closed the output.
    pub(crate) code: u8,
    pub(crate) problems: Vec<Problem>,
    /// Command that lists the problems that are not drawn.
    pub(crate) see: Option<String>,
}

impl Failure {
    pub(crate) fn of(kind: ErrorKind, problem: Problem) -> Failure {
        Failure { code: kind.exit_code(), problems: vec![problem], see: None }
    }

    pub(crate) fn usage(code: &str, message: impl Into<String>) -> Failure {
        Failure::of(ErrorKind::Usage, Problem::new(format!("ampc::usage::{code}"), message))
    }

    pub(crate) fn io(what: &str, error: &std::io::Error) -> Failure {
        let problem = Problem::new("ampc::io", format!("`{what}`: {error}"));
        let help = super::help::of_system(error).map(str::to_owned);
        Failure::of(ErrorKind::Io, Problem { help, ..problem })
    }

    /// The system refuses memory, or threads, which need some.
    pub(crate) fn no_memory(what: &str) -> Failure {
        let problem = Problem::new("ampc::memory", format!("out of memory: {what}"));
        Failure::of(ErrorKind::Io, problem.with_help(MORE_MEMORY))
    }

    pub(crate) fn nobody_reads() -> Failure {
        Failure { code: 0, problems: Vec::new(), see: None }
    }

    /// The failure with other messages, made from the message of each problem.
    pub(crate) fn retold(mut self, words: impl Fn(&str) -> String) -> Failure {
        self.problems = self.problems.into_iter().map(|problem| problem.retold(&words)).collect();
        self
    }

    /// Draws the problems on standard error.
    pub(crate) fn show(&self, ui: Ui) {
        let drawn: Vec<String> = self.problems.iter().take(DRAWN).map(|p| p.draw(ui, Stream::Err)).collect();
        if !drawn.is_empty() {
            ui.complain(&drawn.join("\n"));
        }
        if self.problems.len() > DRAWN {
            let more = self.problems.len() - DRAWN;
            let see = self.see.as_ref().map_or_else(String::new, |s| format!("; {s} names them all"));
            ui.complain(&format!("and {}{see}", super::table::count(more as u64, "more problem")));
        }
    }
}
