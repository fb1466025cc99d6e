//! Products of few rows with a weight matrix that is packed once and used at every step.
//!
//! A panel is as many columns of the transposed weights as a vector register has lanes: `panel[k][lane]`. A tile of rows
//! and panels is summed in registers, and reads each panel from start to end. Every sum is over `k` in order, so that it
//! is the same in any tile, and for any cut of the work.

use crate::cpu::kernels::lanes::{Real, Wide};
use crate::cpu::kernels::vector::widest;
use pulp::{Arch, Simd, WithSimd};

/// Rows of an operand, `inner` of them in each outer row: row `i` begins at
/// `i / inner * outer_step + i % inner * inner_step`.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, W> {
    pub(super) elements: &'a [W],
    /// The number of elements in a row.
    pub(super) len: usize,
    pub(super) n: usize,
    pub(super) inner: usize,
    pub(super) outer_step: usize,
    pub(super) inner_step: usize,
}

impl<'a, W> Rows<'a, W> {
    /// Rows one behind the other.
    pub(super) fn contiguous(elements: &'a [W], len: usize, n: usize) -> Rows<'a, W> {
        Rows { elements, len, n, inner: n.max(1), outer_step: 0, inner_step: len }
    }

    #[inline(always)]
    fn row(&self, i: usize) -> &'a [W] {
        let start = i / self.inner * self.outer_step + i % self.inner * self.inner_step;
        &self.elements[start..][..self.len]
    }
}

/// The place of a product: by outer row, group of columns, inner row and column. The gates are such groups.
pub(super) struct Place<'a, W> {
    pub(super) elements: &'a mut [W],
    pub(super) groups: usize,
    /// The number of columns in a group, of whole panels.
    pub(super) columns: usize,
}

/// A number type with products of rows and panels.
pub(super) trait Panels: Wide {
    /// The number of columns in a panel.
    fn lanes() -> usize;

    /// `to[i][j] = start[j] + Σ_k rows[i][k] · panels[j / lanes][k][j % lanes]`. Without `start` the sums are added to the
    /// elements that are there.
    fn multiply(rows: Rows<'_, Self>, panels: &[Self], start: Option<&[Self]>, to: Place<'_, Self>);

    /// As [`multiply`](Self::multiply), with weights that are not packed: the rows of a matrix, as many in each outer row
    /// as there are columns in a group that are not padding.
    fn multiply_unpacked(
        rows: Rows<'_, Self>,
        weights: Rows<'_, Self>,
        start: Option<&[Self]>,
        to: Place<'_, Self>,
    );
}

/// A product, for the vectors of the processor at hand.
struct Product<'a, W> {
    rows: Rows<'a, W>,
    panels: &'a [W],
    start: Option<&'a [W]>,
    to: Place<'a, W>,
}

/// A product with weights that are not packed.
struct Unpacked<'a, W> {
    rows: Rows<'a, W>,
    weights: Rows<'a, W>,
    start: Option<&'a [W]>,
    to: Place<'a, W>,
}

/// The most rows of a tile, where there are vectors of f32.
const ROWS: usize = 6;

/// The most rows of a tile of f64.
const ROWS_F64: usize = 3;

/// Elements of all panels of a tile that stay in the first-level cache from one tile of rows to the next one, by lanes.
const DEPTH: usize = 512;

struct Lanes<W>(std::marker::PhantomData<W>);

