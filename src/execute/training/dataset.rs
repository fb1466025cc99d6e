//! Samples to train on, from `.npz` and `.safetensors` files and folders of such files.
//!
//! A file has an array per input of the step, whose axis 0 counts samples. Arrays of safetensors files are read from
//! the file batch by batch; arrays of `.npz` files are read once. An array with exactly the dims that the step
//! declares for its input, all of them numbers, is not a list of samples: every batch uses the whole array, such as
//! class weights.
//!
//! ```text
//! input %x : f32[N, 3, 32, 32]     x        f32[50000, 3, 32, 32]     50,000 samples
//! input %target : i64[N]           target   i64[50000]
//! input %weights : f32[10]         weights  f32[10]                   the same for every batch
//! ```

mod fit;

use self::fit::Problems;
use super::super::batch_row::BatchRow;
use super::super::inputs::{io_error, no_memory};
use super::super::trainer::Trainer;
use super::arrays::{Array, Arrays};
use crate::bytes::SourceBytes;
use crate::error::Error;
use crate::interface::{input_names, input_types};
use ampc_ir::module::Def;
use ampc_ir::{DType, Module, Shape, Type};
use ampc_runtime::HostTensor;
use rustc_hash::{FxHashMap, FxHashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Values for the inputs of a step, by sample.
#[derive(Debug)]
pub struct Dataset {
    path: PathBuf,
    columns: Vec<Column>,
    samples: u64,
    batch: Option<u64>,
    same_for_all: Vec<String>,
    unread: Vec<String>,
    files: Vec<Arc<SourceBytes>>,
    streamed: Vec<Arc<SourceBytes>>,
}

/// The values of one input.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) dtype: DType,
    /// The dims of one sample.
    pub(super) dims: Vec<u64>,
    pub(super) values: Values,
}

#[derive(Debug)]
pub(super) enum Values {
    /// The same value for every batch, and the number of files that have it.
    Whole { tensor: HostTensor, files: usize },
    /// Samples along axis 0, in one or more pieces.
    Samples(Vec<Piece>),
}

/// Consecutive samples.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) samples: Range<u64>,
    pub(super) array: Array,
}

impl Dataset {
    /// Opens the samples of the inputs `wanted` of a module: of an `.npz` or `.safetensors` file; of all such files
    /// of a folder, in natural order of their names; or of a folder of test data, whose data sets are consecutive
    /// samples. Data of more than `most` bytes in memory is an error.
    ///
    /// # Errors
    /// If nothing exists at the path, it cannot be read, or does not fit the inputs. All inputs that do not fit are
    /// listed.
    pub fn open(path: &Path, module: &Module, wanted: &[String], most: u64) -> Result<Dataset, Error> {
        let arrays = Arrays::open(path, module, wanted, most)?;
        Dataset::of(path.to_owned(), arrays, module, wanted)
    }

    /// Samples in memory, by the names of the inputs that a step takes in a batch.
    ///
    /// # Errors
    /// If samples do not fit the inputs. All inputs that do not fit are listed.
    pub fn of_tensors(tensors: Vec<(String, HostTensor)>, trainer: &Trainer) -> Result<Dataset, Error> {
        let wanted = wanted_by(trainer);
        let mut arrays = Arrays::of(wanted.iter().cloned(), u64::MAX);
        let known: FxHashSet<&String> = wanted.iter().collect();
        for (name, tensor) in tensors {
            match known.contains(&name) {
                true => arrays.add(&name, Array::in_memory(tensor, None)),
                false => arrays.leave(&name),
            }
        }
        Dataset::of(PathBuf::from("memory"), arrays, trainer.module(), &wanted)
    }

