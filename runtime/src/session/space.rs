//! The memory that a session computes in: host memory or device memory. Arenas are blocks of this memory, and copies
//! connect it with the host.

use super::error::ExecuteError;
use crate::backend::Backend;
use crate::bytes::AlignedBytes;
use crate::data::{Data, DataRef, Maybe, Sequence};
use crate::device::{
    Device, DeviceError, DeviceMemory, DeviceRef, DeviceTensor, Download, Queue, Recording, Rows, Span,
};
use crate::host::{HostError, HostTensor, TensorRef};
use crate::kernel::KernelError;
use ampc_ir::DType;
use std::sync::Arc;

type Result<T> = std::result::Result<T, KernelError>;

/// The memory that a session computes in, with the queues of its work on a device.
pub(crate) enum Space {
    /// Host memory. Work is done when a kernel returns.
    Host,
    /// Device memory. Strings stay in host memory.
    Device(OnDevice),
}

/// A device, and the queues of a session.
pub(crate) struct OnDevice {
    backend: Arc<dyn Backend>,
    /// The first queue of kernels, which also has all copies except those of [`transfers`](Space::transfers).
    queue: Box<dyn Queue>,
    /// The other queues of kernels.
    others: Vec<Box<dyn Queue>>,
    /// The queue on which inputs of later runs are copied while kernels run.
    transfers: Option<Box<dyn Queue>>,
    /// A block of 0 bytes.
    nothing: Arc<dyn DeviceMemory>,
}

impl Space {
    /// The memory of a backend.
    ///
    /// # Errors
    /// If the device cannot create a queue.
    pub(crate) fn of(backend: &Arc<dyn Backend>) -> std::result::Result<Space, DeviceError> {
        Ok(match backend.device() {
            Some(device) => {
                let others = (1..device.kernel_queues()).map(|_| device.queue());
                let (others, backend) = (others.collect::<std::result::Result<_, _>>()?, backend.clone());
                let (queue, nothing) = (device.queue()?, device.allocate(0)?);
                Space::Device(OnDevice { backend, queue, others, transfers: None, nothing })
            }
            None => Space::Host,
        })
    }

    /// The first queue of a device.
    pub(super) fn queue(&mut self) -> Option<&mut (dyn Queue + 'static)> {
        self.queue_at(0)
    }

    /// A queue of a device.
    ///
    /// # Panics
    /// If the index is out of range: kernels with such a queue are rejected when they are prepared.
    pub(super) fn queue_at(&mut self, at: usize) -> Option<&mut (dyn Queue + 'static)> {
        let Space::Device(device) = self else { return None };
        Some(if at == 0 { &mut *device.queue } else { &mut *device.others[at - 1] })
    }

    /// The queue of a device on which inputs are copied while kernels run.
    ///
    /// # Errors
    /// If the device cannot create another queue.
    pub(super) fn transfers(
        &mut self,
    ) -> std::result::Result<Option<&mut (dyn Queue + 'static)>, DeviceError> {
        let Space::Device(device) = self else { return Ok(None) };
        if device.transfers.is_none() {
            device.transfers = Some(device.device().queue()?);
        }
        Ok(device.transfers.as_deref_mut())
    }

    /// True if this is device memory.
    pub(super) fn is_on_device(&self) -> bool {
        matches!(self, Space::Device(_))
    }

    /// True if kernels run on several queues.
    pub(super) fn has_several_queues(&self) -> bool {
        matches!(self, Space::Device(device) if !device.others.is_empty())
    }

    /// True if kernels can read an input in place: in device memory, at an offset that the device accepts.
    pub(super) fn reads_in_place(&self, input: DataRef<'_>) -> bool {
        match (self, input) {
            (Space::Device(device), DataRef::Device(tensor)) => {
                tensor.span.offset.is_multiple_of(device.device().input_alignment())
            }
            _ => false,
        }
    }

    /// True if kernels can be recorded and replayed.
    pub(super) fn can_record(&self) -> bool {
        matches!(self, Space::Device(device) if device.device().can_record())
    }

    /// Lets all queues of kernels wait for each other.
    pub(super) fn fence(&mut self) -> std::result::Result<(), DeviceError> {
        self.gather()?;
        self.spread()
    }

    /// Lets the other queues of kernels wait for the first.
    pub(super) fn spread(&mut self) -> std::result::Result<(), DeviceError> {
        let Space::Device(OnDevice { queue, others, .. }) = self else { return Ok(()) };
        if !others.is_empty() {
            let event = queue.signal()?;
            others.iter_mut().try_for_each(|other| other.wait(&event))?;
        }
        Ok(())
    }

    /// Lets the first queue of kernels wait for the others.
    fn gather(&mut self) -> std::result::Result<(), DeviceError> {
        let Space::Device(OnDevice { queue, others, .. }) = self else { return Ok(()) };
        others.iter_mut().try_for_each(|other| queue.wait(&other.signal()?))
    }

