//! Types, constants and attribute values as text.

use super::element::{write_elements, write_f32};
use super::printer::Printer;
use super::quote::{write_quoted, write_word};
use super::type_printer::{write_tensor_type, write_type};
use crate::attr::AttrValue;
use crate::convert::can_convert;
use crate::dtype::DType;
use crate::edit::payload_type;
use crate::module::Payload;
use crate::op::AttrKind;
use crate::tensor::{SparseData, Storage, TensorData};
use crate::text::options::{LargeConstant, MAX_INLINE};
use crate::ty::{TensorType, Type};
use std::fmt::Write;

/// Writes a list, or the name of its kind before `[]` if it is empty, so that the kind is seen.
fn write_list<T>(out: &mut String, kind: AttrKind, items: &[T], mut write: impl FnMut(&mut String, &T)) {
    if items.is_empty() {
        out.push_str(kind.as_str());
    }
    out.push('[');
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        write(out, item);
    }
    out.push(']');
}

impl Printer<'_> {
    /// Writes the value of an attribute that holds no bodies. `base` names it if it is large.
    pub(super) fn attr_value(&mut self, value: &AttrValue, base: &dyn Fn() -> String) {
        let kind = value.kind();
        let module = self.module;
        match value {
            AttrValue::Float(v) => write_f32(&mut self.out, *v),
            AttrValue::Int(v) => {
                let _ = write!(self.out, "{v}");
            }
            AttrValue::String(v) => write_quoted(&mut self.out, v),
            AttrValue::Tensor(v) => self.tensor(v, base),
            AttrValue::SparseTensor(v) => self.sparse(v, base),
            AttrValue::Type(v) => self.type_value(v),
            AttrValue::Floats(v) => write_list(&mut self.out, kind, v, |out, v| write_f32(out, *v)),
            AttrValue::Ints(v) => write_list(&mut self.out, kind, v, |out, v| {
                let _ = write!(out, "{v}");
            }),
            AttrValue::Strings(v) => write_list(&mut self.out, kind, v, |out, v| write_quoted(out, v)),
            AttrValue::Types(v) => write_list(&mut self.out, kind, v, |out, v| {
                out.push_str("type(");
                write_type(out, module, v);
                out.push(')');
            }),
            AttrValue::Tensors(v) => self.list(kind, v, base, |p, v, base| p.tensor(v, base)),
            AttrValue::SparseTensors(v) => self.list(kind, v, base, |p, v, base| p.sparse(v, base)),
            AttrValue::Reference { kind, name } => {
                self.out.push_str("ref(");
                write_word(&mut self.out, module.text(*name));
                let _ = write!(self.out, ": {})", kind.as_str());
            }
            AttrValue::Graph(_) | AttrValue::Graphs(_) => self.out.push_str("graphs[]"),
        }
    }

    fn type_value(&mut self, ty: &Type) {
        self.out.push_str("type(");
        write_type(&mut self.out, self.module, ty);
        self.out.push(')');
    }

    fn list<T>(
        &mut self,
        kind: AttrKind,
        items: &[T],
        base: &dyn Fn() -> String,
        write: impl Fn(&mut Self, &T, &dyn Fn() -> String),
    ) {
        if items.is_empty() {
            self.out.push_str(kind.as_str());
        }
        self.out.push('[');
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.out.push_str(", ");
            }
            write(self, item, &|| format!("{}.{i}", base()));
        }
        self.out.push(']');
    }

    /// Writes the payload of a value of type `ty`: the type is only repeated where it differs.
    pub(super) fn payload(&mut self, ty: &Type, payload: &Payload, base: &dyn Fn() -> String) {
        match payload {
            Payload::Dense(data) if payload_type(payload) == *ty => self.data(data, base),
            Payload::Dense(data) => self.tensor(data, base),
            Payload::Sparse(data) => self.sparse(data, base),
        }
    }

    fn tensor(&mut self, data: &TensorData, base: &dyn Fn() -> String) {
        self.out.push_str("tensor(");
        write_tensor_type(&mut self.out, self.module, &TensorType::new(data.dtype(), data.shape()));
        self.out.push_str(" = ");
        self.data(data, base);
        self.out.push(')');
    }

    fn sparse(&mut self, data: &SparseData, base: &dyn Fn() -> String) {
        let _ = write!(self.out, "sparse({:?}, ", &data.dims[..]);
        self.tensor(&data.values, &|| format!("{}.values", base()));
        self.out.push_str(", ");
        self.tensor(&data.indices, &|| format!("{}.indices", base()));
        self.out.push(')');
    }

    /// Writes elements, and the conversions still to be applied to them.
    fn data(&mut self, data: &TensorData, base: &dyn Fn() -> String) {
        if !data.pending().is_empty() {
            let _ = write!(self.out, "{} ", data.stored_dtype());
        }
        self.elements(data, base);
        for step in data.pending() {
            let _ = write!(self.out, " -> {}{}", step.to, if step.clamp { " clamp" } else { "" });
        }
    }

    fn elements(&mut self, data: &TensorData, base: &dyn Fn() -> String) {
        let dtype = data.stored_dtype();
        match data.storage() {
            Storage::Random { seed, amplitude } if can_convert(DType::F32, dtype) => {
                let _ = write!(self.out, "random({seed}");
                if amplitude.to_bits() != 1f32.to_bits() {
                    self.out.push_str(", ");
                    write_f32(&mut self.out, *amplitude);
                }
                self.out.push(')');
            }
            Storage::Strings(strings) => {
                let scalar = data.dims().is_empty();
                self.out.push_str(if scalar { "" } else { "[" });
                for (i, s) in strings.iter().enumerate() {
                    self.out.push_str(if i > 0 { ", " } else { "" });
                    write_quoted(&mut self.out, s);
                }
                self.out.push_str(if scalar { "" } else { "]" });
            }
            Storage::Bytes(_) | Storage::File(_) | Storage::Random { .. } | Storage::Zeros => {
                match data.small_bytes(MAX_INLINE) {
                    Some(bytes) => self.small(data, &bytes),
                    None => self.large(data, base),
                };
            }
        }
    }

    fn small(&mut self, data: &TensorData, bytes: &[u8]) {
        let start = self.out.len();
        let scalar = data.dims().is_empty();
        self.out.push_str(if scalar { "" } else { "[" });
        let count = usize::try_from(data.element_count()).unwrap_or(0);
        let sensible = write_elements(&mut self.out, data.stored_dtype(), bytes, count);
        self.out.push_str(if scalar { "" } else { "]" });
        if !sensible {
            self.out.truncate(start);
            self.out.push_str("raw(\"");
            for b in bytes {
                let _ = write!(self.out, "{b:02x}");
            }
            self.out.push_str("\")");
        }
    }

    fn large(&mut self, data: &TensorData, base: &dyn Fn() -> String) {
        let hash = if self.options.omit_hashes { Ok(None) } else { data.content_hash().map(Some) };
        let hash = hash.unwrap_or_else(|error| {
            self.errors.push(error);
            None
        });
        let key = hash.map(|hash| (data.stored_dtype(), data.dims().to_vec(), hash));
        let known = key.as_ref().and_then(|key| self.names.known.get(key).cloned());
        let name = known.unwrap_or_else(|| {
            let name = self.names.fresh(&base());
            self.names.known.extend(key.map(|key| (key, name.clone())));
            self.large.push(LargeConstant { name: name.clone(), data: data.as_stored() });
            name
        });
        self.out.push_str("data(");
        write_quoted(&mut self.out, name.as_bytes());
        if let Some(hash) = hash {
            let _ = write!(self.out, ", 0x{hash:032x}");
        }
        self.out.push(')');
    }
}
