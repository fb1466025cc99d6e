//! The table of the options of a rewrite: spelling, passes that use the option, and recording in a report.
//!
//! A report records all options, and repeats them as a policy; tests over random options choose from the table.

use super::RewriteOptions;
use crate::error::Error;
use ampc_ir::{DType, Module};
use ampc_passes::cost::Objective;
use ampc_passes::guard::OutOfRange;
use ampc_passes::insert_casts::KeepIo;
use ampc_passes::json::{Entries, JsonError, entries};
use ampc_passes::move_casts::EXCESS_PRECISION;
use ampc_passes::pipeline::{Opset, Words, in_quotes, list};
use ampc_passes::policy::{PolicyError, float_format};
use ampc_passes::raise_units::Families;
use ampc_passes::saturate_masks::MASKS;
use ampc_passes::target::{PROFILES, ProfileError, print_dims, read_dims};
use ampc_passes::{Policy, Profile, raise_opset};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An option of a rewrite, as reports record it.
#[derive(Clone, Copy, Debug)]
pub struct RecordedOption {
    /// Its name in reports. Its flag has this name, with hyphens; `observed` and `trusted` come from `--calibrate` or `--ranges`.
    pub name: &'static str,
    /// The valid values, as messages name them.
    pub values: &'static str,
    /// Values with which every model with an input `x` can be rewritten, the default first; `None` for an option that
    /// is absent.
    pub choices: fn() -> Vec<Option<&'static str>>,
    /// The passes that it ends in.
    pub passes: &'static [&'static str],
    print: fn(&RewriteOptions) -> Option<String>,
    read: fn(&mut RewriteOptions, Option<&str>) -> Option<()>,
}

/// Error of reading the value of an option.
#[derive(Debug, thiserror::Error)]
pub enum OptionError {
    /// The value is invalid for the option.
    #[error("`{option}`: expected {expected}, found `{found}`")]
    Value {
        /// The option.
        option: &'static str,
        /// The valid values.
        expected: &'static str,
        /// The value found.
        found: String,
    },
    /// It names no target that comes with ampc.
    #[error("`target`: {0}")]
    Target(ProfileError),
}

impl From<OptionError> for Error {
    fn from(error: OptionError) -> Error {
        Error::Usage(error.to_string())
    }
}

/// The option that says which policy.
const POLICY: &str = "policy";

