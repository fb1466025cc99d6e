//! Large constants that are only moved, an embedding for example: they are stored low, whoever reads what was moved out
//! of them, and what is read in fp32 is widened behind the move.
//!
//! ```text
//! const table : f16[30522, 768]           half the bytes
//! a = Gather(table, ids)                  low: nothing reads the table but moves
//! a.f32 = Cast(a)                         what was looked up, and not the table
//! b = Add(a.f32, positions)               fp32
//! ```
//!
//! For f16 alone: the 8 bits of bf16 round an embedding so much that what is summed onto it in fp32 cannot make up for
//! it (a Llama with outliers: error 0.43 instead of 0.03; in f16 0.005). A table all of whose numbers are below the
//! normal ones of f16 would be left with fewer bits than it needs, and stays fp32; guards see to what is beyond the range.

use super::Paint;
use crate::graph::flow::{self, Var};
use ampc_ir::module::Op;
use ampc_ir::module::reason::Why;
use ampc_ir::ports::Ports;
use ampc_ir::views::constant_of;
use ampc_ir::{DType, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// Elements of the smallest constant that is stored low for its size alone: below, the cast takes up in the file
/// and in time about what it saves.
pub(in crate::precision::assign) const MIN_TABLE: u64 = 1024;

/// The least normal number of f16, 2⁻¹⁴.
const MIN_NORMAL: f32 = 1.0 / 16384.0;

impl Paint<'_> {
    /// The end of step 2: what moves a large constant that is only moved is low, wherever it moves it to.
    pub(super) fn tables(&mut self) {
        if self.to != DType::F16 {
            return;
        }
        let module = self.module;
        let mut known: FxHashMap<Value, bool> = FxHashMap::default();
        for i in 0..self.order.len() {
            let var = self.order[i];
            if !self.may_store_low(var) || self.stored.contains(&var) {
                continue;
            }
            let reads = flow::operands_of(module, var);
            let reads: Vec<Value> = reads.map(|(_, value)| flow::behind_inserted(module, value)).collect();
            if reads.into_iter().any(|v| *known.entry(v).or_insert_with(|| self.is_table(v))) {
                self.stored.insert(var);
                if self.low.insert(var, self.to).is_none() {
                    self.why.insert(var, Why::StoredLow);
                }
            }
        }
    }

    /// Whether a variable moves nothing but constants, and may be low.
    fn may_store_low(&self, var: Var) -> bool {
        (self.moves.contains(&var) || self.handed_in.contains(&var))
            && self.paintable(var)
            && self.low.get(&var).is_none_or(|&format| format == self.to)
    }

    /// Whether a value is a constant worth a cast of what is moved out of it, and is left in fp32 by no reader, in
    /// functions that it is handed into either: then it would be stored twice, or cast as a whole.
    fn is_table(&mut self, value: Value) -> bool {
        let Some(data) = constant_of(self.module, value) else {
            let port = flow::producer_var(self.module, value);
            return port.is_some_and(|p| self.handed_in.contains(&p) && self.stored.contains(&p));
        };
        if data.element_count() < MIN_TABLE || !self.is_read_by_moves(value) {
            return false;
        }
        let stats = self.statistics.as_deref_mut().map(|statistics| statistics.of(&data, self.to));
        // What cannot be read is an error where it is written.
        let Some(Ok(stats)) = stats else { return false };
        stats.is_none_or(|stats| stats.max_abs >= MIN_NORMAL || stats.nonzero == 0)
    }

    /// Whether all that reads a value is low, or moves nothing but constants, behind ports of calls as well.
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
                if !is_port && self.low.get(&var) == Some(&self.to) {
                    continue;
                }
                if !self.may_store_low(var) {
                    return false;
                }
                if is_port && ports.insert(var) {
                    work.extend(self.results(var));
                }
            }
        }
        true
    }

    /// Whether a port is what calls of a function hand in.
    pub(super) fn is_handed_in(&self, port: Var) -> bool {
        let is_call = matches!(self.module.node(port.node).op, Op::Call(_));
        let ports = Ports::of(self.module, port.node).filter(|_| is_call);
        ports.is_some_and(|ports| ports.operand(usize::from(port.var)).is_some())
    }
}
