//! From a [`Module`] to the bytes of a model.
//!
//! With the file it was read from at hand, writing is copying with corrections: an unchanged message is copied
//! as it stands; a changed message is walked, its changed fields are replaced, and all other fields, unknown
//! fields included, are copied. Without a file, and for new parts, messages are encoded. So an unchanged model
//! is written byte for byte, and a small change makes a small difference.
//!
//! `plan` finds unchanged parts, `bodies` the functions that the operators of ai.ampc need, `patch` corrects
//! messages, `encode` makes new ones; none of them reads or copies a weight, and none recurses: bodies of nodes
//! are laid out before the graphs around them.

mod bodies;
mod encode;
mod patch;
mod plan;
mod value_info;

use super::batch::Batch;
use super::error::{ExportError, Warning};
use super::layout::{Digest, Layout};
use super::provenance;
use super::source::Source;
use super::target;
use super::wire::{Reader, WireError};
use crate::bytes::SourceBytes;
use ampc_ir::module::GraphOwner;
use ampc_ir::tensor::ByteSource;
use ampc_ir::{GraphId, Module, Payload, Value};
use rustc_hash::FxHashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Protobuf readers, ONNX Runtime's among them, refuse files of 2^31 bytes and more.
const MESSAGE_LIMIT: u64 = (1 << 31) - 1;
/// Constants below this size stay in the model when others go to an external file; onnx has the same threshold.
const EXTERNAL_MIN: u64 = 1 << 10;
/// Alignment of constants in an external file, so that readers can map them.
const EXTERNAL_ALIGN: u64 = 4096;
/// The IR version of a model that was not read from a file.
const DEFAULT_IR_VERSION: i64 = 10;

/// Place of large constants: in the model or in an external file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ExternalData {
    /// As in the source; all of them if the model would have 2^31 bytes or more.
    #[default]
    Auto,
    /// All initializers of 1 KiB and more.
    Always,
    /// None.
    Never,
}

/// Options of writing a model.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// True if an existing file may be replaced.
    pub force: bool,
    /// The place of constants.
    pub external_data: ExternalData,
}

/// Summary of the written files.
#[derive(Clone, Debug)]
pub struct WriteReport {
    /// Bytes of the model.
    pub bytes: u64,
    /// The external data file and its bytes, if one was written.
    pub data_file: Option<(PathBuf, u64)>,
    /// Data files of the source that the model refers to, as the source does, and their bytes.
    pub kept_files: Vec<(PathBuf, u64)>,
    /// True if the model is the source, byte for byte.
    pub identical: bool,
    /// Warnings about the model.
    pub warnings: Vec<Warning>,
}

/// Writes a model to a file, or to standard output if `path` is `-`. The file appears complete or not at all.
///
/// References to external data stay as they are if the file goes into the folder of the source and none of the
/// constants behind them changed; else those constants go to a data file beside it, whose name is that of the model
/// with a hash of its bytes (`<path>.<16 digits>.data`), or into the model if it goes to standard output. So model and
/// data file fit together at every moment, and the data file of a model that is replaced goes when no model of the
/// folder refers to it.
///
/// # Errors
/// If the file exists (without `force`), is the source, cannot be written, or would be too large.
pub fn write(
    module: &Module,
    source: Option<&Source>,
    path: &Path,
    options: &WriteOptions,
) -> Result<WriteReport, ExportError> {
    let files = source.map(Source::files).unwrap_or_default();
    let mut batch = Batch::new();
    let report = stage(module, source, &files, path, options, &mut batch)?;
    batch.commit_all()?;
    Ok(report)
}

/// [`write()`] to none of `files`, by a batch that the caller commits.
pub(crate) fn stage(
    module: &Module,
    source: Option<&Source>,
    files: &[Arc<SourceBytes>],
    path: &Path,
    options: &WriteOptions,
    batch: &mut Batch,
) -> Result<WriteReport, ExportError> {
    if path == Path::new("-") {
        if options.external_data == ExternalData::Always {
            return Err(ExportError::NoFolder { path: "standard output".into() });
        }
        let written = limited(lay_out(module, source, Placement::inline())?)?;
        let report = written.report(None);
        batch.stdout(written.model, files);
        return Ok(report);
    }
    target::check(path, options.force, files)?;
    let to = target::behind_links(path);
    let (written, kept_files) = lay_out_for(module, source, files, &to, options)?;
    let mut data_file = None;
    if let (Some(layout), Some(location)) = (&written.data, &written.location) {
        if target::is_stream(path) {
            return Err(ExportError::NoFolder { path: path.display().to_string() });
        }
        let data_path = batch.stage_data(layout, &to, &location.digest, options.force, files)?;
        data_file = Some((data_path, layout.len()));
    }
    let report = WriteReport { kept_files, ..written.report(data_file) };
    let data_files = report.data_file.iter().chain(&report.kept_files).map(|(path, _)| path.clone());
    batch.stage_model(written.model, path, options.force, data_files.collect(), files)?;
    Ok(report)
}

