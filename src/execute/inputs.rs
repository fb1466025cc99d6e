//! Values for the inputs of a model: from files, or random.

mod advice;
pub(in crate::execute) mod test_data;

pub(in crate::execute) use self::advice::help_of_type;
pub use self::test_data::{TestData, read_test_data};

use self::advice::help_of_bits;
use self::test_data::{DataFile, numbered};
pub use super::dims::{BoundDim, Dims};
use super::random::{self, Draw, Refused, Role};
use crate::bytes::SourceBytes;
pub use crate::error::run::InputProblem;
use crate::error::{Error, Finding};
use crate::foreign;
pub use crate::interface::describe;
use crate::interface::{input_names, input_types};
use crate::onnx::data::{self, Names};
use crate::run_errors::of_run;
use crate::safetensors::Tensors;
use ampc_ir::infer::infer_module;
use ampc_ir::module::Def;
use ampc_ir::{Dim, Module, Shape, Symbol, Type};
use ampc_passes::suggest::{did_you_mean, listed, nearest};
use ampc_runtime::npy::NpyError;
use ampc_runtime::npz::{self, Archive};
use ampc_runtime::session::ExecuteError;
use ampc_runtime::{Data, HostError, HostTensor};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{self, BufReader};
use std::path::Path;
use std::sync::Arc;

/// Values for the inputs of a model, in its order; `None` for an input that uses its default.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// The values.
    pub values: Vec<Option<Data>>,
    /// Sizes of dims without a number, if the values are random.
    pub dims: Vec<BoundDim>,
    /// Inputs of unknown rank, if the values are random: they are scalars.
    pub scalars: Vec<String>,
    /// The files that were read. Results must not overwrite them.
    pub files: Vec<Arc<SourceBytes>>,
    /// True if the values are random.
    pub is_random: bool,
    /// A description of the ranges of random values, or the name of a batch; empty if there is a single batch.
    pub about: String,
}

/// The open dims of the inputs without a default, in the order of the inputs, with the sizes in `dims` or 1.
///
/// # Errors
/// If no input has a dim with a name in `dims`.
pub fn bound_dims(module: &Module, dims: &Dims) -> Result<Vec<BoundDim>, Error> {
    random::with_dims(module, dims).map(|(_, bound)| bound)
}

/// Checks that the inputs of a model have dims of these names.
///
/// # Errors
/// If no input has a dim with one of the names.
pub fn check_dims(module: &Module, dims: &Dims) -> Result<(), Error> {
    bound_dims(module, dims).map(drop)
}

impl Inputs {
    /// Reads values from an `.npz` or `.safetensors` file with the names of inputs, or from a folder of `input_0.pb`,
    /// `input_1.pb` …. A value belongs to the input of its name, or, without such a name, to the input of its
    /// number, counted over inputs without a default. A value of more than `most` bytes is an error; entries that are
    /// not inputs are not read.
    ///
    /// # Errors
    /// If the data cannot be read, or does not fit the model. All inputs that do not fit are listed.
    pub fn read(path: &Path, module: &Module, most: u64) -> Result<Inputs, Error> {
        if path == Path::new("-") {
            let message = "values cannot come from standard input: expected a file that ends in .npz or .safetensors, \
                           or a folder of input_0.pb, input_1.pb …";
            return Err(Error::Usage(format!("`-`: {message}")));
        }
        if regular(path)?.is_dir() {
            return Inputs::of_folder(path, module, most);
        }
        let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
        match ending.as_str() {
            "npz" => Inputs::of_npz(path, module, most),
            "safetensors" => Inputs::of_safetensors(path, module, most),
            _ => Err(Error::Usage(format!(
                "`{}`: expected a file that ends in .npz or .safetensors, or a folder of input_0.pb, input_1.pb …",
                path.display()
            ))),
        }
    }

