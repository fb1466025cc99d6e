//! The arrays of files: of `.npz` and `.safetensors` files, of folders of them, and of test data.
//!
//! Several arrays with the same name, in several files, are the pieces of one list. Arrays of safetensors files stay
//! in their files; other arrays are read into memory.

use super::super::inputs::test_data::{DataFile, numbered};
use super::super::inputs::{io_error, no_memory, no_npz, regular};
use crate::bytes::SourceBytes;
use crate::error::Error;
use crate::interface::{input_names, input_types};
use crate::onnx::data;
use crate::safetensors::Tensors;
use ampc_ir::tensor::{FileRange, Storage};
use ampc_ir::{DType, Dim, Module, Shape, Type};
use ampc_runtime::npy::NpyError;
use ampc_runtime::npz::{self, Archive, NpzError};
use ampc_runtime::{Data, HostTensor};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An array of a file.
#[derive(Debug)]
pub(super) struct Array {
    pub(super) dtype: DType,
    pub(super) dims: Vec<u64>,
    pub(super) bytes: Bytes,
    /// The file of the array; `None` if it was never in a file.
    pub(super) file: Option<Arc<Path>>,
}

/// The location of an array's bytes.
#[derive(Debug)]
pub(super) enum Bytes {
    Memory(HostTensor),
    File(FileRange),
    /// Not read, because the array does not fit its input.
    Unread,
}

impl Array {
    pub(super) fn in_memory(tensor: HostTensor, file: Option<&Arc<Path>>) -> Array {
        let (dtype, dims) = (tensor.dtype(), tensor.dims().to_vec());
        Array { dtype, dims, bytes: Bytes::Memory(tensor), file: file.cloned() }
    }

    pub(super) fn ty(&self) -> Type {
        Type::tensor(self.dtype, Shape::known(&self.dims))
    }

    pub(super) fn byte_len(&self) -> u64 {
        match &self.bytes {
            Bytes::Memory(tensor) => tensor.bytes().map_or(0, |bytes| bytes.len() as u64),
            Bytes::File(range) => range.len,
            Bytes::Unread => 0,
        }
    }

    /// The whole array, in memory.
    ///
    /// # Errors
    /// If the file cannot be read any more, or the allocation fails.
    pub(super) fn into_tensor(self, name: &str) -> Result<HostTensor, Error> {
        let range = match self.bytes {
            Bytes::Memory(tensor) => return Ok(tensor),
            Bytes::File(range) => range,
            Bytes::Unread => return Err(Error::Bug(format!("`{name}` was not read"))),
        };
        let mut tensor = HostTensor::zeros(self.dtype, &self.dims).map_err(|e| no_memory(name, &e))?;
        if let Some(bytes) = tensor.bytes_mut() {
            let read = range.source.read_exact_at(bytes, range.offset);
            read.map_err(|e| io_error(self.file.as_deref().unwrap_or(Path::new(name)), e))?;
        }
        Ok(tensor)
    }

    /// Reads bytes of the array.
    pub(super) fn read(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        match &self.bytes {
            Bytes::Memory(tensor) => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX);
                let end = from.saturating_add(to.len());
                let bytes = tensor.bytes().and_then(|bytes| bytes.get(from..end));
                to.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
            Bytes::File(range) => range.source.read_exact_at(to, range.offset + offset),
            Bytes::Unread => Err(io::Error::other("the array was not read")),
        }
    }
}

/// The arrays that were found.
pub(super) struct Arrays {
    /// The arrays of each input, by name.
    pub(super) by_name: BTreeMap<String, Vec<Array>>,
    /// The names of arrays that match no input, each once.
    pub(super) unread: Vec<String>,
    left_out: FxHashSet<String>,
    /// The inputs that need arrays, and their types if known.
    wanted: FxHashMap<String, Option<Type>>,
    /// The names of the arrays in the current file or data set so far.
    given: BTreeSet<String>,
    /// The files.
    pub(super) files: Vec<Arc<SourceBytes>>,
    /// The files from which samples are read in batches.
    pub(super) streamed: Vec<Arc<SourceBytes>>,
    pub(super) is_npz: bool,
    /// The remaining memory in bytes.
    left: u64,
}

