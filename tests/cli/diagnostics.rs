//! Every kind of problem: exit code, what is said, and that nothing is left behind.

use super::support::{Dir, MATMUL, MLP, Run, module, snapshot};

/// Runs, compares, and checks the exit code.
fn fails(dir: &Dir, name: &str, code: i32, args: &[&str]) -> Run {
    let before = dir.files();
    let run = dir.run(args);
    assert_eq!(run.code, code, "{name}: {run}");
    assert_eq!(dir.files(), before, "{name} left something behind");
    snapshot(name, &run);
    run
}

#[test]
fn wrong_usage() {
    let dir = Dir::new();
    dir.copy(MLP, "mlp.onnx");
    let cases: &[(&str, &[&str])] = &[
        ("usage_flag", &["--objectives", "casts"]),
        ("usage_objective", &["--objective", "castss"]),
        ("usage_target", &["--target", "h20"]),
        ("usage_format", &["--to", "fp8"]),
        ("usage_policy", &["--policy", "sfae"]),
        ("usage_op", &["--deny", "Gem"]),
        ("usage_op_twice", &["--deny", "Gemm", "--allow", "Gemm"]),
        ("usage_guard", &["--disable-guard", "epss"]),
        ("usage_pin_shape", &["--pin", "fc1"]),
        ("usage_pin_precision", &["--pin", "fc1=int8"]),
        ("usage_pin_glob", &["--pin", "fc[=fp32"]),
        ("usage_pin_nothing", &["--pin", "fc22=fp32"]),
        ("usage_pin_of_value", &["--pin", "h1=fp32"]),
        ("usage_pin_of_two", &["--pin", "fc1=fp32,fc2=fp32"]),
        ("usage_pin_value_nothing", &["--pin-value", "hh1=fp32"]),
        ("usage_pin_var", &["--pin", "fc1#Q=fp32"]),
        ("usage_keep_io", &["--keep-io", "x,z"]),
        ("usage_explain", &["--explain", "fc"]),
        ("usage_explain_stdout", &["--explain", "fc1", "-o", "-"]),
        ("usage_dump", &["--dump-after", "tiant", "--dump-dir", "dumps"]),
        ("usage_opset", &["--opset", "newest"]),
        ("usage_opset_down", &["--opset", "9"]),
        ("usage_opset_unknown", &["--opset", "99"]),
        ("usage_external", &["--emit", "json", "--external-data", "always"]),
        ("usage_emit", &["--emit", "emulated", "-o", "mlp.ir"]),
        ("usage_emit_text", &["--emit", "text", "-o", "low.onnx"]),
    ];
    for (name, args) in cases {
        fails(&dir, name, 2, &[&["rewrite", "mlp.onnx"], *args].concat());
    }
    fails(&dir, "usage_no_passes", 2, &["opt", "mlp.onnx"]);
    fails(&dir, "usage_pass", 2, &["opt", "mlp.onnx", "--passes", "classify, tiant"]);
    fails(&dir, "usage_pass_order", 2, &["opt", "mlp.onnx", "--passes", "taint"]);
    fails(&dir, "usage_pass_policy", 2, &["opt", "mlp.onnx", "--passes", "classify{policy=sfae}"]);
    fails(&dir, "usage_command", 2, &["rewite", "mlp.onnx"]);
}

