//! Partitions the nodes of a graph into groups, each with a kernel: nodes that depend only on constants and dims are
//! folded, the backend joins nodes, and the kernels declare their requirements.
//!
//! A backend may join any nodes whose kernels are ready before the graph runs, as long as no outside node must run
//! between two nodes of a group. With `|` between groups, from
//!
//! ```text
//! %p = MatMul(%x, %w)      %s = Add(%p, %b)      %n = Neg(%x)      %r = Relu(%s)
//! ```
//!
//! it may make `MatMul Add Relu | Neg`, although Neg stands in the middle of the program: no value of the group
//! reaches Neg and returns. Groups are ordered by their last nodes, as far as dependencies permit.
//!
//! `choice.rs` chooses among the groups of the backend by the size of the arena, `units.rs` prepares their kernels, and
//! `order.rs` orders them.

mod choice;
mod order;
mod units;

use super::bind::Where;
use super::error::ExecuteError;
use super::inlined::Inlined;
use super::layouts::Layouts;
use super::observe::Watch;
use super::walk;
use crate::backend::{Backend, result_types};
use crate::device::Device;
use crate::kernel::{KernelError, Prepared, Site};
use crate::plan::{Group, Needs, live_nodes};
use crate::room::Room;
use ampc_ir::infer::Facts;
use ampc_ir::module::Def;
use ampc_ir::views::NodeView;
use ampc_ir::{GraphId, Module, Node, Op, Type, Value};
use rustc_hash::FxHashSet;
use smallvec::smallvec;
use std::sync::Arc;

/// The inputs of partitioning that all graphs of a module share.
#[derive(Clone, Copy)]
pub(super) struct Partitioner<'a> {
    pub(super) backend: &'a dyn Backend,
    pub(super) module: &'a Module,
    pub(super) facts: &'a Facts,
    pub(super) room: Room,
    /// The calls that were inlined into the module.
    pub(super) inlined: Option<&'a Inlined>,
    /// The values that stay visible when the backend joins nodes.
    pub(super) watch: &'a Watch,
    pub(super) layouts: &'a Layouts,
    /// The errors of nodes that end the partitioning.
    pub(super) rejects: Rejects,
}

/// Selects the errors of nodes that run in any case that partitioning reports. Other errors are reported when the node
/// runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rejects {
    /// No error.
    Nothing,
    /// The backend has no kernel for the node.
    Unsupported,
    /// Any error of the node.
    Any,
}

/// A group, and its kernel if the kernel is ready before the graph runs.
#[derive(Clone)]
pub(super) struct Made {
    pub(super) group: Group,
    pub(super) kernel: Option<Arc<Prepared>>,
}

/// An error of the nodes of a graph.
pub(super) enum Failed {
    /// A node is invalid, or the device fails.
    Node { node: Node, error: KernelError },
    /// These nodes run in any case and have no kernels.
    Unsupported { backend: &'static str, nodes: Vec<(Node, String)> },
}

/// Folding of results that depend only on constants and dims.
pub(super) trait Fold {
    /// True if the node may be folded: its operands are known, or it reads only dims.
    fn may_fold(&self, node: Node) -> bool;

    /// Computes a node if it can be folded, and returns true if the node need not run. The kernel is that of the host
    /// backend, if there is one.
    ///
    /// # Errors
    /// If the device fails.
    fn fold(&mut self, node: Node, prepared: &Prepared) -> Result<bool, KernelError>;
}

impl Rejects {
    /// Returns the weakest value that reports an error of a node.
    fn of(error: &KernelError) -> Option<Rejects> {
        match error {
            KernelError::NotYet => None,
            KernelError::Unsupported(_) => Some(Rejects::Unsupported),
            _ => Some(Rejects::Any),
        }
    }
}

impl From<Failed> for ExecuteError {
    fn from(failed: Failed) -> ExecuteError {
        match failed {
            Failed::Node { node, error } => ExecuteError::of_kernel(node, error),
            Failed::Unsupported { backend, nodes } => ExecuteError::Unsupported { backend, nodes },
        }
    }
}

impl Partitioner<'_> {
    /// The groups of a graph, in execution order, without the folded nodes.
    ///
    /// # Errors
    /// If a node is invalid, nodes have no kernels, or the device fails.
    pub(super) fn groups(&self, graph: GraphId, folding: &mut impl Fold) -> Result<Vec<Made>, Failed> {
        let place = Where::of(self.module, graph);
        let mut made = Vec::new();
        let mut folded: FxHashSet<Value> = FxHashSet::default();
        let mut unsupported = Vec::new();
        for node in live_nodes(self.module, graph) {
            let failed = |error| Failed::Node { node, error };
            let results = || self.module.node(node).results().iter().flatten();
            let may_fold = !self.layouts.in_each_run.contains(&node);
            if may_fold && self.folds_on_host(node, &place, folding).map_err(failed)? {
                folded.extend(results());
                continue;
            }
            let (needs, prepared) = match self.needs_of(node, &place) {
                Err(KernelError::Unsupported(what)) => {
                    unsupported.push((node, what));
                    continue;
                }
                made => made.map_err(failed)?,
            };
            if let Some(prepared) =
                prepared.as_ref().filter(|_| may_fold && !place.in_branch && self.backend.host().is_none())
                && folding.fold(node, prepared).map_err(failed)?
            {
                folded.extend(results());
                continue;
            }
            let group = Group { nodes: smallvec![node], needs, interface: None };
            made.push(Made { group, kernel: prepared.map(Arc::new) });
        }
        if !unsupported.is_empty() {
            return Err(Failed::Unsupported { backend: self.backend.name(), nodes: unsupported });
        }
        let is_grouped = self.backend.has_groups() && *self.watch != Watch::All;
        Ok(if is_grouped { self.joined_within(graph, made, &folded) } else { made })
    }