macro_rules! panels {
    ($ty:ident, $lanes:ident, $vector:ident, $as_simd:ident, $as_mut_simd:ident, $splat:ident, $mul_add:ident, $reduce_sum:ident) => {
        impl Panels for $ty {
            fn lanes() -> usize {
                Arch::new().dispatch(Lanes::<$ty>(std::marker::PhantomData))
            }

            fn multiply(rows: Rows<'_, $ty>, panels: &[$ty], start: Option<&[$ty]>, to: Place<'_, $ty>) {
                Arch::new().dispatch(Product { rows, panels, start, to });
            }

            fn multiply_unpacked(
                rows: Rows<'_, $ty>,
                weights: Rows<'_, $ty>,
                start: Option<&[$ty]>,
                to: Place<'_, $ty>,
            ) {
                Arch::new().dispatch(Unpacked { rows, weights, start, to });
            }
        }

        impl WithSimd for Lanes<$ty> {
            type Output = usize;

            #[inline(always)]
            fn with_simd<S: Simd>(self, _: S) -> usize {
                S::$lanes
            }
        }

        impl WithSimd for Product<'_, $ty> {
            type Output = ();

            #[inline(always)]
            fn with_simd<S: Simd>(mut self, simd: S) {
                let n = self.to.groups * self.to.columns / S::$lanes;
                let most = if S::REGISTER_COUNT < 32 && self.rows.n > 3 { 2 } else { 4 };
                let mut panel = 0;
                while panel < n {
                    let width = if n - panel >= most { most } else { (n - panel).min(2) };
                    match width {
                        4 => self.column::<S, 4>(simd, panel),
                        2 => self.column::<S, 2>(simd, panel),
                        _ => self.column::<S, 1>(simd, panel),
                    }
                    panel += width;
                }
            }
        }

        impl Product<'_, $ty> {
            /// The most rows of a tile. Fewer forms are compiled of tiles that are rare: of f64, and without vectors.
            const fn most_rows<S: Simd>() -> usize {
                match (S::$lanes, size_of::<$ty>()) {
                    (1, _) => 1,
                    (_, 8) => ROWS_F64,
                    _ => ROWS,
                }
            }

            /// The products of all rows with `N` panels.
            #[inline(always)]
            fn column<S: Simd, const N: usize>(&mut self, simd: S, panel: usize) {
                let (n, k) = (self.rows.n, self.rows.len);
                let tiles = n.div_ceil(Self::most_rows::<S>());
                let depth = if tiles > 1 { DEPTH / N } else { k.max(1) };
                let mut from = 0;
                loop {
                    let to = k.min(from + depth);
                    let mut row = 0;
                    for tile in 0..tiles {
                        // Tiles of almost the same number of rows.
                        let rows = (n - row).div_ceil(tiles - tile);
                        if const { Self::most_rows::<S>() == 1 } {
                            self.tile::<S, 1, N>(simd, row, panel, from, to);
                        } else if const { Self::most_rows::<S>() == ROWS_F64 } {
                            match rows {
                                1 => self.tile::<S, 1, N>(simd, row, panel, from, to),
                                2 => self.tile::<S, 2, N>(simd, row, panel, from, to),
                                _ => self.tile::<S, ROWS_F64, N>(simd, row, panel, from, to),
                            }
                        } else {
                            match rows {
                                1 => self.tile::<S, 1, N>(simd, row, panel, from, to),
                                2 => self.tile::<S, 2, N>(simd, row, panel, from, to),
                                3 => self.tile::<S, 3, N>(simd, row, panel, from, to),
                                4 => self.tile::<S, 4, N>(simd, row, panel, from, to),
                                5 => self.tile::<S, 5, N>(simd, row, panel, from, to),
                                _ => self.tile::<S, ROWS, N>(simd, row, panel, from, to),
                            }
                        }
                        row += rows;
                    }
                    from = to;
                    if from >= k {
                        break;
                    }
                }
            }

            /// Adds the products of `M` rows and `N` panels at `from..to` of each row.
            #[inline(always)]
            fn tile<S: Simd, const M: usize, const N: usize>(
                &mut self,
                simd: S,
                row: usize,
                panel: usize,
                from: usize,
                to: usize,
            ) {
                let (k, n, columns) = (self.rows.len, to - from, self.to.columns);
                let vectors = S::$as_simd(self.panels).0;
                let group = self.rows.inner * columns;
                // Loops, not closures: functions of arrays are many instances for each form of a tile.
                let (mut rows, mut starts): ([&[$ty]; M], _) = ([&[]; M], [0; M]);
                for m in 0..M {
                    rows[m] = &self.rows.row(row + m)[from..to][..n];
                    let (outer, inner) = ((row + m) / self.rows.inner, (row + m) % self.rows.inner);
                    starts[m] = outer * self.to.groups * group + inner * columns;
                }
                let (mut panels, mut place): ([&[S::$vector]; N], _) = ([&[]; N], [0; N]);
                for i in 0..N {
                    panels[i] = &vectors[(panel + i) * k + from..][..n];
                    let column = (panel + i) * S::$lanes;
                    place[i] = column / columns * group + column % columns;
                }
                let mut sums = [[simd.$splat(0.0); N]; M];
                if let Some(start) = self.start.filter(|_| from == 0) {
                    let start = &S::$as_simd(start).0[panel..][..N];
                    for m in 0..M {
                        sums[m].copy_from_slice(start);
                    }
                } else {
                    for m in 0..M {
                        for i in 0..N {
                            let at = place[i] + starts[m];
                            sums[m][i] = S::$as_simd(&self.to.elements[at..][..S::$lanes]).0[0];
                        }
                    }
                }
                for j in 0..n {
                    let mut columns = [simd.$splat(0.0); N];
                    for i in 0..N {
                        columns[i] = panels[i][j];
                    }
                    for m in 0..M {
                        let x = simd.$splat(rows[m][j]);
                        for i in 0..N {
                            sums[m][i] = simd.$mul_add(x, columns[i], sums[m][i]);
                        }
                    }
                }
                for m in 0..M {
                    for i in 0..N {
                        let at = place[i] + starts[m];
                        S::$as_mut_simd(&mut self.to.elements[at..][..S::$lanes]).0[0] = sums[m][i];
                    }
                }
            }
        }

        impl WithSimd for Unpacked<'_, $ty> {
            type Output = ();

            #[inline(always)]
            fn with_simd<S: Simd>(mut self, simd: S) {
                let (rows, n) = (self.rows.n, self.weights.n);
                let whole = n / 4 * 4;
                // Closures would not be compiled for the vectors.
                let mut column = 0;
                while column < n {
                    for row in 0..rows {
                        if column < whole {
                            self.tile::<S, 4>(simd, row, column);
                        } else {
                            self.tile::<S, 1>(simd, row, column);
                        }
                    }
                    column += if column < whole { 4 } else { 1 };
                }
            }
        }

        impl Unpacked<'_, $ty> {
            /// The products of a row with `N` rows of the weights.
            #[inline(always)]
            fn tile<S: Simd, const N: usize>(&mut self, simd: S, row: usize, column: usize) {
                let (k, inner) = (self.rows.len, self.weights.inner);
                let x = &self.rows.row(row)[..k];
                let weights: [&[$ty]; N] = std::array::from_fn(|i| &self.weights.row(column + i)[..k]);
                let (vectors, rest) = S::$as_simd(x);
                let columns: [&[S::$vector]; N] =
                    std::array::from_fn(|i| &S::$as_simd(weights[i]).0[..vectors.len()]);
                let mut sums = [simd.$splat(0.0); N];
                for (j, &x) in vectors.iter().enumerate() {
                    for i in 0..N {
                        sums[i] = simd.$mul_add(x, columns[i][j], sums[i]);
                    }
                }
                let done = k - rest.len();
                let (outer, at) = (row / self.rows.inner, row % self.rows.inner);
                for i in 0..N {
                    let (group, column) = ((column + i) / inner, (column + i) % inner);
                    let tail: $ty = rest.iter().zip(&weights[i][done..]).map(|(x, w)| x * w).sum();
                    let place = (outer * self.to.groups + group) * self.rows.inner + at;
                    let to = &mut self.to.elements[place * self.to.columns + column];
                    let start = self.start.map_or(*to, |start| start[group * self.to.columns + column]);
                    *to = start + (simd.$reduce_sum(sums[i]) + tail);
                }
            }
        }
    };
}

