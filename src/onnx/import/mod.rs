//! From the bytes of a model to a [`Module`].
//!
//! Reading never changes the program: it reports all independent problems, and repairs only defects with one
//! obvious meaning (order of nodes, missing opset imports), with a warning. Only types of constants, inputs and
//! outputs are read, other types are inferred; `value_info` is not trusted.
//!
//! First `wellformed` walks the file and checks the encoding of every field that ONNX defines, used or not.
//! Then five steps, none of which recurses, so that hostile nesting meets a limit and not the end of the stack:
//!
//! 1. `raw` reads every graph into a table, bodies after the graph of their owner;
//! 2. `scope` resolves names: names that a body does not define are captured from outside;
//! 3. `scope` sorts the nodes of every graph, captures counted as operands;
//! 4. `bodies` finds the functions that are operators of ai.ampc;
//! 5. `build` makes the module, graph by graph, in the order of the table.

mod bodies;
mod build;
mod foreign;
mod names;
mod operator;
mod raw;
mod scope;

use super::error::{ImportError, Problem, ProblemKind, Warning};
use super::external::ExternalFiles;
use super::source::Source;
use super::sparse::MAX_DENSE;
use super::wellformed;
use super::wire::{Reader, WireError, WireErrorKind};
use crate::bytes::SourceBytes;
use ampc_ir::tensor::ByteSource;
use ampc_ir::{Module, Symbol};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The number of problems that are kept; further problems are only counted.
const MAX_PROBLEMS: usize = 10_000;

/// Options of reading a model.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// The largest nesting depth of bodies.
    pub max_depth: usize,
}

impl Default for ReadOptions {
    fn default() -> Self {
        ReadOptions { max_depth: 256 }
    }
}

/// Reads a model from a file; `-` is standard input.
///
/// # Errors
/// If the file cannot be read, is not a model, or the model is invalid.
pub fn read(path: &Path, options: &ReadOptions) -> Result<(Module, Source, Vec<Warning>), ImportError> {
    let opened = if path == Path::new("-") {
        SourceBytes::spool("standard input", &mut std::io::stdin().lock())
    } else {
        SourceBytes::open(path)
    };
    let bytes = opened.map_err(|source| ImportError::Open { path: path.display().to_string(), source })?;
    read_source(bytes, options)
}

/// Reads a model from memory; `name` is for messages. It cannot have external data.
///
/// # Errors
/// As [`read`].
pub fn read_bytes(
    name: &str,
    bytes: impl Into<Box<[u8]>>,
    options: &ReadOptions,
) -> Result<(Module, Source, Vec<Warning>), ImportError> {
    read_source(SourceBytes::from_memory(name, bytes), options)
}

fn read_source(
    bytes: SourceBytes,
    options: &ReadOptions,
) -> Result<(Module, Source, Vec<Warning>), ImportError> {
    let path = bytes.describe();
    let folder = bytes.path().map(|p| p.parent().unwrap_or(Path::new("")).to_owned());
    let bytes = Arc::new(bytes);
    let shared: Arc<dyn ByteSource> = bytes.clone();
    let mut reader = Reader::new(&*shared);
    let wire = |source| ImportError::Wire { path: path.clone(), source };
    if let Some(found) = foreign::surely(&mut reader).map_err(wire)? {
        return Err(ImportError::NotAModel { path, found });
    }
    if let Err(source) = wellformed::check(&mut reader) {
        return Err(malformed(&mut reader, path, source, options));
    }
    let mut import = Import {
        module: Module::new(),
        reader,
        shared: &shared,
        external: ExternalFiles::of(folder),
        problems: Vec::new(),
        warnings: Vec::new(),
        max_depth: options.max_depth,
        wrong_files: FxHashMap::default(),
        dense_left: MAX_DENSE,
        sparse_initializers: 0,
        more_problems: 0,
        imports_seen: FxHashSet::default(),
        opset_of: FxHashMap::default(),
        similar: FxHashMap::default(),
        external_attr: false,
        runtime_only: BTreeMap::new(),
    };
    let tables = import.tables().map_err(wire)?;
    match tables {
        Some(tables) if import.problems.is_empty() => {
            let Import { module, external, mut warnings, runtime_only, .. } = import;
            let of =
                |((op, opset), (first, count))| Warning::RuntimeOnly { op, opset, first, more: count - 1 };
            warnings.extend(runtime_only.into_iter().map(of));
            let (mut module, source, stale) =
                build::build(module, tables, bytes.clone(), shared.clone(), external);
            if let Some((first, others)) = stale.split_first() {
                warnings.push(Warning::StaleProvenance { first: first.clone(), more: others.len() });
            }
            ampc_passes::step::restore_states(&mut module);
            Ok((module, source, warnings))
        }
        _ => Err(ImportError::Invalid { path, problems: import.problems, more: import.more_problems }),
    }
}

