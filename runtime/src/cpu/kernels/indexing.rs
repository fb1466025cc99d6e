//! Indices of elements: ArgMax, ArgMin, TopK, NonZero, Unique, OneHot, CumSum, CumProd.

use crate::cpu::kernel::Prepare;
use ampc_ir::op::OpKind;

/// The kernels of this family.
pub(super) fn find(_kind: OpKind) -> Option<Prepare> {
    None
}
