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
/// System calls that change which files have which names.
const NAMES: &[&str] = &["rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat"];
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
fn at_each_call(fault: &str, check: impl FnMut(&str, u32) -> bool) -> u32 {
    at_each_of(CALLS, fault, check)
}

/// [`at_each_call`] of some kinds.
fn at_each_of(calls: &[&str], fault: &str, mut check: impl FnMut(&str, u32) -> bool) -> u32 {
    let mut faults = 0;
    for call in calls {
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
        let said = checked.stdout.replace("\n  | ", " ");
        assert!(said.contains("are those of another run, or were edited"), "{checked}");
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

/// Runs a line of arguments, and returns its exit code and what it says, on one line.
fn said(dir: &Dir, words: &str) -> (i32, String) {
    let run = dir.run(&words.split(' ').collect::<Vec<_>>());
    (run.code, format!("{} {}", run.stdout, run.stderr).replace("\n  | ", " "))
}

/// Runs lines of arguments, which have to succeed.
fn done(dir: &Dir, lines: &[&str]) {
    for words in lines {
        let (code, text) = said(dir, words);
        assert_eq!(code, 0, "{words}: {text}");
    }
}

/// The content of files; none where there is no file.
fn read(dir: &Dir, names: &[&str]) -> Vec<Option<Vec<u8>>> {
    names.iter().map(|name| fs::read(dir.path(name)).ok()).collect()
}

/// Kills `new` before each call that gives or takes a name, in folders that `prepared` makes. `judge` looks at the files
/// that are there then, none of which is a part only. A mixture of old and new ones has to be found at least once, or else
/// nothing is tested. After the next run all is new.
fn torn(
    names: &[&str],
    new: &str,
    prepared: impl Fn() -> Dir,
    mut judge: impl FnMut(&Dir, &[Option<Vec<u8>>], &[Option<Vec<u8>>], &[Option<Vec<u8>>]),
) {
    if !strace() {
        let _ = writeln!(std::io::stderr(), "skipped: there is no strace that may inject faults");
        return;
    }
    let dir = prepared();
    let before = read(&dir, names);
    done(&dir, &[new]);
    let after = read(&dir, names);
    assert!(before.iter().zip(&after).all(|(a, b)| a.is_some() && b.is_some() && a != b), "all change");
    let mut mixtures = 0;
    at_each_of(NAMES, "a kill", |call, n| {
        let dir = prepared();
        if faulty(&dir, call, "signal=KILL", n, new).is_none() {
            return false;
        }
        let found = read(&dir, names);
        let is_part =
            |((found, old), new): ((&Option<Vec<u8>>, _), _)| found.is_none() || found == old || found == new;
        assert!(found.iter().zip(&before).zip(&after).all(is_part), "{call} {n}");
        mixtures += u32::from(found != before && found != after);
        judge(&dir, &found, &before, &after);
        done(&dir, &[new]);
        assert!(read(&dir, names) == after, "after {call} {n}");
        assert_eq!(temporaries(&dir), [""; 0], "after {call} {n}");
        true
    });
    assert!(mixtures > 0);
}

/// A report beside another model than its own is refused.
#[test]
fn report_torn() {
    let new = "rewrite new.ir -o o.onnx --report r.json --force -q";
    let prepared = || {
        let dir = Dir::new();
        dir.write("old.ir", super::support::module(super::support::MATMUL).replace('N', "2"));
        dir.write("new.ir", super::support::module(super::support::MATMUL).replace('N', "3"));
        done(&dir, &[&new.replace("new.ir", "old.ir")]);
        dir
    };
    torn(&["o.onnx", "r.json"], new, prepared, |dir, found, old, new| {
        let (code, text) = said(dir, "check o.onnx --report r.json");
        match found == old || found == new {
            true => assert_eq!(code, 0, "{text}"),
            false => assert!(code == 3 && text.contains("found that of another model"), "{code} {text}"),
        }
    });
}

/// A state or report beside another step is refused, by every command that reads both.
#[test]
fn state_torn() {
    let new = "train-step new.ir -o s.onnx --state s.safetensors --loss mse --report r.json --force -q";
    let model = super::support::module(super::support::MATMUL).replace('N', "2");
    let prepared = || {
        let dir = Dir::new();
        dir.write("old.ir", &model);
        // Tensors of the same names and dims.
        dir.write("new.ir", model.replace("8.0]", "9.0]").replace("Relu", "Sigmoid"));
        done(&dir, &[&new.replace("new.ir", "old.ir")]);
        dir
    };
    torn(&["s.onnx", "s.safetensors", "r.json"], new, prepared, |dir, found, old, new| {
        let is_of_one =
            |at: [usize; 2]| [old, new].iter().any(|run| at.iter().all(|&at| found[at] == run[at]));
        for (words, at, of) in [
            ("check s.onnx --state s.safetensors", [0, 1], "found that of another step"),
            (
                "train-step --export s.onnx --state s.safetensors -o e.onnx --force",
                [0, 1],
                "found that of another step",
            ),
            ("check s.onnx --report r.json", [0, 2], "found that of another model"),
        ] {
            let (code, text) = said(dir, words);
            match is_of_one(at) {
                true => assert_eq!(code, 0, "{words}: {text}"),
                false => assert!(code == 3 && text.contains(of), "{words}: {code} {text}"),
            }
        }
    });
}

/// A dump beside the policy of another run is not there.
#[test]
fn dump_torn() {
    let new = "rewrite new.ir -o o.onnx --pin matmul=fp32 --dump-after move-casts --dump-dir . --force -q";
    let prepared = || {
        let dir = Dir::new();
        dir.write("old.ir", super::support::module(super::support::MATMUL).replace('N', "2"));
        dir.write("new.ir", super::support::module(super::support::MATMUL).replace('N', "3"));
        done(&dir, &[&new.replace("new.ir", "old.ir").replace("=fp32", "=fp16")]);
        dir
    };
    let names = ["01-move-casts.ir", "01-move-casts.policy.json"];
    torn(&names, new, prepared, |dir, found, old, new| {
        assert!(found[0].is_none() || found == old || found == new);
        if found[0].is_some() {
            done(dir, &["opt 01-move-casts.ir -o d.ir --force -q"]);
        }
    });
}

/// Test data in a folder that cannot change places with another, because it has a folder in it, is that of one run, or lacks
/// the first output.
#[test]
fn test_data_torn_in_place() {
    let new = "run m.ir --random 2 --outputs o/ --force -q";
    let prepared = || {
        let dir = Dir::new();
        let body = "  input %x : f32[2]\n  input %z : f32[2]\n  %y = Add(%x, %z) : f32[2]\n  %w = Mul(%x, %z) : f32[2]\n  \
                    output %y\n  output %w\n";
        dir.write("m.ir", super::support::module(body));
        done(&dir, &["run m.ir --random 1 --outputs o/ -q"]);
        fs::create_dir(dir.path("o/sub")).unwrap();
        dir
    };
    let names = ["o/input_0.pb", "o/input_1.pb", "o/output_0.pb", "o/output_1.pb"];
    torn(&names, new, prepared, |dir, found, old, new| {
        let is_part =
            |run: &[Option<Vec<u8>>]| found.iter().zip(run).all(|(found, of)| found.is_none() || found == of);
        assert!(is_part(old) || is_part(new));
        let (code, text) = said(dir, "verify m.ir --test-data o");
        match found == old || found == new {
            true => assert_eq!(code, 0, "{text}"),
            false => assert!(code == 2 || code == 3, "{code} {text}"),
        }
    });
}

/// A log beside the checkpoint of another run is refused where a run goes on with both.
#[test]
fn log_torn() {
    if !strace() {
        let _ = writeln!(std::io::stderr(), "skipped: there is no strace that may inject faults");
        return;
    }
    let run = |seed: u32| {
        format!(
            "train s.onnx --state s.safetensors --data d.npz --batch 8 --steps 4 --seed {seed} --save c.safetensors --log l.jsonl --force -q"
        )
    };
    let resume = "train s.onnx --resume c.safetensors --data d.npz --steps 6 --log l.jsonl -q";
    let dir = super::train::folder(&[]);
    done(&dir, &[&run(1)]);
    // The file of the first checkpoint is synchronised before it gets its name.
    assert!(faulty(&dir, "fsync", "signal=KILL", 1, &run(2)).is_some_and(|run| !run.status.success()));
    let log = fs::read(dir.path("l.jsonl")).unwrap();
    let (code, text) = said(&dir, resume);
    assert!(code == 3 && text.contains("found that of another run"), "{code} {text}");
    assert!(fs::read(dir.path("l.jsonl")).unwrap() == log);
    done(&dir, &[&run(2), resume]);
}
