//! Extremes of values that were observed on data: `%x=120000+@block/mul:0=-70000+%t=200:340`.

mod places;

use self::places::Places;
use crate::graph::flow::{self, Var};
use crate::pass::input_ranges::is_uncentered;
use crate::spelling::words::{quoted, words};
use ampc_ir::convert::{max_finite, min_normal};
use ampc_ir::op::{self, Work};
use ampc_ir::{DType, Module, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// A value of a model: an input by its name, or a result of a node by the path of the node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ObservedValue {
    /// An input of the main graph.
    Input(String),
    /// A result of a node.
    Result {
        /// The path of the node; in a function, the path of its call.
        node: String,
        /// The index of the result.
        slot: u32,
    },
}

/// Two facts of values on data: the number of largest magnitude of a value that comes near an end of the range of a format,
/// or leaves it; and the least and the greatest number of a value that lies far from 0, on one side of it.
///
/// The text form is `%x=120000+@block/mul:0=-70000+%t=200:340`: `%` stands before an input, `@` before the path of a node, and
/// the index of the result follows the path. An entry with other characters than those of a word is in quotes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Observed {
    numbers: BTreeMap<ObservedValue, f64>,
    offsets: BTreeMap<ObservedValue, (f64, f64)>,
}

/// Invalid entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "expected %INPUT or @NODE:RESULT, then =NUMBER with a finite number other than 0, or =LO:HI with finite numbers whose middle \
     is farther from 0 than HI - LO"
)]
pub struct InvalidObservation;

/// An observation of a value.
enum Entry {
    /// The number of largest magnitude.
    Magnitude(f64),
    /// The least and the greatest number.
    Range(f64, f64),
}

impl Observed {
    /// True if there are no values.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty() && self.offsets.is_empty()
    }

    /// The values near an end of the range with their numbers of largest magnitude, in the order of the text form.
    pub fn near_ends(&self) -> impl ExactSizeIterator<Item = (&ObservedValue, f64)> {
        self.numbers.iter().map(|(value, &number)| (value, number))
    }

    /// The values far from 0 with their least and greatest numbers, in the order of the text form.
    pub fn far_from_zero(&self) -> impl ExactSizeIterator<Item = (&ObservedValue, (f64, f64))> {
        self.offsets.iter().map(|(value, &offset)| (value, offset))
    }

    /// Adds the values that lie far from 0, of values with their least and greatest numbers: the middle of the two numbers is
    /// farther from 0 than they are from each other.
    #[must_use]
    pub fn with_far_from_zero(
        mut self,
        values: impl IntoIterator<Item = (ObservedValue, f64, f64)>,
    ) -> Observed {
        // As they are printed, so that they are read again.
        let printed = |number: f64| shortest(number).parse().unwrap_or(number);
        let values = values.into_iter().map(|(place, lo, hi)| (place, (printed(lo), printed(hi))));
        self.offsets.extend(values.filter(|&(_, (lo, hi))| lo < hi && is_uncentered(lo, hi)));
        self
    }

    /// The values that a module does not have.
    pub fn unknown_in(&self, module: &Module) -> Vec<&ObservedValue> {
        let places = Places::of(module);
        let known: BTreeSet<&ObservedValue> = self.numbers.keys().chain(self.offsets.keys()).collect();
        known.into_iter().filter(|value| places.find(value).is_empty()).collect()
    }

    /// The results of products of matrices among these values.
    #[must_use]
    pub fn of_products(self, module: &Module) -> Observed {
        let places = Places::of(module);
        let is_product = |value: Value| {
            let kind = module.producer(value).and_then(|(node, _)| Some(module.node(node).schema()?.kind));
            kind.is_some_and(|kind| op::work(kind) == Work::Product)
        };
        let is_made = |place: &ObservedValue| places.find(place).into_iter().any(is_product);
        let numbers = self.numbers.into_iter().filter(|(place, _)| is_made(place)).collect();
        Observed { numbers, ..Observed::default() }
    }

    /// The value that is nearest to an end of the range of a format, or furthest beyond it.
    pub fn worst(&self, format: DType) -> Option<(&ObservedValue, f64)> {
        self.near_ends().max_by(|(_, a), (_, b)| danger(*a, format).total_cmp(&danger(*b, format)))
    }

    /// The values of a module, with their numbers of largest magnitude. Values that the module does not have are left
    /// out: a pass may have replaced their nodes.
    ///
    /// Inputs of bodies and functions have no statistics of their own. Each gets the number of the operand or loop-carried
    /// value that is bound to it:
    ///
    /// ```text
    /// @big:0=1e5                 %b of the main graph goes up to 1e5
    /// %y = If(%c) { %b … }       so does the capture of %b
    /// %z = f(%b)                 and the input %x of the function f
    /// ```
    pub(crate) fn values(&self, module: &Module) -> FxHashMap<Value, f64> {
        let mut found: FxHashMap<Value, f64> = FxHashMap::default();
        if self.numbers.is_empty() {
            return found;
        }
        let places = Places::of(module);
        for (place, &number) in &self.numbers {
            // Calls of one function share its values.
            for value in places.find(place) {
                widen(&mut found, value, number);
            }
        }
        let ports = ports(module);
        // In each round, numbers enter bodies and functions one level deeper.
        loop {
            let mut has_changed = false;
            for &port in &ports {
                let numbers =
                    flow::operands_of(module, port).filter_map(|(_, value)| number_of(module, &found, value));
                let Some(number) = numbers.reduce(larger) else { continue };
                for (_, value) in flow::results_of(module, port) {
                    has_changed |= module.producer(value).is_none() && widen(&mut found, value, number);
                }
            }
            if !has_changed {
                return found;
            }
        }
    }
}

