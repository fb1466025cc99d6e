//! Prices of roundings: the choice of formats that trades predicted time for error.
//!
//! Each value has an error, the change of a result that rounding the value causes. With a price for error, the minimum cut
//! adds *price · error* to every cast that narrows a value and to every low variable that computes a value or reads a
//! constant. So its minimum is the least time plus the price of the errors that remain. Products may be fp32 then. For
//! example, with products that save 10 and a cast that costs 1:
//!
//! ```text
//! %h = MatMul(%x, %w)      rounding %h: error 0.1
//! %d = MatMul(%h, %a)      rounding %d: error 5
//! %y = MatMul(%d, %v)      rounding %y: error 0.1
//!
//! price 1     all low: 5.2 of error cost less than 10 of time
//! price 4     %d and %y in fp32, which removes the errors of %d and %y: 20 and a cast less than 4 · 5.1
//! price 200   all in fp32: 10 less than 200 · 0.1
//! ```
//!
//! The second product alone in fp32 would not help: its result would be rounded for the third product.

use super::Assign;
use super::found::Found;
use crate::graph::flow::{self, Var};
use crate::pass::PassError;
use crate::pass::statistics::Statistics;
use crate::precision::classify::quantized::hold_quantized;
use crate::precision::cut::Problem;
use ampc_ir::entity::SecondaryMap;
use ampc_ir::op::{self, OpKind};
use ampc_ir::{Module, Node, Value};
use rustc_hash::FxHashSet;

/// The errors of values, with a price.
#[derive(Clone, Debug)]
pub(super) struct Prices<'a> {
    errors: &'a SecondaryMap<Value, f64>,
    /// The cost of an error of 1.
    price: f64,
    /// The most that a rounding may cost, so that no sum of costs overflows.
    most: i64,
    /// Variables that cost the most if they are low.
    full: FxHashSet<Var>,
}

impl<'a> Prices<'a> {
    fn new(module: &Module, errors: &'a SecondaryMap<Value, f64>, price: f64) -> Prices<'a> {
        let ends = |node: &Node| module.node(*node).operands().len() + module.node(*node).results().len();
        let ends: usize = module.program_nodes().iter().map(ends).sum();
        // A value is charged for its producer and for each reader at most, in a few terms.
        let terms = i64::try_from(ends).unwrap_or(i64::MAX).saturating_mul(32).max(1);
        Prices { errors, price, most: (Problem::MAX_TOTAL / terms).max(1), full: FxHashSet::default() }
    }

    /// The cost of a variable for being low, whatever it rounds.
    pub(super) fn of_low(&self, var: Var) -> i64 {
        if self.full.contains(&var) { self.most } else { 0 }
    }

    /// The cost of rounding a value.
    pub(super) fn of(&self, value: Value) -> i64 {
        let cost = self.errors[value] * self.price;
        #[expect(clippy::cast_possible_truncation, reason = "a conversion of floats to integers saturates")]
        let cost = if cost > 0.0 { cost.ceil() as i64 } else { 0 };
        cost.min(self.most)
    }
}

/// True if a low variable rounds its results: false for ports, and for operators that move, select or negate numbers, whose
/// operands are rounded already.
pub(super) fn rounds(module: &Module, var: Var) -> bool {
    use OpKind::{Abs, Max, MaxPool, Min, Neg, ReduceMax, ReduceMin, Relu, Where};
    let Some(kind) = module.node(var.node).schema().map(|schema| schema.kind) else { return false };
    let selects = matches!(kind, Abs | Max | MaxPool | Min | Neg | ReduceMax | ReduceMin | Relu | Where);
    !selects && op::moves(kind, 0).is_none() && !flow::is_port(module, var)
}

/// A module in front of `assign`, for which formats are chosen several times.
#[derive(Debug)]
pub struct Choices {
    assign: Assign,
    module: Module,
    statistics: Statistics,
    low: FxHashSet<Var>,
    cost: i64,
}

impl Choices {
    /// Chooses without a price for error, as the pass does.
    ///
    /// # Errors
    /// If constants cannot be read.
    pub fn new(assign: Assign, module: &Module) -> Result<Choices, PassError> {
        let mut module = module.clone();
        if assign.keeps_quantized {
            hold_quantized(&mut module);
        }
        super::free_casts(&mut module, assign.to);
        let mut statistics = Statistics::default();
        let (found, optimum, _) = assign.cut(&module, &mut statistics, false, None)?;
        Ok(Choices { assign, module, statistics, low: vars(&found), cost: optimum.cost })
    }

    /// The low variables of the choice without a price for error.
    pub fn low(&self) -> &FxHashSet<Var> {
        &self.low
    }

    /// The cost of that choice ([`Optimum::cost`](super::Optimum::cost)).
    pub fn cost(&self) -> i64 {
        self.cost
    }

