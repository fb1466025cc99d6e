//! Numbers for the dims that the inputs of a model leave open.
//!
//! A named dim is one number wherever the name occurs; an axis without a name is `x[1]`, axis 1 of the input
//! `x`. A dim of the batch has its requested number, or else the number requested for another dim of the batch, or 1. The
//! batch consists of the open dims that [`Sizes::of`] recognizes by their names, and of axes 0 without a name. Every other
//! open dim has the requested number, or 128.
//!
//! Example: the inputs are `x : f32[N, T]` and `y : i64[?]`, and no number is requested. `N` is 1, a batch by its name;
//! `y[0]` is 1, an axis 0 without a name; `T` is 128. If 8 is requested for `N`, `y[0]` is 8 too.

use super::Sizes;
use super::extents::batches;
use crate::pass::error::UnknownDim;
use crate::spelling::suggest::{did_you_mean, nearest};
use ampc_ir::infer::{Types, infer, infer_module};
use ampc_ir::{Dim, Module, Shape, Type, Value};
use std::collections::{BTreeMap, BTreeSet};

/// A dim that inputs leave open, and the number that it gets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenDim {
    /// The name of the dim; for a dim without a name, the input and axis: `x[1]`.
    pub name: String,
    /// True if the model names the dim.
    pub is_named: bool,
    /// The number of the dim.
    pub size: u64,
    /// The reason for the number.
    pub source: SizeSource,
}

/// The reason for the number of a dim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SizeSource {
    /// The size is requested.
    Given,
    /// The size is the size of the batch: the size of another dim of the batch, or 1.
    Batch,
    /// The size is assumed, because nothing is known about it.
    Assumed,
}

/// The types of the inputs of a model with a number for every dim.
#[derive(Clone, Debug, Default)]
pub struct BoundInputs {
    /// The type of each input; `None` for an input without open dims.
    pub types: Vec<Option<Type>>,
    /// The dims that were open, in the order of the inputs.
    pub dims: Vec<OpenDim>,
    /// True if the size of the batch is requested, by the name of one of its dims.
    pub batch_is_given: bool,
}

/// The maximal number of open dims for which each dim is left open in turn to find the sizes that do not fit a model.
/// Each trial takes an inference of the model.
const MOST_SUSPECTS: usize = 8;

impl BoundInputs {
    /// Gives every open dim of the inputs the number requested by its name, the number of the batch, or
    /// [`Sizes::default`].
    ///
    /// # Errors
    /// If a number is requested for a dim that does not exist.
    pub fn new(module: &Module, asked: &BTreeMap<String, u64>) -> Result<BoundInputs, UnknownDim> {
        let (dims, batch_is_given) = sized(open_dims(module), &batches(module), asked);
        let names: BTreeSet<&str> = dims.iter().map(|dim| dim.name.as_str()).collect();
        let is_there = |name: &String| names.contains(name.as_str());
        if let Some((name, &size)) = asked.iter().find(|(name, _)| !is_there(name)) {
            return Err(unknown(name, size, &dims, asked));
        }
        let sizes: BTreeMap<&str, u64> = dims.iter().map(|dim| (dim.name.as_str(), dim.size)).collect();
        let types = types_with(module, &sizes);
        Ok(BoundInputs { types, dims, batch_is_given })
    }

    /// The dims without a requested size: neither their own name nor the name of a dim of the same batch is requested.
    pub fn chosen(&self) -> impl Iterator<Item = &OpenDim> {
        self.dims.iter().filter(|dim| match dim.source {
            SizeSource::Given => false,
            SizeSource::Batch => !self.batch_is_given,
            SizeSource::Assumed => true,
        })
    }

