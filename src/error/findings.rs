//! Findings of the verifier and of inference, with the paths of their nodes.

use super::Finding;
use ampc_ir::infer::InferError;
use ampc_ir::verify::{Problem, Violation};
use ampc_ir::views::{OpError, Part};
use ampc_ir::{Module, Node};
use ampc_passes::Paths;

pub(crate) fn op_of(module: &Module, node: Node) -> String {
    let (domain, name, _) = module.op_name(node);
    ampc_passes::policy::op_key(domain, name)
}

pub(crate) fn findings_of(module: &Module, violations: &[Violation]) -> Vec<Finding> {
    let paths = Paths::of(module);
    violations
        .iter()
        .map(|v| match v.node {
            Some(node) => Finding {
                code: code_of(&v.problem),
                node: Some(node),
                place: paths.path(node).to_owned(),
                op: Some(op_of(module, node)),
                message: v.problem.to_string(),
                label: None,
            },
            None => Finding {
                code: code_of(&v.problem),
                node: None,
                place: module.text(module.graph(v.graph).name).to_owned(),
                op: None,
                message: v.problem.to_string(),
                label: None,
            },
        })
        .collect()
}

pub(crate) fn findings_of_types(module: &Module, errors: &[InferError]) -> Vec<Finding> {
    let paths = Paths::of(module);
    errors
        .iter()
        .map(|e| Finding {
            code: code_of_op(&e.error),
            node: Some(e.node),
            place: paths.path(e.node).to_owned(),
            op: Some(op_of(module, e.node)),
            message: e.error.to_string(),
            label: None,
        })
        .collect()
}

fn code_of(problem: &Problem) -> &'static str {
    match problem {
        Problem::Dangling { .. } => "dangling",
        Problem::ReadBeforeDefined { .. } => "read_before_defined",
        Problem::UsesDisagree { .. } => "uses_disagree",
        Problem::DuplicateName { .. } => "duplicate_name",
        Problem::Shadowed { .. } => "shadowed",
        Problem::Attribute { .. } => "attribute",
        Problem::UnknownAttribute { .. } => "unknown_attribute",
        Problem::RecursiveFunction { .. } => "recursive_function",
        Problem::IrVersion { .. } => "ir_version",
        Problem::OpsetVersion { .. } => "opset_version",
        Problem::DuplicateOpset { .. } => "duplicate_opset",
        Problem::NotImported { .. } => "not_imported",
        Problem::Untyped { .. } => "untyped",
        Problem::Operator(error) => code_of_op(error),
        Problem::UnknownDType { .. } => "unknown_dtype",
        Problem::TypeDisagrees { .. } => "type_disagrees",
        Problem::BoundaryDisagrees { .. } => "boundary_disagrees",
        Problem::Body { .. } => "body",
    }
}

fn code_of_op(error: &OpError) -> &'static str {
    match error.part {
        Part::Node => "operator",
        Part::Operand(_) => "operand",
        Part::Result(_) => "result",
        Part::Attr(_) => "attribute",
    }
}
