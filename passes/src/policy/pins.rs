//! Pins: patterns of nodes and values, and how a model reads them.

use super::{Policy, PolicyError};
use crate::spelling::formats::float_format;
use crate::spelling::glob;
use ampc_ir::DType;
use ampc_ir::module::reason::PinnedBy;
use regex::Regex;
use rustc_hash::FxHashMap;

/// Format that a pin asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pin {
    /// This element type: f32, f16 or bf16.
    To(DType),
    /// Undoes a wider pin or list, as if the node were not pinned.
    Auto,
}

impl Pin {
    /// The spelling on the command line and in files.
    pub fn as_str(self) -> &'static str {
        match self {
            Pin::To(DType::F16) => "fp16",
            Pin::To(DType::BF16) => "bf16",
            Pin::To(_) => "fp32",
            Pin::Auto => "auto",
        }
    }
}

impl std::str::FromStr for Pin {
    type Err = PolicyError;
    fn from_str(s: &str) -> Result<Pin, PolicyError> {
        match float_format(s) {
            Some(format) => Ok(Pin::To(format)),
            None if s == "auto" => Ok(Pin::Auto),
            None => Err(PolicyError::Precision { found: s.into() }),
        }
    }
}

/// A pattern of node paths or value names: exact, a glob in which `*` crosses `/`, or `re:` with a regular expression
/// for the whole name.
#[derive(Clone, Debug)]
pub struct Pattern {
    whole: Name,
    /// The reading as a name and a type variable, if nothing has the whole text as name.
    split: Option<(Name, String)>,
}

/// A name, with its matcher.
#[derive(Clone, Debug)]
struct Name {
    text: String,
    matcher: Matcher,
}

#[derive(Clone, Debug)]
enum Matcher {
    Exact,
    Regex(Regex),
}

impl Name {
    fn new(text: &str) -> Result<Name, PolicyError> {
        let matcher = if let Some(regex) = text.strip_prefix("re:") {
            let wrong = |e: regex::Error| PolicyError::Pattern {
                pattern: text.to_owned(),
                reason: e
                    .to_string()
                    .lines()
                    .last()
                    .unwrap_or_default()
                    .trim_start_matches("error: ")
                    .to_owned(),
            };
            // By itself first, lest a bracket too many closes the group.
            Regex::new(regex)
                .and_then(|_| Regex::new(&format!("^(?:{regex})$")))
                .map(Matcher::Regex)
                .map_err(wrong)?
        } else if text.contains(['*', '?', '[', '{']) {
            // What is not a glob may still be a name.
            glob::compile(text).map_or(Matcher::Exact, Matcher::Regex)
        } else {
            Matcher::Exact
        };
        Ok(Name { text: text.to_owned(), matcher })
    }
    fn is_wide(&self) -> bool {
        !matches!(self.matcher, Matcher::Exact)
    }
    /// True if the name matches in another way than exactly.
    fn matches(&self, name: &str) -> bool {
        match &self.matcher {
            Matcher::Exact => false,
            Matcher::Regex(regex) => regex.is_match(name),
        }
    }
}

impl Pattern {
    /// Reads `NAME`, a glob or `re:REGEX` for nodes, each with `#VAR` or without.
    ///
    /// # Errors
    /// If a regular expression is malformed.
    pub fn new(text: &str) -> Result<Pattern, PolicyError> {
        let split = match text.rsplit_once('#') {
            Some((name, var)) if !name.is_empty() && is_var(var) => Some((Name::new(name)?, var.to_owned())),
            _ => None,
        };
        // `re:a|b#T` would match `a` with what stands behind `#`.
        let whole = match &split {
            Some(_) if text.starts_with("re:") => Name { text: text.to_owned(), matcher: Matcher::Exact },
            _ => Name::new(text)?,
        };
        Ok(Pattern { whole, split })
    }
    /// Reads a pattern of values, which have no type variables.
    ///
    /// # Errors
    /// If a regular expression is malformed.
    pub fn of_values(text: &str) -> Result<Pattern, PolicyError> {
        Ok(Pattern { whole: Name::new(text)?, split: None })
    }
    /// The pattern as given.
    pub fn given(&self) -> &str {
        &self.whole.text
    }
    /// The pattern as given, without a possible type variable.
    pub fn text(&self) -> &str {
        self.split.as_ref().map_or(&self.whole.text, |(name, _)| &name.text)
    }
    /// The type variable it names, if it may name one.
    pub fn var(&self) -> Option<&str> {
        self.split.as_ref().map(|(_, var)| var.as_str())
    }
    /// True if it matches a name, without a type variable.
    pub fn matches(&self, name: &str) -> bool {
        self.whole.matches(name)
    }
    /// True if it may match more than one name.
    pub fn is_glob(&self) -> bool {
        self.whole.is_wide() || self.split.as_ref().is_some_and(|(name, _)| name.is_wide())
    }
}

