//! Equality of modules.
//!
//! Two modules are equal if their texts are: graphs, nodes and values correspond by their place in program
//! order, and everything that a text shows agrees. Ids, symbol numbers, source messages and dirty marks are
//! ignored, as is the place of the bytes of a constant: its stored element type, dims, pending conversions and
//! xxh3-128 decide.
//!
//! Linear in the size of the modules, plus the bytes of constants that do not share storage. Bodies are visited
//! by a worklist, so nesting uses no stack.

use crate::attr::{Attr, AttrValue};
use crate::entity::{GraphId, Node, SecondaryMap, Symbol, Value};
use crate::module::{Def, FunctionData, GraphData, Header, Module, NodeData, Payload};
use crate::tensor::{SparseData, Storage, TensorData};
use crate::text::type_text;
use crate::ty::{Dim, Shape, TensorType, Type};
use std::fmt::Debug;
use std::sync::Arc;

/// The first difference of two modules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {part} differs: {left} and {right}")]
pub struct Difference {
    /// The path of the graph and node or value, such as `main/if1.then_branch/conv`.
    pub place: String,
    /// The part that differs: `types`, `operand 1`, `attribute alpha` …
    pub part: String,
    /// The part in the first module.
    pub left: String,
    /// The part in the second module.
    pub right: String,
}

/// Compares two modules.
///
/// # Errors
/// The first difference in program order.
pub fn same_module(a: &Module, b: &Module) -> Result<(), Difference> {
    let mut pair = Pair { a, b, values: SecondaryMap::default(), work: Vec::new() };
    pair.header()?;
    pair.functions()?;
    pair.work.reverse();
    pair.work.push((a.main(), b.main(), "main".to_owned()));
    while let Some((left, right, place)) = pair.work.pop() {
        pair.graph(left, right, &place)?;
    }
    Ok(())
}

type Same = Result<(), Difference>;

struct Pair<'m> {
    a: &'m Module,
    b: &'m Module,
    /// The value of `b` that a value of `a` corresponds to.
    values: SecondaryMap<Value, Option<Value>>,
    /// Graphs still to be compared, with their paths.
    work: Vec<(GraphId, GraphId, String)>,
}

fn differ(place: &str, part: impl Into<String>, left: &impl Debug, right: &impl Debug) -> Difference {
    let clip = |text: String| match text.char_indices().nth(400) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    };
    Difference {
        place: place.to_owned(),
        part: part.into(),
        left: clip(format!("{left:?}")),
        right: clip(format!("{right:?}")),
    }
}

fn same<T: PartialEq + Debug>(place: &str, part: &str, left: &T, right: &T) -> Same {
    if left == right { Ok(()) } else { Err(differ(place, part, left, right)) }
}

impl<'m> Pair<'m> {
    fn symbols(&self, left: Symbol, right: Symbol) -> (&'m str, &'m str) {
        (self.a.text(left), self.b.text(right))
    }

    fn symbol(&self, place: &str, part: &str, left: Symbol, right: Symbol) -> Same {
        let (left, right) = self.symbols(left, right);
        same(place, part, &left, &right)
    }

    fn option(&self, place: &str, part: &str, left: Option<Symbol>, right: Option<Symbol>) -> Same {
        same(place, part, &left.map(|s| self.a.text(s)), &right.map(|s| self.b.text(s)))
    }

