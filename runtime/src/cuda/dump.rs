//! Dump of kernel sources for debugging: the source of each launched kernel, and an index of the launches.
//!
//! A source is `<family>-<entry>-<hash>.cu`. `index.tsv` has a line for each combination of node or group, kernel and
//! launch shape: the file, the entry, the nodes, the blocks of the grid, the threads of a block, and the number of
//! launches per run of the node.

use super::names::Label;
use crate::backend::DeviceError;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use xxhash_rust::xxh3::xxh3_64;

/// The file of the index.
const INDEX: &str = "index.tsv";

/// A folder for the sources of launched kernels.
pub(super) struct Dump {
    folder: PathBuf,
    state: Mutex<State>,
    entered: AtomicU64,
}

#[derive(Default)]
struct State {
    texts: BTreeSet<String>,
    rows: BTreeMap<Row, Launches>,
    /// True if the index has unwritten changes.
    is_dirty: bool,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    file: String,
    entry: String,
    label: Arc<Label>,
    grid: u32,
    block: u32,
}

/// The launches of the current run of a node, and the maximum over its runs.
#[derive(Default)]
struct Launches {
    entered: u64,
    count: usize,
    most: usize,
}

fn failed(path: &Path, error: &std::io::Error) -> DeviceError {
    DeviceError::Failed(format!("cannot write `{}`: {error}", path.display()))
}

impl Dump {
    /// Creates the folder and its dump.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub(super) fn new(folder: &Path) -> Result<Dump, String> {
        let dump = Dump { folder: folder.to_owned(), state: Mutex::default(), entered: AtomicU64::new(0) };
        let index = folder.join(INDEX);
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&index, head()))
            .map_err(|error| format!("cannot write `{}`: {error}", index.display()))?;
        Ok(dump)
    }

    /// A new number for a run of a node.
    pub(super) fn next(&self) -> u64 {
        self.entered.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Writes the source of a kernel, whether compiled or found in the cache.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn text(&self, label: &Label, entry: &str, text: &str) -> Result<(), DeviceError> {
        let file = file_of(label, entry, text);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.texts.insert(file.clone()) {
            let path = self.folder.join(file);
            fs::write(&path, text).map_err(|error| failed(&path, &error))?;
        }
        Ok(())
    }

    /// Counts a launch. `entered` differs between runs of a node.
    pub(super) fn launched(
        &self,
        (label, entry, text): (&Arc<Label>, &str, &str),
        entered: u64,
        [grid, block]: [u32; 2],
    ) {
        let row = Row {
            file: file_of(label, entry, text),
            entry: entry.to_owned(),
            label: label.clone(),
            grid,
            block,
        };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let launches = state.rows.entry(row).or_default();
        if launches.entered != entered {
            (launches.entered, launches.count) = (entered, 0);
        }
        launches.count += 1;
        if launches.count > launches.most {
            launches.most = launches.count;
            state.is_dirty = true;
        }
    }

    /// Writes the index if it has unwritten changes.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn flush(&self) -> Result<(), DeviceError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.is_dirty {
            return Ok(());
        }
        let mut text = head();
        for (Row { file, entry, label, grid, block }, launches) in &state.rows {
            let _ = writeln!(text, "{file}\t{entry}\t{}\t{grid}\t{block}\t{}", label.nodes, launches.most);
        }
        let path = self.folder.join(INDEX);
        fs::write(&path, text).map_err(|error| failed(&path, &error))?;
        state.is_dirty = false;
        Ok(())
    }
}

fn head() -> String {
    "file\tkernel\tnodes\tblocks\tthreads\tlaunches\n".to_owned()
}

fn file_of(label: &Label, entry: &str, text: &str) -> String {
    format!("{}-{entry}-{:016x}.cu", label.family, xxh3_64(text.as_bytes()))
}
