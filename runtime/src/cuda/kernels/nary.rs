//! Sum, Mean, Max and Min of many operands: several kernels, each of which folds a few operands into an accumulator.
//!
//! A kernel has at most [`MOST_PARAMETERS`] parameters. The accumulator is wide, so that the result is rounded once.

use super::Maker;
use super::stage::{MOST_PARAMETERS, Place, Scratch, Source, staged};
use crate::cuda::text::{Elem, Steps, Walk};
use crate::elementwise::aligned;
use crate::kernel::{KernelError, Prepared, Result};
use ampc_ir::op::OpKind;
use std::fmt::Write;

/// The maximum number of operands of a node that one kernel reads.
pub(super) const MOST_OPERANDS: usize = 128;

/// The maximum number of operands that a kernel of this module folds into the accumulator.
const AT_ONCE: usize = 16;

/// The number of operands of a kernel over `rank` axes: each has an address and up to three parameters per axis.
fn at_once(rank: usize) -> usize {
    // Other parameters are the accumulator, the result and the number of elements.
    ((MOST_PARAMETERS - 3) / (1 + 3 * rank)).clamp(1, AT_ONCE)
}

pub(super) fn prepare(maker: &Maker<'_>) -> Result<Prepared> {
    let count = maker.site.view.n_operands();
    let elem = maker.number(0)?;
    let wide = match elem {
        Elem::F16 | Elem::BF16 => Elem::F32,
        other => other,
    };
    let dims = maker.site.result_dims(0)?;
    let (_, operands) = aligned(maker.site, count)?;
    let steps = operands.iter().map(|of| Steps::broadcast(of, &dims)).collect::<Option<Vec<Steps>>>();
    let steps = steps.ok_or_else(|| KernelError::unsupported("operands that do not broadcast"))?;
    let walk = Walk::new(&dims, steps);
    let fold = match maker.site.kind() {
        OpKind::Max => "acc = acc > x || acc != acc ? acc : x;",
        OpKind::Min => "acc = acc < x || acc != acc ? acc : x;",
        OpKind::Sum | OpKind::Mean => "acc = acc + x;",
        _ => return Err(maker.site.no_kernel()),
    };
    let made = match maker.site.kind() {
        OpKind::Mean => format!("acc / ({}){count}", wide.wide()),
        _ => "acc".to_owned(),
    };
    let n = walk.len();
    let mut scratch = Scratch::default();
    let running = scratch.part(n * wide.bytes());
    let mut stages = Vec::new();
    let at_once = at_once(walk.dims.len());
    for first in (0..count).step_by(at_once) {
        let end = (first + at_once).min(count);
        let mut source = Source::new(n);
        source.to("s", wide, running);
        let mut body = format!("{} acc", wide.wide());
        for i in first..end {
            let name = format!("x{i}");
            source.from(&name, elem, Place::operand(i));
            let number = elem.load(&format!("{name}[{}]", source.walked(&walk, i, "i")));
            if i == 0 {
                let _ = write!(body, " = {number};");
                continue;
            }
            if i == first {
                body += " = s[i];";
            }
            let _ = write!(body, "\n    {{ {} x = {number}; {fold} }}", wide.wide());
        }
        if end == count {
            source.to("y", elem, Place::result(0));
            let _ = write!(body, "\n    y[i] = {};", elem.store(&made));
        } else {
            body += "\n    s[i] = acc;";
        }
        stages.push(source.each(maker, n, &body)?);
    }
    Ok(staged(stages, &scratch))
}

#[cfg(test)]
mod tests {
    use super::{MOST_PARAMETERS, at_once};

    #[test]
    fn operands_fit_the_parameters() {
        for rank in 0..160 {
            let parameters = at_once(rank) * (1 + 3 * rank) + 3;
            assert!(parameters <= MOST_PARAMETERS, "rank {rank}: {parameters}");
        }
        assert_eq!([0, 1, 8, 10, 11, 100].map(at_once), [16, 16, 16, 16, 14, 1]);
    }
}