/// The error of a file that breaks the wire format.
fn malformed(reader: &mut Reader<'_>, path: String, source: WireError, options: &ReadOptions) -> ImportError {
    // Only bodies nest as deep as that.
    if matches!(source.kind, WireErrorKind::TooDeep { limit: wellformed::MAX_DEPTH }) {
        let kind = ProblemKind::TooDeep { limit: options.max_depth };
        let problems = vec![Problem { place: String::new(), kind }];
        return ImportError::Invalid { path, problems, more: 0 };
    }
    match foreign::likely(reader) {
        Some(found) if !matches!(source.kind, WireErrorKind::Io(_)) => ImportError::NotAModel { path, found },
        Some(_) | None => ImportError::Wire { path, source },
    }
}

/// State that the steps of importing share.
struct Import<'s> {
    module: Module,
    reader: Reader<'s>,
    shared: &'s Arc<dyn ByteSource>,
    external: ExternalFiles,
    problems: Vec<Problem>,
    warnings: Vec<Warning>,
    max_depth: usize,
    /// Index of the problem of each data file that cannot be read.
    wrong_files: FxHashMap<String, usize>,
    /// Bytes that sparse initializers may still take as dense tensors.
    dense_left: u64,
    /// The number of sparse initializers.
    sparse_initializers: usize,
    /// The number of problems beyond the kept problems.
    more_problems: usize,
    /// The main graph (`None`) and the functions whose imports are in `opset_of`.
    imports_seen: FxHashSet<Option<usize>>,
    /// The opset of each domain that is imported or has been assumed, by the function that imports it.
    opset_of: FxHashMap<(Option<usize>, Symbol), u16>,
    /// Suggestions for unknown operators, by domain and name.
    similar: FxHashMap<(Symbol, Symbol), Option<&'static str>>,
    /// True if the attribute that was read last has elements in an external file.
    external_attr: bool,
    /// Operators that only ONNX Runtime has at the opset: the first node, and how many there are.
    runtime_only: BTreeMap<(&'static str, u16), (String, usize)>,
}

impl Import<'_> {
    /// Steps 1 to 4; `None` if a problem prevents the next steps.
    fn tables(&mut self) -> Result<Option<raw::Tables>, WireError> {
        let Some(mut tables) = self.read_tables()? else { return Ok(None) };
        scope::resolve(self, &mut tables);
        scope::check_calls(self, &tables);
        bodies::recognise(self, &mut tables);
        Ok(Some(tables))
    }

    /// Adds a warning; a frequent warning is added once, with its count.
    fn warn(&mut self, warning: Warning) {
        if !self.warnings.iter_mut().any(|said| said.absorbs(&warning)) {
            self.warnings.push(warning);
        }
    }

    fn problem(&mut self, place: impl Into<String>, kind: ProblemKind) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(Problem { place: place.into(), kind });
        } else {
            self.more_problems += 1;
        }
    }
}
