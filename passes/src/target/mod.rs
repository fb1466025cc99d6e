//! Profiles of targets: rates, the price of a launch, and facts about kernels.
//!
//! A *profile* is data, schema `ampc-target/1`, documented in `docs/target.md`. It is a profile of ampc
//! ([`PROFILES`]) or a file of the user. Every number and every list has its source.
//!
//! All arithmetic is in integers, so that costs are the same on every machine: rates are whole operations or bytes
//! per microsecond, times are picoseconds, and work divided by a rate is rounded up ([`picoseconds`]).

mod file;

use crate::spelling::json::JsonError;
use crate::spelling::suggest::{did_you_mean, nearest};
use ampc_ir::DType;
use ampc_ir::op::{self, OpSchema, Work};
use std::collections::{BTreeMap, BTreeSet};

/// The profiles that come with ampc, the default first: name and JSON.
pub const PROFILES: &[(&str, &str)] = &[
    ("generic", include_str!("profiles/generic.json")),
    ("ampc-cpu", include_str!("profiles/ampc-cpu.json")),
    ("ampc-cuda", include_str!("profiles/ampc-cuda.json")),
    ("ort-cpu", include_str!("profiles/ort-cpu.json")),
    ("ort-cuda", include_str!("profiles/ort-cuda.json")),
    ("tensorrt", include_str!("profiles/tensorrt.json")),
    ("v100", include_str!("profiles/v100.json")),
    ("t4", include_str!("profiles/t4.json")),
    ("a100", include_str!("profiles/a100.json")),
    ("l4", include_str!("profiles/l4.json")),
    ("h100", include_str!("profiles/h100.json")),
    ("h200", include_str!("profiles/h200.json")),
];

/// A number and where it comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Number {
    /// The number, in the unit of its field.
    pub value: u64,
    /// A document, or `assumption: …`.
    pub source: String,
}

/// A rate per format, in operations per microsecond: 1,000,000 is one TFLOPS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rates {
    /// In fp32.
    pub fp32: Number,
    /// In fp16.
    pub fp16: Number,
    /// In bf16.
    pub bf16: Number,
}

impl Rates {
    /// The rate in a format; formats other than fp16 and bf16 run at the rate of fp32.
    pub fn of(&self, format: DType) -> u64 {
        match format {
            DType::F16 => self.fp16.value,
            DType::BF16 => self.bf16.value,
            _ => self.fp32.value,
        }
    }
}

/// A set of operators.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OpSet {
    /// All operators with a kind of work.
    products: bool,
    elementwise: bool,
    moves: bool,
    /// Keys as in [`crate::graph::keys::op_key`].
    ops: BTreeSet<String>,
}

/// The words in lists of operators that stand for all with a kind of work.
pub const GROUPS: [&str; 3] = ["@products", "@elementwise", "@moves"];

impl OpSet {
    /// True if an operator is in it.
    pub fn contains(&self, schema: &OpSchema) -> bool {
        let group = match op::work(schema.kind) {
            Work::Product => self.products,
            Work::Elementwise { .. } => self.elementwise,
            Work::Move => self.moves,
        };
        let named = || match schema.domain {
            "" => self.ops.contains(schema.name),
            domain => self.ops.contains(&crate::graph::keys::op_key(domain, schema.name)),
        };
        group || !self.ops.is_empty() && named()
    }

    /// Groups and operators as a file spells them.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        let groups = GROUPS.into_iter().zip([self.products, self.elementwise, self.moves]);
        groups.filter_map(|(name, is_in)| is_in.then_some(name)).chain(self.ops.iter().map(String::as_str))
    }
}

/// List of operators with a common property.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OpList {
    /// The operators.
    pub ops: OpSet,
    /// A document, or `assumption: …`; empty if absent.
    pub source: String,
}

/// The operators with a kernel for a format.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kernels {
    /// These alone.
    Only(OpList),
    /// All but these.
    Except(OpList),
}

impl Default for Kernels {
    fn default() -> Kernels {
        Kernels::Except(OpList::default())
    }
}

impl Kernels {
    fn has(&self, schema: &OpSchema) -> bool {
        match self {
            Kernels::Only(list) => list.ops.contains(schema),
            Kernels::Except(list) => !list.ops.contains(schema),
        }
    }
}

/// Pairs of operators that are one kernel: a cast between them has no launch, and moves no bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fusion {
    /// The producers of the tensor.
    pub from: OpSet,
    /// The readers of the tensor.
    pub to: OpSet,
    /// A document, or `assumption: …`.
    pub source: String,
}

/// Operators whose kernels for 16-bit formats read 16-bit operands, compute in fp32, sums included, and round each
/// result once. Such a kernel has the result of the operator in fp32 between casts, up to the order of sums.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RoundsOnce {
    /// The operators.
    pub ops: OpSet,
    /// The 16-bit formats: f16, bf16 or both.
    pub formats: BTreeSet<DType>,
    /// A document, a line of code or a measurement; never an assumption.
    pub source: String,
}

/// A target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    /// The name of the profile.
    pub name: String,
    /// A description of the target.
    pub description: String,
    /// Products of matrices: multiplications and additions per microsecond.
    pub matmul: Rates,
    /// Operations on elements per microsecond.
    pub elementwise: Rates,
    /// Bytes read or written per microsecond.
    pub memory: Number,
    /// Picoseconds for every node that is run.
    pub node_launch: Number,
    /// Picoseconds for every cast that is run.
    pub cast_launch: Number,
    /// Kernels for fp16.
    pub fp16_kernels: Kernels,
    /// Kernels for bf16.
    pub bf16_kernels: Kernels,
    /// Operators that compute in fp32 internally, for any operand and result types.
    pub fp32_inside: OpList,
    /// Operators that compute in fp32 and round once, with proof.
    pub rounds_once: Vec<RoundsOnce>,
    /// Operators whose result is their operand, read with another shape.
    pub views: OpList,
    /// The fusions.
    pub fusions: Vec<Fusion>,
    /// The extents of dims, by name, of the models that run there: not part of the file of a target.
    pub dims: BTreeMap<String, u64>,
}

