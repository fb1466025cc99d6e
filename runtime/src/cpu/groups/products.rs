//! Groups that begin with a product or a convolution: the other nodes of the group are its epilogue. With residual and
//! activation, in
//!
//! ```text
//! %p = Conv(%x, %w)      %s = Add(%p, %r)      %y = Relu(%s)
//! ```
//!
//! blocks of `%p` are rounded to the element type of `%p`, added and rounded, and cut off at 0, as the nodes one by one
//! do; `%p` and `%s` have no place in memory.

use super::program::{Program, member_of};
use super::run::{Places, Source, Sources, size_of_element};
use crate::backend::GroupSite;
use crate::cpu::kernels::product::{self, OPERANDS, Parts, Product, Whole};
use crate::elementwise::Member;
use crate::kernel::{Dims, Io, KernelError, Prepared, Result, Site, elements_mut};
use ampc_ir::{DType, Value};

/// The dims of the result of a product that a group may begin with.
pub(super) fn dims_of(site: &Site<'_>) -> Option<Dims> {
    if product::fits(site) { site.result_dims(0).ok() } else { None }
}

/// The kernel of a group whose node `at` is a product.
pub(super) fn prepare(group: &GroupSite<'_>, at: usize) -> Result<Prepared> {
    let unsupported = || KernelError::unsupported("groups that begin with this product");
    let site = &group.sites[at];
    let others = group.sites.iter().enumerate().filter(|(i, _)| *i != at);
    let members = others.map(|(_, site)| member_of(site)).collect::<Option<Vec<Member>>>();
    let members = members.ok_or_else(unsupported)?;
    let members: Vec<&Member> = members.iter().collect();
    let &[Some(value)] = site.view.data().results() else { return Err(unsupported()) };
    let &[_] = group.results else { return Err(unsupported()) };
    let place = |value: Value| group.operand(value);
    let mut operands = [None; OPERANDS];
    for (i, operand) in operands.iter_mut().enumerate() {
        *operand = site.view.operand(i).and_then(place);
    }
    let given = Some((value, site.result_dtype(0)?));
    let program = Program::new(&members, group.operands, group.results, given).ok_or_else(unsupported)?;
    let product = match product::read(site)? {
        Product::Parts(parts) => return Ok(by_parts(program, parts, operands)),
        Product::Whole(product) => product,
    };
    let is_in_place = program.results == [DType::F32];
    Ok(if is_in_place {
        in_place(program, product, operands)
    } else {
        from_scratch(program, product, operands)
    })
}

/// The operands of a group.
fn sources_of<'a>(io: &Io<'a>, n: usize) -> Result<Sources<'a>> {
    (0..n).map(|i| Ok(Source::Memory(io.bytes(i)?))).collect()
}

/// The operands of a product among the operands of a group.
fn operands_of<'a>(io: &Io<'a>, operands: [Option<usize>; OPERANDS]) -> Result<[Option<&'a [u8]>; OPERANDS]> {
    let mut found = [None; OPERANDS];
    for (bytes, operand) in found.iter_mut().zip(operands) {
        *bytes = operand.map(|i| io.bytes(i)).transpose()?;
    }
    Ok(found)
}

/// The kernel of a product that is computed block by block.
fn by_parts(program: Program, product: Box<dyn Parts<f32>>, operands: [Option<usize>; OPERANDS]) -> Prepared {
    let (scratch, size) = (product.scratch(), size_of_element(program.results[0]));
    let kernel = Prepared::new(move |io: &mut Io<'_>| {
        let sources = sources_of(io, program.operands.len())?;
        let operands = operands_of(io, operands)?;
        let (scratch, room) = (io.scratch(), io.room());
        product.run(operands, scratch, (io.out_bytes(0)?, size), room, &|start, numbers, to, free| {
            program.finish(&sources, start, numbers, to, free);
        })
    });
    kernel.scratch(scratch)
}

/// The kernel of a product that is computed in the memory of the result of the group.
fn in_place(program: Program, product: Box<dyn Whole>, operands: [Option<usize>; OPERANDS]) -> Prepared {
    let scratch = product.scratch();
    let kernel = Prepared::new(move |io: &mut Io<'_>| {
        let sources = sources_of(io, program.operands.len())?;
        let operands = operands_of(io, operands)?;
        let (scratch, to) = (io.scratch(), io.out_bytes(0)?);
        product.run(operands, scratch, elements_mut(to));
        program.all(&sources, Places::from_iter([to]), &[]);
        Ok(())
    });
    kernel.scratch(scratch)
}

/// The kernel of a product that is computed in scratch memory.
fn from_scratch(program: Program, product: Box<dyn Whole>, operands: [Option<usize>; OPERANDS]) -> Prepared {
    let (scratch, n) = (product.scratch(), product.result());
    let kernel = Prepared::new(move |io: &mut Io<'_>| {
        let sources = sources_of(io, program.operands.len())?;
        let operands = operands_of(io, operands)?;
        let (numbers, scratch) = io.scratch::<f32>().split_at_mut(n);
        product.run(operands, scratch, numbers);
        program.all(&sources, Places::from_iter([io.out_bytes(0)?]), numbers);
        Ok(())
    });
    kernel.scratch(n.saturating_mul(size_of::<f32>()).saturating_add(scratch))
}
