//! Signatures: declarations by users of operators that the table does not have.
//!
//! A [`Signature`] is plain data, and [`Signature::schema`] makes an [`OpSchema`] of it, so that nodes of such an
//! operator are typed, classified and lowered like all others. Schemas live as long as the process: equal signatures
//! share one, and all together they have a bound.

use super::class::Class;
use super::lookup::{is_open, versions};
use super::table::{Arity, Declared, Formal, FormalType, OpKind, OpSchema, TypeSet, TypeVar};
use crate::dtype::DType;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Signature of an operator outside of ONNX's domains, declared by a user.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Signature {
    /// Its domain.
    pub domain: String,
    /// Its name.
    pub name: String,
    /// Formal operands.
    pub inputs: Vec<SignatureFormal>,
    /// Formal results.
    pub outputs: Vec<SignatureFormal>,
    /// Type variables, each with the element types that it may stand for.
    pub types: Vec<(String, Vec<DType>)>,
    /// The class of the operator.
    pub class: Class,
}

/// A formal operand or result of a signature.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SignatureFormal {
    /// Its name.
    pub name: String,
    /// A type variable, or the spelling of an element type.
    pub ty: String,
    /// The number of actuals.
    pub count: Count,
    /// Its class, if it is not the operator's.
    pub class: Option<Class>,
    /// The operand whose shape it has: of results.
    pub shape: Option<String>,
}

/// The number of actuals of a formal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Count {
    /// One.
    #[default]
    One,
    /// At most one.
    Optional,
    /// Any number, including zero; only for the last formal.
    Variadic,
}

/// Signature error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct SignatureError {
    /// The path to the problem, from the outermost word: `outputs`, `y`, `shape`.
    pub path: Vec<String>,
    /// The problem.
    pub reason: String,
    /// The word found and the words expected, for the nearest of them.
    pub instead: Option<(String, Vec<String>)>,
}

impl SignatureError {
    fn new(path: &[&str], reason: impl Into<String>) -> SignatureError {
        let path = path.iter().map(|&word| word.to_owned()).collect();
        SignatureError { path, reason: reason.into(), instead: None }
    }
}

/// Limit for the memory of the schemas of all signatures of a process.
const MAX_BYTES: usize = 64 << 20;

