//! Hand-written texts: the form of canonical text, and the errors of invalid texts.

use super::*;
use crate::attr::AttrValue;
use crate::convert::Conversion;
use crate::dtype::DType;
use crate::edit::{NewNode, Position};
use crate::entity::Node;
use crate::eq::same_module;
use crate::module::{Op, Payload};
use crate::op::Class;
use crate::tensor::TensorData;
use crate::ty::Shape;

/// Reads canonical text, which prints to itself.
fn canonical(text: &str) -> Module {
    let module = parse(text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    let printed = print(&module, &PrintOptions::default());
    assert_eq!(printed.text, text);
    assert!(printed.errors.is_empty());
    let again = parse(&printed.text, &NoData).unwrap();
    same_module(&module, &again).unwrap();
    module
}

/// Canonical text around the lines of a main graph.
fn main_graph(lines: &str) -> String {
    format!("module ir=10\nopset ai.onnx=21\n\ngraph {{\n{lines}}}\n")
}

/// The errors of a text, one a line.
fn errors(text: &str) -> String {
    parse(text, &NoData).map(|_| String::new()).unwrap_or_else(|errors| errors.to_string())
}

/// The errors of the lines of a main graph, with line numbers of these lines.
fn line_errors(lines: &str) -> Vec<String> {
    let Err(errors) = parse(&main_graph(lines), &NoData) else { return Vec::new() };
    let of = |e: ParseError| format!("{}:{} {} | {}", e.line - 4, e.column, e.expected, e.found);
    errors.0.into_iter().map(of).collect()
}

#[test]
fn header() {
    canonical(
        r#"module ir=8
producer "pytorch" "2.1"
version 3
domain "com.example"
doc "two\nlines \"quoted\""
meta author = "somebody"
meta "a key" = "\\ \x1b"
opset ai.onnx=17, com.microsoft=1, "ai.onnx"=3, "odd domain"=2

graph @main_graph {
}
"#,
    );
    canonical("module ir=0\n\ngraph @\"a b\" {\n}\n");
}

#[test]
fn names_and_types() {
    canonical(&main_graph(
        r#"  input %x : f32[N, 4, ?, "batch size"]
  input %1 : f32
  input %a.b_c : bf16[*]
  input %"/model/MatMul_output_0" : float8e4m3fn[0]
  input %"" : seq(f32[?])
  input %"\x1b" : optional(seq(i64))
  input %m : map(string, seq(map(i64, f32)))
  input %s : sparse(f32[3, 4])
  input %o : opaque("com.x", "Thing \"1\"")
  input %u : ?
  input %other : dtype77[2]
  input %odd : dtype-3["", "0"]
  output %x : f32[N, *]
"#
        .replace(", *]", "]")
        .as_str(),
    ));
}

#[test]
fn every_dtype_is_spelled() {
    for dtype in DType::ALL {
        canonical(&main_graph(&format!("  input %x : {dtype}[2]\n  output %x : {dtype}[2]\n")));
    }
}

#[test]
fn constants() {
    canonical(&main_graph(
        r#"  input %k : i64[2] = [3, -4]
  input %any : i64[?] = tensor(i64[2] = [3, 4])
  const %lr : f32 = 0.1
  const %f : f32[6] = [1.0, -0.0, inf, -inf, nan(0x7fc00001), 1e-45]
  const %d : f64[2] = [0.1, nan(0xfff8000000000000)]
  const %h : f16[3] = [0.1, 65500.0, nan(0x7e01)]
  const %b : bf16[2] = [3e38, -inf]
  const %i : i8[2] = [-128, 127]
  const %u : u64 = 18446744073709551615
  const %t : bool[2] = [true, false]
  const %raw : bool[2] = raw("0201")
  const %i4 : int4[3] = [-8, 7, 1]
  const %u2 : uint2[5] = [0, 1, 2, 3, 3]
  const %f8 : float8e5m2[2] = [0x7c, 0x01]
  const %f4 : float4e2m1[1] = [0xf]
  const %c : complex64[1] = [(1.0, -2.5)]
  const %str : string[3] = ["", "a\"b", "\xff\x00"]
  const %one : string = "x"
  const %none : f32[0, 7] = []
  const %r : f32[1000, 1000] = random(7)
  const %r2 : f16[64] = random(18446744073709551615, 0.02)
  const %sp : sparse(f32[3, 4]) = sparse([3, 4], tensor(f32[2] = [1.0, 2.0]), tensor(i64[2] = [0, 5]))
  const %low : f16[2] = f32 [1.0, 100000.0] -> f16 clamp
  const %back : f32[2] = f32 [1.0, 2.0] -> bf16 -> f32
"#,
    ));
}

#[test]
fn nodes_and_attributes() {
    canonical(&main_graph(
        r#"  input %x : f32[N]
  const %c : f32 = 1.0
  %y = Relu(%x) : f32[N]
  %z, _, %"z 2" = com.example::Op:v2(%x, _, %y) {i=-1, f=1.0, s="a\\b", t=tensor(f32[1] = [2.0])} : ?, _, f32[N]
  %a = com.example::Lists(%x) {ints=[1, 2], floats=[0.5, inf], strings=["a", "\x80"], "odd key"=3} : ?
  %e = com.example::Empty() {a=ints[], b=floats[], c=strings[], d=tensors[], e=types[], f=sparse_tensors[], g=graphs[]} : ?
  %t = com.example::Types(%x) {a=type(seq(f32[N])), b=[type(f32), type(?)], c=[tensor(i64 = 3), tensor(f32[0] = [])]} : ?
  %p = com.example::Sparse(_) {a=sparse([4], tensor(f32[1] = [1.0]), tensor(i64[1] = [3])), n=nan(0x7fc00000)} : ?
  com.example::Print(%x)
  "input"::"meta"() @name
  %graph = "a b"::"1"() : ?
  output %y : f32[N]
  output %y
  output %x : f32[?]
"#,
    ));
}

#[test]
fn tail() {
    canonical(&main_graph(
        r#"  input %x : f32[N]
  input %i : i64[N]
  %a = Relu(%x) : f32[N] class=infer prec=f16 why=table @fc1
  %b = Cast(%a) {to=10} : f16[N] cast=inserted @"fc1/cast"
  %c = Gather(%x, %i) : f32[N] class=T:clear,Tind:fixed why=T:table,Tind:policy.deny("an index")
  %d = Gather(%x, %i) : f32[N] class=deny prec=T:f32 why="pin:*#T"
  %e = com.example::Op(%x) : ? class=0:fixed,1:allow prec=1:f16 meta {k="v", "a b"="c\n"}
"#,
    ));
    let module = canonical(&main_graph("  input %x : f32\n  %y = Relu(%x) : f32 class=allow prec=bf16\n"));
    let node = module.nodes(module.main()).next().unwrap();
    let decision = &module.node(node).decisions[0];
    assert_eq!((decision.class, decision.precision), (Class::Allow, Some(DType::BF16)));
}

#[test]
fn regions_and_captures() {
    let module = canonical(&main_graph(
        r#"  input %c : bool
  input %x : f32[N]
  input %w : f32[N]
  %y = If(%c; %x, %w) {
    then_branch: graph @then(%x) {
      %t = Relu(%x) : f32[N]
      output %t : f32[N]
    },
    else_branch: graph @"else 2"(%w, %x) {
      const %c : bool = true
      %y2 = If(%c; %w) {
        then_branch: graph (%w) {
          output %w : f32[N]
        },
        else_branch: graph {
          const %k : f32[1] = [0.0]
          output %k : f32[1]
        }
      } : f32[?]
      %sum = Add(%y2, %x) : f32[?]
      output %sum : f32[?]
    }
  } : f32[?] class=clear @if1
  output %y
"#,
    ));
    let body = module.graph_ids().nth(1).unwrap();
    let capture = module.graph(body).captures()[0];
    assert_eq!(module.value_name(capture).map(|s| module.text(s)), Some("x"));
    assert_eq!(module.uses(capture).count(), 1);
}

/// Two captured operands that have become the same value, a capture of another type, a name of the body's own:
/// states that no valid model has, but that passes may create in between.
#[test]
fn ambiguous_captures_are_numbered() {
    canonical(&main_graph(
        r#"  input %c : bool
  input %x : f32[N]
  %y = If(%c; %x, %x, _) {
    then_branch: graph (%x, %x~2 = 1, %capture~2 = 2 : ?) {
      %t = Add(%x, %x~2) : f32[N]
      output %t
    },
    else_branch: graph (%x~2 = 0 : f16[N]) {
      %x = Relu(%x~2) : f16[N]
      output %x
    }
  } : f32[N]
"#
        .replace("%x~2", "%\"x~2\"")
        .replace("%capture~2", "%\"capture~2\"")
        .as_str(),
    ));
}

#[test]
fn lists_of_bodies() {
    canonical(&main_graph(
        r#"  input %x : f32
  %y = com.example::Switch(; %x) {
    n=2,
    bodies: [graph (%x) {
      output %x
    }, graph @b {
    }],
    last=true_
  } : ?
"#
        .replace("last=true_", "last=\"x\"")
        .as_str(),
    ));
}

#[test]
fn functions_calls_states_and_roles() {
    let module = canonical(
        r#"module ir=10
opset ai.onnx=21, ai.ampc=1

graph @step {
  input %w : f32[4]
  input %g : f32[4]
  %w_next = ai.ampc::Sgd(%w, %g) {lr=0.5} : f32[4]
  %w2 = ai.ampc::Sgd:f16(%w, %g) : f32[4]
  output %w_next
  state %w -> %w_next
  role grad(%w, %g)
  role "a role"()
}

function ai.ampc::Sgd @Sgd {
  opset ai.onnx=13
  doc "w - lr * g"
  meta origin = "us"
  attr lr
  attr nesterov = 0
  attr t = tensor(f32 = 1.0)
  input %w : f32[*]
  input %g : f32[*]
  %lr = Constant() {value_float=ref(lr: float)} : f32
  %d = Mul(%g, %lr) : f32[*]
  %o = Sub(%w, %d) : f32[*]
  output %o
}

function ai.ampc::Sgd:f16 {
}
"#,
    );
    let calls = module.nodes(module.main()).map(|n| module.node(n).op);
    assert_eq!(calls.filter(|op| matches!(op, Op::Call(_))).count(), 2);
}

#[test]
fn the_opset_of_the_surrounding_graph_selects_the_version() {
    let text = "module ir=8\nopset ai.onnx=12\n\ngraph {\n  input %x : f32[2]\n  %y = Softmax(%x) : f32[2]\n}\n\n\
                function a::F {\n  opset ai.onnx=13\n  input %x : f32[2]\n  %y = Softmax(%x) : f32[2]\n}\n";
    let module = canonical(text);
    let since = |g| module.nodes(g).map(|n| module.node(n).schema().unwrap().since).next().unwrap();
    let function = module.functions().next().unwrap().1.graph;
    assert_eq!((since(module.main()), since(function)), (11, 13));
}

#[test]
fn what_people_write_is_read_too() {
    let text = "// pass: classify\nopset ai.onnx=21\ngraph { // main\n\n  %y = Relu(%x): f32[ N,2 ] // why\n\
                \t// under it\n  input %x: f32[N,2]\n  const %c : f32[] = 1\n  const %n : f32 = nan\n\
                \x20 %z = Concat(%y,\n    %y) {axis = 0} : f32[?, 2] cast=user\n  output %z }\n";
    let module = parse(text, &NoData).unwrap();
    let printed = module.to_text().unwrap();
    assert_eq!(
        printed,
        "module ir=10\nopset ai.onnx=21\n\ngraph {\n  input %x : f32[N, 2]\n  const %c : f32 = 1.0\n\
         \x20 const %n : f32 = nan(0x7fc00000)\n  %y = Relu(%x) : f32[N, 2]\n\
         \x20 %z = Concat(%y, %y) {axis=0} : f32[?, 2]\n  output %z\n}\n"
    );
}

fn big(value: u8) -> TensorData {
    TensorData::from_bytes(DType::F32, &[4, 5], vec![value; 80]).unwrap()
}

fn with_large_constants() -> Module {
    let mut module = Module::new();
    let (main, custom) = (module.main(), module.intern("com.example"));
    for (name, data) in [("w", big(1)), ("v", big(2)), ("tied", big(1))] {
        let (name, low) = (module.intern(name), Conversion { to: DType::F16, clamp: false });
        let data = if module.text(name) == "v" { data.converted(low) } else { data };
        module.add_constant(main, name, Payload::Dense(std::sync::Arc::new(data)));
    }
    let (op, key, result, empty) =
        (module.intern("Op"), module.intern("w"), module.intern("v.w"), module.intern(""));
    let node = NewNode {
        op: Op::Custom { domain: custom, name: op, overload: empty },
        name: Some(module.intern("v")),
        operands: Default::default(),
        attrs: vec![(key, AttrValue::Tensors(vec![big(3).into(), big(4).into()]))],
        results: vec![Some((result, Type::Unknown))],
        provenance: Default::default(),
    };
    module.add_node(main, Position::Last, node);
    module
}

#[test]
fn large_constants_are_named_once() {
    let module = with_large_constants();
    let printed = print(&module, &PrintOptions::default());
    let names: Vec<&str> = printed.large.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["w", "v", "v.w.0", "v.w.1"]);
    let line = |name: &str| {
        let start = printed.text.find(&format!("const %{name} ")).unwrap();
        printed.text[start..].lines().next().unwrap().to_owned()
    };
    let hash = format!("0x{:032x}", big(1).content_hash().unwrap());
    assert_eq!(line("w"), format!("const %w : f32[4, 5] = data(\"w\", {hash})"));
    assert_eq!(line("tied"), format!("const %tied : f32[4, 5] = data(\"w\", {hash})"));
    assert!(line("v").starts_with("const %v : f16[4, 5] = f32 data(\"v\", 0x"), "{}", line("v"));
    assert!(line("v").ends_with(") -> f16"));

    let large = large_constants(&module).unwrap();
    let resolver = |name: &str, _: DType, _: &[u64], _: Option<u128>| {
        large.iter().find(|c| c.name == name).map(|c| c.data.clone())
    };
    let again = parse(&printed.text, &resolver).unwrap();
    same_module(&module, &again).unwrap();
}

