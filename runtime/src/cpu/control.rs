//! Nodes with bodies, and calls: what goes into a body and what comes out.
//!
//! Bodies read captures where they are; what a body is given and what it gives is handed over value by value.

mod flex;

use super::RunError;
use super::exec::{Frame, Given, Run, run_graph};
use super::kernel::KernelError;
use crate::data::{Data, DataRef, Sequence};
use crate::host::{HostError, HostTensor, TensorRef};
use ampc_ir::attr::AttrValue;
use ampc_ir::infer::call_attrs;
use ampc_ir::module::Op;
use ampc_ir::op::OpKind;
use ampc_ir::views::control::ScanView;
use ampc_ir::views::{NodeView, OpError, Part, normalize_axis};
use ampc_ir::{Attr, DType, GraphId, Node, Type};
use rustc_hash::FxHashMap;

/// Whether nodes of this operator have bodies.
pub(super) fn is_control(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::If | OpKind::Loop | OpKind::Scan | OpKind::SequenceMap | OpKind::PreviewFlexAttention
    )
}

type Frames = FxHashMap<GraphId, Box<Frame>>;
type Operands<'a> = [Option<DataRef<'a>>];

/// Runs a node with bodies or a call, and gives its results.
pub(super) fn run(
    run: &mut Run<'_>,
    node: Node,
    frames: &mut Frames,
    operands: &Operands<'_>,
    attrs: Option<&[Attr]>,
) -> Result<Vec<Option<Data>>, RunError> {
    let program = run.program;
    let data = program.module.node(node);
    let at_node = |error: KernelError| RunError::Node { node, error };
    match data.op {
        Op::Call(function) => {
            let attrs = call_attrs(&program.module, node, function, attrs.unwrap_or_default());
            let graph = program.module.function(function).graph;
            let given = Given { inputs: operands, operands: &[], attrs: Some(&attrs) };
            body(run, frames, graph, given, node)
        }
        Op::Schema(schema) => {
            let mut call = Call { run, node, frames, operands, attrs };
            match schema.kind {
                OpKind::If => call.branch(),
                OpKind::Loop => call.repeat(),
                OpKind::Scan => call.scan(),
                OpKind::PreviewFlexAttention => call.flex_attention(),
                _ => call.map(),
            }
        }
        Op::Custom { .. } => Err(at_node(KernelError::unsupported("operators that it does not know"))),
    }
}

/// Runs a graph and takes its outputs.
fn body(
    run: &mut Run<'_>,
    frames: &mut Frames,
    graph: GraphId,
    given: Given<'_>,
    node: Node,
) -> Result<Vec<Option<Data>>, RunError> {
    let frame = frames.entry(graph).or_default();
    if let Some(observer) = run.observer.as_deref_mut() {
        observer.enter(node, graph);
    }
    run_graph(run, graph, frame, given)?;
    if let Some(observer) = run.observer.as_deref_mut() {
        observer.leave();
    }
    let plan = run.program.plan(graph);
    let outputs = 0..plan.outputs.len();
    let taken = outputs.map(|i| frame.take_output(run.program, plan, given, i));
    taken.collect::<Result<_, HostError>>().map_err(|e| RunError::Node { node, error: e.into() })
}

struct Call<'c, 'r, 'a> {
    run: &'c mut Run<'r>,
    node: Node,
    frames: &'c mut Frames,
    operands: &'c Operands<'a>,
    attrs: Option<&'c [Attr]>,
}

impl<'a> Call<'_, '_, 'a> {
    fn error(&self, error: impl Into<KernelError>) -> RunError {
        RunError::Node { node: self.node, error: error.into() }
    }

    fn n_formal(&self) -> usize {
        self.run.program.module.node(self.node).n_formal()
    }

