//! Arguments in the spelling of other tools.

use clap::Args;
use std::convert::Infallible;

/// Flags of other tools, which the help leaves out.
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
        default_missing_value = "all",
        value_parser = keep_io_types
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
    pub(crate) op_block_list: Vec<String>,
    /// Operators to lower, in every domain
    #[arg(long, alias = "op_types_to_include", hide = true, num_args = 1.., value_delimiter = ',')]
    pub(crate) op_types_to_include: Vec<String>,
    /// Nodes to keep fp32, by name
    #[arg(long, alias = "node_block_list", hide = true, num_args = 1.., value_delimiter = ',')]
    pub(crate) node_block_list: Vec<String>,
    /// Nodes to keep fp32, by the beginning of their names as a regular expression
    #[arg(long, alias = "nodes_to_exclude", hide = true, num_args = 1..)]
    pub(crate) nodes_to_exclude: Vec<String>,
    /// Nodes to lower all the same
    #[arg(long, alias = "nodes_to_include", hide = true, num_args = 1..)]
    pub(crate) nodes_to_include: Vec<String>,
}

/// Reads `keep_io_types`, which is a truth value of Python or names.
fn keep_io_types(text: &str) -> Result<String, Infallible> {
    Ok(match text {
        "True" | "true" => "all",
        "False" | "false" => "none",
        names => names,
    }
    .to_owned())
}
