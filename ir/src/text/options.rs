//! Options, results and errors of printing and reading texts.

use crate::dtype::DType;
use crate::entity::{Node, SecondaryMap};
use crate::tensor::{ByteSource, FileRange, Storage, TensorData, TensorError};
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Bodies and types may nest this deep.
pub const MAX_DEPTH: usize = 256;

/// Constants of up to this many elements stand in the text.
pub const MAX_INLINE: u64 = 16;

/// Parts to print besides the module itself.
#[derive(Clone, Copy, Default)]
pub struct PrintOptions<'a> {
    /// Comment lines to put below a node: every line of the result becomes a `// …` line.
    pub note: Option<&'a dyn Fn(Node) -> Option<String>>,
    /// Leaves the hashes of large constants out, so that no weight is read: for diagnostics. Such a text does
    /// not say which bytes it means and is not canonical.
    pub omit_hashes: bool,
}

/// A printed module.
#[derive(Debug, Default)]
pub struct Printed {
    /// The text.
    pub text: String,
    /// For every printed node, the bytes of its line without indentation; for a node with bodies, the bytes of
    /// its first line.
    pub nodes: SecondaryMap<Node, Option<Range<usize>>>,
    /// The constants whose bytes are not in the text, in order of first appearance.
    pub large: Vec<LargeConstant>,
    /// Constants whose bytes could not be read; the text shows them as `data("name")` without hash.
    pub errors: Vec<TensorError>,
}

/// A constant that the text only names.
#[derive(Clone, Debug)]
pub struct LargeConstant {
    /// Its name in `data("…")`: unique in the module, equal bytes of one dtype and shape share one.
    pub name: String,
    /// The constant as stored, without pending conversions.
    pub data: TensorData,
}

/// Finds the bytes of large constants.
///
/// A closure of the same signature is one.
pub trait DataResolver {
    /// The constant `name` as stored; `hash` is the xxh3-128 that the text gives. `None` if it is not there.
    fn resolve(&self, name: &str, dtype: DType, dims: &[u64], hash: Option<u128>) -> Option<TensorData>;
}

impl<F: Fn(&str, DType, &[u64], Option<u128>) -> Option<TensorData>> DataResolver for F {
    fn resolve(&self, name: &str, dtype: DType, dims: &[u64], hash: Option<u128>) -> Option<TensorData> {
        self(name, dtype, dims, hash)
    }
}

/// A resolver without data, for texts whose constants are all small or random.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoData;

impl DataResolver for NoData {
    fn resolve(&self, _: &str, _: DType, _: &[u64], _: Option<u128>) -> Option<TensorData> {
        None
    }
}

/// Options of reading a text.
#[derive(Clone, Copy, Debug, Default)]
pub struct ParseOptions {
    /// Accepts large constants that the resolver does not have: dumps and reproducers come without weights. Such
    /// a constant has dtype, shape and hash, and fails when its bytes are read.
    pub allow_missing_data: bool,
    /// Trusts that resolved data has the hash of the text, instead of reading it to check.
    pub trust_data: bool,
}

/// Something the text should not say.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}, column {column}: expected {expected}, found {found}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The bytes of the text it is about.
    pub span: Range<usize>,
    /// The expected text.
    pub expected: String,
    /// The text found.
    pub found: String,
    /// The subject of the error.
    pub about: ParseSubject,
}

/// Subjects of errors of a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParseSubject {
    /// The text itself, or data that cannot be read.
    Text,
    /// Data of a constant that has another hash than the text says.
    DataHash,
}

/// Everything that is wrong with a text; never empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseErrors(pub Vec<ParseError>);

impl fmt::Display for ParseErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ParseErrors {}

/// Stands for the bytes of a constant whose text came without them.
#[derive(Debug)]
pub(super) struct MissingData {
    name: String,
    len: u64,
    hash: Option<u128>,
}

impl MissingData {
    /// A constant whose bytes are missing.
    pub(super) fn tensor(
        name: &str,
        dtype: DType,
        dims: &[u64],
        hash: Option<u128>,
    ) -> Result<TensorData, TensorError> {
        // A size that does not fit is refused by `TensorData::new` itself.
        let len = dtype.tensor_bytes(dims).unwrap_or(0);
        let source = Arc::new(MissingData { name: name.to_owned(), len, hash });
        TensorData::new(dtype, dims.iter().copied(), Storage::File(FileRange { source, offset: 0, len }))
    }
}

impl ByteSource for MissingData {
    fn read_exact_at(&self, _: &mut [u8], _: u64) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::NotFound, "the text came without its large constants"))
    }
    fn len(&self) -> u64 {
        self.len
    }
    fn describe(&self) -> String {
        format!("data(\"{}\")", self.name)
    }
    fn known_hash(&self, _: u64, _: u64) -> Option<u128> {
        self.hash
    }
}