impl Arrays {
    /// Finds the arrays of the inputs `wanted` of a module at a path: a file, or a folder.
    ///
    /// # Errors
    /// If nothing exists at the path, it cannot be read, or its arrays exceed `most` bytes in memory.
    pub(super) fn open(path: &Path, module: &Module, wanted: &[String], most: u64) -> Result<Arrays, Error> {
        let mut arrays = Arrays::of(wanted.iter().cloned(), most);
        for (name, ty) in input_names(module).into_iter().zip(input_types(module)) {
            arrays.wanted.entry(name).and_modify(|known| *known = Some(ty));
        }
        if regular(path)?.is_dir() {
            arrays.read_folder(path, module, wanted)?;
        } else if !arrays.read_file(path)? {
            return Err(Error::Usage(format!(
                "`{}`: expected a file that ends in .npz or .safetensors, or a folder of such files or of test data",
                path.display()
            )));
        }
        Ok(arrays)
    }

    /// An empty collection of arrays for these inputs, with at most `most` bytes in memory.
    pub(super) fn of(wanted: impl IntoIterator<Item = String>, most: u64) -> Arrays {
        Arrays {
            by_name: BTreeMap::new(),
            unread: Vec::new(),
            left_out: FxHashSet::default(),
            wanted: wanted.into_iter().map(|name| (name, None)).collect(),
            given: BTreeSet::new(),
            files: Vec::new(),
            streamed: Vec::new(),
            is_npz: false,
            left: most,
        }
    }

    pub(super) fn add(&mut self, name: &str, array: Array) {
        if matches!(array.bytes, Bytes::Memory(_)) {
            self.left = self.left.saturating_sub(array.byte_len());
        }
        self.by_name.entry(name.to_owned()).or_default().push(array);
    }

    pub(super) fn leave(&mut self, name: &str) {
        if self.left_out.insert(name.to_owned()) {
            self.unread.push(name.to_owned());
        }
    }

    /// Adds an array of the current file or data set, unless it already has an array of this name.
    fn add_once(&mut self, name: &str, array: Array) -> Result<(), Error> {
        if !self.given.insert(name.to_owned()) {
            let path = array.file.as_deref().unwrap_or(Path::new(name)).to_owned();
            let reason = format!("expected one array `{name}`, found two; leave one of the two out");
            return Err(Error::Data { path, reason });
        }
        self.add(name, array);
        Ok(())
    }

