//! Bodies and their operators have the same types, at every opset. `runtime/tests/bodies.rs` compares what they
//! compute.

use super::*;
use crate::op::LATEST_OPSETS;
use crate::text::{PrintOptions, print};
use crate::verify::verify_module;
use crate::{DType, infer};
use proptest::prelude::*;

const ADAM_W: [Form; 4] = [
    Form::AdamW { mode: AdamWMode::Torch, lo: false },
    Form::AdamW { mode: AdamWMode::Torch, lo: true },
    Form::AdamW { mode: AdamWMode::Hf, lo: false },
    Form::AdamW { mode: AdamWMode::Hf, lo: true },
];

/// A node of the operator and a call of its function, over the same operands.
fn both(form: Form, opset: u16, operands: &[String], attrs: &str) -> String {
    let name = form.kind().name();
    let results = |prefix: &str| (0..form.n_results()).map(|j| format!("%{prefix}{j}")).collect::<Vec<_>>();
    let mut out = format!("module ir=10\nopset ai.onnx={opset}, ai.ampc=1\n\ngraph @main {{\n");
    for (i, ty) in operands.iter().enumerate() {
        out += &format!("  input %x{i} : {ty}\n");
    }
    let names = (0..operands.len()).map(|i| format!("%x{i}")).collect::<Vec<_>>().join(", ");
    let types = vec!["?"; form.n_results()].join(", ");
    let (node, call) = (results("node"), results("call"));
    out += &format!("  {} = ai.ampc::{name}({names}) {{{attrs}}} : {types}\n", node.join(", "));
    let overload = form.overload();
    out +=
        &format!("  {} = ai.ampc::{name}:\"{overload}\"({names}) {{{attrs}}} : {types}\n", call.join(", "));
    node.iter().chain(&call).for_each(|value| out += &format!("  output {value}\n"));
    let body = text(form, opset);
    out + "}\n\n" + &body[body.find("//").unwrap()..]
}

fn attrs(form: Form, w_lo: DType) -> String {
    let Form::AdamW { mode, lo } = form else { return String::new() };
    let w_lo = if lo { format!(", w_lo_dtype={}", w_lo.number()) } else { String::new() };
    format!(
        "beta1=tensor(f64 = 0.9), beta2=tensor(f64 = 0.999), bias_correction=1, epsilon=tensor(f64 = 1e-08), \
         mode=\"{}\"{w_lo}, weight_decay=tensor(f64 = 0.01)",
        mode.as_str()
    )
}

