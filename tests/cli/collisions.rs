//! Outputs that are one file, that are a file which is read, or that appear while the run computes, for each command that
//! writes several files.

use super::support::{Dir, Run, command};
use super::train;
use super::writing::{content, model, temporaries};
use std::fs;
use std::path::Path;
use std::process::Command as Process;
use std::time::{Duration, Instant};

/// A command with the files that it reads and writes; `{0}` and so on stand for the files that it writes.
struct Writer {
    words: &'static str,
    reads: &'static [&'static str],
    writes: &'static [&'static str],
}

const WRITERS: &[Writer] = &[
    Writer {
        words: "rewrite m.ir --policy p.json -o {0} --report {1}",
        reads: &["m.ir", "m.ir.safetensors", "p.json"],
        writes: &["o.json", "r.json"],
    },
    Writer {
        words: "rewrite m.ir -o {0} --report {1} --external-data always",
        reads: &["m.ir", "m.ir.safetensors"],
        writes: &["o.onnx", "r.json"],
    },
    Writer {
        words: "train-step f.ir --loss cross-entropy -o {0} --state {1} --report {2}",
        reads: &["f.ir"],
        writes: &["t.json", "state.safetensors", "r.json"],
    },
    Writer {
        words: "train s.onnx --state s.safetensors --data d.npz --eval e.npz --init i.safetensors --steps 2 --save {0} --log {1}",
        reads: &["s.onnx", "s.safetensors", "d.npz", "e.npz", "i.safetensors"],
        writes: &["c.json", "l.json"],
    },
    Writer {
        words: "train s.onnx --resume c0.safetensors --data d.npz --steps 4 --save {0} --log {1}",
        reads: &["s.onnx", "c0.safetensors", "d.npz"],
        writes: &["c.json", "l.json"],
    },
];

impl Writer {
    /// The arguments with these outputs.
    fn line(&self, outputs: &[&str]) -> String {
        let fill = |line: String, (i, name): (usize, &&str)| line.replace(&format!("{{{i}}}"), name);
        outputs.iter().enumerate().fold(self.words.to_owned(), fill)
    }

    /// The arguments with another name for an output.
    fn with(&self, output: usize, name: &str) -> String {
        let mut outputs = self.writes.to_vec();
        outputs[output] = name;
        self.line(&outputs)
    }
}

fn run(dir: &Dir, line: &str) -> Run {
    dir.run(&line.split(' ').collect::<Vec<_>>())
}

/// A folder with all that the commands read.
fn folder() -> Dir {
    let dir = train::folder(&[]);
    fs::rename(dir.path("m.ir"), dir.path("f.ir")).unwrap();
    dir.write("w.ir", model("0.5"));
    dir.write("p.json", "{\"pins\": {\"matmul\": \"fp16\"}}");
    for line in [
        "opt w.ir --passes= -q -o m.ir",
        "train s.onnx --state s.safetensors --data d.npz --steps 2 --save c0.safetensors -q",
    ] {
        let made = run(&dir, line);
        assert_eq!(made.code, 0, "{line}: {made}");
    }
    fs::copy(dir.path("s.safetensors"), dir.path("i.safetensors")).unwrap();
    fs::copy(dir.path("d.npz"), dir.path("e.npz")).unwrap();
    dir
}

/// Refuses a line as wrong usage, with `--force` and without, and changes no file.
fn refused(dir: &Dir, line: &str) {
    let before = content(dir);
    for line in [format!("{line} --force"), line.to_owned()] {
        let refused = run(dir, &line);
        assert!(refused.code == 2, "{line}: {refused}");
        assert!(content(dir) == before, "{line}: {:?}", dir.files());
    }
}

/// No two outputs are one pipe or device; the null device may be written to twice.
#[cfg(unix)]
#[test]
fn outputs_are_different_streams() {
    let (dir, pipes) = (folder(), Dir::new());
    assert!(Process::new("mkfifo").arg(pipes.path("pipe")).status().unwrap().success());
    std::os::unix::fs::symlink("pipe", pipes.path("link.json")).unwrap();
    let [pipe, dotted, link] =
        ["pipe", "./pipe", "link.json"].map(|name| pipes.path(name).display().to_string());
    let step = "train-step f.ir --loss cross-entropy -q";
    let mut lines = vec![
        "rewrite m.ir -q -o - --report -".to_owned(),
        format!("rewrite m.ir -q -o {pipe} --emit onnx --report {dotted}"),
        format!("rewrite m.ir -q -o {pipe} --emit onnx --report {link}"),
        "rewrite m.ir -q -o /dev/stdout --explain matmul".to_owned(),
        "rewrite m.ir -q -o out.onnx --report /dev/fd/1 --explain matmul".to_owned(),
        format!("{step} -o - --report /dev/stdout --state out.safetensors"),
        format!("{step} -o out.onnx --report - --state /dev/stdout"),
        format!("{step} -o {pipe} --emit onnx --state {link}"),
    ];
    let names = ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];
    for (a, b) in names.iter().flat_map(|a| names.iter().map(move |b| (a, b))) {
        if cfg!(target_os = "linux") || !format!("{a}{b}").contains("/proc") {
            lines.push(format!("rewrite m.ir -q -o {a} --report {b}"));
            let is_refused_alone = *b == "-";
            lines.extend((!is_refused_alone).then(|| format!("{step} -o {a} --state {b}")));
        }
    }
    for line in &lines {
        refused(&dir, line);
        assert_eq!(run(&dir, line).bytes, [0; 0], "{line}");
    }
    for line in [
        "rewrite m.ir -q -o /dev/null --report /dev/null".to_owned(),
        "rewrite m.ir -q -o - --report /dev/null".to_owned(),
        format!("{step} -o /dev/null --report /dev/null --state /dev/null"),
    ] {
        let done = run(&dir, &line);
        assert_eq!(done.code, 0, "{line}: {done}");
    }
}

