//! Compares the CUDA backend with the CPU: each operator, a forward model, and training steps. It is a separate
//! program that can be copied to a machine with a GPU; without a driver it says so and passes.
//!
//! `AMPC_CUDA_LIBRARIES` lists folders of libraries, separated by `:`. An argument selects the cases whose names
//! contain it. `AMPC_CUDA_REQUIRED` makes a missing driver a failure. With `AMPC_CUDA_ERROR`, opening the device must
//! fail with this text.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test: what cannot be made fails it")]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/attention.rs"]
mod attention;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/cases.rs"]
mod cases;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/chains.rs"]
mod chains;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/channels.rs"]
mod channels;
#[path = "cuda/choices.rs"]
mod choices;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/convolutions.rs"]
mod convolutions;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/elements.rs"]
mod elements;
#[path = "cuda/gradients.rs"]
mod gradients;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/layouts.rs"]
mod layouts;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/library/mod.rs"]
mod library;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/memory.rs"]
mod memory;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/missing.rs"]
mod missing;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/operator_gradients.rs"]
mod operator_gradients;
#[path = "cuda/operators/mod.rs"]
mod operators;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/plans.rs"]
mod plans;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/profile.rs"]
mod profile;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/races.rs"]
mod races;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "groups/random.rs"]
mod random;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/records.rs"]
mod records;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/rows.rs"]
mod rows;
#[path = "cuda/scalars.rs"]
mod scalars;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/steps.rs"]
mod steps;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/tails.rs"]
mod tails;

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {
    println!("skipped: CUDA is for Linux on x86-64");
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> std::process::ExitCode {
    use ampc_runtime::Cpu;
    use ampc_runtime::cuda::{Cuda, CudaError, CudaOptions, Library};
    use std::sync::Arc;

    let folders = std::env::var_os("AMPC_CUDA_LIBRARIES");
    let folders = folders.iter().flat_map(|list| std::env::split_paths(list)).collect();
    let options = CudaOptions { folders, ..CudaOptions::default() };
    let opened = |options: &CudaOptions| Cuda::open(options, Arc::new(Cpu::new(1))).map(Arc::new);
    let variants = |cuda| -> Result<_, CudaError> {
        let unrecorded = opened(&CudaOptions { records: false, ..options.clone() })?;
        Ok([cuda, unrecorded, opened(&CudaOptions { queues: 3, ..options.clone() })?])
    };
    if let Some(expected) = std::env::var_os("AMPC_CUDA_ERROR") {
        let found = opened(&options).map_or_else(|error| error.to_string(), |_| "no error".into());
        println!("opened: {found}");
        return match found.contains(&*expected.to_string_lossy()) {
            true => std::process::ExitCode::SUCCESS,
            false => std::process::ExitCode::FAILURE,
        };
    }
    let backends = match opened(&options).and_then(variants) {
        Ok(backends) => backends,
        Err(CudaError::NoLibrary { library: Library::Driver, .. } | CudaError::NoDevices { .. })
            if std::env::var_os("AMPC_CUDA_REQUIRED").is_none() =>
        {
            println!("skipped: no CUDA driver");
            return std::process::ExitCode::SUCCESS;
        }
        Err(error) => {
            println!("failed: {error}");
            return std::process::ExitCode::FAILURE;
        }
    };
    let cuda = &backends[0];
    println!("device: {}", cuda.device_name());
    let filter = std::env::args().nth(1).filter(|arg| !arg.starts_with('-')).unwrap_or_default();
    let failed = cases::run(cuda, &filter)
        + chains::run(cuda, &filter)
        + scalars::run(cuda, &filter)
        + channels::run(cuda, &filter)
        + convolutions::run(cuda, &filter)
        + attention::run(cuda, &filter)
        + gradients::run(cuda, &opened, &options, &filter)
        + operator_gradients::run(cuda, &opened, &options, &filter)
        + elements::run(cuda, &filter)
        + layouts::run(cuda, &filter)
        + library::run(cuda, &opened, &options, &filter)
        + cases::run_all(cuda, &operators::cases(), &filter)
        + operators::failures(cuda, &filter)
        + operators::failures_of_replays(&backends, &filter)
        + rows::run(cuda, &options, &filter)
        + tails::run(cuda, &filter)
        + memory::run(cuda, &filter)
        + operators::shared_kernels(cuda, &filter)
        + choices::run(&opened, &options, &filter)
        + profile::run(&backends, &filter)
        + steps::run(&backends, &filter)
        + records::run(&backends, &options, &filter)
        + races::run(&options, &filter)
        + plans::run(&options, &filter)
        + missing::run(&filter);
    println!("kernels compiled: {}; failed: {failed}", cuda.kernels_compiled());
    if failed == 0 { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}
