//! The models of a folder that refer to a data file, so that no data file in use is removed.
//!
//! A model is walked, not read: weights are skipped, and other defects of the model do not matter.

use super::schema::{Kind, Message};
use super::target::folder_of;
use super::wellformed::MAX_DEPTH;
use super::wire::{Fields, Reader, Span, WireError, WireErrorKind};
use crate::bytes::SourceBytes;
use crate::temporary::is_temporary;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// A data file of a replaced model that was not removed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SparedFile {
    /// The data file.
    pub path: PathBuf,
    /// The model for which it stays, or the folder if that cannot be listed.
    pub model: PathBuf,
    /// True if the model refers to the file; a model that cannot be read may refer to it.
    pub is_referred_to: bool,
}

impl fmt::Display for SparedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, model) = (self.path.display(), self.model.display());
        match self.is_referred_to {
            true => write!(f, "{path} of the replaced model stays: {model} refers to it"),
            false => {
                write!(f, "{path} of the replaced model stays: {model} cannot be read and may refer to it")
            }
        }
    }
}

/// Endings of files that are not ONNX models.
const OTHERS: [&str; 4] = ["ir", "json", "safetensors", "data"];

/// The reason to keep a data file: another model in its folder that refers to it, or may refer to it; `None` without such a model.
///
/// Any file may be a model, whatever its ending; a file that cannot be read as a model counts as a model only
/// if its name ends in `.onnx`.
pub(crate) fn spared(data: &Path) -> Option<SparedFile> {
    let folder = folder_of(data);
    let spared = |model: &Path, is_referred_to| SparedFile {
        path: data.to_owned(),
        model: model.to_owned(),
        is_referred_to,
    };
    let (Some(name), Ok(entries)) = (data.file_name(), fs::read_dir(folder)) else {
        return Some(spared(folder, false));
    };
    let ending = |path: &Path| path.extension().map(OsStr::to_ascii_lowercase).unwrap_or_default();
    let is_model = |path: &PathBuf| OTHERS.iter().all(|other| ending(path) != *other) && path.is_file();
    let names = entries.flatten().map(|entry| entry.file_name()).filter(|name| !is_temporary(name));
    let mut models: Vec<PathBuf> = names.map(|name| data.with_file_name(name)).filter(is_model).collect();
    models.sort();
    let mut unread = None;
    for model in &models {
        match refers_to(model, name) {
            Ok(true) => return Some(spared(model, true)),
            Ok(false) => {}
            Err(_) if ending(model) == "onnx" => unread = unread.or(Some(model)),
            Err(_) => {}
        }
    }
    unread.map(|model| spared(model, false))
}

/// True if a tensor of the model at `path` says that its bytes are in a file of this name.
fn refers_to(path: &Path, name: &OsStr) -> Result<bool, WireError> {
    let bytes = SourceBytes::open(path).map_err(|e| WireError::new(0, WireErrorKind::Io(e)))?;
    has_location(&mut Reader::new(&bytes), name)
}

/// True if a location in a model ends in this name, in any folder.
fn has_location(reader: &mut Reader<'_>, name: &OsStr) -> Result<bool, WireError> {
    let mut stack = vec![(Message::Model, Fields::of(reader.all()))];
    while let Some((message, fields)) = stack.last_mut() {
        let Some(field) = fields.next(reader)? else {
            stack.pop();
            continue;
        };
        let Some(row) = message.row(field.number) else { continue };
        let Kind::Message(inner) = row.kind else { continue };
        let body = field.bytes(row.name)?;
        if (*message, inner) == (Message::Tensor, Message::Entry) {
            if is_location(reader, body, name)? {
                return Ok(true);
            }
            continue;
        }
        stack.push((inner, Fields::of(body)));
        if stack.len() > MAX_DEPTH {
            return Err(WireError::new(body.offset, WireErrorKind::TooDeep { limit: MAX_DEPTH }));
        }
    }
    Ok(false)
}

