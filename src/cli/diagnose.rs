//! From errors of the library to problems that can be drawn.

use super::help;
use super::problem::{Failure, Problem, Shown};
use ampc::error::Finding;
use ampc::execute::inputs::InputProblem;
use ampc::ir::tensor::TensorError;
use ampc::ir::text::{ParseErrors, ParseSubject, PrintOptions, Printed, print};
use ampc::ir::{Module, Node, Value};
use ampc::onnx::target::TargetError;
use ampc::onnx::tensor::TensorIssue;
use ampc::onnx::{ExportError, ImportError, ProblemKind, Warning};
use ampc::passes::PassError;
use ampc::passes::json::Place;
use ampc::passes::policy::PolicyError;
use ampc::passes::target::ProfileError;
use ampc::{Error, ErrorKind};
use miette::NamedSource;
use std::fmt::{self, Debug, Write as _};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Everything an error says. With the module at hand, problems of nodes are shown in its text.
pub(crate) fn failure(error: &Error, module: Option<&Module>) -> Failure {
    if let Some(failure) = without_constants(error) {
        return failure;
    }
    let one = |code: String, message: String| vec![Problem::new(code, message)];
    let problems = match error {
        Error::Import(e) => of_import(e),
        Error::Export(e) => one(format!("ampc::export::{}", code_of_export(e)), e.to_string()),
        Error::Text { path, errors } => of_text(path, errors),
        Error::Safetensors { .. } => one("ampc::safetensors".into(), error.to_string()),
        Error::Invalid(findings) => of_findings(findings, module),
        Error::Inputs(list) | Error::States(list) => list.iter().map(of_input).collect(),
        Error::Run(finding) | Error::NoMemory(finding) => of_run(finding, module),
        Error::Device(message) => one("ampc::device".into(), message.clone()),
        Error::Diverged(_) => one("ampc::train::diverged".into(), error.to_string()),
        Error::Data { .. } => one("ampc::data".into(), error.to_string()),
        Error::Usage(message) => one("ampc::usage".into(), message.clone()),
        Error::Policy(e) => one(code_of_policy(e), e.to_string()),
        Error::Pipeline(e) => one(format!("ampc::pipeline::{}", variant(e)), e.to_string()),
        Error::Pass(e) => vec![of_pass(e, module)],
        Error::Bug(_) => vec![bug(error.to_string())],
        Error::Unsupported(message) => one("ampc::unsupported".into(), message.clone()),
        Error::Io { path, source } if is_open(source) => return cannot_open(path, source),
        Error::Io { .. } => one("ampc::io".into(), error.to_string()),
    };
    let failure = Failure { code: error.kind().exit_code(), problems, see: None };
    let is_ignored = matches!(error, Error::Run(finding) if finding.label == Some(PYTORCH_IGNORED));
    match std::error::Error::source(error).and_then(of_system) {
        Some(help) => failure.with_help(help),
        None if is_ignored => failure
            .with_help("`--loss cross-entropy:ignore_index=-100` makes a step that ignores labels of -100"),
        None => failure,
    }
}

/// The label that PyTorch ignores.
const PYTORCH_IGNORED: i64 = -100;

/// Advice for an error that the operating system caused.
fn of_system(error: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    let causes = std::iter::successors(Some(error), |&e| e.source());
    causes.filter_map(|e| e.downcast_ref::<io::Error>()).find_map(help::of_system)
}

fn of_input(problem: &InputProblem) -> Problem {
    let drawn = Problem::new(format!("ampc::{}s::{}", problem.kind, problem.code), problem.to_string());
    match &problem.help {
        Some(help) => drawn.with_help(help.clone()),
        None => drawn,
    }
}

/// The problem of a model that cannot be computed, drawn over its text if it is about a node.
fn of_run(finding: &Finding, module: Option<&Module>) -> Vec<Problem> {
    let problem = Problem::new(format!("ampc::run::{}", finding.code), finding.to_string());
    match (module, finding.node) {
        (Some(module), Some(node)) => vec![Canvas::new(module).mark(problem, node, "this node")],
        _ => vec![problem],
    }
}

fn is_open(error: &io::Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotADirectory, NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | PermissionDenied | IsADirectory | NotADirectory)
}

