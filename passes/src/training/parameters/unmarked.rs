//! Parameters of PyTorch's TorchScript exporter, whose files do not distinguish them from buffers.

use ampc_ir::Module;
use rustc_hash::FxHashSet;

/// The producer that PyTorch's exporters name.
const PRODUCER: &str = "pytorch";

/// A warning that names the trained constants that may be buffers, in a file of PyTorch without a signature.
pub(super) fn warning(module: &Module, trained: &[String]) -> Option<String> {
    if module.header.producer_name != PRODUCER {
        return None;
    }
    let statistics: FxHashSet<&str> = trained.iter().filter_map(|name| owner_of_statistic(name)).collect();
    let is_suspect = |name: &&String| {
        !is_named_as_parameter(name) || owner(name).is_some_and(|owner| statistics.contains(owner))
    };
    let suspects: Vec<String> = trained.iter().filter(is_suspect).map(|name| format!("`{name}`")).collect();
    if suspects.is_empty() {
        return None;
    }
    Some(format!(
        "a file of this exporter does not distinguish parameters from buffers, and the following names are not those of \
         parameters in PyTorch's layers: {}; they are trained, unless `--freeze NAME` keeps them unchanged",
        suspects.join(", ")
    ))
}

/// The path of the module that has a tensor.
fn owner(name: &str) -> Option<&str> {
    name.rsplit_once('.').map(|(owner, _)| owner)
}

/// The path of the module, if a tensor is a running statistic by its name: no tensor of such a module is read by
/// BatchNormalization if its statistics are trained.
fn owner_of_statistic(name: &str) -> Option<&str> {
    let (owner, last) = name.rsplit_once('.')?;
    matches!(last, "running_mean" | "running_var").then_some(owner)
}

/// True if layers of PyTorch give parameters this name: `weight`, `in_proj_bias`, `weight_ih_l0`, `weight_g`. A weight
/// that the exporter has computed goes by the operator that reads it (`onnx::MatMul_12`).
fn is_named_as_parameter(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    let starts = ["weight_ih", "weight_hh", "weight_hr", "bias_ih", "bias_hh"];
    let names =
        ["weight_g", "weight_v", "weight_orig", "bias_k", "bias_v", "original", "original0", "original1"];
    name.starts_with("onnx::")
        || last.ends_with("weight")
        || last.ends_with("bias")
        || names.contains(&last)
        || starts.iter().any(|start| last.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ampc_ir::text::{NoData, parse};

    #[test]
    fn names_that_are_not_those_of_layers() {
        let mut module =
            parse("module ir=10\nopset ai.onnx=20\n\ngraph @g {\n}\n", &NoData).expect("a module");
        let names = ["a.weight", "rnn.weight_ih_l0_reverse", "in_proj_bias", "g.weight_g", "onnx::MatMul_7"];
        let parameters: Vec<String> = names.map(str::to_owned).into();
        let buffers: Vec<String> =
            ["cos", "fc.weight_mask", "bn.running_var", "bn.weight"].map(str::to_owned).into();
        let all = [parameters.clone(), buffers.clone()].concat();
        assert_eq!(warning(&module, &all), None);
        PRODUCER.clone_into(&mut module.header.producer_name);
        assert_eq!(warning(&module, &parameters), None);
        let said = warning(&module, &all).expect("a warning");
        assert!(said.contains(": `cos`, `fc.weight_mask`, `bn.running_var`, `bn.weight`; they"), "{said}");
    }
}
