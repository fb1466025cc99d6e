//! Advice for operators that have the format only at a later opset.

use super::pipeline::Run;
use ampc::error::Error;
use ampc::options::Opset;
use ampc::passes::PassError;
use ampc::passes::pipeline::Pipeline;
use ampc::passes::raise_opset::{NEWEST_READ, NoForm, RaiseOpset, Target, opset};
use ampc::{Model, Report, RewriteOptions};

/// Effect of another `--opset`.
#[derive(Debug)]
pub(crate) enum OpsetAdvice {
    /// `auto` was not given, and leads to this opset.
    Raises(u16),
    /// `auto` was not given, and does nothing.
    Stays,
    /// `auto` was not given, and is refused, because of this.
    Refused(String),
    /// `auto` was given.
    AutoGiven,
    /// A number was given.
    NumberGiven,
}

impl OpsetAdvice {
    /// Finds out. Where it takes a trial, the model is read again; without warnings there is none.
    pub(crate) fn of(run: &Run<'_>, model: &Model, options: &RewriteOptions, report: &Report) -> OpsetAdvice {
        let asked = report.warnings.iter().any(|w| OpsetAdvice::is_about(&w.code));
        match options.opset {
            Opset::Auto => OpsetAdvice::AutoGiven,
            Opset::To(_) => OpsetAdvice::NumberGiven,
            Opset::Keep if asked => OpsetAdvice::of_trial(run, model, options).unwrap_or(OpsetAdvice::Stays),
            Opset::Keep => OpsetAdvice::Stays,
        }
    }

    fn of_trial(run: &Run<'_>, model: &Model, options: &RewriteOptions) -> Option<OpsetAdvice> {
        let mut fresh = run.reload(model)?;
        let before = opset(&fresh.module);
        let to =
            Target::Auto { format: options.to, policy: options.policy.clone(), units: options.raise.clone() };
        let pipeline = Pipeline::new(vec![Box::new(RaiseOpset { to })]).ok()?;
        match ampc::rewrite::run_pipeline(&mut fresh, &pipeline, false, &mut ()) {
            Ok(_) => opset(&fresh.module).filter(|&to| Some(to) != before).map(OpsetAdvice::Raises),
            Err(Error::Pass(PassError::NoForm { to, missing })) => {
                Some(OpsetAdvice::Refused(NoForm::at(to, &missing)))
            }
            Err(_) => None,
        }
    }

    /// True if a warning is about the opset at which an operator has the format.
    pub(crate) fn is_about(code: &str) -> bool {
        ["opset.bf16", "opset.f16"].contains(&code)
    }

    /// The advice about an operator that has the format from opset `first` on.
    pub(crate) fn text(&self, first: Option<u16>) -> String {
        let number = first.map_or_else(|| "N".to_owned(), |n| n.to_string());
        let stops = format!(
            "`--opset auto` stops at opset {NEWEST_READ}, the newest that ONNX Runtime 1.31 reads; `--opset {number}` \
             goes further"
        );
        match self {
            _ if first.is_some_and(|first| first > NEWEST_READ) => stops,
            OpsetAdvice::Raises(to) if first.is_some_and(|first| first <= *to) => {
                format!("`--opset auto` raises the model to opset {to}, at which it has the format")
            }
            OpsetAdvice::Refused(why) => format!("the model cannot be raised as far as that: {why}"),
            OpsetAdvice::Raises(_)
            | OpsetAdvice::Stays
            | OpsetAdvice::AutoGiven
            | OpsetAdvice::NumberGiven => {
                format!("`--opset {number}` raises the model as far as that")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_about_what_was_not_done_yet() {
        let text = |advice: &OpsetAdvice, first| advice.text(Some(first));
        assert!(
            text(&OpsetAdvice::Raises(22), 22).starts_with("`--opset auto` raises the model to opset 22")
        );
        assert!(text(&OpsetAdvice::AutoGiven, 27).contains("auto` stops at opset 26"));
        assert!(text(&OpsetAdvice::AutoGiven, 27).contains("`--opset 27` goes further"));
        assert!(!text(&OpsetAdvice::NumberGiven, 22).contains("auto"));
        let refused = OpsetAdvice::Refused("opset 17 has no form for Scan 8 → 9 (`s`)".into());
        assert!(text(&refused, 22).contains("cannot be raised as far as that: opset 17 has no form"));
    }
}
