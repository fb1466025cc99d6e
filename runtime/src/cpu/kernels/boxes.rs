pub(super) fn find(_: ampc_ir::op::OpKind) -> Option<crate::cpu::kernel::Prepare> { None }
