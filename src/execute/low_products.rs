//! Errors that no rewrite can avoid: errors that low products alone cause.
//!
//! A rewrite is held to bounds that networks of ordinary size keep. On larger inputs, and with weights that
//! amplify errors, a rewrite whose every choice is right may be beyond them: the user requested low products,
//! and their rounding alone is beyond the bounds. So where a draw of inputs shows an output beyond its bound, a
//! third model is run on it, in which products of matrices are low as in the rewrite and all else is fp32. The
//! draw is *excused* if every output is off by at most 3 times its error there. For example, with a bound of
//! 7.8e-3:
//!
//! ```text
//!                rewrite    low products alone
//! draw 1         5.0e-4                            within the bound
//! draw 2         2.4e-2     2.3e-2                 excused
//! draw 3         5.8e-1     4.7e-3                 beyond: something else than a product is to blame
//! ```
//!
//! On the first draw, which is of ordinary size, nothing is excused that is about the range of the format: elements that
//! are not finite, and products whose results lie below the normal numbers. Nor is anything excused of a tolerance that
//! was asked for.

use super::Inputs;
use super::pins::{lowered, with_pins};
use super::report::number;
use super::verify::{Compared, Verification, VerifyOptions, verify_draws, verify_draws_without};
use crate::error::Error;
use crate::options::RewriteOptions;
use ampc_ir::convert::min_normal;
use ampc_ir::op::{self, Work};
use ampc_ir::{Module, Node};
use ampc_passes::Paths;
use rustc_hash::FxHashSet;
use serde::Serialize;
use std::collections::BTreeSet;

/// The largest excused error, in multiples of the error that low products alone cause. Roundings in other places are as many as those of
/// products, or a few times that, and of one draw the largest error is partly luck.
const TIMES: f64 = 3.0;

/// Rewrites made at most to have nothing low but products: what is around pinned nodes may become low that was fp32.
const MOST_ROUNDS: usize = 8;

/// An output that is beyond its bound, for no other reason than that products are low.
#[derive(Clone, Debug, Serialize)]
pub struct Excused {
    /// The name of the output.
    pub output: String,
    /// The draw of inputs, from 0.
    pub draw: usize,
    /// How far off it is, as a share of its largest wanted element; infinite where elements disagree on being finite.
    #[serde(rename = "max_of_max", serialize_with = "number")]
    pub error: f64,
    /// How far off it is with low products alone.
    #[serde(serialize_with = "number")]
    pub low_products: f64,
}

/// Result of comparing a rewrite with its model.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// Result of [`verify_draws`], without excused draws unless all draws are excused.
    pub found: Verification,
    /// The excused draws.
    pub excused: Vec<Excused>,
    /// True if every draw is within the bounds, or excused.
    pub passed: bool,
}

/// Compares a rewrite by `options` with its source, as [`verify_draws`] does, and excuses errors that low
/// products alone cause.
///
/// # Errors
/// Errors of [`verify_draws`], and of a source that cannot be rewritten.
pub fn judge(
    source: &mut Module,
    rewritten: &mut Module,
    options: &RewriteOptions,
    draws: &[Inputs],
    verify_options: &VerifyOptions,
) -> Result<Judgement, Error> {
    let found = verify_draws(source, rewritten, draws, verify_options)?;
    if found.passed() || verify_options.tolerance.is_some() {
        return Ok(Judgement { passed: found.passed(), found, excused: Vec::new() });
    }
    let mut low_products: Option<Module> = None;
    let (mut excused, mut without) = (Vec::new(), Vec::new());
    for (draw, inputs) in draws.iter().enumerate().filter(|(draw, _)| !found.without.contains(draw)) {
        let inputs = std::slice::from_ref(inputs);
        let at_hand = verify_draws(source, rewritten, inputs, verify_options)?;
        if at_hand.passed() {
            continue;
        }
        if draw == 0 && leaves_range(source, rewritten, options, &at_hand) {
            return Ok(Judgement { found, excused: Vec::new(), passed: false });
        }
        let other = match &mut low_products {
            Some(other) => other,
            none => none.insert(only_products(source, rewritten, options)?),
        };
        let alone = verify_draws(source, other, inputs, verify_options)?;
        if let Some(all) = excuses(draw, &at_hand.outputs, &alone.outputs) {
            excused.extend(all);
            without.push(draw);
        }
    }
    let left = draws.len() - found.without.len() - without.len();
    if without.is_empty() || left == 0 {
        return Ok(Judgement { passed: left == 0, found, excused });
    }
    let found = verify_draws_without(source, rewritten, draws, &without, verify_options)?;
    Ok(Judgement { passed: found.passed(), found, excused })
}

/// The excuses for all outputs that are beyond their bounds on a draw, if each has one.
fn excuses(draw: usize, outputs: &[Compared], alone: &[Compared]) -> Option<Vec<Excused>> {
    let beyond = outputs.iter().zip(alone).filter(|(output, _)| !output.agreement.passed());
    beyond
        .map(|(output, alone)| {
            let (error, low_products) = (output.agreement.error(), alone.agreement.error());
            let compared = output.agreement.obstacle.is_none() && alone.agreement.obstacle.is_none();
            let excused =
                if error.is_finite() { error <= TIMES * low_products } else { low_products.is_infinite() };
            (compared && excused).then(|| Excused { output: output.value.clone(), draw, error, low_products })
        })
        .collect()
}

/// True if outputs or low products leave the range of the format: a value is not finite, or below the normal
/// numbers.
fn leaves_range(source: &Module, rewritten: &Module, options: &RewriteOptions, found: &Verification) -> bool {
    let least = min_normal(options.to).unwrap_or(0.0);
    let low: FxHashSet<String> = lowered(rewritten).into_iter().collect();
    let vanishes = |value: &Compared| {
        let of_product = value.node.is_some_and(|node| is_product(source, node) && low.contains(&value.path));
        of_product && value.agreement.found.max_want < least && !value.agreement.found.all_zero
    };
    found.outputs.iter().any(|output| !output.agreement.error().is_finite())
        || found.values.iter().chain(&found.outputs).any(vanishes)
}

fn is_product(module: &Module, node: Node) -> bool {
    module.node(node).schema().is_some_and(|schema| op::work(schema.kind) == Work::Product)
}

/// The source with products low as they are in its rewrite, and all else fp32, as far as pins reach.
fn only_products(source: &Module, rewritten: &Module, options: &RewriteOptions) -> Result<Module, Error> {
    let paths = Paths::of(source);
    let mut pins: BTreeSet<String> = BTreeSet::new();
    let mut now = rewritten.clone();
    for _ in 0..MOST_ROUNDS {
        let is_other = |path: &String| paths.node(path).is_some_and(|node| !is_product(source, node));
        let before = pins.len();
        pins.extend(lowered(&now).into_iter().filter(is_other));
        if pins.len() == before {
            break;
        }
        now = with_pins(source, options, pins.iter().map(String::as_str))?;
    }
    Ok(now)
}
