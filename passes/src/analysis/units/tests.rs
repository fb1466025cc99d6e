//! The table of patterns by exporter: `passes/testdata/units/*.ir`.
//!
//! A case has an exporter, the units that are found in it, in order, and near misses: a text that is replaced once, and
//! the units that are found then.

use super::*;
use ampc_ir::infer::infer;
use ampc_ir::text::{NoData, parse};
use std::path::Path;

/// A case: its name, exporter, units, near misses and text.
struct Case {
    name: String,
    exporter: String,
    units: Vec<String>,
    misses: Vec<Miss>,
    text: String,
}

struct Miss {
    why: String,
    units: Vec<String>,
    text: Result<String, String>,
}

fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/units");
    let entries = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| case(path)).collect()
}

fn case(path: &Path) -> Case {
    let text = std::fs::read_to_string(path).unwrap();
    let directives = |key: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix("// ")?.split_once(": "));
        lines.filter(|(found, _)| *found == key).map(|(_, value)| value.to_owned()).collect()
    };
    let body = text.lines().filter(|line| !line.starts_with("//")).collect::<Vec<_>>().join("\n");
    let miss = |line: String| {
        let mut parts = line.splitn(3, " | ");
        let [why, units, edit] = std::array::from_fn(|_| parts.next().unwrap().to_owned());
        let (old, new) = edit.split_once(" => ").unwrap();
        let edited = body.replacen(old, &new.replace("\\n", "\n"), 1);
        let text = if body.contains(old) { Ok(edited) } else { Err(format!("`{old}` is not in the case")) };
        let units = units.split('+').filter(|&kind| kind != "none").map(str::to_owned).collect();
        Miss { why, units, text }
    };
    Case {
        name: path.file_stem().unwrap().to_string_lossy().into_owned(),
        exporter: directives("exporter").concat(),
        units: directives("unit"),
        misses: directives("miss").into_iter().map(miss).collect(),
        text: body.clone(),
    }
}

fn found(text: &str) -> Result<Vec<String>, String> {
    let mut module = parse(text, &NoData).map_err(|errors| errors.to_string())?;
    let (inference, errors) = infer(&module);
    if !errors.is_empty() {
        return Err(format!("{errors:?}"));
    }
    inference.types.clone().apply(&mut module);
    let units = find(&module, &inference.facts);
    Ok(units.iter().map(|unit| unit.kind.name().to_owned()).collect())
}

#[test]
fn the_table_of_patterns_is_read() {
    let rules = rules(table::PATTERNS).unwrap();
    assert!(rules.len() > 30);
    // Every definition and every function has as many operands as it needs.
    fn check(pattern: &Pattern, named: usize) {
        match pattern {
            Pattern::Any | Pattern::Capture(_) => {}
            Pattern::Named(i) => assert!(*i < named),
            Pattern::Flat(_, _, items) => items.iter().for_each(|(item, _)| check(item, named)),
            Pattern::Call(function, operands) => {
                let n = match function {
                    Function::Clip => 3,
                    Function::Join | Function::Weave | Function::Op(OpKind::Min | OpKind::Reshape) => 2,
                    _ => 1,
                };
                assert_eq!(operands.len(), n, "{function:?}");
                operands.iter().for_each(|operand| check(operand, named));
            }
        }
    }
    for rule in &rules {
        assert!(Kind::all().any(|kind| kind.name() == rule.word), "{}", rule.word);
        rule.named.iter().chain([&rule.root]).for_each(|pattern| check(pattern, rule.named.len()));
    }
}

#[test]
fn units_of_exporters_are_found_and_near_misses_are_not() {
    let mut wrong = Vec::new();
    let cases = cases();
    for case in &cases {
        let name = &case.name;
        match found(&case.text) {
            Ok(units) if units == case.units => {}
            other => wrong.push(format!("{name}: expected {:?}, found {other:?}", case.units)),
        }
        if case.misses.is_empty() {
            wrong.push(format!("{name}: no near miss"));
        }
        for miss in &case.misses {
            match miss.text.clone().and_then(|text| found(&text)) {
                Ok(units) if units == miss.units => {}
                other => {
                    wrong.push(format!("{name}, {}: expected {:?}, found {other:?}", miss.why, miss.units))
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for exporter in ["TorchScript", "dynamo", "TF/Keras"] {
        assert!(cases.iter().filter(|case| case.exporter == exporter).count() >= 10, "{exporter}");
    }
    assert!(cases.len() >= 29);
    let kinds: FxHashSet<&str> = cases.iter().flat_map(|case| &case.units).map(String::as_str).collect();
    assert!(Kind::all().all(|kind| kinds.contains(kind.name())), "every kind has a case: {kinds:?}");
}

/// Long chains of sums and products are read up to a bound, so that the search is linear.
#[test]
fn long_chains_are_read_up_to_a_bound() {
    let mut text = "opset ai.onnx=18\n\ngraph {\n  input %x : f32[4]\n  %v0 = Abs(%x) : f32[4]\n".to_owned();
    for i in 1..20_000 {
        let op = if i % 500 < 250 { "Add" } else { "Mul" };
        text += &format!("  %v{i} = {op}(%v{}, %x) : f32[4]\n", i - 1);
    }
    text += "  output %v19999\n}\n";
    assert_eq!(found(&text), Ok(Vec::new()));
}
