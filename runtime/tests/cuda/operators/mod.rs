//! Cases of operators by family.

mod attention;
mod indexing;
mod many;
mod movement;
mod norms;
mod pools;
mod products;
mod recurrent;
mod reductions;
mod row_sizes;
mod sampling;
mod sizes;

use crate::cases::{Case, Tolerance, ints, module, random};
use ampc_ir::DType;
use ampc_runtime::cuda::Cuda;
use ampc_runtime::{DataRef, HostTensor, Runtime};
use std::sync::Arc;

pub(crate) use row_sizes::shared_kernels;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    movement::add(&mut cases);
    indexing::add(&mut cases);
    reductions::add(&mut cases);
    norms::add(&mut cases);
    pools::add(&mut cases);
    products::add(&mut cases);
    recurrent::add(&mut cases);
    sampling::add(&mut cases);
    attention::add(&mut cases);
    sizes::add(&mut cases);
    row_sizes::add(&mut cases);
    many::add(&mut cases);
    cases
}

/// Nodes whose indices are out of range, and nodes without kernels; returns the number that fail to fail as expected.
pub(crate) fn failures(cuda: &Arc<Cuda>, filter: &str) -> usize {
    if !"failure".contains(filter) {
        return 0;
    }
    let x = || random(DType::F32, &[4, 3], 1);
    let nodes = [
        ("GatherElements(%a, %b)", "f32[1, 2]", vec![x(), ints(&[1, 2], &[3, -5])], "found -5"),
        ("GatherND(%a, %b)", "f32[2]", vec![x(), ints(&[2, 2], &[0, 0, 3, 3])], "found 3"),
        (
            "ScatterElements(%a, %b, %c)",
            "f32[4, 3]",
            vec![x(), ints(&[1, 1], &[4]), x_of(&[1, 1])],
            "found 4",
        ),
        ("ScatterND(%a, %b, %c)", "f32[4, 3]", vec![x(), ints(&[1, 1], &[-9]), x_of(&[1, 3])], "found -9"),
        (
            "ReverseSequence(%a, %b)",
            "f32[4, 3]",
            vec![x(), ints(&[3], &[0, 5, 1])],
            "expected lengths in [0, 4], found 5",
        ),
        // There is no kernel, although the dims of the result are known only from its elements.
        ("NonZero(%a)", "i64[2, ?]", vec![x()], "the first is NonZero"),
    ];
    let mut failed = 0;
    for (call, ty, inputs, expected) in nodes {
        let module = module(&format!("  %y = {call} : {ty}\n  output %y : {ty}\n"), &inputs);
        let mut session = Runtime::new(cuda.clone()).prepare(&module).unwrap();
        let refs: Vec<_> = inputs.iter().map(|x| Some(DataRef::Tensor(x.view()))).collect();
        let text = session.run(&refs).map_or_else(|error| error.to_string(), |_| "no error".into());
        let is_right = text.contains(expected);
        println!("{}  failure: {text}", if is_right { "ok  " } else { "FAIL" });
        failed += usize::from(!is_right);
    }
    failed
}

