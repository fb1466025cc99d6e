//! Runs in flight: runs on a device that the host does not wait for, and the downloads of their outputs.
//!
//! While the kernels of a run work, the inputs of the next run are copied on a separate queue, into other memory
//! (`inputs.rs`). With two sets of inputs, `U` for uploads and `D` for downloads:
//!
//! ```text
//! transfers:  U set 0 | U set 1          | U set 0 (waits for run 0)      | ..
//! kernels:            | run 0 on set 0 D | run 1 on set 1             D   | run 2 on set 0 D ..
//! host:       begin 0   begin 1            end 0 (waits for D of run 0)     begin 2   end 1 ..
//! ```
//!
//! The downloads of a run return its failure, so every run in flight knows its own failure
//! ([`device`](crate::device)). A failed operation waits for all work and lets all runs end ([`Session::failed`]).

use super::Session;
use super::error::ExecuteError;
use super::space::Space;
use crate::data::{Data, DataRef};
use crate::device::{DeviceError, Download};
use crate::host::HostTensor;
use crate::kernel::KernelError;
use ampc_ir::DType;
use std::collections::VecDeque;

/// Runs in flight, oldest first.
pub(super) type Flights = VecDeque<Flight>;

/// A run in flight.
pub(super) enum Flight {
    /// Its downloads are in progress.
    Begun(Begun),
    /// Its work has ended.
    Landed(Result<Vec<Data>, ExecuteError>),
}

/// The downloads of a run in flight.
pub(super) struct Begun {
    outputs: Vec<Returning>,
    /// Downloads of 0 bytes, for kernel queues without a download of an output.
    ends: Vec<Box<dyn Download>>,
}

/// An output being copied to the host.
pub(super) enum Returning {
    Tensor(DType, Vec<u64>, Box<dyn Download>),
    There(Data),
}

impl Session {
    /// Begins a run. If the session computes on a device, it returns before the work is done. `wanted` lists the
    /// indices of the outputs that are copied to the host; [`end_run`](Self::end_run) returns them. Several runs may
    /// be begun before the first is ended. Each run reads the states that the previous run leaves.
    ///
    /// # Errors
    /// Like [`run`](Self::run), for errors that are known before the work is done. All runs in flight have then
    /// ended, and [`end_run`](Self::end_run) returns the outputs or the error of each run. If a run in flight has
    /// torn the states, its error is the cause.
    pub fn begin_run(
        &mut self,
        inputs: &[Option<DataRef<'_>>],
        wanted: &[usize],
    ) -> Result<(), ExecuteError> {
        let mut outputs = Vec::with_capacity(wanted.len());
        let started = self.start(inputs, None, false, |space, frame, scope| {
            for &output in wanted {
                outputs
                    .extend(frame.output(scope, output).map(|data| Returning::of(space, data)).transpose()?);
            }
            Ok(())
        });
        let ended = started.and_then(|()| {
            let with_first = !outputs.iter().any(|output| matches!(output, Returning::Tensor(..)));
            // Without these downloads, a failure of the run would stay unknown.
            let ends = self.space.ends(with_first);
            ends.map_err(|error| {
                self.frame.states.set_torn(true);
                error.into()
            })
        });
        let ends = ended.map_err(|error| self.failed(error))?;
        self.flights.push_back(Flight::Begun(Begun { outputs, ends }));
        Ok(())
    }

    /// Waits for the oldest run in flight and returns its wanted outputs in host memory; `None` if no run is in
    /// flight.
    ///
    /// # Errors
    /// If the run failed, or the allocation of an output failed. The runs that were begun later have then failed too,
    /// and the states are [torn](Self::has_torn_states): they differ from those before the run.
    pub fn end_run(&mut self) -> Result<Option<Vec<Data>>, ExecuteError> {
        match self.flights.pop_front() {
            None => Ok(None),
            Some(Flight::Begun(begun)) => self.land(begun).map(Some),
            Some(Flight::Landed(landed)) => landed.map(Some),
        }
    }

    /// The number of runs in flight.
    pub fn runs_begun(&self) -> usize {
        self.flights.len()
    }

    /// Waits for the outputs and the end of a run. If it fails, all later runs fail.
    fn land(&mut self, begun: Begun) -> Result<Vec<Data>, ExecuteError> {
        let mut outputs = Vec::with_capacity(begun.outputs.len());
        let (mut failure, mut lacking): (Option<DeviceError>, Option<KernelError>) = (None, None);
        for output in begun.outputs {
            match output.land() {
                Ok(output) => outputs.push(output),
                Err(KernelError::Device(error)) if !error.is_no_memory() => {
                    failure = Some(error.or_of_kernel(failure));
                }
                Err(error) => lacking = lacking.or(Some(error)),
            }
        }
        for end in begun.ends {
            if let Err(error) = end.finish(&mut []) {
                failure = Some(error.or_of_kernel(failure));
            }
        }
        // A failure may be reported once more, and a download whose allocation failed has not returned it.
        let is_last = self.flights.is_empty();
        if (is_last || failure.is_some() || lacking.is_some())
            && let Err(error) = self.space.finish()
        {
            failure = Some(error.or_of_kernel(failure));
        }
        let error = match (failure, lacking) {
            (None, None) => return Ok(outputs),
            (Some(error), _) => error.into(),
            (None, Some(error)) => ExecuteError::of_transfer(error),
        };
        self.flights.clear();
        // The states have advanced, or are wrong.
        self.frame.states.set_torn(true);
        Err(self.named(error))
    }

    /// Waits for all runs in flight; their outputs stay for [`end_run`](Self::end_run).
    pub(super) fn land_all(&mut self) {
        if self.flights.iter().all(|flight| matches!(flight, Flight::Landed(_))) {
            return;
        }
        let mut landed = VecDeque::new();
        while let Some(flight) = self.flights.pop_front() {
            landed.push_back(Flight::Landed(match flight {
                Flight::Begun(begun) => self.land(begun),
                Flight::Landed(landed) => landed,
            }));
        }
        self.flights = landed;
        self.inputs.forget_reads();
    }

    /// The error of an operation, after all work has ended. Runs in flight keep their own results.
    pub(super) fn failed(&mut self, error: ExecuteError) -> ExecuteError {
        // Work submitted before the error accesses memory of the session, so it must end first.
        let error = match (error, self.space.finish()) {
            (ExecuteError::Device(_), Err(late @ DeviceError::Kernel { .. })) => late.into(),
            (error, _) => error,
        };
        self.land_all();
        self.named(error)
    }

    /// Replaces copied nodes in an error by nodes of the given module.
    fn named(&self, error: ExecuteError) -> ExecuteError {
        match self.bound.as_ref().and_then(|bound| bound.program.inlined()) {
            Some(inlined) => inlined.named(error),
            None => self.executable.named(error),
        }
    }
}

impl Returning {
    /// Starts to copy an output to the host.
    pub(super) fn of(space: &mut Space, data: DataRef<'_>) -> Result<Returning, KernelError> {
        if let (DataRef::Device(tensor), Some(queue)) = (data, space.queue()) {
            let download = queue.start_download(tensor.span)?;
            return Ok(Returning::Tensor(tensor.dtype, tensor.dims.to_vec(), download));
        }
        space.fetch(data).map(Returning::There)
    }

    /// Waits for the output.
    pub(super) fn land(self) -> Result<Data, KernelError> {
        Ok(match self {
            Returning::There(data) => data,
            Returning::Tensor(dtype, dims, download) => {
                let filled =
                    HostTensor::filled(dtype, &dims, |to| download.finish(to).map_err(KernelError::from));
                Data::Tensor(filled?)
            }
        })
    }
}
