//! Models that PyTorch's exporter `torch.export` made: their signature says which constants are parameters.
//!
//! The exporter also optimizes: it folds, merges and drops parameters. [`Exported::find`] undoes changes of the
//! exporter where metadata allow it (`repair.rs`), and lists the parameters of the program that are not trained
//! as in PyTorch, with the reasons.

use super::origin::{Origin, Origins};
use super::signature::Signature;
use super::tell::HINT;
use super::{initializers, repair};
use crate::pass::{PassCx, PassError};
use ampc_ir::{Module, Value};
use std::collections::{BTreeMap, BTreeSet};

/// A model whose signature can be used.
pub(super) struct Exported {
    pub(super) origins: Origins,
    /// The float constants and their origins, in order.
    pub(super) of: BTreeMap<Value, Origin>,
    /// Parameters that are tied in PyTorch, each with the parameter under whose name the file has its tensor.
    pub(super) tied: BTreeMap<String, String>,
}

impl Exported {
    /// Reads the signature of a model, and separates parameters that its exporter merged. Without a usable
    /// signature there is none, of which a damaged one warns.
    pub(super) fn find(module: &mut Module, cx: &mut PassCx<'_>) -> Result<Option<Exported>, PassError> {
        let signature = match Signature::of(module) {
            None => return Ok(None),
            Some(Ok(signature)) => signature,
            Some(Err(error)) => {
                cx.warn("parameters.signature", None, unusable(&error.to_string()));
                return Ok(None);
            }
        };
        let constants: Vec<Value> = initializers(module).into_iter().map(|(value, _)| value).collect();
        let origins = Origins::new(module, signature, &constants);
        let is_of_program = |value: &Value| match origins.of(module, *value) {
            Origin::Computed(_) => true,
            origin => origin.parameter().is_some(),
        };
        if !constants.iter().any(is_of_program) {
            let why = match origins.signature.parameters().count() {
                0 => "it lists no parameter".to_owned(),
                n => format!("none of its {n} parameters is a constant of the model"),
            };
            cx.warn("parameters.signature", None, unusable(&why));
            return Ok(None);
        }
        let mut exported = Exported { origins, of: BTreeMap::new(), tied: BTreeMap::new() };
        exported.classify(module);
        exported.tied = exported.origins.tied(module, &exported.missing());
        repair::split(module, &exported.origins, &exported.missing());
        exported.classify(module);
        repair::restore_biases(module, &exported.origins, &exported.missing(), &exported.carriers());
        exported.classify(module);
        for (parameter, constant) in repair::tie(module, &exported.carriers())? {
            let message = format!(
                "`{parameter}` is one parameter in PyTorch, but the exporter has folded it into `{constant}` as well; they are \
                 trained as two. {HINT}"
            );
            cx.warn("parameters.untied", None, message);
        }
        exported.classify(module);
        exported.note_names(module);
        Ok(Some(exported))
    }

    fn classify(&mut self, module: &Module) {
        let floats = initializers(module).into_iter().filter(|(_, data)| data.dtype().is_float());
        self.of = floats.map(|(value, _)| (value, self.origins.of(module, value))).collect();
    }

    /// The origin of a float constant.
    pub(super) fn origin(&self, value: Value) -> &Origin {
        self.of.get(&value).unwrap_or(&Origin::Unknown)
    }

    /// True if a constant may be a parameter although nothing says so: some parameters of the signature are missing.
    pub(super) fn may_be_parameter(&self) -> bool {
        !self.missing().is_empty()
    }

    /// The constants that are each parameter.
    fn carriers(&self) -> BTreeMap<String, Vec<Value>> {
        let mut carriers: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for (&value, origin) in &self.of {
            if let Some(name) = origin.parameter() {
                let of_name = carriers.entry(name.to_owned()).or_default();
                // The tensor itself comes before what was folded from it.
                if matches!(origin, Origin::Tensor(..)) {
                    of_name.insert(0, value)
                } else {
                    of_name.push(value)
                }
            }
        }
        carriers
    }

    /// The tensors of the program that no constant is and that contributed to none, in order; counts of batches and tied
    /// parameters excepted.
    pub(super) fn missing(&self) -> Vec<String> {
        let mut known: BTreeSet<&str> = self.origins.contributors.iter().map(String::as_str).collect();
        for origin in self.of.values() {
            match origin {
                Origin::Tensor(_, name) | Origin::Moved(name) => drop(known.insert(name)),
                Origin::Computed(names) => known.extend(names.iter().map(String::as_str)),
                Origin::Table | Origin::Unknown => {}
            }
        }
        let tensors = self.origins.signature.tensors();
        let absent = tensors
            .filter(|spec| !known.contains(spec.target.as_str()) && !known.contains(spec.arg.as_str()));
        let names =
            absent.map(|spec| spec.target.clone()).filter(|name| !name.ends_with("num_batches_tracked"));
        names.filter(|name| !self.tied.contains_key(name)).collect()
    }

    /// The names of the parameters that are tied to the parameter that a constant is.
    pub(super) fn tied_to<'a>(&'a self, origin: &'a Origin) -> impl Iterator<Item = &'a str> {
        let tied = self.tied.iter().filter(|(_, owner)| origin.parameter() == Some(owner));
        tied.map(|(name, _)| name.as_str())
    }

    /// Writes the names of parameters beside constants with other names.
    fn note_names(&self, module: &mut Module) {
        for (&value, origin) in &self.of {
            if let Origin::Moved(name) = origin {
                repair::note_origin(module, value, name);
            }
        }
    }
}

fn unusable(why: &str) -> String {
    format!(
        "the signature of the exported program in the model's metadata cannot be used: {why}; parameters are found as in a \
         model without one"
    )
}
