//! `NodeProto` and `AttributeProto`, read without recursion: scalars and lists are decoded, tensors, types and
//! bodies stay spans.

use super::tensor::{floats, ints};
use super::wire::{Field, Fields, Reader, Span, WireError, WireErrorKind};
use ampc_ir::Symbol;
use smallvec::SmallVec;

/// Makes a symbol of a name.
pub type Intern<'a> = dyn FnMut(&str) -> Symbol + 'a;

/// A node message.
#[derive(Debug, Default)]
pub struct NodeMessage {
    /// Operands by name; `None` where the name is empty.
    pub inputs: SmallVec<[Option<Symbol>; 4]>,
    /// Results by name; `None` where the name is empty.
    pub outputs: SmallVec<[Option<Symbol>; 2]>,
    /// Name; `None` if missing or empty.
    pub name: Option<Symbol>,
    /// Operator; `None` if missing or empty.
    pub op_type: Option<Symbol>,
    /// Domain; `None` if missing or empty.
    pub domain: Option<Symbol>,
    /// Overload; `None` if missing or empty.
    pub overload: Option<Symbol>,
    /// Attributes in source order.
    pub attrs: Vec<AttrMessage>,
    /// Metadata in source order.
    pub metadata: Vec<(Symbol, Symbol)>,
}

/// An attribute message.
#[derive(Debug)]
pub struct AttrMessage {
    /// Its name.
    pub name: Symbol,
    /// Its value.
    pub value: AttrContent,
}

/// The value of an attribute, with messages left where they are.
#[derive(Debug)]
pub enum AttrContent {
    /// A float.
    Float(f32),
    /// An integer.
    Int(i64),
    /// A string.
    String(Box<[u8]>),
    /// A tensor.
    Tensor(Span),
    /// A body.
    Graph(Span),
    /// A sparse tensor.
    Sparse(Span),
    /// A type.
    Type(Span),
    /// Floats.
    Floats(Vec<f32>),
    /// Integers.
    Ints(Vec<i64>),
    /// Strings.
    Strings(Vec<Box<[u8]>>),
    /// Tensors.
    Tensors(Vec<Span>),
    /// Bodies.
    Graphs(Vec<Span>),
    /// Sparse tensors.
    Sparses(Vec<Span>),
    /// Types.
    Types(Vec<Span>),
    /// The value of an attribute of the function around the node.
    Reference {
        /// ONNX's number of the kind.
        kind: i32,
        /// The function's attribute.
        name: Symbol,
    },
    /// An unknown kind, or no kind.
    Unknown {
        /// ONNX's number of the kind.
        kind: i32,
    },
}

impl AttrContent {
    /// The spans of the bodies in it.
    pub fn graphs(&self) -> &[Span] {
        if let AttrContent::Graph(span) = self {
            std::slice::from_ref(span)
        } else if let AttrContent::Graphs(spans) = self {
            spans
        } else {
            &[]
        }
    }
}

/// Reads a node message.
///
/// # Errors
/// If its bytes are not a node message.
pub fn read_node(
    reader: &mut Reader<'_>,
    span: Span,
    intern: &mut Intern<'_>,
) -> Result<NodeMessage, WireError> {
    let mut node = NodeMessage::default();
    let mut fields = Fields::of(span);
    while let Some(field) = fields.next(reader)? {
        match field.number {
            1 => node.inputs.push(name(reader, &field, "input", intern)?),
            2 => node.outputs.push(name(reader, &field, "output", intern)?),
            3 => node.name = name(reader, &field, "name", intern)?,
            4 => node.op_type = name(reader, &field, "op_type", intern)?,
            5 => {
                let index = node.attrs.len();
                let attr = field.bytes("attribute").and_then(|span| read_attr(reader, span, intern));
                node.attrs.push(attr.map_err(|e| e.within("attribute", Some(index)))?);
            }
            7 => node.domain = name(reader, &field, "domain", intern)?,
            8 => node.overload = name(reader, &field, "overload", intern)?,
            9 => node.metadata.push(read_entry(reader, field.bytes("metadata_props")?, intern)?),
            _ => {}
        }
    }
    Ok(node)
}

fn name(
    reader: &mut Reader<'_>,
    field: &Field,
    what: &'static str,
    intern: &mut Intern<'_>,
) -> Result<Option<Symbol>, WireError> {
    let text = reader.text(field.bytes(what)?, what)?;
    Ok(if text.is_empty() { None } else { Some(intern(text)) })
}

/// Reads a `StringStringEntryProto`.
///
/// # Errors
/// If its bytes are not one.
pub fn read_entry(
    reader: &mut Reader<'_>,
    span: Span,
    intern: &mut Intern<'_>,
) -> Result<(Symbol, Symbol), WireError> {
    let (mut key, mut value) = (intern(""), intern(""));
    let mut fields = Fields::of(span);
    while let Some(field) = fields.next(reader)? {
        match field.number {
            1 => key = intern(reader.text(field.bytes("key")?, "key")?),
            2 => value = intern(reader.text(field.bytes("value")?, "value")?),
            _ => {}
        }
    }
    Ok((key, value))
}

