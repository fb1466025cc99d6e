//! Options of a rewrite as bytes say them, by the table of options: an option that is added is chosen with the others.

use ampc::RewriteOptions;
use ampc::options::{OPTIONS, RecordedOption};

/// Sets every option of the table but `without` to a choice that a byte makes; 0 is the default.
pub(crate) fn choose(options: &mut RewriteOptions, without: &[&str], mut byte: impl FnMut() -> u8) {
    for option in OPTIONS.iter().filter(|option| !without.contains(&option.name)) {
        let choices = (option.choices)();
        set(options, option, choices[usize::from(byte()) % choices.len()]);
    }
}

/// Sets one option of the table.
pub(crate) fn set(options: &mut RewriteOptions, option: &RecordedOption, value: Option<&str>) {
    option.set(options, value).unwrap_or_else(|error| panic!("{error}"));
}