#[test]
fn missing_data_is_an_error_unless_allowed() {
    let module = with_large_constants();
    let printed = module.to_text().unwrap();
    assert_eq!(parse(&printed, &NoData).unwrap_err().0.len(), 4);
    let options = ParseOptions { allow_missing_data: true, ..ParseOptions::default() };
    let dump = parse_with(&printed, &NoData, &options).unwrap();
    same_module(&module, &dump).unwrap();
    assert_eq!(dump.to_text().unwrap(), printed);
    let omitted = print(&module, &PrintOptions { omit_hashes: true, ..PrintOptions::default() });
    assert!(omitted.text.contains("const %w : f32[4, 5] = data(\"w\")\n"));
}

#[test]
fn wrong_data_is_an_error() {
    let module = with_large_constants();
    let printed = module.to_text().unwrap();
    let wrong = |_: &str, _: DType, _: &[u64], _: Option<u128>| Some(big(9));
    let errors = parse(&printed, &wrong).unwrap_err();
    assert!(errors.0.iter().all(|e| e.expected.starts_with("data of hash 0x")), "{errors}");
    assert!(errors.0.iter().all(|e| e.about == ParseSubject::DataHash), "{errors}");
    let other = |_: &str, _: DType, _: &[u64], _: Option<u128>| TensorData::from_f32(&[1], &[0.0]).ok();
    let errors = parse(&printed, &other).unwrap_err();
    assert!(errors.0.iter().all(|e| e.expected == "data of type f32[4, 5]"), "{errors}");
    assert!(errors.0.iter().all(|e| e.about == ParseSubject::Text), "{errors}");
}

