//! Attention.
//!
//! Attention of query i at position p, which is i behind the keys that precede the queries:
//! `Y[i] = Σ_j softmax_j(softcap(scale · Q[i]·K[j]) + mask[i, j]) · V[j]`, over the keys j that position, causality,
//! windows and the number of keys leave; a query that is left with none has zeros. Scores are computed in f32 (f64
//! for f64) for some queries of one head at a time and are not rounded; the result is rounded once.
//! `softmax_precision` says in which of the two types the softmax is computed.

use super::elements::to_f64;
use super::functions::tanh;
use super::lanes::{Real, Wide, widened};
use super::linear::{Matrix, multiply};
use super::parallel::numbered_pieces;
use super::slots;
pub(crate) use super::softmax::masked_softmax as softmax;
use crate::host::Element;
use crate::kernel::{Dims, KernelError, Prepare, Prepared, Result, Site};
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::attention::{AttentionView, Scores};
use bytemuck::Pod;
use num_traits::AsPrimitive;
use std::ops::Range;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Attention => attention,
        _ => return None,
    })
}

/// How batch, heads, positions and the elements of a head lie in an operand of rank 3 or 4.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) batch: usize,
    pub(super) heads: usize,
    pub(super) length: usize,
    pub(super) size: usize,
    /// Rank 3: the heads of one position are neighbours.
    pub(super) packed: bool,
}

impl Layout {
    pub(super) fn new(dims: &[usize], heads: Option<u64>) -> Result<Layout> {
        Ok(match *dims {
            [batch, heads, length, size] => Layout { batch, heads, length, size, packed: false },
            [batch, length, hidden] => {
                let heads = heads.and_then(|n| usize::try_from(n).ok());
                let heads = heads.ok_or_else(|| KernelError::value("a number of heads", "none"))?;
                Layout { batch, heads, length, size: hidden / heads, packed: true }
            }
            _ => return Err(KernelError::value("an operand of rank 3 or 4", format!("rank {}", dims.len()))),
        })
    }

    fn count(&self) -> usize {
        self.batch * self.heads * self.length * self.size
    }

    fn heads<'a, W>(&self, elements: &'a [W]) -> Heads<'a, W> {
        let (size, all) = (self.size, self.heads * self.size);
        let (head, row) = if self.packed { (size, all) } else { (self.length * size, size) };
        Heads { elements, batch: self.length * all, head, row }
    }
}

/// Elements, and steps from batch to batch, head to head and position to position.
#[derive(Clone, Copy)]
struct Heads<'a, W> {
    elements: &'a [W],
    batch: usize,
    head: usize,
    row: usize,
}

impl<'a, W> Heads<'a, W> {
    /// The elements from a position of a head on.
    fn from(&self, batch: usize, head: usize, row: usize) -> &'a [W] {
        &self.elements[batch * self.batch + head * self.head + row * self.row..]
    }
}

/// Keys or values: past and new ones together.
#[derive(Clone, Copy)]
struct Cache {
    new: Layout,
    past: usize,
    /// True if they have to be copied to be read.
    moves: bool,
}

impl Cache {
    fn layout(&self) -> Layout {
        let length = self.past + self.new.length;
        if self.past > 0 {
            Layout { length, packed: false, ..self.new }
        } else {
            Layout { length, ..self.new }
        }
    }

    /// Writes all keys of each head one after the other.
    fn join<T: Copy + Sync, U: Pod>(
        &self,
        new: &[T],
        past: Option<&[T]>,
        to: &mut [U],
        copy: impl Fn(&[T], &mut [U]) + Sync,
    ) {
        let (size, before) = (self.new.size, self.past * self.new.size);
        let new = self.new.heads(new);
        let each = before + self.new.length * size;
        if each == 0 {
            return;
        }
        numbered_pieces(to, each, 1, |i, to| {
            let (first, rest) = to.split_at_mut(before);
            if let Some(past) = past {
                copy(&past[i * before..][..before], first);
            }
            if size == 0 {
                return;
            }
            for (l, to) in rest.chunks_exact_mut(size).enumerate() {
                copy(&new.from(i / self.new.heads, i % self.new.heads, l)[..size], to);
            }
        });
    }

