//! From a module to JSON: one walk in program order, one line per node, input, constant and output.

use super::SCHEMA;
use ampc_ir::module::{Def, FunctionData, Output, Payload, Provenance, Role};
use ampc_ir::tensor::TensorError;
use ampc_ir::text::{LargeConstant, MAX_DEPTH, escape_hidden_in_json, signatures};
use ampc_ir::verify::name_of;
use ampc_ir::{Captured, DType, GraphId, Module, Node, Symbol, Type, Value};
use ampc_passes::Paths;
use ampc_passes::policy::{SignatureJson, op_key};
use rustc_hash::{FxHashMap, FxHashSet};
use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

/// A module as JSON.
#[derive(Debug, Default)]
pub struct Printed {
    /// The text.
    pub text: String,
    /// The constants whose bytes are not in the text, in order of first appearance.
    pub large: Vec<LargeConstant>,
    /// Constants whose bytes could not be read; the text has no hash for them.
    pub errors: Vec<TensorError>,
}

/// The module as JSON.
pub fn print(module: &Module) -> Printed {
    let mut writer = Writer {
        module,
        paths: Paths::of(module),
        done: Printed::default(),
        depth: 0,
        nesting: 0,
        captures: FxHashMap::default(),
        names: FxHashMap::default(),
        taken: Names::default(),
    };
    writer.module();
    writer.done
}

pub(super) struct Writer<'m> {
    pub(super) module: &'m Module,
    paths: Arc<Paths>,
    pub(super) done: Printed,
    /// Indentation.
    pub(super) depth: usize,
    /// Bodies around the present graph.
    pub(super) nesting: usize,
    /// How captures are spelled in their body.
    captures: FxHashMap<Value, Box<str>>,
    /// Names of large constants: one per content.
    pub(super) names: FxHashMap<(DType, Vec<u64>, u128), String>,
    pub(super) taken: Names,
}

/// Punctuation. A comma is due wherever something stands before in the same container.
impl Writer<'_> {
    fn first(&self) -> bool {
        self.done.text.ends_with(['{', '['])
    }

    pub(super) fn item(&mut self) {
        if !self.first() {
            self.done.text.push_str(", ");
        }
    }

    fn line(&mut self) {
        if !self.first() {
            self.done.text.push(',');
        }
        self.new_line();
    }

    fn new_line(&mut self) {
        self.done.text.push('\n');
        for _ in 0..self.depth {
            self.done.text.push_str("  ");
        }
    }

    pub(super) fn text(&mut self, text: &str) {
        // A string always can be JSON.
        let quoted = serde_json::to_string(text).unwrap_or_default();
        self.done.text.push_str(&escape_hidden_in_json(&quoted));
    }

    fn colon(&mut self, key: &str) {
        self.text(key);
        self.done.text.push_str(": ");
    }

    pub(super) fn key(&mut self, key: &str) {
        self.item();
        self.colon(key);
    }

    fn line_key(&mut self, key: &str) {
        self.line();
        self.colon(key);
    }

    pub(super) fn shown(&mut self, value: impl std::fmt::Display) {
        let _ = write!(self.done.text, "{value}");
    }

    pub(super) fn field(&mut self, key: &str, text: &str) {
        self.key(key);
        self.text(text);
    }

    /// A field that is left out if it is empty.
    fn field_if(&mut self, key: &str, text: &str) {
        if !text.is_empty() {
            self.field(key, text);
        }
    }

    pub(super) fn list<T>(&mut self, items: impl IntoIterator<Item = T>, write: impl Fn(&mut Self, T)) {
        self.done.text.push('[');
        for item in items {
            self.item();
            write(self, item);
        }
        self.done.text.push(']');
    }

    /// A list whose items stand on lines of their own.
    fn lines<T>(&mut self, key: &str, items: impl IntoIterator<Item = T>, write: impl Fn(&mut Self, T)) {
        self.line_key(key);
        self.done.text.push('[');
        self.depth += 1;
        for item in items {
            self.line();
            write(self, item);
        }
        self.depth -= 1;
        if !self.first() {
            self.new_line();
        }
        self.done.text.push(']');
    }
}

