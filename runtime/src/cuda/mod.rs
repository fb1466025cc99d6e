//! The CUDA backend: kernels in CUDA C that are written when a node is prepared and compiled by NVRTC, matrix
//! products of cuBLASLt, and convolutions and attention of cuDNN. It supports Linux on x86-64, and no CUDA toolkit is
//! needed to build it.
//!
//! Every operator computes in f32 (integers in their own type) and rounds once. Products accumulate in f32, and use
//! TF32 only if the options permit it. Sums have a fixed order without atomic operations, so that results are
//! bit-equal between runs. No kernel waits for the device: a failure that depends on data is written to a word of the
//! queue, and the host reports it with its node when it waits for the queue.
//!
//! `presence/` finds the libraries and devices. `memory.rs`, `staging.rs`, `queue.rs`, `record.rs` and `clock.rs`
//! implement the device. `compile.rs`, `cache.rs`, `text.rs`, `launch.rs`, `names.rs` and `dump.rs` write, compile,
//! launch and name kernels. `products.rs` and `dnn/` call cuBLASLt and cuDNN, and `kernels/` has the kernels by
//! family.

mod cache;
mod choices;
mod clock;
mod compile;
pub mod dnn;
mod dump;
mod elements;
mod kernels;
mod launch;
mod layouts;
mod memory;
mod names;
mod presence;
mod products;
mod queue;
mod record;
mod staging;
mod text;

pub use presence::{
    CudaError, CudaErrorKind, FoundDevice, FoundLibrary, Library, Presence, standard_folders,
};

use crate::backend::{
    Backend, Candidates, Carry, Choices, Device, DeviceError, DeviceMemory, GroupSite, Images, KernelError,
    Prepared, Queue, RunHint, Site,
};
use ampc_ir::entity::EntityRef;
use ampc_ir::op::OpKind;
use ampc_ir::{DType, Node};
use choices::Recorded;
use clock::Clock;
use compile::Compiler;
use cudarc::driver::CudaContext;
use dnn::Dnn;
use dump::Dump;
use memory::Pool;
use names::Label;
use products::Products;
use queue::CudaQueue;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// The settings of a [`Cuda`].
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// The index of the device.
    pub device: usize,
    /// Folders that are searched for libraries after those of the dynamic loader, such as [`standard_folders`].
    pub folders: Vec<PathBuf>,
    /// The disk cache of compiled kernels, for later processes. Its maximum size is 1 GiB.
    pub cache: Option<PathBuf>,
    /// True if the host waits for every kernel, so that the error of a crashed kernel names its node.
    pub waits_for_kernels: bool,
    /// True if sessions record runs as CUDA graphs.
    pub records: bool,
    /// The number of streams of a session. Nodes are assigned to streams in turn.
    pub queues: usize,
    /// True if f32 products and convolutions may round their operands to TF32, which has a 10-bit mantissa.
    pub tf32: bool,
    /// True if every node rounds to its element type: no fused library operation keeps intermediate values in f32.
    /// The order of sums may still differ.
    pub exact_rounding: bool,
    /// The folder for the sources of launched kernels and `index.tsv`, a list of the launches. It is created. An
    /// unwritable folder is an error.
    pub dump: Option<PathBuf>,
}

impl Default for CudaOptions {
    fn default() -> CudaOptions {
        CudaOptions {
            device: 0,
            folders: Vec::new(),
            cache: None,
            waits_for_kernels: false,
            records: true,
            queues: 1,
            tf32: false,
            exact_rounding: false,
            dump: None,
        }
    }
}

/// True if the backend has a kernel of an operator for at least some element types. An operator without a kernel is
/// computed by the host if its operands are constants, and is rejected otherwise.
pub fn has_kernel(kind: OpKind) -> bool {
    kernels::find(kind).is_some()
}

/// The CUDA backend for one device.
pub struct Cuda {
    host: Arc<dyn Backend>,
    device: CudaDevice,
}

/// The parts of the backend that its kernels and queues share.
pub(crate) struct Shared {
    context: Arc<CudaContext>,
    name: String,
    /// True if the device converts to bf16: compute capability 8.0 or higher.
    has_bf16: bool,
    compiler: Compiler,
    products: Products,
    dnn: Dnn,
    choices: Arc<Recorded>,
    /// The version of NVRTC.
    version: (u32, u32),
    waits_for_kernels: bool,
    clock: Option<Clock>,
    /// Pinned memory for copies to the host.
    pinned: Pool,
    records: bool,
    queues: usize,
    exact_rounding: bool,
    dump: Option<Dump>,
}

