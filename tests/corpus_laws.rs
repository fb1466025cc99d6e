//! Laws that hold for every model of the corpora that reads.
//!
//! The corpora are in the folder that the environment variable `AMPC_CORPUS` names; without it every law says how many
//! folders it skipped. Each law has the list of models for which it does not hold, with reasons; a model on a list for
//! which the law holds after all fails the test.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails and tells by panicking and printing"
)]

#[path = "common/corpus.rs"]
mod corpus;

use ampc::onnx::{ReadOptions, Warning, read, read_bytes, to_bytes};
use ampc::{ErrorKind, Model, RewriteOptions, rewrite};
use ampc_ir::eq::same_module;
use ampc_ir::text::{LargeConstant, ParseOptions, PrintOptions, Printed, parse, print};
use ampc_ir::{DType, Module, TensorData};
use ampc_passes::Policy;
use ampc_passes::insert_casts::KeepIo;
use ampc_passes::policy::Pin;
use corpus::models;
use rustc_hash::FxHashMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A model that a law does not hold for: folder and name, and why.
type Exception = (&'static str, &'static str);

const ALL: &[&str] = &["small", "train", "tricky", "ort"];

fn load(path: &Path) -> Option<Model> {
    let (module, source, warnings) = read(path, &ReadOptions::default()).ok()?;
    Some(Model { source: Some(source), warnings, ..Model::from(module) })
}

/// Checks a law on every model that reads and prints for how many it holds. The law says `None` where it does not
/// speak of a model.
fn law(
    name: &str,
    folders: &[&str],
    exceptions: &[Exception],
    holds: impl Fn(&Path, Model) -> Option<Result<(), String>>,
) {
    #[expect(clippy::disallowed_methods, reason = "tests are told where the corpora are")]
    let Some(root) = std::env::var("AMPC_CORPUS").ok().map(PathBuf::from) else {
        let _ = writeln!(
            std::io::stderr(),
            "{name}: skipped all of {}: AMPC_CORPUS is not set",
            folders.join(", ")
        );
        return;
    };
    let (mut hold, mut spoken_of, mut all) = (0, 0, 0);
    let mut failed = Vec::new();
    let mut excused = Vec::new();
    for folder in folders {
        for path in models(&root.join(folder)) {
            all += 1;
            let Some(model) = load(&path) else { continue };
            let Some(outcome) = holds(&path, model) else { continue };
            spoken_of += 1;
            let short = path.strip_prefix(&root).unwrap().display().to_string();
            let excuse = exceptions.iter().find(|(model, _)| *model == short);
            match (outcome, excuse) {
                (Ok(()), None) => hold += 1,
                (Ok(()), Some(_)) => failed.push(format!("{short}: holds; take it off the list")),
                (Err(_), Some(_)) => excused.push(short),
                (Err(why), None) => failed.push(format!("{short}: {why}")),
            }
        }
    }
    println!("{name}: {hold} of {spoken_of} models ({all} files), {} excused", excused.len());
    assert!(all > 0, "no models in {}", root.display());
    assert!(failed.is_empty(), "{name}:\n{}", failed.join("\n"));
}

/// True if reading repaired the model, so that what is written differs.
fn repaired(model: &Model) -> bool {
    model.warnings.iter().any(|w| matches!(w, Warning::Unsorted { .. } | Warning::MissingOpset { .. }))
}

fn printed(module: &Module) -> Printed {
    let printed = print(module, &PrintOptions::default());
    assert!(printed.errors.is_empty(), "{:?}", printed.errors);
    printed
}

/// Reads a text with the large constants that it names.
fn parsed(printed: &Printed) -> Result<Module, String> {
    let large: FxHashMap<&str, &LargeConstant> = printed.large.iter().map(|c| (c.name.as_str(), c)).collect();
    let resolver = |name: &str, _: DType, _: &[u64], _: Option<u128>| -> Option<TensorData> {
        large.get(name).map(|c| c.data.clone())
    };
    parse(&printed.text, &resolver).map_err(|e| e.to_string())
}

fn bytes_of(model: &Model) -> Vec<u8> {
    to_bytes(&model.module, model.source.as_ref()).unwrap().0
}

fn from_bytes(bytes: Vec<u8>) -> Model {
    let (module, source, warnings) = read_bytes("written", bytes, &ReadOptions::default()).unwrap();
    Model { source: Some(source), warnings, ..Model::from(module) }
}

