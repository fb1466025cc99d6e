//! The verdict on two models, and the errors caused by low products alone.
//!
//! [`judge`] gives the verdict of `ampc verify` and of `ampc rewrite --verify`. It sees two models and values
//! for their inputs, but not the origin of the second model, so both commands give the same verdict.
//!
//! The outputs of a lowered model may exceed their bounds although every choice was right: with larger inputs, or
//! weights that amplify errors, low products alone exceed the bounds, and low products are the purpose of a rewrite.
//! An output is *excused* if low products alone explain its error. A third model is the first model with the matrix
//! products rounded to their formats in the second model. It runs on the same inputs, and an excused output has at
//! most 3 times the error that it has there. For example, with a bound of 7.8e-3:
//!
//! ```text
//!                rewrite    low products alone
//! draw 1         5.0e-4                            within the bound
//! draw 2         2.4e-2     2.3e-2                 excused
//! draw 3         5.8e-1     4.7e-3                 beyond: caused by something other than products
//! ```
//!
//! An excuse changes no verdict: the outputs still exceed their bounds. A caller may accept excused outputs if
//! [`Judgement::is_excused`] holds, which takes an excuse for every output beyond its bound, on every draw. An output
//! has no excuse if it is not finite where the first model is finite, or has another shape. On the first draw, which has
//! ordinary magnitudes, no output has an excuse if products vanish below the normal numbers of their format, or a slice
//! of an output vanishes.
//!
//! On given inputs no output has an excuse if its error is more than 4 times its bound, if more than half of the elements
//! of a discrete output differ, or if few products cause the error: if all outputs are within their bounds once two low
//! products, or at most half of the low products, compute in fp32. These products are found by delta debugging
//! (`shrink.rs`).

use super::Inputs;
use super::shrink::shrink;
use super::verify::{Compared, Verification, VerifyOptions, verify_draws};
use crate::error::Error;
use crate::execute::number::number;
use ampc_ir::convert::min_normal;
use ampc_ir::inserter::InsertError;
use ampc_ir::op::{self, OpKind, Work};
use ampc_ir::{DType, Inserter, Module, Node, Value};
use ampc_passes::Paths;
use ampc_passes::pipeline::Pipeline;
use ampc_passes::raise_opset::{self, RaiseOpset, Target};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use std::convert::Infallible;

/// The maximum ratio of the error of an excused output to the error of low products alone. There are about as many
/// other roundings as roundings of products, or a few times as many, and the largest error of a draw is partly
/// chance.
const TIMES: u32 = 3;

/// An output beyond its bound for which low products alone cause a similar error.
#[derive(Clone, Debug, Serialize)]
pub struct Excused {
    /// The name of the output.
    pub output: String,
    /// The draw of inputs, from 0.
    pub draw: usize,
    /// The elements beyond the bound.
    pub mismatches: u64,
    /// All elements of the output.
    pub elements: u64,
    /// The error of the output, relative to its largest expected element.
    #[serde(rename = "max_of_max", serialize_with = "number")]
    pub error: f64,
    /// The error of the output with low products alone.
    #[serde(serialize_with = "number")]
    pub low_products: f64,
}

/// The verdict on two models.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// The comparison, on all draws.
    pub found: Verification,
    /// The excused outputs beyond their bounds, by draw.
    pub excused: Vec<Excused>,
    /// True if an output is beyond its bound, and every output beyond its bound on every draw has an excuse.
    pub is_excused: bool,
}

impl Judgement {
    /// True if all outputs are within their bounds.
    pub fn passed(&self) -> bool {
        self.found.passed()
    }

    /// True if the models are accepted: all outputs are within their bounds, or are excused and the caller accepts
    /// excuses.
    pub fn accepted(&self, accept_excused: bool) -> bool {
        self.passed() || (accept_excused && self.is_excused)
    }
}