/// Memory and queues of a device.
#[derive(Clone)]
struct CudaDevice(Arc<Shared>);

impl Cuda {
    /// Opens a device. `host` evaluates nodes whose operands are all constants.
    ///
    /// # Errors
    /// If a library is absent or too old, the device does not exist, or the dump folder cannot be written.
    pub fn open(options: &CudaOptions, host: Arc<dyn Backend>) -> Result<Cuda, CudaError> {
        let dump = options.dump.as_deref().map(Dump::new).transpose();
        let dump = dump.map_err(|reason| CudaError::NoDump { reason })?;
        let (found, version, architecture) = presence::load(&options.folders, options.device)?;
        let context = CudaContext::new(options.device)?;
        // SAFETY: memory is allocated and freed by calls that wait for the device, and each queue has one stream.
        #[expect(unsafe_code, reason = "the crate would record two events for each allocation")]
        unsafe {
            context.disable_event_tracking();
        }
        let compiler =
            Compiler::new(context.clone(), &found, (version, architecture), options.cache.as_deref());
        let (folders, cache) = (options.folders.clone(), compiler.cache());
        let choices = Arc::new(Recorded::default());
        let shared = Shared {
            products: Products::new(options.tf32, choices.clone())?,
            dnn: Dnn::new(context.clone(), folders, version, options.tf32, cache, choices.clone()),
            compiler,
            choices,
            version,
            context,
            has_bf16: found.capability >= (8, 0),
            name: found.name,
            waits_for_kernels: options.waits_for_kernels,
            clock: Clock::find(),
            pinned: Pool::default(),
            records: options.records,
            queues: options.queues.max(1),
            exact_rounding: options.exact_rounding,
            dump,
        };
        Ok(Cuda { host, device: CudaDevice(Arc::new(shared)) })
    }

    /// The name of the device from the driver.
    pub fn device_name(&self) -> &str {
        &self.device.0.name
    }

    /// The cuDNN plan of a convolution on this device. The first call loads cuDNN.
    ///
    /// # Errors
    /// If cuDNN is absent, too old, has no engine for the convolution, or fails.
    #[doc(hidden)]
    pub fn plan_convolution(&self, convolution: &dnn::Convolution) -> Result<dnn::Described, dnn::DnnError> {
        Ok(self.device.0.dnn.plan(convolution)?.described())
    }

    /// The number of attentions that cuDNN has computed so far, except in replays of recorded runs.
    #[doc(hidden)]
    pub fn attentions_launched(&self) -> u64 {
        self.device.0.dnn.attentions_launched()
    }

    /// The number of distinct kernels of all plans so far, compiled or read from the cache.
    #[doc(hidden)]
    pub fn kernels_compiled(&self) -> usize {
        self.device.0.compiler.len()
    }
}