    /// All keys, wide; the result with the joined keys is written if it is requested.
    fn gather<'a, T: Real>(
        &self,
        new: &'a [T],
        past: Option<&'a [T]>,
        present: Option<&'a mut [T]>,
        room: &'a mut [T::Wide],
    ) -> Heads<'a, T::Wide> {
        let flat = Layout { length: self.past + self.new.length, packed: false, ..self.new };
        if let Some(present) = present {
            self.join(new, past, present, |from, to: &mut [T]| to.copy_from_slice(from));
            return flat.heads(widened(present, room));
        }
        if self.past > 0 {
            self.join(new, past, room, T::widen);
            return flat.heads(room);
        }
        self.new.heads(widened(new, room))
    }

    /// Elements of scratch memory for [`gather`](Self::gather).
    fn room(&self) -> usize {
        if self.moves { self.layout().count() } else { 0 }
    }
}

/// A mask that is added to the scores.
struct Mask<W> {
    /// Adds elements of the mask, from one on and so far apart; says whether any is none that masks.
    add: fn(&[u8], usize, usize, &mut [W]) -> bool,
    /// Steps from batch to batch, head to head and query to query.
    steps: [usize; 3],
    /// Keys that it has elements for.
    columns: usize,
    /// The step from key to key.
    step: usize,
}

fn add_floats<M: Real, W: Wide>(mask: &[u8], at: usize, step: usize, to: &mut [W]) -> bool {
    let mask: &[M] = bytemuck::cast_slice(mask);
    let mut any = false;
    for (j, y) in to.iter_mut().enumerate() {
        let x = W::of(mask[at + j * step].wide().to());
        any |= x != W::neg_infinity();
        *y = *y + x;
    }
    any
}

fn add_ints<M: Element + AsPrimitive<f64>, W: Wide>(
    mask: &[u8],
    at: usize,
    step: usize,
    to: &mut [W],
) -> bool {
    let mask: &[M] = bytemuck::cast_slice(mask);
    to.iter_mut().enumerate().for_each(|(j, y)| *y = *y + W::of(mask[at + j * step].as_()));
    true
}

fn add_bools<W: Wide>(mask: &[u8], at: usize, step: usize, to: &mut [W]) -> bool {
    let mut any = false;
    for (j, y) in to.iter_mut().enumerate() {
        let attends = mask[at + j * step] != 0;
        any |= attends;
        *y = if attends { *y } else { W::neg_infinity() };
    }
    any
}

impl<W: Wide> Mask<W> {
    fn new(
        site: &Site<'_>,
        [batch, heads, length, total]: [usize; 4],
        short: bool,
    ) -> Result<Option<Mask<W>>> {
        if !site.has(3) {
            return Ok(None);
        }
        let dims = site.dims(3)?;
        let wrong = || {
            let expected = format!("a mask that broadcasts to {:?}", [batch, heads, length, total]);
            KernelError::value(expected, format!("{dims:?}"))
        };
        let (&columns, outer) = dims.split_last().ok_or_else(wrong)?;
        let broadcast = columns == 1 && total != 1 && !short;
        let fits = |(mask, all): (&usize, &usize)| *mask == 1 || mask == all;
        let missing = 3usize.checked_sub(outer.len()).ok_or_else(wrong)?;
        let allowed = if short { columns <= total } else { columns == total || broadcast };
        if !allowed || !outer.iter().zip(&[batch, heads, length][missing..]).all(fits) {
            return Err(wrong());
        }
        let mut steps = [0; 3];
        let mut step = columns;
        for (axis, &dim) in outer.iter().enumerate().rev() {
            steps[missing + axis] = if dim == 1 { 0 } else { step };
            step *= dim;
        }
        let add: fn(&[u8], usize, usize, &mut [W]) -> bool = match site.dtype(3)? {
            DType::Bool => add_bools,
            DType::F64 => add_floats::<f64, W>,
            DType::F32 => add_floats::<f32, W>,
            DType::F16 => add_floats::<half::f16, W>,
            DType::BF16 => add_floats::<half::bf16, W>,
            DType::I64 => add_ints::<i64, W>,
            DType::I32 => add_ints::<i32, W>,
            DType::I16 => add_ints::<i16, W>,
            DType::I8 => add_ints::<i8, W>,
            DType::U64 => add_ints::<u64, W>,
            DType::U32 => add_ints::<u32, W>,
            DType::U16 => add_ints::<u16, W>,
            DType::U8 => add_ints::<u8, W>,
            _ => return Err(site.no_kernel()),
        };
        let (columns, step) = if broadcast { (total, 0) } else { (columns, 1) };
        Ok(Some(Mask { add, steps, columns, step }))
    }
}

