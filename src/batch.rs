//! Files that belong together: all of them appear, each complete, or none.
//!
//! Everything is written under temporary names first, then what was read is looked at again, then pipes and devices get
//! theirs, then the files get their names: last the one that names the others, when they are on the disk. A machine
//! that stops in between leaves that one as it was. What the replaced one named and nobody needs any more goes after
//! that.

use crate::error::Error;
use crate::onnx::bytes::{FileId, SourceBytes};
use crate::onnx::layout::{Digest, Layout};
use crate::onnx::target::{self, Prepared, Staged, Stream, TargetError, folder_of};
use crate::onnx::{ExportError, data_files_of};
use crate::temporary::Renaming;
use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files that are ready to take their names. Dropping it removes them.
#[derive(Debug, Default)]
pub struct Batch {
    files: Vec<Staged>,
    /// The file that the others belong to.
    model: Option<ModelFile>,
    streams: Vec<Stream>,
    read: Vec<Arc<SourceBytes>>,
}

/// A model, and the data files that it refers to by a hash of their bytes.
#[derive(Debug)]
struct ModelFile {
    file: Staged,
    data_files: Vec<PathBuf>,
}

impl Batch {
    /// Nothing.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Adds a file of these bytes. Those in `read`, which [`Model::files`] knows, are never replaced.
    ///
    /// # Errors
    /// If the file exists and `force` is not set, is one of `read` or of those added, or cannot be written.
    ///
    /// [`Model::files`]: crate::Model::files
    pub fn add(
        &mut self,
        path: &Path,
        bytes: &[u8],
        force: bool,
        read: &[Arc<SourceBytes>],
    ) -> Result<(), Error> {
        let mut layout = Layout::new();
        layout.bytes(bytes);
        Ok(self.stage(layout, path, force, read).map_err(ExportError::from)?)
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
        let prepared = target::stage(layout, path, force, read)?;
        self.keep(prepared)
    }

    /// Adds a file of about so many bytes that `write` writes.
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
        let (path, staged) = target::stage_data(layout, model, digest, force, read)?;
        staged.map_or(Ok(()), |staged| self.keep(Prepared::File(staged)))?;
        Ok(path)
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
        match target::stage(layout, path, force, read)? {
            Prepared::File(file) => {
                self.is_new(&file)?;
                self.model = Some(ModelFile { file, data_files });
                Ok(())
            }
            stream @ Prepared::Stream(_) => self.keep(stream),
        }
    }

    /// Adds something for standard output, which copies from `read`.
    pub(crate) fn stdout(&mut self, layout: Layout, read: &[Arc<SourceBytes>]) {
        self.reads(read);
        self.streams.push(Stream::stdout(layout));
    }

    /// Adds to what the results are made of.
    pub fn reads(&mut self, read: &[Arc<SourceBytes>]) {
        for file in read {
            if !self.read.iter().any(|known| Arc::ptr_eq(known, file)) {
                self.read.push(file.clone());
            }
        }
    }

    fn keep(&mut self, prepared: Prepared) -> Result<(), TargetError> {
        match prepared {
            Prepared::File(file) => {
                self.is_new(&file)?;
                self.files.push(file);
            }
            Prepared::Stream(stream) => self.streams.push(stream),
        }
        Ok(())
    }

    fn is_new(&self, file: &Staged) -> Result<(), TargetError> {
        let place =
            |path: &Path| Some((fs::canonicalize(folder_of(path)).ok()?, path.file_name()?.to_owned()));
        let wanted = place(&file.to);
        let mut others = self.files.iter().chain(self.model.as_ref().map(|model| &model.file));
        match wanted.is_some() && others.any(|other| place(&other.to) == wanted) {
            true => Err(TargetError::Twice { path: file.path.display().to_string() }),
            false => Ok(()),
        }
    }

    /// Checks that what the results are made of is what it was when it was read.
    ///
    /// # Errors
    /// If something happened to it.
    pub fn check(&self) -> Result<(), Error> {
        Ok(unchanged(&self.read, "no file was written").map_err(ExportError::from)?)
    }

    /// Sends what pipes and devices get, and gives the files their names.
    ///
    /// # Errors
    /// If something that was read has changed since then, a pipe or device takes no more, or a name cannot be given.
    /// No file is there then that was not before.
    pub fn commit(self) -> Result<(), Error> {
        Ok(self.commit_all().map_err(ExportError::from)?)
    }

    pub(crate) fn commit_all(self) -> Result<(), TargetError> {
        let Batch { files, model, streams, read } = self;
        unchanged(&read, "no file was written")?;
        let any_stream = !streams.is_empty();
        streams.into_iter().try_for_each(Stream::send)?;
        if any_stream {
            unchanged(&read, "what was sent is not to be used, and no file was written")?;
        }
        let Some(model) = model else { return rename_all(files) };
        let unneeded = unneeded(&model, &read);
        let (to, id) = (model.file.to.clone(), model.file.id());
        rename_all(files.into_iter().chain([model.file]).collect())?;
        // Another run may have replaced the model by one that needs them.
        if id.is_some() && fs::metadata(&to).ok().and_then(|m| FileId::of(&m)) == id {
            for path in unneeded {
                fs::remove_file(path).ok();
            }
        }
        Ok(())
    }
}

