//! Values in files of their own, as ONNX's test-data folders have them (`input_0.pb`): a `TensorProto`,
//! `SequenceProto` or `OptionalProto`, which of them only the model says.

use super::bytes::SourceBytes;
use super::external::ExternalFiles;
use super::layout::Layout;
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
pub fn read_data(bytes: Arc<SourceBytes>, ty: &Type) -> Result<Data, DataError> {
    let source: Arc<dyn ByteSource> = bytes;
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

/// A value as the message that [`read_data`] reads; `None` for values that no message holds.
pub(crate) fn message(value: &Data, name: &str) -> Option<Layout> {
    match value {
        Data::Tensor(tensor) => Some(tensor_message(tensor, name)),
        Data::Sequence(sequence) => list_message(&sequence.element, sequence.items.iter(), name),
        Data::Optional(maybe) => list_message(&maybe.element, maybe.value.as_deref().into_iter(), name),
        _ => None,
    }
}

fn tensor_message(tensor: &HostTensor, name: &str) -> Layout {
    let mut layout = Layout::new();
    for &dim in tensor.dims() {
        layout.int_field(1, dim.cast_signed());
    }
    layout.int_field(2, i64::from(tensor.dtype().number()));
    for string in tensor.strings().unwrap_or_default() {
        layout.bytes_field(6, string);
    }
    layout.bytes_field(8, name.as_bytes());
    if let Some(bytes) = tensor.bytes() {
        layout.bytes_field(9, bytes);
    }
    layout
}

/// Sequences and optionals have the same fields.
fn list_message<'a>(element: &Type, items: impl Iterator<Item = &'a Data>, name: &str) -> Option<Layout> {
    let (kind, field) = match element {
        Type::Sequence(_) => (3, SEQUENCE),
        Type::Optional(_) => (5, OPTIONAL),
        _ => (1, TENSOR),
    };
    let mut layout = Layout::new();
    layout.bytes_field(1, name.as_bytes());
    layout.int_field(2, kind);
    for item in items {
        layout.message_field(field, message(item, "")?);
    }
    Some(layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let tensor =
            |values: &[f32]| Data::from(HostTensor::from_slice(&[values.len() as u64], values).unwrap());
        let strings = HostTensor::from_strings(&[2], vec![b"a".as_slice().into(), b"".as_slice().into()]);
        let element = Type::tensor(DType::F32, Shape::unknown());
        let list = Data::Sequence(Sequence {
            element: element.clone(),
            items: vec![tensor(&[1.0, 2.0]), tensor(&[])],
        });
        let maybe = Maybe { element: Type::Sequence(Box::new(element)), value: Some(Box::new(list.clone())) };
        for value in [tensor(&[-0.5]), strings.unwrap().into(), list, Data::Optional(maybe)] {
            let mut bytes = Vec::new();
            message(&value, "x").unwrap().stream(&mut bytes).unwrap();
            let source = Arc::new(SourceBytes::from_memory("x", bytes));
            let again = read_data(source, &value.view().ty()).unwrap();
            assert!(crate::execute::agree(&again, &value, &ampc_runtime::Tolerance::EXACT).passed());
        }
    }
}
