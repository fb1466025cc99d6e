//! From a module to its text.
//!
//! One walk in program order, into one string. Everything comes from lists, so the text is the same whenever the
//! module is; the two tables here (spellings of captures, names of large constants) are only looked up.

use super::quote::{write_name, write_op_word, write_quoted, write_word};
use super::signature::signatures;
use crate::attr::{Attr, AttrValue};
use crate::entity::{GraphId, Node, SecondaryMap, Symbol, Value};
use crate::module::{Captured, Decision, Def, FunctionData, Module, NodeData, Provenance};
use crate::tensor::TensorError;
use crate::text::options::{LargeConstant, MAX_DEPTH, PrintOptions, Printed};
use crate::text::type_printer::{DataNames, write_type};
use crate::ty::Type;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::fmt::Write;
use std::ops::Range;

pub(super) struct Printer<'m> {
    pub(super) module: &'m Module,
    pub(super) options: PrintOptions<'m>,
    pub(super) out: String,
    pub(super) names: DataNames,
    pub(super) large: Vec<LargeConstant>,
    pub(super) errors: Vec<TensorError>,
    nodes: SecondaryMap<Node, Option<Range<usize>>>,
    /// How captures are spelled in their body.
    captures: FxHashMap<Value, Box<str>>,
    /// Indentation.
    depth: usize,
    /// Bodies around the present graph.
    nesting: usize,
}

pub(super) fn print(module: &Module, options: &PrintOptions<'_>) -> Printed {
    let mut printer = Printer {
        module,
        options: *options,
        out: String::new(),
        names: DataNames::default(),
        large: Vec::new(),
        errors: Vec::new(),
        nodes: SecondaryMap::default(),
        captures: FxHashMap::default(),
        depth: 0,
        nesting: 0,
    };
    printer.header();
    printer.out.push_str("\ngraph");
    printer.graph(module.main(), None);
    printer.out.push('\n');
    for (_, function) in module.functions() {
        printer.function(function);
    }
    let Printer { out, nodes, large, errors, .. } = printer;
    Printed { text: out, nodes, large, errors }
}

/// Writes `domain=version` pairs; ai.onnx is the empty domain, a domain spelled `ai.onnx` is quoted.
fn write_opsets(out: &mut String, module: &Module, opsets: &[(Symbol, u16)]) {
    for (i, (domain, version)) in opsets.iter().enumerate() {
        out.push_str(if i > 0 { ", " } else { "opset " });
        match module.text(*domain) {
            "" => out.push_str("ai.onnx"),
            "ai.onnx" => out.push_str("\"ai.onnx\""),
            domain => write_word(out, domain),
        }
        let _ = write!(out, "={version}");
    }
}

fn write_meta(out: &mut String, key: &str, value: &str, equals: &str) {
    write_word(out, key);
    out.push_str(equals);
    write_quoted(out, value.as_bytes());
}

/// Writes `domain::name:overload`.
fn write_op_name(out: &mut String, (domain, name, overload): (&str, &str, &str)) {
    if !domain.is_empty() {
        write_op_word(out, domain);
        out.push_str("::");
    }
    write_op_word(out, name);
    if !overload.is_empty() {
        out.push(':');
        write_op_word(out, overload);
    }
}

