//! Files that are no files of tensors, recognised by how they begin.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Bytes that are looked at.
const HEAD: u64 = 256;

/// Prefixes of formats, and the words for them.
const PREFIXES: &[(&[u8], &str)] = &[
    (b"\x93NUMPY", "one array of NumPy (`.npy`) without a name, which `numpy.savez` stores with one"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"version https://git-lfs.github.com/spec/", "a git-LFS pointer; `git lfs pull` fetches the real file"),
    (b"<!DOCTYPE", "a web page"),
    (b"<html", "a web page"),
    (b"\x1f\x8b", "a compressed file"),
    (b"module ir=", "a model in ampc's text form"),
];

/// The format of a file, if it is known and none of the formats that hold named tensors.
pub(crate) fn kind_of(path: &Path) -> Option<&'static str> {
    let mut head = Vec::new();
    // A pipe would block, and what was read from it is gone.
    path.metadata().ok().filter(std::fs::Metadata::is_file)?;
    File::open(path).ok()?.take(HEAD).read_to_end(&mut head).ok()?;
    kind(&head)
}

fn kind(head: &[u8]) -> Option<&'static str> {
    if let Some((_, kind)) = PREFIXES.iter().find(|(prefix, _)| head.starts_with(prefix)) {
        return Some(kind);
    }
    match head {
        [] => Some("an empty file"),
        [b'P', b'K', 3 | 5, 4 | 6, ..] if head.windows(8).any(|part| part == b"data.pkl") => {
            Some("a PyTorch checkpoint, whose tensors `safetensors.torch.save_file` stores")
        }
        [b'P', b'K', 3 | 5, 4 | 6, ..] => Some("a zip archive, as `.npz` files are"),
        // The version, then a field of ModelProto: the version of IR is the first field that writers write.
        [0x08, 1..=32, 0x12 | 0x1a | 0x22 | 0x28 | 0x32 | 0x3a | 0x42 | 0x72, ..] => Some("an ONNX model"),
        [0x80, 2..=5, ..] => Some("a Python pickle"),
        [_, _, _, _, _, 0, 0, 0, b'{', ..] => Some("a safetensors file"),
        _ => is_json(head).then_some("a JSON file"),
    }
}

/// True for text that begins as an object or list of JSON. The length of a safetensors header, which may begin with the
/// same byte, has bytes of 0.
fn is_json(head: &[u8]) -> bool {
    let text = head.trim_ascii_start();
    matches!(text.first(), Some(b'{' | b'[')) && !head.contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_known_by_how_they_begin() {
        let cases: [(&[u8], Option<&str>); 10] = [
            (b"\x08\x0a\x12\x07pytorch", Some("an ONNX model")),
            (b"\x08\x08\x3a\x10", Some("an ONNX model")),
            (b"PK\x03\x04\x14\0\0\0x.npy", Some("a zip archive, as `.npz` files are")),
            (b"\x80\x02}q\x00", Some("a Python pickle")),
            (b"\x89HDF\r\n\x1a\n\0", Some("an HDF5 file")),
            (b" {\"a\": 1}", Some("a JSON file")),
            (b"{\0\0\0\0\0\0\0{\"a\"", Some("a safetensors file")),
            (b"", Some("an empty file")),
            (b"module ir=10\n", Some("a model in ampc's text form")),
            (b"\x01\x02\x03", None),
        ];
        for (head, expected) in cases {
            assert_eq!(kind(head), expected, "{head:?}");
        }
        assert!(kind(b"PK\x03\x04archive/data.pkl").is_some_and(|kind| kind.contains("PyTorch")));
        assert!(kind(b"\x93NUMPY\x01\0").is_some_and(|kind| kind.contains("`.npy`")));
    }
}
