//! Refusals before anything is computed or written.

use super::support::{self, Dir, MLP, snapshot};

/// Runs that are refused as wrong usage, and change nothing.
fn refused(dir: &Dir, runs: &[&str]) {
    let content = || -> Vec<(String, Option<Vec<u8>>)> {
        dir.files().into_iter().map(|f| (f.clone(), std::fs::read(dir.path(&f)).ok())).collect()
    };
    let before = content();
    for run in runs {
        let done = dir.run(&run.split(' ').collect::<Vec<_>>());
        assert_eq!(done.code, 2, "{run}: {done}");
        assert!(done.stderr.contains("is the same file as"), "{run}: {done}");
        assert!(content() == before, "{run} changed something");
    }
}

#[test]
fn what_is_read_is_never_written_and_nothing_is_written_twice() {
    let dir = Dir::new();
    dir.copy(MLP, "m.onnx");
    assert_eq!(dir.run(&["rewrite", "m.onnx", "-o", "s.ir", "-q"]).code, 0);
    assert_eq!(dir.run(&["rewrite", "m.onnx", "-o", "e.onnx", "--external-data", "always", "-q"]).code, 0);
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(dir.path("s.ir"), dir.path("link.ir")).unwrap();
        std::fs::hard_link(dir.path("s.ir.safetensors"), dir.path("hard.json")).unwrap();
        refused(
            &dir,
            &["rewrite s.ir -o link.ir --force", "rewrite s.ir -o o.onnx --report hard.json --force"],
        );
    }
    let data = dir.files().into_iter().find(|name| name.starts_with("e.onnx.")).unwrap();
    refused(
        &dir,
        &[
            "rewrite s.ir -o s.ir --force",
            "rewrite s.ir -o ./s.ir",
            "opt s.ir --passes= -o s.ir --force",
            "rewrite s.ir -o s.ir.safetensors --emit onnx --force",
            "rewrite s.ir -o o.onnx --report s.ir --force",
            "rewrite s.ir -o o.onnx --report s.ir.safetensors --force",
            "rewrite m.onnx -o o.onnx --report m.onnx --force",
            "rewrite m.onnx -o o.onnx --report o.onnx",
            "rewrite m.onnx --report m.fp16.onnx",
            "rewrite m.onnx -o o.ir --report o.ir.safetensors",
            &format!("rewrite e.onnx -o o.onnx --report {data} --force"),
            &format!("rewrite e.onnx -o {data} --emit onnx --force"),
            "rewrite m.onnx -o 04-guard.ir --dump-after guard --dump-dir .",
            "rewrite m.onnx -o o.onnx --report 04-guard.ir --dump-after all --dump-dir .",
        ],
    );
}

#[test]
fn dumps_replace_only_when_told_and_never_the_model() {
    let dir = Dir::new();
    dir.write("m.ir", support::module(support::MATMUL));
    dir.write("04-guard.ir", support::module(support::MATMUL));
    dir.write("05-taint.ir", "mine");
    let guard = ["--dump-after", "guard", "--dump-dir", ".", "--force"];
    let run = dir.run(&[&["rewrite", "04-guard.ir", "-o", "o.ir"], &guard[..]].concat());
    assert_eq!(run.code, 2, "{run}");
    let all = ["rewrite", "m.ir", "-o", "o.ir", "--dump-after", "all", "--dump-dir", "."];
    snapshot("io_dump_exists", &dir.run(&all));
    assert_eq!(dir.files(), ["04-guard.ir", "05-taint.ir", "m.ir"]);
    assert_eq!(dir.run(&[&all[..], &["--force"]].concat()).code, 0);
    assert!(std::fs::read(dir.path("05-taint.ir")).unwrap() != b"mine");
}

