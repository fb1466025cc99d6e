//! Operators with attributes per channel: ImageScaler.

use super::fold::{Load, Number, transform};
use super::lanes::{Real, Wide, for_real};
use super::parallel::{PIECE, pieces};
use super::softmax::first;
use crate::kernel::{Prepare, Prepared, Result, Site};
use ampc_ir::op::OpKind;
use ampc_ir::views::image::ImageScalerView;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    match kind {
        OpKind::ImageScaler => Some(image_scaler),
        _ => None,
    }
}

/// `scale · x + bias`, a bias for each channel; rounded once.
fn image_scaler(site: &Site<'_>) -> Result<Prepared> {
    let dims = site.dims(0)?;
    let ImageScalerView { scale, bias } = ImageScalerView::read(&site.view)?;
    let run = dims[2..].iter().product();
    Ok(for_real!(site.dtype(0)?, site, T => scaled::<T, <T as Real>::Wide>(scale, bias, run)))
}

/// `run` neighbouring elements have one bias.
fn scaled<T: Load<A>, A: Wide + Number>(scale: f32, bias: &[f32], run: usize) -> Prepared {
    let scale = A::of(f64::from(scale));
    let bias: Vec<A> = bias.iter().map(|&b| A::of(f64::from(b))).collect();
    Prepared::new(move |io| {
        let from = first::<T>(io)?;
        let run = run.max(1);
        pieces(io.out::<T>(0)?, (PIECE / run).max(1) * run, |start, to| {
            for (i, to) in to.chunks_mut(run).enumerate() {
                let at = start + i * run;
                let bias = bias[at / run % bias.len()];
                transform(from.map(|from| &from[at..at + to.len()]), to, |_, block: &mut [A]| {
                    block.iter_mut().for_each(|x| *x = *x * scale + bias);
                });
            }
        });
        Ok(())
    })
    .in_place(&[0])
}
