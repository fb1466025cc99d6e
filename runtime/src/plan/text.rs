//! Plans as text.

use super::{GraphPlan, Place, Step};
use ampc_ir::text::escape_hidden;
use ampc_ir::{DType, Module};
use std::borrow::Cow;
use std::fmt::Write;

impl GraphPlan {
    /// The plan, one line per step: operator, operands, places, and the bytes that are live.
    pub fn to_text(&self, module: &Module) -> String {
        let mut text = String::new();
        let name = module.text(module.graph(self.graph).name);
        let count = |n: u64, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let (steps, arena) = (count(self.steps.len() as u64, "step"), count(self.arena as u64, "byte"));
        let line = writeln!(text, "graph {name:?}: {steps}, arena {arena}");
        debug_assert!(line.is_ok(), "writing into a string cannot fail");
        for (at, step) in self.steps.iter().enumerate() {
            let results: Vec<String> =
                step.results.iter().map(|v| v.map_or("_".into(), |v| self.result(module, v))).collect();
            let operands: Vec<String> =
                step.operands.iter().map(|v| v.map_or("_".into(), |v| self.name(module, v))).collect();
            let mut notes = String::new();
            if step.view {
                notes.push_str(", view");
            }
            let taken: Vec<String> = step
                .in_place
                .iter()
                .filter_map(|&(_, operand)| Some(self.name(module, step.operands[operand]?)))
                .collect();
            if !taken.is_empty() {
                notes += &format!(", in place of {}", taken.join(", "));
            }
            if step.scratch.1 > 0 {
                notes += &format!(", scratch {}..{}", step.scratch.0, step.scratch.0 + step.scratch.1);
            }
            if step.queue > 0 {
                notes += &format!(", queue {}", step.queue);
            }
            if !step.waits.is_empty() {
                let waits: Vec<String> = step.waits.iter().map(u32::to_string).collect();
                notes += &format!(", after step {}", waits.join(", "));
            }
            let op = operators(module, step);
            text += &format!("{at:>4}  {} = {op}({}){notes}\n", results.join(", "), operands.join(", "));
        }
        for state in &self.states {
            let (now, next) = (self.result(module, state.now), self.name(module, state.next));
            let how = if state.copied { "copied" } else { "in place" };
            text += &format!("      state {now} -> {next}, {how}\n");
        }
        for state in &self.moved {
            let (now, next) = (self.result(module, state.now), self.name(module, state.next));
            text += &format!("      state {now} -> {next}, moved\n");
        }
        if let Some(peak) = self.peak() {
            let step = &self.steps[peak.step];
            let op = operators(module, step);
            let parts = peak.by_dtype.iter().map(|(dtype, bytes)| format!("{bytes} of {dtype}"));
            let others = [(peak.scratch, "scratch"), (peak.unused, "unused")];
            let others = others.iter().filter(|(bytes, _)| *bytes > 0);
            let parts: Vec<String> =
                parts.chain(others.map(|(bytes, what)| format!("{bytes} {what}"))).collect();
            let (bytes, at) = (count(peak.bytes as u64, "byte"), peak.step);
            text += &format!("      peak {bytes} at step {at} ({op}): {}\n", parts.join(", "));
        }
        let outputs: Vec<String> = self.outputs.iter().map(|&v| self.name(module, v)).collect();
        text += &format!("      return {}\n", outputs.join(", "));
        text
    }

    fn name(&self, module: &Module, index: u32) -> String {
        let value = self.values[index as usize].value;
        module
            .value_name(value)
            .map_or_else(|| format!("%{index}"), |name| format!("%{}", shown(module.text(name))))
    }

    fn result(&self, module: &Module, index: u32) -> String {
        let planned = &self.values[index as usize];
        let ty = planned.tensor.as_ref().map_or_else(|| "?".into(), |(dtype, dims)| show(*dtype, dims));
        let place = match planned.place {
            Place::Arena { offset, len } => format!("{offset}..{}", offset + len),
            Place::View(of) => format!("as {}", self.name(module, of)),
            Place::Heap => "heap".into(),
            Place::Unused => "unused".into(),
            Place::Input(_) | Place::Capture(_) | Place::Constant => "outside".into(),
        };
        format!("{}: {ty} @ {place}", self.name(module, index))
    }
}

/// The operators of a step: `MatMul`, or `MatMul+Add+Relu` of a group.
fn operators(module: &Module, step: &Step) -> String {
    let names: Vec<Cow<'_, str>> = step.nodes.iter().map(|&node| shown(module.op_name(node).1)).collect();
    names.join("+")
}

fn show(dtype: DType, dims: &[u64]) -> String {
    let dims: Vec<String> = dims.iter().map(u64::to_string).collect();
    format!("{dtype}[{}]", dims.join(", "))
}

/// A name on one line.
fn shown(name: &str) -> Cow<'_, str> {
    escape_hidden(name, |_| false)
}
