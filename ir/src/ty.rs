//! Types of values: element type and shape, and the containers ONNX has.

use crate::dtype::DType;
use crate::entity::Symbol;
use smallvec::SmallVec;

/// The extent of one axis.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dim {
    /// A number, 0 included.
    Known(u64),
    /// A name; two axes of one graph with the same name have the same extent.
    Sym(Symbol),
    /// Nothing is known.
    Unknown,
}

impl Dim {
    /// The number, if known.
    pub fn known(self) -> Option<u64> {
        match self {
            Dim::Known(n) => Some(n),
            Dim::Sym(_) | Dim::Unknown => None,
        }
    }

    /// The more precise of two descriptions of the same axis; `None` if they contradict each other.
    /// A number beats a name, a name beats nothing; of two different names the first is kept.
    pub fn meet(self, other: Dim) -> Option<Dim> {
        match (self, other) {
            (Dim::Known(a), Dim::Known(b)) => (a == b).then_some(self),
            (Dim::Known(_), _) => Some(self),
            (_, Dim::Known(_)) => Some(other),
            (Dim::Sym(_), _) => Some(self),
            (Dim::Unknown, _) => Some(other),
        }
    }

    /// Least upper bound of two dims: the facts that hold for both.
    pub fn join(self, other: Dim) -> Dim {
        if self == other { self } else { Dim::Unknown }
    }
}

/// The dims of one tensor, outermost first.
pub type Dims = SmallVec<[Dim; 4]>;

/// A shape: of unknown rank, or one [`Dim`] per axis.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Shape(pub Option<Dims>);

impl Shape {
    /// Nothing is known, not even the rank.
    pub fn unknown() -> Shape {
        Shape(None)
    }
    /// The shape of a scalar: rank 0.
    pub fn scalar() -> Shape {
        Shape(Some(Dims::new()))
    }
    /// A shape of known rank.
    pub fn of(dims: impl IntoIterator<Item = Dim>) -> Shape {
        Shape(Some(dims.into_iter().collect()))
    }
    /// A shape of known rank in which no dim is known.
    pub fn of_rank(rank: usize) -> Shape {
        Shape(Some(smallvec::smallvec![Dim::Unknown; rank]))
    }
    /// A fully known shape.
    pub fn known(dims: &[u64]) -> Shape {
        Shape::of(dims.iter().map(|&d| Dim::Known(d)))
    }
    /// The dims, if the rank is known.
    pub fn dims(&self) -> Option<&[Dim]> {
        self.0.as_deref()
    }
    /// The rank, if known.
    pub fn rank(&self) -> Option<usize> {
        self.0.as_ref().map(SmallVec::len)
    }
    /// All dims as numbers, if all are known.
    pub fn to_known(&self) -> Option<Vec<u64>> {
        self.dims()?.iter().map(|d| d.known()).collect()
    }
    /// Number of elements, if all dims are known and the product fits.
    pub fn element_count(&self) -> Option<u64> {
        self.dims()?.iter().try_fold(1u64, |n, d| n.checked_mul(d.known()?))
    }
    /// Axis-wise [`Dim::meet`]; `None` if ranks or numbers contradict each other.
    pub fn meet(&self, other: &Shape) -> Option<Shape> {
        match (&self.0, &other.0) {
            (None, _) => Some(other.clone()),
            (_, None) => Some(self.clone()),
            (Some(a), Some(b)) if a.len() == b.len() => {
                a.iter().zip(b).map(|(x, y)| x.meet(*y)).collect::<Option<Dims>>().map(|d| Shape(Some(d)))
            }
            (Some(_), Some(_)) => None,
        }
    }
    /// Least upper bound of two shapes: the facts that hold for both.
    pub fn join(&self, other: &Shape) -> Shape {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) if a.len() == b.len() => Shape::of(a.iter().zip(b).map(|(x, y)| x.join(*y))),
            (Some(_), Some(_)) | (None, _) | (_, None) => Shape::unknown(),
        }
    }
}

/// Element type and shape of a tensor.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TensorType {
    /// The element type.
    pub dtype: DType,
    /// The shape.
    pub shape: Shape,
}

