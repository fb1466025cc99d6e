//! A kernel of each family on the simulated device, compiled with race detection: a launch fails if two threads touch
//! the same byte without a barrier between them.

use crate::cases::{self, Case, Tolerance, module, on, random};
use crate::operators;
use crate::records::{Records, seed};
use crate::steps::{STEPS, sized, train};
use crate::{attention, convolutions};
use ampc_ir::DType;
use ampc_ir::text::{NoData, parse};
use ampc_runtime::cuda::{Cuda, CudaOptions};
use ampc_runtime::{Cpu, Runtime};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Families, with the operators whose smallest cases run.
const OPERATORS: [(&str, &[&str]); 21] = [
    ("pointwise", &["Add", "Transpose"]),
    ("reduce", &["ReduceSum"]),
    ("linear", &["Gemm"]),
    ("movement", &["Gather", "OneHot"]),
    ("strided", &["Slice", "Trilu"]),
    ("pad", &["Pad"]),
    ("fill", &["EyeLike"]),
    ("indexing", &["GatherElements", "GatherND"]),
    ("scatter", &["ScatterElements", "ScatterND"]),
    ("order", &["TopK", "CumSum", "ArgMax"]),
    ("pool", &["MaxPool", "AveragePool"]),
    ("batch_norm", &["BatchNormalization", "InstanceNormalization"]),
    ("recurrent", &["LSTM", "GRU"]),
    ("resize", &["Resize"]),
    ("grid_sample", &["GridSample"]),
    ("integer_product", &["MatMulInteger"]),
    ("einsum", &["Einsum"]),
    ("attention", &["Attention"]),
    ("normalize", &["Softmax", "LayerNormalization"]),
    ("loss", &["SoftmaxCrossEntropyLoss"]),
    ("random", &["RandomUniformLike"]),
];

/// The cases of an operator with the fewest elements: at least one, and at least [`SHARED`], whose kernels exchange numbers
/// through shared memory.
fn smallest<'a>(cases: &'a [Case], operator: &str) -> impl Iterator<Item = &'a Case> {
    let call = format!("= {operator}(");
    let elements =
        |case: &Case| case.inputs.iter().map(|input| input.dims().iter().product::<u64>()).sum::<u64>();
    let some: Vec<&Case> = cases.iter().filter(|case| case.body.contains(&call)).collect();
    let of_size = |least: u64| {
        some.iter().copied().filter(|case| elements(case) >= least).min_by_key(|case| elements(case))
    };
    let (small, large) = (of_size(1), of_size(SHARED));
    small.into_iter().chain(large.filter(|large| small.is_none_or(|small| small.name != large.name)))
}

/// The number of elements from which rows and reductions take more than a warp.
const SHARED: u64 = 1024;

fn runs(work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("panicked".into()))
}

/// Runs the families whose names contain `filter`, if `filter` is part of `race`; returns the number of failures.
pub(crate) fn run(options: &CudaOptions, filter: &str) -> usize {
    let Some(records) = Records::find() else {
        println!("skipped: races are found on the simulated device only");
        return 0;
    };
    // Races are found in any order of threads.
    if seed() != 0 || !"race of a family".contains(filter) {
        return 0;
    }
    let folder = std::env::temp_dir().join(format!("ampc-races-{}", std::process::id()));
    records.set(c"races", 1);
    let opened = Cuda::open(
        &CudaOptions { dump: Some(folder.clone()), queues: 1, ..options.clone() },
        Arc::new(Cpu::new(1)),
    );
    let runtime = Runtime::new(Arc::new(opened.unwrap()));
    let drawn = Case {
        name: "RandomUniformLike".into(),
        body: "  %y = RandomUniformLike(%a) {seed=2.0} : f32[2, 3]\n  output %y : f32[2, 3]\n".into(),
        inputs: vec![random(DType::F32, &[2, 3], 1)],
        tolerance: Tolerance::Exact,
    };
    let all: Vec<Case> = cases::cases().into_iter().chain(operators::cases()).chain([drawn]).collect();
    let mut failed = 0;
    let mut report = |name: &str, done: Result<(), String>| {
        match &done {
            Ok(()) => println!("ok    race of {name}"),
            Err(error) => println!("FAIL  race of {name}: {error}"),
        }
        failed += usize::from(done.is_err());
    };
    for (family, operators) in OPERATORS {
        for operator in operators {
            let mut found = smallest(&all, operator).peekable();
            if found.peek().is_none() {
                report(&format!("{family}, {operator}"), Err("no case".into()));
            }
            for case in found {
                let done = runs(|| {
                    let done = on(&runtime, &module(&case.body, &case.inputs), &case.inputs);
                    done.map(|_| ()).map_err(|error| error.to_string())
                });
                report(&format!("{family}, {operator}, {}", case.name), done);
            }
        }
    }
    // Generated kernels around plans of cuDNN, and attention computed by products.
    let convolutions = convolutions::cases().into_iter().filter(|case| case.name.ends_with(" f16 bias"));
    for case in convolutions.chain(attention::in_f16()) {
        let done = runs(|| {
            let done = on(&runtime, &module(&case.body, &case.inputs), &case.inputs);
            done.map(|_| ()).map_err(|error| error.to_string())
        });
        report(&case.name, done);
    }
    // Groups of 100 channels, whose means have 16 or 32 bits.
    for dtype in ["f16", "f32"] {
        let ty = format!("{dtype}[2, 100, 9]");
        let body = format!(
            "  const %axes : i64[2] = [0, 2]\n  %m = ReduceMean(%a, %axes) {{keepdims=1}} : {dtype}[1, 100, 1]\n  \
             %y = Sub(%a, %m) : {ty}\n  output %y : {ty}\n"
        );
        let input = random(if dtype == "f16" { DType::F16 } else { DType::F32 }, &[2, 100, 9], 3);
        let done = runs(|| {
            let done = on(&runtime, &module(&body, std::slice::from_ref(&input)), &[input]);
            done.map(|_| ()).map_err(|error| error.to_string())
        });
        report(&format!("means of channels, {dtype}"), done);
    }
    // Groups, and the operators of training.
    report(
        "a training step",
        runs(|| {
            let module = parse(&sized(STEPS[2].1, [2, 4, 8]), &NoData).map_err(|error| error.to_string())?;
            train(&runtime, &module, 3);
            Ok(())
        }),
    );
    records.set(c"races", 0);
    let files = std::fs::read_dir(&folder).unwrap().flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    let families: BTreeSet<String> =
        names.filter_map(|name| name.split_once('-').map(|(family, _)| family.to_owned())).collect();
    let expected = OPERATORS.iter().map(|(family, _)| *family).chain(["convolution", "groups", "training"]);
    let missing: Vec<&str> = expected.filter(|family| !families.contains(*family)).collect();
    report("all families", if missing.is_empty() { Ok(()) } else { Err(format!("none of {missing:?}")) });
    report(
        "an index",
        match std::fs::read_to_string(folder.join("index.tsv")) {
            Ok(index)
                if index.lines().skip(1).all(|line| line.split('\t').count() == 6)
                    && index.lines().count() > 40 =>
            {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        },
    );
    let _ = std::fs::remove_dir_all(folder);
    failed
}
