//! Targets of writing: a file that appears complete or not at all, or a pipe or device.
//!
//! A file is written under a temporary name in the target's folder and synchronised; a
//! [`Batch`](crate::files::Batch) of them then gets its names. A failure (a full disk, a truncated source)
//! leaves no files. A file that the model was read from is never written to, under any path. A target that is a
//! symbolic link stays a link: the file that it leads to is written.

use super::layout::{Layout, StreamError};
use crate::bytes::{FileId, SourceBytes};
use crate::digest::Hash;
use crate::temporary::Temporary;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// Files from this size on are synchronised while they are written.
pub(crate) const WORTH_SYNCING: u64 = 16 << 20;
/// The time that written data may wait for it.
const SYNC_EVERY: Duration = Duration::from_millis(20);
/// Symbolic links that are followed, as by the system.
const MAX_LINKS: u32 = 40;

/// Error of writing a file.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The target exists.
    #[error("`{path}` exists; choose another name or allow it to be replaced (`--force`)")]
    Exists {
        /// The target.
        path: String,
    },
    /// The target exists and is not the data file of the text or JSON that is replaced.
    #[error(
        "`{path}` exists, and no `{text}` that ampc wrote refers to it, so `--force` does not replace it; move it away \
         or choose another name"
    )]
    NotItsData {
        /// The target.
        path: String,
        /// The text or JSON beside it.
        text: String,
    },
    /// The model was read from the target.
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
    #[error("no space left to write {bytes} bytes to `{path}`; no output was written")]
    Full {
        /// The target.
        path: String,
        /// Bytes to be written.
        bytes: u64,
    },
    /// Files may not be so large.
    #[error(
        "cannot write {bytes} bytes to `{path}`: the limit for the size of a file is less; no output was written"
    )]
    TooLarge {
        /// The target.
        path: String,
        /// Bytes to be written.
        bytes: u64,
    },
    /// A pipe or device takes no more.
    #[error("cannot write to `{path}`: {source}; its content is incomplete, and no file was written")]
    Stream {
        /// The target.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// A file that was read has changed since.
    #[error("`{read}` {what} while it was read, so the result may be wrong; {left}")]
    Changed {
        /// The source.
        read: String,
        /// The change.
        what: &'static str,
        /// The state of the output.
        left: &'static str,
    },
    /// Two results are to have one name.
    #[error("two files would be written to `{path}`; choose another name for one")]
    Twice {
        /// The target.
        path: String,
    },
    /// The file cannot be made or written.
    #[error("cannot write `{path}`: {source}")]
    Write {
        /// The target.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// A range that is to be copied cannot be read.
    #[error("cannot read {what} while writing `{path}`: {source}")]
    Read {
        /// The target.
        path: String,
        /// Description of the range.
        what: String,
        /// The cause.
        source: io::Error,
    },
}

/// A file written under a temporary name, not yet in place.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) file: Temporary,
    /// The target as requested.
    pub(crate) path: PathBuf,
    /// The file that the path leads to.
    pub(crate) to: PathBuf,
    /// True if a file of that name is replaced.
    pub(crate) force: bool,
    /// True if a file of that name with the same bytes was there.
    pub(crate) same: bool,
}

impl Staged {
    /// The [`digest`](crate::files::digest) of its bytes.
    pub(crate) fn digest(&mut self) -> Result<String, TargetError> {
        let file = self.file.file();
        let mut hash = Hash::default();
        let read = file.seek(io::SeekFrom::Start(0)).and_then(|_| io::copy(file, &mut hash));
        let what = || format!("`{}` again", self.path.display());
        read.map_err(|source| TargetError::Read {
            path: self.path.display().to_string(),
            what: what(),
            source,
        })?;
        Ok(hash.digits())
    }
}

/// Something for a pipe or device, not yet sent.
#[derive(Debug)]
pub(crate) struct Stream {
    path: PathBuf,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Layout(Layout),
    #[cfg(feature = "run")]
    File(File),
}

/// Something that is ready to be written.
#[derive(Debug)]
pub(crate) enum Prepared {
    File(Staged),
    Stream(Stream),
}

/// Kind of file that an output path leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A regular file, there or not.
    File,
    /// A pipe or device: written to directly.
    Stream,
}

/// Checks that `path` may be written; done before any work.
///
/// # Errors
/// If it exists and `force` is not set, is in `sources`, or is a folder; or if its folder does not exist or is
/// not writable.
pub(crate) fn check(path: &Path, force: bool, sources: &[Arc<SourceBytes>]) -> Result<(), TargetError> {
    if kind(path, force, sources)? == Kind::File {
        drop(temporary(path, &behind_links(path), None)?);
    }
    Ok(())
}

