//! The state of a thread that computes the sums of a channel group, as a text.

use super::statistics::Statistics;
use std::fmt::Write;

/// The elements that a thread reads before it merges their moments into its own.
pub(super) const BATCH: usize = 8;

/// The text of the state of a thread: a struct of numbers, and its functions.
pub(super) struct State {
    /// The bases that have sums.
    pub(super) sums: Vec<usize>,
    /// The bases that have means: those of a pair.
    means: Vec<usize>,
    pub(super) shifts: Vec<usize>,
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
    pub(super) fn names(&self) -> Vec<String> {
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

    /// The struct `State` with `merged`, `read`, `write` and `warp_state`.
    pub(super) fn text(&self) -> String {
        let names = self.names();
        let list: String = names.iter().map(|name| format!(", {name}")).collect();
        let mut text = format!("struct State {{ float count{list}; }};\n{}", self.merged());
        text += "__device__ __forceinline__ State read(const float* states, u64 stride, float count) {
  State y;\n  y.count = count;\n";
        for (at, name) in names.iter().enumerate() {
            let _ = writeln!(text, "  y.{name} = states[{at} * stride];");
        }
        text += "  return y;\n}\n__device__ __forceinline__ void write(float* states, u64 stride, const State& x) {\n";
        for (at, name) in names.iter().enumerate() {
            let _ = writeln!(text, "  states[{at} * stride] = x.{name};");
        }
        text + "}\n" + &self.of_warp()
    }

    /// `merged`: the state of the elements of two states.
    fn merged(&self) -> String {
        // A state without elements has means of 0, and a product of large distances from them may be infinite.
        let mut text =
            "__device__ __forceinline__ State merged(const State& a, const State& b) {\n  State y = b;
  if (b.count == 0) return a;\n"
                .to_owned();
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
        text + "  return y;\n}\n"
    }

    /// `warp_state`: the state of the lanes of a warp, merged in their order. Only the first lane has it. Lanes without
    /// elements are behind all others.
    fn of_warp(&self) -> String {
        let mut text = "__device__ __forceinline__ State warp_state(State x) {
  #pragma unroll
  for (int o = 1; o < 32; o <<= 1) {\n    State y;\n"
            .to_owned();
        for name in std::iter::once("count".to_owned()).chain(self.names()) {
            let _ = writeln!(text, "    y.{name} = __shfl_down_sync(0xffffffffu, x.{name}, o);");
        }
        text + "    if ((threadIdx.x & (2 * o - 1)) == 0) x = merged(x, y);\n  }\n  return x;\n}\n"
    }

    /// `of_few`: the state of the first `n` of a few elements. `block_state`: that of the threads of a block.
    pub(super) fn functions(&self) -> String {
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
                "  {name} = 0;\n  #pragma unroll\n  for (int m = 0; m < {BATCH}; m++) if (m < n) {name} += {term};"
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
        text + "  return y;\n}\n" + BLOCK_STATE
    }
}

/// The state of the threads of a block; every thread has it.
const BLOCK_STATE: &str = "__device__ State block_state(State x) {
  __shared__ State part[32];
  x = warp_state(x);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = x;
  __syncthreads();
  x = part[0];
  for (u32 w = 1; w < blockDim.x >> 5; w++) x = merged(x, part[w]);
  return x;
}
";
