//! The text form as files: `X.ir`, and `X.ir.safetensors` beside it for large constants.
//!
//! Neither direction copies a weight into memory: reading leaves a constant as a range of the safetensors file,
//! writing streams it. A text without its safetensors file can be read (dumps and reproducers are such texts);
//! the constants then have type and hash, and reading their bytes fails.
//!
//! Element types that safetensors lacks are stored as `U8`; the text has the true type.

use crate::batch::Batch;
use crate::bytes::SourceBytes;
use crate::error::{Error, unreadable};
use crate::files::MAX_TEXT;
use crate::loaded::Model;
use crate::onnx::ExportError;
use crate::onnx::layout::Layout;
use crate::onnx::target::{self, TargetError};
use crate::safetensors::{self, Tensors};
use crate::state_hash::POSITION;
use ampc_ir::tensor::{Storage, TensorError};
use ampc_ir::text::{
    DataResolver, LargeConstant, MAX_INLINE, ParseError, ParseErrors, ParseOptions, ParseSubject,
    PrintOptions, parse_with, print,
};
use ampc_ir::{DType, Module, Payload, TensorData};
use ampc_passes::step::state::IDENTITY;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Summary of the written files.
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
/// If a file cannot be read or has more than [`MAX_TEXT`] bytes of text, the text is not a module, or the
/// constants do not match it.
pub fn load(path: &Path) -> Result<Model, Error> {
    let (text, file) = read(path)?;
    let text_error = |errors| Error::Text { path: path.to_owned(), errors };
    let (tensors, data) = Tensors::open(&data_path(path))?.unzip();
    let options = ParseOptions { allow_missing_data: tensors.is_none(), ..ParseOptions::default() };
    let mut module = parse_with(&text, &tensors.unwrap_or_default(), &options).map_err(text_error)?;
    ampc_passes::step::restore_states(&mut module);
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
    let (expected, about) = ("UTF-8".into(), ParseSubject::Text);
    ParseErrors(vec![ParseError { line, column, span: at..at + 1, expected, found, about }])
}

impl DataResolver for Tensors {
    fn resolve(&self, name: &str, dtype: DType, dims: &[u64], _: Option<u128>) -> Option<TensorData> {
        self.get(name)?.read_as(dtype, dims)
    }
}

/// True if [`save`] will write a file of large constants, even after unused constants are removed.
pub fn needs_data_file(module: &Module) -> bool {
    module.graph(module.main()).constants().iter().any(|&v| {
        let data = module.constant(v).and_then(Payload::dense);
        let large = |d: &Arc<TensorData>| {
            matches!(d.storage(), Storage::Bytes(_) | Storage::File(_) | Storage::Zeros)
                && d.element_count() > MAX_INLINE
        };
        data.is_some_and(large) && module.uses(v).next().is_some()
    })
}

/// Writes a model in text form, its large constants to `<path>.safetensors`.
///
/// # Errors
/// If a file exists and `force` is not set, the model was read from it (a text and its data included), it has
/// tensors that the replaced text does not refer to, or it cannot be written.
pub fn save(model: &Model, path: &Path, force: bool) -> Result<TextReport, Error> {
    let mut batch = Batch::new();
    let report = stage(model, path, force, &mut batch)?;
    batch.commit()?;
    Ok(report)
}

/// [`save`] that leaves it to a batch to give the files their names.
///
/// # Errors
/// Errors as for [`save`].
pub fn stage(model: &Model, path: &Path, force: bool, batch: &mut Batch) -> Result<TextReport, Error> {
    stage_as(model, path, &data_path, force, batch, || {
        let mut printed = print(&model.module, &PrintOptions::default());
        match printed.errors.pop() {
            Some(error) => Err(error),
            None => Ok((printed.text, printed.large)),
        }
    })
}

