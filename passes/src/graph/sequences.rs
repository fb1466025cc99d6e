//! Sequences and optionals. No cast changes their elements, so all operators that pass on a sequence or optional have
//! one element type.
//!
//! A *group* is a connected component of type variables. A sequence or optional connects variables (through bodies,
//! functions and captures as well), and an operator that puts tensors in or takes them out connects its own variables.
//! A group is low as a whole or not at all; tensors are cast on the way in and on the way out. A group is *held* (keeps
//! its type) if a sequence of the group is an input or output of the model, or if an unknown operator reads or makes
//! the sequence.
//!
//! ```text
//! %s = SequenceConstruct(%a, %b)     %s and %t connect the variables of the three operators: one group
//! %t = SequenceInsert(%s, %c)        if the group is low, fp32 values %a, %b and %c are cast on the way in
//! %y = SequenceAt(%t, %i)            and %y is cast on the way out for readers in fp32
//! output %y                          (an output %t would hold the group)
//! ```

pub use super::containers::{element, is_container, is_structural, is_structural_node};
use crate::graph::flow::{self, Var};
use crate::graph::keys::node_key;
use crate::graph::paths::Paths;
use ampc_ir::module::{Decision, Reason, Rule};
use ampc_ir::op::{Class, Legality};
use ampc_ir::verify::name_of;
use ampc_ir::{AttrValue, DType, Module, Node, Type, Value};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The reason why a group keeps its types.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FixedBy {
    /// A value of the group is an input or output of the model; the name of the value.
    Public(String),
    /// An unknown operator reads or makes a value of the group; the operator, or the name of the value.
    Unknown(String),
}

/// A group of type variables.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// The variables of the group, in program order.
    pub members: Vec<Var>,
    /// The sequences and optionals of the group.
    pub containers: Vec<Value>,
    /// The reason why the group keeps its types.
    pub held: Option<FixedBy>,
}

/// All groups of a module.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    of: FxHashMap<Var, usize>,
    groups: Vec<Group>,
}

impl Groups {
    /// Finds the groups. Linear in values and uses.
    pub fn new(module: &Module) -> Groups {
        let graphs = flow::graphs(module);
        let containers: Vec<Value> = graphs
            .iter()
            .flat_map(|&graph| module.defined(graph))
            .filter(|&value| is_container(&module.value(value).ty))
            .collect();
        let nodes: Vec<Node> =
            flow::nodes(module).into_iter().filter(|&node| is_structural_node(module, node)).collect();
        if containers.is_empty() && nodes.is_empty() {
            return Groups::default();
        }
        let mut union = Union::default();
        for &node in &nodes {
            union.join_vars(module, node);
        }
        let mut held: Vec<(usize, FixedBy)> = Vec::new();
        for &node in &nodes {
            let var = flow::vars(module, node).find_map(|var| union.of.get(&var).copied());
            held.extend(var.zip(unknown_in(module, node).map(FixedBy::Unknown)));
        }
        let outputs = flow::outputs(module, module.main());
        let mut of_value: Vec<(Value, usize)> = Vec::new();
        for value in containers {
            let producer = flow::producer_var(module, value);
            let readers = flow::readers(module, value);
            let vars: Vec<Option<Var>> = readers.iter().map(|&r| flow::var_of_reader(module, r)).collect();
            let Some(first) = producer.or_else(|| vars.iter().flatten().min().copied()) else { continue };
            let at = union.find_or_add(first);
            of_value.push((value, at));
            for &var in vars.iter().flatten() {
                let other = union.find_or_add(var);
                union.join(at, other);
            }
            let is_input = module.producer(value).is_none() && module.value(value).graph == module.main();
            if is_input || outputs.contains(&value) {
                held.push((at, FixedBy::Public(name_of(module, value))));
            } else if producer.is_none() {
                held.push((at, FixedBy::Unknown(name_of(module, value))));
            }
            let unknown = readers.iter().zip(&vars).filter(|(_, var)| var.is_none()).map(|(r, _)| match *r {
                flow::Reader::Operand(node, _) => node_key(module, node),
                flow::Reader::Output(..) => name_of(module, value),
            });
            held.extend(unknown.min().map(|by| (at, FixedBy::Unknown(by))));
        }
        Groups::of_union(module, union, &of_value, held)
    }

