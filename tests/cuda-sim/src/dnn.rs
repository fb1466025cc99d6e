//! cuDNN's graph API: descriptors with attributes, checked when they are finalized; heuristics with several engines for a
//! graph; and plans that compute in f64 from the operation graph.
//!
//! Heuristics answer with engines that a careful caller must refuse before one that rounds as it should: the refused
//! engines compute wrong results, take too much workspace, or cannot be finalized.

mod attention;
mod check;
mod compute;
mod engines;
#[cfg(test)]
mod tests;

use crate::complain;
use crate::faults::{self, fault};
use crate::work::Work;
pub(crate) use compute::Execution;
use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Attribute, cudnnBackendAttributeType_t as Type, cudnnBackendDescriptor_t,
    cudnnBackendDescriptorType_t as Kind, cudnnHandle_t, cudnnStatus_t as Status,
};
use cudarc::driver::sys::CUresult;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::sync::Arc;

const OK: Status = Status::CUDNN_STATUS_SUCCESS;
const BAD: Status = Status::CUDNN_STATUS_BAD_PARAM;

/// Why a call fails.
struct Refusal(Status, String);

fn bad<T>(reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(BAD, reason.into()))
}

fn unsupported<T>(reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(Status::CUDNN_STATUS_NOT_SUPPORTED, reason.into()))
}

/// The elements of an attribute. Descriptors are those that were finalized when the attribute was set.
struct Value {
    ty: Type,
    bytes: Vec<u8>,
    descriptors: Vec<Made>,
}

struct Descriptor {
    kind: Kind,
    values: BTreeMap<u32, Value>,
    made: Option<Made>,
}

/// The content of a finalized descriptor.
#[derive(Clone)]
enum Made {
    Tensor(Arc<Tensor>),
    Window(Arc<Window>),
    Pointwise { mode: u32, axis: usize },
    Product,
    Reduction(u32),
    Operation(Arc<Operation>),
    Graph(Arc<Graph>),
    Heuristics(Vec<Arc<Engine>>),
    Configuration(Arc<Engine>),
    Engine(Arc<Engine>),
    Plan(Arc<Engine>),
    Pack(Arc<Pack>),
}

struct Tensor {
    id: i64,
    dtype: u32,
    dims: Vec<usize>,
    strides: Vec<usize>,
    alignment: u64,
    is_virtual: bool,
    /// True if the address is that of a number in the host's memory.
    is_by_value: bool,
}

struct Window {
    before: Vec<usize>,
    after: Vec<usize>,
    strides: Vec<usize>,
    dilations: Vec<usize>,
}

/// The tensor that a convolution computes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Computed {
    Image,
    Filter,
    Grid,
}

enum Operation {
    Convolution {
        computed: Computed,
        window: Arc<Window>,
        tensors: [Arc<Tensor>; 3],
    },
    /// Operands: x, b, t.
    Pointwise {
        mode: u32,
        axis: usize,
        operands: Vec<Arc<Tensor>>,
        y: Arc<Tensor>,
    },
    Product {
        a: Arc<Tensor>,
        b: Arc<Tensor>,
        c: Arc<Tensor>,
    },
    /// `y` has the elements of `x` that are at its places in memory.
    View {
        x: Arc<Tensor>,
        y: Arc<Tensor>,
    },
    Reduction {
        operator: u32,
        x: Arc<Tensor>,
        y: Arc<Tensor>,
    },
}

struct Graph {
    operations: Vec<Arc<Operation>>,
    /// The tensors that are stored, by name.
    stored: BTreeMap<i64, Arc<Tensor>>,
}

struct Engine {
    graph: Arc<Graph>,
    index: i64,
    notes: Vec<u32>,
    workspace: usize,
    /// The factor by which results differ from those of f32.
    error: f64,
    finalizes: bool,
}

struct Pack {
    places: BTreeMap<i64, u64>,
    workspace: u64,
}

/// The stream of a handle.
struct Handle {
    stream: *mut c_void,
}

/// The bytes of an element of an attribute.
fn size(ty: Type) -> Option<usize> {
    Some(match ty {
        Type::CUDNN_TYPE_INT64
        | Type::CUDNN_TYPE_VOID_PTR
        | Type::CUDNN_TYPE_HANDLE
        | Type::CUDNN_TYPE_BACKEND_DESCRIPTOR => 8,
        Type::CUDNN_TYPE_FLOAT
        | Type::CUDNN_TYPE_DATA_TYPE
        | Type::CUDNN_TYPE_CONVOLUTION_MODE
        | Type::CUDNN_TYPE_POINTWISE_MODE
        | Type::CUDNN_TYPE_NAN_PROPOGATION
        | Type::CUDNN_TYPE_REDUCTION_OPERATOR_TYPE
        | Type::CUDNN_TYPE_HEUR_MODE
        | Type::CUDNN_TYPE_NUMERICAL_NOTE => 4,
        Type::CUDNN_TYPE_BOOLEAN | Type::CUDNN_TYPE_CHAR => 1,
        _ => return None,
    })
}

