//! The runtime of ampc: runs modules ([`session`]) on a device ([`backend`], [`cpu`]) by plans that all backends
//! share ([`plan`]). It also has tensors in host memory ([`HostTensor`]), sequences and optionals ([`data`]), their
//! files ([`npy`], [`npz`]), and the distance of two tensors ([`compare`](mod@compare)).
//!
//! Reading order: [`host`], [`data`], [`plan`], [`session`], [`backend`], [`cpu`]; then [`float`] (the values of
//! float formats) and [`compare`](mod@compare). This crate rewrites no module and knows no model format.
//!
//! ```
//! use ampc_runtime::{HostTensor, Tolerance, compare};
//!
//! let want = HostTensor::from_slice(&[3], &[1.0f32, 2.0, 3.0])?;
//! let got = HostTensor::from_slice(&[3], &[1.0f32, 2.0, 3.0625])?;
//! let comparison = compare(&got, &want, &Tolerance::EXACT)?;
//! assert_eq!((comparison.mismatches, comparison.max_abs), (1, 0.0625));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(target_endian = "big")]
compile_error!("tensors are little-endian and viewed in place, so the host must be little-endian too");

mod bytes;

pub mod backend;
pub mod compare;
pub mod cpu;
#[cfg(all(feature = "cuda", target_os = "linux", target_arch = "x86_64"))]
pub mod cuda;
pub mod data;
pub mod device;
mod einsum;
mod elementwise;
mod error;
pub mod float;
mod geometry;
mod groups;
pub mod host;
mod kernel;
mod layouts;
pub mod npy;
pub mod npz;
pub mod plan;
mod random;
mod room;
pub mod session;

pub use backend::Backend;
pub use compare::{Comparison, Tolerance, compare};
pub use cpu::{Cpu, statistics};
#[cfg(all(feature = "cuda", target_os = "linux", target_arch = "x86_64"))]
pub use cuda::Cuda;
pub use data::{Data, DataRef};
pub use host::{Element, HostError, HostTensor, TensorRef};
pub use session::{Limits, Runtime, Session, SharedConstants};
