//! What goes into a run: values for the inputs, and limits.

use super::args::{DataArgs, LimitArgs};
use super::diagnose;
use super::problem::Failure;
use super::ui::Ui;
use ampc::execute::Inputs;
use ampc::execute::inputs::Dims;
use ampc::ir::Module;
use ampc::runtime::Cpu;

/// The backend with the limits that were asked for.
pub(crate) fn cpu(threads: Option<u32>, limits: &LimitArgs) -> Cpu {
    let default = Cpu::default();
    Cpu {
        threads: threads.map_or(0, |threads| usize::try_from(threads).unwrap_or(0)),
        max_iterations: limits.max_iterations.unwrap_or(default.max_iterations),
        time_limit: limits.time_limit,
        ..default
    }
}

/// The values that were asked for. What was chosen for want of a word is said on standard error.
///
/// # Errors
/// If they cannot be read, or do not fit the model.
pub(crate) fn inputs(args: &DataArgs, module: &Module, cpu: &Cpu, ui: Ui) -> Result<Inputs, Failure> {
    let fail = |error: ampc::Error| diagnose::failure(&error, Some(module));
    if let Some(path) = &args.inputs {
        return Inputs::read(path, module, cpu.max_bytes).map_err(fail);
    }
    let dims: Dims = args.dim.iter().cloned().collect();
    if dims.len() < args.dim.len() {
        return Err(Failure::usage("dim", "`--dim`: one dim has two sizes"));
    }
    let seed = args.random.unwrap_or(0);
    let inputs = Inputs::random(module, seed, &dims, cpu.max_bytes).map_err(fail)?;
    if args.random.is_none() && inputs.values.iter().any(Option::is_some) {
        ui.say(&format!("inputs are random, of seed {seed}; `--inputs DATA` gives others"));
    }
    let chosen: Vec<String> = inputs
        .dims
        .iter()
        .filter(|dim| !dim.asked)
        .map(|dim| format!("{} = {}", dim.name, dim.size))
        .collect();
    if !chosen.is_empty() {
        ui.say(&format!("dims without a number: {}; `--dim NAME=N` gives others", chosen.join(", ")));
    }
    if !inputs.scalars.is_empty() {
        let names = inputs.scalars.join(", ");
        ui.say(&format!(
            "inputs without a number of dims, which got none: {names}; `--inputs DATA` gives others"
        ));
    }
    Ok(inputs)
}