#[test]
fn wrong_policies() {
    let dir = Dir::new();
    let cases: &[(&str, &str)] = &[
        ("policy_syntax", "{\n  \"ops\": {\"deny\": [\"Gemm\",]}\n}\n"),
        ("policy_field", "{\n  \"opps\": {}\n}\n"),
        ("policy_op", "{\n  \"ops\": {\n    \"deny\": [\"Matmul\"]\n  }\n}\n"),
        ("policy_class", "{\n  \"ops\": {\"denny\": [\"MatMul\"]}\n}\n"),
        ("policy_precision", "{\n  \"pins\": {\"fc1\": \"low\"}\n}\n"),
        ("policy_base", "{\n  \"base\": \"mine\"\n}\n"),
        ("policy_schema", "{\"schema\": \"ampc-policy/7\"}"),
    ];
    for (name, text) in cases {
        dir.write("p.json", text);
        fails(&dir, name, 2, &["policy", "check", "p.json"]);
    }
    // A file of one line is not printed as a whole.
    let nodes = r#"{"path":"a","vars":[{"var":"T","precision":"fp16"}]},"#.repeat(40);
    for (mistake, text) in [
        ("policy_one_line", r#""nodes":[NODES{"path":"b","vars":[{"var":"T","precision":"low"}]}]"#),
        ("policy_one_line_json", r#""nodes":[NODES{"path":7}]"#),
    ] {
        dir.write("p.json", format!("{{\"schema\":\"ampc-report/1\",{}}}", text.replace("NODES", &nodes)));
        fails(&dir, mistake, 2, &["policy", "check", "p.json"]);
    }
    fails(&dir, "policy_missing", 5, &["policy", "check", "none.json"]);
    fails(&dir, "policy_no_json", 2, &["policy", "check", "p.yaml"]);
}

#[test]
fn wrong_targets() {
    let dir = Dir::new();
    let (_, generic) = ampc::passes::target::PROFILES[0];
    let cases: &[(&str, &str, &str)] = &[
        ("target_syntax", "\"memory\": {", "\"memory\": {{"),
        ("target_field", "\"elementwise\"", "\"elementwize\""),
        ("target_shape", "\"memory\": {", "\"memory\": 1000000, \"views\": {"),
        ("target_op", "\"Softmax\"", "\"SoftMax2\""),
        ("target_group", "\"@products\"", "\"@product\""),
        ("target_rate", "\"value\": 5000000", "\"value\": 0"),
        ("target_fraction", "\"value\": 5000000", "\"value\": 0.5"),
        ("target_schema", "ampc-target/1", "ampc-target/7"),
    ];
    for (name, from, to) in cases {
        assert!(generic.contains(from), "{from}");
        dir.write("t.json", generic.replacen(from, to, 1));
        fails(&dir, name, 2, &["target", "check", "t.json"]);
    }
    fails(&dir, "target_unknown", 2, &["target", "show", "ort-cdua"]);
    fails(&dir, "target_missing", 5, &["target", "show", "none.json"]);
    fails(&dir, "target_no_json", 2, &["target", "check", "t.yaml"]);
}

/// The model with all occurrences of some bytes replaced by as many others.
fn patched(from: &[u8], to: &[u8]) -> Vec<u8> {
    replaced(std::fs::read(MLP).unwrap(), from, to)
}

fn replaced(mut bytes: Vec<u8>, from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let places: Vec<usize> =
        bytes.windows(from.len()).enumerate().filter(|(_, w)| *w == from).map(|(i, _)| i).collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at..at + to.len()].copy_from_slice(to);
    }
    bytes
}

