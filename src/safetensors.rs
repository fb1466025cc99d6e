//! Named tensors in safetensors files: the large constants of texts, and inputs and outputs of runs.
//!
//! Format: 8 bytes with the length of a JSON header, the header (name → dtype, shape, offsets), the bytes of
//! all tensors without gaps: <https://github.com/huggingface/safetensors>. The format's own crate reads and
//! checks the header; bytes bypass the crate, because it needs the whole file in memory: a tensor that is read
//! is a range of the file, a tensor that is written is streamed.

use crate::bytes::SourceBytes;
use crate::error::Error;
use crate::foreign;
use crate::onnx::layout::Layout;
use crate::onnx::target;
use ::safetensors::tensor::{Dtype, Metadata, TensorInfo};
use ampc_ir::tensor::{ByteSource, FileRange, Storage};
use ampc_ir::text::escape_hidden_in_json;
use ampc_ir::{DType, TensorData};
#[cfg(feature = "run")]
use ampc_runtime::TensorRef;
use rustc_hash::FxHashSet;
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Headers beyond this are refused, as by the format's own reader.
const MAX_HEADER: u64 = 100 << 20;

/// The value of `format` in the metadata of files that ampc writes.
const FORMAT: &str = "ampc";

/// The name in a header that is its metadata instead of a tensor.
const METADATA: &str = "__metadata__";

/// The error of a file that is not there.
pub(crate) fn not_found(path: &Path) -> Error {
    /// The error number for a missing file, on Unix and on Windows.
    const NOT_FOUND: i32 = 2;
    Error::Io { path: path.to_owned(), source: std::io::Error::from_raw_os_error(NOT_FOUND) }
}

/// The tensors of a file, by name.
#[derive(Debug, Default)]
pub(crate) struct Tensors {
    by_name: BTreeMap<String, Entry>,
    metadata: BTreeMap<String, String>,
}

/// A tensor of a file.
#[derive(Debug)]
pub(crate) struct Entry {
    stored: Dtype,
    dims: Vec<u64>,
    range: FileRange,
}

impl Tensors {
    /// Reads the header; `None` if there is no such file.
    pub(crate) fn open(path: &Path) -> Result<Option<(Tensors, Arc<SourceBytes>)>, Error> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        // A pipe or device may block forever.
        if target::is_stream(path) {
            let message = "expected a file to read tensors from, found a pipe or device";
            return Err(Error::Usage(format!("`{}`: {message}", path.display())));
        }
        let bytes = match SourceBytes::open(path) {
            Ok(bytes) => Arc::new(bytes),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(io(source)),
        };
        // A file of another format is called by its name, whatever its first bytes would mean here.
        let bad = |reason: String| {
            let foreign = foreign::kind_of(path).filter(|kind| !kind.contains("safetensors file"));
            let reason = foreign.map_or(reason, |kind| format!("it is {kind}"));
            Error::Safetensors { path: path.to_owned(), reason }
        };
        let source: Arc<dyn ByteSource> = bytes.clone();
        if source.len() < 8 {
            return Err(bad(format!("expected 8 bytes and a header, found {} bytes", source.len())));
        }
        let mut length = [0; 8];
        source.read_exact_at(&mut length, 0).map_err(io)?;
        let length = u64::from_le_bytes(length);
        if length > MAX_HEADER.min(source.len() - 8) {
            return Err(bad(format!("the header says it has {length} bytes, which the file does not have")));
        }
        let mut header = vec![0; usize::try_from(length).unwrap_or(0)];
        source.read_exact_at(&mut header, 8).map_err(io)?;
        let unread = |e: serde_json::Error| bad(format!("the header cannot be read: {e}"));
        let _: OnceEach = serde_json::from_slice(&header).map_err(unread)?;
        let header: Metadata = serde_json::from_slice(&header).map_err(unread)?;
        let data = 8 + length;
        let (mut tensors, mut end) = (BTreeMap::new(), 0);
        for name in header.offset_keys() {
            let Some(info) = header.info(&name) else { continue };
            let (from, to) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
            if to > source.len() - data {
                return Err(bad(format!("`{name}` is at {from} to {to}, beyond the end of the file")));
            }
            end = end.max(to);
            let range = FileRange { source: source.clone(), offset: data + from, len: to - from };
            let dims = info.shape.iter().map(|&dim| dim as u64).collect();
            tensors.insert(name, Entry { stored: info.dtype, dims, range });
        }
        let rest = source.len() - data - end;
        if rest > 0 {
            return Err(bad(format!("expected its end behind the last tensor, found {rest} bytes more")));
        }
        let metadata = header.metadata().iter().flatten();
        let metadata = metadata.map(|(key, text)| (key.clone(), text.clone())).collect();
        Ok(Some((Tensors { by_name: tensors, metadata }, bytes)))
    }

    /// All tensors, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.by_name.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Entry> {
        self.by_name.get(name)
    }

    /// True if ampc wrote the file.
    pub(crate) fn is_of_ampc(&self) -> bool {
        self.metadata.get("format").is_some_and(|format| format == FORMAT)
    }

    /// Value of a key in the metadata of the file.
    pub(crate) fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }
}

