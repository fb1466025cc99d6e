//! Bodies and their operators have the same types, at every opset. `runtime/tests/bodies.rs` compares their
//! results.

use super::*;
use crate::dtype::DType;
use crate::infer;
use crate::op::LATEST_OPSETS;
use crate::op::OpKind;
use crate::text::{PrintOptions, print};
use crate::verify::verify_module;
use crate::views::optimizer::Momentum;
use proptest::prelude::*;

/// All forms except those of GradCheck, which has a form for every number of gradients.
fn finite() -> Vec<Form> {
    OpKind::ALL.iter().flat_map(|&kind| Form::all(kind)).collect()
}

/// A node of the operator and a call of its function, over the same operands.
fn both(form: Form, opset: u16, operands: &[String], attrs: &str) -> String {
    let name = form.kind().name();
    let names = |prefix: &str| {
        let name = |j| if form.has_result(j) { format!("%{prefix}{j}") } else { "_".to_owned() };
        (0..form.n_results()).map(name).collect::<Vec<_>>()
    };
    let mut out = format!("module ir=10\nopset ai.onnx={opset}, ai.ampc=1\n\ngraph @main {{\n");
    for (i, ty) in operands.iter().enumerate() {
        out += &format!("  input %x{i} : {ty}\n");
    }
    let operands = (0..operands.len()).map(|i| format!("%x{i}")).collect::<Vec<_>>().join(", ");
    let (node, call) = (names("node"), names("call"));
    let types = node.iter().map(|name| if name == "_" { "_" } else { "?" }).collect::<Vec<_>>().join(", ");
    out += &format!("  {} = ai.ampc::{name}({operands}) {{{attrs}}} : {types}\n", node.join(", "));
    let overload = form.overload();
    out += &format!(
        "  {} = ai.ampc::{name}:\"{overload}\"({operands}) {{{attrs}}} : {types}\n",
        call.join(", ")
    );
    let values = node.iter().chain(&call).filter(|value| *value != "_");
    values.for_each(|value| out += &format!("  output {value}\n"));
    let body = text(form, opset);
    out + "}\n\n" + &body[body.find("//").unwrap()..]
}

fn attrs(form: Form, w_lo: DType) -> String {
    let numbers =
        |names: &[&str]| names.iter().map(|name| format!("{name}=tensor(f64 = 0.5)")).collect::<Vec<_>>();
    let w_lo = format!("w_lo_dtype={}", w_lo.number());
    let mut all = match form {
        Form::Adam { .. } | Form::AdamW { .. } => numbers(&["beta1", "beta2", "epsilon", "weight_decay"]),
        Form::ClipCoef => numbers(&["epsilon", "max_norm"]),
        Form::GradCheck { .. } => Vec::new(),
        Form::PhiloxDropout => vec!["stream=7".into()],
        Form::Sgd { .. } => numbers(&["dampening", "weight_decay"]),
        Form::UpdateLossScale { .. } => numbers(&["backoff", "growth"]),
    };
    match form {
        Form::Adam { lo } => {
            all.push("bias_correction=1".into());
            all.extend(lo.then_some(w_lo));
        }
        Form::AdamW { mode, lo } => {
            all.extend(["bias_correction=1".into(), format!("mode=\"{}\"", mode.as_str())]);
            all.extend(lo.then_some(w_lo));
        }
        Form::Sgd { direction, on_overflow, lo } => {
            let momentum = if direction == Momentum::Plain { "0.0" } else { "0.9" };
            all.push(format!("momentum=tensor(f64 = {momentum})"));
            all.push(format!("nesterov={}", u8::from(direction == Momentum::Nesterov)));
            all.push(format!("on_overflow=\"{}\"", on_overflow.as_str()));
            all.extend(lo.then_some(w_lo));
        }
        Form::UpdateLossScale { arith, min, max, bad } => {
            all.push(format!("arith=\"{}\"", arith.as_str()));
            all.push(format!("backoff_every={}, interval=3, reset_good=1", if bad { 2 } else { 1 }));
            all.extend(min.then(|| "min=tensor(f64 = 1.0)".into()));
            all.extend(max.then(|| "max=tensor(f64 = 1024.0)".into()));
        }
        Form::ClipCoef | Form::GradCheck { .. } | Form::PhiloxDropout => {}
    }
    all.join(", ")
}