/// True if an entry has a value that is a path to a file of this name. No key but `location` has one that is.
fn is_location(reader: &mut Reader<'_>, entry: Span, name: &OsStr) -> Result<bool, WireError> {
    /// No path is longer.
    const LONGEST: u64 = 1 << 16;
    let mut fields = Fields::of(entry);
    while let Some(field) = fields.next(reader)? {
        if field.number != 2 {
            continue;
        }
        let value = field.bytes("value")?;
        if value.len <= LONGEST && Path::new(reader.text(value, "value")?).file_name() == Some(name) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::proto;
    use prost::Message as _;

    const DATA: &str = "m.onnx.0123456789abcdef.data";

    fn tensor(location: &str) -> proto::TensorProto {
        let entry = |key: &str, value: &str| proto::StringStringEntryProto {
            key: Some(key.into()),
            value: Some(value.into()),
        };
        proto::TensorProto {
            external_data: vec![entry("offset", "0"), entry("location", location)],
            raw_data: Some(vec![0xff; 1 << 12]),
            ..Default::default()
        }
    }

    fn model(graph: proto::GraphProto) -> Vec<u8> {
        proto::ModelProto { graph: Some(graph), ..Default::default() }.encode_to_vec()
    }

    fn refers(bytes: Vec<u8>) -> bool {
        let source = SourceBytes::from_memory("m", bytes);
        has_location(&mut Reader::new(&source), OsStr::new(DATA)).unwrap()
    }

    #[test]
    fn references_are_found_wherever_a_tensor_may_be() {
        let graph = |location: &str| proto::GraphProto {
            initializer: vec![tensor("other.data"), tensor(location)],
            ..Default::default()
        };
        assert!(refers(model(graph(DATA))));
        assert!(refers(model(graph(&format!("./{DATA}")))));
        for other in ["other.data", &format!("{DATA}.bak"), &format!("old-{DATA}"), ""] {
            assert!(!refers(model(graph(other))), "{other}");
        }
        let sparse = proto::SparseTensorProto { values: Some(tensor(DATA)), ..Default::default() };
        assert!(refers(model(proto::GraphProto { sparse_initializer: vec![sparse], ..Default::default() })));
        let node = |attribute| proto::NodeProto { attribute: vec![attribute], ..Default::default() };
        let of_value = node(proto::AttributeProto { t: Some(Box::new(tensor(DATA))), ..Default::default() });
        let of_body = node(proto::AttributeProto { g: Some(Box::new(graph(DATA))), ..Default::default() });
        for node in [of_value, of_body] {
            assert!(refers(model(proto::GraphProto { node: vec![node.clone()], ..Default::default() })));
            let function = proto::FunctionProto { node: vec![node], ..Default::default() };
            let with_function = proto::ModelProto { functions: vec![function], ..Default::default() };
            assert!(refers(with_function.encode_to_vec()));
        }
    }

    #[test]
    fn what_cannot_be_read_may_refer_to_a_file_if_its_name_is_that_of_a_model() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let data = at(DATA);
        for (name, bytes) in [("notes.txt", "no model"), ("empty.onnx", ""), ("w.data", "\0"), (DATA, "\0")] {
            fs::write(at(name), bytes).unwrap();
        }
        fs::create_dir(at("folder.onnx")).unwrap();
        assert_eq!(spared(&data), None);
        fs::write(at("broken.onnx"), b"no model").unwrap();
        let of = |model: &str, is_referred_to| {
            Some(SparedFile { path: data.clone(), model: at(model), is_referred_to })
        };
        assert_eq!(spared(&data), of("broken.onnx", false));
        let referring = proto::GraphProto { initializer: vec![tensor(DATA)], ..Default::default() };
        fs::write(at("copy.bak"), model(referring)).unwrap();
        assert_eq!(spared(&data), of("copy.bak", true));
    }
}
