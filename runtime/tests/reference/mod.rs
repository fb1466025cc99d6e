//! A backend with a device, slow and strict on purpose. It proves sessions, plans and memory, not formulas.
//!
//! - Its memory cannot be read by the host. New memory is poisoned, and a kernel that reads a byte that nothing has
//!   written fails.
//! - Launches return before the work is done. The work runs when the host waits for it, in a random order that the seed
//!   says: a job may run once no earlier job is left that writes what the job reads or writes, or reads what it writes.
//! - Kernels run on one to three queues, as the seed says. Jobs of two queues that touch the same bytes without an order are
//!   a race, which fails. Most seeds record kernels and replay them.
//! - A view that it emits shares the bytes of its operand.
//! - Its groups are random sets of nodes without a node between two of them; a seed of 0 makes none.
//! - The CPU folds constants for every third seed.
//! - Failures surface when the host waits, with the node; on a device of every fifth seed also in calls that give work.
//! - Its kernels are the CPU's on operands widened to f64, rounded once, where the operator has such a form.

#![allow(
    clippy::unwrap_used,
    clippy::missing_docs_in_private_items,
    reason = "a test: what cannot be made fails it"
)]
#![allow(dead_code, reason = "tests share it, and each uses a part")]

pub(crate) mod device;
mod kernels;

pub(crate) use device::ReferenceDevice;

use ampc_ir::op::OpKind;
use ampc_ir::{Module, Node};
use ampc_runtime::Cpu;
use ampc_runtime::backend::{Backend, Candidates, GroupSite, Io, KernelError, Prepared, RunHint, Site};
use ampc_runtime::device::Device;
use kernels::{Kernel, launch};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// The backend.
#[derive(Debug)]
pub(crate) struct Reference {
    cpu: Cpu,
    /// False if kernels compute on operands as they are: results are then those of the CPU, bit for bit.
    widens: bool,
    device: Arc<ReferenceDevice>,
}

impl Reference {
    pub(crate) fn new(seed: u64) -> Reference {
        Reference { cpu: Cpu::new(1), widens: true, device: Arc::new(ReferenceDevice::new(seed)) }
    }

    /// The backend with the kernels of the CPU as they are.
    pub(crate) fn plain(seed: u64) -> Reference {
        Reference { widens: false, ..Reference::new(seed) }
    }

    /// The device, for its counters and faults.
    pub(crate) fn shared_device(&self) -> Arc<ReferenceDevice> {
        self.device.clone()
    }
}

impl Reference {
    /// The queue of a node: any.
    fn queue_of(&self, node: Node) -> usize {
        let mut hasher = DefaultHasher::new();
        (node, self.device.seed).hash(&mut hasher);
        Random::new(hasher.finish()).below(self.device.kernel_queues())
    }
}

impl Backend for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn has_kernel(&self, kind: OpKind) -> bool {
        self.cpu.has_kernel(kind)
    }

    fn prepare(&self, site: &Site<'_>) -> Result<Prepared, KernelError> {
        let own = self.cpu.prepare(site)?;
        let needs = own.needs().clone();
        let kernel = Arc::new(Kernel::new(self, site, own)?);
        let is_view = needs.view;
        let run =
            move |io: &mut Io<'_>| if is_view && kernel.share(io)? { Ok(()) } else { launch(&kernel, io) };
        let mut prepared = Prepared::new(run).scratch(usize::from(needs.scratch > 0) * 40);
        prepared = prepared.in_place(&needs.in_place).others_in_place(&needs.others_in_place);
        if needs.moves {
            prepared = prepared.moves();
        }
        prepared = prepared.on_queue(self.queue_of(site.view.node));
        Ok(if needs.view { prepared.view() } else { prepared })
    }

    fn has_groups(&self) -> bool {
        self.device.seed > 0
    }

    fn join(&self, candidates: &Candidates<'_>) -> Vec<Vec<Node>> {
        let mut random = Random::new(self.device.seed ^ candidates.nodes.len() as u64);
        let mut groups = Vec::new();
        let all: Vec<Node> = candidates.module.nodes(candidates.graph).collect();
        let place: BTreeMap<Node, usize> = all.iter().enumerate().map(|(at, &node)| (node, at)).collect();
        let ready: BTreeSet<Node> = candidates.nodes.iter().copied().collect();
        let mut rest = candidates.nodes;
        while rest.len() > 1 {
            let (window, others) = rest.split_at((2 + random.below(6)).min(rest.len()));
            rest = others;
            let some: Vec<Node> = window.iter().copied().filter(|_| random.below(4) > 0).collect();
            let (Some(first), Some(last)) = (some.first(), some.last()) else { continue };
            let group = convex(candidates.module, &all[place[first]..=place[last]], &some);
            if group.len() > 1 && group.iter().all(|node| ready.contains(node)) {
                groups.push(group);
            }
        }
        groups
    }

    fn groups_may_grow(&self) -> bool {
        true
    }

    fn prepare_group(&self, group: &GroupSite<'_>) -> Result<Prepared, KernelError> {
        let kernel = Arc::new(Kernel::of_group(self, group)?);
        let queue = self.queue_of(group.sites[0].view.node);
        Ok(Prepared::new(move |io| launch(&kernel, io)).on_queue(queue))
    }

    fn device(&self) -> Option<&dyn Device> {
        Some(&*self.device)
    }

    fn host(&self) -> Option<&dyn Backend> {
        self.device.seed.is_multiple_of(3).then_some(&self.cpu)
    }

    fn install(&self, hint: RunHint, work: &mut (dyn FnMut() + Send)) -> bool {
        self.cpu.install(hint, work)
    }
}

/// Random numbers that a seed says.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 11) % n as u64).unwrap()
    }
}

/// Nodes with those that stand between two of them. `all` are the nodes from the first to the last in program order.
fn convex(module: &Module, all: &[Node], nodes: &[Node]) -> Vec<Node> {
    let reads = |node: Node, of: &[Node]| {
        let operands = module.node(node).operands().iter().flatten();
        operands.filter_map(|&value| module.producer(value)).any(|(maker, _)| of.contains(&maker))
    };
    // The nodes that read the group, directly or not, and the nodes that the group reads.
    let (mut behind, mut before) = (nodes.to_vec(), nodes.to_vec());
    for &node in all {
        if !behind.contains(&node) && reads(node, &behind) {
            behind.push(node);
        }
    }
    for &node in all.iter().rev() {
        let is_read = |&reader: &Node| reads(reader, &[node]);
        if !before.contains(&node) && before.iter().any(is_read) {
            before.push(node);
        }
    }
    all.iter().copied().filter(|node| behind.contains(node) && before.contains(node)).collect()
}
