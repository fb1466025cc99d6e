//! Files that belong together: either all of them appear, each complete, or no file appears.
//!
//! In this order: every file is written under a temporary name; input files are checked for changes; pipes and
//! devices are written; the files get their names. The model, which refers to the other files, gets its name
//! last, when they are on the disk, so that a machine that stops in between leaves the old model with its data.
//! The data file of the replaced model is removed at the end, unless another model of the folder refers to it.

use super::data_file;
use super::import::{ReadOptions, read};
use super::layout::{Digest, Layout};
use super::references::{SparedFile, spared};
use super::target::{self, Prepared, Staged, Stream, TargetError, folder_of};
use crate::bytes::{FileId, SourceBytes};
use crate::temporary::Renaming;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Files that are ready to take their names. Dropping it removes them.
#[derive(Debug, Default)]
pub struct Batch {
    files: Vec<Staged>,
    /// The data file of an ONNX model.
    data: Option<Staged>,
    /// The file that the others belong to.
    model: Option<ModelFile>,
    streams: Vec<Stream>,
    /// The place in `streams` of a model that goes to a pipe or device.
    model_stream: Option<usize>,
    /// Files that are removed before the files of the batch get their names.
    withdrawn: Vec<PathBuf>,
    read: Vec<Arc<SourceBytes>>,
    /// The addresses of the sources in `read`.
    known: FxHashSet<usize>,
    /// The targets of the files of the batch: folder and name.
    places: FxHashSet<(PathBuf, OsString)>,
    /// The requested folders, and their paths with links resolved.
    folders: FxHashMap<PathBuf, Option<PathBuf>>,
}

/// A model, and the data files that it refers to by a hash of their bytes.
#[derive(Debug)]
struct ModelFile {
    file: Staged,
    data_files: Vec<PathBuf>,
}

impl Batch {
    /// A batch without files.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Adds a file of this layout, which copies from `read`.
    pub(crate) fn stage(
        &mut self,
        layout: Layout,
        path: &Path,
        force: bool,
        read: &[Arc<SourceBytes>],
    ) -> Result<(), TargetError> {
        self.reads(read);
        let prepared = target::stage(layout, path, None, force, read)?;
        self.keep(prepared)
    }

    /// [`stage`](Self::stage) of a file that belongs to the one at `owner`, and has its permissions if it is new.
    pub(crate) fn stage_beside(
        &mut self,
        layout: Layout,
        path: &Path,
        owner: &Path,
        force: bool,
        read: &[Arc<SourceBytes>],
    ) -> Result<(), TargetError> {
        self.reads(read);
        let prepared = target::stage(layout, path, Some(owner), force, read)?;
        self.keep(prepared)
    }

