//! Signals: DFT, STFT, windows, MelWeightMatrix.

use crate::cpu::kernel::Prepare;
use ampc_ir::op::OpKind;

/// The kernels of this family.
pub(super) fn find(_kind: OpKind) -> Option<Prepare> {
    None
}
