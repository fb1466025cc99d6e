//! Kernels: those of the CPU on operands widened to f64, alone or in groups, launched on the queue of the device.

use super::Reference;
use super::device::{Failure, InOrder, Part, ReferenceDevice};
use ampc_ir::infer::infer_actual;
use ampc_ir::op::OpKind;
use ampc_ir::views::{Actual, NodeView};
use ampc_ir::{DType, Node, Shape, TensorData, Type, Value};
use ampc_runtime::backend::{Backend, GroupSite, Io, KernelError, Out, Prepared, Site, Wanted};
use ampc_runtime::data::{Maybe, Sequence};
use ampc_runtime::device::{Device, DeviceError, DeviceRef, DeviceTensor, Queue, Span};
use ampc_runtime::{Data, DataRef, HostError, HostTensor, TensorRef};
use half::{bf16, f16};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A kernel of the CPU on operands that are widened, or as they are.
pub(super) struct Kernel {
    device: Arc<ReferenceDevice>,
    /// The kernel of a node; `None` of a group.
    cpu: Option<Prepared>,
    /// For each operand, true if it is widened.
    widened: Vec<bool>,
    /// The types of the operands.
    operands: Vec<Option<Type>>,
    /// The types of the results that the kernel gives, and the types that are stored.
    results: Vec<Option<(Type, Type)>>,
    /// The nodes of a group.
    parts: Vec<Member>,
    /// The results of a group as numbers of values.
    order: Vec<usize>,
}

/// A node of a group: its kernel, and its operands and results as numbers of values. The first values are the operands of
/// the group.
struct Member {
    node: Node,
    kernel: Kernel,
    operands: Vec<Option<usize>>,
    results: Vec<Option<usize>>,
}

impl Kernel {
    pub(super) fn new(backend: &Reference, site: &Site<'_>, own: Prepared) -> Result<Kernel, KernelError> {
        let n = site.view.n_operands();
        let operands: Vec<Option<Type>> =
            (0..n).map(|i| if site.has(i) { site.view.operand_type(i).cloned() } else { None }).collect();
        let widened = if backend.widens { Kernel::widened(backend, site, &operands) } else { None };
        if let Some(kernel) = widened {
            return Ok(kernel);
        }
        let results = site.results.iter().map(|ty| ty.clone().map(|ty| (ty.clone(), ty))).collect();
        let (cpu, parts) = (Some(own), Vec::new());
        Ok(Kernel {
            device: backend.device.clone(),
            cpu,
            widened: vec![false; n],
            operands,
            results,
            parts,
            order: Vec::new(),
        })
    }

