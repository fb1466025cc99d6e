//! Graphs as JSON, in files and on the command line.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails and tells by panicking and printing"
)]

use ampc_ir::DType;
use ampc_ir::eq::same_module;
use ampc_ir::text::ParseOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const MLP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/mlp.onnx");

fn ampc(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ampc")).current_dir(folder).args(args).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_model_goes_through_files() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let model = ampc::load(MLP).unwrap();
    let report = ampc::json::save(&model, &at("m.json"), false).unwrap();
    assert_eq!(report.data_file.unwrap().0, at("m.safetensors"));
    let again = ampc::load(at("m.json")).unwrap();
    same_module(&model.module, &again.module).unwrap();
    let before = ["m.json", "m.safetensors"].map(|name| std::fs::read(at(name)).unwrap());
    assert!(ampc::json::save(&model, &at("m.json"), false).is_err(), "it exists");
    assert!(ampc::json::save(&again, &at("m.json"), true).is_err(), "it is read from");
    std::fs::hard_link(at("m.safetensors"), at("other.safetensors")).unwrap();
    assert!(ampc::json::save(&again, &at("other.json"), true).is_err(), "its data is read from");
    assert_eq!(before, ["m.json", "m.safetensors"].map(|name| std::fs::read(at(name)).unwrap()));
    assert!(!at("other.json").exists());
    // Damaged or wrong data is named; missing data is not needed to read.
    let mut data = before[1].clone();
    *data.last_mut().unwrap() ^= 1;
    drop(again);
    std::fs::write(at("m.safetensors"), &data).unwrap();
    assert!(ampc::load(at("m.json")).unwrap_err().to_string().contains("data of hash"));
    std::fs::write(at("m.safetensors"), String::from_utf8_lossy(&data).replace("F32", "I32")).unwrap();
    assert!(ampc::load(at("m.json")).is_err());
    std::fs::remove_file(at("m.safetensors")).unwrap();
    assert!(ampc::load(at("m.json")).is_ok());
    let without = ampc::load(at("m.json")).unwrap();
    let error = ampc::json::save(&without, &at("n.json"), false).unwrap_err().to_string();
    assert!(error.contains("the graph came without its safetensors file"), "{error}");
    assert!(!at("n.json").exists());
}

/// The cases have what models from files have not: decisions, roles, states, random and converted constants.
#[test]
fn every_text_is_a_graph() {
    let mut work = vec!["tests/cases", "testdata"].into_iter().map(PathBuf::from).collect::<Vec<_>>();
    let (mut same, mut all) = (0, 0);
    while let Some(path) = work.pop() {
        if path.is_dir() {
            work.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        if path.extension().is_none_or(|e| e != "ir") {
            continue;
        }
        all += 1;
        let Ok(model) = ampc::load(&path) else { continue };
        let printed = ampc::json::print(&model.module);
        let resolver = |name: &str, _: DType, _: &[u64], _: Option<u128>| {
            printed.large.iter().find(|c| c.name == name).map(|c| c.data.clone())
        };
        let again = ampc::json::parse(&printed.text, &resolver, &ParseOptions::default());
        // What no valid model has need not survive; cases of the verifier have it.
        match again {
            Ok(again) if same_module(&model.module, &again).is_ok() => {
                assert_eq!(ampc::json::print(&again).text, printed.text, "{}", path.display());
                same += 1;
            }
            other => assert!(path.starts_with("tests/cases/verify"), "{}: {:?}", path.display(), other.err()),
        }
    }
    println!("{same} of {all} texts");
    assert!(same > 100);
}

#[test]
fn the_command_line_reads_and_writes_it() {
    let folder = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let output = ampc(folder.path(), args);
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        output
    };
    run(&["opt", MLP, "--passes=", "-o", "m.json"]);
    for args in
        [&["check", "m.json"][..], &["inspect", "m.json"], &["rewrite", "m.json", "-o", "from_json.onnx"]]
    {
        run(args);
    }
    run(&["rewrite", MLP, "-o", "from_onnx.onnx"]);
    let load = |name: &str| ampc::load(folder.path().join(name)).unwrap().module;
    same_module(&load("from_json.onnx"), &load("from_onnx.onnx")).unwrap();
    run(&["rewrite", "m.json", "--emit", "json"]);
    assert!(folder.path().join("m.fp16.safetensors").exists());
    run(&["opt", "m.fp16.json", "--passes=", "-o", "back.onnx"]);
    same_module(&load("back.onnx"), &load("from_onnx.onnx")).unwrap();
    let refused = ampc(folder.path(), &["rewrite", "m.json", "-o", "m.json", "--force"]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    let exists = ampc(folder.path(), &["rewrite", "m.json", "-o", "m.fp16.json"]);
    assert!(said(&exists).contains("--force"), "{}", said(&exists));
    let piped = run(&["rewrite", "m.json", "-q", "--emit", "json", "-o", "-"]);
    assert!(piped.stdout.starts_with(b"{\n  \"schema\": \"ampc-graph/1\""));
}

#[test]
fn mistakes_are_shown_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("m.json");
    let check = |text: &[u8]| {
        std::fs::write(&at, text).unwrap();
        let output = ampc(folder.path(), &["check", "m.json"]);
        assert_eq!(output.status.code(), Some(3), "{}", said(&output));
        format!("{} {}", String::from_utf8_lossy(&output.stdout), said(&output))
    };
    let unknown = check(br#"{"schema": "ampc-graph/7", "graph": {}}"#);
    assert!(unknown.contains("ampc-graph/1") && unknown.contains("ampc-graph/7"), "{unknown}");
    assert!(unknown.contains("docs/json-graph.md"), "{unknown}");
    // A long line is not drawn.
    let long = format!(r#"{{"schema": "ampc-graph/1", "graph": {{"nodes": [{}3]}}}}"#, " ".repeat(10_000));
    let long = check(long.as_bytes());
    assert!(long.contains("line 1, column 10048") && long.len() < 1500, "{long}");
    let bytes = check(b"{\"schema\":\n \"\xff\"}");
    assert!(bytes.contains("UTF-8"), "{bytes}");
    check(b"");
    check(&b"[".repeat(100_000));
}

/// Which Python has NumPy: that of the test environment, or none.
#[test]
fn the_example_in_python_runs() {
    #[expect(clippy::disallowed_methods, reason = "tests are told which Python has their packages")]
    let Ok(python) = std::env::var("AMPC_PYTHON") else {
        let _ = writeln!(std::io::stderr(), "skipped: AMPC_PYTHON does not name a Python that has NumPy");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/mlp_json.py");
    let output = Command::new(python)
        .arg(example)
        .arg(folder.path())
        .arg(env!("CARGO_BIN_EXE_ampc"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = printed.lines().map(str::trim).collect();
    assert_eq!(
        lines[..6],
        ["w1 float16", "b1 float16", "w2 float16", "b2 float16", "w3 float16", "b3 float16"]
    );
    let nodes = ["Cast f16 inserted", "Gemm f16", "Relu f16", "Gemm f16", "Relu f16", "Gemm f16"];
    assert_eq!(lines[6..12], nodes);
    assert_eq!(lines[12..], ["Cast f32 inserted", "Softmax f32"]);
}
