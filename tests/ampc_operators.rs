//! Operators of ai.ampc in files: written as calls of functions, recognised by the bodies of these.

#![allow(clippy::unwrap_used, reason = "a test fails and tells by panicking and printing")]

use ampc::ir::text::{NoData, ParseOptions, PrintOptions, parse, print};
use ampc::ir::{DType, Module, Op};
use ampc::onnx::proto::{AttributeProto, ModelProto, NodeProto, StringStringEntryProto};
use ampc::onnx::{ReadOptions, Source, Warning, read_bytes, to_bytes};
use ampc::options::Opset;
use ampc::{Model, RewriteOptions};
use prost::Message;
use std::io::Write;
use std::process::Command;

const ADAM_W: &str = "beta1=tensor(f64 = 0.9), beta2=tensor(f64 = 0.999), bias_correction=1, \
     epsilon=tensor(f64 = 1e-8), mode=\"torch\", w_lo_dtype=10, weight_decay=tensor(f64 = 0.01)";

/// A check of two gradients, one of three, and a step with a low copy.
fn text_at(opset: u16) -> String {
    format!(
        "\
module ir=10
opset ai.onnx={opset}, ai.ampc=1

graph @main {{
  input %w : f32[N, 3]
  input %g : f16[N, 3]
  input %h : f32[2]
  input %m : f32[N, 3]
  input %v : f32[N, 3]
  input %lr : f32
  input %mult : f32
  input %step : i64
  %found, %sumsq = ai.ampc::GradCheck(%mult, %g, %h) : f32, f32
  %again = ai.ampc::GradCheck(%mult, %g, %h, %g) : f32
  %next, %m_next, %v_next, %lo = ai.ampc::AdamW(%w, %g, %m, %v, %lr, %mult, %step, %found) {{{ADAM_W}}} : \
f32[N, 3], f32[N, 3], f32[N, 3], f16[N, 3]
  output %found : f32
  output %sumsq : f32
  output %again : f32
  output %next : f32[N, 3]
  output %m_next : f32[N, 3]
  output %v_next : f32[N, 3]
  output %lo : f16[N, 3]
}}
"
    )
}

