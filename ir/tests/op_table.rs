//! The operator table against what was generated or surveyed apart from it.
//!
//! - `testdata/op_table.tsv`: facts that the generator reads through other accessors of ONNX's schemas.
//! - `testdata/op_classes.txt`: the survey of precision classes.
//! - The generators themselves, if the environment variable `AMPC_PYTHON` names a Python that has the pinned onnx and
//!   ONNX Runtime.

use ampc_ir::DType;
use ampc_ir::op::{
    self, Arity, Class, Formal, FormalType, LATEST_OPSETS, Legality, OpKind, OpSchema, Side, TypeSet,
};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

const FACTS: &str = include_str!("../testdata/op_table.tsv");
const SURVEY: &str = include_str!("../testdata/op_classes.txt");
const FORMATS: [DType; 2] = [DType::F16, DType::BF16];

fn rows(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn sides(schema: &'static OpSchema) -> [(Side, &'static [Formal]); 2] {
    [(Side::Operand, schema.inputs), (Side::Result, schema.outputs)]
}

/// Every formal of every version of every operator.
fn all_formals() -> impl Iterator<Item = (&'static OpSchema, Side, usize, &'static Formal)> {
    op::all().iter().flat_map(|schema| {
        sides(schema).into_iter().flat_map(move |(side, formals)| {
            formals.iter().enumerate().map(move |(i, formal)| (schema, side, i, formal))
        })
    })
}

fn identity(schema: &OpSchema) -> String {
    let domain = if schema.domain.is_empty() { "ai.onnx" } else { schema.domain };
    format!("{domain}\t{}\t{}", schema.name, schema.since)
}

fn places(types: &TypeSet, dtype: DType) -> String {
    let bit = 1u32 << dtype.number();
    let masks = [types.tensor, types.sequence, types.optional, types.optional_sequence];
    let places: String = "tsoq".chars().zip(masks).filter(|(_, m)| m & bit != 0).map(|(c, _)| c).collect();
    if places.is_empty() { "-".to_owned() } else { places }
}

fn arity(formal: &Formal) -> String {
    match formal.arity {
        Arity::Single => "1".to_owned(),
        Arity::Optional => "?".to_owned(),
        Arity::Variadic { min, homogeneous } => format!("{min}{}", if homogeneous { '*' } else { '+' }),
    }
}

/// The table in the layout of `op_table.tsv`.
fn facts_of_table() -> Vec<String> {
    let limit = |(least, most): (u32, u32)| match most {
        u32::MAX => format!("{least}-*"),
        most => format!("{least}-{most}"),
    };
    let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let mut lines = Vec::new();
    for schema in op::all() {
        let id = identity(schema);
        let flags = format!(
            "{}{}{}",
            if schema.deprecated { "d" } else { "" },
            if schema.is_function { "f" } else { "" },
            if schema.beside_onnx { "b" } else { "" }
        );
        let attrs: Vec<&str> = schema.attrs.iter().map(|a| a.name).collect();
        let (inputs, outputs) = (limit(schema.n_inputs), limit(schema.n_outputs));
        lines.push(format!(
            "{id}\top\t{}\t{inputs}\t{outputs}\t{}",
            or_dash(flags),
            or_dash(attrs.join(","))
        ));
        for (side, formals) in sides(schema) {
            let side = if side == Side::Operand { "in" } else { "out" };
            for formal in formals {
                let types = schema.types_of(formal);
                let [f16, bf16, f32] = [DType::F16, DType::BF16, DType::F32].map(|d| places(&types, d));
                let (name, arity) = (formal.name, arity(formal));
                lines.push(format!("{id}\t{side}\t{name}\t{arity}\t{f16}\t{bf16}\t{f32}"));
            }
        }
    }
    lines
}

#[test]
fn the_table_agrees_with_the_facts() {
    let table = facts_of_table();
    let (mut found, mut expected) = (table.iter().map(String::as_str), rows(FACTS));
    loop {
        match (found.next(), expected.next()) {
            (None, None) => break,
            (found, expected) => assert_eq!(found, expected, "first difference"),
        }
    }
}