#[test]
fn files_that_are_no_models() {
    let dir = Dir::new();
    let mlp = std::fs::read(MLP).unwrap();
    let cases: &[(&str, &[u8])] = &[
        ("import_empty", b""),
        ("import_lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
        ("import_page", b"<!DOCTYPE html><html></html>"),
        ("import_garbage", b"\xff\xfe\xfd garbage"),
        ("import_cut", &mlp[..mlp.len() / 2]),
        ("import_no_graph", b"\x08\x0a"),
        ("import_unknown_op", &patched(b"Softmax", b"Softmix")),
        ("import_undefined", &patched(b"\x0a\x02h1\x0a", b"\x0a\x02q1\x0a")),
        ("import_duplicate", &patched(b"\x12\x02a2", b"\x12\x02a1")),
        ("import_too_new", &patched(b"Softmax", b"BitCast")),
        ("import_removed", &patched(b"Softmax", b"Scatter")),
    ];
    for (name, bytes) in cases {
        dir.write("m.onnx", bytes);
        fails(&dir, name, 3, &["rewrite", "m.onnx"]);
        let run = dir.run(&["check", "m.onnx"]);
        assert_eq!((run.code, run.stderr.as_str()), (3, ""), "{name}: {run}");
    }
}

/// Operators that only ONNX Runtime has are read with one warning each, however many nodes there are.
#[test]
fn operators_that_only_onnx_runtime_has() {
    let dir = Dir::new();
    let text = "opset ai.onnx=9\n\ngraph @main {\n  input %x : f32[1, 2, 4, 4]\n  const %s : f32[4] = random(1)\n  \
                %a = ImageScaler(%x) {bias=[0.5, -0.5]} : f32[1, 2, 4, 4] @scaler\n  \
                %b = LayerNormalization(%a, %s, %s) : f32[1, 2, 4, 4] @first\n  \
                %c = LayerNormalization(%b, %s) : f32[1, 2, 4, 4] @second\n  output %c\n}\n";
    dir.write("m.ir", text);
    let made = dir.run(&["opt", "m.ir", "--passes", "", "-o", "m.onnx"]);
    assert_eq!(made.code, 0, "{made}");
    snapshot("import_runtime_only", &dir.run(&["check", "m.onnx"]));
    dir.write("gone.ir", text.replace("ai.onnx=9", "ai.onnx=10"));
    fails(&dir, "text_removed", 3, &["rewrite", "gone.ir"]);
    snapshot("raise_runtime_only", &dir.run(&["opt", "m.onnx", "--passes", "raise-opset{to=17}"]));
}

/// Raising an operator to an opset at which ONNX Runtime's CPU provider has no kernel warns, whether the opset
/// was given or chosen.
#[test]
fn opsets_at_which_a_kernel_is_lost() {
    let dir = Dir::new();
    dir.write(
        "m.ir",
        "opset ai.onnx=16\n\ngraph @main {\n  input %x : f32[1, 2, 8, 8]\n  input %r : f32[3, 4]\n  input %b : i64[3]\n  \
         const %w : f32[2, 2, 1, 1] = random(1)\n  %c = Conv(%x, %w) : f32[1, 2, 8, 8] @conv\n  \
         %a = RoiAlign(%c, %r, %b) : f32[3, 2, 1, 1] @roi\n  output %a\n}\n",
    );
    let auto = dir.run(&["rewrite", "m.ir", "--to", "bf16", "--opset", "auto", "-o", "a.onnx"]);
    snapshot("opset_no_kernel", &auto);
    assert!(auto.stderr.contains("opset.no-kernel"), "{auto}");
    let below = dir.run(&["rewrite", "m.ir", "--opset", "21", "-o", "b.onnx"]);
    assert!(below.code == 0 && !below.stderr.contains("no-kernel"), "{below}");
    let number = dir.run(&["rewrite", "m.ir", "--opset", "22", "-o", "c.onnx"]);
    assert!(number.stderr.contains("opset.no-kernel"), "{number}");
}

#[test]
fn external_data() {
    let dir = Dir::new();
    let run = dir.run(&["rewrite", MLP, "-o", "m.onnx", "--external-data", "always"]);
    assert_eq!(run.code, 0, "{run}");
    snapshot("external_inspect", &dir.run(&["inspect", "m.onnx"]));
    fails(&dir, "external_stdout", 2, &["rewrite", MLP, "-o", "-", "--external-data", "always"]);
    let name = dir.files().into_iter().find(|name| name.starts_with("m.onnx.")).unwrap();
    let data = std::fs::read(dir.path(&name)).unwrap();
    dir.write(&name, &data[..data.len() - 1]);
    fails(&dir, "external_short", 3, &["rewrite", "m.onnx"]);
    std::fs::remove_file(dir.path(&name)).unwrap();
    fails(&dir, "external_missing", 3, &["rewrite", "m.onnx"]);
    let piped = dir.run_with(&["check", "-"], &std::fs::read(dir.path("m.onnx")).unwrap());
    assert_eq!(piped.code, 3);
    snapshot("external_piped", &piped);
}

#[test]
fn invalid_graphs_are_drawn() {
    let dir = Dir::new();
    dir.write(
        "m.ir",
        module(
            "  input %x : f32[2, 3]\n  input %k : i64[4]\n  %a = Relu(%x) : f32[2, 3] @first\n  \
             %b = MatMul(%a, %x) : f32[2, 3] @product\n  %c = Add(%a, %k) : f32[2, 3] @sum\n  \
             %d = Concat(%a, %a) {axis=5} : f32[2, 3] @joined\n  output %b : f32[2, 3]\n  output %c : f32[2, 3]\n  \
             output %d : f32[2, 3]\n",
        ),
    );
    fails(&dir, "check_invalid", 3, &["check", "m.ir"]);
    fails(&dir, "check_invalid_color", 3, &["check", "m.ir", "--color", "always"]);
    fails(&dir, "rewrite_invalid", 3, &["rewrite", "m.ir"]);
}

#[test]
fn attributes_that_an_operator_lacks() {
    let dir = Dir::new();
    dir.write(
        "m.ir",
        module("  input %x : f32[2]\n  %y = Relu(%x) {slope=2} : f32[2]\n  output %y : f32[2]\n"),
    );
    fails(&dir, "check_unknown_attribute", 3, &["check", "m.ir"]);
}

#[test]
fn many_problems_are_counted() {
    let dir = Dir::new();
    let nodes: String = (0..13).map(|i| format!("  %y{i} = Add(%x, %k) : f32[2] @add{i}\n")).collect();
    let outputs: String = (0..13).map(|i| format!("  output %y{i} : f32[2]\n")).collect();
    dir.write("m.ir", module(&format!("  input %x : f32[2]\n  input %k : i64[2]\n{nodes}{outputs}")));
    let check = dir.run(&["check", "m.ir"]);
    assert_eq!(check.code, 3);
    let tail: Vec<&str> = check.stdout.lines().rev().take(4).collect();
    assert_eq!(tail[0], "m.ir: 13 problems");
    assert!(tail[1].starts_with("ampc::check::operand: Add `add12`"), "{check}");
    let rewrite = dir.run(&["rewrite", "m.ir"]);
    assert_eq!(rewrite.stderr.lines().last(), Some("and 3 more problems; `ampc check m.ir` names them all"));
}

#[test]
fn texts_that_are_no_modules() {
    let dir = Dir::new();
    dir.write("m.ir", module("  input %x : f32[2\n  %y = Relu(%z) : f32[2]\n  output %y : f99\n"));
    fails(&dir, "text_errors", 3, &["check", "m.ir"]);
    dir.write("m.ir", b"module ir=10\nop\xffset");
    fails(&dir, "text_not_utf8", 3, &["rewrite", "m.ir"]);
    dir.write("m.ir", module(MATMUL));
    dir.write("m.ir.safetensors", b"\x00\x01");
    fails(&dir, "text_safetensors", 3, &["rewrite", "m.ir"]);
}

#[test]
fn warnings_have_codes() {
    let dir = Dir::new();
    let text = module(MATMUL).replace("ai.onnx=21", "ai.onnx=12");
    dir.write("m.ir", text);
    snapshot("warning_opset", &dir.run(&["rewrite", "m.ir", "--to", "bf16", "-o", "a.onnx"]));
    // The two Relu change places: the file is in no topological order, and is all the same a model.
    let swapped = replaced(std::fs::read(MLP).unwrap(), b"\x0a\x02a1\x12\x02h1", b"\x0a\x02a?\x12\x02h?");
    let swapped = replaced(swapped, b"\x0a\x02a2\x12\x02h2", b"\x0a\x02a1\x12\x02h1");
    let swapped = replaced(swapped, b"\x0a\x02a?\x12\x02h?", b"\x0a\x02a2\x12\x02h2");
    dir.write("unsorted.onnx", swapped);
    snapshot("warning_unsorted", &dir.run(&["rewrite", "unsorted.onnx"]));
    // How the file is written down is not a matter of the result.
    let quiet = dir.run(&["rewrite", "unsorted.onnx", "-q", "--force"]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""));
    snapshot("warning_unsorted_check", &dir.run(&["check", "unsorted.onnx"]));
}

