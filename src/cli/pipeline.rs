//! Running passes: watched, dumped on request, and with a reproducer when a pass has a bug.

use super::args::DebugArgs;
use super::diagnose;
use super::problem::{Failure, LINES, Problem};
use super::progress::Progress;
use super::table::{count, elapsed};
use super::ui::{Stream, Ui};
use ampc::files::Batch;
use ampc::ir::Module;
use ampc::ir::tensor::ByteSource;
use ampc::passes::pipeline::{Observer, Pipeline, Spelling, pass_names};
use ampc::passes::suggest::did_you_mean;
use ampc::passes::{Changed, Pass, suggest};
use ampc::{Error, ErrorKind, Model};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A run of a pipeline on the model that was read from `path`.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a> {
    pub(crate) ui: Ui,
    pub(crate) progress: &'a Progress,
    pub(crate) debug: &'a DebugArgs,
    /// True if dumps may replace files.
    pub(crate) force: bool,
    pub(crate) pipeline: &'a Pipeline,
    pub(crate) path: &'a Path,
}

impl Run<'_> {
    /// Does `work`, which runs the pipeline on the model with the observer it gets.
    ///
    /// # Errors
    /// Runs `work` and draws its problems over the module as it is at that point. A panic is a bug like any
    /// other.
    pub(crate) fn watched<T>(
        &self,
        model: &mut Model,
        work: impl FnOnce(&mut Model, &mut dyn Observer) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        let mut watch = Watch {
            ui: self.ui,
            progress: self.progress,
            pipeline: self.pipeline,
            dump: Dump::of(self.debug)?,
            force: self.force,

            started: Instant::now(),
            index: 0,
            failed: None,
        };
        let result = catch_unwind(AssertUnwindSafe(|| work(model, &mut watch)));
        if let Some(failed) = watch.failed {
            return Err(failed);
        }
        match result {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(Error::Bug(message))) => Err(self.bug(model, message)),
            Ok(Err(error)) => {
                let mut failure = diagnose::failure(&error, Some(&model.module));
                failure.see = Some(format!("`ampc check {}`", self.path.display()));
                Err(failure)
            }
            Err(_) => Err(self.bug(model, super::panics::last())),
        }
    }

    fn bug(&self, model: &Model, message: String) -> Failure {
        self.progress.stage("looking for a reproducer");
        let mut problem = diagnose::bug(format!("a bug in ampc: {message}"));
        if let Some((pass, path)) = self.reproduce(model) {
            problem = problem.retold(|it| format!("{it} (in pass `{pass}`)"));
            problem = problem.with_help(format!(
                "please report this bug with `{0}`, which has the module without its weights; \
                 `ampc opt {0}` repeats it",
                path.display()
            ));
        }
        Failure::of(ErrorKind::Bug, problem)
    }

    /// Repeats the run to find the pass and the module before it. Passes are functions of the module and their
    /// options, so the second run goes as the first did.
    fn reproduce(&self, model: &Model) -> Option<(&'static str, PathBuf)> {
        let mut search = Search { stop: None, index: 0, text: String::new() };
        let mut fresh = self.reload(model)?;
        let run = |fresh: &mut Model, search: &mut Search| {
            let pipeline = self.pipeline;
            catch_unwind(AssertUnwindSafe(|| pipeline.run(&mut fresh.module, true, search).is_ok()))
        };
        if matches!(run(&mut fresh, &mut search), Ok(true)) || search.index == 0 {
            return None;
        }
        let broken = self.pipeline.passes().nth(search.index - 1)?.name();
        let first = search.index - 1;
        let mut fresh = self.reload(model)?;
        search = Search { stop: Some(first), index: 0, text: String::new() };
        let _ = run(&mut fresh, &mut search);
        let folder = self.debug.dump_dir.clone().unwrap_or_else(std::env::temp_dir);
        std::fs::create_dir_all(&folder).ok()?;
        let mut stems = std::iter::once("ampc-repro".to_owned())
            .chain((2..=REPRODUCERS).map(|i| format!("ampc-repro-{i}")));
        // Nothing is replaced: the model itself may be an earlier reproducer.
        let path = stems.find_map(|stem| {
            let path = folder.join(format!("{stem}.ir"));
            let spelling = self.pipeline.spell(first, &stem);
            write(&path, &spelling, &search.text, false).ok().map(|()| path)
        })?;
        Some((broken, path))
    }

    /// The model as it was read, again.
    pub(crate) fn reload(&self, model: &Model) -> Option<Model> {
        if self.path != Path::new("-") {
            return ampc::load(self.path).ok();
        }
        let source = model.source.as_ref()?.bytes();
        let mut bytes = vec![0; usize::try_from(source.len()).ok()?];
        source.read_exact_at(&mut bytes, 0).ok()?;
        let (module, source, warnings) =
            ampc::onnx::read_bytes("standard input", bytes, &ampc::onnx::ReadOptions::default()).ok()?;
        Some(Model { source: Some(source), warnings, ..Model::from(module) })
    }
}