/// No two outputs are one file, by name or by links, whether it is there or not.
#[cfg(unix)]
#[test]
fn outputs_are_different_files() {
    use std::os::unix::fs::symlink;
    let dir = folder();
    for writer in WRITERS {
        for a in 0..writer.writes.len() {
            for b in (0..writer.writes.len()).filter(|&b| b != a) {
                let name = writer.writes[b];
                refused(&dir, &writer.with(a, name));
                refused(&dir, &writer.with(a, &format!("./{name}")));
                for is_there in [false, true] {
                    if is_there {
                        dir.write(name, "old");
                    }
                    symlink(name, dir.path("link.json")).unwrap();
                    refused(&dir, &writer.with(a, "link.json"));
                    fs::remove_file(dir.path("link.json")).unwrap();
                }
                fs::hard_link(dir.path(name), dir.path("hard.json")).unwrap();
                refused(&dir, &writer.with(a, "hard.json"));
                fs::remove_file(dir.path("hard.json")).unwrap();
                fs::remove_file(dir.path(name)).unwrap();
            }
        }
    }
}

/// No output is a file that the run reads, by name or by links; `--save` may be the checkpoint that is gone on with.
#[cfg(unix)]
#[test]
fn outputs_are_no_inputs() {
    use std::os::unix::fs::symlink;
    let dir = folder();
    for writer in WRITERS {
        for output in 0..writer.writes.len() {
            for &input in writer.reads {
                let goes_on = writer.writes[output] == "c.json" && input == "c0.safetensors";
                for link in ["link.json", "hard.json"] {
                    match link {
                        "hard.json" => fs::hard_link(dir.path(input), dir.path(link)).unwrap(),
                        _ => symlink(input, dir.path(link)).unwrap(),
                    }
                    if !goes_on || link == "hard.json" {
                        refused(&dir, &writer.with(output, link));
                    }
                    fs::remove_file(dir.path(link)).unwrap();
                }
            }
        }
    }
}

/// A file that appears under the name of an output while the run computes is as it was, and no file is there beside it.
#[cfg(target_os = "linux")]
#[test]
fn outputs_that_appear_meanwhile_stay() {
    let runs: Vec<(String, Vec<&str>)> = WRITERS[..4]
        .iter()
        .map(|writer| (writer.line(writer.writes), writer.writes.to_vec()))
        .chain([
            ("opt m.ir --passes= -o o.ir".to_owned(), vec!["o.ir", "o.ir.safetensors"]),
            ("run w.ir --random 1 --outputs o/".to_owned(), vec!["o/input_0.pb", "o/output_0.pb"]),
        ])
        .collect();
    for (line, outputs) in runs {
        // The log of a training is there from the beginning.
        for &late in outputs.iter().filter(|name| **name != "l.json") {
            let dir = folder();
            fs::create_dir(dir.path("o")).unwrap();
            let Some(done) = delayed(&dir, &line, late) else { return };
            assert_eq!(done.code, 5, "{line}, {late}: {done}");
            assert!(done.stderr.contains(&format!("`{late}` exists")), "{line}, {late}: {done}");
            assert_eq!(fs::read_to_string(dir.path(late)).unwrap(), "late", "{line}");
            for &name in outputs.iter().filter(|name| **name != late && **name != "l.json") {
                assert!(!dir.path(name).exists(), "{line}, {late}: {name}");
            }
            assert_eq!(temporaries(&dir), [""; 0], "{line}, {late}");
        }
    }
}

/// Runs the binary, which waits when its first file is complete, and writes `late` then. None if that cannot be done here.
#[cfg(target_os = "linux")]
fn delayed(dir: &Dir, line: &str, late: &str) -> Option<Run> {
    let can = ["-q", "-e", "inject=fsync:delay_enter=1", "-o", "/dev/null", "true"];
    if !Process::new("strace").args(can).output().is_ok_and(|done| done.status.success()) {
        return None;
    }
    let binary = command(&[]).get_program().to_owned();
    let mut process = Process::new("strace");
    process.args([
        "-f",
        "-q",
        "-e",
        "trace=fsync",
        "-e",
        "inject=fsync:delay_enter=1500000:when=1",
        "-o",
        "/dev/null",
    ]);
    process.arg(binary).args(line.split(' ')).current_dir(dir.path(""));
    process.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = process.spawn().unwrap();
    let folder = dir.path(late).parent().unwrap().to_owned();
    let is_writing = |folder: &Path| {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        // A check of the folder makes an empty one.
        names.into_iter().any(|entry| {
            entry.file_name().to_string_lossy().starts_with(".ampc-")
                && entry.metadata().is_ok_and(|found| found.len() > 0)
        })
    };
    let begun = Instant::now();
    while !is_writing(&folder) && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::write(dir.path(late), "late").unwrap();
    let done = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace("\n  │ ", " ").replace("\n  | ", " ");
    Some(Run {
        code: done.status.code().unwrap(),
        stdout: text(&done.stdout),
        stderr: text(&done.stderr),
        bytes: Vec::new(),
    })
}