impl TensorType {
    /// A tensor type from its parts.
    pub fn new(dtype: DType, shape: Shape) -> TensorType {
        TensorType { dtype, shape }
    }
    /// Bytes of a tensor of this type, if its shape is known.
    pub fn storage_bytes(&self) -> Option<u64> {
        self.dtype.storage_bytes(self.shape.element_count()?)
    }
}

/// The type of a value.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum Type {
    /// Not known: a result of a custom operator, or of something fed by one.
    #[default]
    Unknown,
    /// A dense tensor.
    Tensor(TensorType),
    /// A sparse tensor.
    Sparse(TensorType),
    /// A sequence of elements of one type.
    Sequence(Box<Type>),
    /// An element or nothing.
    Optional(Box<Type>),
    /// A map with keys of an integer or string type.
    Map {
        /// Key type.
        key: DType,
        /// Value type.
        value: Box<Type>,
    },
    /// A type only its operators understand.
    Opaque {
        /// Domain of the type's name.
        domain: Symbol,
        /// Name of the type.
        name: Symbol,
    },
}

impl Type {
    /// A dense tensor type.
    pub fn tensor(dtype: DType, shape: Shape) -> Type {
        Type::Tensor(TensorType { dtype, shape })
    }
    /// The tensor type, if this is a dense tensor.
    pub fn as_tensor(&self) -> Option<&TensorType> {
        match self {
            Type::Tensor(t) => Some(t),
            Type::Unknown
            | Type::Sparse(_)
            | Type::Sequence(_)
            | Type::Optional(_)
            | Type::Map { .. }
            | Type::Opaque { .. } => None,
        }
    }
    /// Element type of the dense tensor.
    pub fn dtype(&self) -> Option<DType> {
        self.as_tensor().map(|t| t.dtype)
    }
    /// Shape of the dense tensor.
    pub fn shape(&self) -> Option<&Shape> {
        self.as_tensor().map(|t| &t.shape)
    }
    /// The element type at the innermost level: of the tensor, of the sequence's or optional's elements.
    pub fn element_dtype(&self) -> Option<DType> {
        match self {
            Type::Tensor(t) | Type::Sparse(t) => Some(t.dtype),
            Type::Sequence(t) | Type::Optional(t) => t.element_dtype(),
            Type::Unknown | Type::Map { .. } | Type::Opaque { .. } => None,
        }
    }
    /// The same type with the innermost element type replaced.
    pub fn with_element_dtype(&self, dtype: DType) -> Type {
        match self {
            Type::Tensor(t) => Type::Tensor(TensorType { dtype, shape: t.shape.clone() }),
            Type::Sparse(t) => Type::Sparse(TensorType { dtype, shape: t.shape.clone() }),
            Type::Sequence(t) => Type::Sequence(Box::new(t.with_element_dtype(dtype))),
            Type::Optional(t) => Type::Optional(Box::new(t.with_element_dtype(dtype))),
            Type::Unknown | Type::Map { .. } | Type::Opaque { .. } => self.clone(),
        }
    }
    /// True if the two types are equal except for shapes; an unknown type agrees with every type.
    pub fn same_kind(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::Unknown, _) | (_, Type::Unknown) => true,
            (Type::Tensor(a), Type::Tensor(b)) | (Type::Sparse(a), Type::Sparse(b)) => a.dtype == b.dtype,
            (Type::Sequence(a), Type::Sequence(b)) | (Type::Optional(a), Type::Optional(b)) => a.same_kind(b),
            (Type::Map { key: a, value: x }, Type::Map { key: b, value: y }) => a == b && x.same_kind(y),
            (a, b) => a == b,
        }
    }
    /// Least upper bound of two types (of the two branches of an If, of the first and later iterations of a
    /// Loop); `None` if they are of different kinds or element types.
    pub fn join(&self, other: &Type) -> Option<Type> {
        Some(match (self, other) {
            (Type::Unknown, _) | (_, Type::Unknown) => Type::Unknown,
            (Type::Tensor(a), Type::Tensor(b)) if a.dtype == b.dtype => {
                Type::tensor(a.dtype, a.shape.join(&b.shape))
            }
            (Type::Sparse(a), Type::Sparse(b)) if a.dtype == b.dtype => {
                Type::Sparse(TensorType::new(a.dtype, a.shape.join(&b.shape)))
            }
            (Type::Sequence(a), Type::Sequence(b)) => Type::Sequence(Box::new(a.join(b)?)),
            (Type::Optional(a), Type::Optional(b)) => Type::Optional(Box::new(a.join(b)?)),
            (Type::Map { key: a, value: x }, Type::Map { key: b, value: y }) if a == b => {
                Type::Map { key: *a, value: Box::new(x.join(y)?) }
            }
            (a, b) if a == b => a.clone(),
            _ => return None,
        })
    }
    /// The more precise of two descriptions of one value; `None` if they contradict each other.
    pub fn meet(&self, other: &Type) -> Option<Type> {
        Some(match (self, other) {
            (Type::Unknown, t) | (t, Type::Unknown) => t.clone(),
            (Type::Tensor(a), Type::Tensor(b)) if a.dtype == b.dtype => {
                Type::tensor(a.dtype, a.shape.meet(&b.shape)?)
            }
            (Type::Sparse(a), Type::Sparse(b)) if a.dtype == b.dtype => {
                Type::Sparse(TensorType::new(a.dtype, a.shape.meet(&b.shape)?))
            }
            (Type::Sequence(a), Type::Sequence(b)) => Type::Sequence(Box::new(a.meet(b)?)),
            (Type::Optional(a), Type::Optional(b)) => Type::Optional(Box::new(a.meet(b)?)),
            (Type::Map { key: a, value: x }, Type::Map { key: b, value: y }) if a == b => {
                Type::Map { key: *a, value: Box::new(x.meet(y)?) }
            }
            (a, b) if a == b => a.clone(),
            _ => return None,
        })
    }
}

