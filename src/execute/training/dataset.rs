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

use super::super::inputs::test_data::{DataFile, numbered};
use super::super::inputs::{InputProblem, describe, help_of_type, io_error, no_memory, regular};
use super::super::trainer::Trainer;
use super::super::{input_names, input_types};
use crate::error::Error;
use crate::onnx::bytes::SourceBytes;
use crate::onnx::data;
use crate::safetensors::Tensors;
use ampc_ir::module::Def;
use ampc_ir::tensor::{FileRange, Storage};
use ampc_ir::{DType, Dim, Module, Shape, Type};
use ampc_passes::suggest::{did_you_mean, nearest};
use ampc_runtime::npz::{self, Archive, NpzError};
use ampc_runtime::{Data, HostTensor};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader};
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
    unread: Vec<String>,
    files: Vec<Arc<SourceBytes>>,
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

/// Samples that lie one behind the other.
#[derive(Debug)]
struct Piece {
    samples: Range<u64>,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Memory(HostTensor),
    File(FileRange),
}

/// An array of a file.
#[derive(Debug)]
struct Stored {
    dtype: DType,
    dims: Vec<u64>,
    bytes: Bytes,
}

impl Stored {
    fn in_memory(tensor: HostTensor) -> Stored {
        Stored { dtype: tensor.dtype(), dims: tensor.dims().to_vec(), bytes: Bytes::Memory(tensor) }
    }

    fn ty(&self) -> Type {
        Type::tensor(self.dtype, Shape::known(&self.dims))
    }
}

/// The arrays of the files that were read, by name: several of one name are pieces of one list.
#[derive(Default)]
struct Arrays {
    by_name: BTreeMap<String, Vec<Stored>>,
    unread: Vec<String>,
    files: Vec<Arc<SourceBytes>>,
    is_npz: bool,
}

impl Dataset {
    /// Opens the samples of the inputs `wanted` of a module: of an `.npz` or `.safetensors` file, of all such files of a
    /// folder, in the order of their names, or of a folder of test data, whose data sets are samples one behind the other.
    /// What takes more than `most` bytes in memory is an error.
    ///
    /// # Errors
    /// If nothing is there, it cannot be read, or does not fit the inputs: all that it does not fit.
    pub fn open(path: &Path, module: &Module, wanted: &[String], most: u64) -> Result<Dataset, Error> {
        let mut arrays = Arrays::default();
        if regular(path)?.is_dir() {
            arrays.read_folder(path, module, wanted, most)?;
        } else if !arrays.read_file(path, wanted, most)? {
            return Err(Error::Usage(format!(
                "`{}`: expected a file that ends in .npz or .safetensors, or a folder of such files or of test data",
                path.display()
            )));
        }
        Dataset::of(path.to_owned(), arrays, module, wanted)
    }

