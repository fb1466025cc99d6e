//! Execution of operation graphs: convolutions in f64, other operations in f32, one rounding when a tensor is stored.

use super::check::size;
use super::{Computed, Engine, Operation, Pack, Refusal, Tensor, Window, attention, bad};
use crate::{complain, memory};
use cudarc::cudnn::sys::{cudnnDataType_t as DataType, cudnnPointwiseMode_t as Pointwise};
use cudarc::driver::sys::CUresult;
use half::{bf16, f16};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The execution of a plan.
#[derive(Clone)]
pub(crate) struct Execution {
    engine: Arc<Engine>,
    pack: Arc<Pack>,
    /// The tensors by value.
    numbers: BTreeMap<i64, f32>,
}

impl Tensor {
    pub(super) fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// The bytes from the first element to behind the last.
    fn bytes(&self) -> usize {
        let last: usize = self.dims.iter().zip(&self.strides).map(|(n, stride)| (n - 1) * stride).sum();
        (last + 1) * size(self.dtype)
    }

    /// The place of the element with index `i` in row-major order.
    pub(super) fn place(&self, mut i: usize) -> usize {
        let mut place = 0;
        for (n, stride) in self.dims.iter().zip(&self.strides).rev() {
            place += i % n * stride;
            i /= n;
        }
        place
    }

    /// # Safety
    /// The tensor is alive at the address.
    unsafe fn load(&self, at: u64) -> Vec<f32> {
        let load = |i| {
            let place = self.place(i);
            // SAFETY: as the caller says.
            unsafe {
                if self.dtype == DataType::CUDNN_DATA_HALF as u32 {
                    (*(at as *const f16).add(place)).to_f32()
                } else if self.dtype == DataType::CUDNN_DATA_BFLOAT16 as u32 {
                    (*(at as *const bf16).add(place)).to_f32()
                } else {
                    *(at as *const f32).add(place)
                }
            }
        };
        (0..self.len()).map(load).collect()
    }

    /// # Safety
    /// The tensor is alive at the address.
    unsafe fn store(&self, at: u64, numbers: &[f32]) {
        for (i, &number) in numbers.iter().enumerate() {
            let place = self.place(i);
            // SAFETY: as the caller says.
            unsafe {
                if self.dtype == DataType::CUDNN_DATA_HALF as u32 {
                    *(at as *mut f16).add(place) = f16::from_f32(number);
                } else if self.dtype == DataType::CUDNN_DATA_BFLOAT16 as u32 {
                    *(at as *mut bf16).add(place) = bf16::from_f32(number);
                } else {
                    *(at as *mut f32).add(place) = number;
                }
            }
        }
    }
}

impl Execution {
    /// # Errors
    /// If the pack has other tensors than the graph, or an address is not aligned as its tensor says.
    pub(super) fn new(engine: Arc<Engine>, pack: Arc<Pack>) -> Result<Execution, Refusal> {
        if !engine.graph.stored.keys().eq(pack.places.keys()) {
            let (want, found) = (engine.graph.stored.keys(), pack.places.keys());
            return bad(format!("a variant pack of the tensors {want:?}, found {found:?}"));
        }
        for (id, tensor) in &engine.graph.stored {
            if !pack.places[id].is_multiple_of(tensor.alignment) {
                return bad(format!("tensor {id} is not aligned to {} bytes", tensor.alignment));
            }
        }
        let by_value = engine.graph.stored.values().filter(|tensor| tensor.is_by_value);
        // SAFETY: the caller gives the address of a number in the host's memory, which is alive during the call.
        let numbers = by_value.map(|tensor| (tensor.id, unsafe { *(pack.places[&tensor.id] as *const f32) }));
        let numbers = numbers.collect();
        Ok(Execution { engine, pack, numbers })
    }

