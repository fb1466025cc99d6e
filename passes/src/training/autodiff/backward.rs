//! State of gradient rules: the current node, the gradients of its results, and the means to build nodes.

mod contributions;
pub(super) mod sections;

use self::contributions::Contribution;
use self::sections::Section;
use super::reads::{Needs, Reads};
use crate::graph::marks::Mark;
use crate::pass::training_error::RuleError;
use crate::training::build::Nodes;
pub(super) use crate::training::build::{Build, Ruled, signed};
use ampc_ir::infer::Facts;
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::{DType, Module, Node, NodeSpec, Type, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::Cell;

/// Contributions to gradients, by value.
type Contributions = FxHashMap<Value, Vec<Contribution>>;

/// A node on the way back: the rule of its operator reads it and the gradients of its results (`dy`), and adds the
/// gradients of its operands. Nodes are built with [`Build`].
#[derive(Debug)]
pub struct Backward<'m> {
    nodes: Nodes<'m>,
    node: Option<Node>,
    dy: Vec<Option<Value>>,
    /// A bit for each of these that the rule has requested; all from the 64th on share a bit.
    asked: Cell<u64>,
    needs: Needs,
    parameters: FxHashSet<Value>,
    contributions: Contributions,
    /// Gradients by the values from which they were rounded.
    rounded: FxHashMap<(Value, DType), Value>,
    /// Gradients of sections of values, which become contributions when these are needed.
    sections: FxHashMap<Value, Vec<Section>>,
    /// The results of nodes with their gradients, if they are recorded.
    recorded: Option<Vec<(Value, Value)>>,
}

impl<'m> Build<'m> for Backward<'m> {
    fn nodes(&self) -> &Nodes<'m> {
        &self.nodes
    }
    fn nodes_mut(&mut self) -> &mut Nodes<'m> {
        &mut self.nodes
    }
}

/// An error of [`Backward::finish`].
pub(super) struct Unfinished<'m> {
    pub(super) module: &'m Module,
    /// The node of which it is an error; `None` if it is of the loss.
    pub(super) node: Option<Node>,
    pub(super) error: RuleError,
}

