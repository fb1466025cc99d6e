//! The contract of a backend: kernels, and the threads they run in.
//!
//! A [`Session`](crate::Session) does everything that is the same on every device: it binds a module to dims, folds
//! constants, plans memory, walks the plan, runs the bodies of If, Loop and Scan, keeps states, and holds the limits of
//! a run. It asks a backend for the kernel of a node ([`Backend::prepare`]), and runs that kernel with the operands and
//! results in place ([`Io`]).
//!
//! The smallest backend has one operator:
//!
//! ```
//! use ampc_runtime::backend::{Backend, KernelError, Prepared, Site};
//! use ampc_ir::op::OpKind;
//!
//! #[derive(Debug)]
//! struct Negator;
//!
//! impl Backend for Negator {
//!     fn name(&self) -> &'static str {
//!         "example"
//!     }
//!     fn has_kernel(&self, kind: OpKind) -> bool {
//!         kind == OpKind::Neg
//!     }
//!     fn prepare(&self, site: &Site<'_>) -> Result<Prepared, KernelError> {
//!         if site.kind() != OpKind::Neg || site.dtype(0)? != ampc_ir::DType::F32 {
//!             return Err(site.no_kernel());
//!         }
//!         Ok(Prepared::new(|io| {
//!             let operand = io.slice::<f32>(0)?;
//!             let result = io.out::<f32>(0)?;
//!             result.iter_mut().zip(operand).for_each(|(to, from)| *to = -from);
//!             Ok(())
//!         }))
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ampc_ir::text::{NoData, parse};
//! use ampc_runtime::{DataRef, HostTensor, Runtime};
//!
//! let text = "module ir=10\nopset ai.onnx=21\n\ngraph @main {\n  input %x : f32[2]\n  \
//!     %y = Neg(%x) : f32[2]\n  output %y\n}\n";
//! let module = parse(text, &NoData)?;
//! let x = HostTensor::from_slice(&[2], &[1.0f32, -2.0])?;
//! let mut session = Runtime::new(std::sync::Arc::new(Negator)).prepare(&module)?;
//! let outputs = session.run(&[Some(DataRef::Tensor(x.view()))])?;
//! assert_eq!(outputs[0].tensor().map(|y| y.as_slice::<f32>()).transpose()?, Some(&[-1.0, 2.0][..]));
//! # Ok(())
//! # }
//! ```

pub use crate::device::{Device, DeviceError, DeviceMemory, Download, Event, Queue, Recording};
pub use crate::kernel::{Dims, Io, KernelError, Out, Prepared, Site, Wanted};
pub use crate::layouts::{Image, Images, Roles};
pub use crate::plan::{Carry, Needs};

use crate::room::Room;
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::{GraphId, Module, Node, Type, Value};
use rustc_hash::FxHashSet;
use std::fmt::Debug;

/// The device of a backend, and the algorithms that its libraries chose. Results of other algorithms may differ in
/// their last bits.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Choices {
    /// The name of the device, the versions of libraries, and the options of the backend that change results, by
    /// name. Empty if no result depends on a choice.
    pub device: Vec<(String, String)>,
    /// The algorithm of each prepared operation, sorted by the description of the operation.
    pub algorithms: Vec<(String, String)>,
}

/// The nodes of a graph that a backend may join.
#[derive(Clone, Copy, Debug)]
pub struct Candidates<'a> {
    /// The module, with the types of all values.
    pub module: &'a Module,
    /// The graph.
    pub graph: GraphId,
    /// Nodes whose kernels are ready, and whose operands and results are tensors of known dims, in program order.
    pub nodes: &'a [Node],
    /// The nodes of which [`Site::channels_last`] is true.
    pub channels_last: &'a FxHashSet<Node>,
}

impl Candidates<'_> {
    /// Calls `visit` with the site of each node, in program order.
    pub(crate) fn for_each_site(&self, mut visit: impl FnMut(&Site<'_>)) {
        for &node in self.nodes {
            let Some(view) = NodeView::new(self.module, node) else { continue };
            let results = result_types(self.module, node);
            let channels_last = self.channels_last.contains(&node);
            visit(&Site { view, source: node, results: &results, channels_last, room: Room::of(0) });
        }
    }
}

/// The types of the results of a node, as inference has found them; `None` for absent results.
pub(crate) fn result_types(module: &Module, node: Node) -> Vec<Option<Type>> {
    let results = module.node(node).results().iter();
    results.map(|value| value.map(|value| module.value(value).ty.clone())).collect()
}

/// A group to prepare a kernel for.
pub struct GroupSite<'a> {
    /// The nodes, in program order.
    pub sites: &'a [Site<'a>],
    /// The values that the group reads from outside, each once.
    pub operands: &'a [Value],
    /// The values that are read outside of the group.
    pub results: &'a [Value],
    /// The values that the group produces or reads in another form.
    pub carries: &'a [Carry],
}

impl GroupSite<'_> {
    /// The number of the operand that is a value.
    pub fn operand(&self, value: Value) -> Option<usize> {
        self.operands.iter().position(|&operand| operand == value)
    }

    /// The number of the result that is a value.
    pub fn result(&self, value: Value) -> Option<usize> {
        self.results.iter().position(|&result| result == value)
    }
}

/// A hint of where the work of [`Backend::install`] may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunHint {
    /// A binding, or a run of a graph with calls or deeply nested bodies. It needs a thread with a large stack.
    NeedsStack,
    /// Any other run.
    Parallel,
    /// A run of a program whose runs had no parallel work so far. Waking a thread may cost more than the run.
    Sequential,
}