/// Scores in one block: as many as stay in the second-level cache.
const SCORES: usize = 1 << 17;

/// The fewest and the most queries in one block.
const ROWS: (usize, usize) = (8, 64);

/// Elements of scratch memory for blocks of all slots.
const ROOM: usize = 1 << 24;

/// Steps for operands of some shape.
struct Plan<W> {
    q: Layout,
    v_size: usize,
    total: usize,
    /// Queries per head of keys.
    group: usize,
    past: usize,
    scale: W,
    view: AttentionView,
    mask: Option<Mask<W>>,
    softmax: fn(&mut [W]),
    /// Queries per block.
    rows: usize,
}

/// The operands as they are read.
struct Operands<'a, W> {
    q: Heads<'a, W>,
    k: Heads<'a, W>,
    v: Heads<'a, W>,
    mask: &'a [u8],
    /// The number of keys of each batch, if an operand gives it.
    lengths: Option<&'a [i64]>,
}

/// Some queries of one head.
#[derive(Clone, Copy)]
struct Block {
    batch: usize,
    head: usize,
    first: usize,
    rows: usize,
}

impl<W: Wide> Plan<W> {
    /// The plan of a node with such queries, keys and values, of which `past` are of earlier runs.
    fn new(site: &Site<'_>, view: AttentionView, [q, k, v]: [Layout; 3], past: usize) -> Result<Plan<W>> {
        let total = past + k.length;
        let softmax: fn(&mut [W]) = match view.softmax {
            Some(DType::F64) => softmax::<W, f64>,
            Some(DType::F32 | DType::F16 | DType::BF16) => softmax::<W, f32>,
            Some(_) => return Err(site.no_kernel()),
            None => softmax::<W, W>,
        };
        let scale = view.scale.map_or_else(|| 1.0 / to_f64(q.size).sqrt(), f64::from);
        Ok(Plan {
            q,
            v_size: v.size,
            total,
            group: q.heads.checked_div(k.heads).unwrap_or(1).max(1),
            past,
            scale: W::of(scale),
            view,
            mask: Mask::new(site, [q.batch, q.heads, q.length, total], view.short_masks)?,
            softmax,
            rows: (SCORES / total.max(1)).clamp(ROWS.0, ROWS.1).min(q.length.max(1)),
        })
    }

    /// The keys that a query may attend to, the mask aside. Both ends grow with the query.
    fn keys(&self, lengths: Option<&[i64]>, batch: usize, query: usize) -> Range<usize> {
        let index = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let length = lengths.map(|lengths| lengths[batch]);
        let offset = match length {
            Some(length) if self.past == 0 => length.saturating_sub(index(self.q.length)),
            _ => index(self.past),
        };
        let position = offset.saturating_add(index(query));
        let bound = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let mut end = index(self.total).min(length.unwrap_or(i64::MAX));
        if self.view.causal {
            end = end.min(position.saturating_add(1));
        }
        if let Some(right) = self.view.right_window {
            end = end.min(position.saturating_add(bound(right)).saturating_add(1));
        }
        let start = self.view.left_window.map_or(0, |left| position.saturating_sub(bound(left)));
        let end = end.min(self.mask.as_ref().map_or(i64::MAX, |mask| index(mask.columns)));
        let end = usize::try_from(end).unwrap_or(0);
        usize::try_from(start).unwrap_or(0).min(end)..end
    }

