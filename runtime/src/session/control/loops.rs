//! Loop, Scan and SequenceMap: bodies that run once per iteration or element.

use super::rows::{Stacks, empty, slice_at};
use super::{Call, Operands, body, is_one};
use crate::data::{Data, DataRef, Sequence};
use crate::host::{HostError, HostTensor};
use crate::kernel::KernelError;
use crate::plan::Place;
use crate::session::ExecuteError;
use crate::session::frame::Given;
use crate::session::space::Space;
use ampc_ir::views::control::ScanView;
use ampc_ir::views::{NodeView, OpError, Part, normalize_axis};
use ampc_ir::{DType, GraphId, Type};

/// A tensor that a Scan iterates over: the axis, its extent, and true for the reverse direction.
#[derive(Clone, Copy)]
struct Scanned<'a> {
    tensor: DataRef<'a>,
    axis: usize,
    extent: u64,
    reversed: bool,
}

impl Call<'_, '_, '_> {
    fn n_results(&self) -> usize {
        self.run.program.module.node(self.node).results().len()
    }

    /// The declared type of output `i` of a body.
    fn output_type(&self, graph: GraphId, i: usize) -> Type {
        let module = &self.run.program.module;
        let output = module.graph(graph).outputs().get(i);
        output.map_or(Type::Unknown, |o| module.value(o.value).ty.clone())
    }

    /// A scalar of the type of the body's formal input `i`; some bodies declare a list with one element.
    fn scalar(&mut self, graph: GraphId, i: usize, dtype: DType, bytes: &[u8]) -> Result<Data, ExecuteError> {
        let module = &self.run.program.module;
        let formal = module.graph(graph).inputs().get(i);
        let rank = formal.and_then(|&v| module.value(v).ty.shape()?.rank()).unwrap_or(0);
        let dims = vec![1; rank.min(1)];
        let scalar = HostTensor::from_bytes(dtype, &dims, bytes).map_err(|e| self.error(e))?;
        match self.run.space {
            Space::Host => Ok(Data::Tensor(scalar)),
            Space::Device(_) => self.own(DataRef::Tensor(scalar.view())),
        }
    }

    /// The maximum number of iterations of a Loop, from its first operand.
    fn trip_count(&mut self) -> Result<Option<i128>, ExecuteError> {
        let Some(data) = self.operand(0) else { return Ok(None) };
        let number = |data: DataRef<'_>| data.tensor().and_then(|t| t.ints()?.next());
        let number = match is_one(data) {
            true => self.run.space.on_host(data, number).map_err(|e| self.error(e))?,
            false => None,
        };
        let none = || OpError::operand(0, "a number of iterations, one integer", "something else");
        number.map(Some).ok_or_else(|| self.error(none()))
    }

    /// Runs a Loop. The condition that the body returns also ends a Loop without a condition operand, as in other
    /// runtimes.
    pub(super) fn run_loop(&mut self) -> Result<Vec<Option<Data>>, ExecuteError> {
        let graph = self.graph("body")?;
        let most = self.trip_count()?;
        let mut goes_on = match self.operand(1) {
            None => true,
            condition => self.flag(condition)?.ok_or_else(|| self.no_flag(1))?,
        };
        let n_state = self.n_formal().saturating_sub(2);
        let mut state: Vec<Option<Data>> = Vec::with_capacity(n_state);
        let mut stacks =
            Stacks::new(self.n_results().saturating_sub(n_state), self.run.runtime.limits.max_bytes);
        let mut done: u64 = 0;
        while goes_on && most.is_none_or(|most| i128::from(done) < most) {
            if done >= self.run.runtime.limits.max_iterations {
                return Err(ExecuteError::Iterations {
                    node: self.node,
                    calls: Vec::new(),
                    limit: self.run.runtime.limits.max_iterations,
                });
            }
            let iteration = i64::try_from(done).unwrap_or(i64::MAX);
            let number = self.scalar(graph, 0, DType::I64, &iteration.to_le_bytes())?;
            let condition = self.scalar(graph, 1, DType::Bool, &[1])?;
            let owned = self.handed_over(graph, &mut state, done == 0)?;
            let mut inputs = vec![Some(number.view()), Some(condition.view())];
            if done == 0 {
                inputs.extend((2..2 + n_state).map(|i| self.operand(i)));
            } else {
                inputs.extend(state.iter().map(|s| s.as_ref().map(Data::view)));
            }
            let given = Given { inputs: &inputs, operands: self.operands, attrs: self.attrs };
            let mut outputs = body(self.run, self.frames, graph, given, owned, self.node)?.into_iter();
            goes_on = match outputs.next() {
                Some(Some(condition)) => {
                    self.flag(Some(condition.view()))?.ok_or_else(|| self.no_condition())?
                }
                _ => true,
            };
            state = outputs.by_ref().take(n_state).collect();
            stacks.push(outputs).map_err(|e| self.error(e))?;
            done += 1;
        }
        if done == 0 {
            for i in 2..2 + n_state {
                let given = self.operand(i);
                state.push(given.map(|data| self.own(data)).transpose()?);
            }
        }
        let mut results = state;
        for i in 0..self.n_results().saturating_sub(n_state) {
            let row = self.output_type(graph, 1 + n_state + i);
            let stacked = stacks.stack(self.run.space, i, 0, false, &row).map_err(|e| self.error(e))?;
            results.push(Some(stacked));
        }
        Ok(results)
    }

    /// The states that the plan of a Loop's body has on the heap, by formal input: moved out of `state`, or copies of
    /// the Loop's operands before the first iteration.
    fn handed_over(
        &mut self,
        graph: GraphId,
        state: &mut [Option<Data>],
        is_first: bool,
    ) -> Result<Vec<(u32, Data)>, ExecuteError> {
        let program = self.run.program;
        let values = &program.plan(graph).values[..program.module.graph(graph).inputs().len()];
        let mut owned = Vec::new();
        for (i, planned) in values.iter().skip(2).enumerate() {
            if planned.place == Place::Heap {
                let data = match is_first {
                    true => {
                        let given = self.operand(2 + i);
                        given.map(|data| self.own(data)).transpose()?
                    }
                    false => state.get_mut(i).and_then(Option::take),
                };
                owned.extend(u32::try_from(2 + i).ok().zip(data));
            }
        }
        Ok(owned)
    }

    fn no_condition(&self) -> ExecuteError {
        self.error(KernelError::value("one boolean as the body's condition", "something else"))
    }

    pub(super) fn scan(&mut self) -> Result<Vec<Option<Data>>, ExecuteError> {
        let graph = self.graph("body")?;
        let module = &self.run.program.module;
        let view = NodeView::new(module, self.node);
        let view = view.ok_or_else(|| self.error(KernelError::unsupported("unknown operators")))?;
        let scan = ScanView::read(&view).map_err(|e| self.error(e))?;
        if scan.batch == 0 {
            let operands: Vec<Option<DataRef<'_>>> = self.operands[..self.n_formal()].to_vec();
            return self.scan_one(graph, &scan, &operands, None);
        }
        // In version 8, sequences along axis 0 are scanned separately, with the lengths of operand 0.
        let n = self.n_formal();
        let batch = (scan.first..n).find_map(|i| self.operand(i)?.shape()?.1.first().copied());
        let read = |data: DataRef<'_>| data.tensor().and_then(|t| t.i64s().ok().map(Iterator::collect));
        let lengths: Option<Vec<i64>> = match self.operand(0) {
            Some(data) => self.run.space.on_host(data, read).map_err(|e| self.error(e))?,
            None => None,
        };
        let mut stacks = Stacks::new(self.n_results(), self.run.runtime.limits.max_bytes);
        for b in 0..batch.unwrap_or(0) {
            let mut slices: Vec<Option<Data>> = Vec::new();
            for i in scan.first..n {
                let tensor = self.operand(i).filter(|data| data.shape().is_some());
                let slice = tensor.map(|tensor| slice_at(self.run.space, tensor, 0, b)).transpose();
                slices.push(slice.map_err(|e| self.error(e))?);
            }
            let refs: Vec<Option<DataRef<'_>>> =
                slices.iter().map(|slice| slice.as_ref().map(Data::view)).collect();
            let index = usize::try_from(b).unwrap_or(usize::MAX);
            let length = lengths.as_ref().and_then(|l| l.get(index)).and_then(|&l| u64::try_from(l).ok());
            let outputs = self.scan_one(graph, &scan, &refs, length)?;
            stacks.push(outputs.into_iter()).map_err(|e| self.error(e))?;
        }
        if batch.unwrap_or(0) == 0 {
            return self.nothing();
        }
        let n_results = self.n_results();
        let stacked =
            (0..n_results).map(|i| stacks.stack(self.run.space, i, 0, false, &Type::Unknown).map(Some));
        stacked.collect::<Result<_, KernelError>>().map_err(|e| self.error(e))
    }

    /// Results of the inferred types without elements.
    fn nothing(&mut self) -> Result<Vec<Option<Data>>, ExecuteError> {
        let module = &self.run.program.module;
        let results = module.node(self.node).results().iter();
        let none = results.map(|v| v.map(|v| empty(self.run.space, &module.value(v).ty)).transpose());
        none.collect::<Result<_, KernelError>>().map_err(|e| self.error(e))
    }

    /// The tensors that a Scan iterates over, and the number of iterations.
    fn scanned<'t>(
        &self,
        scan: &ScanView,
        operands: &Operands<'t>,
        length: Option<u64>,
    ) -> Result<(Vec<Scanned<'t>>, u64), ExecuteError> {
        let n_state = scan.n_state;
        let mut scanned = Vec::new();
        let mut steps = length;
        for (i, operand) in operands[n_state..].iter().enumerate() {
            let at = n_state + i;
            let Some((tensor, (_, dims))) = operand.and_then(|tensor| Some((tensor, tensor.shape()?))) else {
                return Err(self.error(OpError::operand(at, "a tensor", "none")));
            };
            let axis = scan.input_axes.get(i).copied().unwrap_or(0);
            let axis = normalize_axis(axis, dims.len(), Part::Operand(at));
            let axis = axis.map_err(|e| self.error(e))?;
            let extent = dims[axis];
            if length.is_none() && steps.is_some_and(|n| n != extent) {
                let expected = format!("{} elements to scan, as others have", steps.unwrap_or(0));
                return Err(self.error(OpError::operand(at, expected, extent.to_string())));
            }
            steps = Some(steps.unwrap_or(extent).min(extent));
            let reversed = scan.input_reversed.get(i).copied().unwrap_or(false);
            scanned.push(Scanned { tensor, axis, extent, reversed });
        }
        let steps = steps.unwrap_or(0);
        if steps > self.run.runtime.limits.max_iterations {
            return Err(ExecuteError::Iterations {
                node: self.node,
                calls: Vec::new(),
                limit: self.run.runtime.limits.max_iterations,
            });
        }
        Ok((scanned, steps))
    }

    /// Scans operands without the batch axis and the lengths.
    fn scan_one(
        &mut self,
        graph: GraphId,
        scan: &ScanView,
        operands: &Operands<'_>,
        length: Option<u64>,
    ) -> Result<Vec<Option<Data>>, ExecuteError> {
        let n_state = scan.n_state;
        let (scanned, steps) = self.scanned(scan, operands, length)?;
        let n_stacks = self.n_results().saturating_sub(n_state);
        let mut state: Vec<Option<Data>> = Vec::new();
        let mut stacks = Stacks::new(n_stacks, self.run.runtime.limits.max_bytes);
        for step in 0..steps {
            let slices = scanned.iter().map(|s| {
                let at = if s.reversed { steps - 1 - step } else { step };
                slice_at(self.run.space, s.tensor, s.axis, at)
            });
            let slices: Vec<Data> = slices.collect::<Result<_, _>>().map_err(|e| self.error(e))?;
            let before: Vec<Option<DataRef<'_>>> = if step == 0 {
                operands[..n_state].to_vec()
            } else {
                state.iter().map(|s| s.as_ref().map(Data::view)).collect()
            };
            let slices = slices.iter().map(|slice| Some(slice.view()));
            let inputs: Vec<Option<DataRef<'_>>> = before.into_iter().chain(slices).collect();
            let mut outputs = self.body(graph, &inputs)?.into_iter();
            state = outputs.by_ref().take(n_state).collect();
            stacks.push(outputs).map_err(|e| self.error(e))?;
        }
        if steps == 0 {
            for given in &operands[..n_state] {
                state.push(given.map(|data| self.own(data)).transpose()?);
            }
        }
        let mut results = state;
        for i in 0..n_stacks {
            let axis = scan.output_axes.get(i).copied().unwrap_or(0);
            let reversed = scan.output_reversed.get(i).copied().unwrap_or(false);
            let row = self.output_type(graph, n_state + i);
            let stacked = stacks.stack(self.run.space, i, axis, reversed, &row).map_err(|e| self.error(e))?;
            let whole = scanned.first().map_or(0, |s| s.extent);
            // In version 8, a result has as many rows as a scan of the whole sequence.
            let stacked = if length.is_some() { padded(self.run.space, stacked, whole) } else { Ok(stacked) };
            results.push(Some(stacked.map_err(|e| self.error(e))?));
        }
        Ok(results)
    }

    pub(super) fn sequence_map(&mut self) -> Result<Vec<Option<Data>>, ExecuteError> {
        let graph = self.graph("body")?;
        let n = match self.operand(0) {
            Some(DataRef::Sequence(sequence)) => sequence.items().len(),
            _ => return Err(self.error(OpError::operand(0, "a sequence", "something else"))),
        };
        let mut lists = Stacks::new(self.n_results(), self.run.runtime.limits.max_bytes);
        for at in 0..n {
            let mut inputs: Vec<Option<DataRef<'_>>> = Vec::new();
            for i in 0..self.n_formal() {
                inputs.push(match self.operands[i] {
                    Some(DataRef::Sequence(sequence)) => match sequence.items().get(at) {
                        Some(item) => Some(item.view()),
                        None => {
                            let (expected, found) = (format!("a sequence of {n}"), sequence.items().len());
                            return Err(self.error(OpError::operand(i, expected, found.to_string())));
                        }
                    },
                    other => other,
                });
            }
            let made = self.body(graph, &inputs)?;
            lists.push(made.into_iter()).map_err(|e| self.error(e))?;
        }
        let sequence = |i: usize| {
            let items = lists.take(i);
            let element = match items.first() {
                Some(first) => match first.view().shape() {
                    Some((dtype, _)) => crate::data::tensor_type(dtype),
                    None => self.output_type(graph, i),
                },
                None => self.output_type(graph, i),
            };
            Some(Data::Sequence(Sequence::new(element, items)))
        };
        Ok((0..self.n_results()).map(sequence).collect())
    }
}

/// Pads a tensor with rows of zeros to `rows` rows.
fn padded(space: &mut Space, data: Data, rows: u64) -> Result<Data, KernelError> {
    let Data::Tensor(tensor) = space.fetch(data.view())? else { return Ok(data) };
    let padded = padded_on_host(tensor, rows)?;
    space.bring(DataRef::Tensor(padded.view()))
}

fn padded_on_host(tensor: HostTensor, rows: u64) -> Result<HostTensor, HostError> {
    let mut dims = tensor.dims().to_vec();
    if dims.first().is_none_or(|&found| found >= rows) {
        return Ok(tensor);
    }
    dims[0] = rows;
    if let Some(strings) = tensor.strings() {
        let mut strings = strings.to_vec();
        let missing = HostTensor::zeros(tensor.dtype(), &dims)?;
        strings.extend_from_slice(&missing.strings().unwrap_or_default()[strings.len()..]);
        return HostTensor::from_strings(&dims, strings);
    }
    let bytes = tensor.bytes().unwrap_or_default();
    HostTensor::filled(tensor.dtype(), &dims, |target| {
        target[..bytes.len()].copy_from_slice(bytes);
        Ok(())
    })
}
