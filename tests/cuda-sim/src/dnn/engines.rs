//! Engines of heuristics. Before one that rounds as it should come engines that convert inputs down, transform, add up in
//! any order, cannot be finalized, or take too much workspace; the first three compute wrong results.

use super::{Computed, Descriptor, Engine, Graph, Made, Operation, Refusal, bad, unsupported};
use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as A, cudnnBackendAttributeType_t as Type, cudnnBackendHeurMode_t as Mode,
    cudnnDataType_t as DataType, cudnnPointwiseMode_t as Pointwise,
};
use std::sync::{Arc, Mutex, PoisonError};

/// Numerical notes.
const TENSOR_CORE: u32 = 0;
const DOWN_CONVERTS: u32 = 1;
const REDUCES_LOW: u32 = 2;
const NONDETERMINISTIC: u32 = 4;
const WINOGRAD: u32 = 5;

/// Engines in the order in which heuristics prefer them.
pub(super) fn heuristics(of: &Descriptor) -> Result<Made, Refusal> {
    let graph = match of.made(A::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)? {
        [Made::Graph(graph)] => graph.clone(),
        _ => return bad("heuristics without an operation graph"),
    };
    let mode = of.word(A::CUDNN_ATTR_ENGINEHEUR_MODE, Type::CUDNN_TYPE_HEUR_MODE)?;
    if graph.operations.iter().any(|operation| matches!(**operation, Operation::Product { .. })) {
        return attention(&graph, mode);
    }
    let Some(Operation::Convolution { computed, window, tensors }) = graph.operations.first().map(|o| &**o)
    else {
        return bad("heuristics for a graph without a convolution");
    };
    let [image, filter, _] = tensors;
    let is_f32 = graph.operations[0].tensors().0[0].dtype == DataType::CUDNN_DATA_FLOAT as u32;
    let is_fused = graph.operations.len() > 1;
    let Some((_, result)) = graph.operations.last().map(|operation| operation.tensors()) else {
        return bad("heuristics for a graph without operations");
    };
    let adds = match computed {
        Computed::Grid => true,
        // cuDNN 9.28 adds to 16-bit images with channels behind spatial dims. Here it depends on the strides too, so that
        // tests meet convolutions without such an engine.
        Computed::Image => !is_f32 && image.strides[1] == 1 && window.strides.iter().any(|&n| n > 1),
        Computed::Filter => false,
    };
    if is_fused && !adds {
        return unsupported("no engine adds to the convolution");
    }
    let has_relu = graph.operations.iter().any(|operation| match &**operation {
        Operation::Pointwise { mode, .. } => *mode == Pointwise::CUDNN_POINTWISE_RELU_FWD as u32,
        Operation::Convolution { .. }
        | Operation::Product { .. }
        | Operation::Reduction { .. }
        | Operation::View { .. } => false,
    });
    // As in cuDNN 9.28. Here it depends on dilations too, so that tests meet both.
    if has_relu && graph.operations.len() < 3 {
        return unsupported("no engine has a ReLU without an addition");
    }
    if has_relu && is_f32 && window.dilations.iter().any(|&n| n > 1) {
        return unsupported("no engine for f32 has a ReLU behind a dilated convolution");
    }
    let steps_by_one = window.strides.iter().all(|&stride| stride == 1);
    if result.dtype != graph.operations[0].tensors().0[0].dtype && !steps_by_one {
        return unsupported("engines for other strides round to the type of the operands");
    }
    let engine = |index, notes: &[u32], workspace| {
        let error = match notes {
            [TENSOR_CORE] if is_f32 => 1.0003,
            _ if notes.iter().all(|&note| note == TENSOR_CORE) => 1.0,
            _ => 1.01,
        };
        let notes = notes.to_vec();
        Arc::new(Engine { graph: graph.clone(), index, notes, workspace, error, finalizes: true })
    };
    let broken = |index| {
        let graph = graph.clone();
        Arc::new(Engine { graph, index, notes: Vec::new(), workspace: 0, error: 1.01, finalizes: false })
    };
    let sound: &[u32] = if is_f32 { &[] } else { &[TENSOR_CORE] };
    let has_groups = image.dims[1] != filter.dims[1];
    let mut engines = vec![
        if is_f32 {
            engine(0, &[TENSOR_CORE, DOWN_CONVERTS], 64)
        } else {
            engine(1, &[TENSOR_CORE, REDUCES_LOW], 64)
        },
        engine(2, &[WINOGRAD], 64),
        engine(3, &[NONDETERMINISTIC], 0),
        // In f32, an engine for TF32.
        engine(8, &[TENSOR_CORE], 1 << if is_f32 { 5 } else { 40 }),
        broken(4),
        engine(5, sound, 1 << 40),
    ];
    if mode == Mode::CUDNN_HEUR_MODE_FALLBACK as u32 {
        engines = vec![engine(3, &[NONDETERMINISTIC], 0), engine(9, &[], 512)];
    } else if mode != Mode::CUDNN_HEUR_MODE_A as u32 {
        return unsupported("heuristics of another mode");
    } else if !has_groups {
        engines.push(engine(6, sound, 1000));
    }
    Ok(Made::Heuristics(engines))
}

