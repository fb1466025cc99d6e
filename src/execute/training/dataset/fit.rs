//! Checks that arrays fit the inputs of a step: element types, dims, and equal numbers of samples.

use super::super::arrays::{Array, fits};
use super::{Column, Piece, Values};
use crate::error::Error;
use crate::error::run::InputProblem;
use crate::execute::inputs::{help_of_type, io_error};
use crate::interface::describe;
use ampc_ir::{DType, Dim, Module, Shape, Symbol, Type};
use ampc_passes::suggest::{did_you_mean, listed, nearest};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::path::Path;

/// The maximum number of unread arrays among which the nearest name to a missing input is searched.
const MOST_CANDIDATES: usize = 64;

/// All problems with the arrays for the inputs of a module.
pub(super) struct Problems<'a> {
    pub(super) module: &'a Module,
    pub(super) unread: &'a [String],
    pub(super) list: Vec<InputProblem>,
}

impl Problems<'_> {
    fn add(&mut self, code: &'static str, name: &str, message: String, help: String) {
        let (name, help) = (name.to_owned(), Some(help));
        self.list.push(InputProblem { code, kind: "input", name, message, help });
    }

    pub(super) fn missing(&mut self, name: &str, ty: &Type, path: &Path) {
        let near = nearest(name, self.unread.iter().map(String::as_str).take(MOST_CANDIDATES));
        let near = near.map(|near| did_you_mean(Some(near))).unwrap_or_default();
        let expected = describe(self.module, ty);
        let others = match self.unread {
            [] => String::new(),
            names => format!("; it has {} besides", listed(names.iter().map(String::as_str))),
        };
        let message = format!("expected {expected}, found none in `{}`{others}{near}", path.display());
        let help = "the data needs an array of this name, with a row for each sample";
        self.add("missing", name, message, help.into());
    }

    /// The values of an input, if they fit it.
    pub(super) fn column(
        &mut self,
        name: &str,
        ty: &Type,
        arrays: Vec<Array>,
        is_npz: bool,
    ) -> Result<Option<Column>, Error> {
        let Some(dtype) = self.element_type(name, ty) else { return Ok(None) };
        if let Some(wrong) = arrays.iter().find(|array| !fits(array, ty)) {
            let ty = &with_open_rows(ty);
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
            let files = arrays.len();
            let Some(first) = arrays.into_iter().next() else { return Ok(None) };
            let (dims, tensor) = (first.dims.clone(), first.into_tensor(name)?);
            return Ok(Some(Column {
                name: name.into(),
                dtype,
                dims,
                values: Values::Whole { tensor, files },
            }));
        }
        Ok(self.list(name, dtype, arrays))
    }

    /// The element type of an input, if samples of this type can be trained on.
    fn element_type(&mut self, name: &str, ty: &Type) -> Option<DType> {
        let has_bytes = |dtype: &DType| {
            *dtype != DType::String && dtype.storage_bytes(2) == dtype.storage_bytes(1).map(|bytes| bytes * 2)
        };
        let dtype = ty.as_tensor().map(|tensor| tensor.dtype).filter(has_bytes);
        if dtype.is_none() {
            let message = format!("a step cannot be trained on samples of {}", describe(self.module, ty));
            self.add("type", name, message, "make the step from a model whose inputs are numbers".into());
        }
        dtype
    }

    /// The concatenated samples of arrays, if all samples have one size.
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
            // Counts beyond the maximum are rejected with the sizes.
            end = u64::saturating_add(end, array.dims.first().copied().unwrap_or(0));
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

    /// Checks that a named dim has one size in all inputs. Axis 0 of a list is the batch.
    pub(super) fn named_dims(&mut self, columns: &[Column], names: &[String], types: &[Type]) {
        let mut known: BTreeMap<Symbol, (u64, &str)> = BTreeMap::new();
        let types: FxHashMap<&String, &Type> = names.iter().zip(types).collect();
        for column in columns {
            let ty = types.get(&column.name);
            let declared = ty.and_then(|ty| ty.shape()?.dims()).unwrap_or_default();
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

    /// Checks that files with several pieces have equally many samples of each input; otherwise rows of different
    /// files would be combined.
    fn pieces<'c>(&mut self, lists: impl Iterator<Item = &'c Column>) {
        let lists = lists.filter_map(|column| match &column.values {
            Values::Samples(pieces) if pieces.len() > 1 => Some((column, pieces)),
            Values::Samples(_) | Values::Whole { .. } => None,
        });
        let lists: Vec<_> = lists.collect();
        let Some(&(first, expected)) = lists.first() else { return };
        for &(column, found) in &lists[1..] {
            let apart = expected.iter().zip(found).find(|(a, b)| a.samples != b.samples);
            let Some((expected, found)) = apart else { continue };
            let (expected, array) = (expected.samples.end - expected.samples.start, self.found(&found.array));
            let message = format!("expected {expected} samples, as in `{}`, found {array}", first.name);
            let help = "give every input a row for each sample of its file".into();
            self.add("samples", &column.name, message, help);
        }
    }

    /// Records arrays that are the same in several files and have as many rows as a batch, because their meaning is
    /// ambiguous.
    pub(super) fn ambiguous(&mut self, columns: &[Column], declared: &[Option<u64>]) {
        let is_list = |column: &Column| column.samples().is_some();
        let lists = columns.iter().zip(declared).filter(|(column, _)| is_list(column));
        let Some(batch) = lists.filter_map(|(_, batch)| *batch).next() else { return };
        for (column, declared) in columns.iter().zip(declared) {
            let Values::Whole { files, .. } = column.values else { continue };
            if files > 1 && *declared == Some(batch) {
                let message = format!(
                    "expected samples that differ, or an array that is the same for every batch, found the same {batch} \
                     rows in each of {files} files"
                );
                let help = "put all samples into one file, where the two differ".into();
                self.add("samples", &column.name, message, help);
            }
        }
    }

    /// Checks that all inputs have equally many samples, at least one batch.
    pub(super) fn sizes(&mut self, columns: &[Column], declared: &[Option<u64>]) {
        let lists = columns.iter().zip(declared);
        let lists: Vec<_> =
            lists.filter_map(|(column, batch)| Some((column, column.samples()?, *batch))).collect();
        let Some(&(first, samples, _)) = lists.first() else { return };
        for &(column, other, _) in &lists {
            if other != samples {
                let s = if samples == 1 { "" } else { "s" };
                let message = format!("expected {samples} sample{s}, as in `{}`, found {other}", first.name);
                self.add("samples", &column.name, message, "give every input a row for each sample".into());
                return;
            }
        }
        self.pieces(lists.iter().map(|&(column, ..)| column));
        if samples > MOST_SAMPLES {
            let message = format!("expected at most {MOST_SAMPLES} samples, found {samples}");
            self.add("samples", &first.name, message, "give data with samples".into());
            return;
        }
        if samples == 0 {
            let message = "expected at least one sample, found none".into();
            self.add("samples", &first.name, message, "give data with samples".into());
            return;
        }
        let mut batches = lists.iter().filter_map(|&(column, _, batch)| Some((column, batch?)));
        let Some((of, batch)) = batches.next() else { return };
        if let Some((other, size)) = batches.find(|&(_, size)| size != batch) {
            let message = format!("the step takes {size} samples of it, and {batch} of `{}`", of.name);
            let help =
                "an array that is not a list of samples has exactly the dims that the step declares".into();
            self.add("samples", &other.name, message, help);
        } else if samples < batch {
            let message = format!("the step takes {batch} samples at once, found {samples}");
            self.add(
                "samples",
                &of.name,
                message,
                "give more samples, or make the step from a model for a smaller batch".into(),
            );
        }
    }
}

/// The maximum number of samples: it is exact in f64, and their size fits u64.
const MOST_SAMPLES: u64 = 1 << 53;

/// The type of an input with any number of samples, as a list has.
fn with_open_rows(ty: &Type) -> Type {
    let Some(([first, inner @ ..], dtype)) = ty.shape().and_then(Shape::dims).zip(ty.dtype()) else {
        return ty.clone();
    };
    let rows = if first.known().is_some() { Dim::Unknown } else { *first };
    Type::tensor(dtype, Shape::of([rows].into_iter().chain(inner.iter().copied())))
}

/// True if arrays have the same bytes, as an array that is not a list of samples has in every file.
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

/// The number of bytes that are compared at a time.
const COMPARED: usize = 1 << 14;
