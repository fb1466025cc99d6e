//! Types and constants.

use super::ast::Name;
use super::element::{Literal, Packer, nan_bits, parse_f32, parse_hex};
use super::lexer::{Kind, Span};
use super::parser::{Broken, Parsed, Parser, clip};
use crate::convert::{Conversion, can_convert};
use crate::dtype::DType;
use crate::module::Payload;
use crate::tensor::{SparseData, Storage, TensorData, TensorError};
use crate::text::options::{MAX_DEPTH, MissingData};
use crate::ty::{Dim, Dims, Shape, TensorType, Type};
use smallvec::SmallVec;
use std::sync::Arc;

const ELEMENT_TYPE: &str = "an element type such as `f32`, `f16` or `i64`";

/// The largest constant of random values: a text of a hundred bytes must not fill a disk when it is written as a model.
const MAX_RANDOM_BYTES: u64 = 1 << 32;

impl<'a> Parser<'a, '_> {
    /// A type.
    pub(super) fn ty(&mut self, depth: usize) -> Parsed<Type> {
        if depth > MAX_DEPTH {
            return self.fail(format!("types nested at most {MAX_DEPTH} deep"));
        }
        if self.eat(b'?') {
            return Ok(Type::Unknown);
        }
        let wrapper = if self.tok.kind == Kind::Word { self.tok.text } else { "" };
        if !matches!(wrapper, "seq" | "optional" | "sparse" | "map" | "opaque") {
            return Ok(Type::Tensor(self.tensor_type()?));
        }
        self.advance();
        self.expect(b'(')?;
        let ty = match wrapper {
            "seq" => Type::Sequence(Box::new(self.ty(depth + 1)?)),
            "optional" => Type::Optional(Box::new(self.ty(depth + 1)?)),
            "sparse" => Type::Sparse(self.tensor_type()?),
            "map" => {
                let key = self.dtype()?;
                self.expect(b',')?;
                Type::Map { key, value: Box::new(self.ty(depth + 1)?) }
            }
            _ => {
                let domain = self.string("a quoted domain")?;
                let domain = self.module.intern(&domain);
                self.expect(b',')?;
                let name = self.string("a quoted name")?;
                Type::Opaque { domain, name: self.module.intern(&name) }
            }
        };
        self.expect(b')')?;
        Ok(ty)
    }

    pub(super) fn dtype(&mut self) -> Parsed<DType> {
        match self.dtype_if_any()? {
            Some(dtype) => Ok(dtype),
            None => self.fail(ELEMENT_TYPE),
        }
    }

    /// An element type, if one comes. Numbers beyond the enumeration may be negative: `dtype-7`.
    fn dtype_if_any(&mut self) -> Parsed<Option<DType>> {
        if self.tok.kind != Kind::Word {
            return Ok(None);
        }
        if let Ok(dtype) = self.tok.text.parse() {
            self.advance();
            return Ok(Some(dtype));
        }
        if !self.eat_word("dtype") {
            return Ok(None);
        }
        let number: i32 = self.number("the number of an element type")?;
        Ok(DType::from_number(number))
    }

    fn tensor_type(&mut self) -> Parsed<TensorType> {
        if self.tok.kind != Kind::Word {
            return self.fail("a type such as `f32[N, 4]`, `seq(f32)` or `?`");
        }
        let dtype = self.dtype()?;
        let mut dims = Dims::new();
        if self.tok.first || !self.eat(b'[') {
            return Ok(TensorType::new(dtype, Shape::scalar()));
        }
        if self.eat(b'*') {
            self.expect(b']')?;
            return Ok(TensorType::new(dtype, Shape::unknown()));
        }
        while !self.eat(b']') {
            if !dims.is_empty() {
                self.expect(b',')?;
            }
            dims.push(self.dim()?);
        }
        Ok(TensorType::new(dtype, Shape(Some(dims))))
    }

    fn dim(&mut self) -> Parsed<Dim> {
        const EXPECTED: &str = "a dim such as `4`, `N` or `?`";
        if self.eat(b'?') {
            return Ok(Dim::Unknown);
        }
        if self.tok.kind == Kind::Number {
            return self.number(EXPECTED).map(Dim::Known);
        }
        self.word_symbol(EXPECTED).map(Dim::Sym)
    }

    /// The payload of an input or constant of type `ty`.
    pub(super) fn payload(&mut self, ty: &Type) -> Parsed<Payload> {
        if self.eat_word("sparse") {
            return Ok(Payload::Sparse(Arc::new(self.sparse()?)));
        }
        if self.eat_word("tensor") {
            return Ok(Payload::Dense(Arc::new(self.tensor()?)));
        }
        let dims = match ty {
            Type::Tensor(tensor) => tensor.shape.to_known().map(|dims| (tensor.dtype, dims)),
            Type::Unknown
            | Type::Sparse(_)
            | Type::Sequence(_)
            | Type::Optional(_)
            | Type::Map { .. }
            | Type::Opaque { .. } => None,
        };
        let Some((dtype, dims)) = dims else {
            return self.fail("`tensor(…)` or `sparse(…)`, as the type is no tensor of known dims");
        };
        Ok(Payload::Dense(Arc::new(self.data(dtype, &dims)?)))
    }

    /// `(f32[2] = [1.0, 2.0])`
    pub(super) fn tensor(&mut self) -> Parsed<TensorData> {
        self.expect(b'(')?;
        let ty = self.tensor_type()?;
        let Some(dims) = ty.shape.to_known() else {
            return self.fail("a type of known dims before this");
        };
        self.expect(b'=')?;
        let data = self.data(ty.dtype, &dims)?;
        self.expect(b')')?;
        Ok(data)
    }

    /// `([3, 4], tensor(values), tensor(indices))`
    pub(super) fn sparse(&mut self) -> Parsed<SparseData> {
        self.expect(b'(')?;
        self.expect(b'[')?;
        let mut dims: SmallVec<[u64; 4]> = SmallVec::new();
        while !self.eat(b']') {
            if !dims.is_empty() {
                self.expect(b',')?;
            }
            dims.push(self.number("a dim")?);
        }
        let mut parts = [const { None }; 2];
        for part in &mut parts {
            self.expect(b',')?;
            if !self.eat_word("tensor") {
                return self.fail("`tensor(…)`");
            }
            *part = Some(self.tensor()?);
        }
        self.expect(b')')?;
        let [Some(values), Some(indices)] = parts else { return Err(Broken) };
        Ok(SparseData { values, indices, dims })
    }

    /// Elements and the conversions still to be applied, of final type `dtype`.
    fn data(&mut self, dtype: DType, dims: &[u64]) -> Parsed<TensorData> {
        let stored = self.dtype_if_any()?;
        let mut data = self.elements(stored.unwrap_or(dtype), dims)?;
        let mut span = self.tok.span;
        while !self.tok.first && self.tok.kind == Kind::Arrow {
            self.advance();
            span = self.tok.span;
            let to = self.dtype()?;
            let clamp = self.eat_word("clamp");
            if !can_convert(data.dtype(), to) || to == data.dtype() {
                self.error(span, format!("another float format than {}", data.dtype()), to.to_string());
                return Err(Broken);
            }
            data = data.converted(Conversion { to, clamp });
        }
        if data.dtype() != dtype {
            self.error(span, format!("elements that end up as {dtype}"), data.dtype().to_string());
            return Err(Broken);
        }
        Ok(data)
    }

    fn elements(&mut self, dtype: DType, dims: &[u64]) -> Parsed<TensorData> {
        let span = self.tok.span;
        let data = if self.eat_word("data") {
            return self.named_data(dtype, dims);
        } else if self.eat_word("random") {
            self.expect(b'(')?;
            let seed = self.number("a seed")?;
            let amplitude = if self.eat(b',') { self.float("an amplitude")? } else { 1.0 };
            self.expect(b')')?;
            if !can_convert(DType::F32, dtype) {
                self.error(span, "random values of f32, f16, bf16 or f64", dtype.to_string());
                return Err(Broken);
            }
            let data = TensorData::new(dtype, dims.iter().copied(), Storage::Random { seed, amplitude });
            if let Ok(data) = &data
                && data.byte_len() > MAX_RANDOM_BYTES
            {
                let found = format!("{} bytes", data.byte_len());
                self.error(span, format!("random values of at most {MAX_RANDOM_BYTES} bytes"), found);
                return Err(Broken);
            }
            data
        } else if self.eat_word("raw") {
            self.expect(b'(')?;
            let hex = self.string("quoted hexadecimal digits")?;
            let Some(bytes) = hex_bytes(&hex) else {
                self.error(span, "an even number of hexadecimal digits", clip(&hex));
                return Err(Broken);
            };
            self.expect(b')')?;
            TensorData::from_bytes(dtype, dims, bytes)
        } else {
            self.literals(dtype, dims)?
        };
        data.or_else(|error| self.tensor_error(span, &error))
    }

    fn tensor_error<T>(&mut self, span: Span, error: &TensorError) -> Parsed<T> {
        let (expected, found) = match error {
            TensorError::WrongLength { dtype, dims, .. } => {
                (format!("as many elements as {dtype}{dims:?} has"), "another number".to_owned())
            }
            TensorError::NoSize { .. } | TensorError::Read { .. } => {
                ("a tensor of a size that can be represented".to_owned(), error.to_string())
            }
        };
        self.error(span, expected, found);
        Err(Broken)
    }

    /// `[1.0, 2.0]`, or one literal without brackets.
    fn literals(&mut self, dtype: DType, dims: &[u64]) -> Parsed<Result<TensorData, TensorError>> {
        let start = self.tok.span;
        let mut strings: Vec<Box<[u8]>> = Vec::new();
        let mut packer = Packer::new(dtype);
        let list = !dims.is_empty() || self.at(b'[');
        if list {
            self.expect(b'[')?;
        }
        let mut first = true;
        while !list || !self.eat(b']') {
            if !std::mem::take(&mut first) {
                if !list {
                    break;
                }
                self.expect(b',')?;
            }
            let (span, text) = (self.tok.span, self.tok.text);
            let literal = self.literal(dtype)?;
            match &literal {
                Literal::Str(bytes) if dtype == DType::String => strings.push(bytes.as_ref().into()),
                _ => {
                    if packer.push(&literal).is_none() {
                        let found = format!("`{}`", super::parser::clip(text));
                        self.error(span, format!("an element of type {dtype}"), found);
                        return Err(Broken);
                    }
                }
            }
        }
        let storage = if dtype == DType::String {
            Storage::Strings(strings.into())
        } else {
            let count = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
            if count != Some(packer.count) {
                let found = packer.count.to_string();
                let expected = count.map_or("fewer".to_owned(), |n| n.to_string());
                self.error(start, format!("{expected} elements"), found);
                return Err(Broken);
            }
            Storage::Bytes(packer.bytes.into())
        };
        Ok(TensorData::new(dtype, dims.iter().copied(), storage))
    }

    fn literal(&mut self, dtype: DType) -> Parsed<Literal<'a>> {
        let tok = self.tok;
        match tok.kind {
            Kind::Number => {
                self.advance();
                Ok(Literal::Number(tok.text))
            }
            Kind::Word if matches!(tok.text, "inf" | "true" | "false") => {
                self.advance();
                Ok(match tok.text {
                    "inf" => Literal::Number(tok.text),
                    text => Literal::Bool(text == "true"),
                })
            }
            Kind::Word if tok.text == "nan" => {
                self.advance();
                Ok(Literal::Nan(self.nan_bits()?))
            }
            Kind::Str => Ok(Literal::Str(self.bytes("a string")?)),
            Kind::Punct(b'(') if matches!(dtype, DType::Complex64 | DType::Complex128) => {
                self.advance();
                // Parts are floats: no further parenthesis nests.
                let real = self.literal(DType::F64)?;
                self.expect(b',')?;
                let imaginary = self.literal(DType::F64)?;
                self.expect(b')')?;
                Ok(Literal::Complex(Box::new([real, imaginary])))
            }
            Kind::Word
            | Kind::Value
            | Kind::At
            | Kind::Punct(_)
            | Kind::Path
            | Kind::Arrow
            | Kind::End
            | Kind::Bad(_) => self.fail(format!(
                "an element of type {dtype}, `data(\"name\")`, `random(seed)` or `raw(\"00ff\")`"
            )),
        }
    }

    /// `(0x7fc00000)`, or nothing.
    fn nan_bits(&mut self) -> Parsed<Option<u64>> {
        if !self.eat(b'(') {
            return Ok(None);
        }
        let bits = parse_hex(self.tok.text);
        if bits.is_none() {
            return self.fail("the bits of a NaN in hexadecimal");
        }
        self.advance();
        self.expect(b')')?;
        Ok(bits)
    }

    pub(super) fn float(&mut self, expected: &str) -> Parsed<f32> {
        let value = match self.tok.kind {
            Kind::Number => parse_f32(self.tok.text),
            Kind::Word if self.tok.text == "inf" => Some(f32::INFINITY),
            Kind::Word if self.tok.text == "nan" => {
                let span = self.advance().span;
                let bits = self.nan_bits()?;
                let bits = nan_bits(DType::F32, bits).and_then(|b| u32::try_from(b).ok());
                if bits.is_none() {
                    self.error(span, "the bits of a NaN of 32 bits", "others");
                }
                return bits.map(f32::from_bits).ok_or(Broken);
            }
            Kind::Word
            | Kind::Str
            | Kind::Value
            | Kind::At
            | Kind::Punct(_)
            | Kind::Path
            | Kind::Arrow
            | Kind::End
            | Kind::Bad(_) => None,
        };
        match value {
            Some(value) => {
                self.advance();
                Ok(value)
            }
            None => self.fail(expected),
        }
    }

    /// `("name", 0xhash)`
    fn named_data(&mut self, dtype: DType, dims: &[u64]) -> Parsed<TensorData> {
        self.expect(b'(')?;
        let span = self.tok.span;
        let name = self.string("the quoted name of the data")?;
        let mut hash = None;
        if self.eat(b',') {
            let digits = self.tok.text.strip_prefix("0x").filter(|d| !d.starts_with('+'));
            hash = digits.and_then(|d| u128::from_str_radix(d, 16).ok());
            if hash.is_none() {
                return self.fail("a hash in hexadecimal");
            }
            self.advance();
        }
        self.expect(b')')?;
        let name = Name { symbol: self.module.intern(&name), span };
        self.resolve(name, dtype, dims, hash)
    }

    fn resolve(&mut self, name: Name, dtype: DType, dims: &[u64], hash: Option<u128>) -> Parsed<TensorData> {
        let key = (name.symbol, dtype, dims.to_vec(), hash);
        if let Some(known) = self.resolved.get(&key) {
            return Ok(known.clone());
        }
        let text = self.module.text(name.symbol);
        let shown = clip(text).into_owned();
        let data = self.resolver.resolve(text, dtype, dims, hash);
        let data = match data {
            Some(data) => data,
            None if self.options.allow_missing_data => {
                let missing = MissingData::tensor(text, dtype, dims, hash);
                return missing.or_else(|error| self.tensor_error(name.span, &error));
            }
            None => {
                self.error(name.span, format!("data of the name \"{shown}\""), "none");
                return Err(Broken);
            }
        };
        let wanted = (dtype, dims);
        if (data.stored_dtype(), data.dims()) != wanted || !data.pending().is_empty() {
            let found = format!("{}{:?}", data.dtype(), data.dims());
            self.error(name.span, format!("data of type {dtype}{dims:?}"), found);
            return Err(Broken);
        }
        if let Some(hash) = hash
            && !self.options.trust_data
        {
            match data.content_hash() {
                Ok(found) if found == hash => {}
                Ok(found) => {
                    self.hash_error(name.span, hash, found);
                    return Err(Broken);
                }
                Err(error) => return self.tensor_error(name.span, &error),
            }
        }
        self.resolved.insert(key, data.clone());
        Ok(data)
    }
}

/// The bytes of pairs of hexadecimal digits.
fn hex_bytes(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|c| c.to_digit(16)).collect();
    let digits = digits?;
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| u8::try_from(high * 16 + low).ok()).collect()
}