    /// Folds a node with the kernel of the host backend, if both exist.
    ///
    /// # Errors
    /// If the device fails.
    fn folds_on_host(&self, node: Node, place: &Where, folding: &mut impl Fold) -> Result<bool, KernelError> {
        let Some(host) = self.backend.host() else { return Ok(false) };
        if place.in_branch
            || place.in_function
            || walk::is_nested(self.module, node)
            || !folding.may_fold(node)
        {
            return Ok(false);
        }
        match self.prepare_on(host, node) {
            Some(Ok(prepared)) => folding.fold(node, &prepared),
            // The backend itself handles the node.
            Some(Err(_)) | None => Ok(false),
        }
    }

    /// The planning requirements of a node, and its kernel if it can be prepared before the graph runs.
    ///
    /// # Errors
    /// If the node runs in any case, and is invalid or has no kernel.
    fn needs_of(&self, node: Node, place: &Where) -> Result<(Needs, Option<Prepared>), KernelError> {
        if walk::is_nested(self.module, node) {
            return Ok((Needs { on_heap: true, is_barrier: true, ..Needs::default() }, None));
        }
        // Calls differ in the types of their operands, and may omit operands.
        let prepared = if place.in_function { None } else { self.prepare_on(self.backend, node) };
        let runs = !place.in_body && !place.in_function;
        let prepared = match prepared {
            Some(Ok(prepared)) => Some(prepared),
            Some(Err(error)) if runs && Rejects::of(&error).is_some_and(|least| self.rejects >= least) => {
                return Err(error);
            }
            None if runs && self.rejects >= Rejects::Unsupported => {
                self.check_kernel(node)?;
                None
            }
            Some(Err(_)) | None => None,
        };
        let late = || Needs { is_barrier: true, ..Needs::default() };
        Ok((prepared.as_ref().map_or_else(late, |prepared| prepared.needs.clone()), prepared))
    }

    /// Checks that the backend has a kernel for the operator of a node.
    ///
    /// # Errors
    /// If the backend has none.
    fn check_kernel(&self, node: Node) -> Result<(), KernelError> {
        match self.module.node(node).op {
            Op::Schema(schema) if !self.backend.has_own_kernel(schema.kind) => {
                Err(KernelError::unsupported(schema.name))
            }
            _ => Ok(()),
        }
    }

    /// The kernel of a node or its error, if everything that the kernel depends on is known before the graph runs.
    fn prepare_on(&self, backend: &dyn Backend, node: Node) -> Option<Result<Prepared, KernelError>> {
        let view = NodeView::with_facts(self.module, node, self.facts)?;
        let results = result_types(self.module, node);
        // Results may have more known types once the operands are there.
        let is_known = |ty: &Type| match ty {
            Type::Unknown => false,
            Type::Tensor(tensor) => tensor.shape.to_known().is_some(),
            _ => true,
        };
        if !results.iter().flatten().all(is_known) {
            return None;
        }
        // Kernels multiply dims. If the product of dims overflows, the error is reported when the node runs, if it
        // ever does.
        let operands = self.module.node(node).formal_operands().iter().flatten();
        let fits = |ty: &Type| walk::span(ty).is_some_and(|bytes| usize::try_from(bytes).is_ok());
        if !results.iter().flatten().chain(operands.map(|&v| &self.module.value(v).ty)).all(fits) {
            return None;
        }
        let source = self.source(node);
        let (channels_last, room) = (self.layouts.channels_last.contains(&node), self.room);
        let prepared = backend.prepare(&Site { view, source, results: &results, channels_last, room });
        Some(prepared.and_then(|kernel| self.checked(kernel)))
    }

    fn source(&self, node: Node) -> Node {
        self.inlined.map_or(node, |inlined| inlined.calls.source(node))
    }

    /// Checks that the device has the queue of a kernel.
    ///
    /// # Errors
    /// If the device has fewer queues.
    fn checked(&self, kernel: Prepared) -> Result<Prepared, KernelError> {
        let n_queues = self.backend.device().map_or(usize::MAX, Device::kernel_queues);
        if kernel.needs.queue < n_queues {
            return Ok(kernel);
        }
        Err(KernelError::value(
            format!("a kernel on one of {n_queues} queues"),
            format!("queue {}", kernel.needs.queue),
        ))
    }
}

/// True if the value is the default of an input, which a caller may replace.
pub(super) fn is_input(module: &Module, value: Value) -> bool {
    matches!(module.value(value).def, Def::Input { .. })
}
