//! Where a model is written to: a file that appears complete or not at all, or standard output.
//!
//! A file is written under a temporary name in the target's folder, synchronised, and renamed. A failure on the way
//! (a full disk, a source that was truncated) leaves nothing behind. What the model was read from is never written
//! to, by whatever path it is reached.

use super::bytes::{FileId, SourceBytes};
use super::layout::{Layout, StreamError};
use crate::temporary::{self, Rename, RenameError, Temporary};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// Files from this size on are synchronised while they are written.
const WORTH_SYNCING: u64 = 16 << 20;
/// How long written data may wait for it.
const SYNC_EVERY: Duration = Duration::from_millis(20);

/// Why a file could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The target exists.
    #[error("`{path}` exists; choose another name or allow it to be replaced (`--force`)")]
    Exists {
        /// The target.
        path: String,
    },
    /// The target is what the model was read from.
    #[error("`{path}` is the file `{read}` that the model is read from; choose another name")]
    IsSource {
        /// The target.
        path: String,
        /// The source.
        read: String,
    },
    /// The target is a folder.
    #[error("`{path}` is a folder; expected the name of a file")]
    IsFolder {
        /// The target.
        path: String,
    },
    /// The target's folder is not there, or no folder.
    #[error("cannot write `{path}`: the folder `{folder}` does not exist")]
    NoFolder {
        /// The target.
        path: String,
        /// Its folder.
        folder: String,
    },
    /// Nothing may be written to the target's folder.
    #[error("cannot write `{path}`: the folder `{folder}` is not writable")]
    NotWritable {
        /// The target.
        path: String,
        /// Its folder.
        folder: String,
    },
    /// No room.
    #[error("no space left to write {bytes} bytes to `{path}`; nothing was written")]
    Full {
        /// The target.
        path: String,
        /// Bytes to be written.
        bytes: u64,
    },
    /// The file cannot be made or written.
    #[error("cannot write `{path}`: {source}")]
    Write {
        /// The target.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// What is to be copied cannot be read.
    #[error("cannot read {what} while writing `{path}`: {source}")]
    Read {
        /// The target.
        path: String,
        /// What was read.
        what: String,
        /// The cause.
        source: io::Error,
    },
}

/// A file written under a temporary name, not yet in place.
#[derive(Debug)]
pub(crate) struct Staged {
    file: Temporary,
    path: PathBuf,
    force: bool,
}

/// What a path that is to be written leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A regular file, there or not.
    File,
    /// A pipe or device: written to directly.
    Stream,
}

/// Checks that `path` may be written; done before any work.
///
/// # Errors
/// If it exists and `force` is not set, is one of `sources`, or is a folder; or if its folder is not there or not
/// writable.
pub(crate) fn check(path: &Path, force: bool, sources: &[Arc<SourceBytes>]) -> Result<(), TargetError> {
    if kind(path, force, sources)? == Kind::File {
        drop(temporary(path)?);
    }
    Ok(())
}

fn kind(path: &Path, force: bool, sources: &[Arc<SourceBytes>]) -> Result<Kind, TargetError> {
    let shown = || path.display().to_string();
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Kind::File),
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => return Err(no_folder(path)),
        Err(source) => return Err(TargetError::Write { path: shown(), source }),
    };
    if metadata.is_dir() {
        return Err(TargetError::IsFolder { path: shown() });
    }
    if !metadata.is_file() {
        return Ok(Kind::Stream);
    }
    let id = FileId::of(&metadata);
    let is_source = |s: &&Arc<SourceBytes>| (id.is_some() && s.file_id() == id) || s.path() == Some(path);
    if let Some(source) = sources.iter().find(is_source) {
        let read = source.path().map_or_else(shown, |p| p.display().to_string());
        return Err(TargetError::IsSource { path: shown(), read });
    }
    if force { Ok(Kind::File) } else { Err(TargetError::Exists { path: shown() }) }
}

/// Writes a layout under a temporary name beside `path`; `None` if `path` is a pipe or device, which has then been
/// written. `known` are the files the layout copies from.
pub(crate) fn stage(
    layout: &Layout,
    path: &Path,
    force: bool,
    known: &[Arc<SourceBytes>],
) -> Result<Option<Staged>, TargetError> {
    let fail = |source| failed(path, layout.len(), StreamError::Write(source));
    if kind(path, force, known)? == Kind::Stream {
        let mut out = OpenOptions::new().write(true).open(path).map_err(fail)?;
        layout.stream(&mut out).map_err(|e| failed(path, layout.len(), e))?;
        return Ok(None);
    }
    let mut file = temporary(path)?;
    let streamed = match layout.len() {
        len if len < WORTH_SYNCING => layout.stream_to_file(file.file(), known),
        _ => stream_and_sync(layout, file.file(), known),
    };
    streamed.map_err(|e| failed(path, layout.len(), e))?;
    file.file().sync_all().map_err(fail)?;
    Ok(Some(Staged { file, path: path.to_owned(), force }))
}

