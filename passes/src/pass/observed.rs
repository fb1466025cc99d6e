//! Extremes of values that were observed on data: `%x=120000+@block/mul:0=-70000`.

use crate::graph::flow::{self, Var};
use crate::graph::paths::{Paths, attr_of, own_name};
use crate::spelling::words::{quoted, words};
use ampc_ir::convert::{max_finite, min_normal};
use ampc_ir::module::Op;
use ampc_ir::op::{Work, work};
use ampc_ir::verify::name_of;
use ampc_ir::{DType, GraphId, Module, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::{SmallVec, smallvec};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

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

/// The numbers of largest magnitude of values that come near an end of the range of a format, or leave it, on data. The
/// text form is `%x=120000+@block/mul:0=-70000`: `%` stands before an input, `@` before the path of a node, and the index
/// of the result follows the path. An entry with other characters than those of a word is in quotes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Observed(BTreeMap<ObservedValue, f64>);

/// Invalid entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("expected %INPUT=NUMBER or @NODE:RESULT=NUMBER with a finite number other than 0")]
pub struct InvalidObservation;

impl Observed {
    /// True if there are no values.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The values with their numbers of largest magnitude, in the order of the text form.
    pub fn iter(&self) -> impl Iterator<Item = (&ObservedValue, f64)> {
        self.0.iter().map(|(value, &number)| (value, number))
    }

    /// The values that a module does not have.
    pub fn unknown_in(&self, module: &Module) -> Vec<&ObservedValue> {
        let places = Places::of(module);
        self.0.keys().filter(|value| places.find(value).is_empty()).collect()
    }

    /// The results of products of matrices among these values.
    #[must_use]
    pub fn of_products(self, module: &Module) -> Observed {
        let places = Places::of(module);
        let is_product = |value: Value| {
            let kind = module.producer(value).and_then(|(node, _)| Some(module.node(node).schema()?.kind));
            kind.is_some_and(|kind| work(kind) == Work::Product)
        };
        let is_made = |place: &ObservedValue| places.find(place).into_iter().any(is_product);
        Observed(self.0.into_iter().filter(|(place, _)| is_made(place)).collect())
    }

    /// The value that is nearest to an end of the range of a format, or furthest beyond it.
    pub fn worst(&self, format: DType) -> Option<(&ObservedValue, f64)> {
        self.iter().max_by(|(_, a), (_, b)| danger(*a, format).total_cmp(&danger(*b, format)))
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
        if self.is_empty() {
            return found;
        }
        let places = Places::of(module);
        for (place, &number) in &self.0 {
            // Calls of one function share its values.
            for value in places.find(place) {
                widen(&mut found, value, number);
            }
        }
        let is_passed_on = |var: &Var| flow::is_port(module, *var);
        let ports: Vec<Var> = flow::nodes(module)
            .into_iter()
            .flat_map(|node| flow::vars(module, node))
            .filter(is_passed_on)
            .collect();
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

/// The number that was observed for a value, behind captures and casts.
pub(crate) fn number_of(module: &Module, observed: &FxHashMap<Value, f64>, value: Value) -> Option<f64> {
    let made = flow::resolve_captures(module, flow::behind_inserted(module, value));
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

/// The inputs and nodes of a module by name.
struct Places<'m> {
    module: &'m Module,
    paths: Arc<Paths>,
    inputs: FxHashMap<String, Value>,
    /// The node of a graph with this last part of its path, which is unique in the graph.
    by_path: FxHashMap<(GraphId, String), Node>,
    /// The nodes of a graph with this name.
    by_name: FxHashMap<(GraphId, String), SmallVec<[Node; 1]>>,
}

impl<'m> Places<'m> {
    fn of(module: &'m Module) -> Places<'m> {
        let paths = Paths::of(module);
        let inputs = module.graph(module.main()).inputs().iter();
        let inputs = inputs.map(|&value| (name_of(module, value), value)).collect();
        let (mut by_path, mut by_name) = (FxHashMap::default(), FxHashMap::default());
        for node in flow::nodes(module) {
            let graph = module.node(node).graph;
            by_path.insert((graph, paths.local(node).to_owned()), node);
            let named: &mut SmallVec<[Node; 1]> =
                by_name.entry((graph, own_name(module, node).to_owned())).or_default();
            named.push(node);
        }
        Places { module, paths, inputs, by_path, by_name }
    }

    /// The values of a place. Several nodes may have a path: a node `c/b` of the main graph, and the node `b` of the
    /// function that the node `c` calls.
    fn find(&self, place: &ObservedValue) -> Vec<Value> {
        match place {
            ObservedValue::Input(name) => self.inputs.get(name).copied().into_iter().collect(),
            ObservedValue::Result { node, slot } => {
                let mut found = self.nodes(node);
                if found.is_empty() {
                    found.extend(self.paths.node(node));
                }
                let Ok(slot) = usize::try_from(*slot) else { return Vec::new() };
                found.into_iter().filter_map(|node| self.module.node(node).result(slot)).collect()
            }
        }
    }

    /// The nodes that a path by calls names. Names may contain `/`, so every division of the path at a `/` is tried: the
    /// first part names a call or a node with bodies, and the rest a node inside. A graph is searched for the same rest
    /// once.
    fn nodes(&self, path: &str) -> Vec<Node> {
        let mut found = Vec::new();
        let mut seen: FxHashSet<(GraphId, usize)> = FxHashSet::default();
        let mut work = vec![(self.module.main(), 0)];
        while let Some((graph, from)) = work.pop() {
            if !seen.insert((graph, from)) {
                continue;
            }
            let rest = &path[from..];
            found.extend(self.named(graph, rest));
            for (at, _) in rest.match_indices('/') {
                for node in self.named(graph, &rest[..at]) {
                    let (data, inside) = (self.module.node(node), from + at + 1);
                    if let Op::Call(function) = data.op {
                        work.push((self.module.function(function).graph, inside));
                    }
                    for body in data.bodies() {
                        let attr = attr_of(self.module, body);
                        if path[inside..].strip_prefix(attr).is_some_and(|rest| rest.starts_with('/')) {
                            work.push((body, inside + attr.len() + 1));
                        }
                    }
                }
            }
        }
        found
    }

    /// The node with this last part of its path; without such a node, the nodes with this name, with or without the `~2`
    /// that made a path of another module unique.
    fn named(&self, graph: GraphId, name: &str) -> SmallVec<[Node; 1]> {
        if let Some(&node) = self.by_path.get(&(graph, name.to_owned())) {
            return smallvec![node];
        }
        let base = name.rsplit_once('~').map_or(name, |(base, _)| base);
        let with = |name: &str| self.by_name.get(&(graph, name.to_owned()));
        with(name).or_else(|| with(base)).cloned().unwrap_or_default()
    }
}

impl FromIterator<(ObservedValue, f64)> for Observed {
    fn from_iter<T: IntoIterator<Item = (ObservedValue, f64)>>(entries: T) -> Observed {
        let mut observed = Observed::default();
        for (place, number) in entries {
            let known = observed.0.entry(place).or_default();
            *known = larger(*known, number);
        }
        observed
    }
}

/// Reads an entry.
fn entry_of(text: &str) -> Option<(ObservedValue, f64)> {
    let (place, number) = text.rsplit_once('=')?;
    let number: f64 = number.parse().ok().filter(|&number: &f64| number != 0.0 && number.is_finite())?;
    let place = match (place.strip_prefix('%'), place.strip_prefix('@')) {
        (Some(name), _) if !name.is_empty() => ObservedValue::Input(name.to_owned()),
        (None, Some(result)) => {
            let (node, slot) = result.rsplit_once(':').filter(|(node, _)| !node.is_empty())?;
            ObservedValue::Result { node: node.to_owned(), slot: slot.parse().ok()? }
        }
        _ => return None,
    };
    Some((place, number))
}

impl FromStr for Observed {
    type Err = InvalidObservation;
    fn from_str(text: &str) -> Result<Observed, InvalidObservation> {
        let entries = if text.is_empty() { Some(Vec::new()) } else { words(text) };
        let entries = entries.ok_or(InvalidObservation)?;
        entries.iter().map(|entry| entry_of(entry).ok_or(InvalidObservation)).collect()
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
        let entries = self.0.iter().map(|(place, &number)| quoted(&format!("{place}={}", shortest(number))));
        f.write_str(&entries.collect::<Vec<_>>().join("+"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observations_are_printed_as_they_are_read() {
        for text in ["", "%x=100000", "@block/mul:0=-70000", "%x=2+\"@a b:1=70000.5\"", "%x=6.7e-5"] {
            assert_eq!(text.parse::<Observed>().unwrap().to_string(), text);
        }
        for text in ["x", "x=1", "%x=nan", "%x=inf", "%x=0", "%=1", "@a:b=1", "@a:0", "@:0=1", "a:0=1"] {
            assert_eq!(text.parse::<Observed>(), Err(InvalidObservation), "{text}");
        }
    }

    #[test]
    fn the_number_of_largest_magnitude_is_kept() {
        let observed: Observed = "%x=3+%x=-5+%x=4".parse().unwrap();
        assert_eq!(observed.to_string(), "%x=-5");
    }
}