/// The first line that differs: an answer that can be read.
fn difference(a: &Module, b: &Module) -> String {
    let [a, b] =
        [a, b].map(|m| print(m, &PrintOptions { omit_hashes: true, ..PrintOptions::default() }).text);
    let lines = a.lines().zip(b.lines()).enumerate().find(|(_, (a, b))| a != b);
    lines.map_or_else(
        || format!("{} and {} lines of text", a.lines().count(), b.lines().count()),
        |(i, (a, b))| format!("line {}:\n    {a}\n    {b}", i + 1),
    )
}

fn same_bytes(a: &Model, b: &Model) -> Result<(), String> {
    let (a, b) = (bytes_of(a), bytes_of(b));
    if a == b { Ok(()) } else { Err(difference(&from_bytes(a).module, &from_bytes(b).module)) }
}

#[test]
fn an_untouched_model_is_written_as_it_was() {
    law("identity", ALL, &[], |path, model| {
        if repaired(&model) {
            return None;
        }
        let same = bytes_of(&model) == fs::read(path).unwrap();
        Some(if same { Ok(()) } else { Err("other bytes".into()) })
    });
}

#[test]
fn text_is_read_back_as_the_same_module() {
    law("text", ALL, &[], |_, model| {
        let text = printed(&model.module);
        let again = match parsed(&text) {
            Ok(again) => again,
            Err(errors) => return Some(Err(errors)),
        };
        if let Err(difference) = same_module(&model.module, &again) {
            return Some(Err(difference.to_string()));
        }
        let same = printed(&again).text == text.text;
        Some(if same { Ok(()) } else { Err(difference(&model.module, &again)) })
    });
}

/// Reads JSON with the large constants that it names.
fn parsed_json(printed: &ampc::json::Printed) -> Result<Module, String> {
    assert!(printed.errors.is_empty(), "{:?}", printed.errors);
    let large: FxHashMap<&str, &LargeConstant> = printed.large.iter().map(|c| (c.name.as_str(), c)).collect();
    let resolver = |name: &str, _: DType, _: &[u64], _: Option<u128>| -> Option<TensorData> {
        large.get(name).map(|c| c.data.clone())
    };
    ampc::json::parse(&printed.text, &resolver, &ParseOptions::default()).map_err(|e| e.to_string())
}

#[test]
fn json_is_read_back_as_the_same_module() {
    law("json", ALL, &[], |_, model| {
        let json = ampc::json::print(&model.module);
        let again = match parsed_json(&json) {
            Ok(again) => again,
            Err(errors) => return Some(Err(errors)),
        };
        if let Err(difference) = same_module(&model.module, &again) {
            return Some(Err(difference.to_string()));
        }
        let same = ampc::json::print(&again).text == json.text;
        Some(if same { Ok(()) } else { Err("prints otherwise".into()) })
    });
}

#[test]
fn a_model_in_json_is_rewritten_like_one_in_onnx() {
    law("json, rewritten", ALL, &[], |_, model| {
        let json = match parsed_json(&ampc::json::print(&model.module)) {
            Ok(json) => Model::from(json),
            Err(errors) => return Some(Err(errors)),
        };
        let once = rewritten(model, &options(DType::F16));
        let other = rewritten(json, &options(DType::F16));
        Some(match (once, other) {
            (None, None) => return None,
            (Some(Ok(once)), Some(Ok(other))) => {
                // Decisions, casts and pending conversions survive as well.
                parsed_json(&ampc::json::print(&other.model.module)).and_then(|again| {
                    let same = same_module(&once.model.module, &other.model.module);
                    same.and_then(|()| same_module(&once.model.module, &again)).map_err(|d| d.to_string())
                })
            }
            (Some(Err(once)), Some(Err(other))) if once == other => Ok(()),
            (once, other) => {
                Err(format!("{:?} and {:?}", once.map(|r| r.map(drop)), other.map(|r| r.map(drop))))
            }
        })
    });
}

#[test]
fn models_have_no_findings() {
    law("check", ALL, FINDINGS, |_, mut model| {
        let findings = ampc::check(&mut model.module);
        let list = findings.iter().map(|f| format!("\n    {f}")).collect::<String>();
        Some(if findings.is_empty() { Ok(()) } else { Err(list) })
    });
}