    /// One block: `scores` has a row of `total` per query, `to` one of the size of a value. `save` is called with
    /// rows of scores as they are asked for: the query, its first key, and what keys that it does not see have.
    fn block(
        &self,
        operands: &Operands<'_, W>,
        at: Block,
        scores: &mut [W],
        to: &mut [W],
        save: &mut Option<impl FnMut(usize, usize, &[W], W)>,
    ) {
        let last = at.first + at.rows - 1;
        let keys = |query| self.keys(operands.lengths, at.batch, query);
        let seen = if save.is_some() {
            0..self.total
        } else {
            keys(at.first).start..keys(last).end.max(keys(at.first).start)
        };
        let n = seen.len();
        let kv_head = at.head / self.group;
        let scores = &mut scores[..at.rows * n];
        let q = operands.q.from(at.batch, at.head, at.first);
        let q = Matrix { elements: q, row: operands.q.row, column: 1 };
        if n > 0 {
            let k = operands.k.from(at.batch, kv_head, seen.start);
            let k = Matrix { elements: k, row: 1, column: operands.k.row };
            multiply((at.rows, n, self.q.size), q, k, scores, None);
        }
        for (i, row) in scores.chunks_exact_mut(n.max(1)).enumerate() {
            self.weigh(operands, at, at.first + i, seen.start, row, save);
        }
        if n == 0 {
            to.fill(W::zero());
            return;
        }
        let scores = Matrix { elements: scores, row: n, column: 1 };
        let v = operands.v.from(at.batch, kv_head, seen.start);
        let v = Matrix { elements: v, row: operands.v.row, column: 1 };
        multiply((at.rows, self.v_size, n), scores, v, to, None);
    }

    /// Makes weights of the products of a query with the keys from `first_key` on.
    fn weigh(
        &self,
        operands: &Operands<'_, W>,
        at: Block,
        query: usize,
        first_key: usize,
        row: &mut [W],
        save: &mut Option<impl FnMut(usize, usize, &[W], W)>,
    ) {
        row.iter_mut().for_each(|x| *x = *x * self.scale);
        let mut at_stage = |stage: Scores, start: usize, row: &[W], rest: W| {
            if let Some(save) = save.as_mut().filter(|_| self.view.scores == stage) {
                save(query, start, row, rest);
            }
        };
        at_stage(Scores::Raw, first_key, row, W::zero());
        if self.view.softcap > 0.0 {
            let cap = W::of(self.view.softcap.into());
            row.iter_mut().for_each(|x| *x = cap * tanh(*x / cap));
        }
        at_stage(Scores::Capped, first_key, row, W::zero());
        let keys = self.keys(operands.lengths, at.batch, query);
        let (start, end) =
            if keys.is_empty() { (0, 0) } else { (keys.start - first_key, keys.end - first_key) };
        row[..start].fill(W::zero());
        row[end..].fill(W::zero());
        let row = &mut row[start..end];
        let attends = match &self.mask {
            Some(mask) => {
                let [batch, head, query] =
                    [at.batch * mask.steps[0], at.head * mask.steps[1], query * mask.steps[2]];
                (mask.add)(operands.mask, batch + head + query + keys.start * mask.step, mask.step, row)
            }
            None => true,
        };
        at_stage(Scores::Masked, keys.start, row, W::neg_infinity());
        if attends {
            (self.softmax)(row);
        } else {
            row.fill(W::zero());
        }
        at_stage(Scores::Softmax, keys.start, row, W::zero());
    }

