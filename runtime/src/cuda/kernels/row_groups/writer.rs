//! Prints the passes of a row kernel.

use super::super::expressions::{Printed, Printer};
use super::super::fold::Fold;
use super::super::random::{Dropped, functions_of_dropout};
use super::nodes::Op;
use super::passes::{Passes, Task, elem_of};
use super::space::{Class, Program};
use crate::cuda::text::{Elem, f32_text};
use ampc_ir::Value;
use std::collections::BTreeSet;
use std::fmt::Write;

/// The source printed so far.
pub(super) struct Writer<'a> {
    program: &'a Program<'a>,
    passes: &'a Passes,
    /// The known row values and scalars, and the functions of all passes.
    pub(super) rows: Printer,
    /// The formulas of the functions `join_0`, `join_1`, ….
    pub(super) folds: Vec<String>,
    /// The statements for a row.
    pub(super) body: String,
}

/// A loop over the elements of a row.
struct Loop {
    printer: Printer,
    /// The values from outside that it loads.
    loads: BTreeSet<usize>,
    pass: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(program: &'a Program<'a>, passes: &'a Passes) -> Option<Writer<'a>> {
        let mut writer =
            Writer { program, passes, rows: Printer::default(), folds: Vec::new(), body: String::new() };
        for (at, source) in program.sources.iter().enumerate() {
            if matches!(source.class, Class::Row | Class::Scalar) {
                writer.rows.define(source.value, Printed::stored(source.elem, format!("q{at}")));
            }
        }
        writer.row_nodes(0)?;
        Some(writer)
    }

    /// Prints the nodes of row values and scalars that are known after `level` passes.
    fn row_nodes(&mut self, level: usize) -> Option<()> {
        for (at, node) in self.program.nodes.iter().enumerate() {
            let is_row = matches!(self.program.classes[at], Class::Row | Class::Scalar)
                && !matches!(node.op, Op::Fold(_));
            let value = node.made.first().copied().flatten()?.value;
            if is_row && self.passes.levels.get(&value) == Some(&level) {
                print(self.program, at, &mut self.rows)?;
            }
        }
        self.body += &std::mem::take(&mut self.rows.body);
        Some(())
    }

    fn begin(&mut self, pass: usize) -> Loop {
        Loop { printer: self.rows.inner(), loads: BTreeSet::new(), pass }
    }

    /// Prints a loop. `declared` precedes the elements of a vector, and `stored` follows them.
    fn end(&mut self, of: Loop, declared: &str, stored: &str) {
        let Loop { printer, loads, pass } = of;
        let mut loaded = String::new();
        for at in loads {
            let source = &self.program.sources[at];
            let name = if self.passes.kept.contains(&source.value) {
                format!("s{at} + j")
            } else {
                let _ = writeln!(loaded, "        {} v{at}[V];", source.elem.stored());
                format!("v{at}")
            };
            let _ = writeln!(loaded, "        get({name}, row_x{at}, low, n, is_vector);");
        }
        let _ = write!(
            self.body,
            "    // Pass {pass}.
    #pragma unroll
    for (int j = 0; j < ITEMS; j += V) {{
      const u32 low = j * LANES + lane * V;
      if (low < n) {{
{loaded}{declared}        #pragma unroll
        for (int m = 0; m < V; m++) {{
{}        }}
{stored}      }}
    }}\n",
            printer.body
        );
        self.rows.absorb(printer);
    }

    /// Prints the computation of a full or column value of the element `low + m`, unless the loop already has it.
    fn demand(&self, value: Value, of: &mut Loop) -> Option<()> {
        if of.printer.has(value) {
            return Some(());
        }
        let (program, passes) = (self.program, self.passes);
        let is_kept = passes.kept.contains(&value);
        let is_there = is_kept && passes.first.get(&value).is_some_and(|&first| first < of.pass);
        let elem = elem_of(program, value)?;
        let register = || format!("{}[j + m]", kept_name(program, value));
        let Some(&(at, _)) = program.makers.get(&value) else {
            let at = program.source_of.get(&value).copied()?;
            if !is_there {
                of.loads.insert(at);
            }
            let bits = if is_kept { register() } else { format!("v{at}[m]") };
            of.printer.define(value, Printed::stored(elem, bits));
            return Some(());
        };
        if is_there {
            of.printer.define(value, Printed::stored(elem, register()));
            return Some(());
        }
        for read in &program.nodes[at].reads {
            self.demand(read.value, of)?;
        }
        print(program, at, &mut of.printer)?;
        for made in program.nodes[at].made.iter().flatten() {
            let is_first = passes.first.get(&made.value) == Some(&of.pass);
            if is_first && passes.kept.contains(&made.value) {
                let bits = of.printer.bits(made.value)?;
                let _ = writeln!(of.printer.body, "    {}[j + m] = {bits};", kept_name(program, made.value));
            }
        }
        Some(())
    }

    /// The index of the function that combines two partial results of a fold.
    fn join(&mut self, formula: &str) -> usize {
        let found = self.folds.iter().position(|other| other == formula);
        found.unwrap_or_else(|| {
            self.folds.push(formula.to_owned());
            self.folds.len() - 1
        })
    }

    /// Prints a pass with folds.
    pub(super) fn pass(&mut self, pass: usize) -> Option<()> {
        let program = self.program;
        let tasks: Vec<Task> = self.passes.tasks.iter().copied().filter(|task| task.pass == pass).collect();
        let mut of = self.begin(pass);
        let mut ends = String::new();
        for Task { node: at, step, .. } in tasks {
            let node = program.nodes[at];
            self.demand(node.reads[0].value, &mut of)?;
            let x = of.printer.wide(&node.reads[0])?;
            let mut add = |writer: &mut Writer<'_>, fold: &Fold, name: &str, x: &str, end: &str| {
                let k = writer.join(&fold.join);
                let _ = writeln!(writer.body, "    float {name}_ = {};", fold.start);
                let _ = writeln!(
                    of.printer.body,
                    "    if (low + m < n) {{ const float x = {x}; {name}_ = join_{k}({name}_, {}); }}",
                    fold.term
                );
                let end = end.replace("acc", &format!("fold_{k}({name}_)")).replace("count", "n");
                let _ = writeln!(ends, "    const float {name} = {end};");
            };
            let sum = |term: &str| Fold::sum(Elem::F32, term, "acc");
            match (&node.op, step) {
                (Op::Fold(fold), _) => {
                    add(self, fold, &format!("f{at}"), &x, &fold.end);
                }
                (Op::Softmax { .. }, 0) => {
                    add(self, &Fold::greatest(Elem::F32), &format!("most{at}"), &x, "acc");
                }
                (Op::Softmax { is_log }, _) => {
                    let term = format!("expf(x - most{at})");
                    add(self, &sum(&term), &format!("sum{at}"), &x, "acc");
                    if *is_log {
                        let _ = writeln!(ends, "    const float log{at} = logf(sum{at});");
                    }
                }
                (Op::Norm { .. }, 0) => {
                    add(self, &sum("x"), &format!("mean{at}"), &x, "acc / (float)count");
                }
                (Op::Norm { epsilon, is_centered }, _) => {
                    let d = if *is_centered { format!("{x} - mean{at}") } else { x };
                    let mut rest = String::new();
                    if *is_centered {
                        add(self, &sum("x"), &format!("rest{at}"), &d, "acc / (float)count");
                        rest = format!(" - rest{at} * rest{at}");
                    }
                    add(self, &sum("x * x"), &format!("square{at}"), &d, "acc / (float)count");
                    let epsilon = f32_text(*epsilon);
                    let _ = writeln!(
                        ends,
                        "    const float inverse{at} = 1.0f / sqrtf((square{at}{rest} < 0.0f ? 0.0f : square{at}{rest}) + {epsilon});"
                    );
                }
                _ => return None,
            }
        }
        self.end(of, "", "");
        self.body += &ends;
        // A node is known after its last fold.
        let passes = self.passes;
        for task in passes.tasks.iter().filter(|task| task.pass == pass) {
            if !passes.tasks.iter().any(|other| other.node == task.node && other.pass > pass) {
                self.known(task.node)?;
            }
        }
        self.row_nodes(pass)
    }