    /// The kernel on f64, if the operator has that form.
    fn widened(backend: &Reference, site: &Site<'_>, operands: &[Option<Type>]) -> Option<Kernel> {
        let view = &site.view;
        let is_float = |ty: &Option<Type>| {
            let dtype = ty.as_ref().and_then(Type::as_tensor).map(|t| t.dtype);
            dtype.is_some_and(|dtype| dtype.is_low() || dtype == DType::F32)
        };
        let widened: Vec<bool> = operands.iter().map(is_float).collect();
        // Operators whose meaning depends on the element type, or that draw numbers.
        let depends = matches!(
            view.kind(),
            OpKind::Cast
                | OpKind::CastLike
                | OpKind::BitCast
                | OpKind::Dropout
                | OpKind::NonZero
                | OpKind::DFT
        );
        if depends || !widened.contains(&true) {
            return None;
        }
        let wide = |(ty, widened): (&Option<Type>, &bool)| {
            let tensor = ty.as_ref()?.as_tensor();
            match tensor.filter(|_| *widened) {
                Some(tensor) => Some(Type::tensor(DType::F64, tensor.shape.clone())),
                None => ty.clone(),
            }
        };
        let types: Vec<Option<Type>> = operands.iter().zip(&widened).map(wide).collect();
        let known = |ty: &Option<Type>| {
            ty.as_ref().is_none_or(|ty| ty.as_tensor().is_none_or(|t| t.shape.to_known().is_some()))
        };
        if !types.iter().all(known) {
            return None;
        }
        let value = |i: usize| -> Option<Arc<TensorData>> {
            let data = view.constant(i)?;
            if !widened[i] {
                return Some(data);
            }
            let tensor = widen(HostTensor::from_data(&data).ok()?.view()).ok()?;
            TensorData::from_bytes(DType::F64, tensor.dims(), tensor.bytes()?.to_vec()).ok().map(Arc::new)
        };
        let values: Vec<Option<Arc<TensorData>>> = (0..operands.len()).map(value).collect();
        let actual = Actual { types: &types, values: &values, call_attrs: view.call_attrs() };
        let inferred = infer_actual(view.module, view.node, actual).ok()??.types;
        let result = |(j, ty): (usize, &Option<Type>)| {
            let Some(stored) = ty else { return Some(None) };
            let made = inferred.get(j)?;
            let (Some(made), Some(stored)) = (made.as_tensor(), stored.as_tensor()) else { return None };
            let shape = stored.shape.clone();
            shape.to_known()?;
            let rounds = made.dtype == stored.dtype
                || made.dtype == DType::F64 && (stored.dtype.is_low() || stored.dtype == DType::F32);
            rounds.then(|| {
                let stored = Type::tensor(stored.dtype, shape.clone());
                Some((Type::tensor(made.dtype, shape), stored))
            })
        };
        let results: Vec<Option<(Type, Type)>> =
            site.results.iter().enumerate().map(result).collect::<Option<_>>()?;
        let made: Vec<Option<Type>> =
            results.iter().map(|r| r.as_ref().map(|(made, _)| made.clone())).collect();
        let view = NodeView::with_actual(view.module, view.node, actual)?;
        let cpu = backend.cpu.prepare(&site.with(view, &made)).ok()?;
        Some(Kernel {
            device: backend.device.clone(),
            cpu: Some(cpu),
            widened,
            operands: operands.to_vec(),
            results,
            parts: Vec::new(),
            order: Vec::new(),
        })
    }

    /// Emits a view that shares the bytes of operand 0, if the result has no place. True if it does.
    pub(super) fn share(&self, io: &mut Io<'_>) -> Result<bool, KernelError> {
        let stored = self.results.first().and_then(Option::as_ref).and_then(|(_, stored)| stored.as_tensor());
        let known = stored.and_then(|stored| Some((stored.dtype, Shape::to_known(&stored.shape)?)));
        let (true, Some((dtype, dims)), Ok(from)) = (io.is_free(0), known, io.on_device(0)) else {
            return Ok(false);
        };
        io.emit(0, Data::Device(DeviceTensor::of(dtype, dims, from.span)))?;
        Ok(true)
    }

    /// The kernel of a group: its nodes one after the other, with the values between them rounded as without a group.
    pub(super) fn of_group(backend: &Reference, group: &GroupSite<'_>) -> Result<Kernel, KernelError> {
        let module = group.sites[0].view.module;
        let mut numbers: BTreeMap<Value, usize> = group.operands.iter().copied().zip(0..).collect();
        let mut parts = Vec::new();
        for site in group.sites {
            let data = module.node(site.view.node);
            let kernel = Kernel::new(backend, site, backend.cpu.prepare(site)?)?;
            let operands = data.formal_operands().iter().map(|value| value.map(|value| numbers[&value]));
            let operands = operands.collect();
            let results = data.results().iter().map(|value| {
                let next = numbers.len();
                value.map(|value| *numbers.entry(value).or_insert(next))
            });
            parts.push(Member { node: site.view.node, kernel, operands, results: results.collect() });
        }
        let ty = |value: &Value| Some(module.value(*value).ty.clone());
        let results = group.results.iter().map(|value| ty(value).map(|ty| (ty.clone(), ty)));
        let order: Vec<usize> = group.results.iter().map(|value| numbers[value]).collect();
        Ok(Kernel {
            device: backend.device.clone(),
            cpu: None,
            widened: vec![false; group.operands.len()],
            operands: group.operands.iter().map(ty).collect(),
            results: results.collect(),
            parts,
            order,
        })
    }

