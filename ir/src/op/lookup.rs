//! Look-up of operators: by domain, name and operator set.

use super::table::{IDENTITIES, LATEST_OPSETS, OpKind, OpSchema, SCHEMAS};
use super::traits::replacement;

/// Result of looking up an operator at an operator set.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Lookup {
    /// The version that holds.
    Found(&'static OpSchema),
    /// The operator came later than this operator set.
    TooNew {
        /// The first operator set that has it.
        since: u16,
    },
    /// The operator is gone at this operator set, which makes a model that uses it invalid.
    Removed {
        /// The operator set that deprecated it.
        since: u16,
        /// The replacement, for messages.
        by: &'static str,
    },
    /// The domain is known and has no operator of this name in any version.
    UnknownOp,
    /// The domain is not a domain of ONNX, and the operator is not a known operator of an open domain.
    UnknownDomain,
}

/// The schema that a node of this domain and name has under operator set `opset` of the domain.
///
/// The domain `ai.onnx` is the same as the empty one. An operator set newer than the table's newest
/// ([`LATEST_OPSETS`]) yields the newest version: whether to accept such a model is not decided here.
pub fn lookup(domain: &str, name: &str, opset: u16) -> Lookup {
    let domain = canonical(domain);
    let Some(kind) = find(domain, name) else {
        let known = LATEST_OPSETS.iter().any(|&(d, _)| d == domain);
        return if known { Lookup::UnknownOp } else { Lookup::UnknownDomain };
    };
    let versions = kind.versions();
    if is_open(domain) && !versions.iter().any(|s| s.since == opset) {
        return Lookup::UnknownDomain;
    }
    match versions.iter().rev().find(|s| s.since <= opset) {
        Some(schema) if schema.is_gone() => {
            Lookup::Removed { since: schema.since, by: replacement(schema.kind) }
        }
        Some(schema) => Lookup::Found(schema),
        None => Lookup::TooNew { since: versions.first().map_or(u16::MAX, |s| s.since) },
    }
}

/// [`lookup`] for a node that also names an overload without a function in the model: an overload is not an
/// operator of the table, so in an open domain it is unknown.
pub fn lookup_overload(domain: &str, name: &str, overload: &str, opset: u16) -> Lookup {
    match is_open(domain) && !overload.is_empty() {
        true => Lookup::UnknownDomain,
        false => lookup(domain, name, opset),
    }
}

/// True if the domain may have operators and versions that the table does not know: it is not a domain of ONNX.
/// For a node of such a domain that does not fit its schema, the operator is unknown.
pub fn is_open(domain: &str) -> bool {
    latest_opset(domain).is_none()
}

/// All versions of an operator, oldest first; empty if there is no such operator.
pub fn versions(domain: &str, name: &str) -> &'static [OpSchema] {
    find(canonical(domain), name).map_or(&[], OpKind::versions)
}

/// Every schema, sorted by domain, name and version.
pub fn all() -> &'static [OpSchema] {
    SCHEMAS
}

/// The newest operator set of a domain that the table knows.
pub fn latest_opset(domain: &str) -> Option<u16> {
    let domain = canonical(domain);
    LATEST_OPSETS.iter().find(|&&(d, _)| d == domain).map(|&(_, opset)| opset)
}

impl OpKind {
    /// Its domain; empty for ai.onnx and [`OpKind::Declared`].
    pub const fn domain(self) -> &'static str {
        if self as usize == N_KINDS { "" } else { IDENTITIES[self as usize].0 }
    }

    /// Its name; empty for [`OpKind::Declared`].
    pub const fn name(self) -> &'static str {
        if self as usize == N_KINDS { "" } else { IDENTITIES[self as usize].1 }
    }

    /// All its versions, oldest first; empty for [`OpKind::Declared`] alone.
    pub fn versions(self) -> &'static [OpSchema] {
        let (start, end) = VERSIONS.get(self as usize).copied().unwrap_or_default();
        &SCHEMAS[usize::from(start)..usize::from(end)]
    }

    /// Its newest version.
    ///
    /// # Panics
    /// For [`OpKind::Declared`], which has none.
    pub fn newest(self) -> &'static OpSchema {
        &SCHEMAS[usize::from(VERSIONS[self as usize].1) - 1]
    }
}

