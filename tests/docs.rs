//! The documents as users meet them: commands run, programs compile, JSON and texts parse, links lead somewhere.
//!
//! Commands of a document run in order, in a folder of their own that has `testdata/`, `model.onnx`, `inputs.npz` and
//! `test_data_set_0/`. Behind the language, the first line of a snippet may say
//! `skip: REASON`, or `exits N` for the exit code that it ends with; `gate: REASON` is run by `scripts/newcomer` alone,
//! which runs every block as it stands in a fresh clone. A `text` behind commands is what they print or the end of what
//! they write, but for `text example: REASON`; of `text rows: REASON`, numbers may differ a little, and the last column may.
//! Rust programs are compiled as documentation tests of the library (`src/lib.rs`).

// Commands are for a shell.
#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails and tells by panicking and printing"
)]

#[path = "docs/flags.rs"]
mod flags;

#[path = "docs/links.rs"]
mod links;

#[path = "docs/scratch.rs"]
mod scratch;

#[path = "docs/snippets.rs"]
mod snippets;

use ampc::passes::guard::{GUARDS, Judges};
use ampc::passes::pipeline::{OptionDef, PASSES, PassDef};
use scratch::{Package, Ran, Scratch};
use snippets::{Document, Snippet, documents};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

/// Runs the commands and programs of a document, and compares what follows them.
fn run(document: &Document) -> usize {
    let scratch = Scratch::new();
    let mut ran: Option<(usize, Ran)> = None;
    let mut count = 0;
    for snippet in &document.snippets {
        let place = format!("{}:{}", document.name, snippet.line);
        match snippet.language.as_str() {
            "sh" if snippet.mark("skip").or(snippet.mark("gate")).is_none() => {
                ran = Some((snippet.section, scratch.shell(&place, snippet)));
                count += 1;
            }
            "python" if snippet.mark("skip").is_none() => {
                scratch.python(&place, snippet);
                count += 1;
            }
            "text" if snippet.mark("rows").is_some() => {
                let (_, ran) = ran.as_ref().unwrap_or_else(|| panic!("{place}: no command stands above"));
                ran.shows_rows(&place, snippet);
                count += 1;
            }
            "text" if snippet.mark("example").is_none() => {
                if let Some((_, ran)) = ran.as_ref().filter(|(section, _)| *section == snippet.section) {
                    ran.shows(&place, snippet);
                    count += 1;
                }
            }
            _ => {}
        }
    }
    count
}

#[test]
fn commands_in_the_readme_do_what_it_says() {
    // Commands, a Python program, and what is printed.
    assert!(run(&Document::read("README.md")) >= 13);
}

#[test]
fn commands_in_documents_run() {
    let count: usize = documents().iter().filter(|d| d.name != "README.md").map(run).sum();
    assert!(count >= 3, "{count}");
}

/// Exceptions have a reason.
#[test]
fn marks_are_known() {
    for document in documents().into_iter().chain([Document::read("CONTRIBUTING.md")]) {
        for Snippet { marks, line, language, .. } in &document.snippets {
            let is_known = marks.is_empty()
                || marks.starts_with("exits ") && language == "sh"
                || ["skip: ", "example: ", "gate: ", "rows: "]
                    .iter()
                    .any(|m| marks.starts_with(m) && marks.len() > m.len() + 8);
            assert!(is_known, "{}:{line}: {marks}", document.name);
            let languages = ["sh", "text", "python", "rust,no_run", "toml", "json", "ir"];
            assert!(languages.contains(&language.as_str()), "{}:{line}: {language}", document.name);
        }
    }
}

/// JSON is what its schema says, texts are modules, TOML depends on this package.
#[test]
fn data_in_documents_is_what_it_claims_to_be() {
    let mut count = 0;
    for document in documents() {
        for snippet in &document.snippets {
            let (place, text) = (format!("{}:{}", document.name, snippet.line), &snippet.text);
            match snippet.language.as_str() {
                "json" => json(&place, text),
                "ir" => {
                    let options =
                        ampc_ir::text::ParseOptions { allow_missing_data: true, ..Default::default() };
                    let parsed = ampc_ir::text::parse_with(text, &ampc_ir::text::NoData, &options);
                    parsed.unwrap_or_else(|e| panic!("{place}: {e}"));
                }
                "toml" => Package::new(text, "fn main() {}\n").depends(&place),
                _ => continue,
            }
            count += 1;
        }
    }
    assert!(count >= 9, "{count}");
}

