//! Weight gradients of convolutions, as in training steps.

use super::near;
use crate::cases::{LOW, random};
use crate::elements::refs;
use crate::random::{HEAD, Random};
use ampc_ir::DType;
use ampc_ir::text::{NoData, parse};
use ampc_runtime::cuda::Cuda;
use ampc_runtime::{Data, HostTensor, Runtime};
use std::sync::Arc;

/// The gradients of a model of four convolutions: one with groups, asymmetric padding and a ReLU after it; a 1×1
/// convolution with stride 2; a depthwise, dilated convolution; and a transposed convolution. The modules were written
/// by `ampc train-step --optimizer none`, with `--fp32` and with `--to bf16`.
///
/// The number is the permitted error relative to the largest element. bf16 has 8 bits of precision.
pub(super) const STEPS: [(&str, &str, f64); 2] =
    [("f32", include_str!("gradients_fp32.ir"), 1e-5), ("bf16", include_str!("gradients_bf16.ir"), 0.02)];

/// Every weight gradient is one step of the plan, and the gradients agree with those of the CPU.
pub(super) fn step(cuda: &Arc<Cuda>, text: &str, permitted: f64) -> Result<(), String> {
    let module = parse(text, &NoData).map_err(|errors| errors.to_string())?;
    let inputs = module.graph(module.main()).inputs().iter();
    let input = |(seed, &value): (u64, _)| {
        let ty = module.value(value).ty.as_tensor().unwrap();
        random(ty.dtype, &ty.shape.to_known().unwrap(), seed)
    };
    let inputs: Vec<HostTensor> = (1..).zip(inputs).map(input).collect();
    let refs = refs(&inputs);
    let mut cpu = Runtime::default().prepare(&module).map_err(|error| error.to_string())?;
    let want = cpu.run(&refs).map_err(|error| format!("CPU: {error}"))?;
    let mut session = Runtime::new(cuda.clone()).prepare(&module).map_err(|error| error.to_string())?;
    for _ in 0..3 {
        let got = session.run(&refs).map_err(|error| error.to_string())?;
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let (Data::Tensor(got), Data::Tensor(want)) = (got, want) else {
                return Err("no tensors".into());
            };
            let greatest = want.f64s().unwrap().map(f64::abs).fold(0.0, f64::max);
            let pairs = got.f64s().unwrap().zip(want.f64s().unwrap());
            let distance = pairs.map(|(got, want)| (got - want).abs()).fold(0.0, f64::max) / greatest;
            if distance.is_nan() || distance > permitted {
                return Err(format!("output {i}: {distance:.1e} of the greatest element"));
            }
        }
    }
    let plan = session.plan_text();
    match plan.matches("Conv+Transpose(").count() {
        4 => Ok(()),
        other => Err(format!("{other} groups of weight gradients\n{plan}")),
    }
}

/// The weight gradient of a convolution, as in a training step.
#[derive(Clone)]
pub(super) struct Gradient {
    pub(super) name: String,
    /// Dims of the image, `[N, C, …]`.
    image: Vec<u64>,
    /// Dims of the gradient of the result, `[N, K, …]`.
    grid: Vec<u64>,
    /// Extents of the window.
    taps: Vec<u64>,
    strides: Vec<u64>,
    dilations: Vec<u64>,
    before: Vec<u64>,
    after: Vec<u64>,
    group: u64,
    /// Extents of the convolution after the window.
    behind: u64,
    /// True with a Cast of the image and a Cast of the result between the nodes.
    has_casts: bool,
}

pub(super) fn gradients() -> Vec<Gradient> {
    let one = |name: &str, image: &[u64], channels: u64, taps: &[u64]| {
        let n = taps.len();
        let ones = vec![1; n];
        Gradient {
            name: name.into(),
            image: image.to_vec(),
            grid: [&[image[0], channels][..], &vec![0; n]].concat(),
            taps: taps.to_vec(),
            strides: ones.clone(),
            dilations: ones,
            before: vec![0; n],
            after: vec![0; n],
            group: 1,
            behind: 0,
            has_casts: false,
        }
    };
    let mut all = vec![
        one("2-D", &[2, 3, 7, 6], 5, &[3, 3]),
        one("1x1", &[2, 8, 5, 4], 4, &[1, 1]),
        one("1-D", &[2, 4, 20], 6, &[5]),
        one("3-D", &[2, 2, 4, 5, 6], 3, &[3, 2, 3]),
        Gradient { before: vec![1, 1], after: vec![1, 1], ..one("padded", &[2, 3, 6, 5], 4, &[3, 3]) },
        Gradient {
            strides: vec![2, 3],
            before: vec![0, 2],
            after: vec![1, 1],
            ..one("asymmetric", &[1, 2, 9, 8], 3, &[3, 2])
        },
        Gradient { dilations: vec![2, 1], ..one("dilated", &[2, 2, 9, 7], 3, &[3, 3]) },
        Gradient {
            group: 2,
            before: vec![1, 1],
            after: vec![1, 1],
            ..one("groups", &[2, 6, 5, 5], 4, &[3, 3])
        },
        Gradient { group: 5, ..one("depthwise", &[3, 5, 6, 6], 5, &[3, 3]) },
        Gradient { group: 3, ..one("multiplied", &[2, 3, 6, 6], 6, &[3, 2]) },
        Gradient { has_casts: true, ..one("with casts", &[3, 6, 12, 10], 8, &[3, 2]) },
        Gradient { has_casts: true, group: 2, ..one("groups with casts", &[2, 4, 6], 4, &[3]) },
        Gradient { strides: vec![2, 2], behind: 1, ..one("sliced", &[2, 3, 8, 6], 4, &[3, 3]) },
    ];
    let mut random = Random::new(11);
    for at in 0..8 {
        let n = 1 + random.below(3);
        let group = random.of(&[1, 1, 2, 3]);
        let mut list = |most: usize| -> Vec<u64> { (0..n).map(|_| 1 + random.below(most) as u64).collect() };
        let (strides, dilations, taps) = (list(3), list(2), list(3));
        let (extra, before, after) = (list(5), list(2), list(2));
        let image: Vec<u64> =
            (0..n).map(|axis| (taps[axis] - 1) * dilations[axis] + 1 + extra[axis]).collect();
        let image = [&[2, 2 * group][..], &image].concat();
        let channels = group * (1 + random.below(2) as u64);
        let random = one(&format!("random {at}"), &image, channels, &taps);
        all.push(Gradient { strides, dilations, before, after, group, ..random });
    }
    all.iter_mut().for_each(Gradient::fit);
    all
}

