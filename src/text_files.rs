//! The text form as files: `X.ir`, and `X.ir.safetensors` beside it for large constants.
//!
//! Neither direction copies a weight into memory: reading leaves a constant as a range of the safetensors file,
//! writing streams it. A text without its safetensors file can be read (dumps and reproducers are such texts); the
//! constants then have type and hash, and fail when somebody asks for their bytes.
//!
//! Format of safetensors: 8 bytes with the length of a JSON header, the header (name → dtype, shape, offsets), the
//! bytes of all tensors without gaps: <https://github.com/huggingface/safetensors>. Element types that it lacks are
//! stored as `U8`; the text has the true type.

use crate::error::Error;
use crate::files::MAX_TEXT;
use crate::model::Model;
use crate::onnx::ExportError;
use crate::onnx::bytes::SourceBytes;
use crate::onnx::layout::Layout;
use crate::onnx::target;
use ampc_ir::tensor::{ByteSource, FileRange, Storage, TensorError};
use ampc_ir::text::{
    DataResolver, LargeConstant, MAX_INLINE, ParseError, ParseErrors, ParseOptions, PrintOptions, parse_with,
    print,
};
use ampc_ir::{DType, Module, Payload, TensorData};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Headers beyond this are refused, as by the format's own reader.
const MAX_HEADER: u64 = 100 << 20;

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextReport {
    /// Bytes of the text.
    pub bytes: u64,
    /// The file of large constants and its bytes, if there are any.
    pub data_file: Option<(PathBuf, u64)>,
}

/// The file of large constants that belongs to a text.
pub fn data_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".safetensors");
    PathBuf::from(name)
}

/// Reads a model in text form, its large constants as ranges of `<path>.safetensors`.
///
/// # Errors
/// If a file cannot be read or has more than [`MAX_TEXT`] bytes of text, the text is no module, or the constants are not those that it means.
pub fn load(path: &Path) -> Result<Model, Error> {
    let (text, file) = read(path)?;
    let text_error = |errors| Error::Text { path: path.to_owned(), errors };
    let (tensors, data) = Tensors::open(&data_path(path))?.unzip();
    let options = ParseOptions { allow_missing_data: tensors.is_none(), ..ParseOptions::default() };
    let module = parse_with(&text, &tensors.unwrap_or_default(), &options).map_err(text_error)?;
    Ok(Model { text_files: std::iter::once(file).chain(data).collect(), ..Model::from(module) })
}

/// A text of at most [`MAX_TEXT`] bytes, and the file it is in.
pub(crate) fn read(path: &Path) -> Result<(String, Arc<SourceBytes>), Error> {
    let io = |source| Error::Io { path: path.to_owned(), source };
    let file = Arc::new(SourceBytes::open_most(path, MAX_TEXT).map_err(io)?);
    let bytes = file.to_vec(MAX_TEXT).map_err(io)?;
    let text =
        String::from_utf8(bytes).map_err(|e| Error::Text { path: path.to_owned(), errors: not_utf8(&e) })?;
    Ok((text, file))
}

fn not_utf8(error: &std::string::FromUtf8Error) -> ParseErrors {
    let at = error.utf8_error().valid_up_to();
    let before = &error.as_bytes()[..at];
    let line = 1 + before.iter().filter(|&&b| b == b'\n').count();
    let start = before.iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
    let column = 1 + String::from_utf8_lossy(&before[start..]).chars().count();
    let found = format!("the byte 0x{:02x}", error.as_bytes()[at]);
    ParseErrors(vec![ParseError { line, column, span: at..at + 1, expected: "UTF-8".into(), found }])
}

/// Tensors of a safetensors file, by name.
#[derive(Debug, Default)]
pub(crate) struct Tensors(BTreeMap<String, (Entry, FileRange)>);

/// What the header says of a tensor.
#[derive(Debug, Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl Entry {
    /// Whether it is a tensor of this type: under its name, or as bytes if the format has none for it.
    fn is(&self, dtype: DType, dims: &[u64]) -> bool {
        match dtype_name(dtype) {
            Some(name) => self.dtype == name && self.shape == dims,
            None => self.dtype == "U8",
        }
    }
}

