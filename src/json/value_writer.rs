//! Attributes, types and constants as JSON.

use super::elements;
use super::writer::Writer;
use ampc_ir::attr::{Attr, AttrValue};
use ampc_ir::tensor::{SparseData, Storage};
use ampc_ir::text::{LargeConstant, MAX_INLINE};
use ampc_ir::{Dim, GraphId, TensorData, TensorType, Type};

impl Writer<'_> {
    pub(super) fn attrs(&mut self, attrs: &[Attr], owner: &str) {
        self.done.text.push('{');
        for attr in attrs {
            let name = self.module.text(attr.name);
            self.key(name);
            self.done.text.push('{');
            self.attr(&attr.value, &format!("{owner}.{name}"));
            self.done.text.push('}');
        }
        self.done.text.push('}');
    }

    /// `"<kind>": value`: the value alone does not determine the kind. `base` names it if it is large.
    fn attr(&mut self, value: &AttrValue, base: &str) {
        if let AttrValue::Reference { kind, name } = value {
            self.field("reference", self.module.text(*name));
            self.field("kind", kind.as_str());
            return;
        }
        self.key(value.kind().as_str());
        match value {
            AttrValue::Float(v) => elements::write_f32(&mut self.done.text, *v),
            AttrValue::Int(v) => self.shown(v),
            AttrValue::String(v) => self.bytes(v),
            AttrValue::Tensor(v) => self.tensor(v, base),
            AttrValue::Graph(g) => self.body(*g),
            AttrValue::SparseTensor(v) => self.sparse(v, base),
            AttrValue::Type(v) => self.type_value(v),
            AttrValue::Floats(v) => self.list(v, |w, v| elements::write_f32(&mut w.done.text, *v)),
            AttrValue::Ints(v) => self.list(v, |w, v| w.shown(v)),
            AttrValue::Strings(v) => self.list(v, |w, v| w.bytes(v)),
            AttrValue::Tensors(v) => self.list(v, |w, v| w.tensor(v, base)),
            AttrValue::Graphs(v) => self.list(v, |w, g| w.body(*g)),
            AttrValue::SparseTensors(v) => self.list(v, |w, v| w.sparse(v, base)),
            AttrValue::Types(v) => self.list(v, |w, v| w.type_value(v)),
            AttrValue::Reference { .. } => {}
        }
    }

    fn body(&mut self, graph: GraphId) {
        self.nesting += 1;
        self.depth += 1;
        self.graph(graph);
        self.depth -= 1;
        self.nesting -= 1;
    }

    /// A type that is there even if it is unknown.
    pub(super) fn type_value(&mut self, ty: &Type) {
        match ty {
            Type::Unknown => self.done.text.push_str("{\"kind\": \"unknown\"}"),
            ty => self.ty(ty),
        }
    }

    pub(super) fn ty(&mut self, ty: &Type) {
        let module = self.module;
        if *ty == Type::Unknown {
            self.done.text.push_str("null");
            return;
        }
        self.done.text.push('{');
        match ty {
            Type::Unknown => {}
            Type::Tensor(t) => self.tensor_type("tensor", t),
            Type::Sparse(t) => self.tensor_type("sparse_tensor", t),
            Type::Sequence(t) | Type::Optional(t) => {
                self.field("kind", if matches!(ty, Type::Sequence(_)) { "sequence" } else { "optional" });
                self.key("of");
                self.ty(t);
            }
            Type::Map { key, value } => {
                self.field("kind", "map");
                self.field("key", &key.to_string());
                self.key("value");
                self.ty(value);
            }
            Type::Opaque { domain, name } => {
                self.field("kind", "opaque");
                self.field("domain", module.text(*domain));
                self.field("name", module.text(*name));
            }
        }
        self.done.text.push('}');
    }

    fn tensor_type(&mut self, kind: &str, ty: &TensorType) {
        self.field("kind", kind);
        self.field("dtype", &ty.dtype.to_string());
        self.key("shape");
        match ty.shape.dims() {
            None => self.done.text.push_str("null"),
            Some(dims) => self.list(dims, |w, dim| match dim {
                Dim::Known(n) => w.shown(n),
                Dim::Sym(s) => w.text(w.module.text(*s)),
                Dim::Unknown => w.done.text.push_str("null"),
            }),
        }
    }

    pub(super) fn sparse(&mut self, data: &SparseData, name: &str) {
        self.done.text.push('{');
        self.key("shape");
        self.list(&data.dims, |w, d| w.shown(d));
        self.key("values");
        self.tensor(&data.values, &format!("{name}.values"));
        self.key("indices");
        self.tensor(&data.indices, &format!("{name}.indices"));
        self.done.text.push('}');
    }

    pub(super) fn tensor(&mut self, data: &TensorData, base: &str) {
        self.done.text.push('{');
        self.field("dtype", &data.dtype().to_string());
        self.key("shape");
        self.list(data.dims(), |w, d| w.shown(d));
        if !data.pending().is_empty() {
            self.field("stored", &data.stored_dtype().to_string());
            self.key("converted");
            self.list(data.pending(), |w, step| {
                w.done.text.push('{');
                w.field("to", &step.to.to_string());
                if step.clamp {
                    w.key("clamp");
                    w.shown(true);
                }
                w.done.text.push('}');
            });
        }
        if let Storage::Strings(strings) = data.storage() {
            self.key("data");
            self.list(strings.iter(), |w, s| w.bytes(s));
        } else if let Some(bytes) = data.small_bytes(MAX_INLINE) {
            self.key("data");
            elements::write(&mut self.done.text, data.stored_dtype(), &bytes);
        } else {
            self.large(data, base);
        }
        self.done.text.push('}');
    }

    fn large(&mut self, data: &TensorData, base: &str) {
        let hash = data.content_hash().map_err(|error| self.done.errors.push(error)).ok();
        let key = hash.map(|hash| (data.stored_dtype(), data.dims().to_vec(), hash));
        let known = key.as_ref().and_then(|key| self.names.get(key).cloned());
        let name = known.unwrap_or_else(|| {
            let name = if self.taken.take(base) { base.to_owned() } else { self.taken.fresh(base) };
            self.names.extend(key.map(|key| (key, name.clone())));
            self.done.large.push(LargeConstant { name: name.clone(), data: data.as_stored() });
            name
        });
        self.field("name", &name);
        if let Some(hash) = hash {
            self.field("xxh3_128", &format!("{hash:032x}"));
        }
    }

    /// Text, or `{"hex": "…"}` for bytes that are not text.
    fn bytes(&mut self, v: &[u8]) {
        if let Ok(text) = std::str::from_utf8(v) {
            return self.text(text);
        }
        self.done.text.push_str("{\"hex\": \"");
        for b in v {
            self.shown(format_args!("{b:02x}"));
        }
        self.done.text.push_str("\"}");
    }
}
