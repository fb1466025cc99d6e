//! The CUDA backend next to the CPU: each operator, a forward model, and training steps. A program of its own, so that it
//! can be carried to a machine with a GPU; without a driver it says so and passes.
//!
//! `AMPC_CUDA_LIBRARIES` lists folders of libraries, with `:` between them. An argument is part of the names of the cases
//! to run. `AMPC_CUDA_REQUIRED` makes a missing driver a failure.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test: what cannot be made fails it")]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/cases.rs"]
mod cases;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/chains.rs"]
mod chains;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/convolutions.rs"]
mod convolutions;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/elements.rs"]
mod elements;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/operators/mod.rs"]
mod operators;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "groups/random.rs"]
mod random;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "cuda/steps.rs"]
mod steps;

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
        + convolutions::run(cuda, &filter)
        + elements::run(cuda, &filter)
        + cases::run_all(cuda, &operators::cases(), &filter)
        + operators::failures(cuda, &filter)
        + operators::shared_kernels(cuda, &filter)
        + steps::run(&backends, &filter);
    println!("kernels compiled: {}; failed: {failed}", cuda.kernels_compiled());
    if failed == 0 { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}
