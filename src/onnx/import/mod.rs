//! From the bytes of a model to a [`Module`].
//!
//! Reading never changes the program: it names what is wrong, all of it where the problems are independent, repairs
//! what has one obvious meaning (order of nodes, missing opset imports) with a warning, and stops there.
//! Types other than those of constants, inputs and outputs are left to inference; `value_info` is not believed.
//!
//! Before anything else `wellformed` walks the file: every field that ONNX has, used or not, is encoded as it should.
//! Then four steps, none of which recurses, so that hostile nesting meets a limit and not the end of the stack:
//!
//! 1. `raw` reads every graph into a table, bodies after the graph of their owner;
//! 2. `scope` resolves names: what a body does not define it takes from outside;
//! 3. `scope` sorts the nodes of every graph, captures counted as operands;
//! 4. `build` makes the module, graph by graph, in the order of the table.

mod build;
mod names;
mod operator;
mod raw;
mod scope;

use super::bytes::SourceBytes;
use super::error::{ImportError, Problem, ProblemKind, Warning};
use super::external::ExternalFiles;
use super::source::Source;
use super::wellformed;
use super::wire::{Reader, Span, WireError};
use ampc_ir::Module;
use ampc_ir::tensor::ByteSource;
use std::path::Path;
use std::sync::Arc;

/// How to read a model.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// How deep bodies may nest.
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
/// If the file cannot be read, is no model, or the model is invalid.
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
    if let Some(found) = foreign(&mut reader).map_err(wire)? {
        return Err(ImportError::NotAModel { path, found });
    }
    wellformed::check(&mut reader).map_err(wire)?;
    let mut import = Import {
        module: Module::new(),
        reader,
        shared: &shared,
        external: ExternalFiles::of(folder),
        problems: Vec::new(),
        warnings: Vec::new(),
        max_depth: options.max_depth,
        external_attr: false,
    };
    let tables = import.tables().map_err(wire)?;
    match tables {
        Some(tables) if import.problems.is_empty() => {
            let Import { module, external, mut warnings, .. } = import;
            let (module, source, stale) =
                build::build(module, tables, bytes.clone(), shared.clone(), external);
            if let Some((first, others)) = stale.split_first() {
                warnings.push(Warning::StaleProvenance { first: first.clone(), more: others.len() });
            }
            Ok((module, source, warnings))
        }
        _ => Err(ImportError::Invalid { path, problems: import.problems }),
    }
}

/// What is carried through the steps.
struct Import<'s> {
    module: Module,
    reader: Reader<'s>,
    shared: &'s Arc<dyn ByteSource>,
    external: ExternalFiles,
    problems: Vec<Problem>,
    warnings: Vec<Warning>,
    max_depth: usize,
    /// Whether the attribute that was read last has elements in an external file.
    external_attr: bool,
}

impl Import<'_> {
    /// Steps 1 to 3; `None` if a problem leaves nothing to go on with.
    fn tables(&mut self) -> Result<Option<raw::Tables>, WireError> {
        let Some(mut tables) = self.read_tables()? else { return Ok(None) };
        scope::resolve(self, &mut tables);
        scope::check_calls(self, &tables);
        Ok(Some(tables))
    }

    fn problem(&mut self, place: impl Into<String>, kind: ProblemKind) {
        self.problems.push(Problem { place: place.into(), kind });
    }
}

/// What the file is, if it is recognisably not a model.
fn foreign(reader: &mut Reader<'_>) -> Result<Option<&'static str>, WireError> {
    let all = reader.all();
    let head = reader.bytes(Span { offset: 0, len: all.len.min(64) })?;
    Ok(match head {
        [] => Some("the file is empty"),
        _ if head.starts_with(b"version https://git-lfs.github.com/spec/") => {
            Some("it is a git-LFS pointer; fetch the real file with `git lfs pull`")
        }
        _ if head.starts_with(b"PK\x03\x04") => {
            Some("it is a zip archive; unpack it and name the model in it")
        }
        _ if head.starts_with(b"ORTM") || head.get(4..8) == Some(b"ORTM") => {
            Some("it is in ONNX Runtime's own format; use the model it was made from")
        }
        _ if head.starts_with(b"<!DOCTYPE") || head.starts_with(b"<html") => {
            Some("it is a web page; the download went wrong")
        }
        _ => None,
    })
}
