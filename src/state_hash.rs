//! The hash in a checkpoint, which reveals a damaged or edited checkpoint.
//!
//! A checkpoint is a safetensors file with two entries of metadata: [`POSITION`], a JSON text with the position
//! of the training, and [`HASH`], the xxh3-128 of that text and of all tensors. A state that was not written by
//! a training has neither.

use crate::error::Error;
use crate::safetensors::Tensors;
use ampc_ir::DType;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

/// The key of the metadata that says where the training stood.
pub(crate) const POSITION: &str = "ampc.training";

/// The key of the metadata with the hash.
pub(crate) const HASH: &str = "ampc.hash";

/// The hash of tensors, each with its name, dims and the xxh3-128 of its bytes in any order, and of where the training stood.
pub(crate) fn hash_of<'a>(
    tensors: impl Iterator<Item = (&'a str, DType, &'a [u64], u128)>,
    position: &str,
) -> String {
    let mut lines: Vec<String> =
        tensors.map(|(name, dtype, dims, hash)| format!("{name:?} {dtype} {dims:?} {hash:032x}\n")).collect();
    lines.sort();
    format!("{:032x}", xxh3_128(format!("{}{position}", lines.concat()).as_bytes()))
}

/// Compares the hash of a checkpoint with that of its content, of which all is read. A file that says nothing of a training
/// needs none.
///
/// # Errors
/// If they differ, a checkpoint has none, or the file cannot be read.
pub(crate) fn check(tensors: &Tensors, path: &Path) -> Result<(), Error> {
    let bad = |reason: String| Error::Data { path: path.to_owned(), reason };
    let position = tensors.metadata(POSITION);
    let Some(written) = tensors.metadata(HASH) else {
        let reason =
            format!("expected a hash of the checkpoint in the metadata (`{HASH}`), found none: {ADVICE}");
        return if position.is_some() { Err(bad(reason)) } else { Ok(()) };
    };
    let mut all = Vec::new();
    for (name, entry) in tensors.iter() {
        let data = entry.read().ok_or_else(|| bad(entry.unsupported(name)))?;
        let hash = data.content_hash().map_err(|error| bad(error.to_string()))?;
        all.push((name, data, hash));
    }
    let of = all.iter().map(|(name, data, hash)| (*name, data.dtype(), data.dims(), *hash));
    if hash_of(of, position.unwrap_or_default()) == written {
        return Ok(());
    }
    Err(bad(format!("its content differs from the written content: {ADVICE}")))
}

/// Advice for a checkpoint whose content does not match its hash.
const ADVICE: &str = "it is damaged or was edited; take another checkpoint, or write the tensors alone to a file, without \
                      metadata, to begin with";
