//! Files after a failed write are old or new, and never a mixture.

use super::support::{self, Dir, Run};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

/// Constants of more than 1 KiB, so that all forms keep them in a file of their own; `value` is what they are.
pub(super) fn model(value: &str) -> String {
    let weights = vec![value; 1024].join(", ");
    support::module(&format!(
        "  input %x : f32[2, 32]\n  const %w : f32[32, 32] = [{weights}]\n  %y = MatMul(%x, %w) : f32[2, 32] \
         @matmul\n  output %y : f32[2, 32]\n"
    ))
}

/// The data files of a model in a folder.
pub(super) fn data_files(dir: &Dir, model: &str) -> Vec<String> {
    let start = format!("{model}.");
    dir.files().into_iter().filter(|name| name.starts_with(&start) && name.ends_with(".data")).collect()
}

/// All names but those of temporary files.
pub(super) fn lasting(dir: &Dir) -> Vec<String> {
    dir.files().into_iter().filter(|name| !name.starts_with(".ampc-")).collect()
}

pub(super) fn temporaries(dir: &Dir) -> Vec<String> {
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
pub(super) fn content(dir: &Dir) -> Vec<(String, Option<Vec<u8>>)> {
    dir.files().into_iter().map(|name| (name.clone(), fs::read(dir.path(&name)).ok())).collect()
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

/// A model whose dumps and outputs are larger than the buffer of a pipe: 64 KiB.
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
pub(super) const WRITERS: &[&str] = &[
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
        assert!(done.code == 2 && done.stderr.contains("beside the output"), "{run}: {done}");
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