/// Reproducers in one folder.
const REPRODUCERS: u32 = 999;

/// Counts passes, and prints the module before a chosen pass.
struct Search {
    stop: Option<usize>,
    index: usize,
    text: String,
}

impl Observer for Search {
    fn before(&mut self, _: &dyn Pass, module: &Module) {
        if self.stop == Some(self.index) {
            self.text = module.to_string();
        }
        self.index += 1;
    }
}

/// Writes a module with the passes that are left, and beside it the files that these name. An older module goes before
/// these files are replaced, so that it never names newer files.
fn write(path: &Path, passes: &Spelling, module: &str, force: bool) -> Result<(), Error> {
    let mut batch = Batch::new();
    if force && !passes.files.is_empty() {
        batch.withdraw(path);
    }
    for (name, content) in &passes.files {
        batch.add(&path.with_file_name(name), content.as_bytes(), force, &[])?;
    }
    let directive =
        if passes.text.is_empty() { String::new() } else { format!("// pass: {}\n", passes.text) };
    batch.add(path, format!("{directive}{module}").as_bytes(), force, &[])?;
    batch.commit()?;
    Ok(())
}

/// After which passes to write the module, and where.
struct Dump {
    after: String,
    folder: PathBuf,
}

impl Dump {
    /// The dumps that the arguments ask for; creates no folder yet.
    fn asked(args: &DebugArgs) -> Result<Option<Dump>, Failure> {
        let (Some(after), Some(folder)) = (&args.dump_after, &args.dump_dir) else { return Ok(None) };
        let words = || pass_names().chain(["all", "changed"]);
        if !words().any(|w| w == after) {
            let hint = did_you_mean(suggest::nearest(after, words()));
            let message = format!("`--dump-after {after}`: no pass is called so{hint}");
            return Err(Failure::usage("dump_after", message).with_help(format!(
                "expected all, changed or one of {}",
                pass_names().collect::<Vec<_>>().join(", ")
            )));
        }
        Ok(Some(Dump { after: after.clone(), folder: folder.clone() }))
    }

    fn of(args: &DebugArgs) -> Result<Option<Dump>, Failure> {
        let dump = Dump::asked(args)?;
        if let Some(Dump { folder, .. }) = &dump {
            std::fs::create_dir_all(folder).map_err(|e| Failure::io(&folder.display().to_string(), &e))?;
        }
        Ok(dump)
    }

    /// The dump after a pass, by its number from 1, with the remaining passes.
    fn after(&self, pipeline: &Pipeline, index: usize, pass: &str) -> (PathBuf, Spelling) {
        let stem = format!("{index:02}-{pass}");
        (self.folder.join(format!("{stem}.ir")), pipeline.spell(index, &stem))
    }

    fn wants(&self, pass: &str, changed: Changed) -> bool {
        match self.after.as_str() {
            "all" => true,
            "changed" => changed == Changed::Yes,
            name => name == pass,
        }
    }
}