/// Matches of a pattern in a model.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a> {
    name: &'a Name,
    /// The type variable that it is about; all of them without it.
    pub var: Option<&'a str>,
    /// True if it is the name of one node or value.
    pub exact: bool,
}

impl<'a> Reading<'a> {
    /// The name, glob or regular expression.
    pub fn text(&self) -> &'a str {
        &self.name.text
    }
    /// True if it matches a name.
    pub fn matches(&self, name: &str) -> bool {
        if self.exact { self.name.text == name } else { self.name.matches(name) }
    }
}

/// The names in a model: an exact name is looked up, a pattern is compared with all names.
pub trait Names {
    /// True if something is called that.
    fn has(&self, name: &str) -> bool;
    /// True if something that is called so passes the test.
    fn any(&self, test: &dyn Fn(&str) -> bool) -> bool;
}

/// The pins of a policy as a model reads them.
#[derive(Debug, Default)]
pub struct Pins<'a> {
    /// The meaning of each pin of nodes; `None` if it matches nothing.
    pub nodes: Vec<(Option<Reading<'a>>, Pin)>,
    /// The same of values.
    pub values: Vec<(Option<Reading<'a>>, Pin)>,
    node_layers: Vec<usize>,
    value_layers: Vec<usize>,
    exact_nodes: FxHashMap<(&'a str, Option<&'a str>), Vec<usize>>,
    exact_values: FxHashMap<&'a str, Vec<usize>>,
    wide_nodes: Vec<usize>,
    wide_values: Vec<usize>,
}

/// The pin that holds for a type variable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HoldingPin {
    /// The format that it asks for.
    pub pin: Pin,
    /// The pin, as the rule of its decisions names it.
    pub by: PinnedBy,
    /// The pin and a contradicting pin of its rank and layer, in the order given, as `NAME=PRECISION`.
    pub contradiction: Option<[String; 2]>,
}

/// The pins of nodes, or the pins of values.
#[derive(Clone, Copy)]
struct Kind<'p, 'a> {
    pins: &'p [(Option<Reading<'a>>, Pin)],
    layers: &'p [usize],
}

impl Kind<'_, '_> {
    /// The pins at `places` for which the test is true: the last pin of the last layer that has any, and the
    /// last pin of that layer that contradicts it.
    ///
    /// The test is the expensive part, so it is spared where it would change nothing.
    fn strongest(
        self,
        places: impl DoubleEndedIterator<Item = usize>,
        test: impl Fn(&Reading<'_>) -> bool,
    ) -> Option<(usize, Option<usize>)> {
        let mut first = None;
        for at in places.rev() {
            let (reading, pin) = &self.pins[at];
            let is_candidate = match first {
                None => true,
                // Places are in the order of layers, so what follows is of an earlier one.
                Some(first) if self.layers[first] != self.layers[at] => return Some((first, None)),
                Some(first) => self.pins[first].1 != *pin,
            };
            if is_candidate && reading.as_ref().is_some_and(&test) {
                match first {
                    None => first = Some(at),
                    Some(first) => return Some((first, Some(at))),
                }
            }
        }
        first.map(|first| (first, None))
    }

    fn holding(self, (at, other): (usize, Option<usize>)) -> HoldingPin {
        let text = |at: usize| match self.pins[at].0 {
            Some(Reading { name, var: Some(var), .. }) => format!("{}#{var}", name.text),
            Some(Reading { name, var: None, .. }) => name.text.clone(),
            None => String::new(),
        };
        let spelled = |at: usize| format!("{}={}", text(at), self.pins[at].1.as_str());
        // The other one was given first.
        let contradiction = other.map(|other| [spelled(other), spelled(at)]);
        HoldingPin { pin: self.pins[at].1, by: PinnedBy::pattern(text(at)), contradiction }
    }
}

impl<'a> Pins<'a> {
    /// True if nothing is pinned.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.values.is_empty()
    }

    fn of_nodes(&self) -> Kind<'_, 'a> {
        Kind { pins: &self.nodes, layers: &self.node_layers }
    }

    fn of_values(&self) -> Kind<'_, 'a> {
        Kind { pins: &self.values, layers: &self.value_layers }
    }

