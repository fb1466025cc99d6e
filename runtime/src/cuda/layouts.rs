//! Chooses the nodes that compute with channels last.
//!
//! On tensor cores, cuDNN's 16-bit convolutions need channels last. With channels first, cuDNN transposes the tensors
//! internally, or uses engines without tensor cores. The choice is a minimum cut whose costs are bytes moved. Nodes
//! with channels last are on the source side.
//!
//! | edge | cost | cut if |
//! |---|---|---|
//! | source → convolution or weight gradient | transposes inside cuDNN | the node has channels first |
//! | node → sink | transpose of a filter that is not constant, or of its gradient | the node has channels last |
//! | producer → `a` | transpose of an image | the producer has channels last, and a reader has channels first |
//! | `b` → producer | transpose of an image | a reader has channels last, and the producer has channels first |
//!
//! For each image, `a` has edges of infinite capacity to all readers, and all readers have such edges to `b`.

mod max_flow;

use self::max_flow::{Network, SINK, SOURCE};
use super::Shared;
use super::kernels::Maker;
use super::kernels::{convolution, library};
use crate::backend::{Candidates, Image, Images, Site, result_types};
use crate::layouts::{Role, dims_of, is_same_in_both};
use crate::plan::live_nodes;
use crate::room::Room;
use ampc_ir::module::Def;
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::{Module, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// The bytes that a device moves in the time of a launch: 2 µs at 2 TB/s.
const LAUNCH: u64 = 4 << 20;

/// Tensor cores read the channels of a 16-bit tensor in multiples of this number.
const CHANNELS: i64 = 8;

/// The nodes that compute with channels last.
pub(super) fn choose(shared: &Arc<Shared>, images: &Images<'_>) -> Vec<Node> {
    let module = images.module;
    let is_low = |image: &Image| {
        let input = module.node(image.node).operand(0);
        input.and_then(|value| module.value(value).ty.dtype()).is_some_and(|dtype| dtype.is_low())
    };
    if !images.nodes.iter().any(|image| is_convolution(module, image.node) && is_low(image)) {
        return Vec::new();
    }
    let mut choice =
        Choice { network: Network::new(2), images: images.nodes, vertices: FxHashMap::default() };
    for (exchanges, [image, grid, filter]) in weight_gradients(shared, images) {
        let vertex = choice.network.vertex();
        choice.vertices.extend(exchanges.map(|node| (node, vertex)));
        let [first, last] =
            [[image, grid, filter].iter().map(|&value| moved(module, value)).sum(), moved(module, filter)];
        choice.network.edge(SOURCE, vertex, first);
        choice.network.edge(vertex, SINK, last);
    }
    for image in images.nodes {
        let Some([first, last]) = costs(shared, module, image) else { continue };
        let vertex = choice.network.vertex();
        choice.vertices.insert(image.node, vertex);
        choice.network.edge(SOURCE, vertex, first);
        choice.network.edge(vertex, SINK, last);
    }
    choice.add_values(images);
    let on_side_of_source = choice.network.cut();
    let mut chosen: Vec<Node> = Vec::new();
    for image in images.nodes {
        if choice.vertices.get(&image.node).is_some_and(|&vertex| on_side_of_source[vertex]) {
            chosen.push(image.node);
        }
    }
    chosen
}

/// The weight gradients whose two transposes are both image nodes.
fn weight_gradients(shared: &Arc<Shared>, images: &Images<'_>) -> Vec<([Node; 2], [Value; 3])> {
    let Images { module, graph, nodes } = *images;
    let among: FxHashSet<Node> = nodes.iter().map(|image| image.node).collect();
    let all: Vec<Node> = live_nodes(module, graph);
    let channels_last = FxHashSet::default();
    let candidates = Candidates { module, graph, nodes: &all, channels_last: &channels_last };
    let mut found = library::weight_gradients(shared, &candidates);
    found.retain(|(exchanges, _)| exchanges.iter().all(|node| among.contains(node)));
    found
}

fn is_convolution(module: &Module, node: Node) -> bool {
    module.node(node).schema().is_some_and(|s| matches!(s.kind, OpKind::Conv | OpKind::ConvTranspose))
}

/// True if a value is a transposed tensor or a cast of a transposed tensor, as the filter of a weight gradient is.
fn is_transposed(module: &Module, value: Value) -> bool {
    let made_by = |value: Value| {
        let (node, _) = module.producer(value)?;
        Some((module.node(node).schema()?.kind, module.node(node).operand(0)?))
    };
    match made_by(value) {
        Some((OpKind::Transpose, _)) => true,
        Some((OpKind::Cast, of)) => made_by(of).is_some_and(|(kind, _)| kind == OpKind::Transpose),
        _ => false,
    }
}

/// The cost of a transpose: the bytes read and written, and the launch.
fn moved(module: &Module, value: Value) -> u64 {
    let ty = &module.value(value).ty;
    let bytes = ty.dtype().zip(dims_of(module, value)).and_then(|(dtype, dims)| dtype.tensor_bytes(&dims));
    bytes.unwrap_or(0).saturating_mul(2).saturating_add(LAUNCH)
}

/// The costs of a node with channels first and last; `None` if it has no kernel for channels last.
fn costs(shared: &Arc<Shared>, module: &Module, image: &Image) -> Option<[u64; 2]> {
    if image.roles.operands.contains(&Role::Back) {
        return None;
    }
    if !is_convolution(module, image.node) {
        return Some([0, 0]);
    }
    let view = NodeView::new(module, image.node)?;
    let results = result_types(module, image.node);
    let site = Site { view, source: image.node, results: &results, channels_last: false, room: Room::of(0) };
    let (convolution, plan) = convolution::with_channels_last(&Maker { shared, site: &site }).ok()??;
    let filter = view.operand(1)?;
    if is_transposed(module, filter) {
        return None;
    }
    let is_constant = matches!(module.value(filter).def, Def::Constant(_));
    let last = if is_constant { 0 } else { moved(module, filter) };
    let channels = [convolution.filter[0], convolution.filter[1]];
    if !plan.has_tensor_cores() && channels.iter().any(|channels| channels % CHANNELS != 0) {
        return Some([0, last]);
    }
    let tensors = [view.operand(0)?, filter, view.data().result(0)?];
    Some([tensors.iter().map(|&value| moved(module, value)).sum(), last])
}

struct Choice<'a> {
    network: Network,
    images: &'a [Image],
    vertices: FxHashMap<Node, usize>,
}