/// Compares two models like [`verify_draws`], and looks for excuses of the outputs beyond their bounds. Outputs have
/// no excuse if `options` sets a tolerance. On given inputs, further conditions hold (module documentation).
///
/// # Errors
/// The errors of [`verify_draws`].
pub fn judge(
    model: &mut Module,
    other: &mut Module,
    draws: &[Inputs],
    options: &VerifyOptions,
) -> Result<Judgement, Error> {
    let found = verify_draws(model, other, draws, options)?;
    let mut judged = Judgement { found, excused: Vec::new(), is_excused: false };
    if judged.passed() || options.tolerance.is_some() {
        return Ok(judged);
    }
    // If the third model cannot be built, run or compared, no output is excused.
    let Some(mut alone) = only_products(model, other, &FxHashSet::default()) else { return Ok(judged) };
    let Some(excuses) = excuses(model, other, draws, options, (&judged.found, &mut alone)) else {
        return Ok(judged);
    };
    judged.is_excused = !excuses.is_empty() && excuses.iter().all(Option::is_some);
    judged.excused.extend(excuses.into_iter().flatten());
    let mut causes = Causes { model, other, draws, options, tried: 0 };
    if judged.is_excused && are_given(draws) && causes.has_few_causes(&alone) {
        judged.is_excused = false;
        judged.excused.clear();
    }
    Ok(judged)
}

/// True if no draw is random.
fn are_given(draws: &[Inputs]) -> bool {
    draws.iter().all(|inputs| !inputs.is_random)
}

/// For each output beyond its bound on a draw, its excuse if there is an excuse; `None` if no output is excused at all.
fn excuses(
    model: &mut Module,
    other: &mut Module,
    draws: &[Inputs],
    options: &VerifyOptions,
    (found, alone): (&Verification, &mut OnlyProducts),
) -> Option<Vec<Option<Excused>>> {
    let is_given = are_given(draws);
    let mut excuses = Vec::new();
    for (draw, inputs) in draws.iter().enumerate().filter(|(draw, _)| !found.without.contains(draw)) {
        let inputs = std::slice::from_ref(inputs);
        let at_hand = verify_draws(model, other, inputs, options).ok()?;
        if at_hand.passed() {
            continue;
        }
        let vanishes = |output: &Compared| output.agreement.has_vanished_slice;
        if (draw == 0 || is_given) && (alone.vanish(model, &at_hand) || at_hand.outputs.iter().any(vanishes))
        {
            return None;
        }
        let low = verify_draws(model, &mut alone.module, inputs, options).ok()?;
        let beyond =
            at_hand.outputs.iter().zip(&low.outputs).filter(|(output, _)| !output.agreement.passed());
        excuses.extend(beyond.map(|(output, alone)| match is_given && is_far(output) {
            true => None,
            false => excuse(draw, output, alone),
        }));
    }
    Some(excuses)
}

/// True if the error of floats is more than [`MAX_ERROR_RATIO`] times its bound, or more than half of the elements of a discrete output
/// differ.
fn is_far(output: &Compared) -> bool {
    let found = &output.agreement.found;
    match found.held_to {
        Some(_) => found.of_bound() > MAX_ERROR_RATIO,
        None => found.mismatches > found.elements / 2,
    }
}

/// The maximal number of sets of products that are measured in fp32.
const MAX_TRIALS: usize = 32;

/// The largest error of an excused output on given inputs, as a multiple of its bound.
const MAX_ERROR_RATIO: f64 = 4.0;

/// The number of products that always counts as few. A model with at most this many low products has no excuse on given inputs.
const MIN_FEW_PRODUCTS: usize = 2;

/// The search for the products that cause an error.
struct Causes<'a> {
    model: &'a Module,
    other: &'a Module,
    draws: &'a [Inputs],
    options: &'a VerifyOptions,
    /// The number of sets of products that were tried.
    tried: usize,
}