impl Observed {
    fn add(&mut self, place: ObservedValue, number: f64) {
        let known = self.numbers.entry(place).or_default();
        *known = larger(*known, number);
    }

    /// The values of a module that lie far from 0, with their least and greatest numbers. A value that enters a body or function
    /// lies far from 0 if a value does that is bound to it: a norm inside subtracts the mean of each of them.
    pub(crate) fn offsets(&self, module: &Module) -> FxHashMap<Value, (f64, f64)> {
        let mut found: FxHashMap<Value, (f64, f64)> = FxHashMap::default();
        if self.offsets.is_empty() {
            return found;
        }
        let places = Places::of(module);
        for (place, &offset) in &self.offsets {
            found.extend(places.find(place).into_iter().map(|value| (value, offset)));
        }
        let ports = ports(module);
        // In each round, values enter bodies and functions one level deeper.
        loop {
            let before = found.len();
            for &port in &ports {
                let mut bound = flow::operands_of(module, port);
                let Some(offset) = bound.find_map(|(_, value)| offset_of(module, &found, value)) else {
                    continue;
                };
                for (_, value) in flow::results_of(module, port) {
                    if module.producer(value).is_none() {
                        found.entry(value).or_insert(offset);
                    }
                }
            }
            if found.len() == before {
                return found;
            }
        }
    }

    /// Keeps the values far from 0 that are in `of` alone.
    pub(crate) fn retain_offsets(&mut self, module: &Module, of: &FxHashSet<Value>) {
        let places = Places::of(module);
        self.offsets.retain(|place, _| places.find(place).iter().any(|value| of.contains(value)));
    }
}

/// The variables of values that enter or leave a body or function, a graph before its bodies.
fn ports(module: &Module) -> Vec<Var> {
    let vars = flow::nodes(module).into_iter().flat_map(|node| flow::vars(module, node));
    vars.filter(|&var| flow::is_port(module, var)).collect()
}

/// The least and the greatest number of a value that lies far from 0, behind captures and casts.
pub(crate) fn offset_of(
    module: &Module,
    offsets: &FxHashMap<Value, (f64, f64)>,
    value: Value,
) -> Option<(f64, f64)> {
    let made = made(module, value);
    offsets.get(&made).or_else(|| offsets.get(&flow::behind_casts(module, made))).copied()
}

/// The value behind captures and casts.
pub(crate) fn made(module: &Module, value: Value) -> Value {
    flow::resolve_captures(module, flow::behind_inserted(module, value))
}

/// The number that was observed for a value, behind captures and casts.
pub(crate) fn number_of(module: &Module, observed: &FxHashMap<Value, f64>, value: Value) -> Option<f64> {
    let made = made(module, value);
    // A pass may have moved a cast of the author, whose result then has no observation.
    let number = observed.get(&made).or_else(|| observed.get(&flow::behind_casts(module, made)));
    number.copied()
}

/// How near a number is to an end of the range of a format: 1 at the largest finite and the smallest normal number, and
/// more than 1 beyond them.
pub(crate) fn danger(number: f64, format: DType) -> f64 {
    let (most, least) = (max_finite(format).unwrap_or(f64::MAX), min_normal(format).unwrap_or(0.0));
    (number.abs() / most).max(least / number.abs())
}

/// The number of larger magnitude.
fn larger(a: f64, b: f64) -> f64 {
    if b.abs() > a.abs() { b } else { a }
}

