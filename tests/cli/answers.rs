//! Messages about names, pins and words that are unknown or ambiguous.

use super::support::{Dir, MLP, Run, module, snapshot};

/// The form of an output follows from its name, or from an option.
#[test]
fn an_ending_of_no_form_is_refused() {
    let dir = Dir::new();
    dir.copy(MLP, "m.onnx");
    snapshot("ending_drawing", &dir.run(&["rewrite", "m.onnx", "-o", "x.svg"]));
    for name in
        ["x.svg", "x.html", "x.ort", "x.pb", "x.engine", "x.txt", "x.IR", "x", "m.onnx.2", "none/x.png"]
    {
        for command in [&["rewrite", "m.onnx", "-o", name][..], &["opt", "m.onnx", "--passes=", "-o", name]] {
            let run = dir.run(command);
            let said = run.stderr.replace("\n  | ", " ");
            assert!(run.code == 2 && said.contains(".onnx, .ir, .json, .dot or .gv"), "{command:?}: {run}");
            assert!(run.stderr.contains("help: "), "{run}");
        }
    }
    assert_eq!(dir.files(), ["m.onnx"]);
    for (name, emit) in
        [("x.ort", "onnx"), ("x", "text"), ("x.html", "dot"), ("x.txt", "json"), ("y", "emulated")]
    {
        let run = dir.run(&["rewrite", "m.onnx", "-o", name, "--emit", emit]);
        assert_eq!(run.code, 0, "{run}");
    }
    assert_eq!(dir.run(&["rewrite", "m.onnx", "-o", "UP.ONNX"]).code, 0);
    let usual = dir.run(&["rewrite", "m.onnx", "-o", "m2.onnx"]);
    assert_eq!(usual.code, 0, "{usual}");
    let bytes = |name: &str| std::fs::read(dir.path(name)).unwrap();
    assert!(bytes("UP.ONNX") == bytes("m2.onnx") && bytes("x.ort") == bytes("m2.onnx"));
    assert!(bytes("x").starts_with(b"module ir="));
    #[cfg(target_os = "linux")]
    {
        let device = dir.run(&["rewrite", "m.onnx", "-o", "/dev/stdout", "-q"]);
        assert!(device.code == 0 && device.bytes == bytes("m2.onnx"), "{}", device.stderr);
    }
}

/// A name of standard output that leads to a file is answered with the name that writes to it.
#[cfg(target_os = "linux")]
#[test]
fn a_stream_that_leads_to_a_file_is_answered_with_a_dash() {
    let dir = Dir::new();
    dir.copy(MLP, "m.onnx");
    for args in [["-o", "/dev/stdout"], ["--report", "/dev/stdout"]] {
        let run = std::process::Command::new(env!("CARGO_BIN_EXE_ampc"))
            .args(["rewrite", "m.onnx"])
            .args(args)
            .current_dir(dir.path(""))
            .stdout(std::fs::File::create(dir.path("redirected")).unwrap())
            .output()
            .unwrap();
        let said = String::from_utf8(run.stderr).unwrap();
        assert!(run.status.code() == Some(2) && said.contains("`-` is standard output"), "{args:?}: {said}");
    }
    assert_eq!(dir.files(), ["m.onnx", "redirected"]);
}

/// So do a report, the outputs of a run and a folder of dumps.
#[test]
fn endings_of_other_files() {
    let dir = Dir::new();
    dir.copy(MLP, "m.onnx");
    for (args, said) in [
        ("rewrite m.onnx --report r.txt", "expected a name that ends in .json"),
        ("rewrite m.onnx --report r.html", "expected a name that ends in .json"),
        ("rewrite m.onnx --report r", "expected a name that ends in .json"),
        ("run none.onnx --outputs y.txt", "expected a name that ends in .npz, .safetensors, or in /"),
        ("run none.onnx --outputs y", "expected a name that ends in .npz, .safetensors, or in /"),
        ("rewrite m.onnx --dump-after all --dump-dir m.onnx", "expected a folder, found a file of that name"),
    ] {
        let run = dir.run(&args.split(' ').collect::<Vec<_>>());
        assert!(run.code == 2 && run.stderr.replace("\n  | ", " ").contains(said), "{args}: {run}");
    }
    assert_eq!(dir.files(), ["m.onnx"]);
}

