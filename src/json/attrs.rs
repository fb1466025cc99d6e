//! Types and attributes from JSON.

use super::elements::{hex, read_f32};
use super::reader::{Bodies, Reader};
use super::tape::{At, Token};
use ampc_ir::op::AttrKind;
use ampc_ir::text::MAX_DEPTH;
use ampc_ir::{AttrValue, Dim, Shape, TensorType, Type};

/// All kinds of attributes.
const KINDS: [AttrKind; 14] = [
    AttrKind::Float,
    AttrKind::Int,
    AttrKind::String,
    AttrKind::Tensor,
    AttrKind::Graph,
    AttrKind::SparseTensor,
    AttrKind::Type,
    AttrKind::Floats,
    AttrKind::Ints,
    AttrKind::Strings,
    AttrKind::Tensors,
    AttrKind::Graphs,
    AttrKind::SparseTensors,
    AttrKind::Types,
];

const FLOAT: &str = "a number that f32 can hold, \"inf\", \"-inf\" or \"nan\"";
const INT: &str = "an integer of 64 bits";

impl Reader<'_, '_> {
    /// A type; null is the unknown one.
    pub(super) fn ty(&mut self, at: At) -> Type {
        self.nested_type(at, 0).unwrap_or_default()
    }

    fn nested_type(&mut self, at: At, depth: usize) -> Option<Type> {
        if self.tape.token(at) == Token::Null {
            return Some(Type::Unknown);
        }
        if depth > MAX_DEPTH {
            self.error(at, format!("types at most {MAX_DEPTH} deep"), "a deeper one");
            return None;
        }
        let names = ["kind", "dtype", "shape", "of", "key", "value", "domain", "name"];
        let [kind, dtype, shape, of, key, value, domain, name] = self.fields(at, names)?;
        let kind = self.required(at, kind, "kind")?;
        let inner = |reader: &mut Self, inner: Option<At>| {
            inner.map_or(Some(Type::Unknown), |inner| reader.nested_type(inner, depth + 1)).map(Box::new)
        };
        let text = self.string(kind, "the kind of a type")?;
        let (ty, used) = match &*text {
            "unknown" => (Type::Unknown, [false; 7]),
            "tensor" | "sparse_tensor" => {
                let dtype = self.required(at, dtype, "dtype").and_then(|at| self.dtype(at))?;
                let shape = self.shape(shape);
                let tensor = TensorType::new(dtype, shape);
                let ty = if text == "tensor" { Type::Tensor(tensor) } else { Type::Sparse(tensor) };
                (ty, [true, true, false, false, false, false, false])
            }
            "sequence" => {
                (Type::Sequence(inner(self, of)?), [false, false, true, false, false, false, false])
            }
            "optional" => {
                (Type::Optional(inner(self, of)?), [false, false, true, false, false, false, false])
            }
            "map" => {
                let key = self.required(at, key, "key").and_then(|at| self.dtype(at))?;
                let value = inner(self, value)?;
                (Type::Map { key, value }, [false, false, false, true, true, false, false])
            }
            "opaque" => {
                let (domain, name) = (self.required(at, domain, "domain")?, self.required(at, name, "name")?);
                let domain = self.symbol(domain, "a string")?;
                let name = self.symbol(name, "a string")?;
                (Type::Opaque { domain, name }, [false, false, false, false, false, true, true])
            }
            _ => {
                self.wrong(kind, "tensor, sparse_tensor, sequence, optional, map, opaque or unknown");
                return None;
            }
        };
        let given = [dtype, shape, of, key, value, domain, name];
        for ((field, used), name) in given.into_iter().zip(used).zip(&names[1..]) {
            if let Some(field) = field.filter(|_| !used) {
                self.error(field, format!("no field \"{name}\" in a type of kind {text}"), "one");
            }
        }
        Some(ty)
    }

    /// Null is an unknown rank.
    fn shape(&mut self, at: Option<At>) -> Shape {
        if at.is_none() {
            return Shape::unknown();
        }
        let dims = self.items(at, "dims");
        let dim = |at| match self.tape.token(at) {
            Token::Null => Dim::Unknown,
            Token::Text(name) => Dim::Sym(self.module.intern(&name)),
            _ => self
                .int(at, "a dim: a number from 0 to 2^64 - 1, a name, or null")
                .map_or(Dim::Unknown, Dim::Known),
        };
        Shape::of(dims.into_iter().map(dim).collect::<Vec<_>>())
    }

