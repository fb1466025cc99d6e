//! The kernels: functions that read a node, write CUDA C for it or prepare a call of a library, and launch it.
//!
//! | to understand | read |
//! |---|---|
//! | a kernel from the node to its launch | `stage.rs` (the source of a launch, its parameters and arguments), then `fill.rs`, the shortest family |
//! | expressions of element-wise operators | `expressions.rs`, `functions.rs`, `pointwise.rs`, `nary.rs` |
//! | reductions | `fold.rs` (sums, products, minima, maxima), `reduce.rs`, `moments.rs` |
//! | rows | `rows.rs` (a row in registers), `normalize.rs`, `loss.rs`, `order.rs`, `top_k.rs`, `sort.rs` |
//! | moves and indices | `moves.rs` (strided copies), `strided.rs`, `movement.rs`, `pad.rs`, `indexing.rs`, `scatter.rs` |
//! | products and convolutions | `matrix.rs`, `linear.rs`, `einsum.rs`, `integer_product.rs`, `convolution.rs`, `attention/` |
//! | groups of nodes | `groups.rs` (their order of precedence), `scalars.rs`, `row_groups/`, `channels/`, `library.rs` |
//! | training | `training.rs`, `optimizers.rs`, `tensors.rs` (launches over several tensors) |
//!
//! For example, EyeLike of f32 is one launch of this kernel. Extents are arguments, so that tensors of other sizes share it
//! (`--dump-kernels` writes all kernels of a run):
//!
//! ```text
//! extern "C" __global__ void eyelike_f32(float* y, u64 columns_, i64 k, u64 n_) {
//!   const u32 columns = (u32)columns_;
//!   const u32 n = (u32)n_;
//!   for (u64 flat = first(); flat < n; flat += step()) {
//!     u32 i = flat;
//!     y[i] = (i64)(i % columns) - (i64)(i / columns) == k ? (float)(1) : (float)(0);
//!   }
//! }
//! ```

mod activations;
mod attention;
mod batch_norm;
mod casts;
mod channels;
pub(super) mod convolution;
mod einsum;
mod expressions;
mod fill;
mod fold;
mod functions;
mod grid_sample;
pub(super) mod groups;
mod indexing;
mod integer_product;
mod integers;
pub(super) mod library;
mod linear;
mod loss;
mod matrix;
mod moments;
mod movement;
mod moves;
mod nary;
mod normalize;
mod optimizers;
mod order;
mod pad;
mod pointwise;
mod pool;
mod random;
mod recurrent;
mod reduce;
mod resize;
mod row_groups;
mod rows;
mod scalars;
mod scatter;
mod sort;
mod stage;
mod strided;
mod tensors;
mod top_k;
mod training;

use super::Shared;
use super::text::Elem;
use crate::backend::Backend;
use crate::data::{Data, DataRef};
use crate::host::HostTensor;
use crate::kernel::{Dims, Prepared, Result, Site, Wanted};
use ampc_ir::op::{self, OpKind};
use ampc_ir::{DType, Type};
use std::sync::Arc;

/// The node being prepared, and the device.
pub(super) struct Maker<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) site: &'a Site<'a>,
}

/// Prepares the kernel of a node.
pub(super) type Prepare = fn(&Maker<'_>) -> Result<Prepared>;

/// The function that prepares kernels of an operator; `None` if the operator has no kernel.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    FAMILIES.iter().find_map(|(_, find)| find(kind))
}

/// The name of the family with the kernel of an operator.
pub(super) fn family(kind: OpKind) -> Option<&'static str> {
    FAMILIES.iter().find(|(_, find)| find(kind).is_some()).map(|(name, _)| *name)
}

/// Lists the families with the names of their modules.
macro_rules! families {
    ($($family:ident,)*) => { &[$((stringify!($family), $family::find)),*] };
}