    /// Computes the results of the nodes of a group.
    fn run_group(&self, operands: &[Option<Data>], max_bytes: u64) -> Result<Vec<Option<Data>>, KernelError> {
        let mut values: Vec<Option<Data>> = operands.to_vec();
        for Member { node, kernel, operands, results } in &self.parts {
            let read: Vec<Option<Data>> =
                operands.iter().map(|number| number.and_then(|number| values[number].clone())).collect();
            let wanted: Vec<Wanted> = results
                .iter()
                .enumerate()
                .map(|(j, number)| number.map_or(Wanted::Absent, |_| wanted_of(kernel, j)))
                .collect();
            let made = kernel
                .run(&read, &wanted, max_bytes)
                .map_err(|error| KernelError::from(DeviceError::Kernel { node: *node, error }))?;
            for (number, data) in results.iter().zip(made) {
                if let Some(number) = *number {
                    values.resize(values.len().max(number + 1), None);
                    values[number] = data;
                }
            }
        }
        Ok(self.order.iter().map(|&number| values[number].clone()).collect())
    }

    /// Computes results from values in host memory.
    fn run(
        &self,
        operands: &[Option<Data>],
        wanted: &[Wanted],
        max_bytes: u64,
    ) -> Result<Vec<Option<Data>>, KernelError> {
        if !self.parts.is_empty() {
            return self.run_group(operands, max_bytes);
        }
        let mut wide: Vec<Option<Data>> = Vec::new();
        for (i, data) in operands.iter().enumerate() {
            wide.push(match data {
                Some(Data::Tensor(tensor)) if self.widened[i] => Some(widen(tensor.view())?.into()),
                other => other.clone(),
            });
        }
        let wide: Vec<Option<DataRef<'_>>> = wide.iter().map(|data| data.as_ref().map(Data::view)).collect();
        let cpu = self.cpu.as_ref().expect("the kernel of a node");
        let made = cpu.run_alone(&wide, wanted, max_bytes)?;
        let rounded = made.into_iter().enumerate().map(|(j, data)| {
            let stored =
                self.results.get(j).and_then(Option::as_ref).and_then(|(_, stored)| stored.as_tensor());
            match (data, stored) {
                (Some(Data::Tensor(tensor)), Some(stored)) if stored.dtype != tensor.dtype() => {
                    Ok(Some(round(&tensor, stored.dtype)?.into()))
                }
                (data, _) => Ok(data),
            }
        });
        rounded.collect()
    }
}

fn widen(tensor: TensorRef<'_>) -> Result<HostTensor, HostError> {
    HostTensor::from_slice(tensor.dims(), &tensor.f64s()?.collect::<Vec<f64>>())
}

/// Elements rounded to nearest even, once.
fn round(tensor: &HostTensor, dtype: DType) -> Result<HostTensor, HostError> {
    let wide = tensor.as_slice::<f64>()?;
    #[expect(clippy::cast_possible_truncation, reason = "rounding")]
    match dtype {
        DType::F16 => {
            HostTensor::from_slice(tensor.dims(), &wide.iter().map(|&x| f16::from_f64(x)).collect::<Vec<_>>())
        }
        DType::BF16 => HostTensor::from_slice(
            tensor.dims(),
            &wide.iter().map(|&x| bf16::from_f64(x)).collect::<Vec<_>>(),
        ),
        _ => HostTensor::from_slice(tensor.dims(), &wide.iter().map(|&x| x as f32).collect::<Vec<_>>()),
    }
}

/// An operand of a job.
enum Operand {
    Device(Part, DType, Vec<u64>),
    Other(Data),
}