    fn of_npz(path: &Path, module: &Module, most: u64) -> Result<Inputs, Error> {
        let bad = |error: npz::NpzError| match &error {
            npz::NpzError::NoArchive | npz::NpzError::NotAnArray { .. } => no_npz(path, &error),
            npz::NpzError::Array { name, source: NpyError::Host(refused) } if refused.is_no_memory() => {
                no_memory(name, refused)
            }
            npz::NpzError::Archive(_)
            | npz::NpzError::Unsupported { .. }
            | npz::NpzError::Twice { .. }
            | npz::NpzError::Array { .. } => Error::Data { path: path.to_owned(), reason: error.to_string() },
        };
        let bytes = SourceBytes::open(path).map_err(|e| io_error(path, e))?;
        let file = File::open(path).map_err(|e| io_error(path, e))?;
        let mut archive = Archive::open(BufReader::new(file)).map_err(bad)?;
        let mut named = Named { in_npz: true, ..Named::of(module) };
        for index in 0..archive.names().len() {
            let entry = archive.names()[index].clone();
            let own = named.slot(&entry);
            if own.or_else(|| named.slot(npz::plain_name(&entry))).is_none() {
                named.unknown(&entry);
                continue;
            }
            let with_help =
                |error: npz::NpzError| match own.and_then(|slot| named.help_of_descr(slot, &error)) {
                    Some(help) => Error::Data { path: path.to_owned(), reason: format!("{error}: {help}") },
                    None => bad(error),
                };
            // An array of another type is not read, because an archive of a few bytes can hold any number of zeros.
            let (dtype, dims) = archive.header(index).map_err(with_help)?;
            let (name, dtype) =
                if own.is_some() { (&*entry, dtype) } else { npz::restored_type(&entry, dtype) };
            let Some(slot) = named.slot(name) else {
                named.unknown(name);
                continue;
            };
            if !named.admit(slot, Type::tensor(dtype, Shape::known(&dims))) {
                continue;
            }
            let tensor = archive.read(index, most).map_err(bad)?;
            let tensor = if own.is_some() { tensor } else { npz::restored(&entry, tensor).map_err(bad)?.1 };
            named.values[slot] = Some(tensor.into());
        }
        named.finish(vec![Arc::new(bytes)])
    }

    fn of_safetensors(path: &Path, module: &Module, most: u64) -> Result<Inputs, Error> {
        let bad = |reason: String| Error::Data { path: path.to_owned(), reason };
        let (tensors, file) =
            Tensors::open(path)?.ok_or_else(|| io_error(path, io::ErrorKind::NotFound.into()))?;
        let mut named = Named::of(module);
        for (name, entry) in tensors.iter() {
            if named.slot(name).is_none() {
                named.unknown(name);
                continue;
            }
            let data = entry.read().ok_or_else(|| bad(entry.unsupported(name)))?;
            if data.byte_len() > most {
                return Err(bad(format!(
                    "`{name}`: expected a tensor of at most {most} bytes, found one of {}",
                    data.byte_len()
                )));
            }
            let tensor = HostTensor::from_data(&data).map_err(|e| match e.is_no_memory() {
                true => no_memory(name, &e),
                false => bad(format!("`{name}`: {e}")),
            })?;
            named.give(name, tensor);
        }
        named.finish(vec![file])
    }

    fn of_folder(path: &Path, module: &Module, most: u64) -> Result<Inputs, Error> {
        let mut named = Named::of(module);
        let needs = named.defaults.contains(&false);
        if needs && numbered(path, "input").map_err(|e| io_error(path, e))?.is_empty() {
            let inner = path.join("test_data_set_0");
            let help = if inner.is_dir() {
                format!("; did you mean its folder `{}`?", inner.display())
            } else {
                String::new()
            };
            return Err(Error::Usage(format!(
                "`{}`: expected input_0.pb, input_1.pb … in the folder, found none{help}",
                path.display()
            )));
        }
        let files = named.read_folder(path, most)?;
        named.finish(files)
    }

