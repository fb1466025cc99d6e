//! Policies as JSON: the file of the user (`ampc-policy/1`), and a report (`ampc-report/1`) as the policy that repeats
//! its decisions.

use super::signature::{SignatureJson, reason};
use super::{Base, ListedBy, Pin, Policy, PolicyError};
use crate::spelling::json::{Entries, JsonError, entries};
use crate::spelling::suggest::{did_you_mean, nearest};
use ampc_ir::DType;
use ampc_ir::op::{self, Class};
use serde::Deserialize;

/// The schema of a policy with everything that it resolves to.
pub(super) const RESOLVED: &str = "ampc-policy-resolved/1";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    schema: Option<String>,
    name: Option<String>,
    base: Option<String>,
    unlisted: Option<String>,
    #[serde(default, deserialize_with = "entries")]
    ops: Vec<(String, Vec<String>)>,
    #[serde(default, deserialize_with = "entries")]
    pins: Vec<(String, String)>,
    #[serde(default, deserialize_with = "entries")]
    pin_values: Vec<(String, String)>,
    #[serde(default)]
    disable_guards: Vec<String>,
    #[serde(default, deserialize_with = "entries")]
    signatures: Entries<SignatureJson>,
}

#[derive(Deserialize)]
struct ReportFile {
    #[serde(default, deserialize_with = "entries")]
    signatures: Entries<SignatureJson>,
    nodes: Vec<ReportNode>,
}

#[derive(Deserialize)]
struct ReportNode {
    path: String,
    #[serde(default)]
    op: String,
    pin: Option<String>,
    #[serde(default)]
    vars: Vec<ReportVar>,
}

#[derive(Deserialize)]
struct ReportVar {
    var: String,
    #[serde(default)]
    class: String,
    precision: String,
}

impl Policy {
    /// Reads a policy file, or a report of an earlier run as the policy that repeats its decisions.
    ///
    /// # Errors
    /// With line and column, if the text is neither.
    pub fn from_json(text: &str) -> Result<Policy, PolicyError> {
        let probe: serde_json::Value = serde_json::from_str(text).map_err(JsonError::from)?;
        let schema = probe.get("schema").and_then(|s| s.as_str()).unwrap_or("ampc-policy/1");
        match schema {
            "ampc-policy/1" => Policy::from_file(serde_json::from_str(text).map_err(JsonError::from)?, text),
            "ampc-report/1" => {
                Policy::from_report(serde_json::from_str(text).map_err(JsonError::from)?, text)
            }
            RESOLVED => Policy::from_resolved(text),
            other => {
                let reason = format!("expected schema `ampc-policy/1` or `ampc-report/1`, found `{other}`");
                Err(JsonError::at(text, &["schema", other], reason).into())
            }
        }
    }

    fn from_file(file: PolicyFile, text: &str) -> Result<Policy, PolicyError> {
        let base = file.base.as_deref().unwrap_or("safe");
        // A base is a preset and no file, which the error of presets speaks of.
        let mut policy = Policy::preset(base).map_err(|error| match error {
            PolicyError::UnknownPreset { found, hint, presets } => {
                let reason = format!("no preset is called `{found}`; presets are {presets}{hint}");
                JsonError::at(text, &["base", base], reason).into()
            }
            error @ PolicyError::Jmp { .. } => JsonError::at(text, &["base", base], error.to_string()).into(),
            other => other,
        })?;
        policy.name = file.name.clone().unwrap_or_else(|| "custom".into());
        debug_assert!(file.schema.as_deref().is_none_or(|s| s == "ampc-policy/1"));
        policy.take(file, text, ListedBy::Policy)?;
        Ok(policy)
    }

    /// The policy of a file of ours, which starts from nothing but the operator table.
    pub(super) fn from_preset(name: &str, text: &str) -> Result<Policy, PolicyError> {
        let file: PolicyFile = serde_json::from_str(text).map_err(JsonError::from)?;
        debug_assert!(file.base.is_none() && file.name.as_deref() == Some(name), "{name}");
        let mut policy = Policy { name: name.to_owned(), ..Policy::default() };
        policy.take(file, text, ListedBy::Preset)?;
        Ok(policy)
    }

