//! The part of a report about constants: their bytes before and after, and each converted constant.

use super::{Before, precision_name};
use crate::options::RewriteOptions;
use ampc_ir::op::OpKind;
use ampc_ir::tensor::Place;
use ampc_ir::views::{NodeView, constant_node_data};
use ampc_ir::{Module, Payload, TensorData};
use ampc_passes::flow;
use ampc_passes::guard::ConstantStats;
use rustc_hash::FxHashSet;
use serde::Serialize;
use std::sync::Arc;

/// Constants of the main graph.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Constants {
    /// Bytes before.
    pub bytes_before: u64,
    /// Bytes after.
    pub bytes_after: u64,
    /// Each converted constant.
    pub converted: Vec<ConstantReport>,
}

/// A converted constant.
#[derive(Clone, Debug, Serialize)]
pub struct ConstantReport {
    /// Its name.
    pub name: String,
    /// From this element type.
    pub from: String,
    /// To this one.
    pub to: String,
    /// Number of values.
    pub count: u64,
    /// True if the original is still there because it is read as well.
    pub duplicated: bool,
    /// The values that the conversion loses, if they were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
}

/// Values of a constant that the conversion loses.
#[derive(Clone, Debug, Serialize)]
pub struct Loss {
    /// Finite values beyond the range.
    pub overflow: u64,
    /// Values other than 0 that become 0.
    pub flushed: u64,
    /// Least finite value.
    pub min: f32,
    /// Greatest finite value.
    pub max: f32,
}

/// The constants of the main graph and all bodies: name and payload of initializers and Constant nodes.
pub(super) fn constants(module: &Module) -> Vec<(String, Arc<TensorData>)> {
    let name = |v| ampc_ir::verify::name_of(module, v);
    let graphs = flow::graphs(module);
    let mut found: Vec<(String, Arc<TensorData>)> = graphs
        .iter()
        .flat_map(|&graph| module.graph(graph).constants())
        .filter_map(|&v| Some((name(v), module.constant(v).and_then(Payload::dense)?.clone())))
        .collect();
    for node in flow::nodes(module) {
        let Some(view) = NodeView::new(module, node).filter(|v| v.kind() == OpKind::Constant) else {
            continue;
        };
        if let (Some(data), Some(value)) = (constant_node_data(&view), module.node(node).result(0)) {
            found.push((name(value), data));
        }
    }
    found
}

/// The bytes of all constants.
pub(super) fn constant_bytes(module: &Module) -> u64 {
    constants(module).iter().map(|(_, data)| data.byte_len()).sum()
}

/// The conversions of the constants.
pub(super) fn constants_report(module: &Module, before: &Before, options: &RewriteOptions) -> Constants {
    let all = constants(module);
    let place = |data: &TensorData| (data.storage().place(), data.dims().to_vec());
    let originals: FxHashSet<(Place, Vec<u64>)> =
        all.iter().filter(|(_, data)| data.pending().is_empty()).map(|(_, data)| place(data)).collect();
    let original = |data: &TensorData| originals.contains(&place(data));
    let converted = all
        .iter()
        .filter(|(_, data)| !data.pending().is_empty())
        .map(|(name, data)| {
            let stored =
                TensorData::new(data.stored_dtype(), data.dims().iter().copied(), data.storage().clone());
            let loss = stored
                .ok()
                .filter(|_| options.constant_statistics)
                .and_then(|stored| ConstantStats::of(&stored, data.dtype()).ok())
                .map(|s| Loss { overflow: s.overflow, flushed: s.underflow, min: s.min, max: s.max });
            ConstantReport {
                name: name.clone(),
                from: precision_name(data.stored_dtype()).into_owned(),
                to: precision_name(data.dtype()).into_owned(),
                count: data.element_count(),
                duplicated: options.constant_statistics && original(data),
                loss,
            }
        })
        .collect();
    Constants {
        bytes_before: before.constant_bytes,
        bytes_after: all.iter().map(|(_, d)| d.byte_len()).sum(),
        converted,
    }
}
