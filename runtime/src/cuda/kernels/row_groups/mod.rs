//! Groups of nodes along rows: element-wise nodes, reductions over the trailing axes, normalizations, and sums over
//! the leading axes become one kernel, which reads each operand once and writes each result once.
//!
//! A group has an index space of `rows × n` elements. Its values are *full* (a number for each element), *row*
//! values (a number for each row), *column* values (a number for each element of a row, the same in all rows), or
//! scalars. For example, in the gradient of a layer normalization:
//!
//! ```text
//! %g: f16[2, 16, 768]   full     %m = ReduceMean(%g) {axes=[2]}: f32[2, 16, 1]   row     %w: f32[768]   column
//! %d = ReduceSum(%g) {axes=[0, 1]}: f32[768]   sums of columns, results only
//! ```
//!
//! A warp or a block computes a row. The kernel makes a pass over the row for each reduction in a chain of dependent
//! reductions, and a last pass for the results. Operands stay in registers, and cheap nodes are recomputed
//! ([`passes`]). Rows that do not fit into registers form no group. Each warp or block adds its own column sums, and a
//! second launch adds these partial sums in a fixed order.
//!
//! Every node rounds to its element type, so a group gives the same bits as its separate nodes, except for the order of
//! sums.

mod join;
mod nodes;
mod passes;
mod space;
mod text;
mod writer;

pub(super) use join::join;

use super::Maker;
use super::groups::MOST_POINTERS;
use crate::backend::GroupSite;
use crate::cuda::Shared;
use crate::groups::unsupported_group;
use crate::kernel::{Prepared, Result};
use nodes::RowNode;
use space::Program;
use std::sync::Arc;

/// The kernel of a group; `None` if no node is a reduction or a normalization along rows.
pub(super) fn prepare(shared: &Arc<Shared>, group: &GroupSite<'_>) -> Option<Result<Prepared>> {
    let nodes: Option<Vec<RowNode>> = group.sites.iter().map(RowNode::read).collect();
    let nodes = nodes?;
    let space = nodes.iter().find_map(|node| node.space)?;
    let maker = Maker { shared, site: group.sites.first()? };
    Some(prepared(&maker, group, nodes, space))
}

fn prepared(
    maker: &Maker<'_>,
    group: &GroupSite<'_>,
    nodes: Vec<RowNode>,
    space: [usize; 2],
) -> Result<Prepared> {
    let program = Program::new(nodes.iter().collect(), space).ok_or_else(unsupported_group)?;
    let is_made = |&value| program.can_be_result(value);
    if group.operands.len() + group.results.len() > MOST_POINTERS || !group.results.iter().all(is_made) {
        return Err(unsupported_group());
    }
    text::prepare(maker, group, &program)
}