/// True if a path leads to a pipe or device.
pub(crate) fn is_stream(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir())
}

/// The file that a path leads to through symbolic links, whether it is there or not; the path itself if it is not a link.
pub(crate) fn behind_links(path: &Path) -> PathBuf {
    let mut behind = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(to) = fs::read_link(&behind) else { break };
        behind = folder_of(&behind).join(to);
    }
    behind
}

pub(super) fn kind(path: &Path, force: bool, sources: &[Arc<SourceBytes>]) -> Result<Kind, TargetError> {
    let shown = || path.display().to_string();
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Kind::File),
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => return Err(no_folder(path, path)),
        Err(source) => return Err(TargetError::Write { path: shown(), source }),
    };
    if metadata.is_dir() {
        return Err(TargetError::IsFolder { path: shown() });
    }
    if !metadata.is_file() {
        return Ok(Kind::Stream);
    }
    let id = FileId::of(&metadata);
    // As texts: there may be many, and paths are slow to compare.
    let is_at = |s: &Arc<SourceBytes>| s.path().map(Path::as_os_str) == Some(path.as_os_str());
    let is_source = |s: &&Arc<SourceBytes>| (id.is_some() && s.file_id() == id) || is_at(s);
    if let Some(source) = sources.iter().find(is_source) {
        let read = source.path().map_or_else(shown, |p| p.display().to_string());
        return Err(TargetError::IsSource { path: shown(), read });
    }
    if force { Ok(Kind::File) } else { Err(TargetError::Exists { path: shown() }) }
}

/// Writes a layout under a temporary name beside the file that `path` leads to, or keeps it if that is a pipe
/// or device. An existing file keeps its permissions; a new file gets the permissions of `owner`, the file that
/// it belongs to. `known` are the files the layout copies from.
pub(crate) fn stage(
    layout: Layout,
    path: &Path,
    owner: Option<&Path>,
    force: bool,
    known: &[Arc<SourceBytes>],
) -> Result<Prepared, TargetError> {
    if kind(path, force, known)? == Kind::Stream {
        return Ok(Prepared::Stream(Stream { path: path.to_owned(), content: Content::Layout(layout) }));
    }
    let to = behind_links(path);
    let mut file = temporary(path, &to, owner)?;
    fill(file.file(), layout.len(), |out| layout.stream_to_file(out, known))
        .map_err(|e| failed(path, layout.len(), e))?;
    Ok(Prepared::File(Staged { file, path: path.to_owned(), to, force, same: false }))
}