    /// Elements of scratch memory that blocks of one slot need.
    fn room(&self) -> usize {
        self.total.saturating_add(self.v_size).saturating_mul(self.rows)
    }

    /// Results of one position: those of all heads, or of one if heads are apart.
    fn unit(&self) -> usize {
        if self.q.packed { self.q.heads * self.v_size } else { self.v_size }
    }

    /// Computes the results from item `item` on, positions in the order in which they lie in the result.
    fn run<T: Real<Wide = W>>(
        &self,
        operands: &Operands<'_, W>,
        mut item: usize,
        mut to: &mut [T],
        room: &mut [W],
        mut scores_out: Option<&mut [T]>,
    ) {
        let unit = self.unit();
        let (scores, out) = room.split_at_mut(self.rows * self.total);
        while !to.is_empty() {
            let (outer, first) = (item / self.q.length, item % self.q.length);
            let rows = self.rows.min(self.q.length - first).min(to.len() / unit);
            let (part, rest) = std::mem::take(&mut to).split_at_mut(rows * unit);
            let (batch, heads) = if self.q.packed {
                (outer, 0..self.q.heads)
            } else {
                (outer / self.q.heads, outer % self.q.heads..outer % self.q.heads + 1)
            };
            for (i, head) in heads.enumerate() {
                let mut save = scores_out.as_deref_mut().map(|to| {
                    move |query: usize, start: usize, row: &[W], others: W| {
                        let to =
                            &mut to[((batch * self.q.heads + head) * self.q.length + query) * self.total..];
                        to[..self.total].fill(T::round(others));
                        T::narrow(row, &mut to[start..start + row.len()]);
                    }
                });
                let out = &mut out[..rows * self.v_size];
                self.block(operands, Block { batch, head, first, rows }, scores, out, &mut save);
                for (out, to) in out.chunks_exact(self.v_size).zip(part.chunks_exact_mut(unit)) {
                    T::narrow(out, &mut to[i * self.v_size..][..self.v_size]);
                }
            }
            item += rows;
            to = rest;
        }
    }
}

fn attention(site: &Site<'_>) -> Result<Prepared> {
    use half::{bf16, f16};
    match (site.dtype(0)?, site.dtype(2)?) {
        (DType::F64, DType::F64) => attention_of::<f64, f64>(site),
        (DType::F32, DType::F32) => attention_of::<f32, f32>(site),
        (DType::F32, DType::F16) => attention_of::<f32, f16>(site),
        (DType::F32, DType::BF16) => attention_of::<f32, bf16>(site),
        (DType::F16, DType::F32) => attention_of::<f16, f32>(site),
        (DType::F16, DType::F16) => attention_of::<f16, f16>(site),
        (DType::F16, DType::BF16) => attention_of::<f16, bf16>(site),
        (DType::BF16, DType::F32) => attention_of::<bf16, f32>(site),
        (DType::BF16, DType::F16) => attention_of::<bf16, f16>(site),
        (DType::BF16, DType::BF16) => attention_of::<bf16, bf16>(site),
        _ => Err(site.no_kernel()),
    }
}

