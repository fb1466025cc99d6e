//! A CUDA device for tests, computed on the host: the driver, NVRTC, cuBLASLt and cuDNN behind their own functions.
//!
//! The library stands in for `libcuda.so.1`, `libnvrtc.so.13`, `libcublasLt.so.13` and `libcudnn.so.9`. It has the functions that the CUDA
//! backend calls; a call of any other function fails the test by name. Kernels are compiled by g++ behind
//! `device.h`, and their threads run as coroutines; products and convolutions are computed in f64 and rounded once.
//!
//! Device memory begins as NaNs, has a guard page on both sides, and is known by address: a copy from or to other memory
//! fails. Without a seed, the work of a stream is done when it is enqueued, in the order of the calls, unless the stream is
//! captured. `AMPC_SIM_SEED` orders works of several streams, blocks, warps and lanes at random, as far as events and
//! barriers permit it; `AMPC_SIM_FAIL` lets a call fail, and other variables set versions (`faults.rs`).
//!
//! `memory.rs` has the device memory, `work.rs` the work of streams, `schedule.rs` its order, `blocks.rs` runs kernels,
//! `races.rs` finds races in them, `guard.rs` accesses outside of memory, `compiler.rs` stands in for NVRTC, `products.rs` for cuBLASLt, `dnn.rs` for cuDNN, and
//! `driver.rs`, `streams.rs`, `events.rs` and `graphs.rs` for the driver. `records.rs` counts calls and work.

mod blocks;
mod compiler;
mod dnn;
mod driver;
mod events;
mod faults;
mod graphs;
mod guard;
#[cfg(test)]
mod limits;
mod memory;
mod products;
mod races;
mod records;
mod schedule;
mod streams;
mod work;

/// Prints why a call fails.
fn complain(what: &str) {
    eprintln!("cuda-sim: {what}");
}

#[cfg(test)]
mod tests {
    /// The backend looks up exactly the functions that are here, before it calls one.
    #[test]
    fn the_backend_looks_up_every_function() {
        let sources = [
            include_str!("driver.rs"),
            include_str!("streams.rs"),
            include_str!("events.rs"),
            include_str!("graphs.rs"),
            include_str!("compiler.rs"),
            include_str!("products.rs"),
            include_str!("dnn.rs"),
        ]
        .concat();
        let mut here: Vec<&str> = sources
            .split("unsafe extern \"C\" fn ")
            .skip(1)
            .filter_map(|rest| rest.split_once('('))
            .map(|(name, _)| name)
            .filter(|name| ["cu", "nv"].iter().any(|prefix| name.starts_with(prefix)))
            .collect();
        let list = include_str!("../../../runtime/src/cuda/presence/functions.rs");
        let quoted = list.split('"').skip(1).step_by(2);
        let mut looked_up: Vec<&str> = quoted.collect();
        here.sort_unstable();
        looked_up.sort_unstable();
        assert_eq!(here, looked_up);
    }
}