/// [`stage`] of the output of `write` to a file, about so many bytes. Output for a pipe or device is first
/// written to a file without a name.
#[cfg(feature = "run")]
pub(crate) fn stage_with(
    path: &Path,
    bytes: u64,
    force: bool,
    known: &[Arc<SourceBytes>],
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<Prepared, TargetError> {
    let fail = |source| failed(path, bytes, StreamError::Write(source));
    if kind(path, force, known)? == Kind::Stream {
        let mut file = tempfile::tempfile().map_err(fail)?;
        write(&mut file).map_err(fail)?;
        file.rewind().map_err(fail)?;
        return Ok(Prepared::Stream(Stream { path: path.to_owned(), content: Content::File(file) }));
    }
    let to = behind_links(path);
    let mut file = temporary(path, &to, None)?;
    write(file.file()).and_then(|()| file.file().sync_all()).map_err(fail)?;
    Ok(Prepared::File(Staged { file, path: path.to_owned(), to, force, same: false }))
}

/// Writes a file of so many bytes until it is on the disk.
pub(super) fn fill(
    out: &mut File,
    len: u64,
    write: impl FnOnce(&mut File) -> Result<(), StreamError>,
) -> Result<(), StreamError> {
    if len < WORTH_SYNCING {
        write(out)?
    } else {
        write_and_sync(out, write)?
    }
    out.sync_all().map_err(StreamError::Write)
}

/// Writes while a second thread has the system flush written data to the disk, so that the final sync is short.
fn write_and_sync(
    out: &mut File,
    write: impl FnOnce(&mut File) -> Result<(), StreamError>,
) -> Result<(), StreamError> {
    // Without a second handle there is no second thread.
    let Ok(handle) = out.try_clone() else { return write(out) };
    std::thread::scope(|scope| {
        let (done, waiting) = mpsc::channel::<()>();
        let syncing = std::thread::Builder::new().name("sync".into()).spawn_scoped(scope, move || {
            while waiting.recv_timeout(SYNC_EVERY) == Err(RecvTimeoutError::Timeout) {
                // The system tells an error of writing once: whoever hears it passes it on.
                handle.sync_data()?;
            }
            Ok(())
        });
        let streamed = write(out);
        drop(done);
        let synced = syncing.map(|thread| thread.join().unwrap_or(Ok(()))).unwrap_or(Ok(()));
        streamed.and(synced.map_err(StreamError::Write))
    })
}

/// Writes a layout to a stream such as standard output, called `name` in messages.
pub(crate) fn send(layout: &Layout, out: &mut impl Write, name: &str) -> Result<(), TargetError> {
    let sent = layout.stream(out).and_then(|()| out.flush().map_err(StreamError::Write));
    sent.map_err(|e| incomplete(Path::new(name), e))
}

impl Stream {
    /// Something for standard output.
    pub(crate) fn stdout(layout: Layout) -> Stream {
        Stream { path: PathBuf::from("-"), content: Content::Layout(layout) }
    }

    /// The [`digest`](crate::files::digest) of its bytes; `None` if they can be read once only.
    pub(crate) fn digest(&self) -> Result<Option<String>, TargetError> {
        match &self.content {
            Content::Layout(layout) => {
                let mut hash = Hash::default();
                layout.stream(&mut hash).map_err(|e| incomplete(&self.path, e))?;
                Ok(Some(hash.digits()))
            }
            #[cfg(feature = "run")]
            Content::File(_) => Ok(None),
        }
    }

    /// Sends it.
    pub(crate) fn send(self) -> Result<(), TargetError> {
        if let (Content::Layout(layout), true) = (&self.content, self.path == Path::new("-")) {
            return send(layout, &mut io::stdout().lock(), "standard output");
        }
        let fail = |e| incomplete(&self.path, e);
        let out = OpenOptions::new().write(true).open(&self.path);
        let mut out = out.map_err(|e| fail(StreamError::Write(e)))?;
        match self.content {
            Content::Layout(layout) => layout.stream(&mut out).map_err(fail),
            #[cfg(feature = "run")]
            Content::File(mut file) => match io::copy(&mut file, &mut out) {
                Ok(_) => Ok(()),
                Err(e) => Err(fail(StreamError::Write(e))),
            },
        }
    }
}

/// Metadata of a regular file; `None` for any other file.
pub(crate) fn regular(path: &Path) -> Option<Metadata> {
    fs::metadata(path).ok().filter(Metadata::is_file)
}

pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn no_folder(path: &Path, to: &Path) -> TargetError {
    TargetError::NoFolder { path: path.display().to_string(), folder: folder_of(to).display().to_string() }
}

/// A temporary file in the folder of `to`, which `path` leads to, with the permissions of the file there; or of
/// `owner` if there is no file.
pub(super) fn temporary(path: &Path, to: &Path, owner: Option<&Path>) -> Result<Temporary, TargetError> {
    let folder = folder_of(to);
    let like = [Some(to), owner].into_iter().flatten().find_map(regular);
    Temporary::new_in(folder, like.as_ref()).map_err(|e| match e.kind() {
        _ if !folder.is_dir() => no_folder(path, to),
        // Some file systems without new files answer so.
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::NotFound => {
            let (path, folder) = (path.display().to_string(), folder.display().to_string());
            TargetError::NotWritable { path, folder }
        }
        _ => failed(path, 0, StreamError::Write(e)),
    })
}

pub(super) fn failed(path: &Path, bytes: u64, error: StreamError) -> TargetError {
    let path = path.display().to_string();
    match error {
        StreamError::Write(source) => match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => TargetError::Full { path, bytes },
            io::ErrorKind::FileTooLarge => TargetError::TooLarge { path, bytes },
            _ => TargetError::Write { path, source },
        },
        StreamError::Read { what, source } => TargetError::Read { path, what, source },
    }
}

/// The error for a failed write to a pipe or device.
fn incomplete(path: &Path, error: StreamError) -> TargetError {
    let path = path.display().to_string();
    match error {
        StreamError::Write(source) => TargetError::Stream { path, source },
        StreamError::Read { what, source } => TargetError::Read { path, what, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut layout = Layout::new();
        layout.bytes(&[7; 1 << 20]);
        let written = write_and_sync(&mut pipe, |out| layout.stream_to_file(out, &[]));
        drop(pipe);
        assert_eq!(drain.join().unwrap().unwrap(), 1 << 20);
        assert!(matches!(written, Err(StreamError::Write(_))), "{written:?}");
    }
}
