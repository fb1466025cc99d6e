//! Calls that the driver refuses, with its errors.

use crate::driver::{
    cuLaunchKernel, cuMemAlloc_v2, cuMemFree_v2, cuMemcpyDtoDAsync_v2, cuMemsetD8Async, kernel_of,
};
use crate::events::{cuEventCreate, cuEventQuery, cuEventRecord};
use crate::graphs::{cuGraphDestroy, cuGraphInstantiateWithFlags, cuGraphLaunch};
use crate::streams::{
    cuStreamBeginCapture_v2, cuStreamCreate, cuStreamDestroy_v2, cuStreamEndCapture, cuStreamIsCapturing,
    cuStreamSynchronize, cuStreamWaitEvent,
};
use crate::{compiler, memory};
use cudarc::driver::sys::{
    CUevent, CUgraph, CUresult as Code, CUstream, CUstreamCaptureMode as Mode,
    CUstreamCaptureStatus as Status,
};
use std::ptr::null_mut;

const OK: Code = Code::CUDA_SUCCESS;

fn stream() -> CUstream {
    let mut stream = null_mut();
    // SAFETY: the place is there.
    assert_eq!(unsafe { cuStreamCreate(&raw mut stream, 0) }, OK);
    stream
}

fn event() -> CUevent {
    let mut event = null_mut();
    // SAFETY: the place is there.
    assert_eq!(unsafe { cuEventCreate(&raw mut event, 0) }, OK);
    event
}

fn block(len: usize) -> u64 {
    let mut at = 0;
    // SAFETY: the place is there.
    assert_eq!(unsafe { cuMemAlloc_v2(&raw mut at, len) }, OK);
    at
}