/// A file that cannot be opened.
pub(crate) fn cannot_open(path: &Path, error: &io::Error) -> Failure {
    let message = format!("cannot open `{}`: {error}", path.display());
    let problem = Problem::new("ampc::import::open", message);
    let help = help::of_system(error).or(problem.help.as_deref()).map(str::to_owned);
    Failure::of(ErrorKind::Io, Problem { help, ..problem })
}

/// A text whose large constants are needed, but missing: the input is not complete.
fn without_constants(error: &Error) -> Option<Failure> {
    let missing = |e: &io::Error| e.kind() == io::ErrorKind::NotFound && e.raw_os_error().is_none();
    let (what, source) = match error {
        Error::Pass(PassError::Constant { source: TensorError::Read { what, source }, .. }) => (what, source),
        Error::Export(ExportError::Target(TargetError::Read { what, source, .. })) => (what, source),
        Error::Io { path, source } => (&path.display().to_string(), source),
        _ => return None,
    };
    let problem = || Problem::new("ampc::text::missing_data", format!("cannot read {what}: {source}"));
    missing(source).then(|| Failure::of(ErrorKind::InvalidInput, problem()))
}

/// A bug of ampc.
pub(crate) fn bug(message: impl Into<String>) -> Problem {
    Problem::new("ampc::bug", message)
        .with_help("please report this bug, with the command line and the model if you may share it")
}

/// A policy that is wrong, shown in its file.
pub(crate) fn policy(error: &PolicyError, file: Option<(&Path, &str)>) -> Failure {
    let place = file.and_then(|(_, text)| place_in_policy(error, text));
    in_file(Problem::new(code_of_policy(error), error.to_string()), file, place)
}

/// A profile of a target that is wrong, shown in its file.
pub(crate) fn profile(error: &ProfileError, file: Option<(&Path, &str)>) -> Failure {
    let place = match (error, file) {
        (ProfileError::Json(error), Some((_, text))) => Some(place_of(error.place, text)),
        _ => None,
    };
    in_file(Problem::new(format!("ampc::target::{}", variant(error)), error.to_string()), file, place)
}

/// A problem with the place in a file that it is about, if it is about one.
fn in_file(
    mut problem: Problem,
    file: Option<(&Path, &str)>,
    place: Option<std::ops::Range<usize>>,
) -> Failure {
    if let Some((path, text)) = file {
        problem = problem.retold(|it| format!("`{}`: {it}", path.display()));
        if let Some(range) = place {
            if is_short(text, range.start) {
                problem = problem.with_label(&shown(&path.display().to_string(), text), range, "here");
            } else {
                problem = problem.retold(|it| format!("{it}; near {}", excerpt(text, range)));
            }
        }
    }
    Failure::of(ErrorKind::Usage, problem)
}

/// True if the lines around a place can be drawn; a file without line breaks is one line.
fn is_short(text: &str, at: usize) -> bool {
    const LONGEST: usize = 400;
    let start = text[..at].rfind('\n').map_or(0, |at| at + 1);
    let around =
        text[..start.saturating_sub(1)].lines().next_back().into_iter().chain(text[start..].lines().take(2));
    around.map(str::len).all(|len| len <= LONGEST)
}

