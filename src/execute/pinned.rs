//! Rewrites with nodes pinned to fp32.

use crate::error::Error;
use crate::loaded::Model;
use crate::options::RewriteOptions;
use crate::report::Report;
use crate::rewrite::rewrite_with;
use ampc_ir::op::Class;
use ampc_ir::{DType, Module};
use ampc_passes::Policy;
use ampc_passes::guard::Statistics;
use ampc_passes::policy::{ListedBy, Pin};
use std::sync::Arc;

/// Rewrites a model with nodes pinned to fp32, which overrides other pins, and with operators denied.
pub(super) fn with_pins<'c>(
    source: &Module,
    options: &RewriteOptions,
    paths: impl Iterator<Item = &'c str>,
    deny: &[String],
    statistics: &mut Statistics,
) -> Result<(Module, Report), Error> {
    let mut policy: Policy = (*options.policy).clone();
    for op in deny {
        policy.set_class(op, Class::Deny, ListedBy::Options)?;
    }
    policy.next_layer();
    for path in paths {
        policy.pin(path, Pin::To(DType::F32))?;
    }
    let policy = Arc::new(policy);
    let options = RewriteOptions { policy, alternative: None, explain: Vec::new(), ..options.clone() };
    let mut model = Model::from(source.clone());
    let report = rewrite_with(&mut model, &options, &mut (), statistics)?;
    Ok((model.module, report))
}
