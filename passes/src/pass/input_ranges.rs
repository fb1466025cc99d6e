//! Ranges of inputs, as the user gives them: `x=0:1`.

use crate::spelling::suggest::{did_you_mean, nearest};
use crate::spelling::words::{quoted, words};
use ampc_ir::Module;
use ampc_ir::verify::name_of;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The ranges of inputs of a model: by name, the least and the greatest element. The text form is `x=0:1+y=-3:3`; an
/// entry with other characters than those of a word is in quotes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct InputRanges(BTreeMap<String, (f64, f64)>);

/// True if numbers between these two lie far from 0: their middle is farther from 0 than they are from each other.
pub(crate) fn is_uncentered(lo: f64, hi: f64) -> bool {
    f64::midpoint(lo, hi).abs() > hi - lo
}

/// Invalid range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("expected INPUT=LO:HI with two finite numbers, the smaller number first")]
pub struct InvalidRange;

/// A range is given for an input that the model does not have.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`range`: the model has no input `{name}`{hint}")]
pub struct UnknownInput {
    /// The name.
    pub name: String,
    /// A name that is nearly the same, as a question.
    pub hint: String,
}

impl InputRanges {
    /// True if no input has a range.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The range of an input.
    pub fn get(&self, name: &str) -> Option<(f64, f64)> {
        self.0.get(name).copied()
    }

    /// Sets the range of an input.
    ///
    /// # Errors
    /// The name, if the input has another range.
    pub fn insert(&mut self, name: String, range: (f64, f64)) -> Result<(), String> {
        match self.0.insert(name.clone(), range) {
            Some(before) if before != range => Err(name),
            _ => Ok(()),
        }
    }

    /// Checks that each name is the name of an input of the main graph.
    ///
    /// # Errors
    /// If there is no such input.
    pub(crate) fn check(&self, module: &Module) -> Result<(), UnknownInput> {
        let inputs = module.graph(module.main()).inputs().iter();
        let inputs: Vec<String> = inputs.map(|&value| name_of(module, value)).collect();
        match self.0.keys().find(|name| !inputs.contains(name)) {
            None => Ok(()),
            Some(name) => {
                let hint = did_you_mean(nearest(name, inputs.iter().map(String::as_str)));
                Err(UnknownInput { name: name.clone(), hint })
            }
        }
    }
}

/// Reads the range of an input: `x=0:1`.
///
/// # Errors
/// If the text has another form, a number is not finite, or the first number is larger than the second.
pub fn range_of(text: &str) -> Result<(String, (f64, f64)), InvalidRange> {
    let number = |text: &str| text.parse().ok().filter(|number: &f64| number.is_finite());
    let read = || {
        let (name, range) = text.rsplit_once('=')?;
        let (lo, hi) = range.split_once(':')?;
        let (lo, hi) = (number(lo)?, number(hi)?);
        (!name.is_empty() && lo <= hi).then(|| (name.to_owned(), (lo, hi)))
    };
    read().ok_or(InvalidRange)
}

impl FromIterator<(String, (f64, f64))> for InputRanges {
    fn from_iter<T: IntoIterator<Item = (String, (f64, f64))>>(entries: T) -> InputRanges {
        InputRanges(entries.into_iter().collect())
    }
}

impl FromStr for InputRanges {
    type Err = InvalidRange;
    fn from_str(text: &str) -> Result<InputRanges, InvalidRange> {
        let entries = if text.is_empty() { Some(Vec::new()) } else { words(text) };
        let mut ranges = InputRanges::default();
        for entry in entries.ok_or(InvalidRange)? {
            let (name, range) = range_of(&entry)?;
            ranges.insert(name, range).map_err(|_| InvalidRange)?;
        }
        Ok(ranges)
    }
}

impl fmt::Display for InputRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.0.iter().map(|(name, (lo, hi))| quoted(&format!("{name}={lo}:{hi}")));
        f.write_str(&entries.collect::<Vec<_>>().join("+"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_printed_as_they_are_read() {
        for text in ["", "x=0:1", "x=-3:3+y=0:1000000", "\"a,b=0:1\"+x=0.5:0.5"] {
            assert_eq!(text.parse::<InputRanges>().unwrap().to_string(), text);
        }
        let named = range_of("a=b=-1e-3:inf");
        assert_eq!(named, Err(InvalidRange));
        assert_eq!(range_of("a=b=-1e-3:2"), Ok(("a=b".to_owned(), (-1e-3, 2.0))));
        for text in ["x", "x=1", "x=1:0", "=0:1", "x=nan:1", "x=0:1:2"] {
            assert_eq!(range_of(text), Err(InvalidRange), "{text}");
        }
        assert_eq!("x=0:1+x=0:2".parse::<InputRanges>(), Err(InvalidRange));
    }
}
