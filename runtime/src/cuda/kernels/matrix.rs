//! Matrix products as stages: by cuBLASLt in f32 and 16 bits, by a kernel of ours in f64 and integers.

use super::Maker;
use super::stage::{Place, Scratch, Source, Stage, converted};
use crate::cuda::products::{Shape, alignment_of};
use crate::cuda::text::{Elem, Steps, Walk, f32_text, f64_text};
use crate::kernel::Result;

/// Products of row-major matrices, `m` × `k` and `k` × `n`.
pub(super) struct Contraction {
    pub(super) sizes: [usize; 3],
    /// True for each matrix that is stored transposed.
    pub(super) transposed: [bool; 2],
    pub(super) alpha: f32,
    /// The batch axes, with the strides between matrices of both operands.
    pub(super) batch: Walk,
    pub(super) elem: Elem,
    pub(super) from: [Place; 2],
    pub(super) to: (Place, Elem),
}

/// Rows and columns of the tile of a block.
const TILE: usize = 16;

impl Contraction {
    /// The stages of the products. Results of empty sums are 0.
    ///
    /// # Errors
    /// If there is no kernel for the element types.
    pub(super) fn stages(&self, maker: &Maker<'_>, scratch: &mut Scratch) -> Result<Vec<Stage>> {
        let [m, n, k] = self.sizes;
        let count = self.batch.len();
        let (to, to_elem) = self.to;
        let total = m * n * count;
        if total == 0 {
            return Ok(Vec::new());
        }
        if k == 0 {
            let mut source = Source::new(total);
            source.to("y", to_elem, to);
            return Ok(vec![source.each(maker, total, &format!("y[i] = {};", to_elem.store("0")))?]);
        }
        if matches!(self.elem, Elem::F32 | Elem::F16 | Elem::BF16) {
            if self.elem != Elem::F32 || to_elem == Elem::F32 {
                return Ok(vec![self.of_library(maker, scratch)?]);
            }
            // cuBLASLt cannot round an f32 product to 16 bits.
            let part = (scratch.part(total * 4), Elem::F32);
            let whole = Contraction { batch: self.batch.clone(), to: part, ..*self };
            let walk = Walk::new(&[total], vec![Steps { first: 0, steps: vec![1] }]);
            return Ok(vec![whole.of_library(maker, scratch)?, converted(maker, &walk, part, self.to)?]);
        }
        Ok(vec![self.generated(maker)?])
    }

    /// The last batch axis is one batched call; the other axes repeat the call.
    fn of_library(&self, maker: &Maker<'_>, scratch: &mut Scratch) -> Result<Stage> {
        let [m, n, k] = self.sizes;
        let Walk { dims, operands } = &self.batch;
        let last = dims.len().saturating_sub(1);
        let step = |i: usize, axis: usize| {
            usize::try_from(operands[i].steps.get(axis).copied().unwrap_or(0)).unwrap_or(0)
        };
        let batch = dims.last().copied().unwrap_or(1);
        let matrices = [m * k, k * n];
        let shape = Shape {
            m,
            n,
            k,
            transposed: self.transposed,
            batch,
            strides: [step(0, last) * matrices[0], step(1, last) * matrices[1]],
            alpha: self.alpha,
            elem: self.elem,
            to: self.to.1,
            has_bias: false,
            activation: None,
        };
        let (bytes, to_bytes) = (self.elem.bytes(), self.to.1.bytes());
        let outer: usize = dims[..last].iter().product();
        let mut repeats = Vec::with_capacity(outer);
        for index in 0..outer {
            let (mut rest, mut at) = (index, [0, 0]);
            for axis in (0..last).rev() {
                for (i, at) in at.iter_mut().enumerate() {
                    *at += rest % dims[axis] * step(i, axis);
                }
                rest /= dims[axis];
            }
            repeats.push([
                at[0] * matrices[0] * bytes,
                at[1] * matrices[1] * bytes,
                index * batch * m * n * to_bytes,
            ]);
        }
        let places = [self.from[0], self.from[1], self.to.0];
        let offsets = repeats.iter().flatten().copied().chain(places.iter().map(|place| place.offset()));
        let alignment = alignment_of(offsets.map(|offset| offset as u64), 256);
        let product = maker.shared.products.product_at(&shape, alignment)?;
        let mut stage = Stage::product(product, places, scratch);
        if let Stage::Product { repeats: of, .. } = &mut stage {
            *of = repeats;
        }
        Ok(stage)
    }