    /// Applies a file on top of its base; `from` is the owner of its lists.
    fn take(&mut self, file: PolicyFile, text: &str, from: ListedBy) -> Result<(), PolicyError> {
        if let Some(word) = &file.unlisted {
            self.base = unlisted(word).map_err(|reason| JsonError::at(text, &["unlisted", word], reason))?;
        }
        for (class, ops) in &file.ops {
            let class = class.parse().map_err(|e: op::UnknownClass| {
                JsonError::at(text, &["ops", class], format!("in `ops`: {e}"))
            })?;
            for op in ops {
                self.set_class(op, class, from)?;
            }
        }
        for (pattern, pin) in &file.pins {
            self.pin(pattern, pin.parse()?)?;
        }
        for (pattern, pin) in &file.pin_values {
            self.pin_value(pattern, pin.parse()?)?;
        }
        for guard in &file.disable_guards {
            self.disable_guard(guard)?;
        }
        self.signatures_from(file.signatures, text)
    }

    pub(super) fn signatures_from(
        &mut self,
        signatures: Entries<SignatureJson>,
        text: &str,
    ) -> Result<(), PolicyError> {
        for (op, signature) in signatures {
            let schema = signature.schema(&op).map_err(|error| {
                let words: Vec<&str> =
                    ["signatures", &op].into_iter().chain(error.path.iter().map(String::as_str)).collect();
                JsonError::at(text, &words, format!("the signature of `{op}`: {}", reason(&error)))
            })?;
            self.add_schema(schema)
                .map_err(|error| JsonError::at(text, &["signatures", &op], format!("`{op}`: {error}")))?;
        }
        Ok(())
    }

