//! Convolutions over two axes beside sums that are written out. Numbers are small integers, whose sums are exact in f32, so
//! that every result is the sum rounded once.

use crate::cpu::kernels::lanes::Real;
use crate::cpu::kernels::tests::{floats, run_with};
use crate::host::HostTensor;
use crate::{Cpu, Runtime};
use half::{bf16, f16};
use std::fmt::Debug;

/// A convolution of two images with bias.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) groups: usize,
    /// Input and output channels of a group.
    pub(super) channels: [usize; 2],
    pub(super) image: [usize; 2],
    pub(super) kernel: [usize; 2],
    pub(super) strides: [usize; 2],
    pub(super) dilations: [usize; 2],
    pub(super) pads: [usize; 4],
}

impl Case {
    /// Two groups of 2 and 3 channels, and a kernel of 3 by 3.
    pub(super) fn of(image: [usize; 2]) -> Case {
        let one = [1, 1];
        let (channels, kernel) = ([2, 3], [3, 3]);
        Case { groups: 2, channels, image, kernel, strides: one, dilations: one, pads: [0; 4] }
    }
}

const BATCH: usize = 2;

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| f32::from(u8::try_from(i * 7 % 11).unwrap()) - 5.0).collect()
}

/// The exact results.
fn sums(case: &Case, x: &[f32], w: &[f32], bias: &[f32]) -> Vec<f32> {
    let Case { groups, channels: [inputs, outputs], image, kernel, strides, dilations, pads } = *case;
    let size =
        |i: usize| (image[i] + pads[i] + pads[i + 2] - (kernel[i] - 1) * dilations[i] - 1) / strides[i] + 1;
    let grid = [size(0), size(1)];
    let term = |n: usize, m: usize, c: usize, o: [usize; 2], k: [usize; 2]| {
        let place = |i: usize| (o[i] * strides[i] + k[i] * dilations[i]).checked_sub(pads[i]);
        let (Some(row), Some(column)) = (place(0), place(1)) else { return 0.0 };
        if row >= image[0] || column >= image[1] {
            return 0.0;
        }
        let plane = ((n * groups + m / outputs) * inputs + c) * image[0];
        let tap = ((m * inputs + c) * kernel[0] + k[0]) * kernel[1] + k[1];
        x[(plane + row) * image[1] + column] * w[tap]
    };
    let mut sums = Vec::new();
    for (n, m) in (0..BATCH).flat_map(|n| (0..groups * outputs).map(move |m| (n, m))) {
        for o in (0..grid[0]).flat_map(|i| (0..grid[1]).map(move |j| [i, j])) {
            let taps = (0..kernel[0]).flat_map(|i| (0..kernel[1]).map(move |j| [i, j]));
            let sum: f32 = taps.map(|k| (0..inputs).map(|c| term(n, m, c, o, k)).sum::<f32>()).sum();
            sums.push(sum + bias[m]);
        }
    }
    sums
}

/// Runs a convolution in f32, f16 and bf16, by one thread and by three.
pub(super) fn check(case: &Case) {
    let Case { groups, channels: [inputs, outputs], image, kernel, strides, dilations, pads } = *case;
    let x = numbers(BATCH * groups * inputs * image[0] * image[1]);
    let w = numbers(groups * outputs * inputs * kernel[0] * kernel[1]);
    let bias = numbers(groups * outputs);
    let want = sums(case, &x, &w, &bias);
    let node = format!(
        "Conv(%0, %1, %2) {{group={groups}, strides={strides:?}, dilations={dilations:?}, pads={pads:?}}}"
    );
    let wide = [
        floats(&[BATCH, groups * inputs, image[0], image[1]], &x),
        floats(&[groups * outputs, inputs, kernel[0], kernel[1]], &w),
        floats(&[groups * outputs], &bias),
    ];
    for threads in [1, 3] {
        let runtime = Runtime::from(Cpu::new(threads));
        agree::<f32>(&runtime, &node, &wide, &want);
        agree::<f16>(&runtime, &node, &wide, &want);
        agree::<bf16>(&runtime, &node, &wide, &want);
    }
}

/// The result, computed in a type, is the sums rounded to the type.
fn agree<T: Real<Wide = f32> + PartialEq + Debug>(
    runtime: &Runtime,
    node: &str,
    inputs: &[HostTensor],
    want: &[f32],
) {
    let rounded = |numbers: &[f32]| -> Vec<T> { numbers.iter().map(|&x| T::round(x)).collect() };
    let of = |tensor: &HostTensor| {
        HostTensor::from_slice(tensor.dims(), &rounded(tensor.as_slice().unwrap())).unwrap()
    };
    let inputs: Vec<HostTensor> = inputs.iter().map(of).collect();
    let result = inputs[0].dtype().to_string();
    let got = run_with(runtime, node, &[&result], &inputs).unwrap();
    assert_eq!(got[0].as_slice::<T>().unwrap(), rounded(want), "{node} of {:?}", inputs[0].dims());
}

/// Images of one block of positions and of several, with rows of all lengths, that the window meets in steps and with
/// gaps, at the edges too.
#[test]
fn windows_by_columns() {
    for image in [[7, 6], [8, 9], [17, 33], [40, 61]] {
        for (strides, dilations) in [([1, 1], [1, 1]), ([2, 1], [1, 2]), ([3, 2], [1, 1]), ([1, 3], [2, 1])] {
            for pads in [[0; 4], [1, 1, 1, 1], [2, 0, 1, 3]] {
                check(&Case { strides, dilations, pads, ..Case::of(image) });
            }
        }
    }
    check(&Case { channels: [70, 9], groups: 1, pads: [1; 4], ..Case::of([6, 90]) });
    let one = Case { kernel: [1, 1], ..Case::of([40, 61]) };
    for pads in [[0; 4], [1, 1, 1, 1], [0, 1, 1, 0]] {
        check(&Case { pads, ..one });
        check(&Case { pads, strides: [2, 2], ..one });
    }
}

/// Much of the span is not read: rows are converted one by one.
#[test]
fn windows_that_reach_far() {
    let wide = Case { channels: [130, 2], groups: 1, ..Case::of([47, 46]) };
    check(&Case { dilations: [18, 15], pads: [18, 15, 18, 15], ..wide });
    check(&Case { dilations: [1, 20], strides: [9, 1], pads: [1, 0, 0, 25], ..wide });
    check(&Case { kernel: [2, 3], dilations: [40, 7], ..wide });
}

/// One input channel per group, some rows at a time.
#[test]
fn windows_of_single_channels() {
    for channels in [[1, 1], [1, 2]] {
        for (strides, dilations) in [([1, 1], [1, 1]), ([2, 2], [1, 1]), ([3, 2], [1, 2]), ([2, 1], [3, 1])] {
            for image in [[7, 7], [9, 30], [150, 261]] {
                check(&Case { channels, strides, dilations, pads: [1, 2, 1, 0], ..Case::of(image) });
            }
        }
    }
}