/// The files that dumps may go to.
///
/// # Errors
/// If no pass is called as the arguments say.
pub(crate) fn dumps(args: &DebugArgs, pipeline: &Pipeline) -> Result<Vec<PathBuf>, Failure> {
    let Some(dump) = Dump::asked(args)? else { return Ok(Vec::new()) };
    let wanted = pipeline.passes().enumerate().filter(|(_, pass)| dump.wants(pass.name(), Changed::Yes));
    let files = |(i, pass): (usize, &dyn Pass)| {
        let (path, passes) = dump.after(pipeline, i + 1, pass.name());
        let beside: Vec<PathBuf> = passes.files.iter().map(|(name, _)| path.with_file_name(name)).collect();
        std::iter::once(path).chain(beside)
    };
    Ok(wanted.flat_map(files).collect())
}

struct Watch<'a> {
    ui: Ui,
    progress: &'a Progress,
    pipeline: &'a Pipeline,
    dump: Option<Dump>,
    force: bool,
    started: Instant,
    index: usize,
    failed: Option<Failure>,
}

impl Observer for Watch<'_> {
    fn before(&mut self, pass: &dyn Pass, _: &Module) {
        self.index += 1;
        self.started = Instant::now();
        self.progress.stage(pass.name());
    }

    fn after(&mut self, pass: &dyn Pass, module: &Module, changed: Changed) {
        if self.ui.verbose {
            let time = self.started.elapsed();
            let note = if changed == Changed::No { "  (no change)" } else { "" };
            let line = format!("{:>2} {:<18} {:>8}{note}", self.index, pass.name(), elapsed(time));
            self.progress.suspend(|| self.ui.say(&line));
        }
        let Some(dump) = self.dump.as_ref().filter(|d| d.wants(pass.name(), changed)) else { return };
        let (path, passes) = dump.after(self.pipeline, self.index, pass.name());
        if let Err(error) = write(&path, &passes, &module.to_string(), self.force) {
            self.failed.get_or_insert_with(|| diagnose::failure(&error, None));
        }
    }
}

impl Failure {
    /// Advice for the first problem.
    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Failure {
        if let Some(problem) = self.problems.first_mut() {
            *problem = problem.clone().with_help(help);
        }
        self
    }
}

/// Refuses devices, which have no end.
///
/// # Errors
/// If `path`, or standard input for `-`, is a device other than a pipe.
pub(crate) fn no_device(path: &Path) -> Result<(), Failure> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let real = if path == Path::new("-") { Path::new("/dev/stdin") } else { path };
        let kind = std::fs::metadata(real).map(|m| m.file_type());
        if kind.is_ok_and(|k| k.is_char_device() || k.is_block_device()) {
            let message =
                format!("cannot read `{}`: it is a device; expected a file or a pipe", path.display());
            return Err(Failure::of(ErrorKind::Io, Problem::new("ampc::import::device", message)));
        }
    }
    Ok(())
}

/// Reads the model of a command.
///
/// # Errors
/// All problems of the file.
pub(crate) fn load(path: &Path, ui: Ui) -> Result<Model, Failure> {
    no_device(path)?;
    let model = ampc::load(path).map_err(|e| {
        let mut failure = diagnose::failure(&e, None);
        failure.see = Some(format!("`ampc check {}`", path.display()));
        failure
    })?;
    if ui.verbose {
        let lines = model.warnings.iter().take(LINES).map(|w| diagnose::of_warning(w).line());
        lines.for_each(|line| ui.say(&line));
        if model.warnings.len() > LINES {
            let more = (model.warnings.len() - LINES) as u64;
            ui.say(&format!("and {}; `ampc check` counts them", count(more, "more warning")));
        }
    }
    Ok(model)
}

/// Warns about the way a model is read before it runs; with `named`, each warning names its model.
pub(crate) fn warn_of_reading(model: &Model, named: Option<&Path>, ui: Ui) {
    // In detail everything has been said when it was read.
    let warnings = model.warnings.iter().filter(|w| !ui.verbose && w.is_about_reading());
    for warning in warnings {
        let place = named.map_or_else(String::new, |path| format!("`{}`: ", path.display()));
        let problem = Problem::warning(warning.code(), format!("{place}{warning}"));
        ui.say(problem.draw(ui, Stream::Err).trim_start_matches('\n'));
    }
}