/// Engines of an attention.
fn attention(graph: &Arc<Graph>, mode: u32) -> Result<Made, Refusal> {
    if mode != Mode::CUDNN_HEUR_MODE_A as u32 {
        return unsupported("heuristics of another mode");
    }
    let workspace = super::attention::check(graph)?;
    let engine = |index, notes: &[u32], error, finalizes| {
        let notes = notes.to_vec();
        Arc::new(Engine { graph: graph.clone(), index, notes, workspace, error, finalizes })
    };
    Ok(Made::Heuristics(vec![
        engine(0, &[TENSOR_CORE, NONDETERMINISTIC], 1.1, true),
        engine(1, &[TENSOR_CORE], 1.1, false),
        engine(2, &[TENSOR_CORE], 1.0, true),
        engine(3, &[TENSOR_CORE], 1.0, true),
    ]))
}

/// The plans that were saved in this process, by their numbers.
static SAVED: Mutex<Vec<Arc<Engine>>> = Mutex::new(Vec::new());

/// A plan as text. Another process refuses it, as cuDNN refuses the text of another device.
pub(super) fn saved(engine: &Arc<Engine>) -> Vec<u8> {
    let mut saved = SAVED.lock().unwrap_or_else(PoisonError::into_inner);
    let at = saved.iter().position(|known| Arc::ptr_eq(known, engine)).unwrap_or(saved.len());
    if at == saved.len() {
        saved.push(engine.clone());
    }
    format!("{{\"process\": {}, \"plan\": {at}}}", std::process::id()).into_bytes()
}

fn restored(text: &[u8]) -> Option<Arc<Engine>> {
    let text = std::str::from_utf8(text).ok()?;
    let plan = text.strip_prefix(&format!("{{\"process\": {}, \"plan\": ", std::process::id()))?;
    let at: usize = plan.strip_suffix('}')?.parse().ok()?;
    SAVED.lock().unwrap_or_else(PoisonError::into_inner).get(at).cloned()
}

/// The plan of an engine configuration, if its engine can be finalized, or of a text.
pub(super) fn plan(of: &Descriptor) -> Result<Made, Refusal> {
    of.value(A::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, Type::CUDNN_TYPE_HANDLE)?;
    let name = A::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION;
    if let Ok(text) = of.value(name, Type::CUDNN_TYPE_CHAR) {
        return match restored(&text.bytes) {
            Some(engine) => Ok(Made::Plan(engine)),
            None => unsupported("the text of a plan of another process"),
        };
    }
    match of.made(A::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)? {
        [Made::Configuration(engine)] if engine.finalizes => Ok(Made::Plan(engine.clone())),
        [Made::Configuration(engine)] => Err(Refusal(
            cudarc::cudnn::sys::cudnnStatus_t::CUDNN_STATUS_INTERNAL_ERROR,
            format!("engine {} cannot be compiled", engine.index),
        )),
        _ => bad("a plan without an engine configuration"),
    }
}