/// Two contradicting pins are both named, and neither wins.
#[test]
fn pins_that_contradict_each_other_are_both_named() {
    let dir = Dir::new();
    dir.copy(MLP, "m.onnx");
    let rewrite =
        |args: &[&str]| dir.run(&[&["rewrite", "m.onnx", "-o", "-", "--emit", "text"], args].concat());
    snapshot("pins_contradict", &rewrite(&["--pin", "fc1=fp32", "--pin", "fc1=fp16"]));
    let policy = |pins: &str| dir.write("p.json", format!("{{{pins}}}"));
    for (args, first, second, node) in [
        ("--pin fc1=fp32 --pin fc1=auto", "fc1=fp32", "fc1=auto", "fc1"),
        ("--pin fc*=fp32 --pin re:.*2=bf16", "fc*=fp32", "re:.*2=bf16", "fc2"),
        ("--pin fc1#T=fp32 --pin fc1#T=fp16", "fc1#T=fp32", "fc1#T=fp16", "fc1"),
        ("--pin-value a2=fp32 --pin-value w2=fp16", "a2=fp32", "w2=fp16", "fc2"),
        ("--pin-value a?=fp32 --pin-value *2=fp16", "a?=fp32", "*2=fp16", "fc2"),
        ("--pin-value h1=fp32 --pin-value h1=fp16", "h1=fp32", "h1=fp16", "h1"),
    ] {
        let run = rewrite(&args.split(' ').collect::<Vec<_>>());
        let said = format!("the pins `{first}` and `{second}` contradict each other for `{node}`");
        assert!(run.code == 2 && run.stderr.contains(&said), "{args}: {run}");
    }
    policy(r#""pins": {"fc*": "fp32", "*1": "fp16"}"#);
    let file = rewrite(&["--policy", "p.json"]);
    assert!(file.code == 2 && file.stderr.contains("`fc*=fp32` and `*1=fp16`"), "{file}");
    // The command line wins over the file, our flags over those of other tools, what is narrow over what is wide.
    policy(r#""pins": {"fc*": "fp32", "fc2": "fp32"}"#);
    for (args, wanted) in [
        ("--policy p.json --pin fc*=fp16 --pin fc2=fp16", "f16 f16 f16"),
        ("--policy p.json --pin fc*=fp16", "f16 f32 f16"),
        ("--pin fc*=fp32 --pin fc1=fp16", "f16 f32 f32"),
        ("--pin fc1=fp32 --pin fc1#T=fp16", "f16 f16 f16"),
        ("--pin fc1=fp32 --pin fc1=float32", "f32 f16 f16"),
        ("--pin fc1=fp32 --pin-value a1=fp16", "f32 f16 f16"),
        ("--node-block-list=fc1 --pin fc1=fp16", "f16 f16 f16"),
        ("--nodes-to-exclude=fc --nodes-to-include=fc[12] --pin re:(?:fc2).*=fp32", "f16 f32 f32"),
    ] {
        let run = rewrite(&args.split(' ').collect::<Vec<_>>());
        let of = |node: &str| {
            let line = run.stdout.lines().find(|l| l.ends_with(&format!("@{node}"))).expect("the node");
            line.split(" : ").nth(1).unwrap().split('[').next().unwrap().to_owned()
        };
        assert_eq!(
            (run.code, ["fc1", "fc2", "fc3"].map(of).join(" ").as_str()),
            (0, wanted),
            "{args}: {run}"
        );
    }
}

/// A format has the same spellings wherever one is taken.
#[test]
fn spellings_of_formats() {
    let dir = Dir::new();
    dir.copy(MLP, "m.onnx");
    let bytes = |args: &[&str]| {
        let run = dir.run(&[&["rewrite", "m.onnx", "-o", "-", "-q"], args].concat());
        assert_eq!(run.code, 0, "{args:?}: {run}");
        run.bytes
    };
    for (usual, others) in
        [("fp16", &["float16", "f16", "half", "FP16"][..]), ("bf16", &["bfloat16", "BF16"])]
    {
        for other in others {
            assert!(bytes(&["--to", other]) == bytes(&["--to", usual]), "{other}");
            assert!(bytes(&["--low_precision_type", other]) == bytes(&["--to", usual]), "{other}");
            let (pin, as_usual) = (format!("softmax={other}"), format!("softmax={usual}"));
            assert!(bytes(&["--pin", &pin]) == bytes(&["--pin", &as_usual]), "{other}");
            let passes = |format: &str| {
                let run = dir.run(&["opt", "m.onnx", "--passes", &format!("classify{{to={format}}}")]);
                assert_eq!(run.code, 0, "{run}");
                run.stdout
            };
            assert_eq!(passes(other), passes(usual));
            let jmp = |format: &str| bytes(&["--policy", &format!("jmp:p=f32,c={format},o=f32")]);
            assert!(jmp(other) == jmp(usual), "{other}");
        }
    }
    for other in ["float32", "f32", "FP32", "float"] {
        assert!(bytes(&["--pin", &format!("fc1={other}")]) == bytes(&["--pin", "fc1=fp32"]), "{other}");
        dir.write("p.json", format!("{{\"pins\": {{\"fc1\": \"{other}\"}}}}"));
        assert!(bytes(&["--policy", "p.json"]) == bytes(&["--pin", "fc1=fp32"]), "{other}");
    }
    let low = dir.run(&["rewrite", "m.onnx", "-o", "low.onnx", "--to", "bf16", "--report", "r.json"]);
    assert_eq!(low.code, 0, "{low}");
    let report = std::fs::read_to_string(dir.path("r.json")).unwrap();
    dir.write("r.json", report.replace("\"to\": \"bf16\"", "\"to\": \"BFloat16\""));
    assert!(bytes(&["--policy", "r.json"]) == bytes(&["--to", "bf16"]));
    for wrong in ["fp8", "fp32", "auto"] {
        let run = dir.run(&["rewrite", "m.onnx", "--to", wrong]);
        assert!(run.code == 2 && run.stderr.contains("[possible values: fp16, bf16]"), "{run}");
    }
}

/// The rows of the table of flags that mean nothing here, as documented: names, and what is said.
fn answers() -> Vec<(Vec<String>, String)> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cli.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, table) = text.split_once("| flag or command | alternative in ampc |\n|---|---|\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|')).map(|line| {
        let line = line.replace("\\|", "\u{1}");
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let names = cells[0].split(", ").map(|name| name.trim_matches('`').to_owned()).collect();
        (names, cells[1].replace('\u{1}', "|"))
    });
    rows.collect()
}

