//! Operators that compute each element separately: arithmetic, functions, comparisons, Where, casts; and operators
//! that read one element for each element of the result: Transpose, Expand.

use super::stage::{Place, Scratch, moved, staged};
use super::{Maker, Prepare, casts, expressions, integers, nary};
use crate::cuda::elements::{Elements, Source};
use crate::cuda::text::{Elem, Steps, Walk};
use crate::elementwise::aligned;
use crate::kernel::{Dims, KernelError, Prepared, Result};
use ampc_ir::op::OpKind;
use ampc_ir::views::TransposeView;
use std::fmt::Write;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    use OpKind as K;
    Some(match kind {
        K::Cast | K::CastLike | K::BitCast => |m| expressed_or(m, casts::prepare),
        K::Where => |m| expressed_or(m, select),
        K::Transpose => transpose,
        K::Expand => expand,
        K::Abs | K::Acos | K::Acosh | K::Add | K::And | K::Asin | K::Asinh | K::Atan | K::Atanh => expressed,
        K::BitShift | K::BitwiseAnd | K::BitwiseNot | K::BitwiseOr | K::BitwiseXor => expressed,
        K::Ceil | K::Celu | K::Clip | K::Cos | K::Cosh | K::Div | K::Elu | K::Equal | K::Erf | K::Exp => {
            expressed
        }
        K::ContribBiasGelu | K::ContribFastGelu | K::ContribGelu | K::ContribQuickGelu => expressed,
        K::Floor | K::Gelu | K::Greater | K::GreaterOrEqual | K::HardSigmoid | K::HardSwish => expressed,
        K::IsInf | K::IsNaN | K::LeakyRelu | K::Less | K::LessOrEqual | K::Log | K::Max | K::Mean => {
            expressed
        }
        K::Min | K::Mish | K::Mod | K::Mul | K::Neg | K::Not | K::Or | K::PRelu | K::Pow => expressed,
        K::Reciprocal | K::Relu | K::Round | K::Selu | K::Shrink | K::Sigmoid | K::Sign | K::Sin => expressed,
        K::Sinh | K::Softplus | K::Softsign | K::Sqrt | K::Sub | K::Sum | K::SwiGLU | K::Swish => expressed,
        K::Tan | K::Tanh | K::ThresholdedRelu | K::Xor => expressed,
        _ => return None,
    })
}

/// The kernel of a node's scalar expression, or of its integer formula.
fn expressed(maker: &Maker<'_>) -> Result<Prepared> {
    if maker.site.view.n_operands() > nary::MOST_OPERANDS {
        return nary::prepare(maker);
    }
    expressed_or(maker, integers::prepare)
}

fn expressed_or(maker: &Maker<'_>, other: Prepare) -> Result<Prepared> {
    expressions::prepare(maker).unwrap_or_else(|| other(maker))
}

/// An operand of a formula.
pub(super) struct Operand {
    i: usize,
    pub(super) elem: Elem,
    dims: Dims,
}

impl Operand {
    /// Operand `i`, which has one element.
    pub(super) fn single(i: usize, elem: Elem) -> Operand {
        Operand { i, elem, dims: Dims::new() }
    }
}

/// The first `n` operands, broadcast to the result.
pub(super) fn operands(maker: &Maker<'_>, n: usize) -> Result<Vec<Operand>> {
    let (_, dims) = aligned(maker.site, n)?;
    let of = |(i, dims)| Ok(Operand { i, elem: maker.number(i)?, dims });
    dims.into_iter().enumerate().map(of).collect()
}

/// The kernel of a formula over `a0`, `a1`, …, the numbers of the operands. `functions` defines the functions that
/// it calls.
pub(super) fn computed(
    maker: &Maker<'_>,
    operands: &[Operand],
    to: Elem,
    functions: &str,
    formula: &str,
) -> Result<Prepared> {
    let dims = maker.site.result_dims(0)?;
    let mut body = String::new();
    for (at, Operand { elem, .. }) in operands.iter().enumerate() {
        let _ = writeln!(body, "    {} a{at} = {};", elem.wide(), elem.load(&format!("b{at}")));
    }
    let _ = writeln!(body, "    r0 = {};", to.store(formula));
    let sources: Vec<Source> =
        operands.iter().map(|of| Source { elem: of.elem, dims: of.dims.clone() }).collect();
    let elements =
        Elements { functions, dims: &dims, sources: &sources, results: &[to], params: &[], body: &body };
    let kernel = elements.kernel(maker.shared)?;
    let takes =
        operands.iter().enumerate().filter(|(at, of)| kernel.is_whole(*at) && of.elem.bytes() == to.bytes());
    let takes: Vec<usize> = takes.map(|(_, of)| of.i).collect();
    let sources: Vec<usize> = operands.iter().map(|of| of.i).collect();
    Ok(Prepared::new(move |io| kernel.launch(io, &sources, &[0], &[])).in_place(&takes))
}

/// Where, with elements moved as bytes.
fn select(maker: &Maker<'_>) -> Result<Prepared> {
    let elem = Elem::raw(maker.site.dtype(1)?).ok_or_else(|| maker.site.no_kernel())?;
    let (_, dims) = aligned(maker.site, 3)?;
    let elems = [Elem::Bool, elem, elem];
    let of = |((i, dims), elem)| Operand { i, elem, dims };
    let operands: Vec<Operand> = dims.into_iter().enumerate().zip(elems).map(of).collect();
    computed(maker, &operands, elem, "", "a0 ? a1 : a2")
}

fn expand(maker: &Maker<'_>) -> Result<Prepared> {
    let elem = Elem::raw(maker.site.dtype(0)?).ok_or_else(|| maker.site.no_kernel())?;
    computed(maker, &[Operand { i: 0, elem, dims: maker.site.dims(0)? }], elem, "", "a0")
}

fn transpose(maker: &Maker<'_>) -> Result<Prepared> {
    let elem = Elem::raw(maker.site.dtype(0)?).ok_or_else(|| maker.site.no_kernel())?;
    let (from, to) = (maker.site.dims(0)?, maker.site.result_dims(0)?);
    let perm = TransposeView::read(&maker.site.view).perm(from.len())?;
    let own = Steps::broadcast(&from, &from).ok_or(KernelError::NotYet)?;
    let steps = Steps { first: 0, steps: perm.iter().map(|&axis| own.steps[axis]).collect() };
    let walk = Walk::new(&to, vec![steps]);
    let stage = moved(maker, &walk, elem, [Place::operand(0), Place::result(0)])?;
    Ok(staged(vec![stage], &Scratch::default()))
}
