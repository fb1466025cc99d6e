//! Files after a kill or a failure at each system call of a run.

use super::support::Dir;
use super::writing::{content, lasting, model, temporaries};
use std::fs;
use std::io::Write as _;
use std::process::{Command, Output};

/// System calls that change what is in a folder, or wait until it has. Between two of them nothing changes, so a
/// kill before each of them, and after the last, is a kill at every moment.
const CALLS: &[&str] = &[
    "write",
    "copy_file_range",
    "sendfile",
    "flock",
    "fsync",
    "fdatasync",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "unlink",
    "unlinkat",
];
/// Calls of one kind that one run makes; a run that makes more is one that never ends.
const MOST: u32 = 400;

/// True if system calls can be tampered with here.
fn strace() -> bool {
    let args = ["-q", "-e", "inject=fsync:error=EIO", "-o", "/dev/null", "true"];
    Command::new("strace").args(args).output().is_ok_and(|done| done.status.success())
}

/// Runs the binary with a fault at the `n`th call of a kind; `None` if it made fewer.
fn faulty(dir: &Dir, call: &str, fault: &str, n: u32, run: &str) -> Option<Output> {
    let log = tempfile::NamedTempFile::new().unwrap();
    let inject = format!("inject={call}:{fault}:when={n}");
    let mut command = Command::new("strace");
    command.args(["-f", "-q", "-e", &format!("trace={call}"), "-e", &inject, "-o"]).arg(log.path());
    command.arg(env!("CARGO_BIN_EXE_ampc")).args(run.split(' ')).current_dir(dir.path(""));
    let done = command.output().unwrap();
    let said = fs::read_to_string(log.path()).unwrap();
    // strace ends as the program does.
    (said.contains("(INJECTED)") || done.status.code().is_none()).then_some(done)
}

/// Does something for a fault at every call.
fn at_each_call(fault: &str, mut check: impl FnMut(&str, u32) -> bool) -> u32 {
    let mut faults = 0;
    for call in CALLS {
        let last =
            (1..MOST).find(|&n| !check(call, n)).unwrap_or_else(|| panic!("{call} with {fault}: no end"));
        faults += last - 1;
    }
    faults
}

/// The two models, in a form, and what they say they are.
struct Pair {
    output: &'static str,
    run: &'static str,
}

const PAIRS: &[Pair] = &[
    Pair { output: "o.onnx", run: "opt new.ir --passes= --force -q -o o.onnx --external-data always" },
    Pair { output: "o.ir", run: "opt new.ir --passes= --force -q -o o.ir" },
    Pair { output: "o.json", run: "opt new.ir --passes= --force -q -o o.json" },
];

/// The whole of a model, weights included.
fn meaning(dir: &Dir, output: &str) -> Option<Vec<u8>> {
    let checked = dir.run(&["check", output]);
    if checked.code != 0 {
        assert_eq!(checked.code, 3, "{checked}");
        return None;
    }
    let whole = dir.run(&["opt", output, "--passes=", "--emit", "onnx", "-o", "-"]);
    assert_eq!(whole.code, 0, "{whole}");
    Some(whole.bytes)
}

fn prepared(pair: &Pair) -> (Dir, Vec<u8>) {
    let dir = Dir::new();
    dir.write("new.ir", model("0.25"));
    dir.write("old.ir", model("0.5"));
    let run = pair.run.replace("new.ir", "old.ir");
    let done = dir.run(&run.split(' ').collect::<Vec<_>>());
    assert_eq!(done.code, 0, "{done}");
    let old = meaning(&dir, pair.output).unwrap();
    (dir, old)
}

