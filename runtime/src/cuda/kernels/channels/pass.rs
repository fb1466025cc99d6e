//! The pass over the elements that computes sums and co-moments of a channel group, and the values that need no sum.
//!
//! A thread accumulates the count, means, sums and co-moments of the elements that it has read. It reads 8 elements at
//! a time and merges their moments into its own. Threads and parts merge in the same way (Chan, Golub & LeVeque,
//! "Updating formulae and a pairwise algorithm for computing sample variances", 1979; for covariances Bennett et al.,
//! "Numerically stable, single-pass, parallel statistics algorithms", 2009):
//!
//! ```text
//! N = n + c    mean_x' = mean_x + (m_x - mean_x) c / N    C' = C + q + (m_x - mean_x) (m_y - mean_y) n c / N
//! ```
//!
//! Merges are in one order, which depends on the dims alone.
//!
//! With channels last, a warp reads one element of each of 32 channels in a step. The loads of several steps are issued
//! before the first element is used, so that many bytes are in flight.

use super::form::Form;
use super::items::{Item, Space};
use super::state::{BATCH, State};
use super::statistics::{Base, Statistics};
use crate::cuda::elements::{self, VECTORS, reciprocal};
use crate::cuda::kernels::Maker;
use crate::cuda::kernels::expressions::{Input, Printer};
use crate::cuda::kernels::stage::{Place, Scratch, Source, Stage};
use crate::cuda::text::{Elem, Steps, Walk};
use crate::elementwise::Read;
use crate::groups::unsupported_group;
use crate::kernel::Result;
use ampc_ir::Value;
use std::fmt::Write;

/// The most registers of a thread for elements that are loaded before the first is used.
const HELD: usize = 32;

/// The states of all parts of each channel, as one array per field; consecutive arrays are `stride` elements apart.
#[derive(Clone, Copy)]
pub(super) struct States {
    pub(super) place: Place,
    pub(super) stride: usize,
    pub(super) parts: usize,
    /// Parts begin at a multiple of so many elements.
    pub(super) lanes: usize,
}

impl States {
    /// The place of the `at`th array of one f32 value per channel. A thread that has read the states of a channel may
    /// write it.
    pub(super) fn array(&self, at: usize) -> Place {
        self.place.plus(4 * self.stride * at)
    }
}

/// The pass, as the session's operands and results are placed.
pub(super) struct Pass<'a> {
    pub(super) space: &'a Space,
    pub(super) items: &'a [Item],
    pub(super) statistics: &'a Statistics<'a>,
    pub(super) state: &'a State,
    /// The values of the whole space that are written, with their places.
    pub(super) written: &'a [(Value, Place)],
}

/// The access of the text to a source.
enum Access {
    /// An element for each index.
    Whole,
    /// One element, or one for each channel.
    Channel,
    /// An element that the position of the index determines; true if it is one element for a vector.
    Indexed(String, bool),
}

/// The statements of a step, in which a thread computes the elements of a vector.
#[derive(Default)]
struct Step {
    /// The vectors that are loaded, as type and name.
    held: Vec<String>,
    /// The loads of step `u` from position `at`.
    loads: String,
    /// The elements of lane `v`.
    elements: String,
    /// The declarations of the vectors that are stored.
    vectors: String,
    /// The results of lane `v`.
    sets: String,
    stores: String,
    /// The registers that the loads of a step fill.
    registers: usize,
}

