//! From JSON to a module.
//!
//! Graphs are built from a worklist, bodies after their owning node, so that nesting uses no stack. A name
//! means a value of its own graph: an input, capture or constant, or a result of a node above. Reading
//! continues after an error; the definitions of a broken node count as defined.

use super::SCHEMA;
use super::tape::{At, Broken, Tape, Token};
use ampc_ir::attr::Attr;
use ampc_ir::infer::infer_module;
use ampc_ir::module::{FunctionData, Reason, is_own_key};
use ampc_ir::op::OpSchema;
use ampc_ir::text::{DataResolver, ParseError, ParseErrors, ParseOptions, ParseSubject};
use ampc_ir::{DType, FunctionId, GraphId, Module, Node, Symbol, TensorData, Type, Value};
use ampc_passes::policy::{SignatureJson, reason};
use ampc_passes::suggest;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Deserialize;
use std::borrow::Cow;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;

/// More errors than this are not listed.
const MAX_ERRORS: usize = 100;

/// The values of a graph by name; `None` for values of broken nodes.
pub(super) type Scope = FxHashMap<Symbol, Option<Value>>;

pub(super) type Opsets = Vec<(Symbol, u16)>;

/// Key of a constant: name, stored element type, dims, hash.
type DataKey = (String, DType, Vec<u64>, Option<u128>);

/// A graph to be built.
pub(super) struct Work {
    pub(super) graph: GraphId,
    pub(super) at: At,
    pub(super) opsets: Rc<Opsets>,
    /// For bodies.
    pub(super) owner: Option<Owner>,
    pub(super) depth: usize,
}

/// The owner of a body.
#[derive(Clone)]
pub(super) struct Owner {
    pub(super) node: Node,
    /// The number of operands to capture.
    pub(super) n_captures: usize,
    /// The first of each name.
    pub(super) by_name: Rc<FxHashMap<Symbol, usize>>,
}

pub(super) fn parse(
    text: &str,
    resolver: &dyn DataResolver,
    options: &ParseOptions,
) -> Result<Module, ParseErrors> {
    let tape = Tape::new(text).map_err(|Broken { offset, expected, found }| {
        ParseErrors(vec![error_at(text, offset, offset + 1, expected, found)])
    })?;
    let mut reader = Reader {
        text,
        tape: &tape,
        module: Module::new(),
        resolver,
        options: *options,
        errors: Vec::new(),
        functions: FxHashMap::default(),
        signatures: FxHashMap::default(),
        work: Vec::new(),
        reasons: FxHashMap::default(),
        resolved: FxHashMap::default(),
        untyped: false,
    };
    reader.module();
    if !reader.errors.is_empty() {
        reader.errors.sort_by_key(|e| e.span.start);
        return Err(ParseErrors(reader.errors));
    }
    let mut module = reader.module;
    if reader.untyped && infer_module(&mut module).is_ok() {
        declare_outputs(&mut module);
    }
    Ok(module)
}

/// Outputs of the main graph without a type are declared with their inferred type.
fn declare_outputs(module: &mut Module) {
    let main = module.main();
    for index in 0..module.graph(main).outputs().len() {
        let output = &module.graph(main).outputs()[index];
        if output.declared == Type::Unknown {
            let ty = module.value(output.value).ty.clone();
            module.set_output_type(main, index, ty);
        }
    }
}

fn error_at(text: &str, start: usize, end: usize, expected: String, found: String) -> ParseError {
    let before = &text[..start];
    let line = 1 + before.bytes().filter(|&b| b == b'\n').count();
    let column = 1 + before[before.rfind('\n').map_or(0, |i| i + 1)..].chars().count();
    let end = (end.min(text.len())..=text.len()).find(|&i| text.is_char_boundary(i)).unwrap_or(start);
    ParseError { line, column, span: start..end, expected, found, about: ParseSubject::Text }
}

