//! The driver: one device, of compute capability 8.0.

use crate::blocks::{Kernel, Launch};
use crate::compiler::MAGIC;
use crate::faults::{self, fault};
use crate::races::Access;
use crate::streams::device;
use crate::work::{Place, Work};
use crate::{complain, memory, records};
use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUfunction, CUmodule, CUresult,
    CUstream,
};
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;

const OK: CUresult = CUresult::CUDA_SUCCESS;
pub(crate) const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// A pointer that the caller destroys.
fn made<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// # Safety
/// The pointer is that of [`made`], and is destroyed once.
unsafe fn destroy<T>(at: *mut T) -> CUresult {
    // SAFETY: as the caller says.
    drop(unsafe { Box::from_raw(at) });
    OK
}

/// Adds work to a stream.
///
/// # Safety
/// Memory that the work names stays alive until the stream has done it.
pub(crate) unsafe fn enqueue(stream: CUstream, work: Work) -> CUresult {
    device().enqueue(stream as usize, work)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuInit(_: c_uint) -> CUresult {
    fault!("cuInit");
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> CUresult {
    fault!("cuDriverGetVersion");
    let (major, minor) = faults::version("AMPC_SIM_DRIVER");
    // SAFETY: the caller gives a place.
    unsafe { *version = major * 1000 + minor * 10 };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(error: CUresult, name: *mut *const c_char) -> CUresult {
    let text = match error {
        CUresult::CUDA_ERROR_INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        CUresult::CUDA_ERROR_LAUNCH_FAILED => c"CUDA_ERROR_LAUNCH_FAILED",
        CUresult::CUDA_ERROR_NO_DEVICE => c"CUDA_ERROR_NO_DEVICE",
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        _ => c"CUDA_ERROR (simulated)",
    };
    // SAFETY: the caller gives a place.
    unsafe { *name = text.as_ptr() };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(error: CUresult, text: *mut *const c_char) -> CUresult {
    // SAFETY: as above.
    unsafe { cuGetErrorName(error, text) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> CUresult {
    fault!("cuDeviceGetCount");
    // SAFETY: the caller gives a place.
    unsafe { *count = faults::devices() };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut CUdevice, number: c_int) -> CUresult {
    fault!("cuDeviceGet");
    if number < 0 || number >= faults::devices() {
        return CUresult::CUDA_ERROR_INVALID_DEVICE;
    }
    // SAFETY: the caller gives a place.
    unsafe { *device = 0 };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, _: CUdevice) -> CUresult {
    fault!("cuDeviceGetName");
    let text = c"simulated device".to_bytes_with_nul();
    if usize::try_from(len).unwrap_or(0) < text.len() {
        return INVALID;
    }
    // SAFETY: the place is long enough.
    unsafe { name.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len()) };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: CUdevice_attribute,
    _: CUdevice,
) -> CUresult {
    fault!("cuDeviceGetAttribute");
    type A = CUdevice_attribute;
    let number = match attribute {
        A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => faults::capability().0,
        A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => faults::capability().1,
        A::CU_DEVICE_ATTRIBUTE_WARP_SIZE => 32,
        _ => 0,
    };
    // SAFETY: the caller gives a place.
    unsafe { *value = number };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _: CUdevice) -> CUresult {
    fault!("cuDeviceTotalMem_v2");
    // SAFETY: the caller gives a place.
    unsafe { *bytes = memory::TOTAL };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, _: CUdevice) -> CUresult {
    fault!("cuDevicePrimaryCtxRetain");
    // SAFETY: the caller gives a place. The context is no more than a name.
    unsafe { *context = std::ptr::dangling_mut() };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(_: CUdevice) -> CUresult {
    fault!("cuDevicePrimaryCtxRelease_v2");
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxSetCurrent(_: CUcontext) -> CUresult {
    fault!("cuCtxSetCurrent");
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetCurrent(context: *mut CUcontext) -> CUresult {
    fault!("cuCtxGetCurrent");
    // SAFETY: the caller gives a place.
    unsafe { *context = std::ptr::dangling_mut() };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    fault!("cuMemGetInfo_v2");
    // SAFETY: the caller gives places.
    unsafe { (*free, *total) = (memory::free_bytes(), memory::TOTAL) };
    OK
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuMemAlloc_v2(address: *mut CUdeviceptr, len: usize) -> CUresult {
    fault!("cuMemAlloc_v2");
    if len == 0 {
        return INVALID;
    }
    if let Some(refused) = device().refused_by_captures(|is_relaxed| !is_relaxed) {
        return refused;
    }
    let Some(block) = memory::allocate(len) else { return CUresult::CUDA_ERROR_OUT_OF_MEMORY };
    records::add("allocations", 1);
    records::add("allocations.bytes", len);
    // SAFETY: the caller gives a place.
    unsafe { *address = block };
    OK
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuMemFree_v2(address: CUdeviceptr) -> CUresult {
    fault!("cuMemFree_v2");
    let mut device = device();
    if let Some(refused) = device.refused_by_captures(|is_relaxed| !is_relaxed) {
        return refused;
    }
    // The driver waits for the device before it frees memory.
    device.finish_all();
    match memory::free(address) {
        Some(len) => {
            records::add("frees", 1);
            records::add("frees.bytes", len);
            OK
        }
        None => {
            complain("memory is freed that is not alive");
            INVALID
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostAlloc(address: *mut *mut c_void, len: usize, _: c_uint) -> CUresult {
    fault!("cuMemHostAlloc");
    // SAFETY: the caller gives a place.
    unsafe {
        *address = libc::malloc(len.max(1));
        memory::pin(*address as u64, len);
    }
    records::add("pinned", 1);
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFreeHost(address: *mut c_void) -> CUresult {
    fault!("cuMemFreeHost");
    if !memory::unpin(address as u64) {
        complain("pinned memory is freed that is not alive");
        return INVALID;
    }
    device().finish_all();
    records::add("unpinned", 1);
    // SAFETY: the memory is that of the function above.
    unsafe { libc::free(address) };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: *const c_void,
    len: usize,
    stream: CUstream,
) -> CUresult {
    fault!("cuMemcpyHtoDAsync_v2");
    let (from, to) = (Place::Host(from as u64), Place::Device(to));
    // SAFETY: the stream is alive.
    unsafe { enqueue(stream, Work::Copy { from, to, strides: [0; 2], count: 1, len }) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    len: usize,
    stream: CUstream,
) -> CUresult {
    fault!("cuMemcpyDtoHAsync_v2");
    let (from, to) = (Place::Device(from), Place::Host(to as u64));
    // SAFETY: the stream is alive.
    unsafe { enqueue(stream, Work::Copy { from, to, strides: [0; 2], count: 1, len }) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: CUdeviceptr,
    from: CUdeviceptr,
    len: usize,
    stream: CUstream,
) -> CUresult {
    fault!("cuMemcpyDtoDAsync_v2");
    let (from, to) = (Place::Device(from), Place::Device(to));
    // SAFETY: the stream is alive.
    unsafe { enqueue(stream, Work::Copy { from, to, strides: [0; 2], count: 1, len }) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpy2DAsync_v2(rows: *const CUDA_MEMCPY2D, stream: CUstream) -> CUresult {
    fault!("cuMemcpy2DAsync_v2");
    // SAFETY: the caller gives a description, and the stream is alive.
    unsafe {
        let rows = &*rows;
        // CU_DEVICE_ATTRIBUTE_MAX_PITCH.
        if rows.srcPitch.max(rows.dstPitch) > i32::MAX as usize {
            return CUresult::CUDA_ERROR_INVALID_VALUE;
        }
        let work = Work::Copy {
            from: Place::Device(rows.srcDevice),
            to: Place::Device(rows.dstDevice),
            strides: [rows.srcPitch, rows.dstPitch],
            count: rows.Height,
            len: rows.WidthInBytes,
        };
        enqueue(stream, work)
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuMemsetD8Async(
    to: CUdeviceptr,
    byte: u8,
    len: usize,
    stream: CUstream,
) -> CUresult {
    fault!("cuMemsetD8Async");
    // SAFETY: the stream is alive.
    unsafe { enqueue(stream, Work::Set { to, byte, len }) }
}

/// The functions and places of a shared object that the compiler made.
///
/// # Safety
/// The image is that of our compiler.
pub(crate) unsafe fn kernel_of(image: *const c_void) -> Option<Kernel> {
    // SAFETY: the image is that of our compiler, which ends with a zero.
    let image = unsafe { CStr::from_ptr(image.cast()) }.to_bytes();
    let path = OsStr::from_bytes(image.strip_prefix(MAGIC)?);
    // SAFETY: the object has no initialisers, and has the symbols with these types.
    unsafe {
        let library = libloading::Library::new(path).ok()?;
        let number = |name: &[u8]| {
            let of = library.get::<unsafe extern "C" fn() -> c_int>(name).ok()?;
            Some(of())
        };
        let (arguments, waits) = (number(b"sim_arguments")?, number(b"sim_waits")?);
        let entry = *library.get(b"sim_entry").ok()?;
        let thread = *library.get::<*mut *const c_void>(b"sim_thread").ok()?;
        let wait = *library.get::<*mut Option<unsafe extern "C" fn(c_int, c_int)>>(b"sim_wait").ok()?;
        let arguments = usize::try_from(arguments).ok()?;
        let name = library.get::<unsafe extern "C" fn() -> *const c_char>(b"sim_name").ok()?;
        let name = CStr::from_ptr(name()).to_string_lossy().into();
        let range = library.get::<unsafe extern "C" fn(*mut [u64; 2])>(b"sim_shared").ok()?;
        let mut shared = [0; 2];
        range(&raw mut shared);
        let access = library.get::<*mut Option<Access>>(b"sim_access").ok().map(|place| *place);
        Some(Kernel {
            name,
            shared,
            access,
            entry,
            arguments,
            waits: waits == 1,
            thread,
            wait,
            _library: library,
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult {
    fault!("cuModuleLoadData");
    // SAFETY: the caller gives an image and a place.
    unsafe {
        let Some(kernel) = kernel_of(image) else { return CUresult::CUDA_ERROR_INVALID_IMAGE };
        let [first, end] = kernel.shared;
        // A few words of device.h lie there too.
        if end - first > u64::from(SHARED) + 256 {
            complain(&format!("{}: more than {SHARED} bytes of shared memory", kernel.name));
            return CUresult::CUDA_ERROR_INVALID_IMAGE;
        }
        *module = made(kernel).cast();
    }
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleUnload(module: CUmodule) -> CUresult {
    fault!("cuModuleUnload");
    device().finish_all();
    // SAFETY: the module is unloaded once.
    unsafe { destroy(module.cast::<Kernel>()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(
    function: *mut CUfunction,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    fault!("cuModuleGetFunction");
    // SAFETY: the module is loaded, and the name ends with a zero.
    let (found, name) = unsafe { ((*module.cast::<Kernel>()).name.clone(), CStr::from_ptr(name)) };
    if *found != *name.to_string_lossy() {
        complain(&format!("expected the function {found}, found {name:?}"));
        return CUresult::CUDA_ERROR_NOT_FOUND;
    }
    // SAFETY: the caller gives a place. A module has one function.
    unsafe { *function = module.cast() };
    OK
}

/// The extents of a grid and of a block, the threads of a block, the bytes of shared memory of a block, and the bytes of
/// parameters of a kernel, by the CUDA C++ Programming Guide. Parameters of more bytes need CUDA 12.1.
const GRID: [c_uint; 3] = [0x7fff_ffff, 65_535, 65_535];
const BLOCK: [c_uint; 3] = [1024, 1024, 64];
const THREADS: u64 = 1024;
pub(crate) const SHARED: c_uint = 48 << 10;
const PARAMETERS: usize = 4096;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuLaunchKernel(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: CUstream,
    args: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> CUresult {
    fault!("cuLaunchKernel");
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    let threads: u64 = block.iter().map(|&n| u64::from(n)).product();
    let exceeds = |extents: [c_uint; 3], most: [c_uint; 3]| {
        extents.iter().zip(most).any(|(&extent, most)| extent == 0 || extent > most)
    };
    let kernel: *const Kernel = function.cast();
    // SAFETY: the kernel is loaded.
    let bytes = unsafe { (*kernel).arguments } * 8;
    if exceeds(grid, GRID)
        || exceeds(block, BLOCK)
        || threads > THREADS
        || shared > SHARED
        || bytes > PARAMETERS
    {
        complain(&format!(
            "a launch beyond the limits: grid {grid:?}, block {block:?}, {shared} bytes shared, {bytes} bytes of parameters"
        ));
        return INVALID;
    }
    // SAFETY: the kernel is loaded, and the caller gives the addresses of its arguments, each of 8 bytes.
    unsafe {
        let args = (0..(*kernel).arguments).map(|i| (*args.add(i)).cast::<u64>().read_unaligned()).collect();
        enqueue(stream, Work::Launch(Launch { kernel, grid, block, args }))
    }
}
