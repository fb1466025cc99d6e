//! Building nodes inside a module: passes insert nodes through this type.
//!
//! An [`Inserter`] knows a *place* and an *origin*: where the next node goes, and the node of the author that
//! it stands for, whose name the new names begin with. [`op`](Inserter::op) and [`insert`](Inserter::insert)
//! look the operator up at the opset that holds at the place (functions import their own), add the node, and
//! give its results the types that inference finds. An operator that the opset lacks, a wrong number of
//! operands and types that do not fit are an [`InsertError`], and no node is added.
//!
//! It works in the main graph, in bodies and in functions. Operands from graphs around the place are captured.
//! Nodes that are inserted one after the other stay in that order. Calls and unknown operators have no schema:
//! they are made with [`Module::add_node`].
//!
//! ```
//! use ampc_ir::op::OpKind;
//! use ampc_ir::text::{NoData, parse};
//! use ampc_ir::Inserter;
//!
//! let text = "opset ai.onnx=21\n\ngraph @main {\n  input %x : f32[2]\n  %y = Exp(%x) : f32[2]\n  output %y\n}\n";
//! let mut module = parse(text, &NoData)?;
//! let exp = module.nodes(module.main()).next().expect("there is one");
//! let x = module.graph(module.main()).inputs()[0];
//!
//! // Exp reads `x · sigmoid(x)`.
//! let mut inserter = Inserter::before(&mut module, exp);
//! let s = inserter.op(OpKind::Sigmoid, &[x], &[])?;
//! let swish = inserter.op(OpKind::Mul, &[x, s], &[])?;
//! inserter.module.set_operand(exp, 0, Some(swish));
//! assert_eq!(module.value(swish).ty, module.value(x).ty);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(test)]
mod tests;

use crate::attr::AttrValue;
use crate::convert::{Conversion, can_convert, convert};
use crate::dtype::DType;
use crate::edit::{NewNode, Position};
use crate::entity::{GraphId, Node, Symbol, Value};
use crate::facts::Facts;
use crate::infer::check_new;
use crate::module::{Def, Module, Op, Payload, Provenance};
use crate::op::{Lookup, OpKind, OpSchema, lookup};
use crate::tensor::{Storage, TensorData};
use crate::ty::Type;
use crate::views::OpError;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// The place of an insertion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The graph.
    pub graph: GraphId,
    /// The place in its program order.
    pub at: Position,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let graph = self.graph;
        match self.at {
            Position::Last => write!(f, "at the end of {graph}"),
            Position::First => write!(f, "at the start of {graph}"),
            Position::Before(node) => write!(f, "before {node} of {graph}"),
            Position::After(node) => write!(f, "after {node} of {graph}"),
        }
    }
}

/// A node that cannot be inserted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot insert {} {place}: {kind}", .op.name())]
pub struct InsertError {
    /// The operator; Constant for a constant.
    pub op: OpKind,
    /// The intended place.
    pub place: Place,
    /// The reason.
    pub kind: InsertErrorKind,
}

/// Error of inserting a node.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InsertErrorKind {
    /// The domain of the operator is not imported where the node was to go.
    #[error("domain `{0}` is not imported there")]
    NotImported(&'static str),
    /// The imported opset does not have the operator.
    #[error("it is not in opset {opset}, which is imported there: {why}")]
    NotInOpset {
        /// The imported opset.
        opset: u16,
        /// Too new, replaced.
        why: String,
    },
    /// The node at the place is erased, or is in another graph.
    #[error("{0} does not stand there")]
    NoPlace(Node),
    /// An operand is erased, or is not a value of the graph or of one around it.
    #[error("operand {operand}: {value} is not in scope there")]
    OutOfScope {
        /// The number of the operand.
        operand: usize,
        /// The value.
        value: Value,
    },
    /// Operands, results or attributes do not fit the operator, in number or in type.
    #[error("{0}")]
    IllTyped(OpError),
    /// A number cannot be a scalar of this element type.
    #[error("a scalar of {0}, which is not a float format for rounding")]
    NoScalar(DType),
}

