//! The constants that a user chooses to train or to freeze, by patterns of their names.

use crate::pass::training_error::ParameterError;
use crate::policy::Pattern;

/// The patterns of constants to train and to freeze.
pub(super) struct Chosen {
    patterns: Vec<Choice>,
}

/// A pattern of constants to train or to freeze.
struct Choice {
    pattern: Pattern,
    trains: bool,
    has_matched: bool,
    /// The first running statistic that it matches.
    statistic: Option<String>,
}

impl Chosen {
    pub(super) fn new(train: &[String], freeze: &[String]) -> Result<Chosen, ParameterError> {
        let choice = |pattern, trains| Choice { pattern, trains, has_matched: false, statistic: None };
        let of = |list, trains| patterns(list).map(|list| list.into_iter().map(move |p| choice(p, trains)));
        Ok(Chosen { patterns: of(train, true)?.chain(of(freeze, false)?).collect() })
    }

    /// True if a constant is to be trained, false if it is to be frozen; none if no pattern matches its name or the names
    /// of the parameters that it is: several parameters are tied.
    pub(super) fn choose(&mut self, name: &str, parameters: &[&str]) -> Option<bool> {
        let mut best: Option<(usize, bool)> = None;
        for Choice { pattern, trains, has_matched, .. } in &mut self.patterns {
            for name in [name].iter().chain(parameters).copied() {
                let exactly = pattern.given() == name;
                if exactly || pattern.matches(name) {
                    *has_matched = true;
                    let weight = if exactly { usize::MAX } else { literal(pattern.given()) };
                    // Of two that say as much, the later one holds, which is that of `freeze`.
                    if best.is_none_or(|(other, _)| other <= weight) {
                        best = Some((weight, *trains));
                    }
                }
            }
        }
        best.map(|(_, trains)| trains)
    }

    /// Notes which patterns match a running statistic.
    pub(super) fn note_statistic(&mut self, name: &str) {
        for choice in self.patterns.iter_mut().filter(|choice| choice.statistic.is_none()) {
            if choice.pattern.given() == name || choice.pattern.matches(name) {
                choice.statistic = Some(name.to_owned());
            }
        }
    }

    /// The first pattern that matches no constant that can be trained, and a running statistic that it matches.
    pub(super) fn unmatched(&self) -> Option<(String, Option<String>)> {
        let unmatched = self.patterns.iter().find(|choice| !choice.has_matched);
        unmatched.map(|choice| (choice.pattern.given().to_owned(), choice.statistic.clone()))
    }
}

/// The number of characters of a pattern that stand for themselves.
fn literal(pattern: &str) -> usize {
    let pattern = pattern.strip_prefix("re:").unwrap_or(pattern);
    pattern.chars().filter(|c| c.is_alphanumeric() || matches!(c, '_' | '/' | '-' | ':')).count()
}

fn patterns(list: &[String]) -> Result<Vec<Pattern>, ParameterError> {
    Ok(list.iter().map(|text| Pattern::of_values(text)).collect::<Result<_, _>>()?)
}
