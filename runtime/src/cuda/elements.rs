//! Element-wise kernels: loops that load the operands of an element, compute its results with a body, and store them.
//!
//! The source depends on element types, the body, and the axes along which operands are broadcast. Extents are
//! arguments, so that tensors of other sizes share the kernel. The source of `y = a + b` with `b` along the last of
//! two axes, without types:
//!
//! ```text
//! template <int V> void elements(i, n, vectors, x0, x1, y0, e1, m1) {
//!   c1 = i % e1;                                                (by the reciprocal m1)
//!   v0 = load<V>(x0 + i); v1 = load<V>(x1 + c1);
//!   for (k = 0; k < V; k++) { b0 = v0.at[k]; b1 = v1.at[k]; r0 = b0 + b1; w0.at[k] = r0; }
//!   store(y0 + i, w0);
//! }
//! run: vectors of V = 4 elements by elements<4>, all other elements by elements<1>
//! ```
//!
//! A vector has 16 bytes of the widest operand or result. Vectors are used if the last axis is a multiple of V
//! elements and every address is a multiple of 16 bytes, which the launch checks. A thread loads all operands before
//! it stores, so that a result may alias an operand with the same elements.

use super::Shared;
use super::launch::{Args, Kernel, THREADS, blocks_for, operand, queue, result};
use super::text::{Elem, HEAD, Steps, Walk, index_type};
use crate::kernel::{Dims, Io, KernelError, Result};
use smallvec::SmallVec;
use std::fmt::Write;
use std::sync::Arc;

/// Vector types, and division by an extent with a precomputed reciprocal.
pub(super) const VECTORS: &str = r"
template <class T, int V> struct alignas(sizeof(T) * V) Vector { T at[V]; };
template <int V, class T> __device__ __forceinline__ Vector<T, V> load(const T* from) { return *(const Vector<T, V>*)from; }
template <int V, class T> __device__ __forceinline__ void store(T* to, Vector<T, V> x) { *(Vector<T, V>*)to = x; }
__device__ __forceinline__ u32 divided(u32 i, u32, u64 by) { return (__umulhi(i, (u32)by) + i) >> (u32)(by >> 32); }
__device__ __forceinline__ u64 divided(u64 i, u64 by, u64) { return i / by; }
";

/// The width in bytes of the widest load and store of a thread.
const VECTOR_BYTES: usize = 16;

/// An operand of the loop.
pub(super) struct Source {
    pub(super) elem: Elem,
    /// The dims, which broadcast to the dims of the loop by NumPy's rule.
    pub(super) dims: Dims,
}

/// A loop over the elements of results that have the same dims.
pub(super) struct Elements<'a> {
    /// Device functions that the body calls.
    pub(super) functions: &'a str,
    /// The dims of the results.
    pub(super) dims: &'a [usize],
    pub(super) sources: &'a [Source],
    pub(super) results: &'a [Elem],
    /// Further kernel parameters as type and name.
    pub(super) params: &'a [(&'a str, &'a str)],
    /// Statements that compute `r0`, `r1`, …, the stored results of element `i + k`, from the stored operands `b0`,
    /// `b1`, ….
    pub(super) body: &'a str,
}

/// A prepared loop.
pub(super) struct Loop {
    kernel: Kernel,
    n: usize,
    /// The number of vectors, used if all addresses are aligned.
    vectors: usize,
    /// For each source, true if it is loaded as vectors.
    is_vector: SmallVec<[bool; 8]>,
    /// The extents of all axes but the first, and their reciprocals.
    extents: Args,
    /// For each source, true if its elements are those of the loop in order.
    is_whole: SmallVec<[bool; 8]>,
}