    fn pairs(&self, place: &str, left: &[(Symbol, Symbol)], right: &[(Symbol, Symbol)]) -> Same {
        let texts = |m: &'m Module, pairs: &[(Symbol, Symbol)]| -> Vec<(&'m str, &'m str)> {
            pairs.iter().map(|&(k, v)| (m.text(k), m.text(v))).collect()
        };
        same(place, "metadata", &texts(self.a, left), &texts(self.b, right))
    }

    fn opsets(&self, place: &str, left: &[(Symbol, u16)], right: &[(Symbol, u16)]) -> Same {
        let texts = |m: &'m Module, opsets: &[(Symbol, u16)]| -> Vec<(&'m str, u16)> {
            opsets.iter().map(|&(d, v)| (m.text(d), v)).collect()
        };
        same(place, "opset imports", &texts(self.a, left), &texts(self.b, right))
    }

    fn header(&self) -> Same {
        let Header {
            ir_version,
            opsets,
            producer_name,
            producer_version,
            domain,
            model_version,
            doc_string,
            metadata,
        } = &self.a.header;
        let (place, right) = ("module", &self.b.header);
        same(place, "IR version", ir_version, &right.ir_version)?;
        same(place, "producer", producer_name, &right.producer_name)?;
        same(place, "version of the producer", producer_version, &right.producer_version)?;
        same(place, "domain", domain, &right.domain)?;
        same(place, "version", model_version, &right.model_version)?;
        same(place, "documentation", doc_string, &right.doc_string)?;
        same(place, "metadata", metadata, &right.metadata)?;
        self.opsets(place, opsets, &right.opsets)
    }

    fn functions(&mut self) -> Same {
        let (left, right): (Vec<&FunctionData>, Vec<&FunctionData>) =
            (self.a.functions().map(|(_, f)| f).collect(), self.b.functions().map(|(_, f)| f).collect());
        same("module", "number of functions", &left.len(), &right.len())?;
        for (f, g) in left.into_iter().zip(right) {
            let place = self.a.text(f.name).to_owned();
            self.symbol(&place, "name of the function", f.name, g.name)?;
            self.symbol(&place, "domain", f.domain, g.domain)?;
            self.symbol(&place, "overload", f.overload, g.overload)?;
            same(&place, "documentation", &f.doc_string, &g.doc_string)?;
            self.opsets(&place, &f.opsets, &g.opsets)?;
            self.pairs(&place, &f.metadata, &g.metadata)?;
            let texts = |m: &'m Module, names: &[Symbol]| -> Vec<&'m str> {
                names.iter().map(|&s| m.text(s)).collect()
            };
            same(&place, "attributes", &texts(self.a, &f.attrs), &texts(self.b, &g.attrs))?;
            self.attrs(&place, &f.attr_defaults, &g.attr_defaults)?;
            self.work.push((f.graph, g.graph, place));
        }
        Ok(())
    }

    fn graph(&mut self, left: GraphId, right: GraphId, place: &str) -> Same {
        let (g, h): (&GraphData, &GraphData) = (self.a.graph(left), self.b.graph(right));
        self.symbol(place, "name of the graph", g.name, h.name)?;
        self.pairs(place, &g.metadata, &h.metadata)?;
        for (part, g, h) in [
            ("number of inputs", g.inputs(), h.inputs()),
            ("number of captures", g.captures(), h.captures()),
            ("number of constants", g.constants(), h.constants()),
        ] {
            same(place, part, &g.len(), &h.len())?;
            for (&v, &w) in g.iter().zip(h) {
                self.source(place, v, w)?;
            }
        }
        let nodes: (Vec<Node>, Vec<Node>) = (self.a.nodes(left).collect(), self.b.nodes(right).collect());
        same(place, "number of nodes", &nodes.0.len(), &nodes.1.len())?;
        // All definitions before any use: order is not checked here.
        for (&n, &m) in nodes.0.iter().zip(&nodes.1) {
            self.results(place, n, m)?;
        }
        let before = self.work.len();
        for (&n, &m) in nodes.0.iter().zip(&nodes.1) {
            self.node(place, n, m)?;
        }
        self.work[before..].reverse();
        self.graph_end(place, g, h)
    }

    fn graph_end(&self, place: &str, g: &GraphData, h: &GraphData) -> Same {
        same(place, "number of outputs", &g.outputs().len(), &h.outputs().len())?;
        for (i, (o, p)) in g.outputs().iter().zip(h.outputs()).enumerate() {
            self.value(place, &format!("output {i}"), Some(o.value), Some(p.value))?;
            self.ty(place, &format!("declared type of output {i}"), &o.declared, &p.declared)?;
        }
        same(place, "number of states", &g.states.len(), &h.states.len())?;
        for (&(v, next), &(w, other)) in g.states.iter().zip(&h.states) {
            self.value(place, "state", Some(v), Some(w))?;
            self.value(place, "next state", Some(next), Some(other))?;
        }
        same(place, "number of roles", &g.roles.len(), &h.roles.len())?;
        for (r, s) in g.roles.iter().zip(&h.roles) {
            self.symbol(place, "role", r.name, s.name)?;
            same(place, "number of values in the role", &r.values.len(), &s.values.len())?;
            for (&v, &w) in r.values.iter().zip(&s.values) {
                self.value(place, "value of the role", Some(v), Some(w))?;
            }
        }
        Ok(())
    }

    /// Checks that two operands, outputs … are corresponding values.
    fn value(&self, place: &str, part: &str, left: Option<Value>, right: Option<Value>) -> Same {
        if left.map(|v| self.values[v]) == right.map(Some) {
            return Ok(());
        }
        let name = |m: &'m Module, v: Option<Value>| v.map(|v| m.value_name(v).map(|s| m.text(s)));
        Err(differ(place, part, &name(self.a, left), &name(self.b, right)))
    }

    fn source(&mut self, place: &str, left: Value, right: Value) -> Same {
        let (v, w) = (self.a.value(left), self.b.value(right));
        self.values[left] = Some(right);
        let name = self.a.value_name(left).map_or_else(|| left.to_string(), |s| self.a.text(s).to_owned());
        let place = format!("{place}/%{name}");
        self.ty(&place, "type", &v.ty, &w.ty)?;
        let payloads = match (&v.def, &w.def) {
            (Def::Capture { slot: s }, Def::Capture { slot: t }) => {
                let capture = |m: &Module, value, slot: u32| m.capture_index(value, slot);
                return same(
                    &place,
                    "captured operand",
                    &capture(self.a, left, *s),
                    &capture(self.b, right, *t),
                );
            }
            (Def::Input { default: x, .. }, Def::Input { default: y, .. }) => (x.as_ref(), y.as_ref()),
            (Def::Constant(x), Def::Constant(y)) => (Some(x), Some(y)),
            _ => return Err(differ(&place, "kind", &v.def, &w.def)),
        };
        self.option(&place, "name", v.name, w.name)?;
        self.pairs(&place, &v.metadata, &w.metadata)?;
        match payloads {
            (None, None) => Ok(()),
            (Some(Payload::Dense(x)), Some(Payload::Dense(y))) => same_tensor(&place, "elements", x, y),
            (Some(Payload::Sparse(x)), Some(Payload::Sparse(y))) => same_sparse(&place, "elements", x, y),
            (x, y) => Err(differ(&place, "elements", &x.is_some(), &y.is_some())),
        }
    }

    fn results(&mut self, place: &str, left: Node, right: Node) -> Same {
        let (n, m) = (self.a.node(left).results(), self.b.node(right).results());
        let present = |results: &[Option<Value>]| results.iter().map(Option::is_some).collect::<Vec<_>>();
        same(&self.node_place(place, left), "results", &present(n), &present(m))?;
        for (&v, &w) in n.iter().flatten().zip(m.iter().flatten()) {
            self.values[v] = Some(w);
            let (v, w) = (self.a.value(v), self.b.value(w));
            if v.name.map(|s| self.a.text(s)) != w.name.map(|s| self.b.text(s)) {
                self.option(&self.node_place(place, left), "name of a result", v.name, w.name)?;
            }
            if !self.same_type(&v.ty, &w.ty) {
                self.ty(&self.node_place(place, left), "type of a result", &v.ty, &w.ty)?;
            }
        }
        Ok(())
    }

    /// The path of a node; made only where it is needed.
    fn node_place(&self, place: &str, node: Node) -> String {
        let data = self.a.node(node);
        let result = || data.results().iter().flatten().next().and_then(|&v| self.a.value(v).name);
        let name = data.name.or_else(result).map_or_else(|| node.to_string(), |s| self.a.text(s).to_owned());
        format!("{place}/{name}")
    }

    fn node(&mut self, place: &str, left: Node, right: Node) -> Same {
        let (n, m): (&NodeData, &NodeData) = (self.a.node(left), self.b.node(right));
        let place = &*self.node_place(place, left);
        same(place, "operator", &self.a.op_name(left), &self.b.op_name(right))?;
        same(place, "version of the operator", &n.schema().map(|s| s.since), &m.schema().map(|s| s.since))?;
        let kind = |n: &NodeData| std::mem::discriminant(&n.op);
        same(place, "kind of operator", &kind(n), &kind(m))?;
        let declared = |n: &NodeData| n.schema().filter(|s| s.declared.is_some());
        same(place, "signature", &declared(n), &declared(m))?;
        self.option(place, "name", n.name, m.name)?;
        same(place, "number of formal operands", &n.n_formal(), &m.n_formal())?;
        same(place, "number of operands", &n.operands().len(), &m.operands().len())?;
        for (i, (&v, &w)) in n.operands().iter().zip(m.operands()).enumerate() {
            if v.map(|v| self.values[v]) != w.map(Some) {
                self.value(place, &format!("operand {i}"), v, w)?;
            }
        }
        same(place, "provenance", &n.provenance, &m.provenance)?;
        same(place, "decisions", &&n.decisions[..], &&m.decisions[..])?;
        self.pairs(place, &n.metadata, &m.metadata)?;
        self.attrs(place, n.attrs(), m.attrs())?;
        for (x, y) in n.attrs().iter().zip(m.attrs()) {
            for (i, (&g, &h)) in x.value.graphs().iter().zip(y.value.graphs()).enumerate() {
                let index = if i > 0 { format!(".{i}") } else { String::new() };
                self.work.push((g, h, format!("{place}.{}{index}", self.a.text(x.name))));
            }
        }
        Ok(())
    }

    fn attrs(&self, place: &str, left: &[Attr], right: &[Attr]) -> Same {
        let names = |m: &'m Module, attrs: &[Attr]| -> Vec<&'m str> {
            attrs.iter().map(|a| m.text(a.name)).collect()
        };
        same(place, "attributes", &names(self.a, left), &names(self.b, right))?;
        for (x, y) in left.iter().zip(right) {
            let part = || format!("attribute {}", self.a.text(x.name));
            let equal = match (&x.value, &y.value) {
                (AttrValue::Float(x), AttrValue::Float(y)) => x.to_bits() == y.to_bits(),
                (AttrValue::Int(x), AttrValue::Int(y)) => x == y,
                (AttrValue::String(x), AttrValue::String(y)) => x == y,
                (AttrValue::Tensor(x), AttrValue::Tensor(y)) => {
                    same_tensor(place, &part(), x, y)?;
                    true
                }
                (AttrValue::SparseTensor(x), AttrValue::SparseTensor(y)) => {
                    same_sparse(place, &part(), x, y)?;
                    true
                }
                (AttrValue::Type(x), AttrValue::Type(y)) => self.same_type(x, y),
                (AttrValue::Floats(x), AttrValue::Floats(y)) => {
                    x.iter().map(|v| v.to_bits()).eq(y.iter().map(|v| v.to_bits()))
                }
                (AttrValue::Ints(x), AttrValue::Ints(y)) => x == y,
                (AttrValue::Strings(x), AttrValue::Strings(y)) => x == y,
                (AttrValue::Tensors(x), AttrValue::Tensors(y)) => {
                    for (x, y) in x.iter().zip(y) {
                        same_tensor(place, &part(), x, y)?;
                    }
                    x.len() == y.len()
                }
                (AttrValue::SparseTensors(x), AttrValue::SparseTensors(y)) => {
                    for (x, y) in x.iter().zip(y) {
                        same_sparse(place, &part(), x, y)?;
                    }
                    x.len() == y.len()
                }
                (AttrValue::Types(x), AttrValue::Types(y)) => {
                    x.len() == y.len() && x.iter().zip(y).all(|(x, y)| self.same_type(x, y))
                }
                // Their content is compared as graphs.
                (AttrValue::Graph(_), AttrValue::Graph(_)) => true,
                (AttrValue::Graphs(x), AttrValue::Graphs(y)) => x.len() == y.len(),
                (AttrValue::Reference { kind: x, name }, AttrValue::Reference { kind: y, name: other }) => {
                    x == y && self.a.text(*name) == self.b.text(*other)
                }
                _ => false,
            };
            if !equal {
                return Err(differ(place, part(), &x.value, &y.value));
            }
        }
        Ok(())
    }

    fn ty(&self, place: &str, part: &str, left: &Type, right: &Type) -> Same {
        if self.same_type(left, right) {
            return Ok(());
        }
        let (left, right) = (type_text(self.a, left), type_text(self.b, right));
        Err(Difference { place: place.to_owned(), part: part.to_owned(), left, right })
    }

    fn same_type(&self, left: &Type, right: &Type) -> bool {
        match (left, right) {
            (Type::Unknown, Type::Unknown) => true,
            (Type::Tensor(x), Type::Tensor(y)) | (Type::Sparse(x), Type::Sparse(y)) => {
                self.same_tensor_type(x, y)
            }
            (Type::Sequence(x), Type::Sequence(y)) | (Type::Optional(x), Type::Optional(y)) => {
                self.same_type(x, y)
            }
            (Type::Map { key: k, value: x }, Type::Map { key: l, value: y }) => {
                k == l && self.same_type(x, y)
            }
            (Type::Opaque { domain: d, name: x }, Type::Opaque { domain: e, name: y }) => {
                let ((d, e), (x, y)) = (self.symbols(*d, *e), self.symbols(*x, *y));
                d == e && x == y
            }
            _ => false,
        }
    }

    fn same_tensor_type(&self, left: &TensorType, right: &TensorType) -> bool {
        let same_dim = |(x, y): (&Dim, &Dim)| match (x, y) {
            (Dim::Sym(x), Dim::Sym(y)) => self.a.text(*x) == self.b.text(*y),
            (x, y) => std::mem::discriminant(x) == std::mem::discriminant(y) && x.known() == y.known(),
        };
        left.dtype == right.dtype
            && match (&left.shape, &right.shape) {
                (Shape(None), Shape(None)) => true,
                (Shape(Some(x)), Shape(Some(y))) => x.len() == y.len() && x.iter().zip(y).all(same_dim),
                (Shape(None), Shape(Some(_))) | (Shape(Some(_)), Shape(None)) => false,
            }
    }
}