/// The names of a header and the keys of its metadata, which have to be unique: the format's own reader takes the
/// last duplicate.
struct OnceEach;

impl<'de> Deserialize<'de> for OnceEach {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OnceEach, D::Error> {
        deserializer.deserialize_map(Names)
    }
}

struct Names;

impl<'de> Visitor<'de> for Names {
    type Value = OnceEach;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OnceEach, A::Error> {
        let mut names = FxHashSet::default();
        while let Some(name) = map.next_key::<String>()? {
            if names.contains(&name) {
                return Err(A::Error::custom(match name.as_str() {
                    METADATA => format!("expected `{METADATA}` once, found it twice"),
                    _ => format!("expected one tensor `{name}`, found two"),
                }));
            }
            if name == METADATA {
                map.next_value::<UniqueKeys>()?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
            names.insert(name);
        }
        Ok(OnceEach)
    }
}

/// The metadata of a header: an object of unique keys, or null.
struct UniqueKeys;

impl<'de> Deserialize<'de> for UniqueKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<UniqueKeys, D::Error> {
        deserializer.deserialize_any(Keys)
    }
}

struct Keys;

impl<'de> Visitor<'de> for Keys {
    type Value = UniqueKeys;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of texts")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueKeys, A::Error> {
        let mut keys = FxHashSet::default();
        while let Some(key) = map.next_key::<String>()? {
            if keys.contains(&key) {
                return Err(A::Error::custom(format!(
                    "expected one entry `{key}` in `{METADATA}`, found two"
                )));
            }
            map.next_value::<IgnoredAny>()?;
            keys.insert(key);
        }
        Ok(UniqueKeys)
    }
}

impl Entry {
    /// Its bytes as a tensor of this type and these dims: if it is one, or bytes because the format has no such type.
    pub(crate) fn read_as(&self, dtype: DType, dims: &[u64]) -> Option<TensorData> {
        let is_it = match stored_as(dtype) {
            Some(stored) => self.stored == stored && self.dims == dims,
            None => self.stored == Dtype::U8,
        };
        is_it.then(|| self.with(dtype, dims)).flatten()
    }

    /// The tensor, if it is of a type that we have.
    pub(crate) fn read(&self) -> Option<TensorData> {
        self.with(self.dtype()?, &self.dims)
    }

    fn with(&self, dtype: DType, dims: &[u64]) -> Option<TensorData> {
        TensorData::new(dtype, dims.iter().copied(), Storage::File(self.range.clone())).ok()
    }

    /// The element type, if it is of a type that we have.
    fn dtype(&self) -> Option<DType> {
        DType::ALL.iter().copied().find(|&dtype| stored_as(dtype) == Some(self.stored))
    }

    /// Element type and dims as messages spell them; a type that we lack as the format spells it.
    pub(crate) fn describe(&self) -> String {
        let dims: Vec<String> = self.dims.iter().map(u64::to_string).collect();
        let dtype = self.dtype().map_or_else(|| format!("{:?}", self.stored), |dtype| dtype.to_string());
        format!("{dtype}[{}]", dims.join(", "))
    }

    /// The error for an entry called `name` of an unsupported type.
    pub(crate) fn unsupported(&self, name: &str) -> String {
        format!("`{name}`: elements of {:?} are not supported", self.stored)
    }
}

