//! Operators that compute each element by itself: arithmetic, functions, comparisons, Where, Cast; and operators that read
//! one element for each element of the result: Transpose, Expand, Slice.

use super::{Maker, Prepare};
use crate::cuda::launch::{Args, Kernel, THREADS, blocks_for, operand, queue, result};
use crate::cuda::text::{Elem, HEAD, Steps, Walk, index_type};
use crate::kernel::{KernelError, Prepared, Result};
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use ampc_ir::views::TransposeView;
use std::fmt::Write;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Abs => |m| unary(m, "fabsf(a)"),
        OpKind::Neg => neg,
        OpKind::Relu => |m| unary(m, "a > 0.0f ? a : (a != a ? a : 0.0f)"),
        OpKind::Exp => |m| unary(m, "expf(a)"),
        OpKind::Log => |m| unary(m, "logf(a)"),
        OpKind::Sqrt => |m| unary(m, "sqrtf(a)"),
        OpKind::Reciprocal => |m| unary(m, "1.0f / a"),
        OpKind::Sigmoid => |m| unary(m, "1.0f / (1.0f + expf(-a))"),
        OpKind::Tanh => |m| unary(m, "tanhf(a)"),
        OpKind::Erf => |m| unary(m, "erff(a)"),
        OpKind::Sin => |m| unary(m, "sinf(a)"),
        OpKind::Cos => |m| unary(m, "cosf(a)"),
        OpKind::Floor => |m| unary(m, "floorf(a)"),
        OpKind::Ceil => |m| unary(m, "ceilf(a)"),
        OpKind::Round => |m| unary(m, "rintf(a)"),
        OpKind::Add => |m| binary(m, "a + b"),
        OpKind::Sub => |m| binary(m, "a - b"),
        OpKind::Mul => |m| binary(m, "a * b"),
        OpKind::Div => div,
        OpKind::Pow => pow,
        OpKind::Equal => |m| compare(m, "a == b"),
        OpKind::Greater => |m| compare(m, "a > b"),
        OpKind::GreaterOrEqual => |m| compare(m, "a >= b"),
        OpKind::Less => |m| compare(m, "a < b"),
        OpKind::LessOrEqual => |m| compare(m, "a <= b"),
        OpKind::And => |m| compare(m, "a && b"),
        OpKind::Or => |m| compare(m, "a || b"),
        OpKind::Xor => |m| compare(m, "a != b"),
        OpKind::Not => |m| pointwise(m, &[(0, Elem::Bool)], Elem::Bool, "!a"),
        OpKind::Where => select,
        OpKind::Cast => cast,
        OpKind::Transpose => transpose,
        OpKind::Expand => expand,
        _ => return None,
    })
}

/// The kernel for elements that are computed from the element of each operand. `formula` names the operands `a`, `b`, `c`.
fn pointwise(maker: &Maker<'_>, operands: &[(usize, Elem)], to: Elem, formula: &str) -> Result<Prepared> {
    let dims = maker.site.result_dims(0)?;
    let mut steps = Vec::new();
    for &(i, _) in operands {
        let of = maker.site.dims(i)?;
        let found = || OpError::operand(i, format!("dims that broadcast into {dims:?}"), format!("{of:?}"));
        steps.push(Steps::broadcast(&of, &dims).ok_or_else(found)?);
    }
    walked(maker, Walk::new(&dims, steps), operands, to, formula)
}

/// The kernel for elements that are computed from elements of operands along a walk.
fn walked(
    maker: &Maker<'_>,
    walk: Walk,
    operands: &[(usize, Elem)],
    to: Elem,
    formula: &str,
) -> Result<Prepared> {
    let n = walk.len();
    let text = text_of(&walk, operands, to, formula);
    let kernel = Kernel::new(maker.shared, &text, blocks_for(n), THREADS)?;
    let is_same =
        |&(at, &(_, elem)): &(usize, &(usize, Elem))| walk.is_plain(at) && elem.bytes() == to.bytes();
    let takes: Vec<usize> = operands.iter().enumerate().filter(is_same).map(|(_, &(i, _))| i).collect();
    let operands: Vec<usize> = operands.iter().map(|&(i, _)| i).collect();
    let prepared = Prepared::new(move |io| {
        let mut args = Args::from_slice(&[n as u64]);
        for &i in &operands {
            args.push(operand(io, i)?);
        }
        args.push(result(io, 0)?);
        kernel.launch(queue(io)?, &args)
    });
    Ok(prepared.in_place(&takes))
}

fn text_of(walk: &Walk, operands: &[(usize, Elem)], to: Elem, formula: &str) -> String {
    let mut text = format!("{HEAD}extern \"C\" __global__ void run(u64 n");
    for (at, (_, elem)) in operands.iter().enumerate() {
        let _ = write!(text, ", const {}* x{at}", elem.stored());
    }
    let _ = write!(
        text,
        ", {}* y) {{\n  for (u64 at = first(); at < n; at += step()) {{\n    {} i = at;\n",
        to.stored(),
        index_type(walk.len())
    );
    for (at, (_, elem)) in operands.iter().enumerate() {
        let name = char::from(b"abc"[at]);
        let place = if walk.is_plain(at) { "i".to_owned() } else { walk.index(at, "i") };
        let load = elem.load(&format!("x{at}[{place}]"));
        let _ = writeln!(text, "    {} {name} = {load};", elem.wide());
    }
    let _ = write!(text, "    y[i] = {};\n  }}\n}}\n", to.store(formula));
    text
}