/// A model laid out for a file, with the data files of the source to which it still refers.
fn lay_out_for(
    module: &Module,
    source: Option<&Source>,
    files: &[Arc<SourceBytes>],
    path: &Path,
    options: &WriteOptions,
) -> Result<(Written, Vec<(PathBuf, u64)>), ExportError> {
    let location = Location::beside(path);
    let placement = |elements| Placement { elements, location: location.clone(), keep_references: false };
    let mut kept_files = Vec::new();
    let written = match options.external_data {
        ExternalData::Never => lay_out(module, source, placement(Elements::Inline))?,
        ExternalData::Always if location.is_none() => {
            return Err(ExportError::NameNotUtf8 { path: path.display().to_string() });
        }
        ExternalData::Always => lay_out(module, source, placement(Elements::External))?,
        ExternalData::Auto => {
            let keep_references = source.is_some_and(|s| may_refer(module, s, path));
            let as_is = Placement { keep_references, ..placement(Elements::AsInSource) };
            let written = lay_out(module, source, as_is)?;
            if written.model.len() <= MESSAGE_LIMIT {
                let kept = files.iter().skip(1).filter(|_| keep_references);
                kept_files = kept.filter_map(|f| Some((f.path()?.to_owned(), f.len()))).collect();
                written
            } else {
                lay_out(module, source, placement(Elements::External))?
            }
        }
    };
    Ok((limited(written)?, kept_files))
}

/// True if [`write()`] will make a data file beside `path`, even if constants are converted to 16 bits or
/// removed until then. `false` where that cannot be known yet.
pub fn needs_data_file(
    module: &Module,
    source: Option<&Source>,
    path: &Path,
    options: &WriteOptions,
) -> bool {
    let mut constants = module.graph(module.main()).constants().iter().filter(|&&v| {
        let data = module.constant(v).and_then(Payload::dense);
        data.is_some_and(|d| d.byte_len() >= 2 * EXTERNAL_MIN) && module.uses(v).next().is_some()
    });
    match options.external_data {
        ExternalData::Never => false,
        ExternalData::Always => constants.next().is_some(),
        ExternalData::Auto => {
            source.is_some_and(|s| !in_folder_of(s, path) && constants.any(|v| s.external_values.contains(v)))
        }
    }
}

/// The bytes of a model, in memory. References to external data stay unless a constant behind them changed.
///
/// # Errors
/// If the source cannot be read again, or the model has 2^31 bytes or more.
pub fn to_bytes(module: &Module, source: Option<&Source>) -> Result<(Vec<u8>, WriteReport), ExportError> {
    let keep_references = source.is_some_and(|s| !references_changed(module, s));
    let placement = Placement { keep_references, ..Placement::inline() };
    let written = limited(lay_out(module, source, placement)?)?;
    let mut bytes = Vec::with_capacity(usize::try_from(written.model.len()).unwrap_or(0));
    target::send(&written.model, &mut bytes, "memory")?;
    Ok((bytes, written.report(None)))
}

/// False entries of `value_info`, for a module whose types have been inferred: the entries that [`write()`]
/// would omit from a changed graph.
///
/// # Errors
/// If the source cannot be read again.
pub fn false_value_info(module: &Module, source: &Source) -> Result<Vec<Warning>, WireError> {
    let mut exporter = Exporter::new(module, Some(source), Placement::inline());
    for graph in plan::graphs(module) {
        exporter.check_declared_types(graph)?;
    }
    Ok(exporter.warnings)
}

/// A model laid out, ready to be streamed.
struct Written {
    model: Layout,
    data: Option<Layout>,
    /// The location of the data in the model.
    location: Option<Location>,
    identical: bool,
    warnings: Vec<Warning>,
}

impl Written {
    fn report(&self, data_file: Option<(PathBuf, u64)>) -> WriteReport {
        WriteReport {
            bytes: self.model.len(),
            data_file,
            kept_files: Vec::new(),
            identical: self.identical,
            warnings: self.warnings.clone(),
        }
    }
}

fn limited(written: Written) -> Result<Written, ExportError> {
    let bytes = written.model.len();
    if bytes > MESSAGE_LIMIT {
        return Err(ExportError::TooLarge { bytes, limit: MESSAGE_LIMIT });
    }
    Ok(written)
}

/// The name of a data file, which ends in the hash of its bytes.
#[derive(Clone, Debug)]
struct Location {
    model: String,
    digest: Digest,
}

impl Location {
    fn beside(model: &Path) -> Option<Location> {
        let model = model.file_name()?.to_str()?.to_owned();
        Some(Location { model, digest: Digest::default() })
    }
}

/// The destination of the elements of initializers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Elements {
    /// Into the model.
    Inline,
    /// Into the external file, if there are enough of them.
    External,
    /// Their place in the source.
    AsInSource,
}

