//! RNN, GRU and LSTM.
//!
//! One product multiplies the inputs of all steps by W. Each step multiplies the states by R and launches a kernel
//! for the gates and the new states. For a GRU without `linear_before_reset`, the reset states are computed first and
//! then multiplied by the hidden gate's part of R. States stay in f32 between steps; results are rounded once. After
//! the end of a shorter sequence, Y is zero, and Y_h has the sequence's last state.

use super::activations::function_text;
use super::matrix::Contraction;
use super::stage::{Place, Scratch, Source, Stage, converted, staged};
use super::{Maker, Prepare};
use crate::cuda::text::{Elem, Steps, Walk};
use crate::kernel::{Prepared, Result};
use ampc_ir::op::OpKind;
use ampc_ir::views::recurrent::{Activation, Direction, RecurrentView};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::RNN | OpKind::GRU | OpKind::LSTM => recurrent,
        _ => return None,
    })
}

/// A node, and the parts of the scratch memory of one direction.
struct Recurrent<'a> {
    maker: &'a Maker<'a>,
    view: RecurrentView,
    elem: Elem,
    steps: usize,
    batch: usize,
    input: usize,
    hidden: usize,
    gates: usize,
    directions: usize,
}

/// The scratch memory of a direction, in f32.
struct Memory {
    /// The products of all steps with W.
    x: Place,
    /// The product of a step with R.
    h: Place,
    state: Place,
    cell: Place,
    /// The reset states, their product with R, and the update gate.
    reset: Place,
    candidate: Place,
    update: Place,
    r: Place,
}

fn recurrent(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let view = RecurrentView::read(&site.view)?;
    let elem = maker.float(0)?;
    let (x, r) = (site.dims(0)?, site.dims(2)?);
    let (steps, batch) = if view.batch_first { (x[1], x[0]) } else { (x[0], x[1]) };
    let gates = usize::try_from(view.gates).unwrap_or(usize::MAX);
    let directions = if view.direction == Direction::Bidirectional { 2 } else { 1 };
    let functions = view.activations(&site.view)?;
    let node = Recurrent { maker, view, elem, steps, batch, input: x[2], hidden: r[2], gates, directions };
    let (mut scratch, mut stages) = (Scratch::default(), Vec::new());
    if node.hidden == 0 || batch == 0 {
        return Ok(staged(stages, &scratch));
    }
    if site.has(4) {
        stages.push(node.check_lengths()?);
    }
    let each = functions.len() / directions;
    for d in 0..directions {
        node.direction(d, &functions[d * each..(d + 1) * each], &mut scratch, &mut stages)?;
    }
    Ok(staged(stages, &scratch))
}

