//! Gradients of ScatterElements and ScatterND, with respect to data and updates.
//!
//! | reduction | data | updates |
//! |---|---|---|
//! | none | dy, 0 where something was written | dy of the element that was written |
//! | add | dy | dy of the element |
//! | mul | dy times all that the element was multiplied by | dy times all others that the element is a product of |
//! | max, min | the share of dy | the share of dy: of all that are the result, equal ones |
//!
//! With mul, an element may be a product with zeros: as with ReduceProd, the product without a factor is the
//! product of the factors that are not 0, if no other factor is 0.

use super::backward::{Backward, Build, Ruled, signed};
use super::indexing::{axis, zeros_for};
use super::reads::NeedsSlot;
use crate::pass::training_error::RuleError;
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::{AttrValue, NodeSpec, Value};

/// Writing and reading at the indices of the node.
struct At {
    /// The operator that writes.
    scatter: OpKind,
    /// The operator that gathers the written elements.
    gather: OpKind,
    indices: Value,
    axis: Option<i64>,
}

impl At {
    fn spec(&self, kind: OpKind, operands: &[Value]) -> NodeSpec {
        let spec = NodeSpec::new(kind, operands);
        match self.axis {
            Some(axis) => spec.attr("axis", AttrValue::Int(axis)),
            None => spec,
        }
    }

    /// A value with others written into it.
    fn write(&self, b: &mut Backward<'_>, into: Value, updates: Value, reduction: &str) -> Ruled<Value> {
        let mut spec = self.spec(self.scatter, &[into, self.indices, updates]);
        if reduction != "none" {
            spec = spec.attr("reduction", AttrValue::String(reduction.as_bytes().into()));
        }
        let [written] = b.insert(spec)?;
        Ok(written)
    }

    /// The elements at the indices.
    fn read(&self, b: &mut Backward<'_>, from: Value) -> Ruled<Value> {
        let [read] = b.insert(self.spec(self.gather, &[from, self.indices]))?;
        Ok(read)
    }
}

pub(super) fn scatter_elements(b: &mut Backward<'_>) -> Ruled {
    let axis = Some(signed(axis(b, b.rank(b.dy0()?)?)?));
    let (scatter, gather) = (OpKind::ScatterElements, OpKind::GatherElements);
    scattered(b, &At { scatter, gather, indices: b.x(1)?, axis })
}

pub(super) fn scatter_nd(b: &mut Backward<'_>) -> Ruled {
    let (scatter, gather) = (OpKind::ScatterND, OpKind::GatherND);
    scattered(b, &At { scatter, gather, indices: b.x(1)?, axis: None })
}

/// The reduction of a ScatterElements or ScatterND.
fn reduction<'a>(view: &NodeView<'a>) -> &'a str {
    view.string("reduction").unwrap_or("none")
}

/// True if dy is moved: elements replace others or are added.
pub(super) fn passes(view: &NodeView<'_>, _: &NeedsSlot<'_>) -> bool {
    matches!(reduction(view), "none" | "add")
}

fn scattered(b: &mut Backward<'_>, at: &At) -> Ruled {
    let reduction = reduction(&b.view()?).to_owned();
    match reduction.as_str() {
        "none" => replaced(b, at),
        "add" => {
            let dy = b.dy0()?;
            b.add(0, dy)?;
            if b.needs(2) {
                let d = at.read(b, dy)?;
                b.add(2, d)?;
            }
            Ok(())
        }
        "mul" => multiplied(b, at),
        "max" | "min" => extreme(b, at),
        other => Err(RuleError::Unsupported(format!("its reduction `{other}` is unknown"))),
    }
}

fn replaced(b: &mut Backward<'_>, at: &At) -> Ruled {
    let (updates, dy) = (b.x(2)?, b.dy0()?);
    if b.needs(0) {
        let zeros = zeros_for(b, updates, dy)?;
        let dx = at.write(b, dy, zeros, "none")?;
        b.add(0, dx)?;
    }
    if b.needs(2) {
        let d = at.read(b, dy)?;
        b.add(2, d)?;
    }
    Ok(())
}

/// dy divided by the number of elements equal to the result, to each of them.
fn extreme(b: &mut Backward<'_>, at: &At) -> Ruled {
    let (x, updates, y, dy) = (b.x(0)?, b.x(2)?, b.y(0)?, b.dy0()?);
    let dy = b.wide(dy)?;
    let dtype = b.dtype(dy)?;
    let results = at.read(b, y)?;
    let is_result = b.op(OpKind::Equal, &[x, y], &[])?;
    let of_data = b.cast(is_result, dtype)?;
    let is_result = b.op(OpKind::Equal, &[updates, results], &[])?;
    let of_updates = b.cast(is_result, dtype)?;
    let count = at.write(b, of_data, of_updates, "add")?;
    let share = b.over(dy, count)?;
    if b.needs(0) {
        let dx = b.times(of_data, share)?;
        b.add(0, dx)?;
    }
    if b.needs(2) {
        let share = at.read(b, share)?;
        let d = b.times(of_updates, share)?;
        b.add(2, d)?;
    }
    Ok(())
}

/// dy times the product of all other factors.
fn multiplied(b: &mut Backward<'_>, at: &At) -> Ruled {
    let (x, updates, dy) = (b.x(0)?, b.x(2)?, b.dy0()?);
    let (x, updates, dy) = (b.wide(x)?, b.wide(updates)?, b.wide(dy)?);
    let dtype = b.dtype(dy)?;
    let (zero, one) = (b.number(0.0, dtype)?, b.number(1.0, dtype)?);
    let mut factors = Vec::with_capacity(2);
    for factor in [x, updates] {
        let is_zero = b.op(OpKind::Equal, &[factor, zero], &[])?;
        let mark = b.cast(is_zero, dtype)?;
        factors.push((mark, b.select(is_zero, one, factor)?));
    }
    let [(x_zero, x_safe), (u_zero, u_safe)] = factors[..] else { unreachable!("there are two") };
    // The product of what is not 0, and how many zeros there are beside.
    let product = at.write(b, x_safe, u_safe, "mul")?;
    let zeros = at.write(b, x_zero, u_zero, "add")?;
    for (i, safe, mark) in [(0, x_safe, x_zero), (2, u_safe, u_zero)] {
        if !b.needs(i) {
            continue;
        }
        let (mut dy, mut product, mut zeros) = (dy, product, zeros);
        if i == 2 {
            (dy, product, zeros) = (at.read(b, dy)?, at.read(b, product)?, at.read(b, zeros)?);
        }
        let others = b.over(product, safe)?;
        let beside = b.minus(zeros, mark)?;
        let none = b.op(OpKind::Equal, &[beside, zero], &[])?;
        let others = b.masked(none, others)?;
        let d = b.times(dy, others)?;
        b.add(i, d)?;
    }
    Ok(())
}