fn unary(maker: &Maker<'_>, formula: &str) -> Result<Prepared> {
    let elem = maker.float(0)?;
    pointwise(maker, &[(0, elem)], elem, formula)
}

fn neg(maker: &Maker<'_>) -> Result<Prepared> {
    let elem = maker.number(0)?;
    let formula = match elem {
        Elem::I64 => "(i64)(0ull - (u64)a)",
        Elem::I32 => "(int)(0u - (u32)a)",
        _ if elem.is_float() => "-a",
        _ => return Err(maker.site.no_kernel()),
    };
    pointwise(maker, &[(0, elem)], elem, formula)
}

fn binary(maker: &Maker<'_>, formula: &str) -> Result<Prepared> {
    let elem = maker.number(0)?;
    // Integers wrap.
    let unsigned = match elem {
        Elem::I64 => "u64",
        Elem::I32 => "u32",
        Elem::Bool => return Err(maker.site.no_kernel()),
        _ => return pointwise(maker, &[(0, elem), (1, elem)], elem, formula),
    };
    let formula = formula.replace('a', &format!("({unsigned})a")).replace('b', &format!("({unsigned})b"));
    pointwise(maker, &[(0, elem), (1, elem)], elem, &formula)
}

fn div(maker: &Maker<'_>) -> Result<Prepared> {
    let elem = maker.number(0)?;
    let formula = match elem {
        // A division by 0 gives 0, and the least integer by -1 itself.
        Elem::I64 => "b == 0 ? 0 : b == -1 ? (i64)(0ull - (u64)a) : a / b",
        Elem::I32 => "b == 0 ? 0 : b == -1 ? (int)(0u - (u32)a) : a / b",
        _ if elem.is_float() => "a / b",
        _ => return Err(maker.site.no_kernel()),
    };
    pointwise(maker, &[(0, elem), (1, elem)], elem, formula)
}

fn pow(maker: &Maker<'_>) -> Result<Prepared> {
    let (elem, exponent) = (maker.float(0)?, maker.float(1)?);
    pointwise(maker, &[(0, elem), (1, exponent)], elem, "powf(a, b)")
}

fn compare(maker: &Maker<'_>, formula: &str) -> Result<Prepared> {
    let elem = maker.number(0)?;
    pointwise(maker, &[(0, elem), (1, elem)], Elem::Bool, formula)
}

fn select(maker: &Maker<'_>) -> Result<Prepared> {
    let elem = Elem::raw(maker.site.dtype(1)?).ok_or_else(|| maker.site.no_kernel())?;
    pointwise(maker, &[(0, Elem::Bool), (1, elem), (2, elem)], elem, "a ? b : c")
}

fn cast(maker: &Maker<'_>) -> Result<Prepared> {
    let to = maker.site.result_dtype(0)?;
    if maker.site.dtype(0)? == to {
        return super::movement::same(maker);
    }
    let (from, to) = (maker.number(0)?, Elem::number(to).ok_or_else(|| maker.site.no_kernel())?);
    let formula = match (from, to) {
        // Conversions to integers that do not fit are not the hardware's.
        (from, Elem::I64 | Elem::I32) if from.is_float() => return Err(maker.site.no_kernel()),
        // One rounding, not two.
        (Elem::F64 | Elem::I64, Elem::F16 | Elem::BF16) => return Err(maker.site.no_kernel()),
        (_, Elem::Bool) => "a != 0",
        (Elem::I32, Elem::F16 | Elem::BF16) => return Err(maker.site.no_kernel()),
        (_, Elem::F16 | Elem::BF16) => "(float)a",
        _ => "a",
    };
    pointwise(maker, &[(0, from)], to, formula)
}

fn transpose(maker: &Maker<'_>) -> Result<Prepared> {
    let elem = Elem::raw(maker.site.dtype(0)?).ok_or_else(|| maker.site.no_kernel())?;
    let (from, to) = (maker.site.dims(0)?, maker.site.result_dims(0)?);
    let perm = TransposeView::read(&maker.site.view).perm(from.len())?;
    let own = Steps::broadcast(&from, &from).ok_or(KernelError::NotYet)?;
    let steps = Steps { first: 0, steps: perm.iter().map(|&axis| own.steps[axis]).collect() };
    walked(maker, Walk::new(&to, vec![steps]), &[(0, elem)], elem, "a")
}

fn expand(maker: &Maker<'_>) -> Result<Prepared> {
    let elem = Elem::raw(maker.site.dtype(0)?).ok_or_else(|| maker.site.no_kernel())?;
    pointwise(maker, &[(0, elem)], elem, "a")
}
