//! Operators that carry a state from call to call: LinearAttention and CausalConvWithState.
//!
//! LinearAttention keeps a matrix S for each head of keys, and at each step with key k, value v, query q does
//! `S = exp(decay) · S`, `S += k ⊗ (beta · (v - Sᵀ k))`, `y = scale · Sᵀ q`, without the decay, or with `v` alone, as
//! its update rule says. CausalConvWithState is a convolution of each channel with the steps up to the present one.

use super::functions::sigmoid;
use super::lanes::{Real, Wide, for_real, widened};
use super::parallel::{numbered_pieces, try_pairs_of_pieces};
use super::slots;
use crate::kernel::{KernelError, Prepare, Prepared, Result, Site};
use crate::room::Room;
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::attention::{LinearAttentionView, UpdateRule, conv_ends_in_swish};
use half::{bf16, f16};
use num_traits::Zero as _;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::LinearAttention => linear_attention,
        OpKind::CausalConvWithState => causal_conv,
        _ => return None,
    })
}

/// Extents of a LinearAttention and its update rule.
#[derive(Clone, Copy)]
struct Recurrence {
    batch: usize,
    length: usize,
    /// Heads of keys.
    heads: usize,
    /// Queries per head of keys.
    group: usize,
    k: usize,
    v: usize,
    /// Elements of `decay` and of `beta` per step.
    decays: usize,
    betas: usize,
    rule: UpdateRule,
    scale: f32,
}

/// The operands of a LinearAttention, wide.
struct Steps<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    decay: &'a [f32],
    beta: &'a [f32],
}

/// The state as f32 and back.
#[derive(Clone, Copy)]
struct StateType {
    load: fn(&[u8], &mut [f32]),
    store: fn(&[f32], &mut [u8]),
}

impl StateType {
    fn of<T: Real<Wide = f32>>() -> StateType {
        StateType {
            load: |from, to| T::widen(bytemuck::cast_slice(from), to),
            store: |from, to| T::narrow(from, bytemuck::cast_slice_mut(to)),
        }
    }

    fn new(dtype: DType) -> Option<StateType> {
        Some(match dtype {
            DType::F32 => StateType::of::<f32>(),
            DType::F16 => StateType::of::<f16>(),
            DType::BF16 => StateType::of::<bf16>(),
            _ => return None,
        })
    }
}

fn linear_attention(site: &Site<'_>) -> Result<Prepared> {
    match site.dtype(0)? {
        DType::F32 => linear_attention_of::<f32>(site),
        DType::F16 => linear_attention_of::<f16>(site),
        DType::BF16 => linear_attention_of::<bf16>(site),
        _ => Err(site.no_kernel()),
    }
}

fn recurrence(site: &Site<'_>) -> Result<Recurrence> {
    let view = LinearAttentionView::read(&site.view)?;
    let (q, v) = (site.dims(0)?, site.dims(2)?);
    let count = |n: u64| usize::try_from(n).map_err(|_| KernelError::value("fewer heads", n));
    let (q_heads, heads) = (count(view.q_heads)?, count(view.kv_heads)?);
    let (k, v) = (q[2] / q_heads, v[2] / heads);
    let last = |i: usize, needed: bool, allowed: [usize; 2]| -> Result<usize> {
        if !needed {
            return Ok(0);
        }
        let found = site.dims(i)?[2];
        if !allowed.contains(&found) {
            return Err(KernelError::value(
                format!("{} or {} elements per step", allowed[0], allowed[1]),
                found,
            ));
        }
        Ok(found)
    };
    let decays = last(4, view.rule.gated, [heads, heads * k])?;
    let betas = last(5, view.rule.delta, [heads, 1])?;
    #[expect(clippy::cast_precision_loss, reason = "the size of a head is small")]
    let scale = if view.scale == 0.0 { 1.0 / (k as f32).sqrt() } else { view.scale };
    let group = q_heads / heads;
    Ok(Recurrence { batch: q[0], length: q[1], heads, group, k, v, decays, betas, rule: view.rule, scale })
}