impl Pass<'_> {
    /// The launch, and the states that it leaves. The memory after the states has room for at least `n_arrays` numbers of
    /// each channel.
    ///
    /// # Errors
    /// If a value is unknown, or there are too many blocks.
    pub(super) fn stage(
        &self,
        maker: &Maker<'_>,
        place_of: &dyn Fn(Value) -> Option<Place>,
        n_arrays: usize,
        scratch: &mut Scratch,
    ) -> Result<(Stage, States)> {
        let space = self.space;
        let (printer, numbers) = self.text()?;
        let made = |(value, _): &(Value, Place)| printer.values.get(value).map(|made| made.elem);
        let elems =
            self.written.iter().map(made).collect::<Option<Vec<Elem>>>().ok_or_else(unsupported_group)?;
        let steps = printer.sources.iter().map(|(_, source)| Steps::broadcast(&source.dims, &space.dims));
        let walk = Walk::new(&space.dims, steps.collect::<Option<_>>().ok_or_else(unsupported_group)?);
        let whole =
            (0..printer.sources.len()).filter(|&s| walk.is_plain(s)).map(|s| printer.sources[s].1.elem);
        let widest = whole.chain(elems.iter().copied()).map(Elem::bytes).max().unwrap_or(4);
        let form = Form::of(space, widest);
        let (channels, count, parts) = (space.channels, space.count(), form.parts);
        // Arrays begin at a multiple of 16 bytes.
        let stride = (parts * channels).next_multiple_of(4);
        let place = scratch.part(4 * stride * self.state.len().max(n_arrays));
        let states = States { place, stride, parts, lanes: form.lanes };

        let mut source = Source::new(space.dims.iter().product::<usize>().max(parts * channels));
        source.function(VECTORS);
        source.function(TAKEN);
        source.function(&printer.functions.iter().copied().collect::<String>());
        source.function(&self.state.text());
        source.function(&self.state.functions());
        let accesses = self.accesses(&mut source, &printer, (&walk, &form), place_of)?;
        for (j, ((_, place), elem)) in self.written.iter().zip(&elems).enumerate() {
            source.to(&format!("y{j}"), *elem, *place);
        }
        source.pointer("float", "states", states.place);
        let numbers_of = [
            ("channels", channels),
            ("inner", space.inner),
            ("count", count),
            ("parts", parts),
            ("stride", stride),
        ];
        numbers_of.into_iter().for_each(|(name, value)| source.number(name, value));
        source.signed("inner_by", reciprocal(space.inner).cast_signed());
        let step = self.step(&printer, (&accesses, &form), &elems);
        let hoisted = hoisted(&printer, (&accesses, &form), elems.len());
        let begin = self.begin(&printer, &accesses, source.index).ok_or_else(unsupported_group)?;
        let body = format!(
            "{}{hoisted}{begin}{}{}  write(states + ((u64)part * channels + c), stride, state);",
            form.place(source.index),
            self.element_loop(&form, &step, &numbers, source.index),
            form.end(),
        );
        Ok((source.launch(maker, &body, form.shape(count))?, states))
    }

    /// The pointers to the sources, and how the text reads them.
    fn accesses(
        &self,
        source: &mut Source,
        printer: &Printer,
        (walk, form): (&Walk, &Form),
        place_of: &dyn Fn(Value) -> Option<Place>,
    ) -> Result<Vec<Access>> {
        let mut accesses = Vec::new();
        for (s, (key, of)) in printer.sources.iter().enumerate() {
            let Input::Value(value) = key else { return Err(unsupported_group()) };
            source.from(&format!("x{s}"), of.elem, place_of(*value).ok_or_else(unsupported_group)?);
            accesses.push(if of.dims == self.space.dims {
                Access::Whole
            } else if of.dims.iter().product::<usize>() == 1 || self.space.has_channels(&of.dims) {
                Access::Channel
            } else {
                let is_one = walk.operands[s].steps.last() == Some(&0)
                    && walk.dims.last().is_some_and(|last| last.is_multiple_of(form.lanes));
                let at = if is_one { "at" } else { "at + v" };
                Access::Indexed(source.position(&walk.dims, &walk.operands[s], &format!("({at})")), is_one)
            });
        }
        Ok(accesses)
    }

    /// The statements that load, compute and store a vector.
    fn step(&self, printer: &Printer, (accesses, form): (&[Access], &Form), elems: &[Elem]) -> Step {
        let lanes = form.lanes;
        let mut step = Step { elements: printer.body.clone(), ..Step::default() };
        let mut reads = String::new();
        for (s, from) in accesses.iter().enumerate() {
            let elem = printer.sources[s].1.elem;
            let ty = elem.stored();
            let (lanes_of, load) = match from {
                Access::Channel => continue,
                Access::Whole if lanes > 1 => (lanes, format!("v{s}[u] = taken<{lanes}>(x{s} + at, whole);")),
                Access::Whole => (1, format!("v{s}[u].at[0] = x{s}[at];")),
                Access::Indexed(place, true) => (1, format!("v{s}[u].at[0] = x{s}[{place}];")),
                Access::Indexed(place, false) => {
                    (lanes, format!("for (int v = 0; v < {lanes}; v++) v{s}[u].at[v] = x{s}[{place}];"))
                }
            };
            step.held.push(format!("Vector<{ty}, {lanes_of}> v{s}"));
            let _ = writeln!(step.loads, "        {load}");
            let lane = if lanes_of == 1 { "0" } else { "v" };
            let _ = writeln!(reads, "          const {ty} b{s} = v{s}[u].at[{lane}];");
            step.registers += (lanes_of * elem.bytes()).div_ceil(4);
        }
        step.elements = reads + &step.elements;
        for (j, ((value, _), elem)) in self.written.iter().zip(elems).enumerate() {
            let _ = writeln!(step.vectors, "        Vector<{}, {lanes}> w{j};", elem.stored());
            let _ = writeln!(step.sets, "          w{j}.at[v] = {};", printer.values[value].bits);
            let _ = match lanes {
                1 => writeln!(step.stores, "        y{j}[at] = w{j}.at[0];"),
                _ => writeln!(step.stores, "        put<{lanes}>(y{j} + at, w{j}, whole);"),
            };
        }
        step
    }

    /// The statements that clear the state of a thread and set its shifts.
    fn begin(&self, printer: &Printer, accesses: &[Access], index: &str) -> Option<String> {
        let mut begin = String::from("  State state;\n  state.count = 0;\n");
        for name in self.state.names() {
            let _ = writeln!(begin, "  state.{name} = 0;");
        }
        begin += &self.shifts(printer, accesses, index)?;
        Some(begin)
    }

    /// The loop of a thread over its elements.
    fn element_loop(&self, form: &Form, step: &Step, numbers: &[String], index: &str) -> String {
        let (lanes, steps) = (form.lanes, form.steps());
        let batch = 1 << (HELD / step.registers.max(1)).clamp(1, steps).ilog2();
        let held = step.held.iter().map(|vector| format!("      {vector}[{batch}];\n")).collect::<String>();
        let (mut arrays, mut assigns, mut list) = (String::new(), String::new(), String::new());
        for &at in &self.state.sums {
            let has_shift = self.state.shifts.contains(&at);
            let shift = if has_shift { format!(" - state.h{at}") } else { String::new() };
            let _ = writeln!(arrays, "    float few{at}[{BATCH}];");
            let _ =
                writeln!(assigns, "          few{at}[(batch + u) * {lanes} + v] = {}{shift};", numbers[at]);
            let _ = write!(list, "few{at}, ");
        }
        let Step { loads, elements, vectors, sets, stores, .. } = step;
        format!(
            "  for (u64 start = low; start < high; start += (u64)lanes * {BATCH}) {{
{arrays}    int many = 0;
    #pragma unroll
    for (int batch = 0; batch < {steps}; batch += {batch}) {{
{held}      #pragma unroll
      for (int u = 0; u < {batch}; u++) {{
        const u64 k = start + ((u64)(batch + u) * lanes + lane) * {lanes};
        const {index} at = {at};
        if (k >= high) continue;
{loads}      }}
      #pragma unroll
      for (int u = 0; u < {batch}; u++) {{
        const u64 k = start + ((u64)(batch + u) * lanes + lane) * {lanes};
        const {index} at = {at};
        if (k >= high) continue;
{vectors}        #pragma unroll
        for (int v = 0; v < {lanes}; v++) {{
{elements}{assigns}{sets}        }}
{stores}        many = (batch + u + 1) * {lanes};
      }}
    }}
    if (many) state = merged(state, of_few({list}many));
  }}