/// Models that are invalid, with what is wrong about them.
const FINDINGS: &[Exception] = &[
    // A Reshape to another number of elements, at which ONNX Runtime stops too, and a misspelt attribute.
    (
        "ort/onnxruntime/test/testdata/transform/fusion/attention_distilbert.onnx",
        "a shape with other elements, and an attribute that does not exist",
    ),
    // A Constant of opset 12 with a sparse tensor where its schema has a dense one; the checker refuses it too.
    ("ort/onnxruntime/test/testdata/sparse_initializer_as_output.onnx", "attribute of another kind"),
    // Written for a runtime that ignored opset imports below IR 3: broadcasts as opset 6 did. Nobody else loads it.
    ("ort/winml/test/collateral/models/starry-night-fp16.onnx", "shapes that do not broadcast at opset 7"),
];

#[test]
fn a_module_read_from_text_is_written_afresh() {
    law("fresh", ALL, &[], |_, model| {
        if model.module.graph_ids().any(|g| model.module.text(model.module.graph(g).name).is_empty()) {
            // A graph must have a name in a file, so it gets one.
            return None;
        }
        let module = match parsed(&printed(&model.module)) {
            Ok(module) => module,
            Err(errors) => return Some(Err(errors)),
        };
        let again = from_bytes(to_bytes(&module, None).unwrap().0);
        Some(same_module(&module, &again.module).map_err(|d| d.to_string()))
    });
}

fn options(to: DType) -> RewriteOptions {
    RewriteOptions { to, verify_each: true, ..RewriteOptions::default() }
}

/// The rewritten model; `None` for one that is invalid and says so.
fn rewritten(model: Model, options: &RewriteOptions) -> Option<Result<ampc::Rewritten, String>> {
    match rewrite(model, options) {
        Ok(rewritten) => Some(Ok(rewritten)),
        Err(error) if error.kind() == ErrorKind::InvalidInput => None,
        Err(error) => Some(Err(error.to_string())),
    }
}

#[test]
fn rewriting_again_changes_nothing() {
    for (to, policy, keep_io) in [
        (DType::F16, "safe", KeepIo::All),
        (DType::BF16, "safe", KeepIo::All),
        (DType::F16, "all", KeepIo::All),
        (DType::F16, "safe", KeepIo::None),
    ] {
        let policy = Arc::new(Policy::preset(policy).unwrap());
        let options = RewriteOptions { policy: policy.clone(), keep_io: keep_io.clone(), ..options(to) };
        law(&format!("idempotence, {to}, {}, {keep_io:?}", policy.name), ALL, &[], |_, model| {
            let once = match rewritten(model, &options)? {
                Ok(once) => once.model,
                Err(error) => return Some(Err(error)),
            };
            let twice = rewrite(from_bytes(bytes_of(&once)), &options);
            Some(twice.map_err(|e| e.to_string()).and_then(|twice| same_bytes(&once, &twice.model)))
        });
    }
}

#[test]
fn a_report_is_a_policy_that_repeats_its_decisions() {
    for to in [DType::F16, DType::BF16] {
        law(&format!("replay, {to}"), ALL, &[], |path, model| {
            let once = match rewritten(model, &options(to))? {
                Ok(once) => once,
                Err(error) => return Some(Err(error)),
            };
            let report = serde_json::to_string(&once.report).unwrap();
            let policy = Arc::new(Policy::from_json(&report).unwrap());
            let replay = rewrite(load(path).unwrap(), &RewriteOptions { policy, ..options(to) });
            Some(replay.map_err(|e| e.to_string()).and_then(|replay| same_bytes(&once.model, &replay.model)))
        });
    }
}

#[test]
fn a_model_pinned_to_fp32_is_written_as_it_was() {
    let mut policy = Policy::preset("safe").unwrap();
    policy.pin("*", Pin::To(DType::F32)).unwrap();
    let options = RewriteOptions { policy: Arc::new(policy), ..options(DType::F16) };
    law("pinned", ALL, &[], |path, model| {
        if repaired(&model) {
            return None;
        }
        let rewritten = match rewritten(model, &options)? {
            Ok(rewritten) => rewritten.model,
            Err(error) => return Some(Err(error)),
        };
        let same = bytes_of(&rewritten) == fs::read(path).unwrap();
        Some(if same { Ok(()) } else { Err(difference(&load(path).unwrap().module, &rewritten.module)) })
    });
}
