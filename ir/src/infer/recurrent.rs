//! LSTM, GRU and RNN: results, and the consistency of the weights.

use super::inferred::Inferred;
use crate::op::OpKind;
use crate::ty::{Dim, Shape};
use crate::views::recurrent::RecurrentView;
use crate::views::size::{agree, agree_all, part, ranked, shape_error, times};
use crate::views::{NodeView, OpError};

/// Extents that operands and results share.
struct Extents {
    steps: Dim,
    batch: Dim,
    input: Dim,
    hidden: Dim,
    directions: Dim,
}

/// LSTM, GRU, RNN: `Y`, `Y_h` and, of LSTM, `Y_c`.
pub(super) fn infer_recurrent(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let recurrent = RecurrentView::read(view)?;
    let mut it = Extents {
        steps: Dim::Unknown,
        batch: Dim::Unknown,
        input: Dim::Unknown,
        hidden: recurrent.hidden.map_or(Dim::Unknown, Dim::Known),
        directions: Dim::Known(recurrent.n_directions()),
    };
    let (steps, batch) = ("number of steps", "batch size");
    if recurrent.batch_first {
        agree_all(
            view,
            0,
            &mut [&mut it.batch, &mut it.steps, &mut it.input],
            &[batch, steps, "input size"],
        )?;
    } else {
        agree_all(
            view,
            0,
            &mut [&mut it.steps, &mut it.batch, &mut it.input],
            &[steps, batch, "input size"],
        )?;
    }
    weights(view, &recurrent, &mut it)?;
    agree_all(view, 4, &mut [&mut it.batch], &[batch])?;
    let n_states = if view.kind() == OpKind::LSTM { 2 } else { 1 };
    for operand in 5..5 + n_states {
        state(view, operand, &recurrent, &mut it)?;
    }
    let y = if recurrent.batch_first {
        [it.batch, it.steps, it.directions, it.hidden]
    } else {
        [it.steps, it.directions, it.batch, it.hidden]
    };
    out.shape(0, Shape::of(y));
    for result in 1..=n_states {
        let last = if recurrent.batch_first {
            [it.batch, it.directions, it.hidden]
        } else {
            [it.directions, it.batch, it.hidden]
        };
        out.shape(result, Shape::of(last));
    }
    Ok(())
}

/// W [directions, gates · hidden, input], R [directions, gates · hidden, hidden], B [directions, 2 · gates · hidden]
/// and of LSTM P [directions, 3 · hidden].
fn weights(view: &NodeView<'_>, recurrent: &RecurrentView, it: &mut Extents) -> Result<(), OpError> {
    if ranked(view, 1, 3)?.is_some() {
        agree(view, 1, 0, &mut it.directions, "number of directions")?;
        stacked(view, 1, recurrent.gates, &mut it.hidden)?;
        agree(view, 1, 2, &mut it.input, "input size")?;
    }
    if ranked(view, 2, 3)?.is_some() {
        agree(view, 2, 0, &mut it.directions, "number of directions")?;
        agree(view, 2, 2, &mut it.hidden, "hidden size")?;
        stacked(view, 2, recurrent.gates, &mut it.hidden)?;
    }
    if ranked(view, 3, 2)?.is_some() {
        agree(view, 3, 0, &mut it.directions, "number of directions")?;
        stacked(view, 3, 2 * recurrent.gates, &mut it.hidden)?;
    }
    if view.kind() == OpKind::LSTM && ranked(view, 7, 2)?.is_some() {
        agree(view, 7, 0, &mut it.directions, "number of directions")?;
        stacked(view, 7, 3, &mut it.hidden)?;
    }
    Ok(())
}

/// Axis 1 of an operand holds `n` times the hidden size.
fn stacked(view: &NodeView<'_>, operand: usize, n: u64, hidden: &mut Dim) -> Result<(), OpError> {
    let Some(dims) = view.dims(operand) else { return Ok(()) };
    let found = part(dims[1], n);
    match found.and_then(|found| times(*hidden, n).meet(dims[1]).and(hidden.meet(found))) {
        Some(agreed) => *hidden = agreed,
        None => {
            let size = hidden.known().map_or_else(|| "the hidden size".into(), |h| h.to_string());
            return Err(shape_error(operand, format!("{n} times {size} on axis 1"), dims));
        }
    }
    Ok(())
}

fn state(
    view: &NodeView<'_>,
    operand: usize,
    recurrent: &RecurrentView,
    it: &mut Extents,
) -> Result<(), OpError> {
    let names = ["number of directions", "batch size", "hidden size"];
    if recurrent.batch_first {
        let names = [names[1], names[0], names[2]];
        agree_all(view, operand, &mut [&mut it.batch, &mut it.directions, &mut it.hidden], &names)
    } else {
        agree_all(view, operand, &mut [&mut it.directions, &mut it.batch, &mut it.hidden], &names)
    }
}