    /// A block of 16 × 16 threads computes a tile. Integers wrap.
    fn generated(&self, maker: &Maker<'_>) -> Result<Stage> {
        let [m, n, k] = self.sizes;
        let acc = match self.elem {
            Elem::F64 => "double",
            Elem::I64 | Elem::U64 => "u64",
            Elem::Bool | Elem::F32 | Elem::F16 | Elem::BF16 | Elem::Raw(_) => {
                return Err(maker.site.no_kernel());
            }
            Elem::I32 | Elem::I16 | Elem::I8 | Elem::U32 | Elem::U16 | Elem::U8 => "u32",
        };
        let count = self.batch.len();
        let (tall, wide) = (m.div_ceil(TILE), n.div_ceil(TILE));
        let mut source = Source::new((m * k).max(k * n).max(m * n) * count);
        source.from("a", self.elem, self.from[0]);
        source.from("b", self.elem, self.from[1]);
        source.to("y", self.to.1, self.to.0);
        for (name, value) in [("m", m), ("n", n), ("k", k), ("tall", tall), ("wide", wide)] {
            source.number(name, value);
        }
        let places = [0, 1].map(|i| source.walked(&self.batch, i, "batch"));
        let at = |is_transposed: bool, row: &str, column: &str, rows: &str, columns: &str| {
            if is_transposed {
                format!("{column} * {rows} + {row}")
            } else {
                format!("{row} * {columns} + {column}")
            }
        };
        let body = format!(
            "  __shared__ {acc} as[16][17], bs[16][17];
  {index} batch = blockIdx.x / wide / tall;
  u64 x = threadIdx.x & 15, y_ = threadIdx.x >> 4;
  u64 row = blockIdx.x / wide % tall * 16ull + y_, column = blockIdx.x % wide * 16ull + x;
  a += (u64){place_a} * m * k; b += (u64){place_b} * k * n;
  {acc} sum = 0;
  for (u64 start = 0; start < k; start += 16) {{
    as[y_][x] = row < m && start + x < k ? ({acc})a[{a}] : ({acc})0;
    bs[y_][x] = start + y_ < k && column < n ? ({acc})b[{b}] : ({acc})0;
    __syncthreads();
    for (u32 t = 0; t < 16; t++) sum += as[y_][t] * bs[t][x];
    __syncthreads();
  }}
  if (row < m && column < n) y[((u64)batch * m + row) * n + column] = {store};",
            index = source.index,
            place_a = places[0],
            place_b = places[1],
            a = at(self.transposed[0], "row", "(start + x)", "m", "k"),
            b = at(self.transposed[1], "(start + y_)", "column", "k", "n"),
            store = self.to.1.store(&match self.elem {
                Elem::F64 => format!("sum * {}", f64_text(f64::from(self.alpha))),
                _ => "sum".to_owned(),
            }),
        );
        source.launch(maker, &body, [tall * wide * count, TILE * TILE])
    }
}

/// Adds `β · c` to a product in the type `acc`, and rounds to the result. `c` is broadcast to the result.
pub(super) fn with_addend(
    maker: &Maker<'_>,
    (product, acc): (Place, Elem),
    (c, beta): (usize, f32),
    walk: &Walk,
    to: (Place, Elem),
) -> Result<Stage> {
    let n = walk.len();
    let elem = maker.real(c)?;
    let mut source = Source::new(n);
    source.from("x", acc, product);
    source.from("c", elem, Place::operand(c));
    source.to("y", to.1, to.0);
    let at = source.walked(walk, 0, "i");
    let beta = if acc == Elem::F64 { f64_text(f64::from(beta)) } else { f32_text(beta) };
    let sum = format!("x[i] + {beta} * {}", elem.load(&format!("c[{at}]")));
    source.each(maker, n, &format!("y[i] = {};", to.1.store(&sum)))
}