impl Gradient {
    /// Sets the extents of the grid, and removes elements after its last position from padding and image.
    fn fit(&mut self) {
        for axis in 0..self.taps.len() {
            let reach = (self.taps[axis] - 1) * self.dilations[axis] + 1;
            let around = self.image[axis + 2] + self.before[axis] + self.after[axis];
            let places = (around - reach) / self.strides[axis] + 1;
            let unused = around - ((places - 1) * self.strides[axis] + reach);
            let of_padding = unused.min(self.after[axis]);
            self.after[axis] -= of_padding;
            self.image[axis + 2] -= unused - of_padding;
            self.image[axis + 2] += self.behind;
            self.grid[axis + 2] = places;
        }
    }

    fn text(&self, t: &str) -> String {
        let (image, grid) = (&self.image, &self.grid);
        let (spatial, places) = (&image[2..], &grid[2..]);
        let (n, g, c, k) = (image[0], self.group, image[1] / self.group, grid[1]);
        let of = if self.has_casts { "f32" } else { t };
        let to = if t == "f16" { 10 } else { 16 };
        let cat = |first: &[u64], rest: &[u64]| [first, rest].concat();
        let perm: Vec<usize> = [1, 0].into_iter().chain(2..image.len()).collect();
        let mut text =
            format!("{HEAD}graph @main {{\n  input %x : {of}{image:?}\n  input %dy : {t}{grid:?}\n");
        if g == 1 {
            text += &format!("  %a = Transpose(%x) {{perm={perm:?}}} : {of}{:?}\n", cat(&[c, n], spatial));
        } else {
            let turned: Vec<usize> = [2, 1, 0].into_iter().chain(3..image.len() + 1).collect();
            let (parts, whole) = (cat(&[n, g, c], spatial), cat(&[c, g * n], spatial));
            text += &format!("  const %r : i64[{}] = {parts:?}\n", parts.len());
            text += &format!("  const %j : i64[{}] = {whole:?}\n", whole.len());
            text += &format!("  %s = Reshape(%x, %r) : {of}{parts:?}\n");
            text +=
                &format!("  %u = Transpose(%s) {{perm={turned:?}}} : {of}{:?}\n", cat(&[c, g, n], spatial));
            text += &format!("  %a = Reshape(%u, %j) : {of}{whole:?}\n");
        }
        let mut filtered = "%a";
        if of != t {
            text += &format!("  %l = Cast(%a) {{to={to}}} : {t}{:?}\n", cat(&[c, g * n], spatial));
            filtered = "%l";
        }
        text += &format!("  %b = Transpose(%dy) {{perm={perm:?}}} : {t}{:?}\n", cat(&[k, n], places));
        let pads = cat(&self.before, &self.after);
        let all: Vec<u64> = self.taps.iter().map(|taps| taps + self.behind).collect();
        text += &format!(
            "  %c = Conv({filtered}, %b) {{group={g}, strides={:?}, dilations={:?}, pads={pads:?}}} : {t}{:?}\n",
            self.dilations,
            self.strides,
            cat(&[c, k], &all)
        );
        let mut last = "%c";
        if self.behind > 0 {
            let (m, axes): (usize, Vec<usize>) = (self.taps.len(), (2..image.len()).collect());
            text += &format!(
                "  const %zero : i64[{m}] = {:?}\n  const %end : i64[{m}] = {:?}\n  const %axes : i64[{m}] = {axes:?}\n",
                vec![0; m],
                self.taps
            );
            text += &format!("  %cut = Slice(%c, %zero, %end, %axes) : {t}{:?}\n", cat(&[c, k], &self.taps));
            last = "%cut";
        }
        let result = cat(&[k, c], &self.taps);
        if of != t {
            text += &format!("  %w = Cast({last}) {{to=1}} : f32{:?}\n", cat(&[c, k], &self.taps));
            last = "%w";
        }
        text + &format!("  %dw = Transpose({last}) {{perm={perm:?}}} : {of}{result:?}\n  output %dw\n}}\n")
    }

    /// The gradient is one step of the plan, and agrees with the result of the CPU.
    pub(super) fn check(&self, cuda: &Arc<Cuda>, t: &str) -> Result<(), String> {
        let dtype = LOW.iter().find(|(_, name)| *name == t).map_or(DType::F32, |&(dtype, _)| dtype);
        let of = if self.has_casts { DType::F32 } else { dtype };
        let inputs = [random(of, &self.image, 5), random(dtype, &self.grid, 6)];
        let text = self.text(t);
        let plan = near(cuda, (&text, &text), &inputs)?;
        let is_one = plan.lines().filter(|line| line.contains(" = ")).count() == 1;
        if is_one { Ok(()) } else { Err(format!("other steps\n{plan}\n{text}")) }
    }
}