impl Printer<'_> {
    fn header(&mut self) {
        let header = &self.module.header;
        let _ = writeln!(self.out, "module ir={}", header.ir_version);
        if !header.producer_name.is_empty() || !header.producer_version.is_empty() {
            self.out.push_str("producer ");
            write_quoted(&mut self.out, header.producer_name.as_bytes());
            self.out.push(' ');
            write_quoted(&mut self.out, header.producer_version.as_bytes());
            self.out.push('\n');
        }
        if header.model_version != 0 {
            let _ = writeln!(self.out, "version {}", header.model_version);
        }
        for (keyword, text) in [("domain ", &header.domain), ("doc ", &header.doc_string)] {
            if !text.is_empty() {
                self.out.push_str(keyword);
                write_quoted(&mut self.out, text.as_bytes());
                self.out.push('\n');
            }
        }
        for (key, value) in &header.metadata {
            self.out.push_str("meta ");
            write_meta(&mut self.out, key, value, " = ");
            self.out.push('\n');
        }
        if !header.opsets.is_empty() {
            write_opsets(&mut self.out, self.module, &header.opsets);
            self.out.push('\n');
        }
        for signature in signatures(self.module) {
            self.out.push_str("signature ");
            write_op_name(&mut self.out, (&signature.domain, &signature.name, ""));
            let _ = writeln!(self.out, "{signature}");
        }
    }

    fn function(&mut self, function: &FunctionData) {
        let module = self.module;
        self.out.push_str("\nfunction ");
        let name = (module.text(function.domain), module.text(function.name), module.text(function.overload));
        write_op_name(&mut self.out, name);
        self.graph(function.graph, Some(function));
        self.out.push('\n');
    }

    /// Prints the lines of a function outside its graph.
    fn function_lines(&mut self, function: &FunctionData) {
        let module = self.module;
        if !function.opsets.is_empty() {
            self.indent();
            write_opsets(&mut self.out, module, &function.opsets);
            self.out.push('\n');
        }
        if !function.doc_string.is_empty() {
            self.indent();
            self.out.push_str("doc ");
            write_quoted(&mut self.out, function.doc_string.as_bytes());
            self.out.push('\n');
        }
        self.meta_lines(&function.metadata);
        for &attr in &function.attrs {
            self.indent();
            self.out.push_str("attr ");
            write_word(&mut self.out, module.text(attr));
            self.out.push('\n');
        }
        for Attr { name, value, .. } in &function.attr_defaults {
            self.indent();
            self.out.push_str("attr ");
            write_word(&mut self.out, module.text(*name));
            self.out.push_str(" = ");
            let function = module.text(function.name);
            self.attr_value(value, &|| format!("{function}.{}", module.text(*name)));
            self.out.push('\n');
        }
    }

    /// Metadata of a function or graph, a line each.
    fn meta_lines(&mut self, metadata: &[(Symbol, Symbol)]) {
        for &(key, value) in metadata {
            self.indent();
            self.out.push_str("meta ");
            write_meta(&mut self.out, self.module.text(key), self.module.text(value), " = ");
            self.out.push('\n');
        }
    }

    /// Writes a graph from its name on.
    fn graph(&mut self, graph: GraphId, function: Option<&FunctionData>) {
        let module = self.module;
        let data = module.graph(graph);
        if !module.text(data.name).is_empty() {
            self.out.push(' ');
            write_name(&mut self.out, '@', module.text(data.name));
        }
        self.capture_list(graph);
        self.out.push_str(" {\n");
        self.depth += 1;
        if let Some(function) = function {
            self.function_lines(function);
        }
        if self.nesting > MAX_DEPTH {
            self.indent();
            let _ = writeln!(self.out, "nested more than {MAX_DEPTH} deep");
        } else {
            if function.is_none() {
                self.meta_lines(&data.metadata);
            }
            self.sources(graph);
            for node in module.nodes(graph) {
                self.node(node);
            }
            self.graph_end(graph);
        }
        self.depth -= 1;
        self.indent();
        self.out.push('}');
    }

    fn body(&mut self, graph: GraphId) {
        self.nesting += 1;
        self.graph(graph, None);
        self.nesting -= 1;
    }

    fn indent(&mut self) {
        for _ in 0..self.depth {
            self.out.push_str("  ");
        }
    }

    /// Formal inputs and constants.
    fn sources(&mut self, graph: GraphId) {
        let module = self.module;
        for &value in module.graph(graph).inputs() {
            self.source("input ", value);
        }
        for &value in module.graph(graph).constants() {
            self.source("const ", value);
        }
    }

    fn source(&mut self, keyword: &str, value: Value) {
        let module = self.module;
        let data = module.value(value);
        self.indent();
        self.out.push_str(keyword);
        self.value(value);
        self.out.push_str(" : ");
        write_type(&mut self.out, module, &data.ty);
        let payload = match &data.def {
            Def::Input { default, .. } => default.as_ref(),
            Def::Constant(payload) => Some(payload),
            Def::Result { .. } | Def::Capture { .. } | Def::Erased => None,
        };
        if let Some(payload) = payload {
            self.out.push_str(" = ");
            let name = || data.name.map_or_else(|| value.to_string(), |n| module.text(n).to_owned());
            self.payload(&data.ty, payload, &name);
        }
        self.metadata(&data.metadata);
        self.out.push('\n');
    }

    /// Outputs, states and roles.
    fn graph_end(&mut self, graph: GraphId) {
        let module = self.module;
        let data = module.graph(graph);
        for output in data.outputs() {
            self.indent();
            self.out.push_str("output ");
            self.value(output.value);
            if output.declared != Type::Unknown {
                self.out.push_str(" : ");
                write_type(&mut self.out, module, &output.declared);
            }
            self.out.push('\n');
        }
        for &(input, next) in &data.states {
            self.indent();
            self.out.push_str("state ");
            self.value(input);
            self.out.push_str(" -> ");
            self.value(next);
            self.out.push('\n');
        }
        for role in &data.roles {
            self.indent();
            self.out.push_str("role ");
            write_word(&mut self.out, module.text(role.name));
            self.out.push('(');
            for (i, &value) in role.values.iter().enumerate() {
                self.out.push_str(if i > 0 { ", " } else { "" });
                self.value(value);
            }
            self.out.push_str(")\n");
        }
    }

    /// Writes a value's name, as its graph knows it. Values without a name (only captures have none) are
    /// spelled by their id.
    fn value(&mut self, value: Value) {
        let data = self.module.value(value);
        if let Some(spelling) = self.captures.get(&value) {
            write_name(&mut self.out, '%', spelling);
        } else if let Some(name) = data.name {
            write_name(&mut self.out, '%', self.module.text(name));
        } else {
            let _ = write!(self.out, "%{value}");
        }
    }

    fn operand(&mut self, operand: Option<Value>) {
        match operand {
            Some(value) => self.value(value),
            None => self.out.push('_'),
        }
    }

    fn spelling(&self, value: Value) -> String {
        let name = |v: Value| self.module.value(v).name.map(|n| self.module.text(n).to_owned());
        match self.captures.get(&value) {
            Some(spelling) => spelling.to_string(),
            None => name(value).unwrap_or_else(|| value.to_string()),
        }
    }

    /// Writes the captures of a body, in parentheses, and fixes their names in the body: the name of the
    /// operand, unless the body has that name itself or the operand comes up twice; then `%alias = slot`.
    fn capture_list(&mut self, graph: GraphId) {
        let module = self.module;
        let data = module.graph(graph);
        let captured = module.captured(graph);
        if captured.is_empty() {
            return;
        }
        let mut taken = self.own_names(graph);
        let mut suffixes: FxHashMap<String, u64> = FxHashMap::default();
        let named = !module.text(data.name).is_empty();
        self.out.push_str(if named { "(" } else { " (" });
        for (i, Captured { capture, slot, outer, is_named, is_typed }) in captured.into_iter().enumerate() {
            self.out.push_str(if i > 0 { ", " } else { "" });
            let base = outer.map_or_else(|| "capture".to_owned(), |outer| self.spelling(outer));
            if is_named && taken.insert(base.clone()) {
                write_name(&mut self.out, '%', &base);
                self.captures.insert(capture, base.into());
            } else {
                let n = suffixes.entry(base.clone()).or_insert(1);
                let alias = loop {
                    *n += 1;
                    let alias = format!("{base}~{n}");
                    if taken.insert(alias.clone()) {
                        break alias;
                    }
                };
                write_name(&mut self.out, '%', &alias);
                let _ = write!(self.out, " = {slot}");
                self.captures.insert(capture, alias.into());
            }
            if is_typed {
                self.out.push_str(" : ");
                write_type(&mut self.out, module, &module.value(capture).ty);
            }
        }
        self.out.push(')');
    }

    /// The names of everything in a graph but its captures.
    fn own_names(&self, graph: GraphId) -> FxHashSet<String> {
        let module = self.module;
        let data = module.graph(graph);
        let sources = data.inputs().iter().chain(data.constants()).copied();
        let results = module.nodes(graph).flat_map(|n| module.node(n).results().iter().flatten().copied());
        sources.chain(results).map(|value| self.spelling(value)).collect()
    }

    fn node(&mut self, node: Node) {
        let data = self.module.node(node);
        self.indent();
        let start = self.out.len();
        for (i, &result) in data.results().iter().enumerate() {
            self.out.push_str(if i > 0 { ", " } else { "" });
            self.operand(result);
        }
        if !data.results().is_empty() {
            self.out.push_str(" = ");
        }
        write_op_name(&mut self.out, self.module.op_name(node));
        self.operands(data);
        let mut end = None;
        self.attrs(node, data, &mut end);
        self.result_types(data);
        self.decisions(node, data);
        if data.provenance == Provenance::Inserted {
            self.out.push_str(" cast=inserted");
        }
        if let Some(name) = data.name {
            self.out.push(' ');
            write_name(&mut self.out, '@', self.module.text(name));
        }
        self.metadata(&data.metadata);
        self.nodes[node] = Some(start..end.unwrap_or(self.out.len()));
        self.out.push('\n');
        if let Some(note) = self.options.note.and_then(|note| note(node)) {
            for line in note.lines() {
                self.indent();
                let _ = writeln!(self.out, "// {line}");
            }
        }
    }

    fn operands(&mut self, data: &NodeData) {
        self.out.push('(');
        for (i, &operand) in data.operands().iter().enumerate() {
            if i == data.n_formal() {
                self.out.push_str("; ");
            } else if i > 0 {
                self.out.push_str(", ");
            }
            self.operand(operand);
        }
        self.out.push(')');
    }

    /// Writes attributes: on the node's line, or each on its own line if any of them is a body. `end` becomes
    /// the end of the node's first line if there are more.
    fn attrs(&mut self, node: Node, data: &NodeData, end: &mut Option<usize>) {
        let module = self.module;
        if data.attrs().is_empty() {
            return;
        }
        let tall = data.bodies().next().is_some();
        self.out.push_str(if tall { " {\n" } else { " {" });
        if tall {
            *end = Some(self.out.len() - 1);
            self.depth += 1;
        }
        for (i, Attr { name, value, .. }) in data.attrs().iter().enumerate() {
            if i > 0 {
                self.out.push_str(if tall { ",\n" } else { ", " });
            }
            if tall {
                self.indent();
            }
            write_word(&mut self.out, module.text(*name));
            match value {
                AttrValue::Graph(body) => {
                    self.out.push_str(": graph");
                    self.body(*body);
                }
                AttrValue::Graphs(bodies) if !bodies.is_empty() => {
                    self.out.push_str(": [");
                    for (i, &body) in bodies.iter().enumerate() {
                        self.out.push_str(if i > 0 { ", graph" } else { "graph" });
                        self.body(body);
                    }
                    self.out.push(']');
                }
                AttrValue::Graphs(_)
                | AttrValue::Float(_)
                | AttrValue::Int(_)
                | AttrValue::String(_)
                | AttrValue::Tensor(_)
                | AttrValue::SparseTensor(_)
                | AttrValue::Type(_)
                | AttrValue::Floats(_)
                | AttrValue::Ints(_)
                | AttrValue::Strings(_)
                | AttrValue::Tensors(_)
                | AttrValue::SparseTensors(_)
                | AttrValue::Types(_)
                | AttrValue::Reference { .. } => {
                    self.out.push('=');
                    self.attr_value(value, &|| format!("{}.{}", label(module, node), module.text(*name)));
                }
            }
        }
        if tall {
            self.out.push('\n');
            self.depth -= 1;
            self.indent();
        }
        self.out.push('}');
    }

    fn result_types(&mut self, data: &NodeData) {
        for (i, result) in data.results().iter().enumerate() {
            self.out.push_str(if i > 0 { ", " } else { " : " });
            match result {
                Some(value) => write_type(&mut self.out, self.module, &self.module.value(*value).ty),
                None => self.out.push('_'),
            }
        }
    }

    /// Writes class, precision and reason of each type variable or port: once if all are the same.
    fn decisions(&mut self, node: Node, data: &NodeData) {
        if data.decisions.is_empty() {
            return;
        }
        // How many ports a call has is not known where it is read.
        let vars = if data.schema().is_some() { self.module.var_names(node) } else { SmallVec::new() };
        self.decided(&vars, data, "class", |out, decision| {
            out.push_str(decision.class.as_str());
            true
        });
        self.decided(&vars, data, "prec", |out, decision| {
            let _ = decision.precision.map(|dtype| write!(out, "{dtype}"));
            decision.precision.is_some()
        });
        self.decided(&vars, data, "why", |out, decision| {
            let (rule, evidence) = (decision.reason.rule_text(), decision.reason.evidence_text());
            if rule.is_empty() && evidence.is_empty() {
                return false;
            }
            write_word(out, &rule);
            if !evidence.is_empty() {
                out.push('(');
                write_quoted(out, evidence.as_bytes());
                out.push(')');
            }
            true
        });
    }

    /// Writes each decision with `write`, which returns true if it has written anything.
    fn decided(
        &mut self,
        vars: &[Cow<'static, str>],
        data: &NodeData,
        key: &str,
        write: impl Fn(&mut String, &Decision) -> bool,
    ) {
        let mut items: Vec<(usize, String)> = Vec::new();
        for (i, decision) in data.decisions.iter().enumerate() {
            let mut text = String::new();
            if write(&mut text, decision) {
                items.push((i, text));
            }
        }
        let Some((_, first)) = items.first() else { return };
        let _ = write!(self.out, " {key}=");
        let named = data.decisions.len() == vars.len();
        if named && items.len() == vars.len() && items.iter().all(|(_, text)| text == first) {
            self.out.push_str(first);
            return;
        }
        for (n, (i, text)) in items.iter().enumerate() {
            self.out.push_str(if n > 0 { "," } else { "" });
            if named {
                write_word(&mut self.out, &vars[*i]);
            } else {
                let _ = write!(self.out, "{i}");
            }
            self.out.push(':');
            self.out.push_str(text);
        }
    }

    fn metadata(&mut self, metadata: &[(Symbol, Symbol)]) {
        for (i, &(key, value)) in metadata.iter().enumerate() {
            self.out.push_str(if i > 0 { ", " } else { " meta {" });
            write_meta(&mut self.out, self.module.text(key), self.module.text(value), "=");
        }
        if !metadata.is_empty() {
            self.out.push('}');
        }
    }
}

/// Description of a node for messages about its contents: its name, or the name of its first result, or its
/// operator.
fn label(module: &Module, node: Node) -> String {
    let data = module.node(node);
    let result = || data.results().iter().flatten().next().and_then(|&v| module.value(v).name);
    let named = data.name.filter(|&n| !module.text(n).is_empty()).or_else(result);
    named.map_or(module.op_name(node).1, |n| module.text(n)).to_owned()
}
