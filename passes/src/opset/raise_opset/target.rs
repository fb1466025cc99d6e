//! How far to raise: a number, or as far as the format needs.

use crate::graph::flow;
use crate::graph::keys::node_key;
use crate::opset::raise_units;
use crate::opset::raise_units::Families;
use crate::pass::PassError;
use crate::policy::Policy;
use ampc_ir::infer::Facts;
use ampc_ir::op::{self, Class, Legality, latest_opset};
use ampc_ir::{DType, Module, Type};
use std::sync::Arc;

/// The newest opset that ONNX Runtime 1.31 reads: `auto` goes no further.
pub const NEWEST_READ: u16 = 26;

/// The target of raising a model.
#[derive(Clone, Debug)]
pub enum Target {
    /// To this opset of ai.onnx.
    Opset(u16),
    /// To the lowest opset, not below the model's own, at which every node that the policy lowers has the format.
    Auto {
        /// The format: f16 or bf16.
        format: DType,
        /// The policy.
        policy: Arc<Policy>,
        /// Units that get the operator of their meaning at an opset that has it ([`raise_units`]).
        units: Families,
    },
}

impl Target {
    /// The format and the policy that say how far.
    pub(super) fn auto(&self) -> Option<(DType, &Arc<Policy>)> {
        match self {
            Target::Opset(_) => None,
            Target::Auto { format, policy, .. } => Some((*format, policy)),
        }
    }

    /// The requested number.
    pub(super) fn number(&self) -> Option<u16> {
        match self {
            &Target::Opset(to) => Some(to),
            Target::Auto { .. } => None,
        }
    }

    /// The opset to raise to next; `None` if the module, its functions included, is as far as it should be.
    pub(super) fn opset(&self, module: &Module, facts: &Facts) -> Result<Option<u16>, PassError> {
        let main = opset(module);
        let to = match self {
            &Target::Opset(to) => {
                let latest = latest_opset("").expect("the table knows ai.onnx");
                if to > latest {
                    return Err(PassError::OpsetUnknown { to, latest });
                }
                if let Some(from) = main.filter(|&from| from > to) {
                    return Err(PassError::OpsetDown { from, to });
                }
                to
            }
            Target::Auto { format, policy, units } => {
                let wanted = wanted(module, *format, policy);
                let wanted = wanted.max(raise_units::opset_for(module, facts, units, *format));
                return Ok(wanted.filter(|&to| main.is_some_and(|from| from < to)));
            }
        };
        let functions = module.functions().filter_map(|(_, f)| module.opset(f.graph, ""));
        Ok(main.into_iter().chain(functions).any(|from| from < to).then_some(to))
    }
}

/// The lowest opset at which every type variable that the policy lowers has the format; variables that get it
/// only at an opset that runtimes do not read are ignored.
fn wanted(module: &Module, format: DType, policy: &Policy) -> Option<u16> {
    let mut wanted = None;
    // What is in functions is not lowered.
    for node in flow::nodes(module) {
        let data = module.node(node);
        let Some(schema) = data.schema().filter(|s| s.domain.is_empty()) else { continue };
        for var in flow::vars(module, node) {
            let Legality::NoSuchFormat { first_opset_with_it: Some(first) } =
                flow::legality(module, var, format)
            else {
                continue;
            };
            let is_f32 = flow::bound_type(module, var).and_then(Type::dtype) == Some(DType::F32);
            let castable = flow::operands_of(module, var).next().is_some();
            let table =
                if flow::is_port(module, var) { Class::Clear } else { op::schema_class(schema, format) };
            let lowered = is_lowered(table, policy, module, node);
            if is_f32 && castable && lowered && first <= NEWEST_READ {
                wanted = wanted.max(Some(first));
            }
        }
    }
    wanted
}

/// True if the policy lowers operators of this class, or this operator.
fn is_lowered(table: Class, policy: &Policy, module: &Module, node: ampc_ir::Node) -> bool {
    let class = match policy.class_of(&node_key(module, node)) {
        _ if table == Class::Fixed => table,
        Some(listed) => listed.class,
        None => policy.base.class_of(table).0,
    };
    matches!(class, Class::Allow | Class::Infer | Class::Clear)
}

/// The opset of ai.onnx that a module imports, if it does.
pub fn opset(module: &Module) -> Option<u16> {
    module.opset(module.main(), "")
}
