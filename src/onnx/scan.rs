//! `ModelProto`, `GraphProto` and `FunctionProto` as tables of spans.

use super::proto;
use super::wire::{Field, Fields, Reader, Span, WireError, WireErrorKind};
use prost::Message;

/// A message inside another: where its field starts, tag included, and where its content is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Located {
    /// Offset of the tag.
    pub start: u64,
    /// The content.
    pub body: Span,
}

impl Located {
    fn of(field: &Field, name: &'static str) -> Result<Located, WireError> {
        Ok(Located { start: field.start, body: field.bytes(name)? })
    }
    /// Tag, length and content.
    pub fn whole(self) -> Span {
        Span::between(self.start, self.body.end())
    }
}

/// A model message.
#[derive(Clone, Debug, Default)]
pub struct ModelMessage {
    /// Version of the ONNX IR.
    pub ir_version: Option<i64>,
    /// Opset imports: domain and version.
    pub opsets: Vec<(String, i64)>,
    /// Name of the tool that made the model.
    pub producer_name: String,
    /// Version of that tool.
    pub producer_version: String,
    /// Domain of the model.
    pub domain: String,
    /// Version of the model.
    pub model_version: i64,
    /// Documentation.
    pub doc_string: String,
    /// Metadata in source order.
    pub metadata: Vec<(String, String)>,
    /// The main graph.
    pub graph: Option<Located>,
    /// Model-local functions.
    pub functions: Vec<Located>,
    /// Training graphs, which are kept as they are.
    pub training_info: Vec<Located>,
}

/// A graph message.
#[derive(Clone, Debug, Default)]
pub struct GraphMessage {
    /// Its name.
    pub name: String,
    /// Nodes in source order.
    pub nodes: Vec<Located>,
    /// Initializers in source order.
    pub initializers: Vec<Located>,
    /// Sparse initializers in source order.
    pub sparse_initializers: Vec<Located>,
    /// Formal inputs.
    pub inputs: Vec<(Located, proto::ValueInfoProto)>,
    /// Outputs.
    pub outputs: Vec<(Located, proto::ValueInfoProto)>,
    /// Declared types of other values; they are read when the graph is written.
    pub value_info: Vec<Located>,
    /// Metadata in source order.
    pub metadata: Vec<(String, String)>,
}

/// A function message.
#[derive(Clone, Debug, Default)]
pub struct FunctionMessage {
    /// Its name.
    pub name: String,
    /// Domain of the name.
    pub domain: String,
    /// Overload of the name.
    pub overload: String,
    /// Formal inputs.
    pub inputs: Vec<String>,
    /// Outputs.
    pub outputs: Vec<String>,
    /// Attributes without default.
    pub attrs: Vec<String>,
    /// Attributes with default.
    pub attr_defaults: Vec<Located>,
    /// Nodes in source order.
    pub nodes: Vec<Located>,
    /// Documentation.
    pub doc_string: String,
    /// Opset imports of the body.
    pub opsets: Vec<(String, i64)>,
    /// Metadata in source order.
    pub metadata: Vec<(String, String)>,
}

/// Reads the fields of a model message; graphs and functions stay spans.
///
/// # Errors
/// If the bytes are not a model message.
pub fn read_model(reader: &mut Reader<'_>) -> Result<ModelMessage, WireError> {
    let mut model = ModelMessage::default();
    let mut fields = Fields::of(reader.all());
    while let Some(field) = fields.next(reader)? {
        match field.number {
            1 => model.ir_version = Some(field.int("ir_version")?),
            2 => model.producer_name = text(reader, &field, "producer_name")?,
            3 => model.producer_version = text(reader, &field, "producer_version")?,
            4 => model.domain = text(reader, &field, "domain")?,
            5 => model.model_version = field.int("model_version")?,
            6 => model.doc_string = text(reader, &field, "doc_string")?,
            7 if model.graph.is_some() => {
                return Err(WireError::new(field.start, WireErrorKind::Twice).within("graph", None));
            }
            7 => model.graph = Some(Located::of(&field, "graph")?),
            8 => model.opsets.push(opset(reader, &field)?),
            14 => model.metadata.push(entry(reader, &field)?),
            20 => model.training_info.push(Located::of(&field, "training_info")?),
            25 => model.functions.push(Located::of(&field, "functions")?),
            _ => {}
        }
    }
    Ok(model)
}

