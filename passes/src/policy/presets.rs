//! The presets: policies as files of this crate, in the format of user files.
//!
//! Presets that follow another system are made from its own lists (`presets/sources/`) through a table of the
//! ONNX names of its operators (`presets/mappings/`); `scripts/diff_presets.py` shows where the three differ,
//! and a test here fails if they do. The preset `jmp:POLICY` is not a file but a family.

use super::{Policy, PolicyError, jmp};
use crate::spelling::suggest::{did_you_mean, nearest};

/// A policy with a name.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The name; for a family, with its parameter in capitals.
    pub name: &'static str,
    /// A line about it.
    pub about: &'static str,
    /// The policy file; `None` for a family of presets.
    file: Option<&'static str>,
}

macro_rules! preset {
    ($name:literal, $about:literal) => {
        Preset { name: $name, about: $about, file: Some(include_str!(concat!("presets/", $name, ".json"))) }
    };
}

/// All presets.
pub const PRESETS: &[Preset] = &[
    preset!("safe", "the operator table's classes and all guards: the default"),
    preset!(
        "all",
        "everything the schemas admit, without numeric lists and guards except for constants that do not fit"
    ),
    preset!(
        "perf",
        "like safe, but also lowers operators whose kernels sum in fp32 and whose results stay in range"
    ),
    preset!(
        "zero-risk",
        "nothing is narrowed: operators that move values that are 16-bit already stay 16-bit"
    ),
    preset!("torch", "the lists of PyTorch's autocast on CUDA; unlisted operators are inferred"),
    preset!("tf", "the lists of TensorFlow's auto_mixed_precision on CUDA; unlisted operators stay fp32"),
    preset!("paddle-o1", "the lists of Paddle's static AMP at level O1; unlisted operators stay fp32"),
    preset!("paddle-o2", "Paddle's level O2: everything the schemas admit except its extra black list"),
    preset!("nvidia", "NVIDIA's recipe: products low, reductions and powers fp32, the rest inferred"),
    preset!("fastai", "fastai's model in half precision: everything except batch normalization and losses"),
    Preset {
        name: "jmp:POLICY",
        about: "everything in the compute type of a policy of jmp, such as jmp:p=f32,c=f16,o=f32",
        file: None,
    },
];

impl Policy {
    /// The preset with this name.
    ///
    /// # Errors
    /// If there is no such preset.
    pub fn preset(name: &str) -> Result<Policy, PolicyError> {
        if let Some(text) = name.strip_prefix(jmp::PREFIX) {
            return jmp::policy(text);
        }
        let preset = PRESETS.iter().find_map(|p| p.file.filter(|_| p.name == name));
        match preset {
            Some(text) => Policy::from_preset(name, text),
            None => Err(unknown(name)),
        }
    }
}

