//! Storage of the bytes of a model and of its external data: a file, or memory for input from a pipe.

use ampc_ir::tensor::ByteSource;
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

/// Input that cannot be sought stays in memory up to this size and goes to an anonymous file beyond it.
const SPOOL_IN_MEMORY: u64 = 64 << 20;

/// The most that is taken from input that cannot be sought, which need not have an end: protobuf has no larger
/// messages.
pub const MAX_PIPE: u64 = (1 << 31) - 1;

/// Bytes that can be read at any offset. Never a memory map.
#[derive(Debug)]
pub struct SourceBytes {
    name: String,
    path: Option<PathBuf>,
    store: Store,
}

#[derive(Debug)]
enum Store {
    Memory(Box<[u8]>),
    File {
        file: File,
        len: u64,
        id: Option<FileId>,
        /// The time of its last change when it was opened.
        modified: Option<SystemTime>,
        /// Held while the file's cursor is in use; positioned reads do not need it.
        cursor: Mutex<()>,
    },
}

/// Identity of a file, independent of the path that leads to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The identity in this metadata, where the platform has one.
    #[cfg(unix)]
    pub fn of(metadata: &Metadata) -> Option<FileId> {
        use std::os::unix::fs::MetadataExt;
        Some(FileId { device: metadata.dev(), inode: metadata.ino() })
    }
    /// The identity in this metadata, where the platform has one.
    #[cfg(not(unix))]
    pub fn of(_: &Metadata) -> Option<FileId> {
        None
    }
}

impl SourceBytes {
    /// Opens a file. A pipe or a device such as `/dev/stdin` is read to its end.
    ///
    /// # Errors
    /// If it cannot be opened, is a folder, or a pipe breaks or has more than [`MAX_PIPE`] bytes.
    pub fn open(path: &Path) -> io::Result<SourceBytes> {
        SourceBytes::open_most(path, MAX_PIPE)
    }

    /// [`SourceBytes::open`] with another limit for pipes.
    pub(crate) fn open_most(path: &Path, most: u64) -> io::Result<SourceBytes> {
        let mut file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        }
        let name = path.display().to_string();
        if !metadata.is_file() {
            return SourceBytes::spool_most(name, &mut file, most);
        }
        Ok(SourceBytes { name, path: Some(path.to_owned()), store: Store::file(file)? })
    }

    /// Bytes in memory.
    pub fn from_memory(name: impl Into<String>, bytes: impl Into<Box<[u8]>>) -> SourceBytes {
        SourceBytes { name: name.into(), path: None, store: Store::Memory(bytes.into()) }
    }

    /// Reads something that cannot be sought to its end.
    ///
    /// # Errors
    /// If reading fails, or writing the temporary file that holds large input; or if there are more than
    /// [`MAX_PIPE`] bytes.
    pub fn spool(name: impl Into<String>, from: &mut impl Read) -> io::Result<SourceBytes> {
        SourceBytes::spool_most(name, from, MAX_PIPE)
    }

    fn spool_most(name: impl Into<String>, from: &mut impl Read, most: u64) -> io::Result<SourceBytes> {
        let mut head = Vec::new();
        from.take(SPOOL_IN_MEMORY.min(most + 1)).read_to_end(&mut head)?;
        if head.len() as u64 > most {
            return Err(too_large(most));
        }
        if (head.len() as u64) < SPOOL_IN_MEMORY {
            return Ok(SourceBytes::from_memory(name, head));
        }
        let mut file = tempfile::tempfile()?;
        file.write_all(&head)?;
        let rest = most - head.len() as u64;
        drop(head);
        if io::copy(&mut from.take(rest + 1), &mut file)? > rest {
            return Err(too_large(most));
        }
        Ok(SourceBytes { name: name.into(), path: None, store: Store::file(file)? })
    }

    /// All bytes, if there are at most this many.
    ///
    /// # Errors
    /// If there are more, or reading fails.
    pub fn to_vec(&self, most: u64) -> io::Result<Vec<u8>> {
        if self.len() > most {
            return Err(too_large(most));
        }
        let mut bytes = zeros(usize::try_from(self.len()).map_err(|_| too_large(most))?)?;
        self.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// The path the file was opened at; `None` for memory and pipes.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The identity of the file, if it is one and the platform has identities.
    pub fn file_id(&self) -> Option<FileId> {
        match &self.store {
            Store::File { id, .. } => *id,
            Store::Memory(_) => None,
        }
    }

    /// The change of the file since it was opened, if any: its bytes may differ from the bytes that were read.
    /// Memory and input from a pipe do not change.
    pub fn change(&self) -> Option<&'static str> {
        let (Store::File { file, len, id, modified, .. }, Some(path)) = (&self.store, &self.path) else {
            return None;
        };
        let Ok(now) = file.metadata() else { return Some("became inaccessible") };
        if now.len() != *len || now.modified().ok() != *modified {
            return Some("was written to");
        }
        match std::fs::metadata(path) {
            Ok(there) if FileId::of(&there) == *id => None,
            Ok(_) => Some("was replaced"),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Some("was removed"),
            Err(_) => Some("became inaccessible"),
        }
    }

    /// True if something was written to the file since it was opened. Replacing or removing the file does not
    /// affect its reader.
    pub fn was_written(&self) -> bool {
        let Store::File { file, len, modified, .. } = &self.store else { return false };
        file.metadata().is_ok_and(|now| now.len() != *len || now.modified().ok() != *modified)
    }

    /// Appends a range to a file, inside the kernel where it can.
    ///
    /// # Errors
    /// If reading or writing fails, or the source has become shorter than it was.
    pub fn copy_to_file(&self, offset: u64, len: u64, out: &mut File) -> io::Result<()> {
        match &self.store {
            Store::Memory(bytes) => out.write_all(slice(bytes, offset, len)?),
            Store::File { file, cursor, .. } => {
                let _guard = cursor.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                let mut file: &File = file;
                file.seek(SeekFrom::Start(offset))?;
                let copied = io::copy(&mut file.take(len), out)?;
                if copied == len { Ok(()) } else { Err(shrunk()) }
            }
        }
    }
}