    /// Records the kernels that `launch` launches; `None` if the device cannot record them.
    pub(super) fn record(
        &mut self,
        launch: impl FnOnce(&mut Space) -> std::result::Result<(), ExecuteError>,
    ) -> std::result::Result<Option<Recording>, ExecuteError> {
        // Earlier work does not belong to the recording.
        self.fence()?;
        let Some(queue) = self.queue() else { return Ok(None) };
        let refused = |error: ExecuteError| if error.is_refusal() { Ok(None) } else { Err(error) };
        if let Err(error) = queue.begin_recording() {
            return refused(error.into());
        }
        // The recording ends even after an error.
        let launched = self.spread().map_err(ExecuteError::from).and_then(|()| launch(self));
        let launched = launched.and_then(|()| Ok(self.gather()?));
        let recorded = self.queue().map(Queue::end_recording).transpose().map_err(ExecuteError::from);
        match (launched, recorded) {
            // A lost queue does no later work.
            (_, Err(error)) if !error.is_refusal() => Err(error),
            (launched, recorded) => launched.and(recorded).or_else(refused),
        }
    }

    /// Starts downloads of 0 bytes, on all queues of kernels except the first, and on the first if `with_first`. They
    /// end when the work submitted so far is done, with its failure.
    pub(super) fn ends(
        &mut self,
        with_first: bool,
    ) -> std::result::Result<Vec<Box<dyn Download>>, DeviceError> {
        let Space::Device(OnDevice { queue, others, nothing, .. }) = self else { return Ok(Vec::new()) };
        let first = with_first.then_some(queue).into_iter();
        let span = Span { memory: nothing, offset: 0, len: 0 };
        first.chain(others).map(|queue| queue.start_download(span)).collect()
    }

    /// A block of this memory: zeroed on the host, uninitialized on a device.
    ///
    /// # Errors
    /// If the allocation fails, or the device fails.
    pub(super) fn block(&self, bytes: usize) -> std::result::Result<Block, DeviceError> {
        match self {
            Space::Host => {
                let no_memory = DeviceError::NoMemory { bytes: bytes as u64 };
                AlignedBytes::zeroed(bytes).map(Block::Host).ok_or(no_memory)
            }
            Space::Device(device) => device.allocate(bytes).map(Block::Device),
        }
    }

    /// A tensor in this memory: zeroed on the host, uninitialized on a device.
    pub(super) fn tensor(&self, dtype: DType, dims: &[u64]) -> Result<Data> {
        match self {
            Space::Device(device) if dtype != DType::String => Ok(Data::Device(device.tensor(dtype, dims)?)),
            _ => Ok(Data::Tensor(HostTensor::zeros(dtype, dims)?)),
        }
    }

    /// A copy in this memory of a value in any memory. Parts that are already in this memory and own their elements
    /// are shared.
    pub(super) fn bring(&mut self, data: DataRef<'_>) -> Result<Data> {
        match (self, data) {
            (Space::Host, _) => Ok(data.to_data()?),
            (Space::Device(device), DataRef::Tensor(tensor)) => match tensor.bytes() {
                Some(bytes) => {
                    let made = device.tensor(tensor.dtype(), tensor.dims())?;
                    device.queue.upload(bytes, made.view().span)?;
                    Ok(Data::Device(made))
                }
                None => Ok(data.to_data()?),
            },
            (Space::Device(device), DataRef::Device(tensor)) => Ok(Data::Device(device.copy(tensor)?)),
            (space, DataRef::Sequence(sequence)) => {
                let items = sequence.items().iter().map(|item| space.keep(item));
                let items = items.collect::<Result<Vec<Data>>>()?;
                Ok(Data::Sequence(Sequence::new(sequence.element.clone(), items)))
            }
            (space, DataRef::Optional(maybe)) => {
                let value = maybe.value.as_deref().map(|value| space.keep(value)).transpose()?;
                Ok(Data::Optional(Maybe { element: maybe.element.clone(), value: value.map(Box::new) }))
            }
        }
    }

    /// [`bring`](Self::bring) for a value that owns its elements.
    fn keep(&mut self, data: &Data) -> Result<Data> {
        match (&*self, data) {
            (Space::Device(_), Data::Device(tensor)) => Ok(Data::Device(tensor.clone())),
            _ => self.bring(data.view()),
        }
    }

    /// A copy in host memory, after all work that produces the value.
    pub(super) fn fetch(&mut self, data: DataRef<'_>) -> Result<Data> {
        match (self, data) {
            (Space::Device(device), DataRef::Device(tensor)) => {
                Ok(Data::Tensor(HostTensor::filled(tensor.dtype, tensor.dims, |bytes| {
                    device.queue.download(tensor.span, bytes).map_err(KernelError::from)
                })?))
            }
            (Space::Host, _) | (_, DataRef::Tensor(_)) => Ok(data.to_data()?),
            (space, DataRef::Sequence(sequence)) => {
                let items = sequence.items().iter().map(|item| space.fetch(item.view()));
                let items = items.collect::<Result<Vec<Data>>>()?;
                Ok(Data::Sequence(Sequence::new(sequence.element.clone(), items)))
            }
            (space, DataRef::Optional(maybe)) => {
                let value = maybe.value.as_deref().map(|value| space.fetch(value.view())).transpose()?;
                Ok(Data::Optional(Maybe { element: maybe.element.clone(), value: value.map(Box::new) }))
            }
        }
    }

