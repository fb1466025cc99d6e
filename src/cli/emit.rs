//! Destination and form of the result.

use super::args::{EmitArg, ExternalArg, WriteArgs};
use super::diagnose;
use super::endings;
use super::problem::Failure;
use super::ui::{self, Stream, Ui};
use ampc::files::{Batch, SparedFile};
use ampc::ir::tensor::ByteSource;
use ampc::ir::text::{PrintOptions, print};
use ampc::onnx::bytes::SourceBytes;
use ampc::onnx::{ExternalData, WriteOptions};
use ampc::{Error, Model};
use std::path::{Path, PathBuf};

/// A file, or standard output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Stdout,
    File(PathBuf),
}

/// Destination and form of the result.
#[derive(Clone, Debug)]
pub(crate) struct Emit {
    pub(crate) target: Target,
    pub(crate) kind: EmitArg,
    options: WriteOptions,
}

/// Summary of the written files.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) bytes: u64,
    /// Bytes of the files that it refers to.
    pub(crate) data_bytes: u64,
    /// The digest of the model, if a report needs it.
    pub(crate) digest: Option<String>,
    /// The files.
    pub(crate) files: Vec<PathBuf>,
    /// Data files of the source that the model refers to.
    pub(crate) kept_files: Vec<PathBuf>,
    /// Data files of the model that was replaced which stay for others.
    pub(crate) spared: Vec<SparedFile>,
    pub(crate) warnings: Vec<ampc::onnx::Warning>,
    /// The text for standard output, if the output is text.
    pub(crate) text: String,
}

impl Emit {
    /// Output that the arguments ask for; `by_default` makes the target if no target is named, `otherwise` is
    /// the form if neither an option nor the name gives the form.
    ///
    /// # Errors
    /// If the arguments contradict each other, or a name has an ending of no form and no option says one.
    pub(crate) fn of(
        args: &WriteArgs,
        output: Option<&Path>,
        otherwise: EmitArg,
        by_default: impl FnOnce(EmitArg) -> Target,
    ) -> Result<Emit, Failure> {
        let by_name = output.and_then(endings::form_of);
        if let (None, None, Some(path)) = (args.emit, by_name, output) {
            endings::check_other(path)?;
        }
        let kind = args.emit.or(by_name).unwrap_or(otherwise);
        if let (Some(named), Some(path)) = (by_name, output) {
            fits(kind, named, path)?;
        }
        let target = match output {
            Some(path) if path == Path::new("-") => Target::Stdout,
            Some(path) => Target::File(path.to_owned()),
            None => by_default(kind),
        };
        let binary = matches!(kind, EmitArg::Onnx | EmitArg::Emulated);
        if args.external_data.is_some() && !binary {
            return Err(Failure::usage("external_data", "`--external-data` applies to ONNX files only"));
        }
        if binary && target == Target::Stdout && Ui::is_terminal(Stream::Out) {
            let message = "a model is not written to a terminal: name a file with `--output`, or pipe it";
            return Err(Failure::usage("terminal", message));
        }
        if args.external_data == Some(ExternalArg::Always) && target == Target::Stdout {
            let message = "external data needs a file beside the output, not standard output: name a file with `--output`";
            return Err(Failure::usage("external_data", message));
        }
        let external_data = match args.external_data {
            None | Some(ExternalArg::Auto) => ExternalData::Auto,
            Some(ExternalArg::Always) => ExternalData::Always,
            Some(ExternalArg::Never) => ExternalData::Never,
        };
        Ok(Emit { target, kind, options: WriteOptions { force: args.force, external_data } })
    }

    /// The file that the result would replace, if it exists.
    pub(crate) fn existing(&self) -> Option<&Path> {
        match &self.target {
            Target::File(path) => Some(path.as_path()).filter(|path| path.symlink_metadata().is_ok()),
            Target::Stdout => None,
        }
    }

    /// True if existing files may be replaced.
    pub(crate) fn force(&self) -> bool {
        self.options.force
    }

    /// Checks that the target, and a data file that it certainly gets, may be written, before the work is done.
    ///
    /// # Errors
    /// If it may not.
    pub(crate) fn check(&self, model: &Model) -> Result<(), Failure> {
        match &self.target {
            Target::Stdout => Ok(()),
            Target::File(path) => check(path, self.force(), model),
        }?;
        if !self.needs_data_file(model) {
            return Ok(());
        }
        match (&self.target, self.data_path()) {
            (Target::File(path), _) if ampc::files::is_stream(path) => Err(self.no_place_beside(path)),
            (Target::File(path), Some(data)) => {
                ampc::text_files::check_data(path, &data, self.force(), &model.files())
                    .map_err(|e| diagnose::failure(&e, None))
            }
            _ => Ok(()),
        }
    }