fn status(result: Result<(), Refusal>) -> Status {
    match result {
        Ok(()) => OK,
        Err(Refusal(status, reason)) => {
            // Engines that cannot be finalized are part of the heuristics' answers.
            if status == BAD {
                complain(&format!("cuDNN: {reason}"));
            }
            status
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetVersion() -> usize {
    // Tests of callers that refuse old versions set another.
    let set = std::env::var_os("AMPC_SIM_CUDNN_VERSION");
    set.and_then(|version| version.to_str()?.parse().ok()).unwrap_or(92_800)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetCudartVersion() -> usize {
    let (major, minor) = faults::version("AMPC_SIM_CUDNN_CUDA");
    usize::try_from(major * 1000 + minor * 10).unwrap_or(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetErrorString(status: Status) -> *const c_char {
    let text = match status {
        OK => c"CUDNN_STATUS_SUCCESS",
        BAD => c"CUDNN_STATUS_BAD_PARAM",
        Status::CUDNN_STATUS_NOT_SUPPORTED => c"CUDNN_STATUS_NOT_SUPPORTED",
        Status::CUDNN_STATUS_NOT_INITIALIZED => c"CUDNN_STATUS_NOT_INITIALIZED",
        Status::CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED => {
            c"CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"
        }
        _ => c"CUDNN_STATUS (simulated)",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetLastErrorString(message: *mut c_char, len: usize) {
    if len > 0 {
        // SAFETY: the caller gives a place of this length.
        unsafe { *message = 0 };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnCreate(handle: *mut cudnnHandle_t) -> Status {
    fault!("cudnnCreate");
    // For tests of callers that report a failure.
    // SAFETY: the caller gives a place.
    unsafe { *handle = Box::into_raw(Box::new(Handle { stream: std::ptr::null_mut() })).cast() };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnDestroy(handle: cudnnHandle_t) -> Status {
    fault!("cudnnDestroy");
    // SAFETY: the caller has it from `cudnnCreate`, and destroys it once.
    drop(unsafe { Box::from_raw(handle.cast::<Handle>()) });
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnSetStream(handle: cudnnHandle_t, stream: *mut c_void) -> Status {
    fault!("cudnnSetStream");
    // SAFETY: the handle is alive.
    unsafe { (*handle.cast::<Handle>()).stream = stream.cast() };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnBackendCreateDescriptor(kind: Kind, made: *mut cudnnBackendDescriptor_t) -> Status {
    fault!("cudnnBackendCreateDescriptor");
    let descriptor = Descriptor { kind, values: BTreeMap::new(), made: None };
    // SAFETY: the caller gives a place.
    unsafe { *made = Box::into_raw(Box::new(descriptor)).cast() };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnBackendDestroyDescriptor(at: cudnnBackendDescriptor_t) -> Status {
    fault!("cudnnBackendDestroyDescriptor");
    // SAFETY: the caller has it from the function above, and destroys it once.
    drop(unsafe { Box::from_raw(at.cast::<Descriptor>()) });
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnBackendSetAttribute(
    at: cudnnBackendDescriptor_t,
    attribute: Attribute,
    ty: Type,
    count: i64,
    elements: *const c_void,
) -> Status {
    fault!("cudnnBackendSetAttribute");
    // SAFETY: the descriptor is alive, and there are as many elements of the type.
    status(unsafe { set(&mut *at.cast::<Descriptor>(), attribute, ty, count, elements) })
}

/// # Safety
/// There are as many elements of the type.
unsafe fn set(
    descriptor: &mut Descriptor,
    attribute: Attribute,
    ty: Type,
    count: i64,
    elements: *const c_void,
) -> Result<(), Refusal> {
    if descriptor.made.is_some() {
        return bad(format!("{attribute:?} is set after the descriptor was finalized"));
    }
    let (Some(size), Ok(count)) = (size(ty), usize::try_from(count)) else {
        return bad(format!("{attribute:?} with {count} elements of {ty:?}"));
    };
    let mut value = Value { ty, bytes: Vec::new(), descriptors: Vec::new() };
    if count > 0 {
        // SAFETY: as the caller says.
        value.bytes = unsafe { std::slice::from_raw_parts(elements.cast::<u8>(), count * size) }.to_vec();
    }
    if ty == Type::CUDNN_TYPE_BACKEND_DESCRIPTOR {
        for i in 0..count {
            // SAFETY: as the caller says, and the descriptors are alive.
            let of = unsafe { &**elements.cast::<*const Descriptor>().add(i) };
            match &of.made {
                Some(made) => value.descriptors.push(made.clone()),
                None => return bad(format!("{attribute:?} is set to a descriptor that is not finalized")),
            }
        }
    }
    descriptor.values.insert(attribute as u32, value);
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnBackendFinalize(at: cudnnBackendDescriptor_t) -> Status {
    fault!("cudnnBackendFinalize");
    // SAFETY: the descriptor is alive.
    let descriptor = unsafe { &mut *at.cast::<Descriptor>() };
    if descriptor.made.is_some() {
        return status(bad(format!("{:?} is finalized twice", descriptor.kind)));
    }
    status(check::finalize(descriptor).map(|made| descriptor.made = Some(made)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnBackendGetAttribute(
    at: cudnnBackendDescriptor_t,
    attribute: Attribute,
    ty: Type,
    room: i64,
    count: *mut i64,
    elements: *mut c_void,
) -> Status {
    fault!("cudnnBackendGetAttribute");
    // SAFETY: the descriptor is alive, and the caller gives places for as many elements.
    status(unsafe { get(&*at.cast::<Descriptor>(), attribute, ty, room, count, elements) })
}

/// # Safety
/// There are places for the count and for as many elements of the type.
unsafe fn get(
    descriptor: &Descriptor,
    attribute: Attribute,
    ty: Type,
    room: i64,
    count: *mut i64,
    elements: *mut c_void,
) -> Result<(), Refusal> {
    type A = Attribute;
    let room = usize::try_from(room).unwrap_or(0);
    // SAFETY: as the caller says.
    let written = unsafe {
        match (&descriptor.made, attribute, ty) {
            (
                Some(Made::Heuristics(engines)),
                A::CUDNN_ATTR_ENGINEHEUR_RESULTS,
                Type::CUDNN_TYPE_BACKEND_DESCRIPTOR,
            ) => {
                for (i, engine) in engines.iter().take(room).enumerate() {
                    let of = &mut **elements.cast::<*mut Descriptor>().add(i);
                    if of.kind != Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR {
                        return bad("the results of heuristics are engine configurations");
                    }
                    of.made = Some(Made::Configuration(engine.clone()));
                }
                if room == 0 { engines.len() } else { room.min(engines.len()) }
            }
            (
                Some(Made::Configuration(engine)),
                A::CUDNN_ATTR_ENGINECFG_ENGINE,
                Type::CUDNN_TYPE_BACKEND_DESCRIPTOR,
            ) => {
                if room > 0 {
                    (**elements.cast::<*mut Descriptor>()).made = Some(Made::Engine(engine.clone()));
                }
                1
            }
            (Some(Made::Engine(engine)), A::CUDNN_ATTR_ENGINE_GLOBAL_INDEX, Type::CUDNN_TYPE_INT64) => {
                *elements.cast::<i64>() = engine.index;
                1
            }
            (
                Some(Made::Engine(engine)),
                A::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                Type::CUDNN_TYPE_NUMERICAL_NOTE,
            ) => {
                let notes = &engine.notes[..engine.notes.len().min(room)];
                elements.cast::<u32>().copy_from_nonoverlapping(notes.as_ptr(), notes.len());
                engine.notes.len()
            }
            (
                Some(Made::Plan(engine)),
                A::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                Type::CUDNN_TYPE_CHAR,
            ) => {
                let text = engines::saved(engine);
                let len = text.len().min(room);
                if len > 0 {
                    elements.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), len);
                }
                if room == 0 { text.len() } else { len }
            }
            (
                Some(Made::Plan(engine)),
                A::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                Type::CUDNN_TYPE_INT64,
            ) => {
                *elements.cast::<i64>() = i64::try_from(engine.workspace).unwrap_or(i64::MAX);
                1
            }
            _ => return bad(format!("{attribute:?} of {ty:?} cannot be read from {:?}", descriptor.kind)),
        }
    };
    // SAFETY: as the caller says.
    unsafe { *count = i64::try_from(written).unwrap_or(i64::MAX) };
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnBackendExecute(
    handle: cudnnHandle_t,
    plan: cudnnBackendDescriptor_t,
    pack: cudnnBackendDescriptor_t,
) -> Status {
    fault!("cudnnBackendExecute");
    // SAFETY: all are alive.
    let (handle, plan, pack) = unsafe {
        (&*handle.cast::<Handle>(), &(*plan.cast::<Descriptor>()).made, &(*pack.cast::<Descriptor>()).made)
    };
    let (Some(Made::Plan(engine)), Some(Made::Pack(pack))) = (plan, pack) else {
        return status(bad("a plan is executed with a variant pack, both finalized"));
    };
    if handle.stream.is_null() {
        return status(bad("the handle has no stream"));
    }
    let execution = match Execution::new(engine.clone(), pack.clone()) {
        Ok(execution) => execution,
        Err(refusal) => return status(Err(refusal)),
    };
    // SAFETY: the stream is alive.
    match unsafe { crate::driver::enqueue(handle.stream.cast(), Work::Convolution(execution)) } {
        CUresult::CUDA_SUCCESS => OK,
        _ => Status::CUDNN_STATUS_EXECUTION_FAILED,
    }
}
