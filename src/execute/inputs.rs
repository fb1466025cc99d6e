//! Values for the inputs of a model: from files, or random.

use super::random::{self, Refused};
use super::{input_names, input_types, of_run, output_types};
use crate::error::Error;
use crate::onnx::bytes::SourceBytes;
use crate::onnx::data::read_data;
use crate::safetensors::Tensors;
use ampc_ir::infer::infer_module;
use ampc_ir::module::Def;
use ampc_ir::{Module, Type};
use ampc_passes::suggest::{did_you_mean, nearest};
use ampc_runtime::cpu::RunError;
use ampc_runtime::npz::{self, Archive};
use ampc_runtime::{Data, HostTensor};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Numbers for dims that have none in the model, by name; `x[1]` is axis 1 of an input `x` that says nothing there.
pub type Dims = BTreeMap<String, u64>;

/// Values for the inputs of a model, in its order; `None` where its default holds.
#[derive(Debug, Default)]
pub struct Inputs {
    /// The values.
    pub values: Vec<Option<Data>>,
    /// What dims without a number got, if the values are random.
    pub dims: Vec<BoundDim>,
    /// The files that were read: what writes results writes to none of them.
    pub files: Vec<Arc<SourceBytes>>,
}

/// A dim that has no number in the model, and the one it has in a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BoundDim {
    /// Its name, or `x[1]` for axis 1 of `x` if it has none.
    pub name: String,
    /// Its size.
    pub size: u64,
    /// Whether somebody asked for it; otherwise it is 1.
    pub asked: bool,
}

/// What is wrong with the values for one input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InputProblem {
    /// A stable name of what is wrong: `missing`, `unknown`, `type`.
    pub code: &'static str,
    /// The input, as the data calls it.
    pub input: String,
    /// What is wrong: expected and found.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
}

impl fmt::Display for InputProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "input `{}`: {}", self.input, self.message)
    }
}

impl Inputs {
    /// Reads values from an `.npz` or `.safetensors` file, where they have the names of inputs, or from a folder of
    /// `input_0.pb`, `input_1.pb` …, where they are in the order of the model. An array of more than `most` bytes
    /// is an error; what is no input is not read.
    ///
    /// # Errors
    /// If the data cannot be read, or does not fit the inputs of the model: all inputs that it does not fit.
    pub fn read(path: &Path, module: &Module, most: u64) -> Result<Inputs, Error> {
        if path.is_dir() {
            return Inputs::of_folder(path, module);
        }
        let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
        match ending.as_str() {
            "npz" => Inputs::of_npz(path, module, most),
            "safetensors" => Inputs::of_safetensors(path, module, most),
            _ if !path.exists() => Err(io_error(path, io::ErrorKind::NotFound.into())),
            _ => Err(Error::Usage(format!(
                "`{}`: expected a file that ends in .npz or .safetensors, or a folder of input_0.pb, input_1.pb …",
                path.display()
            ))),
        }
    }

    fn of_npz(path: &Path, module: &Module, most: u64) -> Result<Inputs, Error> {
        let bad = |error: npz::NpzError| Error::Data { path: path.to_owned(), reason: error.to_string() };
        let bytes = SourceBytes::open(path).map_err(|e| io_error(path, e))?;
        let file = File::open(path).map_err(|e| io_error(path, e))?;
        let mut archive = Archive::open(BufReader::new(file)).map_err(bad)?;
        let mut named = Named::of(module);
        for index in 0..archive.names().len() {
            let entry = archive.names()[index].clone();
            // The suffix of a type that NumPy lacks is known to be one once the array is read.
            if named.slot(&entry).is_none() && named.slot(npz::plain_name(&entry)).is_none() {
                named.unknown(&entry);
                continue;
            }
            let (name, tensor) = archive.read(index, most).map_err(bad)?;
            named.give(&name, tensor);
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
            let data = entry.read().ok_or_else(|| {
                bad(format!("`{name}`: elements of {} are not supported", entry.spelling()))
            })?;
            if data.byte_len() > most {
                return Err(bad(format!(
                    "`{name}`: expected a tensor of at most {most} bytes, found one of {}",
                    data.byte_len()
                )));
            }
            let tensor = HostTensor::from_data(&data).map_err(|e| bad(format!("`{name}`: {e}")))?;
            named.give(name, tensor);
        }
        named.finish(vec![file])
    }

    fn of_folder(path: &Path, module: &Module) -> Result<Inputs, Error> {
        let numbers = numbered(path, "input").map_err(|e| io_error(path, e))?;
        let mut named = Named::of(module);
        if numbers.is_empty() && named.names.iter().zip(&named.defaults).any(|(_, has)| !has) {
            let inner = path.join("test_data_set_0");
            let help = if inner.is_dir() {
                format!("; its folder `{}` may be meant", inner.display())
            } else {
                String::new()
            };
            return Err(Error::Usage(format!(
                "`{}`: expected input_0.pb, input_1.pb … in the folder, found none{help}",
                path.display()
            )));
        }
        if let Some(&extra) = numbers.iter().find(|&&i| i >= named.names.len()) {
            named.unknown(&format!("input_{extra}.pb"));
        }
        let (values, files) = read_numbered(path, "input", &input_types(module))?;
        for (i, value) in values.into_iter().enumerate() {
            if let Some(value) = value {
                named.set(i, value);
            }
        }
        named.finish(files)
    }

