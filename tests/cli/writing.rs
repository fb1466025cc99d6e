//! What is left when writing goes wrong: files that are old or new, and never a mixture.

use super::support::{self, Dir, Run};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};

/// Constants of more than 1 KiB, so that all forms keep them in a file of their own; `value` is what they are.
fn model(value: &str) -> String {
    let weights = vec![value; 1024].join(", ");
    support::module(&format!(
        "  input %x : f32[2, 32]\n  const %w : f32[32, 32] = [{weights}]\n  %y = MatMul(%x, %w) : f32[2, 32] \
         @matmul\n  output %y : f32[2, 32]\n"
    ))
}

/// The data files of a model in a folder.
fn data_files(dir: &Dir, model: &str) -> Vec<String> {
    let start = format!("{model}.");
    dir.files().into_iter().filter(|name| name.starts_with(&start) && name.ends_with(".data")).collect()
}

/// All names but those of temporary files.
fn lasting(dir: &Dir) -> Vec<String> {
    dir.files().into_iter().filter(|name| !name.starts_with(".ampc-")).collect()
}

fn temporaries(dir: &Dir) -> Vec<String> {
    dir.files().into_iter().filter(|name| name.starts_with(".ampc-")).collect()
}

/// Runs the binary by a shell, which sets limits before.
fn limited(dir: &Dir, limits: &str, run: &str) -> Run {
    let script = format!("{limits}; exec '{}' {run}", env!("CARGO_BIN_EXE_ampc"));
    let done = Command::new("sh").args(["-c", &script]).current_dir(dir.path("")).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = done.status.code().unwrap_or_else(|| panic!("{limits}; {run}: {}", done.status));
    Run { code, stdout: text(&done.stdout), stderr: text(&done.stderr), bytes: done.stdout }
}

/// Names and contents in a folder.
fn content(dir: &Dir) -> Vec<(String, Option<Vec<u8>>)> {
    dir.files().into_iter().map(|name| (name.clone(), fs::read(dir.path(&name)).ok())).collect()
}

#[cfg(target_os = "linux")]
mod injected {
    use super::*;

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

    /// Whether system calls can be tampered with here.
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
                let found =
                    meaning(&dir, pair.output).unwrap_or_else(|| panic!("{call} {n} {fault}: broken"));
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
}