    /// Samples that are in memory, by the names of the inputs that a step takes in a batch.
    ///
    /// # Errors
    /// If they do not fit the inputs: all that they do not fit.
    pub fn of_tensors(tensors: Vec<(String, HostTensor)>, trainer: &Trainer) -> Result<Dataset, Error> {
        let wanted = wanted_by(trainer);
        let mut arrays = Arrays::default();
        for (name, tensor) in tensors {
            match wanted.contains(&name) {
                true => arrays.add(&name, Stored::in_memory(tensor)),
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
            unread: std::mem::take(&mut arrays.unread),
            files: std::mem::take(&mut arrays.files),
        };
        let mut problems = Problems { module, unread: &dataset.unread, list: Vec::new() };
        let mut declared = Vec::new();
        for name in wanted {
            let Some(at) = names.iter().position(|input| input == name) else { continue };
            let ty = &types[at];
            let Some(stored) = arrays.by_name.remove(name) else {
                if !matches!(module.value(inputs[at]).def, Def::Input { default: Some(_), .. }) {
                    problems.missing(name, ty);
                }
                continue;
            };
            if let Some(column) = problems.column(name, ty, stored, arrays.is_npz) {
                declared.push(declared_batch(ty));
                dataset.columns.push(column);
            }
        }
        problems.sizes(&dataset.columns, &declared);
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

    /// Arrays of the files that no input has the name of.
    pub fn unread(&self) -> &[String] {
        &self.unread
    }

    /// The files that samples are read from.
    pub fn files(&self) -> &[Arc<SourceBytes>] {
        &self.files
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
            let Values::Samples(pieces) = &column.values else { continue };
            let Some(to) = tensor.bytes_mut() else { continue };
            let bytes = usize::try_from(column.sample_bytes()).unwrap_or(usize::MAX);
            let mut filled = 0;
            while filled < samples.len() {
                let first = samples[filled];
                let at = pieces.partition_point(|piece| piece.samples.end <= first);
                let piece = &pieces[at];
                let follow =
                    |(i, sample): (usize, &u64)| *sample == first + i as u64 && *sample < piece.samples.end;
                let run = samples[filled..].iter().enumerate().take_while(|&pair| follow(pair)).count();
                let part = &mut to[filled * bytes..(filled + run) * bytes];
                piece.read(first, bytes, part).map_err(|source| io_error(&self.path, source))?;
                filled += run;
            }
            if let Some(at) = tensor.first_nan() {
                let row = at / (tensor.element_count() / batch.rows.max(1)).max(1);
                let sample = samples.get(usize::try_from(row).unwrap_or(0)).copied().unwrap_or(0);
                return Err(self.has_nan(&column.name, &format!("sample {sample}, counted from 0,")));
            }
        }
        Ok(())
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
        let found = whole.into_iter().find(|(_, tensor)| tensor.first_nan().is_some());
        found.map_or(Ok(()), |(column, _)| Err(self.has_nan(&column.name, "it")))
    }

    fn has_nan(&self, name: &str, what: &str) -> Error {
        let reason = format!("`{name}`: {what} has a NaN, of which every gradient would become NaN");
        Error::Data { path: self.path.clone(), reason }
    }
}

/// What a step takes in a batch, but for the learning rate.
fn wanted_by(trainer: &Trainer) -> Vec<String> {
    let wanted = trainer.batch_inputs().filter(|name| Some(*name) != trainer.rate());
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
        self.dtype.storage_bytes(self.dims.iter().product()).unwrap_or(0)
    }
}

