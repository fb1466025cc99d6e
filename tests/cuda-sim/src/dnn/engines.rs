//! Engines of heuristics. Before one that rounds as it should come engines that convert inputs down, transform, add up in
//! any order, cannot be finalized, or take too much workspace; the first three compute wrong results.

use super::{Computed, Descriptor, Engine, Graph, Made, Operation, Refusal, bad, unsupported};
use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as A, cudnnBackendAttributeType_t as Type, cudnnBackendHeurMode_t as Mode,
    cudnnDataType_t as DataType,
};
use std::sync::Arc;

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
    if let Some(Operation::Product { .. }) = graph.operations.first().map(|o| &**o) {
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
    let steps_by_one = window.strides.iter().all(|&stride| stride == 1);
    if result.dtype != graph.operations[0].tensors().0[0].dtype && !steps_by_one {
        return unsupported("engines for other strides round to the type of the operands");
    }
    let engine = |index, notes: &[u32], workspace| {
        let error = if notes.iter().all(|&note| note == TENSOR_CORE && !is_f32) { 1.0 } else { 1.01 };
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
    super::attention::check(graph)?;
    let engine = |index, notes: &[u32], error, finalizes| {
        let notes = notes.to_vec();
        Arc::new(Engine { graph: graph.clone(), index, notes, workspace: 256, error, finalizes })
    };
    Ok(Made::Heuristics(vec![
        engine(0, &[TENSOR_CORE, NONDETERMINISTIC], 1.1, true),
        engine(1, &[TENSOR_CORE], 1.1, false),
        engine(2, &[TENSOR_CORE], 1.0, true),
    ]))
}

/// The plan of an engine configuration, if its engine can be finalized.
pub(super) fn plan(of: &Descriptor) -> Result<Made, Refusal> {
    of.value(A::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, Type::CUDNN_TYPE_HANDLE)?;
    match of.made(A::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)? {
        [Made::Configuration(engine)] if engine.finalizes => Ok(Made::Plan(engine.clone())),
        [Made::Configuration(engine)] => unsupported(format!("engine {} does not finalize", engine.index)),
        _ => bad("a plan without an engine configuration"),
    }
}
