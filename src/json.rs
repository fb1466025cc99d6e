//! The graph as JSON, for programs that are not ONNX tools (schema `ampc-graph/1`, `docs/json-graph.md`).
//!
//! Same content as the text form: header, graphs, nodes with operands and results by name, types, attributes,
//! decisions. A constant of more than 16 elements is named with element type, shape and content hash, not copied.

use ampc_ir::attr::{Attr, AttrValue};
use ampc_ir::module::{Def, FunctionData, Payload, Provenance};
use ampc_ir::tensor::{SparseData, Storage};
use ampc_ir::text::MAX_INLINE;
use ampc_ir::verify::name_of;
use ampc_ir::{DType, Dim, GraphId, Module, Node, TensorData, TensorType, Type, Value};
use ampc_passes::Paths;
use serde_json::{Map, Value as Json, json};

/// The module as JSON.
pub fn print(module: &Module) -> Json {
    let cx = Cx { module, paths: Paths::new(module) };
    let header = &module.header;
    json!({
        "schema": "ampc-graph/1",
        "ir_version": header.ir_version,
        "opsets": cx.opsets(&header.opsets),
        "producer_name": header.producer_name,
        "producer_version": header.producer_version,
        "domain": header.domain,
        "model_version": header.model_version,
        "doc": header.doc_string,
        "metadata": header.metadata.iter().map(|(k, v)| json!([k, v])).collect::<Vec<_>>(),
        "graph": cx.graph(module.main()),
        "functions": module.functions().map(|(_, f)| cx.function(f)).collect::<Vec<_>>(),
    })
}

struct Cx<'m> {
    module: &'m Module,
    paths: Paths,
}

/// An object of the pairs that have something to say.
fn object<const N: usize>(pairs: [(&str, Json); N]) -> Json {
    let empty = |v: &Json| match v {
        Json::Null => true,
        Json::Array(items) => items.is_empty(),
        Json::Object(items) => items.is_empty(),
        Json::String(text) => text.is_empty(),
        Json::Bool(_) | Json::Number(_) => false,
    };
    let present = pairs.into_iter().filter(|(_, v)| !empty(v));
    Json::Object(present.map(|(k, v)| (k.to_owned(), v)).collect())
}