impl Writer<'_> {
    fn module(&mut self) {
        let module = self.module;
        let header = &module.header;
        self.done.text.push('{');
        self.depth += 1;
        self.line_key("schema");
        self.text(SCHEMA);
        self.line_key("ir_version");
        self.shown(header.ir_version);
        self.line_key("opsets");
        self.opsets(&header.opsets);
        for (key, text) in [
            ("producer_name", &header.producer_name),
            ("producer_version", &header.producer_version),
            ("domain", &header.domain),
            ("doc", &header.doc_string),
        ] {
            if !text.is_empty() {
                self.line_key(key);
                self.text(text);
            }
        }
        if header.model_version != 0 {
            self.line_key("model_version");
            self.shown(header.model_version);
        }
        if !header.metadata.is_empty() {
            self.line_key("metadata");
            self.list(&header.metadata, |w, (k, v)| w.list([k, v], |w, text| w.text(text)));
        }
        let signatures = signatures(module);
        if !signatures.is_empty() {
            self.line_key("signatures");
            self.done.text.push('{');
            self.depth += 1;
            for signature in signatures {
                self.line_key(&op_key(&signature.domain, &signature.name));
                // Words and lists always can be JSON.
                let json = serde_json::to_value(SignatureJson::of(&signature)).unwrap_or_default();
                self.json(&json);
            }
            self.depth -= 1;
            self.new_line();
            self.done.text.push('}');
        }
        self.line_key("graph");
        self.graph(module.main());
        if module.functions().next().is_some() {
            self.lines("functions", module.functions(), |w, (_, f)| w.function(f));
        }
        self.depth -= 1;
        self.new_line();
        self.done.text.push_str("}\n");
    }

    /// In one line, spaced like its surroundings; no deeper than a signature.
    fn json(&mut self, value: &serde_json::Value) {
        match value {
            serde_json::Value::Object(fields) => {
                self.done.text.push('{');
                for (key, value) in fields {
                    self.key(key);
                    self.json(value);
                }
                self.done.text.push('}');
            }
            serde_json::Value::Array(items) => self.list(items, Self::json),
            serde_json::Value::String(text) => self.text(text),
            other => self.shown(other),
        }
    }

    /// An object, ai.onnx spelled out; pairs if an object would be ambiguous.
    fn opsets(&mut self, opsets: &[(Symbol, u16)]) {
        let module = self.module;
        let mut seen = FxHashSet::default();
        let plain = |&(d, _): &(Symbol, u16)| seen.insert(d) && module.text(d) != "ai.onnx";
        if opsets.iter().all(plain) {
            self.done.text.push('{');
            for &(domain, version) in opsets {
                let domain = module.text(domain);
                self.key(if domain.is_empty() { "ai.onnx" } else { domain });
                self.shown(version);
            }
            self.done.text.push('}');
            return;
        }
        self.list(opsets, |w, &(domain, version)| {
            w.done.text.push('[');
            w.text(module.text(domain));
            w.item();
            w.shown(version);
            w.done.text.push(']');
        });
    }

    fn pairs(&mut self, pairs: &[(Symbol, Symbol)]) {
        let module = self.module;
        if !pairs.is_empty() {
            self.key("metadata");
            self.list(pairs, |w, &(k, v)| w.list([k, v], |w, s| w.text(module.text(s))));
        }
    }

    fn function(&mut self, function: &FunctionData) {
        let module = self.module;
        self.done.text.push('{');
        self.field_if("domain", module.text(function.domain));
        self.field("name", module.text(function.name));
        self.field_if("overload", module.text(function.overload));
        self.key("opsets");
        self.opsets(&function.opsets);
        self.field_if("doc", &function.doc_string);
        self.pairs(&function.metadata);
        if !function.attrs.is_empty() {
            self.key("attributes");
            self.list(&function.attrs, |w, &a| w.text(module.text(a)));
        }
        if !function.attr_defaults.is_empty() {
            self.key("attribute_defaults");
            self.attrs(&function.attr_defaults, module.text(function.name));
        }
        self.key("graph");
        self.graph(function.graph);
        self.done.text.push('}');
    }

    pub(super) fn graph(&mut self, graph: GraphId) {
        if self.nesting > MAX_DEPTH {
            self.done.text.push_str("null");
            return;
        }
        let module = self.module;
        let data = module.graph(graph);
        self.done.text.push('{');
        self.depth += 1;
        if !module.text(data.name).is_empty() {
            self.line_key("name");
            self.text(module.text(data.name));
        }
        if !data.metadata.is_empty() {
            self.line_key("metadata");
            self.list(&data.metadata, |w, &(k, v)| w.list([k, v], |w, s| w.text(module.text(s))));
        }
        self.capture_list(graph);
        self.lines("inputs", data.inputs(), |w, &v| w.source(v));
        self.lines("constants", data.constants(), |w, &v| w.source(v));
        self.lines("nodes", module.nodes(graph), |w, n| w.node(n));
        self.lines("outputs", data.outputs(), |w, o| w.output(o));
        if !data.states.is_empty() {
            self.lines("states", &data.states, |w, &(input, next)| {
                w.done.text.push('{');
                w.key("input");
                w.name(input);
                w.key("next");
                w.name(next);
                w.done.text.push('}');
            });
        }
        if !data.roles.is_empty() {
            self.lines("roles", &data.roles, |w, role| w.role(role));
        }
        self.depth -= 1;
        self.new_line();
        self.done.text.push('}');
    }

    fn role(&mut self, role: &Role) {
        self.done.text.push('{');
        self.field("name", self.module.text(role.name));
        self.key("values");
        self.list(&role.values, |w, &v| w.name(v));
        self.done.text.push('}');
    }

    fn spelling(&self, value: Value) -> Cow<'_, str> {
        match self.captures.get(&value) {
            Some(spelling) => Cow::Borrowed(spelling),
            None => match self.module.value(value).name {
                Some(name) => Cow::Borrowed(self.module.text(name)),
                None => Cow::Owned(name_of(self.module, value)),
            },
        }
    }

    fn name(&mut self, value: Value) {
        let name = self.spelling(value).into_owned();
        self.text(&name);
    }

    fn names(&mut self, values: &[Option<Value>]) {
        self.list(values, |w, value| match value {
            Some(value) => w.name(*value),
            None => w.done.text.push_str("null"),
        });
    }

    /// The captures of a body and their names: the name of the operand, unless the body has that name itself or
    /// the operand comes up twice; then another name, with the number of the captured operand.
    fn capture_list(&mut self, graph: GraphId) {
        let module = self.module;
        let captured = module.captured(graph);
        if captured.is_empty() {
            return;
        }
        let mut taken = Names::default();
        for value in module.defined(graph) {
            taken.take(&self.spelling(value));
        }
        self.line_key("captures");
        self.done.text.push('[');
        for Captured { capture, slot, outer, is_named, is_typed } in captured {
            let base = outer.map_or_else(|| "capture".to_owned(), |outer| self.spelling(outer).into_owned());
            let plain = is_named && taken.take(&base);
            let name = if plain { base } else { taken.fresh(&base) };
            self.item();
            if plain && !is_typed {
                self.text(&name);
            } else {
                self.done.text.push('{');
                self.field("name", &name);
                if !plain {
                    self.key("operand");
                    self.shown(slot);
                }
                if is_typed {
                    self.key("type");
                    self.type_value(&module.value(capture).ty);
                }
                self.done.text.push('}');
            }
            self.captures.insert(capture, name.into());
        }
        self.done.text.push(']');
    }

    /// An input or constant.
    fn source(&mut self, value: Value) {
        let data = self.module.value(value);
        let payload = match &data.def {
            Def::Input { default, .. } => default.as_ref(),
            Def::Constant(payload) => Some(payload),
            Def::Result { .. } | Def::Capture { .. } | Def::Erased => None,
        };
        self.done.text.push('{');
        self.key("name");
        self.name(value);
        self.key("type");
        self.ty(&data.ty);
        if let Some(payload) = payload {
            self.key("value");
            let name = name_of(self.module, value);
            match payload {
                Payload::Dense(data) => self.tensor(data, &name),
                Payload::Sparse(data) => self.sparse(data, &name),
            }
        }
        self.pairs(&data.metadata);
        self.done.text.push('}');
    }

    fn output(&mut self, output: &Output) {
        self.done.text.push('{');
        self.key("name");
        self.name(output.value);
        if output.declared != Type::Unknown {
            self.key("type");
            self.ty(&output.declared);
        }
        self.done.text.push('}');
    }

    fn node(&mut self, node: Node) {
        let module = self.module;
        let data = module.node(node);
        let (domain, op, overload) = module.op_name(node);
        self.done.text.push('{');
        let path = self.paths.path(node).to_owned();
        self.field("path", &path);
        if let Some(name) = data.name {
            self.field("name", module.text(name));
        }
        self.field_if("domain", domain);
        self.field("op", op);
        self.field_if("overload", overload);
        if let Some(schema) = data.schema().filter(|s| s.declared.is_none()) {
            self.key("version");
            self.shown(schema.since);
        }
        self.key("operands");
        self.names(data.formal_operands());
        if data.operands().len() > data.n_formal() {
            self.key("captures");
            self.names(&data.operands()[data.n_formal()..]);
        }
        self.key("results");
        self.names(data.results());
        self.key("types");
        self.list(data.results(), |w, result| match result {
            Some(value) => w.ty(&w.module.value(*value).ty),
            None => w.done.text.push_str("null"),
        });
        if !data.attrs().is_empty() {
            self.key("attributes");
            self.attrs(data.attrs(), &path);
        }
        self.decisions(node);
        if data.provenance == Provenance::Inserted {
            self.key("inserted");
            self.shown(true);
        }
        self.pairs(&data.metadata);
        self.done.text.push('}');
    }

    fn decisions(&mut self, node: Node) {
        let data = self.module.node(node);
        if data.decisions.is_empty() {
            return;
        }
        let vars = if data.schema().is_some() { self.module.var_names(node) } else { Default::default() };
        self.key("decisions");
        self.list(data.decisions.iter().enumerate(), |w, (i, decision)| {
            w.done.text.push('{');
            if vars.len() == data.decisions.len() {
                w.field("var", &vars[i]);
            }
            w.field("class", decision.class.as_str());
            if let Some(precision) = decision.precision {
                w.field("precision", &precision.to_string());
            }
            w.field_if("rule", &decision.reason.rule_text());
            w.field_if("evidence", &decision.reason.evidence_text());
            w.done.text.push('}');
        });
    }
}

/// Names that are taken, and the last number tried for each base name.
#[derive(Debug, Default)]
pub(super) struct Names {
    taken: FxHashSet<String>,
    suffixes: FxHashMap<String, u64>,
}

impl Names {
    /// True if the name was unused.
    pub(super) fn take(&mut self, name: &str) -> bool {
        !self.taken.contains(name) && self.taken.insert(name.to_owned())
    }

    /// A unique name: `base` with a number.
    pub(super) fn fresh(&mut self, base: &str) -> String {
        let n = self.suffixes.entry(base.to_owned()).or_insert(1);
        loop {
            *n += 1;
            let name = format!("{base}~{n}");
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }
}