",
            at = form.at(index),
        )
    }

    /// The statements that set the shifts of channel `c`: its first element of each base, or 0 if that is not finite.
    fn shifts(&self, printer: &Printer, accesses: &[Access], index: &str) -> Option<String> {
        let bases = &self.statistics.bases;
        let values = self.state.shifts.iter().map(|&at| bases[at].value);
        let mut own = self.printed(values)?;
        if self.state.shifts.is_empty() {
            return Some(String::new());
        }
        let mut sets = String::new();
        for &at in &self.state.shifts {
            let number = self.number(&mut own, at)?;
            let _ = writeln!(sets, "    if (is_finite({number})) state.h{at} = {number};");
        }
        let mut loads = String::new();
        for (n, (key, of)) in own.sources.iter().enumerate() {
            let is_same =
                |(other, source): &(Input, elements::Source)| other == key && source.dims == of.dims;
            let s = printer.sources.iter().position(is_same)?;
            let at = match &accesses[s] {
                Access::Channel if of.dims.iter().product::<usize>() == 1 => "0",
                Access::Channel => "c",
                Access::Whole => "at",
                Access::Indexed(place, _) => place,
            };
            let _ = writeln!(loads, "    const {} b{n} = x{s}[{at}];", of.elem.stored());
        }
        Some(format!(
            "  if (is_in) {{\n    const {index} at = c * inner; const int v = 0;\n{loads}{}{sets}  }}\n",
            own.body
        ))
    }

    /// The statements that compute values of the whole space.
    fn printed(&self, values: impl Iterator<Item = Value>) -> Option<Printer> {
        let needed = super::needed(self.items, values, |_| false);
        let mut printer = Printer::default();
        for item in self.items {
            if let Item::Element(member) = item
                && needed.contains(&member.result)
            {
                printer.member(member)?;
            }
        }
        Some(printer)
    }

    /// The number of a base.
    fn number(&self, printer: &mut Printer, base: usize) -> Option<String> {
        let Base { value, dtype, .. } = self.statistics.bases[base];
        printer.wide(&Read { value, dtype, dims: self.space.dims.clone() })
    }

    /// The operands of the whole space that a thread reads only at the indices where it writes: a result can replace
    /// them.
    pub(super) fn may_be_replaced(&self, operands: &[Value]) -> Vec<(Value, Elem)> {
        let shifts = self.state.shifts.iter().map(|&at| self.statistics.bases[at].value);
        let of_shifts = super::needed(self.items, shifts, |_| false);
        let mut found: Vec<(Value, Elem)> = Vec::new();
        let Ok((printer, _)) = self.text() else { return found };
        for (key, source) in &printer.sources {
            let &Input::Value(value) = key else { continue };
            let is_alone = printer.sources.iter().filter(|(other, _)| other == key).count() == 1;
            let is_whole = source.dims == self.space.dims && operands.contains(&value);
            if is_alone && is_whole && !of_shifts.contains(&value) {
                found.push((value, source.elem));
            }
        }
        found
    }

    /// The statements that compute the bases and the values that are written, and the numbers of the bases.
    fn text(&self) -> Result<(Printer, Vec<String>)> {
        let bases = &self.statistics.bases;
        let used = bases.iter().filter(|base| base.is_used).map(|base| base.value);
        let made = || {
            let mut printer = self.printed(used.chain(self.written.iter().map(|&(value, _)| value)))?;
            let numbers = (0..bases.len()).map(|at| match bases[at].is_used {
                true => self.number(&mut printer, at),
                false => Some(String::new()),
            });
            let numbers = numbers.collect::<Option<Vec<String>>>()?;
            Some((printer, numbers))
        };
        made().ok_or_else(unsupported_group)
    }
}

