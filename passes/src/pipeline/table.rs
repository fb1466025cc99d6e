//! The table of passes: names, descriptions and options.
//!
//! A pass has a row of [`PASSES`] and an implementation of [`Spelled`] beside it, whose options define both
//! parsing and printing of a value. Parsing, printing, the help of `ampc opt` and the list in `docs/cli.md` go
//! by them.

use super::PipelineError;
use super::spelling::{self, Spec, in_quotes, quoted};
use crate::analysis::cost::Objective;
use crate::casts::insert_casts::KeepIo;
use crate::casts::{convert_constants, dce, emulate, insert_casts, move_casts, simplify_casts};
use crate::functions::{bind_signatures, share_functions, specialize_functions};
use crate::opset::raise_opset;
use crate::pass::Pass;
use crate::policy::{Policy, PolicyError, float_format};
use crate::precision::{assign, classify, guard, taint};
use crate::spelling::suggest::{did_you_mean, nearest};
use crate::target::{Profile, ProfileError};
use crate::training::{autodiff, evaluate_constants, parameters, recompute, step};
use ampc_ir::DType;
use std::fmt;
use std::sync::Arc;

/// A pass that pipelines can name.
#[derive(Clone, Copy, Debug)]
pub struct PassDef {
    /// Its name.
    pub name: &'static str,
    /// The description, as half a sentence.
    pub about: &'static str,
    options: fn() -> Vec<OptionDef>,
    read: Read,
}

/// Makes a pass of its text.
type Read = fn(&Spec, &dyn Resolver) -> Result<Box<dyn Pass>, PipelineError>;

/// All passes, in the usual order.
pub const PASSES: &[PassDef] = &[
    row::<bind_signatures::BindSignatures>(),
    row::<raise_opset::RaiseOpset>(),
    row::<evaluate_constants::EvaluateConstants>(),
    row::<move_casts::MoveCasts>(),
    row::<specialize_functions::SpecializeFunctions>(),
    row::<classify::Classify>(),
    row::<guard::Guard>(),
    row::<taint::Taint>(),
    row::<assign::Assign>(),
    row::<insert_casts::InsertCasts>(),
    row::<simplify_casts::SimplifyCasts>(),
    row::<convert_constants::ConvertConstants>(),
    row::<dce::Dce>(),
    row::<share_functions::ShareFunctions>(),
    row::<parameters::Parameters>(),
    row::<parameters::ExposeParameters>(),
    row::<step::loss::Loss>(),
    row::<step::stable::StableLoss>(),
    row::<step::dropout::PhiloxDropout>(),
    row::<step::loss_scale::ScaleLoss>(),
    row::<autodiff::Autodiff>(),
    row::<step::update::Update>(),
    row::<step::avoid_fusions::AvoidFusions>(),
    row::<recompute::Recompute>(),
    row::<step::inference::Inference>(),
    row::<emulate::Emulate>(),
];

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

impl PassDef {
    /// Its options, in the order in which they are printed.
    pub fn options(&self) -> Vec<OptionDef> {
        (self.options)()
    }
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

/// The option `objective`.
pub(crate) const OBJECTIVE: OptionDef = option("objective", "time, casts or bytes", Some("time"));

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

/// The choice of formats: by a minimum cut, or not.
pub(crate) const BY: Words = Words { no: "paint", yes: "cut" };

/// The value of an option in a text.
pub(crate) struct Given<'a> {
    value: &'a str,
    names: &'a dyn Resolver,
}

/// Error of reading a value.
pub(crate) enum Wrong {
    /// The value is invalid for the option.
    Value,
    /// A name that does not exist or has invalid content.
    Named(PipelineError),
}

impl From<PolicyError> for Wrong {
    fn from(error: PolicyError) -> Wrong {
        Wrong::Named(error.into())
    }
}

