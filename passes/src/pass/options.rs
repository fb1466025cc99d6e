//! Options of passes: how a pass prints and reads the values of its configuration.

use super::Pass;
use crate::pass::input_ranges::InputRanges;
use crate::pass::observed::Observed;
use crate::policy::{KeepIo, Policy, PolicyError};
use crate::spelling::formats::float_format;
use crate::spelling::words::{self, in_quotes, quoted};
use crate::target::{Profile, ProfileError};
use ampc_ir::DType;
use std::fmt;
use std::sync::Arc;

/// An option of a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionDef {
    /// Its name.
    pub name: &'static str,
    /// The valid values, for messages.
    pub values: &'static str,
    /// The default; `None` if the option is required.
    pub default: Option<&'static str>,
}

impl fmt::Display for OptionDef {
    /// `to=f16 or bf16 [default: f16]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OptionDef { name, values, default } = self;
        match default {
            None => write!(f, "{name}={values}"),
            Some("") => write!(f, "{name}={values} [default: none]"),
            Some(default) => write!(f, "{name}={values} [default: {default}]"),
        }
    }
}

/// The value of an option, as a pass prints it.
#[derive(Clone, Debug)]
pub enum Setting {
    /// A text, with quotes where it needs them.
    Text(String),
    /// A policy.
    Policy(Arc<Policy>),
    /// The profile of a target.
    Target(Arc<Profile>),
}

impl Setting {
    /// A word or number.
    pub fn word(word: impl ToString) -> Setting {
        Setting::Text(quoted(&word.to_string()))
    }
}

/// Resolver of the names in a pipeline. A function from names to policies is one, with the targets that come
/// with ampc.
pub trait Resolver {
    /// The policy of this name.
    ///
    /// # Errors
    /// If there is no such policy.
    fn policy(&self, name: &str) -> Result<Policy, PolicyError>;
    /// The profile of the target of this name.
    ///
    /// # Errors
    /// If there is no such target.
    fn target(&self, name: &str) -> Result<Profile, ProfileError> {
        Profile::preset(name)
    }
}

impl<F: Fn(&str) -> Result<Policy, PolicyError>> Resolver for F {
    fn policy(&self, name: &str) -> Result<Policy, PolicyError> {
        self(name)
    }
}

/// A pass of the table: its row.
pub(crate) trait Spelled: Pass + Sized + 'static {
    /// Its name.
    const NAME: &'static str;
    /// The description, as half a sentence.
    const ABOUT: &'static str;
    /// Its options. Each is read after those before it, whatever the order in the text.
    const OPTIONS: &'static [PassOption<Self>] = &[];
    /// The pass before its options are read. Options with a default are always read.
    fn blank() -> Self;
    /// Checks constraints between several options.
    fn check(&self) -> Result<(), PolicyError> {
        Ok(())
    }
}

/// An option of a pass: how it is printed and how it is read.
pub(crate) struct PassOption<P> {
    pub(crate) def: OptionDef,
    /// The value; `None` if the pass is the same without it.
    pub(crate) print: fn(&P) -> Option<Setting>,
    pub(crate) read: fn(&mut P, &Given<'_>) -> Result<(), Wrong>,
}

/// An option with its name, its values and its default.
pub(crate) const fn option(
    name: &'static str,
    values: &'static str,
    default: Option<&'static str>,
) -> OptionDef {
    OptionDef { name, values, default }
}

/// The option `to`: a format.
pub(crate) const FORMAT: OptionDef = option("to", "f16 or bf16", Some("f16"));
/// The option `policy`.
pub(crate) const POLICY: OptionDef = option("policy", "a policy", Some("safe"));
/// The option `keep-io`.
pub(crate) const KEEP_IO: OptionDef =
    option("keep-io", "all, none or names with `+` between them", Some("all"));

/// The option `target`.
pub(crate) const TARGET: OptionDef = option("target", "a target", Some("generic"));
/// The option `objective`.
pub(crate) const OBJECTIVE: OptionDef = option("objective", "time, casts or bytes", Some("time"));

/// The option `range`.
pub(crate) const RANGES: OptionDef =
    option("range", "ranges of inputs, INPUT=LO:HI with `+` between them", Some(""));

/// The option `trusted`.
pub(crate) const TRUSTED: OptionDef =
    option("trusted", "%INPUT=X or @NODE:RESULT=X with `+` between them", Some(""));

/// The option `observed`.
pub(crate) const OBSERVED: OptionDef =
    option("observed", "%INPUT=X, @NODE:RESULT=X or LO:HI, `+` between them", Some(""));

/// Two words, for a truth value.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// The word for no.
    pub no: &'static str,
    /// The word for yes.
    pub yes: &'static str,
}