/// The statements before the loop: elements of the channel, and `whole`, which is true if all vectors are aligned.
fn hoisted(printer: &Printer, (accesses, form): (&[Access], &Form), results: usize) -> String {
    let mut text = String::new();
    let mut aligned: Vec<String> = (0..results).map(|j| format!("(u64)y{j}")).collect();
    for (s, from) in accesses.iter().enumerate() {
        let of = &printer.sources[s].1;
        let at = if of.dims.iter().product::<usize>() == 1 { "0" } else { "c" };
        match from {
            Access::Channel => {
                let _ = writeln!(text, "  const {} b{s} = x{s}[{at}];", of.elem.stored());
            }
            Access::Whole => aligned.push(format!("(u64)x{s}")),
            Access::Indexed(..) => {}
        }
    }
    if !aligned.is_empty() && form.lanes > 1 {
        let _ = writeln!(text, "  const bool whole = (({}) & 15) == 0;", aligned.join(" | "));
    }
    text
}

/// Vectors at any address.
const TAKEN: &str = r"
template <int V, class T> __device__ __forceinline__ Vector<T, V> taken(const T* from, bool whole) {
  if (whole) return load<V>(from);
  Vector<T, V> x;
  #pragma unroll
  for (int v = 0; v < V; v++) x.at[v] = from[v];
  return x;
}
template <int V, class T> __device__ __forceinline__ void put(T* to, const Vector<T, V>& x, bool whole) {
  if (whole) { store<V>(to, x); return; }
  #pragma unroll
  for (int v = 0; v < V; v++) to[v] = x.at[v];
}
";