    /// `{"<kind>": value}`.
    pub(super) fn attr(&mut self, at: At, bodies: &mut Bodies) -> Option<AttrValue> {
        let [k0, k1, k2, k3, k4, k5, k6, k7, k8, k9, k10, k11, k12, k13] = KINDS.map(AttrKind::as_str);
        let names = [k0, k1, k2, k3, k4, k5, k6, k7, k8, k9, k10, k11, k12, k13, "reference", "kind"];
        let fields = self.fields(at, names)?;
        let [.., reference, kind] = fields;
        let mut values = KINDS.into_iter().zip(fields).filter_map(|(kind, field)| Some((kind, field?)));
        let (first, second) = (values.next(), values.next());
        match (first, second, reference, kind) {
            (Some((kind, value)), None, None, None) => self.attr_value(kind, value, bodies),
            (None, None, Some(name), Some(kind_at)) => {
                let name = self.symbol(name, "the name of an attribute of the function")?;
                let text = self.string(kind_at, "the kind of an attribute")?;
                let kind = KINDS.into_iter().find(|&k| k.as_str() == text);
                if kind.is_none() {
                    self.wrong(kind_at, "the kind of an attribute, such as \"float\" or \"ints\"");
                }
                Some(AttrValue::Reference { kind: kind?, name })
            }
            _ => {
                let expected = "one value by its kind, such as {\"int\": 1}, or \"reference\" and \"kind\"";
                self.error(at, expected, "other fields");
                None
            }
        }
    }

    fn attr_value(&mut self, kind: AttrKind, at: At, bodies: &mut Bodies) -> Option<AttrValue> {
        let each = |reader: &mut Self, what: &str| reader.items(Some(at), what);
        Some(match kind {
            AttrKind::Float => AttrValue::Float(self.float(at)?),
            AttrKind::Int => AttrValue::Int(self.int(at, INT)?),
            AttrKind::String => AttrValue::String(self.bytes(at)?),
            AttrKind::Tensor => AttrValue::Tensor(self.tensor(at)?),
            AttrKind::Graph => AttrValue::Graph(self.body(at, bodies)),
            AttrKind::SparseTensor => AttrValue::SparseTensor(self.sparse(at)?),
            AttrKind::Type => AttrValue::Type(self.ty(at)),
            AttrKind::Floats => {
                let items = each(self, "numbers");
                AttrValue::Floats(items.into_iter().map(|at| self.float(at)).collect::<Option<_>>()?)
            }
            AttrKind::Ints => {
                let items = each(self, "integers");
                AttrValue::Ints(items.into_iter().map(|at| self.int(at, INT)).collect::<Option<_>>()?)
            }
            AttrKind::Strings => {
                let items = each(self, "strings");
                AttrValue::Strings(items.into_iter().map(|at| self.bytes(at)).collect::<Option<_>>()?)
            }
            AttrKind::Tensors => {
                let items = each(self, "tensors");
                AttrValue::Tensors(items.into_iter().map(|at| self.tensor(at)).collect::<Option<_>>()?)
            }
            AttrKind::Graphs => {
                let items = each(self, "graphs");
                AttrValue::Graphs(items.into_iter().map(|at| self.body(at, bodies)).collect())
            }
            AttrKind::SparseTensors => {
                let items = each(self, "sparse tensors");
                AttrValue::SparseTensors(items.into_iter().map(|at| self.sparse(at)).collect::<Option<_>>()?)
            }
            AttrKind::Types => {
                let items = each(self, "types");
                AttrValue::Types(items.into_iter().map(|at| self.ty(at)).collect())
            }
        })
    }

    fn float(&mut self, at: At) -> Option<f32> {
        let value = read_f32(&self.tape.token(at));
        if value.is_none() {
            self.wrong(at, FLOAT);
        }
        value
    }

    /// Text, or `{"hex": "…"}`.
    pub(super) fn bytes(&mut self, at: At) -> Option<Box<[u8]>> {
        match self.tape.token(at) {
            Token::Text(text) => Some(text.as_bytes().into()),
            Token::Object => {
                let [digits] = self.fields(at, ["hex"])?;
                let digits = self.required(at, digits, "hex")?;
                let bytes = hex(&self.string(digits, "hexadecimal digits")?);
                if bytes.is_none() {
                    self.wrong(digits, "pairs of hexadecimal digits");
                }
                bytes.map(Vec::into_boxed_slice)
            }
            Token::Null | Token::Bool(_) | Token::Number(_) | Token::List => {
                self.wrong(at, "a string, or {\"hex\": \"…\"}");
                None
            }
        }
    }
}
