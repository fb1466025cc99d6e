//! Reading and writing over the corpora: the identity for untouched models, clear errors for invalid ones.
//!
//! The corpora are in the folder that the environment variable `AMPC_CORPUS` names; without it these tests say that
//! they were skipped.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails and tells by panicking and printing"
)]

#[path = "common/corpus.rs"]
mod corpus;

use ampc::onnx::{Blame, ImportError, ReadOptions, Warning, read, read_bytes, to_bytes};
use ampc_ir::eq::same_module;
use corpus::models;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

fn corpus(folder: &str) -> Option<PathBuf> {
    #[expect(clippy::disallowed_methods, reason = "tests are told where the corpora are")]
    let root = std::env::var("AMPC_CORPUS").ok().map(PathBuf::from);
    let path = root.map(|r| r.join(folder)).filter(|p| p.is_dir());
    if path.is_none() {
        let _ = writeln!(std::io::stderr(), "skipped: no folder `{folder}` in AMPC_CORPUS");
    }
    path
}

/// True if reading repaired the model, so that what is written differs.
fn repaired(warnings: &[Warning]) -> bool {
    warnings.iter().any(|w| matches!(w, Warning::Unsorted { .. } | Warning::MissingOpset { .. }))
}

#[test]
fn an_untouched_model_is_the_identity() {
    let mut counts = [0; 3];
    for folder in ["small", "train", "tricky", "ort"] {
        let Some(folder) = corpus(folder) else { return };
        for path in models(&folder) {
            let (module, source, warnings) = match read(&path, &ReadOptions::default()) {
                Ok(read) => read,
                Err(error) => {
                    assert!(folder.ends_with("ort"), "{error}");
                    counts[0] += 1;
                    continue;
                }
            };
            let (bytes, report) = to_bytes(&module, Some(&source)).unwrap();
            if repaired(&warnings) {
                counts[1] += 1;
                let again = read_bytes("repaired", bytes, &ReadOptions::default());
                let (again, _, warnings) = again.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                assert!(!repaired(&warnings), "{}: {warnings:?}", path.display());
                same_module(&module, &again).unwrap_or_else(|d| panic!("{}: {d}", path.display()));
            } else {
                counts[2] += 1;
                assert!(report.identical && bytes == fs::read(&path).unwrap(), "{}", path.display());
            }
        }
    }
    println!("{} refused, {} repaired, {} identical", counts[0], counts[1], counts[2]);
}

#[test]
fn a_module_survives_without_its_file() {
    for folder in ["small", "train", "tricky", "ort"] {
        let Some(folder) = corpus(folder) else { return };
        for path in models(&folder) {
            let Ok((module, _, _)) = read(&path, &ReadOptions::default()) else { continue };
            if module.graph_ids().any(|g| module.text(module.graph(g).name).is_empty()) {
                // A graph must have a name, so it gets one.
                continue;
            }
            let (bytes, _) = to_bytes(&module, None).unwrap();
            let (again, _, _) = read_bytes("fresh", bytes, &ReadOptions::default()).unwrap();
            same_module(&module, &again).unwrap_or_else(|d| panic!("{}: {d}", path.display()));
        }
    }
}

/// Damaged files give errors, never a panic; what is still readable can be written and read again.
#[test]
fn damage_never_panics() {
    let Some(folder) = corpus("tricky") else { return };
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % n as u64).unwrap()
    };
    let mut readable = 0;
    for path in models(&folder) {
        let original = fs::read(&path).unwrap();
        if original.len() > 20_000 {
            continue;
        }
        for _ in 0..60 {
            let mut bytes = original.clone();
            for _ in 0..=random(4) {
                let at = random(bytes.len());
                match random(4) {
                    0 => bytes.truncate(at + 1),
                    1 => bytes[at] = u8::try_from(random(256)).unwrap(),
                    2 => bytes[at] ^= 1 << random(8),
                    _ => bytes.insert(at, u8::try_from(random(256)).unwrap()),
                }
            }
            let Ok((module, source, warnings)) =
                read_bytes("damaged", bytes.clone(), &ReadOptions::default())
            else {
                continue;
            };
            readable += 1;
            let (kept, _) = to_bytes(&module, Some(&source)).unwrap();
            assert!(repaired(&warnings) || kept == bytes, "{}", path.display());
            let (fresh, _) = to_bytes(&module, None).unwrap();
            read_bytes("fresh", fresh, &ReadOptions::default()).unwrap();
        }
    }
    assert!(readable > 100, "{readable}");
}

#[test]
fn invalid_models_are_refused_with_their_place() {
    let Some(folder) = corpus("invalid") else { return };
    let mut refused = 0;
    for path in models(&folder) {
        match read(&path, &ReadOptions::default()) {
            Ok((module, source, _)) => {
                to_bytes(&module, Some(&source)).unwrap();
            }
            Err(error) => {
                refused += 1;
                assert_eq!(error.blame(), Blame::Input, "{error}");
                assert!(error.to_string().len() > path.display().to_string().len() + 20, "{error}");
            }
        }
    }
    assert!(refused > 35, "{refused}");
}

#[test]
fn nesting_meets_a_limit_quickly() {
    let Some(folder) = corpus("invalid") else { return };
    assert!(read(&folder.join("deep_if_30.onnx"), &ReadOptions::default()).is_ok());
    let error = read(&folder.join("deep_if_20000.onnx"), &ReadOptions::default()).unwrap_err();
    assert!(matches!(error, ImportError::Invalid { .. }) && error.to_string().contains("256"), "{error}");
}