impl Causes<'_> {
    /// True if all outputs are within their bounds with few of the low products in fp32.
    fn has_few_causes(&mut self, alone: &OnlyProducts) -> bool {
        let paths = Paths::of(self.model);
        let low: Vec<Node> =
            paths.nodes().iter().copied().filter(|node| alone.low.contains_key(node)).collect();
        let few = (low.len() / 2).max(MIN_FEW_PRODUCTS);
        let fp32 = shrink(low, few, |fp32| -> Result<Option<bool>, Infallible> {
            Ok((self.tried < MAX_TRIALS).then(|| !fp32.is_empty() && self.passes_with_fp32(fp32)))
        });
        fp32.is_ok_and(|fp32| fp32.len() <= few)
    }

    /// True if all outputs are within their bounds with these products in fp32, and all others rounded.
    fn passes_with_fp32(&mut self, fp32: &[Node]) -> bool {
        self.tried += 1;
        let fp32: FxHashSet<Node> = fp32.iter().copied().collect();
        let Some(mut rest) = only_products(self.model, self.other, &fp32) else { return false };
        let mut model = self.model.clone();
        let found = verify_draws(&mut model, &mut rest.module, self.draws, self.options);
        found.is_ok_and(|found| found.passed())
    }
}

/// The excuse of an output beyond its bound on a draw, if there is one.
fn excuse(draw: usize, output: &Compared, alone: &Compared) -> Option<Excused> {
    let (ours, theirs) = (&output.agreement.found, &alone.agreement.found);
    if output.agreement.obstacle.is_some() || alone.agreement.obstacle.is_some() || ours.not_finite() > 0 {
        return None;
    }
    let (error, low_products) = (output.agreement.error(), alone.agreement.error());
    // The magnitude of an error is meaningless for a choice, such as an index.
    let is_like = match ours.held_to {
        Some(_) => error.is_finite() && error <= f64::from(TIMES) * low_products,
        None => ours.mismatches <= theirs.mismatches.saturating_mul(TIMES.into()),
    };
    let (mismatches, elements) = (ours.mismatches, ours.elements);
    is_like.then(|| Excused { output: output.value.clone(), draw, mismatches, elements, error, low_products })
}

/// The model with its products rounded like those of another model.
struct OnlyProducts {
    module: Module,
    /// The products that are low in the other model, with their formats.
    low: FxHashMap<Node, DType>,
}

impl OnlyProducts {
    /// True if a low product is below the normal numbers of its format.
    fn vanish(&self, model: &Module, found: &Verification) -> bool {
        let vanishes = |value: &Compared| {
            let format =
                value.node.filter(|&node| is_product(model, node)).and_then(|node| self.low.get(&node));
            let least = format.and_then(|&format| min_normal(format)).unwrap_or(0.0);
            value.agreement.found.max_want < least && !value.agreement.found.all_zero
        };
        found.values.iter().chain(&found.outputs).any(vanishes)
    }
}

fn is_product(module: &Module, node: Node) -> bool {
    module.node(node).schema().is_some_and(|schema| op::work(schema.kind) == Work::Product)
}

/// The model in which operands and results of products, except those of `full`, are rounded where they are low in the
/// other model, and everything else is unchanged; `None` if no product is rounded, or a model cannot be made.
fn only_products(model: &Module, other: &Module, full: &FxHashSet<Node>) -> Option<OnlyProducts> {
    let mut module = model.clone();
    let names = names(other);
    let paths = [Paths::of(model), Paths::of(other)];
    let mut rounds: Vec<(Node, Slots, Slots)> = Vec::new();
    let mut low = FxHashMap::default();
    let products = paths[0].nodes().iter().filter(|&node| is_product(model, *node) && !full.contains(node));
    for &node in products {
        let Some(counterpart) = counterpart(model, node, other, &names, &paths) else { continue };
        let [ours, theirs] = [(model, node), (other, counterpart)].map(|(module, node)| module.node(node));
        let operands = lowered((model, ours.formal_operands()), (other, theirs.formal_operands()));
        let results = lowered((model, ours.results()), (other, theirs.results()));
        if let Some(&(_, format)) = results.first().or(operands.first()) {
            low.insert(node, format);
            rounds.push((node, operands, results));
        }
    }
    if rounds.is_empty() {
        return None;
    }
    // Raising the opset keeps nodes that already have a form; a node that gets a new form is not rounded.
    let opset = raise_opset::opset(other).filter(|&opset| Some(opset) > raise_opset::opset(model));
    if let Some(opset) = opset {
        let raise = Pipeline::new(vec![Box::new(RaiseOpset { to: Target::Opset(opset) })]).ok()?;
        raise.run(&mut module, false, &mut ()).ok()?;
    }
    for (node, operands, results) in rounds {
        if !module.node(node).is_alive() || !is_product(&module, node) {
            continue;
        }
        for (slot, format) in operands {
            let value = module.node(node).operands().get(slot).copied().flatten()?;
            let rounded = rounded(&mut Inserter::before(&mut module, node), value, format).ok()?;
            module.set_operand(node, slot, Some(rounded));
        }
        for (slot, format) in results {
            round_result(&mut module, node, slot, format)?;
        }
    }
    Some(OnlyProducts { module, low })
}