/// Between the walk and its nodes.
impl<'m> Backward<'m> {
    pub(super) fn new(
        module: &'m mut Module,
        facts: &'m Facts,
        needs: Needs,
        parameters: &[Value],
    ) -> Backward<'m> {
        Backward {
            nodes: Nodes::new(module, Some(facts), "grad", Some(Mark::GRADIENT)),
            node: None,
            dy: Vec::new(),
            asked: Cell::new(0),
            needs,
            parameters: parameters.iter().copied().collect(),
            contributions: Contributions::default(),
            rounded: FxHashMap::default(),
            sections: FxHashMap::default(),
            recorded: None,
        }
    }

    /// Records the gradients of results from here on.
    pub(super) fn record(&mut self) {
        self.recorded = Some(Vec::new());
    }

    /// The results of nodes with their gradients, as far as they are recorded.
    pub(super) fn recorded(&mut self) -> Vec<(Value, Value)> {
        self.recorded.take().unwrap_or_default()
    }

    /// Begins with the gradient of the loss: the seed, or 1.
    pub(super) fn seed(&mut self, loss: Value, seed: Option<Value>) -> Ruled {
        let dtype = self.dtype(loss)?;
        let seed = match seed {
            Some(seed) => self.cast(seed, dtype)?,
            None => self.number(1.0, dtype)?,
        };
        let rank = self.rank(loss)?;
        let seed = if self.rank(seed)? == rank { seed } else { self.reshape_as(seed, loss)? };
        self.contributions.insert(loss, vec![Contribution::of(seed)]);
        Ok(())
    }

    /// Moves to a node, whose rule reads gradients as `reads` says. Returns true if the rule has to be applied: a result has
    /// a gradient, and an operand needs a gradient.
    pub(super) fn enter(&mut self, node: Node, reads: Reads) -> Ruled<bool> {
        self.move_to(node);
        let data = self.nodes.inserter.module.node(node);
        let results: Vec<Option<Value>> = data.results().to_vec();
        if !data.operands().iter().flatten().any(|&value| self.needs.any[value]) {
            return Ok(false);
        }
        let cast = data.schema().is_some_and(|s| s.kind == OpKind::Cast);
        let parameter = data.operand(0).filter(|value| cast && self.parameters.contains(value));
        if let (Some(parameter), Some(Some(low))) = (parameter, results.first()) {
            // Contributions to a shared weight are added in the type of the weight.
            for part in self.contributions_to(*low)?.unwrap_or_default() {
                self.add_to(parameter, part.gradient)?;
            }
            return Ok(false);
        }
        self.dy.clear();
        self.asked.set(0);
        let in_own_type = reads.in_own_type(&|slot| self.needs(slot));
        for result in results {
            let dy = match result {
                Some(result) => self.gradient_of(result, in_own_type)?,
                None => None,
            };
            if let (Some(recorded), Some(result), Some(dy)) = (&mut self.recorded, result, dy) {
                recorded.push((result, dy));
            }
            self.dy.push(dy);
        }
        Ok(self.dy.iter().any(Option::is_some))
    }

    /// Inserts nodes for a node from here on, and reports errors of that node.
    pub(super) fn move_to(&mut self, node: Node) {
        self.node = Some(node);
        self.nodes.inserter.set_origin(Some(node));
    }

    /// The node of which errors are reported; `None` if they are of the loss.
    pub(super) fn place_of_error(&self) -> Option<Node> {
        self.node
    }

    /// A result whose gradient the rule has not requested.
    pub(super) fn unasked(&self) -> Option<usize> {
        (0..self.dy.len()).find(|&i| self.dy[i].is_some() && self.asked.get() & bit(i) == 0)
    }

    /// The gradients of parameters, `None` where there is none.
    pub(super) fn finish(mut self, parameters: &[Value]) -> Result<Vec<Option<Value>>, Unfinished<'m>> {
        self.node = None;
        self.nodes.inserter.set_origin(None);
        let mut found = Vec::with_capacity(parameters.len());
        let mut renamed = FxHashSet::default();
        for &parameter in parameters {
            let parts = self.contributions_to(parameter);
            let sum = |parts: Option<Vec<Contribution>>| {
                parts.map(|parts| self.sum_for(parameter, &parts)).transpose()
            };
            let gradient = match parts.and_then(sum) {
                Ok(gradient) => gradient,
                Err(error) => {
                    let module = self.nodes.inserter.module;
                    return Err(Unfinished { module, node: self.node, error });
                }
            };
            if let Some(gradient) = gradient.filter(|&gradient| renamed.insert(gradient)) {
                let module = &mut *self.nodes.inserter.module;
                // A gradient that the seed itself is keeps the seed's name.
                if module.producer(gradient).is_some() {
                    let name = ampc_ir::verify::name_of(module, parameter);
                    let name = module.fresh_name(&format!("{name}.grad"));
                    module.set_value_name(gradient, name);
                }
            }
            found.push(gradient);
        }
        self.erase_unread_roundings(&found);
        Ok(found)
    }
}