    fn of(path: PathBuf, mut arrays: Arrays, module: &Module, wanted: &[String]) -> Result<Dataset, Error> {
        let (names, types) = (input_names(module), input_types(module));
        let inputs = module.graph(module.main()).inputs();
        let places: FxHashMap<&String, usize> = names.iter().zip(0..).collect();
        let mut dataset = Dataset {
            path,
            columns: Vec::new(),
            samples: 1,
            batch: None,
            same_for_all: Vec::new(),
            unread: std::mem::take(&mut arrays.unread),
            files: std::mem::take(&mut arrays.files),
            streamed: std::mem::take(&mut arrays.streamed),
        };
        let mut problems = Problems { module, unread: &dataset.unread, list: Vec::new() };
        let mut declared = Vec::new();
        for name in wanted {
            let Some(&at) = places.get(name) else { continue };
            let ty = &types[at];
            let Some(found) = arrays.by_name.remove(name) else {
                if !matches!(module.value(inputs[at]).def, Def::Input { default: Some(_), .. }) {
                    problems.missing(name, ty, &dataset.path);
                }
                continue;
            };
            if let Some(column) = problems.column(name, ty, found, arrays.is_npz)? {
                declared.push(declared_batch(ty));
                dataset.columns.push(column);
            }
        }
        problems.sizes(&dataset.columns, &declared);
        problems.ambiguous(&dataset.columns, &declared);
        problems.named_dims(&dataset.columns, &names, &types);
        if !problems.list.is_empty() {
            return Err(Error::Inputs(problems.list));
        }
        let lists = || dataset.columns.iter().zip(&declared).filter(|(column, _)| column.samples().is_some());
        match lists().next() {
            Some((column, _)) => dataset.samples = column.samples().unwrap_or(1),
            // Everything that the step takes at once is one batch.
            None => {
                let first = dataset.columns.iter().find_map(|column| column.dims.first().copied());
                dataset.samples = first.unwrap_or(1).max(1);
                dataset.batch = Some(dataset.samples);
            }
        }
        dataset.refuse_empty(lists().map(|(column, _)| column))?;
        dataset.batch = dataset.batch.or_else(|| lists().find_map(|(_, declared)| *declared));
        if lists().next().is_some() {
            let is_batch = |declared: &Option<u64>| declared.is_some() && *declared == dataset.batch;
            let columns = dataset.columns.iter().zip(&declared);
            let whole = columns.filter(|(column, declared)| column.samples().is_none() && is_batch(declared));
            dataset.same_for_all = whole.map(|(column, _)| column.name.clone()).collect();
        }
        dataset.refuse_nan()?;
        Ok(dataset)
    }

    /// Like [`open`](Self::open), for all inputs in a batch except the learning rate.
    ///
    /// # Errors
    /// Like [`open`](Self::open).
    pub fn of_batches(path: &Path, trainer: &Trainer, most: u64) -> Result<Dataset, Error> {
        Dataset::open(path, trainer.module(), &wanted_by(trainer), most)
    }

    /// The number of samples.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The batch size of the step, if it is fixed.
    pub fn batch(&self) -> Option<u64> {
        self.batch
    }

    /// Inputs whose array is the same for every batch although it has as many rows as a batch: the user may have
    /// meant samples of one batch.
    pub fn same_for_all(&self) -> &[String] {
        &self.same_for_all
    }

    /// Arrays of the files whose names match no input.
    pub fn unread(&self) -> &[String] {
        &self.unread
    }

    /// The files of the samples.
    pub fn files(&self) -> &[Arc<SourceBytes>] {
        &self.files
    }

    /// The files that were modified while samples were read from them batch by batch: batches may mix old and new
    /// samples.
    pub fn written_to(&self) -> impl Iterator<Item = &Path> {
        self.streamed.iter().filter(|file| file.was_written()).filter_map(|file| file.path())
    }

    /// Allocates memory for batches of `rows` samples.
    ///
    /// # Errors
    /// If the allocation fails.
    pub fn buffer(&self, rows: u64) -> Result<Batch, Error> {
        let buffer = |column: &Column| {
            let tensor = match &column.values {
                Values::Whole { tensor, .. } => Ok(tensor.clone()),
                Values::Samples(_) => {
                    let dims: Vec<u64> = std::iter::once(rows).chain(column.dims.iter().copied()).collect();
                    HostTensor::zeros(column.dtype, &dims)
                }
            };
            tensor.map_err(|error| no_memory(&column.name, &error))
        };
        Ok(Batch { rows, tensors: self.columns.iter().map(buffer).collect::<Result<_, _>>()? })
    }

    /// Reads samples into a batch of the same size.
    ///
    /// # Errors
    /// If a file cannot be read any more, or a sample has a NaN.
    pub fn read(&self, samples: &[u64], batch: &mut Batch) -> Result<(), Error> {
        debug_assert_eq!(samples.len() as u64, batch.rows, "a batch has room for its samples");
        for (column, tensor) in self.columns.iter().zip(&mut batch.tensors) {
            if matches!(column.values, Values::Whole { .. }) {
                continue;
            }
            if let Some(to) = tensor.bytes_mut() {
                column.read(samples, to, &self.path)?;
            }
            if let Some(at) = tensor.view().first_nan() {
                let row = at / (tensor.element_count() / batch.rows.max(1)).max(1);
                let sample = samples.get(usize::try_from(row).unwrap_or(0)).copied().unwrap_or(0);
                return Err(self.has_nan(&column.name, &self.describe_sample(sample)));
            }
        }
        Ok(())
    }

    /// The name of a sample in messages: its number, and its file if there are several.
    pub fn describe_sample(&self, sample: u64) -> String {
        let lists = self.columns.iter().filter_map(|column| match &column.values {
            Values::Samples(pieces) if pieces.len() > 1 => pieces.get(piece_of(pieces, sample)),
            Values::Samples(_) | Values::Whole { .. } => None,
        });
        let file = lists.into_iter().find_map(|piece| Some((piece, piece.array.file.as_ref()?)));
        match file {
            Some((piece, file)) => {
                let row = sample - piece.samples.start;
                format!("sample {sample}, counted from 0 (row {row} of `{}`)", file.display())
            }
            None => format!("sample {sample}, counted from 0"),
        }
    }