    /// Returns the dims whose sizes do not fit the model: the model fits the other sizes if such a dim is left open.
    /// Returns all dims if no single dim is to blame, as for two lengths that are both too large; empty if the model
    /// fits.
    ///
    /// Example: a model takes at most 64 positions. `B = 8` and `S = 100` do not fit, but `B = 8` with an open `S`
    /// fits, so `S` is the dim that does not fit.
    pub fn misfits(&self, module: &Module) -> Vec<&OpenDim> {
        if self.dims.is_empty() || self.infer(module).1 {
            return Vec::new();
        }
        let is_to_blame = |dim: &&OpenDim| {
            let others: BTreeMap<&str, u64> = (self.dims.iter().filter(|other| other.name != dim.name))
                .map(|other| (other.name.as_str(), other.size))
                .collect();
            let types = types_with(module, &others);
            infer(&set_in(module, &types)).1.is_empty()
        };
        let some: Vec<&OpenDim> = match self.dims.len() {
            2..=MOST_SUSPECTS => self.dims.iter().filter(is_to_blame).collect(),
            _ => Vec::new(),
        };
        if some.is_empty() { self.dims.iter().collect() } else { some }
    }

    /// Returns the types of all values of the model for these inputs, and true if the inputs fit; if not, a node has no
    /// result.
    pub fn infer(&self, module: &Module) -> (Types, bool) {
        if self.dims.is_empty() {
            let (inference, errors) = infer(module);
            return (inference.types, errors.is_empty());
        }
        let (inference, errors) = infer(&set_in(module, &self.types));
        (inference.types, errors.is_empty())
    }

    /// Returns a copy of the model for these inputs, with the types of all values; `None` if the model does not fit the
    /// inputs.
    pub fn bind(&self, module: &Module) -> Option<Module> {
        let mut bound = set_in(module, &self.types);
        infer_module(&mut bound).ok().map(|_| bound)
    }

    /// The number of every open dim, by name.
    pub fn sizes(&self) -> BTreeMap<String, u64> {
        self.dims.iter().map(|dim| (dim.name.clone(), dim.size)).collect()
    }
}

/// The type of each input with numbers for the open dims that have one; `None` for an input without open dims.
fn types_with(module: &Module, sizes: &BTreeMap<&str, u64>) -> Vec<Option<Type>> {
    let of_input = |&input: &Value| {
        let (name, ty) = (ampc_ir::verify::name_of(module, input), &module.value(input).ty);
        let open = axes(module, &name, ty).iter().any(Option::is_some);
        open.then(|| bound(module, &name, ty, sizes))
    };
    module.graph(module.main()).inputs().iter().map(of_input).collect()
}

/// Returns a copy of a model with other types of its inputs.
fn set_in(module: &Module, types: &[Option<Type>]) -> Module {
    let mut bound = module.clone();
    let inputs = bound.graph(bound.main()).inputs().to_vec();
    for (&input, ty) in inputs.iter().zip(types) {
        if let Some(ty) = ty {
            bound.set_type(input, ty.clone());
        }
    }
    bound
}

/// The names of the axes of a tensor; `None` for an axis that is not open.
fn axes(module: &Module, name: &str, ty: &Type) -> Vec<Option<String>> {
    let dims = match ty {
        Type::Tensor(tensor) => tensor.shape.dims().unwrap_or_default(),
        Type::Sequence(element) | Type::Optional(element) => return axes(module, name, element),
        Type::Unknown | Type::Sparse(_) | Type::Map { .. } | Type::Opaque { .. } => &[],
    };
    let axis = |(axis, dim): (usize, &Dim)| match *dim {
        Dim::Known(_) => None,
        Dim::Sym(symbol) => Some(module.text(symbol).to_owned()),
        Dim::Unknown => Some(format!("{name}[{axis}]")),
    };
    dims.iter().enumerate().map(axis).collect()
}