#[derive(Clone, Debug)]
struct Placement {
    elements: Elements,
    /// Name of the external file; `None` if a model cannot spell it.
    location: Option<Location>,
    /// True if references to external files stay.
    keep_references: bool,
}

impl Placement {
    fn inline() -> Placement {
        Placement { elements: Elements::Inline, location: None, keep_references: false }
    }
}

fn references_changed(module: &Module, source: &Source) -> bool {
    source.external_values.iter().any(|&v| module.value(v).dirty)
}

/// True if a model at `path` may refer to the external files of the source.
fn may_refer(module: &Module, source: &Source, path: &Path) -> bool {
    in_folder_of(source, path) && !references_changed(module, source)
}

fn in_folder_of(source: &Source, path: &Path) -> bool {
    let folder = |p: &Path| {
        let parent = p.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::canonicalize(parent).ok()
    };
    source.bytes.path().is_some_and(|p| folder(p).is_some() && folder(p) == folder(path))
}

fn lay_out(module: &Module, source: Option<&Source>, placement: Placement) -> Result<Written, ExportError> {
    let order = plan::graphs(module);
    let location = placement.location.clone();
    let mut exporter = Exporter::new(module, source, placement);
    plan::check_constants(module, &order)?;
    exporter.clean = plan::clean(&exporter, &order);
    exporter.functions = bodies::plan(&exporter, &order)?;
    let metadata = provenance::model_metadata(module, &order, exporter.ir_version());
    let model = if exporter.is_identical(&order, &metadata) {
        let mut model = Layout::new();
        if let Some(source) = source {
            model.range(&source.shared, Reader::new(&*source.shared).all());
        }
        Ok((model, true))
    } else {
        exporter.model(&order, &metadata).map(|model| (model, false))
    };
    let (model, identical) = model.map_err(|error| ExportError::Source {
        path: source.map(|s| s.bytes.describe()).unwrap_or_default(),
        source: error,
    })?;
    let Exporter { data, warnings, .. } = exporter;
    let data = (!data.is_empty()).then_some(data);
    Ok(Written { model, data, location, identical, warnings })
}

struct Exporter<'a> {
    module: &'a Module,
    source: Option<&'a Source>,
    placement: Placement,
    reader: Option<Reader<'a>>,
    clean: plan::Clean,
    /// The functions of the operators of ai.ampc.
    functions: bodies::Functions,
    /// Contents of the graphs that changed, bodies before their owners; taken out when the owner is laid out.
    bodies: FxHashMap<GraphId, Layout>,
    data: Layout,
    warnings: Vec<Warning>,
}

impl<'a> Exporter<'a> {
    fn new(module: &'a Module, source: Option<&'a Source>, placement: Placement) -> Exporter<'a> {
        Exporter {
            module,
            source,
            placement,
            reader: source.map(|s| Reader::new(&*s.shared)),
            clean: plan::Clean::default(),
            functions: bodies::Functions::default(),
            bodies: FxHashMap::default(),
            data: Layout::new(),
            warnings: Vec::new(),
        }
    }

    fn model(&mut self, order: &[GraphId], metadata: &[(String, String)]) -> Result<Layout, WireError> {
        for &graph in order.iter().rev() {
            if self.clean.graphs.contains(&graph) {
                continue;
            }
            let content = match self.module.graph(graph).owner {
                GraphOwner::Function(function) => self.function(function)?,
                GraphOwner::Main | GraphOwner::Body { .. } | GraphOwner::Erased => self.graph(graph)?,
            };
            self.bodies.insert(graph, content);
        }
        match self.source {
            Some(_) => self.patched_model(metadata),
            None => Ok(self.new_model(metadata)),
        }
    }

    /// The content of a graph message: that of the source, or the one laid out before.
    fn content(&mut self, graph: GraphId) -> Layout {
        if let Some(layout) = self.bodies.remove(&graph) {
            return layout;
        }
        let mut layout = Layout::new();
        if let Some(source) = self.source
            && let Some(record) = source.graphs.get(&graph)
        {
            layout.range(&source.shared, record.at.body);
        }
        layout
    }

    /// The reader of the source; only called for parts of the source.
    fn reader(&mut self) -> &mut Reader<'a> {
        self.reader.as_mut().expect("what has an origin has a source")
    }

    fn shared(&self) -> &'a Arc<dyn ByteSource> {
        &self.source.expect("what has an origin has a source").shared
    }

    /// The name of a value in the file; empty for an absent one.
    fn name(&self, value: Option<Value>) -> String {
        let Some(value) = value else { return String::new() };
        match self.module.value_name(value) {
            Some(name) => self.module.text(name).to_owned(),
            // Captures are named by what they capture, all else has a name unless somebody built it without.
            None => plan::spare_name(self.module, value),
        }
    }
}