impl Choice<'_> {
    /// Adds the transposes of the values that nodes produce or read as images.
    fn add_values(&mut self, images: &Images<'_>) {
        let module = images.module;
        let mut values: Vec<Value> = Vec::new();
        let mut readers: FxHashMap<Value, Vec<usize>> = FxHashMap::default();
        let by_node: FxHashMap<Node, &Image> = self.images.iter().map(|image| (image.node, image)).collect();
        let mut makers: FxHashMap<Value, usize> = FxHashMap::default();
        for node in module.nodes(images.graph) {
            let vertex = self.vertices.get(&node).copied();
            let roles = by_node.get(&node).map(|image| &image.roles).filter(|_| vertex.is_some());
            let data = module.node(node);
            for (slot, value) in data.operands().iter().enumerate() {
                let Some(value) = *value else { continue };
                let is_image =
                    roles.is_some_and(|roles| matches!(roles.operands[slot], Role::Image | Role::Back));
                // The copy of a filter has its own cost.
                if is_image && slot == 1 && is_convolution(module, node) {
                    continue;
                }
                let reads_dims =
                    data.schema().is_some_and(|s| matches!(s.kind, OpKind::Shape | OpKind::Size));
                let reader = match (is_image, vertex) {
                    (true, Some(vertex)) => vertex,
                    _ if reads_dims => continue,
                    _ => SINK,
                };
                readers.entry(value).or_default().push(reader);
                if reader != SINK || makers.contains_key(&value) {
                    values.push(value);
                }
            }
            if let (Some(vertex), Some(roles)) = (vertex, roles) {
                let made =
                    data.results().iter().zip(&roles.results).filter(|(_, role)| **role == Role::Image);
                makers.extend(made.filter_map(|(value, _)| Some(((*value)?, vertex))));
            }
        }
        for output in module.graph(images.graph).outputs() {
            readers.entry(output.value).or_default().push(SINK);
            values.push(output.value);
        }
        values.sort_unstable();
        values.dedup();
        for value in values {
            let Some(dims) = dims_of(module, value).filter(|dims| dims.len() > 2) else { continue };
            if is_same_in_both(&dims) {
                continue;
            }
            let (maker, readers) = (makers.get(&value).copied().unwrap_or(SINK), &readers[&value]);
            self.add_value(maker, readers, moved(module, value));
        }
    }

    fn add_value(&mut self, maker: usize, readers: &[usize], cost: u64) {
        let network = &mut self.network;
        if maker != SINK {
            let a = network.vertex();
            network.edge(maker, a, cost);
            readers.iter().for_each(|&reader| network.edge(a, reader, u64::MAX));
        }
        let b = network.vertex();
        network.edge(b, maker, cost);
        readers
            .iter()
            .filter(|&&reader| reader != SINK)
            .for_each(|&reader| network.edge(reader, b, u64::MAX));
    }
}
