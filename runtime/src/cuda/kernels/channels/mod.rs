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
use pass::{Pass, States};
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

/// An input of the loop after the sums.
struct LoopInput {
    input: Input,
    /// The place of an operand or result; `None` for a value per channel.
    place: Option<Place>,
    /// True if the elements have the size of f32.
    is_f32: bool,
}

/// The places of inputs. The states of a channel use the memory of f32 values. Narrower values would overlap other
/// channels, so they have parts of their own.
fn places_of(
    inputs: Vec<LoopInput>,
    states: States,
    channels: usize,
    scratch: &mut Scratch,
) -> Vec<(Input, Place)> {
    let mut arrays = 0..;
    let place = |LoopInput { input, place, is_f32 }| {
        let place = place.unwrap_or_else(|| match is_f32 {
            true => states.array(arrays.next().unwrap_or(0)),
            false => scratch.part(4 * channels),
        });
        (input, place)
    };
    inputs.into_iter().map(place).collect()
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
        let state = State::of(&statistics);
        if state.len() > MOST_NUMBERS {
            return Err(unsupported_group());
        }
        let (early, late) = self.results(&statistics);
        // The loop after the sums reads the values that the pass has written.
        let is_written = |value: Value| early.iter().any(|&(other, _)| other == value);
        let (printer, arrays) =
            self.loop_statements(&late, &statistics, is_written).ok_or_else(unsupported_group)?;
        let inputs = self.inputs(&printer, &statistics);
        let n_arrays = inputs.iter().filter(|input| input.place.is_none() && input.is_f32).count();
        let pass = Pass { space, items, statistics: &statistics, state: &state, written: &early };
        let operand = |value| group.operand(value).map(Place::operand);
        let mut scratch = Scratch::default();
        let (stage, states) = pass.stage(maker, &operand, n_arrays, &mut scratch)?;
        let mut replaced = self.replaced_by_pass(&pass, &printer);
        let places = places_of(inputs, states, space.channels, &mut scratch);
        let finish = Finish { group, space, statistics: &statistics, states };
        let mut stages = vec![stage, finish.stage(maker, &state, (&arrays, &places))?];
        if !late.is_empty() {
            let (stage, more) = self.last_loop(shared, &late, printer, &places)?;
            stages.push(stage);
            replaced.extend(more);
        }
        let (first, others): (Vec<_>, Vec<_>) = replaced.into_iter().partition(|&(j, _)| j == 0);
        let first: Vec<usize> = first.into_iter().map(|(_, i)| i).collect();
        Ok(staged(stages, &scratch).in_place(&first).others_in_place(&others))
    }

    /// The results of the whole space that the pass writes, with their places, and those that depend on the sums.
    fn results(&self, statistics: &Statistics<'_>) -> (Vec<(Value, Place)>, Vec<Value>) {
        let (mut early, mut late) = (Vec::new(), Vec::new());
        for (j, &value) in self.group.results.iter().enumerate() {
            if statistics.late.contains(&value) {
                late.push(value);
            } else if statistics.made.contains_key(&value) {
                early.push((value, Place::result(j)));
            }
        }
        (early, late)
    }

    /// The inputs of the loop after the sums, each once.
    fn inputs(&self, printer: &Printer, statistics: &Statistics<'_>) -> Vec<LoopInput> {
        let mut inputs: Vec<LoopInput> = Vec::new();
        for &(input, _) in &printer.sources {
            if inputs.iter().any(|other| other.input == input) {
                continue;
            }
            let (place, is_f32) = match input {
                Input::Value(value) => {
                    let operand = self.group.operand(value).map(Place::operand);
                    let place = operand.or_else(|| self.group.result(value).map(Place::result));
                    (place, statistics.elem(value).is_some_and(|elem| elem.bytes() == 4))
                }
                Input::Array(_) => (None, true),
            };
            inputs.push(LoopInput { input, place, is_f32 });
        }
        inputs
    }

    /// The results that the pass can write in place of an operand, each with the operand.
    fn replaced_by_pass(&self, pass: &Pass<'_>, printer: &Printer) -> Vec<(usize, usize)> {
        let is_read = |value: Value| printer.sources.iter().any(|&(input, _)| input == Input::Value(value));
        let mut found = Vec::new();
        for (value, elem) in pass.may_be_replaced(self.group.operands) {
            let Some(i) = self.group.operand(value).filter(|_| !is_read(value)) else { continue };
            for (j, result) in self.group.results.iter().enumerate() {
                let is_early = pass.written.iter().any(|(other, _)| other == result);
                if is_early && pass.statistics.elem(*result).map(Elem::bytes) == Some(elem.bytes()) {
                    found.push((j, i));
                }
            }
        }
        found
    }

    /// The loop after the sums, and the results that it can write in place of an operand, each with the operand.
    fn last_loop(
        &self,
        shared: &Arc<Shared>,
        late: &[Value],
        printer: Printer,
        places: &[(Input, Place)],
    ) -> Result<(Stage, Vec<(usize, usize)>)> {
        let mut body = printer.body;
        let mut elems = Vec::new();
        for (j, value) in late.iter().enumerate() {
            let made = printer.values.get(value).ok_or_else(unsupported_group)?;
            let _ = writeln!(body, "    r{j} = {};", made.bits);
            elems.push(made.elem);
        }
        let functions = printer.functions.into_iter().collect::<String>();
        let (inputs, sources): (Vec<Input>, Vec<_>) = printer.sources.into_iter().unzip();
        let dims = &self.space.dims;
        let (results, params) = (&elems[..], &[]);
        let kernel =
            Elements { functions: &functions, dims, sources: &sources, results, params, body: &body }
                .kernel(shared)?;
        let mut replaced = Vec::new();
        for (value, elem) in late.iter().zip(&elems) {
            for (input, source) in inputs.iter().zip(&sources) {
                let Input::Value(read) = *input else { continue };
                let is_alone = inputs.iter().filter(|&other| other == input).count() == 1;
                if let (Some(j), Some(i)) = (self.group.result(*value), self.group.operand(read))
                    && is_alone
                    && source.dims == *dims
                    && source.elem.bytes() == elem.bytes()
                {
                    replaced.push((j, i));
                }
            }
        }
        let place_of = |input| places.iter().find(|(other, _)| other == input).map(|&(_, place)| place);
        let results = late.iter().filter_map(|&value| self.group.result(value).map(Place::result));
        let places = inputs.iter().filter_map(place_of).chain(results).collect();
        Ok((Stage::Elements { elements: Arc::new(kernel), places }, replaced))
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