#[test]
fn every_formal_has_a_class_and_a_legality() {
    let mut n_formals = 0;
    for (schema, side, index, formal) in all_formals() {
        n_formals += 1;
        let types = schema.types_of(formal);
        let context = format!("{} {side:?} {}", identity(schema), formal.name);
        // As the documentation has it: by tensors, or by elements where only containers are admitted.
        let admits = |dtype| {
            let places = places(&types, dtype);
            if types.tensor == 0 { places != "-" } else { places.contains('t') }
        };
        for format in FORMATS {
            let class = op::formal_class(schema, side, formal, format);
            let legality = op::formal_legality(schema, side, index, format);
            assert_ne!(class, Class::Promote, "{context}: the table promotes nothing");
            match legality {
                Legality::Legal => assert!(admits(DType::F32) && admits(format), "{context}"),
                Legality::NotFloat => {
                    assert!(!admits(DType::F32), "{context}");
                    assert_eq!(class, Class::Fixed, "{context}");
                }
                Legality::NoSuchFormat { first_opset_with_it } => {
                    assert!(admits(DType::F32) && !admits(format), "{context}");
                    assert!(first_opset_with_it.is_none_or(|opset| opset > schema.since), "{context}");
                }
            }
            if let FormalType::Var(var) = formal.ty {
                assert_eq!(op::legality(schema, var, format) == Legality::Legal, legality == Legality::Legal);
                let var_class = op::var_class(schema, var, format);
                if legality == Legality::Legal {
                    assert!(var_class >= class, "{context}: {var_class} is freer than {class}");
                } else {
                    assert_eq!(var_class, Class::Fixed, "{context}");
                }
            }
        }
    }
    let formal_rows = rows(FACTS).filter(|row| !row.split('\t').any(|field| field == "op")).count();
    assert_eq!(n_formals, formal_rows);
}

#[test]
fn a_variable_has_the_strictest_class_of_its_formals() {
    for schema in op::all() {
        for var in 0..u8::try_from(schema.type_vars.len()).unwrap() {
            for format in FORMATS {
                let strictest = sides(schema)
                    .into_iter()
                    .flat_map(|(side, formals)| formals.iter().map(move |f| (side, f)))
                    .filter(|(_, formal)| formal.ty == FormalType::Var(var))
                    .map(|(side, formal)| op::formal_class(schema, side, formal, format))
                    .reduce(Class::strictest);
                let expected = match op::legality(schema, var, format) {
                    Legality::Legal => strictest.unwrap_or(Class::Fixed),
                    Legality::NotFloat | Legality::NoSuchFormat { .. } => Class::Fixed,
                };
                assert_eq!(
                    op::var_class(schema, var, format),
                    expected,
                    "{} variable {var}",
                    identity(schema)
                );
            }
        }
    }
}

/// The main data formal: the first result that may be f32, else the first operand that may.
fn main_formal(schema: &'static OpSchema) -> Option<(Side, &'static Formal)> {
    let is_float = |formal: &&Formal| schema.types_of(formal).has_tensor(DType::F32);
    let result = schema.outputs.iter().find(is_float).map(|f| (Side::Result, f));
    result.or_else(|| schema.inputs.iter().find(is_float).map(|f| (Side::Operand, f)))
}

