//! `ampc train`: runs a training step over samples.

mod log;
mod messages;
mod outputs;

use self::log::Log;
use self::messages::{WIDTH, evaluation_text};
use self::outputs::{ReadFiles, check_outputs, open_log, saves_resumed};
use super::args::{LastArg, TrainArgs};
use super::pipeline::load;
use super::problem::{Failure, Problem};
use super::profile::{Measured, ProfileOutput};
use super::progress::Progress;
use super::run::digits;
use super::table::{count, number};
use super::ui::{self, Stream, Ui};
use super::{data, diagnose, interrupt, shown, targets};
use ampc::ErrorKind;
use ampc::execute::training::{
    Algorithms, Checkpoint, Dataset, Divergence, Evaluated, Evaluation, GradientHistograms, Incomplete,
    LostUpdates, NO_OPTIMIZER, Position, Schedule, StepRecord, Symptom, Training, TrainingOptions,
};
use ampc::execute::{Plans, StepTimes, Trainer};
use ampc::onnx::bytes::FileId;
use ampc::runtime::Runtime;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

pub(crate) fn run(args: &TrainArgs, threads: Option<u32>, ui: Ui) -> Result<(), Failure> {
    let backend = data::backend(&args.device, threads, ui)?;
    let progress = Progress::start(ui);
    progress.stage("reading");
    let fail = |error: ampc::Error| diagnose::failure(&error, None);
    let model = load(&args.step, ui)?;
    if !ampc::train::is_step(&model.module) {
        let message = format!(
            "`{}`: expected a training step, found another model; `ampc train-step` makes a training step from it",
            args.step.display()
        );
        return Err(Failure::usage("step", message));
    }
    if ampc::train::rate_of(&model.module).map_err(fail)?.is_none() {
        return Err(Failure::usage("step", format!("`{}`: {NO_OPTIMIZER}", args.step.display())));
    }
    let mut checkpoint = checkpoint(args)?;
    let init = args.init.as_deref();
    let init =
        init.map(|path| ampc::train::init_state(&model.module, &mut checkpoint.state, path)).transpose();
    let init = init.map_err(fail)?;
    let position = checkpoint.position.as_ref().filter(|_| args.resume.is_some());
    let (files, sources) = (model.files(), targets::sources(&model, &args.step));
    let mut runtime = Runtime::new(backend);
    runtime.limits.max_device_bytes = args.device.max_device_bytes;
    let trainer = Trainer::new(model, &checkpoint.state, &runtime);
    let trainer = trainer.map_err(|error| of_state(&error, args))?;
    ampc::train::refuse_state_of_other(trainer.identity(), checkpoint.identity.as_deref(), state_path(args))
        .map_err(fail)?;
    let data = Dataset::of_batches(&args.data.data, &trainer, runtime.limits.max_bytes).map_err(fail)?;
    let mut training = Training::new(trainer, data, options(args, position)?).map_err(fail)?;
    if let Some(epochs) = args.run.epochs {
        training.set_epochs(epochs);
    }
    if let Some(position) = position {
        training.resume(position).map_err(|error| {
            let help = "`--steps` and `--epochs` include the steps before the checkpoint; give more";
            Failure::usage("steps", error.to_string()).with_help(help)
        })?;
    }
    let batch = training.options().batch.unwrap_or(1);
    let evaluation = args.data.eval.as_ref();
    let evaluation =
        evaluation.map(|path| Evaluation::new(training.trainer(), path, batch, &runtime)).transpose();
    let evaluation = evaluation.map_err(fail)?;
    let mut read = files;
    read.extend(training.data().files().iter().cloned());
    read.extend(evaluation.iter().flat_map(|evaluation| evaluation.data().files().iter().cloned()));
    let read = ReadFiles::new(args, sources, read);
    check_outputs(args, &read)?;
    let log = open_log(args, &training.position(), &read)?;
    let wanted = ProfileOutput::of(&args.output.profiling, args.output.force, read.open())?;
    let mut session = Session::new(args, ui, &progress, training, evaluation, log).map_err(fail)?;
    session.profiled =
        args.output.profile.map(|steps| Profiled { steps, taken: 0, times: StepTimes::new(), plans: None });
    session.compares_algorithms = args.resume.is_some();
    session.recorded = checkpoint.algorithms;
    progress.suspend(|| {
        if let (Some(found), Some(path)) = (&init, &args.init) {
            session.tell_init(found, path);
        }
        session.begin(position);
    });
    session.train(&wanted)
}

