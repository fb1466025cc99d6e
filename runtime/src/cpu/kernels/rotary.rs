//! RotaryEmbedding: pairs of elements of each head turn by the angle of their position,
//! `(a, b) -> (cos · a - sin · b, sin · a + cos · b)`.

use super::attention::Layout;
use super::lanes::{PIECE, Real, for_real, pieces};
use crate::cpu::kernel::{KernelError, Prepare, Prepared, Result, Site};
use ampc_ir::op::OpKind;
use ampc_ir::views::attention::RotaryView;
use num_traits::Zero;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    match kind {
        OpKind::RotaryEmbedding => Some(rotary),
        _ => None,
    }
}

fn rotary(site: &Site<'_>) -> Result<Prepared> {
    let view = RotaryView::read(&site.view)?;
    let x = Layout::new(&site.dims(0)?, view.heads)?;
    let turning = view.dim.map_or(Some(x.size), |dim| usize::try_from(dim).ok()).filter(|&dim| dim <= x.size);
    let turning = turning
        .ok_or_else(|| KernelError::value(format!("at most {} elements that turn", x.size), "more"))?;
    let half = turning / 2;
    let turn = Turn { x, half, interleaved: view.interleaved };
    let positions = if site.has(3) { site.dims(1)?[0] } else { x.batch * x.length };
    Ok(for_real!(site.dtype(0)?, site, T => Prepared::new(move |io| {
        let (from, cos, sin) = (io.slice::<T>(0)?, io.slice::<T>(1)?, io.slice::<T>(2)?);
        let ids = if io.has(3) { Some(io.slice::<i64>(3)?) } else { None };
        if let Some(&id) = ids.and_then(|ids| ids.iter().find(|&&id| !in_range(id, positions))) {
            return Err(KernelError::value(format!("positions in [0, {positions})"), id));
        }
        let rows = cos.len().min(sin.len()) / half.max(1);
        if half > 0 && rows < positions {
            return Err(KernelError::value(format!("{positions} rows of cosines and sines"), rows));
        }
        turn.run::<T>(from, cos, sin, ids, io.out::<T>(0)?);
        Ok(())
    })))
}

fn in_range(id: i64, end: usize) -> bool {
    usize::try_from(id).is_ok_and(|id| id < end)
}

/// How RotaryEmbedding turns its operand.
#[derive(Clone, Copy)]
struct Turn {
    x: Layout,
    half: usize,
    interleaved: bool,
}

impl Turn {
    fn run<T: Real>(&self, from: &[T], cos: &[T], sin: &[T], ids: Option<&[i64]>, to: &mut [T]) {
        let Layout { heads, length, size, packed, .. } = self.x;
        if size == 0 {
            return;
        }
        let turning = 2 * self.half;
        pieces(to, (PIECE / size).max(1) * size, |start, to| {
            let mut block = [[<T::Wide as Zero>::zero(); HALF]; 4];
            for (i, to) in to.chunks_exact_mut(size).enumerate() {
                let row = start / size + i;
                // The index of the position among those of all batches.
                let at = if packed { row / heads } else { row / length / heads * length + row % length };
                let at = ids.map_or(at, |ids| usize::try_from(ids[at]).unwrap_or(0)) * self.half;
                let from = &from[row * size..][..size];
                to[turning..].copy_from_slice(&from[turning..]);
                let angles = (&cos[at..at + self.half], &sin[at..at + self.half]);
                if self.interleaved {
                    turn_neighbours(from, angles, &mut to[..turning]);
                } else {
                    turn_halves(from, angles, &mut to[..turning], &mut block);
                }
            }
        });
    }
}

/// Pairs that are turned at a time.
const HALF: usize = 128;

fn turn_halves<T: Real>(
    from: &[T],
    (cos, sin): (&[T], &[T]),
    to: &mut [T],
    block: &mut [[T::Wide; HALF]; 4],
) {
    let half = cos.len();
    let [a, b, c, s] = block;
    for start in (0..half).step_by(HALF) {
        let n = HALF.min(half - start);
        let (a, b, c, s) = (&mut a[..n], &mut b[..n], &mut c[..n], &mut s[..n]);
        T::widen(&from[start..start + n], a);
        T::widen(&from[half + start..half + start + n], b);
        T::widen(&cos[start..start + n], c);
        T::widen(&sin[start..start + n], s);
        for (((a, b), &c), &s) in a.iter_mut().zip(&mut *b).zip(&*c).zip(&*s) {
            (*a, *b) = (c * *a - s * *b, s * *a + c * *b);
        }
        T::narrow(a, &mut to[start..start + n]);
        T::narrow(b, &mut to[half + start..half + start + n]);
    }
}

fn turn_neighbours<T: Real>(from: &[T], (cos, sin): (&[T], &[T]), to: &mut [T]) {
    let pairs = from.chunks_exact(2).zip(to.chunks_exact_mut(2));
    for ((from, to), (c, s)) in pairs.zip(cos.iter().zip(sin)) {
        let (a, b, c, s) = (from[0].wide(), from[1].wide(), c.wide(), s.wide());
        to[0] = T::round(c * a - s * b);
        to[1] = T::round(s * a + c * b);
    }
}