#[test]
fn every_live_operator_has_its_surveyed_class() {
    let mut survey = BTreeMap::new();
    for row in rows(SURVEY) {
        let (class, names) = row.split_once(": ").unwrap();
        for name in names.split(' ') {
            assert_eq!(survey.insert(name, class), None, "{name} is listed twice");
        }
    }
    let live = OpKind::ALL.iter().filter(|k| k.domain().is_empty() && !k.newest().deprecated);
    for kind in live.clone() {
        let listed = *survey.get(kind.name()).unwrap_or_else(|| panic!("{kind:?} is in no list"));
        let expected = match (listed, kind.name()) {
            ("split", "Resize" | "GridSample") => Class::Infer,
            ("split", "ScatterElements" | "ScatterND") => Class::Clear,
            ("struct" | "nofloat", _) => Class::Fixed,
            (class, _) => class.parse().unwrap(),
        };
        assert_eq!(op::base_class(*kind, DType::F16), expected, "{kind:?}");
        let main = main_formal(kind.newest());
        assert!(main.is_some() || listed == "nofloat" || listed == "struct", "{kind:?} has no float formal");
        // A cast's operand is discrete and only its result is fixed, which is the formal that is looked at.
        if let Some((side, formal)) = main {
            assert_eq!(op::formal_class(kind.newest(), side, formal, DType::F16), expected, "{kind:?}");
        }
    }
    assert_eq!(live.count(), survey.len());
}

#[test]
fn other_domains_have_the_classes_decided_for_them() {
    for kind in OpKind::ALL {
        let expected = match (kind.domain(), kind.name()) {
            ("", _) => continue,
            ("ai.ampc", "PhiloxDropout") => Class::Infer,
            ("ai.ampc", _) => Class::Fixed,
            ("ai.onnx.preview", "FlexAttention") => Class::Allow,
            ("ai.onnx.preview.training", "Adagrad" | "Adam" | "Momentum") => Class::Deny,
            ("ai.onnx.preview.training" | "ai.onnx.ml", _) => Class::Fixed,
            (CONTRIB, name) => class_of_contrib(name),
            (domain, name) => panic!("{domain} {name}"),
        };
        assert_eq!(op::base_class(*kind, DType::F16), expected, "{kind:?}");
    }
}

const CONTRIB: &str = "com.microsoft";

/// ONNX Runtime's own operators.
fn class_of_contrib(name: &str) -> Class {
    match name {
        "Attention" | "GroupQueryAttention" | "MultiHeadAttention" | "PackedMultiHeadAttention" => {
            Class::Allow
        }
        "FusedConv" | "FusedGemm" | "FusedMatMul" | "GemmFastGelu" | "MatMulNBits" | "NhwcConv" => {
            Class::Allow
        }
        "EmbedLayerNormalization" | "TransposeMatMul" => Class::Allow,
        "BiasAdd" | "BiasGelu" | "BiasSplitGelu" | "FastGelu" | "Gelu" | "QuickGelu" => Class::Infer,
        "GroupNorm" | "RotaryEmbedding" | "SkipGroupNorm" => Class::Infer,
        "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization" => Class::Infer,
        "BiasSoftmax" | "Inverse" | "Irfft" | "Rfft" => Class::Deny,
        "QuantizeLinear" | "DequantizeLinear" | "QLinearAdd" | "QLinearMul" | "QAttention" => Class::Fixed,
        "DynamicQuantizeMatMul" | "MatMulInteger16" | "MatMulIntegerToFloat" => Class::Fixed,
        "DecoderMaskedMultiHeadAttention" => Class::Fixed,
        other => panic!("{other} has no class here"),
    }
}