impl Given<'_> {
    pub(crate) fn word(&self) -> Result<String, Wrong> {
        spelling::word(self.value).ok_or(Wrong::Value)
    }
    /// Parses the word with a function.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&str) -> Option<T>) -> Result<T, Wrong> {
        read(&self.word()?).ok_or(Wrong::Value)
    }
    pub(crate) fn either(&self, words: Words) -> Result<bool, Wrong> {
        self.read(|word| words.read(word))
    }
    pub(crate) fn objective(&self) -> Result<Objective, Wrong> {
        self.read(|word| word.parse().ok())
    }
    pub(crate) fn format(&self) -> Result<DType, Wrong> {
        self.read(|word| float_format(word).filter(|format| format.is_low()))
    }
    pub(crate) fn policy(&self) -> Result<Arc<Policy>, Wrong> {
        Ok(Arc::new(self.names.policy(&self.word()?)?))
    }
    pub(crate) fn target(&self) -> Result<Arc<Profile>, Wrong> {
        let profile = self.names.target(&self.word()?).map_err(|error| Wrong::Named(error.into()))?;
        Ok(Arc::new(profile))
    }
    /// The words of a list; an empty text is an empty list.
    pub(crate) fn list(&self) -> Result<Vec<String>, Wrong> {
        if self.value.is_empty() { Ok(Vec::new()) } else { spelling::words(self.value).ok_or(Wrong::Value) }
    }
    /// The words of a list, as a function reads them.
    pub(crate) fn listed<T>(&self, read: impl FnOnce(&[String]) -> Option<T>) -> Result<T, Wrong> {
        read(&self.list()?).ok_or(Wrong::Value)
    }
    pub(crate) fn keep_io(&self) -> Result<KeepIo, Wrong> {
        match self.value {
            "all" => Ok(KeepIo::All),
            "none" => Ok(KeepIo::None),
            _ => Ok(KeepIo::Names(self.list()?.into_iter().collect())),
        }
    }
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

const fn row<P: Spelled>() -> PassDef {
    PassDef { name: P::NAME, about: P::ABOUT, options: options::<P>, read: read::<P> }
}

fn options<P: Spelled>() -> Vec<OptionDef> {
    P::OPTIONS.iter().map(|option| option.def).collect()
}

/// The pass that a text spells.
pub(super) fn build(spec: &Spec, names: &dyn Resolver) -> Result<Box<dyn Pass>, PipelineError> {
    match PASSES.iter().find(|pass| pass.name == spec.name) {
        Some(pass) => (pass.read)(spec, names),
        None => Err(PipelineError::UnknownPass {
            found: spec.name.clone(),
            hint: did_you_mean(nearest(&spec.name, pass_names())),
            passes: pass_names().collect::<Vec<_>>().join(", "),
        }),
    }
}

/// The names of all passes, in the usual order.
pub fn pass_names() -> impl Iterator<Item = &'static str> + Clone {
    PASSES.iter().map(|pass| pass.name)
}

fn read<P: Spelled>(spec: &Spec, names: &dyn Resolver) -> Result<Box<dyn Pass>, PipelineError> {
    let known = || P::OPTIONS.iter().map(|option| option.def.name);
    if let Some((option, _)) = spec.options.iter().find(|(name, _)| !known().any(|known| known == name)) {
        return Err(PipelineError::UnknownOption {
            pass: spec.name.clone(),
            option: option.clone(),
            hint: did_you_mean(nearest(option, known())),
        });
    }
    let is_twice = |i: usize| spec.options[..i].iter().any(|(name, _)| *name == spec.options[i].0);
    if let Some(i) = (0..spec.options.len()).find(|&i| is_twice(i)) {
        return Err(PipelineError::OptionTwice {
            pass: spec.name.clone(),
            option: spec.options[i].0.clone(),
        });
    }
    let mut pass = P::blank();
    for option in P::OPTIONS {
        let OptionDef { name, values, default } = option.def;
        let said = spec.options.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let bad = |found: &str| PipelineError::BadValue {
            pass: spec.name.clone(),
            option: name.to_owned(),
            expected: values,
            found: found.to_owned(),
        };
        let value = said.or(default).ok_or_else(|| bad("nothing"))?;
        (option.read)(&mut pass, &Given { value, names }).map_err(|wrong| match wrong {
            Wrong::Value => bad(value),
            Wrong::Named(error) => error,
        })?;
    }
    pass.check()?;
    Ok(Box::new(pass))
}
