//! Reductions over axes.

use super::{Maker, Prepare};
use crate::cuda::launch::{Kernel, THREADS, blocks_for, operand, queue, result, threads_for};
use crate::cuda::text::{FOLDS, HEAD, Steps, f32_text, index_of};
use crate::kernel::{Dims, KernelError, Prepared, Result};
use ampc_ir::op::OpKind;
use ampc_ir::views::reduce::ReduceView;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::ReduceL1
        | OpKind::ReduceL2
        | OpKind::ReduceMax
        | OpKind::ReduceMean
        | OpKind::ReduceMin
        | OpKind::ReduceSum
        | OpKind::ReduceSumSquare => reduce,
        _ => return None,
    })
}

/// A reduction: its start, its term for the element `x`, the function that joins two parts, the same for a block, and the
/// result for the whole `acc`.
struct Fold {
    start: String,
    term: &'static str,
    join: &'static str,
    block: &'static str,
    end: String,
}

fn fold_of(kind: OpKind, count: usize) -> Fold {
    let sum =
        |term| Fold { start: "0.0f".into(), term, join: "acc + term", block: "block_sum", end: "acc".into() };
    let best =
        |start: f32, join, block| Fold { start: f32_text(start), term: "x", join, block, end: "acc".into() };
    match kind {
        OpKind::ReduceMax => best(f32::NEG_INFINITY, "(acc != acc || acc > term) ? acc : term", "block_max"),
        OpKind::ReduceMin => best(f32::INFINITY, "(acc != acc || acc < term) ? acc : term", "block_min"),
        OpKind::ReduceL1 => sum("fabsf(x)"),
        OpKind::ReduceL2 => Fold { end: "sqrtf(acc)".into(), ..sum("x * x") },
        OpKind::ReduceSumSquare => sum("x * x"),
        #[expect(clippy::cast_precision_loss, reason = "a divisor of f32")]
        OpKind::ReduceMean => Fold { end: format!("acc / {}", f32_text(count as f32)), ..sum("x") },
        _ => sum("x"),
    }
}

/// The most elements that one thread adds up; a block adds up more.
const MOST_OF_A_THREAD: usize = 64;

fn reduce(maker: &Maker<'_>) -> Result<Prepared> {
    let (from, to) = (maker.float(0)?, maker.float_result(0)?);
    let view = ReduceView::read(&maker.site.view)?;
    let axes = view.axes.ok_or(KernelError::NotYet)?;
    let dims = maker.site.dims(0)?;
    let own = Steps::broadcast(&dims, &dims).ok_or(KernelError::NotYet)?;
    let part = |reduced: bool| -> (Dims, Steps) {
        let some = (0..dims.len()).filter(|&axis| axes.has(axis) == reduced);
        let (dims, steps) = some.map(|axis| (dims[axis], own.steps[axis])).unzip();
        (dims, Steps { first: 0, steps })
    };
    let ((kept, kept_steps), (gone, gone_steps)) = (part(false), part(true));
    let (n, count): (usize, usize) = (kept.iter().product(), gone.iter().product());
    let fold = fold_of(maker.site.kind(), count);
    let base = index_of(&kept, &kept_steps, "i");
    let place = index_of(&gone, &gone_steps, "k");
    let (x, y) = (from.load(&format!("from[base + {place}]")), to.store(&fold.end));
    let (from, to) = (from.stored(), to.stored());
    let Fold { start, term, join, block, .. } = &fold;
    let is_narrow = count <= MOST_OF_A_THREAD;
    let text = if is_narrow {
        format!(
            "{HEAD}extern \"C\" __global__ void run(u64 n, const {from}* from, {to}* y) {{
  for (u64 i = first(); i < n; i += step()) {{
    i64 base = {base}; float acc = {start};
    for (u32 k = 0; k < {count}u; k++) {{ float x = {x}; float term = {term}; acc = {join}; }}
    y[i] = {y};
  }}
}}
"
        )
    } else {
        format!(
            "{HEAD}{FOLDS}extern \"C\" __global__ void run(u64 n, const {from}* from, {to}* y) {{
  u64 i = blockIdx.x; i64 base = {base}; float acc = {start};
  for (u64 k = threadIdx.x; k < {count}u; k += blockDim.x) {{ float x = {x}; float term = {term}; acc = {join}; }}
  acc = {block}(acc);
  if (threadIdx.x == 0) y[i] = {y};
}}
"
        )
    };
    let kernel = match is_narrow {
        true => Kernel::new(maker.shared, &text, blocks_for(n), THREADS)?,
        false => Kernel::new(maker.shared, &text, n, threads_for(count))?,
    };
    Ok(Prepared::new(move |io| {
        let args = [n as u64, operand(io, 0)?, result(io, 0)?];
        kernel.launch(queue(io)?, &args)
    }))
}
