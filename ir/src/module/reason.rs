//! Reasons of decisions, as data: a rule with its evidence.
//!
//! Passes make reasons and compare their fields; reports and the command line print them. The only texts that are read
//! again are those of the text form and of graphs as JSON: [`Reason::parse`] is the inverse of [`Reason::rule_text`] and
//! [`Reason::evidence_text`], for every reason and for every pair of texts. A pair of texts that no rule prints is
//! [`Rule::Unknown`], and is kept as it is.
//!
//! ```text
//! why=guard.eps("1e-12 rounds to 0")    Rule::Guard { name: "eps", evidence: "1e-12 rounds to 0" }
//! why=table("pin:c")                    Rule::Table, with the pin `c` that names the node
//! why=taint:n1("downstream of Exp")     Rule::Taint { node: "n1", op: "Exp" }
//! why=mine("because")                   Rule::Unknown
//! ```
//!
//! A guard is a name here, because this crate knows no guards: a pass may have others.

mod placement;
mod text;

pub use self::placement::Why;
pub use self::text::NoPin;

use crate::dtype::DType;
use crate::op::Class;
use std::borrow::Cow;

/// Reason of a decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reason {
    rule: Rule,
    /// Only with a rule that has no evidence of its own.
    pin: Option<PinnedBy>,
}

impl Reason {
    /// The reason of a rule.
    pub fn new(rule: Rule) -> Reason {
        Reason { rule, pin: None }
    }

    /// The reason of a rule for a node that a pin names. The pin is the evidence, and is dropped if the rule has
    /// evidence of its own.
    pub fn with_pin(rule: Rule, pin: PinnedBy) -> Reason {
        let pin = (!rule.has_evidence()).then_some(pin);
        Reason { rule, pin }
    }

    /// The rule that decided.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// The pin that names the node without deciding this type variable: a cast that a pin names keeps its place, though
    /// the type of its result is never decided.
    pub fn pin(&self) -> Option<&PinnedBy> {
        self.pin.as_ref()
    }
}

impl From<Rule> for Reason {
    fn from(rule: Rule) -> Reason {
        Reason::new(rule)
    }
}

/// The rule of a decision, with its evidence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// The author of the graph requests the decision and gives no rule, at most a note.
    Request {
        /// The note; mostly empty.
        note: String,
    },
    /// The class in the operator table.
    Table,
    /// The class in the signature of an operator that a policy describes.
    Signature,
    /// A list of operators names the operator.
    Listed {
        /// The owner of the list.
        by: ListedBy,
        /// The class of the list.
        class: Class,
    },
    /// No list names the operator, and the policy gives unlisted operators a class.
    Unlisted,
    /// The schema alone: it admits the format, or lacks it.
    Schema,
    /// The node computes a loss.
    Loss,
    /// An attribute gives the type of the result.
    Attribute,
    /// The operator has the format from a later opset on.
    Opset(DType),
    /// The type is not f32.
    Type,
    /// The type is unknown.
    UnknownType,
    /// The variable is 16-bit in the source.
    AlreadyLow,
    /// A report that is given as policy repeats the decision.
    Replay,
    /// A pin.
    Pin(PinnedBy),
    /// A guard.
    Guard {
        /// The name of the guard.
        name: Cow<'static, str>,
        /// The numbers and nodes that it found.
        evidence: String,
    },
    /// A value of the operator came near an end of the range of the format on data.
    Observed {
        /// The value and its number of largest magnitude.
        evidence: String,
    },
    /// Data shows that the results stay within the range, which answers the objection of a guard; the class is unchanged.
    Trusted {
        /// The objection, and the number of largest magnitude.
        evidence: String,
    },
    /// An operator upstream is denied.
    Taint {
        /// The path of its node.
        node: String,
        /// The operator.
        op: String,
    },
    /// A choice of formats for the whole model.
    Placement {
        /// The class of the variable.
        class: Class,
        /// Why the choice decides so.
        why: Why,
    },
    /// The kernel of the target computes in fp32 and rounds once.
    Kernel {
        /// The name of the target.
        target: String,
    },
    /// The operator is computed in integers.
    Quantized(Quantized),
    /// No 16-bit format makes the model faster on the target; with the class of the variable.
    NoGain(Class),
    /// The variable has one element type with a sequence or optional that is an input or output of the model.
    PublicSequence {
        /// The name of the sequence.
        value: String,
    },
    /// The variable has one element type with a sequence or optional that an unknown operator reads or makes.
    UnknownSequence {
        /// The operator, or a value of it.
        by: String,
    },
    /// The variable has one element type with the values of a node, whose type is decided.
    Sequence {
        /// The path of the node.
        node: String,
        /// The text of the rule that decided about the node.
        rule: String,
    },
    /// A rule that no pass of this version makes, or evidence that it does not make for the rule.
    Unknown(UnknownReason),
}

