//! Groups that begin with a product or a convolution: its numbers go through the operations of the group while they are
//! in the cache. With bias, residual and activation, of
//!
//! ```text
//! %p = Conv(%x, %w)      %s = Add(%p, %r)      %y = Relu(%s)
//! ```
//!
//! blocks of `%p` are rounded to the element type of `%p`, added and rounded, and cut off at 0, as the nodes one by one
//! do; `%p` and `%s` have no place in memory.

use super::program::{Member, Program};
use super::run::{Source, Sources, size_of_element};
use crate::backend::GroupSite;
use crate::cpu::kernels::product::{self, OPERANDS};
use crate::kernel::{Dims, Io, KernelError, Prepared, Result, Site};
use ampc_ir::Value;

/// The dims of the result of a product that a group may begin with.
pub(super) fn dims_of(site: &Site<'_>) -> Option<Dims> {
    if product::fits(site) { site.result_dims(0).ok() } else { None }
}

/// The kernel of a group whose node `at` is a product.
pub(super) fn prepare(group: &GroupSite<'_>, at: usize) -> Result<Prepared> {
    let unsupported = || KernelError::unsupported("groups that begin with this product");
    let site = &group.sites[at];
    let others = group.sites.iter().enumerate().filter(|(i, _)| *i != at);
    let members = others.map(|(_, site)| Member::read(site)).collect::<Option<Vec<Member>>>();
    let members = members.ok_or_else(unsupported)?;
    let members: Vec<&Member> = members.iter().collect();
    let &[Some(value)] = site.view.data().results() else { return Err(unsupported()) };
    let given = Some((value, site.result_dtype(0)?));
    let &[_] = group.results else { return Err(unsupported()) };
    let program = Program::new(&members, group.operands, group.results, given).ok_or_else(unsupported)?;
    let product = product::read(site)?;
    let place = |value: Value| group.operands.iter().position(|&operand| operand == value);
    let mut operands = [None; OPERANDS];
    for (i, operand) in operands.iter_mut().enumerate() {
        *operand = site.view.operand(i).and_then(place);
    }
    let size = size_of_element(program.results[0]);
    let scratch = product.scratch(size);
    let kernel = Prepared::new(move |io: &mut Io<'_>| {
        let mut sources = Sources::new();
        for i in 0..program.operands.len() {
            sources.push(Source::Memory(io.bytes(i)?));
        }
        let mut of_product = [None; OPERANDS];
        for (bytes, operand) in of_product.iter_mut().zip(operands) {
            *bytes = operand.map(|i| io.bytes(i)).transpose()?;
        }
        let (scratch, room) = (io.scratch(), io.room());
        product.run(of_product, scratch, (io.out_bytes(0)?, size), room, &|start, numbers, to| {
            program.finish(&sources, start, numbers, to);
        })
    });
    Ok(kernel.scratch(scratch))
}
