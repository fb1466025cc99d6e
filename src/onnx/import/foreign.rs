//! Files of other formats, recognised by their first bytes.

use crate::onnx::wire::{Reader, Span, WireError};

/// The number of inspected bytes.
const HEAD: u64 = 256;

const TORCH: &str =
    "it is a PyTorch file (a zip archive with a pickle in it); export the model with `torch.onnx.export`";
const PICKLE: &str =
    "it is a Python pickle, as older PyTorch checkpoints are; export the model with `torch.onnx.export`";
const TENSORFLOW: &str = "it looks like a TensorFlow graph; convert it with `python -m tf2onnx.convert`, and check that it is a model at all";
const ARRAYS: &str = "it is an archive of NumPy's arrays (`.npz`), which are values for `run --inputs` and `verify --inputs`, not a model";
const COMPRESSED: &str = "it is a compressed file; unpack it and name the model in it";

/// Prefixes that no model has.
const SIGNATURES: &[(usize, &[u8], &str)] = &[
    (
        0,
        b"version https://git-lfs.github.com/spec/",
        "it is a git-LFS pointer; fetch the real file with `git lfs pull`",
    ),
    (0, b"ORTM", "it is in ONNX Runtime's own format; use the model it was made from"),
    (4, b"ORTM", "it is in ONNX Runtime's own format; use the model it was made from"),
    (4, b"TFL3", "it is a TensorFlow Lite model; convert it with `python -m tf2onnx.convert --tflite`"),
    (0, b"<!DOCTYPE", "it is a web page; the download went wrong"),
    (0, b"<html", "it is a web page; the download went wrong"),
    (
        0,
        b"\x89HDF\r\n\x1a\n",
        "it is an HDF5 file, as Keras writes; convert the model with `python -m tf2onnx.convert --keras`",
    ),
    (0, b"\x93NUMPY", "it is an array of NumPy, which is a value for `run --inputs`, not a model"),
    (0, b"\x1f\x8b", COMPRESSED),
    (0, b"BZh", COMPRESSED),
    (0, b"\xfd7zXZ", COMPRESSED),
    (0, b"\x28\xb5\x2f\xfd", COMPRESSED),
];

fn head<'r>(reader: &'r mut Reader<'_>) -> Result<&'r [u8], WireError> {
    let len = reader.all().len.min(HEAD);
    reader.bytes(Span { offset: 0, len })
}

/// The format of a file whose prefix no model has.
pub(super) fn surely(reader: &mut Reader<'_>) -> Result<Option<&'static str>, WireError> {
    let head = head(reader)?;
    if head.is_empty() {
        return Ok(Some("the file is empty"));
    }
    if head.starts_with(b"PK\x03\x04") {
        let is_torch = head.windows(8).any(|part| part == b"data.pkl");
        return Ok(Some(match first_in_zip(head) {
            _ if is_torch => TORCH,
            Some(name) if name.ends_with(b".npy") => ARRAYS,
            _ => "it is a zip archive; unpack it and name the model in it",
        }));
    }
    if is_safetensors(head) {
        return Ok(Some(
            "it is a safetensors file, which has weights and no graph; export the model that they belong to as ONNX",
        ));
    }
    let begins =
        |&&(at, bytes, _): &&(usize, &[u8], &str)| head.get(at..).is_some_and(|h| h.starts_with(bytes));
    Ok(SIGNATURES.iter().find(begins).map(|(.., found)| *found))
}

/// The name of the first file of a zip archive, by its local header.
fn first_in_zip(head: &[u8]) -> Option<&[u8]> {
    let len = head.get(26..28)?.first_chunk().map(|len| usize::from(u16::from_le_bytes(*len)))?;
    head.get(30..30 + len)
}

/// The length of a header of JSON, and the header.
fn is_safetensors(head: &[u8]) -> bool {
    let Some((len, json)) = head.split_first_chunk::<8>() else { return false };
    json.starts_with(b"{\"") && u64::from_le_bytes(*len) < 100 << 20
}

/// The probable format of a file that is not a model.
pub(super) fn likely(reader: &mut Reader<'_>) -> Option<&'static str> {
    let head = head(reader).ok()?;
    if let [0x80, 2..=5, ..] = head {
        return Some(PICKLE);
    }
    // A list of nodes first (GraphDef), or the version 1 and then a message (SavedModel).
    if let [0x0a, _, 0x0a, ..] | [0x0a, _, _, 0x0a, ..] | [8, 1, 0x12, ..] = head {
        return Some(TENSORFLOW);
    }
    // The last character may be cut.
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(e) if e.error_len().is_none() => std::str::from_utf8(&head[..e.valid_up_to()]).ok()?,
        Err(_) => return None,
    };
    if text.contains(|c: char| c.is_control() && !c.is_whitespace()) {
        return None;
    }
    Some(match text.trim_start() {
        text if text.starts_with("module ir=") || text.starts_with("// ") => {
            "it is text; the name of a model in ampc's text form ends in `.ir`"
        }
        text if text.starts_with('{') => {
            "it is JSON; the name of a graph in ampc's JSON form ends in `.json`"
        }
        _ => "it is text; name the `.onnx` file of the model",
    })
}