    /// Random values, reproducible from the seed: floats in [−1, 1), integers that are valid for their use, and
    /// plausible masks, as the documentation of the command line says. Dims without a number are taken from `dims`,
    /// or are 1.
    ///
    /// # Errors
    /// If no input has one of the dims, the dims do not fit the graph, or an input has more than `most` bytes.
    pub fn random(module: &Module, seed: u64, dims: &Dims, most: u64) -> Result<Inputs, Error> {
        let specs = InputSpecs::new(module, dims, most)?;
        specs.draw(module, Draw::first(seed))
    }

    /// The draws on which two models are compared: random values as [`random`](Self::random) makes them, then values
    /// of other magnitudes. If no input has a magnitude (indices have none), only the first draw.
    ///
    /// # Errors
    /// Errors as for [`random`](Self::random).
    pub fn draws(module: &Module, seed: u64, dims: &Dims, most: u64) -> Result<Vec<Inputs>, Error> {
        let specs = InputSpecs::new(module, dims, most)?;
        specs.draws(seed).into_iter().map(|draw| specs.draw(module, draw)).collect()
    }

    /// The values for the inputs of another model with the same input names, in its order. A float of another format
    /// is rounded to the declared format.
    ///
    /// # Errors
    /// If the other model has an input for which there is no value.
    pub fn for_other(&self, module: &Module, other: &Module) -> Result<Inputs, Error> {
        let names = input_names(module);
        let mut named = Named::of(other);
        for (name, value) in names.iter().zip(&self.values) {
            let (Some(value), Some(slot)) = (value, named.slot(name)) else { continue };
            let dtype = named.types[slot].as_tensor().map(|t| t.dtype);
            let value = match (value, dtype) {
                (Data::Tensor(tensor), Some(dtype)) if tensor.dtype() != dtype => {
                    Data::Tensor(rounded(tensor, dtype).unwrap_or_else(|| tensor.clone()))
                }
                (value, _) => value.clone(),
            };
            named.set(slot, value);
        }
        named.finish(Vec::new())
    }
}

/// The inputs that need random values: their types with known dims, and the use of each.
struct InputSpecs {
    types: Vec<Option<Type>>,
    bound: Vec<BoundDim>,
    roles: Vec<Role>,
}

impl InputSpecs {
    fn new(module: &Module, dims: &Dims, most: u64) -> Result<InputSpecs, Error> {
        let (types, bound) = random::with_dims(module, dims)?;
        let mut typed = module.clone();
        let formals = module.graph(module.main()).inputs().to_vec();
        for (&value, ty) in formals.iter().zip(&types) {
            if let Some(ty) = ty {
                typed.set_type(value, ty.clone());
            }
        }
        infer_module(&mut typed).map_err(|errors| of_run(module, &ExecuteError::Shapes(errors)))?;
        let too_large = |ty: &Type| random::bytes(ty).is_none_or(|bytes| bytes > most);
        for ((ty, name), &value) in types.iter().zip(input_names(module)).zip(&formals) {
            let dims = module.value(value).ty.shape().and_then(|shape| shape.dims());
            let is_open = dims.is_none_or(|dims| dims.iter().any(|dim| dim.known().is_none()));
            if let Some(ty) = ty.as_ref().filter(|ty| too_large(ty)) {
                let problem = InputProblem {
                    code: "size",
                    kind: "input",
                    name,
                    message: format!("expected at most {most} bytes, found {}", describe(&typed, ty)),
                    help: is_open.then(|| "give smaller dims with `--dim NAME=N`".into()),
                };
                return Err(Error::Inputs(vec![problem]));
            }
        }
        Ok(InputSpecs { types, bound, roles: random::roles(&typed) })
    }

    fn draws(&self, seed: u64) -> Vec<Draw> {
        let drawn = self.types.iter().zip(&self.roles).filter_map(|(ty, &role)| {
            let dtype = ty.as_ref()?.element_dtype()?;
            Some((dtype, role))
        });
        Draw::all(seed, &drawn.collect::<Vec<_>>())
    }

