//! Channel groups: nodes over an index space `[outer, channels, inner]`, with sums over all axes except the channels.
//!
//! Batch normalization and its gradient form such groups, with adjacent casts, activations, masks and residual sums.
//! A group runs in three steps:
//!
//! - a pass over the elements ([`pass`]), which computes sums and co-moments, and writes the values that depend on no
//!   sum;
//! - a launch with a thread per channel, or a warp if there are several blocks per channel ([`finish`]), which merges
//!   the sums of the blocks and computes the values per channel;
//! - a loop over the elements, which computes the values that depend on the sums.
//!
//! Intermediate values stay in registers, and the loop recomputes them from the operands. [`statistics`] finds the
//! sums that one pass can compute. Element-wise nodes round to their element types; f32 values that feed only a sum
//! are not rounded. With infinite elements, a sum of products can be NaN where the separate nodes give an infinity.

mod finish;
mod form;
mod items;
mod join;
mod pass;
mod state;
mod statistics;

pub(super) use join::join;

use super::Maker;
use super::expressions::{Input, Printer};
use super::groups::MOST_POINTERS;
use super::stage::{Place, Scratch, Stage, staged};
use crate::backend::GroupSite;
use crate::cuda::Shared;
use crate::cuda::elements::Elements;
use crate::cuda::text::Elem;
use crate::groups::unsupported_group;
use crate::kernel::{KernelError, Prepared, Result};
use ampc_ir::Value;
use finish::Finish;
use items::{Item, Space};
use pass::Pass;
use rustc_hash::FxHashSet;
use state::State;
use statistics::Statistics;
use std::fmt::Write;
use std::sync::Arc;

/// The maximum number of values of a state: 256 threads have their states in 48 KiB of shared memory.
const MOST_NUMBERS: usize = 40;

/// The transitive operands of `roots`, including `roots`, except the operands of values for which `is_known` is true.
fn needed(
    items: &[Item],
    roots: impl Iterator<Item = Value>,
    is_known: impl Fn(Value) -> bool,
) -> FxHashSet<Value> {
    let mut needed: FxHashSet<Value> = roots.collect();
    for item in items.iter().rev() {
        match item {
            Item::Element(member) if needed.contains(&member.result) && !is_known(member.result) => {
                needed.extend(member.operands.iter().flatten().map(|read| read.value));
            }
            Item::Norm(norm) if norm.results[0].is_some_and(|(y, _)| needed.contains(&y)) => {
                needed.insert(norm.x.value);
            }
            _ => {}
        }
    }
    needed
}

/// The space of a group, which is the space of its first reduction.
fn space_of<'i>(mut items: impl Iterator<Item = &'i Item>) -> Option<&'i Space> {
    items.find_map(Item::space)
}

/// The kernel of a group; `None` if the group has no reduction.
///
/// # Errors
/// If the nodes do not form a channel group.
pub(super) fn prepare(shared: &Arc<Shared>, group: &GroupSite<'_>) -> Option<Result<Prepared>> {
    let items: Option<Vec<Item>> = group.sites.iter().map(Item::read).collect();
    let mut items = items?;
    let aliases = items::resolve(&mut items);
    let space = space_of(items.iter())?;
    if aliases.iter().any(|value| group.results.contains(value)) {
        return Some(Err(unsupported_group()));
    }
    Some(Group { group, items: &items, space }.prepared(shared))
}

struct Group<'a> {
    group: &'a GroupSite<'a>,
    items: &'a [Item],
    space: &'a Space,
}