impl Elements<'_> {
    /// Builds the source and its kernel.
    ///
    /// # Errors
    /// If a source does not broadcast to the dims.
    pub(super) fn kernel(&self, shared: &Arc<Shared>) -> Result<Loop> {
        let steps = self.sources.iter().map(|source| Steps::broadcast(&source.dims, self.dims));
        let steps = steps.collect::<Option<Vec<Steps>>>();
        let steps = steps.ok_or_else(|| KernelError::unsupported("operands that do not broadcast"))?;
        let walk = Walk::new(self.dims, steps);
        let n = walk.len();
        let is_vector: SmallVec<[bool; 8]> = walk.operands.iter().map(has_last).collect();
        let is_whole = (0..self.sources.len()).map(|i| walk.is_plain(i)).collect();
        let lanes = self.lanes(&walk);
        let vectors = match &walk.dims[..] {
            [] | [_] => n / lanes,
            [.., last] if last.is_multiple_of(lanes) => n / lanes,
            _ => 0,
        };
        let mut extents = Args::new();
        if self.has_coordinates(&walk) {
            for &extent in &walk.dims[1..] {
                extents.extend([extent as u64, reciprocal(extent)]);
            }
        }
        let threads = if vectors > 0 { n.div_ceil(lanes) } else { n };
        let kernel = Kernel::new(shared, &self.text(&walk), blocks_for(threads), THREADS)?;
        Ok(Loop { kernel, n, vectors, is_vector, extents, is_whole })
    }

    /// The number of elements of a vector.
    fn lanes(&self, walk: &Walk) -> usize {
        let sources = self.sources.iter().zip(&walk.operands);
        let sources = sources.filter(|(_, steps)| has_last(steps)).map(|(source, _)| source.elem);
        let widest = sources.chain(self.results.iter().copied()).map(Elem::bytes).max();
        VECTOR_BYTES / widest.unwrap_or(1)
    }

    /// True if an operand is indexed by coordinates.
    fn has_coordinates(&self, walk: &Walk) -> bool {
        let is_by_axes = |i: usize| !walk.is_plain(i) && walk.operands[i].steps.iter().any(|&step| step != 0);
        (0..self.sources.len()).any(is_by_axes)
    }

    fn text(&self, walk: &Walk) -> String {
        let index = index_type(walk.len());
        let by_axes = self.has_coordinates(walk);
        let mut params: Vec<(String, String)> =
            vec![("u64".into(), "n".into()), ("u64".into(), "vectors".into())];
        for (i, source) in self.sources.iter().enumerate() {
            params.push((format!("const {}*", source.elem.stored()), format!("x{i}")));
        }
        for (j, elem) in self.results.iter().enumerate() {
            params.push((format!("{}*", elem.stored()), format!("y{j}")));
        }
        params.extend(self.params.iter().map(|&(ty, name)| (ty.to_owned(), name.to_owned())));
        if by_axes {
            for axis in 1..walk.dims.len() {
                params.extend(["e", "m"].map(|name| ("u64".into(), format!("{name}{axis}"))));
            }
        }
        let list: Vec<String> = params.iter().map(|(ty, name)| format!("{ty} {name}")).collect();
        let names: Vec<&str> = params.iter().map(|(_, name)| &name[..]).collect();
        let (list, names) = (list.join(", "), names.join(", "));
        let mut text = format!("{HEAD}{VECTORS}{}", self.functions);
        let _ =
            writeln!(text, "template <int V> __device__ __forceinline__ void elements({index} i, {list}) {{");
        if by_axes {
            text += &coordinates(walk.dims.len(), index);
        }
        for (i, source) in self.sources.iter().enumerate() {
            let (place, ty) = (place(walk, i, index), source.elem.stored());
            let _ = match has_last(&walk.operands[i]) {
                true => writeln!(text, "  Vector<{ty}, V> v{i} = load<V>(x{i} + {place});"),
                false => writeln!(text, "  {ty} b{i} = x{i}[{place}];"),
            };
        }
        for (j, elem) in self.results.iter().enumerate() {
            let _ = writeln!(text, "  Vector<{}, V> w{j};", elem.stored());
        }
        text += "  #pragma unroll\n  for (int k = 0; k < V; k++) {\n";
        for (i, source) in self.sources.iter().enumerate() {
            if has_last(&walk.operands[i]) {
                let _ = writeln!(text, "    {} b{i} = v{i}.at[k];", source.elem.stored());
            }
        }
        for (j, elem) in self.results.iter().enumerate() {
            let _ = writeln!(text, "    {} r{j};", elem.stored());
        }
        text += self.body;
        for j in 0..self.results.len() {
            let _ = writeln!(text, "    w{j}.at[k] = r{j};");
        }
        text += "  }\n";
        for j in 0..self.results.len() {
            let _ = writeln!(text, "  store<V>(y{j} + i, w{j});");
        }
        let lanes = self.lanes(walk);
        let _ = write!(
            text,
            "}}
extern \"C\" __global__ void run({list}) {{
  for (u64 at = first(); at < vectors; at += step()) elements<{lanes}>(({index})(at * {lanes}), {names});
  for (u64 at = vectors * {lanes} + first(); at < n; at += step()) elements<1>(({index})at, {names});
}}
"
        );
        text
    }
}

impl Loop {
    /// True if source `i` has the elements of the loop in order. A result of the same size may be computed in its
    /// place.
    pub(super) fn is_whole(&self, i: usize) -> bool {
        self.is_whole[i]
    }