/// All value fields of an attribute; which one counts is known only after the last of them.
#[derive(Default)]
struct AttrParts {
    f: Option<f32>,
    i: Option<i64>,
    s: Option<Box<[u8]>>,
    t: Option<Span>,
    g: Option<Span>,
    sparse: Option<Span>,
    tp: Option<Span>,
    floats: Vec<f32>,
    ints: Vec<i64>,
    strings: Vec<Box<[u8]>>,
    tensors: Vec<Span>,
    graphs: Vec<Span>,
    sparses: Vec<Span>,
    types: Vec<Span>,
}

/// Reads an attribute message.
///
/// # Errors
/// If its bytes are not one.
pub fn read_attr(
    reader: &mut Reader<'_>,
    span: Span,
    intern: &mut Intern<'_>,
) -> Result<AttrMessage, WireError> {
    let mut parts = AttrParts::default();
    let (mut attr_name, mut reference, mut kind) = (None, None, 0);
    let mut fields = Fields::of(span);
    while let Some(field) = fields.next(reader)? {
        match field.number {
            1 => attr_name = Some(intern(reader.text(field.bytes("name")?, "name")?)),
            20 => kind = field.int32("type")?,
            21 => reference = name(reader, &field, "ref_attr_name", intern)?,
            2 => parts.f = Some(field.float("f")?),
            3 => parts.i = Some(field.int("i")?),
            4 => parts.s = Some(reader.bytes(field.bytes("s")?)?.into()),
            5 => once(&mut parts.t, &field, "t")?,
            6 => once(&mut parts.g, &field, "g")?,
            7 => floats(reader, &field, "floats", |v| parts.floats.push(v))?,
            8 => ints(reader, &field, "ints", |v| parts.ints.push(v))?,
            9 => parts.strings.push(reader.bytes(field.bytes("strings")?)?.into()),
            10 => parts.tensors.push(field.bytes("tensors")?),
            11 => parts.graphs.push(field.bytes("graphs")?),
            14 => once(&mut parts.tp, &field, "tp")?,
            15 => parts.types.push(field.bytes("type_protos")?),
            22 => once(&mut parts.sparse, &field, "sparse_tensor")?,
            23 => parts.sparses.push(field.bytes("sparse_tensors")?),
            _ => {}
        }
    }
    let attr_name = attr_name.unwrap_or_else(|| intern(""));
    let value = match reference {
        Some(name) => AttrContent::Reference { kind, name },
        None => parts.content(kind),
    };
    Ok(AttrMessage { name: attr_name, value })
}

/// Protobuf would merge a message that is given twice; no writer does that, and merging bodies has no use.
fn once(slot: &mut Option<Span>, field: &Field, name: &'static str) -> Result<(), WireError> {
    if slot.replace(field.bytes(name)?).is_some() {
        return Err(WireError::new(field.start, WireErrorKind::Twice).within(name, None));
    }
    Ok(())
}

impl AttrParts {
    /// The value of kind `kind`, a missing field read as its default; without a kind (files of IR version 1) the
    /// field that is there.
    fn content(self, kind: i32) -> AttrContent {
        let kind = if kind == 0 { self.kind_by_field() } else { kind };
        match kind {
            1 => AttrContent::Float(self.f.unwrap_or_default()),
            2 => AttrContent::Int(self.i.unwrap_or_default()),
            3 => AttrContent::String(self.s.unwrap_or_default()),
            4 => self.t.map_or(AttrContent::Unknown { kind }, AttrContent::Tensor),
            5 => self.g.map_or(AttrContent::Unknown { kind }, AttrContent::Graph),
            6 => AttrContent::Floats(self.floats),
            7 => AttrContent::Ints(self.ints),
            8 => AttrContent::Strings(self.strings),
            9 => AttrContent::Tensors(self.tensors),
            10 => AttrContent::Graphs(self.graphs),
            11 => self.sparse.map_or(AttrContent::Unknown { kind }, AttrContent::Sparse),
            12 => AttrContent::Sparses(self.sparses),
            13 => self.tp.map_or(AttrContent::Unknown { kind }, AttrContent::Type),
            14 => AttrContent::Types(self.types),
            kind => AttrContent::Unknown { kind },
        }
    }

    fn kind_by_field(&self) -> i32 {
        let present = [
            (self.f.is_some(), 1),
            (self.i.is_some(), 2),
            (self.s.is_some(), 3),
            (self.t.is_some(), 4),
            (self.g.is_some(), 5),
            (!self.floats.is_empty(), 6),
            (!self.ints.is_empty(), 7),
            (!self.strings.is_empty(), 8),
            (!self.tensors.is_empty(), 9),
            (!self.graphs.is_empty(), 10),
            (self.sparse.is_some(), 11),
            (!self.sparses.is_empty(), 12),
            (self.tp.is_some(), 13),
            (!self.types.is_empty(), 14),
        ];
        present.iter().find(|(there, _)| *there).map_or(0, |&(_, kind)| kind)
    }
}
