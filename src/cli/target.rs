//! `ampc target`: list, show and check the profiles of targets.

use super::args::{TargetArgs, TargetCommand};
use super::problem::Failure;
use super::settings::read_target;
use super::shown;
use super::table::{Table, count, number};
use super::ui;
use ampc::ir::DType;
use ampc::passes::Profile;
use ampc::passes::target::{Kernels, OpList, OpSet, PROFILES};
use std::fmt::Write as _;

pub(crate) fn run(args: &TargetArgs) -> Result<(), Failure> {
    match &args.command {
        TargetCommand::List => ui::show(&list()?),
        TargetCommand::Show { name } => ui::show(&show(&read_target(name)?)),
        TargetCommand::Check { file } => {
            // The name of a target that comes with ampc is not a file, whatever it is called.
            let name = file.display().to_string();
            if file.extension().is_none_or(|e| e != "json") {
                return Err(Failure::usage(
                    "target",
                    format!("`{name}`: the name of a file of a target ends in `.json`"),
                ));
            }
            let profile = read_target(&name)?;
            let fused = count(profile.fusions.len() as u64, "fusion");
            let numbers = count(profile.numbers().len() as u64, "number");
            let said = format!("{name}: target {}, {numbers}, {fused}", profile.name);
            ui::show(&format!("{}\n", shown::message(&said)))
        }
    }
}

fn list() -> Result<String, Failure> {
    let mut table = Table::new(0, &[]);
    for (name, _) in PROFILES {
        let profile = read_target(name)?;
        let default = if *name == PROFILES[0].0 { " (default)" } else { "" };
        // A sentence ends before a space; a number has its point inside.
        let about =
            profile.description.split_once(". ").map_or(profile.description.as_str(), |(about, _)| about);
        table.row([name.to_string(), format!("{}{default}", about.trim_end_matches('.'))]);
    }
    Ok(table.to_string())
}

const FORMATS: [(&str, DType); 2] = [("fp16", DType::F16), ("bf16", DType::BF16)];

fn show(profile: &Profile) -> String {
    let mut text =
        format!("target {}\n{}\n\n", shown::name(&profile.name), shown::message(&profile.description));
    let mut table = Table::new(0, &[false, true]);
    for (field, unit, entry) in profile.numbers() {
        table.row([field.to_owned(), number(entry.value), unit.to_owned(), entry.source.clone()]);
    }
    let _ = write!(text, "{table}");
    for (name, format) in FORMATS {
        match profile.kernels(format) {
            Some(Kernels::Only(list)) => section(&mut text, &format!("{name} kernels only of"), list),
            Some(Kernels::Except(list)) => section(&mut text, &format!("no {name} kernels of"), list),
            None => {}
        }
    }
    section(&mut text, "computing in fp32 inside", &profile.fp32_inside);
    for fact in &profile.rounds_once {
        let formats = FORMATS.iter().filter(|(_, format)| fact.formats.contains(format));
        let formats: Vec<&str> = formats.map(|&(name, _)| name).collect();
        let _ = writeln!(
            text,
            "\ncomputing in fp32 and rounding once in {} ({})",
            formats.join(", "),
            shown::message(&fact.source)
        );
        words(&mut text, "", &fact.ops);
    }
    section(&mut text, "views of their operand", &profile.views);
    for fusion in &profile.fusions {
        let _ = writeln!(text, "\none kernel ({})", shown::message(&fusion.source));
        words(&mut text, "from", &fusion.from);
        words(&mut text, "to", &fusion.to);
    }
    text
}

fn section(text: &mut String, title: &str, list: &OpList) {
    if list.ops.words().next().is_some() {
        let _ = writeln!(text, "\n{title} ({})", shown::message(&list.source));
        words(text, "", &list.ops);
    }
}

/// Operators, folded.
fn words(text: &mut String, title: &str, ops: &OpSet) {
    const WIDTH: usize = 100;
    let mut line = format!("  {title}");
    let mut words = ops.words().peekable();
    while let Some(word) = words.next() {
        let comma = if words.peek().is_some() { "," } else { "" };
        if line.len() + word.len() + 2 > WIDTH {
            let _ = writeln!(text, "{}", line.trim_end());
            line = "  ".into();
        }
        let space = if line.trim().is_empty() { "" } else { " " };
        let _ = write!(line, "{space}{word}{comma}");
    }
    let _ = writeln!(text, "{line}");
}