/// Records a number for a value; true if it has a larger magnitude than the known number.
fn widen(found: &mut FxHashMap<Value, f64>, value: Value, number: f64) -> bool {
    let known = found.entry(value).or_default();
    let is_larger = number.abs() > known.abs();
    if is_larger {
        *known = number;
    }
    is_larger
}

impl FromIterator<(ObservedValue, f64)> for Observed {
    fn from_iter<T: IntoIterator<Item = (ObservedValue, f64)>>(entries: T) -> Observed {
        let mut observed = Observed::default();
        for (place, number) in entries {
            observed.add(place, number);
        }
        observed
    }
}

/// Reads an entry.
fn entry_of(text: &str) -> Option<(ObservedValue, Entry)> {
    let (place, fact) = text.rsplit_once('=')?;
    let number = |text: &str| text.parse().ok().filter(|&number: &f64| number != 0.0 && number.is_finite());
    let fact = match fact.split_once(':') {
        None => Entry::Magnitude(number(fact)?),
        Some((lo, hi)) => {
            let (lo, hi) = (number(lo)?, number(hi)?);
            (lo < hi && is_uncentered(lo, hi)).then_some(Entry::Range(lo, hi))?
        }
    };
    let place = match (place.strip_prefix('%'), place.strip_prefix('@')) {
        (Some(name), _) if !name.is_empty() => ObservedValue::Input(name.to_owned()),
        (None, Some(result)) => {
            let (node, slot) = result.rsplit_once(':').filter(|(node, _)| !node.is_empty())?;
            ObservedValue::Result { node: node.to_owned(), slot: slot.parse().ok()? }
        }
        _ => return None,
    };
    Some((place, fact))
}

impl FromStr for Observed {
    type Err = InvalidObservation;
    fn from_str(text: &str) -> Result<Observed, InvalidObservation> {
        let entries = if text.is_empty() { Some(Vec::new()) } else { words(text) };
        let entries = entries.ok_or(InvalidObservation)?;
        let mut observed = Observed::default();
        for entry in entries {
            match entry_of(&entry).ok_or(InvalidObservation)? {
                (place, Entry::Magnitude(number)) => observed.add(place, number),
                (place, Entry::Range(lo, hi)) => observed.offsets.extend([(place, (lo, hi))]),
            }
        }
        Ok(observed)
    }
}

impl fmt::Display for ObservedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObservedValue::Input(name) => write!(f, "%{name}"),
            ObservedValue::Result { node, slot } => write!(f, "@{node}:{slot}"),
        }
    }
}

/// The shortest text of a number; very small and very large numbers have an exponent.
pub fn shortest(number: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "an f32 has a shorter text, if it is the same number"
    )]
    let short = number as f32;
    let is_ordinary = (1e-3..1e9).contains(&number.abs());
    match (f64::from(short) == number, is_ordinary) {
        (true, true) => short.to_string(),
        (true, false) => format!("{short:e}"),
        (false, true) => number.to_string(),
        (false, false) => format!("{number:e}"),
    }
}

impl fmt::Display for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = self.numbers.iter().map(|(place, &number)| format!("{place}={}", shortest(number)));
        let offsets = self.offsets.iter();
        let offsets = offsets.map(|(place, &(lo, hi))| format!("{place}={}:{}", shortest(lo), shortest(hi)));
        let entries = numbers.chain(offsets).map(|entry| quoted(&entry));
        f.write_str(&entries.collect::<Vec<_>>().join("+"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observations_are_printed_as_they_are_read() {
        for text in [
            "%t=200:340",
            "%x=2+%x=-3:-2+@a:1=140.5:141",
            "",
            "%x=100000",
            "@block/mul:0=-70000",
            "%x=2+\"@a b:1=70000.5\"",
            "%x=6.7e-5",
        ] {
            assert_eq!(text.parse::<Observed>().unwrap().to_string(), text);
        }
        for text in [
            "%x=1:", "%x=1:3", "%x=-1:1", "%x=3:2", "%x=2:2", "x", "x=1", "%x=nan", "%x=inf", "%x=0", "%=1",
            "@a:b=1", "@a:0", "@:0=1", "a:0=1",
        ] {
            assert_eq!(text.parse::<Observed>(), Err(InvalidObservation), "{text}");
        }
    }

    #[test]
    fn the_number_of_largest_magnitude_is_kept() {
        let observed: Observed = "%x=3+%x=-5+%x=4".parse().unwrap();
        assert_eq!(observed.to_string(), "%x=-5");
    }
}
