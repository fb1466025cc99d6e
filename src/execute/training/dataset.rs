//! Samples to train on: from `.npz` and `.safetensors` files, and folders of them.
//!
//! A file has an array per input of the step, of which axis 0 counts samples. Arrays of safetensors files are read where
//! they are, a batch at a time, those of `.npz` files once. An array that has exactly the dims that the step declares for
//! its input, all of them numbers, is no list of samples: it goes into every batch as it is, such as the weights of
//! classes.
//!
//! ```text
//! input %x : f32[N, 3, 32, 32]     x        f32[50000, 3, 32, 32]     50,000 samples
//! input %target : i64[N]           target   i64[50000]
//! input %weights : f32[10]         weights  f32[10]                   the same for every batch
//! ```

use super::super::batch_row::BatchRow;
use super::super::inputs::{InputProblem, describe, help_of_type, io_error, no_memory};
use super::super::trainer::Trainer;
use super::super::{input_names, input_types};
use super::arrays::{Array, Arrays};
use crate::error::Error;
use crate::onnx::bytes::SourceBytes;
use ampc_ir::module::Def;
use ampc_ir::{DType, Dim, Module, Shape, Symbol, Type};
use ampc_passes::suggest::{did_you_mean, nearest};
use ampc_runtime::HostTensor;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Values for the inputs of a step, sample by sample.
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
struct Column {
    name: String,
    dtype: DType,
    /// The dims of one sample.
    dims: Vec<u64>,
    values: Values,
}

#[derive(Debug)]
enum Values {
    /// For every batch the same.
    Whole(HostTensor),
    /// Along axis 0, in one or more pieces.
    Samples(Vec<Piece>),
}

/// Samples that lie one after the other.
#[derive(Debug)]
struct Piece {
    samples: Range<u64>,
    array: Array,
}

impl Dataset {
    /// Opens the samples of the inputs `wanted` of a module: of an `.npz` or `.safetensors` file, of all such files of a
    /// folder, in the order of their names with digits as numbers, or of a folder of test data, whose data sets are samples one after the other.
    /// What takes more than `most` bytes in memory is an error.
    ///
    /// # Errors
    /// If nothing is there, it cannot be read, or does not fit the inputs: all that it does not fit.
    pub fn open(path: &Path, module: &Module, wanted: &[String], most: u64) -> Result<Dataset, Error> {
        let arrays = Arrays::open(path, module, wanted, most)?;
        Dataset::of(path.to_owned(), arrays, module, wanted)
    }

    /// Samples that are in memory, by the names of the inputs that a step takes in a batch.
    ///
    /// # Errors
    /// If they do not fit the inputs: all that they do not fit.
    pub fn of_tensors(tensors: Vec<(String, HostTensor)>, trainer: &Trainer) -> Result<Dataset, Error> {
        let wanted = wanted_by(trainer);
        let mut arrays = Arrays::with_room(u64::MAX);
        for (name, tensor) in tensors {
            match wanted.contains(&name) {
                true => arrays.add(&name, Array::in_memory(tensor, None)),
                false => arrays.leave(&name),
            }
        }
        Dataset::of(PathBuf::from("memory"), arrays, trainer.module(), &wanted)
    }

    fn of(path: PathBuf, mut arrays: Arrays, module: &Module, wanted: &[String]) -> Result<Dataset, Error> {
        let (names, types) = (input_names(module), input_types(module));
        let inputs = module.graph(module.main()).inputs();
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
            let Some(at) = names.iter().position(|input| input == name) else { continue };
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
        problems.named_dims(&dataset.columns, &names, &types);
        if !problems.list.is_empty() {
            return Err(Error::Inputs(problems.list));
        }
        let lists = || dataset.columns.iter().zip(&declared).filter(|(column, _)| column.samples().is_some());
        match lists().next() {
            Some((column, _)) => dataset.samples = column.samples().unwrap_or(1),
            // Whatever the step takes at once is one batch.
            None => {
                let first = dataset.columns.iter().find_map(|column| column.dims.first().copied());
                dataset.samples = first.unwrap_or(1).max(1);
                dataset.batch = Some(dataset.samples);
            }
        }
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

    /// [`open`](Self::open) for all that a step takes in a batch, but for the learning rate.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn of_batches(path: &Path, trainer: &Trainer, most: u64) -> Result<Dataset, Error> {
        Dataset::open(path, trainer.module(), &wanted_by(trainer), most)
    }

    /// How many samples there are.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// How many samples the step takes at once, if it takes no other number.
    pub fn batch(&self) -> Option<u64> {
        self.batch
    }

