//! Signatures as JSON: in policies, reports and graphs.

use super::PolicyError;
use crate::graph::keys::op_key;
use crate::spelling::json::{Entries, entries};
use crate::spelling::suggest::{did_you_mean, nearest};
use ampc_ir::DType;
use ampc_ir::op::{Class, Count, OpSchema, Signature, SignatureError, SignatureFormal};
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;

/// The value of an operator in `signatures`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignatureJson {
    inputs: Vec<FormalJson>,
    outputs: Vec<FormalJson>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(serialize_with = "in_order", deserialize_with = "entries")]
    types: Vec<(String, Vec<Word<DType>>)>,
    class: Word<Class>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FormalJson {
    name: String,
    #[serde(rename = "type")]
    ty: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    optional: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    variadic: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    class: Option<Word<Class>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shape: Option<String>,
}

/// One of a few words.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Word<T>(pub(super) T);

pub(super) trait Words: Sized + Copy + 'static + fmt::Display {
    const ALL: &'static [Self];
    const WHAT: &'static str;
}

impl Words for Class {
    const ALL: &'static [Class] = &Class::ALL;
    const WHAT: &'static str = "precision class";
}

impl Words for DType {
    const ALL: &'static [DType] = DType::ALL;
    const WHAT: &'static str = "element type";
}

impl<T: Words> Serialize for Word<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de, T: Words> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Word<T>, D::Error> {
        struct OneOf<T>(PhantomData<T>);
        // A visitor, so that an error is one of the word and not of what is behind it.
        impl<T: Words> Visitor<'_> for OneOf<T> {
            type Value = Word<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_str<E: serde::de::Error>(self, found: &str) -> Result<Word<T>, E> {
                let words: Vec<String> = T::ALL.iter().map(ToString::to_string).collect();
                if let Some(at) = words.iter().position(|word| word == found) {
                    return Ok(Word(T::ALL[at]));
                }
                let (hint, all) = (near(found, &words), words.join(", "));
                Err(E::custom(format!("`{found}` is not a valid {}: expected one of {all}{hint}", T::WHAT)))
            }
        }
        deserializer.deserialize_str(OneOf(PhantomData))
    }
}

pub(super) fn in_order<S: Serializer, T: Serialize>(
    entries: &Entries<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(entries.iter().map(|(key, value)| (key, value)))
}

impl SignatureJson {
    /// The JSON of a signature.
    pub fn of(signature: &Signature) -> SignatureJson {
        let formal = |f: &SignatureFormal| FormalJson {
            name: f.name.clone(),
            ty: f.ty.clone(),
            optional: f.count == Count::Optional,
            variadic: f.count == Count::Variadic,
            class: f.class.map(Word),
            shape: f.shape.clone(),
        };
        let dtypes = |dtypes: &[DType]| dtypes.iter().copied().map(Word).collect();
        SignatureJson {
            inputs: signature.inputs.iter().map(formal).collect(),
            outputs: signature.outputs.iter().map(formal).collect(),
            types: signature.types.iter().map(|(var, of)| (var.clone(), dtypes(of))).collect(),
            class: Word(signature.class),
        }
    }

    /// The schema of the operator `domain::Op` that is described so.
    ///
    /// # Errors
    /// If the description contradicts itself, or the operator needs none.
    pub fn schema(self, op: &str) -> Result<&'static OpSchema, SignatureError> {
        let (domain, name) = op.rsplit_once("::").unwrap_or(("", op));
        let formal = |side: &str, f: FormalJson| {
            let count = match (f.optional, f.variadic) {
                (false, false) => Count::One,
                (true, false) => Count::Optional,
                (false, true) => Count::Variadic,
                (true, true) => {
                    let reason = format!("`{}` is optional and variadic: a variadic one may be none", f.name);
                    let path = vec![side.to_owned(), f.name];
                    return Err(SignatureError { path, reason, instead: None });
                }
            };
            let class = f.class.map(|word| word.0);
            Ok(SignatureFormal { name: f.name, ty: f.ty, count, class, shape: f.shape })
        };
        let all = |side: &str, formals: Vec<FormalJson>| {
            formals.into_iter().map(|f| formal(side, f)).collect::<Result<Vec<_>, _>>()
        };
        let signature = Signature {
            domain: domain.to_owned(),
            name: name.to_owned(),
            inputs: all("inputs", self.inputs)?,
            outputs: all("outputs", self.outputs)?,
            types: self
                .types
                .into_iter()
                .map(|(var, of)| (var, of.into_iter().map(|word| word.0).collect()))
                .collect(),
            class: self.class.0,
        };
        signature.schema()
    }
}

/// The nearest of some words; an element type may be spelled as ONNX does.
fn near(found: &str, words: &[String]) -> String {
    let onnx = DType::from_onnx_name(found).map(|dtype| dtype.to_string()).filter(|d| words.contains(d));
    did_you_mean(onnx.as_deref().or_else(|| nearest(found, words.iter().map(String::as_str))))
}

/// The problem of a signature, with the nearest of the expected words.
pub fn reason(error: &SignatureError) -> String {
    let hint = error.instead.as_ref().map_or_else(String::new, |(found, words)| near(found, words));
    format!("{}{hint}", error.reason)
}

impl super::Policy {
    /// Declares an operator that no table has.
    ///
    /// # Errors
    /// If the signature contradicts itself, or the operator has another one already.
    pub fn add_signature(&mut self, signature: &Signature) -> Result<(), PolicyError> {
        let op = op_key(&signature.domain, &signature.name);
        let wrong = |reason| PolicyError::Signature { op: op.clone(), reason };
        let schema = signature.schema().map_err(|e| wrong(reason(&e)))?;
        self.add_schema(schema).map_err(wrong)
    }

    pub(super) fn add_schema(&mut self, schema: &'static OpSchema) -> Result<(), String> {
        let key = op_key(schema.domain, schema.name);
        match self.signatures.insert(key, schema) {
            Some(known) if known != schema => Err("it has another signature already".into()),
            Some(_) | None => Ok(()),
        }
    }

    /// The schemas of the operators that signatures describe, sorted by the names that lists call them.
    pub fn signatures(&self) -> impl Iterator<Item = (&str, &'static OpSchema)> {
        self.signatures.iter().map(|(key, &schema)| (key.as_str(), schema))
    }
}