/// A tensor as the header describes it: name, element type, dims and bytes.
type Described<'a> = (&'a str, DType, &'a [u64], u64);

/// The place of a tensor in a file: the widest element types first, so that all are aligned, then by name.
fn place<'a>(&(name, dtype, ..): &Described<'a>) -> (std::cmp::Reverse<u32>, &'a str) {
    (std::cmp::Reverse(dtype.bits().unwrap_or(0).max(8)), name)
}

/// The bytes before the data of tensors, which follow in this order.
fn header(tensors: &[Described<'_>], metadata: &[(&str, &str)]) -> Vec<u8> {
    let mut about = serde_json::Map::new();
    about.insert("format".into(), FORMAT.into());
    about.extend(metadata.iter().map(|&(key, text)| (key.to_owned(), text.into())));
    let mut header = serde_json::Map::new();
    header.insert(METADATA.into(), about.into());
    let mut offset = 0;
    for &(name, dtype, dims, bytes) in tensors {
        let end = offset + bytes;
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let (dtype, shape) = match stored_as(dtype) {
            Some(dtype) => (dtype, dims.iter().map(|&dim| size(dim)).collect()),
            None => (Dtype::U8, vec![size(bytes)]),
        };
        let info = TensorInfo { dtype, shape, data_offsets: (size(offset), size(end)) };
        header.insert(name.to_owned(), serde_json::json!(info));
        offset = end;
    }
    let mut text =
        escape_hidden_in_json(&serde_json::Value::Object(header).to_string()).into_owned().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text);
    bytes
}

/// Header and tensors, as they are stored.
///
/// # Errors
/// If a tensor has a name that the format does not permit.
pub(crate) fn layout(tensors: Vec<(String, Arc<TensorData>)>) -> Result<Layout, Error> {
    layout_with(tensors, &[])
}

/// True if a tensor of the format can have this name.
pub(crate) fn can_name(name: &str) -> bool {
    name != METADATA
}

/// [`layout`] with metadata.
pub(crate) fn layout_with(
    mut tensors: Vec<(String, Arc<TensorData>)>,
    metadata: &[(&str, &str)],
) -> Result<Layout, Error> {
    if tensors.iter().any(|(name, _)| !can_name(name)) {
        return Err(Error::Unsupported(format!(
            "a .safetensors file cannot hold the tensor `{METADATA}`, for the format keeps this name for itself: rename the \
             tensor in the model"
        )));
    }
    fn described((name, data): &(String, Arc<TensorData>)) -> Described<'_> {
        (name, data.dtype(), data.dims(), data.byte_len())
    }
    tensors.sort_by(|a, b| place(&described(a)).cmp(&place(&described(b))));
    let mut layout = Layout::new();
    layout.bytes(&header(&tensors.iter().map(described).collect::<Vec<_>>(), metadata));
    for (name, data) in tensors {
        layout.elements(&data, &name);
    }
    Ok(layout)
}

/// Writes tensors in memory, with metadata. Strings are left out.
#[cfg(feature = "run")]
pub(crate) fn write(
    out: &mut impl std::io::Write,
    tensors: &[(&str, TensorRef<'_>)],
    metadata: &[(&str, &str)],
) -> std::io::Result<()> {
    let described = tensors.iter().filter_map(|(name, tensor)| {
        let bytes = tensor.bytes()?;
        Some(((*name, tensor.dtype(), tensor.dims(), bytes.len() as u64), bytes))
    });
    let mut described: Vec<(Described<'_>, &[u8])> = described.collect();
    described.sort_by(|(a, _), (b, _)| place(a).cmp(&place(b)));
    out.write_all(&header(&described.iter().map(|(tensor, _)| *tensor).collect::<Vec<_>>(), metadata))?;
    described.iter().try_for_each(|(_, bytes)| out.write_all(bytes))
}

/// The format's element type, if it has it.
pub(crate) fn stored_as(dtype: DType) -> Option<Dtype> {
    Some(match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F8E5M2 => Dtype::F8_E5M2,
        DType::F8E4M3FN => Dtype::F8_E4M3,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::I16 => Dtype::I16,
        DType::I8 => Dtype::I8,
        DType::U64 => Dtype::U64,
        DType::U32 => Dtype::U32,
        DType::U16 => Dtype::U16,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
        _ => return None,
    })
}
