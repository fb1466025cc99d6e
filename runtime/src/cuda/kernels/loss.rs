//! NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss.
//!
//! A block computes the loss of a position; if neighboring elements are other positions, a thread does. The scores
//! are read once for their maximum and sum, and again if log-probabilities are a result. The losses are then summed
//! in a fixed order, by one block or in parts by several blocks.

use super::stage::{Place, Scratch, Source, Stage, staged};
use super::{Maker, Prepare, signed};
use crate::cuda::launch::{THREADS, threads_for};
use crate::cuda::text::{Elem, FOLDS, f32_text};
use crate::kernel::{Prepared, Result};
use ampc_ir::op::OpKind;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    match kind {
        OpKind::NegativeLogLikelihoodLoss | OpKind::SoftmaxCrossEntropyLoss => Some(loss),
        _ => None,
    }
}

/// The number of positions whose losses one block sums.
const PART: usize = 1 << 13;

/// The number of neighboring positions whose scores a warp reads at once.
const NEIGHBOURS: usize = 16;

/// Updates the maximum score `most` and the sum of all `expf(x - most)` with the score `x` (online softmax).
const MET: &str = "if (x > most) { sum *= expf(most - x); most = x; } if (x != LEAST) sum += expf(x - most);";

fn loss(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let dims = site.dims(0)?;
    let behind: usize = dims[2..].iter().product();
    let positions = dims[0] * behind;
    let mut scratch = Scratch::default();
    let [losses, counts] = [scratch.part(positions * 4), scratch.part(positions * 4)];
    let mut stages = vec![each(maker, [dims[0], dims[1], behind], [losses, counts])?];
    if site.wants(0) {
        stages.extend(total(maker, positions, [losses, counts], &mut scratch)?);
    }
    Ok(staged(stages, &scratch))
}

/// Computes the loss and the weight of each position, and the log-probabilities. Scores are
/// `[batch, classes, behind]`.
fn each(maker: &Maker<'_>, [batch, n, behind]: [usize; 3], [losses, counts]: [Place; 2]) -> Result<Stage> {
    let site = maker.site;
    let (elem, class) = (maker.float(0)?, maker.index(1)?);
    let is_softmax = site.kind() == OpKind::SoftmaxCrossEntropyLoss;
    let positions = batch * behind;
    let is_of_threads = behind >= NEIGHBOURS || n <= 32;
    let mut source = Source::new(positions * n);
    source.function(FOLDS);
    source.function(&format!("#define LEAST {}\n", f32_text(f32::NEG_INFINITY)));
    source.from("from", elem, Place::operand(0));
    source.from("classes", class, Place::operand(1));
    source.to("losses", Elem::F32, losses);
    source.to("counts", Elem::F32, counts);
    source.number("n", n);
    source.number("behind", behind);
    source.number("positions", positions);
    source.fails(maker, format!("a class in [0, {n})"));
    let mut weight = "1.0f".to_owned();
    if site.has(2) {
        let elem = maker.float(2)?;
        source.from("weights", elem, Place::operand(2));
        weight = elem.load("weights[at]");
    }
    let mut ignored = "false".to_owned();
    if let Some(index) = site.view.int("ignore_index") {
        source.signed("ignored", index);
        ignored = "at == ignored".into();
    }
    let (begin, first, away) = match is_of_threads {
        true => (
            "  const u64 position = first();
  if (position >= positions) return;",
            "0",
            "1",
        ),
        false => ("  const u64 position = blockIdx.x;", "threadIdx.x", "blockDim.x"),
    };
    let loop_of = |body: &str| {
        format!(
            "  #pragma unroll 4
  for (u64 k = {first}; k < n; k += {away}) {{ float x = {}; {body} }}\n",
            elem.load("from[start + k * behind]")
        )
    };
    let mut body = format!(
        "{begin}
  const u64 start = position / behind * n * behind + position % behind;
  float most = LEAST, sum = 0.0f, log_sum = 0.0f;\n"
    );
    let mut score = "x";
    if is_softmax {
        score = "x - most - log_sum";
        body += &loop_of(MET);
        if !is_of_threads {
            body += "  { float greatest = block_max(most); if (most != LEAST) sum *= expf(most - greatest); most = greatest; }
  sum = block_sum(sum);\n";
        }
        body += "  log_sum = logf(sum);\n";
        if site.wants(1) {
            source.to("to", elem, Place::result(1));
            body += &loop_of(&format!("to[start + k * behind] = {};", elem.store(score)));
        }
    }
    body += &format!(
        "  if ({first}) return;
  i64 at = classes[position];
  float loss = 0.0f, count = 0.0f;
  if (!({ignored})) {{
    if (at < 0 || at >= (i64)n) fail(failure, name, at);
    else {{ float x = {}; count = {weight}; loss = -count * ({score}); }}
  }}
  losses[position] = loss; counts[position] = count;",
        elem.load("from[start + at * behind]"),
    );
    let shape = match is_of_threads {
        true => [positions.div_ceil(THREADS as usize), THREADS as usize],
        false => [positions, threads_for(n) as usize],
    };
    source.launch(maker, &body, shape)
}

/// The launches that compute result 0 from the losses and weights.
fn total(
    maker: &Maker<'_>,
    positions: usize,
    [losses, counts]: [Place; 2],
    scratch: &mut Scratch,
) -> Result<Vec<Stage>> {
    let elem = maker.float_result(0)?;
    let reduction = maker.site.view.string("reduction");
    if reduction == Some("none") {
        let mut source = Source::new(positions);
        source.from("losses", Elem::F32, losses);
        source.to("y", elem, Place::result(0));
        return Ok(vec![source.each(maker, positions, &format!("y[i] = {};", elem.store("losses[i]")))?]);
    }
    let end = if reduction == Some("sum") { "loss" } else { "loss / count" };
    let parts = positions.div_ceil(PART).max(1);
    let mut stages = Vec::new();
    let (mut from, mut n) = ([losses, counts], positions);
    if parts > 1 {
        let to = [scratch.part(parts * 4), scratch.part(parts * 4)];
        stages.push(added(maker, (from, n), (to, Elem::F32), ["loss", "count"], parts)?);
        (from, n) = (to, parts);
    }
    stages.push(added(maker, (from, n), ([Place::result(0); 2], elem), [end, ""], 1)?);
    Ok(stages)
}

/// Sums losses and weights over parts of equal numbers of positions. An empty formula writes nothing.
fn added(
    maker: &Maker<'_>,
    ([losses, counts], n): ([Place; 2], usize),
    (to, elem): ([Place; 2], Elem),
    formulas: [&str; 2],
    parts: usize,
) -> Result<Stage> {
    let mut source = Source::new(n);
    source.function(FOLDS);
    source.from("losses", Elem::F32, losses);
    source.from("counts", Elem::F32, counts);
    source.signed("n", signed(n));
    source.signed("part", signed(n.div_ceil(parts)));
    let mut body = "  const i64 low = blockIdx.x * part, high = low + part < n ? low + part : n;
  float loss = 0.0f, count = 0.0f;
  for (i64 i = low + threadIdx.x; i < high; i += blockDim.x) { loss += losses[i]; count += counts[i]; }
  loss = block_sum(loss); count = block_sum(count);
  if (threadIdx.x) return;\n"
        .to_owned();
    for (j, formula) in formulas.iter().enumerate().filter(|(_, formula)| !formula.is_empty()) {
        source.to(&format!("y{j}"), elem, to[j]);
        body += &format!("  y{j}[blockIdx.x] = {};\n", elem.store(formula));
    }
    source.launch(maker, &body, [parts, THREADS as usize])
}