/// Adds a node to the queue. A node whose results have places only when it has run is waited for.
pub(super) fn launch(kernel: &Arc<Kernel>, io: &mut Io<'_>) -> Result<(), KernelError> {
    let scratch = io.scratch_on_device().map(Part::of);
    let n = kernel.operands.len();
    let mut operands: Vec<Option<Operand>> = Vec::new();
    for i in 0..n {
        operands.push(match io.operands.get(i).copied().flatten() {
            Some(DataRef::Device(tensor)) => Some(device_operand(tensor)),
            Some(other) => Some(Operand::Other(fetched(io.queue()?, other)?)),
            None => match io.taken.iter().find(|&&(_, operand)| operand == i) {
                Some(&(result, _)) => Some(taken_operand(kernel, io, i, result)?),
                None => None,
            },
        });
    }
    let is_free = |out: &Out<'_>| matches!(out, Out::Free(_) | Out::Placed { .. });
    let is_whole = |o: &Option<Operand>| !matches!(o, Some(Operand::Other(_)));
    if io.results.iter().any(is_free) || !operands.iter().all(is_whole) {
        return run_now(kernel, operands, io);
    }
    let targets: Vec<Option<(Part, DType)>> = io
        .results
        .iter()
        .map(|out| match out {
            Out::Device { dtype, span } => Some((Part::of(*span), *dtype)),
            _ => None,
        })
        .collect();
    let wanted = wanted(kernel, &targets);
    let max_bytes = io.max_bytes;
    let part = |operand: &Option<Operand>| match operand {
        Some(Operand::Device(part, ..)) => Some(part.clone()),
        _ => None,
    };
    let reads: Vec<Part> = operands.iter().filter_map(part).collect();
    let writes: Vec<Part> =
        targets.iter().flatten().map(|(part, _)| part.clone()).chain(scratch.clone()).collect();
    let kernel = kernel.clone();
    let queue: &mut dyn Any = io.queue()?;
    let jobs: &mut InOrder = queue.downcast_mut().expect("a queue of this device");
    jobs.called()?;
    jobs.add(reads, writes, move || {
        let mut values = Vec::new();
        let failed = |error| Failure::Kernel(Arc::new(error));
        for operand in &operands {
            values.push(match operand {
                Some(Operand::Device(part, dtype, dims)) => {
                    let bytes = part.read().map_err(Failure::Poison)?;
                    let tensor = HostTensor::from_bytes(*dtype, dims, &bytes);
                    Some(tensor.map_err(|error| failed(error.into()))?.into())
                }
                Some(Operand::Other(data)) => Some(data.clone()),
                None => None,
            });
        }
        let made = kernel.run(&values, &wanted, max_bytes).map_err(failed)?;
        scratch.iter().for_each(Part::poison);
        for (target, data) in targets.iter().zip(made) {
            if let (Some((part, _)), Some(Data::Tensor(tensor))) = (target, data) {
                part.write(tensor.bytes().unwrap_or_default());
            }
        }
        Ok(())
    });
    Ok(())
}

fn device_operand(tensor: DeviceRef<'_>) -> Operand {
    Operand::Device(Part::of(tensor.span), tensor.dtype, tensor.dims.to_vec())
}

/// An operand that has the bytes of a result before the result is written.
fn taken_operand(
    kernel: &Kernel,
    io: &mut Io<'_>,
    operand: usize,
    result: usize,
) -> Result<Operand, KernelError> {
    if let Some(Out::Device { span, .. }) = io.results.get(result) {
        let ty = kernel.operands[operand].as_ref().and_then(Type::as_tensor).expect("a tensor of known dims");
        let dims = ty.shape.to_known().expect("a tensor of known dims");
        return Ok(Operand::Device(Part::of(*span), ty.dtype, dims));
    }
    let moved = io.moved().expect("an operand that is moved");
    Ok(Operand::Other(fetched(io.queue()?, moved.view())?))
}

fn wanted(kernel: &Kernel, targets: &[Option<(Part, DType)>]) -> Vec<Wanted> {
    let of = |(j, target): (usize, &Option<(Part, DType)>)| match target {
        None => Wanted::Absent,
        Some(_) => wanted_of(kernel, j),
    };
    targets.iter().enumerate().map(of).collect()
}

