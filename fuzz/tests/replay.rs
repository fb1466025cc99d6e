//! Every target on its seeds and on the inputs that once found something.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ampc_fuzz::{TARGETS, seeds};
use std::path::{Path, PathBuf};

#[test]
fn seeds_break_no_law() {
    for (name, target) in TARGETS {
        let seeds = seeds(name, None).unwrap();
        assert!(seeds.len() > 10, "{name} has {} seeds", seeds.len());
        for seed in &seeds {
            target(seed);
        }
    }
}

/// Writes the seeds where scripts/fuzz wants them.
#[test]
fn seeds_for_the_fuzzer() {
    let Some(folder) = std::env::var_os("AMPC_FUZZ_SEEDS").map(PathBuf::from) else {
        println!("skipped: AMPC_FUZZ_SEEDS says where the seeds go");
        return;
    };
    let corpus = std::env::var_os("AMPC_CORPUS").map(PathBuf::from);
    for (name, _) in TARGETS {
        std::fs::create_dir_all(folder.join(name)).unwrap();
        for (i, seed) in seeds(name, corpus.as_deref()).unwrap().iter().enumerate() {
            std::fs::write(folder.join(name).join(format!("{i:05}")), seed).unwrap();
        }
    }
}

#[test]
fn what_was_found_stays_repaired() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions");
    for (name, target) in TARGETS {
        let Ok(entries) = std::fs::read_dir(folder.join(name)) else { continue };
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        for path in paths {
            println!("{}", path.display());
            target(&std::fs::read(path).unwrap());
        }
    }
}
