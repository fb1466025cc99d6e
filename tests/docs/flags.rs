//! Flags: those that the commands have, and those that documents speak of.

use std::collections::BTreeSet;
use std::process::Command;

/// The flags of all commands, by their help.
pub(crate) fn of_commands() -> BTreeSet<String> {
    let help = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_ampc")).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let all = help(&["--help"]);
    let commands = all.split("Commands:\n").nth(1).unwrap().lines();
    let commands = commands.take_while(|l| !l.is_empty()).map(|l| l.split_whitespace().next().unwrap());
    let commands: Vec<&str> = commands.filter(|&c| c != "help").collect();
    assert!(commands.len() >= 10, "{commands:?}");
    let mut flags = BTreeSet::new();
    for command in commands {
        let text = help(&[command, "--help"]);
        // A flag stands first in its line, or behind its short form.
        let starts = text.lines().map(str::trim_start);
        let flag = |line: &str| {
            let long = if line.starts_with("--") {
                line
            } else {
                line.split_once(", ").filter(|(s, _)| s.len() == 2)?.1
            };
            long.starts_with("--").then(|| long.split_whitespace().next().unwrap().to_owned())
        };
        flags.extend(starts.filter_map(flag));
    }
    flags
}

/// The flags in what a document shows as commands or flags of ampc.
pub(crate) fn mentioned(text: &str) -> Vec<String> {
    let spans = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let commands = text.lines().filter(|line| line.starts_with("ampc "));
    let ours =
        spans.filter(|s| s.starts_with("ampc ") || s.starts_with("--") || s.starts_with("-")).chain(commands);
    let words = ours.flat_map(|span| span.split([' ', '=', '|', '[', ']', ',']));
    let is_flag = |w: &&str| w.strip_prefix("--").is_some_and(|w| w.starts_with(char::is_alphabetic));
    words.filter(is_flag).map(str::to_owned).collect()
}
