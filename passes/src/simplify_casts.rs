//! `simplify-casts`: casts that repeat or undo each other exactly go. Values never change by it.
//!
//! - an inserted cast to the type its operand has is an identity;
//! - two casts of one value to one type are one, the author's if one of them is (it moves to where the first stood);
//! - a cast of a cast, a → b → c, is a → c if every value of a is exact in b (f16 and bf16 in f32 and f64, f32 in
//!   f64) and one of the two was inserted; casts of the author are only ever read around, never changed.

use crate::pass::{Changed, Invariants, Pass, PassCx, PassError};
use ampc_ir::edit::Position;
use ampc_ir::module::Provenance;
use ampc_ir::op::OpKind;
use ampc_ir::{DType, Module, Node, Value};
use rustc_hash::FxHashMap;

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
        let nodes: Vec<Node> = module.nodes(module.main()).collect();
        for node in nodes {
            let Some(mut cast) = Cast::read(module, node) else { continue };
            // Casts of the author stay behind one another, so there can be several.
            while let Some(shorter) = collapse(module, &cast) {
                cast = shorter;
                changed = true;
            }
            let same = (cast.from == cast.to).then_some(cast.operand);
            let twin = first.get(&(cast.operand, cast.to));
            match same.or(twin.map(|t| t.result)) {
                Some(other) if cast.may_go(module) => {
                    module.replace_uses(cast.result, other, |_, _| true);
                    module.erase_node(node);
                    changed = true;
                }
                Some(_) if twin.is_some_and(|t| t.may_go(module)) => {
                    if let Some(twin) = first.insert((cast.operand, cast.to), cast) {
                        let cast = &first[&(twin.operand, twin.to)];
                        module.move_node(node, Position::Before(twin.node));
                        module.replace_uses(twin.result, cast.result, |_, _| true);
                        module.erase_node(twin.node);
                        changed = true;
                    }
                }
                _ => {
                    first.entry((cast.operand, cast.to)).or_insert(cast);
                }
            }
        }
        Ok(Changed::when(changed))
    }
    fn requires(&self) -> Invariants {
        Invariants::CORE
    }
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
    /// Whether its readers may read something else instead.
    fn may_go(&self, module: &Module) -> bool {
        self.inserted && !module.is_output(self.result)
    }
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