impl Piece {
    /// Reads as many samples as `to` has room for, from sample `first` of the list on.
    fn read(&self, first: u64, sample_bytes: usize, to: &mut [u8]) -> io::Result<()> {
        let offset = (first - self.samples.start) * sample_bytes as u64;
        match &self.bytes {
            Bytes::Memory(tensor) => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX);
                let bytes = tensor.bytes().and_then(|bytes| bytes.get(from..from + to.len()));
                to.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
            Bytes::File(range) => range.source.read_exact_at(to, range.offset + offset),
        }
    }
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

    fn missing(&mut self, name: &str, ty: &Type) {
        let near = nearest(name, self.unread.iter().map(String::as_str));
        let found = near
            .map_or_else(|| "found none".into(), |near| format!("found none{}", did_you_mean(Some(near))));
        let message = format!("expected {}, {found}", describe(self.module, ty));
        self.add(
            "missing",
            name,
            message,
            "the data needs an array of this name, with a row for each sample".into(),
        );
    }

    /// The values of an input, if they fit it.
    fn column(&mut self, name: &str, ty: &Type, stored: Vec<Stored>, is_npz: bool) -> Option<Column> {
        let first = stored.first()?;
        let Some(dtype) = ty.as_tensor().map(|tensor| tensor.dtype).filter(|dtype| {
            dtype.storage_bytes(2) == dtype.storage_bytes(1).map(|bytes| bytes * 2) && *dtype != DType::String
        }) else {
            let message = format!("a step cannot be trained on samples of {}", describe(self.module, ty));
            self.add("type", name, message, "make the step of a model with inputs of numbers".into());
            return None;
        };
        let declared = ty.shape().and_then(Shape::dims);
        let fits = |stored: &Stored| {
            let dims = declared.is_none_or(|dims| {
                let inner = dims.iter().zip(&stored.dims).skip(1);
                let is_row = |(dim, &size): (&Dim, &u64)| dim.known().is_none_or(|known| known == size);
                dims.len() == stored.dims.len() && inner.into_iter().all(is_row)
            });
            stored.dtype == dtype && dims
        };
        if let Some(wrong) = stored.iter().find(|stored| !fits(stored)) {
            let (expected, found) = (describe(self.module, ty), describe(self.module, &wrong.ty()));
            let help = help_of_type(name, ty, &wrong.ty(), is_npz);
            self.add("type", name, format!("expected {expected}, found {found}"), help);
            return None;
        }
        let is_whole = |stored: &Stored| *ty == stored.ty() || stored.dims.is_empty();
        if stored.iter().all(is_whole) && are_alike(&stored) {
            let tensor = stored.into_iter().next().and_then(Stored::tensor)?;
            let dims = tensor.dims().to_vec();
            return Some(Column { name: name.into(), dtype, dims, values: Values::Whole(tensor) });
        }
        if first.dims.is_empty() {
            let message = "expected one number for all batches, found several".into();
            self.add("samples", name, message, "give every batch the same number".into());
            return None;
        }
        let dims = first.dims.get(1..).unwrap_or_default().to_vec();
        if let Some(other) = stored.iter().find(|stored| stored.dims.get(1..) != Some(&dims[..])) {
            let (expected, found) = (describe(self.module, &first.ty()), describe(self.module, &other.ty()));
            let message = format!("expected samples of one size, found {expected} and {found}");
            self.add("samples", name, message, "pad the samples to one size".into());
            return None;
        }
        let mut end = 0;
        let pieces = stored.into_iter().map(|stored| {
            let start = end;
            end += stored.dims.first().copied().unwrap_or(0);
            Piece { samples: start..end, bytes: stored.bytes }
        });
        Some(Column { name: name.into(), dtype, dims, values: Values::Samples(pieces.collect()) })
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

/// Whether arrays have the same bytes, as one that is no list of samples has in every file.
fn are_alike(stored: &[Stored]) -> bool {
    let bytes = |stored: &Stored| match &stored.bytes {
        Bytes::Memory(tensor) => tensor.bytes().map(<[u8]>::to_vec),
        Bytes::File(range) => {
            let mut bytes = vec![0; usize::try_from(range.len).ok()?];
            range.source.read_exact_at(&mut bytes, range.offset).ok().map(|()| bytes)
        }
    };
    let [first, others @ ..] = stored else { return true };
    others.is_empty() || others.iter().all(|other| bytes(other).is_some() && bytes(other) == bytes(first))
}

impl Stored {
    fn tensor(self) -> Option<HostTensor> {
        match self.bytes {
            Bytes::Memory(tensor) => Some(tensor),
            Bytes::File(range) => {
                let mut tensor = HostTensor::zeros(self.dtype, &self.dims).ok()?;
                range.source.read_exact_at(tensor.bytes_mut()?, range.offset).ok()?;
                Some(tensor)
            }
        }
    }
}

impl Arrays {
    fn add(&mut self, name: &str, stored: Stored) {
        self.by_name.entry(name.to_owned()).or_default().push(stored);
    }

    fn leave(&mut self, name: &str) {
        if !self.unread.iter().any(|known| known == name) {
            self.unread.push(name.to_owned());
        }
    }

    /// Reads a file of arrays; false if it is none by its name.
    fn read_file(&mut self, path: &Path, wanted: &[String], most: u64) -> Result<bool, Error> {
        match ending(path).as_str() {
            "npz" => self.read_npz(path, wanted, most)?,
            "safetensors" => self.read_safetensors(path, wanted)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn read_npz(&mut self, path: &Path, wanted: &[String], most: u64) -> Result<(), Error> {
        let bad = |error: &NpzError| Error::Data { path: path.to_owned(), reason: error.to_string() };
        let source = SourceBytes::open(path).map_err(|e| io_error(path, e))?;
        let file = File::open(path).map_err(|e| io_error(path, e))?;
        let mut archive = Archive::open(BufReader::new(file)).map_err(|e| bad(&e))?;
        for index in 0..archive.names().len() {
            let entry = archive.names()[index].clone();
            let is_wanted = |name: &str| wanted.iter().any(|wanted| wanted == name);
            if !is_wanted(&entry) && !is_wanted(npz::plain_name(&entry)) {
                self.leave(&entry);
                continue;
            }
            let tensor = archive.read(index, most).map_err(|e| bad(&e))?;
            let (name, tensor) = match is_wanted(&entry) {
                true => (entry.as_str(), tensor),
                false => npz::restored(&entry, tensor).map_err(|e| bad(&e))?,
            };
            self.add(name, Stored::in_memory(tensor));
        }
        self.is_npz = true;
        self.files.push(Arc::new(source));
        Ok(())
    }

    fn read_safetensors(&mut self, path: &Path, wanted: &[String]) -> Result<(), Error> {
        let (tensors, file) =
            Tensors::open(path)?.ok_or_else(|| io_error(path, io::ErrorKind::NotFound.into()))?;
        for (name, entry) in tensors.iter() {
            if !wanted.iter().any(|wanted| wanted == name) {
                self.leave(name);
                continue;
            }
            let unknown = || {
                let reason = format!("`{name}`: elements of {} are not supported", entry.spelling());
                Error::Data { path: path.to_owned(), reason }
            };
            let data = entry.read().ok_or_else(unknown)?;
            let Storage::File(range) = data.storage() else { return Err(unknown()) };
            let bytes = Bytes::File(range.clone());
            self.add(name, Stored { dtype: data.dtype(), dims: data.dims().to_vec(), bytes });
        }
        self.files.push(file);
        Ok(())
    }

    /// Reads all files of a folder, or its test data.
    fn read_folder(
        &mut self,
        path: &Path,
        module: &Module,
        wanted: &[String],
        most: u64,
    ) -> Result<(), Error> {
        let entries = std::fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut paths: Vec<PathBuf> =
            entries.map_err(|e| io_error(path, e))?.iter().map(std::fs::DirEntry::path).collect();
        paths.sort();
        let mut sets: Vec<PathBuf> = paths.iter().filter(|path| is_set(path)).cloned().collect();
        sets.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
        if is_set(path) {
            sets = vec![path.to_owned()];
        }
        for set in &sets {
            self.read_set(set, module, wanted, most)?;
        }
        if !sets.is_empty() {
            return Ok(());
        }
        let mut found = 0;
        for file in paths.iter().filter(|file| file.is_file()) {
            let before: Vec<usize> =
                wanted.iter().map(|name| self.by_name.get(name).map_or(0, Vec::len)).collect();
            if !self.read_file(file, wanted, most)? {
                continue;
            }
            // A file without an input that others have would move its samples against those of the others.
            let lacks = wanted.iter().zip(&before).find(|(name, before)| {
                found > 0 && **before > 0 && self.by_name.get(*name).map_or(0, Vec::len) == **before
            });
            if let Some((name, _)) = lacks {
                let reason = format!("expected an array `{name}`, as the files before it have, found none");
                return Err(Error::Data { path: file.clone(), reason });
            }
            found += 1;
        }
        if found > 0 {
            return Ok(());
        }
        Err(Error::Usage(format!(
            "`{}`: expected .npz or .safetensors files in the folder, input_0.pb, input_1.pb …, or folders of these, \
             found none",
            path.display()
        )))
    }

    /// Reads a data set: a file per input, counted as in test data of the step, or named.
    fn read_set(
        &mut self,
        folder: &Path,
        module: &Module,
        wanted: &[String],
        most: u64,
    ) -> Result<(), Error> {
        let (names, types) = (input_names(module), input_types(module));
        for number in numbered(folder, "input").map_err(|e| io_error(folder, e))? {
            let file = DataFile::open(folder, "input", number)?;
            let told = data::names(&file.bytes).of_tensor.filter(|name| wanted.contains(name));
            let Some(name) = told.or_else(|| wanted.get(number).cloned()) else {
                self.leave(&format!("input_{number}.pb"));
                continue;
            };
            let Some(at) = names.iter().position(|input| *input == name) else { continue };
            let Data::Tensor(tensor) = file.read(&types[at], most)? else {
                let reason = format!("`{name}`: expected a tensor");
                return Err(Error::Data { path: folder.to_owned(), reason });
            };
            self.add(&name, Stored::in_memory(tensor));
            self.files.push(file.bytes);
        }
        Ok(())
    }
}

fn ending(path: &Path) -> String {
    path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase()
}

/// Whether a folder has `input_0.pb`.
fn is_set(path: &Path) -> bool {
    path.join("input_0.pb").is_file()
}
