//! Policies: classes per operator, pins per node and value, guards to switch off, and signatures of operators
//! that no table has.
//!
//! A policy starts from a base (the operator table, its schemas alone, or one class) and lists the differences.
//! It comes from a preset (a file in `presets/`), from a JSON file (schema `ampc-policy/1`, documented in
//! `docs/policy.md`), from a report of an earlier run (which pins every decision), and from the command line;
//! precedence is fixed: exact node name, exact value name, wildcard or regex pin, lists of the command line, a
//! report, policy file, operator table.

mod file;
pub(crate) mod guards;
mod jmp;
mod keep_io;
pub(crate) mod pinned;
mod pins;
mod presets;
mod resolved;
mod signature;

pub use crate::graph::keys::{node_key, op_key};
pub use crate::spelling::formats::float_format;
pub use ampc_ir::module::reason::ListedBy;
pub use keep_io::KeepIo;
pub use pins::{HoldingPin, Names, Pattern, Pin, Pins, Reading};
pub use presets::{PRESETS, Preset};
pub use signature::{SignatureJson, reason};

use self::guards::{GUARDS, Judges};
use crate::spelling::json::JsonError;
use crate::spelling::suggest::{did_you_mean, nearest};
use ampc_ir::DType;
use ampc_ir::module::Rule;
use ampc_ir::module::reason::PinnedBy;
use ampc_ir::op::{self, Class, OpSchema};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// The source of classes of operators that no list names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Base {
    /// The operator table's classes.
    #[default]
    Table,
    /// Everything that the schema admits is lowered, as by converters without numeric lists.
    Schema,
    /// This class for all operators, as in systems whose lists contain the exceptions.
    Class(Class),
}

impl Base {
    /// The class of an operator that no list names, and the rule if it is not the operator table's.
    ///
    /// The class of an operator; lists do not apply to operators that accept any input type, or are fixed.
    pub fn class_of(self, table: Class) -> (Class, Option<Rule>) {
        match self {
            _ if matches!(table, Class::Discrete | Class::Fixed) => (table, None),
            Base::Table => (table, None),
            Base::Schema => (Class::Allow, Some(Rule::Schema)),
            Base::Class(class) => (class, Some(Rule::Unlisted)),
        }
    }
}

/// Requests of a policy besides classes, for options that the user does not give.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wants {
    /// The format: lowering to another one is an error.
    pub to: Option<DType>,
    /// The inputs and outputs that keep their types.
    pub keep_io: Option<KeepIo>,
    /// True if a training step keeps weights in fp32 that are read in 16 bits only.
    pub master_weights: Option<bool>,
}

/// A class for an operator, and which list says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpClass {
    /// The class.
    pub class: Class,
    /// The owner of the list.
    pub from: ListedBy,
}

/// A policy.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// The name of the policy.
    pub name: String,
    /// The source of the class of unlisted operators.
    pub base: Base,
    wants: Wants,
    ops: BTreeMap<String, OpClass>,
    /// Operators of no table, by their key.
    signatures: BTreeMap<String, &'static OpSchema>,
    pins: Vec<(Pattern, Pin)>,
    value_pins: Vec<(Pattern, Pin)>,
    /// The numbers of pins of nodes and of values at the beginning of each layer but the first.
    layers: Vec<(usize, usize)>,
    /// Decisions of an earlier run: (node path, type variable) → element type.
    replay: FxHashMap<(String, String), DType>,
    /// The casts that a pin named in the earlier run, with the pin.
    replayed_pins: FxHashMap<String, PinnedBy>,
    disabled_guards: BTreeSet<String>,
}

/// Policy error.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// No preset has this name.
    #[error("no policy is called `{found}`; presets are {presets}; a file ends in `.json`{hint}")]
    UnknownPreset {
        /// The name as given.
        found: String,
        /// The nearest preset.
        hint: String,
        /// All presets.
        presets: String,
    },
    /// A text is not a policy of jmp, or a policy that is not supported.
    #[error("`jmp:{found}`: {reason}")]
    Jmp {
        /// The text behind `jmp:`.
        found: String,
        /// The problem.
        reason: String,
    },
    /// The policy is for another format.
    #[error("the policy `{policy}` computes in {wanted}, so it cannot lower to {to}")]
    Format {
        /// Its name.
        policy: String,
        /// The format it asks for.
        wanted: DType,
        /// The requested format.
        to: DType,
    },
    /// No operator has this name.
    #[error("no operator is called `{found}` (operators of other domains are written `domain::Op`){hint}")]
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
    #[error("no guard is called `{found}`; guards are {guards}{hint}")]
    UnknownGuard {
        /// The name as given.
        found: String,
        /// The nearest guard.
        hint: String,
        /// All guards.
        guards: String,
    },
    /// A pin asks for something else than a precision.
    #[error("`{found}` is not a precision: expected fp32, fp16, bf16 or auto")]
    Precision {
        /// The value found.
        found: String,
    },
    /// The signature of an operator is invalid.
    #[error("the signature of `{op}`: {reason}")]
    Signature {
        /// The operator.
        op: String,
        /// The problem.
        reason: String,
    },
    /// A malformed regular expression.
    #[error("`{pattern}` is not a pattern: {reason}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// Why.
        reason: String,
    },
    /// The file is not JSON of the schema.
    #[error(transparent)]
    Json(#[from] JsonError),
}

