//! Messages of training on the terminal: before the first step, after steps, and at the end.

use super::Session;
use super::log::Log;
use crate::cli::problem::{Failure, Problem};
use crate::cli::run::digits;
use crate::cli::shown;
use crate::cli::table::{bytes, count, number};
use crate::cli::ui::Stream;
use ampc::execute::training::{Algorithms, Evaluated, Position, StepRecord};
use ampc::ir::{DType, Module};
use ampc::train::Initialized;
use std::fmt::Write;
use std::path::Path;
use std::time::Instant;

impl Session<'_> {
    /// Prints the weights that were taken from another file, and the other weights.
    pub(super) fn tell_init(&self, found: &Initialized, path: &Path) {
        let path = shown::message(&path.display().to_string());
        let all = found.taken.len() + found.missing.len() + found.unfit.len() + found.changed.len();
        let mut text = format!(
            "init        {} of {} of `{path}`\n",
            number(found.taken.len() as u64),
            count(all as u64, "weight")
        );
        for (what, names) in [
            ("not in the file", &found.missing),
            ("with other dims", &found.unfit),
            ("only in the file", &found.left),
        ] {
            if !names.is_empty() {
                let _ =
                    writeln!(text, "            {what}: {}: {}", names.len(), shown::message(&listed(names)));
            }
        }
        self.ui.say(&text);
        if !found.renamed.is_empty() {
            let names: Vec<String> =
                found.renamed.iter().map(|(name, origin)| format!("{name} ({origin} of PyTorch)")).collect();
            let message = format!(
                "{} of the step {} the values of the model that the step was made of, because `{path}` has them under their \
                 names in PyTorch with other dims: {}; load the file in PyTorch, export the model, and make the step from it",
                count(names.len() as u64, "weight"),
                if names.len() == 1 { "keeps" } else { "keep" },
                listed(&names)
            );
            self.warning("train.init", message);
        }
        if !found.changed.is_empty() {
            let message = format!(
                "{} of the step {} the values of the model that the step was made of, because the exporter has folded other \
                 parameters into {} and `{path}` has the tensors of PyTorch: {}; load the file in PyTorch, export the model, and \
                 make the step from it",
                count(found.changed.len() as u64, "weight"),
                if found.changed.len() == 1 { "keeps" } else { "keep" },
                if found.changed.len() == 1 { "it" } else { "them" },
                listed(&found.changed)
            );
            self.warning("train.init", message);
        }
        if !found.frozen.is_empty() {
            let message = format!(
                "{} of `{path}` {} not taken, because the step has {} as frozen constants with the values of its forward \
                 model: {}; to begin with the values of the file, make the step from a model that has them: `ampc train-step \
                 --export STEP --state {path} -o MODEL` writes it if the file is of STEP, and a file of PyTorch is loaded and \
                 exported there",
                count(found.frozen.len() as u64, "weight"),
                if found.frozen.len() == 1 { "was" } else { "were" },
                if found.frozen.len() == 1 { "it" } else { "them" },
                listed(&found.frozen)
            );
            self.warning("train.frozen", message);
        }
    }

    /// Prints the plan of the training, and warnings about it.
    pub(super) fn begin(&self, position: Option<&Position>) {
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
        let of_evaluation = self
            .evaluation
            .as_ref()
            .map(|evaluation| ("the evaluation", evaluation.data(), evaluation.batches()));
        for (what, data, batches) in [("an epoch", data, training.batches())].into_iter().chain(of_evaluation)
        {
            if !data.unread().is_empty() {
                let names = data.unread().join(", ");
                warn("train.unread", format!("arrays that match no input of the step: {names}"));
            }
            if !data.same_for_all().is_empty() {
                let names = data.same_for_all().join(", ");
                let message = format!(
                    "arrays that are the same for every batch, as they have exactly the dims of the step's input: {names}"
                );
                warn("train.same_for_all", message);
            }
            if batches.left_out() > 0 {
                let samples = count(batches.left_out(), "sample");
                warn("train.left_out", format!("{samples} of {what} are fewer than a batch and left out"));
            }
        }
        if self.args.output.save.is_none() {
            warn(
                "train.not_saved",
                "the trained state is kept nowhere: `--save FILE.safetensors` writes it".into(),
            );
        }
        let warmup = options.schedule.warmup;
        if warmup > 0 && warmup >= options.steps {
            let (warmup, steps) = (count(warmup, "step"), count(options.steps, "step"));
            warn("train.warmup", format!("the warm-up has {warmup}, the run {steps}: `lr` is not reached"));
        }
        let last = self.log.as_ref().and_then(Log::last_step);
        if let Some((last, step)) = last.zip(position.map(|position| position.step)).filter(|(a, b)| a < b) {
            let message = format!("the log ends after step {last}, and the checkpoint is of step {step}");
            warn("train.log_gap", message);
        }
        let differences = position.map(|before| before.differences(&training.position())).unwrap_or_default();
        // More steps are another run only if a rate depends on how many there are.
        let matters = |name: &str| name != "steps" || training.options().schedule.depends_on_steps();
        for (name, before, now) in differences.into_iter().filter(|(name, ..)| matters(name)) {
            let message =
                format!("`{name}` is {now}, and was {before}: the resumed run differs from the stopped run");
            warn("train.other_run", message);
        }
    }

    fn warning(&self, code: &str, message: String) {
        // A warning about the result is printed with `-q` too.
        self.ui.complain(Problem::warning(code, message).draw(self.ui, Stream::Err).trim_start_matches('\n'));
    }

    /// Warns if the algorithms of this run are not those of the run that wrote the checkpoint.
    /// `recorded` is `None` if that run was on the CPU.
    pub(super) fn warn_of_algorithms(&self, recorded: Option<&Algorithms>) {
        let message = match (recorded, Algorithms::of(self.training.trainer())) {
            (None, None) => return,
            (Some(recorded), None) => {
                let device = recorded.device.get("device").map_or("another device", String::as_str);
                format!("the checkpoint was written by a run on {device}")
            }
            (None, Some(_)) => "the checkpoint names no device".to_owned(),
            (Some(recorded), Some(found)) => {
                let differences = recorded.differences(&found);
                let Some((name, before, now)) = differences.first() else { return };
                let more = match differences.len() - 1 {
                    0 => String::new(),
                    n => format!(", and {} more", number(n as u64)),
                };
                format!("`{name}` is `{now}`, and was `{before}` in the run of the checkpoint{more}")
            }
        };
        let message = shown::message(&message);
        self.warning("train.algorithms", format!("{message}: results may differ in the last bits"));
    }

    /// Warns about oddities of a training that took all its steps.
    pub(super) fn warn_of_result(&mut self) {
        let position = self.training.position();
        let failed = position.failed_in_a_row;
        if failed > 0 {
            let message = format!(
                "the gradients or the loss of the last {} were not finite: nothing was learned in these steps",
                count(failed, "step")
            );
            self.warning("train.skipped", message);
        } else if position.skipped > position.step / 2 && self.first.is_some() {
            let (skipped, steps) = (number(position.skipped), count(position.step, "step"));
            let message = format!("{skipped} of {steps} were skipped, as their gradients were not finite");
            self.warning("train.skipped", message);
        }
        // The weights of a device that is lost cannot be read: the error of the run says so.
        let after = self.training.largest_weight().ok().flatten().zip(self.largest_before);
        if let Some(((name, after), before)) =
            after.filter(|((_, after), before)| *after > EXPLODED * before.max(1.0))
        {
            let (after, before) = (digits(after), digits(before));
            let message = format!(
                "the largest element of a weight, of `{name}`, is {after}, and was {before} before this run: the training \
                 may have diverged; a lower `--lr` or a step with `--clip-norm` changes weights less"
            );
            self.warning("train.exploded", message);
        }
    }

    /// Warns about data that changed between the first step and the last.
    pub(super) fn warn_of_written_data(&self) {
        let of_evaluation = self.evaluation.iter().flat_map(|evaluation| evaluation.data().written_to());
        for path in self.training.data().written_to().chain(of_evaluation) {
            let path = shown::message(&path.display().to_string());
            let message = format!(
                "`{path}` was written to while it was read: a batch may have had old and new samples"
            );
            self.warning("train.written", message);
        }
    }

    /// Prints a line about a step, under a heading if it is the first one.
    pub(super) fn row(&mut self, taken: &StepRecord) -> Result<(), Failure> {
        #[expect(clippy::cast_precision_loss, reason = "shown with four digits")]
        let speed = self.samples as f64 / self.since.elapsed().as_secs_f64().max(1e-9);
        let has_heading = std::mem::replace(&mut self.has_heading, true);
        (self.since, self.samples) = (Instant::now(), 0);
        let mut cells = vec![
            ("step", number(taken.number)),
            ("epoch", number(taken.epoch)),
            ("loss", taken.result.loss.map_or("-".into(), digits)),
            ("lr", digits(taken.lr)),
        ];
        cells.extend(taken.result.loss_scale.map(|scale| ("loss scale", scale.to_string())));
        if taken.result.loss_scale.is_some() || self.training.position().skipped > 0 {
            cells.push(("skipped", number(self.training.position().skipped)));
        }
        cells.extend(taken.result.grad_norm.map(|norm| ("grad norm", digits(norm))));
        cells.push(("samples/s", digits_of_speed(speed)));
        let mut text = String::new();
        if !has_heading {
            let heads: Vec<String> = cells.iter().map(|(head, _)| format!("{head:>WIDTH$}")).collect();
            let _ = writeln!(text, "{}", heads.join(""));
        }
        let row: Vec<String> = cells.iter().map(|(_, cell)| format!("{cell:>WIDTH$}")).collect();
        let _ = writeln!(text, "{}", row.join(""));
        self.show(&text)
    }

    /// The summary of a finished training run.
    pub(super) fn summary(&self) -> String {
        let (position, trainer) = (self.training.position(), self.training.trainer());
        let mut text = String::new();
        let loss =
            |taken: Option<StepRecord>| taken.and_then(|taken| taken.result.loss).map_or("-".into(), digits);
        if let Some((first, last)) = self.first.zip(self.last) {
            let steps = last.number - first.number + 1;
            let (begin, end) = (loss(Some(first)), loss(Some(last)));
            let _ = writeln!(text, "trained     {}, loss {begin} to {end}", count(steps, "step"));
        } else {
            let _ = writeln!(text, "trained     no step: all {} are taken", number(position.steps));
            return text;
        }
        if let Some((step, found)) = self.evaluated {
            let (result, samples) = (evaluation_text(found), count(found.samples, "sample"));
            let _ = writeln!(text, "evaluated   {result} on {samples} after step {}", number(step));
        }
        let _ =
            writeln!(text, "skipped     {} of {}", number(position.skipped), count(position.step, "step"));
        let (low, all) = low_nodes(trainer.module());
        let _ = writeln!(text, "low         {} of {}", number(low), count(all, "node"));
        let of_evaluation = self.evaluation.as_ref().map(|evaluation| bytes(evaluation.allocated_bytes()));
        let _ = writeln!(
            text,
            "memory      {} of state, activations and gradients{}",
            bytes(trainer.allocated_bytes()),
            of_evaluation.map_or(String::new(), |bytes| format!("; {bytes} of the evaluation"))
        );
        if let (Some(path), Some(_)) = (&self.args.output.save, self.saved) {
            let _ = writeln!(text, "wrote       {}", shown::message(&path.display().to_string()));
        }
        text
    }
}

/// The factor by which weights grow that may have exploded.
const EXPLODED: f64 = 1000.0;

/// Columns of a line.
pub(super) const WIDTH: usize = 12;

/// The first names, and the number of the others.
fn listed(names: &[String]) -> String {
    const NAMED: usize = 8;
    let shown: Vec<&str> = names.iter().take(NAMED).map(String::as_str).collect();
    let more = if names.len() > NAMED { format!(" and {} more", names.len() - NAMED) } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

/// The result of an evaluation as text.
pub(super) fn evaluation_text(found: Evaluated) -> String {
    let accuracy = found.accuracy.map(|accuracy| format!(", accuracy {}", digits(accuracy)));
    format!("loss {}{}", digits(found.loss), accuracy.unwrap_or_default())
}

/// Samples per second, with three digits.
fn digits_of_speed(speed: f64) -> String {
    if speed >= 100.0 { format!("{speed:.0}") } else { format!("{speed:.2}") }
}

/// The number of nodes with a low result, and the number of all nodes.
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
