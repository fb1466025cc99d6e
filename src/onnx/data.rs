//! Values in separate files, as in ONNX's test-data folders (`input_0.pb`): a `TensorProto`, `SequenceProto` or
//! `OptionalProto`, depending on the model.

use super::external::ExternalFiles;
use super::layout::Layout;
use super::tensor::{TensorFailure, ints, read_tensor};
use super::wire::{Fields, Reader, Span, WireError};
use crate::bytes::SourceBytes;
use ampc_ir::tensor::ByteSource;
use ampc_ir::{DType, Shape, Type};
use ampc_runtime::data::{Data, ELEMENT_BYTES, Maybe, Sequence};
use ampc_runtime::{HostError, HostTensor};
use std::sync::Arc;

/// Error of reading a value from a file.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// It is not a protobuf message.
    #[error("it is not a protobuf message: {0}")]
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
    /// It takes more memory than it may.
    #[error("expected a value that takes at most {most} bytes in memory, found one that takes more")]
    TooLarge {
        /// The limit.
        most: u64,
    },
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

/// Reads a value of type `ty` (a tensor if the type is unknown), if it takes at most `most` bytes. The size is
/// checked before memory is allocated.
///
/// # Errors
/// See [`DataError`].
pub fn read_data(bytes: Arc<SourceBytes>, ty: &Type, most: u64) -> Result<Data, DataError> {
    let source: Arc<dyn ByteSource> = bytes;
    let mut reader = Reader::new(&*source);
    let span = reader.all();
    let external = ExternalFiles::of(None);
    Messages { source: source.clone(), external, most, left: most }.value(&mut reader, span, ty, 0)
}

/// Names of a value in a file; the type of the value determines which of the two is the name.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// If it is a tensor.
    pub(crate) of_tensor: Option<String>,
    /// If it is a sequence or an optional.
    pub(crate) of_list: Option<String>,
}

/// The names in a file; none if it is not a message.
pub(crate) fn names(bytes: &Arc<SourceBytes>) -> Names {
    let source: Arc<dyn ByteSource> = bytes.clone();
    let mut reader = Reader::new(&*source);
    let mut fields = Fields::of(reader.all());
    let mut names = Names::default();
    while let Ok(Some(field)) = fields.next(&mut reader) {
        let name = match field.number {
            1 => &mut names.of_list,
            8 => &mut names.of_tensor,
            _ => continue,
        };
        let text = field.bytes("name").and_then(|span| Ok(reader.text(span, "name")?.to_owned()));
        *name = text.ok().filter(|text| !text.is_empty());
    }
    names
}

struct Messages {
    source: Arc<dyn ByteSource>,
    external: ExternalFiles,
    most: u64,
    /// The remaining bytes.
    left: u64,
}

/// Bytes that a list of strings takes for each, beside its text.
const STRING: u64 = size_of::<Box<[u8]>>() as u64;

/// Fields of SequenceProto and OptionalProto by content: 3 tensors, 5 sequences, 7 optionals.
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
                Ok(Data::Sequence(Sequence::new((**element).clone(), items)))
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
            self.charge(ELEMENT_BYTES)?;
            items.push(self.value(reader, at, ty, depth + 1)?);
        }
        Ok(items)
    }

    /// Counts the bytes that a tensor will take.
    fn take(&mut self, reader: &mut Reader<'_>, span: Span) -> Result<(), DataError> {
        let (mut count, mut text, mut dtype) = (Some(1u64), 0u64, None);
        let mut fields = Fields::of(span);
        while let Some(field) = fields.next(reader)? {
            match field.number {
                // What is negative is not a tensor.
                1 => ints(reader, &field, "dims", |dim| {
                    count = count.and_then(|n| n.checked_mul(u64::try_from(dim).unwrap_or(0)));
                })?,
                2 => dtype = DType::from_number(field.int32("data_type")?),
                6 => text = text.saturating_add(STRING + field.bytes("string_data")?.len),
                _ => {}
            }
        }
        let numbers = dtype.filter(|dtype| *dtype != DType::String);
        let bytes = match numbers {
            Some(dtype) => count.and_then(|count| dtype.storage_bytes(count)),
            None => Some(text),
        };
        // What has no size is refused with its dims.
        self.charge(bytes.unwrap_or(0))
    }

    fn charge(&mut self, bytes: u64) -> Result<(), DataError> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or(DataError::TooLarge { most: self.most })?;
        Ok(())
    }

    fn tensor(&mut self, reader: &mut Reader<'_>, span: Span) -> Result<HostTensor, DataError> {
        self.take(reader, span)?;
        let message = read_tensor(reader, &self.source, span, &mut self.external);
        let message = message.map_err(|failure| match failure {
            TensorFailure::Wire(error) => DataError::from(error),
            TensorFailure::Issue { issue, .. } => DataError::Tensor(issue.to_string()),
        })?;
        Ok(HostTensor::from_data(&message.data)?)
    }
}

/// A value in host memory as the message that [`read_data`] reads; `None` for values that no message holds.
pub(crate) fn message(value: &Data, name: &str) -> Option<Layout> {
    match value {
        Data::Tensor(tensor) => Some(tensor_message(tensor, name)),
        Data::Sequence(sequence) => list_message(&sequence.element, sequence.items().iter(), name),
        Data::Optional(maybe) => list_message(&maybe.element, maybe.value.as_deref().into_iter(), name),
        Data::Device(_) => None,
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
        let list = Data::Sequence(Sequence::new(element.clone(), vec![tensor(&[1.0, 2.0]), tensor(&[])]));
        let maybe = Maybe { element: Type::Sequence(Box::new(element)), value: Some(Box::new(list.clone())) };
        for value in [tensor(&[-0.5]), strings.unwrap().into(), list, Data::Optional(maybe)] {
            let mut bytes = Vec::new();
            message(&value, "x").unwrap().stream(&mut bytes).unwrap();
            let source = Arc::new(SourceBytes::from_memory("x", bytes));
            let most = value.view().byte_count();
            let again = read_data(source.clone(), &value.view().ty(), most).unwrap();
            assert!(crate::execute::agree(&again, &value, &ampc_runtime::Tolerance::EXACT).passed());
            let names = names(&source);
            let name = if value.tensor().is_some() { names.of_tensor } else { names.of_list };
            assert_eq!(name.as_deref(), Some("x"));
            let less = read_data(source, &value.view().ty(), most - 1);
            assert!(matches!(less, Err(DataError::TooLarge { .. })), "{less:?}");
        }
    }

    /// A byte of the file is an element of eight in memory.
    #[test]
    fn elements_are_counted_as_they_will_be() {
        let mut layout = Layout::new();
        layout.int_field(1, 100);
        layout.int_field(2, i64::from(DType::I64.number()));
        layout.bytes_field(7, &[1; 100]);
        let mut bytes = Vec::new();
        layout.stream(&mut bytes).unwrap();
        let read =
            |most| read_data(Arc::new(SourceBytes::from_memory("x", bytes.clone())), &Type::Unknown, most);
        assert!(read(800).is_ok());
        assert!(matches!(read(799), Err(DataError::TooLarge { most: 799 })));
    }
}