/// The rest of a step: a clip, a step of each other optimizer, and the loss scale.
fn tail_at(opset: u16) -> String {
    format!(
        "\
module ir=10
opset ai.onnx={opset}, ai.ampc=1

graph @main {{
  input %w : f32[N, 3]
  input %g : f16[N, 3]
  input %m : f32[N, 3]
  input %v : f32[N, 3]
  input %lr : f32
  input %inv_scale : f32
  input %step : i64
  input %found : f32
  input %sumsq : f32
  input %scale : f32
  input %good : i32
  input %bad : i32
  %mult, %norm = ai.ampc::ClipCoef(%sumsq, %inv_scale) {{epsilon=tensor(f64 = 1e-6), max_norm=tensor(f64 = 1.0)}} : f32, f32
  %a, %a_m, %a_v = ai.ampc::Adam(%w, %g, %m, %v, %lr, %mult, %step, %found) {{beta1=tensor(f64 = 0.9), beta2=tensor(f64 = 0.999), bias_correction=1, epsilon=tensor(f64 = 1e-8), weight_decay=tensor(f64 = 0.01)}} : f32[N, 3], f32[N, 3], f32[N, 3]
  %s, _, %s_lo = ai.ampc::SGD(%w, %g, %lr, %mult, %step, %found) {{dampening=tensor(f64 = 0.0), momentum=tensor(f64 = 0.0), nesterov=0, on_overflow=\"zero_grad\", w_lo_dtype=10, weight_decay=tensor(f64 = 0.01)}} : f32[N, 3], _, f16[N, 3]
  %n, %n_v = ai.ampc::SGD(%w, %g, %lr, %mult, %step, %found, %v) {{dampening=tensor(f64 = 0.0), momentum=tensor(f64 = 0.9), nesterov=1, on_overflow=\"skip\", weight_decay=tensor(f64 = 0.01)}} : f32[N, 3], f32[N, 3]
  %scale_next, %good_next, %bad_next = ai.ampc::UpdateLossScale(%scale, %good, %found, %bad) {{arith=\"f64_product\", backoff=tensor(f64 = 0.5), backoff_every=2, growth=tensor(f64 = 2.0), interval=1000, min=tensor(f64 = 1.0), reset_good=1}} : f32, i32, i32
  %plain, %count = ai.ampc::UpdateLossScale(%scale, %good, %found) {{arith=\"f64_product\", backoff=tensor(f64 = 0.5), backoff_every=1, growth=tensor(f64 = 2.0), interval=2000, reset_good=1}} : f32, i32
  output %norm : f32
  output %a : f32[N, 3]
  output %a_m : f32[N, 3]
  output %a_v : f32[N, 3]
  output %s : f32[N, 3]
  output %s_lo : f16[N, 3]
  output %n : f32[N, 3]
  output %n_v : f32[N, 3]
  output %scale_next : f32
  output %good_next : i32
  output %bad_next : i32
  output %plain : f32
  output %count : i32
}}
"
    )
}

const TAIL: [&str; 6] = [
    "ClipCoef:norm",
    "Adam:torch",
    "SGD:plain_zero_grad_lo",
    "SGD:nesterov",
    "UpdateLossScale:f64_product_min_bad",
    "UpdateLossScale:f64_product",
];

fn module(text: &str) -> Module {
    parse(text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

fn printed(module: &Module) -> String {
    print(module, &PrintOptions::default()).text
}

fn encoded(module: &Module) -> Vec<u8> {
    to_bytes(module, None).unwrap_or_else(|error| panic!("{error}")).0
}

/// The file of [`text_at`] opset 17.
fn file() -> ModelProto {
    ModelProto::decode(&*encoded(&module(&text_at(17)))).unwrap()
}

fn read(file: &ModelProto) -> (Module, Source, Vec<Warning>) {
    read_bytes("test", file.encode_to_vec(), &ReadOptions::default())
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The model with types, as text; those of the file are not read.
fn typed(mut module: Module) -> String {
    let found = ampc::check(&mut module);
    assert!(found.is_empty(), "{found:?}");
    printed(&module)
}

fn overloads(file: &ModelProto) -> Vec<String> {
    file.functions.iter().map(|f| format!("{}:{}", f.name(), f.overload())).collect()
}

/// The operators of the main graph, calls with an exclamation mark.
fn operators(module: &Module) -> Vec<String> {
    let shown = |node| {
        let (_, name, overload) = module.op_name(node);
        match module.node(node).op {
            Op::Call(_) => format!("{name}:{overload}!"),
            Op::Schema(_) | Op::Custom { .. } => name.to_owned(),
        }
    };
    module.nodes(module.main()).map(shown).collect()
}

fn attr<'a>(node: &'a mut NodeProto, name: &str) -> &'a mut AttributeProto {
    node.attribute.iter_mut().find(|attr| attr.name() == name).unwrap()
}

/// Checks that a file is written as it was read.
fn assert_identity(file: &ModelProto) {
    let (module, source, _) = read(file);
    let (bytes, report) = to_bytes(&module, Some(&source)).unwrap();
    assert!(report.identical && bytes == file.encode_to_vec());
}

#[test]
fn a_text_survives_a_file() {
    let texts = [17, 18, 21, 28].into_iter().flat_map(|opset| [text_at(opset), tail_at(opset)]);
    for text in texts {
        let bytes = encoded(&module(&text));
        assert_eq!(bytes, encoded(&module(&text)));
        let (read, source, warnings) = read_bytes("test", bytes.clone(), &ReadOptions::default()).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        let (again, report) = to_bytes(&read, Some(&source)).unwrap();
        assert!(report.identical && again == bytes);
        assert_eq!(encoded(&read), bytes, "without the source");
        assert_eq!(typed(read), text);
    }
    assert_eq!(overloads(&file()), ["GradCheck:2", "GradCheck:3", "AdamW:torch_lo"]);
    assert_eq!(overloads(&tail()), TAIL);
}

/// The file of [`tail_at`] opset 17.
fn tail() -> ModelProto {
    ModelProto::decode(&*encoded(&module(&tail_at(17)))).unwrap()
}

#[test]
fn json_has_them_as_it_has_any_operator() {
    for text in [text_at(21), tail_at(21)] {
        let json = ampc::json::print(&module(&text)).text;
        assert!(!json.contains("functions"));
        let again = ampc::json::parse(&json, &NoData, &ParseOptions::default()).unwrap();
        assert_eq!(printed(&again), text);
    }
}

/// Names of values and nodes, what is documented, and the order of attributes do not count.
#[test]
fn names_in_a_body_do_not_count() {
    let mut file = file();
    for function in &mut file.functions {
        let renamed = |names: &mut Vec<String>| {
            names.iter_mut().filter(|name| !name.is_empty()).for_each(|name| name.insert_str(0, "their "));
        };
        renamed(&mut function.input);
        renamed(&mut function.output);
        function.attribute.reverse();
        function.doc_string = Some("documented".into());
        for node in &mut function.node {
            renamed(&mut node.input);
            renamed(&mut node.output);
            node.name = Some("a node".into());
            node.attribute.reverse();
        }
    }
    let (module, ..) = read(&file);
    assert_eq!(operators(&module), ["GradCheck", "GradCheck", "AdamW"]);
    assert_eq!(typed(module), text_at(17));
    assert_identity(&file);
}

/// A change of one item of a file, and the operators that the changed file reads as.
type Change = (&'static str, fn(&mut ModelProto), [&'static str; 3]);

/// A body that is not the operator's, or a call that is not one of its nodes: then it is an ordinary function.
#[test]
fn another_body_is_an_ordinary_function() {
    const CHECKS: [&str; 3] = ["GradCheck", "GradCheck", "AdamW:torch_lo!"];
    let changes: &[Change] = &[
        (
            "a constant",
            |m| {
                let value = attr(&mut m.functions[0].node[0], "value").t.as_mut().unwrap();
                value.raw_data = Some(1e38f32.to_le_bytes().to_vec());
            },
            ["GradCheck:2!", "GradCheck", "AdamW"],
        ),
        (
            "operands in another order",
            |m| {
                let node = m.functions[2].node.iter_mut().find(|n| n.op_type() == "Sub").unwrap();
                node.input.reverse();
            },
            CHECKS,
        ),
        (
            "another operator",
            |m| {
                let node = m.functions[2].node.iter_mut().rfind(|n| n.op_type() == "Sub").unwrap();
                node.op_type = Some("Add".into());
            },
            CHECKS,
        ),
        (
            "outputs in another order",
            |m| m.functions[0].output.reverse(),
            ["GradCheck:2!", "GradCheck", "AdamW"],
        ),
        (
            "another attribute of the call",
            |m| {
                let node = m.functions[2].node.iter_mut().find(|n| n.output[0] == "beta1").unwrap();
                attr(node, "value").ref_attr_name = Some("beta2".into());
            },
            CHECKS,
        ),
        (
            "one node less",
            |m| {
                let constant = m.functions[1].node.iter().position(|n| n.output[0] == "square2").unwrap();
                m.functions[1].node.remove(constant);
                m.functions[1].node.iter_mut().for_each(|n| {
                    n.input.iter_mut().filter(|i| *i == "square2").for_each(|i| *i = "square1".into());
                });
            },
            ["GradCheck", "GradCheck:3!", "AdamW"],
        ),
        (
            "an attribute that the call leaves out",
            |m| {
                m.graph.as_mut().unwrap().node[2].attribute.remove(0);
            },
            CHECKS,
        ),
        (
            "an attribute of another form",
            |m| {
                attr(&mut m.graph.as_mut().unwrap().node[2], "mode").s = Some(b"hf".to_vec());
            },
            CHECKS,
        ),
        (
            "an older opset",
            |m| m.functions[0].opset_import[0].version = Some(16),
            ["GradCheck:2!", "GradCheck", "AdamW"],
        ),
    ];
    for (what, change, expected) in changes {
        let mut file = file();
        change(&mut file);
        let (module, ..) = read(&file);
        assert_eq!(operators(&module), *expected, "{what}");
        assert_identity(&file);
    }
}

#[test]
fn a_function_that_nothing_calls_stays() {
    let mut file = file();
    file.graph.as_mut().unwrap().node.remove(1);
    file.graph.as_mut().unwrap().output.drain(2..4);
    let (mut module, source, _) = read(&file);
    assert_eq!(module.functions().count(), 0);
    assert_identity(&file);
    module.header.producer_name = "changed".into();
    let written = ModelProto::decode(&*to_bytes(&module, Some(&source)).unwrap().0).unwrap();
    assert_eq!(overloads(&written), overloads(&file));
}

/// A function that nothing calls any more goes; the others are copied, whatever they are called inside.
#[test]
fn a_function_goes_with_its_last_node() {
    let mut file = file();
    file.functions[2].metadata_props =
        vec![StringStringEntryProto { key: Some("kept".into()), value: Some("yes".into()) }];
    let (mut module, source, _) = read(&file);
    let second = module.nodes(module.main()).nth(1).unwrap();
    let [first, again] = [0, 1].map(|n| {
        let node = module.nodes(module.main()).nth(n).unwrap();
        module.node(node).results().iter().map(|r| r.unwrap()).collect::<Vec<_>>()
    });
    again.iter().zip(&first).for_each(|(&old, &new)| {
        let slots: Vec<u32> = module.output_slots(old).collect();
        slots.into_iter().for_each(|slot| module.set_output(module.main(), slot as usize, new));
    });
    module.erase_node(second);
    let written = ModelProto::decode(&*to_bytes(&module, Some(&source)).unwrap().0).unwrap();
    assert_eq!(overloads(&written), ["GradCheck:2", "AdamW:torch_lo"]);
    assert_eq!(written.functions[1], file.functions[2]);
}

/// A file that lacks the functions is read with a warning and written with them.
#[test]
fn missing_functions_are_added() {
    let complete = file();
    for named in [true, false] {
        let mut file = complete.clone();
        file.functions.clear();
        if !named {
            file.graph.as_mut().unwrap().node.iter_mut().for_each(|node| node.overload = None);
        }
        let (module, source, warnings) = read(&file);
        let codes: Vec<&str> = warnings.iter().map(Warning::code).collect();
        assert_eq!(codes, ["onnx.no-function"], "{warnings:?}");
        assert!(warnings[0].to_string().contains("`found` and 2 more nodes"), "{}", warnings[0]);
        let (bytes, report) = to_bytes(&module, Some(&source)).unwrap();
        assert!(!report.identical);
        assert_eq!(ModelProto::decode(&*bytes).unwrap(), complete);
    }
    let mut file = complete;
    file.functions.clear();
    file.graph.as_mut().unwrap().node[0].overload = Some("7".into());
    let error = read_bytes("test", file.encode_to_vec(), &ReadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("`GradCheck` with the overload `7`") && error.contains("ask for `2`"), "{error}");
}

/// A file without functions may leave results off; a call names all results of its function.
#[test]
fn results_that_are_left_off_are_named_again() {
    let mut file = file();
    file.functions.clear();
    let graph = file.graph.as_mut().unwrap();
    graph.output.retain(|output| output.name() != "lo");
    graph.node.iter_mut().find(|node| node.op_type() == "AdamW").unwrap().output.pop();
    let (module, source, _) = read(&file);
    let bytes = to_bytes(&module, Some(&source)).unwrap().0;
    let written = ModelProto::decode(&*bytes).unwrap();
    let step = written.graph.as_ref().unwrap().node.iter().find(|node| node.op_type() == "AdamW").unwrap();
    assert_eq!(step.output, ["next", "m_next", "v_next", ""]);
    assert_eq!(operators(&read(&written).0), ["GradCheck", "GradCheck", "AdamW"]);
}

/// Without an overload a function has the name that texts give the operator, so then all of that name are functions.
#[test]
fn beside_a_function_without_an_overload_there_is_no_operator() {
    let mut file = file();
    let mut plain = file.functions.iter().find(|f| f.overload() == "2").unwrap().clone();
    plain.overload = None;
    file.functions.push(plain);
    let (module, ..) = read(&file);
    assert_eq!(operators(&module), ["GradCheck:2!", "GradCheck:3!", "AdamW"]);
    assert_eq!(operators(&self::module(&printed(&module))), operators(&module));
    assert_identity(&file);
}

/// The body says nothing of values that the operator does not have: such a call stays a call.
#[test]
fn calls_with_values_that_the_operator_lacks_stay_calls() {
    let change = |name: &str, value: i64| {
        let mut file = file();
        let nodes = &mut file.graph.as_mut().unwrap().node;
        let step = nodes.iter_mut().find(|node| node.op_type() == "AdamW").unwrap();
        attr(step, name).i = Some(value);
        operators(&read(&file).0).pop()
    };
    assert_eq!(change("bias_correction", 0).unwrap(), "AdamW");
    assert_eq!(change("bias_correction", 2).unwrap(), "AdamW:torch_lo!");
    assert_eq!(change("w_lo_dtype", 16).unwrap(), "AdamW");
    assert_eq!(change("w_lo_dtype", 1).unwrap(), "AdamW:torch_lo!");
}

/// The same for the rest of a step, where an attribute decides which operands and results there are as well.
#[test]
fn calls_of_other_forms_stay_calls() {
    let change = |i: usize, change: &dyn Fn(&mut NodeProto)| {
        let mut file = tail();
        change(&mut file.graph.as_mut().unwrap().node[i]);
        let (module, ..) = read(&file);
        assert_identity(&file);
        operators(&module).swap_remove(i)
    };
    let int = |name: &'static str, value: i64| move |node: &mut NodeProto| attr(node, name).i = Some(value);
    let number = |name: &'static str, value: f64| {
        move |node: &mut NodeProto| {
            attr(node, name).t.as_mut().unwrap().raw_data = Some(value.to_le_bytes().to_vec());
        }
    };
    let word = |name: &'static str, value: &'static str| {
        move |node: &mut NodeProto| attr(node, name).s = Some(value.as_bytes().to_vec())
    };
    let called = |i: usize| format!("{}!", TAIL[i]);
    for (i, name) in TAIL.iter().enumerate() {
        assert_eq!(change(i, &|_| {}), name.split(':').next().unwrap());
    }
    assert_eq!(change(1, &int("bias_correction", 2)), called(1));
    assert_eq!(change(2, &int("w_lo_dtype", 16)), "SGD");
    assert_eq!(change(2, &int("w_lo_dtype", 1)), called(2));
    assert_eq!(change(2, &number("momentum", 0.9)), called(2));
    assert_eq!(change(2, &int("nesterov", 1)), called(2));
    assert_eq!(change(2, &word("on_overflow", "skip")), called(2));
    assert_eq!(change(2, &|node| node.output[1] = "what the body has in its place".into()), called(2));
    assert_eq!(change(3, &number("momentum", 0.0)), "SGD");
    assert_eq!(change(3, &int("nesterov", 0)), called(3));
    assert_eq!(change(3, &int("nesterov", 2)), called(3));
    assert_eq!(change(4, &int("backoff_every", 1)), "UpdateLossScale");
    assert_eq!(change(4, &int("backoff_every", 0)), called(4));
    assert_eq!(change(4, &int("interval", 1 << 31)), called(4));
    assert_eq!(change(4, &int("reset_good", 0)), "UpdateLossScale");
    assert_eq!(change(4, &int("reset_good", -1)), called(4));
    assert_eq!(change(4, &word("arith", "f32_product")), called(4));
    assert_eq!(change(5, &int("backoff_every", 2)), called(5));
}

/// A dropout and its gradient, which is the same of another tensor.
fn dropout_at(opset: u16) -> String {
    format!(
        "\
module ir=10
opset ai.onnx={opset}, ai.ampc=1

graph @main {{
  input %x : f32[N, 3]
  input %dy : f16[N, 3]
  input %seed : u64
  input %offset : u64
  input %ratio : f32
  %y = ai.ampc::PhiloxDropout(%x, %seed, %offset, %ratio) {{stream=7}} : f32[N, 3]
  %dx = ai.ampc::PhiloxDropout(%dy, %seed, %offset, %ratio) {{stream=7}} : f16[N, 3]
  output %y : f32[N, 3]
  output %dx : f16[N, 3]
}}
"
    )
}

/// Its body takes operators on bits, and so a newer opset.
#[test]
fn a_dropout_is_written_from_opset_18_on() {
    for opset in [18, 21, 28] {
        let text = dropout_at(opset);
        let bytes = encoded(&module(&text));
        let file = ModelProto::decode(&*bytes).unwrap();
        assert_eq!(overloads(&file), ["PhiloxDropout:philox4x32_10"]);
        assert_identity(&file);
        assert_eq!(typed(read(&file).0), text);
    }
    let old = to_bytes(&module(&dropout_at(17)), None).map(|_| ()).unwrap_err().to_string();
    assert!(
        old.contains("its body takes opset 18 of ai.onnx or a newer one, and the model imports 17"),
        "{old}"
    );

    let file = ModelProto::decode(&*encoded(&module(&dropout_at(18)))).unwrap();
    let mut left = file.clone();
    let shift = left.functions[0].node.iter_mut().find(|node| node.op_type() == "BitShift").unwrap();
    attr(shift, "direction").s = Some(b"LEFT".to_vec());
    assert_eq!(operators(&read(&left).0), ["PhiloxDropout:philox4x32_10!"; 2]);
    let mut stream = file;
    attr(&mut stream.graph.as_mut().unwrap().node[1], "stream").i = Some(-1);
    assert_eq!(operators(&read(&stream).0), ["PhiloxDropout:philox4x32_10!"; 2]);
}

/// The body of a model that was raised is that of the new opset: onnx.checker compares the two.
#[test]
fn a_raised_model_has_raised_bodies() {
    let (module, source, _) = read(&file());
    let options = RewriteOptions { opset: Opset::To(21), ..RewriteOptions::default() };
    let model = Model { source: Some(source), ..Model::from(module) };
    let rewritten = ampc::rewrite(model, &options).unwrap();
    let bytes = to_bytes(&rewritten.model.module, rewritten.model.source.as_ref()).unwrap().0;
    let written = ModelProto::decode(&*bytes).unwrap();
    let versions: Vec<i64> = written.functions.iter().map(|f| f.opset_import[0].version()).collect();
    assert_eq!(versions, [21; 3]);
}

#[test]
fn what_cannot_be_written_says_why() {
    let refused = |text: &str| to_bytes(&module(text), None).map(|_| ()).unwrap_err().to_string();
    let text = text_at(17);
    let old = refused(&text.replace("ir=10", "ir=9"));
    assert_eq!(
        old,
        "`found` cannot be written as a call of a function of ai.ampc: its overload takes IR version 10, and the \
         model is of 9; a higher opset raises it (`--opset N`), or export the model in that version"
    );
    let old = refused(&text_at(16));
    assert!(
        old.contains("its body takes opset 17 of ai.onnx or a newer one, and the model imports 16"),
        "{old}"
    );
    let taken = "\nfunction ai.ampc::GradCheck:\"2\" {\n  opset ai.onnx=17\n  input %a : ?\n  output %a\n}\n";
    let taken = refused(&(text.clone() + taken));
    assert!(taken.contains("the model has another function called `ai.ampc::GradCheck:2`"), "{taken}");
    let none = refused(&text.replace("mode=\"torch\"", "mode=\"other\""));
    assert!(none.contains("no form of the operator has its operands and attributes"), "{none}");
}

/// States stay fp32, gradients come as they are, and what is written is read as the same nodes.
#[test]
fn a_rewrite_leaves_them_as_they_are() {
    let text = "\
module ir=10
opset ai.onnx=17, ai.ampc=1

graph @main {
  input %x : f32[64, 64]
  input %dy : f32[64, 64]
  input %w : f32[64, 64]
  input %m : f32[64, 64]
  input %v : f32[64, 64]
  input %lr : f32
  input %mult : f32
  input %step : i64
  %g = MatMul(%x, %dy) : f32[64, 64]
  %found, %sumsq = ai.ampc::GradCheck(%mult, %g) : f32, f32
  %next, %m_next, %v_next, %lo = ai.ampc::AdamW(%w, %g, %m, %v, %lr, %mult, %step, %found) {ATTRS} : \
f32[64, 64], f32[64, 64], f32[64, 64], f16[64, 64]
  output %found
  output %sumsq
  output %next
  output %m_next
  output %v_next
  output %lo
}
"
    .replace("ATTRS", ADAM_W);
    for to in [DType::F16, DType::BF16] {
        let options = RewriteOptions { to, verify_each: true, ..RewriteOptions::default() };
        let rewritten = ampc::rewrite(Model::from(module(&text)), &options).unwrap();
        let text = printed(&rewritten.model.module);
        assert!(text.contains(&format!("%g = MatMul(%x.{to}, %dy.{to}) : {to}[64, 64]")), "{text}");
        assert!(text.contains("ai.ampc::GradCheck(%mult, %g) : f32, f32"), "{text}");
        assert!(text.contains("ai.ampc::AdamW(%w, %g, %m, %v, %lr, %mult, %step, %found)"), "{text}");
        let bytes = encoded(&rewritten.model.module);
        let (read, ..) = read_bytes("test", bytes.clone(), &ReadOptions::default()).unwrap();
        assert_eq!(encoded(&read), bytes);
    }
}

/// ONNX Runtime and onnx.checker, and the formulas in NumPy.
#[test]
fn other_runtimes_compute_the_same() {
    #[expect(
        clippy::disallowed_methods,
        reason = "a test is an edge; the variable says where ONNX Runtime is"
    )]
    let Ok(python) = std::env::var("AMPC_PYTHON") else {
        let _ =
            writeln!(std::io::stderr(), "skipped: AMPC_PYTHON does not name a Python that has ONNX Runtime");
        return;
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/judge/training.py");
    let output = Command::new(&python)
        .args([script, "--ampc", env!("CARGO_BIN_EXE_ampc")])
        .output()
        .unwrap_or_else(|error| panic!("AMPC_PYTHON={python}: {error}"));
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success(), "{text}");
}
