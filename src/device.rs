//! Devices: the choice of the backend that runs models.

use crate::error::Error;
use ampc_runtime::{Backend, Cpu};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A device that runs models.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Device {
    /// The processors of this machine.
    #[default]
    Cpu,
    /// A GPU with CUDA, by its number.
    Cuda(u32),
}

impl FromStr for Device {
    type Err = Error;

    /// `cpu`, `cuda` (the first GPU) or `cuda:N`.
    fn from_str(name: &str) -> Result<Device, Error> {
        let number = |text: &str| text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
        match name {
            "cpu" => Ok(Device::Cpu),
            "cuda" => Ok(Device::Cuda(0)),
            other => number(other)
                .map(Device::Cuda)
                .ok_or_else(|| Error::Usage(format!("device `{name}`: expected cpu, cuda or cuda:N"))),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

impl Device {
    /// The backend of the device. Kernels on the CPU run in this many threads; 0 stands for the number of processors.
    ///
    /// # Errors
    /// If this version has no backend for the device.
    pub fn backend(self, threads: usize) -> Result<Arc<dyn Backend>, Error> {
        match self {
            Device::Cpu => Ok(Arc::new(Cpu::new(threads))),
            Device::Cuda(_) => {
                Err(Error::Unsupported(format!("device `{self}`: this version runs models on the CPU only")))
            }
        }
    }
}