/// Runs into one folder at once take no temporary file of each other for one that was left, and of several that replace
/// one model the last one has its data.
#[cfg(unix)]
#[test]
fn runs_at_once_do_not_harm_each_other() {
    let dir = Dir::new();
    dir.write("m.ir", model("0.5"));
    let commands = (0..24).map(|i| {
        let format = if i % 2 == 0 { "fp16" } else { "bf16" };
        let output = if i < 12 { "same.onnx".to_owned() } else { format!("own{i}.ir") };
        let external = if i < 12 { " --external-data always" } else { "" };
        format!("rewrite m.ir -q --force --to {format} -o {output}{external}")
    });
    for _ in 0..3 {
        let children: Vec<_> = commands
            .clone()
            .map(|run| {
                let mut command = support::command(&run.split(' ').collect::<Vec<_>>());
                (run, command.current_dir(dir.path("")).spawn().unwrap())
            })
            .collect();
        for (run, child) in children {
            let done = child.wait_with_output().unwrap();
            assert_eq!(done.status.code(), Some(0), "{run}: {}", String::from_utf8_lossy(&done.stderr));
        }
        assert_eq!(temporaries(&dir), [""; 0]);
        assert_eq!(data_files(&dir, "same.onnx").len(), 1);
        let checked = dir.run(&["check", "same.onnx"]);
        assert_eq!(checked.code, 0, "{checked}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn what_a_killed_run_left_goes_with_the_next_one() {
    let dir = Dir::new();
    dir.write("m.ir", support::module(support::MATMUL));
    // Nobody holds it.
    dir.write(".ampc-a1B2c3.tmp", "left");
    dir.write(".ampc-mine.tmp", "mine");
    assert_eq!(dir.run(&["opt", "m.ir", "--passes=", "-o", "o.ir"]).code, 0);
    assert_eq!(dir.files(), [".ampc-mine.tmp", "m.ir", "o.ir"]);
}

/// A model whose dumps and outputs are larger than what a pipe takes before somebody reads it: 64 KiB.
fn large_model() -> String {
    let name = "n".repeat(1 << 10);
    let relu = |i: usize| format!("  %r{} = Relu(%r{i}) : f32[1024, 32] @{name}{i}\n", i + 1);
    let chain: String = (0..80).map(relu).collect();
    model("0.5")
        .replace("[2, 32]", "[1024, 32]")
        .replace("%y = MatMul", "%r0 = MatMul")
        .replace("  output %y : f32[1024, 32]\n", &format!("{chain}  output %r80 : f32[1024, 32]\n"))
}

/// A folder with a model and its data file, and the name of that.
fn with_data(text: &str) -> (Dir, String) {
    let dir = Dir::new();
    dir.write("m.ir", text);
    let made = dir.run(&["opt", "m.ir", "--passes=", "-q", "-o", "e.onnx", "--external-data", "always"]);
    assert_eq!(made.code, 0, "{made}");
    let data = data_files(&dir, "e.onnx").remove(0);
    (dir, data)
}

/// Runs the binary, which waits at a pipe that it writes, or reads if there are bytes for it; does something meanwhile.
#[cfg(target_os = "linux")]
fn held(dir: &Dir, run: &str, pipe: &str, bytes: Option<&[u8]>, meanwhile: impl FnOnce()) -> Run {
    use std::io::{Read, Write};
    let fifo = dir.path(pipe);
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut command = support::command(&run.split(' ').collect::<Vec<_>>());
    let child = command.current_dir(dir.path("")).spawn().unwrap();
    // Opening waits for the other side, and the other side then for what is read or written here.
    let mut pipe = fs::File::options().write(bytes.is_some()).read(bytes.is_none()).open(&fifo).unwrap();
    meanwhile();
    match bytes {
        Some(bytes) => pipe.write_all(bytes).unwrap(),
        None => drop(pipe.read_to_end(&mut Vec::new()).unwrap()),
    }
    drop(pipe);
    let done = child.wait_with_output().unwrap();
    fs::remove_file(fifo).unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&done.stdout), text(&done.stderr));
    Run { code: done.status.code().unwrap(), stdout, stderr, bytes: done.stdout }
}

#[cfg(target_os = "linux")]
#[test]
fn a_source_that_is_overwritten_during_the_run_is_noticed() {
    // When its dump is written, a pass has run.
    let (opt, rewrite) = ("01-classify.ir", "04-guard.ir");
    let text = large_model();
    for (run, pipe) in [
        ("opt e.onnx --passes=classify -o o.onnx", opt),
        ("opt e.onnx --passes=classify -o o.ir --force", opt),
        ("opt e.onnx --passes=classify -o o.json", opt),
        ("opt e.onnx --passes=classify -o o.dot", opt),
        ("opt e.onnx --passes=classify", opt),
        ("opt e.onnx --passes=classify --emit onnx -o -", opt),
        ("rewrite e.onnx -o o.onnx --report r.json", rewrite),
        ("rewrite e.onnx -o o.onnx --report -", rewrite),
        ("run e.onnx --outputs o/", "o/output_0.pb"),
        ("verify e.onnx other", "other"),
    ] {
        for of_data in [false, true] {
            let (dir, data) = with_data(&text);
            fs::create_dir(dir.path("o")).unwrap();
            let changed = if of_data { &data } else { "e.onnx" };
            let before = lasting(&dir);
            let (options, other) = match pipe {
                "01-classify.ir" => (" --dump-after classify --dump-dir .", None),
                "04-guard.ir" => (" --dump-after guard --dump-dir .", None),
                "other" => {
                    ("", Some(dir.run(&["opt", "m.ir", "--passes=", "--emit", "onnx", "-o", "-"]).bytes))
                }
                _ => ("", None),
            };
            let done = held(&dir, &format!("{run}{options}"), pipe, other.as_deref(), || {
                let mut bytes = fs::read(dir.path(changed)).unwrap();
                *bytes.last_mut().unwrap() ^= 1;
                fs::write(dir.path(changed), bytes).unwrap();
            });
            assert_eq!(done.code, 5, "{run}, {changed}: {done}");
            let said = format!("`{changed}` was written to while it was read");
            let words =
                done.stderr.split_whitespace().filter(|word| *word != "|").collect::<Vec<_>>().join(" ");
            assert!(words.contains(&said), "{run}, {changed}: {done}");
            assert_eq!(done.stdout, "", "{run}, {changed}");
            assert_eq!(dir.files(), before, "{run}, {changed}");
            assert_eq!(Dir::files_of(&dir.path("o")), [""; 0], "{run}, {changed}");
        }
    }
}

