//! Nodes that run alone, for the tests of kernels.

use crate::cpu::kernel::Io;
use crate::{Cpu, DataRef, HostTensor};
use ampc_ir::text::{NoData, parse};
use smallvec::SmallVec;

/// What a node computes whose operands `%0`, `%1` … are inputs, or its error; results are of these types.
pub(super) fn run(node: &str, results: &[&str], inputs: &[HostTensor]) -> Result<Vec<HostTensor>, String> {
    run_with(&Cpu { threads: 1, ..Cpu::default() }, node, results, inputs)
}

/// As [`run`], within these limits.
pub(super) fn run_with(
    cpu: &Cpu,
    node: &str,
    results: &[&str],
    inputs: &[HostTensor],
) -> Result<Vec<HostTensor>, String> {
    let mut text = String::from("module ir=10\nopset ai.onnx=24, ai.onnx.ml=5\n\ngraph @main {\n");
    for (i, input) in inputs.iter().enumerate() {
        text += &format!("  input %{i} : {}{:?}\n", input.dtype(), input.dims());
    }
    let names: Vec<String> = (0..results.len()).map(|j| format!("%r{j}")).collect();
    text += &format!("  {} = {node} : {}\n", names.join(", "), results.join(", "));
    names.iter().for_each(|name| text += &format!("  output {name}\n"));
    let module = parse(&(text + "}\n"), &NoData).unwrap_or_else(|errors| panic!("{errors}"));
    let mut executable = cpu.prepare(&module).unwrap();
    let inputs: Vec<_> = inputs.iter().map(|input| Some(DataRef::Tensor(input.view()))).collect();
    let outputs = executable.run(&inputs).map_err(|error| error.to_string())?;
    Ok(outputs.iter().map(|output| output.tensor().unwrap().view().to_host().unwrap()).collect())
}

fn extents(dims: &[usize]) -> Vec<u64> {
    dims.iter().map(|&d| d as u64).collect()
}

pub(super) fn ints(dims: &[usize], values: &[i64]) -> HostTensor {
    HostTensor::from_slice(&extents(dims), values).unwrap()
}

pub(super) fn floats(dims: &[usize], values: &[f32]) -> HostTensor {
    HostTensor::from_slice(&extents(dims), values).unwrap()
}

pub(super) fn strings(dims: &[usize], values: &[&str]) -> HostTensor {
    let values = values.iter().map(|text| text.as_bytes().into()).collect();
    HostTensor::from_strings(&extents(dims), values).unwrap()
}

/// For what does not look at operands itself.
pub(super) fn no_io() -> Io<'static> {
    Io {
        operands: SmallVec::new(),
        results: SmallVec::new(),
        scratch: &mut [],
        in_place: None,
        max_bytes: u64::MAX,
    }
}
