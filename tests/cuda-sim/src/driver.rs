//! The driver: one device, of compute capability 8.0.

use crate::blocks::{Kernel, Launch};
use crate::compiler::MAGIC;
use crate::faults::{self, fault};
use crate::memory;
use crate::work::{Capture, Event, Place, Stream, Work, lock};
use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUgraph,
    CUgraphExec, CUmodule, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex};
use std::time::Instant;

const OK: CUresult = CUresult::CUDA_SUCCESS;
const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

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

/// The streams of the process do one thing at a time.
static CALLS: Mutex<()> = Mutex::new(());

/// # Safety
/// The stream is alive.
pub(crate) unsafe fn enqueue(stream: CUstream, work: Work) -> CUresult {
    let _call = CALLS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // SAFETY: as the caller says, and no other call uses the stream meanwhile.
    unsafe { (*stream.cast::<Stream>()).enqueue(work) }
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
unsafe extern "C" fn cuCtxSynchronize() -> CUresult {
    fault!("cuCtxSynchronize");
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
unsafe extern "C" fn cuMemAlloc_v2(address: *mut CUdeviceptr, len: usize) -> CUresult {
    fault!("cuMemAlloc_v2");
    if len == 0 {
        return INVALID;
    }
    let Some(block) = memory::allocate(len) else { return CUresult::CUDA_ERROR_OUT_OF_MEMORY };
    // SAFETY: the caller gives a place.
    unsafe { *address = block };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFree_v2(address: CUdeviceptr) -> CUresult {
    fault!("cuMemFree_v2");
    if memory::free(address) { OK } else { INVALID }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostAlloc(address: *mut *mut c_void, len: usize, _: c_uint) -> CUresult {
    fault!("cuMemHostAlloc");
    // SAFETY: the caller gives a place.
    unsafe { *address = libc::malloc(len.max(1)) };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFreeHost(address: *mut c_void) -> CUresult {
    fault!("cuMemFreeHost");
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
unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
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
unsafe extern "C" fn cuMemsetD8Async(to: CUdeviceptr, byte: u8, len: usize, stream: CUstream) -> CUresult {
    fault!("cuMemsetD8Async");
    // SAFETY: the stream is alive.
    unsafe { enqueue(stream, Work::Set { to, byte, len }) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut CUstream, _: c_uint) -> CUresult {
    fault!("cuStreamCreate");
    // SAFETY: the caller gives a place.
    unsafe { *stream = made(Stream::default()).cast() };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamDestroy_v2(stream: CUstream) -> CUresult {
    fault!("cuStreamDestroy_v2");
    // SAFETY: the stream is destroyed once.
    unsafe { destroy(stream.cast::<Stream>()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamSynchronize(_: CUstream) -> CUresult {
    fault!("cuStreamSynchronize");
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamWaitEvent(stream: CUstream, event: CUevent, _: c_uint) -> CUresult {
    fault!("cuStreamWaitEvent");
    // SAFETY: both are alive.
    let (stream, event) = unsafe { (&mut *stream.cast::<Stream>(), &*event.cast::<Event>()) };
    let is_captured = |capture: &&Capture| lock(capture).is_some();
    if let (None, Some(capture)) = (stream.captured(), event.capture.as_ref().filter(is_captured)) {
        stream.capture = Some(capture.clone());
    }
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus) -> CUresult {
    fault!("cuStreamIsCapturing");
    // SAFETY: the stream is alive, and the caller gives a place.
    unsafe {
        let captures = (*stream.cast::<Stream>()).captured().is_some();
        *status = if captures {
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE
        } else {
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE
        };
    }
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamBeginCapture_v2(stream: CUstream, _: CUstreamCaptureMode) -> CUresult {
    fault!("cuStreamBeginCapture_v2");
    // SAFETY: the stream is alive.
    let stream = unsafe { &mut *stream.cast::<Stream>() };
    if stream.captured().is_some() {
        return INVALID;
    }
    stream.capture = Some(Arc::new(Mutex::new(Some(Vec::new()))));
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> CUresult {
    // SAFETY: the stream is alive, and the caller gives a place.
    unsafe {
        let capture = (*stream.cast::<Stream>()).capture.take();
        let work = capture.and_then(|capture| lock(&capture).take());
        // A capture ends in any case.
        fault!("cuStreamEndCapture");
        match work {
            Some(work) => *graph = made(work).cast(),
            None => return INVALID,
        }
    }
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphInstantiateWithFlags(
    made_graph: *mut CUgraphExec,
    graph: CUgraph,
    _: c_ulonglong,
) -> CUresult {
    fault!("cuGraphInstantiateWithFlags");
    // SAFETY: the graph is alive, and the caller gives a place.
    unsafe { *made_graph = made((*graph.cast::<Vec<Work>>()).clone()).cast() };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphUpload(_: CUgraphExec, _: CUstream) -> CUresult {
    fault!("cuGraphUpload");
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphLaunch(graph: CUgraphExec, stream: CUstream) -> CUresult {
    fault!("cuGraphLaunch");
    // SAFETY: the graph and the stream are alive.
    let graph = unsafe { &*graph.cast::<Vec<Work>>() };
    for work in graph {
        // SAFETY: as above.
        match unsafe { enqueue(stream, work.clone()) } {
            OK => {}
            failed => return failed,
        }
    }
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphDestroy(graph: CUgraph) -> CUresult {
    fault!("cuGraphDestroy");
    // SAFETY: the graph is destroyed once.
    unsafe { destroy(graph.cast::<Vec<Work>>()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphExecDestroy(graph: CUgraphExec) -> CUresult {
    fault!("cuGraphExecDestroy");
    // SAFETY: the graph is destroyed once.
    unsafe { destroy(graph.cast::<Vec<Work>>()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut CUevent, _: c_uint) -> CUresult {
    fault!("cuEventCreate");
    // SAFETY: the caller gives a place.
    unsafe { *event = made(Event::default()).cast() };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventDestroy_v2(event: CUevent) -> CUresult {
    fault!("cuEventDestroy_v2");
    // SAFETY: the event is destroyed once.
    unsafe { destroy(event.cast::<Event>()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult {
    fault!("cuEventRecord");
    // SAFETY: both are alive.
    let (event, stream) = unsafe { (&mut *event.cast::<Event>(), &mut *stream.cast::<Stream>()) };
    event.capture = stream.captured().cloned();
    event.time = event.capture.is_none().then(Instant::now);
    OK
}

/// The milliseconds between two events.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, from: CUevent, to: CUevent) -> CUresult {
    fault!("cuEventElapsedTime");
    // SAFETY: both are alive.
    let [from, to] = [from, to].map(|event| unsafe { &*event.cast::<Event>() }.time);
    let (Some(from), Some(to)) = (from, to) else { return CUresult::CUDA_ERROR_INVALID_HANDLE };
    // SAFETY: the caller gives a place.
    unsafe { *milliseconds = to.duration_since(from).as_secs_f32() * 1e3 };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventSynchronize(_: CUevent) -> CUresult {
    fault!("cuEventSynchronize");
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventQuery(_: CUevent) -> CUresult {
    fault!("cuEventQuery");
    OK
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
        Some(Kernel { entry, arguments, waits: waits == 1, thread, wait, _library: library })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult {
    fault!("cuModuleLoadData");
    // SAFETY: the caller gives an image and a place.
    unsafe {
        let Some(kernel) = kernel_of(image) else { return CUresult::CUDA_ERROR_INVALID_IMAGE };
        *module = made(kernel).cast();
    }
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleUnload(module: CUmodule) -> CUresult {
    fault!("cuModuleUnload");
    // SAFETY: the module is unloaded once.
    unsafe { destroy(module.cast::<Kernel>()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(
    function: *mut CUfunction,
    module: CUmodule,
    _: *const c_char,
) -> CUresult {
    fault!("cuModuleGetFunction");
    // SAFETY: the caller gives a place. A module has one function.
    unsafe { *function = module.cast() };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernel(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    _shared: c_uint,
    stream: CUstream,
    args: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> CUresult {
    fault!("cuLaunchKernel");
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    let threads: u64 = block.iter().map(|&n| u64::from(n)).product();
    if grid.contains(&0) || threads == 0 || threads > 1024 {
        return INVALID;
    }
    let kernel: *const Kernel = function.cast();
    // SAFETY: the kernel is loaded, and the caller gives the addresses of its arguments, each of 8 bytes.
    unsafe {
        let args = (0..(*kernel).arguments).map(|i| (*args.add(i)).cast::<u64>().read_unaligned()).collect();
        enqueue(stream, Work::Launch(Launch { kernel, grid, block, args }))
    }
}