fn linear_attention_of<T: Real<Wide = f32>>(site: &Site<'_>) -> Result<Prepared> {
    let it = recurrence(site)?;
    let state_dtype = if site.has(3) { site.dtype(3)? } else { site.dtype(0)? };
    let state_type = StateType::new(state_dtype).ok_or_else(|| site.no_kernel())?;
    let steps = it.batch * it.length;
    let (keys, values) = (it.heads * it.k, it.heads * it.v);
    let operands =
        [steps * keys * it.group, steps * keys, steps * values, steps * it.decays, steps * it.betas];
    let copied = if T::IS_WIDE { [0; 5] } else { operands };
    let (states, results) = (it.batch * keys * it.v, steps * values * it.group);
    let words = states + results + copied.iter().sum::<usize>();
    Ok(Prepared::new(move |io| {
        let memory = io.room();
        let room = io.scratch::<f32>();
        let (state, room) = room.split_at_mut(states);
        let (out, mut room) = room.split_at_mut(results);
        let mut wide: [&[f32]; 5] = [&[]; 5];
        for (slot, operand) in [0, 1, 2, 4, 5].into_iter().enumerate() {
            let (part, rest) = std::mem::take(&mut room).split_at_mut(copied[slot]);
            room = rest;
            if operands[slot] > 0 {
                wide[slot] = widened(io.slice::<T>(operand)?, part);
            }
        }
        let [q, k, v, decay, beta] = wide;
        if io.has(3) {
            (state_type.load)(io.bytes(3)?, state);
        } else {
            state.fill(0.0);
        }
        it.run(&Steps { q, k, v, decay, beta }, state, out, memory)?;
        if io.wants(0) {
            it.pack(out, io.out::<T>(0)?);
        }
        if io.wants(1) {
            (state_type.store)(state, io.out_bytes(1)?);
        }
        Ok(())
    })
    .scratch(words * size_of::<f32>()))
}

impl Recurrence {
    /// All steps; `out` is by batch, head of keys, step and query.
    fn run(&self, steps: &Steps<'_>, state: &mut [f32], out: &mut [f32], room: Room) -> Result<()> {
        let (each_state, each_out) = (self.k * self.v, self.length * self.group * self.v);
        if each_out == 0 {
            return Ok(());
        }
        if each_state == 0 {
            out.fill(0.0);
            return Ok(());
        }
        try_pairs_of_pieces((state, each_state), (out, each_out), |i, state, out| {
            let (batch, head) = (i / self.heads, i % self.heads);
            let mut value = room.filled(self.v, 0.0)?;
            for (t, out) in out.chunks_exact_mut(self.group * self.v).enumerate() {
                self.step(steps, (batch * self.length + t, head), state, &mut value, out);
            }
            Ok(())
        })
    }

    fn step(
        &self,
        steps: &Steps<'_>,
        (step, head): (usize, usize),
        state: &mut [f32],
        value: &mut [f32],
        out: &mut [f32],
    ) {
        let at = step * self.heads + head;
        let k = &steps.k[at * self.k..][..self.k];
        value.copy_from_slice(&steps.v[at * self.v..][..self.v]);
        if self.rule.gated {
            let decays = &steps.decay[step * self.decays..][..self.decays];
            for (d, row) in state.chunks_exact_mut(self.v).enumerate() {
                let g = if self.decays == self.heads { decays[head] } else { decays[head * self.k + d] };
                let factor = g.exp();
                row.iter_mut().for_each(|s| *s *= factor);
            }
        }
        if self.rule.delta {
            let beta = steps.beta[step * self.betas + if self.betas == 1 { 0 } else { head }];
            for (row, &k) in state.chunks_exact(self.v).zip(k) {
                value.iter_mut().zip(row).for_each(|(v, &s)| *v -= k * s);
            }
            value.iter_mut().for_each(|v| *v *= beta);
        }
        for (row, &k) in state.chunks_exact_mut(self.v).zip(k) {
            row.iter_mut().zip(&*value).for_each(|(s, &v)| *s += k * v);
        }
        let queries = &steps.q[at * self.group * self.k..][..self.group * self.k];
        for (q, out) in queries.chunks_exact(self.k).zip(out.chunks_exact_mut(self.v)) {
            out.fill(0.0);
            for (row, &q) in state.chunks_exact(self.v).zip(q) {
                out.iter_mut().zip(row).for_each(|(y, &s)| *y += q * s);
            }
            out.iter_mut().for_each(|y| *y *= self.scale);
        }
    }