    /// Defines the row values of a node whose folds are done.
    fn known(&mut self, at: usize) -> Option<()> {
        let node = self.program.nodes[at];
        let numbers = match &node.op {
            Op::Fold(_) => vec![(0, format!("f{at}"))],
            Op::Norm { is_centered: true, .. } => {
                vec![(1, format!("mean{at} + rest{at}")), (2, format!("inverse{at}"))]
            }
            Op::Norm { .. } => vec![(1, format!("inverse{at}")), (2, format!("inverse{at}"))],
            _ => Vec::new(),
        };
        for (j, number) in numbers {
            if let Some(made) = node.made.get(j).copied().flatten() {
                let printed = self.rows.rounded(made.elem, number);
                self.rows.define(made.value, printed);
            }
        }
        self.body += &std::mem::take(&mut self.rows.body);
        Some(())
    }

    /// Prints the last pass: the results, and the sums along columns.
    pub(super) fn last(&mut self, results: &[Value], sums: &[usize]) -> Option<()> {
        let program = self.program;
        let mut of = self.begin(self.passes.count + 1);
        let (mut declared, mut stored, mut of_rows) = (String::new(), String::new(), String::new());
        for (j, &value) in results.iter().enumerate() {
            match program.class(value)? {
                Class::Full => {
                    self.demand(value, &mut of)?;
                    let bits = of.printer.bits(value)?;
                    let ty = elem_of(program, value)?.stored();
                    let _ = writeln!(declared, "        Vector<{ty}, V> w{j};");
                    let _ = writeln!(of.printer.body, "    w{j}.at[m] = {bits};");
                    let _ = writeln!(stored, "        put(y{j} + row * n, w{j}, low, n, is_vector);");
                }
                Class::Row => {
                    let bits = self.rows.bits(value)?;
                    let _ = writeln!(of_rows, "    if (lane == 0) y{j}[row] = {bits};");
                }
                _ => {}
            }
        }
        for (k, &at) in sums.iter().enumerate() {
            let read = &program.nodes[at].reads[0];
            self.demand(read.value, &mut of)?;
            let x = of.printer.wide(read)?;
            let _ = writeln!(of.printer.body, "    c{k}[j + m] += {x};");
        }
        if !(stored.is_empty() && sums.is_empty()) {
            self.end(of, &declared, &stored);
        }
        self.body += &of_rows;
        Some(())
    }
}

