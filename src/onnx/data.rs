//! Values in files of their own, as ONNX's test-data folders have them (`input_0.pb`): a `TensorProto`,
//! `SequenceProto` or `OptionalProto`, which of them only the model says.

use super::bytes::SourceBytes;
use super::external::ExternalFiles;
use super::tensor::{TensorFailure, read_tensor};
use super::wire::{Fields, Reader, Span, WireError};
use ampc_ir::tensor::ByteSource;
use ampc_ir::{DType, Shape, Type};
use ampc_runtime::data::{Data, Maybe, Sequence};
use ampc_runtime::{HostError, HostTensor};
use std::sync::Arc;

/// Why a file is not the value it should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// It is no protobuf message.
    #[error("it is no protobuf message: {0}")]
    Wire(String),
    /// A tensor in it is wrong.
    #[error("{0}")]
    Tensor(String),
    /// There is not enough memory, or its bytes cannot be read.
    #[error(transparent)]
    Host(#[from] HostError),
    /// It has something that is not supported.
    #[error("expected tensors, sequences and optionals of them, found {0}")]
    Unsupported(&'static str),
    /// Lists in lists in lists.
    #[error("expected at most {MAX_DEPTH} lists in each other, found more")]
    Depth,
}

impl From<WireError> for DataError {
    fn from(error: WireError) -> DataError {
        DataError::Wire(error.to_string())
    }
}

/// Sequences and optionals may nest this deep.
const MAX_DEPTH: usize = 16;

/// Reads a value of the type that `ty` says; one of unknown type is a tensor.
///
/// # Errors
/// See [`DataError`].
pub fn read_data(bytes: SourceBytes, ty: &Type) -> Result<Data, DataError> {
    let source: Arc<dyn ByteSource> = Arc::new(bytes);
    let mut reader = Reader::new(&*source);
    let span = reader.all();
    Messages { source: source.clone(), external: ExternalFiles::of(None) }.value(&mut reader, span, ty, 0)
}

struct Messages {
    source: Arc<dyn ByteSource>,
    external: ExternalFiles,
}

/// Fields of SequenceProto and OptionalProto by what they hold: 3 tensors, 5 sequences, 7 optionals.
const TENSOR: u32 = 3;
const SEQUENCE: u32 = 5;
const OPTIONAL: u32 = 7;

impl Messages {
    fn value(
        &mut self,
        reader: &mut Reader<'_>,
        span: Span,
        ty: &Type,
        depth: usize,
    ) -> Result<Data, DataError> {
        if depth > MAX_DEPTH {
            return Err(DataError::Depth);
        }
        match ty {
            Type::Sequence(element) => {
                let items = self.items(reader, span, element, depth)?;
                Ok(Data::Sequence(Sequence { element: (**element).clone(), items }))
            }
            Type::Optional(element) => {
                let value = self.items(reader, span, element, depth)?.into_iter().next().map(Box::new);
                Ok(Data::Optional(Maybe { element: (**element).clone(), value }))
            }
            _ => self.tensor(reader, span).map(Data::Tensor),
        }
    }

    fn items(
        &mut self,
        reader: &mut Reader<'_>,
        span: Span,
        element: &Type,
        depth: usize,
    ) -> Result<Vec<Data>, DataError> {
        let mut items = Vec::new();
        let mut fields = Fields::of(span);
        let other = Type::tensor(DType::F32, Shape::unknown());
        while let Some(field) = fields.next(reader)? {
            let ty = match (field.number, element) {
                (1 | 2, _) => continue,
                (TENSOR, _) => &other,
                (SEQUENCE, Type::Sequence(_)) | (OPTIONAL, Type::Optional(_)) => element,
                (SEQUENCE | OPTIONAL, _) => return Err(DataError::Unsupported("a list of another type")),
                _ => return Err(DataError::Unsupported("sparse tensors or maps")),
            };
            let at = field.bytes("values")?;
            items.push(self.value(reader, at, ty, depth + 1)?);
        }
        Ok(items)
    }

    fn tensor(&mut self, reader: &mut Reader<'_>, span: Span) -> Result<HostTensor, DataError> {
        let message = read_tensor(reader, &self.source, span, &mut self.external);
        let message = message.map_err(|failure| match failure {
            TensorFailure::Wire(error) => DataError::from(error),
            TensorFailure::Issue { issue, .. } => DataError::Tensor(issue.to_string()),
        })?;
        Ok(HostTensor::from_data(&message.data)?)
    }
}