#[test]
fn notes_and_places() {
    let text = main_graph(
        "  input %c : bool\n  %y = If(%c) {\n    then_branch: graph {\n    },\n    else_branch: graph {\n    }\n  } : ?\n\
         \x20 %z = Not(%c) : bool\n",
    );
    let module = canonical(&text);
    let nodes: Vec<Node> = module.nodes(module.main()).collect();
    let note = |node: Node| (node == nodes[1]).then(|| "error: one\nand more".to_owned());
    let printed = print(&module, &PrintOptions { note: Some(&note), ..PrintOptions::default() });
    let place = |node: Node| &printed.text[printed.nodes[node].clone().unwrap()];
    assert_eq!(place(nodes[0]), "%y = If(%c) {");
    assert_eq!(place(nodes[1]), "%z = Not(%c) : bool");
    assert!(printed.text.contains("  %z = Not(%c) : bool\n  // error: one\n  // and more\n}"));
    same_module(&module, &parse(&printed.text, &NoData).unwrap()).unwrap();
}

#[test]
fn every_line_is_reported() {
    let found = line_errors(
        "  input %x f32\n  %a = Relu(%x : f32\n  %b = Relu(%a) {k=[1, 2} : f32\n  %c = Reluu(%b) : f32\n  $\n\
         \x20 %d = Relu(%c) : f32, f32\n  %e = Relu(%zz) : f32 @\n  output %d : float\n  %ok = Relu(%a) : f32\n",
    );
    let expected = [
        "1:12 `:` | `f32`",
        "2:16 `,` | `:`",
        "3:25 `,` | `}`",
        "4:3 an operator of `ai.onnx`, or a function of the model | `Reluu`",
        "5:3 a name, a number, a string or punctuation | `$`",
        "6:22 the end of the line | `,`",
        "7:24 a name after `@` | `@`",
        "8:15 an element type such as `f32`, `f16` or `i64` | `float`",
    ];
    assert_eq!(found, expected);
}