/// The programs of the README are packages with the lines for `Cargo.toml` that stand above them.
#[test]
fn programs_in_the_readme_compile_outside() {
    let readme = Document::read("README.md");
    let mut lines = None;
    let mut count = 0;
    for snippet in &readme.snippets {
        match snippet.language.as_str() {
            "toml" => lines = Some(&snippet.text),
            "rust,no_run" => {
                let lines = lines.expect("the lines for Cargo.toml stand above the program");
                let compiled = Package::new(lines, &snippet.text).compiles();
                compiled.unwrap_or_else(|said| panic!("README.md:{}:\n{said}", snippet.line));
                let said =
                    Package::new(lines, "fn main() { ampc::no_such_function() }\n").compiles().unwrap_err();
                assert!(said.contains("E0425"), "{said}");
                count += 1;
            }
            _ => {}
        }
    }
    assert!(count >= 1, "no program was compiled");
}

fn json(place: &str, text: &str) {
    let value: serde_json::Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{place}: {e}"));
    let fails = |error: &dyn std::fmt::Display| panic!("{place}: {error}");
    match value["schema"].as_str() {
        Some("ampc-policy/1") => drop(ampc::passes::Policy::from_json(text).map_err(|e| fails(&e))),
        Some("ampc-target/1") => {
            let profile = ampc::passes::Profile::from_json(text).and_then(ampc::passes::Profile::of_user);
            drop(profile.map_err(|e| fails(&e)));
        }
        Some("ampc-graph/1") => {
            let scratch = Scratch::new();
            scratch.write("graph.json", text);
            let mut model = ampc::load(scratch.path("graph.json")).unwrap_or_else(|e| panic!("{place}: {e}"));
            let found = ampc::check(&mut model.module);
            assert!(found.is_empty(), "{place}: {found:?}");
        }
        other => panic!("{place}: no schema that ampc reads: {other:?}"),
    }
}

#[test]
fn links_lead_somewhere() {
    let dead = links::dead();
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

/// Documents and the command line name the same flags.
#[test]
fn flags_in_documents_exist() {
    let (known, mut mentioned) = (flags::of_commands(), std::collections::BTreeSet::new());
    let command_line = Document::read("docs/cli.md").text;
    let elsewhere = command_line.split("\n## ").find(|s| s.starts_with("Spellings of other tools")).unwrap();
    for document in documents() {
        for flag in flags::mentioned(&document.text) {
            let is_known = known.contains(&flag) || elsewhere.contains(&format!("`{flag}"));
            assert!(is_known, "{}: no command has `{flag}`", document.name);
            mentioned.insert(flag);
        }
    }
    let missing: Vec<&String> = known.difference(&mentioned).collect();
    assert!(missing.is_empty(), "no document speaks of {missing:?}");
}

/// A document that no list names cannot be found.
#[test]
fn every_document_is_listed() {
    let list = Document::read("docs/README.md").text;
    for document in documents() {
        if let Some(name) = document.name.strip_prefix("docs/").filter(|name| *name != "README.md") {
            assert!(list.contains(&format!("| [{name}]({name}) | ")), "docs/README.md: {name}");
        }
    }
    for name in ["SECURITY.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md", "docs/"] {
        assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(name).exists());
        assert!(Document::read("README.md").text.contains(&format!("[{name}]")), "README.md: {name}");
    }
}

