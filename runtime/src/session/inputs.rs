//! Inputs in device memory: copies of the inputs of two runs, so that the next run's inputs are copied while the
//! kernels of a run work.

use super::error::ExecuteError;
use super::space::{Space, copy_span};
use crate::data::{Data, DataRef};
use crate::device::{DeviceError, Event};

/// Memory for the inputs of two runs, without states and strings.
#[derive(Default)]
pub(super) struct InputSets {
    sets: [Inputs; 2],
    /// The index of the set for the next run.
    next: usize,
}

/// Device memory for the inputs of a run.
#[derive(Default)]
struct Inputs {
    tensors: Vec<Option<Data>>,
    /// The end of the last run that read the inputs, unless the host has waited for it.
    read: Option<Event>,
}

impl InputSets {
    /// Copies the inputs to the device for a session that computes there; an entry is `None` if kernels can read the
    /// input in place. `is_state` is true of inputs that are states in the arena. The host waits for the run if
    /// `waits`.
    pub(super) fn bring(
        &mut self,
        space: &mut Space,
        inputs: &[Option<DataRef<'_>>],
        is_state: impl Fn(usize) -> bool,
        waits: bool,
    ) -> Result<Option<Vec<Option<Data>>>, ExecuteError> {
        if matches!(space, Space::Host) {
            return Ok(None);
        }
        let set = &mut self.sets[self.next];
        let mut tensors = std::mem::take(&mut set.tensors);
        tensors.resize_with(inputs.len(), || None);
        // A session that waits for its runs has no transfer queue.
        if !waits
            && let Some(event) = set.read.take()
            && let Some(transfers) = space.transfers()?
        {
            transfers.wait(&event)?;
        }
        for (at, (input, place)) in inputs.iter().zip(&mut tensors).enumerate() {
            let Some(input) = input.filter(|input| !space.reads_in_place(*input) && !is_state(at)) else {
                *place = None;
                continue;
            };
            let has_place =
                matches!(&*place, Some(Data::Device(to)) if DataRef::Device(to.view()).is_of(&input.ty()));
            if let DataRef::Device(from) = input {
                if !has_place {
                    let made = space.tensor(from.dtype, from.dims).map_err(ExecuteError::of_transfer)?;
                    *place = Some(made);
                }
                // The first queue has finished the work that produces the input.
                if let (Some(Data::Device(to)), Some(queue)) = (&*place, space.queue()) {
                    copy_span(queue, from.span, to.view().span)?;
                }
                continue;
            }
            let tensor = input.tensor().filter(|from| from.bytes().is_some());
            if let (false, Some(from)) = (has_place, tensor) {
                let made = space.tensor(from.dtype(), from.dims()).map_err(ExecuteError::of_transfer)?;
                *place = Some(made);
            }
            let queue = if waits { space.queue() } else { space.transfers()? };
            match (tensor.and_then(|from| from.bytes()), &*place, queue) {
                (Some(from), Some(Data::Device(to)), Some(queue)) => queue.upload(from, to.view().span)?,
                _ => *place = Some(space.bring(input).map_err(ExecuteError::of_transfer)?),
            }
        }
        if !waits && let Some(transfers) = space.transfers()? {
            let event = transfers.signal()?;
            if let Some(queue) = space.queue() {
                queue.wait(&event)?;
            }
        }
        Ok(Some(tensors))
    }

    /// Keeps the memory of a run's inputs for a later run.
    pub(super) fn give_back(
        &mut self,
        space: &mut Space,
        brought: Option<Vec<Option<Data>>>,
        waits: bool,
    ) -> Result<(), DeviceError> {
        let Some(tensors) = brought else { return Ok(()) };
        let set = &mut self.sets[self.next];
        set.tensors = tensors;
        if !waits {
            set.read = space.queue().map(|queue| queue.signal()).transpose()?;
            self.next = 1 - self.next;
        }
        Ok(())
    }

    /// Forgets the runs that read the inputs, because the host has waited for them.
    pub(super) fn forget_reads(&mut self) {
        self.sets.iter_mut().for_each(|set| set.read = None);
    }
}

/// The inputs, replaced by their device copies if they have copies.
pub(super) fn over<'a>(
    inputs: &[Option<DataRef<'a>>],
    brought: &'a [Option<Data>],
) -> Vec<Option<DataRef<'a>>> {
    let pairs = inputs.iter().zip(brought);
    pairs.map(|(input, brought)| brought.as_ref().map(Data::view).or(*input)).collect()
}