    /// The reason why a model with a data file is not written to a pipe or device.
    fn no_place_beside(&self, path: &Path) -> Failure {
        let message = format!(
            "constants of the model go to a file beside the output, but `{}` is a pipe or device",
            path.display()
        );
        let help = match self.kind {
            EmitArg::Onnx | EmitArg::Emulated => {
                "write to a file, or put them into the model: `--external-data never`"
            }
            EmitArg::Text | EmitArg::Json | EmitArg::Dot => {
                "write to a file, or to standard output (`-o -`), which receives the text without them"
            }
        };
        Failure::usage("no_place_beside", message).with_help(help)
    }

    /// True if it is known already that a data file will be written.
    fn needs_data_file(&self, model: &Model) -> bool {
        match (&self.target, self.kind) {
            (Target::File(path), EmitArg::Onnx | EmitArg::Emulated) => {
                ampc::onnx::needs_data_file(&model.module, model.source.as_ref(), path, &self.options)
            }
            (Target::File(_), EmitArg::Text | EmitArg::Json) => {
                ampc::text_files::needs_data_file(&model.module)
            }
            (Target::File(_), EmitArg::Dot) | (Target::Stdout, _) => false,
        }
    }

    /// Writes a model.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn write(&self, model: &Model) -> Result<Written, Failure> {
        let mut batch = Batch::new();
        let written = self.stage(model, &mut batch)?;
        finish(batch, written)
    }

    /// Writes a model under temporary names; [`finish`] gives it its own.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn stage(&self, model: &Model, batch: &mut Batch) -> Result<Written, Failure> {
        let failure = |e: Error| diagnose::failure(&e, None);
        match (self.kind, &self.target) {
            (EmitArg::Onnx | EmitArg::Emulated, target) => {
                let path = match target {
                    Target::Stdout => Path::new("-"),
                    Target::File(path) => path,
                };
                let report = ampc::model::stage(model, path, &self.options, batch).map_err(failure)?;
                let written = self.written(report.bytes, report.data_file, report.warnings);
                let kept_bytes: u64 = report.kept_files.iter().map(|(_, bytes)| bytes).sum();
                let kept_files = report.kept_files.into_iter().map(|(path, _)| path).collect();
                Ok(Written { kept_files, data_bytes: written.data_bytes + kept_bytes, ..written })
            }
            (EmitArg::Text, Target::File(path)) => {
                let report = ampc::text_files::stage(model, path, self.force(), batch).map_err(failure)?;
                Ok(self.written(report.bytes, report.data_file, Vec::new()))
            }
            // Without the bytes of its constants anyway: what cannot be read is shown without its hash.
            (EmitArg::Text, Target::Stdout) => {
                self.text(model, print(&model.module, &PrintOptions::default()).text, batch)
            }
            (EmitArg::Json, Target::File(path)) => {
                let report = ampc::json::stage(model, path, self.force(), batch).map_err(failure)?;
                Ok(self.written(report.bytes, report.data_file, Vec::new()))
            }
            (EmitArg::Json, Target::Stdout) => self.text(model, ampc::json::print(&model.module).text, batch),
            (EmitArg::Dot, _) => self.text(model, ampc::dot::print(&model.module), batch),
        }
    }

    /// The digest of the model that was staged, by which its report knows it; `None` for a drawing.
    ///
    /// # Errors
    /// If the model cannot be read again.
    pub(crate) fn digest(&self, written: &Written, batch: &mut Batch) -> Result<Option<String>, Failure> {
        if self.target == Target::Stdout && matches!(self.kind, EmitArg::Text | EmitArg::Json) {
            let text = SourceBytes::from_memory("-", written.text.as_bytes());
            return ampc::files::digest(&text).map(Some).map_err(|e| Failure::io("-", &e));
        }
        batch.model_digest().map_err(|e| diagnose::failure(&e, None))
    }

    fn text(&self, model: &Model, text: String, batch: &mut Batch) -> Result<Written, Failure> {
        let written = self.written(text.len() as u64, None, Vec::new());
        match &self.target {
            Target::Stdout => {
                batch.reads(&model.files());
                return Ok(Written { text, ..written });
            }
            Target::File(path) => batch
                .add(path, text.as_bytes(), self.force(), &model.files())
                .map_err(|e| diagnose::failure(&e, None))?,
        }
        Ok(written)
    }

    fn written(
        &self,
        bytes: u64,
        data: Option<(PathBuf, u64)>,
        warnings: Vec<ampc::onnx::Warning>,
    ) -> Written {
        let data_bytes = data.as_ref().map_or(0, |(_, bytes)| *bytes);
        let model = match &self.target {
            Target::File(path) => Some(path.clone()),
            Target::Stdout => None,
        };
        Written {
            bytes,
            data_bytes,
            digest: None,
            files: model.into_iter().chain(data.map(|(p, _)| p)).collect(),
            kept_files: Vec::new(),
            spared: Vec::new(),
            warnings,
            text: String::new(),
        }
    }

    /// The target as people read it.
    pub(crate) fn name(&self) -> String {
        match &self.target {
            Target::Stdout => "standard output".into(),
            Target::File(path) => path.display().to_string(),
        }
    }
}

