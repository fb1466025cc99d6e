//! Graphs of the driver, which captures of streams make.

use crate::driver::INVALID;
use crate::faults::fault;
use crate::records;
use crate::streams::{NO_HANDLE, UNSUPPORTED, device};
use cudarc::driver::sys::{CUgraph, CUgraphExec, CUresult, CUstream};
use std::ffi::c_ulonglong;

const OK: CUresult = CUresult::CUDA_SUCCESS;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphInstantiateWithFlags(
    made: *mut CUgraphExec,
    graph: CUgraph,
    _: c_ulonglong,
) -> CUresult {
    fault!("cuGraphInstantiateWithFlags");
    let mut device = device();
    let Some(graph) = device.graphs.get(&(graph as usize)).cloned() else { return INVALID };
    let handle = device.handle();
    device.graphs.insert(handle, graph);
    records::add("graphs", 1);
    // SAFETY: the caller gives a place.
    unsafe { *made = handle as CUgraphExec };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphUpload(graph: CUgraphExec, _: CUstream) -> CUresult {
    fault!("cuGraphUpload");
    if device().graphs.contains_key(&(graph as usize)) { OK } else { INVALID }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphLaunch(graph: CUgraphExec, stream: CUstream) -> CUresult {
    fault!("cuGraphLaunch");
    let mut device = device();
    let Some(graph) = device.graphs.get(&(graph as usize)).cloned() else { return INVALID };
    match device.streams.get(&(stream as usize)) {
        None => NO_HANDLE,
        // Graphs within graphs are not simulated.
        Some(Some(_)) => UNSUPPORTED,
        Some(None) => {
            device.schedule.replay(stream as usize, graph);
            device.schedule.failure.unwrap_or(OK)
        }
    }
}

fn destroy_graph(graph: usize) -> CUresult {
    match device().graphs.remove(&graph) {
        Some(_) => {
            records::subtract("graphs");
            OK
        }
        None => INVALID,
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphDestroy(graph: CUgraph) -> CUresult {
    fault!("cuGraphDestroy");
    destroy_graph(graph as usize)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphExecDestroy(graph: CUgraphExec) -> CUresult {
    fault!("cuGraphExecDestroy");
    destroy_graph(graph as usize)
}
