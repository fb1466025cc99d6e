//! A kernel: prepared from a [`Site`] (a node with the facts about its operands) as a [`Prepared`], which computes
//! the results from [`Io`] any number of times.
//!
//! A kernel computes no shapes: the shapes of its results are inferred, before or while the graph runs. During
//! preparation it reads attributes and operands that are parameters (axes, sizes), through the views that inference
//! uses. Preparation happens when the graph is planned, if everything that it needs is known then, and otherwise each
//! time that the node runs. The kernel cannot tell which.

use crate::bytes::AlignedBytes;
use crate::data::{Data, DataRef};
use crate::device::{DeviceRef, Queue, Span};
pub use crate::error::KernelError;
pub(crate) use crate::error::Result;
use crate::host::{Element, HostError, HostTensor, TensorRef};
use crate::plan::Needs;
use crate::room::Room;
pub(crate) use crate::room::check_size;
use ampc_ir::op::OpKind;
use ampc_ir::views::{NodeView, OpError};
use ampc_ir::{DType, Node, Type};
use smallvec::SmallVec;

/// Extents as indices.
pub type Dims = SmallVec<[usize; 6]>;

/// Makes the kernel of a node.
pub(crate) type Prepare = fn(&Site<'_>) -> Result<Prepared>;

/// The function that a prepared kernel runs each time.
pub(crate) type Run = Box<dyn Fn(&mut Io<'_>) -> Result<()> + Send + Sync>;

/// A prepared kernel and its requirements.
pub struct Prepared {
    pub(crate) needs: Needs,
    pub(crate) run: Run,
    pub(crate) planned: Option<Box<dyn Fn() + Send + Sync>>,
}

impl Prepared {
    /// A kernel whose results `run` computes at each call. The results depend on nothing but the operands.
    pub fn new(run: impl Fn(&mut Io<'_>) -> Result<()> + Send + Sync + 'static) -> Prepared {
        Prepared { needs: Needs::default(), run: Box::new(run), planned: None }
    }

    /// Sets a function that is called once for each plan that includes the kernel, before the kernel runs. Most
    /// kernels of nodes that are fused into groups are in no plan. Long work, such as compilation, starts there in
    /// other threads, because the session waits for the function to return.
    pub fn when_planned(mut self, planned: impl Fn() + Send + Sync + 'static) -> Prepared {
        self.planned = Some(Box::new(planned));
        self
    }

    /// The size in bytes of the scratch memory that the kernel needs while it runs: [`Io::scratch`].
    pub fn scratch(mut self, bytes: usize) -> Prepared {
        self.needs.scratch = bytes;
        self
    }

    /// The first result may alias any of these operands, the preferred operand first. [`Io::in_place`] tells if the
    /// plan uses that.
    pub fn in_place(mut self, operands: &[usize]) -> Prepared {
        self.needs.in_place = operands.into();
        self
    }

    /// Each of these results, other than the first (see [`in_place`](Self::in_place)), may alias the operand that it
    /// is paired with. [`Io::is_in_place`] tells if the plan uses that.
    pub fn others_in_place(mut self, pairs: &[(usize, usize)]) -> Prepared {
        self.needs.others_in_place = pairs.into();
        self
    }

    /// The kernel can turn its first operand, a value outside of the arena, into its first result. If the node is the
    /// last reader of the operand, [`Io::moved`] returns it.
    pub fn moves(mut self) -> Prepared {
        self.needs.moves = true;
        self
    }

    /// Launches the kernel on this queue of the session, an index below
    /// [`Device::kernel_queues`](crate::device::Device::kernel_queues).
    pub fn on_queue(mut self, queue: usize) -> Prepared {
        self.needs.queue = queue;
        self
    }

    /// The kernel copies from or to the host or allocates memory, so a device cannot record it.
    pub fn not_recorded(mut self) -> Prepared {
        self.needs.is_unrecorded = true;
        self
    }

    /// The first result has the bytes of the first operand. The kernel runs only if the plan cannot alias them. If
    /// the result is [free](Io::is_free), the operand owns its bytes, and the kernel may emit a tensor that shares
    /// them.
    pub fn view(mut self) -> Prepared {
        self.needs.view = true;
        self
    }
}

/// A requested result of a kernel that runs outside of a session.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// The result is not used.
    Absent,
    /// A tensor of numbers of this element type and these dims.
    Tensor(DType, Vec<u64>),
    /// The kernel allocates the result: its size is unknown, or it is not a tensor of numbers.
    Any,
}

impl Prepared {
    /// The requirements of the kernel for a plan.
    pub fn needs(&self) -> &Needs {
        &self.needs
    }

    /// Runs a host-memory kernel outside of a session.
    ///
    /// # Errors
    /// If the kernel fails, or its scratch memory or a result exceeds the limit or cannot be allocated.
    pub fn run_alone(
        &self,
        operands: &[Option<DataRef<'_>>],
        results: &[Wanted],
        max_bytes: u64,
    ) -> Result<Vec<Option<Data>>> {
        let mut made: Vec<Option<Data>> = Vec::with_capacity(results.len());
        for wanted in results {
            made.push(match wanted {
                Wanted::Tensor(dtype, dims) => Some(HostTensor::zeros(*dtype, dims)?.into()),
                Wanted::Absent | Wanted::Any => None,
            });
        }
        check_size(self.needs.scratch as u64, max_bytes)?;
        let no_memory = || HostError::NoMemory { bytes: self.needs.scratch as u64 };
        let mut scratch = AlignedBytes::zeroed(self.needs.scratch).ok_or_else(no_memory)?;
        let places = made.iter_mut().zip(results);
        let mut io = Io {
            operands: operands.to_vec(),
            results: places
                .map(|(data, wanted)| match wanted {
                    Wanted::Absent => Out::Absent,
                    Wanted::Tensor(..) | Wanted::Any => Out::outside_of_arena(data),
                })
                .collect(),
            scratch: scratch.as_mut_slice(),
            device_scratch: None,
            queue: None,
            in_place: None,
            taken: &[],
            max_bytes,
        };
        (self.run)(&mut io)?;
        drop(io);
        Ok(made)
    }
}

/// A node to prepare a kernel for, with the known facts about its operands and results.
pub struct Site<'a> {
    /// The node as views read it.
    pub view: NodeView<'a>,
    /// The original node, if this node is a copy that replaces a call; otherwise the node itself.
    pub source: Node,
    /// The known types of results; `None` for absent results.
    pub results: &'a [Option<Type>],
    /// True if the dims of image operands and results are `[n, spatial…, c]`
    /// ([`Backend::channels_last`](crate::Backend::channels_last)). Views return attributes unchanged.
    pub channels_last: bool,
    /// The limit for lists that the kernel makes from parameters.
    pub(crate) room: Room,
}

impl Site<'_> {
    /// The same node with other operands and results.
    pub fn with<'b>(&self, view: NodeView<'b>, results: &'b [Option<Type>]) -> Site<'b> {
        Site { view, source: self.source, results, channels_last: self.channels_last, room: self.room }
    }

    /// The operator.
    pub fn kind(&self) -> OpKind {
        self.view.kind()
    }

    /// True if operand `i` is present.
    pub fn has(&self, i: usize) -> bool {
        self.view.has(i)
    }

    /// True if result `j` is used.
    pub fn wants(&self, j: usize) -> bool {
        self.results.get(j).is_some_and(Option::is_some)
    }

    /// True if an operand or a used result is a tensor of this element type.
    pub fn has_dtype(&self, dtype: DType) -> bool {
        let is_of_dtype =
            |ty: &Option<Type>| ty.as_ref().and_then(Type::as_tensor).is_some_and(|t| t.dtype == dtype);
        (0..self.view.n_operands()).any(|i| self.view.dtype(i) == Some(dtype))
            || self.results.iter().any(is_of_dtype)
    }

    /// The element type of operand `i`, which must be a tensor.
    ///
    /// # Errors
    /// If it is not known yet.
    pub fn dtype(&self, i: usize) -> Result<DType> {
        self.view.dtype(i).ok_or(KernelError::NotYet)
    }

    /// The dims of operand `i`, which must be a tensor.
    ///
    /// # Errors
    /// If they are not known yet.
    pub fn dims(&self, i: usize) -> Result<Dims> {
        dims_of(self.view.operand_type(i))
    }

    /// The element type of result `j`, which must be a tensor.
    ///
    /// # Errors
    /// If it is not known yet.
    pub fn result_dtype(&self, j: usize) -> Result<DType> {
        let ty = self.results.get(j).and_then(Option::as_ref);
        ty.and_then(Type::as_tensor).map(|t| t.dtype).ok_or(KernelError::NotYet)
    }

    /// The dims of result `j`, which must be a tensor.
    ///
    /// # Errors
    /// If they are not known yet.
    pub fn result_dims(&self, j: usize) -> Result<Dims> {
        dims_of(self.results.get(j).and_then(Option::as_ref))
    }

    /// The dims `[n, c, spatial…]` of an image with these dims.
    pub fn channels_first(&self, mut dims: Dims) -> Dims {
        if self.channels_last && dims.len() > 2 {
            dims[1..].rotate_right(1);
        }
        dims
    }

    /// The elements of operand `i`, an integer parameter of the node, such as axes; `None` if the operand is absent.
    ///
    /// # Errors
    /// If they are not known yet.
    pub fn ints(&self, i: usize) -> Result<Option<Vec<i64>>> {
        if !self.has(i) {
            return Ok(None);
        }
        self.view.known_ints(i).map(Some).ok_or(KernelError::NotYet)
    }

    /// The elements of operand `i`, a parameter of the node, such as scales; `None` if the operand is absent.
    ///
    /// # Errors
    /// If they are not known yet.
    pub fn floats(&self, i: usize) -> Result<Option<Vec<f64>>> {
        if !self.has(i) {
            return Ok(None);
        }
        let data = self.view.constant(i).ok_or(KernelError::NotYet)?;
        data.small_floats(MAX_PARAMETERS).map(Some).ok_or(KernelError::NotYet)
    }

    /// The error that there is no kernel for the element types of the node. It names the element types of the
    /// operands, and of the results if a result has a type that no operand has.
    pub fn no_kernel(&self) -> KernelError {
        let operands = (0..self.view.n_operands()).filter(|&i| self.has(i)).map(|i| self.view.dtype(i));
        let results = self.results.iter().flatten().map(|ty| ty.as_tensor().map(|tensor| tensor.dtype));
        let (operands, results): (Vec<_>, Vec<_>) = (operands.collect(), results.collect());
        let text = |types: &[Option<DType>]| {
            let types = types.iter().map(|ty| ty.map_or_else(|| "?".into(), |dtype| dtype.to_string()));
            types.collect::<Vec<_>>().join(", ")
        };
        let mut what = format!("{} of {}", self.view.schema.name, text(&operands));
        if results.iter().any(|ty| !operands.contains(ty)) {
            what += &format!(" to {}", text(&results));
        }
        KernelError::Unsupported(what)
    }
}

/// The maximum number of elements of an operand that is a parameter of a node.
pub(crate) const MAX_PARAMETERS: u64 = ampc_ir::views::MAX_INTS;

fn dims_of(ty: Option<&Type>) -> Result<Dims> {
    let dims = ty.and_then(Type::shape).and_then(|s| s.dims()).ok_or(KernelError::NotYet)?;
    let index = |d: &ampc_ir::Dim| d.known().and_then(|n| usize::try_from(n).ok());
    dims.iter().map(index).collect::<Option<Dims>>().ok_or(KernelError::NotYet)
}

/// The place of a result.
pub enum Out<'a> {
    /// The result is not requested.
    Absent,
    /// A tensor of numbers of known dims.
    Placed {
        /// The element type.
        dtype: DType,
        /// The bytes of all elements, uninitialized.
        bytes: &'a mut [u8],
    },
    /// A tensor of numbers of known dims in the memory of a device.
    Device {
        /// The element type.
        dtype: DType,
        /// The bytes of all elements, uninitialized.
        span: Span<'a>,
    },
    /// The kernel allocates the result: its size is unknown, or it is not a tensor of numbers.
    Free(&'a mut Option<Data>),
}

impl<'a> Out<'a> {
    /// A result outside of the arena: an existing tensor to overwrite, or a value that the kernel sets.
    pub(crate) fn outside_of_arena(data: &'a mut Option<Data>) -> Out<'a> {
        match data {
            Some(Data::Tensor(tensor)) => {
                let dtype = tensor.dtype();
                tensor.bytes_mut().map_or(Out::Absent, |bytes| Out::Placed { dtype, bytes })
            }
            Some(Data::Device(tensor)) => {
                let DeviceRef { dtype, span, .. } = tensor.view();
                Out::Device { dtype, span }
            }
            free => Out::Free(free),
        }
    }
}

/// The operands and results of a running kernel.
pub struct Io<'a> {
    /// The formal operands, except operands that results alias.
    pub operands: Vec<Option<DataRef<'a>>>,
    /// The places of the results.
    pub results: Vec<Out<'a>>,
    pub(crate) scratch: &'a mut [u8],
    /// The scratch memory of a kernel on a device.
    pub(crate) device_scratch: Option<Span<'a>>,
    pub(crate) queue: Option<&'a mut (dyn Queue + 'static)>,
    /// The operand that shares its bytes with result 0 until the result is written. It is not in `operands`.
    pub in_place: Option<usize>,
    /// Pairs of a result and an operand that share bytes. These operands are not in `operands`.
    pub taken: &'a [(usize, usize)],
    /// The maximum size of a result that the kernel allocates.
    pub max_bytes: u64,
}