impl Tensors {
    /// Reads the header; `None` if there is no such file.
    pub(crate) fn open(path: &Path) -> Result<Option<(Tensors, Arc<SourceBytes>)>, Error> {
        let bytes = match SourceBytes::open(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::Io { path: path.to_owned(), source }),
        };
        let bad = |reason: String| Error::Safetensors { path: path.to_owned(), reason };
        let bytes = Arc::new(bytes);
        let source: Arc<dyn ByteSource> = bytes.clone();
        let read = |len: u64, offset: u64| {
            let mut buffer = vec![0; usize::try_from(len).unwrap_or(0)];
            source
                .read_exact_at(&mut buffer, offset)
                .map_err(|source| Error::Io { path: path.to_owned(), source })?;
            Ok::<_, Error>(buffer)
        };
        if source.len() < 8 {
            return Err(bad(format!("expected 8 bytes and a header, found {} bytes", source.len())));
        }
        let mut length = [0; 8];
        length.copy_from_slice(&read(8, 0)?);
        let length = u64::from_le_bytes(length);
        if length > MAX_HEADER.min(source.len() - 8) {
            return Err(bad(format!("the header says it has {length} bytes, which the file does not have")));
        }
        let header = read(length, 8)?;
        let entries: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&header).map_err(|e| bad(format!("the header is no JSON object: {e}")))?;
        let data = 8 + length;
        let mut tensors = BTreeMap::new();
        for (name, entry) in entries.into_iter().filter(|(name, _)| name != "__metadata__") {
            let entry: Entry = serde_json::from_value(entry)
                .map_err(|e| bad(format!("entry `{name}` of the header: {e}")))?;
            let (from, to) = entry.data_offsets;
            if from > to || to > source.len() - data {
                return Err(bad(format!("`{name}` is at {from} to {to}, beyond the end of the file")));
            }
            let range = FileRange { source: source.clone(), offset: data + from, len: to - from };
            tensors.insert(name, (entry, range));
        }
        Ok(Some((Tensors(tensors), bytes)))
    }
}

impl DataResolver for Tensors {
    fn resolve(&self, name: &str, dtype: DType, dims: &[u64], _: Option<u128>) -> Option<TensorData> {
        let (_, range) = self.0.get(name).filter(|(entry, _)| entry.is(dtype, dims))?;
        TensorData::new(dtype, dims.iter().copied(), Storage::File(range.clone())).ok()
    }
}

/// Whether [`save`] will write a file of large constants, even if what nobody reads is removed until then.
pub fn needs_data_file(module: &Module) -> bool {
    module.graph(module.main()).constants().iter().any(|&v| {
        let data = module.constant(v).and_then(Payload::dense);
        let large = |d: &Arc<TensorData>| {
            matches!(d.storage(), Storage::Bytes(_) | Storage::File(_)) && d.element_count() > MAX_INLINE
        };
        data.is_some_and(large) && module.uses(v).next().is_some()
    })
}

/// Writes a model in text form, its large constants to `<path>.safetensors`.
///
/// # Errors
/// If a file exists and `force` is not set, is what the model was read from (a text and its data included), or cannot
/// be written.
pub fn save(model: &Model, path: &Path, force: bool) -> Result<TextReport, Error> {
    save_as(model, path, &data_path(path), force, || {
        let mut printed = print(&model.module, &PrintOptions::default());
        match printed.errors.pop() {
            Some(error) => Err(error),
            None => Ok((printed.text, printed.large)),
        }
    })
}

/// Writes what `print` makes of a model: text to `path`, large constants to `data_path`.
pub(crate) fn save_as(
    model: &Model,
    path: &Path,
    data_path: &Path,
    force: bool,
    print: impl FnOnce() -> Result<(String, Vec<LargeConstant>), TensorError>,
) -> Result<TextReport, Error> {
    let known = model.files();
    let place = |e| Error::Export(ExportError::Target(e));
    target::check(path, force, &known).map_err(place)?;
    let (printed, large) = print().map_err(unreadable)?;
    let (mut staged, mut data_file) = (None, None);
    if !large.is_empty() {
        let layout = safetensors(large);
        staged = target::stage(&layout, data_path, force, &known).map_err(place)?;
        data_file = Some((data_path.to_owned(), layout.len()));
    }
    let mut text = Layout::new();
    text.bytes(printed.as_bytes());
    let model = target::stage(&text, path, force, &known).map_err(place)?;
    target::commit(staged.into_iter().chain(model)).map_err(place)?;
    Ok(TextReport { bytes: text.len(), data_file })
}

fn unreadable(error: TensorError) -> Error {
    match error {
        TensorError::Read { what, source } => Error::Io { path: what.into(), source },
        other => Error::Bug(format!("a constant of the module cannot be read: {other}")),
    }
}

/// Header and tensors: the widest element types first, so that all are aligned, then by name.
fn safetensors(mut tensors: Vec<LargeConstant>) -> Layout {
    let width = |t: &LargeConstant| t.data.stored_dtype().bits().unwrap_or(0).max(8);
    tensors.sort_by(|a, b| width(b).cmp(&width(a)).then_with(|| a.name.cmp(&b.name)));
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".into(), serde_json::json!({ "format": "ampc" }));
    let mut offset = 0;
    for LargeConstant { name, data } in &tensors {
        let end = offset + data.stored_byte_len();
        let (dtype, shape) = match dtype_name(data.stored_dtype()) {
            Some(name) => (name, data.dims().to_vec()),
            None => ("U8", vec![end - offset]),
        };
        let entry = serde_json::json!({ "dtype": dtype, "shape": shape, "data_offsets": [offset, end] });
        header.insert(name.clone(), entry);
        offset = end;
    }
    let mut header = serde_json::Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut layout = Layout::new();
    layout.bytes(&(header.len() as u64).to_le_bytes());
    layout.bytes(&header);
    for LargeConstant { name, data } in tensors {
        layout.elements(&Arc::new(data), &name);
    }
    layout
}

