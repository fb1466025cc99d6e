//! Pipelines: passes in order, with their conditions checked when the pipeline is built.
//!
//! A pipeline has a spelling, `classify{to=f16, policy=safe}, taint, assign{to=f16}`, which prints and parses
//! back by the table of passes. Running it verifies the module at the start and at the end, and after every
//! pass on request; a violation after the start is a bug of a pass, and the error carries the data to repeat
//! it.

mod error;
mod lowering;
mod spelling;
mod table;

pub use self::error::{PipelineError, RunError};
pub use self::lowering::{Lowering, Opset, UnknownOpset};
pub use self::spelling::Spelling;
pub use self::table::{PASSES, PassDef, pass_names};
pub use crate::pass::options::{OptionDef, Resolver, Setting, Words};
pub use crate::spelling::words::{in_quotes, list, quoted};

use crate::graph::flow;
use crate::opset::declared::{self, BodyInputs};
use crate::opset::raise_units::RaisedUnits;
use crate::opset::text_casts;
use crate::pass::invariants::Invariants;
use crate::pass::statistics::Statistics;
use crate::pass::{Changed, Pass, PassCx, Results, Warning};
use crate::precision::assign::Optimum;
use ampc_ir::Module;
use ampc_ir::infer::{Inference, infer};
use ampc_ir::verify::{verify_structure, verify_types};
use std::fmt;

/// Passes in order.
#[derive(Debug, Default)]
pub struct Pipeline {
    passes: Vec<Box<dyn Pass>>,
}

/// Watches a run.
pub trait Observer {
    /// Called before a pass.
    fn before(&mut self, _pass: &dyn Pass, _module: &Module) {}
    /// Called after a pass.
    fn after(&mut self, _pass: &dyn Pass, _module: &Module, _changed: Changed) {}
    /// Called at the end, with the cost of the formats if a pass has chosen them by cost.
    fn chosen(&mut self, _optimum: &Optimum) {}
    /// Called at the end, with the number of units if a pass has replaced units by operators.
    fn raised_units(&mut self, _units: &RaisedUnits) {}
}

/// Watches nothing.
impl Observer for () {}

impl Pipeline {
    /// A pipeline of these passes.
    ///
    /// # Errors
    /// If a pass needs an invariant that no pass before it ensures.
    pub fn new(passes: Vec<Box<dyn Pass>>) -> Result<Pipeline, PipelineError> {
        Pipeline::on(Invariants::CORE, passes)
    }

    /// A pipeline of these passes for modules with `known` invariants beyond validity.
    ///
    /// # Errors
    /// If a pass needs an invariant that is not known and that no pass before it ensures.
    pub fn on(mut known: Invariants, passes: Vec<Box<dyn Pass>>) -> Result<Pipeline, PipelineError> {
        for pass in &passes {
            let missing = known.missing(pass.requires());
            if missing != Invariants::NONE {
                let before = if missing.has(Invariants::CLASSIFIED) { "classify" } else { "assign" };
                return Err(PipelineError::Order { pass: pass.name(), missing: missing.to_string(), before });
            }
            known = known.without(pass.revokes()).with(pass.ensures());
        }
        Ok(Pipeline { passes })
    }

    /// Parses a pipeline; `names` resolves `classify{policy=…}` and `assign{target=…}`.
    ///
    /// # Errors
    /// If the text names unknown passes or options, or the order is impossible.
    pub fn parse(text: &str, names: &dyn Resolver) -> Result<Pipeline, PipelineError> {
        Pipeline::parse_on(Invariants::CORE, text, names)
    }

    /// [`Pipeline::parse`] for modules with `known` invariants beyond validity.
    ///
    /// # Errors
    /// As [`Pipeline::parse`].
    pub fn parse_on(known: Invariants, text: &str, names: &dyn Resolver) -> Result<Pipeline, PipelineError> {
        let specs = spelling::split(text)?;
        let passes: Result<Vec<_>, _> = specs.iter().map(|spec| table::build(spec, names)).collect();
        Pipeline::on(known, passes?)
    }

