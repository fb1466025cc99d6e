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

use super::items::{Item, Space};
use super::statistics::{Base, Statistics};
use crate::cuda::elements::{self, VECTORS};
use crate::cuda::kernels::Maker;
use crate::cuda::kernels::expressions::{Key, Printer};
use crate::cuda::kernels::reduce::{MANY_BLOCKS, PART_ELEMENTS, TILE};
use crate::cuda::kernels::stage::{Place, Scratch, Source, Stage};
use crate::cuda::launch::{THREADS, threads_for};
use crate::cuda::text::{Elem, Steps, Walk};
use crate::elementwise::Read;
use crate::kernel::{KernelError, Result};
use ampc_ir::Value;
use std::fmt::Write;

/// The elements that a thread reads at a time.
const FEW: usize = 8;

/// The text of the state of a thread: a struct of numbers, and its functions.
pub(super) struct State {
    /// The bases that have sums.
    sums: Vec<usize>,
    /// The bases that have means: those of a pair.
    means: Vec<usize>,
    shifts: Vec<usize>,
    pairs: Vec<[usize; 2]>,
}

impl State {
    pub(super) fn of(statistics: &Statistics<'_>) -> State {
        let all = || statistics.bases.iter().enumerate();
        let with = |is: &dyn Fn(usize) -> bool| (0..statistics.bases.len()).filter(|&at| is(at)).collect();
        State {
            sums: all().filter(|(_, base)| base.is_used).map(|(at, _)| at).collect(),
            means: with(&|at| statistics.pairs.iter().any(|pair| pair.contains(&at))),
            shifts: with(&|at| statistics.bases[at].has_shift),
            pairs: statistics.pairs.clone(),
        }
    }

    /// The names of the numbers.
    fn names(&self) -> Vec<String> {
        let names = |prefix: &str, of: &[usize]| -> Vec<String> {
            of.iter().map(|at| format!("{prefix}{at}")).collect()
        };
        let pairs: Vec<usize> = (0..self.pairs.len()).collect();
        let all =
            [names("h", &self.shifts), names("m", &self.means), names("s", &self.sums), names("q", &pairs)];
        all.concat()
    }

    /// The number of the numbers.
    pub(super) fn len(&self) -> usize {
        self.names().len()
    }

    /// The struct `State` with `merged`.
    pub(super) fn text(&self) -> String {
        let names = self.names();
        let list: String = names.iter().map(|name| format!(", {name}")).collect();
        let mut text = format!("struct State {{ float count{list}; }};\n");
        // A state without elements has means of 0, and a product of large distances from them may be infinite.
        text += "__device__ __forceinline__ State merged(const State& a, const State& b) {\n  State y = b;
  if (b.count == 0) return a;\n";
        for at in &self.shifts {
            let _ = writeln!(text, "  y.h{at} = a.h{at};");
        }
        text += "  if (a.count == 0) return y;
  y.count = a.count + b.count;
  const float part = b.count / y.count;\n";
        for at in &self.means {
            let _ = writeln!(
                text,
                "  const float away{at} = b.m{at} - a.m{at};\n  y.m{at} = a.m{at} + away{at} * part;"
            );
        }
        for at in &self.sums {
            let _ = writeln!(text, "  y.s{at} = a.s{at} + b.s{at};");
        }
        for (at, [i, j]) in self.pairs.iter().enumerate() {
            let _ = writeln!(text, "  y.q{at} = a.q{at} + b.q{at} + away{i} * away{j} * (a.count * part);");
        }
        text += "  return y;\n}\n__device__ __forceinline__ State read(const float* states, u64 stride, float count) {
  State y;\n  y.count = count;\n";
        for (at, name) in names.iter().enumerate() {
            let _ = writeln!(text, "  y.{name} = states[{at} * stride];");
        }
        text += "  return y;\n}\n__device__ __forceinline__ void write(float* states, u64 stride, const State& x) {\n";
        for (at, name) in names.iter().enumerate() {
            let _ = writeln!(text, "  states[{at} * stride] = x.{name};");
        }
        text + "}\n"
    }

