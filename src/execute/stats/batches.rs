//! The batches that paths name.

use super::super::inputs::{io_error, regular};
use super::super::training::{is_array_file, is_set, natural, refuse_mixture};
use crate::error::Error;
use std::path::{Path, PathBuf};

/// The batches that a path names, in order: an `.npz` or `.safetensors` file is a batch, as is a folder of test data
/// (`input_0.pb` …). Any other folder has batches of one kind: `.npz` and `.safetensors` files, or folders of test data,
/// by name, with numbers in names compared as numbers.
///
/// # Errors
/// If the path cannot be read, or a folder has no batch, or batches of both kinds.
pub fn batches(path: &Path) -> Result<Vec<PathBuf>, Error> {
    if path == Path::new("-") || !regular(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path).map_err(|error| io_error(path, error))?;
    let entries: Result<Vec<PathBuf>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let entries = entries.map_err(|error| io_error(path, error))?;
    let (mut files, mut sets): (Vec<PathBuf>, Vec<PathBuf>) = (Vec::new(), Vec::new());
    for entry in entries {
        if is_array_file(&entry) {
            // A dangling link, a pipe or a folder with such a name is no batch.
            if !regular(&entry)?.is_file() {
                let reason = "expected a file of arrays by its name, found a folder".to_owned();
                return Err(Error::Data { path: entry, reason });
            }
            files.push(entry);
        } else if is_set(&entry) {
            sets.push(entry);
        }
    }
    files.sort_by_cached_key(|path| natural(path));
    sets.sort_by_cached_key(|path| natural(path));
    refuse_mixture(path, sets.first(), files.first())?;
    if is_set(path) {
        return Ok(vec![path.to_owned()]);
    }
    let found = if sets.is_empty() { files } else { sets };
    if found.is_empty() {
        let message =
            "expected .npz or .safetensors files, or folders of input_0.pb, input_1.pb …, found none";
        return Err(Error::Usage(format!("`{}`: {message}", path.display())));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_have_batches() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let none = batches(folder.path()).unwrap_err().to_string();
        assert!(none.contains("found none"), "{none}");
        let set = |name: &str| {
            std::fs::create_dir(path(name)).unwrap();
            std::fs::write(path(name).join("input_0.pb"), "").unwrap();
        };
        set("test_data_set_10");
        set("test_data_set_2");
        std::fs::create_dir(path("empty")).unwrap();
        let sets = ["test_data_set_2", "test_data_set_10"];
        assert_eq!(batches(folder.path()).unwrap(), sets.map(path));
        assert_eq!(batches(&path(sets[0])).unwrap(), [path(sets[0])]);
        std::fs::write(path("b2.npz"), "").unwrap();
        let mixed = batches(folder.path()).unwrap_err().to_string();
        assert!(mixed.contains("expected samples of one kind"), "{mixed}");
        sets.iter().for_each(|set| std::fs::remove_dir_all(path(set)).unwrap());
        for name in ["b10.npz", "b2.npz", "a.SAFETENSORS", "notes.txt"] {
            std::fs::write(path(name), "").unwrap();
        }
        assert_eq!(batches(folder.path()).unwrap(), ["a.SAFETENSORS", "b2.npz", "b10.npz"].map(path));
        assert_eq!(batches(&path("b2.npz")).unwrap(), [path("b2.npz")]);
        assert!(batches(&path("missing")).is_err());
    }
}