/// Row by row, in the spellings of command lines and of Python.
#[test]
fn flags_of_other_tools_are_answered() {
    let dir = Dir::new();
    dir.copy(MLP, "m.onnx");
    let answered = |args: &[&str], name: &str, answer: &str| {
        let run = dir.run(args);
        let said = run.stderr.replace("\n  | ", " ");
        assert!(run.code == 2 && said.contains(&format!("`{name}`: {answer}")), "{args:?}: {run}");
    };
    let rows = answers();
    assert!(rows.len() > 30, "{rows:?}");
    for (names, answer) in &rows {
        for name in names {
            match name.strip_prefix("--") {
                Some(flag) => {
                    answered(&["rewrite", "m.onnx", name], name, answer);
                    let python = format!("--{}", flag.replace('-', "_"));
                    answered(&["rewrite", &format!("{python}=1"), "m.onnx"], &python, answer);
                }
                None if name.starts_with('-') => answered(&["rewrite", "m.onnx", name, "1"], name, answer),
                None => answered(&[name, "m.onnx"], name, answer),
            }
        }
    }
    answered(&["--saveEngine=m.plan", "m.onnx"], "--saveEngine", "ONNX is written");
    snapshot("answer_flag", &dir.run(&["rewrite", "m.onnx", "--min_positive_val", "1e-7"]));
    snapshot("answer_command", &dir.run(&["fit", "m.onnx"]));
    snapshot("answer_model", &dir.run(&["m.onnx"]));
    snapshot("answer_second_model", &dir.run(&["rewrite", "m.onnx", "out.onnx"]));
    assert_eq!(dir.files(), ["m.onnx"]);
}