/// Checks that nothing has happened to what was read; `left` is what there is of the output if it has.
fn unchanged(read: &[Arc<SourceBytes>], left: &'static str) -> Result<(), TargetError> {
    for file in read {
        if let (Some(what), Some(path)) = (file.change(), file.path()) {
            return Err(TargetError::Changed { read: path.display().to_string(), what, left });
        }
    }
    Ok(())
}

/// The data files that only the model which is about to be replaced refers to, of those named after it: none that was
/// read, or that the new one refers to.
fn unneeded(model: &ModelFile, read: &[Arc<SourceBytes>]) -> Vec<PathBuf> {
    let identity = |path: &Path| fs::metadata(path).ok().and_then(|m| FileId::of(&m));
    let mut kept: Vec<Option<FileId>> = read.iter().map(|file| file.file_id()).collect();
    kept.extend(model.data_files.iter().map(|path| identity(path)));
    // The new data file has its name only later.
    let is_new = |path: &PathBuf| model.data_files.iter().any(|new| new.file_name() == path.file_name());
    let mut old = data_files_of(&model.file.to);
    old.retain(|path| !is_new(path) && identity(path).is_some_and(|id| !kept.contains(&Some(id))));
    old
}

/// Gives files their names, the last one when the others are on the disk; no signal comes in between. If a name cannot
/// be given, those that are there already are removed again, unless they replaced something.
fn rename_all(files: Vec<Staged>) -> Result<(), TargetError> {
    let mut files = VecDeque::from(files);
    // Dropped before the files that are left, which would wait for it.
    let mut renaming = Renaming::start();
    let (mut added, mut replaced, mut folders) = (Vec::new(), Vec::new(), BTreeSet::new());
    while let Some(Staged { file, path, to, force }) = files.pop_front() {
        if files.is_empty() {
            synchronise(&folders);
        }
        folders.insert(folder_of(&to).to_owned());
        match renaming.rename(file, &to, force) {
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
mod tests {
    use super::*;
    use ampc_ir::tensor::ByteSource;

    fn layout(bytes: &[u8]) -> Layout {
        let mut layout = Layout::new();
        layout.bytes(bytes);
        layout
    }

    fn staged(bytes: &[u8], path: &Path, force: bool) -> Result<Batch, TargetError> {
        let mut batch = Batch::new();
        batch.stage(layout(bytes), path, force, &[])?;
        Ok(batch)
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_complete_and_is_replaced_only_when_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.onnx");
        let batch = staged(b"one", &path, false).unwrap();
        assert!(!path.exists());
        batch.commit_all().unwrap();
        assert!(matches!(staged(b"two", &path, false), Err(TargetError::Exists { .. })));
        staged(b"two", &path, true).unwrap().commit_all().unwrap();
        assert_eq!(
            (fs::read(&path).unwrap(), names(folder.path())),
            (b"two".to_vec(), vec!["m.onnx".to_owned()])
        );
    }

    #[test]
    fn a_file_that_appears_meanwhile_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.onnx");
        let batch = staged(b"mine", &path, false).unwrap();
        fs::write(&path, b"theirs").unwrap();
        assert!(matches!(batch.commit_all(), Err(TargetError::Exists { .. })));
        assert_eq!((fs::read(&path).unwrap(), names(folder.path()).len()), (b"theirs".to_vec(), 1));
    }

    #[test]
    fn files_that_belong_together_come_together() {
        let folder = tempfile::tempdir().unwrap();
        let (path, data) = (folder.path().join("m.onnx"), folder.path().join("m.onnx.data"));
        let both = |force| {
            let mut batch = staged(b"data!", &data, force).unwrap();
            batch.stage_model(layout(b"model"), &path, force, vec![data.clone()], &[]).unwrap();
            batch
        };
        let batch = both(false);
        fs::write(&path, b"theirs").unwrap();
        assert!(matches!(batch.commit_all(), Err(TargetError::Exists { .. })));
        assert_eq!(names(folder.path()), ["m.onnx"], "the data file alone is of no use");
        both(true).commit_all().unwrap();
        assert_eq!(
            (fs::read(&path).unwrap(), fs::read(&data).unwrap()),
            (b"model".to_vec(), b"data!".to_vec())
        );
        let batch = both(true);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let error = batch.commit_all().unwrap_err().to_string();
        assert!(error.contains("m.onnx.data` was replaced"), "{error}");
        assert_eq!(names(folder.path()), ["m.onnx", "m.onnx.data"]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn devices_are_written_when_all_files_are_complete_and_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let mut batch = staged(b"x", Path::new("/dev/full"), true).unwrap();
        batch.stage(layout(b"y"), &folder.path().join("y"), false, &[]).unwrap();
        let full = batch.commit_all();
        assert!(matches!(full, Err(TargetError::Stream { .. })), "{full:?}");
        assert_eq!(names(folder.path()), [""; 0]);
        staged(b"x", Path::new("/dev/null"), false).unwrap().commit_all().unwrap();
    }

    #[test]
    fn two_files_of_a_batch_are_not_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let mut batch = staged(b"x", &path, true).unwrap();
        let twice = batch.stage(layout(b"y"), &folder.path().join("./x"), true, &[]);
        assert!(matches!(twice, Err(TargetError::Twice { .. })), "{twice:?}");
    }

    /// Between reading and writing, whatever the command.
    #[test]
    fn a_source_that_changes_meanwhile_is_told_and_nothing_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        for force in [false, true] {
            fs::write(&from, b"one").unwrap();
            let read = [Arc::new(SourceBytes::open(&from).unwrap())];
            let mut batch = Batch::new();
            batch.add(&to, b"made of it", force, &read).unwrap();
            fs::write(&from, b"other").unwrap();
            let error = batch.commit().unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Io);
            assert!(error.to_string().contains("was written to while it was read"), "{error}");
            assert_eq!(names(folder.path()), ["from"]);
        }
    }

    #[cfg(unix)]
    #[test]
    fn what_links_lead_to_is_written_and_links_stay() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("sub")).unwrap();
        fs::write(at("sub/real"), b"old").unwrap();
        symlink("sub/real", at("link")).unwrap();
        symlink(at("link"), at("links")).unwrap();
        symlink("sub/new", at("dangling")).unwrap();
        symlink("round", at("round")).unwrap();
        assert!(matches!(staged(b"x", &at("links"), false), Err(TargetError::Exists { .. })));
        staged(b"new", &at("links"), true).unwrap().commit_all().unwrap();
        staged(b"made", &at("dangling"), false).unwrap().commit_all().unwrap();
        assert_eq!(fs::read(at("sub/real")).unwrap(), b"new");
        assert_eq!(fs::read(at("sub/new")).unwrap(), b"made");
        for link in ["link", "links", "dangling"] {
            assert!(fs::symlink_metadata(at(link)).unwrap().is_symlink(), "{link}");
        }
        let error = staged(b"x", &at("round"), true).unwrap_err().to_string();
        assert!(error.contains("symbolic links"), "{error}");
        assert_eq!(names(&at("sub")), ["new", "real"]);
        let source = [Arc::new(SourceBytes::open(&at("sub/real")).unwrap())];
        let refused = Batch::new().add(&at("links"), b"x", true, &source);
        assert!(refused.unwrap_err().to_string().contains("that the model is read from"));
    }

    #[test]
    fn a_large_file_is_synchronised_on_the_way_and_has_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        let bytes: Vec<u8> =
            (0..target::WORTH_SYNCING / 4).flat_map(|i| (i * 2_654_435_761).to_le_bytes()).collect();
        assert!(bytes.len() as u64 > target::WORTH_SYNCING);
        staged(&bytes, &path, false).unwrap().commit_all().unwrap();
        assert!(fs::read(&path).unwrap() == bytes);
    }

    #[test]
    fn a_failure_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let source_path = folder.path().join("source");
        fs::write(&source_path, vec![1; 200_000]).unwrap();
        let known = Arc::new(SourceBytes::open(&source_path).unwrap());
        fs::write(&source_path, b"short").unwrap();
        let mut layout = Layout::new();
        let source: Arc<dyn ByteSource> = known.clone();
        layout.range(&source, crate::onnx::wire::Span { offset: 0, len: 200_000 });
        let mut batch = Batch::new();
        let error = batch.stage(layout, &folder.path().join("m.onnx"), false, &[known]).unwrap_err();
        drop(batch);
        assert!(error.to_string().contains("has become shorter"), "{error}");
        assert_eq!(names(folder.path()), ["source"]);
    }
}
