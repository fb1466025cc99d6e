//! The models of a corpus.

use std::fs;
use std::path::{Path, PathBuf};

/// The `.onnx` files below a folder, in the order of their paths.
pub(crate) fn models(folder: &Path) -> Vec<PathBuf> {
    files(folder, "onnx")
}

/// The files below a folder with this extension, in the order of their paths.
pub(crate) fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut work = vec![folder.to_owned()];
    let mut found = Vec::new();
    while let Some(next) = work.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                work.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
