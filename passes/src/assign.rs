//! `assign`: chooses the element type of every type variable that is still free.
//!
//! `assign{by=paint}` paints, as TensorFlow's `auto_mixed_precision` does, over type variables instead of nodes:
//!
//! 1. allow variables are low, and so are variables that are 16-bit already;
//! 2. an infer or clear variable is low if it lies between low ones: something low upstream and something low
//!    downstream, through infer and clear variables. A clear variable that only moves constants (an embedding)
//!    counts as having something low upstream, since a constant is converted for nothing;
//! 3. a clear variable connected to a low one through clear variables joins it: downstream always, upstream only
//!    if all its float readers are low, so that nothing is narrowed just to be widened again;
//! 4. discrete and promote variables take what arrives: low if every float operand does, fp32 otherwise.
//!
//! Steps 2 to 4 are taken until nothing changes, so that a second rewrite finds nothing to do: two rounds nearly always.
//!
//! An infer variable that makes an output of the graph stays fp32: what leaves in fp32 is not rounded just before.
//! Everything else stays fp32 as well. Linear in nodes and uses, but for step 3's upstream part, which is linear in the
//! length of clear chains.

use crate::flow::{self, Var};
use crate::insert_casts::KeepIo;
use crate::pass::{Changed, Invariants, Pass, PassCx, PassError};
use ampc_ir::module::{Decision, Reason};
use ampc_ir::op::{Class, OpKind};
use ampc_ir::verify::name_of;
use ampc_ir::views::constant_of;
use ampc_ir::{DType, Module, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// The pass, by painting.
#[derive(Clone, Debug)]
pub struct Assign {
    /// The format to lower to: f16 or bf16.
    pub to: DType,
    /// Which outputs of the graph keep their types.
    pub keep_io: KeepIo,
}

impl Pass for Assign {
    fn name(&self) -> &'static str {
        "assign"
    }
    fn options(&self) -> Vec<(&'static str, String)> {
        let mut options = vec![("by", "paint".into()), ("to", self.to.to_string())];
        options.extend(self.keep_io.spelling().map(|s| ("keep-io", s)));
        options
    }
    fn requires(&self) -> Invariants {
        Invariants::CORE.with(Invariants::CLASSIFIED)
    }
    fn ensures(&self) -> Invariants {
        Invariants::CORE.with(Invariants::CLASSIFIED).with(Invariants::ASSIGNED)
    }
    fn run(&self, module: &mut Module, _cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut paint = Paint::new(module, self.to, &self.keep_io);
        // Until nothing changes, so that a second rewrite finds nothing to do; two rounds nearly always.
        loop {
            let painted = paint.low.len();
            paint.between();
            paint.join_clear();
            paint.take_what_arrives();
            if paint.low.len() == painted {
                break;
            }
        }
        let low = paint.low;
        let mut changed = false;
        for var in discrete_and_rest(module, &low, self.to) {
            changed = true;
            let (var, precision) = var;
            let lowered = low.contains(&var);
            let decision = &mut module.node_mut(var.node).decisions[usize::from(var.var)];
            if lowered && matches!(decision.class, Class::Infer | Class::Clear) {
                explain(decision, "paint");
            }
            decision.precision = Some(precision);
        }
        Ok(Changed::when(changed))
    }
}

fn explain(decision: &mut Decision, rule: &str) {
    decision.reason = Arc::new(Reason {
        rule: rule.to_owned(),
        evidence: format!("{} between low-precision neighbours", decision.class),
    });
}

