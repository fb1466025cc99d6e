//! Variables that take the other 16-bit format from their neighbours.
//!
//! A cut chooses between fp32 and one 16-bit format. If pins or the author of a model give some variables the other
//! 16-bit format, variables between them take that format too. Otherwise casts would be inserted only to compute an
//! operator in fp32 that can compute in any format:
//!
//! - a clear variable takes the format if all its operands except constants have it, or if all its readers have it and
//!   none of its results leaves the graph;
//! - a discrete or promote variable takes the format if all its operands have it.
//!
//! For example, with `a` pinned to bf16 in a rewrite to f16:
//!
//! ```text
//! a = MatMul(x, w)      bf16: pinned
//! b = Reshape(a, s)     bf16: its operand has the format
//! c = Relu(b)           bf16
//! y = MatMul(c, v)      f16: allow
//! ```
//!
//! The format of a variable depends on decisions, not on the choice of the cut, so a second rewrite finds the same
//! format. A group of variables that sequences tie together ([`sequences`](crate::sequences)) is one variable here.

use super::constants::BehindCasts;
use crate::graph::flow::{self, Reader, Var};
use crate::graph::sequences::Groups;
use crate::graph::var_map::VarMap;
use ampc_ir::module::reason::Why;
use ampc_ir::op::{Class, Legality};
use ampc_ir::{DType, Module, Value};
use rustc_hash::FxHashSet;

/// The other 16-bit format of variables, with a reason unless the class of the variable is the reason.
pub(super) type OtherFormats = VarMap<(DType, Option<Why>)>;

/// Returns the free variables that take the 16-bit format other than `to` from their neighbours. Linear in nodes and
/// uses per round; two rounds are usual.
pub(super) fn other_formats(module: &Module, to: DType, groups: &Groups) -> OtherFormats {
    let mut join = Join::new(module, to, groups);
    if join.low.iter().any(|(_, &format)| format != to) {
        for _ in 0..MAX_ROUNDS {
            let before = join.found.len();
            join.round();
            if join.found.len() == before {
                break;
            }
        }
    }
    join.found
}

/// The maximal number of rounds. Only models that are constructed to be slow need more.
const MAX_ROUNDS: usize = 100;

struct Join<'m> {
    module: &'m Module,
    to: DType,
    groups: &'m Groups,
    /// All variables in program order; for a group, its first variable.
    order: Vec<Var>,
    /// The 16-bit formats that are known: decided, of class allow, or found.
    low: VarMap<DType>,
    outputs: FxHashSet<Value>,
    behind_casts: BehindCasts,
    found: OtherFormats,
}