/// Reading the node.
impl Backward<'_> {
    /// The node.
    ///
    /// # Panics
    /// If no node has been entered, which no rule sees.
    pub fn node(&self) -> Node {
        self.node.expect("rules are applied to nodes")
    }

    /// The node as views read it.
    ///
    /// # Errors
    /// If it is of no operator of the table.
    pub fn view(&self) -> Ruled<NodeView<'_>> {
        let view = NodeView::with_facts(self.module(), self.node(), self.nodes.inserter.facts());
        view.ok_or_else(|| RuleError::Unsupported("the operator has no schema".into()))
    }

    /// An operand, if it is there.
    pub fn operand(&self, i: usize) -> Option<Value> {
        self.module().node(self.node()).operand(i)
    }

    /// An operand that is needed.
    ///
    /// # Errors
    /// If it is absent.
    pub fn x(&self, i: usize) -> Ruled<Value> {
        self.operand(i).ok_or_else(|| RuleError::Unsupported(format!("operand {i} is absent")))
    }

    /// A result that is needed.
    ///
    /// # Errors
    /// If it is absent.
    pub fn y(&self, i: usize) -> Ruled<Value> {
        let result = self.module().node(self.node()).result(i);
        result.ok_or_else(|| RuleError::Unsupported(format!("result {i} is absent")))
    }

    /// A result of the node; if the node does not have it, it gets it, with this type.
    ///
    /// # Errors
    /// If the operator has no such result.
    pub fn result_or_new(&mut self, i: usize, ty: Type) -> Ruled<Value> {
        let node = self.node();
        if let Some(result) = self.module().node(node).result(i) {
            return Ok(result);
        }
        let has = self.module().node(node).schema().is_some_and(|schema| schema.output(i).is_some());
        if !has {
            return Err(RuleError::Internal(format!("it has no result {i}")));
        }
        let first = ampc_ir::verify::name_of(self.module(), self.y(0)?);
        let module = &mut *self.nodes.inserter.module;
        let name = module.fresh_name(&first);
        Ok(module.add_result(node, i, name, ty))
    }

    /// The gradient of a result; `None` if the loss does not depend on it. The rule of a user gets it in the element type of
    /// the result, and a rule of the table in the type that it asks for.
    pub fn dy(&self, i: usize) -> Option<Value> {
        self.asked.set(self.asked.get() | bit(i));
        self.dy.get(i).copied().flatten()
    }

    /// The gradient of the first result.
    ///
    /// # Errors
    /// If the first result has no gradient, because only other results lead to the loss.
    pub fn dy0(&self) -> Ruled<Value> {
        self.dy(0)
            .ok_or_else(|| RuleError::Unsupported("the loss depends on another result than the first".into()))
    }

    /// True if an operand needs a gradient.
    pub fn needs(&self, i: usize) -> bool {
        self.operand(i).is_some_and(|value| self.needs.any[value])
    }

    /// An error if an operand needs a gradient, for which the rule has no formula.
    ///
    /// # Errors
    /// If it does.
    pub fn refuse(&self, i: usize) -> Ruled {
        if !self.needs(i) {
            return Ok(());
        }
        let name =
            self.operand(i).map(|value| ampc_ir::verify::name_of(self.module(), value)).unwrap_or_default();
        Err(RuleError::Unsupported(format!(
            "operand {i} (`{name}`) has none, but depends on parameters: freeze these (`--freeze`)"
        )))
    }

    /// A specification like the current node: operator and attributes, except some by name, without operands.
    ///
    /// # Panics
    /// If no node has been entered, which no rule sees.
    #[must_use]
    pub fn like_node(&self, without: &[&str]) -> NodeSpec {
        let data = self.module().node(self.node());
        let kind = data.schema().expect("rules are of operators with a schema").kind;
        let attrs = data.attrs().iter().map(|attr| (self.module().text(attr.name), &attr.value));
        attrs
            .filter(|(name, _)| !without.contains(name))
            .fold(NodeSpec::new(kind, &[]), |spec, (name, value)| spec.attr(name.to_owned(), value.clone()))
    }
}

/// Adding gradients.
impl Backward<'_> {
    /// Adds a gradient of an operand: of its shape, in any float type. It is left out if the operand needs none.
    ///
    /// # Errors
    /// If it does not fit.
    pub fn add(&mut self, i: usize, gradient: Value) -> Ruled {
        match self.operand(i) {
            Some(value) if self.needs.any[value] => self.add_to(value, gradient),
            _ => Ok(()),
        }
    }

    /// Adds a gradient of an operand that was broadcast: [`unbroadcast`](Self::unbroadcast), then [`add`](Self::add).
    ///
    /// # Errors
    /// If it does not fit.
    pub fn add_unbroadcast(&mut self, i: usize, gradient: Value) -> Ruled {
        if !self.needs(i) {
            return Ok(());
        }
        let like = self.x(i)?;
        let gradient = self.unbroadcast(gradient, like)?;
        self.add(i, gradient)
    }
}

fn bit(i: usize) -> u64 {
    1 << i.min(63)
}
