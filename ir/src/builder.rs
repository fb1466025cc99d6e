//! Building a module without a file: the entry point for frameworks without ONNX.
//!
//! A framework walks its own graph in execution order and maps each of its operators to an operator of ONNX:
//! [`input`](Builder::input) and [`constant`](Builder::constant) return values, [`op`](Builder::op) and
//! [`node`](Builder::node) make further values, [`output`](Builder::output) names the outputs. An operation
//! without a counterpart in ONNX goes in under a domain of the framework's own ([`import`](Builder::import)):
//! it is kept unchanged, with casts around it. [`finish`](Builder::finish) infers every type and reports every
//! problem, so only inputs need shapes and types.
//!
//! The result is an ordinary [`Module`]: `ampc::rewrite` takes it, and the types of its nodes, casts included,
//! are then the formats to compute in. `examples/framework.rs` of the crate `ampc` is such a framework, from
//! its graph to the list of nodes and casts that it runs. Bodies and functions are made with the [edit
//! verbs](crate::edit).
//!
//! ```
//! use ampc_ir::{Builder, DType, TensorData};
//!
//! let mut b = Builder::new("mlp", 21);
//! let x = b.input("x", DType::F32, ["N", "4"]);
//! let w = b.constant("w", TensorData::from_f32(&[4, 2], &[0.5; 8])?);
//! let h = b.op("MatMul", &[x, w])?;
//! let y = b.op("Relu", &[h])?;
//! b.output("y", y)?;
//! let module = b.finish()?;
//! assert_eq!(module.nodes(module.main()).count(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::attr::AttrValue;
use crate::dtype::DType;
use crate::edit::{NewNode, Position};
use crate::entity::{GraphId, Node, Value};
use crate::infer::{InferError, infer_module};
use crate::module::{Module, Op, Payload, Provenance};
use crate::op::{self, Lookup};
use crate::tensor::TensorData;
use crate::ty::{Dim, Shape, Type};
use crate::verify::{Violation, verify_module};
use std::sync::Arc;

/// Error of building a node or a module.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BuildError {
    /// There is no such operator in the imported operator set.
    #[error("`{op}` in operator set {opset} of `{domain}`: {why}")]
    NoSuchOp {
        /// The operator.
        op: String,
        /// Its domain.
        domain: String,
        /// The imported operator set.
        opset: u16,
        /// Unknown, too new, removed.
        why: String,
    },
    /// Two things of the interface would have one name.
    #[error("`{name}` is the name of an input, a constant or an output already")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// Types do not fit.
    #[error("ill-typed: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    IllTyped(Vec<InferError>),
    /// The module is not valid.
    #[error("invalid: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Invalid(Vec<Violation>),
}

/// Builds the main graph of a module, node by node in program order.
#[derive(Debug)]
pub struct Builder {
    module: Module,
    graph: GraphId,
}

impl Builder {
    /// An empty graph that imports this operator set of ai.onnx, at the IR version that introduced it.
    pub fn new(name: &str, opset: u16) -> Builder {
        let mut module = Module::new();
        let domain = module.intern("");
        module.header.opsets.push((domain, opset));
        module.header.ir_version = ir_version_of(opset);
        module.header.producer_name = "ampc".into();
        let graph = module.main();
        let name = module.intern(name);
        module.set_graph_name(graph, name);
        Builder { module, graph }
    }

    /// Imports an operator set of another domain.
    pub fn import(&mut self, domain: &str, opset: u16) {
        let domain = self.module.intern(domain);
        self.module.header.opsets.push((domain, opset));
    }