impl Group<'_> {
    fn prepared(&self, shared: &Arc<Shared>) -> Result<Prepared> {
        let (items, space, group) = (self.items, self.space, self.group);
        if group.operands.len() + group.results.len() > MOST_POINTERS {
            return Err(KernelError::unsupported("groups of this many operands"));
        }
        let statistics = Statistics::of(space, items.iter(), true).ok_or_else(unsupported_group)?;
        let maker = &Maker { shared, site: group.sites.first().ok_or_else(unsupported_group)? };
        let operand = |value| group.operands.iter().position(|&operand| operand == value).map(Place::operand);
        let result = |value| group.results.iter().position(|&result| result == value).map(Place::result);
        let is_full = |value: &Value| statistics.made.contains_key(value);
        let is_late = |value: &Value| statistics.late.contains(value);
        let early: Vec<(Value, Place)> = group
            .results
            .iter()
            .filter(|value| is_full(value) && !is_late(value))
            .filter_map(|&value| Some((value, result(value)?)))
            .collect();
        let late: Vec<Value> = group.results.iter().copied().filter(|value| is_late(value)).collect();
        let (mut scratch, mut stages) = (Scratch::default(), Vec::new());
        let state = State::of(&statistics);
        if state.len() > MOST_NUMBERS {
            return Err(unsupported_group());
        }
        // The loop after the sums reads the values that the pass has written.
        let is_written = |value: Value| early.iter().any(|&(other, _)| other == value);
        let (printer, arrays) =
            self.loop_statements(&late, &statistics, is_written).ok_or_else(unsupported_group)?;
        let place_of = |key: Input| match key {
            Input::Value(value) => operand(value).or_else(|| result(value)),
            Input::Array(_) => None,
        };
        let mut keys: Vec<Input> = Vec::new();
        for &(key, _) in &printer.sources {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        // The states of a channel use the memory of f32 values. Narrower values would overlap other channels.
        let is_f32 = |key: Input| match key {
            Input::Value(value) => statistics.elem(value).is_some_and(|elem| elem.bytes() == 4),
            Input::Array(_) => true,
        };
        let n_arrays = keys.iter().filter(|&&key| place_of(key).is_none() && is_f32(key)).count();
        let pass = Pass { space, items, statistics: &statistics, state: &state, written: &early };
        let (stage, states) = pass.stage(maker, &operand, n_arrays, &mut scratch)?;
        stages.push(stage);
        let (mut first, mut others) = (Vec::new(), Vec::new());
        let mut replaces = |j: usize, i: usize| match j {
            0 => first.push(i),
            _ => others.push((j, i)),
        };
        let is_read = |value: Value| printer.sources.iter().any(|&(key, _)| key == Input::Value(value));
        let replaced = pass.may_be_replaced(group.operands).into_iter().filter(|&(value, _)| !is_read(value));
        for (value, elem) in replaced {
            for (j, result) in group.results.iter().enumerate() {
                let is_early = early.iter().any(|(other, _)| other == result);
                let bytes = statistics.elem(*result).map(Elem::bytes);
                if let Some(i) = group.operands.iter().position(|&operand| operand == value)
                    && is_early
                    && bytes == Some(elem.bytes())
                {
                    replaces(j, i);
                }
            }
        }
        let mut n_placed = 0;
        let mut places: Vec<(Input, Place)> = Vec::new();
        for key in keys {
            let place = place_of(key).unwrap_or_else(|| {
                if !is_f32(key) {
                    return scratch.part(4 * space.channels);
                }
                n_placed += 1;
                states.array(n_placed - 1)
            });
            places.push((key, place));
        }
        let finish = Finish { group, space, statistics: &statistics, states };
        stages.push(finish.stage(maker, &state, (&arrays, &places))?);

        if !late.is_empty() {
            let mut body = printer.body;
            let mut elems = Vec::new();
            for (j, value) in late.iter().enumerate() {
                let made = printer.values.get(value).ok_or_else(unsupported_group)?;
                let _ = writeln!(body, "    r{j} = {};", made.bits);
                elems.push(made.elem);
            }
            let functions = printer.functions.into_iter().collect::<String>();
            let (keys, sources): (Vec<Input>, Vec<_>) = printer.sources.into_iter().unzip();
            let kernel = Elements {
                functions: &functions,
                dims: &space.dims,
                sources: &sources,
                results: &elems,
                params: &[],
                body: &body,
            }
            .kernel(shared)?;
            for (value, elem) in late.iter().zip(&elems) {
                let place = group.results.iter().position(|result| result == value);
                for (at, key) in keys.iter().enumerate() {
                    let Input::Value(read) = *key else { continue };
                    let is_alone = keys.iter().filter(|&other| other == key).count() == 1;
                    let operand = group.operands.iter().position(|&operand| operand == read);
                    if let (Some(j), Some(i)) = (place, operand)
                        && is_alone
                        && sources[at].dims == space.dims
                        && sources[at].elem.bytes() == elem.bytes()
                    {
                        replaces(j, i);
                    }
                }
            }
            let place_of = |key| places.iter().find(|(other, _)| other == key).map(|&(_, place)| place);
            let sources = keys.iter().filter_map(place_of);
            let results = late.iter().filter_map(|&value| result(value));
            let places = sources.chain(results).collect();
            stages.push(Stage::Elements { elements: Arc::new(kernel), places });
        }
        Ok(staged(stages, &scratch).in_place(&first).others_in_place(&others))
    }

    /// The statements of the loop after the sums, and the names of the arrays with the per-channel values that it
    /// reads.
    fn loop_statements(
        &self,
        late: &[Value],
        statistics: &Statistics<'_>,
        is_written: impl Fn(Value) -> bool,
    ) -> Option<(Printer, Vec<String>)> {
        let needed = needed(self.items, late.iter().copied(), &is_written);
        let (mut printer, mut arrays) = (Printer::default(), Vec::new());
        let mut norms = statistics.norms.iter();
        for item in self.items {
            match item {
                Item::Element(member)
                    if self.space.is_full(member)
                        && needed.contains(&member.result)
                        && !is_written(member.result) =>
                {
                    printer.member(member)?;
                }
                Item::Norm(norm) => {
                    let names = norms.next()?;
                    let Some((y, elem)) = norm.results[0].filter(|(y, _)| needed.contains(y)) else {
                        continue;
                    };
                    let x = printer.wide(&norm.x)?;
                    let mut read = || {
                        names.clone().map(|name| {
                            let at = arrays.len();
                            arrays.push(name);
                            printer.source(Input::Array(at), Elem::F32, &self.space.kept)
                        })
                    };
                    let [shift, factor, offset] = read();
                    printer.define_rounded(
                        y,
                        elem,
                        format!("({x} - b{shift}) * b{factor} + b{offset}"),
                        false,
                    );
                }
                _ => {}
            }
        }
        Some((printer, arrays))
    }
}