    /// `of_few`: the state of the first `n` of a few elements. `block_state`: that of the threads of a block.
    fn functions(&self) -> String {
        let list: Vec<String> = self.sums.iter().map(|at| format!("const float* few{at}")).collect();
        let mut text = format!(
            "__device__ __forceinline__ State of_few({}{}int n) {{\n  State y;\n  y.count = n;\n",
            list.join(", "),
            if list.is_empty() { "" } else { ", " }
        );
        for at in &self.shifts {
            let _ = writeln!(text, "  y.h{at} = 0;");
        }
        let folds = |text: &mut String, name: &str, term: &str| {
            let _ = writeln!(
                text,
                "  {name} = 0;\n  #pragma unroll\n  for (int m = 0; m < {FEW}; m++) if (m < n) {name} += {term};"
            );
        };
        for at in &self.sums {
            folds(&mut text, &format!("y.s{at}"), &format!("few{at}[m]"));
        }
        for at in &self.means {
            let _ = writeln!(text, "  y.m{at} = y.s{at} / (float)n;");
        }
        for (at, [i, j]) in self.pairs.iter().enumerate() {
            let term = format!("(few{i}[m] - y.m{i}) * (few{j}[m] - y.m{j})");
            folds(&mut text, &format!("y.q{at}"), &term);
        }
        text += "  return y;\n}\n";
        text += "__device__ State block_state(State x) {\n  __shared__ State part[32];
  for (int o = 1; o < 32; o <<= 1) {\n    State y;\n";
        for name in std::iter::once("count".to_owned()).chain(self.names()) {
            let _ = writeln!(text, "    y.{name} = __shfl_down_sync(0xffffffffu, x.{name}, o);");
        }
        text + "    if ((threadIdx.x & (2 * o - 1)) == 0) x = merged(x, y);
  }
  __syncthreads();
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = x;
  __syncthreads();
  x = part[0];
  for (u32 w = 1; w < blockDim.x >> 5; w++) x = merged(x, part[w]);
  return x;
}
"
    }
}

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
    /// The place of the `at`th array of one f32 value per channel. A thread that has read the states of a channel may write it.
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

/// A source as the text reads it.
enum From {
    /// An element for each index.
    Whole,
    /// One element, or one for each channel.
    Channel,
    /// An element that the position of the index determines; true if it is one element for a vector.
    Walked(String, bool),
}