impl Store {
    fn file(file: File) -> io::Result<Store> {
        let metadata = file.metadata()?;
        let (len, id, modified) = (metadata.len(), FileId::of(&metadata), metadata.modified().ok());
        Ok(Store::File { len, id, modified, file, cursor: Mutex::new(()) })
    }
}

impl ByteSource for SourceBytes {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match &self.store {
            Store::Memory(bytes) => {
                buf.copy_from_slice(slice(bytes, offset, buf.len() as u64)?);
                Ok(())
            }
            Store::File { file, cursor, .. } => read_exact_at(file, cursor, buf, offset)
                .map_err(|e| if e.kind() == io::ErrorKind::UnexpectedEof { shrunk() } else { e }),
        }
    }
    fn len(&self) -> u64 {
        match &self.store {
            Store::Memory(bytes) => bytes.len() as u64,
            Store::File { len, .. } => *len,
        }
    }
    fn describe(&self) -> String {
        self.name.clone()
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, _: &Mutex<()>, buf: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buf, offset)
}

#[cfg(not(unix))]
fn read_exact_at(mut file: &File, cursor: &Mutex<()>, buf: &mut [u8], offset: u64) -> io::Result<()> {
    let _guard = cursor.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(buf)
}

fn slice(bytes: &[u8], offset: u64, len: u64) -> io::Result<&[u8]> {
    let start = usize::try_from(offset).map_err(|_| shrunk())?;
    let len = usize::try_from(len).map_err(|_| shrunk())?;
    start.checked_add(len).and_then(|end| bytes.get(start..end)).ok_or_else(shrunk)
}

/// A buffer of `len` zeros, to read into.
///
/// # Errors
/// If the system has no memory for it.
pub(crate) fn zeros(len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    bytes.resize(len, 0);
    Ok(bytes)
}

fn too_large(most: u64) -> io::Error {
    let message = format!("it has more than {most} bytes, the most that is read of it");
    io::Error::new(io::ErrorKind::FileTooLarge, message)
}

fn shrunk() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the file has become shorter since it was opened")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked() {
        let bytes = SourceBytes::from_memory("m", *b"abcdef");
        let mut buf = [0; 3];
        bytes.read_exact_at(&mut buf, 2).unwrap();
        assert_eq!(&buf, b"cde");
        assert!(bytes.read_exact_at(&mut buf, 4).is_err());
        assert!(bytes.read_exact_at(&mut buf, u64::MAX).is_err());
    }

    #[test]
    fn a_file_that_shrinks_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [7; 100]).unwrap();
        let source = SourceBytes::open(file.path()).unwrap();
        file.as_file().set_len(10).unwrap();
        let mut out = tempfile::tempfile().unwrap();
        assert!(source.read_exact_at(&mut [0; 20], 0).unwrap_err().to_string().contains("shorter"));
        assert!(source.copy_to_file(0, 100, &mut out).unwrap_err().to_string().contains("shorter"));
    }

    #[test]
    fn what_happens_to_an_open_file_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m");
        let opened = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            SourceBytes::open(&path).unwrap()
        };
        let touched = |time: u64| {
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_nanos(time)).unwrap();
        };
        assert_eq!(opened(b"one").change(), None);
        let source = opened(b"one");
        touched(1);
        assert_eq!(source.change(), Some("was written to"), "a nanosecond after 1970");
        let source = opened(b"one");
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"!").unwrap();
        assert_eq!(source.change(), Some("was written to"));
        let source = opened(b"one");
        std::fs::write(folder.path().join("other"), b"one").unwrap();
        std::fs::rename(folder.path().join("other"), &path).unwrap();
        #[cfg(unix)]
        assert_eq!(source.change(), Some("was replaced"));
        let source = opened(b"one");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(source.change(), Some("was removed"));
        assert_eq!(SourceBytes::spool("-", &mut &b"one"[..]).unwrap().change(), None);
    }

    #[test]
    fn a_pipe_is_read_to_its_end() {
        let source = SourceBytes::spool("-", &mut io::repeat(1).take(SPOOL_IN_MEMORY + 5)).unwrap();
        assert_eq!((source.len(), source.path()), (SPOOL_IN_MEMORY + 5, None));
        let mut last = [0; 2];
        source.read_exact_at(&mut last, SPOOL_IN_MEMORY + 3).unwrap();
        assert_eq!(last, [1, 1]);
    }

    #[test]
    fn a_pipe_without_end_is_an_error() {
        for most in [0, 100, SPOOL_IN_MEMORY - 1, SPOOL_IN_MEMORY, SPOOL_IN_MEMORY + 7] {
            let error = SourceBytes::spool_most("-", &mut io::repeat(1), most).unwrap_err().to_string();
            assert_eq!(error, format!("it has more than {most} bytes, the most that is read of it"));
            let whole = SourceBytes::spool_most("-", &mut io::repeat(1).take(most), most).unwrap();
            assert_eq!(whole.len(), most);
            assert!(most == 0 || whole.to_vec(most - 1).is_err());
        }
    }
}