fn unknown(name: &str) -> PolicyError {
    let names = PRESETS.iter().map(|p| p.name);
    // Of a family, what is before the colon is what one can get nearly right.
    let family = name.split_once(':').map_or(name, |(family, _)| family);
    let is_family = |p: &&Preset| p.file.is_none();
    let families = PRESETS.iter().filter(is_family).filter_map(|p| Some((p.name, p.name.split_once(':')?.0)));
    let near_family = || families.clone().find(|&(_, f)| nearest(family, [f]).is_some()).map(|(p, _)| p);
    let beginning = || names.clone().find(|n| !name.is_empty() && n.starts_with(name));
    PolicyError::UnknownPreset {
        found: name.to_owned(),
        hint: did_you_mean(nearest(name, names.clone()).or_else(beginning).or_else(near_family)),
        presets: names.collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::keys::op_key;
    use crate::policy::Base;
    use crate::policy::guards::{GUARDS, Judges};
    use ampc_ir::DType;
    use ampc_ir::op::{Class, OpKind, base_class};
    use serde::Deserialize;
    use serde::de::DeserializeOwned;
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::PathBuf;

    /// The lists of a system.
    #[derive(Deserialize)]
    struct Source {
        lists: BTreeMap<String, Vec<String>>,
    }

    /// Mapping of the names of a system.
    #[derive(Deserialize)]
    struct Mapping {
        presets: BTreeMap<String, Made>,
        reasons: BTreeMap<String, String>,
        names: BTreeMap<String, Called>,
        rules: BTreeMap<String, String>,
        derived: BTreeMap<String, Derived>,
    }

    #[derive(Deserialize)]
    struct Made {
        /// Lists and their classes; a name is in the first that has it.
        lists: Vec<(String, String)>,
        unlisted: String,
    }

    /// ONNX name of an operator.
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Called {
        Ops(Vec<String>),
        Reason(String),
    }

    #[derive(Deserialize)]
    struct Derived {
        rule: String,
        #[serde(default)]
        of: Vec<String>,
        class: Option<String>,
    }

    fn folder(name: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/policy/presets").join(name)
    }

    fn read<T: DeserializeOwned>(path: &PathBuf) -> T {
        let text = std::fs::read_to_string(path).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    fn systems() -> Vec<(String, Source, Mapping)> {
        let files = std::fs::read_dir(folder("mappings")).unwrap();
        let mut names: Vec<_> = files.map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        let read = |name: String| {
            let [source, mapping] = ["sources", "mappings"].map(|part| folder(part).join(&name));
            (name, read(&source), read(&mapping))
        };
        names.into_iter().map(read).collect()
    }

    /// The presets that are files.
    fn files() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().filter(|p| p.file.is_some()).map(|p| p.name)
    }

    fn preset(name: &str) -> Policy {
        Policy::preset(name).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    #[test]
    fn every_name_has_an_operator_or_a_reason() {
        for (system, source, mapping) in systems() {
            let listed: BTreeSet<&String> = source.lists.values().flatten().collect();
            assert_eq!(listed, mapping.names.keys().collect(), "{system}");
            for (name, called) in &mapping.names {
                match called {
                    Called::Ops(ops) => assert!(!ops.is_empty(), "{system}: {name}"),
                    Called::Reason(reason) => {
                        assert!(mapping.reasons.contains_key(reason), "{system}: {name}: {reason}");
                    }
                }
            }
            let named = |op: &String| {
                mapping.names.values().any(|called| matches!(called, Called::Ops(ops) if ops.contains(op)))
            };
            for (op, derived) in &mapping.derived {
                assert!(!named(op) && mapping.rules.contains_key(&derived.rule), "{system}: {op}");
                assert!(derived.rule != "fused" || derived.of.len() == 1, "{system}: {op}");
            }
        }
    }

    /// The classes that the lists of a system come to.
    fn classes(source: &Source, mapping: &Mapping, made: &Made) -> BTreeMap<String, Class> {
        let mut named: BTreeMap<String, Class> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for (list, class) in &made.lists {
            let class: Class = class.parse().unwrap();
            for name in &source.lists[list] {
                if let (Called::Ops(ops), true) = (&mapping.names[name], seen.insert(name)) {
                    for op in ops {
                        let strictest = named.entry(op.clone()).or_insert(class);
                        *strictest = class.max(*strictest);
                    }
                }
            }
        }
        let unlisted = made.unlisted.parse().unwrap_or(Class::Allow);
        let mut classes = named.clone();
        for (op, derived) in &mapping.derived {
            if let Some(class) = &derived.class {
                classes.entry(op.clone()).or_insert(class.parse().unwrap());
            } else if derived.of.iter().any(|part| named.contains_key(part)) {
                let of_parts = derived.of.iter().map(|part| named.get(part).copied().unwrap_or(unlisted));
                classes.entry(op.clone()).or_insert(of_parts.max().unwrap());
            }
        }
        classes
    }

    #[test]
    fn presets_are_what_their_sources_make_of_them() {
        let mut following = BTreeSet::new();
        for (system, source, mapping) in systems() {
            for (name, made) in &mapping.presets {
                let policy = preset(name);
                let has: BTreeMap<String, Class> =
                    policy.ops().map(|(op, c)| (op.to_owned(), c.class)).collect();
                assert_eq!(has, classes(&source, &mapping, made), "{system}: {name}");
                let base = match made.unlisted.as_str() {
                    "schema" => Base::Schema,
                    class => Base::Class(class.parse().unwrap()),
                };
                assert_eq!(policy.base, base, "{name}");
                following.insert(name.clone());
            }
        }
        let own = ["safe", "all", "perf", "zero-risk"];
        let others: BTreeSet<String> = files().filter(|n| !own.contains(n)).map(str::to_owned).collect();
        assert_eq!(following, others);
    }

    /// Guards that judge operators do not overrule the lists of other systems; guards that judge constants and
    /// integers stay, for the systems have no such constants.
    #[test]
    fn guards_of_presets() {
        for name in files() {
            let policy = preset(name);
            let off: Vec<&str> = policy.disabled_guards().iter().map(String::as_str).collect();
            let groups = match name {
                "safe" | "perf" | "zero-risk" => &[][..],
                "all" => &[Judges::Numbers, Judges::Operators],
                _ => &[Judges::Operators],
            };
            let left_out = GUARDS.iter().filter(|guard| groups.contains(&guard.judges));
            let mut expected: Vec<&str> = left_out.map(|guard| guard.name).collect();
            expected.sort_unstable();
            assert_eq!(off, expected, "{name}");
        }
    }

    /// The class that a preset gives to operators that the table knows.
    fn class_of(policy: &Policy, kind: OpKind, format: DType) -> Class {
        let table = base_class(kind, format);
        match policy.class_of(&op_key(kind.domain(), kind.name())) {
            _ if table == Class::Fixed => table,
            Some(listed) => listed.class,
            None => policy.base.class_of(table).0,
        }
    }

    #[test]
    fn no_risk_is_stricter_than_safe_and_speed_freer() {
        let [safe, none, perf] = ["safe", "zero-risk", "perf"].map(preset);
        for format in [DType::F16, DType::BF16] {
            for &kind in OpKind::ALL {
                let [safe, none, perf] = [&safe, &none, &perf].map(|p| class_of(p, kind, format));
                assert!(none >= safe && perf <= safe, "{kind:?}: {none} {safe} {perf}");
                // What is clear or inferred narrows, and what is allow too.
                assert!(none > Class::Infer, "{kind:?}: {none}");
            }
        }
    }

    #[test]
    fn names_that_are_nearly_right() {
        let hint = |name: &str| Policy::preset(name).unwrap_err().to_string();
        for (name, meant) in [
            ("troch", "torch"),
            ("paddle", "paddle-o1"),
            ("zero_risk", "zero-risk"),
            ("jmp", "jmp:POLICY"),
            ("jmpp:p=f32,c=f16,o=f32", "jmp:POLICY"),
        ] {
            assert!(hint(name).contains(&format!("did you mean `{meant}`")), "{}", hint(name));
        }
        assert!(hint("xyz").contains("presets are safe, all, perf, zero-risk, torch, tf, paddle-o1"));
    }
}
