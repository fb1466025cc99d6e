//! JSON files of users, policies, targets and reports: objects in the order of the file, and problems with
//! their places.

use crate::spelling::suggest::{did_you_mean, nearest};
use rustc_hash::FxHashSet;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::marker::PhantomData;

/// The entries of an object in the order of the file.
pub type Entries<T> = Vec<(String, T)>;

/// The entries of an object in the order of the file. No key may come twice.
///
/// # Errors
/// If it is not an object, a key occurs twice, or a value is not a `T`.
pub fn entries<'de, D, T>(deserializer: D) -> Result<Entries<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct InOrder<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for InOrder<T> {
        type Value = Entries<T>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut entries = Vec::new();
            let mut known = FxHashSet::default();
            while let Some(key) = map.next_key::<String>()? {
                if !known.insert(key.clone()) {
                    return Err(A::Error::custom(format!("`{key}` occurs twice: keep one")));
                }
                entries.push((key, map.next_value()?));
            }
            Ok(entries)
        }
    }
    deserializer.deserialize_map(InOrder(PhantomData))
}

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

/// Error of reading JSON with a schema.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct JsonError {
    /// Where.
    pub place: Place,
    /// Expected and found.
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

/// Error of reading a value, without the place, with the field that may have been meant.
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