impl<'m> Join<'m> {
    fn new(module: &'m Module, to: DType, groups: &'m Groups) -> Join<'m> {
        let nodes = flow::nodes(module);
        let vars = nodes.into_iter().flat_map(|node| flow::vars(module, node));
        let vars: Vec<Var> = vars.filter(|&var| flow::decision(module, var).is_some()).collect();
        let mut join = Join {
            module,
            to,
            groups,
            order: vars.iter().copied().filter(|&var| groups.leader(var) == var).collect(),
            low: VarMap::default(),
            outputs: flow::outputs(module, module.main()),
            behind_casts: BehindCasts::default(),
            found: OtherFormats::default(),
        };
        for var in vars {
            let decision = flow::decision(module, var).and_then(|d| match d.precision {
                None if d.class == Class::Allow && groups.get(var).is_none() => Some(to),
                decided => decided.filter(|decided| decided.is_low()),
            });
            join.low.extend(decision.map(|format| (var, format)));
        }
        for var in join.order.clone() {
            if groups.get(var).is_some() && join.has_member(var, Class::Allow) && join.is_free(var) {
                join.set(var, to);
            }
        }
        join
    }

    /// Visits the clear variables forwards and backwards, then the discrete and promote variables forwards.
    fn round(&mut self) {
        for i in 0..self.order.len() {
            let var = self.order[i];
            if self.may_join(var, &[Class::Clear]) {
                let format = self.format_of_operands(var, true);
                self.join(var, format, Some(Why::BehindLow));
            }
        }
        for i in (0..self.order.len()).rev() {
            let var = self.order[i];
            if self.may_join(var, &[Class::Clear]) {
                let format = self.format_of_readers(var);
                self.join(var, format, Some(Why::BeforeLow));
            }
        }
        for i in 0..self.order.len() {
            let var = self.order[i];
            if self.may_join(var, &[Class::Discrete, Class::Promote]) {
                let format = self.format_of_operands(var, false);
                self.join(var, format, None);
            }
        }
    }

    fn members(&self, var: Var) -> Vec<Var> {
        self.groups.get(var).map_or_else(|| vec![var], |group| group.members.clone())
    }

    fn has_member(&self, leader: Var, class: Class) -> bool {
        let is_of_class = |&var: &Var| flow::decision(self.module, var).is_some_and(|d| d.class == class);
        self.members(leader).iter().any(is_of_class)
    }

    /// True if a variable, or all of its group, may still take a format.
    fn is_free(&self, leader: Var) -> bool {
        let is_legal = |var| flow::legality(self.module, var, self.to) == Legality::Legal;
        let is_group = self.groups.get(leader).is_some();
        let free = |&var: &Var| flow::is_free(self.module, var) && (!is_group || is_legal(var));
        !self.low.contains_key(&leader) && self.members(leader).iter().all(free)
    }

    /// The class of a variable. A group has the class of a member that takes any element type, else it is clear.
    fn class(&self, leader: Var) -> Option<Class> {
        if self.groups.get(leader).is_none() {
            return flow::decision(self.module, leader).map(|decision| decision.class);
        }
        let takes =
            [Class::Promote, Class::Discrete].into_iter().find(|&class| self.has_member(leader, class));
        Some(takes.unwrap_or(Class::Clear))
    }

    /// True if a variable is free, has one of these classes, and is bound by an operand. A variable that an attribute
    /// types (Constant, EyeLike) costs no cast.
    fn may_join(&self, leader: Var, classes: &[Class]) -> bool {
        let is_bound =
            || self.groups.get(leader).is_some() || flow::operands_of(self.module, leader).next().is_some();
        !self.low.contains_key(&leader)
            && self.class(leader).is_some_and(|class| classes.contains(&class))
            && self.is_free(leader)
            && is_bound()
    }

    /// The 16-bit format that all operands have, not counting constants if `constants_are_free`.
    fn format_of_operands(&mut self, leader: Var, constants_are_free: bool) -> Option<DType> {
        let mut formats = Vec::new();
        for value in self.groups.operands(self.module, leader) {
            if !constants_are_free || !self.behind_casts.is_constant(self.module, value) {
                formats.push(self.format_of(value)?);
            }
        }
        common(formats)
    }

    /// The 16-bit format that a value will have at its producer.
    fn format_of(&self, value: Value) -> Option<DType> {
        let value = flow::behind_inserted(self.module, value);
        match flow::producer_var(self.module, value) {
            Some(var) => self.low.get(&var).copied(),
            None => self.module.value(value).ty.dtype().filter(|dtype| dtype.is_low()),
        }
    }

    /// The 16-bit format that all readers of the results have, if no result leaves the graph.
    fn format_of_readers(&self, leader: Var) -> Option<DType> {
        let mut formats = Vec::new();
        let is_group = self.groups.get(leader).is_some();
        for value in self.groups.results(self.module, leader) {
            if self.outputs.contains(&value) {
                return None;
            }
            for reader in flow::readers(self.module, value) {
                let reader = self.leader_of(reader)?;
                // A value that stays in a group has the format of the group.
                if !is_group || reader != leader {
                    formats.push(*self.low.get(&reader)?);
                }
            }
        }
        common(formats)
    }

    fn leader_of(&self, reader: Reader) -> Option<Var> {
        flow::var_of_reader(self.module, reader).map(|var| self.groups.leader(var))
    }

    /// Gives a variable, or its group, a format other than the format that the rewrite lowers to.
    fn join(&mut self, leader: Var, format: Option<DType>, why: Option<Why>) {
        let has = |&var: &Var| format.is_some_and(|f| flow::legality(self.module, var, f) == Legality::Legal);
        let Some(format) = format.filter(|&format| format != self.to) else { return };
        if self.members(leader).iter().all(has) {
            self.set(leader, format);
            self.found.insert(leader, (format, why));
        }
    }

    fn set(&mut self, leader: Var, format: DType) {
        for member in self.members(leader) {
            self.low.insert(member, format);
        }
    }
}

/// The format that all elements of the list have, if they are equal.
fn common(formats: Vec<DType>) -> Option<DType> {
    let first = *formats.first()?;
    formats.iter().all(|&format| format == first).then_some(first)
}
