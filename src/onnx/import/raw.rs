//! Step 1: every graph as a table of named things, operators looked up, attributes decoded.
//!
//! Graphs are read from a worklist, so bodies come after the graph of their owner, and nesting uses no stack.

use super::Import;
use super::operator::FunctionNames;
use crate::onnx::error::{Problem, ProblemKind, Warning};
use crate::onnx::node::{AttrContent, AttrMessage, read_attr, read_node};
use crate::onnx::proto::ValueInfoProto;
use crate::onnx::scan::{
    FunctionMessage, GraphMessage, Located, decode, read_function, read_graph, read_model,
    read_value_metadata,
};
use crate::onnx::sparse::densified;
use crate::onnx::tensor::{TensorFailure, TensorIssue, TensorMessage, read_sparse, read_tensor};
use crate::onnx::types::{TypeIssue, kind_of, type_of};
use crate::onnx::wire::{Span, WireError};
use ampc_ir::attr::{Attr, AttrValue};
use ampc_ir::bodies::Form;
use ampc_ir::module::Header;
use ampc_ir::{Module, Op, Payload, Symbol, Type};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Everything in the file, by name.
pub(super) struct Tables {
    pub(super) header: Header,
    pub(super) header_in_file: Header,
    pub(super) functions: Vec<RawFunction>,
    /// The main graph, the functions in order, then bodies after the graph of their owner.
    pub(super) graphs: Vec<RawGraph>,
}

pub(super) struct RawFunction {
    pub(super) at: Located,
    pub(super) message: FunctionMessage,
    pub(super) opsets: Vec<(Symbol, u16)>,
    pub(super) attr_defaults: Vec<Attr>,
    /// The operator of ai.ampc and its form; set by `bodies`.
    pub(super) form: Option<Form>,
}

/// Owner of a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RawOwner {
    Main,
    Function(usize),
    Body { graph: usize, node: usize, attr: Symbol },
}

pub(super) struct RawGraph {
    pub(super) owner: RawOwner,
    /// The function it is in, at whatever depth.
    pub(super) function: Option<usize>,
    pub(super) at: Located,
    pub(super) name: String,
    pub(super) inputs: Vec<RawValue>,
    pub(super) constants: Vec<RawConstant>,
    pub(super) outputs: Vec<RawValue>,
    pub(super) nodes: Vec<RawNode>,
    /// Bodies by owning node, in order of the attributes.
    pub(super) bodies: BTreeMap<usize, Vec<usize>>,
    /// Program order, once resolved.
    pub(super) order: Vec<usize>,
    /// Free variables of the graph, in the order of their first readers.
    pub(super) free: Vec<Symbol>,
    /// Metadata of the graph, if it is the main graph.
    pub(super) metadata: Vec<(Symbol, Symbol)>,
    /// Metadata of inputs and constants of the main graph.
    pub(super) metadata_of: FxHashMap<Symbol, Vec<(Symbol, Symbol)>>,
}

pub(super) struct RawValue {
    pub(super) name: Symbol,
    pub(super) at: Located,
    pub(super) ty: Type,
}

pub(super) struct RawConstant {
    pub(super) name: Symbol,
    pub(super) at: Located,
    /// `None` if it is wrong, which has been reported.
    pub(super) payload: Option<Payload>,
    pub(super) external: bool,
}

pub(super) struct RawNode {
    pub(super) at: Located,
    /// `None` if there is no such operator, which has been reported.
    pub(super) op: Option<Op>,
    pub(super) overload: Option<Symbol>,
    pub(super) name: Option<Symbol>,
    pub(super) inputs: SmallVec<[Option<Symbol>; 4]>,
    pub(super) outputs: SmallVec<[Option<Symbol>; 2]>,
    pub(super) attrs: Vec<RawAttr>,
    pub(super) metadata: Vec<(Symbol, Symbol)>,
    /// True if elements of an attribute are in an external file.
    pub(super) external: bool,
}

pub(super) struct RawAttr {
    pub(super) name: Symbol,
    pub(super) value: RawAttrValue,
}

pub(super) enum RawAttrValue {
    Ready(AttrValue),
    /// Bodies, by index of their graph; whether the attribute is a list.
    Graphs {
        graphs: SmallVec<[usize; 1]>,
        list: bool,
    },
}

impl RawGraph {
    fn new(owner: RawOwner, function: Option<usize>, at: Located) -> RawGraph {
        RawGraph {
            owner,
            function,
            at,
            name: String::new(),
            inputs: Vec::new(),
            constants: Vec::new(),
            outputs: Vec::new(),
            nodes: Vec::new(),
            bodies: BTreeMap::new(),
            order: Vec::new(),
            free: Vec::new(),
            metadata: Vec::new(),
            metadata_of: FxHashMap::default(),
        }
    }
}