/// [`stage`] of what `write` writes to a file, about so many bytes. What goes to a pipe or device is written to a file without a name
/// before.
pub(crate) fn stage_with(
    path: &Path,
    bytes: u64,
    force: bool,
    known: &[Arc<SourceBytes>],
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<Option<Staged>, TargetError> {
    let fail = |source| failed(path, bytes, StreamError::Write(source));
    if kind(path, force, known)? == Kind::Stream {
        let mut file = tempfile::tempfile().map_err(fail)?;
        write(&mut file).map_err(fail)?;
        file.rewind().map_err(fail)?;
        let mut out = OpenOptions::new().write(true).open(path).map_err(fail)?;
        io::copy(&mut file, &mut out).map_err(fail)?;
        return Ok(None);
    }
    let mut file = temporary(path)?;
    write(file.file()).map_err(fail)?;
    file.file().sync_all().map_err(fail)?;
    Ok(Some(Staged { file, path: path.to_owned(), force }))
}

/// Streams while a second thread has the system write what is there to the disk, so that less is left to wait for
/// in the end. The bytes are those of [`Layout::stream_to_file`].
fn stream_and_sync(layout: &Layout, out: &mut File, known: &[Arc<SourceBytes>]) -> Result<(), StreamError> {
    // Without a second handle there is no second thread.
    let Ok(handle) = out.try_clone() else { return layout.stream_to_file(out, known) };
    std::thread::scope(|scope| {
        let (done, waiting) = mpsc::channel::<()>();
        let syncing = std::thread::Builder::new().name("sync".into()).spawn_scoped(scope, move || {
            while waiting.recv_timeout(SYNC_EVERY) == Err(RecvTimeoutError::Timeout) {
                // The system tells an error of writing once: whoever hears it passes it on.
                handle.sync_data()?;
            }
            Ok(())
        });
        let streamed = layout.stream_to_file(out, known);
        drop(done);
        let synced = syncing.map(|thread| thread.join().unwrap_or(Ok(()))).unwrap_or(Ok(()));
        streamed.and(synced.map_err(StreamError::Write))
    })
}

/// Writes a layout to a stream such as standard output, called `name` in messages.
pub(crate) fn send(layout: &Layout, out: &mut impl Write, name: &str) -> Result<(), TargetError> {
    layout.stream(out).map_err(|e| failed(Path::new(name), layout.len(), e))?;
    out.flush().map_err(|e| failed(Path::new(name), layout.len(), StreamError::Write(e)))
}

/// Gives files that belong together their names: all of them, or none that was not there before.
pub(crate) fn commit(staged: impl IntoIterator<Item = Staged>) -> Result<(), TargetError> {
    let renames: Vec<Rename> =
        staged.into_iter().map(|Staged { file, path, force }| Rename { file, to: path, force }).collect();
    let folders: BTreeSet<PathBuf> = renames.iter().map(|r| folder_of(&r.to).to_owned()).collect();
    temporary::rename_all(renames).map_err(|RenameError { to, source, replaced }| {
        let path = to.display().to_string();
        if let [first, ..] = &replaced[..] {
            let source = io::Error::other(format!("{source}; `{}` was replaced", first.display()));
            return TargetError::Write { path, source };
        }
        match source.kind() {
            io::ErrorKind::AlreadyExists => TargetError::Exists { path },
            _ => TargetError::Write { path, source },
        }
    })?;
    // The names themselves are safe only once the folder is; not every file system can synchronise one.
    for folder in folders {
        if let Ok(folder) = File::open(folder) {
            folder.sync_all().ok();
        }
    }
    Ok(())
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn no_folder(path: &Path) -> TargetError {
    TargetError::NoFolder { path: path.display().to_string(), folder: folder_of(path).display().to_string() }
}

/// A temporary file in the folder of `path`. Its name is nobody's concern, so errors do not show it.
fn temporary(path: &Path) -> Result<Temporary, TargetError> {
    let folder = folder_of(path);
    Temporary::new_in(folder).map_err(|e| match e.kind() {
        _ if !folder.is_dir() => no_folder(path),
        // Some file systems without new files answer so.
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::NotFound => {
            let (path, folder) = (path.display().to_string(), folder.display().to_string());
            TargetError::NotWritable { path, folder }
        }
        kind => failed(path, 0, StreamError::Write(kind.into())),
    })
}

fn failed(path: &Path, bytes: u64, error: StreamError) -> TargetError {
    let path = path.display().to_string();
    match error {
        StreamError::Write(e) if e.kind() == io::ErrorKind::StorageFull => TargetError::Full { path, bytes },
        StreamError::Write(source) => TargetError::Write { path, source },
        StreamError::Read { what, source } => TargetError::Read { path, what, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(bytes: &[u8]) -> Layout {
        let mut layout = Layout::new();
        layout.bytes(bytes);
        layout
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
        let staged = stage(&layout(b"one"), &path, false, &[]).unwrap().unwrap();
        assert!(!path.exists());
        commit([staged]).unwrap();
        assert!(matches!(stage(&layout(b"two"), &path, false, &[]), Err(TargetError::Exists { .. })));
        commit(stage(&layout(b"two"), &path, true, &[]).unwrap()).unwrap();
        assert_eq!(
            (fs::read(&path).unwrap(), names(folder.path())),
            (b"two".to_vec(), vec!["m.onnx".to_owned()])
        );
    }

    #[test]
    fn a_file_that_appears_meanwhile_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.onnx");
        let staged = stage(&layout(b"mine"), &path, false, &[]).unwrap().unwrap();
        fs::write(&path, b"theirs").unwrap();
        assert!(matches!(commit([staged]), Err(TargetError::Exists { .. })));
        assert_eq!((fs::read(&path).unwrap(), names(folder.path()).len()), (b"theirs".to_vec(), 1));
    }

    #[test]
    fn files_that_belong_together_come_together() {
        let folder = tempfile::tempdir().unwrap();
        let (path, data) = (folder.path().join("m.onnx"), folder.path().join("m.onnx.data"));
        let both = |force| {
            [(&data, b"data!"), (&path, b"model")]
                .map(|(p, b)| stage(&layout(b), p, force, &[]).unwrap().unwrap())
        };
        let staged = both(false);
        fs::write(&path, b"theirs").unwrap();
        assert!(matches!(commit(staged), Err(TargetError::Exists { .. })));
        assert_eq!(names(folder.path()), ["m.onnx"], "the data file alone is of no use");
        commit(both(true)).unwrap();
        assert_eq!(
            (fs::read(&path).unwrap(), fs::read(&data).unwrap()),
            (b"model".to_vec(), b"data!".to_vec())
        );
        let staged = both(true);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let error = commit(staged).unwrap_err().to_string();
        assert!(error.contains("m.onnx.data` was replaced"), "{error}");
        assert_eq!(names(folder.path()), ["m.onnx", "m.onnx.data"]);
    }

    #[cfg(unix)]
    #[test]
    fn the_source_is_refused_under_every_name() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("m.onnx"), folder.path().join("link.onnx"));
        fs::write(&path, b"model").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        fs::hard_link(&path, folder.path().join("hard.onnx")).unwrap();
        let source = [Arc::new(SourceBytes::open(&path).unwrap())];
        for name in ["m.onnx", "link.onnx", "hard.onnx", "./m.onnx"] {
            let refused = check(&folder.path().join(name), true, &source);
            assert!(matches!(refused, Err(TargetError::IsSource { .. })), "{name}");
        }
        assert!(matches!(check(folder.path(), true, &source), Err(TargetError::IsFolder { .. })));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_named_and_devices_are_written_not_replaced() {
        let full = stage(&layout(b"x"), Path::new("/dev/full"), true, &[]);
        assert!(matches!(full, Err(TargetError::Full { bytes: 1, .. })), "{full:?}");
        assert!(stage(&layout(b"x"), Path::new("/dev/null"), false, &[]).unwrap().is_none());
    }

    #[test]
    fn a_large_file_is_synchronised_on_the_way_and_has_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        let bytes: Vec<u8> = (0..WORTH_SYNCING / 4).flat_map(|i| (i * 2_654_435_761).to_le_bytes()).collect();
        assert!(bytes.len() as u64 > WORTH_SYNCING);
        commit(stage(&layout(&bytes), &path, false, &[]).unwrap()).unwrap();
        assert!(fs::read(&path).unwrap() == bytes);
    }

    /// A pipe takes every byte and cannot be synchronised; its reader is slow enough that it is tried.
    #[cfg(unix)]
    #[test]
    fn an_error_of_synchronising_on_the_way_is_told() {
        let (mut reader, writer) = io::pipe().unwrap();
        let drain = std::thread::spawn(move || {
            std::thread::sleep(10 * SYNC_EVERY);
            io::copy(&mut reader, &mut io::sink())
        });
        let mut pipe = File::from(std::os::fd::OwnedFd::from(writer));
        let written = stream_and_sync(&layout(&[7; 1 << 20]), &mut pipe, &[]);
        drop(pipe);
        assert_eq!(drain.join().unwrap().unwrap(), 1 << 20);
        assert!(matches!(written, Err(StreamError::Write(_))), "{written:?}");
    }

    #[test]
    fn a_failure_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let source_path = folder.path().join("source");
        fs::write(&source_path, vec![1; 200_000]).unwrap();
        let known = Arc::new(SourceBytes::open(&source_path).unwrap());
        fs::write(&source_path, b"short").unwrap();
        let mut layout = Layout::new();
        let source: Arc<dyn ampc_ir::tensor::ByteSource> = known.clone();
        layout.range(&source, super::super::wire::Span { offset: 0, len: 200_000 });
        let error = stage(&layout, &folder.path().join("m.onnx"), false, &[known]).unwrap_err();
        assert!(error.to_string().contains("has become shorter"), "{error}");
        assert_eq!(names(folder.path()), ["source"]);
    }
}