/// The table of passes in `docs/cli.md` is written by this test, which fails if it was another one.
#[test]
fn the_table_of_passes_is_fresh() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cli.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let head = "| pass | what it does | options |\n|---|---|---|\n";
    let (before, after) = text.split_once(head).expect("the table is there");
    let end = after.split_inclusive('\n').take_while(|line| line.starts_with('|')).map(str::len).sum();
    let row = |pass: &PassDef| {
        let options =
            pass.options().into_iter().map(|option| format!("`{}`: {}", option.name, values(&option)));
        format!("| `{}` | {} | {} |\n", pass.name, pass.about, options.collect::<Vec<_>>().join("; "))
    };
    let rows: String = PASSES.iter().map(row).collect();
    let fresh = format!("{before}{head}{rows}{}", &after[end..]);
    if fresh != text {
        std::fs::write(&path, fresh).unwrap();
        panic!("docs/cli.md was stale and is written again");
    }
}

fn values(option: &OptionDef) -> String {
    match option.default {
        None => option.values.to_owned(),
        Some(default) => format!("{} ({})", option.values, if default.is_empty() { "none" } else { default }),
    }
}

/// `docs/guards.md` has a row and a section for every guard, and says which group it is in.
#[test]
fn guards_in_documents_are_those_of_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guards.md");
    let text = std::fs::read_to_string(path).unwrap();
    for guard in GUARDS {
        let name = guard.name;
        assert!(text.contains(&format!("\n| [`{name}`](#{name}) |")), "`{name}` has no row");
        assert!(text.contains(&format!("\n## {name}\n")), "`{name}` has no section");
    }
    for judges in Judges::ALL {
        assert!(text.contains(&format!("`{}`", judges.group())), "{judges:?}");
    }
}

/// The Python that has the packages of tests/requirements.txt; says that a test is skipped if there is none.
fn python() -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "tests are told which Python has their packages")]
    let python = std::env::var("AMPC_PYTHON").ok();
    if python.is_none() {
        let _ =
            writeln!(std::io::stderr(), "skipped: AMPC_PYTHON does not name a Python that has ONNX Runtime");
    }
    python
}

/// The example of [`docs/training.md`](../docs/training.md), in another runtime.
#[test]
fn the_example_trains_in_onnx_runtime() {
    let Some(python) = python() else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(python)
        .arg(root.join("examples/train_onnxruntime.py"))
        .arg(root.join("testdata/mlp.onnx"))
        .arg(folder.path())
        .env("AMPC_BIN", env!("CARGO_BIN_EXE_ampc"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    let loss =
        |line: &str| line.split_once("loss ").unwrap().1.split_once(',').unwrap().0.parse::<f64>().unwrap();
    let losses: Vec<f64> = printed.lines().map(loss).collect();
    // The teacher is linear, so that the model can learn it: a third of the loss is left with room to spare.
    assert!(losses.len() == 7 && 3.0 * losses[6] < losses[0], "{printed}");
    assert!(folder.path().join("state.safetensors").exists());
}

/// The example that trains a small GPT, in a few steps: the loss falls in all three precisions.
#[test]
fn the_example_trains_a_small_gpt_in_three_precisions() {
    let Some(python) = python() else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(python)
        .arg(root.join("examples/nanogpt.py"))
        .args(["--steps", "5", "--ampc", env!("CARGO_BIN_EXE_ampc")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Vec<&str>> =
        printed.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    let precisions: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(precisions, ["fp32", "fp16", "bf16"], "{printed}");
    for row in &rows {
        // The first loss is that of a guess; the held-out one, after five steps, is 15 % less.
        let (first, held_out) = (row[1].parse::<f64>().unwrap(), row[3].parse::<f64>().unwrap());
        assert!(held_out < 0.9 * first, "{printed}");
    }
}

/// The tables about fp16 count every fifth step that is not skipped, and the first ones are: with fewer than ten steps
/// there is nothing to count.
#[test]
fn tables_about_fp16_refuse_fewer_than_ten_steps() {
    let Some(python) = python() else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for script in ["examples/fp16_variants.py", "tests/judge/master_weights.py"] {
        let output = Command::new(&python)
            .arg(root.join(script))
            .args(["--steps", "9", "--ampc", env!("CARGO_BIN_EXE_ampc")])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{script}: {said}");
        assert!(said.contains("--steps has to be 10 or more"), "{script}: {said}");
    }
}