/// A graph still to be read.
struct Pending {
    owner: RawOwner,
    depth: usize,
    function: Option<usize>,
    at: Located,
}

impl Import<'_> {
    pub(super) fn read_tables(&mut self) -> Result<Option<Tables>, WireError> {
        let message = read_model(&mut self.reader)?;
        self.check_versions(&message);
        let header_in_file = self.header(&message);
        let Some(main) = message.graph else {
            self.problem("", ProblemKind::NoGraph);
            return Ok(None);
        };
        let functions = self.functions(&message.functions)?;
        if !self.problems.is_empty() {
            // Without trustworthy versions and functions every operator would be reported.
            return Ok(None);
        }
        let names = FunctionNames::of(self, &functions);
        let header = header_in_file.clone();
        let mut tables = Tables { header, header_in_file, functions, graphs: Vec::new() };
        let mut pending = vec![Pending { owner: RawOwner::Main, depth: 0, function: None, at: main }];
        for (i, function) in tables.functions.iter().enumerate() {
            pending.push(Pending {
                owner: RawOwner::Function(i),
                depth: 0,
                function: Some(i),
                at: function.at,
            });
        }
        while let Some(next) = pending.get(tables.graphs.len()) {
            if next.depth > self.max_depth {
                let place = super::scope::path_of(&self.module, &tables.graphs, next.owner);
                self.problem(place, ProblemKind::TooDeep { limit: self.max_depth });
                return Ok(None);
            }
            let (field, index) = match next.owner {
                RawOwner::Main => ("graph", None),
                RawOwner::Function(i) => ("functions", Some(i)),
                RawOwner::Body { .. } => ("body", None),
            };
            let read = self.graph(&mut tables, &names, &mut pending);
            read.map_err(|e| e.within(field, index))?;
        }
        Ok(Some(tables))
    }

    fn functions(&mut self, located: &[Located]) -> Result<Vec<RawFunction>, WireError> {
        let mut functions = Vec::new();
        for (i, &at) in located.iter().enumerate() {
            let function = self.function(at).map_err(|e| e.within("functions", Some(i)))?;
            functions.push(function);
        }
        Ok(functions)
    }

    fn function(&mut self, at: Located) -> Result<RawFunction, WireError> {
        let message = read_function(&mut self.reader, at.body)?;
        let place = format!("function `{}`", message.name);
        let opsets = self.opsets(&message.opsets, &place);
        let mut known = FxHashSet::default();
        for attr in &message.attrs {
            if !known.insert(self.module.intern(attr)) {
                self.problem(place.clone(), ProblemKind::DuplicateAttribute { name: attr.clone() });
            }
        }
        let mut attr_defaults = Vec::new();
        for default in &message.attr_defaults {
            let module = &mut self.module;
            let attr = read_attr(&mut self.reader, default.body, &mut |text| module.intern(text))?;
            let name = attr.name;
            if !known.insert(name) {
                let name = self.module.text(name).to_owned();
                self.problem(place.clone(), ProblemKind::DuplicateAttribute { name });
            }
            if attr.value.graphs().is_empty() {
                if let Some(value) = self.attr_value(attr, &place)? {
                    attr_defaults.push(Attr { name, value, dirty: false });
                }
            } else {
                let name = self.module.text(name).to_owned();
                self.problem(place.clone(), ProblemKind::BodyAsDefault { name });
            }
        }
        Ok(RawFunction { at, message, opsets, attr_defaults, form: None })
    }

    /// Reads the next pending graph into the tables; its bodies become pending.
    fn graph(
        &mut self,
        tables: &mut Tables,
        names: &FunctionNames,
        pending: &mut Vec<Pending>,
    ) -> Result<(), WireError> {
        let index = tables.graphs.len();
        let Pending { owner, depth, function, at } = pending[index];
        let place = super::scope::path_of(&self.module, &tables.graphs, owner);
        let mut graph = RawGraph::new(owner, function, at);
        let located = match owner {
            RawOwner::Function(i) => self.formals_of_function(&tables.functions[i], &mut graph),
            RawOwner::Main | RawOwner::Body { .. } => self.graph_parts(at, &mut graph, &place)?,
        };
        let opsets = match function {
            Some(i) => &mut tables.functions[i].opsets,
            None => &mut tables.header.opsets,
        };
        graph.nodes.reserve_exact(located.len());
        for (i, at) in located.into_iter().enumerate() {
            let module = &mut self.module;
            let within = |e: WireError| e.within("node", Some(i));
            let message =
                read_node(&mut self.reader, at.body, &mut |text| module.intern(text)).map_err(within)?;
            let op =
                self.operator(&message, names, (function, opsets), tables.header_in_file.ir_version, &place);
            let mut node = RawNode {
                at,
                op,
                overload: message.overload,
                name: message.name,
                inputs: message.inputs,
                outputs: message.outputs,
                attrs: Vec::with_capacity(message.attrs.len()),
                metadata: message.metadata,
                external: false,
            };
            let body = |attr: Symbol, body: Span| {
                let body_index = pending.len();
                graph.bodies.entry(i).or_default().push(body_index);
                let owner = RawOwner::Body { graph: index, node: i, attr };
                let at = Located { start: body.offset, body };
                pending.push(Pending { owner, depth: depth + 1, function, at });
                body_index
            };
            self.node_attrs(&mut node, message.attrs, (&place, i), body).map_err(within)?;
            graph.nodes.push(node);
        }
        tables.graphs.push(graph);
        Ok(())
    }

    /// Reads the attributes of node number `i` of the graph at `place`. `body` is told each body, with its attribute,
    /// and gives its index.
    fn node_attrs(
        &mut self,
        node: &mut RawNode,
        attrs: Vec<AttrMessage>,
        (place, i): (&str, usize),
        mut body: impl FnMut(Symbol, Span) -> usize,
    ) -> Result<(), WireError> {
        let mut names_seen = FxHashSet::default();
        for attr in attrs {
            let name = attr.name;
            if !names_seen.insert(name) {
                let place = self.node_place(place, node, i);
                let name = self.module.text(name).to_owned();
                self.problem(place, ProblemKind::DuplicateAttribute { name });
                continue;
            }
            let spans = attr.value.graphs();
            let list = matches!(attr.value, AttrContent::Graphs(_));
            let value = if spans.is_empty() && !list {
                let before = self.problems.len();
                self.external_attr = false;
                let value = self.attr_value(attr, "")?;
                node.external |= self.external_attr;
                for j in before..self.problems.len() {
                    self.problems[j].place = self.node_place(place, node, i);
                }
                let Some(value) = value else { continue };
                RawAttrValue::Ready(value)
            } else {
                RawAttrValue::Graphs { graphs: spans.iter().map(|&span| body(name, span)).collect(), list }
            };
            node.attrs.push(RawAttr { name, value });
        }
        Ok(())
    }

    fn formals_of_function(&mut self, function: &RawFunction, graph: &mut RawGraph) -> Vec<Located> {
        let mut formal = |name: &String| RawValue {
            name: self.module.intern(name),
            at: Located::default(),
            ty: Type::Unknown,
        };
        graph.inputs = function.message.inputs.iter().map(&mut formal).collect();
        graph.outputs = function.message.outputs.iter().map(&mut formal).collect();
        graph.name.clone_from(&function.message.name);
        function.message.nodes.clone()
    }

    fn graph_parts(
        &mut self,
        at: Located,
        graph: &mut RawGraph,
        place: &str,
    ) -> Result<Vec<Located>, WireError> {
        let message = read_graph(&mut self.reader, at.body)?;
        if graph.owner == RawOwner::Main {
            self.graph_metadata(&message, graph)?;
        }
        graph.name = message.name;
        for (at, info) in &message.inputs {
            graph.inputs.extend(self.value(*at, info, "an input", place, graph.owner));
        }
        for (at, info) in &message.outputs {
            graph.outputs.extend(self.value(*at, info, "an output", place, graph.owner));
        }
        for (i, &at) in message.initializers.iter().enumerate() {
            let read = read_tensor(&mut self.reader, self.shared, at.body, &mut self.external);
            let read = self.settle(read, place).map_err(|e| e.within("initializer", Some(i)))?;
            let (name, payload, external) = match read {
                Ok(TensorMessage { name, data, external }) => {
                    (name, Some(Payload::Dense(Arc::new(data))), external)
                }
                Err(name) => (name, None, false),
            };
            self.constant(graph, at, &name, payload, external, place);
        }
        // What is declared to be sparse stays so.
        let declared: FxHashSet<Symbol> =
            graph.inputs.iter().chain(&graph.outputs).filter(|v| is_sparse(&v.ty)).map(|v| v.name).collect();
        for (i, &at) in message.sparse_initializers.iter().enumerate() {
            let read = read_sparse(&mut self.reader, self.shared, at.body, &mut self.external);
            let read = self.settle(read, place).map_err(|e| e.within("sparse_initializer", Some(i)))?;
            let (name, payload, external) = match read {
                Ok((name, data, external))
                    if self.module.symbol(&name).is_some_and(|name| declared.contains(&name)) =>
                {
                    (name, Some(Payload::Sparse(Arc::new(data))), external)
                }
                Ok((name, data, external)) => {
                    let dense = densified(&data, &mut self.dense_left)
                        .map_err(|issue| TensorFailure::Issue { name: name.clone(), issue });
                    let dense = self.settle(dense, place)?;
                    self.sparse_initializers += 1;
                    (name, dense.ok().map(|data| Payload::Dense(Arc::new(data))), external)
                }
                Err(name) => (name, None, false),
            };
            self.constant(graph, at, &name, payload, external, place);
        }
        Ok(message.nodes)
    }

    /// Reads the metadata of the main graph, and of its inputs and initializers. Initializers have theirs in `value_info`
    /// entries; the entry of an input counts only if the input itself has no metadata.
    fn graph_metadata(&mut self, message: &GraphMessage, graph: &mut RawGraph) -> Result<(), WireError> {
        fn interned(module: &mut Module, entries: &[(String, String)]) -> Vec<(Symbol, Symbol)> {
            entries.iter().map(|(key, value)| (module.intern(key), module.intern(value))).collect()
        }
        graph.metadata = interned(&mut self.module, &message.metadata);
        for (i, at) in message.inputs.iter().map(|(at, _)| at).chain(&message.value_info).enumerate() {
            let (name, metadata) = read_value_metadata(&mut self.reader, at.body)
                .map_err(|e| e.within("value_info", i.checked_sub(message.inputs.len())))?;
            if !metadata.is_empty() {
                let metadata = interned(&mut self.module, &metadata);
                let name = self.module.intern(&name);
                graph.metadata_of.entry(name).or_insert(metadata);
            }
        }
        Ok(())
    }

    fn constant(
        &mut self,
        graph: &mut RawGraph,
        at: Located,
        name: &str,
        payload: Option<Payload>,
        external: bool,
        place: &str,
    ) {
        if name.is_empty() {
            if payload.is_some() {
                self.problem(place, ProblemKind::Unnamed { what: "an initializer".into() });
            }
            return;
        }
        graph.constants.push(RawConstant { name: self.module.intern(name), at, payload, external });
    }

    /// Sorts out a failure to read a tensor: damage ends reading, a wrong tensor is reported under its name.
    fn settle<T>(
        &mut self,
        read: Result<T, TensorFailure>,
        place: &str,
    ) -> Result<Result<T, String>, WireError> {
        match read {
            Ok(tensor) => Ok(Ok(tensor)),
            Err(TensorFailure::Wire(error)) => Err(error),
            Err(TensorFailure::Issue { name, issue }) => {
                self.tensor_problem(place, name.clone(), issue);
                Ok(Err(name))
            }
        }
    }

    /// Reports a wrong tensor; a problem of a data file is reported once for all tensors in it.
    fn tensor_problem(&mut self, place: &str, name: String, issue: TensorIssue) {
        if let TensorIssue::External(error) = &issue
            && error.is_about_file()
        {
            let first = *self.wrong_files.entry(error.to_string()).or_insert(self.problems.len());
            if let Some(Problem { kind: ProblemKind::Tensor { more, .. }, .. }) = self.problems.get_mut(first)
            {
                *more += 1;
                return;
            }
        }
        self.problem(place, ProblemKind::Tensor { name, more: 0, issue });
    }

    fn value(
        &mut self,
        at: Located,
        info: &ValueInfoProto,
        what: &str,
        place: &str,
        owner: RawOwner,
    ) -> Option<RawValue> {
        let name = info.name.as_deref().unwrap_or_default();
        if name.is_empty() {
            self.problem(place, ProblemKind::Unnamed { what: what.to_owned() });
            return None;
        }
        let mut issues = Vec::new();
        let ty = match &info.r#type {
            Some(message) => type_of(&mut self.module, message, &mut |issue| issues.push(issue)),
            None => Type::Unknown,
        };
        let must_have_type = owner == RawOwner::Main && what == "an input";
        if must_have_type && ty == Type::Unknown && issues.is_empty() {
            issues.push(TypeIssue::Missing("kind"));
        }
        for issue in issues {
            let name = name.to_owned();
            match issue {
                TypeIssue::UnknownElement(number) => {
                    self.problem(place, ProblemKind::ElementType { name, number });
                }
                // Outputs and formals of bodies often declare nothing; inference says what they are.
                TypeIssue::Missing(missing) if must_have_type => {
                    self.problem(place, ProblemKind::IncompleteType { name, missing });
                }
                TypeIssue::Missing(_) => {}
                TypeIssue::NegativeDim(dim) => {
                    self.warn(Warning::NegativeDim { value: name, dim, more: 0 });
                }
            }
        }
        Some(RawValue { name: self.module.intern(name), at, ty })
    }

    /// The value of an attribute without bodies; `None` if it is wrong, which has been reported.
    fn attr_value(&mut self, attr: AttrMessage, place: &str) -> Result<Option<AttrValue>, WireError> {
        let name = attr.name;
        Ok(Some(match attr.value {
            AttrContent::Float(v) => AttrValue::Float(v),
            AttrContent::Int(v) => AttrValue::Int(v),
            AttrContent::String(v) => AttrValue::String(v),
            AttrContent::Floats(v) => AttrValue::Floats(v),
            AttrContent::Ints(v) => AttrValue::Ints(v),
            AttrContent::Strings(v) => AttrValue::Strings(v),
            AttrContent::Tensor(span) => {
                return Ok(self.attr_tensor(name, span, place)?.map(AttrValue::Tensor));
            }
            AttrContent::Sparse(span) => {
                return Ok(self.attr_sparse(name, span, place)?.map(AttrValue::SparseTensor));
            }
            AttrContent::Type(span) => AttrValue::Type(self.attr_type(span)?),
            AttrContent::Tensors(spans) => {
                let mut tensors = Vec::new();
                for span in spans {
                    tensors.extend(self.attr_tensor(name, span, place)?);
                }
                AttrValue::Tensors(tensors)
            }
            AttrContent::Sparses(spans) => {
                let mut tensors = Vec::new();
                for span in spans {
                    tensors.extend(self.attr_sparse(name, span, place)?);
                }
                AttrValue::SparseTensors(tensors)
            }
            AttrContent::Types(spans) => {
                let types = spans.into_iter().map(|span| self.attr_type(span));
                AttrValue::Types(types.collect::<Result<_, _>>()?)
            }
            AttrContent::Reference { kind, name: function_attr } => match kind_of(kind) {
                Some(kind) => AttrValue::Reference { kind, name: function_attr },
                None => return Ok(self.unknown_kind(name, kind, place)),
            },
            AttrContent::Graph(_) | AttrContent::Graphs(_) => return Ok(self.unknown_kind(name, 5, place)),
            AttrContent::Unknown { kind } => return Ok(self.unknown_kind(name, kind, place)),
        }))
    }

    fn unknown_kind(&mut self, name: Symbol, kind: i32, place: &str) -> Option<AttrValue> {
        let name = self.module.text(name).to_owned();
        self.problem(place, ProblemKind::UnknownAttributeKind { name, kind });
        None
    }

    fn attr_tensor(
        &mut self,
        attr: Symbol,
        span: Span,
        place: &str,
    ) -> Result<Option<Arc<ampc_ir::TensorData>>, WireError> {
        let read = read_tensor(&mut self.reader, self.shared, span, &mut self.external);
        let read = self.settle(self.named(read, attr), place)?;
        self.external_attr |= read.as_ref().is_ok_and(|t| t.external);
        Ok(read.ok().map(|t| Arc::new(t.data)))
    }

    fn attr_sparse(
        &mut self,
        attr: Symbol,
        span: Span,
        place: &str,
    ) -> Result<Option<Arc<ampc_ir::tensor::SparseData>>, WireError> {
        let read = read_sparse(&mut self.reader, self.shared, span, &mut self.external);
        let read = self.settle(self.named(read, attr), place)?;
        Ok(read.ok().map(|(_, data, _)| Arc::new(data)))
    }

    /// Calls a wrong tensor without a name after its attribute.
    fn named<T>(&self, mut read: Result<T, TensorFailure>, attr: Symbol) -> Result<T, TensorFailure> {
        if let Err(TensorFailure::Issue { name, .. }) = &mut read
            && name.is_empty()
        {
            self.module.text(attr).clone_into(name);
        }
        read
    }

    fn attr_type(&mut self, span: Span) -> Result<Type, WireError> {
        let message = decode(&mut self.reader, span)?;
        Ok(type_of(&mut self.module, &message, &mut |_| {}))
    }

    /// Description of a node for messages.
    fn node_place(&self, graph: &str, node: &RawNode, index: usize) -> String {
        super::scope::label(&self.module, graph, node, index)
    }
}

fn is_sparse(ty: &Type) -> bool {
    matches!(ty, Type::Sparse(_))
}