impl Policy {
    /// Puts an operator into the list of a class. Lists of options outrank lists of files and presets.
    ///
    /// # Errors
    /// If there is no such operator, or the same source put it into another list.
    pub fn set_class(&mut self, op: &str, class: Class, from: ListedBy) -> Result<(), PolicyError> {
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

    /// Begins a layer: later pins override earlier pins of the same rank. Contradicting pins of one rank and
    /// layer for one node are an error of the run.
    pub fn next_layer(&mut self) {
        self.layers.push((self.pins.len(), self.value_pins.len()));
    }

    /// Leaves a guard out, or with the word for a group all of it ([`Judges::group`]).
    ///
    /// # Errors
    /// If there is no such guard or group.
    pub fn disable_guard(&mut self, name: &str) -> Result<(), PolicyError> {
        let meant = GUARDS.iter().filter(|guard| guard.name == name || guard.judges.group() == name);
        if meant.clone().next().is_some() {
            self.disabled_guards.extend(meant.map(|guard| guard.name.to_owned()));
            return Ok(());
        }
        let words = || GUARDS.iter().map(|g| g.name).chain(Judges::ALL.map(Judges::group));
        Err(PolicyError::UnknownGuard {
            found: name.to_owned(),
            hint: did_you_mean(nearest(name, words())),
            guards: words().collect::<Vec<_>>().join(", "),
        })
    }

    /// The requests besides classes.
    pub fn wants(&self) -> &Wants {
        &self.wants
    }
    /// Checks that the policy is for this format.
    ///
    /// # Errors
    /// If it asks for the other one.
    pub fn check_format(&self, to: DType) -> Result<(), PolicyError> {
        match self.wants.to {
            Some(wanted) if wanted != to => {
                Err(PolicyError::Format { policy: self.name.clone(), wanted, to })
            }
            Some(_) | None => Ok(()),
        }
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

    /// True if it repeats the decisions of an earlier run.
    pub fn is_report(&self) -> bool {
        !self.replay.is_empty()
    }

    /// The decision of the earlier run that is repeated.
    pub fn replayed(&self, path: &str, var: &str) -> Option<DType> {
        if self.replay.is_empty() {
            return None;
        }
        self.replay.get(&(path.to_owned(), var.to_owned())).copied()
    }

    /// True if pins spoke of casts in the earlier run.
    pub fn has_replayed_pins(&self) -> bool {
        !self.replayed_pins.is_empty()
    }

    /// The pin that named a cast in the earlier run.
    pub fn replayed_pin(&self, path: &str) -> Option<&PinnedBy> {
        self.replayed_pins.get(path)
    }

    /// The number of nodes with decisions in the report given as policy, and the number of these nodes for
    /// which the test is true.
    pub fn replayed_nodes(&self, test: impl Fn(&str) -> bool) -> (usize, usize) {
        let nodes: BTreeSet<&str> = self.replay.keys().map(|(path, _)| path.as_str()).collect();
        (nodes.len(), nodes.iter().filter(|path| test(path)).count())
    }
}

fn canonical(op: &str) -> Result<String, PolicyError> {
    let (domain, name) = op.rsplit_once("::").unwrap_or(("", op));
    let key = op_key(domain, name);
    let known_domain = op::latest_opset(domain).is_some();
    if known_domain && op::versions(domain, name).is_empty() {
        let names = op::all().iter().filter(|s| s.domain == domain).map(|s| s.name);
        return Err(PolicyError::UnknownOp {
            found: op.to_owned(),
            hint: did_you_mean(nearest(name, names)),
        });
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_nearest_word() {
        let message = |e: PolicyError| e.to_string();
        assert!(message(Policy::preset("sfae").unwrap_err()).contains("did you mean `safe`"));
        let mut policy = Policy::preset("safe").unwrap();
        assert!(
            message(policy.set_class("Matmul", Class::Deny, ListedBy::Options).unwrap_err())
                .contains("did you mean `MatMul`")
        );
        policy.set_class("MatMul", Class::Deny, ListedBy::Options).unwrap();
        let twice = policy.set_class("MatMul", Class::Allow, ListedBy::Options).unwrap_err();
        assert!(message(twice).contains("keep one"));
        assert!(message(policy.disable_guard("epss").unwrap_err()).contains("did you mean `eps`"));
        let bad = Policy::from_json("{\n \"bsae\": \"safe\"\n}").unwrap_err();
        assert!(bad.to_string().starts_with("line 2, "), "{bad}");
    }
}
