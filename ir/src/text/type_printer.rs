//! Types as text, and names of large constants.

use super::quote::{write_quoted, write_word};
use crate::dtype::DType;
use crate::module::Module;
use crate::ty::{Dim, TensorType, Type};
use rustc_hash::{FxHashMap, FxHashSet};
use std::fmt::Write;

/// Writes a type.
pub(super) fn write_type(out: &mut String, module: &Module, ty: &Type) {
    match ty {
        Type::Unknown => out.push('?'),
        Type::Tensor(tensor) => write_tensor_type(out, module, tensor),
        Type::Sparse(tensor) => {
            out.push_str("sparse(");
            write_tensor_type(out, module, tensor);
            out.push(')');
        }
        Type::Sequence(element) => {
            out.push_str("seq(");
            write_type(out, module, element);
            out.push(')');
        }
        Type::Optional(element) => {
            out.push_str("optional(");
            write_type(out, module, element);
            out.push(')');
        }
        Type::Map { key, value } => {
            let _ = write!(out, "map({key}, ");
            write_type(out, module, value);
            out.push(')');
        }
        Type::Opaque { domain, name } => {
            out.push_str("opaque(");
            write_quoted(out, module.text(*domain).as_bytes());
            out.push_str(", ");
            write_quoted(out, module.text(*name).as_bytes());
            out.push(')');
        }
    }
}

pub(super) fn write_tensor_type(out: &mut String, module: &Module, ty: &TensorType) {
    let _ = write!(out, "{}", ty.dtype);
    let Some(dims) = ty.shape.dims() else {
        out.push_str("[*]");
        return;
    };
    if dims.is_empty() {
        return;
    }
    for (i, dim) in dims.iter().enumerate() {
        out.push_str(if i == 0 { "[" } else { ", " });
        match dim {
            Dim::Known(n) => {
                let _ = write!(out, "{n}");
            }
            Dim::Sym(name) => write_word(out, module.text(*name)),
            Dim::Unknown => out.push('?'),
        }
    }
    out.push(']');
}

/// Names of large constants: one per content.
#[derive(Default)]
pub(super) struct DataNames {
    pub(super) known: FxHashMap<(DType, Vec<u64>, u128), String>,
    taken: FxHashSet<String>,
    /// The last number tried for a base name.
    suffixes: FxHashMap<String, u64>,
}

impl DataNames {
    /// An unused name: `base`, or `base~2`, `base~3` …
    pub(super) fn fresh(&mut self, base: &str) -> String {
        let mut name = base.to_owned();
        while !self.taken.insert(name.clone()) {
            let n = self.suffixes.entry(base.to_owned()).or_insert(1);
            *n += 1;
            name = format!("{base}~{n}");
        }
        name
    }
}