impl<'a> Io<'a> {
    /// True if operand `i` is present, even if a result aliases it.
    pub fn has(&self, i: usize) -> bool {
        self.taken.iter().any(|&(_, operand)| operand == i)
            || self.operands.get(i).is_some_and(Option::is_some)
    }

    /// Operand `i`.
    ///
    /// # Errors
    /// If it is absent.
    pub fn data(&self, i: usize) -> Result<DataRef<'a>> {
        let operand = self.operands.get(i).copied().flatten();
        operand.ok_or_else(|| OpError::operand(i, "a value", "none").into())
    }

    /// Operand `i`, a tensor.
    ///
    /// # Errors
    /// If the operand is absent, or not a tensor.
    pub fn tensor(&self, i: usize) -> Result<TensorRef<'a>> {
        self.data(i)?.tensor().ok_or_else(|| OpError::operand(i, "a tensor", "none").into())
    }

    /// The elements of operand `i`.
    ///
    /// # Errors
    /// If the operand is not a tensor of this element type.
    pub fn slice<T: Element>(&self, i: usize) -> Result<&'a [T]> {
        Ok(self.tensor(i)?.as_slice()?)
    }

    /// The bytes of operand `i`, which must be a tensor of numbers.
    ///
    /// # Errors
    /// If the operand is not a tensor of numbers.
    pub fn bytes(&self, i: usize) -> Result<&'a [u8]> {
        self.tensor(i)?.bytes().ok_or_else(|| OpError::operand(i, "numbers", "strings").into())
    }

    /// True if result `j` has the bytes of an operand until it is written.
    pub fn is_in_place(&self, j: usize) -> bool {
        self.taken.iter().any(|&(result, _)| result == j)
    }

    /// True if result `j` is used.
    pub fn wants(&self, j: usize) -> bool {
        !matches!(self.results.get(j), None | Some(Out::Absent))
    }

    /// True if the kernel emits result `j` itself, with [`emit`](Self::emit).
    pub fn is_free(&self, j: usize) -> bool {
        matches!(self.results.get(j), Some(Out::Free(_)))
    }

    /// The bytes of result `j`, uninitialized. They can be taken once.
    ///
    /// # Errors
    /// If the result has no place, or its bytes were taken before.
    pub fn out_bytes(&mut self, j: usize) -> Result<&'a mut [u8]> {
        match self.results.get_mut(j).map(|out| std::mem::replace(out, Out::Absent)) {
            Some(Out::Placed { bytes, .. }) => Ok(bytes),
            Some(Out::Absent | Out::Free(_) | Out::Device { .. }) | None => {
                Err(KernelError::value(format!("result {j} with a size"), "none"))
            }
        }
    }

    /// The elements of result `j`, uninitialized. They can be taken once.
    ///
    /// # Errors
    /// If the result has no place or another element type, or was taken before.
    pub fn out<T: Element>(&mut self, j: usize) -> Result<&'a mut [T]> {
        let found = match self.results.get(j) {
            Some(Out::Placed { dtype, .. }) => Some(*dtype),
            Some(Out::Absent | Out::Free(_) | Out::Device { .. }) | None => None,
        };
        if let Some(found) = found.filter(|&d| d != T::DTYPE) {
            return Err(HostError::View { view: T::NAME, found }.into());
        }
        Ok(elements_mut(self.out_bytes(j)?))
    }

    /// Operand 0, if the kernel [moves](Prepared::moves) it and the node is its last reader. It is not in `operands`,
    /// and can be taken once.
    pub fn moved(&mut self) -> Option<Data> {
        match self.results.first_mut() {
            Some(Out::Free(slot)) => slot.take(),
            Some(Out::Absent | Out::Placed { .. } | Out::Device { .. }) | None => None,
        }
    }

    /// Sets result `j`. A result that is not used is dropped.
    ///
    /// # Errors
    /// If the result has a place, and `data` is of another element type or size.
    pub fn emit(&mut self, j: usize, data: impl Into<Data>) -> Result<()> {
        let data = data.into();
        match self.results.get_mut(j) {
            Some(Out::Free(slot)) => {
                **slot = Some(data);
                Ok(())
            }
            Some(Out::Placed { dtype, bytes }) => {
                let tensor = data.tensor().filter(|t| t.dtype() == *dtype);
                match tensor.and_then(crate::host::HostTensor::bytes) {
                    Some(from) if from.len() == bytes.len() => {
                        bytes.copy_from_slice(from);
                        Ok(())
                    }
                    _ => Err(KernelError::value(format!("{} bytes of {dtype}", bytes.len()), "others")),
                }
            }
            Some(Out::Device { dtype, .. }) => {
                Err(KernelError::value(format!("{dtype} on the device"), "others"))
            }
            Some(Out::Absent) | None => Ok(()),
        }
    }

    /// The queue to which the kernel submits its work.
    ///
    /// # Errors
    /// If the session computes in host memory.
    pub fn queue(&mut self) -> Result<&mut (dyn Queue + 'static)> {
        self.queue.as_deref_mut().ok_or_else(|| KernelError::unsupported("kernels of a device"))
    }

    /// Operand `i`, a tensor in the memory of the device.
    ///
    /// # Errors
    /// If the operand is absent, or not a tensor in device memory.
    pub fn on_device(&self, i: usize) -> Result<DeviceRef<'a>> {
        match self.data(i)? {
            DataRef::Device(tensor) => Ok(tensor),
            _ => Err(OpError::operand(i, "a tensor on the device", "another value").into()),
        }
    }

    /// The bytes of operand `i`, a tensor in the memory of the device, even if a result aliases it.
    ///
    /// # Errors
    /// If the operand is absent, or not a tensor in device memory.
    pub fn operand_on_device(&self, i: usize) -> Result<Span<'a>> {
        match self.taken.iter().find(|&&(_, operand)| operand == i) {
            Some(&(result, _)) => self.out_on_device(result),
            None => Ok(self.on_device(i)?.span),
        }
    }

    /// The bytes of result `j` in device memory, uninitialized.
    ///
    /// # Errors
    /// If the result has no place on the device.
    pub fn out_on_device(&self, j: usize) -> Result<Span<'a>> {
        match self.results.get(j) {
            Some(Out::Device { span, .. }) => Ok(*span),
            _ => Err(KernelError::value(format!("result {j} on the device"), "none")),
        }
    }

    /// The scratch memory of the kernel on the device, uninitialized.
    pub fn scratch_on_device(&self) -> Option<Span<'a>> {
        self.device_scratch
    }

    /// The scratch memory of the kernel as elements of `T`, uninitialized. It can be taken once.
    pub fn scratch<T: bytemuck::Pod>(&mut self) -> &'a mut [T] {
        let bytes = std::mem::take(&mut self.scratch);
        let whole = bytes.len() / size_of::<T>() * size_of::<T>();
        elements_mut(&mut bytes[..whole])
    }

    /// The limit for lists that the kernel makes while it runs.
    pub(crate) fn room(&self) -> Room {
        Room::of(self.max_bytes)
    }

    /// Checks the size of a result against the limit of the run.
    ///
    /// # Errors
    /// If the size exceeds the limit.
    pub fn check_size(&self, bytes: u64) -> Result<()> {
        check_size(bytes, self.max_bytes)
    }
}

/// Bytes as elements. Empty slices need no alignment.
pub(crate) fn elements_mut<T: bytemuck::Pod>(bytes: &mut [u8]) -> &mut [T] {
    if bytes.is_empty() { &mut [] } else { bytemuck::cast_slice_mut(bytes) }
}