    fn of_union(
        module: &Module,
        mut union: Union,
        of_value: &[(Value, usize)],
        held: Vec<(usize, FixedBy)>,
    ) -> Groups {
        let mut groups = Groups::default();
        let mut at: FxHashMap<usize, usize> = FxHashMap::default();
        for node in flow::nodes(module) {
            for var in flow::vars(module, node) {
                let Some(&known) = union.of.get(&var) else { continue };
                let root = union.find(known);
                let group = *at.entry(root).or_insert_with(|| {
                    groups.groups.push(Group::default());
                    groups.groups.len() - 1
                });
                groups.groups[group].members.push(var);
                groups.of.insert(var, group);
            }
        }
        for &(value, known) in of_value {
            if let Some(&group) = at.get(&union.find(known)) {
                groups.groups[group].containers.push(value);
            }
        }
        for (known, why) in held {
            if let Some(&group) = at.get(&union.find(known)) {
                let group = &mut groups.groups[group];
                // The choice does not depend on the order of nodes.
                let rank = |held: &FixedBy| match held {
                    FixedBy::Public(name) => (0, name.clone()),
                    FixedBy::Unknown(name) => (1, name.clone()),
                };
                if group.held.as_ref().is_none_or(|held| rank(&why) < rank(held)) {
                    group.held = Some(why);
                }
            }
        }
        groups
    }

    /// True if there are no groups.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }
    /// All groups, in the order of their first variables.
    pub fn iter(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter()
    }
    /// The group of a variable.
    pub fn get(&self, var: Var) -> Option<&Group> {
        self.of.get(&var).map(|&group| &self.groups[group])
    }
    /// The variable that represents the group of a variable, or the variable itself.
    pub fn leader(&self, var: Var) -> Var {
        self.get(var).and_then(|group| group.members.first().copied()).unwrap_or(var)
    }
    /// The values that a variable reads; for a group, the tensors that nodes outside of the group make.
    pub fn operands(&self, module: &Module, var: Var) -> Vec<Value> {
        match self.of.get(&var) {
            None => flow::operands_of(module, var).map(|(_, v)| v).collect(),
            Some(group) => {
                let all = self.groups[*group].members.iter();
                let all = all.flat_map(|&member| flow::operands_of(module, member)).map(|(_, v)| v);
                let own = |v| flow::origin_var(module, v).and_then(|from| self.of.get(&from)) == Some(group);
                all.filter(|&v| !is_container(&module.value(v).ty) && !own(v)).collect()
            }
        }
    }
    /// The values that a variable makes; for a group, only the tensors.
    pub fn results(&self, module: &Module, var: Var) -> Vec<Value> {
        match self.get(var) {
            None => flow::results_of(module, var).map(|(_, v)| v).collect(),
            Some(group) => {
                let all = group.members.iter().flat_map(|&member| flow::results_of(module, member));
                all.map(|(_, v)| v).filter(|&v| !is_container(&module.value(v).ty)).collect()
            }
        }
    }
}

/// A union-find structure of variables.
#[derive(Default)]
struct Union {
    of: FxHashMap<Var, usize>,
    parents: Vec<usize>,
}

impl Union {
    fn find_or_add(&mut self, var: Var) -> usize {
        let Union { of, parents } = self;
        *of.entry(var).or_insert_with(|| {
            parents.push(parents.len());
            parents.len() - 1
        })
    }
    fn find(&mut self, mut at: usize) -> usize {
        while self.parents[at] != at {
            self.parents[at] = self.parents[self.parents[at]];
            at = self.parents[at];
        }
        at
    }
    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.find(a), self.find(b));
        self.parents[a.max(b)] = a.min(b);
    }
    /// Joins the variables of a node that may be float and bind a value.
    fn join_vars(&mut self, module: &Module, node: Node) {
        let mut first = None;
        for var in flow::vars(module, node) {
            let binds = flow::operands_of(module, var).chain(flow::results_of(module, var)).next().is_some();
            if binds && flow::legality(module, var, DType::F16) != Legality::NotFloat {
                let at = self.find_or_add(var);
                self.join(*first.get_or_insert(at), at);
            }
        }
    }
}

