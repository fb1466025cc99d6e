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

/// Files that a run writes beside its output.
#[derive(Clone, Copy)]
pub(crate) enum Beside<'a> {
    /// The report of decisions.
    Report(&'a Path),
    /// The initial state of a training step.
    State(&'a Path),
}

/// Checks all files that a run is going to write: they differ from the input files (the model and `read`) and
/// from each other, their folders exist and are writable, and existing files may be replaced.
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
    let mut add = |what: &str, path: &Path| -> Result<(), Failure> {
        if ampc::files::is_stream(path) {
            return Ok(());
        }
        let new = Known::new(what, path);
        if let Some(old) = known.iter().find(|k| k.same(&new)) {
            let message = format!(
                "{what} `{}` is the same file as {} `{}`; choose another name",
                path.display(),
                old.what,
                old.path.display()
            );
            return Err(Failure::usage("same_file", message));
        }
        known.push(new);
        Ok(())
    };
    let dumps = pipeline::dumps(debug, pipeline)?;
    if let Some(folder) = debug.dump_dir.as_deref().filter(|folder| folder.exists() && !folder.is_dir()) {
        let message =
            format!("`--dump-dir {}`: expected a folder, found a file of that name", folder.display());
        return Err(Failure::usage("dump_dir", message));
    }
    if let Target::File(path) = &emit.target {
        add("the output", path)?;
        if let Some(data) = emit.data_path() {
            add("the data file of the output", &data)?;
        }
    }
    for written in beside {
        match written {
            Beside::Report(path) => add("the report", path)?,
            Beside::State(path) => add("the state", path)?,
        }
    }
    for dump in &dumps {
        add("the dump", dump)?;
    }
    emit.check(model)?;
    for written in beside {
        if let Beside::Report(path) = written {
            endings::check_report(path)?;
        }
        let (Beside::Report(path) | Beside::State(path)) = written;
        emit::check(path, emit.force(), model)?;
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
