//! The solution of the choice: the format and the reason of every free variable.

use super::{Choice, LOW};
use crate::analysis::tensors::{End, Producer, Tensor};
use crate::graph::flow::{self, Var};
use crate::precision::assign::found::{Found, Held};
use crate::precision::assign::optimum::Optimum;
use crate::precision::between::is_between;
use crate::precision::cut::{Contradiction, DEFAULT_BUDGET, Label, Vertex};
use ampc_ir::DType;
use ampc_ir::module::reason::Why;
use rustc_hash::FxHashSet;

impl Choice<'_> {
    /// Chooses.
    ///
    /// Says how many casts there are besides, counted by tensors and formats.
    pub(in crate::precision::assign) fn solve(&self) -> Result<(Found, Optimum, usize), Contradiction> {
        let mut solution = self.problem.solve(DEFAULT_BUDGET)?;
        self.ground(&mut solution.labels);
        let cost = self.problem.cost(&solution.labels).expect("what is held stays so");
        let mut found = Found::default();
        for &var in &self.order {
            let leader = self.tensors.groups.leader(var);
            let end = if self.arriving.contains(&var) { self.cast_end(var) } else { End::Var(leader) };
            let format = self.format(end, &solution.labels);
            found.low.extend(format.map(|format| (var, format)));
            found.why.extend(self.why(var, leader, format).map(|why| (var, why)));
        }
        let optimum = Optimum {
            objective: self.costs.objective(),
            cost,
            lower_bound: solution.lower_bound,
            optimal: solution.optimal && cost == solution.lower_bound,
            scale: self.costs.scale(),
            assumptions: self.costs.assumptions(),
            merged: 0,
            predicted: None,
            elsewhere: None,
            carried_out: false,
            timed: self.timed.clone(),
            tensors: self.all.len(),
            rounded: Vec::new(),
        };
        Ok((found, optimum, self.casts(&solution.labels)))
    }

    /// The casts of tensors: one for each format that a tensor is read in and not made in.
    fn casts(&self, labels: &[Label]) -> usize {
        let of_tensor = |tensor: &Tensor| {
            let Producer::End(from) = tensor.producer else { return 0 };
            let made = self.format(from, labels);
            let read = tensor.readers.iter().filter(|reading| reading.fused.is_none());
            let formats =
                read.map(|reading| self.format(reading.end, labels)).filter(|&format| format != made);
            formats.collect::<FxHashSet<_>>().len()
        };
        self.all.iter().map(of_tensor).sum()
    }

    /// The reason of the format of a variable, if it does not follow from the class.
    fn why(&self, var: Var, leader: Var, format: Option<DType>) -> Option<Why> {
        let negligible = self.negligible.get(&leader);
        let why = match (self.held.get(&leader)?, format) {
            (Held::Other(_), _) => self.other.get(&leader)?.1?,
            (Held::Low, _) if self.is_stored_low(leader) => Why::StoredLow,
            (Held::Free, None) if let Some(&why) = negligible => why,
            (Held::Free, Some(_)) if negligible.is_some() => return None,
            (Held::Free, _) if self.tensors.follows(leader) => Why::FollowsOperands,
            // The reason that the kernel of the target gives stays.
            (Held::Free, Some(_)) if self.is_between(var) => return None,
            (Held::Free, None) if self.is_between(var) => Why::NotBetween,
            (Held::Free, None) if self.unprofitable.contains(&var) => Why::Unrounded,
            (Held::Free, Some(_)) => Why::CheapestLow,
            (Held::Free, None) => Why::CheapestFull,
            (Held::Full, None) if self.sums.contains(&var) => Why::LoopState,
            (Held::Full, None) => *self.margins.get(&leader)?,
            (Held::Full | Held::Low, _) => return None,
        };
        Some(why)
    }

    fn is_between(&self, var: Var) -> bool {
        flow::decision(self.tensors.module, var).is_some_and(is_between)
    }

    /// The 16-bit format of an end.
    fn format(&self, end: End, labels: &[Label]) -> Option<DType> {
        if let Some(other) = self.other(end) {
            return Some(other);
        }
        let low = match end {
            End::Full | End::Other(_) => false,
            End::Low => true,
            End::Var(_) | End::Source(_) => {
                self.vertices.get(end).is_some_and(|vertex| labels[vertex.index()] == Label::Low)
            }
        };
        low.then_some(self.tensors.to)
    }

    /// The producer of the operand of a cast of the author, which takes any format.
    fn cast_end(&self, var: Var) -> End {
        let operand = flow::operands_of(self.tensors.module, var).next().map(|(_, value)| value);
        match operand.map(|value| self.tensors.producer_of(value)) {
            Some(Producer::End(end)) => end,
            Some(Producer::Constant) | None => End::Full,
        }
    }

    /// Makes low vertices full that are connected, through low ones, with nothing that gains: nothing costs more by
    /// it, or they would not have been low only because that costs no more either.
    fn ground(&self, labels: &mut [Label]) {
        let components = self.components(labels);
        let mut grounded: FxHashSet<usize> = self.gaining().map(|vertex| components.of(vertex)).collect();
        for &(var, time) in &self.timed {
            if time.full > time.low {
                let leader = self.tensors.groups.leader(var);
                grounded.insert(components.of(self.vertices.of(leader)));
            }
        }
        // A cast from another 16-bit format may cost less than one to fp32.
        for tensor in &self.all {
            if matches!(tensor.producer, Producer::End(end) if self.other(end).is_some()) {
                let low = tensor.readers.iter().filter_map(|reading| self.low_vertex(reading.end, labels));
                grounded.extend(low.map(|vertex| components.of(vertex)));
            }
        }
        for vertex in (LOW.0 + 1..self.problem.vertices()).map(Vertex) {
            if !grounded.contains(&components.of(vertex)) {
                labels[vertex.index()] = Label::Full;
            }
        }
    }
}
