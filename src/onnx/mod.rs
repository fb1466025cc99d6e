//! Reading and writing ONNX files. Only this module knows protobuf.
//!
//! A file is *walked*, not decoded: the walk goes over the wire format through a small window ([`wire`]), notes
//! where every message is and jumps over the bytes of weights, so reading costs time and memory for the graph
//! and next to nothing for a gigabyte of constants. The file is read with positioned reads, because truncating
//! a memory-mapped file kills the process.
//!
//! Writing is the mirror image: a [`layout`] of segments (bytes made here, ranges copied from a file, constants
//! converted on the way) whose lengths are all known before the first byte is written. Unchanged parts are
//! copied from the source, including fields that this version does not know.

/// Files as bytes.
pub mod bytes {
    pub use crate::bytes::{FileId, MAX_PIPE, SourceBytes};
}
pub(crate) mod batch;
#[cfg(feature = "run")]
pub mod data;
pub(crate) mod data_file;
pub mod error;
pub mod export;
pub mod external;
pub mod import;
pub mod layout;
pub mod node;
#[doc(hidden)]
pub mod proto;
mod provenance;
pub mod references;
pub mod scan;
mod schema;
pub mod source;
pub(crate) mod sparse;
pub mod target;
pub mod tensor;
mod types;
mod wellformed;
pub mod wire;

pub use error::{Blame, ExportError, ImportError, Problem, ProblemKind, Warning};
pub(crate) use export::stage;
pub use export::{
    ExternalData, WriteOptions, WriteReport, false_value_info, needs_data_file, to_bytes, write,
};
pub use import::{ReadOptions, read, read_bytes};
pub use source::Source;