/// Schemas by signature, and about how many bytes they take. Looked up, and never seen otherwise.
static KNOWN: Mutex<(BTreeMap<Signature, &'static OpSchema>, usize)> = Mutex::new((BTreeMap::new(), 0));

impl Signature {
    /// The schema of this signature.
    ///
    /// # Errors
    /// If the operator is in the table or in a domain of ONNX, or the signature contradicts itself.
    pub fn schema(&self) -> Result<&'static OpSchema, SignatureError> {
        self.check()?;
        let mut signature = self.clone();
        for (_, dtypes) in &mut signature.types {
            dtypes.sort_unstable_by_key(|d| d.number());
        }
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(schema) = known.0.get(&signature) {
            return Ok(schema);
        }
        // The schema and the key.
        let bytes = 2 * signature.bytes();
        if known.1 + bytes > MAX_BYTES {
            return Err(SignatureError::new(&[], "there are too many signatures in this process"));
        }
        let schema = signature.leak();
        known.1 += bytes;
        known.0.insert(signature, schema);
        Ok(schema)
    }

    /// The signature that a schema was made of, if it was.
    pub fn of(schema: &OpSchema) -> Option<Signature> {
        let declared = schema.declared?;
        let formal = |formal: &Formal, class: Option<Class>, shape: Option<u8>| SignatureFormal {
            name: formal.name.to_owned(),
            ty: match formal.ty {
                FormalType::Var(var) => schema.type_vars[usize::from(var)].name.to_owned(),
                FormalType::Is(set) => set.tensor_dtypes().next().map_or_else(String::new, |d| d.to_string()),
            },
            count: match formal.arity {
                Arity::Single => Count::One,
                Arity::Optional => Count::Optional,
                Arity::Variadic { .. } => Count::Variadic,
            },
            class,
            shape: shape.map(|i| schema.inputs[usize::from(i)].name.to_owned()),
        };
        let inputs = schema.inputs.iter().zip(declared.inputs).map(|(f, &class)| formal(f, class, None));
        let outputs = schema.outputs.iter().zip(declared.outputs).zip(declared.shapes);
        Some(Signature {
            domain: schema.domain.to_owned(),
            name: schema.name.to_owned(),
            inputs: inputs.collect(),
            outputs: outputs.map(|((f, &class), &shape)| formal(f, class, shape)).collect(),
            types: schema
                .type_vars
                .iter()
                .map(|v| (v.name.to_owned(), v.allowed.tensor_dtypes().collect()))
                .collect(),
            class: declared.class,
        })
    }

    fn check(&self) -> Result<(), SignatureError> {
        let Signature { domain, name, .. } = self;
        if name.is_empty() {
            return Err(SignatureError::new(&[], "the name of the operator is empty"));
        }
        if !is_open(domain) {
            let domain = if domain.is_empty() { "ai.onnx" } else { domain };
            let reason = format!("`{domain}` is a domain of ONNX, which defines its operators");
            return Err(SignatureError::new(&[], reason));
        }
        if !versions(domain, name).is_empty() {
            return Err(SignatureError::new(&[], "the operator is one that ampc knows"));
        }
        let words = [self.types.len(), self.inputs.len(), self.outputs.len()];
        if words.iter().any(|&n| n > usize::from(u8::MAX)) {
            return Err(SignatureError::new(&[], "more than 255 operands, results or type variables"));
        }
        for (i, (var, dtypes)) in self.types.iter().enumerate() {
            let wrong = |reason| Err(SignatureError::new(&["types", var], reason));
            if !is_word(var) || var.parse::<DType>().is_ok() {
                return wrong(format!("`{var}` is not a name of a type variable, such as `T1`"));
            }
            if self.types[..i].iter().any(|(other, _)| other == var) {
                return wrong(format!("a second type variable `{var}`"));
            }
            if dtypes.is_empty() {
                return wrong(format!("`{var}` has no element types"));
            }
            if let Some(dtype) = dtypes.iter().find(|&&d| !has_bit(d)) {
                return wrong(format!("`{dtype}` is not an element type that an operator may have"));
            }
            if dtypes.iter().enumerate().any(|(i, dtype)| dtypes[..i].contains(dtype)) {
                return wrong(format!("`{var}` has an element type twice"));
            }
            if !self.inputs.iter().chain(&self.outputs).any(|f| f.ty == *var) {
                return wrong(format!("nothing is of type `{var}`"));
            }
        }
        self.check_formals("inputs", &self.inputs)?;
        self.check_formals("outputs", &self.outputs)?;
        Ok(())
    }

    fn check_formals(&self, side: &str, formals: &[SignatureFormal]) -> Result<(), SignatureError> {
        for (i, formal) in formals.iter().enumerate() {
            let name = formal.name.as_str();
            let wrong = |reason: String| Err(SignatureError::new(&[side, name], reason));
            if name.is_empty() {
                return wrong("a name is empty".into());
            }
            if formals[..i].iter().any(|other| other.name == name) {
                return wrong(format!("a second `{name}` in `{side}`"));
            }
            if formal.count == Count::Variadic && i + 1 < formals.len() {
                return wrong(format!("`{name}` is variadic, but not the last of `{side}`"));
            }
            let var = self.types.iter().find(|(var, _)| *var == formal.ty);
            match (var, formal.ty.parse::<DType>()) {
                (Some(_), _) => {}
                (None, Ok(dtype)) if has_bit(dtype) => {}
                (None, _) => {
                    let vars = self.types.iter().map(|(var, _)| var.clone());
                    let dtypes = DType::ALL.iter().map(ToString::to_string);
                    return Err(SignatureError {
                        instead: Some((formal.ty.clone(), vars.chain(dtypes).collect())),
                        ..SignatureError::new(
                            &[side, name, "type", &formal.ty],
                            format!(
                                "`{}` is neither a type variable of `types` nor an element type",
                                formal.ty
                            ),
                        )
                    });
                }
            }
            if side == "outputs" {
                self.check_result(formal)?;
            } else if formal.shape.is_some() {
                return Err(SignatureError::new(&[side, name, "shape"], "`shape` is for outputs"));
            }
        }
        Ok(())
    }

    /// That type and shape of a result follow from the operands.
    fn check_result(&self, formal: &SignatureFormal) -> Result<(), SignatureError> {
        let (side, name) = ("outputs", formal.name.as_str());
        // The type of a result comes from an operand, or there is but one.
        let var = self.types.iter().find(|(var, _)| *var == formal.ty);
        if let Some((var, dtypes)) = var
            && dtypes.len() > 1
            && !self.inputs.iter().any(|input| input.ty == *var)
        {
            let reason = format!("`{name}` is of type `{var}`, which no input has: which one is it?");
            return Err(SignatureError::new(&[side, name], reason));
        }
        let Some(shape) = &formal.shape else { return Ok(()) };
        let place = [side, name, "shape", shape];
        match self.inputs.iter().find(|input| input.name == *shape) {
            Some(input) if input.count == Count::Variadic => {
                let reason = format!("`{shape}` is variadic, so its shape is not one");
                Err(SignatureError::new(&place, reason))
            }
            Some(_) => Ok(()),
            None => {
                let names = self.inputs.iter().map(|input| input.name.clone()).collect();
                Err(SignatureError {
                    instead: Some((shape.clone(), names)),
                    ..SignatureError::new(&place, format!("no input is called `{shape}`"))
                })
            }
        }
    }

    /// About how many bytes the schema takes.
    fn bytes(&self) -> usize {
        let formals = self.inputs.iter().chain(&self.outputs);
        let formals: usize = formals.map(|f| f.name.len() + f.ty.len() + size_of::<Formal>() + 64).sum();
        let vars: usize = self.types.iter().map(|(var, _)| var.len() + size_of::<TypeVar>() + 64).sum();
        size_of::<OpSchema>() + self.domain.len() + self.name.len() + formals + vars
    }

    /// The schema, once and for all. The signature is a valid one.
    fn leak(&self) -> &'static OpSchema {
        let var = |(name, dtypes): &(String, Vec<DType>)| TypeVar { name: word(name), allowed: set(dtypes) };
        let formal = |f: &SignatureFormal| Formal {
            name: word(&f.name),
            ty: match (self.types.iter().position(|(var, _)| *var == f.ty), f.ty.parse()) {
                (Some(var), _) => FormalType::Var(narrow(var)),
                (None, Ok(dtype)) => FormalType::Is(set(&[dtype])),
                (None, Err(_)) => FormalType::Is(TypeSet::EMPTY),
            },
            arity: match f.count {
                Count::One => Arity::Single,
                Count::Optional => Arity::Optional,
                Count::Variadic => Arity::Variadic { min: 0, homogeneous: true },
            },
        };
        let shape = |f: &SignatureFormal| {
            let at = self.inputs.iter().position(|input| Some(&input.name) == f.shape.as_ref());
            at.map(narrow)
        };
        let inputs = list(self.inputs.iter().map(formal));
        let outputs = list(self.outputs.iter().map(formal));
        let declared = Declared {
            class: self.class,
            inputs: list(self.inputs.iter().map(|f| f.class)),
            outputs: list(self.outputs.iter().map(|f| f.class)),
            shapes: list(self.outputs.iter().map(shape)),
        };
        Box::leak(Box::new(OpSchema {
            kind: OpKind::Declared,
            domain: word(&self.domain),
            name: word(&self.name),
            since: 1,
            deprecated: false,
            beside_onnx: false,
            type_vars: list(self.types.iter().map(var)),
            inputs,
            outputs,
            n_inputs: limits(&self.inputs),
            n_outputs: limits(&self.outputs),
            attrs: &[],
            is_function: false,
            declared: Some(Box::leak(Box::new(declared))),
        }))
    }
}

