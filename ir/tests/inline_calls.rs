//! Functions in place of their calls.

#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

use ampc_ir::edit::InlinedCalls;
use ampc_ir::infer::infer_module;
use ampc_ir::text::{NoData, PrintOptions, parse, print};
use ampc_ir::verify::verify_module;
use ampc_ir::{Module, Node};

const MOST: u64 = 1 << 16;

fn inlined(text: &str, limit: u64) -> (Module, InlinedCalls) {
    let mut module = parse(text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    infer_module(&mut module).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"));
    verify_module(&module).unwrap_or_else(|found| panic!("{found:?}\n{text}"));
    let calls = module.inline_calls(limit);
    infer_module(&mut module).unwrap_or_else(|errors| panic!("{errors:?}\n{}", module.to_text().unwrap()));
    verify_module(&module).unwrap_or_else(|found| panic!("{found:?}\n{}", module.to_text().unwrap()));
    let printed = module.to_text().unwrap();
    parse(&printed, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{printed}"));
    (module, calls)
}

/// Nested functions, a call in each kind of body, attributes with and without defaults, operands that are left out, results
/// that are operands, bodies that capture, constants, names that are taken.
#[test]
fn functions_stand_in_place_of_their_calls() {
    let (module, calls) = inlined(include_str!("data/calls.ir"), MOST);
    assert_eq!(module.functions().count(), 0);
    let mut shown = print(&module, &PrintOptions::default()).text;
    for &node in module.program_nodes() {
        let source = calls.source(node);
        if source == node {
            continue;
        }
        let name = |node: Node| {
            let name = module.node(node).name.map(|name| module.text(name).to_owned());
            name.unwrap_or_else(|| module.op_name(node).1.to_owned())
        };
        let path: Vec<String> = calls.calls(node).into_iter().chain([source]).map(name).collect();
        let result = module.node(node).results().iter().flatten().next().unwrap();
        shown += &format!("%{}: {}\n", module.text(module.value_name(*result).unwrap()), path.join("/"));
    }
    insta::assert_snapshot!(shown);
}

/// Every function calls the next one twice: the copies have no more parts than the limit, and the other calls stay.
#[test]
fn the_copies_are_no_larger_than_the_limit() {
    let mut text = "module ir=10\nopset ai.onnx=21, my=1\n\ngraph @main {\n  input %x : f32[2]\n  \
                    %y = my::F0(%x) : ?\n  output %y\n}\n"
        .to_owned();
    for level in 0..40 {
        let next = level + 1;
        text += &format!(
            "\nfunction my::F{level} {{\n  opset ai.onnx=21, my=1\n  input %x : ?\n  %a = my::F{next}(%x) : ?\n  \
             %b = my::F{next}(%a) : ?\n  output %b\n}}\n"
        );
    }
    text += "\nfunction my::F40 {\n  opset ai.onnx=21\n  input %x : ?\n  %a = Neg(%x) : ?\n  output %a\n}\n";
    for limit in [0, 100, 5000] {
        let (module, calls) = inlined(&text, limit);
        let made: usize = module.program_nodes().iter().filter(|&&node| calls.source(node) != node).count();
        assert!(made as u64 <= limit && made as u64 >= limit / 32, "{made}");
        assert!(module.functions().count() > 30);
    }
}

/// Many calls that read one value, and one node that reads many calls.
#[test]
fn time_is_linear_in_the_number_of_calls() {
    let n = 20_000;
    let mut text = "module ir=10\nopset ai.onnx=21, my=1\n\ngraph @main {\n  input %x : f32[1]\n".to_owned();
    for i in 0..n {
        text += &format!("  %y{i} = my::F(%x) : ?\n");
    }
    let all: Vec<String> = (0..n).map(|i| format!("%y{i}")).collect();
    text += &format!("  %z = Concat({}) {{axis=0}} : ?\n  output %z\n}}\n", all.join(", "));
    text += "\nfunction my::F {\n  opset ai.onnx=21, my=1\n  input %x : ?\n  %a = my::G(%x) : ?\n  \
             %b = my::G(%a) : ?\n  output %b\n}\n";
    text += "\nfunction my::G {\n  opset ai.onnx=21\n  input %x : ?\n  %a = Neg(%x) : ?\n  output %a\n}\n";
    let mut module = parse(&text, &NoData).unwrap();
    let start = std::time::Instant::now();
    let calls = module.inline_calls(u64::MAX);
    assert_eq!(calls.n_calls, 3 * n);
    assert_eq!(module.program_nodes().len() as u64, 2 * n + 1);
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}

/// A call stays if it leaves out an operand that the function needs, and the other calls do not.
#[test]
fn a_call_without_an_operand_that_the_function_needs_stays() {
    for (body, stays) in [
        ("%y = Add(%x, %o)", true),
        ("%y = Concat(%x, %o) {axis=0}", true),
        ("%y = Clip(%x, %o)", false),
        ("%y = my::G(%x, %o)", true),
        (
            "%c = OptionalHasElement(%x) : bool[]\n  %y = If(%c; %x, %o) {then_branch: graph @t (%x, %o) {\n  \
             %t = Clip(%x, %o) : ?\n  output %t\n  },\n  else_branch: graph @e (%x) {\n  output %x\n  }}",
            true,
        ),
    ] {
        let text = format!(
            "module ir=10\nopset ai.onnx=21, my=1\n\ngraph @main {{\n  input %x : f32[2]\n  input %o : f32[]\n  \
             %y = my::F(%x) : ?\n  %z = my::F(%y, %o) : ?\n  output %z\n}}\n\nfunction my::F {{\n  \
             opset ai.onnx=21, my=1\n  input %x : ?\n  input %o : ?\n  {body} : ?\n  output %y\n}}\n\n\
             function my::G {{\n  opset ai.onnx=21\n  input %x : ?\n  input %o : ?\n  %y = Add(%x, %o) : ?\n  output %y\n}}\n"
        );
        let mut module = parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
        module.inline_calls(MOST);
        let left = module.functions().map(|(function, _)| module.calls(function).len()).sum::<usize>();
        assert_eq!(left, usize::from(stays), "{body}\n{}", module.to_text().unwrap());
    }
}