/// A device, as sessions see it.
pub trait Backend: Debug + Send + Sync {
    /// The name of the device in messages.
    fn name(&self) -> &'static str;

    /// True if there is a kernel for an operator and at least one element type. Sessions run nodes with bodies and
    /// calls.
    fn has_kernel(&self, kind: OpKind) -> bool;

    /// True if this backend itself has such a kernel. The kernels of its [`host`](Self::host) do not count, because
    /// they compute only nodes whose operands are constants.
    fn has_own_kernel(&self, kind: OpKind) -> bool {
        self.has_kernel(kind)
    }

    /// Prepares the kernel of a node that inference has checked. The kernel computes floats in f32 or wider and
    /// rounds each result once; the backend chooses the order of sums. Kernels of Shape and Size take the dims from
    /// the site, because they may run without their operand.
    ///
    /// # Errors
    /// [`KernelError::NotYet`], which the getters of [`Site`] return, if the kernel depends on facts that are known
    /// only while the graph runs. The session then prepares the node each time that it runs.
    /// [`KernelError::Unsupported`] if there is no kernel for the node. Other errors if the node is invalid.
    fn prepare(&self, site: &Site<'_>) -> Result<Prepared, KernelError>;

    /// The nodes of the main graph that compute images of dims `[n, spatial…, c]`. The session calls this before it
    /// prepares kernels. It permutes the types of images and the axes of reductions and Concat, and transposes images
    /// between such nodes and other nodes. Kernels of convolutions, pools and BatchNormalization read
    /// [`Site::channels_last`].
    fn channels_last(&self, images: &Images<'_>) -> Vec<Node> {
        let _ = images;
        Vec::new()
    }

    /// True if the backend joins nodes.
    fn has_groups(&self) -> bool {
        false
    }

    /// Groups of nodes that one kernel computes; each has at least two nodes in program order. All nodes are
    /// candidates, and each is in at most one group. The nodes of a group need not read each other. Groups must be
    /// convex, even if every other group counts as one node: no path between two nodes of a group leaves the group.
    /// Otherwise the session panics.
    fn join(&self, candidates: &Candidates<'_>) -> Vec<Vec<Node>> {
        let _ = candidates;
        Vec::new()
    }

    /// The values that pairs among `groups` carry; [`join`](Self::join) made these groups. A carried value is
    /// produced by a node of one group and read only by nodes of that group and of one other group. A group is in at
    /// most one pair. The session does not prepare a pair that breaks these rules, or whose carried value is an
    /// output, a state or watched.
    fn carries(&self, candidates: &Candidates<'_>, groups: &[Vec<Node>]) -> Vec<Carry> {
        let _ = (candidates, groups);
        Vec::new()
    }

    /// True if groups are kept although they grow the arena. Otherwise the session splits groups until the arena is
    /// no larger than without groups.
    fn groups_may_grow(&self) -> bool {
        false
    }

    /// True if the session also keeps groups that grow the arena by at most the bytes that they save. A group saves
    /// the values between its nodes, which are neither written nor read. In total, groups may grow the arena by a
    /// sixteenth.
    fn groups_trade_memory(&self) -> bool {
        false
    }

    /// Prepares the kernel of a group that [`join`](Self::join) made, or of the first or last nodes of such a group
    /// if it is in no pair. The operands and results of the kernel are those of the site, in order.
    ///
    /// # Errors
    /// If the group has no kernel; the session then runs its nodes separately.
    fn prepare_group(&self, group: &GroupSite<'_>) -> Result<Prepared, KernelError> {
        let _ = group;
        Err(KernelError::unsupported("groups"))
    }

    /// The backend that evaluates nodes that depend only on constants and dims, in host memory, when a module is
    /// bound; `None` if this backend does so itself. The results need not be bit-equal to those of this backend.
    /// Kernels of the host backend run within [`install`](Backend::install) of this backend.
    fn host(&self) -> Option<&dyn Backend> {
        None
    }

    /// The device that the kernels compute on; `None` if their operands and results are in host memory.
    fn device(&self) -> Option<&dyn Device> {
        None
    }

    /// The device, and the algorithms that libraries chose for the operations prepared so far.
    fn choices(&self) -> Choices {
        Choices::default()
    }

    /// Runs `work` where kernels may use the threads of this backend, and returns when `work` is done. Sessions call
    /// it for every run and every binding, possibly from several threads at once. `hint` tells if `work` may run on
    /// the calling thread. Returns true if `work` shared nothing between threads.
    fn install(&self, hint: RunHint, work: &mut (dyn FnMut() + Send)) -> bool {
        let _ = hint;
        work();
        true
    }
}

/// The alignment of tensors in arenas of host memory: a cache line.
const HOST_ALIGNMENT: usize = 64;

/// The alignment of tensors in the arenas of a backend, in bytes.
pub(crate) fn alignment(backend: &dyn Backend) -> usize {
    backend.device().map_or(HOST_ALIGNMENT, Device::alignment)
}

/// [`Backend::install`] for work that returns a result.
pub(crate) fn installed<R: Send>(backend: &dyn Backend, work: impl FnOnce() -> R + Send) -> R {
    installed_run(backend, RunHint::NeedsStack, work).0
}

/// Like [`installed`], for a run. Returns true if the run shared nothing between threads.
pub(crate) fn installed_run<R: Send>(
    backend: &dyn Backend,
    hint: RunHint,
    work: impl FnOnce() -> R + Send,
) -> (R, bool) {
    let (mut work, mut result) = (Some(work), None);
    let is_sequential = backend.install(hint, &mut || result = work.take().map(|work| work()));
    (result.expect("a backend does the work that it is given"), is_sequential)
}