/// Dims for a message: `[2, ?, 3]`; symbolic dims show as `?` here, messages have no symbol table.
pub(crate) fn show(dims: &[Dim]) -> String {
    /// Dims that are shown before the rest is counted.
    const SHOWN: usize = 16;
    let known = |d: &Dim| d.known().map_or("?".into(), |n| n.to_string());
    let mut items: Vec<String> = dims.iter().take(SHOWN).map(known).collect();
    if dims.len() > SHOWN {
        items.push(format!("… and {} more", dims.len() - SHOWN));
    }
    format!("[{}]", items.join(", "))
}

/// A type for a message.
pub fn describe(ty: &Type) -> String {
    match ty {
        Type::Unknown => "an unknown type".into(),
        Type::Tensor(t) => match t.shape.dims() {
            Some(dims) => format!("{}{}", t.dtype, show(dims)),
            None => format!("{}[*]", t.dtype),
        },
        Type::Sparse(t) => format!("sparse {}", t.dtype),
        Type::Sequence(t) => format!("a sequence of {}", describe(t)),
        Type::Optional(t) => format!("an optional of {}", describe(t)),
        Type::Map { key, value } => format!("a map from {key} to {}", describe(value)),
        Type::Opaque { .. } => "an opaque type".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meet_and_join_of_shapes() {
        let a = Shape::of([Dim::Known(2), Dim::Unknown]);
        let b = Shape::known(&[2, 3]);
        assert_eq!(a.meet(&b), Some(b.clone()));
        assert_eq!(a.join(&b), Shape::of([Dim::Known(2), Dim::Unknown]));
        assert_eq!(Shape::known(&[2]).meet(&Shape::known(&[3])), None);
        assert_eq!(Shape::known(&[2]).join(&Shape::scalar()), Shape::unknown());
        assert_eq!(b.element_count(), Some(6));
        assert_eq!(Shape::known(&[u64::MAX, 2]).element_count(), None);
    }

    #[test]
    fn maps_meet_and_join_by_their_values() {
        let map = |key, shape| Type::Map { key, value: Box::new(Type::tensor(DType::F32, shape)) };
        let (open, scalar) = (map(DType::I64, Shape::unknown()), map(DType::I64, Shape::scalar()));
        assert_eq!(open.meet(&scalar), Some(scalar.clone()));
        assert_eq!(scalar.meet(&open), Some(scalar.clone()));
        assert_eq!(scalar.join(&map(DType::I64, Shape::known(&[1]))), Some(open.clone()));
        assert_eq!(scalar.meet(&map(DType::I64, Shape::known(&[1]))), None);
        assert_eq!(open.meet(&map(DType::String, Shape::unknown())), None);
        assert_eq!(open.join(&map(DType::String, Shape::unknown())), None);
    }
}
