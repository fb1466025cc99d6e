//! The devices of the driver, and the architectures that NVRTC compiles for.

use super::error::{CudaError, HIDDEN};

/// A device of the driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundDevice {
    /// The name from the driver.
    pub name: String,
    /// The compute capability, major and minor.
    pub capability: (i32, i32),
    /// The memory of the device, in bytes.
    pub memory: u64,
}

/// The minimum compute capability, which is also the minimum of NVRTC 13.
const LEAST_CAPABILITY: (i32, i32) = (7, 5);

pub(super) fn usable(devices: &[FoundDevice], number: usize) -> Result<(), CudaError> {
    match devices.get(number) {
        None => Err(CudaError::NoDevice { device: number, count: devices.len() }),
        Some(FoundDevice { name, capability, .. }) if *capability < LEAST_CAPABILITY => {
            Err(CudaError::OldDevice { name: name.clone(), capability: *capability })
        }
        Some(_) => Ok(()),
    }
}

/// The newest architecture whose code a device of this compute capability runs: the major versions are equal.
pub(super) fn architecture(architectures: &[i32], (major, minor): (i32, i32)) -> Option<i32> {
    architectures.iter().copied().filter(|of| of / 10 == major && of % 10 <= minor).max()
}

/// The architectures that NVRTC supports. The caller has checked the functions of NVRTC.
pub(super) fn architectures() -> Vec<i32> {
    use cudarc::nvrtc::sys;
    let mut count = 0;
    #[expect(unsafe_code, reason = "a call of NVRTC")]
    // SAFETY: the call writes one number.
    let counted = unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) }.result();
    let mut list = vec![0; usize::try_from(count).unwrap_or(0)];
    #[expect(unsafe_code, reason = "a call of NVRTC")]
    // SAFETY: the list has the length that NVRTC returned.
    let listed = counted.and_then(|_| unsafe { sys::nvrtcGetSupportedArchs(list.as_mut_ptr()) }.result());
    listed.map(|_| list).unwrap_or_default()
}

/// The devices of the driver. The caller has checked the functions of the driver.
pub(super) fn devices() -> Result<Vec<FoundDevice>, CudaError> {
    use cudarc::driver::result;
    use cudarc::driver::sys::CUdevice_attribute as Attribute;
    result::init()?;
    let count = result::device::get_count()?;
    if count <= 0 {
        let reason = "the driver counts 0 devices".to_owned();
        return Err(CudaError::NoDevices { reason, remedy: HIDDEN });
    }
    let mut devices = Vec::new();
    for number in 0..count {
        let device = result::device::get(number)?;
        #[expect(unsafe_code, reason = "calls of the driver")]
        let attribute = |attribute| {
            // SAFETY: the device is one of the driver's.
            unsafe { result::device::get_attribute(device, attribute) }
        };
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        #[expect(unsafe_code, reason = "a call of the driver")]
        // SAFETY: as above.
        let memory = unsafe { result::device::total_mem(device) }?;
        let name = result::device::get_name(device)?;
        devices.push(FoundDevice { name, capability: (major, minor), memory: memory as u64 });
    }
    Ok(devices)
}

#[cfg(test)]
mod tests {
    use super::architecture;

    #[test]
    fn architecture_of_a_device() {
        let list = [75, 80, 86, 90, 100, 120];
        assert_eq!(architecture(&list, (9, 0)), Some(90));
        assert_eq!(architecture(&list, (8, 9)), Some(86));
        assert_eq!(architecture(&list, (10, 3)), Some(100));
        assert_eq!(architecture(&list, (11, 0)), None);
    }
}