    /// The pin of nodes that names exactly this one and holds for the variable: its place in the order given.
    pub fn exact(&self, path: &str, var: &str) -> Option<usize> {
        self.strongest_exact(path, var).map(|(at, _)| at)
    }

    /// The same, with a contradicting pin. A pin that names the variable is narrower than a pin that names only
    /// the node.
    fn strongest_exact(&self, path: &str, var: &str) -> Option<(usize, Option<usize>)> {
        if self.exact_nodes.is_empty() {
            return None;
        }
        let places = |var| self.exact_nodes.get(&(path, var)).into_iter().flatten().copied();
        let of = |var| self.of_nodes().strongest(places(var), |_| true);
        of(Some(var)).or_else(|| of(None))
    }

    /// The pin that holds for a type variable of a node with these names, the narrowest first, and these values at
    /// its formals.
    ///
    /// Ranks, of which the first with a pin counts: exact name of a node, exact name of a value, wide pattern
    /// of nodes, wide pattern of values; pins of nodes with `#VAR` come before pins without. Within a rank the
    /// last layer counts ([`Policy::next_layer`]); pins of one rank and layer that ask for different things
    /// contradict each other.
    pub fn of<'b>(
        &self,
        names: &[&str],
        var: &str,
        values: impl Iterator<Item = &'b str>,
    ) -> Option<HoldingPin> {
        let (of_nodes, of_values) = (self.of_nodes(), self.of_values());
        if let Some(found) = names.iter().find_map(|name| self.strongest_exact(name, var)) {
            return Some(of_nodes.holding(found));
        }
        let values: Vec<&str> = if self.values.is_empty() { Vec::new() } else { values.collect() };
        let mut exact: Vec<usize> =
            values.iter().filter_map(|v| self.exact_values.get(v)).flatten().copied().collect();
        exact.sort_unstable();
        if let Some(found) = of_values.strongest(exact.into_iter(), |_| true) {
            return Some(of_values.holding(found));
        }
        for with_var in [true, false] {
            let test = |r: &Reading<'_>| {
                let is_about = if with_var { r.var == Some(var) } else { r.var.is_none() };
                is_about && names.iter().any(|name| r.matches(name))
            };
            if let Some(found) = of_nodes.strongest(self.wide_nodes.iter().copied(), test) {
                return Some(of_nodes.holding(found));
            }
        }
        let test = |r: &Reading<'_>| values.iter().any(|v| r.matches(v));
        of_values.strongest(self.wide_values.iter().copied(), test).map(|found| of_values.holding(found))
    }

    /// Two pins of nodes, or of values, that have the same text, are of one layer, and ask for different things: how
    /// they are read, and both as `NAME=PRECISION`. They contradict each other even where neither has an effect.
    pub fn repeated(&self) -> Option<(Reading<'a>, [String; 2])> {
        for kind in [self.of_nodes(), self.of_values()] {
            let mut known: FxHashMap<(&str, Option<&str>, usize), usize> = FxHashMap::default();
            for (at, &(reading, pin)) in kind.pins.iter().enumerate() {
                let Some(reading) = reading else { continue };
                let first = *known.entry((reading.text(), reading.var, kind.layers[at])).or_insert(at);
                if kind.pins[first].1 != pin {
                    return kind.holding((at, Some(first))).contradiction.map(|both| (reading, both));
                }
            }
        }
        None
    }
}

fn is_var(text: &str) -> bool {
    !text.is_empty() && text.len() <= 16 && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl Policy {
    /// The pins as a model with these names of nodes and values reads them: an exact match is tried before a glob or
    /// regular expression, and the whole text before `#VAR` is split off.
    pub fn pins_in(&self, nodes: &impl Names, values: &impl Names) -> Pins<'_> {
        let mut pins = Pins::default();
        // How many layers began at a pin or before it.
        let layer =
            |at: usize, begin: fn(&(usize, usize)) -> usize| self.layers.partition_point(|l| begin(l) <= at);
        pins.node_layers = (0..self.pins.len()).map(|at| layer(at, |l| l.0)).collect();
        pins.value_layers = (0..self.value_pins.len()).map(|at| layer(at, |l| l.1)).collect();
        for (at, (pattern, pin)) in self.pins.iter().enumerate() {
            let whole = (&pattern.whole, None);
            let split = pattern.split.as_ref().map(|(name, var)| (name, Some(var.as_str())));
            let reading = [Some(whole), split].into_iter().flatten().find_map(|(n, var)| read(n, var, nodes));
            match reading {
                Some(r) if r.exact => pins.exact_nodes.entry((r.text(), r.var)).or_default().push(at),
                Some(_) => pins.wide_nodes.push(at),
                None => {}
            }
            pins.nodes.push((reading, *pin));
        }
        for (at, (pattern, pin)) in self.value_pins.iter().enumerate() {
            let reading = read(&pattern.whole, None, values);
            match reading {
                Some(r) if r.exact => pins.exact_values.entry(r.text()).or_default().push(at),
                Some(_) => pins.wide_values.push(at),
                None => {}
            }
            pins.values.push((reading, *pin));
        }
        pins
    }
}