#[test]
fn meaning_is_checked() {
    let cases = [
        ("  %y = Relu(%x) : f32\n", "1:13 a value that this graph defines above or captures | `%x`"),
        (
            "  input %x : f32\n  input %x : f32\n",
            "2:9 a name that the graph does not have yet | a second `%x`",
        ),
        (
            "  %y = Upsample() : ?\n",
            "1:3 an operator of `ai.onnx` 21 | one that 10 deprecated, replaced by `Resize`",
        ),
        ("  %y = SwiGLU() : ?\n", "1:3 an operator of `ai.onnx` 21 | one that came with 28"),
        ("  %y = ai.onnx.ml::Scaler() : ?\n", "1:3 an opset import of `ai.onnx.ml` | none"),
        ("  const %c : f32[2] = [1.0]\n", "1:23 2 elements | 1"),
        (
            "  const %c : f32[N] = [1.0]\n",
            "1:23 `tensor(…)` or `sparse(…)`, as the type is no tensor of known dims | `[`",
        ),
        ("  const %c : i8 = 300\n", "1:19 an element of type i8 | `300`"),
        ("  const %c : i64[4] = random(3)\n", "1:23 random values of f32, f16, bf16 or f64 | i64"),
        ("  const %c : f32 = f32 1.0 -> f16\n", "1:31 elements that end up as f32 | f16"),
        ("  const %c : i64 = i32 1 -> i64\n", "1:29 another float format than i32 | i64"),
        ("  const %c : string[2] = [\"a\"]\n", "1:26 as many elements as string[2] has | another number"),
        (
            "  const %c : f32[99999999, 99999999] = random(1)\n",
            "1:40 random values of at most 4294967296 bytes | 39999999200000004 bytes",
        ),
        (
            "  const %c : f32[18446744073709551615, 2] = random(1)\n",
            "1:45 a tensor of a size that can be represented | a tensor of f32[18446744073709551615, 2] has no representable size",
        ),
        (
            "  input %x : f32\n  %y = Relu(%x) : f32 class=U:allow\n",
            "2:29 a type variable of the operator that has a class | `U`",
        ),
        ("  input %x : f32\n  %y = Relu(%x) : f32 prec=f16\n", "2:28 a `class=` too | none"),
        ("  input %\"\\q\" : f32\n", r#"1:11 one of the escapes \" \\ \n \r \t \xNN | another one"#),
        ("  input %\"\\xff\" : f32\n", "1:9 UTF-8 | other bytes"),
        ("  %y = a::B() {k=1, k=2} : ?\n", "1:3 attributes of different names | a name given twice"),
        (
            "  input %x : f32\n  %y = Relu(%x) : f32 @a @b\n",
            "2:26 one name such as `@add` per node | a second one",
        ),
        (
            "  input %x : f32\n  %y = Relu(%x) : f32 class=allow class=deny\n",
            "2:35 one `class` per node | a second one",
        ),
        (
            "  input %x : f32\n  %y = Relu(%x) : f32 class=deny prec=f16 prec=f32\n",
            "2:43 one `prec` per node | a second one",
        ),
        (
            "  input %x : f32\n  %y = Relu(%x) : f32 class=T:allow,T:deny\n",
            "2:37 every type variable once | a second `T`",
        ),
        (
            "  input %x : f32\n  output %x\n  state %x -> %x\n  state %x -> %x\n",
            "4:9 every state once | a second `%x`",
        ),
        (
            "  %y = a::B() {k=[1, 2.0]} : ?\n",
            "1:22 items of one kind | an item of another kind than the first",
        ),
    ];
    for (lines, expected) in cases {
        assert_eq!(line_errors(lines), [expected], "{lines}");
    }
}

#[test]
fn captures_are_checked() {
    let found = line_errors(
        "  input %c : bool\n  input %x : f32\n  %y = If(%c; %x) {\n    then_branch: graph (%c) {\n\
         \x20     output %c\n    },\n    else_branch: graph (%x, %b = 1) {\n      %z = Relu(%x) : f32\n\
         \x20     %q = Relu(%c) : f32\n    }\n  } : f32\n",
    );
    assert_eq!(
        found,
        [
            "4:25 one of the node's captured operands (those after `;`) | `%c`",
            "7:29 one of the node's captured operands (those after `;`) | `%b`",
            "9:17 a value that this graph defines above or captures | `%c`",
        ]
    );
}

#[test]
fn errors_inside_and_around_regions() {
    let found = line_errors(
        "  input %c : bool\n  %y = If(%c) {\n    then_branch: graph {\n      %a = Relu( : f32\n    },\n\
         \x20   else_branch graph {\n      %lost = 1\n    }\n  } : f32\n  %z = Relu(%y) : f32\n  %q = %\n",
    );
    assert_eq!(
        found,
        [
            "4:18 a value such as `%x`, or `_` | `:`",
            "6:17 `=` or `:` | `graph`",
            "11:8 a name after `%` | `%`",
        ]
    );
}

#[test]
fn a_line_that_ends_too_early_is_pointed_at_its_end() {
    let found = line_errors("  %y = Relu(\n  input %x :\n  %z = Relu(%y)\n  output %z\n");
    let expected = [
        "1:13 a value such as `%x`, or `_` | the end of the line",
        "2:13 a type such as `f32[N, 4]`, `seq(f32)` or `?` | the end of the line",
        "3:16 `:` | the end of the line",
    ];
    assert_eq!(found, expected);
}

#[test]
fn lines_of_a_header_and_attributes_of_a_function_stand_once() {
    for line in [
        "module ir=10",
        "producer \"a\" \"1\"",
        "version 1",
        "domain \"a\"",
        "doc \"a\"",
        "meta ampc.state = \"\"",
    ] {
        let found = errors(&format!("{line}\n{line}\ngraph {{\n}}\n"));
        assert!(found.starts_with("line 2, column ") && found.contains("a second"), "{line}: {found}");
        assert_eq!(found.lines().count(), 1, "{line}: {found}");
    }
    assert_eq!(errors("meta a = \"1\"\nmeta a = \"2\"\ngraph {\n}\n"), "");
    for lines in ["  attr a\n  attr a\n", "  attr a\n  attr a = 1\n", "  doc \"a\"\n  doc \"b\"\n"] {
        let found = errors(&format!("graph {{\n}}\nfunction f::F {{\n{lines}}}\n"));
        assert!(found.starts_with("line 5, column ") && found.contains("a second"), "{lines}: {found}");
    }
}

#[test]
fn errors_outside_graphs() {
    assert_eq!(errors(""), "line 1, column 1: expected a `graph`, found the end of the text");
    assert_eq!(errors("graph {"), "line 1, column 8: expected `}`, found the end of the text");
    assert_eq!(errors("graph {\n}\n}\n").lines().count(), 1);
    let found = errors("module\nfoo\nopset =3\ngraph {\n}\ngraph {\n}\n");
    let lines: Vec<&str> = found.lines().map(|l| l.split(':').next().unwrap()).collect();
    assert_eq!(lines, ["line 1, column 7", "line 2, column 1", "line 3, column 7", "line 6, column 1"]);
}

#[test]
fn deep_nesting_is_an_error_and_no_overflow() {
    let deep = |n: usize| {
        let open = "%y = a::B() {\nb: graph {\n".repeat(n);
        let close = "}\n} : ?\n".repeat(n);
        format!("graph {{\n{open}{close}}}\n")
    };
    let module = parse(&deep(MAX_DEPTH), &NoData).unwrap();
    let printed = module.to_text().unwrap();
    same_module(&module, &parse(&printed, &NoData).unwrap()).unwrap();
    assert!(errors(&deep(MAX_DEPTH + 1)).contains("at most 256 nested bodies"));
    assert!(errors(&deep(100_000)).contains("at most 256 nested bodies"));
    let ty = |n: usize| format!("graph {{\ninput %x : {}f32{}\n}}\n", "seq(".repeat(n), ")".repeat(n));
    assert!(parse(&ty(MAX_DEPTH), &NoData).is_ok());
    assert!(errors(&ty(100_000)).contains("nested at most 256 deep"));
    assert!(!errors(&format!("graph {{\nconst %c : complex64 = {}", "(".repeat(100_000))).is_empty());
}

#[test]
fn differences_say_where() {
    let text = |inner: &str| {
        main_graph(&format!(
            "  input %c : bool\n  %y = If(%c) {{\n    then_branch: graph {{\n      {inner}\n    }}\n  }} : ? @if1\n"
        ))
    };
    let parse = |inner: &str| parse(&text(inner), &NoData).unwrap();
    let a = parse("const %k : f32[2] = [1.0, 2.0]");
    same_module(&a, &parse("const %k : f32[2] = [1.0, 2.0]")).unwrap();
    for (other, place, part) in [
        ("const %k : f32[2] = [1.0, 2.5]", "main/if1.then_branch/%k", "hash of elements"),
        ("const %k : f32[1] = [1.0]", "main/if1.then_branch/%k", "type"),
        ("const %j : f32[2] = [1.0, 2.0]", "main/if1.then_branch/%k", "name"),
        ("input %k : f32[2]", "main/if1.then_branch", "number of inputs"),
    ] {
        let found = same_module(&a, &parse(other)).unwrap_err();
        assert_eq!((found.place.as_str(), found.part.as_str()), (place, part), "{other}");
    }
}

/// Equality does not depend on how symbols are numbered.
#[test]
fn numbering_does_not_count() {
    let text = main_graph("  input %x : f32[N]\n  output %x : f32[N]\n");
    let module = parse(&text, &NoData).unwrap();
    let mut other = Module::new();
    for unrelated in ["q", "N", "r"] {
        other.intern(unrelated);
    }
    other.header = module.header.clone();
    other.header.opsets = vec![(other.intern(""), 21)];
    let (x, n) = (other.intern("x"), other.intern("N"));
    let ty = Type::tensor(DType::F32, Shape::of([crate::Dim::Sym(n)]));
    let main = other.main();
    let value = other.add_input(main, x, ty.clone(), None);
    other.add_output(main, value, ty);
    same_module(&module, &other).unwrap();
    assert_eq!(other.to_text().unwrap(), text);
}