impl Recurrent<'_> {
    fn check_lengths(&self) -> Result<Stage> {
        let mut source = Source::new(self.batch);
        source.from("lengths", self.maker.index(4)?, Place::operand(4));
        source.signed("most", i64::try_from(self.steps).unwrap_or(i64::MAX));
        source.fails(self.maker, format!("lengths in [0, {}]", self.steps));
        let body = "if (lengths[i] < 0 || lengths[i] > most) fail(failure, name, lengths[i]);";
        source.each(self.maker, self.batch, body)
    }

    /// Multiplies `rows` rows of `from` by the transpose of a matrix with `columns` rows of length `inner`, in f32.
    fn product(
        &self,
        [rows, columns, inner]: [usize; 3],
        elem: Elem,
        from: [Place; 2],
        to: Place,
        scratch: &mut Scratch,
    ) -> Result<Vec<Stage>> {
        let none = || Steps { first: 0, steps: Vec::new() };
        let product = Contraction {
            sizes: [rows, columns, inner],
            transposed: [false, true],
            alpha: 1.0,
            batch: Walk::new(&[], vec![none(), none()]),
            elem,
            from,
            to: (to, Elem::F32),
        };
        product.stages(self.maker, scratch)
    }

    /// An expression for the index of the state of unit `u` of sequence `s`.
    fn state_index(&self) -> &'static str {
        if self.view.batch_first {
            "(s * directions + direction) * hidden + u"
        } else {
            "(direction * batch + s) * hidden + u"
        }
    }

    /// Declares the extents, and `s` and `u` for the index `i`.
    fn extents(&self, source: &mut Source, d: usize) {
        for (name, value) in [
            ("hidden", self.hidden),
            ("batch", self.batch),
            ("steps", self.steps),
            ("directions", self.directions),
            ("direction", d),
        ] {
            source.number(name, value);
        }
    }

    /// Widens the matrix of direction `d`, `len` elements, of operand `i` to f32.
    fn widened(&self, i: usize, d: usize, len: usize, to: Place) -> Result<Stage> {
        let from = Place::operand(i).plus(d * len * self.elem.bytes());
        let walk = Walk::new(&[len], vec![Steps { first: 0, steps: vec![1] }]);
        converted(self.maker, &walk, (from, self.elem), (to, Elem::F32))
    }

    fn direction(
        &self,
        d: usize,
        functions: &[Activation],
        scratch: &mut Scratch,
        stages: &mut Vec<Stage>,
    ) -> Result<()> {
        let Recurrent { steps, batch, input, hidden, gates, .. } = *self;
        let row = gates * hidden;
        let states = batch * hidden * 4;
        let mut part = |bytes: usize| scratch.part(bytes);
        let memory = Memory {
            x: part(steps * batch * row * 4),
            h: part(batch * row * 4),
            state: part(states),
            cell: part(states),
            reset: part(states),
            candidate: part(states),
            update: part(states),
            r: part(row * hidden * 4),
        };
        let w = Place::operand(1).plus(d * row * input * self.elem.bytes());
        let from = [Place::operand(0), w];
        stages.extend(self.product([steps * batch, row, input], self.elem, from, memory.x, scratch)?);
        stages.push(self.widened(2, d, row * hidden, memory.r)?);
        stages.push(self.initial(d, &memory)?);
        let is_gru = self.maker.site.kind() == OpKind::GRU;
        let resets = is_gru && !self.view.linear_before_reset;
        let is_backward = self.view.direction == Direction::Reverse || d == 1;
        let first = if resets { 2 * hidden } else { row };
        let from = [memory.state, memory.r];
        let of_states = self.product([batch, first, hidden], Elem::F32, from, memory.h, scratch)?;
        let of_resets = if resets {
            let from = [memory.reset, memory.r.plus(2 * hidden * hidden * 4)];
            self.product([batch, hidden, hidden], Elem::F32, from, memory.candidate, scratch)?
        } else {
            Vec::new()
        };
        for step in 0..steps {
            let t = if is_backward { steps - 1 - step } else { step };
            stages.extend(of_states.iter().cloned());
            if resets {
                stages.push(self.cell(d, t, functions, &memory, true)?);
                stages.extend(of_resets.iter().cloned());
            }
            stages.push(self.cell(d, t, functions, &memory, false)?);
        }
        self.last(d, &memory, stages)
    }

    /// Copies the initial states.
    fn initial(&self, d: usize, memory: &Memory) -> Result<Stage> {
        let n = self.batch * self.hidden;
        let mut source = Source::new(n);
        self.extents(&mut source, d);
        let index = source.index;
        let mut body = format!("{index} s = i / hidden, u = i % hidden;");
        for (operand, name, to) in [(5, "h", memory.state), (6, "c", memory.cell)] {
            source.to(&format!("{name}_state"), Elem::F32, to);
            let is_given = self.maker.site.has(operand) && (operand == 5 || self.is_lstm());
            let value = if is_given {
                source.from(&format!("{name}_initial"), self.elem, Place::operand(operand));
                self.elem.load(&format!("{name}_initial[{}]", self.state_index()))
            } else {
                "0.0f".into()
            };
            body += &format!(" {name}_state[i] = {value};");
        }
        source.each(self.maker, n, &body)
    }

    fn is_lstm(&self) -> bool {
        self.maker.site.kind() == OpKind::LSTM
    }

    /// Writes the results with the last states.
    fn last(&self, d: usize, memory: &Memory, stages: &mut Vec<Stage>) -> Result<()> {
        for (result, from) in [(1, memory.state), (2, memory.cell)] {
            if !self.maker.site.wants(result) {
                continue;
            }
            let n = self.batch * self.hidden;
            let mut source = Source::new(n * self.directions);
            self.extents(&mut source, d);
            source.from("state", Elem::F32, from);
            source.to("y", self.elem, Place::result(result));
            let index = source.index;
            let body = format!(
                "{index} s = i / hidden, u = i % hidden; y[{}] = {};",
                self.state_index(),
                self.elem.store("state[i]")
            );
            stages.push(source.each(self.maker, n, &body)?);
        }
        Ok(())
    }

    /// Computes the gates and states of a step, or for a GRU the gates up to the reset states.
    fn cell(
        &self,
        d: usize,
        t: usize,
        functions: &[Activation],
        memory: &Memory,
        is_reset: bool,
    ) -> Result<Stage> {
        let site = self.maker.site;
        let n = self.batch * self.hidden;
        let mut source = Source::new(self.steps * n * self.gates.max(self.directions));
        for (name, &function) in ["f", "g", "h"].iter().zip(functions) {
            source.function(&function_text(&format!("{name}_of"), function, self.view.clip));
        }
        self.extents(&mut source, d);
        source.number("t", t);
        source.from("xs", Elem::F32, memory.x);
        source.from("hs", Elem::F32, memory.h);
        source.pointer("float", "states", memory.state);
        let index = source.index;
        let row = if self.view.batch_first { "s * steps + t" } else { "t * batch + s" };
        let mut body = format!("{index} s = i / hidden, u = i % hidden, row = {row};\n");
        let y = if self.view.batch_first {
            "((s * steps + t) * directions + direction) * hidden + u"
        } else {
            "((t * directions + direction) * batch + s) * hidden + u"
        };
        let has_y = site.wants(0) && !is_reset;
        if has_y {
            source.to("y", self.elem, Place::result(0));
        }
        if site.has(4) {
            source.from("lengths", self.maker.index(4)?, Place::operand(4));
            let zero = if has_y { format!("y[{y}] = {};", self.elem.store("0.0f")) } else { String::new() };
            body += &format!("    if ((i64)t >= lengths[s]) {{ {zero} continue; }}\n");
        }
        let has_bias = site.has(3);
        if has_bias {
            source.from("biases", self.elem, Place::operand(3));
            body += &format!("    {index} bias = direction * {} * hidden + u;\n", 2 * self.gates);
        }
        let bias = |gate: usize| {
            let of = |k: usize| self.elem.load(&format!("biases[bias + {k} * hidden]"));
            if has_bias { [of(gate), of(self.gates + gate)] } else { ["0.0f".into(), "0.0f".into()] }
        };
        let x = |gate: usize| format!("xs[(row * {} + {gate}) * hidden + u]", self.gates);
        let width = if site.kind() == OpKind::GRU && !self.view.linear_before_reset { 2 } else { self.gates };
        let h = |gate: usize| format!("hs[(s * {width} + {gate}) * hidden + u]");
        let sum = |gate: usize| {
            let [w, r] = bias(gate);
            format!("{} + {} + ({w} + {r})", x(gate), h(gate))
        };
        let state = match site.kind() {
            OpKind::RNN => format!("f_of({})", sum(0)),
            OpKind::GRU => {
                source.pointer("float", "resets", memory.reset);
                source.pointer("float", "updates", memory.update);
                source.from("candidates", Elem::F32, memory.candidate);
                let [w, r] = bias(2);
                if is_reset {
                    body += &format!(
                        "    updates[i] = f_of({}); resets[i] = f_of({}) * states[i];",
                        sum(0),
                        sum(1)
                    );
                    return source.each(self.maker, n, &body);
                }
                body += &if self.view.linear_before_reset {
                    format!(
                        "    float z = f_of({}), q = g_of({} + f_of({}) * ({} + {r}) + {w});\n",
                        sum(0),
                        x(2),
                        sum(1),
                        h(2)
                    )
                } else {
                    format!("    float z = updates[i], q = g_of({} + candidates[i] + ({w} + {r}));\n", x(2))
                };
                "(1.0f - z) * q + z * states[i]".into()
            }
            _ => {
                source.pointer("float", "cells", memory.cell);
                let peep = |gate: usize, cell: &str| match site.has(7) {
                    true => format!(
                        " + {} * {cell}",
                        self.elem.load(&format!("peepholes[(direction * 3 + {gate}) * hidden + u]"))
                    ),
                    false => String::new(),
                };
                if site.has(7) {
                    source.from("peepholes", self.elem, Place::operand(7));
                }
                let forget = match self.view.input_forget {
                    true => "1.0f - in".to_owned(),
                    false => format!("f_of({}{})", sum(2), peep(2, "c")),
                };
                body += &format!(
                    "    float c = cells[i], in = f_of({}{}), keep = {forget};
    c = keep * c + in * g_of({});
    float out = f_of({}{});
    cells[i] = c;\n",
                    sum(0),
                    peep(0, "c"),
                    sum(3),
                    sum(1),
                    peep(1, "c"),
                );
                "out * h_of(c)".into()
            }
        };
        body += &format!("    float state = {state}; states[i] = state;");
        if has_y {
            body += &format!(" y[{y}] = {};", self.elem.store("state"));
        }
        source.each(self.maker, n, &body)
    }
}
