//! `simplify-casts`: casts that repeat or undo each other exactly go. Values never change by it.
//!
//! - an inserted cast to the type its operand has is an identity;
//! - two casts of one value to one type are one, unless both are the author's or make outputs. It stands where the
//!   first one stood, so which is first decides nothing;
//! - a cast of a cast, a → b → c, is a → c if every value of a is exact in b (f16 and bf16 in f32 and f64, f32 in
//!   f64) and one of the two was inserted; casts of the author are only ever read around, never changed.

use crate::flow;
use crate::pass::{Changed, Invariants, Pass, PassCx, PassError};
use ampc_ir::edit::Position;
use ampc_ir::module::Provenance;
use ampc_ir::op::OpKind;
use ampc_ir::{DType, Module, Node, Value};
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;

/// The pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimplifyCasts;

impl Pass for SimplifyCasts {
    fn name(&self) -> &'static str {
        "simplify-casts"
    }
    fn run(&self, module: &mut Module, _cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut changed = false;
        let mut first: FxHashMap<(Value, DType), Cast> = FxHashMap::default();
        for node in flow::nodes(module) {
            let Some(mut cast) = Cast::read(module, node) else { continue };
            // Casts of the author stay behind one another, so there can be several.
            while let Some(shorter) = collapse(module, &cast) {
                cast = shorter;
                changed = true;
            }
            let removable = cast.inserted && !module.is_output(cast.result);
            if removable && cast.from == cast.to {
                replace(module, &cast, cast.operand);
                changed = true;
                continue;
            }
            match first.entry((cast.operand, cast.to)) {
                Entry::Vacant(entry) => {
                    entry.insert(cast);
                }
                Entry::Occupied(twin) if removable => {
                    replace(module, &cast, twin.get().result);
                    changed = true;
                }
                Entry::Occupied(mut twin) if twin.get().inserted && !module.is_output(twin.get().result) => {
                    // The one that has to stay takes the place of the one before it.
                    module.move_node(node, Position::Before(twin.get().node));
                    let before = twin.insert(cast);
                    replace(module, &before, twin.get().result);
                    changed = true;
                }
                Entry::Occupied(_) => {}
            }
        }
        Ok(Changed::when(changed))
    }
    fn requires(&self) -> Invariants {
        Invariants::CORE
    }
}

/// Lets the readers of a cast read another value, and removes the cast.
fn replace(module: &mut Module, cast: &Cast, by: Value) {
    module.replace_uses(cast.result, by, |_, _| true);
    module.erase_node(cast.node);
}

struct Cast {
    node: Node,
    operand: Value,
    result: Value,
    from: DType,
    to: DType,
    inserted: bool,
}

impl Cast {
    /// The cast that a node is, if both types are known.
    fn read(module: &Module, node: Node) -> Option<Cast> {
        let data = module.node(node);
        if data.schema()?.kind != OpKind::Cast {
            return None;
        }
        let (operand, result) = (data.operand(0)?, data.result(0)?);
        Some(Cast {
            node,
            operand,
            result,
            from: module.value(operand).ty.dtype()?,
            to: module.value(result).ty.dtype()?,
            inserted: data.provenance == Provenance::Inserted,
        })
    }
}

/// Lets an inserted cast, or a cast of an inserted cast, read what is behind an exact one.
fn collapse(module: &mut Module, outer: &Cast) -> Option<Cast> {
    let inner = Cast::read(module, module.producer(outer.operand)?.0)?;
    // The shortest digits that tell a number from its neighbours depend on the format.
    let same_value = is_exact(inner.from, inner.to) && outer.to != DType::String;
    if !(outer.inserted || inner.inserted) || !same_value {
        return None;
    }
    module.set_operand(outer.node, 0, Some(inner.operand));
    Cast::read(module, outer.node)
}

/// Whether every value of `from`, infinities and NaN included, is a value of `to`.
pub fn is_exact(from: DType, to: DType) -> bool {
    match to {
        DType::F32 => from.is_low() || from == DType::F32,
        DType::F64 => from.is_low() || matches!(from, DType::F32 | DType::F64),
        other => from == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// G8: neither 16-bit format holds the other.
    #[test]
    fn g8_f16_and_bf16_are_incomparable() {
        assert!(!is_exact(DType::F16, DType::BF16) && !is_exact(DType::BF16, DType::F16));
        assert!(is_exact(DType::BF16, DType::F32) && !is_exact(DType::F32, DType::F16));
    }
}