/// The text around a place, on one line.
fn excerpt(text: &str, range: std::ops::Range<usize>) -> String {
    const AROUND: usize = 40;
    let floor = |at: usize| (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    let (from, to) = (floor(range.start.saturating_sub(AROUND)), floor((range.end + AROUND).min(text.len())));
    let dots = |cut: bool| if cut { "…" } else { "" };
    let part = text[from..to].replace('\n', " ");
    format!("`{}{part}{}`", dots(from > 0), dots(to < text.len()))
}

/// The word or character at a place.
fn place_of(Place { line, column }: Place, text: &str) -> std::ops::Range<usize> {
    let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    let at = (start + column.saturating_sub(1)).min(text.len());
    let at = (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    // All of a word that stands there.
    let mut words = serde_json::Deserializer::from_str(&text[at..]).into_iter::<String>();
    let len = match words.next() {
        Some(Ok(_)) => words.byte_offset(),
        Some(Err(_)) | None => text[at..].chars().next().map_or(0, char::len_utf8),
    };
    at..at + len
}

fn place_in_policy(error: &PolicyError, text: &str) -> Option<std::ops::Range<usize>> {
    let quoted = |word: &str| {
        let quoted = serde_json::to_string(word).ok()?;
        let at = text.find(&quoted)?;
        Some(at..at + quoted.len())
    };
    let word = match error {
        PolicyError::Json(error) => return Some(place_of(error.place, text)),
        PolicyError::UnknownPreset { found, .. }
        | PolicyError::UnknownOp { found, .. }
        | PolicyError::UnknownGuard { found, .. }
        | PolicyError::Precision { found } => found,
        PolicyError::OpTwice { op, .. } | PolicyError::Signature { op, .. } => op,
        PolicyError::Pattern { pattern, .. } => pattern,
        _ => return None,
    };
    quoted(word)
}

fn code_of_policy(error: &PolicyError) -> String {
    format!("ampc::policy::{}", variant(error))
}

/// Warnings of the reader.
pub(crate) fn of_warning(warning: &Warning) -> Problem {
    Problem::warning(warning.code(), warning.to_string())
}

pub(crate) fn shown(name: &str, text: impl Into<String>) -> Shown {
    Arc::new(NamedSource::new(super::shown::name(name), super::shown::source(text.into())))
}

fn of_import(error: &ImportError) -> Vec<Problem> {
    let ImportError::Invalid { path, problems, .. } = error else {
        let code = match error {
            ImportError::Wire { source, .. } => variant(&source.kind),
            other => variant(other),
        };
        return vec![Problem::new(format!("ampc::import::{code}"), error.to_string())];
    };
    let of = |p: &ampc::onnx::Problem| {
        let code = match &p.kind {
            ProblemKind::Tensor { issue: TensorIssue::External(e), .. } => format!("tensor_{}", variant(e)),
            ProblemKind::Tensor { issue, .. } => format!("tensor_{}", variant(issue)),
            other => variant(other),
        };
        let place = if p.place.is_empty() { String::new() } else { format!("`{}`: ", p.place) };
        let problem = Problem::new(format!("ampc::import::{code}"), format!("`{path}`: {place}{}", p.kind));
        match &p.kind {
            ProblemKind::Tensor { issue: TensorIssue::External(e), .. } => match of_system(e) {
                Some(help) => problem.with_help(help),
                None => problem,
            },
            _ => problem,
        }
    };
    problems.iter().map(of).collect()
}

fn code_of_export(error: &ExportError) -> String {
    match error {
        ExportError::Target(e) => format!("target_{}", variant(e)),
        other => variant(other),
    }
}

fn of_text(path: &Path, errors: &ParseErrors) -> Vec<Problem> {
    /// Lines up to this length are shown: other programs may write a graph as one line.
    const LONGEST_LINE: usize = 400;
    let name = path.display().to_string();
    let code = if path.extension().is_some_and(|e| e == "json") { "ampc::json" } else { "ampc::text" };
    let bytes = std::fs::read(path).ok();
    let fits = |at: usize| {
        bytes.as_ref().is_some_and(|bytes| {
            let (before, after) = bytes.split_at(at.min(bytes.len()));
            let ends = |b: &&u8| **b != b'\n';
            before.iter().rev().take(LONGEST_LINE + 1).take_while(ends).count()
                + after.iter().take(LONGEST_LINE + 1).take_while(ends).count()
                <= LONGEST_LINE
        })
    };
    let shown = bytes.as_ref().map(|bytes| shown(&name, String::from_utf8_lossy(bytes)));
    errors
        .0
        .iter()
        .map(|e| {
            let mut problem = Problem::new(code, format!("`{name}`: {e}"));
            if e.about == ParseSubject::DataHash {
                problem = problem.with_help(format!(
                    "the constants in `{}` are those of another run, or were edited: write both files again, in one run; \
                     if these constants are meant, remove the hash from `{name}`",
                    ampc::model::data_path(path).display()
                ));
            }
            match &shown {
                Some(shown) if fits(e.span.start) => {
                    let label = format!("expected {}", e.expected);
                    problem.with_label(shown, e.span.clone(), label)
                }
                _ => problem,
            }
        })
        .collect()
}

/// Findings, drawn over the text of the module.
pub(crate) fn of_findings(findings: &[Finding], module: Option<&Module>) -> Vec<Problem> {
    let canvas = module.map(Canvas::new);
    findings
        .iter()
        .map(|finding| {
            let problem = Problem::new(format!("ampc::check::{}", finding.code), finding.to_string());
            match (&canvas, finding.node) {
                (Some(canvas), Some(node)) => canvas.mark(problem, node, "this node"),
                _ => problem,
            }
        })
        .collect()
}

fn of_pass(error: &PassError, module: Option<&Module>) -> Problem {
    let problem = Problem::new(format!("ampc::pass::{}", variant(error)), error.to_string());
    let (PassError::OutOfRange { value, .. }, Some(module)) = (error, module) else { return problem };
    let reader = module.uses(*value).map(|(node, _)| node).min();
    match reader {
        Some(node) => Canvas::new(module).mark(problem, node, "reads it"),
        None => problem,
    }
}

/// The text of a module, to draw on.
struct Canvas<'m> {
    module: &'m Module,
    printed: Printed,
    shown: Shown,
}

/// Operands whose makers are shown.
const OPERANDS: usize = 3;

impl<'m> Canvas<'m> {
    fn new(module: &'m Module) -> Canvas<'m> {
        let mut printed = print(module, &PrintOptions { omit_hashes: true, ..PrintOptions::default() });
        let shown = shown("the model in text form", std::mem::take(&mut printed.text));
        Canvas { module, printed, shown }
    }

    /// Marks a node, and the producers of its operands.
    fn mark(&self, mut problem: Problem, node: Node, label: &str) -> Problem {
        let Some(range) = self.drawable(node) else { return problem };
        problem = problem.with_label(&self.shown, range, label);
        let operands = self.module.node(node).formal_operands().iter().flatten();
        let mut seen = vec![node];
        for &operand in operands {
            let Some((maker, _)) = self.module.producer(operand) else { continue };
            if seen.len() > OPERANDS || seen.contains(&maker) {
                continue;
            }
            seen.push(maker);
            if let Some(range) = self.drawable(maker) {
                problem = problem.with_label(&self.shown, range, format!("makes {}", self.typed(operand)));
            }
        }
        problem
    }

    /// Where a node stands, if the lines around it are not too long to be shown.
    fn drawable(&self, node: Node) -> Option<std::ops::Range<usize>> {
        self.printed.nodes[node].clone().filter(|range| is_short(self.shown.inner(), range.start))
    }

    fn typed(&self, value: Value) -> String {
        let name = ampc::ir::verify::name_of(self.module, value);
        format!("`{name}`: {}", type_text(self.module, value))
    }
}

/// The type of a value as people read it.
pub(crate) fn type_text(module: &Module, value: Value) -> String {
    let ty = &module.value(value).ty;
    match ty {
        ampc::ir::Type::Tensor(_) => ampc::dot::describe(module, value),
        other => match other.element_dtype() {
            Some(dtype) => format!("of {dtype}"),
            None => "of unknown type".into(),
        },
    }
}

/// The name of an enum's variant in snake case, from the derived `Debug`: codes follow the types.
fn variant(value: &dyn Debug) -> String {
    struct Word(String);
    impl fmt::Write for Word {
        fn write_str(&mut self, s: &str) -> fmt::Result {
            for c in s.chars() {
                if !c.is_alphanumeric() {
                    return Err(fmt::Error);
                }
                if c.is_uppercase() && !self.0.is_empty() {
                    self.0.push('_');
                }
                self.0.extend(c.to_lowercase());
            }
            Ok(())
        }
    }
    let mut word = Word(String::new());
    // It stops after the first word.
    let _ = write!(word, "{value:?}");
    word.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use ampc::onnx::external::ExternalError;

    #[test]
    fn codes_are_the_names_of_variants() {
        assert_eq!(variant(&ProblemKind::NoGraph), "no_graph");
        assert_eq!(variant(&ProblemKind::IrVersion { found: 1, newest: 2 }), "ir_version");
        assert_eq!(variant(&ExternalError::NoLocation), "no_location");
    }
}
