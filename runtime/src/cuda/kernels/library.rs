//! Groups of nodes that a library computes in one operation: products of cuBLASLt with transposes, bias and
//! activation; convolutions of cuDNN with an activation; and weight gradients of convolutions.
//!
//! A group has one product or convolution, its *anchor*. Nodes before and after the anchor join the group if nothing
//! else reads the values between them. A group with a bias or an activation keeps intermediate values in f32 and
//! rounds once; [`exact_rounding`](crate::cuda::CudaOptions::exact_rounding) disables such groups. Other groups give
//! the same bits as their separate nodes, except for the order of sums.

mod convolution;
mod filter_gradient;
mod product;

use super::Maker;
use crate::backend::{Candidates, GroupSite, result_types};
use crate::cuda::Shared;
use crate::cuda::compile::requested_by;
use crate::groups::unsupported_group;
use crate::kernel::{KernelError, Prepared, Result, Site};
use crate::room::Room;
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::views::expression::{Expression, Function, Term};
use ampc_ir::{Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// An activation in the epilogue of a library, computed in f32.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::cuda) enum Activation {
    /// max(x, 0).
    Relu,
    /// x · Φ(x), in the tanh approximation.
    GeluTanh,
}

/// The nodes of a graph or group, with the producer and readers of each value.
struct Nodes<'a> {
    sites: &'a [Site<'a>],
    /// The node that produces a value.
    makers: FxHashMap<Value, usize>,
    /// The readers of a value, one entry per operand; `None` for a reader that is not a candidate.
    readers: FxHashMap<Value, Vec<Option<usize>>>,
}

/// A group: the positions of its nodes, and its result.
struct Found {
    nodes: Vec<usize>,
    result: Value,
    /// True if values between the nodes stay unrounded.
    rounds_once: bool,
}

impl<'a> Nodes<'a> {
    fn new(sites: &'a [Site<'a>]) -> Nodes<'a> {
        let (mut makers, mut readers) = (FxHashMap::default(), FxHashMap::<_, Vec<_>>::default());
        for (at, site) in sites.iter().enumerate() {
            makers.extend(site.view.data().results().iter().flatten().map(|&value| (value, at)));
            for &value in site.view.data().operands().iter().flatten() {
                readers.entry(value).or_default().push(Some(at));
            }
        }
        Nodes { sites, makers, readers }
    }

    /// Adds a reader that is not one of the nodes.
    fn read_outside(&mut self, value: Value) {
        self.readers.entry(value).or_default().push(None);
    }

    /// The producer of operand `i` of a node, if its operator is in `kinds` and nothing else reads the value.
    fn maker(&self, at: usize, i: usize, kinds: &[OpKind]) -> Option<usize> {
        let value = self.sites[at].view.operand(i)?;
        let maker = self.makers.get(&value).copied()?;
        let is_single = matches!(self.readers.get(&value).map(Vec::as_slice), Some([Some(_)]));
        (is_single && kinds.contains(&self.sites[maker].kind())).then_some(maker)
    }

    /// The only result of a node.
    fn result(&self, at: usize) -> Option<Value> {
        match self.sites[at].view.data().results() {
            &[Some(value)] => Some(value),
            _ => None,
        }
    }

    /// The only reader of the only result of a node.
    fn reader(&self, at: usize) -> Option<usize> {
        match self.readers.get(&self.result(at)?)?[..] {
            [Some(reader)] => Some(reader),
            _ => None,
        }
    }
}

/// The group of an anchor. With an epilogue, values between its nodes may stay unrounded.
fn read(nodes: &Nodes<'_>, anchor: usize, with_epilogue: bool) -> Option<Found> {
    match nodes.sites[anchor].kind() {
        OpKind::MatMul | OpKind::Gemm => product::Group::read(nodes, anchor, with_epilogue).map(|g| g.found),
        OpKind::Conv => filter_gradient::Group::read(nodes, anchor)
            .map(|group| group.found)
            .or_else(|| with_epilogue.then(|| convolution::read(nodes, anchor))?),
        _ => None,
    }
}

/// Weight gradients of 16-bit images that have a kernel for channels last: the nodes that exchange batch and channels
/// of image and gradient, these two values, and the gradient of the filter.
pub(in crate::cuda) fn weight_gradients(
    shared: &Arc<Shared>,
    candidates: &Candidates<'_>,
) -> Vec<([Node; 2], [Value; 3])> {
    with_nodes(candidates, |nodes| {
        let of_conv = |at: usize| {
            let site = &nodes.sites[at];
            let is_conv = site.kind() == OpKind::Conv;
            let group = is_conv.then(|| filter_gradient::Group::read(nodes, at))??;
            group.with_channels_last(&Maker { shared, site })
        };
        (0..nodes.sites.len()).filter_map(of_conv).collect()
    })
}

