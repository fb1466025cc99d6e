//! Choices of formats for one module, at several prices for error (`assign/prices.rs`).

use super::assign::prices::Prices;
use super::assign::{Assign, free_casts};
use super::classify::quantized::hold_quantized;
use crate::graph::flow::Var;
use crate::pass::PassError;
use crate::pass::statistics::Statistics;
use ampc_ir::entity::SecondaryMap;
use ampc_ir::{Module, Value};
use rustc_hash::FxHashSet;

/// The input of `assign`, with formats chosen at several prices.
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
        free_casts(&mut module, assign.to);
        let mut statistics = Statistics::default();
        let (low, cost) = assign.low_vars(&module, &mut statistics, None)?;
        Ok(Choices { assign, module, statistics, low, cost })
    }

    /// The low variables of the choice without a price for error.
    pub fn low(&self) -> &FxHashSet<Var> {
        &self.low
    }

    /// The cost of the choice without a price for error ([`Optimum::cost`](super::assign::Optimum::cost)).
    pub fn cost(&self) -> i64 {
        self.cost
    }

    /// The least cost with these variables in fp32. An fp32 product also costs casts of its operands and results; otherwise,
    /// fp32 would cost less for products too small to gain.
    ///
    /// # Errors
    /// If constants cannot be read.
    pub fn cost_with(&mut self, full: FxHashSet<Var>) -> Result<i64, PassError> {
        let errors = SecondaryMap::default();
        let mut prices = Prices::new(&self.module, &errors, 0.0);
        prices.full = full;
        let (_, cost) = self.assign.low_vars(&self.module, &mut self.statistics, Some(&prices))?;
        Ok(cost)
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
        let (low, _) = self.assign.low_vars(&self.module, &mut self.statistics, Some(&prices))?;
        Ok(low)
    }
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
