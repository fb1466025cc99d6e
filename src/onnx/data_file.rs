//! The data file of a model: its name is the name of the model with a hash of the data, so a model never refers
//! to the data of another model.
//!
//! The hash is computed while the bytes are written; the model, which is laid out before, then receives its
//! digits.

use super::layout::{Digest, Layout};
use super::target::{Kind, Staged, TargetError, failed, fill, kind, regular, temporary};
use crate::bytes::SourceBytes;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3Default;

/// Bytes of a file that are hashed at a time.
const HASHED: usize = 1 << 18;

/// Writes the data file of the model at `model` under a temporary name. Its own name is that of the model with the
/// hash of its bytes, which `digest` has from then on. A file that is there already with these bytes may be replaced.
/// It has the permissions of the file that it replaces, or of the model that is replaced with it.
pub(crate) fn stage(
    layout: &Layout,
    model: &Path,
    digest: &Digest,
    force: bool,
    known: &[Arc<SourceBytes>],
) -> Result<Staged, TargetError> {
    let mut file = temporary(model, model, None)?;
    let mut hash = Xxh3Default::new();
    fill(file.file(), layout.len(), |out| layout.stream(&mut Hashing { out, hash: &mut hash }))
        .map_err(|e| failed(model, layout.len(), e))?;
    digest.set(hash.digest());
    let path = path_of(model, &digest.digits());
    let same = same_content(&path, layout.len(), hash.digest());
    if !same && kind(&path, force, known)? == Kind::Stream {
        return Err(TargetError::Exists { path: path.display().to_string() });
    }
    if let Some(there) = regular(&path) {
        file.permit_like(&there);
    }
    Ok(Staged { file, to: path.clone(), path, force: force || same, same })
}

/// The data file of a model whose bytes have this hash.
fn path_of(model: &Path, digits: &str) -> PathBuf {
    let mut name = model.as_os_str().to_owned();
    name.push(format!(".{digits}{ENDING}"));
    PathBuf::from(name)
}

/// The ending of the name of a data file.
pub(crate) const ENDING: &str = ".data";

/// True if a file has the name of a data file of the model of this name.
pub(crate) fn is_data_of(model: &str, name: &str) -> bool {
    let digits = name.strip_prefix(model).and_then(|rest| rest.strip_prefix('.')?.strip_suffix(ENDING));
    digits.is_some_and(|digits| {
        digits.len() == Digest::DIGITS && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// True if there is a regular file at a path that has so many bytes of this hash.
fn same_content(path: &Path, len: u64, hash: u64) -> bool {
    let same_size = fs::symlink_metadata(path).is_ok_and(|m| m.is_file() && m.len() == len);
    same_size && File::open(path).and_then(hash_of).is_ok_and(|found| found == hash)
}

fn hash_of(mut file: File) -> io::Result<u64> {
    let (mut hash, mut buffer) = (Xxh3Default::new(), vec![0; HASHED]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.digest()),
            n => hash.update(&buffer[..n]),
        }
    }
}

/// Hashes the bytes that are written to a file.
struct Hashing<'a> {
    out: &'a mut File,
    hash: &'a mut Xxh3Default,
}

impl Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.hash.update(&bytes[..n]);
        Ok(n)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_data_files_are_told_from_others() {
        assert!(is_data_of("m.onnx", "m.onnx.0123456789abcdef.data"));
        for other in [
            "m.onnx.data",
            "m.onnx.0123456789abcde.data",
            "m.onnx.0123456789ABCDEF.data",
            "n.onnx.0123456789abcdef.data",
            "m.onnx.0123456789abcdef.data.bak",
        ] {
            assert!(!is_data_of("m.onnx", other), "{other}");
        }
    }
}
