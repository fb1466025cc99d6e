//! `ampc verify`: what a model computes against what it should.

use super::args::VerifyArgs;
use super::diagnose;
use super::problem::Failure;
use super::ui::{self, Ui};
use ampc::execute::{of_run, prepare, read_test_data};
use ampc::runtime::{Cpu, Data, DataRef, Tolerance, compare};
use std::path::PathBuf;

pub(crate) fn run(args: &VerifyArgs, _ui: Ui) -> Result<(), Failure> {
    let fail = |error: ampc::Error| diagnose::failure(&error, None);
    let mut model = ampc::load(&args.model).map_err(|e| fail(e))?;
    let mut executable = prepare(&mut model, &Cpu::default()).map_err(|e| fail(e))?;
    let mut folders: Vec<PathBuf> = Vec::new();
    if args.test_data.join("output_0.pb").exists() {
        folders.push(args.test_data.clone());
    } else if let Ok(entries) = std::fs::read_dir(&args.test_data) {
        folders.extend(entries.flatten().map(|e| e.path()).filter(|p| p.join("output_0.pb").exists()));
        folders.sort();
    }
    let tolerance = Tolerance { abs: args.atol, rel: args.rtol, of_max: 0.0 };
    let mut failed = 0;
    for folder in folders {
        let data = read_test_data(&folder, &model.module).map_err(|e| fail(e))?;
        let inputs: Vec<Option<DataRef<'_>>> =
            data.inputs.iter().map(|d| d.as_ref().map(Data::view)).collect();
        let outputs = executable.run(&inputs).map_err(|e| fail(of_run(&model.module, &e)))?;
        for (i, (got, want)) in outputs.iter().zip(&data.outputs).enumerate() {
            let Some(want) = want else { continue };
            let found = agree(got, want, &tolerance);
            failed += usize::from(!found.0);
            ui::print(&format!("{} output {i}: {}\n", folder.display(), found.1))?;
        }
    }
    if failed == 0 { Ok(()) } else { Err(Failure { code: 1, problems: Vec::new(), see: None }) }
}

fn agree(got: &Data, want: &Data, tolerance: &Tolerance) -> (bool, String) {
    match (got, want) {
        (Data::Tensor(got), Data::Tensor(want)) => match compare(got, want, tolerance) {
            Ok(found) => (found.passed(), found.to_string()),
            Err(error) => (false, error.to_string()),
        },
        (Data::Sequence(got), Data::Sequence(want)) if got.items.len() == want.items.len() => {
            let all = got.items.iter().zip(&want.items).map(|(g, w)| agree(g, w, tolerance));
            all.fold((true, String::new()), |(ok, text), (o, t)| (ok && o, format!("{text}{t}; ")))
        }
        (Data::Optional(got), Data::Optional(want)) => match (&got.value, &want.value) {
            (Some(got), Some(want)) => agree(got, want, tolerance),
            (None, None) => (true, "none".into()),
            _ => (false, "one is none".into()),
        },
        _ => (false, "other kinds of values".into()),
    }
}
