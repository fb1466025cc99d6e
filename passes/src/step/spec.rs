//! The spelling of losses, optimizers and loss scalers: a kind, and settings behind a colon.
//!
//! ```text
//! cross-entropy:ignore_index=-100,label_smoothing=0.1
//! ```

use std::str::FromStr;

/// Why a text is no loss, optimizer, loss scaler or learning-rate schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, found `{found}`")]
pub struct SpecError {
    /// What would be right.
    pub expected: String,
    /// What is there.
    pub found: String,
}

/// The settings behind the first `:` of a text, which all have to be taken.
pub struct Settings<'a> {
    kind: &'a str,
    rest: Vec<(&'a str, &'a str)>,
}

impl<'a> Settings<'a> {
    /// Takes a text apart.
    ///
    /// # Errors
    /// If a setting is no `key=value`, or is there twice.
    pub fn of(text: &'a str) -> Result<Settings<'a>, SpecError> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let pair = |entry: &'a str| {
            let pair = entry.split_once('=').map(|(key, value)| (key.trim(), value.trim()));
            pair.ok_or_else(|| SpecError {
                expected: "settings like `key=value`".into(),
                found: entry.into(),
            })
        };
        let entries = rest.split(',').filter(|entry| !entry.trim().is_empty());
        let rest: Vec<_> = entries.map(pair).collect::<Result<_, _>>()?;
        let twice =
            rest.iter().enumerate().find(|(i, (key, _))| rest[..*i].iter().any(|(other, _)| other == key));
        if let Some((_, (key, _))) = twice {
            return Err(SpecError { expected: "every setting once".into(), found: (*key).into() });
        }
        Ok(Settings { kind, rest })
    }

    /// What is before the colon.
    pub fn kind(&self) -> &'a str {
        self.kind
    }

    /// The value of a setting, which is taken.
    pub fn word(&mut self, key: &str) -> Option<&'a str> {
        let at = self.rest.iter().position(|(found, _)| *found == key)?;
        Some(self.rest.remove(at).1)
    }

    /// A number, which `expected` describes.
    ///
    /// # Errors
    /// If it is none.
    pub fn number<T: FromStr>(&mut self, key: &str, expected: &str) -> Result<Option<T>, SpecError> {
        let Some(text) = self.word(key) else { return Ok(None) };
        let wrong = || SpecError { expected: format!("{expected} for `{key}`"), found: text.into() };
        text.parse().map(Some).map_err(|_| wrong())
    }

    /// A number of an interval.
    ///
    /// # Errors
    /// If it is none, or outside.
    pub fn within(&mut self, key: &str, lo: f64, hi: f64) -> Result<Option<f64>, SpecError> {
        let text = self.rest.iter().find(|(found, _)| *found == key).map(|(_, text)| (*text).to_owned());
        let expected = format!("a number from {lo} to {hi}");
        match self.number::<f64>(key, &expected)? {
            Some(number) if !(lo..=hi).contains(&number) => Err(SpecError {
                expected: format!("{expected} for `{key}`"),
                found: text.unwrap_or_default(),
            }),
            number => Ok(number),
        }
    }

    /// A number from 0 on, which 1 is too much for.
    ///
    /// # Errors
    /// If it is none.
    pub fn share(&mut self, key: &str) -> Result<Option<f64>, SpecError> {
        let text = self.rest.iter().find(|(found, _)| *found == key).map(|(_, text)| (*text).to_owned());
        let expected = "a number of at least 0 and less than 1";
        match self.number::<f64>(key, expected)? {
            Some(number) if !(0.0..1.0).contains(&number) => Err(SpecError {
                expected: format!("{expected} for `{key}`"),
                found: text.unwrap_or_default(),
            }),
            number => Ok(number),
        }
    }

    /// A switch, off if it is not there.
    ///
    /// # Errors
    /// If it is neither 0 nor 1.
    pub fn flag(&mut self, key: &str) -> Result<bool, SpecError> {
        match self.word(key) {
            None | Some("0" | "false") => Ok(false),
            Some("1" | "true") => Ok(true),
            Some(other) => Err(SpecError { expected: format!("0 or 1 for `{key}`"), found: other.into() }),
        }
    }

    /// Looks for settings that are none of `known`, a list with `, ` between them, before any is taken.
    ///
    /// # Errors
    /// If there is one.
    pub fn check(&self, known: &str) -> Result<(), SpecError> {
        let unknown = self.rest.iter().find(|(key, _)| !known.split(", ").any(|known| known == *key));
        unknown.map_or(Ok(()), |(key, _)| Err(self.unknown(key, known)))
    }

    /// What is left is known to nobody.
    ///
    /// # Errors
    /// If something is left; `known` lists what would have been taken.
    pub fn finish(self, known: &str) -> Result<(), SpecError> {
        self.rest.first().map_or(Ok(()), |(key, _)| Err(self.unknown(key, known)))
    }

    fn unknown(&self, key: &str, known: &str) -> SpecError {
        let expected = format!("settings of `{}`: {known}", self.kind);
        SpecError { expected, found: key.into() }
    }
}
