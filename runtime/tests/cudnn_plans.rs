//! Plans of the real cuDNN for the convolutions and attentions of some models, made without a device: a JSON text describes the device
//! (deviceless ahead-of-time compilation). Prints the engine, its notes and workspace for each, and fails if one has
//! no engine. `scripts/cudnn-plans` runs it.
//!
//! `AMPC_CUDNN_DEVICE` is the file of the JSON text, and `AMPC_CUDA_LIBRARIES` lists folders of libraries, with `:` between
//! them. Without the first, the program says so and passes. An argument is part of the names of the plans to make.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test: what cannot be made fails it")]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cudnn_plans/attention.rs"]
mod attention;

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {
    println!("skipped: CUDA is for Linux on x86-64");
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> std::process::ExitCode {
    plans::run()
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod plans {
    use ampc_ir::DType;
    use ampc_runtime::cuda::dnn::{Convolution, Direction, DnnError, Layout, MOST_WORKSPACE, Properties};
    use std::process::ExitCode;
    use std::time::Instant;

    /// A convolution of a model.
    struct Shape {
        name: &'static str,
        batch: i64,
        channels: [i64; 2],
        groups: i64,
        image: &'static [i64],
        filter: i64,
        stride: i64,
        dilation: i64,
        pads: [i64; 2],
    }

    /// A convolution of images of 8 by a square filter, with as much padding on both sides as keeps the extents.
    const fn shape(name: &'static str, channels: [i64; 2], image: &'static [i64], filter: i64) -> Shape {
        let before = filter / 2;
        let pads = [before, before];
        Shape { name, batch: 8, channels, groups: 1, image, filter, stride: 1, dilation: 1, pads }
    }

    const SHAPES: &[Shape] = &[
        Shape { stride: 2, ..shape("resnet50 stem", [3, 64], &[224, 224], 7) },
        shape("resnet50 1x1", [64, 256], &[56, 56], 1),
        shape("resnet50 3x3", [128, 128], &[28, 28], 3),
        Shape { stride: 2, ..shape("resnet50 3x3 stride 2", [256, 256], &[28, 28], 3) },
        Shape { stride: 2, ..shape("resnet50 1x1 stride 2", [1024, 2048], &[14, 14], 1) },
        shape("vgg16 first", [3, 64], &[224, 224], 3),
        shape("vgg16 3x3", [512, 512], &[28, 28], 3),
        shape("unet 3x3", [64, 128], &[128, 128], 3),
        // The data gradient is the ConvTranspose.
        Shape { stride: 2, pads: [0, 0], ..shape("unet up 2x2", [64, 128], &[128, 128], 2) },
        shape("1-D", [80, 512], &[1, 1500], 3),
        shape("3-D", [32, 64], &[16, 32, 32], 3),
        Shape { groups: 96, ..shape("depthwise", [96, 96], &[56, 56], 3) },
        Shape { groups: 32, ..shape("groups of 4", [128, 128], &[28, 28], 3) },
        Shape { dilation: 2, pads: [2, 2], ..shape("dilated", [64, 64], &[28, 28], 3) },
        Shape { stride: 2, pads: [0, 1], ..shape("asymmetric", [32, 64], &[56, 56], 3) },
        Shape { pads: [5, 4], ..shape("wide padding", [32, 64], &[20, 20], 3) },
        Shape { stride: 3, pads: [0, 0], ..shape("gaps between positions", [32, 64], &[31, 31], 2) },
        shape("odd channels", [13, 27], &[19, 17], 3),
        shape("one element", [1, 1], &[1, 1], 1),
    ];

    impl Shape {
        fn convolution(&self, direction: Direction, dtype: DType, layout: Layout) -> Convolution {
            let [c, k] = self.channels;
            // A 1-D convolution is one of images with one row.
            let taps = |extent: i64| if extent == 1 { 1 } else { self.filter };
            let pads = |extent: i64| if extent == 1 { [0, 0] } else { self.pads };
            let places = |extent: i64| {
                let [before, after] = pads(extent);
                (extent + before + after - (taps(extent) - 1) * self.dilation - 1) / self.stride + 1
            };
            let with = |first: [i64; 2], of: &dyn Fn(i64) -> i64| -> Vec<i64> {
                first.into_iter().chain(self.image.iter().map(|&extent| of(extent))).collect()
            };
            let each = |of: &dyn Fn(i64) -> i64| self.image.iter().map(|&extent| of(extent)).collect();
            Convolution {
                direction,
                dtype,
                result: dtype,
                image: with([self.batch, c], &|extent| extent),
                filter: with([k, c / self.groups], &taps),
                grid: with([self.batch, k], &places),
                before: each(&|extent| pads(extent)[0]),
                after: each(&|extent| pads(extent)[1]),
                strides: each(&|_| self.stride),
                dilations: each(&|_| self.dilation),
                has_bias: false,
                has_relu: false,
                layout,
            }
        }
    }

    /// The directions to plan, and if the convolution adds a bias and has a ReLU behind it.
    const DIRECTIONS: [(Direction, bool, bool); 5] = [
        (Direction::Forward, false, false),
        (Direction::Forward, true, false),
        (Direction::Forward, true, true),
        (Direction::DataGradient, false, false),
        (Direction::FilterGradient, false, false),
    ];

    pub(crate) fn run() -> ExitCode {
        let Some(path) = std::env::var_os("AMPC_CUDNN_DEVICE") else {
            println!("skipped: AMPC_CUDNN_DEVICE names no description of a device");
            return ExitCode::SUCCESS;
        };
        let json = std::fs::read_to_string(path).unwrap();
        let folders = std::env::var_os("AMPC_CUDA_LIBRARIES");
        let folders: Vec<_> = folders.iter().flat_map(std::env::split_paths).collect();
        let device = match Properties::from_json(json.trim(), &folders) {
            Ok(device) => device,
            Err(DnnError::Library(error)) => {
                println!("skipped: {error}");
                return ExitCode::SUCCESS;
            }
            Err(error) => {
                println!("failed: {error}");
                return ExitCode::FAILURE;
            }
        };
        println!("cuDNN {}", device.version());
        let filter = std::env::args().nth(1).filter(|arg| !arg.starts_with('-')).unwrap_or_default();
        let (mut made, mut failed) = (0, 0);
        for shape in SHAPES {
            for (direction, has_bias, has_relu) in DIRECTIONS {
                for dtype in [DType::F32, DType::F16, DType::BF16] {
                    for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
                        for tf32 in if dtype == DType::F32 { &[false, true][..] } else { &[false] } {
                            let ends = [(has_bias, " bias"), (has_relu, " relu"), (*tf32, " tf32")];
                            let ends: String =
                                ends.into_iter().filter(|end| end.0).map(|end| end.1).collect();
                            let name = format!("{} {direction:?} {dtype} {layout:?}{ends}", shape.name);
                            if !name.contains(&filter) {
                                continue;
                            }
                            let convolution = shape.convolution(direction, dtype, layout);
                            let convolution = Convolution { has_bias, has_relu, ..convolution };
                            match plan(&device, &name, &convolution, *tf32) {
                                true => made += 1,
                                false => failed += 1,
                            }
                        }
                    }
                }
            }
        }
        let [of_attention, without] = crate::attention::run(&device, &filter);
        (made, failed) = (made + of_attention, failed + without);
        println!("plans: {made} made, {failed} failed");
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn plan(device: &Properties, name: &str, convolution: &Convolution, tf32: bool) -> bool {
        let start = Instant::now();
        let made = device.plan(convolution, tf32);
        let ms = start.elapsed().as_millis();
        match made {
            Ok(plan) => {
                println!(
                    "{name:60} engine {:3} after {:2} refused, {:9} bytes of workspace, kept as {:6} bytes, {ms:4} ms, notes: {}",
                    plan.engine.index,
                    plan.refused.len(),
                    plan.workspace,
                    plan.kept.unwrap_or(0),
                    plan.engine.notes
                );
                plan.workspace <= MOST_WORKSPACE
                    && plan.engine.notes.refusal(convolution.dtype, tf32).is_none()
            }
            Err(error) => {
                println!("{name:60} FAILED: {error}");
                false
            }
        }
    }
}