    /// Inputs whose array is the same for every batch although it has as many rows as a batch: it may be meant as samples of
    /// one batch.
    pub fn same_for_all(&self) -> &[String] {
        &self.same_for_all
    }

    /// Arrays of the files that no input has the name of.
    pub fn unread(&self) -> &[String] {
        &self.unread
    }

    /// The files that samples are from.
    pub fn files(&self) -> &[Arc<SourceBytes>] {
        &self.files
    }

    /// The files that samples are read from batch by batch and that were written to meanwhile: batches may have had some of the
    /// old samples and some of the new ones.
    pub fn written_to(&self) -> impl Iterator<Item = &Path> {
        self.streamed.iter().filter(|file| file.was_written()).filter_map(|file| file.path())
    }

    /// Memory for batches of `rows` samples.
    ///
    /// # Errors
    /// If the system refuses it.
    pub fn buffer(&self, rows: u64) -> Result<Batch, Error> {
        let buffer = |column: &Column| {
            let tensor = match &column.values {
                Values::Whole(tensor) => Ok(tensor.clone()),
                Values::Samples(_) => {
                    let dims: Vec<u64> = std::iter::once(rows).chain(column.dims.iter().copied()).collect();
                    HostTensor::zeros(column.dtype, &dims)
                }
            };
            tensor.map_err(|error| no_memory(&column.name, &error))
        };
        Ok(Batch { rows, tensors: self.columns.iter().map(buffer).collect::<Result<_, _>>()? })
    }