/// The classes of variables that are not those of their operator.
#[test]
fn variables_of_contrib_operators() {
    let class = |name: &str, var: &str, format| {
        let schema = &op::versions(CONTRIB, name)[0];
        let index = schema.type_vars.iter().position(|v| v.name == var).expect(var);
        op::var_class(schema, u8::try_from(index).unwrap(), format)
    };
    for name in ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"] {
        assert_eq!(
            [class(name, "T", DType::F16), class(name, "U", DType::F16)],
            [Class::Infer, Class::Fixed]
        );
    }
    for name in ["GroupNorm", "SkipGroupNorm"] {
        assert_eq!(
            [class(name, "T", DType::F16), class(name, "M", DType::F16)],
            [Class::Infer, Class::Fixed]
        );
        assert_eq!(class(name, "T", DType::BF16), Class::Fixed, "no bf16 in the schema");
    }
    // With all its operands, so with a bias that may be a mask.
    for name in ["Attention", "MultiHeadAttention", "PackedMultiHeadAttention"] {
        assert_eq!(class(name, "T", DType::F16), Class::Infer, "{name}");
        let schema = &op::versions(CONTRIB, name)[0];
        let bias = schema.inputs.iter().position(|f| f.name == "attention_bias").unwrap();
        let without = op::var_class_given(schema, 0, DType::F16, Class::Allow, |side, i| {
            side == Side::Result || i != bias
        });
        assert_eq!(without, Class::Allow, "{name}");
    }
    assert_eq!(
        ["T", "T_CACHE", "T_KV_SCALE"].map(|v| class("GroupQueryAttention", v, DType::F16)),
        [Class::Allow, Class::Allow, Class::Fixed]
    );
    assert_eq!(["T1", "T3"].map(|v| class("MatMulNBits", v, DType::F16)), [Class::Allow; 2]);
    assert_eq!(class("Gelu", "T", DType::BF16), Class::Infer);
    assert_eq!(class("BiasGelu", "T", DType::BF16), Class::Infer);
    assert_eq!(class("FusedConv", "T", DType::BF16), Class::Fixed, "no bf16 in the schema");
}

#[test]
fn removed_operators_have_the_class_of_their_successors() {
    for (old, new) in [(OpKind::Scatter, OpKind::ScatterElements), (OpKind::Upsample, OpKind::Resize)] {
        for format in FORMATS {
            assert_eq!(op::base_class(old, format), op::base_class(new, format));
        }
    }
}

#[test]
fn no_version_is_newer_than_its_domain() {
    for schema in op::all() {
        if op::is_open(schema.domain) {
            assert_eq!(schema.since, 1, "{}", identity(schema));
            continue;
        }
        let latest = LATEST_OPSETS.iter().find(|(domain, _)| *domain == schema.domain);
        assert!(latest.is_some_and(|&(_, opset)| schema.since <= opset), "{}", identity(schema));
    }
}

/// Operators whose results are inferred from the schema alone. A new entry needs a reason.
const NOT_INFERRED: &[(&str, &str)] = &[
    // Complex numbers are an axis or not, and sizes depend on `onesided`.
    (CONTRIB, "Irfft"),
    (CONTRIB, "Rfft"),
    // Channels are the last axis.
    (CONTRIB, "NhwcConv"),
    // Rank 2 or 4, by how it is packed.
    (CONTRIB, "PackedMultiHeadAttention"),
    // Sizes depend on how query, keys and values are packed and on caches.
    (CONTRIB, "DecoderMaskedMultiHeadAttention"),
    (CONTRIB, "QAttention"),
    // Of no type that an operand has.
    (CONTRIB, "MatMulInteger16"),
];

#[test]
fn every_operator_is_inferred_or_listed() {
    for schema in op::all() {
        let listed = NOT_INFERRED.contains(&(schema.domain, schema.name));
        assert_eq!(ampc_ir::infer::is_inferred(schema.kind), !listed, "{}", identity(schema));
    }
}

#[test]
fn the_generated_files_are_fresh() {
    #[expect(clippy::disallowed_methods, reason = "a test is an edge; the variable says where onnx is")]
    let Ok(python) = std::env::var("AMPC_PYTHON") else {
        let _ = writeln!(
            std::io::stderr(),
            "skipped: AMPC_PYTHON does not name a Python that has the pinned onnx"
        );
        return;
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for script in ["generate_contrib_schemas.py", "generate_lost_kernels.py", "generate_op_table.py"] {
        let output = Command::new(&python)
            .args([&format!("scripts/{script}"), "--check"])
            .current_dir(root)
            .output()
            .unwrap_or_else(|error| panic!("AMPC_PYTHON={python}: {error}"));
        let text =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        match output.status.code() {
            Some(0) => {}
            Some(2) => {
                let _ = writeln!(std::io::stderr(), "skipped: {text}");
            }
            _ => panic!("{text}"),
        }
    }
}