/// Prints the text that was written, if it goes to standard output, and gives the files of a batch their names.
/// Returns the written files, with the data files that stay.
///
/// # Errors
/// If a file cannot be written, or an input file has changed.
pub(crate) fn finish(batch: Batch, mut written: Written) -> Result<Written, Failure> {
    batch.check().map_err(|e| diagnose::failure(&e, None))?;
    let printed = ui::print(&written.text);
    // That whoever reads standard output has gone (code 0) is no reason not to write the files.
    if let Some(failure) = printed.as_ref().err().filter(|failure| failure.code != 0) {
        return Err(failure.clone());
    }
    written.spared = batch.commit().map_err(|e| diagnose::failure(&e, None))?;
    printed.map(|()| written)
}

/// Checks that the ending of the output's name is not that of another form: readers go by it.
fn fits(kind: EmitArg, named: EmitArg, path: &Path) -> Result<(), Failure> {
    let same = kind == named || (kind, named) == (EmitArg::Emulated, EmitArg::Onnx);
    if same {
        return Ok(());
    }
    let word = |kind| match kind {
        EmitArg::Onnx => ("onnx", "an ONNX model", ".onnx"),
        EmitArg::Text => ("text", "a text", ".ir"),
        EmitArg::Json => ("json", "JSON", ".json"),
        EmitArg::Dot => ("dot", "a drawing", ".dot"),
        EmitArg::Emulated => ("emulated", "an ONNX model", ".onnx"),
    };
    let ((option, makes, ending), (_, other, _)) = (word(kind), word(named));
    let message = format!(
        "`--emit {option}` writes {makes}, but `{}` is the name of {other}: let it end in `{ending}`",
        path.display()
    );
    Err(Failure::usage("emit", message))
}

/// Checks that a file may be written.
///
/// # Errors
/// If it may not.
pub(crate) fn check(path: &Path, force: bool, model: &Model) -> Result<(), Failure> {
    ampc::files::check(path, force, &model.files()).map_err(|e| diagnose::failure(&e, None))
}

/// The default name: that of the model with its ending replaced.
pub(crate) fn beside(model: &Path, infix: &str, kind: EmitArg) -> Target {
    if model == Path::new("-") {
        return Target::Stdout;
    }
    let ending = match kind {
        EmitArg::Onnx => "onnx",
        EmitArg::Text => "ir",
        EmitArg::Json => "json",
        EmitArg::Dot => "dot",
        EmitArg::Emulated => "emulated.onnx",
    };
    let known =
        model.extension().is_some_and(|e| ["onnx", "ir", "json"].iter().any(|k| e.eq_ignore_ascii_case(k)));
    let stem = if known { model.file_stem() } else { model.file_name() };
    let mut name = stem.unwrap_or_default().to_owned();
    name.push(format!(".{infix}.{ending}"));
    Target::File(model.with_file_name(name))
}

/// Bytes of the model that was read, and of its data files.
pub(crate) fn source_bytes(model: &Model, path: &Path) -> Option<(u64, u64)> {
    let Some(source) = &model.source else {
        let len = |p: &Path| std::fs::metadata(p).ok().map(|m| m.len());
        return Some((len(path)?, len(&ampc::model::data_path(path)).unwrap_or(0)));
    };
    let data = source.files().iter().skip(1).map(|f| f.len()).sum();
    Some((source.bytes().len(), data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_name_is_beside_the_model() {
        let name = |model: &str, kind| match beside(Path::new(model), "fp16", kind) {
            Target::File(path) => path.display().to_string(),
            Target::Stdout => "-".into(),
        };
        assert_eq!(name("a/b.v2.onnx", EmitArg::Onnx), "a/b.v2.fp16.onnx");
        assert_eq!(name("UP.ONNX", EmitArg::Onnx), "UP.fp16.onnx");
        assert_eq!(name("b.ir", EmitArg::Text), "b.fp16.ir");
        assert_eq!(name("b.v2", EmitArg::Emulated), "b.v2.fp16.emulated.onnx");
        assert_eq!(name("-", EmitArg::Onnx), "-");
    }
}
