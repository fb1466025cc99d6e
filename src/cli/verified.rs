//! `ampc rewrite --verify`: the model and its rewrite on the same inputs, before anything is written.

use super::args::RewriteArgs;
use super::data;
use super::diagnose;
use super::pipeline::Run;
use super::problem::{Failure, Problem};
use super::shown;
use super::table::count;
use super::ui::Ui;
use super::verify::{first, warn_of_nothing};
use ampc::execute::{Inputs, PinSearch, Verification, VerifyOptions, find_pins, verify};
use ampc::ir::Module;
use ampc::runtime::Tolerance;
use ampc::{Error, ErrorKind, Model, RewriteOptions};

/// The model as it was read, and what both are run on.
pub(crate) struct Source {
    module: Module,
    inputs: Inputs,
    options: VerifyOptions,
}

impl Source {
    /// Keeps the model and reads the inputs, if there is something to verify.
    ///
    /// # Errors
    /// If inputs were given for nothing, or do not fit the model.
    pub(crate) fn of(
        args: &RewriteArgs,
        threads: Option<u32>,
        model: &Model,
        ui: Ui,
    ) -> Result<Option<Source>, Failure> {
        if !args.verify.verify {
            return Ok(None);
        }
        let cpu = data::cpu(threads, &args.limits);
        let inputs = data::inputs(&args.data, &model.module, &cpu, data::SOME, ui)?;
        let tolerance = args.verify.tolerance.map(|of_max| Tolerance { of_max, ..Tolerance::EXACT });
        Ok(Some(Source { module: model.module.clone(), inputs, options: VerifyOptions { cpu, tolerance } }))
    }

    /// Compares the rewrite with the model.
    ///
    /// # Errors
    /// If an output is too far off: with the pins that help. If the models cannot be run.
    pub(crate) fn compare(
        &self,
        run: &Run<'_>,
        model: &Model,
        options: &RewriteOptions,
    ) -> Result<String, Failure> {
        let fail = |error: Error| diagnose::failure(&error, None);
        run.progress.stage("verifying");
        let (mut source, mut rewritten) = (self.module.clone(), model.module.clone());
        let found = verify(&mut source, &mut rewritten, &self.inputs, &self.options).map_err(fail)?;
        if found.passed() && !found.says_something() {
            run.progress.suspend(|| warn_of_nothing(run.ui));
            return Ok("verified nothing: the outputs have no finite elements".into());
        }
        if found.passed() {
            return Ok(shown::message(&format!("verified: {}", summary(&found))));
        }
        run.progress.stage("looking for nodes that have to stay fp32");
        let pins = find_pins(&source, options, &self.inputs, &self.options, &rewritten, &found);
        let message = format!("the rewrite is too far from the model: {}", first(&found));
        let help = match pins {
            Ok(pins) => advice(&pins),
            Err(error) => format!("no pins could be tried: {error}"),
        };
        let problem = Problem::new("ampc::verify::beyond", message).with_help(help);
        Err(Failure::of(ErrorKind::Mismatch, problem))
    }
}

/// How far the outputs are off.
fn summary(found: &Verification) -> String {
    let worst = found.outputs.iter().max_by(|a, b| a.agreement.error().total_cmp(&b.agreement.error()));
    let Some(worst) = worst else { return "there are no outputs".into() };
    let error = worst.agreement.error();
    let most = match found.tolerance.of_max {
        of_max if of_max > 0.0 => format!("of {of_max:.2e} that they may be"),
        _ => "as they may be".into(),
    };
    format!("the outputs are at most {error:.2e} of their largest element off (`{}`), {most}", worst.value)
}

/// The pins that help, as they are typed.
fn advice(search: &PinSearch) -> String {
    let list: Vec<String> = search.pins.iter().map(|pin| format!("--pin {}", quoted(pin))).collect();
    if search.passes {
        return format!("with `{}` all outputs are within the tolerance", list.join(" "));
    }
    if search.left_low > 0 {
        let left = count(search.left_low as u64, "node");
        return format!("no pins were found that help: with all that were tried {left} would still be low");
    }
    let lowered = match search.tried {
        0 => "the rewrite lowers no node",
        _ => "even with every node that it lowers pinned to fp32 the rewrite is not within the tolerance",
    };
    let own = if search.has_low_source { ", and its 16-bit types are the model's own" } else { "" };
    format!(
        "{lowered}{own}; what differs may come of casts of the model that moved or went, or of a raised opset \
         (`--excess-precision`, `--opset`)"
    )
}

/// A pin for a shell.
fn quoted(pin: &str) -> String {
    let pin = format!("{pin}=fp32");
    let plain = pin.chars().all(|c| c.is_ascii_alphanumeric() || "/._-=:#@%+,".contains(c));
    if plain { pin } else { format!("'{}'", pin.replace('\'', r"'\''")) }
}
