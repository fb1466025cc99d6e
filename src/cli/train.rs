//! `ampc train`: runs a training step over samples.

mod log;

use self::log::Log;
use super::args::{LastArg, TrainArgs};
use super::pipeline::load;
use super::problem::{Failure, Problem};
use super::progress::Progress;
use super::run::{device, digits};
use super::table::{bytes, count, number};
use super::ui::{self, Stream, Ui};
use super::{diagnose, interrupt, shown};
use ampc::ErrorKind;
use ampc::execute::Trainer;
use ampc::execute::training::{
    Checkpoint, Dataset, Evaluated, Evaluation, GradientHistograms, Incomplete, LostUpdates, NO_OPTIMIZER,
    Position, Schedule, Taken, Training, TrainingOptions,
};
use ampc::ir::{DType, Module};
use ampc::onnx::bytes::SourceBytes;
use ampc::runtime::Cpu;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) fn run(args: &TrainArgs, threads: Option<u32>, ui: Ui) -> Result<(), Failure> {
    device(&args.device)?;
    let progress = Progress::start(ui);
    progress.stage("reading");
    let fail = |error: ampc::Error| diagnose::failure(&error, None);
    let model = load(&args.step, ui)?;
    if !ampc::train::is_step(&model.module) {
        let message = format!(
            "`{}`: expected a training step, found a model that is none; `ampc train-step` makes one of it",
            args.step.display()
        );
        return Err(Failure::usage("step", message));
    }
    if ampc::train::rate_of(&model.module).map_err(fail)?.is_none() {
        return Err(Failure::usage("step", format!("`{}`: {NO_OPTIMIZER}", args.step.display())));
    }
    let checkpoint = checkpoint(args)?;
    let position = checkpoint.position.as_ref().filter(|_| args.resume.is_some());
    let files = model.files();
    let cpu = Cpu { threads: threads.map_or(0, |n| usize::try_from(n).unwrap_or(0)), ..Cpu::default() };
    let trainer = Trainer::new(model, &checkpoint.state, &cpu);
    let trainer = trainer.map_err(|error| of_state(&error, args))?;
    let data = Dataset::of_batches(&args.data.data, &trainer, cpu.max_bytes).map_err(fail)?;
    let mut training = Training::new(trainer, data, options(args, position)?).map_err(fail)?;
    if let Some(epochs) = args.run.epochs {
        training.set_epochs(epochs);
    }
    if let Some(position) = position {
        training.resume(position);
    }
    let (steps, taken) = (training.options().steps, training.position().step);
    if taken > steps {
        let message =
            format!("expected {taken} steps, which the checkpoint has taken, or more, found {steps}");
        let failure = Failure::usage("steps", message);
        return Err(
            failure.with_help("`--steps` and `--epochs` count those before the checkpoint; give more")
        );
    }
    let batch = training.options().batch.unwrap_or(1);
    let evaluation = args.data.eval.as_ref();
    let evaluation =
        evaluation.map(|path| Evaluation::new(training.trainer(), path, batch, &cpu)).transpose();
    let evaluation = evaluation.map_err(fail)?;
    let mut read = files;
    read.extend(training.data().files().iter().cloned());
    read.extend(evaluation.iter().flat_map(|evaluation| evaluation.data().files().iter().cloned()));
    check_outputs(args, &read)?;
    let log = open_log(args, position, &read)?;
    let session = Session::new(args, ui, &progress, training, evaluation, log).map_err(fail)?;
    progress.suspend(|| session.begin(position));
    session.train()
}

/// The file of the state to begin with.
fn state_path(args: &TrainArgs) -> &Path {
    let path = args.resume.as_ref().or(args.state.as_ref());
    path.expect("the arguments ask for a state")
}

/// How many of the tensors that do not fit are named.
const NAMED: usize = 4;