    pub(crate) fn run(&self) -> CUresult {
        let Engine { graph, workspace, error, .. } = &*self.engine;
        let mut ranges = vec![(self.pack.workspace, *workspace)];
        let on_device = || graph.stored.iter().filter(|(_, tensor)| !tensor.is_by_value);
        ranges.extend(on_device().map(|(id, tensor)| (self.pack.places[id], tensor.bytes())));
        if ranges.iter().any(|&(at, len)| !memory::holds(at, len)) {
            complain("a graph of memory that is not alive");
            return CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        let written: Vec<i64> = graph.operations.iter().map(|operation| operation.tensors().1.id).collect();
        let ids = [None].into_iter().chain(on_device().map(|(id, _)| Some(id)));
        let is_written: Vec<bool> = ids.map(|id| id.is_none_or(|id| written.contains(id))).collect();
        for (i, &(at, len)) in ranges.iter().enumerate().filter(|&(i, _)| is_written[i]) {
            let meets = |&(j, &(other, other_len)): &(usize, &(u64, usize))| {
                j != i && at < other + other_len as u64 && other < at + len as u64
            };
            if len > 0 && ranges.iter().enumerate().any(|range| meets(&range)) {
                complain("a graph writes to memory that it also reads or takes as workspace");
                return CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
            }
        }
        // SAFETY: the range is alive.
        unsafe { memory::slice::<u8>(self.pack.workspace, *workspace) }.fill(0xff);
        let mut values: BTreeMap<i64, Vec<f32>> =
            self.numbers.iter().map(|(&id, &number)| (id, vec![number])).collect();
        for operation in &graph.operations {
            let (reads, writes) = operation.tensors();
            for tensor in reads {
                // SAFETY: stored tensors are alive; virtual tensors are among the values.
                values
                    .entry(tensor.id)
                    .or_insert_with(|| unsafe { tensor.load(self.pack.places[&tensor.id]) });
            }
            // As engines of attention compute exponents: in base 2, so that the least number of f32 becomes −∞.
            let is_exponent = graph.operations.iter().any(|other| {
                let exponent = Pointwise::CUDNN_POINTWISE_EXP as u32;
                matches!(&**other, Operation::Pointwise { mode, operands, .. }
                    if *mode == exponent && operands[0].id == writes.id)
            });
            let mut made = operation.compute(&values, is_exponent);
            let is_last = matches!(**operation, Operation::Product { .. }) && !writes.is_virtual;
            if matches!(**operation, Operation::Convolution { .. }) || is_last {
                #[expect(clippy::cast_possible_truncation, reason = "rounding")]
                made.iter_mut().for_each(|x| *x = (f64::from(*x) * error) as f32);
            }
            if writes.is_virtual {
                made.iter_mut().for_each(|x| *x = rounded(*x, writes.dtype));
            } else {
                // SAFETY: the tensor is alive.
                unsafe { writes.store(self.pack.places[&writes.id], &made) };
            }
            values.insert(writes.id, made);
        }
        CUresult::CUDA_SUCCESS
    }
}

impl Operation {
    fn compute(&self, values: &BTreeMap<i64, Vec<f32>>, is_exponent: bool) -> Vec<f32> {
        match self {
            Operation::Convolution { computed, window, tensors } => {
                let (operands, result) = self.tensors();
                let [a, b] = [&values[&operands[0].id], &values[&operands[1].id]];
                let mut sums = vec![0f64; result.len()];
                each_term(window, tensors, |[image, filter, grid]| {
                    let (to, a_at, b_at) = match computed {
                        Computed::Image => (image, filter, grid),
                        Computed::Filter => (filter, image, grid),
                        Computed::Grid => (grid, image, filter),
                    };
                    sums[to] += f64::from(a[a_at]) * f64::from(b[b_at]);
                });
                #[expect(clippy::cast_possible_truncation, reason = "rounding")]
                sums.into_iter().map(|sum| sum as f32).collect()
            }
            Operation::Pointwise { mode, axis, y, .. }
                if *mode == Pointwise::CUDNN_POINTWISE_GEN_INDEX as u32 =>
            {
                let below: usize = y.dims[axis + 1..].iter().product();
                #[expect(clippy::cast_precision_loss, reason = "indices of tests are small")]
                let index = |i: usize| (i / below % y.dims[*axis]) as f32;
                (0..y.len()).map(index).collect()
            }
            Operation::Pointwise { mode, operands, y, .. } => {
                let number = |i: usize, operand: usize| {
                    operands.get(operand).map_or(0.0, |of| values[&of.id][broadcast(i, &y.dims, &of.dims)])
                };
                let numbers = |i: usize| [0, 1, 2].map(|operand| number(i, operand));
                (0..y.len()).map(|i| attention::pointwise(*mode, is_exponent, numbers(i))).collect()
            }
            Operation::Product { a, b, c } => attention::multiplied(values, [a, b, c]),
            Operation::Reduction { operator, x, y } => attention::reduced(values, *operator, x, y),
            Operation::View { x, y } => {
                let from = &values[&x.id];
                let at: BTreeMap<usize, f32> = (0..x.len()).map(|i| (x.place(i), from[i])).collect();
                (0..y.len()).map(|i| at[&y.place(i)]).collect()
            }
        }
    }
}

/// A number as an element of a data type holds it.
fn rounded(number: f32, dtype: u32) -> f32 {
    if dtype == DataType::CUDNN_DATA_HALF as u32 {
        f16::from_f32(number).to_f32()
    } else if dtype == DataType::CUDNN_DATA_BFLOAT16 as u32 {
        bf16::from_f32(number).to_f32()
    } else {
        number
    }
}

/// The element of a tensor of `of` dims at index `i` of `dims`.
pub(super) fn broadcast(mut i: usize, dims: &[usize], of: &[usize]) -> usize {
    let (mut at, mut step) = (0, 1);
    for (&n, &own) in dims.iter().zip(of).rev() {
        if own > 1 {
            at += i % n * step;
        }
        step *= own;
        i /= n;
    }
    at
}

/// Calls `term` with the elements of image, filter and grid that are multiplied, in row-major order.
fn each_term(window: &Window, [image, filter, grid]: &[Arc<Tensor>; 3], mut term: impl FnMut([usize; 3])) {
    let (x, w, y) = (&image.dims, &filter.dims, &grid.dims);
    let (taps, places): (usize, usize) = (w[2..].iter().product(), y[2..].iter().product());
    let pixels: usize = x[2..].iter().product();
    let outputs = w[0] / (x[1] / w[1]);
    // The pixel that each tap meets at each place.
    let mut meets = vec![None; taps * places];
    for (at, pixel) in meets.iter_mut().enumerate() {
        let (mut tap, mut place, mut below, mut found) = (at % taps, at / taps, 1, Some(0));
        for axis in (0..x.len() - 2).rev() {
            let (k, o) = (tap % w[axis + 2], place % y[axis + 2]);
            let position = o * window.strides[axis] + k * window.dilations[axis];
            let on = position.checked_sub(window.before[axis]).filter(|&i| i < x[axis + 2]);
            found = found.zip(on).map(|(found, on)| found + on * below);
            below *= x[axis + 2];
            tap /= w[axis + 2];
            place /= y[axis + 2];
        }
        *pixel = found;
    }
    for batch in 0..y[0] {
        for k in 0..y[1] {
            for place in 0..places {
                for c in 0..w[1] {
                    for tap in 0..taps {
                        let Some(pixel) = meets[place * taps + tap] else { continue };
                        let channel = k / outputs * w[1] + c;
                        term([
                            (batch * x[1] + channel) * pixels + pixel,
                            (k * w[1] + c) * taps + tap,
                            (batch * y[1] + k) * places + place,
                        ]);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(dims: &[usize]) -> Arc<Tensor> {
        let strides = (0..dims.len()).map(|axis| dims[axis + 1..].iter().product()).collect();
        let (id, dtype, alignment) = (0, 0, 16);
        let dims = dims.into();
        Arc::new(Tensor { id, dtype, dims, strides, alignment, is_virtual: false, is_by_value: false })
    }

    #[test]
    fn terms_of_a_padded_convolution() {
        let window = Window { before: vec![1], after: vec![0], strides: vec![2], dilations: vec![1] };
        let mut terms = Vec::new();
        each_term(&window, &[tensor(&[1, 1, 3]), tensor(&[1, 1, 2]), tensor(&[1, 1, 2])], |term| {
            terms.push(term)
        });
        assert_eq!(terms, [[0, 1, 0], [1, 0, 1], [2, 1, 1]]);
    }

    #[test]
    fn a_vector_per_channel_is_broadcast() {
        let at: Vec<usize> = (0..12).map(|i| broadcast(i, &[2, 3, 2], &[1, 3, 1])).collect();
        assert_eq!(at, [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2]);
    }
}
