//! Variables of values that depend on constants alone, and large constants that are stored low.
//!
//! A large constant that is only moved, an embedding for example, is stored low, whatever the format in which its
//! elements are read. A reader that wants fp32 widens the elements that were moved out of the constant, not the
//! constant.
//!
//! ```text
//! const table : f16[30522, 768]           half the bytes
//! a = Gather(table, ids)                  low: every reader of the table only moves elements
//! a.f32 = Cast(a)                         the elements that were looked up, not the table
//! b = Add(a.f32, positions)               fp32
//! ```
//!
//! The rule holds for f16 alone. In bf16, 8 bits round an embedding so much that fp32 sums that read the embedding
//! cannot make up for the loss (a Llama with outliers: error 0.43 instead of 0.03; in f16 0.005). A table whose numbers
//! are all below the normal numbers of f16 would lose digits that it needs, and stays fp32; guards find numbers beyond
//! the range.

use crate::analysis::tensors::kept_outputs;
use crate::graph::flow::{self, Var};
use crate::graph::sequences::Groups;
use crate::pass::statistics::Statistics;
use crate::policy::KeepIo;
use ampc_ir::module::Op;
use ampc_ir::op::{Class, OpKind};
use ampc_ir::ports::Ports;
use ampc_ir::views::constant_of;
use ampc_ir::{DType, Module, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// The number of elements of the smallest constant that is stored low for its size alone. The cast of a smaller
/// constant costs about as much, in the file and in time, as half the constant.
pub(super) const MIN_TABLE: u64 = 1024;

/// The least normal number of f16, 2⁻¹⁴.
const MIN_NORMAL: f32 = 1.0 / 16384.0;

/// Variables of values that depend on constants alone.
#[derive(Debug, Default)]
pub(super) struct Constants {
    /// The variables of values computed from constants alone, except variables of class allow.
    pub(super) derived: FxHashSet<Var>,
    /// The variables that move a large constant that is stored low for its size.
    pub(super) stored: FxHashSet<Var>,
}

impl Constants {
    /// Finds the variables in one walk in program order; `statistics` has the facts about the numbers of constants.
    pub(super) fn new(
        module: &Module,
        to: DType,
        keep_io: &KeepIo,
        groups: &Groups,
        statistics: &mut Statistics,
    ) -> Constants {
        let mut finder = Finder {
            module,
            to,
            groups,
            statistics,
            kept: kept_outputs(module, keep_io),
            outputs: flow::outputs(module, module.main()),
            moves: FxHashSet::default(),
            handed_in: FxHashSet::default(),
            behind_casts: BehindCasts::default(),
            found: Constants::default(),
        };
        let nodes = flow::nodes(module);
        let order: Vec<Var> = nodes.into_iter().flat_map(|node| flow::vars(module, node)).collect();
        order.iter().for_each(|&var| finder.note(var));
        if to == DType::F16 {
            finder.tables(&order);
        }
        finder.found
    }
}

/// State of the walk.
struct Finder<'m> {
    module: &'m Module,
    to: DType,
    groups: &'m Groups,
    statistics: &'m mut Statistics,
    /// Outputs that keep their types, directly or behind casts of an earlier run.
    kept: FxHashSet<Value>,
    outputs: FxHashSet<Value>,
    /// The variables that move constants and do nothing else.
    moves: FxHashSet<Var>,
    /// The ports through which calls of functions pass constants, or values moved out of constants.
    handed_in: FxHashSet<Var>,
    behind_casts: BehindCasts,
    found: Constants,
}