    /// Reads a file of arrays; returns false if its name is not that of an array file.
    fn read_file(&mut self, path: &Path) -> Result<bool, Error> {
        match ending(path).as_str() {
            "npz" => self.read_npz(path)?,
            "safetensors" => self.read_safetensors(path)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn read_npz(&mut self, path: &Path) -> Result<(), Error> {
        let bad = |error: &NpzError| match error {
            NpzError::NoArchive | NpzError::NotAnArray { .. } => no_npz(path, error),
            NpzError::Array { name, source: NpyError::Host(refused) } if refused.is_no_memory() => {
                no_memory(name, refused)
            }
            other => Error::Data { path: path.to_owned(), reason: other.to_string() },
        };
        let shared: Arc<Path> = path.into();
        let source = SourceBytes::open(path).map_err(|e| io_error(path, e))?;
        let file = File::open(path).map_err(|e| io_error(path, e))?;
        let mut archive = Archive::open(BufReader::new(file)).map_err(|e| bad(&e))?;
        for index in 0..archive.names().len() {
            let entry = archive.names()[index].clone();
            let is_wanted = |name: &str| self.wanted.contains_key(name);
            if !is_wanted(&entry) && !is_wanted(npz::plain_name(&entry)) {
                self.leave(&entry);
                continue;
            }
            // An archive of a few bytes can hold any number of zeros, so only an array that fits its input is read.
            let (dtype, dims) = archive.header(index).map_err(|e| bad(&e))?;
            let (name, dtype) = match is_wanted(&entry) {
                true => (entry.as_str(), dtype),
                false => npz::restored_type(&entry, dtype),
            };
            let array = Array { dtype, dims, bytes: Bytes::Unread, file: Some(shared.clone()) };
            if self.wanted.get(name).and_then(Option::as_ref).is_some_and(|ty| !fits(&array, ty)) {
                self.add_once(name, array)?;
                continue;
            }
            let tensor = archive.read(index, self.left).map_err(|e| bad(&e))?;
            let (name, tensor) = match is_wanted(&entry) {
                true => (entry.as_str(), tensor),
                false => npz::restored(&entry, tensor).map_err(|e| bad(&e))?,
            };
            self.add_once(name, Array::in_memory(tensor, Some(&shared)))?;
        }
        self.is_npz = true;
        self.files.push(Arc::new(source));
        Ok(())
    }

    fn read_safetensors(&mut self, path: &Path) -> Result<(), Error> {
        let shared: Arc<Path> = path.into();
        let (tensors, file) =
            Tensors::open(path)?.ok_or_else(|| io_error(path, io::ErrorKind::NotFound.into()))?;
        for (name, entry) in tensors.iter() {
            if !self.wanted.contains_key(name) {
                self.leave(name);
                continue;
            }
            let unknown = || {
                let reason = entry.unsupported(name);
                Error::Data { path: path.to_owned(), reason }
            };
            let data = entry.read().ok_or_else(unknown)?;
            let Storage::File(range) = data.storage() else { return Err(unknown()) };
            let (dtype, dims, bytes) = (data.dtype(), data.dims().to_vec(), Bytes::File(range.clone()));
            self.add_once(name, Array { dtype, dims, bytes, file: Some(shared.clone()) })?;
        }
        self.streamed.push(file.clone());
        self.files.push(file);
        Ok(())
    }

    /// Reads all files of a folder, or its test data.
    fn read_folder(&mut self, path: &Path, module: &Module, wanted: &[String]) -> Result<(), Error> {
        let entries = std::fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut paths: Vec<PathBuf> =
            entries.map_err(|e| io_error(path, e))?.iter().map(std::fs::DirEntry::path).collect();
        paths.sort_by_key(|path| natural(path));
        let mut sets: Vec<PathBuf> = paths.iter().filter(|path| is_set(path)).cloned().collect();
        let first_file = paths.iter().find(|file| is_array_file(file) && file.is_file());
        refuse_mixture(path, sets.first(), first_file)?;
        if is_set(path) {
            sets = vec![path.to_owned()];
        }
        for set in &sets {
            self.read_set(set, module, wanted)?;
            self.next_file(set, wanted)?;
        }
        if !sets.is_empty() {
            return Ok(());
        }
        let mut found = 0;
        for file in &paths {
            if !file.is_file() {
                // A dangling link, a pipe or a folder with such a name would silently drop samples.
                if is_array_file(file) && !regular(file)?.is_file() {
                    let reason = "expected a file of arrays by its name, found a folder".to_owned();
                    return Err(Error::Data { path: file.clone(), reason });
                }
                continue;
            }
            if self.read_file(file)? {
                self.next_file(file, wanted)?;
                found += 1;
            }
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

    /// Ends a file or data set. It must have an array for each input that the files before it have; otherwise its
    /// samples would be misaligned.
    fn next_file(&mut self, path: &Path, wanted: &[String]) -> Result<(), Error> {
        let given = std::mem::take(&mut self.given);
        if given.len() == self.by_name.len() {
            return Ok(());
        }
        let lacks = |name: &&String| self.by_name.contains_key(*name) && !given.contains(*name);
        let Some(name) = wanted.iter().find(lacks) else { return Ok(()) };
        let reason = format!("expected an array `{name}`, as the files before it have, found none");
        Err(Error::Data { path: path.to_owned(), reason })
    }

    /// Reads a data set: a file per input, numbered like test data of the step, or named.
    fn read_set(&mut self, folder: &Path, module: &Module, wanted: &[String]) -> Result<(), Error> {
        let (names, types) = (input_names(module), input_types(module));
        let places: FxHashMap<&String, usize> = names.iter().zip(0..).collect();
        for number in numbered(folder, "input").map_err(|e| io_error(folder, e))? {
            let file = DataFile::open(folder, "input", number)?;
            let told = data::names(&file.bytes).of_tensor.filter(|name| places.contains_key(name));
            let name =
                told.or_else(|| wanted.get(number).cloned()).filter(|name| self.wanted.contains_key(name));
            let Some(name) = name else {
                self.leave(&format!("input_{number}.pb"));
                continue;
            };
            let Some(&at) = places.get(&name) else { continue };
            let path: Arc<Path> = folder.join(format!("input_{number}.pb")).into();
            let Data::Tensor(tensor) = file.read(&types[at], self.left)? else {
                let reason = format!("`{name}`: expected a tensor, found a sequence or an optional");
                return Err(Error::Data { path: path.to_path_buf(), reason });
            };
            self.add_once(&name, Array::in_memory(tensor, Some(&path)))?;
            self.files.push(file.bytes);
        }
        Ok(())
    }
}

/// A sort key for natural order: digits compare as numbers, so that `part_2` precedes `part_10`.
pub(in crate::execute) fn natural(path: &Path) -> (Vec<(String, usize, String)>, PathBuf) {
    let text = path.to_string_lossy();
    let (mut parts, mut rest) = (Vec::new(), &*text);
    while !rest.is_empty() {
        let (word, digits) = rest.split_at(rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len()));
        let (digits, after) =
            digits.split_at(digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len()));
        let number = digits.trim_start_matches('0');
        parts.push((word.to_owned(), number.len(), number.to_owned()));
        rest = after;
    }
    (parts, path.to_owned())
}

fn ending(path: &Path) -> String {
    path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase()
}

/// True if a file has the name of a file of arrays.
pub(in crate::execute) fn is_array_file(path: &Path) -> bool {
    ["npz", "safetensors"].contains(&ending(path).as_str())
}

/// Rejects a folder with samples of several kinds, of which only one kind would be read: test data in the folder
/// itself, the first data set in it, and the first file of arrays.
pub(in crate::execute) fn refuse_mixture(
    folder: &Path,
    set: Option<&PathBuf>,
    file: Option<&PathBuf>,
) -> Result<(), Error> {
    let own = is_set(folder).then(|| folder.join("input_0.pb"));
    let kinds = own.iter().chain(set).chain(file);
    let kinds: Vec<String> = kinds.map(|path| format!("`{}`", path.display())).collect();
    if kinds.len() < 2 {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "`{}`: expected samples of one kind (files of arrays, test data, or folders of test data), found {}; move the others \
         to another folder",
        folder.display(),
        kinds.join(" and ")
    )))
}