    /// Adds a file of about so many bytes that `write` writes.
    #[cfg(feature = "run")]
    pub(crate) fn stage_with(
        &mut self,
        path: &Path,
        bytes: u64,
        force: bool,
        read: &[Arc<SourceBytes>],
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<(), TargetError> {
        self.reads(read);
        let prepared = target::stage_with(path, bytes, force, read, write)?;
        self.keep(prepared)
    }

    /// Adds the data file of the model at `model`, whose name `digest` then completes, and returns its path.
    pub(crate) fn stage_data(
        &mut self,
        layout: &Layout,
        model: &Path,
        digest: &Digest,
        force: bool,
        read: &[Arc<SourceBytes>],
    ) -> Result<PathBuf, TargetError> {
        self.reads(read);
        let staged = data_file::stage(layout, model, digest, force, read)?;
        self.refuse_twice(&staged)?;
        Ok(self.data.insert(staged).to.clone())
    }

    /// Adds a model, whatever its form, that refers to `data_files` by a hash of their bytes.
    pub(crate) fn stage_model(
        &mut self,
        layout: Layout,
        path: &Path,
        force: bool,
        data_files: Vec<PathBuf>,
        read: &[Arc<SourceBytes>],
    ) -> Result<(), TargetError> {
        self.reads(read);
        match target::stage(layout, path, None, force, read)? {
            Prepared::File(file) => {
                self.refuse_twice(&file)?;
                self.model = Some(ModelFile { file, data_files });
                Ok(())
            }
            stream @ Prepared::Stream(_) => {
                self.model_stream = Some(self.streams.len());
                self.keep(stream)
            }
        }
    }

    /// Adds a model for standard output, which copies from `read`.
    pub(crate) fn stdout(&mut self, layout: Layout, read: &[Arc<SourceBytes>]) {
        self.reads(read);
        self.model_stream = Some(self.streams.len());
        self.streams.push(Stream::stdout(layout));
    }

    /// Marks a file that the batch replaces: marked files are removed in order before any file of a batch without a model
    /// gets its name. A kill in between leaves fewer files, and never new files beside old ones.
    pub fn withdraw(&mut self, path: &Path) {
        if target::regular(path).is_some() {
            self.withdrawn.push(target::behind_links(path));
        }
    }

    /// Adds files that the results are made of: [`commit`](Self::commit) fails if any of them has changed.
    pub fn reads(&mut self, read: &[Arc<SourceBytes>]) {
        for file in read {
            if self.known.insert(Arc::as_ptr(file).addr()) {
                self.read.push(file.clone());
            }
        }
    }

    fn keep(&mut self, prepared: Prepared) -> Result<(), TargetError> {
        match prepared {
            Prepared::File(file) => {
                self.refuse_twice(&file)?;
                self.files.push(file);
            }
            Prepared::Stream(stream) => self.streams.push(stream),
        }
        Ok(())
    }

    /// An error if a file of the batch is to have the same name.
    fn refuse_twice(&mut self, file: &Staged) -> Result<(), TargetError> {
        let folder = folder_of(&file.to);
        let known = self.folders.entry(folder.to_owned()).or_insert_with(|| fs::canonicalize(folder).ok());
        let (Some(folder), Some(name)) = (known.clone(), file.to.file_name()) else { return Ok(()) };
        match self.places.insert((folder, name.to_owned())) {
            true => Ok(()),
            false => Err(TargetError::Twice { path: file.path.display().to_string() }),
        }
    }

    /// The digest of the model that was added; `None` without a model.
    pub(crate) fn digest(&mut self) -> Result<Option<String>, TargetError> {
        match (&mut self.model, self.model_stream) {
            (Some(model), _) => model.file.digest().map(Some),
            (None, Some(at)) => self.streams[at].digest(),
            (None, None) => Ok(None),
        }
    }

    /// Checks that the files that the results are made of are as they were when they were read.
    pub(crate) fn check_all(&self) -> Result<(), TargetError> {
        unchanged(&self.read, "no file was written")
    }

    /// Writes the output to pipes and devices, and gives the files their names.
    pub(crate) fn commit_all(self) -> Result<Vec<SparedFile>, TargetError> {
        let Batch { files, data, model, streams, read, withdrawn, .. } = self;
        let mut left = "no file was written";
        if !streams.is_empty() {
            unchanged(&read, left)?;
            streams.into_iter().try_for_each(Stream::send)?;
            left = "discard the output so far; no file was written";
        }
        // Runs that replace files of one folder take turns: none removes the data file that another one's model names.
        let _turn = model.as_ref().map(|model| turn(folder_of(&model.file.to)));
        unchanged(&read, left)?;
        match model {
            Some(model) => model.replace(data, files, &read),
            None => rename_all(files, &withdrawn).map(|()| Vec::new()),
        }
    }
}

impl ModelFile {
    /// Gives a model its name, after its data file and other files of the model; then removes the data files of
    /// the replaced model, and returns data files that other models still use.
    fn replace(
        self,
        data: Option<Staged>,
        files: Vec<Staged>,
        read: &[Arc<SourceBytes>],
    ) -> Result<Vec<SparedFile>, TargetError> {
        let ModelFile { file, data_files } = self;
        // A data file of this name that the source refers to has the same bytes already, and is never replaced.
        let data = data.filter(|data| !is_one_of(&data.to, read));
        let unneeded = unneeded(&file.to, &data_files, read);
        rename_all(data.into_iter().chain(files).chain([file]).collect(), &[])?;
        let mut kept = Vec::new();
        for path in unneeded {
            match spared(&path) {
                Some(file) => kept.push(file),
                None => drop(fs::remove_file(path)),
            }
        }
        Ok(kept)
    }
}

/// The time that a run waits for other runs that give files of a folder their names, which takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// A lock on a folder, for which runs that give files in it their names wait. `None` if folders cannot be
/// locked, or another run holds the lock for longer than [`PATIENCE`]: then the run does not wait.
fn turn(folder: &Path) -> Option<File> {
    let folder = File::open(folder).ok()?;
    let started = Instant::now();
    loop {
        match folder.try_lock() {
            Ok(()) => return Some(folder),
            Err(TryLockError::WouldBlock) if started.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(_) => return None,
        }
    }
}

fn identity(path: &Path) -> Option<FileId> {
    fs::metadata(path).ok().and_then(|m| FileId::of(&m))
}

fn is_one_of(path: &Path, read: &[Arc<SourceBytes>]) -> bool {
    identity(path).is_some_and(|id| read.iter().any(|file| file.file_id() == Some(id)))
}

/// Checks that the input files are unchanged; `left` describes the state of the output for the error.
fn unchanged(read: &[Arc<SourceBytes>], left: &'static str) -> Result<(), TargetError> {
    for file in read {
        if let (Some(what), Some(path)) = (file.change(), file.path()) {
            return Err(TargetError::Changed { read: path.display().to_string(), what, left });
        }
    }
    Ok(())
}

/// The data files that the model at `model`, which is about to be replaced, refers to, of those named after it: none
/// that was read, or that the new one refers to.
fn unneeded(model: &Path, new: &[PathBuf], read: &[Arc<SourceBytes>]) -> Vec<PathBuf> {
    let mut old = data_files_of(model);
    let is_new = |path: &Path| {
        // The new data file may have its name only later.
        new.iter().any(|new| new.file_name() == path.file_name() || identity(new) == identity(path))
    };
    old.retain(|path| !is_one_of(path, read) && !is_new(path));
    old
}

/// The data files that are named after the model at `path` and that it refers to; none if it is not a model.
fn data_files_of(path: &Path) -> Vec<PathBuf> {
    let (folder, name) = (target::folder_of(path), path.file_name().and_then(OsStr::to_str));
    let Some(name) = name.filter(|_| path.is_file()) else { return Vec::new() };
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    // Most models have none, and are not read for it.
    let named = |entry: fs::DirEntry| entry.file_name().into_string().ok();
    let mut files: Vec<String> =
        entries.flatten().filter_map(named).filter(|file| data_file::is_data_of(name, file)).collect();
    if files.is_empty() {
        return Vec::new();
    }
    let Ok((_, source, _)) = read(path, &ReadOptions::default()) else { return Vec::new() };
    let opened: FxHashSet<&str> =
        source.external.opened().iter().map(|opened| opened.location.as_str()).collect();
    files.retain(|file| opened.contains(file.as_str()));
    files.sort();
    files.into_iter().map(|file| path.with_file_name(file)).collect()
}

/// Removes the files that are withdrawn, and gives files their names, the last file once all others are on the disk;
/// signals are held back meanwhile. If a name cannot be given, the files that already have their names are removed
/// again, unless they replaced a file.
fn rename_all(files: Vec<Staged>, withdrawn: &[PathBuf]) -> Result<(), TargetError> {
    let mut files = VecDeque::from(files);
    // Declared after `files`, so dropped before them: dropping a temporary file takes the lock that this holds.
    let mut renaming = Renaming::start();
    let (mut added, mut replaced, mut folders) = (Vec::new(), Vec::new(), BTreeSet::new());
    for path in withdrawn {
        match fs::remove_file(path) {
            Ok(()) => replaced.push(path.clone()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(not_renamed(path, e, &replaced)),
        }
        // On the disk as well, no later file is there before an earlier one has gone.
        synchronise(&BTreeSet::from([folder_of(path).to_owned()]));
    }
    while let Some(Staged { file, path, to, force, same }) = files.pop_front() {
        if files.is_empty() {
            synchronise(&folders);
        }
        folders.insert(folder_of(&to).to_owned());
        match renaming.rename(file, &to, force) {
            Ok(true) if same => {}
            Ok(true) => replaced.push(path),
            Ok(false) => added.push(to),
            Err(source) => {
                for path in added {
                    fs::remove_file(path).ok();
                }
                return Err(not_renamed(&path, source, &replaced));
            }
        }
    }
    synchronise(&folders);
    Ok(())
}

fn not_renamed(path: &Path, source: io::Error, replaced: &[PathBuf]) -> TargetError {
    let path = path.display().to_string();
    if let [first, ..] = replaced {
        let source = io::Error::other(format!("{source}; `{}` was replaced", first.display()));
        return TargetError::Write { path, source };
    }
    match source.kind() {
        io::ErrorKind::AlreadyExists => TargetError::Exists { path },
        _ => TargetError::Write { path, source },
    }
}

/// Names are safe only once their folders are; not every file system can synchronise one.
fn synchronise(folders: &BTreeSet<PathBuf>) {
    for folder in folders {
        if let Ok(folder) = File::open(folder) {
            folder.sync_all().ok();
        }
    }
}

#[cfg(test)]
mod tests;
