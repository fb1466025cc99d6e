//! Where formulas put their nodes.

use super::{Build, Ruled, signed};
use crate::graph::marks::Mark;
use ampc_ir::edit::Position;
use ampc_ir::infer::Facts;
use ampc_ir::op::OpKind;
use ampc_ir::{AttrValue, Inserter, Module, NodeSpec, Value};
use rustc_hash::FxHashMap;

/// Place and mark of new nodes.
#[derive(Debug)]
pub struct Nodes<'m> {
    pub(crate) inserter: Inserter<'m>,
    /// The suffix of names of values.
    pub(super) suffix: &'static str,
    /// The mark of every node.
    mark: Option<Mark>,
    /// Derived values that exist already: the widened form of a value, its shape.
    pub(super) wide: FxHashMap<Value, Value>,
    pub(super) shapes: FxHashMap<Value, Value>,
}

impl<'m> Nodes<'m> {
    /// Nodes at the end of the main graph.
    pub(crate) fn new(
        module: &'m mut Module,
        facts: Option<&'m Facts>,
        suffix: &'static str,
        mark: Option<Mark>,
    ) -> Nodes<'m> {
        let main = module.main();
        let inserter = Inserter::new(module, main, Position::Last);
        let inserter = match facts {
            Some(facts) => inserter.with_facts(facts),
            None => inserter,
        };
        Nodes { inserter, suffix, mark, wide: FxHashMap::default(), shapes: FxHashMap::default() }
    }

    pub(super) fn add<const N: usize>(&mut self, spec: NodeSpec) -> Ruled<[Value; N]> {
        let results = self.inserter.insert(spec.suffix(self.suffix))?;
        self.mark(&results);
        Ok(results)
    }

    pub(super) fn add_n(&mut self, spec: NodeSpec, n: usize) -> Ruled<Vec<Value>> {
        let results = self.inserter.insert_n(spec.suffix(self.suffix), n)?;
        self.mark(&results);
        Ok(results)
    }

    fn mark(&mut self, results: &[Value]) {
        if let Some(mark) = self.mark {
            mark.put_on_maker(self.inserter.module, results);
        }
    }

    /// True if the operator, at the opset of the graph, takes its axes as an operand.
    fn takes_axes(&self, kind: OpKind) -> Ruled<bool> {
        Ok(self.inserter.schema(kind)?.attr("axes").is_none())
    }

    /// A node that takes axes beside its operand.
    pub(super) fn with_axes(
        &mut self,
        spec: NodeSpec,
        kind: OpKind,
        a: Value,
        axes: &[usize],
    ) -> Ruled<Value> {
        let axes: Vec<i64> = axes.iter().map(|&axis| signed(axis)).collect();
        let spec = if self.takes_axes(kind)? {
            let axes = self.ints(&axes);
            spec.operands(&[Some(a), Some(axes)])
        } else {
            spec.attr("axes", AttrValue::Ints(axes))
        };
        let [result] = self.insert(spec)?;
        Ok(result)
    }
}

impl<'m> Build<'m> for Nodes<'m> {
    fn nodes(&self) -> &Nodes<'m> {
        self
    }
    fn nodes_mut(&mut self) -> &mut Nodes<'m> {
        self
    }
}
