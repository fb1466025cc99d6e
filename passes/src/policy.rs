//! What the user wants: classes per operator, pins per node and value, guards to leave out.
//!
//! A policy starts from a base (the operator table, or its schemas alone) and says what differs. It comes from a
//! preset, from a JSON file (schema `ampc-policy/1`, documented in `docs/policy.md`), from a report of an earlier
//! run (which pins every decision), and from the command line; precedence is fixed: exact node name, exact value
//! name, wildcard pin, lists of the command line, policy file, operator table.

use crate::suggest::nearest;
use ampc_ir::op::{self, Class};
use ampc_ir::{DType, Module, Node};
use globset::{Glob, GlobMatcher};
use rustc_hash::FxHashMap;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

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

/// A pattern of node paths or value names: exact, or a glob in which `*` crosses `/`.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    var: Option<String>,
    glob: Option<GlobMatcher>,
}

impl Pattern {
    /// Reads `NAME`, `NAME#VAR` or a glob.
    ///
    /// # Errors
    /// If a glob is malformed.
    pub fn new(text: &str) -> Result<Pattern, PolicyError> {
        let (name, var) = match text.rsplit_once('#') {
            Some((name, var)) if !name.is_empty() && is_var(var) => (name, Some(var.to_owned())),
            _ => (text, None),
        };
        let glob = if name.contains(['*', '?', '[', '{']) {
            let glob = Glob::new(name)
                .map_err(|e| PolicyError::Pattern { pattern: text.into(), reason: e.kind().to_string() })?;
            Some(glob.compile_matcher())
        } else {
            None
        };
        Ok(Pattern { text: name.to_owned(), var, glob })
    }
    /// The pattern as given, without its type variable.
    pub fn text(&self) -> &str {
        &self.text
    }
    /// The type variable it names, if it names one.
    pub fn var(&self) -> Option<&str> {
        self.var.as_deref()
    }
    /// Whether it may match more than one name.
    pub fn is_glob(&self) -> bool {
        self.glob.is_some()
    }
    fn matches_var(&self, var: &str) -> bool {
        self.var.as_deref().is_none_or(|v| v == var)
    }
    fn is_exactly(&self, name: &str) -> bool {
        self.text == name
    }
    /// Whether the pattern matches as a glob.
    fn matches(&self, name: &str) -> bool {
        self.glob.as_ref().is_some_and(|g| g.is_match(name))
    }
    /// Whether the pattern matches, exactly or as a glob.
    pub fn matches_name(&self, name: &str) -> bool {
        self.is_exactly(name) || self.matches(name)
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
    /// A malformed glob.
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
    #[serde(default)]
    ops: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    pins: BTreeMap<String, String>,
    #[serde(default)]
    pin_values: BTreeMap<String, String>,
    #[serde(default)]
    disable_guards: Vec<String>,
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
        self.value_pins.push((Pattern::new(pattern)?, pin));
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

    /// The pin that holds for a type variable of a node with these values at its formals, and its rule.
    /// Later pins of one rank win over earlier ones.
    pub fn pin_of(&self, path: &str, var: &str, values: &[&str]) -> Option<(Pin, String)> {
        let rule = |p: &Pattern, pin: Pin| (pin, format!("pin:{}", p.text()));
        let last = |pins: &[(Pattern, Pin)], hit: &dyn Fn(&Pattern) -> bool| {
            pins.iter().rev().find(|(p, _)| p.matches_var(var) && hit(p)).map(|(p, pin)| rule(p, *pin))
        };
        last(&self.pins, &|p| p.is_exactly(path))
            .or_else(|| last(&self.value_pins, &|p| values.iter().any(|v| p.is_exactly(v))))
            .or_else(|| last(&self.pins, &|p| p.matches(path)))
            .or_else(|| last(&self.value_pins, &|p| values.iter().any(|v| p.matches(v))))
    }
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

    #[test]
    fn precedence_of_pins() {
        let mut policy = Policy::preset("safe").unwrap();
        policy.pin("layer*", Pin::To(DType::F32)).unwrap();
        policy.pin("layer1/fc", Pin::Auto).unwrap();
        policy.pin_value("h", Pin::To(DType::F16)).unwrap();
        assert_eq!(policy.pin_of("layer1/fc", "T", &["h"]).unwrap().0, Pin::Auto);
        assert_eq!(policy.pin_of("layer2/fc", "T", &["h"]).unwrap(), (Pin::To(DType::F16), "pin:h".into()));
        assert_eq!(policy.pin_of("layer2/fc", "T", &[]).unwrap(), (Pin::To(DType::F32), "pin:layer*".into()));
        assert_eq!(policy.pin_of("head", "T", &[]), None);
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