    /// The passes.
    pub fn passes(&self) -> impl Iterator<Item = &dyn Pass> {
        self.passes.iter().map(AsRef::as_ref)
    }

    /// The passes, to be put together otherwise.
    pub fn into_passes(self) -> Vec<Box<dyn Pass>> {
        self.passes
    }

    /// The passes from number `first` (from 0) on, with the files that their text names.
    pub fn spell(&self, first: usize, stem: &str) -> Spelling {
        Spelling::new(self.passes.get(first..).unwrap_or_default(), stem)
    }

    /// Runs all passes and returns their warnings.
    ///
    /// Passes see the same with `verify_each` and without: types and facts are inferred anew only where a pass
    /// requests it for later passes, and at the end. With `verify_each` all required properties are checked
    /// after every pass, and not only at the end, so that the error names the pass that broke them.
    ///
    /// # Errors
    /// If the module is invalid, a pass needs a decision of the user, or a pass breaks the module.
    pub fn run(
        &self,
        module: &mut Module,
        verify_each: bool,
        observer: &mut dyn Observer,
    ) -> Result<Vec<Warning>, RunError> {
        self.run_with(module, verify_each, observer, &mut Statistics::default())
    }

    /// [`run`](Self::run) with the statistics of constants that earlier runs read, for several runs on one model.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_with(
        &self,
        module: &mut Module,
        verify_each: bool,
        observer: &mut dyn Observer,
        statistics: &mut Statistics,
    ) -> Result<Vec<Warning>, RunError> {
        let inputs = BodyInputs::of(module);
        let mut facts = inferred(module)?.facts;
        flow::withdraw_false_marks(module);
        let mut held = Invariants::of(module);
        let mut results = Results::default();
        declared::contradictions(module, &inputs).into_iter().for_each(|warning| results.warn(warning));
        // Whether the module is another one than the one that was inferred, and whether it is any.
        let (mut stale, mut any) = (false, false);
        for (i, pass) in self.passes.iter().enumerate() {
            let missing = held.missing(pass.requires());
            if let Some(first) = missing.breach(module) {
                return Err(RunError::Unprepared { pass: pass.name(), missing, first });
            }
            observer.before(pass.as_ref(), module);
            results.begin_pass();
            let mut cx = PassCx::new(&facts, statistics, &mut results);
            let changed =
                pass.run(module, &mut cx).map_err(|error| RunError::Pass { pass: pass.name(), error })?;
            held = held.without(pass.revokes()).with(pass.ensures());
            stale |= changed == Changed::Yes;
            any |= changed == Changed::Yes;
            results.end_pass(changed);
            let last = i + 1 == self.passes.len();
            let renews = stale && (last || changed == Changed::Yes && pass.renews_facts());
            if renews || verify_each || last {
                let inference = self.check(module, held, if verify_each { i } else { 0 }, verify_each)?;
                if renews {
                    inference.types.apply(module);
                    facts = inference.facts;
                    stale = false;
                }
                if renews && !last {
                    flow::withdraw_false_marks(module);
                }
            }
            observer.after(pass.as_ref(), module, changed);
        }
        if any {
            // Between passes they may come and go.
            text_casts::refuse(module).map_err(|error| RunError::Pass { pass: "pipeline", error })?;
        }
        // What has been counted is the cost of the casts that stand, whatever passes change after.
        let is_current = results.current::<Optimum>().is_some();
        if let Some(optimum) = results.get::<Optimum>().filter(|optimum| optimum.carried_out || is_current) {
            observer.chosen(optimum);
        }
        if let Some(units) = results.get::<RaisedUnits>() {
            observer.raised_units(units);
        }
        Ok(results.into_warnings())
    }

    /// Checks everything that has to hold after pass number `i` and returns the inferred types.
    fn check(
        &self,
        module: &Module,
        held: Invariants,
        i: usize,
        verify_each: bool,
    ) -> Result<Inference, RunError> {
        held.check(module).map_err(|breach| RunError::Broken {
            pass: if verify_each { self.passes[i].name().to_owned() } else { "pipeline".into() },
            first: breach.to_string(),
            rest: spelling::name(&self.passes[i..]),
        })
    }
}