fn read<'a>(name: &'a Name, var: Option<&'a str>, names: &impl Names) -> Option<Reading<'a>> {
    let exact = names.has(&name.text);
    (exact || name.is_wide() && names.any(&|n| name.matches(n))).then_some(Reading { name, var, exact })
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Names for &[&str] {
        fn has(&self, name: &str) -> bool {
            self.contains(&name)
        }
        fn any(&self, test: &dyn Fn(&str) -> bool) -> bool {
            self.iter().any(|n| test(n))
        }
    }

    fn holding(
        policy: &Policy,
        nodes: &[&str],
        path: &str,
        var: &str,
        values: &[&str],
    ) -> Option<HoldingPin> {
        policy.pins_in(&nodes, &values).of(&[path], var, values.iter().copied())
    }

    fn of(policy: &Policy, nodes: &[&str], path: &str, var: &str, values: &[&str]) -> Option<(Pin, String)> {
        holding(policy, nodes, path, var, values).map(|held| {
            assert_eq!(held.contradiction, None);
            (held.pin, held.by.to_string())
        })
    }

    #[test]
    fn precedence_of_pins() {
        let mut policy = Policy::preset("safe").unwrap();
        policy.pin("layer*", Pin::To(DType::F32)).unwrap();
        policy.pin("layer1/fc", Pin::Auto).unwrap();
        policy.pin_value("h", Pin::To(DType::F16)).unwrap();
        let of = |path, values: &[&str]| of(&policy, &["layer1/fc", "layer2/fc", "head"], path, "T", values);
        assert_eq!(of("layer1/fc", &["h"]).unwrap().0, Pin::Auto);
        assert_eq!(of("layer2/fc", &["h"]).unwrap(), (Pin::To(DType::F16), "pin:h".into()));
        assert_eq!(of("layer2/fc", &[]).unwrap(), (Pin::To(DType::F32), "pin:layer*".into()));
        assert_eq!(of("head", &[]), None);
    }

    #[test]
    fn an_exact_name_is_tried_first() {
        let low = Pin::To(DType::F16);
        let nodes = ["a", "a#T", "b", "l[0]", "l0", "x[", "re:b"];
        let pinned = |pattern: &str| {
            let mut policy = Policy::preset("safe").unwrap();
            policy.pin(pattern, low).unwrap();
            let all = nodes.iter().flat_map(|n| ["T", "V"].map(|v| (*n, v)));
            let hit = all.filter(|(n, v)| of(&policy, &nodes, n, v, &[]).is_some());
            hit.map(|(n, v)| format!("{n} {v}")).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(pinned("a#T"), "a#T T, a#T V");
        assert_eq!(pinned("b#T"), "b T");
        assert_eq!(pinned("a#V"), "a V");
        assert_eq!(pinned("l[0]"), "l[0] T, l[0] V");
        assert_eq!(pinned("l[0-9]#T"), "l0 T");
        assert_eq!(pinned("x["), "x[ T, x[ V");
        assert_eq!(pinned("re:b"), "re:b T, re:b V");
        assert_eq!(pinned("re:[ab]#V"), "a V, b V");
        assert_eq!(pinned("re:l"), "", "the whole name must match");
        assert_eq!(pinned("re:a|b#V"), "a V, b V");
        let mut policy = Policy::preset("safe").unwrap();
        policy.pin_value("h#T", low).unwrap();
        assert_eq!(of(&policy, &nodes, "a", "T", &["h"]), None);
        assert_eq!(of(&policy, &nodes, "a", "V", &["h#T"]).unwrap(), (low, "pin:h#T".into()));
        let message = Pattern::new("re:(").unwrap_err().to_string();
        assert!(message.contains("unclosed group"), "{message}");
        Pattern::new("re:a)(b").unwrap_err();
    }

    #[test]
    fn what_names_a_variable_is_narrower_than_what_names_the_node() {
        let mut policy = Policy::preset("safe").unwrap();
        let pins =
            [("a", "fp16"), ("a#T", "fp32"), ("b#T", "fp32"), ("b", "bf16"), ("*", "auto"), ("*#V", "fp32")];
        for (pattern, pin) in pins {
            policy.pin(pattern, pin.parse().unwrap()).unwrap();
        }
        let of = |path, var| of(&policy, &["a", "b", "c"], path, var, &[]).unwrap().0.as_str();
        assert_eq!(
            [of("a", "T"), of("a", "V"), of("b", "T"), of("b", "V")],
            ["fp32", "fp16", "fp32", "bf16"]
        );
        assert_eq!([of("c", "T"), of("c", "V")], ["auto", "fp32"]);
    }

    /// Merges two pins of nodes (or of values, if they begin with `%`): the contradiction, or the pin that
    /// holds.
    fn both(
        first: (&str, &str),
        second: (&str, &str),
        is_next_layer: bool,
    ) -> Result<&'static str, [String; 2]> {
        let mut policy = Policy::preset("safe").unwrap();
        for (i, (pattern, pin)) in [first, second].into_iter().enumerate() {
            if i == 1 && is_next_layer {
                policy.next_layer();
            }
            let pin = pin.parse().unwrap();
            match pattern.strip_prefix('%') {
                Some(value) => policy.pin_value(value, pin).unwrap(),
                None => policy.pin(pattern, pin).unwrap(),
            }
        }
        let held = holding(&policy, &["a", "b"], "a", "T", &["x", "y"]).unwrap();
        held.contradiction.map_or(Ok(held.pin.as_str()), Err)
    }

    #[test]
    fn pins_of_one_rank_and_layer_contradict_each_other() {
        for (first, second) in
            [("a", "a"), ("*", "re:a|b"), ("[ab]", "[ab]"), ("a#T", "a#T"), ("%x", "%y"), ("%*", "%[x]")]
        {
            let spelled = |text: &str, pin| format!("{}={pin}", text.trim_start_matches('%'));
            let wanted = [spelled(first, "fp32"), spelled(second, "bf16")];
            assert_eq!(both((first, "fp32"), (second, "bf16"), false), Err(wanted), "{first} {second}");
            assert_eq!(both((first, "fp16"), (second, "fp16"), false), Ok("fp16"), "{first} {second}");
            assert_eq!(both((first, "fp32"), (second, "auto"), true), Ok("auto"), "{first} {second}");
        }
        // The rank decides before the layer does.
        for (narrow, wide) in
            [("a", "%x"), ("a", "*"), ("%x", "*"), ("*", "%*"), ("a", "b"), ("a#T", "a"), ("*#T", "*")]
        {
            for is_next_layer in [false, true] {
                assert_eq!(
                    both((narrow, "fp32"), (wide, "bf16"), is_next_layer),
                    Ok("fp32"),
                    "{narrow} {wide}"
                );
            }
            assert_eq!(both((wide, "bf16"), (narrow, "fp32"), false), Ok("fp32"), "{narrow} {wide}");
        }
    }

    #[test]
    fn pins_of_the_same_text_contradict_each_other_wherever_they_match() {
        let repeated = |pins: &[(&str, &str)]| {
            let mut policy = Policy::preset("safe").unwrap();
            pins.iter().for_each(|(pattern, pin)| policy.pin(pattern, pin.parse().unwrap()).unwrap());
            policy.pins_in(&&["a"][..], &&[][..]).repeated().map(|(_, both)| both.join(" "))
        };
        assert_eq!(repeated(&[("a", "fp32"), ("a", "fp32"), ("*", "fp16")]), None);
        assert_eq!(repeated(&[("a", "fp32"), ("a#T", "fp16")]), None);
        assert_eq!(repeated(&[("a", "fp32"), ("a", "fp32"), ("a", "auto")]).unwrap(), "a=fp32 a=auto");
    }

    #[test]
    fn every_spelling_of_a_format_is_taken() {
        for (format, words) in [
            ("fp32", "fp32 f32 float32 FP32 Float32 float single"),
            ("fp16", "fp16 f16 float16 half FP16 Half"),
            ("bf16", "bf16 bfloat16 BF16"),
        ] {
            for word in words.split(' ') {
                assert_eq!(word.parse::<Pin>().unwrap().as_str(), format, "{word}");
            }
        }
        for wrong in ["", "fp8", "f 16", "16", "fp64", "double", "tf32"] {
            wrong.parse::<Pin>().unwrap_err();
        }
    }
}