/// The type with a number for every dim.
fn bound(module: &Module, name: &str, ty: &Type, sizes: &BTreeMap<&str, u64>) -> Type {
    match ty {
        Type::Tensor(tensor) => {
            let Some(dims) = tensor.shape.dims() else { return ty.clone() };
            let names = axes(module, name, ty);
            let dims = dims.iter().zip(names).map(|(&dim, name)| match name {
                Some(name) => sizes.get(name.as_str()).map_or(dim, |&size| Dim::Known(size)),
                None => dim,
            });
            Type::tensor(tensor.dtype, Shape::of(dims))
        }
        Type::Sequence(element) => Type::Sequence(Box::new(bound(module, name, element, sizes))),
        Type::Optional(element) => Type::Optional(Box::new(bound(module, name, element, sizes))),
        Type::Unknown | Type::Sparse(_) | Type::Map { .. } | Type::Opaque { .. } => ty.clone(),
    }
}

/// An open dim before it has a number.
struct Found {
    name: String,
    /// True if the dim is axis 0 of an input.
    leads: bool,
    is_named: bool,
}

fn open_dims(module: &Module) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    let mut at: BTreeMap<String, usize> = BTreeMap::new();
    for &input in module.graph(module.main()).inputs() {
        let (input_name, ty) = (ampc_ir::verify::name_of(module, input), &module.value(input).ty);
        for (axis, name) in axes(module, &input_name, ty).into_iter().enumerate() {
            let Some(name) = name else { continue };
            let i = *at.entry(name.clone()).or_insert(found.len());
            if i == found.len() {
                let is_named = name != format!("{input_name}[{axis}]");
                found.push(Found { name, leads: false, is_named });
            }
            found[i].leads |= axis == 0;
        }
    }
    found
}

/// The dims with their sizes, and true if the size of the batch is requested.
fn sized(
    found: Vec<Found>,
    batches: &BTreeSet<String>,
    asked: &BTreeMap<String, u64>,
) -> (Vec<OpenDim>, bool) {
    let default = Sizes::default();
    let is_batch = |dim: &Found| if dim.is_named { batches.contains(&dim.name) } else { dim.leads };
    let said = found.iter().filter(|dim| is_batch(dim)).find_map(|dim| asked.get(&dim.name).copied());
    let batch = said.unwrap_or(default.batch);
    let sized = |dim: Found| {
        let (size, source) = match asked.get(&dim.name) {
            Some(&size) => (size, SizeSource::Given),
            None if is_batch(&dim) => (batch, SizeSource::Batch),
            None => (default.other, SizeSource::Assumed),
        };
        OpenDim { name: dim.name, is_named: dim.is_named, size, source }
    };
    (found.into_iter().map(sized).collect(), said.is_some())
}

