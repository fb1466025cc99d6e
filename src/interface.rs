//! The interface of a model: names and types of inputs and outputs.

use ampc_ir::{Module, Type};

/// The names of the inputs, in order.
pub fn input_names(module: &Module) -> Vec<String> {
    let inputs = module.graph(module.main()).inputs();
    inputs.iter().map(|&v| ampc_ir::verify::name_of(module, v)).collect()
}

/// The names of the outputs, in order.
pub fn output_names(module: &Module) -> Vec<String> {
    let outputs = module.graph(module.main()).outputs();
    outputs.iter().map(|o| ampc_ir::verify::name_of(module, o.value)).collect()
}

/// The types of the inputs that a run must or may receive, in order.
pub fn input_types(module: &Module) -> Vec<Type> {
    let inputs = module.graph(module.main()).inputs();
    inputs.iter().map(|&v| module.value(v).ty.clone()).collect()
}

/// The declared types of the outputs.
pub fn output_types(module: &Module) -> Vec<Type> {
    let outputs = module.graph(module.main()).outputs();
    outputs
        .iter()
        .map(|o| {
            let inferred = &module.value(o.value).ty;
            if matches!(inferred, Type::Unknown) { o.declared.clone() } else { inferred.clone() }
        })
        .collect()
}

/// A type for display, such as `f32[N, 4]`.
pub fn describe(module: &Module, ty: &Type) -> String {
    match ty {
        Type::Tensor(tensor) => {
            let Some(dims) = tensor.shape.dims() else { return format!("{} of any dims", tensor.dtype) };
            let dims: Vec<String> = dims
                .iter()
                .map(|dim| match dim {
                    ampc_ir::Dim::Known(n) => n.to_string(),
                    ampc_ir::Dim::Sym(symbol) => module.text(*symbol).to_owned(),
                    ampc_ir::Dim::Unknown => "?".into(),
                })
                .collect();
            format!("{}[{}]", tensor.dtype, dims.join(", "))
        }
        Type::Sequence(element) => format!("a sequence of {}", describe(module, element)),
        Type::Optional(element) => format!("an optional {}", describe(module, element)),
        Type::Unknown => "a value of unknown type".into(),
        Type::Sparse(_) => "a sparse tensor".into(),
        Type::Map { .. } => "a map".into(),
        Type::Opaque { .. } => "an opaque value".into(),
    }
}
