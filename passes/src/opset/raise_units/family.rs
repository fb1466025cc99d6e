//! Kinds of units that are replaced together, by the words with which users name them.

use crate::analysis::units::Kind;
use std::collections::BTreeSet;
use std::fmt;

/// Kinds of units that are replaced together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Family {
    /// LayerNormalization, RMSNormalization, GroupNormalization and InstanceNormalization.
    Norms,
    /// Softmax and LogSoftmax.
    Softmax,
    /// Gelu, with and without the approximation.
    Gelu,
    /// Swish, QuickGelu among it.
    Swish,
    /// Mish.
    Mish,
    /// HardSwish.
    HardSwish,
}

impl Family {
    /// All families.
    pub const ALL: [Family; 6] =
        [Family::Norms, Family::Softmax, Family::Gelu, Family::Swish, Family::Mish, Family::HardSwish];

    /// The word.
    pub fn word(self) -> &'static str {
        match self {
            Family::Norms => "norms",
            Family::Softmax => "softmax",
            Family::Gelu => "gelu",
            Family::Swish => "swish",
            Family::Mish => "mish",
            Family::HardSwish => "hard-swish",
        }
    }

    /// The family of a kind; `None` if no operator of ONNX replaces the kind.
    pub fn of(kind: Kind) -> Option<Family> {
        match kind {
            Kind::LayerNorm | Kind::RmsNorm | Kind::GroupNorm | Kind::InstanceNorm => Some(Family::Norms),
            Kind::Softmax | Kind::LogSoftmax => Some(Family::Softmax),
            Kind::Gelu | Kind::GeluTanh => Some(Family::Gelu),
            Kind::QuickGelu | Kind::Swish => Some(Family::Swish),
            Kind::Mish => Some(Family::Mish),
            Kind::HardSwish => Some(Family::HardSwish),
            Kind::LogSumExp | Kind::Rotary | Kind::RotaryInterleaved => None,
        }
    }
}

/// A set of families; prints as words with `,` between them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Families(BTreeSet<Family>);

impl Families {
    /// The word for all families.
    pub const EVERY: &'static str = "all";
    /// The valid words, for messages.
    pub const WORDS: &'static str = "norms, softmax, gelu, swish, mish, hard-swish or all";

    /// All families.
    pub fn all() -> Families {
        Families(Family::ALL.into())
    }

    /// The families of these words; the error is a word that names no family.
    ///
    /// # Errors
    /// If a word is unknown.
    pub fn of_words<'w>(words: impl IntoIterator<Item = &'w str>) -> Result<Families, &'w str> {
        let mut families = Families::default();
        for word in words {
            match Family::ALL.iter().find(|family| family.word() == word) {
                Some(&family) => families.0.extend([family]),
                None if word == Families::EVERY => families.0.extend(Family::ALL),
                None => return Err(word),
            }
        }
        Ok(families)
    }

    /// The words of the families, in the usual order.
    pub fn words(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.0.iter().map(|family| family.word())
    }

    /// True if there is no family.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if a kind is in one of the families.
    pub fn has(&self, kind: Kind) -> bool {
        Family::of(kind).is_some_and(|family| self.0.contains(&family))
    }
}

impl fmt::Display for Families {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_families() {
        assert_eq!(Families::of_words(["gelu", "norms"]).unwrap().to_string(), "norms,gelu");
        assert_eq!(Families::of_words(["all"]).unwrap(), Families::all());
        assert_eq!(Families::of_words(["gelu", "elu"]), Err("elu"));
        for family in Family::ALL {
            assert!(Families::WORDS.contains(family.word()));
        }
    }
}