/// Element types of all free variables, in program order: what is painted low, then what discrete variables meet.
fn discrete_and_rest(module: &Module, low: &FxHashSet<Var>, to: DType) -> Vec<(Var, DType)> {
    let mut chosen: FxHashMap<Var, DType> = FxHashMap::default();
    let mut order = Vec::new();
    for node in module.nodes(module.main()) {
        let Some(schema) = module.node(node).schema() else { continue };
        for var in flow::vars(node, schema) {
            let Some(decision) = flow::decision(module, var).filter(|d| d.precision.is_none()) else {
                continue;
            };
            let precision = match decision.class {
                Class::Discrete | Class::Promote => arriving(module, var, &chosen),
                Class::Allow | Class::Infer | Class::Clear if low.contains(&var) => to,
                Class::Allow | Class::Infer | Class::Clear | Class::Deny => DType::F32,
                Class::Fixed => continue,
            };
            chosen.insert(var, precision);
            order.push((var, precision));
        }
    }
    order
}

/// The element type that the float operands of a variable will have, f32 if they differ.
fn arriving(module: &Module, var: Var, chosen: &FxHashMap<Var, DType>) -> DType {
    let mut types = flow::operands_of(module, var).map(|(_, value)| {
        let producer = flow::producer_var(module, value);
        let decided = producer.and_then(|p| {
            chosen.get(&p).copied().or_else(|| flow::decision(module, p).and_then(|d| d.precision))
        });
        decided.or_else(|| module.value(value).ty.element_dtype()).unwrap_or(DType::F32)
    });
    let first = types.next().unwrap_or(DType::F32);
    if first.is_low() && types.all(|t| t == first) { first } else { DType::F32 }
}

struct Paint<'m> {
    module: &'m Module,
    to: DType,
    order: Vec<Var>,
    low: FxHashSet<Var>,
    outputs: FxHashSet<Value>,
    /// Outputs that keep their type.
    kept: FxHashSet<Value>,
}