panels!(f32, F32_LANES, f32s, as_simd_f32s, as_mut_simd_f32s, splat_f32s, mul_add_e_f32s, reduce_sum_f32s);
panels!(f64, F64_LANES, f64s, as_simd_f64s, as_mut_simd_f64s, splat_f64s, mul_add_e_f64s, reduce_sum_f64s);

/// Rows that are transposed at once.
const SIDE: usize = 4;

/// Elements of a row that are widened at once.
const STRIP: usize = 256;

/// Packs panels of rows of a weight matrix, widened: column `j` of the panels is the row that `row(j)` is, or zeros.
pub(super) fn pack<'a, T: Real>(
    k: usize,
    lanes: usize,
    to: &mut [T::Wide],
    row: impl Fn(usize) -> Option<&'a [T]>,
) {
    let mut strips = [[T::Wide::of(0.0); STRIP]; SIDE];
    for (i, panel) in to.chunks_exact_mut(k * lanes).enumerate() {
        for first in (0..lanes).step_by(SIDE) {
            for from in (0..k).step_by(STRIP) {
                let n = STRIP.min(k - from);
                for (lane, strip) in (first..lanes).zip(&mut strips) {
                    match row(i * lanes + lane) {
                        Some(row) => T::widen(&row[from..from + n], &mut strip[..n]),
                        None => strip.fill(T::Wide::of(0.0)),
                    }
                }
                widest(|| transpose(&strips, lanes, first, &mut panel[from * lanes..][..n * lanes]));
            }
        }
    }
}