    fn draw(&self, module: &Module, draw: Draw) -> Result<Inputs, Error> {
        let mut values = Vec::with_capacity(self.types.len());
        let rows = self.types.iter().zip(&self.roles).zip(input_names(module));
        for (k, ((ty, &role), name)) in (0u32..).zip(rows) {
            let value = ty.as_ref().map(|ty| random::value(draw, k, ty, role)).transpose();
            values.push(value.map_err(|refused| refused_as(refused, &name))?);
        }
        let drawn = input_types(module).into_iter().zip(input_names(module)).zip(&values);
        let scalars = drawn.filter(|((ty, _), value)| value.is_some() && is_of_any_rank(ty));
        let scalars = scalars.map(|((_, name), _)| name).collect();
        Ok(Inputs {
            values,
            dims: self.bound.clone(),
            scalars,
            files: Vec::new(),
            is_random: true,
            about: draw.about().into(),
        })
    }
}

/// True if a value of the type has tensors of unknown rank.
fn is_of_any_rank(ty: &Type) -> bool {
    match ty {
        Type::Tensor(tensor) => tensor.shape.dims().is_none(),
        Type::Sequence(element) | Type::Optional(element) => is_of_any_rank(element),
        Type::Unknown | Type::Sparse(_) | Type::Map { .. } | Type::Opaque { .. } => false,
    }
}

/// A tensor of floats in another format.
fn rounded(tensor: &HostTensor, dtype: ampc_ir::DType) -> Option<HostTensor> {
    use ampc_ir::convert::{Conversion, can_convert, convert};
    let bytes = tensor.bytes().filter(|_| can_convert(tensor.dtype(), dtype))?;
    let mut out = Vec::new();
    convert(tensor.dtype(), Conversion { to: dtype, clamp: false }, bytes, &mut out);
    HostTensor::from_bytes(dtype, tensor.dims(), &out).ok()
}

/// The error of an input whose allocation failed.
pub(in crate::execute) fn no_memory(name: &str, error: &HostError) -> Error {
    let message = format!("cannot allocate its value: {error}");
    Error::NoMemory(Finding {
        code: "no_memory",
        node: None,
        place: name.to_owned(),
        op: None,
        message,
        label: None,
    })
}

fn refused_as(refused: Refused, name: &str) -> Error {
    let what = match refused {
        Refused::Kind(what) => what.to_owned(),
        Refused::DType(dtype) => format!("elements of {dtype}"),
        Refused::Host(error) if error.is_no_memory() => return no_memory(name, &error),
        Refused::Host(error) => return Error::Usage(format!("input `{name}`: {error}")),
    };
    Error::Unsupported(format!("input `{name}`: there are no random values for {what}; give data"))
}

/// The maximum number of unknown names for which the nearest input is searched.
const MOST_HINTS: usize = 16;

/// Values for inputs by name, collected incrementally.
struct Named<'m> {
    module: &'m Module,
    names: Vec<String>,
    /// The index of an input by name.
    slots: FxHashMap<String, usize>,
    types: Vec<Type>,
    /// For each input, true if the input has a default value.
    defaults: Vec<bool>,
    /// The inputs without a default.
    required: Vec<usize>,
    values: Vec<Option<Data>>,
    /// The types of the given values, including rejected values.
    given: Vec<Option<Type>>,
    problems: Vec<InputProblem>,
    /// The number of given names that no input has.
    unknown: usize,
    /// True if the values come from NumPy, which lacks some types.
    in_npz: bool,
}

