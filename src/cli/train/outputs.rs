//! Outputs of training, whose paths are checked before any work is done.

use super::log::{self, Log};
use crate::cli::args::TrainArgs;
use crate::cli::diagnose;
use crate::cli::problem::Failure;
use ampc::execute::training::Position;
use ampc::onnx::bytes::{FileId, SourceBytes};
use std::fs::Metadata;
use std::path::Path;
use std::sync::Arc;

/// True if two paths lead to one file.
pub(super) fn is_same(a: &Path, b: &Path) -> bool {
    // Of a file that is not there yet, the folder is; a link may lead to it.
    let canonical = |path: &Path| {
        let folder = || {
            let path = &ampc::files::behind_links(path);
            let folder =
                path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            Some(std::fs::canonicalize(folder).ok()?.join(path.file_name()?))
        };
        std::fs::canonicalize(path).ok().or_else(folder).unwrap_or_else(|| path.to_owned())
    };
    canonical(a) == canonical(b)
}

/// True if two paths lead to one file, hard links included.
fn is_one_file(a: &Path, b: &Path) -> bool {
    let id = |path: &Path| {
        std::fs::metadata(path).ok().filter(Metadata::is_file).and_then(|found| FileId::of(&found))
    };
    is_same(a, b) || id(a).is_some_and(|found| id(b) == Some(found))
}

/// The files of states that a training reads but does not go on writing.
pub(super) fn states_read(args: &TrainArgs) -> Vec<Arc<SourceBytes>> {
    let goes_on = |path: &Path| args.output.save.as_ref().is_some_and(|save| is_same(path, save));
    let resume = args.resume.as_ref().filter(|resume| !goes_on(resume));
    let states = [args.state.as_ref(), args.init.as_ref(), resume].into_iter().flatten();
    states.filter_map(|state| SourceBytes::open(state).ok()).map(Arc::new).collect()
}

/// The failure of an output that may not be written.
fn refused(option: &str, path: &Path, error: &ampc::Error) -> Failure {
    let failure = diagnose::failure(error, None);
    match failure.problems.first() {
        Some(problem) if problem.code == "ampc::export::target_is_source" => {
            let message = format!(
                "`{option} {}` is a file that the training reads; choose another name",
                path.display()
            );
            Failure::usage("same_file", message)
        }
        _ => failure,
    }
}

/// Checks that the outputs may be written, before any work is done for them.
pub(super) fn check_outputs(args: &TrainArgs, read: &[Arc<SourceBytes>]) -> Result<(), Failure> {
    if let Some(save) = &args.output.save {
        if ampc::files::is_stream(save) || save.as_os_str() == "-" {
            let message = format!(
                "`--save {}`: expected the name of a file, found a pipe or device, in which no checkpoint can be replaced",
                save.display()
            );
            return Err(Failure::usage("save", message));
        }
        let begins = args.state.as_ref().map(|path| ("the state that the training begins with", path));
        let data = [Some(&args.data.data), args.data.eval.as_ref()].into_iter().flatten();
        let data = data.map(|path| ("data that is trained with", path));
        if let Some((what, _)) = begins.into_iter().chain(data).find(|(_, path)| is_same(path, save)) {
            let message = format!("`--save {}` is {what}; choose another name", save.display());
            return Err(Failure::usage("same_file", message));
        }
        let is_array_file = save.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("safetensors"));
        let folders = [Some(&args.data.data), args.data.eval.as_ref()].into_iter().flatten();
        let folder = folders.filter(|_| is_array_file).find(|path| {
            path.is_dir() && save.parent().is_some_and(|parent| is_same(path, &parent.join(".")))
        });
        if let Some(folder) = folder {
            let message = format!(
                "`--save {}`: expected a file beside the folder of samples `{}`, found a file in it, which would be read as \
                 samples; choose another place",
                save.display(),
                folder.display()
            );
            return Err(Failure::usage("save", message));
        }
        if args.output.log.as_ref().is_some_and(|log| is_one_file(&log::path_of(log), save)) {
            let message = "`--save` and `--log` name one file; choose another name for one of them";
            return Err(Failure::usage("same_file", message));
        }
        let goes_on = args.resume.as_ref().is_some_and(|resume| is_same(resume, save));
        ampc::files::check(save, args.output.force || goes_on, read)
            .map_err(|error| refused("--save", save, &error))?;
    }
    Ok(())
}

/// Opens the requested log of a training that stands at `begin`, before any work is done for it.
pub(super) fn open_log(
    args: &TrainArgs,
    begin: &Position,
    read: &[Arc<SourceBytes>],
) -> Result<Option<Log>, Failure> {
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
    let goes_on = args.resume.is_some();
    let force = args.output.force || goes_on;
    // What is gone on with may be the file under another name.
    let resume = args.resume.iter().filter_map(|state| SourceBytes::open(state).ok()).map(Arc::new);
    let read: Vec<Arc<SourceBytes>> = read.iter().cloned().chain(resume).collect();
    ampc::files::check(&path, force, &read).map_err(|error| refused("--log", &path, &error))?;
    match goes_on {
        true => Log::go_on(&path, begin),
        false => Log::start(&path, begin.run.as_deref(), args.output.force),
    }
    .map(Some)
}