/// The file of the state to begin with.
fn state_path(args: &TrainArgs) -> &Path {
    let path = args.resume.as_ref().or(args.state.as_ref());
    path.expect("the arguments ask for a state")
}

/// The maximal number of unfitting tensors that an error names.
const NAMED: usize = 4;

/// The problem of a step that does not fit a state: one problem for all unfitting tensors.
fn of_state(error: &ampc::Error, args: &TrainArgs) -> Failure {
    let failure = diagnose::failure(error, None);
    let ampc::Error::States(problems) = error else { return failure };
    let path = state_path(args).display().to_string();
    let [_, _, ..] = &problems[..] else { return failure.retold(|said| format!("`{path}`: {said}")) };
    let mut lines: Vec<String> =
        problems.iter().take(NAMED).map(|problem| shown::message(&problem.to_string())).collect();
    if problems.len() > NAMED {
        lines.push(format!("and {} more", problems.len() - NAMED));
    }
    let message = format!(
        "`{path}`: expected the state of `{}`, found a state in which {} do not fit",
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

/// The options of the command line; options that are not given are taken from the run that wrote the
/// checkpoint.
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
        max_skipped: args.run.max_skipped,
    })
}

/// Takes a step, and counts its gradients and updates.
fn take_watched(
    training: &mut Training,
    watched: &mut (GradientHistograms, LostUpdates),
) -> Result<Option<StepRecord>, ampc::Error> {
    watched.0.clear();
    watched.1.begin(training.trainer_mut())?;
    let taken = training.step_observed(Some(watched), |_, _| {})?;
    watched.1.end(training.trainer_mut())?;
    Ok(taken)
}

/// The error of a training that diverged.
fn diverged(divergence: &Divergence) -> Failure {
    let help = match divergence.symptom {
        Symptom::Skipped { .. } => {
            "train with a lower `--lr`, or make the step with `--clip-norm`, another `--scaler` or more operators in fp32 \
             (`--pin`); `--max-skipped N` waits for more steps"
        }
        Symptom::Loss { .. } | Symptom::Weight { .. } => {
            "train with a lower `--lr`, or make the step with `--clip-norm`; look for infinities in the data, and for batches \
             whose labels are all ignored"
        }
    };
    diagnose::failure(&divergence.clone().into(), None).with_help(help)
}

/// A file as it was seen: its identity, size and time.
type Seen = (Option<FileId>, u64, Option<SystemTime>);

/// The file at a path as it is now; none if there is no file.
fn seen(path: &Path) -> Option<Seen> {
    let found = std::fs::metadata(path).ok()?;
    Some((FileId::of(&found), found.len(), found.modified().ok()))
}

/// The steps that are begun on a device before the loss of the first of them is there.
const AHEAD: u64 = 2;

/// The interval between updates of the line on the terminal.
const REFRESH: Duration = Duration::from_millis(100);

/// The profile of some steps.
struct Profiled {
    /// The number of steps to measure.
    steps: u32,
    taken: u32,
    times: StepTimes,
    /// The plans of the last measured step.
    plans: Option<Plans>,
}

/// A training and its messages.
struct Session<'a> {
    args: &'a TrainArgs,
    ui: Ui,
    progress: &'a Progress,
    training: Training,
    evaluation: Option<Evaluation>,
    log: Option<Log>,
    /// Statistics of gradients and updates for the log.
    watched: Option<(GradientHistograms, LostUpdates)>,
    profiled: Option<Profiled>,
    /// The first step of this run, and the last.
    first: Option<StepRecord>,
    last: Option<StepRecord>,
    /// The step that the state was saved after.
    saved: Option<u64>,
    /// The file that this run has written or resumed from.
    written: Option<Seen>,
    /// The last evaluation, and the step after which it was.
    evaluated: Option<(u64, Evaluated)>,
    /// Since when samples are counted for the rate of the next line.
    since: Instant,
    samples: u64,
    shown: Instant,
    /// True if the heading of the lines was printed.
    has_heading: bool,
    /// True if the reader of the lines is still there.
    is_read: bool,
    /// True if a checkpoint was due after a step that was skipped.
    owes_checkpoint: bool,
    /// True until the algorithms of this run are compared with those of the run that wrote the checkpoint.
    compares_algorithms: bool,
    /// The algorithms of the run that wrote the checkpoint.
    recorded: Option<Algorithms>,
    /// The weight with the largest element in the beginning.
    largest_before: Option<f64>,
}