/// Contents of a node to insert: operator, operands and attributes, and names unless they are to be made.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    kind: OpKind,
    operands: SmallVec<[Option<Value>; 4]>,
    attrs: Vec<(Cow<'static, str>, AttrValue)>,
    suffix: Option<Cow<'static, str>>,
    result_name: Option<Symbol>,
    node_name: Option<Symbol>,
}

impl NodeSpec {
    /// A node of this operator with these operands, and no attributes.
    pub fn new(kind: OpKind, operands: &[Value]) -> NodeSpec {
        let operands = operands.iter().copied().map(Some).collect();
        NodeSpec { kind, operands, attrs: Vec::new(), suffix: None, result_name: None, node_name: None }
    }

    /// Replaces the list of operands, of which optional ones may be absent.
    #[must_use]
    pub fn operands(mut self, operands: &[Option<Value>]) -> NodeSpec {
        self.operands = operands.iter().copied().collect();
        self
    }

    /// Adds an attribute. Bodies among them are unowned graphs; they are removed if the node does not fit.
    #[must_use]
    pub fn attr(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<AttrValue>) -> NodeSpec {
        self.attrs.push((name.into(), value.into()));
        self
    }

    /// Sets the suffix of the names of the results, behind the name of the origin, instead of the operator's
    /// name: `y.flat`.
    #[must_use]
    pub fn suffix(mut self, suffix: impl Into<Cow<'static, str>>) -> NodeSpec {
        self.suffix = Some(suffix.into());
        self
    }

    /// Names the first result. The caller has made the name by [`Module::fresh_name`], or takes the name from
    /// its present owner.
    #[must_use]
    pub fn result_name(mut self, name: Symbol) -> NodeSpec {
        self.result_name = Some(name);
        self
    }

    /// Names the node, which without a name is found by that of its first result.
    #[must_use]
    pub fn node_name(mut self, name: Option<Symbol>) -> NodeSpec {
        self.node_name = name;
        self
    }
}

/// Inserts nodes and constants into a module. See the [module documentation](self).
#[derive(Debug)]
pub struct Inserter<'m> {
    /// The module.
    pub module: &'m mut Module,
    /// The origin of the nodes: the author by default.
    pub provenance: Provenance,
    /// True if nodes get the metadata of their origin; false by default.
    pub copies_metadata: bool,
    place: Place,
    origin: Option<Node>,
    /// The known elements of values, for inference.
    facts: Cow<'m, Facts>,
    /// An opset that holds instead of the imported one.
    opset: Option<(&'static str, u16)>,
    constants: FxHashMap<ConstantKey, (Value, Arc<TensorData>)>,
    /// Values whose names nothing hides in a graph.
    unhidden: FxHashSet<(GraphId, Value)>,
}

/// The graph, element type, dims and bytes of a constant.
type ConstantKey = (GraphId, DType, SmallVec<[u64; 4]>, Arc<[u8]>);