/// Writes columns from the strips, from the one at `first`.
#[inline(always)]
fn transpose<W: Wide>(strips: &[[W; STRIP]; SIDE], lanes: usize, first: usize, to: &mut [W]) {
    let n = to.len() / lanes;
    let whole = if first + SIDE > lanes { 0 } else { n / SIDE * SIDE };
    let (blocks, rest) = to.split_at_mut(whole * lanes);
    for (at, block) in blocks.chunks_exact_mut(SIDE * lanes).enumerate() {
        let square: [[W; SIDE]; SIDE] = std::array::from_fn(|s| strips[s].as_chunks().0[at]);
        for (j, to) in block.chunks_exact_mut(lanes).enumerate() {
            let column: [W; SIDE] = std::array::from_fn(|s| square[s][j]);
            to[first..first + SIDE].copy_from_slice(&column);
        }
    }
    for (j, to) in rest.chunks_exact_mut(lanes).enumerate() {
        to[first..].iter_mut().zip(strips).for_each(|(y, strip)| *y = strip[whole + j]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Products of whole numbers, which are exact, with as many rows and columns as tiles have and do not have.
    struct Check;

    impl WithSimd for Check {
        type Output = ();

        fn with_simd<S: Simd>(self, simd: S) {
            for (n, k, groups, columns) in [
                (1, 7, 4, 16),
                (2, 1, 1, 16),
                (3, 5, 3, 32),
                (4, 9, 1, 48),
                (11, 600, 2, 16),
                (20, 3, 1, 16),
                (3, 0, 2, 16),
            ] {
                check(simd, n, k, groups, columns);
            }
        }
    }

    fn check<S: Simd>(simd: S, n: usize, k: usize, groups: usize, columns: usize) {
        let numbers = |n: usize, by: usize| -> Vec<f32> {
            (0..n).map(|i| f32::from(i8::try_from(i * by % 17).unwrap()) - 8.0).collect()
        };
        // The last three columns of each group are padding, and rows go two at a time.
        let (real, inner) = (columns - 3, if n.is_multiple_of(2) { 2 } else { n });
        let (x, w, start) = (numbers(n * k, 5), numbers(groups * real * k, 7), numbers(groups * columns, 3));
        let rows = Rows { elements: &x, len: k, n, inner, outer_step: inner * k, inner_step: k };
        let weights =
            Rows { elements: &w, len: k, n: groups * real, inner: real, outer_step: real * k, inner_step: k };
        let mut panels = vec![0.0; groups * columns * k];
        if k > 0 {
            pack::<f32>(k, S::F32_LANES, &mut panels, |j| {
                (j % columns < real).then(|| weights.row(j / columns * real + j % columns))
            });
        }
        for start in [Some(&start[..]), None] {
            let want = |i: usize, group: usize, j: usize| -> f32 {
                let row = weights.row(group * real + j);
                start.map_or(1.0, |s| s[group * columns + j])
                    + rows.row(i).iter().zip(row).map(|(x, w)| x * w).sum::<f32>()
            };
            let mut packed = vec![1.0; n * groups * columns];
            let mut unpacked = packed.clone();
            let to = Place { elements: &mut packed, groups, columns };
            simd.vectorize(Product { rows, panels: &panels, start, to });
            let to = Place { elements: &mut unpacked, groups, columns };
            simd.vectorize(Unpacked { rows, weights, start, to });
            for (i, group, j) in
                (0..n).flat_map(|i| (0..groups).flat_map(move |g| (0..real).map(move |j| (i, g, j))))
            {
                let at = ((i / inner * groups + group) * inner + i % inner) * columns + j;
                assert_eq!(
                    [packed[at], unpacked[at]],
                    [want(i, group, j); 2],
                    "row {i}, group {group}, column {j}"
                );
            }
        }
    }

    #[test]
    fn products_in_vectors_of_any_width() {
        Arch::new().dispatch(Check);
        Check.with_simd(pulp::Scalar::new());
        #[cfg(target_arch = "x86_64")]
        if let Some(avx2) = pulp::x86::V3::try_new() {
            Check.with_simd(avx2);
        }
    }
}