fn canonical(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

const N_KINDS: usize = OpKind::ALL.len();

/// The rows of each operator in [`SCHEMAS`]: the first and the one after the last.
static VERSIONS: [(u16, u16); N_KINDS] = {
    let mut ranges = [(0, 0); N_KINDS];
    let mut row = 0;
    while row < SCHEMAS.len() {
        let kind = SCHEMAS[row].kind as usize;
        if row == 0 || SCHEMAS[row - 1].kind as usize != kind {
            ranges[kind].0 = index_u16(row);
        }
        ranges[kind].1 = index_u16(row + 1);
        row += 1;
    }
    ranges
};

const N_SLOTS: usize = 1024;
const EMPTY: u16 = u16::MAX;

/// Operators by the hash of their name, collisions in the next free slot.
static SLOTS: [u16; N_SLOTS] = {
    let mut slots = [EMPTY; N_SLOTS];
    let mut kind = 0;
    while kind < N_KINDS {
        let mut slot = hash(IDENTITIES[kind].1);
        while slots[slot] != EMPTY {
            slot = (slot + 1) % N_SLOTS;
        }
        slots[slot] = index_u16(kind);
        kind += 1;
    }
    slots
};

fn find(domain: &str, name: &str) -> Option<OpKind> {
    let mut slot = hash(name);
    while SLOTS[slot] != EMPTY {
        let kind = usize::from(SLOTS[slot]);
        let (its_domain, its_name) = IDENTITIES[kind];
        // Nearly every domain is empty, and `"" == ""` calls memcmp: measured at 100 ns, thirty times the time of
        // comparing two names.
        let same_domain = if domain.is_empty() { its_domain.is_empty() } else { its_domain == domain };
        if its_name == name && same_domain {
            return Some(OpKind::ALL[kind]);
        }
        slot = (slot + 1) % N_SLOTS;
    }
    None
}

/// FNV-1a, folded to a slot. Only the first bytes count, so that a hostile name costs no more than a real one.
const fn hash(name: &str) -> usize {
    let bytes = name.as_bytes();
    let mut hash = 0x811c_9dc5_u32;
    let mut i = 0;
    while i < bytes.len() && i < 32 {
        hash = (hash ^ bytes[i] as u32).wrapping_mul(0x0100_0193);
        i += 1;
    }
    (hash ^ (hash >> 16)) as usize % N_SLOTS
}

const fn index_u16(index: usize) -> u16 {
    assert!(index < EMPTY as usize, "the table has fewer rows than a u16 counts");
    #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
    let narrow = index as u16;
    narrow
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::LATEST_IR_VERSION;

    #[test]
    fn the_version_not_newer_than_the_opset_holds() {
        let since = |domain, name, opset| {
            let Lookup::Found(schema) = lookup(domain, name, opset) else { panic!("{name} at {opset}") };
            schema.since
        };
        assert_eq!(since("", "Softmax", 10), 1);
        assert_eq!(since("", "Softmax", 11), 11);
        assert_eq!(since("", "Softmax", 12), 11);
        assert_eq!(since("ai.onnx", "Softmax", 28), 13);
        assert_eq!(since("", "Softmax", 999), 13);
        assert_eq!(since("ai.onnx.ml", "Scaler", 5), 1);
        assert_eq!(since("ai.onnx.preview.training", "Adam", 1), 1);
    }

    #[test]
    fn what_is_not_found_says_why() {
        assert_eq!(lookup("", "Gelu", 13), Lookup::TooNew { since: 20 });
        assert_eq!(lookup("", "Softmax", 0), Lookup::TooNew { since: 1 });
        assert_eq!(lookup("", "Upsample", 13), Lookup::Removed { since: 10, by: "`Resize`" });
        assert!(matches!(lookup("", "Upsample", 9), Lookup::Found(s) if s.since == 9));
        assert_eq!(lookup("", "Reluu", 13), Lookup::UnknownOp);
        assert_eq!(lookup("", &"Relu".repeat(1 << 16), 13), Lookup::UnknownOp);
        assert_eq!(lookup("", "Scaler", 13), Lookup::UnknownOp);
        assert_eq!(lookup("ai.onnx.ml", "Relu", 13), Lookup::UnknownOp);
        assert_eq!(lookup("com.example", "Relu", 13), Lookup::UnknownDomain);
        assert_eq!(lookup("com.microsoft", "Relu", 1), Lookup::UnknownDomain);
    }

    #[test]
    fn an_open_domain_has_the_versions_of_the_table_and_no_mistakes() {
        let Lookup::Found(schema) = lookup("com.microsoft", "Gelu", 1) else { panic!("known") };
        assert_eq!(schema.kind, OpKind::ContribGelu);
        for opset in [0, 2, u16::MAX] {
            assert_eq!(lookup("com.microsoft", "Gelu", opset), Lookup::UnknownDomain, "{opset}");
        }
        assert!(is_open("com.microsoft") && is_open("com.example"));
        assert!(!is_open("") && !is_open("ai.onnx") && !is_open("ai.onnx.ml"));
    }

    #[test]
    fn group_normalization_is_replaced_and_was_never_gone() {
        for (opset, since) in [(18, 18), (20, 18), (21, 21)] {
            let Lookup::Found(schema) = lookup("", "GroupNormalization", opset) else { panic!("{opset}") };
            assert_eq!((schema.since, schema.is_gone()), (since, false));
            assert_eq!(schema.is_runtime_only(), since == 18);
        }
        assert_eq!(lookup("", "GroupNormalization", 17), Lookup::TooNew { since: 18 });
    }

    #[test]
    fn what_onnx_runtime_has_beside_onnx_is_found() {
        for (name, opset, since) in [
            ("ImageScaler", 9, 1),
            ("LayerNormalization", 1, 1),
            ("LayerNormalization", 16, 1),
            ("SimplifiedLayerNormalization", 28, 1),
            ("ThresholdedRelu", 9, 1),
        ] {
            let Lookup::Found(schema) = lookup("", name, opset) else { panic!("{name} {opset}") };
            assert_eq!((schema.since, schema.is_runtime_only()), (since, true), "{name} {opset}");
        }
        let Lookup::Found(standard) = lookup("", "LayerNormalization", 17) else { panic!() };
        assert!(!standard.is_runtime_only());
        let gone = Lookup::Removed { since: 10, by: "`Mul` and `Add`" };
        assert_eq!(lookup("", "ImageScaler", 10), gone);
    }

    #[test]
    fn what_is_gone_names_what_replaces_it() {
        let gone = OpKind::ALL.iter().filter(|k| k.newest().deprecated);
        let names: Vec<(&str, &str)> = gone.map(|&k| (k.name(), replacement(k))).collect();
        let expected = [
            ("ImageScaler", "`Mul` and `Add`"),
            ("Scatter", "`ScatterElements`"),
            ("Upsample", "`Resize`"),
            ("TreeEnsembleClassifier", "`TreeEnsemble`"),
            ("TreeEnsembleRegressor", "`TreeEnsemble`"),
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn every_row_is_found_under_its_own_version() {
        for schema in all() {
            let expected = if schema.is_gone() {
                Lookup::Removed { since: schema.since, by: replacement(schema.kind) }
            } else {
                Lookup::Found(schema)
            };
            assert_eq!(lookup(schema.domain, schema.name, schema.since), expected);
            assert!(versions(schema.domain, schema.name).contains(schema));
        }
        assert!(versions("", "Reluu").is_empty());
    }

    #[test]
    fn the_table_has_the_size_of_the_pinned_onnx() {
        let rows = |domain| all().iter().filter(|s| s.domain == domain).count();
        assert_eq!(rows(""), 629 + 5, "and what ONNX Runtime has beside ONNX");
        assert_eq!(rows("com.microsoft"), 36);
        assert_eq!(rows("ai.ampc"), 7);
        assert_eq!(rows("ai.onnx.ml"), 25);
        assert_eq!(rows("ai.onnx.preview"), 1);
        assert_eq!(rows("ai.onnx.preview.training"), 4);
        let live = |k: &&OpKind| k.domain().is_empty() && !k.newest().deprecated;
        assert_eq!(OpKind::ALL.iter().filter(live).count(), 201 + 1);
        assert_eq!((latest_opset("ai.onnx"), latest_opset("ai.onnx.ml")), (Some(28), Some(5)));
        assert_eq!(LATEST_IR_VERSION, 14);
    }

    #[test]
    fn the_table_is_sorted() {
        let sorted = |a: &OpSchema, b: &OpSchema| (a.domain, a.name, a.since) < (b.domain, b.name, b.since);
        assert!(SCHEMAS.is_sorted_by(sorted));
        assert!(OpKind::ALL.iter().map(|&k| k as usize).eq(0..N_KINDS));
        assert!(SCHEMAS.is_sorted_by_key(|s| s.kind));
        for schema in SCHEMAS {
            assert!(schema.attrs.is_sorted_by(|a, b| a.name < b.name), "{} {}", schema.name, schema.since);
        }
    }

    #[test]
    fn no_operator_is_far_from_its_slot() {
        for (slot, &kind) in SLOTS.iter().enumerate().filter(|&(_, &kind)| kind != EMPTY) {
            let home = hash(OpKind::ALL[usize::from(kind)].name());
            assert!((slot + N_SLOTS - home) % N_SLOTS <= 8, "slot {slot}");
        }
    }
}