/// The types of the outputs, first of the node, then of the call; the module is verified.
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
        Form::Adam { .. } | Form::AdamW { .. } => {
            let (dtype, shape) = &grads[0];
            let state = format!("f32{shape}");
            let scalars = ["f32", "f32", "i64", "f32"].map(str::to_owned);
            let tensors = [state.clone(), format!("{dtype}{shape}"), state.clone(), state];
            tensors.into_iter().chain(scalars).collect()
        }
        Form::ClipCoef => vec!["f32".to_owned(); 2],
        Form::PhiloxDropout => {
            let (dtype, shape) = &grads[0];
            vec![format!("{dtype}{shape}"), "u64".into(), "u64".into(), "f32".into()]
        }
        Form::Sgd { direction, .. } => {
            let (dtype, shape) = &grads[0];
            let mut all = vec![format!("f32{shape}"), format!("{dtype}{shape}")];
            all.extend(["f32", "f32", "i64", "f32"].map(str::to_owned));
            all.extend((direction != Momentum::Plain).then(|| format!("f32{shape}")));
            all
        }
        Form::UpdateLossScale { bad, .. } => {
            let all = ["f32", "i32", "f32", "i32"].map(str::to_owned);
            all.into_iter().take(3 + usize::from(bad)).collect()
        }
    }
}

/// The types of the results of the node and of the call.
fn pair(form: Form, opset: u16, grads: &[(DType, String)], w_lo: DType) -> [Vec<String>; 2] {
    let mut node = types(&both(form, opset, &operands(form, grads), &attrs(form, w_lo)));
    let call = node.split_off(node.len() / 2);
    [node, call]
}

#[test]
fn bodies_are_valid_at_every_opset() {
    let newest = LATEST_OPSETS.iter().find(|(domain, _)| domain.is_empty()).unwrap().1;
    let forms = [1, 2, 11].map(|n| Form::GradCheck { n }).into_iter().chain(finite());
    for form in forms {
        for opset in form.min_opset()..=newest {
            let grads = vec![(DType::F16, shape(&["N", "3"])); form.n_operands() - 1];
            let [node, call] = pair(form, opset, &grads, DType::BF16);
            assert_eq!(node, call, "{form:?} at {opset}");
        }
    }
}

proptest! {
    /// The node and the function have results of the same types, whatever the types of the gradients.
    #[test]
    fn node_and_body_are_inferred_alike(
        which in 0usize..48,
        grads in prop::collection::vec(
            (
                prop::sample::select(vec![DType::F16, DType::BF16, DType::F32]),
                prop::collection::vec(prop::sample::select(vec!["0", "1", "7", "N", "M"]), 0..5),
            ),
            5,
        ),
        w_lo in prop::sample::select(vec![DType::F16, DType::BF16]),
    ) {
        let finite = finite();
        let form =
            finite.get(which).copied().unwrap_or_else(|| Form::GradCheck { n: which + 1 - finite.len() });
        let n = form.n_operands() - 1;
        let grads: Vec<_> = grads.iter().cycle().take(n).map(|(d, dims)| (*d, shape(dims))).collect();
        let [node, call] = pair(form, form.min_opset(), &grads, w_lo);
        prop_assert_eq!(node, call);
    }
}

#[test]
fn overloads_name_forms() {
    for form in finite().into_iter().chain([1, 2, 161].map(|n| Form::GradCheck { n })) {
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
        (OpKind::Adam, "hf"),
        (OpKind::ClipCoef, ""),
        (OpKind::SGD, "plain_lo_zero_grad"),
        (OpKind::SGD, "momentum_skip"),
        (OpKind::UpdateLossScale, "f64_product_max_min"),
        (OpKind::UpdateLossScale, "f64"),
        (OpKind::Add, "1"),
    ] {
        assert_eq!(Form::named(kind, overload), None, "{overload}");
    }
}

#[test]
fn every_operator_of_the_domain_has_a_body() {
    for &kind in OpKind::ALL {
        assert_eq!(has_body(kind), kind.domain() == DOMAIN, "{kind:?}");
        let has_forms = !Form::all(kind).is_empty() || kind == OpKind::GradCheck;
        assert_eq!(has_forms, has_body(kind), "{kind:?}");
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
    for form in finite().into_iter().chain([Form::GradCheck { n: 2 }]) {
        let oldest = form.min_opset();
        assert!(super::function(form, oldest - 1).is_none());
        assert!(super::function(form, oldest).is_some() && super::function(form, u16::MAX).is_some());
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