#[test]
fn what_is_not_supported() {
    let dir = Dir::new();
    dir.write("m.onnx", patched(b"\xa0\x01\x02", b"\xa0\x01\x3f"));
    fails(&dir, "not_supported", 4, &["rewrite", "m.onnx"]);
    let old = "opset ai.onnx=9\n\ngraph @main {\n  input %x : f32[2, 3, 3]\n  input %s : f32[3, 3]\n  input %i : i64[4]\n  \
               const %d : i64 = 5\n  const %v : f32[2] = [0.0, 1.0]\n  \
               %a = OneHot(%i, %d, %v) : f32[4, 5] @first\n  %b = OneHot(%i, %d, %v) : f32[4, 5] @second\n  \
               %c = Erf(%i) : i64[4] @erf\n  output %a\n  output %b\n  output %c\n}\n";
    dir.write("old.ir", old);
    fails(&dir, "opset_no_form", 4, &["rewrite", "old.ir", "--opset", "17"]);
}

#[test]
fn constants_out_of_range() {
    let dir = Dir::new();
    dir.write("m.ir", module(&MATMUL.replace("8.0]", "1e6]")));
    fails(&dir, "out_of_range", 3, &["rewrite", "m.ir", "--out-of-range", "error"]);
    let keep = dir.run(&["rewrite", "m.ir", "-o", "keep.ir", "--explain", "matmul"]);
    snapshot("out_of_range_keep", &keep);
    let clamp = dir.run(&["rewrite", "m.ir", "-o", "clamp.ir", "--out-of-range", "clamp", "-q"]);
    assert_eq!(clamp.code, 0, "{clamp}");
}