/// All options, in the order of reports.
pub const OPTIONS: &[RecordedOption] = &[
    RecordedOption {
        name: "to",
        values: "fp16 or bf16",
        choices: || vec![Some("fp16"), Some("bf16")],
        passes: &["raise-opset", "classify", "guard", "assign", "simplify-casts"],
        print: |options| Some(if options.to == DType::BF16 { "bf16" } else { "fp16" }.to_owned()),
        read: |options, value| {
            options.to = value.map_or(Some(DType::F16), float_format).filter(|format| format.is_low())?;
            Some(())
        },
    },
    RecordedOption {
        name: POLICY,
        values: "a preset",
        choices: || vec![Some("safe"), Some("all")],
        passes: &["raise-opset", "move-casts", "classify", "guard"],
        print: |options| Some(options.policy.name.clone()),
        read: |options, value| {
            options.policy = Arc::new(Policy::preset(value.unwrap_or("safe")).ok()?);
            Some(())
        },
    },
    RecordedOption {
        name: "out_of_range",
        values: "keep, clamp or error",
        choices: || vec![Some("keep"), Some("clamp")],
        passes: &["guard", "convert-constants"],
        print: |options| Some(options.out_of_range.as_str().to_owned()),
        read: |options, value| {
            options.out_of_range = value.map_or(Some(OutOfRange::Keep), OutOfRange::of)?;
            Some(())
        },
    },
    RecordedOption {
        name: "excess_precision",
        values: "forbid or allow",
        choices: || vec![Some(EXCESS_PRECISION.no), Some(EXCESS_PRECISION.yes)],
        passes: &["move-casts"],
        print: |options| Some(EXCESS_PRECISION.of(options.excess_precision).to_owned()),
        read: |options, value| {
            options.excess_precision = value.map_or(Some(false), |word| EXCESS_PRECISION.read(word))?;
            Some(())
        },
    },
    RecordedOption {
        name: "masks",
        values: "keep or saturate",
        choices: || vec![Some(MASKS.no), Some(MASKS.yes)],
        passes: &["saturate-masks"],
        print: |options| Some(MASKS.of(options.saturate_masks).to_owned()),
        read: |options, value| {
            options.saturate_masks = value.map_or(Some(false), |word| MASKS.read(word))?;
            Some(())
        },
    },
    RecordedOption {
        name: "range",
        values: "ranges of inputs: INPUT=LO:HI with `+` between them",
        choices: || vec![None, Some("x=-4:4")],
        passes: &["guard", "taint"],
        print: |options| (!options.ranges.is_empty()).then(|| options.ranges.to_string()),
        read: |options, value| {
            options.ranges = value.unwrap_or_default().parse().ok()?;
            Some(())
        },
    },
    RecordedOption {
        name: "observed",
        values: "%INPUT=X, @NODE:RESULT=X or LO:HI, `+` between them",
        choices: || vec![None, Some(""), Some("%x=100000"), Some("%x=3+%t=200:340"), Some("@n:0=-70000")],
        passes: &["observe"],
        print: |options| options.observed.as_ref().map(ToString::to_string),
        read: |options, value| {
            options.observed = value.map(str::parse).transpose().ok()?;
            Some(())
        },
    },
    RecordedOption {
        name: "trusted",
        values: "@NODE:RESULT=X with `+` between them",
        choices: || vec![None, Some("@n:0=2.5")],
        passes: &["guard"],
        print: |options| (!options.trusted.is_empty()).then(|| options.trusted.to_string()),
        read: |options, value| {
            options.trusted = value.unwrap_or_default().parse().ok()?;
            Some(())
        },
    },
    RecordedOption {
        name: "keep_io",
        values: "all, none or names with `,` between them",
        choices: || vec![Some("all"), Some("none")],
        passes: &["assign", "insert-casts"],
        print: |options| Some(print_keep_io(&options.keep_io)),
        read: |options, value| {
            options.keep_io = match value {
                None | Some("all") => KeepIo::All,
                Some("none") => KeepIo::None,
                Some(names) => {
                    let names = list(names, ',').filter(|names| !names.contains(&String::new()))?;
                    KeepIo::Names(names.into_iter().collect())
                }
            };
            Some(())
        },
    },
    RecordedOption {
        name: "opset",
        values: "keep, auto or the number of an opset",
        choices: || vec![Some("keep"), Some("auto"), Some("26")],
        passes: &["raise-opset"],
        print: |options| Some(options.opset.to_string()),
        read: |options, value| {
            options.opset = value.map_or(Some(Opset::Keep), |word| word.parse().ok())?;
            Some(())
        },
    },
    RecordedOption {
        name: "raise",
        values: Families::WORDS,
        choices: || vec![None, Some("norms,gelu"), Some("norms,softmax,gelu,swish,mish,hard-swish")],
        passes: &["raise-opset", "raise-units"],
        print: |options| Some(options.raise.to_string()).filter(|words| !words.is_empty()),
        read: |options, value| {
            let words = value.into_iter().flat_map(|words| words.split(','));
            options.raise = Families::of_words(words).ok()?;
            Some(())
        },
    },
    RecordedOption {
        name: "objective",
        values: "time, casts or bytes",
        choices: || Objective::ALL.map(|objective| Some(objective.as_str())).into(),
        passes: &["assign", "insert-casts"],
        print: |options| Some(options.objective.to_string()),
        // Reports of old versions lack it.
        read: |options, value| {
            options.objective = value.map_or(Some(Objective::default()), |word| word.parse().ok())?;
            Some(())
        },
    },
    RecordedOption {
        name: "target",
        values: "a target",
        choices: || PROFILES.iter().map(|&(name, _)| Some(name)).collect(),
        passes: &["classify", "assign"],
        print: |options| Some(options.target.name.clone()),
        read: |options, value| {
            if let Some(name) = value {
                options.target = Arc::new(Profile::preset(name).ok()?);
            }
            Some(())
        },
    },
    RecordedOption {
        name: "dim",
        values: "extents of dims: `NAME=N` with `,` between them",
        choices: || vec![None, Some("N=8")],
        passes: &["classify", "assign"],
        print: |options| print_dims(&options.target.dims),
        read: |options, value| {
            let dims = read_dims(value.unwrap_or_default())?;
            if options.target.dims != dims {
                Arc::make_mut(&mut options.target).dims = dims;
            }
            Some(())
        },
    },
    RecordedOption {
        name: "only_if_faster",
        values: "no or yes",
        choices: || vec![Some(ONLY_IF_FASTER.no), Some(ONLY_IF_FASTER.yes)],
        passes: &["assign"],
        print: |options| Some(ONLY_IF_FASTER.of(options.only_if_faster).to_owned()),
        read: |options, value| {
            options.only_if_faster = value.map_or(Some(false), |word| ONLY_IF_FASTER.read(word))?;
            Some(())
        },
    },
];