#[test]
fn memory_that_is_not_alive() {
    let (stream, a, b) = (stream(), block(64), block(64));
    // SAFETY: the calls check their addresses.
    unsafe {
        assert_eq!(cuMemcpyDtoDAsync_v2(b, a, 64, stream), OK);
        assert_eq!(cuMemcpyDtoDAsync_v2(b, a, 65, stream), Code::CUDA_ERROR_INVALID_VALUE);
        assert_eq!((cuMemFree_v2(a), cuMemFree_v2(a)), (OK, Code::CUDA_ERROR_INVALID_VALUE));
        assert_eq!(cuMemcpyDtoDAsync_v2(b, a, 64, stream), Code::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(cuMemsetD8Async(a, 1, 1, stream), Code::CUDA_ERROR_INVALID_VALUE);
        assert_eq!((cuMemFree_v2(b), cuStreamDestroy_v2(stream)), (OK, OK));
        let mut at = 0;
        assert_eq!(cuMemAlloc_v2(&raw mut at, 0), Code::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(cuMemAlloc_v2(&raw mut at, memory::TOTAL + 1), Code::CUDA_ERROR_OUT_OF_MEMORY);
    }
}

#[test]
fn handles_that_were_destroyed() {
    let (stream, event) = (stream(), event());
    // SAFETY: the calls check their handles.
    unsafe {
        assert_eq!(cuEventRecord(event, stream), OK);
        assert_eq!(
            (cuStreamDestroy_v2(stream), cuStreamDestroy_v2(stream)),
            (OK, Code::CUDA_ERROR_INVALID_HANDLE)
        );
        assert_eq!(cuStreamSynchronize(stream), Code::CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(cuEventRecord(event, stream), Code::CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(cuMemsetD8Async(0, 0, 0, stream), Code::CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(cuEventQuery(event), OK);
    }
}

/// Launches with no parameters, as every check comes before the launch.
#[test]
fn launches_beyond_the_limits() {
    let text = |n: usize, shared: usize| {
        let parameters: Vec<String> = (0..n).map(|i| format!("unsigned long long a{i}")).collect();
        format!(
            "extern \"C\" __global__ void many({}) {{ __shared__ char s[{shared}]; s[threadIdx.x] = 1; }}",
            parameters.join(", ")
        )
    };
    let stream = stream();
    let run = |n: usize, grid: [u32; 3], block: [u32; 3], shared: u32| {
        let image = compiler::image_of(&text(n, 1024)).unwrap();
        let mut words = vec![0u64; n];
        let mut args: Vec<_> = words.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect();
        // SAFETY: the image is that of our compiler, and the arguments are as many as the kernel has.
        unsafe {
            let mut kernel = kernel_of(image.as_ptr().cast()).unwrap();
            let ([x, y, z], [u, v, w]) = (grid, block);
            let function = (&raw mut kernel).cast();
            let code =
                cuLaunchKernel(function, x, y, z, u, v, w, shared, stream, args.as_mut_ptr(), null_mut());
            assert_eq!(cuStreamSynchronize(stream), OK);
            code
        }
    };
    let bad = Code::CUDA_ERROR_INVALID_VALUE;
    assert_eq!((run(512, [1; 3], [1; 3], 0), run(513, [1; 3], [1; 3], 0)), (OK, bad));
    for (grid, block) in
        [([0, 1, 1], [1; 3]), ([1, 65_536, 1], [1; 3]), ([1; 3], [1, 1, 65]), ([1; 3], [1024, 2, 1])]
    {
        assert_eq!(run(1, grid, block, 0), bad, "{grid:?} {block:?}");
    }
    assert_eq!((run(1, [1; 3], [1024, 1, 1], 48 << 10), run(1, [1; 3], [1; 3], (48 << 10) + 1)), (OK, bad));
}

/// A capture refuses calls that wait for it, and is not valid afterwards.
#[test]
fn captures() {
    let [a, b] = [stream(), stream()];
    let [forks, joins] = [event(), event()];
    let at = block(4);
    let begin = |stream| {
        // SAFETY: the stream is alive.
        assert_eq!(unsafe { cuStreamBeginCapture_v2(stream, Mode::CU_STREAM_CAPTURE_MODE_RELAXED) }, OK);
    };
    let end = |stream| {
        let mut graph: CUgraph = null_mut();
        // SAFETY: the stream is alive.
        (unsafe { cuStreamEndCapture(stream, &raw mut graph) }, graph)
    };
    // SAFETY: handles are alive, or are checked.
    unsafe {
        assert_eq!(end(a).0, Code::CUDA_ERROR_ILLEGAL_STATE);
        begin(a);
        assert_eq!(
            cuStreamBeginCapture_v2(a, Mode::CU_STREAM_CAPTURE_MODE_RELAXED),
            Code::CUDA_ERROR_ILLEGAL_STATE
        );
        assert_eq!(cuStreamSynchronize(a), Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        let mut status = Status::CU_STREAM_CAPTURE_STATUS_NONE;
        assert_eq!(cuStreamIsCapturing(a, &raw mut status), OK);
        assert_eq!(status, Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        assert_eq!(cuMemsetD8Async(at, 1, 4, a), Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        assert_eq!(end(a).0, Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        // A stream that joins has to be joined.
        for is_joined in [false, true] {
            begin(a);
            assert_eq!((cuEventRecord(forks, a), cuStreamWaitEvent(b, forks, 0)), (OK, OK));
            assert_eq!(cuMemsetD8Async(at, 7, 4, b), OK);
            assert_eq!(cuEventQuery(forks), Code::CUDA_ERROR_CAPTURED_EVENT);
            assert_eq!(end(a).0, Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
            begin(a);
            assert_eq!((cuEventRecord(forks, a), cuStreamWaitEvent(b, forks, 0)), (OK, OK));
            assert_eq!(cuMemsetD8Async(at, 7, 4, b), OK);
            if is_joined {
                assert_eq!(end(b).0, Code::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
                assert_eq!(end(a).0, Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
                begin(a);
                assert_eq!((cuEventRecord(forks, a), cuStreamWaitEvent(b, forks, 0)), (OK, OK));
                assert_eq!(cuMemsetD8Async(at, 7, 4, b), OK);
                assert_eq!((cuEventRecord(joins, b), cuStreamWaitEvent(a, joins, 0)), (OK, OK));
                let (code, graph) = end(a);
                assert_eq!(code, OK);
                let mut made = null_mut();
                assert_eq!(cuGraphInstantiateWithFlags(&raw mut made, graph, 0), OK);
                assert_eq!(
                    (cuGraphDestroy(graph), cuGraphDestroy(graph)),
                    (OK, Code::CUDA_ERROR_INVALID_VALUE)
                );
                assert_eq!((cuGraphLaunch(made, a), cuStreamSynchronize(a)), (OK, OK));
                assert_eq!(memory::slice::<u8>(at, 4), [7; 4]);
            } else {
                assert_eq!(end(a).0, Code::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
            }
        }
        // An event from before a capture.
        assert_eq!(cuEventRecord(joins, b), OK);
        begin(a);
        assert_eq!(cuStreamWaitEvent(a, joins, 0), Code::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        assert_eq!(end(a).0, Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
}
