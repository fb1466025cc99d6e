//! Constants from JSON.

use super::elements::{hex, pack};
use super::reader::Reader;
use super::tape::{At, Token};
use ampc_ir::convert::{Conversion, can_convert};
use ampc_ir::tensor::{ByteSource, FileRange, SparseData, Storage, TensorError};
use ampc_ir::{DType, Payload, TensorData};
use std::io;
use std::sync::Arc;

/// The fields of dense tensors, then the fields that only sparse tensors have.
const FIELDS: [&str; 9] =
    ["dtype", "shape", "data", "name", "xxh3_128", "stored", "converted", "values", "indices"];

impl Reader<'_, '_> {
    /// A dense or a sparse tensor.
    pub(super) fn payload(&mut self, at: At) -> Option<Payload> {
        let [.., values, indices] = self.fields(at, FIELDS)?;
        if values.is_some() || indices.is_some() {
            return self.sparse(at).map(Payload::Sparse);
        }
        self.tensor(at).map(Payload::Dense)
    }

    pub(super) fn sparse(&mut self, at: At) -> Option<Arc<SparseData>> {
        let [shape, values, indices] = self.fields(at, ["shape", "values", "indices"])?;
        let shape = self.required(at, shape, "shape")?;
        let dims = self.dims(shape)?.into();
        let values = self.required(at, values, "values")?;
        let indices = self.required(at, indices, "indices")?;
        let values = self.tensor(values)?.as_ref().clone();
        let indices = self.tensor(indices)?.as_ref().clone();
        Some(Arc::new(SparseData { values, indices, dims }))
    }

    fn dims(&mut self, at: At) -> Option<Vec<u64>> {
        let items = self.items(Some(at), "dims");
        items.into_iter().map(|at| self.int(at, "a dim: a number from 0 to 2^64 - 1")).collect()
    }

    pub(super) fn tensor(&mut self, at: At) -> Option<Arc<TensorData>> {
        let names = ["dtype", "shape", "data", "name", "xxh3_128", "stored", "converted"];
        let [dtype, shape, data, name, hash, stored, converted] = self.fields(at, names)?;
        let dtype_at = self.required(at, dtype, "dtype")?;
        let dtype = self.dtype(dtype_at)?;
        let shape = self.required(at, shape, "shape")?;
        let dims = self.dims(shape)?;
        let stored = match stored {
            Some(stored) => self.dtype(stored)?,
            None => dtype,
        };
        let tensor = match (data, name) {
            (Some(data), None) => Arc::new(self.inline(data, stored, &dims)?),
            (None, Some(name)) => self.named(name, hash, stored, &dims)?,
            (Some(_), Some(_)) => {
                self.error(at, "\"data\", or \"name\" of a tensor in the safetensors file", "both");
                return None;
            }
            (None, None) => {
                self.error(at, "\"data\", or \"name\" of a tensor in the safetensors file", "none");
                return None;
            }
        };
        let Some(converted) = converted.filter(|_| true) else {
            if stored != dtype {
                self.error(
                    dtype_at,
                    format!("{stored}, as it is \"stored\" and not \"converted\""),
                    dtype.to_string(),
                );
                return None;
            }
            return Some(tensor);
        };
        let mut tensor = tensor.as_ref().clone();
        for step in self.items(Some(converted), "conversions") {
            let [to, clamp] = self.fields(step, ["to", "clamp"])?;
            let to_at = self.required(step, to, "to")?;
            let to = self.dtype(to_at)?;
            let clamp = match clamp.map(|at| (at, self.tape.token(at))) {
                None => false,
                Some((_, Token::Bool(clamp))) => clamp,
                Some((at, _)) => return self.wrong_none(at, "true or false"),
            };
            if !can_convert(tensor.dtype(), to) {
                return self.wrong_none(to_at, format!("a format that {} can become", tensor.dtype()));
            }
            tensor = tensor.converted(Conversion { to, clamp });
        }
        if tensor.dtype() != dtype {
            let found = dtype.to_string();
            self.error(dtype_at, format!("{}, as the last conversion says", tensor.dtype()), found);
            return None;
        }
        Some(Arc::new(tensor))
    }

    fn wrong_none<T>(&mut self, at: At, expected: impl AsRef<str>) -> Option<T> {
        self.wrong(at, expected);
        None
    }