impl Cx<'_> {
    fn opsets(&self, opsets: &[(ampc_ir::Symbol, u16)]) -> Json {
        let domain = |d| match self.module.text(d) {
            "" => "ai.onnx".to_owned(),
            text => text.to_owned(),
        };
        Json::Object(opsets.iter().map(|&(d, v)| (domain(d), v.into())).collect())
    }

    fn name(&self, value: Value) -> Json {
        name_of(self.module, value).into()
    }

    fn names(&self, values: &[Option<Value>]) -> Json {
        values.iter().map(|v| v.map_or(Json::Null, |v| self.name(v))).collect::<Vec<_>>().into()
    }

    fn function(&self, function: &FunctionData) -> Json {
        let text = |s| self.module.text(s);
        object([
            ("domain", text(function.domain).into()),
            ("name", text(function.name).into()),
            ("overload", text(function.overload).into()),
            ("opsets", self.opsets(&function.opsets)),
            ("doc", function.doc_string.as_str().into()),
            ("attributes", function.attrs.iter().map(|&a| text(a)).collect::<Vec<_>>().into()),
            ("attribute_defaults", self.attrs(&function.attr_defaults)),
            ("graph", self.graph(function.graph)),
        ])
    }

    fn graph(&self, graph: GraphId) -> Json {
        let data = self.module.graph(graph);
        let pair = |&(a, b): &(Value, Value)| json!({ "input": self.name(a), "next": self.name(b) });
        let role = |r: &ampc_ir::module::Role| {
            json!({
                "name": self.module.text(r.name),
                "values": r.values.iter().map(|&v| self.name(v)).collect::<Vec<_>>(),
            })
        };
        let captures: Vec<Json> = data.captures().iter().map(|&v| self.name(v)).collect();
        json!({
            "name": self.module.text(data.name),
            "inputs": data.inputs().iter().map(|&v| self.source(v)).collect::<Vec<_>>(),
            "captures": captures,
            "constants": data.constants().iter().map(|&v| self.source(v)).collect::<Vec<_>>(),
            "nodes": self.module.nodes(graph).map(|n| self.node(n)).collect::<Vec<_>>(),
            "outputs": data.outputs().iter().map(|o| self.output(o)).collect::<Vec<_>>(),
            "states": data.states.iter().map(pair).collect::<Vec<_>>(),
            "roles": data.roles.iter().map(role).collect::<Vec<_>>(),
        })
    }

    /// An input or constant.
    fn source(&self, value: Value) -> Json {
        let data = self.module.value(value);
        let payload = match &data.def {
            Def::Input { default, .. } => default.as_ref(),
            Def::Constant(payload) => Some(payload),
            Def::Result { .. } | Def::Capture { .. } | Def::Erased => None,
        };
        object([
            ("name", self.name(value)),
            ("type", self.ty(&data.ty)),
            ("value", payload.map_or(Json::Null, |p| self.payload(p, &name_of(self.module, value)))),
        ])
    }

    fn output(&self, output: &ampc_ir::module::Output) -> Json {
        object([("name", self.name(output.value)), ("type", self.ty(&output.declared))])
    }

    fn node(&self, node: Node) -> Json {
        let data = self.module.node(node);
        let (domain, op, overload) = self.module.op_name(node);
        let types: Vec<Json> = data
            .results()
            .iter()
            .map(|r| r.map_or(Json::Null, |v| self.ty(&self.module.value(v).ty)))
            .collect();
        let metadata: Map<String, Json> = data
            .metadata
            .iter()
            .map(|&(k, v)| (self.module.text(k).to_owned(), self.module.text(v).into()))
            .collect();
        object([
            ("path", self.paths.path(node).into()),
            ("name", data.name.map_or("", |n| self.module.text(n)).into()),
            ("domain", domain.into()),
            ("op", op.into()),
            ("overload", overload.into()),
            ("version", data.schema().map_or(Json::Null, |s| s.since.into())),
            ("operands", self.names(data.formal_operands())),
            ("captures", self.names(&data.operands()[data.n_formal()..])),
            ("results", self.names(data.results())),
            ("types", types.into()),
            ("attributes", self.attrs(data.attrs())),
            ("decisions", decisions(self.module, node)),
            ("inserted", if data.provenance == Provenance::Inserted { true.into() } else { Json::Null }),
            ("metadata", metadata.into()),
        ])
    }

    fn attrs(&self, attrs: &[Attr]) -> Json {
        Json::Object(attrs.iter().map(|a| (self.module.text(a.name).to_owned(), self.attr(a))).collect())
    }

    /// `{"<kind>": value}`: the kind cannot be told from the value alone.
    fn attr(&self, attr: &Attr) -> Json {
        let name = self.module.text(attr.name);
        match &attr.value {
            AttrValue::Float(v) => json!({ "float": float(f64::from(*v)) }),
            AttrValue::Int(v) => json!({ "int": v }),
            AttrValue::String(v) => json!({ "string": bytes(v) }),
            AttrValue::Tensor(v) => json!({ "tensor": self.tensor(v, name) }),
            AttrValue::Graph(g) => json!({ "graph": self.graph(*g) }),
            AttrValue::SparseTensor(v) => json!({ "sparse_tensor": self.sparse(v, name) }),
            AttrValue::Type(v) => json!({ "type": self.ty(v) }),
            AttrValue::Floats(v) => {
                json!({ "floats": v.iter().map(|&f| float(f64::from(f))).collect::<Vec<_>>() })
            }
            AttrValue::Ints(v) => json!({ "ints": v }),
            AttrValue::Strings(v) => json!({ "strings": v.iter().map(|s| bytes(s)).collect::<Vec<_>>() }),
            AttrValue::Tensors(v) => {
                json!({ "tensors": v.iter().map(|t| self.tensor(t, name)).collect::<Vec<_>>() })
            }
            AttrValue::Graphs(v) => json!({ "graphs": v.iter().map(|&g| self.graph(g)).collect::<Vec<_>>() }),
            AttrValue::SparseTensors(v) => {
                json!({ "sparse_tensors": v.iter().map(|t| self.sparse(t, name)).collect::<Vec<_>>() })
            }
            AttrValue::Types(v) => json!({ "types": v.iter().map(|t| self.ty(t)).collect::<Vec<_>>() }),
            AttrValue::Reference { name, .. } => json!({ "reference": self.module.text(*name) }),
        }
    }

    fn ty(&self, ty: &Type) -> Json {
        match ty {
            Type::Unknown => Json::Null,
            Type::Tensor(t) => self.tensor_type("tensor", t),
            Type::Sparse(t) => self.tensor_type("sparse_tensor", t),
            Type::Sequence(t) => json!({ "kind": "sequence", "of": self.ty(t) }),
            Type::Optional(t) => json!({ "kind": "optional", "of": self.ty(t) }),
            Type::Map { key, value } => {
                json!({ "kind": "map", "key": key.to_string(), "value": self.ty(value) })
            }
            Type::Opaque { domain, name } => {
                json!({ "kind": "opaque", "domain": self.module.text(*domain), "name": self.module.text(*name) })
            }
        }
    }

    fn tensor_type(&self, kind: &str, ty: &TensorType) -> Json {
        let dim = |d: &Dim| match d {
            Dim::Known(n) => Json::from(*n),
            Dim::Sym(s) => self.module.text(*s).into(),
            Dim::Unknown => Json::Null,
        };
        let shape = ty.shape.dims().map(|dims| dims.iter().map(dim).collect::<Vec<_>>());
        json!({ "kind": kind, "dtype": ty.dtype.to_string(), "shape": shape })
    }

    fn payload(&self, payload: &Payload, name: &str) -> Json {
        match payload {
            Payload::Dense(data) => self.tensor(data, name),
            Payload::Sparse(data) => self.sparse(data, name),
        }
    }

    fn sparse(&self, data: &SparseData, name: &str) -> Json {
        json!({
            "shape": data.dims.to_vec(),
            "values": self.tensor(&data.values, name),
            "indices": self.tensor(&data.indices, name),
        })
    }

    fn tensor(&self, data: &TensorData, name: &str) -> Json {
        let head = |rest: (&str, Json)| object([("dtype", data.dtype().to_string().into()), rest]);
        let mut json = match elements(data) {
            Some(elements) => head(("data", Json::Null)).with("data", elements),
            None => {
                let hash = data.content_hash().ok().map(|h| format!("{h:032x}"));
                let mut json = head(("name", name.into())).with("xxh3_128", hash.into());
                if !data.pending().is_empty() {
                    let steps: Vec<String> = data.pending().iter().map(|c| c.to.to_string()).collect();
                    json = json
                        .with("stored", data.stored_dtype().to_string().into())
                        .with("converted", steps.into());
                }
                json
            }
        };
        json["shape"] = data.dims().to_vec().into();
        json
    }
}