/// At most 60 characters of a text.
pub(super) fn clip(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(60) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

pub(super) struct Reader<'p, 't> {
    text: &'t str,
    pub(super) tape: &'p Tape<'t>,
    pub(super) module: Module,
    pub(super) resolver: &'p dyn DataResolver,
    pub(super) options: ParseOptions,
    errors: Vec<ParseError>,
    pub(super) functions: FxHashMap<(Symbol, Symbol, Symbol), FunctionId>,
    /// The operators of no table, by domain and name.
    pub(super) signatures: FxHashMap<(Symbol, Symbol), &'static OpSchema>,
    pub(super) work: Vec<Work>,
    /// Nodes with the same reason share it.
    pub(super) reasons: FxHashMap<(String, String), Arc<Reason>>,
    /// Large constants that were found.
    pub(super) resolved: FxHashMap<DataKey, Arc<TensorData>>,
    /// True if a node says nothing of the types of its results.
    pub(super) untyped: bool,
}

/// Values of JSON. An invalid value is reported as an error and read as `None`.
impl<'p, 't> Reader<'p, 't> {
    pub(super) fn error(&mut self, at: At, expected: impl AsRef<str>, found: impl Into<String>) {
        self.error_about(ParseSubject::Text, at, expected.as_ref(), found.into());
    }

    /// An error of data that has another hash than the text says.
    pub(super) fn hash_error(&mut self, at: At, expected: u128, found: u128) {
        let (expected, found) = (format!("data of hash {expected:032x}"), format!("{found:032x}"));
        self.error_about(ParseSubject::DataHash, at, &expected, found);
    }

    fn error_about(&mut self, about: ParseSubject, at: At, expected: &str, found: String) {
        if self.gave_up() {
            return;
        }
        let start = self.tape.offset(at);
        let path = self.tape.path(at);
        let expected = match path.is_empty() {
            true => expected.to_owned(),
            false => format!("{expected} at `{path}`"),
        };
        let end = start + self.tape.raw(at).len();
        self.errors.push(ParseError { about, ..error_at(self.text, start, end, expected, found) });
    }

    /// True if the limit of listed errors is reached; then the rest is skipped.
    fn gave_up(&self) -> bool {
        self.errors.len() >= MAX_ERRORS
    }

    /// An error about a value that is there.
    pub(super) fn wrong(&mut self, at: At, expected: impl AsRef<str>) {
        let found = match self.tape.token(at) {
            Token::Null => "null".into(),
            Token::List => "a list".into(),
            Token::Object => "an object".into(),
            Token::Bool(value) => value.to_string(),
            Token::Number(text) => format!("`{}`", clip(text)),
            Token::Text(text) => format!("\"{}\"", clip(&text)),
        };
        self.error(at, expected, found);
    }

    /// The fields of an object, by name; null is as good as absent.
    pub(super) fn fields<const N: usize>(
        &mut self,
        at: At,
        names: [&'static str; N],
    ) -> Option<[Option<At>; N]> {
        if self.gave_up() {
            return None;
        }
        if self.tape.token(at) != Token::Object {
            self.wrong(at, format!("an object with {}", list_of(&names)));
            return None;
        }
        let tape = self.tape;
        let mut fields = [None; N];
        let mut seen = [false; N];
        for (key, value) in tape.fields(at) {
            let Token::Text(name) = tape.token(key) else { continue };
            let Some(index) = names.iter().position(|n| *n == name) else {
                let hint = suggest::did_you_mean(suggest::nearest(&name, names));
                let expected = format!("one of the fields {}", list_of(&names));
                self.error(key, expected, format!("\"{}\"{hint}", clip(&name)));
                continue;
            };
            if std::mem::replace(&mut seen[index], true) {
                self.error(key, "every field once", format!("a second \"{name}\""));
            } else if tape.token(value) != Token::Null {
                fields[index] = Some(value);
            }
        }
        Some(fields)
    }

    pub(super) fn required(&mut self, at: At, field: Option<At>, name: &str) -> Option<At> {
        if field.is_none() {
            self.error(at, format!("the field \"{name}\""), "none");
        }
        field
    }

    /// The items of a list; none if it is absent.
    pub(super) fn items(&mut self, at: Option<At>, what: &str) -> Vec<At> {
        let Some(at) = at.filter(|_| !self.gave_up()) else { return Vec::new() };
        if self.tape.token(at) != Token::List {
            self.wrong(at, format!("a list of {what}"));
            return Vec::new();
        }
        self.tape.items(at).collect()
    }

    /// The fields of an object whose names are anything.
    pub(super) fn entries(&mut self, at: Option<At>, what: &str) -> Vec<(Cow<'t, str>, At)> {
        let Some(at) = at else { return Vec::new() };
        if self.tape.token(at) != Token::Object {
            self.wrong(at, format!("an object of {what}"));
            return Vec::new();
        }
        let tape = self.tape;
        let mut seen = FxHashSet::default();
        let mut entries = Vec::new();
        for (key, value) in tape.fields(at) {
            let Token::Text(name) = tape.token(key) else { continue };
            if !seen.insert(name.clone()) {
                self.error(key, "every name once", format!("a second \"{}\"", clip(&name)));
            }
            entries.push((name, value));
        }
        entries
    }

    pub(super) fn string(&mut self, at: At, what: &str) -> Option<Cow<'t, str>> {
        if let Token::Text(text) = self.tape.token(at) {
            return Some(text);
        }
        self.wrong(at, what);
        None
    }

    pub(super) fn symbol(&mut self, at: At, what: &str) -> Option<Symbol> {
        let text = self.string(at, what)?;
        Some(self.module.intern(&text))
    }

    /// A text, empty if it is absent.
    pub(super) fn text_or_empty(&mut self, at: Option<At>) -> String {
        at.and_then(|at| self.string(at, "a string")).map(Cow::into_owned).unwrap_or_default()
    }

    pub(super) fn symbol_or_empty(&mut self, at: Option<At>) -> Symbol {
        let text = self.text_or_empty(at);
        self.module.intern(&text)
    }

    /// An integer that fits.
    pub(super) fn int<T: FromStr>(&mut self, at: At, what: &str) -> Option<T> {
        if let Token::Number(text) = self.tape.token(at)
            && let Ok(value) = text.parse()
        {
            return Some(value);
        }
        self.wrong(at, what);
        None
    }

    /// A word of a language with an error that lists the words.
    pub(super) fn word<T: FromStr>(&mut self, at: At, what: &str) -> Option<T> {
        let parsed = self.string(at, what)?.parse().ok();
        if parsed.is_none() {
            self.wrong(at, what);
        }
        parsed
    }

    pub(super) fn dtype(&mut self, at: At) -> Option<DType> {
        self.word(at, "an element type such as \"f32\", \"f16\", \"bf16\", \"i64\", \"bool\"")
    }
}

fn list_of(names: &[&str]) -> String {
    names.iter().map(|n| format!("\"{n}\"")).collect::<Vec<_>>().join(", ")
}

/// Header, functions, graphs.
impl Reader<'_, '_> {
    fn module(&mut self) {
        let root = self.tape.root();
        let is_schema = |(key, _): &(At, At)| self.tape.token(*key) == Token::Text(SCHEMA_FIELD.into());
        let schema = self.tape.fields(root).find(is_schema).map(|(_, value)| value);
        match schema.map(|at| (at, self.tape.token(at))) {
            Some((_, Token::Text(text))) if text == SCHEMA => {}
            Some((at, _)) => {
                return self.wrong(at, format!("the schema \"{SCHEMA}\", the only one that is known"));
            }
            None => return self.error(root, format!("an object with \"schema\": \"{SCHEMA}\""), "none"),
        }
        let Some(fields) = self.fields(
            root,
            [
                SCHEMA_FIELD,
                "ir_version",
                "opsets",
                "producer_name",
                "producer_version",
                "domain",
                "model_version",
                "doc",
                "metadata",
                "signatures",
                "graph",
                "functions",
            ],
        ) else {
            return;
        };
        let [_, ir, opsets, producer, producer_version, domain, version, doc, metadata, rest @ ..] = fields;
        let [signatures, graph, functions] = rest;
        let ir_version = ir.and_then(|at| self.int(at, "the version of the ONNX IR")).unwrap_or(10);
        let model_version = version.and_then(|at| self.int(at, "an integer")).unwrap_or(0);
        let opsets = Rc::new(self.opsets(opsets));
        self.module.header.opsets = opsets.to_vec();
        self.module.header.ir_version = ir_version;
        self.module.header.model_version = model_version;
        self.module.header.producer_name = self.text_or_empty(producer);
        self.module.header.producer_version = self.text_or_empty(producer_version);
        self.module.header.domain = self.text_or_empty(domain);
        self.module.header.doc_string = self.text_or_empty(doc);
        self.module.header.metadata = self.pairs(metadata);
        let mut known = FxHashSet::default();
        let keys = self.module.header.metadata.iter().map(|(key, _)| key).filter(|key| is_own_key(key));
        if let Some(second) = keys.clone().find(|key| !known.insert(key.as_str())).cloned()
            && let Some(at) = metadata
        {
            self.error(at, "every key of ampc once", format!("a second \"{}\"", clip(&second)));
        }
        self.signatures(signatures);
        let mut roots = Vec::new();
        if let Some(at) = self.required(root, graph, "graph") {
            roots.push(Work { graph: self.module.main(), at, opsets, owner: None, depth: 0 });
        }
        for at in self.items(functions, "functions") {
            roots.extend(self.function(at));
        }
        roots.reverse();
        self.work = roots;
        while let Some(work) = self.work.pop() {
            self.graph(&work);
        }
    }

    /// `{"acme::Scale": {…}}`, as in policies.
    fn signatures(&mut self, at: Option<At>) {
        let Some(at) = at else { return };
        if self.tape.token(at) != Token::Object {
            return self.wrong(at, "an object of signatures by operator");
        }
        let tape = self.tape;
        for (key, value) in tape.fields(at) {
            let Token::Text(op) = tape.token(key) else { continue };
            // As in policies; what is behind the value is not looked at.
            let mut json = serde_json::Deserializer::from_str(&self.text[tape.offset(value)..]);
            let read = SignatureJson::deserialize(&mut json).map_err(|e| {
                let text = e.to_string();
                text.rfind(" at line ").map_or(text.clone(), |end| text[..end].to_owned())
            });
            match read.and_then(|json| json.schema(&op).map_err(|e| reason(&e))) {
                Ok(schema) => {
                    let known = (self.module.intern(schema.domain), self.module.intern(schema.name));
                    if self.signatures.insert(known, schema).is_some() {
                        self.error(key, "signatures of different operators", format!("a second \"{op}\""));
                    }
                }
                Err(reason) => self.error(value, "a valid signature", reason),
            }
        }
    }

    /// `{"ai.onnx": 21}`, or pairs in which ONNX's own domain is empty.
    fn opsets(&mut self, at: Option<At>) -> Opsets {
        const VERSION: &str = "the version of an operator set";
        let Some(at) = at.filter(|_| !self.gave_up()) else { return Vec::new() };
        if self.tape.token(at) != Token::List {
            let entries = self.entries(Some(at), "versions by domain, such as {\"ai.onnx\": 21}");
            let mut opsets = Vec::new();
            for (domain, version) in entries {
                let domain = self.module.intern(if domain == "ai.onnx" { "" } else { &domain });
                opsets.extend(self.int(version, VERSION).map(|version| (domain, version)));
            }
            return opsets;
        }
        let mut opsets = Vec::new();
        for pair in self.items(Some(at), "pairs") {
            let Some([domain, version]) = self.pair(pair, "a pair of domain and version") else { continue };
            let domain = self.symbol(domain, "a domain");
            opsets.extend(domain.zip(self.int(version, VERSION)));
        }
        opsets
    }

    pub(super) fn pair(&mut self, at: At, what: &str) -> Option<[At; 2]> {
        let items = match self.tape.token(at) {
            Token::List => self.tape.items(at).take(3).collect::<Vec<_>>(),
            _ => Vec::new(),
        };
        let pair = items.try_into().ok();
        if pair.is_none() {
            self.wrong(at, what);
        }
        pair
    }

    fn pairs(&mut self, at: Option<At>) -> Vec<(String, String)> {
        let mut pairs = Vec::new();
        for item in self.items(at, "pairs of key and value") {
            let Some([key, value]) = self.pair(item, "a pair of key and value") else { continue };
            let key = self.string(key, "a string").map(Cow::into_owned);
            pairs.extend(key.zip(self.string(value, "a string").map(Cow::into_owned)));
        }
        pairs
    }

    pub(super) fn metadata(&mut self, at: Option<At>) -> Vec<(Symbol, Symbol)> {
        let pairs = self.pairs(at);
        pairs.iter().map(|(k, v)| (self.module.intern(k), self.module.intern(v))).collect()
    }

    /// That an attribute of a function is listed once, with a default or without.
    fn once(&mut self, known: &mut FxHashSet<Symbol>, at: At, name: Symbol) {
        if !known.insert(name) {
            let found = format!("a second \"{}\"", clip(self.module.text(name)));
            self.error(at, "every attribute once, with a default or without", found);
        }
    }

    fn function(&mut self, at: At) -> Option<Work> {
        let names = [
            "domain",
            "name",
            "overload",
            "opsets",
            "doc",
            "metadata",
            "attributes",
            "attribute_defaults",
            "graph",
        ];
        let [domain, name, overload, opsets, doc, metadata, attrs, defaults, graph] =
            self.fields(at, names)?;
        let name = self.required(at, name, "name").and_then(|at| self.symbol(at, "a string"))?;
        let (domain, overload) = (self.symbol_or_empty(domain), self.symbol_or_empty(overload));
        let opsets = Rc::new(self.opsets(opsets));
        let mut attr_names = Vec::new();
        let mut known = FxHashSet::default();
        for attr in self.items(attrs, "names") {
            let Some(name) = self.symbol(attr, "the name of an attribute") else { continue };
            self.once(&mut known, attr, name);
            attr_names.push(name);
        }
        let mut attr_defaults = Vec::new();
        let mut bodies = Vec::new();
        for (name, value) in self.entries(defaults, "attributes") {
            let name = self.module.intern(&name);
            self.once(&mut known, value, name);
            let read = self.attr(value, &mut bodies);
            attr_defaults.extend(read.map(|value| Attr { name, value, dirty: true }));
        }
        if let Some(&(_, body)) = bodies.first() {
            self.error(body, "a default that is no graph", "a graph");
        }
        let doc_string = self.text_or_empty(doc);
        let metadata = self.metadata(metadata);
        let empty = self.module.intern("");
        let body = self.module.new_graph(empty);
        let id = self.module.add_function(FunctionData {
            domain,
            name,
            overload,
            graph: body,
            opsets: opsets.to_vec(),
            attrs: attr_names,
            attr_defaults,
            doc_string,
            metadata,
            origin: None,
        });
        if self.functions.insert((domain, name, overload), id).is_some() {
            self.error(at, "functions of different names", "a name that another one has");
        }
        let at = self.required(at, graph, "graph")?;
        Some(Work { graph: body, at, opsets, owner: None, depth: 0 })
    }
}

/// The field that says which version this is.
const SCHEMA_FIELD: &str = "schema";

/// Bodies of a node: the graphs, and where their content is.
pub(super) type Bodies = Vec<(GraphId, At)>;

impl Reader<'_, '_> {
    /// A body, to be filled later.
    pub(super) fn body(&mut self, at: At, bodies: &mut Bodies) -> GraphId {
        let empty = self.module.intern("");
        let graph = self.module.new_graph(empty);
        bodies.push((graph, at));
        graph
    }
}