/// A word in the wrong place gets another message than an unknown word.
#[test]
fn words_in_the_wrong_place() {
    let dir = Dir::new();
    dir.copy(MLP, "m.onnx");
    let says = |args: &[&str], text: &str| {
        let run = dir.run(args);
        let said = run.stderr.replace("\n  | ", " ");
        assert!(run.code == 2 && said.contains(text), "{args:?}: {run}");
    };
    for flag in ["--op_block_list", "--node-block-list", "--nodes_to_exclude", "--op-types-to-include"] {
        says(&["rewrite", flag, "Softmax", "m.onnx"], &format!("was read as a value of `{flag}`"));
    }
    says(&["rewrite", "m.onnx", "--keep_io_types", "False"], "`--keep-io-types=False`");
    says(&["run", "m.onnx", "-o", "x.npz"], "`--outputs FILE`");
    says(&["run", "m.onnx", "--input", "x.npz"], "`--inputs DATA`");
    says(&["rewrite", "m.onnx", "--lr", "1"], "`--lr` is an option of `ampc train`, not of `ampc rewrite`");
    says(
        &["check", "m.onnx", "--explain=x"],
        "`--explain` is an option of `ampc rewrite`, not of `ampc check`",
    );
    says(&["rewrite", "m.onnx", "--outputs", "x.onnx"], "'--output'");
    says(&["verify", "m.onnx", "m.onnx", "--tolerance", "-1"], "expected a finite number, 0 or more");
    assert_eq!(dir.files(), ["m.onnx"]);
}

/// An unknown word still gets the suggestion of a known word.
#[test]
fn words_that_nobody_knows() {
    let dir = Dir::new();
    let unknown: Run = dir.run(&["rewrite", "m.onnx", "--keep-oi"]);
    assert!(unknown.code == 2 && unknown.stderr.contains("'--keep-io'"), "{unknown}");
    for word in ["--zzzz", "-z"] {
        let unknown = dir.run(&["rewrite", "m.onnx", word]);
        assert!(unknown.code == 2 && !unknown.stderr.contains("tip:"), "{unknown}");
    }
    dir.write("m.ir", module(super::support::MATMUL));
    let nothing = dir.run(&["m.txt"]);
    assert!(nothing.code == 2 && nothing.stderr.contains("unrecognized subcommand"), "{nothing}");
}

/// Defaults and exit codes are the same in the help, in the documents and in fact.
#[test]
fn defaults_are_those_of_the_documents() {
    let dir = Dir::new();
    for (command, flag, default) in [
        ("rewrite", "--to", "fp16"),
        ("rewrite", "--policy", "safe"),
        ("rewrite", "--target", "generic"),
        ("rewrite", "--objective", "time"),
        ("rewrite", "--keep-io", "all"),
        ("rewrite", "--out-of-range", "keep"),
        ("rewrite", "--excess-precision", "forbid"),
        ("rewrite", "--opset", "keep"),
        ("rewrite", "--external-data", "auto"),
        ("rewrite", "--output", "MODEL.fp16.onnx or MODEL.bf16.onnx beside the model"),
        ("run", "--device", "cpu"),
        ("run", "--color", "auto"),
    ] {
        let help = dir.run(&[command, "--help"]).stdout;
        let (_, behind) = help.split_once(&format!("{flag} <")).expect(flag);
        // Up to the next flag, whose line begins with two dashes.
        let own: Vec<&str> = behind.lines().take_while(|l| !l.trim_start().starts_with("--")).collect();
        let own = own.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(own.contains(&format!("[default: {default}")), "{command} {flag}: {own}");
    }
    dir.copy(MLP, "m.onnx");
    let said = ["--to=fp16", "--policy=safe", "--target=generic", "--objective=time", "--keep-io=all"];
    let more = ["--out-of-range=keep", "--excess-precision=forbid", "--opset=keep", "--external-data=auto"];
    let spelled = dir.run(&[&["rewrite", "m.onnx", "-o", "-"], &said[..], &more].concat());
    assert!(
        spelled.code == 0 && spelled.bytes == dir.run(&["rewrite", "m.onnx", "-o", "-"]).bytes,
        "{}",
        spelled.stderr
    );
    let text = |name: &str| {
        std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
    };
    let help = dir.run(&["--help"]).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for code in [
        "0 done",
        "1 a comparison failed",
        "2 wrong usage",
        "3 the input is invalid",
        "4 not supported",
        "5 reading or writing failed",
        "70 a bug",
    ] {
        let (number, meaning) = code.split_once(' ').unwrap();
        assert!(help.contains(code), "{code}: {help}");
        for name in ["README.md", "docs/cli.md"] {
            assert!(text(name).contains(&format!("\n| {number} | {meaning}")), "{name}: {code}");
        }
    }
}