    /// Shows `visit` a value in host memory; a value that is already there is not copied.
    pub(super) fn on_host<R>(
        &mut self,
        data: DataRef<'_>,
        visit: impl FnOnce(DataRef<'_>) -> R,
    ) -> Result<R> {
        match self {
            Space::Host => Ok(visit(data)),
            Space::Device(_) => Ok(visit(self.fetch(data)?.view())),
        }
    }

    /// Waits for all work. If work of several queues failed, returns the error of the first queue.
    pub(super) fn finish(&mut self) -> std::result::Result<(), DeviceError> {
        let Space::Device(OnDevice { queue, others, transfers, .. }) = self else { return Ok(()) };
        let rest = others.iter_mut().chain(transfers).map(|queue| queue.finish());
        let rest = rest.fold(Ok(()), std::result::Result::and);
        queue.finish().and(rest)
    }
}

impl OnDevice {
    fn device(&self) -> &dyn Device {
        self.backend.device().expect("a space on a device has a backend with a device")
    }

    fn allocate(&self, bytes: usize) -> std::result::Result<Arc<dyn DeviceMemory>, DeviceError> {
        self.device().allocate(bytes)
    }

    fn tensor(&self, dtype: DType, dims: &[u64]) -> Result<DeviceTensor> {
        let bytes = dtype.tensor_bytes(dims).and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| HostError::OutOfMemory { dtype, dims: dims.to_vec() })?;
        Ok(DeviceTensor::new(dtype, dims.to_vec(), self.allocate(bytes)?))
    }

    fn copy(&mut self, tensor: DeviceRef<'_>) -> Result<DeviceTensor> {
        let made = self.tensor(tensor.dtype, tensor.dims)?;
        copy_span(&mut *self.queue, tensor.span, made.view().span)?;
        Ok(made)
    }
}

/// Copies a range of device memory to a target of the same length.
pub(super) fn copy_span(
    queue: &mut dyn Queue,
    from: Span<'_>,
    to: Span<'_>,
) -> std::result::Result<(), DeviceError> {
    let rows = |span: Span<'_>| (span.offset, span.len);
    let ((from_offset, stride), (to_offset, len)) = (rows(from), rows(to));
    let from = Rows { memory: from.memory, offset: from_offset, stride };
    queue.copy(from, Rows { memory: to.memory, offset: to_offset, stride: len }, 1, len)
}

/// A block of memory in a space.
#[derive(Debug)]
pub(super) enum Block {
    Host(AlignedBytes),
    Device(Arc<dyn DeviceMemory>),
}

impl Default for Block {
    /// A block of 0 bytes.
    fn default() -> Block {
        Block::Host(AlignedBytes::default())
    }
}

impl Block {
    pub(super) fn len(&self) -> usize {
        match self {
            Block::Host(bytes) => bytes.as_slice().len(),
            Block::Device(memory) => memory.len(),
        }
    }

    /// The bytes of host memory; empty for a device.
    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            Block::Host(bytes) => bytes.as_mut_slice(),
            Block::Device(_) => &mut [],
        }
    }

    /// A range of bytes, for reading.
    pub(super) fn range(&self, offset: usize, len: usize) -> Bytes<'_> {
        match self {
            Block::Host(bytes) => Bytes::Host(&bytes.as_slice()[offset..offset + len]),
            Block::Device(memory) => Bytes::Device(Span { memory, offset, len }),
        }
    }

    /// Writes host bytes to a range.
    pub(super) fn write(&mut self, space: &mut Space, offset: usize, from: &[u8]) -> Result<()> {
        match (self, space.queue()) {
            (Block::Host(bytes), _) => {
                bytes.as_mut_slice()[offset..offset + from.len()].copy_from_slice(from);
                Ok(())
            }
            (Block::Device(memory), Some(queue)) => {
                Ok(queue.upload(from, Span { memory, offset, len: from.len() })?)
            }
            (Block::Device(_), None) => Err(HostError::OnDevice.into()),
        }
    }
}

/// Bytes in the memory of a space.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bytes<'a> {
    Host(&'a [u8]),
    Device(Span<'a>),
}

impl<'a> Bytes<'a> {
    /// The bytes as a tensor of numbers.
    pub(super) fn as_tensor(self, dtype: DType, dims: &'a [u64]) -> DataRef<'a> {
        match self {
            Bytes::Host(bytes) => DataRef::Tensor(TensorRef::of_numbers(dtype, dims, bytes)),
            Bytes::Device(span) => DataRef::Device(DeviceRef { dtype, dims, span }),
        }
    }
}
