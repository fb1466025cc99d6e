//! Element-wise nodes as backends fuse them: the expression of a node, and its broadcast operands.

use crate::kernel::{Dims, Result, Site};
use ampc_ir::op::OpKind;
use ampc_ir::views::broadcast::Broadcast;
use ampc_ir::views::expression::{Expression, Term};
use ampc_ir::views::{OpError, Part};
use ampc_ir::{DType, Value};

/// The dims of the first result, and the dims of the first `n` operands, aligned so that NumPy's rule broadcasts
/// them.
pub(crate) fn aligned(site: &Site<'_>, n: usize) -> Result<(Dims, Vec<Dims>)> {
    let mut operands = (0..n).map(|i| site.dims(i)).collect::<Result<Vec<Dims>>>()?;
    let start = match Broadcast::read(&site.view) {
        Broadcast::Aligned { axis } => Some(axis.filter(|&axis| axis != -1)),
        Broadcast::PerChannel => Some(Some(1)),
        Broadcast::Identical | Broadcast::Numpy | Broadcast::IntoFirst => None,
    };
    if let (Some(start), [first, second, ..]) = (start, &mut operands[..]) {
        align(first, second, start)?;
    }
    let result = site.result_dims(0)?;
    for (i, operand) in operands.iter().enumerate() {
        let mut pairs = operand.iter().rev().zip(result.iter().rev());
        if operand.len() > result.len() || !pairs.all(|(&d, &r)| d == 1 || d == r) {
            let expected = format!("dims that broadcast into {result:?}");
            return Err(OpError::operand(i, expected, format!("{operand:?}")).into());
        }
    }
    Ok((result, operands))
}

/// Aligns `second` with the axes of `first` from `start` on, by trailing axes of one element.
fn align(first: &Dims, second: &mut Dims, start: Option<i64>) -> Result<()> {
    if second.iter().all(|&d| d == 1) {
        second.clear();
        return Ok(());
    }
    let Some(start) = start else { return Ok(()) };
    let start = ampc_ir::views::normalize_axis(start, first.len(), Part::Operand(1))?;
    let after = first.len().checked_sub(start + second.len());
    let after = after.ok_or_else(|| {
        OpError::operand(1, format!("at most {} axes", first.len() - start), second.len().to_string())
    })?;
    second.extend(std::iter::repeat_n(1, after));
    Ok(())
}

/// An operand that the expression of a node reads.
pub(crate) struct Read {
    pub(crate) value: Value,
    pub(crate) dtype: DType,
    /// The dims, which broadcast to those of the result by NumPy's rule.
    pub(crate) dims: Dims,
}

/// A node with an expression, and the values that it reads.
pub(crate) struct Member {
    pub(crate) expression: Expression,
    /// The operands by position; `None` if the expression does not read the operand.
    pub(crate) operands: Vec<Option<Read>>,
    pub(crate) result: Value,
    /// The element type of the result.
    pub(crate) dtype: DType,
    /// The dims of the result.
    pub(crate) dims: Dims,
}

impl Member {
    /// Reads a node; `None` unless it has an expression, and its element types and dims are known.
    pub(crate) fn read(site: &Site<'_>, is_known: impl Fn(DType) -> bool) -> Option<Member> {
        let (view, kind) = (&site.view, site.kind());
        let [Some(result)] = view.data().results()[..] else { return None };
        let dtype = site.result_dtype(0).ok().filter(|&dtype| is_known(dtype))?;
        let is_cast = matches!(kind, OpKind::Cast | OpKind::CastLike);
        // Such a cast computes nothing, and the second operand of CastLike is not read.
        if is_cast && view.dtype(0) == Some(dtype) {
            return None;
        }
        let expression = Expression::read(view)?;
        let n = match kind {
            OpKind::Clip | OpKind::Cast | OpKind::CastLike => 1,
            _ => view.n_operands(),
        };
        let (dims, mut of_operands) = aligned(site, n).ok()?;
        // The bounds of a Clip have one element each.
        of_operands.resize(view.n_operands(), Dims::new());
        let mut operands = Vec::new();
        for (i, dims) in of_operands.into_iter().enumerate() {
            let read = expression.terms().contains(&Term::Operand(i));
            let Some(value) = view.operand(i).filter(|_| read) else {
                operands.push(None);
                continue;
            };
            if i >= n && site.dims(i).ok()?.iter().product::<usize>() != 1 {
                return None;
            }
            let dtype = view.dtype(i).filter(|&dtype| is_known(dtype))?;
            operands.push(Some(Read { value, dtype, dims }));
        }
        Some(Member { expression, operands, result, dtype, dims })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_of_old_versions_are_aligned() {
        let first = Dims::from_slice(&[2, 3, 4, 5]);
        let aligned = |second: &[usize], start| {
            let mut second = Dims::from_slice(second);
            align(&first, &mut second, start).map(|()| second.to_vec())
        };
        assert_eq!(aligned(&[3, 4], Some(1)).unwrap(), [3, 4, 1]);
        assert_eq!(aligned(&[4, 5], None).unwrap(), [4, 5]);
        assert_eq!(aligned(&[1, 1], Some(0)).unwrap(), []);
        assert!(aligned(&[4, 5], Some(3)).is_err());
    }
}