/// Least and greatest number of actuals: optional formals at the end may be absent.
fn limits(formals: &[SignatureFormal]) -> (u32, u32) {
    let least = formals.iter().rposition(|f| f.count == Count::One).map_or(0, |last| last + 1);
    let variadic = formals.last().is_some_and(|f| f.count == Count::Variadic);
    let greatest = if variadic { u32::MAX } else { u32::from(narrow(formals.len())) };
    (u32::from(narrow(least)), greatest)
}

/// True if a name of a type variable is unambiguous in pins and in the text form.
fn is_word(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// True if the element type has a bit in a [`TypeSet`].
fn has_bit(dtype: DType) -> bool {
    set(&[dtype]) != TypeSet::EMPTY
}

fn set(dtypes: &[DType]) -> TypeSet {
    let bit = |d: &DType| DType::ALL.contains(d).then(|| u32::try_from(d.number()).ok()).flatten();
    let mask = dtypes.iter().filter_map(bit).filter(|&n| n < 32).fold(0, |mask, n| mask | 1 << n);
    TypeSet { tensor: mask, ..TypeSet::EMPTY }
}

fn narrow(index: usize) -> u8 {
    u8::try_from(index).expect("a valid signature has at most 255 of each")
}

fn word(text: &str) -> &'static str {
    Box::leak(text.into())
}

