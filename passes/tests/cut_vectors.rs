//! The problems of the vector file give the labels and costs that exhaustive search and other solvers found.
//!
//! The file `cut_vectors.json` is in the folder that the environment variable `AMPC_CORPUS` names; without it the test
//! says that it is skipped.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails and tells by panicking and printing"
)]

use ampc_passes::cut::{DEFAULT_BUDGET, Label, Place, Problem, SolveOptions, Vertex};
use serde_json::Value;
use std::io::Write as _;
use std::path::PathBuf;

#[test]
fn vectors() {
    #[expect(clippy::disallowed_methods, reason = "tests are told where the corpora are")]
    let Some(root) = std::env::var("AMPC_CORPUS").ok().map(PathBuf::from) else {
        let _ = writeln!(std::io::stderr(), "skipped: AMPC_CORPUS is not set");
        return;
    };
    let path = root.join("cut_vectors.json");
    if !path.exists() {
        let _ = writeln!(std::io::stderr(), "skipped: {} has no cut_vectors.json", root.display());
        return;
    }
    let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(file["schema"], "ampc-cut-vectors/1");
    let cases = file["cases"].as_array().unwrap();
    let failed: Vec<String> = cases
        .iter()
        .filter_map(|case| check(case).err().map(|why| format!("{}: {why}", case["id"])))
        .collect();
    println!("{} of {} vectors", cases.len() - failed.len(), cases.len());
    assert!(!cases.is_empty(), "no cases");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

fn check(case: &Value) -> Result<(), String> {
    let problem = problem(case);
    let solutions = [false, true].map(|reduce| {
        let solution = problem.solve_with(&SolveOptions { reduce, budget: DEFAULT_BUDGET });
        if let Ok(solution) = &solution {
            solution.certificate.check(&problem, &solution.labels).map_err(|e| e.to_string())?;
        }
        Ok::<_, String>(solution)
    });
    let [plain, reduced] = solutions;
    let (plain, reduced) = (plain?, reduced?);
    if plain.as_ref().map(|s| (&s.labels, s.cost)) != reduced.as_ref().map(|s| (&s.labels, s.cost)) {
        return Err("reductions change the result".to_owned());
    }
    let Some(cost) = case["cost"].as_i64() else {
        return if reduced.is_err() { Ok(()) } else { Err("no contradiction was found".to_owned()) };
    };
    let solution = reduced.map_err(|contradiction| contradiction.to_string())?;
    let labels: String =
        solution.labels.iter().map(|&label| if label == Label::Full { 'F' } else { 'L' }).collect();
    let expected = case["labels"].as_str().unwrap();
    if (solution.cost, labels.as_str()) == (cost, expected) && solution.optimal {
        Ok(())
    } else {
        Err(format!("expected {cost} {expected}, found {} {labels}", solution.cost))
    }
}

fn problem(case: &Value) -> Problem {
    let mut problem = Problem::with_vertices(u32::try_from(int(&case["n"])).unwrap()).unwrap();
    for (vertex, letter) in (0..).map(Vertex).zip(case["fix"].as_str().unwrap().chars()) {
        match letter {
            'F' => problem.fix(vertex, Label::Full).unwrap(),
            'L' => problem.fix(vertex, Label::Low).unwrap(),
            _ => assert_eq!(letter, '.'),
        }
    }
    for term in list(&case["unary"]) {
        problem.unary(vertex(&term[0]), int(&term[1]), int(&term[2])).unwrap();
    }
    for term in list(&case["equal"]) {
        problem.equal(&vertices(term)).unwrap();
    }
    for term in list(&case["imply"]) {
        problem.imply(vertex(&term[0]), vertex(&term[1])).unwrap();
    }
    for term in list(&case["tensors"]) {
        problem.tensor(vertex(&term[0]), int(&term[1]), int(&term[2]), &vertices(&term[3])).unwrap();
    }
    for term in list(&case["scoped"]) {
        let mut places = Vec::new();
        flatten(&term[1], None, &mut places);
        let places: Vec<Place<'_>> = places
            .iter()
            .map(|(parent, narrow, widen, readers)| Place {
                parent: *parent,
                narrow: *narrow,
                widen: *widen,
                readers,
            })
            .collect();
        problem.scoped(vertex(&term[0]), &places).unwrap();
    }
    for term in list(&case["shared"]) {
        problem.shared(int(&term[0]), &vertices(&term[1])).unwrap();
    }
    for term in list(&case["foreign"]) {
        problem.foreign(int(&term[0]), int(&term[1]), &vertices(&term[2])).unwrap();
    }
    problem
}

type OwnedPlace = (Option<usize>, i64, i64, Vec<Vertex>);

fn flatten(place: &Value, parent: Option<usize>, places: &mut Vec<OwnedPlace>) {
    let index = places.len();
    places.push((parent, int(&place[0]), int(&place[1]), vertices(&place[2])));
    for inner in list(&place[3]) {
        flatten(inner, Some(index), places);
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn int(value: &Value) -> i64 {
    value.as_i64().unwrap()
}

fn vertex(value: &Value) -> Vertex {
    Vertex(u32::try_from(int(value)).unwrap())
}

fn vertices(value: &Value) -> Vec<Vertex> {
    list(value).iter().map(vertex).collect()
}
