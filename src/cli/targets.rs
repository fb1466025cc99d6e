//! Files that a run reads and files that it may write, compared before anything is written.

use super::args::{DebugArgs, EmitArg};
use super::emit::{self, Emit, Target};
use super::endings;
use super::pipeline;
use super::problem::Failure;
use super::settings::ReadFile;
use ampc::Model;
use ampc::onnx::bytes::FileId;
use ampc::passes::pipeline::Pipeline;
use std::fs;
use std::path::{Path, PathBuf};

/// A file and its role in the run.
pub(super) struct Known {
    pub(super) what: String,
    pub(super) path: PathBuf,
    id: Option<FileId>,
    canonical: PathBuf,
}

impl Known {
    pub(super) fn new(what: impl Into<String>, path: &Path) -> Known {
        let regular = fs::metadata(path).ok().filter(fs::Metadata::is_file);
        Known {
            what: what.into(),
            path: path.to_owned(),
            id: regular.and_then(|m| FileId::of(&m)),
            canonical: canonical(path),
        }
    }

    /// True if both paths lead to one file, links included.
    pub(super) fn same(&self, other: &Known) -> bool {
        (self.id.is_some() && self.id == other.id) || self.has_name_of(other)
    }

    /// True if both paths lead to one name of a file, symbolic links included.
    pub(super) fn has_name_of(&self, other: &Known) -> bool {
        self.canonical == other.canonical
    }
}

/// The path without links and dots, of a file that need not be there.
fn canonical(path: &Path) -> PathBuf {
    if let Ok(canonical) = fs::canonicalize(path) {
        return canonical;
    }
    let path = &ampc::files::behind_links(path);
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (fs::canonicalize(folder), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => std::path::absolute(path).unwrap_or_else(|_| path.clone()),
    }
}

/// Outputs of a run beside the model; `-` is standard output.
#[derive(Clone, Copy)]
pub(crate) enum Beside<'a> {
    /// The report of decisions.
    Report(&'a Path),
    /// The initial state of a training step.
    State(&'a Path),
    /// The explanation of decisions.
    Explanation,
    /// The choices of a search.
    Pareto(&'a Path),
    /// The policy that a search found.
    Policy(&'a Path),
}

impl Beside<'_> {
    fn what(&self) -> &'static str {
        match self {
            Beside::Report(_) => "the report",
            Beside::State(_) => "the state",
            Beside::Explanation => "the explanation",
            Beside::Pareto(_) => "the Pareto file",
            Beside::Policy(_) => "the policy to write",
        }
    }

    fn path(&self) -> &Path {
        match self {
            Beside::Report(path) | Beside::State(path) | Beside::Pareto(path) | Beside::Policy(path) => path,
            Beside::Explanation => Path::new(STDOUT),
        }
    }
}

/// The name of standard output.
const STDOUT: &str = "-";

/// Names of the system for standard output.
const STDOUT_NAMES: [&str; 3] = ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];

/// An output: a file, or a pipe or device.
struct Written {
    file: Known,
    is_stdout: bool,
    /// The pipe or device that it leads to, except the null device.
    stream: Option<FileId>,
    is_null: bool,
}

impl Written {
    fn new(what: &str, path: &Path) -> Written {
        let is_stdout = path == Path::new(STDOUT) || STDOUT_NAMES.iter().any(|name| path == Path::new(name));
        let place = if path == Path::new(STDOUT) { Path::new(STDOUT_NAMES[0]) } else { path };
        let id = |path: &Path| fs::metadata(path).ok().and_then(|m| FileId::of(&m));
        let stream = id(place).filter(|_| ampc::files::is_stream(place));
        let is_null = stream.is_some() && stream == id(Path::new("/dev/null"));
        let file = Known { path: path.to_owned(), ..Known::new(what, place) };
        Written { file, is_stdout, stream: stream.filter(|_| !is_null), is_null }
    }