fn same_tensor(place: &str, part: &str, left: &Arc<TensorData>, right: &Arc<TensorData>) -> Same {
    if Arc::ptr_eq(left, right) { Ok(()) } else { same_data(place, part, left, right) }
}

fn same_sparse(place: &str, part: &str, left: &SparseData, right: &SparseData) -> Same {
    same(place, part, &left.dims, &right.dims)?;
    same_data(place, part, &left.values, &right.values)?;
    same_data(place, part, &left.indices, &right.indices)
}

fn same_data(place: &str, part: &str, left: &TensorData, right: &TensorData) -> Same {
    let stored = |data: &TensorData| (data.stored_dtype(), data.dims().to_vec());
    same(place, part, &stored(left), &stored(right))?;
    same(place, &format!("pending conversions of {part}"), &left.pending(), &right.pending())?;
    if same_storage(left.storage(), right.storage()) {
        return Ok(());
    }
    match (left.content_hash(), right.content_hash()) {
        (Ok(x), Ok(y)) if x == y => Ok(()),
        (x, y) => Err(differ(place, format!("hash of {part}"), &x, &y)),
    }
}

/// True if two constants are surely the same bytes, without reading them.
fn same_storage(left: &Storage, right: &Storage) -> bool {
    match (left, right) {
        (Storage::Bytes(x), Storage::Bytes(y)) => Arc::ptr_eq(x, y),
        (Storage::Strings(x), Storage::Strings(y)) => Arc::ptr_eq(x, y),
        (Storage::File(x), Storage::File(y)) => {
            Arc::ptr_eq(&x.source, &y.source) && (x.offset, x.len) == (y.offset, y.len)
        }
        (Storage::Random { seed: s, amplitude: x }, Storage::Random { seed: t, amplitude: y }) => {
            s == t && x.to_bits() == y.to_bits()
        }
        (Storage::Zeros, Storage::Zeros) => true,
        (
            Storage::Bytes(_)
            | Storage::Strings(_)
            | Storage::File(_)
            | Storage::Random { .. }
            | Storage::Zeros,
            _,
        ) => false,
    }
}