    /// Reads samples into a batch of as many.
    ///
    /// # Errors
    /// If a file cannot be read any more, or a sample has a NaN.
    pub fn read(&self, samples: &[u64], batch: &mut Batch) -> Result<(), Error> {
        debug_assert_eq!(samples.len() as u64, batch.rows, "a batch has room for its samples");
        for (column, tensor) in self.columns.iter().zip(&mut batch.tensors) {
            if matches!(column.values, Values::Whole(_)) {
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

    /// A sample as messages name it: by its number, and where it is if there are several files.
    pub fn describe_sample(&self, sample: u64) -> String {
        let lists = self.columns.iter().filter_map(|column| match &column.values {
            Values::Samples(pieces) if pieces.len() > 1 => pieces.get(piece_of(pieces, sample)),
            Values::Samples(_) | Values::Whole(_) => None,
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

    /// The error of a run over `samples`, with the sample that it is about.
    pub(super) fn with_sample(&self, error: Error, found: Option<&BatchRow>, samples: &[u64]) -> Error {
        let Some(found) = found else { return error };
        let sample = usize::try_from(found.row).ok().and_then(|row| samples.get(row));
        let is_list = |column: &Column| column.name == found.input && column.samples().is_some();
        match (error, sample.filter(|_| self.columns.iter().any(is_list))) {
            (Error::Run(mut finding), Some(&sample)) => {
                let place = self.describe_sample(sample);
                finding.message.push_str(&format!(" in `{}` of {place}", found.input));
                Error::Run(finding)
            }
            (error, _) => error,
        }
    }

    /// The values of a batch, by the names of inputs.
    pub fn named<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = (&'a str, &'a HostTensor)> {
        self.columns.iter().map(|column| column.name.as_str()).zip(&batch.tensors)
    }

    /// Refuses values with a NaN that are the same for every batch.
    fn refuse_nan(&self) -> Result<(), Error> {
        let whole = self.columns.iter().filter_map(|column| match &column.values {
            Values::Whole(tensor) => Some((column, tensor)),
            Values::Samples(_) => None,
        });
        let found = whole.into_iter().find(|(_, tensor)| tensor.view().first_nan().is_some());
        found.map_or(Ok(()), |(column, _)| Err(self.has_nan(&column.name, "it, the same for every batch")))
    }

    fn has_nan(&self, name: &str, what: &str) -> Error {
        let reason = format!("`{name}`: {what}, has a NaN, of which every gradient would become NaN");
        Error::Data { path: self.path.clone(), reason }
    }
}

/// What a step takes in a batch, but for the learning rate.
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
    /// How many samples it has.
    pub fn rows(&self) -> u64 {
        self.rows
    }
}

impl Column {
    fn samples(&self) -> Option<u64> {
        match &self.values {
            Values::Whole(_) => None,
            Values::Samples(pieces) => Some(pieces.last().map_or(0, |piece| piece.samples.end)),
        }
    }

    fn sample_bytes(&self) -> u64 {
        let elements = self.dims.iter().fold(1u64, |elements, &dim| elements.saturating_mul(dim));
        self.dtype.storage_bytes(elements).unwrap_or(0)
    }

    /// Reads samples, of which those that follow each other are read at once. `path` is where the data is.
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

/// Which of the pieces of a list has a sample.
fn piece_of(pieces: &[Piece], sample: u64) -> usize {
    pieces.partition_point(|piece| piece.samples.end <= sample)
}

/// The number of samples that the step takes at once, if its input says so.
fn declared_batch(ty: &Type) -> Option<u64> {
    ty.shape().and_then(Shape::dims).and_then(|dims| dims.first()?.known())
}

/// What is wrong with the arrays for the inputs of a module.
struct Problems<'a> {
    module: &'a Module,
    unread: &'a [String],
    list: Vec<InputProblem>,
}

impl Problems<'_> {
    fn add(&mut self, code: &'static str, name: &str, message: String, help: String) {
        let (name, help) = (name.to_owned(), Some(help));
        self.list.push(InputProblem { code, kind: "input", name, message, help });
    }

    fn missing(&mut self, name: &str, ty: &Type, path: &Path) {
        let near = nearest(name, self.unread.iter().map(String::as_str));
        let near = near.map(|near| did_you_mean(Some(near))).unwrap_or_default();
        let expected = describe(self.module, ty);
        let message = format!("expected {expected}, found none in `{}`{near}", path.display());
        let help = "the data needs an array of this name, with a row for each sample";
        self.add("missing", name, message, help.into());
    }

    /// The values of an input, if they fit it.
    fn column(
        &mut self,
        name: &str,
        ty: &Type,
        arrays: Vec<Array>,
        is_npz: bool,
    ) -> Result<Option<Column>, Error> {
        let Some(dtype) = self.element_type(name, ty) else { return Ok(None) };
        if let Some(wrong) = arrays.iter().find(|array| !fits(array, ty)) {
            let (expected, found) = (describe(self.module, ty), self.found(wrong));
            let help = match ty.shape().and_then(Shape::dims) {
                Some([]) if wrong.dtype == dtype => {
                    "give one number, which is the same for every batch".into()
                }
                _ => help_of_type(name, ty, &wrong.ty(), is_npz),
            };
            self.add("type", name, format!("expected {expected}, found {found}"), help);
            return Ok(None);
        }
        let is_whole = |array: &Array| *ty == array.ty() || array.dims.is_empty();
        if arrays.iter().all(is_whole) && are_alike(&arrays)? {
            let Some(first) = arrays.into_iter().next() else { return Ok(None) };
            let (dims, tensor) = (first.dims.clone(), first.into_tensor(name)?);
            return Ok(Some(Column { name: name.into(), dtype, dims, values: Values::Whole(tensor) }));
        }
        Ok(self.list(name, dtype, arrays))
    }

    /// The element type of an input, if a step can be trained on samples of it.
    fn element_type(&mut self, name: &str, ty: &Type) -> Option<DType> {
        let has_bytes = |dtype: &DType| {
            *dtype != DType::String && dtype.storage_bytes(2) == dtype.storage_bytes(1).map(|bytes| bytes * 2)
        };
        let dtype = ty.as_tensor().map(|tensor| tensor.dtype).filter(has_bytes);
        if dtype.is_none() {
            let message = format!("a step cannot be trained on samples of {}", describe(self.module, ty));
            self.add("type", name, message, "make the step of a model with inputs of numbers".into());
        }
        dtype
    }

    /// The samples of arrays, one after the other, if they have one size.
    fn list(&mut self, name: &str, dtype: DType, arrays: Vec<Array>) -> Option<Column> {
        let first = arrays.first()?;
        if let Some(number) = arrays.iter().find(|array| array.dims.is_empty()) {
            let found = self.found(number);
            let message = format!(
                "expected one number for all batches, or samples, found several arrays, of which one is {found}"
            );
            self.add("samples", name, message, "give every batch the same number".into());
            return None;
        }
        let dims = first.dims.get(1..).unwrap_or_default().to_vec();
        if let Some(other) = arrays.iter().find(|array| array.dims.get(1..) != Some(&dims[..])) {
            let (expected, found) = (self.found(first), self.found(other));
            let message = format!("expected samples of one size, found {expected} and {found}");
            self.add("samples", name, message, "pad the samples to one size".into());
            return None;
        }
        let mut end = 0;
        let pieces = arrays.into_iter().map(|array| {
            let start = end;
            end += array.dims.first().copied().unwrap_or(0);
            Piece { samples: start..end, array }
        });
        Some(Column { name: name.into(), dtype, dims, values: Values::Samples(pieces.collect()) })
    }

    /// The type of an array and the file that it is in.
    fn found(&self, array: &Array) -> String {
        let ty = describe(self.module, &array.ty());
        match &array.file {
            Some(file) => format!("{ty} in `{}`", file.display()),
            None => ty,
        }
    }

    /// A dim that has a name has one size in all inputs; that of axis 0 of a list is the batch.
    fn named_dims(&mut self, columns: &[Column], names: &[String], types: &[Type]) {
        let mut known: BTreeMap<Symbol, (u64, &str)> = BTreeMap::new();
        for column in columns {
            let at = names.iter().position(|name| *name == column.name);
            let declared = at.and_then(|at| types[at].shape()?.dims()).unwrap_or_default();
            let inner = declared.iter().skip(usize::from(column.samples().is_some()));
            for (dim, &size) in inner.zip(&column.dims) {
                let Dim::Sym(symbol) = dim else { continue };
                let &mut (first, of) = known.entry(*symbol).or_insert((size, &column.name));
                if first != size {
                    let dim = self.module.text(*symbol);
                    let message = format!("expected {first} for the dim `{dim}`, as in `{of}`, found {size}");
                    let help = "give inputs that share a dim the same size there";
                    self.add("dims", &column.name, message, help.into());
                }
            }
        }
    }

    /// All inputs have as many samples, and a batch at least.
    fn sizes(&mut self, columns: &[Column], declared: &[Option<u64>]) {
        let lists = columns.iter().zip(declared);
        let lists: Vec<_> =
            lists.filter_map(|(column, batch)| Some((column, column.samples()?, *batch))).collect();
        let Some(&(first, samples, _)) = lists.first() else { return };
        for &(column, other, _) in &lists {
            if other != samples {
                let message = format!("expected {samples} samples, as in `{}`, found {other}", first.name);
                self.add("samples", &column.name, message, "give every input a row for each sample".into());
                return;
            }
        }
        if samples == 0 {
            let message = "expected a sample at least, found none".into();
            self.add("samples", &first.name, message, "give data with samples".into());
            return;
        }
        let mut batches = lists.iter().filter_map(|&(column, _, batch)| Some((column, batch?)));
        let Some((of, batch)) = batches.next() else { return };
        if let Some((other, size)) = batches.find(|&(_, size)| size != batch) {
            let message = format!("the step takes {size} samples of it, and {batch} of `{}`", of.name);
            let help =
                "an array that is no list of samples has exactly the dims that the step declares".into();
            self.add("samples", &other.name, message, help);
        } else if samples < batch {
            let message = format!("the step takes {batch} samples at once, found {samples}");
            self.add(
                "samples",
                &of.name,
                message,
                "give more samples, or make the step of a model for fewer".into(),
            );
        }
    }
}

/// Whether an array has the element type of an input, and its dims but for the first.
fn fits(array: &Array, ty: &Type) -> bool {
    let dims = ty.shape().and_then(Shape::dims).is_none_or(|dims| {
        let mut inner = dims.iter().zip(&array.dims).skip(1);
        let is_row = |(dim, &size): (&Dim, &u64)| dim.known().is_none_or(|known| known == size);
        dims.len() == array.dims.len() && inner.all(is_row)
    });
    ty.dtype() == Some(array.dtype) && dims
}

/// Whether arrays have the same bytes, as one that is no list of samples has in every file.
fn are_alike(arrays: &[Array]) -> Result<bool, Error> {
    let [first, others @ ..] = arrays else { return Ok(true) };
    let bytes = first.byte_len();
    let read = |array: &Array, at: u64, to: &mut [u8]| {
        let read = array.read(at, to);
        read.map_err(|error| io_error(array.file.as_deref().unwrap_or(Path::new("memory")), error))
    };
    let (mut left, mut right) = ([0; COMPARED], [0; COMPARED]);
    for other in others {
        if other.byte_len() != bytes {
            return Ok(false);
        }
        for at in (0..bytes).step_by(COMPARED) {
            let count = usize::try_from(bytes - at).map_or(COMPARED, |rest| rest.min(COMPARED));
            let (left, right) = (&mut left[..count], &mut right[..count]);
            read(first, at, left)?;
            read(other, at, right)?;
            if left != right {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// How many bytes are compared at once.
const COMPARED: usize = 1 << 14;