impl Rule {
    /// The request of the rule, if it is a pin.
    pub fn pinned_by(&self) -> Option<&PinnedBy> {
        match self {
            Rule::Pin(pin) => Some(pin),
            _ => None,
        }
    }

    /// True if the rule may be printed with evidence of its own.
    fn has_evidence(&self) -> bool {
        match self {
            Rule::Table
            | Rule::Signature
            | Rule::Listed { .. }
            | Rule::Unlisted
            | Rule::Schema
            | Rule::Loss
            | Rule::Attribute
            | Rule::Opset(_)
            | Rule::Type
            | Rule::UnknownType
            | Rule::AlreadyLow
            | Rule::Replay
            | Rule::Pin(_) => false,
            Rule::Request { .. }
            | Rule::Guard { .. }
            | Rule::Observed { .. }
            | Rule::Trusted { .. }
            | Rule::Taint { .. }
            | Rule::Placement { .. }
            | Rule::Kernel { .. }
            | Rule::Quantized(_)
            | Rule::NoGain(_)
            | Rule::PublicSequence { .. }
            | Rule::UnknownSequence { .. }
            | Rule::Sequence { .. }
            | Rule::Unknown(_) => true,
        }
    }
}

/// The owner of a list of operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ListedBy {
    /// Options of the run, such as those of the command line.
    Options,
    /// A policy file.
    Policy,
    /// A preset, also if a policy file extends it.
    Preset,
    /// The graph itself, which requests the class for one node.
    Graph,
}

impl ListedBy {
    /// All owners.
    pub const ALL: [ListedBy; 4] = [ListedBy::Options, ListedBy::Policy, ListedBy::Preset, ListedBy::Graph];

    /// The word before the class in the text of a rule.
    pub const fn as_str(self) -> &'static str {
        match self {
            ListedBy::Options => "list",
            ListedBy::Policy => "policy",
            ListedBy::Preset => "preset",
            ListedBy::Graph => "decision",
        }
    }
}

/// The request that pins a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PinnedBy {
    /// A pin of the user.
    Pattern(PinPattern),
    /// The graph itself, which requests an element type.
    Graph,
    /// A list that denies casts.
    List(ListedBy),
}

impl PinnedBy {
    /// The pin with a pattern. A pattern that is spelled like another request (`decision`, `list.deny`) is that request,
    /// because the text of a rule tells them apart by nothing else.
    pub fn pattern(text: impl Into<String>) -> PinnedBy {
        let text = text.into();
        text::reserved(&text).unwrap_or(PinnedBy::Pattern(PinPattern(text)))
    }
}

/// The pattern of a pin, as the user wrote it: a name, glob or regular expression of nodes or values, possibly with `#`
/// and a type variable. No other request has the same text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PinPattern(String);

/// Kinds of operators that are computed in integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quantized {
    /// All results are quantized again.
    Between,
    /// A product that makes floats.
    Product,
}

/// The texts of an unknown rule. They are not those of another rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnknownReason {
    rule: String,
    evidence: String,
}