impl Words {
    /// The word for a value.
    pub fn of(self, value: bool) -> &'static str {
        if value { self.yes } else { self.no }
    }

    /// Parses a word.
    pub fn read(self, word: &str) -> Option<bool> {
        [self.no, self.yes].iter().position(|known| *known == word).map(|at| at == 1)
    }
}

/// The value of an option in a text.
pub(crate) struct Given<'a> {
    pub(crate) value: &'a str,
    pub(crate) names: &'a dyn Resolver,
}

/// Error of reading a value.
pub(crate) enum Wrong {
    /// The value is invalid for the option.
    Value,
    /// A policy that does not exist or has invalid content.
    Policy(PolicyError),
    /// A target that does not exist or has invalid content.
    Target(ProfileError),
}

impl From<PolicyError> for Wrong {
    fn from(error: PolicyError) -> Wrong {
        Wrong::Policy(error)
    }
}

impl Given<'_> {
    pub(crate) fn word(&self) -> Result<String, Wrong> {
        words::word(self.value).ok_or(Wrong::Value)
    }
    /// Parses the word with a function.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&str) -> Option<T>) -> Result<T, Wrong> {
        read(&self.word()?).ok_or(Wrong::Value)
    }
    pub(crate) fn either(&self, words: Words) -> Result<bool, Wrong> {
        self.read(|word| words.read(word))
    }
    pub(crate) fn format(&self) -> Result<DType, Wrong> {
        self.read(|word| float_format(word).filter(|format| format.is_low()))
    }
    pub(crate) fn policy(&self) -> Result<Arc<Policy>, Wrong> {
        Ok(Arc::new(self.names.policy(&self.word()?)?))
    }
    pub(crate) fn target(&self) -> Result<Arc<Profile>, Wrong> {
        Ok(Arc::new(self.names.target(&self.word()?).map_err(Wrong::Target)?))
    }
    /// The words of a list; an empty text is an empty list.
    pub(crate) fn list(&self) -> Result<Vec<String>, Wrong> {
        if self.value.is_empty() { Ok(Vec::new()) } else { words::words(self.value).ok_or(Wrong::Value) }
    }
    /// The words of a list, as a function reads them.
    pub(crate) fn listed<T>(&self, read: impl FnOnce(&[String]) -> Option<T>) -> Result<T, Wrong> {
        read(&self.list()?).ok_or(Wrong::Value)
    }
    pub(crate) fn ranges(&self) -> Result<InputRanges, Wrong> {
        self.value.parse().map_err(|_| Wrong::Value)
    }
    pub(crate) fn observed(&self) -> Result<Observed, Wrong> {
        self.value.parse().map_err(|_| Wrong::Value)
    }
    pub(crate) fn keep_io(&self) -> Result<KeepIo, Wrong> {
        match self.value {
            "all" => Ok(KeepIo::All),
            "none" => Ok(KeepIo::None),
            _ => Ok(KeepIo::Names(self.list()?.into_iter().collect())),
        }
    }
}

/// The text of [`RANGES`]; `None` if there are none.
pub(crate) fn print_ranges(ranges: &InputRanges) -> Option<Setting> {
    (!ranges.is_empty()).then(|| Setting::Text(ranges.to_string()))
}

/// The text of [`KEEP_IO`]; `None` for the default.
pub(crate) fn print_keep_io(keep_io: &KeepIo) -> Option<Setting> {
    // In quotes, the words that stand for sets are names.
    let name =
        |name: &String| if ["all", "none"].contains(&name.as_str()) { in_quotes(name) } else { quoted(name) };
    match keep_io {
        KeepIo::All => None,
        KeepIo::None => Some(Setting::word("none")),
        KeepIo::Names(names) => Some(Setting::Text(names.iter().map(name).collect::<Vec<_>>().join("+"))),
    }
}

/// The options of a pass that are to be printed.
pub(crate) fn settings<P: Spelled>(pass: &P) -> Vec<(&'static str, Setting)> {
    P::OPTIONS.iter().filter_map(|option| Some((option.def.name, (option.print)(pass)?))).collect()
}