/// Why a step cannot begin with a state: one problem, however many tensors do not fit.
fn of_state(error: &ampc::Error, args: &TrainArgs) -> Failure {
    let failure = diagnose::failure(error, None);
    let ampc::Error::Inputs(problems) = error else { return failure };
    let path = state_path(args).display().to_string();
    let [_, _, ..] = &problems[..] else { return failure.retold(|said| format!("`{path}`: {said}")) };
    let mut lines: Vec<String> =
        problems.iter().take(NAMED).map(|problem| shown::message(&problem.to_string())).collect();
    if problems.len() > NAMED {
        lines.push(format!("and {} more", problems.len() - NAMED));
    }
    let message = format!(
        "`{path}`: expected the state of `{}`, found one of which {} do not fit",
        args.step.display(),
        count(problems.len() as u64, "tensor")
    );
    let problem = Problem::new("ampc::states::other", message).with_lines(lines);
    let help = "a state belongs to the step that it was made for or saved by";
    Failure::of(error.kind(), problem.with_help(help))
}

/// The state to begin with, and where it stands.
fn checkpoint(args: &TrainArgs) -> Result<Checkpoint, Failure> {
    let path = state_path(args);
    let checkpoint = Checkpoint::read(path).map_err(|e| diagnose::failure(&e, None))?;
    if args.resume.is_some() && checkpoint.position.is_none() {
        let message = format!(
            "`--resume {}`: expected a checkpoint, found a state that does not say how many steps were taken; \
             `--state` begins with it",
            path.display()
        );
        return Err(Failure::usage("resume", message));
    }
    Ok(checkpoint)
}

/// What was asked for, and for the rest what the run had that wrote the checkpoint.
fn options(args: &TrainArgs, position: Option<&Position>) -> Result<TrainingOptions, Failure> {
    let schedule = match (&args.run.lr, position) {
        (Some(schedule), _) => Some(schedule.clone()),
        (None, Some(position)) => Some(position.lr.parse::<Schedule>().map_err(|error| {
            Failure::usage("resume", format!("the learning rate of the checkpoint: {error}; give `--lr`"))
        })?),
        (None, None) => None,
    };
    let default = TrainingOptions::default();
    let shuffled = position.is_none_or(|position| position.seed.is_some()) || args.data.seed.is_some();
    let last = args.data.last.map(|last| match last {
        LastArg::Keep => Incomplete::Kept,
        LastArg::Drop => Incomplete::Dropped,
    });
    let dropped = position.filter(|position| position.drops_incomplete).map(|_| Incomplete::Dropped);
    Ok(TrainingOptions {
        steps: args.run.steps.or(position.map(|position| position.steps)).unwrap_or(default.steps),
        batch: args.data.batch.or(position.map(|position| position.batch)),
        schedule: schedule.unwrap_or(default.schedule),
        seed: args.data.seed.or(position.and_then(|position| position.seed)).unwrap_or(default.seed),
        shuffles: shuffled && !args.data.no_shuffle,
        incomplete: last.or(dropped),
    })
}

/// Whether two paths lead to one file.
fn is_same(a: &Path, b: &Path) -> bool {
    let canonical = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    canonical(a) == canonical(b)
}

