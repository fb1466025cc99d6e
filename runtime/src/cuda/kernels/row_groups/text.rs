//! The kernel of a row group: its launches and their arguments.

use super::super::Maker;
use super::super::random::{Dropped, RATIO};
use super::super::stage::{Place, Scratch, Source, Stage, staged};
use super::nodes::{Made, Op};
use super::passes::{Passes, Shape, elem_of, shape};
use super::space::{Class, Program};
use super::writer::{Writer, fold_text, kept_name};
use crate::backend::GroupSite;
use crate::cuda::elements::VECTORS;
use crate::cuda::text::Elem;
use crate::groups::unsupported_group;
use crate::kernel::{Prepared, Result};
use ampc_ir::Value;
use std::fmt::Write;

/// The kernel of a group.
///
/// # Errors
/// If a row does not fit into registers, or an operand is not one of the group.
pub(super) fn prepare(maker: &Maker<'_>, group: &GroupSite<'_>, program: &Program<'_>) -> Result<Prepared> {
    let passes = Passes::new(program, group.results);
    let shape = shape(program, &passes, group.results).ok_or_else(unsupported_group)?;
    let (rows, n, lanes) = (program.rows, program.n, shape.lanes);
    // A block computes several short rows, one per warp, or one long row at a time.
    let per_block = if lanes == 32 { 8 } else { 1 };
    let mut source = Source::new(rows * n);
    let mut accesses = Accesses::default();
    accesses.add_operands(&mut source, group, program)?;
    source.bound(per_block * lanes);
    accesses.add_results(&mut source, group, program)?;
    let sums: Vec<usize> =
        (0..program.nodes.len()).filter(|&at| program.classes[at] == Class::Sums).collect();
    // Each warp or block has its own column sums: few enough to merge cheaply, and enough to keep a device busy.
    let most = rows.div_ceil(per_block).min((rows / 16).div_ceil(per_block).clamp(128, 512));
    let blocks = if sums.is_empty() { rows.div_ceil(per_block) } else { most };
    let parts = blocks * per_block;
    let mut scratch = Scratch::default();
    let place = scratch.part(sums.len() * parts * n * 4);
    if !sums.is_empty() {
        source.to("sums", Elem::F32, place);
    }
    source.number("n", n);
    source.number("rows", rows);
    let mut writer = Writer::new(program, &passes).ok_or_else(unsupported_group)?;
    for pass in 1..=passes.count {
        writer.pass(pass).ok_or_else(unsupported_group)?;
    }
    writer.last(group.results, &sums).ok_or_else(unsupported_group)?;
    add_functions(&mut source, &writer, shape, n);
    add_keys(&mut source, maker, program);
    let text = row_loop(&accesses, &writer.body, &kept(program, &passes)?, sums.len());
    let mut stages = vec![source.launch(maker, &text, [blocks, per_block * lanes])?];
    if !sums.is_empty() {
        stages.push(total(maker, group, program, (place, parts), &sums)?);
    }
    let [first, others] = in_place(group, program)?;
    let first: Vec<usize> = first.into_iter().map(|(_, i)| i).collect();
    Ok(staged(stages, &scratch).in_place(&first).others_in_place(&others))
}

/// The accesses of the kernel to operands and results.
#[derive(Default)]
struct Accesses {
    /// The addresses that must be aligned for vectors, each after an `or`.
    aligned: String,
    /// The statements at the beginning of a row.
    begin: String,
}

impl Accesses {
    /// Adds the pointers to operands, and the statements that find or load the elements of a row.
    fn add_operands(
        &mut self,
        source: &mut Source,
        group: &GroupSite<'_>,
        program: &Program<'_>,
    ) -> Result<()> {
        for (at, one) in program.sources.iter().enumerate() {
            source.from(&format!("x{at}"), one.elem, Place::operand(operand_of(group, one.value)?));
            let place = source.position(&one.rows.dims, &one.rows.operands[0], "row");
            let ty = one.elem.stored();
            let _ = match one.class {
                Class::Full | Class::Column => {
                    let _ = write!(self.aligned, " | (u64)x{at}");
                    writeln!(self.begin, "    const {ty}* const row_x{at} = x{at} + {place};")
                }
                _ => writeln!(self.begin, "    const {ty} q{at} = x{at}[{place}];"),
            };
        }
        Ok(())
    }

