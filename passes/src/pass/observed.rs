//! Extremes of values that were observed on data: `%x=120000+@block/mul:0=-70000`.

use crate::graph::flow::{self, Var};
use crate::graph::paths::{Paths, attr_of, own_name};
use crate::spelling::words::{quoted, words};
use ampc_ir::module::Op;
use ampc_ir::verify::name_of;
use ampc_ir::{GraphId, Module, Node, Value};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
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

    /// The first value that a module does not have.
    pub fn unknown_in(&self, module: &Module) -> Option<&ObservedValue> {
        let places = Places::of(module);
        self.0.keys().find(|value| places.find(value).is_empty())
    }

    /// The values of a module, with their numbers of largest magnitude. Values that the module does not have are left
    /// out: a pass may have replaced their nodes.
    ///
    /// Inputs of bodies and functions have no statistics of their own. They get the number of the operand, or of the
    /// state of the loop, that they are:
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
        // A round carries numbers through one level of bodies and calls, in whichever order they are visited.
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
    /// The nodes of each graph by their names in it.
    nodes: FxHashMap<(GraphId, &'m str), SmallVec<[Node; 1]>>,
}

impl<'m> Places<'m> {
    fn of(module: &'m Module) -> Places<'m> {
        let inputs = module.graph(module.main()).inputs().iter();
        let inputs = inputs.map(|&value| (name_of(module, value), value)).collect();
        let mut nodes: FxHashMap<_, SmallVec<[Node; 1]>> = FxHashMap::default();
        for node in flow::nodes(module) {
            nodes.entry((module.node(node).graph, own_name(module, node))).or_default().push(node);
        }
        Places { module, paths: Paths::of(module), inputs, nodes }
    }

    /// The values of a place. Several nodes may have a name: a node `c/b` of the main graph, and the node `b` of the
    /// function that the node `c` calls.
    fn find(&self, place: &ObservedValue) -> Vec<Value> {
        match place {
            ObservedValue::Input(name) => self.inputs.get(name).copied().into_iter().collect(),
            ObservedValue::Result { node, slot } => {
                let mut found = Vec::new();
                self.descend(self.module.main(), node, &mut found);
                if found.is_empty() {
                    found.extend(self.paths.node(node));
                }
                let Ok(slot) = usize::try_from(*slot) else { return Vec::new() };
                found.into_iter().filter_map(|node| self.module.node(node).result(slot)).collect()
            }
        }
    }

    /// Adds the nodes of a graph, of its bodies and of the functions that it calls to which a path by calls leads. The
    /// path names a node at each `/`, or the `/` belongs to a name.
    fn descend(&self, graph: GraphId, path: &str, found: &mut Vec<Node>) {
        found.extend(self.named(graph, path));
        for (at, _) in path.match_indices('/') {
            for node in self.named(graph, &path[..at]) {
                let (data, rest) = (self.module.node(node), &path[at + 1..]);
                if let Op::Call(function) = data.op {
                    self.descend(self.module.function(function).graph, rest, found);
                }
                for body in data.bodies() {
                    let inside = rest.strip_prefix(attr_of(self.module, body));
                    if let Some(inside) = inside.and_then(|inside| inside.strip_prefix('/')) {
                        self.descend(body, inside, found);
                    }
                }
            }
        }
    }

    /// The nodes of a graph with this name, without or with the `~2` that makes a path unique.
    fn named(&self, graph: GraphId, name: &str) -> SmallVec<[Node; 1]> {
        let with = |name: &str| self.nodes.get(&(graph, name)).cloned().unwrap_or_default();
        let (mut found, base) = (with(name), name.rsplit_once('~').map_or(name, |(base, _)| base));
        // Of nodes with the same name, the path of each has another number.
        if found.len() > 1 || found.is_empty() && base != name {
            let of_base = if found.is_empty() { with(base) } else { found.clone() };
            let exact = of_base.iter().copied().filter(|&node| self.paths.local(node) == name);
            found = exact.collect();
            if found.is_empty() {
                found = of_base;
            }
        }
        found
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

impl fmt::Display for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.0.iter().map(|(place, number)| quoted(&format!("{place}={number}")));
        f.write_str(&entries.collect::<Vec<_>>().join("+"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observations_are_printed_as_they_are_read() {
        for text in ["", "%x=100000", "@block/mul:0=-70000", "%x=2+\"@a b:1=70000.5\""] {
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
