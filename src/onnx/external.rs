//! External data: tensors whose bytes are in another file of the model's folder.
//!
//! The location comes from the file, so it is not trusted: it must be a relative path that stays below the
//! folder of the model without passing a symbolic link, and lead to a regular file that has no other name (a
//! hard link may refer to a file anywhere) and is long enough. Files are opened once; the check of their SHA-1,
//! where a tensor gives one, is done once per file.

use crate::bytes::{FileId, SourceBytes};
use ampc_ir::tensor::{ByteSource, FileRange};
use rustc_hash::FxHashMap;
use sha1::{Digest, Sha1};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// The location of a tensor's bytes: the entries of `TensorProto.external_data`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExternalEntry {
    /// Path relative to the model's folder.
    pub location: Option<String>,
    /// Offset, a decimal number.
    pub offset: Option<String>,
    /// Number of bytes, a decimal number.
    pub length: Option<String>,
    /// SHA-1 of the whole file, in hexadecimal.
    pub checksum: Option<String>,
}

/// Problem with the external data of a tensor.
#[derive(Debug, thiserror::Error)]
pub enum ExternalError {
    /// The `location` entry is missing.
    #[error("its data is external but it has no `location`")]
    NoLocation,
    /// The model came through a pipe.
    #[error(
        "its data is in `{location}`, and a model from standard input has no folder; give the model's path"
    )]
    NoFolder {
        /// The location.
        location: String,
    },
    /// The path is absolute.
    #[error("its data is in `{location}`, an absolute path; expected a path below the model's folder")]
    Absolute {
        /// The location.
        location: String,
    },
    /// The path leaves the folder.
    #[error("its data is in `{location}`, which leaves the model's folder; expected a path without `..`")]
    LeavesFolder {
        /// The location.
        location: String,
    },
    /// The path is empty or has a NUL.
    #[error("its data is in {location:?}, which is not a path")]
    NotAPath {
        /// The location.
        location: String,
    },
    /// Part of the path is a symbolic link.
    #[error("its data is in `{location}`, but `{link}` is a symbolic link; replace the link by the file")]
    SymbolicLink {
        /// The location.
        location: String,
        /// The link.
        link: String,
    },
    /// The file has another name as well, which may be outside of the folder.
    #[error(
        "its data is in `{path}`, which has {names} names (hard links); expected a file of one name: replace it by a \
         copy"
    )]
    HardLink {
        /// The file.
        path: String,
        /// The number of names.
        names: u64,
    },
    /// There is no such file.
    #[error("its data is in `{path}`, which does not exist")]
    Missing {
        /// The file.
        path: String,
    },
    /// It is a folder or a device.
    #[error("its data is in `{path}`, which is not a regular file")]
    NotAFile {
        /// The path.
        path: String,
    },
    /// Offset or length is not a number of bytes.
    #[error("`{key}` of its external data is `{text}`; expected a number of bytes")]
    NotANumber {
        /// `offset` or `length`.
        key: &'static str,
        /// The text.
        text: String,
    },
    /// The length differs from the length that the tensor needs.
    #[error("its dims and type need {expected} bytes, `length` of its external data is {found}")]
    Length {
        /// Bytes that the tensor needs.
        expected: u64,
        /// Bytes that the entry gives.
        found: u64,
    },
    /// The range ends after the file.
    #[error(
        "its data is {expected} bytes from offset {offset} of `{path}`, which has only {found} bytes; the file is truncated or is another model's"
    )]
    TooShort {
        /// The file.
        path: String,
        /// Offset of the range.
        offset: u64,
        /// Length of the range.
        expected: u64,
        /// Bytes in the file.
        found: u64,
    },
    /// The file has another SHA-1.
    #[error("`{path}` has the SHA-1 {found}, expected {expected}; the file is damaged or is another model's")]
    Checksum {
        /// The file.
        path: String,
        /// The value in the tensor.
        expected: String,
        /// The value in the file.
        found: String,
    },
    /// The file cannot be opened or read.
    #[error("cannot read `{path}`: {source}")]
    Io {
        /// The file.
        path: String,
        /// The cause.
        source: io::Error,
    },
}

impl ExternalError {
    /// True if it is about a file, and so about all tensors in it.
    pub fn is_about_file(&self) -> bool {
        match self {
            ExternalError::NoFolder { .. }
            | ExternalError::Absolute { .. }
            | ExternalError::LeavesFolder { .. }
            | ExternalError::NotAPath { .. }
            | ExternalError::SymbolicLink { .. }
            | ExternalError::HardLink { .. }
            | ExternalError::Missing { .. }
            | ExternalError::NotAFile { .. }
            | ExternalError::Io { .. } => true,
            ExternalError::NoLocation
            | ExternalError::NotANumber { .. }
            | ExternalError::Length { .. }
            | ExternalError::TooShort { .. }
            | ExternalError::Checksum { .. } => false,
        }
    }
}

/// The external files of one model.
#[derive(Debug, Default)]
pub struct ExternalFiles {
    folder: Option<PathBuf>,
    files: Vec<ExternalFile>,
    by_location: FxHashMap<String, usize>,
}