/// Calls `work` with the candidates and their readers.
fn with_nodes<R>(candidates: &Candidates<'_>, work: impl FnOnce(&Nodes<'_>) -> R) -> R {
    let Candidates { module, graph, nodes: of_graph, channels_last } = *candidates;
    let results: Vec<_> = of_graph.iter().map(|&node| result_types(module, node)).collect();
    let sites = of_graph.iter().zip(&results).filter_map(|(&node, results)| {
        let (view, channels_last) = (NodeView::new(module, node)?, channels_last.contains(&node));
        Some(Site { view, source: node, results, channels_last, room: Room::of(0) })
    });
    let sites: Vec<Site<'_>> = sites.collect();
    let mut nodes = Nodes::new(&sites);
    let among: FxHashSet<Node> = sites.iter().map(|site| site.view.node).collect();
    for node in module.nodes(graph).filter(|node| !among.contains(node)) {
        module.node(node).operands().iter().flatten().for_each(|&value| nodes.read_outside(value));
    }
    let data = module.graph(graph);
    data.outputs().iter().for_each(|output| nodes.read_outside(output.value));
    data.states.iter().for_each(|&(_, next)| nodes.read_outside(next));
    work(&nodes)
}

/// The groups of the candidates that have a kernel.
pub(super) fn join(shared: &Arc<Shared>, candidates: &Candidates<'_>) -> Vec<Vec<Node>> {
    with_nodes(candidates, |nodes| joined(shared, nodes))
}

fn joined(shared: &Arc<Shared>, nodes: &Nodes<'_>) -> Vec<Vec<Node>> {
    let sites = nodes.sites;
    let (mut groups, mut taken) = (Vec::new(), FxHashSet::default());
    for anchor in 0..sites.len() {
        for with_epilogue in [true, false] {
            let Some(Found { nodes: group, result, rounds_once }) = read(nodes, anchor, with_epilogue) else {
                continue;
            };
            if group.len() < 2
                || group.iter().any(|at| taken.contains(at))
                || (rounds_once && shared.exact_rounding)
            {
                continue;
            }
            let (members, operands) = interface(sites, &group);
            let site = GroupSite { sites: &members, operands: &operands, results: &[result], carries: &[] };
            // The sources are compiled only when the group is prepared for a plan.
            let (prepared, _) = requested_by(|| prepare(shared, &site));
            if matches!(prepared, Some(Ok(_))) {
                taken.extend(group.iter().copied());
                groups.push(group.iter().map(|&at| sites[at].view.node).collect());
                break;
            }
        }
    }
    groups
}

/// The sites of nodes, and the values that they read from outside.
fn interface<'a>(sites: &'a [Site<'a>], group: &[usize]) -> (Vec<Site<'a>>, Vec<Value>) {
    let members: Vec<Site<'_>> =
        group.iter().map(|&at| sites[at].with(sites[at].view, sites[at].results)).collect();
    let data = || members.iter().map(|site| site.view.data());
    let made: FxHashSet<Value> = data().flat_map(|data| data.results()).flatten().copied().collect();
    let read = data().flat_map(|data| data.operands()).flatten();
    let operands = read.copied().filter(|value| !made.contains(value)).collect();
    (members, operands)
}

/// The kernel of a group; `None` if the group has no product and no convolution.
pub(super) fn prepare(shared: &Arc<Shared>, group: &GroupSite<'_>) -> Option<Result<Prepared>> {
    let is_anchor = |site: &Site<'_>| matches!(site.kind(), OpKind::MatMul | OpKind::Gemm | OpKind::Conv);
    let anchor = group.sites.iter().position(is_anchor)?;
    Some(prepared(shared, group, anchor))
}

fn prepared(shared: &Arc<Shared>, group: &GroupSite<'_>, anchor: usize) -> Result<Prepared> {
    let mut nodes = Nodes::new(group.sites);
    group.results.iter().for_each(|&value| nodes.read_outside(value));
    let maker = Maker { shared, site: &group.sites[anchor] };
    let is_whole = |found: &Found| {
        found.nodes.len() == group.sites.len()
            && group.results == [found.result]
            && !(found.rounds_once && shared.exact_rounding)
    };
    if maker.site.kind() != OpKind::Conv {
        let product = product::Group::read(&nodes, anchor, true).filter(|found| is_whole(&found.found));
        return product.ok_or_else(unsupported_group)?.prepare(&maker, group);
    }
    if let Some(gradient) = filter_gradient::Group::read(&nodes, anchor) {
        let gradient = Some(gradient).filter(|found| is_whole(&found.found));
        return gradient.ok_or_else(unsupported_group)?.prepare(&maker, group);
    }
    convolution::read(&nodes, anchor).filter(is_whole).ok_or_else(unsupported_group)?;
    convolution::prepare(&maker, group)
}

/// The index of the group's operand that is a value.
fn operand_of(group: &GroupSite<'_>, value: Value) -> Result<usize> {
    group.operand(value).ok_or_else(|| KernelError::unsupported("groups of other operands"))
}

/// The activation that a node with one operand computes.
fn activation_of(site: &Site<'_>) -> Option<Activation> {
    if site.kind() == OpKind::Relu {
        return Some(Activation::Relu);
    }
    match Expression::read(&site.view)?.terms() {
        [Term::Operand(0), Term::Apply(Function::GeluTanh, 0)] => Some(Activation::GeluTanh),
        _ => None,
    }
}