impl<'m> Inserter<'m> {
    /// An inserter at a place of a graph, without an origin.
    pub fn new(module: &'m mut Module, graph: GraphId, at: Position) -> Inserter<'m> {
        Inserter {
            module,
            provenance: Provenance::User,
            copies_metadata: false,
            place: Place { graph, at },
            origin: None,
            facts: Cow::Owned(Facts::default()),
            opset: None,
            constants: FxHashMap::default(),
            unhidden: FxHashSet::default(),
        }
    }

    /// An inserter right before a node, which is the origin.
    pub fn before(module: &'m mut Module, node: Node) -> Inserter<'m> {
        let graph = module.node(node).graph;
        Inserter { origin: Some(node), ..Inserter::new(module, graph, Position::Before(node)) }
    }

    /// An inserter right after a node, which is the origin.
    pub fn after(module: &'m mut Module, node: Node) -> Inserter<'m> {
        let graph = module.node(node).graph;
        Inserter { origin: Some(node), ..Inserter::new(module, graph, Position::After(node)) }
    }

    /// Infers types with the known facts about the module's values. The inferred elements of new values are
    /// known from then on with or without these facts.
    #[must_use]
    pub fn with_facts(self, facts: &'m Facts) -> Inserter<'m> {
        Inserter { facts: Cow::Borrowed(facts), ..self }
    }

    /// The known elements of values: the given facts, and the inferred elements of inserted values.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Looks up operators of a domain (`""` for ai.onnx) at this opset instead of the imported opset, which the
    /// caller is about to change.
    #[must_use]
    pub fn with_opset(self, domain: &'static str, opset: u16) -> Inserter<'m> {
        Inserter { opset: Some((domain, opset)), ..self }
    }

    /// Moves to a place; the origin stays.
    pub fn move_to(&mut self, graph: GraphId, at: Position) {
        self.place = Place { graph, at };
    }

    /// Moves right before a node, which becomes the origin.
    pub fn move_before(&mut self, node: Node) {
        self.move_to(self.module.node(node).graph, Position::Before(node));
        self.origin = Some(node);
    }

    /// Moves right after a node, which becomes the origin.
    pub fn move_after(&mut self, node: Node) {
        self.move_to(self.module.node(node).graph, Position::After(node));
        self.origin = Some(node);
    }

    /// Sets the origin of the next nodes; the place stays.
    pub fn set_origin(&mut self, origin: Option<Node>) {
        self.origin = origin;
    }

    /// The place of the next node.
    pub fn place(&self) -> Place {
        self.place
    }

    /// The version of an operator that holds at the place.
    ///
    /// # Errors
    /// If its domain is not imported there, or the opset that is does not have it.
    pub fn schema(&self, kind: OpKind) -> Result<&'static OpSchema, InsertError> {
        let domain = kind.domain();
        let instead = self.opset.filter(|&(d, _)| d == domain).map(|(_, opset)| opset);
        let imported = instead.or_else(|| self.module.opset(self.place.graph, domain));
        let Some(opset) = imported else {
            return Err(self.error(kind, InsertErrorKind::NotImported(domain)));
        };
        let why = match lookup(domain, kind.name(), opset) {
            Lookup::Found(schema) => return Ok(schema),
            Lookup::TooNew { since } => format!("it exists from {since} on"),
            Lookup::Removed { since, by } => format!("it is deprecated from {since} on, replaced by {by}"),
            Lookup::UnknownOp | Lookup::UnknownDomain => "the table has no such version".into(),
        };
        Err(self.error(kind, InsertErrorKind::NotInOpset { opset, why }))
    }

    /// Inserts a node with one result, and returns the result. It is called after the origin and the operator:
    /// `y.Sigmoid`.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn op(
        &mut self,
        kind: OpKind,
        operands: &[Value],
        attrs: &[(&'static str, AttrValue)],
    ) -> Result<Value, InsertError> {
        let spec = attrs
            .iter()
            .fold(NodeSpec::new(kind, operands), |spec, (name, value)| spec.attr(*name, value.clone()));
        let [value] = self.insert(spec)?;
        Ok(value)
    }

    /// Inserts a node with as many results as requested: `let [values, indices] = inserter.insert(top_k)?`.
    ///
    /// # Errors
    /// If there is no such operator at the place, an operand is not in scope there, or operands, results and
    /// attributes do not fit the operator. Captures that were made for its operands stay as unused captures.
    pub fn insert<const N: usize>(&mut self, spec: NodeSpec) -> Result<[Value; N], InsertError> {
        let node = self.add(spec, N)?;
        let results = self.module.node(node).results();
        Ok(std::array::from_fn(|i| results[i].expect("it was given all its results")))
    }

    /// Inserts a node with `n` results.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn insert_n(&mut self, spec: NodeSpec, n: usize) -> Result<Vec<Value>, InsertError> {
        let node = self.add(spec, n)?;
        Ok(self.module.node(node).results().iter().copied().flatten().collect())
    }

    /// A constant of the graph of the place, called after the origin: `y.axes`. One with the same elements that this
    /// inserter made there before is shared.
    pub fn constant(&mut self, suffix: &str, data: TensorData) -> Value {
        let key = match data.storage() {
            Storage::Bytes(bytes) if data.pending().is_empty() => {
                let dims = data.dims().iter().copied().collect();
                Some((self.place.graph, data.dtype(), dims, bytes.clone()))
            }
            Storage::Bytes(_)
            | Storage::File(_)
            | Storage::Strings(_)
            | Storage::Random { .. }
            | Storage::Zeros => None,
        };
        if let Some((value, made)) = key.as_ref().and_then(|key| self.constants.get(key)) {
            // A pass may have changed or erased it since.
            let found = self.module.constant(*value).and_then(Payload::dense);
            if found.is_some_and(|found| Arc::ptr_eq(found, made)) {
                return *value;
            }
        }
        let (name, data) = (self.name(suffix), Arc::new(data));
        let value = self.module.add_constant(self.place.graph, name, Payload::Dense(data.clone()));
        if let Some(key) = key {
            self.constants.insert(key, (value, data));
        }
        value
    }

    /// A constant i64 list, such as a shape or axes. See [`constant`](Self::constant).
    pub fn ints(&mut self, suffix: &str, list: &[i64]) -> Value {
        let n = list.len() as u64;
        self.constant(suffix, TensorData::from_i64(&[n], list).expect("as many values as elements"))
    }

    /// A constant of rank 0 of a float type, to which the number is rounded once. See [`constant`](Self::constant).
    ///
    /// # Errors
    /// If the element type is not f16, bf16, f32 or f64.
    pub fn scalar(&mut self, suffix: &str, dtype: DType, number: f64) -> Result<Value, InsertError> {
        let mut bytes = number.to_le_bytes().to_vec();
        if dtype != DType::F64 {
            if !can_convert(DType::F64, dtype) {
                return Err(self.error(OpKind::Constant, InsertErrorKind::NoScalar(dtype)));
            }
            let wide = std::mem::take(&mut bytes);
            convert(DType::F64, Conversion { to: dtype, clamp: false }, &wide, &mut bytes);
        }
        let data = TensorData::from_bytes(dtype, &[], bytes).expect("one element");
        Ok(self.constant(suffix, data))
    }

    /// Adds a node with `n` results and types them; the next inserted node comes after it.
    fn add(&mut self, spec: NodeSpec, n: usize) -> Result<Node, InsertError> {
        let NodeSpec { kind, operands, attrs, suffix, result_name, node_name } = spec;
        let schema = self.schema(kind)?;
        self.check_place(kind)?;
        let operands = self.in_scope(kind, operands)?;
        let suffix = suffix.unwrap_or(Cow::Borrowed(kind.name()));
        let mut result_name = result_name;
        let mut results = Vec::with_capacity(n);
        for _ in 0..n {
            let name = result_name.take().unwrap_or_else(|| self.name(&suffix));
            results.push(Some((name, Type::Unknown)));
        }
        let attrs = attrs.into_iter().map(|(name, value)| (self.module.intern(&name), value)).collect();
        let provenance = self.provenance;
        let new = NewNode { op: Op::Schema(schema), name: node_name, operands, attrs, results, provenance };
        let node = self.module.add_node(self.place.graph, self.place.at, new);
        let inferred = match check_new(self.module, node, &self.facts) {
            Ok(inferred) => inferred,
            Err(error) => {
                self.module.erase_node(node);
                return Err(self.error(kind, InsertErrorKind::IllTyped(error)));
            }
        };
        let results: SmallVec<[Option<Value>; 2]> =
            self.module.node(node).results().iter().copied().collect();
        for (value, ty) in results.iter().flatten().zip(inferred.types) {
            self.module.set_type(*value, ty);
        }
        if let (Some(Some(first)), Some(ints)) = (results.first(), inferred.ints) {
            self.facts.to_mut().set_ints(*first, ints);
        }
        if let Some(origin) = self.origin.filter(|_| self.copies_metadata) {
            *self.module.node_mut(node).metadata = self.module.node(origin).metadata.clone();
        }
        if let Position::First | Position::After(_) = self.place.at {
            self.place.at = Position::After(node);
        }
        Ok(node)
    }

    /// The operands as values of the graph of the place: values of surrounding graphs are captured, once all
    /// are known to be in scope.
    fn in_scope(
        &mut self,
        op: OpKind,
        mut operands: SmallVec<[Option<Value>; 4]>,
    ) -> Result<SmallVec<[Option<Value>; 4]>, InsertError> {
        for (operand, value) in operands.iter().enumerate() {
            if let Some(value) = value.filter(|&value| !self.sees(value)) {
                return Err(self.error(op, InsertErrorKind::OutOfScope { operand, value }));
            }
        }
        for value in operands.iter_mut().flatten() {
            self.unhide(*value);
            *value = self.module.capture_into(self.place.graph, *value);
        }
        Ok(operands)
    }

    /// Renames values of the bodies between the place and the graph of a value that hide its name: a capture
    /// has the name of the captured value.
    fn unhide(&mut self, value: Value) {
        let data = self.module.value(value);
        let (home, mut graph) = (data.graph, self.place.graph);
        while graph != home && self.unhidden.insert((graph, value)) {
            let name = self.module.value_name(value);
            let hides = |&other: &Value| name.is_some() && self.module.value(other).name == name;
            let hiding: Vec<Value> = self.module.defined(graph).filter(hides).collect();
            for other in hiding {
                let base = name.map(|name| self.module.text(name).to_owned()).unwrap_or_default();
                let name = self.module.fresh_name(&base);
                self.module.set_value_name(other, name);
            }
            let owner = self.module.owner(graph).expect("the value is in a graph around it");
            graph = self.module.node(owner).graph;
        }
    }

    /// True if a value belongs to the graph of the place, or to a graph around it.
    fn sees(&self, value: Value) -> bool {
        let data = self.module.value(value);
        let around = |&graph: &GraphId| self.module.owner(graph).map(|owner| self.module.node(owner).graph);
        let mut graphs = std::iter::successors(Some(self.place.graph), around);
        !matches!(data.def, Def::Erased) && graphs.any(|graph| graph == data.graph)
    }

    fn check_place(&self, op: OpKind) -> Result<(), InsertError> {
        let node = match self.place.at {
            Position::Before(node) | Position::After(node) => node,
            Position::First | Position::Last => return Ok(()),
        };
        let data = self.module.node(node);
        if data.is_alive() && data.graph == self.place.graph {
            return Ok(());
        }
        Err(self.error(op, InsertErrorKind::NoPlace(node)))
    }

    /// A name that nothing has: that of the first result of the origin, or of the origin itself, and the suffix.
    fn name(&mut self, suffix: &str) -> Symbol {
        let Some(origin) = self.origin else { return self.module.fresh_name(suffix) };
        let data = self.module.node(origin);
        let result = data.results().iter().flatten().find_map(|&value| self.module.value_name(value));
        let base = result.or(data.name).map_or("value", |name| self.module.text(name));
        let name = format!("{base}.{suffix}");
        self.module.fresh_name(&name)
    }

    fn error(&self, op: OpKind, kind: InsertErrorKind) -> InsertError {
        InsertError { op, place: self.place, kind }
    }
}