/// Infers a module before its passes run and stores the types; an error if the module is ill-typed or invalid.
fn inferred(module: &mut Module) -> Result<Inference, RunError> {
    let (inference, errors) = infer(module);
    inference.types.clone().apply(module);
    if !errors.is_empty() {
        return Err(RunError::IllTyped(errors));
    }
    let mut found = verify_structure(module);
    if found.is_empty() {
        found = verify_types(module, &inference);
    }
    if !found.is_empty() {
        return Err(RunError::Invalid(found));
    }
    Ok(inference)
}

/// A policy or target that does not come with ampc as it is stands as the file `NAME.policy.json` or `NAME.target.json`;
/// [`Pipeline::spell`] has such files.
impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&spelling::name(&self.passes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::cost::Objective;
    use crate::opset::raise_units::Families;
    use crate::pass::options::FORMAT;
    use crate::policy::{KeepIo, Policy};
    use crate::precision::guard::OutOfRange;
    use ampc_ir::DType;
    use std::sync::Arc;

    fn parse(text: &str) -> Result<Pipeline, PipelineError> {
        Pipeline::parse(text, &Policy::preset)
    }

    #[test]
    fn spelling_round_trips() {
        let lowering = Lowering {
            to: DType::BF16,
            policy: Arc::new(Policy::preset("all").unwrap()),
            out_of_range: OutOfRange::Clamp,
            ranges: "x=-4:4".parse().unwrap(),
            observed: Some("%x=100000+@block/mul:0=-70000".parse().unwrap()),
            trusted: "@block/mm:0=2.5".parse().unwrap(),
            keep_io: KeepIo::None,
            opset: Opset::Auto,
            raise: Families::all(),
            saturate_masks: true,
            objective: Objective::Bytes,
            target: Arc::default(),
            excess_precision: true,
            alternative: None,
            gain: Default::default(),
        };
        let text = Pipeline::lowering(&lowering).to_string();
        assert_eq!(parse(&text).unwrap().to_string(), text);
    }

    /// Values that an option may have, by its name.
    fn samples(option: OptionDef) -> Vec<String> {
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect();
        match option.name {
            "to" | "format" if option.values == FORMAT.values => words(&["f16", "bf16"]),
            "to" => words(&["26", "auto"]),
            "policy" => words(&["safe", "all", "\"jmp:p=f32,c=f16,o=f32\""]),
            "keep-io" => words(&["all", "none", "a", "a+b", "\"all\"", "\"a,b\"+\"c+d\"", ""]),
            "objective" => Objective::ALL.map(|objective| objective.to_string()).into(),
            "target" if option.default == Some("target") => words(&["target", "label"]),
            "target" => words(&["generic", "h200"]),
            "disable" => words(&["", "eps", "eps+norm"]),
            "out-of-range" => OutOfRange::ALL.map(|action| action.as_str().to_owned()).into(),
            "excess-precision" => words(&["forbid", "allow"]),
            "clamp" => words(&["true", "false"]),
            "negligible" => words(&["0", "1", "6"]),
            "gain" => words(&["any", "needed", "none"]),
            "dim" => words(&["", "N=8", "N=8+seq=4"]),
            "units" => words(&["", "norms", "gelu+softmax"]),
            "quantized" => words(&["keep", "lower"]),
            "loss" => words(&["", "loss", "\"a,b\""]),
            "kind" => words(&[
                "mse",
                "output:y",
                "\"cross-entropy:ignore_index=-100,axis=1\"",
                "\"mse:\\\"of=a,b\\\"\"",
            ]),
            "train" | "freeze" | "stop" => words(&["", "w", "\"*.bias\"+v"]),
            "unreached" => words(&["error", "freeze"]),
            "outputs" => words(&["none", "gradients"]),
            "of" => words(&["model", "loss"]),
            "optimizer" => words(&["adamw", "none", "\"sgd:momentum=0.9,nesterov=1\"", "adam"]),
            "scaler" => words(&["ampc", "none", "static:128", "\"torch:init=1024,interval=50\""]),
            "precision" => words(&["fp32", "low"]),
            "observed" => words(&["%x=1e5+%t=200:340", "\"@a b:1=-3:-2.5\""]),
            "trusted" => words(&["", "%x=100000", "@block/mul:0=-70000+\"@a b:1=2.5\""]),
            "range" => words(&["", "x=0:1", "x=-3:3+\"a,b=0:1\""]),
            "seed" => words(&["0", "7"]),
            "low_copies" => words(&["written", "none"]),
            "master_weights" => words(&["fp32", "none"]),
            "clip_norm" => words(&["none", "1", "0.5"]),
            "decay" => words(&["", "w=0", "\"*.bias=0\"+v=0.1"]),
            other => panic!("no values for the option `{other}`"),
        }
    }

    /// Printed options read back as the same pass, whichever options are left out.
    #[test]
    fn every_value_of_every_option_is_printed() {
        for pass in PASSES {
            let known = Invariants::CORE.with(Invariants::CLASSIFIED).with(Invariants::ASSIGNED);
            let read = |text: &str| {
                Pipeline::parse_on(known, text, &Policy::preset).map_err(|e| format!("{text}: {e}"))
            };
            let mut texts = vec![String::new()];
            for option in pass.options() {
                let said = samples(option).into_iter().map(|value| format!("{}={value}", option.name));
                let said: Vec<String> = said.chain(option.default.map(|_| String::new())).collect();
                let longer =
                    |text: &String| said.iter().map(|more| format!("{text}, {more}")).collect::<Vec<_>>();
                texts = texts.iter().flat_map(longer).collect();
            }
            for options in texts {
                let text = format!("{}{{{}}}", pass.name, options.trim_start_matches(", "));
                let Ok(pipeline) = read(&text) else {
                    assert!(text.contains("to=bf16") || text.contains("format=bf16"), "{text} is refused");
                    continue;
                };
                let again = read(&pipeline.to_string()).unwrap();
                assert_eq!(pipeline.to_string(), again.to_string());
                assert_eq!(format!("{pipeline:?}"), format!("{again:?}"), "{text}");
            }
        }
    }

    #[test]
    fn defaults_are_what_is_read_when_nothing_is_said() {
        for pass in PASSES {
            let options = pass.options();
            let said = options.iter().filter_map(|o| Some(format!("{}={}", o.name, o.default?)));
            let required = options.iter().find(|o| o.default.is_none()).map(|o| format!("{}=26", o.name));
            let required = required.unwrap_or_default();
            let known = Invariants::CORE.with(Invariants::CLASSIFIED).with(Invariants::ASSIGNED);
            let read = |text: &str| Pipeline::parse_on(known, text, &Policy::preset).unwrap();
            let all = said.chain([required.clone()]).collect::<Vec<_>>().join(", ");
            let [all, none] = [all, required].map(|o| read(&format!("{}{{{o}}}", pass.name)));
            assert_eq!(format!("{all:?}"), format!("{none:?}"));
        }
    }

    #[test]
    fn mistakes_are_named() {
        let message = |text: &str| parse(text).unwrap_err().to_string();
        assert!(message("clasify").contains("did you mean `classify`"));
        assert!(message("classify{too=f16}").contains("did you mean `to`"));
        assert!(message("classify{to=f8}").contains("expected f16 or bf16"));
        assert_eq!(
            message("classify{to=f16, policy=safe, to=bf16}"),
            "pass `classify` has the option `to` twice: keep one"
        );
        assert!(message("dce, classify{to=f16, to=f16}").contains("`to` twice"));
        assert!(message("taint").contains("put `classify` before it"));
        assert!(message("classify, insert-casts").contains("put `assign` before it"));
        assert!(message("classify{to=f16").contains("`}`"));
        assert!(message("classify, , taint").contains("name of a pass"));
    }
}