/// Every command that writes, every form that it writes: what is written, and how.
const WRITERS: &[&str] = &[
    "rewrite m.ir -o o.onnx",
    "rewrite m.ir -o o.onnx --external-data always",
    "rewrite m.ir -o o.ir",
    "rewrite m.ir -o o.json",
    "rewrite m.ir -o o.dot",
    "rewrite m.ir -o o.onnx --emit emulated",
    "rewrite m.ir -o - --emit text --report o.json",
    "rewrite m.ir -o /dev/null --emit dot --dump-after classify --dump-dir .",
    "opt m.ir --passes= -o o.onnx",
    "opt m.ir --passes= -o o.onnx --external-data always",
    "opt m.ir --passes= -o o.ir",
    "opt m.ir --passes= -o o.json",
    "opt m.ir --passes= -o o.dot",
    "opt m.ir --passes=classify --dump-after all --dump-dir .",
    "run m.ir --outputs o.npz",
    "run m.ir --outputs o.safetensors",
    "run m.ir --outputs o/",
];

#[cfg(unix)]
#[test]
fn the_limit_for_the_size_of_files_is_an_error_in_every_form() {
    for run in WRITERS {
        let dir = Dir::new();
        dir.write("m.ir", model("0.5"));
        let before = content(&dir);
        let done = limited(&dir, "ulimit -f 0", run);
        assert_eq!(done.code, 5, "{run}: {done}");
        assert!(done.stderr.contains("limit for the size of a file"), "{run}: {done}");
        assert!(done.stderr.contains("ulimit -f"), "{run}: {done}");
        assert!(content(&dir) == before, "{run}: {:?}", dir.files());
    }
    // A file that the shell opened for standard output.
    for run in [
        "opt m.ir --passes=",
        "rewrite m.ir -o -",
        "rewrite m.ir -o /dev/null --report -",
        "check m.ir",
        "ops",
        "run m.ir",
    ] {
        let dir = Dir::new();
        dir.write("m.ir", model("0.5"));
        let done = limited(&dir, "ulimit -f 0; exec > out", run);
        assert_eq!(done.code, 5, "{run}: {done}");
        assert!(done.stderr.contains("File too large") && done.stderr.contains("ulimit -f"), "{run}: {done}");
    }
}

#[cfg(unix)]
#[test]
fn names_that_are_too_long_leave_nothing() {
    let dir = Dir::new();
    dir.write("m.ir", model("0.5"));
    // The second is one that only the data file's name makes too long.
    for (len, data) in [(295, "auto"), (240, "always")] {
        let name = format!("{}.onnx", "n".repeat(len));
        let done = dir.run(&["rewrite", "m.ir", "-o", &name, "--external-data", data]);
        assert!(done.code == 5 && done.stderr.contains("File name too long"), "{len}: {done}");
        assert!(done.stderr.contains("choose a shorter name"), "{len}: {done}");
        assert_eq!(dir.files(), ["m.ir"], "{len}");
    }
}

