//! Chains of scalars: nodes with one element form one kernel, for floats, integers and bools, at any distance in the
//! program.

use crate::cases::Tolerance;
use crate::chains::same;
use crate::elements::{Named, matches_cpu, passing};
use ampc_runtime::HostTensor;
use ampc_runtime::cuda::Cuda;
use std::sync::Arc;

const HEAD: &str = "module ir=10\nopset ai.onnx=22, ai.ampc=1\n\n";

/// Runs the cases whose names contain `filter`; returns the number of failures.
pub(crate) fn run(cuda: &Arc<Cuda>, filter: &str) -> usize {
    type Check = fn(&Arc<Cuda>) -> Result<(), String>;
    let checks: [(&str, Check); 4] = [
        ("scalars: end of a step", end_of_step),
        ("scalars: types", types),
        ("scalars: path between", path_between),
        ("scalars: far apart", far_apart),
    ];
    let cases: Vec<Named> = checks
        .into_iter()
        .map(|(name, check)| -> Named {
            let cuda = cuda.clone();
            (name.to_owned(), Box::new(move || check(&cuda)))
        })
        .collect();
    passing(&cases, filter)
}

fn f32s(dims: &[u64], numbers: &[f32]) -> HostTensor {
    HostTensor::from_slice(dims, numbers).unwrap()
}

/// Checks that `expected` is one of the groups of the plan.
fn with_group(cuda: &Arc<Cuda>, text: &str, inputs: &[HostTensor], expected: &str) -> Result<(), String> {
    let plan = same(cuda, text, inputs)?;
    match plan.contains(expected) {
        true => matches_cpu(cuda, text, inputs, Tolerance::Exact),
        false => Err(format!("no group {expected}\n{plan}")),
    }
}

/// The step counter and the loss scale after a step with finite gradients, and after a step without.
fn end_of_step(cuda: &Arc<Cuda>) -> Result<(), String> {
    for bad in ["", ", %bad_steps"] {
        for (gradient, scale) in [(0.5f32, 8.0f32), (f32::INFINITY, 8.0), (0.0, f32::MAX), (f32::NAN, 1.0)] {
            let results = if bad.is_empty() { "%s, %g" } else { "%s, %g, %b" };
            let every = if bad.is_empty() { 1 } else { 2 };
            let types = if bad.is_empty() { "f32, i32" } else { "f32, i32, i32" };
            let text = format!(
                "{HEAD}graph @main {{\n  input %gradient : f32[3]\n  input %scale : f32\n  input %good_steps : i32\n  input %bad_steps : i32\n  \
                 input %step : i64\n  const %zero : f32 = 0.0\n  const %one : f32 = 1.0\n  \
                 %found = ai.ampc::GradCheck(%one, %gradient) : f32\n  %e = Equal(%found, %zero) : bool\n  %c = Cast(%e) {{to=7}} : i64\n  \
                 %n = Add(%step, %c) : i64\n  {results} = ai.ampc::UpdateLossScale(%scale, %good_steps, %found{bad}) \
                 {{growth=tensor(f64 = 2.0), backoff=tensor(f64 = 0.5), interval=3, backoff_every={every}, reset_good=1, \
                 arith=\"f64_product\", min=tensor(f64 = 1.0)}} : {types}\n  output %n\n{outputs}}}\n",
                outputs = results.split(", ").map(|name| format!("  output {name}\n")).collect::<String>()
            );
            let inputs = [
                f32s(&[3], &[1.0, gradient, -2.0]),
                f32s(&[], &[scale]),
                HostTensor::from_slice(&[], &[2i32]).unwrap(),
                HostTensor::from_slice(&[], &[1i32]).unwrap(),
                HostTensor::from_slice(&[], &[i64::MAX]).unwrap(),
            ];
            with_group(cuda, &text, &inputs, "Equal+Cast+Add+UpdateLossScale")?;
        }
    }
    Ok(())
}

/// Casts between types, integers that wrap, and results of ranks 0 to 2.
fn types(cuda: &Arc<Cuda>) -> Result<(), String> {
    let text = format!(
        "{HEAD}graph @main {{\n  input %x : f32[1, 1]\n  input %i : i64[1]\n  input %u : u8\n  \
         %h = Cast(%x) {{to=10}} : f16[1, 1]\n  %d = Cast(%h) {{to=11}} : f64[1, 1]\n  %t = Cast(%x) {{to=6}} : i32[1, 1]\n  \
         %m = Mul(%t, %t) : i32[1, 1]\n  %v = Cast(%m) {{to=2}} : u8[1, 1]\n  %w = Add(%v, %u) : u8[1, 1]\n  \
         %n = Cast(%w) {{to=7}} : i64[1, 1]\n  %s = Sub(%n, %i) : i64[1, 1]\n  %l = Less(%s, %i) : bool[1, 1]\n  \
         %y = Where(%l, %s, %i) : i64[1, 1]\n  %b = Cast(%y) {{to=16}} : bf16[1, 1]\n  %z = Where(%l, %b, %b) : bf16[1, 1]\n  \
         output %h\n  output %d\n  output %w\n  output %y\n  output %z\n}}\n"
    );
    for (x, i, u) in [(-1.5f32, i64::MIN, 7u8), (70000.0, 3, 255), (f32::NAN, -1, 0), (-0.0, i64::MAX, 1)] {
        let inputs = [
            f32s(&[1, 1], &[x]),
            HostTensor::from_slice(&[1], &[i]).unwrap(),
            HostTensor::from_slice(&[], &[u]).unwrap(),
        ];
        with_group(cuda, &text, &inputs, "Cast+Mul+Cast+Add+Cast+Sub+Less+Where+Cast+Where")?;
    }
    Ok(())
}

/// Scalars with other nodes between them do not form a group.
fn path_between(cuda: &Arc<Cuda>) -> Result<(), String> {
    let text = format!(
        "{HEAD}graph @main {{\n  input %s : f32\n  input %x : f32[3]\n  const %axes : i64[1] = [0]\n  \
         %r = Reciprocal(%s) : f32\n  %p = Mul(%x, %r) : f32[3]\n  %t = ReduceMax(%p, %axes) {{keepdims=0}} : f32\n  \
         %q = Mul(%t, %r) : f32\n  %n = Neg(%q) : f32\n  output %n\n}}\n"
    );
    with_group(cuda, &text, &[f32s(&[], &[4.0]), f32s(&[3], &[1.0, -2.0, 3.0])], "Mul+Neg")
}

/// Scalars at both ends of a long chain of other nodes.
fn far_apart(cuda: &Arc<Cuda>) -> Result<(), String> {
    let middle: String =
        (0..40).map(|i| format!("  %p{} = MatMul(%p{i}, %p0) : f32[2, 2]\n", i + 1)).collect();
    let text = format!(
        "{HEAD}graph @main {{\n  input %s : i64\n  input %p0 : f32[2, 2]\n  %a = Add(%s, %s) : i64\n{middle}  \
         %b = Mul(%a, %s) : i64\n  output %b\n  output %p40\n}}\n"
    );
    let inputs = [HostTensor::from_slice(&[], &[-3i64]).unwrap(), f32s(&[2, 2], &[0.5, 0.25, -0.5, 0.5])];
    let plan = same(cuda, &text, &inputs)?;
    if plan.contains("Add+Mul") { Ok(()) } else { Err(format!("other groups\n{plan}")) }
}