impl Pass<'_> {
    /// The launch, and the states that it leaves. Behind the states is room for `n_arrays` numbers of each channel at least.
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
        let unknown = || KernelError::unsupported("groups of other operators");
        let space = self.space;
        let (printer, numbers) = self.text()?;
        let are_neighbours = space.inner == 1 && space.channels >= TILE / 2;
        let bytes = |elem: Elem| elem.bytes();
        let mut elems: Vec<Elem> = Vec::new();
        for (value, _) in self.written {
            elems.push(printer.values.get(value).ok_or_else(unknown)?.elem);
        }
        let steps = printer.sources.iter().map(|(_, source)| Steps::broadcast(&source.dims, &space.dims));
        let walk = Walk::new(&space.dims, steps.collect::<Option<_>>().ok_or_else(unknown)?);
        let whole =
            (0..printer.sources.len()).filter(|&s| walk.is_plain(s)).map(|s| printer.sources[s].1.elem);
        let widest = whole.chain(elems.iter().copied()).map(bytes).max().unwrap_or(4);
        let lanes = match 16 / widest.max(2) {
            lanes if !are_neighbours && space.inner.is_multiple_of(lanes) => lanes,
            _ => 1,
        };
        let (channels, count) = (space.channels, space.count());
        let tiles = if are_neighbours { channels.div_ceil(TILE) } else { channels };
        let most = if are_neighbours { PART_ELEMENTS / TILE } else { PART_ELEMENTS };
        let parts = match tiles < MANY_BLOCKS && count >= 2 * most {
            true => count.div_ceil(most).min(2 * MANY_BLOCKS / tiles.max(1)).max(1),
            false => 1,
        };
        // Arrays begin at a multiple of 16 bytes.
        let stride = (parts * channels).next_multiple_of(4);
        let place = scratch.part(4 * stride * self.state.len().max(n_arrays));
        let states = States { place, stride, parts, lanes };

        let mut source = Source::new(space.dims.iter().product::<usize>().max(parts * channels));
        source.function(VECTORS);
        source.function(TAKEN);
        source.function(&printer.functions.iter().copied().collect::<String>());
        source.function(&self.state.text());
        source.function(&self.state.functions());
        let mut froms = Vec::new();
        let mut aligned: Vec<String> = Vec::new();
        for (s, (key, of)) in printer.sources.iter().enumerate() {
            let Key::Value(value) = key else { return Err(unknown()) };
            source.from(&format!("x{s}"), of.elem, place_of(*value).ok_or_else(unknown)?);
            froms.push(if of.dims == space.dims {
                aligned.push(format!("(u64)x{s}"));
                From::Whole
            } else if of.dims.iter().product::<usize>() == 1 || space.has_channels(&of.dims) {
                From::Channel
            } else {
                let is_one = walk.operands[s].steps.last() == Some(&0)
                    && walk.dims.last().is_some_and(|last| last.is_multiple_of(lanes));
                let at = if is_one { "at" } else { "at + v" };
                From::Walked(source.position(&walk.dims, &walk.operands[s], &format!("({at})")), is_one)
            });
        }
        for (j, ((_, place), elem)) in self.written.iter().zip(&elems).enumerate() {
            source.to(&format!("y{j}"), *elem, *place);
            aligned.push(format!("(u64)y{j}"));
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
        let index = source.index;
        let mut hoisted = String::new();
        let is_single = |s: usize| printer.sources[s].1.dims.iter().product::<usize>() == 1;
        for s in (0..froms.len()).filter(|&s| matches!(froms[s], From::Channel)) {
            let at = if is_single(s) { "0" } else { "c" };
            let _ = writeln!(hoisted, "  const {} b{s} = x{s}[{at}];", printer.sources[s].1.elem.stored());
        }
        if !aligned.is_empty() {
            let _ = writeln!(hoisted, "  const bool whole = (({}) & 15) == 0;", aligned.join(" | "));
        }
        let stored = |s: usize| printer.sources[s].1.elem.stored();
        let loads = || {
            let (mut outer, mut inner) = (String::new(), String::new());
            for (s, from) in froms.iter().enumerate() {
                let ty = stored(s);
                let _ = match from {
                    From::Channel => Ok(()),
                    From::Whole => writeln!(
                        outer,
                        "      const Vector<{ty}, {lanes}> v{s} = taken<{lanes}>(x{s} + at, whole);"
                    )
                    .and_then(|()| writeln!(inner, "      const {ty} b{s} = v{s}.at[v];")),
                    From::Walked(place, true) => writeln!(outer, "      const {ty} b{s} = x{s}[{place}];"),
                    From::Walked(place, false) => writeln!(inner, "      const {ty} b{s} = x{s}[{place}];"),
                };
            }
            (outer, inner)
        };
        let mut begin = String::from("  State state;\n  state.count = 0;\n");
        for name in self.state.names() {
            let _ = writeln!(begin, "  state.{name} = 0;");
        }
        let mut arrays = String::new();
        let (mut assigns, mut list) = (String::new(), String::new());
        for &at in &self.state.sums {
            let has_shift = self.state.shifts.contains(&at);
            let shift = if has_shift { format!(" - state.h{at}") } else { String::new() };
            let _ = writeln!(arrays, "    float few{at}[{FEW}];");
            let _ = writeln!(assigns, "      few{at}[u * {lanes} + v] = {}{shift};", numbers[at]);
            let _ = write!(list, "few{at}, ");
        }
        begin += &self.shifts(&printer, &froms, index).ok_or_else(unknown)?;
        let (outer, inner) = loads();
        let mut stores = String::new();
        let mut vectors = String::new();
        let mut sets = String::new();
        for (j, ((value, _), elem)) in self.written.iter().zip(&elems).enumerate() {
            let _ = writeln!(vectors, "      Vector<{}, {lanes}> w{j};", elem.stored());
            let _ = writeln!(sets, "      w{j}.at[v] = {};", printer.values[value].bits);
            let _ = writeln!(stores, "      put<{lanes}>(y{j} + at, w{j}, whole);");
        }
        let place = match are_neighbours {
            true => format!(
                "  {index} c = blockIdx.x / parts * {TILE} + (threadIdx.x & 31), part = blockIdx.x % parts;
  const u32 lane = threadIdx.x >> 5, lanes = {rows};
  const bool is_in = c < channels;
  if (!is_in) c = 0;
  const u64 low = (u64)count * part / parts, high = is_in ? (u64)count * (part + 1) / parts : 0;\n",
                rows = THREADS as usize / TILE
            ),
            false => format!(
                "  const {index} c = blockIdx.x / parts, part = blockIdx.x % parts;
  const u32 lane = threadIdx.x, lanes = blockDim.x;
  const bool is_in = true;
  const u64 low = (u64)(count / {lanes}) * part / parts * {lanes}, high = (u64)(count / {lanes}) * (part + 1) / parts * {lanes};\n"
            ),
        };
        let end = match are_neighbours {
            true => format!(
                "  __shared__ State rows[{rows}][{TILE}];
  rows[lane][threadIdx.x & 31] = state;
  __syncthreads();
  if (lane || !is_in) return;
  for (u32 r = 1; r < lanes; r++) state = merged(state, rows[r][threadIdx.x & 31]);
",
                rows = THREADS as usize / TILE
            ),
            false => "  state = block_state(state);\n  if (threadIdx.x) return;\n".into(),
        };
        let body = format!(
            "{place}{hoisted}{begin}  for (u64 start = low; start < high; start += (u64)lanes * {FEW}) {{
{arrays}    int many = 0;
    #pragma unroll
    for (int u = 0; u < {steps}; u++) {{
      const u64 k = start + ((u64)u * lanes + lane) * {lanes};
      if (k >= high) continue;
      const {index} o = ({index})k / inner, at = (o * channels + c) * inner + (({index})k - o * inner);
{outer}{vectors}      #pragma unroll
      for (int v = 0; v < {lanes}; v++) {{
{inner}{elements}{assigns}{sets}      }}
{stores}      many = (u + 1) * {lanes};
    }}
    if (many) state = merged(state, of_few({list}many));
  }}
{end}  write(states + ((u64)part * channels + c), stride, state);",
            steps = FEW / lanes,
            elements = printer.body,
        );
        let shape = match are_neighbours {
            true => [tiles * parts, THREADS as usize],
            false => [tiles * parts, threads_for(count.div_ceil(parts * FEW)) as usize],
        };
        Ok((source.launch(maker, &body, shape)?, states))
    }

    /// The statements that set the shifts of channel `c`: its first element of each base, or 0 if that is not finite.
    fn shifts(&self, printer: &Printer, froms: &[From], index: &str) -> Option<String> {
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
            let is_same = |(other, source): &(Key, elements::Source)| other == key && source.dims == of.dims;
            let s = printer.sources.iter().position(is_same)?;
            let at = match &froms[s] {
                From::Channel if of.dims.iter().product::<usize>() == 1 => "0",
                From::Channel => "c",
                From::Whole => "at",
                From::Walked(place, _) => place,
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
            let &Key::Value(value) = key else { continue };
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
        made().ok_or_else(|| KernelError::unsupported("groups of other operators"))
    }
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