/// Result `j` of a kernel, of known dims or of any.
fn wanted_of(kernel: &Kernel, j: usize) -> Wanted {
    let made = kernel.results[j].as_ref().map(|(made, _)| made).and_then(Type::as_tensor);
    let known = made.and_then(|made| Some(Wanted::Tensor(made.dtype, Shape::to_known(&made.shape)?)));
    known.unwrap_or(Wanted::Any)
}

/// Runs a node at once, with its operands in host memory.
fn run_now(kernel: &Kernel, operands: Vec<Option<Operand>>, io: &mut Io<'_>) -> Result<(), KernelError> {
    let mut values = Vec::new();
    for operand in operands {
        values.push(match operand {
            Some(Operand::Device(part, dtype, dims)) => {
                let span = Span { memory: &part.memory, offset: part.range.start, len: part.range.len() };
                Some(fetched(io.queue()?, DataRef::Device(DeviceRef { dtype, dims: &dims, span }))?)
            }
            Some(Operand::Other(data)) => Some(data),
            None => None,
        });
    }
    let wanted: Vec<Wanted> = io
        .results
        .iter()
        .enumerate()
        .map(|(j, out)| match out {
            Out::Absent => Wanted::Absent,
            Out::Free(_) => Wanted::Any,
            Out::Placed { .. } | Out::Device { .. } => wanted_of(kernel, j),
        })
        .collect();
    let made = kernel.run(&values, &wanted, io.max_bytes)?;
    for (j, data) in made.into_iter().enumerate() {
        let Some(data) = data else { continue };
        match &io.results[j] {
            Out::Device { span, .. } => {
                let (span, bytes) = (*span, data.tensor().and_then(HostTensor::bytes).map(<[u8]>::to_vec));
                io.queue()?.upload(&bytes.unwrap_or_default(), span)?;
            }
            Out::Absent => {}
            Out::Free(_) | Out::Placed { .. } => {
                let data = sent(&kernel.device, io.queue()?, data)?;
                io.emit(j, data)?;
            }
        }
    }
    Ok(())
}

/// A value in host memory, with everything in it.
fn fetched(queue: &mut (dyn Queue + 'static), data: DataRef<'_>) -> Result<Data, KernelError> {
    Ok(match data {
        DataRef::Device(tensor) => {
            let mut bytes = vec![0; tensor.span.len];
            queue.download(tensor.span, &mut bytes)?;
            HostTensor::from_bytes(tensor.dtype, tensor.dims, &bytes)?.into()
        }
        DataRef::Tensor(_) => data.to_data()?,
        DataRef::Sequence(sequence) => {
            let items = sequence.items().iter().map(|item| fetched(queue, item.view()));
            Data::Sequence(Sequence::new(
                sequence.element.clone(),
                items.collect::<Result<_, KernelError>>()?,
            ))
        }
        DataRef::Optional(maybe) => {
            let value = maybe.value.as_ref().map(|value| fetched(queue, value.view())).transpose()?;
            Data::Optional(Maybe { element: maybe.element.clone(), value: value.map(Box::new) })
        }
    })
}

/// A value with all its tensors of numbers on the device.
fn sent(
    device: &ReferenceDevice,
    queue: &mut (dyn Queue + 'static),
    data: Data,
) -> Result<Data, KernelError> {
    Ok(match data {
        Data::Tensor(tensor) if tensor.bytes().is_some() => {
            let bytes = tensor.bytes().unwrap_or_default();
            let memory = device.allocate(bytes.len())?;
            let made = DeviceTensor::new(tensor.dtype(), tensor.dims().to_vec(), memory);
            queue.upload(bytes, made.view().span)?;
            Data::Device(made)
        }
        Data::Sequence(sequence) => {
            let items = sequence.items().iter().map(|item| sent(device, queue, item.clone()));
            let items = items.collect::<Result<_, KernelError>>()?;
            Data::Sequence(Sequence::new(sequence.element.clone(), items))
        }
        Data::Optional(maybe) => {
            let value = maybe.value.map(|value| sent(device, queue, *value)).transpose()?;
            Data::Optional(Maybe { element: maybe.element, value: value.map(Box::new) })
        }
        other => other,
    })
}
