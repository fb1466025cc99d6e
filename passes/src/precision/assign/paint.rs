//! Which variables are low, by painting, as TensorFlow's `auto_mixed_precision` does, over type variables instead of
//! nodes:
//!
//! 1. allow variables are low, and so are variables that are 16-bit already or pinned so, in their own format;
//! 2. an infer or clear variable is low if it lies between low ones: something low upstream that is not made from
//!    constants alone, and something low downstream, through infer and clear variables. A clear variable that moves
//!    constants (an embedding) needs nothing upstream: the constant is stored low, what is computed from several of
//!    them is not rounded for it. If the constant is large it needs nothing downstream either, in f16: a table
//!    that is read in fp32 alone is stored low and what was looked up is widened, at the price of one cast;
//! 3. a clear variable connected to low ones of one format through clear variables joins them: downstream always,
//!    upstream only if all its float readers are low, so that nothing is narrowed just to be widened again;
//! 4. discrete and promote variables take what arrives: low if every float operand does, fp32 otherwise.
//!
//! What sequences and optionals tie to one element type ([`sequences`](crate::sequences)) is one variable here, which
//! is painted as state is: it is low if all that goes in is, or if all that comes out is read low.
//!
//! Steps 2 to 4 are repeated until nothing is added: what they lowered is low in the model that is written, and
//! rewriting that must add nothing.
//!
//! An infer variable that makes an output of the graph stays fp32: what leaves in fp32 is not rounded just before.
//! Everything else stays fp32 as well. Linear in nodes and uses for each
//! round; two or three rounds are usual.

mod tables;

pub(super) use self::tables::MIN_TABLE;

use super::found::Found;
use crate::analysis::tensors;
use crate::analysis::values::same_number;
use crate::graph::flow::{self, Reader, Var};
use crate::graph::sequences::Groups;
use crate::graph::var_map::VarMap;
use crate::pass::statistics::Statistics;
use crate::policy::KeepIo;
use ampc_ir::module::reason::{Placer, Why};
use ampc_ir::module::{Decision, Op};
use ampc_ir::op::{Class, Legality, OpKind};
use ampc_ir::views::constant_of;
use ampc_ir::{DType, Module, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::RefCell;

/// Paints a module.
pub(super) fn paint(module: &Module, to: DType, keep_io: &KeepIo, statistics: &mut Statistics) -> Found {
    let mut paint = Paint::new(module, to, keep_io, Some(statistics));
    paint.run();
    paint.found()
}

/// Paints what joins neighbours in the other 16-bit format, and nothing else: steps 3 and 4 for that format alone. It
/// depends on what is decided, and not on what could be painted too but a minimum cut leaves fp32: so a second rewrite
/// finds the same.
pub(super) fn paint_other(module: &Module, to: DType, keep_io: &KeepIo) -> Found {
    let is_other =
        |decision: &Decision| decision.precision.is_some_and(|dtype| dtype.is_low() && dtype != to);
    let any = |node: &Node| module.node(*node).decisions.iter().any(is_other);
    if !flow::nodes(module).iter().any(any) {
        return Found::default();
    }
    let mut paint = Paint::new(module, to, keep_io, None);
    paint.only_other = true;
    paint.run();
    paint.found()
}

/// Rounds that are worth it: more than this takes models made to be slow.
const MAX_ROUNDS: usize = 100;

struct Paint<'m> {
    module: &'m Module,
    to: DType,
    /// Sequences and optionals with what passes them through: vertices of their own.
    groups: Groups,
    /// The groups that may be lowered, by their first variables: clear, or of a class that takes any element type.
    free: VarMap<Class>,
    /// All variables, of a group the first.
    order: Vec<Var>,
    /// What is low, in which format.
    low: VarMap<DType>,
    /// Why what was painted is low.
    why: VarMap<Why>,
    /// What computes from constants alone.
    derived: FxHashSet<Var>,
    /// What moves constants and does nothing else.
    moves: FxHashSet<Var>,
    /// What calls of functions hand in that is a constant, or was only moved since.
    handed_in: FxHashSet<Var>,
    /// What moves a large constant that is stored low for its size.
    stored: FxHashSet<Var>,
    /// Of results of casts, whether what is behind all casts is a constant.
    cast_of_constant: RefCell<FxHashMap<Value, bool>>,
    /// What is known of the numbers in constants; without it none is stored low for its size.
    statistics: Option<&'m mut Statistics>,
    outputs: FxHashSet<Value>,
    /// Outputs that keep their type, as they are or cast to it by an earlier run.
    kept: FxHashSet<Value>,
    /// Whether nothing joins neighbours in the format that is lowered to.
    only_other: bool,
}