    /// True if both lead to one file, pipe or device. The null device may be written to twice.
    fn same(&self, other: &Written) -> bool {
        (self.is_stdout && other.is_stdout)
            || (self.stream.is_some() && self.stream == other.stream)
            || (!self.is_null && self.file.same(&other.file))
    }
}

/// Checks all outputs of a run: files differ from the input files (the model and `read`), no two outputs are one file,
/// pipe or device, their folders exist and are writable, and existing files may be replaced.
///
/// # Errors
/// If something may not be written.
pub(crate) fn check(
    model: &Model,
    path: &Path,
    read: &[ReadFile],
    emit: &Emit,
    beside: &[Beside<'_>],
    debug: &DebugArgs,
    pipeline: &Pipeline,
) -> Result<(), Failure> {
    let mut known = sources(model, path);
    known.extend(read.iter().map(|file| Known::new(file.what, &file.path)));
    let mut outputs: Vec<Written> = Vec::new();
    let mut add = |what: &str, path: &Path| -> Result<(), Failure> {
        let new = Written::new(what, path);
        let is_file = new.stream.is_none() && !new.is_null;
        let read = known.iter().find(|k| is_file && k.same(&new.file));
        let old = read.or_else(|| outputs.iter().find(|old| old.same(&new)).map(|old| &old.file));
        if let Some(old) = old {
            let kind = if is_file { "file" } else { "pipe or device" };
            let message = format!(
                "{what} `{}` is the same {kind} as {} `{}`; choose another name",
                path.display(),
                old.what,
                old.path.display()
            );
            return Err(Failure::usage("same_file", message));
        }
        outputs.push(new);
        Ok(())
    };
    let dumps = pipeline::dumps(debug, pipeline)?;
    if let Some(folder) = debug.dump_dir.as_deref().filter(|folder| folder.exists() && !folder.is_dir()) {
        let message =
            format!("`--dump-dir {}`: expected a folder, found a file of that name", folder.display());
        return Err(Failure::usage("dump_dir", message));
    }
    match &emit.target {
        Target::File(path) => add("the output", path)?,
        Target::Stdout => add("the output", Path::new(STDOUT))?,
    }
    if let Some(data) = emit.data_path() {
        add("the data file of the output", &data)?;
    }
    for written in beside {
        add(written.what(), written.path())?;
    }
    for dump in &dumps {
        add("the dump", dump)?;
    }
    emit.check(model)?;
    for written in beside.iter().filter(|written| written.path() != Path::new(STDOUT)) {
        if let Beside::Report(path) = written {
            endings::check_report(path)?;
        }
        emit::check(written.path(), emit.force(), model)?;
    }
    for dump in dumps.iter().filter(|d| d.exists()) {
        emit::check(dump, emit.force(), model)?;
    }
    Ok(())
}

/// The files that a model was read from.
pub(super) fn sources(model: &Model, path: &Path) -> Vec<Known> {
    let mut known = Vec::new();
    if path == Path::new("-") {
        // What the shell connected; a pipe is not a file that could be written to.
        let stdin = Path::new("/dev/stdin");
        if fs::metadata(stdin).is_ok_and(|m| m.is_file()) {
            known.push(Known::new("the model", stdin));
        }
    } else if !ampc::files::is_stream(path) {
        known.push(Known::new("the model", path));
    }
    match &model.source {
        Some(source) => {
            let data = source.files().into_iter().skip(1);
            known.extend(data.filter_map(|f| Some(Known::new("the model's data file", f.path()?))));
        }
        None => {
            let data = ampc::model::data_path(path);
            known.push(Known::new("the model's data file", &data));
        }
    }
    known
}

impl Emit {
    /// The file of large constants that may be written beside the target, if its name is known before its content.
    pub(crate) fn data_path(&self) -> Option<PathBuf> {
        let Target::File(path) = &self.target else { return None };
        let path = ampc::files::behind_links(path);
        match self.kind {
            EmitArg::Text => Some(ampc::text_files::data_path(&path)),
            EmitArg::Json => Some(ampc::json::data_path(&path)),
            EmitArg::Onnx | EmitArg::Emulated | EmitArg::Dot => None,
        }
    }
}