/// Stages the output of `print` for a model: text for `path`, large constants for the `data_path` of the file
/// that it leads to.
pub(crate) fn stage_as(
    model: &Model,
    path: &Path,
    data_path: &dyn Fn(&Path) -> PathBuf,
    force: bool,
    batch: &mut Batch,
    print: impl FnOnce() -> Result<(String, Vec<LargeConstant>), TensorError>,
) -> Result<TextReport, Error> {
    let known = model.files();
    let place = |e| Error::Export(ExportError::Target(e));
    target::check(path, force, &known).map_err(place)?;
    let (printed, large) = print().map_err(unreadable)?;
    let mut data_file = None;
    if !large.is_empty() {
        if target::is_stream(path) {
            return Err(no_place_beside(path));
        }
        let large = large.into_iter().map(|LargeConstant { name, data }| (name, Arc::new(data)));
        let layout = safetensors::layout(large.collect())?;
        let data_path = data_path(&target::behind_links(path));
        data_file = Some((data_path.clone(), layout.len()));
        check_data(path, &data_path, force, &known)?;
        batch.stage_beside(layout, &data_path, &target::behind_links(path), force, &known).map_err(place)?;
    }
    let mut text = Layout::new();
    text.bytes(printed.as_bytes());
    let bytes = text.len();
    batch.stage_model(text, path, force, Vec::new(), &known).map_err(place)?;
    Ok(TextReport { bytes, data_file })
}

/// Checks that the constants of the text or JSON at `path` may be written to the safetensors file at `data`. One that
/// is there is replaced only together with a text of ampc that refers to all that is in it: any program may have made
/// a file of that name.
///
/// # Errors
/// If the file exists and `force` is not set, is one of `read`, has other tensors, or cannot be written.
pub fn check_data(path: &Path, data: &Path, force: bool, read: &[Arc<SourceBytes>]) -> Result<(), Error> {
    target::check(data, force, read).map_err(ExportError::from)?;
    if !data.exists() || target::is_stream(data) || (is_data_of(path, data) && !is_state(data)) {
        return Ok(());
    }
    let shown = |path: &Path| path.display().to_string();
    Err(ExportError::from(TargetError::NotItsData { path: shown(data), text: shown(path) }).into())
}

/// True if ampc wrote the safetensors file and every tensor in it is referred to by a text or JSON, by name,
/// type and dims. No bytes of tensors are read.
fn is_data_of(path: &Path, data: &Path) -> bool {
    let (Ok(Some((tensors, _))), true) = (Tensors::open(data), path.is_file()) else { return false };
    let Ok((text, _)) = read(path) else { return false };
    let named: RefCell<BTreeSet<String>> = RefCell::default();
    let resolver = |name: &str, dtype: DType, dims: &[u64], _: Option<u128>| -> Option<TensorData> {
        if tensors.get(name).is_some_and(|entry| entry.read_as(dtype, dims).is_some()) {
            named.borrow_mut().insert(name.to_owned());
        }
        None
    };
    let options = ParseOptions { allow_missing_data: true, ..ParseOptions::default() };
    let parsed = match text.trim_start().starts_with('{') {
        true => crate::json::parse(&text, &resolver, &options),
        false => parse_with(&text, &resolver, &options),
    };
    let named = named.take();
    parsed.is_ok() && tensors.is_of_ampc() && tensors.iter().all(|(name, _)| named.contains(name))
}

/// True if a safetensors file is the state of a training step or a checkpoint: the tensors of either may have the names of
/// the constants of a text.
fn is_state(data: &Path) -> bool {
    let tensors = Tensors::open(data).ok().flatten();
    tensors.is_some_and(|(tensors, _)| [IDENTITY, POSITION].iter().any(|key| tensors.metadata(key).is_some()))
}

/// The reason why a text with large constants is not written to a pipe or device.
fn no_place_beside(path: &Path) -> Error {
    Error::Usage(format!(
        "large constants go to a safetensors file beside the output, but `{}` is a pipe or device; write to a file, \
         or to standard output (`-`), which receives the text without them",
        path.display()
    ))
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