/// Returns the name of a value of unknown type at a node, or the operator of the node if its attributes refer to
/// attributes of a function. Such types cannot be changed at this node.
fn unknown_in(module: &Module, node: Node) -> Option<String> {
    let data = module.node(node);
    let mut values = data.formal_operands().iter().chain(data.results()).flatten();
    let unknown = values.find(|&&v| module.value(v).ty == Type::Unknown).map(|&v| name_of(module, v));
    let refers = || data.attrs().iter().any(|a| matches!(a.value, AttrValue::Reference { .. }));
    unknown.or_else(|| refers().then(|| node_key(module, node)))
}

/// Makes the decisions for the variables of each group agree. A variable that stays fp32 keeps the whole group fp32. A
/// variable with a pinned format gives the group that format, unless pins disagree or a variable lacks the format.
pub fn agree(module: &mut Module, groups: &Groups, paths: &Paths) {
    for group in groups.iter() {
        // A variable that is not f32 has its type from the model.
        let is_f32 = |&&var: &&Var| flow::bound_type(module, var).and_then(element) == Some(DType::F32);
        let members: Vec<Var> = group.members.iter().filter(is_f32).copied().collect();
        let Some((precision, reason)) = common(module, group, &members, paths) else { continue };
        for var in members {
            let decision = &mut module.node_mut(var.node).decisions[usize::from(var.var)];
            if decision.precision != Some(precision) {
                // A low variable keeps its class, as it does when the result is read again.
                let class = if precision.is_low() { decision.class } else { Class::Fixed };
                *decision = Decision { class, precision: Some(precision), reason: reason.clone() };
            }
        }
    }
}

/// Returns the element type of all these variables, with the reason, if it is decided.
fn common(module: &Module, group: &Group, members: &[Var], paths: &Paths) -> Option<(DType, Arc<Reason>)> {
    match &group.held {
        Some(FixedBy::Public(name)) => {
            return Some((DType::F32, Arc::new(Rule::PublicSequence { value: name.clone() }.into())));
        }
        Some(FixedBy::Unknown(by)) => {
            return Some((DType::F32, Arc::new(Rule::UnknownSequence { by: by.clone() }.into())));
        }
        None => {}
    }
    let because = |var: Var| {
        let rule = flow::decision(module, var).map(|d| d.reason.rule_text().into_owned());
        let node = paths.path(var.node).to_owned();
        Arc::new(Reason::new(Rule::Sequence { node, rule: rule.unwrap_or_default() }))
    };
    // The first by path does not depend on the order of nodes.
    let first = |test: &dyn Fn(&Decision) -> bool| {
        let mut found: Vec<Var> = group.members.clone();
        found.retain(|&var| flow::decision(module, var).is_some_and(test));
        found.into_iter().min_by_key(|&var| (paths.path(var.node), var.var))
    };
    let stays = |d: &Decision| {
        matches!(d.class, Class::Fixed | Class::Deny) && !d.precision.is_some_and(DType::is_low)
            || d.precision == Some(DType::F32)
    };
    if let Some(var) = first(&stays) {
        return Some((DType::F32, because(var)));
    }
    let var = first(&|d| d.precision.is_some_and(DType::is_low))?;
    let precision = |var| flow::decision(module, var).and_then(|d| d.precision);
    let wanted: BTreeSet<DType> = group.members.iter().filter_map(|&var| precision(var)).collect();
    let format = *wanted.first()?;
    let legal = |&var: &Var| flow::legality(module, var, format) == Legality::Legal;
    let fits = wanted.len() == 1 && members.iter().all(legal);
    Some((if fits { format } else { DType::F32 }, because(var)))
}
