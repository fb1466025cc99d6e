//! What is wrong with a JSON file of the user's, a policy or a target, and where.

use crate::suggest::{did_you_mean, nearest};
use std::fmt;

/// A place in a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Line, from 1.
    pub line: usize,
    /// Column in bytes, from 1.
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// Why a text is no JSON of its schema.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct JsonError {
    /// Where.
    pub place: Place,
    /// What was expected and found.
    pub reason: String,
}

impl JsonError {
    /// An error about the last of some words, each of which stands behind the one before.
    pub(crate) fn at(text: &str, words: &[&str], reason: String) -> JsonError {
        let (mut from, mut at) = (0, 0);
        for word in words {
            let quoted = serde_json::Value::from(*word).to_string();
            let Some(found) = text[from..].find(&quoted) else { break };
            at = from + found;
            from = at + quoted.len();
        }
        let line = text[..at].matches('\n').count() + 1;
        let column = at - text[..at].rfind('\n').map_or(0, |at| at + 1) + 1;
        JsonError { place: Place { line, column }, reason }
    }
}

impl From<serde_json::Error> for JsonError {
    fn from(error: serde_json::Error) -> JsonError {
        JsonError { place: Place { line: error.line(), column: error.column() }, reason: reason(&error) }
    }
}

/// Why a text is not the JSON that is expected, without the place, with the field that may have been meant.
fn reason(error: &serde_json::Error) -> String {
    let mut reason = error.to_string();
    if let Some(at) = reason.rfind(" at line ") {
        reason.truncate(at);
    }
    if error.is_eof() {
        return format!("the file is empty or ends too early ({reason})");
    }
    if reason.starts_with("unknown field `") {
        // The field, and behind it those that there are, all in quotes.
        let words: Vec<&str> = reason.split('`').skip(1).step_by(2).collect();
        if let Some((found, fields)) = words.split_first() {
            let hint = did_you_mean(nearest(found, fields.iter().copied()));
            reason.push_str(&hint);
        }
    }
    reason
}