/// Where the system lets us have a small disk of our own.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_nothing_in_every_form() {
    let dir = Dir::new();
    dir.write("m.ir", model("0.5"));
    fs::create_dir(dir.path("disk")).unwrap();
    let on_disk = |command: &str| {
        let script = format!("mount -t tmpfs -o size=4k none disk && {command}");
        let mut unshare = Command::new("unshare");
        unshare.args(["--map-root-user", "--mount", "sh", "-c", &script]).current_dir(dir.path("")).output()
    };
    if !on_disk("true").is_ok_and(|done| done.status.success()) {
        let _ = writeln!(std::io::stderr(), "skipped: the system lets us mount no disk of our own");
        return;
    }
    for run in WRITERS {
        // A disk of one page that is taken.
        let run = run.replace("-o o.", "-o disk/o.").replace("--dump-dir .", "--dump-dir disk");
        let run = run.replace("--report o.", "--report disk/o.").replace("--outputs o", "--outputs disk/o");
        let script =
            format!("echo > disk/taken; '{}' {run} > out; echo $?; ls -A disk", env!("CARGO_BIN_EXE_ampc"));
        let done = on_disk(&script).unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(String::from_utf8_lossy(&done.stdout), "5\ntaken\n", "{run}: {said}");
        assert!(said.contains("no space left"), "{run}: {said}");
    }
}

/// A report that does not fit does not leave a model without one.
#[cfg(unix)]
#[test]
fn a_report_that_does_not_fit_leaves_the_output_as_it_was() {
    let dir = Dir::new();
    dir.write("m.ir", support::module(support::MATMUL));
    for name in ["o.onnx", "r.json"] {
        dir.write(name, "old");
    }
    let before = content(&dir);
    let run = "rewrite m.ir -o o.onnx --report r.json --force";
    // 1 or 2 KiB, as the shell counts: more than the model takes, and less than the report.
    let done = limited(&dir, "ulimit -f 2", run);
    assert!(done.code == 5 && done.stderr.contains("to `r.json`"), "{done}");
    assert!(content(&dir) == before, "{:?}", dir.files());
    #[cfg(target_os = "linux")]
    for text in ["--report -", "--explain matmul"] {
        let done = limited(&dir, "exec > /dev/full", &format!("rewrite m.ir -o o.onnx --force {text}"));
        assert!(done.code == 5 && done.stderr.contains("standard output"), "{done}");
        assert!(content(&dir) == before, "{text}: {:?}", dir.files());
    }
    assert_eq!(limited(&dir, "ulimit -f 2", "rewrite m.ir -o o.onnx --force").code, 0, "the model fits");
    assert_eq!(dir.run(&run.split(' ').collect::<Vec<_>>()).code, 0);
    assert!(content(&dir).iter().zip(&before).all(|(new, old)| new.0 == "m.ir" || new.1 != old.1));
}