impl<'m> Paint<'m> {
    fn new(
        module: &'m Module,
        to: DType,
        keep_io: &KeepIo,
        statistics: Option<&'m mut Statistics>,
    ) -> Paint<'m> {
        let mut order = Vec::new();
        let mut low = VarMap::default();
        let groups = Groups::new(module);
        for node in flow::nodes(module) {
            for var in flow::vars(module, node) {
                let Some(decision) = flow::decision(module, var) else { continue };
                if groups.get(var).is_some() {
                    if groups.leader(var) == var {
                        order.push(var);
                    }
                    // Decided elsewhere what is in a group is decided for all of it.
                    if let Some(decided) = decision.precision.filter(|d| d.is_low()) {
                        low.insert(var, decided);
                    }
                    continue;
                }
                order.push(var);
                match decision.precision {
                    Some(decided) if decided.is_low() => {
                        low.insert(var, decided);
                    }
                    None if decision.class == Class::Allow => {
                        low.insert(var, to);
                    }
                    Some(_) | None => {}
                }
            }
        }
        let outputs = flow::outputs(module, module.main());
        let kept = tensors::kept_outputs(module, keep_io);
        let (derived, moves) = (FxHashSet::default(), FxHashSet::default());
        let mut paint = Paint {
            module,
            to,
            groups,
            free: VarMap::default(),
            order,
            low,
            why: VarMap::default(),
            derived,
            moves,
            handed_in: FxHashSet::default(),
            stored: FxHashSet::default(),
            statistics,
            cast_of_constant: RefCell::default(),
            outputs,
            kept,
            only_other: false,
        };
        paint.constants();
        paint.free_groups();
        paint
    }

    /// Which groups are free, and those of which a member is an allow variable: unless another one holds them, they
    /// are low.
    fn free_groups(&mut self) {
        for i in 0..self.order.len() {
            let var = self.order[i];
            let Some(group) = self.groups.get(var).filter(|_| self.groups.leader(var) == var) else {
                continue;
            };
            let free = |&var: &Var| {
                flow::is_free(self.module, var)
                    && flow::legality(self.module, var, self.to) == Legality::Legal
            };
            if self.low.contains_key(&var) || !group.members.iter().all(free) {
                continue;
            }
            let has = |class| {
                group
                    .members
                    .iter()
                    .any(|&var| flow::decision(self.module, var).is_some_and(|d| d.class == class))
            };
            let takes = [Class::Promote, Class::Discrete].into_iter().find(|&class| has(class));
            let wanted = has(Class::Allow);
            self.free.insert(var, takes.unwrap_or(Class::Clear));
            if wanted {
                self.lower(var, self.to, None);
            }
        }
    }

    /// Makes a variable low, and its group.
    fn lower(&mut self, var: Var, format: DType, why: Option<Why>) {
        let own = [var];
        for &member in self.groups.get(var).map_or(&own[..], |group| &group.members) {
            self.low.insert(member, format);
            self.why.extend(why.map(|why| (member, why)));
        }
    }

    /// What a variable, or its group, reads.
    fn operands(&self, var: Var) -> Vec<Value> {
        self.groups.operands(self.module, var)
    }
    /// What a variable, or its group, makes.
    fn results(&self, var: Var) -> Vec<Value> {
        self.groups.results(self.module, var)
    }
    /// The variable of a reader, of a group the first.
    fn reader(&self, reader: Reader) -> Option<Var> {
        flow::var_of_reader(self.module, reader).map(|var| self.groups.leader(var))
    }
    /// The variable that computes a value, of a group the first.
    fn origin(&self, value: Value) -> Option<Var> {
        flow::origin_var(self.module, value).map(|var| self.groups.leader(var))
    }
    /// Whether a variable, or all of its group, may still be lowered.
    fn is_free(&self, var: Var) -> bool {
        match self.groups.get(var) {
            None => flow::is_free(self.module, var),
            Some(_) => self.free.contains_key(&self.groups.leader(var)),
        }
    }

    /// What depends on nothing but constants, whatever has been decided about it.
    fn constants(&mut self) {
        for i in 0..self.order.len() {
            let var = self.order[i];
            if self.groups.get(var).is_some() {
                continue;
            }
            let is_port = flow::is_port(self.module, var);
            if is_port && !self.is_handed_in(var) {
                continue;
            }
            let (mut n, mut all_derived, mut all_moved) = (0, true, true);
            for (_, value) in flow::operands_of(self.module, var) {
                n += 1;
                if !self.is_constant(value) {
                    let from = flow::origin_var(self.module, value);
                    all_derived &= from.is_some_and(|p| self.derived.contains(&p));
                    all_moved &= from.is_some_and(|p| self.moves.contains(&p) || self.handed_in.contains(&p));
                }
            }
            // What is in the other format was wanted so, by the author or a pin, like what is allow.
            let other = self.low.get(&var).is_some_and(|&format| format != self.to);
            if n == 0 || other {
                continue;
            }
            if is_port {
                if all_moved {
                    self.handed_in.insert(var);
                }
                continue;
            }
            if all_derived && self.class(var) != Some(Class::Allow) {
                self.derived.insert(var);
            }
            if all_moved && self.class(var) == Some(Class::Clear) {
                self.moves.insert(var);
            }
        }
    }

    fn found(self) -> Found {
        let why = self.why.iter().map(|(var, &why)| (var, (Placer::Paint, why)));
        Found { why: why.collect(), low: self.low, derived: self.derived, stored: self.stored }
    }

    fn run(&mut self) {
        for _ in 0..MAX_ROUNDS {
            let before = self.low.len();
            if !self.only_other {
                self.between();
            }
            self.join();
            self.follow();
            if self.low.len() == before {
                break;
            }
        }
    }

    /// Whether the variable may be painted: infer or clear, undecided, and bound by an operand. What has its type
    /// from an attribute (Constant, ConstantOfShape, EyeLike) is made as it is; casting it costs nothing.
    fn paintable(&self, var: Var) -> bool {
        self.is_free(var)
            && matches!(self.class(var), Some(Class::Infer | Class::Clear))
            && (flow::operands_of(self.module, var).next().is_some() || self.groups.get(var).is_some())
            && !self.makes_public(var)
    }
    /// Whether an infer variable makes what leaves the graph in fp32: then it is not rounded before.
    fn makes_public(&self, var: Var) -> bool {
        self.class(var) == Some(Class::Infer)
            && flow::results_of(self.module, var).any(|(_, value)| self.kept.contains(&value))
    }
    /// The class of a variable. That of a group is clear, or that of a member that takes any element type.
    fn class(&self, var: Var) -> Option<Class> {
        match self.groups.get(var) {
            None => flow::decision(self.module, var).map(|d| d.class),
            Some(_) => self.free.get(&self.groups.leader(var)).copied(),
        }
    }
    /// Whether the operator of a variable, or each of its group, has the format, which need not be the one that is
    /// lowered to.
    fn admits(&self, var: Var, format: DType) -> bool {
        let own = [var];
        let members = self.groups.get(var).map_or(&own[..], |group| &group.members);
        let is_legal = |&member: &Var| flow::legality(self.module, member, format) == Legality::Legal;
        format == self.to || members.iter().all(is_legal)
    }

    /// Whether an operand comes for nothing in any precision: a constant, whatever it was cast to.
    fn is_constant(&self, mut value: Value) -> bool {
        let mut way = Vec::new();
        let is_constant = loop {
            if constant_of(self.module, value).is_some() {
                break true;
            }
            value = flow::resolve_captures(self.module, value);
            if let Some(&known) = self.cast_of_constant.borrow().get(&value) {
                break known;
            }
            let cast = self.module.producer(value).map(|(n, _)| self.module.node(n));
            let cast = cast.filter(|n| n.schema().is_some_and(|s| s.kind == OpKind::Cast));
            let Some(operand) = cast.and_then(|n| n.operand(0)) else { break false };
            way.push(value);
            value = operand;
        };
        // Chains are walked once.
        self.cast_of_constant.borrow_mut().extend(way.into_iter().map(|on_it| (on_it, is_constant)));
        is_constant
    }

    /// Step 2: one walk each way finds what lies between.
    fn between(&mut self) {
        let below = self.below();
        let above = self.above();
        for i in 0..self.order.len() {
            let var = self.order[i];
            if !above.contains(&var) || self.low.contains_key(&var) {
                continue;
            }
            let why = match (below.contains(&var), self.moves.contains(&var)) {
                (true, _) => Why::Between,
                (false, true) => Why::MovesConstants,
                (false, false) => continue,
            };
            self.lower(var, self.to, Some(why));
        }
        self.tables();
    }

    /// The variables that are low, in program order.
    fn lowered(&self) -> Vec<Var> {
        self.order.iter().copied().filter(|v| self.low.get(v) == Some(&self.to)).collect()
    }

    /// What something low reaches through infer and clear variables, if it is not made from constants alone.
    fn below(&self) -> FxHashSet<Var> {
        let mut below: FxHashSet<Var> = FxHashSet::default();
        let mut work = self.lowered();
        while let Some(var) = work.pop() {
            if self.derived.contains(&var) {
                continue;
            }
            for value in self.results(var) {
                for reader in flow::readers(self.module, value) {
                    let Some(reader) = self.reader(reader) else { continue };
                    if self.paintable(reader) && self.arrives(reader, &below) && below.insert(reader) {
                        work.push(reader);
                    }
                }
            }
        }
        below
    }

    /// Whether something low arrives at a variable of which one operand is reached. What calls of a function hand in
    /// is one variable, but not one value: all of it must be reached, lest a call is rounded for another's sake.
    fn arrives(&self, var: Var, below: &FxHashSet<Var>) -> bool {
        if !matches!(self.module.node(var.node).op, Op::Call(_)) || self.groups.get(var).is_some() {
            return true;
        }
        flow::operands_of(self.module, var).all(|(_, value)| {
            let from = || self.origin(value).filter(|from| !self.derived.contains(from));
            self.is_constant(value)
                || from().is_some_and(|from| self.low.get(&from) == Some(&self.to) || below.contains(&from))
        })
    }

    /// What reaches something low through infer and clear variables, but for state: it would be rounded in every
    /// iteration, and what a loop sums up is not rounded for the sake of what comes after it.
    fn above(&self) -> FxHashSet<Var> {
        let mut above: FxHashSet<Var> = FxHashSet::default();
        let mut work = self.lowered();
        while let Some(var) = work.pop() {
            for value in self.operands(var) {
                let Some(from) = self.origin(value) else { continue };
                let state = flow::is_state(self.module, from) || self.groups.get(from).is_some();
                let reaches = self.paintable(from) && !state;
                if reaches && above.insert(from) {
                    work.push(from);
                }
            }
        }
        above
    }

    /// Step 3.
    fn join(&mut self) {
        for i in 0..self.order.len() {
            let var = self.order[i];
            if self.class(var) == Some(Class::Clear) && self.may_join(var) {
                let arriving = self.arriving(var);
                self.join_if_one(var, arriving, Some(Why::BehindLow));
            }
        }
        for i in (0..self.order.len()).rev() {
            let var = self.order[i];
            if self.class(var) == Some(Class::Clear) && self.may_join(var) {
                let format = self.format_of_readers(var);
                self.join_if_one(var, format, Some(Why::BeforeLow));
            }
        }
    }

    /// The low format in which operands of a clear variable arrive, if it is one. A port takes its
    /// operand unchanged, so all of it must be low.
    fn arriving(&self, var: Var) -> Option<DType> {
        let low = |value| self.low.get(&flow::origin_var(self.module, value)?).copied();
        let operands = self.operands(var).into_iter();
        // Nothing is rounded to the other format for the sake of a neighbour.
        let any = !self.only_other && !flow::is_port(self.module, var) && self.groups.get(var).is_none();
        if any {
            let format = one(operands.filter_map(low))?;
            // What the author widened from the other format arrives in that, too: it may be one with what is so now.
            let others = || self.operands(var).into_iter().filter_map(|value| self.widened(value));
            return others().all(|other| other == format).then_some(format);
        }
        let arriving: Option<Vec<DType>> =
            operands.filter(|&v| !self.is_constant(v)).map(|v| self.low_type(v)).collect();
        one(arriving?.into_iter())
    }

    /// The 16-bit format that a cast of the author makes fp32 of.
    fn widened(&self, value: Value) -> Option<DType> {
        let (node, _) = self.module.producer(flow::resolve_captures(self.module, value))?;
        same_number(self.module, node).filter(|_| flow::inserted_result(self.module, node).is_none())?;
        self.module.value(self.module.node(node).operand(0)?).ty.dtype().filter(|d| d.is_low())
    }

    /// Step 4.
    fn follow(&mut self) {
        for i in 0..self.order.len() {
            let var = self.order[i];
            let follows = matches!(self.class(var), Some(Class::Discrete | Class::Promote));
            if follows && self.is_free(var) && !self.low.contains_key(&var) {
                let arriving: Option<Vec<DType>> =
                    self.operands(var).into_iter().map(|v| self.low_type(v)).collect();
                self.join_if_one(var, arriving.and_then(|formats| one(formats.into_iter())), None);
            }
        }
    }

    /// The 16-bit type that a value will have where it is computed.
    fn low_type(&self, value: Value) -> Option<DType> {
        let value = flow::behind_inserted(self.module, value);
        match flow::producer_var(self.module, value) {
            Some(var) => self.low.get(&var).copied(),
            None => self.module.value(value).ty.dtype().filter(|d| d.is_low()),
        }
    }

    fn may_join(&self, var: Var) -> bool {
        !self.low.contains_key(&var) && self.paintable(var)
    }

    fn join_if_one(&mut self, var: Var, format: Option<DType>, why: Option<Why>) {
        let may = |&f: &DType| self.admits(var, f) && !(self.only_other && f == self.to);
        if let Some(format) = format.filter(may) {
            self.lower(var, format, why);
        }
    }

    /// The format in which all readers read the results, if they are low and nothing leaves the graph.
    fn format_of_readers(&self, var: Var) -> Option<DType> {
        let mut formats = Vec::new();
        let group = self.groups.get(var).is_some();
        for value in self.results(var) {
            if self.outputs.contains(&value) {
                return None;
            }
            for reader in flow::readers(self.module, value) {
                let reader = self.reader(reader)?;
                // What goes round in a group is read as it is.
                if !group || reader != var {
                    formats.push(*self.low.get(&reader)?);
                }
            }
        }
        one(formats.into_iter())
    }
}

/// The format that all of these are, if they are one.
fn one(mut formats: impl Iterator<Item = DType>) -> Option<DType> {
    let first = formats.next()?;
    formats.all(|f| f == first).then_some(first)
}