impl<'m> Named<'m> {
    fn of(module: &'m Module) -> Named<'m> {
        let inputs = module.graph(module.main()).inputs();
        let has_default =
            |&v: &ampc_ir::Value| matches!(module.value(v).def, Def::Input { default: Some(_), .. });
        let names = input_names(module);
        let mut slots = FxHashMap::default();
        for (slot, name) in names.iter().enumerate() {
            slots.entry(name.clone()).or_insert(slot);
        }
        let defaults: Vec<bool> = inputs.iter().map(has_default).collect();
        Named {
            module,
            names,
            slots,
            types: input_types(module),
            required: (0..defaults.len()).filter(|&slot| !defaults[slot]).collect(),
            defaults,
            values: inputs.iter().map(|_| None).collect(),
            given: vec![None; inputs.len()],
            problems: Vec::new(),
            unknown: 0,
            in_npz: false,
        }
    }

    /// Advice on how to give an array of a type that NumPy lacks, if that is why an input cannot be read.
    fn help_of_descr(&self, slot: usize, error: &npz::NpzError) -> Option<String> {
        let npz::NpzError::Array { source: NpyError::Descr { descr }, .. } = error else { return None };
        let dtype = self.types[slot].element_dtype().filter(|_| descr.contains('V'))?;
        npz::stored_as(dtype).map(|bits| help_of_bits(&self.names[slot], dtype, bits))
    }

    fn slot(&self, name: &str) -> Option<usize> {
        self.slots.get(name).copied()
    }

    /// Records a name that no input has. The inputs are listed once, and near names are searched a limited number of
    /// times, so that neither takes time or memory for every name.
    fn unknown(&mut self, name: &str) {
        let names = self.names.iter().map(String::as_str);
        let near = if self.unknown < MOST_HINTS { nearest(name, names.clone()) } else { None };
        let message = format!("the model has no such input{}", did_you_mean(near));
        let help = (self.unknown == 0).then(|| match self.names.is_empty() {
            true => "it has no inputs".to_owned(),
            false => format!("its inputs are {}", listed(names)),
        });
        self.unknown += 1;
        self.problems.push(InputProblem {
            code: "unknown",
            kind: "input",
            name: name.to_owned(),
            message,
            help,
        });
    }

    /// A problem of an input.
    fn problem(&mut self, code: &'static str, slot: usize, message: String, help: &str) {
        let (name, help) = (self.names[slot].clone(), Some(help.to_owned()));
        self.problems.push(InputProblem { code, kind: "input", name, message, help });
    }

    fn give(&mut self, name: &str, tensor: HostTensor) {
        match self.slot(name) {
            Some(slot) => self.set(slot, Data::Tensor(tensor)),
            None => self.unknown(name),
        }
    }

    fn set(&mut self, slot: usize, value: Data) {
        self.admit(slot, value.view().ty());
        self.values[slot] = Some(value);
    }

    /// Records the type of a value for an input, and returns true if the type fits the input.
    fn admit(&mut self, slot: usize, given: Type) -> bool {
        if self.given[slot].is_some() {
            self.problem("twice", slot, "expected one value, found two".into(), "leave one of the two out");
        }
        let declared = &self.types[slot];
        let is_admitted = ampc_runtime::session::admits(declared, &given);
        if !is_admitted {
            let expected = describe(self.module, declared);
            let found = describe(self.module, &given);
            let help = help_of_type(&self.names[slot], declared, &given, self.in_npz);
            self.problem("type", slot, format!("expected {expected}, found {found}"), &help);
        }
        self.given[slot] = Some(given);
        is_admitted
    }

    /// Reads the input files of a test-data folder.
    fn read_folder(&mut self, folder: &Path, most: u64) -> Result<Vec<Arc<SourceBytes>>, Error> {
        let mut files = Vec::new();
        for number in numbered(folder, "input").map_err(|e| io_error(folder, e))? {
            let file = DataFile::open(folder, "input", number)?;
            match self.slot_of_file(number, data::names(&file.bytes)) {
                Some(slot) => self.set(slot, file.read(&self.types[slot], most)?),
                None => self.unknown(&format!("input_{number}.pb")),
            }
            files.push(file.bytes);
        }
        Ok(files)
    }

    /// The input of a file: the input of its name, or the input of its number, counted as in ONNX Runtime.
    fn slot_of_file(&self, number: usize, names: Names) -> Option<usize> {
        let named = |name: Option<String>| name.and_then(|name| self.slot(&name));
        let is_list = |slot: &usize| matches!(self.types[*slot], Type::Sequence(_) | Type::Optional(_));
        let by_name = named(names.of_tensor).or_else(|| named(names.of_list).filter(is_list));
        let without_default = || self.required.get(number).copied();
        by_name.or_else(without_default)
    }

    /// All problems, after the last value.
    fn problems(&mut self) -> Vec<InputProblem> {
        for slot in 0..self.values.len() {
            if self.given[slot].is_none() && !self.defaults[slot] {
                let message = format!("expected {}, found none", describe(self.module, &self.types[slot]));
                let help = "every input without a default needs a value of its name";
                self.problem("missing", slot, message, help);
            }
        }
        self.sizes();
        std::mem::take(&mut self.problems)
    }

    /// Checks that a named dim has the same size in all inputs.
    fn sizes(&mut self) {
        let mut known: BTreeMap<Symbol, (u64, usize)> = BTreeMap::new();
        for slot in 0..self.values.len() {
            for (symbol, size) in self.named_dims(slot) {
                let (first, of) = *known.entry(symbol).or_insert((size, slot));
                if first != size {
                    let (dim, other) = (self.module.text(symbol), &self.names[of]);
                    let message =
                        format!("expected {first} for the dim `{dim}`, as in `{other}`, found {size}");
                    self.problem("dims", slot, message, "give inputs that share a dim the same size there");
                }
            }
        }
    }

    /// The named dims of a value in the model, and their sizes.
    fn named_dims(&self, slot: usize) -> Vec<(Symbol, u64)> {
        let given = self.given[slot].as_ref().and_then(Type::as_tensor).and_then(|ty| ty.shape.to_known());
        let (Some(given), Some(declared)) = (given, self.types[slot].as_tensor()) else {
            return Vec::new();
        };
        let dims = declared.shape.dims().unwrap_or_default();
        if dims.len() != given.len() {
            return Vec::new();
        }
        let pairs = dims.iter().zip(given);
        pairs
            .filter_map(|(dim, size)| if let Dim::Sym(symbol) = dim { Some((*symbol, size)) } else { None })
            .collect()
    }

    fn finish(mut self, files: Vec<Arc<SourceBytes>>) -> Result<Inputs, Error> {
        let problems = self.problems();
        if !problems.is_empty() {
            return Err(Error::Inputs(problems));
        }
        Ok(Inputs { values: self.values, files, ..Inputs::default() })
    }
}

/// The error of a file that is not an `.npz` file; it names the actual format if that is known.
pub(in crate::execute) fn no_npz(path: &Path, error: &npz::NpzError) -> Error {
    let foreign = foreign::kind_of(path).filter(|kind| !kind.contains("`.npz` files"));
    let reason = match foreign {
        Some(kind) => format!("expected an `.npz` file, found {kind}"),
        None => error.to_string(),
    };
    Error::Data { path: path.to_owned(), reason }
}

/// The metadata of a regular file or a folder. Pipes and devices are rejected, because reading them may block
/// forever.
pub(in crate::execute) fn regular(path: &Path) -> Result<Metadata, Error> {
    let metadata = std::fs::metadata(path).map_err(|e| io_error(path, e))?;
    if metadata.is_file() || metadata.is_dir() {
        return Ok(metadata);
    }
    let message = "expected a file or folder to read values from, found a pipe or device";
    Err(Error::Usage(format!("`{}`: {message}", path.display())))
}

pub(in crate::execute) fn io_error(path: &Path, source: io::Error) -> Error {
    Error::Io { path: path.to_owned(), source }
}
