//! Spellings of other tools: onnxconverter-common and ONNX Runtime's float16 (`keep_io_types`, `op_block_list`,
//! `node_block_list`), NVIDIA AutoCast (`nodes_to_…`, `op_types_to_…`). Lists are theirs, split at spaces and commas,
//! and so is what a name means.

use super::problem::Failure;
use super::settings::of_option;
use ampc::ir::DType;
use ampc::ir::op::{self, Class};
use ampc::passes::policy::{Pattern, Pin, Policy, op_key};
use clap::Args;

/// Their flags, which the help leaves out.
#[derive(Debug, Args)]
pub(crate) struct PeerArgs {
    /// As `--keep-io all`, or with names as `--keep-io NAME,…`
    #[arg(
        long,
        alias = "keep_io_types",
        hide = true,
        conflicts_with = "keep_io",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "all"
    )]
    pub(crate) keep_io_types: Option<String>,
    /// Operators to keep fp32, in every domain
    #[arg(
        long,
        aliases = ["op_block_list", "op-types-to-exclude", "op_types_to_exclude"],
        hide = true,
        num_args = 1..,
        value_delimiter = ','
    )]
    op_block_list: Vec<String>,
    /// Operators to lower, in every domain
    #[arg(long, alias = "op_types_to_include", hide = true, num_args = 1.., value_delimiter = ',')]
    op_types_to_include: Vec<String>,
    /// Nodes to keep fp32, by name
    #[arg(long, alias = "node_block_list", hide = true, num_args = 1.., value_delimiter = ',')]
    node_block_list: Vec<String>,
    /// Nodes to keep fp32, by the beginning of their names as a regular expression
    #[arg(long, alias = "nodes_to_exclude", hide = true, num_args = 1..)]
    nodes_to_exclude: Vec<String>,
    /// Nodes to lower all the same
    #[arg(long, alias = "nodes_to_include", hide = true, num_args = 1..)]
    nodes_to_include: Vec<String>,
}

impl PeerArgs {
    /// The lists that are split at commas, where a name may be empty.
    pub(crate) fn lists(&self) -> [(&'static str, &Vec<String>); 3] {
        [
            ("--op-block-list", &self.op_block_list),
            ("--op-types-to-include", &self.op_types_to_include),
            ("--node-block-list", &self.node_block_list),
        ]
    }

    /// Puts what they ask for into a policy. What is included wins over what is excluded.
    ///
    /// # Errors
    /// If an operator is not known, or an expression is malformed.
    pub(crate) fn apply(&self, policy: &mut Policy, to: DType) -> Result<(), Failure> {
        let included: Vec<String> = self.op_types_to_include.iter().flat_map(|op| called(op)).collect();
        let excluded = self.op_block_list.iter().flat_map(|op| called(op));
        for op in excluded.filter(|op| !included.contains(op)) {
            let set = policy.set_class(&op, Class::Deny, "list");
            set.map_err(|e| of_option("--op-block-list", &op, &e))?;
        }
        for op in &included {
            let set = policy.set_class(op, Class::Allow, "list");
            set.map_err(|e| of_option("--op-types-to-include", op, &e))?;
        }
        for node in &self.node_block_list {
            let pinned = policy.pin(node, Pin::To(DType::F32));
            pinned.map_err(|e| of_option("--node-block-list", node, &e))?;
        }
        let nodes = [
            ("--nodes-to-exclude", &self.nodes_to_exclude, DType::F32),
            ("--nodes-to-include", &self.nodes_to_include, to),
        ];
        for (flag, expressions, precision) in nodes {
            if precision == to {
                policy.next_layer();
            }
            for expression in expressions {
                // By itself first, lest a bracket too many closes the group.
                let pinned = Pattern::new(&format!("re:{expression}"))
                    .and_then(|_| policy.pin(&format!("re:(?:{expression}).*"), Pin::To(precision)));
                pinned.map_err(|e| of_option(flag, expression, &e))?;
            }
        }
        Ok(())
    }
}

/// The operators called so: by these tools' lists in whatever domain, unless one is named.
fn called(name: &str) -> Vec<String> {
    let all = op::all().iter().filter(|schema| schema.name == name);
    let mut keys: Vec<String> = all.map(|schema| op_key(schema.domain, schema.name)).collect();
    keys.dedup();
    if keys.is_empty() {
        keys.push(name.to_owned());
    }
    keys
}