/// Attention with queries and keys of `T` and values of `V`.
fn attention_of<T: Real, V: Real<Wide = T::Wide>>(site: &Site<'_>) -> Result<Prepared> {
    let view = AttentionView::read(&site.view)?;
    let q = Layout::new(&site.dims(0)?, view.q_heads)?;
    let past: Dims = if site.has(4) { site.dims(4)? } else { Dims::new() };
    let past = past.get(2).copied().unwrap_or(0);
    let cache = |i: usize, is_wide: bool| -> Result<Cache> {
        let new = Layout::new(&site.dims(i)?, view.kv_heads)?;
        Ok(Cache { new, past, moves: !is_wide || past > 0 && !site.wants(i) })
    };
    let (k, v) = (cache(1, T::IS_WIDE)?, cache(2, V::IS_WIDE)?);
    let plan = Plan::<T::Wide>::new(site, view, [q, k.new, v.new], past)?;
    let saves = site.wants(3);
    let items = q.batch * q.length * if q.packed { 1 } else { q.heads };
    // Rows of all scores are one result, which is not cut.
    let slots = if saves { 1 } else { slots::count(items.div_ceil(plan.rows), plan.room(), ROOM) };
    let q_room = if T::IS_WIDE { 0 } else { q.count() };
    let words = q_room + k.room() + v.room() + slots * plan.room();
    Ok(Prepared::new(move |io| {
        let past_k = if io.has(4) { Some(io.slice::<T>(4)?) } else { None };
        let past_v = if io.has(5) { Some(io.slice::<V>(5)?) } else { None };
        let present_k = if io.wants(1) { Some(io.out::<T>(1)?) } else { None };
        let present_v = if io.wants(2) { Some(io.out::<V>(2)?) } else { None };
        let lengths = if io.has(6) { Some(io.slice::<i64>(6)?) } else { None };
        if let Some(lengths) = lengths.filter(|l| l.len() != q.batch) {
            return Err(KernelError::value(format!("{} lengths", q.batch), lengths.len()));
        }
        let room = io.scratch::<T::Wide>();
        let (q_room, room) = room.split_at_mut(q_room);
        let (k_room, room) = room.split_at_mut(k.room());
        let (v_room, room) = room.split_at_mut(v.room());
        let operands = Operands {
            q: q.heads(widened(io.slice::<T>(0)?, q_room)),
            k: k.gather(io.slice::<T>(1)?, past_k, present_k, k_room),
            v: v.gather(io.slice::<V>(2)?, past_v, present_v, v_room),
            mask: if io.has(3) { io.bytes(3)? } else { &[] },
            lengths,
        };
        let scores = if saves { Some(io.out::<T>(3)?) } else { None };
        let to = io.out::<T>(0)?;
        if let Some(scores) = scores {
            scores.fill(T::zeroed());
            plan.run(&operands, 0, to, room, Some(scores));
        } else {
            slots::run(to, plan.unit(), room, slots, |first, to, room| {
                plan.run(&operands, first, to, room, None)
            });
        }
        Ok(())
    })
    .scratch(words * size_of::<T::Wide>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(past: usize, causal: bool, windows: [Option<u64>; 2]) -> Plan<f32> {
        let view = AttentionView {
            q_heads: None,
            kv_heads: None,
            causal,
            scale: None,
            softcap: 0.0,
            softmax: None,
            scores: Scores::Raw,
            left_window: windows[0],
            right_window: windows[1],
            short_masks: true,
        };
        let q = Layout { batch: 1, heads: 1, length: 4, size: 1, packed: false };
        let softmax = softmax::<f32, f32>;
        Plan { q, v_size: 1, total: past + 4, group: 1, past, scale: 1.0, view, mask: None, softmax, rows: 4 }
    }

    #[test]
    fn keys_that_a_query_sees() {
        let none = [None, None];
        assert_eq!(plan(0, false, none).keys(None, 0, 2), 0..4);
        assert_eq!(plan(0, true, none).keys(None, 0, 2), 0..3);
        assert_eq!(plan(3, true, none).keys(None, 0, 0), 0..4);
        assert_eq!(plan(0, false, [Some(1), Some(1)]).keys(None, 0, 0), 0..2);
        assert_eq!(plan(3, true, [Some(1), None]).keys(None, 0, 2), 4..6);
        // Two keys of four are there for four queries: the first two see none.
        let ends = [0, 1, 2, 3].map(|query| plan(0, true, none).keys(Some(&[2]), 0, query).end);
        assert_eq!(ends, [0, 0, 1, 2]);
        for length in [i64::MIN, i64::MAX] {
            assert!(plan(0, true, [Some(u64::MAX), Some(u64::MAX)]).keys(Some(&[length]), 0, 3).end <= 4);
        }
    }
}