    fn operand(&self, i: usize) -> Option<DataRef<'a>> {
        self.operands[..self.n_formal()].get(i).copied().flatten()
    }

    fn graph(&self, name: &str) -> Result<GraphId, RunError> {
        let module = &self.run.program.module;
        let attrs = module.node(self.node).attrs();
        match attrs.iter().find(|a| module.text(a.name) == name).map(|a| &a.value) {
            Some(AttrValue::Graph(graph)) => Ok(*graph),
            _ => Err(self.error(OpError::attr(name, "a body", "none"))),
        }
    }

    fn body(&mut self, graph: GraphId, inputs: &Operands<'_>) -> Result<Vec<Option<Data>>, RunError> {
        let given = Given { inputs, operands: self.operands, attrs: self.attrs };
        body(self.run, self.frames, graph, given, self.node)
    }

    /// A scalar of the type that formal `i` of a body has: some declare a list of one.
    fn scalar(&self, graph: GraphId, i: usize, dtype: DType, bytes: &[u8]) -> Result<Data, RunError> {
        let module = &self.run.program.module;
        let formal = module.graph(graph).inputs().get(i);
        let rank = formal.and_then(|&v| module.value(v).ty.shape()?.rank()).unwrap_or(0);
        let dims = vec![1; rank.min(1)];
        HostTensor::from_bytes(dtype, &dims, bytes).map(Data::Tensor).map_err(|e| self.error(e))
    }

    fn branch(&mut self) -> Result<Vec<Option<Data>>, RunError> {
        let taken = self.flag(self.operand(0)).ok_or_else(|| self.no_flag(0))?;
        let graph = self.graph(if taken { "then_branch" } else { "else_branch" })?;
        self.body(graph, &[])
    }

    /// The one element of a boolean tensor.
    fn flag(&self, data: Option<DataRef<'_>>) -> Option<bool> {
        let bytes = data?.tensor()?.bytes()?;
        let [flag] = bytes else { return None };
        Some(*flag != 0)
    }

    fn no_flag(&self, operand: usize) -> RunError {
        self.error(OpError::operand(operand, "a condition, one boolean", "something else"))
    }

    fn repeat(&mut self) -> Result<Vec<Option<Data>>, RunError> {
        let graph = self.graph("body")?;
        let most = match self.operand(0).and_then(DataRef::tensor) {
            Some(tensor) => tensor.ints().and_then(|mut i| i.next()),
            None => None,
        };
        let mut goes_on = match self.operand(1) {
            None => true,
            condition => self.flag(condition).ok_or_else(|| self.no_flag(1))?,
        };
        let n_state = self.n_formal().saturating_sub(2);
        let mut state: Vec<Option<Data>> = Vec::with_capacity(n_state);
        let mut stacks: Vec<Vec<Data>> = vec![Vec::new(); self.n_results().saturating_sub(n_state)];
        let mut held = 0;
        let mut done: u64 = 0;
        while goes_on && most.is_none_or(|most| i128::from(done) < most) {
            if done >= self.run.max_iterations {
                return Err(RunError::Iterations { node: self.node, limit: self.run.max_iterations });
            }
            let iteration = i64::try_from(done).unwrap_or(i64::MAX);
            let number = self.scalar(graph, 0, DType::I64, &iteration.to_le_bytes())?;
            let condition = self.scalar(graph, 1, DType::Bool, &[1])?;
            let mut inputs = vec![Some(number.view()), Some(condition.view())];
            if done == 0 {
                inputs.extend((2..2 + n_state).map(|i| self.operand(i)));
            } else {
                inputs.extend(state.iter().map(|s| s.as_ref().map(Data::view)));
            }
            let given = Given { inputs: &inputs, operands: self.operands, attrs: self.attrs };
            let mut outputs = body(self.run, self.frames, graph, given, self.node)?.into_iter();
            goes_on = match outputs.next() {
                Some(Some(condition)) => self.flag(Some(condition.view())).ok_or_else(|| self.no_flag(1))?,
                _ => true,
            };
            state = outputs.by_ref().take(n_state).collect();
            for (stack, row) in stacks.iter_mut().zip(outputs) {
                if let Some(row) = row {
                    held += row.view().byte_count();
                    stack.push(row);
                }
            }
            if held > self.run.max_bytes {
                return Err(RunError::Memory { bytes: held, limit: self.run.max_bytes });
            }
            done += 1;
        }
        if done == 0 {
            let given = (2..2 + n_state).map(|i| self.operand(i).map(DataRef::to_data).transpose());
            state = given.collect::<Result<_, _>>().map_err(|e| self.error(e))?;
        }
        let mut results = state;
        for (i, stack) in stacks.into_iter().enumerate() {
            let empty = self.run.program.module.graph(graph).outputs().get(1 + n_state + i).map(|o| o.value);
            let stacked = stack_rows(&stack, 0, false).map_err(|e| self.error(e))?;
            results.push(match (stacked, empty) {
                (Some(tensor), _) => Some(tensor.into()),
                (None, Some(value)) => {
                    let ty = self.run.program.module.value(value).ty.clone();
                    Some(no_rows(&ty).map_err(|e| self.error(e))?.into())
                }
                (None, None) => None,
            });
        }
        Ok(results)
    }

    fn n_results(&self) -> usize {
        self.run.program.module.node(self.node).results().len()
    }

    fn scan(&mut self) -> Result<Vec<Option<Data>>, RunError> {
        let graph = self.graph("body")?;
        let module = &self.run.program.module;
        let view = NodeView::new(module, self.node).ok_or_else(|| self.no_flag(0))?;
        let scan = ScanView::read(&view).map_err(|e| self.error(e))?;
        if scan.batch == 0 {
            let operands: Vec<Option<DataRef<'_>>> = self.operands[..self.n_formal()].to_vec();
            return self.scan_one(graph, &scan, &operands, None);
        }
        // Version 8: sequences along axis 0, each scanned apart, as far as operand 0 says.
        let n = self.n_formal();
        let batch = (scan.first..n).find_map(|i| self.operand(i)?.tensor()?.dims().first().copied());
        let lengths: Option<Vec<i64>> =
            self.operand(0).and_then(DataRef::tensor).and_then(|t| t.i64s().ok().map(Iterator::collect));
        let mut rows: Vec<Vec<Data>> = vec![Vec::new(); self.n_results()];
        for b in 0..batch.unwrap_or(0) {
            let slices = (scan.first..n).map(|i| match self.operand(i).and_then(DataRef::tensor) {
                Some(tensor) => slice_at(tensor, 0, b).map(Some),
                None => Ok(None),
            });
            let slices: Vec<Option<HostTensor>> =
                slices.collect::<Result<_, _>>().map_err(|e| self.error(e))?;
            let refs: Vec<Option<DataRef<'_>>> =
                slices.iter().map(|s| s.as_ref().map(|t| DataRef::Tensor(t.view()))).collect();
            let index = usize::try_from(b).unwrap_or(usize::MAX);
            let length = lengths.as_ref().and_then(|l| l.get(index)).and_then(|&l| u64::try_from(l).ok());
            let outputs = self.scan_one(graph, &scan, &refs, length)?;
            for (row, output) in rows.iter_mut().zip(outputs) {
                row.extend(output);
            }
        }
        let stacked = rows.iter().map(|row| Ok(stack_rows(row, 0, false)?.map(Data::Tensor)));
        stacked.collect::<Result<_, KernelError>>().map_err(|e| self.error(e))
    }

    /// Scans operands without the batch axis and the lengths.
    fn scan_one(
        &mut self,
        graph: GraphId,
        scan: &ScanView,
        operands: &Operands<'_>,
        length: Option<u64>,
    ) -> Result<Vec<Option<Data>>, RunError> {
        let n_state = scan.n_state;
        let mut scanned: Vec<(TensorRef<'_>, usize, bool)> = Vec::new();
        let mut steps = length;
        for (i, operand) in operands[n_state..].iter().enumerate() {
            let at = n_state + i;
            let Some(tensor) = operand.and_then(DataRef::tensor) else {
                return Err(self.error(OpError::operand(at, "a tensor", "none")));
            };
            let axis = scan.input_axes.get(i).copied().unwrap_or(0);
            let axis =
                normalize_axis(axis, tensor.dims().len(), Part::Operand(at)).map_err(|e| self.error(e))?;
            let extent = tensor.dims()[axis];
            if length.is_none() && steps.is_some_and(|n| n != extent) {
                let expected = format!("{} elements to scan, as others have", steps.unwrap_or(0));
                return Err(self.error(OpError::operand(at, expected, extent.to_string())));
            }
            steps = Some(steps.unwrap_or(extent).min(extent));
            scanned.push((tensor, axis, scan.input_reversed.get(i).copied().unwrap_or(false)));
        }
        let steps = steps.unwrap_or(0);
        if steps > self.run.max_iterations {
            return Err(RunError::Iterations { node: self.node, limit: self.run.max_iterations });
        }
        let mut state: Vec<Option<Data>> = Vec::new();
        let mut stacks: Vec<Vec<Data>> = vec![Vec::new(); self.n_results().saturating_sub(n_state)];
        for step in 0..steps {
            let slices = scanned.iter().map(|&(tensor, axis, reversed)| {
                slice_at(tensor, axis, if reversed { steps - 1 - step } else { step })
            });
            let slices: Vec<HostTensor> = slices.collect::<Result<_, _>>().map_err(|e| self.error(e))?;
            let before: Vec<Option<DataRef<'_>>> = if step == 0 {
                operands[..n_state].to_vec()
            } else {
                state.iter().map(|s| s.as_ref().map(Data::view)).collect()
            };
            let slices = slices.iter().map(|t| Some(DataRef::Tensor(t.view())));
            let inputs: Vec<Option<DataRef<'_>>> = before.into_iter().chain(slices).collect();
            let given = Given { inputs: &inputs, operands: self.operands, attrs: self.attrs };
            let mut outputs = body(self.run, self.frames, graph, given, self.node)?.into_iter();
            state = outputs.by_ref().take(n_state).collect();
            for (stack, row) in stacks.iter_mut().zip(outputs) {
                stack.extend(row);
            }
        }
        if steps == 0 {
            let given = operands[..n_state].iter().map(|s| s.map(DataRef::to_data).transpose());
            state = given.collect::<Result<_, _>>().map_err(|e| self.error(e))?;
        }
        let mut results = state;
        for (i, stack) in stacks.into_iter().enumerate() {
            let axis = scan.output_axes.get(i).copied().unwrap_or(0);
            let reversed = scan.output_reversed.get(i).copied().unwrap_or(false);
            let stacked = stack_rows(&stack, axis, reversed).map_err(|e| self.error(e))?;
            let stacked = match stacked {
                Some(tensor) => tensor,
                None => {
                    let module = &self.run.program.module;
                    let output = module.graph(graph).outputs().get(n_state + i).map(|o| o.value);
                    let ty = output.map_or(Type::Unknown, |v| module.value(v).ty.clone());
                    no_rows(&ty).map_err(|e| self.error(e))?
                }
            };
            results.push(Some(match length {
                // What was not scanned is zero.
                Some(_) => Data::Tensor(self.padded(stacked, scan, &scanned)?),
                None => Data::Tensor(stacked),
            }));
        }
        Ok(results)
    }

    /// Version 8: as many rows as there would be had the whole sequence been scanned.
    fn padded(
        &self,
        tensor: HostTensor,
        _scan: &ScanView,
        scanned: &[(TensorRef<'_>, usize, bool)],
    ) -> Result<HostTensor, RunError> {
        let whole = scanned.first().map_or(0, |&(t, axis, _)| t.dims()[axis]);
        let mut dims = tensor.dims().to_vec();
        if dims.first().is_none_or(|&rows| rows >= whole) {
            return Ok(tensor);
        }
        dims[0] = whole;
        let bytes = tensor.bytes().unwrap_or_default();
        HostTensor::filled(tensor.dtype(), &dims, |target| {
            target[..bytes.len()].copy_from_slice(bytes);
            Ok::<(), HostError>(())
        })
        .map_err(|e| self.error(e))
    }

    fn map(&mut self) -> Result<Vec<Option<Data>>, RunError> {
        let graph = self.graph("body")?;
        let n = match self.operand(0) {
            Some(DataRef::Sequence(sequence)) => sequence.items.len(),
            _ => return Err(self.error(OpError::operand(0, "a sequence", "something else"))),
        };
        let mut lists: Vec<Vec<Data>> = vec![Vec::new(); self.n_results()];
        for at in 0..n {
            let mut inputs: Vec<Option<DataRef<'_>>> = Vec::new();
            for i in 0..self.n_formal() {
                inputs.push(match self.operands[i] {
                    Some(DataRef::Sequence(sequence)) => {
                        let item = sequence.items.get(at).map(Data::view);
                        let missing = || {
                            OpError::operand(
                                i,
                                format!("a sequence of {n}"),
                                sequence.items.len().to_string(),
                            )
                        };
                        Some(item.ok_or_else(|| self.error(missing()))?)
                    }
                    other => other,
                });
            }
            for (list, item) in lists.iter_mut().zip(self.body(graph, &inputs)?) {
                list.extend(item);
            }
        }
        let module = &self.run.program.module;
        let outputs = module.graph(graph).outputs();
        let sequence = |(i, items): (usize, Vec<Data>)| {
            let element = match items.first() {
                Some(Data::Tensor(first)) => crate::data::tensor_type(first.dtype()),
                _ => outputs.get(i).map_or(Type::Unknown, |o| module.value(o.value).ty.clone()),
            };
            Some(Data::Sequence(Sequence { element, items }))
        };
        Ok(lists.into_iter().enumerate().map(sequence).collect())
    }
}

/// Element `at` along an axis, without that axis.
fn slice_at(tensor: TensorRef<'_>, axis: usize, at: u64) -> Result<HostTensor, KernelError> {
    let dims = tensor.dims();
    let bytes = tensor.bytes().ok_or_else(|| KernelError::unsupported("scans of strings"))?;
    let element = element_bytes(tensor.dtype())?;
    let size =
        |dims: &[u64]| dims.iter().map(|&d| usize::try_from(d).unwrap_or(usize::MAX)).product::<usize>();
    let (outer, inner) = (size(&dims[..axis]), size(&dims[axis + 1..]) * element);
    let stride = inner * usize::try_from(dims[axis]).unwrap_or(usize::MAX);
    let start = inner * usize::try_from(at).unwrap_or(usize::MAX);
    let left: Vec<u64> = dims.iter().enumerate().filter(|&(i, _)| i != axis).map(|(_, &d)| d).collect();
    HostTensor::filled(tensor.dtype(), &left, |target| {
        for o in 0..outer {
            target[o * inner..(o + 1) * inner]
                .copy_from_slice(&bytes[o * stride + start..o * stride + start + inner]);
        }
        Ok(())
    })
}

fn element_bytes(dtype: DType) -> Result<usize, KernelError> {
    let whole = dtype.bits().filter(|bits| bits % 8 == 0).map(|bits| (bits / 8) as usize);
    whole.ok_or_else(|| KernelError::unsupported(format!("elements of {dtype} one by one")))
}

/// Tensors of the same dims joined along a new axis; `None` if there are none.
fn stack_rows(rows: &[Data], axis: i64, reversed: bool) -> Result<Option<HostTensor>, KernelError> {
    let Some(first) = rows.first().and_then(Data::tensor) else { return Ok(None) };
    let axis = normalize_axis(axis, first.dims().len() + 1, Part::Node)?;
    let mut dims = first.dims().to_vec();
    dims.insert(axis, rows.len() as u64);
    let inner: usize = {
        let after = first.dims()[axis..].iter().product::<u64>();
        usize::try_from(after).unwrap_or(usize::MAX) * element_bytes(first.dtype())?
    };
    let mut parts = Vec::with_capacity(rows.len());
    for row in rows {
        let same = row.tensor().filter(|t| t.dims() == first.dims() && t.dtype() == first.dtype());
        let bytes = same.and_then(HostTensor::bytes);
        parts.push(bytes.ok_or_else(|| {
            let found = row.tensor().map_or_else(|| "something else".into(), |t| format!("{:?}", t.dims()));
            KernelError::value(format!("dims {:?} in every iteration", first.dims()), found)
        })?);
    }
    if reversed {
        parts.reverse();
    }
    HostTensor::filled(first.dtype(), &dims, |target| {
        let n = parts.len();
        for (i, part) in parts.iter().enumerate() {
            for (outer, chunk) in part.chunks_exact(inner.max(1)).enumerate() {
                let at = (outer * n + i) * inner;
                target[at..at + inner].copy_from_slice(chunk);
            }
        }
        Ok(())
    })
    .map(Some)
}

/// What is stacked if there is nothing: no rows of this type, of which dims that nobody knows are 0.
fn no_rows(ty: &Type) -> Result<HostTensor, KernelError> {
    let tensor = ty.as_tensor().ok_or_else(|| KernelError::unsupported("a list of no tensors"))?;
    let inner = tensor.shape.dims().unwrap_or_default().iter().map(|d| d.known().unwrap_or(0));
    let dims: Vec<u64> = std::iter::once(0).chain(inner).collect();
    Ok(HostTensor::zeros(tensor.dtype, &dims)?)
}