/// The format's name of an element type, if it has one.
fn dtype_name(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F64 => "F64",
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::F8E5M2 => "F8_E5M2",
        DType::F8E4M3FN => "F8_E4M3",
        DType::I64 => "I64",
        DType::I32 => "I32",
        DType::I16 => "I16",
        DType::I8 => "I8",
        DType::U64 => "U64",
        DType::U32 => "U32",
        DType::U16 => "U16",
        DType::U8 => "U8",
        DType::Bool => "BOOL",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ampc_ir::text::parse;

    const HEAD: &str = "module ir=10\nopset ai.onnx=21\n\ngraph @main {\n  input %x : f32[4, 8]\n";

    fn random_model() -> Model {
        let text = format!(
            "{HEAD}  const %w : f32[8, 4] = data(\"w\")\n  const %q : uint4[33] = data(\"q\")\n  \
             %y = MatMul(%x, %w) : f32[4, 4]\n  output %y : f32[4, 4]\n  output %q : uint4[33]\n}}\n"
        );
        let resolver = |name: &str, dtype: DType, dims: &[u64], _: Option<u128>| {
            let len = dtype.storage_bytes(dims.iter().product())?;
            let first = name.as_bytes()[0];
            let bytes: Vec<u8> = (0..len).map(|i| (i % 16) as u8 ^ first & 0xf).collect();
            TensorData::from_bytes(dtype, dims, bytes).ok()
        };
        parse(&text, &resolver).unwrap().into()
    }

    #[test]
    fn what_is_saved_loads_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.ir");
        let model = random_model();
        let report = save(&model, &path, false).unwrap();
        assert_eq!(report.data_file.as_ref().unwrap().0, data_path(&path));
        let again = load(&path).unwrap();
        ampc_ir::eq::same_module(&again.module, &model.module).unwrap();
        assert!(matches!(save(&model, &path, false), Err(Error::Export(_))));
        save(&model, &path, true).unwrap();
        ampc_ir::eq::same_module(&load(&path).unwrap().module, &model.module).unwrap();
    }

    #[test]
    fn a_text_and_its_data_are_not_written_while_they_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        save(&random_model(), &at("m.ir"), false).unwrap();
        let model = load(&at("m.ir")).unwrap();
        let before = [at("m.ir"), at("m.ir.safetensors")].map(|p| std::fs::read(p).unwrap());
        std::fs::copy(at("m.ir"), at("other.ir")).unwrap();
        std::fs::hard_link(at("m.ir.safetensors"), at("other.ir.safetensors")).unwrap();
        let refused = |written: Result<(), Error>, what: &str| {
            let said = written.map_err(|e| e.to_string()).unwrap_err();
            assert!(said.contains("that the model is read from"), "{what}: {said}");
            assert_eq!(
                [at("m.ir"), at("m.ir.safetensors")].map(|p| std::fs::read(p).unwrap()),
                before,
                "{what}"
            );
        };
        for name in ["m.ir", "m.ir.safetensors", "other.ir"] {
            refused(save(&model, &at(name), true).map(drop), name);
        }
        let external_data = crate::onnx::ExternalData::Always;
        let options = crate::SaveOptions { force: true, external_data };
        for name in ["m.ir", "m.ir.safetensors"] {
            refused(crate::save(&model, at(name), &options).map(drop), name);
            refused(crate::files::write(&at(name), b"x", true, &model.files()), name);
        }
    }

    #[test]
    fn data_that_is_not_meant_is_refused_and_missing_data_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.ir");
        save(&random_model(), &path, false).unwrap();
        let mut data = std::fs::read(data_path(&path)).unwrap();
        *data.last_mut().unwrap() ^= 1;
        std::fs::write(data_path(&path), &data).unwrap();
        assert!(matches!(load(&path), Err(Error::Text { .. })));
        std::fs::write(data_path(&path), &data[..20]).unwrap();
        assert!(matches!(load(&path), Err(Error::Safetensors { .. })));
        std::fs::remove_file(data_path(&path)).unwrap();
        let module = load(&path).unwrap().module;
        let w = module.graph(module.main()).constants()[0];
        assert!(module.constant(w).unwrap().dense().unwrap().to_bytes().is_err());
    }

    #[test]
    fn bytes_that_are_no_text_are_placed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.ir");
        std::fs::write(&path, b"module ir=10\nop\xffset").unwrap();
        let Err(Error::Text { errors, .. }) = load(&path) else { panic!("0xff is no UTF-8") };
        assert_eq!((errors.0[0].line, errors.0[0].column), (2, 3));
    }
}