#[cfg(test)]
mod tests {
    use super::super::args::{Cli, Command};
    use super::*;
    use ampc::passes::{PassCx, PassError};
    use clap::Parser;

    const TEXT: &str = "module ir=10\nopset ai.onnx=21\n\ngraph @main {\n  input %x : f32[2]\n  \
                        %y = Relu(%x) : f32[2]\n  output %y : f32[2]\n}\n";

    #[derive(Debug)]
    enum Broken {
        Panics,
        LeavesGarbage,
    }

    /// It has the name of a real pass, so that `ampc opt` can read its reproducer.
    impl Pass for Broken {
        fn name(&self) -> &'static str {
            "simplify-casts"
        }
        fn run(&self, module: &mut Module, _: &mut PassCx<'_>) -> Result<Changed, PassError> {
            match self {
                Broken::Panics => panic!("the invariant is violated"),
                Broken::LeavesGarbage => {
                    let input = module.graph(module.main()).inputs()[0];
                    let ty = ampc::ir::Type::tensor(ampc::ir::DType::F16, ampc::ir::Shape::known(&[2]));
                    module.set_type(input, ty);
                    Ok(Changed::Yes)
                }
            }
        }
    }

    /// The failure of a run with a broken pass, with the reproducer in the folder.
    fn failure(broken: Broken, folder: &Path) -> Failure {
        let path = folder.join("m.ir");
        std::fs::write(&path, TEXT).unwrap();
        let dir = folder.join("dumps").display().to_string();
        let cli = Cli::parse_from(["ampc", "-q", "opt", "m.ir", "--dump-dir", &dir]);
        let Command::Opt(args) = &cli.command else { panic!("opt was given") };
        let ui = Ui::new(&cli.global);
        let pipeline = Pipeline::new(vec![
            Box::new(ampc::passes::classify::Classify {
                to: ampc::ir::DType::F16,
                policy: std::sync::Arc::default(),
                target: std::sync::Arc::default(),
            }),
            Box::new(broken),
            Box::new(ampc::passes::dce::Dce),
        ])
        .unwrap();
        let run = Run {
            ui,
            progress: &Progress::start(ui),
            debug: &args.debug,
            force: false,
            pipeline: &pipeline,
            path: &path,
        };
        let mut model = ampc::load(&path).unwrap();
        let result = run.watched(&mut model, |m, o| ampc::rewrite::run_pipeline(m, &pipeline, false, o));
        result.unwrap_err()
    }

    #[test]
    fn a_bug_comes_with_its_reproducer() {
        for broken in [Broken::Panics, Broken::LeavesGarbage] {
            let folder = tempfile::tempdir().unwrap();
            let failure = failure(broken, folder.path());
            assert_eq!(failure.code, 70);
            assert!(failure.problems[0].message.contains("in pass `simplify-casts`"), "{failure:?}");
            // What is left of the pipeline, and the module as the passes before left it.
            let reproducer = folder.path().join("dumps/ampc-repro.ir");
            let text = std::fs::read_to_string(&reproducer).unwrap();
            let decided = "class=clear why=table";
            assert_eq!(
                text,
                format!(
                    "// pass: simplify-casts, dce\n{}",
                    TEXT.replacen("[2]\n  output", &format!("[2] {decided}\n  output"), 1)
                )
            );
            // The pass of that name has no such bug: `ampc opt` goes on from there, to the end.
            let (from, to) = (reproducer.display().to_string(), folder.path().join("done.ir"));
            let cli = Cli::parse_from(["ampc", "-q", "opt", &from, "-o", &to.display().to_string()]);
            let Command::Opt(args) = &cli.command else { panic!("opt was given") };
            super::super::opt::run(args, Ui::new(&cli.global)).unwrap();
            assert!(std::fs::read_to_string(to).unwrap().contains(decided));
        }
    }
}