/// The words of `only_if_faster`.
const ONLY_IF_FASTER: Words = Words { no: "no", yes: "yes" };

fn print_keep_io(keep_io: &KeepIo) -> String {
    match keep_io {
        KeepIo::All => "all".to_owned(),
        KeepIo::None => "none".to_owned(),
        KeepIo::Names(names) => {
            // As few quotes as can be.
            let means_more = |name: &str| name.contains([',', '"']) || ["all", "none"].contains(&name);
            let name = |name: &String| if means_more(name) { in_quotes(name) } else { name.clone() };
            names.iter().map(name).collect::<Vec<_>>().join(",")
        }
    }
}

impl RecordedOption {
    /// The value as a report records it; `None` if it is absent there.
    pub fn print(&self, options: &RewriteOptions) -> Option<String> {
        (self.print)(options)
    }

    /// Sets the option to a value, or to the meaning of its absence from a report.
    ///
    /// # Errors
    /// If that is not a value of it.
    pub fn set(&self, options: &mut RewriteOptions, value: Option<&str>) -> Result<(), OptionError> {
        if let ("target", Some(name)) = (self.name, value) {
            Profile::preset(name).map_err(OptionError::Target)?;
        }
        (self.read)(options, value).ok_or_else(|| OptionError::Value {
            option: self.name,
            expected: self.values,
            found: value.unwrap_or_default().to_owned(),
        })
    }
}

/// The options of a run that a report records, so that the report repeats the run.
pub(crate) fn record(options: &RewriteOptions, module: &Module) -> Vec<(&'static str, String)> {
    let opset = match (options.opset, raise_opset::opset(module)) {
        (Opset::Auto, found) => found.map_or(Opset::Keep, Opset::To),
        (asked @ (Opset::Keep | Opset::To(_)), _) => asked,
    };
    let repeats = RewriteOptions { opset, ..options.clone() };
    OPTIONS.iter().filter_map(|option| Some((option.name, option.print(&repeats)?))).collect()
}

impl RewriteOptions {
    /// The options that repeat the run that a report is of, with the report as policy; `None` if the text is not a report.
    ///
    /// # Errors
    /// If the report has no options or one of them twice, has an invalid value of an option, or names a target
    /// that does not come with ampc.
    pub fn from_report(text: &str) -> Result<Option<RewriteOptions>, Error> {
        let Some(recorded) = Recorded::read(text).map_err(PolicyError::from)? else { return Ok(None) };
        let policy = Policy::from_json(text)?;
        Ok(Some(recorded.options(policy)?))
    }
}

/// The recorded options of a run.
#[derive(Clone, Debug)]
pub struct Recorded(BTreeMap<String, serde_json::Value>);

impl Recorded {
    /// The options recorded in a report; `None` if the text is not a report.
    ///
    /// # Errors
    /// With line and column, if the report has no options, or an option twice.
    pub fn read(text: &str) -> Result<Option<Recorded>, JsonError> {
        #[derive(Deserialize)]
        struct Report {
            // Read, so that a second one is an error.
            #[serde(rename = "schema")]
            _schema: String,
            #[serde(deserialize_with = "entries")]
            options: Entries<serde_json::Value>,
        }
        let schema = serde_json::from_str(text).ok().and_then(|json: serde_json::Value| {
            json.get("schema").and_then(serde_json::Value::as_str).map(str::to_owned)
        });
        if schema.is_none_or(|schema| schema != "ampc-report/1") {
            return Ok(None);
        }
        let report: Report = serde_json::from_str(text)?;
        Ok(Some(Recorded(report.options.into_iter().collect())))
    }