impl<'a> Session<'a> {
    fn new(
        args: &'a TrainArgs,
        ui: Ui,
        progress: &'a Progress,
        mut training: Training,
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
        let largest_before = training.largest_weight()?.map(|(_, largest)| largest);
        // What is gone on with is there already.
        let begins = args.output.save.as_ref().filter(|_| saves_resumed(args));
        let saved = begins.as_ref().map(|_| training.position().step);
        Ok(Session {
            args,
            ui,
            progress,
            training,
            evaluation,
            log,
            watched,
            profiled: None,
            first: None,
            last: None,
            saved,
            written: begins.and_then(|path| seen(path)),
            evaluated: None,
            since: now,
            samples: 0,
            shown: now,
            has_heading: false,
            is_read: true,
            owes_checkpoint: false,
            compares_algorithms: false,
            recorded: None,
            largest_before,
        })
    }

    /// Trains to the end, or until a signal or an error. The state is saved in any case.
    fn train(mut self, wanted: &ProfileOutput<'_>) -> Result<(), Failure> {
        interrupt::defer_first_signal();
        let ended = self.steps();
        let stopped = interrupt::requested();
        let saved = match self.keeps_checkpoint(ended.is_ok() && stopped.is_none()) {
            true => Ok(()),
            false => self.save_unless_saved(),
        };
        self.progress.suspend(|| self.warn_of_written_data());
        let step = self.training.position().step;
        let place = self.place_of_state();
        let told = |mut failure: Failure| {
            failure.problems.iter_mut().for_each(|problem| problem.lines.push(place.clone()));
            failure
        };
        match (ended, stopped) {
            (Err(failure), _) if failure.problems.is_empty() => return saved.and(Err(failure)),
            (Err(failure), _) => {
                let mut failure = told(failure);
                let others = saved.err().into_iter().flat_map(|other| other.problems);
                // A checkpoint that could not be written may be what ended the run.
                let others: Vec<Problem> = others
                    .filter(|other| failure.problems.iter().all(|known| known.message != other.message))
                    .collect();
                failure.problems.extend(others);
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
        self.show_profile(wanted)?;
        let summary = self.summary();
        self.progress.suspend(|| {
            self.warn_of_result();
            self.ui.say(&summary);
        });
        Ok(())
    }

    /// Prints and writes the profile of the measured steps.
    fn show_profile(&mut self, wanted: &ProfileOutput<'_>) -> Result<(), Failure> {
        let Some(Profiled { taken: runs @ 1.., times, plans, .. }) = &self.profiled else {
            if self.profiled.is_some() {
                self.warn_of_no_profile();
            }
            return Ok(());
        };
        let module = self.training.trainer().module();
        let measured = Measured { module, times, runs: *runs, plans: plans.as_ref() };
        // A checkpoint may have taken the place of a file that was read.
        let text = wanted.report(&measured, &self.args.device.device, self.args.output.force, &[])?;
        // The caller asked for the profile, so `-q` does not hide it.
        self.print(&text)
    }

    /// Tells why no step was measured.
    fn warn_of_no_profile(&self) {
        let is_watched = self.watched.is_some() && self.args.output.histogram_every == Some(1);
        let (reason, help) = match is_watched {
            true => (
                "`--histogram-every 1` reads the gradients of every step, and the times of such steps are not those of training",
                "give `--histogram-every` a larger number, or leave it out",
            ),
            false => (
                "the run took no steps besides the first one and those whose gradients `--histogram-every` reads, which are not measured",
                "take more steps",
            ),
        };
        let message = format!("`--profile`: no step was measured, so there is no profile: {reason}");
        let problem = Problem::warning("train.profile", message).with_help(help).draw(self.ui, Stream::Err);
        self.progress.suspend(|| self.ui.complain(problem.trim_start_matches('\n')));
    }

    /// True if the next step is measured: the first step is not.
    fn measures_next(&self) -> bool {
        self.first.is_some() && self.profiled.as_ref().is_some_and(|profiled| profiled.taken < profiled.steps)
    }

    /// True if the existing checkpoint is better than a checkpoint of the current state: the training diverged,
    /// or the last steps were skipped and the run ends before all are taken.
    fn keeps_checkpoint(&self, is_whole: bool) -> bool {
        let is_failing = self.training.position().failed_in_a_row > 0;
        self.training.divergence().is_some() || (is_failing && !is_whole && self.saved.is_some())
    }

    /// The file with the state that can be gone on with, in words.
    fn place_of_state(&self) -> String {
        let step = self.training.position().step;
        let Some(path) = &self.args.output.save else { return "the state was not saved (`--save`)".into() };
        let path = shown::message(&path.display().to_string());
        let is_kept = self.keeps_checkpoint(false);
        match self.saved {
            Some(saved) if saved == step || is_kept => {
                format!("the state after step {saved} is in `{path}`; `--resume {path}` continues")
            }
            None if is_kept => {
                format!("the run had written no checkpoint, and `{path}` was not written")
            }
            _ => format!("the state after step {step} could not be written to `{path}`"),
        }
    }

    /// Takes all steps; false if a signal came before the last one, or before the evaluation after it.
    fn steps(&mut self) -> Result<bool, Failure> {
        // A signal may have ended the evaluation after the last step.
        let step = self.training.position().step;
        if self.log.is_some() && step > 0 && self.evaluation_is_due(step) {
            self.evaluate()?;
        }
        // Steps that were begun are ended, so that the log has them.
        while interrupt::requested().is_none() || self.training.is_ahead() {
            if !self.step()? {
                self.evaluate()?;
                break;
            }
        }
        let position = self.training.position();
        Ok(position.step >= position.steps && (self.evaluation.is_none() || self.is_evaluated(position.step)))
    }

    /// True if the loss is to be evaluated after this step, even if it is not the last.
    fn evaluation_is_due(&self, step: u64) -> bool {
        step.is_multiple_of(self.args.data.eval_every.unwrap_or(self.training.batches().per_epoch()))
    }

    /// True if the loss was evaluated after this step.
    fn is_evaluated(&self, step: u64) -> bool {
        self.evaluated.is_some_and(|(of, _)| of == step)
            || self.log.as_ref().is_some_and(|log| log.has_evaluation(step))
    }

    /// Takes a step, and does the work due after it; false if there is no further step.
    fn step(&mut self) -> Result<bool, Failure> {
        let due = |every: Option<u64>, step: u64| every.is_some_and(|every| step.is_multiple_of(every));
        let next = self.training.position().step.saturating_add(1);
        let started = Instant::now();
        let is_measured = self.measures_next() && !self.training.is_ahead();
        let watched = self.watched.as_mut().filter(|_| due(self.args.output.histogram_every, next));
        let profiled = self.profiled.as_mut().filter(|_| is_measured);
        let taken = match (watched, profiled) {
            (Some(watched), _) => take_watched(&mut self.training, watched),
            (None, Some(profiled)) => {
                profiled.times.restart();
                let taken = self.training.step_observed(Some(&mut profiled.times), |_, _| {});
                // There may be no further step.
                if matches!(taken, Ok(Some(_))) {
                    profiled.taken += 1;
                    profiled.plans = self.training.trainer().plans();
                }
                taken
            }
            (None, None) => self.training.step_ahead(AHEAD, self.last_before_work(next)),
        };
        let taken = taken.map_err(|error| self.of_step(&error, next))?;
        let Some(taken) = taken else { return Ok(false) };
        self.first.get_or_insert(taken);
        if std::mem::take(&mut self.compares_algorithms) {
            let recorded = self.recorded.take();
            self.progress.suspend(|| self.warn_of_algorithms(recorded.as_ref()));
        }
        self.last = Some(taken);
        self.samples += taken.samples;
        if let Some(log) = &mut self.log {
            log.step(&taken, started.elapsed().as_secs_f64())?;
            let watched = self.watched.as_ref().filter(|_| due(self.args.output.histogram_every, next));
            if let Some((histograms, updates)) = watched {
                log.histograms(&taken, histograms, updates)?;
            }
        }
        if let Some(divergence) = self.training.divergence() {
            return Err(diverged(divergence));
        }
        let steps = self.training.options().steps;
        let every = self.args.output.print_every.unwrap_or((steps / 10).max(1));
        if taken.number.is_multiple_of(every) || taken.number == steps {
            self.row(&taken)?;
        } else if self.shown.elapsed() > REFRESH {
            self.shown = Instant::now();
            let loss = taken.result.loss.map_or(String::new(), |loss| format!(", loss {}", digits(loss)));
            self.progress.stage(format!("step {} of {}{loss}", number(taken.number), number(steps)));
        }
        // The speed of training counts neither evaluations nor checkpoints.
        let trained = Instant::now();
        if self.evaluation_is_due(taken.number) {
            self.evaluate()?;
        }
        // A checkpoint of a step that was skipped takes the place of no other: the training may have diverged.
        self.owes_checkpoint |= due(self.args.output.save_every, taken.number);
        if self.owes_checkpoint && self.training.position().failed_in_a_row == 0 {
            self.save_unless_saved()?;
            self.owes_checkpoint = false;
        }
        self.since += trained.elapsed();
        Ok(true)
    }

    /// The last step, from step `next` on, that is taken before there is work that needs the state after it; 0 if no step is
    /// to be begun.
    fn last_before_work(&self, next: u64) -> u64 {
        if interrupt::requested().is_some() {
            return 0;
        }
        let is_measuring = self.profiled.as_ref().is_some_and(|profiled| profiled.taken < profiled.steps);
        if self.owes_checkpoint || is_measuring {
            return next;
        }
        let due = |every: u64| next.checked_next_multiple_of(every).unwrap_or(u64::MAX);
        let evaluated = due(self.args.data.eval_every.unwrap_or(self.training.batches().per_epoch()));
        let saved = self.args.output.save_every.map_or(u64::MAX, due);
        // The step itself is observed.
        let observed = self.args.output.histogram_every.map_or(u64::MAX, |every| due(every) - 1);
        evaluated.min(saved).min(observed)
    }

    /// The error of a step, with its number.
    fn of_step(&self, error: &ampc::Error, step: u64) -> Failure {
        let failure = diagnose::failure(error, Some(self.training.trainer().module()));
        failure.retold(|said| format!("step {step}: {said}"))
    }

    /// Computes the loss on samples that are not trained on, unless that was done after this step.
    fn evaluate(&mut self) -> Result<(), Failure> {
        let step = self.training.position().step;
        if self.is_evaluated(step) {
            return Ok(());
        }
        let Some(evaluation) = &mut self.evaluation else { return Ok(()) };
        self.progress.stage("evaluating");
        let found = evaluation.run(self.training.trainer_mut(), || interrupt::requested().is_none());
        let found = found.map_err(|error| {
            diagnose::failure(&error, None).retold(|said| format!("evaluation after step {step}: {said}"))
        })?;
        let Some(found) = found else { return Ok(()) };
        self.evaluated = Some((step, found));
        if let Some(log) = &mut self.log {
            log.evaluation(step, found)?;
        }
        let line = format!(
            "{:>WIDTH$}  evaluated: {} on {}\n",
            number(step),
            evaluation_text(found),
            count(found.samples, "sample")
        );
        self.show(&line)
    }

    /// Prints lines, except with `-q`.
    fn show(&mut self, lines: &str) -> Result<(), Failure> {
        if self.ui.quiet { Ok(()) } else { self.print(lines) }
    }

    /// Prints lines with `-q` too, while standard output has a reader. Training continues without a reader.
    fn print(&mut self, lines: &str) -> Result<(), Failure> {
        if !self.is_read {
            return Ok(());
        }
        match self.progress.suspend(|| ui::show(lines)) {
            Err(failure) if failure.problems.is_empty() => self.is_read = false,
            shown => shown?,
        }
        Ok(())
    }

    /// Writes the state, if it changed since it was written.
    fn save_unless_saved(&mut self) -> Result<(), Failure> {
        let step = self.training.position().step;
        let Some(path) = self.args.output.save.as_deref().filter(|_| self.saved != Some(step)) else {
            return Ok(());
        };
        // A file that this run has written may be replaced; any other only if that was asked for.
        let force = self.args.output.force || (self.saved.is_some() && self.written == seen(path));
        self.training.save(path, force).map_err(|error| {
            let kept = match path.exists() {
                true => "the previous checkpoint is unchanged",
                false => "there is no checkpoint",
            };
            diagnose::failure(&error, None)
                .retold(|said| format!("checkpoint after step {step}: {said}; {kept}"))
        })?;
        self.saved = Some(step);
        self.written = seen(path);
        Ok(())
    }
}