    fn from_report(report: ReportFile, text: &str) -> Result<Policy, PolicyError> {
        let mut policy = Policy::preset("safe")?;
        policy.name = "report".into();
        policy.signatures_from(report.signatures, text)?;
        for node in report.nodes {
            // A cast of which nobody said more took what arrived, and does so again.
            let takes = node.op == "Cast" && node.pin.is_none();
            if let Some(Ok(pin)) = node.pin.map(|pin| pin.parse()) {
                policy.replayed_pins.insert(node.path.clone(), pin);
            }
            for var in node.vars {
                match var.precision.parse() {
                    Ok(Pin::To(_)) if takes && var.class == Class::Discrete.to_string() => {}
                    Ok(Pin::To(dtype)) => {
                        policy.replay.insert((node.path.clone(), var.var), dtype);
                    }
                    Ok(Pin::Auto) => {}
                    // Decisions about other element types (f64, float8 …) are facts about the source.
                    Err(_) if var.precision.parse::<DType>().is_ok() => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(policy)
    }
}

/// Parses `unlisted`.
pub(super) fn unlisted(word: &str) -> Result<Base, String> {
    match word {
        "table" => Ok(Base::Table),
        "schema" => Ok(Base::Schema),
        _ => word.parse().map(Base::Class).map_err(|_: op::UnknownClass| {
            let words: Vec<&str> =
                ["table", "schema"].into_iter().chain(Class::ALL.iter().map(|c| c.as_str())).collect();
            let hint = did_you_mean(nearest(word, words.iter().copied()));
            format!("`unlisted` is `{word}`: expected one of {}{hint}", words.join(", "))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_where() {
        let at = |text: &str| match Policy::from_json(text).unwrap_err() {
            PolicyError::Json(JsonError { place, reason }) => (place.line, place.column, reason),
            other => panic!("{other}"),
        };
        let (line, column, _) = at("{\"schema\": \"ampc-policy/7\"}");
        assert_eq!((line, column), (1, 12));
        let (line, column, reason) = at("{\n  \"name\": \"denied\",\n  \"ops\": {\"denied\": []}\n}");
        assert_eq!((line, column), (3, 11));
        assert!(reason.contains("`denied`"), "{reason}");
        let (line, column, reason) = at("{\"name\": \"mine\",\n \"base\": \"mine\"}");
        assert_eq!((line, column), (2, 10));
        assert!(reason.contains("presets are safe, all") && !reason.contains(".json"), "{reason}");
        let (line, column, reason) = at("{\"name\": \"mine\",\n \"unlisted\": \"infre\"}");
        assert_eq!((line, column), (2, 14));
        assert!(
            reason.contains("table, schema, allow") && reason.contains("did you mean `infer`"),
            "{reason}"
        );
        let (line, column, reason) = at("{\"name\": \"mine\",\n \"base\": \"jmp:c=flt16\"}");
        assert_eq!((line, column), (2, 10));
        assert!(reason.contains("did you mean `float16`"), "{reason}");
        let (line, _, reason) = at("{\n \"unlised\": \"infer\"\n}");
        assert!(line == 2 && reason.contains("did you mean `unlisted`"), "{reason}");
    }

    #[test]
    fn a_file_changes_what_its_preset_says() {
        let policy = Policy::from_json(
            r#"{"base": "torch", "unlisted": "deny", "ops": {"allow": ["Softmax"], "deny": ["MatMul"]}}"#,
        );
        let policy = policy.unwrap();
        let of = |op: &str| policy.class_of(op).map(|c| (c.class, c.from));
        assert_eq!(policy.base, Base::Class(Class::Deny));
        assert_eq!(of("Softmax"), Some((Class::Allow, ListedBy::Policy)));
        assert_eq!(of("MatMul"), Some((Class::Deny, ListedBy::Policy)));
        assert_eq!(of("Exp"), Some((Class::Deny, ListedBy::Preset)));
        assert_eq!(of("Relu"), None);
        let jmp = Policy::from_json(r#"{"base": "jmp:c=bf16,o=f32"}"#).unwrap();
        assert_eq!(jmp.wants().to, Some(DType::BF16));
    }

    /// Line, and message.
    fn signature_error(signature: &str) -> (usize, String) {
        let text = format!("{{\"signatures\": {{\n\"acme::A\": {signature}\n}}}}");
        match Policy::from_json(&text).unwrap_err() {
            PolicyError::Json(JsonError { place, reason }) => (place.line, reason),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn mistakes_in_signatures_are_named_where_they_stand() {
        let x = "{\"inputs\": [\n{\"name\": \"x\", \"type\": \"T\"}],\n";
        let y = "\"outputs\": [{\"name\": \"y\", \"type\": \"T\"}],\n\"types\": {\"T\": [\"f32\", \"f16\"]},\n\"class\": \"infer\"}";
        let good = format!("{x}{y}");
        let policy = Policy::from_json(&format!("{{\"signatures\": {{\"acme::A\": {good}}}}}")).unwrap();
        assert_eq!(policy.signatures().map(|(op, _)| op).collect::<Vec<_>>(), ["acme::A"]);
        let cases = [
            ("\"type\": \"T\"}]", "\"type\": \"TT\"}]", 3, "`TT` is neither a type variable of `types`"),
            ("\"type\": \"T\"}]", "\"type\": \"float16\"}]", 3, "did you mean `f16`"),
            ("\"f16\"", "\"fp16\"", 5, "; did you mean `f16`?"),
            ("\"infer\"", "\"inferr\"", 6, "`inferr` is not a valid precision class: expected one of allow"),
            ("\"y\", ", "\"y\", \"shape\": \"xx\", ", 4, "no input is called `xx`; did you mean `x`"),
            ("\"y\", ", "\"y\", \"shap\": \"x\", ", 4, "unknown field `shap`, expected one of"),
            ("\"x\", ", "\"x\", \"shape\": \"x\", ", 3, "`shape` is for outputs"),
            ("\"x\", ", "\"x\", \"optional\": true, \"variadic\": true, ", 3, "a variadic one may be none"),
            ("\"infer\"", "\"infer\", \"attributes\": {}", 6, "unknown field `attributes`"),
            (",\n\"class\": \"infer\"", "", 5, "missing field `class`"),
            ("\"T\": [", "\"f32\": [], \"T\": [", 5, "`f32` is not a name of a type variable, such as `T1`"),
            ("\"T\": [", "\"T\": [\"f32\"], \"T\": [", 5, "`T` occurs twice"),
        ];
        for (from, to, line, reason) in cases {
            assert!(good.contains(from), "{from}");
            let (at, said) = signature_error(&good.replacen(from, to, 1));
            assert!(at == line && said.contains(reason), "{to}: line {at}: {said}");
        }
        let of = |op: &str| {
            let text = format!("{{\"signatures\": {{\n\"{op}\": {good}}}}}");
            Policy::from_json(&text).unwrap_err().to_string()
        };
        assert!(of("Relu").contains("line 2, column 1: the signature of `Relu`: `ai.onnx` is a domain"));
        assert!(of("com.microsoft::Gelu").contains("the operator is one that ampc knows"));
    }

    #[test]
    fn no_key_comes_twice() {
        let text = "{\"pins\": {\"fc\": \"fp32\",\n \"fc\": \"fp16\"}}";
        let error = Policy::from_json(text).unwrap_err();
        assert!(error.to_string().starts_with("line 2, "), "{error}");
        assert!(error.to_string().contains("`fc` occurs twice"), "{error}");
    }
}
