//! The table of passes: names, descriptions and options.
//!
//! A pass has a row of [`PASSES`] and an implementation of [`Spelled`] beside it, whose options define both
//! parsing and printing of a value. Parsing, printing, the help of `ampc opt` and the list in `docs/cli.md` go
//! by them.

use super::PipelineError;
use super::spelling::Spec;
use crate::casts::{convert_constants, dce, emulate, insert_casts, move_casts, simplify_casts};
use crate::functions::{bind_signatures, share_functions, specialize_functions};
use crate::opset::{raise_opset, raise_units};
use crate::pass::Pass;
use crate::pass::options::{Given, OptionDef, Resolver, Spelled, Wrong};
use crate::precision::{assign, classify, guard, observe, saturate_masks, taint};
use crate::spelling::suggest::{did_you_mean, nearest};
use crate::training::{autodiff, evaluate_constants, parameters, recompute, step};

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
    row::<raise_units::RaiseUnits>(),
    row::<evaluate_constants::EvaluateConstants>(),
    row::<move_casts::MoveCasts>(),
    row::<saturate_masks::SaturateMasks>(),
    row::<specialize_functions::SpecializeFunctions>(),
    row::<classify::Classify>(),
    row::<guard::Guard>(),
    row::<taint::Taint>(),
    row::<observe::Observe>(),
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

impl PassDef {
    /// Its options, in the order in which they are printed.
    pub fn options(&self) -> Vec<OptionDef> {
        (self.options)()
    }
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
            Wrong::Policy(error) => error.into(),
            Wrong::Target(error) => error.into(),
        })?;
    }
    pass.check()?;
    Ok(Box::new(pass))
}