#[test]
fn targets_are_checked_before_the_work() {
    let dir = Dir::new();
    dir.copy(MLP, "m.onnx");
    dir.write("file", "");
    snapshot("io_report_no_folder", &dir.run(&["rewrite", "m.onnx", "--report", "none/r.json"]));
    let run = dir.run(&["rewrite", "m.onnx", "-o", "file/o.onnx"]);
    assert!(run.code == 5 && run.stderr.contains("the folder `file` does not exist"), "{run}");
    assert_eq!(dir.files(), ["file", "m.onnx"]);
    #[cfg(target_os = "linux")]
    {
        // Nobody may make files there.
        let run = dir.run(&["rewrite", "m.onnx", "--report", "/proc/r.json"]);
        assert!(run.code == 5 && run.stderr.contains("`/proc` is not writable"), "{run}");
        assert_eq!(dir.files(), ["file", "m.onnx"]);
        let run = dir.run(&["rewrite", "m.onnx", "--report", "/dev/full"]);
        assert!(run.code == 5 && run.stderr.contains("cannot write to `/dev/full`"), "{run}");
        assert_eq!(dir.files(), ["file", "m.onnx"], "no model without its report");
    }
}

#[test]
fn a_data_file_that_exists_is_refused_before_the_work() {
    let dir = Dir::new();
    std::fs::create_dir(dir.path("sub")).unwrap();
    let weights = vec!["0.5"; 1024].join(", ");
    let text = format!(
        "  input %x : f32[2, 32]\n  const %w : f32[32, 32] = [{weights}]\n  %y = MatMul(%x, %w) : f32[2, 32]\n  \
         output %y : f32[2, 32]\n"
    );
    dir.write("m.ir", support::module(&text));
    let external = ["opt", "m.ir", "--passes=", "-o", "sub/e.onnx", "--external-data", "always"];
    assert_eq!(dir.run(&external).code, 0);
    dir.write("o.ir.safetensors", "mine");
    let before = dir.files();
    for (run, data) in [
        ("rewrite m.ir -o o.ir", "o.ir.safetensors"),
        ("opt sub/e.onnx --passes=classify -o o.ir", "o.ir.safetensors"),
    ] {
        let dumps = ["--dump-after", "classify", "--dump-dir", "dumps"];
        let args: Vec<&str> = run.split(' ').chain(dumps).collect();
        let forced = [&args[..], &["--force"]].concat();
        // No text of ampc refers to it, so `--force` is not about it.
        for args in [&args, &forced] {
            let refused = dir.run(args);
            let message = format!("`{data}` exists");
            assert!(refused.code == 5 && refused.stderr.contains(&message), "{args:?}: {refused}");
            assert_eq!(dir.files(), before, "{args:?}: no pass has run");
        }
        std::fs::remove_file(dir.path(data)).unwrap();
        assert_eq!(dir.run(&args).code, 0, "{run}");
        std::fs::remove_dir_all(dir.path("dumps")).unwrap();
        assert_eq!(dir.run(&args).code, 5, "{run}");
        assert!(!dir.path("dumps").exists(), "{run}: no pass has run");
        assert_eq!(dir.run(&forced).code, 0, "{run}");
        for name in ["o.ir", data] {
            std::fs::remove_file(dir.path(name)).unwrap();
        }
        std::fs::remove_dir_all(dir.path("dumps")).unwrap();
        dir.write(data, "mine");
    }
}

#[test]
fn inputs_that_are_not_there() {
    let dir = Dir::new();
    dir.copy(MLP, "m.onnx");
    snapshot("io_opt_missing", &dir.run(&["opt", "none.ir"]));
    assert_eq!(dir.run(&["opt", "m.onnx", "--passes=", "-o", "m.ir", "-q"]).code, 0);
    std::fs::remove_file(dir.path("m.ir.safetensors")).unwrap();
    snapshot("text_missing_data", &dir.run(&["rewrite", "m.ir"]));
    for args in ["opt m.ir --passes= -o n.ir", "opt m.ir --passes= -o n.onnx"] {
        let run = dir.run(&args.split(' ').collect::<Vec<_>>());
        assert!(run.code == 3 && run.stderr.contains("help:"), "{args}: {run}");
    }
    assert_eq!(dir.files(), ["m.ir", "m.onnx"]);
    #[cfg(target_os = "linux")]
    for command in ["rewrite", "check", "inspect"] {
        let run = dir.run(&[command, "/dev/zero"]);
        assert!(run.code == 5 && run.stderr.contains("it is a device"), "{run}");
    }
}

