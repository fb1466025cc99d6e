//! The same verdicts on the CPU and on the reference backend, which has a memory of its own, runs its work late and in
//! another order, and poisons memory that nothing has written.
//!
//! `AMPC_CONFORMANCE` names the folder of ONNX's backend tests that `tests/judge/conformance.py` writes, and
//! `AMPC_CORPUS` a corpus; without them the models of the project are run.

#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

#[path = "common/corpus.rs"]
mod corpus;
#[path = "../runtime/tests/reference/mod.rs"]
mod reference;

use ampc::Error;
use ampc::execute::{
    Agreement, Inputs, StoredTolerance, agree_in_type, prepare, read_test_data, run, verify_stored,
};
use ampc::runtime::{Cpu, Runtime, Tolerance};
use corpus::models;
use reference::Reference;
use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MOST_BYTES: u64 = 1 << 30;

/// The verdict on a model with stored data.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Passes,
    Differs,
    /// The kind of the error.
    Fails(&'static str),
}

fn stored(case: &Path, runtime: &Runtime) -> Verdict {
    let Ok(mut model) = ampc::load(case.join("model.onnx")) else { return Verdict::Fails("load") };
    let mut session = match prepare(&mut model.module, runtime) {
        Ok(session) => session,
        Err(error) => return failed(&error),
    };
    let Ok(data) = read_test_data(&case.join("test_data_set_0"), &model.module, MOST_BYTES) else {
        return Verdict::Fails("data");
    };
    match verify_stored(&model.module, &mut session, &data, &StoredTolerance::default()) {
        Ok(outputs) if outputs.iter().all(|output| output.agreement.passed()) => Verdict::Passes,
        Ok(_) => Verdict::Differs,
        Err(error) => failed(&error),
    }
}

fn failed(error: &Error) -> Verdict {
    Verdict::Fails(match error {
        Error::Unsupported(_) => "unsupported",
        Error::Run(_) => "run",
        Error::Usage(_) => "usage",
        Error::Invalid(_) => "invalid",
        _ => "other",
    })
}

fn runtimes() -> [Runtime; 4] {
    let reference = |seed| Runtime::new(Arc::new(Reference::new(seed)));
    [Cpu::new(1).into(), reference(0), reference(1), reference(2)]
}

/// ONNX's backend tests have the same verdict on both backends.
#[test]
fn conformance_on_both_backends() {
    let Some(folder) = env::var_os("AMPC_CONFORMANCE").map(PathBuf::from) else {
        println!("skipped: AMPC_CONFORMANCE names no folder of ONNX's backend tests");
        return;
    };
    let cases: Vec<PathBuf> = models(&folder).iter().filter_map(|m| m.parent().map(Path::to_owned)).collect();
    assert!(cases.len() > 1000, "{} cases in {}", cases.len(), folder.display());
    let (mut differ, mut counts) = (Vec::new(), BTreeMap::new());
    for (at, case) in cases.iter().enumerate() {
        let [cpu, others @ ..] = runtimes();
        let want = stored(case, &cpu);
        // A seed for each case, and for a tenth of them all.
        let seeds = if at % 10 == 0 { 0..3 } else { at % 3..at % 3 + 1 };
        for seed in seeds {
            let got = stored(case, &others[seed]);
            if got != want {
                differ.push(format!("{}: {want:?} on the CPU, {got:?} with seed {seed}", case.display()));
            }
        }
        *counts.entry(format!("{want:?}")).or_insert(0) += 1;
    }
    println!("{counts:?}");
    assert!(differ.is_empty(), "{} cases differ:\n{}", differ.len(), differ.join("\n"));
}

/// Models on random inputs have the same outputs on both backends, but for rounding.
#[test]
fn models_on_both_backends() {
    let folder = env::var_os("AMPC_CORPUS").map_or_else(|| "testdata/corpus".into(), PathBuf::from);
    let folders = ["small", "tricky"].map(|name| folder.join(name));
    let mut problems = Vec::new();
    let mut ran = 0;
    for path in folders.iter().filter(|folder| folder.is_dir()).flat_map(|folder| models(folder)) {
        let Ok(mut model) = ampc::load(&path) else { continue };
        let Ok(inputs) = Inputs::random(&model.module, 1, &Default::default(), MOST_BYTES) else { continue };
        let [cpu, others @ ..] = runtimes();
        let mut outputs = |runtime: &Runtime| {
            let mut session = prepare(&mut model.module, runtime).map_err(|error| error.to_string())?;
            run(&mut session, &inputs.values).map_err(|error| error.to_string())
        };
        let want = outputs(&cpu);
        let got = outputs(&others[ran % 3]);
        match (want, got) {
            (Ok(want), Ok(got)) => {
                let tolerance = Tolerance { abs: 1e-6, rel: 1e-3, of_max: 1e-4 };
                let found: Vec<Agreement> =
                    got.iter().zip(&want).map(|(got, want)| agree_in_type(got, want, &tolerance)).collect();
                if let Some(at) = found.iter().position(|agreement| !agreement.passed()) {
                    problems.push(format!("{}: output {at}: {}", path.display(), found[at]));
                }
                ran += 1;
            }
            (Err(_), Err(_)) => {}
            (want, got) => problems.push(format!("{}: {:?}, {:?}", path.display(), want.err(), got.err())),
        }
    }
    println!("{ran} models ran");
    assert!(ran > 0 && problems.is_empty(), "{} differ:\n{}", problems.len(), problems.join("\n"));
}