/// Prints the statements of a node whose operands are known.
fn print(program: &Program<'_>, at: usize, printer: &mut Printer) -> Option<()> {
    let node = program.nodes[at];
    let made = node.made.first().copied().flatten()?;
    let number = match &node.op {
        Op::Member(member) => return printer.member(member),
        Op::Copy | Op::View => {
            let same = printer.value(node.reads[0].value)?;
            printer.define(made.value, same);
            return Some(());
        }
        Op::Softmax { is_log } => {
            let x = printer.wide(&node.reads[0])?;
            match is_log {
                true => format!("({x} - most{at}) - log{at}"),
                false => format!("expf({x} - most{at}) / sum{at}"),
            }
        }
        Op::Norm { is_centered, .. } => {
            let x = printer.wide(&node.reads[0])?;
            let scale = printer.wide(&node.reads[1])?;
            let bias = match node.reads.get(2) {
                Some(read) => format!(" + {}", printer.wide(read)?),
                None => String::new(),
            };
            let x = if *is_centered { format!("(({x} - mean{at}) - rest{at})") } else { x };
            format!("{x} * inverse{at} * {scale}{bias}")
        }
        Op::Dropout(dropped) => return print_dropped(program, at, dropped, printer),
        Op::Fold(_) | Op::Sums { .. } => return None,
    };
    let printed = printer.rounded(made.elem, number);
    printer.define(made.value, printed);
    Some(())
}

/// Prints the statements of a dropout for element `k` of the vector that begins at the flat index `i`.
fn print_dropped(program: &Program<'_>, at: usize, dropped: &Dropped, printer: &mut Printer) -> Option<()> {
    let node = program.nodes[at];
    let mut text = "    { const u64 i = row * n + low; const int k = m;\n".to_owned();
    for (b, (read, (_, elem))) in node.reads.iter().zip(&dropped.operands).enumerate() {
        let _ = writeln!(text, "    const {} b{b} = {};", elem.stored(), printer.bits(read.value)?);
    }
    let mut end = String::new();
    for &(j, elem) in &dropped.results {
        let ty = elem.stored();
        let _ = writeln!(printer.body, "    {ty} d{at}_{j};");
        let _ = writeln!(text, "    {ty} r{j};");
        let _ = writeln!(end, "    d{at}_{j} = r{j};");
        let made = node.made.get(j).copied().flatten()?;
        printer.define(made.value, Printed::stored(elem, format!("d{at}_{j}")));
    }
    let body = dropped.body.replace("key0", &format!("key0_{at}")).replace("key1", &format!("key1_{at}"));
    let _ = writeln!(printer.body, "{text}{body}{end}    }}");
    printer.functions.extend(functions_of_dropout());
    Some(())
}

/// The source of `fold_{at}`, a reduction over the threads of a row in a fixed order; every thread gets the result.
pub(super) fn fold_text(at: usize, join: &str, lanes: usize) -> String {
    let mut text = format!(
        "__device__ __forceinline__ A join_{at}(A acc, A term) {{ return {join}; }}
__device__ __forceinline__ A fold_{at}(A x) {{
  for (int o = 16; o; o >>= 1) {{ A y = __shfl_xor_sync(0xffffffffu, x, o); x = join_{at}(x, y); }}\n"
    );
    if lanes > 32 {
        text += &format!(
            "  __shared__ A part[LANES / 32];
  __syncthreads();
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = x;
  __syncthreads();
  x = part[0];
  for (u32 w = 1; w < LANES / 32; w++) x = join_{at}(x, part[w]);\n"
        );
    }
    text += "  return x;\n}\n";
    text
}

/// The name of the registers of a value.
pub(super) fn kept_name(program: &Program<'_>, value: Value) -> String {
    match (program.makers.get(&value), program.source_of.get(&value)) {
        (Some((at, j)), _) => format!("e{at}_{j}"),
        (None, Some(at)) => format!("s{at}"),
        (None, None) => "s".into(),
    }
}