/// True if a folder has `input_0.pb`.
pub(in crate::execute) fn is_set(path: &Path) -> bool {
    path.join("input_0.pb").is_file()
}

/// True if an array has the element type of an input, and its dims except the first.
pub(super) fn fits(array: &Array, ty: &Type) -> bool {
    let dims = ty.shape().and_then(Shape::dims).is_none_or(|dims| {
        let mut inner = dims.iter().zip(&array.dims).skip(1);
        let is_row = |(dim, &size): (&Dim, &u64)| dim.known().is_none_or(|known| known == size);
        dims.len() == array.dims.len() && inner.all(is_row)
    });
    ty.dtype() == Some(array.dtype) && dims
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]
mod tests {
    use super::*;

    #[test]
    fn digits_in_names_are_numbers() {
        let mut names =
            ["b", "part_10", "part_2", "part_02", "part_1a", "part_1", "a10b2", "a9b10", "10", "9"];
        names.sort_by_key(|name| natural(Path::new(name)));
        assert_eq!(
            names,
            ["9", "10", "a9b10", "a10b2", "b", "part_1", "part_1a", "part_02", "part_2", "part_10"]
        );
    }

    /// The limit applies to all arrays together.
    #[test]
    fn the_limit_is_of_all_arrays() {
        let folder = tempfile::tempdir().unwrap();
        let x = HostTensor::from_slice(&[64], &[1.0f32; 64]).unwrap();
        for i in 0..4 {
            let file = File::create(folder.path().join(format!("{i}.npz"))).unwrap();
            npz::write(file, [("x", &x)]).unwrap();
        }
        let module = ampc_ir::text::parse(
            "module ir=10\nopset ai.onnx=21\n\ngraph @main {\n  input %x : f32[N]\n  output %x\n}\n",
            &ampc_ir::text::NoData,
        );
        let open = |most| Arrays::open(folder.path(), module.as_ref().unwrap(), &["x".to_owned()], most);
        assert_eq!(open(1024).unwrap().by_name["x"].len(), 4);
        let error = open(1023).err().unwrap().to_string();
        assert!(error.contains("3.npz") && error.contains("at most 255 bytes"), "{error}");
    }
}
