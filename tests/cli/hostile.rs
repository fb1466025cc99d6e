//! Texts of a model that are made to be shown wrongly: no message passes them on as they are, or without bound.

use super::reading::{matmul, model, node, some, typed, write};
use super::support::{Dir, Run};
use ampc::onnx::proto::ModelProto;
use prost::Message;

const HOSTILE: &str = "a\u{1b}[31m\nerror: b\u{202e}c\u{9b}d\te\u{61c}f";

/// A target whose every text is hostile.
fn hostile_target() -> serde_json::Value {
    let text = include_str!("../../passes/src/target/profiles/generic.json");
    let mut target: serde_json::Value = serde_json::from_str(text).unwrap();
    let mut open = vec![&mut target];
    while let Some(value) = open.pop() {
        match value {
            serde_json::Value::Object(fields) => {
                for (name, field) in fields.iter_mut() {
                    match name.as_str() {
                        "name" | "description" | "source" => *field = HOSTILE.into(),
                        _ => open.push(field),
                    }
                }
            }
            serde_json::Value::Array(items) => open.extend(items),
            serde_json::Value::Null
            | serde_json::Value::Bool(_)
            | serde_json::Value::Number(_)
            | serde_json::Value::String(_) => {}
        }
    }
    target
}

/// Nothing that a terminal acts on, but the colors that were asked for.
fn assert_safe(run: &Run) {
    for text in [&run.stdout, &run.stderr] {
        let is_bad = |c: char| {
            (c.is_control() && c != '\n')
                || matches!(c, '\u{61c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        };
        assert!(!text.contains(is_bad), "{text:?}");
        assert!(!text.lines().any(|line| line.starts_with("error: b")), "{text}");
    }
}

#[test]
fn names_cannot_reach_the_terminal() {
    let dir = Dir::new();
    let mut hostile = model(17, matmul(&[2, 5]));
    let graph = hostile.graph.as_mut().unwrap();
    graph.node[0].name = some(HOSTILE);
    graph.node[0].output = vec![HOSTILE.to_owned()];
    graph.output[0].name = some(HOSTILE);
    graph.input[0].name = some(&format!("in{HOSTILE}"));
    graph.node[0].input[0] = format!("in{HOSTILE}");
    graph.name = some(HOSTILE);
    hostile.producer_name = some(HOSTILE);
    hostile.doc_string = some(HOSTILE);
    write(&dir, "m.onnx", &hostile);
    let mut broken = hostile.clone();
    broken.graph.as_mut().unwrap().node[0].input[1] = format!("gone{HOSTILE}");
    write(&dir, "broken.onnx", &broken);
    let mut ill = hostile.clone();
    ill.graph.as_mut().unwrap().initializer[0].dims = vec![2, 8];
    write(&dir, "ill.onnx", &ill);
    let file = "f\u{1b}[2J\n.onnx";
    write(&dir, file, &hostile);
    dir.write("p.json", "{\"ops\": {\"deny\": [\"x\u{202e}y\"]}}");
    dir.write("named.json", serde_json::json!({"name": HOSTILE}).to_string());
    dir.write("target.json", hostile_target().to_string());
    for args in [
        &["check", "m.onnx"][..],
        &["check", "broken.onnx"],
        &["check", "ill.onnx"],
        &["check", file],
        &["check", "none\u{1b}[2J\n.onnx"],
        &["inspect", "m.onnx"],
        &["rewrite", "m.onnx", "-o", "out.onnx", "--force", "-v"],
        &["rewrite", file, "--force"],
        &["rewrite", "m.onnx", "-o", "out.onnx", "--force", "--explain", "*"],
        &["rewrite", "m.onnx", "-o", "out.onnx", "--force", "--pin", "nothing\u{7}=fp32"],
        &["run", "m.onnx", "--random", "1", "--print-plan", "--bench", "1", "--profile"],
        &["verify", "m.onnx", "m.onnx", "--random", "1"],
        &["rewrite", "m.onnx", "-o", "verified.onnx", "--verify"],
        &["rewrite", "m.onnx", "-o", "named.onnx", "--policy", "named.json", "--target", "target.json"],
        &["policy", "show", "named.json"],
        &["target", "show", "target.json"],
        &["policy", "check", "p.json"],
        &["opt", "m.onnx", "--passes", "dce"],
        &["rewrite", "m.onnx", "--to", "a\r\u{202e}b\u{9b}"],
        &["rewrite", "m.onnx", "--no\r\u{202e}ne\u{1b}[2J"],
        &["no\r\u{202e}ne\n\u{9b}"],
        &["run", "m.onnx", "--threads", "\u{85}1"],
        &["inspect", "m.onnx", "--json"],
        &["verify", "m.onnx", "m.onnx", "--random", "1", "--json"],
    ] {
        assert_safe(&dir.run(args));
    }
    let usage = dir.run(&["rewrite", "m.onnx", "--to", "a\r\u{202e}b"]);
    assert!(usage.code == 2 && usage.stderr.contains("a\\u{d}\\u{202e}b"), "{usage}");
    let colored = dir.run(&["check", "broken.onnx", "--color", "always"]);
    assert!(colored.stdout.contains("\u{1b}[") && !colored.stdout.contains("a\u{1b}[31m"), "{colored:?}");
    // What programs read has quoting of its own, and says the same.
    assert_eq!(dir.run(&["rewrite", "m.onnx", "-o", "t.ir", "--pin", "*=fp32"]).code, 0);
    assert_eq!(dir.run(&["rewrite", "t.ir", "-o", "back.onnx", "--pin", "*=fp32"]).code, 0);
    assert_eq!(dir.run(&["rewrite", "m.onnx", "-o", "j.json", "--pin", "*=fp32"]).code, 0);
    assert_eq!(dir.run(&["rewrite", "j.json", "-o", "back2.onnx", "--pin", "*=fp32"]).code, 0);
    for back in ["back.onnx", "back2.onnx"] {
        let back = ModelProto::decode(&*std::fs::read(dir.path(back)).unwrap()).unwrap();
        assert_eq!(back.graph.unwrap().node[0].name(), HOSTILE);
    }
    let json = dir.run(&["inspect", "m.onnx", "--json"]);
    let parsed: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(parsed["producer"], HOSTILE);
}

/// Bytes that a command says at most, whatever the model.
const MOST: usize = 64 << 10;

#[test]
fn messages_are_bounded() {
    let dir = Dir::new();
    let mut dims = model(17, matmul(&[2, 4]));
    dims.graph.as_mut().unwrap().initializer[0].dims = vec![2; 100_000];
    write(&dir, "dims.onnx", &dims);
    let mut shape = model(17, matmul(&[2, 4]));
    let graph = shape.graph.as_mut().unwrap();
    graph.output[0] = typed("y", 1, &vec![3; 100_000]);
    write(&dir, "shape.onnx", &shape);
    let mut outputs = model(17, matmul(&[2, 4]));
    outputs.graph.as_mut().unwrap().output.extend((0..20_000).map(|i| typed(&format!("o{i}"), 1, &[2])));
    write(&dir, "outputs.onnx", &outputs);
    let mut many = model(17, matmul(&[2, 4]));
    let graph = many.graph.as_mut().unwrap();
    let relu = |i: usize| node("Relu", &format!("n{i}"), &["y"], &[&format!("o{i}")]);
    graph.node.extend((0..20_000).map(relu));
    graph.output.extend((0..20_000).map(|i| typed(&format!("o{i}"), 1, &[2, 4])));
    write(&dir, "many.onnx", &many);
    let mut long = model(17, matmul(&[2, 4]));
    let name = "n".repeat(1 << 20);
    long.graph.as_mut().unwrap().node[0].name = Some(name.clone());
    long.graph.as_mut().unwrap().node[0].input[1] = name;
    write(&dir, "long.onnx", &long);
    for (file, code) in [("dims", 3), ("shape", 0), ("outputs", 3), ("long", 3), ("many", 0)] {
        let path = format!("{file}.onnx");
        for args in
            [&["check", &path][..], &["rewrite", &path, "-o", "out.onnx", "--force"], &["inspect", &path]]
        {
            let run = dir.run(args);
            assert_eq!(run.code, code, "{file} {}", run.stderr.len());
            let said = run.stdout.len() + run.stderr.len();
            assert!(said < 4 * MOST, "{args:?} says {said} bytes");
        }
    }
    let run = dir.run(&["check", "outputs.onnx"]);
    assert!(run.stdout.contains("more problems"), "{}", &run.stdout[run.stdout.len() - 200..]);
    let run = dir.run(&["rewrite", "many.onnx", "-o", "out.onnx", "--force", "--keep-io", "o1,zzz"]);
    assert!(run.code == 2 && run.stderr.len() < MOST, "{}", run.stderr.len());
}