/// One opened external file.
#[derive(Clone, Debug)]
pub struct ExternalFile {
    /// Its path relative to the model's folder.
    pub location: String,
    /// Its bytes.
    pub bytes: Arc<SourceBytes>,
    sha1: Option<String>,
}

impl ExternalFiles {
    /// The external files of a model in `folder`; `None` if it came through a pipe.
    pub fn of(folder: Option<PathBuf>) -> ExternalFiles {
        ExternalFiles { folder, ..ExternalFiles::default() }
    }

    /// The files opened so far.
    pub fn opened(&self) -> &[ExternalFile] {
        &self.files
    }

    /// The range a tensor of `expected` bytes refers to.
    ///
    /// # Errors
    /// If the entry is incomplete, leads out of the folder, or to a file that is not there or not long enough.
    pub fn resolve(&mut self, entry: &ExternalEntry, expected: u64) -> Result<FileRange, ExternalError> {
        let location = entry.location.as_deref().ok_or(ExternalError::NoLocation)?;
        let offset = number("offset", entry.offset.as_deref())?.unwrap_or(0);
        if let Some(found) = number("length", entry.length.as_deref())?
            && found != expected
        {
            return Err(ExternalError::Length { expected, found });
        }
        let index = self.open(location)?;
        let file = &mut self.files[index];
        let path = file.bytes.describe();
        let found = file.bytes.len();
        if offset.checked_add(expected).is_none_or(|end| end > found) {
            return Err(ExternalError::TooShort { path, offset, expected, found });
        }
        if let Some(checksum) = &entry.checksum {
            file.check_sha1(checksum, &path)?;
        }
        Ok(FileRange { source: file.bytes.clone(), offset, len: expected })
    }

    fn open(&mut self, location: &str) -> Result<usize, ExternalError> {
        if let Some(&index) = self.by_location.get(location) {
            return Ok(index);
        }
        let bytes = Arc::new(open_below(self.folder.as_deref(), location)?);
        self.files.push(ExternalFile { location: location.to_owned(), bytes, sha1: None });
        self.by_location.insert(location.to_owned(), self.files.len() - 1);
        Ok(self.files.len() - 1)
    }
}

impl ExternalFile {
    fn check_sha1(&mut self, expected: &str, path: &str) -> Result<(), ExternalError> {
        if self.sha1.is_none() {
            let computed = sha1_of(&self.bytes);
            self.sha1 = Some(computed.map_err(|source| ExternalError::Io { path: path.to_owned(), source })?);
        }
        match &self.sha1 {
            Some(found) if !found.eq_ignore_ascii_case(expected.trim()) => Err(ExternalError::Checksum {
                path: path.to_owned(),
                expected: expected.to_owned(),
                found: found.clone(),
            }),
            Some(_) | None => Ok(()),
        }
    }
}

fn number(key: &'static str, text: Option<&str>) -> Result<Option<u64>, ExternalError> {
    text.map(|t| t.parse().map_err(|_| ExternalError::NotANumber { key, text: t.to_owned() })).transpose()
}

fn sha1_of(bytes: &SourceBytes) -> io::Result<String> {
    let mut hash = Sha1::new();
    let mut buffer = crate::bytes::zeros(1 << 20)?;
    let mut offset = 0;
    while offset < bytes.len() {
        let n = usize::try_from(bytes.len() - offset).unwrap_or(usize::MAX).min(buffer.len());
        bytes.read_exact_at(&mut buffer[..n], offset)?;
        hash.update(&buffer[..n]);
        offset += n as u64;
    }
    Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
}

/// Opens `location` below `folder`, looking at every part of the path without following links. The checked file
/// and the opened file are compared, so that exchanging the file in between has no effect.
fn open_below(folder: Option<&Path>, location: &str) -> Result<SourceBytes, ExternalError> {
    let named = || location.to_owned();
    if location.is_empty() || location.contains('\0') {
        return Err(ExternalError::NotAPath { location: named() });
    }
    let mut parts = Vec::new();
    for component in Path::new(location).components() {
        match component {
            Component::Normal(part) => parts.push(part),
            Component::CurDir => {}
            Component::ParentDir => return Err(ExternalError::LeavesFolder { location: named() }),
            Component::RootDir | Component::Prefix(_) => {
                return Err(ExternalError::Absolute { location: named() });
            }
        }
    }
    let folder = folder.ok_or_else(|| ExternalError::NoFolder { location: named() })?;
    let mut path = folder.to_owned();
    let mut seen = None;
    for part in parts {
        path.push(part);
        let shown = path.display().to_string();
        let metadata = fs::symlink_metadata(&path).map_err(|source| {
            let path = shown.clone();
            let missing = matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
            if missing { ExternalError::Missing { path } } else { ExternalError::Io { path, source } }
        })?;
        if metadata.is_symlink() {
            return Err(ExternalError::SymbolicLink { location: named(), link: shown });
        }
        seen = Some(metadata);
    }
    let shown = path.display().to_string();
    let Some(seen) = seen.filter(fs::Metadata::is_file) else {
        return Err(ExternalError::NotAFile { path: shown });
    };
    if let Some(names) = names_of(&seen).filter(|&names| names > 1) {
        return Err(ExternalError::HardLink { path: shown, names });
    }
    let bytes =
        SourceBytes::open(&path).map_err(|source| ExternalError::Io { path: shown.clone(), source })?;
    if bytes.file_id() != FileId::of(&seen) {
        return Err(ExternalError::NotAFile { path: shown });
    }
    Ok(bytes)
}

