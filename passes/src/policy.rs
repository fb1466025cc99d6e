//! What the user wants: classes per operator, pins per node and value, guards to leave out.
//!
//! A policy starts from a base (the operator table, or its schemas alone) and says what differs. It comes from a
//! preset, from a JSON file (schema `ampc-policy/1`, documented in `docs/policy.md`), from a report of an earlier
//! run (which pins every decision), and from the command line; precedence is fixed: exact node name, exact value
//! name, wildcard or regex pin, lists of the command line, a report, policy file, operator table.

use crate::suggest::nearest;
use ampc_ir::op::{self, Class};
use ampc_ir::{DType, Module, Node};
use globset::{Glob, GlobMatcher};
use regex::Regex;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;

/// Where classes come from that no list names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Base {
    /// The operator table's classes.
    #[default]
    Table,
    /// Whatever the schema admits is lowered: what converters without numeric lists do.
    Schema,
}

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

    /// The pin that holds for a type variable of a node with these values at its formals, and its rule.
    /// Later pins of one rank win over earlier ones.
    pub fn of<'b>(
        &self,
        path: &str,
        var: &str,
        values: impl Iterator<Item = &'b str>,
    ) -> Option<(Pin, String)> {
        let rule = |&(reading, pin): &(Option<Reading<'_>>, Pin)| {
            (pin, format!("pin:{}", reading.map_or("", |r| r.text())))
        };
        if let Some(at) = self.exact(path, var) {
            return Some(rule(&self.nodes[at]));
        }
        let values: Vec<&str> = if self.values.is_empty() { Vec::new() } else { values.collect() };
        if let Some(&at) = values.iter().filter_map(|v| self.exact_values.get(v)).max() {
            return Some(rule(&self.values[at]));
        }
        let of_node = |&&at: &&usize| {
            self.nodes[at].0.is_some_and(|r| r.var.is_none_or(|v| v == var) && r.matches(path))
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

/// A class for an operator, and which list says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpClass {
    /// The class.
    pub class: Class,
    /// `list` for the command line, `policy` for a file or preset.
    pub from: &'static str,
}

/// What the user wants.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// What to call it.
    pub name: String,
    /// Where unnamed operators get their class.
    pub base: Base,
    ops: BTreeMap<String, OpClass>,
    pins: Vec<(Pattern, Pin)>,
    value_pins: Vec<(Pattern, Pin)>,
    /// Decisions of an earlier run: (node path, type variable) → element type.
    replay: FxHashMap<(String, String), DType>,
    disabled_guards: BTreeSet<String>,
}

/// Why something is no policy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// No preset has this name.
    #[error("no policy is called `{found}`{hint}; presets are {presets}; a file ends in `.json`")]
    UnknownPreset {
        /// The name as given.
        found: String,
        /// The nearest preset.
        hint: String,
        /// All presets.
        presets: String,
    },
    /// No operator has this name.
    #[error("no operator is called `{found}`{hint}; operators of other domains are written `domain::Op`")]
    UnknownOp {
        /// The name as given.
        found: String,
        /// The nearest operator.
        hint: String,
    },
    /// One operator in two lists.
    #[error("`{op}` is in the lists `{first}` and `{second}`: keep one")]
    OpTwice {
        /// The operator.
        op: String,
        /// One list.
        first: Class,
        /// The other.
        second: Class,
    },
    /// No guard has this name.
    #[error("no guard is called `{found}`{hint}; guards are {guards}")]
    UnknownGuard {
        /// The name as given.
        found: String,
        /// The nearest guard.
        hint: String,
        /// All guards.
        guards: String,
    },
    /// A pin asks for something else than a precision.
    #[error("`{found}` is no precision: expected fp32, fp16, bf16 or auto")]
    Precision {
        /// What was given.
        found: String,
    },
    /// A malformed regular expression.
    #[error("`{pattern}` is no pattern: {reason}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// Why.
        reason: String,
    },
    /// The file is no JSON of the schema.
    #[error("line {line}, column {column}: {reason}")]
    Json {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What was expected and found.
        reason: String,
    },
}

/// The presets, each with a line about it.
pub const PRESETS: &[(&str, &str)] = &[
    ("safe", "the operator table's classes and all guards: the default"),
    (
        "all",
        "everything the schemas admit, without numeric lists and guards but for constants that do not fit",
    ),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    schema: Option<String>,
    name: Option<String>,
    base: Option<String>,
    #[serde(default, deserialize_with = "entries")]
    ops: Vec<(String, Vec<String>)>,
    #[serde(default, deserialize_with = "entries")]
    pins: Vec<(String, String)>,
    #[serde(default, deserialize_with = "entries")]
    pin_values: Vec<(String, String)>,
    #[serde(default)]
    disable_guards: Vec<String>,
}