#[test]
fn files_that_cannot_be_read_or_written() {
    let dir = Dir::new();
    dir.copy(MLP, "mlp.onnx");
    dir.write("taken.onnx", "mine");
    std::fs::create_dir(dir.path("folder")).unwrap();
    fails(&dir, "io_missing", 5, &["rewrite", "none.onnx"]);
    fails(&dir, "io_missing_check", 5, &["check", "none.onnx"]);
    fails(&dir, "io_folder", 5, &["inspect", "folder"]);
    fails(&dir, "io_exists", 5, &["rewrite", "mlp.onnx", "-o", "taken.onnx"]);
    dir.write("taken.json", "mine");
    fails(&dir, "io_report_exists", 5, &["rewrite", "mlp.onnx", "-o", "new.onnx", "--report", "taken.json"]);
    fails(&dir, "io_source", 2, &["rewrite", "mlp.onnx", "-o", "mlp.onnx", "--force"]);
    fails(&dir, "io_onto_folder", 5, &["rewrite", "mlp.onnx", "-o", "folder"]);
    fails(&dir, "io_no_folder", 5, &["rewrite", "mlp.onnx", "-o", "none/m.onnx"]);
    assert_eq!(std::fs::read(dir.path("taken.onnx")).unwrap(), b"mine");
    assert_eq!(dir.run(&["rewrite", "mlp.onnx", "-o", "taken.onnx", "--force"]).code, 0);
    assert_eq!(dir.run(&["check", "taken.onnx"]).code, 0);
}