    /// Adds the pointers to results, except column sums, which another launch stores.
    fn add_results(
        &mut self,
        source: &mut Source,
        group: &GroupSite<'_>,
        program: &Program<'_>,
    ) -> Result<()> {
        for (j, &value) in group.results.iter().enumerate() {
            let elem = elem_of(program, value).ok_or_else(unsupported_group)?;
            match program.class(value) {
                Some(Class::Sums) => continue,
                Some(Class::Full) => {
                    let _ = write!(self.aligned, " | (u64)y{j}");
                }
                _ => {}
            }
            source.to(&format!("y{j}"), elem, Place::result(j));
        }
        Ok(())
    }
}

fn operand_of(group: &GroupSite<'_>, value: Value) -> Result<usize> {
    group.operand(value).ok_or_else(unsupported_group)
}

/// Adds the device functions, for rows of `n` elements.
fn add_functions(source: &mut Source, writer: &Writer<'_>, shape: Shape, n: usize) {
    let Shape { lanes, items, vector } = shape;
    source.function(VECTORS);
    source.function(&format!(
        "#define V {vector}\n#define LANES {lanes}\n#define ITEMS {items}\ntypedef float A;\n{ACCESS}"
    ));
    writer.folds.iter().enumerate().for_each(|(at, join)| source.function(&fold_text(at, join, lanes)));
    writer.rows.functions.iter().for_each(|text| source.function(text));
    if !n.is_multiple_of(4) {
        // The first element of a vector is not aligned to four random words.
        source
            .function("#undef COUNTER\n#undef WORD\n#define COUNTER (at / 4)\n#define WORD (u32)(at % 4)\n");
    }
}

/// Adds the keys of Dropouts.
fn add_keys(source: &mut Source, maker: &Maker<'_>, program: &Program<'_>) {
    for (at, node) in program.nodes.iter().enumerate() {
        if let Op::Dropout(Dropped { key: Some(key), .. }) = &node.op {
            source.signed(&format!("key0_{at}"), key[0].into());
            source.signed(&format!("key1_{at}"), key[1].into());
            source.fails(maker, RATIO.to_owned());
        }
    }
}

/// The arrays of the values that stay in registers, with their element types.
fn kept(program: &Program<'_>, passes: &Passes) -> Result<Vec<(String, Elem)>> {
    let named =
        |&value| Ok((kept_name(program, value), elem_of(program, value).ok_or_else(unsupported_group)?));
    let mut kept = passes.kept.iter().map(named).collect::<Result<Vec<(String, Elem)>>>()?;
    kept.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    Ok(kept)
}

/// The loop over the rows of a warp or block, with `n_sums` column sums.
fn row_loop(accesses: &Accesses, body: &str, kept: &[(String, Elem)], n_sums: usize) -> String {
    let Accesses { aligned, begin } = accesses;
    let mut text = format!(
        "  const u32 lane = threadIdx.x % LANES;
  const u64 team = blockIdx.x * (u64)(blockDim.x / LANES) + threadIdx.x / LANES, teams = gridDim.x * (u64)(blockDim.x / LANES);
  const bool is_vector = n % V == 0 && (((u64)0{aligned}) & 15) == 0;\n"
    );
    for k in 0..n_sums {
        let _ = writeln!(
            text,
            "  float c{k}[ITEMS];\n  #pragma unroll\n  for (int j = 0; j < ITEMS; j++) c{k}[j] = 0.0f;"
        );
    }
    let _ = writeln!(text, "  for (u64 row = team; row < rows; row += teams) {{");
    text += begin;
    for (name, elem) in kept {
        let _ = writeln!(text, "    {} {name}[ITEMS];", elem.stored());
    }
    text += body;
    text += "  }\n";
    for k in 0..n_sums {
        let _ = writeln!(
            text,
            "  #pragma unroll
  for (int j = 0; j < ITEMS; j++) {{
    u32 k = j / V * V * LANES + lane * V + j % V;
    if (k < n) sums[({k} * teams + team) * n + k] = c{k}[j];
  }}"
        );
    }
    text
}