fn unknown(name: &str, size: u64, dims: &[OpenDim], asked: &BTreeMap<String, u64>) -> UnknownDim {
    let names: Vec<&str> = dims.iter().map(|dim| dim.name.as_str()).collect();
    // A dim whose size is requested is not meant by another name.
    let without_size = names.iter().copied().filter(|&name| !asked.contains_key(name));
    let near = nearest(name, without_size).map(|near| format!("{near}={size}"));
    let hint = did_you_mean(near.as_deref());
    let known = if names.is_empty() {
        "no input has a dim that is not a number".to_owned()
    } else {
        format!("the open dims are {}", names.join(", "))
    };
    UnknownDim { name: name.to_owned(), size, known, hint }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ampc_ir::text::{NoData, parse};

    fn dims(inputs: &str, asked: &[(&str, u64)]) -> Vec<(String, u64, SizeSource)> {
        let text = format!("opset ai.onnx=21\n\ngraph @main {{\n{inputs}  output %x\n}}\n");
        let module = parse(&text, &NoData).unwrap();
        let asked = asked.iter().map(|&(name, size)| (name.to_owned(), size)).collect();
        let bound = BoundInputs::new(&module, &asked).unwrap();
        bound.dims.into_iter().map(|dim| (dim.name, dim.size, dim.source)).collect()
    }

    #[test]
    fn an_open_batch_is_one_number_whatever_its_name() {
        use SizeSource::{Assumed, Batch, Given};
        let two = "  input %x : f32[x_axis_0, T]\n  input %y : i64[y_axis_0]\n";
        let named =
            |list: [(&str, u64, SizeSource); 3]| list.map(|(name, n, s)| (name.to_owned(), n, s)).to_vec();
        let expected = named([("x_axis_0", 1, Batch), ("T", 128, Assumed), ("y_axis_0", 1, Batch)]);
        assert_eq!(dims(two, &[]), expected);
        let expected = named([("x_axis_0", 8, Batch), ("T", 16, Given), ("y_axis_0", 8, Given)]);
        assert_eq!(dims(two, &[("y_axis_0", 8), ("T", 16)]), expected);
        // If the name of a dim says that it is a batch, the leading axis need not be the batch.
        let expected = named([("T", 128, Assumed), ("N", 1, Batch), ("y[0]", 1, Batch)]);
        assert_eq!(dims("  input %x : f32[T, N]\n  input %y : i64[?]\n", &[]), expected);
    }

    #[test]
    fn a_number_for_no_dim_is_an_error() {
        let text = "opset ai.onnx=21\n\ngraph @main {\n  input %x : f32[N, 2]\n  output %x\n}\n";
        let module = parse(text, &NoData).unwrap();
        let asked = BTreeMap::from([("n".to_owned(), 2)]);
        let error = BoundInputs::new(&module, &asked).unwrap_err().to_string();
        assert!(error.starts_with("`--dim n=2`: no input has a dim `n`; the open dims are N"), "{error}");
        assert!(error.ends_with("did you mean `N=2`?"), "{error}");
        let both = BTreeMap::from([("N".to_owned(), 3), ("n".to_owned(), 2)]);
        let error = BoundInputs::new(&module, &both).unwrap_err().to_string();
        assert!(!error.contains("did you mean"), "{error}");
    }

    #[test]
    fn the_dims_that_do_not_fit_are_those_without_which_the_model_fits() {
        let misfits = |inputs: &str, asked: &[(&str, u64)]| {
            let text = format!("opset ai.onnx=21\n\ngraph @main {{\n{inputs}  output %y\n}}\n");
            let module = parse(&text, &NoData).unwrap();
            let asked = asked.iter().map(|&(name, size)| (name.to_owned(), size)).collect();
            let bound = BoundInputs::new(&module, &asked).unwrap();
            bound.misfits(&module).into_iter().map(|dim| dim.name.clone()).collect::<Vec<_>>()
        };
        let table =
            "  input %x : f32[B, S, 4]\n  const %p : f32[1, 64, 4] = random(1)\n  %y = Add(%x, %p) : ?\n";
        assert_eq!(misfits(table, &[("B", 8), ("S", 100)]), ["S"]);
        assert_eq!(misfits(table, &[]), ["S"]);
        assert_eq!(misfits(table, &[("S", 64)]), [""; 0]);
        let two = "  input %x : f32[B, H]\n  input %z : f32[B, W]\n  %y = Add(%x, %z) : ?\n";
        assert_eq!(misfits(two, &[("H", 5), ("W", 6)]), ["H", "W"]);
    }

    #[test]
    fn dims_of_a_given_batch_are_not_chosen() {
        let text = "opset ai.onnx=21\n\ngraph @main {\n  input %x : f32[batch, T]\n  input %y : f32[batch_2]\n  \
                    output %x\n}\n";
        let module = parse(text, &NoData).unwrap();
        let chosen = |asked: &[(&str, u64)]| {
            let asked = asked.iter().map(|&(name, size)| (name.to_owned(), size)).collect();
            let bound = BoundInputs::new(&module, &asked).unwrap();
            bound.chosen().map(|dim| dim.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(chosen(&[]), ["batch", "T", "batch_2"]);
        assert_eq!(chosen(&[("batch", 1)]), ["T"]);
        assert_eq!(chosen(&[("batch", 1), ("T", 2)]), [""; 0]);
    }
}