    /// Adds an input. Dims are numbers, or names for extents that are known at run time only; `?` for no name.
    pub fn input<'d>(&mut self, name: &str, dtype: DType, dims: impl IntoIterator<Item = &'d str>) -> Value {
        let dims: Vec<Dim> = dims
            .into_iter()
            .map(|d| match d.parse() {
                Ok(n) => Dim::Known(n),
                Err(_) if d == "?" => Dim::Unknown,
                Err(_) => Dim::Sym(self.module.intern(d)),
            })
            .collect();
        let name = self.module.fresh_name(name);
        self.module.add_input(self.graph, name, Type::tensor(dtype, Shape::of(dims)), None)
    }

    /// Adds a constant.
    pub fn constant(&mut self, name: &str, data: TensorData) -> Value {
        let name = self.module.fresh_name(name);
        self.module.add_constant(self.graph, name, Payload::Dense(Arc::new(data)))
    }

    /// Adds a node of ai.onnx with one result and no attributes, and returns the result.
    ///
    /// # Errors
    /// If there is no such operator in the imported operator set.
    pub fn op(&mut self, op: &str, operands: &[Value]) -> Result<Value, BuildError> {
        let operands: Vec<Option<Value>> = operands.iter().copied().map(Some).collect();
        let node = self.node("", op, &operands, &[], 1)?;
        Ok(self.module.node(node).result(0).expect("it was given a result"))
    }

    /// Adds a node: operands may be absent, attributes are by name, results are named after the operator.
    /// An operator of an unknown domain is preserved, its results of unknown type.
    ///
    /// # Errors
    /// If there is no such operator in the imported operator set.
    pub fn node(
        &mut self,
        domain: &str,
        op: &str,
        operands: &[Option<Value>],
        attrs: &[(&str, AttrValue)],
        n_results: usize,
    ) -> Result<Node, BuildError> {
        // What is not imported from an open domain may be anything.
        let assumed = if op::is_open(domain) { 0 } else { 1 };
        let opset = self.module.opset(self.graph, domain).unwrap_or(assumed);
        let error = |why: String| BuildError::NoSuchOp { op: op.into(), domain: domain.into(), opset, why };
        let kind = match op::lookup(domain, op, opset) {
            Lookup::Found(schema) => Op::Schema(schema),
            Lookup::TooNew { since } => return Err(error(format!("exists from {since} on"))),
            Lookup::Removed { since, by } => {
                return Err(error(format!("is deprecated from {since} on, replaced by {by}")));
            }
            Lookup::UnknownOp => return Err(error("no such operator".into())),
            Lookup::UnknownDomain => Op::Custom {
                domain: self.module.intern(domain),
                name: self.module.intern(op),
                overload: self.module.intern(""),
            },
        };
        let results = (0..n_results).map(|_| Some((self.module.fresh_name(op), Type::Unknown))).collect();
        let attrs = attrs.iter().map(|(name, value)| (self.module.intern(name), value.clone())).collect();
        let new = NewNode {
            op: kind,
            name: None,
            operands: operands.iter().copied().collect(),
            attrs,
            results,
            provenance: Provenance::User,
        };
        Ok(self.module.add_node(self.graph, Position::Last, new))
    }

    /// The results of a node.
    pub fn results(&self, node: Node) -> Vec<Value> {
        self.module.node(node).results().iter().flatten().copied().collect()
    }

    /// Makes a value an output of the graph under a name. A value that has a public name already (an input, a
    /// constant, an output) becomes an output through an Identity.
    ///
    /// # Errors
    /// If an input, a constant or another output has the name.
    pub fn output(&mut self, name: &str, value: Value) -> Result<(), BuildError> {
        let graph = self.module.graph(self.graph);
        let public = graph
            .inputs()
            .iter()
            .chain(graph.constants())
            .copied()
            .chain(graph.outputs().iter().map(|o| o.value));
        if public.clone().any(|v| self.module.value(v).name.is_some_and(|n| self.module.text(n) == name)) {
            return Err(BuildError::NameTaken { name: name.to_owned() });
        }
        let inner = self.module.producer(value).is_some() && !self.module.is_output(value);
        let value = if inner { value } else { self.op("Identity", &[value])? };
        // Results have names of their own making until they leave: one in the way gives it up.
        let results =
            self.module.nodes(self.graph).flat_map(|n| self.module.node(n).results().iter().flatten());
        let holder = results
            .copied()
            .find(|&v| self.module.value(v).name.is_some_and(|n| self.module.text(n) == name));
        if let Some(holder) = holder.filter(|&h| h != value) {
            let other = self.module.fresh_name(name);
            self.module.set_value_name(holder, other);
        }
        let name = self.module.intern(name);
        self.module.set_value_name(value, name);
        self.module.add_output(self.graph, value, Type::Unknown);
        Ok(())
    }

    /// Infers all types, declares the types of the outputs, and verifies.
    ///
    /// # Errors
    /// All nodes whose types do not fit, or all violations.
    pub fn finish(mut self) -> Result<Module, BuildError> {
        infer_module(&mut self.module).map_err(BuildError::IllTyped)?;
        for index in 0..self.module.graph(self.graph).outputs().len() {
            let value = self.module.graph(self.graph).outputs()[index].value;
            let ty = self.module.value(value).ty.clone();
            self.module.set_output_type(self.graph, index, ty);
        }
        verify_module(&self.module).map_err(BuildError::Invalid)?;
        Ok(self.module)
    }
}

/// The IR version that came with an operator set of ai.onnx (ONNX's table of versions), 10 at least for new models:
/// from there on nodes have metadata.
fn ir_version_of(opset: u16) -> i64 {
    match opset {
        0..=22 => 10,
        23 => 11,
        24 => 12,
        25 | 26 => 13,
        _ => op::LATEST_IR_VERSION,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_have_the_names_they_are_given() {
        let mut b = Builder::new("g", 20);
        let x = b.input("x", DType::F32, ["2"]);
        let a = b.op("Relu", &[x]).unwrap();
        let c = b.op("Neg", &[a]).unwrap();
        // The name that the result of Relu has been given so far.
        b.output("Relu", c).unwrap();
        b.output("again", c).unwrap();
        b.output("input", x).unwrap();
        assert_eq!(b.output("x", a), Err(BuildError::NameTaken { name: "x".into() }));
        assert_eq!(b.output("again", a), Err(BuildError::NameTaken { name: "again".into() }));
        let module = b.finish().unwrap();
        let names: Vec<String> = module
            .graph(module.main())
            .outputs()
            .iter()
            .map(|o| crate::verify::name_of(&module, o.value))
            .collect();
        assert_eq!(names, ["Relu", "again", "input"]);
    }

    #[test]
    fn mistakes_are_named() {
        let mut b = Builder::new("g", 13);
        let x = b.input("x", DType::F32, ["2", "3"]);
        let why = b.op("Gelu", &[x]).unwrap_err().to_string();
        assert!(why.contains("exists from 20 on"), "{why}");
        let y = b.input("y", DType::F32, ["4", "3"]);
        let z = b.op("MatMul", &[x, y]).unwrap();
        b.output("z", z).unwrap();
        assert!(matches!(b.finish(), Err(BuildError::IllTyped(e)) if e.len() == 1));
    }
}
