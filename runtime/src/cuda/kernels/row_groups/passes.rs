//! The passes of a row kernel.
//!
//! Each pass iterates over the elements of a row and computes the reductions whose operands are known; the last pass
//! computes the results. The softmax of a sum `x = a + b` in f16, without types:
//!
//! ```text
//! pass 1   s0 = a; s1 = b; t = to_f16(s0 + s1); most = max(most, t)
//! pass 2   t = to_f16(s0 + s1); sum += exp(t - most)
//! last     t = to_f16(s0 + s1); y = exp(t - most) / sum
//! ```
//!
//! Operands (`s0`, `s1`) and the results of functions stay in registers from the first pass that needs them; other
//! nodes are recomputed. A thread has vectors of `V` elements, `LANES · V` elements apart.

use super::nodes::Op;
use super::space::{Class, Program};
use crate::cuda::text::Elem;
use ampc_ir::Value;
use rustc_hash::{FxHashMap, FxHashSet};

/// The distribution of a row over threads.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// The number of threads of a row.
    pub(super) lanes: usize,
    /// The number of elements of a thread.
    pub(super) items: usize,
    /// The number of elements of a vector.
    pub(super) vector: usize,
}

/// The maximum number of bytes of elements that a thread keeps, in blocks of 256 threads and in larger blocks.
const MOST_KEPT: [usize; 2] = [160, 112];

/// The maximum number of elements of a thread, in a row of one warp and in a row of several: loops over them are unrolled.
/// With more elements, the compiler spills registers for the sake of occupancy.
const MOST_ITEMS: [usize; 2] = [32, 64];

/// A fold of a pass: the node, and the step of its computation.
#[derive(Clone, Copy)]
pub(super) struct Task {
    pub(super) pass: usize,
    pub(super) node: usize,
    pub(super) step: usize,
}

/// The passes of a group.
pub(super) struct Passes {
    pub(super) tasks: Vec<Task>,
    /// The number of passes with folds.
    pub(super) count: usize,
    /// The number of completed passes after which a value is known.
    pub(super) levels: FxHashMap<Value, usize>,
    /// The first pass that needs a value.
    pub(super) first: FxHashMap<Value, usize>,
    /// The values that stay in registers.
    pub(super) kept: FxHashSet<Value>,
}

impl Passes {
    pub(super) fn new(program: &Program<'_>, results: &[Value]) -> Passes {
        let mut passes = Passes {
            tasks: Vec::new(),
            count: 0,
            levels: FxHashMap::default(),
            first: FxHashMap::default(),
            kept: FxHashSet::default(),
        };
        for (at, node) in program.nodes.iter().enumerate() {
            let known = node.reads.iter().filter_map(|read| passes.levels.get(&read.value)).max();
            let before = known.copied().unwrap_or(0);
            let steps: &[usize] = match node.op {
                Op::Fold(_) => &[0],
                Op::Softmax { .. } | Op::Norm { is_centered: true, .. } => &[0, 1],
                Op::Norm { is_centered: false, .. } => &[1],
                _ => &[],
            };
            for (away, &step) in steps.iter().enumerate() {
                passes.tasks.push(Task { pass: before + away + 1, node: at, step });
            }
            let level = before + steps.len();
            passes.count = passes.count.max(level);
            passes.levels.extend(node.made.iter().flatten().map(|made| (made.value, level)));
        }
        for pass in 1..=passes.count + 1 {
            let mut seen = FxHashSet::default();
            for value in passes.targets(program, results, pass) {
                passes.visit(program, value, pass, &mut seen);
            }
        }
        passes
    }

    /// The full values that a pass needs.
    fn targets(&self, program: &Program<'_>, results: &[Value], pass: usize) -> Vec<Value> {
        let operand = |at: usize| program.nodes[at].reads[0].value;
        if pass <= self.count {
            return self
                .tasks
                .iter()
                .filter(|task| task.pass == pass)
                .map(|task| operand(task.node))
                .collect();
        }
        let full = results.iter().copied().filter(|&value| program.class(value) == Some(Class::Full));
        let sums = (0..program.nodes.len()).filter(|&at| program.classes[at] == Class::Sums).map(operand);
        full.chain(sums).collect()
    }

    fn visit(&mut self, program: &Program<'_>, value: Value, pass: usize, seen: &mut FxHashSet<Value>) {
        if !seen.insert(value) {
            return;
        }
        let maker = program.makers.get(&value).map(|&(at, _)| at);
        let is_kept = match maker {
            Some(at) => program.classes[at] == Class::Full && program.nodes[at].is_expensive(),
            None => program.source_of.get(&value).is_some_and(|&at| program.sources[at].class == Class::Full),
        };
        if is_kept {
            match self.first.get(&value) {
                Some(&first) if first < pass => {
                    self.kept.insert(value);
                    return;
                }
                Some(_) => {}
                None => {
                    self.first.insert(value, pass);
                }
            }
        }
        let Some(at) = maker else { return };
        if matches!(program.class(value), Some(Class::Full | Class::Column)) {
            program.nodes[at].reads.iter().for_each(|read| self.visit(program, read.value, pass, seen));
        }
    }
}

/// The element type of a value.
pub(super) fn elem_of(program: &Program<'_>, value: Value) -> Option<Elem> {
    match program.makers.get(&value) {
        Some(&(at, j)) => program.nodes[at].made[j].map(|made| made.elem),
        None => program.source_of.get(&value).map(|&at| program.sources[at].elem),
    }
}

/// The distribution of a row over threads; `None` if a row does not fit into registers.
pub(super) fn shape(program: &Program<'_>, passes: &Passes, results: &[Value]) -> Option<Shape> {
    let kept: Option<usize> = passes.kept.iter().map(|&value| Some(elem_of(program, value)?.bytes())).sum();
    let sums = program.classes.iter().filter(|&&class| class == Class::Sums).count();
    let bytes = kept? + 4 * sums;
    let sources = program.sources.iter().filter(|source| matches!(source.class, Class::Full | Class::Column));
    let full = results.iter().filter(|&&value| program.class(value) == Some(Class::Full));
    let widest = sources.map(|source| source.elem.bytes());
    let widest = widest.chain(full.filter_map(|&value| Some(elem_of(program, value)?.bytes()))).max();
    let most = if widest.is_some_and(|bytes| bytes > 2) { 4 } else { 8 };
    let vector = (program.n / 32).max(1).next_power_of_two().min(most);
    let shape_of = |lanes: usize| Shape { lanes, items: program.n.div_ceil(lanes * vector) * vector, vector };
    let is_small = |&Shape { lanes, items, vector }: &Shape| {
        let most = MOST_ITEMS[usize::from(lanes > 32)];
        items == vector || (items <= most && items * bytes <= MOST_KEPT[usize::from(lanes > 256)])
    };
    [32, 64, 128, 256, 512, 1024].into_iter().map(shape_of).find(is_small)
}

/// True if a row fits into the registers of a block.
pub(super) fn fits(program: &Program<'_>, results: &[Value]) -> bool {
    shape(program, &Passes::new(program, results), results).is_some()
}
