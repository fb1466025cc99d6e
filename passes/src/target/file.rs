//! Profiles as JSON: `ampc-target/1`.

use super::{Fusion, GROUPS, Kernels, Number, OpList, OpSet, Profile, ProfileError, Rates, RoundsOnce};
use crate::graph::keys::op_key;
use crate::spelling::json::JsonError;
use crate::spelling::suggest::{did_you_mean, nearest};
use ampc_ir::DType;
use ampc_ir::op;
use ampc_ir::text::escape_hidden_in_json;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// The schema of the file.
const SCHEMA: &str = "ampc-target/1";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileJson {
    schema: String,
    name: String,
    description: String,
    /// The profile of ampc that has the fields that are absent here.
    #[serde(skip_serializing_if = "Option::is_none")]
    extends: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    matmul: Option<RatesJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    elementwise: Option<RatesJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<NumberJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    launch: Option<LaunchJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kernels: Option<KernelsJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fp32_inside: Option<ListJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rounds_once: Option<Vec<RoundsOnceJson>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    views: Option<ListJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fusions: Option<Vec<FusionJson>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NumberJson {
    #[serde(deserialize_with = "whole_number")]
    value: u64,
    source: String,
}

fn whole_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    struct WholeNumber;
    impl Visitor<'_> for WholeNumber {
        type Value = u64;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number from 0 to 18446744073709551615")
        }
        fn visit_u64<E>(self, value: u64) -> Result<u64, E> {
            Ok(value)
        }
    }
    deserializer.deserialize_u64(WholeNumber)
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RatesJson {
    fp32: NumberJson,
    fp16: NumberJson,
    bf16: NumberJson,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LaunchJson {
    node: NumberJson,
    cast: NumberJson,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct KernelsJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    fp16: Option<KernelListJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bf16: Option<KernelListJson>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KernelListJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    only: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    except: Option<Vec<String>>,
    source: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListJson {
    ops: Vec<String>,
    source: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RoundsOnceJson {
    ops: Vec<String>,
    formats: Vec<String>,
    source: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FusionJson {
    from: Vec<String>,
    to: Vec<String>,
    source: String,
}

impl Profile {
    /// Reads a profile.
    ///
    /// # Errors
    /// With line and column, if the text is invalid.
    pub fn from_json(text: &str) -> Result<Profile, ProfileError> {
        let probe: Value = serde_json::from_str(text).map_err(JsonError::from)?;
        let schema = match &probe {
            Value::Object(fields) => fields.get("schema").and_then(Value::as_str),
            other => {
                let reason = format!("expected an object, found {}", what(other));
                return Err(JsonError::at(text, &[], reason).into());
            }
        };
        match schema {
            Some(SCHEMA) => {}
            Some(other) => {
                let reason = format!("expected schema `{SCHEMA}`, found `{other}`");
                return Err(JsonError::at(text, &["schema", other], reason).into());
            }
            None => {
                return Err(JsonError::at(
                    text,
                    &[],
                    format!("expected `\"schema\": \"{SCHEMA}\"`, found none"),
                )
                .into());
            }
        }
        let file: ProfileJson = serde_json::from_str(text).map_err(JsonError::from)?;
        Reading { text }.profile(file)
    }

    /// The profile as JSON that [`Profile::from_json`] reads back as the same profile.
    pub fn to_json(&self) -> String {
        let text = serde_json::to_string_pretty(&ProfileJson::of(self)).expect("it has only strings as keys");
        escape_hidden_in_json(&text).into_owned() + "\n"
    }

    /// True if the profile equals the built-in profile of its name.
    pub fn is_preset(&self) -> bool {
        Profile::preset(&self.name)
            .is_ok_and(|preset| preset == Profile { dims: BTreeMap::new(), ..self.clone() })
    }
}

impl ProfileJson {
    fn of(profile: &Profile) -> ProfileJson {
        let Profile {
            name,
            description,
            matmul,
            elementwise,
            memory,
            node_launch,
            cast_launch,
            fp16_kernels,
            bf16_kernels,
            fp32_inside,
            rounds_once,
            views,
            fusions,
            dims: _,
        } = profile;
        ProfileJson {
            schema: SCHEMA.to_owned(),
            name: name.clone(),
            description: description.clone(),
            extends: None,
            matmul: Some(RatesJson::of(matmul)),
            elementwise: Some(RatesJson::of(elementwise)),
            memory: Some(NumberJson::of(memory)),
            launch: Some(LaunchJson { node: NumberJson::of(node_launch), cast: NumberJson::of(cast_launch) }),
            kernels: Some(KernelsJson {
                fp16: KernelListJson::of(fp16_kernels),
                bf16: KernelListJson::of(bf16_kernels),
            }),
            fp32_inside: ListJson::of(fp32_inside),
            rounds_once: RoundsOnceJson::of(rounds_once),
            views: ListJson::of(views),
            fusions: Some(fusions.iter().map(FusionJson::of).collect()),
        }
    }
}

impl ProfileJson {
    /// Takes the fields that are absent from a profile of ampc.
    fn fill(&mut self, base: ProfileJson) {
        self.matmul = self.matmul.take().or(base.matmul);
        self.elementwise = self.elementwise.take().or(base.elementwise);
        self.memory = self.memory.take().or(base.memory);
        self.launch = self.launch.take().or(base.launch);
        self.kernels = self.kernels.take().or(base.kernels);
        self.fp32_inside = self.fp32_inside.take().or(base.fp32_inside);
        self.rounds_once = self.rounds_once.take().or(base.rounds_once);
        self.views = self.views.take().or(base.views);
        self.fusions = self.fusions.take().or(base.fusions);
    }
}

impl NumberJson {
    fn of(Number { value, source }: &Number) -> NumberJson {
        NumberJson { value: *value, source: source.clone() }
    }
}

impl RatesJson {
    fn of(Rates { fp32, fp16, bf16 }: &Rates) -> RatesJson {
        RatesJson { fp32: NumberJson::of(fp32), fp16: NumberJson::of(fp16), bf16: NumberJson::of(bf16) }
    }
}

impl KernelListJson {
    /// `None` for the list of a file that has none.
    fn of(kernels: &Kernels) -> Option<KernelListJson> {
        let (only, except, source) = match kernels {
            Kernels::Only(list) => (Some(words(&list.ops)), None, &list.source),
            Kernels::Except(list) => (None, Some(words(&list.ops)), &list.source),
        };
        (*kernels != Kernels::default()).then(|| KernelListJson { only, except, source: source.clone() })
    }
}

impl ListJson {
    /// `None` for the list of a file that has none.
    fn of(list: &OpList) -> Option<ListJson> {
        (*list != OpList::default()).then(|| ListJson { ops: words(&list.ops), source: list.source.clone() })
    }
}

impl RoundsOnceJson {
    /// `None` for the facts of a file that has none.
    fn of(facts: &[RoundsOnce]) -> Option<Vec<RoundsOnceJson>> {
        let formats =
            |fact: &RoundsOnce| fact.formats.iter().map(|&format| word_of(format).to_owned()).collect();
        let facts = facts.iter().map(|fact| RoundsOnceJson {
            ops: words(&fact.ops),
            formats: formats(fact),
            source: fact.source.clone(),
        });
        let facts: Vec<RoundsOnceJson> = facts.collect();
        (!facts.is_empty()).then_some(facts)
    }
}

/// The word for a 16-bit format.
fn word_of(format: DType) -> &'static str {
    if format == DType::BF16 { "bf16" } else { "fp16" }
}

impl FusionJson {
    fn of(Fusion { from, to, source }: &Fusion) -> FusionJson {
        FusionJson { from: words(from), to: words(to), source: source.clone() }
    }
}

fn words(ops: &OpSet) -> Vec<String> {
    ops.words().map(str::to_owned).collect()
}

/// The text of a file, for the places of its mistakes.
struct Reading<'a> {
    text: &'a str,
}

impl Reading<'_> {
    fn profile(&self, mut file: ProfileJson) -> Result<Profile, ProfileError> {
        debug_assert!(file.schema == SCHEMA);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        if !file.name.chars().all(is_plain) {
            let reason =
                format!("expected a name of letters, digits, `.`, `-` and `_`, found `{}`", file.name);
            return Err(JsonError::at(self.text, &["name"], reason).into());
        }
        if file.name.is_empty() {
            return Err(JsonError::at(self.text, &["name"], "expected a name, found none".into()).into());
        }
        if let Some(base) = file.extends.take() {
            let base = Profile::preset(&base).map_err(|error| {
                JsonError::at(self.text, &["extends", &base], format!("`extends`: {error}"))
            })?;
            file.fill(ProfileJson::of(&base));
        }
        let kernels = file.kernels.unwrap_or_default();
        let launch = self.required(file.launch, "launch")?;
        Ok(Profile {
            name: file.name,
            description: file.description,
            matmul: self.rates(self.required(file.matmul, "matmul")?, "matmul")?,
            elementwise: self.rates(self.required(file.elementwise, "elementwise")?, "elementwise")?,
            memory: self.rate(self.required(file.memory, "memory")?, &["memory"])?,
            node_launch: self.number(launch.node, &["launch", "node"])?,
            cast_launch: self.number(launch.cast, &["launch", "cast"])?,
            fp16_kernels: self.kernels(kernels.fp16, "fp16")?,
            bf16_kernels: self.kernels(kernels.bf16, "bf16")?,
            fp32_inside: self.list(file.fp32_inside, "fp32_inside")?,
            rounds_once: self.rounds_once(file.rounds_once.unwrap_or_default())?,
            views: self.list(file.views, "views")?,
            fusions: file.fusions.into_iter().flatten().map(|f| self.fusion(f)).collect::<Result<_, _>>()?,
            dims: BTreeMap::new(),
        })
    }

    /// A field that is present here or in the profile that this profile extends.
    fn required<T>(&self, field: Option<T>, name: &str) -> Result<T, ProfileError> {
        field.ok_or_else(|| JsonError::at(self.text, &[], format!("missing field `{name}`")).into())
    }

    fn rates(&self, rates: RatesJson, field: &str) -> Result<Rates, ProfileError> {
        Ok(Rates {
            fp32: self.rate(rates.fp32, &[field, "fp32"])?,
            fp16: self.rate(rates.fp16, &[field, "fp16"])?,
            bf16: self.rate(rates.bf16, &[field, "bf16"])?,
        })
    }

    /// A number that is divided by.
    fn rate(&self, number: NumberJson, path: &[&str]) -> Result<Number, ProfileError> {
        if number.value == 0 {
            let reason = format!("`{}`: expected a rate of at least 1, found 0", path.join("."));
            return Err(JsonError::at(self.text, path, reason).into());
        }
        self.number(number, path)
    }

    fn number(&self, number: NumberJson, path: &[&str]) -> Result<Number, ProfileError> {
        self.source(&number.source, path)?;
        Ok(Number { value: number.value, source: number.source })
    }

    fn source(&self, source: &str, path: &[&str]) -> Result<(), ProfileError> {
        if !source.trim().is_empty() {
            return Ok(());
        }
        let path = [path, &["source"]].concat();
        let reason = format!("`{}`: expected a document or `assumption: …`, found nothing", path.join("."));
        Err(JsonError::at(self.text, &path, reason).into())
    }

    fn kernels(&self, list: Option<KernelListJson>, format: &str) -> Result<Kernels, ProfileError> {
        let path = ["kernels", format];
        let Some(KernelListJson { only, except, source }) = list else { return Ok(Kernels::default()) };
        self.source(&source, &path)?;
        let of = |ops: &[String], field: &str| self.ops(ops, &[path[0], path[1], field]);
        match (only, except) {
            (Some(ops), None) => Ok(Kernels::Only(OpList { ops: of(&ops, "only")?, source })),
            (None, Some(ops)) => Ok(Kernels::Except(OpList { ops: of(&ops, "except")?, source })),
            (both, _) => {
                let found = if both.is_some() { "both" } else { "none" };
                let reason =
                    format!("`kernels.{format}`: expected one of `only` and `except`, found {found}");
                Err(JsonError::at(self.text, &path, reason).into())
            }
        }
    }

    fn list(&self, list: Option<ListJson>, field: &str) -> Result<OpList, ProfileError> {
        let Some(ListJson { ops, source }) = list else { return Ok(OpList::default()) };
        self.source(&source, &[field])?;
        Ok(OpList { ops: self.ops(&ops, &[field, "ops"])?, source })
    }

    fn rounds_once(&self, facts: Vec<RoundsOnceJson>) -> Result<Vec<RoundsOnce>, ProfileError> {
        facts.into_iter().map(|fact| self.fact(fact)).collect()
    }

    fn fact(&self, fact: RoundsOnceJson) -> Result<RoundsOnce, ProfileError> {
        const FIELD: &str = "rounds_once";
        self.source(&fact.source, &[FIELD])?;
        if fact.source.starts_with("assumption") {
            let reason = "`rounds_once`: expected a document, a line of code or a measurement as the source, found an \
                          assumption: models are lowered because of this fact";
            return Err(JsonError::at(self.text, &[FIELD, "source"], reason.to_owned()).into());
        }
        let format = |word: &String| match word.as_str() {
            "fp16" => Ok(DType::F16),
            "bf16" => Ok(DType::BF16),
            other => {
                let reason = format!("`rounds_once.formats`: expected fp16 or bf16, found `{other}`");
                Err(ProfileError::from(JsonError::at(self.text, &[FIELD, "formats", other], reason)))
            }
        };
        Ok(RoundsOnce {
            ops: self.ops(&fact.ops, &[FIELD, "ops"])?,
            formats: fact.formats.iter().map(format).collect::<Result<_, _>>()?,
            source: fact.source,
        })
    }

    fn fusion(&self, fusion: FusionJson) -> Result<Fusion, ProfileError> {
        self.source(&fusion.source, &["fusions"])?;
        Ok(Fusion {
            from: self.ops(&fusion.from, &["fusions", "from"])?,
            to: self.ops(&fusion.to, &["fusions", "to"])?,
            source: fusion.source,
        })
    }

    fn ops(&self, words: &[String], path: &[&str]) -> Result<OpSet, ProfileError> {
        let mut set = OpSet::default();
        for word in words {
            match word.as_str() {
                "@products" => set.products = true,
                "@elementwise" => set.elementwise = true,
                "@moves" => set.moves = true,
                name => {
                    let key = known(name).map_err(|reason| {
                        let path = [path, &[name]].concat();
                        JsonError::at(self.text, &path, reason)
                    })?;
                    set.ops.insert(key);
                }
            }
        }
        Ok(set)
    }
}

/// The key of an operator of the table; the error is the reason why there is no such operator.
fn known(word: &str) -> Result<String, String> {
    if word.starts_with('@') {
        let hint = did_you_mean(nearest(word, GROUPS));
        return Err(format!("no group is called `{word}`; groups are {}{hint}", GROUPS.join(", ")));
    }
    let (domain, name) = word.rsplit_once("::").unwrap_or(("", word));
    if op::versions(domain, name).is_empty() {
        let names = op::all().iter().filter(|s| s.domain == domain).map(|s| s.name);
        let hint = did_you_mean(nearest(name, names));
        return Err(format!("no operator that ampc knows is called `{word}`{hint}"));
    }
    Ok(op_key(domain, name))
}

/// The kind of a JSON value.
fn what(json: &Value) -> &'static str {
    match json {
        Value::Object(_) => "an object",
        Value::Array(_) => "an array",
        Value::String(_) => "a string",
        Value::Number(_) => "a number",
        Value::Bool(_) => "a truth value",
        Value::Null => "null",
    }
}