    /// From batch, head and step to batch, step and head.
    fn pack<T: Real<Wide = f32>>(&self, from: &[f32], to: &mut [T]) {
        let each = self.group * self.v;
        if each == 0 || self.length == 0 {
            return;
        }
        numbered_pieces(to, self.heads * each, 1, |step, to| {
            let (batch, t) = (step / self.length, step % self.length);
            for (head, to) in to.chunks_exact_mut(each).enumerate() {
                T::narrow(&from[((batch * self.heads + head) * self.length + t) * each..][..each], to);
            }
        });
    }
}

/// Elements of scratch memory for the rows of all slots.
const ROOM: usize = 1 << 24;

fn causal_conv(site: &Site<'_>) -> Result<Prepared> {
    let swish = conv_ends_in_swish(&site.view)?;
    let (x, weight) = (site.dims(0)?, site.dims(1)?);
    let (rows, channels, length, kernel) = (x[0] * x[1], x[1], x[2], weight[2]);
    let before = kernel.checked_sub(1).ok_or_else(|| KernelError::value("a kernel of 1 or more", 0))?;
    let each = before + 2 * length + kernel;
    let slots = slots::count(rows, each, ROOM);
    Ok(for_real!(site.dtype(0)?, site, T => {
        type W = <T as Real>::Wide;
        Prepared::new(move |io| {
            let (x, weight) = (io.slice::<T>(0)?, io.slice::<T>(1)?);
            let bias = if io.has(2) { Some(io.slice::<T>(2)?) } else { None };
            let past = if io.has(3) { Some(io.slice::<T>(3)?) } else { None };
            let room = io.scratch::<W>();
            if io.wants(0) {
                let to = io.out::<T>(0)?;
                slots::run(to, length.max(1), room, slots, |first, to, room| {
                    let (padded, room) = room.split_at_mut(before + length);
                    let (sums, room) = room.split_at_mut(length);
                    let factors = &mut room[..kernel];
                    for (i, to) in to.chunks_exact_mut(length).enumerate() {
                        let (row, channel) = (first + i, (first + i) % channels);
                        match past {
                            Some(past) => T::widen(&past[row * before..][..before], &mut padded[..before]),
                            None => padded[..before].fill(W::zero()),
                        }
                        T::widen(&x[row * length..][..length], &mut padded[before..]);
                        T::widen(&weight[channel * kernel..][..kernel], factors);
                        sums.fill(bias.map_or(W::zero(), |bias| bias[channel].wide()));
                        for (j, &factor) in factors.iter().enumerate() {
                            sums.iter_mut().zip(&padded[j..]).for_each(|(y, &x)| *y += factor * x);
                        }
                        if swish {
                            sums.iter_mut().for_each(|y| *y = silu(*y));
                        }
                        T::narrow(sums, to);
                    }
                });
            }
            if io.wants(1) && before > 0 {
                for (row, to) in io.out::<T>(1)?.chunks_exact_mut(before).enumerate() {
                    let kept = before.saturating_sub(length);
                    match past {
                        Some(past) => to[..kept].copy_from_slice(&past[row * before + before - kept..][..kept]),
                        None => to[..kept].fill(T::round(W::zero())),
                    }
                    let new = &x[row * length..][..length];
                    to[kept..].copy_from_slice(&new[length - (before - kept)..]);
                }
            }
            Ok(())
        })
        .scratch(slots * each * size_of::<W>())
    }))
}

/// x · sigmoid(x).
fn silu<W: Wide>(x: W) -> W {
    x * sigmoid(x)
}
