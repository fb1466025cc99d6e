//! `ampc opt`: any pipeline on a model.

use super::args::{EmitArg, OptArgs};
use super::emit::{Emit, Target};
use super::pipeline::{Run, load};
use super::problem::{Failure, Problem};
use super::progress::Progress;
use super::settings::{ReadFile, read_policy, read_target};
use super::ui::{Stream, Ui};
use super::{diagnose, shown, summary, targets};
use ampc::passes::pipeline::{Pipeline, Resolver};
use ampc::passes::policy::PolicyError;
use ampc::passes::target::ProfileError;
use ampc::passes::{Invariants, Paths, Policy, Profile, Warning};
use ampc::report::is_about_result;
use rustc_hash::FxHashSet;
use std::cell::RefCell;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

pub(crate) fn run(args: &OptArgs, ui: Ui) -> Result<(), Failure> {
    let passes = match &args.passes {
        Some(passes) => passes.clone(),
        None => directive(&args.model)?.ok_or_else(|| {
            let message =
                "`--passes` is missing, and the model has no first line `// pass: …` that names them";
            Failure::usage("passes", message).with_help(
                "`--passes ''` runs none and prints the model as text; the report of a rewrite has the passes that it ran",
            )
        })?,
    };
    let emit = Emit::of(&args.write, args.output.as_deref(), EmitArg::Text, |_| Target::Stdout)?;
    let progress = Progress::start(ui);
    progress.stage("reading");
    let mut model = load(&args.model, ui)?;
    // What a text names is beside it.
    let folder = args.passes.is_none().then(|| args.model.parent()).flatten();
    // A dump or reproducer is in the middle of a pipeline, and says so in every line.
    let (pipeline, read) = parse(&passes, folder, Invariants::of(&model.module))?;
    targets::check(&model, &args.model, &read, &emit, &[], &args.debug, &pipeline)?;
    let force = emit.force();
    let run =
        Run { ui, progress: &progress, debug: &args.debug, force, pipeline: &pipeline, path: &args.model };
    let mut warnings = run.watched(&mut model, |model, observer| {
        ampc::rewrite::run_pipeline(model, &pipeline, args.debug.verify_each, observer)
    })?;
    progress.stage("writing");
    if emit.kind == EmitArg::Emulated {
        let (emulated, told) = ampc::emulate(model).map_err(|e| diagnose::failure(&e, None))?;
        model = emulated;
        let said: FxHashSet<&str> = warnings.iter().map(|said| said.message.as_str()).collect();
        let new: Vec<Warning> = told.into_iter().filter(|w| !said.contains(w.message.as_str())).collect();
        warnings.extend(new);
    }
    let written = emit.write(&model)?;
    drop(progress);
    let paths = (!warnings.is_empty()).then(|| Paths::of(&model.module));
    for warning in &warnings {
        let place = match (warning.node, &paths) {
            (Some(node), Some(paths)) => format!("`{}`: ", paths.path(node)),
            _ => String::new(),
        };
        let problem = Problem::warning(warning.code, format!("{place}{}", warning.message));
        let drawn = problem.draw(ui, Stream::Err);
        let say = if is_about_result(warning.code) { Ui::complain } else { Ui::say };
        say(ui, drawn.trim_start_matches('\n'));
    }
    for warning in model.warnings.iter().chain(&written.warnings) {
        let say = if is_about_result(warning.code()) { Ui::complain } else { Ui::say };
        say(ui, diagnose::of_warning(warning).draw(ui, Stream::Err).trim_start_matches('\n'));
    }
    for line in summary::as_before(&written).into_iter().chain(summary::spared(&written)) {
        ui.say(&shown::message(&format!("data {line}")));
    }
    Ok(())
}

/// The number of bytes at the beginning of a text that are searched for the line that names passes.
const LOOKED_AT: u64 = 1 << 16;

/// The pipeline that a text names in its first comments: `// pass: classify, taint`. An error if that line does
/// not end within the searched bytes.
fn directive(path: &Path) -> Result<Option<String>, Failure> {
    // A pipe can be read once, and the model is in it.
    let pipe = std::fs::metadata(path).is_ok_and(|m| !m.is_file());
    if pipe || path.extension().is_none_or(|e| e != "ir") {
        return Ok(None);
    }
    let file = File::open(path).map_err(|e| diagnose::cannot_open(path, &e))?;
    // One byte more says whether there is more.
    let mut left = LOOKED_AT + 1;
    let mut lines = BufReader::new(file.take(left));
    let mut line = Vec::new();
    // What cannot be read is said when the model is.
    while let Ok(n @ 1..) = lines.read_until(b'\n', &mut line) {
        left -= n as u64;
        let is_cut = left == 0 && !line.ends_with(b"\n");
        let text = String::from_utf8_lossy(&line);
        let Some(comment) = text.trim().strip_prefix("//") else { break };
        if is_cut {
            let what = match comment.trim_start().starts_with("pass:") {
                true => "the line `// pass: …` has",
                false => "the comments before the graph have",
            };
            let message = format!("{what} to end within the first {LOOKED_AT} bytes of the text");
            return Err(Failure::usage("passes", message).with_help(
                "name the passes with `--passes`; a policy file takes lists that are too long for the line",
            ));
        }
        if let Some(passes) = comment.trim_start().strip_prefix("pass:") {
            return Ok(Some(passes.trim().to_owned()));
        }
        line.clear();
    }
    Ok(None)
}

/// Policies and targets that names in a pipeline refer to: presets of ampc, and files.
#[derive(Default)]
struct Named<'a> {
    /// The folder of relative paths; by default the working directory.
    folder: Option<&'a Path>,
    /// The files that were read.
    files: RefCell<Vec<ReadFile>>,
    /// The problem of a file that cannot be read, with more detail than the pipeline's error type can carry.
    unread: RefCell<Option<Failure>>,
}

impl Named<'_> {
    /// Reads a preset or file with `read`; `error` makes the error for a name that cannot be read.
    fn read<T, E>(
        &self,
        what: &'static str,
        name: &str,
        read: impl FnOnce(&str) -> Result<T, Failure>,
        error: impl FnOnce() -> E,
    ) -> Result<T, E> {
        let mut file = ReadFile::named(what, name);
        if let (Some(file), Some(folder)) = (&mut file, self.folder) {
            file.path = folder.join(&file.path);
        }
        let place = file.as_ref().map_or(name.into(), |file| file.path.to_string_lossy());
        let read = read(&place);
        self.files.borrow_mut().extend(file);
        read.map_err(|failure| {
            *self.unread.borrow_mut() = Some(failure);
            error()
        })
    }
}

impl Resolver for Named<'_> {
    fn policy(&self, name: &str) -> Result<Policy, PolicyError> {
        let policy = |place: &str| read_policy(place).map(|read| read.policy);
        self.read("the policy", name, policy, || PolicyError::Precision { found: name.to_owned() })
    }

    fn target(&self, name: &str) -> Result<Profile, ProfileError> {
        self.read("the target", name, read_target, || ProfileError::TakenName { name: name.to_owned() })
    }
}

/// Reads a pipeline, and says which files it names.
fn parse(
    passes: &str,
    folder: Option<&Path>,
    known: Invariants,
) -> Result<(Pipeline, Vec<ReadFile>), Failure> {
    let named = Named { folder, ..Named::default() };
    let pipeline = Pipeline::parse_on(known, passes, &named)
        .map_err(|error| named.unread.take().unwrap_or_else(|| diagnose::failure(&error.into(), None)))?;
    Ok((pipeline, named.files.take()))
}