    /// A list of elements, or the bytes in hexadecimal.
    fn inline(&mut self, at: At, dtype: DType, dims: &[u64]) -> Option<TensorData> {
        let storage = match self.tape.token(at) {
            Token::List if dtype == DType::String => {
                let items = self.items(Some(at), "strings");
                let strings: Option<Vec<Box<[u8]>>> = items.into_iter().map(|at| self.bytes(at)).collect();
                Storage::Strings(strings?.into())
            }
            Token::List => {
                let tape = self.tape;
                let mut bytes = Vec::new();
                let mut count = 0u64;
                for item in tape.items(at) {
                    if pack(&mut bytes, dtype, &tape.token(item)).is_none() {
                        return self.wrong_none(item, format!("an element of {dtype}"));
                    }
                    count += 1;
                }
                let wanted = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
                if wanted != Some(count) {
                    let expected = wanted.map_or("fewer".to_owned(), |n| n.to_string());
                    self.error(
                        at,
                        format!("{expected} elements, as the shape {dims:?} says"),
                        count.to_string(),
                    );
                    return None;
                }
                Storage::Bytes(bytes.into())
            }
            Token::Text(text) => match hex(&text) {
                Some(bytes) => Storage::Bytes(bytes.into()),
                None => return self.wrong_none(at, "pairs of hexadecimal digits"),
            },
            Token::Null | Token::Bool(_) | Token::Number(_) | Token::Object => {
                return self.wrong_none(at, "a flat list of elements, or bytes in hexadecimal");
            }
        };
        let made = TensorData::new(dtype, dims.iter().copied(), storage);
        made.map_err(|error| self.tensor_error(at, &error)).ok()
    }

    fn tensor_error(&mut self, at: At, error: &TensorError) {
        match error {
            TensorError::WrongLength { dtype, expected, found, .. } => {
                let what = if *dtype == DType::String { "elements" } else { "bytes" };
                let expected = format!("{expected} {what}, as \"dtype\" and \"shape\" say");
                self.error(at, expected, found.to_string());
            }
            TensorError::NoSize { .. } => self.error(at, "a size in bytes that can be", error.to_string()),
            other @ TensorError::Read { .. } => self.error(at, "bytes that can be read", other.to_string()),
        }
    }

    /// A tensor of the safetensors file.
    fn named(&mut self, at: At, hash: Option<At>, dtype: DType, dims: &[u64]) -> Option<Arc<TensorData>> {
        let name = self.string(at, "the name of a tensor in the safetensors file")?.into_owned();
        let hash = match hash {
            None => None,
            Some(hash_at) => {
                let text = self.string(hash_at, "an xxh3-128 in hexadecimal")?;
                let plain = text.len() == 32 && !text.starts_with('+');
                let hash = u128::from_str_radix(&text, 16).ok().filter(|_| plain);
                if hash.is_none() {
                    return self.wrong_none(hash_at, "an xxh3-128: 32 hexadecimal digits");
                }
                hash
            }
        };
        let key = (name, dtype, dims.to_vec(), hash);
        if let Some(known) = self.resolved.get(&key) {
            return Some(known.clone());
        }
        let name = &key.0;
        let data = match self.resolver.resolve(name, dtype, dims, hash) {
            Some(data) => data,
            None if self.options.allow_missing_data => match missing(name, dtype, dims, hash) {
                Ok(data) => data,
                Err(error) => {
                    self.tensor_error(at, &error);
                    return None;
                }
            },
            None => {
                let expected =
                    format!("a tensor of this name, {dtype} and shape {dims:?} in the safetensors file");
                self.error(at, expected, "none");
                return None;
            }
        };
        if (data.stored_dtype(), data.dims()) != (dtype, dims) || !data.pending().is_empty() {
            let found = format!("{}{:?}", data.dtype(), data.dims());
            self.error(at, format!("data of type {dtype}{dims:?}"), found);
            return None;
        }
        if let Some(hash) = hash.filter(|_| !self.options.trust_data) {
            match data.content_hash() {
                Ok(found) if found == hash => {}
                Ok(found) => {
                    self.hash_error(at, hash, found);
                    return None;
                }
                Err(error) => {
                    self.tensor_error(at, &error);
                    return None;
                }
            }
        }
        let data = Arc::new(data);
        self.resolved.insert(key, data.clone());
        Some(data)
    }
}

/// A constant whose bytes did not come with the graph: it fails when they are read.
fn missing(name: &str, dtype: DType, dims: &[u64], hash: Option<u128>) -> Result<TensorData, TensorError> {
    // A size that does not fit is refused by `TensorData::new` itself.
    let len = dtype.tensor_bytes(dims).unwrap_or(0);
    let source = Arc::new(Missing { name: name.to_owned(), len, hash });
    TensorData::new(dtype, dims.iter().copied(), Storage::File(FileRange { source, offset: 0, len }))
}

#[derive(Debug)]
struct Missing {
    name: String,
    len: u64,
    hash: Option<u128>,
}

impl ByteSource for Missing {
    fn read_exact_at(&self, _: &mut [u8], _: u64) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::NotFound, "the graph came without its safetensors file"))
    }
    fn len(&self) -> u64 {
        self.len
    }
    fn describe(&self) -> String {
        format!("the tensor `{}`", self.name)
    }
    fn known_hash(&self, _: u64, _: u64) -> Option<u128> {
        self.hash
    }
}
