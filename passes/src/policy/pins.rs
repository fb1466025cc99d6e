//! Pins: patterns of nodes and values, and how a model reads them.

use super::{Policy, PolicyError};
use ampc_ir::DType;
use globset::{Glob, GlobMatcher};
use regex::Regex;
use rustc_hash::FxHashMap;

/// What a pin asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pin {
    /// This element type: f32, f16 or bf16.
    To(DType),
    /// As if nothing was pinned: undoes a wider pin or list.
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
        match s {
            "fp32" | "f32" | "float32" => Ok(Pin::To(DType::F32)),
            "fp16" | "f16" | "float16" => Ok(Pin::To(DType::F16)),
            "bf16" | "bfloat16" => Ok(Pin::To(DType::BF16)),
            "auto" => Ok(Pin::Auto),
            _ => Err(PolicyError::Precision { found: s.into() }),
        }
    }
}

/// A pattern of node paths or value names: exact, a glob in which `*` crosses `/`, or `re:` with a regular expression
/// for the whole name.
#[derive(Clone, Debug)]
pub struct Pattern {
    whole: Name,
    /// What it says if nothing is called by the whole text: a name and a type variable.
    split: Option<(Name, String)>,
}

/// A name, and what it matches beside itself.
#[derive(Clone, Debug)]
struct Name {
    text: String,
    matcher: Matcher,
}

#[derive(Clone, Debug)]
enum Matcher {
    Exact,
    Glob(GlobMatcher),
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
            // What is no glob may still be a name.
            Glob::new(text).map_or(Matcher::Exact, |glob| Matcher::Glob(glob.compile_matcher()))
        } else {
            Matcher::Exact
        };
        Ok(Name { text: text.to_owned(), matcher })
    }
    fn is_wide(&self) -> bool {
        !matches!(self.matcher, Matcher::Exact)
    }
    /// Whether it matches otherwise than exactly.
    fn matches(&self, name: &str) -> bool {
        match &self.matcher {
            Matcher::Exact => false,
            Matcher::Glob(glob) => glob.is_match(name),
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
    /// The pattern as given, without what may be its type variable.
    pub fn text(&self) -> &str {
        self.split.as_ref().map_or(&self.whole.text, |(name, _)| &name.text)
    }
    /// The type variable it names, if it may name one.
    pub fn var(&self) -> Option<&str> {
        self.split.as_ref().map(|(_, var)| var.as_str())
    }
    /// Whether it may match more than one name.
    pub fn is_glob(&self) -> bool {
        self.whole.is_wide() || self.split.as_ref().is_some_and(|(name, _)| name.is_wide())
    }
}

/// What a pattern says in a model.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a> {
    name: &'a Name,
    /// The type variable that it is about; all of them without it.
    pub var: Option<&'a str>,
    /// Whether it is the name of one node or value.
    pub exact: bool,
}

impl<'a> Reading<'a> {
    /// The name, glob or regular expression.
    pub fn text(&self) -> &'a str {
        &self.name.text
    }
    /// Whether it matches a name.
    pub fn matches(&self, name: &str) -> bool {
        if self.exact { self.name.text == name } else { self.name.matches(name) }
    }
}

/// The names in a model: an exact one is looked up, for others all are gone through.
pub trait Names {
    /// Whether something is called that.
    fn has(&self, name: &str) -> bool;
    /// Whether something that is called so passes the test.
    fn any(&self, test: &dyn Fn(&str) -> bool) -> bool;
}