    /// Random values, the same for the same seed: floats in [−1, 1), integers that make sense where they go,
    /// as the documentation of the command line says. Dims without a number are those of `dims`, or 1.
    ///
    /// # Errors
    /// If no input has one of the dims, the dims do not fit the graph, or an input has more than `most` bytes.
    pub fn random(module: &Module, seed: u64, dims: &Dims, most: u64) -> Result<Inputs, Error> {
        let (types, bound) = random::with_dims(module, dims)?;
        let mut typed = module.clone();
        let formals = module.graph(module.main()).inputs().to_vec();
        for (&value, ty) in formals.iter().zip(&types) {
            if let Some(ty) = ty {
                typed.set_type(value, ty.clone());
            }
        }
        infer_module(&mut typed).map_err(|errors| of_run(module, &RunError::Shapes(errors)))?;
        let roles = random::roles(&typed);
        let mut values = Vec::with_capacity(types.len());
        for (k, ((ty, role), name)) in types.iter().zip(roles).zip(input_names(module)).enumerate() {
            let Some(ty) = ty else {
                values.push(None);
                continue;
            };
            let bytes = ty.as_tensor().map_or(Some(0), ampc_ir::TensorType::storage_bytes);
            let is_text = ty.element_dtype() == Some(ampc_ir::DType::String);
            if !is_text && bytes.is_none_or(|bytes| bytes > most) {
                let problem = InputProblem {
                    code: "size",
                    input: name,
                    message: format!("expected at most {most} bytes, found {}", describe(&typed, ty)),
                    help: Some("give smaller dims with `--dim NAME=N`".into()),
                };
                return Err(Error::Inputs(vec![problem]));
            }
            let k = u32::try_from(k).unwrap_or(u32::MAX);
            values
                .push(Some(random::value(seed, k, ty, role).map_err(|refused| refused_as(refused, &name))?));
        }
        Ok(Inputs { values, dims: bound, files: Vec::new() })
    }

    /// The values for the inputs of another model with inputs of the same names, in its order. A float of another
    /// format is rounded to the one that is declared there.
    ///
    /// # Errors
    /// If it has an input that this model has no value for.
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

/// A tensor of floats in another format.
fn rounded(tensor: &HostTensor, dtype: ampc_ir::DType) -> Option<HostTensor> {
    use ampc_ir::convert::{Conversion, can_convert, convert};
    let bytes = tensor.bytes().filter(|_| can_convert(tensor.dtype(), dtype))?;
    let mut out = Vec::new();
    convert(tensor.dtype(), Conversion { to: dtype, clamp: false }, bytes, &mut out);
    HostTensor::from_bytes(dtype, tensor.dims(), &out).ok()
}

fn refused_as(refused: Refused, name: &str) -> Error {
    let what = match refused {
        Refused::Kind(what) => what.to_owned(),
        Refused::DType(dtype) => format!("elements of {dtype}"),
        Refused::Host(error) => return Error::Usage(format!("input `{name}`: {error}")),
    };
    Error::Unsupported(format!("input `{name}`: there are no random values for {what}; give data"))
}

/// Values for inputs by name, as they come.
struct Named<'m> {
    module: &'m Module,
    names: Vec<String>,
    types: Vec<Type>,
    /// Whether an input has a value if nobody gives one.
    defaults: Vec<bool>,
    values: Vec<Option<Data>>,
    problems: Vec<InputProblem>,
}

impl<'m> Named<'m> {
    fn of(module: &'m Module) -> Named<'m> {
        let inputs = module.graph(module.main()).inputs();
        let has_default =
            |&v: &ampc_ir::Value| matches!(module.value(v).def, Def::Input { default: Some(_), .. });
        Named {
            module,
            names: input_names(module),
            types: input_types(module),
            defaults: inputs.iter().map(has_default).collect(),
            values: inputs.iter().map(|_| None).collect(),
            problems: Vec::new(),
        }
    }

    fn slot(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|n| n == name)
    }

    fn unknown(&mut self, name: &str) {
        let near = nearest(name, self.names.iter().map(String::as_str));
        let message = format!("the model has no such input{}", did_you_mean(near));
        let help = format!("its inputs are {}", self.names.join(", "));
        let help = if self.names.is_empty() { "it has no inputs".to_owned() } else { help };
        self.problems.push(InputProblem {
            code: "unknown",
            input: name.to_owned(),
            message,
            help: Some(help),
        });
    }

