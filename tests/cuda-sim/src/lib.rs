//! A CUDA device for tests, computed on the host: the driver, NVRTC, cuBLASLt and cuDNN behind their own functions.
//!
//! The library stands in for `libcuda.so.1`, `libnvrtc.so.13`, `libcublasLt.so.13` and `libcudnn.so.9`. It has the functions that the CUDA
//! backend calls; a call of any other function fails the test by name. Kernels are compiled by g++ behind
//! `device.h`, and their threads run as coroutines; products and convolutions are computed in f64 and rounded once.
//!
//! Device memory begins as NaNs, has a guard page on both sides, and is known by address: a copy from or to other memory
//! fails. Work of a stream is done when it is enqueued, in the order of the calls, unless the stream is captured.
//! `AMPC_SIM_SEED` orders blocks, warps and lanes at random.
//!
//! `memory.rs` has the device memory, `work.rs` streams and graphs, `blocks.rs` runs kernels, `compiler.rs` stands in for
//! NVRTC, `products.rs` for cuBLASLt, `dnn.rs` for cuDNN, and `driver.rs` for the driver.

mod blocks;
mod compiler;
mod dnn;
mod driver;
mod memory;
mod products;
mod work;

/// Prints why a call fails.
fn complain(what: &str) {
    eprintln!("cuda-sim: {what}");
}