/// A model and its data are those of one run at every moment, or are refused.
#[test]
fn a_kill_at_any_system_call_leaves_the_old_pair_or_the_new_one() {
    if !strace() {
        let _ = writeln!(std::io::stderr(), "skipped: there is no strace that may inject faults");
        return;
    }
    for pair in PAIRS {
        let (dir, _) = prepared(pair);
        assert_eq!(dir.run(&pair.run.split(' ').collect::<Vec<_>>()).code, 0);
        let new = meaning(&dir, pair.output).unwrap();
        let after = lasting(&dir).len();
        let (mut olds, mut news, mut refused) = (0, 0, 0);
        let kills = at_each_call("a kill", |call, n| {
            let (dir, old) = prepared(pair);
            if faulty(&dir, call, "signal=KILL", n, pair.run).is_none() {
                return false;
            }
            match meaning(&dir, pair.output) {
                Some(found) if found == old => olds += 1,
                Some(found) if found == new => news += 1,
                Some(_) => panic!("{}: kill at {call} {n} leaves a mixture", pair.output),
                None => {
                    assert!(!pair.output.ends_with(".onnx"), "kill at {call} {n}: the pair is broken");
                    refused += 1;
                }
            }
            // The next run cleans up and is as if nothing had been.
            let again = dir.run(&pair.run.split(' ').collect::<Vec<_>>());
            assert_eq!(again.code, 0, "after {call} {n}: {again}");
            assert_eq!(meaning(&dir, pair.output).unwrap(), new, "after {call} {n}");
            assert_eq!(temporaries(&dir), [""; 0], "after {call} {n}");
            assert!(lasting(&dir).len() <= after + 1, "after {call} {n}: {:?}", lasting(&dir));
            true
        });
        println!("{}: {kills} kills: {olds} old, {news} new, {refused} refused", pair.output);
        assert!(olds > 0 && kills > 10);
    }
}

/// A call that fails is an error, or does not matter; nothing is left, whatever it was.
#[test]
fn a_failure_of_any_system_call_leaves_the_old_pair_or_the_new_one() {
    if !strace() {
        let _ = writeln!(std::io::stderr(), "skipped: there is no strace that may inject faults");
        return;
    }
    let pair = &PAIRS[0];
    let (dir, _) = prepared(pair);
    assert_eq!(dir.run(&pair.run.split(' ').collect::<Vec<_>>()).code, 0);
    let new = meaning(&dir, pair.output).unwrap();
    for fault in ["error=EIO", "error=ENOSPC"] {
        at_each_call(fault, |call, n| {
            let (dir, old) = prepared(pair);
            let before = content(&dir);
            let Some(done) = faulty(&dir, call, fault, n, pair.run) else { return false };
            let found = meaning(&dir, pair.output).unwrap_or_else(|| panic!("{call} {n} {fault}: broken"));
            match done.status.code() {
                Some(0) => assert_eq!(found, new, "{call} {n} {fault}"),
                Some(5) => {
                    assert_eq!(found, old, "{call} {n} {fault}");
                    assert!(content(&dir) == before, "{call} {n} {fault}: {:?}", dir.files());
                }
                other => panic!("{call} {n} {fault}: exit {other:?}"),
            }
            // A file that cannot be removed stays, unless somebody says that it was left.
            assert!(call.starts_with("unlink") || temporaries(&dir).is_empty(), "{call} {n} {fault}");
            true
        });
    }
}

/// Inputs and outputs of test data are those of one run at every moment, and nothing of a killed run is left after the next.
#[test]
fn test_data_torn() {
    if !strace() {
        let _ = writeln!(std::io::stderr(), "skipped: there is no strace that may inject faults");
        return;
    }
    const RUN: &str = "run m.ir --random 2 --outputs o/ --force -q";
    let run = |dir: &Dir, words: &str| assert_eq!(dir.run(&words.split(' ').collect::<Vec<_>>()).code, 0);
    let prepared = || {
        let dir = Dir::new();
        dir.write("m.ir", super::support::module(super::support::MATMUL).replace('N', "2"));
        run(&dir, "run m.ir --random 1 --outputs o/ -q");
        dir.write("o/notes.txt", "mine");
        dir
    };
    let data = |dir: &Dir| {
        ["o/input_0.pb", "o/output_0.pb", "o/notes.txt"].map(|name| fs::read(dir.path(name)).ok())
    };
    let dir = prepared();
    let old = data(&dir);
    run(&dir, RUN);
    let new = data(&dir);
    assert!(old[0] != new[0] && old[1] != new[1]);
    let (mut olds, mut news) = (0, 0);
    at_each_call("a kill", |call, n| {
        let dir = prepared();
        if faulty(&dir, call, "signal=KILL", n, RUN).is_none() {
            return false;
        }
        match data(&dir) {
            found if found == old => olds += 1,
            found if found == new => news += 1,
            _ => panic!("kill at {call} {n} leaves a mixture"),
        }
        run(&dir, RUN);
        assert!(data(&dir) == new, "after {call} {n}");
        assert_eq!(dir.files(), ["m.ir", "o"], "after {call} {n}");
        true
    });
    assert!(olds > 3 && news > 0, "{olds} old, {news} new");
}