    fn give(&mut self, name: &str, tensor: HostTensor) {
        match self.slot(name) {
            Some(slot) => self.set(slot, Data::Tensor(tensor)),
            None => self.unknown(name),
        }
    }

    fn set(&mut self, slot: usize, value: Data) {
        let (given, declared) = (value.view().ty(), &self.types[slot]);
        if !ampc_runtime::cpu::admits(declared, &given) {
            let expected = describe(self.module, declared);
            let found = describe(self.module, &given);
            let dtypes = (declared.element_dtype(), given.element_dtype());
            let help = match dtypes {
                (Some(want), Some(got)) if want != got => format!("convert it to {want}"),
                _ => "give it the dims that the model declares".into(),
            };
            self.problems.push(InputProblem {
                code: "type",
                input: self.names[slot].clone(),
                message: format!("expected {expected}, found {found}"),
                help: Some(help),
            });
        }
        self.values[slot] = Some(value);
    }

    fn finish(mut self, files: Vec<Arc<SourceBytes>>) -> Result<Inputs, Error> {
        for (slot, value) in self.values.iter().enumerate() {
            if value.is_none() && !self.defaults[slot] {
                self.problems.push(InputProblem {
                    code: "missing",
                    input: self.names[slot].clone(),
                    message: format!("expected {}, found none", describe(self.module, &self.types[slot])),
                    help: Some("every input without a default needs a value of its name".into()),
                });
            }
        }
        if !self.problems.is_empty() {
            return Err(Error::Inputs(self.problems));
        }
        Ok(Inputs { values: self.values, dims: Vec::new(), files })
    }
}

/// A type as people read it: `f32[N, 4]`.
pub fn describe(module: &Module, ty: &Type) -> String {
    match ty {
        Type::Tensor(tensor) => {
            let Some(dims) = tensor.shape.dims() else { return format!("{} of any dims", tensor.dtype) };
            let dims: Vec<String> = dims
                .iter()
                .map(|dim| match dim {
                    ampc_ir::Dim::Known(n) => n.to_string(),
                    ampc_ir::Dim::Sym(symbol) => module.text(*symbol).to_owned(),
                    ampc_ir::Dim::Unknown => "?".into(),
                })
                .collect();
            format!("{}[{}]", tensor.dtype, dims.join(", "))
        }
        Type::Sequence(element) => format!("a sequence of {}", describe(module, element)),
        Type::Optional(element) => format!("an optional {}", describe(module, element)),
        Type::Unknown => "a value of unknown type".into(),
        Type::Sparse(_) => "a sparse tensor".into(),
        Type::Map { .. } => "a map".into(),
        Type::Opaque { .. } => "an opaque value".into(),
    }
}

/// One data set of a test-data folder.
#[derive(Debug)]
pub struct TestData {
    /// The folder.
    pub folder: PathBuf,
    /// The inputs, in order.
    pub inputs: Vec<Option<Data>>,
    /// The outputs, in order.
    pub outputs: Vec<Option<Data>>,
}

/// Reads `input_0.pb` …, `output_0.pb` … of a folder.
///
/// # Errors
/// If a file cannot be read or is no value of the type that the model has there.
pub fn read_test_data(folder: &Path, module: &Module) -> Result<TestData, Error> {
    Ok(TestData {
        folder: folder.to_owned(),
        inputs: read_numbered(folder, "input", &input_types(module))?.0,
        outputs: read_numbered(folder, "output", &output_types(module))?.0,
    })
}

/// The numbers `i` of the files `PREFIX_i.pb` of a folder, in order.
fn numbered(folder: &Path, prefix: &str) -> io::Result<Vec<usize>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        let number =
            name.to_str().and_then(|n| n.strip_prefix(prefix)?.strip_prefix('_')?.strip_suffix(".pb"));
        numbers.extend(number.and_then(|n| n.parse::<usize>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

type Values = (Vec<Option<Data>>, Vec<Arc<SourceBytes>>);

/// The values of `PREFIX_0.pb` …, one per type; `None` where there is no such file.
fn read_numbered(folder: &Path, prefix: &str, types: &[Type]) -> Result<Values, Error> {
    let (mut values, mut files) = (Vec::with_capacity(types.len()), Vec::new());
    for (i, ty) in types.iter().enumerate() {
        let path = folder.join(format!("{prefix}_{i}.pb"));
        if !path.exists() {
            values.push(None);
            continue;
        }
        let bytes = Arc::new(SourceBytes::open(&path).map_err(|e| io_error(&path, e))?);
        files.push(bytes.clone());
        let value = read_data(bytes, ty);
        let value = value.map_err(|error| Error::Data { path, reason: error.to_string() })?;
        values.push(Some(value));
    }
    Ok((values, files))
}

fn io_error(path: &Path, source: io::Error) -> Error {
    Error::Io { path: path.to_owned(), source }
}