/// Operand or result slots of a node, with the formats to round their values to.
type Slots = Vec<(usize, DType)>;

/// The slots whose values are fp32 in the first model and low in the second, with the low format.
fn lowered(
    (model, ours): (&Module, &[Option<Value>]),
    (other, theirs): (&Module, &[Option<Value>]),
) -> Slots {
    let dtype = |module: &Module, value: &Option<Value>| module.value((*value)?).ty.dtype();
    let pairs = ours.iter().zip(theirs).enumerate();
    let low = pairs.filter_map(|(slot, (ours, theirs))| {
        let format = dtype(other, theirs).filter(|format| format.is_low())?;
        (dtype(model, ours) == Some(DType::F32)).then_some((slot, format))
    });
    low.collect()
}

/// The values of a module by name.
fn names(module: &Module) -> FxHashMap<&str, Value> {
    let values = module.graph_ids().flat_map(|graph| module.defined(graph));
    values.filter_map(|value| Some((module.text(module.value_name(value)?), value))).collect()
}

/// The corresponding node of the other model: the node of the same path, or else the node whose result has the same name,
/// possibly after a cast.
fn counterpart(
    model: &Module,
    node: Node,
    other: &Module,
    names: &FxHashMap<&str, Value>,
    paths: &[std::sync::Arc<Paths>; 2],
) -> Option<Node> {
    let kind = model.node(node).schema()?.kind;
    let is_same = |&node: &Node| other.node(node).schema().is_some_and(|schema| schema.kind == kind);
    let by_path = paths[1].node(paths[0].path(node)).filter(is_same);
    by_path.or_else(|| {
        let name = model.text(model.value_name(model.node(node).result(0)?)?);
        let (mut at, _) = other.producer(*names.get(name)?)?;
        let mut seen = FxHashSet::default();
        while other.node(at).schema()?.kind == OpKind::Cast && seen.insert(at) {
            at = other.producer((*other.node(at).operands().first()?)?)?.0;
        }
        Some(at).filter(is_same)
    })
}

/// Inserts casts to the format and back to fp32, and returns the rounded value.
fn rounded(inserter: &mut Inserter<'_>, value: Value, format: DType) -> Result<Value, InsertError> {
    let low = inserter.op(OpKind::Cast, &[value], &[("to", format.into())])?;
    inserter.op(OpKind::Cast, &[low], &[("to", DType::F32.into())])
}

/// Rounds a result for all readers. The rounded value takes the name, by which outputs are found.
fn round_result(module: &mut Module, node: Node, slot: usize, format: DType) -> Option<()> {
    let value = module.node(node).result(slot)?;
    let low = Inserter::after(module, node).op(OpKind::Cast, &[value], &[("to", format.into())]).ok()?;
    let (cast, _) = module.producer(low)?;
    let wide = Inserter::after(module, cast).op(OpKind::Cast, &[low], &[("to", DType::F32.into())]).ok()?;
    let readers: Vec<_> = module.uses(value).filter(|&(reader, _)| reader != cast).collect();
    for (reader, slot) in readers {
        module.set_operand(reader, slot as usize, Some(wide));
    }
    let graph = module.node(node).graph;
    let slots: Vec<u32> = module.output_slots(value).collect();
    if let Some(name) = module.value_name(value).filter(|_| !slots.is_empty()) {
        let fresh = module.fresh_name("unrounded");
        module.set_value_name(value, fresh);
        module.set_value_name(wide, name);
    }
    slots.into_iter().for_each(|slot| module.set_output(graph, slot as usize, wide));
    Some(())
}