/// Dumps that are there are whole: those of the passes before the one that failed.
#[cfg(unix)]
#[test]
fn dumps_are_whole_or_not_there() {
    let dir = Dir::new();
    dir.write("m.ir", support::module(support::MATMUL));
    let run = "opt m.ir --passes=classify,guard,taint -o o.ir --dump-after all --dump-dir d";
    assert_eq!(dir.run(&run.split(' ').collect::<Vec<_>>()).code, 0);
    let whole = |name: &str| fs::read(dir.path("d").join(name)).unwrap();
    let names = Dir::files_of(&dir.path("d"));
    let bytes: Vec<Vec<u8>> = names.iter().map(|name| whole(name)).collect();
    for name in &names[1..] {
        fs::remove_file(dir.path("d").join(name)).unwrap();
    }
    fs::remove_file(dir.path("o.ir")).unwrap();
    let done = limited(&dir, "ulimit -f 0", &format!("{run} --force"));
    assert_eq!(done.code, 5, "{done}");
    assert_eq!(Dir::files_of(&dir.path("d")), names[..1], "the old one stays, no other is there");
    assert!(whole(&names[0]) == bytes[0]);
    assert_eq!(dir.files(), ["d", "m.ir"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_data_file_has_no_place_beside_a_device() {
    let (dir, _) = with_data(&model("0.5"));
    assert!(Command::new("mkfifo").arg(dir.path("pipe")).status().unwrap().success());
    let in_dev = || -> Vec<String> {
        Dir::files_of(Path::new("/dev")).into_iter().filter(|name| name.starts_with("null")).collect()
    };
    let (before, devices) = (dir.files(), in_dev());
    for run in [
        "rewrite m.ir -o /dev/null --external-data always",
        "rewrite e.onnx -o /dev/null",
        "opt m.ir --passes= --emit text -o /dev/null",
        "opt m.ir --passes= --emit json -o /dev/null",
        "opt m.ir --passes= --emit onnx -o pipe --external-data always",
        "rewrite m.ir --emit onnx -o - --external-data always",
    ] {
        let done = dir.run(&run.split(' ').collect::<Vec<_>>());
        assert!(done.code == 2 && done.stderr.contains("no place beside"), "{run}: {done}");
        assert_eq!(in_dev(), devices, "{run}");
        assert!(data_files(&dir, "pipe").is_empty());
    }
    for run in [
        "rewrite m.ir -o /dev/null",
        "rewrite e.onnx -o /dev/null --external-data never",
        "opt m.ir --passes= --emit dot -o /dev/null",
        "opt m.ir --passes= -o -",
    ] {
        let done = dir.run(&run.split(' ').collect::<Vec<_>>());
        assert_eq!(done.code, 0, "{run}: {done}");
    }
    assert_eq!(dir.files(), before);
}

#[cfg(unix)]
#[test]
fn a_link_is_followed_and_stays() {
    use std::os::unix::fs::symlink;
    let (dir, data) = with_data(&model("0.5"));
    fs::create_dir(dir.path("sub")).unwrap();
    fs::write(dir.path("sub/real.onnx"), "old").unwrap();
    symlink("sub/real.onnx", dir.path("link.onnx")).unwrap();
    symlink("sub/new.json", dir.path("new.json")).unwrap();
    symlink("e.onnx", dir.path("source.onnx")).unwrap();
    let run = |run: &str| dir.run(&run.split(' ').collect::<Vec<_>>());
    let done = run("rewrite m.ir -o link.onnx");
    assert!(done.code == 5 && done.stderr.contains("`link.onnx` exists"), "{done}");
    let done = run("rewrite m.ir -o link.onnx --force -q --external-data always --report new.json");
    assert_eq!(done.code, 0, "{done}");
    for link in ["link.onnx", "new.json", "source.onnx"] {
        assert!(fs::symlink_metadata(dir.path(link)).unwrap().is_symlink(), "{link}");
    }
    // The data file is where readers of the file look for it.
    let files = Dir::files_of(&dir.path("sub"));
    assert!(
        files.len() == 3 && files[2].starts_with("real.onnx.") && files[2].ends_with(".data"),
        "{files:?}"
    );
    assert_eq!(run("check sub/real.onnx").code, 0);
    // What is read is not written through a link either, and two links to one file are one.
    assert_eq!(run("rewrite e.onnx -o source.onnx --force").code, 2);
    fs::remove_file(dir.path("sub/new.json")).unwrap();
    assert_eq!(run("rewrite m.ir -o new.json --report sub/new.json").code, 2);
    assert_eq!(data_files(&dir, "e.onnx"), [data]);
}

#[cfg(unix)]
#[test]
fn data_behind_a_hard_link_is_refused() {
    let (dir, data) = with_data(&model("0.5"));
    fs::hard_link(dir.path(&data), dir.path("other")).unwrap();
    for run in ["check e.onnx", "rewrite e.onnx", "run e.onnx", "inspect e.onnx"] {
        let done = dir.run(&run.split(' ').collect::<Vec<_>>());
        assert_eq!(done.code, 3, "{run}: {done}");
        let said = format!("{}{}", done.stdout, done.stderr);
        assert!(said.contains("tensor_hard_link") && said.contains("mv COPY FILE"), "{run}: {done}");
    }
    fs::remove_file(dir.path("other")).unwrap();
    assert_eq!(dir.run(&["check", "e.onnx"]).code, 0);
}

#[cfg(target_os = "linux")]
#[test]
fn too_few_open_files_are_named() {
    let (dir, _) = with_data(&model("0.5"));
    let mut refused = 0;
    for run in [
        "rewrite e.onnx -o o.onnx --force",
        "opt m.ir --passes= -o o.ir --force",
        "run e.onnx --outputs o.npz --force",
    ] {
        for n in 4..20 {
            let done = limited(&dir, &format!("ulimit -n {n}"), run);
            assert!(!done.stderr.contains("uncategorized"), "{run}, {n}: {done}");
            if done.code == 0 || done.code == 127 {
                // 127: not even the libraries of the system can be opened.
                continue;
            }
            assert_eq!(done.code, 5, "{run}, {n}: {done}");
            assert!(done.stderr.contains("Too many open files"), "{run}, {n}: {done}");
            assert!(done.stderr.contains("ulimit -n"), "{run}, {n}: {done}");
            assert_eq!(temporaries(&dir), [""; 0], "{run}, {n}");
            refused += 1;
        }
    }
    assert!(refused > 0);
}

/// Runs a line of arguments, which has to succeed.
fn done(dir: &Dir, run: &str) -> Run {
    let done = dir.run(&run.split(' ').collect::<Vec<_>>());
    assert_eq!(done.code, 0, "{run}: {done}");
    done
}

/// What replaces a model whose data another one shares.
const REPLACING: &[&str] = &[
    "rewrite m.onnx -o half.onnx --force --external-data always --pin fc2=fp32",
    "rewrite m.onnx -o half.onnx --force --external-data never",
    "opt m.onnx --passes= -o half.onnx --force",
];

/// A folder with `m.onnx` and `half.onnx`, and the name of the data file of that.
fn with_half() -> (Dir, String) {
    let dir = Dir::new();
    dir.copy(support::MLP, "m.onnx");
    done(&dir, "rewrite m.onnx -o half.onnx --external-data always");
    let data = data_files(&dir, "half.onnx").remove(0);
    (dir, data)
}

#[test]
fn data_that_another_model_refers_to_stays() {
    for replacing in REPLACING {
        for (other, check) in [("final.onnx", "check final.onnx"), ("copy", "check copy")] {
            let (dir, data) = with_half();
            if other == "copy" {
                fs::copy(dir.path("half.onnx"), dir.path(other)).unwrap();
            } else {
                let made = done(&dir, "opt half.onnx --passes raise-opset{to=21} -o final.onnx");
                assert_eq!(made.stderr, format!("data in {data}, as before\n"));
            }
            let said = done(&dir, replacing).stderr;
            let line = format!("{data} of the replaced model stays: {other} refers to it");
            assert!(said.contains(&line), "{replacing}: {said}");
            assert!(data_files(&dir, "half.onnx").contains(&data), "{replacing}");
            done(&dir, check);
            done(&dir, "check half.onnx");
        }
        // Nobody else's goes, and nothing is said with -q.
        let (dir, data) = with_half();
        fs::copy(dir.path("m.onnx"), dir.path("other.onnx")).unwrap();
        let said = done(&dir, replacing).stderr;
        assert!(!said.contains("stays") && !data_files(&dir, "half.onnx").contains(&data), "{said}");
        let (dir, _) = with_half();
        fs::copy(dir.path("half.onnx"), dir.path("copy.onnx")).unwrap();
        assert_eq!(done(&dir, &format!("{replacing} -q")).stderr, "");
        done(&dir, "check copy.onnx");
    }
}

#[test]
fn data_that_a_model_may_refer_to_stays() {
    let (dir, data) = with_half();
    dir.write("broken.onnx", "no model");
    dir.write("notes.txt", "no model");
    let said = done(&dir, REPLACING[1]).stderr;
    let line = format!("{data} of the replaced model stays: broken.onnx cannot be read and may refer to it");
    assert!(said.contains(&line), "{said}");
    assert_eq!(data_files(&dir, "half.onnx"), [data]);
}

/// Data that stays is part of the size before and after.
#[test]
fn sizes_before_and_after_are_of_the_same_files() {
    let (dir, data) = with_half();
    let made = done(&dir, "rewrite half.onnx -o final.onnx --opset 21 --report r.json");
    assert!(made.stderr.contains(&format!("data       in {data}, as before")), "{made}");
    let report: serde_json::Value = serde_json::from_slice(&fs::read(dir.path("r.json")).unwrap()).unwrap();
    let len = fs::metadata(dir.path(&data)).unwrap().len();
    assert_eq!(report["files"]["data_bytes_before"], len);
    assert_eq!(report["files"]["data_bytes_after"], len);
    let size = |name: &str| fs::metadata(dir.path(name)).unwrap().len() + len;
    let kilo = |bytes: u64| format!("{:.1} kB", f64::from(u32::try_from(bytes).unwrap()) / 1e3);
    let line = format!("file       {} -> {}", kilo(size("half.onnx")), kilo(size("final.onnx")));
    assert!(made.stderr.contains(&line), "{line}: {made}");
}

/// Policies, targets and values for inputs are read like the model, and as little written to.
#[test]
fn no_file_that_a_run_reads_is_replaced() {
    let dir = Dir::new();
    dir.write("m.ir", support::module(support::MATMUL));
    dir.write("p.json", "{\"pins\": {\"matmul\": \"fp32\"}}");
    dir.write(
        "t.json",
        include_str!("../../passes/src/target/profiles/generic.json").replacen("\"generic\"", "\"mine\"", 1),
    );
    done(&dir, "rewrite m.ir -o o.onnx --report r.json");
    done(&dir, "run m.ir --random 1 --outputs d/");
    done(&dir, "run m.ir --random 1 --outputs y.npz");
    fs::hard_link(dir.path("p.json"), dir.path("hard.json")).unwrap();
    let before = content(&dir);
    for (run, what) in [
        ("rewrite m.ir -o o.ir --policy p.json --report p.json", "the report `p.json`"),
        ("rewrite m.ir -o o.ir --policy p.json --report ./p.json", "the report `./p.json`"),
        ("rewrite m.ir -o o.ir --policy p.json --report hard.json", "the report `hard.json`"),
        ("rewrite m.ir -o p.json --policy p.json", "the output `p.json`"),
        ("rewrite m.ir -o o.ir --policy r.json --report r.json", "the report `r.json`"),
        ("rewrite m.ir -o o.ir --target t.json --report t.json", "the report `t.json`"),
        ("rewrite m.ir -o t.json --target t.json", "the output `t.json`"),
        ("opt m.ir --passes classify{to=f16,policy=p.json} -o p.json", "the output `p.json`"),
        ("rewrite m.ir --verify --inputs y.npz --emit onnx -o y.npz", "the output `y.npz`"),
        ("rewrite m.ir --verify --inputs d --emit onnx -o d/input_0.pb", "the output `d/input_0.pb`"),
    ] {
        let refused = dir.run(&format!("{run} --force").split(' ').collect::<Vec<_>>());
        assert_eq!(refused.code, 2, "{run}: {refused}");
        let words =
            refused.stderr.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ");
        assert!(words.contains(&format!("{what} is the same file as the ")), "{run}: {refused}");
        assert!(content(&dir) == before, "{run}: {:?}", dir.files());
    }
    done(&dir, "rewrite m.ir -o o.ir --policy p.json --target t.json --report r.json --force");
}

/// The constants of a text go to a file whose name any program may use.
#[test]
fn tensors_of_others_are_not_replaced_by_those_of_a_text() {
    for (text, data) in [("o.json", "o.safetensors"), ("o.ir", "o.ir.safetensors")] {
        let dir = Dir::new();
        dir.write("m.ir", model("0.5"));
        dir.write("n.ir", model("0.25").replace("%w", "%other"));
        let opt = |from: &str| format!("opt {from} --passes= -o {text} --force");
        let refused = |why: &str| {
            let before = content(&dir);
            let refused = dir.run(&opt("m.ir").split(' ').collect::<Vec<_>>());
            assert!(refused.code == 5 && refused.stderr.contains("target_not_its_data"), "{why}: {refused}");
            assert!(content(&dir) == before, "{why}: {:?}", dir.files());
        };
        done(&dir, "run m.ir --outputs y.safetensors");
        let tensors = fs::read(dir.path("y.safetensors")).unwrap();
        dir.write(data, &tensors);
        refused("without a text");
        dir.write(text, "no text");
        refused("with something else under its name");
        fs::remove_file(dir.path(data)).unwrap();
        done(&dir, &opt("n.ir"));
        let pair = fs::read(dir.path(data)).unwrap();
        dir.write(data, &tensors);
        refused("with tensors that the text does not name");
        // The same tensors by another program.
        let at = pair.windows(4).position(|word| word == b"ampc").unwrap();
        dir.write(data, [&pair[..at], b"else", &pair[at + 4..]].concat());
        refused("with those of another program");
        dir.write(data, &pair);
        done(&dir, &opt("m.ir"));
        done(&dir, &format!("check {text}"));
    }
}

#[cfg(unix)]
#[test]
fn what_is_replaced_keeps_its_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for run in WRITERS {
        let dir = Dir::new();
        dir.write("m.ir", model("0.5"));
        done(&dir, run);
        let new = |name: &String| dir.path(name);
        let mut made: Vec<_> = dir.files().iter().filter(|name| *name != "m.ir").map(new).collect();
        if run.ends_with("o/") {
            made = Dir::files_of(&dir.path("o")).iter().map(|name| dir.path("o").join(name)).collect();
        }
        dir.write("other", "");
        for path in &made {
            assert_eq!(mode(path), mode(&dir.path("other")), "{run}: {path:?}");
        }
        for bits in [0o600, 0o444, 0o664] {
            for path in &made {
                fs::set_permissions(path, fs::Permissions::from_mode(bits)).unwrap();
            }
            done(&dir, &format!("{run} --force"));
            for path in &made {
                assert_eq!(mode(path), bits, "{run}: {path:?}");
            }
        }
    }
    // Data under a new name is for those who may read the model that it belongs to.
    for (output, run) in [
        ("o.onnx", "rewrite m.ir -o o.onnx --force --external-data always"),
        ("o.json", "opt m.ir --passes= -o o.json --force"),
    ] {
        let dir = Dir::new();
        dir.write("m.ir", model("0.5"));
        dir.write(output, "old");
        fs::set_permissions(dir.path(output), fs::Permissions::from_mode(0o600)).unwrap();
        done(&dir, run);
        assert_eq!(dir.files().len(), 3, "{:?}", dir.files());
        for name in dir.files().iter().filter(|name| *name != "m.ir") {
            assert_eq!(mode(&dir.path(name)), 0o600, "{run}: {name}");
        }
    }
}
