//! The commands. Each command is a file; the other files are shared.

mod args;
mod batches;
mod calibrate;
mod check;
mod data;
mod devices;
mod diagnose;
mod emit;
mod endings;
mod explain;
mod help;
mod inspect;
mod interrupt;
mod kept;
mod last_resort;
mod ops;
mod opsets;
mod opt;
mod panics;
mod peers;
mod pipeline;
mod plan;
mod policy;
mod problem;
mod profile;
mod progress;
mod rewrite;
mod run;
mod search;
mod settings;
mod shown;
mod stats;
mod stream;
mod summary;
mod table;
mod target;
mod targets;
mod train;
mod train_step;
mod ui;
mod verified;
mod verify;

use args::{Cli, Command};
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser};
use problem::Failure;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;
use ui::Ui;

pub(crate) use last_resort::Remembering;

/// Enough for models nested as deep as the reader admits, in unoptimised builds too.
const STACK: usize = 64 << 20;

/// The exit code for bugs.
const BUG: u8 = 70;

/// Reads the arguments and runs the command.
pub(crate) fn main() -> ExitCode {
    last_resort::watch();
    panics::record();
    let args: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => {
            if let Some(failure) = peers::answer(&error, &args) {
                failure.show(Ui::default());
                return ExitCode::from(failure.code);
            }
            // Help and versions go to standard output and are not error; nobody may be reading.
            let error = peers::without_far_tips(error);
            let code = error.exit_code();
            match error.use_stderr() {
                true => complain_of_arguments(error),
                false => drop(error.print()),
            }
            return ExitCode::from(u8::try_from(code).unwrap_or(2));
        }
    };
    let ui = Ui::new(&cli.global);
    interrupt::watch();
    let result = spawn(&Arc::new(cli), ui).map(std::thread::JoinHandle::join);
    match result {
        Ok(Ok(Ok(()))) => ExitCode::SUCCESS,
        Ok(Ok(Err(failure))) => {
            failure.show(ui);
            ExitCode::from(failure.code)
        }
        Ok(Err(_)) if last_resort::last_refused().is_some() => {
            let bytes = last_resort::last_refused().unwrap_or(0);
            let failure = Failure::no_memory(&format!("{bytes} bytes were refused"));
            failure.show(ui);
            ExitCode::from(failure.code)
        }
        Ok(Err(_)) => {
            let problem = diagnose::bug(format!("a bug in ampc: {}", panics::last()));
            ui.complain(&problem.draw(ui, ui::Stream::Err));
            ExitCode::from(BUG)
        }
        Err(error) => {
            let failure = Failure::no_memory(&format!("no thread can be started: {error}"));
            failure.show(ui);
            ExitCode::from(failure.code)
        }
    }
}

/// Prints an error about arguments, in which arguments are shown as any other text is.
fn complain_of_arguments(mut error: clap::Error) {
    let escaped = |value: &ContextValue| match value {
        ContextValue::String(text) => Some(ContextValue::String(shown::name(text))),
        ContextValue::Strings(texts) => {
            Some(ContextValue::Strings(texts.iter().map(|text| shown::name(text)).collect()))
        }
        _ => None,
    };
    let values: Vec<(ContextKind, ContextValue)> =
        error.context().filter_map(|(kind, value)| Some((kind, escaped(value)?))).collect();
    for (kind, value) in values {
        error.insert(kind, value);
    }
    let (ui, text) = (Ui::default(), error.render());
    match ui.colors(ui::Stream::Err) {
        true => ui.complain(&text.ansi().to_string()),
        false => ui.complain(&text.to_string()),
    }
}

/// Runs the command in a thread of its own, with the largest stack that the system gives.
fn spawn(cli: &Arc<Cli>, ui: Ui) -> std::io::Result<JoinHandle<Result<(), Failure>>> {
    let start = |stack: usize| {
        let cli = cli.clone();
        let thread = std::thread::Builder::new().name("ampc".into()).stack_size(stack);
        thread.spawn(move || run(&cli, ui))
    };
    // The stack takes at most a quarter of a limited address space; the rest is for the work.
    let left = ampc::runtime::session::left_of_limit();
    if left.is_none_or(|left| left / 4 >= STACK as u64)
        && let Ok(thread) = start(STACK)
    {
        return Ok(thread);
    }
    last_resort::small_stack();
    let fits = |stack: &usize| left.is_none_or(|left| left / 4 >= *stack as u64);
    let smaller = [STACK / 4, STACK / 16].into_iter().filter(fits);
    smaller.map(start).find_map(Result::ok).map_or_else(|| start(STACK / 64), Ok)
}

fn run(cli: &Cli, ui: Ui) -> Result<(), Failure> {
    let threads = cli.global.threads;
    match &cli.command {
        Command::Rewrite(args) => rewrite::run(args, threads, ui),
        Command::Opt(args) => opt::run(args, ui),
        Command::TrainStep(args) => train_step::run(args, ui),
        Command::Train(args) => train::run(args, threads, ui),
        Command::Check(args) => check::run(args, ui),
        Command::Inspect(args) => inspect::run(args, ui),
        Command::Run(args) => run::run(args, threads, ui),
        Command::Plan(args) => plan::run(args, threads, ui),
        Command::Verify(args) => verify::run(args, threads, ui),
        Command::Stats(args) => stats::run(args, threads, ui),
        Command::Ops(args) => ops::run(args),
        Command::Devices(args) => devices::run(args, threads),
        Command::Policy(args) => policy::run(args, ui),
        Command::Target(args) => target::run(args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "ampc", &mut script);
            ui::print(&String::from_utf8_lossy(&script))
        }
    }
}
