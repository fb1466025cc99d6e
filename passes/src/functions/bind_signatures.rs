//! `bind-signatures`: nodes of unknown operators get the signatures of the policy.
//!
//! A node counts if it has the domain and name, no overload, and calls no function of the model. Each use of
//! the signature checks that the node fits: as in other open domains, a node that does not fit keeps its types.

use crate::graph::keys::node_key;
use crate::graph::paths::Paths;
use crate::pass::invariants::Invariants;
use crate::pass::options::{POLICY, PassOption, Setting, Spelled, settings};
use crate::pass::{Changed, Pass, PassCx, PassError};
use crate::policy::Policy;
use ampc_ir::infer::infer_module;
use ampc_ir::op::OpSchema;
use ampc_ir::verify::verify_module;
use ampc_ir::{Module, Node, Op};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The pass.
#[derive(Clone, Debug)]
pub struct BindSignatures {
    /// The policy.
    pub policy: Arc<Policy>,
}

impl Spelled for BindSignatures {
    const NAME: &'static str = "bind-signatures";
    const ABOUT: &'static str = "binds operators of the user to the signatures of the policy";
    const OPTIONS: &'static [PassOption<Self>] = &[PassOption {
        def: POLICY,
        print: |pass| Some(Setting::Policy(pass.policy.clone())),
        read: |pass, given| given.policy().map(|policy| pass.policy = policy),
    }];
    fn blank() -> Self {
        BindSignatures { policy: Arc::default() }
    }
}

impl Pass for BindSignatures {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn options(&self) -> Vec<(&'static str, Setting)> {
        settings(self)
    }
    fn renews_facts(&self) -> bool {
        true
    }
    fn revokes(&self) -> Invariants {
        Invariants::DECISIONS
    }
    fn run(&self, module: &mut Module, _: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let by_name: FxHashMap<(&str, &str), &'static OpSchema> =
            self.policy.signatures().map(|(_, schema)| ((schema.domain, schema.name), schema)).collect();
        let mut bound = Vec::new();
        for graph in module.graph_ids() {
            for node in module.nodes(graph) {
                let (domain, name, overload) = module.op_name(node);
                let Some(&schema) = by_name.get(&(domain, name)) else { continue };
                let open = match module.node(node).op {
                    Op::Custom { .. } => overload.is_empty(),
                    Op::Schema(known) => known.declared.is_some() && known != schema,
                    Op::Call(_) => false,
                };
                if open {
                    bound.push((node, schema));
                }
            }
        }
        if bound.is_empty() {
            return Ok(Changed::No);
        }
        for &(node, schema) in &bound {
            module.declare(node, schema);
        }
        agree(module)?;
        Ok(Changed::Yes)
    }
}

/// Types by the signatures. They can contradict the model: a reader of a result may not take the type, or an
/// output has another declared type.
fn agree(module: &mut Module) -> Result<(), PassError> {
    let contradiction = |module: &Module, node: Option<Node>, reason: String| {
        let place = node.map_or_else(String::new, |node| {
            let paths = Paths::of(module);
            format!("{} `{}`: ", node_key(module, node), paths.path(node))
        });
        PassError::Signatures { reason: format!("{place}{reason}") }
    };
    infer_module(module).map_err(|errors| {
        let first = errors.first();
        contradiction(module, first.map(|e| e.node), first.map_or_else(String::new, |e| e.error.to_string()))
    })?;
    verify_module(module).map(drop).map_err(|violations| {
        let first = violations.first();
        let reason = first.map_or_else(String::new, |v| v.problem.to_string());
        contradiction(module, first.and_then(|v| v.node), reason)
    })
}