/// The number of names, where the platform says so.
#[cfg(unix)]
fn names_of(metadata: &fs::Metadata) -> Option<u64> {
    Some(std::os::unix::fs::MetadataExt::nlink(metadata))
}

#[cfg(not(unix))]
fn names_of(_: &fs::Metadata) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(location: &str) -> ExternalEntry {
        ExternalEntry { location: Some(location.into()), ..ExternalEntry::default() }
    }

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("sub")).unwrap();
        fs::write(folder.path().join("sub/w.bin"), [1u8; 48]).unwrap();
        folder
    }

    fn message(files: &mut ExternalFiles, entry: &ExternalEntry) -> String {
        files.resolve(entry, 36).unwrap_err().to_string()
    }

    #[test]
    fn a_range_inside_the_folder_is_found() {
        let folder = folder();
        let mut files = ExternalFiles::of(Some(folder.path().to_owned()));
        let mut e =
            ExternalEntry { offset: Some("12".into()), length: Some("36".into()), ..entry("./sub/w.bin") };
        assert_eq!(files.resolve(&e, 36).unwrap().offset, 12);
        e.checksum = Some("62F1B9DDF0D6E0D1A3F0C5E5B8D3C5A0B9A3DE45".into());
        assert!(message(&mut files, &e).contains("SHA-1"));
        let right = sha1_of(&files.opened()[0].bytes).unwrap().to_uppercase();
        e.checksum = Some(right);
        assert!(files.resolve(&e, 36).is_ok());
    }

    #[test]
    fn sha1_is_the_standard_one() {
        let bytes = SourceBytes::from_memory("abc", *b"abc");
        assert_eq!(sha1_of(&bytes).unwrap(), "a9993e364706816aba3e25717850c26c9cd0d89d");
    }

    #[test]
    fn what_leaves_the_folder_is_refused() {
        let folder = folder();
        let mut files = ExternalFiles::of(Some(folder.path().to_owned()));
        for (location, expected) in [
            ("/etc/passwd", "absolute"),
            ("../w.bin", "leaves the model's folder"),
            ("sub/../../w.bin", "leaves the model's folder"),
            ("sub", "not a regular file"),
            (".", "not a regular file"),
            ("", "not a path"),
            ("sub/w.bin\0.txt", "not a path"),
            ("gone.bin", "does not exist"),
            ("sub/w.bin/x", "does not exist"),
        ] {
            assert!(message(&mut files, &entry(location)).contains(expected), "{location:?}");
        }
        assert!(message(&mut ExternalFiles::of(None), &entry("w.bin")).contains("standard input"));
    }

    #[cfg(unix)]
    #[test]
    fn links_are_refused_at_every_level() {
        let folder = folder();
        std::os::unix::fs::symlink("sub", folder.path().join("link")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("out.bin")).unwrap();
        let mut files = ExternalFiles::of(Some(folder.path().to_owned()));
        assert!(message(&mut files, &entry("link/w.bin")).contains("symbolic link"));
        assert!(message(&mut files, &entry("out.bin")).contains("symbolic link"));
    }

    /// A name in the folder may be that of any file of the disk, as a symbolic link is.
    #[cfg(unix)]
    #[test]
    fn hard_links_are_refused() {
        let folder = folder();
        let (path, other) = (folder.path().join("sub/w.bin"), folder.path().join("other.bin"));
        fs::hard_link(&path, &other).unwrap();
        let mut files = ExternalFiles::of(Some(folder.path().to_owned()));
        for location in ["sub/w.bin", "other.bin"] {
            assert!(message(&mut files, &entry(location)).contains("has 2 names"), "{location}");
        }
        fs::remove_file(other).unwrap();
        assert!(files.resolve(&entry("sub/w.bin"), 36).is_ok());
    }

    #[test]
    fn ranges_are_checked_without_overflow() {
        let folder = folder();
        let mut files = ExternalFiles::of(Some(folder.path().to_owned()));
        let with = |offset: &str, length: &str| ExternalEntry {
            offset: Some(offset.into()),
            length: Some(length.into()),
            ..entry("sub/w.bin")
        };
        assert!(message(&mut files, &with("13", "36")).contains("only 48 bytes"));
        assert!(message(&mut files, &with("18446744073709551615", "36")).contains("only 48 bytes"));
        assert!(message(&mut files, &with("0", "20")).contains("need 36 bytes"));
        assert!(message(&mut files, &with("-1", "36")).contains("`-1`; expected a number"));
    }
}
