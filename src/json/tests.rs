//! The laws on small modules, and errors of graphs.

use super::*;
use ampc_ir::DType;
use ampc_ir::eq::same_module;
use ampc_ir::text::{self, NoData};
use ampc_ir::{TensorData, Type};
use serde_json::{Value as Json, json};

fn read(text: &str) -> Result<Module, String> {
    let options = ParseOptions { allow_missing_data: true, ..ParseOptions::default() };
    parse(text, &NoData, &options).map_err(|e| e.to_string())
}

fn tree(text: &str) -> Json {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_graph_with_constants() {
    let text = "module ir=10\nopset ai.onnx=21\n\ngraph @main {\n  input %c : bool\n  input %x : f32[N, 2]\n  \
                const %w : f32[2] = [0.5, inf]\n  const %big : f32[20] = random(7)\n  \
                %y = Mul(%x, %w) : f32[N, 2]\n  output %y : f32[N, 2]\n}\n";
    let json = tree(&print(&text::parse(text, &NoData).unwrap()).text);
    let graph = &json["graph"];
    assert_eq!(graph["inputs"][1]["type"]["shape"], json!(["N", 2]));
    assert_eq!(graph["constants"][0]["value"]["data"], json!([0.5, "inf"]));
    assert_eq!(graph["constants"][1]["value"]["xxh3_128"].as_str().unwrap().len(), 32);
    assert_eq!(graph["nodes"][0]["operands"], json!(["x", "w"]));
    assert_eq!(graph["nodes"][0]["types"][0]["dtype"], "f32");
}

/// Everything that a text can say.
const ALL: &str = r#"module ir=10
producer "p\"" "1"
version 3
domain "d"
doc "two\nlines"
meta k = "v"
meta k = "again"
opset ai.onnx=21, com.example=1

graph @main {
  input %x : f32[N, ?, 4]
  input %c : bool
  input %s : seq(optional(map(string, f32[*])))
  input %o : opaque("a", "b")
  input %p : sparse(f32[3, 4])
  input %u : ?
  input %k : i64[?] = tensor(i64[2] = [3, -4])
  const %h : f16[2] = f32 [1.5, nan(0x7fc00001)] -> bf16 -> f32 -> f16 clamp
  const %n : f16[2] = [0.1, nan(0x7e01)]
  const %b : bool[2] = [true, false]
  const %q : int4[3] = [-1, -8, 7]
  const %t : string[2] = ["a", "\xff"]
  const %z : f32[0, 3] = []
  const %sp : sparse(f32[3, 4]) = sparse([3, 4], tensor(f32[1] = [1.0]), tensor(i64[1] = [5]))
  %y = Relu(%x) : f32[N, ?, 4] class=infer prec=f16 why=guard.eps("x \"y\"") cast=inserted @"" meta {a="b", a="c"}
  %r, _ = com.example::Op:v2(%y, _, %u) {a=1.0, b=[1, 2], c="s", e=["x", "\xfe"], f=type(?), g=types[], h=nan(0xffc00000), i=tensor(f64[] = 1e-300), j=floats[], k=[0.5, -inf], l=[type(f32), type(?)]} : ?, _ class=0:fixed
  %w = If(%c; %x, %x, %y, %c) {
    then_branch: graph @then(%x, %"x~2" = 1) {
      const %y : f32[1] = [2.0]
      %then = Add(%x, %"x~2") : f32[N, ?, 4]
      output %then : f32[N, ?, 4]
    },
    else_branch: graph (%y : f16[N, ?, 4], %c2 = 3) {
      %inner = If(%c2; %y) {
        then_branch: graph (%y) {
          output %y
        },
        else_branch: graph (%y) {
          output %y
        }
      } : f16[N, ?, 4]
      output %inner
    }
  } : f32[N, ?, 4]
  %f = ai.ampc::F(%x) {alpha=2.0} : f32[*]
  output %y : f32[N, ?, 4]
  output %y
  state %x -> %y
  role grad(%x, %y)
}

function ai.ampc::F @body {
  opset "ai.onnx"=21
  doc "d"
  meta m = "n"
  attr alpha
  attr beta = 2
  input %x : f32[*]
  %y = LeakyRelu(%x) {alpha=ref(alpha: float)} : f32[*]
  output %y
}
"#;

#[test]
fn everything_survives() {
    let module = text::parse(ALL, &NoData).unwrap();
    let printed = print(&module);
    assert!(printed.large.is_empty() && printed.errors.is_empty());
    let again = read(&printed.text).unwrap_or_else(|e| panic!("{e}\n{}", printed.text));
    same_module(&module, &again).unwrap();
    assert_eq!(print(&again).text, printed.text);
    tree(&printed.text);
}

const EXAMPLE: &str = include_str!("../../docs/json-graph.md");

#[test]
fn the_example_of_the_document_is_a_graph() {
    let example = EXAMPLE.split("```json\n").nth(1).unwrap().split("```").next().unwrap();
    let mut module = read(example).unwrap();
    assert!(crate::check(&mut module).is_empty());
    let output = &module.graph(module.main()).outputs()[0];
    let Type::Tensor(ty) = &output.declared else { panic!("inferred") };
    assert_eq!((ty.dtype, ty.shape.rank()), (DType::F32, Some(2)));
    let broken =
        example.replace("\"MatMul\"", "\"MatMull\"").replacen("\"operands\": [\"h\"]", "\"oprands\": []", 1);
    let said = read(&broken).unwrap_err();
    let documented = EXAMPLE.split("```text\n").nth(1).unwrap().lines().next().unwrap();
    assert_eq!(said.lines().next().unwrap(), documented);
    assert!(
        said.contains("at `graph.nodes[1].oprands`, found \"oprands\"; did you mean `operands`?"),
        "{said}"
    );
    assert!(said.contains("line 14, column 25:"), "{said}");
}

/// A graph whose parts can be replaced.
fn graph(rest: &str) -> String {
    format!(
        r#"{{"schema": "ampc-graph/1", "opsets": {{"ai.onnx": 21}}, "graph": {{"inputs": [{{"name": "x"}}], {rest}}}}}"#
    )
}

/// A graph and a function with these fields.
fn with_function(fields: &str) -> String {
    format!(
        r#"{{"schema": "ampc-graph/1", "graph": {{}}, "functions": [{{"domain": "f", "name": "F", {fields}, "graph": {{}}}}]}}"#
    )
}

#[test]
fn hidden_characters_are_escaped_and_survive() {
    let text = graph(r#""outputs": [{"name": "x"}]"#);
    let hidden = "\u{7f}\u{85}\u{9b}\u{2028}\u{202e}\u{200b}\u{e0041}";
    let mut module = read(&text).unwrap();
    module.header.producer_name = hidden.to_owned();
    let printed = super::print(&module).text;
    assert!(printed.contains("\\u007f\\u0085\\u009b\\u2028\\u202e\\u200b\\udb40\\udc41"), "{printed}");
    assert_eq!(read(&printed).unwrap().header.producer_name, hidden);
}

#[test]
fn mistakes_are_named() {
    let constant = |value: &str| graph(&format!(r#""constants": [{{"name": "c", "value": {value}}}]"#));
    let node = |rest: &str| graph(&format!(r#""nodes": [{{"op": "Relu", {rest}}}]"#));
    for (text, wanted) in [
        (r#"{"schema": "ampc-graph/2"}"#.to_owned(), "the schema \"ampc-graph/1\""),
        (r#"{"graph": {}}"#.into(), "an object with \"schema\""),
        ("[]".into(), "an object with \"schema\""),
        (r#"{"schema": "ampc-graph/1"}"#.into(), "expected the field \"graph\""),
        (
            r#"{"schema": "ampc-graph/1", "schema": "ampc-graph/1", "graph": {}}"#.into(),
            "a second \"schema\"",
        ),
        (graph(r#""nodes": 3"#), "expected a list of nodes at `graph.nodes`, found `3`"),
        (graph(r#""inputs": []"#), "a second \"inputs\""),
        (
            node(r#""operands": ["z"]"#),
            "a value that this graph defines above or captures at `graph.nodes[0].operands[0]`",
        ),
        (node(r#""operands": ["x"], "results": ["x"], "types": [null]"#), "a second \"x\""),
        (node(r#""operands": ["x"], "version": 3"#), "version 14 of the operator, which opset 21 has"),
        (node(r#""results": ["y"], "types": []"#), "1 types, one for each result"),
        (
            node(r#""attributes": {"a": {"int": 1e3}}"#),
            "an integer of 64 bits at `graph.nodes[0].attributes.a.int`",
        ),
        (node(r#""attributes": {"a": {"int": 99999999999999999999}}"#), "an integer of 64 bits"),
        (node(r#""attributes": {"a": {"float": 1e99}}"#), "a number that f32 can hold"),
        (node(r#""attributes": {"a": {"int": 1, "float": 1}}"#), "one value by its kind"),
        (
            node(r#""attributes": {"a": {"ints": [1, "2"]}}"#),
            "at `graph.nodes[0].attributes.a.ints[1]`, found \"2\"",
        ),
        (node(r#""attributes": {"a": {"int": 1}, "a": {"int": 1}}"#), "a second \"a\""),
        (node(r#""decisions": [{"class": "alow"}]"#), "allow, clear, infer"),
        (node(r#""decisions": [{"var": "U", "class": "allow"}]"#), "the type variable \"T\""),
        (
            node(r#""decisions": [{"class": "allow"}, {"class": "deny"}]"#),
            "1 decision, as many as the operator has type variables",
        ),
        (node(r#""inserted": "yes""#), "true or false"),
        (node(r#""captures": ["x"], "operands": [null, 3]"#), "the name of a value at"),
        (graph(r#""captures": ["x"]"#), "captures in bodies only"),
        (graph(r#""states": [{"input": "x"}]"#), "the field \"next\""),
        (
            graph(r#""states": [{"input": "x", "next": "x"}, {"input": "x", "next": "x"}]"#),
            "every state once at `graph.states[1].input`",
        ),
        (
            graph(r#""outputs": []"#).replace(
                "\"graph\"",
                "\"metadata\": [[\"ampc.state\", \"\"], [\"ampc.state\", \"\"]], \"graph\"",
            ),
            "a second \"ampc.state\"",
        ),
        (with_function(r#""attributes": ["a", "a"]"#), "a second \"a\""),
        (with_function(r#""attributes": ["a"], "attribute_defaults": {"a": {"int": 1}}"#), "a second \"a\""),
        (constant("null"), "the field \"value\""),
        (
            constant(r#"{"dtype": "f32", "shape": [2], "data": [1]}"#),
            "expected 2 elements, as the shape [2] says",
        ),
        (constant(r#"{"dtype": "f32", "shape": [2], "data": "00"}"#), "expected 8 bytes"),
        (constant(r#"{"dtype": "f32", "shape": [2], "data": "0g"}"#), "pairs of hexadecimal digits"),
        (constant(r#"{"dtype": "f33", "shape": [1], "data": [1]}"#), "an element type such as"),
        (constant(r#"{"dtype": "f16", "shape": [1], "data": [1e6]}"#), "an element of f16"),
        (constant(r#"{"dtype": "int4", "shape": [1], "data": [1]}"#), "an element of int4"),
        (constant(r#"{"dtype": "f32", "shape": [-1], "data": [1]}"#), "a dim: a number from 0"),
        (
            constant(r#"{"dtype": "f32", "shape": [4294967296, 4294967296, 4294967296], "data": []}"#),
            "fewer elements",
        ),
        (
            constant(r#"{"dtype": "f32", "shape": [4611686018427387904, 4], "name": "w"}"#),
            "a size in bytes that can be",
        ),
        (constant(r#"{"dtype": "f16", "shape": [0], "stored": "f32", "data": []}"#), "as it is \"stored\""),
        (
            constant(r#"{"dtype": "f16", "shape": [0], "converted": [{"to": "i8"}], "data": []}"#),
            "a format that f16 can become",
        ),
        (
            constant(r#"{"dtype": "f32", "shape": [], "name": "w", "xxh3_128": "12"}"#),
            "32 hexadecimal digits",
        ),
        (constant(r#"{"dtype": "f32", "shape": []}"#), "\"data\", or \"name\""),
        (graph(r#""outputs": [{"name": "x", "type": {"kind": "tensr"}}]"#), "tensor, sparse_tensor"),
        (
            graph(r#""outputs": [{"name": "x", "type": {"kind": "sequence", "dtype": "f32"}}]"#),
            "no field \"dtype\"",
        ),
        ("{\"schema\": 1\n \"a\"}".into(), "line 2, column 2: expected `,` or `}`, found `\"`"),
        (String::new(), "line 1, column 1: expected a JSON value, found the end of the text"),
    ] {
        let said = read(&text).map(drop).unwrap_err();
        assert!(said.contains(wanted), "{text}\n    wanted {wanted}\n    said   {said}");
    }
}

#[test]
fn hostile_graphs_are_refused_or_read() {
    for text in ["[".repeat(1 << 20), "{\"a\":".repeat(1 << 20), format!("{}1", "[".repeat(2000))] {
        assert!(read(&text).is_err());
    }
    // Bodies and types within each other, deeper than anything may be.
    let open = r#"{"nodes": [{"op": "If", "attributes": {"then_branch": {"graph": "#;
    let deep = |n| {
        let body = format!("{}{{}}{}", open.repeat(n), "}}}]}".repeat(n));
        format!(r#"{{"schema": "ampc-graph/1", "opsets": {{"ai.onnx": 21}}, "graph": {body}}}"#)
    };
    let nested = read(&deep(256)).unwrap();
    assert_eq!(print(&read(&print(&nested).text).unwrap()).text, print(&nested).text);
    assert!(read(&deep(300)).unwrap_err().contains("bodies at most 256 deep"));
    let ty = format!("{}null{}", r#"{"kind": "optional", "of": "#.repeat(400), "}".repeat(400));
    let typed = graph(&format!(r#""outputs": [{{"name": "x", "type": {ty}}}]"#));
    assert!(read(&typed).unwrap_err().contains("types at most 256 deep"));
    // Many errors are not all listed.
    let many = graph(&format!(r#""nodes": [{}{{"op": "Relu"}}]"#, r#"{"op": "None"},"#.repeat(10_000)));
    assert_eq!(read(&many).unwrap_err().lines().count(), 100);
    let zeros = format!(r#"{{"dtype": "u8", "shape": [3000000], "data": [{}0]}}"#, "0,".repeat(2_999_999));
    let huge = graph(&format!(r#""constants": [{{"name": "c", "value": {zeros}}}]"#));
    assert_eq!(read(&huge).unwrap().graph_ids().count(), 1);
}

#[test]
fn every_truncated_or_changed_text_is_read_or_refused() {
    let module = text::parse(ALL, &NoData).unwrap();
    let text = print(&module).text;
    let mut state = 7u64;
    for round in 0..3000 {
        let mut bytes = text.clone().into_bytes();
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = usize::try_from(state >> 33).unwrap() % bytes.len();
        match round % 3 {
            0 => bytes.truncate(at),
            1 => bytes[at] = b"{}[]\",:0-n9e"[usize::try_from(state >> 20).unwrap() % 12],
            _ => drop(bytes.drain(at..(at + 9).min(text.len()))),
        }
        let Ok(changed) = String::from_utf8(bytes) else { continue };
        if let Ok(mut module) = read(&changed) {
            let printed = print(&module).text;
            assert_eq!(print(&read(&printed).unwrap()).text, printed);
            crate::check(&mut module);
        }
    }
}

#[test]
fn constants_are_shared_and_checked() {
    let value = |hash: &str| format!(r#"{{"dtype": "f32", "shape": [20], "name": "w"{hash}}}"#);
    let text = |hash: &str| {
        let value = value(hash);
        graph(&format!(
            r#""constants": [{{"name": "a", "value": {value}}}, {{"name": "b", "value": {value}}}]"#
        ))
    };
    let resolver = |name: &str, dtype: DType, dims: &[u64], _: Option<u128>| {
        (name == "w").then(|| TensorData::from_bytes(dtype, dims, vec![1; 80]).unwrap())
    };
    let module = parse(&text(""), &resolver, &ParseOptions::default()).unwrap();
    let printed = print(&module);
    assert_eq!(printed.large.len(), 1);
    assert_eq!(printed.large[0].name, "a");
    let wrong = format!(r#", "xxh3_128": "{:032x}""#, 5);
    let said = parse(&text(&wrong), &resolver, &ParseOptions::default()).unwrap_err().to_string();
    assert!(said.contains("data of hash 00000000000000000000000000000005"), "{said}");
    let said = parse(&text(""), &NoData, &ParseOptions::default()).unwrap_err().to_string();
    assert!(said.contains("a tensor of this name, f32 and shape [20] in the safetensors file"), "{said}");
}
