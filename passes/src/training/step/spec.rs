//! The spelling of losses, optimizers, loss scalers and learning-rate schedules: a kind, and settings after a colon. A
//! setting whose value has a comma stands in quotes as a whole.
//!
//! ```text
//! cross-entropy:ignore_index=-100,label_smoothing=0.1
//! mse:"of=a,b"
//! ```

use crate::spelling::suggest::{did_you_mean, nearest};
use crate::spelling::words::{in_quotes, list};
use std::str::FromStr;

/// Error in the spelling of a loss, optimizer, loss scaler or learning-rate schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, found `{found}`{hint}")]
pub struct SpecError {
    /// The expected text, as it follows `expected` in the message.
    pub expected: String,
    /// The text it found.
    pub found: String,
    /// The word that was probably meant, as it follows the message; empty if there is none.
    pub hint: String,
}

impl SpecError {
    /// An error without a hint.
    pub fn new(expected: impl Into<String>, found: impl Into<String>) -> SpecError {
        SpecError { expected: expected.into(), found: found.into(), hint: String::new() }
    }

    /// The error with a hint at the nearest of the words that are valid there.
    pub fn with_words<'a>(self, words: impl IntoIterator<Item = &'a str>) -> SpecError {
        SpecError { hint: did_you_mean(nearest(&self.found, words)), ..self }
    }
}

/// The settings after the first `:` of a text, which all have to be taken.
pub struct Settings<'a> {
    kind: &'a str,
    rest: Vec<(String, String)>,
}

/// A setting as [`Settings`] reads it, in quotes if its value has a comma.
pub(super) fn setting(key: &str, value: &str) -> String {
    let text = format!("{key}={value}");
    if value.contains(',') { in_quotes(&text) } else { text }
}

impl<'a> Settings<'a> {
    /// Takes a text apart.
    ///
    /// # Errors
    /// If a setting is not a `key=value`, or is there twice.
    pub fn of(text: &'a str) -> Result<Settings<'a>, SpecError> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let pair = |entry: &String| {
            let pair = entry.split_once('=');
            let pair = pair.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()));
            pair.ok_or_else(|| SpecError::new("settings like `key=value`", entry.clone()))
        };
        let entries = list(rest, ',').ok_or_else(|| SpecError::new("settings with quotes that end", rest))?;
        let entries = entries.iter().filter(|entry| !entry.trim().is_empty());
        let rest: Vec<(String, String)> = entries.map(pair).collect::<Result<_, _>>()?;
        let twice =
            rest.iter().enumerate().find(|(i, (key, _))| rest[..*i].iter().any(|(other, _)| other == key));
        if let Some((_, (key, _))) = twice {
            return Err(SpecError::new("every setting once", key.clone()));
        }
        Ok(Settings { kind, rest })
    }

    /// The text before the colon.
    pub fn kind(&self) -> &'a str {
        self.kind
    }

    /// The value of a setting, which is taken.
    pub fn word(&mut self, key: &str) -> Option<String> {
        let at = self.rest.iter().position(|(found, _)| found == key)?;
        Some(self.rest.remove(at).1)
    }

    /// A number, which `expected` describes.
    ///
    /// # Errors
    /// If it is not a number.
    pub fn number<T: FromStr>(&mut self, key: &str, expected: &str) -> Result<Option<T>, SpecError> {
        self.checked(key, expected, |_| true)
    }

    /// A number in \[lo, hi\], or `None` if the setting is absent.
    ///
    /// # Errors
    /// If it is not a number or outside.
    pub fn within(&mut self, key: &str, lo: f64, hi: f64) -> Result<Option<f64>, SpecError> {
        self.checked(key, &format!("a number from {lo} to {hi}"), |number| (lo..=hi).contains(number))
    }

    /// A number in \[0, 1), or `None` if the setting is absent.
    ///
    /// # Errors
    /// If it is not a number or outside.
    pub fn share(&mut self, key: &str) -> Result<Option<f64>, SpecError> {
        self.checked(key, "a number of at least 0 and less than 1", |number| (0.0..1.0).contains(number))
    }

    /// A value that parses and fulfils `is_valid`, which `expected` describes.
    fn checked<T: FromStr>(
        &mut self,
        key: &str,
        expected: &str,
        is_valid: impl FnOnce(&T) -> bool,
    ) -> Result<Option<T>, SpecError> {
        let Some(text) = self.word(key) else { return Ok(None) };
        match text.parse() {
            Ok(value) if is_valid(&value) => Ok(Some(value)),
            _ => Err(SpecError::new(format!("{expected} for `{key}`"), text)),
        }
    }

    /// A switch, off if it is not there.
    ///
    /// # Errors
    /// If it is neither 0 nor 1.
    pub fn flag(&mut self, key: &str) -> Result<bool, SpecError> {
        match self.word(key).as_deref() {
            None | Some("0" | "false") => Ok(false),
            Some("1" | "true") => Ok(true),
            Some(other) => Err(SpecError::new(format!("0 or 1 for `{key}`"), other)),
        }
    }

    /// Checks that all settings are in `known`, a list separated by `, `, before any is taken.
    ///
    /// # Errors
    /// If there is one.
    pub fn check(&self, known: &str) -> Result<(), SpecError> {
        let unknown = self.rest.iter().find(|(key, _)| !known.split(", ").any(|known| known == key));
        unknown.map_or(Ok(()), |(key, _)| Err(self.unknown(key, known)))
    }

    /// Fails if a setting was not read by any of the calls above. `known` lists the valid settings for the
    /// message.
    ///
    /// # Errors
    /// If there is such a setting.
    pub fn finish(self, known: &str) -> Result<(), SpecError> {
        self.rest.first().map_or(Ok(()), |(key, _)| Err(self.unknown(key, known)))
    }

    fn unknown(&self, key: &str, known: &str) -> SpecError {
        let expected = format!("settings of `{}`: {known}", self.kind);
        SpecError::new(expected, key).with_words(known.split(", "))
    }
}