    /// Enqueues the loop. `sources` and `results` are the indices of operands and results of the kernel.
    ///
    /// # Errors
    /// If an operand or result is not on the device, the compiler rejects the source, or the driver rejects the
    /// launch.
    pub(super) fn launch(
        &self,
        io: &mut Io<'_>,
        sources: &[usize],
        results: &[usize],
        params: &[u64],
    ) -> Result<()> {
        let mut addresses = Args::new();
        for &i in sources {
            addresses.push(operand(io, i)?);
        }
        for &j in results {
            addresses.push(result(io, j)?);
        }
        self.launch_at(io, &addresses, params)
    }

    /// Like [`launch`](Self::launch), but takes the addresses of sources and results.
    ///
    /// # Errors
    /// If the compiler rejects the source or the driver rejects the launch.
    pub(super) fn launch_at(&self, io: &mut Io<'_>, addresses: &[u64], params: &[u64]) -> Result<()> {
        if self.n == 0 {
            return Ok(());
        }
        let is_vector = self.is_vector.iter().copied().chain(std::iter::repeat(true));
        let mut vectors = addresses.iter().zip(is_vector).filter(|(_, is_vector)| *is_vector);
        let is_aligned = vectors.all(|(address, _)| address.is_multiple_of(VECTOR_BYTES as u64));
        let mut args = Args::from_slice(&[self.n as u64, if is_aligned { self.vectors as u64 } else { 0 }]);
        args.extend(addresses.iter().chain(params).chain(&self.extents).copied());
        self.kernel.launch(queue(io)?, &args)
    }
}

/// True if a source is not broadcast along the last axis.
fn has_last(steps: &Steps) -> bool {
    steps.steps.last().is_none_or(|&step| step != 0)
}

/// Statements that compute the coordinates `c0`, `c1`, … of element `i`.
fn coordinates(rank: usize, index: &str) -> String {
    let mut text = format!("  {index} q{rank} = i;\n");
    for axis in (1..rank).rev() {
        let _ = writeln!(
            text,
            "  {index} q{axis} = divided(q{0}, ({index})e{axis}, m{axis}), c{axis} = q{0} - q{axis} * ({index})e{axis};",
            axis + 1
        );
    }
    text += &format!("  {index} c0 = q1;\n");
    text
}

/// An expression for the offset in source `i` of the element at the coordinates.
fn place(walk: &Walk, i: usize, index: &str) -> String {
    if walk.is_plain(i) {
        return "i".into();
    }
    let axes = walk.operands[i].steps.iter().enumerate().filter(|&(_, &step)| step != 0);
    let place = axes.fold(String::new(), |place, (axis, _)| match &place[..] {
        "" => format!("c{axis}"),
        _ => format!("({place} * ({index})e{axis} + c{axis})"),
    });
    if place.is_empty() { "0".into() } else { place }
}

/// The reciprocal with which `divided` divides numbers below 2^31 by an extent (Granlund & Montgomery, "Division by
/// invariant integers using multiplication", 1994): a 32-bit multiplier, with the shift in the bits above. Extents of
/// 2^31 or more have 0: kernels with 64-bit indices use the division instruction.
pub(super) fn reciprocal(extent: usize) -> u64 {
    if extent == 0 || extent >= 1 << 31 {
        return 0;
    }
    let extent = extent as u64;
    let shift = u64::from(extent.next_power_of_two().trailing_zeros());
    let multiplier = ((1u64 << 32) * ((1 << shift) - extent)) / extent + 1;
    shift << 32 | (multiplier & u64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same computation as `divided` in kernels.
    fn divided(i: u32, by: u64) -> u32 {
        let [multiplier, shift] = [by & u64::from(u32::MAX), by >> 32];
        u32::try_from((((u64::from(i) * multiplier) >> 32) + u64::from(i)) >> shift).unwrap()
    }

    #[test]
    fn reciprocals_divide() {
        let most = (1u32 << 31) - 1;
        for extent in (1..600).chain([1000, 65_535, 65_536, 1 << 24, 1_000_003, 1 << 30, most - 1, most]) {
            let by = reciprocal(extent as usize);
            let near = [0, 1, extent - 1, extent, most / extent * extent, most - 1, most];
            let some = (1..200u32).map(|i| i.wrapping_mul(0x9E37_79B9) >> 1);
            for i in near.into_iter().chain(near.map(|i| i.saturating_sub(1))).chain(some) {
                assert_eq!(divided(i, by), i / extent, "{i} / {extent}");
            }
        }
    }
}