/// A run that is replayed fails where its index is out of range, on whatever queue the kernel was recorded, and the runs
/// before and after it do not; returns the number of sessions of which this does not hold.
pub(crate) fn failures_of_replays(backends: &[Arc<Cuda>], filter: &str) -> usize {
    if !"failure of a replayed run".contains(filter) {
        return 0;
    }
    const BRANCHES: usize = 4;
    let mut body: String = (0..BRANCHES)
        .map(|k| {
            let input = ["%b", "%c", "%d", "%e"][k];
            format!("  %y{k} = GatherElements(%a, {input}) : f32[64, 3]\n  %z{k} = Exp(%y{k}) : f32[64, 3]\n")
        })
        .collect();
    (0..BRANCHES).for_each(|k| body += &format!("  output %z{k} : f32[64, 3]\n"));
    let indices = |last: i64| {
        let mut indices = vec![1; 64 * 3];
        indices[100] = last;
        ints(&[64, 3], &indices)
    };
    let mut failed = 0;
    for cuda in backends {
        for at in 0..BRANCHES {
            let mut inputs = vec![random(DType::F32, &[64, 3], 1)];
            inputs.extend((0..BRANCHES).map(|_| indices(2)));
            let module = module(&body, &inputs);
            let mut session = Runtime::new(cuda.clone()).prepare(&module).unwrap();
            let runs = (0..8).map(|run| {
                inputs[1 + at] = indices(if run == 5 { 99 } else { 2 });
                let refs: Vec<_> = inputs.iter().map(|x| Some(DataRef::Tensor(x.view()))).collect();
                session.run(&refs).map_or_else(|error| error.to_string(), |_| String::new())
            });
            let runs: Vec<String> = runs.collect();
            let is_right = runs
                .iter()
                .enumerate()
                .all(|(run, text)| text.contains("found 99") == (run == 5) && (run == 5 || text.is_empty()));
            println!(
                "{}  failure of a replayed run, branch {at}: {runs:?}",
                if is_right { "ok  " } else { "FAIL" }
            );
            failed += usize::from(!is_right);
        }
    }
    failed
}

fn x_of(dims: &[u64]) -> HostTensor {
    random(DType::F32, dims, 2)
}

/// A case of one node. `call` is the node without results, after optional lines with an opset or constants. `results`
/// are the types of the results.
fn node(name: &str, tolerance: Tolerance, call: &str, results: &[&str], inputs: Vec<HostTensor>) -> Case {
    let (before, call) = call.rsplit_once('\n').unwrap_or(("", call));
    let (opset, before) = match before.strip_prefix("opset=") {
        Some(rest) => {
            let (opset, rest) = rest.split_once('\n').unwrap_or((rest, ""));
            (format!("opset={opset}\n"), rest)
        }
        None => (String::new(), before),
    };
    let values: Vec<String> = (0..results.len()).map(|j| format!("%y{j}")).collect();
    let mut body = opset;
    for line in before.lines() {
        body += &format!("  {line}\n");
    }
    body += &format!("  {} = {call} : {}\n", values.join(", "), results.join(", "));
    for (value, ty) in values.iter().zip(results) {
        body += &format!("  output {value} : {ty}\n");
    }
    let types: Vec<String> = inputs.iter().map(|x| format!("{}{:?}", x.dtype(), x.dims())).collect();
    Case { name: format!("{name} {}", types.join(" ")), body, inputs, tolerance }
}

/// The numbers 1 to `n` in an integer type.
fn count(dtype: DType, dims: &[u64]) -> HostTensor {
    let n = dims.iter().product::<u64>();
    let numbers: Vec<i64> = (0..n).map(|i| i64::try_from(i * 7 % 23).unwrap() - 9).collect();
    match dtype {
        DType::I64 => HostTensor::from_slice(dims, &numbers),
        DType::I32 => HostTensor::from_slice(
            dims,
            &numbers.iter().map(|&x| i32::try_from(x).unwrap()).collect::<Vec<_>>(),
        ),
        DType::I8 => HostTensor::from_slice(
            dims,
            &numbers.iter().map(|&x| i8::try_from(x).unwrap()).collect::<Vec<_>>(),
        ),
        DType::U8 => HostTensor::from_slice(
            dims,
            &numbers.iter().map(|&x| u8::try_from(x + 9).unwrap()).collect::<Vec<_>>(),
        ),
        DType::F64 =>
        {
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            HostTensor::from_slice(dims, &numbers.iter().map(|&x| x as f64 * 0.37 + 0.1).collect::<Vec<_>>())
        }
        _ => HostTensor::from_bytes(
            DType::Bool,
            dims,
            &numbers.iter().map(|&x| u8::from(x > 0)).collect::<Vec<_>>(),
        ),
    }
    .unwrap()
}
