//! Policies as a run has them, as JSON: `ampc-policy-resolved/1`.
//!
//! A policy is made of a preset, a file or a report, and of additions of the command line. This form contains
//! all of them with their sources, so that a run can be repeated without the original files. Programs write it;
//! people write `ampc-policy/1`.

use super::file::{RESOLVED, unlisted};
use super::signature::{SignatureJson, Word, in_order};
use super::{Base, ListedBy, OpClass, Pattern, Pin, Policy, PolicyError, Wants};
use crate::policy::KeepIo;
use crate::spelling::json::{Entries, JsonError, entries};
use ampc_ir::DType;
use ampc_ir::module::reason::NoPin;
use ampc_ir::op::{Class, OpSchema, Signature};
use ampc_ir::text::escape_hidden_in_json;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The owners of the lists of a policy.
const OWNERS: [ListedBy; 3] = [ListedBy::Options, ListedBy::Policy, ListedBy::Preset];

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Resolved {
    schema: String,
    name: String,
    unlisted: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<Word<DType>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_io: Option<KeepIoJson>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    master_weights: Option<bool>,
    ops: Vec<ListedJson>,
    /// The layers of pins, the weakest first.
    pins: Vec<LayerJson>,
    /// Decisions of an earlier run.
    decisions: Vec<DecisionJson>,
    /// The casts that a pin named in an earlier run, with the pin.
    pinned_casts: BTreeMap<String, String>,
    disable_guards: Vec<String>,
    #[serde(serialize_with = "in_order", deserialize_with = "entries")]
    signatures: Entries<SignatureJson>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum KeepIoJson {
    /// True if all inputs and outputs keep their types; false if none does.
    All(bool),
    Names(Vec<String>),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListedJson {
    op: String,
    class: Word<Class>,
    from: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LayerJson {
    nodes: Vec<(String, String)>,
    values: Vec<(String, String)>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DecisionJson {
    node: String,
    var: String,
    precision: Word<DType>,
}

impl Policy {
    /// Everything that the policy says, as JSON that [`Policy::from_json`] reads back as the same policy.
    pub fn to_json(&self) -> String {
        let Policy {
            name,
            base,
            wants: Wants { to, keep_io, master_weights },
            ops,
            signatures,
            pins: _,
            value_pins: _,
            layers: _,
            replay,
            replayed_pins,
            disabled_guards,
        } = self;
        let mut decisions: Vec<_> = replay.iter().collect();
        decisions.sort_unstable();
        let decision = |((node, var), precision): (&(String, String), &DType)| DecisionJson {
            node: node.clone(),
            var: var.clone(),
            precision: Word(*precision),
        };
        let signature = |(op, schema): (&String, &&'static OpSchema)| {
            let signature = Signature::of(schema).expect("schemas of policies are made of signatures");
            (op.clone(), SignatureJson::of(&signature))
        };
        let listed = |(op, of): (&String, &OpClass)| ListedJson {
            op: op.clone(),
            class: Word(of.class),
            from: of.from.as_str().to_owned(),
        };
        let resolved = Resolved {
            schema: RESOLVED.to_owned(),
            name: name.clone(),
            unlisted: match base {
                Base::Table => "table".to_owned(),
                Base::Schema => "schema".to_owned(),
                Base::Class(class) => class.to_string(),
            },
            to: to.map(Word),
            keep_io: keep_io.as_ref().map(|keep_io| match keep_io {
                KeepIo::All => KeepIoJson::All(true),
                KeepIo::None => KeepIoJson::All(false),
                KeepIo::Names(names) => KeepIoJson::Names(names.iter().cloned().collect()),
            }),
            master_weights: *master_weights,
            ops: ops.iter().map(listed).collect(),
            pins: self.layers_of_pins(),
            decisions: decisions.into_iter().map(decision).collect(),
            pinned_casts: replayed_pins.iter().map(|(path, pin)| (path.clone(), pin.to_string())).collect(),
            disable_guards: disabled_guards.iter().cloned().collect(),
            signatures: signatures.iter().map(signature).collect(),
        };
        let text = serde_json::to_string_pretty(&resolved).expect("it has only strings as keys");
        escape_hidden_in_json(&text).into_owned() + "\n"
    }

    /// True if the policy is the preset of its name, and nothing has been put on top.
    pub fn is_preset(&self) -> bool {
        Policy::preset(&self.name).is_ok_and(|preset| preset.to_json() == self.to_json())
    }

    /// The layers that have pins.
    fn layers_of_pins(&self) -> Vec<LayerJson> {
        let of = |pins: &[(Pattern, Pin)]| {
            pins.iter().map(|(pattern, pin)| (pattern.given().to_owned(), pin.as_str().to_owned())).collect()
        };
        let ends = self.layers.iter().copied().chain([(self.pins.len(), self.value_pins.len())]);
        let mut layers = Vec::new();
        let mut from = (0, 0);
        for end in ends.filter(|&end| end != (0, 0)) {
            if end != from {
                let nodes = of(&self.pins[from.0..end.0]);
                layers.push(LayerJson { nodes, values: of(&self.value_pins[from.1..end.1]) });
            }
            from = end;
        }
        layers
    }

    pub(super) fn from_resolved(text: &str) -> Result<Policy, PolicyError> {
        let file: Resolved = serde_json::from_str(text).map_err(JsonError::from)?;
        let mut policy = Policy { name: file.name, ..Policy::default() };
        policy.base = unlisted(&file.unlisted)
            .map_err(|reason| JsonError::at(text, &["unlisted", &file.unlisted], reason))?;
        policy.wants = Wants {
            to: file.to.map(|word| word.0),
            keep_io: file.keep_io.map(|keep_io| match keep_io {
                KeepIoJson::All(true) => KeepIo::All,
                KeepIoJson::All(false) => KeepIo::None,
                KeepIoJson::Names(names) => KeepIo::Names(names.into_iter().collect()),
            }),
            master_weights: file.master_weights,
        };
        policy.signatures_from(file.signatures, text)?;
        for ListedJson { op, class, from } in &file.ops {
            let known = OWNERS.into_iter().find(|known| known.as_str() == from).ok_or_else(|| {
                let words = OWNERS.map(ListedBy::as_str).join(", ");
                let reason = format!("`from` is `{from}`: expected one of {words}");
                JsonError::at(text, &["ops", op, "from", from], reason)
            })?;
            policy.set_class(op, class.0, known)?;
        }
        for layer in &file.pins {
            policy.next_layer();
            for (pattern, pin) in &layer.nodes {
                policy.pin(pattern, pin.parse()?)?;
            }
            for (pattern, pin) in &layer.values {
                policy.pin_value(pattern, pin.parse()?)?;
            }
        }
        let decided = |of: DecisionJson| ((of.node, of.var), of.precision.0);
        policy.replay = file.decisions.into_iter().map(decided).collect();
        for (path, pin) in file.pinned_casts {
            let read = pin.parse().map_err(|error: NoPin| {
                JsonError::at(text, &["pinned_casts", &path, &pin], error.to_string())
            })?;
            policy.replayed_pins.insert(path, read);
        }
        file.disable_guards.iter().try_for_each(|guard| policy.disable_guard(guard))?;
        Ok(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PRESETS;

    #[test]
    fn presets_are_told_from_what_is_put_on_top() {
        for preset in PRESETS.iter().map(|preset| preset.name.replace("POLICY", "p=f32,c=bf16,o=bf16")) {
            let mut policy = Policy::preset(&preset).unwrap();
            policy.next_layer();
            assert!(policy.is_preset(), "{preset}");
            let again = Policy::from_json(&policy.to_json()).unwrap();
            assert_eq!(again.to_json(), policy.to_json());
            policy.pin("a#T", Pin::Auto).unwrap();
            assert!(!policy.is_preset(), "{preset}");
        }
    }

    /// A policy with something in every field.
    fn full() -> Policy {
        let signature = r#"{"inputs": [{"name": "X", "type": "T"}], "outputs": [{"name": "Y", "type": "T"}],
            "types": {"T": ["f32", "f16"]}, "class": "allow"}"#;
        let report = format!(
            r#"{{"schema": "ampc-report/1", "signatures": {{"com.example::Op": {signature}}}, "nodes": [
            {{"path": "c", "op": "Cast", "pin": "pin:c", "vars": [{{"var": "T1", "precision": "fp16"}}]}},
            {{"path": "a", "op": "Add", "vars": [{{"var": "T", "precision": "bf16"}}]}}]}}"#
        );
        let mut policy = Policy::from_json(&report).unwrap();
        policy.name = "name, with {signs}".into();
        policy.base = Base::Class(Class::Deny);
        policy.wants = Wants {
            to: Some(DType::BF16),
            keep_io: Some(KeepIo::Names(["x".into()].into())),
            master_weights: Some(false),
        };
        policy.set_class("MatMul", Class::Deny, ListedBy::Options).unwrap();
        policy.set_class("com.example::Op", Class::Clear, ListedBy::Policy).unwrap();
        policy.disable_guard("eps").unwrap();
        policy.pin("re:a.*#T", Pin::To(DType::F16)).unwrap();
        policy.next_layer();
        policy.pin_value("v#1", Pin::Auto).unwrap();
        policy.next_layer();
        policy.next_layer();
        policy.pin("*", Pin::To(DType::F32)).unwrap();
        policy.pin_value("w*", Pin::To(DType::BF16)).unwrap();
        policy
    }

    #[test]
    fn nothing_is_lost() {
        let policy = full();
        let again = Policy::from_json(&policy.to_json()).unwrap();
        // Layers without pins say nothing.
        let layers = vec![(0, 0), (1, 0), (1, 1)];
        let mut maps = [policy, again].map(|policy| Policy { layers: layers.clone(), ..policy });
        // What a hash map prints depends on its history.
        let hashed = maps.each_mut().map(|policy| {
            let replay: BTreeMap<_, _> = std::mem::take(&mut policy.replay).into_iter().collect();
            let pins: BTreeMap<_, _> = std::mem::take(&mut policy.replayed_pins).into_iter().collect();
            assert!(!replay.is_empty() && !pins.is_empty());
            (replay, pins)
        });
        assert_eq!(hashed[0], hashed[1]);
        assert_eq!(format!("{:?}", maps[0]), format!("{:?}", maps[1]));
        let again = Policy::from_json(&full().to_json()).unwrap();
        assert_eq!(again.layers, [(0, 0), (1, 0), (1, 1)]);
    }

    #[test]
    fn mistakes_have_a_place() {
        let text = full().to_json().replace("\"list\"", "\"lists\"");
        let error = Policy::from_json(&text).unwrap_err().to_string();
        assert!(error.contains("expected one of list, policy, preset"), "{error}");
        let text = full().to_json().replace("\"pin:c\"", "\"c\"");
        let error = Policy::from_json(&text).unwrap_err().to_string();
        assert!(error.contains("expected `pin:` and a pattern, found `c`"), "{error}");
    }
}
