//! Elements of small integer tensors, as far as inference follows them.

use crate::entity::Symbol;
use crate::ty::Dim;

/// One element of a small integer tensor.
///
/// Unlike a [`Dim`] it may be negative: the target of a Reshape is often computed by joining -1 with parts of a
/// shape.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Int {
    /// A number.
    Known(i64),
    /// The extent that a symbolic dim stands for, so a number that is not negative.
    Sym(Symbol),
    /// Nothing is known.
    Unknown,
}

impl Int {
    /// The number, if known.
    pub fn known(self) -> Option<i64> {
        match self {
            Int::Known(n) => Some(n),
            Int::Sym(_) | Int::Unknown => None,
        }
    }

    /// The extent of an axis that has this element as its size; unknown for negative numbers, which have a
    /// meaning of their own wherever they are allowed.
    pub fn dim(self) -> Dim {
        match self {
            Int::Known(n) => u64::try_from(n).map_or(Dim::Unknown, Dim::Known),
            Int::Sym(s) => Dim::Sym(s),
            Int::Unknown => Dim::Unknown,
        }
    }
}

impl From<Dim> for Int {
    fn from(dim: Dim) -> Int {
        match dim {
            Dim::Known(n) => i64::try_from(n).map_or(Int::Unknown, Int::Known),
            Dim::Sym(s) => Int::Sym(s),
            Dim::Unknown => Int::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dims_become_ints_and_back() {
        for dim in [Dim::Known(0), Dim::Known(7), Dim::Unknown] {
            assert_eq!(Int::from(dim).dim(), dim);
        }
        assert_eq!(Int::from(Dim::Known(u64::MAX)), Int::Unknown);
        assert_eq!(Int::Known(-1).dim(), Dim::Unknown);
    }
}