fn list<T>(items: impl Iterator<Item = T>) -> &'static [T] {
    Box::leak(items.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formal(name: &str, ty: &str) -> SignatureFormal {
        let (name, ty) = (name.to_owned(), ty.to_owned());
        SignatureFormal { name, ty, count: Count::One, class: None, shape: None }
    }

    fn signature() -> Signature {
        Signature {
            domain: "acme".into(),
            name: "Scale".into(),
            inputs: vec![
                formal("x", "T"),
                SignatureFormal {
                    count: Count::Optional,
                    class: Some(Class::Fixed),
                    ..formal("scale", "f32")
                },
                SignatureFormal { count: Count::Variadic, ..formal("rest", "T") },
            ],
            outputs: vec![SignatureFormal { shape: Some("x".into()), ..formal("y", "T") }],
            types: vec![("T".into(), vec![DType::F32, DType::F16])],
            class: Class::Infer,
        }
    }

    #[test]
    fn equal_signatures_share_a_schema_that_says_what_they_do() {
        let schema = signature().schema().unwrap();
        assert!(std::ptr::eq(schema, signature().schema().unwrap()));
        assert_eq!(Signature::of(schema), Some(signature()));
        assert_eq!((schema.n_inputs, schema.n_outputs), ((1, u32::MAX), (1, 1)));
        let other = Signature { class: Class::Deny, ..signature() };
        assert!(!std::ptr::eq(schema, other.schema().unwrap()));
        assert_eq!(super::super::schema_class(schema, DType::F16), Class::Infer);
        assert_eq!(Signature::of(OpKind::Relu.newest()), None);
    }

    type Change<'a> = &'a dyn Fn(&mut Signature);

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused = |change: &dyn Fn(&mut Signature)| {
            let mut signature = signature();
            change(&mut signature);
            let error = signature.schema().unwrap_err();
            (error.path.join(" "), error.reason)
        };
        let cases: [(Change<'_>, &str, &str); 12] = [
            (&|s| s.domain.clear(), "", "`ai.onnx` is a domain of ONNX, which defines its operators"),
            (
                &|s| (s.domain, s.name) = ("com.microsoft".into(), "Gelu".into()),
                "",
                "the operator is one that ampc knows",
            ),
            (&|s| s.name.clear(), "", "the name of the operator is empty"),
            (&|s| s.types[0].1.clear(), "types T", "`T` has no element types"),
            (&|s| s.types[0].1.push(DType::F32), "types T", "`T` has an element type twice"),
            (&|s| s.types.push(("U".into(), vec![DType::I64])), "types U", "nothing is of type `U`"),
            (
                &|s| s.inputs[0].ty = "F".into(),
                "inputs x type F",
                "`F` is neither a type variable of `types` nor an element type",
            ),
            (&|s| s.inputs[1].name = "x".into(), "inputs x", "a second `x` in `inputs`"),
            (&|s| s.inputs.swap(0, 2), "inputs rest", "`rest` is variadic, but not the last of `inputs`"),
            (&|s| s.outputs[0].shape = Some("z".into()), "outputs y shape z", "no input is called `z`"),
            (
                &|s| s.outputs[0].shape = Some("rest".into()),
                "outputs y shape rest",
                "`rest` is variadic, so its shape is not one",
            ),
            (&|s| s.inputs.clear(), "outputs y", "`y` is of type `T`, which no input has: which one is it?"),
        ];
        for (change, path, reason) in cases {
            assert_eq!(refused(change), (path.to_owned(), reason.to_owned()));
        }
    }
}