/// Endless input is read up to a limit, and the message names the limit.
#[cfg(target_os = "linux")]
#[test]
fn pipes_without_end() {
    use std::process::{Command, Stdio};
    let dir = Dir::new();
    for pipe in ["p.onnx", "p.ir", "p.json"] {
        assert!(Command::new("mkfifo").arg(dir.path(pipe)).status().unwrap().success());
    }
    let run = |args: &[&str], from: &str| {
        let mut zeros = Command::new("cat");
        zeros.arg("/dev/zero").stderr(Stdio::null());
        let mut command = support::command(args);
        command.current_dir(dir.path(""));
        let mut cat = if from == "-" {
            let mut cat = zeros.stdout(Stdio::piped()).spawn().unwrap();
            command.stdin(cat.stdout.take().unwrap());
            cat
        } else {
            // The shell opens the pipe, which waits for the reader.
            let mut shell = Command::new("sh");
            shell.args(["-c", "exec cat /dev/zero > \"$0\""]).arg(dir.path(from)).stderr(Stdio::null());
            shell.spawn().unwrap()
        };
        let done = command.output().unwrap();
        // It holds an end of the pipe.
        drop(command);
        cat.wait().unwrap();
        (done.status.code(), String::from_utf8_lossy(&done.stderr).replace("\n    ", " "))
    };
    for (args, from, limit) in [
        (&["check", "-"][..], "-", "2147483647"),
        (&["inspect", "p.onnx"], "p.onnx", "2147483647"),
        (&["opt", "p.ir", "--passes="], "p.ir", "1073741824"),
        (&["policy", "check", "p.json"], "p.json", "1073741824"),
    ] {
        let (code, said) = run(args, from);
        let message = format!("more than {limit} bytes");
        assert!(code == Some(5) && said.contains(&message), "{args:?}: {code:?} {said}");
    }
    assert_eq!(dir.files(), ["p.ir", "p.json", "p.onnx"]);
}

#[test]
fn options_that_say_nothing_or_too_much() {
    let dir = Dir::new();
    dir.copy(MLP, "m.onnx");
    let cases: &[(&[&str], &str)] = &[
        (&["--pin", "=fp32"], "`--pin =fp32`: the name before `=` is empty"),
        (&["--pin-value", "=fp32"], "`--pin-value =fp32`: the name before `=` is empty"),
        (&["--pin", "fc2=fp8"], "`--pin fc2=fp8`: "),
        (&["--pin", "fc2"], "found no `=`"),
        (&["--keep-io", ","], "`--keep-io ,`: a name is empty"),
        (&["--keep-io", "x,"], "`--keep-io x,`: a name is empty"),
        (&["--keep-io", "all,x"], "`--keep-io all,x`: `all` stands alone"),
        (&["--deny", ","], "`--deny ,`: a name is empty"),
        (&["--allow", "Relu,"], "`--allow Relu,`: a name is empty"),
        (&["--disable-guard", ",eps"], "`--disable-guard ,eps`: a name is empty"),
    ];
    for (args, message) in cases {
        let run = dir.run(&[&["rewrite", "m.onnx"], *args].concat());
        assert!(run.code == 2 && run.stderr.contains(message), "{args:?}: {run}");
    }
    for (text, found) in [("[]", "an array"), ("null", "null"), ("\"safe\"", "a string"), ("7", "a number")] {
        dir.write("p.json", text);
        let run = dir.run(&["policy", "check", "p.json"]);
        let message = format!("expected an object, found {found}");
        assert!(run.code == 2 && run.stderr.contains(&message), "{text}: {run}");
    }
}

/// The file of constants of a text or JSON is read from no pipe.
#[cfg(target_os = "linux")]
#[test]
fn constants_are_read_from_no_pipe() {
    let dir = Dir::new();
    dir.write("m.onnx", std::fs::read(support::MLP).unwrap());
    for (name, data) in [("a.ir", "a.ir.safetensors"), ("b.json", "b.safetensors")] {
        assert_eq!(dir.run(&["opt", "m.onnx", "--passes=", "-o", name, "-q"]).code, 0);
        std::fs::remove_file(dir.path(data)).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(dir.path(data)).status().unwrap().success());
        let run = dir.run(&["check", name]);
        assert!(run.code == 2 && run.stdout.contains("found a pipe or device"), "{name}: {run}");
    }
}
