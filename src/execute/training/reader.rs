//! Reads the batches of a dataset into reused memory.

use super::batches::Batches;
use super::dataset::{Batch, Dataset};
use crate::error::Error;

/// Reads the batches of a dataset in sequence.
#[derive(Debug)]
pub(super) struct BatchReader {
    data: Dataset,
    batches: Batches,
    /// The number of samples of a full batch.
    size: u64,
    /// A full batch, and the last batch of an epoch if it has fewer samples.
    buffers: [Option<Batch>; 2],
}

/// A batch that was read.
pub(super) struct ReadBatch<'a> {
    pub(super) data: &'a Dataset,
    pub(super) batch: &'a Batch,
    /// The samples in the batch.
    pub(super) samples: &'a [u64],
}

impl BatchReader {
    /// Batches of `size` samples.
    pub(super) fn new(data: Dataset, batches: Batches, size: u64) -> BatchReader {
        BatchReader { data, batches, size, buffers: [None, None] }
    }

    pub(super) fn data(&self) -> &Dataset {
        &self.data
    }

    pub(super) fn batches(&self) -> &Batches {
        &self.batches
    }

    /// Reads batch `step`, counted from 0 over all epochs.
    ///
    /// # Errors
    /// If a file cannot be read any more, a sample has a NaN, or the allocation fails.
    pub(super) fn read(&mut self, step: u64) -> Result<ReadBatch<'_>, Error> {
        let samples = self.batches.samples(step)?;
        let buffer = &mut self.buffers[usize::from((samples.len() as u64) < self.size)];
        let batch = match buffer {
            Some(batch) => batch,
            None => buffer.insert(self.data.buffer(samples.len() as u64)?),
        };
        self.data.read(samples, batch)?;
        Ok(ReadBatch { data: &self.data, batch, samples })
    }
}
