//! The condition under which operators that compute in fp32 inside may be low, as implications of the cut.
//!
//! For a free variable `f` of such an operator ([`between`](crate::precision::between)):
//!
//! - `f` is low only if everything that feeds it is low, and everything that reads it reads low;
//! - if its result is bounded, a variable `g` that `f` marks ([`marks`]) is low only if `f` is low.
//!
//! Marks run through variables that need not be low themselves, so each marked variable has a second vertex, its
//! *mark*, which is full if any variable that marks it is full. For example, `f = Softmax`, `g` and `h` infer:
//!
//! ```text
//! a → f → g → h        low(f) ⇒ low(a), low(f) ⇒ low(g)            the condition of f
//!                      mark(g) full if f is full, mark(h) full if mark(g) is full
//!                      low(g) ⇒ low(mark(g)), low(h) ⇒ low(mark(h))
//! ```
//!
//! If `a` is fp32, `f` is fp32, and so are `g` and `h`, as if `f` were denied.

use super::{Choice, FULL, Held};
use crate::analysis::tensors::{End, Producer};
use crate::graph::flow::{self, Reader, Var};
use crate::pass::input_ranges::InputRanges;
use crate::precision::between::{Growth, growth, is_between};
use crate::precision::cut::{Invalid, Label, Vertex};
use crate::precision::taint::marks;
use ampc_ir::op::{Class, OpKind};
use ampc_ir::{DType, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::hash_map::Entry;

impl Choice<'_> {
    /// Adds the conditions of the variables that may be low between low neighbours.
    pub(super) fn add_conditions(&mut self) -> Result<(), Invalid> {
        let module = self.tensors.module;
        let is_free = |var: &&Var| flow::decision(module, **var).is_some_and(is_between);
        let conditional: Vec<Var> = self.order.iter().filter(is_free).copied().collect();
        if conditional.is_empty() {
            return Ok(());
        }
        for &var in &conditional {
            let is_free = self.held.get(&var) == Some(&Held::Free);
            if is_free && self.is_read_unrounded(var) {
                self.problem.fix(self.vertices.of(var), Label::Full)?;
            }
        }
        let of: FxHashSet<Var> = conditional.iter().copied().collect();
        for at in 0..self.all.len() {
            self.add_condition_of_tensor(at, &of)?;
        }
        let is_bounded = |var: &Var| {
            let kind = module.node(var.node).schema().map(|s| s.kind);
            kind.and_then(growth) == Some(Growth::Bounded)
        };
        self.add_marks(&conditional.into_iter().filter(is_bounded).collect::<Vec<_>>())
    }

    /// Ties the ends of a tensor to each other if one of them may be low only between low neighbours.
    fn add_condition_of_tensor(&mut self, at: usize, conditional: &FxHashSet<Var>) -> Result<(), Invalid> {
        let tensor = self.all[at].clone();
        let of = |end: End| matches!(end, End::Var(var) if conditional.contains(&var));
        let producer = match tensor.producer {
            Producer::Constant if self.tensors.is_exact(tensor.value) => None,
            Producer::Constant => Some(FULL),
            Producer::End(end) => Some(self.of_end(end)?.unwrap_or(FULL)),
        };
        let is_conditional = matches!(tensor.producer, Producer::End(end) if of(end));
        for reading in &tensor.readers {
            let reader = self.of_end(reading.end)?.unwrap_or(FULL);
            if let Some(producer) = producer.filter(|_| of(reading.end)) {
                self.problem.imply(producer, reader)?;
            }
            if let Some(producer) = producer.filter(|_| is_conditional) {
                self.problem.imply(reader, producer)?;
            }
        }
        if let Some(producer) = producer.filter(|_| is_conditional)
            && tensor.casts.iter().any(|&(to, _)| to != self.tensors.to)
        {
            self.problem.fix(producer, Label::Full)?;
        }
        Ok(())
    }

    /// True if a result is an output of the model, or a cast of the author reads it that makes no 16-bit format and is not
    /// looked through: the reader would see a rounding that it does not see now.
    fn is_read_unrounded(&self, var: Var) -> bool {
        let module = self.tensors.module;
        let keeps_digits = |(node, slot): (ampc_ir::Node, u32)| {
            let data = module.node(node);
            let is_cast = data.schema().is_some_and(|s| s.kind == OpKind::Cast) && slot == 0;
            let to = data.result(0).and_then(|result| module.value(result).ty.dtype());
            is_cast && !to.is_some_and(DType::is_low)
        };
        let unrounded = |value: Value| {
            flow::readers_beyond_casts(module, value).into_iter().any(|reader| match reader {
                Reader::Operand(node, slot) => keeps_digits((node, slot)),
                Reader::Output(..) => true,
            })
        };
        flow::results_of(module, var).any(|(_, value)| unrounded(value))
    }

    /// Ties the variables that bounded ones mark to these.
    fn add_marks(&mut self, origins: &[Var]) -> Result<(), Invalid> {
        let module = self.tensors.module;
        let mut steps: Vec<(Var, Var)> = Vec::new();
        marks(module, self.tensors.groups, origins, &InputRanges::default(), |from, to| {
            steps.push((from, to))
        });
        steps.sort_unstable();
        steps.dedup();
        let mut mark: FxHashMap<Var, Vertex> = FxHashMap::default();
        for &var in origins {
            mark.insert(var, self.vertices.of(var));
        }
        for &(from, to) in &steps {
            for var in [from, to] {
                if let Entry::Vacant(entry) = mark.entry(var) {
                    entry.insert(self.problem.add_vertex()?);
                }
            }
            let infers = flow::decision(module, to).is_some_and(|d| d.class == Class::Infer);
            let (from, of) = (mark[&from], mark[&to]);
            if from != of {
                self.problem.imply(from, of)?;
            }
            let leader = self.tensors.groups.leader(to);
            if infers && self.held.get(&leader) == Some(&Held::Free) {
                let vertex = self.vertices.of(leader);
                if vertex != of {
                    self.problem.imply(of, vertex)?;
                    self.marks.push((of, vertex));
                }
            }
            self.marks.push((from, of));
        }
        Ok(())
    }
}