/// For each result, the operands that it may alias. Only full results may: a thread stores them after its last load
/// of the elements. The first list is that of result 0.
fn in_place(group: &GroupSite<'_>, program: &Program<'_>) -> Result<[Vec<(usize, usize)>; 2]> {
    let mut lists = [Vec::new(), Vec::new()];
    for (j, &value) in group.results.iter().enumerate() {
        if program.class(value) != Some(Class::Full) {
            continue;
        }
        let bytes = elem_of(program, value).map(Elem::bytes);
        for one in program.sources.iter().filter(|one| one.class == Class::Full) {
            let is_whole =
                matches!(one.rows.operands[0].steps[..], [step] if usize::try_from(step) == Ok(program.n));
            if is_whole && Some(one.elem.bytes()) == bytes {
                lists[usize::from(j > 0)].push((j, operand_of(group, one.value)?));
            }
        }
    }
    Ok(lists)
}

/// The launch that merges the partial column sums.
fn total(
    maker: &Maker<'_>,
    group: &GroupSite<'_>,
    program: &Program<'_>,
    (place, parts): (Place, usize),
    sums: &[usize],
) -> Result<Stage> {
    let n = program.n;
    let mut source = Source::new(parts * n * sums.len());
    source.from("sums", Elem::F32, place);
    source.number("n", n);
    source.number("parts", parts);
    source.number("rows", program.rows);
    let mut stores = String::new();
    for (k, &at) in sums.iter().enumerate() {
        let Some(Made { value, elem }) = program.nodes[at].made[0] else { continue };
        let Some(j) = group.result(value) else { continue };
        source.to(&format!("y{k}"), elem, Place::result(j));
        let is_mean = matches!(program.nodes[at].op, Op::Sums { is_mean: true });
        let store = elem.store(if is_mean { "acc / (float)rows" } else { "acc" });
        let _ = writeln!(stores, "  if (which == {k}) y{k}[i] = {store};");
    }
    let body = format!(
        "  __shared__ float part_sums[8][33];
  const u32 tiles = (n + 31) / 32, which = blockIdx.x / tiles, lane = threadIdx.x & 31, first_part = threadIdx.x >> 5;
  const u64 i = (u64)(blockIdx.x % tiles) * 32 + lane;
  float acc = 0.0f;
  if (i < n) for (u64 part = first_part; part < parts; part += 8) acc += sums[(which * (u64)parts + part) * n + i];
  part_sums[first_part][lane] = acc;
  __syncthreads();
  if (first_part || i >= n) return;
  for (u32 r = 1; r < 8; r++) acc += part_sums[r][lane];
{stores}"
    );
    source.launch(maker, &body, [n.div_ceil(32) * sums.len(), 256])
}

/// Loads and stores of a vector, without the elements past the end of the row.
const ACCESS: &str = r"
template <class T> __device__ __forceinline__ void get(T* x, const T* from, u32 k, u32 n, bool is_vector) {
  if (is_vector) {
    Vector<T, V> v = load<V>(from + k);
    #pragma unroll
    for (int m = 0; m < V; m++) x[m] = v.at[m];
    return;
  }
  #pragma unroll
  for (int m = 0; m < V; m++) x[m] = k + m < n ? from[k + m] : (T)0;
}
template <class T> __device__ __forceinline__ void put(T* to, Vector<T, V> y, u32 k, u32 n, bool is_vector) {
  if (is_vector) { store(to + k, y); return; }
  #pragma unroll
  for (int m = 0; m < V; m++) if (k + m < n) to[k + m] = y.at[m];
}
";