/// The pins of a policy as a model reads them.
#[derive(Debug, Default)]
pub struct Pins<'a> {
    /// How each pin of nodes is read; `None` if it matches nothing.
    pub nodes: Vec<(Option<Reading<'a>>, Pin)>,
    /// The same of values.
    pub values: Vec<(Option<Reading<'a>>, Pin)>,
    exact_nodes: FxHashMap<(&'a str, Option<&'a str>), usize>,
    exact_values: FxHashMap<&'a str, usize>,
    wide_nodes: Vec<usize>,
    wide_values: Vec<usize>,
}

impl<'a> Pins<'a> {
    /// Whether nothing is pinned.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.values.is_empty()
    }

    /// The pin of nodes that names exactly this one and holds for the variable: its place in the order given.
    pub fn exact(&self, path: &str, var: &str) -> Option<usize> {
        if self.exact_nodes.is_empty() {
            return None;
        }
        let at = |var: Option<&str>| self.exact_nodes.get(&(path, var)).copied();
        at(None).max(at(Some(var)))
    }

    /// The pin that holds for a type variable of a node with these names, the narrowest first, and these values at
    /// its formals, and its rule.
    /// Later pins of one rank win over earlier ones.
    pub fn of<'b>(
        &self,
        names: &[&str],
        var: &str,
        values: impl Iterator<Item = &'b str>,
    ) -> Option<(Pin, String)> {
        let rule = |&(reading, pin): &(Option<Reading<'_>>, Pin)| {
            let (text, var) = reading.map_or(("", None), |r| (r.text(), r.var));
            (pin, format!("pin:{text}{}", var.map_or_else(String::new, |var| format!("#{var}"))))
        };
        if let Some(at) = names.iter().find_map(|name| self.exact(name, var)) {
            return Some(rule(&self.nodes[at]));
        }
        let values: Vec<&str> = if self.values.is_empty() { Vec::new() } else { values.collect() };
        if let Some(&at) = values.iter().filter_map(|v| self.exact_values.get(v)).max() {
            return Some(rule(&self.values[at]));
        }
        let of_node = |&&at: &&usize| {
            let matches = |r: Reading<'_>| names.iter().any(|name| r.matches(name));
            self.nodes[at].0.is_some_and(|r| r.var.is_none_or(|v| v == var) && matches(r))
        };
        if let Some(&at) = self.wide_nodes.iter().rev().find(of_node) {
            return Some(rule(&self.nodes[at]));
        }
        let of_value = |&&at: &&usize| self.values[at].0.is_some_and(|r| values.iter().any(|v| r.matches(v)));
        self.wide_values.iter().rev().find(of_value).map(|&at| rule(&self.values[at]))
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
        for (at, (pattern, pin)) in self.pins.iter().enumerate() {
            let whole = (&pattern.whole, None);
            let split = pattern.split.as_ref().map(|(name, var)| (name, Some(var.as_str())));
            let reading = [Some(whole), split].into_iter().flatten().find_map(|(n, var)| read(n, var, nodes));
            match reading {
                Some(r) if r.exact => drop(pins.exact_nodes.insert((r.text(), r.var), at)),
                Some(_) => pins.wide_nodes.push(at),
                None => {}
            }
            pins.nodes.push((reading, *pin));
        }
        for (at, (pattern, pin)) in self.value_pins.iter().enumerate() {
            let reading = read(&pattern.whole, None, values);
            match reading {
                Some(r) if r.exact => drop(pins.exact_values.insert(r.text(), at)),
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

/// Whether a rule is that of a pin.
pub(crate) fn is_pin(rule: &str) -> bool {
    rule.starts_with("pin:")
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

    fn of(policy: &Policy, nodes: &[&str], path: &str, var: &str, values: &[&str]) -> Option<(Pin, String)> {
        policy.pins_in(&nodes, &values).of(&[path], var, values.iter().copied())
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
    fn the_last_of_many_exact_pins_counts() {
        let mut policy = Policy::preset("safe").unwrap();
        for (pattern, pin) in [("a", "fp16"), ("a#T", "fp32"), ("b#T", "fp32"), ("b", "bf16")] {
            policy.pin(pattern, pin.parse().unwrap()).unwrap();
        }
        let of = |path, var| of(&policy, &["a", "b"], path, var, &[]).unwrap().0.as_str();
        assert_eq!([of("a", "T"), of("a", "V"), of("b", "T")], ["fp32", "fp16", "bf16"]);
    }
}
