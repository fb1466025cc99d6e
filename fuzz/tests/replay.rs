//! Every target on its seeds and on the inputs that once found something.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ampc_fuzz::{CASTS, TARGETS, seeds};
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

#[test]
fn the_other_objective_breaks_no_law() {
    for (name, target) in TARGETS.iter().filter(|(name, _)| ["rewrite", "pipeline"].contains(name)) {
        let found = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions").join(name);
        let found =
            std::fs::read_dir(found).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
        for mut input in seeds(name, None).unwrap().into_iter().chain(found) {
            if let Some(options) = input.first_mut() {
                *options ^= CASTS;
                target(&input);
            }
        }
    }
}