/// The entries of an object in the order of the file. No key may come twice.
fn entries<'de, D, T>(deserializer: D) -> Result<Vec<(String, T)>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Entries<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
        type Value = Vec<(String, T)>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut entries = Vec::new();
            let mut known = FxHashSet::default();
            while let Some(key) = map.next_key::<String>()? {
                if !known.insert(key.clone()) {
                    return Err(A::Error::custom(format!("`{key}` is there twice: keep one")));
                }
                entries.push((key, map.next_value()?));
            }
            Ok(entries)
        }
    }
    deserializer.deserialize_map(Entries(PhantomData))
}

#[derive(Deserialize)]
struct ReportFile {
    nodes: Vec<ReportNode>,
}

#[derive(Deserialize)]
struct ReportNode {
    path: String,
    #[serde(default)]
    vars: Vec<ReportVar>,
}

#[derive(Deserialize)]
struct ReportVar {
    var: String,
    precision: String,
}

impl Policy {
    /// The preset with this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn preset(name: &str) -> Result<Policy, PolicyError> {
        let mut policy = Policy { name: name.to_owned(), ..Policy::default() };
        match name {
            "safe" => {}
            "all" => {
                policy.base = Base::Schema;
                for guard in crate::guard::GUARDS.iter().filter(|g| g.name != "range") {
                    policy.disabled_guards.insert(guard.name.to_owned());
                }
            }
            _ => {
                let names = PRESETS.iter().map(|(n, _)| *n);
                return Err(PolicyError::UnknownPreset {
                    found: name.to_owned(),
                    hint: hint(nearest(name, names.clone())),
                    presets: names.collect::<Vec<_>>().join(", "),
                });
            }
        }
        Ok(policy)
    }

    /// Reads a policy file, or a report of an earlier run as the policy that repeats its decisions.
    ///
    /// # Errors
    /// With line and column, if the text is neither.
    pub fn from_json(text: &str) -> Result<Policy, PolicyError> {
        let probe: serde_json::Value = serde_json::from_str(text).map_err(|e| json_error(&e))?;
        let schema = probe.get("schema").and_then(|s| s.as_str()).unwrap_or("ampc-policy/1");
        match schema {
            "ampc-policy/1" => Policy::from_file(serde_json::from_str(text).map_err(|e| json_error(&e))?),
            "ampc-report/1" => Policy::from_report(serde_json::from_str(text).map_err(|e| json_error(&e))?),
            other => Err(PolicyError::Json {
                line: 1,
                column: 1,
                reason: format!("expected schema `ampc-policy/1` or `ampc-report/1`, found `{other}`"),
            }),
        }
    }

    fn from_file(file: PolicyFile) -> Result<Policy, PolicyError> {
        let mut policy = Policy::preset(file.base.as_deref().unwrap_or("safe"))?;
        policy.name = file.name.unwrap_or_else(|| "custom".into());
        debug_assert!(file.schema.is_none_or(|s| s == "ampc-policy/1"));
        for (class, ops) in &file.ops {
            let class = class.parse().map_err(|e: op::UnknownClass| PolicyError::Json {
                line: 1,
                column: 1,
                reason: format!("in `ops`: {e}"),
            })?;
            for op in ops {
                policy.set_class(op, class, "policy")?;
            }
        }
        for (pattern, pin) in &file.pins {
            policy.pin(pattern, pin.parse()?)?;
        }
        for (pattern, pin) in &file.pin_values {
            policy.pin_value(pattern, pin.parse()?)?;
        }
        for guard in &file.disable_guards {
            policy.disable_guard(guard)?;
        }
        Ok(policy)
    }

    fn from_report(report: ReportFile) -> Result<Policy, PolicyError> {
        let mut policy = Policy::preset("safe")?;
        policy.name = "report".into();
        for node in report.nodes {
            for var in node.vars {
                match var.precision.parse() {
                    Ok(Pin::To(dtype)) => {
                        policy.replay.insert((node.path.clone(), var.var), dtype);
                    }
                    Ok(Pin::Auto) => {}
                    // Decisions about other element types (f64, float8 …) are facts about the source.
                    Err(_) if var.precision.parse::<DType>().is_ok() => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(policy)
    }

    /// Puts an operator into the list of a class; `from` is `list` (the command line, which wins) or `policy`.
    ///
    /// # Errors
    /// If there is no such operator, or the same source put it into another list.
    pub fn set_class(&mut self, op: &str, class: Class, from: &'static str) -> Result<(), PolicyError> {
        let key = canonical(op)?;
        if let Some(known) = self.ops.get(&key).filter(|k| k.from == from && k.class != class) {
            return Err(PolicyError::OpTwice { op: key, first: known.class, second: class });
        }
        self.ops.insert(key, OpClass { class, from });
        Ok(())
    }

    /// Pins nodes.
    ///
    /// # Errors
    /// If the pattern is malformed.
    pub fn pin(&mut self, pattern: &str, pin: Pin) -> Result<(), PolicyError> {
        self.pins.push((Pattern::new(pattern)?, pin));
        Ok(())
    }

    /// Pins values.
    ///
    /// # Errors
    /// If the pattern is malformed.
    pub fn pin_value(&mut self, pattern: &str, pin: Pin) -> Result<(), PolicyError> {
        self.value_pins.push((Pattern::of_values(pattern)?, pin));
        Ok(())
    }

    /// Leaves a guard out.
    ///
    /// # Errors
    /// If there is no such guard.
    pub fn disable_guard(&mut self, name: &str) -> Result<(), PolicyError> {
        let names = crate::guard::GUARDS.iter().map(|g| g.name);
        if !names.clone().any(|g| g == name) {
            return Err(PolicyError::UnknownGuard {
                found: name.to_owned(),
                hint: hint(nearest(name, names.clone())),
                guards: names.collect::<Vec<_>>().join(", "),
            });
        }
        self.disabled_guards.insert(name.to_owned());
        Ok(())
    }

    /// Guards to leave out.
    pub fn disabled_guards(&self) -> &BTreeSet<String> {
        &self.disabled_guards
    }
    /// The list an operator is in: key as in [`op_key`].
    pub fn class_of(&self, key: &str) -> Option<OpClass> {
        self.ops.get(key).copied()
    }
    /// All operators in lists.
    pub fn ops(&self) -> impl Iterator<Item = (&str, OpClass)> {
        self.ops.iter().map(|(k, &v)| (k.as_str(), v))
    }
    /// Pins of nodes, in the order given.
    pub fn pins(&self) -> &[(Pattern, Pin)] {
        &self.pins
    }
    /// Pins of values, in the order given.
    pub fn value_pins(&self) -> &[(Pattern, Pin)] {
        &self.value_pins
    }

    /// The decision of the earlier run that is repeated.
    pub fn replayed(&self, path: &str, var: &str) -> Option<DType> {
        if self.replay.is_empty() {
            return None;
        }
        self.replay.get(&(path.to_owned(), var.to_owned())).copied()
    }

    /// How many nodes the report given as policy has decisions of, and of how many of them the test is true.
    pub fn replayed_nodes(&self, test: impl Fn(&str) -> bool) -> (usize, usize) {
        let nodes: BTreeSet<&str> = self.replay.keys().map(|(path, _)| path.as_str()).collect();
        (nodes.len(), nodes.iter().filter(|path| test(path)).count())
    }

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

fn hint(near: Option<&str>) -> String {
    near.map_or_else(String::new, |n| format!("; did you mean `{n}`?"))
}

fn json_error(error: &serde_json::Error) -> PolicyError {
    let mut reason = error.to_string();
    if let Some(at) = reason.rfind(" at line ") {
        reason.truncate(at);
    }
    PolicyError::Json { line: error.line(), column: error.column(), reason }
}

/// The key of an operator in lists: its name in ai.onnx, `domain::Name` elsewhere.
pub fn op_key(domain: &str, name: &str) -> String {
    if domain.is_empty() || domain == "ai.onnx" { name.to_owned() } else { format!("{domain}::{name}") }
}

/// The key of the operator of a node.
pub fn node_key(module: &Module, node: Node) -> String {
    let (domain, name, _) = module.op_name(node);
    op_key(domain, name)
}

fn canonical(op: &str) -> Result<String, PolicyError> {
    let (domain, name) = op.rsplit_once("::").unwrap_or(("", op));
    let key = op_key(domain, name);
    let known_domain = op::latest_opset(domain).is_some();
    if known_domain && op::versions(domain, name).is_empty() {
        let names = op::all().iter().filter(|s| s.domain == domain).map(|s| s.name);
        return Err(PolicyError::UnknownOp { found: op.to_owned(), hint: hint(nearest(name, names)) });
    }
    Ok(key)
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
        policy.pins_in(&nodes, &values).of(path, var, values.iter().copied())
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

    #[test]
    fn no_key_comes_twice() {
        let text = "{\"pins\": {\"fc\": \"fp32\",\n \"fc\": \"fp16\"}}";
        let error = Policy::from_json(text).unwrap_err();
        assert!(matches!(error, PolicyError::Json { line: 2, .. }), "{error}");
        assert!(error.to_string().contains("`fc` is there twice"), "{error}");
    }

    #[test]
    fn errors_name_the_nearest_word() {
        let message = |e: PolicyError| e.to_string();
        assert!(message(Policy::preset("sfae").unwrap_err()).contains("did you mean `safe`"));
        let mut policy = Policy::preset("safe").unwrap();
        assert!(
            message(policy.set_class("Matmul", Class::Deny, "list").unwrap_err())
                .contains("did you mean `MatMul`")
        );
        policy.set_class("MatMul", Class::Deny, "list").unwrap();
        assert!(message(policy.set_class("MatMul", Class::Allow, "list").unwrap_err()).contains("keep one"));
        assert!(message(policy.disable_guard("epss").unwrap_err()).contains("did you mean `eps`"));
        let bad = Policy::from_json("{\n \"bsae\": \"safe\"\n}").unwrap_err();
        assert!(matches!(bad, PolicyError::Json { line: 2, .. }), "{bad}");
    }
}
