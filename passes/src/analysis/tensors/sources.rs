//! Tensors that may change their type at no cost: inputs of the model that need not keep their types, and results of casts of
//! the author from integers and booleans.

use super::{End, Tensors};
use crate::analysis::exact::composes;
use crate::analysis::values::is_plain;
use crate::graph::flow;
use crate::policy::KeepIo;
use ampc_ir::module::Def;
use ampc_ir::op::OpKind;
use ampc_ir::verify::name_of;
use ampc_ir::{DType, Module, Value};
use rustc_hash::FxHashSet;

impl Tensors<'_> {
    /// True if a value is an input of the model that need not keep its type.
    pub(super) fn is_free_input(&self, value: Value) -> bool {
        let data = self.module.value(value);
        matches!(data.def, Def::Input { default: None, .. })
            && data.graph == self.module.main()
            && data.ty.dtype() == Some(DType::F32)
            && !self.keep_io.keeps(&name_of(self.module, value))
            && !leaves(self.module, value)
    }

    /// True if a value is the result of a cast of the author from integers or booleans, and the cast can make the format just
    /// as well: all readers are variables of operators, and none takes any element type, because its result would be rounded.
    pub(super) fn may_be_recast(&self, root: Value) -> bool {
        let module = self.module;
        if !is_recast(module, root, self.to) || module.is_output(root) {
            return false;
        }
        let mut work = vec![root];
        while let Some(value) = work.pop() {
            for (node, slot) in module.uses(value) {
                let reader = module.node(node);
                let is_cast = reader.schema().is_some_and(|s| s.kind == OpKind::Cast);
                if slot as usize >= reader.n_formal() {
                    return false;
                } else if let Some(result) = flow::inserted_result(module, node) {
                    work.push(result);
                } else if is_cast {
                    return false;
                } else {
                    match self.reader(node, slot, module.value(value).ty.dtype()) {
                        Some((End::Var(var), _)) if self.follows(var) => return false,
                        Some(_) => {}
                        None => return false,
                    }
                }
            }
        }
        true
    }
}

/// The outputs of a model that keep their types, and what an earlier run cast to one.
pub(crate) fn kept_outputs(module: &Module, keep_io: &KeepIo) -> FxHashSet<Value> {
    let outputs = module.graph(module.main()).outputs().iter().map(|output| output.value);
    let mut kept: FxHashSet<Value> = outputs.filter(|&v| keep_io.keeps(&name_of(module, v))).collect();
    let made = kept.iter().filter_map(|&output| module.producer(output));
    let inserted = made.filter(|&(node, _)| flow::inserted_result(module, node).is_some());
    let cast: Vec<Value> = inserted.filter_map(|(node, _)| module.node(node).operand(0)).collect();
    kept.extend(cast);
    kept
}

/// True if a value, or the result of a cast of it that an earlier run inserted, is an output.
fn leaves(module: &Module, value: Value) -> bool {
    let mut work = vec![value];
    while let Some(value) = work.pop() {
        if module.is_output(value) {
            return true;
        }
        work.extend(module.uses(value).filter_map(|(node, _)| flow::inserted_result(module, node)));
    }
    false
}

/// True if a value is the result of a cast of the author from integers or booleans to fp32 that joins a cast of the value to
/// the format: one cast makes the same numbers.
fn is_recast(module: &Module, value: Value, to: DType) -> bool {
    let Some((node, _)) = module.producer(value) else { return false };
    let dtype = |value: Value| module.value(value).ty.dtype();
    let from = module.node(node).operand(0).and_then(dtype).filter(|from| !from.is_float());
    let joins = from.is_some_and(|from| composes(from, DType::F32, to));
    let is_cast = module.node(node).schema().is_some_and(|s| s.kind == OpKind::Cast);
    let of_author = flow::inserted_result(module, node).is_none();
    is_cast && joins && of_author && dtype(value) == Some(DType::F32) && is_plain(module, node, to)
}