/// Reads the extents of dims: `N=8,seq=128`. `None` if the text has another form, or a name has two extents.
pub fn read_dims(text: &str) -> Option<BTreeMap<String, u64>> {
    let mut dims = BTreeMap::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (name, extent) = part.rsplit_once('=').filter(|(name, _)| !name.is_empty())?;
        if dims.insert(name.to_owned(), extent.parse().ok()?).is_some() {
            return None;
        }
    }
    Some(dims)
}

/// Prints the extents of dims as [`read_dims`] reads them; `None` if there are none.
pub fn print_dims(dims: &BTreeMap<String, u64>) -> Option<String> {
    let parts: Vec<String> = dims.iter().map(|(name, extent)| format!("{name}={extent}")).collect();
    (!parts.is_empty()).then(|| parts.join(","))
}

/// Profile error.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// No profile has this name.
    #[error("no target is called `{found}`; targets are {targets}; a file ends in `.json`{hint}")]
    UnknownTarget {
        /// The name as given.
        found: String,
        /// The nearest profile.
        hint: String,
        /// All profiles.
        targets: String,
    },
    /// A file has the name of a built-in profile.
    #[error(
        "`name`: `{name}` is a target of ampc, and reports refer to targets by name; choose another name"
    )]
    TakenName {
        /// The name.
        name: String,
    },
    /// The file is not JSON of the schema.
    #[error(transparent)]
    Json(#[from] JsonError),
}

impl Default for Profile {
    /// The profile `generic`.
    fn default() -> Profile {
        Profile::preset(PROFILES[0].0).expect("the first profile is one")
    }
}

impl Profile {
    /// The profile with this name that comes with ampc.
    ///
    /// # Errors
    /// If there is no such target.
    pub fn preset(name: &str) -> Result<Profile, ProfileError> {
        let Some((_, text)) = PROFILES.iter().find(|(known, _)| *known == name) else {
            let names = PROFILES.iter().map(|(known, _)| *known);
            return Err(ProfileError::UnknownTarget {
                found: name.to_owned(),
                hint: did_you_mean(nearest(name, names.clone())),
                targets: names.collect::<Vec<_>>().join(", "),
            });
        };
        Profile::from_json(text)
    }

    /// The profile, of a user's file.
    ///
    /// # Errors
    /// If it has the name of a built-in profile.
    pub fn of_user(self) -> Result<Profile, ProfileError> {
        let taken = PROFILES.iter().any(|(name, _)| *name == self.name);
        if taken { Err(ProfileError::TakenName { name: self.name }) } else { Ok(self) }
    }

    /// The operators with a kernel for a format.
    pub fn kernels(&self, format: DType) -> Option<&Kernels> {
        match format {
            DType::F16 => Some(&self.fp16_kernels),
            DType::BF16 => Some(&self.bf16_kernels),
            _ => None,
        }
    }

    /// True if an operator has a kernel for a format. One that lacks it is run in fp32, between casts.
    pub fn has_kernel(&self, schema: &OpSchema, format: DType) -> bool {
        self.kernels(format).is_none_or(|kernels| kernels.has(schema))
    }

    /// True if an operator computes in fp32 internally, for any operand and result types.
    pub fn is_fp32_inside(&self, schema: &OpSchema) -> bool {
        self.fp32_inside.ops.contains(schema)
    }

    /// The source of the fact that an operator computes in fp32 and rounds once in a format; `None` if no fact says so.
    pub fn rounds_once(&self, schema: &OpSchema, format: DType) -> Option<&str> {
        let holds = |fact: &&RoundsOnce| fact.formats.contains(&format) && fact.ops.contains(schema);
        self.rounds_once.iter().find(holds).map(|fact| fact.source.as_str())
    }

    /// True if the result of an operator is its operand, read with another shape.
    pub fn is_view(&self, schema: &OpSchema) -> bool {
        self.views.ops.contains(schema)
    }

    /// True if a producer and its reader become one kernel.
    pub fn is_fused(&self, from: &OpSchema, to: &OpSchema) -> bool {
        self.fusions.iter().any(|fusion| fusion.from.contains(from) && fusion.to.contains(to))
    }

    /// All numbers, with their fields as a file spells them and their units.
    pub fn numbers(&self) -> [(&'static str, &'static str, &Number); 9] {
        const RATE: &str = "operations per microsecond";
        const TIME: &str = "picoseconds";
        [
            ("matmul.fp32", RATE, &self.matmul.fp32),
            ("matmul.fp16", RATE, &self.matmul.fp16),
            ("matmul.bf16", RATE, &self.matmul.bf16),
            ("elementwise.fp32", RATE, &self.elementwise.fp32),
            ("elementwise.fp16", RATE, &self.elementwise.fp16),
            ("elementwise.bf16", RATE, &self.elementwise.bf16),
            ("memory", "bytes per microsecond", &self.memory),
            ("launch.node", TIME, &self.node_launch),
            ("launch.cast", TIME, &self.cast_launch),
        ]
    }
}

/// The picoseconds that an amount of work takes, rounded up, so that only no work takes no time; as much as fits.
pub fn picoseconds(amount: u64, per_microsecond: u64) -> u64 {
    let picoseconds = (u128::from(amount) * 1_000_000).div_ceil(u128::from(per_microsecond.max(1)));
    u64::try_from(picoseconds).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