    /// The least cost with these variables in fp32. A product in fp32 costs the casts around it beside its time, so that a
    /// choice with more low products costs less also where products are too small to gain.
    ///
    /// # Errors
    /// If constants cannot be read.
    pub fn cost_with(&mut self, full: FxHashSet<Var>) -> Result<i64, PassError> {
        let errors = SecondaryMap::default();
        let mut prices = Prices::new(&self.module, &errors, 0.0);
        prices.full = full;
        let (_, optimum, _) = self.assign.cut(&self.module, &mut self.statistics, false, Some(&prices))?;
        Ok(optimum.cost)
    }

    /// The low variables of the choice of least cost, where rounding a value costs its error times `price`, in the
    /// units of [`cost`](Self::cost). Values without an error cost nothing.
    ///
    /// # Errors
    /// If constants cannot be read.
    pub fn low_at_price(
        &mut self,
        errors: &SecondaryMap<Value, f64>,
        price: f64,
    ) -> Result<FxHashSet<Var>, PassError> {
        let prices = Prices::new(&self.module, errors, price);
        let (found, ..) = self.assign.cut(&self.module, &mut self.statistics, false, Some(&prices))?;
        Ok(vars(&found))
    }
}

fn vars(found: &Found) -> FxHashSet<Var> {
    found.low.iter().map(|(var, _)| var).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::paths::Paths;
    use crate::pipeline::Pipeline;
    use crate::policy::Policy;
    use ampc_ir::DType;
    use ampc_ir::infer::infer_module;
    use ampc_ir::text::{NoData, parse};

    /// Three products, the second of which makes a value with a large error.
    const CHAIN: &str = "module ir=10\nopset ai.onnx=20\n\ngraph @main {\n  input %x : f32[256, 256]\n  \
        const %w : f32[256, 256] = random(1, 1.0)\n  const %a : f32[256, 256] = random(2, 1.0)\n  \
        const %v : f32[256, 256] = random(3, 1.0)\n  %h = MatMul(%x, %w) : ? @h\n  %d = MatMul(%h, %a) : ? @d\n  \
        %y = MatMul(%d, %v) : ? @y\n  output %y\n}\n";

    fn decided() -> Module {
        let mut module = parse(CHAIN, &NoData).unwrap();
        infer_module(&mut module).unwrap();
        let pipeline = Pipeline::parse("classify, guard, taint", &Policy::preset).unwrap();
        pipeline.run(&mut module, true, &mut ()).unwrap();
        module
    }

    fn errors_of(module: &Module, named: &[(&str, f64)]) -> SecondaryMap<Value, f64> {
        let mut errors = SecondaryMap::default();
        for value in module.defined(module.main()) {
            let name = ampc_ir::verify::name_of(module, value);
            errors[value] = named.iter().find(|(known, _)| *known == name).map_or(0.0, |(_, error)| *error);
        }
        errors
    }

    fn named(module: &Module, low: &FxHashSet<Var>) -> Vec<String> {
        let paths = Paths::of(module);
        let mut names: Vec<String> = low.iter().map(|var| paths.path(var.node).to_owned()).collect();
        names.sort();
        names
    }

    /// With a rising price, the product with the large error and its reader become fp32 first, and then all.
    #[test]
    fn errors_are_removed_in_the_order_of_their_worth() {
        let module = decided();
        let errors = errors_of(&module, &[("h", 0.1), ("d", 5.0), ("y", 0.1)]);
        let mut choices = Choices::new(Assign::new(DType::F16), &module).unwrap();
        assert_eq!(named(&module, choices.low()), ["d", "h", "y"]);
        assert!(choices.cost() > 0);
        let mut found: Vec<Vec<String>> = Vec::new();
        for exponent in -20..40 {
            let low = choices.low_at_price(&errors, 2f64.powi(exponent)).unwrap();
            let low = named(&module, &low);
            if found.last() != Some(&low) {
                found.push(low);
            }
        }
        assert_eq!(found, [vec!["d", "h", "y"], vec!["h"], vec![]]);
        assert_eq!(named(&module, &choices.low_at_price(&errors, f64::INFINITY).unwrap()), [""; 0]);
    }

    /// An error that is infinite is removed at any price, and variables that must be fp32 cost what they save.
    #[test]
    fn costs_rise_with_the_variables_in_fp32() {
        let module = decided();
        let errors = errors_of(&module, &[("d", f64::INFINITY)]);
        let mut choices = Choices::new(Assign::new(DType::F16), &module).unwrap();
        let low = choices.low_at_price(&errors, 1e-9).unwrap();
        assert_eq!(named(&module, &low), ["h"]);
        let mut full: Vec<Var> = choices.low().iter().copied().collect();
        full.sort_unstable();
        let mut last = choices.cost_with(FxHashSet::default()).unwrap();
        for n in 1..=full.len() {
            let cost = choices.cost_with(full[..n].iter().copied().collect()).unwrap();
            assert!(cost > last, "{n}: {cost} after {last}");
            last = cost;
        }
    }
}
