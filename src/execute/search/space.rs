//! The choices that a search considers: which variables can be pinned, and the pins at a price for error.

use super::attribution::Errors;
use crate::error::Error;
use crate::loaded::Model;
use crate::options::RewriteOptions;
use crate::rewrite::before_pass;
use ampc_ir::op::{Class, moves};
use ampc_ir::{Module, Value};
use ampc_passes::Paths;
use ampc_passes::assign::{Assign, Gain};
use ampc_passes::choices::Choices;
use ampc_passes::flow::{self, Var};
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// The choices of formats for a model.
pub(super) struct Space {
    /// The model as `assign` receives it.
    pub(super) module: Module,
    paths: Arc<Paths>,
    choices: Choices,
    /// The cost without pins, as [`Choices::cost_with`] counts.
    base: i64,
    /// The variables of products that may be low.
    products: Vec<Var>,
}

impl Space {
    /// # Errors
    /// If a pass before `assign` fails.
    pub(super) fn new(model: &Model, options: &RewriteOptions) -> Result<Space, Error> {
        let module = before_pass(model, options, "assign")?;
        let assign = Assign {
            keep_io: options.keep_io.clone(),
            objective: options.objective,
            target: options.target.clone(),
            gain: if options.only_if_faster { Gain::Needed } else { Gain::Any },
            ..Assign::new(options.to)
        };
        let vars = flow::nodes(&module).into_iter().flat_map(|node| flow::vars(&module, node));
        let is_product = |&var: &Var| {
            flow::decision(&module, var).is_some_and(|d| d.class == Class::Allow && d.precision.is_none())
        };
        let products = vars.filter(is_product).collect();
        let mut choices = Choices::new(assign, &module).map_err(Error::Pass)?;
        let base = choices.cost_with(FxHashSet::default()).map_err(Error::Pass)?;
        Ok(Space { paths: Paths::of(&module), module, choices, base, products })
    }

    /// The pins of the choice with all nodes in fp32.
    pub(super) fn all(&self) -> Vec<Var> {
        let mut all: Vec<Var> = self.choices.low().iter().chain(&self.products).copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The cost of a choice, as a share of the cost without pins.
    ///
    /// # Errors
    /// If constants cannot be read.
    pub(super) fn cost(&mut self, pins: &[Var]) -> Result<f64, Error> {
        let cost = self.choices.cost_with(pins.iter().copied().collect()).map_err(Error::Pass)?;
        #[expect(clippy::cast_precision_loss, reason = "a ratio with a few digits")]
        let share = cost as f64 / self.base.max(1) as f64;
        Ok(share)
    }

    /// The price at which the whole error costs as much as the whole model.
    pub(super) fn unit(&self, errors: &Errors) -> f64 {
        let sum: f64 = errors.iter().map(|(_, error)| *error).filter(|error| error.is_finite()).sum();
        #[expect(clippy::cast_precision_loss, reason = "a price need not be exact")]
        let cost = self.choices.cost().max(1) as f64;
        cost / sum.max(f64::MIN_POSITIVE)
    }

    /// The variables that are low by the policy, and fp32 in the minimum cut at this price.
    pub(super) fn pins(&mut self, errors: &Errors, price: f64) -> Result<Vec<Var>, Error> {
        let low = self.choices.low_at_price(errors, price).map_err(Error::Pass)?;
        let mut pins: Vec<Var> = self.choices.low().difference(&low).copied().collect();
        if !pins.is_empty() {
            // Products that the policy leaves fp32 because their share of the work is negligible.
            let is_left = |var: &&Var| !low.contains(var) && !self.choices.low().contains(var);
            pins.extend(self.products.iter().filter(is_left));
        }
        pins.retain(|&var| self.is_pinned(var));
        pins.sort_unstable();
        Ok(pins)
    }

    /// True if a pin of the variable has an effect of its own. A node that only moves values follows its neighbours, unless it is low
    /// whatever its neighbours are, or reads a constant.
    fn is_pinned(&self, var: Var) -> bool {
        let data = self.module.node(var.node);
        let is_move = data.schema().is_some_and(|schema| moves(schema.kind, 0).is_some());
        let is_allow =
            flow::decision(&self.module, var).is_some_and(|decision| decision.class == Class::Allow);
        let reads_constant =
            || data.operands().iter().flatten().any(|&value| self.module.constant(value).is_some());
        !is_move || is_allow || reads_constant()
    }

    /// The texts of pins, in the order of the model: the path of a node of which all low variables are pinned, else the path
    /// with the name of the variable.
    pub(super) fn texts(&self, pins: &[Var]) -> Vec<String> {
        let pinned: FxHashSet<Var> = pins.iter().copied().collect();
        let mut texts = Vec::new();
        for &node in self.paths.nodes() {
            let vars = || flow::vars(&self.module, node);
            if !vars().any(|var| pinned.contains(&var)) {
                continue;
            }
            let path = self.paths.path(node);
            if vars().all(|var| pinned.contains(&var) || !self.choices.low().contains(&var)) {
                texts.push(path.to_owned());
                continue;
            }
            let names = self.module.var_names(node);
            let of_vars = vars().zip(names).filter(|(var, _)| pinned.contains(var));
            texts.extend(of_vars.map(|(_, name)| format!("{path}#{name}")));
        }
        texts
    }

    /// The largest error of a value that a variable makes, or of a constant that it reads.
    pub(super) fn error(&self, errors: &Errors, var: Var) -> f64 {
        let module = &self.module;
        let constants = flow::operands_of(module, var).map(|(_, value)| value);
        let constants = constants.filter(|&value| module.constant(value).is_some());
        let values = flow::results_of(module, var).map(|(_, value)| value).chain(constants);
        values.fold(0.0, |most: f64, value| most.max(errors[value]))
    }

    /// Gives all values that a port of a body or call connects the largest of their errors, since they are the same tensor.
    pub(super) fn share_through_ports(&self, errors: &mut Errors) {
        let module = &self.module;
        let vars = flow::nodes(module).into_iter().flat_map(|node| flow::vars(module, node));
        let ports: Vec<Var> = vars.filter(|&var| flow::is_port(module, var)).collect();
        // In each round, errors pass one level of bodies and calls.
        let mut has_changed = true;
        while has_changed {
            has_changed = false;
            for &port in &ports {
                let operands = flow::operands_of(module, port).map(|(_, value)| value);
                let values: Vec<Value> =
                    operands.chain(flow::results_of(module, port).map(|(_, value)| value)).collect();
                let most = values.iter().fold(0.0, |most: f64, &value| most.max(errors[value]));
                for value in values {
                    has_changed |= errors[value] < most;
                    errors[value] = most;
                }
            }
        }
    }
}