    /// Adds the sample to the error of a run over `samples`.
    pub(super) fn with_sample(&self, error: Error, found: Option<&BatchRow>, samples: &[u64]) -> Error {
        let Some(found) = found else { return error };
        let sample = usize::try_from(found.row).ok().and_then(|row| samples.get(row));
        let is_list = |column: &Column| column.name == found.input && column.samples().is_some();
        match (error, sample.filter(|_| self.columns.iter().any(is_list))) {
            (Error::Run(mut finding), Some(&sample)) => {
                let place = self.describe_sample(sample);
                finding.message.push_str(&format!(" in `{}` of {place}", found.input));
                finding.label = found.label;
                Error::Run(finding)
            }
            (error, _) => error,
        }
    }

    /// The values of a batch, with the names of inputs.
    pub fn named<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = (&'a str, &'a HostTensor)> {
        self.columns.iter().map(|column| column.name.as_str()).zip(&batch.tensors)
    }

    /// Rejects samples without elements, of which a file can claim any number.
    fn refuse_empty<'a>(&self, mut lists: impl Iterator<Item = &'a Column>) -> Result<(), Error> {
        let Some(first) = lists.next() else { return Ok(()) };
        if first.sample_bytes() > 0 || lists.any(|column| column.sample_bytes() > 0) {
            return Ok(());
        }
        let (name, samples) = (&first.name, self.samples);
        let reason = format!("`{name}`: expected samples with elements, found {samples} samples without any");
        Err(Error::Data { path: self.path.clone(), reason })
    }

    /// Rejects a NaN in values that are the same for every batch.
    fn refuse_nan(&self) -> Result<(), Error> {
        let whole = self.columns.iter().filter_map(|column| match &column.values {
            Values::Whole { tensor, .. } => Some((column, tensor)),
            Values::Samples(_) => None,
        });
        let found = whole.into_iter().find(|(_, tensor)| tensor.view().first_nan().is_some());
        found.map_or(Ok(()), |(column, _)| Err(self.has_nan(&column.name, "it, the same for every batch")))
    }

    fn has_nan(&self, name: &str, what: &str) -> Error {
        let reason = format!("`{name}`: {what}, has a NaN, which would make every gradient NaN");
        Error::Data { path: self.path.clone(), reason }
    }
}

/// The inputs that a step takes from a batch, without the learning rate.
fn wanted_by(trainer: &Trainer) -> Vec<String> {
    let wanted = trainer.batch_inputs().filter(|name| Some(*name) != trainer.lr_input());
    wanted.map(str::to_owned).collect()
}

/// The values of one batch, for each input that a dataset has.
#[derive(Debug)]
pub struct Batch {
    rows: u64,
    tensors: Vec<HostTensor>,
}

impl Batch {
    /// The number of samples.
    pub fn rows(&self) -> u64 {
        self.rows
    }
}

impl Column {
    /// The number of samples; `None` for an array that is the same for every batch.
    pub(super) fn samples(&self) -> Option<u64> {
        match &self.values {
            Values::Whole { .. } => None,
            Values::Samples(pieces) => Some(pieces.last().map_or(0, |piece| piece.samples.end)),
        }
    }

    fn sample_bytes(&self) -> u64 {
        let elements = self.dims.iter().fold(1u64, |elements, &dim| elements.saturating_mul(dim));
        self.dtype.storage_bytes(elements).unwrap_or(0)
    }

    /// Reads samples; consecutive samples are read in one call. `path` is the path of the data.
    fn read(&self, samples: &[u64], to: &mut [u8], path: &Path) -> Result<(), Error> {
        let Values::Samples(pieces) = &self.values else { return Ok(()) };
        let bytes = usize::try_from(self.sample_bytes()).unwrap_or(usize::MAX);
        let mut filled = 0;
        while filled < samples.len() {
            let first = samples[filled];
            let piece = &pieces[piece_of(pieces, first)];
            let follow =
                |(i, sample): (usize, &u64)| *sample == first + i as u64 && *sample < piece.samples.end;
            let run = samples[filled..].iter().enumerate().take_while(|&pair| follow(pair)).count();
            let part = &mut to[filled * bytes..(filled + run) * bytes];
            let read = piece.array.read((first - piece.samples.start) * bytes as u64, part);
            read.map_err(|source| io_error(piece.array.file.as_deref().unwrap_or(path), source))?;
            filled += run;
        }
        Ok(())
    }
}

/// The piece of a list that contains a sample.
fn piece_of(pieces: &[Piece], sample: u64) -> usize {
    pieces.partition_point(|piece| piece.samples.end <= sample)
}

/// The fixed batch size of the step, if the type of its input has one.
fn declared_batch(ty: &Type) -> Option<u64> {
    ty.shape().and_then(Shape::dims).and_then(|dims| dims.first()?.known())
}