/// The types of the outputs, those of the node before those of the call; the module is verified.
fn types(text: &str) -> Vec<String> {
    let mut module = parse(text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    infer::infer_module(&mut module).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"));
    verify_module(&module).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"));
    let outputs = module.graph(module.main()).outputs();
    outputs.iter().map(|o| crate::text::type_text(&module, &module.value(o.value).ty)).collect()
}

fn shape(dims: &[&str]) -> String {
    format!("[{}]", dims.join(", "))
}

fn operands(form: Form, grads: &[(DType, String)]) -> Vec<String> {
    match form {
        Form::GradCheck { .. } => {
            let grads = grads.iter().map(|(dtype, shape)| format!("{dtype}{shape}"));
            std::iter::once("f32".to_owned()).chain(grads).collect()
        }
        Form::AdamW { .. } => {
            let (dtype, shape) = &grads[0];
            let state = format!("f32{shape}");
            let scalars = ["f32", "f32", "i64", "f32"].map(str::to_owned);
            let tensors = [state.clone(), format!("{dtype}{shape}"), state.clone(), state];
            tensors.into_iter().chain(scalars).collect()
        }
    }
}

#[test]
fn bodies_are_valid_at_every_opset() {
    let newest = LATEST_OPSETS.iter().find(|(domain, _)| domain.is_empty()).unwrap().1;
    let forms = [1, 2, 11].map(|n| Form::GradCheck { n }).into_iter().chain(ADAM_W);
    for form in forms {
        for opset in MIN_OPSET..=newest {
            let grads = vec![(DType::F16, shape(&["N", "3"])); form.n_operands()];
            let types = types(&both(
                form,
                opset,
                &operands(form, &grads[..form.n_operands() - 1]),
                &attrs(form, DType::BF16),
            ));
            let (node, call) = types.split_at(form.n_results());
            assert_eq!(node, call, "{form:?} at {opset}");
        }
    }
}

proptest! {
    /// The node and the function have results of the same types, whatever the types of the gradients.
    #[test]
    fn node_and_body_are_inferred_alike(
        which in 0usize..9,
        grads in prop::collection::vec(
            (
                prop::sample::select(vec![DType::F16, DType::BF16, DType::F32]),
                prop::collection::vec(prop::sample::select(vec!["0", "1", "7", "N", "M"]), 0..5),
            ),
            5,
        ),
        w_lo in prop::sample::select(vec![DType::F16, DType::BF16]),
    ) {
        let form = ADAM_W.get(which).copied().unwrap_or_else(|| Form::GradCheck { n: which - 3 });
        let n = form.n_operands() - 1;
        let grads: Vec<_> = grads.iter().cycle().take(n).map(|(d, dims)| (*d, shape(dims))).collect();
        let types = types(&both(form, MIN_OPSET, &operands(form, &grads), &attrs(form, w_lo)));
        let (node, call) = types.split_at(form.n_results());
        prop_assert_eq!(node, call);
    }
}

#[test]
fn overloads_name_forms() {
    for form in ADAM_W.into_iter().chain([1, 2, 161].map(|n| Form::GradCheck { n })) {
        assert_eq!(Form::named(form.kind(), &form.overload()), Some(form));
        let (module, function) = super::function(form, 21).unwrap();
        let graph = module.graph(module.function(function).graph);
        assert_eq!((graph.inputs().len(), graph.outputs().len()), (form.n_operands(), form.n_results()));
    }
    for (kind, overload) in [
        (OpKind::GradCheck, "0"),
        (OpKind::GradCheck, "02"),
        (OpKind::GradCheck, "+2"),
        (OpKind::GradCheck, ""),
        (OpKind::GradCheck, "2147483647"),
        (OpKind::GradCheck, "18446744073709551615"),
        (OpKind::AdamW, ""),
        (OpKind::AdamW, "torch_lo_lo"),
        (OpKind::AdamW, "Torch"),
        (OpKind::Add, "1"),
    ] {
        assert_eq!(Form::named(kind, overload), None, "{overload}");
    }
}

#[test]
fn every_operator_of_the_domain_has_a_body() {
    for &kind in OpKind::ALL {
        assert_eq!(has_body(kind), kind.domain() == DOMAIN, "{kind:?}");
    }
}

/// docs/ampc-ops.md has a section for each operator, and in it the formals and attributes.
#[test]
fn the_documentation_has_every_operator() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/ampc-ops.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut documented = Vec::new();
    for section in text.split("\n## ") {
        let name = section.lines().next().unwrap();
        let Some(schema) = crate::op::versions(DOMAIN, name).first() else { continue };
        documented.push(schema.kind);
        let formals = schema.inputs.iter().chain(schema.outputs).map(|f| f.name);
        for name in formals.chain(schema.attrs.iter().map(|a| a.name)) {
            assert!(section.contains(&format!("`{name}`")), "{}: {name}", schema.name);
        }
    }
    documented.sort_unstable();
    assert!(documented.iter().eq(OpKind::ALL.iter().filter(|&&k| has_body(k))));
}

#[test]
fn bodies_are_of_every_opset_but_the_oldest() {
    for form in ADAM_W.into_iter().chain([Form::GradCheck { n: 2 }]) {
        assert!(super::function(form, MIN_OPSET - 1).is_none());
        assert!(super::function(form, MIN_OPSET).is_some() && super::function(form, u16::MAX).is_some());
    }
}

#[test]
fn a_template_is_expanded() {
    let (module, _) = super::function(Form::GradCheck { n: 2 }, 18).unwrap();
    let text = print(&module, &PrintOptions::default()).text;
    for line in
        ["  input %g1 : ?\n", "  %sumsq = Sum(%part0, %part1) : ?\n", "function ai.ampc::GradCheck:\"2\" "]
    {
        assert!(text.contains(line), "{line}\n{text}");
    }
}
