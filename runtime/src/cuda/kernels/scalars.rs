//! Groups of scalar nodes: nodes whose operands and results have one element each become one kernel of one thread.
//!
//! A launch costs more than the computation of such a node. An f16 training step ends with a chain of four nodes, two
//! of them on integers:
//!
//! ```text
//! %ok = Equal(%found_inf, %zero)     %one = Cast(%ok) {to=i64}     %step_next = Add(%step, %one)
//! %scale_next, %good_next = UpdateLossScale(%scale, %good, %found_inf)
//! ```
//!
//! Nodes join if one reads the other, or both read the same result. Operands take very little memory, so the distance
//! between nodes in the program is not limited. A group gives the same bits as its separate nodes.

use super::expressions::{Printer, is_known, of_printed};
use super::integers::{self, Formula};
use super::{casts, training};
use crate::backend::{Candidates, GroupSite};
use crate::cuda::Shared;
use crate::cuda::text::Elem;
use crate::elementwise::{Member, Read};
use crate::groups::{GraphIndex, unsupported_group};
use crate::kernel::{Dims, Prepared, Result, Site};
use ampc_ir::op::OpKind;
use ampc_ir::{DType, Module, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::Cell;
use std::sync::Arc;

/// The maximum number of nodes of a group; compile time grows with the size of the kernel.
const MOST_NODES: usize = 48;

/// The most operands and results of a group. The kernel has one thread, which no number of registers slows down.
const MOST_VALUES: usize = 48;

/// The maximum number of scalar nodes of a graph that are joined, and of groups that are tried for each.
const MOST_SCALARS: usize = 512;
const MOST_TRIED: usize = 4;

/// The maximum number of units that all path searches of a graph visit. Beyond it, nodes are not joined.
const MOST_VISITED: usize = 1 << 22;

/// A node with one element.
enum Scalar {
    Expression(Member),
    Formula {
        formula: Formula,
        operands: Vec<Read>,
        result: Value,
    },
    LossScale {
        update: String,
        operands: Vec<(&'static str, Read)>,
        results: Vec<(Value, Elem, &'static str)>,
    },
}

impl Scalar {
    /// Reads a node; `None` unless it has a formula and its operands and results have one element.
    fn read(site: &Site<'_>) -> Option<Scalar> {
        let n = site.view.n_operands();
        let is_one = |dims: Result<Dims>| dims.is_ok_and(|dims| dims.iter().product::<usize>() == 1);
        let operands = (0..n).filter(|&i| site.has(i)).all(|i| is_one(site.dims(i)));
        let results = (0..site.results.len()).filter(|&j| site.wants(j)).all(|j| is_one(site.result_dims(j)));
        if !operands || !results {
            return None;
        }
        if let Some(mut member) = Member::read(site, is_known) {
            member.dims = Dims::new();
            member.operands.iter_mut().flatten().for_each(|read| read.dims = Dims::new());
            return Some(Scalar::Expression(member));
        }
        if site.kind() == OpKind::UpdateLossScale {
            return Scalar::loss_scale(site);
        }
        let [Some(result)] = site.view.data().results()[..] else { return None };
        let formula = match site.kind() {
            OpKind::Where => select(site),
            _ => casts::formula(site).or_else(|| integers::formula(site)),
        };
        let formula = formula.filter(|formula| n >= formula.n)?;
        let operands = (0..formula.n).map(|i| scalar(site, i)).collect::<Option<Vec<Read>>>()?;
        Some(Scalar::Formula { formula, operands, result })
    }

    fn loss_scale(site: &Site<'_>) -> Option<Scalar> {
        let update = training::loss_scale_update(site).ok()?;
        let mut operands = Vec::new();
        for (i, name) in ["scale", "good", "found", "bad"].into_iter().enumerate() {
            if site.has(i) {
                operands.push((name, scalar(site, i)?));
            }
        }
        let types = [(Elem::F32, "to"), (Elem::I32, "good"), (Elem::I32, "bad")];
        let results = site.view.data().results().iter().zip(types);
        let results = results.filter_map(|(value, (elem, name))| Some(((*value)?, elem, name))).collect();
        let types = operands.iter().map(|(_, read)| read.dtype);
        types
            .eq([DType::F32, DType::I32, DType::F32, DType::I32].into_iter().take(operands.len()))
            .then_some(())?;
        Some(Scalar::LossScale { update, operands, results })
    }

    /// Prints the node; `None` if the printer does not know an element type.
    fn print(self, printer: &mut Printer) -> Option<()> {
        match self {
            Scalar::Expression(member) => printer.member(&member),
            Scalar::Formula { formula, operands, result } => {
                let names = ["a0", "a1", "a2"];
                let operands: Vec<(&str, Read)> = names.into_iter().zip(operands).collect();
                printer.statements(&formula.functions, &operands, "", &[(result, formula.to, &formula.text)])
            }
            Scalar::LossScale { update, operands, results } => {
                let has_bad = operands.len() > 3;
                let update = if has_bad { update } else { format!("    int bad = 0;\n{update}") };
                printer.statements(&[], &operands, &update, &results)
            }
        }
    }
}

/// Operand `i`, which must have one element.
fn scalar(site: &Site<'_>, i: usize) -> Option<Read> {
    Some(Read { value: site.view.operand(i)?, dtype: site.dtype(i).ok()?, dims: Dims::new() })
}

/// The formula of Where for integers.
fn select(site: &Site<'_>) -> Option<Formula> {
    let to = Elem::number(site.result_dtype(0).ok()?)?;
    Some(Formula { n: 3, to, functions: Vec::new(), text: "a0 ? a1 : a2".to_owned() })
}

/// True if a node can be in a group.
pub(super) fn is_scalar(site: &Site<'_>) -> bool {
    Scalar::read(site).is_some()
}

/// The kernel of a group of scalar nodes; `None` if a node is not scalar.
pub(super) fn prepare(shared: &Arc<Shared>, group: &GroupSite<'_>) -> Option<Result<Prepared>> {
    let scalars = group.sites.iter().map(Scalar::read).collect::<Option<Vec<Scalar>>>()?;
    let mut printer = Printer::default();
    Some(match scalars.into_iter().try_for_each(|scalar| scalar.print(&mut printer)) {
        Some(()) => of_printed(shared, printer, &[], |value| group.operand(value), group.results),
        None => Err(unsupported_group()),
    })
}

/// The groups of scalar nodes, disjoint from `lists`, in program order.
pub(super) fn join(
    candidates: &Candidates<'_>,
    index: &GraphIndex<'_>,
    lists: &[Vec<Node>],
    scalars: &[Node],
) -> Vec<Vec<Node>> {
    let mut units = Units::new(candidates, index, lists);
    let mut groups: Vec<usize> = Vec::new();
    for &node in scalars.iter().take(MOST_SCALARS) {
        let unit = units.of[&node];
        let near = groups.iter().rev().copied().filter(|&group| units.is_near(group, unit)).take(MOST_TRIED);
        let joined =
            near.into_iter().find(|&group| !units.has_path(group, unit) && !units.has_path(unit, group));
        match joined {
            Some(group) => units.join(group, unit),
            None => groups.push(unit),
        }
    }
    let lists = groups.into_iter().map(|group| std::mem::take(&mut units.nodes[group]));
    lists.filter(|nodes| nodes.len() > 1).collect()
}

/// The groups and single nodes of a graph.
struct Units<'a> {
    module: &'a Module,
    index: &'a GraphIndex<'a>,
    nodes: Vec<Vec<Node>>,
    of: FxHashMap<Node, usize>,
    /// The remaining number of units that searches may visit.
    budget: Cell<usize>,
}

impl<'a> Units<'a> {
    fn new(candidates: &Candidates<'a>, index: &'a GraphIndex<'a>, lists: &[Vec<Node>]) -> Units<'a> {
        let Candidates { module, graph, .. } = *candidates;
        let (nodes, of, budget) = (Vec::new(), FxHashMap::default(), Cell::new(MOST_VISITED));
        let mut units = Units { module, index, nodes, of, budget };
        for list in lists {
            units.of.extend(list.iter().map(|&node| (node, units.nodes.len())));
            units.nodes.push(list.clone());
        }
        for node in module.nodes(graph) {
            if !units.of.contains_key(&node) {
                units.of.insert(node, units.nodes.len());
                units.nodes.push(vec![node]);
            }
        }
        units
    }

    /// The results of other nodes that a unit reads.
    fn operands(&self, unit: usize) -> FxHashSet<Value> {
        let module = self.module;
        let operands = self.nodes[unit].iter().flat_map(|&node| module.node(node).operands()).flatten();
        operands.copied().filter(|&value| module.producer(value).is_some()).collect()
    }

    /// The units that read a result of a unit.
    fn readers(&self, unit: usize) -> impl Iterator<Item = usize> {
        let nodes = self.nodes[unit].iter().flat_map(|&node| self.index.readers_of(node));
        nodes.map(|node| self.of[&node]).filter(move |&reader| reader != unit)
    }

    /// True if a node is adjacent to a group and may join it by the size limits.
    fn is_near(&self, group: usize, node: usize) -> bool {
        let pair = [group, node];
        let module = self.module;
        let all = || pair.iter().flat_map(|&unit| &self.nodes[unit]).map(|&node| module.node(node));
        let values = all().map(|data| data.operands().iter().flatten().count() + data.results().len());
        if all().count() > MOST_NODES || values.sum::<usize>() > MOST_VALUES {
            return false;
        }
        let of_group = self.operands(group);
        self.operands(node).iter().any(|value| of_group.contains(value))
            || self.readers(group).any(|reader| reader == node)
    }

    /// True if a path leads from a unit to another through a third unit, or if the search exceeds its budget.
    fn has_path(&self, from: usize, to: usize) -> bool {
        let mut found: FxHashSet<usize> = FxHashSet::default();
        let mut open: Vec<usize> = self.readers(from).filter(|&unit| unit != to).collect();
        while let Some(unit) = open.pop() {
            if unit == to {
                return true;
            }
            if self.budget.get() == 0 {
                return true;
            }
            self.budget.set(self.budget.get() - 1);
            if found.insert(unit) {
                open.extend(self.readers(unit));
            }
        }
        false
    }

    fn join(&mut self, group: usize, node: usize) {
        let nodes = std::mem::take(&mut self.nodes[node]);
        self.of.extend(nodes.iter().map(|&node| (node, group)));
        self.nodes[group].extend(nodes);
    }
}