/// A family, and its function `find`.
type Family = (&'static str, fn(OpKind) -> Option<Prepare>);

const FAMILIES: &[Family] = families! {
    pointwise,
    reduce,
    linear,
    convolution,
    movement,
    strided,
    pad,
    fill,
    indexing,
    scatter,
    order,
    pool,
    batch_norm,
    recurrent,
    resize,
    grid_sample,
    integer_product,
    einsum,
    attention,
    normalize,
    loss,
    training,
    optimizers,
    random,
};

/// The maximum size of results that the host computes and every run copies.
const MOST_CONSTANT: u64 = 1 << 16;

impl Maker<'_> {
    /// The element type of operand `i`, which must be a number.
    fn number(&self, i: usize) -> Result<Elem> {
        Elem::number(self.site.dtype(i)?).ok_or_else(|| self.site.no_kernel())
    }

    /// The element type of operand `i`, which must be a float that computes in f32.
    fn float(&self, i: usize) -> Result<Elem> {
        Elem::float(self.site.dtype(i)?).ok_or_else(|| self.site.no_kernel())
    }

    /// The element type of result `j`, which must be a float that computes in f32.
    fn float_result(&self, j: usize) -> Result<Elem> {
        Elem::float(self.site.result_dtype(j)?).ok_or_else(|| self.site.no_kernel())
    }

    /// The element type of operand `i`, which must be a float.
    fn real(&self, i: usize) -> Result<Elem> {
        Elem::number(self.site.dtype(i)?).filter(|elem| elem.is_float()).ok_or_else(|| self.site.no_kernel())
    }

    /// The element type of operand `i`, which is moved unchanged.
    fn raw(&self, i: usize) -> Result<Elem> {
        Elem::raw(self.site.dtype(i)?).ok_or_else(|| self.site.no_kernel())
    }

    /// The element type of operand `i`, which must be an index type.
    fn index(&self, i: usize) -> Result<Elem> {
        let elem = self.number(i)?;
        if matches!(elem, Elem::I64 | Elem::I32) { Ok(elem) } else { Err(self.site.no_kernel()) }
    }

    /// If all operands are constants, evaluates the node on the host, once; each run copies the results to the
    /// device.
    pub(super) fn constant(&self, host: &dyn Backend) -> Result<Option<Prepared>> {
        let site = self.site;
        if !op::is_deterministic(site.kind()) || !host.has_kernel(site.kind()) {
            return Ok(None);
        }
        let mut operands = Vec::new();
        for i in 0..site.view.n_operands() {
            operands.push(match (site.has(i), site.view.constant(i)) {
                (false, _) => None,
                (true, Some(data)) if data.dtype() != DType::String => Some(HostTensor::from_data(&data)?),
                (true, _) => return Ok(None),
            });
        }
        let mut wanted = Vec::new();
        for (j, ty) in site.results.iter().enumerate() {
            wanted.push(match ty {
                None => Wanted::Absent,
                Some(ty) => {
                    // The size of the result depends on the values of operands.
                    let (Ok(dtype), Ok(dims)) = (site.result_dtype(j), site.result_dims(j)) else {
                        return Ok(None);
                    };
                    let dims: Vec<u64> = dims.iter().map(|&n| n as u64).collect();
                    let is_small = dtype.tensor_bytes(&dims).is_some_and(|bytes| bytes <= MOST_CONSTANT);
                    if !is_small || ty.as_tensor().is_none_or(|ty| ty.dtype == DType::String) {
                        return Ok(None);
                    }
                    Wanted::Tensor(dtype, dims)
                }
            });
        }
        let views: Vec<Option<DataRef<'_>>> = operands
            .iter()
            .map(|operand| operand.as_ref().map(|tensor| DataRef::Tensor(tensor.view())))
            .collect();
        // An error of the node is reported when the node runs.
        let made = host.prepare(site)?.run_alone(&views, &wanted, u64::MAX);
        Ok(made.ok().map(uploaded))
    }
}

/// A kernel that copies the same results in each run.
fn uploaded(made: Vec<Option<Data>>) -> Prepared {
    Prepared::new(move |io| {
        for (j, data) in made.iter().enumerate() {
            if let (Some(bytes), true) =
                (data.as_ref().and_then(Data::tensor).and_then(HostTensor::bytes), io.wants(j))
            {
                let to = io.out_on_device(j)?;
                io.queue()?.upload(bytes, to)?;
            }
        }
        Ok(())
    })
}

/// The alignment of parts of the scratch memory.
const PART: usize = 256;

/// The number of elements before an axis, along it, and after it.
fn around(dims: &[usize], axis: usize) -> [usize; 3] {
    [dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product()]
}

/// An extent as a signed integer.
fn signed(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Dims as 64-bit integers.
fn wide(dims: &Dims) -> Vec<u64> {
    dims.iter().map(|&n| n as u64).collect()
}

/// True if a type is a tensor of numbers.
fn is_tensor(ty: Option<&Type>) -> bool {
    ty.and_then(Type::as_tensor).is_some_and(|ty| ty.dtype != DType::String)
}
