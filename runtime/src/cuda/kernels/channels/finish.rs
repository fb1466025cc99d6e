//! The launch that merges the states of the blocks and computes the numbers of each channel.
//!
//! A thread computes a channel that one block has read. If several blocks have read it, a warp merges their states: each
//! lane merges every 32nd state, then the lanes merge in their order. The order depends on the dims alone.

use super::items::Space;
use super::pass::States;
use super::state::State;
use super::statistics::Statistics;
use crate::backend::GroupSite;
use crate::cuda::kernels::Maker;
use crate::cuda::kernels::expressions::Input;
use crate::cuda::kernels::stage::{Place, Source, Stage};
use crate::cuda::launch::THREADS;
use crate::cuda::text::Elem;
use crate::groups::unsupported_group;
use crate::kernel::Result;
use std::fmt::Write;

/// The lanes of a warp.
const WARP: usize = 32;

/// The launch behind a pass.
pub(super) struct Finish<'a> {
    pub(super) group: &'a GroupSite<'a>,
    pub(super) space: &'a Space,
    pub(super) statistics: &'a Statistics<'a>,
    pub(super) states: States,
}

impl Finish<'_> {
    /// The launch. `arrays` are names of numbers; `places` are the places of these and other numbers per channel.
    ///
    /// # Errors
    /// If a value is unknown.
    pub(super) fn stage(
        &self,
        maker: &Maker<'_>,
        state: &State,
        (arrays, places): (&[String], &[(Input, Place)]),
    ) -> Result<Stage> {
        let (channels, states) = (self.space.channels, self.states);
        let mut source = Source::new(states.stride.max(self.space.count()));
        let printer = &self.statistics.printer;
        source.function(&printer.functions.iter().copied().collect::<String>());
        source.function(&state.text());
        source.pointer("const float", "states", states.place);
        let numbers = [
            ("channels", channels),
            ("parts", states.parts),
            ("stride", states.stride),
            ("vectors", self.space.count() / states.lanes),
        ];
        numbers.into_iter().for_each(|(name, value)| source.number(name, value));
        let mut body = self.means();
        self.loads(&mut source, &mut body)?;
        body += &printer.body;
        self.stores(&mut source, &mut body, (arrays, places));
        // A state has the moments of a part, whose number of elements follows from its number.
        let next = format!(
            "read(states + (part * channels + i), stride, (float)(((u64)vectors * (part + 1) / parts - (u64)vectors * part / parts) * {}))",
            states.lanes
        );
        if states.parts == 1 {
            let body = format!("const u64 part = 0;\n    const State state = {next};\n{body}");
            return source.each(maker, channels, &body);
        }
        let warps = THREADS as usize / WARP;
        let body = format!(
            "  const {index} i = blockIdx.x * {warps} + (threadIdx.x >> 5);
  if (i >= channels) return;
  const u32 lane = threadIdx.x & 31;
  State state = {{0}};
  for (u64 part = lane; part < parts; part += {WARP}) {{
    const State next = {next};
    state = part == lane ? next : merged(state, next);
  }}
  state = warp_state(state);
  if (lane) return;
{body}",
            index = source.index
        );
        source.launch(maker, &body, [channels.div_ceil(warps), THREADS as usize])
    }

    /// The statements that compute means and co-moments from the state.
    fn means(&self) -> String {
        let mut body = String::from("    const float count = state.count;\n");
        for (at, base) in self.statistics.bases.iter().enumerate() {
            let shift = if base.has_shift { format!("state.h{at}") } else { "0.0f".into() };
            let rest = if base.is_used { format!("state.s{at} / count") } else { "0.0f".into() };
            let _ = writeln!(
                body,
                "    const float shift{at} = {shift}, rest{at} = {rest}, mean{at} = {};",
                if base.has_shift { format!("shift{at} + rest{at}") } else { format!("rest{at}") }
            );
        }
        for at in 0..self.statistics.pairs.len() {
            let _ = writeln!(body, "    const float moment{at} = state.q{at};");
        }
        body
    }

    /// Adds the statements that read operands with one number, or one per channel.
    fn loads(&self, source: &mut Source, body: &mut String) -> Result<()> {
        for (s, (key, of)) in self.statistics.printer.sources.iter().enumerate() {
            let Input::Value(value) = key else { return Err(unsupported_group()) };
            let operand = self.group.operand(*value);
            source.from(&format!("x{s}"), of.elem, Place::operand(operand.ok_or_else(unsupported_group)?));
            let at = if of.dims.iter().product::<usize>() == 1 { "0" } else { "i" };
            let _ = writeln!(body, "    const {} b{s} = x{s}[{at}];", of.elem.stored());
        }
        Ok(())
    }

    /// Adds the statements that write results, and the numbers that the loop behind reads.
    fn stores(
        &self,
        source: &mut Source,
        body: &mut String,
        (arrays, places): (&[String], &[(Input, Place)]),
    ) {
        let (results, values) = (&self.group.results, &self.statistics.printer.values);
        let mut to = |name: String, elem: Elem, place: Place, bits: &str| {
            source.to(&name, elem, place);
            let _ = writeln!(body, "    {name}[i] = {bits};");
        };
        for (j, value) in results.iter().enumerate() {
            if let Some(made) = values.get(value) {
                to(format!("y{j}"), made.elem, Place::result(j), &made.bits);
            }
        }
        for (at, (key, place)) in places.iter().enumerate() {
            match key {
                Input::Array(number) => to(format!("z{at}"), Elem::F32, *place, &arrays[*number]),
                Input::Value(value) if results.contains(value) => {}
                Input::Value(value) => {
                    if let Some(made) = values.get(value) {
                        to(format!("z{at}"), made.elem, *place, &made.bits);
                    }
                }
            }
        }
    }
}