impl<'m> Paint<'m> {
    fn new(module: &'m Module, to: DType, keep_io: &KeepIo) -> Paint<'m> {
        let mut order = Vec::new();
        let mut low = FxHashSet::default();
        for node in module.nodes(module.main()) {
            let Some(schema) = module.node(node).schema() else { continue };
            for var in flow::vars(node, schema) {
                let Some(decision) = flow::decision(module, var) else { continue };
                order.push(var);
                let decided_low = decision.precision.is_some_and(|p| p == to || p.is_low());
                if decided_low || (decision.class == Class::Allow && decision.precision.is_none()) {
                    low.insert(var);
                }
            }
        }
        let outputs = flow::outputs(module, module.main());
        let kept = outputs.iter().copied().filter(|&v| keep_io.keeps(&name_of(module, v))).collect();
        Paint { module, to, order, low, outputs, kept }
    }

    /// Whether the variable may be painted: infer or clear, undecided, and bound by an operand. What has its type
    /// from an attribute (Constant, ConstantOfShape, EyeLike) is made as it is; casting it costs nothing.
    fn paintable(&self, var: Var) -> bool {
        flow::is_free(self.module, var)
            && matches!(self.class(var), Some(Class::Infer | Class::Clear))
            && flow::operands_of(self.module, var).next().is_some()
            && !self.makes_public(var)
    }
    /// Whether an infer variable makes what leaves the graph in fp32: then it is not rounded before.
    fn makes_public(&self, var: Var) -> bool {
        self.class(var) == Some(Class::Infer)
            && flow::results_of(self.module, var).any(|(_, value)| {
                self.kept.contains(&value)
                    || self.module.uses(value).any(|(n, _)| {
                        flow::inserted_result(self.module, n).is_some_and(|v| self.kept.contains(&v))
                    })
            })
    }
    fn class(&self, var: Var) -> Option<Class> {
        flow::decision(self.module, var).map(|d| d.class)
    }

    /// Whether an operand comes for nothing in any precision: a constant, whatever it was cast to.
    fn is_constant(&self, mut value: Value) -> bool {
        while constant_of(self.module, value).is_none() {
            let cast = self.module.producer(value).map(|(n, _)| self.module.node(n));
            match cast
                .filter(|n| n.schema().is_some_and(|s| s.kind == OpKind::Cast))
                .and_then(|n| n.operand(0))
            {
                Some(operand) => value = operand,
                None => return false,
            }
        }
        true
    }

    /// Step 2. Program order is topological, so one walk each way finds what lies between.
    fn between(&mut self) {
        let mut below: FxHashSet<Var> = FxHashSet::default();
        let mut moved_constants: FxHashSet<Var> = FxHashSet::default();
        for &var in &self.order {
            let clear = self.class(var) == Some(Class::Clear);
            // One that is low already, by an earlier run perhaps, moves constants no less.
            let paintable = self.paintable(var);
            if !(paintable || clear && self.low.contains(&var)) {
                continue;
            }
            let (mut any_low, mut all_constant) = (false, true);
            for (_, value) in flow::operands_of(self.module, var) {
                if self.is_constant(value) {
                    continue;
                }
                let from = flow::origin_var(self.module, value);
                let moved = from.is_some_and(|p| moved_constants.contains(&p));
                any_low |= !moved && from.is_some_and(|p| self.low.contains(&p) || below.contains(&p));
                all_constant &= moved;
            }
            if all_constant && clear {
                moved_constants.insert(var);
            } else if any_low && paintable {
                below.insert(var);
            }
        }
        below.extend(moved_constants);
        let mut above: FxHashSet<Var> = FxHashSet::default();
        for &var in self.order.iter().rev() {
            if !self.paintable(var) {
                continue;
            }
            let reaches = flow::results_of(self.module, var).any(|(_, value)| {
                flow::readers(self.module, value)
                    .into_iter()
                    .filter_map(|(n, s)| flow::reader_var(self.module, n, s))
                    .any(|r| self.low.contains(&r) || above.contains(&r))
            });
            if reaches {
                above.insert(var);
            }
        }
        self.low.extend(below.intersection(&above).copied().collect::<Vec<_>>());
    }

    /// Step 3.
    fn join_clear(&mut self) {
        for i in 0..self.order.len() {
            let var = self.order[i];
            if self.class(var) == Some(Class::Clear) && self.paintable(var) && !self.low.contains(&var) {
                let from_low = flow::operands_of(self.module, var)
                    .any(|(_, v)| flow::origin_var(self.module, v).is_some_and(|p| self.low.contains(&p)));
                if from_low {
                    self.low.insert(var);
                }
            }
        }
        for i in (0..self.order.len()).rev() {
            let var = self.order[i];
            if self.class(var) == Some(Class::Clear)
                && self.paintable(var)
                && !self.low.contains(&var)
                && self.only_low_readers(var)
            {
                self.low.insert(var);
            }
        }
    }

    /// Step 4, as far as it is certain: discrete and promote variables all of whose operands are low in one format.
    fn take_what_arrives(&mut self) {
        for i in 0..self.order.len() {
            let var = self.order[i];
            if !matches!(self.class(var), Some(Class::Discrete | Class::Promote))
                || !flow::is_free(self.module, var)
                || self.low.contains(&var)
            {
                continue;
            }
            let mut formats = flow::operands_of(self.module, var).map(|(_, value)| {
                let from = flow::origin_var(self.module, value).filter(|p| self.low.contains(p))?;
                Some(flow::decision(self.module, from)?.precision.unwrap_or(self.to))
            });
            let Some(Some(first)) = formats.next() else { continue };
            if formats.all(|f| f == Some(first)) {
                self.low.insert(var);
            }
        }
    }

    /// Whether results are read, by low variables only, and leave the graph nowhere.
    fn only_low_readers(&self, var: Var) -> bool {
        let mut any = false;
        for (_, value) in flow::results_of(self.module, var) {
            if self.outputs.contains(&value) {
                return false;
            }
            for (node, slot) in flow::readers(self.module, value) {
                any = true;
                if !flow::reader_var(self.module, node, slot).is_some_and(|r| self.low.contains(&r)) {
                    return false;
                }
            }
        }
        any
    }
}