/// Reads the fields of a graph message; nodes and initializers stay spans.
///
/// # Errors
/// If the bytes are not a graph message.
pub fn read_graph(reader: &mut Reader<'_>, span: Span) -> Result<GraphMessage, WireError> {
    let mut graph = GraphMessage::default();
    let mut fields = Fields::of(span);
    while let Some(field) = fields.next(reader)? {
        match field.number {
            1 => graph.nodes.push(Located::of(&field, "node")?),
            2 => graph.name = text(reader, &field, "name")?,
            5 => graph.initializers.push(Located::of(&field, "initializer")?),
            11 => graph.inputs.push(value_info(reader, &field, "input", graph.inputs.len())?),
            12 => graph.outputs.push(value_info(reader, &field, "output", graph.outputs.len())?),
            13 => graph.value_info.push(Located::of(&field, "value_info")?),
            15 => graph.sparse_initializers.push(Located::of(&field, "sparse_initializer")?),
            16 => graph.metadata.push(entry(reader, &field)?),
            _ => {}
        }
    }
    Ok(graph)
}

/// Reads the fields of a function message; nodes and attribute defaults stay spans.
///
/// # Errors
/// If the bytes are not a function message.
pub fn read_function(reader: &mut Reader<'_>, span: Span) -> Result<FunctionMessage, WireError> {
    let mut function = FunctionMessage::default();
    let mut fields = Fields::of(span);
    while let Some(field) = fields.next(reader)? {
        match field.number {
            1 => function.name = text(reader, &field, "name")?,
            4 => function.inputs.push(text(reader, &field, "input")?),
            5 => function.outputs.push(text(reader, &field, "output")?),
            6 => function.attrs.push(text(reader, &field, "attribute")?),
            7 => function.nodes.push(Located::of(&field, "node")?),
            8 => function.doc_string = text(reader, &field, "doc_string")?,
            9 => function.opsets.push(opset(reader, &field)?),
            10 => function.domain = text(reader, &field, "domain")?,
            11 => function.attr_defaults.push(Located::of(&field, "attribute_proto")?),
            13 => function.overload = text(reader, &field, "overload")?,
            14 => function.metadata.push(entry(reader, &field)?),
            _ => {}
        }
    }
    Ok(function)
}

/// Decodes a small message.
///
/// # Errors
/// If the bytes are not one, or nest deeper than prost allows.
pub fn decode<M: Message + Default>(reader: &mut Reader<'_>, span: Span) -> Result<M, WireError> {
    let bytes = reader.bytes(span)?;
    M::decode(bytes).map_err(|e| WireError::new(span.offset, WireErrorKind::Message(e)))
}

/// Reads the content of a `value_info` entry besides its type: the name of the value and its metadata, which is
/// mostly empty.
///
/// # Errors
/// If the bytes are not such an entry.
pub fn read_value_metadata(
    reader: &mut Reader<'_>,
    span: Span,
) -> Result<(String, Vec<(String, String)>), WireError> {
    let (mut name, mut metadata) = (None, Vec::new());
    let mut fields = Fields::of(span);
    while let Some(field) = fields.next(reader)? {
        match field.number {
            1 => name = Some(field),
            4 => metadata.push(entry(reader, &field)?),
            _ => {}
        }
    }
    let name = match name {
        Some(field) if !metadata.is_empty() => text(reader, &field, "name")?,
        Some(_) | None => String::new(),
    };
    Ok((name, metadata))
}

fn value_info(
    reader: &mut Reader<'_>,
    field: &Field,
    name: &'static str,
    index: usize,
) -> Result<(Located, proto::ValueInfoProto), WireError> {
    let at = Located::of(field, name)?;
    Ok((at, decode(reader, at.body).map_err(|e| e.within(name, Some(index)))?))
}

fn text(reader: &mut Reader<'_>, field: &Field, name: &'static str) -> Result<String, WireError> {
    Ok(reader.text(field.bytes(name)?, name)?.to_owned())
}

fn opset(reader: &mut Reader<'_>, field: &Field) -> Result<(String, i64), WireError> {
    let span = field.bytes("opset_import")?;
    let import: proto::OperatorSetIdProto =
        decode(reader, span).map_err(|e| e.within("opset_import", None))?;
    Ok((import.domain.unwrap_or_default(), import.version.unwrap_or_default()))
}

fn entry(reader: &mut Reader<'_>, field: &Field) -> Result<(String, String), WireError> {
    let span = field.bytes("metadata_props")?;
    let entry: proto::StringStringEntryProto =
        decode(reader, span).map_err(|e| e.within("metadata_props", None))?;
    Ok((entry.key.unwrap_or_default(), entry.value.unwrap_or_default()))
}
