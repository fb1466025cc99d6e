//! Digests of files: the xxh3-128 of their bytes.

use crate::bytes::SourceBytes;
use ampc_ir::tensor::{ByteSource, CHUNK_BYTES};
use std::io;
use xxhash_rust::xxh3::Xxh3Default;

/// The digest of a file: the xxh3-128 of its bytes, as 32 hexadecimal digits. A report has the digest of its model.
///
/// # Errors
/// If the file cannot be read.
pub fn digest(file: &SourceBytes) -> io::Result<String> {
    let (mut hash, mut at) = (Hash::default(), 0);
    let mut buffer = vec![0; CHUNK_BYTES];
    while at < file.len() {
        let n = usize::try_from(file.len() - at).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES));
        file.read_exact_at(&mut buffer[..n], at)?;
        hash.0.update(&buffer[..n]);
        at += n as u64;
    }
    Ok(hash.digits())
}

/// Computes a [`digest`] of what is written to it.
#[derive(Default)]
pub(crate) struct Hash(Xxh3Default);

impl Hash {
    /// The digits of the digest.
    pub(crate) fn digits(&self) -> String {
        format!("{:032x}", self.0.digest128())
    }
}

impl io::Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