/// Checks that what is to be written may be, before any work is done for it.
fn check_outputs(args: &TrainArgs, read: &[Arc<SourceBytes>]) -> Result<(), Failure> {
    let fail = |error: ampc::Error| diagnose::failure(&error, None);
    if let Some(save) = &args.output.save {
        if ampc::files::is_stream(save) || save.as_os_str() == "-" {
            let message = format!(
                "`--save {}`: expected the name of a file, found a pipe or device, which no checkpoint can be replaced in",
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
        let goes_on = args.resume.as_ref().is_some_and(|resume| is_same(resume, save));
        ampc::files::check(save, args.output.force || goes_on, read).map_err(fail)?;
        if args.output.log.as_ref().is_some_and(|log| is_same(&log::path_of(log), save)) {
            let message = "`--save` and `--log` name one file; choose another name for one of them";
            return Err(Failure::usage("same_file", message));
        }
    }
    Ok(())
}

fn open_log(
    args: &TrainArgs,
    position: Option<&Position>,
    read: &[Arc<SourceBytes>],
) -> Result<Option<Log>, Failure> {
    let Some(path) = &args.output.log else { return Ok(None) };
    let path = log::path_of(path);
    let states = [args.state.as_ref(), args.resume.as_ref()].into_iter().flatten();
    if let Some(state) = states.into_iter().find(|state| is_same(state, &path)) {
        let message =
            format!("`--log {}` is the state `{}`; choose another name", path.display(), state.display());
        return Err(Failure::usage("same_file", message));
    }
    let force = args.output.force || position.is_some();
    ampc::files::check(&path, force, read).map_err(|e| diagnose::failure(&e, None))?;
    match position {
        Some(position) => Log::go_on(&path, position.step),
        None => Log::start(&path),
    }
    .map(Some)
}

/// Takes a step, and looks at its gradients and updates.
fn take_watched(
    training: &mut Training,
    watched: &mut (GradientHistograms, LostUpdates),
) -> Result<Option<Taken>, ampc::Error> {
    watched.0.clear();
    watched.1.begin(training.trainer())?;
    let taken = training.step_observed(Some(watched), |_, _| {})?;
    watched.1.end(training.trainer());
    Ok(taken)
}

/// How often the line on the terminal is written anew.
const REFRESH: Duration = Duration::from_millis(100);

/// A training and what is told of it.
struct Session<'a> {
    args: &'a TrainArgs,
    ui: Ui,
    progress: &'a Progress,
    training: Training,
    evaluation: Option<Evaluation>,
    log: Option<Log>,
    /// What the log says of gradients and updates.
    watched: Option<(GradientHistograms, LostUpdates)>,
    /// The first step of this run, and the last.
    first: Option<Taken>,
    last: Option<Taken>,
    /// The step that the state was saved after.
    saved: Option<u64>,
    /// The last evaluation, and the step after which it was.
    evaluated: Option<(u64, Evaluated)>,
    /// Since when samples are counted for the rate of the next line.
    since: Instant,
    samples: u64,
    shown: Instant,
    /// Whether the heading of the lines was printed.
    has_heading: bool,
}

impl<'a> Session<'a> {
    fn new(
        args: &'a TrainArgs,
        ui: Ui,
        progress: &'a Progress,
        training: Training,
        evaluation: Option<Evaluation>,
        log: Option<Log>,
    ) -> Result<Session<'a>, ampc::Error> {
        let trainer = training.trainer();
        let watched = args
            .output
            .histogram_every
            .map(|_| LostUpdates::new(trainer).map(|updates| (GradientHistograms::new(trainer), updates)));
        let watched = watched.transpose()?;
        let now = Instant::now();
        // What is gone on with is there already.
        let begins = args.resume.as_ref().zip(args.output.save.as_ref()).filter(|(a, b)| is_same(a, b));
        let saved = begins.map(|_| training.position().step);
        Ok(Session {
            args,
            ui,
            progress,
            training,
            evaluation,
            log,
            watched,
            first: None,
            last: None,
            saved,
            evaluated: None,
            since: now,
            samples: 0,
            shown: now,
            has_heading: false,
        })
    }

    /// Says what is about to be done, and what is odd about it.
    fn begin(&self, position: Option<&Position>) {
        let (training, data) = (&self.training, self.training.data());
        let options = training.options();
        let order =
            if options.shuffles { format!("shuffled by seed {}", options.seed) } else { "in order".into() };
        let mut text = format!(
            "data        {}, {} in a batch, {} an epoch, {order}\n",
            count(data.samples(), "sample"),
            number(options.batch.unwrap_or(1)),
            count(training.batches().per_epoch(), "step"),
        );
        let begin = position.map_or(String::new(), |position| format!("{} to ", number(position.step)));
        let _ = writeln!(
            text,
            "steps       {begin}{}, learning rate {}",
            number(options.steps),
            options.schedule
        );
        self.ui.say(&text);
        let warn = |code: &str, message: String| self.warning(code, message);
        if !data.unread().is_empty() {
            let names = data.unread().join(", ");
            warn("train.unread", format!("arrays that no input of the step has the name of: {names}"));
        }
        let left_out = training.batches().left_out();
        if left_out > 0 {
            let message =
                format!("{} of an epoch are fewer than a batch and left out", count(left_out, "sample"));
            warn("train.left_out", message);
        }
        if self.args.output.save.is_none() {
            warn(
                "train.not_saved",
                "the trained state is kept nowhere: `--save FILE.safetensors` writes it".into(),
            );
        }
        let differences = position.map(|before| before.differences(&training.position())).unwrap_or_default();
        // More steps are another run only if a rate depends on how many there are.
        let matters = |name: &str| name != "steps" || training.options().schedule.depends_on_steps();
        for (name, before, now) in differences.into_iter().filter(|(name, ..)| matters(name)) {
            let message =
                format!("`{name}` is {now}, and was {before}: this is not the run that was stopped");
            warn("train.other_run", message);
        }
    }

    fn warning(&self, code: &str, message: String) {
        self.ui.say(Problem::warning(code, message).draw(self.ui, Stream::Err).trim_start_matches('\n'));
    }

    /// Says which data was not the same from the first step to the last.
    fn warn_of_written_data(&self) {
        let of_evaluation = self.evaluation.iter().flat_map(|evaluation| evaluation.data().written_to());
        for path in self.training.data().written_to().chain(of_evaluation) {
            let path = shown::message(&path.display().to_string());
            let message = format!(
                "`{path}` was written to while it was read: batches may have had some of its old samples and some of the new"
            );
            self.warning("train.written", message);
        }
    }

    /// Trains to the end, or until a signal or an error. The state is saved whatever happens.
    fn train(mut self) -> Result<(), Failure> {
        interrupt::patiently();
        let ended = self.steps();
        let stopped = interrupt::requested();
        let saved = self.save_unless_saved();
        let step = self.training.position().step;
        let place = match (&self.args.output.save, self.saved == Some(step)) {
            (Some(path), true) => format!(
                "the state after step {step} is in `{0}`; `--resume {0}` goes on",
                shown::message(&path.display().to_string())
            ),
            (Some(path), false) => {
                format!("the state after step {step} could not be written to `{}`", path.display())
            }
            (None, _) => "the state was not saved (`--save`)".into(),
        };
        let told = |mut failure: Failure| {
            failure.problems.iter_mut().for_each(|problem| problem.lines.push(place.clone()));
            failure
        };
        match (ended, stopped) {
            (Err(failure), _) if failure.problems.is_empty() => return saved.and(Err(failure)),
            (Err(failure), _) => {
                let mut failure = told(failure);
                failure.problems.extend(saved.err().into_iter().flat_map(|other| other.problems));
                return Err(failure);
            }
            (Ok(false), Some(status)) => {
                saved?;
                let message =
                    format!("stopped by a signal after step {step} of {}", self.training.options().steps);
                let failure = Failure::of(ErrorKind::Usage, Problem::warning("train.stopped", message));
                return Err(told(Failure { code: status, ..failure }));
            }
            (Ok(_), _) => saved?,
        }
        let summary = self.summary();
        self.progress.suspend(|| {
            self.ui.say(&summary);
            self.warn_of_written_data();
        });
        Ok(())
    }

    /// Takes all steps; false if a signal came before the last one.
    fn steps(&mut self) -> Result<bool, Failure> {
        while self.step()? {
            if interrupt::requested().is_some() {
                return Ok(self.training.position().step >= self.training.options().steps);
            }
        }
        self.evaluate()?;
        Ok(true)
    }

    /// Takes a step, and does what is due after it; false if there is none to take.
    fn step(&mut self) -> Result<bool, Failure> {
        let due = |every: Option<u64>, step: u64| every.is_some_and(|every| step.is_multiple_of(every));
        let next = self.training.position().step.saturating_add(1);
        let started = Instant::now();
        let watched = self.watched.as_mut().filter(|_| due(self.args.output.histogram_every, next));
        let taken = match watched {
            Some(watched) => take_watched(&mut self.training, watched),
            None => self.training.step(),
        };
        let taken = taken.map_err(|error| self.of_step(&error, next))?;
        let Some(taken) = taken else { return Ok(false) };
        self.first.get_or_insert(taken);
        self.last = Some(taken);
        self.samples += taken.samples;
        if let Some(log) = &mut self.log {
            log.step(&taken, started.elapsed().as_secs_f64())?;
            let watched = self.watched.as_ref().filter(|_| due(self.args.output.histogram_every, next));
            if let Some((histograms, updates)) = watched {
                log.histograms(&taken, histograms, updates)?;
            }
        }
        let steps = self.training.options().steps;
        let every = self.args.output.print_every.unwrap_or((steps / 10).max(1));
        if taken.number.is_multiple_of(every) || taken.number == steps {
            self.row(&taken)?;
        } else if self.shown.elapsed() > REFRESH {
            self.shown = Instant::now();
            let loss = taken.of.loss.map_or(String::new(), |loss| format!(", loss {}", digits(loss)));
            self.progress.stage(format!("step {} of {}{loss}", number(taken.number), number(steps)));
        }
        let epoch_ends = taken.number.is_multiple_of(self.training.batches().per_epoch());
        match self.args.data.eval_every {
            Some(every) if !taken.number.is_multiple_of(every) => {}
            None if !epoch_ends => {}
            Some(_) | None => self.evaluate()?,
        }
        if due(self.args.output.save_every, taken.number) {
            self.save_unless_saved()?;
        }
        Ok(true)
    }

    /// The error of a step, with its number.
    fn of_step(&self, error: &ampc::Error, step: u64) -> Failure {
        let failure = diagnose::failure(error, Some(self.training.trainer().module()));
        failure.retold(|said| format!("step {step}: {said}"))
    }

    /// Prints a line about a step, under a heading if it is the first one.
    fn row(&mut self, taken: &Taken) -> Result<(), Failure> {
        #[expect(clippy::cast_precision_loss, reason = "shown with four digits")]
        let speed = self.samples as f64 / self.since.elapsed().as_secs_f64().max(1e-9);
        let has_heading = std::mem::replace(&mut self.has_heading, true);
        (self.since, self.samples) = (Instant::now(), 0);
        let mut cells = vec![
            ("step", number(taken.number)),
            ("epoch", number(taken.epoch)),
            ("loss", taken.of.loss.map_or("-".into(), digits)),
            ("lr", digits(taken.rate)),
        ];
        cells.extend(taken.of.loss_scale.map(|scale| ("loss scale", scale.to_string())));
        if taken.of.loss_scale.is_some() || self.training.position().skipped > 0 {
            cells.push(("skipped", number(self.training.position().skipped)));
        }
        cells.extend(taken.of.grad_norm.map(|norm| ("grad norm", digits(norm))));
        cells.push(("samples/s", digits_of_speed(speed)));
        let mut text = String::new();
        if !has_heading {
            let heads: Vec<String> = cells.iter().map(|(head, _)| format!("{head:>WIDTH$}")).collect();
            let _ = writeln!(text, "{}", heads.join(""));
        }
        let row: Vec<String> = cells.iter().map(|(_, cell)| format!("{cell:>WIDTH$}")).collect();
        let _ = writeln!(text, "{}", row.join(""));
        if self.ui.quiet {
            return Ok(());
        }
        self.progress.suspend(|| ui::show(&text))
    }

    /// Computes the loss on samples that are not trained on, unless that was done after this step.
    fn evaluate(&mut self) -> Result<(), Failure> {
        let step = self.training.position().step;
        let Some(evaluation) =
            self.evaluation.as_mut().filter(|_| self.evaluated.is_none_or(|(of, _)| of != step))
        else {
            return Ok(());
        };
        self.progress.stage("evaluating");
        let found = evaluation.run(self.training.trainer(), || interrupt::requested().is_none());
        let found = found.map_err(|error| {
            diagnose::failure(&error, None).retold(|said| format!("evaluation after step {step}: {said}"))
        })?;
        let Some(found) = found else { return Ok(()) };
        self.evaluated = Some((step, found));
        if let Some(log) = &mut self.log {
            log.evaluation(step, found)?;
        }
        if self.ui.quiet {
            return Ok(());
        }
        let line = format!(
            "{:>WIDTH$}  evaluated: {} on {}\n",
            number(step),
            told_of(found),
            count(found.samples, "sample")
        );
        self.progress.suspend(|| ui::show(&line))
    }

    /// Writes the state, if it changed since it was written.
    fn save_unless_saved(&mut self) -> Result<(), Failure> {
        let step = self.training.position().step;
        let Some(path) = self.args.output.save.as_deref().filter(|_| self.saved != Some(step)) else {
            return Ok(());
        };
        // What this run has written may be replaced, and what it was asked for is checked before.
        self.training.save(path, true).map_err(|error| {
            let kept = match path.exists() {
                true => "the checkpoint that was there is as it was",
                false => "there is no checkpoint",
            };
            diagnose::failure(&error, None)
                .retold(|said| format!("checkpoint after step {step}: {said}; {kept}"))
        })?;
        self.saved = Some(step);
        Ok(())
    }

    fn summary(&self) -> String {
        let (position, trainer) = (self.training.position(), self.training.trainer());
        let mut text = String::new();
        let loss = |taken: Option<Taken>| taken.and_then(|taken| taken.of.loss).map_or("-".into(), digits);
        if let Some((first, last)) = self.first.zip(self.last) {
            let steps = last.number - first.number + 1;
            let (begin, end) = (loss(Some(first)), loss(Some(last)));
            let _ = writeln!(text, "trained     {}, loss {begin} to {end}", count(steps, "step"));
        } else {
            let _ = writeln!(text, "trained     no step: all {} are taken", number(position.steps));
            return text;
        }
        if let Some((step, found)) = self.evaluated {
            let (told, samples) = (told_of(found), count(found.samples, "sample"));
            let _ = writeln!(text, "evaluated   {told} on {samples} after step {}", number(step));
        }
        let _ =
            writeln!(text, "skipped     {} of {}", number(position.skipped), count(position.step, "step"));
        let (low, all) = low_nodes(trainer.module());
        let _ = writeln!(text, "low         {} of {}", number(low), count(all, "node"));
        let _ = writeln!(
            text,
            "memory      {} of state, activations and gradients",
            bytes(trainer.allocated_bytes())
        );
        if let (Some(path), Some(_)) = (&self.args.output.save, self.saved) {
            let _ = writeln!(text, "wrote       {}", shown::message(&path.display().to_string()));
        }
        text
    }
}

/// Columns of a line.
const WIDTH: usize = 12;

/// What an evaluation found.
fn told_of(found: Evaluated) -> String {
    let accuracy = found.accuracy.map(|accuracy| format!(", accuracy {}", digits(accuracy)));
    format!("loss {}{}", digits(found.loss), accuracy.unwrap_or_default())
}

/// Samples per second, with three digits.
fn digits_of_speed(speed: f64) -> String {
    if speed >= 100.0 { format!("{speed:.0}") } else { format!("{speed:.2}") }
}

/// How many nodes have a low result, and how many there are.
fn low_nodes(module: &Module) -> (u64, u64) {
    let (mut low, mut all) = (0, 0);
    for node in module.nodes(module.main()) {
        let results = module.node(node).results().iter().flatten();
        let mut dtypes = results.filter_map(|&value| module.value(value).ty.dtype());
        all += 1;
        low += u64::from(dtypes.any(DType::is_low));
    }
    (low, all)
}
