//! Outputs of training, whose paths are checked before any work is done.

use super::log::{self, Log};
use crate::cli::args::TrainArgs;
use crate::cli::diagnose;
use crate::cli::problem::Failure;
use crate::cli::targets::Known;
use ampc::execute::training::Position;
use ampc::onnx::bytes::SourceBytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The role of the file of `--resume`.
const RESUMED: &str = "the checkpoint that the training continues";

/// The files that a training reads, which it does not write.
pub(super) struct ReadFiles {
    /// The files by their roles: of the step, states, and data.
    known: Vec<Known>,
    /// The files that are open.
    open: Vec<Arc<SourceBytes>>,
}

impl ReadFiles {
    /// The files of the step and those that the arguments name; `open` are the files that are open, samples included.
    pub(super) fn new(args: &TrainArgs, step: Vec<Known>, mut open: Vec<Arc<SourceBytes>>) -> ReadFiles {
        let mut known = step;
        let states = [
            ("the state that the training begins with", args.state.as_ref()),
            (RESUMED, args.resume.as_ref()),
            ("the file that weights are taken from", args.init.as_ref()),
        ];
        let states: Vec<(&str, &Path)> =
            states.into_iter().filter_map(|(what, path)| Some((what, path?.as_path()))).collect();
        let data = [Some(&args.data.data), args.data.eval.as_ref()].into_iter().flatten();
        let data = data.map(|path| ("data that is trained with", path.as_path()));
        known.extend(states.iter().copied().chain(data).map(|(what, path)| Known::new(what, path)));
        // A folder of samples has several files.
        let samples = open.iter().filter_map(|file| file.path());
        known.extend(samples.map(|path| Known::new("a file that is read", path)));
        // A state may be replaced by another program before it is looked for again.
        open.extend(states.iter().filter_map(|(_, path)| SourceBytes::open(path).ok()).map(Arc::new));
        ReadFiles { known, open }
    }

    /// Refuses an output that is one of the files, under whatever name; but not the checkpoint that the training continues, if
    /// the output may replace it.
    fn refuse(&self, option: &str, path: &Path, replaces_resumed: bool) -> Result<(), Failure> {
        let new = Known::new(option, path);
        let mut refused = self.known.iter().filter(|old| !replaces_resumed || old.what != RESUMED);
        let Some(old) = refused.find(|old| old.same(&new)) else { return Ok(()) };
        let old_name = match old.path == path {
            true => String::new(),
            false => format!(" `{}`", old.path.display()),
        };
        let message = format!("`{option} {}` is {}{old_name}; choose another name", path.display(), old.what);
        Err(Failure::usage("same_file", message))
    }

    /// The files that are open.
    pub(super) fn open(&self) -> &[Arc<SourceBytes>] {
        &self.open
    }

    /// The files that are open, without one that the training may replace.
    fn open_but(&self, replaced: Option<&Path>) -> Vec<Arc<SourceBytes>> {
        let is_other = |file: &&Arc<SourceBytes>| {
            replaced.is_none_or(|replaced| file.path().is_none_or(|path| !is_same(path, replaced)))
        };
        self.open.iter().filter(is_other).cloned().collect()
    }
}

/// True if the training continues the checkpoint that it saves: the output replaces the name of that file, not another name of
/// it, which would leave the old checkpoint there.
pub(super) fn saves_resumed(args: &TrainArgs) -> bool {
    let paths = args.resume.as_ref().zip(args.output.save.as_ref());
    paths.is_some_and(|(resume, save)| Known::new("", resume).has_name_of(&Known::new("", save)))
}

/// True if two paths lead to one file, which need not be there.
fn is_same(a: &Path, b: &Path) -> bool {
    Known::new("", a).same(&Known::new("", b))
}

/// Checks that the outputs may be written, before any work is done for them.
pub(super) fn check_outputs(args: &TrainArgs, read: &ReadFiles) -> Result<(), Failure> {
    let fail = |error: ampc::Error| diagnose::failure(&error, None);
    let Some(save) = &args.output.save else { return Ok(()) };
    if ampc::files::is_stream(save) || save.as_os_str() == "-" {
        let message = format!(
            "`--save {}`: expected the name of a file, found a pipe or device, in which no checkpoint can be replaced",
            save.display()
        );
        return Err(Failure::usage("save", message));
    }
    let goes_on = saves_resumed(args);
    read.refuse("--save", save, goes_on)?;
    refuse_among_samples(args, "--save", save)?;
    let replaced = Some(save.as_path()).filter(|_| goes_on);
    if args.output.log.as_ref().is_some_and(|log| is_same(&log::path_of(log), save)) {
        let message = "`--save` and `--log` name one file; choose another name for one of them";
        return Err(Failure::usage("same_file", message));
    }
    ampc::files::check(save, args.output.force || goes_on, &read.open_but(replaced)).map_err(fail)
}

/// Refuses an output that the next run would read as samples: a file in a folder of samples, by its own name or by the name
/// of the file that it leads to.
fn refuse_among_samples(args: &TrainArgs, option: &str, output: &Path) -> Result<(), Failure> {
    let behind = ampc::files::behind_links(output);
    let places = [output, behind.as_path()].into_iter().filter(|path| {
        let ending = path.extension().map(std::ffi::OsStr::to_ascii_lowercase).unwrap_or_default();
        ending == "safetensors" || ending == "npz"
    });
    let parents = places.filter_map(|path| std::fs::canonicalize(path.parent()?.join(".")).ok());
    let parents: Vec<PathBuf> = parents.collect();
    let mut folders = [Some(&args.data.data), args.data.eval.as_ref()].into_iter().flatten();
    let folder = folders.find(|folder| {
        folder.is_dir() && std::fs::canonicalize(folder).is_ok_and(|folder| parents.contains(&folder))
    });
    let Some(folder) = folder else { return Ok(()) };
    let message = format!(
        "`{option} {}`: expected a file beside the folder of samples `{}`, found a file in it, which would be read as \
         samples; choose another place",
        output.display(),
        folder.display()
    );
    Err(Failure::usage(option.trim_start_matches('-'), message))
}

/// Opens the requested log of a training that stands at `begin`, before any work is done for it.
pub(super) fn open_log(args: &TrainArgs, begin: &Position, read: &ReadFiles) -> Result<Option<Log>, Failure> {
    let Some(path) = &args.output.log else { return Ok(None) };
    let path = log::path_of(path);
    if path.as_os_str() == "-" {
        let message =
            "`--log -`: expected the name of a file; `/dev/stdout` writes the log to standard output";
        return Err(Failure::usage("log", message));
    }
    let states = [args.state.as_ref(), args.init.as_ref(), args.resume.as_ref()].into_iter().flatten();
    if let Some(state) = states.into_iter().find(|state| is_same(state, &path)) {
        let message =
            format!("`--log {}` is the state `{}`; choose another name", path.display(), state.display());
        return Err(Failure::usage("same_file", message));
    }
    read.refuse("--log", &path, false)?;
    refuse_among_samples(args, "--log", &path)?;
    let goes_on = args.resume.is_some();
    let force = args.output.force || goes_on;
    ampc::files::check(&path, force, &read.open).map_err(|e| diagnose::failure(&e, None))?;
    match goes_on {
        true => Log::go_on(&path, begin),
        false => Log::start(&path, begin.run.as_deref(), args.output.force),
    }
    .map(Some)
}