    /// The recorded value of an option.
    pub fn get(&self, option: &str) -> Option<&str> {
        self.0.get(option)?.as_str()
    }

    /// Leaves an option out, as if the report did not have it.
    pub fn remove(&mut self, option: &str) {
        self.0.remove(option);
    }

    /// The options, with this policy: a report has only the name of its policy.
    ///
    /// # Errors
    /// If an option has an invalid value.
    pub fn options(&self, policy: Policy) -> Result<RewriteOptions, OptionError> {
        let mut options = RewriteOptions { policy: Arc::new(policy), ..RewriteOptions::default() };
        let rest = OPTIONS.iter().filter(|option| option.name != POLICY);
        for option in rest {
            match self.0.get(option.name) {
                Some(value) if !value.is_string() && !value.is_null() => {
                    let found = value.to_string();
                    return Err(OptionError::Value { option: option.name, expected: option.values, found });
                }
                _ => option.set(&mut options, self.get(option.name))?,
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Model;
    use crate::rewrite::{pipeline_of, rewrite};
    use ampc_ir::text::{NoData, parse};
    use std::collections::{BTreeMap, BTreeSet};

    const MODEL: &str = "module ir=10\nopset ai.onnx=21\n\ngraph @main {\n  input %x : f32[4, 4]\n  \
                         const %w : f32[4, 4] = random(1)\n  %y = MatMul(%x, %w) : f32[4, 4] @a\n  \
                         output %y : f32[4, 4]\n}\n";

    /// Options that differ from the defaults in one or all options of the table.
    fn changed() -> Vec<(&'static str, RewriteOptions)> {
        let mut all = RewriteOptions::default();
        let mut found = Vec::new();
        for option in OPTIONS {
            for choice in (option.choices)().into_iter().skip(1) {
                let mut options = RewriteOptions::default();
                option.set(&mut options, choice).unwrap();
                option.set(&mut all, choice).unwrap();
                found.push((option.name, options));
            }
        }
        found.push(("all", all));
        found
    }

    #[test]
    fn the_first_choice_is_the_default() {
        for option in OPTIONS {
            let default = option.print(&RewriteOptions::default());
            assert_eq!((option.choices)()[0], default.as_deref(), "{}", option.name);
        }
    }

    #[test]
    fn options_end_in_the_passes_that_the_table_names() {
        let spelled = |options: &RewriteOptions| -> BTreeMap<String, String> {
            let passes = pipeline_of(options).into_passes();
            passes.iter().map(|pass| (pass.name().to_owned(), format!("{pass:?}"))).collect()
        };
        let mut met: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        // With `auto`, the pass that raises the opset is there in any case.
        for base in
            [RewriteOptions::default(), RewriteOptions { opset: Opset::Auto, ..RewriteOptions::default() }]
        {
            let before = spelled(&base);
            for (name, options) in changed().into_iter().filter(|(name, _)| *name != "all") {
                let opset = if name == "opset" { options.opset } else { base.opset };
                let after = spelled(&RewriteOptions { opset, ..options });
                let names =
                    before.keys().chain(after.keys()).filter(|pass| before.get(*pass) != after.get(*pass));
                met.entry(name).or_default().extend(names.cloned());
            }
        }
        for option in OPTIONS {
            let listed: BTreeSet<String> = option.passes.iter().map(ToString::to_string).collect();
            assert_eq!(met[option.name], listed, "{}", option.name);
        }
    }

    /// Every option that differs from its default in a run comes back from the report of the run.
    #[test]
    fn a_report_repeats_every_option() {
        let names = KeepIo::Names(["x".into(), "y".into()].into());
        let named = RewriteOptions { keep_io: names, ..RewriteOptions::default() };
        for (name, asked) in changed().into_iter().chain([("names", named)]) {
            let model = Model::from(parse(MODEL, &NoData).unwrap());
            let report = serde_json::to_string(&rewrite(model, &asked).unwrap().report).unwrap();
            let repeated = RewriteOptions::from_report(&report).unwrap().unwrap();
            // An option that is added has to be told whether it comes back.
            let RewriteOptions {
                to,
                policy,
                out_of_range,
                ranges,
                observed,
                trusted,
                keep_io,
                opset,
                raise,
                saturate_masks,
                objective,
                target,
                excess_precision,
                only_if_faster,
                // They change nothing but what is said.
                explain: _,
                alternative: _,
                verify_each: _,
                constant_statistics: _,
            } = repeated;
            assert_eq!(policy.name, "report");
            assert_eq!(to, asked.to, "{name}");
            assert_eq!(out_of_range, asked.out_of_range, "{name}");
            assert_eq!((ranges, keep_io), (asked.ranges, asked.keep_io), "{name}");
            assert_eq!((observed, trusted), (asked.observed, asked.trusted), "{name}");
            assert_eq!(opset, if asked.opset == Opset::Auto { Opset::To(21) } else { asked.opset }, "{name}");
            assert_eq!(raise, asked.raise, "{name}");
            assert_eq!(saturate_masks, asked.saturate_masks, "{name}");
            assert_eq!((objective, target), (asked.objective, asked.target), "{name}");
            assert_eq!(excess_precision, asked.excess_precision, "{name}");
            assert_eq!(only_if_faster, asked.only_if_faster, "{name}");
        }
    }

    #[test]
    fn names_come_back_from_a_report() {
        let names = ["all", "none", "x", "a,b", "\"", "a b", "a+b", "{"].map(str::to_owned).into();
        let asked = RewriteOptions { keep_io: KeepIo::Names(names), ..RewriteOptions::default() };
        let option = OPTIONS.iter().find(|option| option.name == "keep_io").unwrap();
        let mut read = RewriteOptions::default();
        option.set(&mut read, option.print(&asked).as_deref()).unwrap();
        assert_eq!(read.keep_io, asked.keep_io);
        let one = RewriteOptions { keep_io: KeepIo::Names(["all".to_owned()].into()), ..asked };
        option.set(&mut read, option.print(&one).as_deref()).unwrap();
        assert_eq!(read.keep_io, one.keep_io);
        assert!(option.set(&mut read, Some("a,,b")).unwrap_err().to_string().contains("found `a,,b`"));
    }

    #[test]
    fn a_report_of_something_else_is_an_error() {
        let report = |options: &str| {
            format!(r#"{{"schema": "ampc-report/1", "options": {{{options}}}, "nodes": []}}"#)
        };
        let error = |options: &str| RewriteOptions::from_report(&report(options)).unwrap_err().to_string();
        assert_eq!(error(r#""to": "fp8""#), "`to`: expected fp16 or bf16, found `fp8`");
        assert_eq!(error(r#""to": 5"#), "`to`: expected fp16 or bf16, found `5`");
        assert!(error(r#""keep_io": ["x"]"#).contains(r#"found `["x"]`"#));
        assert!(error(r#""target": "h20""#).contains("did you mean `h200`"));
        assert!(RewriteOptions::from_report("{}").unwrap().is_none());
        assert_eq!(
            error("\n\"to\": \"bf16\",\n\"keep_io\": \"none\",\n\"to\": \"fp16\""),
            "line 4, column 4: `to` occurs twice: keep one"
        );
        let error = |report: &str| RewriteOptions::from_report(report).unwrap_err().to_string();
        assert_eq!(
            error(r#"{"schema": "ampc-report/1", "nodes": []}"#),
            "line 1, column 40: missing field `options`"
        );
        let twice = r#"{"schema": "ampc-report/1", "options": {"to": "bf16"}, "options": {}, "nodes": []}"#;
        assert!(error(twice).contains("duplicate field `options`"));
        // Reports of versions without objectives.
        let old = RewriteOptions::from_report(&report(r#""to": "bf16", "keep_io": "all""#)).unwrap().unwrap();
        assert_eq!((old.to, old.objective), (DType::BF16, Objective::Time));
    }
}