impl Finder<'_> {
    /// Records a variable whose operands depend on constants alone, whatever has been decided about the variable.
    fn note(&mut self, var: Var) {
        let is_port = flow::is_port(self.module, var);
        let skipped = self.groups.get(var).is_some() || is_port && !self.is_handed_in(var);
        if skipped || self.class(var).is_none() || self.is_in_other_format(var) {
            return;
        }
        let (mut n, mut all_derived, mut all_moved) = (0, true, true);
        for (_, value) in flow::operands_of(self.module, var) {
            n += 1;
            if !self.behind_casts.is_constant(self.module, value) {
                let from = flow::origin_var(self.module, value);
                all_derived &= from.is_some_and(|from| self.found.derived.contains(&from));
                all_moved &=
                    from.is_some_and(|from| self.moves.contains(&from) || self.handed_in.contains(&from));
            }
        }
        let class = self.class(var);
        if n == 0 {
            return;
        }
        if is_port {
            if all_moved {
                self.handed_in.insert(var);
            }
            return;
        }
        if all_derived && class != Some(Class::Allow) {
            self.found.derived.insert(var);
        }
        if all_moved && class == Some(Class::Clear) {
            self.moves.insert(var);
        }
    }

    fn class(&self, var: Var) -> Option<Class> {
        flow::decision(self.module, var).map(|decision| decision.class)
    }

    fn decided(&self, var: Var) -> Option<DType> {
        flow::decision(self.module, var).and_then(|decision| decision.precision)
    }

    /// True if the author or a pin requests the other 16-bit format for a variable. Such a variable counts as a
    /// variable of class allow.
    fn is_in_other_format(&self, var: Var) -> bool {
        self.decided(var).is_some_and(|decided| decided.is_low() && decided != self.to)
    }

    /// True if a variable is low whatever the cut chooses.
    fn is_low(&self, var: Var) -> bool {
        match self.decided(var) {
            Some(decided) => decided == self.to,
            None => self.class(var) == Some(Class::Allow),
        }
    }

    /// True if a port is an operand of calls of a function.
    fn is_handed_in(&self, port: Var) -> bool {
        let is_call = matches!(self.module.node(port.node).op, Op::Call(_));
        let ports = Ports::of(self.module, port.node).filter(|_| is_call);
        ports.is_some_and(|ports| ports.operand(usize::from(port.var)).is_some())
    }

    /// Finds the variables that move a large constant that is only moved. The body of a function may come before the
    /// call that passes the constant, so the walk is repeated until it finds no more variables.
    fn tables(&mut self, order: &[Var]) {
        let may = |var: &Var| self.groups.get(*var).is_none() && self.may_store_low(*var);
        let movers: Vec<Var> = order.iter().copied().filter(may).collect();
        loop {
            let before = self.found.stored.len();
            let mut known: FxHashMap<Value, bool> = FxHashMap::default();
            for &var in &movers {
                let reads = flow::operands_of(self.module, var);
                let reads: Vec<Value> =
                    reads.map(|(_, value)| flow::behind_inserted(self.module, value)).collect();
                if reads.into_iter().any(|value| *known.entry(value).or_insert_with(|| self.is_table(value)))
                {
                    self.found.stored.insert(var);
                }
            }
            if self.found.stored.len() == before {
                break;
            }
        }
    }

    /// True if a variable only moves constants, and may be low.
    fn may_store_low(&self, var: Var) -> bool {
        let moves = self.moves.contains(&var) || self.handed_in.contains(&var);
        moves
            && flow::is_free(self.module, var)
            && is_infer_or_clear(self.class(var))
            && !self.leaves_full(var)
    }

    /// True if an infer variable makes an output that keeps its type. Such an output is not rounded before it leaves.
    fn leaves_full(&self, var: Var) -> bool {
        let is_kept = |(_, value): (usize, Value)| self.kept.contains(&value);
        self.class(var) == Some(Class::Infer) && flow::results_of(self.module, var).any(is_kept)
    }

    /// True if a value is a constant that is worth a cast of the elements that are moved out of it, and if no reader
    /// needs the constant in fp32, including readers in functions that take it. A constant that a reader needs in fp32
    /// would be stored twice, or cast as a whole.
    fn is_table(&mut self, value: Value) -> bool {
        let Some(data) = constant_of(self.module, value) else {
            let port = flow::producer_var(self.module, value);
            return port
                .is_some_and(|port| self.handed_in.contains(&port) && self.found.stored.contains(&port));
        };
        if data.element_count() < MIN_TABLE || !self.is_read_by_moves(value) {
            return false;
        }
        // A constant that cannot be read is reported where it is written.
        let Ok(stats) = self.statistics.of(&data, self.to) else { return false };
        stats.is_none_or(|stats| stats.max_abs >= MIN_NORMAL || stats.nonzero == 0)
    }

    /// True if every reader of a value is low or only moves constants, including readers behind ports of calls.
    fn is_read_by_moves(&self, value: Value) -> bool {
        let mut work = vec![value];
        let mut ports: FxHashSet<Var> = FxHashSet::default();
        while let Some(value) = work.pop() {
            if self.outputs.contains(&value) {
                return false;
            }
            for reader in flow::readers(self.module, value) {
                let Some(var) = flow::var_of_reader(self.module, reader) else { return false };
                let is_port = self.handed_in.contains(&var);
                if !is_port && self.is_low(var) {
                    continue;
                }
                if !self.may_store_low(var) {
                    return false;
                }
                if is_port && ports.insert(var) {
                    work.extend(flow::results_of(self.module, var).map(|(_, value)| value));
                }
            }
        }
        true
    }
}

fn is_infer_or_clear(class: Option<Class>) -> bool {
    matches!(class, Some(Class::Infer | Class::Clear))
}

/// Finds constants behind casts. A chain of casts is walked once.
#[derive(Default)]
pub(super) struct BehindCasts {
    /// For each visited result of a cast: true if the value behind all casts is a constant.
    known: FxHashMap<Value, bool>,
}

impl BehindCasts {
    /// True if a value is a constant, whatever it was cast to.
    pub(super) fn is_constant(&mut self, module: &Module, mut value: Value) -> bool {
        let mut way = Vec::new();
        let is_constant = loop {
            if constant_of(module, value).is_some() {
                break true;
            }
            value = flow::resolve_captures(module, value);
            if let Some(&known) = self.known.get(&value) {
                break known;
            }
            let cast = module.producer(value).map(|(node, _)| module.node(node));
            let cast = cast.filter(|node| node.schema().is_some_and(|s| s.kind == OpKind::Cast));
            let Some(operand) = cast.and_then(|node| node.operand(0)) else { break false };
            way.push(value);
            value = operand;
        };
        self.known.extend(way.into_iter().map(|on_way| (on_way, is_constant)));
        is_constant
    }
}