trait With {
    fn with(self, key: &str, value: Json) -> Self;
}

impl With for Json {
    fn with(mut self, key: &str, value: Json) -> Json {
        self[key] = value;
        self
    }
}

fn decisions(module: &Module, node: Node) -> Json {
    let data = module.node(node);
    if data.schema().is_none() {
        return Json::Null;
    }
    let names = module.var_names(node);
    let vars = names.iter().zip(&data.decisions);
    let decision = |(var, d): (&std::borrow::Cow<'static, str>, &ampc_ir::module::Decision)| {
        object([
            ("var", var.as_ref().into()),
            ("class", d.class.as_str().into()),
            ("precision", d.precision.map_or(Json::Null, |p| p.to_string().into())),
            ("rule", d.reason.rule.as_str().into()),
            ("evidence", d.reason.evidence.as_str().into()),
        ])
    };
    vars.map(decision).collect::<Vec<_>>().into()
}

/// The elements of a small constant; `None` for a large one, or if they cannot be read.
fn elements(data: &TensorData) -> Option<Json> {
    if data.element_count() > MAX_INLINE {
        return None;
    }
    if let Storage::Strings(strings) = data.storage() {
        return Some(strings.iter().map(|s| bytes(s)).collect::<Vec<_>>().into());
    }
    if data.dtype() == DType::Bool {
        return Some(
            data.small_ints(MAX_INLINE)?.iter().map(|&i| Json::from(i != 0)).collect::<Vec<_>>().into(),
        );
    }
    if let Some(ints) = data.small_ints(MAX_INLINE) {
        return Some(ints.into());
    }
    if matches!(data.dtype(), DType::F64 | DType::F32 | DType::F16 | DType::BF16) {
        return Some(data.small_floats(MAX_INLINE)?.into_iter().map(float).collect::<Vec<_>>().into());
    }
    let raw = data.to_bytes().ok()?;
    Some(Json::from(raw.iter().map(|b| format!("{b:02x}")).collect::<String>()))
}

/// A number, or `"inf"`, `"-inf"`, `"nan"`, which JSON has no numbers for.
fn float(v: f64) -> Json {
    serde_json::Number::from_f64(v).map_or_else(|| Json::from(v.to_string().to_lowercase()), Json::Number)
}

/// Text, or `{"hex": "…"}` for bytes that are none.
fn bytes(v: &[u8]) -> Json {
    match std::str::from_utf8(v) {
        Ok(text) => text.into(),
        Err(_) => json!({ "hex": v.iter().map(|b| format!("{b:02x}")).collect::<String>() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ampc_ir::text::{NoData, parse};

    #[test]
    fn a_graph_with_a_body() {
        let text = "module ir=10\nopset ai.onnx=21\n\ngraph @main {\n  input %c : bool\n  input %x : f32[N, 2]\n  \
                    const %w : f32[2] = [0.5, inf]\n  const %big : f32[20] = random(7)\n  \
                    %y = Mul(%x, %w) : f32[N, 2]\n  output %y : f32[N, 2]\n}\n";
        let json = print(&parse(text, &NoData).unwrap());
        let graph = &json["graph"];
        assert_eq!(graph["inputs"][1]["type"]["shape"], json!(["N", 2]));
        assert_eq!(graph["constants"][0]["value"]["data"], json!([0.5, "inf"]));
        assert_eq!(graph["constants"][1]["value"]["xxh3_128"].as_str().unwrap().len(), 32);
        assert_eq!(graph["nodes"][0]["operands"], json!(["x", "w"]));
        assert_eq!(graph["nodes"][0]["types"][0]["dtype"], "f32");
    }
}
