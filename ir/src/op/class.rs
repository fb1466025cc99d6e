//! Precision classes.

use std::fmt;
use std::str::FromStr;

/// The behaviour of an operand or result when a model is lowered to a 16-bit format.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// Always low precision: the operator AMP exists for.
    Allow,
    /// No numeric effect: takes the precision of its neighbours, is not tainted itself.
    Clear,
    /// Safe unless a deny operator is upstream.
    Infer,
    /// Takes the widest precision of its operands.
    Promote,
    /// Turns floats into decisions: accepts any float type, never causes a narrowing cast.
    Discrete,
    /// Numerically dangerous: stays fp32 and taints infer operators downstream.
    Deny,
    /// Always keeps its type: the schema, the meaning or the user requires it.
    Fixed,
}

impl Class {
    /// All classes, from the freest to the strictest.
    pub const ALL: [Class; 7] = [
        Class::Allow,
        Class::Clear,
        Class::Infer,
        Class::Promote,
        Class::Discrete,
        Class::Deny,
        Class::Fixed,
    ];

    /// The spelling in text form, policies and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Allow => "allow",
            Class::Clear => "clear",
            Class::Infer => "infer",
            Class::Promote => "promote",
            Class::Discrete => "discrete",
            Class::Deny => "deny",
            Class::Fixed => "fixed",
        }
    }

    /// The stricter of two classes: the class of a type variable whose formals differ.
    pub fn strictest(self, other: Class) -> Class {
        self.max(other)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// No class has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a precision class; expected allow, clear, infer, promote, discrete, deny or fixed")]
pub struct UnknownClass(pub String);

impl FromStr for Class {
    type Err = UnknownClass;
    fn from_str(s: &str) -> Result<Class, UnknownClass> {
        Class::ALL.into_iter().find(|c| c.as_str() == s).ok_or_else(|| UnknownClass(s.to_owned()))
    }
}
