//! Plans of models as a table: groups, launches by family, and kernels, compared with `plans.tsv`. With
//! `AMPC_REGENERATE`, writes the table instead.

use crate::steps::{ATTENTION_STEP, STEPS, sized, train};
use ampc_ir::Module;
use ampc_ir::text::{NoData, parse};
use ampc_runtime::cuda::{Cuda, CudaOptions};
use ampc_runtime::{Cpu, Runtime};
use std::collections::BTreeMap;
use std::sync::Arc;

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cuda/plans.tsv");

/// The row of a module: the kernels, and the launches of a run by family.
fn row(options: &CudaOptions, name: &str, module: &Module) -> String {
    let folder = std::env::temp_dir().join(format!("ampc-plans-{}", std::process::id()));
    let options = CudaOptions { dump: Some(folder.clone()), ..options.clone() };
    let cuda = Arc::new(Cuda::open(&options, Arc::new(Cpu::new(1))).unwrap());
    drop(train(&Runtime::new(cuda), module, 3));
    let index = std::fs::read_to_string(folder.join("index.tsv")).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    let mut families: BTreeMap<&str, usize> = BTreeMap::new();
    let mut files: Vec<&str> = Vec::new();
    for line in index.lines().skip(1) {
        let cells: Vec<&str> = line.split('\t').collect();
        let (file, launches) = (cells[0], cells[5].parse::<usize>().unwrap());
        let family = file.split_once('-').map_or(file, |(family, _)| family);
        *families.entry(family).or_default() += launches;
        files.push(file);
    }
    files.sort_unstable();
    files.dedup();
    let launches: usize = families.values().sum();
    let families: Vec<String> = families.iter().map(|(family, n)| format!("{family} {n}")).collect();
    format!("{name}\t{}\t{launches}\t{}\n", files.len(), families.join(", "))
}

/// Compares the plans with the table; returns the number of differences.
pub(crate) fn run(options: &CudaOptions, filter: &str) -> usize {
    if !"plans of models".contains(filter) {
        return 0;
    }
    let mut table = "model\tkernels\tlaunches\tby family\n".to_owned();
    let steps = STEPS.map(|(name, text, _)| (format!("mlp step {name}"), text));
    for (name, text) in steps.into_iter().chain([("attention step bf16".into(), ATTENTION_STEP)]) {
        let module = parse(&sized(text, [16, 20, 64]), &NoData).unwrap_or_else(|errors| panic!("{errors}"));
        table += &row(options, &name, &module);
    }
    if std::env::var_os("AMPC_REGENERATE").is_some() {
        std::fs::write(TABLE, &table).unwrap();
    }
    let is_same = std::fs::read_to_string(TABLE).is_ok_and(|text| text == table);
    match is_same {
        true => println!("ok    plans of models"),
        false => println!("FAIL  plans of models: AMPC_REGENERATE=1 writes plans.tsv, now\n{table}"),
    }
    usize::from(!is_same)
}
