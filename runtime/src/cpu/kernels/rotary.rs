//! RotaryEmbedding: pairs of elements of each head turn by the angle of their position,
//! `(a, b) -> (cos · a - sin · b, sin · a + cos · b)`.

use super::attention::Layout;
use super::lanes::{Real, for_real};
use super::parallel::{PIECE, pieces};
use crate::kernel::{Dims, KernelError, Prepare, Prepared, Result, Site};
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
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
    let positions = positions(site, &turn)?;
    Ok(for_real!(site.dtype(0)?, site, T => Prepared::new(move |io| {
        let (from, cos, sin) = (io.slice::<T>(0)?, io.slice::<T>(1)?, io.slice::<T>(2)?);
        let ids = if io.has(3) { Some(io.slice::<i64>(3)?) } else { None };
        if let Some(&id) = ids.and_then(|ids| ids.iter().find(|&&id| !in_range(id, positions))) {
            return Err(KernelError::value(format!("positions in [0, {positions})"), id));
        }
        turn.run::<T>(from, cos, sin, ids, io.out::<T>(0)?);
        Ok(())
    })))
}

/// How many positions there are cosines and sines of: a row for each of them, or with ids for those that they name.
fn positions(site: &Site<'_>, turn: &Turn) -> Result<usize> {
    let Layout { batch, length, .. } = turn.x;
    let cosines = site.dims(1)?;
    let expected: Dims = match cosines.first() {
        Some(&rows) if site.has(3) => smallvec::smallvec![rows, turn.half],
        _ => smallvec::smallvec![batch, length, turn.half],
    };
    for i in [1, 2] {
        let found = site.dims(i)?;
        if found != expected {
            return Err(OpError::operand(i, format!("dims {expected:?}"), format!("{found:?}")).into());
        }
    }
    if !site.has(3) {
        return Ok(batch * length);
    }
    let ids = site.dims(3)?;
    if ids[..] != [batch, length] {
        return Err(OpError::operand(3, format!("dims [{batch}, {length}]"), format!("{ids:?}")).into());
    }
    Ok(expected[0])
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

#[cfg(test)]
mod tests {
    use crate::cpu::kernels::tests::{floats, ints, run};

    fn rotated(cache: &[usize], ids: Option<&[usize]>) -> Result<Vec<f32>, String> {
        let x = floats(&[2, 1, 3, 4], &[1.0; 24]);
        let cache = floats(cache, &vec![0.5; cache.iter().product()]);
        let mut inputs = vec![x, cache.clone(), cache];
        if let Some(dims) = ids {
            inputs.push(ints(dims, &vec![1; dims.iter().product()]));
        }
        let node =
            if ids.is_some() { "RotaryEmbedding(%0, %1, %2, %3)" } else { "RotaryEmbedding(%0, %1, %2)" };
        Ok(run(node, &["f32"], &inputs)?[0].as_slice::<f32>().unwrap().to_vec())
    }

    #[test]
    fn caches_have_a_row_for_each_position() {
        let want = [0.0, 0.0, 1.0, 1.0].repeat(6);
        assert_eq!(rotated(&[2, 3, 2], None).unwrap(), want);
        assert_eq!(rotated(&[5, 2], Some(&[2, 3])).unwrap(), want);
        let wrong: [(&[usize], Option<&[usize]>); 5] = [
            (&[3, 2, 2], None),
            (&[2, 4, 2], None),
            (&[2, 3, 4], None),
            (&[5, 4], Some(&[2, 3])),
            (&[5, 2], Some(&[2, 2])),
        ];
        for (cache, ids) in wrong {
            let error = rotated(cache, ids).unwrap_err();
            assert!(error.contains("expected "), "{cache:?} {ids:?}: {error}");
        }
    }
}