/// Wraps a prepared kernel: its sources are compiled when it becomes part of a plan.
fn compiled_when_planned(
    sites: &[Site<'_>],
    prepare: impl FnOnce() -> Result<Prepared, KernelError>,
) -> Result<Prepared, KernelError> {
    let (prepared, requested) = compile::requested_by(|| Label::of(sites).while_set(prepare));
    let begin = move || requested.iter().for_each(compile::Compilation::begin);
    Ok(prepared?.when_planned(begin))
}

impl Backend for Cuda {
    fn name(&self) -> &'static str {
        "CUDA"
    }

    fn has_kernel(&self, kind: OpKind) -> bool {
        self.has_own_kernel(kind) || self.host.has_kernel(kind)
    }

    fn has_own_kernel(&self, kind: OpKind) -> bool {
        has_kernel(kind)
    }

    fn prepare(&self, site: &Site<'_>) -> Result<Prepared, KernelError> {
        if !self.device.0.has_bf16 && site.has_dtype(DType::BF16) {
            return Err(KernelError::unsupported(format!(
                "{} in bf16 on {}: expected a device of compute capability 8.0 or higher",
                site.view.schema.name, self.device.0.name
            )));
        }
        let maker = kernels::Maker { shared: &self.device.0, site };
        let prepare = || match (maker.constant(&*self.host)?, kernels::find(site.kind())) {
            (Some(prepared), _) => Ok(prepared),
            (None, Some(prepare)) => prepare(&maker),
            (None, None) => Err(site.no_kernel()),
        };
        Ok(compiled_when_planned(std::slice::from_ref(site), prepare)?
            .on_queue(site.view.node.index() % self.device.0.queues))
    }

    fn host(&self) -> Option<&dyn Backend> {
        Some(&*self.host)
    }

    fn channels_last(&self, images: &Images<'_>) -> Vec<Node> {
        layouts::choose(&self.device.0, images)
    }

    fn choices(&self) -> Choices {
        let shared = &self.device.0;
        let (major, minor) = shared.version;
        let mut device = vec![
            ("device".to_owned(), shared.name.clone()),
            ("NVRTC".to_owned(), format!("{major}.{minor}")),
            ("cuBLASLt".to_owned(), products::version().to_string()),
        ];
        let option =
            |name: &str, is_set: bool| (name.to_owned(), if is_set { "on" } else { "off" }.to_owned());
        device.push(option("tf32", shared.products.tf32()));
        device.push(option("exact-rounding", shared.exact_rounding));
        device.extend(shared.dnn.version().map(|version| ("cuDNN".to_owned(), version.to_string())));
        Choices { device, algorithms: shared.choices.all() }
    }

    fn has_groups(&self) -> bool {
        true
    }

    fn groups_trade_memory(&self) -> bool {
        true
    }

    fn join(&self, candidates: &Candidates<'_>) -> Vec<Vec<Node>> {
        kernels::groups::join(&self.device.0, candidates)
    }

    fn carries(&self, candidates: &Candidates<'_>, groups: &[Vec<Node>]) -> Vec<Carry> {
        kernels::groups::carries(candidates, groups)
    }

    fn prepare_group(&self, group: &GroupSite<'_>) -> Result<Prepared, KernelError> {
        let prepared =
            compiled_when_planned(group.sites, || kernels::groups::prepare(&self.device.0, group))?;
        let last = group.sites.last().map_or(0, |site| site.view.node.index());
        Ok(prepared.on_queue(last % self.device.0.queues))
    }

    fn device(&self) -> Option<&dyn Device> {
        Some(&self.device)
    }

    fn install(&self, hint: RunHint, work: &mut (dyn FnMut() + Send)) -> bool {
        let mut bound = || {
            // If this fails, later calls bind the context of the thread themselves and return the error.
            let _ = self.device.0.context.bind_to_thread();
            work();
        };
        match hint {
            // The host backend has threads with large stacks, and its kernels fold constants during binding.
            RunHint::NeedsStack => self.host.install(hint, &mut bound),
            RunHint::Parallel | RunHint::Sequential => {
                bound();
                true
            }
        }
    }
}

/// The alignment of tensors. cuBLASLt's fastest kernels need it, and the driver's allocations have it.
const ALIGNMENT: usize = 256;

/// The alignment of inputs in the caller's memory: the widest loads of kernels need it, and cuDNN and cuBLASLt's
/// epilogues assume it.
const INPUT_ALIGNMENT: usize = 16;

/// Free memory that is reserved for implicit allocations: kernel code, handles of cuBLASLt and cuDNN, and CUDA
/// graphs.
const RESERVE: u64 = 256 << 20;

impl Device for CudaDevice {
    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    fn input_alignment(&self) -> usize {
        INPUT_ALIGNMENT
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn DeviceMemory>, DeviceError> {
        Ok(Arc::new(memory::Block::new(&self.0.context, bytes)?))
    }

    fn available_memory(&self) -> Option<u64> {
        self.0.context.bind_to_thread().ok()?;
        let (free, total) = cudarc::driver::result::mem_get_info().ok()?;
        Some((free as u64).saturating_sub(RESERVE.min(total as u64 / 16)))
    }

    fn queue(&self) -> Result<Box<dyn Queue>, DeviceError> {
        Ok(Box::new(CudaQueue::new(self.0.clone())?))
    }

    fn kernel_queues(&self) -> usize {
        self.0.queues
    }

    fn can_record(&self) -> bool {
        self.0.records
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda").field("device", &self.device).finish_non_exhaustive()
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CudaDevice").field(&self.0.name).finish()
    }
}
