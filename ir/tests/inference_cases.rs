//! Inference against onnx's own: every row of `data/cases_*.tsv` is one node and what onnx says of its results
//! (`scripts/generate_inference_cases.py` writes and documents the files).
//!
//! Ours must say the same or more, reject what onnx rejects, and accept what onnx accepts. Where it differs on
//! purpose, the row matches an entry of `data/differences_*.tsv`, which says why; an entry without a differing row is
//! an error too.

#![allow(clippy::unwrap_used, reason = "a test: what cannot be read fails it")]

mod nodes;

use ampc_ir::{Dim, Shape, Type};
use nodes::{NodeText, infer, parse_type, spell_all, split};
use std::fmt::Write;
use std::path::{Path, PathBuf};

struct Case<'a> {
    name: &'a str,
    node: NodeText<'a>,
    expected: &'a str,
}

/// A difference on purpose: operator, least and greatest opset, a text in operands or attributes, the reason.
struct Difference<'a> {
    op: &'a str,
    opsets: std::ops::RangeInclusive<u16>,
    text: &'a str,
    reason: &'a str,
}

impl Difference<'_> {
    fn covers(&self, case: &Case<'_>) -> bool {
        let text = format!("{}|{}|{}", case.node.operands, case.node.attrs, case.expected);
        self.op.split(' ').any(|op| op == case.node.op)
            && self.opsets.contains(&case.node.opset)
            && text.contains(self.text)
    }
}

#[test]
fn ours_says_what_onnx_says_or_more() {
    let mut problems = String::new();
    let mut n = 0;
    for file in files("cases_") {
        let text = std::fs::read_to_string(&file).unwrap();
        let differences = std::fs::read_to_string(sibling(&file)).unwrap_or_default();
        let differences: Vec<Difference<'_>> = rows(&differences).map(|r| difference(&r)).collect();
        let mut used = vec![false; differences.len()];
        for row in rows(&text) {
            let case = case(&row);
            n += 1;
            let Err(problem) = check(&case) else { continue };
            let known: Vec<usize> =
                (0..differences.len()).filter(|&i| differences[i].covers(&case)).collect();
            for &i in &known {
                used[i] = true;
            }
            if known.is_empty() {
                writeln!(
                    problems,
                    "{}: {}-{} {} {{{}}}\n  {problem}",
                    case.name, case.node.op, case.node.opset, case.node.operands, case.node.attrs
                )
                .unwrap();
            }
        }
        for (difference, _) in differences.iter().zip(used).filter(|(_, used)| !used) {
            writeln!(problems, "no row differs for {}: {}", difference.op, difference.reason).unwrap();
        }
    }
    assert!(n > 1000, "only {n} cases");
    assert!(problems.is_empty(), "{problems}");
}

fn files(prefix: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.file_name().unwrap().to_str().unwrap().starts_with(prefix));
    files.sort();
    files
}

fn sibling(file: &Path) -> PathBuf {
    let name = file.file_name().unwrap().to_str().unwrap();
    file.with_file_name(name.replace("cases_", "differences_"))
}

fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().filter(|l| !l.starts_with('#') && !l.is_empty()).map(|l| l.split('\t').collect())
}

fn case<'a>(row: &[&'a str]) -> Case<'a> {
    let [name, domain, op, opset, operands, attrs, results, expected] = row[..] else { panic!("{row:?}") };
    let (opset, results) = (opset.parse().unwrap(), results.parse().unwrap());
    Case { name, node: NodeText { domain, op, opset, operands, attrs, results }, expected }
}

fn difference<'a>(row: &[&'a str]) -> Difference<'a> {
    let [op, opsets, text, reason] = row[..] else { panic!("{row:?}") };
    let (first, last) = opsets.split_once('-').unwrap_or((opsets, opsets));
    Difference { op, opsets: first.parse().unwrap()..=last.parse().unwrap(), text, reason }
}

fn check(case: &Case<'_>) -> Result<(), String> {
    let found = infer(case.node);
    match (found, case.expected) {
        (Err(_), "error") => Ok(()),
        (Err(error), expected) => Err(format!("onnx says {expected}, ours says: {error}")),
        (Ok((module, types)), "error") => {
            Err(format!("onnx refuses, ours says {}", spell_all(&module, &types)))
        }
        (Ok((mut module, types)), expected) => {
            let fits = split(expected)
                .iter()
                .zip(&types)
                .all(|(e, t)| e == "?" || says_as_much(t, &parse_type(&mut module, e)));
            let spelled = spell_all(&module, &types);
            if fits && split(expected).len() == types.len() {
                Ok(())
            } else {
                Err(format!("onnx says {expected}, ours says {spelled}"))
            }
        }
    }
}

fn says_as_much(ours: &Type, onnx: &Type) -> bool {
    match (ours, onnx) {
        (_, Type::Unknown) => true,
        (Type::Tensor(a), Type::Tensor(b)) => a.dtype == b.dtype && shape_says_as_much(&a.shape, &b.shape),
        (Type::Sequence(a), Type::Sequence(b)) | (Type::Optional(a), Type::Optional(b)) => says_as_much(a, b),
        _ => false,
    }
}

fn shape_says_as_much(ours: &Shape, onnx: &Shape) -> bool {
    match (ours.dims(), onnx.dims()) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(a), Some(b)) => {
            a.len() == b.len()
                && a.iter().zip(b).all(|(a, b)| match b {
                    Dim::Unknown => true,
                    Dim::Sym(_) => a == b || a.known().is_some(),
                    Dim::Known(_) => a == b,
                })
        }
    }
}
